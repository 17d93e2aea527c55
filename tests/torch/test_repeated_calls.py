"""sample and sample_logits keep the structures of recent calls. Whatever calls come in whatever order, each gives what
the same call gives from scratch, which one with a context of its own is."""
import gc
import os
import random
import threading
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashsampling as fs
from flashsampling import _repeat, _sample
from hostile import B, D, DTYPES, H, V, W, best, tensors

CONTEXT = fs.Context("cpu", threads=1)


def entries():
    return _sample._of_thread().entries


def same(*arguments, draw=fs.sample, **rules):
    """Both results, which are equal in every array, type and shape."""
    quick, whole = draw(*arguments, **rules), draw(*arguments, context=CONTEXT, **rules)
    found, wanted = quick.arrays(), whole.arrays()
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        assert type(array) is type(wanted[name]) and array.dtype == wanted[name].dtype, name
        assert array.shape == wanted[name].shape, name
        assert np.array_equal(np.asarray(array), np.asarray(wanted[name]), equal_nan=True), name
    return quick, whole


CHOICES = {
    "temperature": [0, 0.7, 1, 2.5, torch.rand(B) + 0.5, np.full(B, 0.3, "f4"), np.full(B, 0.3), [0.5] * B, True],
    "top_k": [0, 1, 5, torch.arange(B, dtype=torch.int32), torch.arange(B), np.int64(3)],
    "top_p": [1.0, 0.5, 0.9, torch.full((B,), 0.4), 1, 0],
    "min_p": [0.0, 0.1, torch.tensor([0, 0.1, 0.2, 0.3])],
    "seed": [0, 7, 2**64 - 1, torch.arange(B), np.arange(B), np.arange(B, dtype="u8"), [1, 2, 3, 4]],
    "position": [0, 9, 2**63, torch.arange(B) + 5, np.arange(B, dtype="u8")],
    "outputs": [(), ["logprob"], ("logprob", "rank"), "all", "log_z"],
    "top": [0, 3],
    "samples": [1, 3],
    "scale": [1.0, 0.5],
    "bias": [None, torch.linspace(0, 4, V), torch.linspace(0, 4, V).double(), np.linspace(0, 2, V, dtype="f4")],
    "tokens": ["i64", "i32"],
    "edits": [None, [{3: 50.0}] * B],
    "keep_ties": [False, True],
}


@pytest.mark.parametrize("seed", range(4))
def test_calls_in_any_order_give_what_they_give_from_scratch(seed):
    choose, used = random.Random(seed), 0
    heads = {dtype: tensors(dtype)[1] for dtype in DTYPES}
    states = {dtype: tensors(dtype)[0] for dtype in DTYPES}
    few = {name: choose.sample(values, min(2, len(values))) for name, values in CHOICES.items()}
    for _ in range(150):
        names = choose.sample(list(few), choose.choice((1, 2, 2, 4)))
        rules = {name: choose.choice(few[name]) for name in names}
        rules.setdefault("seed", choose.choice((1, 2)))
        dtype, before = choose.choice(DTYPES), len(entries())
        hidden, weight = states[dtype], heads[choose.choice((dtype, torch.float32))]
        if dtype is not torch.bfloat16 and weight.dtype is not torch.bfloat16 and choose.random() < 0.3:
            hidden, weight = hidden.numpy(), weight.numpy()
        same(hidden, weight, **rules)
        used += len(entries()) == before
        if choose.random() < 0.3:
            logits = states[dtype] @ heads[dtype].T
            same(logits, draw=fs.sample_logits, **rules)
        assert len(entries()) <= _repeat.MOST
    assert used > 20  # calls that an entry has served, or that none can serve


def test_a_call_that_repeats_is_served_by_its_entry(monkeypatch):
    calls = [{}, dict(temperature=0.5, seed=1), dict(position=0, top_p=0.9), dict(top_k=0, min_p=0.0)]
    for rules in calls:
        fs.sample(H, W, **rules)
    monkeypatch.setattr(_sample, "_from_scratch", None)
    for rules in (dict(temperature=0.9, seed=3), dict(temperature=2, seed=2**64 - 1), {}, dict(position=7, top_p=0.3),
                  dict(top_k=4, min_p=0.1)):
        assert fs.sample(H, W, **rules).ok
    assert fs.sample(H.clone(), W.clone(), temperature=0, seed=5).tokens.tolist() == best(H, W)
    with pytest.raises(TypeError):
        fs.sample(H, W, bias=torch.zeros(V))  # another kind of call


@pytest.mark.parametrize("value, error", [(-1.0, ValueError), (float("nan"), ValueError)])
def test_numbers_are_checked_in_every_call(value, error):
    fs.sample(H, W, temperature=0.5)
    with pytest.raises(error, match="temperature"):
        fs.sample(H, W, temperature=value)
    for name in ("seed", "position", "top_k"):
        with pytest.raises(ValueError, match=name):
            fs.sample(H, W, **{name: 2**64})
    same(H, W, temperature=0.5, seed=3)


def test_values_of_arrays_are_checked_in_every_call():
    seeds = torch.arange(B)
    same(H, W, seed=seeds), same(H, W, seed=seeds + 5)
    for _ in range(2):
        with pytest.raises(ValueError, match="seed: -1, expected an integer from 0"):
            fs.sample(H, W, seed=seeds - 1)
    temperatures = torch.ones(B)
    fs.sample(H, W, temperature=temperatures)
    temperatures[2] = -1
    with pytest.raises(fs.RowError, match="row 2: BAD_TEMPERATURE"):
        fs.sample(H, W, temperature=temperatures)


