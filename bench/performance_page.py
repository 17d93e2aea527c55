"""Writes the plots and generated blocks of docs/results/performance.md and of README.md from what
bench/performance.py and bench/tpot.py have measured.

    python bench/performance_page.py
"""
import argparse
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGE, README = RESULTS / "performance.md", ROOT / "README.md"
NAMES = {(151936, 4096): "Qwen3-8B", (262208, 1152): "Gemma-3-1B", (128256, 4096): "Llama-3-8B",
         (129280, 7168): "DeepSeek-V3", (151936, 2048): "Qwen3-1.7B", (151936, 1024): "Qwen3-0.6B",
         (50304, 768): "GPT-2, padded", (50257, 768): "GPT-2", (32000, 4096): "Llama-2-7B"}
RULES = ("top-k 50", "top-k 50, top-p .95", "top-p .9", "min-p .05", "logprob, top-20", "penalties, edits", "mask",
         "mixed")
CUT = "top-k 50, top-p .95"
FLASHINFER = ("+flashinfer bf16", "+flashinfer f32", "+flashinfer probs")
MODEL_RULES = (("t1", "T = 1"), ("kp", "top-k 50, top-p .95"), ("logprobs5", "5 logprobs"))
SHOWN = (1, 16, 64, 256)
NOISE = 1.015  # times of two runs that differ by less are equal
WIDE = (6.4, 3.2)  # inches, of a plot with one panel


# -------------------------------------------------------------------------------------------------- what was found ----


def best(line, *names):
    """The fastest of some arms of a line; None where none was timed."""
    return min((line["times"][name] for name in names if name in line["times"]), default=None)


def pair(line):
    """cuBLAS and the fastest of FlashInfer's samplers for plain draws."""
    return best(line, *FLASHINFER)


def pair_cut(line, rule):
    """cuBLAS and FlashInfer's sampler for a cut, the best that it has."""
    return best(line, "FI %s (f32)" % rule, "FI %s (bf16)" % rule, "FI cake " + rule)


def ours(line):
    return best(line, "ours", "plain")


def by_size(lines):
    return {line["B"]: line for line in lines}


def name_of(line):
    shape = "{V:,} x {D:,}".format(**line)
    name = NAMES.get((line["V"], line["D"]))
    return "%s (%s)" % (shape, name) if name else shape


def models(vllm):
    """The cells of Qwen3-8B inside vLLM on language-like rows, by (rules, B)."""
    return {(cell["rules"], cell["B"]): cell for cell in vllm["cells"]
            if cell["model"] == "qwen3-8b" and cell["rows"] == "language"}


# --------------------------------------------------------------------------------------------------------- blocks ----


def row_of(label, values, fastest=None):
    """A row of the table of rivals; the fastest is bold, and what is within NOISE of it."""
    return {"": label, **{"B = %d" % B: report.bold(report.number(value, 0), fastest and value <= NOISE * fastest[B])
                          for B, value in values.items()}}


def rivals(found, vllm):
    """The README's table: the whole call from hidden states to tokens, microseconds."""
    lines = {B: line for B, line in by_size(found["rules"]).items() if B in SHOWN}
    flashinfer = "cuBLAS + FlashInfer %s" % found["flashinfer"]
    title = "LM head and one token a row, {:,} x {:,} bf16, one H200, µs".format(*found["head"])

    def over(value):
        return {B: value(line) for B, line in lines.items()}

    plain = (("PyTorch, compiled: matmul, softmax, multinomial", over(lambda line: best(line, "torch.compile"))),
             (flashinfer, over(pair)), ("cuBLAS + our own sampler", over(lambda line: best(line, "+b1"))),
             ("**FlashSampling**", over(ours)))
    cut = ((flashinfer + ", top-k 50 and top-p .95", over(lambda line: pair_cut(line, CUT))),
           ("**FlashSampling**, top-k 50 and top-p .95", over(lambda line: line["times"][CUT])))
    rows = [row_of("reading the weights once, nothing else", over(lambda line: line["times"]["ceiling"])),
            row_of("cuBLAS, nothing drawn", over(lambda line: best(line, "cublas")))]
    for ways in (plain, cut):
        fastest = {B: min(values[B] for _, values in ways) for B in lines}
        rows += [row_of(label, values, fastest) for label, values in ways]
    return report.table(rows).replace("|  |", "| %s |" % title, 1)


def interval(cell):
    """Half of the 95 % interval of saved_share."""
    return 100 * cell["saved_us"][1] / cell["token_us"]["stock"]


def saved_share(cell):
    """The share of vLLM's time per token that ours saves, in percent: the mean over pairs of runs."""
    return 100 * cell["saved_us"][0] / cell["token_us"]["stock"]


def share(cells, rules):
    """The least and the largest share of a token's time that is saved, in percent, over batch sizes."""
    saved = [saved_share(cell) for (other, _), cell in cells.items() if other == rules]
    return "%.1f to %.1f %%" % (min(saved), max(saved))


