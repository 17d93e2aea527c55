"""The edges of every rule on the device against the CPU backend: ties at the cut, hot ids in one tile, cuts of nothing
and of everything, rows without a token. Each from stored logits and, where they are finite, from weights."""
import numpy as np
import pytest

from rules_cases import TESTED, Call, Case, check, fs, on_cpu, wrong_elements
from rules_inputs import INF, gaussian, language, mixed_case, through_weights
from cases import stored_as

NAN, TILE, V = float("nan"), 128, 5003
KINDS = ("raw", "processed", "cut")
NEXT_TO_1 = float(np.nextafter(np.float32(1), np.float32(0)))


def ordered(rows, vocab, step=0.01, descending=True):
    """Logits that fall, or rise, with the id; row b begins elsewhere."""
    x = -step * np.arange(vocab) if descending else step * np.arange(vocab)
    return np.stack([np.roll(x, 37 * b) for b in range(rows)]).astype(np.float32)


def tied(places, others=3.0):
    """Rows whose tokens at `places` are equal and above most others: the third to the last of the first few."""
    x = gaussian(1, 6, V, 1.0)
    x[:, places] = others
    x[:, [4000, 17]] = others + 1, others + 2
    return x


def hot(tile, rows=6):
    x = gaussian(2, rows, V, 1.0)
    x[:, TILE * tile : TILE * (tile + 1)] += 10
    return x


def all_of(rows, vocab):
    return [list(range(vocab))] * rows


SPREAD = np.array([3, 130, 131, 127, 128, 2560, 5002, 999, 640, 641] + list(range(3000, 3090)))
FLAT = np.full((4, V), 0.5, np.float32)
NEARLY_FLAT = gaussian(3, 4, V, 0.01)
FEW = dict(top_k=np.array([1, 2, 3, 10, 50, 92]))
TEMPERATURES = np.array([0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0])
EVERY_P = np.array([0.0, 1e-30, 1e-6, 0.5, 0.9011, 0.99137, 1.0, 1.5])
BELOW_1 = np.array([0.99, 0.999, 0.9999, 0.999999, NEXT_TO_1, 1.0, 0.5123, 0.9511])

