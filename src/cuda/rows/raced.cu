/* raced.cu - the end of rows whose race is over: a pass over W has drawn from all tokens of each (fused.cuh), summed
 * their masses and kept their logits, and what is left is to look at the logits once. Does the winner stay when the row
 * is cut by top-p, what is its rank, which are the best tokens?
 *
 *   slices, a CTA each: what is ahead of the winner --the row's last CTA--> it stays, and its results
 *                                                                      --> it does not: those of the nucleus race again
 *                                                                      --> that cannot be told: open, for rows.cu
 *
 * Of most rows the winner stays: whoever has it ahead weighs less than the nucleus. Else the weights ahead of it, by how
 * far they are below the largest logit, tell where the nucleus ends; that CTA lists what is above there, and cuts.cuh
 * proves and ends it. */
#define FS_PHILOX_ROLLED
#include "cuda/cuda_launch.h"
#include "cuda/fused/cuts.cuh"

namespace {

constexpr int RACED_LIST = 4096; /* tokens of a nucleus that race again; longer ones are open */
constexpr float BIN = 0.125f;    /* what a bin of weights is wide, in numbers that cuts look at */
constexpr int AHEAD_QUADS = 8;   /* loads of a thread at once */
constexpr int ABOVE = 16;        /* logits above the winner's that a thread has before they are weighed */
constexpr double SLACK = 4e-6;   /* of the weight ahead of a winner: each is as exact as exp2_approximate, */
constexpr float ONE = 0x1p39f;   /* and an integer, this being 1 */

/* Dynamic shared memory: while logits come, each thread's own, but for bins, which the same lanes of all warps share. */
struct raced_scan {
    float4 ring[AHEAD_QUADS][FS_THREADS];
    float above[ABOVE][FS_THREADS];
    float bin[FS_CUDA_BINS][32];
};

/* A row in the shared memory of each of its CTAs. */
struct raced_row {
    fs_cuda_args args;
    fs_cut_room room;
    fs_draw draw;
    cut_scale units; /* of a weight of 1: the power of two above the row's mass */
    int32_t b;
    bool weighs, ranks, lists; /* what is asked of the logits */
    bool odd;                  /* there are numbers that are none, or infinite */
    uint64_t own;              /* order key of the winner; 0: there is none */
    int32_t place;             /* of the winner in its row */
    float level;               /* its logit, or +inf if it does not matter who is ahead */
    float best;                /* no logit of the best is below */
    uint32_t last;
    /* Of this CTA's slice, then of the row. */
    uint32_t largest;             /* logit, ordered */
    unsigned long long weight;    /* ahead of the winner */
    uint32_t larger, equal, same; /* tokens with a larger logit; with an equal one and a lower id; and any */
    uint32_t listed;              /* that may be among the best; then candidates */
    float bin[FS_CUDA_BINS];
    unsigned long long scrap;
    uint32_t most[32 * LIST_LANES]; /* largest logits of parts of the slice, ordered */

    FS_DEVICE_MEMBER raced_row() : units(1.0f, 0.0f) {}
};

FS_DEVICE bool wants_best(const fs_result &result) {
    return result.top_token || result.top_logit || result.top_logprob;
}

/* --------------------------------------------------------------------------------------------------------- row ---- */

/* One thread. */
FS_DEVICE void open_raced(raced_row *r) {
    const fs_cuda_args &args = r->args;
    const fs_cuda_row *work = &args.work[r->b];
    const uint64_t key = __ldcg(&work->key);
    const uint32_t token = score_key_token(key), flags = __ldcg(&work->flags);
    r->place = (int32_t)(token - (uint32_t)args.head.first_token);
    const float x = key ? args.dense.x[r->b * args.dense.stride + r->place] : NAN;
    r->room.rules = list_rules(args, r->b);
    r->draw = draw_of(r->room.rules);
    const bool there = draws(r->draw) && key;
    r->own = there ? order_key(x, token) : 0;
    r->odd = flags != 0;
    r->weighs = there && rules_list(r->room.rules);
    r->ranks = there && args.result.rank;
    r->lists = there && wants_best(args.result);
    r->level = !r->odd && (r->weighs || r->ranks) ? x : INFINITY;
    if (!r->weighs) return;
    const fs_mass mass = row_mass(work);
    r->units.scale = r->room.rules.cut_scale;
    r->units.origin = 0.0f;
    r->units.unit = ilogb(mass_scaled(&mass)) + 1 + 24 * (mass.top - 2);
    if (mass_is_empty(&mass) || mass_is_far(&mass)) r->odd = true, r->level = INFINITY;
}

/* ------------------------------------------------------------------------------------------------------ logits ---- */

/* Quads of a row's logits, those of one slice. */
struct raced_slice {
    const float4 *quad;
    int32_t from, end; /* of the row's */
    int32_t tokens;    /* of the row */

