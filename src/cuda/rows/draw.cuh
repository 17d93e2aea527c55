/* draw.cuh - the draw of a row whose logits are in memory, from its tokens at or above a key.
 *
 *   marks --thread: a block of the noise and a sample--> tokens with much noise --+--> scored in float --> pending
 *   logits --near enough to the best score so far--> likely tokens --------------+
 *   pending tokens that are not overtaken --> exact scores --> the CTA's best --> the team's
 *
 * So a token that has no mark costs a comparison, noise is drawn for a few hundred, and exact scores, whose logarithms
 * in double take a microsecond, are of one or two. Some samples race at once. Tokens go from list to list: a thread
 * each, where those whose turn it is would keep the others of their warp waiting. */
#ifndef FS_CUDA_ROWS_DRAW_CUH
#define FS_CUDA_ROWS_DRAW_CUH

#define FS_PHILOX_ROLLED
#define FS_WALK static __device__ __noinline__
#include "cuda/device/noise.cuh"
#include "cuda/device/race.cuh"
#include "cuda/rows/logits.cuh"
#include "cuda/rows/select.cuh"

#include "core/race.h"

constexpr int RACES = 8, MARKED = 1024, LIKELY = 1024, PENDING = 512;

/* Tokens and samples: RACES token + sample. */
struct race_marked {
    uint32_t token_sample, prefix;
};

/* One that may win: its score is not above `most`. */
struct race_pending {
    uint32_t token_sample;
    float most;
};

struct race_room {
    fs_noise noise[RACES];
    unsigned long long best[RACES];                     /* score keys of the CTA's tokens */
    uint32_t bound[RACES];                              /* ordered floats: scores that are reached; 0: none */
    uint32_t marked_count, likely_count, pending_count; /* may be more than there is room for */
    union {
        race_marked marked[MARKED];
        uint32_t likely[LIKELY]; /* tokens */
    };
    race_pending pending[PENDING];
};

/* What the CTAs of a team tell each other. */
struct race_told {
    unsigned long long best[FS_CUDA_TEAM][RACES];
    uint32_t bound[FS_CUDA_TEAM][RACES];
};

/* Who races, and with which noise: samples first .. first + count - 1. In shared memory. */
struct row_race {
    row_slice y;
    uint64_t seed, position;
    uint32_t substream;
    float inverse, temperature;
    int32_t greedy, kind; /* FS_NOISE_... */
    float top;            /* largest l of the row */
    uint64_t last;        /* only keys from here on */
    int32_t first, count;

    FS_DEVICE_MEMBER bool has_noise() const { return !greedy && top < INFINITY; }
    FS_DEVICE_MEMBER bool is_exact() const { return has_noise() && kind == FS_NOISE_EXACT; }
    FS_DEVICE_MEMBER bool races(uint32_t token, float v) const {
        return v * inverse > -INFINITY && order_key(v, token) >= last;
    }
    FS_DEVICE_MEMBER float floor() const { return last > 1 ? order_key_logit(last) : -INFINITY; }
    FS_DEVICE_MEMBER fs_noise noise(int32_t s) const { return noise_row(seed, position, (uint32_t)s, substream); }
};

/* The first bytes of shared memory. Nothing is selected while tokens race. */
struct race_shared {
    block_room block;
    row_race race;
    race_told told;
    union {
        race_room room;
        select_room select;
    };
};

FS_DEVICE race_shared *race_of_block() {
    return (race_shared *)row_shared();
}

FS_DEVICE float reached(int32_t s) {
    return known_score(*(volatile uint32_t *)&race_of_block()->room.bound[s]);
}

FS_DEVICE void raise_best(unsigned long long *best, uint64_t key) {
    if (key > *(volatile unsigned long long *)best) atomicMax(best, (unsigned long long)key);
}

/* The exact score, race_score's of core/race.h. Out of line: it is large. */
static __device__ __noinline__ uint64_t exact_key(uint32_t token, float y, fs_noise noise) {
    const row_race &race = race_of_block()->race;
    const float l = y * race.inverse;
    if (race.greedy) return score_key((double)y, token);
    if (race.kind == FS_NOISE_FAST) return score_key((double)(l + noise_gumbel_fast(noise, token)), token);
    const fs_drawn drawn = draw_token(noise, token);
    const fs_words extension = {{drawn.word[0], drawn.word[1], 0, 0}};
    return score_key((double)l + noise_gumbel_from(extension, drawn.prefix), token);
}

/* A token that races, with what is drawn of it. */
FS_DEVICE void score_about(int32_t s, uint32_t token, float y, const fs_drawn &drawn) {
    const row_race &race = race_of_block()->race;
    race_room *room = &race_of_block()->room;
    const fs_score score = score_of(y * race.inverse, noise_about(drawn));
    if (score.most < reached(s)) return;
    atomicMax(&room->bound[s], ordered_float(score.least));
    const uint32_t at = atomicAdd(&room->pending_count, 1u);
    if (at < PENDING) room->pending[at] = {token * RACES + (uint32_t)s, score.most};
    else raise_best(&room->best[s], exact_key(token, y, room->noise[s]));
}

