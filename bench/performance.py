"""Measures the figures of README.md and of docs/results/performance.md.

    python bench/performance.py gpu --json FILE     LM head and draw on a GPU, beside cuBLAS with FlashInfer and PyTorch
    python bench/performance.py cpu --json FILE     the same on a CPU, beside PyTorch

Each writes its part of FILE and leaves the other parts as they are. `python bench/performance_page.py FILE` makes the
page, its plots and the tables of README.md from it.

Rows are like those of a language model (gpu_language.py). How GPU calls are timed: gpu_bench.py. Before a call is timed
some of its tokens are compared with the CPU backend's.
"""
import argparse
import datetime
import json
import os
import sys

import cpu_torch
from gpu_bench import Eager, add_run_options, begin_run, first_line, invalid_reason

HEAD = (151936, 4096)  # Qwen3-8B
SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 384, 512)
COMPILED_SIZES = (1, 16, 64, 256)  # torch.compile takes seconds for each
RULES = ("plain", "top-k 50", "top-p .9", "top-k 50, top-p .95", "min-p .05", "mask", "penalties, edits",
         "logprob, top-20", "mixed")
# Heads of models: Gemma-3-1B, Llama-3-8B, DeepSeek-V3, Qwen3-1.7B, Qwen3-0.6B, GPT-2 (padded); and small vocabularies.
HEADS = ((262208, 1152), (128256, 4096), (129280, 7168), (151936, 2048), (151936, 1024), (50304, 768), (32000, 4096),
         (32000, 768), (16384, 2048), (8192, 1024))
HEAD_SIZES = (1, 16, 64, 128, 256)
CPU_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def make_compiled(bench, H, W):
    """Matmul, softmax and multinomial in one torch.compile, as a PyTorch user writes them."""
    import torch._dynamo as dynamo

    dynamo.config.recompile_limit = 4 * len(COMPILED_SIZES)
    torch = bench.torch
    run = torch.compile(lambda H, W: torch.multinomial(torch.softmax((H @ W.T).float(), dim=-1), 1), dynamic=False)
    run(H, W)
    return lambda: run(H, W)


def make_probs(bench, H, W, absent):
    """FlashInfer's sampler from probabilities, behind its softmax."""
    torch = bench.torch
    try:
        from flashinfer import sampling
        from paper_baselines import flashinfer_seed

        logits = torch.zeros(len(H), W.shape[0], device=bench.device)
        noise = flashinfer_seed(bench)

        def run():
            torch.mm(H, W.T, out=logits, out_dtype=torch.float32)
            return sampling.sampling_from_probs(sampling.softmax(logits), **noise)
        run()
        return {"+flashinfer probs": run}
    except Exception as error:  # as below
        absent["+flashinfer probs"] = "%s: %s" % (type(error).__name__, str(error).splitlines()[:1])
        return {}


def make_cake(bench, H, W, absent):
    """FlashInfer's newer sampler, behind its softmax: top-k 50, alone and with top-p .95, by row."""
    torch, B, V, found = bench.torch, len(H), W.shape[0], {}
    try:
        from flashinfer import sampling
        from flashinfer.cake_sampling import top_k_top_p_sampling_from_probs as draw

        logits = torch.zeros(B, V, device=bench.device)
        k = torch.full((B,), 50, dtype=torch.int32, device=bench.device)
        for rule, most in (("top-k 50", 1.0), ("top-k 50, top-p .95", 0.95)):
            def run(p=torch.full((B,), most, device=bench.device)):
                torch.mm(H, W.T, out=logits, out_dtype=torch.float32)
                return draw(sampling.softmax(logits), k, p, top_k_max=50, philox_seed=1, philox_offset=0)
            run()
            found["FI cake " + rule] = run
    except Exception as error:  # an optional peer that fails in many ways
        absent["FI cake"] = "%s: %s" % (type(error).__name__, str(error).splitlines()[:1])
    return found


def measure_rules(bench, effort, sizes, absent):
    """A line for each batch size of HEAD: every rule, and the peers of plain draws and of cuts."""
    import gpu_rules
    from gpu import line_of, make_pairs, say
    from gpu_rule_arms import Rows
    from paper_baselines import why_eager

    torch, fs, (V, D) = bench.torch, bench.fs, HEAD
    cpu, W = fs.Context("cpu"), bench.weights(V, D)
    rows, reader = Rows(bench, W, max(sizes)), bench.best_reader(W)
    head = fs.Head(W)
    for B in sizes:
        H, arms, differ = rows.H[:B], {}, [0, 0]
        for name, call in rows.calls(B).items():
            if name in RULES:
                run = call.on(bench, head)
                why, (other, of) = gpu_rules.checked(bench, cpu, call, run())
                differ = [differ[0] + other, differ[1] + of]
                if why:
                    sys.exit("bench: %s, B = %d: %s: nothing more was timed" % (name, B, why))
                arms[name] = run
        wide = torch.zeros(B, V, dtype=torch.bfloat16, device=bench.device)
        peers = {"cublas": lambda H=H, wide=wide: torch.mm(H, W.T, out=wide), **make_pairs(bench, H, W, wide, absent),
                 **make_probs(bench, H, W, absent), **gpu_rules.make_peers(bench, H, W, absent),
                 **make_cake(bench, H, W, absent)}
        if B in COMPILED_SIZES:
            peers["torch.compile"] = make_compiled(bench, H, W)
        arms.update({name: run if isinstance(run, Eager) or not why_eager(bench, run) else Eager(run)
                     for name, run in peers.items()})
        eager = [name for name, run in arms.items() if isinstance(run, Eager)]
        yield line_of(bench, W, reader, B, arms, effort, eager=eager, differ=differ)
        bench.renew_context()
        say("rules: B = %d" % B)


