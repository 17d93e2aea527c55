"""Random calls for the oracle: a case is a pure function of (seed, number).

Members of a case have the names of the header's. Most dot products are of small whole numbers over a power of two, so
that every order of additions gives the same float and every token must be equal; `exact` says so.
"""
from types import SimpleNamespace

import numpy as np

from oracle_calls import ARRAYS, RESULTS, _c
from oracle_rules import GROUP_ONLINE, GROUP_PARALLEL, SAMPLE, SCORE, WITHOUT_REPLACEMENT
from oracle_rules import FALLBACK_TOKEN_ZERO, to_bf16, to_float

F32 = np.float32
FLOATS = tuple(_c.ROUNDS.values())
LARGEST_V, LARGEST_D, LARGEST_EVERY = 248_320, 3_072, 2_000  # one case of so many has the largest shape
LARGEST = 1 << 29  # numbers of W: what only the largest shape has more of; it always has a screen
WORK = 60_000  # tokens of all rows and samples, which bounds the time of a case
NOTHING = {"kind": 0, "dtype": 0, "first_token": 0, "vocab": 0, "bias": None, "round_to": 0, "scale": 1.0, "softcap": 0.0,
           "post_scale": 1.0, "flags": 0, "hidden": None, "hidden_dtype": 0, "mode": SAMPLE, "samples": 1, "noise": 0,
           "batch_flags": 0, "fallback_token": -1, "group_size": 0, "list_capacity": 0, "slot_dtype": 8, "slots": 0,
           "position_all": 0, "allow_count": 0, "edit_stride": 0, "logits": 0, "tokens_dtype": 8, "top_count": 0,
           "screen": 0, "exact": True, **dict.fromkeys(ARRAYS)}


ZEROS = {"scale": 1, "post_scale": 1, "samples": 1, "slot_dtype": 8, "tokens_dtype": 8, "fallback_token": -1}


