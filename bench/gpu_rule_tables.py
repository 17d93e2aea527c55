"""Bars and tables of gpu_rules.py, and the page of a run: python bench/gpu_rule_tables.py PAGE.json

Writes the generated blocks of PAGE.md, and PAGE.svg, which needs matplotlib. No torch.

A line of "rules" is one head and batch size: microseconds, second passes and work memory by arm. Bars are over plain
draws of the same line, wider by .05 at sizes between those that have one of their own and, where dot products are
shorter than 4,096, in their excess by 4,096 / D; ours over cuBLAS + FlashInfer has bars on the two first heads alone.
"""
import os
import sys

import gpu_bars as bars
import report
from gpu_bars import Cell, head_name, mark, medians, place
from gpu_bench import HEADS, invalid_reason
from gpu_rule_arms import CUTS, KINDS
from gpu_tables import worst_cells
from report import number

RATE_KINDS, RATE_TEMPERATURES = ("language", "peaked", "Zipf", "flat"), (0.7, 1.0, 1.5, 2.0)
RATE, RATE_WARMEST = 1 / 500, 1.0  # second passes of language-like rows up to this temperature
BAR_SIZES = (1, 16, 64, 128, 256)
STEPS = (64, 128, 256)  # up to which batch size each number of a bar holds; the last holds beyond
BETWEEN = 0.05
CUT_LIMITS, MASK_LIMITS, LISTED_LIMITS = (1.05, 1.08, 1.12), (1.03, 1.05, 1.06), (1.06, 1.08, 1.10)
WIDE_LIMIT, SAMPLES_LIMIT, EXTRA_MIB = 2.2, 1.10, 24.0
PEER_LIMITS = {HEADS[0]: (1.3, 1.8, 1.8), HEADS[1]: (1.15, 1.35, 1.35)}  # cuBLAS + FlashInfer over ours, at least
CUT, LISTED = tuple(CUTS), ("edits", "penalties", "penalties, edits")
BOTH = "top-k 50, top-p .95"
WIDE = ("T = 1.5, top-p .95", "T = 2, top-p .95", "flat, top-p .95")
PLOTTED = (BOTH, "top-p .9", "logprob, top-20", "penalties", "mask")
FREE = ("dense counts", "seen bits", "logprob, rank")  # no bar


# --------------------------------------------------------------------------------------------------------- bars ----


def step(limits, B):
    """The number of a bar for a batch size."""
    return limits[next((i for i, most in enumerate(STEPS) if B <= most), len(STEPS) - 1)]


def limit(limits, D, B):
    """The bar of a ratio over plain draws."""
    return 1 + (step(limits, B) - 1) * max(1.0, 4096 / D) + (0.0 if B in BAR_SIZES else BETWEEN)


def peer_limit(head, B):
    """The bar of ours over cuBLAS + FlashInfer; None for a head that has none."""
    return head in PEER_LIMITS and 1 / (step(PEER_LIMITS[head], B) - (0.0 if B in BAR_SIZES else BETWEEN)) or None


def over_plain(arms, limit_of):
    """A bar: some arms over plain draws. limit_of is a function of a line, or None."""
    def cells(lines):
        found = []
        for line in lines:
            t = medians(line)
            found += [Cell(line, arm, t[arm] / t["plain"], limit_of and limit_of(line), "%s, %s" % (place(line), arm))
                      for arm in arms if arm in t]
        return found
    return cells


def stepped(arms, limits):
    return over_plain(arms, lambda line: limit(limits, line["D"], line["B"]))


def dearest_kind(line):
    """The most expensive kind of a mixed batch, over plain draws."""
    t = medians(line)
    return max(t[kind] for kind in KINDS if kind in t) / t["plain"]


def peer_times(line):
    """{cut: microseconds of cuBLAS + FlashInfer}, on the better logits."""
    t = medians(line)
    return {cut: min(times) for cut in CUT if (times := [t[arm] for arm in t if arm.startswith("FI %s (" % cut)])}


