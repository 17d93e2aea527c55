"""The bench of rules on the GPU without a GPU: bars, tables and page of small invented runs, what language-like rows
are, and the parts of the measuring code that need no device. All of it on the CPU, with torch:
tests/torch/test_gpu_rules_on_cpu.py."""
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import flashsampling as fs

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import gpu_language
import gpu_rows
import gpu_rule_arms as arms
import gpu_rule_tables as tables
import gpu_rules

SMALL, LARGE = (151936, 4096), (128256, 8192)
ARMS = ("plain", *tables.CUT, "mask", *tables.LISTED, *tables.FREE, "mixed", *tables.WIDE, "logprob, top-20")
MIB = 2**20


def line(head, B, plain=300.0, peers=(), **ratios):
    """Invented: every arm takes what plain draws do, but for those whose ratio is given."""
    V, D = head
    times = {"ceiling": 280.0, **dict.fromkeys(ARMS, plain), **dict(peers)}
    times.update({name: plain * ratio for name, ratio in ratios.items()})
    return {"V": V, "D": D, "B": B, "reader": 0, "ceiling_tb_s": 4.5, "eager": [],
            "times": {arm: {"min": us - 1, "median": us} for arm, us in times.items()},
            "fallback": {arm: (0, 1000) for arm in ARMS}, "differ": {arm: (0, 24) for arm in ARMS},
            "work": {arm: 5 * MIB for arm in ARMS}}


def rate(second, T=1.0, rows="language", head=SMALL):
    return {"V": head[0], "D": head[1], "rows": rows, "T": T, "second": second, "of": 1000}


def run_of(lines, fallback=(), **more):
    return tables.judged({
        "device": "NVIDIA H200", "driver": "580.1", "torch": "2.11", "cuda": "13.0", "library": "0.1.0, cuda",
        "commit": "abc1234", "date": "2026-01-02 03:04 UTC", "reps": 60, "warm_ups": 8, "seconds": 1, "absent": {},
        "described": {}, "tables": {"rules": list(lines), "fallback": list(fallback)}, **more})


@pytest.fixture()
def results():
    fi = {"FI top-k 50, top-p .95 (f32)": 400.0, "FI top-k 50, top-p .95 (bf16)": 380.0, "FI top-p .9 (f32)": 500.0}
    first = line(SMALL, 64, 300.0, fi, **{"top-p .9": 1.06, "mask": 1.02, "mixed": 1.06, "flat, top-p .95": 2.3})
    second = line(SMALL, 256, 450.0, {"FI top-k 50, top-p .95 (f32)": 900.0},
                  **{"top-k 50, top-p .95": 1.11, "edits": 1.2, "mixed": 1.21})
    second["work"]["top-k 50"] = 30 * MIB
    second["fallback"]["top-p .9"] = (9, 1000)
    first["differ"]["mask"] = (1, 24)
    return run_of([first, second, line(SMALL, 37, **{"mask": 1.1})], [rate(3), rate(0, 0.7), rate(900, 2.0, "flat")])


def verdict(results, name):
    found = [text for text in results["worst"] if text.startswith(name)]
    assert len(found) == 1
    return found[0]


# ---------------------------------------------------------------------------------------------------------- bars ----


def test_bars_over_plain_are_wider_for_more_rows_between_sizes_and_for_short_dot_products():
    limits = [tables.limit(tables.CUT_LIMITS, 4096, B) for B in (1, 16, 64, 128, 256)]
    assert limits == pytest.approx([1.05, 1.05, 1.05, 1.08, 1.12])
    assert [tables.limit(tables.CUT_LIMITS, 8192, B) for B in (64, 256)] == pytest.approx([1.05, 1.12])
    assert [tables.limit(tables.CUT_LIMITS, 4096, B) for B in (37, 200, 300)] == pytest.approx([1.10, 1.17, 1.17])
    assert [tables.limit(tables.MASK_LIMITS, 2048, B) for B in (64, 128, 37)] == pytest.approx([1.06, 1.10, 1.11])
    assert [tables.limit(tables.LISTED_LIMITS, 4096, B) for B in (64, 128, 256)] == pytest.approx([1.06, 1.08, 1.10])


