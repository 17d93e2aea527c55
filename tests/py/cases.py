"""One case: a head, hidden states and rules as plain numpy data, so that the binding and the model can both run it."""
import numpy as np

import flashsampling as fs

SENTINEL = 0xA5  # every byte of every output before the call


class Case:
    """head: keywords of fs.Head; rules: keywords of fs.Batch; logits_mode: which kind; top: how many of the best;
    survivors: how many of those that cuts leave; outputs: what is asked for beside these, tokens, status and the
    watched."""

    def __init__(self, head, hidden=None, logits_mode="raw", top=0, tokens="i32", outputs="all", survivors=0, **rules):
        self.head, self.hidden, self.rules, self.survivors = head, hidden, rules, survivors
        self.logits_mode, self.top, self.tokens, self.outputs = logits_mode, top, tokens, outputs

    def rows(self):
        return len(self.head["logits"]) if self.head.get("logits") is not None else len(self.hidden)

    def slots(self):
        return self.rules.get("slots") or self.rows()

    def copy(self):
        """Another case of the same arrays, whose rules can be changed."""
        return Case(dict(self.head), self.hidden, logits_mode=self.logits_mode, top=self.top, tokens=self.tokens,
                    outputs=self.outputs, survivors=self.survivors, **self.rules)

    def objects(self, head=None):
        """Head, Batch and a Result whose every byte is a sentinel."""
        head = fs.Head(**(head or self.head))
        batch = fs.Batch(head, self.hidden, **{**self.rules, "slots": self.slots()})
        out = fs.Result(batch, self.outputs, top=self.top, logits_mode=self.logits_mode, tokens=self.tokens,
                        survivors=self.survivors)
        for array in out.arrays().values():
            array.view(np.uint8)[...] = SENTINEL
        return head, batch, out

    def run(self, context):
        head, batch, out = self.objects()
        return context.sample(head, batch, out=out, on_error="status")


def written(array):
    """No element is still the sentinel."""
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)
    return not (raw == SENTINEL).all(axis=1).any()


EXACT = ("tokens", "status", "top_token", "survivor_token", "survivor_count")


HOW = np.uint32(fs.Row.FALLBACK | fs.Row.RANK_BOUND)  # bits about how a row was computed, not about the row


RANK_DEPTH = 256  # FS_RANK_DEPTH in src/core/needs.h: every list knows ranks up to it


def assert_ranks(rank, want, bound, exact):
    """Equal, but that in a row with the bit, `bound`, ranks beyond what every list knows may be lower bounds; the row
    has such a rank. With the flag, `exact`, no row has the bit."""
    assert not (exact and bound.any()), "RANK_BOUND in spite of EXACT_RANK"
    assert (rank[bound] > RANK_DEPTH).any(axis=1).all(), "RANK_BOUND, but every rank is within what lists know"
    lower = bound[:, None] & (rank > RANK_DEPTH) & (rank < want)
    np.testing.assert_array_equal(np.where(lower, want, rank), want, err_msg="rank")


def assert_same(result, expected, tolerance=2e-6, exact_rank=False):
    """Integers equal, ranks as assert_ranks says; floats NaN together, infinite together, else within the tolerance,
    relative or absolute."""
    for name, array in result.arrays().items():
        want = np.asarray(expected[name])
        assert written(array), "%s: not every element was written" % name
        if name == "status":
            array, want = array & ~HOW, want & ~HOW
        if name == "rank":
            assert_ranks(array, want, result.status & fs.Row.RANK_BOUND != 0, exact_rank)
        elif name in EXACT:
            np.testing.assert_array_equal(array, want, err_msg=name)
        else:
            with np.errstate(over="ignore"):
                want = want.astype(np.float32)
            np.testing.assert_allclose(array, want, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=name)


