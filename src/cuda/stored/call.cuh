/* call.cuh - a launch over stored logits as its CTAs see it: where rows are and what they ask for, without the whole
 * batch. */
#ifndef FS_CUDA_STORED_CALL_CUH
#define FS_CUDA_STORED_CALL_CUH

#include "cuda/cuda_plan.h"
#include "cuda/device/row.cuh"
#include "cuda/stored/blocks.cuh"

/* What every CTA of a launch needs before its first logits are on their way, and then of its row: all that most calls
 * ask for, side by side, because constant memory too is cold when a launch begins. */
typedef struct stored_call {
    fs_cuda_share share;
    int32_t first_row;   /* row of the batch that the launch begins with */
    int64_t stride;      /* bytes from row to row */
    const char *data;    /* row 0 of the batch, where token 0 of the whole vocabulary would be */
    int32_t shaped;      /* the head has a bias, a rounding, scales or a soft-cap */
    int32_t tokens_only; /* of the results only tokens and status are asked for */
    int32_t max;         /* largest logits are */
    int32_t goes_on;     /* another launch ends the rows */
    int32_t grouped;     /* draws are by groups */
    int32_t uniform;     /* the source is all there is to a row's rules; else the batch has to be read */
    uint32_t status;     /* of all rows, before any logit */
    fs_draw_source source;
} stored_call;

FS_DEVICE stored_row find_row(const stored_call &call, const fs_head &head, int32_t b) {
    const uint64_t base = (uint64_t)call.data + (uint64_t)((call.first_row + b) * call.stride);
    stored_row row;
    row.base = base;
    row.low = call.share.low;
    row.high = call.share.high;
    row.first = call.share.whole;
    row.last = call.share.whole_end;
    row.wide = base % 16 == 0;
    row.odd = (int32_t)(base % 4);
    row.head = call.shaped ? &head : NULL;
    return row;
}

/* Rules that arrays hold which few batches have. */
static __device__ __noinline__ void read_draw(const fs_cuda_args &args, fs_draw *draw, int32_t b) {
    *draw = draw_of_row(args, b);
}

FS_DEVICE fs_draw uniform_draw(const stored_call &call, const fs_draw_values &values) {
    fs_draw draw = draw_of(rules_of_draw(&values));
    draw.status |= values.index < 0 ? 0 : call.status;
    return draw;
}

/* ------------------------------------------------------------------------------------------------------ host ---- */

/* What rules_of_row says of every row but for how it draws, where rules are uniform. */
static inline uint32_t status_of_all(const fs_cuda_args &args) {
    fs_batch bare = args.batch;
    fs_rules rules = args.rules;
    bare.slot = NULL, bare.position = NULL, bare.seed = NULL, bare.substream = NULL;
    rules.temperature.per_slot = NULL, rules.temperature.value = 1.0f;
    return rules_of_row(&bare, &rules, &args.limits, args.vocab, 0).status;
}

static inline stored_call call_of(const fs_cuda_stored_plan &plan, const fs_cuda_args &args, int32_t shaped) {
    const fs_head &head = args.head;
    const fs_result &result = args.result;
    const fs_matrix logits = logits_of_head(&head);
    stored_call call;
    memset(&call, 0, sizeof call);
    call.share = plan.share;
    call.first_row = args.first_row;
    call.stride = logits.stride;
    call.data = (const char *)((uintptr_t)logits.data - (uintptr_t)(head.first_token * dtype_bytes(head.dtype)));
    call.shaped = shaped;
    call.tokens_only = !result.noisy_logit && !result.logit && !result.logprob && !result.log_z && !result.max_logit;
    call.max = args.needs.max;
    call.goes_on = args.needs.max || args.leave_rows;
    call.grouped = args.groups.tiles != 0;
    call.uniform = rules_are_uniform(&args.batch, &args.rules);
    if (call.uniform) call.status = status_of_all(args);
    call.source = draw_source(&args.batch, &args.rules);
    return call;
}

#endif
