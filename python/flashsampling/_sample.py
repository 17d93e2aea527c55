"""One call from scratch: sample and sample_logits, and the contexts they draw with."""
from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from ._arrays import Array, Pointer, is_tensor
from ._call import Batch, Head, Result, check_penalties
from ._context import Context, context_for
from ._rules import (HEAD_OPTIONS, SAMPLE_RULES, Dtype, Kind, LogitsMode, OnError, Outputs, SampleRules, TokenDtype,
                     check_names)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CALL = ("outputs", "top", "logits_mode", "tokens", "dtype", "context", "out", "on_error")

_contexts = threading.local()
_generation = 0


def generation() -> int:
    """Counts forks: a child starts without the contexts of its parent."""
    return _generation


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)


def default_context(device: str = "cpu") -> Context:
    """This thread's context for a device ("cpu", "cuda:0"), made when it is first asked for."""
    if getattr(_contexts, "generation", None) != _generation:
        _contexts.generation, _contexts.made = _generation, {}
    made = _contexts.made
    if device not in made:
        made[device] = context_for(device)
    found: Context = made[device]
    return found


def fresh_seed(like: Any = None) -> int:
    """64 bits: for a tensor from torch's default generator, which torch.manual_seed sets, else from the system."""
    if is_tensor(like):
        import torch

        return int(torch.randint(-(2**63), 2**63 - 1, (), device="cpu")) % 2**64
    return int.from_bytes(os.urandom(8), "little")


def _draw(source: dict[str, Any], hidden: Any, like: Any, context: Context | None, out: dict[str, Any] | None,
          on_error: OnError, asked: dict[str, Any], given: SampleRules) -> Result[Any]:
    check_names(given, SAMPLE_RULES, _CALL)
    rules: dict[str, Any] = {"seed": None, **given}
    head: Head[Any] = Head(**source, **{name: rules.pop(name) for name in HEAD_OPTIONS & rules.keys()})
    if context is not None and not isinstance(context, Context):
        raise TypeError("context: a %s, expected a Context" % type(context).__name__)
    if rules["seed"] is None:
        rules["seed"] = fresh_seed(like)
    if rules.get("slot") is None and rules.get("slots") is None and len(getattr(like, "shape", [])) > 0:
        rules["slots"] = like.shape[0]  # a value a row: one more or less is a mistake
    if out is not None and (asked["outputs"] or asked["top"]):
        raise ValueError("outputs, top: given beside out, whose arrays say what is wanted")
    batch = Batch(head, hidden, **rules)
    check_penalties(rules)
    flat = rules.get("samples") is None
    mode = asked["logits_mode"]
    result = Result(batch, flat=flat, **asked) if out is None else Result.into(batch, out, logits_mode=mode)
    return (context or default_context(head.data.device or "cpu")).sample(head, batch, out=result, on_error=on_error)


def sample(hidden: Kind | Pointer, weight: Array, *, outputs: Outputs = (), top: int = 0,
           logits_mode: LogitsMode = "raw", tokens: TokenDtype = "i64", dtype: Dtype | None = None,
           context: Context | None = None, out: dict[str, Any] | None = None, on_error: OnError = "raise",
           **rules: Unpack[SampleRules]) -> Result[Kind]:
    """Draws the next token of every row of `hidden` from softmax(hidden @ weight.T), without storing the logits.

    hidden is [B, D], weight [V, D]: numpy arrays or torch tensors, in host memory or on one CUDA device, float32,
    float16 or bfloat16 (numpy: uint16 with dtype="bf16"), rows at any stride, used as they lie. Returns a Result of the
    same kind on the same device: result.tokens [B] int64, or [B, n] where samples=n is given, result.status [B].

    temperature (0 = greedy), top_k, top_p, min_p, and the other rules of Batch by their names (samples, edits, allow,
        repetition, slot, mode, ...): numbers, or arrays with one value a row. What is not given is off.
    seed, position: equal ones draw equal tokens. A seed that is a number is spread over the rows; None, the default, is
        64 fresh bits: for tensors from torch's generator, which torch.manual_seed sets, else from the system.
    outputs=["logprob", ...], top=N, logits_mode="raw" | "processed" | "cut", tokens="i64" | "i32": what else is
        returned, see Result. out={"tokens": array, ...}: the caller's arrays to write to instead.
    bias [V], scale, softcap, post_scale, round_to, vocab, first_token: of the head, see Head.
    context: a Context to draw with; by default one per thread and device is kept.

    on_error: by default RowError, which has the result, is raised if a row lacks a token: all its logits are NaN, a
        mask is empty, a rule is out of range. "status" gives such a row the token -1 (fallback_token), which is no
        index, and its status. On CUDA "raise" waits for the device, unless a graph is captured, which cannot raise:
        there it is "status". None is "raise" on the CPU and "status" on CUDA. A skipped row (slot -1) is no error.

    Calls on tensors of a CUDA device are queued on torch's current stream. A loop prepares its call once: Sampler.
    """
    asked = dict(outputs=outputs, top=top, logits_mode=logits_mode, tokens=tokens)
    return _draw(dict(weights=weight, dtype=dtype), hidden, hidden, context, out, on_error, asked, rules)


def sample_logits(logits: Kind | Pointer, *, outputs: Outputs = (), top: int = 0, logits_mode: LogitsMode = "raw",
                  tokens: TokenDtype = "i64", dtype: Dtype | None = None, context: Context | None = None,
                  out: dict[str, Any] | None = None, on_error: OnError = "raise",
                  **rules: Unpack[SampleRules]) -> Result[Kind]:
    """Draws from stored logits [B, V], float32, float16 or bfloat16, with the rules and results of `sample`."""
    asked = dict(outputs=outputs, top=top, logits_mode=logits_mode, tokens=tokens)
    return _draw(dict(logits=logits, dtype=dtype), None, logits, context, out, on_error, asked, rules)
