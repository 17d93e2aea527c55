"""Drawer: draws the steps of one vLLM model runner.

Nothing here waits for the device or reads from it, but for what start-up does (Drawer.__init__, Drawer.reserve).
"""
from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from ._context import Error
from ._engine_head import Layer, Unserved, agreed, compare, known_hidden, screened_head
from ._engine_steps import RanksSupport, context_of
from ._rules import ScreenBits
from ._vllm_call import FLAGS, Call
from ._vllm_head import layer_of, watched
from ._vllm_rules import Rules, States, read_rules

# Rows whose logits work memory holds at a time where rules have them stored, twice where they are changed too. More
# rows take W several times.
_STORED_ROWS, _STORED_BYTES = 128, 8
_SCREENED_ROWS = (1, 16)  # so many rows at once have kernels of their own where there is a screen
_OF_RUNNER = ("rejection_sampler", "batch_sharder", "pcp_manager")  # what draws more, or elsewhere, than we do

LOGGER = logging.getLogger("vllm.flashsampling")  # vLLM shows the lines of loggers below its own


def _all_gather() -> tuple[int, Callable[[torch.Tensor], torch.Tensor] | None]:
    """How many ranks share the head, and vLLM's gather of their tensors [n] to [ranks * n]."""
    distributed = import_module("vllm.distributed")
    ranks = distributed.get_tensor_model_parallel_world_size()
    return ranks, (lambda tensor: distributed.tensor_model_parallel_all_gather(tensor, 0)) if ranks > 1 else None


