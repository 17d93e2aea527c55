"""The whole library again in numpy, written from the header's text: the oracle's oracle.

Nothing is shared with the C code, not even the noise (noise_model.py). Sets are boolean masks where the C code has
prefixes of a sorted list, masses come from logsumexp, and a row is a handful of array expressions.
"""
import numpy as np

import noise_model as nm

SKIPPED, EMPTY, BAD_SLOT, BAD_TEMPERATURE, BAD_TOP_P, BAD_MIN_P, BAD_PENALTY, BAD_TOKEN = (1 << i for i in range(8))
BAD_MASK, BAD_LIST, OVER_LIMIT = 1 << 10, 1 << 11, 1 << 12
NAN, INF, SHORT = 1 << 16, 1 << 17, 1 << 20
NO_TOKEN = 0xFFFF

f32 = np.float32
DEFAULTS = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, substream=0, repetition=1.0, frequency=0.0,
                presence=0.0)


# ------------------------------------------------------------------------------------------------------ logits ----


def logsumexp(x):
    """Of the last axis."""
    largest = np.max(x, axis=-1, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(x - largest), axis=-1)) + largest[..., 0]


def values_of(array, dtype):
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(f32)
    return array.astype(f32)


def round_bf16(x):
    """Nearest even at bit 16, on the integer image; NaN and infinities pass."""
    bits = x.view(np.uint32).astype(np.int64)
    low = bits & 0xFFFF
    up = (low > 0x8000) | ((low == 0x8000) & ((bits >> 16) & 1 == 1))
    rounded = (((bits >> 16) + up) << 16).astype(np.uint32).view(f32)
    return np.where(np.isfinite(x), rounded, x)


def raw_logits(head, hidden):
    """x [B, V] before masks."""
    dtype = head.get("dtype")
    if head.get("logits") is not None:
        x = values_of(np.array(head["logits"]), dtype)
    else:
        w = values_of(np.array(head["weights"]), dtype).astype(np.float64)
        h = values_of(np.array(hidden), "bf16" if hidden.dtype == np.uint16 else None).astype(np.float64)
        x = (h @ w.T).astype(f32)
    if head.get("bias") is not None:
        x = x + head["bias"].astype(f32)
    if head.get("round_to") == "bf16":
        x = round_bf16(x)
    if head.get("round_to") == "f16":
        x = x.astype(np.float16).astype(f32)
    x = x * f32(head.get("scale", 1))
    cap = f32(head.get("softcap", 0))
    if cap != 0:
        x = cap * np.tanh((x / cap).astype(np.float64)).astype(f32)
    return x * f32(head.get("post_scale", 1))


