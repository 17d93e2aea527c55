"""Rows that lack a token, with tensors: the operators, compiled code, a Sampler's calls in C."""
import os
import signal
import threading
import warnings

import numpy as np
import pytest
import torch

import flashsampling as fs
import flashsampling.torch
from flashsampling import _native
from hostile import B, H, V, W

ops = torch.ops.flashsampling
X = H @ W.T
BROKEN = H.clone()
BROKEN[2] = float("nan")
TEXT = "1 of %d rows lack a token: row 2: EMPTY NAN" % B
FUNCTIONS = {"sample": lambda h, **rules: fs.torch.sample(h, W, seed=1, **rules),
             "sample_logits": lambda h, **rules: fs.torch.sample_logits(h @ W.T, seed=1, **rules)}
OPERATORS = {"sample": lambda h, **rules: ops.sample(h, W, **rules),
             "sample_logprob": lambda h, **rules: ops.sample_logprob(h, W, **rules),
             "sample_logits": lambda h, **rules: ops.sample_logits(h @ W.T, **rules),
             "sample_logits_logprob": lambda h, **rules: ops.sample_logits_logprob(h @ W.T, **rules)}


def in_python(name):
    """The same operators with kernels in Python."""
    if "rows_in_python" not in libraries:
        libraries["rows_in_python"] = torch.library.Library("rows_in_python", "DEF")
        fs.torch._register(libraries["rows_in_python"], None)
    space = torch.ops.rows_in_python
    return {"sample": lambda h, **rules: space.sample(h, W, **rules),
            "sample_logprob": lambda h, **rules: space.sample_logprob(h, W, **rules),
            "sample_logits": lambda h, **rules: space.sample_logits(h @ W.T, **rules),
            "sample_logits_logprob": lambda h, **rules: space.sample_logits_logprob(h @ W.T, **rules)}[name]


libraries = {}


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("logprob", [False, True])
def test_functions_raise_and_carry_what_they_would_return(name, logprob):
    call = FUNCTIONS[name]
    for rules in ({}, dict(temperature=torch.ones(B), position=torch.arange(B))):
        with pytest.raises(fs.RowError, match="^" + TEXT) as error:
            call(BROKEN, logprob=logprob, **rules)
        found, want = error.value, call(BROKEN, logprob=logprob, on_error="status", **rules)
        assert (found.row, found.count) == (2, 1) and found.status & fs.Row.EMPTY
        assert isinstance(found.result, tuple) == logprob and first(want)[2] == -1 and (first(want) >= 0).sum() == B - 1
        assert torch.equal(first(found.result), first(want))
        assert (first(call(H, logprob=logprob, **rules)) >= 0).all()
    with pytest.raises(ValueError, match="on_error 'never'"):
        call(H, on_error="never")


