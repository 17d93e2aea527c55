"""No flag or pragma that relaxes IEEE arithmetic: neither in the sources and build files nor in what was compiled.

Contraction to fused multiply-adds is off in every file of ours but the tile kernels.
"""

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Written with a gap so that this file does not find itself.
FORBIDDEN = re.compile("|".join(word.replace(" ", "") for word in (
    "-f fast-math", "-O fast", "--use_ fast_math", "-use_ fast_math", "-f unsafe-math-optimizations",
    "-f associative-math", "-f reciprocal-math", "-f finite-math-only", "-f no-signed-zeros", "-f no-honor-",
    "-f cx-limited-range", "--ftz= true", "--prec-div= false",
    "--prec-sqrt= false", "FP_CONTRACT +ON")))
FILES = ["CMakeLists.txt", "tests/CMakeLists.txt", "Makefile", ".ci/run"]
FOLDERS = ["cmake", "src", "include", "cli", "tests", "bench", "examples", "python", "scripts"]

files = [ROOT / name for name in FILES]
for folder in FOLDERS:
    files += [f for f in (ROOT / folder).rglob("*") if f.is_file() and f.suffix in
              (".c", ".h", ".cu", ".cuh", ".cmake", ".txt", ".py", ".sh", ".in", ".toml")]
files.append(Path(os.environ["FS_BUILD"]) / "compile_commands.json")

bad = 0
for file in files:
    if file.exists():
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if match := FORBIDDEN.search(line):
                print(f"{file}:{number}: {match[0]}")
                bad = 1
for entry in json.loads(files[-1].read_text()):
    contraction = re.findall(r"-ffp-contract=(\w+)", entry["command"])
    tile = re.search(r"/src/cpu/kernels/cpu_tile_\w+\.c$", entry["file"])
    if not contraction or (contraction[-1] != "off" and not tile):
        print(f"{entry['file']}: compiled with contraction {contraction}, not off")
        bad = 1
print(f"{len(files)} files")
sys.exit(bad)
