"""Operators of torch: torch.ops.flashsampling.sample and its kin, for torch.compile and CUDA graphs.

    import flashsampling.torch

    tokens = flashsampling.torch.sample(hidden, weight, temperature=temperatures, seed=seeds, position=positions)

`sample` and `sample_logits` here take numbers or tensors and call the operators, which are registered when this module
is imported:

    sample, sample_logits                     -> tokens [B] int64, [B, n] where samples=n is given
    sample_logprob, sample_logits_logprob     -> tokens, logprob float32 of the same shape, status [B] int32

Each has an overload that takes tensors by row alone, and one with all rules, `rules`: torch looks for every argument of
a schema in every call, 0.1 us each. They have fake kernels, change none of their arguments, allocate their results with
torch and are queued on its current stream. Rules that are not here are those of flashsampling.Sampler.

What they refuse is a RuntimeError, as it is of torch's own. On the CPU so is a row that lacks a token, unless
`raise_error=False` asks for -1 in its place. On CUDA such a row always gets -1: an operator only queues its call, in
graphs and in compiled code too, and nobody waits for the device. Where tokens index an embedding, ask for statuses
(`sample_logprob`) or look for -1.

The kernels are in C where the library for that is there (_native.py), otherwise those below.
"""
from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import partial
from numbers import Complex, Real
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from . import _c, _native
from ._arrays import LIMITS, check_plain, device_values, integer, no_integer, numpy, real, torch_dtype, words_of
from ._call import floats
from ._context import context_for, make_room
from ._numbers import factor, number
from ._rows import RowError, check_on_error
from ._rules import TENSOR_RULES, OnError, TensorRules, check_names
from ._sample import check_seed, fresh_seed, generation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._rules import offer_tensor_rules

__all__ = ["sample", "sample_logits"]

# src/python/torch_ops.c has these orders too.
_ROWS = ("Tensor? temperature=None, Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, Tensor? seed=None, "
         "Tensor? position=None")
_BY_ROW = frozenset(("temperature", "top_k", "top_p", "min_p", "seed", "position"))
_RULES = (", Tensor? slot=None, Tensor? allow=None, Tensor? allow_index=None, "
          "float temperature_all=1.0, SymInt top_k_all=0, float top_p_all=1.0, float min_p_all=0.0, "
          "SymInt seed_all=0, SymInt position_all=0, SymInt? samples=None, int flags=0, SymInt vocab=0, "
          'str round_to="f32", float scale=1.0, float softcap=0.0, float post_scale=1.0, bool raise_error=True')
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_ITEM = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
_SLOTS = {torch.int32: _c.DTYPES["i32"], torch.int64: _c.DTYPES["i64"]}
_WORDS = (torch.int32, torch.uint32)
_FLOATS, _INTS, _LONGS = (torch.float32,), (torch.int32,), (torch.int64, torch.uint64)


class _Call:
    """One thread's context and structures for one device. Every call writes all the members that calls use."""

    def __init__(self, device: torch.device) -> None:
        self.context = context_for(str(device))
        self.head = _c.HeadStruct(size=ctypes.sizeof(_c.HeadStruct))
        self.batch = _c.BatchStruct(fallback_token=-1)
        self.rules = self.batch.own_rules
        self.result = _c.ResultStruct(size=ctypes.sizeof(_c.ResultStruct), tokens_dtype=_c.DTYPES["i64"])
        self._function = _c.sample_by_address(self.context._library)
        self.numbers: tuple[Any, ...] | None = None  # what _set_numbers has set
        self.chooses = False  # whether the last call had slots or masks
        self.known: tuple[Any, ...] | None = None  # what the head's structure was made from
        self.on_host = device.type == "cpu"
        self.statuses: Any = None  # [rows] in host memory, of calls that are not asked for them
        self.statuses_at: int | None = None
        self.count_nonzero = numpy().count_nonzero
        structs = self.head, self.batch, self.result
        self._arguments = (self.context._handle().value, *map(ctypes.addressof, structs))

    def run(self) -> None:
        if self.context._current_stream is not None:
            self.context._follow()
        status = self._function(*self._arguments)
        if status == _c.STATUS_MEMORY and self.context._make_room():
            status = self._function(*self._arguments)
        if status:
            self.context._check(status)

    def check_rows(self, statuses: Any) -> None:
        """RuntimeError if a row lacks a token."""
        if self.count_nonzero(statuses) and (statuses & _c.LACKS_TOKEN).any():
            raise RuntimeError(str(RowError(statuses.tolist(), None)))


