/* cuda_call.h - what a launch is given: shared by the plain C host code and the kernels. */
#ifndef FS_CUDA_CALL_H
#define FS_CUDA_CALL_H

#include "core/key.h"

#include "flashsampling.h"

/* Rows one launch takes; larger batches are split, and W is read once per 256 rows. */
#define FS_CUDA_ROWS 256
/* Tokens per tile: two warpgroups of 64. Also the block of the noise's marks. */
#define FS_CUDA_TILE 128

/* What all CTAs know of a row. Scores are ordered floats rounded down: real scores, or below one. */
typedef struct fs_cuda_line { /* 128 bytes: every CTA hits every row at once after its first tile */
    unsigned long long key;   /* largest score key so far; 0: none */
    uint32_t hint;            /* a score the row is known to reach; 0: none */
    uint32_t flags;           /* FS_ROW_NAN, FS_ROW_INF */
    uint32_t unused[28];
} fs_cuda_line;

/* Work memory of a context: zero before the first launch, and left zero by every launch. */
typedef struct fs_cuda_work {
    fs_cuda_line line[FS_CUDA_ROWS];
    uint32_t seeded; /* CTAs that have given every row a first hint */
    uint32_t done;   /* CTAs that have finished */
} fs_cuda_work;

typedef struct fs_cuda_args {
    fs_head head; /* pointers are device memory here */
    fs_batch batch;
    fs_result result;
    int64_t vocab;
    int32_t first_row, rows; /* rows of the batch this launch draws */
    int32_t k_steps;         /* stages of K that cover D */
    int32_t patience;        /* nanoseconds to wait for other CTAs' first scores */
    fs_cuda_work *work;
} fs_cuda_args;

#endif
