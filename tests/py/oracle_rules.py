"""The rules of a call, written from include/flashsampling.h and docs alone: plain numpy, a row at a time.

`Oracle(case).row(b)` gives the results of one row as `Row`s. There are several where the mass before a token is as near
to p times the mass as top-p may err: the header lets the cut fall on either side of that token.

docs/explain/noise.md defines the noise and the keys, and oracle_noise.py has them.
"""
from types import SimpleNamespace

import numpy as np

import oracle_noise as noise
from oracle_calls import _c

F32 = np.float32
FLAG, RULE, BIT = _c.Flag, _c.Rule, _c.Row
RAW, PROCESSED, CUT = 0, 1, 2
SAMPLE, WITHOUT_REPLACEMENT, GROUP_PARALLEL, GROUP_ONLINE, SCORE = range(5)
# How far from 0 a row's largest logit may be for a log Z; up to FAR_SURELY either answer is taken.
FAR = 362_000
FAR_SURELY = 362_100
TOP_P_ERROR = 4e-7  # of the mass: 3e-7 in the header, and the rounding of the oracle's own sums
TOP_P_LARGEST = 1.00001  # above 1 by rounding alone, which is off
ALTERNATIVES = 64  # cuts that are tried where top-p is in doubt
LOG_Z = {"log_z", "logprob", "top_logprob", "watch_logprob"}  # results that look at the sum of exp
ZERO_SCALARS = {"top_p": 1, "repetition": 1}  # the default that a scalar of zero means; arrays mean what they hold
FALLBACK_TOKEN_ZERO = -2**31


def to_float(data, dtype):
    """Stored numbers as float."""
    if dtype == _c.DTYPES["bf16"]:
        return (data.astype(np.uint32) << 16).view(F32)
    return data.astype(F32)


