/* cuda_plan.h - which kernel, tile, grid and work memory for a launch: plain C, so that it is tested without a GPU. */
#ifndef FS_CUDA_PLAN_H
#define FS_CUDA_PLAN_H

#include "flashsampling.h"

/* What matters of a device. */
typedef struct fs_cuda_device {
    int32_t major, minor;    /* compute capability */
    int32_t processors;      /* SMs */
    int32_t clusters_of_two; /* pairs of CTAs that run at once; 0: no clusters */
    int32_t shared_bytes;    /* shared memory a block may have */
} fs_cuda_device;

/* What an instantiation of a tile kernel is made for. */
typedef struct fs_cuda_shape {
    int32_t rows;    /* N */
    int32_t cluster; /* CTAs that share H */
    int32_t stages;
    int32_t k; /* elements of K per stage */
    int32_t shared_bytes;
} fs_cuda_shape;

/* The instantiations of one tile file, narrowest first; of one width those with more stages first. */
typedef struct fs_cuda_family {
    const char *name; /* what FLASHSAMPLING_CUDA_TILE calls it */
    int32_t major;    /* compute capability it is for; 0: any from 8.0 */
    int32_t aligned;  /* takes only data fs_cuda_plan_aligned says yes to */
    int32_t count;
    const fs_cuda_shape *shapes;
} fs_cuda_family;

typedef struct fs_cuda_plan {
    const fs_cuda_family *family;
    const fs_cuda_shape *shape;
    int32_t rows; /* of the batch that this launch takes */
    int32_t grid;
    int32_t k_steps;
    int32_t patience;      /* nanoseconds a CTA waits for the others' first scores */
    int32_t groups, slots; /* parts per row (cuda_call.h), where a call needs parts */
    double microseconds;   /* predicted: the larger of reading W and the tensor cores */
    char text[160];        /* the choice in words, for the log; or why there is none */
} fs_cuda_plan;

/* The plan of a launch over the first of `rows` rows of the batch, or as many as a tile takes. `forced` is NULL or the environment's
 * choice: a family's name, with ":N" one of its tiles. 0 if nothing fits; text says why. */
int fs_cuda_plan_launch(const fs_cuda_device *device, const fs_cuda_family *families, int32_t count, const char *forced,
                        const fs_head *head, const fs_batch *batch, int64_t rows, fs_cuda_plan *plan);

/* Whether the copy engine can take W and H as they lie: 16-byte aligned, rows a multiple of 16 bytes apart. */
int fs_cuda_plan_aligned(const fs_head *head, const fs_batch *batch);

/* Whether the mode draws by groups. */
int fs_cuda_plan_grouped(const fs_batch *batch);

#endif