    FS_DEVICE_MEMBER raced_slice(const fs_cuda_args &args, int32_t b, int32_t slice, int32_t slices)
        : quad((const float4 *)(args.dense.x + b * args.dense.stride)) {
        tokens = (int32_t)(min(args.head.first_token + args.head.rows, args.vocab) - args.head.first_token);
        const int32_t quads = (tokens + 3) / 4, share = (quads + slices - 1) / slices;
        from = min(slice * share, quads);
        end = min(from + share, quads);
    }

    /* This thread's k-th; how many there may be. */
    FS_DEVICE_MEMBER int32_t own(int32_t k) const { return from + (int32_t)threadIdx.x + k * FS_THREADS; }
    FS_DEVICE_MEMBER int32_t rounds() const { return (end - from + FS_THREADS - 1) / FS_THREADS; }

    FS_DEVICE_MEMBER float4 masked(float4 q, int32_t i) const {
        if (i >= end) return make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (4 * i + 1 >= tokens) q.y = -INFINITY;
        if (4 * i + 2 >= tokens) q.z = -INFINITY;
        if (4 * i + 3 >= tokens) q.w = -INFINITY;
        return q;
    }

    FS_DEVICE_MEMBER void copy(raced_scan *scan, int32_t k) const {
        if (own(k) < end) copy_16(shared_address(&scan->ring[k % AHEAD_QUADS][threadIdx.x]), &quad[own(k)]);
        commit_copies();
    }
};

FS_DEVICE float at(const float4 &q, int e) {
    return e == 0 ? q.x : e == 1 ? q.y : e == 2 ? q.z : q.w;
}

/* What a thread has found. */
struct raced_found {
    uint64_t weight = 0;
    uint32_t larger = 0, equal = 0, same = 0;
    float largest = -INFINITY;
    int32_t above = 0; /* not yet weighed */
};

/* Bins begin at the row's mass and go down: no logit is above. */
FS_DEVICE float bin_start(const raced_row *r, int32_t bin) {
    return ((float)r->units.unit * 0.693147181f - (float)bin * BIN) / r->units.scale;
}

FS_DEVICE int32_t bin_of(const raced_row *r, float v) {
    const float down = (float)r->units.unit * 0.693147181f - v * r->units.scale;
    return max(0, min((int32_t)(down * (1.0f / BIN)), FS_CUDA_BINS - 1));
}

/* Weighs the logits that threads have above the winner's. A warp. */
FS_DEVICE void weigh_above(raced_row *r, raced_scan *scan, raced_found *found) {
    const int32_t most = r->weighs ? __reduce_max_sync(~0u, found->above) : 0;
#pragma unroll 1
    for (int32_t i = 0; i < most; i++) {
        if (i >= found->above) continue;
        const float v = scan->above[i][threadIdx.x], weight = r->units.about(v);
        found->weight += (uint64_t)(weight * ONE);
        atomicAdd(&scan->bin[bin_of(r, v)][threadIdx.x % 32], weight);
    }
    found->larger += (uint32_t)found->above;
    found->above = 0;
}

/* A logit that the best are not below, by the largest of parts of the first copies. */
FS_DEVICE void find_best_floor(raced_row *r, const raced_scan *scan, const raced_slice &slice) {
    constexpr int PARTS = 32 * LIST_LANES;
    float most = -INFINITY;
    wait_for_copies();
    for (int32_t k = 0; k < AHEAD_QUADS; k++) {
        const float4 q = slice.masked(scan->ring[k][threadIdx.x], slice.own(k));
        most = fmaxf(most, fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)));
    }
    atomicMax(&r->most[threadIdx.x % PARTS], ordered_float(most));
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t value[LIST_LANES];
#pragma unroll
        for (int i = 0; i < LIST_LANES; i++) value[i] = r->most[32 * i + threadIdx.x];
        const uint32_t kth = kth_largest(value, PARTS, r->args.result.top_count);
        if (threadIdx.x == 0) r->best = kth ? float_of_ordered(kth) : -INFINITY;
    }
    __syncthreads();
}

