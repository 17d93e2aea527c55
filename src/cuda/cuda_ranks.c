/* cuda_ranks.c - fs_sample_ranks on the device: the pass leaves its rows, a small launch makes a part of them
 * (core/wire.h), one collective of the transport brings the parts of all ranks together, and a small launch writes the
 * results. fs_partial and fs_merge are its two halves. Everything is enqueued; nothing waits.
 *
 *   what a key tells       all_max of    hash, its complement | key 8 per row
 *   anything else          all_gather of parts */
#include "cuda_backend.h"

/* A part of one call. */
typedef struct layout {
    size_t bytes;
    int32_t keys; /* the call's keys alone */
} layout;

/* Whatever goes through other hands than ours is a part, even where keys would do. Every part begins at a multiple of 8
 * bytes. */
static layout layout_of(const fs_cuda_args *args, int32_t sealed) {
    const fs_call call = {&args->head, &args->batch, &args->result, NULL, args->vocab, args->needs};
    const fs_needs *needs = &args->needs;
    layout l = {(wire_size(&call) + 7) / 8 * 8,
                !sealed && !args->result.status && !needs->mass && !needs->raw_mass && !needs->max};
    if (l.keys) l.bytes = 8 * (2 + (size_t)args->batch.rows);
    return l;
}

static fs_status collect(fs_context *context, const fs_ranks *ranks, const layout *l, char *mine, char *all) {
    void *stream = ((fs_cuda *)context->state)->stream;
    const int64_t words = (int64_t)(l->bytes / 8);
    const fs_status status = l->keys ? ranks->all_max(ranks->self, (int64_t *)(void *)mine, words, stream)
                                     : ranks->all_gather(ranks->self, mine, all, l->bytes, stream);
    if (status == FS_OK) return FS_OK;
    const char *text = ranks->error_text ? ranks->error_text(ranks->self) : NULL;
    return fs_fail(context, status, "rank %d of %d: %s", ranks->rank, ranks->count,
                   text && *text ? text : "the transport failed and does not say why");
}

typedef struct destination {
    const layout *layout;
    void *part;
    int32_t mode; /* the call's, which ranks agree on: the pass has another */
} destination;

