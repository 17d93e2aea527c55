"""The code of src/core, compiled for the device and for the host, over the same cases: equal bits (core_vectors.cu)."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_DEVICE = 77
KINDS = ("mass", "list", "cut", "rules", "noise", "wire", "finish", "group", "head")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not on the PATH")
    file = tmp_path_factory.mktemp("core") / "core_vectors"
    # No contraction on either side: core_vectors.cu says why.
    subprocess.run(["nvcc", "-std=c++17", "-O2", "-arch=native", "--fmad=false", "-Xcompiler", "-ffp-contract=off",
                    "-Iinclude", "-Isrc", "-o", file, "tests/gpu/core_vectors.cu"], cwd=ROOT, check=True)
    return file


def differing(program, *arguments):
    """The exit code, and how many cases of each kind differ."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    print(done.stdout[-20000:], done.stderr)
    if done.returncode == NO_DEVICE:
        pytest.skip("no CUDA device")
    counts = re.findall(r"^(\w+) +\d+ cases, +\d+ values: (\d+) differ", done.stdout, re.M)
    assert tuple(kind for kind, _ in counts) == KINDS
    return done.returncode, [int(count) for _, count in counts]


def test_host_and_device_find_the_same_bits(program):
    assert differing(program) == (0, [0] * len(KINDS))


def test_a_planted_bit_is_seen_in_every_kind(program):
    code, counts = differing(program, "--plant")
    assert code == 1 and all(counts), counts
