"""FlashSampler, FusedFlashSamplingKernel, VLLMWithFlashSampling: the right law, whatever the shape, dtype and number of
groups; and two mistakes that programs of these names are known to make, which the same check rejects.

A test of fit is chi-squared over N draws against softmax(logits / temperature) in double. A right sampler fails one
with probability fit.ALPHA = 1e-6; the seeds are fixed, so that what passes passes again. Probabilities that are off by
5 %, root mean square, fail it with probability 0.99: fit.cells(...).sees.
"""
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))

import fit
import flashsampling as fs
import flashsampling.flash_sampler
from flashsampling.flash_sampler import FlashSampler, FusedFlashSamplingKernel, VLLMWithFlashSampling

V, D, N = 43, 16, 50_000  # V is prime: no number of groups divides it
TEMPERATURES = (0.5, 1.0, 2.0)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)


def tensors(dtype=torch.float32, rows=1):
    """A hidden state, a head and a bias whose logits are about standard normal."""
    g = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(1, D, generator=g), torch.randn(V, D, generator=g) / D**0.5
    return hidden.to(dtype).expand(rows, D).contiguous(), weight.to(dtype), torch.randn(V, generator=g).to(dtype)


def law(temperature, dtype=torch.float32, bias=False):
    hidden, weight, b = (t.double() for t in tensors(dtype))
    logits = (hidden @ weight.T + b * bias)[0]
    return torch.softmax(logits / temperature, 0).numpy()


def found(tokens, p):
    """The fit of tokens to a law."""
    return fit.cells(np.bincount(tokens.numpy(), minlength=len(p)), p)


def assert_law(tokens, p):
    assert tokens.dtype == torch.int64 and tokens.shape == (N,)
    result = found(tokens, p)
    assert not fit.rejects(result), fit.line(result)
    assert result.sees < 0.05


# ---------------------------------------------------------------------------------------------------------- law ----


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_gumbel_sample_follows_the_softmax(temperature):
    hidden, weight, _ = tensors()
    assert_law(FlashSampler.gumbel_sample((hidden @ weight.T).expand(N, V), temperature), law(temperature))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("tile_size", (1, 256))
def test_sample_tiled_follows_the_softmax(temperature, tile_size):
    hidden, weight, _ = tensors(rows=N)
    assert_law(FlashSampler(V, D, tile_size).sample_tiled(hidden, weight, temperature), law(temperature))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("groups", (1, 4, 7, V, V + 5))
def test_sample_grouped_follows_the_softmax(temperature, groups):
    hidden, weight, _ = tensors(rows=N)
    assert_law(FlashSampler(V, D).sample_grouped(hidden, weight, temperature, groups), law(temperature))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("bias", (False, True))
def test_fused_lm_head_sample_follows_the_softmax(temperature, bias):
    hidden, weight, b = tensors(rows=N)
    kernel = FusedFlashSamplingKernel(V, D, device="cpu")
    tokens = kernel.fused_lm_head_sample(hidden, weight, b if bias else None, temperature)
    assert_law(tokens, law(temperature, bias=bias))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_every_dtype_follows_its_own_softmax(dtype):
    hidden, weight, bias = tensors(dtype, rows=N)
    p = law(0.7, dtype, bias=True)
    assert_law(FusedFlashSamplingKernel(V, D, device="cpu").fused_lm_head_sample(hidden, weight, bias, 0.7), p)
    logits = torch.log(torch.from_numpy(p)).to(dtype)
    stored = torch.softmax(logits.double(), 0).numpy()
    assert_law(FlashSampler.gumbel_sample(logits.expand(N, V)), stored)


# ----------------------------------------------------------------------------------------------------- mistakes ----


def gumbel(*shape):
    return -torch.empty(shape, dtype=torch.float64).exponential_().log()


@pytest.mark.parametrize("temperature", (0.5, 0.8, 1.25, 2.0))
def test_noise_divided_by_the_temperature_would_be_rejected(temperature):
    hidden, weight, _ = tensors()
    logits = hidden.double() @ weight.double().T
    right = (logits / temperature + gumbel(N, V)).argmax(1)
    wrong = ((logits + gumbel(N, V)) / temperature).argmax(1)
    assert not fit.rejects(found(right, law(temperature)))
    assert found(wrong, law(temperature)).p < 1e-30
    assert not fit.rejects(found(wrong, law(1.0)))  # what it draws from, whatever the temperature