def bit(words, ids):
    return (words[ids // 32] >> (ids % 32).astype(np.uint32) & 1).astype(bool)


def edits_of(rules, b, slot):
    """The edits of a row, (token, bias) in their order, and whether their count is bad."""
    if rules.get("edits") is not None:
        return rules["edits"][b], False
    if rules.get("padded_edits") is None:
        return [], False
    count, token, bias = rules["padded_edits"]
    if not 0 <= count[slot] <= token.shape[1]:
        return [], True
    return list(zip(token[slot].tolist(), bias[slot].tolist()))[: count[slot]], False


def edited(y, ids, edits):
    y = y.copy()
    place = {int(token): i for i, token in enumerate(ids)}
    for token, bias in edits:
        i = place.get(token)
        if i is not None and y[i] != -np.inf:
            y[i] = -np.inf if bias == -np.inf else y[i] + f32(bias)
    return y


def penalised(y, ids, rules, values, slot):
    count = np.zeros(len(ids), np.int64)
    if rules.get("counts") is not None:
        count[:] = rules["counts"][slot][ids]
    for token, n in (rules.get("count_list") or {slot: []})[slot]:
        count[ids == token] += n
    seen = count > 0
    if rules.get("seen") is not None:
        seen = seen | bit(rules["seen"][slot], ids)
    r = f32(values["repetition"])
    z = np.where(seen, np.where(y > 0, y / r, y * r), y)
    z = z - f32(values["frequency"]) * np.maximum(count, 0).astype(f32)
    z = np.where(count > 0, z - f32(values["presence"]), z)
    return np.where(y == -np.inf, f32(-np.inf), z).astype(f32)


def processed(x, ids, rules, values, b, slot):
    """y of one row."""
    edits, _ = edits_of(rules, b, slot)
    if rules.get("edits_last"):
        return edited(penalised(x, ids, rules, values, slot), ids, edits)
    return penalised(edited(x, ids, edits), ids, rules, values, slot)


# -------------------------------------------------------------------------------------------------- cut and draw ----


def order(y, ids):
    """Places in the total order: y descending, id ascending."""
    return np.lexsort((ids, -y))


def cut(y, seen, ids, values, rules):
    """Which of the tokens (all with y > -inf) survive. Cuts look at `seen`: l, or y before temperature."""
    seen = seen.astype(np.float64)
    by_order = order(y, ids)
    ties_k = rules.get("keep_ties") or rules.get("keep_ties_top_k")
    ties_p = rules.get("keep_ties") or rules.get("keep_ties_top_p")

    def min_p(keep):
        if values["min_p"] == 0:
            return keep
        return keep & (seen >= seen.max() + np.log(np.float64(f32(values["min_p"]))))

    def only(places, keep, ties):
        """These places, and with ties all of `keep` that equal the last of them."""
        kept = np.zeros_like(keep)
        kept[places] = True
        return kept | (keep & (y == y[kept].min())) if ties else kept

    def top_k(keep):
        k = values["top_k"]
        return only([i for i in by_order if keep[i]][:k], keep, ties_k) if 0 < k < keep.sum() else keep

    def top_p(keep):
        p = np.float64(f32(values["top_p"]))
        if p >= 1:
            return keep
        left = np.array([i for i in by_order if keep[i]])
        if np.isposinf(seen.max()):
            return only(left[:1], keep, ties_p)
        weight = np.exp(seen - seen.max())
        total = np.cumsum(weight[by_order if rules.get("joint_top_p") else left])[-1]
        before = np.concatenate([[0.0], np.cumsum(weight[left])[:-1]])
        stay = left[before < p * total]
        return only(stay if len(stay) else left[:1], keep, ties_p)

    keep = np.ones(len(ids), bool)
    stages = (top_k, top_p, min_p) if rules.get("min_p_last") else (min_p, top_k, top_p)
    for stage in stages:
        keep = stage(keep)
    return keep


def token_noise(noise, ids, fast):
    ids = ids.astype(np.uint64)
    if fast:
        r = np.stack(nm.words(noise, ids >> np.uint64(2), nm.FAST))[ids.astype(int) & 3, np.arange(len(ids))]
        u = np.minimum((r.astype(f32) + f32(1)) * f32(2.0**-32), f32(0.99999994))
        inner = -np.log(u.astype(np.float64)).astype(f32)
        return -np.log(inner.astype(np.float64)).astype(f32)
    w = nm.unit(nm.words(noise, ids, nm.EXTENSION))
    e = -np.log1p(-1 / 256) - np.log1p(-w)
    for block in np.unique(ids // np.uint64(128)):
        for place, prefix in nm.marks(noise, int(block)).items():
            token = 128 * int(block) + place
            e[ids == token] = -np.log1p(-nm.marked_unit(nm.words(noise, token, nm.EXTENSION), prefix) / 256)
    return -np.log(e)


def ranking(scores, ids):
    """Places by score key: 40 bits of the ordered double, then the lower id."""
    bits = (np.asarray(scores, np.float64) + 0.0).view(np.uint64)
    image = np.where(bits >> np.uint64(63) == 1, ~bits, bits | np.uint64(1 << 63)) >> np.uint64(24)
    return np.lexsort((ids, -image.astype(np.int64)))


def draw_groups(mode, l, scores, ids, noise, size):
    """B.2 and B.3: the winner's place."""
    best, chosen, running = None, None, -np.inf
    for group in np.unique(ids // size):
        inside = np.flatnonzero(ids // size == group)
        local = inside[ranking(scores[inside], ids[inside])[0]]
        mass = logsumexp(l[inside].astype(np.float64))
        if mode == "group_parallel":
            key = nm.score_key(mass + nm.gumbel_of(noise, int(group), nm.GROUP), int(group))
            if best is None or key > best:
                best, chosen = key, local
        else:
            running = np.logaddexp(running, mass)
            u = nm.unit(nm.words(noise, int(group), nm.ONLINE))
            if chosen is None or u < np.exp(mass - running):
                chosen = local
    return chosen


def draw(rules, values, position, y, l, ids, keep):
    """Places and scores of the drawn tokens among those with l > -inf."""
    greedy, n, mode = values["temperature"] == 0, rules.get("samples", 1), rules.get("mode", "sample")

    def scores_of(sample):
        if greedy:
            return None, y.astype(np.float64)
        noise = nm.row(int(values["seed"]), int(position), sample, int(values["substream"]))
        g = token_noise(noise, ids, rules.get("noise") == "fast")
        return noise, (l + g).astype(np.float64) if g.dtype == f32 else l.astype(np.float64) + g

    chosen, won = [], []
    if mode == "sample":
        for sample in range(n):
            _, s = scores_of(sample)
            among = np.flatnonzero(keep)
            i = among[ranking(s[among], ids[among])[0]]
            chosen.append(i)
            won.append(s[i])
    elif mode == "without_replacement":
        _, s = scores_of(0)
        among = np.flatnonzero(keep)
        chosen = list(among[ranking(s[among], ids[among])[:n]])
        won = list(s[chosen])
    else:
        noise, s = scores_of(0)
        if greedy or np.isposinf(l.max()):
            i = ranking(s, ids)[0]
        else:
            i = draw_groups(mode, l, s, ids, noise, rules["group_size"])
        chosen, won = [i], [s[i]]
    return chosen, won


# ----------------------------------------------------------------------------------------------------- results ----


def bad_values(values):
    t, bad = f32(values["temperature"]), 0
    if not t >= 0 or np.isinf(t) or (t > 0 and np.isinf(f32(1) / t)):
        bad |= BAD_TEMPERATURE
    if not 0 <= f32(values["top_p"]) <= f32(1.00001):
        bad |= BAD_TOP_P
    if not 0 <= values["min_p"] <= 1:
        bad |= BAD_MIN_P
    r = values["repetition"]
    if not r > 0 or not np.isfinite([r, values["frequency"], values["presence"]]).all():
        bad |= BAD_PENALTY
    return bad


def bad_lists(rules, b, slot, vocab):
    edits, bad = edits_of(rules, b, slot)
    tokens = [token for token, _ in edits] + [token for token, _ in (rules.get("count_list") or {slot: []})[slot]]
    tokens += list((rules.get("watch") or {b: []})[b])
    if rules.get("mode") == "score":
        tokens += list(rules["score_tokens"][b])
    return BAD_LIST * bad | BAD_TOKEN * any(not 0 <= token < vocab for token in tokens)


def over_limit(rules, values, b, slot, vocab):
    """Whether the row breaks a promise of its limits."""
    limits = rules.get("limits") or {}
    k = values["top_k"] if 0 < values["top_k"] < vocab else 0
    penalties = any(rules.get(name) is not None for name in ("seen", "counts", "count_list"))
    uses = [k > 0, 0 <= values["top_p"] < 1, 0 < values["min_p"] <= 1, mask_of(rules, b) >= 0,
            len(edits_of(rules, b, slot)[0]) > 0,
            penalties and (values["repetition"], values["frequency"], values["presence"]) != (1, 0, 0)]
    used = sum(1 << i for i, use in enumerate(uses) if use)
    most = limits.get("top_k", 0)
    return OVER_LIMIT * bool(used & limits.get("absent", 0) or (most and k > most))


def mask_of(rules, b):
    if rules.get("allow") is None:
        return -1
    return b if rules.get("allow_index") is None else int(rules["allow_index"][b])


def slot_values(rules, slot):
    values = {}
    for name, default in DEFAULTS.items():
        given = rules.get(name)
        if given is None:
            given = default
        values[name] = given if np.ndim(given) == 0 else np.asarray(given)[slot]
        if name == "seed" and np.ndim(given) == 0:
            values[name] = nm.spread_seed(int(given), slot)
    return values


def empty_results(case, rows):
    rules, n = case.rules, case.rules.get("samples", 1)
    out = {"tokens": np.full((rows, n), rules.get("fallback_token", -1), np.int64), "status": np.zeros(rows, np.uint32)}
    out.update({name: np.full((rows, n), np.nan) for name in ("noisy_logit", "logit", "logprob")})
    out.update({name: np.full(rows, np.nan) for name in ("max_logit", "log_z", "entropy")})
    out.update(survivor_count=np.zeros(rows, np.int32), survivor_token=np.full((rows, case.survivors), -1))
    out["rank"] = np.full((rows, n), -1)
    if case.top:
        out["top_token"] = np.full((rows, case.top), -1)
        out.update({name: np.full((rows, case.top), np.nan) for name in ("top_logit", "top_logprob")})
    if rules.get("watch"):
        entries = sum(map(len, rules["watch"]))
        out.update({name: np.full(entries, np.nan) for name in ("watch_logit", "watch_logprob")})
    return out


def sample(case):
    """Every result of a case, by name."""
    with np.errstate(all="ignore"):
        raw = raw_logits(case.head, case.hidden)
        out = empty_results(case, len(raw))
        for b in range(len(raw)):
            sample_row(case, b, raw[b], out)
    return out


def sample_row(case, b, x, out):
    head, rules = case.head, case.rules
    first = head.get("first_token", 0)
    vocab = head.get("vocab", 0) or first + len(x)
    real = np.arange(first, first + len(x)) < vocab
    ids, x = np.arange(first, first + len(x))[real], x[real]

    slot = b if rules.get("slot") is None else int(rules["slot"][b])
    if slot == -1:
        out["status"][b] = SKIPPED
        return
    if slot < -1 or slot >= case.slots():
        out["status"][b] = BAD_SLOT
        return
    values = slot_values(rules, slot)
    status = bad_values(values) | bad_lists(rules, b, slot, vocab) | over_limit(rules, values, b, slot, vocab)
    if status:
        out["status"][b] = status
        return

    if mask_of(rules, b) >= 0:
        x = np.where(bit(rules["allow"][mask_of(rules, b)], ids), x, f32(-np.inf))
    y = processed(np.where(np.isnan(x), f32(-np.inf), x), ids, rules, values, b, slot)
    if np.isnan(x).any() or np.isnan(y).any():
        status |= NAN
    x, y = (np.where(np.isnan(a), f32(-np.inf), a) for a in (x, y))
    l = y if values["temperature"] == 0 else y * (f32(1) / f32(values["temperature"]))
    if np.isposinf(x).any() or np.isposinf(l).any():
        status |= INF
    live = l > -np.inf
    if not live.any():
        status |= EMPTY
    out["status"][b] = status
    if status & NO_TOKEN:
        return

    keep = np.zeros(len(ids), bool)
    position = np.broadcast_to(rules.get("position", 0), out["status"].shape)[b]
    if rules.get("mode", "sample").startswith("group"):
        keep[live] = True
    else:
        there, seen = (y > -np.inf, y) if rules.get("cut_before_temperature") else (live, l)
        keep[there] = cut(y[there], seen[there], ids[there], values, rules)
        keep &= live
    if rules.get("mode") == "score":
        tokens, scores = list(rules["score_tokens"][b]), [np.nan] * rules["samples"]
    else:
        places, scores = draw(rules, values, position, y[live], l[live], ids[live], keep[live])
        tokens = list(ids[live][places])
        if len(tokens) < rules.get("samples", 1):
            out["status"][b] |= SHORT
    report(case, b, out, ids, x, y, l, keep, tokens, scores)
    if not (0 < values["top_k"] < vocab or values["top_p"] < 1 or values["min_p"] > 0):
        out["survivor_count"][b] = -1
        return
    left = [ids[i] for i in order(y, ids) if keep[i]]
    out["survivor_count"][b] = len(left)
    out["survivor_token"][b, : len(left)] = left[: case.survivors]


def report(case, b, out, ids, x, y, l, keep, tokens, scores):
    logit, by = (x, x) if case.logits_mode == "raw" else (l, y)
    among = keep if case.logits_mode == "cut" else by > -np.inf
    if case.logits_mode == "processed":
        among = l > -np.inf
    log_z = logsumexp(logit[among].astype(np.float64))
    if np.isposinf(log_z):
        logprob = np.full(len(ids), np.nan)
    else:
        logprob = np.where(among | (case.logits_mode != "cut"), logit.astype(np.float64) - log_z, -np.inf)
    place = {int(token): i for i, token in enumerate(ids)}
    out["max_logit"][b], out["log_z"][b] = logit[among].max(), log_z
    p = np.exp(logit[among].astype(np.float64) - log_z)
    out["entropy"][b] = np.nan if np.isposinf(log_z) else -(p * np.log(np.where(p > 0, p, 1))).sum()
    for j, (token, score) in enumerate(zip(tokens, scores)):
        out["tokens"][b, j], out["noisy_logit"][b, j] = token, score
        if token in place:
            i = place[token]
            out["logit"][b, j], out["logprob"][b, j] = logit[i], logprob[i]
            equal = bool(case.rules.get("rank_of_ties")) & (by == by[i]) & (ids != token)
            out["rank"][b, j] = 1 + (among & ((by > by[i]) | equal)).sum()
    if case.top:
        best = [i for i in order(by, ids) if among[i]][: case.top]
        out["top_token"][b, : len(best)] = ids[best]
        out["top_logit"][b, : len(best)], out["top_logprob"][b, : len(best)] = logit[best], logprob[best]
    if case.rules.get("watch"):
        start = sum(map(len, case.rules["watch"][:b]))
        for at, token in enumerate(case.rules["watch"][b], start):
            if token in place:
                out["watch_logit"][at], out["watch_logprob"][at] = logit[place[token]], logprob[place[token]]
