/* race.h - the score of one token in one draw: what every race, dense or sparse, on every backend compares. */
#ifndef FS_CORE_RACE_H
#define FS_CORE_RACE_H

#include "noise.h"
#include "rules.h"

/* l + noise. Temperature has divided the logit before the noise is added; greedy rows race without noise. */
FS_CORE double race_score(const fs_rules *rules, int32_t kind, fs_noise noise, uint32_t token, float y) {
    float l = y * rules->inverse_temperature;
    if (rules->greedy) return (double)y;
    if (kind == FS_NOISE_FAST) return (double)(l + noise_gumbel_fast(noise, token));
    return (double)l + noise_gumbel(noise, token);
}

#endif
