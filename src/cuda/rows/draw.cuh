/* draw.cuh - the draw of a row whose logits are in memory, from its tokens at or above a key.
 *
 *   marks --thread: a block of the noise and a sample--> tokens with much noise --+--> scored in float --> pending
 *   logits --near enough to the best score so far--> likely tokens --------------+
 *   pending tokens that are not overtaken --> exact scores --> the CTA's best --> the team's
 *
 * So a token that has no mark costs a comparison, noise is drawn for a few hundred, and exact scores, whose logarithms
 * in double take a microsecond, are of one or two. Some samples race at once. */
#ifndef FS_CUDA_ROWS_DRAW_CUH
#define FS_CUDA_ROWS_DRAW_CUH

#define FS_PHILOX_ROLLED
#define FS_WALK static __device__ __noinline__
#include "cuda/device/noise.cuh"
#include "cuda/device/race.cuh"
#include "cuda/rows/logits.cuh"

#include "core/race.h"

constexpr int RACES = 8, LIKELY = 1024, PENDING = 1024;

/* A token that may win a sample's race: its score is not above `most`. */
struct race_pending {
    uint32_t token_sample; /* RACES token + sample */
    float most;
};

struct race_room {
    fs_noise noise[RACES];
    unsigned long long best[RACES]; /* score keys of the CTA's tokens */
    uint32_t bound[RACES];          /* ordered floats: scores that are reached; 0: none */
    uint32_t likely_count, pending_count;
    uint32_t likely[LIKELY]; /* tokens */
    race_pending pending[PENDING];
};

/* What the CTAs of a team tell each other. */
struct race_told {
    unsigned long long best[FS_CUDA_TEAM][RACES];
    uint32_t bound[FS_CUDA_TEAM][RACES];
};

/* Who races, and with which noise: samples first .. first + count - 1. */
struct row_race {
    row_slice y;
    const fs_rules *rules;
    int32_t kind;  /* FS_NOISE_... */
    float top;     /* largest l of the row */
    uint64_t last; /* only keys from here on */
    race_room *room;
    race_told *told;
    int32_t first, count;

    FS_DEVICE_MEMBER bool has_noise() const { return !rules->greedy && top < INFINITY; }
    FS_DEVICE_MEMBER bool is_exact() const { return has_noise() && kind == FS_NOISE_EXACT; }
    FS_DEVICE_MEMBER bool races(uint32_t token, float v) const {
        return v * rules->inverse_temperature > -INFINITY && order_key(v, token) >= last;
    }
    FS_DEVICE_MEMBER float floor() const { return last > 1 ? order_key_logit(last) : -INFINITY; }
    FS_DEVICE_MEMBER float reached(int32_t s) const { return known_score(*(volatile uint32_t *)&room->bound[s]); }
};

FS_DEVICE void raise_best(unsigned long long *best, uint64_t key) {
    if (key > *(volatile unsigned long long *)best) atomicMax(best, (unsigned long long)key);
}

/* The exact score, race_score's of core/race.h. Out of line: it is large. */
static __device__ __noinline__ uint64_t exact_key(const row_race &race, uint32_t token, float y,
                                                  const fs_noise &noise) {
    const float l = y * race.rules->inverse_temperature;
    if (race.rules->greedy) return score_key((double)y, token);
    if (race.kind == FS_NOISE_FAST) return score_key((double)(l + noise_gumbel_fast(noise, token)), token);
    const fs_drawn drawn = draw_token(noise, token);
    const fs_words extension = {{drawn.word[0], drawn.word[1], 0, 0}};
    return score_key((double)l + noise_gumbel_from(extension, drawn.prefix), token);
}

/* A token that races, with what is drawn of it. */
FS_DEVICE void score_about(const row_race &race, int32_t s, uint32_t token, float y, const fs_drawn &drawn) {
    race_room *room = race.room;
    const fs_score score = score_of(y * race.rules->inverse_temperature, noise_about(drawn));
    if (score.most < race.reached(s)) return;
    atomicMax(&room->bound[s], ordered_float(score.least));
    const uint32_t at = atomicAdd(&room->pending_count, 1u);
    if (at < PENDING) room->pending[at] = {token * RACES + (uint32_t)s, score.most};
    else raise_best(&room->best[s], exact_key(race, token, y, room->noise[s]));
}

