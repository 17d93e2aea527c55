"""The noise and the keys in pure Python, written from the text of the specification and from nothing else.

Integers are Python's, so nothing can overflow or be rounded; logs are math's. `philox` also takes numpy arrays of
uint64 in place of counter words, which is what makes the model of a whole row affordable.
"""
import itertools
import math
import struct
from fractions import Fraction

ID = 2  # of what is specified
MASK32 = 0xFFFFFFFF
BLOCK = 128
Q = Fraction(1, 256)
KEY = struct.unpack("<II", b"FlashSam")  # of the second level

MARK, EXTENSION, GROUP, ONLINE, MERGE, FAST = range(1, 7)


def philox(counter, key, rounds=10):
    """Philox4x32 (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def halves(u64):
    return u64 & MASK32, u64 >> 32


def joined(low, high):
    return low | (high << 32)


def row(seed, position, sample, substream):
    """The name of one draw."""
    return philox((*halves(position), sample, substream), halves(seed))[:3]


def spread_seed(seed, slot):
    r = philox((*halves(slot), 0x53505244, MASK32), halves(seed))
    return joined(r[0], r[1])


def words(noise, index, domain):
    return philox((index, noise[0], noise[1], noise[2] ^ domain), KEY)


def centre(bits):
    """52 bits, centred between the grid's points."""
    return (bits + 0.5) * 2.0**-52


def unit(r):
    return centre(joined(r[0], r[1]) >> 12)


def binomial_cdf():
    """floor(2^64 P(Binomial(128, 1/256) <= i)) for i = 0 .. 15."""
    below, out = Fraction(0), []
    for i in range(16):
        below += math.comb(BLOCK, i) * Q**i * (1 - Q) ** (BLOCK - i)
        out.append(math.floor(below * 2**64))
    return out


CDF = binomial_cdf()


def mark_count(u):
    return sum(u >= limit for limit in CDF)


def mark_words(noise, block, call):
    return words(noise, block, MARK | call << 8)


def mark_pairs(noise, block):
    """All (place, prefix) pairs of a block, four to a call, without end: places are the low 28 bits of word 1."""
    for call in itertools.count():
        _, places, *prefixes = mark_words(noise, block, call)
        prefixes = joined(*prefixes)
        for i in range(4):
            yield places >> 7 * i & 127, prefixes >> 16 * i & 0xFFFF


def walk(noise, block, count):
    """The first `count` marks {place: prefix}, in the order they are drawn; the first pair of a place is the one that
    counts."""
    marked = {}
    pairs = mark_pairs(noise, block)
    while len(marked) < count:
        marked.setdefault(*next(pairs))
    return marked


def marks(noise, block):
    """{place: prefix} of a block. The number of marks takes 64 bits, of two calls."""
    upper, lower = (mark_words(noise, block, call)[0] for call in (0, 1))
    return walk(noise, block, mark_count(joined(lower, upper)))


def marked_unit(r, prefix):
    """The prefix, then the upper 36 bits of the extension."""
    return centre(prefix << 36 | joined(r[0], r[1]) >> 28)


def gumbel(noise, token):
    r = words(noise, token, EXTENSION)
    prefix = marks(noise, token // BLOCK).get(token % BLOCK)
    if prefix is not None:
        return -math.log(-math.log1p(-marked_unit(r, prefix) / 256))
    return -math.log(-math.log1p(-1 / 256) - math.log1p(-unit(r)))


def gumbel_of(noise, index, domain):
    return -math.log(-math.log1p(-unit(words(noise, index, domain))))


def f32(x):
    """x rounded to float."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def gumbel_fast(noise, token):
    r = words(noise, token >> 2, FAST)[token & 3]
    u = min(f32(f32(r) + 1) * 2.0**-32, f32(0.99999994))
    return f32(-f32(math.log(f32(-f32(math.log(u))))))


def double_bits(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def float_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def ordered(bits, width):
    """An integer that orders like the number with these IEEE bits; the two zeros are one."""
    sign = 1 << (width - 1)
    if bits == sign:
        bits = 0
    return (1 << width) - 1 - bits if bits & sign else bits | sign


def score_key(score, token):
    return ordered(double_bits(score), 64) >> 24 << 24 | (0xFFFFFF - token)


def order_key(logit, token):
    return ordered(float_bits(logit), 32) << 32 | (MASK32 - token)
