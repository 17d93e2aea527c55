/* image.cuh - a launch in front of a pass for many rows: hidden states as that pass wants them. A CTA for
 * each record of the screen. */
#ifndef FS_CUDA_SCREEN_IMAGE_CUH
#define FS_CUDA_SCREEN_IMAGE_CUH

#include "cuda/screen/contest.cuh"
#include "cuda/screen/history.cuh"

/* The image of up to 32 hidden states, beside a screen; bf16 as wgmma takes its second operand from shared memory
 * (K-major, swizzled by 128 bytes):
 *
 *   bf16 [records][2 chunks][32][64]   in the screen's order of columns
 *   bf16 [groups / 64][32][64]         what bounds need of each group of columns (screen.h), rounded up; a group is a
 *                                      chunk (4 bits) or a record (8 bits); zeros behind the last
 *   bf16 [3][groups / 64][32][64]      4 bits: what the offset of the numbers adds to a group's sum, taken off, as a
 *                                      sum of three
 *   float [groups][32]                 what bounds need, not rounded */
typedef struct fs_wide_image {
    int32_t records, groups;
    int32_t sums_at, sum_bytes, sums; /* operands of all groups, which have so many bytes each */
    int32_t norms_at, bytes;
} fs_wide_image;

#define FS_IMAGE_RECORD (FS_WIDE_ROWS * 2 * 128) /* bytes of a record */

FS_CORE fs_wide_image wide_image(const fs_screen *s) {
    fs_wide_image m;
    m.records = (int32_t)s->records;
    m.groups = m.records * (s->format == FS_SCREEN_INT4 ? 2 : 1);
    m.sums_at = m.records * FS_IMAGE_RECORD;
    m.sum_bytes = (m.groups + 63) / 64 * FS_WIDE_ROWS * 128;
    m.sums = s->format == FS_SCREEN_INT4 ? 4 : 1;
    m.norms_at = m.sums_at + m.sums * m.sum_bytes;
    m.bytes = m.norms_at + m.groups * FS_WIDE_ROWS * (int32_t)sizeof(float);
    return m;
}

constexpr int FS_IMAGE_THREADS = 512;

/* Up, to what bf16 has; of numbers that are not negative. */
FS_DEVICE uint32_t bf16_up(float x) {
    return (__float_as_uint(x) + 0xFFFFu) >> 16;
}

/* Bytes of a row's 16-byte unit j in its line of 128. */
FS_DEVICE int32_t swizzled(int32_t row, int32_t unit) {
    return row * 128 + ((unit ^ (row & 7)) << 4);
}

/* Of a row and group, into one of the operands of all groups. */
FS_DEVICE void put_sum(const fs_wide_image &image, char *to, int sum, int32_t row, int32_t group, uint32_t half) {
    char *own = to + image.sums_at + sum * image.sum_bytes + group / 64 * FS_WIDE_ROWS * 128;
    *(uint16_t *)(own + swizzled(row, group % 64 / 8) + group % 8 * 2) = (uint16_t)half;
}

/* Eight lanes have a row's 64 columns, 16 bytes of the image each: of every 16 columns of the screen's order two. */
template <int BITS>
__global__ void __launch_bounds__(FS_IMAGE_THREADS)
    make_image(const __grid_constant__ fs_cuda_args args, const fs_wide_image image, char *to) {
    wait_for_earlier_launches();
    let_next_launch_begin();
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const int32_t record = blockIdx.x, dim = (int32_t)args.head.dim;
    char *own = to + record * FS_IMAGE_RECORD;
    const bool leaves = leaves_to_weights(args);
    if (record == 0 && threadIdx.x == 0 && args.first_row == 0) *args.screen.open = leaves;
    if (leaves) return;
    for (int32_t i = threadIdx.x; i < FS_WIDE_ROWS * 16; i += FS_IMAGE_THREADS) {
        const int32_t unit = i % 8, chunk = i / 8 % 2, b = i / 16;
        const int32_t column = record * FS_SCREEN_SPAN + chunk * FS_SCREEN_CHUNK + 2 * unit;
        const char *row = matrix_row(&hidden, args.first_row + min(b, args.rows - 1));
        uint4 words;
        float square = 0.0f, sum = 0.0f;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const int32_t at = column + 16 * t;
            const uint32_t pair = b < args.rows && at < dim ? *(const uint32_t *)(row + 2 * at) : 0u;
            (&words.x)[t] = pair;
            const float x = __uint_as_float(pair << 16), y = __uint_as_float(pair & 0xFFFF0000u);
            square = fmaf(x, x, fmaf(y, y, square));
            sum += x + y;
        }
        *(uint4 *)(own + chunk * FS_WIDE_ROWS * 128 + swizzled(b, unit)) = words;
#pragma unroll
        for (int apart = 1; apart < (BITS == 4 ? 8 : 16); apart *= 2) {
            square += __shfl_xor_sync(~0u, square, apart);
            sum += __shfl_xor_sync(~0u, sum, apart);
        }
        if (unit != 0 || (BITS == 8 && chunk != 0)) continue;
        square = square * (1.0f + 0x1p-15f) + 1e-30f; /* 128 sums, each off by 2^-24 */
        const float norm = BITS == 4 ? square : sqrtf(square) * (1.0f + 0x1p-20f);
        const int32_t group = BITS == 4 ? 2 * record + chunk : record;
        put_sum(image, to, 0, b, group, bf16_up(norm));
        ((float *)(to + image.norms_at))[group * FS_WIDE_ROWS + b] = norm;
        if (BITS == 8) continue;
        float offset = -FS_OFFSET * sum;
        for (int i = 1; i < 4; i++) {
            const float part = __uint_as_float(__float_as_uint(offset) & 0xFFFF0000u); /* exact as bf16 */
            put_sum(image, to, i, b, group, __float_as_uint(part) >> 16);
            offset -= part;
        }
    }
    if (record != image.records - 1) return;
    const int32_t behind = (image.groups + 63) / 64 * 64 - image.groups;
    for (int32_t i = threadIdx.x; i < behind * FS_WIDE_ROWS; i += FS_IMAGE_THREADS) {
        const int32_t b = i % FS_WIDE_ROWS, group = image.groups + i / FS_WIDE_ROWS;
        for (int sum = 0; sum < image.sums; sum++) put_sum(image, to, sum, b, group, 0);
    }
}

#endif
