"""The bench of vLLM without vLLM: intervals, verdicts and tables of invented runs, and the rows that are exchanged."""
import re
import json
import multiprocessing
import os
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import tpot
import tpot_serve
import tpot_tables as tables


def cell(stock, ours, null=(4.8, 4.8, 4.8), rules="t1", B=16, read=0.28, **more):
    """Rounds of (ms a token, device ms, host ms)."""
    def turns(values):
        return [dict(zip(("tpot_ms", "device_ms", "host_ms"), value)) for value in values]

    rounds = {"stock": turns(stock), "ours": turns(ours), "null": [{"tpot_ms": ms} for ms in null]}
    return {"model": "qwen3-8b", "rows": "language", "rules": rules, "B": B, "read_ms": read, "rounds": rounds, **more}


STOCK = [(5.30, 0.38, 0.20), (5.28, 0.37, 0.20), (5.31, 0.38, 0.21)]
FASTER = [(5.22, 0.30, 0.15), (5.21, 0.30, 0.15), (5.22, 0.30, 0.15)]
SLOWER = [(5.40, 0.45, 0.30), (5.39, 0.45, 0.30), (5.41, 0.45, 0.30)]


def test_intervals_are_students():
    mean, half = tables.interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(4.303 / 3**0.5)
    assert tables.interval([1.0])[1] == np.inf
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for freedom, value in tables.T95.items():
        assert value == pytest.approx(stats.t.ppf(0.975, freedom), abs=5e-4)
    assert tables.t95(11) == tables.T95[10]


def test_bars_are_of_what_is_beyond_reading_w():
    share, half = tables.gained(cell(STOCK, FASTER))
    assert share == pytest.approx(np.mean([0.8, 7 / 9, 0.8])) and half < 0.1
    results = {"cells": [cell(STOCK, FASTER), cell(STOCK, FASTER, rules="kp"), cell(STOCK, SLOWER, B=64),
                         cell(STOCK, SLOWER, B=4)]}
    found = tables.verdicts(results)
    assert [met for _, met in found] == [True, True, False, False, False, False, False]
    assert "78 %" in found[0][0] or "79 %" in found[0][0]
    assert "bar" not in found[5][0]  # B = 4 has none, but must not be slower


def test_a_difference_inside_its_interval_is_none():
    noisy = [(5.20, 0.37, 0.20), (5.40, 0.38, 0.20), (5.30, 0.38, 0.20)]
    line = tables.table({"cells": [cell(STOCK, noisy)]}).splitlines()[-1]
    assert "(none)" in line
    assert re.fullmatch(r"5.30 / 5.30, -0.1 \+- 5.2 %", tables.token_times(tables.summary(cell(STOCK, noisy))))
    assert "(none)" not in tables.table({"cells": [cell(STOCK, FASTER)]})
    assert not [met for what, met in tables.verdicts({"cells": [cell(STOCK, noisy, B=4)]}) if not met]
    assert tables.token_times(tables.summary(cell(STOCK, FASTER))) .startswith("5.30 / 5.22, 1.5 +- ")
    assert tables.token_times(tables.summary(cell(STOCK, SLOWER))).startswith("**5.30 / 5.40, -")


def test_the_report_of_a_run(tmp_path, capsys):
    results = {"about": {"device": "none"}, "cells": [cell(STOCK, FASTER), cell(STOCK, FASTER, B=64)],
               "greedy": {"drawn": 100, "equal": 98, "apart": [0.0, 0.0]}, "counts": {"fused": 7}}
    del results["cells"][1]["rounds"]["null"]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(results))
    tables.main(str(path), [])
    text = capsys.readouterr().out
    assert "98 of 100 tokens equal" in text and '{"fused": 7}' in text and text.count("| qwen3-8b |") == 2


def test_runs_become_the_records_of_a_page():
    about = {"model": "qwen3-8b", "device": "none", "vllm": "0.26.0", "commit": "abc", "date": "2026-01-02 03:04"}
    screened = cell(STOCK, FASTER, B=1)
    screened["rounds"]["ours+8"] = screened["rounds"]["ours"]
    served = {"B": 4, "rounds": {arm: [{"tpot_ms": ms}, {"tpot_ms": ms + 0.1}] for arm, ms in (
        ("stock", 5.0), ("ours", 4.5))}}
    kv = [{"max_num_seqs": 8, "max_num_batched_tokens": 64, "plug-in": arm, "kv": tokens} for arm, tokens in (
        ("off", 1000), ("on", 990))]
    first = {"about": about, "cells": [cell(STOCK, SLOWER), cell(STOCK, FASTER, rules="kp")]}
    second = {"about": {**about, "commit": "def"}, "cells": [cell(STOCK, FASTER), screened], "serve": [served],
              "kv_tokens": kv}
    results = tables.join([first, second])
    assert [(line["rules"], line["commit"]) for line in results["cells"]] == [("t1", "def"), ("kp", "abc")]
    assert len(results["screens"]) == 1 and "commit" not in results["about"]
    blocks = tables.blocks(results)
    assert "79 % at 16 rows (target 60 %)" in blocks["bars"] and "79 % at 16 rows (target 75 %)" in blocks["bars"]
    assert "| Qwen3-8B, T = 1 | 380 / 300 / 300 / - |" in blocks["screens"]
    assert "| 5.05 +- 0.07 | 4.55 +- 0.07 | 9.9 +- " in blocks["served"]
    assert "| 8, 64 | 1,000 | 990 (-1.0 %) | - |" in blocks["kv"]


