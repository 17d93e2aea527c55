"""sample, sample_logits and Sampler on torch's tensors in host memory."""
import gc

import numpy as np
import pytest
import torch

import flashsampling as fs

torch.manual_seed(1)
V, D, B = 300, 32, 7
W = torch.randn(V, D) / 4
H = torch.randn(B, D)
RULES = dict(temperature=0.9, top_p=0.95, seed=5, position=3)
TYPES = [torch.float32, torch.float16, torch.bfloat16]


def draw(hidden=H, weight=W, **rules):
    return fs.sample(hidden, weight, **{**RULES, **rules})


@pytest.fixture(scope="module")
def want():
    return fs.sample(H.numpy(), W.numpy(), outputs="all", top=4, **RULES)


def same(result, want, rows=slice(None)):
    for name, tensor in result.arrays().items():
        assert isinstance(tensor, torch.Tensor) and np.array_equal(tensor.numpy(), getattr(want, name)[rows]), name


def test_results_are_tensors_and_those_of_arrays(want):
    result = draw(outputs="all", top=4)
    assert result.tokens.dtype == torch.int64 and result.status.dtype == torch.int32 and result.ok
    same(result, want)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_draws_what_its_values_draw(dtype):
    w, h = W.to(dtype), H.to(dtype)
    with fs.Context("reference") as reference:
        want = reference.sample(fs.Head(w.float()), h.float(), **RULES).tokens[:, 0]
    assert torch.equal(draw(h, w).tokens, want)
    sampler = fs.Sampler(fs.Head(w), B, **RULES)
    assert torch.equal(sampler(h).tokens, want)
    assert torch.equal(fs.sample_logits((h.float() @ w.float().T), **RULES).tokens, want)


def test_other_types_of_hidden_states_than_of_weights():
    w, h = W.bfloat16(), H.half()
    want = draw(h.float(), w.float()).tokens
    assert torch.equal(draw(h, w).tokens, want)
    assert torch.equal(fs.Sampler(fs.Head(w), B, hidden_dtype="f16", **RULES)(h).tokens, want)


def test_parameters_views_and_tensors_that_require_grad(want):
    layer = torch.nn.Linear(D, V, bias=False)
    layer.weight.data.copy_(W)
    wide = torch.zeros(2 * B, D + 3)
    wide[::2, 1:-2] = H
    sampler = fs.Sampler(fs.Head(layer.weight), B, **RULES)
    for hidden in (H.clone().requires_grad_(), wide[::2, 1:-2], torch.nn.Parameter(H), H):
        same(draw(hidden, layer.weight), want)
        same(sampler(hidden, position=3), want)


def test_a_result_is_overwritten_by_the_next_call_and_no_earlier(want):
    sampler = fs.Sampler(fs.Head(W), B, **RULES)
    first = sampler(H)
    same(first, want)
    second = sampler(H)
    assert first.tokens.data_ptr() == second.tokens.data_ptr() and not np.array_equal(second.tokens, want.tokens)


def test_torch_seeds_what_has_no_seed():
    def tokens():
        torch.manual_seed(7)
        return [fs.sample(H, W, temperature=3.0).tokens for _ in range(3)]

    first, again = tokens(), tokens()
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], first[1])


def test_rules_by_row_are_tensors_or_arrays(want):
    by_row = dict(temperature=torch.full((B,), 0.9), top_p=np.full(B, 0.95, "f4"),
                  top_k=torch.zeros(B, dtype=torch.int32))
    result = fs.sample(H, W, seed=5, position=torch.full((B,), 3), **by_row)
    same(result, want)


def test_a_tensor_in_place_counts_at_the_next_call():
    temperature = torch.ones(B)
    sampler = fs.Sampler(fs.Head(W), B, temperature=temperature, seed=5)
    sampler(H)
    temperature.zero_()
    assert torch.equal(sampler(H).tokens, (H @ W.T).argmax(1))


@pytest.mark.parametrize("call, error, text", [
    (lambda: fs.sample(H.double(), W), TypeError, "hidden: tensor of type float64, expected float32, float16 or"),
    (lambda: fs.sample(H, W.to("meta")), TypeError, "weights: a tensor of device meta, expected cpu or cuda"),
    (lambda: fs.sample(H.T, W), ValueError, "elements of a row are"),
    (lambda: fs.sample(H[0], W), ValueError, r"hidden: shape \[32\], expected two dimensions"),
    (lambda: fs.sample(H, W, temperature=torch.ones(B + 1)), ValueError, r"temperature: shape \[8\], expected \[7\]"),
    (lambda: fs.Sampler(fs.Head(W), B)(H.half()), TypeError, "hidden: tensor of type float16, expected float32"),
    (lambda: fs.Sampler(fs.Head(W), B)(H.to("meta")), TypeError, "device meta"),
    (lambda: fs.Sampler(fs.Head(W), B, temperature=torch.ones(B, dtype=torch.float64)), TypeError, "float64"),
    (lambda: fs.sample(H, W, out={"tokens": torch.empty(B, 2, dtype=torch.int64)}), ValueError, "tokens: shape"),
    (lambda: fs.sample(H, W, out={"tokens": torch.empty(B, 1)}), TypeError, "tokens: of type float32, expected int32 or int64"),
    (lambda: fs.Sampler(fs.Head(W), B, device=3), TypeError, "unknown rule: device"),
], ids=range(11))
def test_what_does_not_fit_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_accepted_tokens_of_tensors_are_a_tensor():
    draft, target = torch.tensor([[3, 4], [5, 6]]), torch.tensor([[3, 4, 1], [5, 7, 1]])
    accepted = fs.accept_drafts(draft, target)
    assert accepted.dtype == torch.int32 and accepted.tolist() == [2, 1]
    for emit, tokens in (("packed", [3, 4, 1, 5, 7]), ("padded", [[3, 4, 1], [5, 7, -1]])):
        made = fs.accept_drafts(draft, target, emit=emit)
        assert [array.dtype for array in made] == [torch.int32, torch.int64, torch.int64]
        assert [array.tolist() for array in made] == [[2, 1], tokens, [0, 3, 5]]
    empty = torch.empty(0, dtype=torch.int64)
    assert fs.accept_drafts(empty, empty, offsets=torch.zeros(3, dtype=torch.int64)).tolist() == [0, 0]


def test_no_memory_is_lost_by_many_calls():
    """Tensors and results that calls leave behind would be counted."""
    sampler = fs.Sampler(fs.Head(W), B, outputs="all", **RULES)

    def count():
        gc.collect()
        return sum(isinstance(thing, (torch.Tensor, fs.Result, fs.Batch)) for thing in gc.get_objects())

    for rows in range(B + 1):
        sampler(H[:rows])
    before = count()
    for i in range(300):
        sampler(H[:i % (B + 1)])
        draw()
    assert count() <= before
