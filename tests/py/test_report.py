"""Tables, files and plots of docs/results, and that every page is what its script writes from its JSON."""
import json
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT / "bench"))

import cpu
import gpu_rule_tables
import gpu_screens
import gpu_tables
import paper_model
import paper_report
import performance_page
import report
import tpot_tables


def blocks_of_pages():
    """{page: its generated blocks}, from the tracked JSON files."""
    found = {"h200%s.md" % ending: blocks for ending, blocks in gpu_tables.blocks(
        gpu_tables.load(RESULTS / "h200.json")).items()}
    found["h200-rules.md"] = gpu_rule_tables.blocks(gpu_rule_tables.judged(report.load(RESULTS / "h200-rules.json")))
    found["h200-screens.md"] = gpu_screens.blocks(report.load(RESULTS / "h200-screens.json"))
    found["paper-h200.md"] = paper_report.blocks(paper_model.load(RESULTS / "paper-h200.json"))
    found["vllm-h200.md"] = tpot_tables.blocks(report.load(RESULTS / "vllm-h200.json"))
    return found


def test_every_page_is_what_its_script_writes():
    pages = blocks_of_pages()
    for name, blocks in pages.items():
        text = (RESULTS / name).read_text()
        assert report.filled(text, blocks) == text, name
        assert set(re.findall(r"<!-- (\S+): bench/\w+\.py -->", text)) == set(blocks), name
    scripts = {path.name: re.findall(r"<!-- \S+: bench/(\w+)\.py -->", path.read_text())
               for path in RESULTS.glob("*.md")}
    assert {name for name, found in scripts.items() if set(found) - {"performance_page"}} == set(pages)


def test_the_readme_and_the_page_of_performance_are_what_their_files_say():
    pages = performance_page.blocks(*performance_page.load())
    assert set(pages) == {ROOT / "README.md", RESULTS / "performance.md"}
    for path, blocks in pages.items():
        text = path.read_text()
        assert report.filled(text, blocks) == text, path.name
        assert set(re.findall(r"<!-- (\S+): bench/performance_page\.py -->", text)) == set(blocks), path.name


def test_a_figure_that_changes_shows_on_the_page():
    gpu, vllm, cpu_part = performance_page.load()
    before = performance_page.rivals(gpu, vllm)
    gpu["rules"][0]["times"]["plain"] += 100
    assert performance_page.rivals(gpu, vllm) != before
    gpu["heads"][0]["times"]["ours"] = 10_000
    assert "262,208 x 1,152 (Gemma-3-1B) at 1 rows" in performance_page.losses(gpu, vllm).replace("\n  ", " ")


def test_every_json_file_and_plot_is_named_by_a_page():
    pages = "".join(path.read_text() for path in RESULTS.glob("*.md"))
    for path in RESULTS.glob("*.svg"):
        assert f"]({path.name})" in pages
    names = {path.stem for path in RESULTS.glob("*.md")} | {"cpu-sweep"}
    assert {path.stem for path in RESULTS.glob("*.json")} <= names


def test_a_table_has_a_column_for_every_key_and_nothing_without_rows():
    rows = report.worst_first([(1.0, {"a": 1, "b": 2}), (2.0, {"a": 3, "c": report.bold(4, True)})])
    assert report.table(rows) == "| a | c | b |\n| --- | --- | --- |\n| 3 | **4** | - |\n| 1 | - | 2 |\n"
    assert report.table([]) == ""


def test_sizes_are_columns_in_order():
    lines = [{"B": B, "name": name} for B, name in ((8, "x"), (1, "x"), (4, "y"), (9, "y"))]
    text = report.over_sizes(lines, lambda line: line["name"], lambda line: str(line["B"]), (1, 4, 8), "of")
    assert text.splitlines()[0] == "| of | B = 1 | B = 4 | B = 8 |"
    assert text.splitlines()[2:] == ["| x | 1 | - | 8 |", "| y | - | 4 | - |"]


