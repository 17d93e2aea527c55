"""The program that the header begins with: compiles without a warning, runs, and prints what it says."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = pathlib.Path(os.environ["FS_BUILD"]) / "lib"
VOCABULARY = 1000


def program(header: str) -> str:
    """The indented lines of the header's first comment, up to the end of main."""
    comment = header[: header.index("#ifndef")]
    lines = [line[5:] if line.startswith(" *   ") else "" for line in comment.splitlines()]
    first, last = lines.index("#include <flashsampling.h>"), lines.index("}")
    return "\n".join(lines[first : last + 1]) + "\n"


source = program((ROOT / "include" / "flashsampling.h").read_text())
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    (path / "first.c").write_text(source)
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "include"), str(path / "first.c"), "-L", str(LIB),
               f"-Wl,-rpath,{LIB}", "-lflashsampling", "-o", str(path / "first")]
    subprocess.run(command, check=True)
    lines = subprocess.run([path / "first"], check=True, capture_output=True, text=True).stdout.splitlines()
tokens = [[int(word) for word in line.split()] for line in lines]
good = len(tokens) == 3 and all(len(row) == 2 and all(0 <= token < VOCABULARY for token in row) for row in tokens)
print(f"{len(source.splitlines())} lines draw {tokens}")
sys.exit(0 if good else 1)
