"""What the lines of gpu.py are held to: ratios, their bars, the worst of each, tables in plain text. No torch.

A line is one head, batch size and, in the table of rows, way to draw; its times are microseconds by arm. A cell is one
ratio of it. Worst is what is furthest above its bar, or nearest below.
"""
import math
from typing import NamedTuple, Optional

import report

BOTH_WAYS = ("cublas [B, V]", "cublas [V, B]")
FLASHINFER = ("+flashinfer bf16", "+flashinfer f32")  # after a matmul that stored such logits
PAIRS = FLASHINFER + ("+b1",)
TIES = ("flat", "blocks", "zeros")  # greedy: ties by the tens of thousands
ASCENDING = ("ascending", "steep")


class Cell(NamedTuple):
    line: dict
    column: str
    value: float
    limit: Optional[float]  # None: there is no bar; infinite: not for this line
    where: str

    @property
    def missed(self):
        return self.limit is not None and self.value > self.limit


# -------------------------------------------------------------------------------------------------------- lines ----


def medians(line):
    """{arm: microseconds}, with the better orientation of cuBLAS, FlashInfer on the better logits, the best pair."""
    t = {arm: time["median"] for arm, time in line["times"].items()}
    for name, arms in (("cublas", BOTH_WAYS), ("+flashinfer", FLASHINFER), ("pair", PAIRS)):
        there = [t[arm] for arm in arms if arm in t]
        if there:
            t[name] = min(there)
    return t


def head_name(line):
    return "{V:,} x {D:,}".format(**line)


def by_head(lines):
    """{(V, D): its lines by B}, in the order of the run."""
    found = {}
    for line in lines:
        found.setdefault((line["V"], line["D"]), []).append(line)
    return {head: sorted(lines, key=lambda line: line["B"]) for head, lines in found.items()}


def place(line):
    return "%s, B = %d" % (head_name(line), line["B"])


# --------------------------------------------------------------------------------------------------------- bars ----


def cublas_limit(D, B):
    return 1.02 if B <= 128 else 1 + 0.08 * max(1.0, 4096 / D)


def ceiling_limit(B, us):
    """1.04 of reading W, and 7 us; none where products take longer."""
    return 1.04 + 7 / us if B <= 64 else math.inf


def rise_limit(before, B):
    return 1 + max(0.04, 1.3 * (B / before - 1))


def small_limit(us):
    """15 %, or 3 us."""
    return max(1.15, 1 + 3 / us)


def row_limit(kind, greedy):
    return 1.25 if kind in ASCENDING or (greedy and kind in TIES) else 1.1


def ratio(column, above, below, limit):
    """A bar: the lines' cells of one arm over another. limit is a function of (line, microseconds below), or None."""
    def cells(lines):
        found = []
        for line in lines:
            t = medians(line)
            if above in t and below in t:
                found.append(Cell(line, column, t[above] / t[below], limit and limit(line, t[below]), place(line)))
        return found
    return cells


def rises(lines):
    found = []
    for head in by_head(lines).values():
        for before, line in zip(head, head[1:]):
            value = medians(line)["ours"] / medians(before)["ours"]
            where = "%s, B = %d to %d" % (head_name(line), before["B"], line["B"])
            found.append(Cell(line, "rise", value, rise_limit(before["B"], line["B"]), where))
    return found


def kinds(limit):
    """A bar: the kinds of rows that have this limit, over random rows."""
    def cells(lines):
        found = []
        for line in lines:
            greedy, t = line["draw"] == "greedy", medians(line)
            for kind in t:
                if kind not in ("ceiling", "random") and row_limit(kind, greedy) == limit:
                    where = "%s, %s, %s" % (place(line), kind, line["draw"])
                    found.append(Cell(line, kind, t[kind] / t["random"], limit, where))
        return found
    return cells


OVER_CUBLAS = ("ours / cuBLAS alone",
               ratio("/ cuBLAS", "ours", "cublas", lambda line, us: cublas_limit(line["D"], line["B"])))
OVER_CEILING = ("ours / read ceiling to B = 64",
                ratio("/ ceiling", "ours", "ceiling", lambda line, us: ceiling_limit(line["B"], us)))
