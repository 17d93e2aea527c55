/* select.cuh - where a prefix of a row's total order ends, without sorting the row.
 *
 * Entries are keys (core/key.h), larger first, each with a weight. Those stay that have fewer than `most` entries and
 * less than `mass` of weight before them. Bins of falling keys are counted and weighed, the one in which the prefix
 * ends is looked at more closely, until its entries are so few that each of them can look at all the others. Counts and
 * weights are integers: the result does not depend on who adds when. */
#ifndef FS_CUDA_SELECT_CUH
#define FS_CUDA_SELECT_CUH

#include "cuda/rows/block.cuh"

#include "core/key.h"

constexpr int SELECT_BINS = 2 * ROW_THREADS, SELECT_FEW = 512;
constexpr int SELECT_BITS = 11;
static_assert(SELECT_BINS == 1 << SELECT_BITS, "a power of two");
constexpr uint64_t SELECT_ALL = ~0ull; /* as `most` or `mass`: no limit */

struct select_room {
    union {
        struct {
            unsigned long long mass[SELECT_BINS];
            uint32_t count[SELECT_BINS];
        };
        struct {
            unsigned long long key[SELECT_FEW], weight[SELECT_FEW];
        };
    };
    uint32_t found, bin;
    unsigned long long last;
};

/* The bins of one look: by value, in equal steps down from the largest, or by key in steps of a power of two. */
struct select_bins {
    uint64_t low, high;
    float top, per_value;
    int shift; /* below 0: by value */

    template <class E> FS_DEVICE_MEMBER int at(const E &entries, uint64_t key) const {
        if (shift >= 0) return (int)((high - key) >> shift);
        return (int)fminf(fmaxf((top - entries.value(key)) * per_value, 0.0f), SELECT_BINS - 1.0f);
    }
};

/* Zero in every bin; then what entries inside [low, high] of a look put there. */
template <class E> FS_DEVICE void count_bins(select_room *room, const E &entries, const select_bins &bins, bool weigh) {
    for (int i = threadIdx.x; i < SELECT_BINS; i += ROW_THREADS) room->count[i] = 0, room->mass[i] = 0;
    __syncthreads();
    entries.each([&](uint64_t key) {
        if (key < bins.low || key > bins.high) return;
        const int bin = bins.at(entries, key);
        atomicAdd(&room->count[bin], 1u);
        if (weigh) atomicAdd(&room->mass[bin], (unsigned long long)entries.weigh(key));
    });
    __syncthreads();
}

/* The first bin with which the prefix is as long as it may be; SELECT_BINS: none. *count and *mass: what is before
 * it. */
FS_DEVICE int find_bin(select_room *room, uint64_t most, uint64_t mass, uint64_t *count, uint64_t *weight) {
    const int first = 2 * threadIdx.x;
    const uint64_t n0 = room->count[first], n1 = room->count[first + 1];
    const uint64_t m0 = room->mass[first], m1 = room->mass[first + 1];
    uint64_t n = *count + block_before(n0 + n1), m = *weight + block_before(m0 + m1);
    if (threadIdx.x == 0) room->bin = SELECT_BINS;
    __syncthreads();
    const bool ends0 = n + n0 >= most || m + m0 >= mass, ends1 = n + n0 + n1 >= most || m + m0 + m1 >= mass;
    if (ends0 || ends1) atomicMin(&room->bin, (uint32_t)(ends0 ? first : first + 1));
    __syncthreads();
    const int bin = (int)room->bin;
    __shared__ unsigned long long before[2];
    if (bin / 2 == (int)threadIdx.x) {
        before[0] = n + (bin % 2 ? n0 : 0);
        before[1] = m + (bin % 2 ? m0 : 0);
    }
    __syncthreads();
    if (bin < SELECT_BINS) *count = before[0], *weight = before[1];
    return bin;
}

/* Collects the entries of one bin, if they are few: how many there are, and the least and the largest of them. */
template <class E>
FS_DEVICE uint32_t collect(select_room *room, const E &entries, const select_bins &bins, int bin, uint64_t *low,
                           uint64_t *high) {
    if (threadIdx.x == 0) room->found = 0;
    __syncthreads();
    uint64_t least = ~0ull, largest = 0;
    entries.each([&](uint64_t key) {
        if (key < bins.low || key > bins.high || (bin >= 0 && bins.at(entries, key) != bin)) return;
        const uint32_t place = atomicAdd(&room->found, 1u);
        if (place < SELECT_FEW) room->key[place] = key;
        least = key < least ? key : least;
        largest = key > largest ? key : largest;
    });
    *low = block_min(least);
    *high = block_max(largest);
    return room->found;
}

