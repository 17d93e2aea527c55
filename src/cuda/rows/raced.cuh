/* raced.cuh - a row whose race is over and whose logits are in work memory, on its way to results: what is asked of it,
 * whether its winner stays when it is cut by top-p, and what is written. raced.cu looks at all logits of a row once;
 * again.cu races again where the winner does not stay. */
#ifndef FS_CUDA_RACED_CUH
#define FS_CUDA_RACED_CUH

#include "cuda/device/lists.cuh"
#include "cuda/device/row.cuh"
#include "cuda/device/touch.cuh"
#include "cuda/device/weight.cuh"

constexpr double SLACK = 4e-6; /* of the weight ahead of a winner: each is as exact as exp2_approximate, */
constexpr float ONE = 0x1p39f; /* and an integer, this being 1 */

/* A row in the shared memory of each of its CTAs. */
struct raced_row {
    fs_cuda_args args;
    fs_row_rules rules;
    fs_draw draw;
    int32_t b, place;
    uint64_t key;              /* score of the winner; 0: there is none */
    uint64_t own;              /* its order key, likewise */
    float x;                   /* its logit */
    uint32_t flags;            /* of the pass */
    bool weighs, ranks, lists; /* what is asked of the logits */
    cut_scale units;           /* of a weight of 1: near the row's mass, which is near the winner's score */
    fs_cuda_ahead ahead;       /* of this CTA's tokens, then of all */
    fs_mass mass;              /* of the row, where one is needed */
    /* To be written. */
    fs_result result;
    fs_call call;
    fs_row_rules plain;
    fs_winner winner;
    fs_summary summary;
    fs_row row;
};

/* --------------------------------------------------------------------------------------------------------- row ---- */

FS_DEVICE float *kept_logits(const fs_cuda_args &args, int32_t b) {
    return args.dense.x + b * args.dense.stride;
}

/* What is known of all of a row that races again, and which rows do (FS_AGAIN_BY_TEAM). */
FS_DEVICE fs_cuda_ahead *whole_of(const fs_cuda_args &args, int32_t b) {
    return args.raced.ahead + b;
}

FS_DEVICE int32_t *again_at(const fs_cuda_args &args, int32_t place) {
    return args.lists.open + 1 + args.batch.rows + place;
}

/* What is known of the slices of the row at a place. */
FS_DEVICE fs_cuda_ahead *slices_of(const fs_cuda_args &args, int32_t place, int32_t slices) {
    return args.raced.ahead + args.rows + place * slices;
}

/* What the pass and the rules say of the row, by several warps at once: each of these is a load behind a load. Barriers
 * before and after it are the caller's. */
FS_DEVICE void open_raced(raced_row *r, uint32_t *scrap) {
    const fs_cuda_args &args = r->args;
    const fs_cuda_row *work = &args.work[r->b];
    if (threadIdx.x / 32 == 3) touch_rules(args, args.first_row + r->b, scrap);
    if (threadIdx.x == 0) {
        r->rules = list_rules(args, r->b);
        r->draw = draw_of(r->rules);
        r->units.scale = r->rules.cut_scale;
        r->units.origin = 0.0f;
    } else if (threadIdx.x == 32) {
        const uint64_t key = __ldcg(&work->key);
        const uint32_t token = score_key_token(key);
        r->key = key;
        r->flags = __ldcg(&work->flags);
        r->x = key ? kept_logits(args, r->b)[token - (uint32_t)args.head.first_token] : NAN;
        r->own = key ? order_key(r->x, token) : 0;
        r->units.unit = key ? (int32_t)rintf(fminf(fmaxf((float)score_key_value(key) * 1.442695f, -1e6f), 1e6f)) : 0;
    }
}

/* After a barrier, one thread. */
FS_DEVICE void ask_raced(raced_row *r) {
    if (!draws(r->draw)) r->own = 0;
    r->weighs = r->own && rules_list(r->rules);
    r->ranks = r->own && r->args.result.rank;
    r->lists = r->own && result_wants_top(&r->args.result);
}

/* ------------------------------------------------------------------------------------------------------- ahead ---- */

/* The largest of four; NaN is none. */
FS_DEVICE float largest_of(const float4 &q) {
    return fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w));
}

FS_DEVICE float at(const float4 &q, int e) {
    return e == 0 ? q.x : e == 1 ? q.y : e == 2 ? q.z : q.w;
}

/* What a thread finds of the tokens ahead of a winner. */
struct raced_ahead {
    float level;   /* the winner's logit, or +inf if it does not matter who is ahead */
    int32_t place; /* the winner's in its row */
    bool weighs;
    cut_scale units;
    uint64_t weight = 0;
    uint32_t larger = 0, equal = 0, same = 0;

    FS_DEVICE_MEMBER raced_ahead(const raced_row *r, bool matters)
        : level(matters ? r->x : INFINITY),
          place((int32_t)(order_key_token(r->own) - (uint32_t)r->args.head.first_token)), weighs(r->weighs),
          units(r->units) {}