@pytest.mark.parametrize("groups", (4, 7))
def test_groups_that_drop_the_remainder_would_be_rejected(groups):
    hidden, weight, _ = tensors()
    logits, kept = hidden.double() @ weight.double().T, V // groups * groups
    wrong = (logits[:, :kept] + gumbel(N, kept)).argmax(1)
    assert kept < V and found(wrong, law(1.0)).p < 1e-30


# ------------------------------------------------------------------------------------------------------- tokens ----


def test_groups_and_tiles_draw_the_same_token_for_a_seed():
    hidden, weight, _ = tensors(rows=1000)
    tokens = []
    for draw in (FlashSampler(V, D).sample_tiled, FlashSampler(V, D, 7).sample_tiled, FlashSampler(V, D).sample_grouped,
                 lambda *a: FlashSampler(V, D).sample_grouped(*a, group_size=V + 1)):
        torch.manual_seed(3)
        tokens.append(draw(hidden, weight, 0.8).tolist())
    assert tokens[0] == tokens[1] == tokens[2] == tokens[3]


def test_manual_seed_makes_draws_repeat_and_calls_differ():
    hidden, weight, bias = tensors(rows=1000)
    sampler, kernel = FlashSampler(V, D), FusedFlashSamplingKernel(V, D, device="cpu")
    draws = [lambda: FlashSampler.gumbel_sample(hidden @ weight.T), lambda: sampler.sample_tiled(hidden, weight),
             lambda: sampler.sample_grouped(hidden, weight), lambda: kernel.fused_lm_head_sample(hidden, weight, bias)]
    for draw in draws:
        torch.manual_seed(4)
        first, second = draw().tolist(), draw().tolist()
        torch.manual_seed(4)
        assert draw().tolist() == first != second


def test_temperature_0_is_greedy():
    hidden, weight, bias = tensors()
    hidden = torch.randn(50, D)
    logits, sampler = hidden @ weight.T, FlashSampler(V, D)
    best = logits.argmax(1).tolist()
    assert FlashSampler.gumbel_sample(logits, 0).tolist() == best
    assert sampler.sample_tiled(hidden, weight, 0.0).tolist() == best
    assert sampler.sample_grouped(hidden, weight, 0.0).tolist() == best
    kernel = FusedFlashSamplingKernel(V, D, device="cpu")
    assert kernel.fused_lm_head_sample(hidden, weight, bias, 0.0).tolist() == (logits + bias).argmax(1).tolist()


def test_padding_rows_of_the_head_are_never_drawn():
    hidden, weight, bias = tensors(rows=2000)
    weight[30:] = hidden[0] * 9
    for draw in (lambda s: s.sample_tiled(hidden, weight), lambda s: s.sample_grouped(hidden, weight)):
        assert draw(FlashSampler(30, D)).max() < 30 <= draw(FlashSampler(V, D)).min()
    kernel = FusedFlashSamplingKernel(30, D, device="cpu")
    assert kernel.fused_lm_head_sample(hidden, weight, bias).max() < 30
    assert kernel.fused_lm_head_sample(hidden, weight, bias[:30]).max() < 30


def test_stored_logits_of_any_leading_shape():
    logits = torch.randn(3, 5, V)
    assert FlashSampler.gumbel_sample(logits, 0).tolist() == logits.argmax(-1).tolist()
    assert FlashSampler.gumbel_sample(logits.transpose(0, 1), 0).tolist() == logits.argmax(-1).T.tolist()
    assert FlashSampler.gumbel_sample(logits[0, 0], 0).item() == logits[0, 0].argmax().item()
    assert FlashSampler.gumbel_sample(logits[:0]).shape == (0, 5)


