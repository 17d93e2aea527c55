"""What flashsampling.sglang meets of SGLang, in plain torch: the names, types and layouts of 0.5.17 and 0.5.23, with a
sampler that draws by the law of sglang_world.py. Nothing of SGLang is needed; tests/sglang asks the same of the real
one.
"""
import collections
import dataclasses
import enum
import sys
import types
from typing import Any, NamedTuple

import torch

NAMES = ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.logits_processor", "sglang.srt.layers.sampler",
         "sglang.srt.model_executor", "sglang.srt.model_executor.forward_batch_info",
         "sglang.srt.model_executor.model_runner", "sglang.srt.plugins", "sglang.srt.plugins.hook_registry",
         "sglang.srt.runtime_context", "sglang.srt.sampling", "sglang.srt.sampling.sampling_batch_info")
ForwardMode = enum.IntEnum("ForwardMode", "EXTEND DECODE MIXED IDLE TARGET_VERIFY SPLIT_PREFILL")


class GrammarMask(NamedTuple):
    grammar: Any
    vocab_mask: torch.Tensor

    def apply(self, logits):
        self.grammar.apply_vocab_mask(logits=logits, vocab_mask=self.vocab_mask)


@dataclasses.dataclass
class LogitsProcessorOutput:
    next_token_logits: Any
    hidden_states: Any = None
    next_token_logprobs: Any = None
    next_token_top_logprobs_val: Any = None
    next_token_top_logprobs_idx: Any = None
    next_token_token_ids_logprobs_val: Any = None
    next_token_token_ids_logprobs_idx: Any = None


@dataclasses.dataclass
class LogitsMetadata:
    forward_mode: Any
    next_token_logits_buffer: Any = None
    extend_return_logprob: bool = False
    extend_seq_lens: Any = None
    is_prefill_only: bool = False


def _info(later):
    """SamplingBatchInfo, with the fields of 0.5.23 if `later`."""
    needed = ["temperatures", "top_ps", "top_ks", "min_ps", "is_all_greedy", "is_any_greedy", "need_top_p_sampling",
              "need_top_k_sampling", "need_min_p_sampling", "vocab_size"]
    more = ["grammars", "grammar_mask", "penalizer_orchestrator", "acc_additive_penalties", "acc_scaling_penalties",
            "has_custom_logit_processor", "custom_params", "custom_logit_processor", "sampling_seed",
            "return_sampling_masks", "device", "logit_bias"]
    more += ["sampling_mask_batch_indices", "has_watermark_candidates", "max_top_k"] if later else []
    fields = [(name, Any) for name in needed] + [(name, Any, dataclasses.field(default=None)) for name in more]

    def __len__(self):
        return len(self.temperatures)

    def update_regex_vocab_mask(self):
        """The mask of all rows by one of the grammars, anew."""
        found = [grammar for grammar in self.grammars or [] if grammar]
        self.grammar_mask = GrammarMask(found[0], found[0].fill(self.grammars)) if found else None

    def apply_logits_bias(self, logits):
        if self.acc_additive_penalties is not None:
            logits.add_(self.acc_additive_penalties)
        if self.acc_scaling_penalties is not None:
            scale = self.acc_scaling_penalties
            logits.copy_(torch.where(logits > 0, logits / scale, logits * scale))
        if self.penalizer_orchestrator and self.penalizer_orchestrator.is_required:
            self.penalizer_orchestrator.apply(logits)
        if self.grammar_mask is not None:
            self.grammar_mask.apply(logits)
        if self.logit_bias is not None:
            logits.add_(self.logit_bias)

    members = dict(__len__=__len__, update_regex_vocab_mask=update_regex_vocab_mask,
                   apply_logits_bias=apply_logits_bias)
    return dataclasses.make_dataclass("SamplingBatchInfo", fields, namespace=members)


class UnquantizedEmbeddingMethod:
    pass


def _layers(runtime):
    class LogitsProcessor(torch.nn.Module):
        def __init__(self, config, logit_scale=None):
            super().__init__()
            self.vocab_size, self.logit_scale, self.use_attn_tp_group = config.vocab_size, logit_scale, False
            self.use_fp32_lm_head = False
            self.do_tensor_parallel_all_gather = runtime.get_parallel().tp_size > 1
            self.do_tensor_parallel_all_gather_dp_attn = self.return_full_logits = False
            self.final_logit_softcapping = getattr(config, "final_logit_softcapping", None)
            self.rl_on_policy_target, self.computed = None, 0

        def forward(self, input_ids, hidden_states, lm_head, logits_metadata):
            if logits_metadata.extend_seq_lens is not None:
                hidden_states = hidden_states[torch.cumsum(logits_metadata.extend_seq_lens, 0) - 1]
            return LogitsProcessorOutput(next_token_logits=self._get_logits(hidden_states, lm_head, logits_metadata))

        def _get_logits(self, hidden_states, lm_head, logits_metadata, embedding_bias=None, use_logits_buffer=True):
            self.computed += 1
            weight = lm_head.weight.float() if self.use_fp32_lm_head else lm_head.weight
            logits = torch.matmul(hidden_states.to(weight.dtype), weight.T)
            if self.logit_scale is not None:
                logits.mul_(self.logit_scale)
            if self.do_tensor_parallel_all_gather:
                logits = runtime.get_parallel().tp_group.all_gather(logits, -1)
            logits, buffer = logits[:, : self.vocab_size], logits_metadata.next_token_logits_buffer
            if use_logits_buffer and buffer is not None and buffer.shape == logits.shape:
                logits = buffer.copy_(logits)
            logits = logits.float()
            cap = self.final_logit_softcapping
            return cap * torch.tanh(logits / cap) if cap else logits

    return LogitsProcessor


