"""Which library the package loads, and when. The CUDA library is a copy of the CPU's here: it says it lacks CUDA."""
import os
import shutil
import subprocess
import sys

import pytest

from flashsampling import _c

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

LOADED = """
import flashsampling as fs
from flashsampling import _c
def loaded():
    lines = open("/proc/self/maps").read().splitlines()
    return sorted({line.split()[-1].split("/")[-1] for line in lines if "libflashsampling" in line})
def refused(backend):
    try:
        fs.Context(backend)
    except fs.Error as error:
        return str(error)
"""


@pytest.fixture
def package(tmp_path):
    """A package as it is installed; run(code, ...) runs code in it."""
    shutil.copytree(os.path.join(ROOT, "python", "flashsampling"), tmp_path / "flashsampling",
                    ignore=shutil.ignore_patterns("__pycache__", "lib"))
    libraries = tmp_path / "flashsampling" / "lib"
    libraries.mkdir()
    source = os.path.realpath(_c.library()._name)

    def run(code, files=("libflashsampling.so", "libflashsampling_cuda.so"), **env):
        for file in files:
            shutil.copy(source, libraries / file)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FLASHSAMPLING_")}
        done = subprocess.run([sys.executable, "-c", LOADED + code], capture_output=True, text=True, cwd=tmp_path,
                              env={**clean, "PYTHONPATH": str(tmp_path), **env})
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    return run


def test_the_cuda_library_is_loaded_when_it_is_asked_for(package):
    lines = package("""
fs.Context("cpu").close(); fs.Context().close(); fs.version()
print(loaded())
print(fs.supports("cuda"))
print(loaded())
""")
    assert lines == ["['libflashsampling.so']", "(False, 'the cuda backend is not in this build')",
                     "['libflashsampling.so', 'libflashsampling_cuda.so']"]


def test_an_error_has_the_words_of_its_own_library(package):
    code = 'fs.version(); print(refused("cuda")); print("FLASHSAMPLING_LIBRARY" in refused("cuda")); print(loaded())'
    text, advice, files = package(code)
    assert text.startswith("unsupported: the cuda backend is not in this build: ") and advice == "True"
    assert files == "['libflashsampling.so', 'libflashsampling_cuda.so']"


def test_without_a_cuda_library_the_other_one_refuses(package):
    text, files = package('print(refused("cuda")); print(loaded())', files=["libflashsampling.so"])
    assert "not in this build" in text and "make cuda" in text and files == "['libflashsampling.so']"


def test_a_cuda_library_alone_serves_every_backend(package):
    code = 'print(fs.Context("cpu").text.split(":")[0]); print(fs.supports("cpu")); print(loaded())'
    assert package(code, files=["libflashsampling_cuda.so"]) == ["cpu", "(True, '')", "['libflashsampling_cuda.so']"]


def test_a_backend_that_the_environment_names_decides_the_library(package):
    text, files = package('print(refused("cpu")); print(loaded())', FLASHSAMPLING_BACKEND="cuda")
    assert text.startswith("environment: FLASHSAMPLING_BACKEND=cuda") and "_cuda" in files


def test_a_forced_library_serves_every_backend(package, tmp_path):
    forced = tmp_path / "libflashsampling_forced.so"
    shutil.copy(os.path.realpath(_c.library()._name), forced)
    lines = package('fs.Context("cpu"); refused("cuda"); print(loaded())', FLASHSAMPLING_LIBRARY=str(forced))
    assert lines == ["['libflashsampling_forced.so']"]


def test_a_library_of_another_version_is_refused_by_its_file(package):
    code = """
_c.VERSION = (0, 99)
try:
    fs.version()
except ImportError as error:
    print(error)
"""
    line, = package(code)
    assert "flashsampling/lib/libflashsampling.so is version 0.2." in line and "written for 0.99" in line
