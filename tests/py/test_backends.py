"""Every backend against the reference backend: same logits, same tokens.

Stored logits are equal by nature and dot products of small integers are exact in float in any order, so tokens must be
identical and not merely alike. FLASHSAMPLING_TEST_BACKENDS names the backends, separated by commas; the default is cpu.
"""
import contextlib
import os

import numpy as np
import pytest

import flashsampling as fs
from cases import HOW, Case, assert_same, pick, random_case, stored_as, strided

BACKENDS = os.environ.get("FLASHSAMPLING_TEST_BACKENDS", "cpu").split(",")
INF = float("inf")
DTYPES = ("f32", "f16", "bf16")


def open_backend(name, **options):
    try:
        return fs.Context(name, **options)
    except fs.Error as error:
        pytest.skip("backend %s: %s" % (name, error))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return open_backend(request.param)


def check(backend, reference, case, tolerance=2e-6):
    expected, result = case.run(reference), case.run(backend)
    assert_same(result, expected.arrays(), tolerance, case.rules.get("exact_rank"))
    return result


def integers(rng, rows, dim, vocab, dtype="f32", hidden_dtype="f32"):
    """A head and hidden states whose dot products are exact."""
    head = dict(weights=strided(rng, stored_as(rng.integers(-4, 5, (vocab, dim)) / 4, dtype)), dtype=dtype)
    return head, strided(rng, stored_as(rng.integers(-4, 5, (rows, dim)) / 4, hidden_dtype))


def gaussian(rng, rows, vocab, scale=3.0):
    return dict(logits=rng.normal(0, scale, (rows, vocab)).astype(np.float32))


# ------------------------------------------------------------------------------------------------------ every rule ----


@pytest.mark.parametrize("seed", range(400))
def test_random_cases(backend, reference, seed):
    check(backend, reference, random_case(np.random.default_rng(1000 + seed)))


@pytest.mark.parametrize("mode", ["sample", "without_replacement", "score", "group_parallel", "group_online"])
@pytest.mark.parametrize("seed", range(6))
def test_random_cases_over_many_blocks(backend, reference, mode, seed):
    rng = np.random.default_rng([seed, len(mode)])
    check(backend, reference, random_case(rng, mode=mode, vocab=int(rng.integers(3000, 9000)), dim=8))


# ------------------------------------------------------------------------------------------------------ every tail ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_remainder_of_V_with_stored_logits(backend, reference, dtype):
    rng = np.random.default_rng(1)
    for vocab in list(range(1, 34)) + list(range(256, 385)):
        x = strided(rng, stored_as(rng.normal(0, 2, (2, vocab)), dtype))
        check(backend, reference, Case(dict(logits=x, dtype=dtype, first_token=int(pick(rng, 0, 0, 7))), seed=vocab,
                                       samples=2, top=4))


