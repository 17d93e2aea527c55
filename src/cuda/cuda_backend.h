/* cuda_backend.h - what the host files of this backend share: a context's state, and one pass. */
#ifndef FS_CUDA_BACKEND_H
#define FS_CUDA_BACKEND_H

#include "backend.h"

#include "cuda_environment.h"
#include "cuda_launch.h"
#include "cuda_memory.h"

typedef CUresult (*encode_tiled)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                                 const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                                 const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

#define FS_CUDA_FAMILIES 2 /* rows of the table in cuda_families.c */

/* A matrix of 16-bit elements [rows, dim] in device memory, without padding, and the rows of a box of it. */
typedef struct fs_cuda_tensor {
    const void *data;
    int64_t rows, dim, stride;
    int32_t format, box_rows;
} fs_cuda_tensor;

typedef struct fs_cuda_map {
    CUtensorMap map;
    fs_cuda_tensor of;
} fs_cuda_map;

/* What a plan depends on, beside the device. */
typedef struct fs_cuda_planned {
    int64_t rows, tokens[3], dim, group;
    int32_t dtype, aligned, plain;
} fs_cuda_planned;

typedef struct fs_cuda {
    fs_cuda_map map[6]; /* the last ones: W in tiles, W in boxes, H, hidden states of open rows, a screen's two */
    fs_cuda_device device;
    int32_t ordinal;
    cudaStream_t stream;
    fs_cuda_memory memory;
    encode_tiled encode;
    fs_cuda_family family[FS_CUDA_FAMILIES];
    int32_t screen_rows; /* up to so many rows screens are read, as the environment says; -1: it does not */
    fs_cuda_environment environment;
    const char *forced;         /* environment.tile, or NULL */
    fs_cuda_planned planned[2]; /* what `plan` is for; rows 0: nothing. The second is for open rows */
    fs_cuda_plan plan[2];
    const fs_cuda_shape *logged; /* the last choice that went to the log */
    int32_t stored_ctas;         /* of the kernel for stored logits: as many as run at once */
    int32_t stored_logged;       /* CTAs per row of its last plan that went to the log */
    int32_t opened;
} fs_cuda;

/* Returns a device failure in the driver's words. */
#define FS_CUDA_TRY(context, call)                                                                                     \
    do {                                                                                                               \
        cudaError_t fs_cuda_error = (call);                                                                            \
        if (fs_cuda_error != cudaSuccess)                                                                              \
            return fs_fail(context, FS_ERR_DEVICE, "cuda: %s in %s", cudaGetErrorString(fs_cuda_error), #call);        \
    } while (0)

/* The device of a call is current inside it and not after: the caller's own choice stays. */
fs_status fs_cuda_enter(fs_context *context, int *before);
void fs_cuda_leave(const fs_cuda *cuda, int before);

/* Refuses calls as long as there is no stream. */
fs_status fs_cuda_check_stream(fs_context *context);

/* cuda_families.c */
fs_status fs_cuda_open_families(fs_context *context);
fs_status fs_cuda_launch_fused(fs_context *context, const fs_cuda_plan *plan, const fs_cuda_args *args);
/* Whether the kernels of a plan can list candidates. */
int fs_cuda_lists_of(const fs_context *context, const fs_cuda_plan *plan);

/* A call's arguments for kernels, before there is a plan. */
fs_cuda_args fs_cuda_args_of(const fs_head *head, const fs_batch *batch, const fs_result *result);
/* Bytes of the records of the largest launch; 0: there are none. */
fs_status fs_cuda_records_bytes(fs_context *context, const fs_cuda_args *args, size_t *bytes);
/* Enqueues the launches of a call over all of its rows, in this room. With args->leave_rows, `put` takes the rows of
 * each launch out of work memory. */
typedef fs_status fs_cuda_put(fs_context *context, const fs_cuda_args *args, void *with);
fs_status fs_cuda_pass(fs_context *context, const fs_cuda_room *room, fs_cuda_args *args, fs_cuda_put *put, void *with);

/* Its plan. */
fs_status fs_cuda_plan_next(fs_context *context, const fs_cuda_args *args, fs_cuda_plan *plan);
/* The next launch of fused dot products, over the first rows that are left: args->rows of them. */
fs_status fs_cuda_launch_next(fs_context *context, const fs_cuda_room *room, fs_cuda_args *args);

/* cuda_samples.c: whether a call's samples are drawn as rows; its launches; most work memory that fewer rows, samples
 * or results may take so. */
int fs_cuda_draws_as_rows(const fs_cuda_args *args);
fs_status fs_cuda_enqueue_as_rows(fs_context *context, fs_cuda_args *args, int64_t *work_bytes);
size_t fs_cuda_as_rows_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result);

/* cuda_rows.c: calls whose rows have rules. */
int fs_cuda_has_rules(const fs_cuda_args *args);
/* The sizes of the work memory of such a call, or of one with fewer rows. */
fs_status fs_cuda_rows_room(fs_context *context, const fs_cuda_args *args, fs_cuda_room *room);
fs_status fs_cuda_end_rows(fs_context *context, const fs_cuda_room *room, fs_cuda_args *args, int screens);
/* Rows of such a call whose logits there is room for, beside candidates of others. */
int64_t fs_cuda_rows_kept(const fs_context *context, const fs_cuda_args *args);
/* Whether a pass over W lists the candidates of its rows, and few need more. */
int fs_cuda_may_list(const fs_cuda_args *args);

/* cuda_screen.c: calls whose head has a screen. Whether this one is decided by it, as far as it can be; the work memory
 * of such a call, with that of its pass over W, whose parts it is behind where rows have rules; the launches before
 * that pass, which then finds what is left to do on the device. `rules`: whether that pass is one for rows with
 * rules. */
int fs_cuda_screens(fs_context *context, const fs_cuda_args *args, int rules);
void fs_cuda_screen_room(fs_context *context, const fs_cuda_args *args, int rules, fs_cuda_room *room);
fs_status fs_cuda_screen_pass(fs_context *context, const fs_cuda_room *room, char *memory, fs_cuda_args *args);

fs_status fs_cuda_make_screen(fs_context *context, const fs_head *head, const fs_screen_header *header,
                              const fs_screen_options *options, void *screen);
fs_status fs_cuda_sum_screen(fs_context *context, const fs_screen_header *header, const void *screen,
                             fs_screen_sums *sums);
fs_status fs_cuda_compare_screen(fs_context *context, const fs_head *head, const fs_screen_header *header, int whole,
                                 int64_t *strip);
fs_status fs_cuda_copy(fs_context *context, void *to, const void *from, size_t bytes);

/* cuda_ranks.c. The work memory of fs_partial. */
fs_status fs_cuda_part_room(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                            fs_cuda_room *room);
fs_status fs_cuda_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                               const fs_result *result, fs_status failed);

fs_status fs_cuda_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                               int32_t least, size_t *bytes);
fs_status fs_cuda_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          int32_t least, int32_t sealed, void *part, size_t bytes);
fs_status fs_cuda_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                        int32_t count, int32_t least, int32_t sealed, const fs_result *result);

#endif
