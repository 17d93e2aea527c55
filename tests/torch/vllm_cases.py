"""Requests with every rule of vLLM, and how drawn tokens are held against its law.

Each case draws DRAWS tokens, which Pearson's chi-squared holds against the law; below LEAST it fails: for fresh seeds
one false alarm in 30,000 runs of all cases, and the seeds are fixed, so a passing case stays so. A token that the law
does not have fails at once.
"""
import numpy as np
from scipy import stats

LEAST = 1e-6
PROMPT, OUTPUT = [3, 5, 5, 9], [7, 7, 9, 11]
_likely = {3: 6.5, 5: 4.5, 7: 7.0, 9: 4.5, 11: 4.5, 20: 0.5}  # so that what is done to these tokens shows


def cases(vocab):
    allowed = list(range(1, vocab, 5)) + [31, 63, 31]
    return {
        "plain": {},
        "warm": dict(temperature=1.7),
        "cold": dict(temperature=0.4),
        "greedy": dict(temperature=0.0, seed=4),
        "top-k": dict(top_k=20),
        "top-p": dict(top_p=0.7, temperature=0.8),
        "min-p": dict(min_p=0.2, temperature=1.2),
        "every cut": dict(top_k=30, top_p=0.8, min_p=0.02, temperature=1.1),
        "repetition": dict(repetition=1.6, bias=_likely),
        "frequency": dict(frequency=0.9, bias=_likely),
        "presence": dict(presence=1.1, bias=_likely),
        "every penalty and cut": dict(repetition=1.3, frequency=0.4, presence=-0.5, top_k=40, top_p=0.9, bias=_likely),
        "bias": dict(bias={4: 3.0, 6: -4.0, 40: 2.5}),
        "allowed": dict(allowed=allowed, temperature=1.3, bias={31: 4.0, 63: 4.0}),
        "allowed and bias": dict(allowed=allowed, bias={1: 2.0, 2: 50.0}),
        "stops": dict(min_tokens=9, stops=[7, 20], bias=_likely),
        "stops no more": dict(min_tokens=4, stops=[7, 20], bias=_likely),
        "bad words": dict(bad_words=[[20], [9, 11, 3], [11, 7], [8, 11, 9], [5, 7, 7, 9, 11, 2]], bias=_likely),
        "all": dict(temperature=0.9, top_p=0.9, top_k=50, min_p=0.01, frequency=0.5, presence=0.5, repetition=1.2,
                    min_tokens=6, stops=[9], bias=_likely, bad_words=[[20], [11, 3]]),
    }


# A case, and what its law would be if a rule were wrong: each must be rejected.
PLANTED = {
    "temperature 10 % off": ("cold", dict(temperature=0.44)),
    "temperature ignored": ("cold", dict(temperature=1.0)),
    "top-k off by one": ("top-k", dict(top_k=19)),
    "top-p of the whole row": ("every cut", dict(top_p=0.6)),
    "min-p before temperature": ("min-p", dict(min_p=0.2**1.2)),
    "prompt not seen": ("repetition", dict(prompt=[250])),
    "output not seen": ("frequency", dict(output=[])),
    "counts as presence": ("frequency", dict(output=[7, 9, 11])),
    "presence ignored": ("presence", dict(presence=0.0)),
    "bias ignored": ("bias", dict(bias={})),
    "an allowed id lost": ("allowed", dict(allowed=list(range(1, 300, 5)))),
    "stops ignored": ("stops", dict(stops=[])),
    "stops for ever": ("stops no more", dict(min_tokens=99)),
    "bad words of one token alone": ("bad words", dict(bad_words=[[20]])),
    "bad words whatever comes before": ("bad words", dict(bad_words=[[20], [3], [7], [9], [2]])),
}


def p_value(tokens, law):
    """Of Pearson's chi-squared; 0 where a token was drawn that has no probability. Rare tokens share a bin."""
    expected = law * len(tokens)
    counts = np.bincount(tokens, minlength=len(expected))
    if counts[law < 1e-12].any():
        return 0.0
    rare = expected < 8
    seen, wanted = np.append(counts[~rare], counts[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] < 8:
        least = wanted[:-1].argmin()
        seen[least], wanted[least] = seen[least] + seen[-1], wanted[least] + wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    return stats.chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(seen) - 1) if len(seen) > 1 else 1.0


def sampling_params(kind, request, **more):
    """A request of vllm_standin as vLLM's SamplingParams."""
    return kind(
        temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, min_p=request.min_p,
        seed=request.seed, repetition_penalty=request.repetition, frequency_penalty=request.frequency,
        presence_penalty=request.presence, logit_bias=request.bias or None, logprobs=request.logprobs,
        allowed_token_ids=request.allowed or None, min_tokens=request.min_tokens, stop_token_ids=request.stops,
        _bad_words_token_ids=request.bad_words or None, detokenize=False,
        **{"max_tokens": max(1, request.min_tokens), "ignore_eos": True, **more})
