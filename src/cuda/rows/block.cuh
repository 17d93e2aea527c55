/* block.cuh - what the threads of one CTA know together: the CTA that ends one row. */
#ifndef FS_CUDA_BLOCK_CUH
#define FS_CUDA_BLOCK_CUH

#include "cuda/device/ptx.cuh"

constexpr int ROW_THREADS = 1024, ROW_WARPS = ROW_THREADS / 32;

/* f over all threads' values, the same in all of them. */
template <class T, class F> FS_DEVICE T block_reduce(T value, F f) {
    __shared__ T part[ROW_WARPS];
    for (int apart = 16; apart; apart /= 2) value = f(value, __shfl_xor_sync(~0u, value, apart));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    value = part[threadIdx.x % ROW_WARPS];
    for (int apart = ROW_WARPS / 2; apart; apart /= 2) value = f(value, __shfl_xor_sync(~0u, value, apart));
    __syncthreads(); /* all have read before the next one writes */
    return value;
}

FS_DEVICE unsigned long long block_max(unsigned long long value) {
    return block_reduce(value, [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
}

FS_DEVICE float block_largest(float value) {
    return block_reduce(value, [](float a, float b) { return fmaxf(a, b); });
}

FS_DEVICE unsigned long long block_min(unsigned long long value) {
    return ~block_max(~value);
}

FS_DEVICE unsigned long long block_sum(unsigned long long value) {
    return block_reduce(value, [](unsigned long long a, unsigned long long b) { return a + b; });
}

FS_DEVICE uint32_t block_or(uint32_t value) {
    return block_reduce(value, [](uint32_t a, uint32_t b) { return a | b; });
}

/* The sum of the values of the threads before this one. */
FS_DEVICE unsigned long long block_before(unsigned long long value) {
    __shared__ unsigned long long part[ROW_WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long sum = value;
    for (int apart = 1; apart < 32; apart *= 2) {
        const unsigned long long other = __shfl_up_sync(~0u, sum, apart);
        if (lane >= apart) sum += other;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) sum += part[w];
    __syncthreads();
    return sum - value;
}

#endif
