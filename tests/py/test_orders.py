"""The flags that order rules as engines do, the two forms of lists, and what one bad request may do: to itself alone.

Expectations are written out, or computed in double from each engine's own order of steps.
"""
import numpy as np
import pytest

import flashsampling as fs
from cases import Case

INF = float("inf")


@pytest.fixture(scope="module", params=["reference", "cpu"])
def context(request):
    return fs.Context(request.param)


def logits(*rows):
    return dict(logits=np.float32(rows))


def kept(context, x, **rules):
    """The tokens that the cuts leave, per row, in order."""
    result = Case(dict(logits=np.float32(x)), logits_mode="cut", top=min(len(x[0]), 1024), **rules).run(context)
    return [[token for token in row if token >= 0] for row in result.top_token.tolist()]


# --------------------------------------------------------------------------------------------------------- orders ----


def test_min_p_last_counts_what_it_removes(context):
    """Masses .5 .3 .1 .05 .05: min-p 0.5 leaves two, of which top-p 0.6 keeps the first; before min-p it keeps two."""
    x = [np.log([0.5, 0.3, 0.1, 0.05, 0.05])]
    for top_k in (0, 5, 4):
        assert kept(context, x, min_p=0.5, top_p=0.6, top_k=top_k) == [[0]]
        assert kept(context, x, min_p=0.5, top_p=0.6, top_k=top_k, min_p_last=True) == [[0, 1]]
    # Top-k in between: of .5 .3 .1 the first is less than 0.6, of .5 .3 it is more.
    assert kept(context, x, min_p=0.5, top_p=0.6, top_k=3, min_p_last=True) == [[0, 1]]
    assert kept(context, x, min_p=0.5, top_p=0.6, top_k=2, min_p_last=True) == [[0]]


def test_min_p_last_of_wide_rows(context):
    """Below min-p's floor there are more tokens than a list holds, with half of the mass or a third."""
    x = np.full((2, 20000), np.log(1 / 19999))
    x[:, 77] = 0.0
    x[1, 99] = -0.1
    rules = dict(min_p=0.5, top_p=0.4, list_capacity=64)
    for top_k in (0, 15000):
        assert kept(context, x, top_k=top_k, **rules) == [[77], [77]]
        assert kept(context, x, top_k=top_k, **{**rules, "top_p": 0.6}) == [[77], [77, 99]]
        assert kept(context, x, top_k=top_k, min_p_last=True, **{**rules, "top_p": 0.5}) == [[77], [77, 99]]


def test_cuts_before_temperature_do_not_depend_on_it(context):
    rng = np.random.default_rng(1)
    x = rng.normal(0, 2, (6, 3000))
    temperature = [0.0, 0.2, 0.7, 1.0, 1.5, 30.0]
    for rules in (dict(top_p=0.9), dict(min_p=0.1), dict(top_k=50, top_p=0.7),
                  dict(top_k=50, top_p=0.5, joint_top_p=True), dict(top_k=300, top_p=0.9, min_p=0.05, min_p_last=True)):
        expected = kept(context, x, **rules)
        assert kept(context, x, temperature=temperature, cut_before_temperature=True, **rules) == expected
        assert kept(context, x, temperature=temperature, **rules) != expected


def test_the_draw_after_such_cuts_is_from_what_temperature_made(context):
    """Three tokens are left at any temperature; their logprobs are those of l."""
    x, t = np.float32([3.0, 2.5, 2.0, 1.5, -1.0, -2.0]), np.float32([0.5, 4.0])
    case = Case(dict(logits=np.tile(x, (2, 1))), logits_mode="cut", top=6, temperature=t, top_p=0.75, samples=500,
                seed=4,
                cut_before_temperature=True, watch=[[0, 3]] * 2)
    result = case.run(context)
    assert (result.top_token[:, :4] == [0, 1, 2, -1]).all()
    for b in range(2):
        law = x[:3] / t[b] - np.log(np.exp(x[:3] / t[b]).sum())
        np.testing.assert_allclose(result.top_logprob[b, :3], law, atol=2e-6)
        np.testing.assert_allclose(result.watch_logprob[2 * b], law[0], atol=2e-6)
        assert result.watch_logprob[2 * b + 1] == -INF
        seen = np.bincount(result.tokens[b], minlength=6)
        assert seen[3:].sum() == 0 and abs(seen[0] / 500 - np.exp(law[0])) < 0.12  # five deviations


