#!/usr/bin/env python3
"""What ranks send each other, beside the all-gather of logits, over MPI on this machine: tables in Markdown on stdout.

    bench/ranks.py                            # V = 151,936, B = 1 .. 256, 2 and 4 ranks, every MPI that is here
    bench/ranks.py --ranks 2 --rows 1 64 --seconds 0.2 --mpi openmpi
    bench/ranks.py --overhead                 # the call over one rank beside the plain call

Builds into build/release first if need be.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import mpi  # noqa: E402

BUILD = ROOT / "build" / "release"


def run(command):
    return subprocess.run([str(c) for c in command], env={**os.environ, **mpi.ENVIRONMENT}, check=True,
                          capture_output=True, text=True).stdout


def micros(seconds):
    value = float(seconds) * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def exchanges(name, launch, options):
    program = BUILD / "bench" / f"ranks_{name}"
    program.parent.mkdir(exist_ok=True)
    run([f"mpicc.{name}", "-std=c11", "-O2", f"-I{ROOT}/include", ROOT / "bench" / "ranks_mpi.c", "-o", program,
         f"-L{BUILD}/lib", f"-Wl,-rpath,{BUILD}/lib", f"-lflashsampling_{name}"])
    for ranks in options.ranks:
        print(f"\n### {name}, {ranks} ranks\n\n| B | what is exchanged | bytes per rank | min us | median us | calls |")
        print("|---|---|---|---|---|---|")
        for rows in options.rows:
            out = run([*launch(ranks), program, options.vocab, options.seconds, rows])
            for line in out.splitlines():
                b, way, size, least, median, calls = line.split("\t")
                print(f"| {b} | {way} | {int(size):,} | {micros(least)} | {micros(median)} | {calls} |", flush=True)


def overhead(launchers, options):
    """Plain and over one rank take turns; the difference of the medians."""
    command = [BUILD / "bin" / "flashsample", "bench", "--vocab", options.vocab, "--dim", 1024, "--seconds", options.seconds,
               "--batch", ",".join(str(b) for b in options.rows), "--json", "--quiet"]
    print("| MPI | B | plain min ms | one rank min ms | plain median ms | one rank median ms | of the minima |")
    print("|---|---|---|---|---|---|---|")
    for name, launch in launchers.items():
        turns = [[json.loads(run([*start, *command]))["results"] for start in ([], launch(1))] for _ in range(options.turns)]
        for i, b in enumerate(options.rows):
            least = [min(turn[k][i]["min_s"] for turn in turns) * 1e3 for k in (0, 1)]
            median = [statistics.median(turn[k][i]["median_s"] for turn in turns) * 1e3 for k in (0, 1)]
            print(f"| {name} | {b} | {least[0]:.3f} | {least[1]:.3f} | {median[0]:.3f} | {median[1]:.3f} | "
                  f"{100 * (least[1] / least[0] - 1):+.2f} % |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=0.3, help="per B and way")
    parser.add_argument("--mpi", choices=[row[0] for row in mpi.TABLE])
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--turns", type=int, default=3, help="of plain and one rank, with --overhead")
    options = parser.parse_args()
    launchers = {name: launch for name, launch in mpi.launchers().items() if options.mpi in (None, name)}
    if not launchers:
        sys.exit("bench/ranks.py: neither mpirun.openmpi nor mpirun.mpich is here")
    if options.overhead:
        return overhead(launchers, options)
    for name, launch in launchers.items():
        exchanges(name, launch, options)
    return None


if __name__ == "__main__":
    main()
