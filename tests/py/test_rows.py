"""Rows that lack a token: which calls raise, what they say, what they carry; and numbers that the C library would take
for its defaults."""
import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import flashsampling as fs

rng = np.random.default_rng(0)
B, V, D = 4, 60, 8
W, H = rng.standard_normal((V, D), dtype="f4"), rng.standard_normal((B, D), dtype="f4")
BROKEN = H.copy()
BROKEN[[1, 3]] = np.nan
NONE = np.full((B, 2), 2**32 - 1, "u4")
NONE[2] = 0


def sampler(hidden, **rules):
    on_error = rules.pop("on_error", None)
    return fs.Sampler(fs.Head(W), B, on_error=on_error, seed=1, **rules)(hidden)


def merged(hidden, on_error=None, **rules):
    context, shards = fs.Context("cpu"), [fs.Head(W[:32], vocab=V), fs.Head(W[32:], first_token=32)]
    batch = fs.Batch(shards[0], hidden, seed=1, **rules)
    return context.merge([context.partial(shard, batch) for shard in shards], shards[0], batch, on_error=on_error)


WAYS = {
    "sample": lambda hidden, **rules: fs.sample(hidden, W, seed=1, **rules),
    "sample_logits": lambda hidden, **rules: fs.sample_logits(hidden @ W.T, seed=1, **rules),
    "Context.sample": lambda hidden, **rules: fs.Context("cpu").sample(fs.Head(W), hidden, seed=1, **rules),
    "Sampler": sampler,
    "merge": merged,
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.mark.parametrize("hidden, rules, count, row, bits", [
    (BROKEN, {}, 2, 1, "EMPTY NAN"),
    (H, dict(allow=NONE), 1, 2, "EMPTY"),
    (H, dict(edits=([0, 0, 1, 1, 1], np.int32([V]), np.float32([1]))), 1, 1, "BAD_TOKEN"),
    (H, dict(temperature=np.float32([1, 1, 1, -1])), 1, 3, "BAD_TEMPERATURE"),
    (H, dict(top_p=np.float32([95, 1, 0, 1])), 1, 0, "BAD_TOP_P"),
], ids=["NaN", "mask", "edit", "temperature", "top-p"])
def test_a_row_that_lacks_a_token_raises_and_the_others_are_not_lost(way, hidden, rules, count, row, bits):
    with pytest.raises(fs.RowError, match="^%d of 4 rows lack a token: row %d: %s" % (count, row, bits)) as error:
        way(hidden, **rules)
    found, want = error.value, way(hidden, on_error="status", **rules)
    assert (found.row, found.count, found.status) == (row, count, want.status[row])
    assert (want.tokens[row] == -1).all() and (want.tokens >= 0).sum() == B - count and not want.ok
    for name, array in want.arrays().items():
        np.testing.assert_array_equal(getattr(found.result, name), array)


def test_skipped_rows_and_rows_that_have_a_token_are_no_errors(way):
    result = way(H, slot=np.int32([0, -1, 2, -1]), slots=4)
    assert result.tokens.ravel()[1] == -1 and result.ok and result.check() is result
    hidden = H.copy()
    hidden[0] = np.inf  # logits are infinite, or NaN, and there is a token
    with np.errstate(invalid="ignore"):
        result = way(hidden)
    assert result.status[0] & fs.Row.INF and (result.tokens >= 0).all() and result.ok


def test_a_nan_logit_beside_others_is_no_error():
    x = np.zeros((2, 9), "f4")
    x[1, 3] = np.nan
    result = fs.sample_logits(x, seed=1)
    assert result.status[1] == fs.Row.NAN and result.ok


def test_fewer_distinct_tokens_than_samples_raise(way):
    """The last of its tokens would be -1."""
    if way is WAYS["merge"]:
        return  # its lists are not asked for so many
    with pytest.raises(fs.RowError, match="^1 of 4 rows lack a token: row 2: SHORT"):
        way(H, samples=3, mode="without_replacement", top_k=np.int32([3, 0, 2, 5]))
    result = way(H, samples=3, mode="without_replacement", top_k=np.int32([3, 0, 2, 5]), on_error="status")
    assert (result.tokens[2, :2] >= 0).all() and result.tokens[2, 2] == -1 and not result.ok


def test_statuses_that_nobody_asked_for_are_looked_at():
    for tokens in (np.zeros((B, 1), "i8"), np.zeros(B, "i4")):
        with pytest.raises(fs.RowError, match="2 of 4 rows lack a token: row 1: EMPTY NAN; row 3") as error:
            fs.sample(BROKEN, W, seed=1, out={"tokens": tokens})
        assert "status" not in error.value.result.arrays() and tokens.ravel()[1] == -1
        fs.sample(BROKEN, W, seed=1, out={"tokens": tokens}, on_error="status")
        fs.sample(H, W, seed=1, out={"tokens": tokens})
    assert fs.sample(H[:0], W).tokens.shape == (0,)


def test_on_error_is_one_of_few(way):
    with pytest.raises(ValueError, match="on_error 'ignore': expected \"raise\", \"status\" or None"):
        way(H, on_error="ignore")


def test_many_rows_are_counted_and_some_are_named():
    with pytest.raises(fs.RowError, match=r"^20 of 20 rows lack a token: row 0: EMPTY NAN; .*row 7: EMPTY NAN; \.\.\."):
        fs.sample_logits(np.full((20, 5), np.nan, "f4"))


def test_the_error_goes_through_pickle():
    with pytest.raises(fs.RowError) as error:
        fs.sample(BROKEN, W, seed=1)
    other = pickle.loads(pickle.dumps(error.value))
    assert (str(other), other.row, other.status, other.count) == (str(error.value), 1, error.value.status, 2)
    np.testing.assert_array_equal(other.result.tokens, error.value.result.tokens)


# -------------------------------------------------------------------------------------------- a Sampler's position ----


def test_only_calls_that_draw_use_a_position():
    draw = fs.Sampler(fs.Head(W), B, seed=1)
    refused = ((H[:, :3], None), (H.astype("f8"), None), (None, 7), (H, -1), (H, [1, 2]), (H, "a"), (H[:, :3], 9))
    for position in range(3):
        for hidden, given in refused:
            with pytest.raises((TypeError, ValueError)):
                draw(hidden, given)
        assert draw.position == position
        np.testing.assert_array_equal(draw(H).tokens, fs.sample(H, W, seed=1, position=position).tokens)
    # The rows that have tokens are drawn, and handed out.
    with pytest.raises(fs.RowError):
        draw(BROKEN)
    assert draw.position == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_call_leaves_its_position_to_the_next(error):
    failing = [False]

    def parallel_for(count, task):
        for i in range(count):
            task(i)
        if failing[0]:
            raise error

    draw = fs.Sampler(fs.Head(W), B, seed=1, context=fs.Context("cpu", threads=2, parallel_for=parallel_for))
    for position in (0, 1, 2):
        failing[0] = True
        for given in (None, 40):
            with pytest.raises(error):
                draw(H, given)
        failing[0] = False
        assert draw.position == position
        np.testing.assert_array_equal(draw(H).tokens, fs.sample(H, W, seed=1, position=position).tokens)


# --------------------------------------------------------------------------------------------- numbers, one by one ----


def test_numbers_mean_what_an_array_of_them_means():
    """Zeros that are the library's defaults, among others."""
    each = dict(temperature=(0, 0.5), top_p=(0.0, 1e-50, 1e-9, 0.3, 1, 1 + 1e-6), top_k=(0, 1, 7), min_p=(0, 0.4, 1))
    seeds = np.arange(B, dtype="u8")
    for name, values in each.items():
        for value in values:
            one, array = (fs.sample(H, W, seed=seeds, samples=9, **{name: v}) for v in (value, np.full(B, value)))
            np.testing.assert_array_equal(one.tokens, array.tokens, err_msg="%s %s" % (name, value))
    many = fs.sample(H, W, seed=1, samples=50, temperature=5.0, top_p=0.0).tokens
    assert (many == (H @ W.T).argmax(1)[:, None]).all(), "top_p 0 keeps one token"


def test_token_0_may_be_the_fallback():
    result = fs.sample(BROKEN, W, seed=1, fallback_token=0, on_error="status")
    assert result.tokens[[1, 3]].tolist() == [0, 0] and (result.status[[1, 3]] & fs.Row.EMPTY).all()
    with pytest.raises(fs.RowError):
        fs.sample(BROKEN, W, seed=1, fallback_token=0)


def test_no_fallback_memory_is_none():
    assert fs.Context("cpu", fallback_bytes=0)._options.fallback_bytes == 1
    assert fs.Context("cpu")._options.fallback_bytes == 0  # the library's default


COMPLEX = {"temperature", "top_p", "min_p", "repetition", "frequency", "presence", "top_k", "seed", "substream"}


@pytest.mark.parametrize("name", sorted(COMPLEX))
@pytest.mark.parametrize("value", [1j, 1 + 0j, np.complex64(1), np.complex64([1] * B), [1j] * B, [np.complex64(1)] * B,
                                   np.array([1 + 0j] * B)], ids=range(7))
def test_complex_numbers_are_refused_by_name(name, value):
    with pytest.raises((TypeError, ValueError), match="^%s: .*(complex|j|expected)" % name):
        fs.sample(H, W, counts=np.ones((B, V), "i4"), **{name: value})


@pytest.mark.parametrize("call", [
    lambda dtype: fs.Head(W, dtype=dtype), lambda dtype: fs.sample(H, W, dtype=dtype),
    lambda dtype: fs.Pointer(0, (1,), dtype), lambda dtype: fs.Sampler(fs.Head(W), 1, hidden_dtype=dtype),
    lambda dtype: fs.Batch(fs.Head(W), H, hidden_dtype=dtype), lambda dtype: fs.supports("cpu", dtype=dtype),
    lambda dtype: fs.Head(fs.Pointer(W.ctypes.data, W.shape, "f32"), dtype=dtype)], ids=range(7))
@pytest.mark.parametrize("dtype", ["float8", "bfloat16"])
def test_unknown_types_are_refused_by_name(call, dtype):
    with pytest.raises(ValueError, match="dtype '%s': expected one of f32" % dtype):
        call(dtype)


# ---------------------------------------------------------------------------------------------------------- copies ----


@pytest.mark.parametrize("thing", [
    fs.Head(W), fs.Batch(fs.Head(W), H), fs.Sampler(fs.Head(W), 2), fs.Context("cpu"),
    fs.Pointer(W.ctypes.data, W.shape, "f32")], ids=lambda thing: type(thing).__name__)
def test_what_points_to_memory_says_that_it_cannot_be_pickled(thing):
    text = "a %s cannot be pickled or copied, because it points to memory of this process" % type(thing).__name__
    for way in (pickle.dumps, copy.deepcopy, lambda thing: pickle.dumps({"deep": [thing]})):
        with pytest.raises(TypeError, match=text):
            way(thing)
    if not isinstance(thing, fs.Head):
        with pytest.raises(TypeError, match=text):
            copy.copy(thing)


def test_a_copy_of_a_head_is_one_of_its_own():
    head = fs.Head(W)
    other = copy.copy(head)
    other.struct.scale = 0.01
    np.testing.assert_array_equal(fs.Sampler(head, B, seed=1)(H).tokens, fs.sample(H, W, seed=1).tokens)
    assert other.data.keep is W and head.struct.scale == 1


@pytest.mark.parametrize("call", ["fs.sample(H, W)", "fs.Sampler(fs.Head(W), 2)", "fs.Context('reference')"])
def test_an_unknown_way_to_make_calls_is_refused(call):
    code = "import numpy as np, flashsampling as fs; H, W = np.ones((2, 4), 'f4'), np.ones((8, 4), 'f4'); " + call
    made = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FLASHSAMPLING_CALLS": "foo"},
                          capture_output=True, text=True, timeout=120)
    assert "ImportError: FLASHSAMPLING_CALLS=foo: expected one of native, ctypes" in made.stderr, made.stderr


def test_an_interrupted_look_at_the_statuses_leaves_the_position(monkeypatch):
    sampler = fs.Sampler(fs.Head(np.eye(8, 4, dtype="f4")), 2)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("flashsampling._sampler.check_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sampler(np.ones((2, 4), "f4"))
    assert sampler.position == 0
