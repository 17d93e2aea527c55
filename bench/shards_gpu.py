#!/usr/bin/env python3
"""Rules over shards on one GPU: what a shard costs, what the merge of all of them does, and of how many rows the lists of
the shards do not prove the cut (FS_ROW_INCOMPLETE). Language-like rows, T = 1; tokens are compared with those of one call.

    make cuda
    FLASHSAMPLING_LIBRARY=build/cuda/lib/libflashsampling.so python3 bench/shards_gpu.py        # V = 151,936, D = 4,096

Graph replays in turn after the L2 cache was overwritten, medians; Markdown on stdout.
"""
import argparse

import gpu_language
from gpu_bench import ROOT, about, open_bench

CALLS = {"plain": {}, "top-k 50": dict(top_k=50), "top-k 50, top-p .95": dict(top_k=50, top_p=0.95),
         "min-p .05": dict(min_p=0.05), "top-p .9": dict(top_p=0.9), "8 samples": dict(samples=8)}
OPEN = {"top-p .9": dict(top_p=0.9), "top-p .95": dict(top_p=0.95), "min-p .01": dict(min_p=0.01),
        "top-k 50, top-p .95": dict(top_k=50, top_p=0.95)}
TEMPERATURES = (0.7, 1.0, 1.5, 2.0)


class Shards:
    """A head whole, and in parts of whole blocks of 128 tokens."""

    def __init__(self, bench, W, count):
        V, fs = len(W), bench.fs
        ends = [V * i // count // 128 * 128 for i in range(count)] + [V]
        self.bench, self.whole = bench, fs.Head(W, constant=True)
        self.heads = [fs.Head(W[a:b], first_token=a, vocab=V, constant=True) for a, b in zip(ends, ends[1:])]

    def outputs(self, rows, samples):
        torch = self.bench.torch
        return {"tokens": torch.empty(rows, samples, device="cuda", dtype=torch.int32),
                "status": torch.empty(rows, device="cuda", dtype=torch.int32)}

    def arms(self, H, rules, **more):
        """Functions: one shard's part; the merge of all; one call over the whole head. The last two write where said."""
        fs, context = self.bench.fs, self.bench.context
        batches = [fs.Batch(head, H, **{"seed": 1, **rules, **more}) for head in self.heads]
        whole = fs.Batch(self.whole, H, **{"seed": 1, **rules, **more})
        merged, called = (self.outputs(len(H), rules.get("samples", 1)) for _ in range(2))
        parts = [context.partial(head, batch, out=merged) for head, batch in zip(self.heads, batches)]
        return {"shard": lambda: context.partial(self.heads[0], batches[0], out=merged),
                "merge": lambda: context.merge(parts, self.heads[0], batches[0], out=merged),
                "one call": lambda: context.sample(self.whole, whole, out=called)}, merged, called

    def compare(self, H, rules, **more):
        """(rows that are open, others whose tokens differ from one call's)."""
        arms, merged, called = self.arms(H, rules, **more)
        arms["merge"]()
        arms["one call"]()
        self.bench.torch.cuda.synchronize()
        is_open = (merged["status"] & int(self.bench.fs.Row.INCOMPLETE)) != 0
        differ = (merged["tokens"] != called["tokens"]).any(1) & ~is_open
        return int(is_open.sum()), int(differ.sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=8, help="draws of the rows that the rates are of")
    options = parser.parse_args()
    bench = open_bench(ROOT + "/build/bench")
    W = bench.weights(options.vocab, options.dim)
    W[:, :gpu_language.COLUMNS] = 0
    gpu_language.plant(bench, W)
    H = gpu_language.hidden(bench, W.float().T, max(options.rows))[0]
    shards = Shards(bench, W, options.shards)
    print("%(device)s, driver %(driver)s, torch %(torch)s, commit %(commit)s, %(date)s, medians of %(reps)d\n"
          % about(bench, options.reps))
    print("| us: a shard of %d + the merge, one call | %s |\n|---%s|"
          % (options.shards, " | ".join("%d rows" % B for B in options.rows), "|---" * len(options.rows)))
    for name, rules in CALLS.items():
        cells = []
        for B in options.rows:
            times = bench.time_in_turn(shards.arms(H[:B], rules)[0], options.reps)
            cells.append("%.0f + %.0f, %.0f" % tuple(times[arm][1] for arm in ("shard", "merge", "one call")))
        print("| %s | %s |" % (name, " | ".join(cells)), flush=True)
        bench.renew_context()
    print("\n| open rows, others that differ, of %d | %s |\n|---%s|"
          % (options.seeds * len(H), " | ".join("T = %g" % T for T in TEMPERATURES), "|---" * len(TEMPERATURES)))
    for name, rules in OPEN.items():
        found = [[shards.compare(H, rules, temperature=T, seed=seed) for seed in range(options.seeds)]
                 for T in TEMPERATURES]
        print("| %s | %s |" % (name, " | ".join("%d, %d" % tuple(map(sum, zip(*each))) for each in found)), flush=True)


if __name__ == "__main__":
    main()
