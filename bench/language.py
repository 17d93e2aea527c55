"""A synthetic head and hidden states with what a screen meets in a language model's.

    python bench/language.py --real build/real              beside the real one of `make real`, over prose and code
    python bench/language.py --vocab 49152 --dim 576        the synthetic one alone

A few columns hold most of the energy of hidden states, most of it in their mean; W has a mean row in the same columns,
and rows of many sizes. So a step of 4 bits is too coarse for these columns, and one scale for a group that has one of
them is too coarse for its neighbours. The printed numbers of a screen follow docs/explain/screens.md: R is its bound in
deviations of the logits, "in reach" the tokens whose upper bound reaches the best score at T = 1.
"""
import argparse
import math
import os
import sys

import numpy as np

COLUMNS = (4, 32, 64)  # the columns with most energy: so many hold
ENERGY = (0.66, 0.84, 0.87)  # such shares of the energy of hidden states
MEAN = 0.63  # share of it that is the mean over positions, in the first four
LENGTH = 48.0  # of hidden states
ROW, SPREAD, SKEW = 2.35, 0.17, 0.023  # size of W's rows without the mean row, and how its logarithm varies
MEAN_ROW, UNEVEN = 2.05, 0.15  # size of W's mean row, and how far its share of a row varies
ALIKE = 0.35  # how far the mean row is in the columns of hidden states: a power of their energy
TAILS = 0.08  # what makes a few weights of every row large
LARGE = 0.45  # size of W in the first 64 columns, beside that in others
LIKELY = (3.0, 6.0)  # what raises the likely tokens of a context, from least to most, in deviations of the logits
ETA = 1e-16


def head_and_hidden(V, D, rows, seed=1):
    """W [V, D] and H [rows, D], float32."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(D)
    energy = np.full(D, (1 - ENERGY[2]) / (D - COLUMNS[2]))
    first, share = 0, 0.0
    for count, until in zip(COLUMNS, ENERGY):
        energy[first:count] = (until - share) / (count - first)
        first, share = count, until
    mean = np.zeros(D)
    mean[:4] = np.sqrt(MEAN / 4)
    own = np.sqrt(energy - mean**2)
    size = np.where(np.arange(D) < COLUMNS[2], LARGE, 1.0)
    row = energy**ALIKE * rng.choice([-1.0, 1.0], D)  # of W, its mean: in the columns of H, but not along its mean
    row[:4] -= mean[:4] * (row[:4] @ mean[:4]) / (mean[:4] @ mean[:4])
    W = rng.standard_normal((V, D), dtype=np.float32)
    W += TAILS * W**3
    W *= (size / np.sqrt((size**2).sum() * (1 + 6 * TAILS + 15 * TAILS**2))).astype(np.float32)
    spread = rng.standard_normal(V)
    W *= (ROW * np.exp(SPREAD * spread + SKEW * spread**2))[:, None].astype(np.float32)
    H = mean + own * rng.standard_normal((rows, D))
    deviation = np.sqrt(((W[:4096].astype(np.float64) @ H.T) ** 2).mean())
    for b in range(rows):  # likely tokens, the further the less, raised by a direction in the small columns
        likely = rng.integers(0, V, 24)
        small = np.where(np.arange(D) < COLUMNS[2], 0.0, W[likely].astype(np.float64))
        raised = rng.uniform(*LIKELY) * deviation * np.maximum(0.2, 1.0 - 0.3 * np.log1p(np.arange(24)))
        H[b] += (raised / (small**2).sum(axis=1)) @ small * 0.6
    H *= LENGTH / np.linalg.norm(H, axis=1, keepdims=True)
    share = (1 + UNEVEN * rng.standard_normal(V)).astype(np.float32)  # of the mean row, in each row
    W += share[:, None] * (MEAN_ROW * row / np.linalg.norm(row)).astype(np.float32)
    back = np.empty(D, np.int64)
    back[order] = np.arange(D)
    return np.ascontiguousarray(W[:, back]), np.ascontiguousarray(H[:, back].astype(np.float32))


def bound(W, H, order, kept):
    """The bound of rows rounded at random, by its definition, [rows, V]: `kept` columns in 8 bits."""
    square = np.zeros((len(H), len(W)), np.float32)
    for at in range(0, W.shape[1], 64):
        some = order[at:at + 64]
        up, down = (119, 136) if at < kept else (7, 8)
        step = np.maximum(W[:, some].max(1) / up, -W[:, some].min(1) / down)
        square += (H[:, some] ** 2).sum(1)[:, None] * (step * step)[None]
    return math.sqrt(math.log(1 / ETA) / 2) * np.sqrt(square)


def figures(W, H, seed=1):
    """What the two are compared by."""
    rng = np.random.default_rng(seed)
    energy = np.sort((H**2).mean(0))[::-1]
    share = energy.cumsum() / energy.sum()
    some = H[rng.choice(len(H), 72, replace=False)]
    logits = some @ W.T
    deviation = logits.std(1)
    score = logits - np.log(-np.log(np.clip(rng.random(logits.shape, dtype=np.float32), 1e-12, 1 - 1e-7)))
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    found = {"energy of H in %d columns" % n: share[n - 1] for n in COLUMNS}
    found["mean over positions"] = (H.mean(0) ** 2).sum() / energy.sum()
    norms = np.quantile(np.linalg.norm(W, axis=1), (0, 0.5, 1))
    found.update(zip(("least row of W", "median row", "largest row"), norms))
    found["deviation of logits"] = deviation.mean()
    found["largest probability"] = np.median(p.max(1))
    natural, by_w = np.arange(W.shape[1]), np.argsort(-(W**2).sum(0))
    for name, order, kept in (("4 bits", natural, 0), ("4 + 8 bits", by_w, 64)):
        wide = bound(W, some, order, kept)
        found["R of %s" % name] = np.median(wide / deviation[:, None])
        found["in reach, %s" % name] = np.median((score + wide >= score.max(1, keepdims=True)).sum(1))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", metavar="DIR")
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--dim", type=int, default=576)
    o = parser.parse_args()
    made = figures(*head_and_hidden(o.vocab, o.dim, 256))
    real = None
    if o.real:
        read = {name: np.load(os.path.join(o.real, name + ".npy")) for name in ("head", "prose", "code")}
        read = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, bits in read.items()}
        real = figures(read["head"], np.concatenate([read[name] for name in ("prose", "code")]))
    for name, value in made.items():
        beside = "   real %9.3f   %.2f of it" % (real[name], value / real[name]) if real else ""
        print("%-32s %9.3f%s" % (name, value, beside))


if __name__ == "__main__":
    sys.exit(main())
