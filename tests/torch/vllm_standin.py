"""What flashsampling.vllm meets of vLLM, in plain numpy and torch: the names, types and layouts of 0.26.0 and 0.32.0,
and their sampler's law written out rule by rule. Nothing of vLLM is needed; tests/vllm asks the same of the real one.
"""
import dataclasses
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import torch

NAMES = ("vllm", "vllm.distributed", "vllm.model_executor", "vllm.model_executor.layers",
         "vllm.model_executor.layers.logits_processor", "vllm.v1", "vllm.v1.outputs", "vllm.v1.worker",
         "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.input_batch", "vllm.v1.worker.gpu.model_runner",
         "vllm.v1.worker.gpu.sample", "vllm.v1.worker.gpu.sample.output")


# ------------------------------------------------------------------------------------------------------- requests ----

@dataclasses.dataclass
class Request:
    prompt: list
    output: list = dataclasses.field(default_factory=list)
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: dict = dataclasses.field(default_factory=dict)
    allowed: list = dataclasses.field(default_factory=list)
    bad_words: list = dataclasses.field(default_factory=list)
    min_tokens: int = 0
    stops: list = dataclasses.field(default_factory=list)
    logprobs: int | None = None

    @property
    def total(self):
        return len(self.prompt) + len(self.output)


def processed(raw, request):
    """l of every token, -inf where a rule has removed it; the order is vLLM's."""
    y = np.asarray(raw, np.float64).copy()
    if request.allowed:
        y[np.setdiff1d(np.arange(len(y)), request.allowed)] = -np.inf
    for token, bias in request.bias.items():
        y[token] += bias
    if request.total < len(request.prompt) + request.min_tokens:
        y[request.stops] = -np.inf
    counts = np.bincount(request.output, minlength=len(y)).astype(float)
    seen = (counts > 0) | (np.bincount(request.prompt, minlength=len(y)) > 0)
    y = np.where(seen & np.isfinite(y), np.where(y > 0, y / request.repetition, y * request.repetition), y)
    y -= request.frequency * counts + request.presence * (counts > 0)
    for *before, last in request.bad_words:
        if len(before) <= len(request.output) and request.output[len(request.output) - len(before):] == before:
            y[last] = -np.inf
    if request.temperature == 0:
        return y
    y /= request.temperature
    if request.min_p > 0:
        y[y < y.max() + np.log(request.min_p)] = -np.inf
    if 0 < request.top_k < len(y):
        y[y < np.sort(y)[-request.top_k]] = -np.inf
    if request.top_p < 1:
        order = np.argsort(-y, kind="stable")
        mass = np.exp(y[order] - y.max())
        y[order[np.cumsum(mass) - mass >= request.top_p * mass.sum()]] = -np.inf
    return y


def law(raw, request):
    """Probabilities of the next token."""
    y = processed(raw, request)
    if request.temperature == 0:
        return np.eye(len(y))[y.argmax()]
    mass = np.exp(y - y.max())
    return mass / mass.sum()


# -------------------------------------------------------------------------------------------- the sampler's states ----

class Slots:
    """UvaBackedTensor: what the host writes, and a copy elsewhere in every step."""

    def __init__(self, size, dtype, fill=0):
        self.np = torch.full((size,), fill, dtype=dtype).numpy()
        self.publish()

    def publish(self):
        self.gpu = torch.from_numpy(self.np).clone()


class Lines:
    """StagedWriteTensor."""

    def __init__(self, size, dtype):
        self.gpu = torch.zeros(size, dtype=dtype)

    def write(self, slot, values):
        self.gpu[slot, : len(values)] = torch.tensor(list(values), dtype=self.gpu.dtype)


