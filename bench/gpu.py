"""Times the CUDA backend at every batch size, head and kind of row, and says first where it is worst.

    sizes    two heads over B: reading W once, cuBLAS alone, cuBLAS and a sampler over the logits it stored, ours
    heads    the same of other heads, at some sizes; with --all at every size
    small    the same of small heads: draft models, shards of many ranks
    rows     ours, plain and greedy, on rows that are not random, over its time on random rows (gpu_rows.py)
    groups   draws by groups of 4,096 tokens (the paper's B.2 and B.3), log Z and greedy beside plain draws

    ceiling  W read with 16-byte loads or bulk copies, the best of several kernels (read_ceiling.cu)
    cublas   torch.mm to bfloat16 logits, the better of [B, V] and [V, B]; nothing is drawn
    +...     torch.mm to [B, V] and a draw: FlashInfer's Gumbel sampler, on bfloat16 or float32 logits, whichever is
             faster, and our own over stored logits (the paper's B.1)
    ours     logits and draw, temperature 1

With --stored: draws from stored float32 logits (the paper's B.1), beside the read ceiling of the same bytes.

Every repetition of every arm is a graph replay after the L2 cache was overwritten, the arms in turn, so that a slow
moment of the machine meets them all. Times are medians in microseconds. Tokens are checked first. What the bars are:
gpu_bars.py. The page and the plot of a run: python bench/gpu_tables.py FILE.

FLASHSAMPLING_CUDA_TILE=portable in the environment times that kernel instead of the device's own.
"""
import argparse
import sys
import time

import gpu_bars
import gpu_rows
import gpu_tables
import report
from gpu_bench import HEADS, WARM_UPS, Eager, add_run_options, begin_run
from paper_baselines import Absent, check, make_b1, make_fi2, tried, why_eager

MORE_HEADS = ((151936, 2048), (151936, 1024), (50257, 768), (262208, 2304), (201088, 2880), (256000, 3584),
              (202048, 5120), (262208, 5376), (129280, 7168))
SMALL_HEADS = ((1024, 512), (1024, 1024), (4096, 1024), (8192, 1024), (16384, 2048), (32000, 768))
SIZES = (1, 2, 3, 5, 8, 12, 16, 17, 24, 31, 32, 33, 40, 48, 56, 63, 64, 65, 72, 80, 96, 100, 112, 127, 128, 129, 136,
         144, 160, 161, 176, 192, 193, 200, 208, 224, 240, 255, 256, 257, 272, 300, 320, 384, 400, 448, 511, 512, 513,
         640, 768, 1024)
SOME_SIZES = (1, 16, 17, 48, 64, 128, 129, 200, 256, 257, 300, 512, 513)
SMALL_SIZES, ROW_SIZES, GROUP_SIZES = (1, 16, 64, 256), (64, 256), (1, 16, 64, 128, 256, 512)
GROUP = 4096  # tokens
CLOCK_SIZES = (64, 256)  # of HEADS: up to the first the clock is as high as it gets, then it falls
STORED_ROWS, STORED_VOCAB = (1, 8, 64, 128, 256), 151936
START = time.monotonic()


