"""Times draws by a head's screen on the GPU beside the same draws from its weights, and checks that they are the same.

    sizes   batch sizes of four heads, language-like rows, T = 1: reading W and the screens once, cuBLAS alone, ours,
            ours with a screen of 8 bits and of 4
    rows    the first head at three sizes: other temperatures, rows without a likely token, flat rows, rows of zeros
    rules   the same, language-like rows: cuts, a mask that leaves half of the tokens, counts of 1,000 tokens by row,
            four samples
    shards  parts (fs_partial) of the first half and quarter of the first head, language-like rows
    left    the first head with 16 columns 40 times as large as the others, too much for the steps of 4 bits: calls that
            a screen leaves to W, each behind one that it decides; and nothing but such calls, of which most go to W at
            once: their mean

Weights are normal, rows of norm 1 +- 15 %, one row in twenty with an outlier; hidden states have norms of 140 to 180,
every other one with outlier columns, and are turned towards 30 tokens, so that these have three quarters of the mass,
by Zipf's law. How calls are timed: gpu_bench.py. The page of a run: python bench/gpu_screens.py --page PAGE.json.
"""
import argparse
import os
import statistics

import gpu_tables
import report
from gpu import line_of, say, shape
from gpu_bars import by_head, head_name
from gpu_bench import HEADS, add_run_options, begin_run

MORE_HEADS = ((151936, 2048), (262208, 2304))
LISTED = 1000
SIZES, ROW_SIZES, RULE_SIZES = (1, 2, 4, 8, 9, 12, 16, 17, 24, 32, 33, 64), (1, 8, 16, 24), (1, 8, 16)
SHARDS, SHARD_SIZES = {"a half": 2, "a quarter": 4}, (1, 8, 16, 32)
LARGE, LARGER, LEFT_SIZES, CYCLE = 16, 40.0, (1, 8, 16, 32), 64
LIKELY, SHARE = 30, 0.75  # tokens, and of the mass
CHECKED = 32  # draws of each call that are compared
BITS = (8, 4)
SHOWN = (1, 4, 8, 16, 17, 24, 32, 64)  # in tables; the plot has all
PLOTTED = {"cublas": "cuBLAS alone, nothing drawn", "ours": "ours", "8 bits": "ours, 8-bit screen",
           "4 bits": "ours, 4-bit screen", "ceiling": "reading W once", "read 8": "reading the 8-bit screen once",
           "read 4": "reading the 4-bit screen once"}
KINDS = {"language, T = .7": ("language", 0.7), "language, greedy": ("language", 0.0),
         "language, T = 5": ("language", 5.0), "random, T = 1": ("random", 1.0), "flat": ("flat", 1.0),
         "zeros": ("zeros", 1.0)}


def weights(bench, V, D):
    torch = bench.torch
    W = torch.empty(V, D, dtype=torch.bfloat16, device=bench.device)
    for piece in W.split(16384):
        rows = torch.randn(piece.shape, device=bench.device) / D**0.5
        rows *= 1 + 0.15 * torch.randn(len(rows), 1, device=bench.device)
        some = (torch.rand(len(rows), device=bench.device) < 0.05).nonzero()[:, 0]
        rows[some, torch.randint(0, D, (len(some),), device=bench.device)] *= 6
        piece.copy_(rows)
    return W


