"""What a call costs the host from Python, beside the same call from C: python bench/python_host.py [--device cuda]

One row and a small head, so that a call is mostly overhead; on CUDA calls are queued, a few at a time, and the device
keeps up. Every way draws first and must give the tokens that C gives. Times are medians over rounds in turn, so that
both ways of the package, calls in C and through ctypes, meet the same noise; the second table says where the time goes:
what a call takes when the library's part, or all but torch's dispatch, is left out.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

SOURCE = r"""
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>
typedef int (*call)(void *, void *, void *, void *);
double loop(call f, void *context, void *head, void *batch, void *result, int n) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < n; i++)
        if (f(context, head, batch, result)) return -1;
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n;
}
int nothing(void *context, void *head, void *batch, void *result) {
    return 0;
}
/* A kernel of `sample` that returns its first argument. */
static int32_t (*delete_tensor)(void *);
static void (*delete_word)(void *);
static void pass(uint64_t *stack, uint64_t inputs, uint64_t outputs) {
    delete_tensor((void *)stack[1]);
    for (uint64_t i = 2; i < inputs; i++)
        if (stack[i]) delete_tensor(*(void **)stack[i]), delete_word((void *)stack[i]);
}
int register_pass(const char *space, const char *key, const char *name) {
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY), *library;
    if (!torch) return 1;
    int32_t (*init)(const char *, const char *, const char *, uint32_t, void **) =
        dlsym(torch, "aoti_torch_library_init_impl");
    int32_t (*impl)(void *, const char *, void (*)(uint64_t *, uint64_t, uint64_t), uint64_t) =
        dlsym(torch, "torch_library_impl");
    uint64_t (*version)(void) = dlsym(torch, "aoti_torch_abi_version");
    delete_tensor = dlsym(torch, "aoti_torch_delete_tensor_object"), delete_word = dlsym(torch, "_ZdlPv");
    if (!init || !impl || !version || !delete_tensor || !delete_word) return 1;
    return init(space, key, "bench", 1, &library) || impl(library, name, pass, version());
}
"""


def compiled(folder):
    """The source above as a library."""
    source, library = os.path.join(folder, "host.c"), os.path.join(folder, "host.so")
    with open(source, "w") as file:
        file.write(SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    found = ctypes.CDLL(library)
    found.loop.restype, found.loop.argtypes = ctypes.c_double, [ctypes.c_void_p] * 5 + [ctypes.c_int]
    found.register_pass.argtypes = [ctypes.c_char_p] * 3
    return found


def python(draw):
    """A function that makes n calls and returns nanoseconds a call."""
    def timed(n):
        start = time.perf_counter_ns()
        for _ in range(n):
            draw()
        return (time.perf_counter_ns() - start) / n

    return timed


class Bench:
    """Everything that draws, on one device."""

    def __init__(self, fs, torch, device, folder):
        import flashsampling._native as native
        import flashsampling.torch as operators

        self.torch, self.native, self.operators, self.device = torch, native, operators, device
        torch.manual_seed(1)
        self.W, self.H = torch.randn(512, 64).bfloat16().to(device), torch.randn(1, 64).bfloat16().to(device)
        self.each = dict(temperature=torch.full((1,), 0.9, device=device), seed=torch.full((1,), 5, device=device),
                         position=torch.full((1,), 7, device=device))
        self.c = compiled(folder)
        self.context = fs.Context("cpu", threads=1) if device == "cpu" else fs.Context("cuda")
        self.head = fs.Head(self.W)
        self.sampler, self.by_ctypes = (fs.Sampler(self.head, 1, context=self.context, **self.each) for _ in range(2))
        self.by_ctypes._native = None
        self.in_c = self.sampler._native is not None
        self._operators(fs)
        self.batch = fs.Batch(self.head, self.H, **self.each)
        self.kept = fs.Result(self.batch)
        self.from_scratch = lambda: fs.sample(self.H, self.W, context=self.context, **self.each)

    def _operators(self, fs):
        """Those of the package; the same with kernels in Python; and, of torch's dispatch, one that does nothing."""
        torch, operators = self.torch, self.operators
        if self.device == "cpu":  # one thread
            operators.context_for = lambda device: fs.Context("cpu", threads=1)
            if self.in_c:
                operators._find_library(0)
                operators._native_libraries[0].options.threads = 1
        self.libraries = [torch.library.Library(name, "DEF") for name in ("host_ctypes", "host_pass")]
        operators._register(self.libraries[0], None)
        schema = "sample(Tensor hidden, Tensor weight, Tensor? bias=None, *, %s) -> Tensor" % operators._ROWS
        self.libraries[1].define(schema)
        self.libraries[1].impl("sample", torch.library.fallthrough_kernel, "Autograd")
        key = b"CPU" if self.device == "cpu" else b"CUDA"
        if self.c.register_pass(b"host_pass", key, b"sample"):
            self.libraries[1].impl("sample", lambda hidden, *_, **__: hidden, key.decode())

    def operator(self, space):
        function = getattr(self.torch.ops, space).sample
        return lambda: function(self.H, self.W, **self.each)

    def ways(self):
        """By name: what makes n calls and returns nanoseconds a call, having drawn the token that all draw."""
        tokens = {
            "Sampler": lambda: self.sampler(self.H).tokens,
            "Sampler, through ctypes": lambda: self.by_ctypes(self.H).tokens,
            "torch operator": self.operator("flashsampling"),
            "torch operator, kernel in Python": self.operator("host_ctypes"),
            "Context.sample, Batch and Result kept":
                lambda: self.context.sample(self.head, self.batch, out=self.kept).tokens,
            "sample, from scratch": lambda: self.from_scratch().tokens,
        }
        want = int(self.sampler(self.H).tokens)
        for name, draw in tokens.items():
            assert int(draw()) == want, name
        address = self.native.address(self.context._library.fs_sample)
        found = {"C": lambda n: self.c.loop(address, *self.sampler._arguments, n)}
        found.update((name, python(draw)) for name, draw in tokens.items())
        if self.device == "cuda":
            try:
                from flashinfer.sampling import sampling_from_logits
            except ImportError:
                pass
            else:
                logits = (self.H @ self.W.T).float()
                found["FlashInfer's sampling_from_logits, no matmul"] = python(lambda: sampling_from_logits(logits))
        return found

    def parts(self):
        """Calls without the library's own part, and what is left when their own is left out too."""
        nothing = self.native.address(self.c.nothing)
        type_ = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)

        class Empty:
            def __call__(self, hidden, position=None):
                return hidden

        def without(draw, place, name, replacement):
            def timed(n):
                before = getattr(place, name)
                setattr(place, name, replacement)
                try:
                    return python(draw)(n)
                finally:
                    setattr(place, name, before)

            return timed

        empty, torch, like = Empty(), self.torch, self.W.device
        libraries = self.operators._native_libraries
        cuda = int(self.device == "cuda")
        call = self.operators._call(self.W.device)
        found = {
            "a Python method": python(lambda: empty(self.H)),
            "Sampler through ctypes, without fs_sample":
                without(lambda: self.by_ctypes(self.H), self.by_ctypes, "_function", type_(nothing)),
            "torch's dispatch to a kernel in C": python(self.operator("host_pass")),
            "torch.empty, from Python": python(lambda: torch.empty((1, 1), dtype=torch.int64, device=like)),
            "torch operator, kernel in Python, without it":
                without(self.operator("host_ctypes"), call, "_function", type_(nothing)),
        }
        if self.in_c:
            found["Sampler without fs_sample"] = without(lambda: self.sampler(self.H), self.sampler._prepared, "sample",
                                                         nothing)
        if cuda in libraries:
            found["torch operator without it"] = without(self.operator("flashsampling"), libraries[cuda], "sample",
                                                         nothing)
        return found