def to_bf16(x):
    """Rounded to nearest, ties to even, as 16 bits."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def rounded_to(x, dtype):
    """Floats that were stored as dtype in between."""
    if dtype == _c.DTYPES["bf16"]:
        return to_float(to_bf16(x), dtype)
    return x.astype(np.float16).astype(F32) if dtype == _c.DTYPES["f16"] else x


def bit_of(words, ids):
    return words[ids // 32] >> (ids % 32).astype(np.uint32) & 1 != 0


def log_sum_exp(x):
    """In double; x has a number above -inf."""
    top = x.max()
    return top if np.isinf(top) else top + np.log(np.exp(x.astype(np.float64) - top).sum())


class Oracle:
    """The expected results of one case. test_oracle_documents.py overrides single methods with errors."""

    def __init__(self, case):
        self.case = case
        self.rows = case.data.shape[1] if case.kind else case.data.shape[0]
        self.vocab = case.vocab or case.first_token + self.rows
        self.ids = case.first_token + np.arange(max(0, min(self.rows, self.vocab - case.first_token)))
        self.slots, self.samples = case.slots or case.rows, case.samples or 1
        self.fallback = 0 if case.fallback_token == FALLBACK_TOKEN_ZERO else case.fallback_token or -1

    # ---------------------------------------------------------------------------------------------- logits ----

    def transform(self, x):
        """x from the dot product, or as it is stored, to the raw logit, without a mask."""
        case = self.case
        if case.bias is not None:
            x = x + case.bias[:x.shape[-1]]
        x = rounded_to(x, case.round_to)
        x = x * F32(case.scale or 1)
        if case.softcap:
            x = F32(case.softcap) * np.tanh(x / F32(case.softcap))
        return x * F32(case.post_scale or 1)

    def edited(self, y, b, slot):
        y = y.copy()
        for token, bias in zip(*self.edits(b, slot)):
            i = token - self.case.first_token
            if 0 <= i < len(y) and y[i] > -np.inf:
                y[i] = -np.inf if bias == -np.inf else y[i] + bias
            elif 0 <= i < len(y) and bias == -np.inf:
                y[i] = bias  # also of NaN
        return y

    def counts(self, slot):
        """How often each token of the head was produced; int32, with its limits."""
        case = self.case
        if case.counts is not None:
            return np.maximum(case.counts[slot, self.ids], 0)
        total = np.zeros(self.vocab, np.int64)
        if case.count_offset is not None:
            first, last = case.count_offset[slot:slot + 2]
            for token, count in zip(case.count_token[first:last], case.count_value[first:last]):
                total[token] = np.clip(total[token] + count, -2**31, 2**31 - 1)
        return np.maximum(total[self.ids], 0).astype(np.int32)

    def seen(self, slot, count):
        """Tokens that repetition applies to."""
        return count > 0 if self.case.seen is None else bit_of(self.case.seen[slot], self.ids) | (count > 0)

    def penalised(self, y, slot):
        if not self.has_history():
            return y
        count = self.counts(slot)
        seen = self.seen(slot, count)
        r, frequency, presence = (F32(self.value(name, slot)) for name in ("repetition", "frequency", "presence"))
        y = np.where(seen, np.where(y > 0, y / r, y * r), y) if r != 1 else y
        y = y - frequency * count.astype(F32) if frequency else y
        return np.where(count > 0, y - presence, y) if presence else y

    def processed(self, y, temperature):
        return y if temperature == 0 else y * (F32(1) / F32(temperature))

    # -------------------------------------------------------------------------------------- a row's values ----

    def value(self, name, slot):
        array = getattr(self.case, name)
        if array is not None:
            return array[slot]
        return self.case.all.get(name, 0) or ZERO_SCALARS.get(name, 0)

    def seed(self, slot):
        if self.case.seed is not None:
            return int(self.case.seed[slot])
        return noise.spread(self.case.all.get("seed", 0), slot)

    def has_history(self):
        return any(array is not None for array in (self.case.seen, self.case.counts, self.case.count_offset))

    def edits(self, b, slot):
        """A row's tokens and biases."""
        case = self.case
        if case.edit_count is not None:
            first = slot * (case.edit_stride // 4)
            last = first + case.edit_count[slot]
        elif case.edit_offset is not None:
            first, last = case.edit_offset[b:b + 2]
        else:
            return (), ()
        return case.edit_token[first:last], case.edit_bias[first:last]

    def watched(self, b):
        first, last = (0, 0) if self.case.watch_offset is None else self.case.watch_offset[b:b + 2]
        return slice(int(first), int(last))

    def has_cut(self, slot):
        top_k, top_p, min_p = (self.value(name, slot) for name in ("top_k", "top_p", "min_p"))
        return 0 < top_k < self.vocab or top_p < 1 or min_p > 0

    def mask(self, b):
        """The number of the row's mask; -1: none."""
        if self.case.allow is None:
            return -1
        return b if self.case.allow_index is None else int(self.case.allow_index[b])

    def refused(self, b, slot):
        """The bits of rules that leave a row no token."""
        case, bits = self.case, 0
        t, p, m, k = (self.value(name, slot) for name in ("temperature", "top_p", "min_p", "top_k"))
        t = F32(t)
        if not (t >= 0 and t < np.inf and (t == 0 or np.isfinite(F32(1) / t))):
            bits |= BIT.BAD_TEMPERATURE
        if not 0 <= p <= TOP_P_LARGEST:
            bits |= BIT.BAD_TOP_P
        if not 0 <= m <= 1:
            bits |= BIT.BAD_MIN_P
        penalties = [self.value(name, slot) for name in ("repetition", "frequency", "presence")]
        if not np.isfinite(penalties).all() or penalties[0] <= 0:
            bits |= BIT.BAD_PENALTY
        mask = self.mask(b)
        if mask < -1 or case.allow_count and mask >= case.allow_count:
            bits |= BIT.BAD_MASK
        tokens = [case.watch_token[self.watched(b)]] if case.watch_offset is not None else []
        if case.edit_count is not None and not 0 <= case.edit_count[slot] <= case.edit_stride // 4:
            bits |= BIT.BAD_LIST
        else:
            tokens.append(self.edits(b, slot)[0])
        if case.count_offset is not None:
            tokens.append(case.count_token[case.count_offset[slot]:case.count_offset[slot + 1]])
        if case.mode == SCORE:
            tokens.append(case.score_token[b * self.samples:(b + 1) * self.samples])
        if any(((np.asarray(list_) < 0) | (np.asarray(list_) >= self.vocab)).any() for list_ in tokens if len(list_)):
            bits |= BIT.BAD_TOKEN
        return bits | self.over_limit(b, slot, 0 < k < self.vocab and k)

    def over_limit(self, b, slot, k):
        case = self.case
        used = (RULE.TOP_K if k else 0) | (RULE.TOP_P if 0 <= self.value("top_p", slot) < 1 else 0)
        used |= RULE.MIN_P if 0 < self.value("min_p", slot) <= 1 else 0
        used |= RULE.ALLOW if self.mask(b) >= 0 else 0
        used |= RULE.EDITS if len(self.edits(b, slot)[0]) else 0
        penalties = [self.value(name, slot) for name in ("repetition", "frequency", "presence")]
        used |= RULE.PENALTIES if self.has_history() and penalties != [1, 0, 0] else 0
        limit = case.limits.get("top_k", 0)
        return BIT.OVER_LIMIT if used & case.limits.get("absent", 0) or limit and k > limit else 0

    # ------------------------------------------------------------------------------------------------ cuts ----

    def order(self, y, present):
        """Places of present tokens in the total order."""
        places = np.flatnonzero(present)
        return places[np.argsort(-y[places], kind="stable")]

    def looked_at(self, row):
        """The logits that cuts look at."""
        return row.y if self.case.batch_flags & FLAG.CUT_BEFORE_TEMPERATURE else row.l

    def min_p_keeps(self, row, order, min_p):
        """How many tokens of the order min-p keeps."""
        m = self.looked_at(row)[order].astype(np.float64)
        return max(1, int(np.count_nonzero(m >= m[0] + np.log(np.float64(F32(min_p))))))

    def top_k_keeps(self, y, k):
        """How many tokens of the order top-k keeps, y being their logits."""
        return int(np.count_nonzero(y >= y[k - 1])) if self.case.batch_flags & FLAG.KEEP_TIES_TOP_K else int(k)

    def top_p_keeps(self, m, left, p):
        """The fewest and the most tokens of the order that top-p keeps, of which `left` are left."""
        weight = np.exp(m - m[0])
        before = np.cumsum(weight) - weight
        total = weight.sum() if self.case.batch_flags & FLAG.JOINT_TOP_P else weight[:left].sum()
        limit = np.float64(F32(p)) * total
        # Masses of zeros are whole numbers, so that equality with a whole limit is no matter of rounding.
        exact = p == 0 or not m.any() and limit == np.round(limit)
        error = 0 if exact else TOP_P_ERROR * total
        return [self.first_at(before[:left], limit + change) for change in (-error, error)]

    def first_at(self, before, limit):
        """How many tokens have less than the limit before them; one at least."""
        return max(1, int(np.count_nonzero(before < limit)))

    def kept(self, row, order, slot):
        """How many tokens of the order the cuts keep: the fewest and the most that top-p's error allows."""
        flags = self.case.batch_flags
        k, p, min_p = (self.value(name, slot) for name in ("top_k", "top_p", "min_p"))
        y, m = row.y[order], self.looked_at(row)[order].astype(np.float64)
        floor = self.min_p_keeps(row, order, min_p) if min_p > 0 else len(y)
        left = len(y) if flags & FLAG.MIN_P_LAST else floor
        if 0 < k < self.vocab and k < left:
            left = min(left, self.top_k_keeps(y, k))
        low = high = left
        if p < 1:
            # A first token of +inf has all the mass.
            low, high = self.top_p_keeps(m, left, p) if m[0] < np.inf else (1, 1)
            if flags & FLAG.KEEP_TIES_TOP_P:
                low, high = (int(np.count_nonzero(y[:left] >= y[n - 1])) for n in (low, high))
        return min(low, floor), min(high, floor)

    # ------------------------------------------------------------------------------------------------ race ----

    def names(self, b, slot, samples):
        position = self.case.position_all if self.case.position is None else self.case.position[b]
        return noise.names(self.seed(slot), position, samples, int(self.value("substream", slot)))

    def gumbel(self, names, ids):
        return noise.fast(names, ids) if self.case.noise else noise.gumbel(names, ids)

    def scores(self, row, places, g):
        """Scores of tokens: of greedy rows y, of the others l and noise."""
        if row.temperature == 0:
            return np.broadcast_to(row.y[places].astype(np.float64), g.shape)
        return row.l[places] + g if self.case.noise else row.l[places].astype(np.float64) + g

    def by_key(self, scores, ids):
        """Places of scores, best first."""
        return np.argsort(~noise.score_keys(scores, ids), kind="stable")

    def drawn(self, row, places, b, slot):
        """Places of the drawn tokens, of n at most, and their scores."""
        case, ids = self.case, self.ids[places]
        one_name = case.mode != SAMPLE or row.temperature == 0
        names = self.names(b, slot, 1 if one_name else self.samples)
        g = self.gumbel(names, ids) if row.temperature else np.zeros((1, len(ids)))
        scores = self.scores(row, places, g)
        if case.mode == WITHOUT_REPLACEMENT:
            best = self.by_key(scores[0], ids)[:self.samples]
            return places[best], scores[0][best]
        if case.mode in (GROUP_PARALLEL, GROUP_ONLINE):
            best = self.of_groups(row, places, scores[0], names)
            return places[[best]], scores[0][[best]]
        keys = noise.score_keys(scores, ids)
        best = np.resize(keys.argmax(axis=1), self.samples)
        return places[best], np.resize(scores[np.arange(len(scores)), keys.argmax(axis=1)], self.samples)

    def of_groups(self, row, places, scores, names):
        """The paper's B.2 and B.3: the place in `places` of the winner."""
        ids, l = self.ids[places], row.l[places].astype(np.float64)
        best = self.by_key(scores, ids)
        if row.temperature == 0 or abs(l.max()) > FAR or row.one_race:
            return best[0]
        groups, group = np.unique(ids // self.case.group_size, return_inverse=True)
        winner = np.array([next(i for i in best if group[i] == k) for k in range(len(groups))])
        mass = np.array([log_sum_exp(l[group == k]) for k in range(len(groups))])
        if self.case.mode == GROUP_PARALLEL:
            return winner[self.by_key(mass + noise.of_groups(names, groups, noise.GROUP)[0], groups)[0]]
        w0, w1, _, _ = noise.words(groups, names, noise.ONLINE)
        taken, so_far = winner[0], mass[0]
        for k in range(1, len(groups)):
            so_far = np.logaddexp(so_far, mass[k])
            if noise.unit(w0, w1)[0, k] < np.exp(mass[k] - so_far):
                taken = winner[k]
        return taken

    # --------------------------------------------------------------------------------------------- results ----

    def row(self, b, x):
        """All that row b may be, x [V] being transform() of its logits."""
        case = self.case
        slot = b if case.slot is None else int(case.slot[b])
        if slot == -1 or not 0 <= slot < self.slots:
            return [self.without_token(b, BIT.SKIPPED if slot == -1 else BIT.BAD_SLOT)]
        refused = self.refused(b, slot)
        if refused:
            return [self.without_token(b, refused)]
        row = SimpleNamespace(temperature=F32(self.value("temperature", slot)), status=0, one_race=False)
        x = x[:len(self.ids)]
        if self.mask(b) >= 0:
            x = np.where(bit_of(case.allow[self.mask(b)], self.ids), x, F32(-np.inf))
        row.x = self.numbers(row, x)
        if case.batch_flags & FLAG.EDITS_LAST:
            y = self.edited(self.penalised(row.x, slot), b, slot)
        else:
            y = self.penalised(self.edited(row.x, b, slot), slot)
        row.y = self.numbers(row, y)
        row.l = np.where(row.y > -np.inf, self.processed(row.y, row.temperature), F32(-np.inf))
        present = row.l > -np.inf
        if (row.x == np.inf).any() or (row.l == np.inf).any():
            row.status |= BIT.INF
        if not present.any():
            return [self.without_token(b, row.status | BIT.EMPTY)]
        order = self.order(row.y, present)
        low, high = self.kept(row, order, slot)
        rows = [self.with_token(row, b, slot, order, n) for n in range(low, min(high, low + ALTERNATIVES) + 1)]
        if case.mode in (GROUP_PARALLEL, GROUP_ONLINE) and row.status & BIT.INF and row.l.max() < np.inf:
            # An x of +inf that an edit bans: docs/explain/noise.md does not say whether the groups still race as one, which
            # is exact in law too. The CPU backend lets them, the reference does not.
            row.one_race = True
            rows.append(self.with_token(row, b, slot, order, low))
        return rows

    def numbers(self, row, x):
        """x with -inf in place of NaN, which the status tells."""
        nan = np.isnan(x)
        row.status |= BIT.NAN if nan.any() else 0
        return np.where(nan, F32(-np.inf), x)

    def without_token(self, b, status):
        case, watch = self.case, self.watched(b)
        n, top = self.samples, case.top_count
        nothing = {"max_logit": np.nan, "log_z": np.nan}
        nothing.update((name, np.full(n, np.nan)) for name in ("noisy_logit", "logit", "logprob"))
        nothing.update((name, np.full(top, np.nan)) for name in ("top_logit", "top_logprob"))
        nothing.update((name, np.full(watch.stop - watch.start, np.nan)) for name in ("watch_logit", "watch_logprob"))
        return SimpleNamespace(status=int(status), tokens=np.full(n, self.fallback), rank=np.full(n, -1),
                               top_token=np.full(top, -1), far="no", **nothing)

    def with_token(self, row, b, slot, order, kept):
        """The results of a row of which the first `kept` of its order survive."""
        case, alive = self.case, order[:kept]
        out = self.without_token(b, row.status)
        if case.mode == SCORE:
            places = case.score_token[b * self.samples:(b + 1) * self.samples] - case.first_token
            out.tokens = places + case.first_token
        else:
            places, scores = self.drawn(row, np.sort(alive), b, slot)
            out.tokens[:len(places)], out.noisy_logit[:len(places)] = self.ids[places], scores
            out.status |= BIT.SHORT if len(places) < self.samples else 0
        # z is what results speak of, w what orders it, and `listed` the tokens that count.
        z, w = (row.x, row.x) if case.logits == RAW else (row.l, row.y)
        listed = self.order(row.x, row.x > -np.inf) if case.logits == RAW else alive if case.logits == CUT else order
        out.max_logit = z[listed].max()
        log_z = log_sum_exp(z[listed])
        over_all = case.logits != CUT or not self.has_cut(slot)
        if over_all and LOG_Z & set(case.wanted) and log_z < np.inf:
            far = abs(out.max_logit)
            out.far = "no" if far <= FAR else "yes" if far > FAR_SURELY else "either"
        out.log_z = np.nan if out.far == "yes" else log_z
        stays = np.zeros(len(z), bool)
        stays[alive] = True

        def logprob(at):
            if not np.isfinite(out.log_z):
                return np.full(len(at), np.nan)
            value = np.minimum(z[at].astype(np.float64) - out.log_z, 0)
            return np.where(stays[at], value, -np.inf) if case.logits == CUT else value

        inside = (places >= 0) & (places < len(z))
        at, here = places[inside], np.flatnonzero(inside)
        out.logit[here], out.logprob[here] = z[at], logprob(at)
        equal = case.batch_flags & FLAG.RANK_OF_TIES
        ranked = w[listed]
        for i, place in zip(here, at):
            larger = np.count_nonzero(ranked >= w[place] if equal else ranked > w[place])
            out.rank[i] = larger + (0 if equal and place in listed else 1)
        top = listed[:case.top_count]
        out.top_token[:len(top)], out.top_logit[:len(top)], out.top_logprob[:len(top)] = (
            self.ids[top], z[top], logprob(top))
        watch = np.zeros(0, int) if case.watch_offset is None else case.watch_token[self.watched(b)]
        watch = watch - case.first_token
        inside = (watch >= 0) & (watch < len(z))
        out.watch_logit[inside], out.watch_logprob[inside] = z[watch[inside]], logprob(watch[inside])
        return out
