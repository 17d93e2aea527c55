"""One call for one step of vLLM's model runner: its structures, and where they point this time."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import _c, _engine_call
from ._call import Head
from ._context import Context
from ._vllm_rules import Rules, States, allowed_masks, merged_edits, to_device

FLAGS = int(_c.Flag.KEEP_TIES_TOP_K | _c.Flag.RANK_OF_TIES)
_SLOTS = {torch.int32: _c.DTYPES["i32"], torch.int64: _c.DTYPES["i64"]}


class Call(_engine_call.Call):
    """Every step sets what it has and clears what the step before had."""

    def __init__(self, context: Context, head: Head, states: States, dtype: torch.dtype, slots: int,
                 gather: Callable[[torch.Tensor], torch.Tensor] | None, ranks: int) -> None:
        super().__init__(context, head, dtype, FLAGS, gather, ranks)
        self.states, self.batch.slots = states, slots
        self.processed = states.mode.startswith("processed")
        self.result.logits_mode = _c.LOGITS["cut" if self.processed else "raw"]
        self._value = "logit" if states.mode.endswith("logits") else "logprob"
        self._words = (self.vocab + 31) // 32
        self._had_rules = self._had_lists = self._had_masks = False

    def set(self, hidden: torch.Tensor, batch: Any, rules: Rules, masks: torch.Tensor | None = None,
            masked: np.ndarray | None = None) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Points to what this step has; returns where its tokens and its logprobs will be. `masks` are a grammar's,
        of the rows `masked`."""
        position = self._set_rows(hidden, batch)
        ruled, is_masked = rules.cuts or rules.penalties, masks is not None or rules.allowed is not None
        # What a step has is cleared by the next one, also if this one comes to no end.
        had_rules, had_lists, had_masks = self._had_rules, self._had_lists, self._had_masks
        self._had_rules = self._had_lists = self._had_masks = True
        if ruled or had_rules:
            self._set_rules(rules)
        if rules.lists or had_lists:
            self._set_lists(rules, batch.expanded_idx_mapping, position)
        if is_masked or had_masks:
            self._set_masks(rules, batch, masks, masked)
        tokens = torch.empty((batch.num_reqs, 1), dtype=torch.int64, device=self.device)
        self.result.tokens = tokens.data_ptr()
        columns: tuple[torch.Tensor, ...] = ()
        if rules.logprobs >= 0 or self._had_logprobs:
            columns = self._set_logprobs(rules.logprobs, batch.num_reqs, self._value)
        self._had_rules, self._had_lists, self._had_masks = ruled, rules.lists, is_masked
        return tokens, columns

    def _set_rows(self, hidden: torch.Tensor, batch: Any) -> torch.Tensor:
        struct, rows, sampling = self.batch, batch.num_reqs, self.states.sampling
        if batch.num_tokens == rows:  # one token for each request: rows lie in their order
            position, hidden = batch.positions[:rows], hidden[:rows]
        else:
            position, hidden = batch.positions[batch.logits_indices], hidden[batch.logits_indices]
        slot = batch.expanded_idx_mapping
        struct.rows, struct.slot_dtype, struct.slot = rows, _SLOTS[slot.dtype], slot.data_ptr()
        struct.hidden, struct.hidden_stride = hidden.data_ptr(), hidden.stride(0) * hidden.element_size()
        struct.position = position.data_ptr()
        # These change places from step to step.
        struct.own_rules.temperature.per_slot = sampling.temperature.gpu.data_ptr()
        struct.seed = sampling.seeds.gpu.data_ptr()
        self._keep = [hidden, position]
        return position

    def _set_rules(self, rules: Rules) -> None:
        struct, sampling, penalties = self.batch, self.states.sampling, self.states.penalties
        own = struct.own_rules
        own.top_k.per_slot = sampling.top_k.gpu.data_ptr() if rules.top_k else None
        own.top_p.per_slot = sampling.top_p.gpu.data_ptr() if rules.top_p else None
        own.min_p.per_slot = sampling.min_p.gpu.data_ptr() if rules.min_p else None
        struct.own_limits.top_k = rules.most_k
        there = rules.penalties
        own.repetition.per_slot = penalties.repetition_penalty.gpu.data_ptr() if there else None
        own.frequency.per_slot = penalties.frequency_penalty.gpu.data_ptr() if there else None
        own.presence.per_slot = penalties.presence_penalty.gpu.data_ptr() if there else None
        seen, counts = penalties.prompt_bin_mask, penalties.output_bin_counts
        struct.seen, struct.seen_stride = (seen.data_ptr(), 4 * seen.stride(0)) if there else (None, 0)
        struct.counts, struct.counts_stride = (counts.data_ptr(), 4 * counts.stride(0)) if there else (None, 0)

    def _set_lists(self, rules: Rules, slots: torch.Tensor, position: torch.Tensor) -> None:
        struct, state = self.batch, self.states.bias
        struct.edit_offset = struct.edit_count = struct.edit_token = struct.edit_bias = None
        struct.edit_stride = struct.own_limits.edits = 0
        if rules.stops or rules.bad_words:
            tokens, values = merged_edits(self.states, rules, slots, position, self.vocab)
            offset = torch.arange(tokens.shape[0] + 1, device=self.device) * tokens.shape[1]
            struct.edit_offset, struct.edit_token = offset.data_ptr(), tokens.data_ptr()
            struct.edit_bias, struct.own_limits.edits = values.data_ptr(), tokens.numel()
            self._keep += [offset, tokens, values]
        elif rules.bias:  # as they lie
            tokens, values = state.logit_bias_token_ids.gpu, state.logit_bias.gpu
            struct.edit_count, struct.edit_stride = state.num_logit_bias.gpu.data_ptr(), 4 * tokens.stride(0)
            struct.edit_token, struct.edit_bias = tokens.data_ptr(), values.data_ptr()

    def _set_masks(self, rules: Rules, batch: Any, masks: torch.Tensor | None, masked: np.ndarray | None) -> None:
        struct, rows, index = self.batch, batch.num_reqs, None
        struct.allow = struct.allow_index = None
        struct.allow_stride = struct.allow_count = 0
        if rules.allowed is not None:
            chosen = to_device(rules.allowed, self.device)
            by_row = torch.full((rows, self._words), -1, dtype=torch.int32, device=self.device)
            slots = batch.expanded_idx_mapping.index_select(0, chosen)
            by_row[chosen] = allowed_masks(self.states, slots, self._words)
            if masks is not None and masked is not None:
                by_row[to_device(masked, self.device)] &= masks[:, : self._words]
            masks = by_row
        elif masks is not None and masked is not None:
            places = np.full(rows, -1, np.int32)
            places[masked] = np.arange(len(masked), dtype=np.int32)
            index = to_device(places, self.device)
            struct.allow_index = index.data_ptr()
            self._keep.append(index)
        if masks is not None:
            struct.allow, struct.allow_stride = masks.data_ptr(), 4 * masks.stride(0)
            struct.allow_count = masks.shape[0]
            self._keep.append(masks)

    def reserve(self, steps: list[tuple[torch.Tensor, Any, Rules]]) -> None:
        """Sets aside the work memory of the largest of these steps, so that none, and no smaller one, allocates."""
        most = 0
        for step in steps:
            self.set(*step)
            most = max(most, self.work_bytes())
        self.context._follow()
        self.context.set_work(most)
