"""The Python binding: structures as C lays them out, arrays as they lie, errors with their texts."""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import flashsampling as fs
from flashsampling import _c

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
X = np.array([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 0.0, 2.0]], np.float32)


@pytest.fixture
def context():
    return fs.Context("reference")


# ------------------------------------------------------------------------------------------------------------ C ----

STRUCTS = {
    "fs_head": _c.HeadStruct,
    "fs_limits": _c.Limits,
    "fs_slot_values": _c.SlotValues,
    "fs_batch": _c.BatchStruct,
    "fs_result": _c.ResultStruct,
    "fs_options": _c.OptionsStruct,
    "fs_outline": _c.OutlineStruct,
}


def test_structures_are_laid_out_as_in_C(tmp_path):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    lines = ['#include "flashsampling.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, struct in STRUCTS.items():
        lines.append('printf("%s %%zu\\n", sizeof(%s));' % (name, name))
        for field, _ in struct._fields_:
            place = "offsetof(%s, %s), sizeof(((%s *)0)->%s)" % (name, field, name, field)
            lines.append('printf("%s.%s %%zu %%zu\\n", %s);' % (name, field, place))
    lines += ["return 0;", "}"]
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join(lines))
    subprocess.run([compiler, "-I", os.path.join(ROOT, "include"), source, "-o", program], check=True)
    expected = []
    for name, struct in STRUCTS.items():
        expected.append("%s %d" % (name, ctypes.sizeof(struct)))
        for field, _ in struct._fields_:
            place = getattr(struct, field)
            expected.append("%s.%s %d %d" % (name, field, place.offset, place.size))
    assert subprocess.check_output([program], text=True).splitlines() == expected


def test_constants_are_those_of_the_header():
    text = " ".join(open(os.path.join(ROOT, "include", "flashsampling.h")).read().split())
    for prefix, bits in (("FS_ROW_", _c.Row), ("FS_", _c.Flag), ("FS_RULE_", _c.Rule), ("FS_RESULT_", _c.Wanted)):
        found = {name: int(shift) for name, shift in re.findall(r"\b%s(\w+) = 1u << (\d+)\b" % prefix, text)}
        for name, bit in bits.__members__.items():
            if bit and bit & bit - 1 == 0:
                assert found[name] == bit.bit_length() - 1
        if prefix != "FS_":
            assert set(found) == {name for name, bit in bits.__members__.items() if bit and bit & bit - 1 == 0}
    for prefix, table in (("FS_", _c.DTYPES), ("FS_", _c.QUANTISED), ("FS_CALL_", _c.CALLS), ("FS_MODE_", _c.MODES), ("FS_NOISE_", _c.NOISES), ("FS_HEAD_", _c.KINDS),
                          ("FS_LOGITS_", _c.LOGITS), ("FS_BACKEND_", _c.BACKENDS)):
        for name, value in table.items():
            assert "%s%s = %d" % (prefix, name.upper(), value) in text
    assert "o.fallback_bytes = (size_t)%d << 20;" % (_c.FALLBACK_BYTES >> 20) in text
    assert "#define FS_VERSION_MAJOR %d" % _c.VERSION[0] in text
    assert "#define FS_VERSION_MINOR %d" % _c.VERSION[1] in text


ERRORS = {"argument": -1, "unsupported": -2, "memory": -3, "device": -4, "peer": -5, "state": -6, "environment": -7,
          "internal": -8}


def test_errors_keep_their_numbers():
    text = open(os.path.join(ROOT, "include", "flashsampling.h")).read()
    assert "    FS_OK = 0,\n" in text
    assert {name.lower(): int(value) for name, value in re.findall(r"FS_ERR_(\w+) = (-?\d+)", text)} == ERRORS
    assert (_c.STATUS_OK, _c.STATUS_PEER, _c.STATUS_UNSUPPORTED) == (0, ERRORS["peer"], ERRORS["unsupported"])
    assert [_c.library().fs_status_text(value).decode() for value in ERRORS.values()] == list(ERRORS)


