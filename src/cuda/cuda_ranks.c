/* cuda_ranks.c - fs_sample_ranks on the device: the pass leaves a part instead of results (cuda_call.h), one collective of the transport
 * makes it that of all ranks, and a small launch writes the results. fs_partial and fs_merge are its two halves. Everything is enqueued;
 * nothing waits.
 *
 *   tokens alone           all_max of    header 16 | key 8 per row
 *   anything else          all_gather of header 16 | two bits and key 8, mass 20, peak 4 per row, as far as wanted
 *   fs_partial             the same with a header of 32, sealed */
#include "cuda_backend.h"

#include "core/agreement.h"

typedef struct layout {
    size_t bytes, bits_at, rows_at; /* of a part; bits_at 0: keys alone */
    int32_t row_words;
    int32_t
        sealed; /* the part goes through other hands than ours: it says which ids it speaks of, and has a checksum */
} layout;

/* A sealed part has rows even where keys would do: it is gathered. */
static layout layout_of(const fs_batch *batch, const fs_result *result, uint32_t want, int32_t sealed) {
    const size_t rows = (size_t)batch->rows;
    layout l = {0, 0, FS_CUDA_HEADER, 2, sealed};
    if (sealed || want || result->status) {
        l.bits_at = sealed ? FS_CUDA_SEALED_HEADER : FS_CUDA_HEADER;
        l.rows_at = l.bits_at + (rows + 15) / 16 * 4;
        if (want & (FS_CUDA_MASS | FS_CUDA_RAW_MASS)) l.row_words += FS_MASS_WORDS;
        if (want & FS_CUDA_PEAK) l.row_words++;
    }
    l.bytes = (l.rows_at + rows * (size_t)l.row_words * 4 + 7) / 8 *
              8; /* every rank's header is read as words of 64 bits */
    return l;
}

/* What the host knows of a call and ranks must agree on; rows add what the device knows of them. */
static uint64_t hash_of(const fs_head *head, const fs_batch *batch, const fs_result *result, uint32_t want) {
    const uint64_t words[] = {FS_VERSION_MAJOR << 16 | FS_VERSION_MINOR << 8 | FS_VERSION_PATCH,
                              FS_NOISE_ID,
                              (uint64_t)batch->rows,
                              (uint64_t)head_vocab(head),
                              (uint64_t)head->dim,
                              (uint64_t)batch->mode,
                              (uint64_t)result->logits,
                              want};
    uint64_t h = hash_head(0, head);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) h = hash_mix(h, words[i]);
    return h;
}

static fs_status collect(fs_context *context, const fs_ranks *ranks, const layout *l, char *mine, char *all) {
    void *stream = ((fs_cuda *)context->state)->stream;
    const int64_t words = (int64_t)(l->bytes / 8);
    const fs_status status = l->bits_at ? ranks->all_gather(ranks->self, mine, all, l->bytes, stream)
                                        : ranks->all_max(ranks->self, (int64_t *)(void *)mine, words, stream);
    if (status == FS_OK) return FS_OK;
    const char *text = ranks->error_text ? ranks->error_text(ranks->self) : NULL;
    return fs_fail(context, status, "rank %d of %d: %s", ranks->rank, ranks->count,
                   text && *text ? text : "the transport failed and does not say why");
}

/* The call's arguments for the kernels, once they are known to be supported. */
static fs_status prepare(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                         fs_cuda_args *args) {
    const int grouped = batch->mode == FS_MODE_GROUP_PARALLEL;
    fs_batch plain = *batch;
    if (grouped) plain.mode = FS_MODE_SAMPLE;
    if (batch->rows) FS_TRY(fs_cuda_check_stream(context));
    *args =
        fs_cuda_args_of(head, batch, result, fs_cuda_want(&plain, result) | (grouped ? (uint32_t)FS_CUDA_MASS : 0u));
    return FS_OK;
}

/* The ids of this shard, first and end, padding left out. */
static uint64_t range_of(const fs_cuda_args *args) {
    const int64_t first = args->head.first_token, vocab = args->vocab;
    int64_t end = first + args->head.rows;
    if (end > vocab) end = vocab;
    return (uint64_t)(end > first ? end : first) << 32 | (uint64_t)first;
}

static fs_cuda_exchange part_at(const fs_cuda_args *args, const layout *l, char *part) {
    const fs_cuda_exchange exchange = {(unsigned long long *)(void *)part,
                                       l->bits_at ? (uint32_t *)(void *)(part + l->bits_at) : NULL,
                                       (uint32_t *)(void *)(part + l->rows_at), l->row_words,
                                       hash_of(&args->head, &args->batch, &args->result, args->want)};
    return exchange;
}

/* A part is one group, whatever the mode. */
static fs_cuda_args pass_of(const fs_cuda_args *args) {
    fs_cuda_args pass = *args;
    pass.batch.mode = FS_MODE_SAMPLE;
    return pass;
}

/* The pass over this shard, into a part that is zero. */
static fs_status make_part(fs_context *context, const fs_cuda_room *room, const fs_cuda_args *args,
                           const fs_cuda_exchange *part) {
    fs_cuda_args pass = pass_of(args);
    pass.exchange = *part;
    return fs_cuda_pass(context, room, &pass);
}

/* Room for the pass and, as far as they are not 0, an exchange and what is gathered. */
static fs_status take_room(fs_context *context, const fs_cuda_args *args, size_t exchange, size_t gathered,
                           fs_cuda_room *room) {
    const fs_cuda_args pass = pass_of(args);
    memset(room, 0, sizeof *room);
    room->exchange_bytes = exchange;
    room->gathered_bytes = gathered;
    FS_TRY(fs_cuda_parts_bytes(context, &pass, &room->parts_bytes));
    return fs_cuda_memory_take(context, room);
}

