"""What the GPU benches share: one device, one stream, how a call is timed there, and when a run counts.

Every repetition of every arm is a graph replay after the L2 cache was overwritten, the arms in turn, so that a slow
moment of the machine meets them all. Before each, another kernel has run, as in an engine: no arm finds its
instructions in the processors' caches because the arm before it was the same kernel. Each repetition draws at new
positions: a time is of many draws, not of one. Times are microseconds.
"""
import ctypes
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "python"))

HEADS = ((151936, 4096), (128256, 8192))
WARM_UPS = 25
FLUSH = 256 << 20  # bytes; several times the L2
MOST_ROWS = 1024
EAGER_FLUSHES = 16  # about 1 ms of device work, in which the host launches what a graph does not hold
CEILING = 4.4  # TB/s an H200 reaches when nothing else uses it; below, its timings are no evidence
CEILING_BYTES = 10**9  # a shorter read is over before it is that fast
CLOCK_SECONDS = 10  # a query that takes longer has no answer


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


def about(bench, reps):
    """Device, driver, versions, commit and date of a run."""
    torch = bench.torch
    commit = first_line(["git", "rev-parse", "--short", "HEAD"])
    if commit != "unknown" and first_line(["git", "status", "--porcelain", "--untracked-files=no"]) != "unknown":
        commit += "+"  # status had a line: the tree is not the commit
    return {
        "device": torch.cuda.get_device_name(),
        "driver": first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "library": "%s, %s" % (bench.fs.version(), bench.context.text),
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "reps": reps,
        "warm_ups": WARM_UPS,
    }


def invalid_reason(lines):
    """What speaks against the machine, in words; the slowest ceiling of the run decides."""
    slowest = min((line["ceiling_tb_s"] for line in lines if line["V"] * line["D"] * 2 >= CEILING_BYTES), default=None)
    if slowest is None:
        return "no read of %.0f GB was timed: whether the card is whole and idle is not known" % (CEILING_BYTES / 1e9)
    if slowest >= CEILING:
        return ""
    return ("the ceiling fell to %.2f TB/s, below %.1f: not a whole, idle H200; these timings are no evidence"
            % (slowest, CEILING))


def open_bench(folder):
    """A Bench on the first device; ends the program where there is none."""
    try:
        import torch
    except ImportError:
        sys.exit("bench: torch is not installed")
    if not torch.cuda.is_available():
        sys.exit("bench: no CUDA device")
    import flashsampling as fs

    torch.manual_seed(1)
    return Bench(torch, fs, folder)


class Eager:
    """An arm that no graph can hold: it is called where others are replayed."""

    def __init__(self, run):
        self.replay = run


