"""Calls that C makes in place of Python: the same draws, taken where they should be, and nowhere else. What a GPU would
show (its streams) is shown by stand-ins of the functions that C is given."""
import ctypes
import os
import threading

import pytest
import torch

import flashsampling as fs
import flashsampling.torch
from flashsampling import _c, _context, _native
from hostile import B, D, H, V, W

ops = torch.ops.flashsampling
pytestmark = pytest.mark.skipif(_native.library() is None and os.environ.get("FLASHSAMPLING_CALLS") == "ctypes",
                                reason="FLASHSAMPLING_CALLS=ctypes: calls are not made in C")


def sampler_of(**rules):
    """A sampler whose next call on [B, D] float32 C makes."""
    sampler = fs.Sampler(fs.Head(W), B, context=fs.Context("cpu", threads=1), **{"seed": 1, **rules})
    sampler(H)
    assert sampler._native(H) is not None
    return sampler


# -------------------------------------------------------------------------------------------------- which is taken ----


def test_the_library_is_there():
    """Built beside the other one, in the repository and in the wheel."""
    assert _native.library() is not None


@pytest.mark.parametrize("way, files, text", [
    ("quickly", _native._FILES, "FLASHSAMPLING_CALLS=quickly: expected one of native, ctypes"),
    ("native", ("lib/nothing.so",), "FLASHSAMPLING_CALLS=native: libflashsampling_python.so was not found"),
], ids=["unknown", "missing"])
def test_a_way_that_cannot_be_had_is_an_error(monkeypatch, way, files, text):
    monkeypatch.setenv("FLASHSAMPLING_CALLS", way)
    monkeypatch.setattr(_native, "_FILES", files)
    with pytest.raises(ImportError, match=text):
        _native._load()


def test_without_it_python_does_the_same(monkeypatch):
    monkeypatch.delenv("FLASHSAMPLING_CALLS", raising=False)
    monkeypatch.setattr(_native, "_FILES", ("lib/nothing.so",))
    assert _native._load() is None
    monkeypatch.setattr(_native, "_loaded", [None])
    sampler = fs.Sampler(fs.Head(W), B, seed=1)
    assert sampler._native is None
    for position in range(3):
        assert torch.equal(sampler(H).tokens, fs.sample(H, W, seed=1, position=position).tokens)


def test_a_library_of_another_version_is_refused(monkeypatch):
    class Wider(_native.Prepared):
        _fields_ = [("more", ctypes.c_int64)]

    monkeypatch.delenv("FLASHSAMPLING_CALLS", raising=False)
    monkeypatch.setattr(_native, "Prepared", Wider)
    with pytest.raises(ImportError, match=r"of another version: fs_prepared.batch has .* None here; build it again"):
        _native._load()


def test_a_library_whose_members_have_changed_places_is_refused(monkeypatch):
    """As many bytes, and of the same types."""
    fields = dict(_native.Prepared._fields_)
    fields = [({"head": "batch", "batch": "head"}.get(name, name), kind) for name, kind in fields.items()]
    monkeypatch.delenv("FLASHSAMPLING_CALLS", raising=False)
    monkeypatch.setattr(_native, "Prepared", type("Prepared", (ctypes.Structure,), {"_fields_": fields}))
    with pytest.raises(ImportError, match=r"another version: fs_prepared.batch has \(offset, size\) \(\d+, 8\) there"):
        _native._load()


# --------------------------------------------------------------------------------------------------- what is drawn ----


def test_c_takes_a_call_that_is_like_the_last_and_no_other():
    sampler = sampler_of()
    apart = torch.randn(B, 2 * D)[:, :D]
    others = {"fewer rows": H[:2], "apart": apart, "another type": H.double(), "as many bits": H.view(torch.int32),
              "another width": H[:, :-1], "one dimension": H[0], "a parameter": torch.nn.Parameter(H),
              "negated": torch._neg_view(H), "meta": H.to("meta"), "no tensor": H.numpy(), "nothing": None,
              "transposed": torch.randn(D, B).T}
    assert sampler._native(H.clone()) is not None
    for name, other in others.items():
        assert sampler._native(other) is None, name
        assert sampler._native(H) is not None, name


