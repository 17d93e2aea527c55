/* noise.cuh - core/noise.h as kernels use it: the marks of a block by one call, and noise in float with a known
 * error. */
#ifndef FS_CUDA_NOISE_CUH
#define FS_CUDA_NOISE_CUH

#include "cuda/device/ptx.cuh"

#include "core/noise.h"

/* The marks of one row in one block as its first call holds them. */
typedef struct fs_marks {
    int32_t count; /* pairs, the first of those with one place being a mark; -1: one call is not enough, walk */
    uint32_t places, prefixes[2];
} fs_marks;

/* From call 0 of a block. A pair whose place is taken is passed over: another one counts instead. */
FS_DEVICE fs_marks marks_from(fs_words r) {
    int32_t count = noise_mark_sum(r.w[0]);
    const uint32_t p0 = noise_mark_place(r.w[1], 0), p1 = noise_mark_place(r.w[1], 1);
    const uint32_t p2 = noise_mark_place(r.w[1], 2), p3 = noise_mark_place(r.w[1], 3);
    if (count > 1 && p1 == p0) count++;
    if (count > 2 && (p2 == p0 || p2 == p1)) count++;
    if (count > 3 && (p3 == p0 || p3 == p1 || p3 == p2)) count++;
    return {noise_mark_is_open(r.w[0]) || count > 4 ? -1 : count, r.w[1], {r.w[2], r.w[3]}};
}

FS_DEVICE fs_marks marks_of(fs_noise noise, uint32_t block) {
    return marks_from(noise_mark_words(noise, block, 0));
}

FS_DEVICE uint32_t mark_place(const fs_marks &marks, int i) {
    return noise_mark_place(marks.places, (uint32_t)i);
}

FS_DEVICE uint32_t mark_prefix(const fs_marks &marks, int i) {
    return noise_mark_prefix(marks.prefixes[0], marks.prefixes[1], (uint32_t)i);
}

/* Noise that no token whose mark has this prefix reaches: noise_ceiling of core/noise.h, a little higher. */
FS_DEVICE float mark_ceiling(uint32_t prefix) {
    return 1e-4f - __logf((float)FS_NOISE_Q * (prefix ? (float)prefix * 0x1p-16f : 0x1p-53f));
}

/* Noise that no token without a mark reaches. */
constexpr float FS_UNMARKED_CEILING = (float)FS_NOISE_G + 1e-4f;

/* Who includes this may have it out of line: one block in four thousand needs more than one call. */
#ifndef FS_WALK
#define FS_WALK FS_DEVICE
#endif
FS_WALK int32_t walk_prefix(fs_noise noise, uint32_t token) {
    return noise_prefix(noise, token);
}

/* The prefix of a token's mark, or -1; `marks` are its block's. */
FS_DEVICE int32_t mark_among(const fs_marks &marks, fs_noise noise, uint32_t token) {
    int32_t prefix = -1;
#pragma unroll
    for (int i = 3; i >= 0; i--)
        if (i < marks.count && mark_place(marks, i) == token % FS_NOISE_BLOCK) prefix = (int32_t)mark_prefix(marks, i);
    return marks.count < 0 ? walk_prefix(noise, token) : prefix;
}

/* What is drawn of a token. */
typedef struct fs_drawn {
    int32_t prefix;   /* of its mark, or -1 */
    uint32_t word[2]; /* of its extension */
} fs_drawn;

/* Two calls side by side take as long as one, because a round waits for the round before it. */
FS_DEVICE fs_drawn draw_token(fs_noise noise, uint32_t token) {
    uint32_t key0 = FS_NOISE_KEY0, key1 = FS_NOISE_KEY1;
    fs_words mark = {{token / FS_NOISE_BLOCK, noise.r0, noise.r1, noise.r2 ^ FS_DOMAIN_MARK}};
    fs_words own = {{token, noise.r0, noise.r1, noise.r2 ^ FS_DOMAIN_EXTENSION}};
#pragma unroll 2
    for (int round = 0; round < 10; round++) {
        uint32_t same0 = key0, same1 = key1;
        mark = philox_round(mark, &same0, &same1);
        own = philox_round(own, &key0, &key1);
    }
    return {mark_among(marks_from(mark), noise, token), {own.w[0], own.w[1]}};
}

/* The noise of a token, to 5e-4: noise_gumbel_from of core/noise.h with all bits of w, or of 1 - w, that a float holds,
 * and by logarithms that are right to 2^-21 near 1 and to 3 ulp elsewhere. The worst is an unmarked token near G, where
 * E is C to 4e-7. */
FS_DEVICE float noise_about(const fs_drawn &d) {
    const bool marked = d.prefix >= 0;
    const float upper = (float)(marked ? d.word[1] : ~d.word[1]);
    const float lower = (float)(marked ? d.word[0] >> 28 << 28 : ~d.word[0] >> 12 << 12);
    const float w = fmaf(upper, 0x1p-32f, fmaf(lower, 0x1p-64f, marked ? 0x1p-37f : 0x1p-53f));
    const float y = ((float)d.prefix + w) * ((float)FS_NOISE_Q * 0x1p-16f);
    const float e = marked ? y * (1.0f + y * (0.5f + y * (1.0f / 3.0f))) : (float)FS_NOISE_C - __logf(w);
    return -__logf(e);
}

#endif
