"""The CPU backend over V, D and B: python3 bench/cpu.py FLASHSAMPLE [--out DIR] [--seconds X]

Runs `flashsample bench --json` for each shape and writes cpu-sweep.json and cpu-sweep.svg: time against V, D and B on
logarithmic axes, with the slope past the floors, and sampled tokens per second for B = 1 .. 256. Needs matplotlib.
"""
import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

try:
    import matplotlib
except ImportError:
    sys.exit("cpu.py: matplotlib is missing (apt-get install python3-matplotlib, pip install matplotlib)")
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import matplotlib.ticker

STYLE = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "svg.hashsalt": "flashsampling"}
LOOKS = {1: ("#0072B2", "o"), 16: ("#D55E00", "s"), 64: ("#009E73", "^"), 256: ("#CC79A7", "D")}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def bench(program, seconds, vocab, dim, batches):
    words = [program, "bench", "--json", "--quiet", "--seconds", str(seconds), "--vocab", str(vocab), "--dim", str(dim),
             "--batch", ",".join(map(str, batches))]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def slope(x, y):
    """Least squares on logarithms."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b)) / sum((p - mean_a) ** 2 for p in a)


def measure(program, seconds):
    """Times in seconds: by V and by D for a few batches, and by B."""
    out = {"V": {}, "D": {}}
    for vocab in (19072, 37888, 75904, 151936):
        run = bench(program, seconds, vocab, 2048, (1, 64))
        out["V"][vocab] = {r["rows"]: r["min_s"] for r in run["results"]}
    for dim in (512, 1024, 2048, 4096):
        run = bench(program, seconds, 75904, dim, (1, 64))
        out["D"][dim] = {r["rows"]: r["min_s"] for r in run["results"]}
    run = bench(program, seconds, 151936, 1024, BATCHES)
    out["B"] = {r["rows"]: r["min_s"] for r in run["results"]}
    out["tokens"] = {r["rows"]: r["tokens_per_s"] for r in run["results"]}
    out["context"], out["cpu"], out["read"] = run["context"], run["cpu"], run["read_bytes_per_s"]
    return out


def label_ticks(axes, x):
    axes.set_xticks(x, [f"{v:,}" for v in x])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def plot(data, path):
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(12, 3.8))
        for place, name, title in ((axes[0], "V", "V (D = 2048)"), (axes[1], "D", "D (V = 75,904)")):
            for rows in (1, 64):
                x = [int(k) for k in data[name]]
                y = [data[name][k][rows] * 1e3 for k in data[name]]
                color, marker = LOOKS[rows]
                place.loglog(x, y, color=color, marker=marker, label=f"B = {rows}, slope {slope(x, y):.2f}")
            label_ticks(place, x)
            place.set_xlabel(title)
            place.set_ylabel("ms per call")
            place.legend()
        x, y = list(data["B"]), [v * 1e3 for v in data["B"].values()]
        axes[2].loglog(x, y, color="#0072B2", marker="o",
                       label=f"slope from B = 64: {slope(x[-3:], y[-3:]):.2f}")
        floor = 151936 * 1024 * 2 / data["read"] * 1e3
        axes[2].axhline(floor, color="#777777", linestyle="--", label="reading W")
        label_ticks(axes[2], x)
        axes[2].set_xlabel("B (V = 151,936, D = 1024)")
        axes[2].set_ylabel("ms per call")
        axes[2].legend()
        figure.suptitle(f"bf16, plain draws, fastest call; {data['context']}")
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the flashsample to run")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--seconds", type=float, default=0.5, help="per shape and batch size")
    options = parser.parse_args()
    data = measure(options.program, options.seconds)
    (options.out / "cpu-sweep.json").write_text(json.dumps(data, indent=1) + "\n")
    plot(data, options.out / "cpu-sweep.svg")
    for name in ("V", "D"):
        for rows in (1, 64):
            x = [int(k) for k in data[name]]
            print(f"slope over {name}, B = {rows}: {slope(x, [data[name][k][rows] for k in data[name]]):.2f}")
    for rows, tokens in data["tokens"].items():
        print(f"B = {rows}: {data['B'][rows] * 1e3:.2f} ms, {tokens:.0f} tokens per second (median)")


if __name__ == "__main__":
    main()