def test_bars_over_flashinfer_are_those_of_two_heads():
    assert [1 / tables.peer_limit(SMALL, B) for B in (1, 64, 128, 256, 37)] == pytest.approx([1.3, 1.3, 1.8, 1.8, 1.25])
    assert [1 / tables.peer_limit(LARGE, B) for B in (64, 128, 300)] == pytest.approx([1.15, 1.35, 1.30])
    assert tables.peer_limit((151936, 2048), 64) is None


def test_every_bar_says_its_worst_cell_and_how_many_miss(results):
    small = "151,936 x 4,096, B = "
    assert verdict(results, "cuts") == f"cuts / plain 1.060 at {small}64, top-p .9 (bar 1.050); 1 of 12 missed"
    assert verdict(results, "bitmask") == f"bitmask / plain 1.100 at {small}37, mask (bar 1.080); 1 of 3 missed"
    assert verdict(results, "penalties") == (
        f"penalties and edits / plain 1.200 at {small}256, edits (bar 1.100); 1 of 9 missed")
    assert verdict(results, "wide") == (
        f"wide rows / plain 2.300 at {small}64, flat, top-p .95 (bar 2.200); 1 of 9 missed")
    assert verdict(results, "8 samples") == "8 samples of 8 rows / plain: not measured"
    assert verdict(results, "work memory") == (
        f"work memory beyond plain, MiB 25.000 at {small}256, top-k 50 (bar 24.000); 1 of 39 missed")
    assert verdict(results, "second passes of language-like rows, by call").endswith(
        "0.003 at 151,936 x 4,096, top-p .9 (bar 0.002); 1 of 5 missed")
    assert verdict(results, "second passes of language-like rows, p = .95") == (
        "second passes of language-like rows, p = .95, T <= 1 0.003 at 151,936 x 4,096, T = 1 (bar 0.002); "
        "1 of 2 missed")


def test_a_mixed_batch_may_cost_what_its_most_expensive_kind_does(results):
    # 1.06 is what top-p .9 takes at 64 rows, 1.20 what edits take at 256.
    assert verdict(results, "mixed").endswith(
        "1.210 at 151,936 x 4,096, B = 256, mixed (bar 1.200); 1 of 3 missed")


def test_ours_is_held_to_flashinfer_on_the_better_logits(results):
    # 300 over 380 at 64 rows, to be 1 / 1.3; 499.5 over 900 at 256, to be 1 / 1.8.
    assert verdict(results, "ours / cuBLAS + FlashInfer, top-k and top-p").endswith(
        "0.789 at 151,936 x 4,096, B = 64, top-k 50, top-p .95 (bar 0.769); 1 of 2 missed")
    assert verdict(results, "ours / cuBLAS + FlashInfer, one").endswith("0.636 at 151,936 x 4,096, B = 64, top-p .9")


def test_second_passes_of_warm_and_other_rows_have_no_bar():
    assert tables.rates([rate(900, 1.5), rate(900, 2.0), rate(900, 1.0, "flat"), rate(900, 0.7, "Zipf")]) == []


# --------------------------------------------------------------------------------------------------------- pages ----


def cells(text):
    """Every table of a text as rows of cells."""
    blocks = re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.M)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()] for block in blocks]


