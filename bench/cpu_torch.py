"""The CPU backend beside PyTorch: python3 bench/cpu_torch.py FLASHSAMPLE [--batch LIST] [--dim D] [--dtype NAME] ...

PyTorch multiplies with the library it was built with (oneDNN on x86): `linear` alone, which leaves logits in memory,
and with a draw of them (Gumbel noise and argmax). Ours is the whole call, by `flashsample bench --json`. Each number of
rows is timed by both, one after the other, with as many threads and copies of W taken in turn. Needs torch.
"""
import argparse
import json
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("cpu_torch.py: torch is missing (pip install torch)")

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def row_counts(text):
    return [positive(rows) for rows in text.split(",")]


def ours(args, rows):
    words = [args.program, "bench", "--json", "--quiet", "--seconds", str(args.seconds), "--vocab", str(args.vocab),
             "--dim", str(args.dim), "--dtype", args.dtype, "--threads", str(args.threads), "--batch", str(rows)]
    result = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)["results"][0]
    return result["min_s"], result["median_s"]


def timed(call, seconds):
    """The fastest and the median, of five calls at least; the first is not counted."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    times.sort()
    return times[0], times[len(times) // 2]


def theirs(args, heads, rows):
    hidden = torch.randn(rows, args.dim).to(DTYPES[args.dtype])
    turn = 0

    def linear():
        nonlocal turn
        turn += 1
        return torch.nn.functional.linear(hidden, heads[turn % len(heads)])

    def draw():
        logits = linear().float()
        return (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)

    with torch.inference_mode():
        return timed(linear, args.seconds), timed(draw, args.seconds)


def timed_draw(args, heads, rows):
    """Matmul, softmax and torch.multinomial: what a PyTorch user writes."""
    hidden, turn = torch.randn(rows, args.dim).to(DTYPES[args.dtype]), 0

    def draw():
        nonlocal turn
        turn += 1
        logits = torch.nn.functional.linear(hidden, heads[turn % len(heads)])
        return torch.multinomial(torch.softmax(logits.float(), dim=-1), 1)

    with torch.inference_mode():
        return timed(draw, args.seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the flashsample to run")
    parser.add_argument("--batch", type=row_counts, default="1,4,16,64,256", help="rows (default %(default)s)")
    parser.add_argument("--vocab", type=positive, default=151936, help="default %(default)s")
    parser.add_argument("--dim", type=positive, default=1024, help="default %(default)s")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of W and H (default %(default)s)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="default %(default)s")
    parser.add_argument("--copies", type=positive, default=2, help="of W, for PyTorch (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure (default %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    heads = [(torch.randn(args.vocab, args.dim) * 0.02).to(DTYPES[args.dtype]) for _ in range(args.copies)]
    print(f"{args.dtype}, V = {args.vocab:,}, D = {args.dim:,}, {args.threads} threads, PyTorch {torch.__version__};"
          " fastest (median), ms\n")
    print(f"  {'rows':>5}  {'ours, with a draw':>19}  {'linear alone':>19}  {'linear and a draw':>19}")
    for rows in args.batch:
        figures = [ours(args, rows), *theirs(args, heads, rows)]
        print(f"  {rows:5}  " + "  ".join(f"{1e3 * low:9.2f} ({1e3 * mid:7.2f})" for low, mid in figures), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"cpu_torch.py: {error}")
