#include "cuda_plan.h"

#include <stdint.h>
#include <stdio.h>

/* Measured on one H200 (docs/findings): bytes per microsecond from memory, and bf16 operations per microsecond. */
#define FS_CUDA_READ 4.5e6
#define FS_CUDA_FLOPS 7.9e8

int fs_cuda_plan_launch(const fs_cuda_device *device, const fs_cuda_shape *shapes, int32_t count, const fs_head *head,
                        int64_t rows, fs_cuda_plan *plan) {
    memset(plan, 0, sizeof *plan);
    if (device->major != 9) {
        snprintf(plan->text, sizeof plan->text, "compute capability %d.%d has no kernel yet; 9.0 has", device->major,
                 device->minor);
        return 0;
    }
    for (int32_t i = 0; i < count && !plan->shape; i++)
        if (shapes[i].rows >= rows && (shapes[i].cluster == 1 || device->clusters_of_two > 0)) plan->shape = &shapes[i];
    if (!plan->shape) {
        snprintf(plan->text, sizeof plan->text, "no tile is %lld rows wide", (long long)rows);
        return 0;
    }
    const fs_cuda_shape *s = plan->shape;
    int64_t ctas = s->cluster == 1 ? device->processors : 2 * (int64_t)device->clusters_of_two;
    if (ctas > device->processors) ctas = device->processors / s->cluster * s->cluster;
    /* No CTA without a tile: a short vocabulary takes fewer. */
    int64_t tiles = (head->rows + 127) / 128 + 1;
    if (s->cluster == 2) tiles = (head->rows + 255) / 256 * 2 + 2;
    if (ctas > tiles) ctas = tiles / s->cluster * s->cluster;
    plan->grid = (int32_t)(ctas < s->cluster ? s->cluster : ctas);
    plan->k_steps = (int32_t)((head->dim + s->k - 1) / s->k);
    /* Waiting saves survivors in proportion to the rows and costs what the ring does not cover: it pays from 96 rows on. */
    plan->patience = s->rows >= 96 ? 3000 : 0;
    double read = 2.0 * (double)head->rows * (double)head->dim / FS_CUDA_READ;
    double compute = 2.0 * (double)head->rows * (double)head->dim * s->rows / FS_CUDA_FLOPS;
    plan->microseconds = read > compute ? read : compute;
    snprintf(plan->text, sizeof plan->text, "sm90 tile 128x%d, %d stages of %d, cluster %d, grid %d: %.0f us predicted",
             s->rows, s->stages, s->k, s->cluster, plan->grid, plan->microseconds);
    return 1;
}

int fs_cuda_plan_aligned(const fs_head *head, const fs_batch *batch) {
    int64_t w = head->stride ? head->stride : head->dim * 2,
            h = batch->hidden_stride ? batch->hidden_stride : head->dim * 2;
    return (uintptr_t)head->data % 16 == 0 && (uintptr_t)batch->hidden % 16 == 0 && w % 16 == 0 && h % 16 == 0;
}
