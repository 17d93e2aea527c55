"""Times the CUDA backend beside what bounds it: reading W once, and cuBLAS computing the logits alone.

    ceiling  W read with 16-byte loads, the best of several kernels (read_ceiling.cu)
    cublas   torch.mm to bfloat16 logits, the better of [B, V] and [V, B]; nothing is drawn
    ours     logits and draw, temperature 1
    greedy   logits and argmax

Every repetition of every arm is a graph replay after the L2 cache was overwritten, the arms in turn, so that a slow
moment of the machine meets them all. Times are microseconds. Tokens are checked against the CPU backend first.
"""
import argparse
import ctypes
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "python"))

HEADS = ((151936, 4096), (128256, 8192))
MORE_HEADS = ((151936, 2048), (262208, 2304), (262208, 5376), (201088, 2880))
ROWS = (1, 2, 3, 8, 17, 32, 48, 64, 96, 128, 160, 192, 256, 512)
WARM_UPS = 25
FLUSH = 256 << 20  # bytes; several times the L2
CEILING = 4.4  # TB/s an H200 reaches when nothing else uses it; below, its timings are no evidence
CEILING_BYTES = 10**9  # a shorter read is over before it is that fast


# ------------------------------------------------------------------------------------------------------ set-up ----


def build_ceiling(torch, folder):
    """read_ceiling.cu as a library, compiled where it is missing or older than its source."""
    source, target = os.path.join(ROOT, "bench", "read_ceiling.cu"), os.path.join(folder, "libread_ceiling.so")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))
    fresh = os.path.exists(target) and os.path.getmtime(target) >= os.path.getmtime(source)
    if not fresh and nvcc:
        os.makedirs(folder, exist_ok=True)
        arch = "-arch=sm_%d%d" % torch.cuda.get_device_capability()
        subprocess.run([nvcc, "-O3", arch, "-shared", "-Xcompiler", "-fPIC", "-o", target, source], check=True)
    elif not os.path.exists(target):
        sys.exit("bench: %s is missing and there is no nvcc to build it: set NVCC or CUDA_HOME" % target)
    library = ctypes.CDLL(target)
    library.read_ceiling.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                                     ctypes.c_void_p]
    return library


def first_line(command):
    """What a program says, or "unknown": a bench of an unpacked archive has no commit."""
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return run.stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def about(torch, fs, context, arguments):
    commit = first_line(["git", "rev-parse", "--short", "HEAD"])
    if commit != "unknown" and first_line(["git", "status", "--porcelain", "--untracked-files=no"]) != "unknown":
        commit += "+"  # status had a line: the tree is not the commit
    return {
        "device": torch.cuda.get_device_name(),
        "driver": first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "library": "%s, %s" % (fs.version(), context.text),
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "reps": arguments.reps,
        "warm_ups": WARM_UPS,
    }