class Bench:
    """One device, one stream, and what every timing needs."""

    device = "cuda"

    def __init__(self, torch, fs, folder):
        self.torch, self.fs = torch, fs
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.context = None
        self.renew_context()
        self.reader = build_ceiling(torch, folder)
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.flush = torch.empty(FLUSH, dtype=torch.uint8, device=self.device)
        self.scrap = torch.zeros(4, dtype=torch.int32, device=self.device)
        self.position = torch.arange(MOST_ROWS, device=self.device) * 17
        self.square = torch.randn(512, 512, device=self.device).bfloat16()

    def renew_context(self):
        """A context keeps work memory for every call that was captured: a long run begins another from time to time."""
        if self.context:
            self.context.close()
        self.context = self.fs.Context("cuda", cuda_stream=self.stream.cuda_stream)

    def weights(self, V, D):
        """[V, D] bfloat16, made in pieces: float32 of the largest would be 5 GB."""
        W = self.torch.empty(V, D, dtype=self.torch.bfloat16, device=self.device)
        for piece in W.split(16384):
            piece.copy_(self.torch.randn(piece.shape, device=self.device) * (2.5 / D**0.5))
        return W

    def hidden(self, B, D):
        return self.torch.randn(B, D, device=self.device).bfloat16()

    def verify(self, V=40007, D=512, B=48):
        """Tokens of a small call against the CPU backend; a near tie in float may move one."""
        torch, fs = self.torch, self.fs
        W, H = self.weights(V, D), self.hidden(B, D)
        position = torch.arange(B, device=self.device)
        tokens = torch.full((B,), -9, dtype=torch.int32, device=self.device)
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

    def prepare(self, arms):
        """{name: graph} of {name: function or Eager}."""
        return {name: run if isinstance(run, Eager) else self.capture(run) for name, run in arms.items()}

    def time_once(self, graph):
        """Microseconds on the device. The flush is still running when the replay is queued: the host is not in it."""
        before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.position.add_(1)
        self.torch.mm(self.square, self.square)
        for _ in range(EAGER_FLUSHES if isinstance(graph, Eager) else 1):
            self.flush.fill_(1)
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) * 1e3

    def time_graphs(self, graphs, reps, warm_ups=WARM_UPS):
        """{name: (min, median)} of what prepare returned."""
        times = {name: [] for name in graphs}
        for i in range(warm_ups + reps):
            for name, graph in graphs.items():
                spent = self.time_once(graph)
                if i >= warm_ups:
                    times[name].append(spent)
        return {name: (min(t), statistics.median(t)) for name, t in times.items()}

    def time_in_turn(self, arms, reps, warm_ups=WARM_UPS):
        """{name: (min, median)} of {name: function}."""
        return self.time_graphs(self.prepare(arms), reps, warm_ups)

    def clock(self, graphs):
        """Clocks in MHz and power in W while the arms go on in turn; None where nvidia-smi does not say."""
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        command = ["nvidia-smi", "-i", first, "--query-gpu=clocks.sm,clocks.mem,power.draw",
                   "--format=csv,noheader,nounits"]
        try:
            query = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return None
        limit = time.monotonic() + CLOCK_SECONDS
        while query.poll() is None and time.monotonic() < limit:
            for graph in graphs.values():
                self.time_once(graph)
        if query.poll() is None:
            query.kill()
        words = query.communicate()[0].strip().split(",")
        values = [float(word) if word.strip().replace(".", "", 1).isdigit() else None for word in words]
        if len(values) != 3 or values[0] is None:
            return None
        return dict(zip(("sm_mhz", "memory_mhz", "power_w"), values))

    # ------------------------------------------------------------------------------------------------ arms ----

    def read(self, which, W):
        error = self.reader.read_ceiling(which, self.processors, W.data_ptr(), W.numel() * W.element_size(),
                                         self.scrap.data_ptr(), self.stream.cuda_stream)
        if error:
            sys.exit("bench: read_ceiling failed with CUDA error %d" % error)

    def best_reader(self, W):
        arms = {which: lambda which=which: self.read(which, W) for which in range(self.reader.read_ceiling_variants())}
        times = self.time_in_turn(arms, reps=20, warm_ups=5)
        return min(times, key=lambda which: times[which][1])

    def draw(self, head, H, temperature, fields=(), **rules):
        """A function that queues one call; what it reads and writes lives as long as the function.

        H is None for a head of stored logits; temperature is a number or a list of B. The function returns the result,
        whose tokens are [B] int32, or [B, samples]; fields are further results, floats of [B], of the processed logits.
        """
        torch, fs = self.torch, self.fs
        B = (head.data if H is None else H).shape[0]
        row = torch.arange(B, device=self.device)
        temperatures = torch.tensor(temperature, dtype=torch.float32, device=self.device).expand(B).contiguous()
        batch = fs.Batch(head, H, temperature=temperatures, seed=row * 7919 + 13, position=self.position[:B], **rules)
        arrays = {name: torch.empty(B, device=self.device) for name in fields}
        arrays["tokens"] = torch.empty(B, batch.samples, dtype=torch.int32, device=self.device).squeeze(1)
        result = fs.Result.into(batch, arrays, logits_mode="processed")
        return lambda: self.context.sample(head, batch, out=result)


def add_run_options(parser):
    parser.add_argument("--json", metavar="FILE", help="also write the numbers, device, commit and date there")
    parser.add_argument("--commit", metavar="TEXT", help="what is measured, where there is no git to tell")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cuda"), metavar="FOLDER",
                        help="where read_ceiling.cu is compiled to (default: build/cuda)")


def begin_run(arguments):
    """An open bench, and what a run is about, which is printed first."""
    bench = open_bench(arguments.build)
    facts = dict(about(bench, arguments.reps), warm_ups=arguments.warm_ups)
    facts["commit"] = arguments.commit or facts["commit"]
    for name, value in facts.items():
        print("%-9s %s" % (name, value))
    return bench, facts