def test_what_temperature_makes_infinite_was_there_when_cuts_were_made(context):
    """l is +inf, +inf, 0 and -inf three times: a cut counts those too, and nothing is left of them."""
    x = [[20.0, 19.0, 0.0, -20.0, -20.0, -30.0]]
    flags = dict(temperature=1e-38, cut_before_temperature=True)
    assert kept(context, x, top_k=4, **flags) == [[0, 1, 2]]
    assert kept(context, x, top_p=0.9, **flags) == [[0, 1]]
    # 0.62 of the first two's mass is the first one's, of all there are 0.23.
    for top_k in (0, 22):
        assert kept(context, [[-2.0, -2.5] + [-4.0] * 20 + [-INF]], top_k=top_k, top_p=0.3, **flags) == [[0, 1]]
    result = Case(logits(x[0]), logits_mode="cut", top_k=4, seed=1, **flags).run(context)
    assert result.tokens.tolist() == [[0]] and result.status.tolist() == [fs.Row.INF]
    scored = Case(logits(x[0]), logits_mode="cut", top_k=5, mode="score", score_tokens=np.int32([[3]]),
                  rank_of_ties=True, **flags)
    assert scored.run(context).rank.tolist() == [[4]]


def test_edits_last_are_not_penalised(context):
    """y is 2 + 1 = 3 halved; or 2 halved and then 1 more. A ban is one either way."""
    rules = dict(seen=fs.pack_bits([[True, True, False]]), repetition=2.0, top=3,
                 edits=[[(0, 1.0), (1, -INF), (2, 1.0)]])
    head = logits([2.0, 9.0, 0.25])
    first = Case(head, logits_mode="processed", **rules).run(context)
    last = Case(head, logits_mode="processed", edits_last=True, **rules).run(context)
    assert first.top_token.tolist() == [[0, 2, -1]] and first.top_logit[0, :2].tolist() == [1.5, 1.25]
    assert last.top_token.tolist() == [[0, 2, -1]] and last.top_logit[0, :2].tolist() == [2.0, 1.25]


# ----------------------------------------------------------------------------------------------------------- ties ----


def test_ties_at_top_k_alone(context):
    """Two of four that tie; top-p 0.6 of those four takes three of them, or all if it keeps ties."""
    x = [[1.0, 5.0, 5.0, 5.0, 5.0, 0.0]]
    assert kept(context, x, top_k=2) == [[1, 2]]
    assert kept(context, x, top_k=2, keep_ties_top_p=True) == [[1, 2]]
    assert kept(context, x, top_k=2, keep_ties_top_k=True) == [[1, 2, 3, 4]]
    assert kept(context, x, top_k=2, top_p=0.6, keep_ties_top_k=True) == [[1, 2, 3]]
    assert kept(context, x, top_k=2, top_p=0.6, keep_ties=True) == [[1, 2, 3, 4]]


def test_ties_at_top_p_alone(context):
    """Top-p's ties are those of what top-k has left."""
    x = [[1.0, 5.0, 5.0, 5.0, 5.0, 0.0]]
    assert kept(context, x, top_p=0.3) == [[1, 2]]
    assert kept(context, x, top_p=0.3, keep_ties_top_k=True) == [[1, 2]]
    assert kept(context, x, top_p=0.3, keep_ties_top_p=True) == [[1, 2, 3, 4]]
    assert kept(context, x, top_k=3, top_p=0.3, keep_ties_top_p=True) == [[1, 2, 3]]
    assert kept(context, x, top_k=3, top_p=0.1, joint_top_p=True, keep_ties_top_p=True) == [[1, 2, 3]]