class SamplingStates:
    def __init__(self, slots, vocab):
        self.max_num_reqs, self.vocab_size = slots, vocab
        self.temperature, self.min_p = Slots(slots, torch.float32), Slots(slots, torch.float32)
        self.top_k, self.top_p = Slots(slots, torch.int32, vocab), Slots(slots, torch.float32, 1)
        self.seeds, self.seeds_set = Slots(slots, torch.int64), np.zeros(slots, bool)
        self.num_logprobs = np.full(slots, -1, np.int32)

    def add(self, slot, request):
        self.temperature.np[slot], self.top_p.np[slot] = request.temperature, request.top_p
        self.top_k.np[slot] = request.top_k if 0 < request.top_k < self.vocab_size else self.vocab_size
        self.min_p.np[slot], self.seeds_set[slot] = request.min_p, request.seed is not None
        fresh = np.random.randint(-2**63, 2**63 - 1)
        self.seeds.np[slot] = fresh if request.seed is None else request.seed
        self.num_logprobs[slot] = -1 if request.logprobs is None else request.logprobs


class PenaltiesState:
    def __init__(self, slots, vocab):
        self.vocab_size = vocab
        self.repetition_penalty = Slots(slots, torch.float32, 1)
        self.frequency_penalty, self.presence_penalty = Slots(slots, torch.float32), Slots(slots, torch.float32)
        self.use_penalty = np.zeros(slots, bool)
        self.prompt_bin_mask = torch.full((slots, (vocab + 31) // 32), -1, dtype=torch.int32)  # of earlier requests
        self.output_bin_counts = torch.full((slots, vocab), 7, dtype=torch.int32)

    def add(self, slot, request):
        penalties = request.repetition, request.frequency, request.presence
        self.repetition_penalty.np[slot], self.frequency_penalty.np[slot], self.presence_penalty.np[slot] = penalties
        self.use_penalty[slot] = penalties != (1, 0, 0)
        if self.use_penalty[slot]:
            words = np.zeros(self.prompt_bin_mask.shape[1], np.uint32)
            for token in request.prompt:
                words[token // 32] |= np.uint32(1 << token % 32)
            self.prompt_bin_mask[slot] = torch.from_numpy(words.view(np.int32))
            self.output_bin_counts[slot] = torch.from_numpy(
                np.bincount(request.output, minlength=self.vocab_size).astype(np.int32))


class LogitBiasState:
    def __init__(self, slots):
        for name in ("num_allowed_token_ids", "num_logit_bias", "min_lens", "num_stop_token_ids"):
            setattr(self, name, Slots(slots, torch.int32))
        self.allowed_token_ids, self.logit_bias_token_ids = (Lines((slots, 1024), torch.int32) for _ in range(2))
        self.logit_bias, self.stop_token_ids = Lines((slots, 1024), torch.float32), Lines((slots, 128), torch.int32)
        self.use_logit_bias = np.zeros(slots, bool)

    def add(self, slot, request):
        stops = request.stops if request.min_tokens else []
        for lines, number, values in ((self.allowed_token_ids, self.num_allowed_token_ids, request.allowed),
                                      (self.logit_bias_token_ids, self.num_logit_bias, request.bias),
                                      (self.stop_token_ids, self.num_stop_token_ids, stops)):
            lines.write(slot, values)
            number.np[slot] = len(values)
        self.logit_bias.write(slot, request.bias.values())
        self.min_lens.np[slot] = len(request.prompt) + request.min_tokens
        self.use_logit_bias[slot] = bool(request.allowed or request.bias or stops)


class BadWordsState:
    def __init__(self, slots):
        self.bad_word_token_ids = Lines((slots, 1024), torch.int32)
        self.bad_word_offsets, self.num_bad_words = Lines((slots, 129), torch.int32), Slots(slots, torch.int32)

    def add(self, slot, request):
        self.bad_word_token_ids.write(slot, [token for word in request.bad_words for token in word])
        self.bad_word_offsets.write(slot, np.cumsum([0] + [len(word) for word in request.bad_words]))
        self.num_bad_words.np[slot] = len(request.bad_words)


class LogprobTokenIdsState:
    def __init__(self, slots):
        self.num_token_ids = Slots(slots, torch.int32)


# --------------------------------------------------------------------------------------------- what is handed over ----

@dataclasses.dataclass
class InputBatch:
    req_ids: list
    num_reqs: int
    idx_mapping: torch.Tensor
    idx_mapping_np: np.ndarray
    expanded_idx_mapping: torch.Tensor
    expanded_local_pos: torch.Tensor
    num_tokens: int
    num_draft_tokens: int
    seq_lens: torch.Tensor
    seq_lens_cpu_upper_bound: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    logits_indices: torch.Tensor
    cu_num_logits: torch.Tensor
    cu_num_logits_np: np.ndarray
    is_prefilling_np: np.ndarray


@dataclasses.dataclass
class SamplerOutput:
    sampled_token_ids: torch.Tensor
    logprobs_tensors: Any
    num_nans: torch.Tensor | None
    num_sampled: torch.Tensor
    num_rejected: torch.Tensor


class LogprobsTensors(NamedTuple):
    logprob_token_ids: torch.Tensor
    logprobs: torch.Tensor
    selected_token_ranks: torch.Tensor
    cu_num_generated_tokens: list | None = None


@dataclasses.dataclass
class GrammarOutput:
    structured_output_request_ids: list
    grammar_bitmask: np.ndarray


def get_num_sampled_and_rejected(num_sampled, seq_lens, cu_num_logits, idx_mapping, prefill_len):
    """None of a request whose prompt is not yet read to its end."""
    done = seq_lens[: len(num_sampled)] >= prefill_len[idx_mapping.long()]
    return torch.where(done, num_sampled, 0), torch.zeros_like(num_sampled)


class LogitsProcessor(torch.nn.Module):
    def __init__(self, vocab, softcap=None, scale=1.0):
        super().__init__()
        self.org_vocab_size, self.soft_cap, self.scale = vocab, softcap, scale
        self.logits_as_input, self.head_dtype = False, None

    def forward(self, lm_head, hidden_states, embedding_bias=None):
        logits = torch.nn.functional.linear(hidden_states, lm_head.weight, embedding_bias)
        logits = sys.modules["vllm.distributed"].tensor_model_parallel_all_gather(logits)[:, : self.org_vocab_size]
        if self.soft_cap:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits * self.scale


class UnquantizedEmbeddingMethod:
    pass


class Model(torch.nn.Module):
    """Padded to a multiple of 64 rows, with rows that would win if they were tokens."""

    def __init__(self, vocab, dim, dtype, softcap=None, scale=1.0, bias=False):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        weight = torch.randn((vocab + 63) // 64 * 64, dim, generator=generator)
        weight[vocab:] = 50
        self.lm_head = torch.nn.Module()
        self.lm_head.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        self.lm_head.quant_method = UnquantizedEmbeddingMethod()
        self.bias = torch.linspace(-1, 1, len(weight)).to(dtype) if bias else None
        self.logits_processor = LogitsProcessor(vocab, softcap, scale)

    def compute_logits(self, hidden):
        return self.logits_processor(self.lm_head, hidden, self.bias)


# -------------------------------------------------------------------------------------------------- stock's sample ----

class Sampler:
    """The states of a runner's requests, and vLLM's __call__: logits in, tokens out, in the law above."""

    def __init__(self, slots, vocab, req_states, mode="raw_logprobs", version="0.26.0"):
        self.logprobs_mode, self.compute_nans, self.req_states = mode, False, req_states
        self.sampling_states, self.penalties_state = SamplingStates(slots, vocab), PenaltiesState(slots, vocab)
        bias, words = LogitBiasState(slots), BadWordsState(slots)
        if version == "0.26.0":
            self.logit_bias_state, self.bad_words_state = bias, words
        else:
            self.logits_processors = [bias, self.penalties_state, words]
            self.thinking_budget_state = types.SimpleNamespace(enabled=False)
            self.trace_replay_state, self.return_sampling_mask = None, False
            bias.restore_when_all_masked = Slots(slots, torch.int32)
        self.logprob_token_ids_state = LogprobTokenIdsState(slots)

    def parts(self):
        bias, words = getattr(self, "logits_processors", [None] * 3)[::2]
        return [self.sampling_states, self.penalties_state, bias or self.logit_bias_state,
                words or self.bad_words_state]

    def add(self, slot, request):
        for state in self.parts():
            state.add(slot, request)

    def publish(self):
        for state in (*self.parts(), self.logprob_token_ids_state):
            for member in vars(state).values():
                if isinstance(member, Slots):
                    member.publish()

    def __call__(self, logits, batch):
        slots, states = batch.idx_mapping_np, self.sampling_states
        positions = batch.positions[batch.logits_indices].tolist()
        laws = [law(row, self.req_states.requests[slot]) for row, slot in zip(logits.float().numpy(), slots)]
        seeds = [int(states.seeds.np[slot]) % 2**64 for slot in slots]
        tokens = [np.random.default_rng([seed, position]).choice(len(p), p=p)
                  for seed, position, p in zip(seeds, positions, laws)]
        tokens = torch.tensor(tokens)[:, None]
        most, logprobs = int(states.num_logprobs[slots].max()), None
        if most >= 0:
            if self.logprobs_mode.startswith("processed"):
                rows = [processed(row, self.req_states.requests[slot]) for row, slot in
                        zip(logits.float().numpy(), slots)]
                logits = torch.tensor(np.array(rows))
            scores = logits.double() if self.logprobs_mode.endswith("logits") else logits.double().log_softmax(1)
            ids = torch.cat((tokens, logits.topk(most, 1).indices), 1)
            ranks = (logits >= logits.gather(1, tokens)).sum(1)
            logprobs = LogprobsTensors(ids, scores.gather(1, ids).float(), ranks)
        counted = get_num_sampled_and_rejected(batch.seq_lens.new_ones(batch.num_reqs), batch.seq_lens,
                                               batch.cu_num_logits, batch.idx_mapping, self.req_states.prefill_len.gpu)
        return SamplerOutput(tokens, logprobs, None, *counted)


class GPUModelRunner:
    def __init__(self, model, vocab, slots, mode, version):
        self.model, self.max_num_reqs, self.rejection_sampler = model, slots, None
        self.device = model.lm_head.weight.device
        self.req_states = types.SimpleNamespace(
            requests={}, prompt_len=Slots(slots, torch.int32), prefill_len=Slots(slots, torch.int32),
            total_len=Lines(slots, torch.int32), all_token_ids=Lines((slots, 64), torch.int32))
        self.sampler = Sampler(slots, vocab, self.req_states, mode, version)
        self.structured_outputs_worker = types.SimpleNamespace(
            grammar_bitmask=torch.zeros((slots, (vocab + 31) // 32), dtype=torch.int32))
        self.dummy_runs = []

    def sample(self, hidden_states, input_batch, grammar_output):
        logits = self.model.compute_logits(hidden_states[input_batch.logits_indices]).clone()
        if grammar_output is not None:
            rows = [input_batch.req_ids.index(name) for name in grammar_output.structured_output_request_ids]
            bits = np.unpackbits(grammar_output.grammar_bitmask.view(np.uint8), axis=1, bitorder="little")
            logits[rows] = logits[rows].masked_fill(torch.from_numpy(bits[:, : logits.shape[1]]) == 0, -torch.inf)
        output = self.sampler(logits, input_batch)
        return output, output.num_sampled, output.num_rejected

    def _dummy_sampler_run(self, hidden_states):
        self.dummy_runs.append(hidden_states.shape[0])


MEMBERS = set(vars(GPUModelRunner))
STOCK = {name: getattr(GPUModelRunner, name) for name in ("sample", "_dummy_sampler_run")}


class World:
    """A runner with requests in its slots, and steps of them."""

    def __init__(self, vocab=300, dim=32, slots=16, version="0.26.0", mode="raw_logprobs", dtype=torch.float32,
                 **model):
        self.vocab, self.version = vocab, version
        self.runner = GPUModelRunner(Model(vocab, dim, dtype, **model), vocab, slots, mode, version)
        self.requests = self.runner.req_states.requests
        self.hidden = torch.randn((1, dim), generator=torch.Generator().manual_seed(3)).to(dtype) * dim**-0.5 * 1.5

    def add(self, slot, request):
        states = self.runner.req_states
        self.requests[slot] = request
        self.runner.sampler.add(slot, request)
        states.prompt_len.np[slot] = states.prefill_len.np[slot] = len(request.prompt)
        states.total_len.gpu[slot] = request.total
        states.all_token_ids.write(slot, request.prompt + request.output)

    def logits(self):
        """Of the hidden state that every row has, as the model has them."""
        return self.runner.model.compute_logits(self.hidden)[0].float().numpy()

    def batch(self, slots, scheduled=None, short=(), shift=0):
        """(hidden states, batch) of a step of these slots. Each has so many tokens scheduled (1); those in `short` have
        not come to the end of their prompt; positions are shifted, for other noise."""
        scheduled = scheduled or [1] * len(slots)
        ends = np.cumsum(scheduled)
        index = torch.int64 if self.version >= "0.32" else torch.int32
        total = [self.requests[slot].total - (slot in short) for slot in slots]
        hidden = torch.full((ends[-1] + 3, self.hidden.shape[1]), float("nan")).to(self.hidden.dtype)
        positions = torch.full((len(hidden),), 99)
        hidden[ends - 1], positions[ends - 1] = self.hidden, torch.tensor(total) - 1 + shift
        mapping = torch.tensor(list(slots), dtype=index)
        for member in (self.runner.sampler, self.runner.req_states.prompt_len, self.runner.req_states.prefill_len):
            member.publish()
        rows = len(slots)
        return hidden, InputBatch(
            req_ids=["r%d" % slot for slot in slots], num_reqs=rows, idx_mapping=mapping,
            idx_mapping_np=np.array(list(slots), np.int32), expanded_idx_mapping=mapping,
            expanded_local_pos=torch.zeros(rows, dtype=torch.int32), num_tokens=int(ends[-1]), num_draft_tokens=0,
            seq_lens=torch.tensor(total + [0] * 2, dtype=torch.int32), positions=positions,
            seq_lens_cpu_upper_bound=torch.tensor(total + [0] * 2, dtype=torch.int32),
            input_ids=torch.zeros(len(hidden), dtype=torch.int32), logits_indices=torch.from_numpy(ends - 1),
            cu_num_logits=torch.arange(rows + 1, dtype=torch.int32),
            cu_num_logits_np=np.arange(rows + 1, dtype=np.int32),
            is_prefilling_np=np.array([n > 1 or slot in short for n, slot in zip(scheduled, slots)]))


def install(setitem):
    """Puts the modules where vLLM's would be, by setitem(sys.modules, name, module); returns the runner's."""
    modules = {name: types.ModuleType(name) for name in NAMES}
    modules["vllm.distributed"].get_tensor_model_parallel_world_size = lambda: 1
    modules["vllm.distributed"].tensor_model_parallel_all_gather = lambda tensor, dim=-1: tensor
    modules["vllm.model_executor.layers.logits_processor"].LogitsProcessor = LogitsProcessor
    modules["vllm.v1.outputs"].LogprobsTensors = LogprobsTensors
    modules["vllm.v1.worker.gpu.sample.output"].SamplerOutput = SamplerOutput
    modules["vllm.v1.worker.gpu.input_batch"].get_num_sampled_and_rejected = get_num_sampled_and_rejected
    runner = modules["vllm.v1.worker.gpu.model_runner"]
    runner.GPUModelRunner, runner.InputBatch, runner.SamplerOutput = GPUModelRunner, InputBatch, SamplerOutput
    for name, module in modules.items():
        setitem(sys.modules, name, module)
    for name, function in STOCK.items():
        setattr(GPUModelRunner, name, function)
    for name in set(vars(GPUModelRunner)) - MEMBERS:  # what a patch before has left
        delattr(GPUModelRunner, name)
    return runner