def test_every_exported_function_is_bound():
    text = open(os.path.join(ROOT, "include", "flashsampling.h")).read()
    declared = {line.split("(")[0].split()[-1].lstrip("*") for line in text.splitlines() if line.startswith("FS_API ")}
    assert declared == set(_c._PROTOTYPES)


# -------------------------------------------------------------------------------------------------------- arrays ----


def test_bf16_rounds_to_nearest_even():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -3.4e38, np.inf, 2.0**-140], np.float32)
    assert fs.to_bf16(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xFF80, 0x7F80, 0x0000]
    assert np.isnan(fs.from_bf16(fs.to_bf16(np.float32([np.nan])))).all()
    every = np.arange(65536, dtype=np.uint16)
    number = ~np.isnan(fs.from_bf16(every))
    assert (fs.to_bf16(fs.from_bf16(every))[number] == every[number]).all()


def test_bits_are_packed_low_bit_first():
    flags = np.zeros((2, 70), bool)
    flags[0, [0, 33, 69]] = True
    assert fs.pack_bits(flags).tolist() == [[1, 2, 32], [0, 0, 0]]


def test_pointers_and_arrays_give_the_same(context):
    plain = context.sample(fs.Head(logits=X), seed=1, outputs="all")
    raw = context.sample(fs.Head(logits=fs.Pointer(X.ctypes.data, X.shape, "f32")), seed=1, outputs="all")
    wide = np.zeros((2, 9), np.float32)
    wide[:, :4] = X
    strided = context.sample(fs.Head(logits=wide[:, :4]), seed=1, outputs="all")
    for name, array in plain.arrays().items():
        assert array.tobytes() == raw.arrays()[name].tobytes() == strided.arrays()[name].tobytes()


def test_lists_and_tuples_of_arrays_give_the_same(context):
    head = fs.Head(logits=X)
    lists = context.sample(head, temperature=0.0, edits=[{0: 9.0, 1: 1.0}, [(3, 8.0)]], watch=[[0, 1], [3]])
    arrays = context.sample(head, temperature=0.0, edits=([0, 2, 3], [0, 1, 3], [9.0, 1.0, 8.0]),
                            watch=([0, 2, 3], [0, 1, 3]))
    assert lists.tokens.tolist() == arrays.tokens.tolist() == [[0], [3]]
    assert lists.watch_logit.tolist() == arrays.watch_logit.tolist() == [0.0, 3.0, 2.0]


def test_results_are_what_was_asked_for(context):
    result = context.sample(fs.Head(logits=X), outputs=["logprob"], tokens="i64")
    assert set(result.arrays()) == {"tokens", "status", "logprob"} and result.tokens.dtype == np.int64
    assert result.work_bytes > 0 and result.fallback_rows == 0 and result.wire_bytes == 0


def pointer(dtype):
    return fs.Pointer(X.ctypes.data, (2,), dtype)


def masked(context, index):
    return context.sample(fs.Head(logits=X), allow=np.full((2, 1), 15, "u4"), allow_index=index)


def scored(context, given):
    return context.sample(fs.Head(logits=X), mode="score", given=given, outputs=["logit"])


