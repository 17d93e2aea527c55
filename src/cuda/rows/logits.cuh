/* logits.cuh - the logits of one row, x and y of every token, as the CTA that ends the row has them in memory.
 *
 *   stored logits, plain float          where the caller has them
 *   other stored logits, dot products   x in work memory: bias, rounding, scales, soft-cap, allow-bitmask
 *   rows whose tokens are edited        y beside it: edits and penalties
 *
 * A NaN is -inf, and flagged; where memory is the caller's it stays a NaN there, so readers ask x > -inf. */
#ifndef FS_CUDA_ROWS_LOGITS_CUH
#define FS_CUDA_ROWS_LOGITS_CUH

#include "cuda/cuda_call.h"
#include "cuda/rows/block.cuh"

#include "core/format.h"
#include "core/head.h"
#include "core/needs.h"

/* x and y of token `low` + i at [i], for tokens low .. high - 1. */
struct row_logits {
    const float *x, *y;
    int32_t low, high;

    FS_DEVICE_MEMBER bool holds(int64_t token) const { return token >= low && token < high; }
};

FS_DEVICE float number_at(const char *row, int32_t format, int64_t i) {
    if (format == FS_FORMAT_F32) return ((const float *)row)[i];
    const uint16_t half = ((const uint16_t *)row)[i];
    return format == FS_FORMAT_BF16 ? widen_bf16(half) : widen_f16(half);
}

FS_DEVICE const uint32_t *bits_row(const uint32_t *bits, int64_t stride, int64_t index, int64_t vocab) {
    if (!bits || index < 0) return NULL;
    return (const uint32_t *)((const char *)bits + index * (stride ? stride : (vocab + 31) / 32 * 4));
}

FS_DEVICE bool bit_at(const uint32_t *bits, int64_t token) {
    return bits[token / 32] >> (token % 32) & 1;
}

/* Runs f(i) for the places of this thread. */
template <class F> FS_DEVICE void each_place(int32_t count, F f) {
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < count; i += ROW_THREADS) f(i);
}

/* Runs f(i, v[i]) for them. Loads are together and ahead of their use: one after the other they take 270 ns each, 40 us
 * for 151,936 tokens. And since one processor has the whole row, each instruction of f takes 0.7 us (H200, 2026-11). */
template <class F> FS_DEVICE void each_value(const float *v, int32_t count, F f) {
    constexpr int AT_ONCE = 8;
    int32_t i = threadIdx.x;
#pragma unroll 1
    for (; i + (AT_ONCE - 1) * ROW_THREADS < count; i += AT_ONCE * ROW_THREADS) {
        float value[AT_ONCE];
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) value[e] = v[i + e * ROW_THREADS];
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) f(i + e * ROW_THREADS, value[e]);
    }
#pragma unroll 1
    for (; i < count; i += ROW_THREADS) f(i, v[i]);
}

/* Out of line: soft-caps are large. */
static __device__ __noinline__ float shape_token(const fs_head &head, float x, int32_t i) {
    if (head.bias) x += head.bias[i];
    return head_logit(&head, x);
}

/* x of the row into `to`, from stored numbers or, in place, from dot products. */
FS_DEVICE void shape_row(const fs_head &head, const char *from, int32_t format, const uint32_t *allow, int32_t low,
                         int32_t count, float *to) {
    const bool plain = head_is_plain(&head);
    auto put = [&](int32_t i, float x) {
        if (!plain) x = shape_token(head, x, i);
        to[i] = !allow || bit_at(allow, low + i) ? x : -INFINITY;
    };
    if (format == FS_FORMAT_F32) each_value((const float *)from, count, put);
    else each_place(count, [&](int32_t i) { put(i, number_at(from, format, i)); });
}

/* ------------------------------------------------------------------------------------------- edits, penalties ---- */

/* What is done to the tokens of a row. */
struct row_edits {
    const fs_batch *batch;
    const fs_rules *rules;
    fs_edits edits;        /* entries of edit_token */
    const uint32_t *seen;  /* NULL: none */
    const int32_t *counts; /* dense, by token; NULL: none */
    int64_t first, listed; /* entries of count_token */
    bool penalises;

