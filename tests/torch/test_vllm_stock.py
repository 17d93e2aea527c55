"""flashsampling.vllm on stand-ins of vLLM: what is left to vLLM, the plug-in itself, and ranks."""
import dataclasses
import functools
import importlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")

import vllm_standin as standin
from rank_threads import on_ranks
from vllm_cases import LEAST, cases, p_value
from vllm_standin import GrammarOutput, World, law
from vllm_steps import drawn, filled, module, request, sample

import flashsampling as fs
import flashsampling.vllm as fsv

CASES = cases(300)


def stock_of(world, slots, **options):
    """What vLLM itself draws."""
    hidden, batch = world.batch(slots)
    return standin.STOCK["sample"](world.runner, hidden, batch, options.get("grammar"))[0]


def same(a, b, widths=None):
    """Equal outputs; of logprobs, what each row has asked for."""
    assert torch.equal(a.sampled_token_ids, b.sampled_token_ids)
    assert torch.equal(a.num_sampled, b.num_sampled) and torch.equal(a.num_rejected, b.num_rejected)
    assert (a.logprobs_tensors is None) == (b.logprobs_tensors is None)
    for row, width in (widths or {}).items():
        (ids, values, ranks), others = a.logprobs_tensors[:3], b.logprobs_tensors
        assert torch.equal(ids[row, :width], others[0][row, :width]) and ranks[row] == others[2][row]
        assert torch.allclose(values[row, :width], others[1][row, :width], atol=1e-5)


@pytest.mark.parametrize("reason", ["allowed_token_ids together with raw logprobs", "logprob_token_ids",
                                    "logprobs of more than 1024 tokens", "draft tokens"])
def test_a_step_that_is_not_served_is_vllms(module, reason, monkeypatch):
    monkeypatch.setenv("FLASHSAMPLING_VLLM_RESERVE", "%g" % (3.5 * 48 * 1100 / 2**20))  # three rows at a time
    world = World(vocab=1100, slots=8)
    for slot in range(8):
        world.add(slot, request(seed=slot, **({"logprobs": 2} if slot == 5 else {})))
    want = stock_of(world, range(8))
    if reason.startswith("allowed"):
        world.add(5, request(seed=5, allowed=[3, 8], logprobs=2))
        want = stock_of(world, range(8))
    elif reason == "logprob_token_ids":
        world.runner.sampler.logprob_token_ids_state.num_token_ids.np[2] = 1
    elif reason.startswith("logprobs"):
        world.runner.sampler.sampling_states.num_logprobs[2] = 1100
        want = stock_of(world, range(8))
    hidden, batch = world.batch(range(8))
    if reason == "draft tokens":
        batch.num_draft_tokens = 2
    widths = {5: 3, 2: 1101} if reason.startswith("logprobs") else {5: 3}
    same(world.runner.sample(hidden, batch, None)[0], want, widths)
    assert fsv.counts() == {"stock: " + reason: 1}
    sample(world, [0, 1])
    assert fsv.counts()["fused"] == 1


def test_chunks_of_steps_that_are_not_served(module, monkeypatch):
    """For every number of rows at a time, with masks and with more logprobs in some parts, what comes is the same."""
    world = World(slots=8)
    for slot in range(8):
        world.add(slot, request(seed=slot, allowed=[2, 4, 9] if slot == 3 else [], logprobs={1: 2, 3: 4}.get(slot)))
    bits = fs.pack_bits(np.arange(300)[None] % np.array([[2], [3], [5]]) == 0).view(np.int32)
    grammar = GrammarOutput(["r6", "r0", "r2"], bits)
    hidden, batch = world.batch(range(8))
    want = standin.STOCK["sample"](world.runner, hidden, batch, grammar)[0]
    for rows in range(1, 9):
        monkeypatch.setenv("FLASHSAMPLING_VLLM_RESERVE", "%.9g" % ((rows + 0.5) * 48 * 300 / 2**20))
        got, sampled, rejected = world.runner.sample(hidden, batch, grammar)
        same(got, want, {1: 3, 3: 5})
        assert sampled is got.num_sampled and rejected is got.num_rejected