def say(text):
    print("%4.0f s  %s" % (time.monotonic() - START, text), file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------------- measuring ----


def line_of(bench, W, reader, B, arms, effort, **more):
    """What is known of one head and batch size: the median and least time of every arm."""
    graphs = bench.prepare(dict({"ceiling": lambda: bench.read(reader, W)}, **arms))
    times, (V, D) = bench.time_graphs(graphs, **effort), W.shape
    line = dict({"V": V, "D": D, "B": B, "reader": reader}, **more)
    line["ceiling_tb_s"] = round(2 * V * D / times["ceiling"][1] * 1e-6, 3)
    if (V, D) in HEADS and B in CLOCK_SIZES:
        line["clock"] = bench.clock(graphs)
    line["times"] = {name: {"min": round(least, 2), "median": round(median, 2)}
                     for name, (least, median) in times.items()}
    return line


def make_pairs(bench, H, W, wide, absent):
    """{arm: function that stores logits by cuBLAS and draws from them}; absent gets those that cannot run, and why."""
    torch, found = bench.torch, {}
    full = torch.zeros(wide.shape, device=bench.device)
    samplers = {"+b1": (make_b1, wide, {}), "+flashinfer bf16": (make_fi2, wide, {}),
                "+flashinfer f32": (make_fi2, full, {"out_dtype": torch.float32})}
    for name, (make, logits, options) in samplers.items():
        def matmul(logits=logits, options=options):
            torch.mm(H, W.T, out=logits, **options)
        try:
            draw = make(bench, logits)[0]
            tried(matmul)
        except Absent as why:
            absent[name] = str(why)
            continue
        check(bench, name, draw, logits)
        found[name] = lambda matmul=matmul, draw=draw: (matmul(), draw())[1]
    return found


def measure_size(bench, W, reader, B, effort, absent):
    torch, (V, D) = bench.torch, W.shape
    H = bench.hidden(B, D)
    wide, tall = (torch.zeros(shape, dtype=torch.bfloat16, device=bench.device) for shape in ((B, V), (V, B)))
    ours, pairs = bench.draw(bench.fs.Head(W), H, 1.0), make_pairs(bench, H, W, wide, absent)
    same = int((pairs["+b1"]() == ours().tokens).sum()) if "+b1" in pairs else None
    # A logit rounded to bfloat16 moves some winners, one in twenty or so.
    if same is not None and B >= 8 and 2 * same < B:
        sys.exit("bench: V = %d, D = %d: only %d of %d tokens are those of cuBLAS and B.1" % (V, D, same, B))
    arms = {"cublas [B, V]": lambda: torch.mm(H, W.T, out=wide), "cublas [V, B]": lambda: torch.mm(W, H.T, out=tall),
            "ours": ours}
    eager = [name for name, run in pairs.items() if why_eager(bench, run)]
    arms.update((name, Eager(run) if name in eager else run) for name, run in pairs.items())
    return [line_of(bench, W, reader, B, arms, effort, same_as_b1=same, eager=eager)]


def measure_rows(bench, W, reader, B, effort, absent):
    """A line for plain draws and one for greedy ones."""
    bench.torch.set_float32_matmul_precision("highest")
    gpu_rows.plant(bench, W)
    head, lines, exact = bench.fs.Head(W), [], W.float().T
    for draw in ("plain", "greedy"):
        arms = {}
        for name in gpu_rows.names(draw == "greedy"):
            kinds = gpu_rows.of_rows(name, B)
            H, temperature = gpu_rows.hidden(bench, W.shape[1], kinds), gpu_rows.temperatures(kinds, draw == "greedy")
            run, logits = bench.draw(head, H, temperature), H.float() @ exact
            same = int((run().tokens == bench.draw(bench.fs.Head(logits=logits), None, temperature)().tokens).sum())
            # Sums of another order move the winner of a near tie, and nothing else.
            if 20 * same < 19 * B:
                absent["%s, %s" % (name, draw)] = "only %d of %d tokens are those of stored logits" % (same, B)
            else:
                arms[name] = run
        lines.append(line_of(bench, W, reader, B, arms, effort, draw=draw))
    return lines


def measure_groups(bench, W, reader, B, effort, absent):
    head, H = bench.fs.Head(W), bench.hidden(B, W.shape[1])
    return [line_of(bench, W, reader, B, {
        "ours": bench.draw(head, H, 1.0),
        "greedy": bench.draw(head, H, 0.0),
        "log_z": bench.draw(head, H, 1.0, ("log_z",)),
        "group_parallel": bench.draw(head, H, 1.0, mode="group_parallel", group_size=GROUP),
        "group_online": bench.draw(head, H, 1.0, mode="group_online", group_size=GROUP),
    }, effort)]


# Of each table: how a head and batch size is measured, which heads and sizes, which with --all.
TABLES = {
    "sizes": (measure_size, HEADS, SIZES, HEADS, SIZES),
    "heads": (measure_size, MORE_HEADS, SOME_SIZES, MORE_HEADS, SIZES),
    "small": (measure_size, SMALL_HEADS, SMALL_SIZES, SMALL_HEADS, SMALL_SIZES),
    "rows": (measure_rows, HEADS, ROW_SIZES, HEADS + MORE_HEADS, ROW_SIZES),
    "groups": (measure_groups, HEADS + MORE_HEADS[:1], GROUP_SIZES, HEADS + MORE_HEADS, GROUP_SIZES),
}


def measure(bench, name, arguments, absent):
    """The lines of a table, as they come: one list for each head and batch size."""
    function, *shapes = TABLES[name]
    heads, sizes = shapes[2:] if arguments.all else shapes[:2]
    heads, sizes = arguments.heads or heads, arguments.rows or sizes
    effort = {"reps": arguments.reps, "warm_ups": arguments.warm_ups}
    for V, D in heads:
        say("%s: %d x %d, %d sizes" % (name, V, D, len(sizes)))
        W = bench.weights(V, D)
        reader = bench.best_reader(W)
        for B in sizes:
            yield function(bench, W, reader, B, effort, absent)
        bench.renew_context()
        bench.torch.cuda.empty_cache()


def run(bench, arguments, facts):
    """Prints every table when it is complete; saves after every line, since a run may be cut short."""
    results = dict(facts, seconds=0, absent={}, tables={})
    gpu_tables.save(arguments.json, results)
    for name in arguments.tables:
        lines = results["tables"][name] = []
        for more in measure(bench, name, arguments, results["absent"]):
            lines += more
            results["seconds"] = round(time.monotonic() - START)
            gpu_tables.save(arguments.json, results)
        print(gpu_bars.text(name, lines), flush=True)
    results = gpu_tables.judged(results)
    gpu_tables.save(arguments.json, results)
    print(report.caveats(results), end="")


# ------------------------------------------------------------------------------------------------ stored logits ----

STORED_ARMS = ("ceiling", "ours", "greedy")


def measure_stored(bench, B, reps):
    torch, fs = bench.torch, bench.fs
    X = torch.randn(B, STORED_VOCAB, device="cuda") * 2.5
    head, reader, row = fs.Head(logits=X), bench.best_reader(X), torch.arange(min(B, 8))
    ours = bench.draw(head, None, 1.0)
    tokens = ours().tokens[:8].cpu().numpy()
    want = fs.Context("cpu").sample(fs.Head(logits=X[:8].cpu().numpy()), seed=(row * 7919 + 13).numpy(),
                                    position=bench.position[:8][:B].cpu().numpy())
    if (tokens != want.tokens[:, 0]).any():
        sys.exit("bench: tokens of stored logits differ from the CPU backend, B = %d: nothing was timed" % B)
    times = bench.time_in_turn({"ceiling": lambda: bench.read(reader, X), "ours": ours,
                                "greedy": bench.draw(head, None, 0.0)}, reps)
    line = {"V": STORED_VOCAB, "B": B, "reader": reader, "bytes": X.numel() * 4}
    for name, (least, median) in times.items():
        line[name] = {"min": round(least, 2), "median": round(median, 2)}
    line["ours/ceiling"] = round(times["ours"][1] / times["ceiling"][1], 4)
    return line


def bench_stored(bench, arguments):
    print("%8s %4s %8s" % ("V", "B", "MB") + "".join("%18s" % name for name in STORED_ARMS) + "%15s" % "ours/ceiling")
    lines = []
    for B in arguments.rows or STORED_ROWS:
        line = measure_stored(bench, B, arguments.reps)
        cells = ["%9.1f%9.1f" % (line[name]["min"], line[name]["median"]) for name in STORED_ARMS]
        print("%8d %4d %8.1f" % (line["V"], B, line["bytes"] / 1e6) + "".join(cells) + "%15.3f" % line["ours/ceiling"],
              flush=True)
        lines.append(line)
    return lines


# -------------------------------------------------------------------------------------------------- the program ----


def shape(text):
    V, D = text.split("x")
    return int(V), int(D)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=tuple(TABLES), metavar="TABLE",
                        help="some of " + ", ".join(TABLES))
    parser.add_argument("--all", action="store_true", help="every size of every head, 60 repetitions: for evidence")
    parser.add_argument("--stored", action="store_true", help="draws from stored logits instead")
    parser.add_argument("--heads", type=shape, nargs="+", metavar="VxD", help="these heads instead of a table's own")
    parser.add_argument("--rows", type=int, nargs="+", metavar="B", help="these batch sizes instead of a table's own")
    parser.add_argument("--reps", type=int, help="timed repetitions of each arm (default: 30, 60 with --all, 100 with "
                        "--stored)")
    add_run_options(parser)
    arguments = parser.parse_args()
    arguments.reps = arguments.reps or (100 if arguments.stored else 60 if arguments.all else 30)
    arguments.warm_ups = WARM_UPS if arguments.all or arguments.stored else 8
    return arguments


def main():
    arguments = parse()
    bench, facts = begin_run(arguments)
    if arguments.stored:
        gpu_tables.save(arguments.json, dict(facts, lines=bench_stored(bench, arguments)))
        return
    bench.verify()
    run(bench, arguments, facts)


if __name__ == "__main__":
    main()
