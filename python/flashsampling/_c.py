"""The C side: structures that mirror flashsampling.h member by member, and the library itself."""
import ctypes
import enum
import os
import re
import sys
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p
from typing import Any, TypeVar

from ._rules import STRUCT_RULES

VERSION = (0, 2)  # of the header mirrored here; before 1.0 another minor version is another interface

STATUS_OK = 0
STATUS_UNSUPPORTED = -2
STATUS_MEMORY = -3
STATUS_PEER = -5
FALLBACK_NONE = 1  # fs_options.fallback_bytes; its 0 is the default
FALLBACK_TOKEN_ZERO = -(2**31)  # fs_batch.fallback_token; its 0 is the default
LEAST = 1.1754943508222875e-38  # the smallest normal float32: as a scalar top_p it keeps one token, 0 is the default
ROUNDS = {"f32": 0, "f16": 1, "bf16": 2}
DTYPES = {**ROUNDS, "i32": 8, "i64": 9}
QUANTISED = {"q8_0": 32, "q5_k": 33, "q6_k": 34}
BACKENDS = {"auto": 0, "cpu": 1, "cuda": 2, "reference": 3}
KINDS = {"weights": 0, "logits": 1}
SCREENS = {"8": 1, "4": 2, "4+8": 3}  # by their bits
MODES = {"sample": 0, "without_replacement": 1, "group_parallel": 2, "group_online": 3, "score": 4}
NOISES = {"exact": 0, "fast": 1}
CALLS = {"sample": 0, "partial": 1, "ranks": 2}
LOGITS = {"raw": 0, "processed": 1, "cut": 2}
HEAD_CONSTANT = 1
CHECK_POINTERS = 1
STREAM_DEFAULT = 1
STRIDE_BROADCAST = -1
_Bits = TypeVar("_Bits", bound=type[enum.IntFlag])


def _documented(kind: _Bits) -> _Bits:
    """Gives every member its sentence of the class's docstring: help() shows the one, an editor the other."""
    for name, text in re.findall(r"^    ([A-Z_]+): (.*(?:\n {8}.*)*)", kind.__doc__ or "", re.M):
        kind[name].__doc__ = re.sub(r"\s+", " ", text)
    return kind


@_documented
class Flag(enum.IntFlag):
    """Bits of `flags`, which change what rules do. Each is a keyword too, in small letters: keep_ties=True.

    KEEP_TIES_TOP_K: top-k keeps every token whose logit equals that of the last token kept.
    KEEP_TIES_TOP_P: top-p does so too, among the tokens that top-k and min-p have left.
    KEEP_TIES: both.
    JOINT_TOP_P: top-p counts mass against the whole row, not against what min-p and top-k have left.
    MIN_P_LAST: the order is top-k, top-p, min-p; what min-p removes still counts as mass for top-p.
    CUT_BEFORE_TEMPERATURE: cuts look at the logits before temperature; the draw is from those after it all the same.
    EDITS_LAST: penalties come first, edits after them.
    EXACT_RANK: the CPU pays a second pass over W where it would return a lower bound of the rank.
    RANK_OF_TIES: the rank counts logits that are not smaller than the token's, its own among them.
    """

    KEEP_TIES_TOP_K = 1 << 0
    KEEP_TIES_TOP_P = 1 << 1
    KEEP_TIES = 3
    JOINT_TOP_P = 1 << 2
    MIN_P_LAST = 1 << 3
    CUT_BEFORE_TEMPERATURE = 1 << 4
    EDITS_LAST = 1 << 5
    EXACT_RANK = 1 << 6
    RANK_OF_TIES = 1 << 7


@_documented
class Rule(enum.IntFlag):
    """Kinds of rules: those that no row uses, as limits={"absent": ...}, and those that `supports` is asked about.

    TOP_K: top_k.
    TOP_P: top_p.
    MIN_P: min_p.
    ALLOW: allow, allow_index.
    EDITS: edits, padded_edits.
    PENALTIES: repetition, frequency, presence.
    """

    TOP_K = 1 << 0
    TOP_P = 1 << 1
    MIN_P = 1 << 2
    ALLOW = 1 << 3
    EDITS = 1 << 4
    PENALTIES = 1 << 5