# ------------------------------------------------------------------------------------------------- random cases ----


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def strided(rng, array):
    """The same values, perhaps with a gap after every row."""
    if rng.random() < 0.5:
        return array
    wide = np.zeros((array.shape[0], array.shape[1] + int(rng.integers(1, 9))), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


def stored_as(array, dtype):
    if dtype == "bf16":
        return fs.to_bf16(array)
    return array.astype(np.float16 if dtype == "f16" else np.float32)


def random_logits(rng, rows, vocab):
    """Gaussian, on a coarse grid (ties), equal, or peaked."""
    kind = rng.integers(5)
    x = rng.normal(0, rng.choice([1.0, 3.0, 8.0]), (rows, vocab))
    if kind == 1:
        x = np.round(x * 2) / 2
    elif kind == 2:
        x[:] = 1.25
    elif kind == 3:
        x[np.arange(rows), rng.integers(0, vocab, rows)] += 15
    return x.astype(np.float32)


def random_head(rng, rows, vocab, dim=None, whole=False, kind=None):
    """Keywords of a head, of "weights" or "logits" if `kind` says so, and hidden states, with `whole` of all there is
    of a vocabulary. Dot products are sums of small integers, exact in float in any order."""
    dtype = pick(rng, "f32", "f16", "bf16")
    first = 0 if whole else int(pick(rng, 0, 0, 16, 128, int(rng.integers(1, 500))))
    head = dict(dtype=dtype, first_token=first)
    hidden = None
    if kind == "logits" or kind is None and rng.random() < 0.5:
        head["logits"] = strided(rng, stored_as(random_logits(rng, rows, vocab), dtype))
    else:
        dim = dim or int(rng.integers(1, 70))
        head["weights"] = strided(rng, stored_as(rng.integers(-4, 5, (vocab, dim)) / 4, dtype))
        hidden = strided(rng, stored_as(rng.integers(-4, 5, (rows, dim)) / 4, pick(rng, "f32", "f16", "bf16")))
    if rng.random() < 0.3:
        head["vocab"] = first + int(rng.integers(max(1, vocab - 40), vocab + 1))
    if rng.random() < 0.3:
        head["bias"] = (rng.integers(-8, 9, vocab) / 4).astype(np.float32)
    if rng.random() < 0.3:
        head["round_to"] = pick(rng, "bf16", "f16")
    if rng.random() < 0.3:
        head["scale"], head["post_scale"] = float(pick(rng, 0.5, 1.7, 2.0)), float(pick(rng, 1.0, 0.3))
    if rng.random() < 0.2:
        head["softcap"] = float(pick(rng, 5.0, 30.0))
    return head, hidden


def per_slot(rng, slots, values, bad=()):
    """Nothing, a scalar or an array; seldom with a bad value in it."""
    kind = rng.integers(3)
    if kind == 0:
        return None
    if kind == 1:
        return pick(rng, *values)
    array = [pick(rng, *values) for _ in range(slots)]
    if bad and rng.random() < 0.2:
        array[rng.integers(slots)] = pick(rng, *bad)
    return np.array(array)


def random_cuts(rng, slots, vocab):
    nan, inf = float("nan"), float("inf")
    # The p are no fractions of small counts, so that no cut among equal logits hangs on the last bit of a sum.
    return dict(
        top_k=per_slot(rng, slots, (-3, 0, 1, 2, 7, 40, vocab - 1, vocab, vocab + 9)),
        top_p=per_slot(rng, slots, (0.0, 1e-6, 0.1371, 0.5123, 0.7771, 0.9511, 0.99137, 1.0, 1.000005),
                       (nan, -0.1, 1.01, 95.0, inf)),
        min_p=per_slot(rng, slots, (0.0, 0.0, 1e-6, 0.0513, 0.517, 1.0), (nan, -0.1, 1.5)),
    )


def random_rules(rng, rows, first, vocab, mode=None):
    """Keywords of a batch over ids [first, vocab)."""
    nan, inf = float("nan"), float("inf")
    slots = int(pick(rng, rows, rows, rows + 3))
    rules = dict(slots=slots, mode=mode or pick(rng, "sample", "sample", "without_replacement", "score",
                                               "group_parallel", "group_online"))
    rules["temperature"] = per_slot(rng, slots, (0.0, 0.001, 0.5, 0.7, 1.0, 1.5, 100.0), (nan, -1.0, inf, 1e-45))
    if rules["mode"].startswith("group"):
        rules["group_size"] = int(pick(rng, 1, 16, 50, 128, 10**6))
    else:
        rules["samples"] = int(pick(rng, 1, 1, 2, 5))
        rules.update(random_cuts(rng, slots, vocab - first))
        rules["joint_top_p"] = bool(rng.integers(2))
        rules.update({name: True for name in ("keep_ties_top_k", "keep_ties_top_p") if rng.random() < 0.4})
    rules.update({name: True for name in ("min_p_last", "cut_before_temperature", "edits_last", "rank_of_ties")
                  if rng.random() < 0.3})
    if rules["mode"] == "score":
        rules["score_tokens"] = rng.integers(first, vocab, (rows, rules["samples"])).astype(np.int32)
        if rng.random() < 0.2:
            rules["score_tokens"][rng.integers(rows), 0] = pick(rng, -1, vocab, 10**6)
    if rng.random() < 0.2:
        rules["noise"] = "fast"
    rules["seed"] = pick(rng, int(rng.integers(2**63)), rng.integers(0, 2**63, slots).astype(np.uint64))
    rules["substream"] = per_slot(rng, slots, (0, 1, 2**32 - 1))
    rules["position"] = pick(rng, 3, rng.integers(0, 2**40, rows).astype(np.uint64))
    rules["fallback_token"] = pick(rng, -1, -7)
    if slots > rows or rng.random() < 0.3:
        rules["slot"] = rng.permutation(slots)[:rows].astype(pick(rng, np.int32, np.int64))
        if rng.random() < 0.3:
            rules["slot"][rng.integers(rows)] = pick(rng, -1, -1, -2, slots)
        if rng.random() < 0.1 and rules["slot"].dtype == np.int64:
            rules["slot"][rng.integers(rows)] = pick(rng, 2**32, 2**32 - 1, -(2**40), 2**62)
    random_edits(rng, rules, rows, slots, first, vocab)
    random_penalties(rng, rules, slots, first, vocab)
    if rng.random() < 0.4:
        watched = lambda: [int(t) for t in rng.integers(max(0, first - 3), vocab, rng.integers(4))]
        rules["watch"] = [watched() for _ in range(rows)]
        rules["watch"][0].append(first)
    plant_bad_tokens(rng, rules, rows, slots, vocab)
    if rng.random() < 0.15:
        rules["limits"] = dict(absent=int(rng.integers(64)) & int(rng.integers(64)), top_k=int(pick(rng, 0, 0, 3, 50)))
    return {name: value for name, value in rules.items() if value is not None}


def random_edits(rng, rules, rows, slots, first, vocab):
    inf = float("inf")
    if rng.random() < 0.3:
        masks = rows + 1
        allow = rng.random((masks, vocab)) < rng.choice([0.9, 0.3, 0.02])
        rules["allow"] = strided(rng, fs.pack_bits(allow))
        if rng.random() < 0.5:
            rules["allow_index"] = rng.integers(-1, masks, rows).astype(np.int32)
    if rng.random() < 0.3:
        bias = lambda: float(pick(rng, -inf, -inf, 2.5, -1.25, float(np.float32(rng.normal()))))
        line = lambda: [(int(rng.integers(max(0, first - 5), vocab)), bias()) for _ in range(rng.integers(9))]
        if rng.random() < 0.5:
            rules["edits"] = [line() for _ in range(rows)]
        else:
            rules["padded_edits"] = padded(rng, [line() for _ in range(slots)])


def padded(rng, lines):
    """Lists of (token, bias) side by side, with room for more that nobody may look at: (count, token, bias)."""
    columns = max(1, max(map(len, lines))) + int(rng.integers(3))
    token = np.full((len(lines), columns), 10**9, np.int32)
    bias = np.full((len(lines), columns), np.nan, np.float32)
    for s, line in enumerate(lines):
        for i, entry in enumerate(line):
            token[s, i], bias[s, i] = entry
    count = np.array(list(map(len, lines)), np.int32)
    if rng.random() < 0.15:
        count[rng.integers(len(lines))] = pick(rng, -1, columns + 1, 2**31 - 1, -(2**31))
    return count, token, bias


def plant_bad_tokens(rng, rules, rows, slots, vocab):
    """Seldom one token that is none, in one of the lists there are."""
    bad = int(pick(rng, -1, vocab, 10**9, -(2**31)))
    if rng.random() > 0.1:
        return
    if rules.get("edits"):
        rules["edits"][rng.integers(rows)].append((bad, 0.5))
    elif rules.get("padded_edits") is not None:
        rules["padded_edits"][1][rng.integers(slots), 0] = bad
    elif rules.get("count_list"):
        rules["count_list"][rng.integers(slots)].append((bad, 1))
    elif rules.get("watch"):
        rules["watch"][rng.integers(rows)].append(bad)


def random_penalties(rng, rules, slots, first, vocab):
    nan, inf = float("nan"), float("inf")
    if rng.random() < 0.5:
        return
    rules["repetition"] = per_slot(rng, slots, (1.0, 1.3, 0.7), (0.0, -1.0, nan, inf))
    rules["frequency"] = per_slot(rng, slots, (0.0, 0.4, -0.3), (nan, inf))
    rules["presence"] = per_slot(rng, slots, (0.0, 0.6, -0.2), (nan, -inf))
    if rng.random() < 0.6:
        rules["seen"] = strided(rng, fs.pack_bits(rng.random((slots, vocab)) < 0.3))
    kind = rng.integers(3)
    if kind == 1:
        rules["counts"] = strided(rng, (rng.integers(0, 4, (slots, vocab)) * (rng.random((slots, vocab)) < 0.2))
                                  .astype(np.int32))
    elif kind == 2:
        rules["count_list"] = [[(int(t), int(rng.integers(0, 4))) for t in rng.integers(first, vocab, rng.integers(9))]
                               for _ in range(slots)]


def random_case(rng, mode=None, vocab=None, dim=None, whole=False, kind=None, rows=None):
    rows, size = rows or int(rng.integers(1, 6)), vocab or int(rng.integers(1, 300))
    head, hidden = random_head(rng, rows, size, dim, whole, kind)
    vocab = head.get("vocab") or head["first_token"] + size
    rules = random_rules(rng, rows, head["first_token"], vocab, mode)
    if "logits" in head and head["dtype"] == "f32" and rng.random() < 0.2:
        plant(rng, head["logits"])
    case = Case(head, hidden, logits_mode=pick(rng, "raw", "processed", "cut"), top=int(pick(rng, 0, 3, 20)),
                tokens=pick(rng, "i32", "i64"), **rules)
    case.rules["exact_rank"] = bool(rng.integers(2))
    return case


def plant(rng, logits):
    """NaN, infinities and whole rows of them."""
    rows, size = logits.shape
    for value in (np.nan, -np.inf, np.inf):
        for _ in range(rng.integers(3)):
            logits[rng.integers(rows), rng.integers(size)] = value
    if rng.random() < 0.4:
        logits[rng.integers(rows)] = pick(rng, -np.inf, np.nan)
