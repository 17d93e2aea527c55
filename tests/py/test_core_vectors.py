"""The cases with which tests/gpu/test_core.py compares host and device, on the host alone: they are made and evaluated
without a fault, and reach what they are for. Without this a case that breaks is noticed on a GPU machine only."""
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_cases_of_core_run_on_the_host_under_sanitizers(tmp_path):
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    program = tmp_path / "core_vectors"
    subprocess.run(["g++", "-x", "c++", "-std=c++17", "-O1", "-ffp-contract=off", "-fsanitize=address,undefined",
                    "-fno-sanitize-recover=all", "-Iinclude", "-Isrc", "-o", program, "tests/gpu/core_vectors.cu"],
                   cwd=ROOT, check=True)
    done = subprocess.run([program, "--host-only"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.rstrip().endswith("all agree")
