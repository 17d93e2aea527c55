"""Speculative decoding from Python: tokens that count for one row alone, and one hidden state for all rows."""

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
                                 extra_tokens=way, outputs="all", top=5, logits_mode="processed")
            want = context.sample(head, **by_row, counts=dense, outputs="all", top=5, logits_mode="processed")
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


# ------------------------------------------------------------------------------------------------------ accepted ----

def oracle(draft, target, offsets, starts):
    """Counts, and what each sequence emits."""
    counts, lines = [], []
    for s in range(len(offsets) - 1):
        mine = target[offsets[s]:offsets[s + 1]]
        drafts = draft[starts[s]:][:max(len(mine) - 1, 0)]
        agree = [int(d) >= 0 and int(d) == int(t) for d, t in zip(drafts, mine)]
        counts.append(agree.index(False) if False in agree else len(agree))
        lines.append([int(t) for t in mine[:counts[-1] + 1]])
    return counts, lines


def same(made, counts, lines, width=0):
    got, tokens, starts = made
    assert got.dtype == np.int32 and got.tolist() == counts
    assert starts.tolist() == [0, *np.cumsum([len(line) for line in lines])]
    if width:
        assert tokens.tolist() == [line + [-1] * (width - len(line)) for line in lines]
    else:
        assert tokens.tolist() == sum(lines, [])


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_ragged_drafts_are_accepted_as_numpy_says(dtype):
    rng = np.random.default_rng(8)
    for _ in range(300):
        lengths = rng.integers(0, 6, rng.integers(0, 8))
        offsets = np.cumsum([rng.integers(0, 3), *lengths])
        drafts = np.maximum(lengths - 1, 0)
        starts = np.cumsum([0, *drafts])[:-1]
        target = rng.integers(0, 3, offsets[-1]).astype(dtype)
        draft = rng.integers(-1, 3, drafts.sum() + 2).astype(dtype)
        counts, lines = oracle(draft, target, offsets, starts)
        longest = max([*lengths, 1])
        assert fs.accept_drafts(draft, target, offsets=offsets).tolist() == counts
        same(fs.accept_drafts(draft, target, offsets=offsets, emit="packed"), counts, lines)
        same(fs.accept_drafts(draft, target, offsets=offsets, emit="padded"), counts, lines, longest)
        same(fs.accept_drafts(draft, target, offsets=offsets, emit="padded", width=9), counts, lines, 9)
        order = rng.permutation(len(drafts))  # the same drafts, in another order in memory
        moved = np.cumsum([0, *drafts[order]])[:-1][np.argsort(order)] if len(order) else starts
        apart = np.empty_like(draft)
        for at, to, n in zip(starts, moved, drafts):
            apart[to:to + n] = draft[at:at + n]
        same(fs.accept_drafts(apart, target, offsets=offsets, draft_offsets=moved, emit="packed"), counts, lines)


def test_even_drafts_need_no_offsets():
    draft = [[1, 2, 3], [1, 2, 3], [-1, 2, 3], [9, 2, 3]]
    target = [[1, 2, 3, 4], [1, 5, 3, 4], [-1, 2, 3, 4], [1, 2, 3, 4]]
    assert fs.accept_drafts(draft, target).tolist() == [3, 1, 0, 0]
    lines = [[1, 2, 3, 4], [1, 5], [-1], [1]]
    same(fs.accept_drafts(draft, target, emit="packed"), [3, 1, 0, 0], lines)
    same(fs.accept_drafts(draft, target, emit="padded"), [3, 1, 0, 0], lines, 4)
    assert fs.accept_drafts(np.empty((3, 0), "i4"), [[1]] * 3).tolist() == [0, 0, 0]
    same(fs.accept_drafts(np.empty((0, 2), "i4"), np.empty((0, 3), "i4"), emit="packed"), [], [])


@pytest.mark.parametrize("types", [("i4", "i4"), ("i8", "i8"), ("i4", "i8"), ("i8", "i4")])
def test_tokens_have_32_or_64_bits(types):
    draft = np.array([[1, 2, 3], [1, 2, 3], [7, 2, 3]], types[0])
    target = np.array([[1, 2, 3, 4], [1, 5, 3, 4], [1, 2, 3, 4]], types[1])
    out = np.full(3, 77, np.int32)
    assert fs.accept_drafts(draft, target, out=out) is out and out.tolist() == [3, 1, 0]
    if types == ("i8", "i8"):
        target[0, 1] += 2**32  # equal in its lower half
        assert fs.accept_drafts(draft, target, context=fs.Context("reference")).tolist() == [1, 1, 0]


