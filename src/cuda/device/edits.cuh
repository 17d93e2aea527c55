/* edits.cuh - what is done to the tokens of a row beside its head and its mask: edits, then penalties, or the other way
 * round. A row whose logits are in memory is edited as a whole (rows/logits.cuh). In a pass over W it is looked up for
 * the few tokens that matter, in tables that a launch before it has made (fused/edits.cu). */
#ifndef FS_CUDA_EDITS_CUH
#define FS_CUDA_EDITS_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/ptx.cuh"

#include "core/needs.h"

FS_DEVICE const uint32_t *bits_row(const uint32_t *bits, int64_t stride, int64_t index, int64_t vocab) {
    if (!bits || index < 0) return NULL;
    return (const uint32_t *)((const char *)bits + index * (stride ? stride : (vocab + 31) / 32 * 4));
}

FS_DEVICE bool bit_at(const uint32_t *bits, int64_t token) {
    return bits[token / 32] >> (token % 32) & 1;
}

FS_DEVICE fs_cuda_edits edits_of_row(const fs_batch *batch, const fs_row_rules *rules, int64_t vocab, int64_t b) {
    const fs_edits edits = batch_edits(batch, b, rules->slot);
    fs_cuda_edits e = {};
    e.edit_token = batch->edit_token + edits.first;
    e.edit_bias = batch->edit_bias + edits.first;
    e.edits = edits.count;
    e.last = batch->flags & FS_EDITS_LAST ? 1 : 0;
    e.penalises = batch_penalises(batch) && rules_penalise(rules);
    if (!e.penalises) return e;
    e.repetition = rules->repetition;
    e.frequency = rules->frequency;
    e.presence = rules->presence;
    e.seen = bits_row(batch->seen, batch->seen_stride, rules->slot, vocab);
    if (batch->counts) {
        const int64_t bytes = batch->counts_stride ? batch->counts_stride : vocab * 4;
        e.counts = (const int32_t *)((const char *)batch->counts + rules->slot * bytes);
    } else if (batch->count_offset) {
        const int64_t first = batch->count_offset[rules->slot];
        e.count_token = batch->count_token + first;
        e.count_value = batch->count_value + first;
        e.listed = batch->count_offset[rules->slot + 1] - first;
    }
    return e;
}

/* Entries [from, to) of a list. */
struct entries {
    int64_t from, to;
};

FS_DEVICE float edited(const fs_cuda_edits &e, float y, int32_t token, entries in) {
    for (int64_t i = in.from; i < in.to; i++) {
        if (e.edit_token[i] != token || !(y > -INFINITY)) continue;
        const float bias = e.edit_bias[i];
        y = bias == -INFINITY ? bias : y + bias; /* a ban of +inf is a ban, not a NaN */
    }
    return y;
}

FS_DEVICE float penalised(const fs_cuda_edits &e, float y, int32_t token, entries in) {
    if (!e.penalises) return y;
    int32_t count = e.counts ? e.counts[token] : 0;
    for (int64_t i = in.from; i < in.to; i++) {
        if (e.count_token[i] != token) continue;
        const int64_t sum = (int64_t)count + e.count_value[i];
        count = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : (int32_t)sum;
    }
    const bool seen = e.seen && bit_at(e.seen, token);
    if (!seen && count <= 0) return y;
    fs_row_rules rules;
    rules.repetition = e.repetition;
    rules.frequency = e.frequency;
    rules.presence = e.presence;
    return rules_penalised(&rules, y, seen, count);
}

/* y of a token with this x, no NaN, and these entries of both lists. */
FS_DEVICE float edit_logit(const fs_cuda_edits &e, float x, int32_t token, entries edits, entries counts) {
    if (!e.last) x = edited(e, x, token, edits);
    x = penalised(e, x, token, counts);
    return e.last ? edited(e, x, token, edits) : x;
}

/* ----------------------------------------------------------------------------------------------------- tables ---- */

/* A table's places are 0, or a token and 1 + its first entry: 20 and 12 bits, so for as many tokens as may be listed
 * (cuda_rows.c), and lists of half as many entries as it has places. */
FS_DEVICE uint32_t table_place(uint32_t token) {
    return token * 2654435761u >> (32 - FS_CUDA_TABLE_BITS);
}

FS_DEVICE uint32_t table_next(uint32_t place) {
    return (place + 1) % FS_CUDA_TABLE;
}

FS_DEVICE uint32_t table_entry(uint32_t token, int64_t i) {
    return token << 12 | (uint32_t)(i + 1);
}

/* The entries of a list of `count` that name a token: the first, or where some token has several all from there on. */
FS_DEVICE entries find_entries(const uint32_t *table, int32_t token, int64_t count, bool several) {
    if (count == 0) return {0, 0};
    uint32_t place = table_place((uint32_t)token), found = table[place];
#pragma unroll 1
    while (found && found >> 12 != (uint32_t)token) found = table[place = table_next(place)];
    if (!found) return {0, 0};
    const int64_t first = (int64_t)(found & 0xFFF) - 1;
    return {first, several ? count : first + 1};
}

/* y of a token of row b of a launch. Out of line: it is looked up in several places, and some memory latencies long. */
static __device__ __noinline__ float look_up(const fs_cuda_args &args, int32_t b, int32_t token, float x) {
    const fs_cuda_edits e = args.edits.row[b];
    const uint32_t *table = args.edits.table + (int64_t)b * 2 * FS_CUDA_TABLE;
    return edit_logit(e, x, token, find_entries(table, token, e.edits, e.several & FS_SEVERAL_EDITS),
                      find_entries(table + FS_CUDA_TABLE, token, e.listed, e.several & FS_SEVERAL_COUNTS));
}

#endif
