/* check.c - the checks of structs. Each text names the value and the limit. */
#include "check.h"

#include "core/ask.h"
#include "core/halves.h"

#define FS_ROWS_MOST ((int64_t)1 << 20)
#define FS_TOP_MOST 1024
#define FS_THREADS_MOST 4096
#define FS_BLOCK_MOST (1 << 20)

/* No struct will be longer: what is, was not started from fs_..._default(). */
#define FS_STRUCT_MOST 4096

fs_status fs_copy_struct(fs_context *context, const char *name, const void *from, size_t size, void *to, size_t ours,
                         size_t least) {
    FS_REQUIRE(context, size >= least && size <= FS_STRUCT_MOST,
               "%s.size is %zu, must be %zu to %d: start from fs_%s_default()", name, size, least, FS_STRUCT_MOST,
               name);
    for (size_t i = ours; i < size; i++)
        if (((const char *)from)[i])
            return fs_fail(context, FS_ERR_UNSUPPORTED,
                           "%s.size is %zu and byte %zu is set: a member this version (%s, %zu bytes) does not know",
                           name, size, i, fs_version_text(), ours);
    memset(to, 0, ours);
    memcpy(to, from, size < ours ? size : ours);
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------------------ head ---- */

/* `reads`: its data are. */
static fs_status check_head(fs_context *context, const fs_head *h, int reads) {
    FS_REQUIRE(context, h->kind == FS_HEAD_WEIGHTS || h->kind == FS_HEAD_LOGITS,
               "head.kind is %d, must be FS_HEAD_WEIGHTS (0) or FS_HEAD_LOGITS (1)", h->kind);
    const char *quantised = is_float_type(h->dtype) ? NULL : fs_quantised_lack(h->dtype);
    if (quantised && h->kind == FS_HEAD_WEIGHTS)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "head.dtype is %d: %s", h->dtype, quantised);
    FS_REQUIRE(context, is_float_type(h->dtype), "head.dtype is %d, must be %s%s", h->dtype, FS_FLOAT_WORDS,
               quantised ? " for stored logits" : "");
    FS_REQUIRE(context, h->rows >= 0 && h->rows < FS_TOKEN_LIMIT, "head.rows is %lld, must be 0 to %lld",
               (long long)h->rows, (long long)FS_TOKEN_LIMIT - 1);
    FS_REQUIRE(context, h->first_token >= 0 && h->first_token < FS_TOKEN_LIMIT - h->rows,
               "head.first_token is %lld: first_token + rows must be below %lld", (long long)h->first_token,
               (long long)FS_TOKEN_LIMIT);
    FS_REQUIRE(context, h->vocab >= 0 && h->vocab < FS_TOKEN_LIMIT, "head.vocab is %lld, must be 0 (all rows) to %lld",
               (long long)h->vocab, (long long)FS_TOKEN_LIMIT - 1);
    const int64_t bytes = dtype_bytes(h->dtype);
    const int64_t columns = h->kind == FS_HEAD_WEIGHTS ? h->dim : h->rows;
    FS_REQUIRE(context, h->kind == FS_HEAD_LOGITS || (h->dim > 0 && h->dim <= INT32_MAX),
               "head.dim is %lld, must be 1 to %d", (long long)h->dim, INT32_MAX);
    FS_REQUIRE(context, h->stride == 0 || (h->stride >= columns * bytes && h->stride % bytes == 0),
               "head.stride is %lld bytes, must be 0 or a multiple of %lld and at least %lld", (long long)h->stride,
               (long long)bytes, (long long)(columns * bytes));
    FS_REQUIRE(context, !reads || h->rows == 0 || h->data, "head.data is NULL");
    FS_REQUIRE(context, (uintptr_t)h->data % (size_t)bytes == 0, "head.data is %p, must be %lld-byte aligned", h->data,
               (long long)bytes);
    FS_REQUIRE(context, is_float_type(h->round), "head.round is %d, must be " FS_FLOAT_WORDS, h->round);
    FS_REQUIRE(context, fabsf(h->scale) < INFINITY && fabsf(h->post_scale) < INFINITY,
               "head.scale is %g and head.post_scale is %g, must be finite", (double)h->scale, (double)h->post_scale);
    FS_REQUIRE(context, h->softcap >= 0.0f && h->softcap < INFINITY,
               "head.softcap is %g, must be 0 (none) or positive and finite", (double)h->softcap);
    FS_REQUIRE(context, (h->flags & ~FS_HEAD_CONSTANT) == 0, "head.flags is 0x%x, known is FS_HEAD_CONSTANT (1)",
               h->flags);
    return FS_OK;
}

