"""Every rule of the header on the device against the CPU backend, mixed freely, from stored logits and from weights.

The logits are the same floats on both sides, stored or exact in any order of summation, so tokens, status, ranks and
top tokens must be equal without a tolerance. What the backend refuses fails."""
import numpy as np
import pytest

from rules_cases import Case, check, fs
from rules_inputs import exact_weights, gaussian, language, mixed_case, tame, through_weights
from cases import pick, random_case, stored_as

MODES = ("sample", "without_replacement", "score", "group_parallel", "group_online")
DTYPES = ("f32", "f16", "bf16")


# --------------------------------------------------------------------------------------------- one rule at a time ----


def spread(rows, *values):
    """A value per row, in turn."""
    return np.array([values[b % len(values)] for b in range(rows)])


def bits(seed, rows, vocab, share):
    return fs.pack_bits(np.random.default_rng(seed).random((rows, vocab)) < share)


def lines(seed, rows, vocab, values, most=12):
    """Per row a list of (token, value); an empty one among them."""
    rng = np.random.default_rng(seed)
    return [[(int(t), pick(rng, *values)) for t in rng.integers(0, vocab, b % most)] for b in range(rows)]


def padded(seed, rows, vocab):
    given = lines(seed, rows, vocab, (2.5, -INF, -1.25))
    token, bias = np.full((rows, 12), 10**9, np.int32), np.full((rows, 12), np.nan, np.float32)
    for b, line in enumerate(given):
        for i, entry in enumerate(line):
            token[b, i], bias[b, i] = entry
    return np.array([len(line) for line in given], np.int32), token, bias


INF = float("inf")
P = (0.9511, 0.5123, 1.0, 0.1371, 0.99137, 0.0)
K = (50, 1, 0, 7, 200, 2)
M = (0.0513, 0.0, 1.0, 0.0013, 0.517)
PENALTIES = lambda B: dict(repetition=spread(B, 1.3, 1.0, 0.7), frequency=spread(B, 0.4, -0.3, 0.0, 0.0),
                           presence=spread(B, 0.6, 0.0, -0.2, 0.0, 0.0))
