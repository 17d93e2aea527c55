/* cuda_blocks.cuh - stored logits of one row, brought to a warp's shared memory ahead of their use, a block of 128 ids at a time.
 *
 *   row in memory    ..[ block ][ block ][ block ].. --cp.async--> ring of slots --> four neighbours per lane
 *
 * A block is one of the noise's: it starts at a multiple of 128 in global ids, whatever the shard's first id or the row's address. Slots
 * hold it in the order of ids, so lanes read what other lanes have fetched: a __syncwarp stands between.
 *
 * Plain blocks are there as a whole, start at a multiple of 16 bytes, and need no bias, scale or the like: they come in pieces of 16 bytes
 * and take a few instructions. The others have functions of their own: pieces of 4 bytes where blocks lie badly, tokens one by one at
 * the ends of a shard. */
#ifndef FS_CUDA_BLOCKS_CUH
#define FS_CUDA_BLOCKS_CUH

#include "cuda_call.h"
#include "cuda_ptx.cuh"

#include "core/halves.h"
#include "core/key.h"
#include "core/noise.h"

template <int DTYPE> constexpr int ELEMENT = DTYPE == FS_F32 ? 4 : 2; /* bytes */
/* Blocks a warp has in flight: 4 KB, so that the 24 warps of an SM keep 96 KB in flight; 64 KB saturate the memory. */
template <int DTYPE> constexpr int DEPTH = 4096 / (FS_NOISE_BLOCK * ELEMENT<DTYPE>);
/* Bytes of a slot. 16-bit rows may start at an odd multiple of two: pieces of four then start one token early. */
template <int DTYPE> constexpr int SLOT = FS_NOISE_BLOCK *ELEMENT<DTYPE> + (DTYPE == FS_F32 ? 0 : 16);
static_assert(SLOT<FS_BF16> % 16 == 0, "slots are copied to and read in pieces of 16 bytes");

/* Where a row's logits are. */
struct stored_row {
    uint64_t base;       /* address that token 0 of the whole vocabulary would have */
    int32_t low, high;   /* tokens that are there and are drawn from */
    int32_t first, last; /* blocks that are there as a whole: first .. last - 1 */
    int32_t wide;        /* blocks start at multiples of 16 bytes */
    int32_t odd;         /* bytes a block starts after a multiple of four: 0 or 2 */
    int32_t shaped;      /* the head has a bias, a rounding, scales or a soft-cap */
};

