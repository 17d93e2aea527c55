/* cpu_rows.h - one row meets one block of logits: transform, noise, reduce. */
#ifndef FS_CPU_ROWS_H
#define FS_CPU_ROWS_H

#include "cpu_isa.h"

#include "core/ask.h"

/* What one active row brings to every block. */
typedef struct fs_lane {
    int64_t b;       /* row of the batch */
    fs_noise *noise; /* [samples] */
    uint64_t *edit;  /* [edits] (token << 32 | entry), ascending */
    int64_t edits;
    uint64_t *count; /* [counts] likewise, of the slot's sparse counts */
    int64_t counts;
    uint64_t *watch; /* [watches] (token << 32 | place in the row's watched tokens), ascending */
    int64_t watches;
    double nucleus; /* the list is narrowed to this share of the mass; 0: it is not */
    int32_t listed; /* its list by y is looked at: a row without cuts needs none, whatever its neighbours ask for */
} fs_lane;

/* Scratch of one task; everything is one block long. */
typedef struct fs_scratch {
    float *y;
    int32_t *count;
    float *granule; /* maxima of granules */
} fs_scratch;

/* A block: ids [first, first + n), at most one block long. Logits lie at x[first % FS_GRANULE ...], so that granules are aligned
 * to global ids; the places around them up to whole granules are scratch. No id is at or above the vocabulary. */
typedef struct fs_block {
    int64_t first;
    int64_t n;
} fs_block;

FS_CORE int64_t block_lead(fs_block block) {
    return block.first % FS_GRANULE;
}

/* Places of x that whole granules cover. */
FS_CORE int64_t block_span(fs_block block) {
    return (block_lead(block) + block.n + FS_GRANULE - 1) / FS_GRANULE * FS_GRANULE;
}

/* Asks memory for what absorbing a block will find far away: the row's bits of a mask, a line for 512 tokens. */
void fs_rows_fetch(const fs_call *call, const fs_lane *lane, fs_block block);

/* What a task has heard from others about a row. */
typedef struct fs_heard {
    uint64_t best;   /* a score key, see fs_race; or FS_KEY_NONE */
    double log_mass; /* of a task's mass, the largest; NaN: unknown */
} fs_heard;

/* Absorbs one block of a row's dot products (or stored logits) into its summary. x [block_span] is overwritten. */
void fs_rows_absorb(const fs_call *call, const fs_isa *isa, const fs_lane *lane, const fs_scratch *scratch,
                    fs_block block, float *x, fs_heard heard, fs_summary *summary);

/* The bits of row b's allowed tokens, or NULL. */
const uint32_t *fs_rows_allowed(const fs_call *call, int64_t b);

FS_CORE int bit_of(const uint32_t *words, int64_t id) {
    return (int)(words[id >> 5] >> (id & 31) & 1);
}

/* The share of a task's mass that its list must have for the row's nucleus, as far as it can be told after this block. ids: as
 * many of its ids that mass is of, or fewer. Two guesses; the cut is proven or not in the end all the same.
 *
 * By its own mass: a token is dropped if all that are no larger have, in proportion of the ids to come, less than a share of 1 - nucleus of
 * the mass: with a share m of the ids so far above it and k times as many ids in all, (1 - m) k <= (1 - nucleus) (m + (1 - m) k).
 *
 * By another task's, if that is known to be large (NaN: unknown), as of who has met the frequent tokens: of what a nucleus leaves out of
 * it, each id may drop its part, and half of that is. */
double fs_rows_share(const fs_call *call, const fs_lane *lane, fs_block block, int64_t ids, const fs_mass *mass,
                     double log_mass);

#endif
