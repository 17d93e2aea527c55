"""Reports files of more than 500 lines, and pages of results of more than 80. A note, not a failure: such a file needs
a reason."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("include", "src", "cli", "python", "tests", "scripts", "bench"):
    for file in sorted((ROOT / folder).rglob("*")):
        if file.suffix in (".c", ".h", ".cu", ".cuh", ".py", ".sh"):
            lines = len(file.read_text(errors="replace").splitlines())
            if lines > 500:
                print(f"note: {file.relative_to(ROOT)} has {lines} lines")
for file in sorted((ROOT / "docs" / "results").glob("*.md")):
    lines = len(file.read_text().splitlines())
    if lines > 80:
        print(f"note: {file.relative_to(ROOT)} has {lines} lines")
