"""Tables and verdicts of make tpot, from its JSON: python bench/tpot_tables.py FILE. Needs no GPU and no torch.

A cell is (model, kind of rows, rules, B), measured in rounds, in each of which every arm had its turn. Differences are
of one round; their mean has a 95 % interval by Student's t over rounds, and one that holds 0 is called none.
"""
import json
import math
import statistics
import sys

import tpot_serve

# Two-sided 95 % of Student's t by degrees of freedom; beyond, the normal's is close.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
       15: 2.131, 20: 2.086, 30: 2.042}
# Of what stock's head and sampler take beyond reading W, how much is to be gained: rules -> share, at these B.
BARS = {"t1": 0.60, "kp": 0.75}
SCREENED = {8: "ours+8", 4: "ours+4"}  # by bits of a screen: arms that not every run has
BARS_AT = {"model": "qwen3-8b", "rows": "language", "B": (1, 16, 64)}


def t95(freedom):
    return T95[max(known for known in T95 if known <= freedom)]


def interval(values):
    """(mean, half of the 95 % interval); the half is infinite for one value."""
    if len(values) < 2:
        return values[0], math.inf
    return statistics.mean(values), t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def differences(cell, what, a="stock", b="ours"):
    """a - b of each round."""
    return [x[what] - y[what] for x, y in zip(cell["rounds"][a], cell["rounds"][b])]


def middle(cell, arm, what):
    return statistics.median(turn[what] for turn in cell["rounds"][arm]) if cell["rounds"].get(arm) else None


def gained(cell):
    """(share, half) of stock's time on the device beyond reading W that ours takes less; None if nothing is beyond."""
    read = cell["read_ms"]
    shares = [(x["device_ms"] - y["device_ms"]) / (x["device_ms"] - read)
              for x, y in zip(cell["rounds"]["stock"], cell["rounds"]["ours"]) if x["device_ms"] > read]
    return interval(shares) if shares else None


def verdicts(results):
    """[(what, met or not)] of the bars, and of every cell where ours is slower beyond the interval."""
    found = []
    for cell in results["cells"]:
        name = "%s, %s rows, %s, B = %d" % (cell["model"], cell["rows"], cell["rules"], cell["B"])
        barred = cell["model"] == BARS_AT["model"] and cell["rows"] == BARS_AT["rows"] and cell["B"] in BARS_AT["B"]
        share = gained(cell)
        if barred and cell["rules"] in BARS and share:
            bar = BARS[cell["rules"]]
            found.append(("%s: %.0f %% gained on the device, bar %.0f %%" % (name, 100 * share[0], 100 * bar),
                          share[0] >= bar))
        for what, word in (("tpot_ms", "time per token"), ("host_ms", "host time of sample()")):
            mean, half = interval(differences(cell, what))
            if mean < 0 and -mean > half:
                found.append(("%s: %s %.1f us more than stock's (+- %.1f)" % (name, word, -1e3 * mean, 1e3 * half),
                              False))
    return found


def number(value, digits=3):
    return "-" if value is None else ("%.*f" % (digits, value)).lstrip("0") or "0"


def table(results):
    """Markdown: a line for each cell."""
    lines = ["| model | rows | rules | B | stock, ours, null: ms a token | stock - ours, us | sample() on the device: "
             "stock, ours, reading W, us | gained | host: stock, ours, us |", "|---|---|---|---|---|---|---|---|---|"]
    screens = [bits for bits, arm in SCREENED.items() if any(arm in cell["rounds"] for cell in results["cells"])]
    for bits in screens:
        lines[0] += " a screen of %d bits: ms a token, us on the device | ours - with it, us |" % bits
        lines[1] += "---|---|"
    for cell in results["cells"]:
        mean, half = interval(differences(cell, "tpot_ms"))
        none = " (none)" if abs(mean) <= half else ""
        share = gained(cell)
        device = [middle(cell, arm, "device_ms") for arm in ("stock", "ours")] + [cell["read_ms"]]
        host = [middle(cell, arm, "host_ms") for arm in ("stock", "ours")]
        lines.append("| %s | %s | %s | %d | %s | %.0f +- %.0f%s | %s | %s | %s |" % (
            cell["model"], cell["rows"], cell["rules"], cell["B"],
            ", ".join(number(middle(cell, arm, "tpot_ms")) for arm in ("stock", "ours", "null")),
            1e3 * mean, 1e3 * half, none, ", ".join("%.0f" % (1e3 * ms) for ms in device),
            "-" if share is None else "%.0f +- %.0f %%" % (100 * share[0], 100 * share[1]),
            ", ".join("%.0f" % (1e3 * ms) for ms in host)) + "".join(screen_columns(cell, bits) for bits in screens))
    return "\n".join(lines)


