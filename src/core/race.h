/* race.h - the score of one token in one draw: what every race, dense or sparse, on every backend compares. */
#ifndef FS_CORE_RACE_H
#define FS_CORE_RACE_H

#include "noise.h"
#include "rules.h"

/* l + noise. Temperature has divided the logit before the noise is added; greedy rows race without noise. */
FS_CORE double race_score(const fs_row_rules *rules, int32_t kind, fs_noise noise, uint32_t token, float y) {
    float l = y * rules->inverse_temperature;
    if (rules->greedy) return (double)y;
    if (kind == FS_NOISE_FAST) return (double)(l + noise_gumbel_fast(noise, token));
    return (double)l + noise_gumbel(noise, token);
}

/* The score, or -inf if it is surely below `floor`: for most tokens that takes no logarithm. */
FS_CORE double race_score_from(const fs_row_rules *rules, int32_t kind, fs_noise noise, uint32_t token, float y,
                               double floor) {
    if (rules->greedy || kind == FS_NOISE_FAST) return race_score(rules, kind, noise, token, y);
    const double l = (double)(y * rules->inverse_temperature);
    const int32_t prefix = noise_prefix(noise, token);
    const double most = prefix < 0 ? FS_NOISE_G + 1e-6 : (double)noise_ceiling((uint32_t)prefix);
    if (l + most < floor) return -INFINITY;
    const fs_words extension = noise_words(noise, token, FS_DOMAIN_EXTENSION);
    if (prefix < 0 && l + (double)noise_bare_ceiling(extension) < floor) return -INFINITY;
    return l + noise_gumbel_from(extension, prefix);
}

#endif
