"""The calls that gpu_rules.py times: every rule, with values by row in arrays, on language-like rows (gpu_language.py).

    top-k 50 ... min-p .05   the cuts, at T = 1
    mask                     a bitmask of its own for each row, half of the tokens allowed
    edits, penalties         LISTED tokens by row, 100 of them among its 400 likeliest; one edit in 50 is a ban;
                             repetition, frequency and presence of sparse counts; both in one call list half each
    dense counts, seen bits  the same tokens in an array of the vocabulary, and as bits (repetition alone)
    logprob, top-20          of raw logits; logprob, rank: exact, whatever the rank
    mixed                    the rows take turns in KINDS: greedy, plain, each cut, masked, penalised, edited
    8 samples                8 rows of 8 samples, beside plain draws of 64 rows
    T = 1.5, T = 2, flat     wide rows: top-p .95; flat ones are off by .0025
"""
from typing import Any, NamedTuple

import gpu_language
import gpu_rows

LISTED, LIKELY = 1000, 100
PENALTIES = {"repetition": 1.1, "frequency": 0.1, "presence": 0.2}
KINDS = ("greedy", "plain", "top-k 50", "top-p .9", "top-k 50, top-p .95", "min-p .05", "mask", "penalties", "edits")
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0, "frequency": 0.0, "presence": 0.0}
CUTS = {"top-k 50": {"top_k": 50}, "top-p .9": {"top_p": 0.9}, "top-k 50, top-p .95": {"top_k": 50, "top_p": 0.95},
        "min-p .05": {"min_p": 0.05}}
SAMPLES, SAMPLED_ROWS, SAMPLES_BESIDE = 8, 8, 64
WIDE_P = 0.95
FLAT = 1e-3  # size of what is random in H; that of logits is 2.5 times it


class Call(NamedTuple):
    H: Any  # [B, D]
    logits: Any  # [B, V] float32, what H makes of the head: for the check
    rules: dict  # of a Batch, arrays by row
    outputs: tuple = ()
    top: int = 0

    def on(self, bench, head):
        """A function that queues the call and returns its result; what it reads and writes lives as long as it."""
        row = bench.torch.arange(len(self.H), device=bench.device)
        batch = bench.fs.Batch(head, self.H, seed=row * 7919 + 13, position=bench.position[:len(self.H)], **self.rules)
        result = bench.fs.Result(batch, self.outputs, top=self.top)
        return lambda: bench.context.sample(head, batch, out=result)

    def on_host(self, bench, context, rows):
        """The result of some rows by another context, from stored logits."""
        logits = self.logits[rows.tolist()].cpu().numpy()
        return context.sample(bench.fs.Head(logits=logits), seed=rows * 7919 + 13,
                              position=bench.position.cpu().numpy()[rows], outputs=self.outputs, top=self.top,
                              **rules_of_rows(self.rules, rows))


def rules_of_rows(rules, rows):
    """The rules of some rows, in numpy."""
    import numpy as np

    found = {name: value for name, value in rules.items() if name != "limits"}
    for name, value in found.items():
        if isinstance(value, tuple):
            offset, *columns = (part.cpu().numpy() for part in value)
            at = np.concatenate([np.arange(offset[row], offset[row + 1]) for row in rows])
            offset = np.concatenate([[0], np.cumsum([offset[row + 1] - offset[row] for row in rows])])
            found[name] = (offset, *(column[at] for column in columns))
        elif hasattr(value, "shape"):
            array = (value if name == "allow" and "allow_index" in rules else value[rows.tolist()]).cpu().numpy()
            found[name] = array.view("<u4") if name in ("allow", "seen") else array
    return found


