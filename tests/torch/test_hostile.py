"""What a careless program hands to sample, sample_logits, Sampler and the operators: it gets right tokens or an
exception that names the argument."""
import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashsampling as fs
import flashsampling.torch
from hostile import B, D, DTYPES, H, V, VIEWS, W, best, tensors

ops = torch.ops.flashsampling


def greedy(hidden, weight, **rules):
    return fs.sample(hidden, weight, temperature=0, **rules).check().tokens.tolist()


def by_sampler(hidden, weight):
    dtype = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[hidden.dtype]
    sampler = fs.Sampler(fs.Head(weight), len(hidden), hidden_dtype=dtype, temperature=0)
    return sampler(hidden).check().tokens.tolist()


def by_operator(hidden, weight):
    return ops.sample(hidden, weight, temperature_all=0.0).tolist()


@pytest.fixture(params=[greedy, by_sampler, by_operator], ids=["sample", "Sampler", "operator"])
def draw(request):
    """hidden, weight -> greedy tokens, by each way."""
    return request.param


# -------------------------------------------------------------------------------------------------------- arrays ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read_where_they_lie(draw, name, dtype):
    hidden, weight = tensors(dtype)
    expected = best(hidden, weight)
    assert draw(VIEWS[name](hidden), weight) == expected
    assert draw(hidden, VIEWS[name](weight)) == expected
    with torch.inference_mode():
        assert draw(VIEWS[name](hidden), VIEWS[name](weight)) == expected


@pytest.mark.parametrize("name", VIEWS)
def test_stored_logits_are_read_where_they_lie(name):
    logits = torch.randn(B, V)
    view = VIEWS[name](logits)
    assert fs.sample_logits(view, temperature=0).tokens.tolist() == logits.argmax(1).tolist()
    sampler = fs.Sampler(fs.Head(logits=logits), B, temperature=0)
    assert sampler(view).tokens.tolist() == logits.argmax(1).tolist()


def test_a_sampler_takes_views_of_every_stride_in_any_order():
    hidden, weight = tensors()
    expected = best(hidden, weight)
    for like in (torch.Tensor.clone, torch.Tensor.numpy):
        sampler = fs.Sampler(fs.Head(like(weight)), B, temperature=0)
        for name in [*VIEWS, *reversed(VIEWS), "packed"]:
            view = VIEWS[name](hidden)
            for rows in (B, 2, B):
                found = sampler(like(view.detach()[:rows])).tokens.tolist()
                assert found == expected[:rows], "%s, %d rows" % (name, rows)