def gains(vllm):
    cells = models(vllm)
    device = [" / ".join(report.number(cells["t1", B]["device_us"][arm], 0) for B in SHOWN) for arm in ("ours", "stock")]
    return wrapped(
        "**In a whole model** the head is a small part of a step. Qwen3-8B's shape in vLLM 0.26 takes %s less time per "
        "token on plain draws, %s less with top-k and top-p, and %s less with logprobs. The 95 %% intervals are up to "
        "%.1f points wide to each side. These are fixed batches of 1 to 256 rows with random weights and short prompts, by version "
        "%s of this library; longer contexts make the share smaller. With requests at random times the gain was within "
        "the noise. In vLLM head and sampler take %s µs (B = 1, 16, 64, 256); vLLM's own take %s."
        % (share(cells, "t1"), share(cells, "kp"), share(cells, "logprobs5"),
           max(interval(cell) for (rules, _), cell in cells.items() if rules in dict(MODEL_RULES)),
           vllm["about"]["library"], *device))


def cores(cpu):
    lines = by_size(cpu["lines"])
    return wrapped(
        "**On a CPU**, %d cores of Emerald Rapids, bf16, %s: %.1f ms at 1 row and %.1f at 64. PyTorch %s (eager) takes "
        "%.1f and %.1f ms for its matmul alone, and %.1f and %.0f with softmax and multinomial."
        % (cpu["threads"], "{:,} x {:,}".format(cpu["V"], cpu["D"]), *(
            lines[B]["ours"][1] for B in (1, 64)), cpu["torch"].split("+")[0],
           *(lines[B][name][1] for name in ("matmul", "multinomial") for B in (1, 64))))


def wrapped(text, width=120):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines, line = lines + [line], word
        else:
            line = (line + " " + word).strip()
    return "\n".join(lines + [line]) + "\n"


def rules_table(found):
    lines = by_size(found["rules"])
    sizes = [B for B in lines if B in (1, 8, 16, 32, 33, 64, 128, 256, 512)]
    rows = [row_of("plain, µs", {B: lines[B]["times"]["plain"] for B in sizes})]
    for rule in RULES:
        rows.append({"": rule, **{"B = %d" % B: "%.2f" % (lines[B]["times"][rule] / lines[B]["times"]["plain"])
                                  for B in sizes if rule in lines[B]["times"]}})
    return report.table(rows)


def rules_rivals(found):
    lines = by_size(found["rules"])
    sizes = [B for B in lines if B in (1, 8, 16, 32, 33, 64, 128, 256, 512)]
    rows = []
    for rule in RULES[:4]:
        rows.append({"": rule, **{"B = %d" % B: report.bold("%.2f" % ratio, ratio < 1) for B in sizes
                                  for ratio in [(pair_cut(lines[B], rule) or float("nan")) / lines[B]["times"][rule]]}})
    return report.table(rows)


def heads_table(found):
    rows = {}
    for line in found["heads"]:
        if pair(line):
            ratio = pair(line) / ours(line)
            rows.setdefault(name_of(line), {})["B = %d" % line["B"]] = report.bold("%.2f" % ratio, ratio < 1)
    return report.table([{"V x D": name, **cells} for name, cells in rows.items()])


def losses(found, vllm):
    """The points at which another way is faster, worst first."""
    lines = sorted(((pair(line) / ours(line), line) for line in found["heads"] if pair(line)), key=lambda one: one[0])
    slower = ["%s at %d rows (%.2f)" % (name_of(line), line["B"], ratio) for ratio, line in lines if ratio < 0.995]
    stored = sorted(((best(line, "+b1") / ours(line), line) for line in found["heads"] + found["rules"]
                     if best(line, "+b1")), key=lambda one: one[0])
    own = ["%s at %d rows (%.2f)" % (name_of(line), line["B"], ratio) for ratio, line in stored if ratio < 0.995]
    alone = sorted((line["times"]["cublas"] / ours(line), line["B"]) for line in found["rules"])
    behind = [B for ratio, B in alone if ratio < 0.995]
    cuts = sorted((pair_cut(line, rule) / line["times"][rule], rule, line["B"])
                  for line in found["rules"] for rule in RULES[:4] if pair_cut(line, rule))
    under = ["%s at %d rows (%.2f)" % (rule, B, ratio) for ratio, rule, B in cuts if ratio < 0.995]
    fewer = max(100 * (1 - one["on"] / one["off"]) for one in vllm["kv"])
    text = ["- cuBLAS + FlashInfer is faster in %d of %d cells of the table of heads. The worst: %s."
            % (len(slower), len(lines), "; ".join(slower[:4]) or "none")]
    text.append("- cuBLAS with our own sampler over the logits that it stored is faster in %d of %d: %s."
                % (len(own), len(stored), "; ".join(own[:6]) or "none"))
    text.append("- A matmul that draws nothing is faster than our whole call at %s rows of the large head; the worst ratio "
                "is %.2f at %d rows." % (", ".join(map(str, sorted(behind))) or "no", alone[0][0], alone[0][1]))
    text.append("- With cuts, cuBLAS + FlashInfer is faster at: %s." % ("; ".join(under) or "no size here"))
    text.append("- Inside vLLM the plug-in leaves up to %.1f %% fewer tokens of KV cache, because it keeps work memory." % fewer)
    return "".join(wrapped(one).replace("\n", "\n  ").rstrip() + "\n" for one in text)


