"""flashsampling.vllm on stand-ins of vLLM: what is drawn, what is handed back, what is left to vLLM. The library's CPU
backend draws; vllm_standin.py has the law and vllm_cases.py the tests of fit."""
import dataclasses
import functools
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="scipy cannot be imported")

import vllm_standin as standin
from vllm_cases import LEAST, OUTPUT, PLANTED, PROMPT, cases, p_value
from vllm_standin import GrammarOutput, Request, World, law

import flashsampling as fs
import flashsampling.vllm as fsv

SLOTS, STEPS = 512, 16
CASES = cases(300)


@pytest.fixture
def module(monkeypatch):
    """vLLM's runner module, patched."""
    fsv._counts.clear()
    found = standin.install(monkeypatch.setitem)
    assert fsv.patch(found)
    return found


def request(**rules):
    return Request(**{"prompt": PROMPT, "output": OUTPUT, **rules})


def filled(rules, slots=SLOTS, **world):
    np.random.seed(7)
    world = World(slots=slots, **world)
    for slot in range(slots):
        world.add(slot, request(**rules))
    return world


def sample(world, *step, grammar=None, **options):
    hidden, batch = world.batch(*step, **options)
    return world.runner.sample(hidden, batch, grammar)[0]


def drawn(world, **options):
    """STEPS tokens of every slot, each with a seed of its own."""
    slots, seeds, tokens = list(range(len(world.requests))), np.random.default_rng(1), []
    for _ in range(STEPS):
        world.runner.sampler.sampling_states.seeds.np[:] = seeds.integers(-2**63, 2**63 - 1, len(slots))
        tokens.append(sample(world, slots, **options).sampled_token_ids)
    return torch.cat(tokens).flatten().numpy()


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
    """Of 64 hidden states, greedy tokens and logits are those of the rounded logits, unless finer ones are asked for."""
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
    """Of some rows, in another order than theirs; with allowed ids, both hold; raw logprobs are those under the mask."""
    world = World(slots=8)
    for slot in range(6):
        world.add(slot, request(seed=slot, logprobs=2 if slot == 1 else None, allowed=[3, 4, 6, 12] if slot == 4 else []))
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


# ------------------------------------------------------------------------------------------------- left to vLLM ----

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
    same(world.runner.sample(hidden, batch, None)[0], want, {5: 3, 2: 1101} if reason.startswith("logprobs") else {5: 3})
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
    "an adapter": lambda w: setattr(w.runner.model, "logits_processor", type("WithLoRA", (standin.LogitsProcessor,), {})(300)),
    "changed hidden states": lambda w: setattr(
        w.runner.model, "compute_logits", lambda h: standin.Model.compute_logits(w.runner.model, h / 2)),
    "changed logits": lambda w: setattr(
        w.runner.model, "compute_logits", lambda h: standin.Model.compute_logits(w.runner.model, h) + 0),
    "no LogitsProcessor": lambda w: setattr(w.runner.model, "compute_logits", lambda h: h @ w.runner.model.lm_head.weight[:300].T),
    "float32 logits of half heads": lambda w: setattr(w.runner.model.logits_processor, "head_dtype", torch.float64),
    "a rejection sampler": lambda w: setattr(w.runner, "rejection_sampler", object()),
    "batch sharding": lambda w: setattr(w.runner, "batch_sharder", object()),
    "another sampler": lambda w: setattr(w.runner, "sampler", type("GPUWatermarkSampler", (), {
        "__call__": lambda s, *a, inner=w.runner.sampler: inner(*a), "publish": lambda s, inner=w.runner.sampler: inner.publish()})()),
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


# ------------------------------------------------------------------------------------------------------ the plug-in ----

def test_patching_twice_is_patching_once(module):
    assert fsv.patch(module) and fsv._stock["sample"] is standin.STOCK["sample"]
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


# ------------------------------------------------------------------------------------------------------------ ranks ----

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
        import threading

        ranks = len(self.worlds)
        barrier, given, results, errors = threading.Barrier(ranks), [None] * ranks, [None] * ranks, []
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

        def run(rank):
            local.rank = rank
            try:
                results[rank] = function(self.worlds[rank])
            except BaseException as error:
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


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
    assert many.bytes < 2 * ranks * (5 * 80 + 200)


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