# name: (logits, [rules, ...]); each runs with logits raw, processed and cut.
EDGES = {
    "ties at the k-th place": (tied(SPREAD), [FEW, dict(FEW, keep_ties=True), dict(FEW, top_p=0.7771)]),
    "ties in one tile": (tied(np.arange(1280, 1408)), [FEW, dict(FEW, keep_ties=True)]),
    "ties at the edge of the nucleus": (tied(SPREAD, 9.0), [
        dict(top_p=np.array([0.1371, 0.5123, 0.7771, 0.9511, 0.99137, 0.01])),
        dict(top_p=np.array([0.1371, 0.5123, 0.7771, 0.9511, 0.99137, 0.01]), keep_ties=True)]),
    "hot ids in the first tile": (hot(0), [dict(top_k=50), dict(top_p=0.9511), dict(min_p=0.0513), dict(top_k=200)]),
    "hot ids in a tile": (hot(7), [dict(top_k=50), dict(top_p=0.9511), dict(min_p=0.0513), dict(top_k=200)]),
    "hot ids in the last tile": (hot(39), [dict(top_k=50), dict(top_p=0.9511), dict(min_p=0.0513)]),
    "every k": (gaussian(4, 8, 300), [dict(top_k=np.array([1, 2, 299, 300, 301, 2**31 - 1, -1, -(2**31)]))]),
    "every p": (gaussian(5, 8, 300), [dict(top_p=EVERY_P), dict(top_p=EVERY_P, top_k=40),
                                      dict(top_p=EVERY_P, temperature=5.0)]),
    "p just below 1": (gaussian(5, 8, 701, 0.01), [dict(top_p=BELOW_1), dict(top_p=BELOW_1, top_k=40)]),
    "p of flat rows": (np.full((8, 701), 1.25, np.float32), [dict(top_p=BELOW_1), dict(top_p=EVERY_P, min_p=1.0)]),
    "every temperature": (gaussian(6, 8, V), [
        dict(temperature=TEMPERATURES), dict(temperature=TEMPERATURES, top_k=50),
        dict(temperature=TEMPERATURES, top_p=0.9011), dict(temperature=TEMPERATURES, min_p=0.0513),
        dict(temperature=TEMPERATURES, top_k=50, top_p=0.9011, min_p=0.0013, cut_before_temperature=True)]),
    "ids descending": (ordered(4, V), [dict(top_k=50), dict(top_p=0.3), dict(min_p=0.5), dict(top_k=1000)]),
    "ids ascending": (ordered(4, V, descending=False), [dict(top_k=50), dict(top_p=0.3), dict(min_p=0.5),
                                                       dict(top_k=1000)]),
    "min_p of 1": (tied(SPREAD, 9.0), [dict(min_p=1.0), dict(min_p=NEXT_TO_1), dict(min_p=1.0, min_p_last=True),
                                             dict(min_p=1.0, temperature=0.001)]),
    "the vocabulary for a nucleus": (NEARLY_FLAT, [
        dict(temperature=100.0, top_p=0.99137), dict(temperature=100.0, top_p=NEXT_TO_1), dict(top_p=0.5123),
        dict(top_p=0.99137, samples=5), dict(min_p=0.5), dict(top_k=5000), dict(top_k=4000, top_p=0.9511)]),
    "equal logits": (FLAT, [dict(top_k=50), dict(top_p=0.5123), dict(min_p=0.5), dict(top_k=2000, top_p=0.5123),
                            dict(top_k=50, keep_ties=True), dict(top_p=0.1371, keep_ties=True), dict(temperature=0.0)]),
    "one token": (gaussian(7, 3, 1), [dict(top_k=1), dict(top_p=0.0), dict(min_p=1.0), dict(top_p=0.5)]),
    "minus zero": (np.array([[-0.0, 0.0, -0.0, 0.0]] * 3, np.float32), [dict(temperature=0.0), dict(top_k=2)]),
    "many edits of one token": (gaussian(8, 3, 400), [dict(edits=[[(5, 0.1)] * 1000 + [(6, 1e8), (6, 1.0), (6, -1e8)],
                                                                  [(t, -INF) for t in range(399)],
                                                                  [(399, 3.0), (0, 3.0)] + [(7, 0.25)] * 33])]),
    "edits of every token": (gaussian(9, 3, 400), [dict(edits=[[(t, float(t % 7)) for t in range(400)]] * 3)]),
    "watched tokens": (gaussian(10, 4, 300), [dict(watch=all_of(4, 300), top_k=9), dict(watch=[[], [5] * 40, [], []])]),
    "lists of any capacity": (NEARLY_FLAT, [dict(top_p=0.9511, list_capacity=n) for n in (1, 64, 5004)]),
}


def asked(x, rules, kind, **more):
    return Case(dict(logits=x), **{**dict(logits_mode=kind, top=60, seed=11, exact_rank=True), **more, **rules})


@pytest.mark.parametrize("kind", ["stored", "weights f32", "weights bf16"])
@pytest.mark.parametrize("edge", EDGES)
def test_an_edge(edge, kind):
    def cases():
        for i, rules in enumerate(EDGES[edge][1]):
            for logits in KINDS:
                case = asked(EDGES[edge][0], rules, logits)
                yield "rules %d %s" % (i, logits), case if kind == "stored" else through_weights(case, kind.split()[1])
    check(cases())


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("vocab", [1000, V])
def test_a_thousand_top_tokens(vocab, kind):
    x = np.concatenate([gaussian(11, 3, vocab), ordered(2, vocab), np.full((1, vocab), 2.0, np.float32)])
    rules = dict(top_k=np.array([0, 2000, 50, 0, 1500, 0]), top_p=np.array([1, 1, 1, 1, 0.9511, 0.5123]))
    cases = [asked(x, rules, logits, top=1024) for logits in KINDS]
    check(("V %d %s" % (vocab, c.logits_mode), c if kind == "stored" else through_weights(c)) for c in cases)


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_ranks_beyond_what_lists_know(exact, ties, kind):
    """The i-th best of each row, by the place it has there."""
    x = np.concatenate([gaussian(12, 3, V), gaussian(12, 2, V, grid=8), FLAT[:1]])
    order = np.argsort(-x, axis=1, kind="stable")
    given = order[:, [0, 254, 255, 256, 257, 999, 3000, V - 1]].astype(np.int32)
    rules = dict(mode="score", samples=8, score_tokens=given, rank_of_ties=ties, exact_rank=exact)
    cases = [asked(x, dict(rules, top_k=k), logits) for logits in KINDS for k in (0, 300)]
    check(("%s k %d" % (c.logits_mode, c.rules["top_k"]), c if kind == "stored" else through_weights(c)) for c in cases)


