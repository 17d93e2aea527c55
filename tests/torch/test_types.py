"""Type checkers find a caller's mistakes: mypy --strict and pyright see each of ten, and no other. Editors complete
every rule: pyright reads the types that it checks, and jedi is asked here."""
import importlib.util
import os
import re
import subprocess
import sys

import pytest

import flashsampling
from flashsampling import _rules

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(flashsampling.__file__)))

BEGIN = """\
import numpy as np
import torch

import flashsampling as fs
import flashsampling.torch as fst

weight = torch.zeros(32, 8)
hidden = torch.zeros(2, 8)
head = fs.Head(weight)
context = fs.Context("cpu")
sampler = fs.Sampler(head, rows=2, temperature=0.7)
"""

WRONG = BEGIN + """\
fs.sample(hidden, weight, temprature=0.7)
fs.sample(hidden, weight, samples=4, mode="without_replacment")
context.sample(head, hidden, outputs=["logprobs"])
fs.sample(hidden, weight, temperature="0.7")
fs.sample_logits(hidden, logits_mode="cooked")
fs.Sampler(head, rows=hidden)
fs.sample(hidden, weight).tokens.astype(np.int32)
sampler.set(topp=0.9)
fs.sampel(hidden, weight)
fs.FlashSampler(32).sample_tiled(hidden, weight)
"""

RIGHT = BEGIN + """\
fs.sample(hidden, weight, temperature=0.7, top_k=torch.tensor([5, 0]), keep_ties=True, softcap=30, round_to="bf16")
fs.sample(hidden, weight, samples=4, mode="without_replacement").tokens[:, 0].cpu()
context.sample(head, hidden, outputs=["logprob", "rank"], top=4, logits_mode="cut", edits=[{3: 1.5}, {}])
fs.sample(np.zeros((2, 8), np.float32), np.zeros((32, 8), np.float32), top_p=[0.9, 1]).tokens.astype(np.int32)
fs.sample_logits(hidden, logits_mode="processed", outputs="all", seed=None).logprob.exp()
fs.Sampler(head, rows=2, outputs="logprob", position=np.zeros(2, np.int64))(hidden).tokens.cpu()
context.sample(head, fs.Batch(head, hidden, watch=[[1], []], limits={"top_k": 5}), tokens="i32").check()
sampler.set(top_p=0.9, temperature=None)
fst.sample(hidden, weight, temperature=torch.ones(2)).cpu(), fst.sample(hidden, weight, logprob=True)[1].exp()
fs.FlashSampler(32, 8).sample_tiled(hidden, weight, 0.7).cpu(), fs.torch.sample(hidden, weight).cpu()
fs.__version__.split(".")
"""


def mypy(file):
    """Without this repository's settings, and silent about the package itself, which users have installed."""
    environment = dict(os.environ)
    if "site-packages" not in FOLDER:
        environment["MYPYPATH"] = FOLDER
    cache = os.path.join(ROOT, "build", "mypy_strict")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"]
    return subprocess.run([*command, "--cache-dir", cache, file], capture_output=True, text=True, env=environment,
                          cwd=os.path.dirname(file))


def pyright(file):
    with open(os.path.join(os.path.dirname(file), "pyrightconfig.json"), "w") as settings:
        settings.write('{"extraPaths": ["%s"], "typeCheckingMode": "standard"}' % FOLDER)
    return subprocess.run([sys.executable, "-m", "pyright", "--pythonpath", sys.executable, file],
                          capture_output=True, text=True, cwd=os.path.dirname(file))


@pytest.fixture(params=[mypy, pyright], ids=["mypy", "pyright"])
def found(request, tmp_path):
    """A function: the lines of a program in which the checker finds an error, with its first error in each."""
    if importlib.util.find_spec(request.param.__name__) is None:
        pytest.skip("%s is not installed" % request.param.__name__)

    def lines(program):
        file = tmp_path / "program.py"
        file.write_text(program)
        done = request.param(str(file))
        assert done.returncode in (0, 1), done.stdout + done.stderr
        errors = re.findall(r"program\.py:(\d+):(?:\d+)?.*?error: (.*)", done.stdout)
        assert bool(errors) == bool(done.returncode), done.stdout + done.stderr
        text = program.splitlines()
        return {text[int(line) - 1]: error for line, error in reversed(errors)}

    return lines


def test_ten_mistakes_are_found_and_nothing_else(found):
    mistakes = WRONG[len(BEGIN):].splitlines()
    assert len(mistakes) == 10 and list(sorted(found(WRONG))) == sorted(mistakes)


def test_nothing_is_found_in_a_program_without_mistakes(found):
    assert found(RIGHT) == {}


@pytest.mark.parametrize("call, rules", [
    ("fs.sample", _rules.SAMPLE_RULES), ("fs.sample_logits", _rules.SAMPLE_RULES), ("fs.Head", _rules.HEAD_OPTIONS),
    ("fs.Batch", _rules.BATCH_RULES), ("fs.Sampler", _rules.RULES), ("sampler.set", _rules.RULES),
    *(("context." + name, _rules.BATCH_RULES) for name in ("sample", "work_size", "partial_size", "partial", "merge")),
    ("fst.sample", _rules.TENSOR_RULES), ("fst.sample_logits", _rules.TENSOR_RULES),
])
def test_jedi_completes_every_rule(call, rules):
    jedi = pytest.importorskip("jedi")
    script = jedi.Script(BEGIN + call + "(", environment=jedi.InterpreterEnvironment())
    offered = {word.name.rstrip("=") for word in script.complete() if word.name.endswith("=")}
    assert rules <= offered, sorted(rules - offered)
