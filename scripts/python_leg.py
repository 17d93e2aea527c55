"""The leg python of scripts/test.py: the package as users install it, from its wheel, in an environment under
build/python with torch and transformers from the package index. `make test-python` runs it, `make test` does not.

WHEEL=file tests that wheel; otherwise one without the CUDA library is built first.
"""

import os
import re
import subprocess
import time
from pathlib import Path

from outcomes import read_exit, read_junit
from runner import BUILD, ROOT, RUN, say

FOLDER = BUILD / "python"
# Tests of tests/py that ask nothing but the package; the rest looks at flashsample too.
NUMPY_TESTS = ("test_binding*.py", "test_documents.py", "test_library.py", "test_main.py", "test_sample*.py")
# Tests of tests/torch that run both with calls in C and through ctypes.
BOTH_WAYS = ("test_hostile", "test_lifetime", "test_ops", "test_tensors")
TIMEOUT = {"step": 3600, "test": 1800}


def requirements(newest):
    lines = (ROOT / "tests" / "torch" / "requirements.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    return [line.split("==")[0] for line in lines] if newest else lines


def step(runner, name, command, env=None):
    """Runs what comes before the tests; what fails is one failed test. The output is in build/python/<name>.log."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    log_path, start = FOLDER / f"{name}.log", time.monotonic()
    with open(log_path, "ab") as log:
        code = subprocess.run(["timeout", str(TIMEOUT["step"]), *command], cwd=ROOT, stdout=log, stderr=log,
                              stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}).returncode
    if code == 0:
        say(f"  ok    {name}  {time.monotonic() - start:.1f} s")
        return True
    say("\n".join([f"  FAIL  {name}", *log_path.read_text(errors="replace").splitlines()[-40:]]))
    runner.count(f"python: {name}", "failed", f"exit code {code}, see {log_path}; the tests behind it did not run")
    return False


def built_wheel(runner):
    """The wheel to test, or None where it does not build."""
    if given := os.environ.get("WHEEL"):
        return Path(given).resolve()
    out = FOLDER / "wheel"
    say("  the wheel, without the CUDA library ...")
    if not step(runner, "wheel", ["scripts/wheel.sh", "--out", out, "-C", "cmake.define.FS_CUDA=OFF"]):
        return None
    return next(out.glob("*.whl"))


def environment(runner, wheel, newest):
    """The environment's Python, the wheel installed; None where that fails."""
    folder = FOLDER / ("newest" if newest else "pinned")
    python = folder / "bin" / "python"
    wanted = requirements(newest)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    say(f"  {', '.join(wanted)} into {folder.relative_to(ROOT)} (gigabytes, the first time) ...")
    if not python.exists() and not step(runner, "venv", [os.environ.get("PYTHON", "python3"), "-m", "venv", folder]):
        return None
    good = (step(runner, "packages", [*pip, *(["--upgrade"] if newest else []), *wanted])
            and step(runner, "install", [*pip, "--force-reinstall", "--no-deps", wheel])
            and step(runner, "check", [python, "-m", "pip", "check"]))
    return python if good else None


def ways(file):
    """How a file of tests runs: what is added to its name, and to its environment."""
    both = file.parent.name == "torch" and file.stem in BOTH_WAYS
    return [("", {}), *([(" [ctypes]", {"FLASHSAMPLING_CALLS": "ctypes"})] if both else [])]


def add_file(runner, python, file, way, env):
    name = f"{file.parent.name}/{file.stem}{way}"
    report = RUN / "python" / f"{name.replace('/', '-')}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", file]
    runner.add("python", name, command, read_junit(report), env, TIMEOUT=TIMEOUT["test"])


def add(runner, newest):
    for log in FOLDER.glob("*.log"):
        log.unlink()
    wheel = built_wheel(runner)
    python = wheel and environment(runner, wheel, newest)
    if not python:
        return
    runner.add("python", "mypy", [python, "-m", "mypy"], read_exit, TIMEOUT=TIMEOUT["test"])
    env = {"FS_INSTALLED": "1", "FS_WHEEL": wheel, "FS_TOOLS": FOLDER / "tools", "PYTHONDONTWRITEBYTECODE": "1",
           "PYTHONPATH": "", "FLASHSAMPLING_LIBRARY": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
           "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    files = [file for pattern in NUMPY_TESTS for file in (ROOT / "tests" / "py").glob(pattern)]
    files += [*(ROOT / "tests" / "package").glob("test_*.py"), *(ROOT / "tests" / "torch").glob("test_*.py")]
    for file in sorted(files):
        for way, more in ways(file):
            add_file(runner, python, file, way, {**env, **more})


def missing_modules(python, file):
    """What all of a file of tests/torch needs and this Python has not: torch, and what it names to importorskip outside
    its tests. What one test needs it says itself."""
    wanted = ["torch", *re.findall(r'^(?:\w+ = )?pytest\.importorskip\("([\w.]+)"', file.read_text(), re.M)]
    probe = "import importlib.util, sys; print(*(m for m in sys.argv[1:] if not importlib.util.find_spec(m)))"
    done = subprocess.run([python, "-c", probe, *dict.fromkeys(wanted)], capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else wanted
