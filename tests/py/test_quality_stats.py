"""bench/quality_stats.py: the tests by which texts of two samplers are compared, on texts that numpy draws. Each is
seen to raise false alarms as often as it says, and to find what it says it finds. Seeds are fixed."""
import os
import sys

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy is not installed")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import quality_stats as qs


def texts(rng, number=600, heat=1.0, end=0.05, most=12, vocab=40):
    """Completions of two prompts by a chain of words, with what study() wants; `heat` is a temperature."""
    logits = np.random.default_rng(5).normal(0, 1.5, (vocab, vocab))
    law, hot = (np.exp(logits / t) / np.exp(logits / t).sum(1, keepdims=True) for t in (1.0, heat))
    order = np.argsort(-law, 1)
    tokens, pit, prompts = [], np.full((number, most), np.nan), np.arange(number) % 2
    loglik, excess, variance = np.zeros((3, number))
    expected = (law * np.log(law)).sum(1)
    spread = (law * (np.log(law) - expected[:, None]) ** 2).sum(1)
    for i in range(number):
        last, text = int(prompts[i]), []
        while len(text) < most and (not text or rng.random() > end):
            token = rng.choice(vocab, p=hot[last])
            above = law[last][order[last][: np.flatnonzero(order[last] == token)[0]]].sum()
            pit[i, len(text)] = min(above + rng.random() * law[last, token], 1 - 1e-12)
            loglik[i] += np.log(law[last, token])
            excess[i] += np.log(law[last, token]) - expected[last]
            variance[i] += spread[last]
            last = token
            text.append(int(token))
        tokens.append(text)
    first = [qs.chi_counts([t[0] for t, p in zip(tokens, prompts) if p == each], law[each]) for each in (0, 1)]
    return dict(tokens=tokens, prompts=prompts, loglik=loglik, excess=excess, variance=variance, pit=pit, first=first)


def test_p_values_are_uniform_where_nothing_is_wrong():
    """Of 400 samples each, below .05 come 20 +- 4.4; 0 to 45 would be seen but once in a million."""
    rng = np.random.default_rng(1)
    law = np.random.default_rng(2).dirichlet(np.full(500, 0.1))
    uniform = sum(qs.chi_uniform(rng.random(600)) < 0.05 for _ in range(400))
    counts = sum(qs.chi_counts(rng.choice(500, 800, p=law), law) < 0.05 for _ in range(400))
    two = sum(qs.chi_two(*(np.bincount(rng.choice(500, 800, p=law), minlength=500).astype(float) for _ in range(2)))
              < 0.05 for _ in range(400))
    assert all(4 < found < 45 for found in (uniform, counts, two)), (uniform, counts, two)


def test_counts_against_a_law_find_what_is_wrong():
    rng = np.random.default_rng(1)
    law = np.random.default_rng(2).dirichlet(np.full(500, 0.1))
    other = law**1.2 / (law**1.2).sum()
    assert qs.chi_counts(rng.choice(500, 4000, p=other), law) < 1e-4
    assert qs.chi_counts([0, 1, 1], np.array([0.0, 1.0])) == 0.0
    assert qs.chi_counts([1, 1, 1], np.array([0.0, 1.0])) == 1.0


def test_the_likelihood_against_the_model_has_the_variance_that_it_says():
    """Of 60 samples the mean square is 1 +- .18."""
    found = [texts(np.random.default_rng(i), number=40) for i in range(60)]
    squares = [x["excess"].sum() ** 2 / x["variance"].sum() for x in found]
    assert 0.4 < np.mean(squares) < 1.9


@pytest.mark.parametrize("statistic", ["mean", "entropy"])
def test_the_bootstraps_error_is_the_statistics(monkeypatch, statistic):
    """60 pairs of samples: their differences spread as the error says, within 35 % (4 deviations of the spread)."""
    monkeypatch.setattr(qs, "ROUNDS", 60)
    rng, prompts = np.random.default_rng(3), np.arange(200) % 2
    differences, errors = [], []
    for _ in range(60):
        if statistic == "mean":
            a, b = (qs.mean_of(rng.exponential(1 + prompts)) for _ in range(2))
        else:
            a, b = (qs.entropy_of([rng.geometric(0.2, 6).tolist() for _ in prompts], 1) for _ in range(2))
        found = qs.compared(a, b, prompts, 0.05, rng)
        differences.append(found["difference"])
        errors.append(found["error"])
    assert abs(np.std(differences) / np.mean(errors) - 1) < 0.35


def test_what_is_called_detectable_is_found_four_times_in_five(monkeypatch):
    """Of 200 samples that differ by so much 160 +- 5.7 are to be rejected; 130 to 185 allows for the errors' own."""
    monkeypatch.setattr(qs, "ROUNDS", 100)
    rng, prompts = np.random.default_rng(4), np.zeros(300, int)
    known = qs.compared(*(qs.mean_of(rng.normal(0, 1, 300)) for _ in range(2)), prompts, 0.01, rng)["detectable"]
    found = sum(qs.compared(qs.mean_of(rng.normal(0, 1, 300)), qs.mean_of(rng.normal(known, 1, 300)), prompts, 0.01,
                            rng)["p"] < 0.01 for _ in range(200))
    assert 130 < found < 185


def test_entropies_of_n_grams():
    texts_ = [[1, 2, 1], [2, 1], [3]]
    assert np.isclose(qs.entropy_of(texts_, 1)(np.ones(3)), -sum(p * np.log(p) for p in (1 / 2, 1 / 3, 1 / 6)))
    assert np.isclose(qs.entropy_of(texts_, 2)(np.ones(3)), -sum(p * np.log(p) for p in (1 / 3, 2 / 3)))
    assert qs.entropy_of(texts_, 2)(np.array([0.0, 1.0, 1.0])) == 0 and qs.entropy_of([[1]], 2)(np.ones(1)) == 0


def test_a_study_of_equal_samplers_rejects_nothing():
    found = qs.study(texts(np.random.default_rng(1)), texts(np.random.default_rng(2)))
    assert not any(test["rejected"] for test in found.values())
    assert len(found) > 8 and all(0 <= test["p"] <= 1 for test in found.values())


@pytest.mark.parametrize("wrong, seen", [
    (dict(heat=1.3), ("log-likelihood of a token", "entropy of 1-grams", "position 1 against the model",
                      "first tokens against the model", "log-likelihood against the model")),
    (dict(heat=0.75), ("log-likelihood of a token", "entropy of 2-grams", "position 2 against the model")),
    (dict(heat=1.08), ("log-likelihood against the model",)),
    (dict(end=0.15), ("length", "distribution of lengths"))], ids=str)
def test_a_study_finds_planted_errors(wrong, seen):
    found = qs.study(texts(np.random.default_rng(1)), texts(np.random.default_rng(2), **wrong))
    assert all(found[name]["rejected"] and not found[name]["stock_too"] for name in seen), found


def test_what_stock_fails_too_is_said():
    found = qs.study(texts(np.random.default_rng(1), heat=1.3), texts(np.random.default_rng(2), heat=1.3))
    test = found["position 1 against the model"]
    assert test["rejected"] and test["stock_too"] and not found["log-likelihood of a token"]["rejected"]
