/* ending.cuh - one row on its way to the results, in the shared memory of the CTA that ends it. */
#ifndef FS_CUDA_ROWS_ENDING_CUH
#define FS_CUDA_ROWS_ENDING_CUH

#include "cuda/rows/cut.cuh"
#include "cuda/rows/draw.cuh"

#include "core/finish.h"

struct row_ending {
    block_room block;
    fs_rules rules;
    fs_result result; /* without ranks, which core/finish.h has from a list */
    fs_call call;
    fs_summary summary;
    fs_row row;
};

FS_DEVICE bool has_bad(const int32_t *token, int64_t first, int64_t count, int64_t vocab) {
    bool bad = false;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) bad |= token[first + i] < 0 || token[first + i] >= vocab;
    return bad;
}

/* FS_ROW_BAD_TOKEN if a list of the row holds what is no token. */
FS_DEVICE uint32_t check_lists(const fs_batch &batch, int64_t vocab, int64_t b, int64_t slot) {
    if (slot < 0) return 0;
    const fs_edits edits = batch_edits(&batch, b, slot);
    const int64_t given = watch_given(&batch);
    bool bad = has_bad(batch.edit_token, edits.first, edits.count, vocab);
    if (given) bad |= has_bad(batch.given, b * given, given, vocab);
    if (batch.count_offset)
        bad |= has_bad(batch.count_token, batch.count_offset[slot],
                       batch.count_offset[slot + 1] - batch.count_offset[slot], vocab);
    if (batch.watch_offset)
        bad |=
            has_bad(batch.watch_token, batch.watch_offset[b], batch.watch_offset[b + 1] - batch.watch_offset[b], vocab);
    return __syncthreads_or(bad) ? (uint32_t)FS_ROW_BAD_TOKEN : 0;
}

/* What a launch knows of a row before its logits. One thread: the others may load those in the meantime. */
static __device__ __noinline__ void open_row(row_ending *e, const fs_cuda_args &args, int64_t b) {
    e->rules = rules_of_row(&args.batch, args.vocab, b);
    e->result = args.result;
    e->result.rank = NULL;
    e->call = {&args.head, &args.batch, &e->result, NULL, args.vocab, args.needs};
    e->call.needs.bounded = 1;
    e->call.needs.watched = args.batch.watch_offset ? 1 : 0;
    memset(&e->summary, 0, sizeof e->summary);
    memset(&e->row, 0, sizeof e->row);
    e->row.call = &e->call;
    e->row.rules = &e->rules;
    e->row.summary = &e->summary;
    e->row.b = b;
    e->row.status = e->rules.status;
    if (args.lists.by_place) e->row.status |= FS_ROW_FALLBACK;
}

/* After a barrier; there is another one in it. */
static __device__ __noinline__ void check_row(row_ending *e, const fs_cuda_args &args, int64_t b) {
    const fs_batch &batch = args.batch;
    if (!batch.edit_offset && !batch.edit_count && !batch.count_offset && !batch.watch_offset && !watch_given(&batch))
        return;
    const uint32_t bad = check_lists(batch, args.vocab, b, e->rules.slot);
    if (threadIdx.x == 0) {
        e->rules.status |= bad;
        e->row.status |= bad;
    }
    __syncthreads();
}

#endif
