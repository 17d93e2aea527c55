/* logits.cuh - the logits of one row, x and y of every token, as the team that ends the row has them: a slice for each
 * CTA, whole blocks of the noise.
 *
 *   in shared memory, where slices fit    every place of a block is there, -inf where no token is, and no NaN
 *   else x where it was stored            bias, rounding, scales, soft-cap, allow-bitmask are done in place there
 *   and y in work memory                  of rows whose tokens are edited
 *
 * A NaN is -inf, and flagged. */
#ifndef FS_CUDA_ROWS_LOGITS_CUH
#define FS_CUDA_ROWS_LOGITS_CUH

#include "cuda/device/edits.cuh"
#include "cuda/rows/block.cuh"

#include "core/format.h"
#include "core/head.h"

/* The tokens of a row that one CTA has: those from `low` to `high` - 1. */
struct row_slice {
    const float *v; /* of token `base` + i at [i] */
    int32_t base;   /* a multiple of the noise's blocks */
    int32_t blocks; /* of the noise from there on */
    int32_t low, high;
    int32_t place; /* of v in shared memory, if it is there: bytes */
    bool clean;    /* it is, as above */

    FS_DEVICE_MEMBER bool holds(int64_t token) const { return token >= low && token < high; }

    /* v, as an address that is known to be in shared memory. */
    FS_DEVICE_MEMBER const float *shared() const { return (const float *)(row_shared() + place); }

    FS_DEVICE_MEMBER float at(int32_t token) const {
        if (clean) return shared()[token - base];
        const float x = holds(token) ? v[token - base] : -INFINITY;
        return x == x ? x : -INFINITY;
    }

    FS_DEVICE_MEMBER float4 quad(int32_t i) const {
        if (clean) return ((const float4 *)shared())[i];
        const int32_t token = base + 4 * i;
        return make_float4(at(token), at(token + 1), at(token + 2), at(token + 3));
    }
};

/* A row as one CTA of its team sees it: its slices, and how tokens are shared out. */
struct row_view {
    row_slice x, y;
    int32_t low, high;    /* of the row */
    int32_t first, share; /* block of the noise the row begins in; blocks of a slice, the last ones may have fewer */

    FS_DEVICE_MEMBER bool holds(int64_t token) const { return token >= low && token < high; }
};

/* That of the rank-th CTA, whose slices, if they are in shared memory, begin at `place`. */
FS_DEVICE row_view view_of(const fs_cuda_args &args, int32_t rank, int32_t place) {
    const fs_head &head = args.head;
    row_view r;
    r.low = (int32_t)head.first_token;
    r.high = max(r.low, (int32_t)min(head.first_token + head.rows, (int64_t)args.vocab));
    r.first = r.low / FS_CUDA_TILE;
    const int32_t blocks = r.high > r.low ? (r.high - 1) / FS_CUDA_TILE + 1 - r.first : 0;
    r.share = (blocks + args.team.size - 1) / args.team.size;
    const int32_t mine = min(rank * r.share, blocks);
    r.x.base = (r.first + mine) * FS_CUDA_TILE;
    r.x.blocks = min(r.share, blocks - mine);
    r.x.low = max(r.low, r.x.base);
    r.x.high = min(r.high, r.x.base + r.x.blocks * FS_CUDA_TILE);
    r.x.clean = args.team.places > 0;
    r.x.place = place;
    r.x.v = r.x.clean ? r.x.shared() : NULL;
    r.y = r.x;
    return r;
}

FS_DEVICE float number_at(const char *row, int32_t format, int64_t i) {
    if (format == FS_FORMAT_F32) return ((const float *)row)[i];
    const uint16_t half = ((const uint16_t *)row)[i];
    return format == FS_FORMAT_BF16 ? widen_bf16(half) : widen_f16(half);
}

/* Runs f(token, v) for this thread's tokens of a slice whose v is not below `floor`, nor -inf. Most are: some quads are
 * looked at together, and only those that have one are read again. */
