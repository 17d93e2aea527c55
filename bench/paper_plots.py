"""Plots of the paper's protocol from the JSON of paper.py: python bench/paper_plots.py FILE [--png]

Writes NAME-speedup.svg, NAME-sampling.svg, NAME-model.svg and NAME-roofline.svg beside NAME.json. Needs matplotlib, no
GPU and no torch.
"""
import os
import sys

try:
    import matplotlib
except ImportError:
    if __name__ == "__main__":
        sys.exit("paper_plots: matplotlib is missing (apt-get install python3-matplotlib, pip install matplotlib)")
    raise
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import matplotlib.ticker

import paper_model as model
from paper_tables import shape

# One look for a method in every plot; the colours are told apart by colour-blind readers too.
LOOKS = {
    "ours": ("#0072B2", "o"),
    "multinomial": ("#D55E00", "s"),
    "b1": ("#009E73", "^"),
    "sort": ("#CC79A7", "D"),
    "fi1": ("#E69F00", "v"),
    "fi2": ("#56B4E9", "P"),
    "matmul": ("#777777", "x"),
}
STYLE = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "svg.hashsalt": "flashsampling"}


# ------------------------------------------------------------------------------------------------------- helpers ----


def curve(axes, method, x, y, label=None, **style):
    """Points with a line through them; where a value is None there is no point."""
    pairs = [(a, b) for a, b in zip(x, y) if b is not None]
    if pairs:
        color, marker = LOOKS[method]
        options = dict(color=color, marker=marker, markersize=5, linewidth=2.0 if method == "ours" else 1.3,
                       zorder=4 if method == "ours" else 3)
        axes.plot(*zip(*pairs), label=label or model.LABELS[method], **dict(options, **style))


def batch_axis(axes, lines):
    rows = [line["B"] for line in lines]
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows)
    axes.set_xticklabels([str(row) for row in rows])
    axes.minorticks_off()
    axes.set_xlabel("batch size B")
    return rows


def plain_log(axes, which, values):
    """A logarithmic axis with readable numbers, more of them in every decade where values span few."""
    low, high = min(values) / 1.15, max(values) * 1.15
    digits = (1, 2, 5) if high > 10 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    ticks = [digit * 10.0**power for power in range(-3, 7) for digit in digits]
    axis = axes.xaxis if which == "x" else axes.yaxis
    getattr(axes, "set_%sscale" % which)("log")
    getattr(axes, "set_%slim" % which)(low, high)
    axis.set_major_locator(matplotlib.ticker.FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: "{:,g}".format(value)))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def figure(results, rows, title):
    """A figure with one column per head; fills in what all plots share when it is finished."""
    heads = model.heads(results)
    canvas, grid = plt.subplots(rows, len(heads), figsize=(5.4 * len(heads), 3.7 * rows + 1.0), squeeze=False)
    canvas.suptitle(title, fontsize=12)
    for column, head in enumerate(heads):
        grid[0][column].set_title(shape(head), fontsize=10)
    return canvas, grid, heads


