"""The bench of rules on the GPU with its device taken away: the whole program on the CPU backend, a small head."""
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import flashsampling as fs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import gpu_bench
import gpu_language
import gpu_rule_arms as arms
import gpu_rule_tables as tables
import gpu_rules
import report

V, D, ROWS = 8000, 64, 32


class HostBench(gpu_bench.Bench):
    """Calls instead of graphs, the clock of the host, nothing to flush."""

    device = "cpu"

    def __init__(self):
        self.torch, self.fs, self.context = torch, fs, None
        self.position = torch.arange(1024) * 17
        self.renew_context()

    def renew_context(self):
        self.context = fs.Context("cpu", threads=1)

    def prepare(self, arms):
        return arms

    def time_once(self, run):
        start = time.perf_counter()
        (run.replay if isinstance(run, gpu_bench.Eager) else run)()
        return (time.perf_counter() - start) * 1e6

    def read(self, which, W):
        W[0].sum()

    def best_reader(self, W):
        return 0


@pytest.fixture(scope="module")
def bench():
    torch.manual_seed(1)
    return HostBench()


@pytest.fixture(scope="module")
def rows(bench):
    return arms.Rows(bench, bench.weights(V, D), ROWS)


def test_the_program_times_every_call_and_all_agree_with_stored_logits(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_rules, "RATE_ROWS", 48)
    monkeypatch.setattr(gpu_rules, "RATE_BATCH", 16)
    monkeypatch.setattr(gpu_rules, "RATE_DRAWS", 2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(gpu_rules, "make_peers", lambda bench, H, W, absent: {})
    path = str(tmp_path / "run.json")
    arguments = gpu_rules.parse(["--heads", "%dx%d" % (V, D), "--rows", "1", "17", "64", "--reps", "1", "--json", path])
    facts = dict.fromkeys(("device", "driver", "torch", "cuda", "library", "commit", "date"), "none")
    gpu_rules.run(bench, arguments, {**facts, "reps": 1, "warm_ups": 8})
    results = report.load(path)
    one, some, most = results["tables"]["rules"]
    everything = {"ceiling", *tables.CUT, *tables.LISTED, *tables.WIDE, *tables.FREE, "plain", "mask",
                  "logprob, top-20", "mixed", "8 samples"}
    assert set(most["times"]) == everything and set(some["times"]) == everything - {"8 samples"}
    assert set(one["times"]) == everything - {"8 samples", "mixed"} and results["absent"] == {}
    differ = [pair for line in (one, some, most) for pair in line["differ"].values()]
    assert sum(pair[1] for pair in differ) > 700 and sum(pair[0] for pair in differ) <= 2  # near ties
    assert [line["of"] for line in results["tables"]["fallback"]] == [96] * 16
    assert "worst: cuts / plain" in capsys.readouterr().out
    assert "| T = 1.5, top-p .95 |" in tables.text(results) and "differ." in tables.blocks(results)["run"]


def test_rows_are_like_language_and_lists_and_masks_are_what_they_are_said_to_be(bench, rows):
    found = gpu_language.describe(rows.logits.numpy())
    assert found["p_max"][0] >= 0.2 and found["p_max"][3] <= 0.6 and rows.H.dtype == torch.bfloat16
    assert all(len(set(row.tolist())) == arms.LISTED for row in rows.listed)
    likely = rows.logits.topk(4 * arms.LIKELY).indices
    assert all(np.isin(rows.listed[b], likely[b]).sum() == arms.LIKELY for b in range(ROWS))
    bits = np.unpackbits(rows.bits(ROWS).numpy().view("u1"), axis=1, bitorder="little")[:, :V]
    dense = rows.dense(ROWS).numpy()
    assert np.array_equal(bits, dense) and np.array_equal(dense.sum(axis=1), [arms.LISTED] * ROWS)
    assert 0.45 < np.unpackbits(rows.allow.numpy().view("u1")).mean() < 0.55


def test_rows_outside_the_largest_probabilities_asked_for_are_left_out(bench, rows, monkeypatch):
    exact = rows.W.float().T
    monkeypatch.setattr(gpu_language, "LARGEST", (0.3, 0.5))
    H, logits = gpu_language.hidden(bench, exact, ROWS)
    largest = torch.softmax(logits, dim=1).max(dim=1).values
    assert largest.min() >= 0.3 and largest.max() <= 0.5 and torch.equal(H.float() @ exact, logits)
    monkeypatch.setattr(gpu_language, "LARGEST", (0.99, 1.0))
    with pytest.raises(SystemExit, match="only 0 of 80 rows have a largest probability of 0.99 to 1, expected 32"):
        gpu_language.hidden(bench, exact, ROWS)


def test_in_a_mixed_batch_every_row_has_the_rules_of_its_kind(rows):
    rules = rows.mixed(ROWS)
    for b in range(ROWS):
        kind = arms.KINDS[b % len(arms.KINDS)]
        want = {**arms.OFF, **arms.CUTS.get(kind, {}), **(arms.PENALTIES if kind == "penalties" else {}),
                **({"temperature": 0.0} if kind == "greedy" else {})}
        assert {name: rules[name][b].item() for name in want} == pytest.approx(want)
        assert rules["allow_index"][b] == (b if kind == "mask" else -1)
        for name, of in (("edits", "edits"), ("count_list", "penalties")):
            first, last = rules[name][0][b:b + 2].tolist()
            assert last - first == (arms.LISTED if kind == of else 0)
            assert kind != of or torch.equal(rules[name][1][first:last], rows.listed[b])
    assert torch.isinf(rules["edits"][2]).sum() == arms.LISTED // 50 * len(rows.rows_of(ROWS, "edits"))


def test_a_wrong_token_and_a_row_without_one_are_seen(bench, rows):
    call, cpu = rows.calls(ROWS)["top-p .9"], fs.Context("cpu", threads=1)
    result = call.on(bench, fs.Head(rows.W))()
    assert gpu_rules.checked(bench, cpu, call, result) == ("", (0, 24))
    result.tokens[:2] += 1
    assert gpu_rules.checked(bench, cpu, call, result)[0] == "2 of 24 tokens are not the CPU backend's"
    result.status[5] = int(fs.Row.INCOMPLETE)
    assert gpu_rules.checked(bench, cpu, call, result)[0] == "1 of 32 rows have no token"


def test_samplers_of_flashinfer_get_values_by_row_and_those_that_fail_are_left_out(bench, rows, monkeypatch):
    def likeliest(logits, *values, seed, offset):
        assert all(value.shape == (ROWS,) for value in values) and seed.shape == offset.shape == (1,)
        return logits.argmax(dim=-1)

    sampling = types.SimpleNamespace(
        top_k_top_p_sampling_from_logits=likeliest, top_p_sampling_from_probs=likeliest,
        min_p_sampling_from_probs=lambda probs, p, seed, offset: probs.argmin(dim=-1))
    matmul = torch.mm
    monkeypatch.setattr(gpu_rules, "flashinfer_sampling", lambda: sampling)
    monkeypatch.setattr(gpu_rules, "why_eager", lambda bench, run: "it waits" if run() is None else "")
    monkeypatch.setattr(torch, "mm", lambda H, W, out, out_dtype=None: out.copy_(matmul(H, W)))
    absent = {}
    found = gpu_rules.make_peers(bench, rows.H, rows.W, absent)
    assert set(found) == {"FI top-p .9 (f32)", "FI top-k 50, top-p .95 (f32)", "FI top-k 50, top-p .95 (bf16)"}
    assert "no attribute" in absent["FI top-k 50 (f32)"] and "only" in absent["FI min-p .05 (f32)"]
    best = rows.logits.argmax(dim=1)
    assert (found["FI top-p .9 (f32)"]() == best).float().mean() > 0.9
