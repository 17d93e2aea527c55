/* cuda_families.c - the table of kernel families: which tiles there are, for which devices, how they are launched. */
#include "cuda_backend.h"

#include "core/format.h"
#include "core/head.h"

/* ------------------------------------------------------------------------------------------------------ Hopper ---- */

static fs_status open_sm90(fs_context *context, fs_cuda *cuda) {
    FS_CUDA_TRY(context, fs_cuda_sm90_open(&cuda->device.clusters_of_two));
    enum cudaDriverEntryPointQueryResult found;
    void *entry = NULL;
    FS_CUDA_TRY(context,
                cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || !entry)
        return fs_fail(context, FS_ERR_DEVICE, "cuda: the driver has no cuTensorMapEncodeTiled");
    memcpy(&cuda->encode, &entry, sizeof entry);
    return FS_OK;
}

/* The map of a matrix in boxes of 64 columns; of one that was the last in this place already, the last. L2 promotion
 * and eviction hints cost bandwidth on the H200: none. */
static fs_status encode(fs_context *context, fs_cuda_map *place, fs_cuda_tensor m) {
    const fs_cuda *cuda = context->state;
    if (memcmp(&place->of, &m, sizeof m) == 0) return FS_OK;
    memset(&place->of, 0, sizeof place->of);
    cuuint64_t size[2] = {(cuuint64_t)m.dim, (cuuint64_t)m.rows}, strides[1] = {(cuuint64_t)m.stride};
    cuuint32_t box[2] = {64, (cuuint32_t)m.box_rows}, step[2] = {1, 1};
    CUtensorMapDataType type = m.format == FS_FORMAT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    void *base;
    memcpy(&base, &m.data, sizeof base); /* the interface is not const, the memory is only read */
    CUresult result = cuda->encode(&place->map, type, 2, base, size, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fs_fail(context, FS_ERR_DEVICE,
                       "cuda: cuTensorMapEncodeTiled gave %d for [%lld, %lld], stride %lld, box of %d rows",
                       (int)result, (long long)m.rows, (long long)m.dim, (long long)m.stride, (int)m.box_rows);
    place->of = m;
    return FS_OK;
}

static fs_status launch_sm90(fs_context *context, const fs_cuda_plan *plan, const fs_cuda_args *args, int32_t shaped) {
    fs_cuda *cuda = context->state;
    const fs_head *head = &args->head;
    const fs_batch *batch = &args->batch;
    const fs_matrix w = weights_of_head(head);
    const fs_matrix h = hidden_of_batch(head, batch);
    const int32_t h_rows = plan->shape->rows / plan->shape->cluster;
    fs_cuda_tensor of_w = {w.data, head->rows, head->dim, w.stride, w.format, FS_CUDA_TILE};
    const fs_cuda_tensor of_h = {h.data, batch->rows, head->dim, h.stride, h.format, h_rows};
    FS_TRY(encode(context, &cuda->map[0], of_w));
    of_w.box_rows = 16;
    FS_TRY(encode(context, &cuda->map[1], of_w));
    fs_cuda_map *hidden = &cuda->map[args->lists.by_place ? 3 : 2];
    FS_TRY(encode(context, hidden, of_h));
    const fs_cuda_maps maps = {cuda->map[0].map, cuda->map[1].map, hidden->map};
    FS_CUDA_TRY(context, fs_cuda_sm90_launch(plan, &maps, args, shaped, cuda->stream));
    return FS_OK;
}

/* ---------------------------------------------------------------------------------------------------- portable ---- */

static fs_status open_portable(fs_context *context, fs_cuda *cuda) {
    const cudaError_t error = fs_cuda_sm80_open(cuda->device.shared_bytes);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
        return fs_fail(context, FS_ERR_UNSUPPORTED,
                       "cuda: compute capability %d.%d has no kernel in this build (make cuda-all builds for more)",
                       cuda->device.major, cuda->device.minor);
    if (error != cudaSuccess)
        return fs_fail(context, FS_ERR_DEVICE, "cuda: %s for the portable tile", cudaGetErrorString(error));
    return FS_OK;
}

static fs_status launch_portable(fs_context *context, const fs_cuda_plan *plan, const fs_cuda_args *args,
                                 int32_t shaped) {
    FS_CUDA_TRY(context, fs_cuda_sm80_launch(plan, args, shaped, ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------------------- table ---- */

/* Best first. A new architecture is a row here and a tile beside fused/sm90.cuh. */
static const struct {
    const char *name; /* what FLASHSAMPLING_CUDA_TILE calls it */
    int32_t major;    /* compute capability; 0: any from 8.0 */
    int32_t aligned;  /* takes only data that the copy engine can */
    const fs_cuda_shape *(*shapes)(int32_t *count);
    fs_status (*open)(fs_context *context, fs_cuda *cuda);
    fs_status (*launch)(fs_context *context, const fs_cuda_plan *plan, const fs_cuda_args *args, int32_t shaped);
    int32_t lists; /* can list candidates */
} table[FS_CUDA_FAMILIES] = {
    {FS_CUDA_SM90, 9, 1, fs_cuda_sm90_shapes, open_sm90, launch_sm90, 1},
    {FS_CUDA_PORTABLE, 0, 0, fs_cuda_sm80_shapes, open_portable, launch_portable, 0},
};

/* From the last, which says whether the build has anything for this device. */
fs_status fs_cuda_open_families(fs_context *context) {
    fs_cuda *cuda = context->state;
    for (int32_t i = FS_CUDA_FAMILIES - 1; i >= 0; i--) {
        fs_cuda_family *f = &cuda->family[i];
        *f = (fs_cuda_family){table[i].name, table[i].major, table[i].aligned, 0, NULL};
        f->shapes = table[i].shapes(&f->count);
        if (f->major == 0 || f->major == cuda->device.major) FS_TRY(table[i].open(context, cuda));
    }
    return FS_OK;
}

fs_status fs_cuda_launch_fused(fs_context *context, const fs_cuda_plan *plan, const fs_cuda_args *args) {
    const fs_cuda *cuda = context->state;
    return table[plan->family - cuda->family].launch(context, plan, args, !head_is_plain(&args->head));
}

int fs_cuda_lists_of(const fs_context *context, const fs_cuda_plan *plan) {
    const fs_cuda *cuda = context->state;
    return table[plan->family - cuda->family].lists && plan->grid <= 256;
}
