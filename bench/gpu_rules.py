"""Times every rule of the CUDA backend over its own plain call, and beside cuBLAS + FlashInfer with values by row.

    rules      each call of gpu_rule_arms.py over plain draws, on language-like rows (gpu_language.py): two heads
               (--more: four), some batch sizes; cuBLAS + FlashInfer's samplers that cut, at T = 1, for which no
               temperature is charged: "FI ..."
    fallback   how many rows took a second pass over W at p = .95: kinds of rows and temperatures

How calls are timed: gpu_bench.py. Before that some rows of every call are compared with the CPU backend on the same
logits in float32: an arm that differs in more than near ties is not timed, and the run says so, as it does where the
backend refuses a call. What the bars are, and the page of a run: gpu_rule_tables.py (python bench/gpu_rule_tables.py
FILE). Fewer sizes of one head: --quick.
"""
import argparse
import sys
import time

import gpu_language
import gpu_rule_tables as tables
import gpu_tables
from gpu import START, line_of, say, shape
from gpu_bench import HEADS, Eager, add_run_options, begin_run
from gpu_rule_arms import CUTS, KINDS, Rows
from paper_baselines import Absent, check, flashinfer_sampling, flashinfer_seed, tried, why_eager

MORE_HEADS = ((262208, 2304), (151936, 2048))
SIZES = (1, 16, 37, 64, 128, 200, 256, 300)
QUICK_SIZES = (16, 64, 256)
RATE_ROWS, RATE_BATCH, RATE_DRAWS = 1024, 256, 4  # a bar of 1 in 500 takes many rows, all of them different
COUNTED = 8  # draws of each call whose second passes are counted
CHECKED = 2 * len(KINDS), 6  # first and last rows of a call that are compared
DESCRIBED = 32


# ----------------------------------------------------------------------------------------------------- checking ----