class Rows:
    """What the calls of one head are made of, for up to `most` rows: planted columns, hidden states, lists, masks."""

    def __init__(self, bench, W, most):
        torch, V = bench.torch, W.shape[0]
        torch.set_float32_matmul_precision("highest")
        self.bench, self.W, self.V, self.words = bench, W, V, (V + 31) // 32
        gpu_rows.plant(bench, W)
        gpu_language.plant(bench, W)
        exact = W.float().T
        self.H, self.logits = gpu_language.hidden(bench, exact, most)
        # Flat up to FLAT and not for ties: which of 150,000 of those a cut keeps hangs on the last bit of each logit.
        kinds = {"peaked": gpu_rows.KINDS["peaked"], "Zipf": gpu_rows.KINDS["Zipf"], "flat": gpu_rows.Kind(FLAT)}
        self.kinds = {"language": (self.H, self.logits)}
        for name, kind in kinds.items():
            H = gpu_language.clear(gpu_rows.hidden(bench, W.shape[1], [kind] * most))
            self.kinds[name] = H, H.float() @ exact
        places = torch.cat([torch.arange(0, 4 * LIKELY, 4),
                            torch.linspace(4 * LIKELY, V - 1, LISTED - LIKELY, dtype=torch.float64).long()])
        # Likely ones first would be a list that says where to look.
        places = places[torch.randperm(LISTED)].to(bench.device)
        self.listed = self.logits.argsort(dim=1, descending=True)[:, places].int()
        self.allow = torch.randint(-2**31, 2**31 - 1, (most, self.words), dtype=torch.int32, device=bench.device)

    def full(self, B, value):
        """[B] of one value, of the type the library reads."""
        dtype = self.bench.torch.int32 if isinstance(value, int) else self.bench.torch.float32
        return self.bench.torch.full((B,), value, dtype=dtype, device=self.bench.device)

    def arrays(self, B, **values):
        return {name: self.full(B, value) for name, value in values.items()}

    def chosen(self, B, kind, **values):
        """[B] arrays whose values are those of the rows of one kind, as KINDS go round, and off elsewhere."""
        theirs = self.rows_of(B, kind)
        found = self.arrays(B, **{name: OFF[name] for name in values})
        for name, value in values.items():
            found[name][theirs] = value
        return found

    def rows_of(self, B, kind):
        return self.bench.torch.arange(KINDS.index(kind), B, len(KINDS), device=self.bench.device)

    def lists(self, B, first, last, values, rows=None):
        """(offset, token, value) of the listed tokens first .. last - 1 of each row, or of some rows alone. values are
        repeated along a list."""
        torch = self.bench.torch
        rows = torch.arange(B, device=self.bench.device) if rows is None else rows
        length = torch.zeros(B, dtype=torch.int64, device=self.bench.device)
        length[rows] = last - first
        offset = torch.cat([length.new_zeros(1), length.cumsum(0)])
        along = values[torch.arange(last - first, device=self.bench.device) % len(values)]
        return offset, self.listed[rows, first:last].reshape(-1).contiguous(), along.repeat(len(rows))

    def edits(self, B, first, last, rows=None):
        values = self.bench.torch.linspace(-1.0, 1.0, 50, device=self.bench.device)
        values[25] = float("-inf")
        entries = self.lists(B, first, last, values, rows)
        return {"edits": entries, "limits": {"edits": len(entries[1])}}

    def counts(self, B, first, last, rows=None):
        values = self.bench.torch.arange(1, 4, dtype=self.bench.torch.int32, device=self.bench.device)
        entries = self.lists(B, first, last, values, rows)
        return {"count_list": entries, "limits": {"counts": len(entries[1])}}

    def dense(self, B):
        offset, token, value = self.lists(B, 0, LISTED, self.full(1, 1))
        counts = self.bench.torch.zeros(B, self.V, dtype=self.bench.torch.int32, device=self.bench.device)
        return counts.scatter_(1, token.view(B, LISTED).long(), value.view(B, LISTED))

    def bits(self, B):
        """[B, words] int32: the listed tokens as bits."""
        torch = self.bench.torch
        flags = torch.zeros(B, self.words * 32, dtype=torch.int64, device=self.bench.device)
        flags.scatter_(1, self.listed[:B].long(), 1)
        words = (flags.view(B, self.words, 32) << torch.arange(32, device=self.bench.device)).sum(dim=2)
        return words.int()  # which keeps the lower 32 bits

    def mixed(self, B):
        """Rules of a batch whose rows take turns in KINDS."""
        rules = self.chosen(B, "greedy", temperature=0.0)
        for name, array in self.arrays(B, top_k=0, top_p=1.0, min_p=0.0).items():
            rules[name] = array
        for kind, values in CUTS.items():
            for name, array in self.chosen(B, kind, **values).items():
                rules[name] = self.bench.torch.where(array != OFF[name], array, rules[name])
        rules.update(self.chosen(B, "penalties", **PENALTIES))
        index, masked = self.full(B, -1), self.rows_of(B, "mask")
        index[masked] = masked.int()
        edits, counts = (make(B, 0, LISTED, self.rows_of(B, kind))
                         for make, kind in ((self.edits, "edits"), (self.counts, "penalties")))
        return {**rules, "allow": self.allow[:B], "allow_index": index, **edits, **counts,
                "limits": {**edits["limits"], **counts["limits"]}}

    def calls(self, B):
        """{arm: Call} of B rows, plain draws first."""
        one, penalties, half = self.arrays(B, temperature=1.0), self.arrays(B, **PENALTIES), LISTED // 2
        both = {**self.edits(B, 0, half), **self.counts(B, half, LISTED)}
        both["limits"] = {"edits": B * half, "counts": B * half}
        rules = {"plain": {}, **{name: self.arrays(B, **values) for name, values in CUTS.items()}}
        rules["mask"] = {"allow": self.allow[:B]}
        rules["edits"] = self.edits(B, 0, LISTED)
        rules["penalties"] = {**penalties, **self.counts(B, 0, LISTED)}
        rules["penalties, edits"] = {**penalties, **both}
        rules["dense counts"] = {**penalties, "counts": self.dense(B)}
        rules["seen bits"] = {"repetition": penalties["repetition"], "seen": self.bits(B)}
        if B >= len(KINDS):
            rules["mixed"] = self.mixed(B)
        for T in (1.5, 2.0):
            rules["T = %g, top-p .95" % T] = self.arrays(B, temperature=T, top_p=WIDE_P)
        H, logits = self.H[:B], self.logits[:B]
        found = {name: Call(H, logits, {**one, **more}) for name, more in rules.items()}
        found["flat, top-p .95"] = self.wide("flat", B, 1.0)
        found["logprob, top-20"] = Call(H, logits, one, ("logprob",), 20)
        found["logprob, rank"] = Call(H, logits, {**one, "exact_rank": True}, ("logprob", "rank"))
        if B == SAMPLES_BESIDE:
            few = {**self.arrays(SAMPLED_ROWS, temperature=1.0), "samples": SAMPLES}
            found["8 samples"] = Call(H[:SAMPLED_ROWS], logits[:SAMPLED_ROWS], few)
        return found

    def wide(self, kind, B, T, first=0):
        """Top-p .95 of B rows of a kind, at a temperature."""
        H, logits = (part[first:first + B] for part in self.kinds[kind])
        return Call(H, logits, self.arrays(B, temperature=T, top_p=WIDE_P))
