/* key.h - where candidates are ordered: (value, token) packed into 64 bits so that integer max is the whole reduction.
 *
 *   score key  40 bits of the order-preserving image of the double score | 24 bits of the complemented id
 *   order key  32 bits of the order-preserving image of the float logit  | 32 bits of the complemented id
 *
 * Larger value first, then lower id. These are the only comparisons of candidates anywhere, inside a tile too;
 * otherwise the winner would depend on the tiling. 0 is no key of any token and means "none". NaN must be dropped
 * before keying: its image lies above +inf. The 28 mantissa bits left in a score key are 2^-24 for scores in [16, 32):
 * ties by rounding cost a total variation below 1.5e-8 (docs/explain/noise.md). */
#ifndef FS_CORE_KEY_H
#define FS_CORE_KEY_H

#include "core.h"

#define FS_KEY_NONE ((uint64_t)0)
#define FS_TOKEN_LIMIT ((int64_t)1 << 24) /* ids are below this: 24 bits of the score key */

/* Adding +0 turns -0 into +0: equal logits must have equal images. */
FS_CORE uint32_t ordered_float(float x) {
    uint32_t u = float_bits(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

FS_CORE float float_of_ordered(uint32_t o) {
    return bits_float(o & 0x80000000u ? o & 0x7FFFFFFFu : ~o);
}

FS_CORE uint64_t score_key(double score, uint32_t token) {
    uint64_t u = double_bits(score + 0.0);
    uint64_t ordered = u >> 63 ? ~u : u | (uint64_t)1 << 63;
    return (ordered & ~(uint64_t)0xFFFFFF) | (0xFFFFFFu - token);
}

FS_CORE uint32_t score_key_token(uint64_t key) {
    return 0xFFFFFFu - (uint32_t)(key & 0xFFFFFF);
}

/* The score rounded down to the key's 40 bits: never above the real score. */
FS_CORE double score_key_value(uint64_t key) {
    uint64_t ordered = key & ~(uint64_t)0xFFFFFF;
    return bits_double(ordered >> 63 ? ordered & ~((uint64_t)1 << 63) : ~ordered);
}

FS_CORE uint64_t order_key(float logit, uint32_t token) {
    return (uint64_t)ordered_float(logit) << 32 | (0xFFFFFFFFu - token);
}

/* Not below any token's key of this logit, and below those of larger ones. */
FS_CORE uint64_t order_key_behind(float logit) {
    return (uint64_t)ordered_float(logit) << 32 | 0xFFFFFFFFu;
}

/* Below every token's key of this logit, and so is its own logit: the image before that of 0 is that of -0, which is no
 * less. */
FS_CORE uint64_t order_key_before(float logit) {
    const uint64_t first = (uint64_t)ordered_float(logit) << 32;
    return first == (uint64_t)1 << 63 ? first - ((uint64_t)1 << 32) - 1 : first - 1;
}

FS_CORE uint32_t order_key_token(uint64_t key) {
    return 0xFFFFFFFFu - (uint32_t)key;
}

FS_CORE float order_key_logit(uint64_t key) {
    return float_of_ordered((uint32_t)(key >> 32));
}

#endif
