"""transformers' logits processors as rules of ours, read from the list that generate() has prepared."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import logits_process as stock

from ._rules import FlagName, RuleName


class Unsupported(Exception):
    """Why a call is left to transformers; the text goes to the log."""


# The order in which our rules are applied. transformers' own list has it; one that a user has made may not.
BIAS, REPETITION, BAN, TEMPERATURE, TOP_K, TOP_P, MIN_P, NORMALISE = range(8)


@dataclass
class _Ban:
    """Tokens that are banned, or forced, while `active` says so of the sequence's length."""

    active: Callable[[int], bool]
    ids: list[int]
    forced: bool = False


def _single(processor: Any) -> dict[int, float]:
    """A SequenceBias of single tokens: {token: bias}."""
    longer = [key for key in processor.sequence_bias if len(key) > 1]
    if longer:
        raise Unsupported("%s has sequences of more than one token, %s" % (type(processor).__name__, list(longer[0])))
    return {int(key[0]): float(bias) for key, bias in processor.sequence_bias.items()}


def _ids(value: Any) -> list[int]:
    return torch.as_tensor(value).reshape(-1).tolist()


def _ban(p: Any) -> _Ban:
    """What a processor that sets logits to -inf does."""
    name = type(p)
    if name is stock.MinLengthLogitsProcessor:
        return _Ban(lambda length: length < p.min_length, _ids(p.eos_token_id))
    if name is stock.MinNewTokensLengthLogitsProcessor:
        return _Ban(lambda length: length - p.prompt_length_to_skip < p.min_new_tokens, _ids(p.eos_token_id))
    if name is stock.SuppressTokensAtBeginLogitsProcessor:
        return _Ban(lambda length: length == p.begin_index, _ids(p.begin_suppress_tokens))
    if name is stock.SuppressTokensLogitsProcessor:
        return _Ban(lambda length: True, _ids(p.suppress_tokens))
    if name is stock.NoBadWordsLogitsProcessor:
        return _Ban(lambda length: True, list(_single(p)))
    if name is stock.ForcedBOSTokenLogitsProcessor:
        return _Ban(lambda length: length == 1, _ids(p.bos_token_id), True)
    return _Ban(lambda length: length == p.max_length - 1, _ids(p.eos_token_id), True)


_STAGES: dict[type, int] = {
    stock.SequenceBiasLogitsProcessor: BIAS,
    stock.RepetitionPenaltyLogitsProcessor: REPETITION,
    stock.NoBadWordsLogitsProcessor: BAN,
    stock.MinLengthLogitsProcessor: BAN,
    stock.MinNewTokensLengthLogitsProcessor: BAN,
    stock.ForcedBOSTokenLogitsProcessor: BAN,
    stock.ForcedEOSTokenLogitsProcessor: BAN,
    stock.SuppressTokensLogitsProcessor: BAN,
    stock.SuppressTokensAtBeginLogitsProcessor: BAN,
    stock.TemperatureLogitsWarper: TEMPERATURE,
    stock.TopKLogitsWarper: TOP_K,
    stock.TopPLogitsWarper: TOP_P,
    stock.MinPLogitsWarper: MIN_P,
    stock.LogitNormalization: NORMALISE,  # shifts all logits of a row alike: neither a draw nor a maximum sees it
}