/* A token with a mark. */
FS_DEVICE void offer_marked(int32_t s, uint32_t token, uint32_t prefix) {
    const row_race &race = race_of_block()->race;
    const float y = race.y.at((int32_t)token), l = y * race.inverse;
    if (!race.races(token, y) || l + mark_ceiling(prefix) + score_slack(l) < reached(s)) return;
    const fs_words words = noise_words(race_of_block()->room.noise[s], token, FS_DOMAIN_EXTENSION);
    score_about(s, token, y, {(int32_t)prefix, {words.w[0], words.w[1]}});
}

/* A token that is likely; if it has a mark it has been offered. */
static __device__ __noinline__ void offer_likely(int32_t s, uint32_t token, float y) {
    const fs_drawn drawn = draw_token(race_of_block()->room.noise[s], token);
    if (drawn.prefix < 0) score_about(s, token, y, drawn);
}

/* Noise, and nobody ahead. */
FS_DEVICE void race_open() {
    const row_race &race = race_of_block()->race;
    race_room *room = &race_of_block()->room;
    const int32_t s = threadIdx.x;
    if (s < race.count) {
        room->noise[s] = race.noise(race.first + s);
        room->best[s] = 0;
        room->bound[s] = 0;
    }
    if (s == 0) room->marked_count = room->likely_count = room->pending_count = 0;
    __syncthreads();
}

/* Runs f(sample, block) for this thread's blocks of the slice. */
template <class F> FS_DEVICE void each_block(F f) {
    const row_race &race = race_of_block()->race;
    const int32_t blocks = race.y.blocks, first = race.y.base / FS_NOISE_BLOCK, count = race.count;
#pragma unroll 1
    for (int32_t s = 0, t = threadIdx.x; s < count; t -= blocks, s++)
#pragma unroll 1
        for (; t < blocks; t += blockDim.x) f(s, (uint32_t)(first + t));
}

FS_DEVICE void list_mark(race_room *room, int32_t s, uint32_t token, uint32_t prefix) {
    const uint32_t at = atomicAdd(&room->marked_count, 1u);
    if (at < MARKED) room->marked[at] = {token * RACES + (uint32_t)s, prefix};
}

/* The marks of a block that one call does not tell. */
static __device__ __noinline__ void walk_marks(race_room *room, int32_t s, uint32_t block) {
    fs_walk walk = noise_walk(room->noise[s], block);
    while (noise_next(&walk)) list_mark(room, s, walk.token, walk.prefix);
}

/* Lists tokens with marks; nobody's logit is needed for it. */
static __device__ __noinline__ void list_marks() {
    const row_race &race = race_of_block()->race;
    race_room *room = &race_of_block()->room;
    race_open();
    if (race.greedy || race.kind != FS_NOISE_EXACT) return;
    each_block([&](int32_t s, uint32_t block) {
        const fs_marks marks = marks_of(room->noise[s], block);
        if (marks.count < 0) walk_marks(room, s, block);
#pragma unroll 1
        for (int i = 0; i < marks.count; i++) {
            const uint32_t place = mark_place(marks, i);
            bool taken = false;
#pragma unroll 1
            for (int j = 0; j < i; j++) taken |= mark_place(marks, j) == place;
            if (!taken) list_mark(room, s, block * FS_NOISE_BLOCK + place, mark_prefix(marks, i));
        }
    });
}

/* Marks that were too many for their list, once more. */
static __device__ __noinline__ void race_all_marked() {
    each_block([&](int32_t s, uint32_t block) {
        fs_walk walk = noise_walk(race_of_block()->room.noise[s], block);
        while (noise_next(&walk)) offer_marked(s, walk.token, walk.prefix);
    });
}

/* Listed ones race. */
static __device__ __noinline__ void race_listed() {
    const row_race &race = race_of_block()->race;
    race_room *room = &race_of_block()->room;
    const uint32_t count = room->marked_count;
    if (count > MARKED) race_all_marked();
    else
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
            const race_marked m = room->marked[i];
            offer_marked((int32_t)(m.token_sample % RACES), m.token_sample / RACES, m.prefix);
        }
    __syncthreads();
}

/* The least l with which a token without a mark can still win. */
FS_DEVICE float likely_from(int32_t s) {
    const float enough = reached(s) - FS_UNMARKED_CEILING;
    return enough - (1e-5f + 1e-6f * fabsf(enough));
}

