"""Runs of gpu.py as JSON, and their pages: python bench/gpu_tables.py PAGE.json [RUN ...]

With RUNs, parts of a long run of one commit on one device, PAGE.json is made of them first. Then the generated blocks
of PAGE.md and PAGE-sizes.md are written, and PAGE-sizes.svg, which needs matplotlib.
"""
import os
import sys

import gpu_bars as bars
import report
from gpu_bars import mark
from gpu_bench import invalid_reason
from gpu_rows import KINDS, MIXED
from report import number

SHOWN = (1, 16, 17, 48, 64, 128, 129, 160, 200, 256, 257, 300, 512, 513, 1024)  # in tables; the plot has all
ARMS = {"cublas": "cuBLAS alone, nothing drawn", "+flashinfer": "cuBLAS + FlashInfer", "+b1": "cuBLAS + our sampler",
        "ceiling": "reading W once", "ours": "ours"}
TICKS = (1, 64, 128, 256, 384, 512, 640, 768, 1024)


# --------------------------------------------------------------------------------------------------------- runs ----


def save(path, results):
    """Nothing where there is no path."""
    if path:
        report.save(path, results)


def load(path):
    return judged(report.load(path))


def join(runs):
    """One run of several of the same commit and device; of a line that two have, the later one's."""
    joined = dict(runs[0], absent={}, tables={})
    for run in runs:
        for fact in ("device", "commit", "reps"):
            if run[fact] != joined[fact]:
                sys.exit("gpu_tables: runs of %s %s and %s" % (fact, joined[fact], run[fact]))
        joined["absent"].update(run["absent"])
        for name, lines in run["tables"].items():
            joined["tables"].setdefault(name, []).extend(lines)
    joined["tables"] = {name: lines_of(joined, name) for name in joined["tables"]}
    return judged(dict(joined, seconds=sum(run["seconds"] for run in runs)))


def judged(results):
    """A run with the worst of its tables, and whether it is evidence."""
    note = invalid_reason(lines_of(results, *results["tables"]))
    worst = {name: bars.verdicts(name, lines) for name, lines in results["tables"].items()}
    return dict(results, worst=worst, note=note, evidence=not note)


def key(line):
    return line["V"], line["D"], line["B"], line.get("draw")


def lines_of(results, *names):
    """The lines of some tables; of one that two have, the later."""
    return list({key(line): line for name in names for line in results["tables"].get(name, [])}.values())


# ------------------------------------------------------------------------------------------------------- tables ----


def worst_cells(lines, columns):
    """A row for every head: the worst cell of every column's bar, and at which B; the worst of the first bar first."""
    rows = []
    for head in bars.by_head(lines).values():
        cells = {name: bars.worst(bar(head)) for name, (_, bar) in columns.items()}
        first = next(iter(cells.values()))
        texts = {name: "%s at %s" % (mark(cell), cell.where.split("B = ")[1]) for name, cell in cells.items() if cell}
        rows.append((first.value / (first.limit or 1.0) if first else 0.0,
                     {"V x D": bars.head_name(head[0]), **dict.fromkeys(cells, "-"), **texts}))
    return report.table(report.worst_first(rows))


def over_sizes(lines, cell):
    return report.over_sizes(lines, bars.head_name, cell, SHOWN, "V x D")


def ratios(lines, bar):
    cells = {id(cell.line): mark(cell) for cell in bar[1](lines)}
    return over_sizes(lines, lambda line: cells.get(id(line), "-"))


def kinds_of_rows(lines):
    """A row for every kind, the worst first, under the times on random rows; two heads, as many as a page is wide."""
    first = list(bars.by_head(lines))[:2]
    lines = [line for line in lines if (line["V"], line["D"]) in first]
    cells = {(cell.column, id(cell.line)): cell for _, bar in bars.TABLES["rows"].bars for cell in bar(lines)}
    names = {id(line): "%s, %s" % (bars.place(line), line["draw"]) for line in lines}
    times = {names[id(line)]: number(bars.medians(line).get("random")) for line in lines}
    kinds = [(max((cells[kind, at].value for at in names if (kind, at) in cells), default=0.0),
              {"rows": kind, **{name: mark(cells.get((kind, at)), 2) for at, name in names.items()}})
             for kind in (*KINDS, MIXED) if kind != "random"]
    return report.table([{"rows": "random, us", **times}] + report.worst_first(kinds))


