/* cuda_call.h - what a launch is given: shared by the plain C host code and the kernels. */
#ifndef FS_CUDA_CALL_H
#define FS_CUDA_CALL_H

#include "core/group.h"
#include "core/history.h"
#include "core/screen.h"
#include "core/wire.h"
#include "cuda_plan.h"

#include "flashsampling.h"

/* What all CTAs of a launch know of a row: work memory, zero before a call and left zero by it. Scores are ordered
 * floats rounded down: real scores, or below one. */
typedef struct fs_cuda_row { /* 128 bytes: every CTA hits every row at once after its first tile */
    unsigned long long key;  /* largest score key so far; 0: none */
    uint32_t bound;          /* a score the row is known to reach; 0: none */
    uint32_t flags;          /* FS_ROW_NAN, FS_ROW_INF, FS_CUDA_X_INF */
    uint32_t max;            /* largest x, an ordered float; 0: none */
    uint32_t lock;           /* of `odd` */
    union {
        /* The row's mass, in limbs of core/mass.h from 2^(24 FS_CUDA_LIMB) up, so that CTAs add to it in any
         * order... */
        unsigned long long limb[8];
        unsigned long long rough; /* stored logits without masses: largest rough key (stored/state.cuh) */
    };
    fs_mass odd; /* ... and what lies outside of them */
    /* Stored logits: CTAs that have finished their share of this row. Of a block's first row: scorers that have
     * finished, and those that have given their rows a first bound. */
    uint32_t done, seeded;
} fs_cuda_row;

#define FS_CUDA_LIMB (-3)

/* A flag of a row beside its status bits: an x, not only an l, was +inf. */
#define FS_CUDA_X_INF (1u << 31)

/* Records: what one CTA has found of one row in one group, [rows][count][slots]. The slots of a group are its CTAs, in
 * order. A record whose limb[0] is 0 has no mass yet; records too are zero before and after a call. Where a launch
 * draws by groups winner.x of a group's first record holds no logit: it is the group's bound, like a row's. */
typedef struct fs_cuda_groups {
    fs_group *record;
    int32_t count, slots;
    int32_t tiles; /* per group; 0: one group, which only masses of stored logits need */
} fs_cuda_groups;

/* How far the scorers of a block's CTAs are; zero before and after a call. */
typedef struct fs_cuda_progress {
    uint32_t told;  /* have told the largest logits of their first tiles (or a bit: fused/cuts.cuh); */
    uint32_t done;  /* are done with their last ones; */
    uint32_t taken; /* rows beyond their own that somebody ends; */
    uint32_t left;  /* CTAs that end no more rows */
} fs_cuda_progress;

/* Candidates of rows that are cut: a segment for every row of a launch and CTA of its block, [rows][slots], and in it
 * the order keys of all tokens that are not below the row's floor. A floor is a logit below which no token survives the
 * row's cuts, or so it is thought; it comes from the largest logits of all CTAs' first tiles. Those and the floors are
 * ordered floats, zero before and after a call; `count` is more than a segment holds where it was too short. */
typedef struct fs_cuda_lists {
    unsigned long long *entry;  /* [rows][slots][FS_CUDA_SEGMENT]; NULL: the call has no lists */
    uint32_t *count;            /* [rows][slots] */
    uint32_t *most;             /* [rows][slots]: the largest logit of a CTA's first tile, rounded down */
    uint32_t *floor;            /* [rows] */
    float *first;               /* of each CTA, 128 N: its first tile, which is listed when there are floors */
    fs_cuda_progress *progress; /* [rows], of which a block of rows uses its first */
    void *hidden;               /* of open rows, 16-bit numbers side by side, open_stride() apart */
    int32_t *open;              /* how many rows are open, then which: their lists do not prove what they were asked */
    int32_t slots;
    int32_t room;     /* candidates of a row that are looked at; rows with more are open */
    int32_t by_place; /* the launch's rows are open ones, by their places in `open` */
} fs_cuda_lists;

/* 16-bit numbers from one open row's hidden state to the next. */
FS_CORE int64_t open_stride(int64_t dim) {
    return (dim + 63) / 64 * 64;
}

#define FS_CUDA_SEGMENT 128

/* What is done to the tokens of a row beside its head and its mask. */
typedef struct fs_cuda_edits {
    const int32_t *edit_token; /* entries, in their order */
    const float *edit_bias;
    int64_t edits;
    const int32_t *count_token, *count_value; /* likewise, */
    int64_t listed;
    const int32_t *counts; /* or by token; NULL: none */
    const uint32_t *seen;
    float repetition, frequency, presence;
    int32_t penalises;
    int32_t last; /* edits come last */
    /* Of rows whose tokens are looked up one by one (fused/edits.cu). */
    int32_t way;
    int32_t several; /* lists in which a token may have several entries */
    float raise;     /* no token's y is above its x by more */
} fs_cuda_edits;

