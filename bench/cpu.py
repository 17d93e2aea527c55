"""The CPU backend over V, D and B: python3 bench/cpu.py FLASHSAMPLE [--out DIR] [--seconds X] [--rounds N]

Runs `flashsample bench --json` for each shape, writes cpu-sweep.json and cpu-sweep.svg (time against V, D and B on
logarithmic axes) and prints slopes past the floors and sampled tokens per second. With cpu-sweep.json in place of the
program it draws the plot anew. Needs matplotlib.
"""
import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import report

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512)


def bench(program, seconds, vocab, dim, batches):
    words = [program, "bench", "--json", "--quiet", "--seconds", str(seconds), "--vocab", str(vocab), "--dim", str(dim),
             "--batch", ",".join(map(str, batches))]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def slope(x, y):
    """Least squares on logarithms."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b)) / sum((p - mean_a) ** 2 for p in a)


# Of two points a slope is off by 0.07 if one of them is by a twentieth, so there are several in each octave.
SHAPES = {"V": [(v, 2048) for v in (19072, 26752, 37888, 53632, 75904, 107264, 151936)],
          "D": [(37888, d) for d in (512, 1024, 2048, 2560, 3072, 4096, 5120, 6144, 8192)], "B": [(151936, 1024)]}
TINY = (128, 1024)  # one noise block: what a call costs before there is anything to do


def keep_fastest(into, run):
    for r in run["results"]:
        into[r["rows"]] = min(into.get(r["rows"], math.inf), r["min_s"])


def measure(program, seconds, rounds):
    """Times in seconds, the fastest of all rounds. In a round every shape has its turn, so that a minute in which the
    neighbours are loud costs every shape one round and no shape its figure."""
    out = {"V": {}, "D": {}, "B": {}, "tiny": {}, "read": 0}
    for turn in range(rounds):
        for name in ("V", "D"):
            for vocab, dim in SHAPES[name]:
                at = vocab if name == "V" else dim
                keep_fastest(out[name].setdefault(at, {}), bench(program, seconds, vocab, dim, (1, 64)))
        keep_fastest(out["tiny"], bench(program, seconds, *TINY, (1, 64)))
        run = bench(program, seconds, *SHAPES["B"][0], BATCHES)
        keep_fastest(out["B"], run)
        out["read"] = max(out["read"], run["read_bytes_per_s"])
        print(f"round {turn + 1} of {rounds} done", file=sys.stderr)
    out["context"], out["cpu"] = run["context"], run["cpu"]
    return out


def past_floors(data, name, rows=None):
    """The points a slope is asked of: those whose time is what grows with V, D or B.

    V: a call's fixed cost is at most 2 % of it. D: 2,048 and up, where what a logit costs whatever D is (storing,
    looking for maxima, noise) is small. B: at least 2.5 times as long as reading W, so that products decide."""
    if name == "B":
        floor = 151936 * 1024 * 2 / data["read"]
        points = {b: t for b, t in data["B"].items() if t >= 2.5 * floor}
    else:
        points = {x: data[name][x][rows] for x in data[name]}
        if name == "V":
            points = {x: t for x, t in points.items() if data["tiny"][rows] <= 0.02 * t}
        if name == "D":
            points = {x: t for x, t in points.items() if x >= 2048}
    return list(points), list(points.values())


def slope_text(data, name, rows=None):
    x, y = past_floors(data, name, rows)
    return f"{slope(x, y):.2f} from {x[0]:,}" if len(x) > 1 else "none past the floor"


def octaves(x):
    """Values of x that are about a factor of 2 apart, the last among them."""
    found = x[-1:]
    for value in reversed(x):
        if found[-1] > 1.9 * value:
            found.append(value)
    return found[::-1]


def plot(data, path):
    def panel(title, x, curves):
        return {"x": title, "y": "ms per call", "xlog": True, "ylog": True, "xticks": octaves(x), "curves": [
            (label, [(at, 1e3 * seconds) for at, seconds in zip(x, times)]) for label, times in curves]}

    panels = [panel(title, list(data[name]), [("%d row%s" % (rows, "s" * (rows > 1)), [
        times[rows] for times in data[name].values()]) for rows in (1, 64)])
        for name, title in (("V", "V (D = 2,048)"), ("D", "D (V = 37,888)"))]
    reading = 151936 * 1024 * 2 / data["read"]
    panels.append(panel("B (V = 151,936, D = 1,024)", list(data["B"]), [
        ("ours", data["B"].values()), ("reading W once", [reading] * len(data["B"]))]))
    report.plot(str(path), panels, "bf16, plain draws, fastest call; %(context)s" % data)


def load(path):
    """A run that was saved; JSON has texts for the numbers that name shapes."""
    def numbers(value):
        return {int(key) if key.isdigit() else key: numbers(each) for key, each in value.items()} if isinstance(
            value, dict) else value

    return numbers(report.load(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the flashsample to run, or the JSON of a run")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--seconds", type=float, default=0.1, help="per shape, batch size and round")
    parser.add_argument("--rounds", type=int, default=8, help="turns of every shape; the fastest counts")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring, not after
    saved = options.program.endswith(".json")
    data = load(options.program) if saved else measure(options.program, options.seconds, options.rounds)
    if not saved:
        report.save(str(options.out / "cpu-sweep.json"), data)
    plot(data, options.out / "cpu-sweep.svg")
    for name in ("V", "D"):
        for rows in (1, 64):
            x, y = list(data[name]), [data[name][k][rows] for k in data[name]]
            print(f"slope over {name}, B = {rows}: {slope_text(data, name, rows)}; of all points {slope(x, y):.2f}")
    print(f"slope over B: {slope_text(data, 'B')}; a call of 128 tokens: B = 1 {data['tiny'][1] * 1e6:.0f} us, "
          f"B = 64 {data['tiny'][64] * 1e6:.0f} us")
    for rows, seconds in data["B"].items():
        print(f"B = {rows}: {seconds * 1e3:.2f} ms, {rows / seconds:.0f} tokens per second (fastest call)")


if __name__ == "__main__":
    main()