@pytest.mark.parametrize("kind", ["raw", "processed", "cut"])
def test_a_rank_may_count_ties(context, kind):
    """Tokens 7, 5 5 5, 1: the tied ones are of rank 2, or 4. Of what top-k 3 leaves, 7 5 5, it is 3, and 4 for one that
    is out of it."""
    case = Case(logits([5.0, 1.0, 7.0, 5.0, 5.0]), mode="score", samples=5, score_tokens=np.int32([[0, 1, 2, 3, 4]]),
                top_k=3,
                logits_mode=kind, temperature=0.5)
    strict = case.run(context).rank.tolist()
    case.rules["rank_of_ties"] = True
    ties = case.run(context).rank.tolist()
    if kind == "cut":
        assert (strict, ties) == ([[2, 4, 1, 2, 2]], [[3, 4, 1, 3, 4]])
    else:
        assert (strict, ties) == ([[2, 5, 1, 2, 2]], [[4, 5, 1, 4, 4]])


@pytest.mark.parametrize("others", [254, 255, 256, 257, 5000])
def test_ties_beyond_what_a_list_holds_are_a_bound(context, others):
    """The given token ties with `others`. Ranks up to 256 are exact, more are called bounds, or cost a second pass."""
    x = np.zeros((3, 6000), np.float32)
    x[:, 6000 - others - 1:] = 1.0
    rules = dict(mode="score", samples=1, score_tokens=np.int32([[5999], [6000 - others - 1], [0]]), rank_of_ties=True)
    exact = Case(dict(logits=x), exact_rank=True, **rules).run(context)
    assert exact.rank[:, 0].tolist() == [others + 1, others + 1, 6000]
    assert not (exact.status & fs.Row.RANK_BOUND).any()
    result = Case(dict(logits=x), **rules).run(context)
    bound = result.status & fs.Row.RANK_BOUND != 0
    if "reference" in str(context):
        assert not bound.any()
    else:
        assert bound.tolist() == [others >= 256] * 2 + [True]
    assert (result.rank[bound] == 257).all() and (result.rank[~bound] == exact.rank[~bound]).all()


# ---------------------------------------------------------------------------------------------------------- lists ----


