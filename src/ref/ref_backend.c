/* ref_backend.c - the reference backend: one row after the other, all of a row's logits stored. */
#include "ref.h"

#include "../core/needs.h"

#include <stdio.h>

/* The next array of `count` elements in base, or only its bytes where there is no memory yet. */
static void *cut_off(char *base, size_t *used, int64_t count, size_t bytes) {
    void *at = base ? base + *used : NULL;
    *used += ((size_t)count * bytes + 63) / 64 * 64;
    return at;
}

/* Lays the row's arrays out in `base` (NULL: only counts) and returns their bytes. */
static size_t place_arrays(ref_row *row, char *base, const fs_head *head, int64_t samples) {
    const int64_t size = head->rows, screened = head->screen ? size : 0;
    size_t used = 0;
    row->dot = cut_off(base, &used, size, sizeof *row->dot);
    row->left = cut_off(base, &used, screened, sizeof *row->left);
    row->x = cut_off(base, &used, size, sizeof *row->x);
    row->y = cut_off(base, &used, size, sizeof *row->y);
    row->l = cut_off(base, &used, size, sizeof *row->l);
    row->count = cut_off(base, &used, size, sizeof *row->count);
    row->order = cut_off(base, &used, size, sizeof *row->order);
    row->scratch = cut_off(base, &used, size, sizeof *row->scratch);
    row->token = cut_off(base, &used, samples, sizeof *row->token);
    row->score = cut_off(base, &used, samples, sizeof *row->score);
    return used;
}

static fs_status open_reference(fs_context *context) {
    snprintf(context->text, sizeof context->text, "reference: plain loops in double over stored logits");
    return FS_OK;
}

static void close_reference(fs_context *context) {
    (void)context;
}

/* The context has no memory of its own between calls, so there is nothing to free. */
static fs_status set_work(fs_context *context, void *memory, size_t bytes) {
    context->options.work = memory;
    context->options.work_bytes = bytes;
    return FS_OK;
}

static fs_status work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                           size_t bytes[2]) {
    (void)context, (void)result;
    ref_row row;
    bytes[0] = bytes[1] = place_arrays(&row, NULL, head, batch->samples);
    return FS_OK;
}

static fs_status sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    ref_row row;
    size_t bytes = place_arrays(&row, NULL, head, batch->samples);
    void *own = NULL, *work = context->options.work;
    if (work) {
        if (bytes > context->options.work_bytes)
            return fs_fail(context, FS_ERR_MEMORY,
                           "work memory of %zu bytes is too small: this call takes %zu (fs_work_size)",
                           context->options.work_bytes, bytes);
    } else {
        own = work = fs_context_alloc(context, bytes, "the reference backend's row");
        if (!work) return FS_ERR_MEMORY;
    }
    place_arrays(&row, work, head, batch->samples);
    row.size = head->rows;
    row.first = head->first_token;
    row.vocab = head->vocab ? head->vocab : head->first_token + head->rows;

    const fs_needs needs = fs_needs_of(head, batch, result);
    const int screened = head->screen && screen_serves(head, batch, &needs, 0) && !needs.keep; /* it knows no cuts */
    if (!screened) row.left = NULL;
    for (row.b = 0; row.b < batch->rows; row.b++) {
        fs_ref_row_values(&row, batch);
        row.there = row.live = row.kept = 0;
        if (!row.status && screened) {
            context->counters.screened_dots += fs_ref_row_screen(&row, head, batch);
            context->counters.screened_rows++;
        }
        if (!row.status) {
            fs_ref_row_dots(&row, head, batch);
            fs_ref_row_logits(&row, head, batch);
        }
        if (!(row.status & FS_ROW_NO_TOKEN)) {
            fs_ref_row_cut(&row, batch);
            fs_ref_row_draw(&row, batch);
        }
        fs_ref_row_result(&row, batch, result);
    }
    if (own) fs_context_free(context, own);
    context->counters.work_bytes = (int64_t)bytes;
    return FS_OK;
}

static const char *lacks(const fs_call_desc *call) {
    return call->call == FS_CALL_SAMPLE
               ? NULL
               : "fs_partial, fs_merge and fs_sample_ranks are not supported by the reference backend";
}

const fs_backend fs_backend_reference = {
    .name = "reference",
    .host_arrays = 1,
    .open = open_reference,
    .close = close_reference,
    .sample = sample,
    .lacks = lacks,
    .set_work = set_work,
    .work_size = work_size,
};
