"""The plug-in on vLLM's own classes: the same law as vLLM's own kernels, the same outputs."""
import inspect
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

tomllib = pytest.importorskip("tomllib", reason="tomllib is of Python 3.11")

pytest.importorskip("triton", reason="triton cannot be imported")
pytest.importorskip("scipy", reason="scipy cannot be imported")

from real_world import World, model_runner
from vllm_cases import LEAST, OUTPUT, PROMPT, cases, p_value
from vllm_standin import Request, law, processed

import flashsampling.vllm as fsv

ROOT = Path(__file__).resolve().parents[2]
CASES = cases(300)
SLOTS, STEPS = 64, 64


@pytest.fixture(autouse=True)
def patched():
    fsv._counts.clear()
    assert fsv.patch(model_runner)
    yield
    fsv.unpatch(model_runner)


def filled(rules, slots=SLOTS, **world):
    world = World(slots=slots, **world)
    for slot in range(slots):
        world.add(slot, Request(PROMPT, OUTPUT, **rules))
    return world


def stock_processed(world, slots):
    """What vLLM's own kernels make of the logits of these rows."""
    hidden, batch = world.batch(slots)
    sampler = world.runner.sampler
    logits = world.runner.model.compute_logits(hidden).clone()
    given = dict(
        logits=logits, expanded_idx_mapping=batch.expanded_idx_mapping, idx_mapping=batch.idx_mapping,
        idx_mapping_np=batch.idx_mapping_np, pos=batch.positions[batch.logits_indices],
        input_ids=batch.input_ids[batch.logits_indices], expanded_local_pos=batch.expanded_local_pos,
        seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy())
    known = inspect.signature(sampler.apply_sampling_params).parameters
    return sampler.apply_sampling_params(**{name: value for name, value in given.items() if name in known})


