"""flashsampling.sglang on stand-ins of SGLang: what is left to SGLang, what stands for logits, the plug-in itself, and
ranks."""
import dataclasses
import importlib
import logging
import sys
import threading
import types

import numpy as np
import pytest
import sglang_standin as standin
import torch
from rank_threads import on_ranks
from sglang_steps import both, patched, setup
from sglang_world import Request, World, draw_by_law, greedy

import flashsampling as fs
import flashsampling.sglang as fss
from flashsampling._sglang_logits import Deferred

# ------------------------------------------------------------------------- what is left to SGLang ----

def dense(value):
    return torch.full((1, 300), value)


REASONS = {
    "a custom logit processor": dict(has_custom_logit_processor=True),
    "penalties or min_new_tokens": dict(acc_additive_penalties=dense(0.0)),
    "penalties or min_new_tokens ": dict(acc_scaling_penalties=dense(1.0)),
    "penalties or min_new_tokens  ": dict(
        penalizer_orchestrator=types.SimpleNamespace(is_required=True, apply=lambda logits: None)),
    "logit_bias": dict(logit_bias=dense(0.0)),
    "a sampling mask": dict(return_sampling_masks=[True]),
    "a watermark": dict(has_watermark_candidates=True),
    "a sampling mask ": dict(sampling_mask_batch_indices=torch.tensor([0])),
}


@pytest.mark.parametrize("reason", REASONS)
def test_steps_that_are_sglangs(monkeypatch, reason):
    later = {"has_watermark_candidates", "sampling_mask_batch_indices"} & set(REASONS[reason])
    setup(monkeypatch, later=bool(later))
    world = World()
    tokens, output = world.step([greedy()], **REASONS[reason])
    assert fss.counts() == {"stock: " + reason.strip(): 1}
    assert tokens.item() == world.logits().argmax()
    assert type(output.next_token_logits) is torch.Tensor and output.next_token_logits.shape == (1, 300)
    assert world.step([greedy()])[0].item() == tokens.item() and fss.counts()["fused"] == 1


def test_what_sglang_does_to_logits_it_still_does(both):
    world = World()
    bias = torch.zeros(2, 300)
    bias[0, 17], bias[1, 18] = 99, 99
    assert world.step([Request()] * 2, logit_bias=bias)[0].tolist() == [17, 18]
    assert world.step([Request()] * 2, acc_additive_penalties=bias, padded=3)[0].tolist() == [17, 18]


def test_logprobs_that_are_sglangs(patched):
    world = World(vocab=1100)
    world.step([Request(logprobs=1025)])
    world.runner.sampler.enable_deterministic = True
    world.step([Request(logprobs=1)])
    reasons = "logprobs of more than 1024 tokens", "logprobs with deterministic inference, which are to be those of a "\
        "prefill to the bit"
    assert fss.counts() == {"stock: " + reason: 1 for reason in reasons}


def test_forward_passes_that_do_not_draw_have_logits(patched):
    world = World()
    world.step([Request()])
    for mode, metadata in (("TARGET_VERIFY", {}), ("IDLE", {}), ("EXTEND", dict(extend_return_logprob=True)),
                           ("EXTEND", dict(is_prefill_only=True))):
        assert type(world.forward(2, mode, **metadata).next_token_logits) is torch.Tensor
    world.step([Request()], mode="EXTEND", metadata=dict(extend_return_logprob=True))
    assert fss.counts() == {"fused": 1, "stock: logits that came with the forward pass": 1}


def test_a_model_that_changes_its_logits(both):
    """In place, behind the head, as some do: what it did holds, and SGLang draws."""
    world = World()
    for change in (lambda logits: logits.index_fill_(1, torch.tensor([17]), 99.0),
                   lambda logits: logits.__setitem__((slice(None), 17), 99.0),
                   lambda logits: logits.add_(torch.eye(300)[17] * 99)):
        assert world.step([Request()] * 2, change=change)[0].tolist() == [17, 17]
    assert fss.counts() == {"stock: the model reads or changes its logits behind the head": 3}


def test_samplers_and_observers_of_others(monkeypatch):
    setup(monkeypatch, later=True)
    world = World()
    world.runner.sampling_observer = object()
    world.step([greedy()])
    world.runner.sampling_observer = None
    kind = type(world.runner.sampler)
    world.runner.sampler = type("Oracle", (kind,), {"forward": lambda self, *_: "theirs"})()
    assert world.step([greedy()])[0] == "theirs"
    assert fss.counts() == {"stock: a sampling observer": 1}


