/* ptx.cuh - the PTX instructions the tile kernels use, one wrapper each. Addresses are 32-bit shared-memory
 * addresses. */
#ifndef FS_CUDA_PTX_CUH
#define FS_CUDA_PTX_CUH

#include "flashsampling.h"

#include <cuda.h>

#include <cstdint>

#define FS_DEVICE static __device__ __forceinline__
#define FS_DEVICE_MEMBER __device__ __forceinline__

FS_DEVICE uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --------------------------------------------------------------------------------------------------- barriers ---- */

FS_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* Makes initialised barriers visible to the copy engine and to the other CTAs of the cluster. */
FS_DEVICE void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;");
#endif
}

FS_DEVICE void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives at the same barrier of another CTA of the cluster. Without .release: the form with it fences every stage and
 * nearly doubled the main loop (H200, 2026-11). */
FS_DEVICE void barrier_arrive_at(uint32_t barrier, uint32_t cta) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(cta)
                 : "memory");
}

/* Arrives and announces how many bytes the copy engine will bring. */
FS_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

/* Whether the phase is over. */
FS_DEVICE bool barrier_is_over(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Waits for the phase, but not much longer than this many nanoseconds; true if it is over. Before sm_90 no instruction
 * waits: tests between short sleeps do. */
FS_DEVICE bool barrier_wait_for(uint32_t barrier, uint32_t parity, uint32_t nanoseconds) {
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity), "r"(nanoseconds)
                 : "memory");
    return done != 0;
#else
    for (int i = 0; i < 8; i++) {
        if (barrier_is_over(barrier, parity)) return true;
        __nanosleep(nanoseconds / 8);
    }
    return false;
#endif
}

FS_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nagain%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done%=;\nbra again%=;\ndone%=:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#else
    while (!barrier_is_over(barrier, parity)) __nanosleep(20);
#endif
}

FS_DEVICE void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Counts for the barrier without waiting at it. Whole warps. */
FS_DEVICE void named_barrier_pass(int id, int threads) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

FS_DEVICE void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

FS_DEVICE void cluster_wait() {
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

FS_DEVICE void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}

FS_DEVICE uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The same place of another CTA's shared memory, both as generic addresses. */
FS_DEVICE void *shared_at_peer(const void *mine, uint32_t cta) {
    uint64_t there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((uint64_t)mine), "r"(cta));
    return (void *)there;
}

/* ------------------------------------------------------------------------------------------------- copy engine ---- */

/* Barriers made by this thread before the copy engine's use of them. */
FS_DEVICE void async_proxy_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* A box of a two-dimensional tensor at column x, row y into shared memory; parts outside the tensor are zeros and count
 * in full. */
FS_DEVICE void copy_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, int32_t x, int32_t y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}