template <int DTYPE> FS_DEVICE stored_row find_row(const fs_cuda_args &args, int32_t b, int32_t shaped) {
    const fs_head &head = args.head;
    const int64_t stride = head.stride ? head.stride : head.rows * ELEMENT<DTYPE>;
    stored_row row;
    row.base = (uint64_t)head.data + (uint64_t)((args.first_row + b) * stride - head.first_token * ELEMENT<DTYPE>);
    row.low = (int32_t)head.first_token;
    row.high = (int32_t)min(head.first_token + head.rows, args.vocab);
    row.first = (row.low + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK;
    row.last = row.high / FS_NOISE_BLOCK;
    row.wide = row.base % 16 == 0;
    row.odd = (int32_t)(row.base % 4);
    row.shaped = shaped;
    return row;
}

FS_DEVICE bool is_there(const stored_row &row, int32_t token) {
    return token >= row.low && token < row.high;
}

/* What of a row is needed for plain blocks, in registers. */
struct plain_blocks {
    uint64_t base;         /* as above, plus this lane's place in a piece */
    uint32_t first, count; /* plain blocks: first .. first + count - 1 */
};

FS_DEVICE plain_blocks find_plain(const stored_row &row) {
    const bool some = row.wide && !row.shaped && row.last > row.first;
    return {row.base + 16 * (threadIdx.x & 31), (uint32_t)row.first, some ? (uint32_t)(row.last - row.first) : 0};
}

/* Whether blocks `block` and block + step are plain: so are then those between. */
FS_DEVICE bool are_plain(const plain_blocks &plain, int32_t block, int32_t step) {
    return block >= (int32_t)plain.first && (uint32_t)(block + step) - plain.first < plain.count;
}

/* ------------------------------------------------------------------------------------------------------ load ---- */

/* Starts fetching a block that is not plain. Tokens past the row's ends are not read, and their place in the slot is left as it is. */
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

/* The same of a plain one. */
template <int DTYPE> FS_DEVICE void fetch_plain(const plain_blocks &plain, int32_t block, uint32_t slot) {
    constexpr int BYTES = FS_NOISE_BLOCK * ELEMENT<DTYPE>;
    const int32_t lane = threadIdx.x & 31;
    if (BYTES == 512 || lane < BYTES / 16)
        copy_16(slot + 16 * lane, (const void *)(plain.base + (int64_t)block * BYTES));
}

/* Blocks `block` and, if `both`, block + step, into neighbouring slots. */
template <int DTYPE>
FS_DEVICE void fetch_two(const stored_row *row, const plain_blocks &plain, int32_t block, int32_t step, bool both,
                         uint32_t slot) {
    if (both && are_plain(plain, block, step)) {
        fetch_plain<DTYPE>(plain, block, slot);
        fetch_plain<DTYPE>(plain, block + step, slot + SLOT<DTYPE>);
    } else {
        fetch_odd_block<DTYPE>(row, block, slot);
        if (both) fetch_odd_block<DTYPE>(row, block + step, slot + SLOT<DTYPE>);
    }
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
    if (head.round == FS_BF16) x = round_bf16(x);
    if (head.round == FS_F16) x = round_f16(x);
    x *= head.scale;
    if (head.softcap > 0.0f) x = head.softcap * tanhf(x / head.softcap);
    return x * head.post_scale;
}

/* The raw logit at a place of the block in a slot; -inf if its token is not there. */
template <int DTYPE>
static __device__ __noinline__ float take_odd(const stored_row *row, const fs_head &head, int32_t block, int32_t place,
                                              uint32_t slot) {
    const int32_t token = block * FS_NOISE_BLOCK + place;
    if (!is_there(*row, token)) return -INFINITY;
    float x;
    if constexpr (DTYPE == FS_F32) x = __uint_as_float(load_shared_4(slot + 4 * place));
    else x = widen<DTYPE>(load_shared_2(slot + row->odd + 2 * place));
    return row->shaped ? shape_logit(x, head, token) : x;
}

/* The raw logit of the token drawn with this key, for results that want it; NaN where it is not asked for or not stored. */
static __device__ __noinline__ float drawn_logit(const fs_cuda_args &args, int32_t b, uint64_t key) {
    const fs_head &head = args.head;
    if (!key || head.kind != FS_HEAD_LOGITS || (!args.result.logit && !args.result.logprob)) return NAN;
    const int32_t token = (int32_t)score_key_token(key);
    const int64_t stride = head.stride ? head.stride : head.rows * (head.dtype == FS_F32 ? 4 : 2);
    const char *row = (const char *)head.data + (args.first_row + b) * stride;
    const int64_t v = token - head.first_token;
    float x;
    if (head.dtype == FS_F32) x = ((const float *)row)[v];
    else if (head.dtype == FS_BF16) x = widen<FS_BF16>(((const uint16_t *)row)[v]);
    else x = widen<FS_F16>(((const uint16_t *)row)[v]);
    return shape_logit(x, head, token);
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

/* The raw logits of this lane's four neighbours in blocks `block` and block + step; -inf in the second unless `both`. */
template <int DTYPE>
FS_DEVICE void take_two(float (&x)[8], const stored_row *row, const plain_blocks &plain, const fs_head &head,
                        int32_t block, int32_t step, bool both, uint32_t slot) {
    if (both && are_plain(plain, block, step)) {
        take_plain<DTYPE>(x, slot);
        take_plain<DTYPE>(x + 4, slot + SLOT<DTYPE>);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const bool second = e >= 4;
        x[e] = -INFINITY;
        if (!second || both)
            x[e] = take_odd<DTYPE>(row, head, second ? block + step : block, 4 * (threadIdx.x & 31) + e % 4,
                                   second ? slot + SLOT<DTYPE> : slot);
    }
}

#endif
