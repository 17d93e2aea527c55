"""Draws by screens beside draws from W on the CPU: medians of the ratios of calls that take turns.

    python bench/screen_times.py --real build/real          the head and hidden states that `make real` has written
    python bench/screen_times.py --language 151936,1024     a synthetic head like a language model's

Every call draws one row (or --rows), each time another hidden state, on one thread, whose CPU time is taken: waiting
for a busy machine is no part of it. FLASHSAMPLING_ISA=avx512 measures VNNI where the
CPU has more. Tokens of every arm must be the same.
"""
import argparse
import os
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

import flashsampling as fs  # noqa: E402

RULES = {"T = 1": {}, "top-k 40": dict(top_k=40), "top-k 40, top-p .95, min-p .05": dict(top_k=40, top_p=0.95, min_p=0.05)}
BITS = ("8", "4+8", "4+8 by H")
CHOOSING = 8


def real(folder):
    read = {name: np.load(os.path.join(folder, name + ".npy")) for name in ("head", "prose", "code", "chat")}
    return read["head"], np.concatenate([read[name] for name in ("prose", "code", "chat")])


def language(V, D):
    import language as made

    W, H = made.head_and_hidden(V, D, 256)
    return fs.to_bf16(W), fs.to_bf16(H)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--real", metavar="DIR")
    add("--language", metavar="V,D")
    add("--rows", type=int, default=1)
    add("--calls", type=int, default=200)
    add("--columns", type=int, default=0, help="kept in 8 bits (0: the default)")
    o = parser.parse_args()
    if bool(o.real) == bool(o.language):
        parser.error("exactly one of --real and --language")
    W, H = real(o.real) if o.real else language(*map(int, o.language.split(",")))
    os.environ["FLASHSAMPLING_SCREEN_ROWS"] = "1048576"  # in every call, whatever has become of the last one
    with fs.Context("cpu", threads=1) as context:
        plain, rng = fs.Head(W, dtype="bf16"), np.random.default_rng(1)
        heads = {"W": plain}
        for name in BITS:
            some = dict(columns=o.columns) if name.startswith("4+8") else {}
            if name.endswith("H"):
                some["hidden"] = H[rng.choice(len(H), CHOOSING, replace=False)]
            heads[name] = fs.Head(W, dtype="bf16", screen=context.screen(plain, name.split(" ")[0], seed=1, **some))
        print("%s; %d x %d, %d rows a call" % (context.text, *W.shape, o.rows))
        for rule, rules in RULES.items():
            times, dots, decided = {name: [] for name in heads}, {name: [] for name in heads}, dict.fromkeys(heads, 0)
            for i in range(-4, o.calls):
                rows = np.ascontiguousarray(H[rng.choice(len(H), o.rows, replace=False)])
                tokens = {}
                for name, head in heads.items():
                    begin = time.thread_time()
                    tokens[name] = context.sample(head, rows, hidden_dtype="bf16", seed=i + 100, **rules).tokens
                    times[name].append(time.thread_time() - begin)
                    if i >= 0:
                        dots[name].append(context.counters.screened_dots / o.rows)
                        decided[name] += context.counters.screened_rows
                if any(not np.array_equal(tokens[name], tokens["W"]) for name in heads):
                    sys.exit("screen_times: other tokens than from W: %s" % tokens)
            print("%-32s W %6.2f ms" % (rule, 1e3 * np.median(times["W"][4:])), end="")
            for name in BITS:
                ratio = np.median(np.array(times[name][4:]) / np.array(times["W"][4:]))
                print("  | %s: %.2f, %.0f logits, %.0f %% decided"
                      % (name, ratio, np.median(dots[name]), 100 * decided[name] / (o.calls * o.rows)), end="")
            print(flush=True)


if __name__ == "__main__":
    main()
