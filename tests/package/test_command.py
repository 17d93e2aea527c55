"""The command flashsample of the wheel, and the line that pip shows where it compiles CUDA."""
import os
import pty
import select
import signal
import time

import pytest

from environments import environment, header_version, needs_wheel, run, start

pytestmark = needs_wheel

NVCC = """#!/bin/sh
[ "$1" = --version ] && echo "Cuda compilation tools, release 13.0, V13.0.88" && exit
sleep 300
"""


@pytest.fixture
def flashsample(python):
    return python.with_name("flashsample")


def test_it_is_the_module_too(flashsample, python, tmp_path):
    for words in (["--help"], ["--version"], ["info", "--json"], ["verify", "--help"], ["generate", "--help"]):
        assert run(flashsample, *words, cwd=tmp_path) == run(python, "-m", "flashsampling", *words, cwd=tmp_path)
    assert run(flashsample, "--version", cwd=tmp_path).split()[1] == header_version()


def test_every_command_runs(flashsample, tmp_path):
    assert "cpu" in run(flashsample, "info", cwd=tmp_path)
    assert "token" in run(flashsample, "sample", "--synthetic", "500,16,2", cwd=tmp_path)
    assert "0 rejected" in run(flashsample, "verify", "--draws", "2000", "--rule", "min-p", cwd=tmp_path)
    assert run(flashsample, "bench", "--help", cwd=tmp_path) and run(flashsample, "demo", "--help", cwd=tmp_path)
    done = start(flashsample, "generate", "--model", tmp_path / "nowhere", "--prompt", "x", cwd=tmp_path)
    assert done.returncode == 3 and done.stderr.endswith("nowhere: no such directory\n")


def test_another_library_of_the_same_name_is_not_loaded(flashsample, tmp_path):
    (tmp_path / "libflashsampling.so").write_text("no library")
    assert "noise id" in run(flashsample, "info", cwd=tmp_path, env={"LD_LIBRARY_PATH": str(tmp_path)})


def test_pip_says_at_once_that_it_compiles_cuda(sdist, tmp_path):
    """On the terminal, without -v, while nvcc runs."""
    python = environment(tmp_path / "env")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text(NVCC)
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    env = {**os.environ, "PATH": "%s:%s" % (tmp_path / "bin", os.environ["PATH"])}
    pid, terminal = pty.fork()
    if pid == 0:
        install = "-m pip install --no-deps --disable-pip-version-check".split()
        os.execve(python, [str(python), *install, str(sdist)], env)
    shown, seen, end = b"", {}, time.monotonic() + 300
    try:
        while b"FS_CUDA=OFF" not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 4096)
            if b"Building wheel" in shown:
                seen.setdefault("building", time.monotonic())
    finally:
        os.killpg(pid, signal.SIGKILL)  # the terminal's processes: pip, cmake, nvcc
        os.waitpid(pid, 0)
        os.close(terminal)
    text = shown.decode(errors="replace")
    assert "flashsampling: nvcc 13.0 is on the PATH: compiling the CUDA kernels takes about " in text, text
    assert time.monotonic() - seen["building"] < 10