class Bench:
    """One device, one stream, and what every timing needs."""

    def __init__(self, torch, fs, folder):
        self.torch, self.fs = torch, fs
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.context = fs.Context("cuda", stream=self.stream.cuda_stream)
        self.reader = build_ceiling(torch, folder)
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
        self.scrap = torch.zeros(4, dtype=torch.int32, device="cuda")

    def weights(self, V, D):
        """[V, D] bfloat16, made in pieces: float32 of the largest would be 5 GB."""
        W = self.torch.empty(V, D, dtype=self.torch.bfloat16, device="cuda")
        for piece in W.split(16384):
            piece.copy_(self.torch.randn(piece.shape, device="cuda") * (2.5 / D**0.5))
        return W

    def hidden(self, B, D):
        return self.torch.randn(B, D, device="cuda").bfloat16()

    def verify(self, V=40007, D=512, B=48):
        """Tokens of a small call against the CPU backend; a near tie in float may move one."""
        torch, fs = self.torch, self.fs
        W, H = self.weights(V, D), self.hidden(B, D)
        position = torch.arange(B, device="cuda")
        tokens = torch.full((B,), -9, dtype=torch.int32, device="cuda")
        self.context.sample(fs.Head(W), H, seed=1, position=position, out={"tokens": tokens})
        logits = (H.double() @ W.double().T).float().cpu().numpy()
        want = fs.Context("cpu").sample(fs.Head(logits=logits), seed=1, position=position.cpu().numpy()).tokens[:, 0]
        differ = int((tokens.cpu().numpy() != want).sum())
        if differ > 1:
            sys.exit("bench: %d of %d tokens differ from the CPU backend: nothing was timed" % (differ, B))

    # ---------------------------------------------------------------------------------------------- timing ----

    def capture(self, run):
        run()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream):
            run()
        return graph

    def time_once(self, graph):
        """Microseconds on the device. The flush is still running when the replay is queued: the host is not in it."""
        before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.fill_(1)
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) * 1e3

    def time_in_turn(self, arms, reps, warm_ups=WARM_UPS):
        """{name: (min, median)} of {name: function}."""
        graphs = {name: self.capture(run) for name, run in arms.items()}
        times = {name: [] for name in arms}
        for i in range(warm_ups + reps):
            for name, graph in graphs.items():
                time = self.time_once(graph)
                if i >= warm_ups:
                    times[name].append(time)
        return {name: (min(t), statistics.median(t)) for name, t in times.items()}

    def read(self, which, W):
        error = self.reader.read_ceiling(which, self.processors, W.data_ptr(), W.numel() * W.element_size(),
                                         self.scrap.data_ptr(), self.stream.cuda_stream)
        if error:
            sys.exit("bench: read_ceiling failed with CUDA error %d" % error)

    def best_reader(self, W):
        arms = {which: lambda which=which: self.read(which, W) for which in range(self.reader.read_ceiling_variants())}
        times = self.time_in_turn(arms, reps=20, warm_ups=5)
        return min(times, key=lambda which: times[which][1])

    def draw(self, W, H, temperature):
        """A function that queues one call; what it reads and writes lives as long as the function."""
        torch, fs, B = self.torch, self.fs, H.shape[0]
        head, row = fs.Head(W), torch.arange(B, device="cuda")
        batch = fs.Batch(head, H, temperature=torch.full((B,), temperature, device="cuda"), seed=row * 7919 + 13,
                         position=row * 17)
        result = fs.Result.into(batch, {"tokens": torch.empty(B, dtype=torch.int32, device="cuda")})
        return lambda: self.context.sample(head, batch, out=result)

    def measure(self, W, reader, B, reps):
        torch, (V, D) = self.torch, W.shape
        H = self.hidden(B, D)
        wide, tall = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((B, V), (V, B)))
        times = self.time_in_turn({
            "ceiling": lambda: self.read(reader, W),
            "cublas [B, V]": lambda: torch.mm(H, W.T, out=wide),
            "cublas [V, B]": lambda: torch.mm(W, H.T, out=tall),
            "ours": self.draw(W, H, 1.0),
            "greedy": self.draw(W, H, 0.0),
        }, reps)
        orientations = [times.pop("cublas [B, V]"), times.pop("cublas [V, B]")]
        times["cublas"] = min(orientations, key=lambda time: time[1])
        line = {"V": V, "D": D, "B": B, "reader": reader}
        for name, (least, median) in times.items():
            line[name] = {"min": round(least, 2), "median": round(median, 2)}
        line["ceiling_tb_s"] = round(W.numel() * 2 / times["ceiling"][1] * 1e-6, 3)
        for name in ("ours", "greedy"):
            for other in ("ceiling", "cublas"):
                line["%s/%s" % (name, other)] = round(times[name][1] / times[other][1], 4)
        return line


# ------------------------------------------------------------------------------------------------------- table ----

ARMS = ("ceiling", "cublas", "ours", "greedy")
RATIOS = ("ours/ceiling", "ours/cublas", "greedy/ceiling", "greedy/cublas")


def print_heading():
    print("%15s %4s %6s" % ("V x D", "B", "TB/s") + "".join("%18s" % name for name in ARMS)
          + "".join("%15s" % name for name in RATIOS))
    print(" " * 27 + "".join("%18s" % "min  median" for _ in ARMS))


def print_line(line):
    cells = ["%9.1f%9.1f" % (line[name]["min"], line[name]["median"]) for name in ARMS]
    print("%15s %4d %6.2f" % ("%d x %d" % (line["V"], line["D"]), line["B"], line["ceiling_tb_s"]) + "".join(cells)
          + "".join("%15.3f" % line[name] for name in RATIOS), flush=True)


def judge(lines):
    """What speaks against the machine, in words; the slowest ceiling of the run decides."""
    slowest = min((line["ceiling_tb_s"] for line in lines if line["V"] * line["D"] * 2 >= CEILING_BYTES), default=0.0)
    if slowest >= CEILING:
        return ""
    return ("the ceiling fell to %.2f TB/s, below %.1f: not a whole, idle H200; these timings are no evidence"
            % (slowest, CEILING))


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
    try:
        import torch
    except ImportError:
        sys.exit("bench: torch is not installed")
    if not torch.cuda.is_available():
        sys.exit("bench: no CUDA device")
    import flashsampling as fs

    torch.manual_seed(1)
    bench = Bench(torch, fs, arguments.build)
    facts = about(torch, fs, bench.context, arguments)
    for name, value in facts.items():
        print("%-9s %s" % (name, value))
    bench.verify()
    print_heading()
    lines = []
    for V, D in HEADS + (MORE_HEADS if arguments.all else ()):
        W = bench.weights(V, D)
        reader = bench.best_reader(W)
        for B in arguments.rows:
            lines.append(bench.measure(W, reader, B, arguments.reps))
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
