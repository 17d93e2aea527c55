"""Rows that lack a token, on the device: which calls wait for it and raise, and that graphs do not."""
import pytest
import torch

import flashsampling as fs
import flashsampling.torch
from draws import hidden, weights

V, D, B = 5000, 256, 9
W, H = weights(V, D), hidden(B, D)
BROKEN = H.clone()
BROKEN[[2, 5]] = float("nan")
TEXT = "2 of 9 rows lack a token: row 2: EMPTY NAN; row 5: EMPTY NAN"


def of_a_stream():
    """A context with a stream of its own, on which the device is late."""
    stream = torch.cuda.Stream()
    context = fs.Context("cuda", cuda_stream=stream.cuda_stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
    return context, stream


@pytest.mark.parametrize("call", [
    lambda h, on_error: fs.sample(h, W, seed=1, **({} if on_error == "raise" else dict(on_error=on_error))),
    lambda h, on_error: fs.sample_logits(h @ W.T, seed=1, on_error=on_error),
    lambda h, on_error: fs.Context("cuda").sample(fs.Head(W), h, seed=1, on_error=on_error),
    lambda h, on_error: fs.Sampler(fs.Head(W), B, seed=1, on_error=on_error)(h),
    lambda h, on_error: fs.torch.sample(h, W, seed=1, on_error=on_error),
    lambda h, on_error: fs.torch.sample(h, W, seed=1, on_error=on_error, logprob=True),
], ids=["sample", "sample_logits", "Context", "Sampler", "operator", "operator, logprob"])
def test_calls_that_wait_raise(call):
    with pytest.raises(fs.RowError, match=TEXT) as error:
        call(BROKEN, "raise")
    first = lambda result: result[0] if isinstance(result, tuple) else getattr(result, "tokens", result)
    for on_error in ("status", None):
        tokens = first(call(BROKEN, on_error))
        assert (tokens[[2, 5]] == -1).all() and torch.equal(first(error.value.result), tokens)
    assert (first(call(H, "raise")) >= 0).all()


def test_statuses_are_those_of_the_contexts_stream():
    head = fs.Head(W)
    for out in (None, {"tokens": torch.zeros(B, 1, dtype=torch.int32, device="cuda")}):
        for states, fails in ((BROKEN, True), (H, False)):
            context, stream = of_a_stream()
            torch.cuda.current_stream().synchronize()
            if fails:
                with pytest.raises(fs.RowError, match=TEXT):
                    context.sample(head, states, seed=1, out=out, on_error="raise")
            else:
                context.sample(head, states, seed=1, out=out, on_error="raise")
            stream.synchronize()
            context.close()


def test_a_capture_cannot_raise():
    states = H.clone()
    sampler = fs.Sampler(fs.Head(W), B, seed=1, on_error="raise",
                         position=torch.zeros(B, dtype=torch.int64, device="cuda"))
    sampler(states)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = sampler(states)
    states.copy_(BROKEN)
    graph.replay()
    assert (result.tokens[[2, 5]] == -1).all() and not result.ok
    with pytest.raises(fs.RowError, match=TEXT):
        result.check()
    with pytest.raises(fs.RowError, match=TEXT):
        sampler(states)


def test_compiled_code_cannot_raise():
    step = torch.compile(lambda h: fs.torch.sample(h * 1.0, W, seed=1, on_error="raise"), fullgraph=True,
                         backend="aot_eager")
    assert (step(BROKEN)[[2, 5]] == -1).all() and (step(H) >= 0).all()
