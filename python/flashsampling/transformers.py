"""Hugging Face transformers: generate() draws inside the LM-head matmul, and no logits are stored.

    import flashsampling.transformers as fst

    fst.patch(model)                                        # or: with fst.patch(model): ...
    model.generate(**inputs, do_sample=True, top_p=0.9)     # fused
    fst.unpatch(model)

    model.generate(**inputs, do_sample=True, custom_generate=fst.generate)    # without a patch, one call

The decoding loop is transformers' own. During it the output embedding keeps its input and returns a tensor without
numbers (_hf_logits.py). Where the loop asks its logits processors for scores, the tokens are drawn from the hidden
states, by rules read from those same processors. What is not served (Unsupported says why) is left to transformers. The
logger "flashsampling" gets one line for each reason of a model.

Every step checks the tensor that arrives. If the model's forward, a subclass or a hook has read or changed logits, they
are computed, and transformers draws this step and the rest of the call. A row with a NaN is left to it as well.

Seeds: a call that samples takes 64 bits from torch's default generator, so torch.manual_seed reproduces it; the step is
the position. The tokens are not those that transformers draws with the same seed; their distribution is the same.

generate_batch (continuous batching) is not served: its runner samples within the captured graph and hands over rows
without their requests or positions, so there is no place to draw from hidden states outside of it.
"""
from __future__ import annotations

import copyreg
import functools
import logging
import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.generation.utils import GENERATION_MODES_MAPPING, GenerationMixin

from ._c import Row, row_text
from ._call import Head
from ._context import Context, Error, supports
from ._engine_head import make_screen
from ._hf_head import NAMES, TOLERANCE, fingerprint, fit, known, output_embedding, tapped
from ._hf_logits import Deferred, Source, Steps
from ._hf_rules import Rules, Unsupported
from ._rules import ScreenBits
from ._sample import fresh_seed, generation

__all__ = ["generate", "patch", "unpatch"]

_logger = logging.getLogger("flashsampling")
_contexts = threading.local()
# Bits of the screens that patch() was asked for, and those that were made: (what they are of, screen).
_bits: WeakKeyDictionary[Any, ScreenBits] = WeakKeyDictionary()
_screens: WeakKeyDictionary[Any, tuple[tuple[Any, ...], Any]] = WeakKeyDictionary()
# Per model: the fingerprint of its head and the steps behind it, and the arguments of a Head that does the same, or the
# reason why the model is not served.
_known: WeakKeyDictionary[Any, tuple[tuple[Any, ...], dict[str, Any] | str]] = WeakKeyDictionary()
# The reasons a model's calls were left to transformers for, which have been logged.
_said: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
# Rows that transformers would not draw from either: it raises, or takes the largest, which may be NaN.
_NO_LAW = int(Row.NO_TOKEN | Row.NAN | Row.INF)
_LIST_BYTES = 2**62  # a cut is never too wide: transformers would sort the whole row


def _context(device: torch.device) -> Context:
    """This thread's context for a device; on the CPU with as many threads as torch has."""
    key = (generation(), device, torch.get_num_threads())
    made: dict[Any, Context] = _contexts.__dict__.setdefault("made", {})
    if key not in made:
        if device.type == "cuda":
            made[key] = Context("cuda", device=device.index)
        else:
            made[key] = Context("cpu", threads=torch.get_num_threads(), fallback_bytes=_LIST_BYTES)
    return made[key]


