"""Entropies and survivors, of the reference and of the CPU, against the model in numpy (model.py)."""
import numpy as np
import pytest

import flashsampling as fs
import model
from cases import Case, assert_same, pick, random_case

INF = float("inf")
LARGE = 4000


@pytest.fixture(scope="module", params=["reference", "cpu"])
def context(request):
    return fs.Context(request.param, threads=2)


def check(context, case):
    result = case.run(context)
    assert_same(result, model.sample(case), exact_rank=case.rules.get("exact_rank"))
    return result


@pytest.mark.parametrize("seed", range(200))
def test_random_cases(context, seed):
    rng = np.random.default_rng([seed, 7])
    case = random_case(rng, vocab=LARGE if seed % 40 == 0 else None)
    case.outputs = fs.Result.OUTPUTS if seed % 3 else ["entropy"]
    case.survivors = int(pick(rng, 1, 5, 40, 400))
    check(context, case)


@pytest.mark.parametrize("logits_mode", ["raw", "processed", "cut"])
def test_the_entropy_is_that_of_the_logits_that_are_asked_for(context, logits_mode):
    x = np.random.default_rng(1).normal(0, 2, (5, 301)).astype(np.float32)
    edits = [[(3, -INF), (7, 2.0)]] * 5
    case = Case(dict(logits=x), logits_mode=logits_mode, outputs=["entropy"], temperature=0.7, top_k=9, edits=edits, seed=1)
    y = x.copy()
    y[:, 3], y[:, 7] = -INF, y[:, 7] + np.float32(2)
    seen = x if logits_mode == "raw" else y / np.float32(0.7)
    if logits_mode == "cut":
        seen = np.where(seen >= np.sort(seen)[:, -9:-8], seen, -INF)
    log_p = seen - model.logsumexp(seen.astype(np.float64))[:, None]
    expected = -np.sum(np.exp(log_p) * np.where(np.isfinite(log_p), log_p, 0), axis=1)
    np.testing.assert_allclose(case.run(context).entropy, expected, atol=2e-6)


def test_survivors_lie_in_the_total_order_behind_which_is_nothing(context):
    x = np.array([[0, 3, 3, 1, 2, -5]] * 4, np.float32)
    result = Case(dict(logits=x), survivors=4, top_k=[0, 3, 5, 1], temperature=[1, 1, 0, 1], outputs=()).run(context)
    assert result.survivor_count.tolist() == [-1, 3, 5, 1]
    assert result.survivor_token.tolist() == [[-1] * 4, [1, 2, 4, -1], [1, 2, 4, 3], [1, -1, -1, -1]]


def test_the_callers_arrays_are_written_and_the_count_alone_does(context):
    head = fs.Head(logits=np.zeros((2, 9), np.float32))
    out = dict(tokens=np.zeros((2, 1), np.int32), survivor_count=np.zeros(2, np.int32),
               entropy=np.zeros(2, np.float32))
    context.sample(head, top_k=4, out=out)
    assert out["survivor_count"].tolist() == [4, 4]
    np.testing.assert_allclose(out["entropy"], np.log(9), atol=1e-6)


def test_all_outputs_are_those_that_every_call_has():
    head = fs.Head(logits=np.zeros((1, 9), np.float32))
    assert "entropy" not in fs.Result(fs.Batch(head), "all").arrays() and "entropy" in fs.Result.OUTPUTS
    with pytest.raises(AttributeError, match="survivor_count: not among the results; ask for it with survivors=N"):
        fs.Result(fs.Batch(head)).survivor_count
    with pytest.raises(ValueError, match="survivors: -1, expected 0 or more"):
        fs.Result(fs.Batch(head), survivors=-1)


@pytest.mark.parametrize("result, word", [("entropy", "result.entropy"), ("survivors", "result.survivor_token")])
def test_shards_and_ranks_are_refused_by_name(result, word):
    assert all(fs.supports(backend, results=[result])[0] for backend in ("cpu", "reference"))
    for call in ("partial", "ranks"):
        done, why = fs.supports("cpu", results=[result], call=call)
        assert not done and word in why
