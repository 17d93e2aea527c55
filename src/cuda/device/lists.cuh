/* lists.cuh - which rows have a list of candidates, and from where on: a floor is a logit that the cuts of a row never
 * go below, known after the first tile of every CTA. Top-k: of the largest logits of so many tiles the k-th is not
 * above the row's k-th. Min-p: the largest logit so far is not above the row's. */
#ifndef FS_CUDA_LISTS_CUH
#define FS_CUDA_LISTS_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/race.cuh"

#include "core/key.h"
#include "core/rules.h"

/* Whether a row's cuts follow from the largest of its tokens alone, so many tiles telling where they begin. The only
 * token of a greedy row is its largest. */
FS_DEVICE bool rules_list(const fs_rules &rules, uint32_t flags, int32_t slots) {
    if (rules_drop_row(&rules) || !rules_cut(&rules) || rules.greedy || rules_top_p_of_row(&rules, flags)) return false;
    /* Min-p after a top-p that follows top-k: what min-p removes has mass. */
    return (rules.top_k > 0 && rules.top_k <= slots) ||
           (rules.log_min_p > -INFINITY && !(rules.top_p < 1.0f && flags & FS_MIN_P_LAST));
}

/* The k whose floor a row's list has, in bits of a draw's status; 0: min-p's. */
FS_DEVICE uint32_t list_status(const fs_rules &rules, int32_t slots) {
    return rules.top_k > 0 && rules.top_k <= slots ? (uint32_t)rules.top_k << FS_DRAW_K : 0;
}

FS_DEVICE int32_t list_k(const fs_draw &draw) {
    return (int32_t)(draw.status >> FS_DRAW_K & 0xFF);
}

constexpr int LIST_SPREAD = 32;

/* How many tiles must have told their largest logits before row b has a floor: somewhat more than k, since of few more
 * the k-th is low; and for each of LIST_SPREAD rows another number, so that no CTA has to find many floors. 0: all of
 * them, and then each CTA finds those of a few rows. */
FS_DEVICE uint32_t list_need(const fs_draw &draw, int32_t b, int32_t slots) {
    const int32_t k = list_k(draw), least = k ? k + k / 4 + 16 : 32;
    return least + LIST_SPREAD <= slots ? (uint32_t)(least + b % LIST_SPREAD) : 0;
}

constexpr int LIST_LANES = 8; /* values a lane takes: up to 256 CTAs */
constexpr int LIST_BITS = 20; /* of a floor: more are not worth their time */

/* The k-th largest of the warp's values, rounded down; 0 if there are fewer above 0. */
FS_DEVICE uint32_t kth_largest(const uint32_t (&value)[LIST_LANES], int32_t slots, int32_t k) {
    uint32_t kth = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit >> (31 - LIST_BITS); bit >>= 1) {
        int32_t count = 0;
#pragma unroll
        for (int i = 0; i < LIST_LANES; i++)
            if (32 * i < slots) count += __popc(__ballot_sync(~0u, value[i] >= (kth | bit)));
        if (count >= k) kth |= bit;
    }
    return kth;
}

/* The least logit that min-p leaves beside one of `first`, or less. */
FS_DEVICE float min_p_floor(const fs_rules &rules, float first) {
    const double reach = rules.log_min_p / (double)rules.cut_scale;
    return (float)((double)first + reach - 1e-5 * (fabs((double)first) + fabs(reach)) - 1e-6 / (double)rules.cut_scale);
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
    const uint32_t kth = kth_largest(value, slots, k ? k : 1), none = ordered_float(-INFINITY);
    if (kth <= none) return none;
    if (k) return kth;
    return ordered_float(min_p_floor(rules_of_row(&args.batch, args.vocab, args.first_row + b), float_of_ordered(kth)));
}

#endif
