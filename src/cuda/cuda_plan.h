/* cuda_plan.h - which kernel, tile, grid for a launch: plain C, so that it is tested without a GPU. */
#ifndef FS_CUDA_PLAN_H
#define FS_CUDA_PLAN_H

#include "flashsampling.h"

/* What matters of a device. */
typedef struct fs_cuda_device {
    int32_t major, minor;    /* compute capability */
    int32_t processors;      /* SMs */
    int32_t clusters_of_two; /* pairs of CTAs that run at once; 0: no clusters */
} fs_cuda_device;

/* What an instantiation of a tile kernel is made for. */
typedef struct fs_cuda_shape {
    int32_t rows;    /* N */
    int32_t cluster; /* CTAs that share H */
    int32_t stages;
    int32_t k; /* elements of K per stage */
    int32_t shared_bytes;
} fs_cuda_shape;

typedef struct fs_cuda_plan {
    const fs_cuda_shape *shape;
    int32_t grid;
    int32_t k_steps;
    int32_t patience;    /* nanoseconds a CTA waits for the others' first scores */
    double microseconds; /* predicted: the larger of reading W and the tensor cores */
    char text[128];      /* the choice in words, for the log */
} fs_cuda_plan;

/* The plan of a launch of `rows` rows (at most the widest shape's). 0 if no shape fits; text says why. */
int fs_cuda_plan_launch(const fs_cuda_device *device, const fs_cuda_shape *shapes, int32_t count, const fs_head *head,
                        int64_t rows, fs_cuda_plan *plan);

/* Whether the copy engine can take W and H as they lie: 16-byte aligned, rows a multiple of 16 bytes apart. */
int fs_cuda_plan_aligned(const fs_head *head, const fs_batch *batch);

#endif