@pytest.mark.parametrize("hidden_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_remainder_of_V_D_and_B_with_weights(backend, reference, dtype, hidden_dtype):
    rng = np.random.default_rng(2)
    shapes = [(2, 24, vocab) for vocab in range(1, 140)]
    shapes += [(3, dim, 37) for dim in list(range(1, 70)) + [127, 128, 129, 255, 257]]
    shapes += [(rows, 24, 50) for rows in range(1, 36)]
    for rows, dim, vocab in shapes:
        head, hidden = integers(rng, rows, dim, vocab, dtype, hidden_dtype)
        check(backend, reference, Case(head, hidden, seed=vocab, temperature=2.0, top=2))


NEAR = 2e-5  # four times what the order of 256 additions in float moved a logit by, with any x86 kernel (2026-11)


def assert_near_ties(reference, case, result, expected):
    """Tokens are the reference's, or score at most NEAR less than they do; returns the rate of those. The case has a
    scalar seed, and neither positions, temperatures nor substreams."""
    logit = reference.sample(fs.Head(**case.head), case.hidden, mode="score", score_tokens=result.tokens,
                             samples=result.tokens.shape[1], outputs=["logit"]).logit
    differ = np.argwhere(result.tokens != expected.tokens)
    for b, s in differ:
        noise = fs.noise_gumbel(fs.seed_spread(case.rules["seed"], b), 0, s, 0, result.tokens[b, s])
        gap = expected.noisy_logit[b, s] - (logit[b, s] + noise)
        assert gap <= NEAR, "row %d, sample %d: token %d, not %d, which is %g better" % (
            b, s, result.tokens[b, s], expected.tokens[b, s], gap)
    return len(differ) / result.tokens.size


def test_gaussian_weights_agree_up_to_the_rounding_of_the_dot_product(backend, reference):
    rng = np.random.default_rng(3)
    for dtype in DTYPES:
        head = dict(weights=stored_as(rng.normal(0, 1, (1500, 256)), dtype), dtype=dtype)
        case = Case(head, stored_as(rng.normal(0, 0.2, (40, 256)), dtype), seed=1, samples=50, logits_mode="processed")
        expected, result = case.run(reference), case.run(backend)
        rate = assert_near_ties(reference, case, result, expected)
        print("%s: %.4f %% of %d tokens differ" % (dtype, 100 * rate, result.tokens.size))
        assert rate <= 0.001  # 2 tokens; expected is one in 100,000
        np.testing.assert_allclose(result.log_z, expected.log_z, atol=NEAR)
        np.testing.assert_allclose(result.max_logit, expected.max_logit, atol=NEAR)


def test_a_wrong_token_is_no_near_tie(reference):
    case = Case(gaussian(np.random.default_rng(3), 40, 1500), seed=1, samples=4, logits_mode="processed")
    expected, result = case.run(reference), case.run(reference)
    assert assert_near_ties(reference, case, result, expected) == 0
    result.tokens[7, 2] += 1
    with pytest.raises(AssertionError, match="row 7, sample 2"):
        assert_near_ties(reference, case, result, expected)


@pytest.mark.parametrize("exact_rank, bound, rank, good", [
    (False, False, 600, True), (False, True, 600, True), (False, True, 257, True),
    (False, True, 256, False), (False, False, 257, False), (False, True, 601, False), (False, False, 601, False),
    (True, False, 600, True), (True, True, 600, False), (True, True, 257, False), (True, False, 257, False),
])
def test_ranks_are_bounds_only_where_the_header_lets_them(reference, exact_rank, bound, rank, good):
    """The 600th of 1,000 tokens, whose rank a list of 256 does not know."""
    x = -np.arange(1000, dtype=np.float32).reshape(1, -1)
    case = Case(dict(logits=x), mode="score", score_tokens=[[599]])
    expected, result = case.run(reference), case.run(reference)
    assert expected.rank.tolist() == [[600]]
    result.rank[:], result.status[:] = rank, fs.Row.RANK_BOUND * bound
    with contextlib.nullcontext() if good else pytest.raises(AssertionError):
        assert_same(result, expected.arrays(), exact_rank=exact_rank)


# --------------------------------------------------------------------------------------------------- wide and odd ----


@pytest.mark.parametrize("logits", ["raw", "processed", "cut"])
def test_wide_cuts_of_a_large_vocabulary(backend, reference, logits):
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (8, 40000)).astype(np.float32)
    x[4:] = np.round(x[4:] * 8) / 8
    for rules in (dict(top_p=0.9511), dict(top_p=0.99137, temperature=2.0), dict(top_k=1000), dict(min_p=0.0013),
                  dict(top_k=5000, top_p=0.7771), dict(top_k=50, keep_ties=True), dict(top_p=0.5123, keep_ties=True),
                  dict(top_k=3000, top_p=0.5123, joint_top_p=True)):
        check(backend, reference, Case(dict(logits=x), seed=7, samples=3, top=1024, logits_mode=logits, exact_rank=True,
                                       **rules))


