/* block.cuh - what the threads that end one row know together. A row is a team's: one CTA, or the CTAs of a cluster,
 * each with a slice of the row's tokens. CTAs of a team write into each other's shared memory, and a barrier later read
 * what came in their own. */
#ifndef FS_CUDA_BLOCK_CUH
#define FS_CUDA_BLOCK_CUH

#include "cuda/cuda_plan.h"
#include "cuda/device/ptx.cuh"

constexpr int MOST_WARPS = 16;

/* The first bytes of shared memory. What all threads know is there: passed from function to function it would be on
 * their stacks, which the little L1 beside so much shared memory does not hold (docs/notes/gpu-rows.md). */
struct block_room {
    unsigned long long part[MOST_WARPS];
    unsigned long long word[2][FS_CUDA_TEAM]; /* of the team's CTAs, in turn: a CTA that is one behind may still read */
    int32_t rank, size;                       /* of the CTA in its team, of the team */
    uint32_t turn;
};

FS_DEVICE char *row_shared() {
    extern __shared__ __align__(16) char shared[];
    return shared;
}

FS_DEVICE block_room *room_of_block() {
    return (block_room *)row_shared();
}

FS_DEVICE int32_t team_rank() {
    return room_of_block()->rank;
}

FS_DEVICE int32_t team_size() {
    return room_of_block()->size;
}

/* One thread. */
FS_DEVICE void open_team(int32_t size) {
    block_room *room = room_of_block();
    room->rank = 0;
#if __CUDA_ARCH__ >= 900
    if (size > 1) room->rank = (int32_t)cluster_rank();
#endif
    room->size = size;
    room->turn = 0;
}

/* That this CTA runs, and that all of the team do: before the first of them writes into another's shared memory. */
FS_DEVICE void greet_team() {
#if __CUDA_ARCH__ >= 900
    if (team_size() > 1) cluster_arrive();
#endif
}

FS_DEVICE void meet_team() {
#if __CUDA_ARCH__ >= 900
    __syncwarp(); /* the instruction wants whole warps */
    if (team_size() > 1) cluster_wait();
#endif
}

/* All threads of the team have come, and see what the others have written until here. */
FS_DEVICE void team_barrier() {
#if __CUDA_ARCH__ >= 900
    if (team_size() > 1) {
        __syncwarp(); /* the instruction wants whole warps */
        cluster_barrier();
        return;
    }
#endif
    __syncthreads();
}

/* The same place in another CTA's shared memory. */
template <class T> FS_DEVICE T *at_peer(T *mine, int32_t rank) {
#if __CUDA_ARCH__ >= 900
    if (team_size() > 1) return (T *)shared_at_peer(mine, (uint32_t)rank);
#endif
    return mine;
}

/* f over all threads' values of a CTA, 8 bytes or less, the same in all of them. */
template <class T, class F> FS_DEVICE T block_reduce(T value, F f) {
    T *part = (T *)room_of_block()->part;
    const int warps = (int)blockDim.x / 32;
#pragma unroll 1
    for (int apart = 16; apart; apart /= 2) value = f(value, __shfl_xor_sync(~0u, value, apart));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    value = part[threadIdx.x % (unsigned)warps];
#pragma unroll 1
    for (int apart = warps / 2; apart; apart /= 2) value = f(value, __shfl_xor_sync(~0u, value, apart));
    __syncthreads(); /* all have read before the next one writes */
    return value;
}

/* f over all threads' values of a team. */
template <class F> FS_DEVICE unsigned long long team_reduce(unsigned long long value, F f) {
    block_room *room = room_of_block();
    value = block_reduce(value, f);
    if (room->size == 1) return value;
    unsigned long long *word = room->word[room->turn % 2];
    if ((int32_t)threadIdx.x < room->size) *at_peer(&word[room->rank], (int32_t)threadIdx.x) = value;
    team_barrier();
    if (threadIdx.x == 0) room->turn++; /* who asks next comes through the barriers of block_reduce first */
    value = word[0];
#pragma unroll 1
    for (int32_t i = 1; i < room->size; i++) value = f(value, word[i]);
    return value;
}

static __device__ __noinline__ unsigned long long team_max(unsigned long long value) {
    return team_reduce(value, [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
}

FS_DEVICE unsigned long long team_min(unsigned long long value) {
    return ~team_max(~value);
}

static __device__ __noinline__ unsigned long long team_sum(unsigned long long value) {
    return team_reduce(value, [](unsigned long long a, unsigned long long b) { return a + b; });
}

FS_DEVICE unsigned long long block_max(unsigned long long value) {
    return block_reduce(value, [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
}

/* The sum of the values of the CTA's threads before this one. */
FS_DEVICE unsigned long long block_before(unsigned long long value) {
    unsigned long long *part = room_of_block()->part;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long sum = value;
#pragma unroll 1
    for (int apart = 1; apart < 32; apart *= 2) {
        const unsigned long long other = __shfl_up_sync(~0u, sum, apart);
        if (lane >= apart) sum += other;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < warp; w++) sum += part[w];
    __syncthreads();
    return sum - value;
}

#endif