@pytest.mark.parametrize("hidden_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hidden_states_and_weights_of_different_types(draw, dtype, hidden_dtype):
    hidden, weight = tensors()[0].to(hidden_dtype), tensors()[1].to(dtype)
    assert draw(hidden, weight) == best(hidden, weight)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("make", [
    lambda h: np.frombuffer(h.tobytes(), np.float32).reshape(h.shape),  # read-only
    lambda h: np.matrix(h), lambda h: np.hstack([h, h])[:, :D], lambda h: np.repeat(h, 2, 0)[::2],
    lambda h: h.view(np.recarray),
], ids=["read-only", "matrix", "rows apart", "every other row", "subclass"])
def test_arrays_of_numpy_are_read_where_they_lie(make):
    hidden, weight = (t.numpy() for t in tensors())
    array = make(hidden)
    assert greedy(array, weight) == best(*tensors())
    assert fs.Sampler(fs.Head(weight), B, temperature=0)(array).tokens.tolist() == best(*tensors())


@pytest.mark.parametrize("rows", (0, 1))
def test_few_rows_and_none(rows):
    hidden, weight = tensors(rows=rows)
    sampler = fs.Sampler(fs.Head(weight), B, temperature=0, outputs=["logprob"], top=3)
    for result in (fs.sample(hidden, weight, temperature=0, outputs=["logprob"], top=3), sampler(hidden)):
        assert result.tokens.shape == result.logprob.shape == (rows,) and result.top_token.shape == (rows, 3)
        assert result.ok and result.tokens.tolist() == best(hidden, weight)
    assert fs.sample_logits(torch.empty(0, V)).tokens.shape == (0,)
    assert fs.sample(hidden.numpy(), weight.numpy(), temperature=0).tokens.shape == (rows,)


NEGATED = torch._neg_view(H)


@pytest.mark.parametrize("hidden, error, text", [
    (H.double(), TypeError, "hidden: tensor of type float64"),
    (H.to(torch.complex64), TypeError, "hidden: tensor of type complex64"),
    (H.to(torch.float8_e4m3fn), TypeError, "hidden: tensor of type float8_e4m3fn"),
    (H.to(torch.int8), TypeError, "hidden: tensor of type int8"),
    (H.bool(), TypeError, "hidden: tensor of type bool"),
    (H.to("meta"), TypeError, "hidden: a tensor of device meta"),
    (H.to_sparse(), (TypeError, ValueError), "hidden: "),
    (H[0], ValueError, r"hidden: shape \[32\]"),
    (H[None], ValueError, r"hidden: shape \[1, 4, 32\]"),
    (H[0, 0], ValueError, r"hidden: shape \[\]"),
    (H[:, :31], ValueError, "hidden: .*31"),
    (H[:, ::2], ValueError, "hidden: .*16|hidden: elements of a row are 8 bytes apart"),
    (H.T.contiguous().T, ValueError, "hidden: elements of a row are 16 bytes apart, expected 4"),
    (H[:1].expand(B, D), ValueError, "hidden: rows are 0 bytes apart"),
    (NEGATED, (TypeError, ValueError), "hidden: .*negat"),
    (H.numpy().astype(">f4"), TypeError, "hidden: array of type float32 with bytes in the other order"),
    (H.numpy().astype("f8"), TypeError, "hidden: array of type float64"),
    (H.numpy().astype(object), TypeError, "hidden: array of type object"),
    (H.numpy()[::-1], ValueError, "hidden: rows are -128 bytes apart"),
    (H.numpy()[:, ::-1], ValueError, "hidden: elements of a row are -4 bytes apart"),
    (H.numpy().view("u1")[:, 1:-3].view("f4"), (ValueError, fs.Error), "hidden: .*31|aligned"),
    (np.frombuffer(b"." + H.numpy().tobytes(), "u1")[1:].view("f4").reshape(B, D), fs.Error, "must be 4-byte aligned"),
    (H.tolist(), TypeError, "hidden: a list, as an array of type float64"),
    (torch.nn.Linear(D, V), TypeError, "hidden: a Linear, as an array of type"),
    ("text", TypeError, "hidden: "),
    (None, (TypeError, ValueError), "hidden: "),
], ids=lambda value: type(value).__name__ if not isinstance(value, str) else value)
def test_hidden_states_that_do_not_fit_are_named(hidden, error, text):
    weight = W if isinstance(hidden, torch.Tensor) else W.numpy()
    sampler, used = (fs.Sampler(fs.Head(weight), B, temperature=0) for _ in range(2))
    used(weight[:B])  # which has seen rows of this shape
    for call in (lambda: fs.sample(hidden, weight), lambda: sampler(hidden), lambda: used(hidden)):
        with pytest.raises(error, match=text):
            call()
    assert sampler(weight[:B]).ok  # and it still draws


@pytest.mark.parametrize("call, error, text", [
    (lambda: fs.sample(H, W[0]), ValueError, r"weights: shape \[32\], expected two dimensions"),
    (lambda: fs.sample(H, W.T), ValueError, "weights: elements of a row are 128 bytes apart, expected 4"),
    (lambda: fs.sample(H, W.T.contiguous()), ValueError, "hidden: 32 columns, the head has 500: .* transposed"),
    (lambda: fs.sample(H @ W.T, W), ValueError, "hidden: 500 columns, the head has 32: .* logits in place"),
    (lambda: fs.sample(H, W.int()), TypeError, "weights: of type int32, expected float32, float16, bfloat16"),
    (lambda: fs.sample(H.int(), W), TypeError, "hidden: of type int32, expected float32, float16, bfloat16"),
    (lambda: fs.sample(H, W, dtype="float32"), ValueError, "weights: dtype 'float32': expected one of f32, f16, bf16"),
    (lambda: fs.sample(H, W, dtype=torch.float32), ValueError, "weights: dtype torch.float32: expected one of f32"),
    (lambda: fs.sample(H, W, round_to="i32"), ValueError, "round_to 'i32': expected one of f32, f16, bf16; did"),
    (lambda: fs.sample(H, W, seed=torch.Generator()), TypeError, "seed: a Generator, expected integers"),
    (lambda: fs.sample(H, W, temperature=-1), ValueError, r"temperature: -1, expected a number 0 \(greedy\) or more"),
    (lambda: fs.sample(H, W, temperature=np.inf), ValueError, "temperature: inf"),
    (lambda: fs.sample(H, W, top_p=np.nan), ValueError, "top_p: nan, expected a number from 0 to 1"),
    (lambda: fs.sample(H, W, min_p=5), ValueError, "min_p: 5, expected a number from 0"),
    (lambda: fs.sample(H, W, repetition=0), ValueError, "repetition: 0, expected a number above 0"),
    (lambda: fs.sample(H, W, presence=np.nan), ValueError, "presence: nan, expected a number that is finite"),
    (lambda: fs.sample(H, W, outputs=None), TypeError, "outputs: None, expected some of"),
    (lambda: fs.sample(H, W, top=-1), ValueError, "top: -1, expected 0 or more"),
    (lambda: fs.sample(H, W, top=2, out={"tokens": torch.empty(B, 1)}), ValueError, "outputs, top: given beside out"),
    (lambda: fs.sample(H, W, tokens="int64"), ValueError, "tokens 'int64': expected i32 or i64"),
    (lambda: fs.sample(H, W, context="cpu"), TypeError, "context: a str, expected a Context"),
    (lambda: fs.sample(H, W, out=torch.empty(B, 1)), TypeError, "out: a Tensor, expected a dictionary of arrays"),
    (lambda: fs.sample(H, W, edits={7: 1.0}), TypeError, r"edits: \{7: 1.0\}, expected a list with a .* 4 rows"),
    (lambda: fs.sample(H, W, edits=[{7: 1.0}]), ValueError, "edits: 1 lists, expected one for each of 4 rows"),
    (lambda: fs.sample(H, W, watch=[1, 2, 3, 4]), TypeError, r"watch: \[1, 2, 3, 4\], expected a list with"),
    (lambda: fs.sample(H, W, count_list=[None] * B), TypeError, "count_list: .*, expected a list with"),
    (lambda: fs.Context("cpu", work=-1), ValueError, "work: -1 bytes, expected 0 or more"),
    (lambda: fs.Context("cpu", fallback_bytes=-1), ValueError, "fallback_bytes: -1, expected an integer from 0"),
    (lambda: fs.Context("cpu", cuda_stream="a"), ValueError, "cuda_stream: 'a', expected an integer"),
    (lambda: fs.noise_gumbel(-1, 0, 0, 0, 0), ValueError, "seed: -1, expected an integer from 0"),
    (lambda: fs.seed_spread(0, 1.5), ValueError, "slot: 1.5, expected an integer"),
    (lambda: flashsampling.torch.sample(H, W, seed=1.5), ValueError, "seed: 1.5, expected an integer from 0 to"),
    (lambda: fs.sample(H, W.to("meta")), TypeError, "weights: a tensor of device meta"),
    (lambda: fs.sample(H, torch._neg_view(W)), (TypeError, ValueError), "weights: .*negat"),
    (lambda: fs.sample(H, W, bias=W), ValueError, r"bias: shape \[500, 32\], expected \[500\]"),
    (lambda: fs.sample(H, W, bias=W[:, 0].to("meta")), TypeError, "bias: a tensor of device meta"),
    (lambda: fs.sample(H, W, temperature=[1, 2]), ValueError, r"temperature: .*2.*4"),
    (lambda: fs.sample(H, W, temperature=torch.ones(B, 1)), ValueError, r"temperature: shape \[4, 1\]"),
    (lambda: fs.sample(H, W, temperature="hot"), (TypeError, ValueError), "temperature: "),
    (lambda: fs.sample(H, W, tempreature=1), TypeError, "unknown rule: tempreature"),
    (lambda: fs.sample(H, W, seed=-1), ValueError, "seed: -1, expected an integer from 0 to 18446744073709551615"),
    (lambda: fs.sample(H, W, seed=2**64), ValueError, "seed: 18446744073709551616"),
    (lambda: fs.sample(H, W, position=0.5), ValueError, "position: 0.5"),
    (lambda: fs.sample(H, W, top_k=1.5), ValueError, "top_k: 1.5"),
    (lambda: fs.sample(H, W, samples=0), ValueError, "samples: 0, expected 1 to 1024"),
    (lambda: fs.sample(H, W, outputs=["logprobs"]), ValueError, "outputs: logprobs: expected some of"),
    (lambda: fs.sample(H, W, tokens="f32"), ValueError, "tokens 'f32': expected i32 or i64"),
    (lambda: fs.sample(H, W, out={"tokens": torch.empty(B, 1, dtype=torch.int16)}), TypeError, "tokens"),
    (lambda: fs.sample(H, W, out={"tokens": torch.empty(B + 1, 1, dtype=torch.int64)}), ValueError, "tokens: shape"),
    (lambda: fs.sample(H, W, out={"tokens": torch.empty(B, 2, dtype=torch.int64)[:, :1]}), ValueError, "tokens: "),
    (lambda: fs.sample(H, W, out={"tokens": np.frombuffer(bytes(8 * B), "i8").reshape(B, 1)}), ValueError,
     "tokens: a read-only array"),
    (lambda: fs.sample(H, W, out={"tokens": [[0]] * B}), TypeError, "tokens: "),
    (lambda: fs.sample_logits(W[0]), ValueError, "logits: shape"),
    (lambda: fs.sample_logits(W.double()), TypeError, "logits: tensor of type float64"),
    (lambda: fs.sample(H, W, position="3"), TypeError, "position: array of type str, expected integers"),
    (lambda: fs.sample(H, W, samples="3"), ValueError, "samples: '3', expected an integer"),
    (lambda: fs.sample(H, W, temperature=1j), TypeError, "temperature: 1j, expected a number"),
    (lambda: fs.sample(H, W, softcap="a"), TypeError, "softcap: 'a', expected a number"),
    (lambda: fs.sample(H, W, edits="abcd"), ValueError, r"edits: an entry \('a',\), expected 2 values"),
    (lambda: fs.sample(H, fs.Head(W)), TypeError, "weights: "),
    (lambda: fs.Sampler(W, B), TypeError, "head: a Tensor, expected a Head"),
    (lambda: fs.Sampler(fs.Head(W), "4"), ValueError, "rows: '4', expected an integer"),
    (lambda: fs.Sampler(fs.Head(W), 0), ValueError, "rows: 0, expected 1 to"),
    (lambda: fs.Sampler(fs.Head(W), B, temperature=np.ones(B)), TypeError, "temperature: .*would be copied"),
    (lambda: fs.Sampler(fs.Head(W), B)(W[:B + 1]), ValueError, r"hidden: shape \[5, 32\], expected \[up to 4, 32\]"),
    (lambda: fs.Sampler(fs.Head(W), B)(H, position=-1), ValueError, "position: -1"),
    (lambda: fs.Sampler(fs.Head(W), B)(H.half()), TypeError, "hidden: tensor of type float16"),
    (lambda: ops.sample(H.double(), W), RuntimeError, "hidden: float64"),
    (lambda: ops.sample(H[:1].expand(B, D), W), RuntimeError, r"hidden: .*strides \[0, 1\]"),
    (lambda: ops.sample(H, W[:1].expand(V, D)), RuntimeError, r"weight: .*strides \[0, 1\]"),
    (lambda: ops.sample_logits(H[:1].expand(B, D)), RuntimeError, r"logits: .*strides \[0, 1\]"),
    (lambda: ops.sample(H.T.contiguous().T, W), RuntimeError, r"hidden: .*strides \[1, 4\]"),
    (lambda: ops.sample(H[:, :31], W), RuntimeError, r"hidden: float32\[4, 31\]"),
    (lambda: ops.sample(H[0], W), RuntimeError, r"hidden: float32\[32\]"),
    (lambda: ops.sample(H[0, 0], W), RuntimeError, r"hidden: float32\[\]"),
    (lambda: ops.sample(H, W[0]), RuntimeError, r"weight: float32\[32\]"),
    (lambda: ops.sample(H, W, W[:, 0]), RuntimeError, r"bias: float32\[500\].*strides \[32\]"),
    (lambda: ops.sample(H, W, temperature=torch.ones(B + 1)), RuntimeError, r"temperature: float32\[5\]"),
    (lambda: ops.sample(H, W, position=torch.ones(B)), RuntimeError, r"position: float32\[4\]"),
    (lambda: ops.sample(H, W, allow=torch.ones(1, 16, dtype=torch.int32).expand(B, 16)), RuntimeError,
     r"allow: .*strides \[0, 1\]"),
    (lambda: ops.sample(H, W, samples=0), RuntimeError, "samples is 0, must be 1 to 1024"),
    (lambda: ops.sample(H, W, round_to="f64"), RuntimeError, "round_to 'f64': expected one of"),
    (lambda: ops.sample(H.to_sparse(), W), NotImplementedError, "flashsampling::sample"),
])
def test_what_does_not_fit_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_tensors_of_any_type_are_converted(dtype):
    """The bias of a model has the model's type, and may require grad."""
    bias = torch.zeros(V, dtype=dtype, requires_grad=True)
    with torch.no_grad():
        bias[7] = 100
    assert greedy(H, W, bias=bias) == [7] * B
    assert greedy(H.to(dtype), W.to(dtype), bias=bias) == [7] * B
    zeros = torch.zeros(B, dtype=dtype, requires_grad=True)
    assert fs.sample(H, W, temperature=zeros).tokens.tolist() == best(H, W)
    positions = torch.arange(B)
    assert fs.sample(H, W, seed=positions, position=positions).ok


# --------------------------------------------------------------------------------------------------------- seeds ----


def test_fresh_seeds_have_64_bits_of_the_default_generator():
    from flashsampling._sample import fresh_seed

    torch.manual_seed(5)
    seeds = [fresh_seed(H) for _ in range(64)]
    torch.manual_seed(5)
    assert [fresh_seed(H) for _ in range(64)] == seeds
    every = 0
    for seed in seeds:
        every |= seed
    assert every == 2**64 - 1 and max(seeds) < 2**64  # a right one fails with probability 64 * 2^-64


def test_results_and_errors_go_through_pickle_and_copy():
    result = fs.sample(H, W, seed=1, outputs=["logprob"], top=2)
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), copy.copy(result)):
        assert all(torch.equal(array, other.arrays()[name]) for name, array in result.arrays().items())
        assert other.ok and repr(other) == repr(result)
    error = pickle.loads(pickle.dumps(fs.Error(-1, "what was wrong")))
    assert (error.status, error.name, error.text) == (-1, "argument", "what was wrong")


def test_operators_have_no_gradient_and_no_top_k_that_wraps():
    hidden = H.clone().requires_grad_()
    tokens, logprob, status = ops.sample_logprob(hidden, torch.nn.Parameter(W), seed_all=3)
    assert not logprob.requires_grad and tokens.tolist() == fs.sample(H, W, seed=3).tokens.tolist()
    for top_k in (2**31, 2**32 + 1, -(2**32) + 1):
        assert torch.equal(ops.sample(H, W, top_k_all=top_k, seed_all=3), tokens)
    negated = torch._neg_view(H)  # which torch resolves before a kernel sees it
    assert by_operator(negated, W) == best(-H, W)


def test_a_mask_of_a_small_vocabulary_leaves_nothing_to_calls_with_a_large_one():
    assert ops.sample(H, W[:40], allow=torch.full((B, 2), -1, dtype=torch.int32)).shape == (B,)
    assert by_operator(H, W) == best(H, W)


def test_fresh_seeds_do_not_care_for_the_default_device():
    torch.manual_seed(6)
    expected = fs.sample(H, W).tokens.tolist()
    torch.manual_seed(6)
    with torch.device("meta"):
        assert fs.sample(H, W).tokens.tolist() == expected
