"""Runs flashsample for the tests that look at it."""
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("FS_BUILD", ROOT / "build" / "release")) / "bin" / "flashsample"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} was not built (FS_CLI=OFF)")


def run(*words, code=0, env=None):
    """Runs the program, checks how it ended, returns (stdout, stderr)."""
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(env or {})})
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def sample(*words, **keywords):
    return json.loads(run("sample", *words, "--json", "--quiet", **keywords)[0])
