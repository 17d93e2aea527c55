/* cpu_filter.h - logits that are looked at where they are computed, and never stored.
 *
 *   once a row has a winner  criteria above which logit, and which score of a marked token, a token of it matters
 *   in the kernel            filter   16 rows side by side: sums against floors, marked tokens picked out; none is kept
 *   after a block            absorb   what was found enters races and lists, and raises floors
 *
 * Hardly a token can still matter then: one whose logit is in reach of the best score without a mark, one whose mark
 * makes up for its logit, one above the bound of the row's list. So 64 rows of 1,024 logits, 256 KB that W has washed
 * out of L2 before they are read again, become a few tokens, and nothing is done row by row
 * (docs/notes/cpu-draws.md, "no logit is stored"). Rows and calls that want more of their logits than this, blocks
 * with one that is not finite and blocks of which too much is found are stored (fs_rows_absorb): the tokens drawn are
 * the same. */
#ifndef FS_CPU_FILTER_H
#define FS_CPU_FILTER_H

#include "core/mass.h"
#include "core/noise.h"

#define FS_FILTER_LANES 16
#define FS_FILTER_SUMS 64 /* of a token, side by side: as many rows */
/* Tokens a row, on average, at most: 1 to 4 are usual, 80 of flat logits, 140 of the second block of nuclei. */
#define FS_FILTER_FOUND 256

typedef struct fs_found {
    float y;
    int32_t place, row; /* place: in the block */
    int32_t prefix;     /* of its mark; -1: found by its logit, marked or not */
} fs_found;

/* Exact masses of a block (core/mass.h): limbs in lanes of 16 rows, to which granules are added, and the masses that
 * these are flushed into. */
typedef struct fs_block_mass {
    float *scale;   /* logits times this are l; lanes without a row are not looked at */
    uint32_t *limb; /* [rows / 16, 3, 16] */
    int32_t *top;   /* 24 times each row's top limb */
    fs_mass *mass;
} fs_block_mass;

/* A row's limbs are FS_FILTER_LANES apart. */
FS_CORE uint32_t *block_mass_limbs(const fs_block_mass *w, int32_t row) {
    return w->limb + row / FS_FILTER_LANES * 3 * FS_FILTER_LANES + row % FS_FILTER_LANES;
}

/* A row has no mass, in limbs up to `top`. */
FS_CORE void block_mass_start(const fs_block_mass *w, int32_t row, int32_t top) {
    for (int j = 0; j < 3; j++) block_mass_limbs(w, row)[j * FS_FILTER_LANES] = 0;
    w->mass[row] = mass_empty();
    mass_raise(&w->mass[row], top);
    w->top[row] = 24 * top;
}

/* A row's limbs into its mass; then they are 0. */
FS_CORE void block_mass_flush(const fs_block_mass *w, int32_t row) {
    uint32_t *limb = block_mass_limbs(w, row);
    for (int j = 0; j < 3; j++) {
        w->mass[row].limb[j] += limb[j * FS_FILTER_LANES];
        limb[j * FS_FILTER_LANES] = 0;
    }
}

/* Makes `top`, which is above the row's, its top limb. */
FS_CORE void block_mass_raise(const fs_block_mass *w, int32_t row, int32_t top) {
    block_mass_flush(w, row);
    mass_raise(&w->mass[row], top);
    w->top[row] = 24 * top;
}

/* What a kernel is given. Arrays are of the rows of a pass, up to a whole FS_FILTER_LANES; lanes without a row find
 * nothing. */
typedef struct fs_filter {
    float *floor; /* a token is found if its logit is above this; INFINITY where no row is */
    float *scale,
        *reach; /* or if it has a mark and y * scale + noise is above reach; INFINITY where there is no noise */
    const uint32_t **allow; /* bits of the tokens that may be found, or NULL */
    uint32_t *r0, *r1, *r2; /* names of draws, the last with the domain of marks */
    float *most;            /* the largest logit of this block */
    float *per;             /* rough masses: a rough_scale, and the sum of the block's terms; NULL: there are none */
    int32_t *unit;
    float *mass;
    fs_block_mass exact[2]; /* of exp(l), and of exp(x); without arrays where there is none */
    float *sums;   /* [rows / 64, FS_NOISE_BLOCK, 64] of a noise block's tokens, until its marks are looked at */
    int64_t first; /* id of the block's first token, a multiple of FS_NOISE_BLOCK */
    fs_found *found;
    int32_t count, capacity;
    int32_t overlapped; /* tiles are looked at between the products of the next one */
    int32_t failed;     /* the block has to be stored */
    int32_t stores;     /* some row's logits go somewhere: */
    float **store;      /* where the block's do, on a cache line; NULL: nowhere */
    float **store_most; /* and the largest of each of its noise blocks */
} fs_filter;

FS_CORE void filter_find(fs_filter *filter, float y, int32_t place, int32_t row, int32_t prefix) {
    const fs_found found = {y, place, row, prefix};
    const uint32_t *allow = filter->allow[row];
    const int64_t id = filter->first + place;
    if (allow && !(allow[id / 32] >> id % 32 & 1)) return;
    if (filter->count == filter->capacity) filter->failed = 1;
    else filter->found[filter->count++] = found;
}

/* What marked tokens are tested with, in float: a prefix whose bits as a float are b has at most (151 - b 2^-23) ln 2
 * of noise, so it can win only if y * scale - b 2^-23 ln 2 is above this. Slack is for roundings of numbers up to 105
 * and of sums near the floor. */
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