@pytest.mark.parametrize("call, error, text", [
    (lambda c: fs.Head(), ValueError, "either weights or logits"),
    (lambda c: fs.Head(logits=X.astype("f8")), TypeError, "logits: array of type <f8"),
    (lambda c: fs.Head(logits=X.astype("u2")), TypeError, "uint16 as bf16"),
    (lambda c: fs.Head(logits=X[0]), ValueError, r"logits: shape \[4\], expected two dimensions"),
    (lambda c: fs.Head(logits=X[:, ::2]), ValueError, "8 bytes apart, expected 4"),
    (lambda c: fs.Head(logits=X[::-1]), ValueError, "rows are -16 bytes apart"),
    (lambda c: fs.Head(logits=np.broadcast_to(X[0], (2, 4))), ValueError, "rows are 0 bytes apart"),
    (lambda c: fs.Head(X, bias=[1.0]), ValueError, r"bias: shape \[1\], expected \[2\]"),
    (lambda c: fs.Head(X, round="f64"), ValueError, "round 'f64': expected one of f32"),
    (lambda c: c.sample(fs.Head(X)), ValueError, "needs hidden states"),
    (lambda c: c.sample(fs.Head(X), X[:, :3].copy()), ValueError, "hidden: 3 columns, the head has 4"),
    (lambda c: c.sample(fs.Head(logits=X), X), ValueError, "takes no hidden states"),
    (lambda c: c.sample(fs.Head(logits=X), temprature=1), TypeError, "unknown rule: temprature"),
    (lambda c: c.sample(fs.Head(logits=X), temperature=[1.0], slots=2), ValueError, r"temperature: shape \[1\]"),
    (lambda c: c.sample(fs.Head(logits=X), mode="beam"), ValueError, "mode 'beam': expected one of sample"),
    (lambda c: c.sample(fs.Head(logits=X), allow=np.zeros((1, 1), "u4")), ValueError, r"expected at least \[2, 1\]"),
    (lambda c: c.sample(fs.Head(logits=X), edits=([0, 5, 6], [1], [1.0])), ValueError, "edit: offsets must rise"),
    (lambda c: c.sample(fs.Head(logits=X), outputs=["logits"]), ValueError, "outputs: logits: expected some of"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=pointer("f16")), TypeError, "top_k: a Pointer to f16, expected i32"),
    (lambda c: fs.Head(logits=fs.Pointer(X.ctypes.data, X.shape, "f32"), dtype="bf16"), TypeError, "expected bf16"),
    (lambda c: masked(c, [0, 100000000]), ValueError, "allow_index: 100000000 for row 1, must be -1 to 1"),
    (lambda c: masked(c, [-2, 0]), ValueError, "allow_index: -2 for row 0, must be -1 to 1"),
    (lambda c: masked(c, [2, 0]), ValueError, "allow_index: 2 for row 0, must be -1 to 1"),
    (lambda c: scored(c, [[2**32 + 1], [0]]), ValueError, "given: 4294967297, expected an integer from -2147483648 to"),
    (lambda c: scored(c, [[0], [1.7]]), ValueError, "given: 1.7, expected an integer from -2147483648 to 2147483647"),
    (lambda c: scored(c, [[0], [float("nan")]]), ValueError, "given: nan, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=2**32 + 1), ValueError, "top_k: 4294967297, expected an integer from"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=0.9), ValueError, "top_k: 0.9, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=[2**31, 1]), ValueError, "top_k: 2147483648, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=np.float32([2**31, 1])), ValueError, "top_k: 2147483648.0, expected"),
    (lambda c: c.sample(fs.Head(logits=X), seed=-1), ValueError, "seed: -1, expected an integer from 0 to 18446744"),
    (lambda c: c.sample(fs.Head(logits=X), seed=[0, -1]), ValueError, "seed: -1, expected an integer from 0 to"),
    (lambda c: c.sample(fs.Head(logits=X), seed=[0, 2**64]), ValueError, "seed: 18446744073709551616, expected"),
    (lambda c: c.sample(fs.Head(logits=X), seed=[0, 2.0**64]), ValueError, "seed: 1.8446744073709552e.19, expected"),
    (lambda c: c.sample(fs.Head(logits=X), stream=2**32), ValueError, "stream: 4294967296, expected an integer from 0"),
    (lambda c: c.sample(fs.Head(logits=X), position=-1), ValueError, "position: -1, expected an integer from 0"),
    (lambda c: c.sample(fs.Head(logits=X), position=float("inf")), ValueError, "position: inf, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), samples=2**32 + 1), ValueError, "samples: 4294967297, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), fallback_token=2**31), ValueError, "fallback_token: 2147483648, expected"),
    (lambda c: c.sample(fs.Head(logits=X), mode=2**32), ValueError, "mode: 4294967296, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), edits=[[(2**32, 1.0)], []]), ValueError, "edit: 4294967296, expected"),
    (lambda c: fs.Context(threads=2**32 + 1), ValueError, "threads: 4294967297, expected an integer"),
    (lambda c: fs.accept([[2**32 + 1]], [[1, 2]]), ValueError, "draft: 4294967297, expected an integer"),
])
def test_mistakes_are_caught_in_python(context, call, error, text):
    with pytest.raises(error, match=text):
        call(context)


