"""The Python package on CUDA tensors: results beside them, torch's current stream, graphs, compiled code, memory."""
import threading

import pytest
import torch

import flashsampling as fs
import flashsampling.torch
from draws import hidden, weights

ops = torch.ops.flashsampling
V, D, B = 5000, 256, 9
W, H = weights(V, D), hidden(B, D)
EACH = dict(temperature=torch.linspace(0, 2, B, device="cuda"), seed=torch.arange(B, device="cuda"),
            position=torch.arange(B, device="cuda") * 3)


@pytest.fixture(scope="module")
def want():
    """By the CPU, from the same bits."""
    rules = {name: value.cpu() for name, value in EACH.items()}
    return fs.sample(H.cpu(), W.cpu(), outputs=["logprob", "log_z"], **rules)


def test_results_lie_beside_the_hidden_states(want):
    result = fs.sample(H, W, outputs=["logprob", "log_z"], **EACH)
    assert result.tokens.is_cuda and result.tokens.dtype == torch.int64 and result.ok
    assert torch.equal(result.tokens.cpu(), want.tokens)
    torch.testing.assert_close(result.log_z.cpu(), want.log_z, rtol=0, atol=1e-4)
    assert torch.equal(fs.Sampler(fs.Head(W), B, **EACH)(H).tokens.cpu(), want.tokens)
    assert torch.equal(ops.sample(H, W, **EACH).cpu(), want.tokens)


def test_calls_go_to_torchs_current_stream(want):
    """A long wait before the hidden states are there: a call on another stream would read zeros."""
    sampler = fs.Sampler(fs.Head(W), B, **EACH)
    calls = (lambda h: fs.sample(h, W, **EACH).tokens, lambda h: sampler(h).tokens, lambda h: ops.sample(h, W, **EACH))
    for call in calls:
        call(H)
        torch.cuda.synchronize()
        for _ in range(3):
            with torch.cuda.stream(torch.cuda.Stream()):
                late = torch.zeros_like(H)
                torch.cuda._sleep(20_000_000)
                late.copy_(H)
                tokens = call(late).clone()
            torch.cuda.synchronize()
            assert torch.equal(tokens.cpu(), want.tokens)


@pytest.mark.parametrize("way", ["sampler", "operator"])
def test_graphs_replay_with_what_the_tensors_hold_then(way):
    each = {name: value.clone() for name, value in EACH.items()}
    states = H.clone()
    sampler = fs.Sampler(fs.Head(W), B, **each)
    call = (lambda: sampler(states).tokens) if way == "sampler" else (lambda: ops.sample(states, W, **each))
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = call()
    for step in range(4):
        each["position"].fill_(step)
        states.copy_(H.roll(step, 0))
        graph.replay()
        want = fs.sample(states.clone(), W, **{**EACH, "position": each["position"]}).tokens
        torch.cuda.synchronize()
        assert torch.equal(tokens, want)


def test_a_graph_draws_anew_at_every_replay_where_torch_seeds_it():
    flat = torch.zeros_like(H)
    fs.torch.sample(flat, W)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = fs.torch.sample(flat, W)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(tuple(tokens.flatten().tolist()))
    assert len(set(found)) == 3


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_models_draw_the_same(mode, want):
    step = torch.compile(lambda h, t, s, p: fs.torch.sample(h * 1.0, W, temperature=t, seed=s, position=p),
                         fullgraph=True, mode=mode)
    for _ in range(3):
        tokens = step(H, EACH["temperature"], EACH["seed"], EACH["position"])
        assert torch.equal(tokens.cpu(), want.tokens)


def test_torch_checks_the_operators():
    torch.library.opcheck(ops.sample.default, (H, W), EACH)
    torch.library.opcheck(ops.sample_logits_logprob.default, ((H @ W.T).float(),), EACH)


def test_memory_freed_before_the_call_has_run_is_not_given_away(want):
    for _ in range(20):
        states = H.clone()
        tokens = fs.sample(states, W, **EACH).tokens
        del states
        scrap = torch.full_like(H, 7.0)
        assert torch.equal(tokens.cpu(), want.tokens) and scrap.is_cuda


def test_nothing_is_allocated_by_a_prepared_call():
    sampler = fs.Sampler(fs.Head(W), B, outputs=["logprob"], **EACH)
    sampler(H)
    torch.cuda.synchronize()
    free, before = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for _ in range(50):
        sampler(H)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == free and torch.cuda.memory_allocated() == before


