"""Calls of one context that meet: on several streams, in graphs that are replayed at once, in the caller's memory."""
import ctypes
import os
import subprocess
import sys

import pytest

from draws import GPU, STREAM, Outputs, draw, fs, hidden, np, rules, same_bits, torch, weights
from flashsampling import _c

V, D = 40007, 512
STEPS = 30


def steps_of(B, head, seed):
    """STEPS calls: their batches, where their tokens go, and what they are to draw."""
    H, asked = hidden(B, D), rules(B)
    asked["seed"] = asked["seed"] + seed
    each = [dict(asked, position=asked["position"] + i) for i in range(STEPS)]
    want = torch.stack([draw(weights(V, D), H, one)["tokens"] for one in each])
    tokens = torch.full((STEPS, B), -9, device="cuda", dtype=torch.int32)
    return [fs.Batch(head, H, **one) for one in each], tokens, want


@pytest.mark.parametrize("B", [8, 64, 200])
def test_a_call_on_another_stream_waits_for_the_last(B):
    """Without it two calls share lines, and draw each other's tokens."""
    head, streams = fs.Head(weights(V, D)), [torch.cuda.Stream() for _ in range(3)]
    sides = [steps_of(B, head, seed) for seed in range(3)]
    with fs.Context("cuda") as context:
        torch.cuda.synchronize()
        for i in range(STEPS):
            for stream, (batches, tokens, _) in zip(streams, sides):
                context.set_stream(stream.cuda_stream)
                context.sample(head, batches[i], out={"tokens": tokens[i]})
        torch.cuda.synchronize()
    for _, tokens, want in sides:
        assert torch.equal(tokens, want)