def broken(world):
    def get(name, value):
        return lambda: setattr(world.processor, name, value)

    adapted = types.SimpleNamespace(weight=world.lm_head.weight, quant_method=object())
    lora = types.SimpleNamespace(weight=world.lm_head.weight, set_lora=None)
    return {
        "the LogitsProcessor has use_attn_tp_group": get("use_attn_tp_group", True),
        "the LogitsProcessor has do_tensor_parallel_all_gather_dp_attn":
            get("do_tensor_parallel_all_gather_dp_attn", True),
        "rl_on_policy_target": get("rl_on_policy_target", "fsdp"),
        "the head is quantised or adapted (SimpleNamespace, object)": lambda: setattr(world, "lm_head", adapted),
        "the head is quantised or adapted (SimpleNamespace, NoneType)": lambda: setattr(world, "lm_head", lora),
        "the head is torch.float32, hidden states are torch.bfloat16":
            lambda: setattr(world, "hidden", world.hidden.bfloat16()),
        "speculative decoding": lambda: setattr(
            sys.modules["sglang.srt.runtime_context"].get_server_args(), "speculative_algorithm", "EAGLE"),
        "enable_torch_compile": lambda: setattr(
            sys.modules["sglang.srt.runtime_context"].get_server_args(), "enable_torch_compile", True),
        "sampling backend ascend": lambda: setattr(
            sys.modules["sglang.srt.runtime_context"].get_exec().kernel, "sampling_backend", "ascend"),
    }


@pytest.mark.parametrize("reason", broken(types.SimpleNamespace(lm_head=types.SimpleNamespace(weight=0))))
def test_models_that_are_sglangs(patched, caplog, reason):
    caplog.set_level(logging.INFO, "sglang.flashsampling")
    world = World()
    broken(world)[reason]()
    tokens, output = world.step([greedy()])
    assert tokens.item() == world.logits().argmax() and type(output.next_token_logits) is torch.Tensor
    world.step([greedy()])
    assert fss.counts() == {"stock: logits that came with the forward pass": 2}
    lines = [record.getMessage() for record in caplog.records if "every step" in record.getMessage()]
    assert lines == ["flashsampling: SGLang's own sampler draws every step: " + reason]


def test_logits_that_are_not_ours(patched, caplog):
    """A head that does more than is known: found by comparing."""
    caplog.set_level(logging.INFO, "sglang.flashsampling")
    world, kind = World(), sys.modules["sglang.srt.layers.logits_processor"].LogitsProcessor
    stock = kind._get_logits
    kind._get_logits = standin._around(lambda *args: stock.__wrapped__(*args).neg(), fss._get_logits)
    assert world.step([greedy()])[0].item() == world.logits().argmax()
    assert "logits are not the model's own" in caplog.text and "fused" not in fss.counts()


def test_an_error_of_the_library_is_counted(patched, monkeypatch):
    world = World()
    world.step([greedy()])
    drawer = world.processor.__dict__["_flashsampling"][id(world.lm_head)][0]
    monkeypatch.setattr(drawer.call, "run", lambda: (_ for _ in ()).throw(fs.Error(-3, "no memory")))
    assert world.step([greedy()])[0].item() == world.logits().argmax()
    assert fss.counts() == {"fused": 1, "stock: memory: no memory": 1}


@pytest.mark.parametrize("name, value", [("top_ks", torch.tensor([1])), ("top_ps", torch.ones(3)),
                                         ("temperatures", torch.ones(1, 1).double())], ids=str)
def test_arrays_of_another_layout(patched, monkeypatch, name, value):
    world, info = World(), World.info

    def other(self, *args, **kwargs):
        found = info(self, *args, **kwargs)
        setattr(found, name, value)
        return found

    monkeypatch.setattr(World, "info", other)
    world.step([greedy()])
    assert list(fss.counts())[0].startswith("stock: %s is %s" % (name, value.dtype))


# ------------------------------------------------------------------------- what stands in ----

def test_deferred_logits_are_a_tensor_to_whoever_asks(patched):
    world = World()
    world.step([Request()])
    want = torch.from_numpy(world.logits()).expand(4, -1)

    def fresh():
        return world.forward(4, padded=2).next_token_logits

    logits = fresh()
    assert logits.shape == (4, 300) and len(logits) == 4 and logits.dtype == torch.float32 and not logits.is_cuda
    assert logits.device == torch.device("cpu") and len(logits[1:3]) == 2 and len(logits[torch.tensor([0, 3, 3])]) == 3
    assert isinstance(logits[:2], Deferred) and not logits.computed
    for ask in (lambda x: x.softmax(1), lambda x: torch.softmax(x, dim=1), lambda x: x / 2, lambda x: 2 * x,
                lambda x: torch.cat([x, x]), lambda x: x[0], lambda x: x[:, 3], lambda x: x > 1, lambda x: x - x,
                lambda x: torch.zeros(4, 300).copy_(x), lambda x: x.numpy().sum(), lambda x: x[:3].clone()):
        logits = fresh()
        np.testing.assert_allclose(np.asarray(ask(logits)), np.asarray(ask(want.clone())), rtol=1e-5, atol=1e-5)
    part = logits[1:3]
    part.mul_(2)
    assert part.computed and torch.allclose(part.tensor(), 2 * want[1:3], atol=1e-5)
    assert not hasattr(logits, "__dict__") and not hasattr(logits, "__array_interface__")


