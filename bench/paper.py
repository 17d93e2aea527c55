"""The paper's protocol: B = 1, 2, 4 .. 256 at the LM heads of its tables 3 and 6, bf16, temperature 1.

    ours       logits and draw in one pass; greedy takes the argmax instead
    baselines  cuBLAS storing the logits, then a sampler (paper_baselines.py), which is also timed alone
    ceiling    W read once; cuBLAS alone in both orientations

Medians of graph replays after warm-ups, L2 overwritten before each, all arms in turn (gpu_bench.py). Tokens are checked
first. Writes a JSON file, which paper_report.py shows.
"""
import argparse
import os
import sys
import time

import paper_model as model
import paper_report
import report
from gpu_bench import HEADS, ROOT, Eager, about, invalid_reason, open_bench
from paper_baselines import first_words, make_all, why_eager

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PEAK = 8192  # the square matmul whose rate is the compute ceiling
PROFILE_SECONDS = 25
START = time.monotonic()


def say(text):
    print("%4.0f s  %s" % (time.monotonic() - START, text), flush=True)


# ---------------------------------------------------------------------------------------------------- measuring ----


def measure_peak(bench):
    """TFLOP/s of cuBLAS on a large bfloat16 matmul of random numbers."""
    A, B, C = (bench.hidden(PEAK, PEAK) for _ in range(3))
    median = bench.time_in_turn({"peak": lambda: bench.torch.mm(A, B, out=C)}, reps=20, warm_ups=5)["peak"][1]
    return 2 * PEAK**3 / median * 1e-6


class Point:
    """One head and batch size: its arms, and what is known about them before they are timed."""

    def __init__(self, bench, W, reader, B, eager=()):
        torch, (V, D) = bench.torch, W.shape
        H, head = bench.hidden(B, D), bench.fs.Head(W)
        self.logits = torch.empty(B, V, dtype=torch.bfloat16, device=bench.device)
        tall = torch.empty(V, B, dtype=torch.bfloat16, device=bench.device)
        self.shape, self.reader = (V, D, B), reader
        self.ours, self.greedy = bench.draw(head, H, 1.0), bench.draw(head, H, 0.0)
        self.runs, self.notes, self.absent = make_all(bench, self.logits)
        self.matmul = lambda: torch.mm(H, W.T, out=self.logits)
        self.work_bytes, self.same_as_b1 = self.compare(bench)
        self.arms = {"ceiling": lambda: bench.read(reader, W), "matmul": self.matmul,
                     "matmul_tall": lambda: torch.mm(W, H.T, out=tall), "ours": self.ours, "greedy": self.greedy}
        self.eager = {}
        for name, run in self.runs.items():
            reason = "asked for" if name in eager else why_eager(bench, run)
            if reason:
                self.eager[name] = reason
            wrap = Eager if reason else lambda run: run
            self.arms[name], self.arms[model.chain(name)] = wrap(run), wrap(self.chain(name))

    def chain(self, name):
        def both():
            self.matmul()
            return self.runs[name]()
        return both

    def compare(self, bench):
        """(work memory of our call, rows whose token is that of the matmul and B.1, with which it shares its noise)."""
        result, B, work = self.ours(), self.shape[2], bench.context.counters.work_bytes
        if "b1" not in self.runs:
            return work, None
        same = int((self.chain("b1")() == result.tokens).sum())
        # A logit rounded to bfloat16 moves some winners, one in twenty or so.
        if B >= 8 and 2 * same < B:
            sys.exit("bench: only %d of %d tokens are those of cuBLAS and B.1: nothing was timed" % (same, B))
        return work, same

    def time(self, bench, reps):
        """The line of the results: what was measured here."""
        V, D, B = self.shape
        graphs = bench.prepare(self.arms)
        times = bench.time_graphs(graphs, reps)
        return {
            "V": V, "D": D, "B": B, "reader": self.reader,
            "ceiling_tb_s": 2 * V * D / times["ceiling"][1] * 1e-6,
            "clock": bench.clock(graphs),
            "work_bytes": self.work_bytes, "same_as_b1": self.same_as_b1, "eager": self.eager,
            "times": {name: {"min": least, "median": median} for name, (least, median) in times.items()},
        }

    # ------------------------------------------------------------------------------------------- by kernel ----

    def kernels(self, bench):
        """{method: number of kernels of a call, their microseconds, the share of those that only sample}.

        That share is the paper's definition. Kernels only sample if the matmul alone does not launch them; of ours, all
        but the longest.
        """
        matmul, ours = profile(bench, self.matmul), profile(bench, self.ours)
        found = {"ours": summary(ours, {max(ours, key=lambda kernel: kernel[1])[0]})}
        for name in self.runs:
            found[name] = summary(profile(bench, self.chain(name)), {kernel for kernel, _ in matmul})
        return found