def test_positions_count_on_whoever_makes_the_call():
    sampler = fs.Sampler(fs.Head(W), B, seed=3)
    given = torch.arange(B, dtype=torch.int64) + 50
    calls = [(H, None, 0), (H, None, 1), (H[:2], None, 2), (H[:2], None, 3), (H, 9, 9), (H, None, 10),
             (H, given, given), (H, None, 11), (H, None, 12), (H.numpy(), None, 13), (H, None, 14)]
    for hidden, position, want in calls:
        tokens = sampler(hidden, position).tokens
        rows = torch.as_tensor(hidden)
        assert torch.equal(torch.as_tensor(tokens), fs.sample(rows, W, seed=3, position=want).tokens), want
    assert sampler.position == 15
    sampler.position = 4
    assert torch.equal(sampler(H).tokens, fs.sample(H, W, seed=3, position=4).tokens)


def test_positions_are_64_bits():
    sampler = sampler_of()
    for position in (2**64 - 2, 2**64 - 1, 0, 1):
        if position == 2**64 - 2:
            sampler.position = position
        assert torch.equal(sampler(H).tokens, fs.sample(H, W, seed=1, position=position).tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_type_and_stored_logits(dtype):
    weight, hidden = W.to(dtype), H.to(dtype)
    logits = (hidden.float() @ weight.float().T).to(dtype)
    by_weights, by_logits = fs.Sampler(fs.Head(weight), B, seed=2), fs.Sampler(fs.Head(logits=logits), B, seed=2)
    for position in range(4):
        want = fs.sample(hidden, weight, seed=2, position=position).tokens
        assert torch.equal(by_weights(hidden.clone()).tokens, want)
        want = fs.sample_logits(logits, seed=2, position=position).tokens
        assert torch.equal(by_logits(logits.clone()).tokens, want)
    assert by_weights._native(hidden) is not None and by_logits._native(logits) is not None


def test_rules_that_are_set_hold_from_the_next_call():
    sampler = sampler_of()
    sampler.set(temperature=0.0, position=0)
    assert sampler._native(H) is None
    for _ in range(3):
        assert torch.equal(sampler(H).tokens, (H @ W.T).argmax(1))


# ----------------------------------------------------------------------------------------------- who has a context ----

SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)


def test_a_context_that_c_draws_with_is_in_use():
    """From within the call, where the GIL is free: all others hear it, and it is free again afterwards."""
    sampler, other = sampler_of(), None
    context, heard = sampler.context, []
    other = fs.Sampler(fs.Head(W), B, context=context, seed=1)

    def try_all(*_):
        for call in (lambda: sampler(H), lambda: other(H), lambda: context.sample(fs.Head(W), H), context.close,
                     lambda: sampler.set(top_k=3)):
            try:
                call()
                heard.append("nothing")
            except RuntimeError as error:
                heard.append("another thread" in str(error))
        return 0

    function, before = SAMPLE(try_all), sampler._prepared.sample
    sampler._prepared.sample = _native.address(function)
    sampler(H)
    assert heard == [True] * 5
    sampler._prepared.sample = before
    assert sampler(H).ok and other(H).ok and context.sample(fs.Head(W), H).ok


def test_c_leaves_a_context_that_python_draws_with_alone():
    sampler = sampler_of()
    with sampler.context._busy:
        assert sampler._native(H) is None
        with pytest.raises(RuntimeError, match="another thread"):
            sampler(H)
    assert sampler._native(H) is not None
    sampler.context.close()
    assert sampler._native(H) is None


