"""A call that is prepared once and made every step: Sampler."""
from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from . import _c, _native
from ._arrays import (FLOATS, TYPESTR, Local, Pointer, as_pointer, converted, integer, is_scalar, is_tensor, numpy,
                      same_memory, torch_dtype)
from ._call import Batch, Head, Result, check_penalties
from ._context import Context, context_for
from ._rows import RowError, check_rows, raises
from ._rules import (RULES, Dtype, Generator, Integers, Kind, LogitsMode, OnError, Outputs, Rules, TokenDtype,
                     check_names)
from ._sample import check_seed, fresh_seed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._rules import offer_rules

_CALL = ("rows", "hidden_dtype", "outputs", "top", "logits_mode", "tokens", "context", "on_error", "generator")


def _tensor_address(like: Any, dtype: str) -> Callable[[Any], int | None]:
    """A function: the address of a packed tensor of this type on the device of `like`, None for everything else."""
    import torch

    tensor, wanted, device = torch.Tensor, torch_dtype(dtype), like.device

    def address(value: Any) -> int | None:
        try:
            good = type(value) is tensor and value.dtype is wanted and value.is_contiguous() and value.device == device
            return value.data_ptr() if good and not value.is_nested and not value.is_neg() else None
        except RuntimeError:  # a layout that is not strided
            return None

    return address


def _array_address(dtype: str) -> Callable[[Any], int | None]:
    """The same for numpy's arrays. Asking one for its address takes longer than all the rest, so the last is kept: as
    long as somebody holds it, an array stays where it is."""
    np = numpy()
    array, wanted = np.ndarray, np.dtype(TYPESTR[dtype])
    last: Any = None
    place: int | None = None

    def address(value: Any) -> int | None:
        nonlocal last, place
        if value is not last:
            if not (type(value) is array and value.dtype == wanted and value.flags.c_contiguous):
                return None
            last, place = value, value.__array_interface__["data"][0]
        return place

    return address