def test_a_block_ends_at_the_next_empty_line_and_each_has_its_place():
    page = "a\n<!-- one: bench/x.py -->\nold\nold\n\nb\n<!-- two: bench/x.py -->\n"
    text = report.filled(page, {"one": "new\n", "two": "| t |\n"})
    assert text == "a\n<!-- one: bench/x.py -->\nnew\n\nb\n<!-- two: bench/x.py -->\n| t |\n"
    with pytest.raises(ValueError, match="0 blocks named three"):
        report.filled(page, {"three": ""})


def test_a_file_has_a_line_for_each_record(tmp_path):
    run = {"device": "d", "sizes": [1, 2], "tables": {"a": [{"x": 1.23456789}, {"x": 2}], "b": []}, "worst": ["w"]}
    report.save(str(tmp_path / "new" / "run.json"), run)
    text = (tmp_path / "new" / "run.json").read_text()
    assert [line.strip() for line in text.splitlines() if '"x"' in line] == ['{"x": 1.2346},', '{"x": 2}']
    assert json.loads(text) == {**run, "tables": {"a": [{"x": 1.2346}, {"x": 2}], "b": []}}
    assert report.summary({"t": [{"min": 1, "median": 2, "reader": 0}], **run})["t"] == [{"median": 2}]


def test_what_was_not_measured_and_a_run_that_is_no_evidence_are_said():
    facts = dict.fromkeys(("device", "driver", "cuda", "torch", "commit", "date", "reps", "warm_ups"), "none")
    text = report.about({**facts, "absent": {"a": "no module", "b": "no module"}, "note": "the ceiling fell"})
    assert "Not measured: a; b (no module)." in text and "**Not evidence:** the ceiling fell." in text
    assert "evidence" not in report.about({**facts, "absent": {}, "note": ""})


def test_a_plot_is_small_stable_and_keeps_its_texts(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    panels = [{"title": "vLLM 0.26.0", "xlog": True, "ylog": True, "xticks": [1, 16], "bottom": 1, "curves": [
        ("ours", [(B, 10 + B / 3) for B in range(1, 200)]), ("another", [(1, 5.0), (16, 9.0)])], "points": ["another"]}]
    paths = [report.plot(str(tmp_path / name), panels, "a source") for name in ("a.svg", "b.svg")]
    first, again = (Path(path).read_text() for path in paths)
    assert first == again and len(first.splitlines()) < 60
    shown = "".join(xml.fromstring(first).itertext())
    assert all(text in shown for text in ("vLLM 0.26.0", "ours", "another", "a source"))
    assert not re.search(r'="[^"]*\d\.\d\d', first)


def test_tracked_plots_have_plain_legends():
    for path in RESULTS.glob("*.svg"):
        text = path.read_text()
        assert len(text.splitlines()) < 300 and not re.search(r"FI[12]|B\.1\b|Algorithm", text), path.name
        assert not re.search(r"sort|top-k, top-p", text), "a draw without cuts is compared with one that has them"


def test_every_tracked_plot_can_be_drawn_again(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    gpu_tables.plot(gpu_tables.load(RESULTS / "h200.json"), str(tmp_path / "h200-sizes.svg"))
    gpu_rule_tables.plot(report.load(RESULTS / "h200-rules.json"), str(tmp_path / "h200-rules.svg"))
    gpu_screens.plot(report.load(RESULTS / "h200-screens.json"), str(tmp_path / "h200-screens-sizes.svg"))
    paper_report.plots(paper_model.load(RESULTS / "paper-h200.json"), str(tmp_path / "paper-h200"))
    tpot_tables.plot(report.load(RESULTS / "vllm-h200.json"), str(tmp_path / "vllm-h200.svg"))
    cpu.plot(cpu.load(RESULTS / "cpu-sweep.json"), tmp_path / "cpu-sweep.svg")
    performance_page.plots(*performance_page.load(), tmp_path)
    tracked = {path.name for path in RESULTS.glob("*.svg")}
    assert {path.name for path in tmp_path.glob("*.svg")} == tracked
    for path in tmp_path.glob("*.svg"):
        legend = {text.text for text in xml.parse(path).iter("{http://www.w3.org/2000/svg}text")}
        assert legend <= {text.text for text in xml.parse(RESULTS / path.name).iter("{http://www.w3.org/2000/svg}text")}