def test_no_rows_give_no_tokens():
    hidden, weight, bias = tensors()
    sampler = FlashSampler(V, D)
    for tokens in (sampler.sample_tiled(hidden[:0], weight), sampler.sample_grouped(hidden[:0], weight),
                   FusedFlashSamplingKernel(V, D, device="cpu").fused_lm_head_sample(hidden[:0], weight, bias)):
        assert tokens.shape == (0,) and tokens.dtype == torch.int64


def test_a_row_without_a_distribution_raises():
    hidden, weight, bias = tensors(rows=3)
    hidden[1] = float("nan")
    kernel = FusedFlashSamplingKernel(V, D, device="cpu")
    for draw in (lambda: FlashSampler(V, D).sample_tiled(hidden, weight),
                 lambda: FlashSampler(V, D).sample_grouped(hidden, weight),
                 lambda: FlashSampler.gumbel_sample(hidden @ weight.T),
                 lambda: kernel.fused_lm_head_sample(hidden, weight, bias)):
        with pytest.raises(fs.RowError, match="1 of 3 rows lack a token: row 1: EMPTY NAN"):
            draw()


def test_parameters_of_a_model_are_taken_as_they_are():
    head = torch.nn.Linear(D, V)
    hidden = torch.randn(4, D, requires_grad=True)
    kernel = FusedFlashSamplingKernel(V, D, device="cpu")
    tokens = kernel.fused_lm_head_sample(hidden, head.weight, head.bias, 0.0)
    assert tokens.tolist() == head(hidden).argmax(1).tolist() and not tokens.requires_grad


# ---------------------------------------------------------------- argument forms of programs of these names ----


def draws(vocab, width, tile_size=256):
    """Every function that draws from weights, called as (hidden, lm_head_weight, temperature)."""
    sampler, kernel = FlashSampler(vocab, width, tile_size), FusedFlashSamplingKernel(vocab, width, tile_size, "cpu")
    bias = torch.zeros(vocab)
    return {
        "sample_tiled": sampler.sample_tiled,
        "sample_tiled, by name": lambda h, w, t: sampler.sample_tiled(hidden=h, lm_head_weight=w, temperature=t),
        "sample_grouped": sampler.sample_grouped,
        "sample_grouped, by name": lambda h, w, t: sampler.sample_grouped(h, lm_head_weight=w, temperature=t,
                                                                          group_size=7),
        "fused": lambda h, w, t: kernel.fused_lm_head_sample(h, w, temperature=t),
        "fused, with a bias": lambda h, w, t: kernel.fused_lm_head_sample(h, w, bias.to(w.dtype), t),
        "fused, by name": lambda h, w, t: kernel.fused_lm_head_sample(hidden=h, lm_head_weight=w, lm_head_bias=None,
                                                                      temperature=t),
        "gumbel_sample": lambda h, w, t: FlashSampler.gumbel_sample(logits=(h.double() @ w.double().T), temperature=t),
    }


FORMS = {
    "packed": lambda t: t,
    "float64": lambda t: t.double(),
    "transposed": lambda t: t.T.contiguous().T,
    "float64, transposed": lambda t: t.double().T.contiguous().T,
    "every other column": lambda t: torch.repeat_interleave(t, 2, 1)[:, ::2],
    "a parameter": lambda t: torch.nn.Parameter(t.clone()),
    "a parameter of float64, transposed": lambda t: torch.nn.Parameter(t.double().T.contiguous()).T,
}


@pytest.mark.parametrize("name", draws(V, D))
@pytest.mark.parametrize("form", FORMS)
def test_tensors_lie_as_they_like(name, form):
    hidden, weight = torch.randn(20, D), tensors()[1]
    draw, make = draws(V, D)[name], FORMS[form]
    best = (hidden @ weight.T).argmax(1).tolist()
    for h, w in ((make(hidden), weight), (hidden, make(weight)), (make(hidden), make(weight))):
        tokens = draw(h, w, 0.0)
        assert tokens.tolist() == best and tokens.shape == (20,) and tokens.dtype == torch.int64
        assert not tokens.requires_grad
    expanded = draw(make(hidden)[:1].expand(20, D), make(weight), 0.0)
    assert expanded.tolist() == best[:1] * 20


