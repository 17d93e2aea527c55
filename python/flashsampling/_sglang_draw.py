"""Drawer: draws the steps of one model in SGLang.

Nothing here waits for the device or reads from it, but for what the first forward pass does (Drawer.open).
"""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from . import _c, _engine_call
from ._context import Error
from ._engine_head import DTYPES, PLAIN, Layer, Unserved, agreed, compare, known_hidden, plain_weight, screened_head
from ._engine_steps import RanksSupport, context_of, screen_bits

LOGGER, SCREEN = logging.getLogger("sglang.flashsampling"), "FLASHSAMPLING_SGLANG_SCREEN"
MOST_LOGPROBS = 1024  # of fs_result.top_count
_TIES = int(_c.Flag.KEEP_TIES_TOP_K | _c.Flag.KEEP_TIES_TOP_P)
_LAST, _JOINT = int(_c.Flag.MIN_P_LAST), int(_c.Flag.JOINT_TOP_P)
# SGLang's samplers by the name of their backend: (flags, flags of a step in which a row has min-p).
_FLAGS = {
    # Ties are kept: a token stays while fewer than k, with less than p, are larger. Both cuts look at the whole row,
    # but in steps with min-p they come one after the other, each renormalised.
    "flashinfer": (_TIES | _LAST | _JOINT, _TIES | _LAST),
    "pytorch": (_LAST | _JOINT, _LAST | _JOINT),
}


def flags_of(backend: str, min_p: bool) -> int:
    """Flags of a call that cuts as this sampling backend does."""
    if backend not in _FLAGS:
        raise Unserved("sampling backend %s" % backend)
    return _FLAGS[backend][min_p]


class Call(_engine_call.Call):
    """Every step sets what it has and clears what the step before had."""

    def set_rows(self, hidden: torch.Tensor) -> None:
        struct = self.batch
        struct.rows, struct.hidden = hidden.shape[0], hidden.data_ptr()
        struct.hidden_stride = hidden.stride(0) * hidden.element_size()
        self._keep = [hidden]

    def set_rules(self, info: Any, flags: int) -> None:
        """`info` is a SamplingBatchInfo: a value a row."""
        struct, rules, greedy = self.batch, self.batch.own_rules, info.is_all_greedy
        rules.temperature.value, struct.flags = 0.0 if greedy else 1.0, flags
        rules.temperature.per_slot = None if greedy else info.temperatures.data_ptr()
        rules.top_k.per_slot = info.top_ks.data_ptr() if info.need_top_k_sampling and not greedy else None
        rules.top_p.per_slot = info.top_ps.data_ptr() if info.need_top_p_sampling and not greedy else None
        rules.min_p.per_slot = info.min_ps.data_ptr() if info.need_min_p_sampling and not greedy else None

    def set_noise(self, seeds: torch.Tensor | None, positions: torch.Tensor | None, seed: int, step: int) -> None:
        """A row's own seed and position, or one seed for all, which is spread over rows, at a step of its own."""
        struct = self.batch
        struct.seed_all, struct.position_all = seed, step
        struct.seed = struct.position = None
        if seeds is not None and positions is not None:
            positions = positions.to(torch.int64).contiguous()
            struct.seed, struct.position = seeds.data_ptr(), positions.data_ptr()
            self._keep += [seeds, positions]

    def set_mask(self, mask: torch.Tensor | None) -> None:
        struct = self.batch
        struct.allow, struct.allow_stride, struct.allow_count = None, 0, 0
        if mask is not None:
            struct.allow, struct.allow_stride, struct.allow_count = mask.data_ptr(), 4 * mask.stride(0), mask.shape[0]
            self._keep.append(mask)

    def set_results(self, rows: int, wide: bool, most: int, logits: str) -> tuple[torch.Tensor, tuple[Any, ...]]:
        """Where tokens [B], int64 if `wide`, and logprobs will be; `most` as in _set_logprobs."""
        dtype = torch.int64 if wide else torch.int32
        tokens = torch.empty(rows, dtype=dtype, device=self.device)
        self.result.tokens, self.result.tokens_dtype = tokens.data_ptr(), _c.DTYPES["i64" if wide else "i32"]
        self.result.logits_mode = _c.LOGITS[logits]
        columns: tuple[torch.Tensor, ...] = ()
        if most >= 0 or self._had_logprobs:
            columns = self._set_logprobs(most, rows, ranked=False)
        return tokens, columns


