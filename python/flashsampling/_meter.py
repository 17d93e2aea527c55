"""What a token took: the time of its step, and the time and memory of head and sampling in it.

A run is one call of model.generate(), fused or stock. A Meter beside it sees when the hidden state enters the LM head,
when the token is chosen, and when it arrives here; it uses what generate() offers everyone: a hook, a stopping rule, a
streamer.
"""
from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

from ._call import Head
from ._context import Context

WARM_UP = 4  # tokens, of each side before a comparison


def rules_of(config: Any) -> dict[str, Any]:
    """What a configuration asks for, without what it does not."""
    names = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
    rules = {name: getattr(config, name, None) for name in names}
    rules["do_sample"] = bool(rules["do_sample"])
    if rules["do_sample"] and rules["top_k"] is None:
        rules["top_k"] = 50  # what transformers does then
    return {name: value for name, value in rules.items() if value is not None}


class Meter:
    """Takes the times of a run: a streamer, a stopping rule that never stops, and a hook on the output embedding."""

    def __init__(self, model: Any, show: Callable[[list[int]], None] | None = None, memory: bool = False):
        self.show, self.device, self.head = show, model.device, model.get_output_embeddings()
        self.cuda = self.device.type == "cuda"
        self.steps: list[float] = []
        self.spans: list[tuple[Any, Any]] = []
        self.rows: list[list[int]] = []
        self.memory: Any = (_CudaPeak(self.device) if self.cuda else _host_peak()) if memory else None
        self._asked = False  # the first thing a streamer is given is the prompt
        self._resumed = time.perf_counter()

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _enter(self, module: Any, inputs: Any) -> None:
        if self.memory:
            self.hidden = inputs[0][:, -1]
            self.memory.__enter__()
        self._begin = self._now()

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        self._output, self.logits = output, output.numel() * output.element_size()

    def chosen(self, tokens: Any, scores: Any, **_: Any) -> Any:
        """The stopping rule."""
        if self.memory:
            self.memory.__exit__(None, None, None)
        self.spans.append((self._begin, self._now()))
        # A Deferred records whether its token was drawn from hidden states (_hf_logits.py).
        self.fused, self._output = getattr(getattr(self._output, "source", None), "drawn", False), None
        return tokens.new_zeros(tokens.shape[0], dtype=bool)

    def put(self, tokens: Any) -> None:
        """The streamer; tokens are in host memory."""
        now = time.perf_counter()
        if self._asked:
            self.steps.append(now - self._resumed)
            self.rows = self.rows or [[] for _ in range(tokens.numel())]
            for row, token in zip(self.rows, tokens.flatten().tolist()):
                row.append(token)
            if self.show:
                self.show(self.rows[0])
        self._asked = True
        self._resumed = time.perf_counter()

    def end(self) -> None:
        """The streamer's end."""

    def __enter__(self) -> Meter:
        self._hooks = [self.head.register_forward_pre_hook(self._enter), self.head.register_forward_hook(self._leave)]
        return self

    def __exit__(self, *_: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def seconds(self) -> list[float]:
        """Head and sampling of each token."""
        if not self.cuda:
            return [end - begin for begin, end in self.spans]
        import torch

        torch.cuda.synchronize(self.device)
        return [begin.elapsed_time(end) * 1e-3 for begin, end in self.spans]


class _CudaPeak:
    """Bytes that torch's allocator gave between entering and leaving, at most at once."""

    def __init__(self, device: Any):
        self.device, self.bytes = device, 0

    def __enter__(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device)

    def __exit__(self, *_: Any) -> None:
        import torch

        self.bytes = max(self.bytes, torch.cuda.max_memory_allocated(self.device) - self._before)


def _host_peak() -> Any:
    """The same for host memory, of which torch keeps no account: what operators return, for as long as it lives."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class HostPeak(TorchDispatchMode):
        bytes = 0

        def __init__(self) -> None:
            super().__init__()
            self._alive: dict[int, Any] = {}

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def storages(tree: Any) -> Any:
                return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

            given = {storage._cdata for storage in storages((args, kwargs))}
            result = function(*args, **(kwargs or {}))
            self._alive = {key: value for key, value in self._alive.items() if not value[0].expired()}
            for storage in storages(result):
                if storage._cdata not in given:  # else a view, or written in place
                    self._alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
            self.bytes = max(self.bytes, sum(size for _, size in self._alive.values()))
            return result

    return HostPeak()


def run(model: Any, ids: list[int], copies: int, config: Any, seed: int, fused: bool, meter: Meter) -> None:
    """One call of generate(), fused or stock."""
    import torch

    from . import transformers as ours

    tokens = torch.tensor([ids] * copies, device=model.device)
    torch.manual_seed(seed)
    with meter, ours.patch(model) if fused else contextlib.nullcontext():
        model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=config, streamer=meter,
                       stopping_criteria=[meter.chosen])


def work_bytes(hidden: Any, weight: Any, config: Any) -> int:
    """The work memory of the library, which is not torch's: what it says of such a draw from these hidden states."""
    import torch

    served = ("temperature", "top_k", "top_p", "min_p") if config.do_sample else ()
    rules = {name: value for name, value in rules_of(config).items() if name in served} or {"temperature": 0.0}
    with Context(hidden.device.type, device=hidden.device.index or 0, threads=torch.get_num_threads()) as context:
        context.sample(Head(weight.detach()), hidden, seed=0, min_p_last=True, **rules)
        return context.counters.work_bytes


def measure(model: Any, ids: list[int], copies: int, config: Any, seed: int, fused: bool, warm_up: bool = False,
            show: Callable[[list[int]], None] | None = None) -> dict[str, Any]:
    """Runs one side and returns what was drawn and what it took."""
    short = copy.deepcopy(config)
    short.max_new_tokens, short.min_new_tokens, short.min_length = WARM_UP, None, None
    if warm_up:
        run(model, ids, copies, short, seed, fused, Meter(model))
    meter, seen = Meter(model, show), Meter(model, memory=True)
    run(model, ids, copies, config, seed, fused, meter)
    run(model, ids, copies, short, seed, fused, seen)
    weight, fused = model.get_output_embeddings().weight, seen.fused  # else it was left to stock
    end = config.eos_token_id
    ends = set(end if isinstance(end, list) else [end])
    rows = [row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))] for row in meter.rows]
    first = len(meter.steps) > 1  # the first step also reads the prompt; where it is all there is, it counts
    steps, heads = meter.steps[first:], meter.seconds()[first:]
    token, head = statistics.median(steps), statistics.median(heads)
    return {
        "tokens": rows,
        "new_tokens": sum(map(len, rows)),
        "fused": fused,
        "first_token_seconds": meter.steps[0],
        "tokens_per_second": (sum(map(len, rows)) - len(rows) * first) / sum(steps),
        "token_seconds": token,
        "head_seconds": head,
        "head_share": head / token,
        "logits_bytes": 0 if fused else seen.logits,
        "head_bytes": seen.memory.bytes + (work_bytes(seen.hidden, weight, config) if fused else 0),
    }
