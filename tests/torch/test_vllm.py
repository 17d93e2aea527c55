"""flashsampling.vllm on stand-ins of vLLM: what is drawn and what is handed back. The library's CPU backend draws;
vllm_standin.py has the law and vllm_cases.py the tests of fit."""
import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")

import vllm_standin as standin
from vllm_cases import LEAST, PLANTED, cases, p_value
from vllm_standin import GrammarOutput, World, law
from vllm_steps import STEPS, drawn, filled, module, request, sample

import flashsampling as fs
import flashsampling.vllm as fsv

CASES = cases(300)


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0"])
@pytest.mark.parametrize("name", CASES)
def test_tokens_follow_the_law(module, name, version):
    world = filled(CASES[name], version=version)
    tokens = drawn(world)
    assert fsv.counts() == {"fused": STEPS}
    assert p_value(tokens, law(world.logits(), request(**CASES[name]))) > LEAST


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_rejected(module, name):
    case, change = PLANTED[name]
    world = filled(CASES[case])
    wrong = law(world.logits(), request(**{**CASES[case], **change}))
    assert p_value(drawn(world), wrong) < LEAST


def test_the_stand_ins_own_sampler_follows_the_law_too(module):
    """The same test of fit on what stands for vLLM's sampler: it would be blind otherwise."""
    fsv.unpatch(module)
    world = filled(CASES["all"])
    assert p_value(drawn(world), law(world.logits(), request(**CASES["all"]))) > LEAST
    assert fsv.counts() == {}


def test_rows_of_every_kind_in_one_step(module):
    """Each slot has another case; the token is the one it has alone, in any order of the rows, in any slot."""
    world = World(slots=64)
    rules = [{**rules, "seed": 1000 + i} for i, rules in enumerate(CASES.values())]
    slots = [3 * i % 64 for i in range(len(rules))]
    for slot, each in zip(slots, rules):
        world.add(slot, request(**each))
    together = sample(world, slots).sampled_token_ids.flatten().tolist()
    alone = [sample(world, [slot]).sampled_token_ids.item() for slot in slots]
    backwards = sample(world, slots[::-1]).sampled_token_ids.flatten().tolist()
    assert together == alone == backwards[::-1]
    elsewhere = World(slots=64, version="0.32.0")
    for i, each in enumerate(rules):
        elsewhere.add(i, request(**each))
    assert sample(elsewhere, range(len(rules))).sampled_token_ids.flatten().tolist() == together
    greedy = together[list(CASES).index("greedy")]
    assert greedy == world.logits().argmax() and "stock" not in str(fsv.counts())


