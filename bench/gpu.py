"""Times the CUDA backend beside what bounds it: reading W once, and cuBLAS computing the logits alone.

    ceiling  W read with 16-byte loads or bulk copies, the best of several kernels (read_ceiling.cu)
    cublas   torch.mm to bfloat16 logits, the better of [B, V] and [V, B]; nothing is drawn
    ours     logits and draw, temperature 1
    greedy   logits and argmax
    log z    logits, draw and log Z
    groups   logits and draw by groups of 4,096 tokens (the paper's B.2)

With --stored: draws from stored float32 logits (the paper's B.1), beside the read ceiling of the same bytes.

Every repetition of every arm is a graph replay after the L2 cache was overwritten, the arms in turn, so that a slow
moment of the machine meets them all. Times are medians in microseconds. Tokens are checked against the CPU backend
first.

FLASHSAMPLING_CUDA_TILE=portable in the environment times that kernel instead of the device's own.
"""
import argparse
import json
import os
import sys

from gpu_bench import HEADS, ROOT, about, invalid_reason, open_bench

MORE_HEADS = ((151936, 2048), (262208, 2304), (262208, 5376), (201088, 2880))
GROUP = 4096  # tokens
ROWS = (1, 2, 3, 8, 17, 32, 48, 64, 96, 128, 160, 192, 256, 512)
STORED_ROWS, STORED_VOCAB = (1, 8, 64, 128, 256), 151936


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


# ------------------------------------------------------------------------------------------------------- table ----

ARMS = ("ceiling", "cublas", "ours", "greedy", "log z", "groups")
STORED_ARMS = ("ceiling", "ours", "greedy")
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
    parser.add_argument("--stored", action="store_true", help="draws from stored logits instead")
    parser.add_argument("--rows", type=int, nargs="+", metavar="B", help="batch sizes")
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
    if arguments.stored:
        write(arguments.json, dict(facts, lines=bench_stored(bench, arguments)))
        return
    bench.verify()
    print_heading()
    lines = []
    for V, D in HEADS + (MORE_HEADS if arguments.all else ()):
        W = bench.weights(V, D)
        reader = bench.best_reader(W)
        for B in arguments.rows or ROWS:
            lines.append(measure(bench, W, reader, B, arguments.reps))
            print_line(lines[-1])
    note = invalid_reason(lines)
    if note:
        print("note: " + note)
    write(arguments.json, dict(facts, evidence=not note, note=note, lines=lines))


def write(path, numbers):
    if path:
        with open(path, "w") as file:
            json.dump(numbers, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
