"""flashsample and python -m flashsampling: the program in C, generate without torch; headers and library for C."""
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import flashsampling
from flashsampling import _generate as command
from flashsampling._package import find_command

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "" if os.environ.get("FS_INSTALLED") else str(ROOT / "python")

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from flashsampling.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

needs_program = pytest.mark.skipif(find_command() is None, reason="build/release/bin/flashsample was not built")


def run(*command, **env):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": PACKAGE, **env})


@pytest.fixture
def checkpoint(tmp_path):
    """What looks like one, until it is read."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@needs_program
def test_commands_are_those_of_the_program_and_exit_codes_pass_through():
    for words, code in ((["--help"], 0), (["--version"], 0), (["info", "--json"], 0), (["sample", "--help"], 0),
                        ([], 2), (["sampel"], 2), (["sample", "--top-p", "7"], 2),
                        (["sample", "--logits", "/nowhere"], 3)):
        done = run("-m", "flashsampling", *words)
        alone = subprocess.run(["flashsample", *words], executable=find_command(), capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (code, alone.stdout, alone.stderr), words
    assert "\n  generate " in run("-m", "flashsampling", "--help").stdout


@needs_program
def test_info_is_about_the_package_first_and_then_the_program():
    done = run("-m", "flashsampling", "info")
    assert done.returncode == 0 and not done.stderr
    lines = {line[:12].strip(): line[13:] for line in done.stdout.splitlines()}
    assert list(lines)[:7] == ["package", "library", "calls", "numpy", "torch", "transformers", "version"]
    assert lines["calls"].startswith("in C, /") or lines["calls"] == "through ctypes"
    assert lines["numpy"][0].isdigit() and lines["library"].startswith(flashsampling.get_library())


@needs_program
def test_a_reader_that_leaves_ends_it_as_it_ends_the_program():
    script = "import os, flashsampling.__main__ as m; r, w = os.pipe(); os.dup2(w, 1); os.close(r); m.main(%r)"
    for words in (["info"], ["--help"]):
        done = run("-c", script % words)
        assert done.returncode == -signal.SIGPIPE and not done.stderr


@needs_program
def test_the_program_alone_says_where_generate_is():
    done = subprocess.run([find_command(), "generate", "--model", "x"], capture_output=True, text=True)
    assert done.returncode == 3 and "python -m flashsampling generate" in done.stderr


def test_info_without_a_library_is_one_line():
    done = run("-m", "flashsampling", "info", FLASHSAMPLING_LIBRARY="/nowhere/libflashsampling.so")
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "/nowhere" in done.stderr


def test_a_c_program_is_compiled_as_the_document_says(tmp_path):
    text = (ROOT / "docs" / "reference" / "build.md").read_text()
    block = re.search(r"^```sh[^\n]*\n([^`]*get_include[^`]*)^```", text, re.M)[1] + "./app\n"
    shutil.copy(ROOT / "examples" / "minimal.c", tmp_path / "app.c")
    script = "python() { %s \"$@\"; }\n%s" % (sys.executable, block)
    env = {**os.environ, "PYTHONPATH": PACKAGE}
    env.pop("LD_LIBRARY_PATH", None)
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0 and "sequence 2: token" in done.stdout, done.stderr


def test_the_folder_of_the_headers_and_the_file_of_the_library():
    header = Path(flashsampling.get_include()) / "flashsampling.h"
    assert "#define FS_VERSION_MAJOR" in header.read_text()
    assert os.path.basename(flashsampling.get_library()).startswith("libflashsampling")
    with pytest.raises(ValueError, match="backend 'rocm': expected 'cpu' or 'cuda'"):
        flashsampling.get_library("rocm")


def test_generate_without_torch_says_what_to_install(checkpoint):
    done = run("-c", WITHOUT_TORCH, "generate", "--model", checkpoint, "--prompt", "x")
    assert done.returncode == 3 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "pip install torch transformers" in done.stderr


@pytest.mark.parametrize("arguments, words", [
    ([], "--model, --prompt"),
    (["--temperature", "-1"], "argument --temperature: -1: expected a number at least 0"),
    (["--top-p", "0"], "argument --top-p: 0: expected a number above 0, at most 1"),
    (["--top-p", "1.5"], "argument --top-p: 1.5"),
    (["--min-p", "nan"], "argument --min-p: nan"),
    (["--top-k", "1.5"], "argument --top-k: 1.5: expected a whole number at least 0"),
    (["--repetition-penalty", "0"], "argument --repetition-penalty: 0: expected a number above 0"),
    (["--max-new-tokens", "0"], "argument --max-new-tokens: 0"),
    (["--copies", "many"], "argument --copies: many"),
    (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
])
def test_bad_values_are_one_line(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    assert len(said.err.splitlines()) == 1 and words in said.err


def test_directories_that_are_none(tmp_path, checkpoint, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "weightless").mkdir()
    (tmp_path / "weightless" / "config.json").write_text("{}")
    for name, words in (("nowhere", "no such directory"), ("file", "not a directory"), ("empty", "has no config.json"),
                        ("weightless", "has no *.safetensors")):
        assert command.main(["--model", str(tmp_path / name), "--prompt", "x"]) == 3
        said = capsys.readouterr().err
        assert said == "flashsample generate: --model %s: %s\n" % (tmp_path / name, words)