@pytest.mark.parametrize("name", CASES)
def test_the_law_of_the_tests_is_vllms(name):
    world = filled(CASES[name], slots=2)
    got = stock_processed(world, [1])[0].numpy()
    want = processed(world.logits(), Request(PROMPT, OUTPUT, **CASES[name]))
    assert np.array_equal(np.isfinite(got), np.isfinite(want))
    kept = np.isfinite(want)
    assert np.allclose(got[kept], want[kept], atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_tokens_follow_the_law(name):
    world, seeds, tokens = filled(CASES[name]), np.random.default_rng(1), []
    for _ in range(STEPS):
        world.runner.sampler.sampling_states.seeds.np[:] = seeds.integers(-2**63, 2**63 - 1, SLOTS)
        hidden, batch = world.batch(range(SLOTS))
        output, sampled, rejected = world.runner.sample(hidden, batch, None)
        tokens.append(output.sampled_token_ids)
    assert fsv.counts() == {"fused": STEPS}
    assert sampled.tolist() == [1] * SLOTS and rejected.tolist() == [0] * SLOTS
    wanted = law(world.logits(), Request(PROMPT, OUTPUT, **CASES[name]))
    assert p_value(torch.cat(tokens).flatten().numpy(), wanted) > LEAST


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_outputs_are_vllms(mode):
    """Greedy rows: tokens, logprobs and ranks are equal, in the same types and shapes."""
    world = World(mode=mode)
    for slot in range(4):
        world.add(slot, Request(PROMPT, OUTPUT, temperature=0.0, logprobs=(5, None, 0, 3)[slot], bias={7: 5.0 * slot}))
    hidden, batch = world.batch([2, 0, 3, 1])
    ours = world.runner.sample(hidden, batch, None)[0]
    assert fsv.counts() == {"fused": 1}
    stock = fsv._stock["sample"](world.runner, hidden, batch, None)[0]
    for name in ("sampled_token_ids", "num_sampled", "num_rejected"):
        a, b = getattr(ours, name), getattr(stock, name)
        assert a.dtype == b.dtype and a.tolist() == b.tolist(), name
    for a, b in zip(ours.logprobs_tensors, stock.logprobs_tensors):
        assert a is b is None or a.dtype == b.dtype and torch.allclose(a, b, atol=1e-5)


def test_steps_in_chunks_are_vllms(monkeypatch):
    """Seeded rows of a step that is not served, three at a time and at once: vLLM's tokens and logprobs."""
    world = World(slots=8)
    for slot in range(8):
        world.add(slot, Request(PROMPT, OUTPUT, seed=slot, logprobs=2, allowed=[3, 4, 5] if slot == 2 else []))
    hidden, batch = world.batch(range(8))
    stock = fsv._stock["sample"](world.runner, hidden, batch, None)[0]
    monkeypatch.setenv("FLASHSAMPLING_VLLM_RESERVE", "%.9g" % (3.5 * 48 * 300 / 2**20))
    ours = world.runner.sample(hidden, batch, None)[0]
    assert list(fsv.counts()) == ["stock: allowed_token_ids together with raw logprobs"]
    assert ours.sampled_token_ids.tolist() == stock.sampled_token_ids.tolist()
    for a, b in zip(ours.logprobs_tensors[:3], stock.logprobs_tensors[:3]):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_dummy_batch_is_drawn():
    """What profiling and warm-up send: states that were never set."""
    world = World()
    world.add(0, Request(PROMPT))
    world.runner._dummy_sampler_run(world.hidden.expand(16, -1).contiguous())
    hidden, batch = world.batch([0])
    batch = type(batch).make_dummy(16, 16, world.runner.input_buffers)
    tokens = world.runner.sample(world.hidden.expand(16, -1).contiguous(), batch, None)[0].sampled_token_ids
    assert tokens.shape == (16, 1) and (0 <= tokens).all() and (tokens < 300).all()


def test_what_a_gpu_sets_aside(monkeypatch):
    """The steps whose work memory is reserved, drawn from a dummy batch, as on a GPU; here the CPU backend draws them."""
    world = World()
    world.add(0, Request(PROMPT))
    hidden, batch = world.batch([0])
    world.runner.sample(hidden, batch, None)
    drawer, given = world.runner._flashsampling, []
    monkeypatch.setattr(drawer, "device", types.SimpleNamespace(type="cuda"))
    monkeypatch.setattr(drawer.context, "follow", lambda: None, raising=False)
    monkeypatch.setattr(drawer.context, "set_work", given.append, raising=False)
    drawer.reserve(world.runner, world.hidden.expand(16, -1).contiguous())
    assert len(given) == 1 and given[0] > 0


PLUGIN = """
from vllm.plugins import load_general_plugins
load_general_plugins()
import sys
assert "vllm.v1.worker.gpu.model_runner" not in sys.modules  # nothing heavy is imported for the plug-in
import flashsampling.vllm as fsv
import vllm.v1.worker.gpu.model_runner as module
print("OURS", module.GPUModelRunner.sample is fsv._sample,
      module.GPUModelRunner._dummy_sampler_run is fsv._dummy_sampler_run)
"""


@pytest.mark.parametrize("switch,ours", [("on", True), ("off", False)])
def test_vllm_finds_the_plug_in_by_its_entry_point(tmp_path, switch, ours):
    """In a process of its own, with what installing the package leaves for vLLM to find."""
    folder = tmp_path / "flashsampling-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: flashsampling\nVersion: 0.1.0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"]["vllm.general_plugins"].items()
    (folder / "entry_points.txt").write_text("[vllm.general_plugins]\n%s = %s\n" % entry)
    path = [str(tmp_path), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "FLASHSAMPLING_VLLM": switch, "PYTHONPATH": os.pathsep.join(path)}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PLUGIN], env=env, capture_output=True, text=True)
    assert "OURS %s %s" % (ours, ours) in run.stdout, run.stderr[-2000:]
