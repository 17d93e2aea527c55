/* The kernel of screens for NEON with dot products of bytes (Armv8.6): sdot and usdot, 16 products an instruction.
 *
 * 8 bits: a token's 128 columns are 8 loads and 8 sdot; H stays in registers for all 16 tokens, of which four are added
 * up, converted and scaled together. 4 bits: two tokens' 64 columns are 4 loads, 8 usdot and 4 masks: bytes as they lie
 * are 16 b + a, and when the products of a are subtracted, those of b are left. In cache, one core of a Neoverse V1
 * that has two vector instructions a cycle: 44 and 37 weights a ns (2026-11-18). */
#include "cpu_screen.h"

#include <arm_neon.h>

#define FS_INLINE static inline __attribute__((always_inline))
/* Bytes between what is asked of memory and what is used. 151,936 x 1,024, one row, one core: 7.8 instead of 9.4 ms for
 * 8 bits, of which more are no better; 5.1 instead of 6.2 for 4 bits. */
#define FS_AHEAD8 256
#define FS_AHEAD4 2048

FS_INLINE float32x4_t load_scales(const uint16_t *scale) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(scale), 16));
}

/* Of 16 tokens, four in a vector. */
typedef struct totals {
    float32x4_t dot[4], spread[4];
} totals;

FS_INLINE totals no_totals(void) {
    totals t;
    for (int i = 0; i < 4; i++) t.dot[i] = t.spread[i] = vdupq_n_f32(0.0f);
    return t;
}

FS_INLINE fs_strip_sums sums_of(const totals *t) {
    fs_strip_sums sums;
    for (int i = 0; i < 4; i++) {
        vst1q_f32(sums.dot + 4 * i, t->dot[i]);
        vst1q_f32(sums.spread + 4 * i, t->spread[i]);
    }
    return sums;
}

/* Sums of four tokens, side by side. */
FS_INLINE int32x4_t add_up(const int32x4_t *x) {
    return vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]));
}

static fs_strip_sums dots8(const fs_screen *s, const unsigned char *strip, fs_image h) {
    totals total = no_totals();
    for (int32_t e = 0; e < h.entries; e++) {
        const int8_t *w = (const int8_t *)strip_record(s, strip, h.record[e]);
        const uint16_t *scale = record_tail(s, (const unsigned char *)w);
        int8x16_t q[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) q[i] = vld1q_s8(h.q + e * FS_SCREEN_SPAN + i * 16);
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; quad++) {
            int32x4_t token[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const int8_t *line = w + (quad * 4 + j) * FS_SCREEN_CHUNK;
                token[j] = vdupq_n_s32(0);
                __builtin_prefetch(line + FS_AHEAD8);
                __builtin_prefetch(line + FS_SCREEN_TOKENS * FS_SCREEN_CHUNK + FS_AHEAD8);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++)
                    token[j] = vdotq_s32(
                        token[j], vld1q_s8(line + i / 4 * (FS_SCREEN_TOKENS * FS_SCREEN_CHUNK) + i % 4 * 16), q[i]);
            }
            const float32x4_t step = vmulq_n_f32(load_scales(scale + quad * 4), h.step[e]);
            total.dot[quad] = vfmaq_f32(total.dot[quad], vcvtq_f32_s32(add_up(token)), step);
            if (e < s->records)
                total.spread[quad] =
                    vfmaq_n_f32(total.spread[quad], load_scales(scale + FS_SCREEN_TOKENS + quad * 4), h.norm[2 * e]);
        }
    }
    return sums_of(&total);
}

static fs_strip_sums dots4(const fs_screen *s, const unsigned char *strip, fs_image h) {
    const uint8x16_t low = vdupq_n_u8(15);
    totals total = no_totals();
    for (int32_t c = 0; c < 2 * h.entries; c++) {
        const unsigned char *record = strip_record(s, strip, h.record[c / 2]);
        const unsigned char *w = record + c % 2 * (FS_SCREEN_TOKENS / 2 * FS_SCREEN_CHUNK);
        const uint16_t *scale = record_tail(s, record) + c % 2 * FS_SCREEN_TOKENS;
        const int32x4_t offset = vdupq_n_s32(8 * h.sum[c]), offset_high = vdupq_n_s32(128 * h.sum[c]);
        int8x16_t q[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) q[i] = vld1q_s8(h.q + c * FS_SCREEN_CHUNK + i * 16);
#pragma GCC unroll 2
        for (int quad = 0; quad < 2; quad++) {
            int32x4_t both[4], first[4]; /* 16 times token g + 8, and token g; the latter alone */
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const unsigned char *line = w + (quad * 4 + j) * FS_SCREEN_CHUNK;
                both[j] = first[j] = vdupq_n_s32(0);
                __builtin_prefetch(line + FS_AHEAD4);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    const uint8x16_t x = vld1q_u8(line + i * 16);
                    both[j] = vusdotq_s32(both[j], x, q[i]);
                    first[j] = vusdotq_s32(first[j], vandq_u8(x, low), q[i]);
                }
            }
            const int32x4_t sums = add_up(first), high = vsubq_s32(vsubq_s32(add_up(both), sums), offset_high);
            const float32x4_t step = load_scales(scale + quad * 4), step_high = load_scales(scale + 8 + quad * 4);
            total.dot[quad] =
                vfmaq_f32(total.dot[quad], vcvtq_f32_s32(vsubq_s32(sums, offset)), vmulq_n_f32(step, h.step[c / 2]));
            total.dot[quad + 2] =
                vfmaq_f32(total.dot[quad + 2], vcvtq_n_f32_s32(high, 4), vmulq_n_f32(step_high, h.step[c / 2]));
            if (c >= 2 * s->records) continue;
            total.spread[quad] = vfmaq_n_f32(total.spread[quad], vmulq_f32(step, step), h.norm[c]);
            total.spread[quad + 2] = vfmaq_n_f32(total.spread[quad + 2], vmulq_f32(step_high, step_high), h.norm[c]);
        }
    }
    return sums_of(&total);
}

FS_DEFINE_SCREEN_KERNEL(neondot);
