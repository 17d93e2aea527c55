"""The law of draws under every rule on the device, what the same statistics say of rules with one error planted, and
the kept sets of other engines.

Slots with rules of their own share calls of one row of logits; ten million draws per set of flags. Every p-value is
held against 1e-6 (fit.ALPHA), so that the 112 of this file together raise a false alarm for one set of seeds in 9,000;
seeds are fixed. Outside the cut nothing may be drawn at all.
"""
import pytest

pytest.importorskip("scipy.stats", reason="scipy is not installed")

import numpy as np

import fit
from rules_cases import STANDIN, Call, Case, fs, on_device, torch
from rules_inputs import INF, gaussian, through_weights
import model

V = 96  # three words of a mask
ROWS, SAMPLES, CALLS = (6000, 16, 2) if STANDIN else (32760, 32, 10)
SHARE = np.exp(-0.05 * np.arange(V))  # 5 % for the likeliest: one token more or less in a cut is a per cent
LOGITS = np.log(SHARE / SHARE.sum())[np.random.default_rng(1).permutation(V)].astype(np.float32)
SOURCES = ["stored", "weights"]

OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, frequency=0.0, presence=0.0, mask=-1,
           edits=())
RULES = {
    "plain": {},
    "top_k": dict(top_k=7),
    "top_p": dict(top_p=0.7),
    "min_p": dict(min_p=0.2),
    "both": dict(top_k=10, top_p=0.8),
    "every cut": dict(top_k=20, top_p=0.8, min_p=0.4, temperature=1.5),
    "masked": dict(mask=0),
    "masked and cut": dict(mask=1, top_k=9, temperature=1.5),
    "edited": dict(edits=((3, 2.0), (40, -INF), (3, 0.5), (95, 1.5))),
    "penalised": dict(repetition=1.4, frequency=0.3, presence=-0.4),
    "warm": dict(temperature=2.0, top_p=0.9),
    "everything": dict(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, mask=1, edits=((5, 1.0),), repetition=1.2,
                       frequency=0.2),
}
NAMES = list(RULES)
S = len(NAMES)
MASKS = np.random.default_rng(2).random((2, V)) < 0.4
SEEN = np.random.default_rng(3).random((S, V)) < 0.3
COUNTS = (np.random.default_rng(4).integers(1, 4, (S, V)) * (np.random.default_rng(5).random((S, V)) < 0.3)).astype(int)
FLAGS = {"as engines do": {}, "joint, min-p last": dict(joint_top_p=True, min_p_last=True),
         "before temperature": dict(cut_before_temperature=True)}


def values_of(name, **changed):
    return {**OFF, **RULES[name], **changed}


def law(name, flags, slot=None, masks=MASKS, **changed):
    """[V]: what this slot draws; or one with other values, another mask, or another slot's counts."""
    own, ids = values_of(name, **changed), np.arange(V)
    slot = NAMES.index(name) if slot is None else slot
    x = LOGITS if own["mask"] < 0 else np.where(masks[own["mask"]], LOGITS, np.float32(-INF))
    rules = dict(flags, edits=[own["edits"]], seen=fs.pack_bits(SEEN), counts=COUNTS)
    y = model.processed(x, ids, rules, own, 0, slot)
    l = y * np.float32(1 / own["temperature"])
    live, keep = y > -np.inf, np.zeros(V, bool)
    seen = y if flags.get("cut_before_temperature") else l
    keep[live] = model.cut(y[live], seen[live], ids[live], own, flags)
    mass = np.where(keep, np.exp(l.astype(float) - l.max()), 0)
    return mass / mass.sum()


