"""Pages for users have short sentences: at most 40 words each, 18 in the median of a page, and no words that only
the code explains. No commit and no date of a run stands outside of CHANGELOG.md, docs/results and docs/notes.

Code blocks, tables and headings are no sentences, but a cell of a table has at most 40 words too. A list item is a
sentence even without a full stop, and `code` is one word.
First a page with one fault of each kind is looked at: a check that misses one of them finds nothing here either.
"""

import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEDIAN, MOST = 18, 40
READ = ("README.md", "python/README.md", "docs/README.md", "docs/guide/*.md", "docs/reference/*.md")
TIMELESS = (*READ, "docs/explain/*.md")
HASH = re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b")
PRIVATE = re.compile(r"\b(settled|given up|left to W|open row|raced|granule|as (?:they|it) lies?|W is read)\b")
DATE = re.compile(r"\b20\d\d-(0[1-9]|1[0-2])\b")


def blank(pattern, text):
    """The text with what matches replaced by as many newlines as it has, so that lines keep their numbers."""
    return re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.S | re.M)


def sentences(text):
    """Each sentence of a Markdown page: its line and its words."""
    text = blank(r"^```.*?^```$", text)
    text = blank(r"<!--.*?-->|^ *\|[^\n]*$|^#[^\n]*$|!\[[^]]*\]\([^)]*\)", text)
    text = re.sub(r"`[^`]*`", lambda found: "code" + "\n" * found[0].count("\n"), text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    line = 1
    for part in re.split(r"(\n(?:[ \t]*\n)+|\n(?=[ \t]*(?:[-*]|\d+\.) )|(?<=[.!?])[)\]*\"]*\s+)", text):
        words = [word for word in part.split() if re.search(r"\w", word)]
        if words:
            yield line + part[:len(part) - len(part.lstrip())].count("\n"), words
        line += part.count("\n")


def problems(name, text, read):
    """The faults of a page, and its median; 0 for a page that is not read for its sentences."""
    found, lengths = [], []
    for line, words in sentences(text) if read else ():
        lengths.append(len(words))
        if len(words) > MOST:
            found.append(f"{name}:{line}: {len(words)} words: {' '.join(words)}")
    median = statistics.median(lengths) if lengths else 0
    for number, row in enumerate(blank(r"^```.*?^```$", text).splitlines() if read else (), 1):
        for cell in re.sub(r"`[^`]*`|\]\([^)]*\)", "code ", row).split("|")[1:-1] if row.startswith("|") else ():
            if len(cell.split()) > MOST:
                found.append(f"{name}:{number}: a cell of {len(cell.split())} words: {cell}")
    if median > MEDIAN:
        found.append(f"{name}: the median sentence has {median:g} words")
    text = blank(r"^```.*?^```$|^    [^\n]*$|\]\([^)]*\)", text)
    for what, pattern in (("commit", HASH), ("date of a run", DATE), *([("private word", PRIVATE)] if read else [])):
        for match in pattern.finditer(text):
            found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {what}: {match[0]}")
    return found, median


def planted():
    """The faults found in a page with a long sentence, a long median, a long cell, a commit, a date, a private word."""
    page = "# Heading " + "word " * 50 + "\n\n- " + "word " * 41 + ".\n- an item " + "word " * 17
    page += "\n\n| " + "cell " * 41 + "|\n\n```sh\n" + "code " * 60 + "\n2026-01-02 0fab00a\n```\n\n"
    page += "word " * 10 + "`" + "code " * 40 + "` [words](" + "target" * 9 + ") " + "word " * 10 + ".\n"
    page += "A run of " + "word " * 16 + "granule 0fab00a (2026-11-18).\n"
    return problems("a page", page, True)


found, median = planted()
if len(found) != 6 or median != 22 or not found[0].startswith("a page:3: 41 words"):
    sys.exit("of six planted faults, median 22, these were found, median %g:\n%s" % (median, "\n".join(found)))
wrong = []
for pattern in TIMELESS:
    for file in sorted(ROOT.glob(pattern)):
        found, median = problems(file.relative_to(ROOT), file.read_text(), pattern in READ)
        wrong += found
        if pattern in READ:
            print(f"{file.relative_to(ROOT)}: median {median:g} words")
sys.exit("\n".join(wrong) or 0)
