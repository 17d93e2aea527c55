"""flashsampling.sglang on stand-ins of SGLang: what is drawn and what is handed back. The library's CPU
backend draws; sglang_world.py has the law. Tests of fit are those of vllm_cases.py: 8,192 tokens a case,
one false alarm in 30,000 runs of all of them for fresh seeds, which are fixed."""
import sys
import types

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")

from sglang_steps import both, patched, setup
from sglang_world import Grammar, Request, World, greedy, law
from vllm_cases import LEAST, p_value

import flashsampling.sglang as fss
from flashsampling._sglang_logits import Deferred

ROWS, STEPS = 512, 16
CASES = {
    "plain": {}, "warm": dict(temperature=1.7), "cold": dict(temperature=0.4), "top-k": dict(top_k=21),
    "top-p": dict(top_p=0.7, temperature=0.8), "min-p": dict(min_p=0.2, temperature=1.2), "greedy": dict(top_k=1),
    "top-k and top-p": dict(top_k=9, top_p=0.45), "every cut": dict(top_k=9, top_p=0.8, min_p=0.02, temperature=1.1),
}
PLANTED = {
    "temperature 10 % off": ("cold", dict(temperature=0.44), {}),
    "top-k off by two": ("top-k", dict(top_k=23), {}),
    "ties lost": ("top-k", {}, dict(backend="pytorch")),
    "top-p of what top-k left": ("top-k and top-p", {}, dict(step_min_p=True)),
    "top-p of the whole row in a step with min-p": ("every cut", {}, dict(step_min_p=False)),
    "min-p ignored": ("min-p", dict(min_p=0.0), {}),
}


def drawn(world, rules):
    np.random.seed(7)
    torch.manual_seed(7)
    return torch.cat([world.step([Request(**rules)] * ROWS)[0] for _ in range(STEPS)]).long().numpy()


@pytest.mark.parametrize("backend", ["flashinfer", "pytorch"])
@pytest.mark.parametrize("name", CASES)
def test_tokens_follow_the_law(monkeypatch, name, backend):
    setup(monkeypatch, later=backend == "pytorch", backend=backend)
    world = World(tied=True)
    tokens = drawn(world, CASES[name])
    assert fss.counts() == {"fused": STEPS}
    assert p_value(tokens, law(world.logits(), Request(**CASES[name]), backend, all_greedy=name == "greedy")) > LEAST


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_rejected(patched, name):
    case, change, how = PLANTED[name]
    world = World(tied=True)
    assert p_value(drawn(world, CASES[case]), law(world.logits(), Request(**{**CASES[case], **change}), **how)) < LEAST


def test_the_stand_ins_own_sampler_follows_the_law_too(monkeypatch):
    monkeypatch.setenv("FLASHSAMPLING_SGLANG", "off")
    setup(monkeypatch)
    world = World(tied=True)
    tokens = drawn(world, CASES["every cut"])
    assert p_value(tokens, law(world.logits(), Request(**CASES["every cut"]))) > LEAST
    assert fss.counts() == {} and world.processor.computed > STEPS


def test_the_head_is_not_run(both):
    world = World()
    world.step([Request()] * 3)
    before = world.processor.computed  # the first step compares logits
    tokens, output = world.step([Request()] * 3, padded=5)
    assert world.processor.computed == before and isinstance(output.next_token_logits, Deferred)
    assert tokens.shape == (3,) and tokens.dtype == torch.int32 and output.next_token_logprobs is None
    assert world.step([greedy()] * 3)[0].dtype == torch.int64
    assert fss.counts() == {"fused": 3} and world.runner.sampler.synced == 3


def test_prefill_draws_at_the_last_token_of_each_request(patched):
    world = World()
    hidden = world.hidden
    world.hidden = torch.randn((1, 32))  # of the other tokens
    rows = torch.cat((world.hidden, hidden, world.hidden, world.hidden, hidden))
    world.hidden = rows
    metadata = world.metadata(forward_mode=world.modes.EXTEND, extend_seq_lens=torch.tensor([2, 3]))
    output = world.processor(None, rows, world.lm_head, metadata)
    requests = [greedy(), greedy()]
    batch = types.SimpleNamespace(sampling_info=world.info(requests), return_logprob=False, top_logprobs_nums=[0, 0],
                                  token_ids_logprobs=[None] * 2, forward_mode=world.modes.EXTEND,
                                  positions=torch.arange(5), seq_lens=torch.tensor([2, 3]))
    world.hidden = hidden
    assert world.runner.sample(output, batch).tolist() == [world.logits().argmax()] * 2
    assert fss.counts() == {"fused": 1}


def test_rows_have_noise_of_their_own_in_every_step(patched):
    world = World()
    first, second = world.step([Request()] * 64)[0].tolist(), world.step([Request()] * 64)[0].tolist()
    assert first != second and len(set(first)) > 8


def test_seeds_give_equal_tokens_in_any_batch(both):
    """With deterministic inference each request has a seed; what counts is it, and the position."""
    world = World()
    requests = [Request(**{**rules, "seed": 100 + i, "position": 3 * i}) for i, rules in enumerate(CASES.values())
                if "min_p" not in rules]
    together = world.step(requests)[0].tolist()
    assert world.step(requests[::-1])[0].tolist()[::-1] == together
    assert [world.step([request])[0].item() for request in requests] == together
    assert world.step(requests, mode="EXTEND")[0].tolist() == together  # positions come from lengths there
    moved = [Request(**{**vars(request), "position": request.position + 1}) for request in requests]
    assert world.step(moved)[0].tolist() != together
    assert set(fss.counts()) == {"fused"}


