"""Tests of fit for the GPU's draws (tests/gpu/fit.py), on draws of numpy: right ones pass as often as the
p-values say, wrong ones fail as soon as `sees` says."""
import os
import sys

import numpy as np
import pytest

stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))

import fit

N = 10**6


def random(seed=0):
    return np.random.default_rng(seed)


def law(V=2000, deviation=2.5):
    p = np.exp(random(7).normal(0, deviation, V))
    p[V // 3] = p.sum() / 3
    return p / p.sum()


def test_right_draws_give_even_p_values():
    r, p = random(), law()
    counts = [r.multinomial(N, p) for _ in range(300)]
    for statistic in (fit.cells, fit.tiles):
        assert stats.kstest([statistic(c, p).p for c in counts], "uniform").pvalue > 1e-4
    assert min(fit.decades(c, p)[0].p for c in counts) > 1e-5


def test_an_error_of_the_size_that_is_seen_is_seen():
    r, p = random(), law()
    wrong = fit.off_by(p, fit.cells(r.multinomial(N, p), p).sees)
    assert wrong.sum() == pytest.approx(1) and (wrong > 0).all()
    assert np.mean([fit.rejects(fit.cells(r.multinomial(N, wrong), p)) for _ in range(300)]) > 0.96
    tiles = fit.by_tile(p)
    wrong = fit.off_by(tiles, fit.tiles(r.multinomial(N, p), p).sees)
    assert np.mean([fit.rejects(fit.cells(r.multinomial(N, wrong), tiles)) for _ in range(300)]) > 0.96


def test_an_error_of_a_decade_is_seen_at_its_size():
    r, p = random(), law()
    _, bins = fit.decades(r.multinomial(N, p), p)
    b = next(b for b in bins if b.decade == -6)
    wrong = p * np.where(fit.decade_of(p) == -6, 1 + fit.bin_sees(b, bins), 1)
    wrong /= wrong.sum()
    assert np.mean([fit.rejects(fit.decades(r.multinomial(N, wrong), p)[0]) for _ in range(300)]) > 0.96


def test_a_token_of_probability_zero_is_rejected_at_once():
    p = np.array([0.5, 0.5, 0.0])
    assert fit.rejects(fit.cells(np.array([500, 500, 1]), p))
    assert not fit.rejects(fit.cells(np.array([500, 500, 0]), p))


def test_a_dropped_tile_is_rejected():
    p = law()
    wrong = np.where(np.arange(len(p)) // fit.TILE == 5, 0, p)
    assert fit.rejects(fit.tiles(random().multinomial(N // 10, wrong / wrong.sum()), p))


def test_classes_are_neighbours_of_about_one_mass():
    p = law()
    kind = fit.classes(p)
    masses = np.bincount(kind, p)
    assert (np.diff(kind) >= 0).all() and (np.diff(kind) <= 1).all() and len(masses) > 10
    assert masses.min() > 1 / 64 and masses.sum() == pytest.approx(1)


def test_pairs_that_share_their_draw_are_seen():
    """A share e of equal pairs is an error of e sqrt(K - 1)."""
    r, p = random(), np.bincount(fit.classes(law()), law())
    K = len(p)

    def pairs(share):
        joint = (1 - share) * np.outer(p, p) + share * np.diag(p)
        return fit.independence(r.multinomial(N, (joint / joint.sum()).ravel()).reshape(K, K), "pairs")

    share = pairs(0).sees / (K - 1) ** 0.5
    assert stats.kstest([pairs(0).p for _ in range(300)], "uniform").pvalue > 1e-4
    assert np.mean([fit.rejects(pairs(share)) for _ in range(300)]) > 0.96


def test_scores_that_are_not_uniform_are_seen():
    u = random().random(10**5)
    sees = fit.uniform(u, "").sees
    assert not fit.rejects(fit.uniform(u, "")) and fit.rejects(fit.uniform(np.maximum(u - 1.2 * sees, 0), ""))
    assert fit.rejects(fit.Fit("", 0, 0, float("nan"), None))


def test_the_law_of_few_bits_is_what_few_bits_draw():
    """12 bits, from which 4e-5 is as far away as 1e-8 is from 24."""
    r, bits, V = random(), 12, 200
    p = np.where(np.arange(V) % 2, 1e-4, 4e-5)
    p[0] += 1 - p.sum()
    counts = np.zeros(V, np.int64)
    for _ in range(40):
        u = (r.integers(0, 2**bits, (10000, V)) + 0.5) / 2**bits
        counts += np.bincount((np.log(p) - np.log(-np.log(u))).argmax(1), minlength=V)
    drawn = fit.law_of_bits(p, bits)
    assert fit.rejects(fit.decades(counts, p)[0]) and fit.decades(counts, drawn)[0].p > 1e-3