def test_the_page_has_the_worst_first_and_marks_what_is_missed(results):
    page = tables.blocks(results)
    rules = cells(page["rules"])[0]
    assert rules[0] == ["over plain", "151,936 x 4,096, B = 64", "151,936 x 4,096, B = 256"]
    assert rules[2:6] == [["plain, us", "300.0", "450.0"], ["edits", "1.000", "**1.200**"],
                          ["flat, top-p .95", "**2.300**", "1.000"], ["top-p .9", "**1.060**", "1.000"]]
    assert ["mixed", "1.060", "**1.210**"] in rules
    peers = {row[0]: row[1:] for row in cells(page["peers"])[0]}
    assert peers["top-k 50, top-p .95"] == ["380.0 **(1.27)**", "900.0 (1.80)"]
    assert peers["top-p .9"] == ["500.0 (1.57)", "-"] and peers["min-p .05"] == ["-", "-"]
    rates = cells(tables.rates_table(results["tables"]["fallback"]))[0]
    assert rates[0][1:] == ["T = 1", "T = 0.7", "T = 2"]
    assert rates[2:] == [["language", "**0.3 %**", "0.0 %", "-"], ["flat", "-", "-", "90.0 %"]]
    others = cells(page["others"])[0]
    assert others[2][:3] == ["151,936 x 4,096", "1.000 at 37, top-k 50", "**1.100** at 37, mask"]
    assert "commit abc1234, 2026-01-02 03:04 UTC" in page["run"] and "Not evidence" not in page["run"]
    assert "Of 1224 tokens that were compared with the CPU backend's 1 differ." in page["run"]


def test_what_was_not_measured_is_said_with_its_reason(results):
    results["absent"] = {"top-k 50": "refused: top-k", "mask": "refused: masks", "mixed": "refused: top-k"}
    results["tables"]["rules"][0]["ceiling_tb_s"] = 4.3
    results = tables.judged(results)
    assert "Not measured: top-k 50; mixed (refused: top-k)." in tables.blocks(results)["run"]
    assert "**Not evidence:** the ceiling fell to 4.30 TB/s" in tables.text(results)
    assert "Not measured: mask (refused: masks)" in tables.text(results)


def test_a_run_without_peers_and_one_without_lines_can_be_shown():
    text = tables.text(run_of([line(SMALL, 16)]))
    assert "ours / cuBLAS + FlashInfer, top-k and top-p: not measured" in text and "us (over ours)" not in text
    assert "cuts / plain: not measured" in tables.text(run_of([])) and tables.blocks(run_of([]))["rules"] == ""


# ---------------------------------------------------------------------------------------------------------- rows ----


def language_like(rows, V=40000):
    """What gpu_language.hidden makes, in numpy, before rows are left out."""
    random = np.random.default_rng(5)
    normal = 2.5 * gpu_language.RANDOM * random.standard_normal((rows, V))
    return gpu_language.picks(rows).astype(np.float64) @ gpu_language.profiles(V).T + normal


def test_language_like_rows_have_one_likely_token_a_wide_tail_and_orders_of_their_own():
    logits = language_like(64)
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
    good = (p.max(axis=1) >= gpu_language.LARGEST[0]) & (p.max(axis=1) <= gpu_language.LARGEST[1])
    assert good.mean() > 1.2 / gpu_language.SPARE  # so that enough are left
    found = gpu_language.describe(logits[good])
    assert 10 <= found["nucleus .9"][1] <= 200 and found["nucleus .9"][3] >= 500
    assert 50 <= found["nucleus .95"][1] <= 500 and 2.5 <= found["entropy"][1] <= 4.0
    best = logits.argsort(axis=1)[:, -50:]
    assert len(np.unique(best[:, -1])) >= 12 and abs(np.median(best) / 40000 - 0.5) < 0.1  # anywhere
    assert not np.array_equal(best[0], best[gpu_language.PROFILES])  # the same profile, another row


def test_rows_are_described_by_their_quantiles():
    flat = gpu_language.describe(np.zeros((3, 1000)))
    assert flat == {"p_max": [0.001] * 4, "nucleus .9": [900.0] * 4, "nucleus .95": [950.0] * 4,
                    "entropy": [pytest.approx(np.log(1000), abs=0.01)] * 4}
    one = gpu_language.describe(np.log([[0.5, 0.45, 0.05]]))
    assert (one["p_max"][0], one["nucleus .9"][0]) == (0.5, 2.0)