/* Tokens that need no mark to win: those whose logits are near the best score, and these with each sample's noise. */
FS_DEVICE void race_likely() {
    const row_race &race = race_of_block()->race;
    race_room *room = &race_of_block()->room;
    const float inverse = race.inverse;
    float enough = INFINITY;
    for (int32_t s = 0; s < race.count; s++) enough = fminf(enough, likely_from(s));
    enough *= race.temperature; /* as a y, with slack for both products */
    enough -= 1e-6f * fabsf(enough);
    if (!(enough < INFINITY)) enough = -INFINITY;
    each_from(race.y, fmaxf(enough, race.floor()), [&](int32_t token, float v) {
        if (!race.races((uint32_t)token, v)) return;
        const uint32_t at = atomicAdd(&room->likely_count, 1u);
        if (at < LIKELY) room->likely[at] = (uint32_t)token;
        else
            for (int32_t s = 0; s < race.count; s++) offer_likely(s, (uint32_t)token, v);
    });
    __syncthreads();
    const int32_t tasks = (int32_t)min(room->likely_count, (uint32_t)LIKELY) * race.count;
#pragma unroll 1
    for (int32_t t = threadIdx.x; t < tasks; t += blockDim.x) {
        const int32_t s = t % race.count;
        const uint32_t token = room->likely[t / race.count];
        const float v = race.y.at((int32_t)token);
        if (!(v * inverse < likely_from(s))) offer_likely(s, token, v);
    }
}

/* Exact scores of those that nobody has overtaken. */
FS_DEVICE void race_settle() {
    const row_race &race = race_of_block()->race;
    race_room *room = &race_of_block()->room;
    __syncthreads();
    const uint32_t count = min(room->pending_count, (uint32_t)PENDING);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        const race_pending p = room->pending[i];
        const int32_t s = (int32_t)(p.token_sample % RACES);
        const uint32_t token = p.token_sample / RACES;
        if (p.most < reached(s)) continue;
        raise_best(&room->best[s], exact_key(token, race.y.at((int32_t)token), room->noise[s]));
    }
}

/* Without noise all samples are the lowest of the largest tokens; with noise of another kind every token is scored. */
FS_DEVICE void race_all() {
    const row_race &race = race_of_block()->race;
    race_room *room = &race_of_block()->room;
    const float inverse = race.inverse;
    each_from(race.y, race.floor(), [&](int32_t token, float v) {
        const bool noisy = race.has_noise();
        if ((!noisy && v * inverse < race.top) || !race.races((uint32_t)token, v)) return;
#pragma unroll 1
        for (int32_t s = 0; s < race.count; s++)
            raise_best(&room->best[s], noisy ? exact_key((uint32_t)token, v, room->noise[s])
                                             : score_key((double)race.top, (uint32_t)token));
    });
}

/* The other CTAs are told which scores this one has reached; after a barrier it knows theirs. */
FS_DEVICE void tell_bounds() {
    race_shared *shared = race_of_block();
    const int32_t s = threadIdx.x % RACES, to = threadIdx.x / RACES;
    if (to < team_size() && s < shared->race.count)
        *at_peer(&shared->told.bound[team_rank()][s], to) = shared->room.bound[s];
}

FS_DEVICE void hear_bounds() {
    race_shared *shared = race_of_block();
    const int32_t s = threadIdx.x % RACES, of = threadIdx.x / RACES;
    if (of < team_size() && s < shared->race.count) atomicMax(&shared->room.bound[s], shared->told.bound[of][s]);
    __syncthreads();
}

/* Likewise the best of its tokens. */
FS_DEVICE void tell_best() {
    race_shared *shared = race_of_block();
    __syncthreads();
    const int32_t s = threadIdx.x % RACES, to = threadIdx.x / RACES;
    if (to < team_size() && s < shared->race.count)
        *at_peer(&shared->told.best[team_rank()][s], to) = shared->room.best[s];
}

/* After a barrier: the winner of a sample of this race. */
FS_DEVICE uint64_t winner_of(int32_t s) {
    const row_race &race = race_of_block()->race;
    unsigned long long key = 0;
#pragma unroll 1
    for (int32_t i = 0; i < team_size(); i++) key = max(key, race_of_block()->told.best[i][s]);
    return key;
}

/* The first half of a race, up to the first of its two barriers. */
FS_DEVICE void race_begin() {
    list_marks();
    __syncthreads();
    race_listed();
    tell_bounds();
    team_barrier();
}

/* The second half, between its barriers. */
static __device__ __noinline__ void race_end() {
    const row_race &race = race_of_block()->race;
    hear_bounds();
    if (race.is_exact()) {
        race_likely();
        race_settle();
    } else race_all();
    tell_best();
}

/* All scores of a race's first sample as entries of a selection (select.cuh). */
struct scored_entries {
    const row_race *race;
    fs_noise noise;
    int64_t likely;
    float top, span;

    template <class F> FS_DEVICE_MEMBER void each(F f) const {
        each_from(race->y, race->floor(), [&](int32_t token, float v) {
            if (race->races((uint32_t)token, v)) f(exact_key((uint32_t)token, v, noise));
        });
    }
    FS_DEVICE_MEMBER uint64_t weigh(uint64_t) const { return 0; }
    FS_DEVICE_MEMBER float value(uint64_t key) const { return (float)score_key_value(key); }
};

#endif