/* A token with a mark. */
static __device__ __noinline__ void offer_marked(const row_race &race, int32_t s, uint32_t token, uint32_t prefix) {
    const float y = race.y.at((int32_t)token), l = y * race.rules->inverse_temperature;
    if (!race.races(token, y)) return;
    const float reached = race.reached(s);
    if (l + mark_ceiling(prefix) + score_slack(l) < reached) return;
    const fs_words words = noise_words(race.room->noise[s], token, FS_DOMAIN_EXTENSION);
    score_about(race, s, token, y, {(int32_t)prefix, {words.w[0], words.w[1]}});
}

/* A token that is likely; if it has a mark it has been offered. */
static __device__ __noinline__ void offer_likely(const row_race &race, int32_t s, uint32_t token, float y) {
    const fs_drawn drawn = draw_token(race.room->noise[s], token);
    if (drawn.prefix < 0) score_about(race, s, token, y, drawn);
}

/* The marks of a block that one call does not tell. */
static __device__ __noinline__ void walk_marks(const row_race &race, int32_t s, uint32_t block) {
    fs_walk walk = noise_walk(race.room->noise[s], block);
    while (noise_next(&walk)) offer_marked(race, s, walk.token, walk.prefix);
}

/* Noise, and nobody ahead. */
FS_DEVICE void race_open(const row_race &race) {
    race_room *room = race.room;
    const int32_t s = threadIdx.x;
    if (s < race.count) {
        const fs_rules &rules = *race.rules;
        room->noise[s] = noise_row(rules.seed, rules.position, (uint32_t)(race.first + s), rules.stream);
        room->best[s] = 0;
        room->bound[s] = 0;
    }
    if (s == 0) room->likely_count = room->pending_count = 0;
    __syncthreads();
}

/* Tokens with marks: a block and a sample for each thread. */
static __device__ __noinline__ void race_marked(const row_race &race) {
#pragma unroll 1
    for (int32_t t = threadIdx.x; t < race.y.blocks * race.count; t += blockDim.x) {
        const int32_t s = t / race.y.blocks;
        const uint32_t block = (uint32_t)(race.y.base / FS_NOISE_BLOCK + t % race.y.blocks);
        const fs_marks marks = marks_of(race.room->noise[s], block);
        if (marks.count < 0) walk_marks(race, s, block);
#pragma unroll 1
        for (int i = 0; i < marks.count; i++) {
            const uint32_t place = mark_place(marks, i);
            bool taken = false;
#pragma unroll 1
            for (int j = 0; j < i; j++) taken |= mark_place(marks, j) == place;
            if (!taken) offer_marked(race, s, block * FS_NOISE_BLOCK + place, mark_prefix(marks, i));
        }
    }
}

/* The least l with which a token without a mark can still win. */
FS_DEVICE float likely_from(const row_race &race, int32_t s) {
    const float enough = race.reached(s) - FS_UNMARKED_CEILING;
    return enough - (1e-5f + 1e-6f * fabsf(enough));
}

/* Tokens that need no mark to win: those whose logits are near the best score, and these with each sample's noise. */
static __device__ __noinline__ void race_likely(const row_race &race) {
    race_room *room = race.room;
    const float inverse = race.rules->inverse_temperature;
    float enough = INFINITY;
    for (int32_t s = 0; s < race.count; s++) enough = fminf(enough, likely_from(race, s));
    enough *= race.rules->temperature; /* as a y, with slack for both products */
    enough -= 1e-6f * fabsf(enough);
    if (!(enough < INFINITY)) enough = -INFINITY;
    each_from(race.y, fmaxf(enough, race.floor()), [&](int32_t token, float v) {
        if (!race.races((uint32_t)token, v)) return;
        const uint32_t at = atomicAdd(&room->likely_count, 1u);
        if (at < LIKELY) room->likely[at] = (uint32_t)token;
        else
            for (int32_t s = 0; s < race.count; s++) offer_likely(race, s, (uint32_t)token, v);
    });
    __syncthreads();
    const int32_t tasks = (int32_t)min(room->likely_count, (uint32_t)LIKELY) * race.count;
#pragma unroll 1
    for (int32_t t = threadIdx.x; t < tasks; t += blockDim.x) {
        const int32_t s = t % race.count;
        const uint32_t token = room->likely[t / race.count];
        const float v = race.y.at((int32_t)token);
        if (!(v * inverse < likely_from(race, s))) offer_likely(race, s, token, v);
    }
}