def hidden(bench, W, B, kind):
    torch, (V, D) = bench.torch, W.shape
    if kind == "zeros":
        return torch.zeros(B, D, dtype=torch.bfloat16, device=bench.device)
    H = torch.randn(B, D, device=bench.device)
    H[::2, torch.randint(0, D, (4,), device=bench.device)] *= 15
    H *= (140 + 40 * torch.rand(B, 1, device=bench.device)) / H.norm(dim=1, keepdim=True)
    if kind == "flat":
        H *= 0.01
    if kind == "language":
        token = torch.stack([torch.randperm(V, device=bench.device)[:LIKELY] for _ in range(B)])
        rest = torch.logsumexp((H.bfloat16() @ W.T).float(), 1, keepdim=True)
        rank = torch.arange(LIKELY, device=bench.device) + 1.0
        p = rank ** -(1.1 + 0.5 * torch.rand(B, 1, device=bench.device))
        p *= SHARE / p.sum(1, keepdim=True)
        rows = W[token].float()
        missing = rest + torch.log(p / (1 - SHARE)) - torch.einsum("bnd,bd->bn", rows, H)
        turn = torch.linalg.solve(torch.einsum("bnd,bmd->bnm", rows, rows), missing[..., None])[..., 0]
        H += torch.einsum("bn,bnd->bd", turn, rows)
    return H.bfloat16()


