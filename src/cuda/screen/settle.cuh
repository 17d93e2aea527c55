/* settle.cuh - what a pass over a screen has left in the race: the logits of those tokens from W as it lies, by the
 * tensor instruction and in the order of K of the pass over W, so with its bits; the exact race; the rows' results.
 *
 * A CTA is one warp and has a share of one row's list. Sixteen tokens at a time go through shared memory. */
#ifndef FS_CUDA_SETTLE_CUH
#define FS_CUDA_SETTLE_CUH

#define FS_PHILOX_ROLLED
#include "cuda/device/row.cuh"
#include "cuda/cuda_launch.h"
#include "cuda/fused/pieces.cuh"

#include "core/head.h"

constexpr int FS_LEAST_SETTLERS = 8, FS_MOST_SETTLERS = 64; /* CTAs of a row */
constexpr int FS_SETTLE_STAGES = 4;
constexpr int FS_SETTLE_SLICES = 2;      /* of 128 columns in a stage */
constexpr int FS_SLICE_PITCH = 256 + 16; /* bytes */

struct fs_settle_room {
    char w[FS_SETTLE_STAGES][FS_SETTLE_SLICES][16][FS_SLICE_PITCH];
    fs_screened_token token[FS_CUDA_SCREENED / FS_LEAST_SETTLERS];
    /* behind it, H: 16-bit numbers, zeros behind the last */
};

FS_CORE int64_t settle_bytes(int64_t dim) {
    return (int64_t)sizeof(struct fs_settle_room) + (dim + 127) / 128 * 256;
}

/* Where a lane copies from: 16 bytes of a slice, of every other token. */
struct fs_settle_from {
    const char *row[8]; /* NULL: there is no such token */
    int32_t column;     /* the lane's first in a slice */

    FS_DEVICE_MEMBER fs_settle_from(const fs_cuda_args &args, const fs_screened_token *token, int32_t count) {
        const int32_t lane = threadIdx.x & 31;
        const fs_weights w = weights_of_head(&args.head);
        column = lane % 16 * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int32_t at = lane / 16 + 2 * i;
            row[i] = at < count ? weights_row(&w, (int64_t)token[at].token - args.head.first_token) + 2 * column : NULL;
        }
    }

    /* A stage; zeros behind the last column, and for no token. */
    FS_DEVICE_MEMBER void copy(const fs_cuda_args &args, fs_settle_room *room, int32_t first, int32_t slices,
                               int32_t stage) const {
        const int32_t half = (int32_t)(threadIdx.x & 31) / 16;
#pragma unroll
        for (int32_t i = 0; i < FS_SETTLE_SLICES; i++) {
            if (first + i >= slices) break;
            const int32_t k = 128 * slice_at(args.k_order, first + i);
            const uint32_t to = shared_address(&room->w[stage][i][half][2 * column]);
            const bool inside = k + column < (int32_t)args.head.dim;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const bool there = inside && row[j];
                copy_some<16>(to + 2 * j * FS_SLICE_PITCH, there ? row[j] + 2 * k : (const char *)args.head.data,
                              there ? 16 : 0);
            }
        }
        commit_copies();
    }
};

/* The operands of a slice. They are fetched before the chain of its products, which take long enough one by one. */
struct fs_settle_operands {
    uint32_t a[8][4], b[8][2];

    FS_DEVICE_MEMBER void load(const fs_cuda_args &args, const fs_settle_room *room, const char *h, int32_t slice,
                               int32_t stage) {
        const int32_t lane = threadIdx.x & 31;
        const char *own = h + 256 * slice_at(args.k_order, slice) + 4 * (lane & 3);
        const uint32_t w = shared_address(&room->w[stage][slice % FS_SETTLE_SLICES][lane & 15][lane / 16 * 16]);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            load_matrices(a[k], w + 32 * k);
            b[k][0] = *(const uint32_t *)(own + 32 * k);
            b[k][1] = *(const uint32_t *)(own + 32 * k + 16);
        }
    }

    template <int DTYPE> FS_DEVICE_MEMBER void dot(float (&d)[4]) const {
#pragma unroll
        for (int k = 0; k < 8; k++) mma<DTYPE>(d, a[k], b[k][0], b[k][1]);
    }
};

/* Dot products of up to 16 tokens: of token g and g + 8 to the lanes 4 g. */
template <int DTYPE>
FS_DEVICE void dot_tokens(const fs_cuda_args &args, fs_settle_room *room, const char *h, const fs_screened_token *token,
                          int32_t count, float (&d)[4]) {
    const int32_t slices = (int32_t)((args.head.dim + 127) / 128),
                  stages = (slices + FS_SETTLE_SLICES - 1) / FS_SETTLE_SLICES;
    const fs_settle_from from(args, token, count);
    /* All of it at once: these rows are anywhere, and in nobody's cache. */
    if ((int32_t)threadIdx.x < count) {
        const fs_weights w = weights_of_head(&args.head);
        prefetch_l2_bytes(weights_row(&w, (int64_t)token[threadIdx.x].token - args.head.first_token),
                          (uint32_t)args.head.dim * 2);
    }
    d[0] = d[1] = d[2] = d[3] = 0.0f;
#pragma unroll 1
    for (int32_t s = 0; s < FS_SETTLE_STAGES - 1; s++) from.copy(args, room, s * FS_SETTLE_SLICES, slices, s);
#pragma unroll 1
    for (int32_t s = 0; s < stages; s++) {
        wait_for_groups<FS_SETTLE_STAGES - 2>();
        __syncwarp();
        fs_settle_operands operands[FS_SETTLE_SLICES];
#pragma unroll
        for (int i = 0; i < FS_SETTLE_SLICES; i++)
            if (s * FS_SETTLE_SLICES + i < slices)
                operands[i].load(args, room, h, s * FS_SETTLE_SLICES + i, s % FS_SETTLE_STAGES);
        __syncwarp();
        const int32_t next = s + FS_SETTLE_STAGES - 1;
        from.copy(args, room, next * FS_SETTLE_SLICES, slices, next % FS_SETTLE_STAGES);
#pragma unroll
        for (int i = 0; i < FS_SETTLE_SLICES; i++)
            if (s * FS_SETTLE_SLICES + i < slices) operands[i].dot<DTYPE>(d);
    }
    wait_for_groups<0>();
    __syncwarp();
}

