"""Draws a million rows by screens on the GPU and from the weights, and compares them bit for bit.

Calls of 16 rows, or of --batch, three times each: from W, by its screen of 8 bits, by that of 4. Tokens, status, scores and logits are
compared on the device. Rows are those of gpu_screens.py, every one with noise of its own on the hidden state, at
temperatures 0, .3, 1 and 2 side by side; one round in sixteen has rows without a likely token. Then as many rows with
rules: top-k, min-p, top-p after them, masks, and none of these, by turns. What a screen has
decided the device does not tell, but a call that it leaves to W takes longer than W alone: the times say it. In the end
screens lose every other 16 tokens, and the comparison has to see that.
"""
import argparse
import os
import sys

import gpu_bench  # finds the package
from gpu import shape
from gpu_screens import BITS, Heads, hidden

CALLS, ROWS = 64, 16  # of a round
TEMPERATURES = (0.0, 0.3, 1.0, 2.0)
OTHERS = 16  # every so many rounds: rows without a likely token
RULES = dict(top_k=(0, 0, 50, 20, 0, 7, 20, 0), top_p=(1, 1, 1, 0.95, 1, 0.9, 0.8, 1),
             min_p=(0, 0, 0, 0, 0.05, 0, 0.02, 0.2), allow_index=(-1, 0, -1, 1, -1, -1, 2, 3))
ALLOWED = (0.5, 0.02, 0.9, 0.5)  # shares of the vocabulary, of each mask
FIELDS = ("tokens", "status", "noisy_logit", "logit")
HEADER, STRIP_HEAD = 128, 128  # bytes of a screen, of 16 tokens (src/core/screen.h)


class Device:
    """What gpu_screens.py asks of a bench."""

    device = "cuda"

    def __init__(self):
        import torch
        import flashsampling as fs

        torch.manual_seed(3)
        self.torch, self.fs = torch, fs
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        os.environ.setdefault("FLASHSAMPLING_SCREEN_ROWS", str(ROWS))  # also where W is faster
        self.renew_context()

    def renew_context(self):
        self.context = self.fs.Context("cuda", cuda_stream=self.stream.cuda_stream)


class Arm:
    """CALLS prepared calls with one head, and what they draw: [CALLS, ROWS] of every field."""

    def __init__(self, bench, head, H, names, shared):
        torch, fs = bench.torch, bench.fs
        types = dict(tokens=torch.int32, status=torch.int32, noisy_logit=torch.float32, logit=torch.float32)
        self.bench, self.head, self.calls = bench, head, []
        self.out = {name: torch.empty(CALLS, ROWS, dtype=types[name], device=bench.device) for name in FIELDS}
        for i in range(CALLS):
            rows = {name: value[i] for name, value in names.items()}
            batch = fs.Batch(head, H[i * ROWS : (i + 1) * ROWS], **rows, **shared)
            self.calls.append((batch, fs.Result.into(batch, {name: out[i] for name, out in self.out.items()})))

    def run(self):
        for batch, result in self.calls:
            self.bench.context.sample(self.head, batch, out=result)

    def bits(self):
        """[4, CALLS, ROWS] int32; that a row took a second pass is no difference."""
        self.out["status"] &= ~int(self.bench.fs.Row.FALLBACK)
        return self.bench.torch.stack([out.view(self.bench.torch.int32) for out in self.out.values()])


def masks(bench, V):
    """[len(ALLOWED), words] int32."""
    torch, words = bench.torch, (V + 31) // 32
    share = torch.tensor(ALLOWED, device=bench.device)[:, None]
    bits = torch.rand(len(ALLOWED), words * 32, device=bench.device) < share
    return (bits.view(len(ALLOWED), words, 32).long() << torch.arange(32, device=bench.device)).sum(2).int()


