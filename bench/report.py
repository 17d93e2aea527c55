"""Tables, plots and JSON files of docs/results, shared by the scripts that write these pages.

A page is text by hand with generated blocks: the script FILE writes what lies between `<!-- NAME: FILE -->` and the
next empty line. Plots need matplotlib; nothing here needs a GPU, numpy or torch.
"""
import json
import os
import re

SMALLEST_SIGNIFICANT = "%.5g"  # of a number in a JSON file
# One look for a method in every plot; the colours differ for colour-blind readers too. A dash stands for a bound.
LOOKS = {
    "ours": ("#0072B2", "-"),
    "FlashSampling": ("#0072B2", "-"),
    "PyTorch": ("#D55E00", "-"),
    "PyTorch, compiled": ("#D55E00", "-"),
    "PyTorch's matmul alone": ("#777777", "-"),
    "ours, 8-bit screen": ("#2a9d8f", "-"),
    "ours, 4-bit screen": ("#8e44ad", "-"),
    "cuBLAS + FlashInfer": ("#E69F00", "-"),
    "cuBLAS + our sampler": ("#009E73", "-"),
    "cuBLAS + PyTorch": ("#D55E00", "-"),
    "cuBLAS alone, nothing drawn": ("#777777", "-"),
    "predicted, fused": ("#0072B2", "--"),
    "predicted, stored logits": ("#009E73", "--"),
    "vLLM": ("#E69F00", "-"),
    "reading W once": ("#000000", ":"),
    "reading the 8-bit screen once": ("#2a9d8f", ":"),
    "reading the 4-bit screen once": ("#8e44ad", ":"),
    "limit": ("#D55E00", "--"),
}
SPARE = ("#CC79A7", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#777777")  # of curves without a look of their own
STYLE = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "svg.hashsalt": "flashsampling", "svg.fonttype": "none",
         "font.sans-serif": ["DejaVu Sans", "Arial"]}


# -------------------------------------------------------------------------------------------------------- tables ----


def about(results):
    """What was measured, where and how often, and its caveats."""
    return ("{device}, driver {driver}, CUDA {cuda}, torch {torch}; commit {commit}, {date}; medians of {reps} "
            "repetitions after {warm_ups} warm-ups.\n".format(**results) + caveats(results))


def caveats(results):
    """What was not measured, and why; and why a run is no evidence."""
    reasons = {}
    for name, why in results.get("absent", {}).items():
        reasons.setdefault(why, []).append(name)
    text = ["Not measured: %s (%s).\n" % ("; ".join(names), why) for why, names in reasons.items()]
    return "".join(text + ["**Not evidence:** %s.\n" % results.get("note")] * bool(results.get("note")))


def number(value, digits=1):
    return "-" if value is None else "{:,.{}f}".format(value, digits)


def bold(text, missed):
    return "**%s**" % text if missed else text


def table(rows, columns=None):
    """Markdown of rows, which are dicts: a column for every key, in the order in which keys first come."""
    if not rows:
        return ""
    columns = columns or list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns)] + [[row.get(column, "-") for column in columns] for row in rows]
    return "".join("| %s |\n" % " | ".join(map(str, line)) for line in lines)


def over_sizes(lines, label, cell, shown=None, title=""):
    """A table with a row for each label(line), in order, and a column for each batch size, or for those of shown;
    cell(line) gives the text."""
    rows, sizes = {}, sorted({line["B"] for line in lines if not shown or line["B"] in shown})
    for line in lines:
        rows.setdefault(label(line), {})["B = %d" % line["B"]] = cell(line)
    return table([{title: name, **row} for name, row in rows.items()], [title] + ["B = %d" % B for B in sizes])


def worst_first(rows):
    """Rows of (how far above its limit, row), the worst first."""
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


# --------------------------------------------------------------------------------------------------------- files ----


