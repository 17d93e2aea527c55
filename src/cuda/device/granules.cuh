/* granules.cuh - log Z of kernels that have a row's logits tile by tile: sums of exp over granules of 16 tokens
 * (core/mass.h), and over the eight of a tile.
 *
 * A granule's sum is a float, made of exp2(l log2 e) in one order; a tile's is the sum of its granules, in one order,
 * and is added to the row's mass as an integer. So log Z does not depend on the batch, nor on shards cut at tiles, nor
 * on which kernel sums. A granule whose sum is not well inside the range of a float, all its logits below -33 or one
 * above 66, is made again with an exponent of its own and added apart; which ones do depends on their logits alone.
 *
 * A term's relative error is below 2e-7 (1 + |l|), so log Z has about the error of the float it is returned in. */
#ifndef FS_CUDA_GRANULES_CUH
#define FS_CUDA_GRANULES_CUH

#include "cuda/device/row.cuh"

/* What eight of them together leave inside the limbs of a row. */
#define FS_MASS_LEAST 0x1p-48f
#define FS_MASS_MOST 0x1p96f

FS_DEVICE bool granule_is_near(float sum) {
    return sum >= FS_MASS_LEAST && sum < FS_MASS_MOST;
}

/* log2(e) per unit of the logits that are summed: what a row's logits are multiplied by. */
FS_DEVICE float mass_rate(const fs_draw &draw, bool raw) {
    return raw ? 1.44269504f : draw.inverse * 1.44269504f;
}

/* In the order of core/mass.h. Written out, because in a loop that is not unrolled they would be on the stack. */
FS_DEVICE float sum_of_granule(const float (&t)[FS_GRANULE]) {
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; i++) four[i] = (t[i] + t[i + 8]) + (t[i + 4] + t[i + 12]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

FS_DEVICE float sum_of_powers(const float (&number)[FS_GRANULE], float less) {
    float power[FS_GRANULE];
#pragma unroll
    for (int i = 0; i < FS_GRANULE; i++) power[i] = exp2_approximate(number[i] - less);
    return sum_of_granule(power);
}

/* To the odd mass of a row, by one thread of a warp at a time. */
FS_DEVICE void row_add_odd(fs_mass *into, uint32_t *lock, float sum, int32_t exponent) {
    while (atomicCAS(lock, 0u, 1u)) {
    }
    __threadfence(); /* what the last holder wrote */
    volatile fs_mass *there = into;
    fs_mass mass = {there->top, {there->limb[0], there->limb[1], there->limb[2]}};
    if (!mass.limb[0]) mass = mass_empty();
    mass_add(&mass, sum, exponent);
    there->top = mass.top;
    for (int i = 0; i < 3; i++) there->limb[i] = mass.limb[i];
    __threadfence(); /* the mass before the lock is free */
    atomicExch(lock, 0u);
}

/* The exponent of a granule of its own, by the largest of its numbers. */
FS_DEVICE float odd_exponent(float most) {
    return rintf(fminf(fmaxf(most, -1.4427f * FS_EXP_LIMIT), 1.4427f * FS_EXP_LIMIT));
}

/* NaN is treated as -inf; +inf has a flag of its own and no mass. */
FS_DEVICE float odd_number(float number) {
    return number < INFINITY ? number : -INFINITY;
}

/* ------------------------------------------------------------------------------------- a granule for each lane ---- */

/* Those of a warp's granules that are odd. */
static __device__ __noinline__ void add_odd_granules(fs_cuda_row *row, float (&number)[FS_GRANULE], bool odd) {
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < FS_GRANULE; i++) {
        number[i] = odd_number(number[i]);
        most = fmaxf(most, number[i]);
    }
    const float exponent = odd_exponent(most);
    const float sum = most > -INFINITY ? sum_of_powers(number, exponent) : 0.0f;
#pragma unroll 1
    for (uint32_t left = __ballot_sync(~0u, odd && sum > 0.0f); left; left &= left - 1) {
        if ((int)threadIdx.x % 32 == __ffs((int)left) - 1) row_add_odd(&row->odd, &row->lock, sum, (int32_t)exponent);
        __syncwarp();
    }
}

/* The sum of the tile that this lane's granule is in: one of eight lanes'. */
FS_DEVICE float tile_of_granules(float granule) {
    const int32_t first = (int32_t)threadIdx.x % 32 & ~7;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += __shfl_sync(~0u, granule, first + i);
    return sum;
}

/* Tiles of one row that a lane has summed: to two neighbouring limbs, most of the time the same. */
struct fs_tile_sum {
    unsigned long long low = 0, high = 0;
    int32_t limb = 0;

    FS_DEVICE_MEMBER void hand_in(unsigned long long *limbs) {
        if (low) atomicAdd(&limbs[limb - FS_CUDA_LIMB], low);
        if (high) atomicAdd(&limbs[limb - FS_CUDA_LIMB + 1], high);
        low = high = 0;
    }
    FS_DEVICE_MEMBER void add(unsigned long long *limbs, float sum) {
        if (!(sum > 0.0f)) return;
        int32_t first;
        const unsigned long long wide = limbs_of(sum, &first);
        if (first != limb) hand_in(limbs);
        limb = first;
        low += wide & 0xFFFFFF;
        high += wide >> 24;
    }
};

#endif
