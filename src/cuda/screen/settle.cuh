/* settle.cuh - what a pass over a screen has left in the race: the logits of those tokens from W as it lies, by the
 * tensor instruction and in the order of K of the pass over W, so with its bits; the exact race; the rows' results.
 *
 * A CTA has a share of one row's list, 16 tokens at a time; long lists have more of them. One warp has the chain of
 * products, which takes as long as it is (256 of them for D = 4,096), two copy W to shared memory ahead of it, and one
 * runs through what comes last: its instructions come from memory. */
#ifndef FS_CUDA_SETTLE_CUH
#define FS_CUDA_SETTLE_CUH

#include "cuda/fused/pieces.cuh"
#include "cuda/screen/history.cuh"
#include "cuda/screen/row.cuh"

constexpr int FS_MOST_SETTLERS =
    64; /* CTAs for each row; where rows may be cut, whose lists are longer, four times as many */
/* In a row's `max`, beside the length of its list, which says whose the CTAs are: its list does not decide. */
constexpr uint32_t FS_OPEN = 1u << 31;
constexpr int FS_SETTLE_THREADS = 128, FS_COPY_THREADS = 64;
constexpr int FS_SETTLE_STAGES = 8;      /* of 128 columns */
constexpr int FS_SLICE_PITCH = 256 + 16; /* bytes */

/* Which entries of which row's list a CTA has: every so-many-th from `first` on. */
struct fs_share {
    int32_t row, first, ctas; /* 0: none; -1: a row is open, and all are W's */
    int32_t listed;           /* tokens of the row; -1: its list does not decide */
};

struct alignas(16) fs_settle_room {
    char w[FS_SETTLE_STAGES][16][FS_SLICE_PITCH];
    fs_screened_token token[16 + 32];
    int32_t kept; /* of these */
    fs_share share;
    unsigned long long full[FS_SETTLE_STAGES], empty[FS_SETTLE_STAGES];
    fs_cuda_row scrap; /* takes what a rehearsal finds */
    /* behind it, H: 16-bit numbers, zeros behind the last */
};

FS_CORE int64_t settle_bytes(int64_t dim) {
    return (int64_t)sizeof(struct fs_settle_room) + (dim + 127) / 128 * 256;
}

/* Of the slices so far: the stage of the next, and which time it is used. */
FS_DEVICE int32_t stage_of(int32_t turn) {
    return turn % FS_SETTLE_STAGES;
}

FS_DEVICE uint32_t parity_of(int32_t turn) {
    return (uint32_t)turn / FS_SETTLE_STAGES & 1;
}

/* Rows of W, stage by stage; zeros behind the last column, and for no token. */
FS_DEVICE void copy_tokens(const fs_cuda_args &args, fs_settle_room *room, const fs_screened_token *token,
                           int32_t count, int32_t slices, int32_t *turn) {
    const int32_t thread = (int32_t)threadIdx.x - 32, first = thread / 16, column = thread % 16 * 8;
    const fs_matrix w = weights_of_head(&args.head);
    const char *row[4]; /* of every fourth token; NULL: there is none */
#pragma unroll
    for (int j = 0; j < 4; j++)
        row[j] = first + 4 * j < count
                     ? matrix_row(&w, (int64_t)token[first + 4 * j].token - args.head.first_token) + 2 * column
                     : NULL;
#pragma unroll 1
    for (int32_t slice = 0; slice < slices; slice++, ++*turn) {
        const int32_t k = 128 * slice_at(args.k_order, slice);
        const uint32_t to = shared_address(&room->w[stage_of(*turn)][first][2 * column]);
        barrier_wait(shared_address(&room->empty[stage_of(*turn)]), parity_of(*turn) ^ 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const bool there = row[j] && k + column < (int32_t)args.head.dim;
            copy_some<16>(to + 4 * j * FS_SLICE_PITCH, there ? row[j] + 2 * k : (const char *)args.head.data,
                          there ? 16 : 0);
        }
        barrier_arrive_after_copies(shared_address(&room->full[stage_of(*turn)]));
    }
}

/* A slice's operands. They are fetched between the products of the slice before, which are made one by one. */
struct fs_settle_operands {
    uint32_t a[8][4], b[4][4]; /* B has the row of H in all its columns */
    uint32_t w, h, empty;

