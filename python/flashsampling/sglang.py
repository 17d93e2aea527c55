"""SGLang: the tokens of every step are drawn inside the LM-head matmul.

Nothing is to be called: where this package is installed, SGLang finds `register` by its entry point and calls it in
every process. Three functions are then wrapped, by SGLang's own HookRegistry (0.5.17 to 0.5.23):

    LogitsProcessor._get_logits      returns what stands for logits (_sglang_logits.py): the head is not run
    ModelRunner._preprocess_logits   penalties, bias and grammar masks: leaves the masks to us
    Sampler.forward                  draws from the hidden states

A step that is not served has its logits computed there as SGLang computes them, is SGLang's from then on, and is
counted by its reason; `counts()` has the numbers of this process. What is served and what is not: docs/guide/sglang.md.

    FLASHSAMPLING_SGLANG=off          SGLang is as it was
    FLASHSAMPLING_SGLANG_LOGITS=f32   logits are not rounded to the head's type
    FLASHSAMPLING_SGLANG_WORK=...     MiB that our calls have where rules have logits stored
    FLASHSAMPLING_SGLANG_SCREEN=off   off, 8 or 4: bits of a screen of the head, read in place of it where it can be
"""
from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from ._context import Error, version
from ._engine_head import Unserved
from ._engine_steps import Steps, is_off, screen_bits
from ._sglang_draw import LOGGER as _logger
from ._sglang_draw import MOST_LOGPROBS, SCREEN, Drawer, top_lists
from ._sglang_logits import Deferred

__all__ = ["counts", "register"]

_steps = Steps("SGLang", _logger)
_KEY, _WHY = "_flashsampling", "_flashsampling_why"
_HEAD, _RUNNER = "sglang.srt.layers.logits_processor", "sglang.srt.model_executor.model_runner"
_SAMPLER, _INFO = "sglang.srt.layers.sampler", "sglang.srt.sampling.sampling_batch_info"
_MODES = ("DECODE", "EXTEND", "MIXED", "SPLIT_PREFILL")  # in which a token is drawn for each row of logits
# What each function takes, in the order of 0.5.17, and what later versions have added, which we know to leave alone.
_SIGNATURES = {
    (_HEAD, "LogitsProcessor", "_get_logits"): (
        ["self", "hidden_states", "lm_head", "logits_metadata", "embedding_bias", "use_logits_buffer"], []),
    (_RUNNER, "ModelRunner", "_preprocess_logits"): (["self", "logits_output", "sampling_info"], ["observer"]),
    (_SAMPLER, "Sampler", "forward"): (
        ["self", "logits_output", "sampling_info", "return_logprob", "top_logprobs_nums", "token_ids_logprobs",
         "positions"], ["logprob_logits"]),
}
# A field that is not here is a feature we do not know of.
_FIELDS = {
    "temperatures", "top_ps", "top_ks", "min_ps", "is_all_greedy", "is_any_greedy", "need_top_p_sampling",
    "need_top_k_sampling", "need_min_p_sampling", "vocab_size", "grammars", "rids_int", "bootstrap_room_ids_int",
    "grammar_mask", "penalizer_orchestrator", "acc_additive_penalties", "acc_scaling_penalties",
    "has_custom_logit_processor", "custom_params", "custom_logit_processor", "sampling_seed", "return_sampling_masks",
    "sampling_mask_max_top_k", "device", "logit_bias",
    # since 0.5.18 to 0.5.23
    "return_sampling_support_logprobs", "sampling_mask_batch_indices", "sampling_support_logprobs_capture_indices",
    "sampling_mask_top_ks", "watermark_keys", "watermark_context_windows", "watermark_enabled",
    "watermark_candidates_host", "has_watermark_candidates", "npu_top_k_top_p_eligible", "max_top_k"}
# Fields that ask for what SGLang does to logits, or reads from them, itself.
_UNSERVED_FIELDS = {
    "has_custom_logit_processor": "a custom logit processor", "acc_additive_penalties": "penalties or min_new_tokens",
    "acc_scaling_penalties": "penalties or min_new_tokens", "logit_bias": "logit_bias",
    "sampling_mask_batch_indices": "a sampling mask", "has_watermark_candidates": "a watermark"}


