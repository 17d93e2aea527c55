"""Context: where calls are made; and the functions that need none."""
from __future__ import annotations

import ctypes
import enum
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import byref
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import _c, _native
from ._arrays import ITEM, Array, Local, Pointer, integer, is_tensor, numpy, real, same_memory
from ._call import Batch, Head, Out, Result, hidden_states
from ._numbers import choice, count_of_samples
from ._progress import Progress
from ._rows import check_rows, raises, status_room
from ._rules import (BATCH_RULES, Backend, BatchRules, Dtype, FlagName, InputName, Kind, LogitsMode, Mode, Noise,
                     OnError, Output, Outputs, Quantised, RuleName, ScreenBits, TokenDtype, check_names)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._rules import offer_batch_rules

_CALL_NAMES = ("out", "outputs", "top", "logits_mode", "tokens", "on_error", "ranks")


class Error(RuntimeError):
    """A call failed. `status` is its negative number, `name` the status in a word, `text` what exactly was wrong."""

    __module__ = "flashsampling"  # the name under which users catch it

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        self.name = _c.library().fs_status_text(status).decode()
        super().__init__("%s: %s" % (self.name, text))

    def __reduce__(self) -> Any:
        return Error, (self.status, self.text)  # else a pool's worker could not tell of it


def _check(lib: ctypes.CDLL, status: int, context: ctypes.c_void_p | None = None) -> None:
    if status != _c.STATUS_OK:
        raise Error(status, lib.fs_error_text(context).decode(errors="replace"))


def _created(lib: ctypes.CDLL, status: int, backend: str | int) -> None:
    """_check for a new context, with what to do where the library has no such backend."""
    try:
        _check(lib, status)
    except Error as error:
        if backend != "cuda" or status != _c.STATUS_UNSUPPORTED or "not in this build" not in error.text:
            raise
        advice = ("install the package where nvcc 13.0 or later is on the PATH, run `make cuda` in the repository, or "
                  "name a library that has it in FLASHSAMPLING_LIBRARY")
        raise Error(status, "%s: %s" % (error.text, advice)) from None


def _refuse_converted(pointers: Iterable[Pointer | None]) -> None:
    """Refuses what torch's current stream may still be writing: the call goes to another."""
    for pointer in pointers:
        if pointer is not None and pointer.converted:
            raise TypeError("%s: was converted on torch's current stream, and the context has a stream of its own; "
                            "convert it before the call" % pointer.converted)


def _torch_stream() -> Callable[[int], int] | None:
    """A function that returns the handle of torch's current stream of a device; the quick one where torch has it."""
    try:
        import torch
    except ImportError:
        return None  # then the library refuses calls until set_stream
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda device: torch.cuda.current_stream(device).cuda_stream)


def make_room(device: int) -> bool:
    """Gives device memory back that torch keeps for later; False if there is none, or a capture forbids it. A call that
    found no memory is then worth another try."""
    try:
        import torch
    except ImportError:
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    before = torch.cuda.memory_reserved(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device) < before


class _ParallelFor:
    """The caller's parallel_for as C calls it: every task has run, once, when it returns, whatever the caller's does.

    ctypes would print an exception and go on, with tasks left out. Here they run all the same, and the exception is
    kept for after the call.
    """

    def __init__(self, function: Callable[[int, Callable[[int], None]], object]) -> None:
        self.function = function
        self.error: BaseException | None = None

    def __call__(self, user: int | None, count: int, task: Callable[[int | None, int], None], arg: int | None) -> None:
        left, change = set(range(count)), threading.Condition()
        running: set[int] = set()

        def run(i: int) -> None:
            with change:
                if i not in left:
                    return
                left.remove(i)
                running.add(i)
            try:
                task(arg, i)
            finally:
                with change:
                    running.remove(i)
                    change.notify()

        try:
            self.function(count, run)
        except BaseException as error:
            self.error = self.error or error
        for i in range(count):
            run(i)
        with change:
            change.wait_for(lambda: not running)

    def reraise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


ROOM = 256  # bytes: work memory and screens begin at a multiple of them


def some_bytes(size: int, device: str) -> tuple[Any, int]:
    """uint8 memory with room for `size` bytes from its first multiple of ROOM on, and its address."""
    if device == "cpu":
        memory = numpy().empty(size + ROOM, "u1")
        return memory, memory.ctypes.data
    import torch

    memory = torch.empty(size + ROOM, dtype=torch.uint8, device=device)
    return memory, memory.data_ptr()


