/* logits.cuh - the logits of one row, x and y of every token, as the CTA that ends the row has them in memory.
 *
 *   stored logits, plain float          where the caller has them
 *   other stored logits, dot products   x in work memory: bias, rounding, scales, soft-cap, allow-bitmask
 *   rows whose tokens are edited        y beside it: edits and penalties
 *
 * A NaN is -inf, and flagged; where memory is the caller's it stays a NaN there, so readers ask x > -inf. */
#ifndef FS_CUDA_ROWS_LOGITS_CUH
#define FS_CUDA_ROWS_LOGITS_CUH

#include "cuda/device/edits.cuh"
#include "cuda/rows/block.cuh"

#include "core/format.h"
#include "core/head.h"

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

/* y of the row from its x: penalties that every token can have, then tokens that are listed, each by the first entry
 * that names it. Who that is the entries find out in y itself, by the bits of negative NaNs, which arithmetic here
 * never makes. */
FS_DEVICE void edit_row(const fs_cuda_edits &e, const float *x, int32_t low, int32_t count, float *y) {
    constexpr uint32_t NAMES = 0x7FFFFEu;
    uint32_t *bits = (uint32_t *)y;
    auto plain = [](float v) { return v == v ? v : -INFINITY; };
    each_value(x, count, [&](int32_t i, float v) { y[i] = penalised(e, plain(v), low + i, {0, 0}); });
    const int64_t all = e.edits + e.listed;
    if (all == 0) return;
    auto token_at = [&](int64_t i) { return i < e.edits ? e.edit_token[i] : e.count_token[i - e.edits]; };
    auto name = [&](int64_t i) { return ~0u - (uint32_t)(i < NAMES ? i : NAMES); };
    __syncthreads();
    for (int64_t i = threadIdx.x; i < all; i += ROW_THREADS) {
        const int32_t at = token_at(i) - low;
        if (at >= 0 && at < count) atomicMax(&bits[at], name(i));
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < all; i += ROW_THREADS) {
        const int32_t token = token_at(i), at = token - low;
        if (at < 0 || at >= count || *(volatile uint32_t *)&bits[at] != name(i)) continue;
        y[at] = edit_logit(e, plain(x[at]), token, {0, e.edits}, {0, e.listed});
    }
}

#endif