# name: keywords of a batch of B rows over V tokens.
ONE = {
    "plain": lambda B, V: {},
    "greedy": lambda B, V: dict(temperature=0.0),
    "temperature": lambda B, V: dict(temperature=spread(B, 0.7, 0.0, 1.5, 0.001, 100.0)),
    "top_k": lambda B, V: dict(top_k=spread(B, *K)),
    "top_p": lambda B, V: dict(top_p=spread(B, *P)),
    "min_p": lambda B, V: dict(min_p=spread(B, *M)),
    "top_k and top_p": lambda B, V: dict(top_k=spread(B, *K), top_p=spread(B, *P[1:])),
    "joint": lambda B, V: dict(top_k=spread(B, *K), top_p=spread(B, *P[1:]), joint_top_p=True),
    "every cut": lambda B, V: dict(top_k=spread(B, *K), top_p=spread(B, *P[1:]), min_p=spread(B, *M)),
    "min_p last": lambda B, V: dict(top_k=spread(B, *K), top_p=spread(B, *P[1:]), min_p=spread(B, *M), min_p_last=True),
    "before temperature": lambda B, V: dict(top_k=spread(B, *K), top_p=spread(B, *P[1:]), min_p=spread(B, *M),
                                            temperature=spread(B, 0.7, 1.5, 0.0, 3.0), cut_before_temperature=True),
    "ties of top_k": lambda B, V: dict(top_k=spread(B, *K), keep_ties_top_k=True),
    "ties of top_p": lambda B, V: dict(top_p=spread(B, *P), keep_ties_top_p=True),
    "ties": lambda B, V: dict(top_k=spread(B, *K), top_p=spread(B, *P[1:]), keep_ties=True),
    "allow": lambda B, V: dict(allow=bits(1, B, V, 0.5)),
    "allow few": lambda B, V: dict(allow=bits(2, B, V, 0.01)),
    "allow index": lambda B, V: dict(allow=bits(3, 3, V, 0.3), allow_index=spread(B, 2, -1, 0, 1, 2)),
    "edits": lambda B, V: dict(edits=lines(4, B, V, (2.5, -INF, -1.25))),
    "padded edits": lambda B, V: dict(padded_edits=padded(5, B, V)),
    "seen": lambda B, V: dict(PENALTIES(B), seen=bits(6, B, V, 0.3)),
    "counts": lambda B, V: dict(PENALTIES(B), counts=np.random.default_rng(7).integers(-1, 3, (B, V)).astype(np.int32)),
    "count list": lambda B, V: dict(PENALTIES(B), count_list=lines(8, B, V, (1, 2, 0, -1))),
    "edits last": lambda B, V: dict(PENALTIES(B), count_list=lines(8, B, V, (1, 2)), edits_last=True,
                                    edits=lines(4, B, V, (2.5, -1.25))),
    "slots": lambda B, V: dict(slots=B + 3, slot=np.arange(B + 2, 2, -1), temperature=spread(B + 3, 0.5, 1.0, 0.0),
                               top_k=spread(B + 3, 5, 0)),
    "streams": lambda B, V: dict(substream=spread(B, 0, 1, 2**32 - 1), position=np.arange(B) * 2**33),
    "samples": lambda B, V: dict(samples=5),
    "samples of cuts": lambda B, V: dict(samples=5, top_k=spread(B, *K), top_p=spread(B, *P[1:])),
    "without replacement": lambda B, V: dict(samples=4, mode="without_replacement"),
    "without replacement of cuts": lambda B, V: dict(samples=4, mode="without_replacement", top_k=spread(B, *K)),
    "score": lambda B, V: dict(samples=3, mode="score",
                               score_tokens=np.random.default_rng(9).integers(0, V, (B, 3)).astype(np.int32)),
    "score of cuts": lambda B, V: dict(samples=3, mode="score", top_k=spread(B, *K), top_p=spread(B, *P[1:]),
                                       score_tokens=np.random.default_rng(9).integers(0, V, (B, 3)).astype(np.int32)),
    "fast noise": lambda B, V: dict(noise="fast"),
    "fast noise of cuts": lambda B, V: dict(noise="fast", top_k=spread(B, *K), top_p=spread(B, *P[1:])),
    "parallel groups": lambda B, V: dict(mode="group_parallel", group_size=128),
    "parallel groups of 50": lambda B, V: dict(mode="group_parallel", group_size=50),
    "online groups of 50": lambda B, V: dict(mode="group_online", group_size=50),
}
FIELDS = {"tokens": {}, "noisy_logit": dict(outputs=("noisy_logit",)), "max_logit": dict(outputs=("max_logit",)),
          "log_z": dict(outputs=("log_z", "max_logit")), "logit": dict(outputs=("logit",)),
          "logprob": dict(outputs=("logprob", "max_logit")), "rank": dict(outputs=("rank",)),
          "top": dict(top=20, outputs=()), "watch": dict(outputs=()), "everything": dict(outputs="all", top=20)}


def asked_for(field, rows, vocab):
    asked = dict(dict(outputs=()), **FIELDS[field])
    if field in ("watch", "everything"):
        asked["watch"] = [[(b + 7 * i) % vocab for i in range(b % 4)] + [vocab - 1] for b in range(rows)]
    return asked


def one_rule(kind, rule, field):
    """Rows without ties and rows with many, in a few shapes; what is asked for speaks of every kind of logits."""
    for rows, vocab in ((3, 200), (6, 1000), (17, 3001)):
        for grid in (0, 4):
            for logits in ("raw", "processed", "cut") if field != "tokens" else ("raw",):
                case = Case(dict(logits=gaussian(rows, rows, vocab, grid=grid)), seed=rows, logits_mode=logits,
                            **asked_for(field, rows, vocab), **ONE[rule](rows, vocab))
                name = "[%d, %d] %s%s" % (rows, vocab, logits, " of a grid" * bool(grid))
                yield name, case if kind == "stored" else through_weights(case, "bf16" if grid else "f32")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_one_result_of_plain_rows(kind, field):
    check(one_rule(kind, "plain", field))