def test_profiles_lie_behind_the_columns_of_other_kinds():
    found = gpu_language.profiles(100)
    assert found.shape == (100, gpu_language.PROFILES)
    assert all(sorted(np.round(np.exp(-column)).astype(int)) == list(range(1, 101)) for column in found.T)
    assert gpu_rows.COLUMNS + gpu_language.PROFILES < 64
    assert np.array_equal((gpu_language.picks(40) != 0).sum(axis=1), np.ones(40))


# ----------------------------------------------------------------------------------------------------- measuring ----


class Tensor(np.ndarray):
    """An array with the two methods of a tensor that are asked for."""

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def tensor(*values, dtype=np.float32):
    return np.array(values, dtype).view(Tensor)


def test_the_rules_of_some_rows_are_theirs():
    lists = (tensor(0, 2, 2, 5, dtype=np.int64), tensor(7, 8, 1, 2, 3, dtype=np.int32), tensor(0.7, 0.8, 0.1, 0.2, 0.3))
    rules = {"temperature": tensor(0.0, 1.0, 2.0), "edits": lists, "limits": {"edits": 5}, "samples": 2,
             "allow": tensor([1], [-1], [3], dtype=np.int32)}
    found = arms.rules_of_rows(rules, np.array([0, 2]))
    assert set(found) == {"temperature", "edits", "samples", "allow"} and found["samples"] == 2
    assert list(found["temperature"]) == [0.0, 2.0] and found["allow"].tolist() == [[1], [3]]
    assert found["allow"].dtype == np.uint32
    assert [list(part) for part in found["edits"]] == [[0, 2, 5], [7, 8, 1, 2, 3], pytest.approx([.7, .8, .1, .2, .3])]
    last = arms.rules_of_rows({**rules, "allow_index": tensor(-1, 0, 2, dtype=np.int32)}, np.array([1, 2]))
    assert last["allow"].tolist() == [[1], [2**32 - 1], [3]] and list(last["allow_index"]) == [0, 2]
    assert [list(part) for part in last["edits"]][:2] == [[0, 0, 3], [1, 2, 3]]


def outcome(rows=24, **changes):
    found = {"tokens": np.arange(rows)[:, None], "logprob": np.full((rows, 1), -2.0, np.float32),
             "rank": np.full((rows, 1), 3000, np.int32), "top_token": np.arange(20 * rows).reshape(rows, 20)}
    return {**found, **changes}


def test_results_may_differ_from_the_cpu_in_near_ties_alone():
    want = outcome()
    assert gpu_rules.disagreement(outcome(), want) == ""
    one, two = want["tokens"].copy(), want["tokens"].copy()
    one[3], two[3:5] = 999, 999
    lost = np.where(one == 999, np.float32(-5), want["logprob"])  # another token has another logprob
    assert gpu_rules.disagreement(outcome(tokens=one, logprob=lost), want) == ""
    assert gpu_rules.disagreement(outcome(tokens=two), want) == "2 of 24 tokens are not the CPU backend's"
    assert gpu_rules.disagreement(outcome(rank=want["rank"] + 5), want) == ""
    assert "24 of 24 values of rank" in gpu_rules.disagreement(outcome(rank=want["rank"] + 9), want)
    assert "values of logprob" in gpu_rules.disagreement(outcome(logprob=want["logprob"] + 0.01), want)
    assert "values of logprob" in gpu_rules.disagreement(outcome(logprob=want["logprob"] * np.nan), want)
    assert "values of top_token" in gpu_rules.disagreement(outcome(top_token=want["top_token"] + 1), want)


def refusing(status, text):
    def on(bench, head):
        raise fs.Error(status, text)
    return types.SimpleNamespace(on=on, H=[0])


