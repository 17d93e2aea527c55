"""The bench of the CUDA backend without a GPU: bars, tables and plot of small invented runs, what the kinds of
rows are, and the parts of the measuring code that need no device."""
import json
import math
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import flashsampling as fs

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import gpu
import gpu_bars as bars
import gpu_rows
import gpu_tables

SMALL, LARGE = (151936, 4096), (128256, 8192)


def line(head, B, times, **more):
    V, D = head
    return {"V": V, "D": D, "B": B, "reader": 0, "ceiling_tb_s": 4.5, **more,
            "times": {arm: {"min": us - 1, "median": us} for arm, us in times.items()}}


def size(head, B, ours, cublas=300.0, ceiling=280.0, **pairs):
    times = {"ceiling": ceiling, "cublas [B, V]": cublas + 5, "cublas [V, B]": cublas, "ours": ours}
    return line(head, B, {**times, **{"+" + name.replace("_", " "): us for name, us in pairs.items()}})


def rows(draw, **times):
    return line(SMALL, 64, {"ceiling": 280.0, **times}, draw=draw)


@pytest.fixture()
def results():
    """Invented: the first head misses at 257, the second at none; FlashInfer is faster on float32 logits."""
    sizes = [size(SMALL, 128, 300.0, b1=320.0, flashinfer_bf16=350.0, flashinfer_f32=340.0),
             size(SMALL, 256, 315.0, b1=330.0, flashinfer_bf16=450.0, flashinfer_f32=440.0),
             size(SMALL, 257, 450.0, b1=360.0, flashinfer_bf16=400.0, flashinfer_f32=390.0),
             size(LARGE, 64, 480.0, cublas=500.0, ceiling=470.0, b1=540.0)]
    return gpu_tables.judged({
        "device": "NVIDIA H200", "driver": "580.1", "torch": "2.11", "cuda": "13.0", "library": "0.1.0, cuda",
        "commit": "abc1234", "date": "2026-01-02 03:04 UTC", "reps": 60, "warm_ups": 25, "seconds": 1, "absent": {},
        "tables": {
            "sizes": sizes,
            "heads": [size((50257, 768), 1, 20.0, cublas=25.0, ceiling=18.0, b1=30.0)],
            "small": [size((1024, 512), 1, 12.0, cublas=8.0, flashinfer_f32=10.0),
                      size((1024, 512), 64, 14.0, cublas=8.0, flashinfer_f32=10.0)],
            "rows": [rows("plain", random=300.0, flat=360.0, ascending=360.0),
                     rows("greedy", random=200.0, flat=240.0, ascending=300.0)],
            "groups": [line(SMALL, 64, {"ceiling": 280.0, "ours": 300.0, "greedy": 290.0, "log_z": 310.0,
                                        "group_parallel": 390.0, "group_online": 330.0})]}})


