/* cuda_stored.cuh - what the warps that read stored logits share: the queue of tokens that may win, and their exact scores.
 *
 * A survivor costs a warp as much to judge as 32 do, so survivors of all warps of a team wait in one queue until there are 32: the warp
 * that brings the last of them judges all. What is left over is judged at the end of the part. Until then the best score, and so the
 * thresholds, stay where they are: more tokens pass, none is lost. */
#ifndef FS_CUDA_STORED_CUH
#define FS_CUDA_STORED_CUH

#include "cuda_blocks.cuh"
#include "cuda_judge.cuh"
#include "cuda_plan.h"

constexpr int WARPS = FS_CUDA_STORED_WARPS;
/* Entries of the queue per warp: 31 that wait for the 32nd, and two blocks whose tokens all pass. A multiple of 32. */
constexpr int QUEUE = 288;

/* The marks of a block: the lanes that have a marked token among their four, and the largest noise any of these can have. Its last seven
 * bits are the place of the token it is of; the number is no smaller for that. */
struct block_marks {
    uint32_t lanes;
    float ceiling;
};

/* Shared memory of a CTA, beside the warps' rings. [WARPS]: per warp, or per team, of which there are WARPS or one. */
struct desk {
    /* Aligned: nvcc 13.0 reads a chosen one of the two 16 bytes at a time, wherever they lie. */
    alignas(16) fs_judged_row row;
    alignas(16) fs_judged_row blank; /* a row like any other, to rehearse with before the row is known */
    stored_row data;
    int32_t b;                     /* the row, of those of this launch */
    fs_cuda_line *line;            /* where scores are shared with other CTAs; NULL: nowhere */
    unsigned long long key[WARPS]; /* best key of the part at hand; 0: none */
    uint32_t best[WARPS];          /* its score, or one other CTAs know of: ordered float, rounded down; 0: none */
    uint32_t tail[WARPS];          /* entries queued so far in this part */
    uint32_t flags, peak;          /* as in fs_cuda_line */
    uint2 candidate[32];           /* first tokens to judge: logit, token */
    fs_mass mass[WARPS];
    alignas(16) block_marks marks[WARPS][32]; /* of the warp's next 32 blocks; two at a time are 16 bytes */
    unsigned long long queue[WARPS * QUEUE];  /* low word the logit, high word 1 + the token; 0: free */
};
static_assert(2 * WARPS <= 32, "two candidates per warp, one per lane of the warp that judges them");

/* A warp's place in its CTA. */
struct seat {
    desk *d;
    int32_t team, warps; /* index of the team in the CTA; its warps */
};

FS_DEVICE void desk_open(desk *d) {
    for (int32_t i = threadIdx.x; i < WARPS * QUEUE; i += 32 * WARPS) d->queue[i] = 0;
    if (threadIdx.x < WARPS) d->key[threadIdx.x] = d->best[threadIdx.x] = d->tail[threadIdx.x] = 0;
    if (threadIdx.x < 32) d->candidate[threadIdx.x] = make_uint2(__float_as_uint(-INFINITY), 0);
    if (threadIdx.x == 0) d->flags = d->peak = 0;
}

/* Holds back the warps of a team until all are here. */
FS_DEVICE void team_barrier(const seat &at) {
    if (at.warps > 1) __syncthreads();
    else __syncwarp();
}

/* ----------------------------------------------------------------------------------------------------- judge ---- */

/* Judges one token per lane: its exact score in double, the warp's best to the team. -inf: this lane has none. All lanes. Out of line: it
 * is large and rare. With `rehearse` everything is computed and nothing kept: cold instructions come at some hundred cycles a line, so
 * a warp runs through them while the first logits are on their way (docs/findings/cold-code.md). */
