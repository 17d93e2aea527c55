/* dist_view.c - some rows of a call as a call of their own. Every array of a batch that is per row begins later;
 * offsets into edits, extra counts and watched tokens keep their meaning, because they need not begin at 0. */
#include "dist.h"

#include "core/format.h"

#define LATER(pointer, by)                                                                                             \
    do {                                                                                                               \
        if (pointer) (pointer) += (by);                                                                                \
    } while (0)

static const void *later_bytes(const void *from, int64_t by) {
    return from ? (const char *)from + by : NULL;
}

static fs_result view_result(const fs_result *result, int64_t b, int64_t n) {
    fs_result r = *result;
    const int64_t top = b * r.top_count;
    if (r.tokens) r.tokens = (char *)r.tokens + b * n * (r.tokens_dtype == FS_I64 ? 8 : 4);
    LATER(r.status, b);
    LATER(r.noisy_logit, b * n);
    LATER(r.max_logit, b);
    LATER(r.log_z, b);
    LATER(r.logit, b * n);
    LATER(r.logprob, b * n);
    LATER(r.rank, b * n);
    LATER(r.top_token, top);
    LATER(r.top_logit, top);
    LATER(r.top_logprob, top);
    return r;
}

fs_view fs_view_of(const fs_call *call, const fs_result *result, int64_t b, int64_t end, const int32_t *identity) {
    fs_view v = {*call->head, *call->batch, view_result(result, b, call->batch->samples)};
    fs_head *h = &v.head;
    fs_batch *batch = &v.batch;
    batch->rows = end - b;
    batch->slots = batch->slots ? batch->slots : call->batch->rows;
    if (batch->slot) batch->slot = later_bytes(batch->slot, b * (batch->slot_dtype == FS_I64 ? 8 : 4));
    else batch->slot = identity + b, batch->slot_dtype = FS_I32;
    if (h->kind == FS_HEAD_LOGITS) h->data = later_bytes(h->data, b * logits_of_head(h).stride);
    else batch->hidden = later_bytes(batch->hidden, b * hidden_of_batch(h, batch).stride);
    if (batch->allow && !batch->allow_index) {
        const int64_t words = (call->vocab + 31) / 32;
        batch->allow += b * (batch->allow_stride ? batch->allow_stride / 4 : words);
    }
    LATER(batch->allow_index, b);
    LATER(batch->position, b);
    LATER(batch->edit_offset, b);
    LATER(batch->extra_offset, b);
    LATER(batch->watch_offset, b);
    LATER(batch->score_token, b * batch->samples);
    return v;
}
