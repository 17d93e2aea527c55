"""One call from scratch: sample and sample_logits, and the contexts they draw with."""
from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from ._arrays import Array, Pointer, check_plain, is_tensor
from ._call import Batch, Head, Result, check_penalties
from ._context import Context, context_for
from ._repeat import Call, keep
from ._rows import check_rows, raises
from ._rules import (HEAD_OPTIONS, SAMPLE_RULES, Dtype, Generator, Kind, LogitsMode, OnError, Outputs, SampleRules,
                     TokenDtype, check_names)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._rules import offer_sample_rules

_CALL = ("outputs", "top", "logits_mode", "tokens", "dtype", "context", "out", "on_error")

_own = threading.local()
_generation = 0


def generation() -> int:
    """Counts forks: a child starts without the contexts of its parent."""
    return _generation


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)


def _of_thread() -> Any:
    """This thread's contexts by device, and its entries for repeated calls, in the order of their last use."""
    if getattr(_own, "generation", None) != _generation:
        _own.contexts, _own.entries, _own.seed, _own.generation = {}, {}, None, _generation
    return _own


def default_context(device: str = "cpu") -> Context:
    """This thread's context for a device ("cpu", "cuda:0"), made when it is first asked for."""
    made = _of_thread().contexts
    if device not in made:
        made[device] = context_for(device)
    found: Context = made[device]
    return found


def fresh_seed(like: Any = None, generator: Generator = None) -> int:
    """64 bits from a generator. Without one, for a tensor from torch's default generator, which torch.manual_seed sets,
    else from the system."""
    if generator is not None:
        return _bits_of(generator)
    if is_tensor(like):
        own = _of_thread()
        if own.seed is None:
            import torch

            with torch.inference_mode(False):
                own.seed = torch.empty((), dtype=torch.int64, device="cpu")
        return int(own.seed.random_(-(2**63), 2**63 - 1)) % 2**64
    return int.from_bytes(os.urandom(8), "little")


def _source(value: Any) -> str | None:
    """The package whose generator a value is."""
    for module, name in (("numpy.random", "numpy"), ("torch", "torch")):
        if module in sys.modules and isinstance(value, sys.modules[module].Generator):
            return name
    return None


def _bits_of(generator: Any) -> int:
    """64 bits of a generator, which goes on; one of a device is waited for."""
    source = _source(generator)
    if source == "numpy":
        return int(generator.integers(0, 2**64, dtype="u8"))
    if source == "torch":
        import torch

        return int(torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=generator.device)) % 2**64
    raise TypeError("generator: a %s, expected a torch.Generator or a numpy.random.Generator"
                    % type(generator).__name__)


def check_seed(seed: Any, generator: Any = None) -> None:
    """Refuses two seeds, and a generator in place of one."""
    if seed is not None and generator is not None:
        raise ValueError("generator: given beside seed, which it would be the source of")
    if seed is not None and _source(seed):
        raise TypeError("seed: a %s, expected integers; generator= takes it" % type(seed).__name__)


def _draw(kind: str, hidden: Any, data: Any, dtype: Dtype | None, context: Context | None, out: dict[str, Any] | None,
          on_error: OnError, asked: tuple[Any, ...], given: SampleRules) -> Result[Any]:
    """Draws from hidden states and weights, or from stored logits: like a recent call, or from scratch."""
    rules: dict[str, Any] = {"seed": None, **given}
    generator = rules.pop("generator", None)
    if rules["seed"] is None:
        rules["seed"] = fresh_seed(data if kind == "logits" else hidden, generator)
    elif type(rules["seed"]) is not int or generator is not None:
        check_seed(rules["seed"], generator)
    entries, call, entry = _of_thread().entries, None, None
    if context is None and out is None and type(asked[0]) in (str, tuple, list):
        call = Call(kind, hidden, data, rules, (tuple(asked[0]), dtype, *asked[1:]))
        try:
            entry = entries.pop(call.key, None)
        except TypeError:  # an argument without a hash, which the long way refuses by name
            call.key = None
    if call is None or entry is None:
        made = _from_scratch(kind, hidden, data, dtype, context, out, on_error, asked, rules)
        if call is not None and call.key is not None:
            keep(entries, call, *made)
        return made[-1]
    result = entry.draw(call)
    entries[call.key] = entry
    if raises(on_error, entry.context.device):
        check_rows(entry.context, entry.result.status, entry.rows, result)
    return result


def _from_scratch(kind: str, hidden: Any, data: Any, dtype: Dtype | None, context: Context | None,
                  out: dict[str, Any] | None, on_error: OnError, asked: tuple[Any, ...],
                  rules: dict[str, Any]) -> tuple[Context, Head[Any], Batch[Any], Result[Any]]:
    """A call that looks at all it is given, and what it was made with."""
    check_names(rules, SAMPLE_RULES, _CALL)
    like, what = (data, "logits") if kind == "logits" else (hidden, "hidden")
    check_plain(like, what)
    about = {name: rules.pop(name) for name in HEAD_OPTIONS & rules.keys()}
    head: Head[Any] = Head(**{kind: data}, dtype=dtype, **about)
    if context is not None and not isinstance(context, Context):
        raise TypeError("context: a %s, expected a Context" % type(context).__name__)
    if rules.get("slot") is None and rules.get("slots") is None and len(getattr(like, "shape", [])) > 0:
        rules["slots"] = like.shape[0]  # a value a row: one more or less is a mistake
    outputs, top, logits_mode, tokens = asked
    if out is not None and (outputs or top):
        raise ValueError("outputs, top: given beside out, whose arrays say what is wanted")
    batch: Batch[Any] = Batch(head, hidden, **rules)
    check_penalties(rules)
    if out is None:
        flat = rules.get("samples") is None
        result = Result(batch, outputs, top=top, logits_mode=logits_mode, tokens=tokens, flat=flat)
    else:
        result = Result.into(batch, out, logits_mode=logits_mode)
    context = context or default_context(head.data.device or "cpu")
    return context, head, batch, context.sample(head, batch, out=result, on_error=on_error)


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
        64 fresh bits: of generator, torch's or numpy's, if it is given; else, for tensors, of torch's default
        generator, which torch.manual_seed sets; else of the system.
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
    if TYPE_CHECKING:
        offer_sample_rules(**rules)
    asked = outputs, top, logits_mode, tokens
    return _draw("weights", hidden, weight, dtype, context, out, on_error, asked, rules)


def sample_logits(logits: Kind | Pointer, *, outputs: Outputs = (), top: int = 0, logits_mode: LogitsMode = "raw",
                  tokens: TokenDtype = "i64", dtype: Dtype | None = None, context: Context | None = None,
                  out: dict[str, Any] | None = None, on_error: OnError = "raise",
                  **rules: Unpack[SampleRules]) -> Result[Kind]:
    """Draws from stored logits [B, V], float32, float16 or bfloat16, with the rules and results of `sample`."""
    if TYPE_CHECKING:
        offer_sample_rules(**rules)
    asked = outputs, top, logits_mode, tokens
    return _draw("logits", None, logits, dtype, context, out, on_error, asked, rules)
