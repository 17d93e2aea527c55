/* raced.cu - the end of rows whose race is over: a pass over W has drawn from all tokens of each (fused.cuh), summed
 * their masses and kept their logits, and what is left is to look at the logits once. Does the winner stay when the row
 * is cut by top-p, what is its rank, which are the best tokens?
 *
 *   slices, a CTA each: who is ahead of the winner --the row's last CTA--> it stays: results
 *                                                                      --> it does not: likely tokens race again
 *                                                                      --> that cannot be told: open, for rows.cu
 *
 * Of most rows the winner stays: those ahead of it weigh less than the nucleus. Else the nucleus is among those that
 * are listed, if they weigh enough, and cuts.cuh finds who of them wins. */
#define FS_PHILOX_ROLLED
#include "cuda/cuda_launch.h"
#include "cuda/device/touch.cuh"
#include "cuda/fused/cuts.cuh"

namespace {

constexpr int RACED_LIST = 6144; /* tokens of a row that are listed; where there are more the row may be open */
constexpr int MOST_BEST = 64;    /* tokens; as cuda_rows.c says */
constexpr int FEW = 256;         /* of which they are sorted */
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
    unsigned long long found[FEW], sorted[MOST_BEST];
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
        if (lane < slices) own = of[lane]; /* at most 32, and not in L1 */
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

/* --------------------------------------------------------------------------------------------------------- cut ---- */

/* Raises the floor of a row's list to a logit that tokens of so much weight are above, or a little more. */
FS_DEVICE void find_floor_of_nucleus(raced_row *r, double mark) {
    constexpr int BINS = 32 * LIST_LANES;
    constexpr float WIDE = 16.0f / BINS; /* in numbers that cuts look at, down from the row's mass */
    float *bin = (float *)r->most;
    const float top = (float)r->units.unit * 0.6931472f, scale = r->units.scale;
    const unsigned long long *list = r->room.list;
    for (int32_t i = threadIdx.x; i < BINS; i += FS_THREADS) bin[i] = 0.0f;
    if (threadIdx.x == 0) r->room.floor = r->likely;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < (int32_t)r->listed; i += FS_THREADS) {
        const float v = order_key_logit(list[i]);
        const int32_t to = (int32_t)((top - v * scale) * (1.0f / WIDE));
        if (to < BINS) atomicAdd(&bin[max(to, 0)], r->units.about(v));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float own = 0.0f;
        for (int i = 0; i < LIST_LANES; i++) own += bin[LIST_LANES * threadIdx.x + i];
        float sum = own;
        for (int apart = 1; apart < 32; apart *= 2) {
            const float other = __shfl_up_sync(~0u, sum, apart);
            if ((int)threadIdx.x >= apart) sum += other;
        }
        const float enough = (float)mark * 1.0001f;
        if (sum > enough && !(sum - own > enough)) {
            int i = 0;
            for (sum -= own; i < LIST_LANES - 1; i++) {
                sum += bin[LIST_LANES * threadIdx.x + i];
                if (sum > enough) break;
            }
            const float floor = (top - (float)(LIST_LANES * (int)threadIdx.x + i + 1) * WIDE) / scale;
            r->room.floor = fmaxf(r->likely, floor - 1e-5f * (fabsf(floor) + 1.0f / scale));
        }
    }
    __syncthreads();
}

/* Bounds of a candidate's score; those of one that is known to lose are -inf. Half of the noise of most is enough. */
FS_DEVICE fs_score score_candidate(raced_row *r, uint64_t key, fs_drawn *drawn) {
    const fs_noise noise = r->draw.noise;
    const uint32_t token = order_key_token(key);
    const float l = order_key_logit(key) * r->draw.inverse;
    const float reached = known_score(*(volatile uint32_t *)&r->room.best);
    const int32_t prefix = mark_among(marks_of(noise, token / FS_NOISE_BLOCK), noise, token);
    const float ceiling = prefix < 0 ? FS_UNMARKED_CEILING : mark_ceiling((uint32_t)prefix);
    if (l + ceiling + score_slack(l) < reached) return {-INFINITY, -INFINITY};
    const fs_words words = noise_words(noise, token, FS_DOMAIN_EXTENSION);
    *drawn = {prefix, {words.w[0], words.w[1]}};
    return score_of(l, noise_about(*drawn));
}