/* One that may be among the best. */
FS_DEVICE void list_best(raced_row *r, fs_cuda_ahead *to, const float4 &q, int32_t i) {
#pragma unroll 1
    for (int e = 0; e < 4; e++) {
        const float v = at(q, e);
        if (!(v >= r->best) || !(v > -INFINITY)) continue;
        const uint32_t place = atomicAdd(&r->listed, 1u);
        if (place < FS_CUDA_BEST) to->entry[place] = order_key(v, (uint32_t)r->args.head.first_token + 4 * i + e);
    }
}

/* What is ahead of the winner in a slice, and what may be among the best. The first copies have begun. */
FS_DEVICE void look_at(raced_row *r, raced_scan *scan, const raced_slice &slice, fs_cuda_ahead *to) {
    const float level = r->level, best = r->lists ? r->best : INFINITY;
    const int32_t rounds = slice.rounds(), winner = r->place / 4;
    raced_found found;
#pragma unroll 1
    for (int32_t k = 0; k < rounds; k++) {
        const int32_t i = slice.own(k);
        wait_for_groups<AHEAD_QUADS - 1>();
        const float4 q = slice.masked(scan->ring[k % AHEAD_QUADS][threadIdx.x], i);
        uint32_t equal = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (at(q, e) > level) scan->above[found.above++][threadIdx.x] = at(q, e);
            equal += at(q, e) == level;
        }
        slice.copy(scan, k + AHEAD_QUADS);
        found.same += equal;
        if (i < winner) found.equal += equal;
        else if (i == winner)
            for (int e = 0; e < r->place % 4; e++) found.equal += at(q, e) == level;
        const float most = fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w));
        found.largest = fmaxf(found.largest, most);
        if (most >= best) list_best(r, to, q, i);
        if (__any_sync(~0u, found.above > ABOVE - 4)) weigh_above(r, scan, &found);
    }
    weigh_above(r, scan, &found);
    found.weight = warp_sum(found.weight);
    found.larger = __reduce_add_sync(~0u, found.larger);
    found.equal = __reduce_add_sync(~0u, found.equal);
    found.same = __reduce_add_sync(~0u, found.same);
    const uint32_t largest = __reduce_max_sync(~0u, ordered_float(found.largest));
    if (threadIdx.x % 32 != 0) return;
    atomicMax(&r->largest, largest);
    atomicAdd(&r->weight, (unsigned long long)found.weight);
    atomicAdd(&r->larger, found.larger);
    atomicAdd(&r->equal, found.equal);
    atomicAdd(&r->same, found.same);
}

/* What a CTA has found, for the row's last one. */
FS_DEVICE void put_ahead(const raced_row *r, const raced_scan *scan, fs_cuda_ahead *to) {
    if (threadIdx.x == 0) {
        to->weight = r->weight;
        to->larger = r->larger;
        to->equal = r->equal;
        to->same = r->same;
        to->largest = r->largest;
        to->listed = r->listed;
    }
    for (int32_t bin = threadIdx.x / 32; r->weighs && bin < FS_CUDA_BINS; bin += FS_WARPS) {
        float sum = scan->bin[bin][threadIdx.x % 32];
#pragma unroll
        for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
        if (threadIdx.x % 32 == 0) to->bin[bin] = sum;
    }
    __threadfence(); /* before it is counted */
}

