"""flashsample generate: what it prints, that it is right, and that what it measures is what it says."""
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from small_model import SMALL, WORDS, environment, train, write_text

from flashsampling import __main__ as command
from flashsampling import _generate, _meter

SLEEP = 0.05


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a model that was trained for seconds."""
    folder = tmp_path_factory.mktemp("generate")
    text = write_text(folder / "text")
    train("--text", text, "--out", folder / "model", "--steps", 80, *SMALL)
    return folder / "model"


@pytest.fixture
def generate(model, capsys):
    """Runs the command in this process and returns what it printed; with --json the object."""

    def run(*arguments, code=0, folder=model, prompt="oak"):
        arguments = ["generate", "--model", str(folder), "--prompt", prompt, "--device", "cpu", *map(str, arguments)]
        assert command.main(arguments) == code
        said = capsys.readouterr()
        if code:
            assert len(said.err.splitlines()) == 1
            return said.err
        return json.loads(said.out) if "--json" in arguments else said.out

    return run


def start(folder, *arguments):
    """The command as a process of its own."""
    line = [sys.executable, "-m", "flashsampling", "generate", "--model", folder, "--prompt", "oak fig yew",
            *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def test_text_comes_from_the_language_the_model_learned(model):
    process = start(model, "--seed", 1, "--max-new-tokens", 24, "--device", "cpu")
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0 and error == ""
    text, report = out.split("\n\n", 1)
    words = text.split()
    assert words[:3] == ["oak", "fig", "yew"] and len(words) > 12 and set(words[:-1]) <= set(WORDS)
    assert report.startswith("24 tokens, 1 row; vocabulary ")
    assert "temperature 0.8" in report and "top_p 0.95" in report and "seed 1" in report
    titles = ("tokens per second", "time per token", "head + sampling", "its share", "memory of head + sampling")
    for title in titles:
        assert "\n" + title in report.replace("\n  ", "\n")
    assert "stock" not in report


def test_a_seed_repeats_and_rows_differ(generate):
    first, again, other = (generate("--json", "--copies", 3, "--seed", seed)["flashsampling"] for seed in (5, 5, 6))
    assert first["tokens"] == again["tokens"] != other["tokens"]
    assert first["fused"] and len({tuple(row) for row in first["tokens"]}) == 3
    assert generate("--json")["seed"] != generate("--json")["seed"]


def test_json_says_what_was_done_and_what_it_took(generate, model):
    found = generate("--json", "--compare", "--temperature", 0, "--copies", 2, "--max-new-tokens", 9)
    assert found["copies"] == 2 and found["rules"] == {"do_sample": False, "max_new_tokens": 9}
    assert found["device"] == "cpu" and found["dtype"] == "float32" and found["hidden"] == 64
    ours, stock = found["flashsampling"], found["stock"]
    assert ours["tokens"] == stock["tokens"] and ours["text"] == stock["text"] and len(ours["tokens"]) == 2
    assert ours["fused"] and not stock["fused"]
    assert ours["logits_bytes"] == 0 and stock["logits_bytes"] == 2 * found["vocabulary"] * 4
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    for run in (ours, stock):
        assert run["new_tokens"] == sum(map(len, run["tokens"]))
        assert 0 < run["head_seconds"] < run["token_seconds"]
        assert run["head_share"] == run["head_seconds"] / run["token_seconds"]
        assert run["first_token_seconds"] > 0 and run["tokens_per_second"] > 0 and run["head_bytes"] > 0
        assert run["text"][0] == tokenizer.decode(run["tokens"][0], skip_special_tokens=True)


def test_compare_prints_both_side_by_side(generate):
    out = generate("--compare", "--temperature", 0, "--max-new-tokens", 5, "--copies", 2)
    assert any(line.split() == ["flashsampling", "stock"] for line in out.splitlines())
    assert "\n[2] oak" in out and out.endswith("greedy tokens are the same\n")


def test_rules_are_those_of_the_model_unless_given(generate, model, tmp_path):
    plain = shutil.copytree(model, tmp_path / "plain")
    (plain / "generation_config.json").write_text('{"eos_token_id": 0}')
    assert generate("--json", folder=plain)["rules"] == {"do_sample": False, "max_new_tokens": 63}
    assert generate("--json")["rules"]["top_p"] == 0.95
    assert generate("--json", "--top-p", 0.5)["rules"]["top_p"] == 0.5
    # transformers cuts at 50 where nobody says otherwise: the tokens say that the report is right.
    drawn = [generate("--json", "--seed", 1, *rule, folder=plain)
             for rule in (["--sample"], ["--top-k", 50], ["--temperature", 4, "--top-k", 0])]
    assert drawn[0]["rules"] == drawn[1]["rules"] == {"do_sample": True, "top_k": 50, "max_new_tokens": 63}
    assert drawn[0]["flashsampling"]["tokens"] == drawn[1]["flashsampling"]["tokens"]
    assert drawn[1]["flashsampling"]["tokens"] != drawn[2]["flashsampling"]["tokens"]
    penalised = generate("--json", "--temperature", 0, "--repetition-penalty", 5, "--compare")
    assert penalised["flashsampling"]["tokens"] == penalised["stock"]["tokens"]
    assert penalised["flashsampling"]["tokens"] != generate("--json", "--temperature", 0)["flashsampling"]["tokens"]


def test_what_is_left_to_transformers_is_said(generate, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "typical")
    rules = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**rules, "typical_p": 0.9}))
    found = generate("--json", folder=folder)["flashsampling"]
    assert not found["fused"] and found["logits_bytes"] > 0
    assert "Not fused" in generate(folder=folder) and "Not fused" not in generate()


def test_without_a_tokenizer_token_ids_go_in_and_out(generate, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    found = generate("--json", "--seed", 2, folder=folder, prompt="300, 301")
    assert found["prompt_tokens"] == [300, 301] and found["flashsampling"]["text"] is None
    out = generate("--seed", 2, folder=folder, prompt="300 301")
    assert out.startswith("300 301" + "".join(" %d" % token for token in found["flashsampling"]["tokens"][0]))
    assert "expected" in generate(folder=folder, prompt="oak", code=2)
    assert "token 99999, the vocabulary has" in generate(folder=folder, prompt="99999", code=2)
    assert generate("--json", folder=folder, prompt="")["prompt_tokens"] == [0]  # what the model begins with


def test_damaged_files_and_absent_devices_are_one_line(generate, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    assert "was not loaded" in generate(folder=folder, code=3)
    (folder / "config.json").write_text('{"model_type": "unheard-of"}')
    assert "was not loaded" in generate(folder=folder, code=3)
    assert "expected cpu, cuda" in generate("--device", "abacus", code=2)
    assert "torch sees" in generate("--device", "cuda:77", code=2)


def test_an_interrupt_ends_it_with_130(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "endless")
    (folder / "generation_config.json").write_text('{"do_sample": true}')  # no token ends a text
    process = start(folder, "--max-new-tokens", 100000, "--device", "cpu")
    assert "100000 more; the model was made for 64" in process.stderr.readline()
    assert len(process.stdout.read(60)) == 60
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error == "flashsample generate: interrupted\n"


def loaded(folder):
    model, _ = _generate.load(str(folder), "cpu")
    config = transformers.GenerationConfig(do_sample=True, max_new_tokens=6, top_k=0)
    return model, lambda fused, show=None: _meter.measure(model, [300], 1, config, 1, fused, show=show)


def slowed(function):
    def slow(*arguments, **keywords):
        time.sleep(SLEEP)
        return function(*arguments, **keywords)

    return slow


@pytest.mark.parametrize("fused", [True, False])
def test_head_and_sampling_is_what_is_timed(model, fused, monkeypatch):
    """A planted delay shows where it is: in the layers, in the head, in what draws, in what prints."""
    loaded_model, measure = loaded(model)
    measure(fused)  # proves the head, once
    with monkeypatch.context() as patch:
        patch.setattr(loaded_model.model, "forward", slowed(loaded_model.model.forward))
        found = measure(fused)
        assert found["token_seconds"] > SLEEP > found["head_seconds"]
    with monkeypatch.context() as patch:
        if fused:
            patch.setattr("flashsampling.Context.sample", slowed(_meter.Context.sample))
        else:
            patch.setattr(torch, "multinomial", slowed(torch.multinomial))
        assert measure(fused)["head_seconds"] > SLEEP
    if not fused:
        with monkeypatch.context() as patch:
            patch.setattr(loaded_model.lm_head, "forward", slowed(loaded_model.lm_head.forward))
            assert measure(fused)["head_seconds"] > SLEEP
    assert measure(fused, show=lambda tokens: time.sleep(SLEEP))["token_seconds"] < SLEEP


def test_memory_is_what_lives_at_once():
    peak = _meter._host_peak()
    before = torch.zeros(5000)
    with peak:
        first = torch.zeros(1000)
        del first
        second = torch.ones(2000)
        views = before[:100], second.view(2, -1), second.add_(1)
    assert peak.bytes == 8000 and len(views) == 3
    with peak:
        third = torch.zeros(1000)
    assert peak.bytes == 12000 and third is not second
