/* cuda_ranks.c - fs_sample_ranks on the device: the pass leaves a part instead of results (cuda_call.h), one collective of the transport
 * makes it that of all ranks, and a small launch writes the results. fs_partial and fs_merge are its two halves. Everything is enqueued;
 * nothing waits.
 *
 *   tokens alone           all_max of    header 16 | key 8 per row
 *   anything else          all_gather of header 16 | two bits and key 8, mass 20, peak 4 per row, as far as wanted */
#include "cuda_backend.h"

#include "core/card.h"

typedef struct layout {
    size_t bytes, bits_at, rows_at; /* of a part; bits_at 0: keys alone */
    int32_t row_words;
} layout;

/* With `whole`, rows even where keys would do: a part that somebody else carries is gathered. */
static layout layout_of(const fs_batch *batch, const fs_result *result, uint32_t want, int whole) {
    const size_t rows = (size_t)batch->rows;
    layout l = {0, 0, FS_CUDA_HEADER, 2};
    if (whole || want || result->status) {
        l.bits_at = FS_CUDA_HEADER;
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
    uint64_t h = card_mix_head(0, head);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) h = card_mix(h, words[i]);
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
    memset(args, 0, sizeof *args);
    if (grouped) plain.mode = FS_MODE_SAMPLE;
    FS_TRY(fs_cuda_check(context, batch));
    args->head = *head;
    args->batch = *batch;
    args->result = *result;
    args->vocab = head_vocab(head);
    args->want = fs_cuda_want(&plain, result) | (grouped ? (uint32_t)FS_CUDA_MASS : 0u);
    return FS_OK;
}

static fs_cuda_exchange part_at(const fs_cuda_args *args, const layout *l, char *part) {
    const fs_cuda_exchange exchange = {(unsigned long long *)(void *)part,
                                       l->bits_at ? (uint32_t *)(void *)(part + l->bits_at) : NULL,
                                       (uint32_t *)(void *)(part + l->rows_at), l->row_words,
                                       hash_of(&args->head, &args->batch, &args->result, args->want)};
    return exchange;
}

/* The pass over this shard, into a part that is zero. */
static fs_status make_part(fs_context *context, const fs_cuda_args *args, const fs_cuda_exchange *part,
                           int64_t *work_bytes) {
    fs_cuda_args pass = *args;
    pass.batch.mode = FS_MODE_SAMPLE; /* a part is one group, whatever the mode */
    pass.exchange = *part;
    return fs_cuda_pass(context, &pass, work_bytes);
}

/* From the parts of all ranks to results; `own` is zeroed. */
static fs_status merge_parts(fs_context *context, const fs_cuda_args *args, const layout *l, const char *all,
                             int32_t ranks, const fs_cuda_exchange *own) {
    const fs_cuda_gathered from = {
        all, l->bytes, l->bits_at, l->rows_at, ranks, args->batch.mode == FS_MODE_GROUP_PARALLEL, *own};
    FS_CUDA_TRY(context, fs_cuda_merge_launch(args, &from, ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------------------- ranks ---- */

/* The launches of one call, the device being current. */
static fs_status enqueue(fs_context *context, const fs_ranks *ranks, const fs_cuda_args *args, const layout *l,
                         fs_result *result) {
    fs_cuda *cuda = context->state;
    int64_t parts_bytes = 0;
    FS_TRY(fs_cuda_reserve(context, &cuda->exchange, l->bytes));
    char *mine = cuda->exchange->memory, *all = mine;
    if (l->bits_at) {
        FS_TRY(fs_cuda_reserve(context, &cuda->gathered, l->bytes * (size_t)ranks->count));
        all = cuda->gathered->memory;
    }
    const fs_cuda_exchange own = part_at(args, l, mine);
    const fs_status drawn = make_part(context, args, &own, &parts_bytes);
    /* A rank that has failed still meets the others. */
    if (drawn != FS_OK) (void)fs_cuda_failed_launch(&own, cuda->stream);
    const fs_status met = collect(context, ranks, l, mine, all);
    if (drawn != FS_OK || met != FS_OK) {
        (void)cudaMemsetAsync(mine, 0, l->bytes, cuda->stream);
        return drawn != FS_OK ? drawn : met;
    }
    FS_TRY(merge_parts(context, args, l, all, ranks->count, &own));
    result->work_bytes = (int64_t)(sizeof *cuda->work + cuda->exchange->bytes) + parts_bytes;
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

fs_status fs_cuda_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          int32_t least, int32_t sealed, void *part, size_t bytes) {
    fs_cuda *cuda = context->state;
    fs_cuda_args args;
    int before;
    int64_t work_bytes = 0;
    (void)least, (void)sealed;
    FS_TRY(prepare(context, head, batch, result, &args));
    const layout l = layout_of(batch, result, args.want, 1);
    FS_REQUIRE(context, bytes >= l.bytes, "part has %zu bytes, needs %zu (fs_partial_size)", bytes, l.bytes);
    FS_REQUIRE(context, (uintptr_t)part % 8 == 0, "part is %p, must be 8-byte aligned device memory", part);
    if (batch->rows == 0) return FS_OK;
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_cuda_exchange own = part_at(&args, &l, part);
    fs_status status = FS_OK;
    if (cudaMemsetAsync(part, 0, l.bytes, cuda->stream) != cudaSuccess)
        status = fs_fail(context, FS_ERR_DEVICE, "cuda: the part at %p cannot be written", part);
    if (status == FS_OK) status = make_part(context, &args, &own, &work_bytes);
    fs_cuda_leave(cuda, before);
    return status;
}

/* Parts lie where their carrier has put them: they are copied side by side first. */
static fs_status merge_scattered(fs_context *context, const fs_cuda_args *args, const layout *l,
                                 const void *const *parts, int32_t count) {
    fs_cuda *cuda = context->state;
    FS_TRY(fs_cuda_reserve(context, &cuda->gathered, l->bytes * (size_t)count));
    char *all = cuda->gathered->memory;
    for (int32_t i = 0; i < count; i++)
        FS_CUDA_TRY(context, cudaMemcpyAsync(all + (size_t)i * l->bytes, parts[i], l->bytes, cudaMemcpyDeviceToDevice,
                                             cuda->stream));
    const fs_cuda_exchange first = part_at(args, l, all);
    return merge_parts(context, args, l, all, count, &first);
}

fs_status fs_cuda_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                        int32_t count, int32_t least, int32_t sealed, fs_result *result) {
    fs_cuda *cuda = context->state;
    fs_cuda_args args;
    int before;
    (void)least, (void)sealed;
    FS_TRY(prepare(context, head, batch, result, &args));
    const layout l = layout_of(batch, result, args.want, 1);
    if (batch->rows > 0) {
        FS_TRY(fs_cuda_enter(context, &before));
        const fs_status status = merge_scattered(context, &args, &l, parts, count);
        fs_cuda_leave(cuda, before);
        FS_TRY(status);
    }
    result->fallback_rows = 0;
    result->work_bytes = cuda->gathered ? (int64_t)cuda->gathered->bytes : 0;
    result->wire_bytes = (int64_t)l.bytes;
    return FS_OK;
}
