/* cuda_plan.h - which kernel, tile, grid and work memory for a launch: plain C, so that it is tested without a GPU. */
#ifndef FS_CUDA_PLAN_H
#define FS_CUDA_PLAN_H

#include "flashsampling.h"

/* Rows one launch takes at most; larger batches are split, and W is read once per launch. */
#define FS_CUDA_ROWS 1024
/* ... by groups, whose records are many; ... over stored logits, which nothing is gained by reading together. */
#define FS_CUDA_GROUPED_ROWS 256
#define FS_CUDA_STORED_ROWS 256
/* Tokens per tile: eight warps of 16. Also the block of the noise's marks. */
#define FS_CUDA_TILE 128

#define FS_CUDA_LIST 8192 /* most candidates of a row that are looked at */

/* CTAs that end a row together at most, and threads of each. */
#define FS_CUDA_TEAM 8
#define FS_CUDA_TEAM_THREADS 512

/* What matters of a device. */
typedef struct fs_cuda_device {
    int32_t major, minor;    /* compute capability */
    int32_t processors;      /* SMs */
    int32_t clusters_of_two; /* pairs of CTAs that run at once; 0: no clusters */
    int32_t shared_bytes;    /* shared memory a block may have */
    int32_t team;            /* CTAs that can end a row together: a power of two */
    int32_t overlaps;        /* a launch can begin while the one before it ends */
} fs_cuda_device;

/* What an instantiation of a tile kernel is made for. */
typedef struct fs_cuda_shape {
    int32_t rows;    /* N */
    int32_t cluster; /* CTAs that share H */
    int32_t stages;
    int32_t k;     /* elements of K per stage */
    int32_t teams; /* of consumers, which take tiles in turn */
    int32_t shared_bytes;
    int32_t direct; /* for few pieces a CTA, and plain calls */
} fs_cuda_shape;

/* A tile written for some architectures, in several shapes: narrowest first; of one width those with more stages
 * first; those for few pieces a CTA last. */
typedef struct fs_cuda_family {
    const char *name; /* what FLASHSAMPLING_CUDA_TILE calls it */
    int32_t major;    /* compute capability it is for; 0: any from 8.0 */
    int32_t aligned;  /* takes only data fs_cuda_plan_aligned says yes to */
    int32_t count;
    const fs_cuda_shape *shapes;
} fs_cuda_family;

/* Which spans of W a cluster takes, where there are no groups: `turns` of them, and cluster c one more if the whole
 * part of c * spread / 2^16 grows with c + 1, which is then its place among those left. */
typedef struct fs_cuda_schedule {
    uint32_t turns, spread;
} fs_cuda_schedule;

/* The order in which every logit sums over K, by slices of 128: 2^ways stretches of `stretch` slices each, a slice of
 * each in turn, then what is left, from slice `rest` on. It depends on D alone, so equal rows of W have equal logits;
 * where rows of W are powers of two long a plain order leaves memory channels idle, because all CTAs are at the same
 * columns (docs/notes/gpu-reading-weights.md, "One order of K"). */
typedef struct fs_cuda_k_order {
    int32_t ways, stretch, rest;
} fs_cuda_k_order;

typedef struct fs_cuda_plan {
    const fs_cuda_family *family;
    const fs_cuda_shape *shape;
    int32_t rows;               /* of the batch that this launch takes */
    int32_t blocks, block_rows; /* ... in blocks, each of at most so many */
    int32_t grid;               /* CTAs of a block */
    int32_t k_steps;
    fs_cuda_schedule schedule;
    fs_cuda_k_order k_order;
    int32_t groups, slots; /* records per row (cuda_call.h), where a call needs them */
    double microseconds;   /* predicted for the launch... */
    double cost;           /* ... and for the rest of the batch in launches like it */
    char text[160];        /* why there is none */
} fs_cuda_plan;

/* A choice in words, for the log: not in every call, where it would take a microsecond. */
void fs_cuda_plan_describe(const fs_cuda_plan *plan, const char *forced, char *text, size_t size);

/* The plan of a launch over the first of `rows` rows of the batch, as many as it takes. `forced` is NULL or the
 * environment's choice: a family's name, with ":N" one of its tiles. `plain`: a call for tokens alone, whose rows
 * differ in nothing but how they draw; direct shapes are for these, and are not forced. 0 if nothing fits; text says
 * why. */
int fs_cuda_plan_launch(const fs_cuda_device *device, const fs_cuda_family *families, int32_t count, const char *forced,
                        const fs_head *head, const fs_batch *batch, int64_t rows, int32_t plain, fs_cuda_plan *plan);

/* Whether the copy engine can take W and H as they lie: 16-byte aligned, rows a multiple of 16 bytes apart. */
int fs_cuda_plan_aligned(const fs_head *head, const fs_batch *batch);

/* How rows are ended whose logits are in memory (rows/rows.cu). */
typedef struct fs_cuda_team {
    int32_t size;    /* CTAs of a row, a power of two */
    int32_t threads; /* of a CTA, likewise */
    int32_t places;  /* tokens of a slice that shared memory has room for: 0, or all */
    int32_t slices;  /* ... 2: of x and of y */
    int32_t shared_bytes;
} fs_cuda_team;

/* For so many rows at once of `tokens` tokens. `base_bytes` of shared memory are taken. forced: 0, or the size. */
fs_cuda_team fs_cuda_plan_team(const fs_cuda_device *device, int64_t rows, int64_t first_token, int64_t tokens,
                               int32_t edited, int32_t base_bytes, int32_t forced);

/* The words for what this backend does not do of such calls (backend.h). */
const char *fs_cuda_lacks(const fs_call_desc *call);
const char *fs_cuda_drafts_lack(const fs_drafts *drafts);

/* ---------------------------------------------------------------------------------------------- stored logits ---- */

/* Warps of a CTA that reads stored logits. */
#define FS_CUDA_STORED_WARPS 12

/* How the blocks of 128 ids of a row are shared out. A team is the warps that work on one record together
 * (cuda_call.h): team t of a row takes its blocks [blocks t / teams, blocks (t + 1) / teams). Calls without records,
 * whose first instructions count, need no division: CTA s takes quota blocks from s quota + min(s, extra) on, and one
 * more if s < extra. */
typedef struct fs_cuda_share {
    int32_t low, high;        /* tokens that are there and are drawn from */
    int32_t first, blocks;    /* blocks they lie in; 0 blocks where all tokens are padding */
    int32_t whole, whole_end; /* of these, the ones that are there as a whole: whole .. whole_end - 1 */
    int32_t segments;         /* CTAs per row */
    int32_t team;             /* warps of a team: a whole CTA's or 1 */
    int32_t teams;            /* per row */
    int32_t quota, extra;     /* blocks / segments, blocks % segments */
} fs_cuda_share;

typedef struct fs_cuda_stored_plan {
    fs_cuda_share share;
    int32_t rows; /* of the batch that this launch takes */
    int32_t grid;
    int32_t groups, slots; /* records per row (cuda_call.h), where a call needs them */
    double microseconds;   /* predicted: reading the logits */
} fs_cuda_stored_plan;

void fs_cuda_plan_describe_stored(const fs_cuda_stored_plan *plan, char *text, size_t size);

/* The plan of a launch over the first of `rows` rows of the batch. `ctas` run on the device at once. */
void fs_cuda_plan_stored(int32_t ctas, const fs_head *head, const fs_batch *batch, int64_t rows,
                         fs_cuda_stored_plan *plan);

#endif
