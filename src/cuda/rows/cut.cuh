/* cut.cuh - min-p, top-k and top-p of a row whose logits are all there: core/cut.h without an order. */
#ifndef FS_CUDA_ROWS_CUT_CUH
#define FS_CUDA_ROWS_CUT_CUH

#include "cuda/rows/masses.cuh"
#include "cuda/rows/select.cuh"

#include "core/cut.h"

/* ----------------------------------------------------------------------------------------------------- entries ---- */

/* The tokens of a slice from a key on, as entries of a selection (select.cuh). */
struct row_entries {
    row_slice y;
    int64_t size, likely; /* of the row */
    uint64_t least;       /* only keys from here on */
    cut_scale units;
    float top, span; /* no value is above, or this far below it; but where it is further than matters */

    FS_DEVICE_MEMBER uint64_t weigh(uint64_t key) const { return units.weigh(order_key_logit(key)); }
    FS_DEVICE_MEMBER float value(uint64_t key) const { return order_key_logit(key); }

    template <class F> FS_DEVICE_MEMBER void each(F f) const {
        each_from(y, least > 1 ? order_key_logit(least) : -INFINITY, [&](int32_t token, float v) {
            const uint64_t key = order_key(v, (uint32_t)token);
            if (key >= least) f(key);
        });
    }
    FS_DEVICE_MEMBER row_entries from(uint64_t key) const {
        row_entries e = *this;
        e.least = max(key, least);
        return e;
    }
};

/* Weights as they are, of entries from their least on. */
static __device__ __noinline__ uint64_t weight_of(const row_entries &entries) {
    uint64_t sum = 0;
    entries.each([&](uint64_t key) { sum += entries.weigh(key); });
    return team_sum(sum);
}

/* ------------------------------------------------------------------------------------------------------- rules ---- */

/* With this flag all tokens whose logits equal the last one's stay too. */
FS_DEVICE uint64_t with_ties(uint64_t last, uint32_t flags, uint32_t flag) {
    return flags & flag ? last >> 32 << 32 : last;
}

/* The share top_p of a weight: who has less before it stays, unless it weighs less than `least`. Tokens that do, a
 * share 1 - top_p of the weight divided by their number and more, are beyond the share's end, all of them together. */
struct nucleus {
    uint64_t mark;
    double least;

    FS_DEVICE_MEMBER nucleus(float top_p, uint64_t weight, int64_t size) {
        const uint64_t share = (uint64_t)ceil((double)top_p * (double)weight);
        mark = share ? share : 1;
        least = 0.5 * (1.0 - (double)top_p) * (double)weight / (double)size;
    }
    FS_DEVICE_MEMBER bool weighs_enough(uint64_t weight) const { return (double)weight >= least; }
};

/* Where the nucleus of some entries ends. */
FS_DEVICE uint64_t top_p_from(select_room *room, const row_entries &entries, float top_p, uint64_t weight,
                              uint32_t flags) {
    const nucleus n(top_p, weight, entries.size);
    const uint64_t from = least_key([&](float y) { return n.weighs_enough(entries.units.weigh(y)); });
    const uint64_t last = select_last(room, entries.from(from), SELECT_ALL, n.mark);
    return max(from, with_ties(last, flags, FS_KEEP_TIES_TOP_P));
}

/* What a row's rules make of its largest y. */
struct cut_keys {
    bool of_row, of_left; /* top-p of the whole row, or of what min-p and top-k leave */
    bool floor_last;      /* min-p comes after it */
    bool infinite;        /* all of the weight is at +inf */
    float top_p;
    uint64_t open, floor, there; /* the least keys that cuts look at; that min-p leaves; that can be drawn */
    uint64_t from;               /* where the other cuts begin */
};

FS_DEVICE cut_keys cut_keys_of(const fs_row_rules &rules, uint32_t flags, float first) {
    const float scale = rules.cut_scale, inverse = rules.inverse_temperature, number = first * scale;
    const double floor = (double)number + rules.log_min_p;
    cut_keys k;
    k.of_row = rules_top_p_of_row(&rules, flags);
    k.of_left = rules.top_p < 1.0f && !k.of_row;
    k.floor_last = k.of_left && (flags & FS_MIN_P_LAST) != 0;
    k.infinite = number == INFINITY;
    k.top_p = k.infinite ? 0.0f : rules.top_p;
    k.open = least_key([&](float y) { return y * scale > -INFINITY; });
    k.floor = least_key([&](float y) { return !((double)(y * scale) < floor); });
    k.there = least_key([&](float y) { return y * inverse > -INFINITY; });
    k.from = k.floor_last ? k.open : max(k.open, k.floor);
    return k;
}

/* The weight of a row from its least key that cuts look at on. */
FS_DEVICE uint64_t weight_of_row(const row_entries &all, uint64_t open) {
    if (all.units.origin != 0.0f) return weight_of(all.from(open));
    return team_sum(weight_of_slice(all.y, all.units, all.top - WEIGHED_NEAR / all.units.scale));
}

/* The least key that survives all cuts. first: the largest y; kth: a key that the top_k largest are not below, or 1. */
static __device__ __noinline__ uint64_t cut_row(select_room *room, const row_entries &all, const fs_row_rules &rules,
                                                uint32_t flags, float first, uint64_t kth) {
    const cut_keys keys = cut_keys_of(rules, flags, first);
    row_entries left = all.from(keys.from);
    uint64_t cut = left.least;
    if (rules.top_k > 0) {
        row_entries most = left.from(kth);
        if (kth > 1) most.likely = 0; /* hardly more than k */
        cut =
            max(cut, with_ties(select_last(room, most, (uint64_t)rules.top_k, SELECT_ALL), flags, FS_KEEP_TIES_TOP_K));
    }
    if (keys.of_row)
        cut = max(cut, top_p_from(room, left, keys.top_p, keys.infinite ? 1 : weight_of_row(all, keys.open), flags));
    if (keys.of_left) {
        left = left.from(cut);
        if (rules.top_k > 0 && rules.top_k <= SELECT_FEW) left.likely = rules.top_k;
        cut = max(cut, top_p_from(room, left, keys.top_p, keys.infinite ? 1 : weight_of(left), flags));
    }
    if (keys.floor_last) cut = max(cut, keys.floor);
    return max(cut, keys.there);
}

#endif
