/* read_ceiling.cu - how fast this device reads memory: 16-byte loads, or bulk copies into a ring in shared memory;
 * nothing kept. What a pass over W is measured against.
 *
 * Loads in flight per thread and blocks per processor trade registers for threads, copies are large or many, and which
 * is best differs between devices and sizes: there are several, and the caller takes the best. */
#include <cstdint>
#include <cuda_runtime.h>

namespace {

constexpr int THREADS = 512;

/* Reads data [count] and writes out [1] only if the bits come out a certain way: a compiler cannot drop the loads. */
template <int LOADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) read_all(const uint4 *data, size_t count, uint32_t *out) {
    const size_t step = (size_t)gridDim.x * THREADS;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t bits = 0;
    for (; i + (LOADS - 1) * step < count; i += LOADS * step) {
        uint4 v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++) v[k] = __ldg(data + i + k * step);
#pragma unroll
        for (int k = 0; k < LOADS; k++) bits ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < count; i += step) {
        const uint4 v = __ldg(data + i);
        bits ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (bits == 0x12345678) *out = bits;
}

/* The same by the copy engine, from sm_90 on: one block per processor, a ring of STAGES copies in flight, each taken as
 * soon as it is there. Copies go round the blocks. */
constexpr int RING_THREADS = 64; /* one copies, the others wait and give back */

#if __CUDA_ARCH__ >= 900
__device__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
#endif

template <int BYTES, int STAGES>
__global__ void __launch_bounds__(RING_THREADS) read_ring(const uint4 *data, size_t count, uint32_t *out) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    const uint32_t ring = shared_address(shared), full = ring + STAGES * BYTES, empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * s));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(empty + 8 * s));
        }
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    const size_t bytes = count * 16;
    int stage = 0;
    uint32_t parity = 0;
    for (size_t at = (size_t)blockIdx.x * BYTES; at < bytes; at += (size_t)gridDim.x * BYTES) {
        if (threadIdx.x == 0) {
            const uint32_t size = (uint32_t)(bytes - at < BYTES ? bytes - at : BYTES);
            wait(empty + 8 * stage, parity ^ 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + 8 * stage), "r"(size)
                         : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    ring + stage * BYTES),
                "l"((const char *)data + at), "r"(size), "r"(full + 8 * stage)
                : "memory");
        } else if (threadIdx.x == 32) {
            wait(full + 8 * stage, parity);
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + 8 * stage) : "memory");
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    if (count == 0) *out = 0;
#endif
}

struct variant {
    void (*kernel)(const uint4 *, size_t, uint32_t *);
    int blocks; /* per processor */
    int threads, shared_bytes;
};

template <int LOADS, int BLOCKS> constexpr variant loads() {
    return {read_all<LOADS, BLOCKS>, BLOCKS, THREADS, 0};
}

template <int BYTES, int STAGES> constexpr variant copies() {
    return {read_ring<BYTES, STAGES>, 1, RING_THREADS, STAGES * (BYTES + 16)};
}

const variant variants[] = {loads<4, 2>(),  loads<4, 4>(),      loads<8, 2>(),     loads<8, 4>(),
                            loads<16, 1>(), copies<32768, 6>(), copies<65536, 3>()};
constexpr int LOADS = 5; /* of them; copies need sm_90 */

} // namespace

extern "C" int read_ceiling_variants(void) {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9 ? sizeof variants / sizeof variants[0] : LOADS;
}

/* Queues one pass over data [bytes] on the stream; returns a cudaError_t. */
extern "C" int read_ceiling(int which, int processors, const void *data, size_t bytes, void *out, void *stream) {
    const variant &v = variants[which];
    if (v.shared_bytes) {
        const cudaError_t error =
            cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared_bytes);
        if (error != cudaSuccess) return (int)error;
    }
    v.kernel<<<processors * v.blocks, v.threads, v.shared_bytes, (cudaStream_t)stream>>>((const uint4 *)data,
                                                                                         bytes / 16, (uint32_t *)out);
    return (int)cudaGetLastError();
}