def tables(text):
    """Every table of a page as rows of cells."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.M)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()] for block in blocks]


# ---------------------------------------------------------------------------------------------------------- bars ----


def test_the_bar_over_cublas_is_wider_above_128_rows_and_there_for_short_dot_products():
    assert [bars.cublas_limit(4096, B) for B in (1, 128, 129, 1024)] == pytest.approx([1.02, 1.02, 1.08, 1.08])
    assert [bars.cublas_limit(D, 129) for D in (8192, 4096, 2048, 1024)] == pytest.approx([1.08, 1.08, 1.16, 1.32])
    assert bars.cublas_limit(1024, 128) == 1.02


def test_the_bars_over_the_ceiling_the_size_before_and_small_heads():
    assert bars.ceiling_limit(64, 280.0) * 280.0 == pytest.approx(1.04 * 280.0 + 7)
    assert bars.ceiling_limit(65, 280.0) == math.inf
    assert [bars.rise_limit(*pair) for pair in ((256, 257), (64, 65), (1, 2), (100, 112))] == pytest.approx(
        [1.04, 1.04, 2.3, 1.156])
    assert [bars.small_limit(us) for us in (10.0, 20.0, 100.0)] == pytest.approx([1.3, 1.15, 1.15])


@pytest.mark.parametrize("kind, plain, greedy", [
    ("flat", 1.1, 1.25), ("zeros", 1.1, 1.25), ("blocks", 1.1, 1.25), ("ascending", 1.25, 1.25), ("steep", 1.25, 1.25),
    ("descending", 1.1, 1.1), ("mixed", 1.1, 1.1), ("Zipf", 1.1, 1.1), ("peaked", 1.1, 1.1)])
def test_the_bars_of_rows(kind, plain, greedy):
    assert (bars.row_limit(kind, False), bars.row_limit(kind, True)) == (plain, greedy)
    assert kind in gpu_rows.names(True)


def test_the_best_orientation_and_the_best_pair_count(results):
    t = bars.medians(results["tables"]["sizes"][0])
    assert (t["cublas"], t["+flashinfer"], t["pair"]) == (300.0, 340.0, 320.0)
    assert "pair" not in bars.medians(line(SMALL, 1, {"ours": 1.0}))


def test_the_worst_is_furthest_above_its_own_bar():
    close, far = (bars.Cell({}, "", value, limit, "") for value, limit in ((1.3, 1.32), (1.05, 1.02)))
    assert bars.worst([close, far]) is far and bars.worst([close]) is close and bars.worst([]) is None
    free, other = (bars.Cell({}, "", 7.0, limit, "") for limit in (None, math.inf))
    assert bars.worst([other, close]) is close and bars.worst([free]) is free and bars.worst([other]) is None


def test_every_bar_says_its_worst_cell_and_how_many_miss(results):
    assert results["worst"]["sizes"] == [
        "ours / cuBLAS alone 1.500 at 151,936 x 4,096, B = 257 (bar 1.080); 1 of 4 missed",
        "ours / read ceiling to B = 64 1.021 at 128,256 x 8,192, B = 64 (bar 1.055); all 1 met",
        "ours / best of cuBLAS + FlashInfer, cuBLAS + our sampler 1.250 at 151,936 x 4,096, B = 257 (bar 1.000); "
        "1 of 4 missed",
        "ours / ours at the size before 1.429 at 151,936 x 4,096, B = 256 to 257 (bar 1.040); 1 of 2 missed"]
    assert results["worst"]["small"] == [
        "ours / cuBLAS + FlashInfer 1.400 at 1,024 x 512, B = 64 (bar 1.300); 1 of 2 missed",
        "ours / cuBLAS + our sampler: not measured"]
    assert results["worst"]["rows"] == [
        "rows / random rows 1.200 at 151,936 x 4,096, B = 64, flat, plain (bar 1.100); 1 of 1 missed",
        "ascending rows and ties / random rows 1.500 at 151,936 x 4,096, B = 64, ascending, greedy (bar 1.250); "
        "1 of 3 missed"]
    assert results["worst"]["groups"][2:] == ["log Z / plain 1.033 at 151,936 x 4,096, B = 64",
                                              "plain / greedy 1.034 at 151,936 x 4,096, B = 64"]


def test_what_was_not_measured_is_said_to_be():
    lines = [line(SMALL, 1, {"ceiling": 280.0, "ours": 290.0})]
    assert bars.verdicts("sizes", lines)[0] == "ours / cuBLAS alone: not measured"
    shown = tables(bars.text("sizes", lines))[0][-1]
    assert shown[1:] == ["1", "280.0", "-", "-", "-", "290.0", "-", "1.036", "-", "-"]


def test_a_size_that_is_measured_out_of_order_is_compared_with_the_smaller_one():
    late = [size(SMALL, 64, 290.0), size(LARGE, 63, 900.0), size(SMALL, 65, 300.0), size(SMALL, 63, 280.0)]
    assert [cell.where.split("B = ")[1] for cell in bars.rises(late)] == ["63 to 64", "64 to 65"]


def test_a_table_is_printed_with_its_worst_first_and_bold_where_a_bar_is_missed(results):
    lines = bars.text("sizes", results["tables"]["sizes"]).splitlines()
    assert lines[1] == "sizes: every batch size"
    assert [text.startswith("worst: ") for text in lines[2:]] == [True] * 4 + [False] * 6
    assert tables("\n".join(lines) + "\n")[0][4][1:] == [
        "257", "280.0", "300.0", "390.0", "360.0", "450.0", "**1.500**", "1.607", "**1.250**", "**1.429**"]
    shown = tables(bars.text("rows", results["tables"]["rows"]))[0]
    assert shown[0] == ["V x D", "B", "draw", "random", "flat", "ascending"]
    assert [row[2:] for row in shown[2:]] == [["plain", "300.0", "**1.200**", "1.200"],
                                              ["greedy", "200.0", "1.200", "**1.500**"]]


# ---------------------------------------------------------------------------------------------------------- rows ----

V = 40000


@pytest.fixture(scope="module")
def columns():
    return gpu_rows.columns(V)


def logits(columns, name, B=1):
    """What the columns and the rows that pick them give, without what is random."""
    return gpu_rows.picks(gpu_rows.of_rows(name, B)).astype(np.float64) @ columns.T.astype(np.float64)


def test_columns_and_what_picks_them_are_numbers_of_bf16(columns):
    picks = gpu_rows.picks(gpu_rows.of_rows(gpu_rows.MIXED, 64))
    for found in (columns, picks):
        assert np.array_equal(fs.from_bf16(fs.to_bf16(found)), found)
    assert columns.shape == (V, gpu_rows.COLUMNS) and picks.shape == (64, gpu_rows.COLUMNS)


@pytest.mark.parametrize("name, first, last", [("ascending", -5, 5), ("steep", -50, 50), ("descending", 5, -5)])
def test_rising_and_falling_rows_do_so_at_every_token_in_float_and_in_any_order(columns, name, first, last):
    parts = gpu_rows.picks(gpu_rows.of_rows(name, 1))[0] * columns
    assert parts.dtype == np.float32
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        found = sum(parts[:, place] for place in order)
        assert np.all(np.sign(np.diff(found)) == np.sign(last - first))
        assert (found[0], found[-1]) == pytest.approx((first, last), rel=1e-6)


def test_flat_rows_rows_of_zeros_and_blocks_are_ties_whatever_faint_is_added(columns):
    random = np.random.default_rng(3)
    faint = (gpu_rows.FAINT * random.standard_normal(64).astype(np.float32)) @ (
        0.04 * random.standard_normal((64, V)).astype(np.float32))
    assert np.any(faint != 0)
    for name, ties in (("flat", V), ("zeros", V), ("blocks", gpu_rows.BLOCK)):
        row = logits(columns, name)[0].astype(np.float32)
        row = row if name == "zeros" else row + faint
        assert np.sum(row == row.max()) in (ties, V % gpu_rows.BLOCK)
    assert len(np.unique(logits(columns, "blocks"))) == -(-V // gpu_rows.BLOCK)


def test_zipf_rows_are_minus_the_logarithm_of_a_rank_in_random_order(columns):
    row = logits(columns, "Zipf")[0]
    assert np.sort(row)[::-1] == pytest.approx(-np.log(np.arange(1, V + 1)), rel=1e-6)
    assert abs(np.corrcoef(row, np.arange(V))[0, 1]) < 0.05


def test_peaked_rows_have_one_peak_each_at_eight_places(columns):
    found = logits(columns, "peaked", 16)
    assert np.all(np.sum(found == gpu_rows.PEAK, axis=1) == 1) and np.all(np.sum(found != 0, axis=1) == 1)
    assert len(set(found.argmax(axis=1))) == 8


def test_random_rows_pick_nothing_and_mixed_ones_are_all_kinds():
    assert not gpu_rows.picks(gpu_rows.of_rows("random", 4)).any()
    mixed = gpu_rows.of_rows(gpu_rows.MIXED, 64)
    assert set(mixed) == set(gpu_rows.KINDS.values()) and len(mixed) == 64
    assert set(gpu_rows.temperatures(mixed, False)) == {1.0, 5.0, 100.0}
    assert set(gpu_rows.temperatures(mixed, True)) == {0.0}


def test_greedy_rows_are_not_timed_at_temperatures():
    assert set(gpu_rows.names(False)) - set(gpu_rows.names(True)) == {"T = 5", "T = 100"}


# --------------------------------------------------------------------------------------------------------- pages ----


def test_a_run_is_saved_and_read_back(results, tmp_path):
    path = tmp_path / "run.json"
    gpu_tables.save(str(path), results)
    assert gpu_tables.load(path) == results
    gpu_tables.save(None, results)


def test_the_page_shows_the_worst_first_and_marks_what_is_missed(results):
    found = gpu_tables.blocks(results)[""]
    assert "- ours / cuBLAS alone 1.500 at 151,936 x 4,096, B = 257 (bar 1.080); 1 of 5 missed." in found["worst"]
    assert "log Z" not in found["worst"]  # which has no bar
    heads = tables(found["heads"])[0]
    assert heads[2] == ["151,936 x 4,096", "**1.500** at 257", "-", "**1.250** at 257", "**1.429** at 256 to 257"]
    assert [row[0] for row in heads[3:]] == ["128,256 x 8,192", "50,257 x 768"]
    kinds = tables(found["rows"])[0]
    assert kinds[0] == ["rows", "151,936 x 4,096, B = 64, plain", "151,936 x 4,096, B = 64, greedy"]
    assert kinds[2:5] == [["random, us", "300.0", "200.0"], ["ascending", "1.20", "**1.50**"],
                          ["flat", "**1.20**", "1.20"]]
    assert tables(found["small"])[0][2] == ["1,024 x 512", "12.0 / 10.0", "**14.0 / 10.0**"]


def test_the_page_of_sizes_has_times_ratios_and_groups(results):
    found = gpu_tables.blocks(results)["-sizes"]
    assert tables(found["times"])[0][0] == ["V x D", "B = 1", "B = 64", "B = 128", "B = 256", "B = 257"]
    assert tables(found["cublas"])[0][2] == ["151,936 x 4,096", "-", "-", "1.000", "1.050", "**1.500**"]
    assert tables(found["groups"])[0][2] == ["151,936 x 4,096", "**1.300** at 64", "1.100 at 64", "1.033 at 64",
                                             "1.034 at 64"]


def test_a_slow_ceiling_is_no_evidence(results):
    results["tables"]["sizes"][0]["ceiling_tb_s"] = 4.3
    assert "**Not evidence:** the ceiling fell to 4.30 TB/s" in gpu_tables.blocks(gpu_tables.judged(results))[""]["run"]


def test_parts_of_a_run_are_joined_and_those_of_another_commit_refused(results):
    first, second = ({**results, "tables": {"sizes": lines}} for lines in (results["tables"]["sizes"][:2],
                                                                           results["tables"]["sizes"][1:]))
    joined = gpu_tables.join([first, second])
    assert sorted(map(gpu_tables.key, joined["tables"]["sizes"])) == sorted(
        map(gpu_tables.key, results["tables"]["sizes"]))
    assert joined["seconds"] == 2 and joined["worst"]["sizes"] == results["worst"]["sizes"]
    with pytest.raises(SystemExit, match="runs of commit abc1234 and def"):
        gpu_tables.join([first, {**second, "commit": "def"}])


def test_the_plot_shows_times_and_the_ratio_with_its_limit(results):
    above, other, below, _ = gpu_tables.panels(results)
    shown = dict(above["curves"])
    assert shown["ours"] == [(128, 300), (256, 315), (257, 450)]
    assert shown["cuBLAS + FlashInfer"] == [(128, 340), (256, 440), (257, 390)]
    assert "cuBLAS + FlashInfer" not in dict(other["curves"])  # it was not measured
    ratio, limit = dict(below["curves"])["ours"], dict(below["curves"])["limit"]
    assert [value for _, value in ratio] == pytest.approx([1.0, 1.05, 1.5])
    assert [value for _, value in limit] == [1.02, 1.08, 1.08]


# ----------------------------------------------------------------------------------------------------- measuring ----


def test_every_table_that_is_measured_has_bars_and_every_size_is_in_order():
    assert list(gpu.TABLES) == list(bars.TABLES)
    for sizes in (gpu.SIZES, gpu.SOME_SIZES, gpu.SMALL_SIZES, gpu.ROW_SIZES, gpu.GROUP_SIZES):
        assert list(sizes) == sorted(set(sizes))
    assert set(gpu.SOME_SIZES) <= set(gpu.SIZES)


def test_a_line_has_the_times_of_its_arms_and_the_rate_of_its_ceiling():
    bench = types.SimpleNamespace(prepare=dict, time_graphs=lambda graphs, reps: {name: (9.0, 10.0) for name in graphs})
    W = types.SimpleNamespace(shape=(5000, 1000))
    found = gpu.line_of(bench, W, 3, 7, {"ours": None}, {"reps": 1}, draw="plain")
    assert {name: found[name] for name in ("V", "D", "B", "reader", "draw")} == {
        "V": 5000, "D": 1000, "B": 7, "reader": 3, "draw": "plain"}
    assert found["ceiling_tb_s"] == 1.0 and found["times"]["ours"] == {"min": 9.0, "median": 10.0}


def test_a_run_prints_every_table_and_leaves_what_it_has_when_it_is_cut_short(results, monkeypatch, tmp_path, capsys):
    path = tmp_path / "new" / "run.json"
    arguments = types.SimpleNamespace(tables=["sizes", "rows"], json=str(path))
    monkeypatch.setattr(gpu, "measure", lambda bench, name, arguments, absent: (
        [line] for line in results["tables"][name]))
    facts = {name: value for name, value in results.items() if name not in ("worst", "note", "evidence")}
    gpu.run(None, arguments, facts)
    out = capsys.readouterr().out
    assert out.index("worst: ours / cuBLAS") < out.index("| 128,256 x 8,192 | 64 |") < out.index("rows: kinds")
    whole = json.loads(path.read_text())
    assert whole["evidence"] and whole["tables"] == {name: results["tables"][name] for name in ("sizes", "rows")}

    def cut(bench, name, arguments, absent):
        yield results["tables"]["sizes"][:1]
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure", cut)
    with pytest.raises(KeyboardInterrupt):
        gpu.run(None, arguments, facts)
    assert gpu_tables.load(path)["tables"] == {"sizes": results["tables"]["sizes"][:1]}


def test_the_page_of_screens_says_the_worst_first():
    import gpu_screens

    def line(B, four, differ, table="sizes", **more):
        times = {"ceiling": 276.0, "read 8": 150.0, "read 4": 83.0, "cublas": 294.0, "ours": 285.0, "8 bits": 190.0,
                 "4 bits": four}
        return dict(V=151936, D=4096, B=B, differ={"8": 0, "4": differ}, table=table, **more,
                    times={name: {"min": t, "median": t} for name, t in times.items()})

    made = [dict(V=151936, D=4096, seconds={"8": 0.015, "4": 0.016}, bytes={"8": 643000000, "4": 332000000})]
    ruled = [line(B, 171.0, 0, "rules", name="language, top-k 50") for B in (1, 8)]
    facts = dict.fromkeys(("device", "driver", "cuda", "torch", "commit", "date", "reps", "warm_ups"), "none")
    found = gpu_screens.blocks(dict(facts, made=made, tables={"screens": [
        line(1, 132.0, 0), line(1, 128.0, 0, "rows", name="flat"), line(16, 342.0, 2), *ruled]}))
    assert "Tokens that differ from those of W: **2** of %d. Slowest over W: 1.20." % (
        2 * gpu_screens.CHECKED * 27) in found["run"]
    assert tables(found["rules"])[0] == [["rules", "B = 1", "B = 8"], ["---"] * 3, [
        "top-k 50", "285 / 190 / 171 (0.67, 0.60)", "285 / 190 / 171 (0.67, 0.60)"]]
    assert tables(found["sizes"])[0][2] == ["151,936 x 4,096", "285 / 190 / 132 (0.67, 0.46)",
                                            "**285 / 190 / 342 (0.67, 1.20)**"]
    assert found["shards"] == "" and "643, 0.015 | 332, 0.016" in found["made"]