/* Exact scores of those that nobody has overtaken. */
FS_DEVICE void race_settle(const row_race &race) {
    race_room *room = race.room;
    __syncthreads();
    const uint32_t count = min(room->pending_count, (uint32_t)PENDING);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        const race_pending p = room->pending[i];
        const int32_t s = (int32_t)(p.token_sample % RACES);
        const uint32_t token = p.token_sample / RACES;
        if (p.most < race.reached(s)) continue;
        raise_best(&room->best[s], exact_key(race, token, race.y.at((int32_t)token), room->noise[s]));
    }
}

/* Without noise all samples are the lowest of the largest tokens; with noise of another kind every token is scored. */
FS_DEVICE void race_all(const row_race &race) {
    race_room *room = race.room;
    const float inverse = race.rules->inverse_temperature;
    each_from(race.y, race.floor(), [&](int32_t token, float v) {
        const bool noisy = race.has_noise();
        if ((!noisy && v * inverse < race.top) || !race.races((uint32_t)token, v)) return;
#pragma unroll 1
        for (int32_t s = 0; s < race.count; s++)
            raise_best(&room->best[s], noisy ? exact_key(race, (uint32_t)token, v, room->noise[s])
                                             : score_key((double)race.top, (uint32_t)token));
    });
}

/* The other CTAs are told which scores this one has reached... */
FS_DEVICE void tell_bounds(const row_team &team, const row_race &race) {
    __syncthreads();
    const int32_t s = threadIdx.x % RACES, to = threadIdx.x / RACES;
    if (to < team.size && s < race.count) *at_peer(team, &race.told->bound[team.rank][s], to) = race.room->bound[s];
}

/* ... and after a barrier it knows theirs. */
FS_DEVICE void hear_bounds(const row_team &team, const row_race &race) {
    const int32_t s = threadIdx.x % RACES, of = threadIdx.x / RACES;
    if (of < team.size && s < race.count) atomicMax(&race.room->bound[s], race.told->bound[of][s]);
    __syncthreads();
}

/* Likewise the best of its tokens. */
FS_DEVICE void tell_best(const row_team &team, const row_race &race) {
    __syncthreads();
    const int32_t s = threadIdx.x % RACES, to = threadIdx.x / RACES;
    if (to < team.size && s < race.count) *at_peer(team, &race.told->best[team.rank][s], to) = race.room->best[s];
}

/* After a barrier: the winner of a sample of this race. */
FS_DEVICE uint64_t winner_of(const row_team &team, const row_race &race, int32_t s) {
    unsigned long long key = 0;
    for (int32_t i = 0; i < team.size; i++) key = max(key, race.told->best[i][s]);
    return key;
}

/* The first half of a race, before its first barrier. */
static __device__ __noinline__ void race_begin(const row_team &team, const row_race &race) {
    race_open(race);
    if (race.is_exact()) race_marked(race);
    tell_bounds(team, race);
}

/* The second half, between its barriers. */
static __device__ __noinline__ void race_end(const row_team &team, const row_race &race) {
    hear_bounds(team, race);
    if (race.is_exact()) {
        race_likely(race);
        race_settle(race);
    } else race_all(race);
    tell_best(team, race);
}

/* All scores of a race's first sample as entries of a selection (select.cuh). */
struct scored_entries {
    const row_race *race;
    fs_noise noise;
    int64_t likely;
    float top, span;

    template <class F> FS_DEVICE_MEMBER void each(F f) const {
        each_from(race->y, race->floor(), [&](int32_t token, float v) {
            if (race->races((uint32_t)token, v)) f(exact_key(*race, (uint32_t)token, v, noise));
        });
    }
    FS_DEVICE_MEMBER uint64_t weigh(uint64_t) const { return 0; }
    FS_DEVICE_MEMBER float value(uint64_t key) const { return (float)score_key_value(key); }
};

#endif
