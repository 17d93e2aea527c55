/* touch.cuh - what a row's rules are made of, asked for ahead. */
#ifndef FS_CUDA_TOUCH_CUH
#define FS_CUDA_TOUCH_CUH

#include "cuda/device/ptx.cuh"

#include "core/rules.h"

/* The words of a row's rules into L1, all at once: who reads them after it asks for one when it has the last. A warp;
 * `scrap` has a place for each lane. */
FS_DEVICE void touch_rules(const fs_batch &batch, int64_t b, volatile uint32_t *scrap) {
    const int32_t lane = threadIdx.x % 32;
    const int64_t slot = batch_slot_index(&batch, b);
    const void *word[] = {batch.position ? batch.position + b : NULL,
                          batch.allow_index ? batch.allow_index + b : NULL,
                          batch.edit_offset ? batch.edit_offset + b : NULL,
                          batch.seed ? batch.seed + slot : NULL,
                          batch.temperature ? batch.temperature + slot : NULL,
                          batch.stream ? batch.stream + slot : NULL,
                          batch.top_k ? batch.top_k + slot : NULL,
                          batch.top_p ? batch.top_p + slot : NULL,
                          batch.min_p ? batch.min_p + slot : NULL,
                          batch.repetition ? batch.repetition + slot : NULL,
                          batch.frequency ? batch.frequency + slot : NULL,
                          batch.presence ? batch.presence + slot : NULL,
                          batch.edit_count ? batch.edit_count + slot : NULL};
    const void *mine = NULL;
#pragma unroll
    for (int i = 0; i < (int)(sizeof word / sizeof *word); i++)
        if (lane == i && slot >= 0) mine = word[i];
    if (mine) scrap[lane] = *(const uint32_t *)mine;
}

#endif