    FS_DEVICE_MEMBER void wait(const fs_cuda_args &args, fs_settle_room *room, const char *row, int32_t slice,
                               int32_t turn) {
        const int32_t lane = threadIdx.x & 31, stage = stage_of(turn);
        w = shared_address(&room->w[stage][lane & 15][lane / 16 * 16]);
        h = shared_address(row) + 256 * slice_at(args.k_order, slice) + lane / 8 * 16;
        empty = shared_address(&room->empty[stage]);
        barrier_wait(shared_address(&room->full[stage]), parity_of(turn));
    }

    FS_DEVICE_MEMBER void load(int k) {
        if (k % 2 == 0) load_matrices(b[k / 2], h + 32 * k);
        load_matrices(a[k], w + 32 * k);
    }

    FS_DEVICE_MEMBER void end_loads() const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(empty);
    }

    template <int DTYPE> FS_DEVICE_MEMBER void dot(int k, float (&d)[4]) const {
        mma<DTYPE>(d, a[k], b[k / 2][2 * (k & 1)], b[k / 2][2 * (k & 1) + 1]);
    }
};

/* Dot products of up to 16 tokens: of token g and g + 8 to the lanes 4 g. */
template <int DTYPE>
FS_DEVICE void dot_tokens(const fs_cuda_args &args, fs_settle_room *room, const char *h, int32_t slices, int32_t *turn,
                          float (&d)[4]) {
    fs_settle_operands one, two;
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    /* The products of `from`, while `to` is fetched. */
    auto step = [&](const fs_settle_operands &from, fs_settle_operands &to, int32_t slice) {
        if (slice >= slices) return;
        if (slice + 1 < slices) {
            to.wait(args, room, h, slice + 1, *turn + slice + 1);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                from.dot<DTYPE>(k, d);
                to.load(k);
            }
            to.end_loads();
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++) from.dot<DTYPE>(k, d);
        }
    };
    one.wait(args, room, h, 0, *turn);
#pragma unroll
    for (int k = 0; k < 8; k++) one.load(k);
    one.end_loads();
#pragma unroll 1
    for (int32_t slice = 0; slice < slices; slice += 2) {
        step(one, two, slice);
        step(two, one, slice + 1);
    }
    *turn += slices;
}

/* The exact race of one token, or its logit, to row b's list. A score that is not where the screen says it is: W is no
 * longer that of the screen. */
static __device__ __noinline__ void settle_token(const fs_cuda_args &args, const fs_draw &draw, fs_cuda_row *row,
                                                 int32_t b, float x, const fs_screened_token &of, bool shaped) {
    if (shaped) x = shaped_logit(args.head, x, of.token, 0.0f);
    if (is_listed(draw)) {
        /* Nor a NaN, nor what a temperature makes infinite. */
        if (!(x <= of.most && x * draw.inverse < INFINITY)) atomicOr(&row->max, FS_OPEN);
        args.lists.entry[(int64_t)b * FS_CUDA_SCREENED + of.place] = order_key(x, of.token);
        return;
    }
    x = edited_logit(args, draw, b, of.token, x);
    const float l = x * draw.inverse;
    const uint32_t flags = odd_flags(x, l);
    if (flags) atomicOr(&row->flags, flags);
    if (flags && is_edited(draw)) atomicOr(&row->max, FS_OPEN); /* what edits make of infinities */
    const fs_drawn drawn = is_greedy(draw) ? fs_drawn{-1, {0, 0}} : draw_token(draw.noise, of.token);
    const float score = is_greedy(draw) ? l : l + noise_about(drawn);
    if (score - score_slack(l) > of.most || score + score_slack(l) < of.least) atomicOr(&row->max, FS_OPEN);
    if (x > -INFINITY) atomicMax(&row->key, (unsigned long long)race_key(draw, x, of.token, drawn));
}

/* One CTA for every row, and the others by the lengths of their lists. By a warp; a row to a lane. */
FS_DEVICE fs_share share_of_cta(const fs_cuda_args &args) {
    const int32_t lane = threadIdx.x & 31, more = (int32_t)gridDim.x - args.rows;
    int32_t listed = lane < args.rows ? (int32_t)(__ldcg(&args.work[lane].max) & ~FS_OPEN) : 0;
    const bool decides = listed <= FS_CUDA_SCREENED;
    if (!decides) listed = 0;
    const int32_t all = max(1, __reduce_add_sync(~0u, listed));
    const int32_t ctas = lane < args.rows ? max(1, min(listed, 1 + more * listed / all)) : 0;
    int32_t end = ctas;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const int32_t before = __shfl_up_sync(~0u, end, apart);
        if (lane >= apart) end += before;
    }
    const uint32_t behind = __ballot_sync(~0u, (int32_t)blockIdx.x < end);
    if (!behind) return {0, 0, 0, 0};
    const int row = __ffs(behind) - 1;
    return {row, (int32_t)blockIdx.x - __shfl_sync(~0u, end - ctas, row), __shfl_sync(~0u, ctas, row),
            __shfl_sync(~0u, decides ? listed : -1, row)};
}

