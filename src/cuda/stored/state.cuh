/* state.cuh - what the warps that read stored logits share, and which of their tokens can win (device/race.cuh).
 *
 * A token that passes its lane's threshold is scored in float; if it may still be the best the lane has it pending. It
 * has one: by the time of a second one the first is out, or the two are so close that their exact scores decide. When
 * all is read one token is left, again but for the closest of cases. So most rows see no double arithmetic.
 *
 * Rough keys are what CTAs tell each other of a row: the ordered float of a score from above, then the complemented
 * token. The largest wins, unless another came so close that both left exact keys. */
#ifndef FS_CUDA_STORED_STATE_CUH
#define FS_CUDA_STORED_STATE_CUH

#include "cuda/device/row.cuh"
#include "cuda/stored/blocks.cuh"

constexpr int WARPS = FS_CUDA_STORED_WARPS;

/* The marks of a block: the lanes that have a marked token among their four, and noise that none of these tokens
 * exceeds. */
struct lane_marks {
    uint32_t lanes;
    float ceiling;
};

/* How far a warp is with its team's records, in blocks: the one at hand is begin .. stop - 1, the last one ends at
 * `end`. */
struct progress {
    int32_t begin, stop, end, team; /* team: index in the row */
};

/* Shared memory of a CTA, beside the warps' rings. [WARPS]: per warp, or per team, of which there are WARPS or one.
 * Aligned for what comes behind it: where copies begin matters (docs/notes/stored-logits.md). */
struct alignas(128) cta_state {
    fs_draw draw;
    stored_row data;
    fs_cuda_row *row;     /* where scores are shared with other CTAs; NULL: nowhere */
    uint32_t best[WARPS]; /* a score that the record at hand reaches, here or in another CTA: ordered float; 0: none */
    uint32_t flags, max;  /* as in fs_cuda_row */
    fs_pending last[WARPS];        /* what the warps have pending in the end */
    alignas(16) uint4 seen[WARPS]; /* the first 16 bytes of the row, as a warp has fetched them; .z is its bound */
    fs_mass mass[WARPS];
    alignas(16) progress way[WARPS];
    alignas(16) lane_marks marks[WARPS][32]; /* of the warp's next 32 blocks; two at a time are 16 bytes */
    alignas(16) fs_marks pairs[WARPS][32];   /* the same as drawn */
};

/* A warp's place in its CTA. */
struct place {
    cta_state *cta;
    int32_t team, warps; /* index of the team in the CTA; its warps */
};

FS_DEVICE int32_t own_warp() {
    return (int32_t)threadIdx.x / 32;
}

/* The same, read anew: for addresses that the compiler would make before a race and have no registers for. */
FS_DEVICE int32_t own_warp_anew() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return (int32_t)thread / 32;
}

/* Holds back the warps of a team until all are here. */
FS_DEVICE void team_barrier(const place &at) {
    if (at.warps > 1) __syncthreads();
    else __syncwarp();
}

/* ----------------------------------------------------------------------------------------------------- marks ---- */

FS_DEVICE void add_mark(lane_marks *marks, uint32_t place, uint32_t prefix) {
    marks->lanes |= 1u << place / 4;
    marks->ceiling = fmaxf(marks->ceiling, mark_ceiling(prefix));
}

static __device__ __noinline__ lane_marks walk_marks(fs_noise noise, uint32_t block) {
    lane_marks marks = {0, 0.0f};
    fs_walk walk = noise_walk(noise, block);
    while (noise_next(&walk)) add_mark(&marks, walk.token & 127, walk.prefix);
    return marks;
}

/* Each lane looks up the marks of one of the warp's next 32 blocks, if it is there. */
FS_DEVICE void look_up(cta_state *cta, int32_t block, bool there) {
    const fs_noise noise = cta->draw.noise;
    fs_marks pairs = marks_of(noise, (uint32_t)block);
    if (is_greedy(cta->draw) || !there) pairs.count = 0; /* a walk whose instructions are cold takes microseconds */
    lane_marks marks = {0, 0.0f};
#pragma unroll 1
    for (int32_t i = 0; i < pairs.count; i++) add_mark(&marks, mark_place(pairs, i), mark_prefix(pairs, i));
    if (pairs.count < 0) marks = walk_marks(noise, (uint32_t)block);
    __syncwarp(); /* the last ones have been read */
    cta->marks[own_warp()][threadIdx.x & 31] = marks;
    cta->pairs[own_warp()][threadIdx.x & 31] = pairs;
    __syncwarp();
}

/* ---------------------------------------------------------------------------------------------------- scores ---- */

