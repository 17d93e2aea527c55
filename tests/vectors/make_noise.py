#!/usr/bin/env python3
"""Writes noise.txt: test vectors of the noise and the keys, which every backend has to reproduce.

    python3 tests/vectors/make_noise.py > tests/vectors/noise.txt

The Philox answers are Random123's published ones (kat_vectors, philox4x32 10), quoted and not computed; everything
else comes from the pure Python model in tests/py/noise_model.py. A changed vector is a changed noise id.
"""
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "py"))
import noise_model as nm

HEAD = """\
# Test vectors of the noise and the keys. Written by make_noise.py, read by every backend's test.
#
# Integers are hexadecimal. A real number is its IEEE bits, then the value for people to read; backends must come within
# 4 units of the last place, because logarithms may differ by one or two between libraries.
#
#   id         -> fs_noise_id()                         of the noise below
#   philox     counter[4] key[2] -> word[4]              Random123's published answers
#   row        seed position sample stream -> r0 r1 r2
#   spread     seed slot -> seed
#   count      u -> marks of a block
#   walk       draw block count -> (place prefix)[count] if it had this many; `draw` is seed position sample stream
#   marks      draw block -> (place prefix)[marks of the block], in the order they are drawn
#   gumbel     draw token -> noise
#   group      draw index domain -> noise
#   unit       draw index domain -> uniform
#   fast       draw token -> float noise
#   score_key  score token -> key
#   order_key  logit token -> key"""

RANDOM123 = """\
philox 00000000 00000000 00000000 00000000 00000000 00000000 -> 6627e8d5 e169c58d bc57ac4c 9b00dbd8
philox ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff -> 408f276d 41c83b0e a20bc7c6 6d5451fd
philox 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 -> d16cfe09 94fdcceb 5001e420 24126ea1"""

M64 = 2**64 - 1
DRAWS = [
    (0, 0, 0, 0),
    (1, 0, 0, 0),
    (0, 1, 0, 0),
    (0, 0, 1, 0),
    (0, 0, 0, 1),
    (M64, M64, nm.MASK32, nm.MASK32),
    (0x0123456789ABCDEF, 0xFEDCBA9876543210, 7, 3),
]
TWO_WORDS = [(4692, 129294), (9184, 118822), (14603, 71527), (25072, 17633), (12096, 97391), (42334, 115971)]
TOKENS = [0, 1, 63, 64, 127, 128, 129, 50256, 151935, 262143, 2**24 - 2]


def line(name, inputs, outputs):
    print(name, *(f"{i:x}" for i in inputs), "->", *outputs)


def real(x):
    return f"{nm.double_bits(x):016x}", f"{x:.17g}"


def pairs(marked):
    return (word for place, prefix in marked.items() for word in (f"{place:02x}", f"{prefix:04x}"))


def rows():
    for draw in DRAWS:
        line("row", draw, (f"{r:08x}" for r in nm.row(*draw)))
    for seed, slot in [(0, 0), (0, 1), (1, 0), (42, 511), (M64, 2**31 - 1), (0x0123456789ABCDEF, 2**40 + 5)]:
        line("spread", (seed, slot), [f"{nm.spread_seed(seed, slot):016x}"])


def mark_lines():
    # Both sides of every threshold of the table.
    for u in sorted({0, M64} | {limit + side for limit in nm.CDF for side in (-1, 0)}):
        line("count", [u], [f"{nm.mark_count(u):x}"])
    # Many marks, so that places repeat and more calls are needed; blocks hardly ever have more than four.
    for draw in DRAWS[:1] + DRAWS[-1:]:
        for count in (0, 1, 2, 4, 5, 8, 9, 16, 128):
            line("walk", (*draw, 5, count), pairs(nm.walk(nm.row(*draw), 5, count)))
    # For every draw, the first blocks with 0, 1, 2, ... marks among the first 2,000.
    for draw in DRAWS:
        noise, first = nm.row(*draw), {}
        for block in range(2000):
            first.setdefault(len(nm.marks(noise, block)), block)
        for count in sorted(first):
            line("marks", (*draw, first[count]), pairs(nm.marks(noise, first[count])))
        line("marks", (*draw, 131071), pairs(nm.marks(noise, 131071)))
    # Blocks, one in 2^28, whose count hangs on its lower 32 bits. Their marks are 1, 0, 6, 5, 10 and 9.
    for position, block in TWO_WORDS:
        line("marks", (0, position, 0, 0, block), pairs(nm.marks(nm.row(0, position, 0, 0), block)))


def value_lines():
    for draw in DRAWS:
        noise = nm.row(*draw)
        marked = [block * 128 + place for block in range(64) for place in nm.marks(noise, block)]
        for token in TOKENS + marked[:8]:
            line("gumbel", (*draw, token), real(nm.gumbel(noise, token)))
        for index in (0, 1, 1187, 2**20):
            line("group", (*draw, index, nm.GROUP), real(nm.gumbel_of(noise, index, nm.GROUP)))
            line("group", (*draw, index, nm.MERGE), real(nm.gumbel_of(noise, index, nm.MERGE)))
            line("unit", (*draw, index, nm.ONLINE), real(nm.unit(nm.words(noise, index, nm.ONLINE))))
        for token in TOKENS:
            g = nm.gumbel_fast(noise, token)
            line("fast", (*draw, token), (f"{nm.float_bits(g):08x}", f"{g:.9g}"))


def key_lines():
    rng = random.Random(1)
    scores = [0.0, -0.0, 1.0, -1.0, 1 + 2.0**-28, 1 + 2.0**-29, -1 - 2.0**-29, 5e-324, -5e-324, 1e308, float("inf")]
    scores += [rng.gauss(0, 20) for _ in range(8)]
    for score in scores:
        for token in (0, 2**24 - 2):
            line("score_key", (nm.double_bits(score), token), [f"{nm.score_key(score, token):016x}"])
    for logit in [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, float("inf")] + [nm.f32(s) for s in scores[-8:]]:
        for token in (0, 2**24 - 2):
            line("order_key", (nm.float_bits(logit), token), [f"{nm.order_key(logit, token):016x}"])


def main():
    print(HEAD)
    line("id", (), [f"{nm.ID:x}"])
    print(RANDOM123)
    rows()
    mark_lines()
    value_lines()
    key_lines()


if __name__ == "__main__":
    main()