/* Of this CTA's share of a row's list, which it has looked at up to `at`, what can still win: 16 tokens if there are so
 * many, behind the `kept` that are left. How many there are. */
FS_DEVICE int32_t gather(const fs_cuda_args &args, fs_settle_room *room, const fs_share &share, float best, int32_t *at,
                         int32_t kept) {
    const int32_t lane = threadIdx.x & 31, ctas = share.ctas, listed = share.listed;
    const float4 *entry = (const float4 *)(args.screen.entry + (int64_t)share.row * FS_CUDA_SCREENED);
    for (; kept < 16 && *at < listed; *at += 32 * ctas) {
        const int32_t own = *at + ctas * lane;
        const float4 e = own < listed ? __ldcg(&entry[own]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const bool may = own < listed && !(e.x < best);
        const uint32_t who = __ballot_sync(~0u, may);
        if (may)
            room->token[kept + __popc(who & ((1u << lane) - 1))] = {e.x, e.y, __float_as_uint(e.z),
                                                                    __float_as_uint(e.w)};
        kept += __popc(who);
    }
    __syncwarp();
    /* Whole rows, at once: they are anywhere, and in nobody's cache. */
    if (lane < min(kept, 16)) {
        const fs_matrix w = weights_of_head(&args.head);
        const fs_screened_token *token = &room->token[max(kept - 16, 0) + lane];
        prefetch_l2_bytes(matrix_row(&w, (int64_t)token->token - args.head.first_token), (uint32_t)args.head.dim * 2);
    }
    if (lane == 0) room->kept = kept;
    return kept;
}

FS_DEVICE void load_row(const fs_cuda_args &args, char *h, int32_t b, int32_t threads) {
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const char *from = matrix_row(&hidden, args.first_row + b);
    const int32_t dim = (int32_t)args.head.dim;
    for (int32_t k = 8 * (int32_t)threadIdx.x; k < (dim + 127) / 128 * 128; k += 8 * threads)
        *(uint4 *)(h + 2 * k) = k < dim ? __ldcg((const uint4 *)(from + 2 * k)) : make_uint4(0, 0, 0, 0);
}

/* What a screen has found of a row that is a part's: it stays in work memory, where a pass over W leaves rows too. It
 * may still run, for others: it finds the same key again, or a larger one. */
FS_DEVICE void leave_row(fs_cuda_row *row) {
    row->bound = row->max = row->done = row->seeded = 0;
}

/* The rows are W's: nothing is left of them. By a warp, a row to a lane. */
FS_DEVICE void leave_to_weights(const fs_cuda_args &args) {
    const int32_t b = threadIdx.x;
    if (b < args.rows) {
        clear_row(&args.work[b], false);
        args.work[b].rough = 0;
    }
    if (b == 0 && !args.dense.x) note_outcome(args);
}

/* The last CTA ends the rows, or leaves them to the pass over W; nobody before, because lists' lengths have to stay
 * until all CTAs have their shares. Rows that are cut are ended by another launch. By a warp; a row, and how it draws,
 * to a lane. */
FS_DEVICE void end_settled(const fs_cuda_args &args, const fs_draw &draw) {
    const int32_t b = threadIdx.x;
    if (__all_sync(~0u, b >= args.rows || is_listed(draw))) return;
    bool last = false;
    if (b == 0) {
        __threadfence();
        last = add_acquire(&args.work->done, 1) == gridDim.x - 1;
        if (last) args.work->done = 0;
    }
    if (!__any_sync(~0u, last)) return;
    __threadfence();
    const bool own = b < args.rows && !is_listed(draw);
    const uint32_t all = __ballot_sync(~0u, own);
    if (!own) return;
    fs_cuda_row *row = &args.work[b];
    /* A row that has a score has a token, unless W is another's. */
    const bool lost = __ldcg(&row->bound) && !__ldcg(&row->key);
    if (lost || __ldcg(&row->max) > FS_CUDA_SCREENED) {
        atomicAdd(args.screen.open, 1);
        clear_row(row, false);
    } else if (args.leave_rows) leave_row(row);
    else close_row<false>(args, draw, b, NULL);
    row->rough = 0;
    __syncwarp(all);
    if (b == 0 && !args.dense.x) note_outcome(args);
}

/* How a row draws, of which `draw` is that of row `lane`. */
FS_DEVICE fs_draw draw_of_lane(const fs_draw &draw, int row) {
    static_assert(sizeof(fs_draw) % 4 == 0, "whole words");
    uint32_t word[sizeof(fs_draw) / 4];
    memcpy(word, &draw, sizeof word);
#pragma unroll
    for (int i = 0; i < (int)(sizeof word / 4); i++) word[i] = __shfl_sync(~0u, word[i], row);
    fs_draw other;
    memcpy(&other, word, sizeof word);
    return other;
}

/* A share: by warps 0 to 2. `h` has row `loaded`. */
FS_DEVICE void settle_share(const fs_cuda_args &args, fs_settle_room *room, char *h, int32_t loaded,
                            const fs_draw &draw, const fs_share &share, bool shaped) {
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int32_t slices = (int32_t)((args.head.dim + 127) / 128);
    fs_cuda_row *row = &args.work[share.row];
    const float best = known_score(__ldcg(&row->bound));
    int32_t at = share.first, kept = 0, turn = 0;
    while (true) {
        if (warp == 0) gather(args, room, share, best, &at, kept);
        named_barrier(1, 32 + FS_COPY_THREADS);
        kept = room->kept;
        if (kept == 0) return;
        const int32_t count = min(kept, 16);
        const fs_screened_token *token = room->token + (kept -= count);
        if (warp > 0) {
            copy_tokens(args, room, token, count, slices, &turn);
            continue;
        }
        if (loaded != share.row) load_row(args, h, share.row, 32); /* while W is on its way */
        loaded = share.row;
        __syncwarp();
        float d[4];
        dot_tokens<FS_BF16>(args, room, h, slices, &turn, d);
        for (int32_t half = 0; half < 2; half++) {
            const int32_t own = lane / 4 + 8 * half;
            if (lane % 4 == 0 && own < count) settle_token(args, draw, row, share.row, d[2 * half], token[own], shaped);
        }
        __syncwarp();
    }
}

__global__ void __launch_bounds__(FS_SETTLE_THREADS, 4)
    settle(const __grid_constant__ fs_cuda_args args, int32_t shaped) {
    extern __shared__ __align__(128) char shared[];
    fs_settle_room *room = (fs_settle_room *)shared;
    char *h = shared + sizeof *room;
    const int32_t likely = (int32_t)(blockIdx.x * (uint32_t)args.rows / gridDim.x), warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < FS_SETTLE_STAGES; i++) {
            barrier_init(shared_address(&room->full[i]), FS_COPY_THREADS);
            barrier_init(shared_address(&room->empty[i]), 1);
        }
        barrier_init_fence();
    }
    /* What the pass was given is there: it lets this launch begin when it has waited for it. */
    load_row(args, h, likely, FS_SETTLE_THREADS);
    const fs_draw draw = draw_of_screened(args, warp == 0 ? min((int32_t)threadIdx.x, args.rows - 1) : likely);
    /* Other bytes than those that were checked: somebody has written over them. */
    const bool same = ((const fs_screen_header *)args.screen.of.strips - 1)->hash == args.screen.hash;
    __syncthreads();
    if (warp == 3) {
        if (threadIdx.x % 32 || is_listed(draw)) return;
        settle_token(args, draw, &room->scrap, likely, 0.0f, {0.0f, 0.0f, (uint32_t)args.head.first_token, 0}, shaped);
        close_row<false>(args, draw, likely, &room->scrap);
        return;
    }
    wait_for_earlier_launches();
    let_next_launch_begin();
    if (warp == 0) {
        const bool open = load_relaxed((const uint32_t *)args.screen.open) > 0;
        const fs_share own = share_of_cta(args);
        if (threadIdx.x == 0) room->share = own, room->share.ctas = open ? -1 : own.ctas;
    }
    named_barrier(1, 32 + FS_COPY_THREADS);
    const fs_share share = room->share;
    if (share.ctas < 0) {
        if (blockIdx.x == 0 && warp == 0) leave_to_weights(args);
        return;
    }
    if (share.ctas > 0 && share.listed >= 0 && same)
        settle_share(args, room, h, likely, draw_of_lane(draw, share.row), share, shaped);
    else if (share.ctas > 0 && threadIdx.x == 0) atomicOr(&args.work[share.row].max, FS_OPEN);
    if (warp == 0) end_settled(args, draw);
}

#endif
