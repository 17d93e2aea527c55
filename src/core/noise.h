/* noise.h - where noise is made: the Gumbel value of a token is a pure function of
 * (seed, position, sample, substream, global token id) and of nothing else. docs/explain/noise.md is the specification.
 *
 *   (seed, position, sample, substream) --Philox--> name of a draw --Philox--> marks of a block of 128 ids, with
 *                                                                           their prefixes
 *                                                             \--Philox--> extension of one id
 *
 * Every token has an Exp(1) variable E and the noise g = -log E: small E, large noise. Only tokens with E below c =
 * -log1p(-q) can have noise above G = -log c, so which tokens those are is drawn for a whole block at once: the number
 * of marks is Binomial(128, q), their places a uniform subset, which together is an independent Bernoulli(q) mark per
 * token. Given its mark a token's E is a function of w, uniform in (0, 1), 52 bits, centred:
 *   marked    E = -log1p(-q w)        (E conditioned on E < c); the first 16 bits of w come with the mark
 *   unmarked  E = c - log1p(-w)       (memorylessness: E conditioned on E >= c)
 * The rest of w is the token's own extension word, drawn when somebody asks. The E are exactly independent Exp(1) up to
 * that grid and to 2^-64 in the Binomial table. A race evaluates only marked tokens whose prefix lets them win and
 * tokens with l > best - G: one Philox call per 128 tokens, and hardly another.
 * */
#ifndef FS_CORE_NOISE_H
#define FS_CORE_NOISE_H

#include "philox.h"

#include <math.h>

/* The identifier of this mapping, frozen: another one is another number and another interface (docs/explain/noise.md,
 * Versions). */
#define FS_NOISE_ID 2u

/* Tokens per block of marks, and q = 2^-8: 0.5 marks per block. A smaller q means fewer marked tokens to evaluate but a
 * lower G, so more tokens pass by their logit. */
#define FS_NOISE_BLOCK 128
#define FS_NOISE_Q (1.0 / 256.0)
#define FS_NOISE_C 0.003913899321136329 /* -log1p(-q) */
#define FS_NOISE_G 5.543221133094242    /* -log(C): no unmarked token has more noise than this */

/* The second level's key; any constant would do. ASCII of "FlashSam". */
#define FS_NOISE_KEY0 0x73616C46u
#define FS_NOISE_KEY1 0x6D615368u

/* What a second-level call is for. Bits 8 and up count the calls for the marks of one block. */
enum {
    FS_DOMAIN_MARK = 1,
    FS_DOMAIN_EXTENSION = 2,
    FS_DOMAIN_GROUP = 3,
    FS_DOMAIN_ONLINE = 4,
    FS_DOMAIN_MERGE = 5,
    FS_DOMAIN_FAST = 6
};

/* The name of one draw: one row and one sample. */
typedef struct fs_noise {
    uint32_t r0, r1, r2;
} fs_noise;

/* A walk over the marks of one block, in the order they are drawn. */
typedef struct fs_walk {
    fs_noise noise;
    uint32_t block;
    int32_t left;      /* marks still to come */
    uint32_t item;     /* (place, prefix) pairs drawn so far */
    fs_words words;    /* the call the next pair comes from */
    uint64_t taken[2]; /* places so far: bit i % 64 of word i / 64 */
    uint32_t token;    /* the mark noise_next found: its id */
    uint32_t prefix;   /* and the first 16 bits of its w */
} fs_walk;

FS_CORE fs_noise noise_row(uint64_t seed, uint64_t position, uint32_t sample, uint32_t substream) {
    fs_words r = philox4x32((uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)position, (uint32_t)(position >> 32),
                            sample, substream);
    fs_noise noise = {r.w[0], r.w[1], r.w[2]};
    return noise;
}

/* The seed of slot `slot` where the caller gave one scalar for all. The third counter word is no sample index, so
 * this never repeats a call of noise_row. */
FS_CORE uint64_t noise_spread_seed(uint64_t seed, uint64_t slot) {
    fs_words r = philox4x32((uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)slot, (uint32_t)(slot >> 32), 0x53505244u,
                            0xFFFFFFFFu);
    return r.w[0] | (uint64_t)r.w[1] << 32;
}

FS_CORE fs_words noise_words(fs_noise noise, uint32_t index, uint32_t domain) {
    return philox4x32(FS_NOISE_KEY0, FS_NOISE_KEY1, index, noise.r0, noise.r1, noise.r2 ^ domain);
}

