"""sample, sample_logits and Sampler on numpy's arrays: the same draws as Context's, however they are made."""
import gc
import os
import threading

import numpy as np
import pytest

import flashsampling as fs

rng = np.random.default_rng(1)
V, D, B = 300, 32, 7
W = (rng.standard_normal((V, D)) / 4).astype("f4")
H = rng.standard_normal((B, D)).astype("f4")
RULES = dict(temperature=0.9, top_p=0.95, seed=5, position=3)


@pytest.fixture
def want(reference):
    return fs.Context("cpu").sample(fs.Head(W), H, outputs="all", top=4, tokens="i64", **RULES)


def same(result, want, rows=slice(None)):
    for name, array in result.arrays().items():
        np.testing.assert_array_equal(array, getattr(want, name)[rows].reshape(array.shape), err_msg=name)


# ------------------------------------------------------------------------------------------------------- sample ----


def test_sample_draws_what_a_context_draws(want):
    result = fs.sample(H, W, outputs="all", top=4, **RULES)
    assert result.tokens.dtype == np.int64 and result.tokens.shape == (B,) and result.ok and result.check() is result
    same(result, want)


def test_stored_logits_draw_the_same():
    x = np.array([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 0.0, 2.0]], "f4")
    want = fs.Context("cpu").sample(fs.Head(logits=x), outputs=["logprob"], tokens="i64", logits_mode="processed",
                                    seed=2)
    same(fs.sample_logits(x, seed=2, outputs=["logprob"], logits_mode="processed"), want)


def test_the_head_is_described_by_keywords():
    bias = rng.standard_normal(V).astype("f4")
    about = dict(bias=bias, scale=0.5, softcap=3.0, vocab=V - 9, round_to="bf16")
    want = fs.Context("cpu").sample(fs.Head(W, **about), H, tokens="i64", **RULES)
    same(fs.sample(H, W, **about, **RULES), want)


def test_bf16_as_bits():
    w, h = fs.to_bf16(W), fs.to_bf16(H)
    want = fs.Context("cpu").sample(fs.Head(w, dtype="bf16"), h, tokens="i64", **RULES)
    same(fs.sample(h, w, dtype="bf16", **RULES), want)


def test_weights_as_bits_and_hidden_states_that_are_not():
    w = fs.to_bf16(W)
    same(fs.sample(H, w, dtype="bf16", **RULES), fs.sample(H, fs.from_bf16(w), **RULES))


def test_without_a_seed_every_call_draws_anew():
    draws = {tuple(fs.sample(H, W, temperature=5.0).tokens.ravel()) for _ in range(8)}
    assert len(draws) == 8


def test_the_callers_arrays_are_written(want):
    tokens, logprob = np.full((B, 1), -9, "i8"), np.zeros(B, "f4")
    result = fs.sample(H, W, out={"tokens": tokens, "logprob": logprob}, **RULES)
    assert result.tokens is tokens
    np.testing.assert_array_equal(tokens, want.tokens)
    np.testing.assert_array_equal(logprob, want.logprob[:, 0])


def test_rows_without_a_token_are_named():
    hidden, temperature = H.copy(), np.ones(B, "f4")
    hidden[2] = np.nan
    temperature[4] = -1
    result = fs.sample(hidden, W, temperature=temperature, seed=1, on_error="status")
    assert not result.ok
    with pytest.raises(fs.RowError, match="2 of 7 rows lack a token: row 2: EMPTY NAN; row 4: BAD_TEMPERATURE"):
        result.check()


@pytest.mark.parametrize("arguments, error, text", [
    ((H[0], W), ValueError, r"hidden: shape \[32\], expected two dimensions"),
    ((H[:, :8], W), ValueError, "hidden: 8 columns, the head has 32"),
    ((H.astype("f8"), W), TypeError, "hidden: array of type float64"),
    ((H[:, ::-1], W), ValueError, "elements of a row are -4 bytes apart"),
    ((H, W.T), ValueError, "elements of a row are 128 bytes apart"),
    ((H.astype(">f4"), W), TypeError, "hidden: array of type float32 with bytes in the other order"),
], ids=["one row", "columns", "doubles", "backwards", "transposed", "big-endian"])
def test_wrong_arrays_are_named(arguments, error, text):
    with pytest.raises(error, match=text):
        fs.sample(*arguments)