/* From the parts of all ranks to results; `own` is zeroed. */
static fs_status merge_parts(fs_context *context, const fs_cuda_args *args, const layout *l, const char *all,
                             int32_t ranks, const fs_cuda_exchange *own) {
    const fs_cuda_gathered from = {
        all, l->bytes, l->bits_at, l->rows_at, ranks, args->batch.mode == FS_MODE_GROUP_PARALLEL, l->sealed, *own};
    FS_CUDA_TRY(context, fs_cuda_merge_launch(args, &from, ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------------------- ranks ---- */

/* The launches of one call, the device being current. */
static fs_status enqueue(fs_context *context, const fs_ranks *ranks, const fs_cuda_args *args, const layout *l,
                         fs_result *result) {
    const fs_cuda *cuda = context->state;
    fs_cuda_room room;
    FS_TRY(take_room(context, args, l->bytes, l->bits_at ? l->bytes * (size_t)ranks->count : 0, &room));
    char *mine = room.exchange, *all = l->bits_at ? room.gathered : mine;
    const fs_cuda_exchange own = part_at(args, l, mine);
    const fs_status drawn = make_part(context, &room, args, &own);
    /* A rank that has failed still meets the others. */
    if (drawn != FS_OK) (void)fs_cuda_failed_launch(&own, cuda->stream);
    const fs_status met = collect(context, ranks, l, mine, all);
    if (drawn != FS_OK || met != FS_OK) {
        (void)cudaMemsetAsync(mine, 0, l->bytes, cuda->stream);
        return drawn != FS_OK ? drawn : met;
    }
    FS_TRY(merge_parts(context, args, l, all, ranks->count, &own));
    result->work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    result->wire_bytes = (int64_t)l->bytes;
    result->fallback_rows = 0;
    return FS_OK;
}

fs_status fs_cuda_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                               fs_result *result, fs_status failed) {
    fs_cuda_args args;
    int before;
    /* With other arguments there is no collective to meet in: its size would not be the others'. */
    FS_TRY(failed);
    FS_TRY(prepare(context, head, batch, result, &args));
    if (batch->rows == 0) return FS_OK;
    const layout l = layout_of(batch, result, args.want, 0);
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = enqueue(context, ranks, &args, &l, result);
    fs_cuda_leave(context->state, before);
    return status;
}

/* ---------------------------------------------------------------------------------------------- partial, merge ---- */

fs_status fs_cuda_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                               int32_t least, size_t *bytes) {
    fs_cuda_args args;
    (void)least; /* there are no lists */
    FS_TRY(prepare(context, head, batch, result, &args));
    *bytes = layout_of(batch, result, args.want, 1).bytes;
    return FS_OK;
}

static fs_status enqueue_part(fs_context *context, const fs_cuda_args *args, const layout *l, void *part) {
    const fs_cuda_exchange own = part_at(args, l, part);
    fs_cuda_room room;
    FS_TRY(take_room(context, args, 0, 0, &room));
    FS_CUDA_TRY(context, cudaMemsetAsync(part, 0, l->bytes, ((fs_cuda *)context->state)->stream));
    FS_TRY(make_part(context, &room, args, &own));
    FS_CUDA_TRY(context, fs_cuda_seal_launch(&own, (int32_t)args->batch.rows, range_of(args),
                                             ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

fs_status fs_cuda_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          int32_t least, int32_t sealed, void *part, size_t bytes) {
    fs_cuda_args args;
    int before;
    (void)least, (void)sealed;
    FS_TRY(prepare(context, head, batch, result, &args));
    const layout l = layout_of(batch, result, args.want, 1);
    FS_REQUIRE(context, bytes >= l.bytes, "part has %zu bytes, needs %zu (fs_partial_size)", bytes, l.bytes);
    FS_REQUIRE(context, (uintptr_t)part % 8 == 0, "part is %p, must be 8-byte aligned device memory", part);
    if (batch->rows == 0) return FS_OK;
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
    room.gathered_bytes = l->bytes * (size_t)count;
    FS_TRY(fs_cuda_memory_take(context, &room));
    *work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    char *all = room.gathered;
    for (int32_t i = 0; i < count; i++)
        FS_CUDA_TRY(context, cudaMemcpyAsync(all + (size_t)i * l->bytes, parts[i], l->bytes, cudaMemcpyDeviceToDevice,
                                             cuda->stream));
    const fs_cuda_exchange first = part_at(args, l, all);
    return merge_parts(context, args, l, all, count, &first);
}

fs_status fs_cuda_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                        int32_t count, int32_t least, int32_t sealed, fs_result *result) {
    fs_cuda_args args;
    int before;
    (void)least, (void)sealed;
    FS_TRY(prepare(context, head, batch, result, &args));
    const layout l = layout_of(batch, result, args.want, 1);
    for (int32_t i = 0; i < count; i++)
        FS_REQUIRE(context, (uintptr_t)parts[i] % 8 == 0, "parts[%d] is %p, must be 8-byte aligned device memory", i,
                   parts[i]);
    result->work_bytes = 0;
    if (batch->rows > 0) {
        FS_TRY(fs_cuda_enter(context, &before));
        const fs_status status = merge_scattered(context, &args, &l, parts, count, &result->work_bytes);
        fs_cuda_leave(context->state, before);
        FS_TRY(status);
    }
    result->fallback_rows = 0;
    result->wire_bytes = (int64_t)l.bytes;
    return FS_OK;
}
