"""The reference backend against an independent model of the header's text (model.py)."""
import numpy as np
import pytest

import flashsampling as fs
import model
import noise_model as nm
from cases import Case, assert_same, random_case, stored_as

NAN, INF = float("nan"), float("inf")


def check(reference, case):
    result, expected = case.run(reference), model.sample(case)
    assert_same(result, expected, exact_rank=True)
    return result


def logits(values, rows=1):
    values = np.asarray(values, np.float32)
    return dict(logits=np.ascontiguousarray(np.broadcast_to(values, (rows, values.shape[-1]))))


def gaussian(seed, rows=4, size=200, scale=3.0):
    return dict(logits=np.random.default_rng(seed).normal(0, scale, (rows, size)).astype(np.float32))


KINDS = ("raw", "processed", "cut")

# ------------------------------------------------------------------------------------------------------- logits ----


@pytest.mark.parametrize("hidden_dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_weights_of_every_dtype(reference, dtype, hidden_dtype):
    rng = np.random.default_rng(1)
    head = dict(weights=stored_as(rng.normal(0, 1, (77, 33)), dtype), dtype=dtype)
    hidden = stored_as(rng.normal(0, 1, (3, 33)), hidden_dtype)
    check(reference, Case(head, hidden, temperature=0.8, seed=5, top=5))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_stored_logits_of_every_dtype(reference, dtype):
    x = stored_as(gaussian(2)["logits"], dtype)
    check(reference, Case(dict(logits=x, dtype=dtype), seed=5, top=5, samples=3))


def test_f16_subnormals_and_infinities_are_read(reference):
    x = np.array([[0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x8001, 0xFC00, 0x7C00, 0x7E00]], np.uint16).view(np.float16)
    result = check(reference, Case(dict(logits=x), temperature=0.0, top=9))
    assert result.tokens[0, 0] == 7 and result.status[0] == fs.Row.INF | fs.Row.NAN


@pytest.mark.parametrize("round", ["f32", "bf16", "f16"])
def test_bias_rounding_scales_and_softcap_come_in_this_order(reference, round):
    rng = np.random.default_rng(3)
    head = dict(gaussian(3), bias=rng.normal(0, 1, 200).astype(np.float32), round_to=round, scale=1.7, softcap=5.0,
                post_scale=0.3)
    check(reference, Case(head, seed=1, top=200, logits_mode="raw"))


def test_rounding_goes_to_even_overflows_and_keeps_nan(reference):
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.0, 65520.0, 3.4e38, 2.0**-25, 1e-45]
    for round in ("bf16", "f16"):
        case = Case(dict(logits([ties + [-t for t in ties] + [NAN]]), round_to=round), temperature=0.0, top=18,
                    watch=[list(range(18))])
        check(reference, case)


def test_shards_and_padding(reference):
    for first, vocab in ((0, 150), (1000, 1150), (37, 0), (130, 330)):
        head = dict(gaussian(4), first_token=first, vocab=vocab)
        result = check(reference, Case(head, temperature=5.0, seed=3, samples=40, top=170, logits_mode="processed"))
        assert (result.tokens >= first).all() and (not vocab or (result.tokens < vocab).all())


# -------------------------------------------------------------------------------------------------------- rules ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1e-3, 0.7, 1.0, 100.0])
def test_temperature(reference, temperature, kind):
    check(reference, Case(gaussian(5), temperature=temperature, seed=1, samples=4, logits_mode=kind, top=4))


