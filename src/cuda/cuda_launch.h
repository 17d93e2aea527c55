/* cuda_launch.h - the kernels as the host sees them. */
#ifndef FS_CUDA_LAUNCH_H
#define FS_CUDA_LAUNCH_H

#include "cuda_call.h"
#include "cuda_plan.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tensor maps of one launch: boxes of 128 and of 16 rows of W, and of the rows of H one CTA fetches. 64 columns
 * each. */
typedef struct fs_cuda_maps {
    CUtensorMap w_tile, w_box, h;
} fs_cuda_maps;

/* Of a screen, in numbers of 8 bytes: 4 bits: records; 8 bits: chunks, and what is behind them. */
typedef struct fs_wide_maps {
    CUtensorMap numbers, tails;
} fs_wide_maps;

/* Each family: its shapes; what to do once per device before the first launch (may allocate); a launch. `shaped`: the
 * head does something to its logits. */
const fs_cuda_shape *fs_cuda_sm90_shapes(int32_t *count);
cudaError_t fs_cuda_sm90_open(int32_t *clusters_of_two);
cudaError_t fs_cuda_sm90_launch(const fs_cuda_plan *plan, const fs_cuda_maps *maps, const fs_cuda_args *args,
                                int32_t shaped, cudaStream_t stream);

const fs_cuda_shape *fs_cuda_sm80_shapes(int32_t *count);
cudaError_t fs_cuda_sm80_open(int32_t shared_bytes);
cudaError_t fs_cuda_sm80_launch(const fs_cuda_plan *plan, const fs_cuda_args *args, int32_t shaped,
                                cudaStream_t stream);

/* Stored logits: once per device before the first launch, how many CTAs a processor runs at once; a launch. */
cudaError_t fs_cuda_stored_open(int32_t *ctas);
cudaError_t fs_cuda_stored_launch(const fs_cuda_stored_plan *plan, const fs_cuda_args *args, int32_t shaped,
                                  cudaStream_t stream);

/* After a pass that does not end its rows itself: from their records and what else is known of them to results. */
cudaError_t fs_cuda_end_launch(const fs_cuda_args *args, cudaStream_t stream);

/* Hidden states of rows whose samples are drawn as rows, a copy for each, 16-bit numbers open_stride() apart. */
cudaError_t fs_cuda_repeat_launch(const fs_cuda_args *args, void *copies, cudaStream_t stream);

/* What a pass looks up of its rows' edits and penalties, before it: args->edits. */
cudaError_t fs_cuda_edits_launch(const fs_cuda_args *args, cudaStream_t stream);

/* Rows with rules, whose logits are in memory: once per device before the first launch, device->team; shared memory a
 * CTA needs beside its slices; dot products of any float types, to args->dense; the end of a launch's rows, by
 * args->team. */
cudaError_t fs_cuda_rows_open(fs_cuda_device *device);
int32_t fs_cuda_rows_shared(int32_t grouped);
cudaError_t fs_cuda_dots_launch(const fs_cuda_args *args, cudaStream_t stream);
cudaError_t fs_cuda_rows_launch(const fs_cuda_args *args, cudaStream_t stream);

/* Rows that have been drawn and whose logits were kept, args->raced: once per device; the end of a launch's rows, or of
 * most: others are open, and in place. */
cudaError_t fs_cuda_raced_open(int32_t shared_bytes);
cudaError_t fs_cuda_raced_launch(const fs_cuda_args *args, int32_t processors, cudaStream_t stream);
/* Those of them whose winner does not stay, args->raced.again, by args->team; shared memory beside slices. */
cudaError_t fs_cuda_again_open(int32_t shared_bytes);
int32_t fs_cuda_again_shared(void);
cudaError_t fs_cuda_again_launch(const fs_cuda_args *args, cudaStream_t stream);

/* Ranks: the rows a launch has left into this rank's part, or its keys alone; `last`: they are the call's last. From
 * the parts of all ranks to results. */
cudaError_t fs_cuda_put_launch(const fs_cuda_args *args, void *part, int32_t keys, int32_t last, cudaStream_t stream);
cudaError_t fs_cuda_merge_launch(const fs_cuda_args *args, const fs_cuda_gathered *from, int32_t keys,
                                 cudaStream_t stream);
/* The same of rows with rules: once per device; the header of a part that has its rows; to results, *where->wrong being
 * 0 before. */
cudaError_t fs_cuda_merge_lists_open(int32_t shared_bytes);
cudaError_t fs_cuda_seal_launch(const fs_cuda_args *args, void *part, int32_t sealed, cudaStream_t stream);
cudaError_t fs_cuda_merge_lists_launch(const fs_cuda_args *args, const fs_cuda_gathered *from,
                                       const fs_cuda_merging *where, cudaStream_t stream);

/* Screens: once per device; how many rows a pass over one takes at once, 0: none; the pass over the rows of args, then
 * what settles them. Whether some are open is known on the device. */
cudaError_t fs_cuda_screen_open(int32_t shared_bytes);
int32_t fs_cuda_screen_rows(int64_t dim, int64_t rows, int32_t shared_bytes);
cudaError_t fs_cuda_screen_launch(const fs_cuda_args *args, int32_t rows, int32_t processors, int32_t shaped,
                                  cudaStream_t stream);
cudaError_t fs_cuda_settle_launch(const fs_cuda_args *args, int32_t shaped, cudaStream_t stream);
/* The pass for many rows, which Hopper has: whether shared memory is enough for it; bytes of what it makes of H; once
 * per device; its launches, with `memory` for that. */
int32_t fs_cuda_wide_fits(const fs_screen *s, int32_t shared_bytes);
int64_t fs_cuda_wide_bytes(const fs_screen *s);
cudaError_t fs_cuda_wide_open(int32_t shared_bytes);
cudaError_t fs_cuda_wide_launch(const fs_cuda_args *args, const fs_wide_maps *maps, char *memory, int32_t processors,
                                int32_t shared_bytes, int32_t shaped, cudaStream_t stream);
/* Rows that are cut: once per device; shared memory a CTA needs beside its slice; what of them is settled, by
 * args->team, before it is; and their end, behind it. */
cudaError_t fs_cuda_listed_open(int32_t shared_bytes);
int32_t fs_cuda_listed_shared(void);
cudaError_t fs_cuda_listed_launch(const fs_cuda_args *args, int32_t shaped, cudaStream_t stream);
cudaError_t fs_cuda_end_listed_launch(const fs_cuda_args *args, cudaStream_t stream);

/* Strips [from, to) of a screen whose bytes are zero; the sums of all strips, to sums [2], which are 0; and the last
 * strip that was made of other weights, 1 + its number, to *other, which is 0. */
cudaError_t fs_cuda_make_launch(const fs_head *head, const fs_screen_header *header, void *screen, int64_t from,
                                int64_t to, cudaStream_t stream);
cudaError_t fs_cuda_sum_launch(const fs_screen_header *header, const void *screen, uint64_t *sums, cudaStream_t stream);
cudaError_t fs_cuda_compare_launch(const fs_head *head, const fs_screen_header *header, int whole, uint64_t *other,
                                   cudaStream_t stream);

cudaError_t fs_cuda_accept_launch(int32_t dtype, int64_t sequences, int64_t k, const void *draft, const void *target,
                                  int32_t *accepted, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
