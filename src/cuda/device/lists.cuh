/* lists.cuh - which rows have a list of candidates, and from where on: a floor is a logit that the cuts of a row are
 * thought not to go below, known after the first tile of every CTA. Top-k: of the largest logits of so many tiles the
 * k-th is not above the row's k-th. Min-p: the largest logit so far is not above the row's. Top-p: what so many tokens
 * are above, as the largest logits of tiles tell; that they are enough must be proven (fused/cuts.cuh). */
#ifndef FS_CUDA_LISTS_CUH
#define FS_CUDA_LISTS_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/kth.cuh"
#include "cuda/device/race.cuh"

#include "core/key.h"
#include "core/rules.h"

/* Tokens that a wide list is meant to have, or fewer, so many in a tile. */
constexpr float WIDE_LIST = 6000.0f, WIDE_TILE = 6.0f;
constexpr int32_t LIST_WIDE = 255; /* as the k of a list: by top-p, or by a larger k than there are tiles */

/* Out of line, because it is needed before the first tile and after the last. */
static __device__ __noinline__ fs_row_rules list_rules(const fs_cuda_args &args, int32_t b) {
    return rules_of_row(&args.batch, &args.rules, &args.limits, args.vocab, args.first_row + b);
}

/* Whether a row's cuts may follow from the largest of its tokens. The only token of a greedy row is its largest. */
FS_DEVICE bool rules_list(const fs_row_rules &rules) {
    return !rules_drop_row(&rules) && rules_cut(&rules) && !rules.greedy;
}

/* The k whose floor a row's list has, in bits of a draw's status; 0: min-p's. */
FS_DEVICE uint32_t list_status(const fs_row_rules &rules, uint32_t flags, int32_t slots) {
    const bool min_p = rules.log_min_p > -INFINITY && !(rules.top_p < 1.0f && flags & FS_MIN_P_LAST);
    const int32_t k = rules.top_k > 0 && rules.top_k <= slots ? rules.top_k : min_p ? 0 : LIST_WIDE;
    return (uint32_t)k << FS_DRAW_K;
}

/* How row b of a launch that lists candidates draws. Where top-p is its only cut its list would be long: its logits are
 * kept instead, where there is room. */
FS_DEVICE fs_draw draw_of_listed(const fs_cuda_args &args, int32_t b, bool *weighs) {
    const fs_row_rules rules = list_rules(args, b);
    const bool of_row = rules_top_p_of_row(&rules, args.batch.flags) && !rules.greedy;
    fs_draw draw = draw_of(rules);
    if (rules_drop_row(&rules)) return draw;
    const bool edits = args.edits.row && args.edits.row[b].way != FS_UNEDITED;
    if (rules_list(rules) && rules_top_p_alone(&rules) && args.dense.x && !edits) {
        draw.status |= FS_DRAW_KEPT;
        return draw;
    }
    if (rules_list(rules)) draw.status |= FS_DRAW_LISTED | list_status(rules, args.batch.flags, args.lists.slots);
    if (!edits) {
        *weighs |= of_row;
        return draw;
    }
    const bool open = args.edits.row[b].way == FS_NOT_LOOKED_UP || of_row; /* masses are of x */
    draw.status |= FS_DRAW_EDITED | (args.edits.row[b].raise > 0.0f ? FS_DRAW_RAISED : 0u);
    if (open) draw.status = FS_DRAW_OPEN | FS_ROW_SKIPPED;
    return draw;
}

FS_DEVICE int32_t list_k(const fs_draw &draw) {
    return (int32_t)(draw.status >> FS_DRAW_K & 0xFF);
}

/* The least logit that min-p leaves beside one of `first`, or less. */
FS_DEVICE float min_p_floor(const fs_row_rules &rules, float first) {
    const double reach = rules.log_min_p / (double)rules.cut_scale;
    return (float)((double)first + reach - 1e-5 * (fabs((double)first) + fabs(reach)) - 1e-6 / (double)rules.cut_scale);
}

/* What some WIDE_LIST tokens of a row are above: if x tokens of a tile are, on average, a share 1 - exp(-x) of the
 * tiles have a largest logit above, and where few have not, logits go on falling with the logarithm of x. */
FS_DEVICE uint32_t wide_floor(const uint32_t (&value)[LIST_LANES], int32_t slots, int64_t tokens) {
    constexpr float FAR = 3.0f, APART = 4.0f;
    int32_t there = 0;
#pragma unroll
    for (int i = 0; i < LIST_LANES; i++) there += __popc(__ballot_sync(~0u, value[i] != 0));
    auto above = [&](float x) {
        return float_of_ordered(kth_largest(value, slots, max(1, (int32_t)((float)there * (1.0f - __expf(-x))))));
    };
    const float x = fminf(WIDE_LIST * (float)FS_CUDA_TILE / (float)tokens, WIDE_TILE), near = fminf(x, FAR);
    const float far = above(near);
    const float floor = x > near ? far - (above(near / APART) - far) * (__logf(x / near) / __logf(APART)) : far;
    return there && floor < INFINITY ? ordered_float(floor) : ordered_float(-INFINITY);
}

/* The floor of row b of a launch by the largest logits of its tiles that are there by now, ordered. A warp. */
FS_DEVICE uint32_t list_floor(const fs_cuda_args &args, const fs_draw &draw, int32_t b) {
    const int32_t slots = args.lists.slots, k = list_k(draw);
    const uint32_t *most = args.lists.most + (int64_t)b * slots;
    uint32_t value[LIST_LANES];
#pragma unroll
    for (int i = 0; i < LIST_LANES; i++) {
        const int32_t slot = (int32_t)(threadIdx.x % 32) + 32 * i;
        value[i] = slot < slots ? load_relaxed(&most[slot]) : 0;
    }
    const uint32_t none = ordered_float(-INFINITY);
    if (k == LIST_WIDE) return wide_floor(value, slots, args.head.rows);
    const uint32_t kth = kth_largest(value, slots, k ? k : 1);
    if (kth <= none) return none;
    if (k) return kth;
    return ordered_float(min_p_floor(list_rules(args, b), float_of_ordered(kth)));
}

#endif
