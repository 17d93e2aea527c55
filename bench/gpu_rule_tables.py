"""Bars and tables of gpu_rules.py, and the page of a run: python bench/gpu_rule_tables.py FILE

Writes NAME.md beside FILE, which is NAME.json. What a page says below the line BY_HAND stays. No torch.

A line of "rules" is one head and batch size: microseconds, second passes and work memory by arm. Bars are over plain
draws of the same line, wider by .05 at sizes between those that have one of their own and, where dot products are
shorter than 4,096, in their excess by 4,096 / D; ours over cuBLAS + FlashInfer has bars on the two first heads alone.
"""
import os
import sys

import gpu_bars as bars
import gpu_tables
from gpu_bars import Cell, head_name, medians, place
from gpu_bench import HEADS, invalid_reason
from gpu_rule_arms import CUTS, KINDS
from paper_tables import number, table, warning

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
FREE = ("dense counts", "seen bits", "logprob, rank")  # no bar
METHOD = """\
`make bench-gpu-rules`: commit {commit}, {date}, driver {driver}, CUDA {cuda}, torch {torch}; bf16, medians of {reps}
graph replays after {warm_ups} warm-ups, L2 overwritten and another kernel run before each, arms in turn, new positions.
Rows are language-like (bench/gpu_language.py): largest probability .2 to .6, a Zipf tail, ids in random order; values
by row in arrays, T = 1. Edits and penalties list 1,000 tokens by row. Of {compared} tokens that were compared with the
CPU backend's {differ} differ. **Bold** misses its bar.
"""


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


def headings(lines):
    """One for each line: head and batch size where a head begins, then batch sizes."""
    heads = [head_name(line) for line in lines]
    return [place(line) if i == 0 or heads[i - 1] != heads[i] else str(line["B"]) for i, line in enumerate(lines)]


def cells_by_arm(lines):
    """{arm: {id of line: cell over plain draws}} of our own arms, the worst arm first."""
    found = {}
    for _, cells in OVER_PLAIN:
        for cell in cells(lines):
            found.setdefault(cell.column, {})[id(cell.line)] = cell
    return dict(sorted(found.items(), key=lambda item: -max(
        cell.value / (cell.limit or cell.value + 1) for cell in item[1].values())))


def rules_table(lines):
    """A row for every arm, the worst first, under the times of plain draws; a column for every head and size."""
    rows = [["plain, us"] + [number(medians(line)["plain"]) for line in lines]]
    rows += [[arm] + [gpu_tables.mark(cells.get(id(line))) for line in lines]
             for arm, cells in cells_by_arm(lines).items()]
    return table(["over plain"] + headings(lines), rows)


def peers_table(lines):
    """cuBLAS + FlashInfer: times, and over ours."""
    missed = {(cell.column, id(cell.line)) for cell in peers((BOTH,), True)(lines) if cell.missed}
    rows = []
    for cut in CUT:
        cells = []
        for line in lines:
            ours, theirs = medians(line).get(cut), peer_times(line).get(cut)
            over = "(%.2f)" % (theirs / ours) if ours and theirs else ""
            over = "**%s**" % over if ("FI " + cut, id(line)) in missed else over
            cells.append((number(theirs) + " " + over).strip())
        rows.append([cut] + cells)
    return table(["us (over ours)"] + headings(lines), rows) if any(map(peer_times, lines)) else ""


def rates_table(lines):
    """Second passes in percent of rows, by kind of rows and temperature, of the first head; "" of none."""
    if not lines:
        return ""
    first = [line for line in lines if head_name(line) == head_name(lines[0])]
    missed = {id(cell.line) for cell in rates(first) if cell.missed}
    rows = []
    for kind in dict.fromkeys(line["rows"] for line in first):
        at = {line["T"]: ("**%s**" if id(line) in missed else "%s") % ("%.1f %%" % (100 * line["second"] / line["of"]))
              for line in first if line["rows"] == kind}
        rows.append([kind] + [at.get(T, "-") for T in RATE_TEMPERATURES])
    return table(["rows, p = .95, of %d" % first[0]["of"]] + ["T = %g" % T for T in RATE_TEMPERATURES], rows)


def arm_rates_table(lines):
    """Second passes in percent of rows, of the calls that took any."""
    def rate(line, arm):
        second, rows = line["fallback"].get(arm, (0, 0))
        return "%.1f" % (100 * second / rows) if rows else "-"

    arms = dict.fromkeys(arm for line in lines for arm, (second, _) in line["fallback"].items() if second)
    rows = [[arm] + [rate(line, arm) for line in lines] for arm in arms]
    return table(["second passes, %"] + headings(lines), rows) if rows else ""


def worst_of_heads(lines):
    return gpu_tables.worst_cells(lines, {name.split(" / ")[0]: (name, cells) for name, cells in OVER_PLAIN[:-1]})


def sections(results):
    """(title, table) of what was measured."""
    lines, fallback = results["tables"]["rules"], results["tables"]["fallback"]
    first = [line for line in lines if (line["V"], line["D"]) in HEADS and line["B"] in BAR_SIZES]
    others = [line for line in lines if line not in first]
    found = [("Over plain draws of the same run", first and rules_table(first)),
             ("cuBLAS + FlashInfer, values by row", first and peers_table(first)),
             ("Rows that took a second pass over W", rates_table(fallback)),
             ("Other sizes and heads: the worst, by B", others and worst_of_heads(others))]
    return [(title, text) for title, text in found if text]


def text(results):
    """What a run prints: the worst of every bar first, then every size."""
    lines, fallback = results["tables"]["rules"], results["tables"]["fallback"]
    found = ["worst: " + line for line in results["worst"]] + [""]
    for head in bars.by_head(lines).values():
        found += [rules_table(head), peers_table(head), arm_rates_table(head)]
    found += [rates_table(fallback)]
    found += gpu_tables.absences(results["absent"]) + ["note: " + results["note"]] * bool(results["note"])
    found += ["rows %s: %s" % item for item in results["described"].items()]
    return "\n".join(found)


def page(results):
    differ = [pair for line in results["tables"]["rules"] for pair in line["differ"].values()]
    facts = dict(results, differ=sum(pair[0] for pair in differ), compared=sum(pair[1] for pair in differ))
    found = ["# CUDA backend on one %s: what every rule costs\n" % results["device"]] + warning(results)
    found += [METHOD.format(**facts)]
    found += ["%s%s.\n" % (line[0].upper(), line[1:]) for line in gpu_tables.absences(results["absent"])]
    found += ["## The worst of every bar\n", "".join("- %s.\n" % line for line in results["worst"])]
    return "\n".join(found + ["## %s\n\n%s" % section for section in sections(results)])


def main(path):
    target = os.path.splitext(path)[0] + ".md"
    gpu_tables.write_page(target, page(judged(gpu_tables.read(path))))
    print("wrote " + target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/gpu_rule_tables.py FILE")
    main(sys.argv[1])
