"""What documents and comments point to is there: relative links of Markdown files with their #headings, and every
docs/... path in any source, where `docs/a.md, b.md` names two files of one folder and `docs/a.md, "words"` a heading
with those words.

First a small tree with one fault of each kind is looked at: a check that finds none of them finds nothing here either.
"""

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("include", "src", "cli", "python", "tests", "scripts", "bench", "examples", "cmake", "docs", ".ci")
KINDS = {".md", ".c", ".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".txt", ".cmake", ".in", ""}
CITED = re.compile(r'(?<![\w/.-])docs/[\w./-]*\w(?:, [\w-]+\.md)*(?:, "[^"]+")?')


def texts(root):
    """Every file that may point somewhere, and what it says."""
    files = [file for file in root.iterdir() if file.is_file()]
    for folder in FOLDERS:
        files += [file for file in (root / folder).rglob("*") if file.is_file()]
    for file in sorted(files):
        if file.suffix in KINDS and "__pycache__" not in file.parts and file != Path(__file__).resolve():
            yield file, file.read_text(errors="replace")


def headings(file):
    """The headings of a Markdown file, fenced blocks apart, without their marks of code and links."""
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.S | re.M)
    lines = re.findall(r"^#+ +(.*?) *$", text, flags=re.M)
    return [re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", line) for line in lines]


def anchors(file):
    """The names by which a heading is linked to: its words in small letters, joined by hyphens."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(file)}


def broken_links(file, text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        there = (file.parent / path) if path else file
        if re.match(r"[a-z]+:", target):
            continue
        if not there.exists():
            yield f"{target} is not there"
        elif anchor and anchor not in anchors(there):
            yield f"{target}: no such heading"


def broken_citations(root, text):
    text = re.sub(r"\s*\n[ \t]*(\*|#|//)?[ \t]*", " ", text)
    for cited in CITED.findall(text):
        first, *more = re.split(r", ", cited, maxsplit=1)
        words = re.findall(r'"([^"]+)"', cited)
        others = re.findall(r"[\w-]+\.md", "".join(more).split('"')[0])
        names = [first] + [str(Path(first).parent / name) for name in others]
        missing = [name for name in names if not (root / name).exists()]
        yield from (f"{name} is not there" for name in missing)
        if words and not missing and not any(words[0] in heading for heading in headings(root / names[-1])):
            yield f'{names[-1]} has no heading with "{words[0]}"'


def problems(root):
    found = []
    for file, text in texts(root):
        wrong = list(broken_citations(root, text)) + (list(broken_links(file, text)) if file.suffix == ".md" else [])
        found += [f"{file.relative_to(root)}: {what}" for what in wrong]
    return found


def planted():
    """The faults found in a tree that has six."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "src").mkdir()
        (root / "docs").mkdir()
        (root / "docs" / "a.md").write_text("# Some `words`, here\n[self](#some-words-here) [b](b.md) [c](#none)\n")
        (root / "README.md").write_text("[a](docs/a.md#some-words-here) [b](docs/a.md#other) ![p](p.svg)\n")
        (root / "src" / "x.c").write_text('/* docs/a.md, "words, here", docs/a.md,\n * c.md and docs/a.md, "other\n'
                                          ' * words" */\n')
        return problems(root)


if len(planted()) != 6:
    sys.exit("of six planted faults these were found:\n" + "\n".join(planted()))
broken = problems(ROOT)
sys.exit("\n".join(broken) or 0)
