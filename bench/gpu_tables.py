"""The pages of a run of gpu.py, and their plot: python bench/gpu_tables.py FILE [RUN ...]

Writes NAME.md, NAME-sizes.md and, where matplotlib is installed, NAME-sizes.svg beside FILE, which is NAME.json. With
RUNs, parts of a long run of one commit on one device, FILE is made of them first. What a page says below the line
BY_HAND stays.
"""
import json
import os
import sys

import gpu_bars as bars
from gpu_bench import invalid_reason
from gpu_rows import KINDS, MIXED
from paper_tables import number, table, warning

BY_HAND = "<!-- By hand from here on: bench/gpu_tables.py writes what is above. -->\n"
SHOWN = (1, 16, 17, 48, 64, 128, 129, 160, 200, 256, 257, 300, 512, 513, 1024)  # in tables; the plot has all
METHOD = """\
`make bench-gpu`: commit {commit}, {date}, driver {driver}, CUDA {cuda}, torch {torch}; bf16, random data,
T = 1, medians of {reps} graph replays after {warm_ups} warm-ups, us. L2 is overwritten and another kernel run before
each, arms take turns, positions are new. *ours* computes logits and draws; the *ceiling* only reads W, by the fastest
of seven kernels; *cuBLAS alone* is `torch.mm` to bf16 logits, the better orientation; a *pair* is cuBLAS and a sampler
over the logits it stored, FlashInfer's Gumbel sampler or our own (the paper's B.1). **Bold** misses its bar.
"""
MORE = """\
More: [what every rule costs]({name}-rules.md); [sizes of every head, groups, log Z]({name}-sizes.md); [stored logits,
the portable kernel]({name}-more.md); [the paper's protocol](paper-{name}.md); [earlier states](../log/{name}.md).
"""
ROWS_NOTE = """\
Bars: 1.10; 1.25 for ascending rows (steep: -50 to 50) and greedy ties: flat, blocks of 16,384 tokens, hidden states 0.
"""


# --------------------------------------------------------------------------------------------------------- runs ----


def save(path, results):
    """Writes a run, a line of the file for every line of a table; nothing where there is no path."""
    if not path:
        return
    text = json.dumps({name: value for name, value in results.items() if name != "tables"}, indent=1)
    if "tables" in results:
        tables = ["  %s: [\n%s\n  ]" % (json.dumps(name), ",\n".join("   " + json.dumps(line) for line in lines))
                  for name, lines in results["tables"].items()]
        text = text[:-2] + ',\n "tables": {\n%s\n }\n}' % ",\n".join(tables)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as file:
        file.write(text + "\n")


def read(path):
    with open(path) as file:
        return json.load(file)


def load(path):
    return judged(read(path))


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


def absences(absent):
    """What was not measured, and why: a sentence for each reason."""
    reasons = {}
    for name, why in absent.items():
        reasons.setdefault(why, []).append(name)
    return ["not measured: %s (%s)" % ("; ".join(names), why) for why, names in reasons.items()]


# ------------------------------------------------------------------------------------------------------- tables ----


def mark(cell, form="%.3f"):
    return "-" if cell is None else ("**%s**" if cell.missed else "%s") % (form % cell.value)


def worst_of_heads(lines):
    return worst_cells(lines, {"over cuBLAS alone": bars.OVER_CUBLAS, "over the ceiling, to B = 64": bars.OVER_CEILING,
                               "over the best pair": bars.OVER_PAIR, "over the size before": bars.RISES})


def worst_cells(lines, columns):
    """A row for every head: the worst cell of every column's bar, and at which B; the worst of the first bar first."""
    def cells(head):
        return [bars.worst(bar(head)) for _, bar in columns.values()]

    def order(head):
        first = cells(head)[0]
        return -first.value / (first.limit or 1.0) if first else 0.0

    rows = [[bars.head_name(head[0])] + [cell and "%s at %s" % (mark(cell), cell.where.split("B = ")[1]) or "-"
                                         for cell in cells(head)]
            for head in sorted(bars.by_head(lines).values(), key=order)]
    return table(["V x D"] + list(columns), rows)


def over_sizes(lines, cell_of):
    """A row for every head, a column for every size of SHOWN that was measured. cell_of gives a line's text."""
    sizes = [B for B in SHOWN if any(line["B"] == B for line in lines)]
    rows = []
    for head in bars.by_head(lines).values():
        at = {line["B"]: cell_of(line) for line in head}
        rows.append([bars.head_name(head[0])] + [at.get(B, "-") for B in sizes])
    return table(["V x D"] + ["%s%d" % ("" if i else "B = ", B) for i, B in enumerate(sizes)], rows)


def ratios(lines, bar):
    cells = {id(cell.line): mark(cell) for cell in bar[1](lines)}
    return over_sizes(lines, lambda line: cells.get(id(line), "-"))


def times(lines):
    return over_sizes(lines, lambda line: number(bars.medians(line).get("ours")))