OVER_PAIR = ("ours / best of cuBLAS + FlashInfer, cuBLAS + our sampler",
             ratio("/ pair", "ours", "pair", lambda line, us: 1.0))
RISES = ("ours / ours at the size before", rises)
SIZES = (OVER_CUBLAS, OVER_CEILING, OVER_PAIR, RISES)


class Table(NamedTuple):
    heading: str
    bars: tuple  # of (name, function of lines that returns cells)
    arms: tuple  # whose times are printed
    columns: tuple = ()  # of ratios; empty: whatever cells have


SIZE_ARMS = ("ceiling", "cublas", "+flashinfer", "+b1", "ours")
SIZE_COLUMNS = ("/ cuBLAS", "/ ceiling", "/ pair", "rise")
TABLES = {
    "sizes": Table("every batch size", SIZES, SIZE_ARMS, SIZE_COLUMNS),
    "heads": Table("other heads", SIZES, SIZE_ARMS, SIZE_COLUMNS),
    "small": Table("small heads", (
        ("ours / cuBLAS + FlashInfer",
         ratio("/ FlashInfer", "ours", "+flashinfer", lambda line, us: small_limit(us))),
        ("ours / cuBLAS + our sampler", ratio("/ sampler", "ours", "+b1", None))),
                   SIZE_ARMS, ("/ FlashInfer", "/ sampler")),
    "rows": Table("kinds of rows, over random rows", (
        ("rows / random rows", kinds(1.1)), ("ascending rows and ties / random rows", kinds(1.25))), ("random",)),
    "groups": Table("groups of 4,096, log Z, greedy", (
        ("group_parallel / plain", ratio("parallel", "group_parallel", "ours", lambda line, us: 1.25)),
        ("group_online / plain", ratio("online", "group_online", "ours", lambda line, us: 1.25)),
        ("log Z / plain", ratio("log z", "log_z", "ours", None)),
        ("plain / greedy", ratio("/ greedy", "ours", "greedy", None))),
        ("ceiling", "ours"), ("parallel", "online", "log z", "/ greedy")),
}


# ------------------------------------------------------------------------------------------------------- report ----


def judged(cells):
    return [cell for cell in cells if cell.limit != math.inf]


def worst(cells):
    """The cell furthest above its bar, or None of none."""
    return max(judged(cells), key=lambda cell: cell.value / (cell.limit or 1.0), default=None)


def verdict(name, cells):
    """A bar in a line: its worst cell, and how many of all are met."""
    cell = worst(cells)
    if cell is None:
        return "%s: not measured" % name
    text = "%s %.3f at %s" % (name, cell.value, cell.where)
    if cell.limit is None:
        return text
    missed, count = sum(cell.missed for cell in cells), len(judged(cells))
    return "%s (bar %.3f); %s" % (text, cell.limit, "%d of %d missed" % (missed, count) if missed else
                                  "all %d met" % count)


def verdicts(table, lines):
    return [verdict(name, cells(lines)) for name, cells in TABLES[table].bars]


def mark(cell, digits=3):
    return "-" if cell is None else report.bold(report.number(cell.value, digits), cell.missed)


def text(table, lines):
    """A table as it is printed: heading, the worst of every bar, the lines."""
    shown, cells = TABLES[table], {}
    for _, bar in shown.bars:
        for cell in bar(lines):
            cells.setdefault(cell.column, {})[id(cell.line)] = cell
    # Kinds of rows are in the order of the first line, which is that of the run.
    columns = shown.columns or list(dict.fromkeys(arm for line in lines for arm in line["times"] if arm in cells))
    rows = [{"V x D": head_name(line), "B": line["B"], **({"draw": line["draw"]} if "draw" in line else {}),
             **{arm: report.number(medians(line).get(arm)) for arm in shown.arms},
             **{column: mark(cells.get(column, {}).get(id(line))) for column in columns}} for line in lines]
    return "\n".join(["\n%s: %s" % (table, shown.heading), *("worst: " + line for line in verdicts(table, lines)),
                      report.table(rows)])
