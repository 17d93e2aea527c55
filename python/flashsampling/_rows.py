"""Rows that lack a token: the exception, which calls raise it, and where they find the statuses."""
import contextlib
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
    if on_error not in (None, "raise", "status"):
        raise ValueError("on_error %r: expected \"raise\", \"status\" or None" % (on_error,))
    return on_error == "raise" or on_error is None and device == "cpu"


class _Shown:
    """Words of device memory, as torch takes them."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "<i4", "version": 3}


class Statuses:
    """The statuses [rows] that a call writes: the caller's, or memory of our own where the caller wants none."""

    def __init__(self, context: Any, c: _c.ResultStruct, rows: int) -> None:
        self.context, self.rows, self._own, self._on_host = context, rows, None, None
        self._nonzero = numpy().count_nonzero
        if not rows:
            return
        if not c.status:
            self._own = numpy().empty(rows, "u4") if context.device == "cpu" else self._empty()
            c.status = self._own.ctypes.data if context.device == "cpu" else self._own.data_ptr()
        self._address = c.status
        if context.device == "cpu":
            self._on_host = numpy().frombuffer((ctypes.c_uint32 * rows).from_address(self._address), "u4")

    def _empty(self) -> Any:
        import torch

        return torch.empty(self.rows, dtype=torch.int32, device=self.context.device)

    def _copied(self) -> Any:
        """The statuses in host memory, once the device has written them; none in a capture, where nothing may wait."""
        import torch

        with self.context.torch_stream() or contextlib.nullcontext():
            if torch.cuda.is_current_stream_capturing():
                return ()
            return torch.as_tensor(_Shown(self._address, self.rows), device=self.context.device).cpu().numpy()

    def check(self, result: Any, rows: int) -> None:
        """Raises RowError if one of the first `rows` rows lacks a token."""
        if not self.rows:
            return
        found = (self._copied() if self._on_host is None else self._on_host)[:rows]
        if self._nonzero(found) and self._nonzero(found & _c.LACKS_TOKEN):
            raise RowError(found.tolist(), result)