/* The exact race of one token. A score that is not where the screen says it is: W is no longer that of the screen. */
FS_DEVICE void settle_token(const fs_cuda_args &args, const fs_draw &draw, fs_cuda_row *row, float x,
                            const fs_screened_token &of, bool shaped) {
    if (shaped) {
        if (args.head.bias) x += args.head.bias[(int64_t)of.token - args.head.first_token];
        x = head_logit(&args.head, x);
    }
    const float l = x * draw.inverse;
    const uint32_t flags = odd_flags(x, l);
    if (flags) atomicOr(&row->flags, flags);
    const fs_drawn drawn = is_greedy(draw) ? fs_drawn{-1, {0, 0}} : draw_token(draw.noise, of.token);
    const float score = is_greedy(draw) ? l : l + noise_about(drawn);
    if (score - score_slack(l) > of.most || score + score_slack(l) < of.least)
        atomicMax(&row->max, FS_CUDA_SCREENED + 1u);
    if (x > -INFINITY) atomicMax(&row->key, (unsigned long long)race_key(draw, x, of.token, drawn));
}

/* This CTA's tokens that can still win, to shared memory; how many. */
FS_DEVICE int32_t gather(const fs_cuda_args &args, fs_settle_room *room, const fs_cuda_row *row, int32_t b,
                         int32_t count) {
    const int32_t lane = threadIdx.x & 31;
    const float4 *entry = (const float4 *)(args.screen.entry + (int64_t)b * FS_CUDA_SCREENED);
    const float best = known_score(__ldcg(&row->bound));
    int32_t kept = 0;
    for (int32_t i = (int32_t)blockIdx.x; i < count; i += 32 * (int32_t)gridDim.x) {
        const int32_t at = i + (int32_t)gridDim.x * lane;
        const float4 e = at < count ? __ldcg(&entry[at]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const bool may = at < count && !(e.x < best);
        const uint32_t who = __ballot_sync(~0u, may);
        if (may) room->token[kept + __popc(who & ((1u << lane) - 1))] = {e.x, e.y, __float_as_uint(e.z), 0};
        kept += __popc(who);
    }
    __syncwarp();
    return kept;
}

FS_DEVICE void load_row(const fs_cuda_args &args, char *h, int32_t b) {
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const char *from = matrix_row(&hidden, args.first_row + b);
    const int32_t dim = (int32_t)args.head.dim;
    for (int32_t k = 8 * (int32_t)threadIdx.x; k < (dim + 127) / 128 * 128; k += 256)
        *(uint4 *)(h + 2 * k) = k < dim ? __ldcg((const uint4 *)(from + 2 * k)) : make_uint4(0, 0, 0, 0);
    __syncwarp();
}

/* The last of a row's CTAs ends it, or leaves it to the pass over W. */
FS_DEVICE void end_settled(const fs_cuda_args &args, const fs_draw &draw, fs_cuda_row *row, int32_t b) {
    if (threadIdx.x != 0) return;
    __threadfence();
    if (add_acquire(&row->done, 1) != gridDim.x - 1) return;
    /* A row that has a score has a token, unless W is another's. */
    const bool lost = __ldcg(&row->bound) && !__ldcg(&row->key);
    if (lost || __ldcg(&row->max) > FS_CUDA_SCREENED) {
        atomicAdd(args.screen.open, 1);
        clear_row(row, false);
    } else end_row<false>(args, draw, b, NULL);
    row->rough = 0;
}

__global__ void __launch_bounds__(32) settle(const __grid_constant__ fs_cuda_args args, int32_t shaped) {
    extern __shared__ __align__(128) char shared[];
    fs_settle_room *room = (fs_settle_room *)shared;
    char *h = shared + sizeof *room;
    const int32_t b = blockIdx.y;
    fs_cuda_row *row = &args.work[b];
    /* What the pass was given is there: it lets this launch begin when it has waited for it. */
    const fs_draw draw = draw_of_row(args, b);
    load_row(args, h, b);
    wait_for_earlier_launches();
    let_next_launch_begin();
    const uint32_t listed = __ldcg(&row->max);
    const fs_screen_header *header = (const fs_screen_header *)args.screen.of.strips - 1;
    /* Other bytes than those that were checked: somebody has written over them. */
    const bool open = listed > FS_CUDA_SCREENED || header->hash != args.screen.hash;
    if (open && threadIdx.x == 0) atomicMax(&row->max, FS_CUDA_SCREENED + 1u); /* whoever is the last */
    if (!open && listed > blockIdx.x) {
        const int32_t kept = gather(args, room, row, b, (int32_t)listed);
        for (int32_t i = 0; i < kept; i += 16) {
            const int32_t lane = threadIdx.x & 31, count = min(kept - i, 16);
            float d[4];
            dot_tokens<FS_BF16>(args, room, h, room->token + i, count, d);
            for (int32_t half = 0; half < 2; half++) {
                const int32_t at = lane / 4 + 8 * half;
                if (lane % 4 == 0 && at < count)
                    settle_token(args, draw, row, d[2 * half], room->token[i + at], shaped);
            }
        }
    }
    __syncwarp();
    end_settled(args, draw, row, b);
}

#endif