/* The race of the candidates from a key on, as cuts.cuh has it: the winner's order key. */
FS_DEVICE uint64_t race_candidates(raced_row *r, uint64_t from) {
    fs_cut_room *room = &r->room;
    if (threadIdx.x == 0) room->best = 0, room->key = 0;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        __syncthreads();
#pragma unroll 1
        for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS) {
            const uint64_t key = room->list[i];
            fs_drawn drawn;
            if (key < from) continue;
            const fs_score score = score_candidate(r, key, &drawn);
            if (score.most < known_score(*(volatile uint32_t *)&room->best)) continue;
            atomicMax(&room->best, ordered_float(score.least));
            if (pass) {
                const uint64_t exact = race_key(r->draw, order_key_logit(key), order_key_token(key), drawn);
                atomicMax(&room->key, (unsigned long long)exact);
            }
        }
    }
    __syncthreads();
    return find_token(room, score_key_token(room->key));
}

/* The order key of the token of a row that is cut, whose list is there or not; 0 if it is open. */
FS_DEVICE uint64_t cut_raced(raced_row *r, unsigned long long *list, bool there) {
    fs_cut_room *room = &r->room;
    if (threadIdx.x == 0) {
        room->largest = (uint64_t)r->largest << 32 | 0xFFFFFFFFu;
        room->list = list;
        room->weight = list + RACED_LIST;
        room->count = 0;
    }
    __syncthreads();
    const fs_marks_of_cuts marks = marks_of_cuts(r->args, room, &r->args.work[r->b]);
    if (!marks.known) return 0;
    /* From the units of the cut, which begin at the largest logit, to those of the mass. */
    const cut_scale units(r->units.scale, float_of_ordered(r->largest));
    const double scale = __hiloint2double((1023 + units.unit - r->units.unit) << 20, 0); /* 2 to that power */
    const uint32_t ties = r->args.batch.flags & FS_KEEP_TIES_TOP_P ? 0 : r->equal;
    const double ahead = (double)r->weight + (double)ties * (double)(r->units.about(r->x) * ONE);
    const double slack = ahead * SLACK + (double)(r->larger + ties);
    if (r->larger + ties == 0 || ahead + slack < marks.less * scale) return r->own;
    if (!(ahead - slack > marks.more * scale)) return 0;
    if (!there && !take_listed(r, list)) return 0;
    find_floor_of_nucleus(r, marks.more * scale * (1.0 / ONE));
    if (threadIdx.x == 0) room->count = (int32_t)r->listed;
    __syncthreads();
    const uint64_t own = end_list(r->args, room, r->b,
                                  [&](uint64_t from, const fs_marks_of_cuts &) { return race_candidates(r, from); });
    if (!own || !r->ranks) return own;
    const uint32_t larger = ahead_of(room, ((own >> 32) + 1) << 32, false).count;
    const uint32_t same = ahead_of(room, own >> 32 << 32, false).count - larger;
    if (threadIdx.x == 0) r->larger = larger, r->same = same;
    return own;
}

/* -------------------------------------------------------------------------------------------------------- best ---- */

/* Puts the best of those listed in order; false: there are too many to tell. */
FS_DEVICE bool sort_best(raced_row *r, const unsigned long long *list) {
    const int32_t count = (int32_t)r->listed;
    const int32_t asked = r->args.result.top_count;
    uint64_t most = 0;
    if (threadIdx.x < 32 * LIST_LANES) r->most[threadIdx.x] = 0;
    if (threadIdx.x < MOST_BEST) r->sorted[threadIdx.x] = FS_KEY_NONE;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS) most = max(most, (uint64_t)list[i]);
    if (threadIdx.x == 0) r->few = 0;
    const float floor = kth_of_threads(r, (uint32_t)(most >> 32), asked);
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS) {
        if (!(order_key_logit(list[i]) >= floor)) continue;
        const uint32_t place = atomicAdd(&r->few, 1u);
        if (place < FEW) r->found[place] = list[i];
    }
    __syncthreads();
    const int32_t few = (int32_t)r->few;
    if (few > FEW) return false;
    for (int32_t i = threadIdx.x; i < few; i += FS_THREADS) {
        int32_t ahead = 0;
        for (int32_t j = 0; j < few; j++) ahead += r->found[j] > r->found[i];
        if (ahead < asked) r->sorted[ahead] = r->found[i];
    }
    __syncthreads();
    return true;
}

/* ----------------------------------------------------------------------------------------------------- results ---- */

