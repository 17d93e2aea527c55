"""The paper's protocol without a GPU: the cost model, the page and the plots made from a small invented run, and the
parts of the measuring code that need no device."""
import copy
import json
import os
import re
import runpy
import subprocess
import sys
import types
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import gpu_bench
import paper
import paper_model as model
import paper_tables

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


@pytest.fixture()
def saved(results, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(results))
    return path


def tables(text):
    """Every table of a page as rows of cells."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.M)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()] for block in blocks]


def page_of(results):
    """All pages of a run, one behind the other."""
    return "\n".join(paper_tables.pages(results, "run").values())


def section(text, title):
    return text.split("## " + title)[1].split("\n## ")[0]


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


def test_speedups_are_baseline_over_ours_and_the_largest_is_bold(results):
    rows = tables(section(page_of(results), "Speedup, V = 151,936, D = 4,096"))[0]
    assert rows[0][:6] == ["B", "ours", "Algorithm 1", "speedup", "cuBLAS + sort", "speedup"]
    assert [row[3] for row in rows[2:]] == ["**2.00**", "1.50", "0.80"]
    assert [row[5] for row in rows[2:]] == ["4.00", "5.00", "**6.00**"]
    assert rows[2][-1] == "1.28 / 1.35 / 1.20"  # what the paper printed for B = 1


def test_a_loss_is_said_in_words(results):
    page = page_of(results)
    assert "Ours is not faster than Algorithm 1 at B = 128 (0.800)." in page
    assert "Ours is faster than every baseline measured here at every B." in section(page, "Speedup, V = 128,256")


def test_an_absent_baseline_is_named_with_its_reason_and_has_no_column(results):
    page = page_of(results)
    assert "B.1 was not measured: head.kind FS_HEAD_LOGITS is not supported yet." in page
    assert "FI2 was not measured: FlashInfer was not installed." in page
    assert not any("B.1" in cell for table in tables(page) for cell in table[0])


def test_a_baseline_without_a_graph_is_said_to_be(results):
    assert "without a graph" not in page_of(results)
    results["lines"][2]["eager"]["multinomial"] = "it waits for the device"
    page = page_of(results)
    assert "Algorithm 1 was timed without a graph" in page and "(it waits for the device)." in page


def test_every_table_is_a_rectangle_with_a_row_per_batch_size(results):
    found = tables(page_of(results))
    assert len(found) == 2 * 6
    for i, rows in enumerate(found):
        assert {len(row) for row in rows} == {len(rows[0])}
        assert [row[0] for row in rows] == ["B", "---"] + (["1", "64", "128"] if i % 2 == 0 else ["64"])


def test_the_page_names_device_driver_commit_and_date_and_a_run_that_is_no_evidence(results):
    page = page_of(results)
    assert "NVIDIA H200, driver 580.1, CUDA 13.0, torch 2.11; library 0.1.0, cuda; commit abc1234, 2026-01-02" in page
    assert "Not evidence" not in page
    results["note"] = "the ceiling fell"
    assert "**Not evidence:** the ceiling fell." in page_of(results)


def test_what_was_not_measured_is_a_dash(results):
    results["lines"][0]["clock"] = None
    page = page_of(results)
    small = tables(section(page, "All times"))[0]
    assert small[2][-2:] == ["-", "-"] and small[3][-2:] == ["1755", "612"]
    shares = tables(section(page, "Sampling share of kernel time"))[0]
    assert [row[4] for row in shares[2:]] == ["25.0 %", "-", "-"]
    assert "Kernels per call at B = 1: ours 1, Algorithm 1 7." in page


def test_the_first_page_leads_to_all_others(saved):
    first = Path(paper_tables.write(str(saved))).read_text()
    linked = {saved.parent / name for name in re.findall(r"\]\((.*?\.md)\)", first)}
    assert len(linked) == 3 and linked | {saved.with_suffix(".md")} == set(saved.parent.glob("*.md"))


def test_the_tracked_pages_are_those_of_their_run_and_short():
    base = ROOT / "docs" / "results" / "paper-h200"
    for ending, text in paper_tables.pages(model.load(f"{base}.json"), base.name).items():
        assert Path(f"{base}{ending}.md").read_text() == text
        assert len(text.splitlines()) <= 80


# --------------------------------------------------------------------------------------------------------- plots ----


@pytest.fixture()
def plots():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import paper_plots

    return paper_plots


def test_every_plot_the_pages_show_is_written(plots, saved):
    paper_tables.write(str(saved))
    page = "".join(path.read_text() for path in saved.parent.glob("*.md"))
    written = {Path(path) for path in plots.write(str(saved))}
    assert {saved.parent / name for name in re.findall(r"\]\((.*\.svg)\)", page)} == written
    for path in written:
        assert xml.parse(path).getroot().tag.endswith("svg")


def test_the_same_numbers_give_the_same_plot(plots, saved):
    first = [Path(path).read_bytes() for path in plots.write(str(saved))]
    assert first == [Path(path).read_bytes() for path in plots.write(str(saved))]


def test_the_speedup_plot_shows_the_numbers_of_the_table(plots, results):
    panel = plots.plot_speedup(results).axes[0]
    shown = {curve.get_label(): list(curve.get_xydata().flat) for curve in panel.get_lines()}
    assert shown["over Algorithm 1"] == pytest.approx([1, 2.0, 64, 1.5, 128, 0.8])
    assert shown["over cuBLAS + sort"] == pytest.approx([1, 4.0, 64, 5.0, 128, 6.0])


def test_plots_have_gaps_where_a_baseline_has(plots, results, tmp_path):
    gap = copy.deepcopy(results)
    for name in ("sort", model.chain("sort")):
        del gap["lines"][1]["times"][name]
    path = tmp_path / "gap.json"
    path.write_text(json.dumps(gap))
    assert len(plots.write(str(path))) == 4
    panel = plots.plot_speedup(model.load(path)).axes[0]
    shown = {curve.get_label(): list(curve.get_xdata()) for curve in panel.get_lines()}
    assert shown["over cuBLAS + sort"] == [1, 128]


def test_without_matplotlib_the_plots_say_what_is_missing(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", ["paper_plots.py", str(saved)])
    with pytest.raises(SystemExit, match="matplotlib is missing"):
        runpy.run_path(str(BENCH / "paper_plots.py"), run_name="__main__")


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


def test_a_run_is_saved_with_all_that_was_derived_and_read_back(results, tmp_path):
    path = str(tmp_path / "new folder" / "run.json")
    paper.save(results, path)
    stored, loaded = json.loads(Path(path).read_text()), model.load(path)
    assert stored["lines"][0]["derived"]["speedup"]["multinomial"] == 2.0
    assert loaded["lines"][1]["derived"]["model"]["fused_us"] == pytest.approx(
        results["lines"][1]["derived"]["model"]["fused_us"], rel=1e-5)
    assert page_of(loaded) == page_of(results)
