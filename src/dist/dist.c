/* dist.c - fs_sample_ranks: a first round over all rows, and further ones over rows whose lists did not prove their
 * cut. */
#include "dist.h"

/* How much longer lists become from round to round: from the usual 1024 entries over 16,384 to a whole vocabulary of
 * 262,144 in two. */
#define LONGER 16

/* The context's memory for exchanges, all of it free. */
static void *reserve(fs_context *context, size_t bytes) {
    if (bytes > context->exchange_bytes) {
        fs_context_free(context, context->exchange);
        context->exchange_bytes = 0;
        context->exchange = fs_context_alloc(context, bytes, "the exchange between ranks");
        if (context->exchange) context->exchange_bytes = bytes;
    }
    return context->exchange;
}

static fs_round round_of(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                         const fs_result *result, int32_t least) {
    fs_round round;
    memset(&round, 0, sizeof round);
    round.context = context;
    round.ranks = ranks;
    round.call.head = head;
    round.call.batch = batch;
    round.call.result = result;
    round.call.vocab = head_vocab(head);
    round.call.needs = fs_needs_of(head, batch, result);
    round.least = least;
    return round;
}

/* A first round with room for what the others need: the status of every row, and its number. */
static fs_status first_round(fs_round *round, fs_result *result, uint32_t **status, int32_t **identity,
                             fs_status failed) {
    const int64_t rows = failed == FS_OK ? round->call.batch->rows : 0;
    char *memory = NULL;
    size_t bytes = 0, aside = ((size_t)rows * 8 + 63) / 64 * 64;
    if (failed == FS_OK) failed = fs_round_size(round, &bytes);
    if (failed == FS_OK) {
        memory = reserve(round->context, aside + bytes);
        if (!memory) failed = FS_ERR_MEMORY;
    }
    if (failed == FS_OK) {
        *status = (uint32_t *)(void *)memory;
        *identity = (int32_t *)(void *)memory + rows;
        for (int64_t b = 0; b < rows; b++) (*identity)[b] = (int32_t)b;
        if (!result->status) result->status = *status;
    }
    return fs_round_run(round, memory ? memory + aside : NULL, result, failed);
}

/* The end of the longest run of incomplete rows from b on whose round fits the budget; b if not even one row's does. */
static int64_t run_end(const fs_round *first, const fs_result *result, int64_t b, int32_t least,
                       const int32_t *identity) {
    int64_t end = b;
    while (end < first->call.batch->rows && result->status[end] & FS_ROW_INCOMPLETE) end++;
    for (; end > b; end = b + (end - b) / 2) {
        const fs_view v = fs_view_of(&first->call, result, b, end, identity);
        fs_round probe = round_of(first->context, first->ranks, &v.head, &v.batch, &v.result, least);
        size_t bytes = 0;
        if (fs_round_size(&probe, &bytes) == FS_OK && bytes <= first->context->options.fallback_bytes) break;
    }
    return end;
}

/* One more round over rows [b, end), in memory of its own. If a rank has none for it, all leave the rows as they
 * are. */
static fs_status later_round(const fs_round *first, fs_result *result, int64_t b, int64_t end, int32_t least,
                             const int32_t *identity, int64_t *sent) {
    fs_view v = fs_view_of(&first->call, result, b, end, identity);
    fs_round round = round_of(first->context, first->ranks, &v.head, &v.batch, &v.result, least);
    size_t bytes = 0;
    void *memory = NULL;
    fs_status status = fs_round_size(&round, &bytes);
    if (status == FS_OK) {
        memory = fs_context_alloc(first->context, bytes, "a further round of ranks");
        if (!memory) status = FS_ERR_MEMORY;
    }
    status = fs_round_run(&round, memory, &v.result, status);
    fs_context_free(first->context, memory);
    for (int64_t i = b; i < end && status == FS_OK; i++) result->status[i] |= FS_ROW_FALLBACK;
    *sent += round.sent;
    if (status == FS_OK || round.worst != FS_ERR_MEMORY) return status;
    fs_context_log(first->context, "rows %lld to %lld: %s", (long long)b, (long long)end - 1,
                   fs_error_text(first->context));
    return FS_OK;
}

static int64_t count_incomplete(const fs_result *result, int64_t rows) {
    int64_t count = 0;
    for (int64_t b = 0; b < rows; b++) count += (result->status[b] & FS_ROW_INCOMPLETE) != 0;
    return count;
}

/* All ranks have merged the same parts, so all agree on which rows these are. */
static fs_status further_rounds(fs_round *first, fs_result *result, const int32_t *identity) {
    const fs_needs *needs = &first->call.needs;
    const int64_t rows = first->call.batch->rows, vocab = first->call.vocab;
    /* Either list may be what is too short: the shorter one grows first. */
    const int32_t by_y = needs->keep ? needs->keep : needs->keep_raw,
                  by_x = needs->keep_raw ? needs->keep_raw : needs->keep;
    int64_t least = by_y < by_x ? by_y : by_x;
    first->context->counters.fallback_rows = count_incomplete(result, rows);
    while (least < vocab && count_incomplete(result, rows) > 0) {
        least = least * LONGER < vocab ? least * LONGER : vocab;
        for (int64_t b = 0; b < rows; b++) {
            if (!(result->status[b] & FS_ROW_INCOMPLETE)) continue;
            const int64_t end = run_end(first, result, b, (int32_t)least, identity);
            if (end == b) {
                fs_context_log(first->context,
                               "row %lld needs lists of %lld entries from every rank, more than %zu bytes",
                               (long long)b, (long long)least, first->context->options.fallback_bytes);
                continue;
            }
            FS_TRY(later_round(first, result, b, end, (int32_t)least, identity, &first->sent));
            b = end - 1;
        }
    }
    return FS_OK;
}

fs_status fs_dist_sample(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                         const fs_result *given, fs_status failed) {
    uint32_t *status = NULL;
    int32_t *identity = NULL;
    fs_result result = fs_result_default();
    fs_round round;
    memset(&round, 0, sizeof round);
    round.context = context;
    round.ranks = ranks;
    if (failed == FS_OK) {
        result = *given;
        round = round_of(context, ranks, head, batch, &result, 0);
    }
    FS_TRY(first_round(&round, &result, &status, &identity, failed));
    const int64_t work_bytes = context->counters.work_bytes + (int64_t)context->exchange_bytes;
    FS_TRY(further_rounds(&round, &result, identity));
    context->counters.work_bytes = work_bytes;
    context->counters.wire_bytes = round.sent;
    return FS_OK;
}