/* Uniform in (0, 1) from 52 bits: centred, so that both ends are equally far, and exact in double. */
FS_CORE double noise_centre(uint64_t bits) {
    return ((double)bits + 0.5) * (1.0 / 4503599627370496.0);
}

FS_CORE double noise_unit(fs_words r) {
    return noise_centre((r.w[0] | (uint64_t)r.w[1] << 32) >> 12);
}

/* ----------------------------------------------------------------------------------------------------- marks ---- */

/* How many of 128 tokens are marked: thresholds are floor(2^64 P(Binomial(128, 2^-8) <= i)), recomputed by a test. */
FS_CORE int32_t noise_mark_count(uint64_t u) {
    if (u < 0x9B1EB169609B1795u) return 0;
    const uint64_t cdf[15] = {0xE8FBE753FB838BD4u, 0xFC5FA9F64F43F512u, 0xFF9139746F2163C5u, 0xFFF56A69899FA9CFu,
                              0xFFFF28E62B38B1A0u, 0xFFFFF16FAFADE7F6u, 0xFFFFFF24780D1D71u, 0xFFFFFFF49682328Fu,
                              0xFFFFFFFF784F6E39u, 0xFFFFFFFFFA50798Bu, 0xFFFFFFFFFFC88870u, 0xFFFFFFFFFFFE1089u,
                              0xFFFFFFFFFFFFF014u, 0xFFFFFFFFFFFFFF86u, 0xFFFFFFFFFFFFFFFCu};
    int32_t count = 1;
    while (count < 16 && u >= cdf[count - 1]) count++;
    return count;
}

/* The upper halves of the thresholds that matter. Word 0 of call 0 below FS_MARKS_n: fewer than n marks; above: at
 * least n. */
#define FS_MARKS_1 0x9B1EB169u
#define FS_MARKS_2 0xE8FBE753u
#define FS_MARKS_3 0xFC5FA9F6u
#define FS_MARKS_4 0xFF913974u
#define FS_MARKS_5 0xFFF56A69u

/* The number of marks, up to four, by word 0 of call 0 alone, unless it is open: then it takes both words. */
FS_CORE int32_t noise_mark_sum(uint32_t u) {
    return (u > FS_MARKS_1) + (u > FS_MARKS_2) + (u > FS_MARKS_3) + (u > FS_MARKS_4);
}

FS_CORE int noise_mark_is_open(uint32_t u) {
    return u == FS_MARKS_1 || u == FS_MARKS_2 || u == FS_MARKS_3 || u == FS_MARKS_4 || u >= FS_MARKS_5;
}

/* Pair i of the four that a call holds: 7 bits of word 1, and a half of words 2 and 3. */
FS_CORE uint32_t noise_mark_place(uint32_t places, uint32_t i) {
    return places >> (7 * i) & 127;
}

FS_CORE uint32_t noise_mark_prefix(uint32_t low, uint32_t high, uint32_t i) {
    return (i < 2 ? low : high) >> (16 * (i & 1)) & 0xFFFF;
}

FS_CORE fs_words noise_mark_words(fs_noise noise, uint32_t block, uint32_t call) {
    return noise_words(noise, block, FS_DOMAIN_MARK | call << 8);
}

/* Starts a walk that finds `count` marks; words is call 0. Apart from noise_walk so that tests can ask for any
 * count. */
FS_CORE fs_walk noise_walk_of(fs_noise noise, uint32_t block, int32_t count, fs_words words) {
    fs_walk walk = {noise, block, count, 0, words, {0, 0}, 0, 0};
    return walk;
}

/* Starts a walk over the marks of ids [128 * block, 128 * block + 128). The number of marks takes 64 bits: word 0 of
 * call 0 above word 0 of call 1. words is call 0. */
FS_CORE fs_walk noise_walk_from(fs_noise noise, uint32_t block, fs_words words) {
    int32_t count = noise_mark_sum(words.w[0]);
    if (noise_mark_is_open(words.w[0]))
        count = noise_mark_count((uint64_t)words.w[0] << 32 | noise_mark_words(noise, block, 1).w[0]);
    return noise_walk_of(noise, block, count, words);
}

FS_CORE fs_walk noise_walk(fs_noise noise, uint32_t block) {
    return noise_walk_from(noise, block, noise_mark_words(noise, block, 0));
}