class Drawer:
    """What is known of one model runner. Unserved if vLLM draws every step itself."""

    def __init__(self, runner: Any, hidden: torch.Tensor, finer: bool = False, bits: ScreenBits = 0) -> None:
        self.device, slots = hidden.device, runner.max_num_reqs
        self.bits = bits
        self.ranks, self.gather = _all_gather()
        for name in _OF_RUNNER:
            if getattr(runner, name, None) is not None:
                raise Unserved("the runner has a %s" % name)
        self.states = States(runner.sampler)
        self.worker = runner.structured_outputs_worker
        self.outputs = import_module("vllm.v1.worker.gpu.sample.output").SamplerOutput
        self.logprobs = import_module("vllm.v1.outputs").LogprobsTensors
        self.count = import_module("vllm.v1.worker.gpu.input_batch").get_num_sampled_and_rejected
        vocab = self.states.sampling.vocab_size
        self.context = context_of(self.device, "FLASHSAMPLING_VLLM_WORK",
                                  min(slots, _STORED_ROWS) * _STORED_BYTES * vocab)
        layer = self.layer = self._probe(runner.model, hidden)
        if layer.vocab > vocab:
            raise Unserved("the head has %d tokens, the sampler %d" % (layer.vocab, vocab))
        self.states.layout(slots, layer.vocab, self.device)
        self.bias = None if layer.bias is None else layer.bias.float()
        rounded = "f32" if finer else layer.round_to
        head = screened_head(self.context, layer, rounded, self.bias, bits, LOGGER)
        self.call = Call(self.context, head, self.states, hidden.dtype, slots, self.gather, self.ranks)
        self.text = "%s; %d tokens x %d, logits %s" % (self.context.text, layer.vocab, layer.weight.shape[1], rounded)
        if self.ranks > 1:
            self.text += ", %d ranks" % self.ranks
        self.ones = torch.ones(slots, dtype=torch.int32, device=self.device)  # nobody writes to them
        self.zeros = torch.zeros(slots, dtype=torch.int32, device=self.device)
        self._place = layer.weight.data_ptr()
        self.support = RanksSupport(self.device, layer.weight.dtype, FLAGS)

    def _probe(self, model: Any, hidden: torch.Tensor) -> Layer:
        known = known_hidden(hidden.shape[1], hidden.dtype, self.device)
        why = layer = None
        try:
            processor, arguments, logits = watched(model, known)
            layer = layer_of(processor, arguments, known, self.ranks)
            compare(self.context, layer, known, logits)
        except (Unserved, Error) as error:
            why = str(error)
        agreed(self.gather, self.device, why)
        assert layer is not None
        return layer

    def moved(self) -> bool:
        """Whether the head is no longer where it was: weights that were exchanged, not written to."""
        return self.layer.lm_head.weight.data_ptr() != self._place

    def rules(self, batch: Any, grammar: Any) -> Rules:
        """What this step asks for, or Unserved."""
        if batch.num_draft_tokens:
            raise Unserved("draft tokens")
        if batch.logits_indices.shape[0] != batch.num_reqs:
            raise Unserved("more or fewer rows than requests")
        rules = read_rules(self.states, batch.idx_mapping_np)
        if self.ranks > 1:
            self._check_ranks(rules, grammar is not None)
        return rules

    def _check_ranks(self, rules: Rules, masked: bool) -> None:
        used = [name for name, there in (("allow", masked or rules.allowed is not None), ("edits", rules.lists),
                                         ("penalties", rules.penalties)) if there]
        results = ["logprob", "logit", "rank", "top"][: 0 if rules.logprobs < 0 else 3 + (rules.logprobs > 0)]
        self.support.check(rules.cuts, used, results)

    def __call__(self, runner: Any, hidden: torch.Tensor, batch: Any, grammar: Any, rules: Rules) -> Any:
        """What GPUModelRunner.sample returns."""
        if self.bias is not None and self.layer.bias is not None:
            self.bias.copy_(self.layer.bias)
        masks = masked = None
        if grammar is not None and grammar.structured_output_request_ids:
            order = {name: row for row, name in enumerate(batch.req_ids)}
            masked = np.array([order[name] for name in grammar.structured_output_request_ids], np.int64)
            masks = self._copied(grammar.grammar_bitmask)
        tokens, columns = self.call.set(hidden, batch, rules, masks, masked)
        self.call.run()
        if masks is not None and self.device.type == "cuda":
            # The masks of the next step are not to overtake this one.
            self.worker.copy_stream.wait_stream(torch.cuda.current_stream())
        logprobs = self._logprobs(tokens, masks is not None or self.call.processed, *columns) if columns else None
        sampled, rejected = self._counted(runner, batch)
        output = self.outputs(sampled_token_ids=tokens, logprobs_tensors=logprobs, num_nans=None, num_sampled=sampled,
                              num_rejected=rejected)
        return output, sampled, rejected

    def _counted(self, runner: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens that each request got, and draft tokens that it did not. One that is not yet at the end of its prompt
        gets none, which the host does not know; of a step without prompts it knows all."""
        if not np.count_nonzero(batch.is_prefilling_np):
            return self.ones[: batch.num_reqs], self.zeros[: batch.num_reqs]
        return self.count(batch.seq_lens.new_ones(batch.num_reqs), batch.seq_lens, batch.cu_num_logits,
                          batch.idx_mapping, runner.req_states.prefill_len.gpu)

    def _copied(self, bitmask: np.ndarray) -> torch.Tensor:
        """The grammar's masks where vLLM keeps them on the device, copied beside what the device does."""
        masks, source = self.worker.grammar_bitmask[: bitmask.shape[0]], torch.from_numpy(bitmask)
        if self.device.type != "cuda":
            return masks.copy_(source)
        with torch.cuda.stream(self.worker.copy_stream):
            masks.copy_(source.pin_memory(), non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.worker.copy_stream)
        return masks

    def _logprobs(self, tokens: torch.Tensor, short: bool, value: torch.Tensor, rank: torch.Tensor,
                  ids: torch.Tensor | None = None, values: torch.Tensor | None = None) -> Any:
        """vLLM's LogprobsTensors: the drawn token, then the best ones. `short`: rows may have fewer than asked for."""
        if ids is not None and values is not None:
            if short:
                ids, values = ids.clamp_min_(0), values.nan_to_num_(-torch.inf, torch.inf, -torch.inf)
            tokens, value = torch.cat((tokens, ids), 1), torch.cat((value, values), 1)
        return self.logprobs(tokens, value, rank.long())

    def reserve(self, runner: Any, hidden: torch.Tensor) -> None:
        """Takes the work memory that steps of so many rows need, and draws some, so that no later one allocates or
        loads code. vLLM has this done while it measures memory."""
        if self.device.type != "cuda":
            return
        make = import_module("vllm.v1.worker.gpu.input_batch").InputBatch.make_dummy
        batch = make(hidden.shape[0], hidden.shape[0], runner.input_buffers)
        steps = [Rules()]
        if self.ranks > 1:  # a rank that got no memory in a later step would end them all
            steps.append(Rules(penalties=True, bias=1))
        else:  # what a pass decides, with tables of edits; what has its logits stored, and stored twice
            steps += [Rules(top_k=True, most_k=1024, top_p=True, min_p=True, penalties=True, bias=1),
                      Rules(logprobs=20),
                      Rules(top_k=True, most_k=1024, top_p=True, penalties=True, logprobs=20)]
            self.call.reserve([(hidden, batch, rules) for rules in steps])
        for rules in steps:
            self(runner, hidden, batch, None, rules)
        if self.bits:  # not whether there is a screen: ranks draw the same steps, and one of them may have none
            for rows in (min(rows, hidden.shape[0]) for rows in _SCREENED_ROWS):
                self(runner, hidden, make(rows, rows, runner.input_buffers), None, Rules())
