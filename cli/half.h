/* half.h - bf16 and f16 as 16 bits, to and from float, rounding to nearest even. */
#ifndef FS_CLI_HALF_H
#define FS_CLI_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of_bf16(uint16_t h) {
    return float_of_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_of_float(float x) {
    uint32_t bits = bits_of_float(x);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40); /* adding below could turn a NaN into infinity */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float float_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float x = (float)fraction * 0x1p-24f; /* subnormal: exact */
    return sign ? -x : x;
}

static inline uint16_t f16_of_float(float x) {
    uint32_t bits = bits_of_float(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    float a = fabsf(x);
    if (x != x) return (uint16_t)(sign | 0x7e00);
    if (a >= 65520.0f) return (uint16_t)(sign | 0x7c00);
    /* Below 2^-14 the grid is 2^-24 wide: adding 0.5 puts that grid on the last bit of a float, which rounds for us. */
    if (a < 0x1p-14f) return (uint16_t)(sign | (bits_of_float(a + 0.5f) & 0x7ff));
    uint32_t magnitude = bits & 0x7fffffff;
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - (112u << 10)));
}

#endif
