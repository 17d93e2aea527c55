"""What a call costs the host from Python, beside the same call from C: python bench/python_host.py [--device cuda]

One row and a small head, so that a call is mostly overhead; on CUDA calls are queued, a few at a time, and the device
keeps up. Every way draws first and must give the tokens that C gives. Times are medians over rounds in turn.
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

LOOP = r"""
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
"""


def c_loop(folder):
    """The loop, compiled."""
    source, library = os.path.join(folder, "loop.c"), os.path.join(folder, "loop.so")
    with open(source, "w") as file:
        file.write(LOOP)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    function = ctypes.CDLL(library).loop
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_void_p] * 5 + [ctypes.c_int]
    return function


def ways(fs, torch, device, folder):
    """By name: a function that makes n calls and returns nanoseconds a call; and the draw it must agree with."""
    torch.manual_seed(1)
    W, H = torch.randn(512, 64).bfloat16().to(device), torch.randn(1, 64).bfloat16().to(device)
    each = dict(temperature=torch.full((1,), 0.9, device=device), seed=torch.full((1,), 5, device=device),
                position=torch.full((1,), 7, device=device))
    import flashsampling.torch

    context = fs.Context("cpu", threads=1) if device == "cpu" else fs.Context("cuda")
    head = fs.Head(W)
    sampler = fs.Sampler(head, 1, context=context, **each)
    batch = fs.Batch(head, H, **each)
    kept = fs.Result(batch, tokens="i64")
    if device == "cpu":  # one thread for the operator too
        flashsampling.torch._calls.generation, flashsampling.torch._calls.made = flashsampling.torch.generation(), {}
        made = flashsampling.torch.Context
        flashsampling.torch.Context = lambda *_, **__: made("cpu", threads=1)
        flashsampling.torch._find_library(0)
        flashsampling.torch._native_libraries[0].options.threads = 1
    tokens = {
        "Sampler": lambda: sampler(H).tokens,
        "torch operator": lambda: torch.ops.flashsampling.sample(H, W, **each),
        "Context.sample, Batch and Result kept": lambda: context.sample(head, batch, out=kept).tokens,
        "sample, from scratch": lambda: fs.sample(H, W, context=context, **each).tokens,
    }
    want = int(sampler(H).tokens)
    for name, draw in tokens.items():
        assert int(draw()) == want, name

    def python(draw):
        def timed(n):
            start = time.perf_counter_ns()
            for _ in range(n):
                draw()
            return (time.perf_counter_ns() - start) / n

        return timed

    loop = c_loop(folder)
    address = ctypes.cast(context.library.fs_sample, ctypes.c_void_p).value
    found = {"C": lambda n: loop(address, *sampler._arguments, n)}
    found.update((name, python(draw)) for name, draw in tokens.items())
    if device == "cuda":
        try:
            from flashinfer.sampling import sampling_from_logits
        except ImportError:
            pass
        else:
            logits = (H @ W.T).float()
            found["FlashInfer's sampling_from_logits, no matmul"] = python(lambda: sampling_from_logits(logits))
    return found


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
        found = ways(fs, torch, options.device, folder)
        times = {name: [] for name in found}
        for turn in range(options.rounds + 5):
            for name, way in found.items():
                time_ns = way(options.calls)
                if options.device == "cuda":
                    torch.cuda.synchronize()
                if turn >= 5:
                    times[name].append(time_ns / 1e3)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print("host time of a call, us, %s, median of %d rounds of %d calls" % (options.device, options.rounds, options.calls))
    for name, median in medians.items():
        print("  %-45s %8.2f   %+7.2f" % (name, median, median - medians["C"]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": options.device, "us": medians}, file, indent=1)


if __name__ == "__main__":
    main()