def small_heads(lines):
    """Ours and cuBLAS + FlashInfer."""
    missed = {id(cell.line) for cell in bars.TABLES["small"].bars[0][1](lines) if cell.missed}

    def cell(line):
        t = bars.medians(line)
        return report.bold("%s / %s" % (number(t["ours"]), number(t.get("+flashinfer"))), id(line) in missed)

    return over_sizes(lines, cell)


def conclusions(results):
    """The worst cell of everything that has a bar."""
    found = []
    for name in ("sizes", "rows", "small", "groups"):
        lines = lines_of(results, *(("sizes", "heads") if name == "sizes" else (name,)))
        for bar, cells_of in bars.TABLES[name].bars if lines else ():
            cells = cells_of(lines)
            if not cells or any(cell.limit is not None for cell in cells):
                found.append("- %s.\n" % bars.verdict(bar, cells))
    return "".join(found)


def blocks(results):
    """{ending of the page's name: its generated blocks}."""
    heads, rows, small, groups = (lines_of(results, *names) for names in (
        ("sizes", "heads"), ("rows",), ("small",), ("groups",)))
    run = {"run": report.about(results)}
    return {"": {**run, "worst": conclusions(results), "heads": worst_cells(heads, {
                "over cuBLAS alone": bars.OVER_CUBLAS, "over the ceiling, to B = 64": bars.OVER_CEILING,
                "over the best pair": bars.OVER_PAIR, "over the size before": bars.RISES}),
                 "rows": kinds_of_rows(rows), "small": small_heads(small)},
            "-sizes": {**run, "times": over_sizes(heads, lambda line: number(bars.medians(line).get("ours"))),
                       "cublas": ratios(heads, bars.OVER_CUBLAS), "pair": ratios(heads, bars.OVER_PAIR),
                       "groups": worst_cells(groups, {name: (name, bar) for name, bar in bars.TABLES["groups"].bars})}}


# --------------------------------------------------------------------------------------------------------- plot ----


def panels(results):
    """For each head times over B, and below them ours over cuBLAS with its limit. B is linear: between tiles time rises
    by steps, which a logarithm would squeeze."""
    above, below = [], []
    for lines in bars.by_head(results["tables"]["sizes"]).values():
        t = {line["B"]: bars.medians(line) for line in lines}
        cells = bars.OVER_CUBLAS[1](lines)
        more = {"xticks": [B for B in TICKS if B <= max(t)]}
        above.append({"title": bars.head_name(lines[0]), "ylog": True, **more, "curves": [
            (label, points) for arm, label in ARMS.items()
            for points in [[(B, times[arm]) for B, times in t.items() if arm in times]] if points]})
        below.append({"y": "ours / cuBLAS alone", **more, "curves": [
            ("ours", [(cell.line["B"], cell.value) for cell in cells]),
            ("limit", [(cell.line["B"], cell.limit) for cell in cells])]})
    return above + below


def plot(results, path):
    return report.plot(path, panels(results), "%(device)s, commit %(commit)s, %(date)s" % results,
                       len(bars.by_head(results["tables"]["sizes"])), (6.0, 3.6))


def main(path, runs):
    if runs:
        save(path, report.summary(join([load(run) for run in runs])))
    base, results = os.path.splitext(path)[0], load(path)
    for ending, each in blocks(results).items():
        report.fill(base + ending + ".md", each)
    plot(results, base + "-sizes.svg")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python bench/gpu_tables.py PAGE.json [RUN ...]")
    main(sys.argv[1], sys.argv[2:])