_calls = threading.local()


def _call(device: torch.device) -> _Call:
    if getattr(_calls, "generation", None) != generation():
        _calls.generation, _calls.made = generation(), {}
    call: _Call | None = _calls.made.get(device)
    if call is None:
        call = _calls.made[device] = _Call(device)
    return call


def _refuse(value: Tensor, name: str, dtypes: tuple[torch.dtype, ...], shape: str, device: torch.device) -> Exception:
    found = "%s%s on %s, strides %s" % (value.dtype, list(value.shape), value.device, list(value.stride()))
    wanted = "%s%s on %s, packed" % (" or ".join(map(str, dtypes)), shape, device)
    return RuntimeError("%s: %s; expected %s" % (name, found.replace("torch.", ""), wanted.replace("torch.", "")))


def _vector(value: Tensor, name: str, dtypes: tuple[torch.dtype, ...], length: int, device: torch.device) -> int:
    """The address of a packed tensor [length]."""
    good = value.dtype in dtypes and value.device == device and value.shape == (length,) and value.is_contiguous()
    if not good:
        raise _refuse(value, name, dtypes, "[%d]" % length, device)
    return value.data_ptr()


def _rows(value: Tensor, name: str, device: torch.device, columns: int | None = None) -> int:
    """Checks a matrix whose rows may be apart; returns their stride in bytes, 0 = packed."""
    good = value.dim() == 2 and value.dtype in _DTYPES and value.device == device
    if not good or columns is not None and value.shape[1] != columns or value.shape[1] > 1 and value.stride(1) != 1:
        raise _refuse(value, name, tuple(_DTYPES), "[rows, %s]" % (columns or "columns"), device)
    if value.is_contiguous():
        return 0
    stride = value.stride(0) * _ITEM[value.dtype]
    if stride == 0:  # expanded: 0 would be taken for packed
        raise _refuse(value, name, tuple(_DTYPES), "[rows, %s]" % (columns or "columns"), device)
    return stride


def _checked(check: Callable[[float, str], float], value: float, name: str) -> float:
    """A number that holds for all rows; what is refused is torch's kind of error."""
    try:
        return check(value, name)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def _set_head(call: _Call, data: Tensor, kind: int, about: tuple[Any, ...]) -> None:
    """Weights are the same from call to call, and looking at them again is most of an operator's time."""
    found = data.data_ptr(), data.dtype, data.shape, data.stride(), kind, about
    if found == call.known:
        return
    head = call.head
    call.known = None
    head.stride = _rows(data, "logits" if kind else "weight", data.device)
    head.kind, head.dtype, head.data, head.rows = kind, _DTYPES[data.dtype], data.data_ptr(), data.shape[kind]
    head.dim = 0 if kind else data.shape[1]
    head.vocab, round_to, scale, head.softcap, post_scale = about
    head.scale, head.post_scale = _checked(factor, scale, "scale"), _checked(factor, post_scale, "post_scale")
    if round_to not in _c.ROUNDS:
        raise RuntimeError("round_to %r: expected one of %s" % (round_to, ", ".join(_c.ROUNDS)))
    head.round_to = _c.ROUNDS[round_to]
    call.known = found