def measure_heads(bench, effort, absent):
    from gpu import measure_size, say

    for V, D in HEADS:
        W = bench.weights(V, D)
        reader = bench.best_reader(W)
        for B in HEAD_SIZES:
            yield measure_size(bench, W, reader, B, effort, absent)[0]
        bench.renew_context()
        bench.torch.cuda.empty_cache()
        say("heads: %d x %d" % (V, D))


def flashinfer_version():
    try:
        import flashinfer
        return flashinfer.__version__
    except ImportError:
        return ""


def save(path, part, found):
    """Replaces one part of a file; one record a line."""
    parts = {}
    if os.path.exists(path):
        with open(path) as file:
            parts = json.load(file)
    parts[part] = found
    with open(path, "w") as file:
        file.write("{\n%s\n}\n" % ",\n".join("%s: {\n%s\n}" % (json.dumps(name), ",\n".join(
            "%s: %s" % (json.dumps(key), "[\n%s\n]" % ",\n".join(map(json.dumps, value))
                        if value and isinstance(value, list) and isinstance(value[0], dict) else json.dumps(value))
            for key, value in one.items())) for name, one in sorted(parts.items())))


def slim(line):
    """A line with medians alone."""
    return dict(line, times={name: round(time["median"], 1) for name, time in line["times"].items()})


def gpu(arguments):
    bench, facts = begin_run(arguments)
    bench.verify()
    effort, absent = {"reps": arguments.reps, "warm_ups": arguments.warm_ups}, {}
    found = dict(facts, flashinfer=flashinfer_version(), head=HEAD, absent=absent, rules=[], heads=[])
    for name, lines in (("rules", measure_rules(bench, effort, arguments.rows or SIZES, absent)),
                        ("heads", measure_heads(bench, effort, absent))):
        for line in lines:
            found[name].append(slim(line))
            found["note"] = invalid_reason(found["rules"] + found["heads"])
            save(arguments.json, "gpu", found)
    print(found["note"] or "done")


def cpu(arguments):
    import torch

    torch.set_num_threads(arguments.threads)
    heads = [(torch.randn(arguments.vocab, arguments.dim) * 0.02).bfloat16() for _ in range(2)]
    found = {"cpu": first_line(["sh", "-c", "sed -n 's/^model name.*: //p' /proc/cpuinfo"]), "torch": torch.__version__,
             "threads": arguments.threads, "V": arguments.vocab, "D": arguments.dim, "lines": [],
             "commit": arguments.commit or first_line(["git", "rev-parse", "--short", "HEAD"]),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}
    for rows in arguments.rows or CPU_SIZES:
        ours, (matmul, draw) = cpu_torch.ours(arguments, rows), cpu_torch.theirs(arguments, heads, rows)
        multinomial = cpu_torch.timed_draw(arguments, heads, rows)
        found["lines"].append({"B": rows, **{name: [round(1e3 * t, 3) for t in times] for name, times in (
            ("ours", ours), ("matmul", matmul), ("gumbel", draw), ("multinomial", multinomial))}})
        print(found["lines"][-1], flush=True)
        save(arguments.json, "cpu", found)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("gpu", help="needs a GPU, torch and the CUDA library")
    one.set_defaults(run=gpu, warm_ups=8)
    one.add_argument("--reps", type=int, default=40, help="timed repetitions of each arm (default %(default)s)")
    one.add_argument("--rows", type=int, nargs="+", metavar="B", help="these batch sizes")
    add_run_options(one)
    two = commands.add_parser("cpu", help="needs torch and a built flashsample")
    two.set_defaults(run=cpu, dtype="bf16")
    two.add_argument("program", help="the flashsample to run")
    two.add_argument("--json", metavar="FILE", required=True)
    two.add_argument("--commit", metavar="TEXT")
    two.add_argument("--rows", type=int, nargs="+", metavar="B", help="these batch sizes")
    two.add_argument("--vocab", type=int, default=151936)
    two.add_argument("--dim", type=int, default=1024)
    two.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    two.add_argument("--seconds", type=float, default=1.0, help="for each figure (default %(default)s)")
    arguments = parser.parse_args()
    if not arguments.json:
        parser.error("--json FILE: the figures have to be kept")
    return arguments


if __name__ == "__main__":
    chosen = parse()
    chosen.run(chosen)
