/* cuda_samples.c - samples that are drawn as rows of their own, beside each other in one pass (rows/samples.cu). */
#include "cuda_backend.h"

/* Several samples of a row are drawn as rows, of which a pass takes so many at little cost: beyond that storing the
 * rows' logits and drawing from them is faster. */
#define SAMPLES_AS_ROWS 160

/* Whether the samples of a call are: nothing is asked of its rows but these. Logits of tokens would not be those that
 * are stored, to the last bit. */
int fs_cuda_draws_as_rows(const fs_cuda_args *args) {
    const fs_batch *batch = &args->batch;
    if (batch->mode != FS_MODE_SAMPLE || batch->samples == 1 || batch->rows > SAMPLES_AS_ROWS / batch->samples)
        return 0;
    if (args->head.kind != FS_HEAD_WEIGHTS || args->head.rows == 0) return 0;
    if (args->needs.mass || args->needs.raw_mass || args->needs.max || args->needs.winner_logit) return 0;
    fs_cuda_args one = *args;
    one.batch.samples = 1;
    return !fs_cuda_has_rules(&one);
}

/* Bytes of so many hidden states. */
static size_t copies_bytes(const fs_cuda_args *args, int64_t rows) {
    const size_t bytes = (size_t)rows * (size_t)open_stride(args->head.dim) * sizeof(uint16_t);
    return (bytes + 1023) / 1024 * 1024;
}

fs_status fs_cuda_enqueue_as_rows(fs_context *context, fs_cuda_args *args, int64_t *work_bytes) {
    const fs_cuda *cuda = context->state;
    fs_cuda_args whole = *args;
    fs_cuda_room room;
    memset(&room, 0, sizeof room);
    args->batch.rows *= args->batch.samples; /* from now on */
    args->batch.hidden = NULL;
    args->batch.hidden_stride = open_stride(args->head.dim) * (int64_t)sizeof(uint16_t);
    const size_t copies = copies_bytes(args, args->batch.rows);
    const int screens = fs_cuda_screens(context, args, 0);
    if (screens) fs_cuda_screen_room(context, args, 0, &room);
    room.parts_bytes += copies;
    FS_TRY(fs_cuda_memory_take(context, &room));
    *work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    args->batch.hidden = room.parts;
    FS_CUDA_TRY(context, fs_cuda_repeat_launch(&whole, room.parts, cuda->stream));
    if (screens) FS_TRY(fs_cuda_screen_pass(context, &room, room.parts + copies, args));
    return fs_cuda_pass(context, &room, args, NULL, NULL);
}

/* Of as many samples as are drawn as rows, with the least that can be asked of them. */
size_t fs_cuda_as_rows_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    fs_cuda_room room;
    memset(&room, 0, sizeof room);
    if (batch->mode != FS_MODE_SAMPLE || batch->samples == 1) return 0;
    const int64_t most = batch->rows < SAMPLES_AS_ROWS ? batch->rows * batch->samples : SAMPLES_AS_ROWS;
    args.batch.rows = most < SAMPLES_AS_ROWS ? most : SAMPLES_AS_ROWS;
    if (head->screen) fs_cuda_screen_room(context, &args, 0, &room);
    room.parts_bytes += copies_bytes(&args, args.batch.rows);
    return fs_cuda_room_bytes(&room);
}