class Generator:
    """Random choices with numpy's generator."""

    def __init__(self, seed, number):
        self.rng = np.random.default_rng([seed, number])

    def chance(self, p):
        return self.rng.random() < p

    def one(self, *values):
        return values[self.rng.integers(len(values))]

    def whole(self, low, high):
        """low to high, both included; small ones more often where the range is wide."""
        if high - low > 64 and self.chance(0.5):
            return int(low + np.exp(self.rng.random() * np.log(high - low + 1)) - 1)
        return int(self.rng.integers(low, high + 1))

    def seed(self):
        return int(self.rng.integers(0, 2**64, dtype=np.uint64)) if self.chance(0.7) else self.whole(0, 3)

    def bits(self, lines, length, share):
        """Random bits [lines, words], with a stride of a word more now and then."""
        words = -(-length // 32)
        array = np.zeros((lines, words + self.whole(0, 1)), np.uint32)
        for i in range(32):
            array |= (self.rng.random(array.shape) < share).astype(np.uint32) << np.uint32(i)
        return array[:, :words]

    def lists(self, count, length, tokens):
        """Offsets [count + 1] and as many tokens."""
        offsets = np.cumsum([0] + [self.whole(0, length) for _ in range(count)])
        return offsets, self.rng.choice(tokens, offsets[-1]).astype(np.int32)


def stored(values, dtype):
    return to_bf16(values) if dtype == _c.DTYPES["bf16"] else values.astype(np.float16 if dtype == 1 else F32)


def strided(g, array):
    """The same numbers, the lines further apart now and then."""
    if len(array) < 2 or array.nbytes > 1 << 26 or g.chance(0.6):
        return np.ascontiguousarray(array)
    wide = np.empty((array.shape[0], array.shape[1] + g.whole(1, 9)), array.dtype)
    wide[:, array.shape[1]:] = 0x7F
    wide[:, :array.shape[1]] = array
    return wide[:, :array.shape[1]]


def shape(g, number):
    """V and D."""
    if number % LARGEST_EVERY == LARGEST_EVERY - 1:
        return LARGEST_V, LARGEST_D
    u = g.rng.random()
    if u < 0.55:
        return g.one(1, 2, 3, 15, 16, 17, 127, 128, 129, *[g.whole(1, 300)] * 20), g.whole(1, 128)
    if u < 0.96:
        return g.whole(100, 3_000), g.whole(1, 128)
    if u < 0.98:
        return g.whole(100, 3_000), g.whole(128, LARGEST_D)
    return (g.whole(3_000, 30_000), g.whole(1, 256)) if u < 0.995 else (g.whole(30_000, LARGEST_V), g.whole(1, 32))


def logits_of(g, B, V):
    """Logits to store, in one of several styles; many have equal ones."""
    style = g.whole(0, 6)
    x = g.rng.normal(size=(B, V)) * g.one(0.5, 1, 2, 5)
    if style == 1:
        x = np.round(x)
    elif style == 2:
        x = np.round(4 * x) / 4
    elif style == 3:
        x[:, g.whole(0, V - 1)] += 15
    elif style == 4:
        x = np.full((B, V), g.one(0, 0, 1, -2.5))
    elif style == 5:
        x *= g.one(30, 1000)
    return x.astype(F32)


def head_of_logits(g, c, V):
    c.kind = 1
    x = logits_of(g, c.rows, V)
    if g.chance(0.12):
        for special in (np.nan, np.inf, -np.inf, -np.inf):
            if g.chance(0.4) and x.size:
                x.flat[g.rng.integers(0, x.size, g.whole(1, 4))] = special
        if g.chance(0.2) and x.size:
            x[0] = g.one(-np.inf, np.nan)
    c.data = strided(g, stored(x, c.dtype))


def head_of_weights(g, c, V, D):
    c.hidden_dtype = g.one(*FLOATS)
    if V * D > 1 << 24:
        c.dtype = g.one(1, 2) if V * D < LARGEST else _c.DTYPES["bf16"]
    c.exact = g.chance(0.75) or V * D > 1 << 24
    if c.exact:
        a, b = (g.one((1, 1), (3, 7), (15, 15), (15, 127)) if D * 15 * 127 < 1 << 24 else (7, 15))
        size = np.sqrt(D) * max(a, 1) * max(b, 1) / 3 / g.one(0.5, 1, 2, 4, 8)
        shift = int(np.clip(np.round(np.log2(size)), 0, 13))
        w = g.rng.integers(-a, a + 1, (min(V, 1 + (1 << 24) // D), D), dtype=np.int8).astype(F32)
        h = g.rng.integers(-b, b + 1, (c.rows, D), dtype=np.int16).astype(F32)
        w, h = w * F32(2.0 ** -(shift // 2)), h * F32(2.0 ** -(shift - shift // 2))
    else:
        w, h = g.rng.normal(size=(V, D)), g.rng.normal(size=(c.rows, D)) * g.one(1, 1, 3) / np.sqrt(D) * g.one(1, 3)
        if g.chance(0.2):
            w[:, g.rng.integers(0, D, 1 + D // 16)] *= 20
    data = stored(w, c.dtype)
    if len(data) < V:  # the largest heads have the same numbers in other columns
        some, data = data, np.empty((V, D), data.dtype)
        for i, first in enumerate(range(0, V, len(some))):
            data[first:first + len(some)] = np.roll(some, i, axis=1)[:V - first]
    c.data, c.hidden = strided(g, data), strided(g, stored(h, c.hidden_dtype))
    if g.chance(1 / 3) or V * D > LARGEST:
        c.screen = g.one(8, 4)
        if c.mode not in (SAMPLE, WITHOUT_REPLACEMENT):
            c.mode, c.samples, c.group_size = SAMPLE, 1, 0
    if g.chance(0.04):
        c.hidden = np.array(c.hidden)
        special = stored(np.array([g.one(np.nan, np.inf)]), c.hidden_dtype)
        c.hidden[g.whole(0, c.rows - 1), g.whole(0, D - 1)] = special[0]


def transform(g, c, V):
    if g.chance(0.2):
        c.bias = np.round(g.rng.normal(size=V) * 4).astype(F32) / 4 * g.one(1, 1, 8)
        if g.chance(0.1):
            c.bias[g.whole(0, V - 1)] = g.one(np.nan, np.inf, -np.inf)
    if g.chance(0.15):
        c.round_to = g.one(1, 2)
    if g.chance(0.2):
        c.scale = float(F32(g.one(0.5, 2, 0.7, 1.3, -1, 0.01, 50)))
    if g.chance(0.08):
        c.softcap, c.exact = float(F32(g.one(30, 5, 0.7))), False
    if g.chance(0.1):
        c.post_scale = float(F32(g.one(0.5, 3, 1.1, -1)))


def slots_of(g, c):
    if g.chance(0.5):
        if g.chance(0.3):
            c.slots = c.rows + g.whole(0, 3)
        return
    c.slots = g.whole(1, c.rows + 3)
    c.slot_dtype = g.one(8, 9)
    c.slot = g.rng.integers(0, c.slots, c.rows).astype(np.int32 if c.slot_dtype == 8 else np.int64)
    if g.chance(0.15):
        c.slot[g.whole(0, c.rows - 1)] = g.one(-1, -1, -2, c.slots, -2**31, 2**31 - 1)


RULES = {  # by name: chance, numpy type, a value
    "temperature": (0.5, F32, lambda g, V: g.one(0, 0.5, 0.7, 1, 1.3, 2, g.rng.random() * 2, g.one(0.01, 1e-3, 1e3))),
    "top_k": (0.3, np.int32, lambda g, V: g.one(0, -1, 1, 2, 3, g.whole(1, 50), g.whole(1, V + 1), V, V - 1, 10**6)),
    "top_p": (0.3, F32, lambda g, V: g.one(0, 1, 1 + 5e-6, 0.1, 0.5, 0.9, 0.95, 0.99, *[g.rng.random()] * 8)),
    "min_p": (0.2, F32, lambda g, V: g.one(0, 1, 0.5, 0.1, 0.05, 0.01, g.rng.random(), g.rng.random() ** 4)),
    "repetition": (0.5, F32, lambda g, V: g.one(1, 1.1, 1.3, 2, 0.8, g.rng.random() + 0.5)),
    "frequency": (0.5, F32, lambda g, V: g.one(0, 0.1, 0.5, 1, -0.5, g.rng.random())),
    "presence": (0.5, F32, lambda g, V: g.one(0, 0.1, 0.5, 1, -0.5, g.rng.random())),
}
CUTS, PENALTIES = ("top_k", "top_p", "min_p"), ("repetition", "frequency", "presence")


def rules_of(g, c, V, tokens):
    history = g.chance(0.3)
    for name, (chance, kind, value) in RULES.items():
        if name in PENALTIES and not history and g.chance(0.9) or not g.chance(chance):
            continue
        if name in CUTS and c.mode in (GROUP_PARALLEL, GROUP_ONLINE):
            continue
        if g.chance(0.5):
            c.all[name] = kind(value(g, V)).item()
        else:
            setattr(c, name, np.array([value(g, V) for _ in range(c.slots or c.rows)], kind))
    if c.kind and c.data.min() == c.data.max() and c.mode not in (GROUP_PARALLEL, GROUP_ONLINE) and g.chance(0.5):
        c.top_p, c.all["top_p"] = None, g.one(0.25, 0.5, 0.75)  # often p times all the mass lies before a token
    S, vocab = c.slots or c.rows, int(tokens[-1]) + 1
    if history:
        if g.chance(0.6):
            c.seen = g.bits(S, vocab, g.one(0.02, 0.3))
        which = g.whole(0, 2)
        if which == 1 and S * vocab < 1 << 20:
            c.counts = g.rng.integers(-1, 4, (S, vocab + g.whole(0, 2)), dtype=np.int32)[:, :vocab]
        elif which == 2:
            c.count_offset, c.count_token = g.lists(S, g.one(3, 40), tokens)
            c.count_value = g.rng.integers(-2, 6, len(c.count_token)).astype(np.int32)
            if len(c.count_value) and g.chance(0.1):
                c.count_value[:] = g.one(2**31 - 1, -2**31)
    if g.chance(0.2):
        lines = g.whole(1, 3) if g.chance(0.5) else c.rows
        c.allow = g.bits(lines, vocab, g.one(0.02, 0.5, 0.95))
        c.allow_count = lines if g.chance(0.6) else 0
        if lines != c.rows or g.chance(0.5):
            c.allow_index = g.rng.integers(-1, lines, c.rows).astype(np.int32)
    if g.chance(0.25):
        edits_of(g, c, S, tokens)


def edits_of(g, c, S, tokens):
    if g.chance(0.5):
        c.edit_offset, c.edit_token = g.lists(c.rows, g.one(3, 60), tokens)
        size = len(c.edit_token)
    else:
        line = g.whole(1, 30)
        c.edit_stride, size = 4 * line, S * line
        c.edit_count = g.rng.integers(0, line + 1, S).astype(np.int32)
        c.edit_token = g.rng.choice(tokens, size).astype(np.int32)
    c.edit_bias = (g.rng.normal(size=size) * g.one(0.5, 5)).astype(F32)
    c.edit_bias[g.rng.random(size) < 0.3] = -np.inf
    if size and g.chance(0.06):
        # One kind of number for all edits of a token: whether NaN shows on one that is banned later is not said.
        c.edit_bias[c.edit_token == c.edit_token[0]] = g.one(np.nan, np.inf, 3e38, -3e38)


def draws_of(g, c, V):
    if g.chance(0.6):
        c.all["seed"] = g.seed()
    if g.chance(0.4):
        c.seed = np.array([g.seed() for _ in range(c.slots or c.rows)], np.uint64)
    if g.chance(0.3):
        c.all["substream"] = g.one(1, 7, 2**32 - 1)
    if g.chance(0.2):
        c.substream = g.rng.integers(0, 2**32, c.slots or c.rows, dtype=np.uint32)
    c.position_all = g.seed()
    if g.chance(0.5):
        c.position = np.array([g.seed() for _ in range(c.rows)], np.uint64)
    c.noise = int(g.chance(0.05))
    for flag in _c.Flag:
        if flag != _c.Flag.KEEP_TIES and g.chance(0.25):
            c.batch_flags |= int(flag)


def results_of(g, c, V, tokens):
    c.logits, c.tokens_dtype = g.whole(0, 2), g.one(8, 9)
    c.fallback_token = g.one(-1, -1, -100, 5, FALLBACK_TOKEN_ZERO)
    c.top_count = g.one(0, 1, 5, 20, 64, 1024 if V < 3000 else 64)
    if g.chance(0.3):
        c.watch_offset, c.watch_token = g.lists(c.rows, 5, tokens)
    plain = g.chance(0.8 if c.screen else 0.3)  # what a screen decides is tokens, scores and status
    wanted = {name for name in RESULTS if g.chance(0 if plain and c.screen else 0.05 if plain else 0.5)} | {"status"}
    if c.watch_offset is None:
        wanted -= {"watch_logit", "watch_logprob"}
    if c.mode != SCORE or g.chance(0.7):
        wanted.add("tokens")
    if c.top_count == 0:
        wanted -= {"top_token", "top_logit", "top_logprob"}
    c.wanted = [name for name in ("tokens", *RESULTS) if name in wanted]  # sets have no order of their own


def spoil(g, c, V):
    """Makes some row's rules wrong, or limits that some row breaks."""
    S = c.slots or c.rows
    row, slot = g.whole(0, c.rows - 1), g.whole(0, S - 1)
    bad = {"temperature": (-1, np.nan, np.inf, 1e-39, -1e-30), "top_p": (-0.1, np.nan, -np.inf, 1.00002, 95, np.inf),
           "min_p": (-0.1, 1.001, np.nan, np.inf), "repetition": (0, -1, np.nan, np.inf),
           "frequency": (np.nan, np.inf, -np.inf), "presence": (np.nan, np.inf, -np.inf)}
    name = g.one(*bad, "token", "token", "mask", "list", "limits", "limits")
    if name in bad and not (name in CUTS and c.mode in (GROUP_PARALLEL, GROUP_ONLINE)):
        if getattr(c, name) is None and g.chance(0.5):
            c.all[name] = float(g.one(*bad[name]))
            return
        if getattr(c, name) is None:
            setattr(c, name, np.full(S, RULES[name][2](g, V) if name not in CUTS else 0, F32))
        getattr(c, name)[slot] = g.one(*bad[name])
    wrong = g.one(-1, V + c.first_token, 2**31 - 1, -2**31)
    lists = [array for array in (c.edit_token, c.count_token, c.watch_token, c.score_token)
             if array is not None and len(array)]
    if name == "token" and lists:
        chosen = g.one(*lists)
        chosen[g.whole(0, len(chosen) - 1)] = wrong
    if name == "mask" and c.allow is not None and c.allow_index is not None:
        c.allow_index[row] = g.one(-2, -2**31, *([c.allow_count, 2**31 - 1] if c.allow_count else []))
    if name == "list" and c.edit_count is not None:
        c.edit_count[slot] = g.one(-1, c.edit_stride // 4 + 1, 2**31 - 1)
    if name == "limits":
        c.limits = {"absent": int(g.rng.integers(0, 64)), "top_k": g.one(0, 1, 10)}


def decidable(c):
    """Takes from a call what makes it read W in place of its screen (docs/explain/screens.md)."""
    c.noise, c.scale, c.post_scale = 0, abs(c.scale), abs(c.post_scale)
    if c.top_k is None and c.min_p is None and not c.all.get("top_k") and not c.all.get("min_p"):
        c.top_p, c.all["top_p"] = None, 1.0


def zeros(c):
    """Zero in place of every scalar's default, which means the same."""
    for name, default in ZEROS.items():
        if getattr(c, name) == default:
            setattr(c, name, 0)
    for name in ("top_p", "repetition"):
        if c.all[name] == 1:
            c.all[name] = 0


def make(seed, number):
    g = Generator(seed, number)
    V, D = shape(g, number)
    c = SimpleNamespace(**NOTHING, all={"temperature": 1.0, "top_p": 1.0, "repetition": 1.0}, limits={}, wanted=[])
    c.mode = g.one(*[SAMPLE] * 6, WITHOUT_REPLACEMENT, WITHOUT_REPLACEMENT, SCORE, g.one(GROUP_PARALLEL, GROUP_ONLINE))
    c.rows = g.whole(1, int(np.clip(WORK // V, 1, g.one(3, 3, 8, 40))))
    if c.mode in (SAMPLE, WITHOUT_REPLACEMENT, SCORE) and g.chance(0.3):
        most = 1024 if V < 50 else 40
        c.samples = g.whole(1, int(np.clip(WORK // (V * c.rows), 1, most)) if c.mode == SAMPLE else most)
    c.group_size = g.whole(1, 2 * V) if c.mode in (GROUP_PARALLEL, GROUP_ONLINE) else 0
    c.group_size = max(c.group_size, V // 200)
    c.dtype = g.one(*FLOATS)
    c.first_token = g.one(0, 0, 0, 0, 16 * g.whole(0, 200), g.whole(0, 10**6)) if V < 30_000 else 0
    if g.chance(0.35) or V * D > LARGEST:
        head_of_weights(g, c, V, D)
    else:
        head_of_logits(g, c, V)
    if g.chance(0.15):
        c.vocab = c.first_token + g.whole(max(1, V - 40), V)
    transform(g, c, V)
    slots_of(g, c)
    end = c.vocab or c.first_token + V
    tokens = np.arange(c.first_token, end)
    draws_of(g, c, V)
    rules_of(g, c, V, tokens)
    results_of(g, c, V, tokens)
    if c.mode == SCORE:
        c.score_token = g.rng.choice(tokens, c.rows * c.samples).astype(np.int32)
    if g.chance(0.2):
        spoil(g, c, V)
    if g.chance(0.1):
        c.list_capacity = g.whole(1, 200)
    if c.screen and (V * D > LARGEST or g.chance(0.7)):
        decidable(c)
    if g.chance(0.2):
        zeros(c)
    return c


def dots(c):
    """Dot products or stored logits in float, and how far from exact products the library's may be; [B, V]."""
    if c.kind:
        return to_float(c.data, c.dtype), 0
    h, V = to_float(c.hidden, c.hidden_dtype), len(c.data)
    step = max(1, (1 << 24) // max(1, c.data.shape[1]))
    kind = F32 if c.exact else np.float64
    x, size = np.empty((c.rows, V), kind), np.zeros((c.rows, V))
    for first in range(0, V, step):
        w = to_float(c.data[first:first + step], c.dtype).astype(kind)
        x[:, first:first + step] = h.astype(kind) @ w.T
        if not c.exact:
            size[:, first:first + step] = np.abs(h.astype(kind)) @ np.abs(w).T
    return x, size * 1e-6


def watch_all(c, ids):
    """A call that asks for the raw logits of all tokens of the same head and hidden states, without rules."""
    plain = SimpleNamespace(**{**vars(c), **NOTHING})
    for member in ("kind", "dtype", "first_token", "vocab", "bias", "round_to", "scale", "softcap", "post_scale", "hidden",
                   "hidden_dtype"):
        setattr(plain, member, getattr(c, member))
    plain.watch_offset = np.arange(c.rows + 1) * len(ids)
    plain.watch_token = np.tile(ids, c.rows).astype(np.int32)
    plain.all, plain.limits, plain.wanted = {"temperature": 1.0}, {}, ["tokens", "watch_logit"]
    return plain
