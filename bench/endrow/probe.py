"""A prototype's pass over W and end of rows (bench/endrow) beside plain draws and today's top-k 50 with top-p .95.

    FLASHSAMPLING_LIBRARY=... PYTHONPATH=python python bench/endrow/probe.py LIBENDROW [--json FILE] [--reps N]

First tokens against today's path, of many kinds of rows; then, at each batch size, graphs in turn with the L2 cache
overwritten before each: plain, today's rules, the prototype's pass and end, its pass alone.
"""
import argparse
import ctypes
import json
import statistics
import sys
import time

import gpu_bench
import gpu_rule_arms

V, D = 151936, 4096
BATCHES = (8, 33, 64, 128, 256)
BARS = {8: 1.06, 33: 1.08, 64: 1.10, 128: 1.12, 256: 1.08}
ROUNDS = 16  # ENDROW_ROUNDS


class Draw(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("temperature", "seed", "position", "top_k", "top_p", "token", "stat")]
    _fields_ += [("vocab", ctypes.c_int32)]


class Launch(ctypes.Structure):
    _fields_ = [("w", ctypes.c_void_p), ("h", ctypes.c_void_p), ("vocab", ctypes.c_int64), ("dim", ctypes.c_int64),
                ("rows", ctypes.c_int64), ("logits", ctypes.c_void_p), ("stride", ctypes.c_int64),
                ("most", ctypes.c_void_p), ("strips", ctypes.c_int64), ("zero", ctypes.c_void_p), ("draw", Draw),
                ("passes", ctypes.c_int32), ("ends", ctypes.c_int32), ("rounds", ctypes.c_int32)]