def _layer_of(processor: Any, lm_head: Any, hidden: torch.Tensor, ranks: int, rank: int, bias: Any) -> Layer:
    """A LogitsProcessor with a plain head as a Layer, or Unserved."""
    method = getattr(lm_head, "quant_method", None)
    if method is not None and type(method).__name__ not in PLAIN or hasattr(lm_head, "set_lora"):
        raise Unserved("the head is quantised or adapted (%s, %s)" % (type(lm_head).__name__, type(method).__name__))
    if bias is not None:
        raise Unserved("the head is called with embedding_bias")
    for name in ("use_attn_tp_group", "do_tensor_parallel_all_gather_dp_attn", "use_tp_lm_head_all_to_all",
                 "return_full_logits"):
        if getattr(processor, name, False):
            raise Unserved("the LogitsProcessor has %s" % name)
    if getattr(processor, "rl_on_policy_target", None) is not None:
        raise Unserved("rl_on_policy_target")
    weight = plain_weight(lm_head, hidden)
    finer = processor.use_fp32_lm_head or getattr(processor, "use_fp32_lm_head_output", False)
    scale = processor.logit_scale
    return Layer(lm_head, weight, None, processor.vocab_size, rank * weight.shape[0], ranks,
                 "f32" if finer else DTYPES[weight.dtype], 1.0 if scale is None else float(scale),
                 float(processor.final_logit_softcapping or 0.0), 1.0)