static __device__ __noinline__ void judge_lanes(desk *d, int32_t team, float x, uint32_t token, bool rehearse) {
    const fs_judged_row row = rehearse ? d->blank : d->row;
    const float l = x * row.inverse;
    uint64_t key = FS_KEY_NONE;
    if (l > -INFINITY) {
        const uint32_t known = rehearse ? 0 : *(volatile uint32_t *)&d->best[team];
        const float bar = known ? float_of_ordered(known) : -INFINITY;
        if (row.greedy) key = score_key((double)x, token);
        else {
            const int32_t prefix = mark_of(row.noise, token);
            const float ceiling = prefix < 0 ? (float)FS_NOISE_G + 1e-5f : noise_ceiling((uint32_t)prefix);
            /* The threshold may be older than the best score. */
            if (!(l + ceiling < bar - 1e-3f - 1e-6f * fabsf(bar)))
                key = score_key((double)l + noise_gumbel_given(row.noise, token, prefix), token);
        }
    }
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(key >> 32));
    const uint32_t low = __reduce_max_sync(~0u, (uint32_t)(key >> 32) == high ? (uint32_t)key : 0);
    const uint32_t infinite = l == INFINITY ? FS_ROW_INF | (x == INFINITY ? FS_CUDA_X_INF : 0u) : 0u;
    const uint32_t flags = __reduce_or_sync(~0u, x != x ? (uint32_t)FS_ROW_NAN : infinite);
    if (rehearse || (threadIdx.x & 31) != 0) return;
    if (flags) atomicOr(&d->flags, flags);
    if (!high) return;
    key = (uint64_t)high << 32 | low;
    const uint32_t mine = ordered_float(__double2float_rd(score_key_value(key)));
    atomicMax(&d->key[team], (unsigned long long)key);
    const uint32_t before = atomicMax(&d->best[team], mine);
    if (d->line && mine > before) atomicMax(&d->line->hint, mine);
}

/* ----------------------------------------------------------------------------------------------------- queue ---- */

FS_DEVICE volatile unsigned long long *place_of(const seat &at, uint32_t position) {
    return &at.d->queue[at.team * QUEUE + position % (uint32_t)(at.warps * QUEUE)];
}

/* Judges entries [32 chunk, 32 chunk + ready): their places are given out, and they are there or about to be. */
FS_DEVICE void judge_chunk(const seat &at, uint32_t chunk, uint32_t ready) {
    const uint32_t lane = threadIdx.x & 31;
    float x = -INFINITY;
    uint32_t token = 0;
    if (lane < ready) {
        volatile unsigned long long *place = place_of(at, 32 * chunk + lane);
        unsigned long long entry;
        while (!(entry = *place)) __nanosleep(20);
        *place = 0;
        x = __uint_as_float((uint32_t)entry);
        token = (uint32_t)(entry >> 32) - 1;
    }
    __syncwarp();
    judge_lanes(at.d, at.team, x, token, false);
    __syncwarp(); /* lane 0 has told the best before another reads it */
}

/* Queues those of the lanes' tokens that `pass` has a bit for, and judges every chunk of 32 that this completes. x[0] to x[3] are of four
 * neighbours from `token` on, x[4] to x[7] of four others `apart` further. All lanes. A place must be free before it is written again.
 * Should other warps go once round the queue meanwhile, entries may swap places: they are of one part, so it is all the same who judges
 * which. */
FS_DEVICE void queue_up(const seat &at, const float (&x)[8], uint32_t pass, uint32_t token, uint32_t apart) {
    const uint32_t lane = threadIdx.x & 31, before = (1u << lane) - 1;
    uint32_t total = 0, tail = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) total += __popc(__ballot_sync(~0u, pass >> e & 1));
    if (!total) return;
    if (lane == 0) tail = atomicAdd(&at.d->tail[at.team], total);
    tail = __shfl_sync(~0u, tail, 0);
    uint32_t next = tail;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t lanes = __ballot_sync(~0u, pass >> e & 1);
        if (pass >> e & 1) {
            volatile unsigned long long *place = place_of(at, next + __popc(lanes & before));
            while (*place) __nanosleep(20);
            *place = (unsigned long long)(token + e % 4 + e / 4 * apart + 1) << 32 | __float_as_uint(x[e]);
        }
        next += __popc(lanes);
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t chunk = tail / 32; chunk < next / 32; chunk++) judge_chunk(at, chunk, 32);
}

#endif
