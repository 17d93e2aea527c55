"""Time over the batch size, from the JSON of gpu.py or gpu_screens.py: python bench/gpu_plots.py FILE

Writes NAME-sizes.svg beside NAME.json: for every head of the table of sizes the time of ours, cuBLAS alone, cuBLAS +
FlashInfer and reading W, and below it ours over cuBLAS with its bar; of screens the time of a draw from W, with 8 and
4 bits, of cuBLAS alone, and of reading each once. Needs matplotlib, no GPU and no torch.
"""
import os
import sys

import gpu_bars as bars
import gpu_tables

try:
    from paper_plots import LOOKS, STYLE, finish, plain_log, plt
except ImportError:
    if __name__ == "__main__":
        sys.exit("gpu_plots: matplotlib is missing (apt-get install python3-matplotlib, pip install matplotlib)")
    raise

ARMS = {  # arm: its label, color and line
    "ours": ("ours", LOOKS["ours"][0], "-"),
    "cublas": ("cuBLAS alone, nothing drawn", LOOKS["matmul"][0], "-"),
    "+flashinfer": ("cuBLAS + FlashInfer", LOOKS["fi2"][0], "-"),
    "+b1": ("cuBLAS + B.1", LOOKS["b1"][0], "-"),
    "ceiling": ("reading W once", "#000000", ":"),
}
SCREENS = {
    "cublas": ARMS["cublas"],
    "ours": ("ours, from W", *ARMS["ours"][1:]),
    "8 bits": ("ours, 8 bits", "#2a9d8f", "-"),
    "4 bits": ("ours, 4 bits", "#8e44ad", "-"),
    "ceiling": ("reading W, 8 bits, 4 bits once", "#000000", ":"),
    "read 8": (None, "#000000", ":"),
    "read 4": (None, "#000000", ":"),
}
TICKS = (1, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 1024)


def draw(axes, x, y, label, color, dash):
    """A curve through the measured sizes, each of them a dot."""
    ours = label.startswith("ours")
    axes.plot(x, y, label=label, color=color, linestyle=dash, marker="" if dash == ":" else "o",
              markersize=3 if ours else 2, linewidth=1.8 if ours else 1.1, zorder=4 if ours else 3)


def sizes_axis(axes, sizes):
    """Linear: between tiles time rises by steps of B, which a logarithm would squeeze."""
    axes.set_xlim(0, max(sizes) * 1.01)
    axes.set_xticks([B for B in TICKS if B <= max(sizes)])
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("batch size B")


def plot(results):
    heads = bars.by_head(results["tables"]["sizes"])
    canvas, grid = plt.subplots(2, len(heads), figsize=(6.4 * len(heads), 7.6), squeeze=False,
                                gridspec_kw={"height_ratios": (3, 2)})
    canvas.suptitle("Time of a draw over the batch size", fontsize=12)
    for above, below, lines in zip(grid[0], grid[1], heads.values()):
        above.set_title(bars.head_name(lines[0]), fontsize=10)
        values, sizes = [], [line["B"] for line in lines]
        for arm, look in ARMS.items():
            points = [(line["B"], t[arm]) for line in lines for t in (bars.medians(line),) if arm in t]
            if points:
                draw(above, *zip(*points), *look)
                values += [us for _, us in points]
        plain_log(above, "y", values)
        above.set_ylabel("time, µs")
        cells = bars.OVER_CUBLAS[1](lines)
        draw(below, [cell.line["B"] for cell in cells], [cell.value for cell in cells], *ARMS["ours"])
        below.step([cell.line["B"] for cell in cells], [cell.limit for cell in cells], where="pre", color="#D55E00",
                   linewidth=1.1, label="bar")
        below.axhline(1.0, color="#000000", linewidth=1)
        below.set_ylabel("ours / cuBLAS alone")
        for axes in (above, below):
            sizes_axis(axes, sizes)
    return finish(canvas, grid, results)


def plot_screens(results):
    """Language-like rows at T = 1."""
    lines = [line for line in results["tables"]["screens"] if line["table"] == "sizes"]
    heads = bars.by_head(sorted(lines, key=lambda line: line["B"]))
    canvas, grid = plt.subplots(1, len(heads), figsize=(4.2 * len(heads), 4.4), squeeze=False)
    canvas.suptitle("Time of a draw with a screen; tokens are those of W", fontsize=12)
    for axes, lines in zip(grid[0], heads.values()):
        axes.set_title(bars.head_name(lines[0]), fontsize=10)
        sizes = [line["B"] for line in lines]
        for arm, (label, color, dash) in SCREENS.items():
            axes.plot(sizes, [bars.medians(line)[arm] for line in lines], label=label, color=color, linestyle=dash,
                      marker="" if dash == ":" else "o", markersize=3, linewidth=1.4)
        plain_log(axes, "x", sizes)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch size B")
        axes.set_ylabel("time, µs")
    return finish(canvas, grid, results)


def write(path):
    """Writes the plot beside the JSON file and returns its path."""
    written, results = os.path.splitext(path)[0] + "-sizes.svg", gpu_tables.read(path)
    with plt.rc_context(STYLE):
        canvas = plot_screens(results) if "screens" in results["tables"] else plot(gpu_tables.judged(results))
        # Without a date the same numbers give the same file.
        canvas.savefig(written, metadata={"Date": None})
        plt.close(canvas)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/gpu_plots.py FILE")
    print("wrote " + write(sys.argv[1]))