def captured(context, head, batch, out, stream):
    """A graph of some calls, which take turns with nobody."""
    context.set_stream(stream.cuda_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(4):
            context.sample(head, batch, out=out)
    return graph


@pytest.mark.parametrize("outputs", [(), ("log_z",)], ids=["tokens", "log Z"])
@pytest.mark.parametrize("kind", ["weights", "logits"])
def test_graphs_of_one_context_replay_at_once_and_beside_other_calls(kind, outputs):
    head = fs.Head(weights(V, D)) if kind == "weights" else fs.Head(logits=hidden(64, V).float())
    streams = [torch.cuda.Stream() for _ in range(3)]
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        graphs, outs, wants = [], [], []
        for seed, stream in enumerate(streams):
            asked = dict(rules(64), seed=rules(64)["seed"] + seed)
            batch = fs.Batch(head, hidden(64, D) if kind == "weights" else None, **asked)
            want, out = Outputs(64, floats=outputs), Outputs(64, floats=outputs)
            context.set_stream(STREAM.cuda_stream)
            context.sample(head, batch, out=want.rows)
            torch.cuda.synchronize()
            wants.append(want.taken())
            outs.append((batch, out))
            if seed:
                graphs.append(captured(context, head, batch, out.rows, stream))
        context.set_stream(streams[0].cuda_stream)
        torch.cuda.synchronize()
        for _ in range(20):
            for graph, stream in zip(graphs, streams[1:]):
                with torch.cuda.stream(stream):
                    graph.replay()
            context.sample(head, outs[0][0], out=outs[0][1].rows)
        torch.cuda.synchronize()
        for (_, out), want in zip(outs, wants):
            assert same_bits(out.taken(), want)
        del graphs


def test_a_call_goes_to_the_stream_that_its_batch_names():
    W, H, asked, other = weights(V, D), hidden(64, D), rules(64), torch.cuda.Stream()
    head, want, out = fs.Head(W), draw(W, H, asked)["tokens"], Outputs(64, floats=())
    batch = fs.Batch(head, H, **asked)
    batch.struct.cuda_stream = other.cuda_stream
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        context.sample(head, batch, out=out.rows)
        torch.cuda.synchronize()
        with torch.cuda.stream(other):
            torch.cuda._sleep(200_000_000)
        context.sample(head, batch, out=out.rows)
        assert STREAM.query() and not other.query()
        torch.cuda.synchronize()
        assert torch.equal(out.taken()["tokens"], want)


def test_a_first_call_may_be_a_captured_one():
    """Memory is taken then, too."""
    asked, out = rules(64), Outputs(64, floats=("log_z",))
    head = fs.Head(logits=hidden(64, V).float())
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as warm:  # loads the kernels, which no capture allows
        warm.sample(head, out=Outputs(64, floats=("log_z",)).rows, **asked)
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        graph = captured(context, head, fs.Batch(head, **asked), out.rows, STREAM)
        assert out.untouched()
        graph.replay()
        want = Outputs(64, floats=("log_z",))
        GPU.sample(head, out=want.rows, **asked)
        torch.cuda.synchronize()
        assert same_bits(out.taken(), want.taken())
        del graph


def test_torchs_default_stream_is_a_stream():
    W, H, asked, out = weights(V, D), hidden(3, D), rules(3), Outputs(3)
    assert torch.cuda.default_stream().cuda_stream == 0
    torch.cuda.synchronize()
    with fs.Context("cuda", cuda_stream=0) as context:
        context.sample(fs.Head(W), H, out=out.rows, **asked)
        torch.cuda.synchronize()
        assert same_bits(out.taken(), draw(W, H, asked))


DEAD = """
import ctypes, torch
import flashsampling as fs
runtime = ctypes.CDLL("libcudart.so.13")
W, H = torch.randn(1000, 64, device="cuda").bfloat16(), torch.randn(2, 64, device="cuda").bfloat16()
tokens = torch.zeros(2, dtype=torch.int32, device="cuda")
stream = ctypes.c_void_p()
assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
torch.cuda.synchronize()
context = fs.Context("cuda", cuda_stream=stream.value)
context.sample(fs.Head(W), H, out={"tokens": tokens})
%s
assert runtime.cudaStreamDestroy(stream) == 0
%s
context.close()
torch.cuda.synchronize()
print("alive", tokens.min().item() >= 0)
"""


AGAIN = """
context.set_stream(torch.cuda.current_stream().cuda_stream)
context.sample(fs.Head(W), H, out={"tokens": tokens})
"""


@pytest.mark.parametrize("before, after", [("", ""), ("context.set_stream(None)", AGAIN)], ids=["closed", "left"])
def test_a_context_outlives_its_stream(before, after):
    package = os.path.dirname(os.path.dirname(fs.__file__))
    found = subprocess.run([sys.executable, "-c", DEAD % (before, after)], capture_output=True, text=True, timeout=120,
                           env={**os.environ, "PYTHONPATH": package})
    assert found.returncode == 0 and "alive True" in found.stdout, found.stderr[-2000:]


# -------------------------------------------------------------------------------------------- the caller's memory ----


def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize("kind", ["weights", "logits"])
def test_calls_in_the_callers_memory_take_no_other(kind):
    head = fs.Head(weights(V, D)) if kind == "weights" else fs.Head(logits=hidden(64, V).float())
    H, asked = (hidden(64, D) if kind == "weights" else None), rules(64)
    batch, floats = fs.Batch(head, H, **asked), ("log_z", "logprob", "max_logit")
    want, out = Outputs(64, floats=floats), Outputs(64, floats=floats)
    GPU.sample(head, batch, out=want.rows)
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        size = context.work_size(head, batch, out=out.rows).max_bytes
        memory = torch.full((size + 512,), 0x5A, dtype=torch.uint8, device="cuda")
        address = memory.data_ptr() + 256 - memory.data_ptr() % 256
        _c.library().fs_context_set_work(context._handle(), address, size)
        before = free_bytes()
        for _ in range(3):
            context.sample(head, batch, out=out.rows)
            takes = context.counters.work_bytes
        assert free_bytes() == before and takes <= size
        assert same_bits(out.taken(), want.taken())
        at = address - memory.data_ptr()
        assert (memory[:at] == 0x5A).all() and (memory[at + size :] == 0x5A).all()
        with pytest.raises(fs.Error, match="captured ones hold"):
            captured(context, head, batch, out.rows, STREAM)
        torch.cuda.synchronize()
        context.set_work(takes - 256)
        with pytest.raises(fs.Error, match="too small: this call takes %d" % takes):
            context.sample(head, batch, out=out.rows)


def test_captured_calls_have_a_piece_each_of_the_callers_memory():
    W, H, asked = weights(V, D), hidden(64, D), rules(64)
    head, out = fs.Head(W), Outputs(64, floats=())
    batch = fs.Batch(head, H, **asked)
    want = draw(W, H, asked)["tokens"]
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        size = context.work_size(head, batch, out=out.rows).max_bytes
        context.set_work(5 * size)
        context.sample(head, batch, out=out.rows)
        graph = captured(context, head, batch, out.rows, STREAM)  # four calls
        with pytest.raises(fs.Error, match="captured ones hold %d" % (4 * size)):
            captured(context, head, batch, out.rows, STREAM)
        for _ in range(5):
            graph.replay()
            context.sample(head, batch, out=out.rows)
        torch.cuda.synchronize()
        assert torch.equal(out.taken()["tokens"], want)
        del graph


def test_work_memory_for_a_call_by_groups_is_enough_for_its_part():
    """A part is one group, over which more CTAs share a row than over a group of a call: 99 and 64 of them here."""
    head, out = fs.Head(logits=hidden(1, 151936).float()), Outputs(1, floats=()).rows
    batch = fs.Batch(head, mode="group_parallel", group_size=151936, seed=1)
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        context.set_work(context.work_size(head, batch, out=out).max_bytes)
        context.sample(head, batch, out=out)
        context.partial(head, batch, out=out)
        torch.cuda.synchronize()


@pytest.mark.parametrize("B", [1027, 2558])
@pytest.mark.parametrize("kind", ["weights", "logits"])
def test_work_memory_for_more_rows_than_a_launch_takes(kind, B):
    head = fs.Head(weights(V, D)) if kind == "weights" else fs.Head(logits=hidden(B, V).float())
    H, floats = (hidden(B, D) if kind == "weights" else None), () if kind == "weights" else ("log_z",)
    asked = dict(mode="group_parallel", group_size=1024) if kind == "weights" else {}
    batch, out = fs.Batch(head, H, **rules(B), **asked), Outputs(B, floats=floats)
    with fs.Context("cuda", cuda_stream=STREAM.cuda_stream) as context:
        context.set_work(context.work_size(head, batch, out=out.rows).max_bytes)
        for _ in range(2):
            context.sample(head, batch, out=out.rows)
        out.taken()


def test_work_memory_may_come_with_the_options():
    W, H, asked, out = weights(V, D), hidden(3, D), rules(3), Outputs(3)
    memory = torch.full((1 << 19,), 0x5A, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    options = _c.OptionsStruct(size=ctypes.sizeof(_c.OptionsStruct), backend=_c.BACKENDS["cuda"])
    options.work, options.work_bytes = memory.data_ptr() + -memory.data_ptr() % 256, 1 << 18
    options.cuda_stream, context = STREAM.cuda_stream, ctypes.c_void_p()
    assert _c.library().fs_context_create(ctypes.byref(options), ctypes.byref(context)) == 0
    head = fs.Head(W)
    batch = fs.Batch(head, H, **asked)
    result = fs.Result.into(batch, out.rows)._struct(batch)
    for _ in range(2):
        assert _c.library().fs_sample(context, *map(ctypes.byref, (head.struct, batch.struct, result))) == 0
    torch.cuda.synchronize()
    _c.library().fs_context_destroy(context)
    assert same_bits(out.taken(), draw(W, H, asked))


# ----------------------------------------------------------------------------------------- arguments of the device ----


def test_slots_of_64_bits_are_those_of_32():
    slot = torch.tensor([3, -1, 0, 7, 2, 900], device="cuda")
    for head, H in ((fs.Head(weights(V, D)), hidden(6, D)), (fs.Head(logits=hidden(6, V).float()), None)):
        drawn = []
        for dtype in (torch.int32, torch.int64):
            out = Outputs(6)
            GPU.sample(head, H, slot=slot.to(dtype), slots=8, temperature=torch.rand(8, device="cuda") * 0 + 0.8,
                       seed=torch.arange(8, device="cuda"), out=out.rows)
            drawn.append(out.taken())
        assert same_bits(*drawn)
        assert drawn[0]["status"].tolist() == [0, fs.Row.SKIPPED, 0, 0, 0, fs.Row.BAD_SLOT]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_drafts_are_accepted_on_the_device(dtype):
    generator = np.random.default_rng(5)
    target = generator.integers(0, 3, (1000, 6))
    draft = np.where(generator.random((1000, 5)) < 0.7, target[:, :5], -1)
    want = [next((i for i in range(5) if d[i] < 0 or d[i] != t[i]), 5) for d, t in zip(draft, target)]
    accepted = torch.full((1000,), -9, device="cuda", dtype=torch.int32)
    d, t = torch.tensor(draft, device="cuda", dtype=dtype), torch.tensor(target, device="cuda", dtype=dtype)
    assert fs.accept_drafts(d, t, context=GPU, out=accepted) is accepted and accepted.tolist() == want
    with pytest.raises(fs.Error, match="drafts.tokens is not supported by the cuda backend"):
        fs.accept_drafts(d, t, context=GPU, emit="padded")
    with pytest.raises(fs.Error, match="drafts.target_offset is not supported by the cuda backend"):
        offsets = torch.arange(0, 6001, 6, device="cuda")
        fs.accept_drafts(d.ravel(), t.ravel(), offsets=offsets, context=GPU)