# ----------------------------------------------------------------------------------------------- masks and shards ----


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("rules", [dict(), dict(top_k=50), dict(top_p=0.9511), dict(min_p=0.0513), dict(samples=3)],
                         ids=str)
def test_masks_of_one_token_and_of_none(rules, kind):
    """The first and the last bit of a word, of a tile and of the vocabulary; two tokens; none; all."""
    tokens = [[0], [31], [32], [127], [128], [5002], [4991], [40, 3000], [], list(range(V))]
    allow = np.zeros((len(tokens), V), bool)
    for mask, allowed in zip(allow, tokens):
        mask[allowed] = True
    case = asked(gaussian(13, 10, V), dict(rules, allow=fs.pack_bits(allow)), "processed")
    check([("masks", case if kind == "stored" else through_weights(case))])
    assert on_cpu(case)["status"][8] == fs.Row.EMPTY


@pytest.mark.parametrize("first", [1, 31, 32, 100, 128, 4000])
@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_a_shard_has_rules_of_global_ids(kind, first):
    """Edits, counts and bits of ids before the shard, in it, and behind it, where rows are padding."""
    size, vocab = 1500, first + 1490
    rng = np.random.default_rng(first)
    ids = lambda: rng.integers(0, vocab, 60).tolist()
    case = Case(dict(logits=gaussian(14, 5, size), first_token=first, vocab=vocab), logits_mode="processed", top=20,
                seed=3,
                allow=fs.pack_bits(rng.random((5, vocab)) < 0.6), seen=fs.pack_bits(rng.random((5, vocab)) < 0.3),
                edits=[[(t, float(rng.normal())) for t in ids()] for _ in range(5)], repetition=1.3, frequency=0.25,
                count_list=[[(t, 2) for t in ids()] for _ in range(5)], watch=[ids() for _ in range(5)],
                top_k=np.array([0, 50, 0, 0, 7]), top_p=np.array([1, 1, 0.9511, 1, 0.5123]))
    check([("shard", case if kind == "stored" else through_weights(case))])


# ------------------------------------------------------------------------------------------------ rows that fail ----


def rows_that_fail(mode="sample"):
    x = gaussian(15, 16, 900)
    ones = [1.0] * 16
    given = dict(score_tokens=np.tile(np.int32([[3]]), (16, 1))) if mode == "score" else {}
    slot = np.array(list(range(12)) + [-1, -2, 16, 2**31 - 1])
    put = lambda values, at, value: [value if i == at else v for i, v in enumerate(values)]
    return Case(dict(logits=x), logits_mode="processed", top=5, seed=1, fallback_token=-9, slot=slot, slots=16,
                mode=mode,
                temperature=put(put(put(ones, 0, -1.0), 1, NAN), 2, 1e-39), top_p=put(put(ones, 3, NAN), 4, -0.5),
                min_p=put(put([0.0] * 16, 5, 1.5), 6, NAN), repetition=put(put(ones, 7, 0.0), 8, INF),
                frequency=put([0.0] * 16, 9, NAN), presence=put([0.0] * 16, 10, -INF),
                counts=np.zeros((16, 900), np.int32), watch=[[1, 2]] * 16, **given)


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("mode", ["sample", "without_replacement", "score"])
def test_rows_whose_values_are_bad(mode, kind):
    case = rows_that_fail(mode)
    check([(mode, case if kind == "stored" else through_weights(case))])
    assert (on_cpu(case)["status"] & fs.Row.NO_TOKEN != 0).sum() == 15


