"""Tables and verdicts of make tpot, and the page of its runs.

python bench/tpot_tables.py RUN             prints the report of a run, a JSON file of tpot.py
python bench/tpot_tables.py PAGE.json       writes the plot and the tables of PAGE.md
python bench/tpot_tables.py PAGE.json RUN.. makes PAGE.json of runs first; of a cell that two runs have, the later's

A cell is (model, kind of rows, rules, B), measured in rounds, in each of which every arm had its turn. Differences are
of one round; their mean has a 95 % interval by Student's t over rounds, and one that holds 0 is called none. A page
keeps medians and intervals. Needs no GPU and no torch.
"""
import json
import math
import os
import statistics
import sys

import report
import tpot_serve

# Two-sided 95 % of Student's t by degrees of freedom; beyond, the normal's is close.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
       15: 2.131, 20: 2.086, 30: 2.042}
# Of what stock's head and sampler take beyond reading W, how much is to be gained: rules -> share, at these B.
BARS = {"t1": 0.60, "kp": 0.75}
BARS_AT = {"model": "qwen3-8b", "rows": "language", "B": (1, 16, 64)}
SCREENED = {8: "ours+8", 4: "ours+4"}  # by bits of a screen: arms that not every run has
RULES = {"t1": "T = 1", "kp": "top-k 50, top-p .95", "p": "top-p .95", "logprobs5": "5 logprobs",
         "penalties": "penalties", "mask": "grammar mask"}
MODELS = {"qwen3-8b": "Qwen3-8B", "qwen3-1.7b": "Qwen3-1.7B", "gemma3-1b": "Gemma-3-1B", "qwen3-32b": "Qwen3-32B"}


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


def gained(cell):
    """(share, half) of stock's time on the device beyond reading W that ours takes less; None if nothing is beyond."""
    read = cell["read_ms"]
    shares = [(x["device_ms"] - y["device_ms"]) / (x["device_ms"] - read)
              for x, y in zip(cell["rounds"]["stock"], cell["rounds"]["ours"]) if x["device_ms"] > read]
    return interval(shares) if shares else None


def summary(cell):
    """A cell by medians: microseconds by arm, what ours saves with its interval, and the share that is gained."""
    def medians(what):
        return {arm: 1e3 * statistics.median(turn[what] for turn in turns) for arm, turns in cell["rounds"].items()
                if turns and what in turns[0]}

    return {**{name: cell[name] for name in ("model", "rows", "rules", "B")}, "read_us": 1e3 * cell["read_ms"],
            "token_us": medians("tpot_ms"), "device_us": medians("device_ms"), "host_us": medians("host_ms"),
            "saved_us": [1e3 * value for value in interval(differences(cell, "tpot_ms"))], "gained": gained(cell)}


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


def saved(line):
    mean, half = line["saved_us"]
    return "%.0f +- %.0f%s" % (mean, half, " (none)" if abs(mean) <= half else "")


def table(results):
    """Markdown: a line for each cell of a run."""
    rows = []
    for line in map(summary, results["cells"]):
        def us(what, arms, line=line):
            return ", ".join(report.number(line[what].get(arm), 0) for arm in arms)

        arms = ["stock", "ours", "null"] + [arm for arm in SCREENED.values() if arm in line["token_us"]]
        rows.append({**{name: line[name] for name in ("model", "rows", "rules", "B")},
                     "%s: us a token" % ", ".join(arms): us("token_us", arms), "stock - ours, us": saved(line),
                     "on the device": us("device_us", arms), "reading W": report.number(line["read_us"], 0),
                     "gained": line["gained"] and "%.0f +- %.0f %%" % tuple(100 * part for part in line["gained"]),
                     "host: stock, ours": us("host_us", ("stock", "ours"))})
    return report.table(rows)


def text(results):
    """The report of a run."""
    lines = ["%-10s %s" % item for item in results["about"].items()] + ["", table(results)]
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


# ---------------------------------------------------------------------------------------------------------- page ----


def join(runs):
    """The records of a page, of runs; "screens" has the cells of runs with screens, whose heads are others."""
    found = {"about": {**runs[0]["about"], "commit": "", "date": ""}, "cells": {}, "screens": {}, "serve": [], "kv": {}}
    for run in runs:
        commit, day = run["about"]["commit"], run["about"]["date"][:10]
        for cell in run.get("cells", []):
            line = {**summary(cell), "commit": commit, "date": day}
            screened = any(arm in cell["rounds"] for arm in SCREENED.values())
            key = tuple(line[name] for name in ("model", "rows", "rules", "B"))
            found["screens" if screened else "cells"][key] = line
        for cell in run.get("serve", []):
            turns = {arm: [turn["tpot_ms"] for turn in each] for arm, each in cell["rounds"].items()}
            less = interval([1 - ours / stock for stock, ours in zip(turns["stock"], turns["ours"])])
            found["serve"].append({
                "model": run["about"]["model"], "B": cell["B"], "commit": commit, "date": day, "less": less,
                "ms": {arm: [statistics.median(ms), statistics.stdev(ms)] for arm, ms in turns.items()}})
        for engine in run.get("kv_tokens", []):
            small = engine.pop("FLASHSAMPLING_VLLM_WORK", 0)
            arm = "%s%s" % (engine["plug-in"], " small" if small else "")
            line = found["kv"].setdefault((engine["max_num_seqs"], engine["max_num_batched_tokens"]), {
                "max_num_seqs": engine["max_num_seqs"], "max_num_batched_tokens": engine["max_num_batched_tokens"]})
            line[arm] = engine["kv"]
    listed = {name: list(lines.values()) for name, lines in found.items() if name in ("cells", "screens", "kv")}
    del found["about"]["commit"], found["about"]["date"], found["about"]["model"]
    return {**found, **listed}


