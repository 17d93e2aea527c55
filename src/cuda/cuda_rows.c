/* cuda_rows.c - calls whose rows have rules: logits of as many rows as a budget allows go to work memory, and a CTA for
 * each row ends it there. Whatever the rules say is read on the device. */
#include "cuda_backend.h"

#include "core/head.h"

/* Dot products that no tensor instruction does as they are. */
static int is_mixed(const fs_cuda_args *args) {
    return args->head.kind == FS_HEAD_WEIGHTS &&
           (args->head.dtype == FS_F32 || args->batch.hidden_dtype != args->head.dtype);
}

int fs_cuda_has_rules(const fs_cuda_args *args) {
    const fs_batch *batch = &args->batch;
    const fs_result *r = &args->result;
    if (batch_is_grouped(batch)) return 0;
    return batch_rules(&args->head, batch) || batch->mode != FS_MODE_SAMPLE || batch->samples != 1 ||
           batch->noise != FS_NOISE_EXACT || r->rank || is_mixed(args) || r->top_token || r->top_logit ||
           r->top_logprob || r->watch_logit || r->watch_logprob;
}

/* Where a row's logits are: floats from one row to the next, and which of the arrays there are. */
typedef struct layout {
    int64_t stride, rows; /* rows at a time */
    int32_t x, y;
} layout;

#define LINE 64 /* floats: rows begin at lines of memory */

static layout layout_of(const fs_context *context, const fs_cuda_args *args) {
    const fs_head *head = &args->head;
    const uint32_t rules = batch_rules(head, &args->batch);
    const int there = head->kind == FS_HEAD_LOGITS && head->dtype == FS_F32 && head_is_plain(head) &&
                      !(rules & FS_RULE_ALLOW);
    layout l = {(head->rows + LINE - 1) / LINE * LINE, args->batch.rows, !there,
                (rules & (FS_RULE_EDITS | FS_RULE_PENALTIES)) != 0};
    const int64_t bytes = (l.x + l.y) * l.stride * (int64_t)sizeof(float);
    const int64_t most = bytes ? (int64_t)context->options.fallback_bytes / bytes : args->batch.rows;
    if (l.rows > most) l.rows = most > 0 ? most : 1;
    if (l.rows > FS_CUDA_ROWS) l.rows = FS_CUDA_ROWS;
    return l;
}

size_t fs_cuda_dense_bytes(const fs_context *context, const fs_cuda_args *args) {
    const layout l = layout_of(context, args);
    return (size_t)(l.rows * (l.x + l.y) * l.stride) * sizeof(float);
}

/* Dot products of the launch's rows. The plan may take several launches for them. */
static fs_status launch_dots(fs_context *context, const fs_cuda_room *room, const fs_cuda_args *args) {
    if (is_mixed(args)) {
        FS_CUDA_TRY(context, fs_cuda_dots_launch(args, ((const fs_cuda *)context->state)->stream));
        return FS_OK;
    }
    fs_cuda_args part = *args;
    part.batch.rows = args->first_row + args->rows;
    while (part.first_row < part.batch.rows) {
        FS_TRY(fs_cuda_launch_next(context, room, &part));
        part.first_row += part.rows;
        part.dense.x += part.rows * part.dense.stride;
    }
    return FS_OK;
}

fs_status fs_cuda_end_rows(fs_context *context, const fs_cuda_room *room, fs_cuda_args *args) {
    const fs_cuda *cuda = context->state;
    const layout l = layout_of(context, args);
    const int64_t times = (args->batch.rows + l.rows - 1) / l.rows, rows = (args->batch.rows + times - 1) / times;
    float *memory = (float *)(void *)room->parts;
    args->work = room->work;
    args->overlap = cuda->device.major >= 9;
    args->dense = (fs_cuda_dense){l.x ? memory : NULL, l.y ? memory + (l.x ? rows * l.stride : 0) : NULL, l.stride};
    for (; args->first_row < args->batch.rows; args->first_row += args->rows) {
        const int64_t left = args->batch.rows - args->first_row;
        args->rows = (int32_t)(left < rows ? left : rows);
        if (args->head.kind == FS_HEAD_WEIGHTS && args->head.rows > 0) FS_TRY(launch_dots(context, room, args));
        FS_CUDA_TRY(context, fs_cuda_rows_launch(args, cuda->stream));
    }
    return FS_OK;
}
