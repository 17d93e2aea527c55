"""The head of a model in vLLM: what its logits come from, and proof that ours are the same.

There is no table of architectures. compute_logits runs once with known hidden states, while its LogitsProcessor layer
is watched: a model that hands its hidden states to that layer as they are, and returns what the layer returns, is
served if the layer's head is plain. Then some logits are compared.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch

from ._call import Head
from ._context import Context

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# How far logits may be from the model's own, of the largest of their row: what another order of additions makes of a
# sum, or roundings of the head's type, of which soft-caps and scales have several.
_TOLERANCE = {"f32": 1e-4, "f16": 2.0**-8, "bf16": 2.0**-5}
_PLAIN = ("UnquantizedEmbeddingMethod", "UnquantizedLinearMethod")
_LOGITS_PROCESSOR = "vllm.model_executor.layers.logits_processor"
_PROBE_ROWS, _PROBE_TOKENS = 2, 64


class Unserved(Exception):
    """Why vLLM's own sampler draws."""


class Layer(NamedTuple):
    """What was seen of a model's last layer."""

    lm_head: Any
    weight: torch.Tensor  # [V padded / ranks, D]
    bias: torch.Tensor | None
    vocab: int
    first_token: int
    ranks: int
    round: str  # what logits are stored in
    softcap: float
    scale: float


def watched(model: Any, hidden: torch.Tensor) -> tuple[Any, dict[str, Any], torch.Tensor]:
    """The LogitsProcessor that compute_logits(hidden) goes through, its arguments, and the logits; or Unserved."""
    kind = import_module(_LOGITS_PROCESSOR).LogitsProcessor
    signature, calls = inspect.signature(kind.forward), []
    if not {"lm_head", "hidden_states", "embedding_bias"} <= set(signature.parameters):
        raise Unserved("LogitsProcessor.forward takes %s" % ", ".join(signature.parameters))

    def watch(layer: Any) -> Any:
        original = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            logits = original(*args, **kwargs)
            calls.append((layer, signature.bind(layer, *args, **kwargs).arguments, logits))
            return logits

        return forward

    layers = [layer for layer in model.modules() if isinstance(layer, kind)]
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = watch(layer)
    try:
        logits = model.compute_logits(hidden)
    finally:
        for layer, forward in zip(layers, before):
            del layer.forward
            if forward is not None:
                layer.forward = forward
    if len(calls) != 1:
        raise Unserved("%s computes its logits in %d plain LogitsProcessors" % (type(model).__name__, len(calls)))
    layer, arguments, returned = calls[0]
    given = arguments["hidden_states"]
    if type(layer) is not kind or "forward" in layer.__dict__:
        raise Unserved("logits come from a %s of its own" % type(layer).__name__)
    if given.data_ptr() != hidden.data_ptr() or given.shape != hidden.shape or given.stride() != hidden.stride():
        raise Unserved("%s changes hidden states on their way to the head" % type(model).__name__)
    if logits is not returned or logits is None:
        raise Unserved("%s changes its logits behind the head" % type(model).__name__)
    unknown = set(arguments) - {"self", "lm_head", "hidden_states", "embedding_bias"}
    if unknown or layer.logits_as_input:
        raise Unserved("the head is called with %s" % (", ".join(sorted(unknown)) or "logits"))
    return layer, arguments, logits


def layer_of(layer: Any, arguments: dict[str, Any], hidden: torch.Tensor, ranks: int) -> Layer:
    """A LogitsProcessor with a plain head as a Layer, or Unserved."""
    lm_head = arguments["lm_head"]
    method, weight = type(lm_head.quant_method).__name__, getattr(lm_head, "weight", None)
    if method not in _PLAIN:
        raise Unserved("the head is quantised or adapted (%s)" % method)
    if weight is None or weight.layout != torch.strided or weight.dim() != 2 or weight.stride(1) != 1:
        raise Unserved("the head's weight is no plain matrix")
    if weight.dtype not in DTYPES or weight.dtype != hidden.dtype:
        raise Unserved("the head is %s, hidden states are %s" % (weight.dtype, hidden.dtype))
    if weight.dtype == torch.float32 and weight.is_cuda:
        raise Unserved("a float32 head has no tensor cores here")
    stored = layer.head_dtype or hidden.dtype
    if stored not in (hidden.dtype, torch.float32):
        raise Unserved("logits are stored as %s, the head is %s" % (stored, weight.dtype))
    indices = getattr(lm_head, "shard_indices", None)
    if indices is not None and indices.num_added_elements_padded:
        raise Unserved("the head has %d rows of added tokens" % indices.num_added_elements_padded)
    if ranks > 1 and indices is None:
        raise Unserved("the head is not split over the %d ranks" % ranks)
    first = indices.padded_org_vocab_start_index if indices is not None else 0
    return Layer(lm_head, weight, arguments.get("embedding_bias"), layer.org_vocab_size, first, ranks, DTYPES[stored],
                 layer.soft_cap or 0.0, layer.scale)


def head_of(layer: Layer, round: str, bias: torch.Tensor | None) -> Head:
    """The Head of a layer; `bias` is its bias in float32."""
    # vLLM caps first and scales then.
    return Head(layer.weight.data, first_token=layer.first_token, vocab=layer.vocab, round=round, bias=bias,
                softcap=layer.softcap, post_scale=layer.scale, constant=layer.weight.is_cuda)


def known_hidden(dim: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Hidden states to compare logits of. Those of a profile run may be anything, NaN too."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn((_PROBE_ROWS, dim), generator=generator).to(dtype).to(device)


def compare(context: Context, layer: Layer, hidden: torch.Tensor, logits: torch.Tensor) -> None:
    """Holds logits of this rank's rows of the head against the model's own. Waits for the device: at start-up alone."""
    rows = min(layer.weight.shape[0], layer.vocab - layer.first_token)
    if rows <= 0:
        return  # all of it is padding
    ids = torch.linspace(0, rows - 1, min(rows, _PROBE_TOKENS), dtype=torch.float64, device=hidden.device)
    ids = ids.to(torch.int32).expand(hidden.shape[0], -1).contiguous()
    whole = layer._replace(vocab=rows, first_token=0)
    head = head_of(whole, "f32", None if layer.bias is None else layer.bias.float())
    ours = context.sample(head, hidden, mode="score", given=ids, samples=ids.shape[1], outputs=["logit"]).logit
    theirs = logits.gather(1, ids.long() + layer.first_token).float()
    largest = theirs.abs().amax(1, keepdim=True)
    error = ((ours - theirs).abs() / largest.clamp_min(1e-6)).nan_to_num(torch.inf)
    limit = _TOLERANCE[DTYPES[layer.weight.dtype]]
    if float(error.max()) > limit:
        row, column = divmod(int(error.argmax()), error.shape[1])
        raise Unserved("logits are not the model's own: token %d has %g, ours is %g"
                       % (int(ids[row, column]) + layer.first_token, theirs[row, column], ours[row, column]))


def agreed(gather: Callable[[torch.Tensor], torch.Tensor] | None, device: torch.device, why: str | None) -> None:
    """Unserved on every rank if it is so on one: ranks that went different ways would wait for each other forever."""
    if gather is not None:
        flags = gather(torch.tensor([why is not None], dtype=torch.int32, device=device))
        if why is None and bool(flags.any()):
            why = "another rank is not served"
    if why is not None:
        raise Unserved(why)