template <class F> FS_DEVICE void each_from(const row_slice s, float floor, F f) {
    constexpr int AT_ONCE = 4;
    const int32_t quads = s.blocks * (FS_CUDA_TILE / 4), step = (int32_t)blockDim.x;
#pragma unroll 1
    for (int32_t start = threadIdx.x; start < quads; start += AT_ONCE * step) {
        uint32_t hits = 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int32_t i = start + j * step;
            const float4 q = i < quads ? s.quad(i) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            const float most = fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w));
            if (most >= floor && most > -INFINITY) hits |= 1u << j;
        }
#pragma unroll 1
        for (; hits; hits &= hits - 1) {
            const int32_t first = s.base + 4 * (start + (__ffs((int)hits) - 1) * step);
#pragma unroll 1
            for (int32_t token = first; token < first + 4; token++) {
                const float v = s.at(token);
                if (v >= floor && v > -INFINITY) f(token, v);
            }
        }
    }
}

/* What is looked for while logits come. */
struct slice_facts {
    uint32_t flags = 0;
    float most = -INFINITY, least = INFINITY; /* of numbers above -inf */

    FS_DEVICE_MEMBER float look(float v) {
        if (v != v) flags |= FS_ROW_NAN, v = -INFINITY;
        most = fmaxf(most, v);
        least = v > -INFINITY ? fminf(least, v) : least;
        return v;
    }
};

/* Whether a head does no more than round and scale. */
FS_DEVICE bool head_is_simple(const fs_head &head) {
    return !head.bias && !(head.softcap > 0.0f);
}

/* head_logit of such a head. */
FS_DEVICE float simple_logit(const fs_head &head, float x) {
    if (head.round_to == FS_BF16) x = round_bf16(x);
    if (head.round_to == FS_F16) x = round_f16(x);
    return x * head.scale * head.post_scale;
}

/* Where a slice comes from, and where it goes; `to` is NULL where it stays. `low` is the row's first token. */
struct slice_source {
    const char *row;
    int32_t format, low;
    const uint32_t *allow;
    float *to; /* of token s.base, like s.v */

    FS_DEVICE_MEMBER const float *at(int32_t token) const { return (const float *)row + (token - low); }
};

/* Floats that need little done, from 16-byte addresses to shared memory, are copied while rules are read. */
FS_DEVICE bool is_copied(const fs_head &head, const slice_source &from, const row_slice &s) {
    return s.clean && from.format == FS_FORMAT_F32 && !from.allow && head_is_simple(head) &&
           (uintptr_t)from.at(s.base) % 16 == 0;
}

/* Quads of a slice that are there as a whole. */
struct whole_quads {
    int32_t low, high;

    FS_DEVICE_MEMBER explicit whole_quads(const row_slice &s)
        : low((s.low - s.base + 3) / 4), high((s.high - s.base) / 4) {}
};

FS_DEVICE void begin_copy(const slice_source &from, const row_slice s) {
    const whole_quads whole(s);
    const uint32_t to = shared_address(from.to);
    const float4 *quad = (const float4 *)from.at(s.base);
#pragma unroll 4
    for (int32_t i = whole.low + (int32_t)threadIdx.x; i < whole.high; i += blockDim.x) copy_16(to + 16 * i, quad + i);
}

/* What the copies brought, each thread its own ones, and the places around them. */
FS_DEVICE slice_facts end_copy(const fs_head &head, const slice_source &from, const row_slice s) {
    const whole_quads whole(s);
    const bool plain = head_is_plain(&head);
    slice_facts facts;
    auto put = [&](int32_t i, float v) { from.to[i] = facts.look(s.holds(s.base + i) ? v : -INFINITY); };
    wait_for_copies();
#pragma unroll 4
    for (int32_t i = whole.low + (int32_t)threadIdx.x; i < whole.high; i += blockDim.x) {
        float4 q = ((const float4 *)from.to)[i];
        if (!plain) {
            q = make_float4(simple_logit(head, q.x), simple_logit(head, q.y), simple_logit(head, q.z),
                            simple_logit(head, q.w));
            ((float4 *)from.to)[i] = q;
        }
        const float most = max_or_nan(max_or_nan(q.x, q.y), max_or_nan(q.z, q.w));
        const float least = fminf(fminf(q.x, q.y), fminf(q.z, q.w));
        facts.most = fmaxf(facts.most, most); /* which is not NaN's */
        if (most == most && least > -INFINITY) facts.least = fminf(facts.least, least);
        else
#pragma unroll 1
            for (int32_t e = 4 * i; e < 4 * i + 4; e++) put(e, from.to[e]);
    }
    const int32_t places = s.blocks * FS_CUDA_TILE, before = 4 * min(whole.low, whole.high);
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < before + places - 4 * whole.high; i += blockDim.x) {
        const int32_t at = i < before ? i : i - before + 4 * whole.high;
        put(at, s.holds(s.base + at) ? simple_logit(head, *from.at(s.base + at)) : -INFINITY);
    }
    return facts;
}

