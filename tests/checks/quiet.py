"""The library never prints, exits, aborts or asserts: not in its source, not in what its object code calls. What it
allocates it can be given by options.alloc: of the C library's functions for memory it calls aligned_alloc and free
alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("printf vprintf fprintf vfprintf dprintf puts fputs putchar fputc putc fwrite perror write "
         "stdout stderr exit _exit _Exit quick_exit abort assert __assert_fail raise kill signal sigaction "
         "__printf_chk __fprintf_chk __vprintf_chk __vfprintf_chk").split()
MEMORY = ("malloc calloc realloc reallocarray strdup strndup asprintf vasprintf posix_memalign memalign valloc "
          "getline").split()
CALL = re.compile(r"(?<![\w.>])(" + "|".join(NAMES) + r")\s*\(|\b(stdout|stderr)\b|#\s*include\s*<assert\.h>")
bad = []


def code_only(text):
    """Comments and strings become blanks; lines stay where they are."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


for file in sorted((ROOT / "src").rglob("*")):
    if file.suffix in (".c", ".h", ".cu", ".cuh") and "io" not in file.relative_to(ROOT / "src").parts[:1]:
        for number, line in enumerate(code_only(file.read_text()).splitlines(), 1):
            # static_assert is checked by the compiler and says nothing at run time; <assert.h> is where C11 keeps it.
            if (match := CALL.search(line)) and "assert.h" not in match[0]:
                bad.append(f"{file.relative_to(ROOT)}:{number}: {match[1] or match[0]}")

library = Path(os.environ["FS_BUILD"]) / "lib" / "libflashsampling.so"
symbols = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True).stdout
for line in symbols.splitlines():
    name = line.split()[-1].split("@")[0]
    if name in NAMES + MEMORY:
        bad.append(f"{library.name} calls {name}")

for line in bad:
    print(line)
sys.exit(1 if bad else 0)
