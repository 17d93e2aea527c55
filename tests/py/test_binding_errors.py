"""Mistakes of a caller of the binding: what is caught in Python, and what the library says."""
import numpy as np
import pytest

import flashsampling as fs
from flashsampling import _c

X = np.array([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 0.0, 2.0]], np.float32)


# ---------------------------------------------------------------------------------------------- caught in Python ----


def pointer(dtype):
    return fs.Pointer(X.ctypes.data, (2,), dtype)


def masked(context, index):
    return context.sample(fs.Head(logits=X), allow=np.full((2, 1), 15, "u4"), allow_index=index)


def scored(context, given):
    return context.sample(fs.Head(logits=X), mode="score", score_tokens=given, outputs=["logit"])


@pytest.mark.parametrize("call, error, text", [
    (lambda c: fs.Head(), ValueError, "either weights or logits"),
    (lambda c: fs.Head(logits=X.astype("f8")), TypeError, "logits: array of type float64"),
    (lambda c: fs.Head(logits=X.astype("u2")), TypeError, "uint16 with dtype=\"bf16\""),
    (lambda c: fs.Head(logits=X[0]), ValueError, r"logits: shape \[4\], expected two dimensions"),
    (lambda c: fs.Head(logits=X[:, ::2]), ValueError, "8 bytes apart, expected 4"),
    (lambda c: fs.Head(logits=X[::-1]), ValueError, "rows are -16 bytes apart"),
    (lambda c: fs.Head(logits=np.broadcast_to(X[0], (2, 4))), ValueError, "rows are 0 bytes apart"),
    (lambda c: fs.Head(X, bias=[1.0]), ValueError, r"bias: shape \[1\], expected \[2\]"),
    (lambda c: fs.Head(X, round_to="f64"), ValueError, "round_to 'f64': expected one of f32"),
    (lambda c: c.sample(fs.Head(X)), ValueError, "needs hidden states"),
    (lambda c: c.sample(fs.Head(X), X[:, :3].copy()), ValueError, "hidden: 3 columns, the head has 4"),
    (lambda c: c.sample(fs.Head(logits=X), X), ValueError, "takes no hidden states"),
    (lambda c: c.sample(fs.Head(logits=X), temprature=1), TypeError, "unknown rule: temprature"),
    (lambda c: c.sample(fs.Head(logits=X), temperature=[1.0], slots=2), ValueError, r"temperature: shape \[1\]"),
    (lambda c: c.sample(fs.Head(logits=X), mode="beam"), ValueError, "mode 'beam': expected one of sample"),
    (lambda c: c.sample(fs.Head(logits=X), allow=np.zeros((1, 1), "u4")), ValueError, r"expected at least \[2, 1\]"),
    (lambda c: c.sample(fs.Head(logits=X), edits=([0, 5, 6], [1], [1.0])), ValueError, "edits: offsets must rise"),
    (lambda c: c.sample(fs.Head(logits=X), outputs=["logits"]), ValueError, "outputs: logits: expected some of"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=pointer("f16")), TypeError, "top_k: a Pointer to float16, expected int32"),
    (lambda c: fs.Head(logits=fs.Pointer(X.ctypes.data, X.shape, "f32"), dtype="bf16"), TypeError, "expected bfloat16"),
    (lambda c: masked(c, [0, 100000000]), ValueError, "allow_index: 100000000 for row 1, must be -1 to 1"),
    (lambda c: masked(c, [-2, 0]), ValueError, "allow_index: -2 for row 0, must be -1 to 1"),
    (lambda c: masked(c, [2, 0]), ValueError, "allow_index: 2 for row 0, must be -1 to 1"),
    (lambda c: scored(c, [[2**32 + 1], [0]]), ValueError,
     "score_tokens: 4294967297, expected an integer from -2147483648 to"),
    (lambda c: scored(c, [[0], [1.7]]), ValueError,
     "score_tokens: 1.7, expected an integer from -2147483648 to 2147483647"),
    (lambda c: scored(c, [[0], [float("nan")]]), ValueError, "score_tokens: nan, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=2**32 + 1), ValueError, "top_k: 4294967297, expected an integer from"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=0.9), ValueError, "top_k: 0.9, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=[2**31, 1]), ValueError, "top_k: 2147483648, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), top_k=np.float32([2**31, 1])), ValueError, "top_k: 2147483648.0, expected"),
    (lambda c: c.sample(fs.Head(logits=X), seed=-1), ValueError, "seed: -1, expected an integer from 0 to 18446744"),
    (lambda c: c.sample(fs.Head(logits=X), seed=[0, -1]), ValueError, "seed: -1, expected an integer from 0 to"),
    (lambda c: c.sample(fs.Head(logits=X), seed=[0, 2**64]), ValueError, "seed: 18446744073709551616, expected"),
    (lambda c: c.sample(fs.Head(logits=X), seed=[0, 2.0**64]), TypeError, "seed: array of type float64, expected int"),
    (lambda c: c.sample(fs.Head(logits=X), seed=np.float32([0, 1])), TypeError, "seed: array of type float32"),
    (lambda c: c.sample(fs.Head(logits=X), seed=3.0), ValueError, "seed: 3.0, expected an integer from 0 to"),
    (lambda c: c.sample(fs.Head(logits=X), seed=np.int64([3, -1])), ValueError, "seed: -1, expected an integer from 0"),
    (lambda c: c.sample(fs.Head(logits=X), seed=np.array([0, 2**64], object)), ValueError, "seed: 1844674407370955161"),
    (lambda c: c.sample(fs.Head(logits=X), position=np.int64([3, -1])), ValueError, "position: -1, expected an"),
    (lambda c: c.sample(fs.Head(logits=X), substream=np.int32([3, -1])), ValueError,
     "substream: -1, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), samples=0), ValueError, "samples: 0, expected 1 to 1024"),
    (lambda c: c.sample(fs.Head(logits=X), samples=-1), ValueError, "samples: -1, expected 1 to 1024"),
    (lambda c: c.sample(fs.Head(logits=X), samples=1025), ValueError, "samples: 1025, expected 1 to 1024"),
    (lambda c: c.sample(fs.Head(logits=X), fallback_token=-(2**31)), ValueError, "fallback_token: -2147483648, ex"),
    (lambda c: c.sample(fs.Head(logits=X), score_tokens=[[0], [1]]), ValueError, "score_tokens: given, but mode is 's"),
    (lambda c: fs.Head(X, scale=0), ValueError, "scale: 0, expected a number other than 0"),
    (lambda c: fs.Head(X, post_scale=-0.0), ValueError, "post_scale: -0, expected a number other than 0"),
    (lambda c: fs.Head(X, scale=1e-60), ValueError, "scale: 1e-60, expected a number other than 0"),
    (lambda c: c.sample(fs.Head(logits=X), repetition=0), ValueError, "repetition: 0, expected a number above 0"),
    (lambda c: c.sample(fs.Head(logits=X), top_p=95), ValueError, r"top_p: 95, expected a number from 0 to 1 \(off\)"),
    (lambda c: c.sample(fs.Head(logits=X), top_p=float("inf")), ValueError, "top_p: inf, expected a number from 0 to"),
    (lambda c: c.sample(fs.Head(logits=X), top_p=95.0 * np.ones(2)), fs.RowError, "2 of 2 rows .* row 0: BAD_TOP_P"),
    (lambda c: c.sample(fs.Head(logits=X), substream=2**32), ValueError, "substream: 4294967296, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), position=-1), ValueError, "position: -1, expected an integer from 0"),
    (lambda c: c.sample(fs.Head(logits=X), position=float("inf")), ValueError, "position: inf, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), samples=2**32 + 1), ValueError, "samples: 4294967297, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), fallback_token=2**31), ValueError, "fallback_token: 2147483648, expected"),
    (lambda c: c.sample(fs.Head(logits=X), mode=2**32), ValueError, "mode: 4294967296, expected an integer"),
    (lambda c: c.sample(fs.Head(logits=X), edits=[[(2**32, 1.0)], []]), ValueError, "edits: 4294967296, expected"),
    (lambda c: fs.Context(threads=2**32 + 1), ValueError, "threads: 4294967297, expected an integer"),
    (lambda c: fs.accept_drafts([[2**32 + 1]], [[1, 2]]), ValueError, "draft: 4294967297, expected an integer"),
])
def test_mistakes_are_caught_in_python(context, call, error, text):
    with pytest.raises(error, match=text):
        call(context)


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
    ("tokens", np.zeros((1, 1), "i8"), ValueError, r"tokens: shape \[1, 1\], expected \[2, 1\]"),
    ("noisy_logit", np.zeros((2, 1), "f8"), TypeError, "noisy_logit: array of type float64, expected float32"),
    ("noisy_logit", np.zeros((2, 9), "f4")[:, :1], ValueError,
     "noisy_logit: rows are 36 bytes apart, expected a packed"),
    ("noisy_logit", fs.Pointer(X.ctypes.data, (2, 1), "i32"), TypeError,
     "noisy_logit: a Pointer to int32, expected float32"),
    ("noisy_logit", np.frombuffer(bytes(8), "f4").reshape(2, 1), ValueError, "noisy_logit: a read-only array"),
])
def test_fields_that_do_not_fit_are_refused_whenever_they_were_set(context, name, array, error, text):
    batch = fs.Batch(fs.Head(logits=X))
    out = fs.Result(batch, ["noisy_logit"])
    setattr(out, name, array)
    with pytest.raises(error, match=text):
        context.sample(fs.Head(logits=X), batch, out=out)
    with pytest.raises(error, match=text):
        context.sample(fs.Head(logits=X), out={"tokens": np.zeros((2, 1), "i8"), name: array})