def test_whole_numbers_of_any_type_are_taken(context):
    head = fs.Head(logits=X)
    for k in (1, 1.0, np.int64(1), np.float32(1), np.array(1), [1, 1], [1.0, 1.0], np.uint64([1, 1]), [True, True]):
        assert context.sample(head, top_k=k).tokens.tolist() == [[1], [0]]
    for top in (2**64 - 1, [2**64 - 1] * 2, np.int64([-1, -1])):  # signed arrays stand for unsigned ones of their width
        result = context.sample(head, seed=top, stream=2**32 - 1, position=2**64 - 1, outputs=["score"])
        assert np.isfinite(result.score).all()
    assert context.sample(head, seed=[2**64 - 1] * 2).tokens.tolist() == \
        context.sample(head, seed=np.int64([-1, -1])).tokens.tolist()


@pytest.mark.parametrize("rows, asked, text", [
    (3, {}, r"tokens: shape \[2, 1\], expected \[3, 1\]"),
    (2, dict(samples=3), r"tokens: shape \[2, 1\], expected \[2, 3\]"),
    (2, dict(watch=[[0], []]), r"watch_logit: shape \[2\], expected \[1\]"),
])
def test_a_result_of_another_batch_is_refused(context, rows, asked, text):
    out = fs.Result(fs.Batch(fs.Head(logits=X), watch=[[0], [1]]))
    with pytest.raises(ValueError, match=text):
        context.sample(fs.Head(logits=np.zeros((rows, 4), np.float32)), out=out, **asked)


@pytest.mark.parametrize("name, array, error, text", [
    ("tokens", np.zeros((1, 1), "i4"), ValueError, r"tokens: shape \[1, 1\], expected \[2, 1\]"),
    ("score", np.zeros((2, 1), "f8"), TypeError, "score: array of type <f8, expected f32"),
    ("score", np.zeros((2, 9), "f4")[:, :1], ValueError, "score: rows are 36 bytes apart, expected a packed array"),
    ("score", fs.Pointer(X.ctypes.data, (2, 1), "i32"), TypeError, "score: a Pointer to i32, expected f32"),
    ("score", np.frombuffer(bytes(8), "f4").reshape(2, 1), ValueError, "score: a read-only array"),
])
def test_fields_that_do_not_fit_are_refused_whenever_they_were_set(context, name, array, error, text):
    batch = fs.Batch(fs.Head(logits=X))
    out = fs.Result(batch, ["score"])
    setattr(out, name, array)
    with pytest.raises(error, match=text):
        context.sample(fs.Head(logits=X), batch, out=out)
    with pytest.raises(error, match=text):
        context.sample(fs.Head(logits=X), out={"tokens": np.zeros((2, 1), "i4"), name: array})


def test_a_list_is_nothing_to_write_to(context):
    with pytest.raises(TypeError, match="tokens: a list, expected an array to write to"):
        context.sample(fs.Head(logits=X), out={"tokens": [[0], [0]]})


def test_a_batch_of_another_head_is_refused(context):
    X32 = np.zeros((2, 32), np.float32)
    heads = {"weights of 4 columns, 2 tokens": fs.Head(X), "weights of 32 columns, 2 tokens": fs.Head(X32),
             "weights of 4 columns, 99 tokens": fs.Head(X, vocab=99), "2 rows of logits, 4 tokens": fs.Head(logits=X),
             "1 rows of logits, 4 tokens": fs.Head(logits=X[:1])}
    for made_for, own in heads.items():
        batch = fs.Batch(own, np.zeros((2, own.data.shape[1]), "f4") if own.kind == "weights" else None)
        for given, head in heads.items():
            if head is own:
                assert (context.sample(head, batch).tokens >= 0).all()
                continue
            for call in (context.sample, context.work_size, context.partial, lambda *a: context.merge([], *a)):
                with pytest.raises(ValueError, match="made for a head of %s, not of %s" % (made_for, given)):
                    call(head, batch)


