#!/usr/bin/env python3
"""What the way over ranks costs on a GPU where there is one: fs_sample beside fs_sample_ranks over NCCL, the collective
really called.

    make cuda
    FLASHSAMPLING_LIBRARY=build/cuda/lib/libflashsampling.so python3 bench/ranks_gpu.py        # V = 151,936, D = 4,096

Graph replays in turn after the L2 cache was overwritten, medians; Markdown on stdout. The bar is 10 us.
"""
import argparse
import sys
import tempfile

from gpu_bench import ROOT, about, open_bench

sys.path.insert(0, ROOT + "/tests/gpu")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--reps", type=int, default=60)
    options = parser.parse_args()
    bench = open_bench(ROOT + "/build/bench")
    from nccl import Ranks  # after the library is known to load

    torch, fs = bench.torch, bench.fs
    W = bench.weights(options.vocab, options.dim)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(0, 1, folder)
        facts = about(bench, options.reps)
        print("%(device)s, driver %(driver)s, torch %(torch)s, commit %(commit)s, %(date)s, medians of %(reps)d\n"
              % facts)
        print("| B | wanted | plain us | one rank us | difference us |\n|---|---|---|---|---|")
        for B in options.rows:
            H = bench.hidden(B, options.dim)
            for wanted in (("tokens",), ("tokens", "status", "log_z")):
                out = {name: torch.zeros(B, device="cuda", dtype=torch.float32 if name == "log_z" else torch.int32)
                       for name in wanted}

                def call(**more):
                    bench.context.sample(fs.Head(W, constant=True), H, seed=1, out=out, logits_mode="processed", **more)

                arms = {"plain": call, "ranks": lambda: call(ranks=ranks.address)}
                times = bench.time_in_turn(arms, options.reps)
                plain, over = times["plain"][1], times["ranks"][1]
                print("| %d | %s | %.1f | %.1f | %+.1f |" % (B, ", ".join(wanted), plain, over, over - plain),
                      flush=True)
        ranks.close()


if __name__ == "__main__":
    main()
