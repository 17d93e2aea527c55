"""Do two samplers draw the same texts? Tests of completions, in numpy: what bench/quality.py decides by.

A completion is a list of tokens. Resampling is by completion: tokens of one depend on each other. Completions are drawn
for some prompts, as many for each, and resampled within their prompt.
"""
import math

import numpy as np

ROUNDS = 200  # resamples: an error is then known to 5 %
LEAST = 512  # completions that have to reach a position for it to be tested


def normal_quantile(p):
    """By bisection of erfc: scipy is not needed."""
    low, high = -40.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(-middle / math.sqrt(2)) / 2 < p else (low, middle)
    return low


def chi_tail(x, degrees):
    """P(chi-squared > x), by whichever of scipy and torch is there."""
    try:
        from scipy.special import gammaincc

        return float(gammaincc(degrees / 2, x / 2))
    except ImportError:
        import torch

        half = torch.tensor([degrees / 2, x / 2], dtype=torch.float64)
        return float(torch.special.gammaincc(half[0], half[1]))


def chi_uniform(u, bins=32):
    """p-value of Pearson's chi-squared of numbers that should be uniform in [0, 1)."""
    counts = np.bincount(np.minimum((np.asarray(u) * bins).astype(int), bins - 1), minlength=bins)
    expected = len(u) / bins
    return chi_tail(((counts - expected) ** 2).sum() / expected, bins - 1)


