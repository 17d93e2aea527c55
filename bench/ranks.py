#!/usr/bin/env python3
"""What ranks send each other, beside the all-gather of logits, over MPI on this machine: tables in Markdown on stdout.

    bench/ranks.py                            # V = 151,936, B = 1 .. 256, 2 and 4 ranks, every MPI that is here
    bench/ranks.py --ranks 2 --rows 1 64 --seconds 0.2 --mpi openmpi
    bench/ranks.py --overhead                 # the call over one rank beside the plain call

Uses what `make build` has left in build/release.
"""
import argparse
import os
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


def compiled(name, source):
    """The program of this MPI from bench/source.c."""
    program = BUILD / "bench" / f"{source}_{name}"
    program.parent.mkdir(exist_ok=True)
    run([f"mpicc.{name}", "-std=c11", "-O2", f"-I{ROOT}/include", ROOT / "bench" / f"{source}.c", "-o", program,
         f"-L{BUILD}/lib", f"-Wl,-rpath,{BUILD}/lib", f"-lflashsampling_{name}", "-lflashsampling"])
    return program


def exchanges(name, launch, options):
    program = compiled(name, "ranks_mpi")
    for ranks in options.ranks:
        print(f"\n### {name}, {ranks} ranks\n\n| B | what is exchanged | bytes per rank | min us | median us | calls |")
        print("|---|---|---|---|---|---|")
        for rows in options.rows:
            out = run([*launch(ranks), program, options.vocab, options.seconds, rows])
            for line in out.splitlines():
                b, way, size, least, median, calls = line.split("\t")
                print(f"| {b} | {way} | {int(size):,} | {micros(least)} | {micros(median)} | {calls} |", flush=True)


def overhead(launchers, options):
    print("| MPI | B | plain median ms | one rank median ms | median of differences us | middle half us | of plain "
          "| pairs |")
    print("|---|---|---|---|---|---|---|---|")
    for name, launch in launchers.items():
        program = compiled(name, "ranks_overhead")
        for line in run([*launch(1), program, options.vocab, 1024, options.seconds, *options.rows]).splitlines():
            b, *values, calls = line.split("\t")
            _, plain, _, one, low, middle, high = (float(v) for v in values)
            print(f"| {name} | {b} | {plain * 1e3:.3f} | {one * 1e3:.3f} | {middle * 1e6:+,.0f} | "
                  f"{low * 1e6:+,.0f} .. {high * 1e6:+,.0f} | {100 * middle / plain:+.2f} % | {calls} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=0.3, help="per B and way")
    parser.add_argument("--mpi", choices=[row[0] for row in mpi.TABLE])
    parser.add_argument("--overhead", action="store_true")
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
