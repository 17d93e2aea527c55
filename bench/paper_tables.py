"""The tables of the paper as Markdown, from the JSON of paper.py: python bench/paper_tables.py FILE"""
import os
import sys

import paper_model as model

PLOTS = {
    "speedup": "Speedup over the baselines",
    "sampling": "Time spent on sampling, and its share",
    "model": "The cost model of section 4.7 against measured times",
    "roofline": "Roofline and bandwidth, the paper's figure 4",
}
NOTHING = "-"

METHOD = """\
`make paper`: medians of {reps} repetitions after {warm_ups} warm-ups, in microseconds; the L2 cache is overwritten
before each and all arms take turns. bf16, random data, temperature 1. *ours* goes from H and W to tokens in one call.
The baselines store bf16 logits [B, V] with cuBLAS and draw from them: *Algorithm 1* by softmax and `torch.multinomial`
under `torch.compile`, *B.1* by our own sampler over stored logits, *sort* by a full sort with top-k 50 and top-p 0.9
per row, *FI1* and *FI2* by FlashInfer (top-k/top-p, Gumbel-max). sort and FI1 cut and so answer another question, as in
the paper. Samplers read [B, V], so that is the orientation they follow; the table of all times has the other. The
compute ceiling is cuBLAS on 8,192 x 8,192 x 8,192: {peak_tflops:.0f} TFLOP/s.
"""
SHARE_NOTE = """\
Baselines: the sampler's time over matmul plus sampler, each timed alone. Ours: sampled minus greedy over sampled, since
nothing in one call can be timed alone. *by kernel* is the paper's definition, the time of kernels that only sample over
the time of all kernels of a call, from a profile: ours has no such kernel where it is 0.
"""
MODEL_NOTE = """\
Predicted is the slower of moving the mandatory bytes at this line's read ceiling and computing at the compute ceiling:
2(VD + BD) bytes fused, 2(VD + BD + 2BV) stored, which counts no launch and one read of the logits. I is FLOP per byte.
"""
RATE_NOTE = """\
Mandatory bytes of section 4.7 per time in TB/s, and TFLOP/s. Stored logits count as traffic where they are stored.
"""


def table(heading, rows):
    lines = [heading, ["---"] * len(heading)] + rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def number(value, form="%.1f"):
    return NOTHING if value is None else form % value


def percent(value):
    return NOTHING if value is None else "%.1f %%" % (100 * value)


def shape(head):
    return "V = {:,}, D = {:,}".format(*head)


def bold_peak(values, form):
    """Cells, the largest bold, as the paper marks it."""
    peak = max((value for value in values if value is not None), default=None)
    return [("**%s**" if value == peak else "%s") % number(value, form) if value is not None else NOTHING
            for value in values]


# ----------------------------------------------------------------------------------------------------- sections ----


def absences(absent):
    """Which baselines were not measured, and why: a sentence for each reason."""
    reasons = {}
    for name, why in absent.items():
        why = "FlashInfer was not installed" if "No module named 'flashinfer'" in why else why.rstrip(".")
        reasons.setdefault(why, []).append(model.SAMPLERS[name])
    return ["%s %s not measured: %s.\n" % (" and ".join(names), "were" if len(names) > 1 else "was", why)
            for why, names in reasons.items()]


def warning(results):
    return ["**Not evidence:** %s.\n" % results["note"]] * bool(results["note"])


def introduction(results):
    facts = "{device}, driver {driver}, CUDA {cuda}, torch {torch}; library {library}; commit {commit}, {date}"
    text = ["# The paper's protocol on %s\n" % results["device"], facts.format(**results) + ".\n"]
    text += warning(results)
    text.append(METHOD.format(**results))
    text += absences(results["absent"])
    text += ["Note on %s: %s.\n" % (model.LABELS.get(name, name), why) for name, why in results["notes"].items()]
    eager = {name: why for line in results["lines"] for name, why in line["eager"].items()}
    text += ["%s was timed without a graph, the host running ahead where it can (%s).\n" % (model.STORED[name], why)
             for name, why in eager.items()]
    return "\n".join(text)