def peers(cuts, limited):
    """A bar: ours over cuBLAS + FlashInfer."""
    def cells(lines):
        found = []
        for line in lines:
            t, theirs = medians(line), peer_times(line)
            most = peer_limit((line["V"], line["D"]), line["B"]) if limited else None
            found += [Cell(line, "FI " + cut, t[cut] / theirs[cut], most, "%s, %s" % (place(line), cut))
                      for cut in cuts if cut in t and cut in theirs]
        return found
    return cells


def extra_memory(lines):
    """MiB of work memory beyond that of plain draws, to B = 256; wide rows have a budget of their own."""
    found = []
    for line in lines:
        for arm, size in line["work"].items():
            if arm not in WIDE + ("plain",) and line["B"] <= 256:
                found.append(Cell(line, arm, (size - line["work"]["plain"]) / 2**20, EXTRA_MIB,
                                  "%s, %s" % (place(line), arm)))
    return found


def rates(lines):
    """Second passes of language-like rows at the temperatures that have a bar; lines are those of "fallback"."""
    return [Cell(line, "rate", line["second"] / line["of"], RATE, "%s, T = %g" % (head_name(line), line["T"]))
            for line in lines if line["rows"] == "language" and line["T"] <= RATE_WARMEST]


def arm_rates(lines):
    """Second passes of the cuts in "rules", at T = 1: over all sizes of a head, few of which have 500 rows."""
    found = []
    for head in bars.by_head(lines).values():
        for arm in CUT + ("mixed",):
            counted = [line["fallback"][arm] for line in head if arm in line["fallback"]]
            if counted:
                second, rows = map(sum, zip(*counted))
                found.append(Cell(head[0], arm, second / rows, RATE, "%s, %s" % (head_name(head[0]), arm)))
    return found


OVER_PLAIN = (
    ("cuts / plain", stepped(CUT, CUT_LIMITS)),
    ("bitmask / plain", stepped(("mask",), MASK_LIMITS)),
    ("penalties and edits / plain", stepped(LISTED, LISTED_LIMITS)),
    ("logprob and top-20 / plain", stepped(("logprob, top-20",), CUT_LIMITS)),
    ("mixed / plain, the bar being its most expensive kind", over_plain(("mixed",), dearest_kind)),
    ("8 samples of 8 rows / plain", over_plain(("8 samples",), lambda line: SAMPLES_LIMIT)),
    ("wide rows / plain", over_plain(WIDE, lambda line: WIDE_LIMIT)),
    ("logprob and rank, dense counts, seen bits / plain", over_plain(FREE, None)),
)
BARS = OVER_PLAIN + (
    ("ours / cuBLAS + FlashInfer, top-k and top-p", peers((BOTH,), True)),
    ("ours / cuBLAS + FlashInfer, one cut", peers(tuple(cut for cut in CUT if cut != BOTH), False)),
    ("work memory beyond plain, MiB", extra_memory),
    ("second passes of language-like rows, by call", arm_rates),
)
RATE_BAR = ("second passes of language-like rows, p = .95, T <= 1", rates)


def verdicts(results):
    lines, fallback = results["tables"]["rules"], results["tables"]["fallback"]
    return [bars.verdict(name, cells(lines)) for name, cells in BARS] + [
        bars.verdict(RATE_BAR[0], RATE_BAR[1](fallback))]


def judged(results):
    """A run with the worst of its bars, and whether it is evidence."""
    note = invalid_reason(results["tables"]["rules"])
    return dict(results, worst=verdicts(results), note=note, evidence=not note)


# ------------------------------------------------------------------------------------------------------- tables ----


def by_line(lines, first, rows):
    """A table with a column for every line; rows are (name, {id of line: text})."""
    places = {id(line): place(line) for line in lines}
    return report.table([{first: arm, **{where: cells.get(at, "-") for at, where in places.items()}}
                         for arm, cells in rows if lines], [first, *places.values()])


def rules_table(lines):
    """A row for every arm of ours, the worst first, under the times of plain draws."""
    arms = {}
    for _, cells in OVER_PLAIN:
        for cell in cells(lines):
            arms.setdefault(cell.column, []).append(cell)
    worst = [(max(cell.value / (cell.limit or cell.value + 1) for cell in cells),
              (arm, {id(cell.line): mark(cell) for cell in cells})) for arm, cells in arms.items()]
    return by_line(lines, "over plain", [("plain, us", {id(line): number(medians(line)["plain"]) for line in lines})]
                   + report.worst_first(worst))