class Input(enum.IntFlag):
    """CallDescStruct.inputs; FS_INPUT_... in the header."""

    BROADCAST = 1 << 0
    EXTRA_TOKENS = 1 << 1


class Wanted(enum.IntFlag):
    """CallDescStruct.results; FS_RESULT_... in the header."""

    NOISY_LOGIT = 1 << 0
    MAX_LOGIT = 1 << 1
    LOG_Z = 1 << 2
    LOGIT = 1 << 3
    LOGPROB = 1 << 4
    RANK = 1 << 5
    TOP = 1 << 6
    WATCH = 1 << 7
    ENTROPY = 1 << 8
    SURVIVORS = 1 << 9


@_documented
class Row(enum.IntFlag):
    """Bits of a row's status, Result.status. A row with a bit of NO_TOKEN has no token: its tokens are fallback_token.

    OK: the row has its tokens, and there is nothing to say about them.
    SKIPPED: the row's slot is -1; no token was asked for.
    EMPTY: no logit above -inf is left, so the row has no distribution.
    BAD_SLOT: the slot is below -1, or not below `slots`.
    BAD_TEMPERATURE: the temperature is negative, NaN, infinite, or so small that its inverse overflows.
    BAD_TOP_P: top_p is negative, above 1.00001, or NaN.
    BAD_MIN_P: min_p is negative, above 1, or NaN.
    BAD_PENALTY: repetition is 0 or less, or a penalty is NaN or infinite.
    BAD_TOKEN: a token that is edited, counted, watched or scored is negative, or not below the vocabulary's size.
    INCOMPLETE: the lists of candidates do not prove the cut (ranks, parts, or too little memory); nothing is drawn.
    PEER: a part or rank failed, is missing, or was called with other arguments.
    BAD_MASK: allow_index is below -1, or not below the number of masks.
    BAD_LIST: an edit_count is negative, or more than its row has room for.
    OVER_LIMIT: the row uses a rule, or a larger top_k, than `limits` said.
    NO_TOKEN: all bits above, and those that may join them: the row has no token.
    NAN: a logit that no mask removed was NaN; it counts as -inf.
    INF: a logit was +inf: the lowest such token wins, log_z is +inf, and logprobs are NaN.
    FALLBACK: the row took a second pass over W; its token is exact all the same.
    RANK_BOUND: the rank is a lower bound, 257 or more.
    SHORT: fewer distinct tokens were left than `samples` without replacement; the rest are fallback_token.
    FAR: the largest logit is too far from 0 for log_z, so that it and logprobs are NaN.
    """

    OK = 0
    SKIPPED = 1 << 0
    EMPTY = 1 << 1
    BAD_SLOT = 1 << 2
    BAD_TEMPERATURE = 1 << 3
    BAD_TOP_P = 1 << 4
    BAD_MIN_P = 1 << 5
    BAD_PENALTY = 1 << 6
    BAD_TOKEN = 1 << 7
    INCOMPLETE = 1 << 8
    PEER = 1 << 9
    BAD_MASK = 1 << 10
    BAD_LIST = 1 << 11
    OVER_LIMIT = 1 << 12
    NO_TOKEN = 0xFFFF
    NAN = 1 << 16
    INF = 1 << 17
    FALLBACK = 1 << 18
    RANK_BOUND = 1 << 19
    SHORT = 1 << 20
    FAR = 1 << 21


# Bits of a row that lacks a token. A skipped row is meant to have none. Mirrored by FS_PYTHON_LACKS.
LACKS_TOKEN = int(Row.NO_TOKEN & ~Row.SKIPPED | Row.SHORT)


def row_text(status: int) -> str:
    """The names of a row's status bits."""
    single = [bit for bit in Row.__members__.values() if bit and bit & (bit - 1) == 0]
    return " ".join(str(bit.name) for bit in single if bit & status) or "OK"


# Without a dictionary of its own (__slots__) a structure refuses a member it does not have.


class HeadStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int32),
        ("dtype", c_int32),
        ("data", c_void_p),
        ("rows", c_int64),
        ("dim", c_int64),
        ("stride", c_int64),
        ("bias", c_void_p),
        ("round_to", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("post_scale", c_float),
        ("vocab", c_int64),
        ("flags", c_uint32),
        ("reserved", c_int32),
        ("screen", c_void_p),
        ("screen_bytes", c_size_t),
        ("first_token", c_int64),
    ]


class FloatRule(ctypes.Structure):
    __slots__ = ()
    _fields_ = [("per_slot", c_void_p), ("value", c_float)]


class IntRule(ctypes.Structure):
    __slots__ = ()
    _fields_ = [("per_slot", c_void_p), ("value", c_int32)]


class RulesStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [("size", c_size_t)] + [
        (name, FloatRule if rule.dtype == "f32" else IntRule) for name, rule in STRUCT_RULES.items()]

    def __init__(self) -> None:
        super().__init__(size=ctypes.sizeof(RulesStruct))
        for name, rule in STRUCT_RULES.items():
            getattr(self, name).value = rule.off


class LimitsStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("size", c_size_t),
        ("absent", c_uint32),
        ("top_k", c_int32),
        ("edits", c_int64),
        ("counts", c_int64),
        ("watched", c_int64),
    ]


class BatchStruct(ctypes.Structure):
    """With rules and limits of its own, to which it points."""

    __slots__ = ("own_rules", "own_limits")
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("hidden", c_void_p),
        ("hidden_dtype", c_int32),
        ("samples", c_int32),
        ("hidden_stride", c_int64),
        ("rules", c_void_p),
        ("seed", c_void_p),
        ("seed_all", c_uint64),
        ("position", c_void_p),
        ("position_all", c_uint64),
        ("slot", c_void_p),
        ("slots", c_int64),
        ("slot_dtype", c_int32),
        ("mode", c_int32),
        ("flags", c_uint32),
        ("fallback_token", c_int32),
        ("substream", c_void_p),
        ("substream_all", c_uint32),
        ("list_capacity", c_int32),
        ("limits", c_void_p),
        ("cuda_stream", c_void_p),
        ("allow", c_void_p),
        ("allow_stride", c_int64),
        ("allow_index", c_void_p),
        ("allow_count", c_int64),
        ("edit_offset", c_void_p),
        ("edit_count", c_void_p),
        ("edit_stride", c_int64),
        ("edit_token", c_void_p),
        ("edit_bias", c_void_p),
        ("seen", c_void_p),
        ("seen_stride", c_int64),
        ("counts", c_void_p),
        ("counts_stride", c_int64),
        ("count_offset", c_void_p),
        ("count_token", c_void_p),
        ("count_value", c_void_p),
        ("extra_offset", c_void_p),
        ("extra_token", c_void_p),
        ("score_token", c_void_p),
        ("watch_offset", c_void_p),
        ("watch_token", c_void_p),
        ("noise", c_int32),
        ("reserved", c_int32),
        ("group_size", c_int64),
    ]

    def __init__(self, **members: Any) -> None:
        self.own_rules, self.own_limits = RulesStruct(), LimitsStruct(size=ctypes.sizeof(LimitsStruct))
        super().__init__(size=ctypes.sizeof(BatchStruct), rules=ctypes.addressof(self.own_rules),
                         limits=ctypes.addressof(self.own_limits), **members)

    def place(self, name: str, array: bool) -> tuple[ctypes.Structure, str]:
        """Where the address of a rule's array goes, or its number for all slots: a structure and a member of it."""
        if name in STRUCT_RULES:
            return getattr(self.own_rules, name), "per_slot" if array else "value"
        return self, name if array else name + "_all"


class ResultStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_void_p),
        ("tokens_dtype", c_int32),
        ("logits_mode", c_int32),
        ("status", c_void_p),
        ("logprob", c_void_p),
        ("logit", c_void_p),
        ("noisy_logit", c_void_p),
        ("max_logit", c_void_p),
        ("log_z", c_void_p),
        ("rank", c_void_p),
        ("top_count", c_int32),
        ("survivor_limit", c_int32),
        ("top_token", c_void_p),
        ("top_logit", c_void_p),
        ("top_logprob", c_void_p),
        ("watch_logit", c_void_p),
        ("watch_logprob", c_void_p),
        ("entropy", c_void_p),
        ("survivor_token", c_void_p),
        ("survivor_count", c_void_p),
    ]


class CountersStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("size", c_size_t),
        ("fallback_rows", c_int64),
        ("work_bytes", c_int64),
        ("wire_bytes", c_int64),
        ("screened_rows", c_int64),
        ("screened_dots", c_int64),
    ]


class RuleInfo(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("name", c_char_p),
        ("about", c_char_p),
        ("dtype", c_int32),
        ("rule", c_uint32),
        ("offset", c_size_t),
        ("off", c_double),
        ("least", c_double),
        ("most", c_double),
        ("status", c_uint32),
        ("reserved", c_int32),
    ]


TaskFunction = CFUNCTYPE(None, c_void_p, c_int32)
ParallelFor = CFUNCTYPE(None, c_void_p, c_int32, TaskFunction, c_void_p)
LogFunction = CFUNCTYPE(None, c_void_p, c_char_p)
AllocFunction = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
FreeFunction = CFUNCTYPE(None, c_void_p, c_void_p)


class OptionsStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("size", c_size_t),
        ("backend", c_int32),
        ("device", c_int32),
        ("threads", c_int32),
        ("block", c_int32),
        ("parallel_for", ParallelFor),
        ("parallel_user", c_void_p),
        ("log", LogFunction),
        ("log_user", c_void_p),
        ("alloc", AllocFunction),
        ("free", FreeFunction),
        ("alloc_user", c_void_p),
        ("work", c_void_p),
        ("work_bytes", c_size_t),
        ("fallback_bytes", c_size_t),
        ("cuda_stream", c_void_p),
        ("flags", c_uint32),
        ("reserved", c_int32),
    ]


ProgressFunction = CFUNCTYPE(ctypes.c_int, c_void_p, c_int64, c_int64)


class ScreenOptionsStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("size", c_size_t),
        ("format", c_int32),
        ("group", c_int32),
        ("seed", c_uint64),
        ("eta", c_double),
        ("progress", ProgressFunction),
        ("user", c_void_p),
        ("columns", c_int32),
        ("hidden_dtype", c_int32),
        ("hidden", c_void_p),
        ("hidden_rows", c_int64),
    ]


class DraftsStruct(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("tokens_dtype", c_int32),
        ("reserved", c_int32),
        ("sequences", c_int64),
        ("draft_length", c_int64),
        ("target_offset", c_void_p),
        ("draft_offset", c_void_p),
        ("draft", c_void_p),
        ("target", c_void_p),
        ("accepted", c_void_p),
        ("tokens", c_void_p),
        ("tokens_width", c_int64),
        ("token_offset", c_void_p),
        ("cuda_stream", c_void_p),
    ]


class CallDescStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        ("size", c_size_t),
        ("call", c_int32),
        ("kind", c_int32),
        ("dtype", c_int32),
        ("hidden_dtype", c_int32),
        ("mode", c_int32),
        ("noise", c_int32),
        ("samples", c_int32),
        ("logits_mode", c_int32),
        ("rules", c_uint32),
        ("results", c_uint32),
        ("flags", c_uint32),
        ("inputs", c_uint32),
        ("group_size", c_int64),
    ]


