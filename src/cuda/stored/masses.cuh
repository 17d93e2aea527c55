/* masses.cuh - log Z beside the race: 16 ids, a granule of core/mass.h, are four lanes; the order of its additions is
 * kept, and between granules sums are integers, so log Z does not depend on the batch, the shares or the shards. */
#ifndef FS_CUDA_STORED_MASSES_CUH
#define FS_CUDA_STORED_MASSES_CUH

#include "cuda/stored/state.cuh"

/* What a lane knows of masses is in shared memory: there are no registers for it across the calls that score. */
struct lane_mass {
    fs_mass mass;
    float sum; /* of a granule, in units of 2^exponent; not in the mass yet */
    int32_t exponent;
};

/* Adding this to a float rounds it to an integer, held in the low bits. */
#define FS_MASS_MAGIC 12582912.0f

/* exp(l) 2^-R with shift = FS_MASS_MAGIC - R: 2^n 2^f with |f| <= 1/2, so that the bits of a sum do not depend on R. l
 * is not far above R log 2; 0 where it is far below. */
FS_DEVICE float exp_shifted(float l, float shift) {
    const float z = fmaxf(fmaf(l, 1.44269502f, shift), FS_MASS_MAGIC - 100.0f);
    const float n = z - shift;
    const float f =
        fmaf(l, 1.92596299e-8f, fmaf(l, 1.44269502f, -n)); /* l log2(e) - n; the product is exact inside fmaf */
    return exp2_approximate(f) * __int_as_float((__float_as_int(z) << 23) + 0x3F800000);
}

/* The sum of exp over the granule this lane's four tokens are in, in the order of core/mass.h, in units of 2^exponent.
 * The same in its four lanes. NaN has no mass, nor has +inf, which has a flag of its own. */
FS_DEVICE float sum_granule(const float *x, float factor, int32_t *exponent) {
    float l[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        l[e] = x[e] * factor;
        if (!(l[e] < INFINITY)) l[e] = -INFINITY;
    }
    float most = fmaxf(fmaxf(l[0], l[1]), fmaxf(l[2], l[3]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if (most > -INFINITY && fabsf(most) > FS_EXP_LIMIT) {
        most = fminf(fmaxf(most, -FS_EXP_LIMIT), FS_EXP_LIMIT);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (l[e] > -INFINITY) l[e] = fminf(fmaxf(l[e], -FS_EXP_LIMIT), FS_EXP_LIMIT);
    }
    *exponent = most > -INFINITY ? (int32_t)rintf(most * 1.44269504f) : 0;
    const float shift = FS_MASS_MAGIC - (float)*exponent;
#pragma unroll
    for (int e = 0; e < 4; e++) l[e] = exp_shifted(l[e], shift);
    /* i and i + 8, i and i + 4: two and one lanes apart; then the lane's own, 2 and 1 apart, which by now are other
     * lanes'. */
    float sum = keep_sum(keep_sum(l[0], l[1], 2), keep_sum(l[2], l[3], 2), 1);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

FS_DEVICE void add_granules(lane_mass *own) {
    fs_mass more = own->mass;
    mass_add(&more, own->sum, own->exponent);
    own->mass = more;
    own->sum = 0.0f;
}

/* The masses of a warp's lanes to its CTA's state; the lanes' start anew. */
FS_DEVICE void hand_in(cta_state *cta, lane_mass *own) {
    fs_mass sum = own->mass;
    own->mass = mass_empty();
#pragma unroll 1
    for (int apart = 16; apart; apart /= 2) {
        const fs_mass other = mass_across(sum, apart);
        mass_merge(&sum, &other);
    }
    if (threadIdx.x % 32 == 0) cta->mass[own_warp_anew()] = sum;
}

#endif