def test_shards_may_share_a_batch():
    W, context = np.arange(96, dtype=np.float32).reshape(24, 4) % 7, fs.Context("cpu")
    whole, hidden = fs.Head(W), np.ones((2, 4), np.float32)
    shards = [fs.Head(W[:16], vocab=24), fs.Head(W[16:], first_token=16)]
    batch = fs.Batch(shards[0], hidden, seed=1)
    parts = [context.partial(head, batch) for head in shards]
    assert context.merge(parts, shards[1], batch).tokens.tolist() == context.sample(whole, batch).tokens.tolist()


# -------------------------------------------------------------------------------------------------------- errors ----


@pytest.mark.parametrize("rules, name, text", [
    (dict(samples=0), "argument", r"batch.samples is 0, must be 1 to 1024"),
    (dict(mode=9), "argument", r"batch.mode is 9"),
    (dict(noise=7), "argument", r"batch.noise is 7"),
    (dict(flags=256), "argument", r"batch.flags is 0x100"),
    (dict(mode="group_parallel"), "argument", r"batch.group_size is 0, must be 1 to"),
    (dict(mode="group_online", group_size=2, top_k=2), "argument", r"top_k 2.*group modes take no cuts"),
    (dict(mode="score"), "argument", r"batch.given is NULL"),
    (dict(limits=dict(absent=64)), "argument", r"batch.limits.absent is 0x40"),
    (dict(edits=[[(3, 1.0)], []], limits=dict(edits=1, top_k=-1)), "argument", r"batch.limits.top_k is -1"),
    (dict(watch=[[1, 2], []], limits=dict(watched=1)), "argument", r"batch.limits.watched is 1.* 2 entries"),
    (dict(top=2000), "argument", r"result.top_count is 2000, must be 0 to 1024"),
    (dict(logits=5), "argument", r"result.logits is 5"),
    (dict(list_capacity=-1), "argument", r"batch.list_capacity is -1"),
])
def test_errors_name_the_value_and_the_limit(context, rules, name, text):
    with pytest.raises(fs.Error, match=text) as error:
        context.sample(fs.Head(logits=X), **rules)
    assert error.value.name == name and error.value.status < 0 and str(error.value).startswith(name + ": ")


@pytest.mark.parametrize("head, text", [
    (dict(softcap=-1.0), "head.softcap is -1"),
    (dict(scale=float("inf")), "head.scale is inf"),
    (dict(first_token=-1), "head.first_token is -1"),
    (dict(first_token=2**24), "head.first_token is 16777216"),
    (dict(vocab=2**24), "head.vocab is 16777216"),
])
def test_errors_of_the_head(context, head, text):
    with pytest.raises(fs.Error, match=text):
        context.sample(fs.Head(logits=X, **head))


def test_errors_of_the_context():
    with pytest.raises(fs.Error, match="options.threads is -1"):
        fs.Context(threads=-1)
    with pytest.raises(fs.Error, match="options.backend is 77"):
        fs.Context(77)
    with pytest.raises(ValueError, match="backend 'gpu': expected one of auto"):
        fs.Context("gpu")
    with pytest.raises(fs.Error, match="reference backend") as error:
        fs.Context("reference").partial(fs.Head(logits=X))
    assert error.value.name == "unsupported"


def test_a_failed_call_writes_nothing_and_leaves_the_context_usable(context):
    head = fs.Head(logits=X)
    batch = fs.Batch(head, samples=2)
    out = fs.Result(batch)
    out.tokens[:] = 77
    batch.struct.samples = 5000
    with pytest.raises(fs.Error, match="5000"):
        context.sample(head, batch, out=out)
    assert (out.tokens == 77).all()
    batch.struct.samples = 2
    assert (context.sample(head, batch, out=out).tokens != 77).all()


