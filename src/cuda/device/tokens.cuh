/* tokens.cuh - whether the lists of a row hold tokens. */
#ifndef FS_CUDA_TOKENS_CUH
#define FS_CUDA_TOKENS_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/ptx.cuh"

FS_DEVICE bool has_bad(const int32_t *token, int64_t first, int64_t count, int64_t vocab) {
    bool bad = false;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) bad |= token[first + i] < 0 || token[first + i] >= vocab;
    return bad;
}

/* FS_ROW_BAD_TOKEN if a list of the row holds what is no token. */
static __device__ __noinline__ uint32_t check_lists(const fs_batch &batch, int64_t vocab, int64_t b, int64_t slot) {
    if (slot < 0) return 0;
    const fs_edits edits = batch_edits(&batch, b, slot);
    const int64_t given = watch_given(&batch);
    bool bad = has_bad(batch.edit_token, edits.first, edits.count, vocab);
    if (given) bad |= has_bad(batch.score_token, b * given, given, vocab);
    if (batch.count_offset)
        bad |= has_bad(batch.count_token, batch.count_offset[slot],
                       batch.count_offset[slot + 1] - batch.count_offset[slot], vocab);
    if (batch.watch_offset)
        bad |=
            has_bad(batch.watch_token, batch.watch_offset[b], batch.watch_offset[b + 1] - batch.watch_offset[b], vocab);
    return __syncthreads_or(bad) ? (uint32_t)FS_ROW_BAD_TOKEN : 0;
}

#endif