@pytest.mark.parametrize("native", [True, False], ids=["in C", "in Python"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_raise(name, native):
    call = OPERATORS[name] if native else in_python(name)
    for rows in (BROKEN, torch.cat([BROKEN] * 100)):
        with pytest.raises(RuntimeError, match=TEXT if rows is BROKEN else "100 of 400 rows lack a token: row 2"):
            call(rows)
        assert first(call(rows, raise_error=False))[2] == -1
    assert first(call(BROKEN, slot=torch.tensor([0, 1, -1, 3]))).shape == (B,)
    assert first(call(BROKEN[:0])).shape == (0,)


@pytest.mark.parametrize("native", [True, False], ids=["in C", "in Python"])
@pytest.mark.parametrize("name", ["sample", "sample_logits"])
@pytest.mark.parametrize("rules, text", [
    (dict(temperature_all=-1.0), r"temperature: -1, expected a number 0 \(greedy\) or more"),
    (dict(temperature_all=float("nan")), r"temperature: nan, expected a number 0 \(greedy\) or more"),
    (dict(temperature_all=float("inf")), r"temperature: inf, expected a number 0 \(greedy\) or more"),
    (dict(top_p_all=95.0), r"top_p: 95, expected a number from 0 to 1 \(off\)"),
    (dict(top_p_all=-0.1), r"top_p: -0.1, expected"), (dict(top_p_all=float("nan")), "top_p: nan, expected"),
    (dict(min_p_all=5.0), r"min_p: 5, expected a number from 0 \(off\) to 1"),
    (dict(scale=0.0), "scale: 0, expected a number other than 0"),
    (dict(post_scale=0.0), "post_scale: 0, expected a number other than 0"),
    (dict(samples=0), "samples is 0, must be 1 to 1024"),
])
def test_numbers_out_of_range_are_refused_as_by_sample(name, native, rules, text):
    call = OPERATORS[name] if native else in_python(name)
    with pytest.raises(RuntimeError, match=text):
        call(H, raise_error=False, **rules)
    want = fs.sample(H, W, seed=0).tokens if name == "sample" else fs.sample_logits(X, seed=0).tokens
    assert torch.equal(call(H), want)
    if "samples" not in rules:
        with pytest.raises(ValueError, match=text):
            fs.sample(H, W, **{key.replace("_all", ""): value for key, value in rules.items()})


def test_numbers_of_functions_are_refused():
    for name, value in (("temperature", -1.0), ("temperature", float("nan")), ("top_p", 1.5), ("min_p", -1.0)):
        with pytest.raises(RuntimeError, match="%s: %g, expected a number" % (name, value)):
            fs.torch.sample(H, W, seed=1, **{name: value})


@pytest.mark.parametrize("native", [True, False], ids=["in C", "in Python"])
def test_top_p_of_0_keeps_one_token(native):
    call = OPERATORS["sample"] if native else in_python("sample")
    for top_p in (0.0, 1e-50):
        tokens = call(H, top_p_all=top_p, temperature_all=9.0, samples=20)
        assert torch.equal(tokens, X.argmax(1, keepdim=True).expand(-1, 20))
    assert torch.equal(call(H, top_p_all=1 + 1e-6), call(H))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_raises_on_the_cpu(backend):
    def step(h, on_error):
        return fs.torch.sample(torch.tanh(h), W, seed=3, on_error=on_error) + 1

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    assert torch.equal(compiled(H, None), step(H, None))
    with pytest.raises(RuntimeError, match="rows lack a token: row 2: EMPTY NAN"):
        compiled(BROKEN, None)
    assert compiled(BROKEN, "status")[2] == 0


def test_seeds_that_wrap_are_refused():
    for seed in (torch.tensor([1, -1]), torch.tensor([1.0, 2.0])):
        with pytest.raises((TypeError, ValueError), match="^seed: .*expected"):
            fs.sample(H[:2], W, seed=seed)
    assert fs.sample(H[:2], W, seed=torch.tensor([1, 2**63 - 1])).ok


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_are_refused(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (torch.ones(B, dtype=dtype), torch.tensor(1.0, dtype=dtype)):
            for name in ("temperature", "top_p", "min_p", "top_k", "seed"):
                with pytest.raises((TypeError, ValueError), match="^%s: .*expected" % name):
                    fs.sample(H, W, **{name: value})


# ----------------------------------------------------------------------------------------------- a Sampler's calls ----

needs_c = pytest.mark.skipif(_native.library() is None and os.environ.get("FLASHSAMPLING_CALLS") == "ctypes",
                             reason="FLASHSAMPLING_CALLS=ctypes: calls are not made in C")


def sampler_of(**rules):
    sampler = fs.Sampler(fs.Head(W), B, context=fs.Context("cpu", threads=1), seed=1, **rules)
    sampler(H)
    return sampler


@needs_c
def test_a_call_in_c_raises_and_counts():
    sampler = sampler_of()
    with pytest.raises(fs.RowError, match=TEXT) as error:
        sampler(BROKEN)
    want = fs.sample(BROKEN, W, seed=1, position=1, on_error="status")
    assert torch.equal(error.value.result.tokens, want.tokens) and sampler.position == 2
    assert sampler._native(BROKEN) is None and sampler.position == 2
    assert torch.equal(sampler(H).tokens, fs.sample(H, W, seed=1, position=2).tokens)
    # What row 2 had is not asked for again.
    assert torch.equal(sampler(H[:2]).tokens, fs.sample(H[:2], W, seed=1, position=3).tokens)
    engine = sampler_of(on_error="status")
    assert engine._native(BROKEN) is not None and engine(BROKEN).tokens[2] == -1


@pytest.mark.parametrize("native", [True, False], ids=["in C", "in Python"])
def test_an_interrupt_during_a_call_leaves_its_position_to_the_next(native):
    """Calls of some 20 ms, so that hardly a signal comes between two of them."""
    weight, hidden = torch.randn(100000, 128), torch.randn(16, 128)
    sampler = fs.Sampler(fs.Head(weight), 16, context=fs.Context("cpu", threads=1), seed=1)
    drawn = 0
    if not native:
        sampler._native = None
    for _ in range(4):
        timer = threading.Timer(0.05, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                sampler(hidden)
                drawn += 1
        timer.join()
        assert sampler.position == drawn
    assert torch.equal(sampler(hidden).tokens, fs.sample(hidden, weight, seed=1, position=drawn).tokens)


@pytest.mark.parametrize("draw", [fs.sample, flashsampling.torch.sample])
def test_numbers_that_torch_or_a_float_would_change_are_refused(draw):
    """A complex number of numpy, of which torch takes a part; a temperature that is 0 as a float, and so greedy."""
    with pytest.raises((TypeError, ValueError), match="temperature"):
        draw(H, W, temperature=np.complex64(1))
    with pytest.raises((ValueError, RuntimeError), match="temperature: 1e-50, expected"):
        draw(H, W, temperature=1e-50)
