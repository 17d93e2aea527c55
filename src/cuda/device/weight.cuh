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

    /* log of the mass that so many units are. */
    FS_DEVICE_MEMBER double log_of(uint64_t weight) const {
        return (double)origin + log((double)weight) + (unit - 39) * 0.69314718055994530942;
    }
};

#endif
