/* cpu_race.h - one draw's race: who leads, and what that leaves a chance. */
#ifndef FS_CPU_RACE_H
#define FS_CPU_RACE_H

#include "core/race.h"
#include "core/summary.h"

#include <float.h>

/* One draw's race through one block. */
typedef struct fs_race {
    const fs_row_rules *rules;
    fs_noise noise;
    fs_winner *winner; /* [n], descending */
    int32_t n;         /* 1, or all samples without replacement */
    uint64_t shared;   /* a score key that another task has: what does not beat it is not looked at; or FS_KEY_NONE */
    double floor;      /* no token with l at or below this can win without a mark */
    struct fs_settle *settle; /* x and y are upper bounds, and whose bound could win is settled; NULL: they are exact */
} fs_race;

/* Whether a token with this score key, an upper bound that is above `best`, may wait. */
int fs_settle_later(struct fs_settle *settle, uint64_t key, uint64_t best);
/* The exact x and y of a token whose upper bounds they were; 0 if it is absent, or the row has been given up. */
int fs_settle_token(struct fs_settle *settle, uint32_t token, float *x, float *y);

/* No token with l at or below this beats a score without a mark. */
FS_CORE double floor_below(const fs_row_rules *rules, uint64_t key) {
    if (key == FS_KEY_NONE) return -INFINITY;
    /* Slack covers the last bits of log on any library and of this subtraction, and lets in who is equal and has a
     * lower id; a lower floor is slower, never wrong. Below +inf for the same reason. */
    double score = fmin(score_key_value(key), DBL_MAX);
    double reach = rules->greedy ? 0.0 : FS_NOISE_G + 1e-6;
    return score - reach - fabs(score) * 0x1p-50 - DBL_MIN;
}

FS_CORE void race_set_floor(fs_race *race) {
    const uint64_t own = race->winner[race->n - 1].key;
    race->floor = floor_below(race->rules, own > race->shared ? own : race->shared);
}

FS_CORE void race_offer(fs_race *race, uint32_t token, float x, float y, double noise) {
    fs_winner offer = {score_key((double)(y * race->rules->inverse_temperature) + noise, token), x, y};
    if (offer.key <= race->winner[race->n - 1].key) return;
    if (race->settle) {
        if (offer.key <= race->shared || fs_settle_later(race->settle, offer.key, race->winner[race->n - 1].key))
            return;
        if (!fs_settle_token(race->settle, token, &offer.x, &offer.y)) return;
        if (!(offer.y * race->rules->inverse_temperature > -INFINITY)) return;
        offer.key = score_key((double)(offer.y * race->rules->inverse_temperature) + noise, token);
        if (offer.key <= race->winner[race->n - 1].key) return;
    }
    winners_insert(race->winner, race->n, offer);
    race_set_floor(race);
}

/* A token that l gives a chance, as if it had no mark. marks_seen: whether one that has is somebody else's. */
FS_CORE void race_bare(fs_race *race, uint32_t token, float x, float y, int marks_seen) {
    const fs_words extension = noise_words(race->noise, token, FS_DOMAIN_EXTENSION);
    const double over = (double)(y * race->rules->inverse_temperature) - FS_NOISE_G;
    if (over + (double)noise_bare_ceiling(extension) <= race->floor) return;
    if (marks_seen && noise_prefix(race->noise, token) >= 0) return;
    race_offer(race, token, x, y, noise_gumbel_from(extension, -1));
}

#endif
