/* raced.cuh - a row whose race is over and whose logits are in work memory, as each of its CTAs sees it: what is asked of
 * it, and one look at a slice of its logits. raced.cu ends the row. */
#ifndef FS_CUDA_RACED_CUH
#define FS_CUDA_RACED_CUH

#include "cuda/device/touch.cuh"
#include "cuda/fused/cuts.cuh"

constexpr int RACED_LIST = 6144; /* tokens of a row that are listed; where there are more the row may be open */
constexpr int FEW = 256;         /* tokens of which the best are sorted */
constexpr int COPIES = 8;        /* of a thread at once */
constexpr double SLACK = 4e-6;   /* of the weight ahead of a winner: each is as exact as exp2_approximate, */
constexpr float ONE = 0x1p39f;   /* and an integer, this being 1 */

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
    float x;                   /* its logit */
    float level;               /* that, or +inf if it does not matter who is ahead */
    float likely, best;        /* tokens are listed from here on: to race again; the best are not below */
    uint32_t flags, last;
    /* Of this CTA's slice, then of the row. */
    uint32_t largest;             /* logit, ordered */
    unsigned long long weight;    /* ahead of the winner */
    uint32_t larger, equal, same; /* tokens with a larger logit; with an equal one and a lower id; and any */
    uint32_t listed;
    uint32_t few;
    uint32_t most[32 * LIST_LANES]; /* largest logits of parts, ordered */
    unsigned long long found[FEW], sorted[FS_CUDA_BEST];
    fs_result result;
    fs_call call;
    fs_rules plain;
    fs_winner winner;
    fs_summary summary;
    fs_row row;
};

FS_DEVICE bool wants_best(const fs_result &result) {
    return result.top_token || result.top_logit || result.top_logprob;
}

/* The largest of four; NaN is none. */
FS_DEVICE float largest_of(const float4 &q) {
    return fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w));
}

FS_DEVICE float at(const float4 &q, int e) {
    return e == 0 ? q.x : e == 1 ? q.y : e == 2 ? q.z : q.w;
}

/* --------------------------------------------------------------------------------------------------------- row ---- */

/* What the pass and the rules say of the row, by several warps at once: each of these is a load behind a load. */
FS_DEVICE void open_raced(raced_row *r) {
    const fs_cuda_args &args = r->args;
    const fs_cuda_row *work = &args.work[r->b];
    if (threadIdx.x / 32 == 3) touch_rules(args.batch, args.first_row + r->b, r->most);
    if (threadIdx.x == 0) {
        r->room.rules = list_rules(args, r->b);
        r->draw = draw_of(r->room.rules);
    } else if (threadIdx.x == 32) {
        const uint64_t key = __ldcg(&work->key);
        const uint32_t token = score_key_token(key);
        r->room.key = key;
        r->flags = __ldcg(&work->flags);
        r->place = (int32_t)(token - (uint32_t)args.head.first_token);
        r->x = key ? args.dense.x[r->b * args.dense.stride + r->place] : NAN;
        r->own = key ? order_key(r->x, token) : 0;
    } else if (threadIdx.x == 64 && needs_mass(args.needs)) {
        const fs_mass mass = row_mass(work);
        r->units.unit =
            mass_is_empty(&mass) || mass_is_far(&mass) ? INT_MAX : ilogb(mass_scaled(&mass)) + 1 + 24 * (mass.top - 2);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const float p = r->room.rules.top_p, scale = r->room.rules.cut_scale;
        if (!draws(r->draw)) r->own = 0;
        r->weighs = r->own && rules_list(r->room.rules);
        r->ranks = r->own && args.result.rank;
        r->lists = r->own && wants_best(args.result);
        r->odd = r->flags != 0 || (r->weighs && r->units.unit == INT_MAX);
        r->units.scale = scale;
        r->units.origin = 0.0f;
        r->level = !r->odd && (r->weighs || r->ranks) ? r->x : INFINITY;
        /* Tokens below have a probability that the last of a nucleus seldom has. */
        const float least = __logf(fmaxf((1.0f - p) * 0x1p-14f, 0x1p-18f));
        r->likely = INFINITY;
        if (r->weighs && !r->odd) r->likely = fmaxf(r->x, (((float)r->units.unit - 1.0f) * 0.6931472f + least) / scale);
        r->best = INFINITY;
    }
    if (threadIdx.x < 32 * LIST_LANES) r->most[threadIdx.x] = 0;
    __syncthreads();
}

