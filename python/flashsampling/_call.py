"""What goes into a call and what comes out: Head, Batch, Result. Each keeps the arrays it points to alive."""
from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from . import _c
from ._arrays import (FLOATS, ITEM, NAMES, Array, Local, Pointer, as_pointer, converted, integer, is_scalar, is_tensor,
                      new_array, no_integer, numpy, ragged, real, same_memory, screen_memory, words_of)
from ._numbers import check_words, choice, count_of_samples, factor, fallback_token_of, number
from ._rows import RowError
from ._rules import (HEAD_OPTIONS, LIMITS, PENALTIES, RULES, SLOT_RULES, Dtype, HeadOptions, Kind, LogitsMode,
                     Outputs, Rules, TokenDtype, check_names, hint)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._rules import offer_head_options, offer_rules

_FLAGS = {name.lower(): flag for name, flag in _c.Flag.__members__.items()}


def matrix(value: Array, what: str, dtype: str | None, shape: str = "") -> Pointer:
    """A Pointer to rows; `shape` says what they are, for the text of an error."""
    pointer = as_pointer(value, what, dtype)
    if len(pointer.shape) != 2:
        raise ValueError("%s: shape %s, expected two dimensions%s" % (what, list(pointer.shape), shape))
    return pointer


def floats(value: Array, what: str, dtype: str | None, shape: str) -> Pointer:
    """matrix for what is multiplied: weights, hidden states, logits."""
    pointer = matrix(value, what, dtype, shape)
    if pointer.dtype not in FLOATS:
        raise TypeError("%s: of type %s, expected %s"
                        % (what, NAMES[pointer.dtype], ", ".join(NAMES[dtype] for dtype in FLOATS)))
    return pointer


def hidden_states(hidden: Array, dtype: str | None, dim: int, vocab: int | None = None) -> Pointer:
    """A Pointer to hidden states [B, dim] of a head of `vocab` rows."""
    if dtype is None and getattr(hidden, "dtype", None) == "uint16":
        dtype = "bf16"
    pointer = floats(hidden, "hidden", dtype, ", [B, %d]" % dim)
    if pointer.shape[1] != dim:
        text = "hidden: %d columns, the head has %d" % (pointer.shape[1], dim)
        if pointer.shape[1] == vocab:
            text += ": weights [V, D] that are transposed, or logits in place of hidden states [B, D]?"
        raise ValueError(text)
    return pointer


def check_index(pointer: Pointer, masks: int) -> None:
    """Refuses masks that are not there. What lies on a device, or is known by its address alone, is not looked at."""
    if pointer.keep is None or pointer.device != "cpu":
        return
    bad = (pointer.keep < -1) | (pointer.keep >= masks)
    if bad.any():
        row = bad.argmax()
        raise ValueError("allow_index: %d for row %d, must be -1 to %d" % (pointer.keep[row], row, masks - 1))