def _draw(kind: int, results: int, hidden: Tensor | None, data: Tensor, bias: Tensor | None = None, *,
          temperature: Tensor | None = None, top_k: Tensor | None = None, top_p: Tensor | None = None,
          min_p: Tensor | None = None, seed: Tensor | None = None, position: Tensor | None = None,
          slot: Tensor | None = None, allow: Tensor | None = None, allow_index: Tensor | None = None,
          temperature_all: float = 1.0, top_k_all: int = 0, top_p_all: float = 1.0, min_p_all: float = 0.0,
          seed_all: int = 0, position_all: int = 0, samples: int | None = None, flags: int = 0, vocab: int = 0,
          round_to: str = "f32", scale: float = 1.0, softcap: float = 0.0, post_scale: float = 1.0,
          raise_error: bool = True) -> Any:
    device = data.device
    call = _call(device)
    head, batch, result, rules = call.head, call.batch, call.result, call.rules
    _set_head(call, data, kind, (vocab, round_to, scale, softcap, post_scale))
    head.bias = None if bias is None else _vector(bias, "bias", _FLOATS, head.rows, device)
    rows = data.shape[0]
    if hidden is not None:
        batch.hidden_stride = _rows(hidden, "hidden", device, data.shape[1])
        batch.hidden, batch.hidden_dtype = hidden.data_ptr(), _DTYPES[hidden.dtype]
        rows = hidden.shape[0]
    slots = rows
    if slot is not None:
        arrays = [value for value in (temperature, top_k, top_p, min_p, seed) if value is not None]
        slots = arrays[0].numel() if arrays else 2**31 - 1  # without arrays there are as many as anybody names
    shape = _shape(rows, samples)
    numbers = (rows, slots, 1 if samples is None else samples, flags, temperature_all, top_k_all, top_p_all,
               min_p_all, seed_all)
    if numbers != call.numbers:
        _set_numbers(call, *numbers)
    batch.position_all = position_all
    rules.temperature.per_slot = (None if temperature is None else
                                  _vector(temperature, "temperature", _FLOATS, slots, device))
    rules.top_k.per_slot = None if top_k is None else _vector(top_k, "top_k", _INTS, slots, device)
    rules.top_p.per_slot = None if top_p is None else _vector(top_p, "top_p", _FLOATS, slots, device)
    rules.min_p.per_slot = None if min_p is None else _vector(min_p, "min_p", _FLOATS, slots, device)
    batch.seed = None if seed is None else _vector(seed, "seed", _LONGS, slots, device)
    batch.position = None if position is None else _vector(position, "position", _LONGS, rows, device)
    if call.chooses or slot is not None or allow is not None or allow_index is not None:
        _set_rows(call, slot, allow, allow_index, rows, vocab or head.rows, device)
    tokens = torch.empty(shape, dtype=torch.int64, device=device)
    result.tokens = tokens.data_ptr()
    raise_error = raise_error and call.on_host
    if results == 1:
        result.logprob, result.status = None, call.statuses_at if raise_error else None
        call.run()
        if raise_error:
            call.check_rows(call.statuses)
        return tokens
    logprob = torch.empty(shape, dtype=torch.float32, device=device)
    status = torch.empty((rows,), dtype=torch.int32, device=device)
    result.logprob, result.status = logprob.data_ptr(), status.data_ptr()
    call.run()
    if raise_error:
        call.check_rows(status.numpy())
    return tokens, logprob, status


def _set_numbers(call: _Call, rows: int, slots: int, samples: int, flags: int, temperature: float, top_k: int,
                 top_p: float, min_p: float, seed: int) -> None:
    """What seldom changes from call to call."""
    batch, rules = call.batch, call.rules
    call.numbers = None
    if not 1 <= samples <= 1024:
        raise RuntimeError("argument: samples is %d, must be 1 to 1024" % samples)
    batch.rows, batch.slots, batch.samples, batch.flags = rows, slots, samples, flags
    rules.temperature.value = _checked(number, temperature, "temperature")
    rules.top_p.value = _checked(number, top_p, "top_p")
    rules.min_p.value, batch.seed_all = _checked(number, min_p, "min_p"), seed
    call.statuses = numpy().empty(rows, "u4")
    call.statuses_at = call.statuses.ctypes.data
    rules.top_k.value = top_k if 0 <= top_k < 2**31 else 0  # off, as what no vocabulary reaches
    call.numbers = (rows, slots, samples, flags, temperature, top_k, top_p, min_p, seed)


def _set_rows(call: _Call, slot: Tensor | None, allow: Tensor | None, index: Tensor | None, rows: int, vocab: int,
              device: torch.device) -> None:
    """Slots and masks, which most calls have none of."""
    batch, call.chooses = call.batch, True  # also if one of them is refused: the next call has to clear the others
    batch.slot = batch.allow = batch.allow_index = None
    batch.allow_stride = batch.allow_count = 0
    if slot is not None:
        batch.slot, batch.slot_dtype = _vector(slot, "slot", tuple(_SLOTS), rows, device), _SLOTS[slot.dtype]
    if allow is not None:
        _set_masks(batch, allow, index, rows, vocab, device)
    elif index is not None:
        raise RuntimeError("allow_index: given without allow")
    call.chooses = slot is not None or allow is not None


