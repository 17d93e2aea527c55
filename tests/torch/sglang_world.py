"""A model in SGLang with requests, and steps of them; what SGLang's samplers draw from, written out in numpy.

The classes are those that are in sys.modules as SGLang's: stand-ins (sglang_standin.py), or its own.
"""
import dataclasses
import types
from importlib import import_module

import numpy as np
import torch

ALL = 1 << 30  # SGLang's top_k where there is none


@dataclasses.dataclass
class Request:
    temperature: float = 1.0
    top_k: int = ALL
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    position: int = 7
    logprobs: int | None = None  # how many of the best
    token_ids: list | None = None


def greedy(**more):
    """As SGLang normalises temperature 0."""
    return Request(temperature=1.0, top_k=1, **more)


def law(raw, request, backend="flashinfer", step_min_p=None, all_greedy=False):
    """Probabilities of the next token: the first of the largest in a step that is greedy throughout. Else SGLang's
    top-k and top-p look at the whole row, and min-p comes last; but with the backend flashinfer, which keeps ties, they
    come one after the other in a step that has min-p."""
    if all_greedy:
        return np.eye(len(raw))[np.argmax(raw)]
    x = np.asarray(raw, np.float64) / request.temperature
    mass = np.exp(x - x.max())
    mass /= mass.sum()
    step_min_p = request.min_p > 0 if step_min_p is None else step_min_p
    ties, joint = backend == "flashinfer", backend == "pytorch" or not step_min_p
    order = np.argsort(-mass, kind="stable")
    kept = np.ones(len(mass), bool)
    if request.top_k < len(mass):
        if ties:
            kept = mass >= mass[order[request.top_k - 1]]
        else:
            kept[order[request.top_k :]] = False
    if request.top_p < 1:
        whole = mass if joint else np.where(kept, mass, 0) / mass[kept].sum()
        if ties:
            before = np.array([whole[mass > each].sum() for each in mass])
        else:
            before = np.empty(len(mass))
            before[order] = np.cumsum(whole[order]) - whole[order]
        kept &= before < request.top_p
    if request.min_p > 0:
        kept &= mass >= request.min_p * mass.max()
    mass = np.where(kept, mass, 0)
    return mass / mass.sum()


def draw_by_law(logits, info, positions, backend="flashinfer"):
    """What the stand-in's sampler draws."""
    tokens = []
    for row, x in enumerate(logits.double().numpy()):
        request = Request(info.temperatures[row].item(), info.top_ks[row].item(), info.top_ps[row].item(),
                          info.min_ps[row].item())
        p = law(x, request, backend, info.need_min_p_sampling, info.is_all_greedy)
        tokens.append(np.random.choice(len(p), p=p))
    return torch.tensor(np.array(tokens), dtype=torch.int64 if info.is_all_greedy else torch.int32)


