/* halves.h - numbers as they are stored: bf16 and f16 widened to float, and rounded to nearest, ties to even, as
 * engines that store logits do. */
#ifndef FS_CORE_HALVES_H
#define FS_CORE_HALVES_H

#include "core.h"

#include <math.h>

FS_CORE float widen_bf16(uint16_t half) {
    return bits_float((uint32_t)half << 16);
}

/* Shifts the 5-bit exponent into place and lets a multiplication by 2^112 rebias it, subnormals included; inf and NaN
 * keep theirs. */
FS_CORE float widen_f16(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7FFF) << 13;
    uint32_t special = magnitude >= 0x0F800000u ? 0x7F800000u : 0;
    uint32_t scaled = float_bits(bits_float(magnitude) * 5.192296858534828e33f);
    return bits_float(scaled | special | (uint32_t)(half & 0x8000) << 16);
}

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