def test_rows_of_every_kind_in_one_call(backend, reference):
    rng = np.random.default_rng(5)
    x = gaussian(rng, 12, 5000)["logits"]
    x[3, 77], x[4, [600, 4000]], x[5] = np.nan, INF, -INF
    case = Case(dict(logits=x), seed=3, samples=2, top=5, logits_mode="processed",
                slot=np.array([0, 1, 2, 3, 4, 5, 6, 7, -1, 9, 10, 99], np.int32), slots=12,
                temperature=[1, 0, 0.5, 1, 1, 1, 1, 1, 1, -1, 1, 1], top_k=[0, 0, 5, 0, 0, 0, 50, 0, 0, 0, 1, 0],
                top_p=[1, 1, 1, 1, 1, 1, 0.9511, 0.5123, 1, 1, 1, 1])
    check(backend, reference, case)


def test_bans_and_masks_are_final(backend, reference):
    x = np.array([[INF, 1.0, 2.0, 3.0]], np.float32)
    check(backend, reference, Case(dict(logits=x), seed=1, allow=fs.pack_bits([[True, True, True, False]]),
                                   edits=[[(0, -INF), (1, -INF), (1, INF), (3, INF)]], logits_mode="processed", top=4))


@pytest.mark.parametrize("logits", ["raw", "processed", "cut"])
def test_plus_infinity_with_cuts_and_without_replacement(backend, reference, logits):
    x = gaussian(np.random.default_rng(6), 3, 300)["logits"]
    x[0, [40, 7, 200]], x[1, 250] = INF, INF
    for rules in (dict(), dict(top_k=2), dict(top_p=0.7771), dict(min_p=0.517), dict(top_k=2, keep_ties=True)):
        for mode in ("sample", "without_replacement", "score"):
            case = Case(dict(logits=x), seed=1, mode=mode, samples=4, logits_mode=logits, top=5,
                        watch=[[7, 0], [250], [0]],
                        edits=[[], [], [(3, INF)]], **rules)
            if mode == "score":
                case.rules["score_tokens"] = np.array([[7, 40, 0, 299]] * 3, np.int32)
            check(backend, reference, case)


def test_zero_rows_do_nothing(backend):
    head = fs.Head(np.zeros((10, 4), np.float32))
    assert backend.sample(head, np.zeros((0, 4), np.float32)).tokens.shape == (0, 1)


OUTPUTS = ("all", (), ("logprob",))  # with and without the largest logits on the wire


def check_merged(backend, reference, case, cuts):
    """The same alone and in shards."""
    skip_without_parts(backend)
    check(backend, reference, case)
    assert_same(merged(backend, case, cuts), case.run(reference).arrays())


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("logits", ["raw", "processed", "cut"])
@pytest.mark.parametrize("mode", ["sample", "without_replacement", "score", "group_parallel"])
def test_what_overflows_to_minus_infinity_is_absent(backend, reference, mode, logits, outputs):
    least = np.finfo(np.float32).min
    x = np.full((4, 40), least, np.float32)
    x[1, [5, 30]], x[2, 39], x[3, 7] = (1.0, 2.0), 0.5, 0.9 * least
    rules = dict(logits_mode=logits, mode=mode, temperature=0.7, seed=4, outputs=outputs, top=5,
                 watch=[[0], [5, 6], [39], [7]])
    if mode == "group_parallel":
        rules["group_size"] = 16
    else:
        rules.update(samples=3, list_capacity=41, exact_rank=True)
    if mode == "score":
        rules["score_tokens"] = np.array([[0, 1, 2], [5, 6, 30], [39, 0, 38], [7, 8, 0]], np.int32)
    cuts = (dict(), dict(top_k=3), dict(top_p=0.9511), dict(min_p=1e-6), dict(top_p=0.9511, keep_ties=True))
    for cut in cuts if "samples" in rules else cuts[:1]:
        for noise in ("exact", "fast"):
            case = Case(dict(logits=x), **rules, **cut, noise=noise)
            if mode == "group_parallel":
                check(backend, reference, case)
                assert (merged(backend, case, [16]).status == case.run(reference).status).all()
            else:
                check_merged(backend, reference, case, [16])


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("logits", ["raw", "processed", "cut"])
@pytest.mark.parametrize("mode", ["sample", "score"])
def test_plus_infinity_of_x_of_y_and_of_l_in_shards(backend, reference, mode, logits, outputs):
    x = np.zeros((4, 40), np.float32)
    x[0, 3], x[1, 20], x[3, 7] = INF, 30.0, INF  # row 1: l alone; row 2: y; row 3: an x that is banned
    rules = dict(logits_mode=logits, mode=mode, temperature=[0.5, 1e-38, 0.5, 0.5], seed=4, outputs=outputs, top=3,
                 watch=[[3], [20], [9, 1], [7]], list_capacity=41)
    if mode == "score":
        rules["score_tokens"] = np.array([[3], [20], [9], [1]], np.int32)
    check_merged(backend, reference, Case(dict(logits=x), **rules), [16])
    rules["edits"] = [[], [], [(9, INF)], [(7, -INF)]]
    check_merged(backend, reference, Case(dict(logits=x), **rules), [16])