def simple_calls(fs, torch, device):
    """The calls of a first program, which prepare nothing, and what torch takes for the same: the first of them."""
    torch.manual_seed(1)
    W, H = torch.randn(512, 64, device=device) / 8, torch.randn(1, 64, device=device)
    logits = H @ W.T
    sampler = fs.FlashSampler(512, 64)
    kernel = fs.FusedFlashSamplingKernel(512, 64, device=device)
    rows = dict(temperature=torch.full((1,), 0.8, device=device), seed=torch.full((1,), 5, device=device))
    found = {
        "torch's matmul, softmax, multinomial": lambda: torch.multinomial(torch.softmax(H @ W.T, -1), 1),
        "sample": lambda: fs.sample(H, W),
        "sample, temperature and seed": lambda: fs.sample(H, W, temperature=0.8, seed=5),
        "sample, temperature and top_p": lambda: fs.sample(H, W, temperature=0.8, top_p=0.9),
        "sample, temperature and seed by row": lambda: fs.sample(H, W, **rows),
        "sample, logprobs": lambda: fs.sample(H, W, outputs=["logprob"]),
        "sample_logits": lambda: fs.sample_logits(logits),
        "FlashSampler.sample_tiled": lambda: sampler.sample_tiled(H, W),
        "FlashSampler.gumbel_sample": lambda: sampler.gumbel_sample(logits),
        "FusedFlashSamplingKernel": lambda: kernel.fused_lm_head_sample(H, W),
        "sample, looked at from scratch": lambda: fs.sample(H, W, temperature=[1.0]),
    }
    if device == "cpu":
        h, w = H.numpy(), W.numpy()
        found["sample, numpy's arrays"] = lambda: fs.sample(h, w)
    return {name: python(draw) for name, draw in found.items()}


def rounds_of(found, rounds, calls, synchronize):
    """Microseconds of every round, by name; the ways take turns."""
    times = {name: [] for name in found}
    for turn in range(rounds + 5):
        for name, way in found.items():
            time_ns = way(calls)
            synchronize()
            if turn >= 5:
                times[name].append(time_ns / 1e3)
    return times


def measured(found, rounds, calls, synchronize):
    """Medians in microseconds, by name."""
    return {name: statistics.median(values) for name, values in rounds_of(found, rounds, calls, synchronize).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=200, help="calls a round; on CUDA they must fit the queue")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    import torch

    import flashsampling as fs

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(fs, torch, options.device, folder)
        synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
        ways, parts = bench.ways(), bench.parts()
        medians = measured({**ways, **parts}, options.rounds, options.calls, synchronize)
        simple = rounds_of(simple_calls(fs, torch, options.device), options.rounds, options.calls, synchronize)
    print("host time of a call, us, %s, calls %s, median of %d rounds of %d calls"
          % (options.device, "in C" if bench.in_c else "through ctypes", options.rounds, options.calls))
    for name in ways:
        print("  %-45s %8.2f   %+7.2f" % (name, medians[name], medians[name] - medians["C"]))
    print("where it goes, us")
    for name in parts:
        print("  %-45s %8.2f" % (name, medians[name]))
    print("calls that prepare nothing, 1 x 512 x 64, float32: us, and of what torch takes in the same round")
    usual = next(iter(simple.values()))
    for name, times in simple.items():
        ratio = statistics.median(a / b for a, b in zip(times, usual))
        medians[name] = statistics.median(times)
        print("  %-45s %8.2f   %7.2f" % (name, medians[name], ratio))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": options.device, "in_c": bench.in_c, "us": medians}, file, indent=1)


if __name__ == "__main__":
    main()
