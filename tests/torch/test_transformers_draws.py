"""Sampled tokens follow the distribution of transformers' own logits and logits processors, computed in double.

Each case draws DRAWS first tokens. A draw that transformers' distribution does not have fails the case at once; the
others are held against it by Pearson's chi-squared, which fails below p = 1e-6: for fresh seeds one false alarm in
25,000 runs of the forty cases; the seeds are fixed, so a passing case stays so. At 16,384 draws a token of
probability 0.1 that were 0.088 or 0.112 would be seen at five standard deviations; errors planted below are.
"""
import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")
pytest.importorskip("transformers", reason="transformers cannot be imported")

import hf_models as hf
from scipy import stats

import flashsampling.transformers as fst

DRAWS, LEAST = 16384, 1e-6
PROMPT = hf.prompts(1, 4)
_eos = dict(eos_token_id=[5, 17])
# Tokens of the prompt made likely, and one of them unlikely, so that a penalty on them shows.
_biases = zip(PROMPT["input_ids"][0].tolist(), (7.0, 6.0, 8.0, -2.0))
_likely = dict(top_k=0, sequence_bias=[[[token], bias] for token, bias in _biases])


def draw(model, inputs, **arguments):
    """DRAWS first new tokens of one prompt."""
    torch.manual_seed(11)
    arguments = {"max_new_tokens": 1, "pad_token_id": 0, "num_return_sequences": DRAWS, **arguments}
    return model.generate(**inputs, **arguments, do_sample=True, custom_generate=fst.generate)[:, -1].numpy()


def p_value(tokens, expected):
    """Of Pearson's chi-squared; 0 where a token was drawn that has no probability. Rare tokens share a bin."""
    expected = expected.numpy() * len(tokens)
    counts = np.bincount(tokens, minlength=len(expected))
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 8
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] < 8:  # too few for a bin of their own
        least = wanted[:-1].argmin()
        seen[least], wanted[least] = seen[least] + seen[-1], wanted[least] + wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    if len(seen) == 1:
        return 1.0
    return stats.chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(seen) - 1)


def first_token(model, inputs, **arguments):
    return hf.first_token(model, inputs, **{"max_new_tokens": 1, "do_sample": True, **arguments})


CASES = {
    "defaults, top-k 50": {},
    "temperature": dict(temperature=2.5, top_k=0),
    "cold": dict(temperature=0.3, top_k=0),
    "top-k": dict(top_k=10, temperature=3.0),
    "top-k of one": dict(top_k=1),
    "top-k beyond the vocabulary": dict(top_k=5000),
    "top-p": dict(top_k=0, top_p=0.9, temperature=2.0),
    "top-p 0": dict(top_k=0, top_p=0.0),
    "min-p": dict(top_k=0, min_p=0.1, temperature=2.0),
    "min-p after top-p": dict(top_k=0, top_p=0.7, min_p=0.3, temperature=2.0),
    "top-k, top-p, min-p": dict(top_k=40, top_p=0.9, min_p=0.05, temperature=2.5),
    "repetition": dict(repetition_penalty=1.8, **_likely),
    "repetition below one": dict(repetition_penalty=0.8, **_likely),
    "suppressed": dict(suppress_tokens=list(range(0, 300, 3)), temperature=2.0),
    "suppressed at first": dict(begin_suppress_tokens=list(range(1, 300, 3)), temperature=2.0),
    "bias": dict(sequence_bias=[[[7], 3.0], [[9], 2.0], [[200], -1.0]], temperature=2.0, top_k=0),
    "bad words": dict(bad_words_ids=[[i] for i in range(2, 300, 5)], temperature=2.0),
    "min length": dict(min_length=20, temperature=4.0, top_k=0, **_eos),
    "min new tokens": dict(min_new_tokens=1, temperature=4.0, top_k=0, **_eos),
    "forced eos": dict(forced_eos_token_id=[5, 17, 44], **_eos),
    "forced eos, one of them banned later": dict(forced_eos_token_id=[5, 17], suppress_tokens=[17], **_eos),
    "forced eos that was banned before": dict(forced_eos_token_id=5, min_length=20, **_eos),
    "normalised": dict(renormalize_logits=True, top_p=0.8, temperature=2.0),
}


@pytest.fixture(scope="module")
def llama():
    return hf.make(num_hidden_layers=1)


@pytest.mark.parametrize("case", CASES)
def test_first_tokens_follow_the_distribution_of_transformers(case, llama, caplog):
    tokens = draw(llama, PROMPT, **CASES[case])
    assert p_value(tokens, first_token(llama, PROMPT, **CASES[case])) > LEAST
    assert caplog.records == []


@pytest.mark.parametrize("family", [family for family in hf.FAMILIES if family != "llama"])
def test_families_follow_the_distribution_of_transformers(family, caplog):
    model = hf.make(family)
    arguments = dict(temperature=1.5, top_p=0.95, top_k=100)
    assert p_value(draw(model, PROMPT, **arguments), first_token(model, PROMPT, **arguments)) > LEAST
    assert caplog.records == []


@pytest.mark.parametrize("family,dtype", [("llama", "bfloat16"), ("llama", "float16"), ("granite-scale", "bfloat16"),
                                          ("phi-bias", "bfloat16"), ("gemma2-softcap", "bfloat16")])