def test_results_are_the_callers_to_keep():
    results = [fs.sample(H, W, seed=seed, outputs=["logprob"]) for seed in range(20)]
    for seed, result in enumerate(results):
        whole = fs.sample(H, W, seed=seed, outputs=["logprob"], context=CONTEXT)
        assert torch.equal(result.tokens, whole.tokens) and torch.equal(result.logprob, whole.logprob)
    assert len({result.tokens.data_ptr() for result in results}) == 20


def test_nothing_that_a_caller_gave_is_kept():
    hidden, weight, bias, temperature = H.clone(), W.clone(), torch.zeros(V), torch.ones(B)
    for _ in range(3):
        result = fs.sample(hidden, weight, bias=bias, temperature=temperature)
    kept = [weakref.ref(tensor) for tensor in (hidden, weight, bias, temperature, result.tokens)]
    del hidden, weight, bias, temperature, result
    gc.collect()
    assert [found() for found in kept] == [None] * 5


def test_weights_at_an_address_that_others_had():
    places = set()
    for i in range(40):
        dtype = DTYPES[i % 3]
        weight = torch.randn(V * (1 + (dtype is not torch.float32)), D).to(dtype)
        places.add(weight.data_ptr())
        assert fs.sample(H.to(dtype), weight, temperature=0).tokens.tolist() == best(H.to(dtype), weight)
        del weight
    assert len(places) < 40  # else the test shows nothing


def test_memory_that_was_given_back_or_exchanged():
    linear = torch.nn.Linear(D, V, bias=False)
    fs.sample(H, linear.weight, temperature=0)
    linear.half()
    assert fs.sample(H, linear.weight, temperature=0).tokens.tolist() == best(H, linear.weight)
    linear.weight.data = W.clone()
    assert fs.sample(H, linear.weight, temperature=0).tokens.tolist() == best(H, W)
    hidden, weight = H.clone(), W.clone()
    fs.sample(hidden, weight)
    weight.untyped_storage().resize_(0)
    with pytest.raises((ValueError, RuntimeError), match="weights|head.data"):
        fs.sample(hidden, weight)


def test_a_view_that_differs_only_in_a_bit_or_a_stride():
    fs.sample(H, W, temperature=0)
    with pytest.raises(TypeError, match="hidden: .*negat"):
        fs.sample(torch._neg_view(H), W, temperature=0)
    wide = torch.cat([W, W * 9], 1)[:, :D]
    same(H, wide, seed=1), same(H, W, seed=1), same(H, wide, seed=1)
    with pytest.raises(ValueError, match="apart"):
        fs.sample(H.T.contiguous().T, W)


def test_errors_leave_a_usable_cache():
    broken = H.clone()
    broken[1] = float("nan")
    for _ in range(3):
        same(H, W, seed=1)
        with pytest.raises(fs.RowError, match="1 of 4 rows lack a token: row 1: EMPTY NAN") as found:
            fs.sample(broken, W, seed=1)
        assert found.value.result.tokens[0] == fs.sample(H, W, seed=1).tokens[0]
        assert fs.sample(broken, W, seed=1, on_error="status").tokens[1] == -1
        with pytest.raises(ValueError, match="on_error 'never'"):
            fs.sample(H, W, on_error="never")
        for rules in (dict(outputs=[["logprob"]]), dict(outputs=None), dict(top=[]), dict(nonsense=1), dict(dtype={})):
            with pytest.raises((TypeError, ValueError)):
                fs.sample(H, W, **rules)


def test_a_call_within_a_call_of_its_thread():
    """A finaliser may run anywhere: it draws right, or hears that the context is in use."""
    found = []

    class Draws:
        def __del__(self):
            try:
                found.append(fs.sample(H, W, seed=1).tokens.tolist())
            except RuntimeError as error:
                found.append(str(error))

    expected = fs.sample(H, W, seed=1).tokens.tolist()
    hidden = fs.sample(H, W, seed=2).tokens.tolist()
    for _ in range(300):
        thing = Draws()
        thing.itself = thing
        del thing
        assert fs.sample(H, W, seed=2).tokens.tolist() == hidden
        if _ % 10 == 0:
            gc.collect()
    assert found and all(value == expected or "context" in value for value in found)


def test_threads_have_entries_of_their_own():
    expected, found = [fs.sample(H, W, seed=i).tokens.tolist() for i in range(60)], {}

    def run(number):
        found[number] = [fs.sample(H, W, seed=i, temperature=1).tokens.tolist() for i in range(60)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert [found[i] for i in range(6)] == [expected] * 6


def test_a_child_draws_what_its_parent_draws():
    expected = [fs.sample(H, W, seed=i).tokens.tolist() for i in range(3)]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if [fs.sample(H, W, seed=i).tokens.tolist() for i in range(3)] == expected else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [fs.sample(H, W, seed=i).tokens.tolist() for i in range(3)] == expected


def test_modes_of_torch_reach_repeated_calls():
    expected = fs.sample(H, W, seed=1).tokens.tolist()
    for _ in range(2):
        with torch.inference_mode():
            assert fs.sample(H, W, seed=1).tokens.tolist() == expected and fs.sample(H, W).ok
        with torch.device("meta"):
            assert fs.sample(H, W, seed=1).tokens.tolist() == expected and fs.sample(H, W).ok
        assert fs.sample(H.clone().requires_grad_() * 1, torch.nn.Parameter(W), seed=1).tokens.tolist() == expected


def test_seeds_are_those_of_torch_randint():
    torch.manual_seed(5)
    wanted = [int(torch.randint(-(2**63), 2**63 - 1, ())) % 2**64 for _ in range(9)]
    torch.manual_seed(5)
    assert [_sample.fresh_seed(H) for _ in range(9)] == wanted