def unserved(world):
    """The one reason why this runner is vLLM's."""
    want = stock_of(world, [0, 1])
    same(sample(world, [0, 1]), want)
    (name,) = fsv.counts()
    return name.removeprefix("stock: ")


RUNNERS = {
    "a GPTQ head": lambda w: setattr(w.runner.model.lm_head, "quant_method", type("GPTQ", (), {})()),
    "an adapter": lambda w: setattr(
        w.runner.model, "logits_processor", type("WithLoRA", (standin.LogitsProcessor,), {})(300)),
    "changed hidden states": lambda w: setattr(
        w.runner.model, "compute_logits", lambda h: standin.Model.compute_logits(w.runner.model, h / 2)),
    "changed logits": lambda w: setattr(
        w.runner.model, "compute_logits", lambda h: standin.Model.compute_logits(w.runner.model, h) + 0),
    "no LogitsProcessor": lambda w: setattr(
        w.runner.model, "compute_logits", lambda h: h @ w.runner.model.lm_head.weight[:300].T),
    "float32 logits of half heads": lambda w: setattr(w.runner.model.logits_processor, "head_dtype", torch.float64),
    "a rejection sampler": lambda w: setattr(w.runner, "rejection_sampler", object()),
    "batch sharding": lambda w: setattr(w.runner, "batch_sharder", object()),
    "another sampler": lambda w: setattr(w.runner.sampler, "__class__", type("Watermarking", (standin.Sampler,), {})),
    "a feature we do not know": lambda w: setattr(w.runner.sampler, "typical_p_state", object()),
    "counted NaNs": lambda w: setattr(w.runner.sampler, "compute_nans", True),
    "slots of another type": lambda w: setattr(
        w.runner.sampler.sampling_states, "top_k", standin.Slots(16, torch.int64, 300)),
}


def test_logits_that_are_not_the_models_are_vllms(module, monkeypatch):
    """A LogitsProcessor that does something we do not know of."""
    original = standin.LogitsProcessor.forward
    wrong = functools.wraps(original)(lambda self, *args: original(self, *args) * 1.01)
    monkeypatch.setattr(standin.LogitsProcessor, "forward", wrong)
    world = World()
    for slot in range(2):
        world.add(slot, request(seed=slot))
    assert "logits are not the model's own" in unserved(world)


@pytest.mark.parametrize("name", RUNNERS)
def test_a_runner_that_is_not_served_is_vllms(module, name, caplog):
    world = World()
    for slot in range(2):
        world.add(slot, request(seed=slot))
    RUNNERS[name](world)
    with caplog.at_level("INFO", "vllm.flashsampling"):
        assert unserved(world)
        sample(world, [0])
    assert len([line for line in caplog.messages if "every step" in line]) == 1
    world.runner._dummy_sampler_run(world.hidden)
    assert world.runner.dummy_runs == [1]  # it keeps vLLM's own memory


@pytest.mark.parametrize("name", ["custom", "thinking", "mask", "trace"])
def test_what_0_32_can_have_more(module, name):
    world = World(version="0.32.0")
    for slot in range(2):
        world.add(slot, request(seed=slot))
    sampler = world.runner.sampler
    if name == "custom":
        sampler.logits_processors.append(type("Mine", (), {})())
        sampler.parts = lambda: sampler.logits_processors[:3] + [sampler.sampling_states]
    elif name == "thinking":
        sampler.thinking_budget_state.enabled = True
        sampler.thinking_budget_state.use_thinking_budget = np.array([False, True] + [False] * 14)
    elif name == "mask":
        sampler.return_sampling_mask = True
    else:
        sampler.trace_replay_state = object()
    assert unserved(world) and "fused" not in fsv.counts()
    if name == "thinking":
        sample(world, [0])
        assert fsv.counts()["fused"] == 1