/* The k-th largest of what threads have, each one value, or a lower one. */
FS_DEVICE float kth_of_threads(raced_row *r, uint32_t ordered, int32_t k) {
    constexpr int PARTS = 32 * LIST_LANES;
    atomicMax(&r->most[threadIdx.x % PARTS], ordered);
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t value[LIST_LANES];
#pragma unroll
        for (int i = 0; i < LIST_LANES; i++) value[i] = r->most[32 * i + threadIdx.x];
        const uint32_t kth = kth_largest(value, PARTS, k);
        const uint32_t none = ordered_float(-INFINITY); /* below it, and rounded down to below it, are NaNs */
        if (threadIdx.x == 0) r->best = kth > none ? float_of_ordered(kth) : -INFINITY;
    }
    __syncthreads();
    return r->best;
}

/* ------------------------------------------------------------------------------------------------------ logits ---- */

/* Quads of a row's logits, those of one slice. Each thread has copies of its next ones. */
struct raced_slice {
    const float4 *quad;
    float4 (*ring)[FS_THREADS];
    int32_t from, end; /* of the row's */
    int32_t tokens;    /* of the row */

    FS_DEVICE_MEMBER raced_slice(const fs_cuda_args &args, int32_t b, int32_t slice, char *shared)
        : quad((const float4 *)(args.dense.x + b * args.dense.stride)), ring((float4(*)[FS_THREADS])shared) {
        const int64_t end_token = min(args.head.first_token + args.head.rows, args.vocab);
        tokens = (int32_t)max(end_token - args.head.first_token, (int64_t)0);
        const int32_t quads = (tokens + 3) / 4, share = (quads + args.raced.slices - 1) / args.raced.slices;
        from = min(slice * share, quads);
        end = min(from + share, quads);
    }

    /* This thread's k-th; how many there may be. */
    FS_DEVICE_MEMBER int32_t own(int32_t k) const { return from + (int32_t)threadIdx.x + k * FS_THREADS; }
    FS_DEVICE_MEMBER int32_t rounds() const { return (end - from + FS_THREADS - 1) / FS_THREADS; }

    FS_DEVICE_MEMBER void copy(int32_t k) const {
        if (own(k) < end) copy_16(shared_address(&ring[k % COPIES][threadIdx.x]), &quad[own(k)]);
        commit_copies();
    }

    /* Its copy; -inf where no token is. */
    FS_DEVICE_MEMBER float4 copied(int32_t k) const {
        const int32_t i = own(k);
        if (i >= end) return make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        float4 q = ring[k % COPIES][threadIdx.x];
        if (4 * i + 1 >= tokens) q.y = -INFINITY;
        if (4 * i + 2 >= tokens) q.z = -INFINITY;
        if (4 * i + 3 >= tokens) q.w = -INFINITY;
        return q;
    }
};

/* A logit that the best are not below, by the first copies. */
FS_DEVICE void find_best_floor(raced_row *r, const raced_slice &slice) {
    float most = -INFINITY;
    wait_for_copies();
    for (int32_t k = 0; k < COPIES; k++) most = fmaxf(most, largest_of(slice.copied(k)));
    kth_of_threads(r, ordered_float(most), r->args.result.top_count);
}

/* What a thread has found. */
struct raced_found {
    uint64_t weight = 0;
    uint32_t larger = 0, equal = 0, same = 0;
    float largest = -INFINITY;
};

/* Lists those of a warp's quads that are not below a floor, as long as there is room. */
FS_DEVICE void list_quads(raced_row *r, const float4 &q, int32_t i, float floor, unsigned long long *entry,
                          uint32_t room) {
    const uint32_t before = (1u << threadIdx.x % 32) - 1, first = (uint32_t)r->args.head.first_token;
    if (*(volatile uint32_t *)&r->listed > room) return;
    uint32_t who[4], all = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        who[e] = __ballot_sync(~0u, at(q, e) >= floor && at(q, e) > -INFINITY);
        all += (uint32_t)__popc(who[e]);
    }
    uint32_t place = threadIdx.x % 32 == 0 ? atomicAdd(&r->listed, all) : 0;
    place = __shfl_sync(~0u, place, 0);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const uint32_t own = place + (uint32_t)__popc(who[e] & before);
        if (who[e] & (before + 1) && own < room) entry[own] = order_key(at(q, e), first + (uint32_t)(4 * i + e));
        place += (uint32_t)__popc(who[e]);
    }
}