def chi_counts(tokens, law):
    """p-value of tokens against one law; 0 where one was drawn that has no probability. Rare tokens share a bin."""
    expected = np.asarray(law) * len(tokens)
    counts = np.bincount(tokens, minlength=len(expected))
    if counts[expected < 1e-9 * len(tokens)].any():
        return 0.0
    order = np.argsort(-expected, kind="stable")
    total = np.cumsum(expected[order])
    groups = ((total - expected[order] / 2) // 8).astype(int)  # of some 8 expected, or one token with more
    groups = np.unique(np.minimum(groups, groups[total <= total[-1] - 8].max(initial=0)), return_inverse=True)[1]
    wanted, seen = np.bincount(groups, expected[order]), np.bincount(groups, counts[order])
    return chi_tail(((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1) if len(wanted) > 1 else 1.0


def chi_two(a, b):
    """p-value of two lists of counts being of one distribution; bins with fewer than 16 together share one."""
    rare = a + b < 16
    a, b = (np.append(x[~rare], x[rare].sum()) for x in (a, b))
    a, b = a[a + b > 0], b[a + b > 0]
    if len(a) < 2:
        return 1.0
    share = a.sum() / (a.sum() + b.sum())
    wanted_a, wanted_b = (a + b) * share, (a + b) * (1 - share)
    return chi_tail(((a - wanted_a) ** 2 / wanted_a + (b - wanted_b) ** 2 / wanted_b).sum(), len(a) - 1)


def weights_of(prompts, rng):
    """How often each completion is in a resample that has as many of each prompt."""
    weights = np.zeros(len(prompts))
    for prompt in np.unique(prompts):
        here = np.flatnonzero(prompts == prompt)
        weights[here] = np.bincount(rng.integers(0, len(here), len(here)), minlength=len(here))
    return weights


def compared(of_a, of_b, prompts, alpha, rng):
    """Of a statistic that is a function of the completions' weights, for both samples: their difference, its standard
    error by the bootstrap, the p-value of a normal with it, and the difference that would be found with probability .8
    at level alpha."""
    ones = np.ones(len(prompts))
    difference = of_b(ones) - of_a(ones)
    drawn = [of_b(weights_of(prompts, rng)) - of_a(weights_of(prompts, rng)) for _ in range(ROUNDS)]
    error = float(np.std(drawn, ddof=1))
    p = math.erfc(abs(difference) / error / math.sqrt(2)) if error else float(difference == 0)
    return dict(a=float(of_a(ones)), b=float(of_b(ones)), difference=float(difference), error=error, p=p,
                detectable=error * (normal_quantile(1 - alpha / 2) + normal_quantile(0.8)))


def mean_of(values):
    values = np.asarray(values, float)
    return lambda weights: (values * weights).sum() / weights.sum()


def entropy_of(completions, n):
    """Of n-grams of tokens, in nats, counted over all completions; as a function of the completions' weights."""
    grams, owner = [], []
    for i, tokens in enumerate(completions):
        if len(tokens) >= n:
            windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.int64), n)
            grams.append((windows * (2**21) ** np.arange(n)).sum(1))  # below 2^63 for n up to 3
            owner.append(np.full(len(windows), i))
    if not grams:
        return lambda weights: 0.0
    grams, owner = np.unique(np.concatenate(grams), return_inverse=True)[1], np.concatenate(owner)

    def entropy(weights):
        counts = np.bincount(grams, weights[owner])
        p = counts[counts > 0] / counts.sum()
        return float(-(p * np.log(p)).sum())

    return entropy


def lengths_p(a, b):
    """p-value of the lengths of two lists of completions having one distribution."""
    most = max(max(map(len, a)), max(map(len, b))) + 1
    return chi_two(*(np.bincount([len(tokens) for tokens in each], minlength=most).astype(float) for each in (a, b)))


def study(a, b, alpha=0.01, seed=1):
    """Tests of two samples of completions, a and b: dictionaries of tokens (a list for each completion), prompts (which
    prompt it is of), loglik (its log-likelihood under the model), excess and variance (that less what is expected of
    tokens drawn from the law at each place, and its variance), pit (the probability-integral transform of each token,
    NaN behind its end, [completions, positions]) and first (p of the first tokens of each prompt, by counts). Returns
    {name: test}, each with a p; together they raise a false alarm with probability alpha. Tests against the model that
    `a` fails too (stock_too) say something of the model that judges."""
    rng, tests = np.random.default_rng(seed), {}
    positions = [t for t in range(b["pit"].shape[1]) if np.isfinite(b["pit"][:, t]).sum() >= LEAST]
    each = alpha / (7 + len(positions) + bool(b["first"]))
    lengths = [np.array([max(len(tokens), 1) for tokens in x["tokens"]], float) for x in (a, b)]
    tests["log-likelihood of a token"] = compared(
        mean_of(a["loglik"] / lengths[0]), mean_of(b["loglik"] / lengths[1]), b["prompts"], each, rng)
    tests["length"] = compared(mean_of(lengths[0]), mean_of(lengths[1]), b["prompts"], each, rng)
    for n in (1, 2, 3):
        tests["entropy of %d-grams" % n] = compared(entropy_of(a["tokens"], n), entropy_of(b["tokens"], n),
                                                    b["prompts"], each, rng)
    # Given what came before, each token's log-likelihood less its expectation is 0 on average: no resampling is needed.
    p = [math.erfc(abs(x["excess"].sum()) / math.sqrt(2 * x["variance"].sum())) for x in (a, b)]
    tests["log-likelihood against the model"] = dict(
        p=p[1], p_of_a=p[0], excess=[float(x["excess"].sum() / sum(map(len, x["tokens"]))) for x in (a, b)])
    tests["distribution of lengths"] = dict(p=lengths_p(a["tokens"], b["tokens"]))
    for t in positions:
        u, v = (x["pit"][np.isfinite(x["pit"][:, t]), t] for x in (a, b))
        tests["position %d against the model" % t] = dict(p=chi_uniform(v), p_of_a=chi_uniform(u), draws=len(v))
    if b["first"]:
        first, other = (min(1.0, min(x["first"]) * len(x["first"])) for x in (b, a))
        tests["first tokens against the model"] = dict(p=first, p_of_a=other)
    for test in tests.values():
        test["rejected"], test["stock_too"] = test["p"] < each, test.get("p_of_a", 1.0) < each
    return tests