class Counters(NamedTuple):
    """What the last call of a context took: Context.counters."""

    fallback_rows: int  # rows that needed a second pass over W
    work_bytes: int  # temporary memory of the call
    wire_bytes: int  # bytes that this rank has put into parts or collectives
    screened_rows: int  # rows that the head's screen decided; 0 over ranks and on CUDA, which knows later
    screened_dots: int  # logits that were computed from W for them


class WorkSize(NamedTuple):
    """Bytes of work memory of a call: Context.work_size."""

    min_bytes: int  # with fewer the call is refused; rows whose cut is too wide for one pass come back INCOMPLETE
    max_bytes: int  # with as many every row is drawn


class Context(Local):
    """One backend with its threads and work memory. Serves one call at a time; use one per thread.

    backend is "auto", "cpu", "cuda" or "reference"; threads 0 = every core. log(line) hears what was chosen and why.
    parallel_for(count, task) runs task(i) for i in range(count) on the caller's threads; what it raises is raised when
    the call has come to its end. work is the number of bytes to set aside once; calls then never allocate (work_size
    tells how many). fallback_bytes is how much wide rows may allocate at most, 0 is none. On "cuda" device is its
    number and cuda_stream the handle of the stream (torch: stream.cuda_stream; 0 is the default stream; None is torch's
    current stream, whichever that is when a call comes); calls return when they are queued there, and the arrays must
    live until they have run. check_pointers asks the driver about every pointer of every call.
    """

    def __init__(self, backend: Backend = "auto", *, device: int = 0, threads: int = 0, block: int = 0,
                 log: Callable[[str], object] | None = None,
                 parallel_for: Callable[[int, Callable[[int], None]], object] | None = None, work: int = 0,
                 fallback_bytes: int | None = None, cuda_stream: int | None = None,
                 check_pointers: bool = False) -> None:
        self._context: ctypes.c_void_p | None = None
        # Calls in C look at it too: STAY, CLOSED, or torch's current stream as it was last, -1 = not yet.
        self._stream_now = ctypes.c_int64(_native.STAY)
        self._in_c = ctypes.c_int32()  # whether a call that C makes has the context
        self._parallel_for: _ParallelFor | None = None
        self._current_stream: Callable[[int], int] | None = None
        _native.calls_way()
        # The environment overrules the caller's backend in C too.
        self._library = _c.library(os.environ.get("FLASHSAMPLING_BACKEND", backend))
        o = _c.OptionsStruct(size=ctypes.sizeof(_c.OptionsStruct))
        o.backend = choice(_c.BACKENDS, backend, "backend")
        o.device, o.threads = integer(device, "i32", "device"), integer(threads, "i32", "threads")
        o.block, o.cuda_stream = integer(block, "i32", "block"), self._stream(cuda_stream)
        o.flags = _c.CHECK_POINTERS if check_pointers else 0
        if fallback_bytes is not None:
            o.fallback_bytes = integer(fallback_bytes, "u64", "fallback_bytes") or _c.FALLBACK_NONE
        if log:
            o.log = _c.LogFunction(lambda user, line: log(line.decode(errors="replace")))
        if parallel_for:
            self._parallel_for = _ParallelFor(parallel_for)
            o.parallel_for = _c.ParallelFor(self._parallel_for)
        self._options = o  # keeps the callbacks alive
        out = ctypes.c_void_p()
        _created(self._library, self._library.fs_context_create(byref(o), byref(out)), backend)
        self._context, self._busy, self.closed = out, threading.Lock(), False
        self.device = "cuda:%d" % o.device if self.text.startswith("cuda") else "cpu"
        self._work: Any = None
        self._given_stream = cuda_stream
        if self.device != "cpu" and cuda_stream is None:
            self._current_stream = _torch_stream()
        if self._current_stream is not None:
            self._stream_now.value = -1
        if work:
            self.set_work(work)

    def close(self) -> None:
        """Frees the context; further calls fail, and so does this in the midst of one."""
        if self._context:
            if self._busy.locked():
                raise self._in_use()
            with self._busy:
                if self._in_c.value:
                    raise self._in_use()
                self._destroy()

    def _destroy(self) -> None:
        self._library.fs_context_destroy(self._context)
        self._context, self.closed, self._stream_now.value = None, True, _native.CLOSED

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_context", None):  # at the end of a process no module has its names any more
            self._library.fs_context_destroy(self._context)

    def __repr__(self) -> str:
        return "<flashsampling.Context %s>" % self.text

    def _handle(self) -> ctypes.c_void_p:
        if not self._context:
            raise ValueError("the context is closed")
        return self._context

    def _run(self, function: Callable[..., int], head: Head[Any], batch: Batch[Any] | None, *rest: Any) -> None:
        arguments = (byref(head.struct), *(() if batch is None else (byref(batch.struct),)), *rest)
        self._handle()
        same_memory(self.device, head.data, "head")
        head.data.check_place(head.kind)
        if self._given_stream is not None:
            _refuse_converted((head.bias, *(() if batch is None else batch._keep)))
        self._call(function, *arguments)

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Makes a call whose structures are filled, and raises what went wrong in it."""
        if self._busy.locked():
            raise self._in_use()
        with self._busy:
            if self._in_c.value:
                raise self._in_use()
            if self._current_stream is not None:
                self._follow()
            status = function(self._handle(), *arguments)
            if status == _c.STATUS_MEMORY and self._make_room():
                status = function(self._handle(), *arguments)
        self._check(status)

    def _in_use(self) -> Exception:
        """What to raise where the context cannot take a call. Asked for before `with context._busy:`, which in itself
        would wait. (To acquire the lock without waiting leaves it locked forever if an interrupt comes right then.)"""
        if not self._context:
            return ValueError("the context is closed")
        return RuntimeError("the context is in a call of another thread: use one context per thread")

    def _make_room(self) -> bool:
        """Whether a call that found no memory is worth another try; see the function of this name."""
        return self.device != "cpu" and self._work is None and make_room(self._options.device)

    def _follow(self) -> None:
        """Calls go to torch's current stream from here on."""
        assert self._current_stream is not None
        stream = self._current_stream(self._options.device)
        if stream != self._stream_now.value:
            self._set_stream(stream)
            self._stream_now.value = stream

    def _check(self, status: int) -> None:
        """Raises what went wrong in a call: what the caller's threads raised, or what C says."""
        if self._parallel_for:
            self._parallel_for.reraise()
        _check(self._library, status, self._context)

    @property
    def text(self) -> str:
        """One line: backend, instruction set, threads."""
        return self._library.fs_context_text(self._handle()).decode() if self._context else "closed"

    @staticmethod
    def _stream(handle: int | None) -> int | None:
        """A handle as the library takes it: 0 is CUDA's default stream, said explicitly; None is no stream."""
        if handle is None:
            return None
        return integer(handle, "u64", "cuda_stream") or _c.STREAM_DEFAULT

    def set_stream(self, cuda_stream: int | None) -> None:
        """CUDA: the stream of the calls that follow (its handle, 0: the default stream); they wait for those before."""
        self._current_stream, self._stream_now.value = None, _native.STAY
        self._set_stream(cuda_stream)
        self._given_stream = cuda_stream

    def _set_stream(self, stream: int | None) -> None:
        _check(self._library, self._library.fs_context_set_stream(self._handle(), self._stream(stream)), self._context)

    def set_work(self, size: int) -> None:
        """Sets aside `size` bytes once, so that calls never allocate (work_size tells how many); 0 gives them back."""
        size = integer(size, "i64", "work")
        if size < 0:
            raise ValueError("work: %d bytes, expected 0 or more" % size)
        memory, address = some_bytes(size, self.device) if size else (None, None)
        if address is not None:
            address += -address % ROOM
        _check(self._library, self._library.fs_context_set_work(self._handle(), address, size), self._context)
        self._work = memory

    def screen(self, head: Head[Any], bits: ScreenBits = 8, *, group: int = 0, seed: int = 0, eta: float = 0.0,
               columns: int = 0, hidden: Array | None = None, hidden_dtype: Dtype | None = None,
               progress: Callable[[int, int], object] | None = None) -> Any:
        """The bytes of a screen of a head of weights, for Head(weights, screen=...): draws then read it in place of W
        where it can decide them, and the tokens are the same (docs/explain/screens.md). An array, or for the cuda backend
        a tensor on its device.

        bits is 8, 4, or "4+8": 4 bits with some columns in 8, which heads of language models need (not on "cuda"). A few
        hidden states [n, D] of the model choose those columns better than the weights do. group, seed, eta and columns
        are those of fs_screen_options, 0 being the default. progress(done, rows) is called now and then; what it raises
        stops the build and is raised, and so does Ctrl-C (on "cuda" only with progress).
        """
        o = _c.ScreenOptionsStruct(size=ctypes.sizeof(_c.ScreenOptionsStruct))
        o.format = choice(_c.SCREENS, str(bits), "bits")
        o.group, o.seed, o.eta = integer(group, "i32", "group"), integer(seed, "u64", "seed"), real(eta, "eta")
        o.columns = integer(columns, "i32", "columns")
        rows = None if hidden is None else hidden_states(hidden, hidden_dtype, head.data.shape[1])
        if rows is not None:
            if rows.stride not in (0, rows.shape[1] * ITEM[rows.dtype]):
                raise ValueError("hidden: rows %d bytes apart, expected none between them" % rows.stride)
            o.hidden, o.hidden_rows, o.hidden_dtype = rows.address, rows.shape[0], _c.DTYPES[rows.dtype]
        size = ctypes.c_size_t()
        _check(self._library, self._library.fs_screen_size(self._handle(), byref(head.struct), byref(o), byref(size)),
               self._context)
        memory, address = some_bytes(size.value, self.device)
        start = -address % ROOM
        with Progress(progress) as watched:
            if progress or self.device == "cpu":  # a device waits for the host at every call
                o.progress = watched.in_c
            self._run(self._library.fs_screen_build, head, None, byref(o), address + start, size)
        return memory[start : start + size.value]

    def check_screen(self, head: Head[Any]) -> None:
        """Raises Error if the head's screen was changed, or was made of other weights: reads every byte of both. The
        first call with a screen looks at four weights of every row; docs/explain/screens.md."""
        self._run(self._library.fs_screen_check, head, None)

    @property
    def counters(self) -> Counters:
        """Of the last call that drew, scored, merged or made a part; all 0 before."""
        c = _c.CountersStruct(size=ctypes.sizeof(_c.CountersStruct))
        _check(self._library, self._library.fs_context_counters(self._handle(), byref(c)), self._context)
        return Counters(*(getattr(c, name) for name in Counters._fields))

    @staticmethod
    def _arguments(head: Head[Any], hidden: Kind | Batch[Kind] | Pointer | None, out: Out[Kind], outputs: Outputs,
                   top: int, logits_mode: LogitsMode, tokens: TokenDtype, rules: Mapping[str, Any]
                   ) -> tuple[Batch[Kind], Result[Kind]]:
        check_names(rules, BATCH_RULES, _CALL_NAMES)
        if isinstance(hidden, Batch):
            if rules:
                raise TypeError("a Batch has its rules already: %s" % ", ".join(rules))
            batch = hidden
            batch._check(head)
        else:
            batch = Batch(head, hidden, **rules)
        if isinstance(out, dict):
            return batch, Result.into(batch, out, logits_mode=logits_mode)
        if out is None:
            out = Result(batch, outputs, top=top, logits_mode=logits_mode, tokens=tokens)
        return batch, out

    def sample(self, head: Head[Kind], hidden: Kind | Batch[Kind] | Pointer | None = None, *,
               ranks: int | None = None, out: Out[Kind] = None, outputs: Outputs = (), top: int = 0,
               logits_mode: LogitsMode = "raw", tokens: TokenDtype = "i64", on_error: OnError = None,
               **rules: Unpack[BatchRules]) -> Result[Kind]:
        """Draws every row and returns a Result, with tokens [B, samples].

        hidden is [B, D] (None for stored logits), or a Batch. outputs names what is wanted besides tokens and status
        (Result.OUTPUTS, or "all"), top is how many of the best tokens, logits_mode which logits they all speak of. The
        rules are those of Batch. out is what to write into: a Result, or a dictionary of the caller's arrays by name,
        which then says what is wanted. ranks is the address of an fs_ranks: then head is this rank's shard.

        on_error="raise" raises RowError, with the result, if a row lacks a token. "status" leaves such a row with the
        token -1 (fallback_token) and its status. None, the default, raises on the CPU. On CUDA it does not, because a
        call is only queued there: "raise" waits for the device, and does nothing while a graph is captured.
        """
        if TYPE_CHECKING:
            offer_batch_rules(**rules)
        batch, result = self._arguments(head, hidden, out, outputs, top, logits_mode, tokens, rules)
        c = result._struct(batch)
        looks = raises(on_error, self.device)
        room = status_room(self, c, batch.rows) if looks and not c.status else None
        if ranks is None:
            self._run(self._library.fs_sample, head, batch, byref(c))
        else:
            over_ranks = self._library.fs_sample_ranks
            self._run(lambda context, *rest: over_ranks(context, ranks, *rest), head, batch, byref(c))
        if looks:
            check_rows(self, c.status, batch.rows, result)
        del room  # read until here
        return result

    def work_size(self, head: Head[Kind], hidden: Kind | Batch[Kind] | Pointer | None = None, *,
                  out: Out[Kind] = None, outputs: Outputs = (), top: int = 0, logits_mode: LogitsMode = "raw",
                  tokens: TokenDtype = "i64", **rules: Unpack[BatchRules]) -> WorkSize:
        """How much work memory `sample` with these arguments takes."""
        if TYPE_CHECKING:
            offer_batch_rules(**rules)
        batch, result = self._arguments(head, hidden, out, outputs, top, logits_mode, tokens, rules)
        min_bytes, max_bytes, c = ctypes.c_size_t(), ctypes.c_size_t(), result._struct(batch)
        self._run(self._library.fs_work_size, head, batch, byref(c), byref(min_bytes), byref(max_bytes))
        return WorkSize(min_bytes.value, max_bytes.value)

    def partial_size(self, head: Head[Kind], hidden: Kind | Batch[Kind] | Pointer | None = None, *,
                     out: Out[Kind] = None, outputs: Outputs = (), top: int = 0, logits_mode: LogitsMode = "raw",
                     tokens: TokenDtype = "i64", **rules: Unpack[BatchRules]) -> int:
        """Bytes of one part; the same on every shard."""
        if TYPE_CHECKING:
            offer_batch_rules(**rules)
        batch, result = self._arguments(head, hidden, out, outputs, top, logits_mode, tokens, rules)
        bytes_, c = ctypes.c_size_t(), result._struct(batch)
        self._run(self._library.fs_partial_size, head, batch, byref(c), byref(bytes_))
        return bytes_.value

    def partial(self, head: Head[Kind], hidden: Kind | Batch[Kind] | Pointer | None = None, *, out: Out[Kind] = None,
                outputs: Outputs = (), top: int = 0, logits_mode: LogitsMode = "raw", tokens: TokenDtype = "i64",
                **rules: Unpack[BatchRules]) -> Any:
        """This shard's summary as an array of bytes (on "cuda" a tensor of its device), for merge. The arguments say
        what will be asked of merge."""
        if TYPE_CHECKING:
            offer_batch_rules(**rules)
        batch, result = self._arguments(head, hidden, out, outputs, top, logits_mode, tokens, rules)
        size = self.partial_size(head, batch, out=result)
        if self.device != "cpu":
            import torch

            part = torch.empty(size, dtype=torch.uint8, device=self.device)
        else:
            part = numpy().empty(size, "u1")
        c = result._struct(batch)
        self._run(self._library.fs_partial, head, batch, byref(c), self._address(part), size)
        return part

    @staticmethod
    def _address(part: Array) -> int:
        return part.data_ptr() if is_tensor(part) else part.ctypes.data

    @staticmethod
    def _check_sizes(parts: Sequence[Array], size: int) -> None:
        """C reads parts as far as this call's go: it is not told how long they are."""
        for i, part in enumerate(parts):
            found = part.numel() * part.element_size() if is_tensor(part) else part.nbytes
            if found != size:
                text = "part %d of %d: %d bytes, the parts of this call have %d" % (i, len(parts), found, size)
                raise Error(_c.STATUS_PEER, text)

    def merge(self, parts: Sequence[Any], head: Head[Kind], hidden: Kind | Batch[Kind] | Pointer | None = None, *,
              out: Out[Kind] = None, outputs: Outputs = (), top: int = 0, logits_mode: LogitsMode = "raw",
              tokens: TokenDtype = "i64", on_error: OnError = None, **rules: Unpack[BatchRules]) -> Result[Kind]:
        """The Result of all parts together, one per shard. The other arguments are those the parts were made with;
        on_error as in `sample`."""
        if TYPE_CHECKING:
            offer_batch_rules(**rules)
        batch, result = self._arguments(head, hidden, out, outputs, top, logits_mode, tokens, rules)
        arrays = [part if is_tensor(part) else numpy().frombuffer(part, "u1") for part in parts]
        self._check_sizes(arrays, self.partial_size(head, batch, out=result))
        pointers = (ctypes.c_void_p * len(arrays))(*(self._address(a) for a in arrays))
        c = result._struct(batch)
        looks = raises(on_error, self.device)
        room = status_room(self, c, batch.rows) if looks and not c.status else None
        self._run(self._library.fs_merge, head, batch, pointers, len(arrays), byref(c))
        if looks:
            check_rows(self, c.status, batch.rows, result)
        del room  # read until here
        return result


