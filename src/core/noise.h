/* noise.h - where noise is made: the Gumbel value of a token is a pure function of
 * (seed, position, sample, stream, global token id) and of nothing else. docs/noise.md is the specification.
 *
 *   (seed, position, sample, stream) --Philox--> name of a draw --Philox--> marks of a block of 128 ids
 *                                                             \--Philox--> extension of one id
 *
 * Every token has an Exp(1) variable E and the noise g = -log E: small E, large noise. Only tokens with E below
 * c = -log1p(-q) can have noise above G = -log c, so which tokens those are is drawn for a whole block at once: the
 * number of marks is Binomial(128, q), their places a uniform subset, which together is an independent Bernoulli(q) mark
 * per token. Given its mark a token's E is drawn from its own extension word, when somebody asks:
 *   marked    E = -log1p(-q w)        (E conditioned on E < c)
 *   unmarked  E = c - log1p(-w)       (memorylessness: E conditioned on E >= c)
 * with w uniform in (0, 1), 52 bits, centred. The E are exactly independent Exp(1) up to that grid and to 2^-64 in the
 * Binomial table, and a race evaluates only marked tokens and those with l > best - G: one Philox call per 128 tokens.
 */
#ifndef FS_CORE_NOISE_H
#define FS_CORE_NOISE_H

#include "philox.h"

#include <math.h>

/* The identifier of this mapping. Bit 31: draft, may change until the GPU epilogue has been measured. */
#define FS_NOISE_ID 0x80000001u

/* Tokens per block of marks, and q = 2^-8: 0.5 marks per block. A smaller q means fewer marked tokens to evaluate but a
 * lower G, so more tokens pass by their logit. */
#define FS_NOISE_BLOCK 128
#define FS_NOISE_Q (1.0 / 256.0)
#define FS_NOISE_C 0.003913899321136329 /* -log1p(-q) */
#define FS_NOISE_G 5.543221133094242     /* -log(C): no unmarked token has more noise than this */

/* The second level's key; any constant would do. ASCII of "FlashSam". */
#define FS_NOISE_KEY0 0x73616C46u
#define FS_NOISE_KEY1 0x6D615368u

/* What a second-level call is for. Bits 8 and up count refills of marks. */
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

/* Which tokens of a block are marked: bit i % 64 of word i / 64. */
typedef struct fs_marks {
    uint64_t bit[2];
} fs_marks;

FS_CORE fs_noise noise_row(uint64_t seed, uint64_t position, uint32_t sample, uint32_t stream) {
    fs_words r = philox4x32((uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)position, (uint32_t)(position >> 32),
                            sample, stream);
    fs_noise noise = {r.w[0], r.w[1], r.w[2]};
    return noise;
}

/* The seed of slot `slot` where the caller gave one scalar for all. The third counter word is no sample index, so
 * this never repeats a call of noise_row. */
FS_CORE uint64_t noise_spread_seed(uint64_t seed, uint64_t slot) {
    fs_words r = philox4x32((uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)slot, (uint32_t)(slot >> 32),
                            0x53505244u, 0xFFFFFFFFu);
    return r.w[0] | (uint64_t)r.w[1] << 32;
}

FS_CORE fs_words noise_words(fs_noise noise, uint32_t index, uint32_t domain) {
    return philox4x32(FS_NOISE_KEY0, FS_NOISE_KEY1, index, noise.r0, noise.r1, noise.r2 ^ domain);
}

/* Uniform in (0, 1): 52 bits and a half, so that both ends are equally far and every step is exact in double. */
FS_CORE double noise_unit(fs_words r) {
    uint64_t bits = (r.w[0] | (uint64_t)r.w[1] << 32) >> 12;
    return ((double)bits + 0.5) * (1.0 / 4503599627370496.0);
}

