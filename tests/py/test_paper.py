"""The paper's protocol without a GPU: the cost model, tables and plots made from a small invented run, and the
parts of the measuring code that need no device."""
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import gpu_bench
import paper
import paper_model as model
import paper_report

SMALL, LARGE = (151936, 4096), (128256, 8192)


def line(head, B, ours, greedy, samplers, matmul=300.0, ceiling=250.0):
    """One batch size; samplers is {name: (alone, after the matmul)}."""
    times = {"ceiling": ceiling, "matmul": matmul, "matmul_tall": matmul + 5, "ours": ours, "greedy": greedy}
    for name, (alone, chained) in samplers.items():
        times.update({name: alone, model.chain(name): chained})
    V, D = head
    return {"V": V, "D": D, "B": B, "reader": 0, "ceiling_tb_s": 2 * V * D / ceiling * 1e-6, "work_bytes": 4321,
            "same_as_b1": None, "eager": {}, "clock": {"sm_mhz": 1755.0, "memory_mhz": 3201.0, "power_w": 612.5},
            "times": {name: {"min": us - 1, "median": us} for name, us in times.items()}}


@pytest.fixture()
def results():
    """Invented, with easy ratios: over multinomial 2, 1.5 and 0.8, over sort 4, 5 and 6."""
    lines = [
        line(SMALL, 1, 280.0, 273.0, {"multinomial": (100.0, 560.0), "sort": (900.0, 1120.0)}),
        line(SMALL, 64, 320.0, 288.0, {"multinomial": (100.0, 480.0), "sort": (900.0, 1600.0)}),
        line(SMALL, 128, 500.0, 480.0, {"multinomial": (200.0, 400.0), "sort": (900.0, 3000.0)}),
        line(LARGE, 64, 600.0, 540.0, {"multinomial": (150.0, 900.0), "sort": (900.0, 1200.0)}, ceiling=470.0),
    ]
    lines[0]["kernels"] = {"ours": {"count": 1, "us": 280.0, "share": 0.0},
                           "multinomial": {"count": 7, "us": 400.0, "share": 0.25}}
    return model.complete({
        "device": "NVIDIA H200", "driver": "580.1", "torch": "2.11", "cuda": "13.0", "library": "0.1.0, cuda",
        "commit": "abc1234", "date": "2026-01-02 03:04 UTC", "reps": 100, "warm_ups": 25, "peak_tflops": 800.0,
        "evidence": True, "note": "", "seconds": 1.0, "notes": {}, "lines": lines,
        "absent": {"b1": "head.kind FS_HEAD_LOGITS is not supported yet", "fi2": "No module named 'flashinfer'"}})


