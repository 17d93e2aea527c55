"""Time over the batch size with screens, from the JSON of gpu_screens.py: python bench/gpu_screen_plots.py FILE

Writes NAME-sizes.svg beside NAME.json: for every head the time of a draw from W, with screens of 8 and 4 bits, of
cuBLAS alone, and of reading W and the screens once. Needs matplotlib, no GPU and no torch.
"""
import json
import os
import sys

try:
    from paper_plots import LOOKS, STYLE, finish, plain_log, plt
except ImportError:
    if __name__ == "__main__":
        sys.exit("gpu_screen_plots: matplotlib is missing (apt-get install python3-matplotlib, pip install matplotlib)")
    raise

ARMS = {  # arm: its label, color and line
    "cublas": ("cuBLAS alone, nothing drawn", LOOKS["matmul"][0], "-"),
    "ours": ("ours, from W", LOOKS["ours"][0], "-"),
    "8 bits": ("ours, 8 bits", "#2a9d8f", "-"),
    "4 bits": ("ours, 4 bits", "#8e44ad", "-"),
    "ceiling": ("reading W, 8 bits, 4 bits once", "#000000", ":"),
    "read 8": (None, "#000000", ":"),
    "read 4": (None, "#000000", ":"),
}


def heads_of(results):
    """{head: its lines by B}, of language-like rows at T = 1."""
    heads = {}
    for line in results["tables"]["screens"]:
        if line["kind"] == "language" and line["temperature"] == 1.0:
            heads.setdefault("{V:,} x {D:,}".format(**line), []).append(line)
    return {name: sorted(lines, key=lambda line: line["B"]) for name, lines in heads.items()}


def plot(results):
    heads = heads_of(results)
    canvas, row = plt.subplots(1, len(heads), figsize=(4.2 * len(heads), 4.4), squeeze=False)
    canvas.suptitle("Time of a draw with a screen; tokens are those of W", fontsize=12)
    for axes, (name, lines) in zip(row[0], heads.items()):
        axes.set_title(name, fontsize=10)
        sizes = [line["B"] for line in lines]
        for arm, (label, color, dash) in ARMS.items():
            axes.plot(sizes, [line["times"][arm]["median"] for line in lines], label=label, color=color, linestyle=dash,
                      marker="" if dash == ":" else "o", markersize=3, linewidth=1.4)
        plain_log(axes, "x", sizes)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch size B")
        axes.set_ylabel("time, µs")
    return finish(canvas, row, results)


def write(path):
    """Writes the plot beside the JSON file and returns its path."""
    target = os.path.splitext(path)[0] + "-sizes.svg"
    with open(path) as file, plt.rc_context(STYLE):
        plot(json.load(file)).savefig(target, metadata={"Date": None})  # the same numbers give the same file
    plt.close("all")
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/gpu_screen_plots.py FILE")
    print("wrote " + write(sys.argv[1]))
