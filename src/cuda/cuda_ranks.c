/* cuda_ranks.c - fs_sample_ranks on the device: the pass leaves a part instead of results (cuda_call.h), one collective of the transport
 * makes it that of all ranks, and a small launch writes the results. Everything is enqueued; nothing waits.
 *
 *   tokens alone           all_max of    header 16 | key 8 per row
 *   anything else          all_gather of header 16 | two bits and key 8, mass 20, peak 4 per row, as far as wanted */
#include "cuda_backend.h"

#include "core/card.h"

typedef struct layout {
    size_t bytes, bits_at, rows_at; /* of a part; bits_at 0: keys alone */
    int32_t row_words;
} layout;

static layout layout_of(const fs_batch *batch, const fs_result *result, uint32_t want) {
    const size_t rows = (size_t)batch->rows;
    layout l = {0, 0, FS_CUDA_HEADER, 2};
    if (want || result->status) {
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

/* The launches of one call, the device being current. */
static fs_status enqueue(fs_context *context, const fs_ranks *ranks, fs_cuda_args *args, const layout *l,
                         fs_result *result) {
    fs_cuda *cuda = context->state;
    const size_t aligned = (l->bytes + 255) / 256 * 256;
    int64_t parts_bytes = 0;
    FS_TRY(fs_cuda_reserve(context, &cuda->exchange, aligned + (l->bits_at ? l->bytes * (size_t)ranks->count : 0)));
    char *mine = cuda->exchange->memory, *all = l->bits_at ? mine + aligned : mine;
    const int grouped = args->batch.mode == FS_MODE_GROUP_PARALLEL;
    const fs_cuda_exchange exchange = {(unsigned long long *)(void *)mine,
                                       l->bits_at ? (uint32_t *)(void *)(mine + l->bits_at) : NULL,
                                       (uint32_t *)(void *)(mine + l->rows_at), l->row_words,
                                       hash_of(&args->head, &args->batch, &args->result, args->want)};
    fs_cuda_args pass = *args;
    pass.batch.mode = FS_MODE_SAMPLE; /* a part is one group, whatever the mode */
    pass.exchange = exchange;
    const fs_status drawn = fs_cuda_pass(context, &pass, &parts_bytes);
    /* A rank that has failed still meets the others. */
    if (drawn != FS_OK) (void)fs_cuda_failed_launch(&exchange, cuda->stream);
    const fs_status met = collect(context, ranks, l, mine, all);
    if (drawn != FS_OK || met != FS_OK) {
        (void)cudaMemsetAsync(mine, 0, l->bytes, cuda->stream);
        return drawn != FS_OK ? drawn : met;
    }
    args->vocab = head_vocab(&args->head);
    const fs_cuda_gathered from = {all, l->bytes, l->bits_at, l->rows_at, ranks->count, grouped, exchange};
    FS_CUDA_TRY(context, fs_cuda_merge_launch(args, &from, cuda->stream));
    result->work_bytes = (int64_t)(sizeof *cuda->work + cuda->exchange->bytes) + parts_bytes;
    result->wire_bytes = (int64_t)l->bytes;
    result->fallback_rows = 0;
    return FS_OK;
}

fs_status fs_cuda_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                               fs_result *result, fs_status failed) {
    fs_cuda *cuda = context->state;
    fs_batch plain = *batch;
    int before;
    /* With other arguments there is no collective to meet in: its size would not be the others'. */
    FS_TRY(failed);
    if (batch->mode == FS_MODE_GROUP_PARALLEL) {
        plain.mode = FS_MODE_SAMPLE;
        if ((result->log_z || result->logprob) && result->logits == FS_LOGITS_RAW)
            return fs_fail(context, FS_ERR_UNSUPPORTED,
                           "log Z of raw logits together with a group mode is not supported yet by the cuda backend");
    }
    FS_TRY(fs_cuda_check(context, head, &plain, result));
    if (batch->rows == 0) return FS_OK;
    fs_cuda_args args;
    memset(&args, 0, sizeof args);
    args.head = *head;
    args.batch = *batch;
    args.result = *result;
    args.want = fs_cuda_want(&plain, result) | (batch->mode == FS_MODE_GROUP_PARALLEL ? (uint32_t)FS_CUDA_MASS : 0u);
    const layout l = layout_of(batch, result, args.want);
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = enqueue(context, ranks, &args, &l, result);
    fs_cuda_leave(cuda, before);
    return status;
}
