/* cuda_stored.cuh - what the warps that read stored logits share, and which of their tokens can win.
 *
 * A token that passes its lane's threshold is rated in float: noise that is right to 5e-4, so a score from below, which raises the
 * thresholds of all, and one from above. If it may still be the part's best, the lane holds it. It holds one: by the time of a
 * second one the first is out, or the two are so close that their exact scores in double decide. When the part is over one token is
 * left, again but for the closest of cases. So most rows see no double arithmetic, whose code is large and cold
 * (docs/findings/gpu-instructions.md).
 *
 * Rough keys are what CTAs tell each other of a row: the ordered float of a score from above, then the complemented token. The
 * largest wins, unless another came so close that both left exact keys. */
#ifndef FS_CUDA_STORED_CUH
#define FS_CUDA_STORED_CUH

#include "cuda_blocks.cuh"
#include "cuda_judge.cuh"

constexpr int WARPS = FS_CUDA_STORED_WARPS;

/* The marks of a block: the lanes that have a marked token among their four, and noise that none of these tokens exceeds. */
struct block_marks {
    uint32_t lanes;
    float ceiling;
};

/* A token that may be its part's best. */
struct finalist {
    float x;
    uint32_t id; /* 1 + the token; 0: none */
    float most;  /* its score is not above this, nor below by more than twice the slack */
};

/* How far a warp is with its team's parts, in blocks: the part at hand is begin .. stop - 1, the last one ends at `end`. */
struct trip {
    int32_t begin, stop, end, team; /* team: index in the row */
};

/* Shared memory of a CTA, beside the warps' rings. [WARPS]: per warp, or per team, of which there are WARPS or one. Aligned for
 * what comes behind it: where copies begin matters (docs/findings/stored-logits.md). */
struct alignas(128) desk {
    fs_judged_row row;
    stored_row data;
    fs_cuda_line *line;   /* where scores are shared with other CTAs; NULL: nowhere */
    uint32_t best[WARPS]; /* a score that the part at hand reaches, here or in another CTA: ordered float; 0: none */
    uint32_t flags, peak; /* as in fs_cuda_line */
    finalist last[WARPS]; /* the warps' finalists */
    alignas(16) uint4 seen[WARPS]; /* the first 16 bytes of the line, as a warp has fetched them; .z is its hint */
    fs_mass mass[WARPS];
    alignas(16) trip way[WARPS];
    alignas(16) block_marks marks[WARPS][32];   /* of the warp's next 32 blocks; two at a time are 16 bytes */
    alignas(16) fs_tile_marks pairs[WARPS][32]; /* as drawn: the first of two pairs with one place counts */
};