def test_sums_of_counts_saturate(backend, reference):
    most = 2**31 - 1
    check(backend, reference, Case(dict(logits=np.zeros((1, 3), np.float32)), frequency=2.0**-31,
                                   logits_mode="processed",
                                   top=3, count_list=[[(0, most), (0, most), (1, -most - 1), (1, -9)]]))


def test_penalties_leave_masked_tokens_alone(backend, reference):
    x = np.float32([[1.0, 2.0, -3e38, 3.0]] * 2)
    case = Case(dict(logits=x), seed=1, allow=fs.pack_bits([[True, False, True, True]] * 2), frequency=[-3e38, 0.0],
                presence=[0.0, 1.0], repetition=[1.0, 2.0], counts=np.int32([[0, 9, 9, 0]] * 2),
                logits_mode="processed", top=4)
    assert not (check(backend, reference, case).status & fs.Row.NAN).any()


@pytest.mark.parametrize("base", [40.0, -40.0])
def test_log_z_beyond_its_reach_says_so_and_cuts_do_without(backend, reference, base):
    skip_without_parts(backend)
    x = np.float32(base) + np.float32([[0.0, -0.01, -0.02, -40.0], [0.0, -1e-4, -1e-4, -2e-4]])
    watch = [[0, 3], [1]]
    for mode in ("sample", "without_replacement"):
        rules = dict(seed=2, mode=mode, samples=2, temperature=1e-4, top=4, watch=watch)
        for cut in (dict(top_p=0.5123), dict(top_k=2), dict(min_p=0.3, top_p=0.9511, list_capacity=4)):
            check_merged(backend, reference, Case(dict(logits=x), logits_mode="cut", **rules, **cut), [1])
        for cut in (dict(), dict(top_p=0.5123)):
            case = Case(dict(logits=x), logits_mode="processed", **rules, **cut)
            expected = case.run(reference).arrays()
            for name in ("log_z", "logprob", "top_logprob", "watch_logprob"):
                expected[name] = np.full_like(expected[name], np.nan)
            expected["status"] = expected["status"] | np.uint32(fs.Row.FAR)
            assert_same(case.run(backend), expected)
            assert_same(merged(backend, case, [1]), expected)
    check(backend, reference, Case(dict(logits=x), logits_mode="raw", temperature=1e-4, seed=2, top=4, watch=watch))


@pytest.mark.parametrize("base", [40.0, -40.0])
def test_groups_whose_masses_are_beyond_their_reach_have_the_best_token(backend, base):
    skip_without_parts(backend)
    rows = np.float32(base) + np.tile(np.float32([-0.03, -0.02, -0.01, 0.0, -40.0]), (40, 1))
    for mode in ("group_parallel", "group_online"):
        case = Case(dict(logits=rows), mode=mode, group_size=1, seed=3, temperature=1e-4)
        assert (case.run(backend).tokens == 3).all()
        if mode == "group_parallel":
            assert (merged(backend, case, [1, 2, 3]).tokens == 3).all()


