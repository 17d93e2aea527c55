"""vLLM's own tests of its samplers, on us: a plug-in of pytest that puts our draws in the place of the two functions by
which vLLM draws. With the tests of vLLM's sdist beside:

    PYTHONPATH=python:tests/vllm python -m pytest -p own_tests PATH/tests/v1/worker/test_gpu_gumbel_sample.py
    PYTHONPATH=... python -m pytest -p own_tests -k "FlashInfer or flashinfer" PATH/.../test_topk_topp_sampler.py

Those tests give logits. Each float32 is split into three bf16 columns of W whose sum it is, and a row of H has ones
there, so that draws go through the matmul, as a model's do; rows with NaN or infinities are drawn as stored logits,
since in one W they would spread to their neighbours. FLASHSAMPLING_OWN=off leaves vLLM's functions.
"""
import functools
import itertools
import os
import sys

import torch

ROWS = 4096  # drawn by one call at most
_calls, counts = itertools.count(1), {"matmul": 0, "stored": 0}


@functools.cache
def context(device):
    import flashsampling as fs

    return fs.Context(device.type)


def columns(logits):
    """[V, 3 R] bf16 of R rows, three columns each."""
    parts, rest = [], logits.float()
    for _ in range(3):
        parts.append(rest.bfloat16())
        rest = (rest - parts[-1].float()).nan_to_num()  # -inf has no rest
    return torch.stack(parts, 1).flatten(0, 1).T


def made(logits, device):
    """W [V, D] and H [R, D] whose product are logits [R, V]."""
    R, V = logits.shape
    width = -(-3 * R // 128) * 128
    weight = torch.zeros((V, width), dtype=torch.bfloat16, device=device)
    weight[:, : 3 * R] = columns(logits)
    hidden = torch.zeros((R, width), dtype=torch.bfloat16, device=device)
    hidden[torch.arange(3 * R, device=device) // 3, torch.arange(3 * R, device=device)] = 1
    return weight, hidden


def draw(logits, **rules):
    """Tokens [B] int64 of logits [B, V]; rules have an entry for each row."""
    import flashsampling as fs

    B, device = logits.shape[0], logits.device
    same = logits.stride(0) == 0 or B > 1 and bool((logits == logits[:1]).all())
    rows = logits[:1] if same else logits
    # -inf is a weight as others where no second row multiplies it by 0.
    matmul = bool((torch.isfinite(rows) | same & (rows == -torch.inf)).all())
    counts["matmul" if matmul else "stored"] += B
    if matmul:
        weight, hidden = made(rows, device)
        head = fs.Head(weight)
    tokens = []
    for first in range(0, B, ROWS):
        end = min(first + ROWS, B)
        asked = {name: value[first:end].contiguous() for name, value in rules.items()}
        given = hidden if matmul else rows
        given = (given.expand(end - first, -1) if same else given[first:end]).contiguous()
        if matmul:
            found = context(device).sample(head, given, fallback_token=0, on_error="status", **asked)  # as the plug-in
        else:
            found = context(device).sample(fs.Head(logits=given.float()), fallback_token=0, on_error="status", **asked)
        tokens.append(torch.as_tensor(found.tokens).flatten().long())
    return torch.cat(tokens)


def gumbel_sample(logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, **more):
    """In place of vllm.v1.worker.gpu.sample.gumbel's: one temperature and seed for each slot."""
    slot = expanded_idx_mapping.long()
    heat = temperature[slot]
    if not apply_temperature:  # logits are divided already; 0 means greedy
        heat = torch.where(heat == 0, 0.0, 1.0)
    return draw(logits, temperature=heat.float(), seed=seed[slot], position=pos.long())


def flashinfer_sample(logits, k, p, generators=None):
    """In place of vllm.v1.sample.ops.topk_topp_sampler's: unseeded."""
    B, device = logits.shape[0], logits.device
    rules = {"seed": torch.full((B,), 12345, dtype=torch.int64, device=device),
             "position": torch.arange(B, dtype=torch.int64, device=device) + (next(_calls) << 32)}
    if k is not None:
        rules["top_k"] = k.to(torch.int32)
    if p is not None:
        rules["top_p"] = p.float()
    return draw(logits, **rules)


def pytest_configure(config):
    if os.environ.get("FLASHSAMPLING_OWN") == "off":
        return
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.gpu.sample import gumbel

    gumbel.gumbel_sample, topk_topp_sampler.flashinfer_sample = gumbel_sample, flashinfer_sample


def pytest_unconfigure(config):
    print("rows drawn by flashsampling: %s" % counts, file=sys.stderr)
