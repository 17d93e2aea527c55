/* mass.cuh - masses (core/mass.h) across the lanes of a warp. */
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
