"""What screens of 8 and 4 bits decide and gain on a GPU, on a head like a real model's (language.py) and on a real one.

    python bench/gpu_real_screens.py [--real DIR] [--json FILE]        DIR: what `make real` has written

A call of one row is captured for each row, so that none knows how the one before it ended, and timed once: a row that
the screen does not decide takes the screen's time and W's. ("decided" means nothing on a head so small that reading the
screen alone takes longer than W.) Then calls of several rows are timed beside W, in turn.
Tokens are compared with those of W.
"""
import argparse
import os
import statistics

import language
import report
from gpu_bench import add_run_options, begin_run

SHAPE = (151936, 4096)
ROWS, BATCHES, BITS = 64, (1, 4, 8, 16, 32), (8, 4)
RULES = {"T = 1": {}, "T = .7": {"temperature": 0.7}, "greedy": {"temperature": 0.0}, "top-k 40": {"top_k": 40}}
FAILED = 1.15  # of W's time: a call that takes longer has read both


def made(bench):
    """A head and hidden states of language.py on the device, [V, D] and [ROWS, D]."""
    W, H = language.head_and_hidden(*SHAPE, ROWS)
    return bench.torch.from_numpy(W).to(bench.device).bfloat16(), bench.torch.from_numpy(H).to(bench.device).bfloat16()


def read(bench, folder):
    import numpy as np

    def load(name):
        bits = np.load(os.path.join(folder, name + ".npy"))
        return bench.torch.from_numpy(bits.view(np.int16)).to(bench.device).view(bench.torch.bfloat16)
    H = bench.torch.cat([load(name) for name in ("prose", "code", "chat")])
    return load("head"), H[:: max(1, len(H) // ROWS)][:ROWS].contiguous()


def rules_of(bench, rows, rules):
    torch = bench.torch
    return {name: torch.full((rows,), value, dtype=torch.int32 if isinstance(value, int) else torch.float32,
                             device=bench.device) for name, value in {"temperature": 1.0, **rules}.items()}


def call(bench, head, H, rules):
    row = bench.torch.arange(len(H), device=bench.device)
    batch = bench.fs.Batch(head, H, seed=row * 7919 + 13, position=bench.position[:len(H)], **rules)
    result = bench.fs.Result(batch, ())
    return lambda: bench.context.sample(head, batch, out=result)


def once(bench, head, H, rules):
    """The time of each row's call, and its token."""
    times, tokens = [], []
    for b in range(len(H)):
        run = call(bench, head, H[b:b + 1].contiguous(), rules_of(bench, 1, rules))
        graph = bench.torch.cuda.CUDAGraph()
        with bench.torch.cuda.graph(graph, stream=bench.stream):
            result = run()
        times.append(bench.time_once(graph))
        tokens.append(int(result.tokens.flatten()[0]))
    bench.renew_context()
    return times, tokens


def measure(bench, name, W, H, reps):
    fs, plain = bench.fs, bench.fs.Head(W, constant=True)
    found = []
    for bits in BITS:
        for rule, rules in RULES.items():
            first = call(bench, plain, H[:1], rules_of(bench, 1, rules))
            first()
            screened = fs.Head(W, constant=True, screen=bench.context.screen(plain, bits, seed=5))
            call(bench, screened, H[:1], rules_of(bench, 1, rules))()  # the first call checks the screen
            here = bench.position.clone()
            theirs, wanted = once(bench, plain, H, rules)
            bench.position.copy_(here)
            screened = fs.Head(W, constant=True, screen=bench.context.screen(plain, bits, seed=5))
            call(bench, screened, H[:1], rules_of(bench, 1, rules))()
            times, tokens = once(bench, screened, H, rules)
            limit = FAILED * statistics.median(theirs)
            line = {"head": name, "bits": bits, "rules": rule, "rows": len(H),
                    "decided": sum(time < limit for time in times), "one": statistics.median(times),
                    "differ": sum(a != b for a, b in zip(tokens, wanted)), "W": statistics.median(theirs)}
            if rule in ("T = 1", "top-k 40"):
                screened = fs.Head(W, constant=True, screen=bench.context.screen(plain, bits, seed=5))
                for B in BATCHES:
                    some, r = H[:B].contiguous(), rules_of(bench, B, rules)
                    call(bench, screened, some, r)()
                    arms = {"W": call(bench, plain, some, r), "screen": call(bench, screened, some, r)}
                    pair = bench.time_in_turn(arms, reps, 8)
                    line["B = %d" % B] = [round(pair[arm][1], 1) for arm in ("W", "screen")]
                bench.renew_context()
            print(line, flush=True)
            found.append(line)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", metavar="DIR", help="also the real head there")
    parser.add_argument("--reps", type=int, default=30, help="timed repetitions of each call (default %(default)s)")
    add_run_options(parser)
    arguments = parser.parse_args()
    arguments.warm_ups = 8
    os.environ.setdefault("FLASHSAMPLING_SCREEN_ROWS", "32")  # screens are read, also where W is faster
    bench, facts = begin_run(arguments)
    lines = measure(bench, "{:,} x {:,}, like a real one".format(*SHAPE), *made(bench), arguments.reps)
    if arguments.real:
        lines += measure(bench, "real", *read(bench, arguments.real), arguments.reps)
    if arguments.json:
        report.save(arguments.json, dict(facts, lines=lines))


if __name__ == "__main__":
    main()