def test_a_list_is_nothing_to_write_to(context):
    with pytest.raises(TypeError, match="tokens: a list, expected an array to write to"):
        context.sample(fs.Head(logits=X), out={"tokens": [[0], [0]]})


def test_a_batch_of_another_head_is_refused(context):
    X32 = np.zeros((2, 32), np.float32)
    heads = {"weights of 4 columns, 2 tokens": fs.Head(X), "weights of 32 columns, 2 tokens": fs.Head(X32),
             "weights of 4 columns, 1 tokens": fs.Head(X, vocab=1), "2 rows of logits, 4 tokens": fs.Head(logits=X),
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


# ------------------------------------------------------------------------------------------ texts of the library ----


@pytest.mark.parametrize("rules, name, text", [
    (dict(mode=9), "argument", r"batch.mode is 9"),
    (dict(noise=7), "argument", r"batch.noise is 7"),
    (dict(flags=256), "argument", r"batch.flags is 0x100"),
    (dict(mode="group_parallel"), "argument", r"batch.group_size is 0, must be 1 to"),
    (dict(mode="group_online", group_size=2, top_k=2), "argument", r"top_k 2.*group modes take no cuts"),
    (dict(mode="group_online", group_size=2, min_p=0.25), "argument", r"min_p 0.25: group modes take no cuts"),
    (dict(mode="score"), "argument", r"batch.score_token is NULL"),
    (dict(limits=dict(absent=64)), "argument", r"limits.absent is 0x40"),
    (dict(edits=[[(3, 1.0)], []], limits=dict(edits=1, top_k=-1)), "argument", r"limits.top_k is -1"),
    (dict(watch=[[1, 2], []], limits=dict(watched=1)), "argument", r"limits.watched is 1.* 2 entries"),
    (dict(top=2000), "argument", r"result.top_count is 2000, must be 0 to 1024"),
    (dict(logits_mode=5), "argument", r"result.logits_mode is 5"),
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
        assert error.value.name == "peer" and error.value.status == _c.STATUS_PEER


@pytest.mark.parametrize("described, error, text", [
    (dict(samples=0), ValueError, "samples: 0, expected 1 to 1024"),
    (dict(mode=9), fs.Error, "call_desc.mode must be .*, not 9"),
    (dict(rules=64), fs.Error, "call_desc.rules"),
    (dict(rules=["top_q"]), ValueError, "rules 'top_q': expected one of top_k, top_p"),
    (dict(dtype="q2"), ValueError, "dtype 'q2': expected one of f32"),
])
def test_calls_that_nobody_could_do_are_errors(described, error, text):
    with pytest.raises(error, match=text):
        fs.supports("cpu", **described)