def disagreement(got, want):
    """Why results [rows, ...] are not those of the CPU backend, or "". Sums of another order move the winner of a near
    tie, the last bits of logprobs, and ranks where logits lie that close: far down."""
    import numpy as np

    other = got["tokens"] != want["tokens"]
    if 20 * int(other.sum()) > other.size:
        return "%d of %d tokens are not the CPU backend's" % (other.sum(), other.size)
    for name, far in (("logprob", lambda a, b: np.abs(a - b) > 2e-3),
                      ("rank", lambda a, b: np.abs(a.astype(np.int64) - b) > 1 + b // 500),
                      ("top_token", lambda a, b: a != b)):
        if name in want:
            wrong = far(got[name], want[name])
            wrong &= ~other if wrong.shape == other.shape else True
            if 20 * int(wrong.sum()) > wrong.size or not np.isfinite(got[name]).all():
                return "%d of %d values of %s are not the CPU backend's" % (wrong.sum(), wrong.size, name)
    return ""


def checked(bench, cpu, call, result):
    """(why the result of a call is wrong or "", how many tokens of how many differ)."""
    import numpy as np

    B = len(call.H)
    lost = int((result.status & int(bench.fs.Row.NO_TOKEN)).ne(0).sum())
    if lost:
        return "%d of %d rows have no token" % (lost, B), (lost, B)
    rows = np.unique(np.concatenate([np.arange(min(B, CHECKED[0])), np.arange(max(0, B - CHECKED[1]), B)]))
    got = {name: array.cpu().numpy()[rows] for name, array in result.arrays().items()}
    want = call.on_host(bench, cpu, rows).arrays()
    differ = got["tokens"] != want["tokens"]
    return disagreement(got, want), (int(differ.sum()), differ.size)


def second_passes(bench, run, draws):
    """How many rows of how many took one, over some draws."""
    found, rows = 0, 0
    for _ in range(draws):
        bench.position.add_(1)
        bits = run().status & int(bench.fs.Row.FALLBACK)
        found, rows = found + bits.ne(0).sum(), rows + bits.numel()
    return int(found), rows


# ---------------------------------------------------------------------------------------------------- measuring ----


def make_peers(bench, H, W, absent):
    """{arm: function that stores logits by cuBLAS and draws from them, cut}; what cannot run goes to absent."""
    torch, B = bench.torch, len(H)
    try:
        sampling = flashinfer_sampling()
    except Absent as why:
        absent["FlashInfer"] = str(why)
        return {}
    noise = flashinfer_seed(bench)
    values = {name: {rule: torch.full((B,), value, dtype=torch.int32 if rule == "top_k" else torch.float32,
                                      device=bench.device) for rule, value in rules.items()}
              for name, rules in CUTS.items()}

    def sampler(name, rules):
        function = getattr(sampling, "_".join(rules) + "_sampling_from_" + ("logits" if len(rules) > 1 else "probs"))
        if len(rules) > 1:
            return lambda logits: function(logits.float(), *rules.values(), **noise)
        softmax = getattr(sampling, "softmax", None) or (lambda logits: logits.softmax(dim=-1))
        return lambda logits: function(softmax(logits.float()), *rules.values(), **noise)

    found = {}
    for name, rules in values.items():
        for dtype, form in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
            if len(rules) == 1 and dtype != torch.float32:
                continue  # a cast more: slower at every size
            arm, logits = "FI %s (%s)" % (name, form), torch.zeros(B, W.shape[0], dtype=dtype, device=bench.device)
            options = {"out_dtype": dtype} if dtype == torch.float32 else {}

            def matmul(logits=logits, options=options):
                torch.mm(H, W.T, out=logits, **options)
            try:
                function = sampler(name, rules)
                draw = tried(lambda function=function, logits=logits: function(logits))[0]
                tried(matmul)
                check(bench, arm, draw, logits)
            except (Absent, AttributeError, SystemExit) as why:
                absent[arm] = str(why)
                continue
            found[arm] = lambda matmul=matmul, draw=draw: (matmul(), draw())[1]
    return {arm: Eager(run) if why_eager(bench, run) else run for arm, run in found.items()}


def measure_size(bench, cpu, rows, W, reader, B, effort, absent):
    head, arms, facts = bench.fs.Head(W), {}, {"fallback": {}, "work": {}, "differ": {}}
    where = "{:,} x {:,}, B = {}".format(*W.shape, B)
    for name, call in rows.calls(B).items():
        try:
            run = call.on(bench, head)
            result, work = run(), bench.context.counters.work_bytes
        except bench.fs.Error as error:
            if error.name != "unsupported":
                raise
            absent[name] = "refused: " + error.text
            continue
        why, facts["differ"][name] = checked(bench, cpu, call, result)
        if why:
            absent["%s at %s" % (name, where)] = why
            say("%s at %s: %s" % (name, where, why))
            continue
        arms[name] = run
        facts["work"][name] = work
        facts["fallback"][name] = second_passes(bench, run, COUNTED)
    if "plain" not in arms:
        sys.exit("bench: %s: plain draws are not right: nothing was timed" % where)
    arms.update(make_peers(bench, rows.H[:B], W, absent))
    eager = [name for name, run in arms.items() if isinstance(run, Eager)]
    return line_of(bench, W, reader, B, arms, effort, eager=eager, **facts)


def measure_rates(bench, rows, W, absent):
    """A line for every kind of rows and temperature: second passes at p = .95."""
    head = bench.fs.Head(W)
    for kind in tables.RATE_KINDS:
        for T in tables.RATE_TEMPERATURES:
            try:
                found = [second_passes(bench, rows.wide(kind, RATE_BATCH, T, first).on(bench, head), RATE_DRAWS)
                         for first in range(0, RATE_ROWS, RATE_BATCH)]
            except bench.fs.Error as error:
                if error.name != "unsupported":
                    raise
                absent["second passes"] = "refused: " + error.text
                return
            second, of = map(sum, zip(*found))
            yield {"V": W.shape[0], "D": W.shape[1], "rows": kind, "T": T, "second": second, "of": of}


def measure_head(bench, cpu, V, D, arguments, results):
    """Adds the lines of one head to results; saves after each, since a run may be cut short."""
    W = bench.weights(V, D)
    rows, reader = Rows(bench, W, max(*arguments.rows, RATE_ROWS)), bench.best_reader(W)
    results["described"]["%dx%d" % (V, D)] = gpu_language.describe(rows.logits[:DESCRIBED].cpu().numpy())
    effort = {"reps": arguments.reps, "warm_ups": arguments.warm_ups}
    for B in arguments.rows:
        line = measure_size(bench, cpu, rows, W, reader, B, effort, results["absent"])
        results["tables"]["rules"].append(line)
        results["seconds"] = round(time.monotonic() - START)
        gpu_tables.save(arguments.json, results)
        bench.renew_context()
        say("%d x %d, B = %d: %d arms" % (V, D, B, len(line["times"])))
    results["tables"]["fallback"] += measure_rates(bench, rows, W, results["absent"])


def run(bench, arguments, facts):
    """Measures every head. What there is is printed at the end, whatever the end is."""
    results = dict(facts, seconds=0, absent={}, described={}, tables={"rules": [], "fallback": []})
    cpu = bench.fs.Context("cpu")
    try:
        for V, D in arguments.heads:
            say("%d x %d, %d sizes" % (V, D, len(arguments.rows)))
            measure_head(bench, cpu, V, D, arguments, results)
            bench.renew_context()
            bench.torch.cuda.empty_cache()
    finally:
        results = tables.judged(results)
        gpu_tables.save(arguments.json, results)
        print(tables.text(results), flush=True)


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one head, B = %s" % ", ".join(map(str, QUICK_SIZES)))
    parser.add_argument("--more", action="store_true", help="two more heads, of short dot products")
    parser.add_argument("--heads", type=shape, nargs="+", metavar="VxD", help="these heads instead")
    parser.add_argument("--rows", type=int, nargs="+", metavar="B", help="these batch sizes instead")
    parser.add_argument("--reps", type=int, help="timed repetitions of each arm (default: 60, 30 with --quick)")
    add_run_options(parser)
    arguments = parser.parse_args(words)
    arguments.reps, arguments.warm_ups = arguments.reps or (30 if arguments.quick else 60), 8
    arguments.heads = arguments.heads or (HEADS[:1] if arguments.quick else HEADS + MORE_HEADS * arguments.more)
    arguments.rows = arguments.rows or (QUICK_SIZES if arguments.quick else SIZES)
    return arguments


def main():
    arguments = parse()
    bench, facts = begin_run(arguments)
    bench.verify()
    run(bench, arguments, facts)


if __name__ == "__main__":
    main()