/* A warp's place in its CTA. */
struct seat {
    desk *d;
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
FS_DEVICE void team_barrier(const seat &at) {
    if (at.warps > 1) __syncthreads();
    else __syncwarp();
}

/* ----------------------------------------------------------------------------------------------------- marks ---- */

FS_DEVICE void add_mark(block_marks *marks, uint32_t place, uint32_t prefix) {
    marks->lanes |= 1u << place / 4;
    marks->ceiling = fmaxf(marks->ceiling, mark_ceiling(prefix));
}

/* One block in four thousand needs more than one call. */
static __device__ __noinline__ block_marks walk_marks(fs_noise noise, uint32_t block) {
    block_marks marks = {0, 0.0f};
    fs_walk walk = noise_walk(noise, block);
    while (noise_next(&walk)) add_mark(&marks, walk.token & 127, walk.prefix);
    return marks;
}

static __device__ __noinline__ int32_t walk_prefix(fs_noise noise, uint32_t token) {
    fs_walk walk = noise_walk(noise, token / FS_NOISE_BLOCK);
    while (noise_next(&walk))
        if (walk.token == token) return (int32_t)walk.prefix;
    return -1;
}

/* Each lane looks up the marks of one of the warp's next 32 blocks, if it is there. tile_marks of cuda_noise.cuh gives up where a
 * place comes twice, one block in a thousand; here the count is of pairs, and goes up by one for each that is passed over. */
FS_DEVICE void look_up(desk *d, int32_t block, bool there) {
    const fs_noise noise = d->row.noise;
    const fs_words r = noise_mark_words(noise, (uint32_t)block, 0);
    const uint32_t u = r.w[0], places = r.w[1];
    const uint32_t p0 = places & 127, p1 = places >> 7 & 127, p2 = places >> 14 & 127, p3 = places >> 21 & 127;
    int32_t count = (u > FS_MARKS_1) + (u > FS_MARKS_2) + (u > FS_MARKS_3) + (u > FS_MARKS_4);
    if (count > 1 && p1 == p0) count++;
    if (count > 2 && (p2 == p0 || p2 == p1)) count++;
    if (count > 3 && (p3 == p0 || p3 == p1 || p3 == p2)) count++;
    const bool open = u == FS_MARKS_1 || u == FS_MARKS_2 || u == FS_MARKS_3 || u == FS_MARKS_4 || u >= FS_MARKS_5;
    if (open || count > 4) count = -1;
    if (d->row.greedy || !there) count = 0; /* a walk whose instructions are cold takes microseconds */
    const fs_tile_marks pairs = {count, places, {r.w[2], r.w[3]}};
    block_marks marks = {0, 0.0f};
#pragma unroll 1
    for (int32_t i = 0; i < count; i++) add_mark(&marks, mark_place(pairs, i), mark_prefix(pairs, i));
    if (count < 0) marks = walk_marks(noise, (uint32_t)block);
    __syncwarp(); /* the last ones have been read */
    d->marks[own_warp()][threadIdx.x & 31] = marks;
    d->pairs[own_warp()][threadIdx.x & 31] = pairs;
    __syncwarp();
}

/* ------------------------------------------------------------------------------------------------------ rate ---- */

/* Nothing float arithmetic of ours does to a score moves it further than this: noise to 5e-4 (rate), the sum's rounding. */
FS_DEVICE float slack_of(float l) {
    return 5e-4f + 1e-6f * fabsf(l);
}

/* The noise of a token, to 5e-4: noise_gumbel_from of core/noise.h with all bits of w, or of 1 - w, that a float holds, and by
 * logarithms that are right to 2^-21 near 1 and to 3 ulp elsewhere. The worst is an unmarked token near G, where E is C to 4e-7. */
FS_DEVICE float rate(fs_noise noise, const fs_tile_marks *block, uint32_t token) {
    const fs_tile_marks pairs = *block;
    int32_t prefix = -1;
#pragma unroll
    for (int i = 3; i >= 0; i--)
        if (i < pairs.count && mark_place(pairs, i) == token % FS_NOISE_BLOCK) prefix = (int32_t)mark_prefix(pairs, i);
    if (pairs.count < 0) prefix = walk_prefix(noise, token);
    const fs_words r = noise_words(noise, token, FS_DOMAIN_EXTENSION);
    const bool marked = prefix >= 0;
    const float upper = (float)(marked ? r.w[1] : ~r.w[1]);
    const float lower = (float)(marked ? r.w[0] >> 28 << 28 : ~r.w[0] >> 12 << 12);
    const float w = fmaf(upper, 0x1p-32f, fmaf(lower, 0x1p-64f, marked ? 0x1p-37f : 0x1p-53f));
    const float y = ((float)prefix + w) * ((float)FS_NOISE_Q * 0x1p-16f);
    const float e = marked ? y * (1.0f + y * (0.5f + y * (1.0f / 3.0f))) : (float)FS_NOISE_C - __logf(w);
    return -__logf(e);
}

/* ----------------------------------------------------------------------------------------------------- exact ---- */

static __device__ __noinline__ uint64_t exact_key(const fs_judged_row &row, float x, uint32_t token) {
    const float l = x * row.inverse;
    return score_key(row.greedy || l == INFINITY ? (double)l : (double)l + noise_gumbel(row.noise, token), token);
}

/* A token in a lane that waits to be judged: 1 + the token, and its block's place among those looked up; 0: none. */
FS_DEVICE uint32_t entry_of(uint32_t token, uint32_t place) {
    return place << 25 | (token + 1);
}

/* Judges a token per lane: rated, told to the team if better than all before, held if it may be the best. Returns what the lane
 * then holds. All lanes. */
FS_DEVICE finalist judge(desk *d, int32_t team, float x, uint32_t entry, finalist held) {
    const uint32_t id = entry & 0x1FFFFFF;
    const float l = x * d->row.inverse;
    float most = l, slack = 0.0f;
    bool counts = id != 0;
    if (counts && !(fabsf(l) < INFINITY)) {
        if (x != x) atomicOr(&d->flags, FS_ROW_NAN);
        if (l == INFINITY) atomicOr(&d->flags, FS_ROW_INF | (x == INFINITY ? FS_CUDA_X_INF : 0u));
        counts = l == INFINITY;
    } else if (counts && !d->row.greedy) {
        most += rate(d->row.noise, &d->pairs[own_warp()][entry >> 25], id - 1);
        slack = slack_of(l);
    }
    const uint32_t least = counts ? ordered_float(most - slack) : 0;
    most += slack;
    const uint32_t top = __reduce_max_sync(~0u, least);
    uint32_t before = 0;
    if ((threadIdx.x & 31) == 0) {
        before = atomicMax(&d->best[team], top);
        if (d->line && top > before) raise_global(&d->line->hint, top);
    }
    const float best = known_score(max(__shfl_sync(~0u, before, 0), top));
    if (!counts || most < best) return held;
    const bool two = held.id && !(held.most < best);
    if (two && exact_key(d->row, held.x, held.id - 1) > exact_key(d->row, x, id - 1)) return held;
    return {x, id, most};
}

/* Which of the lanes' tokens is best; id 0: none. All lanes. */
static __device__ __noinline__ int32_t settle(const fs_judged_row &row, float x, uint32_t id) {
    const uint64_t key = id ? exact_key(row, x, id - 1) : FS_KEY_NONE;
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(key >> 32));
    const uint32_t low = __reduce_max_sync(~0u, (uint32_t)(key >> 32) == high ? (uint32_t)key : 0);
    return __ffs(__ballot_sync(~0u, key == ((uint64_t)high << 32 | low))) - 1;
}

/* The lane whose token is best, -1 if none has one. All lanes. */
FS_DEVICE int32_t leader(const desk *d, int32_t team, const finalist &own) {
    const bool may = own.id && !(own.most < known_score(*(const volatile uint32_t *)&d->best[team]));
    const uint32_t lanes = __ballot_sync(~0u, may);
    if (lanes & (lanes - 1)) return settle(d->row, own.x, may ? own.id : 0);
    return 31 - __clz(lanes);
}

/* ----------------------------------------------------------------------------------------------------- rough ---- */

FS_DEVICE uint64_t rough_key(const finalist &f) {
    return (uint64_t)ordered_float(f.most) << 32 | (0xFFFFFFu - (f.id - 1));
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
static __device__ __noinline__ void leave_exact(const fs_cuda_args &args, const fs_judged_row &row, int32_t b, float x,
                                                uint32_t token, uint32_t other) {
    unsigned long long *key = &args.work->line[b].key;
    atomicMax(key, (unsigned long long)exact_key(row, x, token));
    atomicMax(key, (unsigned long long)exact_key(row, stored_logit(args, b, other), other));
}

#endif