@pytest.mark.parametrize("rule", ONE)
@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_tokens_of_one_rule(kind, rule):
    check(one_rule(kind, rule, "tokens"))


@pytest.mark.parametrize("rule", ONE)
@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_every_result_of_one_rule(kind, rule):
    check(one_rule(kind, rule, "everything"))


# ------------------------------------------------------------------------------------------------- small and wild ----


def small_cases(kind, mode, block):
    for seed in range(40 * block, 40 * block + 40):
        rng = np.random.default_rng([2, MODES.index(mode), seed])
        yield "case %d" % seed, tame(random_case(rng, mode=mode, kind=kind))


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("mode", MODES)
def test_stored_random_cases(mode, block):
    check(small_cases("logits", mode, block))


@pytest.mark.parametrize("block", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_weights_random_cases(mode, block):
    check(small_cases("weights", mode, block))


def large_cases(kind, mode, dims=(None,)):
    """Over many tiles of 128 ids, which the CTAs share in other ways at every size."""
    for seed, size in enumerate((127, 128, 129, 1000, 2500, 5003, 8191)):
        rng = np.random.default_rng([3, MODES.index(mode), seed])
        case = random_case(rng, mode=mode, kind=kind, vocab=size, dim=dims[seed % len(dims)],
                           rows=int(pick(rng, 1, 3, 8, 17)))
        yield "vocabulary %d" % size, tame(case)


@pytest.mark.parametrize("mode", MODES)
def test_stored_random_cases_over_many_tiles(mode):
    check(large_cases("logits", mode))


@pytest.mark.parametrize("mode", MODES)
def test_weights_random_cases_over_many_tiles(mode):
    check(large_cases("weights", mode, dims=(8, 64, 72, 33, 128)))


# ------------------------------------------------------------------------------------------- rows of every kind ----

ROWS = (1, 2, 7, 16, 33, 64, 70)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS + (300,))
def test_stored_rows_of_every_kind_in_one_batch(rows, dtype):
    def cases():
        for vocab in (1, 7, 129, 1000, 5003) if rows < 70 else (3001,):
            rng = np.random.default_rng([4, rows, vocab])
            head = dict(logits=stored_as(language(rng, rows, vocab), dtype), dtype=dtype)
            yield "V %d" % vocab, mixed_case(rng, head, None, rows, vocab)
            yield "V %d n 3" % vocab, mixed_case(rng, head, None, rows, vocab, samples=3,
                                                 mode=pick(rng, "sample", "without_replacement"))
    check(cases())


@pytest.mark.parametrize("dtype, hidden", [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("bf16", "f32"),
                                           ("f16", "bf16"), ("f32", "bf16")])
@pytest.mark.parametrize("rows", ROWS + (300,))
def test_weights_rows_of_every_kind_in_one_batch(rows, dtype, hidden):
    def cases():
        shapes = ((1, 8), (7, 16), (128, 64), (129, 33), (1000, 512), (5000, 72)) if rows < 70 else ((3001, 64),)
        for vocab, dim in shapes:
            rng = np.random.default_rng([5, rows, vocab])
            head, states = exact_weights(rng, rows, dim, vocab, dtype, hidden)
            yield "V %d D %d" % (vocab, dim), mixed_case(rng, head, states, rows, vocab)
            yield "V %d D %d n 3" % (vocab, dim), mixed_case(rng, head, states, rows, vocab, samples=3,
                                                             mode=pick(rng, "sample", "without_replacement"))
    check(cases())


@pytest.mark.parametrize("kind", ["stored", "weights"])
def test_a_large_vocabulary(kind):
    def cases():
        for rows, vocab in ((3, 40007), (12, 40007), (4, 151936)):
            rng = np.random.default_rng([6, rows, vocab])
            if kind == "stored":
                head, states = dict(logits=language(rng, rows, vocab)), None
            else:
                head, states = exact_weights(rng, rows, 128, vocab, "bf16", "bf16")
            yield "B %d V %d" % (rows, vocab), mixed_case(rng, head, states, rows, vocab)
    check(cases())
