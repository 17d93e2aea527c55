"""Logits, weights and rules for the tests of every rule, as numpy data."""
import numpy as np

from rules_cases import OFF, Case, fs
from cases import pick, stored_as, strided

INF = float("inf")

# -------------------------------------------------------------------------------------------- logits and weights ----


def gaussian(seed, rows, vocab, scale=3.0, grid=0):
    """[rows, vocab] normal ones; with a grid multiples of 1 / grid, many of them equal."""
    x = np.random.default_rng(seed).normal(0, scale, (rows, vocab))
    return (np.round(x * grid) / grid if grid else x).astype(np.float32)


def language(rng, rows, vocab):
    """[rows, vocab]: p_max .2 to .6 and a Zipf tail over ids in random order; some rows flat."""
    x = np.empty((rows, vocab), np.float32)
    own = -1.1 * np.log(np.arange(1, vocab + 1))
    others = np.exp(own[1:]).sum() or 1.0
    for b in range(rows):
        peak = rng.uniform(0.2, 0.6)
        own[0] = np.log(peak / (1 - peak) * others)
        x[b, rng.permutation(vocab)] = own + rng.normal(0, 0.3, vocab) if b % 7 else rng.normal(0, 0.5, vocab)
    return x


def exact_weights(rng, rows, dim, vocab, dtype, hidden_dtype):
    """A head and hidden states of small integers over powers of two: every partial sum of theirs is a float."""
    size = 4 * max(1.0, (dim / 16) ** 0.5)  # logits of a standard deviation of about 3
    W = rng.integers(-8, 9, (vocab, dim)) / 2.0 ** np.ceil(np.log2(size))
    head = dict(weights=strided(rng, stored_as(W, dtype)), dtype=dtype)
    return head, strided(rng, stored_as(rng.integers(-4, 5, (rows, dim)) / 4, hidden_dtype))


def through_weights(case, dtype="f32"):
    """The case's stored logits, finite ones, as dot products: row b of the hidden states is row b of the identity."""
    x = np.asarray(case.head["logits"], np.float32)
    dim = max(8, len(x))
    W = np.zeros((x.shape[1], dim), np.float32)
    W[:, : len(x)] = x.T
    head = dict(case.head, weights=stored_as(W, dtype), dtype=dtype)
    del head["logits"]
    return Case(head, stored_as(np.eye(len(x), dim), dtype), logits_mode=case.logits_mode, top=case.top,
                tokens=case.tokens,
                outputs=case.outputs, **case.rules)


def tame(case):
    """With a soft-cap, whose tanh has other last bits elsewhere: logits of a coarse grid, none of them saturated."""
    head = case.head
    if head.get("softcap"):
        if head.get("logits") is not None and head["dtype"] == "f32":
            head["logits"][...] = np.round(head["logits"] * 8) / 8
        head["softcap"], head["scale"] = 40.0, 0.5
    return case


# --------------------------------------------------------------------------------------------- rows of every kind ----

KINDS = ("greedy", "plain", "top_k", "top_p", "min_p", "both", "all cuts", "masked", "penalised", "edited",
         "everything")


def row_values(rng, kind, vocab):
    """The numbers of one row of this kind."""
    own = dict(OFF, temperature=float(pick(rng, 0.3, 0.7, 1.0, 1.0, 1.5, 3.0)))
    every = kind in ("all cuts", "everything")
    if kind == "greedy":
        own["temperature"] = 0.0
    if every or kind in ("top_k", "both"):
        own["top_k"] = int(pick(rng, 1, 2, 7, 50, 50, 200, 1000, vocab))
    if every or kind in ("top_p", "both"):
        own["top_p"] = float(pick(rng, 0.1371, 0.5123, 0.9011, 0.9511, 0.99137))
    if every or kind == "min_p":
        own["min_p"] = float(pick(rng, 0.0013, 0.0513, 0.317))
    if kind in ("penalised", "everything"):
        own.update(repetition=float(pick(rng, 1.3, 0.7)), frequency=float(pick(rng, 0.4, -0.3, 0.0)),
                   presence=float(pick(rng, 0.6, -0.2, 0.0)))
    return own


def mixed_rules(rng, rows, vocab, counts="counts"):
    """Keywords of a batch whose rows are of every kind side by side; row b is slot order[b] of two more than rows."""
    kinds = [KINDS[i % len(KINDS)] for i in rng.permutation(rows + len(KINDS))[:rows]]
    slots, order = rows + 2, rng.permutation(rows + 2)[:rows]
    values = [dict(OFF) for _ in range(slots)]
    rules = dict(slots=slots, slot=order.astype(np.int32), seed=rng.integers(0, 2**63, slots).astype(np.uint64),
                 position=rng.integers(0, 2**40, rows).astype(np.uint64))
    masks, edits = np.ones((1 + rows // 4, vocab), bool), []
    for mask in masks:
        mask[:] = rng.random(vocab) < pick(rng, 0.02, 0.3, 0.9)
        mask[rng.integers(vocab)] = True
    index = np.full(rows, -1, np.int32)
    for b, kind in enumerate(kinds):
        values[order[b]] = row_values(rng, kind, vocab)
        if kind in ("masked", "everything"):
            index[b] = rng.integers(len(masks))
        bias = lambda: float(pick(rng, -INF, 2.5, -1.25, 6.0))
        length = int(pick(rng, 1, 5, 100)) if kind in ("edited", "everything") else 0
        edits.append([(int(t), bias()) for t in rng.integers(0, vocab, length)])
    for name in OFF:
        rules[name] = np.array([own[name] for own in values])
    rules.update(allow=fs.pack_bits(masks), allow_index=index, edits=edits,
                 seen=fs.pack_bits(rng.random((slots, vocab)) < 0.1))
    if counts == "counts":
        rules["counts"] = (rng.integers(1, 4, (slots, vocab)) * (rng.random((slots, vocab)) < 0.1)).astype(np.int32)
    else:
        rules["count_list"] = [[(int(t), int(rng.integers(0, 4))) for t in rng.integers(0, vocab, rng.integers(60))]
                               for _ in range(slots)]
    return rules


def mixed_case(rng, head, hidden, rows, vocab, counts=None, **asked):
    """A case of rows of every kind; counts: "counts" (dense) or "count_list", either if it is not said."""
    counts = counts or pick(rng, "counts", "count_list")
    wanted = dict(logits_mode=pick(rng, "raw", "processed", "cut"), top=20,
                  watch=[rng.integers(0, vocab, 3).tolist() for _ in range(rows)])
    return Case(head, hidden, **{**wanted, **asked}, **mixed_rules(rng, rows, vocab, counts))
