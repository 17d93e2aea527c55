/* mass.cuh - masses (core/mass.h) of the lanes of a warp, and across them. */
#ifndef FS_CUDA_MASS_CUH
#define FS_CUDA_MASS_CUH

#include "cuda/device/ptx.cuh"

#include "core/mass.h"

/* The mass of the lane whose number differs in this bit. */
FS_DEVICE fs_mass mass_across(const fs_mass &m, int apart) {
    fs_mass other;
    other.top = __shfl_xor_sync(~0u, m.top, apart);
    for (int i = 0; i < 3; i++) other.limb[i] = __shfl_xor_sync(~0u, (unsigned long long)m.limb[i], apart);
    return other;
}

/* exp(l) of the lanes, granule by granule as in core/mass.h: half a warp has one, its first lane the sum. */
FS_DEVICE void add_granules(fs_mass *mass, float l) {
    const fs_exp e = exp_split(l);
    int32_t most = e.exponent;
#pragma unroll
    for (int apart = 8; apart; apart /= 2) most = max(most, __shfl_xor_sync(~0u, most, apart));
    float sum = l > -INFINITY ? exp_scaled(e.fraction, e.exponent - most) : 0.0f;
#pragma unroll
    for (int apart = 8; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (threadIdx.x % 16 == 0) mass_add(mass, sum, most);
}

/* The masses of the lanes before this one together; *all: those of all lanes. */
FS_DEVICE fs_mass mass_before(fs_mass m, int lane, fs_mass *all) {
    auto up = [&](int apart) {
        fs_mass other;
        other.top = __shfl_up_sync(~0u, m.top, apart);
        for (int i = 0; i < 3; i++) other.limb[i] = __shfl_up_sync(~0u, (unsigned long long)m.limb[i], apart);
        return other;
    };
    for (int apart = 1; apart < 32; apart *= 2) {
        const fs_mass other = up(apart);
        if (lane >= apart) mass_merge(&m, &other);
    }
    all->top = __shfl_sync(~0u, m.top, 31);
    for (int i = 0; i < 3; i++) all->limb[i] = __shfl_sync(~0u, (unsigned long long)m.limb[i], 31);
    const fs_mass before = up(1);
    return lane ? before : mass_empty();
}

#endif
