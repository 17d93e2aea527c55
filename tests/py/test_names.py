"""Keywords: what is no keyword is refused with the one that was meant, and each is written where checkers read it."""
import re
import typing
from pathlib import Path

import numpy as np
import pytest

import flashsampling as fs
from flashsampling import _c, _rules

H, W = np.ones((2, 4), "f4"), np.ones((9, 4), "f4")
HEAD = fs.Head(W)
WAYS = {
    "sample": lambda **rules: fs.sample(H, W, **rules),
    "sample_logits": lambda **rules: fs.sample_logits(H, **rules),
    "Batch": lambda **rules: fs.Batch(HEAD, H, **rules),
    "Sampler": lambda **rules: fs.Sampler(HEAD, 2, **rules),
    "Sampler.set": lambda **rules: fs.Sampler(HEAD, 2).set(**rules),
    "Context.sample": lambda **rules: fs.Context("cpu").sample(HEAD, H, **rules),
    "Context.work_size": lambda **rules: fs.Context("cpu").work_size(HEAD, H, **rules),
    "Context.partial": lambda **rules: fs.Context("cpu").partial(HEAD, H, **rules),
    "Context.merge": lambda **rules: fs.Context("cpu").merge([], HEAD, H, **rules),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name, text", [
    ("topk", "did you mean top_k"),
    ("temprature", "did you mean temperature"),
    ("topP", "did you mean top_p"),
    ("stream", "did you mean substream"),
    ("n", "it is called samples here"),
    ("num_samples", "it is called samples here"),
    ("repetition_penalty", "it is called repetition here"),
    ("logprobs", r'it is called outputs=\["logprob"\] here'),
    ("logit_bias", "it is called edits here"),
    ("max_tokens", "a call draws one token of each row"),
    ("typical_p", "this rule is not in the library"),
    ("zzz", "unknown rule: zzz$"),
])
def test_an_unknown_keyword_is_refused_with_the_one_that_was_meant(way, name, text):
    with pytest.raises(TypeError, match="unknown rule: %s.*%s" % (name, text) if name != "zzz" else text):
        WAYS[way](**{name: 1})


@pytest.mark.parametrize("call, error, text", [
    (lambda: fs.sample(H, W, logits="raw"), TypeError, "unknown rule: logits; did you mean logits_mode"),
    (lambda: fs.sample_logits(H, logits_of="raw"), TypeError, "unknown rule: logits_of; did you mean logits_mode"),
    (lambda: fs.Sampler(HEAD, 2, round="bf16"), TypeError, "unknown rule: round$"),
    (lambda: fs.Sampler(HEAD, 2, softcap=2.0), TypeError, "unknown rule: softcap; it is a keyword of Head"),
    (lambda: fs.Batch(HEAD, H, generator=np.random.default_rng(1)), TypeError,
     "unknown rule: generator; it is a keyword of sample and Sampler"),
    (lambda: fs.Head(W, round="bf16"), TypeError, "unknown rule: round; did you mean round_to"),
    (lambda: fs.Head(W, temperature=1), TypeError, "unknown rule: temperature; it is a keyword of Batch"),
    (lambda: fs.sample(H, W, outputs=["logprobs"]), ValueError, "outputs: logprobs: .*; did you mean logprob"),
    (lambda: fs.sample(H, W, outputs="rnak"), ValueError, "outputs: rnak: .*; did you mean rank"),
    (lambda: fs.sample(H, W, logits_mode="cuts"), ValueError, "logits_mode 'cuts': .*; did you mean cut"),
    (lambda: fs.sample(H, W, mode="without_replacment"), ValueError, "did you mean without_replacement"),
    (lambda: fs.sample(H, W, limits={"topk": 3}), ValueError, "limits: topk: .*; did you mean top_k"),
    (lambda: fs.sample(H, W, out={"token": W}), ValueError, "out: token: .*; did you mean tokens"),
    (lambda: fs.supports("cpu", rules=["topp"]), ValueError, "rules 'topp': .*; did you mean top_p"),
    (lambda: fs.Context("cdua"), ValueError, "backend 'cdua': .*; did you mean cuda"),
])
def test_a_word_that_is_none_is_refused_with_the_one_that_was_meant(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_name_that_the_package_does_not_have_can_be_hinted_at():
    """By an interpreter's traceback, which compares the name with those of the module."""
    with pytest.raises(AttributeError, match="module 'flashsampling' has no attribute 'sampel'") as error:
        fs.sampel
    assert error.value.name == "sampel" and error.value.obj is fs


def words(alias):
    """Of a Literal, and of Literals among other types."""
    found = typing.get_args(alias)
    return {word for part in found for word in (words(part) if typing.get_origin(part) else {part})}


@pytest.mark.parametrize("alias, table", [
    (_rules.Mode, _c.MODES), (_rules.Noise, _c.NOISES), (_rules.LogitsMode, _c.LOGITS), (_rules.Dtype, _c.ROUNDS),
    (_rules.Backend, _c.BACKENDS), (_rules.Output, fs.Result.OUTPUTS),
    (_rules.RuleName, map(str.lower, fs.Rule.__members__)), (_rules.FlagName, map(str.lower, fs.Flag.__members__)),
    (_rules.FlagName, _rules.Flags.__annotations__), (_rules.ScreenBits, [0, *(int(bits) if bits.isdigit() else bits for bits in _c.SCREENS)]),
])
def test_words_for_checkers_are_those_that_calls_take(alias, table):
    assert words(alias) == set(table)


def test_rules_are_those_of_the_library():
    """By name, order, type, limits and the value that does nothing: fs_rule tells of each."""
    infos, lib = [], _c.library()
    while info := lib.fs_rule(len(infos)):
        infos.append(info.contents)
    assert [info.name.decode() for info in infos] == list(_rules.STRUCT_RULES)
    for info, rule in zip(infos, _rules.STRUCT_RULES.values()):
        dtype = {value: name for name, value in _c.DTYPES.items()}[info.dtype]
        assert (dtype, info.off) == (rule.dtype, rule.off), info.name
        assert dtype == "i32" or np.float32([info.least, info.most]).tolist() == np.float32(
            [rule.least, rule.largest]).tolist(), info.name


def test_limits_are_those_of_the_library():
    assert ["size", *_rules.LIMITS] == [name for name, _ in _c.LimitsStruct._fields_]


def test_the_reference_lists_every_public_name_and_no_other():
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md"
    section = page.read_text().split("\n## Classes and methods\n")[1].split("\n## ")[0]
    words = set(re.findall(r"`(?:fs\.)?(\w+)(?:`|[.(])", section))
    assert set(fs.__all__) <= words, set(fs.__all__) - words
    functions = set(re.findall(r"`(\w+)`", section[section.index("Functions: "):]))
    assert functions <= set(fs.__all__), functions - set(fs.__all__)


@pytest.mark.parametrize("error", [fs.Error, fs.RowError])
def test_errors_are_printed_under_the_name_by_which_users_catch_them(error):
    assert "%s.%s" % (error.__module__, error.__qualname__) == "flashsampling.%s" % error.__name__