class Grammar:
    """Allows the tokens of `allowed`, in bits or, as outlines does, in bools of what is forbidden."""

    finished = False

    def __init__(self, allowed, vocab, packed=True):
        self.allowed, self.vocab, self.packed = allowed, vocab, packed

    def is_terminated(self):
        return False

    # What the stand-in asks for.
    def fill(self, grammars):
        mask = self.allocate_vocab_mask(self.vocab, len(grammars), "cpu")
        for row, grammar in enumerate(grammars):
            if grammar:
                grammar.fill_vocab_mask(mask, row)
        return mask

    # What SGLang asks for.
    def allocate_vocab_mask(self, vocab_size, batch_size, device):
        if self.packed:
            return torch.full((batch_size, (vocab_size + 31) // 32 + 1), -1, dtype=torch.int32)
        return torch.zeros((batch_size, vocab_size), dtype=torch.bool)

    def fill_vocab_mask(self, mask, row):
        allowed = np.isin(np.arange(32 * mask.shape[1] if self.packed else self.vocab), self.allowed)
        if self.packed:
            mask[row] = torch.from_numpy(np.packbits(allowed, bitorder="little").view(np.int32))
        else:
            mask[row] = torch.from_numpy(~allowed)

    def fill_vocab_mask_batched(self, entries, mask):
        for entry in entries:
            entry.grammar.fill_vocab_mask(mask, entry.row)

    def move_vocab_mask(self, mask, device):
        return mask

    def apply_vocab_mask(self, logits, vocab_mask):
        if self.packed:
            bits = np.unpackbits(vocab_mask.numpy().view(np.uint8), axis=1, bitorder="little")
            vocab_mask = torch.from_numpy(bits[:, : logits.shape[1]] == 0)
        logits.masked_fill_(vocab_mask, -torch.inf)


class World:
    """A head of `vocab` tokens, padded with rows that would win, and a runner."""

    def __init__(self, vocab=300, dim=32, dtype=torch.float32, lm_head=None, scale=None, softcap=None, tied=False):
        generator = torch.Generator().manual_seed(5)
        weight = torch.randn((vocab + 63) // 64 * 64, dim, generator=generator)
        if tied:
            weight[1::2] = weight[::2]
        weight[vocab:] = 50
        self.vocab, self.lm_head = vocab, lm_head or types.SimpleNamespace()
        self.lm_head.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        head = import_module("sglang.srt.layers.logits_processor")
        config = types.SimpleNamespace(vocab_size=vocab, final_logit_softcapping=softcap)
        self.processor, self.metadata = head.LogitsProcessor(config, logit_scale=scale), head.LogitsMetadata
        self.modes = import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
        self.runner = object.__new__(import_module("sglang.srt.model_executor.model_runner").ModelRunner)
        self.runner.sampler = import_module("sglang.srt.layers.sampler").Sampler()
        self.runner.ngram_embedding_manager = types.SimpleNamespace(update_after_decode=lambda **_: None)
        self.runner.sampling_observer = self.runner.watermark_state = None
        self.hidden = torch.randn((1, dim), generator=torch.Generator().manual_seed(3)).to(dtype) * dim**-0.5 * 1.5

    def logits(self):
        """Of the hidden state that every row has, as SGLang has them."""
        idle = self.metadata(forward_mode=self.modes.IDLE)
        return self.processor(None, self.hidden, self.lm_head, idle).next_token_logits[0].float().numpy()

    def info(self, requests, **more):
        def column(name, dtype):
            return torch.tensor([getattr(request, name) for request in requests], dtype=dtype)

        kind = import_module("sglang.srt.sampling.sampling_batch_info").SamplingBatchInfo
        if all(request.seed is not None for request in requests):
            more.setdefault("sampling_seed", column("seed", torch.int64))
        top_k = [request.top_k for request in requests]
        return kind(temperatures=column("temperature", torch.float32).view(-1, 1),
                    top_ps=column("top_p", torch.float32), top_ks=column("top_k", torch.int32),
                    min_ps=column("min_p", torch.float32), is_all_greedy=max(top_k) <= 1, is_any_greedy=min(top_k) <= 1,
                    need_top_p_sampling=any(request.top_p != 1 for request in requests),
                    need_top_k_sampling=any(each != ALL for each in top_k),
                    need_min_p_sampling=any(request.min_p > 0 for request in requests), vocab_size=self.vocab,
                    **{"device": "cpu", **more})

    def forward(self, rows, mode="DECODE", padded=0, **metadata):
        """The output of a forward pass over so many rows: with `padded` more of them, as graphs have."""
        hidden = torch.cat((self.hidden.expand(rows, -1), torch.full((padded, self.hidden.shape[1]), torch.nan)))
        metadata = self.metadata(forward_mode=getattr(self.modes, mode), **metadata)
        output = self.processor(None, hidden.to(self.hidden.dtype), self.lm_head, metadata)
        output.next_token_logits = output.next_token_logits[:rows]
        return output

    def step(self, requests, mode="DECODE", padded=0, change=None, metadata={}, **more):
        """(tokens, output) of one step; change(logits) is what a model does behind its head."""
        rows = len(requests)
        output = self.forward(rows, mode, padded, **metadata)
        if change:
            change(output.next_token_logits)
        wanted = any(request.logprobs is not None for request in requests)
        batch = types.SimpleNamespace(
            sampling_info=self.info(requests, **more), return_logprob=wanted, forward_mode=getattr(self.modes, mode),
            top_logprobs_nums=[request.logprobs or 0 for request in requests],
            token_ids_logprobs=[request.token_ids for request in requests],
            positions=torch.tensor([request.position for request in requests]),
            seq_lens=torch.tensor([request.position + 1 for request in requests]))
        return self.runner.sample(output, batch), output