def profile(bench, run):
    """[(kernel, microseconds)] of one call."""
    torch = bench.torch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    events = [event for event in profiler.events()
              if event.device_type == device and not getattr(event, "is_user_annotation", False)]
    if not events:
        raise RuntimeError("the profiler saw no kernel")
    return [(event.name, event.time_range.elapsed_us()) for event in events]


def summary(kernels, computing):
    total = sum(us for _, us in kernels)
    return {"count": len(kernels), "us": total,
            "share": sum(us for name, us in kernels if name not in computing) / total}


# ---------------------------------------------------------------------------------------------------- the run ----


def describe(line):
    """A line of progress."""
    t, clock = model.medians(line), line["clock"]
    words = ["%d x %d  B %3d  %.2f TB/s  %s  ours %.1f  cuBLAS %.1f" % (
        line["V"], line["D"], line["B"], line["ceiling_tb_s"],
        "%.0f MHz" % clock["sm_mhz"] if clock else "clock unknown", t["ours"], t["matmul"])]
    for name in model.stored_of(line):
        us = t[model.chain(name)]
        words.append("%s %.1f%s (%.2fx)" % (name, us, "*" if name in line["eager"] else "", us / t["ours"]))
    return "  ".join(words)


def save(results, path):
    """After every line: a run that is cut short leaves what it has measured."""
    note = invalid_reason(results["lines"])
    results.update(evidence=not note, note=note, seconds=time.monotonic() - START)
    report.save(path, results)


def run(bench, arguments):
    """Measures everything; the kernels last, since a profiler may slow what comes after it."""
    results = dict(about(bench, arguments.reps), peak_tflops=measure_peak(bench), evidence=False, note="", seconds=0.0,
                   notes={}, absent={}, lines=[])
    results["commit"] = arguments.commit or results["commit"]
    say("cuBLAS reaches %.0f TFLOP/s; * = timed without a graph" % results["peak_tflops"])
    points = []
    for V, D in HEADS:
        W = bench.weights(V, D)
        reader = bench.best_reader(W)
        for B in arguments.rows:
            points.append(Point(bench, W, reader, B, arguments.eager))
            results["notes"].update(points[-1].notes)
            results["absent"].update(points[-1].absent)
            results["lines"].append(points[-1].time(bench, arguments.reps))
            say(describe(results["lines"][-1]))
            save(results, arguments.json)
    profile_all(bench, points, results)
    save(results, arguments.json)
    return results


def profile_all(bench, points, results):
    """Adds the kernels of every line; what fails or takes too long costs cells of one table and is noted."""
    limit = time.monotonic() + PROFILE_SECONDS
    try:
        for point, line in zip(points, results["lines"]):
            if time.monotonic() > limit:
                raise TimeoutError("not all were profiled in %d s" % PROFILE_SECONDS)
            line["kernels"] = point.kernels(bench)
        say("kernels profiled")
    except Exception as error:
        results["notes"]["kernels"] = first_words(error)
        say("kernels: %s" % first_words(error))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, metavar="B", help="batch sizes")
    parser.add_argument("--reps", type=int, default=100, help="timed repetitions of each arm (default: %(default)s)")
    parser.add_argument("--json", default=os.path.join(ROOT, "build", "paper", "paper.json"), metavar="FILE",
                        help="where the numbers go (default: build/paper/paper.json)")
    parser.add_argument("--eager", nargs="+", default=(), choices=tuple(model.STORED), metavar="NAME",
                        help="baselines to time without a graph: " + ", ".join(model.STORED))
    parser.add_argument("--commit", metavar="TEXT", help="what is measured, where there is no git to tell")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cuda"), metavar="FOLDER",
                        help="where read_ceiling.cu is compiled to (default: build/cuda)")
    return parser.parse_args()


def main():
    arguments = parse()
    bench = open_bench(arguments.build)
    bench.verify()
    results = run(bench, arguments)
    for name, why in results["absent"].items():
        print("absent: %s: %s" % (model.STORED[name], why))
    if results["note"]:
        print("note: " + results["note"])
    print("wrote %s\n%s" % (arguments.json, paper_report.text(model.complete(results))))


if __name__ == "__main__":
    main()