def test_a_step_leaves_nothing_to_the_next(patched):
    world = World()
    plain = Request(seed=3)
    want = world.step([plain])[0].item()
    for request in (Request(seed=3, top_k=1), Request(seed=3, top_k=2, top_p=0.1, min_p=0.9, temperature=0.1),
                    Request(seed=3, logprobs=4)):
        world.step([request])
        tokens, output = world.step([plain])
        assert tokens.item() == want and output.next_token_logprobs is None
    world.step([plain], grammars=[Grammar([want + 1], 300)])
    assert world.step([plain])[0].item() == want


@pytest.mark.parametrize("model", [dict(softcap=3.0), dict(scale=0.3), dict(scale=0.7, softcap=4.0),
                                   dict(dtype=torch.bfloat16)], ids=str)
def test_heads_with_more_than_weights(patched, model):
    world = World(**model)
    tokens = drawn(world, {})
    assert fss.counts() == {"fused": STEPS}
    assert p_value(tokens, law(world.logits(), Request())) > LEAST


@pytest.mark.parametrize("finer", [False, True])
def test_logits_are_rounded_as_sglang_stores_them(patched, monkeypatch, finer):
    """The drawn token's logprob is that of bf16 logits, or of unrounded ones where SGLang or the user asks for them."""
    world = World(vocab=3000, dtype=torch.bfloat16)
    world.processor.use_fp32_lm_head = finer
    tokens, output = world.step([greedy(logprobs=2)])
    row = world.logits().astype(np.float64)
    value = output.next_token_logprobs.item()
    assert np.isclose(value, row.max() - row.max() - np.log(np.exp(row - row.max()).sum()), atol=1e-5)
    world.processor.__dict__.pop("_flashsampling")
    monkeypatch.setenv("FLASHSAMPLING_SGLANG_LOGITS", "f32")
    other = world.step([greedy(logprobs=2)])[1].next_token_logprobs.item()
    assert (other == value) == finer


def test_weights_that_were_exchanged(patched):
    world = World()
    world.step([greedy()])
    world.lm_head.weight = torch.nn.Parameter(-world.lm_head.weight.data, requires_grad=False)
    world.lm_head.weight[300:] = 50
    assert world.step([greedy()])[0].item() == world.logits().argmax() and fss.counts() == {"fused": 2}


# ------------------------------------------------------------------------- logprobs and masks ----

@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("rules", [{}, dict(temperature=0.7, top_k=9), dict(top_k=1, temperature=0.5)], ids=str)
def test_logprobs(both, rules, original):
    """Of what temperature made, cuts left aside; of a greedy step without temperature; or of the model's own logits."""
    sys.modules["sglang.srt.layers.sampler"].SGLANG_RETURN_ORIGINAL_LOGPROB = original
    world = World()
    numbers = [3, 0, 20]
    tokens, output = world.step([Request(**rules, logprobs=number) for number in numbers])
    row = world.logits().astype(np.float64)
    if not original and rules.get("top_k") != 1:
        row = row / rules.get("temperature", 1.0)
    scores = row - row.max() - np.log(np.exp(row - row.max()).sum())
    assert output.next_token_logprobs.shape == (3,) and output.next_token_logprobs.dtype == torch.float32
    assert np.allclose(output.next_token_logprobs, scores[tokens.numpy()], atol=2e-5)
    for number, values, ids in zip(numbers, output.next_token_top_logprobs_val, output.next_token_top_logprobs_idx):
        assert ids.dtype == torch.int64 and ids.tolist() == np.argsort(-row, kind="stable")[:number].tolist()
        assert np.allclose(values, scores[ids.numpy()], atol=2e-5)
    assert fss.counts() == {"fused": 1}


def test_grammar_masks(both):
    world = World()
    third = np.arange(0, 300, 3)
    grammars = [None, Grammar(third, 300), Grammar([17], 300)]
    for _ in range(20):
        tokens, output = world.step([Request(logprobs=2)] * 3, grammars=grammars)
        assert tokens[1] % 3 == 0 and tokens[2] == 17
    row = world.logits().astype(np.float64)[third]
    want = world.logits()[tokens[1]] - row.max() - np.log(np.exp(row - row.max()).sum())
    assert np.isclose(output.next_token_logprobs[1], want, atol=2e-5)
    assert -1e-6 <= output.next_token_logprobs[2] <= 0  # one token is left; log Z is within 1e-6
    assert output.next_token_top_logprobs_val[2][1] < -1e30
    assert fss.counts() == {"fused": 20}
    # A row without a token, and the step after.
    assert world.step([Request()], grammars=[Grammar([], 300)])[0].tolist() == [0]


def test_a_mask_holds_where_sglang_draws(both):
    """Masks in bools; and masks in bits of steps that prove not to be served when the mask has been taken."""
    world = World()
    for packed, token_ids in ((False, None), (True, [5])):
        for _ in range(10):
            tokens, _ = world.step([Request(logprobs=0, token_ids=token_ids)] * 2,
                                   grammars=[Grammar([5, 6], 300, packed), None])
            assert tokens[0] in (5, 6)
    assert fss.counts() == {"stock: a grammar's mask of torch.bool[2, 300] on cpu": 10, "stock: token_ids_logprob": 10}
