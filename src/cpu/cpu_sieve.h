/* cpu_sieve.h - logits that are looked at where they are computed, and never stored.
 *
 *   once a row has a winner  arm     above which logit, and which score of a marked token, a token of it still matters
 *   in the kernel            sift    16 rows side by side: sums against floors, marked tokens picked out, the tile thrown away
 *   after a block            settle  what was found enters races and lists, and raises floors
 *
 * Hardly a token can still matter then: one whose logit is in reach of the best score without a mark, one whose mark
 * makes up for its logit, one above the bound of the row's list. So 64 rows of 1,024 logits, 256 KB that W has washed
 * out of L2 before they are read again, become a few tokens, and nothing is done row by row
 * (docs/findings/cpu-draws.md, "no logit is stored"). Rows and calls that want more of their logits than this, blocks
 * with one that is not finite and blocks of which too much is found go the long way (fs_rows_absorb): the tokens drawn
 * are the same. */
#ifndef FS_CPU_SIEVE_H
#define FS_CPU_SIEVE_H

#include "core/mass.h"
#include "core/noise.h"
#include "cpu_rough.h"
#include "cpu_told.h"

#define FS_SIEVE_LANES 16
#define FS_SIEVE_SUMS 64 /* of a token, side by side: as many rows */
/* Tokens a row, on average, at most: 1 to 4 are usual, 80 of flat logits, 140 of the second block of nuclei. */
#define FS_SIEVE_FOUND 256

typedef struct fs_found {
    float y;
    int32_t place, row; /* place: in the block */
    int32_t prefix;     /* of its mark; -1: found by its logit, marked or not */
} fs_found;

/* Exact masses of a block (core/mass.h): lanes of 16 rows, which take in granules, and what these have been emptied into. */
typedef struct fs_weighing {
    float *scale;   /* logits times this are l; lanes without a row are not looked at */
    uint32_t *limb; /* [rows / 16, 3, 16] */
    int32_t *top;   /* 24 times each row's top limb */
    fs_mass *mass;
} fs_weighing;

/* A row's limbs are FS_SIEVE_LANES apart. */
FS_CORE uint32_t *weighing_lane(const fs_weighing *w, int32_t row) {
    return w->limb + row / FS_SIEVE_LANES * 3 * FS_SIEVE_LANES + row % FS_SIEVE_LANES;
}

/* A row has no mass, in limbs up to `top`. */
FS_CORE void weighing_start(const fs_weighing *w, int32_t row, int32_t top) {
    for (int j = 0; j < 3; j++) weighing_lane(w, row)[j * FS_SIEVE_LANES] = 0;
    w->mass[row] = mass_empty();
    mass_raise(&w->mass[row], top);
    w->top[row] = 24 * top;
}

/* A row's lane, which is 0 then, into its mass. */
FS_CORE void weighing_empty(const fs_weighing *w, int32_t row) {
    uint32_t *limb = weighing_lane(w, row);
    for (int j = 0; j < 3; j++) {
        w->mass[row].limb[j] += limb[j * FS_SIEVE_LANES];
        limb[j * FS_SIEVE_LANES] = 0;
    }
}

/* Makes `top`, which is above the row's, its top limb. */
FS_CORE void weighing_raise(const fs_weighing *w, int32_t row, int32_t top) {
    weighing_empty(w, row);
    mass_raise(&w->mass[row], top);
    w->top[row] = 24 * top;
}

/* Arrays are of the rows of a pass, up to a whole FS_SIEVE_LANES; lanes without a row find nothing. */
typedef struct fs_sieve {
    float *floor; /* a token is found if its logit is above this; INFINITY where no row is */
    float *
        scale; /* or if it has a mark and y * scale + noise is above reach, which is INFINITY where there is no noise */
    float *reach;
    float *bare;            /* above this it can win without a mark; floor is lower where the row's list wants more */
    const uint32_t **allow; /* bits of the tokens that may be found, or NULL */
    uint64_t *best;         /* the best score key that this task knows of, its own or another's: floors come from it */
    uint32_t *r0, *r1, *r2; /* names of draws, the last with the domain of marks */
    float *most, *max;      /* the largest logit of this block, and of all that were sifted */
    uint64_t *heard_bound, *heard_mass; /* what had been told at the last look; of scores `best` knows */
    float *per; /* rough masses: a rough_scale, and the sum of the block's terms; NULL: there are none */
    int32_t *unit;
    float *mass;
    double *weight, *worth; /* terms that are not in the row's mass yet, and how many of them shall be */
    fs_weighing exact[2];   /* of exp(l), and of exp(x); without arrays where there is none */
    float *sums;   /* [rows / 64, FS_NOISE_BLOCK, 64] of a noise block's tokens, until its marks are looked at */
    int64_t first; /* id of the block's first token, a multiple of FS_NOISE_BLOCK */
    fs_found *found;
    int32_t count, capacity;
    fs_told told;
    float *said;           /* of this task, see told_weigh */
    int32_t aside;         /* tiles are looked at between the products of the next one */
    int32_t begun;         /* a block has been tried */
    int32_t noisy;         /* some row has noise */
    int32_t armed;         /* floors are those of the rows' summaries */
    int32_t failed;        /* the block has to go the long way */
    int32_t pause, paused; /* blocks that go so after one that failed, twice as many each time; how many still do */
} fs_sieve;

FS_CORE void sieve_find(fs_sieve *sieve, float y, int32_t place, int32_t row, int32_t prefix) {
    const fs_found found = {y, place, row, prefix};
    const uint32_t *allow = sieve->allow[row];
    const int64_t id = sieve->first + place;
    if (allow && !(allow[id / 32] >> id % 32 & 1)) return;
    if (sieve->count == sieve->capacity) sieve->failed = 1;
    else sieve->found[sieve->count++] = found;
}

/* What marked tokens are screened with, in float: a prefix whose bits as a float are b has at most (151 - b 2^-23) ln 2 of noise, so it can
 * win only if y * scale - b 2^-23 ln 2 is above this. Slack is for roundings of numbers up to 105 and of sums near the floor. */
#define FS_MARK_SLOPE (-0x1p-23f * 0.693147181f)
FS_CORE float mark_floor(double floor) {
    const double t = floor + FS_NOISE_G - 151.0 * 0.6931471805599453;
    const double loose = t - (fabs(t) * 0x1p-21 + 1e-3);
    return loose > 3.4e38 ? 3.4e38f : loose < -3.4e38 ? -INFINITY : (float)loose;
}

FS_CORE int mark_passes(float y, float scale, uint32_t prefix, float floor) {
    const float bits = (float)(int32_t)float_bits((float)prefix);
    return y * scale + bits * FS_MARK_SLOPE > floor;
}

#endif
