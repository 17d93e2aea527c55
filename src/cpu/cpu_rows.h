/* cpu_rows.h - one row and one block of logits: transform, noise, reduce. */
#ifndef FS_CPU_ROWS_H
#define FS_CPU_ROWS_H

#include "cpu/kernels/cpu_isa.h"

#include "core/needs.h"

/* A row's logits in memory. */
typedef struct fs_stored {
    float *y;    /* from the granule of the head's first token on, on a cache line; NULL: they are not kept */
    float *most; /* the largest of each noise block of them */
} fs_stored;

/* What one active row brings to every block. */
typedef struct fs_active_row {
    int64_t b;       /* row of the batch */
    fs_noise *noise; /* [samples] */
    uint64_t *edit;  /* [edits] (token << 32 | entry), ascending */
    int64_t edits;
    const float *edit_bias; /* [edits] by entry */
    uint64_t *count;        /* [counts] likewise: entries of the slot's sparse counts, then the row's extra tokens */
    int64_t counts, extras;
    const int32_t *count_value; /* [counts - extras] by entry; an extra token counts once */
    uint64_t *watch;            /* [watches] (token << 32 | place in the row's watched tokens), ascending */
    int64_t watches, watched;   /* watched: those of the rows before */
    double rare;      /* tokens with less than this share of the mass, as a log, are not listed; -inf: all are */
    double near;      /* log of min-p: tokens that far below the largest logit are not listed; -inf: all are */
    int32_t listed;   /* its list by y is looked at: a row without cuts needs none, whatever its neighbours ask for */
    fs_stored stored; /* where its logits y are kept, if they are (cpu_stored.h) */
    int32_t known;    /* its race and its mass are known from an earlier pass, only its logits are not */
} fs_active_row;

/* Scratch of one task; everything is one block long. */
typedef struct fs_scratch {
    float *y;
    int32_t *count;
    float *granule; /* maxima of granules */
} fs_scratch;

/* A block: ids [first, first + n), at most one block long. Logits lie at x[first % FS_GRANULE ...], so that granules
 * are aligned to global ids; the places around them up to whole granules are scratch. No id is at or above the
 * vocabulary. */
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

/* The place of an id among a row's stored logits, and that of its noise block. */
FS_CORE int64_t stored_place(const fs_head *head, int64_t id) {
    return id - head->first_token / FS_GRANULE * FS_GRANULE;
}

FS_CORE int64_t stored_block(const fs_head *head, int64_t id) {
    return id / FS_NOISE_BLOCK - head->first_token / FS_NOISE_BLOCK;
}

/* Asks memory for what absorbing a block will find far away: the row's bits of a mask, a line for 512 tokens. */
void fs_rows_fetch(const fs_call *call, const fs_active_row *active, fs_block block);

/* A row's shared bounds (cpu_shared.h), as a task has read them. */
typedef struct fs_shared_row {
    uint64_t best;   /* a score key, see fs_race; or FS_KEY_NONE */
    double log_mass; /* -inf: none */
} fs_shared_row;

/* Absorbs one block of a row's dot products (or stored logits) into its summary. x [block_span] is overwritten. */
void fs_rows_absorb(const fs_call *call, const fs_isa *isa, const fs_active_row *active, const fs_scratch *scratch,
                    fs_block block, float *x, fs_shared_row shared, fs_summary *summary);

/* What it takes to compute one token's logit of a row. */
typedef struct fs_settle {
    const fs_call *call;
    const fs_active_row *active;
    const fs_scratch *scratch;
    const fs_kernel *kernel;
    const fs_matrix *weights;
    const fs_hidden *hidden; /* of the row alone */
    fs_summary *summary;
    fs_list bounds;     /* upper bounds that may belong into the row's list, the largest of this task */
    int64_t dots, most; /* so far; with more than `most` the row is given up */
    uint64_t lead;      /* the largest upper bound of a score so far, which is settled at once; */
    fs_list later;      /* the others wait, by their keys, and most for ever; without capacity none does */
} fs_settle;

FS_CORE int settle_gave_up(const fs_settle *settle) {
    return settle->dots > settle->most;
}

/* Settles what waits, largest bound first, until none is above the best score. settle [tasks], `apart` places from each
 * other, are of one row; winner is that of all tasks. */
void fs_rows_settle_later(fs_settle *settle, int32_t tasks, int64_t apart, fs_winner *winner);

/* Settles bounds of the row's list, the largest first, until none is above what the list has to have. A row that had
 * more such bounds than there was room for is given up. */
void fs_rows_settle_list(const fs_isa *isa, fs_settle *settle, int32_t tasks, int64_t apart);

/* Absorbs one block of upper bounds of a row's dot products: tokens that could win by them are settled. */
void fs_rows_settle(const fs_isa *isa, fs_settle *settle, fs_block block, float *x, uint64_t shared);

/* Races the tokens of a stretch of logits y for one of a row's samples. y begins with id `base`, a multiple of
 * FS_GRANULE, as `span` is; its NaN become -inf. */
void fs_rows_race(const fs_call *call, const fs_isa *isa, const fs_active_row *active, const fs_scratch *scratch,
                  int32_t sample, float *y, int64_t base, int64_t span, fs_winner *winner);

/* The mass of a block of whole granules before it is absorbed, where logits are dot products as they are. Its NaN
 * become -inf, which the summary's flags say; nothing else is taken yet. */
fs_mass fs_rows_mass(const fs_call *call, const fs_isa *isa, const fs_active_row *active, const fs_scratch *scratch,
                     fs_block block, float *x, fs_summary *summary);

/* The bits of row b's allowed tokens, or NULL. */
const uint32_t *fs_rows_allowed(const fs_call *call, int64_t b);

FS_CORE int bit_of(const uint32_t *words, int64_t id) {
    return (int)(words[id >> 5] >> (id & 31) & 1);
}

/* The bound that mass gives a row's list: the log of all that it has, or of some of it. FS_KEY_NONE: none.
 *
 * Which tokens are in a nucleus is known only when all masses are. But one that needs tokens with less than
 * (1 - top_p) / n of the mass has, as a rule, more than n of them, and no list of n entries proves it: so those are
 * not listed. Masses only grow: what some of one gives is below what all of it gives, and nobody has to guess. Whether
 * the cut is proven shows in the end (docs/notes/cpu-lists.md). */
FS_CORE uint64_t rows_bound(const fs_active_row *active, const fs_row_rules *rules, double log_mass) {
    const double y = (log_mass + active->rare) / (double)rules->inverse_temperature;
    if (!(fabs(log_mass) <= (double)FS_EXP_EXACT) || !(fabs(y) < 1e30)) return FS_KEY_NONE;
    return order_key_behind((float)y);
}

/* The bound that min-p gives a row's list by the largest logit so far, which only grows. It leaves room for how the
 * cut itself rounds. FS_KEY_NONE: none, as where l overflows: then every token whose l does survives. */
FS_CORE uint64_t rows_near(const fs_active_row *active, const fs_row_rules *rules, float largest) {
    const double y = (double)largest + active->near / (double)rules->cut_scale;
    if (!(fabs(y) < 1e30) || !(largest * rules->cut_scale < INFINITY)) return FS_KEY_NONE;
    return order_key_behind((float)(y - (fabs(y) + fabs((double)largest)) * 0x1p-20 - 1e-30));
}

#endif