def test_graphs_replay_with_the_hidden_states_of_that_moment(patched, monkeypatch):
    """What a graph has captured is cut to the rows of a step: those are computed anew in each, and the whole never."""
    world = World()
    world.step([Request()])
    logits_of = importlib.import_module("flashsampling._sglang_logits")
    monkeypatch.setattr(logits_of, "_capturing", lambda tensor: True)
    captured = world.forward(8).next_token_logits
    captured.hidden = captured.hidden.contiguous()
    monkeypatch.setattr(logits_of, "_capturing", lambda tensor: False)
    first = captured[:3].tensor().clone()
    captured.hidden.neg_()  # a replay
    assert torch.equal(captured[:3].tensor(), -first)
    with pytest.raises(RuntimeError, match="captured"):
        captured.sum()


# ------------------------------------------------------------------------- the plug-in ----

def test_the_log_says_what_happens(patched, caplog):
    caplog.set_level(logging.INFO, "sglang.flashsampling")
    world = World()
    world.step([Request()])
    world.step([Request()], logit_bias=dense(0.0))
    world.step([Request()], logit_bias=dense(0.0))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("flashsampling %s draws inside the LM head: cpu" % fs.version())
    assert "300 tokens x 32, logits f32, as SGLang's sampling backend flashinfer" in lines[0]
    assert lines[1:] == ["flashsampling: SGLang draws steps itself that have this: logit_bias"]


def test_hooks_are_registered_once(patched):
    fss.register()
    assert {target.rsplit(".", 1)[1]: len(hooks) for target, hooks in standin.HookRegistry._hooks.items()} == {
        "_get_logits": 1, "_preprocess_logits": 1, "forward": 1}


@pytest.mark.parametrize("change", ["signature", "field", "missing"])
def test_an_unknown_sglang_is_left_alone(monkeypatch, caplog, change):
    monkeypatch.setattr(fss, "_registered", False)
    standin.install(monkeypatch.setitem, draw_by_law)
    sampler = sys.modules["sglang.srt.layers.sampler"].Sampler
    if change == "signature":
        sampler.forward = lambda self, logits_output, sampling_info, other: None
    elif change == "missing":
        del sys.modules["sglang.srt.model_executor.model_runner"].ModelRunner._preprocess_logits
    else:
        sys.modules["sglang.srt.sampling.sampling_batch_info"].SamplingBatchInfo.__dataclass_fields__["news"] = (
            types.SimpleNamespace(name="news", _field_type=dataclasses._FIELD))
    fss.register()
    assert not standin.HookRegistry._hooks and len(caplog.records) == 1
    assert {"signature": "Sampler.forward takes", "missing": "ModelRunner._preprocess_logits takes None",
            "field": "a field that we do not know: news"}[change] in caplog.text


def test_off_is_off(monkeypatch):
    monkeypatch.setenv("FLASHSAMPLING_SGLANG", "off")
    setup(monkeypatch)
    assert not standin.HookRegistry._hooks


# ------------------------------------------------------------------------- ranks ----

class Group:
    """Tensor parallelism in one process, a thread for each rank."""

    def __init__(self, ranks):
        self.barrier, self.given, self.local = threading.Barrier(ranks), [None] * ranks, threading.local()

    def all_gather(self, tensor, dim=-1):
        self.given[self.local.rank] = tensor
        self.barrier.wait(60)
        found = torch.cat(list(self.given), dim)
        self.barrier.wait(60)
        return found

    def each(self, function):
        ranks = len(self.given)
        return on_ranks(ranks, self.local, self.barrier, function)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_draw_the_tokens_of_one(monkeypatch, ranks):
    setup(monkeypatch)
    steps = [[Request(seed=i, temperature=0.5 + i) for i in range(5)], [greedy(seed=1)] * 3]
    one = World(vocab=500)
    whole = [one.step(requests)[0].tolist() for requests in steps]
    setup(monkeypatch, ranks=ranks)
    group, worlds = Group(ranks), [World(vocab=500) for _ in range(ranks)]
    rows = worlds[0].lm_head.weight.shape[0] // ranks
    for rank, world in enumerate(worlds):
        weight = world.lm_head.weight[rank * rows : (rank + 1) * rows].clone()
        world.lm_head.weight = torch.nn.Parameter(weight, requires_grad=False)

    class Parallel:
        tp_size, tp_group = ranks, group
        tp_rank = property(lambda _: group.local.rank)

    sys.modules["sglang.srt.runtime_context"].get_parallel = Parallel
    for requests, want in zip(steps, whole):
        assert [each.tolist() for each in group.each(lambda rank: worlds[rank].step(requests)[0])] == [want] * ranks
    assert fss.counts() == {"fused": 2 * ranks}
    group.each(lambda rank: worlds[rank].step([Request(top_k=2, seed=1)])[0])
    assert fss.counts()["stock: top-k, top-p or min-p over ranks"] == ranks


def test_the_module_is_found_by_its_name():
    assert fs.sglang is importlib.import_module("flashsampling.sglang")
