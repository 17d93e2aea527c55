"""The bench of vLLM on stand-ins: every cell of a small plan is measured, with clocks of the host in place of a
device's events. Times mean nothing here; that all arms ran, on rows of the pool, does."""
import json
import os
import random
import sys
import time
import types

import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")

import vllm_standin as standin
from vllm_steps import module
from vllm_standin import Request, World

import flashsampling as fs
import flashsampling.vllm as fsv

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import gpu_language
import tpot
import tpot_arms
import tpot_tables

VOCAB = 3000


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.time = time.perf_counter()

    def elapsed_time(self, after):
        return 1e3 * (after.time - self.time)


class Engine:
    """generate() as LLM's: a step with prompts, then one token after the other."""

    def __init__(self, world):
        self.world, self.steps, output = world, 0, types.SimpleNamespace
        self.scheduler = output(max_num_scheduled_tokens=2048)
        self.llm_engine = output(engine_core=output(engine_core=output(scheduler=self.scheduler)))

    def generate(self, prompts, params, use_tqdm):
        each = params if isinstance(params, list) else [params] * len(prompts)
        rules, rows, drawn = each[0], range(len(prompts)), []
        for slot in rows:
            self.world.add(slot, Request([1, 2], [3], temperature=rules["temperature"], top_k=rules.get("top_k", 0),
                                         top_p=rules.get("top_p", 1), logprobs=rules.get("logprobs"),
                                         repetition=rules.get("repetition_penalty", 1), seed=each[slot].get("seed")))
        for step in range(rules["max_tokens"]):
            hidden, batch = self.world.batch(rows, scheduled=[2] * len(rows) if step == 0 else None, shift=step)
            tokens = self.world.runner.sample(hidden.nan_to_num(), batch, None)[0].sampled_token_ids
            assert tokens.shape == (len(rows), 1)
            drawn.append(tokens[:, 0].tolist())
            self.steps += 1
        return [types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tokens)]) for tokens in zip(*drawn)]


@pytest.fixture
def run(module, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tpot_arms, "POOL", 48)
    monkeypatch.setattr(gpu_language, "LARGEST", (0.0, 1.0))
    monkeypatch.setattr(sys.modules["vllm"], "SamplingParams", lambda **rules: rules, raising=False)
    run, world = tpot.Run.__new__(tpot.Run), World(vocab=VOCAB, dim=64, slots=16)
    run.arguments = types.SimpleNamespace(model="qwen3-8b", quick=False, batches="1,16", rules="t1,kp,logprobs5,mask",
                                          rows="language,flat", rounds=2, new=8, prompt=4, budget=1e9, serve="",
                                          same="", screen="", json=str(tmp_path / "run.json"))
    run.began = run.ready = time.perf_counter() - 1
    run.sampler_build = types.SimpleNamespace(wait=lambda: None)
    run.plugin, run.torch, run.llm, run.random, run.vocab = fsv, torch, Engine(world), random.Random(1), VOCAB
    run.tap = tpot_arms.Tap(torch, fsv, module, {
        "count": standin.get_num_sampled_and_rejected, "output": standin.SamplerOutput,
        "grammar": standin.GrammarOutput})
    run.generate(1, 2, "greedy")
    weight = run.tap.runner._flashsampling.layer.weight.data[:VOCAB]
    tpot_arms.plant(torch, weight)
    run.results, run.read_ms = {"about": {}, "cells": []}, 1e-3
    pools, run.results["language"] = tpot_arms.pools(types.SimpleNamespace(torch=torch, device="cpu"), weight)
    run.pools = {name: pool.float() for name, pool in pools.items()}
    return run


def test_every_cell_is_measured(run, capsys):
    run.main()
    results = json.load(open(run.arguments.json))
    assert len(results["cells"]) == 16 and set(results["counts"]) == {"fused"}
    for cell in results["cells"]:
        arms = {"stock", "ours"} if cell["rules"] == "logprobs5" else {"stock", "ours", "null"}
        assert set(cell["rounds"]) == arms and all(len(turns) == 2 for turns in cell["rounds"].values())
        assert all(value > 0 for turns in cell["rounds"].values() for turn in turns for value in turn.values())
    greedy = results["greedy"]
    assert greedy["drawn"] == 2 * 16 * 33 and greedy["equal"] == greedy["drawn"]
    assert results["language"]["p_max"][1] > 0.1
    assert capsys.readouterr().out.count("| qwen3-8b | language | kp |") == 4  # as they come, and in the table