def rules(bench, V, B):
    """{name: rules of a Batch}, arrays by row."""
    torch = bench.torch
    full = lambda value: torch.full((B,), value, dtype=torch.int32 if isinstance(value, int) else torch.float32,
                                    device=bench.device)
    words = torch.randint(-2**31, 2**31 - 1, (B, (V + 31) // 32), dtype=torch.int32, device=bench.device)
    tokens = torch.cat([torch.randperm(V, dtype=torch.int32, device=bench.device)[:LISTED] for _ in range(B)])
    offset = torch.arange(B + 1, device=bench.device) * LISTED
    counts = dict(count_list=(offset, tokens, tokens % 3 + 1), limits={"counts": B * LISTED}, repetition=full(1.1),
                  frequency=full(0.1), presence=full(0.2))
    k, both = dict(top_k=full(50)), dict(top_k=full(20), top_p=full(0.95))
    return {"top-k 50": k, "top-k 20, top-p .95": both, "min-p .05": dict(min_p=full(0.05)),
            "mask": dict(allow=words), "top-k 20, top-p .95, mask": dict(both, allow=words), "counts": counts,
            "top-k 20, top-p .95, counts": dict(both, **counts), "4 samples": dict(samples=4)}


class Heads:
    """W as a head, and with each screen."""

    def __init__(self, bench, V, D):
        torch, fs = bench.torch, bench.fs
        self.W = weights(bench, V, D)
        self.plain, self.screened, self.seconds = fs.Head(self.W, constant=True), {}, {}
        for bits in BITS:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            screen = bench.context.screen(self.plain, bits, seed=5)
            after.record()
            torch.cuda.synchronize()
            self.screened[bits] = fs.Head(self.W, constant=True, screen=screen)
            self.seconds[bits] = before.elapsed_time(after) * 1e-3

    def differences(self, bench, H, temperature, rules):
        """Tokens that are not those of W, in CHECKED draws of every row."""
        found = {}
        for bits, head in self.screened.items():
            found[bits] = 0
            for seed in range(CHECKED):
                call = dict(rules, seed=seed,
                            temperature=bench.torch.full((len(H),), temperature, device=bench.device))
                one, two = bench.context.sample(head, H, **call), bench.context.sample(self.plain, H, **call)
                found[bits] += int((one.tokens != two.tokens).sum())
        return found


def measure_shard(bench, heads, name, B, reader, reps):
    torch, fs, (V, D) = bench.torch, bench.fs, heads.W.shape
    W, arms = heads.W[: V // SHARDS[name] // 128 * 128], {}
    H = hidden(bench, heads.W, B, "language")
    for bits in (0, *BITS):
        screen = bench.context.screen(fs.Head(W, vocab=V), bits, seed=5) if bits else None
        head = fs.Head(W, vocab=V, constant=True, screen=screen)
        batch = fs.Batch(head, H, seed=1, position=bench.position[:B])
        out = {"tokens": torch.empty(B, 1, dtype=torch.int32, device=bench.device)}
        arms["%d bits" % bits if bits else "ours"] = lambda h=head, b=batch, o=out: bench.context.partial(h, b, out=o)
    parts = {arm: run() for arm, run in arms.items()}
    differ = {bits: int(not torch.equal(parts["%d bits" % bits], parts["ours"])) for bits in BITS}
    line = line_of(bench, W, reader, B, arms, dict(reps=reps, warm_ups=8), table="shards", name="language, " + name)
    bench.renew_context()
    return dict(line, differ=differ, checked=B)


def measure_left(bench, V, D, B, reps):
    """Two lines."""
    torch, fs = bench.torch, bench.fs
    W = weights(bench, V, D)
    W[:, :LARGE] *= LARGER
    bad = hidden(bench, W, B, "random")
    good, rows = bad.clone(), bad.clone()
    good[:, :LARGE] = 0
    alone, every = {}, {}
    for bits in (0, *BITS):
        screen = bench.context.screen(fs.Head(W), bits, seed=5) if bits else None
        graph = bench.capture(bench.draw(fs.Head(W, constant=True, screen=screen), rows, 1.0))
        spent = []
        for i in range(2 * reps):
            rows.copy_(bad if i % 2 else good)
            spent.append(bench.time_once(graph))
        name = "%d bits" % bits if bits else "ours"
        alone[name] = {"min": min(spent[1::2]), "median": statistics.median(spent[1::2])}
        rows.copy_(bad)
        spent = [bench.time_once(graph) for _ in range(2 * CYCLE)][CYCLE:]
        every[name] = {"min": min(spent), "median": statistics.median(spent), "mean": statistics.mean(spent)}
        del graph
    bench.renew_context()
    line = dict(V=V, D=D, B=B, table="left", differ={}, checked=0)
    return [dict(line, name="each behind one that is decided", times=alone), dict(line, name="nothing else", times=every)]


def measure(bench, heads, B, kind, temperature, reader, reps, H=None, rules={}, **more):
    H = hidden(bench, heads.W, B, kind) if H is None else H
    differ = heads.differences(bench, H, temperature, rules)
    arms = {"cublas": lambda: bench.torch.mm(H, heads.W.T), "ours": bench.draw(heads.plain, H, temperature, **rules)}
    for bits, head in heads.screened.items():
        arms["%d bits" % bits] = bench.draw(head, H, temperature, **rules)
        arms["read %d" % bits] = lambda head=head: bench.read(reader, head.screen)
    line = line_of(bench, heads.W, reader, B, arms, dict(reps=reps, warm_ups=8), kind=kind, temperature=temperature,
                   **more)
    line["differ"], line["checked"] = differ, CHECKED * B * rules.get("samples", 1)
    bench.renew_context()
    return line


def run(bench, arguments, facts):
    lines, made = [], []
    for V, D in arguments.heads or HEADS + MORE_HEADS:
        heads = Heads(bench, V, D)
        reader = bench.best_reader(heads.W)
        made.append(dict(V=V, D=D, seconds=heads.seconds,
                         bytes={bits: head.screen.numel() for bits, head in heads.screened.items()}))
        for B in arguments.rows or SIZES:
            lines.append(measure(bench, heads, B, "language", 1.0, reader, arguments.reps, table="sizes"))
        if (V, D) == (arguments.heads or HEADS)[0]:
            for name, (kind, temperature) in KINDS.items():
                for B in ROW_SIZES:
                    lines.append(measure(bench, heads, B, kind, temperature, reader, arguments.reps, table="rows",
                                         name=name))
            for B in RULE_SIZES:
                H = hidden(bench, heads.W, B, "language")
                for name, each in rules(bench, V, B).items():
                    lines.append(measure(bench, heads, B, "language", 1.0, reader, arguments.reps, H=H, rules=each,
                                         table="rules", name="language, " + name))
            lines += [measure_shard(bench, heads, name, B, reader, arguments.reps)
                      for name in SHARDS for B in SHARD_SIZES]
            heads = None
            for B in LEFT_SIZES:
                lines += measure_left(bench, V, D, B, arguments.reps)
        say("%d x %d" % (V, D))
        heads = None
    results = dict(facts, note="", made=made, tables={"screens": lines})
    gpu_tables.save(arguments.json, results)
    print("\n".join(blocks(results).values()))


# ---------------------------------------------------------------------------------------------------------- page ----


def median(line, arm):
    """Or the mean, of what comes and goes."""
    return line["times"][arm].get("mean", line["times"][arm]["median"])


def share(line, bits):
    return median(line, "%d bits" % bits) / median(line, "ours")


def real_blocks(lines):
    """What gpu_real_screens.py has found on a head like a real one."""
    return report.table([{"151,936 x 4,096, like a real model's": "%d bits, %s" % (line["bits"], line["rules"]),
                          "rows decided": "%d of %d" % (line["decided"], line["rows"]),
                          "one row, us (share of W)": "%.0f (%.2f)" % (line["one"], line["one"] / line["W"]),
                          **{"B = %d" % B: "%.0f (%.2f)" % (screen, screen / W)
                             for B in (4, 8, 16) for W, screen in [line.get("B = %d" % B, (0, 0))] if W}}
                         for line in lines])


def blocks(results):
    """The worst first, sizes, and a table for each of the others."""
    lines = results["tables"]["screens"]
    wrong = sum(sum(line["differ"].values()) for line in lines)
    drawn = 2 * sum(line.get("checked", CHECKED * line["B"]) for line in lines)
    worst = max(share(line, bits) for line in lines for bits in BITS if line["table"] != "left")
    text = report.about(results) + "Tokens that differ from those of W: %s of %d. Slowest over W: %.2f.\n" % (
        report.bold(wrong, wrong), drawn, worst)
    made = report.table([{"V x D": head_name(each), **{
        "%s bits: MB, seconds to make" % bits: "%.0f, %.3f" % (size / 1e6, each["seconds"][bits])
        for bits, size in each["bytes"].items()}} for each in results["made"]])
    found = {"run": text, "made": made, "real": real_blocks(results.get("real", ()))}
    for name in ("sizes", "rows", "rules", "shards", "left"):
        chosen = [line for line in lines if line["table"] == name]
        label = head_name if name == "sizes" else lambda line: line["name"].replace("language, ", "")
        found[name] = report.over_sizes(chosen, label, cell, SHOWN, name)
    return found


def cell(line):
    """Microseconds from W, with 8 bits and 4, and the shares of the last two; bold where one is slower than W."""
    shares = share(line, 8), share(line, 4)
    return report.bold("%.0f / %.0f / %.0f (%.2f, %.2f)" % (
        *(median(line, arm) for arm in ("ours", "8 bits", "4 bits")), *shares), max(shares) > 1.05)


def plot(results, path):
    """Language-like rows at T = 1."""
    panels = []
    lines = [line for line in results["tables"]["screens"] if line["table"] == "sizes"]
    for head in by_head(lines).values():
        panels.append({"title": head_name(head[0]), "xlog": True, "xticks": (1, 2, 4, 8, 16, 32, 64), "bottom": 0,
                       "curves": [(label, [(line["B"], median(line, arm)) for line in head])
                                  for arm, label in PLOTTED.items()]})
    return report.plot(path, panels, "%(device)s, commit %(commit)s, %(date)s; a synthetic head" % results, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=shape, nargs="+", metavar="VxD", help="these heads instead")
    parser.add_argument("--rows", type=int, nargs="+", metavar="B", help="these batch sizes instead")
    parser.add_argument("--reps", type=int, default=30, help="timed repetitions of each arm (default: %(default)s)")
    parser.add_argument("--page", metavar="PAGE.json", help="write the blocks of PAGE.md and PAGE-sizes.svg of a run")
    add_run_options(parser)
    arguments = parser.parse_args()
    if arguments.page:
        base, results = os.path.splitext(arguments.page)[0], report.load(arguments.page)
        report.fill(base + ".md", blocks(results))
        plot(results, base + "-sizes.svg")
        return
    arguments.warm_ups = 8
    bench, facts = begin_run(arguments)
    run(bench, arguments, facts)


if __name__ == "__main__":
    main()
