/* kth.cuh - the k-th largest of a warp's values. */
#ifndef FS_CUDA_KTH_CUH
#define FS_CUDA_KTH_CUH

#include "cuda/device/ptx.cuh"

constexpr int LIST_LANES = 8; /* values a lane takes: 256 in all */
constexpr int LIST_BITS = 20; /* of a floor: more are not worth their time */

/* The k-th largest of the warp's values, rounded down; 0 if there are fewer above 0. */
FS_DEVICE uint32_t kth_largest(const uint32_t (&value)[LIST_LANES], int32_t slots, int32_t k) {
    uint32_t kth = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit >> (31 - LIST_BITS); bit >>= 1) {
        int32_t count = 0;
#pragma unroll
        for (int i = 0; i < LIST_LANES; i++)
            if (32 * i < slots) count += __popc(__ballot_sync(~0u, value[i] >= (kth | bit)));
        if (count >= k) kth |= bit;
    }
    return kth;
}

#endif