BAD = {
    "edits": lambda bad: dict(edits=[[(0, 1.0)], [(1, 1.0), (bad, 2.0)], [(2, -INF)], []]),
    "padded": lambda bad: dict(padded_edits=(np.int32([1, 2, 1, 0]), np.int32([[0, bad], [1, bad], [2, bad], [5, 6]]),
                                             np.ones((4, 2), np.float32))),
    "padded counts": lambda bad: dict(padded_edits=(np.int32([1, -1, 3, 2]), np.zeros((4, 2), np.int32),
                                                    np.ones((4, 2), np.float32))),
    "counts": lambda bad: dict(count_list=[[(0, 1)], [(bad, 1)], [], [(3, 1)]], frequency=0.5),
    "watch": lambda bad: dict(watch=[[0], [3, bad, 4], [1], []]),
    "given": lambda bad: dict(mode="score", samples=2, score_tokens=np.int32([[3, 4], [5, bad], [1, 1], [0, 2]])),
    "masks": lambda bad: dict(allow=fs.pack_bits(np.ones((4, 40), bool)), allow_index=np.int32([0, bad, -1, 3])),
}


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("bad", [-2, 40, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("what", BAD)
def test_a_bad_entry_of_a_list_is_its_rows_affair(what, bad, kind):
    case = Case(dict(logits=gaussian(16, 4, 40)), seed=5, top=4, logits_mode="processed", **BAD[what](bad))
    check([("%s %d" % (what, bad), case if kind == "stored" else through_weights(case))])
    assert on_cpu(case)["status"][[0, 1]].tolist() == [0, on_cpu(case)["status"][1]] and on_cpu(case)["status"][1] != 0


@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_rows_that_break_a_promise(kind):
    bits = fs.Rule
    every = dict(top_k=np.array([0, 5, 0, 0, 0, 0, 0, 60]), top_p=np.array([1, 1, 0.9011, 1, 1, 1, 1, 1]),
                 min_p=np.array([0, 0, 0, 0.0513, 0, 0, 0, 0]), allow=fs.pack_bits(np.ones((1, 900), bool)),
                 allow_index=np.int32([-1, -1, -1, -1, 0, -1, -1, -1]), edits=[[]] * 5 + [[(3, 1.0)]] + [[]] * 2,
                 repetition=np.array([1, 1, 1, 1, 1, 1, 1.3, 1]), seen=fs.pack_bits(np.ones((8, 900), bool)))
    limits = [dict(absent=int(bit)) for bit in bits] + [dict(absent=int(sum(bits))), dict(top_k=50), dict(top_k=4),
                                                        dict(top_k=60, edits=1, counts=0, watched=0)]
    cases = [asked(gaussian(17, 8, 900), dict(every, limits=limit), "processed") for limit in limits]
    check((str(c.rules["limits"]), c if kind == "stored" else through_weights(c)) for c in cases)
    assert (on_cpu(cases[6])["status"] != 0).tolist() == [False] + [True] * 7


def test_stored_nan_and_infinity():
    x = gaussian(18, 12, 900)
    x[0, 3], x[1, [9, 500]], x[2, :], x[3] = NAN, INF, INF, -INF
    x[4], x[5, 7], x[5, 8], x[6, ::2] = NAN, INF, NAN, -INF
    x[7, 1:], x[8, 5:], x[9, 640] = -INF, NAN, 3e38
    rules = [dict(), dict(top_k=4), dict(top_p=0.5123), dict(min_p=0.517), dict(temperature=0.0), dict(top_p=0.0),
             dict(mode="without_replacement"), dict(keep_ties=True, top_k=2), dict(temperature=100.0, top_k=800)]
    edits = [[]] * 10 + [[(44, INF)], [(3, INF), (3, -INF), (5, -INF), (5, INF)]]
    check(("%s %s" % (own, kind), asked(x, {"samples": 3, **own}, kind, edits=edits, watch=[[0, 7, 640]] * 12))
          for own in rules for kind in KINDS)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_weights_of_nan_and_infinity(dtype):
    """A row of W that is NaN has no logit; hidden states of one sign make those of an infinite one the same sign."""
    rng = np.random.default_rng(19)
    W, H = rng.integers(-4, 5, (900, 16)) / 4, np.abs(rng.integers(1, 5, (5, 16)) / 4)
    W[3], W[200], W[899] = NAN, -INF, NAN
    for plus in (False, True):
        W[77] = INF if plus else 0
        head = dict(weights=stored_as(W.astype(np.float32), dtype), dtype=dtype)
        check(("%s %s" % (rules, kind), Case(head, stored_as(H, dtype), logits_mode=kind, top=9, seed=2, samples=2,
                                             **rules))
              for rules in (dict(), dict(top_k=5), dict(top_p=0.5123), dict(temperature=0.0)) for kind in KINDS)


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("base", [40.0, -40.0])
def test_log_z_beyond_its_reach(base, kind):
    x = np.float32(base) + np.float32([[0.0, -0.01, -0.02, -40.0], [0.0, -1e-4, -1e-4, -2e-4]])
    rules = [dict(), dict(top_p=0.5123), dict(top_k=2), dict(min_p=0.3, top_p=0.9511)]
    cases = [asked(x, dict(own, samples=2, mode=mode, temperature=1e-4, watch=[[0, 3], [1]]), logits)
             for own in rules for mode in ("sample", "without_replacement") for logits in KINDS]
    check(("%d" % i, c if kind == "stored" else through_weights(c)) for i, c in enumerate(cases))


# ----------------------------------------------------------------------------------------------------- many of ... ----


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("mode", ["sample", "without_replacement", "score"])
def test_a_thousand_samples(mode, kind):
    tokens = np.random.default_rng(20).integers(0, 600, (3, 1024)).astype(np.int32)
    given = dict(score_tokens=tokens) if mode == "score" else {}
    case = asked(gaussian(20, 3, 600), dict(samples=1024, mode=mode, top_k=np.array([0, 50, 0]),
                                            top_p=np.array([1, 1, 0.9511]), **given), "cut")
    check([(mode, case if kind == "stored" else through_weights(case))])


@pytest.mark.parametrize("kind", ["stored", "weights"])
@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("size", [1, 7, 100, 128, 1000, 10**6])
def test_groups_of_any_size(size, mode, kind):
    allow = np.ones((4, 2100), bool)
    allow[:, 300:1500] = False
    rules = dict(mode=mode, group_size=size, temperature=np.array([0.0, 0.5, 1.0, 3.0]), allow=fs.pack_bits(allow),
                 allow_index=np.int32([-1, 0, 1, -1]))
    cases = [asked(gaussian(21, 4, 2100), rules, logits) for logits in ("raw", "processed")]
    check((c.logits_mode, c if kind == "stored" else through_weights(c)) for c in cases)


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("size", [1, 3001, 20000])
def test_groups_of_many_windows_and_of_many_warps(size, mode):
    """A CTA takes 512 groups at a time, and up to 32 of its warps take a group: 79 times, and 8 and 32 warps, here."""
    rules = dict(mode=mode, group_size=size, temperature=np.array([0.0, 0.5, 1.0]))
    check([("stored", asked(gaussian(24, 3, 40011), rules, "processed"))])


@pytest.mark.parametrize("rows", [1027, 2558])
def test_stored_more_rows_than_a_launch_takes(rows):
    rng = np.random.default_rng(rows)
    check([("rows", mixed_case(rng, dict(logits=language(rng, rows, 300)), None, rows, 300))])


def test_weights_more_rows_than_a_launch_takes():
    rng = np.random.default_rng(22)
    head = dict(weights=(rng.integers(-4, 5, (500, 16)) / 2).astype(np.float32))
    check([("rows", mixed_case(rng, head, (rng.integers(-4, 5, (1027, 16)) / 4).astype(np.float32), 1027, 500))])


@pytest.mark.parametrize("without", ["status", "tokens"])
def test_stored_results_that_are_not_wanted(without):
    """A call without statuses, and in score mode one without tokens, writes the same of the rest."""
    given = np.int32([[5], [6], [7]])
    case = Case(dict(logits=gaussian(23, 3, 500)), mode="score", score_tokens=given, top=5, logits_mode="cut", top_k=50)
    call = Call(case)
    arrays = {name: array for name, array in call.out.arrays().items() if name != without}
    out = fs.Result.into(call.batch, arrays, logits_mode="cut")
    TESTED.sample(call.head, call.batch, out=out, on_error="status")
    want, missing = on_cpu(case), call.whole[without].clone()
    got = {name: array.cpu().numpy() for name, array in arrays.items()}
    got[without] = want[without]
    assert not wrong_elements(case, got, want)
    assert (missing == call.whole[without]).all() and (missing == missing[0]).all()


def test_weights_of_ids_beyond_twenty_bits_are_edited():
    """A shard whose ids need more bits than the tables of edits have: what is banned there is not drawn."""
    torch = pytest.importorskip("torch")
    first = 1 << 20
    w = torch.from_numpy((np.random.default_rng(25).integers(-4, 5, (4096, 64)) / 8).astype(np.float32)).cuda().bfloat16()
    h, greedy = w[:1] * 4, torch.zeros(1, device="cuda")
    head = fs.Head(w, first_token=first, vocab=first + 4096)
    best = int(TESTED.sample(head, h, temperature=greedy).tokens)
    offset = torch.tensor([0, 1], dtype=torch.int64, device="cuda")
    ban = offset, torch.tensor([best], dtype=torch.int32, device="cuda"), torch.tensor([-INF], device="cuda")
    logits = (h.float() @ w.float().T)[0]
    logits[best - first] = -INF
    assert int(TESTED.sample(head, h, temperature=greedy, edits=ban).tokens) == first + int(logits.argmax())