    FS_DEVICE_MEMBER bool some() const { return edits.count > 0 || penalises; }

    /* Entries of both lists together: edits, then counts. */
    FS_DEVICE_MEMBER int64_t entries() const { return edits.count + listed; }

    FS_DEVICE_MEMBER int32_t token(int64_t i) const {
        return i < edits.count ? batch->edit_token[edits.first + i] : batch->count_token[first + i - edits.count];
    }
};

FS_DEVICE row_edits edits_of_row(const fs_batch *batch, const fs_rules *rules, int64_t vocab, int64_t b) {
    row_edits e = {batch, rules, batch_edits(batch, b, rules->slot), NULL, NULL, 0, 0, false};
    e.penalises = batch_penalises(batch) && rules_penalise(rules);
    if (!e.penalises) return e;
    e.seen = bits_row(batch->seen, batch->seen_stride, rules->slot, vocab);
    if (batch->counts) {
        const int64_t bytes = batch->counts_stride ? batch->counts_stride : vocab * 4;
        e.counts = (const int32_t *)((const char *)batch->counts + rules->slot * bytes);
    } else if (batch->count_offset) {
        e.first = batch->count_offset[rules->slot];
        e.listed = batch->count_offset[rules->slot + 1] - e.first;
    }
    return e;
}

FS_DEVICE float edited(const row_edits &e, float y, int32_t token) {
    for (int64_t i = 0; i < e.edits.count; i++) {
        if (e.batch->edit_token[e.edits.first + i] != token || !(y > -INFINITY)) continue;
        const float bias = e.batch->edit_bias[e.edits.first + i];
        y = bias == -INFINITY ? bias : y + bias; /* a ban of +inf is a ban, not a NaN */
    }
    return y;
}

FS_DEVICE float penalised(const row_edits &e, float y, int32_t token, bool listed) {
    if (!e.penalises) return y;
    int32_t count = e.counts ? e.counts[token] : 0;
    for (int64_t i = 0; listed && i < e.listed; i++) {
        if (e.batch->count_token[e.first + i] != token) continue;
        const int64_t sum = (int64_t)count + e.batch->count_value[e.first + i];
        count = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : (int32_t)sum;
    }
    const bool seen = e.seen && bit_at(e.seen, token);
    return seen || count ? rules_penalised(e.rules, y, seen, count) : y;
}

/* y of the row from its x: penalties that every token can have, then tokens that are listed, each by the first entry
 * that names it. Who that is the entries find out in y itself, by the bits of negative NaNs, which arithmetic here
 * never makes. */
FS_DEVICE void edit_row(const row_edits &e, const float *x, int32_t low, int32_t count, float *y) {
    constexpr uint32_t NAMES = 0x7FFFFEu;
    uint32_t *bits = (uint32_t *)y;
    auto plain = [](float v) { return v == v ? v : -INFINITY; };
    each_value(x, count, [&](int32_t i, float v) { y[i] = penalised(e, plain(v), low + i, false); });
    if (e.entries() == 0) return;
    auto name = [&](int64_t i) { return ~0u - (uint32_t)(i < NAMES ? i : NAMES); };
    __syncthreads();
    for (int64_t i = threadIdx.x; i < e.entries(); i += ROW_THREADS) {
        const int32_t at = e.token(i) - low;
        if (at >= 0 && at < count) atomicMax(&bits[at], name(i));
    }
    __syncthreads();
    const bool last = e.batch->flags & FS_EDITS_LAST;
    for (int64_t i = threadIdx.x; i < e.entries(); i += ROW_THREADS) {
        const int32_t token = e.token(i), at = token - low;
        if (at < 0 || at >= count || *(volatile uint32_t *)&bits[at] != name(i)) continue;
        float v = plain(x[at]);
        if (!last) v = edited(e, v, token);
        v = penalised(e, v, token, true);
        if (last) v = edited(e, v, token);
        y[at] = v;
    }
}

#endif