def _sampler(later, draw):
    """Its forward draws by draw(logits, info, positions, backend); what it writes is as SGLang writes it."""

    class Sampler(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.enable_deterministic, self.synced = False, 0

        def _sample(self, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs,
                    positions):
            logits = logits_output.next_token_logits
            assert type(logits) is torch.Tensor
            tokens = draw(logits, sampling_info, positions)
            if return_logprob:
                scale = 1 if sampling_info.is_all_greedy else sampling_info.temperatures
                logprobs = (logits / scale).log_softmax(1).clamp(min=torch.finfo(torch.float32).min)
                logits_output.next_token_logprobs = logprobs.gather(1, tokens.long()[:, None]).flatten()
                if any(top_logprobs_nums):
                    best = logprobs.topk(max(top_logprobs_nums), 1)
                    logits_output.next_token_top_logprobs_val = [
                        row[:number] for row, number in zip(best.values, top_logprobs_nums)]
                    logits_output.next_token_top_logprobs_idx = [
                        row[:number] for row, number in zip(best.indices, top_logprobs_nums)]
            return tokens

        def _sync_token_ids_across_tp(self, batch_next_token_ids, sampling_info):
            self.synced += 1

        if later:
            def forward(self, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs,
                        positions, *, logprob_logits=None):
                return self._sample(logits_output, sampling_info, return_logprob, top_logprobs_nums,
                                    token_ids_logprobs, positions)
        else:
            def forward(self, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs,
                        positions):
                return self._sample(logits_output, sampling_info, return_logprob, top_logprobs_nums,
                                    token_ids_logprobs, positions)

    return Sampler


def _runner(later):
    class ModelRunner:
        sampling_observer = watermark_state = None

        if later:
            def _preprocess_logits(self, logits_output, sampling_info, observer=None):
                sampling_info.update_regex_vocab_mask()
                sampling_info.apply_logits_bias(logits_output.next_token_logits)
                sampling_info.grammar_mask = None
        else:
            def _preprocess_logits(self, logits_output, sampling_info):
                sampling_info.update_regex_vocab_mask()
                sampling_info.apply_logits_bias(logits_output.next_token_logits)
                sampling_info.grammar_mask = None

        def sample(self, logits_output, forward_batch):
            info = forward_batch.sampling_info
            observed = {"observer": self.sampling_observer} if self.sampling_observer else {}
            self._preprocess_logits(logits_output, info, **observed)
            decode = forward_batch.forward_mode == ForwardMode.DECODE
            return self.sampler(logits_output, info, forward_batch.return_logprob, forward_batch.top_logprobs_nums,
                                forward_batch.token_ids_logprobs,
                                forward_batch.positions if decode else forward_batch.seq_lens - 1)

    return ModelRunner


HookType = enum.Enum("HookType", "BEFORE AFTER AROUND REPLACE")


class HookRegistry:
    _hooks = collections.defaultdict(list)

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER):
        cls._hooks[target].append((hook_type, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hooks in cls._hooks.items():
            module, kind, name = target.rsplit(".", 2)
            owner = getattr(sys.modules[module], kind)
            for _, hook in hooks:
                setattr(owner, name, _around(getattr(owner, name), hook))

    @classmethod
    def reset(cls):
        cls._hooks.clear()


def _around(original, hook):
    def wrapper(*args, **kwargs):
        return hook(original, *args, **kwargs)

    wrapper.__wrapped__ = original
    return wrapper


def install(setitem, draw, later=False, backend="flashinfer", ranks=1):
    """Puts the modules where SGLang's would be, by setitem(sys.modules, name, module)."""
    HookRegistry.reset()
    modules = {name: types.ModuleType(name) for name in NAMES}
    runtime, sampler = modules["sglang.srt.runtime_context"], modules["sglang.srt.layers.sampler"]
    parallel = types.SimpleNamespace(tp_size=ranks, tp_rank=0, tp_group=None)
    execution = types.SimpleNamespace(kernel=types.SimpleNamespace(sampling_backend=backend))
    server = types.SimpleNamespace(speculative_algorithm=None, enable_torch_compile=False)
    runtime.get_parallel, runtime.get_exec, runtime.get_server_args = (lambda: parallel), (lambda: execution), (
        lambda: server)
    head = modules["sglang.srt.layers.logits_processor"]
    head.LogitsProcessor, head.LogitsMetadata = _layers(runtime), LogitsMetadata
    head.LogitsProcessorOutput = LogitsProcessorOutput
    sampler.Sampler, sampler.SGLANG_RETURN_ORIGINAL_LOGPROB = _sampler(later, draw), False
    modules["sglang.srt.model_executor.model_runner"].ModelRunner = _runner(later)
    modules["sglang.srt.model_executor.forward_batch_info"].ForwardMode = ForwardMode
    modules["sglang.srt.sampling.sampling_batch_info"].SamplingBatchInfo = _info(later)
    hooks = modules["sglang.srt.plugins.hook_registry"]
    hooks.HookRegistry, hooks.HookType = HookRegistry, HookType
    for name, module in modules.items():
        setitem(sys.modules, name, module)
