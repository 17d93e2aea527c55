"""The output embedding of a transformers model: its hidden states without its logits, and what the model makes of them.

A tap takes the place of the module's forward during a generation. What a model does to logits behind its output
embedding (a scale, a soft-cap) is not looked up by its name: it is recorded (_hf_logits.py) and done once to known
numbers, beside true logits, and what comes out says what it is.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ._hf_rules import Unsupported
from ._rules import Dtype

NAMES: dict[torch.dtype, Dtype] = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# How far logits may be from the model's own, of the largest: two units in the last place where they are rounded, and
# what another order of additions makes of a sum where they are not.
TOLERANCE = {"f32": 1e-4, "f16": 2.0**-9, "bf16": 2.0**-6}
_POINTS = (0.0, 2.0**-12, 1.0, 2.0**15, -(2.0**15))


def output_embedding(model: Any) -> torch.nn.Linear:
    """The module whose input is the hidden states and whose weight is the head, or Unsupported."""
    head = model.get_output_embeddings()
    if head is None:
        raise Unsupported("%s has no output embedding" % type(model).__name__)
    if not isinstance(head, torch.nn.Linear) or type(head).forward is not torch.nn.Linear.forward:
        name = next((name for name, module in model.named_modules() if module is head), "the output embedding")
        kind = "%s.%s" % (type(head).__module__, type(head).__qualname__)
        raise Unsupported("%s is a %s, not a torch.nn.Linear" % (name, kind))
    weight = head.weight
    kinds = type(weight).__name__, type(weight.data).__name__
    if kinds != ("Parameter", "Tensor"):  # sharded, quantised, or computed anew whenever it is asked for
        raise Unsupported("the output embedding's weight is a %s of a %s, not a plain parameter" % kinds)
    if weight.dtype not in NAMES:
        raise Unsupported("the output embedding's weight is of type %s" % str(weight.dtype).split(".")[-1])
    if weight.device.type not in ("cpu", "cuda"):
        raise Unsupported("the output embedding is on device %s" % weight.device.type)
    if weight.dim() != 2 or weight.shape[0] < 2 * len(_POINTS) or weight.stride(1) != 1:
        raise Unsupported("the output embedding's weight has shape %s, strides %s"
                       % (list(weight.shape), list(weight.stride())))
    return head


def fingerprint(head: torch.nn.Linear) -> tuple[Any, ...]:
    """The identity of an output embedding: its logits change with it, or with the numbers of its weights."""
    bias = None if head.bias is None else head.bias.data_ptr()
    forward = head.__dict__.get("forward")
    forward = forward.original if isinstance(forward, _Tap) else forward
    return head.weight.data_ptr(), tuple(head.weight.shape), head.weight.dtype, bias, forward


class _Tap:
    """Stands for the forward of a module; other threads, which have nothing to do with the generation, pass through."""

    def __init__(self) -> None:
        self.original: Any = None
        self.takers: dict[int, list[Callable[..., Any]]] = {}

    @torch.compiler.disable
    def __call__(self, hidden: torch.Tensor) -> Any:
        takers = self.takers.get(threading.get_ident())
        return takers[-1](hidden, self.original) if takers else self.original(hidden)


_lock = threading.Lock()
# One for each module, for good: a compiled forward that has met it need not be compiled again.
_taps: WeakKeyDictionary[torch.nn.Module, _Tap] = WeakKeyDictionary()


@contextmanager
def tapped(head: torch.nn.Linear, taker: Callable[..., Any]) -> Iterator[None]:
    """Within it, this thread's calls of head go to taker(hidden, original)."""
    thread = threading.get_ident()
    with _lock:
        tap = _taps.setdefault(head, _Tap())
        if not tap.takers:
            tap.original = head.forward
            head.forward = tap  # type: ignore[method-assign]
        tap.takers.setdefault(thread, []).append(taker)
    try:
        yield
    finally:
        with _lock:
            tap.takers[thread].pop()
            if not tap.takers[thread]:
                del tap.takers[thread]
            if not tap.takers:
                del head.forward
                if getattr(tap.original, "__func__", None) is not type(head).forward:
                    head.forward = tap.original  # type: ignore[method-assign]
                tap.original = None  # it may hold the module, which the table must not


def known(vocab: int, device: torch.device) -> torch.Tensor:
    """Numbers to send through the model in place of logits, one for each token."""
    numbers = torch.linspace(-128, 128, vocab, device=device)
    numbers[: len(_POINTS)] = torch.tensor(_POINTS, device=device)
    return numbers


def fit(sent: torch.Tensor, came: torch.Tensor) -> tuple[float, float]:
    """The scale and the soft-cap (0: none) that make of numbers sent [rows, V] what came, or Unsupported.

    The last row sent is that of known(); those before it are checked too.
    """
    sent, came = sent.double(), came.double()
    zero, small, one, high, low = came[-1, : len(_POINTS)].tolist()
    scale, softcap = one, 0.0
    if abs(high - scale * _POINTS[3]) > 1e-5 * abs(high):  # it does not grow with what is sent
        scale, softcap = small / _POINTS[1], high
        scale = 1.0 if abs(scale - 1) < 1e-5 else scale
    expected = sent * scale if softcap == 0 else softcap * torch.tanh(sent * scale / softcap)
    error = ((came - expected).abs() - 1e-5 * expected.abs()).nan_to_num(torch.inf).flatten()
    worst = error.argmax()
    if not (scale > 0 and softcap >= 0 and error[worst] <= 1e-6):
        text = "the model changes its logits, and not by a scale or a soft-cap: %g became %g (token %d), 1 became %g"
        token = worst.item() % sent.shape[1]
        raise Unsupported(text % (sent.flatten()[worst], came.flatten()[worst], token, one))
    return scale, softcap