def speedups(head, lines):
    names, printed = model.stored_in(lines), model.PAPER.get(head, {})
    columns = [bold_peak([line["derived"]["speedup"].get(name) for line in lines], "%.2f") for name in names]
    rows = []
    for i, line in enumerate(lines):
        total = model.totals(line)
        cells = [str(line["B"]), number(total["ours"])]
        for name, column in zip(names, columns):
            cells += [number(total.get(name)), column[i]]
        rows.append(cells + [" / ".join("%.2f" % value for value in printed.get(line["B"], ())) or NOTHING])
    heading = ["B", "ours"] + [cell for name in names for cell in (model.STORED[name], "speedup")]
    return table(heading + ["the paper's, over Multinomial / FI1 / FI2"], rows)


def losses(lines):
    """Where ours is not faster, in a sentence."""
    found = {}
    for line in lines:
        for name, speedup in line["derived"]["speedup"].items():
            if speedup <= 1:
                found.setdefault(name, []).append("%d (%.3f)" % (line["B"], speedup))
    if not found:
        return "Ours is faster than every baseline measured here at every B.\n"
    return "Ours is not faster than %s.\n" % ", nor than ".join(
        "%s at B = %s" % (model.STORED[name], ", ".join(where)) for name, where in found.items())


def shares(lines):
    names = ["ours"] + model.stored_in(lines)
    columns = []
    for name in names:
        kernels = [line.get("kernels", {}).get(name, {}).get("share") for line in lines]
        columns += [[line["derived"]["sampling_share"].get(name) for line in lines], kernels]
    rows = [[str(line["B"])] + [percent(column[i]) for column in columns] for i, line in enumerate(lines)]
    return table(["B"] + [cell for name in names for cell in (model.LABELS[name], "by kernel")], rows)


def kernel_counts(lines):
    """How many kernels a call is, in a sentence; empty where nothing was profiled."""
    counted = [line for line in lines if line.get("kernels")]
    if not counted:
        return ""
    line = counted[-1]
    words = ["%s %d" % (model.LABELS[name], kernels["count"]) for name, kernels in line["kernels"].items()]
    return "Kernels per call at B = %d: %s.\n" % (line["B"], ", ".join(words))


def against_model(lines):
    """Predicted and measured; the stored side is B.1, or the first baseline there is."""
    names = model.stored_in(lines)
    other = "b1" if "b1" in names else names[0] if names else None
    rows = []
    for line in lines:
        predicted, total = line["derived"]["model"], model.totals(line)
        measured = total.get(other)
        rows.append([
            str(line["B"]), number(predicted["intensity_fused"]), number(predicted["intensity_stored"]),
            number(predicted["fused_us"]), number(total["ours"]), number(total["ours"] / predicted["fused_us"], "%.3f"),
            number(predicted["stored_us"]), number(measured),
            number(measured and measured / predicted["stored_us"], "%.3f"), number(predicted["speedup"], "%.3f"),
            number(measured and measured / total["ours"], "%.3f")])
    return table(["B", "I fused", "I stored", "fused, predicted", "ours", "ratio", "stored, predicted",
                  model.STORED.get(other, "measured"), "ratio", "speedup, predicted", "measured"], rows)


def logits_saved(lines):
    rows = []
    for line in lines:
        V, B, predicted = line["V"], line["B"], line["derived"]["model"]
        total = model.totals(line)
        least = min((total[name] for name in model.stored_of(line)), default=None)
        counts = ["{:,}".format(count) for count in (2 * B * V, line["work_bytes"], predicted["bytes_saved"])]
        rows.append([str(B)] + counts + [
            "%.3f %%" % (100 * predicted["extra_traffic"]), number(predicted["bytes_saved_us"], "%.2f"),
            number(least and least - total["ours"])])
    return table(["B", "stored logits, bytes", "our work memory, bytes", "traffic saved 4BV, bytes",
                  "of reading W, 2B/D", "time of that traffic, us", "saved against the fastest baseline, us"], rows)