class Head(Local, Generic[Kind]):
    """What the logits come from: weights [V, D], or stored logits [B, V] in their place.

    Arrays are float32, float16, bfloat16 of torch, or uint16 with dtype="bf16", and are used as they lie. For the cuda
    backend they are torch tensors on its device, and so is every array of the batch and the result. screen is what
    Context.screen made of these weights: bytes that may have been saved and mapped since.

    The other keywords describe the logits:
    bias [V]; first_token and vocab, which place a shard in the vocabulary; round_to="bf16" or "f16", which rounds
    logits as engines that store them do; scale and post_scale, numbers other than 0, and softcap; constant.
    """

    bias: Pointer | None
    screen: Any

    def __init__(self, weights: Kind | Pointer | None = None, logits: Kind | Pointer | None = None, *,
                 dtype: Dtype | None = None, screen: Array = None, **options: Unpack[HeadOptions]) -> None:
        if TYPE_CHECKING:
            offer_head_options(**options)
        check_names(options, HEAD_OPTIONS, ("dtype", "screen"))
        if (weights is None) == (logits is None):
            raise ValueError("a head has either weights or logits")
        self.kind = "weights" if logits is None else "logits"
        self.data = floats(weights if logits is None else logits, self.kind, dtype,
                           ", [V, D]" if logits is None else ", [B, V]")
        self.rows = self.data.shape[0] if self.kind == "weights" else self.data.shape[1]
        get, bias = options.get, options.get("bias")
        self.bias = None if bias is None else converted(bias, "f32", "bias", [self.rows])
        if self.bias:
            same_memory(self.data.device, self.bias, "bias")
        c = self.struct = _c.HeadStruct(size=ctypes.sizeof(_c.HeadStruct))
        c.kind, c.dtype, c.data = _c.KINDS[self.kind], _c.DTYPES[self.data.dtype], self.data.address
        c.rows, c.stride = self.rows, self.data.stride
        c.dim = self.data.shape[1] if self.kind == "weights" else 0
        c.first_token = integer(get("first_token", 0), "i64", "first_token")
        c.vocab = integer(get("vocab", 0), "i64", "vocab")
        c.bias = self.bias.address if self.bias else None
        c.round_to = choice(_c.ROUNDS, get("round_to", "f32"), "round_to")
        c.scale, c.softcap = factor(get("scale", 1.0), "scale"), real(get("softcap", 0.0), "softcap")
        c.post_scale = factor(get("post_scale", 1.0), "post_scale")
        c.flags = _c.HEAD_CONSTANT if get("constant") else 0
        self.screen = None
        if screen is not None:
            self.screen, c.screen, c.screen_bytes = screen_memory(screen, self.data.device)
        # What a batch relies on, in words; shards of one vocabulary may share a batch.
        shape = "weights of %d columns" if self.kind == "weights" else "%d rows of logits"
        self.text = (shape + ", %d tokens") % (self.data.shape[self.kind == "weights"], self.vocab)

    def __repr__(self) -> str:
        return "<flashsampling.Head %s, %s>" % (self.text, self.data.dtype)

    def __copy__(self) -> Head[Kind]:
        """Another Head of the same arrays."""
        twin: Head[Kind] = Head.__new__(Head)
        twin.__dict__.update(self.__dict__, struct=_c.HeadStruct.from_buffer_copy(self.struct))
        return twin

    @property
    def vocab(self) -> int:
        """Size of the whole vocabulary."""
        return int(self.struct.vocab or self.struct.first_token + self.rows)


def check_penalties(rules: Mapping[str, Any]) -> None:
    """Refuses a penalty of no tokens: a Batch, as the library, takes it for one that changes nothing."""
    if all(rules.get(name) is None for name in ("seen", "counts", "count_list", "extra_tokens")):
        for name, off in PENALTIES.items():
            if is_scalar(rules.get(name)) and rules[name] != off:
                raise ValueError("%s: %s, but of which tokens: give seen, counts, count_list or extra_tokens"
                                 % (name, rules[name]))