_call = [c_void_p, POINTER(HeadStruct), POINTER(BatchStruct), POINTER(ResultStruct)]
_PROTOTYPES = {
    "fs_version": (c_uint32, []),
    "fs_version_text": (c_char_p, []),
    "fs_noise_id": (c_uint32, []),
    "fs_status_text": (c_char_p, [c_int32]),
    "fs_context_create": (c_int32, [POINTER(OptionsStruct), POINTER(c_void_p)]),
    "fs_context_destroy": (None, [c_void_p]),
    "fs_error_text": (c_char_p, [c_void_p]),
    "fs_context_text": (c_char_p, [c_void_p]),
    "fs_context_set_stream": (c_int32, [c_void_p, c_void_p]),
    "fs_context_set_work": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "fs_context_counters": (c_int32, [c_void_p, POINTER(CountersStruct)]),
    "fs_rule": (POINTER(RuleInfo), [c_int32]),
    "fs_sample": (c_int32, _call),
    "fs_work_size": (c_int32, _call + [POINTER(c_size_t), POINTER(c_size_t)]),
    "fs_screen_size": (c_int32, [c_void_p, POINTER(HeadStruct), POINTER(ScreenOptionsStruct), POINTER(c_size_t)]),
    "fs_screen_build": (c_int32, [c_void_p, POINTER(HeadStruct), POINTER(ScreenOptionsStruct), c_void_p, c_size_t]),
    "fs_screen_check": (c_int32, [c_void_p, POINTER(HeadStruct)]),
    "fs_screen_slice": (c_int32, [c_void_p, c_void_p, c_size_t, c_int64, c_int64, c_void_p, c_size_t,
                                  POINTER(c_size_t)]),
    "fs_supports": (c_int32, [c_int32, POINTER(CallDescStruct), POINTER(c_char_p)]),
    "fs_partial_size": (c_int32, _call + [POINTER(c_size_t)]),
    "fs_partial": (c_int32, _call + [c_void_p, c_size_t]),
    "fs_merge": (c_int32, _call[:3] + [POINTER(c_void_p), c_int32, POINTER(ResultStruct)]),
    "fs_sample_ranks": (c_int32, [c_void_p, c_void_p] + _call[1:]),
    "fs_accept_drafts": (c_int32, [c_void_p, POINTER(DraftsStruct)]),
    "fs_noise_gumbel": (c_double, [c_uint64, c_uint64, c_uint32, c_uint32, c_uint32]),
    "fs_seed_spread": (c_uint64, [c_uint64, c_uint64]),
}

# Where libraries lie: in the package as it is installed, in the builds of the repository around it.
_FILES = {
    "cpu": ("lib/libflashsampling.so", "../../build/release/lib/libflashsampling.so",
            "../../build/lib/libflashsampling.so"),
    "cuda": ("lib/libflashsampling_cuda.so", "../../build/cuda/lib/libflashsampling.so",
             "../../build/cuda-all/lib/libflashsampling.so"),
}
_loaded: dict[str, ctypes.CDLL] = {}

_ByAddress = CFUNCTYPE(c_int32, *[c_void_p] * 4)


def sample_by_address(lib: ctypes.CDLL) -> Callable[..., int]:
    """fs_sample that takes the addresses of its structures as numbers: half the time of byref."""
    return _ByAddress(ctypes.cast(lib.fs_sample, c_void_p).value or 0)


def find_file(files: Sequence[str]) -> str | None:
    """The first file that is there; None if there is none. An editable install lies in two folders."""
    folders = sys.modules[__package__].__path__
    paths = (os.path.join(folder, file) for file in files for folder in folders)
    return next((os.path.normpath(path) for path in paths if os.path.exists(path)), None)


def _load(path: str) -> ctypes.CDLL:
    """The library in this file, with its prototypes set."""
    lib = ctypes.CDLL(path)
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    version = lib.fs_version()
    if (version >> 16, version >> 8 & 0xFF) != VERSION:
        raise ImportError(
            "%s is version %s, this package was written for %d.%d"
            % ((path, lib.fs_version_text().decode()) + VERSION)
        )
    return lib


def library(backend: Any = "cpu") -> ctypes.CDLL:
    """The library for a backend, loaded when it is first asked for.

    FLASHSAMPLING_LIBRARY names one file for all of them. Otherwise "cuda" has a library of its own, in which the others
    are too; where it is not there, the answer is the library of the others, which refuses the backend by name.
    """
    kind = "cuda" if backend == "cuda" else "cpu"
    if kind not in _loaded:
        path = os.environ.get("FLASHSAMPLING_LIBRARY") or find_file(_FILES[kind] + _FILES["cuda"])
        if path is None and kind == "cuda":
            _loaded[kind] = library()
        else:
            _loaded[kind] = _load(path or _installed())
    return _loaded[kind]


def _installed() -> str:
    """The system's library, by the name the loader knows it by."""
    name = "libflashsampling.so.%d.%d" % VERSION
    try:
        ctypes.CDLL(name)
    except OSError:
        raise ImportError(
            "libflashsampling.so was not found: build it (make build), install it, or name it in FLASHSAMPLING_LIBRARY"
        ) from None
    return name