/* The drawn token's, as those of plain rows are written, and what speaks of it and others. One thread, then all. */
FS_DEVICE void write_raced(raced_row *r, uint64_t own) {
    const fs_cuda_args &args = r->args;
    const int64_t b = args.first_row + r->b;
    if (threadIdx.x == 0) {
        fs_found found = found_nothing();
        fs_needs needs = plain_needs(args.needs);
        needs.max = needs.bounded = 1;
        found.key = own ? r->room.key : FS_KEY_NONE;
        found.x = own ? order_key_logit(own) : NAN;
        found.max = r->largest ? float_of_ordered(r->largest) : -INFINITY;
        found.flags = r->flags;
        if (needs_mass(needs)) found.mass = row_mass(&args.work[r->b]);
        r->result = plain_result(args.result, false, NULL);
        r->call = {&args.head, &args.batch, &r->result, NULL, args.vocab, needs};
        r->plain = rules_of(r->draw);
        r->summary = summary_of(needs, found, &r->winner);
        finish_row(&r->call, b, &r->plain, &r->summary, 0, 1, NULL);
        if (args.result.rank) {
            const uint32_t others = args.batch.flags & FS_RANK_OF_TIES ? r->same - 1 : 0; /* not itself */
            args.result.rank[b] = own ? 1 + (int32_t)(r->larger + others) : -1;
        }
        if (wants_best(args.result)) {
            r->result.top_token = args.result.top_token;
            r->result.top_logit = args.result.top_logit;
            r->result.top_logprob = args.result.top_logprob;
            r->result.top_count = args.result.top_count;
            memset(&r->row, 0, sizeof r->row);
            r->row.call = &r->call;
            r->row.rules = &r->plain;
            r->row.summary = &r->summary;
            r->row.b = b;
            r->row.log_z = args.result.top_logprob ? row_log_z(&r->row) : NAN;
        }
    }
    if (!wants_best(args.result)) return;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < args.result.top_count; i += FS_THREADS)
        row_write_best(&r->row, i, own ? r->sorted[i] : FS_KEY_NONE);
}

/* By the row's last CTA. */
FS_DEVICE void end_raced_row(raced_row *r, unsigned long long *list) {
    const bool asks = r->weighs || r->ranks || r->lists;
    uint64_t own = r->own;
    gather(r);
    const float l = float_of_ordered(r->largest) * r->draw.inverse;
    bool open = asks && (r->odd || !(fabsf(l) < INFINITY));
    if (r->lists && !open) open = !take_listed(r, list) || !sort_best(r, list);
    if (r->weighs && !open) open = !(own = cut_raced(r, list, r->lists));
    __syncthreads();
    if (!open) write_raced(r, own);
    if (threadIdx.x != 0) return;
    if (open) r->args.lists.open[1 + atomicAdd(&r->args.lists.open[0], 1)] = r->args.first_row + r->b;
    clear_row(&r->args.work[r->b], needs_mass(r->args.needs));
}

__global__ void __launch_bounds__(FS_THREADS, 2) end_raced(const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    __shared__ __align__(16) char room[sizeof(raced_row)];
    raced_row *r = (raced_row *)room;
    const int32_t slices = args.raced.slices, b = (int32_t)blockIdx.x / slices, own = (int32_t)blockIdx.x % slices;
    const raced_slice slice(args, b, own, shared);
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof args / 4); i += FS_THREADS)
        ((uint32_t *)&r->args)[i] = ((const uint32_t *)&args)[i];
    if (threadIdx.x == 0) {
        r->b = b;
        r->weight = 0;
        r->larger = r->equal = r->same = r->listed = r->largest = 0;
    }
    __syncthreads();
    wait_for_earlier_launches();
    for (int32_t k = 0; k < COPIES; k++) slice.copy(k);
    open_raced(r);
    if (wants_best(r->args.result)) find_best_floor(r, slice);
    look_at(r, slice, r->args.raced.entry + (int64_t)b * FS_CUDA_LIST + own * (FS_CUDA_LIST / slices));
    __syncthreads();
    if (threadIdx.x == 0) {
        r->args.raced.ahead[blockIdx.x] = {r->weight, r->largest, r->larger, r->equal, r->same, r->listed};
        r->last = add_in_order(&r->args.work[b].done, 1) == (uint32_t)slices - 1;
    }
    __syncthreads();
    wait_for_copies(); /* of which there are none but empty ones: the list takes their place */
    if (r->last) end_raced_row(r, (unsigned long long *)shared);
}

constexpr int RACED_BYTES = 2 * RACED_LIST * (int)sizeof(unsigned long long);
static_assert(RACED_BYTES >= COPIES * FS_THREADS * (int)sizeof(float4), "the list takes the place of copies");

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
