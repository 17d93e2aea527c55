"""The paper's tables and plots, from the JSON of paper.py: python bench/paper_report.py PAGE.json

Writes the generated blocks of PAGE.md, PAGE-speedup.svg and PAGE.svg, for which matplotlib is needed.
"""
import os
import sys

import paper_model as model
import report
from report import number

SPEEDUPS, SHOWN = (1, 4, 16, 64, 128, 256), (1, 64, 256)  # batch sizes in the tables


def shape(line):
    return "{V:,} x {D:,}".format(**line)


def percent(value):
    return "-" if value is None else "%.1f %%" % (100 * value)


# ------------------------------------------------------------------------------------------------------- tables ----


def speedups(lines):
    """Microseconds of every method, and how many times as fast ours is; bold where it is not faster."""
    rows, printed = [], model.PAPER.get((lines[0]["V"], lines[0]["D"]), {})
    for line in (line for line in lines if line["B"] in SPEEDUPS):
        total, speedup = model.totals(line), line["derived"]["speedup"]
        row = {"B": line["B"], "ours, us": number(total["ours"])}
        for name in model.stored_in(lines):
            row[model.STORED[name]] = report.bold("%s (%.2f)" % (number(total[name]), speedup[name]),
                                                  speedup[name] <= 1) if name in speedup else "-"
        row["the paper's, over PyTorch / FlashInfer with top-k, top-p / FlashInfer"] = " / ".join(
            "%.2f" % value for value in printed.get(line["B"], ())) or "-"
        rows.append(row)
    return report.table(rows)


def shown(results):
    return [line for lines in model.heads(results).values() for line in lines if line["B"] in SHOWN]


def shares(lines):
    """Sampling's share, from times of parts and by kernels of a profile."""
    rows = []
    for line in lines:
        row = {"V x D": shape(line), "B": line["B"]}
        for name in ["ours"] + model.stored_in(lines):
            kernels = line.get("kernels", {}).get(name, {})
            row[model.LABELS[name]] = "%s, %s" % (percent(line["derived"]["sampling_share"].get(name)),
                                                  percent(kernels.get("share")))
        rows.append(row)
    return report.table(rows)


def against_model(lines):
    rows = []
    for line in lines:
        predicted, total, stored = line["derived"]["model"], model.totals(line), model.totals(line).get("b1")
        rows.append({
            "V x D": shape(line), "B": line["B"], "fused: predicted, ours (ratio)": "%s, %s (%.3f)" % (
                number(predicted["fused_us"]), number(total["ours"]), total["ours"] / predicted["fused_us"]),
            "stored logits: predicted, cuBLAS + our sampler (ratio)": stored and "%s, %s (%.3f)" % (
                number(predicted["stored_us"]), number(stored), stored / predicted["stored_us"]) or "-",
            "speedup: predicted, measured": "%.3f, %s" % (
                predicted["speedup"], number(stored and stored / total["ours"], 3)),
            "logits not stored, bytes": number(2 * line["B"] * line["V"], 0),
            "our work memory, bytes": number(line["work_bytes"], 0)})
    return report.table(rows)


def rates(lines):
    """TB/s of mandatory traffic and TFLOP/s, and what reading W alone reaches."""
    rows = []
    for line in lines:
        tb_s, tflops = line["derived"]["tb_s"], line["derived"]["tflops"]
        rows.append({"V x D": shape(line), "B": line["B"], "reading W, TB/s": number(line["ceiling_tb_s"], 2), **{
            model.LABELS[name]: "%.2f / %.0f" % (tb_s[name], tflops[name])
            for name in ["ours", "matmul"] + model.stored_in(lines) if name in tb_s}})
    return report.table(rows)


def blocks(results):
    found = {"run": report.about(results)}
    for (V, _), lines in model.heads(results).items():
        found["speedup-%d" % V] = speedups(lines)
    lines = shown(results)
    return {**found, "shares": shares(lines), "model": against_model(lines), "rates": rates(lines)}


def text(results):
    """What a run prints."""
    notes = ["note on %s: %s" % (model.LABELS.get(name, name), why) for name, why in results["notes"].items()]
    eager = {name: why for line in results["lines"] for name, why in line["eager"].items()}
    notes += ["%s was timed without a graph, the host ahead where it can be: %s" % (model.STORED[name], why)
              for name, why in eager.items()]
    return "\n".join(["%s\n\n%s" % block for block in blocks(results).items()] + notes)


# --------------------------------------------------------------------------------------------------------- plots ----


def curve(lines, name, value):
    """(label, points) of a method, a point where there is a value."""
    points = [(line["B"], value(line)) for line in lines]
    return model.LABELS[name], [point for point in points if point[1] is not None]


def plain(lines):
    return [name for name in model.stored_in(lines) if name not in model.CUT]


def panel(lines, title, curves, **more):
    return {"title": "%s, %s" % (shape(lines[0]), title), "xlog": True, "xticks": [line["B"] for line in lines],
            "curves": [each for each in curves if each[1]], **more}


def speedup_panels(results):
    return [panel(lines, "a plain draw", [("ours", [(line["B"], 1.0) for line in lines])] + [
                curve(lines, name, lambda line: line["derived"]["speedup"].get(name)) for name in plain(lines)],
                  y="time over ours", bottom=0)
            for lines in model.heads(results).values()]


def other_panels(results):
    found = {"shares": [], "model": [], "rates": []}
    for (V, D), lines in model.heads(results).items():
        found["shares"].append(panel(lines, "sampling", [
            curve(lines, name, lambda line: None if name not in line["derived"]["sampling_share"] else
                  100 * line["derived"]["sampling_share"][name]) for name in ["ours"] + plain(lines)],
            y="share of the time, %", bottom=0, top=100))
        tb_s = max(line["ceiling_tb_s"] for line in lines)
        predicted = [(label, [(line["B"], model.predict(V, D, line["B"], method, tb_s, results["peak_tflops"]))
                              for line in lines]) for label, method in (("predicted, fused", "ours"),
                                                                        ("predicted, stored logits", "b1"))]
        measured = [curve(lines, name, lambda line: model.totals(line).get(name))
                    for name in ["ours", "matmul"] + plain(lines)]
        found["model"].append(panel(lines, "the cost model", predicted + measured, ylog=True,
                                    points=[label for label, _ in measured]))
        found["rates"].append(panel(lines, "mandatory traffic", [
            ("reading W once", [(line["B"], line["ceiling_tb_s"]) for line in lines])] + [
            curve(lines, name, lambda line: line["derived"]["tb_s"].get(name))
            for name in ["ours", "matmul"] + plain(lines)], y="TB/s", bottom=0))
    return [each for kind in found.values() for each in kind]


def plots(results, base):
    source = "%(device)s, commit %(commit)s, %(date)s" % results
    return [report.plot(base + "-speedup.svg", speedup_panels(results), source, columns=2),
            report.plot(base + ".svg", other_panels(results), source, columns=2)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/paper_report.py PAGE.json")
    name, run = os.path.splitext(sys.argv[1])[0], model.load(sys.argv[1])
    report.fill(name + ".md", blocks(run))
    plots(run, name)