static fs_status put(fs_context *context, const fs_cuda_args *pass, void *with) {
    const destination *to = with;
    const int32_t last = pass->first_row + pass->rows == pass->batch.rows;
    fs_cuda_args args = *pass;
    args.batch.mode = to->mode;
    FS_CUDA_TRY(context,
                fs_cuda_put_launch(&args, to->part, to->layout->keys, last, ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

/* A part is one group, whatever the mode: only its mass is asked for. */
static fs_cuda_args pass_of(const fs_cuda_args *args) {
    fs_cuda_args pass = *args;
    if (batch_is_grouped(&pass.batch)) pass.batch.mode = FS_MODE_SAMPLE;
    return pass;
}

/* The pass over this shard, and its part. */
static fs_status make_part(fs_context *context, const fs_cuda_room *room, const fs_cuda_args *args, const layout *l,
                           void *part) {
    fs_cuda_args pass = pass_of(args);
    destination to = {l, part, args->batch.mode};
    return fs_cuda_pass(context, room, &pass, put, &to);
}

/* Room for the pass and for so many bytes of parts. */
static fs_status take_room(fs_context *context, const fs_cuda_args *args, size_t parts, fs_cuda_room *room) {
    const fs_cuda_args pass = pass_of(args);
    memset(room, 0, sizeof *room);
    room->parts_bytes = parts;
    FS_TRY(fs_cuda_records_bytes(context, &pass, &room->records_bytes));
    return fs_cuda_memory_take(context, room);
}

static fs_status merge_parts(fs_context *context, const fs_cuda_args *args, const layout *l, const char *parts,
                             int32_t count, int32_t sealed) {
    const fs_cuda_gathered from = {parts, l->bytes, count, sealed};
    FS_CUDA_TRY(context, fs_cuda_merge_launch(args, &from, l->keys, ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------------------- ranks ---- */

/* The launches of one call, the device being current. */
static fs_status enqueue(fs_context *context, const fs_ranks *ranks, const fs_cuda_args *args, fs_result *result) {
    const fs_cuda *cuda = context->state;
    const layout l = layout_of(args, 0);
    fs_cuda_room room;
    FS_TRY(take_room(context, args, l.bytes * (l.keys ? 1 : 1 + (size_t)ranks->count), &room));
    char *mine = room.parts, *all = l.keys ? mine : mine + l.bytes;
    const fs_status drawn = make_part(context, &room, args, &l, mine);
    /* A rank that has failed still meets the others: with what is no part, and no hash beside its complement. */
    if (drawn != FS_OK) (void)cudaMemsetAsync(mine, 0x7F, l.bytes, cuda->stream);
    const fs_status met = collect(context, ranks, &l, mine, all);
    FS_TRY(drawn);
    FS_TRY(met);
    FS_TRY(merge_parts(context, args, &l, all, ranks->count, 0));
    result->work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    result->wire_bytes = (int64_t)l.bytes;
    result->fallback_rows = 0;
    return FS_OK;
}

fs_status fs_cuda_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                               fs_result *result, fs_status failed) {
    const fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    int before;
    /* With other arguments there is no collective to meet in: its size would not be the others'. */
    FS_TRY(failed);
    if (batch->rows == 0) return FS_OK;
    FS_TRY(fs_cuda_check_stream(context));
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = enqueue(context, ranks, &args, result);
    fs_cuda_leave(context->state, before);
    return status;
}

/* ---------------------------------------------------------------------------------------------- partial, merge ---- */

fs_status fs_cuda_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                               int32_t least, size_t *bytes) {
    const fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    (void)context, (void)least; /* there are no lists */
    *bytes = layout_of(&args, 1).bytes;
    return FS_OK;
}

static fs_status enqueue_part(fs_context *context, const fs_cuda_args *args, const layout *l, void *part) {
    fs_cuda_room room;
    FS_TRY(take_room(context, args, 0, &room));
    return make_part(context, &room, args, l, part);
}

fs_status fs_cuda_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          int32_t least, int32_t sealed, void *part, size_t bytes) {
    const fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    const layout l = layout_of(&args, 1);
    int before;
    (void)least, (void)sealed;
    FS_REQUIRE(context, bytes >= l.bytes, "part has %zu bytes, needs %zu (fs_partial_size)", bytes, l.bytes);
    FS_REQUIRE(context, (uintptr_t)part % 8 == 0, "part is %p, must be 8-byte aligned device memory", part);
    if (batch->rows == 0) return FS_OK;
    FS_TRY(fs_cuda_check_stream(context));
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = enqueue_part(context, &args, &l, part);
    fs_cuda_leave(context->state, before);
    return status;
}

/* Parts lie where their carrier has put them: they are copied side by side first. */
static fs_status merge_scattered(fs_context *context, const fs_cuda_args *args, const layout *l,
                                 const void *const *parts, int32_t count, int64_t *work_bytes) {
    const fs_cuda *cuda = context->state;
    fs_cuda_room room;
    memset(&room, 0, sizeof room);
    room.parts_bytes = l->bytes * (size_t)count;
    FS_TRY(fs_cuda_memory_take(context, &room));
    *work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    for (int32_t i = 0; i < count; i++)
        FS_CUDA_TRY(context, cudaMemcpyAsync(room.parts + (size_t)i * l->bytes, parts[i], l->bytes,
                                             cudaMemcpyDeviceToDevice, cuda->stream));
    return merge_parts(context, args, l, room.parts, count, 1);
}

fs_status fs_cuda_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                        int32_t count, int32_t least, int32_t sealed, fs_result *result) {
    const fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    const layout l = layout_of(&args, 1);
    int before;
    (void)least, (void)sealed;
    for (int32_t i = 0; i < count; i++)
        FS_REQUIRE(context, (uintptr_t)parts[i] % 8 == 0, "parts[%d] is %p, must be 8-byte aligned device memory", i,
                   parts[i]);
    result->work_bytes = 0;
    if (batch->rows > 0) {
        FS_TRY(fs_cuda_check_stream(context));
        FS_TRY(fs_cuda_enter(context, &before));
        const fs_status status = merge_scattered(context, &args, &l, parts, count, &result->work_bytes);
        fs_cuda_leave(context->state, before);
        FS_TRY(status);
    }
    result->fallback_rows = 0;
    result->wire_bytes = (int64_t)l.bytes;
    return FS_OK;
}