/* The last of few entries that stays, each having looked at all others. */
template <class E>
FS_DEVICE uint64_t last_of_few(select_room *room, const E &entries, uint32_t few, uint64_t most, uint64_t mass,
                               uint64_t count, uint64_t weight) {
    if (threadIdx.x == 0) room->last = ~0ull;
    if (mass != SELECT_ALL)
        for (uint32_t i = threadIdx.x; i < few; i += ROW_THREADS) room->weight[i] = entries.weigh(room->key[i]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < few; i += ROW_THREADS) {
        const uint64_t key = room->key[i];
        uint64_t n = count, m = weight;
        for (uint32_t j = 0; j < few; j++) {
            if (room->key[j] <= key) continue;
            n++;
            if (mass != SELECT_ALL) m += room->weight[j];
        }
        if (n < most && m < mass) atomicMin(&room->last, key);
    }
    __syncthreads();
    const uint64_t last = room->last;
    __syncthreads();
    return last;
}

/* The least key of the k-th largest of the threads' logits, ordered, or less: if they are of different tokens, none of
 * the k largest keys is below it. 0: there are fewer. */
FS_DEVICE uint64_t kth_of_threads(uint32_t logit, int32_t k) {
    uint32_t kth = 0;
    for (uint32_t bit = 1u << 31; bit >= 1u << 8; bit >>= 1)
        if (__syncthreads_count(logit >= (kth | bit)) >= k) kth |= bit;
    return (uint64_t)kth << 32;
}

/* The key of the last entry that stays; 1 if all do. E: each(f) runs f(key) for this thread's entries; weigh(key);
 * value(key), a float that does not rise where the key falls; top and span: no value is above top, and those more than
 * span below it are taken together; likely: entries there are, as far as one knows. most and mass are at least 1. */
template <class E>
static __device__ __noinline__ uint64_t select_last(select_room *room, const E &entries, uint64_t most, uint64_t mass) {
    uint64_t count = 0, weight = 0;
    select_bins bins = {0, ~0ull, entries.top, entries.span > 0.0f ? (SELECT_BINS - 1) / entries.span : 0.0f, -1};
    int bin = -1;
    for (bool first = true;; first = false) {
        uint64_t least = 0, largest = ~0ull;
        if (!first || entries.likely <= SELECT_FEW) {
            const uint32_t found = collect(room, entries, bins, bin, &least, &largest);
            if (found <= SELECT_FEW) return last_of_few(room, entries, found, most, mass, count, weight);
            __syncthreads();
        }
        if (!first) {
            const int bits = 64 - __clzll((long long)(largest - least));
            bins = {least, largest, 0.0f, 0.0f, bits > SELECT_BITS ? bits - SELECT_BITS : 0};
        }
        count_bins(room, entries, bins, mass != SELECT_ALL);
        bin = find_bin(room, most, mass, &count, &weight);
        if (bin == SELECT_BINS) return 1;
    }
}

/* The keys of entries from `last` on, in no order, as many as there is room for; returns how many there are. */
template <class E>
FS_DEVICE uint32_t collect_from(const E &entries, uint64_t last, uint32_t room, unsigned long long *to) {
    __shared__ uint32_t found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    entries.each([&](uint64_t key) {
        if (key < last) return;
        const uint32_t place = atomicAdd(&found, 1u);
        if (place < room) to[place] = key;
    });
    __syncthreads();
    const uint32_t all = found;
    __syncthreads(); /* all have read before the next one begins */
    return all;
}

/* The same, at most `most`, in falling order into sorted[]. */
template <class E>
FS_DEVICE uint32_t sort_from(const E &entries, uint64_t last, uint32_t most, unsigned long long *scratch,
                             unsigned long long *sorted) {
    const uint32_t n = min(collect_from(entries, last, most, scratch), most);
    for (uint32_t i = threadIdx.x; i < n; i += ROW_THREADS) {
        uint32_t ahead = 0;
        for (uint32_t j = 0; j < n; j++) ahead += scratch[j] > scratch[i];
        sorted[ahead] = scratch[i];
    }
    __syncthreads();
    return n;
}

#endif
