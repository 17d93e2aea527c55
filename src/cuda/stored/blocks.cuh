/* blocks.cuh - stored logits of one row, brought to a warp's shared memory ahead of their use, a block of 128 ids at a
 * time.
 *
 *   row in memory    ..[ block ][ block ][ block ].. --cp.async--> ring of slots --> four neighbours per lane
 *
 * A block is one of the noise's: it starts at a multiple of 128 in global ids, whatever the shard's first id or the
 * row's address. Slots hold it in the order of ids, so lanes read what other lanes have fetched: a __syncwarp stands
 * between.
 *
 * Plain blocks are there as a whole, start at a multiple of 16 bytes, and need no bias, scale or the like: they come in
 * pieces of 16 bytes and take a few instructions. The others have functions of their own: pieces of 4 bytes where
 * blocks lie badly, tokens one by one at the ends of a shard. */
#ifndef FS_CUDA_BLOCKS_CUH
#define FS_CUDA_BLOCKS_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/ptx.cuh"

#include "core/format.h"
#include "core/head.h"
#include "core/key.h"
#include "core/noise.h"

template <int DTYPE> constexpr int ELEMENT = DTYPE == FS_F32 ? 4 : 2; /* bytes */
/* Blocks a warp has in flight: 2 KB, so that the 24 warps of an SM keep 48 KB in flight. More is not faster, and
 * instructions that are fetched behind it come later (docs/notes/stored-logits.md). */
template <int DTYPE> constexpr int DEPTH = 2048 / (FS_NOISE_BLOCK * ELEMENT<DTYPE>);
/* Bytes of a slot. 16-bit rows may start at an odd multiple of two: pieces of four then start one token early. */
template <int DTYPE> constexpr int SLOT = FS_NOISE_BLOCK *ELEMENT<DTYPE> + (DTYPE == FS_F32 ? 0 : 32);
static_assert(SLOT<FS_BF16> % 32 == 0, "copies to 16 bytes past a multiple of 32 are slower");

/* Where a row's logits are. */
struct stored_row {
    uint64_t base;       /* address that token 0 of the whole vocabulary would have */
    int32_t low, high;   /* tokens that are there and are drawn from */
    int32_t first, last; /* blocks that are there as a whole: first .. last - 1 */
    int32_t wide;        /* blocks start at multiples of 16 bytes */
    int32_t odd;         /* bytes a block starts after a multiple of four: 0 or 2 */
    const fs_head *head; /* whose bias, rounding, scales and soft-cap are to be applied; NULL: there are none */
};

FS_DEVICE bool is_there(const stored_row &row, int32_t token) {
    return token >= row.low && token < row.high;
}

/* Blocks of one warp for one record: neighbours, so that what it has in flight is one stretch of memory. */
struct stretch {
    uint64_t base;        /* of the row, plus this lane's place in a piece */
    int32_t first, count; /* blocks first .. first + count - 1 */
    int32_t span;         /* of these, the first so many are plain */
};

/* A stretch that begins with a part of a block, as at the start of some shards, has none: there is one per row at
 * most. */
FS_DEVICE stretch make_stretch(const stored_row &row, int32_t first, int32_t count) {
    const bool some = row.wide && !row.head && first >= row.first;
    return {row.base + 16 * (threadIdx.x & 31), first, count, some ? min(row.last - first, count) : 0};
}

/* ------------------------------------------------------------------------------------------------------ load ---- */

/* Starts fetching a block that is not plain. Tokens past the row's ends are not read, and their place in the slot is
 * left as it is. */
template <int DTYPE>
static __device__ __noinline__ void fetch_odd_block(const stored_row *row, int32_t block, uint32_t slot) {
    constexpr int SIZE = ELEMENT<DTYPE>, BYTES = FS_NOISE_BLOCK * SIZE, TOKENS = 4 / SIZE;
    const int32_t lane = threadIdx.x & 31, odd = row->odd;
    if (row->wide && block >= row->first && block < row->last) {
        if (lane < BYTES / 16)
            copy_16(slot + 16 * lane, (const void *)(row->base + (int64_t)block * BYTES + 16 * lane));
        return;
    }
#pragma unroll 1
    for (int32_t piece = lane; piece < BYTES / 4 + (odd ? 1 : 0); piece += 32) {
        const int32_t token = block * FS_NOISE_BLOCK + piece * TOKENS - odd / SIZE;
        const uint64_t from = row->base + (int64_t)token * SIZE;
        if (token >= row->low && token + TOKENS <= row->high) copy_4(slot + 4 * piece, (const void *)from);
        else
#pragma unroll
            for (int i = 0; i < TOKENS; i++) {
                if (!is_there(*row, token + i)) continue;
                if constexpr (SIZE == 4) store_shared_4(slot + 4 * piece, *(const uint32_t *)from);
                else store_shared_2(slot + 4 * piece + 2 * i, ((const uint16_t *)from)[i]);
            }
    }
}

/* The same of a plain one. `from`: where this lane's piece of it is. */
template <int DTYPE> FS_DEVICE void fetch_plain(uint64_t from, uint32_t slot) {
    constexpr int PIECES = FS_NOISE_BLOCK * ELEMENT<DTYPE> / 16;
    const int32_t lane = threadIdx.x & 31;
    if (PIECES == 32 || lane < PIECES) copy_16(slot + 16 * lane, (const void *)from);
}

