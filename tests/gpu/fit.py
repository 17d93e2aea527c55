"""What counts, pairs and scores say about the law they were drawn from: p-values, and the error that would have shown.

Every p-value is held against ALPHA. Numpy and scipy alone, so that tests/py can test these functions where there is no
GPU.
"""
import collections
import math

import numpy as np
from scipy import stats

ALPHA = 1e-6  # a right sampler fails one p-value with this probability
POWER = 0.99  # an error of the size `sees` fails it with this one
LEAST = 10  # draws a cell of a chi-squared sum expects; what expects fewer is one cell together
LOWEST = -11  # decade of probability that also holds what is below it
TILE = 128  # tokens of a tile of the kernel, and of a block of the noise

# sees: for chi-squared the root mean square of the probabilities' relative errors, each weighted by its probability
# (twice the total variation where all are equal); for Kolmogorov-Smirnov the distance; None where bins tell it.
# bins: 0 where there are none.
Fit = collections.namedtuple("Fit", "what n bins p sees")
Bin = collections.namedtuple("Bin", "decade tokens expected seen p")


def rejects(found):
    return not found.p >= ALPHA  # a NaN is no acceptance


def line(found):
    what, n, bins, p, sees = found
    text = "%-40s n %11s  bins %6s  p %-9.3g" % (what, "{:,}".format(n), "{:,}".format(bins) if bins else "-", p)
    return text + ("" if sees is None else "  sees %.2g" % sees)


def chi_squared_sees(df, n):
    """The error that ALPHA rejects with probability POWER; the noncentral law is taken for normal."""
    beyond = stats.chi2.isf(ALPHA, df) - df
    z = stats.norm.ppf(POWER)
    b = beyond + 2 * z * z
    return math.sqrt((b + math.sqrt(b * b - beyond * beyond + 2 * z * z * df)) / n)


# ------------------------------------------------------------------------------------------------------ counts ----


def cells(counts, law, what="token by token"):
    """Chi-squared of counts against a law."""
    n = int(counts.sum())
    if counts[law == 0].any():
        return Fit(what, n, len(law), 0.0, None)
    expected, rare = n * law, n * law < LEAST
    seen, rest, rest_seen = counts[~rare].astype(float), expected[rare].sum(), counts[rare].sum()
    expected = expected[~rare]
    if rest >= LEAST:
        seen, expected = np.append(seen, rest_seen), np.append(expected, rest)
    else:
        smallest = expected.argmin()
        seen[smallest] += rest_seen
        expected[smallest] += rest
    df = len(seen) - 1
    p = stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), df)
    return Fit(what, n, len(seen), p, chi_squared_sees(df, n))


def even(counts, what):
    """Chi-squared against equal probabilities."""
    return cells(counts, np.full(len(counts), 1 / len(counts)), what)


def by_tile(values):
    """Sums over the tiles of 128 ids."""
    return np.append(values, np.zeros(-len(values) % TILE, values.dtype)).reshape(-1, TILE).sum(1)


def tiles(counts, law):
    """The same in tiles, where the error of a tile adds up."""
    return cells(by_tile(counts), by_tile(law), "tile by tile")


def binomial(seen, n, p):
    """Two-sided and exact: it holds where few are expected."""
    return min(1.0, 2 * min(stats.binom.cdf(seen, n, p), stats.binom.sf(seen - 1, n, p)))


def decade_of(law):
    return np.maximum(np.floor(np.log10(law)), LOWEST).astype(int)


def by_decade(values, law):
    """Sums over tokens whose probabilities are of one order of magnitude; the likeliest first."""
    decade = decade_of(law)
    return np.array([values[decade == d].sum() for d in np.unique(decade)[::-1]])


def decades(counts, law, what="by decades of probability"):
    """Each order of magnitude by itself, and one p-value over all: the smallest p times their number."""
    n, masses, seen = int(counts.sum()), by_decade(law, law), by_decade(counts, law)
    names, tokens = np.unique(decade_of(law))[::-1], by_decade(np.ones(len(law), int), law)
    bins = [Bin(int(d), int(t), n * m, int(s), binomial(s, n, min(1.0, m)))
            for d, t, m, s in zip(names, tokens, masses, seen)]
    return Fit(what, n, len(bins), min(1.0, len(bins) * min(b.p for b in bins)), None), bins


def bin_sees(b, bins):
    """The relative error of a bin that is rejected with probability POWER. Above 1 a deficit never is."""
    return (stats.norm.isf(ALPHA / 2 / len(bins)) + stats.norm.ppf(POWER)) / math.sqrt(b.expected)


def law_of_bits(law, bits=24):
    """What Gumbel noise -log(-log u) draws, u = (k + 1/2) / 2^bits: the best grid there is of so many bits.

    A token of probability p wins if its E = -log u, which is (j + 1/2) h near 0, h = 2^-bits, is below p times an
    Exp(1) variable: h times the sum over j of exp(-(j + 1/2) h / p), which is p x / sinh x with x = h / 2p. This takes
    the rivals' noise for exact: right to first order in the mass that is lost, and while x is well below the largest E.
    """
    x = np.minimum(0.5**bits / (2 * law), 700)  # beyond, 0 is meant and sinh overflows
    kept = law * x / np.sinh(x)
    return kept / kept.sum()


def off_by(law, size):
    """A wrong law whose probabilities are off by `size`, in the sense of `sees`: some up, some down."""
    sign = 2.0 * np.random.default_rng(1).integers(0, 2, len(law)) - 1
    error = sign - (law * sign).sum()
    return law * (1 + size * error / math.sqrt((law * error**2).sum()))


# ------------------------------------------------------------------------------------------- pairs and scores ----


def classes(law, most=32):
    """A class per token, of neighbouring ids and about 1/most of the mass; a likelier token ends its class."""
    total, result, base, k = np.cumsum(law), np.zeros(len(law), np.int64), 0.0, 0
    start = 0
    while start < len(law):
        end = min(int(np.searchsorted(total, base + 1 / most)) + 1, len(law))
        if total[-1] - total[end - 1] < 0.5 / most:
            end = len(law)
        result[start:end] = k
        start, base, k = end, total[end - 1], k + 1
    return result


def independence(table, what):
    """A table of how often each pair of classes came together, against the product of its margins."""
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    n, (rows, columns) = int(table.sum()), table.shape
    if rows < 2 or columns < 2:
        return Fit(what, n, table.size, float("nan"), None)
    p, df = stats.chi2_contingency(table, correction=False)[1:3]
    return Fit(what, n, table.size, p, chi_squared_sees(df, n))


def uniform(u, what):
    """Kolmogorov-Smirnov. A distance is seen when even the deviation of the empirical law cannot hide it."""
    p = stats.kstest(u, "uniform").pvalue
    sees = (stats.kstwobign.isf(ALPHA) + 0.5 * stats.norm.ppf(POWER)) / math.sqrt(len(u))
    return Fit(what, len(u), 0, p, sees)
