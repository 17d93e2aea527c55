"""What a new rule takes: adds one, a penalty of squared counts, to a copy of the tree and counts the files it touched.

The copy is built; its command line and its Python package know the rule, the CPU draws with it as the reference does,
and a program that was compiled with this tree's header draws the same tokens with either library. A program of the copy's
runs with this tree's library as long as it leaves the new member zero.
"""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FS_BUILD", ROOT / "build" / "release"))
MOST_FILES = 5
MOST_OF_MIN_P = 29  # product files that name it; ARCHITECTURE.md says so

# By file: the line that the new one follows, and the new line.
ADDED = {
    "include/flashsampling.h": (
        "    fs_float_rule presence; ", "    fs_float_rule squared; /* y -= squared * count * count; 0 (default): off */"),
    "src/core/rule_table.h": (
        '         "subtracts this from the logits of tokens that occurred; 0 is off")',
        "    RULE(squared, float, FS_RULE_PENALTIES, 0.0f, v != 0.0f, -FLT_MAX, FLT_MAX, FS_ROW_BAD_PENALTY, "
        '"subtracts this times the square of a token\'s count; 0 is off")'),
    "src/core/rules.h": (
        "    if (y > -INFINITY && count > 0) y -= rules->presence;",
        "    if (y > -INFINITY && count > 0) y -= rules->squared * ((float)count * (float)count);"),
    "src/ref/ref_logits.c": (
        "        if (y > -INFINITY && count > 0) y -= values->presence;",
        "        if (y > -INFINITY && count > 0) y -= values->squared * ((float)count * (float)count);"),
    "python/flashsampling/_rules.py": (
        "    presence: Annotated",
        '    squared: Annotated[Floats, SlotRule("f32", 0, -_FLOAT, _FLOAT, "that is finite", penalty=True)]'),
}

PROGRAM = """
#include <flashsampling.h>
#include <stdio.h>
static float logits[4][500];
static int32_t counts[4][500];
int main(void) {
    for (int i = 0; i < 2000; i++) {
        logits[i / 500][i % 500] = (float)(i * 7919 % 1009) / 100.0f;
        counts[i / 500][i % 500] = i % 3;
    }
    int32_t token[4];
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = 500;
    fs_rules rules = fs_rules_default();
    rules.temperature.value = 2.0f, rules.frequency.value = 0.25f, rules.top_p.value = 0.9f;
    SET
    fs_batch batch = fs_batch_default();
    batch.rows = 4, batch.rules = &rules, batch.counts = counts[0];
    fs_result result = fs_result_default();
    result.tokens = token;
    fs_context *context;
    if (fs_context_create(NULL, &context) != FS_OK) return 2;
    if (fs_sample(context, &head, &batch, &result) != FS_OK) return puts(fs_error_text(context)), 1;
    printf("%d %d %d %d\\n", token[0], token[1], token[2], token[3]);
}
"""

PYTHON = """
import numpy as np
import flashsampling as fs
logits, counts = np.random.default_rng(1).normal(0, 2, (50, 400)).astype("f4"), np.arange(20000).reshape(50, 400) % 4
found = {}
for backend in ("cpu", "reference"):
    for squared in (0.0, 0.7, np.linspace(0, 1, 50)):
        result = fs.Context(backend).sample(fs.Head(logits=logits), seed=3, squared=squared, counts=counts.astype("i4"),
                                            outputs="all", logits_mode="processed")
        found[backend, str(squared)] = result.tokens.tolist(), result.logit.tolist()
ours, truth = ([found[backend, key] for b, key in found if b == backend] for backend in ("cpu", "reference"))
assert ours == truth, "the CPU and the reference differ"
assert ours[0][0] != ours[1][0] and ours[1][0] != ours[2][0], "the rule does nothing"
"""


def test_min_p_stands_in_no_more_files():
    files = [path for name in ("include", "src", "cli", "python") for path in (ROOT / name).rglob("*")
             if path.suffix in (".h", ".c", ".py") and ROOT / "src" / "cuda" not in path.parents]
    naming = [str(path.relative_to(ROOT)) for path in files if "min_p" in path.read_text()]
    assert len(naming) <= MOST_OF_MIN_P, naming


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        text = (done.stdout + done.stderr)[-3000:]
        pytest.fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{text}")
    return done.stdout


def add_rule(copy: pathlib.Path) -> int:
    for name, (after, line) in ADDED.items():
        lines = (copy / name).read_text().splitlines()
        places = [i for i, there in enumerate(lines) if there.startswith(after)]
        if len(places) != 1:
            pytest.fail(f"{name}: {len(places)} lines begin with {after!r}")
        end = places[0]
        while "/*" in lines[end] and "*/" not in lines[end]:  # a comment that goes on
            end += 1
        if name.endswith("rule_table.h"):
            lines[end] += " \\"
        lines.insert(end + 1, line)
        (copy / name).write_text("\n".join(lines) + "\n")
    return len(ADDED)


def tokens(folder: pathlib.Path, header: pathlib.Path, library: pathlib.Path, assignment: str, status: int = 0) -> str:
    """What the program prints, compiled with one tree's header and run with one tree's library."""
    (folder / "program.c").write_text(PROGRAM.replace("SET", assignment))
    run("gcc", "-std=c11", "-I", header / "include", folder / "program.c", "-L", library, f"-Wl,-rpath,{library}",
        "-l:" + sorted(path.name for path in library.glob("libflashsampling.so.*"))[-1], "-o", folder / "program")
    done = subprocess.run([folder / "program"], capture_output=True, text=True)
    if done.returncode != status:
        pytest.fail(f"the program ended with {done.returncode}, not {status}: {done.stdout}{done.stderr}")
    return done.stdout


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("gcc")), reason="cmake or gcc is not here")
def test_a_new_rule_touches_five_files(tmp_path):
    work, copy = tmp_path, tmp_path / "tree"
    for name in ("include", "src", "cmake", "cli", "bench", "python", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "lib"))
    for name in ("CMakeLists.txt", "README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    files = add_rule(copy)
    run("cmake", "-S", copy, "-B", work / "build", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O0",
        "-DFS_TESTS=OFF")
    run("cmake", "--build", work / "build", "-j", os.cpu_count(), "--target", "flashsampling", "flashsample")
    ours, theirs = BUILD / "lib", work / "build" / "lib"

    drawn = tokens(work, ROOT, ours, "")
    assert drawn == tokens(work, ROOT, theirs, ""), "a program of this tree draws other tokens with the new library"
    assert drawn == tokens(work, copy, ours, ""), "a program of the new header draws other tokens"
    assert drawn != tokens(work, copy, theirs, "rules.squared.value = 20.0f;"), "the new rule does nothing"
    refused = tokens(work, copy, ours, "rules.squared.value = 0.5f;", status=1)
    assert "rules.size" in refused, refused

    command = [work / "build" / "bin" / "flashsample", "sample", "--synthetic", "3000,16,4", "--count-list",
               "0/5:3,0/7:1", "--json", "--squared", "0.5"]
    assert run(*command, "--backend", "cpu").count('"tokens"') == 4
    assert "--squared" in run(*command[:2], "--help")
    environment = {**os.environ, "PYTHONPATH": str(copy / "python"),
                   "FLASHSAMPLING_LIBRARY": str(theirs / "libflashsampling.so")}
    run(sys.executable, "-c", PYTHON, env=environment)
    assert files <= MOST_FILES