/* A token in a lane that waits to be scored: 1 + the token, and its block's place among those looked up; 0: none. */
FS_DEVICE uint32_t entry_of(uint32_t token, uint32_t place) {
    return place << 25 | (token + 1);
}

/* The exact score of a token, which is drawn once more. */
static __device__ __noinline__ uint64_t exact_key(const fs_draw &draw, float x, uint32_t token) {
    const fs_words extension = noise_words(draw.noise, token, FS_DOMAIN_EXTENSION);
    return race_key(draw, x, token, {noise_prefix(draw.noise, token), {extension.w[0], extension.w[1]}});
}

/* Scores a token per lane: told to the team if better than all before, pending if it may be the best. Returns what the
 * lane then has pending. All lanes. */
FS_DEVICE fs_pending score(cta_state *cta, int32_t team, float x, uint32_t entry, fs_pending pending) {
    const uint32_t id = entry & 0x1FFFFFF;
    const float l = x * cta->draw.inverse;
    fs_score score = {l, l};
    bool counts = id != 0;
    if (counts && !(fabsf(l) < INFINITY)) {
        const uint32_t odd = odd_flags(x, l);
        if (odd) atomicOr(&cta->flags, odd);
        counts = l == INFINITY;
    } else if (counts && !is_greedy(cta->draw)) {
        const fs_noise noise = cta->draw.noise;
        const fs_marks pairs = cta->pairs[own_warp()][entry >> 25];
        const int32_t prefix = mark_among(pairs, noise, id - 1);
        const fs_words extension = noise_words(noise, id - 1, FS_DOMAIN_EXTENSION);
        score = score_of(l, noise_about({prefix, {extension.w[0], extension.w[1]}}));
    }
    const uint32_t top = __reduce_max_sync(~0u, counts ? ordered_float(score.least) : 0);
    uint32_t before = 0;
    if ((threadIdx.x & 31) == 0) {
        before = atomicMax(&cta->best[team], top);
        if (cta->row && top > before) raise_global(&cta->row->bound, top);
    }
    const float best = known_score(max(__shfl_sync(~0u, before, 0), top));
    if (!counts || score.most < best) return pending;
    const bool two = pending.id && !(pending.most < best);
    if (two && exact_key(cta->draw, pending.x, pending.id - 1) > exact_key(cta->draw, x, id - 1)) return pending;
    return {x, id, score.most};
}

/* Which of the lanes' tokens is best; id 0: none. All lanes. */
static __device__ __noinline__ int32_t settle(const fs_draw &draw, float x, uint32_t id) {
    const uint64_t key = id ? exact_key(draw, x, id - 1) : FS_KEY_NONE;
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(key >> 32));
    const uint32_t low = __reduce_max_sync(~0u, (uint32_t)(key >> 32) == high ? (uint32_t)key : 0);
    return __ffs(__ballot_sync(~0u, key == ((uint64_t)high << 32 | low))) - 1;
}

/* The lane whose token is best, -1 if none has one. All lanes. */
FS_DEVICE int32_t leader(const cta_state *cta, int32_t team, const fs_pending &own) {
    const bool may = own.id && !(own.most < known_score(*(const volatile uint32_t *)&cta->best[team]));
    const uint32_t lanes = __ballot_sync(~0u, may);
    if (lanes & (lanes - 1)) return settle(cta->draw, own.x, may ? own.id : 0);
    return 31 - __clz(lanes);
}

/* ----------------------------------------------------------------------------------------------------- rough ---- */

FS_DEVICE uint64_t rough_key(const fs_pending &p) {
    return (uint64_t)ordered_float(p.most) << 32 | (0xFFFFFFu - (p.id - 1));
}

FS_DEVICE float rough_score(uint64_t rough) {
    return float_of_ordered((uint32_t)(rough >> 32));
}

/* A token whose `most` is lower by more than this loses: twice the slack, |l| being at most the score's and 42 more. */
FS_DEVICE float rough_bound(float most) {
    return 1.2e-3f + 2.2e-6f * fabsf(most);
}

FS_DEVICE bool are_close(float a, float b) {
    return !(fabsf(a - b) > fmaxf(rough_bound(a), rough_bound(b))); /* two +inf are */
}

/* Two tokens of row b that are close leave exact keys. */
static __device__ __noinline__ void leave_exact(const fs_cuda_args &args, const fs_draw &draw, int32_t b, float x,
                                                uint32_t token, uint32_t other) {
    unsigned long long *key = &args.work[b].key;
    atomicMax(key, (unsigned long long)exact_key(draw, x, token));
    atomicMax(key, (unsigned long long)exact_key(draw, stored_logit(args, b, other), other));
}

#endif
