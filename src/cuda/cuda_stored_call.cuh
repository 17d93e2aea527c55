/* cuda_stored_call.cuh - a launch over stored logits as its CTAs see it: where rows are and what they ask for, without the whole batch. */
#ifndef FS_CUDA_STORED_CALL_CUH
#define FS_CUDA_STORED_CALL_CUH

#include "cuda_blocks.cuh"
#include "cuda_finish.cuh"
#include "cuda_plan.h"

/* What every CTA of a launch needs before its first logits are on their way, and then of its row: all that most calls ask for, side
 * by side, because constant memory too is cold when a launch begins. */
typedef struct stored_call {
    fs_cuda_share share;
    int32_t first_row;   /* row of the batch that the launch begins with */
    int64_t stride;      /* bytes from row to row */
    const char *data;    /* row 0 of the batch, where token 0 of the whole vocabulary would be */
    int32_t shaped;      /* the head has a bias, a rounding, scales or a soft-cap */
    int32_t tokens_only; /* of the results only tokens and status are asked for */
    int32_t plain_rules; /* what follows is all there is to a row's rules; else the batch has to be read */
    uint32_t status;     /* of all rows, before any logit */
    const void *slot;    /* as in fs_batch, from here on */
    int64_t slots;
    int32_t wide_slots; /* of 64 bits */
    const uint64_t *position, *seed;
    uint64_t position_all, seed_all;
    const float *temperature;
    float temperature_all;
    uint32_t stream_all;
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

/* ----------------------------------------------------------------------------------------------------- rules ---- */

/* Rules that arrays hold which few batches have. */
static __device__ __noinline__ void read_rules(const fs_cuda_args &args, fs_judged_row *row, int32_t b) {
    *row = judged_row(args, b);
}

/* What memory holds of a row's rules, where arrays hold no more than the call says. */
struct memory_rules {
    int64_t slot;
    uint64_t position, seed;
    float temperature;
};

/* Begun before the first logits are: behind these it would take microseconds (H200, 2026-11: 4). */
FS_DEVICE memory_rules fetch_rules(const stored_call &call, int32_t b) {
    const int32_t at = call.first_row + b;
    memory_rules rules = {at, call.position_all, call.seed_all, call.temperature_all};
    if (call.slot) rules.slot = call.wide_slots ? ((const int64_t *)call.slot)[at] : ((const int32_t *)call.slot)[at];
    if (rules.slot < 0 || rules.slot >= call.slots) return rules;
    if (call.position) rules.position = load_now(call.position + at);
    if (call.seed) rules.seed = load_now(call.seed + rules.slot);
    if (call.temperature) rules.temperature = load_now(call.temperature + rules.slot);
    return rules;
}

/* What rules_of_row of core/rules.h says of the row. */
FS_DEVICE fs_judged_row plain_row(const stored_call &call, const memory_rules &rules) {
    if (rules.slot < 0 || rules.slot >= call.slots)
        return {noise_row(0, 0, 0, 0), 1.0f, 1.0f,
                rules.slot == -1 ? (uint32_t)FS_ROW_SKIPPED : (uint32_t)FS_ROW_BAD_SLOT, 0};
    const uint64_t seed = call.seed ? rules.seed : noise_spread_seed(rules.seed, (uint64_t)rules.slot);
    fs_judged_row row = {noise_row(seed, rules.position, 0, call.stream_all), 1.0f, 1.0f, call.status,
                         rules.temperature == 0.0f};
    if (row.greedy) return row;
    row.inverse = 1.0f / rules.temperature;
    row.temperature = rules.temperature;
    if (!(rules.temperature > 0.0f) || !(row.inverse > 0.0f && row.inverse < INFINITY))
        row.status |= FS_ROW_BAD_TEMPERATURE;
    return row;
}

/* ------------------------------------------------------------------------------------------------------ host ---- */

/* What is the same for all rows where the rules have no more arrays than stored_call: rules_of_row of a row without them. */
static inline uint32_t status_of_all(const fs_batch &batch, int64_t vocab) {
    fs_batch bare = batch;
    bare.slot = NULL, bare.position = NULL, bare.seed = NULL, bare.temperature = NULL;
    bare.all.temperature = 1.0f;
    return rules_of_row(&bare, vocab, 0).status;
}

static inline stored_call call_of(const fs_cuda_stored_plan &plan, const fs_cuda_args &args, int32_t shaped) {
    const fs_head &head = args.head;
    const fs_batch &batch = args.batch;
    const fs_result &result = args.result;
    const int64_t size = head.dtype == FS_F32 ? 4 : 2;
    stored_call call;
    memset(&call, 0, sizeof call);
    call.share = plan.share;
    call.first_row = args.first_row;
    call.stride = head.stride ? head.stride : head.rows * size;
    call.data = (const char *)((uintptr_t)head.data - (uintptr_t)(head.first_token * size));
    call.shaped = shaped;
    call.tokens_only = !args.exchange.header && !result.score && !result.logit && !result.logprob && !result.log_z &&
                       !result.max_logit;
    call.plain_rules = !batch.stream && !batch.top_k && !batch.top_p && !batch.min_p && !batch.repetition &&
                       !batch.frequency && !batch.presence && !batch.allow && !batch.edit_offset && !batch.edit_count &&
                       !batch.seen && !batch.counts && !batch.count_offset;
    if (call.plain_rules) call.status = status_of_all(batch, args.vocab);
    call.slot = batch.slot;
    call.wide_slots = batch.slot_dtype == FS_I64;
    call.slots = batch.slots ? batch.slots : batch.rows;
    call.position = batch.position;
    call.seed = batch.seed;
    call.position_all = batch.position_all;
    call.seed_all = batch.all.seed;
    call.temperature = batch.temperature;
    call.temperature_all = batch.all.temperature;
    call.stream_all = batch.all.stream;
    return call;
}

#endif
