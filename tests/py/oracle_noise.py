"""The noise of docs/explain/noise.md in numpy, written from that page alone.

An argument `draws` is the array [M, 3] of the names of M draws, as names() makes them; ids are global token ids [K].
"""
import numpy as np

U32, U64 = np.uint32, np.uint64
LOW = U64(0xFFFFFFFF)
Q = 2.0**-8
C = 0.003913899321136329  # -log(1 - q)
COUNTS = np.array([int(word, 16) for word in """
    9B1EB169609B1795 E8FBE753FB838BD4 FC5FA9F64F43F512 FF9139746F2163C5 FFF56A69899FA9CF FFFF28E62B38B1A0
    FFFFF16FAFADE7F6 FFFFFF24780D1D71 FFFFFFF49682328F FFFFFFFF784F6E39 FFFFFFFFFA50798B FFFFFFFFFFC88870
    FFFFFFFFFFFE1089 FFFFFFFFFFFFF014 FFFFFFFFFFFFFF86 FFFFFFFFFFFFFFFC""".split()], dtype=U64)
MARKS, EXTENSION, GROUP, ONLINE, PART, FAST = 1, 2, 3, 4, 5, 6  # domains


def philox(k0, k1, c0, c1, c2, c3):
    """Philox4x32-10 of arrays of 32-bit words held in 64 bits; they broadcast."""
    k0, k1, c0, c1, c2, c3 = (np.asarray(word, U64) for word in (k0, k1, c0, c1, c2, c3))
    for turn in range(10):
        a, b = U64(0xD2511F53) * c0, U64(0xCD9E8D57) * c2
        t0 = (k0 + U64(turn * 0x9E3779B9 & 0xFFFFFFFF)) & LOW
        t1 = (k1 + U64(turn * 0xBB67AE85 & 0xFFFFFFFF)) & LOW
        c0, c1, c2, c3 = b >> U64(32) ^ c1 ^ t0, b & LOW, a >> U64(32) ^ c3 ^ t1, a & LOW
    return c0, c1, c2, c3


def halves(number):
    number = int(number) & 0xFFFFFFFFFFFFFFFF
    return number & 0xFFFFFFFF, number >> 32


def joined(low, high):
    return low | high << U64(32)


def names(seed, position, samples, substream):
    """The three words [samples, 3] that name each draw of a row."""
    return np.stack(philox(*halves(seed), *halves(position), np.arange(samples), substream)[:3], axis=1)


def spread(seed, slot):
    """The seed of a slot where one scalar seed is given for all."""
    w0, w1, _, _ = philox(*halves(seed), *halves(slot), 0x53505244, 0xFFFFFFFF)
    return int(joined(w0, w1))


def words(index, draws, domain):
    """Level two, for all pairs of draws [M, 3] and indices [K]: four arrays [M, K]."""
    r0, r1, r2 = draws.T[..., None]
    return philox(0x73616C46, 0x6D615368, np.asarray(index, U64)[None, :], r0, r1, r2 ^ U64(domain))


def centre(b):
    return (b.astype(np.float64) + 0.5) * 2.0**-52


def unit(w0, w1):
    return centre(joined(w0, w1) >> U64(12))


def marks(draws, blocks):
    """Prefixes [M, len(blocks), 128] of marked tokens, -1 where a token is not marked."""
    prefix = np.full((len(draws), len(blocks), 128), -1, np.int64)
    first, second = words(blocks, draws, MARKS), words(blocks, draws, MARKS + 256)
    left = np.searchsorted(COUNTS, joined(second[0], first[0]), side="right")
    m, k = np.nonzero(left)
    left = left[m, k]
    call, (w1, w2, w3) = 0, (word[m, k] for word in first[1:])
    while len(m):
        tail = joined(w2, w3)
        for i in range(4):
            place = (w1 >> U64(7 * i) & U64(127)).astype(np.int64)
            take = (left > 0) & (prefix[m, k, place] < 0)
            prefix[m[take], k[take], place[take]] = (tail[take] >> U64(16 * i) & U64(0xFFFF)).astype(np.int64)
            left = left - take
        m, k, left = (array[left > 0] for array in (m, k, left))
        call += 1
        r0, r1, r2 = draws[m].T
        _, w1, w2, w3 = philox(0x73616C46, 0x6D615368, np.asarray(blocks, U64)[k], r0, r1, r2 ^ U64(MARKS + 256 * call))
    return prefix


def gumbel(draws, ids):
    """Exact noise [M, K] of tokens."""
    ids = np.asarray(ids, np.int64)
    blocks, block = np.unique(ids // 128, return_inverse=True)
    prefix = marks(draws, blocks)[:, block, ids % 128]
    w0, w1, _, _ = words(ids, draws, EXTENSION)
    marked = prefix >= 0
    extended = (prefix.astype(U64) << U64(36)) + (joined(w0, w1) >> U64(28))
    e = C - np.log1p(-unit(w0, w1))
    e[marked] = -np.log1p(-Q * centre(extended[marked]))
    return -np.log(e)


def fast(draws, ids):
    """FS_NOISE_FAST: the same in float. A logarithm is that of double, rounded."""
    ids = np.asarray(ids, np.int64)
    r = np.choose(ids % 4, words(ids // 4, draws, FAST)).astype(U32)
    u = np.minimum((r.astype(np.float32) + np.float32(1)) * np.float32(2.0**-32), np.float32(1 - 2.0**-24))
    inner = -np.log(u.astype(np.float64)).astype(np.float32)
    return -np.log(inner.astype(np.float64)).astype(np.float32)


def of_groups(draws, groups, domain):
    """Noise [M, K] of groups, -log E with E of a plain uniform."""
    w0, w1, _, _ = words(groups, draws, domain)
    return -np.log(-np.log1p(-unit(w0, w1)))


def image(number, kind=U64):
    """An unsigned integer that orders as the number does; double by default, float with U32."""
    wide = kind is U64
    bits = (np.asarray(number, np.float64 if wide else np.float32) + 0.0).view(kind)
    top = kind(1 << (63 if wide else 31))
    return np.where(bits & top != 0, ~bits, bits | top)


def score_keys(scores, ids):
    return image(scores) >> U64(24) << U64(24) | U64(0xFFFFFF) - np.asarray(ids, U64)
