"""The head of a model in vLLM.

There is no table of architectures. compute_logits runs once with known hidden states, while its LogitsProcessor layer
is watched: a model that hands its hidden states to that layer as they are, and returns what the layer returns, is
served if the layer's head is plain. Then some logits are compared (_engine_head.py).
"""
from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import torch

from ._engine_head import DTYPES, PLAIN, Layer, Unserved, plain_weight

_LOGITS_PROCESSOR = "vllm.model_executor.layers.logits_processor"


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
    method = type(lm_head.quant_method).__name__
    if method not in PLAIN:
        raise Unserved("the head is quantised or adapted (%s)" % method)
    weight = plain_weight(lm_head, hidden)
    stored = layer.head_dtype or hidden.dtype
    if stored not in (hidden.dtype, torch.float32):
        raise Unserved("logits are stored as %s, the head is %s" % (stored, weight.dtype))
    indices = getattr(lm_head, "shard_indices", None)
    if indices is not None and indices.num_added_elements_padded:
        raise Unserved("the head has %d rows of added tokens" % indices.num_added_elements_padded)
    if ranks > 1 and indices is None:
        raise Unserved("the head is not split over the %d ranks" % ranks)
    first = indices.padded_org_vocab_start_index if indices is not None else 0
    # vLLM caps first and scales then.
    return Layer(lm_head, weight, arguments.get("embedding_bias"), layer.org_vocab_size, first, ranks, DTYPES[stored],
                 1.0, layer.soft_cap or 0.0, layer.scale)