/* ----------------------------------------------------------------------------------------------------- batch ---- */

/* `reads`: the hidden states are. */
static fs_status check_batch(fs_context *context, int32_t call, const fs_head *h, const fs_batch *b, int reads) {
    const int64_t vocab = head_vocab(h), words = (vocab + 31) / 32 * 4;
    FS_REQUIRE(context, b->rows >= 0 && b->rows <= FS_ROWS_MOST, "batch.rows is %lld, must be 0 to %lld",
               (long long)b->rows, (long long)FS_ROWS_MOST);
    FS_REQUIRE(context, b->mode >= FS_MODE_SAMPLE && b->mode <= FS_MODE_SCORE, "batch.mode is %d, must be 0 to %d",
               b->mode, FS_MODE_SCORE);
    FS_REQUIRE(context, b->samples >= 1 && b->samples <= FS_SAMPLES_MOST, "batch.samples is %d, must be 1 to %d",
               b->samples, FS_SAMPLES_MOST);
    FS_REQUIRE(context, b->noise == FS_NOISE_EXACT || b->noise == FS_NOISE_FAST, "batch.noise is %d, must be 0 or 1",
               b->noise);
    FS_REQUIRE(context, (b->flags & ~FS_FLAGS_KNOWN) == 0, "batch.flags is 0x%x, known bits are 0x%x", b->flags,
               FS_FLAGS_KNOWN);
    FS_REQUIRE(context, !b->slot || b->slot_dtype == FS_I32 || b->slot_dtype == FS_I64,
               "batch.slot_dtype is %d, must be FS_I32 (8) or FS_I64 (9)", b->slot_dtype);
    if (h->kind == FS_HEAD_WEIGHTS) {
        FS_REQUIRE(context, is_float_type(b->hidden_dtype), "batch.hidden_dtype is %d, must be " FS_FLOAT_WORDS,
                   b->hidden_dtype);
        const int64_t bytes = dtype_bytes(b->hidden_dtype);
        FS_REQUIRE(context, !reads || b->hidden, "batch.hidden is NULL");
        FS_REQUIRE(context, (uintptr_t)b->hidden % (size_t)bytes == 0, "batch.hidden is %p, must be %lld-byte aligned",
                   b->hidden, (long long)bytes);
        FS_REQUIRE(context,
                   b->hidden_stride == 0 || (b->hidden_stride >= h->dim * bytes && b->hidden_stride % bytes == 0),
                   "batch.hidden_stride is %lld bytes, must be 0 or a multiple of %lld and at least %lld",
                   (long long)b->hidden_stride, (long long)bytes, (long long)(h->dim * bytes));
    }
    const int grouped = b->mode == FS_MODE_GROUP_PARALLEL || b->mode == FS_MODE_GROUP_ONLINE;
    FS_REQUIRE(context, !grouped || b->samples == 1, "batch.samples is %d, group modes draw 1", b->samples);
    FS_REQUIRE(context, !grouped || call != FS_CALL_SAMPLE || (b->group_size >= 1 && b->group_size < FS_TOKEN_LIMIT),
               "batch.group_size is %lld, must be 1 to %lld in group modes", (long long)b->group_size,
               (long long)FS_TOKEN_LIMIT - 1);
    FS_REQUIRE(context, b->slots >= 0 && b->slots <= INT32_MAX, "batch.slots is %lld, must be 0 (rows) to %d",
               (long long)b->slots, INT32_MAX);
    FS_REQUIRE(context, b->allow_stride == 0 || (b->allow_stride >= words && b->allow_stride % 4 == 0),
               "batch.allow_stride is %lld bytes, must be 0 or a multiple of 4 and at least %lld",
               (long long)b->allow_stride, (long long)words);
    FS_REQUIRE(context, b->masks >= 0, "batch.masks is %lld, must be 0 (not said) or more", (long long)b->masks);
    FS_REQUIRE(context, b->seen_stride == 0 || (b->seen_stride >= words && b->seen_stride % 4 == 0),
               "batch.seen_stride is %lld bytes, must be 0 or a multiple of 4 and at least %lld",
               (long long)b->seen_stride, (long long)words);
    FS_REQUIRE(context, b->counts_stride == 0 || (b->counts_stride >= vocab * 4 && b->counts_stride % 4 == 0),
               "batch.counts_stride is %lld bytes, must be 0 or a multiple of 4 and at least %lld",
               (long long)b->counts_stride, (long long)vocab * 4);
    FS_REQUIRE(context, !b->counts || !b->count_offset, "batch.counts and batch.count_offset are both given; take one");
    FS_REQUIRE(context, b->mode != FS_MODE_SCORE || b->given || b->rows == 0, "batch.given is NULL in score mode");
    FS_REQUIRE(context, b->list_capacity >= 0 && b->list_capacity < FS_TOKEN_LIMIT,
               "batch.list_capacity is %d, must be 0 to %lld", b->list_capacity, (long long)FS_TOKEN_LIMIT - 1);
    return context->backend->host_arrays ? fs_check_host_arrays(context, b, vocab) : FS_OK;
}