def test_a_failed_call_is_vllms_step(module, monkeypatch):
    world = World()
    world.add(0, request(seed=1))
    want = stock_of(world, [0])
    assert sample(world, [0]) and fsv.counts() == {"fused": 1}
    drawer = world.runner._flashsampling
    monkeypatch.setattr(drawer.call, "_function", lambda *_: -3)
    same(sample(world, [0]), want)
    assert [name for name in fsv.counts() if name.startswith("stock: memory")]


def test_a_head_that_has_moved_is_looked_at_again(module):
    world = filled({})
    drawn(world)
    model = world.runner.model
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.flip(1).contiguous(), requires_grad=False)
    assert p_value(drawn(world), law(world.logits(), request())) > LEAST
    model.lm_head.weight.data.mul_(0.5)  # in place
    assert p_value(drawn(world), law(world.logits(), request())) > LEAST
    assert set(fsv.counts()) == {"fused"}


def test_the_profile_run_reserves_no_logits(module):
    world = World()
    world.add(0, request(seed=1))
    world.runner._dummy_sampler_run(world.hidden.expand(16, -1))
    assert world.runner.dummy_runs == [] and isinstance(world.runner._flashsampling, fsv.Drawer)


# ------------------------------------------------------------------------------------------------ the plug-in ----

def test_patching_twice_is_patching_once(module):
    assert fsv.patch(module) and fsv._stock["sample"] is standin.STOCK["sample"]
    module.GPUModelRunner.sample = wrapped = lambda self, *step: fsv._sample(self, *step)
    assert fsv.patch(module) and fsv._stock["sample"] is standin.STOCK["sample"]
    assert module.GPUModelRunner.sample is wrapped
    fsv.unpatch(module)
    assert module.GPUModelRunner.sample is standin.STOCK["sample"]
    fsv.unpatch(module)


@pytest.mark.parametrize("change", ["arguments", "fields", "outputs"])
def test_a_vllm_that_is_not_as_we_know_it_stays_as_it_is(module, change, caplog):
    fsv.unpatch(module)
    if change == "arguments":
        module.GPUModelRunner = type("GPUModelRunner", (standin.GPUModelRunner,), {"sample": lambda self, states: None})
    elif change == "fields":
        module.InputBatch = dataclasses.make_dataclass("InputBatch", ["req_ids", "num_reqs"])
    else:
        module.SamplerOutput = dataclasses.make_dataclass("SamplerOutput", ["sampled_token_ids", "entropy"])
    sample = module.GPUModelRunner.sample
    assert not fsv.patch(module) and module.GPUModelRunner.sample is sample
    assert len(caplog.messages) == 1 and "vLLM's own sampler draws every step" in caplog.text


PLUGIN = """
import sys, flashsampling.vllm as fsv
fsv.register(); fsv.register()
assert "vllm" not in sys.modules and len([f for f in sys.meta_path if isinstance(f, fsv._Finder)]) == {finders}
import vllm.v1.worker.gpu.model_runner as runner
assert (runner.GPUModelRunner.sample is fsv._sample) == {ours}
"""


@pytest.mark.parametrize("switch,ours", [(None, True), ("off", False), ("on", True)])
def test_the_entry_point_patches_when_the_runner_is_imported(tmp_path, switch, ours):
    """In a process of its own, with a package vllm whose runner is the stand-in."""
    folder = tmp_path / "vllm" / "v1" / "worker" / "gpu"
    folder.mkdir(parents=True)
    for place in (folder, *list(folder.parents)[:3]):
        (place / "__init__.py").write_text("")
    (folder / "model_runner.py").write_text("from vllm_standin import GPUModelRunner, InputBatch, SamplerOutput\n")
    env = {key: value for key, value in os.environ.items() if key != "FLASHSAMPLING_VLLM"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.path.dirname(os.path.abspath(__file__)),
                                         os.path.dirname(os.path.dirname(fs.__file__))])
    if switch:
        env["FLASHSAMPLING_VLLM"] = switch
    code = PLUGIN.format(ours=ours, finders=int(ours))
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


# ------------------------------------------------------------------------------------------------------ ranks ----