def _set_masks(batch: _c.BatchStruct, allow: Tensor, index: Tensor | None, rows: int, vocab: int,
               device: torch.device) -> None:
    batch.allow_index = None if index is None else _vector(index, "allow_index", _INTS, rows, device)
    words, least = (vocab + 31) // 32, rows if index is None else 0
    good = allow.dim() == 2 and allow.dtype in _WORDS and allow.device == device and allow.stride(1) == 1
    if not good or allow.shape[0] < least or allow.shape[1] < words or 1 < allow.shape[0] and allow.stride(0) < words:
        raise _refuse(allow, "allow", _WORDS, "[%d or more, %d or more]" % (least, words), device)
    batch.allow, batch.allow_stride, batch.allow_count = allow.data_ptr(), allow.stride(0) * 4, allow.shape[0]


# -------------------------------------------------------------------------------------------------- the operators ----


def _sample_logits(results: int, logits: Tensor, bias: Tensor | None = None, **rules: Any) -> Any:
    return _draw(1, results, None, logits, bias, **rules)


def _shape(rows: int, samples: int | None) -> tuple[int, ...]:
    """Of tokens: [B] where `samples` was not given."""
    return (rows,) if samples is None else (rows, samples)


def _fake(source: Tensor, *_: Any, samples: int | None = None, **__: Any) -> Tensor:
    return source.new_empty(_shape(source.shape[0], samples), dtype=torch.int64)


def _fake_logprob(source: Tensor, *_: Any, samples: int | None = None, **__: Any) -> tuple[Tensor, ...]:
    shape = _shape(source.shape[0], samples)
    return (source.new_empty(shape, dtype=torch.int64), source.new_empty(shape, dtype=torch.float32),
            source.new_empty(shape[:1], dtype=torch.int32))


_native_libraries: dict[int, _native.Library] = {}


@_native.FindFunction
def _find_library(cuda: int) -> int:
    """The library for the CPU or for CUDA, loaded when an operator first needs it."""
    found = _native_libraries.setdefault(cuda, _native.described("cuda" if cuda else "cpu"))
    return ctypes.addressof(found)


@_native.RoomFunction
def _make_room(device: int) -> int:
    return make_room(device)


@_native.TextFunction
def _rows_text(statuses: Any, rows: int, text: int, size: int) -> None:
    found = str(RowError(statuses[:rows], None)).encode()[: size - 1] + b"\0"
    ctypes.memmove(text, found, len(found))


def _in_c() -> Callable[[str], None] | None:
    """A function that gives an operator its kernels in C; None where they cannot be had."""
    lib = _native.library()
    if lib is None:
        return None
    missing = lib.fs_python_torch_open(_find_library, _make_room, _rows_text)
    if missing:
        if os.environ.get("FLASHSAMPLING_CALLS") == "native":
            raise ImportError("FLASHSAMPLING_CALLS=native: this torch has no %s" % missing.decode())
        return None

    def register(name: str) -> None:
        failed = lib.fs_python_torch_register(name.encode())
        if failed:
            raise ImportError("%s: %s failed" % (name, failed.decode()))

    return register


def _register(library: torch.library.Library, register: Callable[[str], None] | None) -> None:
    """Defines the operators, with the kernels that `register` gives them, or those above."""
    # Rows may be apart, but the elements of one are neighbours: a compiler is not to change how inputs lie.
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for name, sources, kernel in (("sample", "Tensor hidden, Tensor weight", partial(_draw, 0, 1)),
                                  ("sample_logprob", "Tensor hidden, Tensor weight", partial(_draw, 0, 3)),
                                  ("sample_logits", "Tensor logits", partial(_sample_logits, 1)),
                                  ("sample_logits_logprob", "Tensor logits", partial(_sample_logits, 3))):
        several = name.endswith("_logprob")
        returns = "(Tensor, Tensor, Tensor)" if several else "Tensor"
        # In this order: torch takes the first that the arguments fit.
        for full, rules in ((name, _ROWS), (name + ".rules", _ROWS + _RULES)):
            library.define("%s(%s, Tensor? bias=None, *, %s) -> %s" % (full, sources, rules, returns),
                           tags=(torch.Tag.pt2_compliant_tag, strides))
            if register:
                register(full)
            else:
                for key in ("CPU", "CUDA"):
                    library.impl(full, kernel, key)
            # Nothing here has a gradient. Without this torch's own fallback marks logprobs as if they had one.
            library.impl(full, torch.library.fallthrough_kernel, "Autograd")
            torch.library.register_fake(library.ns + "::" + full, _fake_logprob if several else _fake, lib=library)


