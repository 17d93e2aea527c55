/* touch.cuh - what a row's rules are made of, asked for ahead. */
#ifndef FS_CUDA_TOUCH_CUH
#define FS_CUDA_TOUCH_CUH

#include "cuda/device/ptx.cuh"

#include "core/rules.h"

/* The words of a row's rules into L1, all at once: who reads them after it asks for one when it has the last. A warp;
 * `scrap` has a place for each lane. */
FS_DEVICE void touch_rules(const fs_cuda_args &args, int64_t b, volatile uint32_t *scrap) {
    const fs_batch &batch = args.batch;
    const int32_t lane = threadIdx.x % 32;
    const int64_t slot = batch_slot_index(&batch, b);
    const void *word[] = {batch.position ? batch.position + b : NULL,
                          batch.allow_index ? batch.allow_index + b : NULL,
                          batch.edit_offset ? batch.edit_offset + b : NULL,
                          batch.seed ? batch.seed + slot : NULL,
                          batch.substream ? batch.substream + slot : NULL,
#define FS_RULE_PLACE(name, type, bit, off, used, least, most, status, about)                                          \
    args.rules.name.per_slot ? args.rules.name.per_slot + slot : NULL,
                          FS_RULE_TABLE(FS_RULE_PLACE)
#undef FS_RULE_PLACE
                                  batch.edit_count
                              ? batch.edit_count + slot
                              : NULL};
    static_assert(sizeof word / sizeof *word <= 32, "a lane asks for one word");
    const void *mine = NULL;
#pragma unroll
    for (int i = 0; i < (int)(sizeof word / sizeof *word); i++)
        if (lane == i && slot >= 0) mine = word[i];
    if (mine) scrap[lane] = *(const uint32_t *)mine;
}

#endif