def test_a_call_that_fails_in_c_is_made_again_by_python_and_tells_why():
    sampler = sampler_of(position=7)
    position = sampler.position
    calls = []
    function = SAMPLE(lambda *_: calls.append(1) or -1)
    sampler._prepared.sample = _native.address(function)
    assert sampler._native(H) is None and calls and sampler.position == position
    assert torch.equal(sampler(H).tokens, fs.sample(H, W, seed=1, position=position).tokens)


# --------------------------------------------------------------------------------------------- a GPU, by stand-ins ----

STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
SET_STREAM = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


def test_calls_in_c_follow_the_current_stream():
    """It is asked for in every call and set where it has changed, 0 being CUDA's default stream; not where the caller
    has set one."""
    sampler = sampler_of()
    state, asked, was_set = {"stream": 0, "good": 0}, [], []

    def current(kind, device, out):
        asked.append((kind, device))
        out[0] = state["stream"]
        return state["good"]

    def set_stream(context, stream):
        was_set.append(stream)
        return 0

    functions = STREAM(current), SET_STREAM(set_stream)
    p, context = sampler._prepared, sampler.context
    p.current_stream, p.set_stream = map(_native.address, functions)
    context._stream_now.value = -1
    for stream in (0, 0, 4096, 4096, 0, 8192):
        state["stream"] = stream
        assert sampler._native(H) is not None and context._stream_now.value == stream
    assert was_set == [1, 4096, 1, 8192] and asked == [(1, 0)] * 6
    state["good"] = -1
    assert sampler._native(H) is None
    context._stream_now.value = _native.STAY
    assert sampler._native(H) is not None and len(asked) == 7


@pytest.mark.parametrize("given_back", [True, False])
def test_a_call_that_finds_no_device_memory_is_tried_again_if_torch_gives_some_back(monkeypatch, given_back):
    sampler = sampler_of(on_error="status")
    context, calls, real = sampler.context, [], sampler._function

    def scarce(*arguments):
        calls.append(arguments)
        return _c.STATUS_MEMORY if len(calls) == 1 else real(*arguments)

    monkeypatch.setattr(context, "device", "cuda:0")
    monkeypatch.setattr(_context, "make_room", lambda device: given_back)
    sampler._function, sampler._native = scarce, None
    if given_back:
        monkeypatch.setattr(context, "_check", lambda status: calls.append(status))
        sampler(H)
        assert len(calls) == 2
    else:
        with pytest.raises(fs.Error, match="memory"):
            sampler(H)
        assert len(calls) == 1
    context._work = object()  # the caller's memory: torch has nothing to do with it
    assert not context._make_room()


def test_torch_is_not_asked_for_memory_in_a_capture(monkeypatch):
    reserved, emptied = [100, 40], []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved[len(emptied)])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not _context.make_room(0) and not emptied
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert _context.make_room(0) and emptied
    reserved.append(40)
    assert not _context.make_room(0)  # there was nothing to give


# ------------------------------------------------------------------------------------------------------- operators ----


def test_threads_that_end_take_their_operators_contexts_with_them():
    def tasks():
        return len(os.listdir("/proc/self/task"))

    ops.sample(H, W)
    before = tasks()
    for _ in range(20):
        threads = [threading.Thread(target=lambda: ops.sample(H, W)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    event = threading.Event()
    for _ in range(100):
        if tasks() <= before:
            break
        event.wait(0.05)
    assert tasks() <= before


def test_numbers_are_those_of_the_other_overload():
    assert torch.equal(ops.sample(H, W), ops.sample.rules(H, W))
    assert ops.sample.default(H, W, seed=torch.arange(B)).shape == (B,)
    for name in ("sample", "sample_logits"):
        packet = getattr(ops, name)
        assert packet.overloads() == ["default", "rules"]
    with pytest.raises(RuntimeError, match="samples is -1, must be 1 to 1024"):
        ops.sample(H, W, samples=-1)
    assert ops.sample(H, W, vocab=V - 3, allow=torch.full((B, 16), -1, dtype=torch.int32)).max() < V - 3
