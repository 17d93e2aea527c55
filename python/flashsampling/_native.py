"""Calls in C, where the library for them (src/python) is there: a Sampler's, and the kernels of torch's operators.

Without it, or where FLASHSAMPLING_CALLS=ctypes says so, the package does the same by itself through ctypes.
"""
import ctypes
import itertools
import os
import sys
from collections.abc import Callable
from ctypes import POINTER, PYFUNCTYPE, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from ctypes import py_object
from typing import Any

from . import _c

STAY, CLOSED = -2, -3  # in place of a stream: it is not torch's current one; the context is closed
_FILES = tuple(folder + "lib/libflashsampling_python.so"
               for folder in ("", *("../../build/%s" % build for build in ("release/", "", "cuda/", "cuda-all/"))))
_WAYS = ("native", "ctypes")


class Prepared(ctypes.Structure):
    """fs_prepared."""

    _fields_ = [
        ("view", c_void_p),
        ("current_stream", c_void_p),
        ("tensor", py_object),
        ("is_negative", py_object),
        ("no", py_object),
        ("locked", py_object),
        ("in_c", c_void_p),
        ("weights", py_object),
        ("place", c_void_p),
        ("device_kind", c_int32),
        ("device", c_int32),
        ("code", c_int32),
        ("bits", c_int32),
        ("rows", c_int64),
        ("columns", c_int64),
        ("input", c_void_p),
        ("position_at", c_void_p),
        ("position", c_uint64),
        ("stream_now", c_void_p),
        ("set_stream", c_void_p),
        ("sample", c_void_p),
        ("context", c_void_p),
        ("head", c_void_p),
        ("batch", c_void_p),
        ("result", c_void_p),
        ("status", c_void_p),
        ("drawn", py_object),
    ]


class Library(ctypes.Structure):
    """fs_python_library."""

    _fields_ = [
        ("create", c_void_p),
        ("destroy", c_void_p),
        ("sample", c_void_p),
        ("set_stream", c_void_p),
        ("error_text", c_void_p),
        ("status_text", c_void_p),
        ("options", _c.OptionsStruct),
    ]


class _Member(ctypes.Structure):
    """fs_python_member."""

    _fields_ = [("name", c_char_p), ("offset", c_size_t), ("size", c_size_t)]


FindFunction = ctypes.CFUNCTYPE(c_void_p, c_int32)
RoomFunction = ctypes.CFUNCTYPE(c_int32, c_int32)
TextFunction = ctypes.CFUNCTYPE(None, POINTER(c_uint32), c_int64, c_void_p, c_int32)

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "fs_python_torch_open": (c_char_p, [FindFunction, RoomFunction, TextFunction]),
    "fs_python_torch_register": (c_char_p, [c_char_p]),
    "fs_python_torch_draw": (None, [c_void_p, c_uint64, c_uint64]),
    "fs_python_layout": (POINTER(_Member), []),
}
_loaded: list[ctypes.CDLL | None] = []


def calls_way() -> str | None:
    """FLASHSAMPLING_CALLS, which says how calls are made; every context looks whether it is a way."""
    way = os.environ.get("FLASHSAMPLING_CALLS")
    if way and way not in _WAYS:
        raise ImportError("FLASHSAMPLING_CALLS=%s: expected one of %s" % (way, ", ".join(_WAYS)))
    return way


def _load() -> ctypes.CDLL | None:
    way = calls_way()
    # Calls in C rely on the GIL; a Python without says so by this flag.
    path = None if way == "ctypes" or "t" in sys.abiflags else _c.find_file(_FILES)
    try:
        lib = ctypes.CDLL(path) if path else None
    except OSError:  # a Python that does not show its functions
        lib = None
    if lib is None:
        if way == "native":
            raise ImportError("FLASHSAMPLING_CALLS=native: %s" % (path or "libflashsampling_python.so was not found"))
        return None
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    _check_layout(lib, path)
    return lib


def _check_layout(lib: ctypes.CDLL, path: str | None) -> None:
    """Refuses a library whose structures are not those above, member by member."""
    found, wanted = {}, {}
    for member in itertools.takewhile(lambda member: member.name, lib.fs_python_layout()):
        found[member.name.decode()] = member.offset, member.size
    for kind, struct in (("fs_prepared", Prepared), ("fs_python_library", Library)):
        for name in (field[0] for field in struct._fields_):
            field = getattr(struct, name)
            wanted["%s.%s" % (kind, name)] = field.offset, field.size
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ImportError("%s is of another version: %s has (offset, size) %s there, %s here; build it again"
                              % (path, name, found.get(name), wanted.get(name)))


def library() -> ctypes.CDLL | None:
    """The library, loaded when it is first asked for; None where Python is to do without."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


def address(function: Any) -> int | None:
    """Where a function of a library begins."""
    return ctypes.cast(function, c_void_p).value


# ---------------------------------------------------------------------------------------------------- a Sampler's ----


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI: how a framework shows its tensors to C."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", c_void_p), ("allocate", c_void_p),
                ("from_object", c_void_p), ("to_object", c_void_p), ("view", c_void_p), ("current_stream", c_void_p)]


_CODES = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16)}  # DLPack's: float and bfloat, bits
_DEVICES = {"cpu": 1, "cuda": 2}


def _exchange(like: Any) -> _Exchange | None:
    """How tensors as `like` are shown to C; None if they are not."""
    capsule = getattr(type(like), "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [py_object, c_char_p]
    found = _Exchange.from_address(pointer(capsule, b"dlpack_exchange_api"))
    return found if found.major == 1 and found.view else None


def prepare(prepared: Prepared, like: Any, dtype: str, device: str) -> Callable[[Any], Any] | None:
    """A function that makes the call of this structure on a tensor; None where there is none. It returns None for a
    tensor that is not as the last one, which Python is to look at. It reads the structure, which must live."""
    lib, exchange = library(), _exchange(like)
    if lib is None or exchange is None:
        return None
    import torch

    kind, _, number = device.partition(":")
    prepared.view, prepared.current_stream = exchange.view, exchange.current_stream
    prepared.tensor, prepared.is_negative, prepared.no = torch.Tensor, torch.Tensor.is_neg, False
    prepared.device_kind, prepared.device = _DEVICES[kind], int(number or 0)
    prepared.code, prepared.bits = _CODES[dtype]
    return PYFUNCTYPE(py_object, c_void_p)(address(lib.fs_python_prepare) or 0)(ctypes.addressof(prepared))


# ---------------------------------------------------------------------------------------------- torch's operators ----


def described(backend: str) -> Library:
    """The library for a backend, with options as Context has them."""
    lib = _c.library(os.environ.get("FLASHSAMPLING_BACKEND", backend))
    found = Library(options=_c.OptionsStruct(size=ctypes.sizeof(_c.OptionsStruct), backend=_c.BACKENDS[backend]))
    for name, function in (("create", lib.fs_context_create), ("destroy", lib.fs_context_destroy),
                           ("sample", lib.fs_sample), ("set_stream", lib.fs_context_set_stream),
                           ("error_text", lib.fs_error_text), ("status_text", lib.fs_status_text)):
        setattr(found, name, address(function))
    return found
