"""vLLM: the tokens of every step are drawn inside the LM-head matmul.

Nothing is to be called: where this package is installed, vLLM finds `register` by its entry point and calls it in every
process. GPUModelRunner.sample and _dummy_sampler_run of model runner V2 (vLLM 0.26.0 to 0.32.0) are then ours. A step
that is not served runs as in vLLM, some rows at a time, and is counted by its reason; `counts()` has the numbers of
this process. What is served and what is not: docs/guide/vllm.md.

    FLASHSAMPLING_VLLM=off            vLLM is as it was
    FLASHSAMPLING_VLLM_LOGITS=f32     logits are not rounded to the type in which vLLM stores them
    FLASHSAMPLING_VLLM_RESERVE=128    MiB of device memory that steps which are not served have for their logits
    FLASHSAMPLING_VLLM_WORK=...       MiB that our calls have where rules have logits stored
    FLASHSAMPLING_VLLM_SCREEN=off     off, 8 or 4: bits of a screen of the head, read in place of it where it can be
"""
from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ._context import Error, version
from ._engine_head import Unserved
from ._engine_steps import Steps, is_off, screen_bits
from ._vllm_draw import LOGGER as _logger
from ._vllm_draw import Drawer

__all__ = ["counts", "patch", "register", "unpatch"]

_RUNNER = "vllm.v1.worker.gpu.model_runner"
_SIGNATURES = {"sample": ["self", "hidden_states", "input_batch", "grammar_output"],
               "_dummy_sampler_run": ["self", "hidden_states"]}
_FIELDS = {"req_ids", "num_reqs", "idx_mapping", "idx_mapping_np", "expanded_idx_mapping", "expanded_local_pos",
           "num_tokens", "num_draft_tokens", "seq_lens", "positions", "logits_indices", "cu_num_logits",
           "cu_num_logits_np", "input_ids", "seq_lens_cpu_upper_bound", "is_prefilling_np"}
_OUTPUTS = {"sampled_token_ids", "logprobs_tensors", "num_nans", "num_sampled", "num_rejected", "sampling_mask_tensors"}
# What vLLM's sampler may take for a logit: copies, sorted values and indices, sums, what the sort works in.
_BYTES_A_LOGIT = 48
_SCREEN = "FLASHSAMPLING_VLLM_SCREEN"
_KEY, _PATCHED = "_flashsampling", "_flashsampling_patched"
_steps = Steps("vLLM", _logger)
_counts = _steps.counts


def counts() -> dict[str, int]:
    """Steps of this process: "fused", and "stock: ..." with the reason."""
    return dict(_counts)


def _reserve_bytes() -> int:
    return int(float(os.environ.get("FLASHSAMPLING_VLLM_RESERVE", "128")) * 2**20)


def _drawer(runner: Any, hidden: torch.Tensor) -> Drawer | str:
    """The runner's Drawer, or why it has none; found out once, and again if the head has moved."""
    found = runner.__dict__.get(_KEY)
    if found is None or isinstance(found, Drawer) and found.moved():
        bits = screen_bits(_SCREEN)
        # What it holds goes first: there may be no room for two screens.
        found = runner.__dict__[_KEY] = None
        try:
            found = Drawer(runner, hidden, os.environ.get("FLASHSAMPLING_VLLM_LOGITS") == "f32", bits)
            _logger.info("flashsampling %s draws inside the LM head: %s", version(), found.text)
        except Unserved as reason:
            found = _steps.unserved(str(reason))
        except Exception as error:  # a vLLM that is not as we know it is left as it is
            found = _steps.unserved("%s: %s" % (type(error).__name__, error))
        runner.__dict__[_KEY] = found
    return found


