"""What the paper's tables are made of: the cost model of section 4.7 and what is derived from measured times.

Plain arithmetic on the JSON of paper.py, no torch: the tables, the plots and the tests share it. B rows, D hidden size,
V vocabulary, two bytes per element; times in microseconds.
"""
import json

# Samplers over logits that cuBLAS stored, and what a figure calls matmul and sampler together.
STORED = {
    "multinomial": "cuBLAS + PyTorch",
    "b1": "cuBLAS + our sampler",
    "sort": "cuBLAS + sort, top-k, top-p",
    "fi1": "cuBLAS + FlashInfer, top-k, top-p",
    "fi2": "cuBLAS + FlashInfer",
}
CUT = ("sort", "fi1")  # these cut: another question than a plain draw, so no plot has them
LABELS = dict(STORED, ours="ours", greedy="ours, greedy", matmul="cuBLAS alone, nothing drawn")

# Speedups of the authors' kernel on an H200 over Multinomial, FI1 and FI2, at some batch sizes of tables 3 and 6.
PAPER = {
    (151936, 4096): {1: (1.28, 1.35, 1.20), 16: (1.37, 1.45, 1.21), 64: (1.60, 1.47, 1.21), 128: (1.37, 1.12, 0.91),
                     256: (1.17, 0.98, 0.78)},
    (128256, 8192): {1: (1.22, 1.17, 1.09), 16: (1.24, 1.23, 1.11), 64: (1.39, 1.30, 1.17), 128: (0.99, 0.86, 0.76),
                     256: (0.76, 0.72, 0.64)},
}

# Dense bf16 TFLOP/s and TB/s of the vendor's data sheets.
SHEETS = {"NVIDIA H200": (989, 4.8), "NVIDIA H100 80GB HBM3": (989, 3.35)}


def chain(sampler):
    """The arm of matmul and sampler together."""
    return "matmul+" + sampler


def method_bytes(V, D, B, method):
    """Mandatory traffic of section 4.7: W and H once; a stored logit is written once and read once to be drawn from."""
    logits = {"ours": 0, "greedy": 0, "matmul": 1}.get(method, 2)
    return 2 * (V * D + B * D + logits * B * V)


def flops(V, D, B):
    return 2 * B * V * D


def intensity(V, D, B, method):
    """FLOP per byte of mandatory traffic: I_fused for "ours", I_mat for a sampler over stored logits."""
    return flops(V, D, B) / method_bytes(V, D, B, method)


def predict(V, D, B, method, tb_s, tflops):
    """Microseconds by the roofline: the slower of moving the bytes and computing."""
    return max(method_bytes(V, D, B, method) / tb_s, flops(V, D, B) / tflops) * 1e-6


def medians(line):
    return {name: time["median"] for name, time in line["times"].items()}


def stored_of(line):
    """The samplers this line has both alone and after the matmul."""
    return [name for name in STORED if name in line["times"] and chain(name) in line["times"]]


def totals(line):
    """{method: microseconds from H and W to tokens}; the matmul alone among them, which draws nothing."""
    t = medians(line)
    return dict({name: t[name] for name in ("ours", "greedy", "matmul")}, **{s: t[chain(s)] for s in stored_of(line)})


def derive(line, peak):
    """Speedups, sampling shares, bandwidth, rates and the model of one line. peak is the measured TFLOP/s."""
    V, D, B, t, total = line["V"], line["D"], line["B"], medians(line), totals(line)
    stored, tb_s = stored_of(line), 2 * V * D / t["ceiling"] * 1e-6
    share = {"ours": (t["ours"] - t["greedy"]) / t["ours"]}
    share.update((s, t[s] / (t["matmul"] + t[s])) for s in stored)
    fused_us, stored_us = (predict(V, D, B, method, tb_s, peak) for method in ("ours", "stored"))
    return {
        "speedup": {s: total[s] / t["ours"] for s in stored},
        "sampling_share": share,
        "tb_s": {method: method_bytes(V, D, B, method) / us * 1e-6 for method, us in total.items()},
        "tflops": {method: flops(V, D, B) / us * 1e-6 for method, us in total.items()},
        "model": {
            "intensity_fused": intensity(V, D, B, "ours"),
            "intensity_stored": intensity(V, D, B, "stored"),
            "extra_traffic": 2 * B / D,
            "bytes_saved": 4 * B * V,
            "bytes_saved_us": 4 * B * V / tb_s * 1e-6,
            "fused_us": fused_us,
            "stored_us": stored_us,
            "speedup": stored_us / fused_us,
        },
    }


def complete(results):
    """Adds what is derived to every line, in place."""
    for line in results["lines"]:
        line["derived"] = derive(line, results["peak_tflops"])
    return results


def load(path):
    """A run, with everything derived anew from what was measured."""
    with open(path) as file:
        return complete(json.load(file))


def heads(results):
    """{(V, D): its lines by B}, in the order of the run."""
    found = {}
    for line in results["lines"]:
        found.setdefault((line["V"], line["D"]), []).append(line)
    return {head: sorted(lines, key=lambda line: line["B"]) for head, lines in found.items()}


def stored_in(lines):
    """Samplers over stored logits that some line has, in the order of the tables."""
    return [name for name in STORED if any(name in stored_of(line) for line in lines)]
