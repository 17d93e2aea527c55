"""Steps of a patched stand-in, for the tests of flashsampling.vllm."""
import numpy as np
import pytest
import torch
import vllm_standin as standin
from vllm_cases import OUTPUT, PROMPT
from vllm_standin import Request, World

import flashsampling.vllm as fsv

SLOTS, STEPS = 512, 16


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
