"""One call for one step of an engine: its structures, which are kept, where its results go, how it is made."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from . import _c
from ._call import Head
from ._context import Context
from ._engine_head import DTYPES


class Call:
    """Structures of a call. An engine's own `set` points them to what a step has, and clears what the step before had.

    `gather` makes [ranks * n] of each rank's [n]; it is None where the head is on one rank."""

    def __init__(self, context: Context, head: Head, dtype: torch.dtype, flags: int,
                 gather: Callable[[torch.Tensor], torch.Tensor] | None, ranks: int) -> None:
        self.context, self.head, self.gather, self.ranks = context, head, gather, ranks
        self.device, self.vocab = head.data.keep.device, head.vocab
        batch = self.batch = _c.BatchStruct(samples=1, flags=flags)
        batch.fallback_token = _c.FALLBACK_TOKEN_ZERO  # engines index with it where no token is left
        batch.hidden_dtype = _c.DTYPES[DTYPES[dtype]]
        self.result = _c.ResultStruct(size=ctypes.sizeof(_c.ResultStruct), tokens_dtype=_c.DTYPES["i64"])
        self._function = _c.sample_by_address(context._library)
        structs = head.struct, batch, self.result
        self._arguments = (context._handle().value, *map(ctypes.addressof, structs))
        self._part_bytes: dict[Any, int] = {}
        self._had_logprobs = False
        self._keep: list[torch.Tensor] = []  # what the call reads, until it is queued

    def _set_logprobs(self, most: int, rows: int, name: str = "logprob", ranked: bool = True
                      ) -> tuple[torch.Tensor, ...]:
        """Where logprobs (or what `name` says) [B, 1], ranks [B] and, if asked for, the best tokens and theirs
        [B, most] go. `most` -1: nothing is asked for."""
        result = self.result
        result.logprob = result.logit = result.rank = None
        result.top_token = result.top_logit = result.top_logprob = None
        result.top_count, self._had_logprobs = max(most, 0), most >= 0
        if most < 0:
            return ()
        value = torch.empty((rows, 1), dtype=torch.float32, device=self.device)
        rank = torch.empty(rows, dtype=torch.int32, device=self.device)
        setattr(result, name, value.data_ptr())
        result.rank = rank.data_ptr() if ranked else None
        if most == 0:
            return value, rank
        ids = torch.empty((rows, most), dtype=torch.int32, device=self.device)
        values = torch.empty((rows, most), dtype=torch.float32, device=self.device)
        result.top_token = ids.data_ptr()
        setattr(result, "top_" + name, values.data_ptr())
        return value, rank, ids, values

    def run(self) -> None:
        """Makes the call that was set: on CUDA, puts it on torch's current stream."""
        if self.context._current_stream is not None:
            self.context._follow()
        if self.gather is not None:
            self._run_ranks(self.gather)
        else:
            status = self._function(*self._arguments)
            if status:
                self.context._check(status)
        self._keep = []

    def _run_ranks(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """A part of each rank's rows of the head, all parts to every rank, the same merge on each."""
        library, handle, check = self.context._library, self.context._handle(), self.context._check
        structs = [ctypes.byref(struct) for struct in (self.head.struct, self.batch, self.result)]
        key = (self.batch.rows, self.result.top_count, bool(self.result.rank), bool(self.result.logprob),
               bool(self.batch.seen), bool(self.batch.edit_token), bool(self.batch.allow))
        size = self._part_bytes.get(key)
        if size is None:
            found = ctypes.c_size_t()
            check(library.fs_partial_size(handle, *structs, ctypes.byref(found)))
            size = self._part_bytes[key] = found.value
        part = torch.empty((size + 15) // 16 * 2, dtype=torch.int64, device=self.device)
        check(library.fs_partial(handle, *structs, part.data_ptr(), size))
        parts = gather(part)
        places = [parts.data_ptr() + 8 * part.numel() * rank for rank in range(self.ranks)]
        pointers = (ctypes.c_void_p * self.ranks)(*places)
        check(library.fs_merge(handle, *structs[:2], pointers, self.ranks, structs[2]))
        self._keep.append(parts)

    def work_bytes(self) -> int:
        """Work memory of the call that was set, at most."""
        found = ctypes.c_size_t()
        structs = [ctypes.byref(struct) for struct in (self.head.struct, self.batch, self.result)]
        self.context._check(self.context._library.fs_work_size(self.context._handle(), *structs, None,
                                                             ctypes.byref(found)))
        return found.value
