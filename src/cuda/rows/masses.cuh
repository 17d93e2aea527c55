/* masses.cuh - sums of exp over a row's slice: masses (core/mass.h), and weights of tokens that cuts look at. */
#ifndef FS_CUDA_ROWS_MASSES_CUH
#define FS_CUDA_ROWS_MASSES_CUH

#include "cuda/device/granules.cuh"
#include "cuda/device/weight.cuh"
#include "cuda/rows/logits.cuh"

/* Runs f(granule, its 16 values) for this thread's granules of a slice. Threads begin at different quads, so that no
 * two of them want the same bank; sums of a granule's quads, 0 with 2, 1 with 3, both together, do not tell
 * (core/mass.h). */
template <class F> FS_DEVICE void each_granule(const row_slice s, F f) {
    const int32_t turn = threadIdx.x / 2;
#pragma unroll 1
    for (int32_t g = threadIdx.x; g < s.blocks * (FS_CUDA_TILE / FS_GRANULE); g += blockDim.x) {
        float v[FS_GRANULE];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 q = s.quad(4 * g + (turn + j) % 4);
            v[4 * j] = q.x, v[4 * j + 1] = q.y, v[4 * j + 2] = q.z, v[4 * j + 3] = q.w;
        }
        f(g, v);
    }
}

/* ------------------------------------------------------------------------------------------------------ masses ---- */

constexpr float MASS_NEAR = 44000.0f; /* less than FS_EXP_EXACT */

/* mass_add_granule of numbers that are -inf or within MASS_NEAR of 0, in half as many instructions: -inf is a number
 * far below all others, and products that are exact are fused with the sum behind them. */
FS_DEVICE void add_near_granule(fs_mass *mass, const float (&l)[FS_GRANULE]) {
    constexpr float SHIFT = 12582912.0f; /* as in exp_split */
    float fraction[FS_GRANULE], shifted[FS_GRANULE], most = 0.0f;
#pragma unroll
    for (int i = 0; i < FS_GRANULE; i++) {
        const float x = fmaxf(l[i], -FS_EXP_EXACT);
        shifted[i] = x * 1.44269504f + SHIFT;
        const float n = shifted[i] - SHIFT;
        const float r = fmaf(-n, 0.005645751953125f, fmaf(-n, 0.6875f, x)) - n * 1.42860682e-06f;
        fraction[i] = exp_near_zero(r);
        most = fmaxf(most, shifted[i]);
    }
    if (most < SHIFT - 1.44f * 44500.0f) return;
    const uint32_t unit = float_bits(most);
#pragma unroll
    for (int i = 0; i < FS_GRANULE; i++)
        fraction[i] = exp_scaled(fraction[i], (int32_t)(float_bits(shifted[i]) - unit));
    mass_add(mass, sum_of_granule(fraction), (int32_t)(unit - 0x4B400000u));
}

/* Any numbers. */
static __device__ __noinline__ fs_mass far_mass_of_slice(const row_slice s, float scale) {
    fs_mass mass = mass_empty();
    each_granule(s, [&](int32_t, float(&v)[FS_GRANULE]) {
#pragma unroll
        for (int i = 0; i < FS_GRANULE; i++) v[i] *= scale;
        mass_add_granule(&mass, v);
    });
    return mass;
}

/* The sum of exp(v scale) over this thread's granules. No finite v is further than `reach` from 0. */
FS_DEVICE fs_mass mass_of_slice(const row_slice s, float scale, float reach) {
    if (!(reach * scale <= MASS_NEAR)) return far_mass_of_slice(s, scale);
    fs_mass mass = mass_empty();
    each_granule(s, [&](int32_t, float(&v)[FS_GRANULE]) {
#pragma unroll
        for (int i = 0; i < FS_GRANULE; i++) v[i] *= scale;
        add_near_granule(&mass, v);
    });
    return mass;
}

/* Over the lanes that `apart` and its halves reach. */
FS_DEVICE fs_mass lanes_mass(fs_mass m, int apart) {
#pragma unroll 1
    for (; apart; apart /= 2) {
        const fs_mass other = mass_across(m, apart);
        mass_merge(&m, &other);
    }
    return m;
}

/* Over the CTA, in its first warp. */
FS_DEVICE fs_mass block_mass(fs_mass m, fs_mass *part) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (int)blockDim.x / 32;
    m = lanes_mass(m, 16);
    if (lane == 0) part[warp] = m;
    __syncthreads();
    if (warp == 0) m = lanes_mass(lane < warps ? part[lane] : mass_empty(), MOST_WARPS / 2);
    __syncthreads(); /* before the next one's parts */
    return m;
}

/* ----------------------------------------------------------------------------------------------------- weights ---- */

constexpr float WEIGHED_NEAR = 4.0f; /* numbers below the largest: e^-4 is a 55th */

/* The weight of this thread's granules of a row whose numbers are not far out. Tokens within `near` of the largest
 * weigh what they weigh; the others exp(l) to 4e-7, each less than a fiftieth of it. Sums of granules are in a fixed
 * order, then integers. */
FS_DEVICE uint64_t weight_of_slice(const row_slice s, const cut_scale units, float near) {
    uint64_t sum = 0;
    each_granule(s, [&](int32_t g, float(&v)[FS_GRANULE]) {
        float most = v[0];
#pragma unroll
        for (int i = 1; i < FS_GRANULE; i++) most = fmaxf(most, v[i]);
        if (most >= near) {
            const int32_t first = s.base + FS_GRANULE * g;
#pragma unroll 1
            for (int32_t token = first; token < first + FS_GRANULE; token++)
                if (s.at(token) >= near) sum += units.weigh(s.at(token));
#pragma unroll
            for (int i = 0; i < FS_GRANULE; i++) v[i] = v[i] >= near ? -INFINITY : v[i];
        }
#pragma unroll
        for (int i = 0; i < FS_GRANULE; i++) v[i] = units.about(v[i]);
        sum += (uint64_t)(sum_of_granule(v) * 0x1p39f);
    });
    return sum;
}

#endif