class Rounds:
    """Hidden states that change from round to round, the three arms over them, what differed and how long they took."""

    def __init__(self, bench, heads, kinds=("language", "random"), rules=False):
        torch = bench.torch
        B = CALLS * ROWS
        self.bench = bench
        self.sources = {kind: torch.cat([hidden(bench, heads.W, 128, kind) for _ in range(B // 128)]) for kind in kinds}
        self.H = torch.empty_like(self.sources[kinds[0]])
        row = torch.arange(B, device=bench.device).view(CALLS, ROWS)
        self.names = dict(temperature=torch.tensor(TEMPERATURES, device=bench.device)[row % len(TEMPERATURES)],
                          seed=row * 7919 + 13, position=row * 0)
        shared = {}
        if rules:
            turn = (row + row // ROWS) % 8  # another in every call: each kind meets each temperature
            for name, values in RULES.items():
                whole = name in ("top_k", "allow_index")
                kind = torch.int32 if whole else torch.float32
                self.names[name] = torch.tensor(values, dtype=kind, device=bench.device)[turn].contiguous()
            shared["allow"] = masks(bench, heads.W.shape[0])
        arms = {0: heads.plain, **heads.screened}
        self.arms = {bits: Arm(bench, head, self.H, self.names, shared) for bits, head in arms.items()}
        self.found = {kind: torch.zeros(len(BITS), len(TEMPERATURES), dtype=torch.int64, device=bench.device)
                      for kind in kinds}
        self.events = {kind: [] for kind in kinds}

    def run(self, kind):
        torch, H = self.bench.torch, self.sources[kind]
        self.H.copy_(H + 0.05 * H.float().std(1, keepdim=True) * torch.randn(H.shape, device=H.device))
        self.names["position"].add_(1)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(self.arms) + 1)]
        marks[0].record()
        for arm, mark in zip(self.arms.values(), marks[1:]):
            arm.run()
            mark.record()
        want = self.arms[0].bits()
        for i, bits in enumerate(BITS):
            differs = (self.arms[bits].bits() != want).any(0).view(-1, len(TEMPERATURES))
            self.found[kind][i] += differs.sum(0)
        self.events[kind].append(marks)

    def times(self, kind):
        """{bits: median us of a call}, 0 being W."""
        spent = [[a.elapsed_time(b) * 1e3 / CALLS for a, b in zip(marks, marks[1:])] for marks in self.events[kind]]
        return {bits: sorted(one)[len(one) // 2] for bits, one in zip(self.arms, zip(*spent))}


def spoil(screen, rows):
    """Every other 16 tokens have weights and bounds of zero from now on."""
    strips = screen[HEADER:].reshape((rows + 15) // 16, -1)
    strips[::2, :64] = 0  # their norms; what a screen is recognised by stays
    strips[::2, STRIP_HEAD:] = 0


def compare(bench, heads, rows, rules=False):
    """Prints a table; returns what is wrong."""
    rounds, wrong = Rounds(bench, heads, rules=rules), []
    total = -(-rows // (CALLS * ROWS))
    for i in range(total):
        rounds.run("random" if i % OTHERS == OTHERS - 1 else "language")
        if i % 32 == 31:
            bench.torch.cuda.synchronize()
            print("%d of %d rows" % ((i + 1) * CALLS * ROWS, total * CALLS * ROWS), file=sys.stderr, flush=True)
    bench.torch.cuda.synchronize()
    print("With rules:" if rules else "Without rules:")
    print("| rows | bits | compared | differ at T = %s | us a call of %d, W | by the screen |"
          % (", ".join("%g" % t for t in TEMPERATURES), ROWS))
    print("|---|---|---|---|---|---|")
    for kind, found in rounds.found.items():
        if not rounds.events[kind]:
            continue
        times = rounds.times(kind)
        for bits, differ in zip(BITS, found.tolist()):
            print("| %s | %d | %s | %s | %.0f | %.0f |" % (
                kind, bits, format(len(rounds.events[kind]) * CALLS * ROWS, ","), ", ".join(map(str, differ)), times[0],
                times[bits]))
            if sum(differ):
                wrong.append("%d bits, %s: %d rows differ" % (bits, kind, sum(differ)))
            # Of 16 rows with rules 4 bits are the slower ones, and are here because this program asks for them.
            if kind == "language" and times[bits] >= times[0] and not (rules and bits == 4):
                wrong.append("%d bits: not faster than W, so the screen has decided little or nothing" % bits)
    return wrong


def compare_spoilt(bench, heads):
    """What the same comparison finds when screens are wrong; returns what it does not find."""
    for head in heads.screened.values():
        spoil(head.screen, len(heads.W))
    rounds = Rounds(bench, heads, ("language",))
    for _ in range(4):
        rounds.run("language")
    differ = dict(zip(BITS, rounds.found["language"].sum(1).tolist()))
    print("Planted, every other 16 tokens of a screen set to zero: %s of %d rows differ."
          % (", ".join("%d bits %d" % item for item in differ.items()), 4 * CALLS * ROWS))
    return ["%d bits: a spoilt screen was not seen" % bits for bits, count in differ.items() if not count]


def main():
    global ROWS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=shape, default=gpu_bench.HEADS[0], metavar="VxD", help="another head")
    parser.add_argument("--rows", type=int, default=10**6, metavar="N", help="of each format (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="no rows with rules")
    parser.add_argument("--batch", type=int, default=ROWS, metavar="B", help="rows of a call (default: %(default)s)")
    arguments = parser.parse_args()
    ROWS = arguments.batch
    bench = Device()
    print("%s; %s; %d x %d, bf16" % (bench.torch.cuda.get_device_name(), bench.context.text, *arguments.head))
    heads = Heads(bench, *arguments.head)
    wrong = compare(bench, heads, arguments.rows)
    if not arguments.plain:
        bench.renew_context()
        wrong += compare(bench, heads, arguments.rows, rules=True)
    wrong += compare_spoilt(bench, heads)
    print("\n".join(wrong) or "Nothing differs.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