/* ---------------------------------------------------------------------------------------------------- result ---- */

static fs_status check_result(fs_context *context, const fs_batch *b, const fs_result *r) {
    FS_REQUIRE(context, r->tokens_dtype == FS_I32 || r->tokens_dtype == FS_I64,
               "result.tokens_dtype is %d, must be FS_I32 (8) or FS_I64 (9)", r->tokens_dtype);
    FS_REQUIRE(context, r->logits >= FS_LOGITS_RAW && r->logits <= FS_LOGITS_CUT, "result.logits is %d, must be 0 to 2",
               r->logits);
    FS_REQUIRE(context, r->top_count >= 0 && r->top_count <= FS_TOP_MOST, "result.top_count is %d, must be 0 to %d",
               r->top_count, FS_TOP_MOST);
    int watch = r->watch_logit || r->watch_logprob;
    FS_REQUIRE(context, !watch || b->watch_offset,
               "result.watch_logit or watch_logprob is given, but batch.watch_offset is NULL");
    return FS_OK;
}

/* W is looked at even for no rows. */
fs_status fs_check_call(fs_context *context, int32_t call, const fs_head *head, const fs_batch *batch,
                        const fs_result *result, int computes, fs_arguments *a) {
    FS_COPY(context, head, head, &a->head, weight_scale_all);
    FS_COPY(context, batch, batch, &a->batch, limits);
    FS_COPY(context, result, result, &a->result, wire_bytes);
    const int rows = a->batch.rows != 0;
    FS_TRY(check_head(context, &a->head, computes && (rows || a->head.kind == FS_HEAD_WEIGHTS)));
    FS_TRY(check_batch(context, call, &a->head, &a->batch, computes && rows));
    FS_TRY(check_result(context, &a->batch, &a->result));
    return fs_check_supported(context, call, a);
}

fs_status fs_check_tokens(fs_context *context, const fs_arguments *a) {
    FS_REQUIRE(context, a->result.tokens || a->batch.mode == FS_MODE_SCORE || a->batch.rows == 0,
               "result.tokens is NULL; only score mode may leave it out");
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------ options and ranks ---- */

fs_status fs_check_options(const fs_options *o) {
    FS_REQUIRE(NULL, o->threads >= 0 && o->threads <= FS_THREADS_MOST,
               "options.threads is %d, must be 0 (every core) to %d", o->threads, FS_THREADS_MOST);
    FS_REQUIRE(NULL, o->block >= 0 && o->block <= FS_BLOCK_MOST, "options.block is %d, must be 0 (chosen) to %d",
               o->block, FS_BLOCK_MOST);
    FS_REQUIRE(NULL, !o->alloc == !o->free, "options.alloc and options.free must be given together");
    FS_REQUIRE(NULL, !o->work || (uintptr_t)o->work % 64 == 0, "options.work is %p, must be 64-byte aligned", o->work);
    FS_REQUIRE(NULL, o->work || o->work_bytes == 0, "options.work_bytes is %zu but options.work is NULL",
               o->work_bytes);
    return FS_OK;
}

fs_status fs_check_ranks(fs_context *context, const fs_ranks *r) {
    FS_REQUIRE(context, r->count >= 1 && r->count <= 65536, "ranks.count is %d, must be 1 to 65536", r->count);
    FS_REQUIRE(context, r->rank >= 0 && r->rank < r->count, "ranks.rank is %d, must be 0 to %d", r->rank, r->count - 1);
    FS_REQUIRE(context, r->all_max && r->all_gather, "ranks.all_max or all_gather is NULL");
    FS_REQUIRE(context, r->device == 0 || r->device == 1, "ranks.device is %d, must be 0 or 1", r->device);
    return FS_OK;
}
