"""vLLM's own model runner, sampler, states, batches and head, of the installed version, without a GPU.

Only what needs one is replaced: pinned memory, whose views are the tensors themselves here, the stream on which masks
are copied, and log1p, which Triton's interpreter does not have. Top-k and top-p are those that vLLM has in PyTorch.
FLASHSAMPLING_TEST_RANK, _COUNT and _STORE, a file, in the environment make it one process of several, over which
vLLM splits the head.
"""
import dataclasses
import inspect
import os
import tempfile
import types

import numpy as np
import torch
import vllm.utils.torch_utils
from vllm import SamplingParams
from vllm_cases import sampling_params
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.v1.worker.gpu import buffer_utils


class Buffer(buffer_utils.UvaBuffer):
    def __init__(self, size, dtype):
        self.cpu = self._uva = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        if not hasattr(type(self), "uva"):  # 0.26.0; later it is a function
            self.uva = self._uva


buffer_utils.UvaBuffer = buffer_utils.NonUvaBuffer = Buffer
vllm.utils.torch_utils.PIN_MEMORY = False
vllm.utils.torch_utils.is_pin_memory_available = lambda: False

from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.sample import gumbel
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

topk_topp_sampler.HAS_TRITON = False
gumbel.tldevice = types.SimpleNamespace(log1p=lambda x: gumbel.tl.log(1.0 + x))
CONFIG = VllmConfig(device_config=DeviceConfig(device="cpu"))
RANK, COUNT = (int(os.environ.get("FLASHSAMPLING_TEST_" + name, alone)) for name, alone in (("RANK", 0), ("COUNT", 1)))
with set_current_vllm_config(CONFIG):
    with tempfile.NamedTemporaryFile() as file:
        store = os.environ.get("FLASHSAMPLING_TEST_STORE", file.name + ".store")
        init_distributed_environment(COUNT, RANK, "file://" + store, 0, "gloo")
    initialize_model_parallel(COUNT)


class Model(torch.nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        with set_current_vllm_config(CONFIG):
            self.lm_head = ParallelLMHead(vocab, dim, params_dtype=torch.float32)
            self.logits_processor = LogitsProcessor(vocab)
        rows, first = self.lm_head.weight.shape[0], self.lm_head.shard_indices.padded_org_vocab_start_index
        weight = torch.randn(rows * COUNT, dim, generator=torch.Generator().manual_seed(5))
        weight[vocab:] = 50
        self.lm_head.weight.data.copy_(weight[first : first + rows])

    def compute_logits(self, hidden):
        return self.logits_processor(self.lm_head, hidden)


def params(request):
    made = sampling_params(SamplingParams, request, max_tokens=64)
    made._all_stop_token_ids = set(request.stops)  # those of a model's own would come on top
    return made


class World:
    """As the stand-in's."""

    def __init__(self, vocab=300, dim=32, slots=16, mode="raw_logprobs"):
        device, self.vocab, self.slots = torch.device("cpu"), vocab, slots
        runner = self.runner = object.__new__(model_runner.GPUModelRunner)
        runner.device, runner.max_num_reqs, runner.vocab_size = device, slots, vocab
        runner.rejection_sampler = runner.pcp_manager = runner.batch_sharder = None
        runner.model, runner.input_buffers = Model(vocab, dim), InputBuffers(slots, 4 * slots + 8, device)
        runner.req_states = RequestState(slots, 64, 256, 0, vocab, device)
        arguments = dict(vllm_config=CONFIG, max_num_reqs=slots, vocab_size=vocab, device=device,
                         req_states=runner.req_states, logprobs_mode=mode)
        known = inspect.signature(Sampler).parameters
        runner.sampler = Sampler(**{name: value for name, value in arguments.items() if name in known})
        runner.structured_outputs_worker = types.SimpleNamespace(
            grammar_bitmask=torch.zeros((slots, (vocab + 31) // 32), dtype=torch.int32))
        self.requests = {}
        self.hidden = torch.randn((1, dim), generator=torch.Generator().manual_seed(3)) * dim**-0.5 * 1.5

    def add(self, slot, request):
        """Slots are given in order."""
        states, self.requests[slot] = self.runner.req_states, request
        # A request that was preempted: its output is part of what is read again.
        arguments = dict(req_id="r%d" % slot, prompt_len=len(request.prompt), max_tokens=64,
                         all_token_ids=request.prompt + request.output, num_computed_tokens=request.total - 1)
        states.free_indices.remove(slot)
        states.free_indices.append(slot)
        known = inspect.signature(states.add_request).parameters
        states.add_request(**{name: value for name, value in arguments.items() if name in known})
        assert states.req_id_to_index["r%d" % slot] == slot
        more = (len(request.prompt),) if "prompt_len" in inspect.signature(Sampler.add_request).parameters else ()
        self.runner.sampler.add_request(slot, *more, params(request))

    def logits(self):
        return self.runner.model.compute_logits(self.hidden)[0].numpy()

    def batch(self, slots):
        slots, rows = list(slots), len(slots)
        self.runner.req_states.apply_staged_writes()
        self.runner.sampler.apply_staged_writes()
        batch = InputBatch.make_dummy(rows, rows, self.runner.input_buffers)
        mapping = torch.tensor(slots, dtype=batch.idx_mapping.dtype)
        total = torch.tensor([self.requests[slot].total for slot in slots], dtype=torch.int32)
        batch.positions[:rows] = total - 1
        self.runner.input_buffers.seq_lens[:rows] = total
        return self.hidden.expand(rows, -1).contiguous(), dataclasses.replace(
            batch, req_ids=["r%d" % slot for slot in slots], idx_mapping=mapping, expanded_idx_mapping=mapping,
            idx_mapping_np=np.array(slots, batch.idx_mapping_np.dtype))
