"""The GPU's tests of the command line (tests/gpu/test_cli.py), on a stand-in for the device (tests/standin)."""
import os
import re
import subprocess
import sys

import pytest

from program import PROGRAM, ROOT

STANDIN = PROGRAM.parents[1] / "tests"


def test_they_pass_where_the_cpu_makes_the_calls():
    if not (STANDIN / "flashsample_standin").exists():
        pytest.skip("flashsample_standin was not built")
    env = {**os.environ, "FLASHSAMPLE": str(STANDIN / "flashsample_standin"),
           "LD_LIBRARY_PATH": f"{STANDIN / 'standin'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    # Those of `verify` and `bench` are long here, and tests/c/test_cli_device.c has their like.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not verify and not bench",
               ROOT / "tests" / "gpu" / "test_cli.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and re.search(r"^3\d passed, 10 deselected", done.stdout, re.M), done.stdout
