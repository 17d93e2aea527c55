"""flashsampling: draws the next token of a language model exactly, inside the LM-head matmul.

    import flashsampling as fs

    result = fs.sample(hidden, weight, temperature=0.8, top_p=0.95, seed=1, position=17, outputs=["logprob"])
    result.tokens, result.logprob                           # [B]; [B, n] with samples=n

hidden is [B, D], weight [V, D]: numpy arrays or torch tensors. A loop prepares its call once:

    sampler = fs.Sampler(fs.Head(weight), rows=64, temperature=temperatures, top_p=0.95)
    tokens = sampler(hidden).tokens

Batch says what every rule means, Row what the status of a row says. Names are those of the C header, flashsampling.h.
"""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ._arrays import Pointer, from_bf16, pack_bits, to_bf16
from ._c import Flag, Row, Rule
from ._call import Batch, Head, Result
from ._context import Context, Counters, Error, WorkSize, noise_gumbel, noise_id, seed_spread, supports, version
from ._drafts import accept_drafts
from ._package import get_include, get_library
from ._rows import RowError
from ._sample import sample, sample_logits
from ._sampler import Sampler

__all__ = [
    "Batch", "Context", "Counters", "Error", "Flag", "Head", "Pointer", "Result", "Row", "RowError", "Rule",
    "Sampler", "WorkSize", "accept_drafts", "from_bf16", "get_include", "get_library", "noise_gumbel", "noise_id",
    "pack_bits", "sample", "sample_logits", "seed_spread", "supports", "to_bf16", "version",
]

_MODULES = ("sglang", "torch", "transformers", "vllm")
_WITH_TORCH = {name: "flash_sampler" for name in ("FlashSampler", "FusedFlashSamplingKernel", "VLLMWithFlashSampling")}


if TYPE_CHECKING:  # without __getattr__, by which checkers would take any name for one of the package
    from . import sglang as sglang, torch as torch, transformers as transformers, vllm as vllm
    from .flash_sampler import (FlashSampler as FlashSampler, FusedFlashSamplingKernel as FusedFlashSamplingKernel,
                                VLLMWithFlashSampling as VLLMWithFlashSampling)

    __version__: str
else:
    def __getattr__(name: str) -> Any:
        """Imports modules and classes that need other packages when they are first named."""
        import importlib

        if name == "__version__":
            return version()
        if name in _MODULES:
            return importlib.import_module("." + name, __name__)
        if name in _WITH_TORCH:
            return getattr(importlib.import_module("." + _WITH_TORCH[name], __name__), name)
        # With these two a traceback says which name was meant.
        raise AttributeError("module %r has no attribute %r" % (__name__, name), name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_WITH_TORCH, "__version__"})