def test_a_step_leaves_nothing_to_the_next(module):
    """Plain after everything is plain: the structures of a call are kept."""
    world = World(slots=8)
    world.add(0, request(**CASES["all"], seed=1, logprobs=3))
    world.add(1, request(seed=2))
    world.add(2, request(allowed=[4, 8], seed=2))
    plain = sample(world, [1]).sampled_token_ids.item()
    masks = GrammarOutput(["r1"], fs.pack_bits(np.arange(300) % 7 == 0)[None].view(np.int32))
    for slots, grammar in (([0], None), ([2], None), ([1], masks), ([0, 2], None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.runner.sampler.sampling_states, "num_logprobs", np.full(8, -1, np.int32))
            other = sample(world, slots, grammar=grammar).sampled_token_ids[-1].item()
        assert slots == [0] or other != plain or grammar is None
        output = sample(world, [1])
        assert output.sampled_token_ids.item() == plain and output.logprobs_tensors is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_are_rounded_as_vllm_stores_them(module, dtype, monkeypatch):
    """Of 64 hidden states, tokens and logits are those of the rounded logits, unless finer ones are asked for."""
    world = World(vocab=3000, dtype=dtype, slots=64)
    world.add(0, request(temperature=0.0, logprobs=1))
    world.runner.sampler.logprobs_mode = "raw_logits"
    generator = torch.Generator().manual_seed(1)
    finer = 0
    for _ in range(64):
        world.hidden = (torch.randn((1, 32), generator=generator) / 3).to(dtype)
        rounded = world.runner.model.compute_logits(world.hidden)[0]
        world.runner.__dict__.pop("_flashsampling", None)
        monkeypatch.delenv("FLASHSAMPLING_VLLM_LOGITS", raising=False)
        output = sample(world, [0])
        token, value = output.sampled_token_ids.item(), output.logprobs_tensors.logprobs[0, 0].item()
        assert rounded[token] == rounded.max() and value == rounded.max().item()
        world.runner.__dict__.pop("_flashsampling")
        monkeypatch.setenv("FLASHSAMPLING_VLLM_LOGITS", "f32")
        finer += sample(world, [0]).logprobs_tensors.logprobs[0, 0].item() != value
    assert finer > 48


@pytest.mark.parametrize("model", [dict(softcap=3.0), dict(scale=0.3), dict(bias=True),
                                   dict(softcap=4.0, scale=0.7, bias=True)], ids=str)
def test_heads_with_more_than_weights(module, model):
    world = filled({}, **model)
    assert p_value(drawn(world), law(world.logits(), request())) > LEAST
    assert fsv.counts() == {"fused": STEPS}
    if "bias" in model:  # written to in place, as weight updates are
        world.runner.model.bias.copy_(-2 * world.runner.model.bias)
        assert p_value(drawn(world), law(world.logits(), request())) > LEAST


def test_chunked_prefill(module):
    """Requests with several tokens: the last hidden state counts; one that is not at its prompt's end draws none."""
    world = World(slots=8)
    for slot in range(4):
        world.add(slot, request(seed=slot))
    one = sample(world, [0, 1, 2, 3])
    hidden, batch = world.batch([0, 1, 2, 3], scheduled=[3, 1, 5, 2])
    many, sampled, rejected = world.runner.sample(hidden, batch, None)
    assert torch.equal(one.sampled_token_ids, many.sampled_token_ids)
    assert sampled is many.num_sampled and rejected is many.num_rejected
    world.requests[2].output = []
    short = sample(world, [0, 1, 2, 3], scheduled=[1, 1, 2, 1], short=(2,))
    assert short.num_sampled.tolist() == [1, 1, 0, 1] and short.num_rejected.tolist() == [0] * 4


@pytest.mark.parametrize("rules", [{}, dict(temperature=0.7, top_k=9), dict(bias={5: 3.0}, repetition=1.4)], ids=str)
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
@pytest.mark.parametrize("most", [0, 5, 20])
def test_logprobs(module, rules, mode, most):
    world = World(slots=8, mode=mode)
    world.add(0, request(**rules, logprobs=most))
    world.add(1, request(seed=3))
    output = sample(world, [1, 0])
    ids, values, ranks = output.logprobs_tensors[:3]
    assert ids.dtype == ranks.dtype == torch.int64 and values.dtype == torch.float32
    assert ids.shape == values.shape == (2, 1 + most) and ranks.shape == (2,)
    assert torch.equal(ids[:, :1], output.sampled_token_ids)
    row = standin.processed(world.logits(), request(**rules)) if mode.startswith("processed") else world.logits()
    scores = row if mode.endswith("logits") else row - row.max() - np.log(np.exp(row - row.max()).sum())
    there = min(most, np.isfinite(row).sum())
    assert np.allclose(values[1, : 1 + there], scores[ids[1, : 1 + there]], atol=2e-5)
    assert ids[1, 1 : 1 + there].tolist() == np.argsort(-row, kind="stable")[:there].tolist()
    assert (values[1, 1 + there :] == -np.inf).all() and (ids >= 0).all()
    assert ranks[1] == (row >= row[ids[1, 0]]).sum()


def test_grammar_masks(module):
    """Of some rows, in another order than theirs; with allowed ids both hold; raw logprobs are under the mask."""
    world = World(slots=8)
    for slot in range(6):
        more = {1: dict(logprobs=2), 4: dict(allowed=[3, 4, 6, 12])}.get(slot, {})
        world.add(slot, request(seed=slot, **more))
    even, third = np.arange(300) % 2 == 0, np.arange(300) % 3 == 0
    bits = fs.pack_bits(np.array([even, third, third])).view(np.int32)
    grammar = GrammarOutput(["r4", "r1", "r2"], bits)
    for step in range(20):
        output = sample(world, range(6), grammar=grammar, shift=step)
        tokens = output.sampled_token_ids.flatten()
        assert tokens[4] in (4, 6, 12) and tokens[1] % 3 == 0 and tokens[2] % 3 == 0
        row = np.where(third, world.logits(), -np.inf)
        want = row[tokens[1]] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert np.isclose(output.logprobs_tensors.logprobs[1, 0], want, atol=2e-5)
    one = fs.pack_bits(np.arange(300) == 17).view(np.int32)[None]
    output = sample(world, [1], grammar=GrammarOutput(["r1"], one))
    assert output.sampled_token_ids.item() == 17 and output.logprobs_tensors.logprobs[0, 2] == -np.inf
    unmasked = sample(world, [0], grammar=GrammarOutput([], bits[:0]), shift=19)
    assert unmasked.sampled_token_ids.item() == tokens[0]
    assert set(fsv.counts()) == {"fused"}


def test_rows_without_a_token_get_vllms(module):
    """No token is left, or the slot is -1: token 0, never one that is none."""
    world = World(slots=8)
    world.add(0, request(bias={}))
    output = sample(world, [0], grammar=GrammarOutput(["r0"], np.zeros((1, 10), np.int32)))
    assert output.sampled_token_ids.tolist() == [[0]]
    hidden, batch = world.batch([0, 0])
    batch.expanded_idx_mapping = torch.tensor([-1, 0], dtype=torch.int32)
    assert world.runner.sample(hidden, batch, None)[0].sampled_token_ids[0].item() == 0