enum { FS_UNEDITED, FS_EDITED, FS_NOT_LOOKED_UP }; /* the last: the row needs its logits in memory */
enum { FS_SEVERAL_EDITS = 1, FS_SEVERAL_COUNTS = 2 };

#define FS_CUDA_TABLE_BITS 12
#define FS_CUDA_TABLE (1 << FS_CUDA_TABLE_BITS)

/* That of a launch's rows; and for each, tables of the entries of both lists (device/edits.cuh), and for each tile of
 * the head which of its eight strips of 16 tokens have one that is raised, `tiles` bytes, a multiple of four. */
typedef struct fs_cuda_lookup {
    fs_cuda_edits *row; /* NULL: nothing is looked up */
    uint32_t *table;    /* [rows][2][FS_CUDA_TABLE] */
    uint8_t *raised;    /* [rows][tiles] */
    int32_t tiles;
} fs_cuda_lookup;

/* Logits of a launch's rows in work memory, those of one row `stride` floats on from those of the row before: x, which
 * begin as dot products where the head has weights, and y, where tokens may be edited. */
typedef struct fs_cuda_dense {
    float *x, *y;
    int64_t stride;
} fs_cuda_dense;

/* What a CTA has found in a slice of a row whose race is over and whose logits are in work memory (rows/raced.cu): of
 * the tokens ahead of the winner, and how many are listed, which may be more than there is room for. */
typedef struct fs_cuda_ahead {
    unsigned long long weight;
    uint32_t largest;     /* logit of all, an ordered float; 0: none */
    uint32_t larger;      /* tokens with a larger logit than the winner; */
    uint32_t equal, same; /* with its own, and a lower id; and any */
    uint32_t listed;
    uint32_t where; /* of all of a row: place of its slices, and 64 of them at most */
} fs_cuda_ahead;

#define FS_CUDA_SLICES 32  /* of a row, at most: a lane looks at each */
#define FS_CUDA_BEST 64    /* most tokens that can be asked for so: more make lists long */
#define FS_CUDA_SHORT 1024 /* tokens that one CTA races again */

/* A launch that draws and keeps logits in args.dense.x, as the head has shaped them: of all of its rows, or of some
 * while candidates of the others are listed. Slices are by place: a row's, or its place among those that are kept. */
typedef struct fs_cuda_raced {
    fs_cuda_ahead *ahead; /* [rows], all of a row that races again, then [places][slices]; NULL: it is no such launch */
    /* [places][room]: order keys of tokens that are ahead, or may be among the best, each slice having an even part. */
    unsigned long long *entry;
    int16_t slices;    /* 0: as many as there are CTAs for, where only some rows are kept */
    int16_t again;     /* rows whose winner does not stay race again (rows/again.cu) */
    int32_t first_row; /* of the batch, in dense.x */
} fs_cuda_raced;

/* Tokens that are listed of each. */
FS_CORE int32_t raced_room(const fs_result *result) {
    return result_wants_top(result) ? FS_CUDA_LIST : FS_CUDA_SHORT;
}

/* Rows of such a launch that race again: a team has those of which more tokens are ahead than are listed, or many, a
 * CTA the others. How many there are is before lists.open; which, behind it, those from the front and these from the
 * back. */
enum { FS_AGAIN_BY_TEAM = -2, FS_AGAIN_BY_CTA = -1 };

FS_CORE int64_t again_ints(int64_t rows, int64_t of_launch) { /* of lists.open and all that */
    return 2 + 1 + rows + of_launch;
}

/* A token that may win, by what a screen says of it: its score is not above and not below these. Of a row that is cut
 * its logit is not, and `place` is its place in the list. */
typedef struct fs_screened_token {
    float most, least;
    uint32_t token, place;
} fs_screened_token;

/* A screen's history in calls of one kind, kept from call to call (screen/history.cuh). */
typedef struct fs_cuda_history {
    fs_screen_history of;
    uint32_t left;    /* rows of this call have been left to W, so all are; 0 between calls, */
    uint32_t counted; /* like this: CTAs of a launch that have ended their row */
} fs_cuda_history;

#define FS_CUDA_SCREEN_KINDS 8 /* by rows, with rules and without */

