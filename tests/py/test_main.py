"""python -m flashsampling without torch: info, and what generate says then."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashsampling import __main__ as command

PACKAGE = "" if os.environ.get("FS_INSTALLED") else str(Path(__file__).resolve().parents[2] / "python")

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from flashsampling.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run(*command, **env):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": PACKAGE, **env})


@pytest.fixture
def checkpoint(tmp_path):
    """What looks like one, until it is read."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_info_names_versions_and_why_a_backend_is_not_there():
    done = run("-c", WITHOUT_TORCH, "info")
    assert done.returncode == 0 and not done.stderr
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()}
    assert list(lines) == ["package", "library", "calls", "cpu", "cuda", "reference", "numpy", "torch", "transformers"]
    assert "noise mapping 2" in lines["library"] and "threads" in lines["cpu"]
    assert lines["calls"].startswith("in C, /") or lines["calls"] == "through ctypes"
    assert lines["torch"].startswith("not here: ") and lines["numpy"][0].isdigit()
    assert lines["cuda"].startswith(("not here: ", "device "))


def test_its_version_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("0.")


def test_info_without_a_library_is_one_line():
    done = run("-m", "flashsampling", "info", FLASHSAMPLING_LIBRARY="/nowhere/libflashsampling.so")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "/nowhere" in done.stderr


def test_generate_without_torch_says_what_to_install(checkpoint):
    done = run("-c", WITHOUT_TORCH, "generate", "--model", checkpoint, "--prompt", "x")
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "pip install torch transformers" in done.stderr


@pytest.mark.parametrize("arguments, words", [
    ([], "info|generate"),
    (["generate"], "--model, --prompt"),
    (["generate", "--temperature", "-1"], "argument --temperature: -1: expected a number at least 0"),
    (["generate", "--top-p", "0"], "argument --top-p: 0: expected a number above 0, at most 1"),
    (["generate", "--top-p", "1.5"], "argument --top-p: 1.5"),
    (["generate", "--min-p", "nan"], "argument --min-p: nan"),
    (["generate", "--top-k", "1.5"], "argument --top-k: 1.5: expected a whole number at least 0"),
    (["generate", "--repetition-penalty", "0"], "argument --repetition-penalty: 0: expected a number above 0"),
    (["generate", "--max-new-tokens", "0"], "argument --max-new-tokens: 0"),
    (["generate", "--copies", "many"], "argument --copies: many"),
    (["generate", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
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
        assert command.main(["generate", "--model", str(tmp_path / name), "--prompt", "x"]) == 2
        said = capsys.readouterr().err
        assert said == "flashsampling generate: --model %s: %s\n" % (tmp_path / name, words)
