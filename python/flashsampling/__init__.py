"""flashsampling: draws the next token of a language model exactly, inside the LM-head matmul.

    import flashsampling as fs

    context = fs.Context()                                  # the best backend there is
    head = fs.Head(weights)                                 # [V, D] float32, float16, or uint16 with dtype="bf16"
    result = context.sample(head, hidden, temperature=0.8, top_p=0.95, seed=1, position=17, outputs=["logprob"])
    result.tokens, result.logprob                           # [B, 1]

The meaning of every rule is in the C header, flashsampling.h; names are the same here.
"""
from ._arrays import Pointer, from_bf16, pack_bits, to_bf16
from ._c import Flag, Row, Rule
from ._call import Batch, Head, Result
from ._context import Context, Error, accept, noise_gumbel, noise_id, seed_spread, supports, version

__all__ = [
    "Batch", "Context", "Error", "Flag", "Head", "Pointer", "Result", "Row", "Rule", "accept", "from_bf16",
    "noise_gumbel", "noise_id", "pack_bits", "seed_spread", "supports", "to_bf16", "version",
]