def counts() -> dict[str, int]:
    """Steps of this process: "fused", and "stock: ..." with the reason."""
    return dict(_steps.counts)


def _drawer(processor: Any, lm_head: Any, bias: Any, hidden: torch.Tensor,
            compute: Callable[[torch.Tensor], torch.Tensor]) -> Drawer | str:
    """The Drawer of this head, or why it has none; found out once."""
    known = processor.__dict__.setdefault(_KEY, {})
    if id(lm_head) not in known:
        found: Drawer | str
        try:
            found = Drawer(processor, lm_head, bias, hidden, compute)
            _logger.info("flashsampling %s draws inside the LM head: %s", version(), found.text)
        except Unserved as reason:
            found = _steps.unserved(str(reason))
        except Exception as error:  # an SGLang that is not as we know it is left as it is
            found = _steps.unserved("%s: %s" % (type(error).__name__, error))
        known[id(lm_head)] = found, lm_head  # which keeps the id its own
    return known[id(lm_head)][0]


def _get_logits(original: Any, self: Any, hidden_states: torch.Tensor, lm_head: Any, logits_metadata: Any,
                embedding_bias: Any = None, use_logits_buffer: bool = True) -> Any:
    """Around LogitsProcessor._get_logits."""
    arguments = hidden_states, lm_head, logits_metadata, embedding_bias, use_logits_buffer
    mode = getattr(logits_metadata.forward_mode, "name", "")
    if (mode not in _MODES or logits_metadata.is_prefill_only or logits_metadata.extend_return_logprob
            or torch.compiler.is_compiling()):
        return original(self, *arguments)
    if hidden_states.is_cuda and torch.cuda.is_current_stream_capturing():
        if id(lm_head) not in self.__dict__.get(_KEY, {}):  # nothing can be looked at now
            return original(self, *arguments)

    def compute(hidden: torch.Tensor) -> torch.Tensor:
        # Not into the buffer of the graphs, whose rows may be others by then.
        return original(self, hidden, lm_head, logits_metadata, embedding_bias, False)

    drawer = _drawer(self, lm_head, embedding_bias, hidden_states, compute)
    return original(self, *arguments) if isinstance(drawer, str) else Deferred(drawer, hidden_states, compute)


def _unserved_info(runner: Any, logits: Deferred, info: Any) -> str | None:
    """Why SGLang has to see the logits of such a step; None if it has not."""
    if logits.computed:
        return "the model reads or changes its logits behind the head"
    for name, text in _UNSERVED_FIELDS.items():
        value = getattr(info, name, None)
        if value is not None and value is not False:
            return text
    if info.penalizer_orchestrator and info.penalizer_orchestrator.is_required:
        return "penalties or min_new_tokens"
    if any(info.return_sampling_masks or []):
        return "a sampling mask"
    kind = import_module(_SAMPLER).Sampler
    return None if type(runner.sampler) is kind else "a sampler of its own: %s" % type(runner.sampler).__name__


def _preprocess_logits(original: Any, self: Any, logits_output: Any, sampling_info: Any, *more: Any,
                       **named: Any) -> Any:
    """Around ModelRunner._preprocess_logits."""
    logits = logits_output.next_token_logits
    if isinstance(logits, Deferred):
        why = "a sampling observer" if more or named else _unserved_info(self, logits, sampling_info)
        if why is None:
            sampling_info.update_regex_vocab_mask()
            mask = sampling_info.grammar_mask
            try:
                if mask is not None:
                    logits.drawer.mask_of(mask.vocab_mask, len(logits))
                logits.mask, sampling_info.grammar_mask = mask, None
                return None
            except Unserved as reason:
                why = str(reason)
        setattr(logits_output, _WHY, why)
        logits_output.next_token_logits = logits.tensor()
    return original(self, logits_output, sampling_info, *more, **named)


