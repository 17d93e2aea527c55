/* cuda_noise.cuh - core/noise.h as the kernels use it: the marks of a tile by one call, and noise in float with a known side of error. */
#ifndef FS_CUDA_NOISE_CUH
#define FS_CUDA_NOISE_CUH

#include "cuda_ptx.cuh"

#include "core/noise.h"

/* The marks of one row in one tile: up to four pairs as they are drawn, places seven bits each. */
typedef struct fs_tile_marks {
    int32_t count; /* -1: more than a call holds, or a place twice: walk */
    uint32_t places, prefixes[2];
} fs_tile_marks;

/* From call 0 of a block. */
FS_DEVICE fs_tile_marks marks_from(fs_words r) {
    const uint32_t u = r.w[0], places = r.w[1];
    /* Where the upper halves of the thresholds do not decide, or above four marks, the walk does. */
    int32_t count = (u > FS_MARKS_1) + (u > FS_MARKS_2) + (u > FS_MARKS_3) + (u > FS_MARKS_4);
    if (u == FS_MARKS_1 || u == FS_MARKS_2 || u == FS_MARKS_3 || u == FS_MARKS_4 || u >= FS_MARKS_5) count = -1;
    const uint32_t p0 = places & 127, p1 = places >> 7 & 127, p2 = places >> 14 & 127, p3 = places >> 21 & 127;
    if ((count > 1 && p0 == p1) || (count > 2 && (p0 == p2 || p1 == p2)) ||
        (count > 3 && (p0 == p3 || p1 == p3 || p2 == p3)))
        count = -1;
    return {count, places, {r.w[2], r.w[3]}};
}

FS_DEVICE fs_tile_marks tile_marks(fs_noise noise, uint32_t block) {
    return marks_from(noise_mark_words(noise, block, 0));
}

FS_DEVICE uint32_t mark_place(const fs_tile_marks &marks, int i) {
    return marks.places >> (7 * i) & 127;
}

FS_DEVICE uint32_t mark_prefix(const fs_tile_marks &marks, int i) {
    return (i < 2 ? marks.prefixes[0] : marks.prefixes[1]) >> (16 * (i & 1)) & 0xFFFF;
}

/* Noise that no token whose mark has this prefix reaches: noise_ceiling of core/noise.h, a little higher. */
FS_DEVICE float mark_ceiling(uint32_t prefix) {
    return 1e-4f - __logf((float)FS_NOISE_Q * (prefix ? (float)prefix * 0x1p-16f : 0x1p-53f));
}

/* The prefix of a token's mark, or -1; `marks` are its tile's. */
FS_DEVICE int32_t mark_among(const fs_tile_marks &marks, fs_noise noise, uint32_t token) {
    int32_t prefix = -1;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < marks.count && mark_place(marks, i) == token % FS_NOISE_BLOCK) prefix = (int32_t)mark_prefix(marks, i);
    if (marks.count >= 0) return prefix;
    fs_walk walk = noise_walk(noise, token / FS_NOISE_BLOCK);
    while (noise_next(&walk))
        if (walk.token == token) prefix = (int32_t)walk.prefix;
    return prefix;
}

/* All that is to be drawn of a token: the prefix of its mark, or -1, and its extension. Two calls side by side take as long as one, because
 * a round waits for the round before it. */
FS_DEVICE int32_t draw_token(fs_noise noise, uint32_t token, fs_words *extension) {
    uint32_t key0 = FS_NOISE_KEY0, key1 = FS_NOISE_KEY1;
    fs_words mark = {{token / FS_NOISE_BLOCK, noise.r0, noise.r1, noise.r2 ^ FS_DOMAIN_MARK}};
    fs_words own = {{token, noise.r0, noise.r1, noise.r2 ^ FS_DOMAIN_EXTENSION}};
#pragma unroll 2
    for (int round = 0; round < 10; round++) {
        uint32_t same0 = key0, same1 = key1;
        mark = philox_round(mark, &same0, &same1);
        own = philox_round(own, &key0, &key1);
    }
    *extension = own;
    return mark_among(marks_from(mark), noise, token);
}

/* The noise of a token in float, at most 1e-3 below it: w is taken at the end of what 32 of its bits leave open where the noise is largest,
 * and the rest is rounding. prefix < 0: unmarked; `upper` is word 1 of the token's extension, the first bits of w, or of a marked token
 * those after the prefix. */
FS_DEVICE float noise_about(int32_t prefix, uint32_t upper) {
    float e;
    if (prefix < 0) e = (float)FS_NOISE_C - __logf(((float)~upper + 1.0f) * 0x1p-32f);
    else {
        const float w = ((float)prefix + (float)upper * 0x1p-32f) * 0x1p-16f;
        const float x = (float)FS_NOISE_Q * w;
        e = x * (1.0f + x * (0.5f + x * (1.0f / 3.0f))); /* -log1p(-x), x < 2^-8 */
    }
    return -__logf(e);
}

/* Whether noise_about is not more than 1e-3 above the noise either: at the other end of the open bits w, or 1 - w, differs by less than
 * 2^-12 of itself. */
FS_DEVICE bool noise_is_sharp(int32_t prefix, uint32_t upper) {
    return prefix < 0 ? ~upper > 1u << 12 : prefix > 0 || upper > 1u << 12;
}

#endif
