/* cut.cuh - min-p, top-k and top-p of a row whose entries are all there: core/cut.h without an order. */
#ifndef FS_CUDA_ROWS_CUT_CUH
#define FS_CUDA_ROWS_CUT_CUH

#include "cuda/device/weight.cuh"
#include "cuda/rows/logits.cuh"
#include "cuda/rows/select.cuh"

#include "core/cut.h"

/* exp(number) 2^-unit. The whole part of the exponent is split off first, so that it is as exact as the instruction. */
FS_DEVICE float exp_in_units(float number, float unit) {
    const float shift = 12582912.0f - unit; /* adding 1.5 2^23 rounds to an integer, held in the low bits */
    const float z = fmaxf(fmaf(number, 1.44269502f, shift), 12582912.0f - 100.0f), n = z - shift;
    const float f = fmaf(number, 1.92596299e-8f, fmaf(number, 1.44269502f, -n));
    return exp2_approximate(f) * __int_as_float((__float_as_int(z) << 23) + 0x3F800000);
}

/* Entries with keys of logits (select.cuh): what those of a row in memory and of a list have in common. */
struct logit_entries {
    int64_t size, likely;
    uint64_t least; /* only keys from here on */
    cut_scale units;
    float top, span; /* no value is above, or this far below it; but where it is further than matters */

    FS_DEVICE_MEMBER uint64_t weigh(uint64_t key) const { return units.weigh(order_key_logit(key)); }
    FS_DEVICE_MEMBER float value(uint64_t key) const { return order_key_logit(key); }
};

/* The tokens of a row. */
struct row_entries : logit_entries {
    const float *y;
    int32_t low;

    template <class F> FS_DEVICE_MEMBER void each(F f) const {
        /* Most are below the least logit, and need no key. */
        const float floor = least > 1 ? order_key_logit(least) : -INFINITY;
        each_value(y, (int32_t)size, [&](int32_t i, float v) {
            if (!(v >= floor) || v == -INFINITY) return;
            const uint64_t key = order_key(v, (uint32_t)(low + i));
            if (key >= least) f(key);
        });
    }

    /* The weight of all from the least logit on, without their keys: it is the weight of exp(l) to 2e-7. */
    FS_DEVICE_MEMBER uint64_t weight() const {
        const float floor = least > 1 ? order_key_logit(least) : -INFINITY, unit = (float)units.unit;
        double sum = 0.0;
        each_value(y, (int32_t)size, [&](int32_t, float v) {
            if (v >= floor) sum += (double)exp_in_units(v * units.scale, unit);
        });
        return (uint64_t)block_reduce(sum * 0x1p39, [](double a, double b) { return a + b; });
    }
    /* Of the tokens this thread looks at, ordered; 0: none. */
    FS_DEVICE_MEMBER uint32_t own_largest() const {
        float most = -INFINITY;
        each_value(y, (int32_t)size, [&](int32_t, float v) { most = fmaxf(most, v); });
        return most > -INFINITY ? ordered_float(most) : 0;
    }
    FS_DEVICE_MEMBER row_entries from(uint64_t key) const {
        row_entries e = *this;
        e.least = max(key, least);
        return e;
    }
};

/* Some of them, in shared memory. */
struct list_entries : logit_entries {
    const unsigned long long *key;

    FS_DEVICE_MEMBER uint32_t own_largest() const {
        unsigned long long most = 0;
        for (int64_t i = threadIdx.x; i < size; i += ROW_THREADS) most = max(most, key[i]);
        return (uint32_t)(most >> 32);
    }
    FS_DEVICE_MEMBER list_entries from(uint64_t first) const {
        list_entries e = *this;
        e.least = max(first, least);
        return e;
    }

    template <class F> FS_DEVICE_MEMBER void each(F f) const {
        for (int64_t i = threadIdx.x; i < size; i += ROW_THREADS)
            if (key[i] >= least) f(key[i]);
    }
};

template <class E> FS_DEVICE uint64_t weight_of(const E &entries) {
    uint64_t sum = 0;
    entries.each([&](uint64_t key) { sum += entries.weigh(key); });
    return block_sum(sum);
}

