/* select.cuh - where a prefix of a row's total order ends, without sorting the row.
 *
 * Entries are keys (core/key.h), larger first, each with a weight; every CTA of a team has some of them. Those stay
 * that have fewer than `most` entries and less than `mass` of weight before them. Bins of falling keys are counted and
 * weighed, the one in which the prefix ends is looked at more closely, until its entries are so few that each of them
 * can look at all the others. Counts and weights are integers: the result does not depend on who adds when. */
#ifndef FS_CUDA_SELECT_CUH
#define FS_CUDA_SELECT_CUH

#include "cuda/rows/block.cuh"

#include "core/key.h"

constexpr int SELECT_BITS = 10, SELECT_BINS = 1 << SELECT_BITS, SELECT_FEW = 512;
constexpr uint64_t SELECT_ALL = ~0ull; /* as `most` or `mass`: no limit */

struct select_room {
    union {
        struct {
            unsigned long long mass[SELECT_BINS];
            uint32_t count[SELECT_BINS];
        };
        struct {
            unsigned long long key[SELECT_FEW], all[SELECT_FEW], weight[SELECT_FEW]; /* own ones; the team's */
        };
    };
    uint32_t found, bin;
    unsigned long long last, before[2];
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

/* The bins of all CTAs together, in each of them. A CTA adds up a part of the bins, which no other looks at. */
FS_DEVICE void merge_bins(select_room *room) {
    const int32_t size = team_size();
    if (size == 1) return;
    const int part = SELECT_BINS / size;
    team_barrier();
    for (int i = threadIdx.x; i < part; i += blockDim.x) {
        const int bin = team_rank() * part + i;
        unsigned long long mass = 0;
        uint32_t count = 0;
        for (int32_t p = 0; p < size; p++) {
            mass += *at_peer(&room->mass[bin], p);
            count += *at_peer(&room->count[bin], p);
        }
        for (int32_t p = 0; p < size; p++) {
            *at_peer(&room->mass[bin], p) = mass;
            *at_peer(&room->count[bin], p) = count;
        }
    }
    team_barrier();
}

/* Zero in every bin; then what entries inside [low, high] of a look put there. */
template <class E> FS_DEVICE void count_bins(select_room *room, const E &entries, const select_bins &bins, bool weigh) {
    for (int i = threadIdx.x; i < SELECT_BINS; i += blockDim.x) room->count[i] = 0, room->mass[i] = 0;
    __syncthreads();
    entries.each([&](uint64_t key) {
        if (key < bins.low || key > bins.high) return;
        const int bin = bins.at(entries, key);
        atomicAdd(&room->count[bin], 1u);
        if (weigh) atomicAdd(&room->mass[bin], (unsigned long long)entries.weigh(key));
    });
    __syncthreads();
    merge_bins(room);
}

/* The first bin with which the prefix is as long as it may be; SELECT_BINS: none. *count and *mass: what is before
 * it. */
FS_DEVICE int find_bin(select_room *room, uint64_t most, uint64_t mass, uint64_t *count, uint64_t *weight) {
    const int share = SELECT_BINS / (int)blockDim.x, first = share * (int)threadIdx.x;
    uint64_t n = 0, m = 0;
    for (int i = first; i < first + share; i++) n += room->count[i], m += room->mass[i];
    n = *count + block_before(n), m = *weight + block_before(m);
    if (threadIdx.x == 0) room->bin = SELECT_BINS;
    __syncthreads();
    for (int i = first; i < first + share; i++) {
        const uint64_t n_with = n + room->count[i], m_with = m + room->mass[i];
        if (n_with >= most || m_with >= mass) {
            /* Who comes before writes last: all bins from the first on are long enough. */
            atomicMin(&room->bin, (uint32_t)i);
            break;
        }
        n = n_with, m = m_with;
    }
    __syncthreads();
    const int bin = (int)room->bin;
    if (bin / share == (int)threadIdx.x) room->before[0] = n, room->before[1] = m;
    __syncthreads();
    if (bin < SELECT_BINS) *count = room->before[0], *weight = room->before[1];
    __syncthreads(); /* before bins make room for keys */
    return bin;
}

/* Collects the entries of one bin, if they are few, from all CTAs in each: how many there are. If they are many, the
 * least and the largest of them. */
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
    __syncthreads();
    const uint32_t own = room->found, found = (uint32_t)team_sum(threadIdx.x == 0 ? own : 0);
    if (found > SELECT_FEW) {
        *low = team_min(least);
        *high = team_max(largest);
        return found;
    }
    uint32_t first = 0;
    for (int32_t p = 0; p < team_rank(); p++) first += *at_peer(&room->found, p);
    for (uint32_t i = threadIdx.x; i < own * (uint32_t)team_size(); i += blockDim.x)
        *at_peer(&room->all[first + i % own], (int32_t)(i / own)) = room->key[i % own];
    team_barrier();
    return found;
}

/* The last of few entries that stays, each having looked at all others. */
template <class E>
FS_DEVICE uint64_t last_of_few(select_room *room, const E &entries, uint32_t few, uint64_t most, uint64_t mass,
                               uint64_t count, uint64_t weight) {
    if (threadIdx.x == 0) room->last = ~0ull;
    if (mass != SELECT_ALL)
        for (uint32_t i = threadIdx.x; i < few; i += blockDim.x) room->weight[i] = entries.weigh(room->all[i]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < few; i += blockDim.x) {
        const uint64_t key = room->all[i];
        uint64_t n = count, m = weight;
        for (uint32_t j = 0; j < few; j++) {
            if (room->all[j] <= key) continue;
            n++;
            if (mass != SELECT_ALL) m += room->weight[j];
        }
        if (n < most && m < mass) atomicMin(&room->last, (unsigned long long)key);
    }
    __syncthreads();
    const uint64_t last = room->last;
    __syncthreads();
    return last;
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

/* The least logit, ordered, that `holds` is true of, which it is of all larger ones too; above all logits if of none.
 * Whole warps: each lane asks for a place of the interval. */
template <class F> FS_DEVICE uint32_t least_logit(F holds) {
    uint32_t below = ordered_float(-INFINITY),
             from = ordered_float(INFINITY) + 1; /* not of below; of from, if at all */
#pragma unroll 1
    while (from - below > 1) {
        const uint32_t step = (from - below + 32) / 33, mine = below + step * (threadIdx.x % 32 + 1);
        const uint32_t yes = __ballot_sync(~0u, mine >= from || holds(float_of_ordered(mine)));
        const uint32_t none = yes ? (uint32_t)__ffs((int)yes) - 1 : 32; /* lanes before the first that says so */
        if (yes) from = min(from, below + step * (none + 1));
        below += step * none;
    }
    return from;
}

/* ... as the least key of such a logit. */
template <class F> FS_DEVICE uint64_t least_key(F holds) {
    return (uint64_t)least_logit(holds) << 32;
}

#endif