class Rules:
    """The processors of one generate() call. Raises Unsupported where one of them is not among our rules."""

    def __init__(self, processors: Any, do_sample: bool, vocab: int) -> None:
        self.vocab = vocab
        self.values: dict[str, Any] = {}  # one value for all rows, named as in Batch
        self.bias: dict[int, float] = {}
        self.bans: list[_Ban] = []
        self.ignored: Any = 0  # leading tokens that the repetition penalty does not see, one number or one per row
        self._edits: tuple[Any, ...] = ()
        stage, before = -1, ""
        for p in processors:
            name = type(p).__name__
            here = _STAGES.get(type(p))
            if here is None:
                raise Unsupported("%s is none of our rules" % name)
            if here < stage or (here == stage and here != BAN):
                raise Unsupported("%s comes after %s" % (name, before))
            stage, before = here, name
            self._add(p, here)
        if not do_sample:
            self.values = {name: self.values[name] for name in self.values if name == "repetition"}
            self.values["temperature"] = 0.0

    def _add(self, p: Any, stage: int) -> None:
        if stage in (TOP_K, TOP_P, MIN_P):
            if p.filter_value != -float("inf"):
                raise Unsupported("%s has filter_value %s, not -inf" % (type(p).__name__, p.filter_value))
            if p.min_tokens_to_keep != 1 and stage != TOP_K:
                raise Unsupported("%s has min_tokens_to_keep %d, not 1" % (type(p).__name__, p.min_tokens_to_keep))
        if stage == BIAS:
            self.bias = _single(p)
        elif stage == REPETITION:
            self.values["repetition"], self.ignored = p.penalty, p.prompt_ignore_length
            self.ignored = 0 if self.ignored is None else self.ignored
        elif stage == BAN:
            self.bans.append(_ban(p))
        elif stage == TEMPERATURE:
            self.values["temperature"] = p.temperature
        elif stage == TOP_K:
            self.values.update(top_k=p.top_k, keep_ties_top_k=True)
        elif stage == TOP_P:
            self.values["top_p"] = p.top_p
        elif stage == MIN_P:
            self.values.update(min_p=p.min_p, min_p_last=True)

    def used(self) -> tuple[list[RuleName], list[FlagName]]:
        """The rules and the flags of supports() that this call needs."""
        cuts: tuple[RuleName, ...] = ("top_k", "top_p", "min_p")
        flags: tuple[FlagName, ...] = ("keep_ties_top_k", "min_p_last")
        rules = [name for name in cuts if name in self.values]
        if self.bias or self.bans:
            rules.append("edits")
        if "repetition" in self.values:
            rules.append("penalties")
        return rules, [name for name in flags if name in self.values]

    def at(self, input_ids: torch.Tensor) -> tuple[dict[str, Any], list[int] | None]:
        """The rules of the next token of these sequences, and the only tokens there are where some are forced."""
        edits, forced = dict(self.bias), None
        for ban in self.bans:
            if not ban.active(input_ids.shape[-1]):
                continue
            ids = [i for i in ban.ids if 0 <= i < self.vocab]
            if ban.forced:
                if len(ids) != len(ban.ids):
                    raise ValueError("forced tokens %s: the vocabulary has %d" % (ban.ids, self.vocab))
                edits, forced = {}, sorted(set(ids))  # whatever was banned before is allowed again
            elif forced is not None:
                forced = [i for i in forced if i not in ids]
            else:
                edits.update((i, -float("inf")) for i in ids)
        if forced is not None:
            values = {name: value for name, value in self.values.items() if name != "repetition"}
            return values, forced
        rules = dict(self.values)
        if edits:
            rules["edits"] = self._same_for_all(edits, input_ids.shape[0], input_ids.device)
        if "repetition" in rules:
            rules["count_list"] = self._seen(input_ids)
        return rules, None

    def _same_for_all(self, edits: dict[int, float], rows: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Edits of one row as those of every row; kept, since they seldom change from step to step."""
        if not self._edits or self._edits[0] != edits:
            offset = torch.arange(rows + 1, device=device) * len(edits)
            token = torch.tensor(list(edits), dtype=torch.int32, device=device).repeat(rows)
            bias = torch.tensor(list(edits.values()), dtype=torch.float32, device=device).repeat(rows)
            self._edits = (dict(edits), offset, token, bias)
        return self._edits[1:]

    def _seen(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Which tokens each row's repetition penalty applies to, as sparse counts."""
        ignored = torch.as_tensor(self.ignored, device=input_ids.device).reshape(-1, 1)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        seen = (places >= ignored) & (input_ids < self.vocab)
        offset = torch.nn.functional.pad(seen.sum(1).cumsum(0), (1, 0))
        token = input_ids[seen].to(torch.int32)
        return offset, token, torch.ones_like(token)