def peers_table(lines):
    """cuBLAS + FlashInfer: times, and over ours."""
    missed = {(cell.column, id(cell.line)) for cell in peers((BOTH,), True)(lines) if cell.missed}
    rows = []
    for cut in CUT if any(map(peer_times, lines)) else ():
        cells = {}
        for line in lines:
            ours, theirs = medians(line).get(cut), peer_times(line).get(cut)
            over = report.bold("(%.2f)" % (theirs / ours), ("FI " + cut, id(line)) in missed) if ours and theirs else ""
            cells[id(line)] = (number(theirs) + " " + over).strip()
        rows.append((cut, cells))
    return by_line(lines, "us (over ours)", rows)


def rates_table(lines):
    """Second passes in percent of rows, by kind of rows and temperature, of the first head; "" of none."""
    first = [line for line in lines if head_name(line) == head_name(lines[0])]
    missed = {id(cell.line) for cell in rates(first) if cell.missed}
    rows = {}
    for line in first:
        row = rows.setdefault(line["rows"], {"rows, p = .95, of %d" % line["of"]: line["rows"]})
        row["T = %g" % line["T"]] = report.bold("%.1f %%" % (100 * line["second"] / line["of"]), id(line) in missed)
    return report.table(list(rows.values()))


def arm_rates_table(lines):
    """Second passes in percent of rows, of the calls that took any."""
    arms = dict.fromkeys(arm for line in lines for arm, (second, _) in line["fallback"].items() if second)
    return by_line(lines, "second passes, %", [(arm, {
        id(line): "%.1f" % (100 * line["fallback"][arm][0] / line["fallback"][arm][1])
        for line in lines if line["fallback"].get(arm, (0, 0))[1]}) for arm in arms])


def text(results):
    """What a run prints: the worst of every bar first, then every size."""
    lines = results["tables"]["rules"]
    found = ["worst: " + line for line in results["worst"]] + [""]
    for head in bars.by_head(lines).values():
        found += [rules_table(head), peers_table(head), arm_rates_table(head)]
    found += [rates_table(results["tables"]["fallback"]), report.caveats(results)]
    return "\n".join(found + ["rows %s: %s" % item for item in results["described"].items()])


def blocks(results):
    lines = results["tables"]["rules"]
    first = [line for line in lines if (line["V"], line["D"]) in HEADS and line["B"] in BAR_SIZES]
    others = [line for line in lines if line not in first]
    differ = [pair for line in lines for pair in line["differ"].values()]
    checked = "Of %d tokens that were compared with the CPU backend's %d differ.\n" % (
        sum(pair[1] for pair in differ), sum(pair[0] for pair in differ))
    return {"run": report.about(results) + checked, "worst": "".join("- %s.\n" % line for line in results["worst"]),
            "rules": rules_table(first), "peers": peers_table(first),
            "others": worst_cells(others, {
                name.split(" / ")[0]: (name, cells) for name, cells in OVER_PLAIN[:-1]})}


def plot(results, path):
    """Rules over plain draws, for each head."""
    panels = []
    for lines in bars.by_head(results["tables"]["rules"]).values():
        sizes = [line["B"] for line in lines if line["B"] in BAR_SIZES]
        panels.append({"title": head_name(lines[0]), "y": "time over a plain draw", "xlog": True, "xticks": sizes,
                       "bottom": 1, "curves": [(arm, [(line["B"], medians(line)[arm] / medians(line)["plain"])
                                                      for line in lines if arm in medians(line)]) for arm in PLOTTED]})
    return report.plot(path, panels, "%(device)s, commit %(commit)s, %(date)s" % results, 2)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/gpu_rule_tables.py PAGE.json")
    base, run = os.path.splitext(sys.argv[1])[0], judged(report.load(sys.argv[1]))
    report.fill(base + ".md", blocks(run))
    plot(run, base + ".svg")
