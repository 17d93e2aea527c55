/* image.h - hidden states as a pass over a screen for many rows finds them in work memory: shared by host and kernels. */
#ifndef FS_CUDA_SCREEN_IMAGE_H
#define FS_CUDA_SCREEN_IMAGE_H

#include "cuda/cuda_call.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#define FS_WIDE_ROWS 32 /* of one pass for many rows, at most */

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

/* Tensor maps of a screen: 4 bits: records; 8 bits: chunks, and what is behind them. Numbers of 8 bytes. */
typedef struct fs_wide_maps {
    CUtensorMap numbers, tails;
} fs_wide_maps;

#ifdef __cplusplus
extern "C" {
#endif

/* The pass for many rows: whether shared memory is enough for it; once per device; its launches, the image in `memory`. */
int32_t fs_cuda_wide_fits(const fs_screen *s, int32_t shared_bytes);
cudaError_t fs_cuda_wide_open(int32_t shared_bytes);
cudaError_t fs_cuda_wide_launch(const fs_cuda_args *args, const fs_wide_maps *maps, char *memory, int32_t processors,
                                int32_t shared_bytes, int32_t shaped, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
