"""The head of a model that an engine serves: what its logits come from, and proof that ours are the same."""
from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ._call import Head
from ._context import Context
from ._rules import Dtype, ScreenBits

DTYPES: dict[torch.dtype, Dtype] = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# How far logits may be from the model's own, of the largest of their row: what another order of additions makes of a
# sum, or roundings of the head's type, of which soft-caps and scales have several.
_TOLERANCE = {"f32": 1e-4, "f16": 2.0**-8, "bf16": 2.0**-5}
PLAIN = ("UnquantizedEmbeddingMethod", "UnquantizedLinearMethod")
_PROBE_ROWS, _PROBE_TOKENS = 2, 64


class Unserved(Exception):
    """Why the engine's own sampler draws."""


class Layer(NamedTuple):
    """What was seen of a model's last layer."""

    lm_head: Any
    weight: torch.Tensor  # [V padded / ranks, D]
    bias: torch.Tensor | None
    vocab: int
    first_token: int
    ranks: int
    round_to: Dtype  # what logits are stored in
    scale: float  # before the soft-cap
    softcap: float
    post_scale: float


def plain_weight(lm_head: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The head's weight, or Unserved if it is no plain matrix of the hidden states' type."""
    weight = getattr(lm_head, "weight", None)
    if weight is None or weight.layout != torch.strided or weight.dim() != 2 or weight.stride(1) != 1:
        raise Unserved("the head's weight is no plain matrix")
    if weight.dtype not in DTYPES or weight.dtype != hidden.dtype:
        raise Unserved("the head is %s, hidden states are %s" % (weight.dtype, hidden.dtype))
    if weight.dtype == torch.float32 and weight.is_cuda:
        raise Unserved("a float32 head has no tensor cores here")
    return weight


def head_of(layer: Layer, round_to: Dtype, bias: torch.Tensor | None, screen: Any = None) -> Head[torch.Tensor]:
    """The Head of a layer; `bias` is its bias in float32."""
    return Head(layer.weight.data, first_token=layer.first_token, vocab=layer.vocab, round_to=round_to, bias=bias,
                scale=layer.scale, softcap=layer.softcap, post_scale=layer.post_scale, constant=layer.weight.is_cuda,
                screen=screen)


def make_screen(context: Context, head: Head[Any], bits: ScreenBits, logger: logging.Logger) -> Any:
    """A screen of so many bits for a head of weights, made here and waited for. None where there can be none, or where
    no call would read it, and the log says why."""
    weight = head.data.keep
    try:
        if weight.is_cuda and (weight.dtype != torch.bfloat16 or weight.shape[1] % 8):
            raise Unserved("on CUDA the head must be bf16 and its width a multiple of 8, it is %s and %d wide" % (
                DTYPES[weight.dtype], weight.shape[1]))
        first = head.struct.first_token
        if weight.is_cuda and first % 16:
            raise Unserved("on CUDA a rank's shard must begin at a multiple of 16 tokens, not at %d" % first)
        screen = context.screen(head, bits)
    except (Unserved, RuntimeError, MemoryError) as why:  # RuntimeError: the library's, and torch's if memory is short
        logger.warning("flashsampling: no screen: %s", why)
        return None
    logger.info("flashsampling: a screen of %s bits: %d bytes, the head has %d", bits, screen.nbytes,
                weight.numel() * weight.element_size())
    return screen


def screened_head(context: Context, layer: Layer, round_to: Dtype, bias: torch.Tensor | None, bits: ScreenBits,
                  logger: logging.Logger) -> Head[torch.Tensor]:
    """head_of with a screen of so many bits; 0: without."""
    head = head_of(layer, round_to, bias)
    screen = make_screen(context, head, bits, logger) if bits else None
    return head if screen is None else head_of(layer, round_to, bias, screen)


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
    ours = context.sample(head, hidden, mode="score", score_tokens=ids, samples=ids.shape[1], outputs=["logit"],
                          on_error="status").logit
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
