"""examples/train_small_model.py: it learns, the same for a seed, and what it writes is a checkpoint like others."""
import importlib.util
import json
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from small_model import SCRIPT, SMALL, environment, train, write_text


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_small_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("train") / "text")


@pytest.fixture(scope="module")
def trained(text):
    """The checkpoint's folder and what was printed."""
    out = text.parent / "model"
    return out, train("--text", text, "--out", out, "--steps", 80, "--every", 0.1, *SMALL)


def losses(printed):
    """Held-out loss, and that of the tokens' frequencies."""
    found = re.search(r"^held out loss ([\d.]+) .* frequencies alone ([\d.]+), by chance ([\d.]+)$", printed, re.M)
    return tuple(map(float, found.groups()))


def test_it_learns_more_than_how_often_tokens_occur(trained, text):
    loss, unigram, chance = losses(trained[1])
    assert unigram < chance
    assert loss < unigram - 1
    lines = re.findall(r"^step +(\d+)  loss ([\d.]+) +\d+ tokens/s +\d+ s left$", trained[1], re.M)
    assert len(lines) > 3 and float(lines[-1][1]) < float(lines[0][1]) - 1
    # One step learns nothing: the line above can fail.
    loss, unigram, _ = losses(train("--text", text, "--out", text.parent / "one", "--steps", 1, *SMALL))
    assert loss > unigram - 0.1


def test_a_seed_gives_the_same_weights(trained, text):
    out = {seed: text.parent / ("seed%d" % seed) for seed in (0, 1)}
    for seed, folder in out.items():
        train("--text", text, "--out", folder, "--steps", 80, "--seed", seed, *SMALL)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (trained[0], out[0], out[1])]
    assert weights[0] == weights[1] != weights[2]


def test_transformers_loads_it_and_its_loss_is_the_one_printed(trained, text, script):
    folder, printed = trained
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["vocab_size"] == len(tokenizer)
    assert model.generation_config.do_sample and model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    _, held_out, _ = script.gather([text], 40, seed=0)
    rows = script.spread(script.pack(tokenizer, held_out), 64).long()
    assert len(rows) > 9
    with torch.no_grad():
        loss = model(input_ids=rows, labels=rows).loss.item()
    assert loss == pytest.approx(losses(printed)[0], abs=2e-3)


def test_minutes_end_training_by_the_clock(text):
    printed = train("--text", text, "--out", text.parent / "clock", "--minutes", 0.05, "--dtype", "bfloat16", *SMALL)
    steps, seconds = re.search(r"^trained  (\d+) steps, .* in (\d+) s$", printed, re.M).groups()
    assert int(steps) > 1 and 3 <= int(seconds) < 30
    assert transformers.AutoConfig.from_pretrained(text.parent / "clock").dtype == torch.bfloat16


def test_installed_documentation_has_a_vocabulary_of_16384(script):
    texts, held_out, size = script.gather(script.installed_folders(), 3, seed=0)
    assert size > 3e6 and 0 < len(held_out) < len(texts)
    assert not set(texts) & set(held_out)
    tokenizer = script.train_tokenizer(texts, 16384, 256)
    assert len(tokenizer) == 16384
    words = "The function returns a list; größer €\n\n    indented"
    assert tokenizer.decode(tokenizer(words)["input_ids"]) == words


def test_prose_is_taken_from_python_and_man_pages_and_no_paragraph_twice(script, tmp_path):
    said = "This function reads the file from its beginning to its end, and returns every word that occurs in it " * 2
    code = '"""%s"""\nclass A:\n    def f():\n        """%s too"""\n        x = 1\n'
    (tmp_path / "a.py").write_text(code % (said, said))
    (tmp_path / "b.txt").write_text(said + "\n\n" + "0x1234, 0x5678; " * 30)
    (tmp_path / "c.1").write_text('.\\" comment\n.SH NAME\n.B thing\n\\fBbold\\fR \\-x does ' + "a thing " * 40)
    seen = set()
    python = script.prose(tmp_path / "a.py", seen)
    assert python.count(said.strip()) == 2 and "x = 1" not in python
    assert script.prose(tmp_path / "b.txt", seen) == ""
    assert script.prose(tmp_path / "c.1", seen).startswith("NAME\nthing\nbold -x does a thing")


@pytest.mark.parametrize("arguments, words", [
    (["--hidden", "100"], "--hidden 100: must be a multiple of 16"),
    (["--steps", "0"], "--steps 0: must be above 0"),
    (["--text", "/nowhere"], "--text /nowhere: no such folder"),
    (["--vocab", "10"], "--vocab 10"),
])
def test_bad_values_are_named(arguments, words):
    command = [sys.executable, SCRIPT, "--out", "unused", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
