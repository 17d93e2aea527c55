/* weight.cuh - what tokens weigh that a cut looks at, as integers. */
#ifndef FS_CUDA_WEIGHT_CUH
#define FS_CUDA_WEIGHT_CUH

#include "cuda/device/ptx.cuh"

#include "core/cut.h"

/* exp(number - origin) in units of 2^(unit - 39), unit being the exponent of the largest: of 2^24 tokens the sum fits
 * 64 bits, and of none is lost what matters. */
struct cut_scale {
    float scale, origin;
    int32_t unit;

    FS_DEVICE_MEMBER cut_scale(float scale, float first_y) : scale(scale) {
        const float first = first_y * scale;
        origin = cut_origin(first);
        unit = exp_split(first - origin).exponent;
    }

    /* Out of line, because it is needed in many places. */
    __device__ __noinline__ uint64_t weigh(float y) const {
        const fs_exp e = exp_split(y * scale - origin);
        const uint32_t bits = float_bits(e.fraction), mantissa = (bits & 0x7FFFFFu) | 0x800000u;
        const int32_t shift = (int32_t)(bits >> 23) - 150 + e.exponent - unit + 39;
        if (shift >= 0) return (uint64_t)mantissa << min(shift, 40);
        return shift > -31 ? (mantissa + (1u << (-shift - 1))) >> -shift : 0;
    }

    /* exp(y) 2^-unit, where origin is 0. The whole part of the exponent is split off first, so that it is as exact as
     * the instruction. */
    FS_DEVICE_MEMBER float about(float y) const {
        const float number = y * scale;
        const float shift = 12582912.0f - (float)unit; /* adding 1.5 2^23 rounds to an integer, held in the low bits */
        const float z = fmaxf(fmaf(number, 1.44269502f, shift), 12582912.0f - 100.0f), n = z - shift;
        const float f = fmaf(number, 1.92596299e-8f, fmaf(number, 1.44269502f, -n));
        return exp2_approximate(f) * __int_as_float((__float_as_int(z) << 23) + 0x3F800000);
    }

    /* log of the mass that so many units are. */
    FS_DEVICE_MEMBER double log_of(uint64_t weight) const {
        return (double)origin + log((double)weight) + (unit - 39) * 0.69314718055994530942;
    }
};

#endif