def kinds_of_rows(lines):
    """A row for every kind, the worst first, under the times on random rows; two heads, as many as a page is wide."""
    first = list(bars.by_head(lines))[:2]
    lines = [line for line in lines if (line["V"], line["D"]) in first]
    cells = {(cell.column, id(cell.line)): cell for _, bar in bars.TABLES["rows"].bars for cell in bar(lines)}

    def worst(kind):
        return -max((cells[kind, id(line)].value for line in lines if (kind, id(line)) in cells), default=0.0)

    heading = ["rows"] + [bars.place(line) if line["draw"] == "plain" else line["draw"] for line in lines]
    rows = [["random, us"] + [number(bars.medians(line).get("random")) for line in lines]]
    for kind in sorted((kind for kind in list(KINDS) + [MIXED] if kind != "random"), key=worst):
        rows.append([kind] + [mark(cells.get((kind, id(line))), "%.2f") for line in lines])
    return table(heading, rows)


def small_heads(lines):
    """A row for every head: ours and cuBLAS + FlashInfer."""
    missed = {id(cell.line) for cell in bars.TABLES["small"].bars[0][1](lines) if cell.missed}

    def cell_of(line):
        t = bars.medians(line)
        text = "%s / %s" % (number(t["ours"]), number(t.get("+flashinfer")))
        return "**%s**" % text if id(line) in missed else text

    return over_sizes(lines, cell_of)


def groups(lines):
    return worst_cells(lines, {name: (name, bar) for name, bar in bars.TABLES["groups"].bars})


# -------------------------------------------------------------------------------------------------------- pages ----


def conclusions(results):
    """The worst cell of everything that has a bar: what the page shows first."""
    found = []
    for name, lines in (("sizes", lines_of(results, "sizes", "heads")), ("rows", lines_of(results, "rows")),
                        ("small", lines_of(results, "small")), ("groups", lines_of(results, "groups"))):
        for bar, cells_of in bars.TABLES[name].bars if lines else ():
            cells = cells_of(lines)
            if not cells or any(cell.limit is not None for cell in cells):
                found.append("- %s." % bars.verdict(bar, cells))
    return "\n".join(found) + "\n"


def body(results, sections):
    """Of every section whose tables were measured: its title, its note, its table."""
    text = []
    for title, note, names, section in sections:
        lines = lines_of(results, *names)
        if lines:
            text += ["## %s\n" % title] + [note] * bool(note) + [section(lines)]
    return text


def first_page(results, name):
    text = ["# CUDA backend on one %s: every batch size, head and kind of row\n" % results["device"]]
    text += warning(results) + [METHOD.format(**results)]
    text += ["%s%s.\n" % (line[0].upper(), line[1:]) for line in absences(results["absent"])]
    text += [MORE.format(name=name), "## The worst of every bar\n", conclusions(results)]
    text += ["![Time over the batch size, and over cuBLAS alone](%s-sizes.svg)\n" % name]
    return "\n".join(text + body(results, (
        ("The worst size of every head, by B", "", ("sizes", "heads"), worst_of_heads),
        ("Kinds of rows, over random ones", ROWS_NOTE, ("rows",), kinds_of_rows),
        ("Small heads: ours / cuBLAS + FlashInfer, us, to be within 15 % or 3 us", "", ("small",), small_heads))))


def sizes_page(results, name):
    text = ["# CUDA backend on one %s: sizes of every head, groups, log Z\n" % results["device"],
            "Commit %s, %s; how it was measured: [%s.md](%s.md). **Bold** misses its bar.\n" % (
                results["commit"], results["date"], name, name)]
    heads = ("sizes", "heads")
    return "\n".join(text + warning(results) + body(results, (
        ("Time of a draw, us", "", heads, times),
        ("Over cuBLAS alone", "", heads, lambda lines: ratios(lines, bars.OVER_CUBLAS)),
        ("Over the best of cuBLAS + FlashInfer and cuBLAS + B.1", "", heads,
         lambda lines: ratios(lines, bars.OVER_PAIR)),
        ("Draws by groups of 4,096 tokens, log Z, greedy: the worst, by B", "", ("groups",), groups))))


def pages(results, name):
    """The pages by the ending of their names; name is that of the first, without its ending."""
    return {"": first_page(results, name), "-sizes": sizes_page(results, name)}


def write_page(path, text):
    """Writes a page above what it has by hand."""
    if os.path.exists(path):
        with open(path) as file:
            _, line, by_hand = file.read().partition(BY_HAND)
        text += line and "\n" + line + by_hand
    with open(path, "w") as file:
        file.write(text)


def write(path):
    """Writes the pages beside the JSON file and returns their paths."""
    base, written = os.path.splitext(path)[0], []
    for ending, text in pages(load(path), os.path.basename(base)).items():
        written.append(base + ending + ".md")
        write_page(written[-1], text)
    return written


def main(path, runs):
    if runs:
        save(path, join([load(run) for run in runs]))
    written = write(path)
    try:
        import gpu_plots
    except ImportError:
        print("plot: matplotlib is not installed here; where it is: python bench/gpu_plots.py %s" % path)
    else:
        written.append(gpu_plots.write(path))
    for name in written:
        print("wrote " + name)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python bench/gpu_tables.py FILE [RUN ...]")
    main(sys.argv[1], sys.argv[2:])
