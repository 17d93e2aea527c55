"""flashsampling.sglang on SGLang's own LogitsProcessor, ModelRunner.sample, Sampler, SamplingBatchInfo and
HookRegistry, of the installed version, with the sampling backend pytorch. The head and the rows are those of
sglang_world.py; tests of fit as in tests/torch/test_sglang.py.
"""
import contextlib
import tempfile

import numpy as np
import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang_world import Grammar, Request, World, greedy, law
from vllm_cases import LEAST, p_value

arguments = ServerArgs(model_path="none", device="cpu")
arguments.sampling_backend = "pytorch"
set_global_server_args_for_scheduler(arguments)
with tempfile.NamedTemporaryFile() as file:
    init_distributed_environment(1, 0, "file://%s.store" % file.name, 0, "gloo")
initialize_model_parallel()
_parallel = contextlib.ExitStack()
for _name in ("tp_rank", "tp_size", "attn_cp_size", "attn_dp_size", "attn_tp_size"):  # which 0.5.23 has written later
    try:
        getattr(runtime_context.get_parallel(), _name)
    except (AssertionError, RuntimeError):
        _parallel.enter_context(runtime_context.get_parallel().override(**{_name: int(_name != "tp_rank")}))

import flashsampling.sglang as fss
from flashsampling._sglang_logits import Deferred

ROWS, STEPS = 512, 16
CASES = {
    "plain": {}, "warm": dict(temperature=1.7), "cold": dict(temperature=0.4), "top-k": dict(top_k=21),
    "top-p": dict(top_p=0.7, temperature=0.8), "min-p": dict(min_p=0.2, temperature=1.2),
    "top-k and top-p": dict(top_k=9, top_p=0.45), "every cut": dict(top_k=9, top_p=0.8, min_p=0.02, temperature=1.1),
}


@pytest.fixture(scope="module", autouse=True)
def hooks():
    fss.register()
    HookRegistry.apply_hooks()
    assert len([target for target in HookRegistry._patched if target.split(".")[-1] in fss._hooks]) == 3


@pytest.fixture(autouse=True)
def world():
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    fss._steps.counts.clear()
    torch.manual_seed(7)
    return World(lm_head=ParallelLMHead(300, 32, params_dtype=torch.float32))


@contextlib.contextmanager
def stock(world):
    """SGLang draws."""
    world.processor.__dict__["_flashsampling"] = {id(world.lm_head): ("off", world.lm_head)}
    yield
    del world.processor.__dict__["_flashsampling"]


def drawn(world, rules):
    return torch.cat([world.step([Request(**rules)] * ROWS)[0] for _ in range(STEPS)]).long().numpy()


@pytest.mark.parametrize("name", CASES)
def test_tokens_follow_the_law_that_sglangs_do(world, name):
    wanted = law(world.logits(), Request(**CASES[name]), "pytorch")
    assert p_value(drawn(world, CASES[name]), wanted) > LEAST
    assert fss.counts() == {"fused": STEPS}
    with stock(world):
        assert p_value(drawn(world, CASES[name]), wanted) > LEAST
    assert fss.counts() == {"fused": STEPS, "stock: logits that came with the forward pass": STEPS}


def test_greedy_tokens_and_their_types_are_sglangs(world):
    ours = world.step([greedy()] * 3, padded=2)[0], world.step([Request()] * 3)[0]
    with stock(world):
        theirs = world.step([greedy()] * 3)[0], world.step([Request()] * 3)[0]
    assert torch.equal(ours[0], theirs[0]) and [each.dtype for each in ours] == [each.dtype for each in theirs]


@pytest.mark.parametrize("rules", [dict(top_k=1), dict(top_k=1, temperature=0.5)], ids=str)
def test_logprobs_are_sglangs(world, rules):
    requests = [Request(**rules, logprobs=number) for number in (3, 0, 7)]
    ours = world.step(requests)[1]
    with stock(world):
        theirs = world.step(requests)[1]
    torch.testing.assert_close(ours.next_token_logprobs, theirs.next_token_logprobs, atol=2e-5, rtol=0)
    for name, close in (("next_token_top_logprobs_val", 2e-5), ("next_token_top_logprobs_idx", 0)):
        for a, b in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            torch.testing.assert_close(a, b, atol=close, rtol=0)
    assert fss.counts()["fused"] == 1


def test_masks_bias_and_penalties(world):
    grammars = [Grammar([5, 6], 300), None]
    for _ in range(10):
        tokens, output = world.step([Request()] * 2, grammars=grammars)
        assert tokens[0] in (5, 6) and isinstance(output.next_token_logits, Deferred)
        assert world.step([Request()] * 2, grammars=[Grammar([5, 6], 300, packed=False), None])[0][0] in (5, 6)
    bias = torch.zeros(2, 300)
    bias[:, 17] = 99
    for name in ("logit_bias", "acc_additive_penalties"):
        assert world.step([Request()] * 2, **{name: bias})[0].tolist() == [17, 17]
    assert fss.counts()["fused"] == 10 and len(fss.counts()) == 4


def test_prefill_and_seeds(world):
    requests = [Request(seed=i, position=3 * i) for i in range(6)]
    together = world.step(requests)[0].tolist()
    assert [world.step([request])[0].item() for request in requests] == together
    ends = dict(extend_seq_lens=torch.ones(6, dtype=torch.int64))
    assert world.step(requests, mode="EXTEND", metadata=ends)[0].tolist() == together
    assert set(fss.counts()) == {"fused"}
