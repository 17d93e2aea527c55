"""Reports files of more than 500 lines. A note, not a failure: such a file needs a reason, and a reader judges it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("include", "src", "cli", "python", "tests", "scripts", "bench"):
    for file in sorted((ROOT / folder).rglob("*")):
        if file.suffix in (".c", ".h", ".cu", ".cuh", ".py", ".sh"):
            lines = len(file.read_text(errors="replace").splitlines())
            if lines > 500:
                print(f"note: {file.relative_to(ROOT)} has {lines} lines")