/* A pass over a head's screen: for every row the tokens that may win. How many there are is in the row's `max`; more
 * than there is room for, and the row is open: it takes the pass over W, as all rows of its call then do. Where rows
 * may be cut, upper bounds of the logits of those that are lie in args.dense.x, floors in args.lists.floor, and what is
 * settled in args.lists.entry, [rows][FS_CUDA_SCREENED]. */
typedef struct fs_cuda_screened {
    fs_screen of;
    uint64_t hash;            /* of its header, as the host knows it */
    fs_screened_token *entry; /* [rows][FS_CUDA_SCREENED]; NULL: there is no screen */
    int32_t *open; /* how many rows are open. A pass over W that finds none has nothing to do; NULL: it has */
    fs_cuda_history *history;
} fs_cuda_screened;

#define FS_CUDA_SCREENED 8192
#define FS_CUDA_SCREEN_ROWS 16 /* of one pass, at most; */
#define FS_WIDE_ROWS 32        /* and of that for many rows */

typedef struct fs_cuda_args {
    fs_head head;   /* pointers are device memory here */
    fs_batch batch; /* what its rules and limits point to is host memory: here they are */
    fs_rules rules;
    fs_row_limits limits;
    fs_result result;
    int32_t vocab; /* below 2^24; a copy of all of this lies in shared memory, where a few more bytes do not fit */
    int32_t first_row, rows; /* rows of the batch this launch draws, or their samples as rows (rows/samples.cu) */
    int32_t block_rows;      /* ... in blocks of so many, each by CTAs of its own (blockIdx.y) */
    int32_t k_steps;         /* stages of K that cover D */
    fs_cuda_schedule schedule;
    fs_cuda_k_order k_order;
    int32_t overlap;    /* the device can set up a launch while the one before it ends */
    int32_t leave_rows; /* in work memory, for a launch that follows, or in a part: they are not ended */
    char *part;         /* where rows with rules are left (core/wire.h) */
    fs_cuda_row *work;  /* of this launch's rows */
    fs_cuda_groups groups;
    fs_cuda_lists lists;
    fs_cuda_lookup edits;
    fs_cuda_dense dense;
    fs_cuda_raced raced;
    fs_cuda_screened screen;
    fs_cuda_team team;
    fs_needs needs; /* beside what else kernels look at: constant memory is cold when a launch begins */
} fs_cuda_args;

/* What a kernel is for. Each is there several times, because code that is not there need not be fetched, and is not
 * jumped over: 1 to 3 us of a call for tokens, 1 to 5 of one for log Z (docs/notes/gpu-instructions.md). Each does
 * what those before it do. */
typedef enum fs_cuda_kind {
    FS_CUDA_LOGITS,  /* dot products, to work memory; none of the following */
    FS_CUDA_TOKENS,  /* logits as they are; tokens, status and nothing else */
    FS_CUDA_MASSES,  /* scores, log Z */
    FS_CUDA_SHAPED,  /* what a head does to its logits; largest logits */
    FS_CUDA_KEPT,    /* logits to work memory */
    FS_CUDA_LISTED,  /* candidates of rows that are cut; keeps no logits */
    FS_CUDA_GROUPED, /* draws by groups, without candidates */
    FS_CUDA_KINDS
} fs_cuda_kind;

static inline fs_cuda_kind call_kind(const fs_cuda_args *args, int32_t shaped) {
    const fs_result *result = &args->result;
    if (args->raced.ahead) return FS_CUDA_KEPT;
    if (args->lists.entry) return FS_CUDA_LISTED;
    if (args->dense.x) return FS_CUDA_LOGITS;
    if (args->groups.tiles) return FS_CUDA_GROUPED;
    if (shaped || args->needs.max) return FS_CUDA_SHAPED;
    const int more = args->needs.mass || args->needs.raw_mass ||
                     (!args->leave_rows && (result->noisy_logit || args->needs.winner_logit));
    return more ? FS_CUDA_MASSES : FS_CUDA_TOKENS;
}

/* The parts of all ranks, after the collective: `count` of them `bytes` apart, or one that has the largest keys. */
typedef struct fs_cuda_gathered {
    char *part; /* work memory */
    size_t bytes;
    int32_t count;
    int32_t sealed;
} fs_cuda_gathered;

#define FS_CUDA_MERGE_SHARED (96 << 10) /* which every device from sm_80 on has */

/* What a CTA merges a row of parts with lists in: so much shared memory, or where that has no room work memory. */
typedef struct fs_cuda_merging {
    size_t raw, raw_key, winner, bytes; /* where parts of it begin, behind the keys of the list by y */
    uint32_t *wrong;                    /* whether a part is not what it should be */
    char *memory;                       /* of each CTA; NULL: shared memory */
    int32_t grid;
} fs_cuda_merging;

#endif
