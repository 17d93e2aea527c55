"""Speculative decoding from Python: tokens that count for one row alone, and one hidden state for all rows."""
import ctypes

import numpy as np
import pytest

import flashsampling as fs
from flashsampling import _c

PENALTIES = dict(repetition=1.3, frequency=0.25, presence=0.5)


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("given", ["none", "counts", "count_list", "seen"])
def test_extra_tokens_are_counts(name, given):
    """k drafts of a sequence of one slot: row i has counted the first i of them."""
    rng = np.random.default_rng(3)
    S, k, V = 5, 3, 300
    logits = rng.standard_normal((S * (k + 1), V)).astype("f4") * 2
    drafts, slot = rng.integers(0, 20, (S, k)), np.repeat(np.arange(S), k + 1)
    extra = [list(drafts[s, :i]) for s in range(S) for i in range(k + 1)]
    counts = rng.integers(0, 3, (S, V)).astype("i4") if given in ("counts", "count_list") else np.zeros((S, V), "i4")
    rules = dict(slot=slot, slots=S, seed=np.arange(S), position=np.tile(np.arange(k + 1), S), **PENALTIES)
    if given == "seen":
        rules["seen"] = np.full((S, (V + 31) // 32), 5, "u4")
    by_slot = {"counts": counts, "count_list": [dict(enumerate(line)) for line in counts]}
    dense = counts[slot]
    for row, tokens in enumerate(extra):
        np.add.at(dense[row], tokens, 1)
    by_row = {**rules, "slot": None, "slots": None, "seed": rules["seed"][slot],
              **({"seen": rules["seen"][slot]} if given == "seen" else {})}
    with fs.Context(name) as context:
        head = fs.Head(logits=logits)
        extras = (np.cumsum([0] + [len(tokens) for tokens in extra]), np.array(sum(extra, []), "i4"))
        for way in (extra, extras):
            got = context.sample(head, **rules, **{key: by_slot[key] for key in by_slot if key == given},
                                 extra_tokens=way, outputs="all", top=5, logits="processed")
            want = context.sample(head, **by_row, counts=dense, outputs="all", top=5, logits="processed")
            for field, array in want.arrays().items():
                assert np.array_equal(array, getattr(got, field), equal_nan=array.dtype.kind == "f"), field


def test_a_penalty_of_extra_tokens_alone_is_one(reference):
    """fs.sample_logits refuses a penalty of no tokens; these are some."""
    logits = np.array([[1.0, 1.1]], "f4")
    assert int(fs.sample_logits(logits, temperature=0, presence=0.5, extra_tokens=[[1]]).tokens.ravel()[0]) == 0
    with pytest.raises(ValueError, match="presence: 0.5, but of which tokens: give seen, counts, count_list or extra"):
        fs.sample_logits(logits, temperature=0, presence=0.5)


def test_extra_tokens_that_are_wrong_are_named(reference):
    head = fs.Head(logits=np.zeros((2, 40), "f4"))
    result = reference.sample(head, extra_tokens=[[40], [39]], on_error="status")
    assert result.status.tolist() == [fs.Row.BAD_TOKEN, 0]
    with pytest.raises(ValueError, match="extra_tokens"):
        reference.sample(head, extra_tokens=[[1]])
    with pytest.raises(ValueError, match="extra_tokens: offsets must rise"):
        reference.sample(head, extra_tokens=(np.array([3, 0, 0]), np.zeros(4, "i4")))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_one_hidden_state_serves_all_rows(name):
    rng = np.random.default_rng(4)
    W, h = rng.standard_normal((500, 24)).astype("f4"), 0.3 * rng.standard_normal((1, 24)).astype("f4")
    rules = dict(seed=7, temperature=0.8, top_k=20)
    with fs.Context(name) as context:
        head = fs.Head(W)
        want = context.sample(head, np.repeat(h, 9, 0), outputs="all", **rules)
        batch = fs.Batch(head, np.repeat(h, 9, 0), **rules)
        batch.struct.hidden, batch.struct.hidden_stride = h.ctypes.data, _c.STRIDE_BROADCAST
        got = context.sample(head, batch, outputs="all")
        for field, array in want.arrays().items():
            assert np.array_equal(array, getattr(got, field)), field
        assert len(set(want.tokens[:, 0])) > 1