def test_rounded_logits_follow_the_distribution_of_transformers(family, dtype, caplog):
    model = hf.make(family, getattr(torch, dtype))
    arguments = dict(temperature=1.5, top_k=0)
    tokens = draw(model, PROMPT, num_return_sequences=DRAWS // 4, **arguments)  # torch is slow at these types here
    assert p_value(tokens, first_token(model, PROMPT, **arguments)) > LEAST
    assert caplog.records == []


def test_ties_at_the_last_place_of_top_k_are_kept(caplog):
    """The third and the fourth token have equal weights, so equal logits: top-k of three keeps four."""
    model = hf.make(num_hidden_layers=1)
    third, fourth = first_token(model, PROMPT, top_k=0).topk(4).indices[2:]
    with torch.no_grad():
        model.lm_head.weight[fourth] = model.lm_head.weight[third]
    expected = first_token(model, PROMPT, top_k=3)
    assert (expected > 0).sum() == 4 and expected[third] == expected[fourth]
    assert p_value(draw(model, PROMPT, top_k=3), expected) > LEAST
    assert caplog.records == []


def test_a_forced_first_token(llama):
    inputs = dict(input_ids=torch.tensor([[1]]), attention_mask=torch.tensor([[1]]))
    assert set(draw(llama, inputs, forced_bos_token_id=123)) == {123}


def test_repetition_looks_at_new_tokens_too(llama):
    """The second token, after a first one that is likely to come again; a penalty that forgot it is rejected."""
    first = PROMPT["input_ids"].new_tensor([[200]])
    longer = torch.cat([PROMPT["input_ids"], first], -1)
    arguments = dict(repetition_penalty=1.8, sequence_bias=[[[200], 8.0]], top_k=0, do_sample=True)
    processors, _ = hf.prepared(llama, input_ids=longer, max_new_tokens=1, **arguments)
    with torch.no_grad():
        logits = llama(longer).logits[:, -1].double()
    others = [i for i in range(hf.VOCAB) if i != 200]
    torch.manual_seed(12)
    out = llama.generate(**PROMPT, **arguments, max_new_tokens=2, num_return_sequences=DRAWS,
                         begin_suppress_tokens=others, custom_generate=fst.generate)
    assert (out[:, -2] == 200).all()
    right, forgetful = (torch.softmax(processors(seen, logits), -1)[0] for seen in (longer, PROMPT["input_ids"]))
    assert p_value(out[:, -1].numpy(), right) > LEAST > p_value(out[:, -1].numpy(), forgetful)


def test_left_padding_counts_for_repetition_as_in_transformers(llama):
    """Whether a version penalises the padding token or not."""
    ids = torch.tensor([[3, 3, 3, 90, 91, 92, 93], [94, 95, 96, 90, 91, 92, 93]])
    inputs = dict(input_ids=ids, attention_mask=torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7]))
    arguments = dict(repetition_penalty=3.0, temperature=3.0, top_k=0, sequence_bias=[[[3], 14.0]])
    tokens = draw(llama, inputs, pad_token_id=3, num_return_sequences=DRAWS // 2, **arguments)
    processors, prompt = hf.prepared(llama, **inputs, **arguments, do_sample=True, max_new_tokens=1, pad_token_id=3)
    position_ids = (inputs["attention_mask"].cumsum(1) - 1).clamp(0)
    with torch.no_grad():
        logits = llama(**inputs, position_ids=position_ids).logits[:, -1].double()
    expected = torch.softmax(processors(prompt, logits), -1)
    for row in range(2):
        assert p_value(tokens[row * DRAWS // 2 : (row + 1) * DRAWS // 2], expected[row]) > LEAST


# -------------------------------------------------------------------------------------------------- planted errors ----

@pytest.mark.parametrize("drawn,claimed", [
    (dict(temperature=1.0, top_k=0), dict(temperature=1.1, top_k=0)),
    (dict(top_k=10, temperature=3.0), dict(top_k=11, temperature=3.0)),
    (dict(top_k=11, temperature=3.0), dict(top_k=10, temperature=3.0)),
    (dict(top_p=0.9, top_k=0, temperature=2.0), dict(top_p=0.87, top_k=0, temperature=2.0)),
    (dict(min_p=0.1, top_k=0, temperature=2.0), dict(min_p=0.12, top_k=0, temperature=2.0)),
    (dict(repetition_penalty=1.8, **_likely), dict(repetition_penalty=1.6, **_likely)),
    (dict(min_length=0, temperature=4.0, top_k=0, **_eos), dict(min_length=20, temperature=4.0, top_k=0, **_eos)),
])
def test_planted_errors_are_rejected(drawn, claimed, llama):
    assert p_value(draw(llama, PROMPT, **drawn), first_token(llama, PROMPT, **claimed)) < LEAST


def test_noise_shared_between_rows_is_rejected(llama, monkeypatch):
    """A draw that gave every row the noise of row 0."""
    context = fst._context(torch.device("cpu"))

    class SameNoise:
        def sample(self, head, hidden, seed=0, **rules):
            seeds = torch.full((hidden.shape[0],), seed % 2**63, dtype=torch.int64)
            return context.sample(head, hidden, seed=seeds, **rules)

    first_token(llama, PROMPT)
    llama.generate(**PROMPT, max_new_tokens=1, custom_generate=fst.generate)
    monkeypatch.setattr(fst, "_context", lambda device: SameNoise())
    assert p_value(draw(llama, PROMPT), first_token(llama, PROMPT)) < LEAST