def test_a_closed_context_says_so(context):
    with context:
        pass
    with pytest.raises(ValueError, match="closed"):
        context.sample(fs.Head(logits=X))


def test_the_log_hears_what_was_chosen():
    lines = []
    context = fs.Context("reference", log=lines.append)
    assert lines and "reference" in lines[0] and context.text in repr(context)


def test_work_memory_of_the_caller(context):
    head = fs.Head(logits=X)
    size = context.work_size(head, seed=1)
    lent = fs.Context("reference", work=size).sample(head, seed=1)
    assert lent.tokens.tolist() == context.sample(head, seed=1).tokens.tolist()
    small = fs.Context("reference", work=64)
    with pytest.raises(fs.Error, match=r"work memory of 64 bytes is too small: this call takes %d" % size) as error:
        small.sample(head, seed=1)
    assert error.value.name == "memory"
    for later in (size, 0):
        small.set_work(later)
        assert small.sample(head, seed=1).tokens.tolist() == lent.tokens.tolist()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_work_memory_leaves_the_budget_of_the_second_pass_as_it_is(backend):
    """A cut of 40,000 equal tokens takes a second pass, whose memory work memory must not have taken away."""
    head, rules = fs.Head(logits=np.zeros((1, 50000), np.float32)), dict(top_p=0.8, seed=1)
    fresh = fs.Context(backend)
    lent = fs.Context(backend, work=fresh.work_size(head, **rules))
    lent.set_work(0)
    expected, result = fresh.sample(head, **rules), lent.sample(head, **rules)
    assert result.status.tolist() == expected.status.tolist() and result.tokens.tolist() == expected.tokens.tolist()
    assert result.tokens[0, 0] >= 0


def test_a_part_of_another_size_is_refused():
    context, head = fs.Context("cpu"), fs.Head(logits=X)
    part = context.partial(head, seed=1)
    whole = context.sample(head, seed=1).tokens.tolist()
    assert context.merge([bytes(part)], head, seed=1).tokens.tolist() == whole
    for size in (0, 15, 16, 20, len(part) - 1, len(part) + 1):
        cut = (bytes(part) + b"0")[:size]
        text = "part 1 of 2: %d bytes, the parts of this call have %d" % (size, len(part))
        with pytest.raises(fs.Error, match=text) as error:
            context.merge([part, cut], head, seed=1)
        assert error.value.name == "peer" and error.value.status == ERRORS["peer"]


# ------------------------------------------------------------------------------------------------------- threads ----


class Planted(Exception):
    pass


def fail_at(place):
    def parallel_for(count, task):
        for i in range(count):
            if i == place:
                raise Planted(i)
            task(i)

    return parallel_for


def fail_beside_a_thread(count, task):
    """Fails while another thread has still to begin its task."""
    thread = threading.Thread(target=lambda: [task(i) for i in range(count)], daemon=True)
    thread.start()
    raise Planted


def twice(count, task):
    for i in [*range(count), *range(-1, count + 1)]:
        task(i)


def forget(count, task):
    task(count - 1)


@pytest.mark.parametrize("place", range(4))
def test_what_the_callers_threads_raise_is_raised_after_the_call(place):
    rng = np.random.default_rng(1)
    head = fs.Head(logits=rng.normal(0, 1, (3, 5000)).astype(np.float32))
    expected = fs.Context("cpu").sample(head, seed=1)
    context, batch = fs.Context("cpu", threads=4, parallel_for=fail_at(place)), fs.Batch(head, seed=1)
    out = fs.Result(batch)
    for _ in range(2):
        out.tokens[:] = 77
        with pytest.raises(Planted, match=str(place)):
            context.sample(head, batch, out=out)
        assert out.tokens.tolist() == expected.tokens.tolist()  # the call came to its end all the same


