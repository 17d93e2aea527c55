"""Time over the batch size, from the JSON of gpu.py: python bench/gpu_plots.py FILE

Writes NAME-sizes.svg beside NAME.json: for every head of the table of sizes the time of ours, cuBLAS alone, cuBLAS +
FlashInfer and reading W, and below it ours over cuBLAS with its bar. Needs matplotlib, no GPU and no torch.
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


def write(path):
    """Writes the plot beside the JSON file and returns its path."""
    written = os.path.splitext(path)[0] + "-sizes.svg"
    with plt.rc_context(STYLE):
        canvas = plot(gpu_tables.load(path))
        # Without a date the same numbers give the same file.
        canvas.savefig(written, metadata={"Date": None})
        plt.close(canvas)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/gpu_plots.py FILE")
    print("wrote " + write(sys.argv[1]))