/* From a slice to the row. */
FS_DEVICE void gather(raced_row *r) {
    const int32_t slices = r->args.raced.slices, lane = threadIdx.x;
    const fs_cuda_ahead *of = r->args.raced.ahead + (int64_t)r->b * slices;
    __threadfence(); /* the count before what it counts */
    if (lane < 32) {
        const bool is_there = lane < slices; /* at most 32 */
        const uint64_t weight = warp_sum(is_there ? __ldcg(&of[lane].weight) : 0);
        const uint32_t larger = __reduce_add_sync(~0u, is_there ? __ldcg(&of[lane].larger) : 0);
        const uint32_t equal = __reduce_add_sync(~0u, is_there ? __ldcg(&of[lane].equal) : 0);
        const uint32_t same = __reduce_add_sync(~0u, is_there ? __ldcg(&of[lane].same) : 0);
        const uint32_t largest = __reduce_max_sync(~0u, is_there ? __ldcg(&of[lane].largest) : 0);
        if (lane == 0) r->weight = weight, r->larger = larger, r->equal = equal, r->same = same, r->largest = largest;
    }
    for (int32_t bin = lane; r->weighs && bin < FS_CUDA_BINS; bin += FS_THREADS) {
        float sum = 0.0f;
        for (int32_t i = 0; i < slices; i++) sum += __ldcg(&of[i].bin[bin]);
        r->bin[bin] = sum;
    }
    __syncthreads();
}

/* --------------------------------------------------------------------------------------------------------- cut ---- */

/* A logit above which so much weight is, as bins tell, in which all tokens above the winner are. */
FS_DEVICE float nucleus_floor(const raced_row *r, double mark) {
    const float own = order_key_logit(r->own);
    double sum = 0.0;
    for (int32_t i = 0; i < FS_CUDA_BINS - 1; i++) {
        sum += (double)r->bin[i];
        if (sum > mark * 1.0001) {
            const float floor = bin_start(r, i + 1);
            return fmaxf(own, floor - 1e-5f * (fabsf(floor) + 1.0f / r->units.scale));
        }
    }
    return own;
}

/* Lists the tokens of the row from this logit on, copies being behind the list; whether there is room for them. */
FS_DEVICE bool list_from(raced_row *r, float floor) {
    fs_cut_room *room = &r->room;
    raced_scan *scan = (raced_scan *)(room->list + RACED_LIST);
    const raced_slice all(r->args, r->b, 0, 1);
    const int32_t rounds = all.rounds(), limit = min(RACED_LIST, r->args.lists.room);
    if (threadIdx.x == 0) r->listed = 0;
    __syncthreads();
    for (int32_t k = 0; k < AHEAD_QUADS; k++) all.copy(scan, k);
#pragma unroll 1
    for (int32_t k = 0; k < rounds; k++) {
        const int32_t i = all.own(k);
        wait_for_groups<AHEAD_QUADS - 1>();
        const float4 q = all.masked(scan->ring[k % AHEAD_QUADS][threadIdx.x], i);
        if (fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)) >= floor)
#pragma unroll 1
            for (int e = 0; e < 4; e++) {
                const float v = at(q, e);
                if (!(v >= floor) || !(v > -INFINITY)) continue;
                const uint32_t place = atomicAdd(&r->listed, 1u), token = 4 * (uint32_t)i + (uint32_t)e;
                if (place < RACED_LIST) room->list[place] = order_key(v, (uint32_t)r->args.head.first_token + token);
            }
        all.copy(scan, k + AHEAD_QUADS);
    }
    wait_for_copies();
    __syncthreads();
    if (r->listed > (uint32_t)limit) return false;
    if (threadIdx.x == 0) room->count = (int32_t)r->listed;
    __syncthreads();
    return true;
}

