"""What docs/reference/python.md tells people to type works, and prints what the page says it prints.

Its blocks ```python run are run in order in one session, as a reader would type them: names of one are there in the
next. `run torch` or `run transformers` says what a block needs beside numpy; without it the block is skipped. A plain
block that follows at once is all that it prints.
"""
import importlib.util
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md"
BLOCK = re.compile(r"^```python run(?: (?P<needs>\w+))?\n(?P<body>.*?)^```\n(?:\n```\n(?P<prints>.*?)^```\n)?",
                   re.S | re.M)
BLOCKS = list(BLOCK.finditer(PAGE.read_text()))


class Session:
    """One Python session: each block once, and those before it first."""

    def __init__(self):
        self.names, self.printed = {"__name__": "page"}, []

    def missing(self, block):
        needs = BLOCKS[block]["needs"]
        modules = (needs, "flashsampling." + needs) if needs else ()
        return next((name for name in modules if importlib.util.find_spec(name) is None), None)

    def run(self, block, capsys):
        while len(self.printed) <= block:
            found = BLOCKS[len(self.printed)]
            if self.missing(len(self.printed)):
                self.printed.append(None)
                continue
            line = found.string.count("\n", 0, found.start("body"))
            code = compile("\n" * line + found["body"], str(PAGE), "exec")  # a traceback has the page's line
            capsys.readouterr()
            exec(code, self.names)
            self.printed.append(capsys.readouterr().out)
        return self.printed[block]


@pytest.fixture(scope="module")
def session():
    return Session()


@pytest.mark.parametrize("block", range(len(BLOCKS)), ids=["line %d" % (b.string.count("\n", 0, b.start()) + 1)
                                                          for b in BLOCKS])
def test_a_block_of_the_page_does_what_it_says(session, block, capsys):
    if session.missing(block):
        pytest.skip("%s is not installed" % session.missing(block))
    printed, expected = session.run(block, capsys), BLOCKS[block]["prints"]
    if expected is not None:
        assert printed == expected


def test_every_block_of_the_page_is_run_or_says_that_it_is_not():
    fences = re.findall(r"^```python(.*)$", PAGE.read_text(), flags=re.M)
    assert len(fences) == len(BLOCKS) + fences.count(" of cuda") and len(BLOCKS) > 5