def screen_columns(cell, bits):
    arm = SCREENED[bits]
    if not cell["rounds"].get(arm):
        return " - | - |"
    mean, half = interval(differences(cell, "tpot_ms", "ours", arm))
    return " %s, %.0f | %.0f +- %.0f%s |" % (
        number(middle(cell, arm, "tpot_ms")), 1e3 * middle(cell, arm, "device_ms"), 1e3 * mean, 1e3 * half,
        " (none)" if abs(mean) <= half else "")


def report(results):
    """All of it as text."""
    lines = ["%-10s %s" % item for item in results["about"].items()] + ["", table(results), ""]
    for what, met in verdicts(results):
        lines.append("%s  %s" % ("met   " if met else "MISSED", what))
    if results.get("greedy"):
        equal, drawn, apart = results["greedy"]["equal"], results["greedy"]["drawn"], results["greedy"]["apart"]
        lines.append("greedy: %d of %d tokens equal; logits of the others apart by %s" % (
            equal, drawn, ", ".join("%g" % gap for gap in apart[:8]) or "-"))
    for bits, found in results.get("screened", {}).items():
        lines.append("a screen of %s bits: %d of %d tokens are those without" % (bits, found["equal"], found["drawn"]))
    lines += [tpot_serve.line(cell) for cell in results.get("serve", [])]
    for name in ("same", "counts", "kv_tokens", "language"):
        if results.get(name):
            lines.append("%s: %s" % (name, json.dumps(results[name])))
    return "\n".join(lines)


def plot(results, path):
    """Time of sample() on the device over B, for each model, kind of rows and rules; needs matplotlib."""
    from paper_plots import LOOKS, STYLE, plt

    groups = {}
    for cell in results["cells"]:
        groups.setdefault((cell["model"], cell["rows"], cell["rules"]), []).append(cell)
    columns = min(3, len(groups))
    with plt.rc_context(STYLE):
        canvas, grid = plt.subplots(-(-len(groups) // columns), columns, squeeze=False,
                                    figsize=(4.2 * columns, 3.4 * -(-len(groups) // columns)))
        for axes in grid.flat[len(groups):]:
            axes.set_visible(False)
        for axes, (name, cells) in zip(grid.flat, groups.items()):
            cells = sorted(cells, key=lambda cell: cell["B"])
            x = [cell["B"] for cell in cells]
            for arm, look in (("stock", "fi2"), ("ours", "ours")):
                axes.plot(x, [1e3 * middle(cell, arm, "device_ms") for cell in cells], label=arm, color=LOOKS[look][0],
                          marker=LOOKS[look][1])
            axes.plot(x, [1e3 * cell["read_ms"] for cell in cells], ":", color="black", label="reading W once")
            axes.set_xscale("log", base=2)
            axes.set_xticks(x, [str(B) for B in x])
            axes.set_ylim(bottom=0)
            axes.set_title(", ".join(name), fontsize=9)
            axes.set_xlabel("batch size B")
            axes.set_ylabel("sample() in vLLM, µs")
        grid.flat[0].legend()
        canvas.tight_layout()
        canvas.savefig(path)
        plt.close(canvas)


def main(path):
    with open(path) as file:
        results = json.load(file)
    print(report(results))
    try:
        plot(results, path.removesuffix(".json") + ".svg")
    except ImportError:
        print("no plot: matplotlib is missing")


if __name__ == "__main__":
    main(sys.argv[1])