# ----------------------------------------------------------------------------------------------------- invariance ----


def bits(result):
    arrays = {name: array.copy() for name, array in result.arrays().items()}
    arrays["status"] &= ~HOW
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.fixture(scope="module")
def wide_case():
    rng = np.random.default_rng(7)
    head, hidden = integers(rng, 7, 32, 5003)
    return Case(head, hidden, seed=5, samples=2, temperature=[1, 0.7, 2, 0, 1, 1, 1], top=20, logits_mode="processed",
                top_k=[0, 50, 0, 0, 0, 7, 0], top_p=[1, 1, 0.9511, 1, 1, 0.7771, 1], min_p=[0, 0, 0, 0, 0.0513, 0, 0],
                exact_rank=True)


@pytest.mark.parametrize("name", BACKENDS)
def test_threads_and_blocks_change_no_bit(name, wide_case):
    expected = bits(wide_case.run(open_backend(name)))
    for threads in (1, 2, 5):
        for block in (128, 384, 1000, 8192):
            assert bits(wide_case.run(open_backend(name, threads=threads, block=block))) == expected


@pytest.mark.parametrize("name", BACKENDS)
def test_the_callers_threads_change_no_bit(name, wide_case):
    def backwards(count, task):
        for i in reversed(range(count)):
            task(i)

    expected = bits(wide_case.run(open_backend(name)))
    assert bits(wide_case.run(open_backend(name, threads=3, parallel_for=backwards))) == expected


@pytest.mark.parametrize("name", BACKENDS)
def test_the_callers_memory_changes_no_bit(name, wide_case):
    # With one thread: which rows need a second pass depends on which thread had which tokens.
    context = open_backend(name, threads=1)
    head, batch, out = wide_case.objects()
    try:
        size, every = context.work_size(head, batch, out=out)
    except fs.Error as error:
        pytest.skip("work_size: %s" % error)
    expected = wide_case.run(context)
    assert bits(wide_case.run(open_backend(name, threads=1, work=every, fallback_bytes=0))) == bits(expected)
    # Rows that need a second pass have no memory for it here, and say so.
    bare = wide_case.run(open_backend(name, threads=1, work=size))
    incomplete = (bare.status & fs.Row.INCOMPLETE) != 0
    assert (incomplete == ((expected.status & fs.Row.FALLBACK) != 0)).all()
    assert (bare.tokens[~incomplete] == expected.tokens[~incomplete]).all() and (bare.tokens[incomplete] == -1).all()
    with pytest.raises(fs.Error, match=r"\d+ bytes"):
        wide_case.run(open_backend(name, work=64))


def test_a_row_alone_is_the_row_in_its_batch(backend, wide_case):
    together = wide_case.run(backend)
    for b in range(7):
        alone = Case(wide_case.head, wide_case.hidden[b : b + 1], top=20, logits_mode="processed",
                     slot=np.array([b], np.int32), slots=7, **wide_case.rules).run(backend)
        for name, array in alone.arrays().items():
            if name != "status":
                assert array.tobytes() == together.arrays()[name][b : b + 1].tobytes(), name


def test_calls_leave_nothing_behind(backend, wide_case):
    expected = bits(wide_case.run(backend))
    for seed in range(10):
        random_case(np.random.default_rng(seed)).run(backend)
        assert bits(wide_case.run(backend)) == expected


# --------------------------------------------------------------------------------------------------------- shards ----


def shards(case, cuts):
    """The case's head split at these rows: keywords of one head per part."""
    head = case.head
    size = head["weights"].shape[0] if "weights" in head else head["logits"].shape[1]
    first = head.get("first_token", 0)
    edges = [0] + sorted(cuts) + [size]
    for v0, v1 in zip(edges, edges[1:]):
        part = dict(head, first_token=first + v0, vocab=head.get("vocab") or first + size)
        if "weights" in head:
            part["weights"] = head["weights"][v0:v1]
        else:
            part["logits"] = head["logits"][:, v0:v1]
        if "bias" in head:
            part["bias"] = head["bias"][v0:v1]
        yield part


