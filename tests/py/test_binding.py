"""The Python binding: structures as C lays them out, arrays as they lie, contexts and their threads."""
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
from flashsampling import _c, _rules

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
X = np.array([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 0.0, 2.0]], np.float32)


# ------------------------------------------------------------------------------------------------------------ C ----

STRUCTS = {
    "fs_head": _c.HeadStruct,
    "fs_rules": _c.RulesStruct,
    "fs_limits": _c.LimitsStruct,
    "fs_counters": _c.CountersStruct,
    "fs_rule_info": _c.RuleInfo,
    "fs_batch": _c.BatchStruct,
    "fs_result": _c.ResultStruct,
    "fs_options": _c.OptionsStruct,
    "fs_call_desc": _c.CallDescStruct,
    "fs_screen_options": _c.ScreenOptionsStruct,
}


def test_structures_are_laid_out_as_in_C(tmp_path):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    lines = ['#include "flashsampling_screens.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
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


@pytest.mark.parametrize("struct", STRUCTS.values())
def test_a_structure_refuses_a_member_that_it_does_not_have(struct):
    with pytest.raises(AttributeError):
        struct().logit_mode = 1


def members(struct, default, name=""):
    """Members that differ, those of structures inside it by their path."""
    found = set()
    for field, kind in struct._fields_:
        value, usual = getattr(struct, field), getattr(default, field)
        if issubclass(kind, ctypes.Structure):
            found |= members(value, usual, name + field + ".")
        elif (bool(value), bool(usual)) == (True, False) or isinstance(value, (int, float)) and value != usual:
            found.add(name + field)
    return found


def paths(struct, name=""):
    """All members of a structure."""
    return {path for field, kind in struct._fields_ for path in (
        paths(kind, name + field + ".") if issubclass(kind, ctypes.Structure) else {name + field})}


def unreached(default, *made):
    """Members that none of the structures made has set."""
    return paths(type(default)) - {"size"}.union(*(members(struct, default) for struct in made))


def test_every_member_of_head_and_batch_can_be_reached():
    """But for screens, which a context makes."""
    weights, wide, words = np.ones((40, 8), "f4"), np.ones((40, 12), "f2")[:, :8], np.ones((2, 2), "u4")
    head, lists, names = fs.Head(weights), [{1: 1}] * 2, list(_rules.SLOT_RULES)
    described = fs.Head(wide, bias=weights[:, 0], first_token=16, vocab=80, round_to="bf16", scale=2, softcap=3,
                        post_scale=4, constant=True)
    assert unreached(head.struct, described.struct, fs.Head(logits=weights).struct) == {
        "reserved", "screen", "screen_bytes"}
    batches = [
        fs.Batch(head, wide[:2], slots=2, slot=np.arange(2), position=[1, 2], allow=words, allow_index=[0, 1],
                 seen=words, counts=np.ones((2, 40), "i4"), edits=lists, watch=[[1]] * 2,
                 **{name: [1, 1] for name in names}),
        fs.Batch(head, weights[:2], count_list=lists, extra_tokens=[[1], [2, 3]], samples=2, mode="score",
                 noise="fast", keep_ties=True, fallback_token=7, group_size=8, list_capacity=9, position=5,
                 score_tokens=[[1, 2]] * 2,
                 **{**dict.fromkeys(names, 2), "min_p": 1, "top_p": 0.5},
                 limits={name: 1 for name, _ in _c.LimitsStruct._fields_ if name != "size"}),
        fs.Batch(head, weights[:2], padded_edits=([1, 1], np.ones((2, 3), "i4"), np.ones((2, 3), "f4")))]
    plain, made = fs.Batch(head, weights[:1]).struct, [batch.struct for batch in batches]
    assert unreached(plain, *made) == {"cuda_stream", "reserved"}
    assert unreached(plain.own_rules, *(struct.own_rules for struct in made)) == set()
    assert unreached(plain.own_limits, *(struct.own_limits for struct in made)) == set()


def test_every_member_of_result_and_options_can_be_reached():
    """But for what closures do better, the caller's allocator, and what a call or set_work writes."""
    head, hidden = fs.Head(np.ones((40, 8), "f4")), np.ones((2, 8), "f4")
    batch = fs.Batch(head, hidden, watch=[[1]] * 2)
    result = fs.Result(batch, fs.Result.OUTPUTS, top=2, logits_mode="cut", survivors=3)._struct(batch)
    assert unreached(_c.ResultStruct(), result) == set()
    context = fs.Context("reference", threads=3, block=64, log=len, parallel_for=map, fallback_bytes=1, cuda_stream=5,
                         check_pointers=True)
    assert unreached(fs.Context("cpu")._options, context._options) == {
        "device", "parallel_user", "log_user", "alloc", "free", "alloc_user", "work", "work_bytes", "reserved"}


def test_constants_are_those_of_the_header():
    text = " ".join(open(os.path.join(ROOT, "include", "flashsampling.h")).read().split())
    for prefix, bits in (("FS_ROW_", _c.Row), ("FS_", _c.Flag), ("FS_RULE_", _c.Rule), ("FS_RESULT_", _c.Wanted),
                         ("FS_INPUT_", _c.Input)):
        found = {name: int(shift) for name, shift in re.findall(r"\b%s(\w+) = 1u << (\d+)\b" % prefix, text)}
        for name, bit in bits.__members__.items():
            if bit and bit & bit - 1 == 0:
                assert found[name] == bit.bit_length() - 1
        if prefix != "FS_":
            assert set(found) == {name for name, bit in bits.__members__.items() if bit and bit & bit - 1 == 0}
    for prefix, table in (("FS_", _c.DTYPES), ("FS_", _c.QUANTISED), ("FS_CALL_", _c.CALLS), ("FS_MODE_", _c.MODES),
                          ("FS_NOISE_", _c.NOISES), ("FS_HEAD_", _c.KINDS), ("FS_LOGITS_", _c.LOGITS),
                          ("FS_BACKEND_", _c.BACKENDS)):
        for name, value in table.items():
            assert "%s%s = %d" % (prefix, name.upper(), value) in text
    assert "#define FS_FALLBACK_NONE ((size_t)%d)" % _c.FALLBACK_NONE in text
    assert "#define FS_FALLBACK_TOKEN_ZERO INT32_MIN" in text and _c.FALLBACK_TOKEN_ZERO == -(2**31)
    assert "#define FS_VERSION_MAJOR %d" % _c.VERSION[0] in text
    assert "#define FS_VERSION_MINOR %d" % _c.VERSION[1] in text


@pytest.mark.parametrize("kind", [fs.Row, fs.Flag, fs.Rule])
def test_every_member_of_an_enumeration_is_explained(kind):
    """In help(fs.Row), and beside the member itself."""
    for name, member in kind.__members__.items():
        text = member.__doc__
        assert text and text[-1] == "." and text != kind.__doc__, name
        assert "    %s: %s" % (name, text[:40]) in kind.__doc__


ERRORS = {"argument": -1, "unsupported": -2, "memory": -3, "device": -4, "peer": -5, "state": -6, "environment": -7,
          "internal": -8, "cancelled": -9}


def test_errors_keep_their_numbers():
    text = open(os.path.join(ROOT, "include", "flashsampling.h")).read()
    assert "    FS_OK = 0,\n" in text
    assert {name.lower(): int(value) for name, value in re.findall(r"FS_ERR_(\w+) = (-?\d+)", text)} == ERRORS
    assert (_c.STATUS_OK, _c.STATUS_PEER, _c.STATUS_UNSUPPORTED) == (0, ERRORS["peer"], ERRORS["unsupported"])
    assert [_c.library().fs_status_text(value).decode() for value in ERRORS.values()] == list(ERRORS)


def test_every_exported_function_is_bound():
    headers = ("flashsampling.h", "flashsampling_screens.h", "flashsampling_ranks.h")
    text = "".join(open(os.path.join(ROOT, "include", name)).read() for name in headers)
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
    result = context.sample(fs.Head(logits=X), outputs=["logprob"])
    assert set(result.arrays()) == {"tokens", "status", "logprob"} and result.tokens.dtype == np.int64
    counters = context.counters
    assert counters.work_bytes > 0 and counters.fallback_rows == counters.wire_bytes == 0
    with pytest.raises(AttributeError, match=r'rank: not among the results; ask for it with outputs=\["rank"\]'):
        result.rank
    with pytest.raises(AttributeError, match="no attribute 'logprobs'; did you mean logprob"):
        result.logprobs


def test_whole_numbers_of_any_type_are_taken(context):
    head = fs.Head(logits=X)
    for k in (1, 1.0, np.int64(1), np.float32(1), np.array(1), [1, 1], [1.0, 1.0], np.uint64([1, 1]), [True, True]):
        assert context.sample(head, top_k=k).tokens.tolist() == [[1], [0]]
    for top in (2**64 - 1, [2**64 - 1] * 2, np.uint64([2**64 - 1] * 2), np.int64([2**63 - 1] * 2)):
        result = context.sample(head, seed=top, substream=2**32 - 1, position=2**64 - 1, outputs=["noisy_logit"])
        assert np.isfinite(result.noisy_logit).all()
    assert context.sample(head, seed=[2**63 - 1] * 2).tokens.tolist() == \
        context.sample(head, seed=np.int64([2**63 - 1] * 2)).tokens.tolist()


def test_shards_may_share_a_batch():
    W, context = np.arange(96, dtype=np.float32).reshape(24, 4) % 7, fs.Context("cpu")
    whole, hidden = fs.Head(W), np.ones((2, 4), np.float32)
    shards = [fs.Head(W[:16], vocab=24), fs.Head(W[16:], first_token=16)]
    batch = fs.Batch(shards[0], hidden, seed=1)
    parts = [context.partial(head, batch) for head in shards]
    assert context.merge(parts, shards[1], batch).tokens.tolist() == context.sample(whole, batch).tokens.tolist()


# ------------------------------------------------------------------------------------------------------ contexts ----


def test_the_log_hears_what_was_chosen():
    lines = []
    context = fs.Context("reference", log=lines.append)
    assert lines and "reference" in lines[0] and context.text in repr(context)


def test_work_memory_of_the_caller(context):
    head = fs.Head(logits=X)
    size = context.work_size(head, seed=1).max_bytes
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
    lent = fs.Context(backend, work=fresh.work_size(head, **rules).max_bytes)
    lent.set_work(0)
    expected, result = fresh.sample(head, **rules), lent.sample(head, **rules)
    assert result.status.tolist() == expected.status.tolist() and result.tokens.tolist() == expected.tokens.tolist()
    assert result.tokens[0, 0] >= 0


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


# ------------------------------------------------------------------------------------------------------ supports ----


def test_supports_answers_and_says_why():
    assert fs.supports("cpu", rules=["top_k", "edits"], results=["rank", "top"], samples=2) == (True, "")
    assert fs.supports("cpu", dtype="q6_k") == (False, "FS_Q6_K weights are not supported yet by any backend")
    done, why = fs.supports("reference", call="ranks")
    assert not done and "reference" in why
    done, why = fs.supports("cuda", call="partial", dtype="f32")
    assert not done and ("FS_F32" in why or "not in this build" in why)


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
    assert fs.__version__ == fs.version() and "__version__" in dir(fs)
    assert fs.version().startswith("%d.%d." % _c.VERSION) and fs.noise_id() & 0x7FFFFFFF