# ---------------------------------------------------------------------------------------------------------- plots ----


def curve(label, lines, value):
    return label, [(line["B"], value(line)) for line in lines if value(line)]


def plots(found, vllm, cpu, folder):
    lines, source = found["rules"], "%s, %s, %s" % (found["device"], found["commit"], found["date"][:10])
    ticks = [1, 4, 16, 64, 256, 512]
    one = {"xlog": True, "xticks": ticks, "bottom": 0}
    head = "{:,} x {:,}".format(*found["head"])
    report.plot(str(folder / "performance-head.svg"), [
        dict(one, title="LM head and one token a row, %s" % head, curves=[
            curve("PyTorch, compiled", lines, lambda line: best(line, "torch.compile")),
            curve("cuBLAS + FlashInfer", lines, pair),
            curve("cuBLAS + our own sampler", lines, lambda line: best(line, "+b1")), curve("FlashSampling", lines, ours),
            curve("reading W once", lines, lambda line: line["times"]["ceiling"])]),
        dict(one, title="with top-k 50 and top-p .95 in every row", curves=[
            curve("cuBLAS + FlashInfer", lines, lambda line: pair_cut(line, CUT)),
            curve("FlashSampling", lines, lambda line: line["times"][CUT]),
            curve("reading W once", lines, lambda line: line["times"]["ceiling"])])], source)
    report.plot(str(folder / "performance-rules.svg"), [
        dict(one, title="every rule over a plain draw, %s" % head, y="time over plain", bottom=0.9, curves=[
            curve(rule, lines, lambda line, rule=rule: line["times"].get(rule, 0) / line["times"]["plain"])
            for rule in (CUT, "top-p .9", "logprob, top-20", "penalties, edits", "mask")])], source, size=WIDE)
    shapes = dict.fromkeys((line["V"], line["D"]) for line in found["heads"])
    report.plot(str(folder / "performance-heads.svg"), [
        dict(one, title=name_of({"V": V, "D": D}), curves=[
            curve(label, [line for line in found["heads"] if (line["V"], line["D"]) == (V, D)], value)
            for label, value in (("cuBLAS + FlashInfer", pair), ("FlashSampling", ours),
                                 ("reading W once", lambda line: line["times"]["ceiling"]))])
        for V, D in shapes], source, columns=5, size=(2.8, 2.4))
    cells = models(vllm)
    report.plot(str(folder / "performance-model.svg"), [
        {"title": "Qwen3-8B in vLLM 0.26: time per token that is saved", "xlog": True, "xticks": ticks, "bottom": 0,
         "y": "% of the time per token", "curves": [
             (label, [(B, saved_share(cell)) for (rules, B), cell in sorted(cells.items()) if rules == name]) for name, label in MODEL_RULES]}],
        "%s, random weights, %s" % (vllm["about"]["device"], vllm["cells"][0]["date"]), size=WIDE)
    report.plot(str(folder / "performance-cpu.svg"), [
        {"title": "{threads} cores, {V:,} x {D:,}".format(**cpu), "xlog": True, "xticks": ticks, "ylog": True,
         "y": "time, ms", "curves": [(label, [(line["B"], line[key][1]) for line in cpu["lines"]]) for label, key in (
             ("PyTorch", "multinomial"), ("PyTorch's matmul alone", "matmul"),
             ("FlashSampling", "ours"))]}], "%s, %s, %s" % (cpu["cpu"], cpu["commit"], cpu["date"]), size=WIDE)


def blocks(found, vllm, cpu):
    return {README: {"rivals": rivals(found, vllm), "gains": gains(vllm), "cores": cores(cpu)},
            PAGE: {"rivals": rivals(found, vllm), "gains": gains(vllm), "cores": cores(cpu), "heads": heads_table(found),
                   "rules": rules_table(found), "cuts": rules_rivals(found), "losses": losses(found, vllm)}}


def load():
    """What was measured: on the GPU, inside vLLM, on the CPU."""
    parts = report.load(str(RESULTS / "performance.json"))
    return parts["gpu"], report.load(str(RESULTS / "vllm-h200.json")), parts["cpu"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for path, texts in blocks(*load()).items():
        report.fill(str(path), texts)
    plots(*load(), RESULTS)


if __name__ == "__main__":
    main()