/* The order key of the token of a row that is cut; 0 if it is open. */
FS_DEVICE uint64_t cut_raced(raced_row *r, unsigned long long *list) {
    fs_cut_room *room = &r->room;
    const bool first = threadIdx.x == 0;
    if (first) {
        room->largest = (uint64_t)r->largest << 32 | 0xFFFFFFFFu;
        room->list = list;
        room->weight = list + RACED_LIST;
        room->count = 0;
    }
    __syncthreads();
    const fs_marks_of_cuts marks = marks_of_cuts(r->args, room, &r->args.work[r->b]);
    if (!marks.known) return 0;
    /* From the units of the cut, which begin at the largest logit, to those of the mass. */
    const cut_scale units(r->room.rules.cut_scale, float_of_ordered(r->largest));
    const double less = ldexp(marks.less, units.unit - r->units.unit), more = ldexp(marks.more, units.unit - r->units.unit);
    const float own_weight = r->units.about(order_key_logit(r->own));
    const uint32_t ties = r->args.batch.flags & FS_KEEP_TIES_TOP_P ? 0 : r->equal;
    const double ahead = (double)r->weight + (double)ties * (double)(own_weight * ONE);
    const double slack = ahead * SLACK + (double)(r->larger + ties);
    if (r->larger + ties == 0 || ahead + slack < less) return r->own;
    if (!(ahead - slack > more)) return 0;
    if (first) room->floor = nucleus_floor(r, more * (1.0 / ONE));
    __syncthreads();
    if (!list_from(r, room->floor)) return 0;
    const uint64_t own = end_list<0, true>(r->args, room, r->draw, r->b, &r->scrap);
    if (!own || !r->ranks) return own;
    const uint32_t larger = ahead_of(room, ((own >> 32) + 1) << 32, false).count;
    const uint32_t same = ahead_of(room, own >> 32 << 32, false).count - larger;
    if (first) r->larger = larger, r->same = same;
    return own;
}

/* ----------------------------------------------------------------------------------------------------- results ---- */

/* The best, in rising order, behind where they are listed; how many there are, -1: more than there is room for. */
FS_DEVICE int32_t sort_best(raced_row *r, unsigned long long *shared) {
    const int32_t slices = r->args.raced.slices;
    const fs_cuda_ahead *of = r->args.raced.ahead + (int64_t)r->b * slices;
    unsigned long long *sorted = shared + RACED_LIST;
    if (threadIdx.x == 0) r->listed = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x / 32; i < slices; i += FS_WARPS) {
        const uint32_t count = __ldcg(&of[i].listed), lane = threadIdx.x % 32;
        const uint32_t start = __shfl_sync(~0u, lane == 0 ? atomicAdd(&r->listed, min(count, 1u << 20)) : 0, 0);
        for (uint32_t e = lane; e < count && e < FS_CUDA_BEST && start + e < RACED_LIST; e += 32)
            shared[start + e] = __ldcg(&of[i].entry[e]);
        if (lane == 0 && count > FS_CUDA_BEST) atomicAdd(&r->listed, RACED_LIST);
    }
    __syncthreads();
    const int32_t count = (int32_t)r->listed;
    if (count > min(RACED_LIST, r->args.lists.room)) return -1;
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS) {
        int32_t behind = 0;
        for (int32_t j = 0; j < count; j++) behind += shared[j] < shared[i];
        sorted[behind] = shared[i];
    }
    __syncthreads();
    return count;
}

/* One thread. */
FS_DEVICE void write_raced(raced_row *r, uint64_t own, unsigned long long *best, int32_t count) {
    const fs_cuda_args &args = r->args;
    const int64_t b = args.first_row + r->b;
    fs_needs needs = plain_needs(args.needs);
    fs_result result = plain_result(args.result, false, NULL);
    fs_found found = found_nothing();
    fs_winner winner;
    needs.max = needs.bounded = 1;
    found.key = own ? r->room.key : FS_KEY_NONE;
    found.x = own ? order_key_logit(own) : NAN;
    found.max = float_of_ordered(r->largest);
    found.flags = __ldcg(&args.work[r->b].flags);
    if (needs_mass(needs)) found.mass = row_mass(&args.work[r->b]);
    result.top_token = args.result.top_token;
    result.top_logit = args.result.top_logit;
    result.top_logprob = args.result.top_logprob;
    result.top_count = args.result.top_count;
    const fs_call call = {&args.head, &args.batch, &result, NULL, args.vocab, needs};
    const fs_rules rules = rules_of(r->draw);
    fs_summary summary = summary_of(needs, found, &winner);
    summary.list.key = (uint64_t *)best;
    summary.list.count = summary.list.popped = count;
    summary.list.sorted = 1;
    finish_row(&call, b, &rules, &summary, 0, 1, NULL);
    if (!args.result.rank) return;
    const uint32_t ahead = r->larger + (args.batch.flags & FS_RANK_OF_TIES ? r->same - 1 : 0); /* not itself */
    args.result.rank[b] = own ? 1 + (int32_t)ahead : -1;
}