    /* Four logits, whose first is so many from the row's. Weights are summed in one order, so that those of integers do
     * not depend on who has which. */
    FS_DEVICE_MEMBER void look(const float4 &q, int32_t first) {
        uint32_t above = 0, even = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            above += at(q, e) > level;
            even += at(q, e) == level;
        }
        larger += above;
        if (even) {
            same += even;
#pragma unroll
            for (int e = 0; e < 4; e++) equal += at(q, e) == level && first + e < place;
        }
        if (weighs && above) {
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < 4; e++) sum += at(q, e) > level ? units.about(at(q, e)) : 0.0f;
            weight += (uint64_t)(sum * ONE);
        }
    }

    /* One that is listed, as all tokens are whose logits are not below the winner's. */
    FS_DEVICE_MEMBER void look(uint64_t key, uint64_t own) {
        const float y = order_key_logit(key);
        larger += y > level;
        same += y == level;
        equal += y == level && key > own;
        if (y > level) weight += (uint64_t)(units.about(y) * ONE);
    }

    /* To those of the CTA, which are zero before. */
    FS_DEVICE_MEMBER void add_to(fs_cuda_ahead *all) {
#pragma unroll
        for (int apart = 16; apart; apart /= 2) weight += __shfl_xor_sync(~0u, weight, apart);
        larger = __reduce_add_sync(~0u, larger);
        equal = __reduce_add_sync(~0u, equal);
        same = __reduce_add_sync(~0u, same);
        if (threadIdx.x % 32 != 0) return;
        atomicAdd(&all->weight, (unsigned long long)weight);
        atomicAdd(&all->larger, larger);
        atomicAdd(&all->equal, equal);
        atomicAdd(&all->same, same);
    }
};

/* Whether the winner stays when its row is cut by top-p, by what is ahead of it: 1, 0, or -1 if that is not known. */
FS_DEVICE int32_t winner_stays(const raced_row *r) {
    const fs_cuda_ahead &ahead = r->ahead;
    const uint32_t ties = r->args.batch.flags & FS_KEEP_TIES_TOP_P ? 0 : ahead.equal, count = ahead.larger + ties;
    if (count == 0) return 1;
    const float first = float_of_ordered(ahead.largest) * r->rules.cut_scale;
    const fs_mass &mass = r->mass;
    if (mass_is_empty(&mass) || mass_is_far(&mass) || !(fabsf(first) <= FS_EXP_EXACT)) return -1;
    const double all = ldexp(mass_scaled(&mass), 24 * (mass.top - 2) - r->units.unit + 39);
    const double share = (double)r->rules.top_p * all, off = share * mass_slack(first);
    const double weight = (double)ahead.weight + (double)ties * (double)(r->units.about(r->x) * ONE);
    const double slack = weight * SLACK + (double)count;
    return weight + slack < share - off ? 1 : weight - slack > share + off ? 0 : -1;
}

/* ----------------------------------------------------------------------------------------------------- results ---- */

/* What is known of the row, as the one summary. One thread, like those that follow. */
FS_DEVICE void summarise(raced_row *r) {
    const fs_cuda_args &args = r->args;
    fs_found found = found_nothing();
    fs_needs needs = plain_needs(args.needs);
    needs.max = needs.bounded = 1;
    found.key = r->own ? r->key : FS_KEY_NONE;
    found.x = r->own ? r->x : NAN;
    found.max = r->ahead.largest ? float_of_ordered(r->ahead.largest) : -INFINITY;
    found.flags = r->flags;
    if (needs_mass(needs)) found.mass = r->mass;
    r->result = plain_result(args.result, false, NULL);
    r->call = {&args.head, &args.batch, &r->result, NULL, args.vocab, needs};
    r->plain = rules_of(r->draw);
    r->summary = summary_of(needs, found, &r->winner);
}

/* The drawn token's, as those of plain rows are written, and its rank. */
FS_DEVICE void write_drawn(raced_row *r) {
    const int64_t b = r->args.first_row + r->b;
    finish_row(&r->call, b, &r->plain, &r->summary, 0, 1, NULL);
    if (!r->args.result.rank) return;
    const uint32_t others = r->args.batch.flags & FS_RANK_OF_TIES ? r->ahead.same - 1 : 0; /* not itself */
    r->args.result.rank[b] = r->own ? 1 + (int32_t)(r->ahead.larger + others) : -1;
}

/* What the best tokens' are written with. */
FS_DEVICE void open_best(raced_row *r) {
    const fs_result &all = r->args.result;
    r->result.top_token = all.top_token;
    r->result.top_logit = all.top_logit;
    r->result.top_logprob = all.top_logprob;
    r->result.top_count = all.top_count;
    memset(&r->row, 0, sizeof r->row);
    r->row.call = &r->call;
    r->row.rules = &r->plain;
    r->row.summary = &r->summary;
    r->row.b = r->args.first_row + r->b;
    r->row.log_z = all.top_logprob ? row_log_z(&r->row) : NAN;
}

/* Leaves the row to a team (rows/rows.cu), or not; what the pass knew of it is no longer needed. Where others' logits
 * have not been kept, its hidden state goes where open ones are side by side. */
FS_DEVICE void close_raced(raced_row *r, bool open) {
    const fs_cuda_args &args = r->args;
    const int32_t b = args.first_row + r->b;
    clear_row(&args.work[r->b], needs_mass(args.needs));
    if (!open) return;
    const int32_t place = atomicAdd(&args.lists.open[0], 1);
    args.lists.open[1 + place] = b;
    if (!args.lists.hidden) return;
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const uint4 *from = (const uint4 *)matrix_row(&hidden, b);
    uint4 *to = (uint4 *)((uint16_t *)args.lists.hidden + place * open_stride(args.head.dim));
#pragma unroll 8
    for (int64_t i = 0; i < (args.head.dim + 7) / 8; i++) to[i] = from[i];
}

#endif