@pytest.mark.parametrize("parallel_for", [twice, forget], ids=["twice", "forget"])
def test_every_task_runs_once_whatever_the_callers_threads_do(parallel_for):
    head = fs.Head(logits=np.random.default_rng(1).normal(0, 1, (3, 5000)).astype(np.float32))
    context = fs.Context("cpu", threads=4, parallel_for=parallel_for)
    assert context.sample(head, seed=1).tokens.tolist() == fs.Context("cpu").sample(head, seed=1).tokens.tolist()


def test_a_thread_that_outlives_its_call_does_no_harm():
    head = fs.Head(logits=np.random.default_rng(1).normal(0, 1, (3, 50000)).astype(np.float32))
    context = fs.Context("cpu", threads=4, parallel_for=fail_beside_a_thread)
    for _ in range(50):
        with pytest.raises(Planted):
            context.sample(head, seed=1)


def test_accept_counts_leading_matches():
    draft = [[1, 2, 3], [1, 2, 3], [-1, 2, 3], [9, 2, 3]]
    target = [[1, 2, 3, 4], [1, 5, 3, 4], [-1, 2, 3, 4], [1, 2, 3, 4]]
    assert fs.accept(draft, target).tolist() == [3, 1, 0, 0]
    with pytest.raises(ValueError, match="target"):
        fs.accept(draft, draft)


@pytest.mark.parametrize("types", [("i4", "i4"), ("i8", "i8"), ("i4", "i8"), ("i8", "i4")])
def test_accept_takes_tokens_of_32_and_64_bits(types):
    draft = np.array([[1, 2, 3], [1, 2, 3], [7, 2, 3]], types[0])
    target = np.array([[1, 2, 3, 4], [1, 5, 3, 4], [1, 2, 3, 4]], types[1])
    out = np.full(3, 77, np.int32)
    assert fs.accept(draft, target, out=out) is out and out.tolist() == [3, 1, 0]
    if types == ("i8", "i8"):
        target[0, 1] += 2**32  # equal in its lower half
        assert fs.accept(draft, target, context=fs.Context("reference")).tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match=r"out: shape \[2\], expected \[3\]"):
        fs.accept(draft, target, out=out[:2])


# ------------------------------------------------------------------------------------------------------ supports ----


def test_supports_answers_and_says_why():
    assert fs.supports("cpu", rules=["top_k", "edits"], results=["rank", "top"], samples=2) == (True, "")
    assert fs.supports("cpu", dtype="q6_k") == (False, "FS_Q6_K weights are not supported yet by any backend")
    done, why = fs.supports("reference", call="ranks")
    assert not done and "reference" in why
    done, why = fs.supports("cuda", dtype="f32")
    assert not done and ("FS_F32" in why or "not in this build" in why)


@pytest.mark.parametrize("outline, error, text", [
    (dict(samples=0), fs.Error, "outline.samples must be 1 to 1024, not 0"),
    (dict(mode=9), fs.Error, "outline.mode must be .*, not 9"),
    (dict(rules=64), fs.Error, "outline.rules"),
    (dict(rules=["top_q"]), ValueError, "rules 'top_q': expected one of top_k, top_p"),
    (dict(dtype="q2"), ValueError, "dtype 'q2': expected one of f32"),
])
def test_outlines_that_nobody_could_do_are_errors(outline, error, text):
    with pytest.raises(error, match=text):
        fs.supports("cpu", **outline)


# ------------------------------------------------------------------------------------------------------- library ----


def python(code, **env):
    path = os.pathsep.join([os.path.join(ROOT, "python"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_import_takes_neither_numpy_nor_the_library():
    code = "import sys, flashsampling; assert 'numpy' not in sys.modules"
    assert python(code, FLASHSAMPLING_LIBRARY="/nowhere.so").returncode == 0


def test_a_forced_library_is_used_or_fails():
    run = python("import flashsampling; flashsampling.version()", FLASHSAMPLING_LIBRARY="/nowhere.so")
    assert run.returncode != 0 and "/nowhere.so" in run.stderr


def test_versions():
    assert fs.version().startswith("%d.%d." % _c.VERSION) and fs.noise_id() & 0x7FFFFFFF
