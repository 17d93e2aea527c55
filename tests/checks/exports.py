"""The shared library exports exactly the functions of tests/exports.txt: no helper, no data, nothing forgotten.

Also: each is declared in the header and the other way round, the soname follows the version, and the archive defines no
global name that could collide with a caller's.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIB = Path(os.environ["FS_BUILD"]) / "lib"
bad = []


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


def compare(what, have, want):
    bad.extend(f"{what} has {name}, tests/exports.txt does not" for name in sorted(have - want))
    bad.extend(f"tests/exports.txt has {name}, {what} does not" for name in sorted(want - have))


lines = (ROOT / "tests" / "exports.txt").read_text().splitlines()
want = {line for line in lines if line and not line.startswith("#")}

exported = [line.split() for line in run("nm", "-D", "--defined-only", LIB / "libflashsampling.so").splitlines()]
for _, kind, name in exported:
    if kind != "T":
        bad.append(f"{name} is exported as {kind}: only functions are")
compare("the library", {name.split("@")[0] for _, _, name in exported}, want)

headers = [ROOT / "include" / ("flashsampling%s.h" % part) for part in ("", "_screens", "_ranks")]
header = re.sub(r"/\*.*?\*/", " ", "".join(path.read_text() for path in headers), flags=re.S)
compare("the header", set(re.findall(r"FS_API\s[^;]*?(fs_\w+)\s*\(", header)), want)

for line in run("nm", "-g", "--defined-only", LIB / "libflashsampling.a").splitlines():
    parts = line.split()
    if len(parts) == 3 and not parts[2].startswith("fs_"):
        bad.append(f"the archive defines {parts[2]}: global names begin with fs_")

for line in run("nm", "-D", "--defined-only", LIB / "libflashsampling_python.so").splitlines():
    if not line.split()[2].startswith("fs_python_"):
        bad.append(f"libflashsampling_python.so exports {line.split()[2]}: its names begin with fs_python_")

major, minor = (int(re.search(rf"FS_VERSION_{part} (\d+)", header)[1]) for part in ("MAJOR", "MINOR"))
soname = f"libflashsampling.so.{major}" if major else f"libflashsampling.so.0.{minor}"
if f"[{soname}]" not in run("readelf", "-d", LIB / "libflashsampling.so"):
    bad.append(f"the soname is not {soname}")

for line in bad:
    print(line)
print(f"{len(want)} functions")
sys.exit(1 if bad else 0)