@pytest.fixture()
def small_bench(monkeypatch):
    """measure_size without a device: of two calls one is refused."""
    result, context = object(), types.SimpleNamespace(counters=types.SimpleNamespace(work_bytes=7))
    calls = {"plain": types.SimpleNamespace(on=lambda bench, head: lambda: result, H=[0]),
             "top-k 50": refusing(-2, "top-k is not supported yet")}
    monkeypatch.setattr(gpu_rules, "checked", lambda bench, cpu, call, result: ("", (0, 24)))
    monkeypatch.setattr(gpu_rules, "second_passes", lambda bench, run, draws: (1, 4))
    monkeypatch.setattr(gpu_rules, "make_peers", lambda bench, H, W, absent: {})
    monkeypatch.setattr(gpu_rules, "line_of", lambda bench, W, reader, B, arms, effort, **more: {"arms": arms, **more})
    bench = types.SimpleNamespace(fs=types.SimpleNamespace(Head=lambda W: None, Error=fs.Error), context=context)
    W = types.SimpleNamespace(shape=SMALL)

    def measure(absent):
        rows = types.SimpleNamespace(calls=lambda B: calls, H=[0])
        return gpu_rules.measure_size(bench, None, rows, W, 0, 16, {}, absent)
    return types.SimpleNamespace(calls=calls, measure=measure)


def test_a_call_that_is_refused_is_told_in_its_words_and_stops_nothing(small_bench):
    absent = {}
    found = small_bench.measure(absent)
    assert list(found["arms"]) == ["plain"] and absent == {"top-k 50": "refused: top-k is not supported yet"}
    assert (found["work"], found["fallback"], found["differ"]) == ({"plain": 7}, {"plain": (1, 4)}, {"plain": (0, 24)})
    small_bench.calls["top-k 50"] = refusing(-4, "an illegal address")
    with pytest.raises(fs.Error, match="illegal address"):
        small_bench.measure({})


def test_a_call_that_is_wrong_is_not_timed_and_without_plain_draws_nothing_is(small_bench, monkeypatch):
    monkeypatch.setattr(gpu_rules, "checked", lambda bench, cpu, call, result: ("9 of 24 tokens", (9, 24)))
    absent = {}
    with pytest.raises(SystemExit, match="B = 16: plain draws are not right"):
        small_bench.measure(absent)
    assert absent["plain at 151,936 x 4,096, B = 16"] == "9 of 24 tokens"


def test_what_was_measured_is_saved_and_printed_when_a_run_fails(monkeypatch, tmp_path, capsys):
    def measure(bench, cpu, V, D, arguments, results):
        results["tables"]["rules"].append(line((V, D), 64, mask=1.5))
        if (V, D) == LARGE:
            raise RuntimeError("device")

    monkeypatch.setattr(gpu_rules, "measure_head", measure)
    bench = types.SimpleNamespace(fs=fs, renew_context=lambda: None, torch=types.SimpleNamespace(
        cuda=types.SimpleNamespace(empty_cache=lambda: None)))
    arguments = gpu_rules.parse(["--json", str(tmp_path / "run.json")])
    with pytest.raises(RuntimeError, match="device"):
        gpu_rules.run(bench, arguments, {"device": "none"})
    assert "worst: bitmask / plain 1.500 at 151,936 x 4,096, B = 64, mask (bar 1.030)" in capsys.readouterr().out
    saved = json.loads((tmp_path / "run.json").read_text())
    assert len(saved["tables"]["rules"]) == 2 and "cuts / plain 1.000" in saved["worst"][0]


def test_heads_and_sizes_are_those_asked_for():
    whole, quick, more = (gpu_rules.parse(words) for words in ([], ["--quick"], ["--more"]))
    assert whole.heads == (SMALL, LARGE) and set(tables.BAR_SIZES) < set(whole.rows) and whole.reps == 60
    assert quick.heads == (SMALL,) and quick.rows == (16, 64, 256) and quick.reps == 30
    assert more.heads[2:] == ((262208, 2304), (151936, 2048))
    own = gpu_rules.parse("--heads 1000x64 --rows 3 5 --reps 7".split())
    assert (own.heads, own.rows, own.reps) == ([(1000, 64)], [3, 5], 7)
