"""The end's arithmetic without a GPU: end_host.c from strip maxima and stored strips against the CPU backend's tokens.

    python end_check.py LIBEND
"""
import ctypes
import sys

import flashsampling as fs
import numpy as np

end = ctypes.CDLL(sys.argv[1]).end_host
end.restype = ctypes.c_int32
F, I32, I64, U64 = ctypes.c_float, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
end.argtypes = [ctypes.c_void_p, ctypes.c_void_p, I64, I32, F, I32, F, F, U64, U64]
TILES, ROUND = 211, 24
random = np.random.default_rng(5)
context, wrong, opened, total = fs.Context("cpu"), 0, 0, 0


def strips_of(x, strips):
    """[B, tiles * strips, tokens] as the pass has them: 16 tokens, with 4 strips a tile 16 and 16 more 64 on."""
    tiles = x.reshape(len(x), TILES, 8 // strips, strips, 16)
    return tiles.transpose(0, 1, 3, 2, 4).reshape(len(x), TILES * strips, -1)


for kind, strips in ((k, s) for k in ("zipf", "normal", "ties", "steep") for s in (4, 8)):
    B, V = 64, TILES * 128
    x = random.standard_normal((B, V)).astype(np.float32)
    if kind == "zipf":
        x = (0.3 * x - 1.5 * np.log(1 + random.permuted(np.tile(np.arange(V), (B, 1)), axis=1))).astype(np.float32)
    if kind == "ties":
        x = (np.round(x * 64) / 16).astype(np.float32)
    if kind == "steep":
        x *= 30
    k = random.integers(1, 200, B).astype(np.int32)
    p = random.uniform(0.05, 1, B).astype(np.float32)
    p[::5] = 1
    T = random.uniform(0.5, 2, B).astype(np.float32)
    seed, position = random.integers(0, 2**62, B), random.integers(0, 2**40, B)
    want = context.sample(fs.Head(logits=x), temperature=T, top_k=k, top_p=p, seed=seed, position=position).tokens[:, 0]
    parts = strips_of(x, strips)
    most = np.ascontiguousarray(parts.max(axis=2))
    for b in range(B):
        # Floors of rounds, as scorers find them; the last round has none.
        floor, stored = -np.inf, np.full((TILES * strips,), False)
        for first in range(0, TILES * strips, ROUND * strips):
            now = slice(first, first + ROUND * strips)
            stored[now] = most[b, now] >= floor
            if first + ROUND * strips < TILES * strips and first + ROUND * strips >= k[b]:
                floor = np.sort(most[b, :first + ROUND * strips])[-k[b]]
        assert stored[most[b] >= floor].all()
        kept = strips_of(np.arange(V)[None], strips)[0][stored].ravel()
        row = np.full(V, np.nan, np.float32)
        row[kept] = x[b, kept]
        got = end(row.ctypes.data, most[b].ctypes.data, TILES, strips, floor, int(k[b]), float(p[b]), float(T[b]),
                  int(seed[b]), int(position[b]))
        total += 1
        opened += got < 0
        wrong += got >= 0 and got != want[b]
    print("%-6s %d strips: %d rows, %d open, %d wrong so far" % (kind, strips, total, opened, wrong), flush=True)
sys.exit(wrong > 0)