def fill_the_device():
    """All of its memory becomes torch's, which keeps it for later; returns what is left."""
    torch.cuda.empty_cache()
    taken, size = [], torch.cuda.mem_get_info()[0]
    while size >= 1 << 20:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize("way", ["sampler", "operator"])
def test_memory_that_torch_keeps_is_there_for_a_call_that_needs_some(way, want):
    found = []

    def draw():  # in a thread of its own an operator has a context, and so work memory, of its own
        call = (lambda: fs.Sampler(fs.Head(W), B, **EACH)(H).tokens) if way == "sampler" else \
            (lambda: ops.sample(H, W, **EACH))
        found.append(call().cpu())

    try:
        if fill_the_device() >= 2 << 20:
            pytest.skip("the device could not be filled")
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
    finally:
        torch.cuda.empty_cache()
    assert torch.equal(found[0], want.tokens)


@pytest.mark.parametrize("call, text", [
    (lambda: fs.sample(H.cpu(), W), "hidden: in memory of cpu, expected cuda:0"),
    (lambda: fs.sample(H, W.cpu()), "hidden: in memory of cuda:0, expected cpu"),
    (lambda: fs.sample(H, W, temperature=torch.ones(B)), "temperature: in memory of cpu, expected cuda:0"),
    (lambda: fs.sample(H, W, out={"tokens": torch.empty(B, 1, dtype=torch.int64)}), "tokens: in memory of cpu"),
    (lambda: fs.Sampler(fs.Head(W), B)(H.cpu()), "hidden: in memory of cpu, expected cuda:0"),
    (lambda: fs.Sampler(fs.Head(W), B, context=fs.Context("cpu")), "head: in memory of cuda:0, expected cpu"),
    (lambda: ops.sample(H, W, temperature=torch.ones(B)), "temperature: float32.*on cpu.*expected.*on cuda:0"),
])
def test_tensors_of_another_device_are_named(call, text):
    with pytest.raises((ValueError, RuntimeError), match=text):
        call()


CUTS = dict(EACH, top_k=torch.arange(B, device="cuda", dtype=torch.int32) * 5,
            top_p=torch.linspace(0.97, 0.31, B, device="cuda"), min_p=torch.linspace(0, 0.13, B, device="cuda"))


def test_rules_draw_what_the_cpu_draws():
    rules = dict(CUTS, samples=3, keep_ties_top_k=True, frequency=0.5,
                 counts=torch.arange(B * V, device="cuda", dtype=torch.int32).reshape(B, V) % 3,
                 allow=torch.full((B, (V + 31) // 32), 0x5F5F5F5F, device="cuda", dtype=torch.int32))
    found = fs.sample(H, W, outputs=["rank"], top=7, **rules)
    host = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in rules.items()}
    want = fs.sample(H.cpu(), W.cpu(), outputs=["rank"], top=7, exact_rank=True, **host)
    assert found.tokens.is_cuda and found.ok
    for name in ("tokens", "rank", "top_token"):
        assert torch.equal(getattr(found, name).cpu(), getattr(want, name)), name


def test_operators_have_the_rules_too():
    want = fs.sample(H.cpu(), W.cpu(), **{name: value.cpu() for name, value in CUTS.items()}).tokens
    assert torch.equal(ops.sample(H, W, **CUTS).cpu(), want)
    assert torch.equal(ops.sample_logits((H.double() @ W.double().T).float(), **CUTS).cpu(), want)
    step = torch.compile(lambda h, k: fs.torch.sample(h * 1.0, W, **{**CUTS, "top_k": k}), fullgraph=True)
    assert torch.equal(step(H, CUTS["top_k"]).cpu(), want)


def test_graphs_replay_with_the_rules_of_then():
    top_k = CUTS["top_k"].clone()
    sampler = fs.Sampler(fs.Head(W), B, **{**CUTS, "top_k": top_k})
    sampler(H)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sampler(H).tokens
    for more in range(4):
        top_k.copy_(CUTS["top_k"] * more)
        graph.replay()
        want = fs.sample(H, W, **{**CUTS, "top_k": top_k.clone()}).tokens
        torch.cuda.synchronize()
        assert torch.equal(tokens, want)
