/* halves.h - rounding a float to the nearest bf16 or f16, ties to even, as engines that store logits do. */
#ifndef FS_CORE_HALVES_H
#define FS_CORE_HALVES_H

#include "core.h"

#include <math.h>

FS_CORE float round_bf16(float x) {
    uint32_t u = float_bits(x);
    if (x != x) return x;
    return bits_float((u + 0x7FFFu + (u >> 16 & 1)) & 0xFFFF0000u);
}

FS_CORE float round_f16(float x) {
    float a = fabsf(x);
    uint32_t u = float_bits(x);
    if (!(a < INFINITY)) return x;
    if (a >= 65520.0f) return x > 0.0f ? INFINITY : -INFINITY;
    /* Below the normal range the grid is 2^-24, which is the spacing of floats around 0.75. */
    if (a < 6.103515625e-05f) return x > 0.0f ? (x + 0.75f) - 0.75f : (x - 0.75f) + 0.75f;
    return bits_float((u + 0xFFFu + (u >> 13 & 1)) & 0xFFFFE000u);
}

#endif