class Batch(Local, Generic[Kind]):
    """What is drawn. The rules are keywords, named as in the C structure:

    temperature, top_k, top_p, min_p, seed, substream, repetition, frequency, presence
        a number for all, or an array with one value per slot. A scalar seed is spread over the slots. Seeds are from
        0 to 2^64 - 1; an array of int64 is used as it lies, and negative values are refused where the host can see it.
    samples, mode, noise, fallback_token, group_size, list_capacity
    flags, or each by its name in Flag: keep_ties=True, min_p_last=True, ...
    slot [B] (int32, or int64 as it lies), slots, position (a number or [B])
    allow [masks, words] uint32, allow_index [B]; seen [S, words] uint32; counts [S, vocabulary] int32
    extra_tokens
        per row a list of tokens that count once more each for that row alone, as the drafts ahead of it do; or the
        tuple of arrays (offset, token)
    edits, count_list, watch
        per row (count_list: per slot) a dictionary {token: value}, a list of (token, value) or, for watch, of tokens;
        or the tuple of arrays (offset, token, value)
    padded_edits, in place of edits: (count [S], token [S, N] int32, bias [S, N] float32), by slot
    score_tokens [B, samples]: the tokens of mode="score"
    limits: a dictionary of fs_limits' members, absent being bits of Rule
    in_place: every array is used as it lies, so that what is written to it between calls counts; one that would have to
        be converted is refused

    A rule that is None is a rule that is not given.
    """

    rows: int
    slots: int
    samples: int
    watched: int
    device: str | None
    struct: _c.BatchStruct

    def __init__(self, head: Head[Kind], hidden: Kind | Pointer | None = None, *, hidden_dtype: Dtype | None = None,
                 in_place: bool = False, **rules: Unpack[Rules]) -> None:
        if TYPE_CHECKING:
            offer_rules(**rules)
        check_names(rules, RULES, ("hidden_dtype", "in_place"))
        given: dict[str, Any] = {name: value for name, value in rules.items() if value is not None}
        get = given.get
        self._keep: list[Pointer] = []
        self.device, self._made_for, self._in_place = head.data.device, str(head.text), bool(in_place)
        c = self.struct = _c.BatchStruct()
        c.mode = choice(_c.MODES, get("mode", "sample"), "mode")
        c.noise = choice(_c.NOISES, get("noise", "exact"), "noise")
        self.samples = c.samples = count_of_samples(get("samples", 1))
        c.fallback_token = fallback_token_of(get("fallback_token", -1))
        c.group_size = integer(get("group_size", 0), "i64", "group_size")
        c.list_capacity = integer(get("list_capacity", 0), "i32", "list_capacity")
        c.flags = integer(get("flags", 0), "u32", "flags")
        for name in _FLAGS.keys() & given.keys():
            c.flags |= _FLAGS[name] * bool(given[name])
        limits = get("limits", {})
        check_words(limits, LIMITS, "limits")
        for name, value in limits.items():
            setattr(c.own_limits, name, integer(value, LIMITS[name], "limits." + name))
        self._set_hidden(head, hidden, hidden_dtype)
        self._set_slots(given)
        self._set_masks(head, given)
        self.watched = 0
        for names, rows, dtypes in (
            (("edits", "edit_offset", "edit_token", "edit_bias"), self.rows, ("i32", "f32")),
            (("count_list", "count_offset", "count_token", "count_value"), self.slots, ("i32", "i32")),
            (("extra_tokens", "extra_offset", "extra_token"), self.rows, ("i32",)),
            (("watch", "watch_offset", "watch_token"), self.rows, ("i32",)),
        ):
            if names[0] in given:
                pointers = ragged(given[names[0]], rows, dtypes, names[0], in_place)
                for name, pointer in zip(names[1:], pointers):
                    self._point(name, pointer)
                if names[0] == "watch":
                    self.watched = pointers[1].shape[0]
                    c.own_limits.watched = c.own_limits.watched or max(1, self.watched)  # 0 is not said
        if "padded_edits" in given:
            self._set_padded_edits(*given["padded_edits"])
        if "score_tokens" in given:
            if c.mode != _c.MODES["score"]:
                raise ValueError("score_tokens: given, but mode is %r, expected \"score\"" % get("mode", "sample"))
            shape = [self.rows, self.samples]
            self._point("score_token", self._converted(given["score_tokens"], "i32", "score_tokens", shape))

    def _converted(self, value: Array, dtype: str, what: str, shape: Sequence[int]) -> Pointer:
        return converted(value, dtype, what, shape, self._in_place)

    def _check(self, head: Head[Any]) -> None:
        """Refuses a head that the arrays were not made for."""
        if head.text != self._made_for:
            raise ValueError("the batch was made for a head of %s, not of %s" % (self._made_for, head.text))
        same_memory(head.data.device, self, "batch")

    def _point(self, name: str, pointer: Pointer) -> None:
        same_memory(self.device, pointer, name)
        setattr(*self.struct.place(name, True), pointer.address)
        self._keep.append(pointer)

    def _set_hidden(self, head: Head[Any], hidden: Array, dtype: str | None) -> None:
        c = self.struct
        if head.kind == "logits":
            if hidden is not None:
                raise ValueError("hidden: a head of stored logits takes no hidden states")
            self.rows, pointer = head.data.shape[0], head.data
        else:
            if hidden is None:
                raise ValueError("hidden: a head of weights needs hidden states [B, %d]" % head.data.shape[1])
            pointer = hidden_states(hidden, dtype, head.data.shape[1], head.rows)
            self._point("hidden", pointer)
            c.hidden_dtype, c.hidden_stride = _c.DTYPES[pointer.dtype], pointer.stride
            self.rows = pointer.shape[0]
        c.rows = self.rows
        self.like = pointer.keep if is_tensor(pointer.keep) else None  # what results are made like: a tensor, or none

    def _set_slots(self, given: Mapping[str, Any]) -> None:
        c, slot, slots, position = self.struct, given.get("slot"), given.get("slots"), given.get("position")
        values = {name: given[name] for name in SLOT_RULES if name in given}
        arrays = {name: value for name, value in values.items() if not is_scalar(value)}
        if slots is None:
            lengths = [len(a.shape) and a.shape[0] if hasattr(a, "shape") else len(a) for a in arrays.values()]
            matrices = given.get("seen"), given.get("counts"), given.get("padded_edits", (None, None))[1]
            lengths += [m.shape[0] for m in matrices if m is not None]
            if "count_list" in given:
                count_list = given["count_list"]
                lengths.append(len(count_list[0]) - 1 if isinstance(count_list, tuple) else len(count_list))
            slots = lengths[0] if lengths else self.rows
            if slot is None and slots < self.rows:
                names = ", ".join(arrays) or "rules by slot"
                raise ValueError("%s: %d values, expected %d: without `slot` there is one per row"
                                 % (names, slots, self.rows))
        self.slots = c.slots = integer(slots, "i64", "slots")
        for name, value in values.items():
            dtype = SLOT_RULES[name].dtype
            if name in arrays:
                self._point(name, self._converted(value, dtype, name, [slots]))
                continue
            if name == "seed" and isinstance(value, float):
                raise no_integer(value, dtype, name)
            setattr(*c.place(name, False), number(value, name) if dtype == "f32" else integer(value, dtype, name))
        c.slot_dtype = _c.DTYPES["i32"]
        if slot is not None:
            wide = str(getattr(slot, "dtype", "")).split(".")[-1] in ("int64", "i64")
            pointer = self._converted(slot, "i64" if wide else "i32", "slot", [self.rows])
            c.slot_dtype = _c.DTYPES[pointer.dtype]
            self._point("slot", pointer)
        if is_scalar(position):
            c.position_all = integer(position, "u64", "position")
        elif position is not None:
            self._point("position", self._converted(position, "u64", "position", [self.rows]))

    def _set_padded_edits(self, count: Array, token: Array, bias: Array) -> None:
        counts = self._converted(count, "i32", "edit_count", [self.slots])
        self._point("edit_count", counts)
        strides = set()
        for name, value, dtype in (("edit_token", token, "i32"), ("edit_bias", bias, "f32")):
            pointer = matrix(value, name, dtype)
            if pointer.shape[0] < self.slots:
                raise ValueError("%s: %d rows, expected at least %d" % (name, pointer.shape[0], self.slots))
            strides.add((pointer.shape[1], pointer.stride or pointer.shape[1] * 4))
            self._point(name, pointer)
        if len(strides) > 1:
            raise ValueError("edit_token and edit_bias: rows of %s entries and bytes, expected the same"
                             % " and ".join(map(str, sorted(strides))))
        columns, stride = strides.pop()
        # What the stride has room for and the rows do not is not there behind the last one; the library knows the
        # stride.
        known = counts.keep is not None and counts.device == "cpu"
        if stride > columns * 4 and known and (counts.keep > columns).any():
            raise ValueError("edit_count: %d, rows have %d entries" % (counts.keep.max(), columns))
        self.struct.edit_stride = stride

    def _set_masks(self, head: Head[Any], given: Mapping[str, Any]) -> None:
        words, allow_index = (head.vocab + 31) // 32, given.get("allow_index")
        for name, dtype, columns, rows in (
            ("allow", "u32", words, self.rows if allow_index is None else 0),
            ("seen", "u32", words, self.slots),
            ("counts", "i32", head.vocab, self.slots),
        ):
            if name not in given:
                continue
            value, converted_now = given[name], None
            if dtype == "u32":
                value, converted_now = words_of(value, name, head.vocab, self._in_place)
            pointer = matrix(value, name, dtype)
            pointer.converted = converted_now
            if pointer.shape[0] < rows or pointer.shape[1] < columns:
                found = list(pointer.shape)
                raise ValueError("%s: shape %s, expected at least [%d, %d]" % (name, found, rows, columns))
            self._point(name, pointer)
            packed = pointer.shape[1] * 4
            setattr(self.struct, name + "_stride", pointer.stride or packed)
            if name == "allow":
                self.struct.allow_count = pointer.shape[0]
        if allow_index is not None and "allow" not in given:
            raise ValueError("allow_index: given without allow, the masks it chooses from")
        if allow_index is not None:
            pointer = self._converted(allow_index, "i32", "allow_index", [self.rows])
            check_index(pointer, self.struct.allow_count)
            self._point("allow_index", pointer)


