"""bench/quality.py on a tiny model: transformers' own draws, ours and wrong ones; how it asks vLLM, by a stand-in."""
import json
import os
import sys
import types

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers cannot be imported")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import hf_models
import quality
import transformers

ARGUMENTS = ["--engine", "transformers", "--model", "none", "-n", "1100", "--prompts", "2", "--tokens", "5"]


@pytest.fixture
def model(monkeypatch):
    """In the place of a checkpoint; its tokenizer makes two tokens of any text."""
    made = hf_models.make(max_position_embeddings=64)

    class Tokenizer:
        eos_token_id = 2

        def __call__(self, text):
            return {"input_ids": [5 + len(text), 7]}

    made.generation_config.eos_token_id = 2
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: Tokenizer())
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda name: made)
    monkeypatch.setattr(quality, "PLANTED", 1.5)
    return made


def test_our_texts_are_as_stocks_and_a_wrong_temperature_is_found(model, tmp_path, capsys):
    """Seeds are fixed; with others it would fail once in 50 runs, .01 for each of the two rules."""
    path = tmp_path / "q.json"
    assert quality.main([*ARGUMENTS, "--json", str(path)]) == 0, capsys.readouterr().out
    found = json.loads(path.read_text())
    assert [pair["pair"] for pair in found["pairs"]] == ["stock, ours", "stock, planted"] * 2
    assert found["same draws in any batch"] is True
    text = capsys.readouterr().out
    assert text.count("rejected: none") == 2 and "DIFFERENT" not in text


def test_wrong_draws_of_ours_fail_the_study(model, monkeypatch, capsys):
    complete = quality.Transformers.complete

    def wrong(self, arm, prompt, number, rules, most, seed):
        rules = dict(rules, temperature=rules["temperature"] * (1.4 if arm == "ours" else 1.0))
        return complete(self, arm, prompt, number, rules, most, seed)

    monkeypatch.setattr(quality.Transformers, "complete", wrong)
    assert quality.main([*ARGUMENTS, "--rules", "t1"]) == 1
    assert "rejected: log-likelihood of a token" in capsys.readouterr().out


def test_scores_are_the_models(model):
    """Log-likelihoods and transforms of one text, by a forward pass of its own; tokens that a cut leaves out."""
    prompts, drawn, rules = [[9, 7]], [[11, 30, 4], [8]], quality.RULES["t1"]
    found = quality.score(model, prompts, drawn, [0, 0], rules, seed=1)
    logits = model(torch.tensor([[9, 7, 11, 30, 4]])).logits[0].double().log_softmax(-1)
    want = sum(logits[1 + i, token] for i, token in enumerate(drawn[0])).item()
    assert np.isclose(found["loglik"][0], want, atol=1e-4) and np.isnan(found["pit"][1, 1:]).all()
    p = logits[1].exp()
    assert np.isclose(found["excess"][1], (logits[1, 8] - (p * logits[1]).sum()).item(), atol=1e-4)
    above = p[p > p[11]].sum().item()
    assert above <= found["pit"][0, 0] <= above + p[11].item() + 1e-6 and len(found["first"]) == 1
    least = int(logits[1].argmin())
    cut = quality.score(model, prompts, [[least]], [0], quality.RULES["kp"], seed=1)
    assert cut["outside"] == 1 and cut["pit"][0, 0] > 0.99 and cut["first"] == []


@pytest.mark.parametrize("rules", [dict(temperature=0.8, top_k=50, top_p=0.95),
                                   dict(temperature=1.0, top_k=0, top_p=0.5)], ids=str)
def test_the_law_of_cuts_is_transformers(model, rules):
    ids, logits = torch.tensor([[9, 7]]), torch.randn(1, 331) * 3
    config = transformers.GenerationConfig(do_sample=True, **rules)
    processors = model._get_logits_processor(config, 2, ids, None, transformers.LogitsProcessorList())
    torch.testing.assert_close(quality.cut_law(logits, rules).float(), processors(ids, logits).softmax(-1),
                               atol=1e-6, rtol=1e-5)


def test_vllm_is_asked_with_seeds_and_our_sampler_is_exchanged(model, monkeypatch):
    """On a stand-in: arms patch and unpatch, requests have seeds of their own, four orders are compared."""
    import flashsampling.vllm as plugin

    asked, budgets, patched = [], [], []
    output = types.SimpleNamespace

    class LLM:
        def __init__(self, **options):
            assert options["dtype"] == "bfloat16" and options["max_model_len"] == 64
            self.scheduler = output(max_num_scheduled_tokens=8192)
            self.llm_engine = output(engine_core=output(engine_core=output(scheduler=self.scheduler)))

        def generate(self, prompts, params, use_tqdm):
            asked.append([each.seed for each in params])
            budgets.append(self.scheduler.max_num_scheduled_tokens)
            first = 299 if len(params) == 1 else 0  # a batch of one draws other tokens
            return [output(outputs=[output(token_ids=[first or each.seed % 299, 2, 9])]) for each in params]

    module = types.SimpleNamespace(GPUModelRunner=types.SimpleNamespace(sample=plugin._sample))
    names = ["vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.model_runner"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm"].LLM, sys.modules["vllm"].SamplingParams = LLM, types.SimpleNamespace
    for outer, inner in zip(names, names[1:]):
        setattr(sys.modules[outer], inner.split(".")[-1], sys.modules[inner])
    sys.modules[names[-1]].GPUModelRunner = module.GPUModelRunner
    monkeypatch.setattr(plugin, "register", lambda: None)
    monkeypatch.setattr(plugin, "patch", lambda module: patched.append("ours"))
    monkeypatch.setattr(plugin, "unpatch", lambda module: patched.append("stock"))
    engine = quality.Vllm(types.SimpleNamespace(model="none", eager=True), model, output(eos_token_id=2))
    drawn = engine.complete("stock", [9, 7], 5, quality.RULES["kp"], 3, seed=1)
    assert drawn == [[seed % 299, 2] for seed in asked[0]] and len(set(asked[0])) == 5
    engine.complete("ours", [9, 7], 5, quality.RULES["kp"], 3, seed=2)
    assert patched == ["stock", "ours"] and not set(asked[0]) & set(asked[1])
    shares = engine.repeated("ours", [[9, 7]] * 6, 3)
    assert shares == {"backwards": 1.0, "in fours": 1.0, "alone": 0.0, "prompts in pieces": 1.0}
    assert [len(seeds) for seeds in asked[2:]] == [6, 6, 4, 2, *[1] * 6, 6]
    assert set(budgets[:-1]) == {8192} == {engine.llm.scheduler.max_num_scheduled_tokens}
    assert budgets[-1] == quality.BUDGET
