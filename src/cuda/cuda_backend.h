/* cuda_backend.h - what the host files of this backend share: a context's state, and one pass. */
#ifndef FS_CUDA_BACKEND_H
#define FS_CUDA_BACKEND_H

#include "backend.h"

#include "cuda_launch.h"

typedef CUresult (*encode_tiled)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                                 const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                                 const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

/* Best first: Hopper's own tile, then the one for every device and all data. */
enum { FS_CUDA_SM90, FS_CUDA_PORTABLE, FS_CUDA_FAMILIES };

/* Memory for parts and exchanges. A captured graph may hold the address of any block, so none is freed before the context is. */
typedef struct fs_cuda_block {
    struct fs_cuda_block *next;
    void *memory; /* on the device */
    size_t bytes;
} fs_cuda_block;

typedef struct fs_cuda {
    fs_cuda_device device;
    int32_t ordinal;
    cudaStream_t stream;
    fs_cuda_work *work;      /* device memory */
    fs_cuda_block *parts;    /* of the largest call so far that needed them, then of smaller ones before it */
    fs_cuda_block *exchange; /* likewise, this rank's part; zero between calls */
    fs_cuda_block *gathered; /* likewise, those of all ranks */
    encode_tiled encode;
    fs_cuda_family family[FS_CUDA_FAMILIES];
    const char *forced;        /* the environment's choice of a tile, or NULL */
    char forced_text[64];      /* a copy: the environment may change */
    const fs_cuda_shape *told; /* the last choice that went to the log */
    int32_t stored_ctas;       /* of the kernel for stored logits: as many as run at once */
    int32_t stored_told;       /* CTAs per row of its last plan that went to the log */
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

/* Whether there is a stream for the call. */
fs_status fs_cuda_check(fs_context *context, const fs_batch *batch);
/* What the call asks of each row beyond its token: FS_CUDA_MASS, ... */
uint32_t fs_cuda_want(const fs_batch *batch, const fs_result *result);

/* The first block of the list then has room; new ones are zeroed. Allocates where no call before needed as much, twice as much as the
 * last time at least, and not while a graph is being captured. */
fs_status fs_cuda_reserve(fs_context *context, fs_cuda_block **list, size_t bytes);

/* Enqueues the launches of a call over all of its rows. args: head, batch, result, want and exchange are set. */
fs_status fs_cuda_pass(fs_context *context, fs_cuda_args *args, int64_t *work_bytes);

/* cuda_ranks.c */
fs_status fs_cuda_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                               fs_result *result, fs_status failed);

fs_status fs_cuda_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                               int32_t least, size_t *bytes);
fs_status fs_cuda_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          int32_t least, int32_t sealed, void *part, size_t bytes);
fs_status fs_cuda_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                        int32_t count, int32_t least, int32_t sealed, fs_result *result);

#endif
