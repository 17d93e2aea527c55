"""What the requests of one step ask for, read from the states of vLLM's sampler.

Which rules a step has is known from the states' host arrays, as vLLM itself decides which kernels it launches. What the
rules are is in slot-indexed arrays on the device, which our call reads where they lie; only lists that have to become
one (bias, stop ids, bad words) and masks of allowed ids are made anew, on the device, without waiting for it.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from ._engine_head import Unserved

_MOST_LOGPROBS = 1024  # of fs_result.top_count

# What each class is known to have, in 0.26.0 and 0.32.0: a member that is not here is a feature we do not know of.
_MEMBERS = {
    "Sampler": {
        "logprobs_mode", "compute_nans", "use_fp64_gumbel", "req_states", "sampling_states", "penalties_state",
        "logit_bias_state", "bad_words_state", "logprob_token_ids_state", "num_speculative_tokens", "use_flashinfer",
        "logits_processors", "thinking_budget_state", "trace_replay_state", "needs_logits_processing",
        "return_sampling_mask", "use_xpu_sampler"},
    "SamplingStates": {
        "max_num_reqs", "vocab_size", "temperature", "top_k", "top_p", "min_p", "seeds", "seeds_set", "num_logprobs"},
    "PenaltiesState": {
        "req_states", "vocab_size", "device", "repetition_penalty", "frequency_penalty", "presence_penalty",
        "use_penalty", "prompt_bin_mask", "output_bin_counts", "_new_penalties_reqs"},
    "LogitBiasState": {
        "max_num_reqs", "num_allowed_token_ids", "allowed_token_ids", "num_logit_bias", "logit_bias_token_ids",
        "logit_bias", "min_lens", "num_stop_token_ids", "stop_token_ids", "use_logit_bias", "prompt_len_np",
        "restore_when_all_masked"},
    "BadWordsState": {
        "req_states", "max_num_reqs", "device", "bad_word_token_ids", "bad_word_offsets", "num_bad_words"},
    "LogprobTokenIdsState": {"max_num_reqs", "num_token_ids", "token_ids"},
}


def _check_members(state: Any, name: str) -> None:
    if type(state).__name__ != name:
        raise Unserved("a %s in place of vLLM's %s" % (type(state).__name__, name))
    unknown = set(vars(state)) - _MEMBERS[name]
    if unknown:
        raise Unserved("this vLLM's %s has what we do not know: %s" % (name, ", ".join(sorted(unknown))))


class States:
    """The states of vLLM's sampler that rules are read from; Unserved for samplers that do more than we know."""

    def __init__(self, sampler: Any) -> None:
        _check_members(sampler, "Sampler")
        self.sampling, self.penalties = sampler.sampling_states, sampler.penalties_state
        processors = getattr(sampler, "logits_processors", None)
        if processors is None:
            processors = [sampler.logit_bias_state, self.penalties, sampler.bad_words_state]
        names = [type(processor).__name__ for processor in processors]
        if names != ["LogitBiasState", "PenaltiesState", "BadWordsState"]:
            raise Unserved("custom logits processors: %s" % ", ".join(names))
        self.bias, _, self.bad_words = processors
        self.token_ids = sampler.logprob_token_ids_state
        for state, name in ((self.sampling, "SamplingStates"), (self.penalties, "PenaltiesState"),
                            (self.bias, "LogitBiasState"), (self.bad_words, "BadWordsState"),
                            (self.token_ids, "LogprobTokenIdsState")):
            _check_members(state, name)
        self.requests, self.mode = sampler.req_states, sampler.logprobs_mode
        if self.mode not in ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"):
            raise Unserved("logprobs_mode %s" % self.mode)
        for name, value in (("VLLM_COMPUTE_NANS_IN_LOGITS", sampler.compute_nans),
                            ("the sampling mask", getattr(sampler, "return_sampling_mask", False)),
                            ("trace replay", getattr(sampler, "trace_replay_state", None))):
            if value:
                raise Unserved("%s is asked for" % name)
        thinking = getattr(sampler, "thinking_budget_state", None)
        self.thinking = thinking.use_thinking_budget if thinking is not None and thinking.enabled else None
        self.restore = getattr(self.bias, "restore_when_all_masked", None)

    def layout(self, slots: int, vocab: int, device: torch.device) -> None:
        """Refuses arrays of other types or shapes than our call reads."""
        wanted = [(self.sampling, name, torch.float32, [slots]) for name in ("temperature", "top_p", "min_p")]
        wanted += [(self.sampling, "top_k", torch.int32, [slots]), (self.sampling, "seeds", torch.int64, [slots])]
        wanted += [(self.penalties, name + "_penalty", torch.float32, [slots])
                   for name in ("repetition", "frequency", "presence")]
        wanted += [(self.bias, name, torch.int32, [slots])
                   for name in ("num_allowed_token_ids", "num_logit_bias", "num_stop_token_ids", "min_lens")]
        found = [(name, getattr(state, name).gpu, dtype, shape) for state, name, dtype, shape in wanted]
        found += [("prompt_bin_mask", self.penalties.prompt_bin_mask, torch.int32, [slots, (vocab + 31) // 32]),
                  ("output_bin_counts", self.penalties.output_bin_counts, torch.int32, [slots, vocab])]
        for name, tensor, dtype, shape in found:
            good = tensor.dtype == dtype and tensor.dim() == len(shape) and tensor.device == device
            if not good or any(a < b for a, b in zip(tensor.shape, shape)) or tensor.stride(-1) != 1:
                raise Unserved("%s is %s%s on %s, expected %s%s on %s" % (
                    name, tensor.dtype, list(tensor.shape), tensor.device, dtype, shape, device))


@dataclasses.dataclass(slots=True)
class Rules:
    """What one step asks for."""

    top_k: bool = False
    most_k: int = 0  # the largest top_k
    top_p: bool = False
    min_p: bool = False
    penalties: bool = False
    bias: int = 0  # the longest list, so for the next two
    stops: int = 0
    bad_words: int = 0
    allowed: np.ndarray | None = None  # rows that have allowed ids
    logprobs: int = -1  # the most; -1: none

    @property
    def cuts(self) -> bool:
        return self.top_k or self.top_p or self.min_p

    @property
    def lists(self) -> bool:
        return bool(self.bias or self.stops or self.bad_words)


def read_rules(states: States, slots: np.ndarray) -> Rules:
    """What the requests in these slots ask for; Unserved where we do not do it."""
    # Every step does this: take and count_nonzero are the quickest of their kind.
    sampling, rules, count, slots = states.sampling, Rules(), np.count_nonzero, slots.astype(np.intp, copy=False)
    top_k = sampling.top_k.np.take(slots)
    cut = top_k != sampling.vocab_size
    if count(cut):
        rules.top_k, rules.most_k = True, int(top_k[cut].max())
    rules.top_p = bool(count(sampling.top_p.np.take(slots) != 1.0))
    rules.min_p = bool(count(sampling.min_p.np.take(slots)))
    rules.penalties = bool(count(states.penalties.use_penalty.take(slots)))
    rules.logprobs = int(sampling.num_logprobs.take(slots).max())
    if count(states.bias.use_logit_bias.take(slots)):
        _read_bias(states, slots, rules)
    bad_words = states.bad_words.num_bad_words.np.take(slots)
    if count(bad_words):
        rules.bad_words = int(bad_words.max())
    if count(states.token_ids.num_token_ids.np.take(slots)):
        raise Unserved("logprob_token_ids")
    if rules.logprobs > _MOST_LOGPROBS:
        raise Unserved("logprobs of more than %d tokens" % _MOST_LOGPROBS)
    if states.thinking is not None and count(states.thinking.take(slots)):
        raise Unserved("a thinking budget")
    return rules


def _read_bias(states: States, slots: np.ndarray, rules: Rules) -> None:
    bias = states.bias
    rules.bias = int(bias.num_logit_bias.np[slots].max())
    rules.stops = int(bias.num_stop_token_ids.np[slots].max())
    if rules.stops and states.restore is not None and states.restore.np[slots].any():
        raise Unserved("min_tokens together with a grammar, which may restore stop ids")
    allowed = np.flatnonzero(bias.num_allowed_token_ids.np[slots] > 0)
    if len(allowed):
        rules.allowed = allowed
        if states.mode.startswith("raw") and (states.sampling.num_logprobs[slots[allowed]] >= 0).any():
            # Raw logprobs are those before the allowed ids; our mask comes before them.
            raise Unserved("allowed_token_ids together with raw logprobs")


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A small host array on the device, without waiting."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def merged_edits(states: States, rules: Rules, slots: torch.Tensor, position: torch.Tensor,
                 vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bias, stop ids of requests that are too short, and bad words as one list [B, N] of (token, bias); what does not
    apply is token 0 with a bias of 0."""
    tokens, values = [], []

    def add(ids: torch.Tensor, valid: torch.Tensor, value: torch.Tensor | float) -> None:
        valid = valid & (ids >= 0) & (ids < vocab)
        tokens.append(torch.where(valid, ids, 0).to(torch.int32))
        filled = value if isinstance(value, torch.Tensor) else torch.full_like(ids, value, dtype=torch.float32)
        values.append(torch.where(valid, filled, 0.0))

    state = states.bias
    if rules.bias:
        columns = torch.arange(rules.bias, device=slots.device)
        add(state.logit_bias_token_ids.gpu[slots, : rules.bias],
            columns < state.num_logit_bias.gpu[slots].unsqueeze(1), state.logit_bias.gpu[slots, : rules.bias])
    if rules.stops:
        columns = torch.arange(rules.stops, device=slots.device)
        short = position + 1 < state.min_lens.gpu[slots]
        add(state.stop_token_ids.gpu[slots, : rules.stops],
            (columns < state.num_stop_token_ids.gpu[slots].unsqueeze(1)) & short.unsqueeze(1), -torch.inf)
    if rules.bad_words:
        add(*_bad_words(states, slots, rules.bad_words), -torch.inf)
    return torch.cat(tokens, 1), torch.cat(values, 1)


def _bad_words(states: States, slots: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last token of each bad word [B, most], and whether what comes before it is what the request ends with."""
    state, requests = states.bad_words, states.requests
    flat = state.bad_word_token_ids.gpu[slots]  # [B, T], words one after the other
    words = state.num_bad_words.gpu[slots].unsqueeze(1)
    columns = torch.arange(most + 1, device=slots.device)
    offsets = state.bad_word_offsets.gpu[slots, : most + 1].long()
    offsets = torch.where(columns <= words, offsets, offsets.gather(1, words.long()))  # behind them lies what was
    start, end = offsets[:, :-1].contiguous(), offsets[:, 1:].contiguous()
    place = torch.arange(flat.shape[1], device=slots.device).expand(flat.shape[0], -1).contiguous()
    word = torch.searchsorted(end, place, right=True).clamp_max(most - 1)  # which word a place in `flat` is in
    prompt = requests.prompt_len.gpu[slots].unsqueeze(1)
    total = requests.total_len.gpu[slots].unsqueeze(1)
    prefix = end - start - 1
    within, length = place - start.gather(1, word), prefix.gather(1, word)
    ids = requests.all_token_ids.gpu
    at = (total - length + within).long().clamp(0, ids.shape[1] - 1)
    differs = (within < length) & (ids[slots.unsqueeze(1), at] != flat)
    before = torch.nn.functional.pad(differs.cumsum(1), (1, 0))
    match = before.gather(1, end) == before.gather(1, start)
    match &= (prefix <= total - prompt) & (columns[:-1] < words)
    return flat.gather(1, (end - 1).clamp_min(0)), match


def allowed_masks(states: States, slots: torch.Tensor, words: int) -> torch.Tensor:
    """Bitmasks [rows, words] of the allowed ids of these slots, all of which have some."""
    state = states.bias
    ids = state.allowed_token_ids.gpu[slots].long()
    valid = torch.arange(ids.shape[1], device=ids.device) < state.num_allowed_token_ids.gpu[slots].unsqueeze(1)
    ids = torch.where(valid, ids, -1).sort(1).values
    valid = (ids >= 0) & (ids < 32 * words)
    valid[:, 1:] &= ids[:, 1:] != ids[:, :-1]  # an id twice would carry into the next bit
    ids = torch.where(valid, ids, 0)
    bits = torch.where(valid, torch.ones_like(ids) << (ids & 31), 0)
    masks = torch.zeros((ids.shape[0], words), dtype=torch.int64, device=ids.device)
    return masks.scatter_add_(1, ids >> 5, bits).to(torch.int32)
