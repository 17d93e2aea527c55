"""Environments that have nothing but what pip installs into them, and the wheel and tools that the tests are given.

`make test-python` runs the tests here with FS_WHEEL, the wheel, and FS_TOOLS, the environment with the build tools.
numpy, and what builds the source distribution, come from the package index.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEEL = Path(os.environ.get("FS_WHEEL", ""))
TOOLS = Path(os.environ.get("FS_TOOLS", ROOT / "build" / "python" / "tools"))

needs_wheel = pytest.mark.skipif(WHEEL.suffix != ".whl", reason="FS_WHEEL names no wheel: run make test-python")


def start(*command, **keywords):
    """A finished command, run with nothing of ours in its environment."""
    drop = ("PYTHONPATH", "FLASHSAMPLING_", "FS_", "VIRTUAL_ENV", "PYTHONHOME")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1200,
                          env={**env, **keywords.pop("env", {})}, **keywords)


def run(*command, **keywords):
    """Output of a command that succeeds."""
    done = start(*command, **keywords)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder):
    """The Python of a new environment."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def installed(folder, what, *options, env={}):
    """The Python of a new environment with numpy and this file of ours in it."""
    python = environment(folder)
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", what, *options, env=env, cwd=folder)
    return python


def header_version():
    text = (ROOT / "include" / "flashsampling.h").read_text()
    return ".".join(re.search(r"FS_VERSION_%s (\d+)" % part, text)[1] for part in ("MAJOR", "MINOR", "PATCH"))
