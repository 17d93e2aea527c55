"""Deferred: the logits of a step that nobody has computed yet.

SGLang computes logits at the end of its forward pass, inside the graphs that it captures, and samples later. What
stands in their place between the two is a Deferred: hidden states, and how SGLang makes logits of them. It is handed on
like the tensor it stands for: rows of it are taken as graphs are padded and batches cut. Whoever does anything else
with it, a model that changes its logits or a processor that reads them, gets a tensor of logits, computed then, and the
step is SGLang's.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class Deferred:
    """Logits [B, V] in float32 of `hidden` [B, D], as `compute(hidden)` returns them; `drawer` draws without them."""

    __slots__ = ("drawer", "hidden", "mask", "_captured", "_compute", "_logits")

    def __init__(self, drawer: Any, hidden: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor],
                 logits: torch.Tensor | None = None) -> None:
        self.drawer, self.hidden, self._compute, self._logits = drawer, hidden, compute, logits
        self.mask: Any = None  # a grammar's, which holds for the logits
        self._captured = _capturing(hidden)

    @property
    def computed(self) -> bool:
        """Whether somebody has asked for logits, who may have changed them."""
        return self._logits is not None

    def tensor(self) -> torch.Tensor:
        """The logits; the same tensor every time."""
        if self._logits is None:
            if self._captured and not _capturing(self.hidden):
                # The next replay has other hidden states, and would have these logits.
                raise RuntimeError("flashsampling: the output of a captured graph was changed after its capture")
            self._logits = self._compute(self.hidden)
            if self.mask is not None:
                self.mask.apply(self._logits)
        return self._logits

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.hidden.shape[0], self.drawer.vocab))

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    @property
    def is_cuda(self) -> bool:
        return self.hidden.is_cuda

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def __len__(self) -> int:
        return self.hidden.shape[0]

    def __getitem__(self, index: Any) -> Any:
        rows = isinstance(index, (slice, list)) or isinstance(index, torch.Tensor) and index.dim() == 1
        if not rows or self.mask is not None:
            return self.tensor()[index]
        logits = None if self._logits is None else self._logits[index]
        return Deferred(self.drawer, self.hidden[index], self._compute, logits)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tensor()[index] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*map(_plain, args), **{name: _plain(value) for name, value in (kwargs or {}).items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Deferred):
        return value.tensor()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Deferred, *others: Any) -> Any:
        return getattr(self.tensor(), name)(*map(_plain, others))

    return apply


# Python looks operators up in the type, past __getattr__.
for _name in ("add", "sub", "mul", "truediv", "pow", "radd", "rsub", "rmul", "rtruediv", "iadd", "isub", "imul",
              "itruediv", "neg", "lt", "le", "gt", "ge", "eq", "ne", "matmul"):
    setattr(Deferred, "__%s__" % _name, _operator("__%s__" % _name))
