"""The noise: the vector file is the model's, the model Random123's, the library the model's, and the law Gumbel's."""
import os
import subprocess
import sys

import numpy as np
import pytest

import flashsampling as fs
import model
import noise_model as nm

VECTORS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors")


def test_the_vector_file_is_what_its_generator_writes():
    made = subprocess.check_output([sys.executable, os.path.join(VECTORS, "make_noise.py")], text=True)
    assert made == open(os.path.join(VECTORS, "noise.txt")).read()


def test_the_model_gives_the_published_answers():
    lines = [line.split()[1:] for line in open(os.path.join(VECTORS, "noise.txt")) if line.startswith("philox ")]
    assert len(lines) == 3
    for line in lines:
        numbers = [int(word, 16) for word in line if word != "->"]
        assert list(nm.philox(numbers[:4], numbers[4:6])) == numbers[6:]


def test_the_library_has_the_models_noise():
    for draw in ((0, 0, 0, 0), (2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1), (12345, 678, 9, 10)):
        noise = nm.row(*draw)
        vector = model.token_noise(noise, np.arange(2000), fast=False)
        for token in range(0, 2000, 7):
            one = nm.gumbel(noise, token)
            assert abs(fs.noise_gumbel(*draw, token) - one) <= 4e-15 * max(1, abs(one))
            assert abs(vector[token] - one) <= 4e-15 * max(1, abs(one))
    for seed, slot in ((0, 0), (2**64 - 1, 2**40), (7, 1)):
        assert fs.seed_spread(seed, slot) == nm.spread_seed(seed, slot)


def test_marks_are_as_many_as_their_64_bits_say_and_all_are_used():
    for position, block in ((4692, 129294), (9184, 118822), (12096, 97391), (0, 0)):
        noise = nm.row(0, position, 0, 0)
        upper, lower = (nm.mark_words(noise, block, call)[0] for call in (0, 1))
        marks = nm.marks(noise, block)
        assert len(marks) == sum(upper << 32 | lower >= limit for limit in nm.CDF)
        for place, prefix in marks.items():
            v = -np.expm1(-np.exp(-fs.noise_gumbel(0, position, 0, 0, 128 * block + place)))  # w / 256
            assert int(v * 2**24) == prefix


def test_noise_of_tokens_is_gumbel_and_marks_cut_it_where_they_should():
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    noise = nm.row(1, 2, 3, 4)
    g = model.token_noise(noise, np.arange(200_000), fast=False)
    assert stats.kstest(g, "gumbel_r").pvalue > 1e-3
    # Tokens above the bound are exactly the marked ones: one in 256.
    above = (g > 5.543221133094242).sum()
    assert abs(above - 200_000 / 256) < 5 * (200_000 / 256) ** 0.5


def test_noise_of_neighbours_and_of_draws_is_uncorrelated():
    rows = [model.token_noise(nm.row(*draw), np.arange(50_000), fast=False)
            for draw in ((1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1))]
    limit = 5 / 50_000**0.5
    for i, row in enumerate(rows):
        for lag in (1, 2, 128):
            assert abs(np.corrcoef(row[lag:], row[:-lag])[0, 1]) < limit
        for other in rows[:i]:
            assert abs(np.corrcoef(row, other)[0, 1]) < limit