/* How many of 128 tokens are marked: thresholds are floor(2^64 P(Binomial(128, 2^-8) <= i)), recomputed by a test. */
FS_CORE int noise_mark_count(uint64_t u) {
    if (u < 0x9B1EB169609B1795u) return 0;
    const uint64_t cdf[15] = {0xE8FBE753FB838BD4u, 0xFC5FA9F64F43F512u, 0xFF9139746F2163C5u, 0xFFF56A69899FA9CFu,
                              0xFFFF28E62B38B1A0u, 0xFFFFF16FAFADE7F6u, 0xFFFFFF24780D1D71u, 0xFFFFFFF49682328Fu,
                              0xFFFFFFFF784F6E39u, 0xFFFFFFFFFA50798Bu, 0xFFFFFFFFFFC88870u, 0xFFFFFFFFFFFE1089u,
                              0xFFFFFFFFFFFFF014u, 0xFFFFFFFFFFFFFF86u, 0xFFFFFFFFFFFFFFFCu};
    int count = 1;
    while (count < 16 && u >= cdf[count - 1]) count++;
    return count;
}

/* A uniform subset of `count` of 128 places: 7 bits a place, a place that is already taken is drawn again. `bits` are the
 * first nine places; more come from refill calls. */
FS_CORE fs_marks noise_subset(fs_noise noise, uint32_t block, int count, uint64_t bits) {
    fs_marks marks = {{0, 0}};
    int left = 9;
    uint32_t refill = 0;
    while (count > 0) {
        if (left == 0) {
            refill++;
            fs_words r = noise_words(noise, block, FS_DOMAIN_MARK | refill << 8);
            bits = r.w[0] | (uint64_t)r.w[1] << 32;
            left = 9;
        }
        uint64_t bit = (uint64_t)1 << (bits & 63);
        int word = (int)(bits >> 6 & 1);
        if (!(marks.bit[word] & bit)) {
            marks.bit[word] |= bit;
            count--;
        }
        bits >>= 7;
        left--;
    }
    return marks;
}

/* The marks of ids [128 * block, 128 * block + 128). */
FS_CORE fs_marks noise_marks(fs_noise noise, uint32_t block) {
    fs_words r = noise_words(noise, block, FS_DOMAIN_MARK);
    int count = noise_mark_count(r.w[0] | (uint64_t)r.w[1] << 32);
    return noise_subset(noise, block, count, r.w[2] | (uint64_t)r.w[3] << 32);
}

FS_CORE int noise_is_marked(fs_marks marks, uint32_t token) {
    return (int)(marks.bit[token >> 6 & 1] >> (token & 63) & 1);
}

/* The Gumbel value of a token whose mark is known. */
FS_CORE double noise_gumbel_marked(fs_noise noise, uint32_t token, int marked) {
    double w = noise_unit(noise_words(noise, token, FS_DOMAIN_EXTENSION));
    double e = marked ? -log1p(-FS_NOISE_Q * w) : FS_NOISE_C - log1p(-w);
    return -log(e);
}

FS_CORE double noise_gumbel(fs_noise noise, uint32_t token) {
    fs_marks marks = noise_marks(noise, token / FS_NOISE_BLOCK);
    return noise_gumbel_marked(noise, token, noise_is_marked(marks, token));
}

/* Uniform and Gumbel values for groups, the online merge and the merge of ranks: dense, one call each. */
FS_CORE double noise_unit_of(fs_noise noise, uint32_t index, uint32_t domain) {
    return noise_unit(noise_words(noise, index, domain));
}

FS_CORE double noise_gumbel_of(fs_noise noise, uint32_t index, uint32_t domain) {
    return -log(-log1p(-noise_unit_of(noise, index, domain)));
}

/* Fast-math mode, the paper's appendix C in float: u = (r + 1) / (2^32 + 1), clamped below 1 where float rounds it there.
 * Its noise ends at 16.6 and its grid is coarse near u = 1, where winners live: biased, and measured to be. */
FS_CORE float noise_gumbel_fast(fs_noise noise, uint32_t token) {
    fs_words r = noise_words(noise, token >> 2, FS_DOMAIN_FAST);
    float u = ((float)r.w[token & 3] + 1.0f) * 2.3283064365386963e-10f;
    if (u > 0.99999994f) u = 0.99999994f;
    return -logf(-logf(u));
}

#endif