class Ranks:
    """Tensor parallelism in one process: rank by rank, each with the tensors that the ranks before have gathered."""

    def __init__(self, module, monkeypatch, ranks, **world):
        self.distributed = sys.modules["vllm.distributed"]
        self.worlds = [World(**world) for _ in range(ranks)]
        rows = self.worlds[0].runner.model.lm_head.weight.shape[0] // ranks
        for rank, each in enumerate(self.worlds):
            head = each.runner.model.lm_head
            head.weight = torch.nn.Parameter(head.weight[rank * rows : (rank + 1) * rows].clone(), requires_grad=False)
            head.shard_indices = type("Indices", (), dict(num_added_elements_padded=0,
                                                          padded_org_vocab_start_index=rank * rows))
        monkeypatch.setattr(self.distributed, "get_tensor_model_parallel_world_size", lambda: ranks)
        self.bytes = 0

    def each(self, function):
        """function(world) on every rank; they meet in their gathers, in turn."""
        ranks = len(self.worlds)
        barrier, given = threading.Barrier(ranks), [None] * ranks
        local = threading.local()

        def gather(tensor, dim=-1):
            given[local.rank] = tensor
            barrier.wait(60)
            found = torch.cat([each for each in given], dim)
            barrier.wait(60)
            if tensor.dtype == torch.int64:
                self.bytes += tensor.numel() * 8
            return found

        self.distributed.tensor_model_parallel_all_gather = gather

        return on_ranks(ranks, local, barrier, lambda rank: function(self.worlds[rank]))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_draw_the_tokens_of_one(module, monkeypatch, ranks):
    """Every rank gets what one process has, and what crosses the wire is the parts."""
    rules = [{**CASES[name], "seed": i} for i, name in enumerate(("plain", "warm", "greedy", "bias", "repetition"))]
    one = World(vocab=500, slots=8)
    for slot, each in enumerate(rules):
        one.add(slot, request(**each))
    whole = sample(one, range(5))
    many = Ranks(module, monkeypatch, ranks, vocab=500, slots=8)
    fsv._counts.clear()

    def step(world):
        for slot, each in enumerate(rules):
            world.add(slot, request(**each))
        return sample(world, range(5))

    for output in many.each(step):
        same(output, whole)
    assert fsv.counts() == {"fused": ranks}
    part = 32 + 8 + 8 * 5  # the table of docs/explain/plug-ins.md
    assert [world.runner._flashsampling.call.context.counters.wire_bytes for world in many.worlds] == [part] * ranks
    assert many.bytes == ranks * part


def test_ranks_leave_cuts_to_vllm(module, monkeypatch):
    many = Ranks(module, monkeypatch, 2, vocab=500, slots=8)

    def step(world):
        world.add(0, request(top_k=5, seed=1))
        return sample(world, [0]).sampled_token_ids

    first, second = many.each(step)
    assert torch.equal(first, second) and fsv.counts() == {"stock: top-k, top-p or min-p over ranks": 2}


def test_a_rank_that_is_not_served_takes_the_others_along(module, monkeypatch):
    many = Ranks(module, monkeypatch, 2, vocab=500, slots=8)
    many.worlds[1].runner.model.lm_head.quant_method = object()

    def step(world):
        world.add(0, request(seed=1))
        return sample(world, [0]).sampled_token_ids

    first, second = many.each(step)
    assert torch.equal(first, second) and "stock: another rank is not served" in fsv.counts()
    assert "fused" not in fsv.counts()


def test_the_module_is_found_by_its_name():
    assert fs.vllm is importlib.import_module("flashsampling.vllm")


def test_a_start_that_fails_is_vllms(module, monkeypatch):
    """Whatever goes wrong while vLLM measures its memory."""
    world = World()
    world.add(0, request(seed=1))
    monkeypatch.setattr(fsv.Drawer, "reserve", lambda *_: 1 / 0)
    world.runner._dummy_sampler_run(world.hidden)
    assert world.runner.dummy_runs == [1] and "division" in world.runner._flashsampling
    assert sample(world, [0]) and list(fsv.counts()) == ["stock: " + world.runner._flashsampling]
