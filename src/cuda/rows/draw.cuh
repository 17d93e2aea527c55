/* draw.cuh - the draw of a row whose logits are in memory, from its tokens at or above a key. */
#ifndef FS_CUDA_ROWS_DRAW_CUH
#define FS_CUDA_ROWS_DRAW_CUH

#define FS_PHILOX_ROLLED
#define FS_WALK static __device__ __noinline__
#include "cuda/device/noise.cuh"
#include "cuda/rows/logits.cuh"

#include "core/race.h"

/* Who races, and with which noise. */
struct row_race {
    row_logits logits;
    const fs_rules *rules;
    int32_t kind; /* FS_NOISE_... */
    uint64_t last;
    fs_noise noise;

    const unsigned long long *list; /* all who race, `listed` order keys; NULL: the tokens of the row */
    uint32_t listed;

    __device__ __noinline__ fs_marks marks_at(uint32_t block) const { return marks_of(noise, block); }

    FS_DEVICE_MEMBER bool exact() const { return !rules->greedy && kind == FS_NOISE_EXACT; }

    /* Runs f(token, y, its block's marks) for the tokens that race: a warp has a block of the noise at a time. */
    template <class F> FS_DEVICE_MEMBER void each(F f) const {
        if (list) {
            for (uint32_t i = threadIdx.x; i < listed; i += ROW_THREADS) {
                const uint32_t token = order_key_token(list[i]);
                if (list[i] >= last) f(token, order_key_logit(list[i]), marks_at(token / FS_NOISE_BLOCK));
            }
            return;
        }
        const float inverse = rules->inverse_temperature;
        const int32_t lane = threadIdx.x % 32;
        for (int32_t block = logits.low / FS_NOISE_BLOCK + threadIdx.x / 32; block * FS_NOISE_BLOCK < logits.high;
             block += ROW_WARPS) {
            float four[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t token = block * FS_NOISE_BLOCK + 32 * e + lane;
                four[e] = logits.holds(token) ? logits.y[token - logits.low] : -INFINITY;
            }
            const fs_marks marks = exact() ? marks_at((uint32_t)block) : fs_marks{};
#pragma unroll
            for (int e = 0; e < 4; e++) { /* few instructions: f calls what is out of line */
                const int32_t token = block * FS_NOISE_BLOCK + 32 * e + lane;
                const float y = four[e];
                if (!(y > -INFINITY) || !(y * inverse > -INFINITY) || order_key(y, (uint32_t)token) < last) continue;
                f((uint32_t)token, y, marks);
            }
        }
    }

    /* The token's key; 0 if it is surely below `best`. Out of line: it is large, and needed in many places. */
    __device__ __noinline__ uint64_t key_of(uint32_t token, float y, const fs_marks &marks, uint64_t best) const {
        if (!exact()) return score_key(race_score(rules, kind, noise, token, y), token);
        const float l = y * rules->inverse_temperature;
        const int32_t prefix = mark_among(marks, noise, token);
        const float most = prefix < 0 ? FS_UNMARKED_CEILING : mark_ceiling((uint32_t)prefix);
        if (best && (double)l + (double)most < score_key_value(best)) return 0;
        return score_key((double)l + noise_gumbel_given(noise, token, prefix), token);
    }
};

/* Tokens of a row that the noise's marks do not single out: with at most FS_NOISE_G of noise, most cannot win, which
 * takes few instructions to see. Marks of MARKED blocks are found at once, a lane each. */
constexpr int MARKED = 16;

FS_DEVICE void race_blocks(const row_race &race, unsigned long long *best) {
    const row_logits &l = race.logits;
    const float inverse = race.rules->inverse_temperature,
                least = race.last > 1 ? order_key_logit(race.last) : -INFINITY;
    const int32_t lane = threadIdx.x % 32, end = (l.high + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK;
    auto offer = [&](int32_t token, float y, const fs_marks &marks) {
        if (!(y * inverse > -INFINITY) || order_key(y, (uint32_t)token) < race.last) return;
        const uint64_t known = *(volatile unsigned long long *)best,
                       key = race.key_of((uint32_t)token, y, marks, known);
        if (key > known) atomicMax(best, (unsigned long long)key);
    };
#pragma unroll 1
    for (int32_t first = l.low / FS_NOISE_BLOCK + (int32_t)(threadIdx.x / 32) * MARKED; first < end;
         first += ROW_WARPS * MARKED) {
        const fs_marks own = race.marks_at((uint32_t)(first + lane % MARKED));
#pragma unroll 1
        for (int32_t block = first; block < min(first + MARKED, end); block++) {
            float four[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t token = block * FS_NOISE_BLOCK + 32 * e + lane;
                four[e] = l.holds(token) ? l.y[token - l.low] : -INFINITY;
            }
            const int from = block - first;
            const fs_marks marks = {__shfl_sync(~0u, own.count, from),
                                    __shfl_sync(~0u, own.places, from),
                                    {__shfl_sync(~0u, own.prefixes[0], from), __shfl_sync(~0u, own.prefixes[1], from)}};
            const uint64_t known = *(volatile unsigned long long *)best;
            const float enough = known ? (float)score_key_value(known) - FS_UNMARKED_CEILING : -INFINITY;
            const float slack = 1e-5f + 1e-6f * fabsf(enough);
#pragma unroll 1
            for (int e = 0; e < 4; e++) {
                const float y = e == 0 ? four[0] : e == 1 ? four[1] : e == 2 ? four[2] : four[3];
                const int32_t place = 32 * e + lane;
                bool races = y >= least && !(y * inverse < enough - slack);
#pragma unroll
                for (int i = 0; i < 4; i++) races |= i < marks.count && (int32_t)mark_place(marks, i) == place;
                if ((races || marks.count < 0) && y >= least) offer(block * FS_NOISE_BLOCK + place, y, marks);
            }
        }
    }
}

/* The winner of one sample, in all threads. */
static __device__ __noinline__ uint64_t race_once(const row_race &race) {
    __shared__ unsigned long long best;
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    if (race.exact() && !race.list) race_blocks(race, &best);
    else
        race.each([&](uint32_t token, float y, const fs_marks &marks) {
            const uint64_t known = *(volatile unsigned long long *)&best;
            const uint64_t key = race.key_of(token, y, marks, known);
            if (key > known) atomicMax(&best, (unsigned long long)key);
        });
    __syncthreads();
    const uint64_t key = best;
    __syncthreads();
    return key;
}

/* All scores of a race as entries of a selection (select.cuh). */
struct scored_entries {
    const row_race *race;
    int64_t likely;
    float top, span;

    template <class F> FS_DEVICE_MEMBER void each(F f) const {
        race->each([&](uint32_t token, float y, const fs_marks &marks) { f(race->key_of(token, y, marks, 0)); });
    }
    FS_DEVICE_MEMBER uint64_t weigh(uint64_t) const { return 0; }
    FS_DEVICE_MEMBER float value(uint64_t key) const { return (float)score_key_value(key); }
};

#endif
