"""The law of the draws at production shapes, and what the same statistics say of samplers with one error planted.

Every p-value is held against 1e-6 (fit.ALPHA); `sees` is the error that fails it with probability 0.99. Seeds are
fixed. What a device gave is in docs/explain/exactness.md; pytest -s prints it.
"""
import pytest

pytest.importorskip("scipy.stats", reason="scipy is not installed")

import numpy as np

import fit
from law import CALLS, ROWS, by_position, by_seed, by_spread, draw, draw_with_24_bits, known, with_hole

# Half of the mass is in eight tokens, from about a quarter down to 1/500; the first and the last id are among them.
SHARES = (0.008, 0.5, 0.03, 0.12, 0.004, 0.25, 0.015, 0.06)
BODY = (33737, 2048, 2.5, SHARES)  # two tiles per processor, the last of them partial; 32 steps of K
LARGE = (151936, 4096, 2.5, SHARES)  # nine tiles per processor, 64 steps of K
TAIL = (151936, 4096, 1.0, (1000.0,))  # one token, and a thousandth of the mass in all the others
SOME = 2**20

# name: (head, draws). Each is tested by every statistic below.
RUNS = {"1e8": (BODY, 10**8), "large": (LARGE, SOME)}


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    shape, draws = RUNS[request.param]
    source = known(*shape)
    return source.law()[0], draw(source, draws, keep=SOME // (CALLS * ROWS))


def accept(found):
    print(fit.line(found))
    assert not fit.rejects(found), fit.line(found)


def refuse(found):
    print(fit.line(found) + "  (planted)")
    assert fit.rejects(found), fit.line(found)


def print_bins(bins, **others):
    """A line per decade: expected, drawn, and what else is told by decade."""
    print("%8s %8s %14s %12s %9s %8s" % ("decade", "tokens", "expected", "drawn", "p", "sees")
          + "".join("%22s" % name.replace("_", " ") for name in others))
    for i, b in enumerate(bins):
        sees = fit.bin_sees(b, bins)
        print("%8d %8d %14.1f %12d %9.3g %8s" % (*b, "%.2g" % sees if sees < 1 else "-")
              + "".join("%22.1f" % values[i] for values in others.values()))


def by_24_bits(law, n):
    """What n draws with 24-bit noise would bring of each decade."""
    return n * fit.by_decade(fit.law_of_bits(law), law)


# ---------------------------------------------------------------------------------------------------- the law ----


def test_tokens_follow_the_softmax_one_by_one(run):
    law, tally = run
    accept(fit.cells(tally.counts, law))


def test_tokens_follow_the_softmax_tile_by_tile(run):
    law, tally = run
    accept(fit.tiles(tally.counts, law))


def test_tokens_of_every_order_of_magnitude_come_as_often_as_they_should(run):
    law, tally = run
    found, bins = fit.decades(tally.counts, law)
    print()
    print_bins(bins, computed_for_24_bits=by_24_bits(law, found.n))
    accept(found)
    refuse(fit.decades(tally.counts, fit.law_of_bits(law), "the same against the law of 24 bits")[0])


def test_the_best_score_is_gumbel(run):
    """All scores in 256 bins, and a million of them by Kolmogorov-Smirnov."""
    _, tally = run
    accept(fit.even(tally.scores, "best score, bins"))
    accept(fit.uniform(tally.kept, "best score, Kolmogorov-Smirnov"))


@pytest.mark.parametrize("table", ["positions", "seeds", "high_seeds", "tokens_scores"])
def test_what_should_be_independent_is(run, table):
    """Draws at consecutive positions, of neighbouring seeds, of seeds 2^32 apart; a token and its score."""
    _, tally = run
    accept(fit.independence(getattr(tally, table), "independent: " + table))


def test_an_error_of_the_size_that_is_seen_is_rejected(run):
    """The same counts against laws that are off by 1.25 times `sees`."""
    law, tally = run
    for what, counts, right in (
        ("token by token", tally.counts, law),
        ("tile by tile", fit.by_tile(tally.counts), fit.by_tile(law)),
        ("best score, bins", tally.scores, np.full(len(tally.scores), 1 / len(tally.scores))),
    ):
        refuse(fit.cells(counts, fit.off_by(right, 1.25 * fit.cells(counts, right).sees), what))


@pytest.mark.parametrize("B", [8, 64, 160])
def test_narrow_batches_follow_the_softmax(B):
    source = known(*BODY)
    law, tally = source.law()[0], draw(source, 512 * CALLS * B, B=B)
    accept(fit.cells(tally.counts, law))
    accept(fit.tiles(tally.counts, law))
    accept(fit.decades(tally.counts, law)[0])


@pytest.mark.parametrize("names", [by_seed, by_spread])
def test_draws_of_other_names_follow_the_softmax(names):
    """A seed of its own for every draw at one position; one scalar seed, spread over the rows."""
    source = known(*BODY)
    law, tally = source.law()[0], draw(source, 2 * SOME, names=names)
    accept(fit.cells(tally.counts, law))
    accept(fit.tiles(tally.counts, law))


# -------------------------------------------------------------------------------------------- planted: the law ----


def test_24_bit_noise_misses_the_tail_and_ours_does_not():
    """One token of 0.999 and 151,935 that share the rest. 24-bit noise ends 17.3 above 0, where ours has 42.3."""
    source = known(*TAIL)
    law = source.law()[0]
    tally, planted = draw(source, 2 * SOME), draw_with_24_bits(source, SOME // 4)
    found, bins = fit.decades(tally.counts, law)
    short, short_bins = fit.decades(planted, law, what="24-bit noise, by decades")
    print_bins(bins)
    print("24-bit noise:")
    print_bins(short_bins, computed=by_24_bits(law, short.n))
    accept(found)
    refuse(short)
    accept(fit.decades(planted, fit.law_of_bits(law), what="24-bit noise against its own law")[0])


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_temperature_divides_the_logit_and_not_the_noise(temperature):
    """Planted: argmax of (l + g) / T, which is argmax of l + g. So it draws what T = 1 draws."""
    source = known(*BODY)
    law = source.law(temperature)[0]
    tally = draw(source, SOME, temperature=temperature)
    accept(fit.cells(tally.counts, law))
    accept(fit.tiles(tally.counts, law))
    accept(fit.even(tally.scores, "best score, bins"))
    planted = draw(source, SOME // 4)
    refuse(fit.cells(planted.counts, law, "temperature after the noise"))


@pytest.mark.parametrize("name", RUNS)
def test_a_dropped_tile_is_seen(name):
    """Planted: a tile of average mass that never races."""
    source = known(*RUNS[name][0])
    law = source.law()[0]
    masses = fit.by_tile(law)[:-1]  # the last may be partial
    tile = int(np.abs(masses - 1 / len(masses)).argmin())
    planted = draw(source, SOME, W=with_hole(source.W, tile))
    refuse(fit.tiles(planted.counts, law))


def test_noise_shared_between_shards_is_seen():
    """Two shards, merged by score. Planted: the second names its tokens from 0, and so has the noise of the first."""
    source = known(*BODY)
    law, V = source.law()[0], len(source.logits)
    half = V // 256 * 128
    tally = draw(source, SOME, shards=[(0, half, 0), (half, V, half)])
    accept(fit.cells(tally.counts, law))
    accept(fit.independence(tally.tokens_scores, "independent: tokens_scores"))
    planted = draw(source, SOME, shards=[(0, half, 0), (half, V, 0)])
    refuse(fit.cells(planted.counts, law, "noise shared between shards"))
    refuse(fit.even(planted.scores, "noise shared between shards, score"))


# --------------------------------------------------------------------------------------- planted: independence ----


def test_a_row_that_draws_every_position_twice_is_seen():
    """Planted: one row of 256 does."""
    names = by_position(ROWS)
    names["position"][:, 100] -= (names["position"][:, 100] - names["position"][0, 100] + 1) // 2
    names["step"]["position"][100] = CALLS // 2
    planted = draw(known(*BODY), 4 * SOME, names=names)
    refuse(fit.independence(planted.positions, "a row that draws positions twice"))
    accept(fit.independence(planted.seeds, "its neighbours"))


def test_two_rows_with_one_seed_are_seen():
    """Planted: one of 128 pairs of rows shares its seed."""
    names = by_position(ROWS)
    names["seed"][:, 101] = names["seed"][:, 100]
    planted = draw(known(*BODY), 4 * SOME, names=names)
    refuse(fit.independence(planted.seeds, "two rows with one seed"))
    accept(fit.independence(planted.positions, "their positions"))