def test_padded_edits_are_the_ones_by_row(context):
    """By slot, in lines with room for more, of a wider array too; what lies in the room is nobody's."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 2, (4, 50)).astype(np.float32)
    lines = [[(3, 1.0), (3, 0.5), (7, -INF)], [], [(49, 9.0)], [(0, -2.0), (1, 3.0), (2, 1.0), (3, -INF)], [(5, 1.0)]]
    slot = np.array([3, 0, 1, 2])
    rules = dict(seed=1, slots=5, slot=slot, top=50, logits_mode="processed")
    by_row = Case(dict(logits=x), edits=[lines[s] for s in slot], **rules).run(context)
    for columns in (4, 9):
        token, bias = np.full((5, columns + 3), 10**9, np.int32), np.full((5, columns + 3), np.nan, np.float32)
        for s, line in enumerate(lines):
            for i, (t, b) in enumerate(line):
                token[s, i], bias[s, i] = t, b
        count = np.array([len(line) for line in lines], np.int32)
        for padded in ((count, token, bias), (count, token[:, :columns], bias[:, :columns])):
            result = Case(dict(logits=x), padded_edits=padded, **rules).run(context)
            for name, array in result.arrays().items():
                np.testing.assert_array_equal(array, getattr(by_row, name), err_msg=name)


def test_a_bad_count_of_edits_is_its_slots_affair(context):
    x = np.zeros((5, 6), np.float32)
    token, bias = np.zeros((4, 2), np.int32), np.full((4, 2), 5.0, np.float32)
    result = Case(dict(logits=x), temperature=0.0, slots=4, slot=np.array([0, 1, 2, 3, -1]),
                  padded_edits=(np.int32([2, -1, 3, 0]), token, bias), logits_mode="processed").run(context)
    bad = int(fs.Row.BAD_LIST)
    assert result.status.tolist() == [0, bad, bad, 0, fs.Row.SKIPPED]
    assert result.tokens[:, 0].tolist() == [0, -1, -1, 0, -1] and result.logit[[0, 3], 0].tolist() == [10.0, 0.0]


BAD = dict(
    edits=lambda bad: dict(edits=[[(0, 1.0)], [(1, 1.0), (bad, 2.0)], [(2, -INF)]]),
    padded=lambda bad: dict(padded_edits=(np.int32([1, 2, 1]), np.int32([[0, bad], [1, bad], [2, bad]]),
                                          np.ones((3, 2), np.float32))),
    counts=lambda bad: dict(count_list=[[(0, 1)], [(bad, 1)], []], frequency=0.5),
    watch=lambda bad: dict(watch=[[0], [3, bad], [1]]),
    score_tokens=lambda bad: dict(mode="score", score_tokens=np.int32([[3], [bad], [1]])),
)


@pytest.mark.parametrize("bad", [-1, 40, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("kind", BAD)
def test_one_requests_bad_edit_leaves_the_others_alone(context, kind, bad):
    x = np.random.default_rng(3).normal(0, 2, (3, 40)).astype(np.float32)
    rules = dict(seed=5, top=4, logits_mode="processed")
    good, result = (Case(dict(logits=x), **rules, **BAD[kind](t)).run(context) for t in (4, bad))
    assert result.status.tolist() == [0, fs.Row.BAD_TOKEN, 0] and result.tokens[1, 0] == -1
    for name, array in result.arrays().items():
        if name.startswith("watch"):
            assert np.isnan(array[1:3]).all()
            np.testing.assert_array_equal(array[[0, 3]], getattr(good, name)[[0, 3]])
        else:
            np.testing.assert_array_equal(array[[0, 2]], getattr(good, name)[[0, 2]], err_msg=name)


def test_bad_tokens_in_parts_are_those_of_the_whole():
    cpu = fs.Context("cpu")
    x = np.random.default_rng(4).normal(0, 2, (3, 40)).astype(np.float32)
    for make in BAD.values():
        case = Case(dict(logits=x), seed=5, logits_mode="processed", **make(40))
        parts, heads = [], [dict(logits=x[:, :16], vocab=40), dict(logits=x[:, 16:], first_token=16)]
        for part in heads:
            head, batch, out = case.objects(part)
            parts.append(cpu.partial(head, batch, out=out))
        head, batch, out = case.objects(heads[1])
        merged, whole = cpu.merge(parts, head, batch, out=out, on_error="status"), case.run(cpu)
        for name, array in merged.arrays().items():
            np.testing.assert_array_equal(array, getattr(whole, name), err_msg=name)


# ---------------------------------------------------------------------------------------------------------- slots ----


def test_slots_of_64_bits_are_used_as_they_lie(context):
    x = np.random.default_rng(5).normal(0, 1, (6, 100)).astype(np.float32)
    slot = np.array([4, -1, 0, 2**32, -(2**33), 2**32 - 1])
    head = fs.Head(logits=x)
    batch = fs.Batch(head, slot=slot, slots=5, temperature=[0.0, 1, 1, 1, 2.0], seed=7)
    assert batch.struct.slot == slot.ctypes.data and batch.struct.slot_dtype == 9
    result = context.sample(head, batch, outputs="all", on_error="status")
    skipped, bad = int(fs.Row.SKIPPED), int(fs.Row.BAD_SLOT)
    assert result.status.tolist() == [0, skipped, 0, bad, bad, bad]
    slot = np.int32([4, -1, 0, -2, -2, 5])
    narrow = context.sample(head, slot=slot, slots=5, temperature=[0.0, 1, 1, 1, 2.0], seed=7, on_error="status")
    np.testing.assert_array_equal(narrow.tokens, result.tokens)
    np.testing.assert_array_equal(narrow.status, result.status)


def test_slots_of_64_bits_in_parts():
    cpu = fs.Context("cpu")
    x = np.random.default_rng(6).normal(0, 1, (4, 100)).astype(np.float32)
    rules = dict(slot=np.array([3, -1, 2**40, 0]), slots=4, seed=7, top_k=[5, 6, 7, 8])
    shards = fs.Head(logits=x[:, :48], vocab=100), fs.Head(logits=x[:, 48:], first_token=48)
    parts = [cpu.partial(shard, **rules) for shard in shards]
    rules["on_error"] = "status"
    merged, whole = cpu.merge(parts, fs.Head(logits=x), **rules), cpu.sample(fs.Head(logits=x), **rules)
    np.testing.assert_array_equal(merged.tokens, whole.tokens)
    np.testing.assert_array_equal(merged.status, whole.status)


# --------------------------------------------------------------------------------------------------------- limits ----


def test_a_row_that_breaks_a_promise_says_so_and_the_others_do_not(context):
    """Slot 0 uses nothing, each of the others one rule."""
    x = np.random.default_rng(7).normal(0, 1, (8, 64)).astype(np.float32)
    one = np.ones(8)
    bare = Case(dict(logits=x), repetition=2.0, limits=dict(absent=fs.Rule.PENALTIES)).run(context)
    assert (bare.status == 0).all(), "there is nothing to penalise"
    rules = dict(top_k=[0, 9, 0, 0, 0, 0, 0, 64], top_p=one - 0.5 * (np.arange(8) == 2),
                 min_p=0.5 * (np.arange(8) == 3), allow=np.full((1, 2), 2**32 - 1, np.uint32),
                 allow_index=[-1, -1, -1, -1, 0, -1, -1, -1],
                 edits=[[], [], [], [], [], [(3, 1.0)], [], []], seen=np.zeros((8, 2), np.uint32),
                 repetition=one + (np.arange(8) == 6), seed=3)
    free = Case(dict(logits=x), **rules).run(context)
    assert (free.status == 0).all()
    for i, rule in enumerate(fs.Rule):
        result = Case(dict(logits=x), limits=dict(absent=rule), **rules).run(context)
        over = np.arange(8) == i + 1
        assert (result.status == fs.Row.OVER_LIMIT * over).all(), rule
        assert (result.tokens[over] == -1).all() and (result.tokens[~over] == free.tokens[~over]).all(), rule
    for most, over in ((9, False), (8, True), (0, False)):
        result = Case(dict(logits=x), limits=dict(top_k=most), **rules).run(context)
        assert (result.status != 0).tolist() == [i == 1 and over for i in range(8)]


def test_promises_of_how_much_there_is_hold_or_the_call_is_refused(context):
    x = np.zeros((2, 9), np.float32)
    padded = (np.int32([2, 1]), np.zeros((2, 2), np.int32), np.zeros((2, 2), np.float32))
    for name, rules in (("edits", dict(edits=[[(1, 1.0)], [(2, 1.0), (3, 1.0)]])), ("edits", dict(padded_edits=padded)),
                        ("counts", dict(count_list=[[(1, 1), (2, 1)], [(1, 1)]])),
                        ("watched", dict(watch=[[1], [2, 3]]))):
        assert (Case(dict(logits=x), limits={name: 3}, **rules).run(context).status == 0).all()
        with pytest.raises(fs.Error, match="limits.%s is 2, but there are 3 entries" % name):
            Case(dict(logits=x), limits={name: 2}, **rules).run(context)


# -------------------------------------------------------------------------------------------------------- engines ----


def masses(z):
    """Probabilities in the order of z descending, and what is before each."""
    p = np.exp(z - z.max())
    p /= p.sum()
    return p, np.cumsum(p) - p


def of_transformers(x, k, p, m, t):
    """Temperature, top-k with ties, top-p of what is left, min-p of that."""
    z = np.sort(x.astype(np.float64) / t)[::-1]
    z = z[z >= z[min(k, len(z)) - 1]]
    z = z[masses(z)[1] < p]
    return z[np.exp(z - z[0]) >= m] * t


def of_llama(x, k, p, m, t):
    """The k first, top-p of them, min-p; temperature comes after."""
    z = np.sort(x.astype(np.float64))[::-1][:k]
    z = z[masses(z)[1] < p]
    return z[z >= z[0] + np.log(m)]


def of_vllm(x, k, p, m, t):
    """Temperature, min-p, top-k with ties, top-p of what is left."""
    z = np.sort(x.astype(np.float64) / t)[::-1]
    z = z[np.exp(z - z[0]) >= m]
    z = z[z >= z[min(k, len(z)) - 1]]
    return z[masses(z)[1] < p] * t


def of_sglang(x, k, p, m, t):
    """Of the whole row's probabilities: the k first, those that less than p is before, those of m of the first."""
    z = np.sort(x.astype(np.float64) / t)[::-1]
    q, before = masses(z)
    return z[(np.arange(len(z)) < k) & (before < p) & (q >= m * q[0])] * t