/* Blocks i and i + 1 of the stretch into neighbouring slots, as far as they are there. */
template <int DTYPE> FS_DEVICE void fetch_two(const stored_row *row, const stretch &mine, int32_t i, uint32_t slot) {
    constexpr int BYTES = FS_NOISE_BLOCK * ELEMENT<DTYPE>;
    const uint64_t from = mine.base + (int64_t)(mine.first + i) * BYTES;
    if (i < mine.span) fetch_plain<DTYPE>(from, slot);
    if (i + 1 < mine.span) fetch_plain<DTYPE>(from + BYTES, slot + SLOT<DTYPE>);
    else
#pragma unroll 1
        for (int32_t k = max(i, mine.span); k < min(i + 2, mine.count); k++)
            fetch_odd_block<DTYPE>(row, mine.first + k, slot + (k - i) * SLOT<DTYPE>);
}

template <int DTYPE> FS_DEVICE float widen(uint32_t bits) {
    if constexpr (DTYPE == FS_F32) return __uint_as_float(bits);
    else if constexpr (DTYPE == FS_BF16) return __uint_as_float(bits << 16);
    else return widen_f16(bits);
}

/* ------------------------------------------------------------------------------------------------- transform ---- */

/* The raw logit of a token that is there. Out of line: soft-caps are large. */
static __device__ __noinline__ float shape_logit(float x, const fs_head &head, int32_t token) {
    if (head.bias) x += head.bias[token - head.first_token];
    return head_logit(&head, x);
}

/* The raw logits of this lane's four neighbours of a block that is not plain; -inf where a token is not there. */
template <int DTYPE>
static __device__ __noinline__ float4 take_odd(const stored_row *row, int32_t block, uint32_t slot) {
    const int32_t place = 4 * (threadIdx.x & 31);
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int32_t token = block * FS_NOISE_BLOCK + place + e;
        x[e] = -INFINITY;
        if (!is_there(*row, token)) continue;
        if constexpr (DTYPE == FS_F32) x[e] = __uint_as_float(load_shared_4(slot + 4 * (place + e)));
        else x[e] = widen<DTYPE>(load_shared_2(slot + row->odd + 2 * (place + e)));
        if (row->head) x[e] = shape_logit(x[e], *row->head, token);
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* The raw logit of a token of row b of the launch. */
static __device__ __noinline__ float stored_logit(const fs_cuda_args &args, int32_t b, uint32_t token) {
    const fs_head &head = args.head;
    const fs_matrix logits = logits_of_head(&head);
    const char *row = matrix_row(&logits, args.first_row + b);
    const int64_t v = token - head.first_token;
    float x;
    if (head.dtype == FS_F32) x = ((const float *)row)[v];
    else if (head.dtype == FS_BF16) x = widen<FS_BF16>(((const uint16_t *)row)[v]);
    else x = widen<FS_F16>(((const uint16_t *)row)[v]);
    return shape_logit(x, head, (int32_t)token);
}

/* That of the token drawn with this key, for results that need it; NaN where they do not, or it is not stored. */
FS_DEVICE float drawn_logit(const fs_cuda_args &args, int32_t b, uint64_t key) {
    if (!key || args.head.kind != FS_HEAD_LOGITS || !args.needs.winner_logit) return NAN;
    return stored_logit(args, b, score_key_token(key));
}

/* This lane's four neighbours of the plain block in a slot. */
template <int DTYPE> FS_DEVICE void take_plain(float *x, uint32_t slot) {
    const int32_t lane = threadIdx.x & 31;
    if constexpr (DTYPE == FS_F32) {
        const uint4 four = load_shared_16(slot + 16 * lane);
        x[0] = __uint_as_float(four.x), x[1] = __uint_as_float(four.y);
        x[2] = __uint_as_float(four.z), x[3] = __uint_as_float(four.w);
    } else {
        const uint2 four = load_shared_8(slot + 8 * lane);
        x[0] = widen<DTYPE>(four.x & 0xFFFF), x[1] = widen<DTYPE>(four.x >> 16);
        x[2] = widen<DTYPE>(four.y & 0xFFFF), x[3] = widen<DTYPE>(four.y >> 16);
    }
}

/* The raw logits of this lane's four neighbours in blocks i and i + 1 of the stretch; -inf in one that is not there. */
template <int DTYPE>
FS_DEVICE void take_two(float (&x)[8], const stored_row *row, const stretch &mine, int32_t i, uint32_t slot) {
    if (i < mine.span) take_plain<DTYPE>(x, slot);
    if (i + 1 < mine.span) {
        take_plain<DTYPE>(x + 4, slot + SLOT<DTYPE>);
        return;
    }
    if (i >= mine.span) {
        const float4 four = take_odd<DTYPE>(row, mine.first + i, slot);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    }
    float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if (i + 1 < mine.count) four = take_odd<DTYPE>(row, mine.first + i + 1, slot + SLOT<DTYPE>);
    x[4] = four.x, x[5] = four.y, x[6] = four.z, x[7] = four.w;
}

#endif