/* Goes through a slice, whose first copies have begun. */
FS_DEVICE void look_at(raced_row *r, const raced_slice &slice, unsigned long long *entry) {
    const float level = r->level, floor = fminf(r->likely, r->lists ? r->best : INFINITY);
    const int32_t rounds = slice.rounds(), winner = r->place / 4;
    const bool weighs = r->weighs;
    const uint32_t room = FS_CUDA_LIST / (uint32_t)r->args.raced.slices;
    const cut_scale units = r->units;
    raced_found found;
#pragma unroll 1
    for (int32_t k = 0; k < rounds; k++) {
        const int32_t i = slice.own(k);
        wait_for_groups<COPIES - 1>();
        const float4 q = slice.copied(k);
        uint32_t larger = 0, equal = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            larger += at(q, e) > level;
            equal += at(q, e) == level;
        }
        slice.copy(k + COPIES);
        found.larger += larger;
        found.same += equal;
        if (i < winner) found.equal += equal;
        else if (i == winner)
            for (int e = 0; e < r->place % 4; e++) found.equal += at(q, e) == level;
        const float most = largest_of(q);
        found.largest = fmaxf(found.largest, most);
        if (weighs && larger) { /* in one order, so that sums of integers do not depend on how rows are sliced */
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < 4; e++) sum += at(q, e) > level ? units.about(at(q, e)) : 0.0f;
            found.weight += (uint64_t)(sum * ONE);
        }
        if (__any_sync(~0u, most >= floor)) list_quads(r, q, i, floor, entry, room);
    }
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

/* From a slice to the row. */
FS_DEVICE void gather(raced_row *r) {
    const int32_t slices = r->args.raced.slices, lane = threadIdx.x;
    const fs_cuda_ahead *of = r->args.raced.ahead + (int64_t)r->b * slices;
    if (lane < 32) {
        fs_cuda_ahead own = {0, 0, 0, 0, 0, 0};
        if (lane < slices) own = of[lane]; /* which no L1 has */
        own.weight = warp_sum(own.weight);
        own.largest = __reduce_max_sync(~0u, own.largest);
        own.larger = __reduce_add_sync(~0u, own.larger);
        own.equal = __reduce_add_sync(~0u, own.equal);
        own.same = __reduce_add_sync(~0u, own.same);
        const bool fits = own.listed <= FS_CUDA_LIST / (uint32_t)slices;
        const bool all = __all_sync(~0u, fits);
        own.listed = __reduce_add_sync(~0u, fits ? own.listed : 0);
        if (lane == 0) {
            r->weight = own.weight;
            r->largest = own.largest;
            r->larger = own.larger;
            r->equal = own.equal;
            r->same = own.same;
            r->listed = all ? own.listed : ~0u;
        }
    }
    __syncthreads();
}

/* Brings what slices have listed; whether that is all. */
FS_DEVICE bool take_listed(raced_row *r, unsigned long long *list) {
    const int32_t slices = r->args.raced.slices, room = FS_CUDA_LIST / slices;
    const fs_cuda_ahead *of = r->args.raced.ahead + (int64_t)r->b * slices;
    const unsigned long long *entry = r->args.raced.entry + (int64_t)r->b * FS_CUDA_LIST;
    if (r->listed > (uint32_t)min(RACED_LIST, r->args.lists.room)) return false;
    if (threadIdx.x == 0) r->few = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t i = threadIdx.x / 32; i < slices; i += FS_WARPS) {
        const uint32_t lane = threadIdx.x % 32, count = of[i].listed;
        const uint32_t start = __shfl_sync(~0u, lane == 0 ? atomicAdd(&r->few, count) : 0, 0);
        for (uint32_t e = lane; e < count; e += 32) list[start + e] = __ldcg(&entry[i * room + e]);
    }
    __syncthreads();
    return true;
}

#endif