def _sample(self: Any, hidden_states: torch.Tensor, input_batch: Any, grammar_output: Any) -> Any:
    """In place of GPUModelRunner.sample."""
    drawer = _drawer(self, hidden_states)
    if isinstance(drawer, str):
        _steps.count("stock: " + drawer)
        return _stock["sample"](self, hidden_states, input_batch, grammar_output)
    try:
        rules = drawer.rules(input_batch, grammar_output)
        result = drawer(self, hidden_states, input_batch, grammar_output, rules)
        _steps.count("fused")
        return result
    except Unserved as reason:
        _steps.count("stock: %s" % reason)
    except Error as error:
        if drawer.ranks > 1:  # the other ranks are in the midst of a collective
            raise
        _steps.count("stock: %s" % error)
    return _in_chunks(self, drawer, hidden_states, input_batch, grammar_output)


def _in_chunks(runner: Any, drawer: Drawer, hidden: torch.Tensor, batch: Any, grammar: Any) -> Any:
    """vLLM's own sample, of as many rows at a time as have room in the reserve. Rows with draft tokens go at once: a
    runner that has them kept its own memory."""
    rows, total = max(1, _reserve_bytes() // (_BYTES_A_LOGIT * drawer.layer.vocab)), batch.num_reqs
    if total <= rows or batch.logits_indices.shape[0] != total:
        return _stock["sample"](runner, hidden, batch, grammar)
    parts = []
    for first in range(0, total, rows):
        part = slice_batch(batch, first, min(first + rows, total))
        parts.append(_stock["sample"](runner, hidden, part, slice_grammar(grammar, part.req_ids))[0])
    output = joined(parts)
    return output, output.num_sampled, output.num_rejected


def slice_batch(batch: Any, first: int, end: int) -> Any:
    """The rows first .. end - 1 of a batch that has one row for each request, as sample and Sampler look at it."""
    names = ("req_ids", "idx_mapping", "idx_mapping_np", "expanded_idx_mapping", "expanded_local_pos", "seq_lens",
             "logits_indices", "seq_lens_cpu_upper_bound", "is_prefilling_np")
    fields = {name: getattr(batch, name)[first:end] for name in names}
    # Rows are counted from the part's own first one.
    fields.update(num_reqs=end - first, cu_num_logits=batch.cu_num_logits[: end - first + 1],
                  cu_num_logits_np=batch.cu_num_logits_np[: end - first + 1])
    return dataclasses.replace(batch, **fields)


def slice_grammar(grammar: Any, req_ids: Sequence[str]) -> Any:
    """The masks of some requests, None if they have none."""
    if grammar is None:
        return None
    there = set(req_ids)
    rows = [row for row, name in enumerate(grammar.structured_output_request_ids) if name in there]
    if not rows:
        return None
    names = [grammar.structured_output_request_ids[row] for row in rows]
    fields = {"structured_output_request_ids": names, "grammar_bitmask": grammar.grammar_bitmask[rows]}
    drafts = getattr(grammar, "num_acceptable_drafts", None)
    if drafts is not None:
        fields["num_acceptable_drafts"] = [drafts[row] for row in rows]
    return dataclasses.replace(grammar, **fields)


def joined(outputs: Sequence[Any]) -> Any:
    """One SamplerOutput of those of the parts. Where some have fewer logprobs the rest is -inf, as vLLM pads."""
    fields = {}
    for name in ("sampled_token_ids", "num_nans", "num_sampled", "num_rejected"):
        tensors = [getattr(output, name) for output in outputs]
        fields[name] = None if tensors[0] is None else torch.cat(tensors)
    found = [output.logprobs_tensors for output in outputs]
    kind = next((type(tensors) for tensors in found if tensors is not None), None)
    fields["logprobs_tensors"] = None if kind is None else kind(*_joined_logprobs(found, outputs))
    return dataclasses.replace(outputs[0], **fields)


def _joined_logprobs(found: Sequence[Any], outputs: Sequence[Any]) -> list[torch.Tensor]:
    width = max(tensors.logprobs.shape[1] for tensors in found if tensors is not None)
    parts: list[tuple[torch.Tensor, ...]] = []
    for tensors, output in zip(found, outputs):
        sampled = output.sampled_token_ids
        ids = sampled.new_zeros((sampled.shape[0], width))
        values = torch.full((sampled.shape[0], width), -torch.inf, dtype=torch.float32, device=sampled.device)
        ranks = sampled.new_zeros(sampled.shape[0])
        ids[:, :1] = sampled
        if tensors is not None:
            there = tensors.logprobs.shape[1]
            ids[:, :there], values[:, :there] = tensors.logprob_token_ids, tensors.logprobs
            ranks = tensors.selected_token_ranks
        parts.append((ids, values, ranks))
    return [torch.cat(column) for column in zip(*parts)]


def _dummy_sampler_run(self: Any, hidden_states: torch.Tensor) -> None:
    """In place of GPUModelRunner._dummy_sampler_run: what steps of ours need, and the reserve of the others."""
    with torch.inference_mode():
        drawer = _drawer(self, hidden_states)
        if isinstance(drawer, str):
            _stock["_dummy_sampler_run"](self, hidden_states)
            return
        try:
            drawer.reserve(self, hidden_states)
        except Exception as error:
            self.__dict__[_KEY] = _steps.unserved("%s: %s" % (type(error).__name__, error))
            _stock["_dummy_sampler_run"](self, hidden_states)
            return
        # vLLM keeps free what was allocated at the same time here.
        torch.empty(_reserve_bytes(), dtype=torch.uint8, device=hidden_states.device)


# ------------------------------------------------------------------------------------------------- the plug-in ----

_stock: dict[str, Any] = {}
_ours = {"sample": _sample, "_dummy_sampler_run": _dummy_sampler_run}


def _unknown(module: Any) -> str | None:
    """What of this vLLM is not as we know it; None if all is."""
    for name, names in _SIGNATURES.items():
        function = getattr(module.GPUModelRunner, name, None)
        found = list(inspect.signature(function).parameters) if function else None
        if found != names:
            return "GPUModelRunner.%s takes %s, expected %s" % (name, found, names)
    missing = _FIELDS - {field.name for field in dataclasses.fields(module.InputBatch)}
    if missing:
        return "InputBatch has no %s" % ", ".join(sorted(missing))
    unknown = {field.name for field in dataclasses.fields(module.SamplerOutput)} - _OUTPUTS
    if unknown:
        return "SamplerOutput has a field that we do not know: %s" % ", ".join(sorted(unknown))
    return None


def patch(module: Any) -> bool:
    """Replaces the methods of this module's GPUModelRunner, once; whether they are ours then."""
    runner = module.GPUModelRunner
    if _PATCHED in vars(runner):  # also if somebody has wrapped them since
        return True
    why = _unknown(module)
    if why is not None:
        _logger.warning("flashsampling: vLLM's own sampler draws every step: %s", why)
        return False
    _stock.update({name: getattr(runner, name) for name in _ours})
    for name, function in (*_ours.items(), (_PATCHED, True)):
        setattr(runner, name, function)
    return True


def unpatch(module: Any) -> None:
    """Undoes patch(module)."""
    if _PATCHED in vars(module.GPUModelRunner):
        delattr(module.GPUModelRunner, _PATCHED)
        for name, function in _stock.items():
            setattr(module.GPUModelRunner, name, function)


class _Finder(importlib.abc.MetaPathFinder):
    """Patches the runner's module when vLLM imports it: in processes that have no runner nothing is imported for us."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != _RUNNER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register() -> None:
    """The entry point in vllm.general_plugins; may be called any number of times."""
    if is_off("FLASHSAMPLING_VLLM"):
        return
    screen_bits(_SCREEN)  # a value that is none is refused before a model is loaded
    if _RUNNER in sys.modules:
        patch(sys.modules[_RUNNER])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        _steps.log_at_exit()
