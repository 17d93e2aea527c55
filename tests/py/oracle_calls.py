"""A case of oracle_cases.py as a call of the shipped library: structs by ctypes, results as arrays."""
import ctypes
import os
import sys
from types import SimpleNamespace

import numpy as np

if not os.environ.get("FS_INSTALLED"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

from flashsampling import _c
from flashsampling._rules import STRUCT_RULES

GUARD = 8  # elements behind every result, which no call may write
SENTINEL = 0xA5
# A result's array: its numpy type and its length.
RESULTS = {
    "status": (np.uint32, lambda B, n, N, w: B), "max_logit": (np.float32, lambda B, n, N, w: B),
    "log_z": (np.float32, lambda B, n, N, w: B), "noisy_logit": (np.float32, lambda B, n, N, w: B * n),
    "logit": (np.float32, lambda B, n, N, w: B * n), "logprob": (np.float32, lambda B, n, N, w: B * n),
    "rank": (np.int32, lambda B, n, N, w: B * n), "top_token": (np.int32, lambda B, n, N, w: B * N),
    "top_logit": (np.float32, lambda B, n, N, w: B * N), "top_logprob": (np.float32, lambda B, n, N, w: B * N),
    "watch_logit": (np.float32, lambda B, n, N, w: w), "watch_logprob": (np.float32, lambda B, n, N, w: w),
}
TOKENS = {0: np.int32, _c.DTYPES["i32"]: np.int32, _c.DTYPES["i64"]: np.int64}
HEAD = ("kind", "dtype", "first_token", "vocab", "round_to", "scale", "softcap", "post_scale", "flags")
BATCH = ("mode", "samples", "noise", "fallback_token", "group_size", "list_capacity", "slot_dtype", "slots",
         "position_all", "allow_count", "hidden_dtype")
ARRAYS = ("slot", "position", "temperature", "top_k", "top_p", "min_p", "seed", "substream", "repetition", "frequency",
          "presence", "allow", "allow_index", "edit_offset", "edit_count", "edit_token", "edit_bias", "seen", "counts",
          "count_offset", "count_token", "count_value", "score_token", "watch_offset", "watch_token")


def address(array):
    return None if array is None else array.ctypes.data


def stride(array):
    """Bytes between lines; 0, packed, where there are fewer than two."""
    return 0 if array is None or len(array) < 2 else array.strides[0]


class Library:
    """One context, and a way to call it with cases."""

    def __init__(self, backend, threads=1, block=0):
        self.lib = _c.library()
        options = _c.OptionsStruct(size=ctypes.sizeof(_c.OptionsStruct), backend=_c.BACKENDS[backend], threads=threads,
                                   block=block)
        self.context = ctypes.c_void_p()
        status = self.lib.fs_context_create(ctypes.byref(options), ctypes.byref(self.context))
        if status:
            raise RuntimeError(self.lib.fs_error_text(None).decode())

    def close(self):
        self.lib.fs_context_destroy(self.context)

    def error(self):
        return self.lib.fs_error_text(self.context).decode()

    def head(self, case, screen=None):
        head = _c.HeadStruct(size=ctypes.sizeof(_c.HeadStruct), data=address(case.data), stride=stride(case.data),
                             rows=case.data.shape[case.kind], dim=0 if case.kind else case.data.shape[1],
                             bias=address(case.bias), screen=address(screen),
                             screen_bytes=0 if screen is None else screen.nbytes)
        for member in HEAD:
            setattr(head, member, getattr(case, member))
        return head

    def batch(self, case):
        batch = _c.BatchStruct(rows=case.rows, hidden=address(case.hidden),
                               hidden_stride=stride(case.hidden), allow_stride=stride(case.allow),
                               seen_stride=stride(case.seen), counts_stride=stride(case.counts), flags=case.batch_flags)
        for member in BATCH + ARRAYS:
            value = getattr(case, member)
            value = address(value) if member in ARRAYS else value
            if member in STRUCT_RULES:
                getattr(batch.own_rules, member).per_slot = value
            else:
                setattr(batch, member, value)
        if case.edit_count is not None:
            batch.edit_stride = case.edit_stride
        for member, value in case.all.items():
            if member in STRUCT_RULES:
                getattr(batch.own_rules, member).value = value
            else:
                setattr(batch, member + "_all", value)
        for member, value in case.limits.items():
            setattr(batch.own_limits, member, value)
        return batch

    def sample(self, case, screen=None):
        """fs_sample: its status, and its results as flat arrays."""
        head, batch = self.head(case, screen), self.batch(case)
        watched = 0 if case.watch_offset is None else int(case.watch_offset[-1])
        shape = case.rows, case.samples or 1, case.top_count, watched
        result = _c.ResultStruct(size=ctypes.sizeof(_c.ResultStruct), logits_mode=case.logits,
                                 tokens_dtype=case.tokens_dtype, top_count=case.top_count)
        kinds = {"tokens": (TOKENS[case.tokens_dtype], lambda B, n, N, w: B * n), **RESULTS}
        arrays = {}
        for name in case.wanted:
            kind, length = kinds[name]
            arrays[name] = np.full((length(*shape) + GUARD) * np.dtype(kind).itemsize, SENTINEL, np.uint8).view(kind)
            setattr(result, name, address(arrays[name]))
        status = self.lib.fs_sample(self.context, head, batch, result)
        counters = _c.CountersStruct(size=ctypes.sizeof(_c.CountersStruct))
        text = self.error() if status else ""
        self.lib.fs_context_counters(self.context, counters)
        out = SimpleNamespace(status=status, text=text, screened=counters.screened_rows)
        for name, array in arrays.items():
            if not (array[-GUARD:].view(np.uint8) == SENTINEL).all():
                out.text = f"{name} was written behind its end"
        out.results = {name: array[:-GUARD] for name, array in arrays.items()}
        return out

    def screen(self, case, bits, group=0, seed=1):
        """fs_screen_build: the bytes, 64-byte aligned."""
        options = _c.ScreenOptionsStruct(size=ctypes.sizeof(_c.ScreenOptionsStruct), format=_c.SCREENS[str(bits)],
                                         group=group, seed=seed)
        head, size = self.head(case), ctypes.c_size_t()
        status = self.lib.fs_screen_size(self.context, head, options, ctypes.byref(size))
        if status == 0:
            memory = np.empty(size.value + 64, np.uint8)
            screen = memory[-memory.ctypes.data % 64:][:size.value]
            status = self.lib.fs_screen_build(self.context, head, options, address(screen), screen.nbytes)
        if status:
            raise RuntimeError(self.error())
        return screen