def rates(lines):
    names = ["ours", "matmul"] + model.stored_in(lines)
    rows = []
    for line in lines:
        derived = line["derived"]
        cells = [str(line["B"]), number(line["ceiling_tb_s"], "%.2f")]
        for name in names:
            tb_s, tflops = derived["tb_s"].get(name), derived["tflops"].get(name)
            cells.append(NOTHING if tb_s is None else "%.2f / %.0f" % (tb_s, tflops))
        rows.append(cells)
    return table(["B", "ceiling, TB/s"] + [model.LABELS[name] for name in names], rows)


def times(lines):
    names = model.stored_in(lines)
    rows = []
    for line in lines:
        t, clock = model.medians(line), line["clock"] or {}
        cells = [str(line["B"])] + [number(t[name]) for name in ("ceiling", "matmul", "matmul_tall", "ours", "greedy")]
        cells += [number(t.get(name)) for name in names]
        rows.append(cells + [number(clock.get("sm_mhz"), "%.0f"), number(clock.get("power_w"), "%.0f")])
    heading = ["B", "ceiling", "cuBLAS [B, V]", "cuBLAS [V, B]", "ours", "greedy"]
    heading += ["%s alone" % model.SAMPLERS[name] for name in names]
    return table(heading + ["SM, MHz", "power, W"], rows)


def body(results, title, note, section):
    """A section: its title, its note, and a table for every head."""
    text = ["## %s\n" % title] + [note] * bool(note)
    for head, lines in model.heads(results).items():
        text.append("%s\n\n%s" % (shape(head), section(lines)))
        text += [kernel_counts(lines)] * bool(section is shares and kernel_counts(lines))
    return text


def first_page(results, name):
    text = [introduction(results)]
    for head, lines in model.heads(results).items():
        title = {(151936, 4096): " (the paper's table 3)", (128256, 8192): " (the paper's table 6)"}.get(head, "")
        text.append("## Speedup, %s%s\n\nAbove 1 ours is faster; bold is the largest.\n" % (shape(head), title))
        text += [speedups(head, lines), losses(lines)]
    links = ["[%s](%s-%s.md)" % (PLOTS[plot], name, plot) for plot, _ in PAGES]
    return "\n".join(text + ["![%s](%s-speedup.svg)\n" % (PLOTS["speedup"], name), "More: %s.\n" % "; ".join(links)])


PAGES = (("sampling", (("Sampling share of kernel time (table 4)", SHARE_NOTE, shares),)),
         ("model", (("Cost model of section 4.7", MODEL_NOTE, against_model),
                    ("Logits that are not stored", "", logits_saved))),
         ("roofline", (("Bandwidth and rate (figure 4)", RATE_NOTE, rates), ("All times", "", times))))


def pages(results, name):
    """The pages, short enough to be read, by the ending of their names: the first, and one for each other plot. name is
    that of the first page and the plots, without their endings."""
    made = {"": first_page(results, name)}
    for plot, sections in PAGES:
        text = ["# %s\n" % PLOTS[plot], "%s, commit %s, %s; how it was measured: [%s.md](%s.md).\n" % (
            results["device"], results["commit"], results["date"], name, name)]
        text += warning(results) + ["![%s](%s-%s.svg)\n" % (PLOTS[plot], name, plot)]
        for section in sections:
            text += body(results, *section)
        made["-" + plot] = "\n".join(text)
    return made


def write(path):
    """Writes the pages beside the JSON file and returns the path of the first."""
    base = os.path.splitext(path)[0]
    for ending, text in pages(model.load(path), os.path.basename(base)).items():
        with open(base + ending + ".md", "w") as file:
            file.write(text)
    return base + ".md"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/paper_tables.py FILE")
    print("wrote " + write(sys.argv[1]))