@pytest.mark.parametrize("name", draws(V, D))
def test_temperatures_are_numbers_or_one_for_each_row(name):
    hidden, weight, _ = tensors(rows=30_000)
    draw, rows = draws(V, D)[name], torch.tensor([0.5, 1.0, 2.0]).repeat(10_000)
    for temperatures in (rows, rows[:, None], rows[:, None].double(), rows.half()):
        tokens = draw(hidden, weight, temperatures)
        for i, temperature in enumerate((0.5, 1.0, 2.0)):
            result = found(tokens[i::3], law(temperature))
            assert not fit.rejects(result), fit.line(result)
    for temperature in (1, 1.0, np.float32(1), torch.tensor(1.0), torch.ones(1, 1), torch.ones(1, dtype=torch.float64)):
        torch.manual_seed(4)
        tokens = draw(hidden[:9], weight, temperature)
        torch.manual_seed(4)
        assert tokens.tolist() == draw(hidden[:9], weight, 1.0).tolist()
    with pytest.raises(fs.RowError, match="row 1: BAD_TEMPERATURE"):
        draw(hidden[:3], weight, torch.tensor([1.0, -1.0, 1.0]))


def test_float64_follows_the_law_of_its_values():
    hidden, weight, _ = tensors(rows=N)
    assert_law(FlashSampler(V, D).sample_tiled(hidden.double(), weight.double(), 0.7), law(0.7))


def test_fewer_rows_than_the_vocabulary_are_refused():
    hidden, weight, _ = tensors()
    for name, draw in draws(V, D).items():
        if name != "gumbel_sample":
            with pytest.raises(ValueError, match=r"lm_head_weight: shape \[42, 16\], expected \[43, 16\]"):
                draw(hidden, weight[:-1], 1.0)


def test_attributes_of_a_sampler():
    sampler, kernel = FlashSampler(1000, 64), FusedFlashSamplingKernel(1000, 64, device="cpu")
    assert (sampler.vocab_size, sampler.hidden_dim, sampler.tile_size, sampler.num_tiles) == (1000, 64, 256, 4)
    assert (kernel.vocab_size, kernel.hidden_dim, kernel.tile_size, kernel.device) == (1000, 64, 256,
                                                                                       torch.device("cpu"))
    assert kernel.tile_buffer.shape == (256, 64) and kernel.scratch_space.shape == (256,)
    assert kernel.tile_buffer.device == kernel.scratch_space.device == kernel.device
    assert kernel.tile_buffer is kernel.tile_buffer and not kernel.scratch_space.any()


def test_the_arguments_are_those_of_the_sketches():
    """Names, order and defaults; what differs is in the module's docstring."""
    def arguments(function):
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.default) for p in found if p.name != "self"]

    empty = inspect.Parameter.empty
    tensors_of = [("hidden", empty), ("lm_head_weight", empty)]
    sizes = [("vocab_size", empty), ("hidden_dim", empty), ("tile_size", 256)]
    assert arguments(FlashSampler) == sizes
    assert arguments(FlashSampler.gumbel_sample) == [("logits", empty), ("temperature", 1.0)]
    assert arguments(FlashSampler.sample_tiled) == [*tensors_of, ("temperature", 1.0)]
    assert arguments(FlashSampler.sample_grouped) == [*tensors_of, ("temperature", 1.0), ("group_size", 4)]
    assert arguments(FusedFlashSamplingKernel) == [*sizes, ("device", "cuda")]
    assert arguments(FusedFlashSamplingKernel.fused_lm_head_sample) == [*tensors_of, ("lm_head_bias", None),
                                                                        ("temperature", 1.0)]
    assert arguments(FusedFlashSamplingKernel.benchmark_vs_standard)[:4] == [
        ("batch_size", 32), ("hidden_dim", None), ("vocab_size", None), ("num_iterations", 100)]
    assert arguments(VLLMWithFlashSampling) == [("model_name", empty), ("use_flash_sampling", True)]
    assert arguments(VLLMWithFlashSampling.generate) == [("prompt", empty), ("max_tokens", 100), ("temperature", 0.7)]
    for place, words in ((flashsampling.flash_sampler, ("tile_size", "float64", "transposed", "[B, 1]")),
                         (FlashSampler, ("fewer rows",)),
                         (FusedFlashSamplingKernel, ("tile_buffer", "scratch_space")),
                         (FusedFlashSamplingKernel.benchmark_vs_standard, ("4096", "128000")),
                         (VLLMWithFlashSampling, ("`sampler`",))):
        assert all(word in place.__doc__ for word in words), place