def tables(text):
    """Every table of a page as rows of cells."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.M)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()] for block in blocks]


# --------------------------------------------------------------------------------------------------------- model ----


def test_the_model_gives_the_figures_the_paper_prints():
    at = {B: model.derive(line(SMALL, B, 300.0, 290.0, {}), 800.0)["model"] for B in (1, 64, 128)}
    assert [round(100 * at[B]["extra_traffic"], 3) for B in (1, 64, 128)] == [0.049, 3.125, 6.25]
    assert at[1]["bytes_saved"] == 607744
    assert at[1]["bytes_saved"] / 8e12 * 1e3 == pytest.approx(7.6e-5, rel=1e-3)  # ms at 8 TB/s


@pytest.mark.parametrize("B", [1, 64, 256])
def test_intensities_are_those_of_section_4_7(B):
    V, D = SMALL
    assert model.intensity(V, D, B, "ours") == pytest.approx(B * V / (V + B))
    assert model.intensity(V, D, B, "b1") == pytest.approx(B * V * D / (V * D + B * D + 2 * B * V))


def test_predicted_time_is_the_slower_of_bytes_and_flops():
    V, D, B = 1000, 500, 10
    bytes_, operations = 2 * (V * D + B * D), 2 * B * V * D
    assert model.predict(V, D, B, "ours", 1.0, 1e9) == pytest.approx(bytes_ * 1e-6)
    assert model.predict(V, D, B, "ours", 1e9, 1.0) == pytest.approx(operations * 1e-6)
    assert model.predict(V, D, B, "b1", 1.0, 1e9) == pytest.approx((bytes_ + 4 * B * V) * 1e-6)


def test_shares_are_sampler_over_parts_and_for_ours_sampled_minus_greedy(results):
    share = results["lines"][1]["derived"]["sampling_share"]
    assert share["multinomial"] == pytest.approx(100 / 400)
    assert share["ours"] == pytest.approx(32 / 320)


def test_bandwidth_times_intensity_is_the_rate(results):
    for entry in results["lines"]:
        for method, tb_s in entry["derived"]["tb_s"].items():
            rate = tb_s * model.intensity(entry["V"], entry["D"], entry["B"], method)
            assert entry["derived"]["tflops"][method] == pytest.approx(rate)


# ---------------------------------------------------------------------------------------------------------- page ----


def test_speedups_are_baseline_over_ours_and_a_loss_is_bold(results):
    rows = tables(paper_report.blocks(results)["speedup-151936"])[0]
    assert rows[0][:4] == ["B", "ours, us", "cuBLAS + PyTorch", "cuBLAS + sort, top-k, top-p"]
    assert [row[2] for row in rows[2:]] == ["560.0 (2.00)", "480.0 (1.50)", "**400.0 (0.80)**"]
    assert [row[3] for row in rows[2:]] == ["1,120.0 (4.00)", "1,600.0 (5.00)", "3,000.0 (6.00)"]
    assert rows[2][-1] == "1.28 / 1.35 / 1.20"  # what the paper printed for B = 1


def test_absent_baselines_have_no_column_and_are_named(results):
    found = paper_report.blocks(results)
    assert not any("FlashInfer" in cell for cell in tables(found["shares"])[0][0])
    assert "fi2 (No module named 'flashinfer')" in found["run"]


def test_what_was_not_measured_is_a_dash(results):
    shares = tables(paper_report.blocks(results)["shares"])[0]
    assert [row[3] for row in shares[2:]] == ["25.0 %, 25.0 %", "25.0 %, -", "33.3 %, -"]
    assert [row[:3] for row in shares[2:4]] == [["151,936 x 4,096", "1", "2.5 %, 0.0 %"],
                                                ["151,936 x 4,096", "64", "10.0 %, -"]]
    assert {row[3] for row in tables(paper_report.blocks(results)["model"])[0][2:]} == {"-"}  # no sampler of ours


def test_a_baseline_without_a_graph_is_said_to_be(results):
    assert "without a graph" not in paper_report.text(results)
    results["lines"][2]["eager"]["multinomial"] = "it waits for the device"
    assert "cuBLAS + PyTorch was timed without a graph" in paper_report.text(results)


def test_plots_show_the_numbers_of_the_tables_and_no_method_that_cuts(results):
    first, second = paper_report.speedup_panels(results)
    curves = dict(first["curves"])
    assert curves["cuBLAS + PyTorch"] == [(1, 2.0), (64, 1.5), (128, 0.8)] and "128,256" in second["title"]
    shown = {label for panel in paper_report.other_panels(results) for label, _ in panel["curves"]}
    assert shown == {"ours", "cuBLAS + PyTorch", "cuBLAS alone, nothing drawn", "reading W once", "predicted, fused",
                     "predicted, stored logits"}


def test_plots_have_gaps_where_a_baseline_has(results):
    del results["lines"][1]["times"][model.chain("multinomial")]
    curves = dict(paper_report.speedup_panels(model.complete(results))[0]["curves"])
    assert [B for B, _ in curves["cuBLAS + PyTorch"]] == [1, 128]


# ----------------------------------------------------------------------------------------------------- measuring ----


@pytest.mark.parametrize("program", ["gpu.py", "paper.py"])
def test_a_gpu_bench_without_a_gpu_says_so(program):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, BENCH / program], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 1
    assert re.fullmatch(r"bench: (torch is not installed|no CUDA device)\n", done.stderr.splitlines(True)[-1])
    usage = subprocess.run([sys.executable, BENCH / program, "--help"], capture_output=True, text=True, timeout=120)
    assert usage.returncode == 0 and "--json FILE" in usage.stdout


class Ticking(gpu_bench.Bench):
    """Every call takes a microsecond more than the one before."""

    def __init__(self):
        self.calls = 0

    def time_once(self, graph):
        self.calls += 1
        return float(self.calls)


def test_warm_ups_are_not_counted_and_arms_take_turns():
    times = Ticking().time_graphs({"a": None, "b": None}, reps=3, warm_ups=2)
    assert times == {"a": (5.0, 7.0), "b": (6.0, 8.0)}  # a is called 1, 3, then 5, 7, 9


@pytest.mark.parametrize("script, answer", [
    ("echo 1755, 3201, 612.50", {"sm_mhz": 1755.0, "memory_mhz": 3201.0, "power_w": 612.5}),
    ("echo '1755, 3201, [N/A]'", {"sm_mhz": 1755.0, "memory_mhz": 3201.0, "power_w": None}),
    ("echo '[N/A], 3201, 612.50'", None),
    ("echo No devices were found", None),
    ("exit 9", None),
    (None, None),
])
def test_the_clock_is_read_or_unknown_but_never_an_error(script, answer, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "%s:/bin:/usr/bin" % tmp_path if script else str(tmp_path))
    if script:
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\n%s\n" % script)
        program.chmod(0o755)
    assert Ticking().clock({"a": None}) == answer


def test_kernels_that_the_matmul_alone_does_not_launch_are_sampling(monkeypatch):
    kernels = {"matmul": [("mm", 290.0), ("split", 10.0)], "ours": [("tile", 95.0), ("merge", 5.0)],
               "b1": [("mm", 280.0), ("split", 20.0), ("max", 60.0), ("pick", 40.0)]}
    point = paper.Point.__new__(paper.Point)
    point.matmul, point.ours, point.runs, point.chain = "matmul", "ours", {"b1": None}, lambda name: name
    monkeypatch.setattr(paper, "profile", lambda bench, run: kernels[run])
    assert point.kernels(None) == {"ours": {"count": 2, "us": 100.0, "share": 0.05},
                                   "b1": {"count": 4, "us": 400.0, "share": 0.25}}


def test_a_call_that_waits_for_the_device_is_not_captured():
    modes = []
    cuda = types.SimpleNamespace(set_sync_debug_mode=modes.append, synchronize=lambda: None)
    bench = types.SimpleNamespace(torch=types.SimpleNamespace(cuda=cuda))

    def waits():
        raise RuntimeError("called a synchronizing operation\nand more")

    assert paper.why_eager(bench, waits) == "RuntimeError: called a synchronizing operation"
    assert paper.why_eager(bench, lambda: None) == ""
    assert modes == ["error", "default"] * 2


def test_a_slow_ceiling_is_no_evidence(results):
    assert gpu_bench.invalid_reason(results["lines"]) == ""
    results["lines"][1]["ceiling_tb_s"] = 4.3
    assert "the ceiling fell to 4.30 TB/s" in gpu_bench.invalid_reason(results["lines"])


def test_a_run_is_saved_and_derived_anew_when_it_is_read(results, tmp_path):
    path = str(tmp_path / "new folder" / "run.json")
    speedup = results["lines"][0]["derived"]["speedup"]
    for entry in results["lines"]:
        del entry["derived"]
    paper.save(results, path)
    assert model.load(path)["lines"][0]["derived"]["speedup"] == speedup
