"""Rows that lack a token: the exception, which calls raise it, and where they find the statuses."""
import ctypes
from collections.abc import Sequence
from typing import Any

from . import _c
from ._arrays import numpy


class RowError(ValueError):
    """Rows of a call lack a token: all their logits are NaN, a mask is empty, a rule is out of range, ...

    `row` is the first of them, `status` its bits (see Row), `count` how many there are, `result` what the call returns
    with on_error="status", where all other rows have their tokens.
    """

    __module__ = "flashsampling"  # the name under which users catch it

    def __init__(self, statuses: Sequence[int], result: Any) -> None:
        found = [(row, int(bits)) for row, bits in enumerate(statuses) if bits & _c.LACKS_TOKEN]
        texts = ["row %d: %s" % (row, _c.row_text(bits)) for row, bits in found[:8]]
        super().__init__("%d of %d rows lack a token: %s%s" % (len(found), len(statuses), "; ".join(texts),
                                                               "; ..." * (len(found) > 8)))
        (self.row, self.status), self.count, self.result = found[0], len(found), result
        self._statuses = statuses

    def __reduce__(self) -> Any:
        return RowError, (self._statuses, self.result)


def raises(on_error: str | None, device: str) -> bool:
    """Whether a call raises RowError. None: where the results are in host memory when it returns."""
    check_on_error(on_error)
    return on_error == "raise" or on_error is None and device == "cpu"


def check_on_error(on_error: str | None) -> None:
    if on_error not in (None, "raise", "status"):
        raise ValueError("on_error %r: expected \"raise\", \"status\" or None" % (on_error,))


class _Shown:
    """Words of device memory, as torch takes them."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "<i4", "version": 3}


def status_room(context: Any, c: _c.ResultStruct, rows: int) -> Any:
    """Memory for the statuses of a call whose caller wants none; to be kept until they are looked at."""
    if context.device == "cpu":
        room = numpy().empty(rows, "u4")
        c.status = room.ctypes.data
        return room
    import torch

    room = torch.empty(rows, dtype=torch.int32, device=context.device)
    c.status = room.data_ptr()
    return room


def _from_device(context: Any, address: int, rows: int) -> Any:
    """The statuses in host memory, once the device has written them; none in a capture, where nothing may wait."""
    import torch

    stream, given = torch.cuda.current_stream(context.device), context._given_stream
    if context._current_stream is None and given is not None:  # 0 and 1 are names of the default stream
        stream = (torch.cuda.ExternalStream(given, context.device) if given > 1
                  else torch.cuda.default_stream(context.device))
    with torch.cuda.stream(stream):
        if torch.cuda.is_current_stream_capturing():
            return numpy().empty(0, "i4")
        return torch.as_tensor(_Shown(address, rows), device=context.device).cpu().numpy()


def check_rows(context: Any, address: int | None, rows: int, result: Any) -> None:
    """Raises RowError if one of the rows, whose statuses are at this address, lacks a token."""
    if not rows or address is None:
        return
    if context.device == "cpu":
        words = (ctypes.c_char * (4 * rows)).from_address(address).raw
        if words == bytes(4 * rows):  # the quickest look, .5 us for a few rows
            return
        found = numpy().frombuffer(words, "u4")
    else:
        found = _from_device(context, address, rows)
    if (found & _c.LACKS_TOKEN).any():
        raise RowError(found.tolist(), result)