def context_for(device: str | None) -> Context:
    """A Context for memory of "cpu", "cuda" or "cuda:1"; None is the CPU."""
    kind: Any = (device or "cpu").split(":")[0]
    return Context(kind, device=int((device or "").partition(":")[2] or 0))


def _bits(kind: type[enum.IntFlag], value: int | Iterable[str | int], what: str) -> int:
    """Bits of an IntFlag from their sum or from names."""
    if isinstance(value, int):
        return integer(value, "u32", what)
    names = {name.lower(): bit for name, bit in kind.__members__.items()}
    return sum({choice(names, name, what) for name in ((value,) if isinstance(value, str) else value)})


def supports(backend: Backend, *, call: Literal["sample", "partial", "ranks"] = "sample",
             kind: Literal["weights", "logits"] = "weights", dtype: Dtype | Quantised = "f32",
             hidden_dtype: Dtype | None = None, mode: Mode = "sample", noise: Noise = "exact", samples: int = 1,
             logits_mode: LogitsMode = "raw", rules: int | RuleName | Iterable[RuleName] = (),
             results: int | Output | Literal["top", "watch"] | Iterable[Output | Literal["top", "watch"]] = (),
             flags: int | FlagName | Iterable[FlagName] = 0, inputs: int | InputName | Iterable[InputName] = (),
             group_size: int = 0) -> tuple[bool, str]:
    """Whether a backend does such calls, and "" or why not, in the words a call would be refused with.

    Names are those of Batch, Head and Result; rules are some of "top_k", "top_p", "min_p", "allow", "edits",
    "penalties", results of "noisy_logit", "max_logit", "log_z", "logit", "logprob", "rank", "top", "watch", "entropy",
    "survivors", inputs of "broadcast" (one hidden state for all rows) and "extra_tokens". call is "sample", "partial"
    (and merge) or "ranks". hidden_dtype is the head's unless it is said. Raises Error for what no backend could do.
    """
    hidden: Any = hidden_dtype or (dtype if dtype in _c.DTYPES else "f32")
    o = _c.CallDescStruct(size=ctypes.sizeof(_c.CallDescStruct))
    o.call, o.kind = choice(_c.CALLS, call, "call"), choice(_c.KINDS, kind, "kind")
    o.dtype = choice({**_c.DTYPES, **_c.QUANTISED}, dtype, "dtype")
    o.hidden_dtype = choice(_c.DTYPES, hidden, "hidden_dtype")
    o.mode, o.noise = choice(_c.MODES, mode, "mode"), choice(_c.NOISES, noise, "noise")
    o.samples, o.logits_mode = count_of_samples(samples), choice(_c.LOGITS, logits_mode, "logits_mode")
    o.rules, o.results = _bits(_c.Rule, rules, "rules"), _bits(_c.Wanted, results, "results")
    o.inputs = _bits(_c.Input, inputs, "inputs")
    o.flags, o.group_size = _bits(_c.Flag, flags, "flags"), integer(group_size, "i64", "group_size")
    why, lib = ctypes.c_char_p(), _c.library(backend)
    status = lib.fs_supports(choice(_c.BACKENDS, backend, "backend"), byref(o), byref(why))
    if status != _c.STATUS_UNSUPPORTED:
        _check(lib, status)
    return status == _c.STATUS_OK, (why.value or b"").decode()


def noise_gumbel(seed: int, position: int, sample: int, substream: int, token: int) -> float:
    """The Gumbel value of one token in one draw."""
    given = ((seed, "u64", "seed"), (position, "u64", "position"), (sample, "u32", "sample"),
             (substream, "u32", "substream"), (token, "u32", "token"))
    return float(_c.library().fs_noise_gumbel(*(integer(*number) for number in given)))


def seed_spread(seed: int, slot: int) -> int:
    """The seed slot `slot` draws with where the scalar `seed` was given."""
    return _c.library().fs_seed_spread(integer(seed, "u64", "seed"), integer(slot, "u64", "slot"))


def version() -> str:
    """The library's version as text."""
    return _c.library().fs_version_text().decode()


def noise_id() -> int:
    """Which noise mapping the library draws with; bit 31 = draft."""
    return _c.library().fs_noise_id()
