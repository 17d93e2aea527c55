/* cuda_backend.c - the CUDA backend: a context's device, stream and work memory; checks; one launch per 256 rows. Calls enqueue on
 * the stream and return: nothing here allocates or waits after open. */
#include "backend.h"

#include "cuda_launch.h"

#include "core/ask.h"

#include <stdio.h>

typedef CUresult (*encode_tiled)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                                 const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                                 const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

typedef struct fs_cuda {
    fs_cuda_device device;
    int32_t ordinal;
    cudaStream_t stream;
    fs_cuda_work *work; /* device memory */
    encode_tiled encode;
    const fs_cuda_shape *shapes;
    int32_t shape_count;
    const fs_cuda_shape *told; /* the last choice that went to the log */
} fs_cuda;

/* Returns a device failure in the driver's words. */
#define FS_CUDA_TRY(context, call)                                                                                     \
    do {                                                                                                               \
        cudaError_t fs_cuda_error = (call);                                                                            \
        if (fs_cuda_error != cudaSuccess)                                                                              \
            return fs_fail(context, FS_ERR_DEVICE, "cuda: %s in %s", cudaGetErrorString(fs_cuda_error), #call);        \
    } while (0)

/* ------------------------------------------------------------------------------------------------- open, close ---- */

static fs_status open_device(fs_context *context, fs_cuda *cuda) {
    int devices = 0;
    FS_CUDA_TRY(context, cudaGetDeviceCount(&devices));
    cuda->ordinal = context->options.device;
    FS_REQUIRE(context, cuda->ordinal >= 0 && cuda->ordinal < devices,
               "options.device is %d, this machine has cuda devices 0 to %d", cuda->ordinal, devices - 1);
    FS_CUDA_TRY(context, cudaSetDevice(cuda->ordinal));
    FS_CUDA_TRY(context, cudaDeviceGetAttribute(&cuda->device.major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal));
    FS_CUDA_TRY(context, cudaDeviceGetAttribute(&cuda->device.minor, cudaDevAttrComputeCapabilityMinor, cuda->ordinal));
    FS_CUDA_TRY(context,
                cudaDeviceGetAttribute(&cuda->device.processors, cudaDevAttrMultiProcessorCount, cuda->ordinal));
    if (cuda->device.major != 9)
        return fs_fail(context, FS_ERR_UNSUPPORTED,
                       "cuda: compute capability %d.%d has no kernel in this build; 9.0 has", cuda->device.major,
                       cuda->device.minor);
    FS_CUDA_TRY(context, fs_cuda_sm90_open(&cuda->device.clusters_of_two));
    cuda->shapes = fs_cuda_sm90_shapes(&cuda->shape_count);
    enum cudaDriverEntryPointQueryResult found;
    void *entry = NULL;
    FS_CUDA_TRY(context,
                cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || !entry)
        return fs_fail(context, FS_ERR_DEVICE, "cuda: the driver has no cuTensorMapEncodeTiled");
    memcpy(&cuda->encode, &entry, sizeof entry);
    FS_CUDA_TRY(context, cudaMalloc((void **)&cuda->work, sizeof *cuda->work));
    FS_CUDA_TRY(context, cudaMemset(cuda->work, 0, sizeof *cuda->work));
    FS_CUDA_TRY(context, cudaDeviceSynchronize());
    return FS_OK;
}

static void cuda_close(fs_context *context) {
    fs_cuda *cuda = context->state;
    if (!cuda) return;
    cudaSetDevice(cuda->ordinal);
    cudaStreamSynchronize(cuda->stream);
    cudaFree(cuda->work);
    fs_context_free(context, cuda);
    context->state = NULL;
}

static fs_status cuda_open(fs_context *context) {
    fs_cuda *cuda = fs_context_alloc(context, sizeof *cuda, "the CUDA backend");
    if (!cuda) return FS_ERR_MEMORY;
    memset(cuda, 0, sizeof *cuda);
    context->state = cuda;
    cuda->stream = context->options.stream;
    fs_status status = open_device(context, cuda);
    if (status != FS_OK) {
        cudaFree(cuda->work);
        fs_context_free(context, cuda);
        context->state = NULL;
        return status;
    }
    snprintf(context->text, sizeof context->text, "cuda: device %d, compute capability %d.%d, %d processors",
             cuda->ordinal, cuda->device.major, cuda->device.minor, cuda->device.processors);
    return FS_OK;
}

static fs_status cuda_set_stream(fs_context *context, void *stream) {
    ((fs_cuda *)context->state)->stream = stream;
    return FS_OK;
}

/* ---------------------------------------------------------------------------------------------------- checks ---- */

#define FS_CUDA_LACKS(context, condition, what)                                                                        \
    if (condition) return fs_fail(context, FS_ERR_UNSUPPORTED, "%s is not supported yet by the cuda backend", what)

static fs_status check_supported(fs_context *context, const fs_head *h, const fs_batch *b, const fs_result *r) {
    const fs_slot_values *all = &b->all;
    FS_CUDA_LACKS(context, h->kind != FS_HEAD_WEIGHTS, "head.kind FS_HEAD_LOGITS");
    FS_CUDA_LACKS(context, h->dtype == FS_F32, "head.dtype FS_F32");
    FS_CUDA_LACKS(context, b->hidden_dtype != h->dtype, "a batch.hidden_dtype other than head.dtype");
    FS_CUDA_LACKS(context, !fs_cuda_plan_aligned(h, b), "data that is not 16-byte aligned in base and rows");
    FS_CUDA_LACKS(context, b->mode != FS_MODE_SAMPLE, "a batch.mode other than FS_MODE_SAMPLE");
    FS_CUDA_LACKS(context, b->samples != 1, "batch.samples above 1");
    FS_CUDA_LACKS(context, b->noise != FS_NOISE_EXACT, "FS_NOISE_FAST");
    FS_CUDA_LACKS(context, b->top_k || b->top_p || b->min_p || all->top_k > 0 || all->top_p < 1.0f || all->min_p > 0.0f,
                  "a cut");
    FS_CUDA_LACKS(context, b->allow, "batch.allow");
    FS_CUDA_LACKS(context, b->edit_offset, "batch.edit_offset");
    FS_CUDA_LACKS(context, b->seen || b->counts || b->count_offset, "a penalty");
    FS_CUDA_LACKS(context, b->watch_offset, "batch.watch_offset");
    FS_CUDA_LACKS(context, r->max_logit || r->log_z || r->logprob || r->rank,
                  "result.max_logit, log_z, logprob or rank");
    FS_CUDA_LACKS(context, r->top_token || r->top_logit || r->top_logprob, "result.top_...");
    return FS_OK;
}

/* ---------------------------------------------------------------------------------------------------- sample ---- */

/* A map of [rows, dim] 16-bit elements in boxes of 64 columns. L2 promotion and eviction hints cost bandwidth on the H200: none. */
static fs_status encode(fs_context *context, CUtensorMap *map, int32_t dtype, const void *data, int64_t rows,
                        int64_t dim, int64_t stride, uint32_t box_rows) {
    const fs_cuda *cuda = context->state;
    cuuint64_t size[2] = {(cuuint64_t)dim, (cuuint64_t)rows}, strides[1] = {(cuuint64_t)stride};
    cuuint32_t box[2] = {64, box_rows}, step[2] = {1, 1};
    CUtensorMapDataType type = dtype == FS_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    void *base;
    memcpy(&base, &data, sizeof base); /* the interface is not const, the memory is only read */
    CUresult result = cuda->encode(map, type, 2, base, size, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fs_fail(context, FS_ERR_DEVICE,
                       "cuda: cuTensorMapEncodeTiled gave %d for [%lld, %lld], stride %lld, box of %u rows",
                       (int)result, (long long)rows, (long long)dim, (long long)stride, box_rows);
    return FS_OK;
}

static fs_status launch(fs_context *context, fs_cuda_args *args) {
    fs_cuda *cuda = context->state;
    const fs_head *head = &args->head;
    const fs_batch *batch = &args->batch;
    fs_cuda_plan plan;
    if (!fs_cuda_plan_launch(&cuda->device, cuda->shapes, cuda->shape_count, head, args->rows, &plan))
        return fs_fail(context, FS_ERR_UNSUPPORTED, "cuda: %s", plan.text);
    if (cuda->told != plan.shape) fs_context_log(context, "%s", plan.text);
    cuda->told = plan.shape;
    const int64_t w_stride = head->stride ? head->stride : head->dim * 2;
    const int64_t h_stride = batch->hidden_stride ? batch->hidden_stride : head->dim * 2;
    fs_cuda_maps maps;
    FS_TRY(encode(context, &maps.w_tile, head->dtype, head->data, head->rows, head->dim, w_stride, FS_CUDA_TILE));
    FS_TRY(encode(context, &maps.w_box, head->dtype, head->data, head->rows, head->dim, w_stride, 16));
    FS_TRY(encode(context, &maps.h, head->dtype, batch->hidden, batch->rows, head->dim, h_stride,
                  (uint32_t)(plan.shape->rows / plan.shape->cluster)));
    args->k_steps = plan.k_steps;
    args->patience = plan.patience;
    FS_CUDA_TRY(context, fs_cuda_sm90_launch(&plan, &maps, args, cuda->stream));
    return FS_OK;
}

static fs_status cuda_sample(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result) {
    fs_cuda *cuda = context->state;
    FS_TRY(check_supported(context, head, batch, result));
    if (batch->rows == 0) return FS_OK;
    FS_REQUIRE(context, head->rows > 0, "head.rows is 0: the cuda backend takes no empty shard");
    FS_CUDA_TRY(context, cudaSetDevice(cuda->ordinal));
    fs_cuda_args args;
    memset(&args, 0, sizeof args);
    args.head = *head;
    args.batch = *batch;
    args.result = *result;
    args.vocab = head_vocab(head);
    args.work = cuda->work;
    for (int64_t first = 0; first < batch->rows; first += FS_CUDA_ROWS) {
        args.first_row = (int32_t)first;
        args.rows = (int32_t)(batch->rows - first < FS_CUDA_ROWS ? batch->rows - first : FS_CUDA_ROWS);
        FS_TRY(launch(context, &args));
    }
    result->fallback_rows = result->wire_bytes = 0;
    result->work_bytes = sizeof *cuda->work;
    return FS_OK;
}

const fs_backend fs_backend_cuda = {
    .name = "cuda", .open = cuda_open, .close = cuda_close, .sample = cuda_sample, .set_stream = cuda_set_stream};