def test_arms_with_screens(run, capsys):
    """They have theirs, of the head as the bench has written it, and draw what ours draws; ours still has none."""
    run.arguments.screen, run.arguments.batches, run.arguments.rows = "8,4", "1", "language"
    run.prepare_screens()
    seen, sample = {}, fsv._sample
    with pytest.MonkeyPatch.context() as patch:
        def watched(runner, *step):
            result, drawer = sample(runner, *step), runner._flashsampling
            bits = next((bits for bits, each in run.tap.screened.items() if each is drawer), 0)
            seen.setdefault((run.tap.arm, bits), []).append(drawer.call.context.counters.screened_rows)
            return result

        patch.setattr(fsv, "_sample", watched)
        run.tap.original["ours"] = watched
        run.main()
    results = json.load(open(run.arguments.json))
    assert set(seen) == {("check", 0), ("check", 8), ("check", 4), ("ours", 0), ("ours+8", 8), ("ours+4", 4)}
    assert sum(seen["ours+8", 8]) > 10 and any(seen["ours+4", 4]) and not any(seen["ours", 0])
    assert all(("ours+4" in cell["rounds"]) == (cell["rules"] == "t1") for cell in results["cells"])
    assert set(results["counts"]) == {"fused"}
    assert results["screened"] == dict.fromkeys("84", {"drawn": 33 * (3 * 16 + 2 * 8 + 2), "equal": 33 * 66})
    about = results["about"]
    assert about["screen_bytes_8"] > about["screen_bytes_4"] > VOCAB * 32
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in lines} == {14} and "a screen of 4 bits" in lines[0]


def test_rows_for_screens(monkeypatch):
    """Language-like, from a head of which 4 bits decide more rows than of one with planted columns."""
    monkeypatch.setattr(tpot_arms, "POOL", 48)
    monkeypatch.setattr(gpu_language, "LARGEST", (0.0, 1.0))
    monkeypatch.setenv("FLASHSAMPLING_SCREEN_ROWS", "16")
    torch.manual_seed(1)
    bench, context, found = types.SimpleNamespace(torch=torch, device="cpu"), fs.Context("cpu", threads=1), {}
    for make in (tpot_arms.turned, tpot_arms.planted):
        weight = torch.zeros(16000, 2048, dtype=torch.bfloat16)
        pools, about = make(bench, weight)
        assert 0.1 < about["p_max"][1] < 0.9 and pools["flat"].shape[1] == 2048
        head = fs.Head(weight, screen=context.screen(fs.Head(weight), 4, seed=5))
        context.sample(head, pools["language"][:12], temperature=1.0, seed=3)
        found[make] = context.counters.screened_rows
    assert found[tpot_arms.turned] > 8 and found[tpot_arms.planted] < found[tpot_arms.turned]


def test_rows_are_those_of_the_pool(run):
    """Every call sees other rows of it, flat or language-like."""
    seen = []
    run.tap.original["ours"] = lambda runner, hidden, batch, grammar: (
        seen.append(hidden[batch.logits_indices].clone()), run.tap.null(runner, hidden, batch, grammar))[1]
    run.tap.arm, run.tap.pool = "ours", run.pools["language"]
    run.generate(4, 3, "t1")
    assert len(seen) == 3 and not torch.equal(seen[1], seen[2])
    assert all((run.pools["language"] == row).all(1).any() for rows in seen for row in rows)


def test_a_spent_budget_leaves_cells_out(run, capsys):
    run.arguments.budget = 0.5
    run.main()
    assert "is left out" in capsys.readouterr().out and json.load(open(run.arguments.json))["cells"] == []


def test_equal_seeds_are_drawn_again_in_other_batches(run, monkeypatch):
    """Ours are equal, in slots and batches of every kind; rows that are not functions of the seed would be seen."""
    monkeypatch.setattr(tpot, "SAME", 12)
    run.same("t1", new=5)
    ways = ["backwards", "in fours", "alone", "prompts in pieces"]
    assert run.results["same"]["t1"]["ours"] == dict.fromkeys(ways, 1.0)
    assert run.llm.scheduler.max_num_scheduled_tokens == 2048 and not run.tap.by_seed
    monkeypatch.setattr(run.tap, "places", lambda runner, batch: torch.arange(batch.num_reqs))
    run.same("t1", new=5)
    shares = run.results["same"]["t1"]["ours"]
    assert shares["backwards"] < 1 and shares["alone"] < 1