PAIR = np.zeros(4, "i4"), np.zeros(5, "i4")


@pytest.mark.parametrize("call, error, text", [
    (lambda: fs.accept_drafts([[1, 2]], [[1, 2]]), ValueError, r"target: shape \[1, 2\], expected \[1, 3\]"),
    (lambda: fs.accept_drafts([[1]], [[1, 2]], out=np.zeros(2, "i4")), ValueError, r"out: shape \[2\], expected \[1\]"),
    (lambda: fs.accept_drafts([[1]], [[1, 2]], emit="all"), ValueError, "emit: 'all', expected \"packed\" or"),
    (lambda: fs.accept_drafts([[1]], [[1, 2]], draft_offsets=[0]), ValueError, "draft_offsets: given without offsets"),
    (lambda: fs.accept_drafts([[1, 2]], [[1, 2, 3]], emit="padded", width=2), fs.Error, "drafts.tokens_width is 2"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[]), ValueError, "offsets: no entry"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[[0, 1]]), ValueError, r"offsets: shape \[1, 2\]"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[0, 6]), ValueError, "offsets: end at 6, target has 5 tokens"),
    (lambda: fs.accept_drafts(PAIR[0][:3], PAIR[1], offsets=[0, 5]), ValueError, "draft: 3 tokens, .* speak of 4"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[0, 3, 5], draft_offsets=[0, 4]), ValueError, "draft: 4 tokens, .* of 5"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[0, 3, 5], draft_offsets=[0, -1]), fs.Error, r"draft_offset\[1\] is -1"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[0, 3, 5], draft_offsets=[0]), ValueError, r"draft_offsets: shape \[1\]"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[-1, 5]), ValueError, "draft: 4 tokens, the offsets speak of 5"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[-1, 3]), fs.Error, r"target_offset\[0\] is -1, must not be negative"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[0, 4, 2]), fs.Error, r"target_offset\[2\] is 2 after 4, must ascend"),
    (lambda: fs.accept_drafts(*PAIR, offsets=[0, 2**62, 2], emit="padded"), ValueError, "the offsets speak of"),
    (lambda: fs.accept_drafts(np.full(4, 0.5), PAIR[1], offsets=[0, 5]), ValueError, "draft: 0.5, expected an integer"),
])
def test_drafts_that_do_not_fit_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_verification_step_emits_what_would_be_drawn_without_drafts():
    """Drafts of any number, penalties of what came before, one slot a sequence: the emitted tokens are the chain's."""
    rng = np.random.default_rng(2)
    V, D, R, steps = 60, 8, 3, 12
    W, table = rng.standard_normal((V, D)).astype("f4"), rng.standard_normal((V, D)).astype("f4")
    rules = dict(seed=[5, 6, 7], temperature=0.7, top_k=20, presence=0.8, repetition=1.2)
    head, plain, text = fs.Head(W), [[s] for s in range(R)], [[s] for s in range(R)]

    def counted(texts):
        return [{t: line[1:].count(t) for t in line[1:]} for line in texts]

    with fs.Context("cpu", threads=1) as context:
        for at in range(steps + 8):
            hidden = np.stack([table[line[-1]] for line in plain])
            drawn = context.sample(head, hidden, position=[at] * R, count_list=counted(plain), **rules).tokens[:, 0]
            for line, token in zip(plain, drawn):
                line.append(int(token))
        while min(map(len, text)) <= steps:
            drafts = [[int(t) if rng.random() < 0.8 else int(rng.integers(V)) for t in
                       plain[s][len(text[s]):][:rng.integers(0, 4)]] for s in range(R)]
            known = [[text[s][-1], *drafts[s]] for s in range(R)]
            rows = [(s, i) for s in range(R) for i in range(len(known[s]))]
            drawn = context.sample(head, np.stack([table[known[s][i]] for s, i in rows]), slot=[s for s, _ in rows],
                                   slots=R, position=[len(text[s]) - 1 + i for s, i in rows],
                                   extra_tokens=[drafts[s][:i] for s, i in rows], count_list=counted(text),
                                   **rules).tokens[:, 0]
            offsets = np.cumsum([0, *map(len, known)])
            _, tokens, starts = fs.accept_drafts(sum(drafts, []) or np.empty(0, "i4"), drawn, offsets=offsets,
                                                 emit="packed")
            for s in range(R):
                text[s] += tokens[starts[s]:starts[s + 1]].tolist()
    for s in range(R):
        assert text[s][:steps] == plain[s][:steps]