class _Drawn:
    """Tokens where transformers expects scores: whichever way it chooses from scores, these are chosen."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.softmax:
            return args[0]
        if function is torch.multinomial:
            return args[0].tokens[:, None]
        if function is torch.argmax:
            return args[0].tokens
        raise NotImplementedError("flashsampling: this version of transformers does %s with scores" % function)


class _Drawer:
    """Takes hidden states from the output embedding, and the place of the logits processors, for one generate()."""

    def __init__(self, model: Any, processors: Any, do_sample: bool) -> None:
        self.model, self.processors, self.do_sample = model, processors, do_sample
        self.embedding = output_embedding(model)
        weight = self.embedding.weight
        self.vocab, self.device = weight.shape[0], weight.device
        if torch.is_autocast_enabled(self.device.type):
            raise Unsupported("autocast is on, which changes the type of the head's product")
        self.rules = Rules(processors, do_sample, self.vocab)
        rules, flags = self.rules.used()
        try:
            backend: Any = self.device.type
            done, why = supports(backend, dtype=NAMES[weight.dtype], rules=rules, flags=flags)
        except Error as error:
            done, why = False, error.text
        if not done:
            raise Unsupported("backend %s: %s" % (self.device.type, why))
        self.fingerprint = fingerprint(self.embedding)
        # Numbers of the model itself, which its forward may scale or shift logits by.
        self.constants = {id(t): t for t in (*model.parameters(recurse=False), *model.buffers(recurse=False))}
        self.head: Head | None = None
        self.none: Steps | None = None  # where the steps behind the output embedding begin
        self.steps: Steps | None = None  # those that self.head does as well
        self.source: Source | None = None
        self.refused = False
        self.seed: int | None = None
        self.step = 0

    def _head(self, proof: dict[str, Any]) -> Head:
        bias = self.embedding.bias
        head = dict(bias=None if bias is None else bias.detach().float(), **proof)
        return Head(self.embedding.weight.detach(), screen=self._screen(), **head)

    def _screen(self) -> Any:
        """The screen that patch() was asked for, made anew where the weights are others; None without one."""
        bits, weight = _bits.get(self.model, 0), self.embedding.weight
        if bits == 0:
            return None
        made_of = weight.data_ptr(), tuple(weight.shape), None if weight.is_inference() else weight._version, bits
        found = _screens.pop(self.model, None)
        if found is None or found[0] != made_of:
            found = None  # there may be no room for two
            found = made_of, make_screen(_context(self.device), Head(weight.detach()), bits, _logger)
        _screens[self.model] = found
        return found[1]

    def take(self, hidden: torch.Tensor, original: Any) -> Any:
        """In place of the output embedding's forward. What it returns goes through the rest of the model's forward."""
        if self.refused or hidden.dim() != 3:
            return original(hidden)
        if self.none is None or (self.none.like.dtype, self.none.like.device) != (hidden.dtype, hidden.device):
            self.none = Steps.none(hidden, self.constants)
        self.source = Source(hidden, original, self.vocab)
        return Deferred(self.source, self.none, (*hidden.shape[:-1], self.vocab))

    def __call__(self, input_ids: torch.Tensor, logits: torch.Tensor) -> Any:
        """In place of the logits processors. transformers draws a step that we cannot draw, and all steps after it."""
        if self.refused:
            return self.processors(input_ids, logits)
        source, self.source = self.source, None
        try:
            if not isinstance(logits, Deferred):
                raise Unsupported(_why(source))
            self._prepare(logits)
            tokens = self._draw(input_ids, logits.source.hidden[:, -1].to(self.device).contiguous())
        except (Unsupported, Error) as reason:
            self.refused = True
            _log(self.model, reason)
            if isinstance(logits, Deferred):
                logits = logits.steps(logits.source.last())
            return self.processors(input_ids, logits)
        logits.source.drawn = True
        logits.release()
        self.step += 1
        return _Drawn(tokens.to(input_ids.device))

    def _prepare(self, logits: Deferred) -> None:
        """Sets the head for the steps that these logits went through; new steps are proven first."""
        if self.head is not None and logits.steps is self.steps:
            return
        key = self.fingerprint, logits.steps
        found = _known.get(self.model)
        verdict = found[1] if found and found[0] == key else None
        if verdict is None:
            raw = logits.source.last()
            finite = raw[:, 0].isfinite().all(-1)
            if not finite.any():
                raise Unsupported("there is no row of finite logits to compare with ours")
            try:
                verdict = self._prove(logits, raw[finite], finite)
            except Unsupported as reason:
                verdict = str(reason)
            _known[self.model] = key, verdict
        if isinstance(verdict, str):
            raise Unsupported(verdict)
        self.head, self.steps = self._head(verdict), logits.steps

    def _prove(self, logits: Deferred, raw: torch.Tensor, rows: torch.Tensor) -> dict[str, Any]:
        """Finds a Head's arguments by known numbers, and checks them on the model's own logits `raw` of `rows`."""
        if raw.shape[-1] != self.vocab or raw.dtype not in NAMES:
            text = "the output embedding gives logits %s of type %s, its weight is %s"
            raise Unsupported(text % (list(raw.shape), raw.dtype, list(self.embedding.weight.shape)))
        numbers = known(self.vocab, raw.device).expand(1, 1, -1)
        sent = torch.cat([raw.float(), numbers])  # one row more than the batch has
        came = logits.steps(sent).to(self.device)
        sent = sent[:, 0].to(self.device)
        scale, softcap = fit(sent[[0, -1]], came[[0, -1]])
        proof: dict[str, Any] = dict(round_to=NAMES[raw.dtype], scale=scale, softcap=softcap)
        stock = came[:-1]
        ids, ours = self._some_logits(self._head(proof), logits.source.hidden[:, -1][rows].to(self.device), stock)
        theirs = stock.gather(1, ids)
        worst = (ours - theirs).abs().max().item()
        limit = TOLERANCE[proof["round_to"]] * stock.abs().max().item()
        if not worst <= limit:
            at = (ours - theirs).abs().argmax()
            text = "logits are not the model's own: token %d has %.6g, expected %.6g"
            raise Unsupported(text % (ids.flatten()[at], ours.flatten()[at], theirs.flatten()[at]))
        return proof

    def _some_logits(self, head: Head, hidden: torch.Tensor,
                     stock: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [B, 32] and our logits of them: 31 over the vocabulary, and the likeliest."""
        spread = torch.linspace(0, self.vocab - 1, 31, device=self.device).long().expand(stock.shape[0], -1)
        ids = torch.cat([spread, stock.argmax(-1, keepdim=True)], -1)
        result = _context(self.device).sample(head, hidden, mode="score", samples=32, score_tokens=ids.int(),
                                              outputs=["logit"], on_error="status")
        return ids, result.check().logit

    def _draw(self, input_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        assert self.head is not None
        if self.seed is None:
            self.seed = fresh_seed(hidden) if self.do_sample else 0
        rules, forced = self.rules.at(input_ids.to(self.device))
        head, states = self.head, hidden
        if forced is not None:
            if not forced:
                raise ValueError("step %d: the tokens that are forced are banned as well" % self.step)
            zeros = torch.zeros(hidden.shape[0], len(forced), device=self.device)
            head, states = Head(logits=zeros), None  # type: ignore[assignment]
        result = _context(self.device).sample(head, states, seed=self.seed, position=self.step, on_error="status",
                                              **rules)
        found = result.status & _NO_LAW
        if found.any():
            names = {name for bits in found.tolist() for name in row_text(bits & _NO_LAW).split()} - {"OK"}
            raise Unsupported("rows have no distribution: %s" % " ".join(sorted(names)))
        tokens = result.tokens[:, 0]
        return tokens if forced is None else torch.tensor(forced, device=self.device)[tokens]


def _why(source: Source | None) -> str:
    """Why what came in place of logits is not what the output embedding returned."""
    if source is None:
        return "the model's forward did not call its output embedding with hidden states [B, T, D]"
    if source.used_by is None:
        return "the model's forward, or a hook, returned other logits than those of its output embedding"
    return "the model's forward, or a hook, read or changed logits: %s" % source.used_by


def _log(model: Any, reason: Any) -> None:
    """One line for each reason of a model."""
    said = _said.setdefault(model, set())
    if str(reason) not in said:
        said.add(str(reason))
        _logger.warning("transformers draws this itself, from stored logits: %s", reason)


def _decode(model: Any, loop: Any, input_ids: torch.Tensor, logits_processor: Any, generation_config: Any,
            **arguments: Any) -> Any:
    """The decoding loop `loop`, with our draws where they can be had."""
    if generation_config.is_assistant:  # a few tokens for another model, which wants their logits
        return loop(model, input_ids, logits_processor=logits_processor, generation_config=generation_config,
                    **arguments)
    try:
        if loop != GenerationMixin._sample:
            raise Unsupported("%s has a decoding loop of its own" % type(model).__name__)
        for name in ("output_scores", "output_logits"):
            if generation_config.return_dict_in_generate and getattr(generation_config, name):
                raise Unsupported("%s asks for all of them" % name)
        if getattr(generation_config.compile_config, "fullgraph", False):
            raise Unsupported("compile_config.fullgraph leaves no place for a call of ours")
        drawer = _Drawer(model, logits_processor, generation_config.do_sample)
    except Unsupported as reason:
        _log(model, reason)
        return loop(model, input_ids, logits_processor=logits_processor, generation_config=generation_config,
                    **arguments)
    with tapped(drawer.embedding, drawer.take):
        return loop(model, input_ids, logits_processor=drawer, generation_config=generation_config, **arguments)


def _not_handed_over(frame: Any) -> dict[str, Any]:
    """The streamer and what else transformers (5.17 to 5.23) does not hand to a custom_generate, from its caller.

    Without it a streamer would get the prompt and nothing more, and who reads from it would wait forever.
    """
    found = frame.f_locals if frame.f_code.co_name == "generate" else {}
    return {name: found[name] for name in ("streamer", "synced_gpus", "assistant_model") if found.get(name) is not None}


def generate(model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any,
             generation_config: Any, inputs_tensor: torch.Tensor | None = None, **model_kwargs: Any) -> Any:
    """A decoding loop for model.generate(..., custom_generate=flashsampling.transformers.generate).

    transformers calls it with everything prepared; the arguments are those of its own loops. Stop strings need
    patch(model) instead, because transformers hands a custom loop's tokenizer to nobody.
    """
    arguments = {**_not_handed_over(sys._getframe(1)), "stopping_criteria": stopping_criteria, **model_kwargs}
    assistant = arguments.pop("assistant_model", None)
    mode = generation_config.get_generation_mode(assistant)
    name = GENERATION_MODES_MAPPING[mode]
    if "/" in name:
        raise ValueError("custom_generate: %s needs its own, %r" % (mode.value, name))
    loop = getattr(_stock_class(model), name)
    if name == "_sample":
        return _decode(model, loop, input_ids, logits_processor, generation_config, **arguments)
    _log(model, mode.value)
    if name == "_assisted_decoding":
        arguments.update(inputs_tensor=inputs_tensor, assistant_model=assistant)
    return loop(model, input_ids, logits_processor=logits_processor, generation_config=generation_config, **arguments)


def _stock_class(model: Any) -> Any:
    return getattr(type(model), "_flashsampling_stock", type(model))


@functools.lru_cache(maxsize=None)
def _patched_class(stock: Any) -> Any:
    """A class like `stock`, whose decoding loops are ours: generate() takes them from the class of the model."""

    def loop_of(name: str) -> Any:
        original = getattr(stock, name)

        @functools.wraps(original)
        def loop(self: Any, input_ids: torch.Tensor, *, logits_processor: Any, generation_config: Any,
                 **arguments: Any) -> Any:
            if name == "_sample":
                return _decode(self, original, input_ids, logits_processor, generation_config, **arguments)
            _log(self, generation_config.get_generation_mode(arguments.get("assistant_model")).value)
            return original(self, input_ids, logits_processor=logits_processor, generation_config=generation_config,
                            **arguments)

        return loop

    def batched(self: Any, *arguments: Any, **named: Any) -> Any:
        _log(self, "generate_batch (continuous batching) samples within a captured graph")
        return stock.init_continuous_batching(self, *arguments, **named)

    def reduced(self: Any, protocol: Any) -> Any:
        """For pickle, which finds classes by their name, where `stock` is: a copy is patched too."""
        function, arguments, *rest = stock.__reduce_ex__(self, protocol)
        if function is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return function, arguments, *rest
        return _unpickled, (stock, *arguments[1:]), *rest

    body = {name: loop_of(name) for name in set(GENERATION_MODES_MAPPING.values()) if "/" not in name}
    if hasattr(stock, "init_continuous_batching"):  # which generate_batch goes through
        body["init_continuous_batching"] = functools.wraps(stock.init_continuous_batching)(batched)
    body.update(__module__=stock.__module__, __qualname__=stock.__qualname__, __doc__=stock.__doc__,
                _flashsampling_stock=stock, __reduce_ex__=reduced, __enter__=lambda self: self,
                __exit__=lambda self, *_: unpatch(self))
    return type(stock.__name__, (stock,), body)


def _unpickled(stock: Any, *arguments: Any) -> Any:
    kind = _patched_class(stock)
    return kind.__new__(kind, *arguments)


def patch(model: Any, screen: ScreenBits = 0) -> Any:
    """Makes model.generate() draw fused, and returns the model. `with patch(model):` undoes it at the end.

    Patching a model twice is patching it once, with the last `screen`. Other models of its class are as they were.

    With screen=8 or 4, a copy of the head in so many bits is read in its place where it can be (docs/explain/screens.md).
    It is made at the next generate(), and again where the weights are elsewhere or torch counts a change of them. Writes
    to weight.data it does not count: then patch again.
    """
    if screen not in (0, 8, 4):
        raise ValueError("screen: %r, expected one of 0, 8, 4" % (screen,))
    if not isinstance(model, GenerationMixin):
        text = "patch: a %s, expected a transformers model that generates (the inner one, if it is wrapped)"
        raise TypeError(text % type(model).__name__)
    model.__class__ = _patched_class(_stock_class(model))
    _bits[model] = screen
    _screens.pop(model, None)
    return model


def unpatch(model: Any) -> None:
    """Undoes patch(model); nothing happens to a model that is not patched."""
    model.__class__ = _stock_class(model)
    _bits.pop(model, None)
    _screens.pop(model, None)
