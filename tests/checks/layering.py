"""Who may include whom. core includes only core; a backend includes core, error.h and backend.h, never another backend.

The arrows of ARCHITECTURE.md, one row each; a folder without a row may include nothing of ours. A file's own row adds
to its folder's.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = {"core", "error.h", "backend.h", "flashsampling.h"}
LAUNCH = {"core", "cuda/cuda_call.h", "cuda/cuda_launch.h", "cuda/cuda_plan.h", "flashsampling.h"}
# Headers for which flashsampling.h stands in this table.
PUBLIC = {"flashsampling_screens.h", "flashsampling_ranks.h"}
ROOTS = ("src", "include", "cli", "bench", "tests/callers", "examples")
ALLOWED = {
    "src/core": {"core", "flashsampling.h"},
    "src/ref": SHARED | {"ref"},
    # Kernels know what they look for; a filter knows its task's rows; a pass knows both.
    "src/cpu": SHARED | {"cpu", "cpu/filter", "cpu/kernels"},
    "src/cpu/filter": {"core", "cpu/filter", "cpu/kernels", "cpu/cpu_arena.h", "cpu/cpu_lists.h", "cpu/cpu_race.h",
                       "cpu/cpu_rows.h", "cpu/cpu_shared.h", "flashsampling.h"},
    "src/cpu/kernels": {"core", "cpu/kernels", "cpu/filter/cpu_filter.h", "flashsampling.h"},
    "src/cuda": SHARED | {"cuda"},
    # What all kernels share knows none of them; they know what a launch is given, and nothing of the host.
    "src/cuda/device": LAUNCH | {"cuda/device"},
    "src/cuda/fused": LAUNCH | {"cuda/device", "cuda/fused"},
    "src/cuda/stored": LAUNCH | {"cuda/device", "cuda/stored"},
    "src/cuda/groups": LAUNCH | {"cuda/device", "cuda/stored/blocks.cuh"},
    "src/cuda/ranks": LAUNCH | {"cuda/device", "cuda/ranks"},
    "src/cuda/rows": LAUNCH | {"cuda/device", "cuda/rows"},
    "src/cuda/screen": LAUNCH | {"cuda/device", "cuda/fused/pieces.cuh", "cuda/fused/cuts.cuh", "cuda/rows/logits.cuh",
                                 "cuda/rows/teams.cuh", "cuda/screen"},
    "src/screen": SHARED | {"screen"},
    "src/dist": SHARED | {"dist"},
    # A transport is a library of its own: it sees what a user sees.
    "src/dist/mpi": {"flashsampling.h", "flashsampling_mpi.h"},
    "src/dist/nccl": {"flashsampling.h", "flashsampling_nccl.h"},
    "src/io": {"io"},
    # So is what the Python package calls.
    "src/python": {"python", "flashsampling.h"},
    "src": SHARED | {"check.h", "dist", "screen"},
    # A build without CUDA checks CUDA's environment variables too.
    "src/backend.c": {"cuda/cuda_environment.h"},
    "cli": {"cli", "io", "flashsampling.h"},
    # What two commands measure with uses what all of them share, and nothing of their arguments.
    "cli/cmd_bench.c": {"bench"},
    "cli/cmd_demo.c": {"bench"},
    "bench": {"bench", "cli/cli.h", "cli/device.h", "cli/half.h", "cli/parallel.h", "cli/place.h", "cli/print.h",
              "cli/ranks.h", "cli/shards.h", "cli/synth.h", "cli/truth.h", "flashsampling.h", "flashsampling_mpi.h"},
    # A prototype around a tile of the fused kernel.
    "bench/endrow": LAUNCH | {"cuda/device", "cuda/fused", "bench/endrow"},
    "include": {"flashsampling.h"},
    "tests/callers": {"flashsampling.h"},
    "examples": {"flashsampling.h", "flashsampling_mpi.h", "flashsampling_nccl.h"},
}
# Who may include what is not ours and not everywhere.
FOREIGN = {
    "mpi.h": {"include/flashsampling_mpi.h", "src/dist/mpi", "bench", "examples"},
    "nccl.h": {"include/flashsampling_nccl.h", "src/dist/nccl", "examples"},
}

bad = []
count = 0
for file in sorted(file for root in ROOTS for file in (ROOT / root).rglob("*")):
    if file.suffix not in (".c", ".h", ".cu", ".cuh"):
        continue
    folder, path = str(file.parent.relative_to(ROOT)), str(file.relative_to(ROOT))
    allowed = ALLOWED.get(folder, set()) | ALLOWED.get(path, set())
    count += 1
    for number, line in enumerate(file.read_text().splitlines(), 1):
        foreign = re.match(r"\s*#\s*include\s*<(\w+\.h)>", line)
        if foreign and foreign[1] in FOREIGN:
            if not {folder, path} & FOREIGN[foreign[1]]:
                bad.append(f"{path}:{number}: {foreign[1]} is for {sorted(FOREIGN[foreign[1]])}")
        match = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<(flashsampling\w*\.h)>)', line)
        if not match:
            continue
        name = match[1] or match[2]
        # What is meant: relative to the file first, as the compiler does, then to what -I names.
        places = [(file.parent / name).resolve(), *(ROOT / root / name for root in ("src", "include", "cli", "bench"))]
        place = next((p for p in places if p.exists()), None)
        if place is None:
            bad.append(f"{path}:{number}: {name} is not a file of ours")
            continue
        inside = place.relative_to(ROOT).parts  # ("src", "core", "key.h"), ("include", "flashsampling.h")
        # A file is allowed by its folder or by its own name; of src and include that alone.
        within = inside[1:] if inside[0] in ("src", "include") else inside
        if inside[-1] in PUBLIC:
            within = ("flashsampling.h",)
        if not {"/".join(within[:-1]), "/".join(within)} & allowed:
            bad.append(f"{path}:{number}: {folder} may not include {'/'.join(inside)}")

for line in bad:
    print(line)
print(f"{count} files")
sys.exit(1 if bad else 0)