_library = torch.library.Library("flashsampling", "DEF")
_register(_library, _in_c())


def _overload(operator: Any, rules: dict[str, Any]) -> Any:
    """The one that has these keywords: torch itself tries all, by an exception each, 8 us."""
    return operator.default if all(name in _BY_ROW for name in rules) else operator.rules


def _operands(sources: dict[str, Tensor], seed: int | Tensor | None, given: TensorRules) -> dict[str, Any]:
    """Keywords of an operator: what is a number goes where numbers go. Without a seed every row gets one of torch's."""
    check_names(given, TENSOR_RULES, ("bias", "seed", "logprob", "on_error"))
    for name, source in sources.items():
        if not isinstance(source, Tensor):
            raise TypeError("%s: a %s, expected a tensor; flashsampling.sample takes arrays of numpy too"
                            % (name, type(source).__name__))
        if source.is_nested:  # without a shape
            check_plain(source, name)
    rows = next(iter(sources.values()))
    rules: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    generator = rules.pop("generator", None)
    check_seed(seed, generator)
    if seed is None and isinstance(generator, torch.Generator):
        seed = torch.randint(0, 2**63 - 1, (rows.shape[0],), generator=generator, device=generator.device)
        seed = seed.to(rows.device)
    elif seed is None and generator is not None:
        seed = fresh_seed(rows, generator)
    elif seed is None:
        seed = torch.randint(0, 2**63 - 1, (rows.shape[0],), device=rows.device)
    if not isinstance(seed, Tensor) and (isinstance(seed, float) or not 0 <= seed < 2**64):
        raise no_integer(seed, "u64", "seed")
    rules["seed"] = seed if isinstance(seed, Tensor) else (seed + 2**63) % 2**64 - 2**63
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position"):
        if name in rules and not isinstance(rules[name], Tensor):
            value = rules.pop(name)
            if type(value) not in (int, float) and isinstance(value, Complex) and not isinstance(value, Real):
                # torch would drop a part of it
                raise TypeError("%s: %r, expected a real number" % (name, value))
            rules[name + "_all"] = value
    for name, dtype in _READ_AS.items():
        if name in rules:
            one = "slot" not in rules and name != "seed"  # a seed for all rows would be spread, and so has to be known
            rules[name] = _read_as(rules[name], dtype, rows.shape[0] if one else None)
    if "allow" in rules and rules["allow"].dtype is torch.bool:
        vocab = rules.get("vocab") or (sources["weight"].shape[0] if "weight" in sources else rows.shape[-1])
        rules["allow"] = words_of(rules["allow"], "allow", vocab, False)[0]
    return rules


_READ_AS = {"temperature": "f32", "top_p": "f32", "min_p": "f32", "top_k": "i32", "seed": "i64", "position": "i64",
            "allow_index": "i32"}


def _read_as(value: Tensor, dtype: str, rows: int | None) -> Tensor:
    """A rule as the operators read it: packed, of this type, and a tensor without dimensions as one value for all rows.
    Most are so already."""
    if value.dim() == 0 and rows is not None:
        value = value.expand(rows)
    if value.dtype is torch_dtype(dtype) and value.is_contiguous():
        return value
    return device_values(value, dtype) if value.layout is torch.strided and not value.is_quantized else value


def _refused(sources: dict[str, Tensor], keywords: dict[str, Any]) -> Exception | None:
    """The error that flashsampling.sample raises for these tensors and numbers, which says what to do; None where the
    operator's own has to do."""
    try:
        for name, source in sources.items():
            floats(source, name, None, "")
        for name, dtype in _READ_AS.items():
            if dtype in LIMITS and name in keywords and keywords[name].is_floating_point():
                raise TypeError("%s: tensor of type %s, expected integers. A copy is made by long()"
                                % (name, str(keywords[name].dtype).split(".")[-1]))
            value = keywords.get(name + "_all", 0)
            integer(value, dtype, name) if dtype in LIMITS else real(value, name)
    except (TypeError, ValueError) as error:
        return error
    return None