class Drawer:
    """What is known of one LogitsProcessor and its head. `compute(hidden)` is SGLang's own way to logits, of any rows.
    Unserved if SGLang draws every step itself."""

    def __init__(self, processor: Any, lm_head: Any, bias: Any, hidden: torch.Tensor,
                 compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        runtime = import_module("sglang.srt.runtime_context")
        server = runtime.get_server_args()
        if getattr(server, "speculative_algorithm", None) is not None:
            raise Unserved("speculative decoding")
        if getattr(server, "enable_torch_compile", False):
            raise Unserved("enable_torch_compile")
        self.backend = runtime.get_exec().kernel.sampling_backend
        flags_of(self.backend, False)
        self.device, self.vocab, self.processor, self.lm_head = hidden.device, processor.vocab_size, processor, lm_head
        self.ranks, rank, self.gather = 1, 0, None
        if processor.do_tensor_parallel_all_gather:
            parallel = runtime.get_parallel()
            self.ranks, rank, group = parallel.tp_size, parallel.tp_rank, parallel.tp_group
            self.gather = lambda tensor: group.all_gather(tensor, 0)
        self._arguments, self._compute = (processor, lm_head, hidden[:1], self.ranks, rank, bias), compute
        self.context = context_of(self.device, "FLASHSAMPLING_SGLANG_WORK")
        # SGLang seeds the device's generator alike on all ranks, since each of them draws.
        self.seed = torch.cuda.initial_seed() if self.device.type == "cuda" else torch.initial_seed()
        self.step = 0
        self.open()

    def open(self) -> None:
        """Looks at the head and compares some of its logits with ours."""
        hidden = self._arguments[2]
        known = known_hidden(hidden.shape[1], hidden.dtype, self.device)
        why = layer = None
        try:
            layer = _layer_of(*self._arguments)
            compare(self.context, layer, known, self._compute(known))
        except (Unserved, Error) as error:
            why = str(error)
        agreed(self.gather, self.device, why)
        assert layer is not None
        self.layer, self._place = layer, layer.weight.data_ptr()
        rounded = "f32" if os.environ.get("FLASHSAMPLING_SGLANG_LOGITS") == "f32" else layer.round_to
        flags = flags_of(self.backend, False)
        self.__dict__.pop("call", None)  # its screen, if there is one, may be in the next one's way
        head = screened_head(self.context, layer, rounded, None, screen_bits(SCREEN), LOGGER)
        self.call = Call(self.context, head, hidden.dtype, flags, self.gather, self.ranks)
        self.support = RanksSupport(self.device, layer.weight.dtype, flags)
        self.text = "%s; %d tokens x %d, logits %s, as SGLang's sampling backend %s" % (
            self.context.text, layer.vocab, layer.weight.shape[1], rounded, self.backend)
        if self.ranks > 1:
            self.text += ", %d ranks" % self.ranks

    def mask_of(self, mask: torch.Tensor, rows: int) -> torch.Tensor:
        """A grammar's mask as our call reads it, or Unserved: bits [rows, words], 1 for an allowed token."""
        words = (self.vocab + 31) // 32
        if mask.dtype != torch.int32 or mask.dim() != 2 or mask.device != self.device:
            raise Unserved("a grammar's mask of %s%s on %s" % (mask.dtype, list(mask.shape), mask.device))
        if mask.shape[0] != rows or mask.shape[1] < words or mask.stride(1) != 1:
            raise Unserved("a grammar's mask %s, expected [%d, %d]" % (list(mask.shape), rows, words))
        return mask

    def check(self, info: Any, rows: int) -> None:
        """Unserved where arrays are not as our call reads them."""
        wanted = [("temperatures", torch.float32, info.temperatures.flatten()), ("top_ks", torch.int32, info.top_ks),
                  ("top_ps", torch.float32, info.top_ps), ("min_ps", torch.float32, info.min_ps)]
        if info.sampling_seed is not None:
            wanted.append(("sampling_seed", torch.int64, info.sampling_seed))
        for name, dtype, tensor in wanted:
            if (tensor.dtype, tensor.device, list(tensor.shape)) != (dtype, self.device, [rows]):
                raise Unserved("%s is %s%s on %s, expected %s[%d] on %s" % (
                    name, tensor.dtype, list(tensor.shape), tensor.device, dtype, rows, self.device))
            if not tensor.is_contiguous():
                raise Unserved("%s is not contiguous" % name)

    def __call__(self, hidden: torch.Tensor, info: Any, mask: torch.Tensor | None, positions: torch.Tensor | None,
                 most: int, logits: str) -> tuple[torch.Tensor, tuple[Any, ...]]:
        """Tokens [B] of hidden [B, D], and logprobs [B] with the best `most` of each row if that is not -1."""
        if self.lm_head.weight.data_ptr() != self._place:  # weights that were exchanged, not written to
            self.open()
        self.check(info, hidden.shape[0])
        greedy, call = info.is_all_greedy, self.call
        cuts = not greedy and (info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling)
        if self.ranks > 1:
            results = ["logprob", "top"][: 0 if most < 0 else 1 + (most > 0)]
            self.support.check(cuts, ["allow"] if mask is not None else [], results)
        self.step += 1
        call.set_rows(hidden)
        call.set_rules(info, flags_of(self.backend, info.need_min_p_sampling))
        call.set_noise(info.sampling_seed, positions, self.seed, self.step)
        call.set_mask(mask)
        tokens, columns = call.set_results(hidden.shape[0], greedy, most, logits)
        call.run()
        return tokens, columns


def top_lists(ids: torch.Tensor, values: torch.Tensor, numbers: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Values and ids of each row's best tokens as SGLang has them: a tensor for each row. Tokens that are not there are
    0, with the least float."""
    values = values.nan_to_num_(torch.finfo(values.dtype).min).clamp_min_(torch.finfo(values.dtype).min)
    ids = ids.clamp_min_(0).long()
    return ([values[row, :number] for row, number in enumerate(numbers)],
            [ids[row, :number] for row, number in enumerate(numbers)])
