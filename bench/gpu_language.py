"""Rows like those of a language model: one likely token, a Zipf tail, ids in random order, made by W and H.

Behind the columns of gpu_rows.py W has PROFILES more, each -log(rank) of another random order of the tokens. A row of H
picks one with a weight, the exponent of its Zipf tail, and is random elsewhere: every logit is off the tail by a normal
number of deviation .3, so that no two rows have the same order. Rows whose largest probability is not from .2 to .6 are
left out.

Of 300 such rows, V = 151,936, D = 256, on a CPU, 5 %, median, 95 % and most (describe()): largest probability .23, .39,
.55, .60; nucleus at p = .9 12, 42, 843, 3,410 tokens, at .95 29, 146, 4,720, 15,700; entropy 2.2, 3.0, 4.8, 5.6 nats.
"""
import sys

from gpu_rows import COLUMNS

PROFILES = 16
EXPONENTS = (1.2, 1.8)
RANDOM = 0.12  # size of what is random in H; that of weights times the root of D is 2.5
LARGEST = (0.2, 0.6)
SPARE = 2.0  # rows made for each that is kept
QUANTILES = (0.05, 0.5, 0.95, 1.0)


def profiles(V):
    """[V, PROFILES] float32. Rounded to bf16 they are off by less than what is random in a row."""
    import numpy as np

    random = np.random.default_rng(2)
    return np.stack([-np.log(1.0 + random.permutation(V)) for _ in range(PROFILES)], axis=1).astype(np.float32)


def picks(rows):
    """[rows, PROFILES] float32: one exponent in each row."""
    import numpy as np

    random, found = np.random.default_rng(3), np.zeros((rows, PROFILES), np.float32)
    found[np.arange(rows), np.arange(rows) % PROFILES] = random.uniform(*EXPONENTS, rows)
    return found


def describe(logits):
    """Quantiles of the largest probability, the nuclei and the entropy of rows [B, V] of numpy."""
    import numpy as np

    found = {"p_max": [], "nucleus .9": [], "nucleus .95": [], "entropy": []}
    for row in np.asarray(logits, np.float64):
        p = np.sort(np.exp(row - row.max()))[::-1]
        p /= p.sum()
        mass = np.cumsum(p)
        found["p_max"].append(p[0])
        found["nucleus .9"].append(1 + np.searchsorted(mass, 0.9))
        found["nucleus .95"].append(1 + np.searchsorted(mass, 0.95))
        found["entropy"].append(-np.sum(p * np.log(np.maximum(p, 1e-300))))
    return {name: [float("%.3g" % value) for value in np.quantile(values, QUANTILES)]
            for name, values in found.items()}


# ---------------------------------------------------------------------------------------------- on the device ----


def plant(bench, W):
    """Gives a head its columns, behind those of gpu_rows.plant."""
    W[:, COLUMNS:COLUMNS + PROFILES] = bench.torch.from_numpy(profiles(W.shape[0])).to(W)


def clear(H):
    """H, picking none of the profiles."""
    H[:, COLUMNS:COLUMNS + PROFILES] = 0
    return H


def hidden(bench, exact, rows):
    """[rows, D] bfloat16 and their logits [rows, V] float32. exact is W in float32, transposed."""
    torch = bench.torch
    made = int(SPARE * rows) + PROFILES
    H = torch.randn(made, exact.shape[0], device=bench.device) * RANDOM
    H[:, :COLUMNS] = 0
    H[:, COLUMNS:COLUMNS + PROFILES] = torch.from_numpy(picks(made)).to(H)
    H = H.bfloat16()
    logits = H.float() @ exact
    largest = (logits.max(dim=1).values - logits.logsumexp(dim=1)).exp()
    kept = ((largest >= LARGEST[0]) & (largest <= LARGEST[1])).nonzero()[:rows, 0]
    if len(kept) < rows:
        sys.exit("bench: only %d of %d rows have a largest probability of %g to %g, expected %d"
                 % (len(kept), made, *LARGEST, rows))
    return H[kept].contiguous(), logits[kept].contiguous()
