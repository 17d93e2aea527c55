"""The shipped library against an oracle written from the header and docs alone, and that oracle with planted errors.

The command `python tests/py/oracle_documents.py --help` makes more calls, or one again.
"""
import numpy as np
import pytest

import oracle_documents as documents
import oracle_noise as noise
from oracle_rules import F32, Oracle

PLANTED_CALLS = 400  # within which each planted error has to show


def test_2000_random_calls_are_what_the_documents_say():
    said = []
    wrong = documents.run(documents.SEED, 0, documents.CALLS, said.append)
    print("\n".join(said))
    assert wrong == 0, "\n".join(said)


class TemperatureAfterNoise(Oracle):
    def scores(self, row, places, g):
        if row.temperature == 0:
            return super().scores(row, places, g)
        return (row.y[places] + g) / np.float64(row.temperature)


class TopPCountsTheTokenItself(Oracle):
    def top_p_keeps(self, m, left, p):
        low, high = super().top_p_keeps(m, left, p)
        return max(1, low - 1), max(1, high - 1)


class TopPKeepsAtEquality(Oracle):
    def first_at(self, before, limit):
        return max(1, int(np.count_nonzero(before <= limit)))


class TopPOfTheWholeRow(Oracle):
    def top_p_keeps(self, m, left, p):
        weight = np.exp(m - m[0])
        before, limit = np.cumsum(weight) - weight, F32(p) * weight.sum()
        return [max(1, np.count_nonzero(before[:left] < limit))] * 2


class TiesToTheHighestId(Oracle):
    def order(self, y, present):
        places = np.flatnonzero(present)[::-1]
        return places[np.argsort(-y[places], kind="stable")]


class TopKKeepsAllTies(Oracle):
    def top_k_keeps(self, y, k):
        return int(np.count_nonzero(y >= y[k - 1]))


class SeedNotSpread(Oracle):
    def seed(self, slot):
        return int(self.value("seed", slot))


class NoiseByPlaceInTheHead(Oracle):
    def gumbel(self, draws, ids):
        return super().gumbel(draws, ids - self.case.first_token)


class OneNameForAllSamples(Oracle):
    def names(self, b, slot, samples):
        return np.repeat(super().names(b, slot, 1), samples, axis=0)


class MinPBeforeTemperature(Oracle):
    def min_p_keeps(self, row, order, min_p):
        y = row.y[order].astype(np.float64)
        return max(1, int(np.count_nonzero(y >= y[0] + np.log(np.float64(F32(min_p))))))


class PenaltiesOnUnseenTokens(Oracle):
    def seen(self, slot, count):
        return np.ones(len(self.ids), bool)


class RepetitionForgetsTheSeen(Oracle):
    def seen(self, slot, count):
        return count > 0


class BannedTokensComeBack(Oracle):
    def edited(self, y, b, slot):
        y = y.copy()
        tokens, biases = self.edits(b, slot)
        for token, bias in zip(tokens, biases):
            if 0 <= token - self.case.first_token < len(y):
                y[token - self.case.first_token] += max(bias, F32(-100))
        return y


class GumbelOfAPlainUniform(Oracle):
    def gumbel(self, draws, ids):
        w0, w1, _, _ = noise.words(ids, draws, noise.EXTENSION)
        return -np.log(-np.log1p(-noise.unit(w0, w1)))


PLANTED = [TemperatureAfterNoise, TopPCountsTheTokenItself, TopPKeepsAtEquality, TopPOfTheWholeRow, TiesToTheHighestId,
           TopKKeepsAllTies, SeedNotSpread, NoiseByPlaceInTheHead, OneNameForAllSamples, MinPBeforeTemperature,
           PenaltiesOnUnseenTokens, RepetitionForgetsTheSeen, BannedTokensComeBack, GumbelOfAPlainUniform]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_a_planted_error_shows(planted):
    suite = documents.Suite(planted, with_reference=False)
    first = next((number for number in range(PLANTED_CALLS) if suite.case(documents.SEED, number)), None)
    suite.close()
    assert first is not None, f"{PLANTED_CALLS} calls agree with an oracle whose error is {planted.__name__}"
    print(f"{planted.__name__}: call {first}")