def short(value):
    """Numbers with five digits, so that a file has no noise."""
    if isinstance(value, dict):
        return {key: short(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(each) for each in value]
    return float(SMALLEST_SIGNIFICANT % value) if isinstance(value, float) else value


def summary(results):
    """A run without what no page shows."""
    if isinstance(results, dict):
        return {key: summary(each) for key, each in results.items() if key not in ("min", "reader", "worst")}
    return [summary(each) for each in results] if isinstance(results, list) else results


def holds_records(value):
    if isinstance(value, dict):
        return any(map(holds_records, value.values()))
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def save(path, results):
    """Writes JSON with a line for each member of results, and for each record of a list of them, wherever it is."""
    def text(value, indent):
        space = "\n" + " " * indent
        if indent and not holds_records(value):
            return json.dumps(short(value))
        if isinstance(value, list):
            return "[" + ",".join(space + " " + json.dumps(short(each)) for each in value) + space + "]"
        return "{" + ",".join("%s %s: %s" % (space, json.dumps(key), text(each, indent + 1))
                              for key, each in value.items()) + space + "}"

    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as file:
        file.write(text(results, 0) + "\n")


def load(path):
    with open(path) as file:
        return json.load(file)


def filled(page, blocks):
    """The text of a page with its generated blocks in place; each name of blocks must be in it."""
    for name, text in blocks.items():
        page, found = re.subn(r"(<!-- %s: \S+ -->\n)(?:.+\n)*" % re.escape(name), lambda match: match[1] + text, page)
        if found != 1:
            raise ValueError("%d blocks named %s" % (found, name))
    return page


def fill(path, blocks):
    with open(path) as file:
        page = file.read()
    with open(path, "w") as file:
        file.write(filled(page, blocks))


# --------------------------------------------------------------------------------------------------------- plots ----


def plot(path, panels, source="", columns=3, size=(4.4, 3.4)):
    """Lines in panels, one legend for all of them. A panel is a dict:

    "title", "x", "y" (labels), "curves": [(label, [(x, y), ...])], and what it does not need to have: "xlog", "ylog",
    "xticks", "bottom" and "top" of y, "points" (labels of curves without a line).
    """
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with plt.rc_context(STYLE):
        canvas, grid = plt.subplots(rows, columns, squeeze=False,
                                    figsize=(size[0] * columns, size[1] * rows + 0.5))
        labels = dict.fromkeys(label for panel in panels for label, _ in panel["curves"])
        spare = dict(zip((label for label in labels if label not in LOOKS), SPARE))
        for axes, panel in zip(grid.flat, panels):
            for label, points in panel["curves"]:
                color, dash = LOOKS.get(label) or (spare[label], "-")
                alone = label in panel.get("points", ())
                axes.plot(*zip(*points), label=label, color=color, linestyle="" if alone else dash,
                          marker="o" if alone or (dash == "-" and len(points) < 16) else "", markersize=3,
                          linewidth=1.8 if label.startswith(("ours", "FlashSampling")) else 1.2)
            dress(axes, panel)
        for axes in grid.flat[len(panels):]:
            axes.set_visible(False)
        handles = {label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels())}
        height, across = canvas.get_figheight(), 4 if canvas.get_figwidth() > 10 else 3
        canvas.legend(handles.values(), handles, loc="lower center", ncol=across, fontsize=9,
                      bbox_to_anchor=(0.5, 0.18 / height))
        canvas.text(0.5, 0.06 / height, source, ha="center", fontsize=7.5, color="#555555")
        canvas.tight_layout(rect=(0, (0.24 + 0.22 * -(-len(handles) // across)) / height, 1, 1))
        canvas.savefig(path, metadata={"Date": None})
        plt.close(canvas)
    if path.endswith(".svg"):
        compact(path)
    return path


def dress(axes, panel):
    """Scales, ticks and labels of a panel."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_title(panel.get("title", ""), fontsize=10)
    axes.set_xlabel(panel.get("x", "batch size B"))
    axes.set_ylabel(panel.get("y", "time, µs"))
    for which, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        values = [value for _, points in panel["curves"] for pair in points for value in pair["xy".index(which):][:1]]
        ticks = panel.get(which + "ticks")
        if panel.get(which + "log"):
            low, high = min(values) / 1.12, max(values) * 1.12
            digits = (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
            ticks = ticks or [digit * 10.0**power for power in range(-3, 7) for digit in digits]
            getattr(axes, "set_%sscale" % which)("log")
            getattr(axes, "set_%slim" % which)(low, high)
            axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
            axis.set_minor_locator(NullLocator())
        elif ticks:
            axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(FuncFormatter(lambda value, _: "{:,g}".format(value)))
    axes.set_ylim(bottom=panel.get("bottom"), top=panel.get("top"))


def compact(path):
    """Fewer lines and digits of an SVG file: the paths of matplotlib have a line for every point."""
    with open(path) as file:
        text = file.read()
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.S)
    text = re.sub(r'="[^"]*"', lambda values: re.sub(
        r"-?\d+\.\d{2,}", lambda match: "%g" % round(float(match[0]), 1), values[0]), text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r'(?<=[dse]=")[^"]*', lambda match: " ".join(match[0].split()), text)
    text = re.sub(r">\s+(?=<(?!g id=.(?:axes|legend|matplotlib|patch|[xy]tick)))", ">", text)
    with open(path, "w") as file:
        file.write(text)
