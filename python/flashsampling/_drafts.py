"""accept_drafts: how many drafts of each sequence equal what the target drew, and which tokens follow."""
import ctypes
import math
from collections.abc import Sequence
from ctypes import byref
from typing import Any, Literal, overload

from . import _c
from ._arrays import Array, Pointer, as_pointer, converted, integer, is_tensor, new_array, numpy, same_memory
from ._context import Context, _check, _refuse_converted


def _even(d: _c.DraftsStruct, draft: Array, target: Array, dtype: str) -> list[Pointer]:
    """Sequences of one length: [R, k] and [R, k + 1]."""
    drafts = converted(draft, dtype, "draft", [-1, -1])
    d.sequences, d.draft_length = drafts.shape
    return [drafts, converted(target, dtype, "target", [d.sequences, d.draft_length + 1])]


def _ragged(d: _c.DraftsStruct, draft: Array, target: Array, dtype: str, offsets: Array,
            draft_offsets: Array) -> list[Pointer]:
    """Sequences of any lengths. C is not told how long arrays are: offsets beyond them are refused here, and those that
    descend there."""
    drafts, targets = converted(draft, dtype, "draft", [-1]), converted(target, dtype, "target", [-1])
    at = converted(offsets, "i64", "offsets", [-1])
    if not at.shape[0]:
        raise ValueError("offsets: no entry, expected one more than there are sequences")
    d.sequences, d.target_offset = at.shape[0] - 1, at.address
    starts = None if draft_offsets is None else converted(draft_offsets, "i64", "draft_offsets", [d.sequences])
    d.draft_offset = starts.address if starts else None
    if at.device == "cpu":
        length = numpy().maximum(at.keep[1:] - at.keep[:-1] - 1, 0)
        last = int(length.sum()) if not starts else int((starts.keep + length)[length > 0].max(initial=0))
        if at.keep[-1] > targets.shape[0]:
            raise ValueError("offsets: end at %d, target has %d tokens" % (at.keep[-1], targets.shape[0]))
        if last > drafts.shape[0]:
            raise ValueError("draft: %d tokens, the offsets speak of %d" % (drafts.shape[0], last))
    return [drafts, targets, at, *([starts] if starts else [])]


def _longest(d: _c.DraftsStruct, pointers: Sequence[Pointer]) -> int:
    """Targets of the longest sequence."""
    if not d.target_offset:
        return int(d.draft_length) + 1
    at = pointers[2].keep
    return min(int((at[1:] - at[:-1]).max(initial=0)), pointers[1].shape[0])  # the library refuses more


@overload
def accept_drafts(draft: Array, target: Array, *, offsets: Array = None, draft_offsets: Array = None,
                  emit: None = None, width: int = 0, context: Context | None = None, out: Array = None) -> Any: ...
@overload
def accept_drafts(draft: Array, target: Array, *, offsets: Array = None, draft_offsets: Array = None,
                  emit: Literal["packed", "padded"], width: int = 0, context: Context | None = None,
                  out: Array = None) -> tuple[Any, Any, Any]: ...
def accept_drafts(draft: Array, target: Array, *, offsets: Array = None, draft_offsets: Array = None,
                  emit: str | None = None, width: int = 0, context: Context | None = None, out: Array = None) -> Any:
    """How many leading drafts of each sequence equal what the target drew at their place: int32 [R], a tensor where
    draft is one, else numpy's; or out, which is written to.

    draft is [R, k] and target [R, k + 1]. With offsets [R + 1] they are of one dimension: sequence s has
    target[offsets[s]:offsets[s + 1]] and one draft fewer, an empty one neither. Its drafts begin at draft_offsets[s];
    without draft_offsets the drafts of all sequences lie one behind another. Tokens are int32 or int64; a negative
    draft is never accepted.

    emit="packed" or "padded" returns (counts, tokens, starts): a sequence emits its first counts[s] + 1 targets, an
    empty one none. Packed tokens are those of sequence s at tokens[starts[s]:starts[s + 1]]; padded ones are
    [R, width], filled up with -1, width being that of the longest sequence unless it is given.

    With a context of "cuda" arrays are in its memory and the call is only queued; offsets and emit are refused there.
    """
    dtypes = {str(getattr(tokens, "dtype", "")).split(".")[-1] for tokens in (draft, target)}
    dtype, like = "i64" if dtypes & {"int64", "i64"} else "i32", draft if is_tensor(draft) else None
    if offsets is None and draft_offsets is not None:
        raise ValueError("draft_offsets: given without offsets")
    if emit not in (None, "packed", "padded"):
        raise ValueError("emit: %r, expected \"packed\" or \"padded\"" % (emit,))
    d = _c.DraftsStruct(size=ctypes.sizeof(_c.DraftsStruct), tokens_dtype=_c.DTYPES[dtype])
    pointers = (_even(d, draft, target, dtype) if offsets is None
                else _ragged(d, draft, target, dtype, offsets, draft_offsets))
    out = new_array(like, "i32", (d.sequences,)) if out is None else out
    accepted = as_pointer(out, "out", "i32")
    if accepted.shape != (d.sequences,):
        raise ValueError("out: shape %s, expected [%d]" % (list(accepted.shape), d.sequences))
    _refuse_converted(pointers)
    for pointer, name in zip((accepted, *pointers), ("out", "draft", "target", "offsets", "draft_offsets")):
        same_memory(context.device if context else "cpu", pointer, name)
    d.draft, d.target, d.accepted = pointers[0].address, pointers[1].address, accepted.address
    tokens: Any = None
    starts: Any = None
    if emit is not None:
        if emit == "padded":
            d.tokens_width = integer(width, "i64", "width") or max(_longest(d, pointers), 1)
        targets = math.prod(pointers[1].shape)
        tokens = new_array(like, dtype, (d.sequences, d.tokens_width) if d.tokens_width else (max(targets, 1),))
        starts = new_array(like, "i64", (d.sequences + 1,))
        d.tokens, d.token_offset = as_pointer(tokens, "tokens").address, as_pointer(starts, "starts").address
    handle, lib = (context._handle(), context._library) if context else (None, _c.library())
    _check(lib, lib.fs_accept_drafts(handle, byref(d)), handle)
    if emit == "packed":
        tokens = tokens[: int(starts[-1])]
    return out if emit is None else (out, tokens, starts)