class Prototype:
    """The library, its work memory, and one call of it."""

    def __init__(self, bench, path, W, most):
        torch, device = bench.torch, bench.device
        self.bench, self.W, self.library = bench, W, ctypes.CDLL(path)
        self.library.endrow_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.check(self.library.endrow_open())
        self.stride = V
        self.logits = torch.full((most, self.stride), float("nan"), device=device)
        self.most = torch.zeros(most * (V // 128 + 1) * 8, device=device)
        self.zero = torch.zeros(most + 2 * ROUNDS, dtype=torch.int32, device=device)
        self.stat = torch.zeros(most, 2, dtype=torch.int32, device=device)

    def check(self, error):
        if error:
            sys.exit("probe: the prototype gave error %d" % error)

    def tile(self, B):
        strips = ctypes.c_int()
        return self.library.endrow_tile(B, ctypes.byref(strips)), strips.value

    def call(self, H, temperature, seed, position, top_k, top_p, passes=1, ends=1, rounds=ROUNDS):
        """A function that queues a call and returns its tokens."""
        B, torch = len(H), self.bench.torch
        assert H.is_contiguous() and self.W.is_contiguous()
        token = torch.full((B,), -9, dtype=torch.int32, device=self.bench.device)
        strips = self.tile(B)[1]
        p = lambda array: None if array is None else array.data_ptr()
        draw = Draw(p(temperature), p(seed), p(position), p(top_k), p(top_p), p(token), p(self.stat), V)
        launch = Launch(p(self.W), p(H), V, D, B, p(self.logits), self.stride, p(self.most), (V // 128 + 1) * strips,
                        p(self.zero), draw, passes, ends, rounds)
        kept = (H, temperature, seed, position, top_k, top_p)

        def run():
            assert kept
            self.check(self.library.endrow_launch(ctypes.byref(launch), self.bench.stream.cuda_stream))
            return token
        return run


def arrays(bench, B):
    row = bench.torch.arange(B, device=bench.device)
    return row * 7919 + 13, bench.position[:B]


def compare(bench, prototype, head, rows, B, kind, H, times, random):
    """(rows, open, different) tokens of some calls against today's path."""
    torch, device = bench.torch, bench.device
    total = opened = differ = 0
    seed, position = arrays(bench, B)
    ones = torch.ones(B, device=device)
    for i in range(times):
        if random and i % 2:
            k = torch.randint(1, 200, (B,), dtype=torch.int32, device=device)
            p = torch.rand(B, device=device).clamp(0.05, 1)
            p[::5] = 1
            T = torch.rand(B, device=device) * 1.5 + 0.5
        else:
            k = torch.full((B,), 50, dtype=torch.int32, device=device)
            p, T = torch.full((B,), 0.95, device=device), ones
        if i % 4 == 2:
            p = None
        rules = {"temperature": T, "top_k": k, **({} if p is None else {"top_p": p})}
        batch = bench.fs.Batch(head, H, seed=seed, position=position, **rules)
        result = bench.fs.Result(batch, ())
        bench.context.sample(head, batch, out=result)
        mine = prototype.call(H, T, seed, position, k, p)()
        torch.cuda.synchronize()
        want = result.tokens.reshape(-1)
        total += B
        opened += int((mine < 0).sum())
        differ += int(((mine != want) & (mine >= 0)).sum())
        bench.position.add_(1)
    return total, opened, differ


def stored(bench, prototype, H, rules):
    """Logits stored per row by a pass, and strips and candidates of a row at its end: (mean, largest) each."""
    seed, position = arrays(bench, len(H))
    B = len(H)
    prototype.logits[:B].fill_(float("nan"))
    prototype.call(H, rules["temperature"], seed, position, rules["top_k"], rules["top_p"])()
    bench.torch.cuda.synchronize()
    kept = (~prototype.logits[:B].isnan()).sum(dim=1).float()
    stat = prototype.stat[:B].float()
    return [(x.mean().item(), x.max().item()) for x in (kept, stat[:, 0], stat[:, 1])]


def kernels(bench, run, before):
    """{kernel: median us} of a call, after a flush."""
    from torch.profiler import ProfilerActivity, profile

    run()
    bench.torch.cuda.synchronize()
    found = {}
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(12):
            bench.position.add_(1)
            before()
            bench.torch.mm(bench.square, bench.square)
            bench.flush.fill_(1)
            run()
        bench.torch.cuda.synchronize()
    for event in seen.events():
        name = event.name.replace("(anonymous namespace)::", "").replace("void ", "")
        ours = "CUDA" in str(event.device_type) and not any(
            word in name for word in ("at::", "gemm", "nvjet", "cutlass", "Memset", "Memcpy"))
        if ours:
            found.setdefault(name.split("(")[0][:44], []).append(event.device_time)
    return {name: round(statistics.median(times), 1) for name, times in found.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--reps", type=int, default=120)
    parser.add_argument("--json")
    given = parser.parse_args()
    gpu_bench.build_ceiling = lambda torch, folder: None
    began = time.monotonic()
    bench = gpu_bench.open_bench(".")
    torch = bench.torch
    print("%s, %s, reps %d" % (torch.cuda.get_device_name(), bench.context.text, given.reps))
    W = bench.weights(V, D)
    rows = gpu_rule_arms.Rows(bench, W, max(BATCHES))
    head = bench.fs.Head(W)
    prototype = Prototype(bench, given.library, W, max(BATCHES))
    print("set up in %.0f s" % (time.monotonic() - began), flush=True)

    found = {"tokens": {}, "times": {}}
    for B in BATCHES:
        for kind, (H, _) in rows.kinds.items():
            times = 24 if kind == "language" else 6
            counts = compare(bench, prototype, head, rows, B, kind, H[:B].contiguous(), times, True)
            found["tokens"]["%d %s" % (B, kind)] = counts
            print("tokens  B %3d  %-9s %6d rows, %d open, %d differ" % (B, kind, *counts), flush=True)

    original = bench.time_once
    for B in BATCHES:
        H = rows.H[:B].contiguous()
        rules = {**rows.arrays(B, temperature=1.0), **rows.arrays(B, top_k=50, top_p=0.95)}
        seed, position = arrays(bench, B)
        by_name = (rules["temperature"], seed, position, rules["top_k"])
        call = lambda more: gpu_rule_arms.Call(H, None, {**rows.arrays(B, temperature=1.0), **more}).on(bench, head)
        runs = {"plain": call({}), "today k50 p95": call(rows.arrays(B, top_k=50, top_p=0.95)),
                "today k50": call(rows.arrays(B, top_k=50)),
                "proto k50 p95": prototype.call(H, *by_name, rules["top_p"]),
                "proto k50": prototype.call(H, *by_name, None),
                "pass alone": prototype.call(H, *by_name, rules["top_p"], ends=0),
                "pass, floors of the first round": prototype.call(H, *by_name, rules["top_p"], ends=0, rounds=1),
                "pass, nothing stored": prototype.call(H, *by_name, rules["top_p"], ends=0, rounds=-1)}
        counts = stored(bench, prototype, H, rules)
        graphs = {}
        for name, run in runs.items():
            graphs[name] = bench.capture(run)
            prototype.zero.zero_()  # a pass alone leaves its floors

        def time_once(graph):
            prototype.zero.zero_()
            return original(graph)
        bench.time_once = time_once
        times = bench.time_graphs(graphs, given.reps, 15)
        bench.time_once = original
        plain = times["plain"][1]
        ratio = times["proto k50 p95"][1] / plain
        try:
            inside = {name: kernels(bench, runs[name], prototype.zero.zero_)
                      for name in ("plain", "today k50 p95", "proto k50 p95", "pass alone")}
        except Exception as error:  # the profiler is an extra
            inside = {"error": repr(error)}
        prototype.zero.zero_()
        found["times"][B] = {"median": {n: t[1] for n, t in times.items()}, "min": {n: t[0] for n, t in times.items()},
                             "stored": counts, "tile": prototype.tile(B), "kernels": inside}
        print("B %3d  " % B + ", ".join("%s %.1f (%.3f)" % (n, t[1], t[1] / plain) for n, t in times.items()))
        print("       stored %.1f KB a row (%.1f %% of it; most %.1f KB) + maxima %.1f KB; strips at the end %.0f, most "
              "%.0f; candidates %.0f, most %.0f" % (counts[0][0] * 4 / 1024, counts[0][0] * 100 / V,
              counts[0][1] * 4 / 1024, V // 128 * prototype.tile(B)[1] * 4 / 1024, *counts[1], *counts[2]))
        for name, one in inside.items():
            print("       kernels of %s: %s" % (name, one))
        print("       bar %.2f: %s" % (BARS[B], "met" if ratio <= BARS[B] else "MISSED"), flush=True)
        if given.json:
            with open(given.json, "w") as file:
                json.dump(found, file, indent=1)
        graphs.clear()
    differ = sum(c[2] for c in found["tokens"].values())
    print("\n%d rows compared, %d open, %d differ" % tuple(sum(c[i] for c in found["tokens"].values()) for i in range(3)))
    print("  B    plain    today    proto  pass alone   over plain: today  proto  pass   bar")
    for B, one in found["times"].items():
        m = one["median"]
        base = m["plain"]
        print("%3d  %7.1f  %7.1f  %7.1f  %10.1f  %17.3f  %5.3f  %5.3f  %.2f" % (
            B, base, m["today k50 p95"], m["proto k50 p95"], m["pass alone"], m["today k50 p95"] / base,
            m["proto k50 p95"] / base, m["pass alone"] / base, BARS[B]))
    missed = [B for B, one in found["times"].items() if one["median"]["proto k50 p95"] > BARS[B] * one["median"]["plain"]]
    opened = sum(c[1] for name, c in found["tokens"].items() if "language" in name)
    print("VERDICT: %s; bars missed at %s, %d tokens differ, %d language rows open; took %.0f s" % (
        "no" if missed or differ or opened else "go on", missed or "no batch size", differ, opened,
        time.monotonic() - began))
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