class Sampler(Local, Generic[Kind]):
    """Draws from one head, step after step, for up to `rows` rows.

        sampler = Sampler(head, rows=64, temperature=temperatures, top_p=0.95, outputs=["logprob"])
        tokens = sampler(hidden).tokens

    Structures are filled and results allocated here, once; a call exchanges pointers. Arrays of rules are used as they
    lie: what is written to them between calls counts, and one that would have to be converted is refused. Arrays by row
    (slot, position, allow_index, score_tokens, edits, watch) are for `rows` rows; a call reads as many as it has.

    The head is of weights, and calls get hidden states [B, D]; or of stored logits, any array of their type and width
    for an example, and calls get logits [B, V]. hidden_dtype is "f32", "f16" or "bf16", by default that of the head.
    outputs, top, logits_mode, tokens: as in `sample`, and so are the shapes of results: [B], or [B, n] where samples=n
    is given. seed: None takes 64 fresh bits here, of generator (torch's or numpy's) if it is given.

    A Sampler serves one thread at a time, with a context of its own unless it is given one. On CUDA calls go to torch's
    current stream and can be captured in a graph; a graph repeats a position that is a number, so give it as an array.

    on_error: what becomes of rows that lack a token, as in Context.sample. None, the default, raises RowError on the
    CPU. On CUDA, in graphs too, such a row has the token -1 and its status, and `check` of the result tells; "raise"
    waits for the device in every call, outside of captures.
    """

    head: Head[Kind]
    batch: Batch[Kind]
    _result: Result[Kind]
    _function: Any

    def __init__(self, head: Head[Kind], rows: int, *, hidden_dtype: Dtype | None = None, outputs: Outputs = (),
                 top: int = 0, logits_mode: LogitsMode = "raw", tokens: TokenDtype = "i64",
                 context: Context | None = None, on_error: OnError = None, generator: Generator = None,
                 **rules: Unpack[Rules]) -> None:
        if TYPE_CHECKING:
            offer_rules(**rules)
        check_names(rules, RULES, _CALL)
        check_seed(rules.get("seed"), generator)
        self._generator = generator
        if not isinstance(head, Head):
            raise TypeError("head: a %s, expected a Head" % type(head).__name__)
        self.rows = integer(rows, "i64", "rows")
        if not 1 <= self.rows <= 1 << 20:
            raise ValueError("rows: %d, expected 1 to %d" % (self.rows, 1 << 20))
        self.context = context or context_for(head.data.device)
        self._busy = self.context._busy
        same_memory(self.context.device, head.data, "head")
        self._of_weights = head.kind == "weights"
        dtype = hidden_dtype if hidden_dtype and self._of_weights else head.data.dtype
        if dtype not in FLOATS:
            raise ValueError("hidden_dtype %r: expected one of %s" % (dtype, ", ".join(FLOATS)))
        like = head.data.keep if is_tensor(head.data.keep) else None
        self._weights, self._place = like.data_ptr if like is not None and self._of_weights else None, head.data.address
        # Stands for what calls will bring.
        self._input = Pointer(0, [self.rows, head.data.shape[1]], dtype, device=head.data.device)
        self._input.keep = like
        self._address = _array_address(dtype) if like is None else _tensor_address(like, dtype)
        self.head = copy.copy(head)
        if not self._of_weights:
            self.head.data = self._input
        self._prepared = _native.Prepared(rows=-1, columns=self._input.shape[1], locked=self._busy.locked)
        if self._weights is not None:
            self._prepared.weights, self._prepared.place = like, self._place
        self._native = None
        self._raises, on_host = raises(on_error, self.context.device), self.context.device == "cpu"
        if like is not None and not self.context._parallel_for and (on_host or not self._raises):
            self._native = _native.prepare(self._prepared, like, dtype, self.context.device)
        self._asked: dict[str, Any] = {"outputs": outputs, "top": top, "logits_mode": logits_mode, "tokens": tokens}
        self._rules: dict[str, Any] = {}
        given: Rules = {"seed": None, **rules}
        self.set(**given)

    def __repr__(self) -> str:
        return "<flashsampling.Sampler %d rows, %s>" % (self.rows, self.head.text)

    @property
    def position(self) -> int:
        """Of the next call that is given none."""
        return int(self._prepared.position)

    @position.setter
    def position(self, value: int) -> None:
        self._prepared.position = integer(value, "u64", "position")

    def set(self, **changes: Unpack[Rules]) -> None:
        """Exchanges rules; those not named stay, None takes one away, but for seed, of which it makes a fresh one.
        Results of calls that follow are new arrays."""
        if TYPE_CHECKING:
            offer_rules(**changes)
        check_names(changes, RULES)
        rules: Any = {**self._rules, **changes}
        if rules["seed"] is None:
            rules["seed"] = fresh_seed(self._input.keep, self._generator)
        check_seed(changes.get("seed"))
        rules = {name: value for name, value in rules.items() if value is not None}
        position = self.position
        if is_scalar(rules.get("position")):
            position = integer(rules.pop("position"), "u64", "position")
        batch: Batch[Kind] = Batch(self.head, self._input if self._of_weights else None, in_place=True, **rules)
        check_penalties(rules)
        result = Result(batch, flat="samples" not in rules, **self._asked)
        written = result._struct(batch)
        structs: tuple[Any, ...] = self.head.struct, batch.struct, written
        if self._busy.locked():  # a call of another thread reads the structures that go
            raise self.context._in_use()
        with self._busy:
            if self.context._in_c.value:
                raise self.context._in_use()
            p = self._prepared
            p.rows = -1
            self._function = _c.sample_by_address(self.context._library)
            self._arguments = (self.context._handle().value, *map(ctypes.addressof, structs))
            self.batch, self._rules, self._result, p.position = batch, rules, result, position
            self._written = written  # lives as long as calls write to what it points to
            self._statuses = written.status if self._raises else None
            self._results: dict[Any, Result[Kind]] = {}  # by the shape of what is drawn from
            # Whose rows the structures have, None if they are not packed; what they point to beside the rules.
            self._last: Result[Kind] | None = None
            self._kept: Pointer | None = None
            self._positions: Pointer | None = None
            p.context, p.head, p.batch, p.result = self._arguments
            p.input = p.batch + _c.BatchStruct.hidden.offset if self._of_weights else p.head + _c.HeadStruct.data.offset
            p.position_at = None if "position" in rules else p.batch + _c.BatchStruct.position_all.offset
            p.status = self._statuses
            p.in_c, p.stream_now = map(ctypes.addressof, (self.context._in_c, self.context._stream_now))
            p.sample = _native.address(self.context._library.fs_sample)
            p.set_stream = _native.address(self.context._library.fs_context_set_stream)

    def __call__(self, hidden: Kind | Pointer, position: Integers = None) -> Result[Kind]:
        """Draws every row of hidden [B, D] (or of stored logits [B, V]), B up to `rows`, and returns a Result: views of
        the sampler's own arrays, which the next call writes again.

        position is a number, or an array [B]; None is one more than the last (0 at first), or, if the sampler was given
        an array of positions, what is in it. A call that fails or is interrupted leaves the position to the next one;
        one that ends by RowError has drawn its other rows and counts.
        """
        if position is None and self._native is not None:
            result: Result[Kind] | None = self._native(hidden)
            if result is not None:
                return result
        return self._look(hidden, position)

    def _look(self, hidden: Any, position: Any) -> Result[Kind]:
        """A call that C has not made."""
        busy, context = self._busy, self.context
        if busy.locked():
            raise context._in_use()
        with busy:
            if context.closed or context._in_c.value:
                raise context._in_use()
            result = self._exchange(hidden, position)
            status = self._function(*self._arguments)
            if status == _c.STATUS_MEMORY and context._make_room():
                status = self._function(*self._arguments)
            if status or context._parallel_for:
                context._check(status)
            batch, found = self.batch.struct, None
            try:
                if self._statuses is not None:
                    check_rows(context, self._statuses, batch.rows, result)
            except RowError as error:  # the other rows are drawn, so the call counts
                found = error
            if self._positions is None and "position" not in self._rules:
                self._prepared.position = batch.position_all + 1  # 2^64 is 0
            if found:
                raise found
        return result

    def _exchange(self, hidden: Any, position: Any) -> Result[Kind]:
        """Points the structures to what a call was given, from where C may go on with the next one."""
        prepared, batch, context = self._prepared, self.batch.struct, self.context
        if self._native is not None:
            prepared.rows = -1
        address = self._address(hidden)
        result = None if address is None else self._results.get(hidden.shape)
        if result is None:
            result = self._take(hidden)
        elif result is self._last and self._of_weights:
            batch.hidden = address
        else:
            self._last = None  # an interrupt may come in between
            self._set_rows(address, hidden.shape[0], 0)
            self._last = result
        if self._weights is not None and self._weights() != self._place:
            self.head.data.check_place("weights")
        if position is not None or self._positions is not None:
            self._set_position(position, batch.rows)
        elif "position" not in self._rules:
            batch.position_all = prepared.position
        if context._current_stream is not None:
            context._follow()
        if self._native is not None and self._last is not None and self._positions is None:
            prepared.drawn, prepared.rows = result, batch.rows
        return result

    def _take(self, hidden: Any) -> Result[Kind]:
        """The quick way did not know what it was given: looks at all of it."""
        what = "hidden" if self._of_weights else "logits"
        pointer = as_pointer(hidden, what, self._input.dtype)
        shape, most = pointer.shape, self._input.shape
        if len(shape) != 2 or shape[1] != most[1] or shape[0] > most[0]:
            raise ValueError("%s: shape %s, expected [up to %d, %d]" % (what, list(shape), most[0], most[1]))
        same_memory(self.context.device, pointer, what)
        self._kept, self._last = pointer, None
        result = self._result if shape[0] == most[0] else self._result._first(shape[0])
        self._set_rows(pointer.address, shape[0], pointer.stride)
        if self._address(hidden) is not None:
            self._results[hidden.shape] = self._last = result
        return result

    def _set_rows(self, address: int | None, rows: int, stride: int) -> None:
        self.batch.struct.rows = rows
        if self._of_weights:
            self.batch.struct.hidden, self.batch.struct.hidden_stride = address, stride
        else:
            self.head.struct.data, self.head.struct.stride = address, stride

    def _set_position(self, position: Any, rows: int) -> None:
        """A position of this call: a number, an array, or, after an array, none."""
        batch = self.batch.struct
        if position is not None and "position" in self._rules:
            raise ValueError("position: the sampler was given an array of positions; write to it")
        if position is not None and not is_scalar(position):
            self._positions = converted(position, "u64", "position", [rows])
            same_memory(self.context.device, self._positions, "position")
            batch.position = self._positions.address
            return
        batch.position = self._positions = None
        batch.position_all = self.position if position is None else integer(position, "u64", "position")