def finish(canvas, grid, results, columns=4):
    """One legend below the panels, and where the numbers come from below that."""
    entries = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(zip(labels, handles))
    height = canvas.get_figheight()
    lines = -(-len(entries) // columns)
    canvas.legend(list(entries.values()), list(entries), loc="lower center", ncol=columns, fontsize=9,
                  bbox_to_anchor=(0.5, 0.28 / height))
    source = "%(device)s, driver %(driver)s, commit %(commit)s, %(date)s" % results
    canvas.text(0.5, 0.1 / height, source, ha="center", fontsize=7.5, color="#555555")
    canvas.tight_layout(rect=(0, (0.42 + 0.21 * lines) / height, 1, 1))
    return canvas


# --------------------------------------------------------------------------------------------------------- plots ----


def plot_speedup(results):
    canvas, grid, heads = figure(results, 2, "Speedup of the fused call (baseline time / our time)")
    for column, lines in enumerate(heads.values()):
        far, near = grid[0][column], grid[1][column]
        rows, values, close = batch_axis(far, lines), [1.0], [1.0]
        batch_axis(near, lines)
        for name in model.stored_in(lines):
            speedup = [line["derived"]["speedup"].get(name) for line in lines]
            values += [value for value in speedup if value is not None]
            close += [value for value in speedup if value is not None and name != "sort"]
            for axes in (far, near):
                curve(axes, name, rows, speedup, label="over " + model.STORED[name])
        plain_log(far, "y", values)
        near.set_ylim(min(close) - 0.1, max(close) + 0.1)
        for axes, label in ((far, "speedup"), (near, "speedup, near 1")):
            axes.axhline(1.0, color="#000000", linewidth=1)
            axes.set_ylabel(label)
    return finish(canvas, grid, results)


def plot_sampling(results):
    canvas, grid, heads = figure(results, 2, "What sampling costs, in time and as a share of matmul and sampling")
    for column, lines in enumerate(heads.values()):
        above, below = grid[0][column], grid[1][column]
        rows, values = batch_axis(above, lines), []
        batch_axis(below, lines)
        for name in ["ours"] + model.stored_in(lines):
            label = model.SAMPLERS.get(name, "ours, sampled minus greedy")
            spent = [sampling_time(line, name) for line in lines]
            share = [line["derived"]["sampling_share"].get(name) for line in lines]
            values += [us for us in spent if us is not None]
            curve(above, name, rows, spent, label)
            curve(below, name, rows, [None if value is None else 100 * value for value in share], label)
        plain_log(above, "y", values)
        above.set_ylabel("sampler alone, µs")
        below.set_ylim(min(-2.0, below.get_ylim()[0]), 100)
        below.set_ylabel("sampling, % of the time")
    return finish(canvas, grid, results)


def sampling_time(line, name):
    """Microseconds, or None: a difference lost in noise has no place on a logarithmic axis."""
    t = model.medians(line)
    return t.get(name) if name != "ours" else t["ours"] - t["greedy"] if t["ours"] > t["greedy"] else None


def plot_model(results):
    canvas, grid, heads = figure(results, 1, "Cost model of section 4.7 (lines) against measured times (points)")
    for axes, ((V, D), lines) in zip(grid[0], heads.items()):
        rows = batch_axis(axes, lines)
        tb_s = max(line["ceiling_tb_s"] for line in lines)
        dense = [rows[0] * (rows[-1] / rows[0])**(i / 200) for i in range(201)]
        values = []
        for method, label, dash in (("ours", "fused, predicted", "-"), ("b1", "stored logits, predicted", "--")):
            predicted = [model.predict(V, D, B, method, tb_s, results["peak_tflops"]) for B in dense]
            values += predicted
            curve(axes, method, dense, predicted, label, marker="", linewidth=1.4, zorder=2, linestyle=dash)
        for name in ["ours", "matmul"] + [name for name in model.stored_in(lines) if name != "sort"]:
            column = [model.totals(line).get(name) for line in lines]
            values += [us for us in column if us is not None]
            curve(axes, name, rows, column, linestyle="none")
        plain_log(axes, "y", values)
        axes.set_ylabel("time, µs")
    return finish(canvas, grid, results)


def plot_roofline(results):
    canvas, grid, heads = figure(results, 2, "Roofline and bandwidth, the paper's figure 4")
    for column, (head, lines) in enumerate(heads.items()):
        ceiling = max(line["ceiling_tb_s"] for line in lines)
        roofs = {"measured ceilings": (results["peak_tflops"], ceiling, "-")}
        if results["device"] in model.SHEETS:
            roofs["data sheet"] = model.SHEETS[results["device"]] + (":",)
        draw_roofs(grid[0][column], head, lines, roofs)
        draw_bandwidth(grid[1][column], lines, roofs)
    return finish(canvas, grid, results)


def draw_roofs(axes, head, lines, roofs):
    rows = [line["B"] for line in lines]
    reach, rates = [min(rows) / 1.5, max(rows) * 2.5], []
    for label, (tflops, tb_s, dash) in roofs.items():
        corners = [reach[0], tflops / tb_s, reach[1]]
        axes.plot(corners, [min(tb_s * x, tflops) for x in corners], color="#000000", linewidth=1.1, linestyle=dash,
                  label=label)
        rates.append(tflops)
    for name in ["ours", "matmul"] + model.stored_in(lines):
        reached = [line["derived"]["tflops"].get(name) for line in lines]
        rates += [rate for rate in reached if rate is not None]
        curve(axes, name, [model.intensity(*head, B, name) for B in rows], reached, linewidth=1)
    plain_log(axes, "x", reach)
    plain_log(axes, "y", rates)
    axes.set_xlabel("FLOP per byte of mandatory traffic")
    axes.set_ylabel("TFLOP/s")


def draw_bandwidth(axes, lines, roofs):
    rows = batch_axis(axes, lines)
    for _, tb_s, dash in roofs.values():
        axes.axhline(tb_s, color="#000000", linewidth=1.1, linestyle=dash)
    for name in ["ours", "matmul"] + model.stored_in(lines):
        curve(axes, name, rows, [line["derived"]["tb_s"].get(name) for line in lines])
    axes.set_ylim(0, 1.08 * max(tb_s for _, tb_s, _ in roofs.values()))
    axes.set_ylabel("mandatory traffic, TB/s")


PLOTS = {"speedup": plot_speedup, "sampling": plot_sampling, "model": plot_model, "roofline": plot_roofline}


def write(path, endings=("svg",)):
    """Writes every plot beside the JSON file and returns their paths."""
    results, base, written = model.load(path), os.path.splitext(path)[0], []
    with plt.rc_context(STYLE):
        for name, plot in PLOTS.items():
            canvas = plot(results)
            for ending in endings:
                written.append("%s-%s.%s" % (base, name, ending))
                # Without a date the same numbers give the same file.
                canvas.savefig(written[-1], dpi=110, metadata={"Date": None} if ending == "svg" else None)
            plt.close(canvas)
    return written


if __name__ == "__main__":
    files = [word for word in sys.argv[1:] if word != "--png"]
    if len(files) != 1:
        sys.exit("usage: python bench/paper_plots.py FILE [--png]")
    for name in write(files[0], ("svg", "png") if "--png" in sys.argv else ("svg",)):
        print("wrote " + name)
