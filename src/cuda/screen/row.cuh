/* row.cuh - how rows draw by a screen, and the logits of single tokens from W: what all of its launches know. */
#ifndef FS_CUDA_SCREEN_ROW_CUH
#define FS_CUDA_SCREEN_ROW_CUH

#define FS_PHILOX_ROLLED
#define FS_WALK static __device__ __noinline__
#include "cuda/cuda_launch.h"
#include "cuda/device/edits.cuh"
#include "cuda/device/lists.cuh"
#include "cuda/device/row.cuh"

#include "core/head.h"

/* Tokens of a row that is cut, computed from W so that it is known from where on others matter: twice as many as top-k
 * keeps and some more, since masks and edits may leave some of them out. */
constexpr int FS_LEADERS = 256, FS_MORE_LEADERS = 16, FS_SCREENED_K = (FS_LEADERS - FS_MORE_LEADERS) / 2;

/* How row b of a launch draws. Rows that are cut are listed; those that a screen does not serve are open, because all
 * of their logits have a part in the cut, or in what edits make of them. */
FS_DEVICE fs_draw draw_of_screened(const fs_cuda_args &args, int32_t b) {
    if (!args.dense.x) return draw_of_row(args, b); /* no row of the call has rules */
    const fs_row_rules rules = list_rules(args, b);
    const uint32_t flags = args.batch.flags;
    fs_draw draw = draw_of(rules);
    if (!draws(draw)) return draw;
    if (rules_list(rules)) draw.status |= FS_DRAW_LISTED | list_status(rules, flags, FS_SCREENED_K);
    if (is_listed(draw) && (list_k(draw) == LIST_WIDE || rules_top_p_of_row(&rules, flags)))
        draw.status |= FS_DRAW_OPEN;
    if (!args.edits.row || args.edits.row[b].way == FS_UNEDITED) return draw;
    if (args.edits.row[b].way == FS_NOT_LOOKED_UP) { /* and there is nothing to look up */
        draw.status |= FS_DRAW_OPEN;
        return draw;
    }
    draw.status |= FS_DRAW_EDITED | (args.edits.row[b].raise > 0.0f ? FS_DRAW_RAISED : 0u);
    return draw;
}

/* Out of line: it is wanted in many places, by few heads. */
static __device__ __noinline__ float shaped_logit(const fs_head &head, float x, uint32_t token, float way) {
    if (head.bias) x += head.bias[(int64_t)token - head.first_token];
    x = head_logit(&head, x);
    return head.softcap > 0.0f ? x + way * fabsf(x) * 1e-5f : x; /* tanhf's last bits */
}

/* From x, or a bound of it, to y: edits and penalties never change the order of two. */
FS_DEVICE float edited_logit(const fs_cuda_args &args, const fs_draw &draw, int32_t b, uint32_t token, float x) {
    return is_edited(draw) && x == x ? look_up(args, b, (int32_t)token, x) : x;
}

/* A row's allow-bitmask; NULL: all are. */
FS_DEVICE const uint32_t *mask_of_row(const fs_cuda_args &args, int32_t b) {
    const fs_batch &batch = args.batch;
    return bits_row(batch.allow, batch.allow_stride, batch_mask(&batch, args.first_row + b), args.vocab);
}

/* w . h in float, whatever the order of its sum. By a warp; every lane has it. */
FS_DEVICE float dot_of_token(const fs_head &head, uint32_t token, const char *h) {
    const int32_t lane = threadIdx.x & 31;
    const fs_matrix w = weights_of_head(&head);
    const char *weights = matrix_row(&w, (int64_t)token - head.first_token);
    float dot = 0.0f;
#pragma unroll 8
    for (int32_t k = 8 * lane; k < (int32_t)head.dim; k += 256) {
        const uint4 x = *(const uint4 *)(weights + 2 * k), y = *(const uint4 *)(h + 2 * k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t u = (&x.x)[i], v = (&y.x)[i];
            dot = fmaf(__uint_as_float(u << 16), __uint_as_float(v << 16), dot);
            dot = fmaf(__uint_as_float(u & 0xFFFF0000u), __uint_as_float(v & 0xFFFF0000u), dot);
        }
    }
    for (int apart = 16; apart; apart /= 2) dot += __shfl_xor_sync(~0u, dot, apart);
    return dot;
}

/* How far a dot product of a token is from any other order of its sum, for a row of this slack (screen_slack). */
FS_DEVICE float dot_bound(const fs_cuda_args &args, uint32_t token, float slack) {
    const int64_t row = (int64_t)token - args.head.first_token;
    const float norm = strip_head(screen_strip(&args.screen.of, row / FS_SCREEN_TOKENS))->norm[row % FS_SCREEN_TOKENS];
    return norm * slack * FS_SCREEN_WIDER;
}

/* screen_slack of a row whose squares add up to this, but for rounding, in float: what is exact, twice. */
FS_DEVICE float row_slack(int64_t dim, float square) {
    const float norm = sqrtf(square * (1.0f + 0x1p-10f)), error = (float)(dim + 64) * 0x1p-23f;
    return 2.0f * error * norm * (1.0f + 0x1p-16f) + 1e-30f;
}

#endif