def case_of(source, flags, rows=ROWS, **asked):
    """Row b is a draw of slot b modulo S."""
    each = [values_of(name) for name in NAMES]
    slot = np.arange(rows) % S
    token, bias = np.zeros((S, 4), np.int32), np.zeros((S, 4), np.float32)
    for s, own in enumerate(each):
        for i, (t, b) in enumerate(own["edits"]):
            token[s, i], bias[s, i] = t, b
    rules = {name: np.array([own[name] for own in each]) for name in OFF if name not in ("mask", "edits")}
    rules.update(allow=fs.pack_bits(MASKS), allow_index=np.array([each[s]["mask"] for s in slot], np.int32),
                 padded_edits=(np.array([len(own["edits"]) for own in each], np.int32), token, bias),
                 seen=fs.pack_bits(SEEN), counts=COUNTS.astype(np.int32), slots=S, slot=slot.astype(np.int32),
                 seed=np.arange(S) * 7919 + 5, position=np.arange(rows) // S + 2**33)
    case = Case(dict(logits=LOGITS[None]), outputs=(), **rules, **flags, **{"samples": SAMPLES, **asked})
    if source == "weights":
        case = through_weights(case)
        case.hidden = np.tile(case.hidden, (rows, 1))
    else:
        case.head["logits"] = np.tile(LOGITS, (rows, 1))
    return case


def drawn(case, calls=CALLS):
    """[S, V]: how often each slot drew each token."""
    call = Call(case, in_place=True)
    slot = torch.as_tensor(case.rules["slot"], device=call.out.tokens.device).long()[:, None] * V
    counts = torch.zeros(S * V, dtype=torch.int64, device=slot.device)
    for _ in range(calls):
        tokens = call.run().out.tokens
        assert ((tokens >= 0) & (tokens < V)).all(), "rows without a token"
        counts += torch.bincount((slot + tokens).reshape(-1), minlength=S * V)
        call.rules["position"] += 2**20
    return counts.reshape(S, V).cpu().numpy()


def accept(counts, flags, modes=NAMES):
    for name in modes:
        own = law(name, flags)
        outside = counts[NAMES.index(name)][own == 0].sum()
        if outside:
            pytest.fail("%s: %d draws outside the cut" % (name, outside), pytrace=False)
        found = fit.cells(counts[NAMES.index(name)], own, name)
        print(fit.line(found))
        if fit.rejects(found):
            pytest.fail("rejected: " + fit.line(found), pytrace=False)


def refuse(counts, name, flags, what, **changed):
    """The counts of this slot do not fit the law of a rule that is off by a little."""
    wrong = law(name, changed.pop("other", flags), **changed)
    assert (wrong != law(name, flags)).any(), "%s: %s changes nothing" % (name, what)
    found = fit.cells(counts[NAMES.index(name)], wrong, "%s: %s" % (name, what))
    print(fit.line(found) + "  (planted)")
    if not fit.rejects(found):
        pytest.fail("a planted error is not seen: " + fit.line(found), pytrace=False)


def p_that_keeps(name, more):
    """A p with so many tokens more in the nucleus of the slot, by their mass."""
    l = np.sort(LOGITS / values_of(name)["temperature"])[::-1].astype(float)
    cum = np.cumsum(np.exp(l)) / np.exp(l).sum()
    kept = np.searchsorted(cum, values_of(name)["top_p"]) + 1 + more
    return float((cum[kept - 1] + cum[kept - 2]) / 2)


def refuse_planted(counts, flags):
    for more in (-1, 1):
        refuse(counts, "top_k", flags, "k off by %d" % more, top_k=7 + more)
        refuse(counts, "both", flags, "k off by %d" % more, top_k=10 + more)
        refuse(counts, "masked and cut", flags, "k off by %d" % more, top_k=9 + more)
        refuse(counts, "top_p", flags, "p off by %d tokens" % more, top_p=p_that_keeps("top_p", more))
    refuse(counts, "min_p", flags, "min-p off by a token", min_p=0.19)
    for name in ("masked", "masked and cut"):
        refuse(counts, name, flags, "the mask's words shifted", masks=np.roll(MASKS, 32, axis=1))
        refuse(counts, name, flags, "the mask of another row", masks=MASKS[::-1])
    for name in ("penalised", "everything"):
        refuse(counts, name, flags, "the counts of another slot", slot=0)
    refuse(counts, "edited", flags, "the first edit of a token alone", edits=((3, 2.0), (40, -INF), (95, 1.5)))
    refuse(counts, "edited", flags, "a ban not kept", edits=((3, 2.0), (3, 0.5), (95, 1.5)))
    refuse(counts, "warm", flags, "temperature after the noise", temperature=1.0)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("source", SOURCES)
def test_draws_follow_the_renormalised_law(source, flags):
    counts = drawn(case_of(source, FLAGS[flags]))
    accept(counts, FLAGS[flags])
    refuse_planted(counts, FLAGS[flags])


@pytest.mark.parametrize("source", SOURCES)
def test_draws_of_one_order_do_not_fit_another(source):
    """Planted: the flags are not looked at."""
    joint = FLAGS["joint, min-p last"]
    counts, other = (drawn(case_of(source, flags), calls=1 + bool(STANDIN)) for flags in ({}, joint))
    refuse(counts, "both", {}, "joint", other=joint)
    refuse(other, "both", joint, "renormalised", other={})
    before = FLAGS["before temperature"]
    refuse(counts, "warm", {}, "cuts before temperature", other=before)


@pytest.mark.parametrize("source", SOURCES)
def test_fast_noise_follows_the_law(source):
    accept(drawn(case_of(source, {}, noise="fast"), calls=2), {})


UNCUT = ("plain", "masked", "edited", "penalised")


@pytest.mark.parametrize("mode", ["group_parallel", "group_online"])
@pytest.mark.parametrize("source", SOURCES)
def test_groups_follow_the_law(source, mode):
    """Groups of 7, one token per row; the slots that have no cuts. Arrays of them are on the device, so the call says
    that they are not used."""
    cuts = int(fs.Rule.TOP_K | fs.Rule.TOP_P | fs.Rule.MIN_P)
    case = case_of(source, {}, mode=mode, group_size=7, samples=1, limits=dict(absent=cuts))
    for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
        case.rules[name] = np.full(S, off)
    accept(drawn(case, calls=10), {}, UNCUT)


# ------------------------------------------------------------------------------------------ kept sets of engines ----
# Each takes logits and numbers of one row and returns which tokens it keeps, as the engine's own code does it.


def softmax(l):
    e = np.exp(l - l.max())
    return e / e.sum()


def vllm(x, T, k, p, m):
    """min-p of probabilities; logits below the k-th largest masked; then the ascending sums that are at most 1 - p."""
    l = x / T
    probs = softmax(l)
    l = np.where(probs < m * probs.max(), -np.inf, l)
    if 0 < k < len(l):
        l = np.where(l < np.sort(l)[-k], -np.inf, l)
    ascending = np.argsort(l)
    drop = np.cumsum(softmax(l[ascending])) <= 1 - p
    drop[-1] = False
    l[ascending[drop]] = -np.inf
    return l > -np.inf


def flashinfer_first(x, T, k, p, m):
    """filter_apply_order "top_k_first": top-k renormalised, then the shortest list with a sum of p or more."""
    probs = softmax(x / T)
    if 0 < k < len(x):
        probs = np.where(probs < np.sort(probs)[-k], 0, probs)
        probs /= probs.sum()
    descending = np.argsort(-probs)
    kept = descending[: np.searchsorted(np.cumsum(probs[descending]), p) + 1]
    return (probs > 0) & np.isin(np.arange(len(x)), kept)


def flashinfer_joint(x, T, k, p, m):
    """filter_apply_order "joint": a token passes if fewer than k, and less than p of the whole mass, are above it."""
    probs = softmax(x / T)
    descending = np.argsort(-probs)
    above = np.cumsum(probs[descending]) - probs[descending]
    kept = descending[(np.arange(len(x)) < (k if k > 0 else len(x))) & (above < p)]
    return np.isin(np.arange(len(x)), kept)


def sglang(x, T, k, p, m):
    """Joint, then min-p against the largest probability."""
    probs = softmax(x / T)
    return flashinfer_joint(x, T, k, p, m) & (probs >= m * probs.max())


def transformers(x, T, k, p, m):
    """top-k, top-p by ascending sums, then min-p of what is left."""
    kept = vllm(x, T, k, p, 0.0)
    probs = np.where(kept, softmax(x / T), 0)
    return kept & (probs >= m * probs.max())


def llama_cpp(x, T, k, p, m):
    """Cuts before temperature, min-p last."""
    return transformers(x, 1.0, k, p, m)


ENGINES = {
    "vllm": (vllm, {}),
    "flashinfer, top-k first": (flashinfer_first, dict(m=0.0)),
    "flashinfer, joint": (flashinfer_joint, dict(m=0.0, joint_top_p=True)),
    "sglang": (sglang, dict(joint_top_p=True, min_p_last=True)),
    "transformers": (transformers, dict(min_p_last=True, keep_ties_top_k=True)),
    "llama.cpp": (llama_cpp, dict(min_p_last=True, cut_before_temperature=True)),
}


def numbers(rows):
    rng = np.random.default_rng(8)
    return dict(temperature=rng.uniform(0.5, 2.0, rows).astype(np.float32), top_k=rng.choice([0, 1, 5, 50, 400], rows),
                top_p=rng.uniform(0.2, 0.99, rows).astype(np.float32),
                min_p=np.where(rng.random(rows) < 0.5, 0, rng.uniform(0.01, 0.3, rows)).astype(np.float32))


def kept_sets(engine, x, own, off=0.0):
    """[B, V] of an engine's sets; `off` moves p and min-p, by which sets that hang on a last bit show."""
    B = len(x)
    m = np.zeros(B) if ENGINES[engine][1].get("m") == 0.0 else own["min_p"] * (1 + off)
    with np.errstate(divide="ignore"):
        return np.stack([ENGINES[engine][0](x[b].astype(float), float(own["temperature"][b]), int(own["top_k"][b]),
                                            float(own["top_p"][b]) + off, m[b]) for b in range(B)])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", SOURCES)
def test_kept_sets_are_the_engines_own(source, engine):
    rows, vocab = 48, 1000
    x, own = gaussian(9, rows, vocab, 2.0), numbers(rows)
    flags = {name: value for name, value in ENGINES[engine][1].items() if name != "m"}
    rules = dict(own, min_p=np.zeros(rows)) if "m" in ENGINES[engine][1] else own
    case = Case(dict(logits=x), logits_mode="cut", seed=3, samples=64, watch=[list(range(vocab))] * rows, **rules,
                **flags)
    got = on_device(case if source == "stored" else through_weights(case))
    kept = got["watch_logprob"].reshape(rows, vocab) > -np.inf
    want = kept_sets(engine, x, own)
    clear = np.all([(kept_sets(engine, x, own, off) == want).all(1) for off in (-1e-5, 1e-5)], axis=0)
    assert clear.sum() >= 0.9 * rows, "%d rows of %d hang on a last bit" % ((~clear).sum(), rows)
    wrong = np.flatnonzero((kept != want).any(1) & clear)
    assert not len(wrong), "%s: rows %s; row %d keeps %d tokens, want %d: %s" % (
        engine, wrong[:8].tolist(), wrong[0], kept[wrong[0]].sum(), want[wrong[0]].sum(),
        {name: value[wrong[0]] for name, value in own.items()})
    assert np.take_along_axis(kept, got["tokens"].astype(int), 1).all(), "a token from outside its cut"


def test_engines_keep_other_sets():
    """So the test above tells one from another."""
    x, own = gaussian(9, 48, 1000, 2.0), numbers(48)
    sets = {name: kept_sets(name, x, own) for name in ENGINES}
    names = list(ENGINES)
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            assert (sets[one] != sets[two]).any(), (one, two)