# Fields by the shape they have.
_SAMPLE_FIELDS = {"noisy_logit": "f32", "logit": "f32", "logprob": "f32", "rank": "i32"}
_ROW_FIELDS = {"status": "u32", "max_logit": "f32", "log_z": "f32", "entropy": "f32"}
_TOP_FIELDS = {"top_token": "i32", "top_logit": "f32", "top_logprob": "f32"}
_WATCH_FIELDS = {"watch_logit": "f32", "watch_logprob": "f32"}
_SURVIVOR_FIELDS = {"survivor_token": "i32", "survivor_count": "i32"}
_FIELDS = ("tokens", *_SAMPLE_FIELDS, *_ROW_FIELDS, *_TOP_FIELDS, *_WATCH_FIELDS, *_SURVIVOR_FIELDS)


class Result(Generic[Kind]):
    """What a call wrote: arrays named as in the C structure. An array that was not asked for is an AttributeError.

    tokens [B, n], status [B] (see Row), noisy_logit, logit, logprob, rank [B, n], max_logit, log_z [B], top_token,
    top_logit, top_logprob [B, N], watch_logit, watch_logprob [entries], entropy [B]; with survivors=N the tokens that a
    row's cuts left, survivor_token [B, N], and how many there are, survivor_count [B]. [B, n] is [B] in what sample,
    sample_logits and Sampler return where `samples` was not given.

    They are tensors on the device of the hidden states (or stored logits) where those are tensors, else numpy's arrays.
    `logits_mode` says what they speak of: "raw", "processed" or "cut". Result.into(batch, arrays) writes into the
    caller's arrays instead.
    """

    OUTPUTS = tuple(_SAMPLE_FIELDS) + tuple(_ROW_FIELDS)[1:]
    _ALL = OUTPUTS[:-1]  # what every call has: "cuda", shards and ranks have no entropy

    tokens: Kind
    status: Kind
    noisy_logit: Kind
    logit: Kind
    logprob: Kind
    rank: Kind
    max_logit: Kind
    log_z: Kind
    top_token: Kind
    top_logit: Kind
    top_logprob: Kind
    watch_logit: Kind
    watch_logprob: Kind
    entropy: Kind
    survivor_token: Kind
    survivor_count: Kind

    def __init__(self, batch: Batch[Kind], outputs: Outputs = (), *, top: int = 0, logits_mode: LogitsMode = "raw",
                 tokens: TokenDtype = "i64", flat: bool = False, survivors: int = 0) -> None:
        found: Any = (outputs,) if isinstance(outputs, str) and outputs != "all" else outputs
        survivors = integer(survivors, "i32", "survivors")
        try:
            found, top = self._ALL if found == "all" else tuple(found), integer(top, "i32", "top")
        except TypeError:
            raise TypeError("outputs: %r, expected some of %s" % (outputs, ", ".join(self.OUTPUTS))) from None
        check_words(found, self.OUTPUTS, "outputs")
        choice(_c.LOGITS, logits_mode, "logits_mode")
        if tokens not in ("i32", "i64"):
            raise ValueError("tokens %r: expected i32 or i64" % (tokens,))
        if top < 0:
            raise ValueError("top: %d, expected 0 or more" % top)
        if survivors < 0:
            raise ValueError("survivors: %d, expected 0 or more" % survivors)
        if batch.like is None and (batch.device or "cpu") != "cpu":
            raise ValueError("out: the head is in memory of %s and no tensor; give the arrays to write to, "
                             "{\"tokens\": ...}" % batch.device)
        wanted = ("tokens", "status") + found + tuple(_TOP_FIELDS) * bool(top)
        wanted += tuple(_WATCH_FIELDS) * bool(batch.watched) + tuple(_SURVIVOR_FIELDS) * bool(survivors)
        arrays = {name: new_array(batch.like, *self._field(name, batch, top, tokens, survivors, flat))
                  for name in wanted}
        self._set(arrays, top, logits_mode, tokens)

    @classmethod
    def into(cls, batch: Batch[Kind], arrays: Mapping[str, Any], *, logits_mode: LogitsMode = "raw") -> Result[Kind]:
        """A Result of the caller's packed arrays, by name; what is not among them is not asked for. With one sample
        per row [B] does for [B, 1]."""
        if not isinstance(arrays, Mapping):
            raise TypeError("out: a %s, expected a dictionary of arrays" % type(arrays).__name__)
        tokens = as_pointer(arrays["tokens"], "tokens").dtype if "tokens" in arrays else "i32"
        if tokens not in ("i32", "i64"):
            raise TypeError("tokens: of type %s, expected int32 or int64" % NAMES[tokens])
        top = next((arrays[name].shape[-1] for name in _TOP_FIELDS if name in arrays), 0)
        check_words(arrays, _FIELDS, "out")
        result = cls._of(arrays, top, logits_mode, tokens)
        result._struct(batch)
        return result

    @classmethod
    def _of(cls, arrays: Mapping[str, Any], top: int, logits_mode: LogitsMode, tokens: str) -> Result[Kind]:
        """A Result of these arrays, as they are."""
        result = cls.__new__(cls)
        result._set(arrays, top, logits_mode, tokens)
        return result

    @staticmethod
    def _field(name: str, batch: Batch[Any], top: int, tokens: str, survivors: int,
               flat: bool = False) -> tuple[str, tuple[int, ...]]:
        """A field's dtype and shape; flat: without the dimension of samples."""
        by_sample = (batch.rows,) if flat else (batch.rows, batch.samples)
        if name == "tokens":
            return tokens, by_sample
        if name in _ROW_FIELDS:
            return _ROW_FIELDS[name], (batch.rows,)
        if name in _SAMPLE_FIELDS:
            return _SAMPLE_FIELDS[name], by_sample
        if name in _TOP_FIELDS:
            return _TOP_FIELDS[name], (batch.rows, top)
        if name in _SURVIVOR_FIELDS:
            return _SURVIVOR_FIELDS[name], (batch.rows, survivors) if name == "survivor_token" else (batch.rows,)
        return _WATCH_FIELDS[name], (batch.watched,)

    def _set(self, arrays: Mapping[str, Any], top: int, logits_mode: LogitsMode, tokens: str) -> None:
        self.logits_mode, self._tokens, self._top = logits_mode, tokens, top
        self.__dict__.update(arrays)

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS:
            raise AttributeError("a Result has no attribute %r%s" % (name, hint(name, _FIELDS)))
        ways = {**dict.fromkeys(self.OUTPUTS, 'outputs=["%s"]' % name), **dict.fromkeys(_TOP_FIELDS, "top=N"),
                **dict.fromkeys(_SURVIVOR_FIELDS, "survivors=N"),
                **dict.fromkeys(_WATCH_FIELDS, "watch=[[token, ...], ...]")}
        way = ways.get(name, "its array in out")
        raise AttributeError("%s: not among the results; ask for it with %s" % (name, way))

    @property
    def ok(self) -> bool:
        """Whether no row lacks a token; skipped rows do not count. Waits for the device. Needs the statuses among the
        results."""
        return not bool((self._statuses() & _c.LACKS_TOKEN).any())

    def check(self) -> Result[Kind]:
        """Raises RowError if a row lacks a token; returns the result."""
        if not self.ok:
            raise RowError(self._statuses().tolist(), self)
        return self

    def _statuses(self) -> Any:
        if "status" not in self.arrays():
            raise ValueError("status: not among the results")
        return self.status

    def __repr__(self) -> str:
        found = ["%s %s" % (name, list(array.shape)) for name, array in self.arrays().items()]
        return "<flashsampling.Result %s>" % ", ".join(found)

    def arrays(self) -> dict[str, Kind]:
        """The arrays there are, by name."""
        return {name: array for name in _FIELDS if (array := self.__dict__.get(name)) is not None}

    @staticmethod
    def _pointer(array: Array, name: str, dtype: str, shape: tuple[int, ...], batch: Batch[Any]) -> Pointer:
        """A Pointer to the caller's own array, of just this shape: the library writes all of it."""
        pointer = as_pointer(array, name, dtype)
        if array is not pointer and array is not pointer.keep:
            raise TypeError("%s: a %s, expected an array to write to" % (name, type(array).__name__))
        if getattr(array, "__array_interface__", {"data": (0, False)})["data"][1]:
            raise ValueError("%s: a read-only array" % name)
        same_memory(batch.device, pointer, name)
        if pointer.shape != shape and not (batch.samples == 1 and pointer.shape + (1,) == shape):
            raise ValueError("%s: shape %s, expected %s" % (name, list(pointer.shape), list(shape)))
        if pointer.stride not in (0, pointer.shape[-1] * ITEM[dtype]) and 0 not in shape:
            raise ValueError("%s: rows are %d bytes apart, expected a packed array" % (name, pointer.stride))
        return pointer

    def _struct(self, batch: Batch[Any]) -> _c.ResultStruct:
        """The C structure for a call with this batch; refuses arrays that do not fit it, whenever they were set."""
        c = _c.ResultStruct(size=ctypes.sizeof(_c.ResultStruct))
        c.tokens_dtype = choice(_c.DTYPES, self._tokens, "tokens")
        c.logits_mode, c.top_count = choice(_c.LOGITS, self.logits_mode, "logits_mode"), self._top
        arrays = self.arrays()
        c.survivor_limit = arrays["survivor_token"].shape[-1] if "survivor_token" in arrays else 0
        for name, array in arrays.items():
            field = self._field(name, batch, self._top, self._tokens, c.survivor_limit)
            setattr(c, name, self._pointer(array, name, *field, batch).address)
        return c

    def _first(self, rows: int) -> Result[Kind]:
        """The result of the first rows: views of this one's arrays. Those of watched tokens are not cut."""
        arrays = {name: a if name in _WATCH_FIELDS else a[:rows] for name, a in self.arrays().items()}
        return Result._of(arrays, self._top, self.logits_mode, self._tokens)


Out = Result[Kind] | dict[str, Any] | None  # what a call writes to