def _called(operator: Any, full: Any, arguments: dict[str, Tensor], bias: Tensor | None, on_error: OnError,
            keywords: dict[str, Any]) -> Any:
    """Returns the operator's results, or raises RowError. `full` is the operator that also returns statuses."""
    sources: tuple[Any, ...] = (*arguments.values(), bias)
    if on_error is not None:
        check_on_error(on_error)
        if on_error == "status":
            keywords["raise_error"] = False
    if torch.compiler.is_compiling():
        return _overload(operator, keywords)(*sources, **keywords)
    try:
        found = _overload(operator, keywords)(*sources, **keywords)
        if on_error != "raise" or not sources[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return found
    except RuntimeError as error:
        if "lack a token" not in str(error):
            raise _refused(arguments, keywords) or error from None
    # The same call once more, with statuses: equal seeds draw equal tokens.
    keywords["raise_error"] = False
    results = _overload(full, keywords)(*sources, **keywords)
    found, statuses = results if operator is full else results[0], results[2]
    if (statuses & _c.LACKS_TOKEN).any():
        raise RowError(statuses.tolist(), found)
    return found


@overload
def sample(hidden: Tensor, weight: Tensor, *, bias: Tensor | None = None, seed: int | Tensor | None = None,
           logprob: Literal[False] = False, on_error: OnError = None, **rules: Unpack[TensorRules]) -> Tensor:
    return offer_tensor_rules(**rules)  # for editors alone, as all of an overload is


@overload
def sample(hidden: Tensor, weight: Tensor, *, logprob: Literal[True], bias: Tensor | None = ...,
           seed: int | Tensor | None = ..., on_error: OnError = ..., **rules: Unpack[TensorRules]
           ) -> tuple[Tensor, Tensor, Tensor]: ...


def sample(hidden: Tensor, weight: Tensor, *, bias: Tensor | None = None, seed: int | Tensor | None = None,
           logprob: bool = False, on_error: OnError = None, **rules: Unpack[TensorRules]) -> Any:
    """Tokens [B] int64 drawn from softmax(hidden @ weight.T); with logprob=True also logprob [B] of the raw logits and
    status [B]. With samples=n tokens and logprob are [B, n].

    temperature, top_k, top_p, min_p, position: numbers, or tensors by row; with `slot` [B] the first four and seed are
    by slot. The operators read float32, int32 for top_k and int64 for seed and position; other floats and integers are
    converted by value, without waiting for the device. seed: None takes seeds from `generator`, or from torch's
    generator of the device, also under torch.compile; a number is spread over rows; a tensor int64 is used as it is, a
    negative value for its 64 bits. samples, flags, vocab, round_to, scale, softcap, post_scale, allow [masks, words]
    int32 or [masks, V] bool, which is packed in every call, allow_index [B]: as in flashsampling.Head and Batch.

    on_error="raise" raises RowError, whose `result` is what would be returned, if a row lacks a token. "status" leaves
    such a row with the token -1. None, the default, raises on the CPU and not on CUDA, where "raise" waits for the
    device. Compiled code on the CPU raises a RuntimeError in its place. Compiled code on CUDA and CUDA graphs cannot
    raise: there the token is -1, which is no index, and the caller looks for it.
    """
    arguments = {"hidden": hidden, "weight": weight}
    keywords = _operands(arguments, seed, rules)
    ops = torch.ops.flashsampling
    return _called(ops.sample_logprob if logprob else ops.sample, ops.sample_logprob, arguments, bias, on_error,
                   keywords)


@overload
def sample_logits(logits: Tensor, *, bias: Tensor | None = None, seed: int | Tensor | None = None,
                  logprob: Literal[False] = False, on_error: OnError = None, **rules: Unpack[TensorRules]) -> Tensor:
    return offer_tensor_rules(**rules)


@overload
def sample_logits(logits: Tensor, *, logprob: Literal[True], bias: Tensor | None = ...,
                  seed: int | Tensor | None = ..., on_error: OnError = ..., **rules: Unpack[TensorRules]
                  ) -> tuple[Tensor, Tensor, Tensor]: ...


def sample_logits(logits: Tensor, *, bias: Tensor | None = None, seed: int | Tensor | None = None,
                  logprob: bool = False, on_error: OnError = None, **rules: Unpack[TensorRules]) -> Any:
    """`sample` from stored logits [B, V]."""
    arguments = {"logits": logits}
    keywords = _operands(arguments, seed, rules)
    ops = torch.ops.flashsampling
    return _called(ops.sample_logits_logprob if logprob else ops.sample_logits, ops.sample_logits_logprob, arguments,
                   bias, on_error, keywords)