@pytest.mark.parametrize("rules, text", [
    (dict(repetition=1.3), "repetition: 1.3, but of which tokens: give seen, counts, count_list or extra"),
    (dict(presence=np.float32(0.5)), "presence: 0.5, but of which tokens"),
    (dict(allow_index=np.zeros(B, "i4")), "allow_index: given without allow"),
])
def test_rules_that_would_do_nothing_are_refused(rules, text):
    for call in (lambda: fs.sample(H, W, **rules), lambda: fs.Sampler(fs.Head(W), B, **rules)):
        with pytest.raises(ValueError, match=text):
            call()
    fs.sample(H, W, repetition=1.0, frequency=0.0)


def test_unknown_rules_are_named():
    with pytest.raises(TypeError, match="unknown rule: topk"):
        fs.sample(H, W, topk=3)


def test_no_rows_are_no_error():
    result = fs.sample(H[:0], W, outputs=["logprob"])
    assert result.tokens.shape == result.logprob.shape == (0,) and result.ok


# ------------------------------------------------------------------------------------------------------ Sampler ----


def test_a_sampler_draws_what_a_context_draws_in_every_size(want):
    sampler = fs.Sampler(fs.Head(W), B, outputs="all", top=4, **RULES)
    for rows in (B, 1, 3, 0, B, 3):
        same(sampler(H[:rows].copy(), position=3), want, slice(rows))


def test_rows_that_are_apart_and_arrays_of_other_kinds(want):
    wide = np.zeros((2 * B, 2 * D), "f4")
    wide[::2, :D] = H
    sampler = fs.Sampler(fs.Head(W), B, **RULES)
    pointer = fs.Pointer(H.ctypes.data, H.shape, "f32")
    for hidden in (wide[::2, :D], H, wide[::2, :D], np.asfortranarray(H[:1]), pointer):
        same(sampler(hidden, position=3), want, slice(hidden.shape[0]))


def test_positions_count_up_and_may_be_said():
    sampler = fs.Sampler(fs.Head(W), B, temperature=3.0, seed=5)
    each = [fs.sample(H, W, temperature=3.0, seed=5, position=i).tokens for i in range(9)]
    assert all(np.array_equal(sampler(H).tokens, each[i]) for i in range(3)) and sampler.position == 3
    assert np.array_equal(sampler(H, position=7).tokens, each[7])
    assert np.array_equal(sampler(H).tokens, each[8])
    mixed = sampler(H, position=np.arange(B)).tokens
    assert all(mixed[b] == each[b][b] for b in range(B))
    assert np.array_equal(sampler(H, position=2).tokens, each[2]) and sampler.position == 3
    named = fs.Sampler(fs.Head(W), B, temperature=3.0, seed=5, position=4)
    assert np.array_equal(named(H).tokens, each[4]) and np.array_equal(named(H).tokens, each[5])


@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_positions_and_rules_that_are_arrays_are_read_anew_by_every_call(kind):
    position, temperature = np.zeros(B, kind), np.ones(B, "f4")
    sampler = fs.Sampler(fs.Head(W), B, temperature=temperature, seed=5, position=position)
    for step in range(4):
        position[:] = step
        temperature[:] = 1 + step
        want = fs.sample(H, W, temperature=1.0 + step, seed=5, position=step)
        assert np.array_equal(sampler(H).tokens, want.tokens)
    with pytest.raises(ValueError, match="position: the sampler was given an array"):
        sampler(H, position=1)


def test_an_array_that_would_be_copied_is_refused():
    with pytest.raises(TypeError, match="temperature: float64 that does not lie packed as float32"):
        fs.Sampler(fs.Head(W), B, temperature=np.ones(B))
    with pytest.raises(TypeError, match="slot: int16"):
        fs.Sampler(fs.Head(W), B, slot=np.zeros(B, "i2"))
    fs.Sampler(fs.Head(W), B, temperature=[1.0] * B)  # nobody writes to a list and expects it to count


def test_rules_are_exchanged():
    kept = {"temperature": 1.0, "top_k": 5, "seed": 5}
    sampler = fs.Sampler(fs.Head(W), B, **kept)
    for rules in ({"temperature": 0.0}, {"temperature": 2.0}, {"top_k": None}, {"top_k": 1, "seed": 6}):
        sampler.set(**rules, position=1)
        kept.update(rules)
        want = fs.sample(H, W, position=1, **{name: value for name, value in kept.items() if value is not None})
        assert np.array_equal(sampler(H).tokens, want.tokens), rules


