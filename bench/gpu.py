"""Times the CUDA backend beside what bounds it: reading W once, and cuBLAS computing the logits alone.

    ceiling  W read with 16-byte loads, the best of several kernels (read_ceiling.cu)
    cublas   torch.mm to bfloat16 logits, the better of [B, V] and [V, B]; nothing is drawn
    ours     logits and draw, temperature 1
    greedy   logits and argmax
    log z    logits, draw and log Z
    groups   logits and draw by groups of 4,096 tokens (the paper's B.2)

Every repetition of every arm is a graph replay after the L2 cache was overwritten, the arms in turn, so that a slow
moment of the machine meets them all. Times are medians in microseconds. Tokens are checked against the CPU backend first.

FLASHSAMPLING_CUDA_TILE=portable in the environment times that kernel instead of the device's own.
"""
import argparse
import json
import os

from gpu_bench import HEADS, ROOT, about, judge, open_bench

MORE_HEADS = ((151936, 2048), (262208, 2304), (262208, 5376), (201088, 2880))
GROUP = 4096  # tokens
ROWS = (1, 2, 3, 8, 17, 32, 48, 64, 96, 128, 160, 192, 256, 512)


def measure(bench, W, reader, B, reps):
    torch, (V, D) = bench.torch, W.shape
    H, head = bench.hidden(B, D), bench.fs.Head(W)
    wide, tall = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((B, V), (V, B)))
    graphs = bench.prepare({
        "ceiling": lambda: bench.read(reader, W),
        "cublas [B, V]": lambda: torch.mm(H, W.T, out=wide),
        "cublas [V, B]": lambda: torch.mm(W, H.T, out=tall),
        "ours": bench.draw(head, H, 1.0),
        "greedy": bench.draw(head, H, 0.0),
        "log z": bench.draw(head, H, 1.0, ("log_z",)),
        "groups": bench.draw(head, H, 1.0, mode="group_parallel", group_size=GROUP),
    })
    times = bench.time_graphs(graphs, reps)
    orientations = [times.pop("cublas [B, V]"), times.pop("cublas [V, B]")]
    times["cublas"] = min(orientations, key=lambda time: time[1])
    line = {"V": V, "D": D, "B": B, "reader": reader, "clock": bench.clock(graphs)}
    for name, (least, median) in times.items():
        line[name] = {"min": round(least, 2), "median": round(median, 2)}
    line["ceiling_tb_s"] = round(W.numel() * 2 / times["ceiling"][1] * 1e-6, 3)
    for ratio in RATIOS:
        above, below = ratio.split("/")
        line[ratio] = round(times[above][1] / times[below][1], 4)
    return line


# ------------------------------------------------------------------------------------------------------- table ----

ARMS = ("ceiling", "cublas", "ours", "greedy", "log z", "groups")
RATIOS = ("ours/ceiling", "ours/cublas", "ours/greedy", "log z/ours", "groups/ours")


def print_heading():
    print("%15s %4s %5s %5s" % ("V x D", "B", "TB/s", "MHz") + "".join("%9s" % name for name in ARMS)
          + "".join("%13s" % name for name in RATIOS))


def print_line(line):
    clock = line["clock"]["sm_mhz"] if line["clock"] else 0
    print("%15s %4d %5.2f %5.0f" % ("%d x %d" % (line["V"], line["D"]), line["B"], line["ceiling_tb_s"], clock)
          + "".join("%9.1f" % line[name]["median"] for name in ARMS)
          + "".join("%13.3f" % line[name] for name in RATIOS), flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    more = ", ".join("%d x %d" % head for head in MORE_HEADS)
    parser.add_argument("--all", action="store_true", help="also the heads " + more)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, metavar="B", help="batch sizes")
    parser.add_argument("--reps", type=int, default=100, help="timed repetitions of each arm (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers, device, commit and date there")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cuda"), metavar="FOLDER",
                        help="where read_ceiling.cu is compiled to (default: build/cuda)")
    return parser.parse_args()


def main():
    arguments = parse()
    bench = open_bench(arguments.build)
    facts = about(bench, arguments.reps)
    for name, value in facts.items():
        print("%-9s %s" % (name, value))
    bench.verify()
    print_heading()
    lines = []
    for V, D in HEADS + (MORE_HEADS if arguments.all else ()):
        W = bench.weights(V, D)
        reader = bench.best_reader(W)
        for B in arguments.rows:
            lines.append(measure(bench, W, reader, B, arguments.reps))
            print_line(lines[-1])
    note = judge(lines)
    if note:
        print("note: " + note)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(dict(facts, evidence=not note, note=note, lines=lines), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