def with_ties(z, kept):
    """z without those that are smaller than all that were kept."""
    return z[z >= z[kept].min()]


def of_flashinfer(x, k, p, m, t):
    """The k first and those that tie with them; of what is left those that less than p is before, with ties; min-p."""
    z = np.sort(x.astype(np.float64) / t)[::-1]
    z = with_ties(z, np.arange(len(z)) < k)
    z = with_ties(z, masses(z)[1] < p)
    return z[np.exp(z - z[0]) >= m] * t


ENGINES = {
    "transformers": (of_transformers, dict(keep_ties_top_k=True, min_p_last=True)),
    "llama.cpp": (of_llama, dict(min_p_last=True, cut_before_temperature=True)),
    "vLLM": (of_vllm, dict(keep_ties_top_k=True)),
    "SGLang": (of_sglang, dict(joint_top_p=True, min_p_last=True)),
    "SGLang with FlashInfer": (of_flashinfer, dict(keep_ties=True, min_p_last=True)),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_with_its_flags_the_cut_is_the_engines(context, engine):
    """On logits of bf16, where ties at the k-th place are the rule; ids of equal logits are the engines' own affair."""
    model, flags = ENGINES[engine]
    rng = np.random.default_rng(8)
    others = [name for name in ENGINES if name != engine]
    unlike = dict.fromkeys(others, 0)
    for _ in range(40):
        x = fs.from_bf16(fs.to_bf16(rng.normal(0, rng.uniform(1, 5), (1, 3000)).astype(np.float32)))
        k, p, m, t = int(rng.integers(1, 80)), rng.uniform(0.3, 0.99), rng.uniform(0.01, 0.3), rng.uniform(0.3, 2)
        if rng.random() < 0.3:
            k, p, m, t = 40, 0.95, 0.05, 0.8  # llama.cpp's defaults
        tokens = kept(context, x, top_k=k, top_p=p, min_p=m, temperature=t, **flags)[0]
        np.testing.assert_allclose(x[0, tokens], model(x[0], k, p, m, np.float64(np.float32(t))), rtol=1e-9)
        for name in others:
            unlike[name] += len(ENGINES[name][0](x[0], k, p, m, t)) != len(tokens)
    assert all(unlike.values()), "not told apart: %s" % unlike


def test_cuts_of_sglang_with_flashinfer_and_no_min_p(context):
    """Both cuts look at the whole row then, and keep ties."""
    rng = np.random.default_rng(9)
    unlike = 0
    for _ in range(40):
        x = fs.from_bf16(fs.to_bf16(rng.normal(0, rng.uniform(1, 5), (1, 3000)).astype(np.float32)))
        k, p = int(rng.integers(1, 80)), rng.uniform(0.3, 0.99)
        z = np.sort(x[0].astype(np.float64))[::-1]
        want = z[z >= max(with_ties(z, np.arange(3000) < k).min(), with_ties(z, masses(z)[1] < p).min())]
        tokens = kept(context, x, top_k=k, top_p=p, keep_ties=True, joint_top_p=True)[0]
        np.testing.assert_array_equal(x[0, tokens], want)
        unlike += len(of_flashinfer(x[0], k, p, 1e-30, 1.0)) != len(want)
    assert unlike