def _most(sampler: Any, wanted: bool, numbers: Sequence[int], token_ids: Sequence[Any]) -> tuple[int, str]:
    """How many logprobs of best tokens a step asks for, -1 if none at all, and of which logits."""
    if not wanted:
        return -1, "processed"
    if any(ids is not None for ids in token_ids):
        raise Unserved("token_ids_logprob")
    if sampler.enable_deterministic:
        raise Unserved("logprobs with deterministic inference, which are to be those of a prefill to the bit")
    most = max(numbers, default=0)
    if most > MOST_LOGPROBS:
        raise Unserved("logprobs of more than %d tokens" % MOST_LOGPROBS)
    return most, "raw" if import_module(_SAMPLER).SGLANG_RETURN_ORIGINAL_LOGPROB else "processed"


def _drawn(sampler: Any, logits: Deferred, output: Any, info: Any, wanted: bool, numbers: Sequence[int],
           token_ids: Sequence[Any], positions: Any) -> torch.Tensor:
    """Tokens of a step, its logprobs in `output`; or Unserved, or the library's Error."""
    if logits.computed:
        raise Unserved("the model reads or changes its logits behind the head")
    most, kind = _most(sampler, wanted, numbers, token_ids)
    mask = None if logits.mask is None else logits.mask.vocab_mask
    tokens, columns = logits.drawer(logits.hidden, info, mask, positions, most, kind)
    if columns:
        output.next_token_logprobs = columns[0].flatten()
        if most > 0:
            lists = top_lists(columns[2], columns[3], numbers)
            output.next_token_top_logprobs_val, output.next_token_top_logprobs_idx = lists
    sampler._sync_token_ids_across_tp(tokens, info)
    return tokens


def _forward(original: Any, self: Any, logits_output: Any, sampling_info: Any, return_logprob: bool,
             top_logprobs_nums: Any, token_ids_logprobs: Any, positions: Any, **named: Any) -> Any:
    """Around Sampler.forward."""
    logits, why = logits_output.next_token_logits, logits_output.__dict__.pop(_WHY, None)
    arguments = logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs, positions
    if isinstance(logits, Deferred):
        try:
            if named:
                raise Unserved("Sampler.forward with %s" % ", ".join(named))
            tokens = _drawn(self, logits, *arguments)
            _steps.count("fused")
            return tokens
        except Unserved as reason:
            why = str(reason)
        except Error as error:
            if logits.drawer.ranks > 1:  # the other ranks are in the midst of a collective
                raise
            why = str(error)
        logits_output.next_token_logits = logits.tensor()
    _steps.count("stock: %s" % (why or "logits that came with the forward pass"))
    return original(self, *arguments, **named)


# ------------------------------------------------------------------------------------------------- the plug-in ----

_registered = False
_hooks = {"_get_logits": _get_logits, "_preprocess_logits": _preprocess_logits, "forward": _forward}


def _unknown() -> str | None:
    """What of this SGLang is not as we know it; None if all is."""
    for (module, kind, name), (names, later) in _SIGNATURES.items():
        function = getattr(getattr(import_module(module), kind), name, None)
        found = list(inspect.signature(function).parameters) if function else None
        if found is None or found[: len(names)] != names or set(found[len(names) :]) - set(later):
            return "%s.%s takes %s, expected %s" % (kind, name, found, names)
    unknown = {field.name for field in dataclasses.fields(import_module(_INFO).SamplingBatchInfo)} - _FIELDS
    if unknown:
        return "SamplingBatchInfo has a field that we do not know: %s" % ", ".join(sorted(unknown))
    return None


def register() -> None:
    """The entry point in sglang.srt.plugins; may be called any number of times. SGLang applies the hooks then."""
    global _registered
    if _registered or is_off("FLASHSAMPLING_SGLANG"):
        return
    screen_bits(SCREEN)  # a value that is none is refused before a model is loaded
    registry = import_module("sglang.srt.plugins.hook_registry")
    try:
        why = _unknown()
    except Exception as error:
        why = "%s: %s" % (type(error).__name__, error)
    if why is not None:
        _logger.warning("flashsampling: SGLang's own sampler draws every step: %s", why)
        return
    for path in _SIGNATURES:
        registry.HookRegistry.register(".".join(path), _hooks[path[-1]], registry.HookType.AROUND)
    _registered = True
    _steps.log_at_exit()