def name_of(line):
    return "%s, %s" % (MODELS[line["model"]], RULES[line["rules"]] + (", flat rows" if line["rows"] == "flat" else ""))


def token_times(line):
    mean, half = line["saved_us"]
    stock, ours = (line["token_us"][arm] for arm in ("stock", "ours"))
    share = "%.1f +- %.1f %%" % (100 * mean / stock, 100 * half / stock)
    return report.bold("%.2f / %.2f, %s" % (stock / 1e3, ours / 1e3, share), mean < -half)


def device_times(arms):
    return lambda line: " / ".join(report.number(line["device_us"].get(arm), 0) for arm in arms)


def bars(cells):
    """A sentence for each bar, bold where a size misses it."""
    found = []
    for rules, bar in BARS.items():
        shares = {line["B"]: line["gained"][0] for line in cells if line["rules"] == rules and line["B"] in BARS_AT["B"]
                  and (line["model"], line["rows"]) == (BARS_AT["model"], BARS_AT["rows"])}
        words = ", ".join(report.bold("%.0f %%" % (100 * share), share < bar) + " at %d" % B
                          for B, share in sorted(shares.items()))
        found.append("- Of vLLM's device time beyond reading W, %s, %s, ours saves %s rows (target %.0f %%).\n" % (
            MODELS[BARS_AT["model"]], RULES[rules], words, 100 * bar))
    return "".join(found)


def served(lines):
    names, rows = {"stock": "vLLM, ms a token", "ours": "ours", "null": "neither head nor sampler"}, []
    for line in lines:
        mean, half = line["less"]
        rows.append({"model": MODELS[line["model"]], "B": line["B"],
                     **{names[arm]: "%.2f +- %.2f" % tuple(ms) for arm, ms in line["ms"].items()},
                     "ours takes less": "%.1f +- %.1f %%%s" % (
                         100 * mean, 100 * half, " (none)" if abs(mean) <= half else "")})
    return report.table(rows)


def kv_tokens(lines):
    def more(line, arm):
        return "-" if arm not in line else "{:,} ({:+.1f} %)".format(line[arm], 100 * (line[arm] / line["off"] - 1))

    title = "tokens of KV cache (1.7B): max_num_seqs, tokens a step"
    return report.table([{title: "{max_num_seqs:,}, {max_num_batched_tokens:,}".format(**line),
                          "vLLM": "{:,}".format(line["off"]), "with the plug-in": more(line, "on"),
                          "with 64 MiB of work memory and 64 MiB of reserve": more(line, "on small")}
                         for line in lines])


def blocks(results):
    cells, screens = results["cells"], results["screens"]
    return {"bars": bars(cells), "tokens": report.over_sizes(cells, name_of, token_times),
            "screens": report.over_sizes(screens, name_of, device_times(("stock", "ours", *SCREENED.values()))),
            "served": served(results["serve"]), "kv": kv_tokens(results["kv"])}


PANELS = (("qwen3-8b", "t1"), ("qwen3-8b", "kp"), ("qwen3-8b", "logprobs5"),
          ("qwen3-8b", "penalties"), ("qwen3-1.7b", "kp"), ("gemma3-1b", "kp"))


def plot(results, path):
    """Time of head and sampler on the device over B; needs matplotlib."""
    panels = []
    for model, rules in PANELS:
        lines = sorted((line for line in results["cells"] if (line["model"], line["rules"], line["rows"]) == (
            model, rules, "language")), key=lambda line: line["B"])
        if lines:
            panels.append({
                "title": "%s, %s" % (MODELS[model], RULES[rules]), "y": "head and sampler, µs", "xlog": True,
                "xticks": [line["B"] for line in lines], "bottom": 0,
                "curves": [(label, [(line["B"], line["device_us"][arm]) for line in lines])
                           for label, arm in (("vLLM", "stock"), ("ours", "ours"))] + [
                    ("reading W once", [(line["B"], line["read_us"]) for line in lines])]})
    return report.plot(path, panels, "%(device)s, vLLM %(vllm)s" % results["about"])


def main(path, runs):
    if not runs and "rounds" in report.load(path)["cells"][0]:
        return print(text(report.load(path)))
    if runs:
        report.save(path, join([report.load(run) for run in runs]))
    base, results = os.path.splitext(path)[0], report.load(path)
    report.fill(base + ".md", blocks(results))
    plot(results, base + ".svg")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
