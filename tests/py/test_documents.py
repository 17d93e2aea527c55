"""The code blocks of README.md, python/README.md and docs/**/*.md work as printed and print what the page shows.

The words behind a fence say what becomes of its block:

    sh | c | cmake | python run          it is run, in the order of the page, in one session and one scratch folder
    c run app.c                          the name of the file; gcc compiles it with the flags of pkg-config
    python run needs torch               it is run where the module is installed
    sh of cuda                           it is not run; NOT_RUN has the reasons
    c of examples/x.c, c run of ...      an excerpt: its lines stand in that file
    text, or nothing                     not code; without a word and next to a run block, it is all that block prints

`...` in an output stands for any text. Shell blocks keep variables and folder from block to block. They run in a folder
with the clone's examples, and $HOME/.local has an installed library, so the exports of the page are needed.
"""
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "python" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$(\n+(?=```\n))?", re.S | re.M)
NOT_RUN = {"cuda": "a CUDA device", "vllm": "vLLM and a GPU", "sglang": "SGLang", "model": "the weights of a model",
           "install": "downloads, or minutes of building", "tests": "minutes, and runs these tests",
           "excerpt": "the code around it", "ranks": "MPI or NCCL",
           "minutes": "minutes"}
CMAKE = "cmake_minimum_required(VERSION 3.25)\nproject(app C)\nadd_executable(app app.c)\n"


def parse(text):
    """The blocks of a page: language, body, line, and what is to be done. Fences that say nothing are an error."""
    blocks, wrong = [], []
    for found in FENCE.finditer(text):
        block = SimpleNamespace(body=found[2], line=text.count("\n", 0, found.start()) + 1, shows=None, kind="text",
                                reason="", module="", file="", excerpt="", joined=bool(found[3]))
        words = found[1].split()
        if words[:1] in ([], ["text"]):
            if not words and blocks and blocks[-1].joined and blocks[-1].kind == "run":
                blocks[-1].shows = block.body
        else:
            match = re.fullmatch(r"(sh|c|cmake|python)(?P<run> run)?(?P<file> [\w.]+\.c)?(?: needs (?P<module>[\w.]+))?"
                                 r"(?: of (?P<of>\S+))?", " ".join(words))
            of = match and match["of"] or ""
            if match and ("/" in of or match["run"] or match["module"] or of in NOT_RUN):
                block.language, block.file, block.module = match[1], (match["file"] or " app.c")[1:], match["module"]
                block.excerpt, block.reason = (of, "") if "/" in of else ("", of)
                block.kind = "run" if match["run"] or match["module"] else "shown"
            else:
                wrong.append(f"line {block.line}: unknown fence: {found[1]!r}")
        blocks.append(block)
    return blocks, wrong


class Session:
    """One page: its scratch folder, its Python names, the variables of its shell."""

    def __init__(self, blocks, folder, home):
        self.blocks, self.folder, self.home, self.done = blocks, folder, home, 0
        module = ModuleType(f"page_{len(SESSIONS)}")  # torch.compile looks a function's module up
        sys.modules[module.__name__], self.names = module, module.__dict__
        folder.mkdir()
        for name in ("examples", "LICENSE"):
            (folder / name).symlink_to(ROOT / name)

    def run_until(self, number, capsys):
        """Runs the blocks up to this one that have not been run; what this one printed."""
        printed = None
        while self.done <= number:
            block = self.blocks[self.done]
            self.done += 1
            if block.kind == "run" and not missing(block):
                printed = getattr(self, block.language)(block, capsys)
        return printed

    def python(self, block, capsys):
        capsys.readouterr()
        back = os.getcwd()
        os.chdir(self.folder)
        try:
            exec(compile("\n" * block.line + block.body, "page", "exec"), self.names)  # tracebacks have the page's line
        finally:
            os.chdir(back)
        return capsys.readouterr().out

    def sh(self, block, capsys):
        env = {name: value for name, value in os.environ.items() if not re.match("FLASHSAMPLING_|FS_|PYTHONPATH", name)}
        env.update(HOME=str(self.home), PATH=f"{self.home}/bin:{self.home}/.local/bin:{env['PATH']}")
        session = self.folder / ".session"
        session.touch()
        script = f". {session}\n{block.body}\n{{ export -p; echo \"cd '$PWD'\"; }} >{session}"
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, text=True, timeout=300,
                              env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def installed(self, commands, capsys):
        paths = "export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig LD_LIBRARY_PATH=$HOME/.local/lib"
        return self.sh(SimpleNamespace(body=f"({paths}\n{commands})"), capsys)

    def c(self, block, capsys):
        (self.folder / block.file).write_text(block.body)
        program = Path(block.file).stem
        return self.installed(f"gcc -std=c11 -Wall -Wextra -Werror {block.file} "
                              f"$(pkg-config --cflags --libs flashsampling) -lm -o {program}\n./{program}", capsys)

    def cmake(self, block, capsys):
        (self.folder / "CMakeLists.txt").write_text(block.body if "project(" in block.body else CMAKE + block.body)
        return self.installed("cmake -S . -B build -DCMAKE_PREFIX_PATH=$HOME/.local >log 2>&1 || { cat log; exit 1; }\n"
                              "cmake --build build >log 2>&1 || { cat log; exit 1; }\nbuild/app", capsys)


def missing(block):
    """The module or build that this machine lacks for the block; "" for nothing."""
    for module in (block.module, f"flashsampling.{block.module}") if block.module else ():
        if module in ("flashsampling.torch", "flashsampling.transformers") or not module.startswith("flashsampling."):
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed"
    if block.language != "python" and "FS_BUILD" not in os.environ:
        return "FS_BUILD names no build"
    return ""


def check(page, block, printed):
    """Compares what was printed with what the page shows, and an excerpt with its file."""
    if block.shows is not None:
        pattern = re.escape(block.shows).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, printed, re.S), f"{page}:{block.line} prints\n{printed}"
    if block.excerpt:
        lines = [[line.strip() for line in text.splitlines() if line.strip()]
                 for text in (block.body, (ROOT / block.excerpt).read_text())]
        size = len(lines[0])
        assert any(lines[1][i:i + size] == lines[0] for i in range(len(lines[1]))), f"not in {block.excerpt}"


PARSED = {page: parse(page.read_text()) for page in PAGES}
CASES = [pytest.param(page, number, id=f"{page.relative_to(ROOT)}:{block.line}")
         for page, (blocks, _) in PARSED.items() for number, block in enumerate(blocks) if block.kind != "text"]
SESSIONS = {}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder with the library installed in .local, and a `python` that finds the package."""
    home = tmp_path_factory.mktemp("home")
    build, python = os.environ.get("FS_BUILD"), home / "bin" / "python"
    if build:
        subprocess.run(["cmake", "--install", build, "--prefix", home / ".local"], check=True, capture_output=True)
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\nexport FLASHSAMPLING_LIBRARY={home}/.local/lib/libflashsampling.so "
                          f"PYTHONPATH={ROOT}/python PYTHONDONTWRITEBYTECODE=1\nexec {sys.executable} \"$@\"\n")
        python.chmod(0o755)
    return home


@pytest.mark.parametrize("page, number", CASES)
def test_a_block_does_what_its_page_says(page, number, home, tmp_path_factory, capsys):
    block = PARSED[page][0][number]
    check(page, block, "") if block.kind == "shown" and block.excerpt else None
    if block.kind == "shown" and not block.excerpt:
        pytest.skip(f"not run, it needs {NOT_RUN[block.reason]}")
    if block.kind == "run":
        if missing(block):
            pytest.skip(missing(block))
        if page not in SESSIONS:
            SESSIONS[page] = Session(PARSED[page][0], tmp_path_factory.mktemp("page") / "clone", home)
        check(page, block, SESSIONS[page].run_until(number, capsys))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_fence_says_what_becomes_of_its_block(page):
    assert not PARSED[page][1]


@pytest.mark.parametrize("text, message", [
    ("```sh run\nfalse\n```\n", "exit code 1"),
    ("```sh run\necho one\n```\n\n```\ntwo\n```\n", "a page:1 prints"),
    ("```sh run\necho one\n```\n```\none\n...\ntwo\n```\n", "a page:1 prints"),
    ("```python run\nassert 1 == 2\n```\n", ""),
    ("```c run\nint main(void) { return 3; }\n```\n", "exit code 3"),
    ("```c of examples/minimal.c\nint main(int argc) {\n```\n", "not in examples/minimal.c"),
    ("```cmake run\nfind_package(other REQUIRED)\n```\n", "other"),
    ("```sh\nls\n```\n", "unknown fence"), ("```sh of fun\nls\n```\n", "unknown fence"),
    ("```python runs\n1\n```\n", "unknown fence")])
def test_a_planted_fault_is_found(text, message, home, tmp_path, capsys):
    with pytest.raises(AssertionError) as error:
        blocks, wrong = parse(text)
        assert not wrong, wrong
        if missing(blocks[0]):
            pytest.skip(missing(blocks[0]))
        printed = Session(blocks, tmp_path / "clone", home).run_until(0, capsys)
        check("a page", blocks[0], printed)
    assert message in str(error.value)
