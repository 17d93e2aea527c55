"""Logits that have not been computed: the tensor that an output embedding returns while the library draws.

A Deferred has the shape, dtype and device of the logits it stands for, and no numbers. Steps that models take behind
their output embedding (a scale, a soft-cap, a cast, the last position) are recorded and give another Deferred. Every
other function, be it of the model's forward, of a subclass or of a hook, is given the logits, which are computed then.
So a draw from hidden states is right as long as what arrives is a Deferred and its recorded steps are known.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

# Functions that need no number of a tensor. Every function that is not in a table of this file computes logits.
_ABOUT = {torch.Tensor.__len__, torch.Tensor.__hash__, torch.Tensor.size, torch.Tensor.dim, torch.Tensor.ndimension,
          torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.element_size, torch.Tensor.is_floating_point,
          torch.Tensor.get_device, torch.is_floating_point, torch.numel}
_ABOUT |= {getattr(torch.Tensor, name).__get__
           for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad", "itemsize")}
_ROWWISE = {getattr(owner, name) for owner in (torch.Tensor, torch)
            for name in ("mul", "multiply", "div", "divide", "true_divide", "add", "tanh")}
_ROWWISE |= {getattr(torch.Tensor, name)
             for name in ("__rmul__", "to", "float", "half", "bfloat16", "contiguous", "detach")}
_CONSTANTS = (int, float, bool, torch.dtype, torch.device, type(None))
_LAST = ((slice(None), -1), (slice(None), slice(-1, None)), (slice(None), slice(-1, None), slice(None)))


class _Step:
    """A recorded function. Two are equal if they do the same to any logits."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.function, self.arguments, self.named = function, arguments, named
        versions = [(id(a), a.data_ptr(), None if a.is_inference() else a._version) if isinstance(a, torch.Tensor) else a
                    for a in arguments]
        self._key = function, versions, named

    def __call__(self, logits: torch.Tensor) -> Any:
        return self.function(logits, *self.arguments, **self.named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Step) and self._key == other._key


class Source:
    """One call of an output embedding: what it was given, and every Deferred that was made of its logits."""

    __slots__ = ("constants", "drawn", "family", "hidden", "original", "used_by")

    def __init__(self, hidden: torch.Tensor, original: Callable[[torch.Tensor], Any], constants: Any) -> None:
        self.hidden, self.original, self.constants = hidden, original, constants
        self.family: list[weakref.ref[Deferred]] = []
        self.used_by: str | None = None  # the function that first needed numbers
        self.drawn = False  # whether a token was drawn from the hidden states in their place


class Deferred(torch.Tensor):
    """Logits [B, T, V], or [B, V], that are computed where a function needs their numbers."""

    source: Source
    steps: tuple[_Step, ...]
    _parent: Deferred | None
    _like: torch.Tensor  # the same with V = 0: a step on it says what dtype, device and shape come out
    _logits: Any

    @staticmethod
    def __new__(cls, like: torch.Tensor, vocab: int, source: Source, parent: Deferred | None = None,
                steps: tuple[_Step, ...] = ()) -> Deferred:
        self = torch.Tensor._make_wrapper_subclass(cls, (*like.shape[:-1], vocab),  # type: ignore[attr-defined]
                                                   dtype=like.dtype, device=like.device)
        self.source, self.steps, self._parent, self._like, self._vocab, self._logits = (
            source, steps, parent, like, vocab, None)
        source.family.append(weakref.ref(self))
        return self

    def __init__(self, *_: Any) -> None:
        pass

    @classmethod
    def of(cls, source: Source, vocab: int) -> Deferred:
        """What source.original(source.hidden) would return."""
        return cls(source.hidden[..., :0], vocab, source)

    def replay(self, logits: torch.Tensor) -> torch.Tensor:
        """The steps that led here, on numbers [rows, 1, V] in place of what the output embedding would return."""
        for step in self.steps:
            logits = step(logits)
        return logits

    def last(self) -> torch.Tensor:
        """The output embedding's logits [B, 1, V] of the last position, computed for the caller alone."""
        with torch.no_grad():
            return self.source.original(self.source.hidden[:, -1:])

    def compute(self, used_by: str) -> torch.Tensor:
        """The logits, the same tensor every time. `used_by` names the function that needs them."""
        if self._logits is None:
            self.source.used_by = self.source.used_by or used_by
            with torch.no_grad():  # all at once: a write to one of them must not reach what was made of it before
                for reference in self.source.family:
                    member = reference()
                    if member is not None:
                        member._logits = member._made()
        return self._logits

    def _made(self) -> Any:
        if self._parent is None:
            return self.source.original(self.source.hidden)
        return self.steps[-1](self._parent._logits)

    def _recorded(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Deferred | None:
        """This with one step more; None where it is no step that can be recorded."""
        if function is torch.Tensor.__getitem__:
            index = arguments[0]
            plain = type(index) is tuple and all(type(i) in (int, slice) for i in index)
            known = plain and len(self._like.shape) == 3 and index in _LAST
        else:
            known = function in _ROWWISE and all(map(self._constant, (*arguments, *named.values())))
        if not known:
            return None
        step = _Step(function, arguments, named)
        narrow = [a[..., :0] if isinstance(a, torch.Tensor) and a.numel() > 1 else a for a in arguments]
        return Deferred(function(self._like, *narrow, **named), self._vocab, self.source, self, (*self.steps, step))

    def _constant(self, value: Any) -> bool:
        """Whether a step means the same whenever it is taken: a plain value, or a number or [V] that the model keeps."""
        if isinstance(value, torch.Tensor):
            return id(value) in self.source.constants and value.numel() in (1, self._vocab)
        return isinstance(value, _CONSTANTS)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if args and type(args[0]) is cls and args[0]._logits is None:
            if function in _ABOUT:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **named)
            found = args[0]._recorded(function, args[1:], named)
            if found is not None:
                return found
        name = torch.overrides.resolve_name(function) or getattr(function, "__name__", str(function))
        return function(*_plain(args, name), **_plain(named, name))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """For code in C++, which __torch_function__ does not see."""
        return function(*_plain(args, str(function)), **_plain(kwargs or {}, str(function)))


def _plain(value: Any, used_by: str) -> Any:
    """The same with logits in place of every Deferred."""
    if type(value) is Deferred:
        return value.compute(used_by)
    if type(value) is dict:
        return {name: _plain(item, used_by) for name, item in value.items()}
    return type(value)(_plain(item, used_by) for item in value) if type(value) in (list, tuple) else value
