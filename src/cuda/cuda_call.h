/* cuda_call.h - what a launch is given: shared by the plain C host code and the kernels. */
#ifndef FS_CUDA_CALL_H
#define FS_CUDA_CALL_H

#include "core/group.h"
#include "cuda_plan.h"

#include "flashsampling.h"

/* Rows one launch takes at most; larger batches are split, and W is read once per launch. */
#define FS_CUDA_ROWS 256
/* Tokens per tile: eight warps of 16. Also the block of the noise's marks. */
#define FS_CUDA_TILE 128

/* What all CTAs know of a row. Scores are ordered floats rounded down: real scores, or below one. */
typedef struct fs_cuda_line { /* 128 bytes: every CTA hits every row at once after its first tile */
    unsigned long long key;   /* largest score key so far; 0: none */
    uint32_t hint;            /* a score the row is known to reach; 0: none */
    uint32_t flags;           /* FS_ROW_NAN, FS_ROW_INF, FS_CUDA_X_INF */
    uint32_t peak;            /* largest x, an ordered float; 0: none */
    uint32_t lock;            /* of `odd` */
    union {
        /* The row's mass, in limbs of core/mass.h from 2^(24 FS_CUDA_LIMB) up, so that CTAs add to it in any order... */
        unsigned long long limb[8];
        unsigned long long rough; /* stored logits, whose masses are in parts: largest rough key (cuda_stored.cuh) */
    };
    fs_mass odd;   /* ... and what lies outside of them */
    uint32_t done; /* stored logits: CTAs that have finished their share of this row */
    uint32_t unused;
} fs_cuda_line;

#define FS_CUDA_LIMB (-3)

/* A flag of a line beside the row's status bits: an x, not only an l, was +inf. */
#define FS_CUDA_X_INF (1u << 31)

/* Work memory of a context: zero before the first launch, and left zero by every launch. */
typedef struct fs_cuda_work {
    fs_cuda_line line[FS_CUDA_ROWS];
    uint32_t seeded; /* judges that have given their rows a first hint */
    uint32_t done;   /* judges that have finished */
} fs_cuda_work;

/* What a call wants of each row beyond its token. */
enum {
    FS_CUDA_MASS = 1u << 0,     /* the mass of exp(l) */
    FS_CUDA_RAW_MASS = 1u << 1, /* of exp(x); not both */
    FS_CUDA_PEAK = 1u << 2,     /* the largest x */
    FS_CUDA_GROUPS = 1u << 3    /* a winner and a mass per group: takes parts and a second, small launch */
};

/* Parts: what one CTA has found of one row in one group, [rows][groups][slots]. The slots of a group are its CTAs, in order. A part
 * whose limb[0] is 0 has no mass yet; parts too are zero before and after a launch. In group modes winner.x of a group's first part
 * holds no logit: it is the group's hint, like a line's. */
typedef struct fs_cuda_parts {
    fs_group *part;
    int32_t groups, slots;
    int32_t group_tiles; /* tiles per group; 0: one group, which only masses of stored logits need */
} fs_cuda_parts;

/* Where rows go instead of the results when other ranks have to be heard first: a part in device memory.
 *
 *   keys alone    header 16 | i64 key [B], in the order of signed integers: the largest over ranks win
 *   rows          header 16 | two bits per row in u32 words (NaN seen, +inf seen) | per row: key 8, mass 20, peak 4, as far as wanted
 *
 * The header is a hash of everything ranks must agree on, a sum over rows so that they can add to it in any order, and
 * beside it its complement (keys) or 0 (rows). A part is zero before and after a call, because the next may have
 * another layout. A sealed part, of fs_partial, has two words more: the range of its ids (end << 32 | first), and a
 * checksum of that and of its rows, a sum too. */
#define FS_CUDA_HEADER 16
#define FS_CUDA_SEALED_HEADER 32

typedef struct fs_cuda_exchange {
    unsigned long long *header; /* NULL: results are written */
    uint32_t *bits;             /* NULL: keys alone */
    uint32_t *rows;             /* [B, row_words] */
    int32_t row_words;
    uint64_t hash; /* of what the host knows of the call */
} fs_cuda_exchange;

/* The parts of all ranks, after the collective: [ranks, bytes], or of keys one that has the largest. */
typedef struct fs_cuda_gathered {
    const char *all;
    size_t bytes, bits_at, rows_at; /* of a part, and where in it */
    int32_t ranks;
    int32_t grouped;      /* each rank is a group, chosen by its mass: the paper's B.4 */
    int32_t sealed;       /* the parts are */
    fs_cuda_exchange own; /* to be cleared */
} fs_cuda_gathered;

typedef struct fs_cuda_args {
    fs_head head; /* pointers are device memory here */
    fs_batch batch;
    fs_result result;
    int64_t vocab;
    int32_t first_row, rows; /* rows of the batch this launch draws */
    int32_t k_steps;         /* stages of K that cover D */
    fs_cuda_deal deal;
    uint32_t turn;   /* 2^32 times the part of K a pair of tiles starts after its predecessor */
    uint32_t want;   /* FS_CUDA_MASS, ... */
    int32_t overlap; /* the device can set up a launch while the one before it ends */
    fs_cuda_work *work;
    fs_cuda_parts parts;
    fs_cuda_exchange exchange;
} fs_cuda_args;

/* What a kernel is for. Each is there several times, because code that is not there need not be fetched, and is not jumped over: 1 to 3 us of
 * a call for tokens, 1 to 5 of one for log Z (docs/findings/gpu-instructions.md). */
typedef enum fs_cuda_kind {
    FS_CUDA_ANY,    /* everything */
    FS_CUDA_MASSES, /* no groups, no largest logits, logits as they are: tokens, scores, log Z */
    FS_CUDA_TOKENS, /* likewise, and no masses and no scores: tokens, status and nothing else */
    FS_CUDA_KINDS
} fs_cuda_kind;

static inline fs_cuda_kind call_kind(const fs_cuda_args *args, int32_t shaped) {
    const fs_result *result = &args->result;
    if (shaped || args->want & ~(uint32_t)(FS_CUDA_MASS | FS_CUDA_RAW_MASS)) return FS_CUDA_ANY;
    const int more = args->want || args->exchange.header || result->score || result->logit || result->logprob;
    return more ? FS_CUDA_MASSES : FS_CUDA_TOKENS;
}

#endif