def merged(backend, case, cuts):
    parts, heads = [], list(shards(case, cuts))
    for part in heads:
        head, batch, out = case.objects(part)
        parts.append(backend.partial(head, batch, out=out))
    assert len({len(part) for part in parts}) == 1
    head, batch, out = case.objects(heads[-1])
    return backend.merge(parts[::-1], head, batch, out=out, on_error="status")


def skip_without_parts(backend):
    try:
        backend.partial(fs.Head(logits=np.zeros((1, 4), np.float32)))
    except fs.Error as error:
        if error.name == "unsupported":
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("seed", range(120))
def test_merged_shards_are_the_whole(backend, reference, seed):
    skip_without_parts(backend)
    rng = np.random.default_rng(5000 + seed)
    case = random_case(rng, mode=pick(rng, "sample", "sample", "without_replacement", "score"), whole=True)
    size = case.head["weights"].shape[0] if "weights" in case.head else case.head["logits"].shape[1]
    case.rules.update(list_capacity=size + 1, exact_rank=True)
    whole = case.run(reference)
    cuts = [int(c) for c in rng.integers(1, size, rng.integers(0, 5))] if size > 1 else []
    assert_same(merged(backend, case, cuts), whole.arrays(), exact_rank=True)


def test_aligned_shards_have_the_same_bits(backend, wide_case):
    skip_without_parts(backend)
    rules = dict(wide_case.rules, list_capacity=5004)
    case = Case(wide_case.head, wide_case.hidden, logits_mode="processed", top=20, **rules)
    expected = bits(case.run(backend))
    for cuts in ([16], [128, 2560], [48, 64, 4000], list(range(16, 5000, 496))):
        assert bits(merged(backend, case, cuts)) == expected


def test_parts_of_other_arguments_are_refused(backend):
    skip_without_parts(backend)
    rng = np.random.default_rng(8)
    head = fs.Head(logits=gaussian(rng, 3, 100)["logits"])
    part = backend.partial(head, seed=1)
    for rules in (dict(samples=2), dict(outputs=["log_z"]), dict(top=4)):
        with pytest.raises(fs.Error) as error:
            backend.merge([part, backend.partial(head, seed=1, **rules)], head, seed=1)
        assert error.value.name == "peer"


def test_merged_groups_draw_from_the_softmax(backend):
    """The paper's B.4: parts are groups. 20,000 rows, 12 tokens; 99.99th percentile of chi-squared with 11 degrees."""
    skip_without_parts(backend)
    x = np.linspace(-2, 2, 12).astype(np.float32)
    rows = np.ascontiguousarray(np.broadcast_to(x, (20000, 12)))
    case = Case(dict(logits=rows), mode="group_parallel", group_size=12, seed=99)
    parts, heads = [], list(shards(case, [5, 6]))
    for part in heads:
        head, batch, out = case.objects(part)
        parts.append(backend.partial(head, batch, out=out))
    head, batch, out = case.objects(heads[0])
    seen = np.bincount(backend.merge(parts, head, batch, out=out).tokens[:, 0], minlength=12)
    expected = 20000 * np.exp(x) / np.exp(x).sum()
    assert ((seen - expected) ** 2 / expected).sum() < 37.4


def test_lists_too_short_to_prove_a_cut_say_so(backend, reference):
    skip_without_parts(backend)
    rng = np.random.default_rng(9)
    case = Case(gaussian(rng, 4, 20000), logits_mode="cut", seed=1, samples=8, top_p=0.99137, temperature=3.0,
                list_capacity=16)
    result, whole = merged(backend, case, [7000, 13000]), case.run(reference)
    for b in range(4):
        if result.status[b] & fs.Row.INCOMPLETE:
            assert (result.tokens[b] == -1).all() and np.isnan(result.logprob[b]).all()
        else:
            assert (result.tokens[b] == whole.tokens[b]).all()
    assert (result.status & fs.Row.INCOMPLETE).any()