def test_the_quick_plan_begins_with_the_bars():
    arguments = types.SimpleNamespace(quick=True)
    plan = tpot.plan_of(arguments)
    bars = {(rules, B) for rules in tables.BARS for B in tables.BARS_AT["B"]}
    assert {(rules, B) for _, rules, B, _ in plan[: len(bars)]} == bars
    assert all(rows == "language" for rows, _, _, _ in plan[: len(bars)])
    assert {rules for _, rules, _, _ in plan} == {"t1", "kp", "penalties", "logprobs5", "mask"}
    full = types.SimpleNamespace(quick=False, rows="language,flat", rules="t1,kp", batches="1,4", rounds=8, serve="",
                                 same="")
    assert len(tpot.plan_of(full)) == 8 and max(plan)[3] <= 6
    assert tpot.sizes_of(full) == {1, 4}
    served = types.SimpleNamespace(**{**vars(full), "rows": "", "serve": "16,64", "same": "t1"})
    assert tpot.plan_of(served) == [] and tpot.sizes_of(served) == {1, 16, 64, tpot.SAME}


class Server:
    """An engine on a clock of its own: a step takes `seconds` and gives every request one token."""

    def __init__(self, seconds, tokens):
        self.now, self.seconds, self.tokens, self.left, self.most, self.sent = 0.0, seconds, tokens, {}, 0, []

    def add_request(self, name, prompt, params):
        self.left[name] = self.tokens
        self.sent.append(self.now)
        self.most = max(self.most, len(self.left))

    def has_unfinished_requests(self):
        return bool(self.left)

    def step(self):
        self.now += self.seconds
        names = list(self.left)
        for name in names:
            self.left[name] -= 1
        self.left = {name: left for name, left in self.left.items() if left}
        return [types.SimpleNamespace(request_id=name, finished=name not in self.left,
                                      outputs=[types.SimpleNamespace(token_ids=[1])]) for name in names]

    def wait(self, seconds):
        self.now += seconds


def test_requests_that_come_by_chance():
    """The cap is kept and reached, a request's time per token is the step's, and gaps have the mean that was asked."""
    engine = Server(0.01, 8)
    found = tpot_serve.serve(engine, lambda rng: [1], None, 4, 64, 1e3, 1, lambda: engine.now, engine.wait)
    assert engine.most == 4 and found["tpot_ms"] == pytest.approx(10) and found["ttft_ms"] == pytest.approx(10)
    assert found["tokens_s"] == pytest.approx(4 / 0.01, rel=0.2)
    slow = Server(1e-4, 3)
    tpot_serve.serve(slow, lambda rng: [1], None, 4, 2000, 50.0, 2, lambda: slow.now, slow.wait)
    assert np.mean(np.diff(slow.sent)) == pytest.approx(1 / 50, rel=0.1) and slow.most <= 4
    rounds = {arm: [{"tpot_ms": ms}, {"tpot_ms": ms + 0.1}] for arm, ms in (("stock", 5.0), ("ours", 4.5), ("null", 4))}
    text = tables.text({"about": {}, "cells": [], "serve": [{"B": 4, "rate": 9.6, "rounds": rounds}]})
    assert "stock 5.050 +- 0.071" in text and "ours takes 9.9 % less" in text


def test_room_for_the_kv_cache_is_asked_of_processes(monkeypatch, tmp_path, capsys):
    """With a stand-in for the engine: each has its switch and its turn, and one that dies is told from the others."""
    module = types.ModuleType("vllm")
    module.LLM = None
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "flashsampling.vllm", types.ModuleType("flashsampling.vllm"))

    entered = multiprocessing.get_context("fork").Value("i", 0)

    def hooks(go, known):
        hooks.go, hooks.known = go, known

    def engine(arguments, folder, most, **more):
        assert os.listdir(folder) == [] and hooks.go.wait(30)
        if most == 1024 and os.environ["FLASHSAMPLING_VLLM"] == "on":
            os._exit(3)
        with entered.get_lock():
            entered.value += 1
            mine = entered.value
        time.sleep(0.1)
        assert entered.value == mine  # nobody else has come to the device
        hooks.known(types.SimpleNamespace(num_gpu_blocks=most + (os.environ["FLASHSAMPLING_VLLM"] == "on"),
                                          block_size=16))

    monkeypatch.setattr(tpot, "engine", engine)
    monkeypatch.setattr(tpot, "kv_hooks", hooks)
    path = tmp_path / "kv.json"
    tpot.kv_cache(types.SimpleNamespace(kv="256:2048,1024:512", model="qwen3-8b", memory=0.4, json=str(path)))
    found = [(each["max_num_seqs"], each["plug-in"], each["kv"]) for each in json.loads(path.read_text())["kv_tokens"]]
    assert found == [(256, "off", 4096), (256, "on", 4112), (1024, "off", 16384), (1024, "on", None)]


def test_shapes_are_those_of_the_models():
    assert {name: (m["vocab_size"], m["hidden_size"]) for name, m in tpot.MODELS.items()} == {
        "qwen3-8b": (151936, 4096), "qwen3-1.7b": (151936, 2048), "qwen3-32b": (151936, 5120),
        "qwen3-30b-a3b": (151936, 2048), "gemma3-1b": (262144, 1152)}