/* Of a row in memory by fewer instructions, where a key of the least logit is the least of all of that logit. */
FS_DEVICE uint64_t weight_of(const row_entries &entries) {
    if (entries.units.origin != 0.0f || (uint32_t)entries.least > 1) return weight_of<row_entries>(entries);
    return entries.weight();
}

/* The least key of a logit that `holds` is true of, which it is of all larger ones too; above all keys if of none. */
template <class F> FS_DEVICE uint64_t least_key(F holds) {
    uint32_t below = ordered_float(-INFINITY),
             from = ordered_float(INFINITY) + 1; /* not of below; of from, if at all */
#pragma unroll 1
    while (from - below > 1) {
        const uint32_t middle = below + (from - below) / 2;
        if (holds(float_of_ordered(middle))) from = middle;
        else below = middle;
    }
    return (uint64_t)from << 32;
}

/* With this flag all tokens whose logits equal the last one's stay too. */
FS_DEVICE uint64_t with_ties(uint64_t last, uint32_t flags, uint32_t flag) {
    return flags & flag ? last >> 32 << 32 : last;
}

/* Where the share top_p of a weight ends. Tokens that weigh less than a share 1 - top_p of it divided by their number
 * are beyond that end, all of them together. */
template <class E>
FS_DEVICE uint64_t top_p_from(select_room *room, const E &entries, float top_p, uint64_t weight, uint32_t flags) {
    const uint64_t mark = (uint64_t)ceil((double)top_p * (double)weight);
    const double least = 0.5 * (1.0 - (double)top_p) * (double)weight / (double)entries.size;
    const uint64_t from = least_key([&](float y) { return (double)entries.units.weigh(y) >= least; });
    const uint64_t last = select_last(room, entries.from(from), SELECT_ALL, mark ? mark : 1);
    return max(from, with_ties(last, flags, FS_KEEP_TIES_TOP_P));
}

/* What top-k has left, where it is so little, in shared memory. */
struct short_list {
    unsigned long long *key;
    uint32_t room, count; /* more than there is room for: the list is of no use */
};

/* What a row's rules make of its largest y. */
struct cut_keys {
    bool of_row, of_left; /* top-p of the whole row, or of what min-p and top-k leave */
    bool floor_last;      /* min-p comes after it */
    bool infinite;        /* all of the weight is at +inf */
    float top_p;
    uint64_t open, floor, there; /* the least keys that cuts look at; that min-p leaves; that can be drawn */
    uint64_t from;               /* where the other cuts begin */
};

FS_DEVICE cut_keys cut_keys_of(const fs_rules &rules, uint32_t flags, float first) {
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

/* The least key that survives all cuts. first: the largest y. A short list of all that top-k leaves is left to the
 * caller. */
template <class E>
FS_DEVICE uint64_t cut_row(select_room *room, const E &all, const fs_rules &rules, uint32_t flags, float first,
                           short_list *list) {
    const cut_keys keys = cut_keys_of(rules, flags, first);
    E left = all.from(keys.from);
    uint64_t cut = left.least;
    list->count = list->room + 1;
    if (rules.top_k > 0) {
        E most = left;
        if (rules.top_k <= ROW_THREADS && all.size > SELECT_FEW) {
            most = left.from(kth_of_threads(all.own_largest(), rules.top_k));
            most.likely = 0; /* hardly more than k */
        }
        cut =
            max(cut, with_ties(select_last(room, most, (uint64_t)rules.top_k, SELECT_ALL), flags, FS_KEEP_TIES_TOP_K));
        if (rules.top_k <= (int32_t)list->room) list->count = collect_from(left, cut, list->room, list->key);
    }
    if (keys.of_row)
        cut = max(cut, top_p_from(room, left, keys.top_p, keys.infinite ? 1 : weight_of(all.from(keys.open)), flags));
    if (keys.of_left && list->count <= list->room) {
        const list_entries few = {{list->count, list->count, 1, left.units, left.top, left.span}, list->key};
        cut = max(cut, top_p_from(room, few, keys.top_p, keys.infinite ? 1 : weight_of(few), flags));
    } else if (keys.of_left) {
        left = left.from(cut);
        cut = max(cut, top_p_from(room, left, keys.top_p, keys.infinite ? 1 : weight_of(left), flags));
    }
    if (keys.floor_last) cut = max(cut, keys.floor);
    return max(cut, keys.there);
}

#endif
