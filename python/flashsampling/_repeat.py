"""Repeated calls of sample and sample_logits: a call like an earlier one of its thread only exchanges pointers.

To look at all arguments takes ten times as long as the draw from a small head. What the C structures of a call say
depends on how its arrays lie, on which rules are numbers and which are arrays, and on what is asked for: that is the
key here. The value is the structures. Each call writes its own addresses and numbers to them and has results of its
own. So an entry refers to no array of a caller: it keeps no memory alive, and memory that was freed and taken by
another array is no special case. A thread keeps the MOST entries that were used last, about 2 KB each.
"""
from __future__ import annotations

import ctypes
from typing import Any

from . import _c
from ._arrays import integer, is_tensor, numpy
from ._call import Batch, Head, Result
from ._context import Context
from ._numbers import number

MOST = 16
# Rules of which an entry serves any number of these types; that of another rule is part of the key.
_NUMBERS = {"temperature": (float, int), "top_p": (float, int), "min_p": (float, int), "top_k": (int,), "seed": (int,),
            "position": (int,)}
_INTEGERS = {"top_k": "i32", "position": "u64"}
# Rules whose arrays the library reads where they lie, whatever they hold, if they need no conversion.
_POINTERS = frozenset(("temperature", "top_k", "top_p", "min_p", "seed", "position", "repetition", "frequency",
                       "presence", "slot", "allow", "seen", "counts", "bias"))
_SIGNED = frozenset(("seed", "position"))  # unsigned 64-bit numbers, which tensors and many arrays have as int64
_SCALARS = frozenset((int, float, bool, str, type(None)))
_tensors: set[type] = set()
_arrays: set[type] = set()
_int64: set[Any] = set()


def _learn(value: Any) -> bool:
    """Takes down the types whose arrays can be described; subclasses of torch's may not be what they seem. Returns
    whether the value is of one of them."""
    if is_tensor(value):
        import torch

        _tensors.update((torch.Tensor, torch.nn.Parameter))
        _int64.add(torch.int64)
    elif hasattr(value, "__array_interface__"):
        _arrays.update((numpy().ndarray, numpy().memmap))
        _int64.add(numpy().dtype("i8"))
    return type(value) in _tensors or type(value) in _arrays


def described(array: Any) -> tuple[Any, int]:
    """All that structures depend on but the address of an array, and the address; 0 for what has no entry."""
    kind = type(array)
    if kind in _tensors:
        try:
            return (array.dtype, array.shape, array.stride(), array.device, array.is_neg()), array.data_ptr()
        except RuntimeError:  # sparse or nested
            return None, 0
    if kind in _arrays:
        return (array.dtype, array.shape, array.strides), array.__array_interface__["data"][0]
    return described(array) if _learn(array) else (None, 0)


def _has_negative(array: Any) -> bool:
    """Whether an array of int64 that the host can read has a negative value."""
    return array.dtype in _int64 and (not is_tensor(array) or array.is_cpu) and bool((array < 0).any())


class Call:
    """What a call says, but for where its arrays lie. `key` is None if no entry can serve it."""

    __slots__ = ("key", "data_at", "hidden_at", "pointers", "numbers", "seed")

    def __init__(self, kind: str, hidden: Any, data: Any, rules: dict[str, Any], asked: tuple[Any, ...]) -> None:
        self.key: Any = None
        self.pointers: list[tuple[str, int]] = []
        self.numbers: list[tuple[str, Any]] = []
        self.seed: int | None = None
        rows: Any = None
        self.hidden_at: int | None = None
        place, self.data_at = described(data)
        if kind == "weights":
            rows, self.hidden_at = described(hidden)
        if not self.data_at or self.hidden_at == 0:
            return
        key: list[Any] = [place, rows, asked]
        for name, value in rules.items():
            found = type(value)
            if found in _NUMBERS.get(name, ()):
                key.append(name)
                if name == "seed":
                    self.seed = integer(value, "u64", name)
                else:
                    self.numbers.append((name, value))
            elif found in _SCALARS:
                key.append((name, value))
            elif name in _POINTERS:
                place, at = described(value)
                if not at or name in _SIGNED and _has_negative(value):
                    return
                self.pointers.append((name, at))
                key.append((name, place))
            else:
                return
        self.key = tuple(key)


def _module(of_torch: bool) -> Any:
    if not of_torch:
        return numpy()
    import torch

    return torch


def _place(head: _c.HeadStruct, batch: _c.BatchStruct, name: str) -> tuple[ctypes.Structure, str]:
    """Where the address of an array goes."""
    return (head, name) if name == "bias" else batch.place(name, True)


class Entry:
    """The structures of a call that was made, and what its results are like."""

    def __init__(self, context: Context, head: Head[Any], batch: Batch[Any], result: Result[Any]) -> None:
        self.context, self.rows, self.function = context, batch.rows, _c.sample_by_address(context._library)
        self.head, self.batch, self.result = head.struct, batch.struct, result._struct(batch)
        self.addresses = [ctypes.addressof(struct) for struct in (self.head, self.batch, self.result)]
        self.of_torch = is_tensor(result.tokens)
        self.empty_like = _module(self.of_torch).empty_like
        self.arrays = [(name, self.empty_like(array)) for name, array in result.arrays().items()]  # like its results
        self.about = result._top, result.logits_mode, result._tokens
        self.numbers: list[tuple[str, Any]] = []  # those that the structures have

    def draw(self, call: Call) -> Result[Any]:
        """Draws to new arrays. An entry whose call has failed is not to be used again."""
        self.head.data, self.batch.hidden = call.data_at, call.hidden_at
        for name, at in call.pointers:
            setattr(*_place(self.head, self.batch, name), at)
        if call.numbers != self.numbers:
            for name, value in call.numbers:
                self._set_number(name, value)
            self.numbers = call.numbers
        if call.seed is not None:
            self.batch.seed_all = call.seed
        made, empty_like = {}, self.empty_like
        for name, like in self.arrays:
            made[name] = array = empty_like(like)
            setattr(self.result, name, array.data_ptr() if self.of_torch else array.__array_interface__["data"][0])
        self.context._call(self.function, *self.addresses)
        return Result._of(made, *self.about)

    def _set_number(self, name: str, value: Any) -> None:
        found = integer(value, _INTEGERS[name], name) if name in _INTEGERS else number(value, name)
        setattr(*self.batch.place(name, False), found)


def keep(entries: dict[Any, Entry], call: Call, context: Context, head: Head[Any], batch: Batch[Any],
         result: Result[Any]) -> None:
    """Makes an entry of a call, behind the others, and drops what was not used for longest. A call has none if an array
    of it was converted: that has to be done anew each time."""
    if all(getattr(*_place(head.struct, batch.struct, name)) == at for name, at in call.pointers):
        entries[call.key] = Entry(context, head, batch, result)
        if len(entries) > MOST:
            del entries[next(iter(entries))]