def test_a_seed_that_is_none_is_a_fresh_one():
    sampler, drawn = fs.Sampler(fs.Head(W), B, temperature=5.0), set()
    for _ in range(8):
        drawn.add(tuple(sampler(H, position=0).tokens.ravel()))
        sampler.set(seed=None)
    assert len(drawn) == 8


def test_a_sampler_of_stored_logits():
    x = H @ W.T
    sampler = fs.Sampler(fs.Head(logits=x[:1]), B, seed=5, outputs=["log_z"])
    wide = np.concatenate([x, x], axis=1)
    for logits in (x, x[:2].copy(), wide[:, :V], x):
        same(sampler(logits, position=0), fs.sample_logits(x, seed=5, outputs=["log_z"]), slice(len(logits)))


@pytest.mark.parametrize("hidden, error, text", [
    (np.zeros((B + 1, D), "f4"), ValueError, r"hidden: shape \[8, 32\], expected \[up to 7, 32\]"),
    (H[:, :5], ValueError, r"hidden: shape \[7, 5\]"),
    (H[0], ValueError, r"hidden: shape \[32\]"),
    (H.astype("f2"), TypeError, "hidden: array of type float16, expected float32"),
    ([[0.0] * D], TypeError, "hidden: a list, as an array of type float64"),
    (None, TypeError, "hidden: a NoneType, as an array of type"),
])
def test_a_sampler_names_what_it_cannot_take_and_goes_on(want, hidden, error, text):
    sampler = fs.Sampler(fs.Head(W), B, **RULES)
    with pytest.raises(error, match=text):
        sampler(hidden)
    same(sampler(H), want)


@pytest.mark.parametrize("arguments, error, text", [
    (dict(rows=0), ValueError, "rows: 0, expected 1 to"),
    (dict(rows=2.5), ValueError, "rows: 2.5"),
    (dict(rows=2, hidden_dtype="f64"), ValueError, "hidden_dtype 'f64'"),
    (dict(rows=2, outputs=["logprobs"]), ValueError, "outputs: logprobs"),
    (dict(rows=2, slot=[0, 1, 2]), ValueError, r"slot: shape \[3\], expected \[2\]"),
])
def test_a_sampler_names_wrong_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        fs.Sampler(fs.Head(W), **arguments)


def test_what_a_call_cannot_do_is_said_by_every_call():
    sampler = fs.Sampler(fs.Head(W), 2, noise=7)
    for _ in range(2):
        with pytest.raises(fs.Error, match="batch.noise is 7"):
            sampler(H[:2])


def test_nothing_a_sampler_points_to_is_freed(want):
    sampler = fs.Sampler(fs.Head(W.copy()), B, temperature=np.full(B, 0.9, "f4"), top_p=np.full(B, 0.95, "f4"), seed=5)
    gc.collect()
    filler = [np.full(B, 7.0, "f4") for _ in range(100)]
    same(sampler(H.copy(), position=3), want)
    assert len(filler) == 100


# ----------------------------------------------------------------------------------------- threads and processes ----


def test_threads_draw_side_by_side(want):
    wrong = []

    def work():
        for _ in range(20):
            if not np.array_equal(fs.sample(H, W, **RULES).tokens, want.tokens[:, 0]):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_context_in_use_says_so():
    inside, done = threading.Event(), threading.Event()

    def parallel_for(count, task):
        inside.set()
        done.wait(10)
        for i in range(count):
            task(i)

    context = fs.Context("cpu", threads=2, parallel_for=parallel_for)
    sampler = fs.Sampler(fs.Head(W), B, context=context, seed=1)
    thread = threading.Thread(target=lambda: context.sample(fs.Head(W), H, seed=1))
    thread.start()
    assert inside.wait(10)
    try:
        for call in (lambda: context.sample(fs.Head(W), H), lambda: sampler(H)):
            with pytest.raises(RuntimeError, match="in a call of another thread"):
                call()
    finally:
        done.set()
        thread.join()
    sampler(H)


def test_a_child_draws_with_contexts_of_its_own(want):
    fs.sample(H, W, **RULES)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if np.array_equal(fs.sample(H, W, **RULES).tokens, want.tokens[:, 0]) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_sampler_of_the_parent_is_refused_in_a_child():
    sampler = fs.Sampler(fs.Head(W), B, **RULES)
    sampler(H)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sampler(H)
        except fs.Error as error:
            code = 0 if error.name == "state" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
