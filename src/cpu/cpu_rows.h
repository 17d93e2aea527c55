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
void fs_rows_ask(const fs_call *call, const fs_lane *lane, fs_block block);

/* Absorbs one block of a row's dot products (or stored logits) into its summary. x [block_span] is overwritten. */
void fs_rows_absorb(const fs_call *call, const fs_isa *isa, const fs_lane *lane, const fs_scratch *scratch,
                    fs_block block, float *x, fs_summary *summary);

/* The same for blocks that are sifted (cpu_sieve.h), of a call for which fs_pass says so. `row` is the lane's place in the pass.
 *
 * Says what is to be found. 0 if the row is not ready for that, and the block has to go the long way. */
int fs_rows_arm(const fs_call *call, const fs_lane *lane, int32_t row, fs_summary *summary, fs_sieve *sieve);

/* What other tasks have told since. */
void fs_rows_hear(const fs_call *call, const fs_lane *lane, int32_t row, fs_summary *summary, fs_sieve *sieve);

/* A token that was found in the block, of this row. */
void fs_rows_settle(const fs_call *call, const fs_lane *lane, const fs_found *found, fs_summary *summary,
                    fs_sieve *sieve);

/* After a block of a sieve with masses. */
void fs_rows_weigh(const fs_call *call, const fs_scan *scan, const fs_lane *lane, fs_block block, int32_t row,
                   fs_summary *summary, fs_sieve *sieve);

/* After the last block. */
void fs_rows_close(const fs_call *call, const fs_lane *lane, int32_t row, const fs_sieve *sieve, fs_summary *summary);

#endif
