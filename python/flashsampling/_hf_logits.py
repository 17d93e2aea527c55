"""Logits that have not been computed: the tensor that an output embedding returns while the library draws.

A Deferred has the shape, dtype and device of the logits it stands for, and no numbers. Steps that models take behind
their output embedding (a scale, a soft-cap, a cast, the last position) are recorded and give another Deferred. Any
other function of the model's forward, of a subclass or of a hook computes the logits and gets them. A draw from hidden
states is right if a Deferred arrives whose steps the Head does too.
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
_INDEX = torch.Tensor.__getitem__
_LAST = ((slice(None), -1), (slice(None), slice(-1, None)), (slice(None), slice(-1, None), slice(None)))
_PLAIN = {int, float, bool, torch.dtype, torch.device, type(None)}
_KEPT = 8  # steps kept behind each step; a hook whose numbers change at every token makes a new one each time


class Steps:
    """Functions recorded one after another. Two are equal if they do the same to any logits.

    The next token finds the steps of the one before, so a token costs the Deferred alone.
    """

    __slots__ = ("arguments", "before", "constants", "function", "key", "like", "named", "next")

    def __init__(self, like: torch.Tensor, constants: dict[int, torch.Tensor], before: Steps | None = None,
                 function: Any = None, arguments: tuple[Any, ...] = (), named: Any = None, key: Any = None) -> None:
        self.like, self.constants, self.before, self.key = like, constants, before, key
        self.function, self.arguments, self.named = function, arguments, named
        self.next: list[Steps] = []

    @classmethod
    def none(cls, hidden: torch.Tensor, constants: dict[int, torch.Tensor]) -> Steps:
        """Logits as the output embedding returns them. A step may use `constants`, which are kept by the model."""
        return cls(hidden.new_empty(2, 2, 0), constants)  # a step applied to it gives the dtype and the shape

    def then(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any], vocab: int) -> Steps | None:
        """These and one more; None where it cannot be recorded."""
        if function is _INDEX:
            index = arguments[0]
            if type(index) is not tuple or not all(type(i) in (int, slice) for i in index):
                return None
            if self.like.dim() != 3 or index not in _LAST:
                return None
            values: Any = index
        elif function in _ROWWISE:
            values = [self._value(value, vocab) for value in arguments]
            if NotImplemented in values or not all(type(value) in _PLAIN for value in named.values()):
                return None
        else:
            return None
        key = function, values, named
        for steps in self.next:
            if steps.key == key:
                return steps
        narrow = [a[..., :0] if isinstance(a, torch.Tensor) and a.numel() > 1 else a for a in arguments]
        steps = Steps(function(self.like, *narrow, **named), self.constants, self, function, arguments, named, key)
        self.next = [*self.next[1 - _KEPT:], steps]
        return steps

    def _value(self, value: Any, vocab: int) -> Any:
        """Identifies an argument: a plain value, or a tensor [V] or [1] of the model and its version."""
        if type(value) in _PLAIN:
            return value
        if id(value) in self.constants and value.numel() in (1, vocab):
            return id(value), value.data_ptr(), None if value.is_inference() else value._version
        return NotImplemented

    def __call__(self, logits: torch.Tensor) -> Any:
        """Applies all of them to logits [rows, T, V]."""
        return self.step(logits if self.before is None else self.before(logits))

    def step(self, logits: torch.Tensor) -> Any:
        """Applies the last of them."""
        return logits if self.function is None else self.function(logits, *self.arguments, **self.named)

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, Steps) and self.key == other.key and self.before == other.before


class Source:
    """One call of an output embedding: what it was given, and every Deferred that was made of its logits."""

    __slots__ = ("drawn", "family", "hidden", "original", "used_by", "vocab")

    def __init__(self, hidden: torch.Tensor, original: Callable[[torch.Tensor], Any], vocab: int) -> None:
        self.hidden, self.original, self.vocab = hidden, original, vocab
        self.family: list[weakref.ref[Deferred]] = []
        self.used_by: str | None = None  # the function that first needed numbers
        self.drawn = False  # whether a token was drawn from the hidden states in their place

    def last(self) -> torch.Tensor:
        """The output embedding's logits [B, 1, V] of the last position."""
        with torch.no_grad():
            return self.original(self.hidden[:, -1:])


class Deferred(torch.Tensor):
    """Logits [B, T, V], or [B, V], that are computed where a function needs their numbers."""

    source: Source
    steps: Steps
    _shape: tuple[int, ...]  # this Deferred's own: Tensor.shape goes through __torch_function__
    _parent: Deferred | None
    _logits: Any

    @staticmethod
    def __new__(cls, source: Source, steps: Steps, shape: tuple[int, ...], parent: Deferred | None = None) -> Deferred:
        like = steps.like
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        self.source, self.steps, self._shape, self._parent, self._logits = source, steps, shape, parent, None
        source.family.append(weakref.ref(self))
        return self

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

    def release(self) -> None:
        """Lets go of the hidden states. transformers' loop holds its logits until the next forward is over."""
        del self.source, self._parent

    def _made(self) -> Any:
        if self._parent is None:
            return self.source.original(self.source.hidden)
        return self.steps.step(self._parent._logits)

    def _then(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Deferred | None:
        """The Deferred that a function returns, or None where the function cannot be recorded."""
        steps = self.steps.then(function, arguments, named, self.source.vocab)
        if steps is None:
            return None
        shape = self._shape
        if function is _INDEX:
            shape = (shape[0], *steps.like.shape[1:-1], shape[-1])
        return Deferred(self.source, steps, shape, self)

    @classmethod
    @torch.compiler.disable  # a compiled forward ends at the output embedding; there is nothing here to compile
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if args and type(args[0]) is cls and args[0]._logits is None:
            found = args[0]._then(function, args[1:], named)
            if found is not None:
                return found
            if function in _ABOUT:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **named)
        name = torch.overrides.resolve_name(function) or getattr(function, "__name__", str(function))
        return function(*_plain(args, name), **_plain(named, name))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (),  # type: ignore[override]
                           kwargs: Any = None) -> Any:
        """For code in C++, which __torch_function__ does not see."""
        return function(*_plain(args, str(function)), **_plain(kwargs or {}, str(function)))


def _plain(value: Any, used_by: str) -> Any:
    """The same with logits in place of every Deferred."""
    if type(value) is Deferred:
        return value.compute(used_by)
    if type(value) is dict:
        return {name: _plain(item, used_by) for name, item in value.items()}
    return type(value)(_plain(item, used_by) for item in value) if type(value) in (list, tuple) else value
