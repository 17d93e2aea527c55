/* entropy.h - the sums of a row's entropy, -sum p log p: like masses (mass.h) they do not depend on the order of
 * addition, so that an entropy is bit for bit the same for any blocks and threads.
 *
 * Let a granule's largest exponent be e, so that a token's exp(l) is t 2^e and l = e log 2 + FS_ENTROPY_ROOM - d with d
 * above 0. With M the mass of the row and A = 24 (top + 1) powers of two, which no token reaches, the entropy is
 *
 *     log M - (sum of exp(l) l) / M  =  log(M / 2^A) + log 2 * mean(A - e) + mean(d) - FS_ENTROPY_ROOM
 *
 * No term is below 0 but for the first, and none is large: nothing is lost where logits are. A - e is an integer below
 * 128. Its sum has a limb for every limb of the mass, and a limb that the mass drops takes its part along. */
#ifndef FS_CORE_ENTROPY_H
#define FS_CORE_ENTROPY_H

#include "mass.h"

/* More than any rest of exp_reduce, which is log(2) / 2 and rounding. */
#define FS_ENTROPY_ROOM 0.375f

typedef struct fs_entropy {
    fs_mass mass;     /* of exp(l) */
    uint64_t down[3]; /* limbs of the sum of exp(l) (A - e), beside those of the mass */
    fs_mass below;    /* of exp(l) d */
} fs_entropy;

FS_CORE fs_entropy entropy_empty(void) {
    const fs_entropy empty = {mass_empty(), {0, 0, 0}, mass_empty()};
    return empty;
}

/* mass_raise: all that stays is further below the new top. */
FS_CORE void entropy_raise(fs_entropy *s, int32_t top) {
    const int32_t by = top - s->mass.top;
    if (by <= 0) return;
    const uint64_t *limb = s->mass.limb;
    for (int32_t i = 2; i >= 0; i--) s->down[i] = by <= i ? s->down[i - by] + 24 * (uint64_t)by * limb[i - by] : 0;
    mass_raise(&s->mass, top);
}

/* Adds a granule: its sums of t and of t d, times 2^exponent. */
FS_CORE void entropy_add(fs_entropy *s, float sum, float below, int32_t exponent) {
    if (!(sum > 0.0f)) return;
    const fs_mass_part part = mass_part(sum, exponent);
    entropy_raise(s, mass_part_top(&part));
    const uint64_t down = (uint64_t)(24 * (s->mass.top + 1) - exponent);
    for (int32_t i = 0; i < 3; i++) s->down[i] += mass_part_limb(&part, s->mass.top - i) * down;
    mass_add(&s->mass, sum, exponent);
    mass_add(&s->below, below, exponent);
}

FS_CORE void entropy_merge(fs_entropy *into, const fs_entropy *from) {
    fs_entropy raised = *from;
    if (mass_is_empty(&from->mass)) return;
    entropy_raise(into, from->mass.top);
    entropy_raise(&raised, into->mass.top);
    for (int32_t i = 0; i < 3; i++) into->down[i] += raised.down[i];
    mass_merge(&into->mass, &from->mass);
    mass_merge(&into->below, &from->below);
}

/* One granule, in the order of mass_add_granule. l[16]; absent ids are -inf. */
FS_CORE void entropy_add_granule(fs_entropy *s, const float *l) {
    float t[FS_GRANULE], d[FS_GRANULE];
    int32_t exponent[FS_GRANULE], most = INT32_MIN;
    for (int i = 0; i < FS_GRANULE; i++) d[i] = exp_reduce(l[i], &exponent[i]);
    for (int i = 0; i < FS_GRANULE; i++) most = exponent[i] > most ? exponent[i] : most;
    for (int i = 0; i < FS_GRANULE; i++) {
        const float scaled = exp_scaled(exp_near_zero(d[i]), exponent[i] - most);
        t[i] = l[i] > -INFINITY ? scaled : 0.0f;
        d[i] = t[i] * ((float)(most - exponent[i]) * 0.69314718f + (FS_ENTROPY_ROOM - d[i]));
    }
    for (int i = 0; i < 8; i++) t[i] += t[i + 8], d[i] += d[i + 8];
    for (int i = 0; i < 4; i++) t[i] += t[i + 4], d[i] += d[i + 4];
    for (int i = 0; i < 2; i++) t[i] += t[i + 2], d[i] += d[i + 2];
    entropy_add(s, t[0] + t[1], d[0] + d[1], most);
}

/* The entropy, not below 0; of no mass NaN. */
FS_CORE double entropy_of(const fs_entropy *s) {
    const double mass = mass_scaled(&s->mass);
    const double down = ((double)s->down[0] * 16777216.0 + (double)s->down[1]) * 16777216.0 + (double)s->down[2];
    const double below = ldexp(mass_scaled(&s->below), 24 * (s->below.top - s->mass.top));
    if (mass_is_empty(&s->mass)) return NAN;
    const double entropy = log(mass) + (down / mass - 72.0) * 0.69314718055994530942 +
                           (below / mass - (double)FS_ENTROPY_ROOM);
    return entropy > 0.0 ? entropy : 0.0;
}

#endif