/* The next mark into walk->token and walk->prefix; 0 if there is none. A pair whose place is taken is passed over. */
FS_CORE int noise_next(fs_walk *walk) {
    if (walk->left == 0) return 0;
    for (;;) {
        const uint32_t i = walk->item & 3;
        if (i == 0 && walk->item > 0) walk->words = noise_mark_words(walk->noise, walk->block, walk->item >> 2);
        walk->item++;
        const uint32_t place = noise_mark_place(walk->words.w[1], i);
        const uint64_t bit = (uint64_t)1 << (place & 63);
        if ((place < 64 ? walk->taken[0] : walk->taken[1]) & bit) continue;
        walk->taken[0] |= place < 64 ? bit : 0;
        walk->taken[1] |= place < 64 ? 0 : bit;
        walk->left--;
        walk->token = walk->block * FS_NOISE_BLOCK + place;
        walk->prefix = noise_mark_prefix(walk->words.w[2], walk->words.w[3], i);
        return 1;
    }
}

/* -------------------------------------------------------------------------------------------------- the value ---- */

/* The noise of a token from its extension and the prefix of its mark; -1: it has no mark. */
FS_CORE double noise_gumbel_from(fs_words r, int32_t prefix) {
    const uint64_t bits = r.w[0] | (uint64_t)r.w[1] << 32;
    const int marked = prefix >= 0;
    const double w = noise_centre(marked ? (uint64_t)prefix << 36 | bits >> 28 : bits >> 12);
    const double t = log1p(marked ? -FS_NOISE_Q * w : -w);
    return -log(marked ? -t : FS_NOISE_C - t);
}

FS_CORE double noise_gumbel_given(fs_noise noise, uint32_t token, int32_t prefix) {
    return noise_gumbel_from(noise_words(noise, token, FS_DOMAIN_EXTENSION), prefix);
}

/* No marked token with this prefix has more noise than this: E >= q w, and w >= prefix 2^-16, or 2^-53. */
FS_CORE float noise_ceiling(uint32_t prefix) {
    float w = prefix ? (float)prefix * (1.0f / 65536.0f) : 1.1102230246251565e-16f;
    return -logf((float)FS_NOISE_Q * w) + 1e-5f;
}

/* No unmarked token with this extension has more noise than this, without a logarithm: E >= c + w + w^2 / 2, and the
 * bits of a float, taken for a number, are at most its log2. Nineteen of twenty tokens that have a chance by their
 * logit lose it here (docs/notes/cpu-draws.md, "lose without a logarithm"). */
FS_CORE float noise_bare_ceiling(fs_words r) {
    const float w = (float)(r.w[1] >> 8) * (1.0f / 16777216.0f);
    const float least = (float)FS_NOISE_C + w + 0.5f * w * w;
    return (float)(0x3F800000 - (int32_t)float_bits(least)) * (0.693147181f / 8388608.0f) + 1e-5f;
}

/* The prefix of this token's mark; -1: it has none. */
FS_CORE int32_t noise_prefix(fs_noise noise, uint32_t token) {
    fs_walk walk = noise_walk(noise, token / FS_NOISE_BLOCK);
    while (noise_next(&walk))
        if (walk.token == token) return (int32_t)walk.prefix;
    return -1;
}

FS_CORE double noise_gumbel(fs_noise noise, uint32_t token) {
    return noise_gumbel_given(noise, token, noise_prefix(noise, token));
}

/* Uniform and Gumbel values for groups, the online merge and the merge of ranks: dense, one call each. */
FS_CORE double noise_unit_of(fs_noise noise, uint32_t index, uint32_t domain) {
    return noise_unit(noise_words(noise, index, domain));
}

FS_CORE double noise_gumbel_of(fs_noise noise, uint32_t index, uint32_t domain) {
    return -log(-log1p(-noise_unit_of(noise, index, domain)));
}

/* Fast-math mode, the paper's appendix C in float: u = (r + 1) / (2^32 + 1), clamped below 1 where float rounds it
 * there. Its noise ends at 16.6 and its grid is coarse near u = 1, where winners live: biased, and measured to be. */
FS_CORE float noise_gumbel_fast(fs_noise noise, uint32_t token) {
    fs_words r = noise_words(noise, token >> 2, FS_DOMAIN_FAST);
    float u = ((float)r.w[token & 3] + 1.0f) * 2.3283064365386963e-10f;
    if (u > 0.99999994f) u = 0.99999994f;
    return -logf(-logf(u));
}

#endif