def test_the_token_depends_on_the_temperature(reference):
    """Noise added before the division would not."""
    drawn = [Case(gaussian(6), temperature=t, seed=1, samples=50).run(reference).tokens for t in (0.3, 3.0)]
    assert (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_cuts(reference, kind, joint, ties):
    x = np.round(gaussian(7, rows=1)["logits"] * 2) / 2
    for k in (-1, 0, 1, 3, 50, 199, 200, 300):
        for p in (0.0, 1e-7, 0.3, 0.9, 1.0, 1.000005):
            for m in (0.0, 0.01, 0.5, 1.0):
                check(reference, Case(dict(logits=x), top_k=k, top_p=p, min_p=m, keep_ties=ties, joint_top_p=joint,
                                      temperature=1.5, seed=k + 5, samples=2, logits_mode=kind, top=30))


def test_cuts_of_equal_logits_take_the_lowest_ids(reference):
    x = logits([1.0] * 8)
    for rule, kept in ((dict(top_k=3), 3), (dict(top_p=0.5), 4), (dict(top_p=0.51), 5), (dict(top_p=0.0), 1),
                       (dict(min_p=1.0), 8), (dict(top_k=4, top_p=0.5), 2),
                       (dict(top_k=4, top_p=0.25, joint_top_p=True), 2),
                       (dict(top_k=3, keep_ties=True), 8), (dict(top_p=0.1, keep_ties=True), 8)):
        result = check(reference, Case(x, logits_mode="cut", top=8, mode="without_replacement", samples=8, seed=2,
                                       **rule))
        assert (result.top_token[0] >= 0).sum() == kept
        assert sorted(result.tokens[0, :kept]) == list(range(kept))


def test_minus_zero_ties_with_zero(reference):
    case = Case(logits([-0.0, 0.0, -0.0, 0.0]), temperature=0.0, top=4, logits_mode="processed")
    assert check(reference, case).top_token.tolist() == [[0, 1, 2, 3]]


def test_masks_edits_and_penalties_come_in_this_order(reference):
    rng = np.random.default_rng(8)
    vocab, rows = 200, 4
    case = Case(
        gaussian(8), seed=3, samples=3, logits_mode="processed", top=200,
        allow=fs.pack_bits(rng.random((3, vocab)) < 0.7), allow_index=np.array([0, 2, -1, 1], np.int32),
        edits=[[(5, 2.0), (5, 0.1), (7, -INF), (199, 3.0)], [], [(0, -INF), (0, 5.0)], [(3, -1.0)]],
        seen=fs.pack_bits(rng.random((rows, vocab)) < 0.4), counts=rng.integers(0, 3, (rows, vocab)).astype(np.int32),
        repetition=[1.3, 0.5, 1.0, 2.0], frequency=[0.1, -0.2, 0.0, 0.3], presence=[0.5, 0.0, -0.25, 0.125],
    )
    check(reference, case)
    del case.rules["counts"]
    case.rules["count_list"] = [[(5, 1), (5, 2), (9, 1)], [(0, 0)], [], [(199, 7), (3, 1)]]
    check(reference, case)


def test_sums_of_counts_saturate(reference):
    most = 2**31 - 1
    result = Case(logits([0.0, 0.0, 0.0]), frequency=2.0**-31, logits_mode="processed", top=3,
                  count_list=[[(0, most), (0, most), (1, -most - 1), (1, -9), (1, most), (1, 2)]]).run(reference)
    assert result.top_token.tolist() == [[2, 1, 0]] and result.top_logit.tolist() == [[0.0, -(2.0**-31), -1.0]]


def test_a_count_below_0_is_none(reference):
    result = Case(logits([0.0, 1.0, 2.0]), frequency=2.0, presence=4.0, repetition=2.0, logits_mode="processed", top=3,
                  count_list=[[(0, -3), (1, 1), (2, -1)]]).run(reference)
    assert result.top_token.tolist() == [[2, 0, 1]] and result.top_logit.tolist() == [[2.0, 0.0, -5.5]]


def test_bans_and_masks_are_final(reference):
    """Neither a +inf logit nor a +inf edit brings a banned token back, and no NaN is made of the two."""
    case = Case(logits([INF, 1.0, 2.0, 3.0]), seed=1, allow=fs.pack_bits([[True, True, True, False]]),
                edits=[[(0, -INF), (1, -INF), (1, INF), (3, INF)]], logits_mode="processed", top=4)
    result = check(reference, case)
    assert result.tokens[0, 0] == 2 and not result.status[0] & fs.Row.NAN


def test_slots_positions_seeds_and_substreams(reference):
    x = gaussian(9, rows=1)["logits"]
    case = Case(logits(x[0], rows=5), slot=np.array([2, 0, -1, 4, 2], np.int32), slots=6, position=[1, 2, 3, 4, 1],
                seed=11, temperature=[1, 1, 0.5, 1, 2, 1], substream=[0, 0, 1, 0, 0, 9], samples=30)
    result = check(reference, case)
    assert (result.tokens[0] == result.tokens[4]).all() and (result.tokens[0] != result.tokens[1]).any()
    case.rules["seed"] = np.array([7, 7, 7, 7, 7, 7], np.uint64)
    check(reference, case)


def test_a_scalar_seed_is_spread_over_slots(reference):
    x = gaussian(10, rows=1)["logits"][0]
    spread = Case(logits(x, rows=6), seed=123, samples=20).run(reference)
    given = Case(logits(x, rows=6), samples=20,
                 seed=np.array([nm.spread_seed(123, s) for s in range(6)], np.uint64)).run(reference)
    assert (spread.tokens == given.tokens).all() and len({tuple(row) for row in spread.tokens}) == 6


# -------------------------------------------------------------------------------------------------------- modes ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_replacement_beyond_the_support(reference, temperature, kind):
    case = Case(gaussian(11), mode="without_replacement", samples=9, temperature=temperature, seed=4, logits_mode=kind,
                top=12, top_k=np.array([0, 5, 1, 8], np.int32), fallback_token=-3)
    result = check(reference, case)
    assert [(row == -3).sum() for row in result.tokens] == [0, 4, 8, 1]
    assert (result.status & fs.Row.SHORT != 0).tolist() == [False, True, True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_score_mode(reference, kind):
    given = np.array([[0, 199, 5], [1, 1, 1], [-1, 3, 3], [4, 200, 4]], np.int32)
    result = check(reference, Case(gaussian(12), mode="score", samples=3, score_tokens=given, top_k=50,
                                   logits_mode=kind, top=5))
    assert (result.status & fs.Row.BAD_TOKEN != 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("size", [1, 7, 64, 128, 1000])
def test_groups(reference, mode, size):
    for seed in range(10):
        allow = np.ones((4, 300), bool)
        allow[:, 100:260] = seed % 2
        case = Case(dict(gaussian(seed), first_token=seed * 10), mode=mode, group_size=size, seed=seed,
                    temperature=[0.0, 0.5, 1.0, 3.0], logits_mode="processed", top=3, allow=fs.pack_bits(allow))
        check(reference, case)


@pytest.mark.parametrize("mode", ["sample", "group_parallel", "group_online"])
def test_modes_draw_from_the_softmax(reference, mode):
    """20,000 rows of one distribution: chi-squared over its 12 tokens, 99.99th percentile of 11 degrees 37.4."""
    x = np.linspace(-2, 2, 12).astype(np.float32)
    case = Case(logits(x, rows=20000), mode=mode, group_size=5, seed=99)
    seen = np.bincount(case.run(reference).tokens[:, 0], minlength=12)
    expected = 20000 * np.exp(x) / np.exp(x).sum()
    assert ((seen - expected) ** 2 / expected).sum() < 37.4


@pytest.mark.parametrize("mode", ["sample", "without_replacement", "group_parallel"])
def test_fast_noise(reference, mode):
    case = Case(gaussian(13), mode=mode, noise="fast", seed=8, group_size=32, temperature=2.0,
                samples=1 if mode == "group_parallel" else 20)
    check(reference, case)


# ------------------------------------------------------------------------------------------------- rows that fail ----


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_have_no_token(reference, kind):
    rows = 12
    x = gaussian(14, rows=rows)["logits"]
    x[0], x[1] = -INF, NAN
    case = Case(
        dict(logits=x), logits_mode=kind, top=3, samples=2, seed=1, fallback_token=-9, watch=[[0, 199]] * rows,
        slot=np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -2, 12], np.int32), slots=12,
        temperature=[1, 1, -1, NAN, INF, 1e-45, 1, 1, 1, 1, 1, 1], top_p=[1] * 6 + [NAN, -0.5, 1, 1, 1, 1],
        min_p=[0] * 8 + [1.5, 0, 0, 0], repetition=[1, 1, 0] + [1] * 9, frequency=[0, 0, 0, INF] + [0] * 8,
    )
    result = check(reference, case)
    row = fs.Row
    assert result.status.tolist() == [
        row.EMPTY, row.EMPTY | row.NAN, row.BAD_TEMPERATURE | row.BAD_PENALTY, row.BAD_TEMPERATURE | row.BAD_PENALTY,
        row.BAD_TEMPERATURE, row.BAD_TEMPERATURE, row.BAD_TOP_P, row.BAD_TOP_P, row.BAD_MIN_P, row.SKIPPED,
        row.BAD_SLOT, row.BAD_SLOT]
    assert (result.tokens == -9).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_never_wins_and_plus_infinity_always_does(reference, kind):
    x = gaussian(15, rows=5)["logits"]
    x[0, 3], x[1, [9, 50]], x[2, :] = NAN, INF, INF
    x[3, 7], x[3, 8] = INF, NAN
    case = Case(dict(logits=x), logits_mode=kind, top=5, samples=3, seed=2, watch=[[0, 7]] * 5,
                edits=[[], [], [], [], [(44, INF)]])
    tokens = check(reference, case).tokens
    assert (tokens[1:] == [[9] * 3, [0] * 3, [7] * 3, [44] * 3]).all()
    for extra in (dict(top_k=4), dict(top_p=0.5), dict(min_p=0.5), dict(mode="without_replacement"),
                  dict(temperature=0.0)):
        check(reference, Case(case.head, logits_mode=kind, top=5, seed=2, watch=case.rules["watch"],
                              **{"samples": 3, **extra}))


def test_a_head_without_rows_has_no_token_to_draw(reference):
    with pytest.raises(fs.Error, match="head.rows is 0: there is no token to draw"):
        Case(dict(logits=np.zeros((2, 0), np.float32)), top=2).run(reference)


def test_huge_logits_and_tiny_temperatures(reference):
    x = logits([3e38, 1e38, -3e38, 88.8, 0.0, 3e38])
    for temperature in (1.0, 1e-3, 100.0):
        check(reference, Case(x, temperature=temperature, seed=1, samples=4, logits_mode="raw", top=6))


# -------------------------------------------------------------------------------------------------------- random ----


@pytest.mark.parametrize("seed", range(300))
def test_random_cases(reference, seed):
    check(reference, random_case(np.random.default_rng(seed)))