/* Any others. Loads together: one after the other they take 270 ns each (H200, 2026-11). What is done to logits is done
 * after all are there: between loads it would keep them on the stack. */
static __device__ __noinline__ slice_facts load_slice(const fs_head &head, const slice_source &from,
                                                      const row_slice s) {
    constexpr int AT_ONCE = 8;
    const bool ready = head_is_plain(&head) && !from.allow;
    const int32_t places = s.blocks * FS_CUDA_TILE, step = (int32_t)blockDim.x;
    auto keeps = [&](int32_t i) { return from.to && (s.clean ? i < places : s.holds(s.base + i)); };
    slice_facts facts;
#pragma unroll 1
    for (int32_t start = threadIdx.x; start < places; start += AT_ONCE * step) {
        float ahead[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int32_t token = s.base + start + j * step;
            ahead[j] = s.holds(token) ? number_at(from.row, from.format, token - from.low) : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int32_t i = start + j * step;
            if (ready) ahead[j] = facts.look(ahead[j]);
            if (keeps(i)) from.to[i] = ahead[j];
        }
    }
    if (ready) return facts;
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < places; i += step) {
        const int32_t token = s.base + i;
        if (!s.holds(token)) continue;
        float x = from.to[i];
        if (head.bias) x += head.bias[token - from.low];
        x = head_logit(&head, x);
        if (from.allow && !bit_at(from.allow, token)) x = -INFINITY;
        from.to[i] = facts.look(x);
    }
    return facts;
}

/* ------------------------------------------------------------------------------------------- edits, penalties ---- */

/* y of a slice from its x: penalties that every token can have, then tokens that are listed, each by the first entry
 * that names it. Who that is the entries find out in y itself, by the bits of negative NaNs, which arithmetic here
 * never makes. `whole`: y has a place for every token of a block. */
static __device__ __noinline__ slice_facts edit_slice(const fs_cuda_edits &e, const row_slice &x, float *y,
                                                      bool whole) {
    constexpr uint32_t NAMES = 0x7FFFFEu;
    const int32_t places = x.blocks * FS_CUDA_TILE;
    uint32_t *bits = (uint32_t *)y;
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < places; i += blockDim.x) {
        const int32_t token = x.base + i;
        if (x.holds(token)) y[i] = penalised(e, x.at(token), token, {0, 0});
        else if (whole) y[i] = -INFINITY;
    }
    const int64_t all = e.edits + e.listed;
    auto token_at = [&](int64_t i) { return i < e.edits ? e.edit_token[i] : e.count_token[i - e.edits]; };
    auto name = [&](int64_t i) { return ~0u - (uint32_t)(i < NAMES ? i : NAMES); };
    __syncthreads();
    for (int64_t i = threadIdx.x; i < all; i += blockDim.x) {
        const int32_t token = token_at(i);
        if (x.holds(token)) atomicMax(&bits[token - x.base], name(i));
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < all; i += blockDim.x) {
        const int32_t token = token_at(i), at = token - x.base;
        if (!x.holds(token) || *(volatile uint32_t *)&bits[at] != name(i)) continue;
        y[at] = edit_logit(e, x.at(token), token, {0, e.edits}, {0, e.listed});
    }
    __syncthreads();
    slice_facts facts;
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < places; i += blockDim.x)
        if (x.holds(x.base + i)) y[i] = facts.look(y[i]);
    return facts;
}

#endif