/* Likewise of a three-dimensional one. */
FS_DEVICE void copy_box_3d(uint32_t to, const CUtensorMap *map, uint32_t barrier, int32_t x, int32_t y, int32_t z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* The same box to the same place of every CTA in `mask`, each CTA's own barrier told. */
FS_DEVICE void copy_box_to_all(uint32_t to, const CUtensorMap *map, uint32_t barrier, int32_t x, int32_t y,
                               uint16_t mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, "
                 "%4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}

/* `bytes`, a multiple of 16, from global memory; both addresses are multiples of 16 too. */
FS_DEVICE void copy_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
#endif
}

/* ----------------------------------------------------------------------------------------- asynchronous copies ---- */

/* 16 or 4 bytes from global to shared memory, both addresses multiples of that. Only the wide form passes the L1 cache
 * by. */
FS_DEVICE void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

FS_DEVICE void copy_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* The same of the first `bytes` of SIZE, 16 or 4; the others are zeros. With 0 the source may be anywhere: nothing is
 * read. */
template <int SIZE> FS_DEVICE void copy_some(uint32_t to, const void *from, int32_t bytes) {
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* Arrives when every copy this thread has begun is there. noinc: the arrival is one of those the barrier was made
 * for. */
FS_DEVICE void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

FS_DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Copies since the last call of this are one group. */
FS_DEVICE void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all but the last LEFT groups of this thread are there. */
template <int LEFT> FS_DEVICE void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

FS_DEVICE uint4 load_shared_16(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

FS_DEVICE uint2 load_shared_8(uint32_t from) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
    return x;
}

FS_DEVICE uint32_t load_shared_4(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

FS_DEVICE uint32_t load_shared_2(uint32_t from) {
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
    return x;
}

FS_DEVICE void store_shared_4(uint32_t to, uint32_t x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

FS_DEVICE void store_shared_2(uint32_t to, uint16_t x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}

/* Shared memory this launch was given. */
FS_DEVICE uint32_t dynamic_shared_bytes() {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

/* ------------------------------------------------------------------------------------------------ tensor cores ---- */

/* A K-major tile with 128-byte rows, SWIZZLE_128B: 8 rows are one 1024-byte atom. The base is 1024-byte aligned; a step
 * of 16 in K is 32 bytes more. The lower half counts shared memory in units of 16 bytes, the upper half is the same for
 * all. */
FS_DEVICE uint32_t matrix_start(uint32_t address) {
    return address >> 4 | 1u << 16;
}

FS_DEVICE uint64_t matrix_at(uint32_t start, int bytes_on) {
    return (uint64_t)(1u << 30 | 64u) << 32 | (start + bytes_on / 16);
}

FS_DEVICE void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

FS_DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> FS_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements. Lanes 8 i to 8 i + 7 give the addresses of matrix i's rows, 16 bytes each;
 * each lane gets two neighbours of row lane / 4 of each. */
FS_DEVICE void load_matrices(uint32_t (&m)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
}

/* Two of them, at the addresses that lanes 0 to 15 give. */
FS_DEVICE void load_two_matrices(uint32_t (&m)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(address));
}

/* d += a b: 16 x 8 x 16, float sums. Fragments as load_matrices gives them. */
template <int DTYPE> FS_DEVICE void mma(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (DTYPE == FS_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int REGISTERS> FS_DEVICE void set_more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> FS_DEVICE void set_fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* An address the compiler cannot make again, so that it keeps it: making one takes two instructions and a special
 * register. */
FS_DEVICE uint32_t kept_address(const void *shared) {
    uint32_t address = shared_address(shared);
    asm volatile("" : "+r"(address));
    return address;
}

FS_DEVICE float widen_f16(uint32_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)bits));
    return x;
}

/* ------------------------------------------------------------------------------------------------------- other ---- */

/* Larger of two, NaN if either is: so a NaN logit is noticed by the same instruction that finds large ones. */
FS_DEVICE float max_or_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

/* 2^x to 2^-22 for |x| <= 1/2; 0 and +inf far out. */
FS_DEVICE float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Waits until the launches ahead on the stream have ended (nothing to wait for without programmatic launch). */
FS_DEVICE void wait_for_earlier_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets a programmatic launch behind this one be set up; it still waits for the end of this one before it reads. */
FS_DEVICE void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Brings a line of global memory as far as L2. */
FS_DEVICE void prefetch_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* `bytes`, a multiple of 16, from a multiple of 16 on: to L2, where an instruction can ask for so many. */
FS_DEVICE void prefetch_l2_bytes(const void *p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

FS_DEVICE uint64_t nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Adds; what this thread does after comes after. */
FS_DEVICE uint32_t add_acquire(uint32_t *p, uint32_t x) {
    uint32_t before;
    asm volatile("atom.acquire.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(x) : "memory");
    return before;
}

/* The same; and what this thread did before comes before. */
FS_DEVICE uint32_t add_in_order(uint32_t *p, uint32_t x) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(x) : "memory");
    return before;
}

/* *p = max(*p, x), in shared memory by its address, in global memory. */
FS_DEVICE void raise_shared(uint32_t p, uint32_t x) {
    asm volatile("red.shared::cta.max.u32 [%0], %1;" ::"r"(p), "r"(x) : "memory");
}

FS_DEVICE void raise_global(uint32_t *p, uint32_t x) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

/* round_bf16 and round_f16 of core/halves.h, by two instructions. */
FS_DEVICE float rounded_to_bf16(float x) {
    uint16_t half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return __uint_as_float((uint32_t)half << 16);
}

FS_DEVICE float rounded_to_f16(float x) {
    asm("{\n.reg .b16 half;\ncvt.rn.f16.f32 half, %0;\ncvt.f32.f16 %0, half;\n}" : "+f"(x));
    return x;
}

/* Eight bytes from global to shared memory, some time before copy_async_wait() returns in the same thread. */
FS_DEVICE void copy_async_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

FS_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

FS_DEVICE uint32_t load_relaxed(const uint32_t *p) {
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

#endif