/* By the row's last CTA. */
FS_DEVICE void end_raced_row(raced_row *r, unsigned long long *shared) {
    const bool first = threadIdx.x == 0;
    const bool asks = r->weighs || r->ranks || r->lists;
    uint64_t own = r->own;
    int32_t best = 0;
    gather(r);
    if (first) r->room.key = __ldcg(&r->args.work[r->b].key);
    const float l = float_of_ordered(r->largest) * r->draw.inverse;
    bool open = asks && (r->odd || !(fabsf(l) < INFINITY));
    if (r->weighs && !open) open = !(own = cut_raced(r, shared));
    if (r->lists && !open) open = (best = sort_best(r, shared)) < 0;
    __syncthreads();
    if (!first) return;
    if (open) r->args.lists.open[1 + atomicAdd(&r->args.lists.open[0], 1)] = r->args.first_row + r->b;
    else write_raced(r, own, shared + RACED_LIST, best);
    clear_row(&r->args.work[r->b], needs_mass(r->args.needs));
}

__global__ void __launch_bounds__(FS_THREADS, 2) end_raced(const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    __shared__ __align__(16) char place[sizeof(raced_row)];
    raced_row *r = (raced_row *)place;
    raced_scan *scan = (raced_scan *)shared;
    const int32_t slices = args.raced.slices, b = (int32_t)blockIdx.x / slices;
    const raced_slice slice(args, b, (int32_t)blockIdx.x % slices, slices);
    fs_cuda_ahead *to = args.raced.ahead + blockIdx.x;
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof args / 4); i += FS_THREADS)
        ((uint32_t *)&r->args)[i] = ((const uint32_t *)&args)[i];
    for (int32_t i = threadIdx.x; i < FS_CUDA_BINS * 32; i += FS_THREADS) (&scan->bin[0][0])[i] = 0.0f;
    if (threadIdx.x == 0) {
        r->b = b;
        r->weight = 0;
        r->larger = r->equal = r->same = r->listed = r->largest = 0;
    }
    if (threadIdx.x < 32 * LIST_LANES) r->most[threadIdx.x] = 0;
    __syncthreads();
    wait_for_earlier_launches();
    for (int32_t k = 0; k < AHEAD_QUADS; k++) slice.copy(scan, k);
    if (threadIdx.x == 0) open_raced(r);
    __syncthreads();
    if (wants_best(args.result)) find_best_floor(r, scan, slice);
    look_at(r, scan, slice, to);
    __syncthreads();
    put_ahead(r, scan, to);
    __syncthreads();
    if (threadIdx.x == 0) r->last = add_in_order(&args.work[b].done, 1) == (uint32_t)slices - 1;
    __syncthreads();
    wait_for_copies(); /* of which there are none but empty ones: the list takes their place */
    if (r->last) end_raced_row(r, (unsigned long long *)shared);
}

constexpr int RACED_BYTES = sizeof(raced_scan);
static_assert(RACED_BYTES >= 2 * RACED_LIST * (int)sizeof(unsigned long long), "the list fits");

} // namespace

extern "C" cudaError_t fs_cuda_raced_open(void) {
    return cudaFuncSetAttribute(end_raced, cudaFuncAttributeMaxDynamicSharedMemorySize, RACED_BYTES);
}

extern "C" cudaError_t fs_cuda_raced_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(args->rows * args->raced.slices));
    config.blockDim = dim3(FS_THREADS);
    config.dynamicSmemBytes = RACED_BYTES;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, end_raced, *args);
}