# ------------------------------------------------------------------------------------------------------- errors ----

H, W, BIAS = torch.zeros(2, D), torch.zeros(V, D), torch.zeros(V)


@pytest.mark.parametrize("call, error, text", [
    (lambda s, k: FlashSampler(0, D), ValueError, "vocab_size: 0, expected a positive integer"),
    (lambda s, k: FlashSampler(V, 1.5), ValueError, "hidden_dim: 1.5, expected a positive integer"),
    (lambda s, k: FlashSampler(V, D, -1), ValueError, "tile_size: -1, expected a positive integer"),
    (lambda s, k: s.sample_tiled(H[0], W), ValueError, r"hidden: shape \[16\], expected \[batch_size, 16\]"),
    (lambda s, k: s.sample_tiled(H[:, :8], W), ValueError, r"hidden: shape \[2, 8\], expected \[batch_size, 16\]"),
    (lambda s, k: s.sample_tiled(H, W.T), ValueError, r"lm_head_weight: shape \[16, 43\], expected \[43, 16\]"),
    (lambda s, k: s.sample_grouped(H, W[1:]), ValueError, r"lm_head_weight: shape \[42, 16\], expected \[43, 16\]"),
    (lambda s, k: s.sample_grouped(H, W, 1.0, 0), ValueError, "group_size: 0, expected a positive integer"),
    (lambda s, k: k.fused_lm_head_sample(H, W, BIAS[1:]), ValueError, r"lm_head_bias: shape \[42\], expected \[43\]"),
    (lambda s, k: s.sample_tiled(H, W, -1.0), ValueError, "temperature: -1.0, expected a number from 0"),
    (lambda s, k: s.sample_grouped(H, W, float("nan")), ValueError, "temperature: nan, expected a number from 0"),
    (lambda s, k: s.gumbel_sample(W, float("inf")), ValueError, "temperature: inf, expected a number from 0"),
    (lambda s, k: s.gumbel_sample(W[:, :0]), ValueError, r"logits: shape \[43, 0\], expected \[..., vocabulary\]"),
    (lambda s, k: s.gumbel_sample(W, torch.ones(3, 1)), ValueError, r"temperature: shape \[3, 1\], expected a number, "
     r"\[43\] or \[43, 1\]"),
    (lambda s, k: s.sample_tiled(H, W, torch.ones(V)), ValueError, r"temperature: shape \[43\], expected a number, "
     r"\[2\] or \[2, 1\]"),
    (lambda s, k: s.gumbel_sample(W.int()), TypeError, "logits: of type int32, expected float32, float16, bfloat16"),
    (lambda s, k: s.sample_tiled(H, W.to(torch.int8)), TypeError, "tensor of type int8"),
    (lambda s, k: s.sample_tiled(H.to("meta"), W), ValueError, "lm_head_weight: on cpu, hidden is on meta"),
    (lambda s, k: k.fused_lm_head_sample(H.to("meta"), W), ValueError, "hidden: on meta, this sampler is for cpu"),
    (lambda s, k: s.sample_tiled(H.numpy(), W), TypeError, "hidden: a ndarray, expected a tensor"),
    (lambda s, k: s.sample_grouped(H, W.numpy()), TypeError, "lm_head_weight: a ndarray, expected a tensor"),
    (lambda s, k: k.fused_lm_head_sample(H.numpy(), W), TypeError, "hidden: a ndarray, expected a tensor"),
    (lambda s, k: k.fused_lm_head_sample(H, W, BIAS.tolist()), TypeError, "lm_head_bias: a list, expected a tensor"),
    (lambda s, k: s.gumbel_sample(W.numpy()), TypeError, "logits: a ndarray, expected a tensor"),
    (lambda s, k: s.sample_tiled(H, W.to_sparse()), TypeError, r"lm_head_weight: .* sparse_coo; to_dense\(\)"),
    (lambda s, k: s.gumbel_sample(W.to_sparse()), TypeError, r"logits: .* sparse_coo; to_dense\(\)"),
    (lambda s, k: s.sample_tiled(torch.nested.nested_tensor(list(H), layout=torch.jagged), W), TypeError,
     r"hidden: a nested tensor; to_padded_tensor\(\)"),
    (lambda s, k: s.sample_tiled(H, W, np.ones(2)), TypeError, r"temperature: array\(.*, expected a number"),
    (lambda s, k: s.sample_tiled(H, W, None), TypeError, "temperature: None, expected a number"),
])
def test_what_does_not_fit_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call(FlashSampler(V, D), FusedFlashSamplingKernel(V, D, device="cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_kernel_for_a_device_that_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match="device 'cuda': torch sees no CUDA device; device='cpu' runs here"):
        FusedFlashSamplingKernel(V, D)


# ---------------------------------------------------------------------------------------------- benchmark, text ----


def test_the_benchmark_prints_what_it_returns(capsys):
    speedup = FusedFlashSamplingKernel(500, 32, device="cpu").benchmark_vs_standard(3, num_iterations=4)
    printed = capsys.readouterr().out
    assert "3 rows, hidden size 32, vocabulary 500, float32 on cpu" in printed and "multinomial" in printed
    assert speedup > 0 and printed.splitlines()[-1].endswith(": %.2f" % speedup)
    FusedFlashSamplingKernel(9, 9, device="cpu").benchmark_vs_standard(2, 32, 500, 1, torch.bfloat16)
    assert "2 rows, hidden size 32, vocabulary 500, bfloat16 on cpu" in capsys.readouterr().out


def test_the_benchmark_does_not_time_wrong_tokens(monkeypatch):
    kernel = FusedFlashSamplingKernel(500, 32, device="cpu")
    monkeypatch.setattr(FusedFlashSamplingKernel, "fused_lm_head_sample",
                        lambda self, hidden, weight, *_, **__: torch.zeros(len(hidden), dtype=torch.int64))
    with pytest.raises(RuntimeError, match="behind the largest logit of the matmul: not timed"):
        kernel.benchmark_vs_standard(3, num_iterations=1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model of random weights and a tokenizer of 60 words; its own rules would cut everything but one token."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<eos>": 0, "<unk>": 1, **{"w%d" % i: i for i in range(2, 60)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("model")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>",
                                         unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=0, eos_token_id=0, pad_token_id=0))
    model.generation_config.update(do_sample=True, top_k=1, temperature=0.1)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("fused", (False, True))
def test_text_of_a_local_model(directory, fused):
    pytest.importorskip("flashsampling.transformers")
    model = VLLMWithFlashSampling(str(directory), use_flash_sampling=fused)

    def text(temperature, seed=0):
        torch.manual_seed(seed)
        return model.generate("w7 w8 w9", max_tokens=12, temperature=temperature)

    stock = VLLMWithFlashSampling(str(directory), use_flash_sampling=False)
    assert text(0) == text(0, 1) == stock.generate("w7 w8 w9", max_tokens=12, temperature=0)
    assert text(1.0) == text(1.0) and len({text(1.0, seed) for seed in range(5)}) > 1
    assert text(0.7).startswith("w7 w8 w9 ") and 3 < len(text(0.7).split()) <= 15
    with pytest.raises(ValueError, match="max_tokens: 0, expected a positive integer"):
        model.generate("w7", max_tokens=0)
    with pytest.raises(ValueError, match="temperature: -1.0, expected a number from 0"):
        model.generate("w7", temperature=-1)


def test_a_model_that_is_not_there_is_not_looked_for_elsewhere(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(OSError):
        VLLMWithFlashSampling(str(tmp_path / "nothing"))


@pytest.mark.parametrize("name", ("FlashSampler", "FusedFlashSamplingKernel", "VLLMWithFlashSampling"))
def test_the_package_has_the_names(name):
    assert getattr(fs, name) is globals()[name] and name in dir(fs)


def test_importing_the_package_does_not_take_torch():
    code = "import sys, flashsampling; assert 'torch' not in sys.modules; flashsampling.FlashSampler"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
