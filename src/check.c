/* check.c - the checks of structs. Each text names the value and the limit. */
#include "check.h"

#include "core/needs.h"
#include "screen/screen_make.h"

#define FS_ROWS_MOST ((int64_t)1 << 20)
#define FS_TOP_MOST 1024
#define FS_SURVIVORS_MOST (1 << 20)
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
    if (size < ours) memset((char *)to + size, 0, ours - size);
    memcpy(to, from, size < ours ? size : ours);
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------------------ head ---- */

/* `count` rows of at least `packed` bytes, this stride apart, in elements of so many bytes. */
static fs_status check_stride(fs_context *context, const char *name, int64_t stride, int64_t element, int64_t packed,
                              int64_t count) {
    FS_REQUIRE(context, stride == 0 || (stride >= packed && stride % element == 0),
               "%s is %lld bytes, must be 0 or a multiple of %lld and at least %lld", name, (long long)stride,
               (long long)element, (long long)packed);
    const int64_t apart = stride ? stride : packed;
    int64_t bytes;
    FS_REQUIRE(context, !__builtin_mul_overflow(apart, count, &bytes),
               "%s is %lld bytes, and %lld times that is more than 2^63 - 1", name, (long long)apart, (long long)count);
    return FS_OK;
}

/* `count` rows of so many columns. */
static fs_status check_rows(fs_context *context, const char *name, int64_t stride, int32_t format, int64_t columns,
                            int64_t count) {
    return check_stride(context, name, stride, format_at(format).bytes, format_row_bytes(format, columns), count);
}

fs_status fs_check_head(fs_context *context, const fs_head *h, int reads) {
    FS_REQUIRE(context, h->kind == FS_HEAD_WEIGHTS || h->kind == FS_HEAD_LOGITS,
               "head.kind is %d, must be FS_HEAD_WEIGHTS (0) or FS_HEAD_LOGITS (1)", h->kind);
    const char *quantised = fs_quantised_lack(h->dtype);
    if (quantised && h->kind == FS_HEAD_WEIGHTS)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "head.dtype is %d: %s", h->dtype, quantised);
    FS_REQUIRE(context, dtype_is_float(h->dtype), "head.dtype is %d, must be %s%s", h->dtype, FS_FLOAT_WORDS,
               quantised ? " for stored logits" : "");
    FS_REQUIRE(context, h->rows >= 0 && h->rows < FS_TOKEN_LIMIT, "head.rows is %lld, must be 0 to %lld",
               (long long)h->rows, (long long)FS_TOKEN_LIMIT - 1);
    FS_REQUIRE(context, h->first_token >= 0 && h->first_token < FS_TOKEN_LIMIT - h->rows,
               "head.first_token is %lld, must be 0 to %lld for %lld rows", (long long)h->first_token,
               (long long)(FS_TOKEN_LIMIT - 1 - h->rows), (long long)h->rows);
    FS_REQUIRE(context, h->vocab >= 0 && h->vocab < FS_TOKEN_LIMIT, "head.vocab is %lld, must be 0 (all rows) to %lld",
               (long long)h->vocab, (long long)FS_TOKEN_LIMIT - 1);
    FS_REQUIRE(context, h->kind == FS_HEAD_LOGITS || (h->dim > 0 && h->dim <= INT32_MAX),
               "head.dim is %lld, must be 1 to %d", (long long)h->dim, INT32_MAX);
    const int32_t format = format_of(h->dtype);
    FS_TRY(h->kind == FS_HEAD_WEIGHTS ? check_rows(context, "head.stride", h->stride, format, h->dim, h->rows)
                                      : check_rows(context, "head.stride", h->stride, format, h->rows, FS_ROWS_MOST));
    FS_REQUIRE(context, !reads || h->rows == 0 || h->data, "head.data is NULL");
    FS_REQUIRE(context, dtype_is_float(h->round_to), "head.round_to is %d, must be " FS_FLOAT_WORDS, h->round_to);
    FS_REQUIRE(context, fabsf(h->scale) < INFINITY && fabsf(h->post_scale) < INFINITY,
               "head.scale is %g and head.post_scale is %g, must be finite", (double)h->scale, (double)h->post_scale);
    FS_REQUIRE(context, h->softcap >= 0.0f && h->softcap < INFINITY,
               "head.softcap is %g, must be 0 (none) or positive and finite", (double)h->softcap);
    FS_REQUIRE(context, (h->flags & ~FS_HEAD_CONSTANT) == 0, "head.flags is 0x%x, known is FS_HEAD_CONSTANT (1)",
               h->flags);
    FS_REQUIRE(context, h->reserved == 0, "head.reserved is %d, must be 0", h->reserved);
    return FS_OK;
}

/* ----------------------------------------------------------------------------------------------------- batch ---- */

/* Arrays that say nothing without another: one that is forgotten would be a rule that is silently not applied. */
static fs_status check_partners(fs_context *context, const fs_batch *b) {
    const struct {
        const char *name, *partners;
        const void *array;
        int has_partner;
    } arrays[] = {
        {"allow_index", "batch.allow is NULL", b->allow_index, b->allow != NULL},
        {"edit_token", "batch.edit_offset and edit_count are NULL", b->edit_token, b->edit_offset || b->edit_count},
        {"edit_bias", "batch.edit_offset and edit_count are NULL", b->edit_bias, b->edit_offset || b->edit_count},
        {"count_token", "batch.count_offset is NULL", b->count_token, b->count_offset != NULL},
        {"count_value", "batch.count_offset is NULL", b->count_value, b->count_offset != NULL},
        {"extra_token", "batch.extra_offset is NULL", b->extra_token, b->extra_offset != NULL},
        {"watch_token", "batch.watch_offset is NULL", b->watch_token, b->watch_offset != NULL},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        FS_REQUIRE(context, !arrays[i].array || arrays[i].has_partner, "batch.%s is given, but %s", arrays[i].name,
                   arrays[i].partners);
    return FS_OK;
}

static fs_status check_limits(fs_context *context, const fs_limits *l) {
    FS_REQUIRE(context, (l->absent & ~FS_RULES_KNOWN) == 0, "limits.absent is 0x%x, known bits are 0x%x", l->absent,
               FS_RULES_KNOWN);
    FS_REQUIRE(context, l->top_k >= 0, "limits.top_k is %d, must be 0 (not said) or more", l->top_k);
    const int64_t most = (int64_t)1 << 40; /* so that sizes of parts are no larger than numbers */
    const int negative = l->edits < 0 || l->counts < 0 || l->watched < 0;
    FS_REQUIRE(context, !negative && l->edits <= most && l->counts <= most && l->watched <= most,
               "limits.edits is %lld, counts %lld and watched %lld, must be 0 (not said) to 2^40", (long long)l->edits,
               (long long)l->counts, (long long)l->watched);
    return FS_OK;
}

/* `reads`: the hidden states are. */
static fs_status check_batch(fs_context *context, const fs_head *h, const fs_batch *b, int reads) {
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
        FS_REQUIRE(context, dtype_is_float(b->hidden_dtype), "batch.hidden_dtype is %d, must be " FS_FLOAT_WORDS,
                   b->hidden_dtype);
        FS_REQUIRE(context, !reads || b->hidden, "batch.hidden is NULL");
        const int32_t format = format_of(b->hidden_dtype);
        if (b->hidden_stride != FS_STRIDE_BROADCAST)
            FS_TRY(check_rows(context, "batch.hidden_stride", b->hidden_stride, format, h->dim, b->rows));
    }
    const int grouped = is_group_mode(b->mode);
    FS_REQUIRE(context, !grouped || b->samples == 1, "batch.samples is %d, group modes draw 1", b->samples);
    FS_REQUIRE(context, !grouped || (b->group_size >= 0 && b->group_size < FS_TOKEN_LIMIT),
               "batch.group_size is %lld, must be 1 to %lld in group modes", (long long)b->group_size,
               (long long)FS_TOKEN_LIMIT - 1);
    FS_REQUIRE(context, b->slots >= 0 && b->slots <= INT32_MAX, "batch.slots is %lld, must be 0 (rows) to %d",
               (long long)b->slots, INT32_MAX);
    FS_REQUIRE(context, b->allow_count >= 0, "batch.allow_count is %lld, must be 0 (not said) or more",
               (long long)b->allow_count);
    /* A mask's index is an int32, where it is not the row's. */
    const int64_t masks = b->allow_count ? b->allow_count : b->allow_index ? INT32_MAX : b->rows;
    const int64_t slots = b->slots ? b->slots : b->rows;
    FS_TRY(check_stride(context, "batch.allow_stride", b->allow_stride, 4, words, masks));
    FS_TRY(check_stride(context, "batch.seen_stride", b->seen_stride, 4, words, slots));
    FS_TRY(check_stride(context, "batch.counts_stride", b->counts_stride, 4, vocab * 4, slots));
    FS_REQUIRE(context, !b->counts || !b->count_offset, "batch.counts and batch.count_offset are both given; take one");
    FS_REQUIRE(context, !b->edit_offset || !b->edit_count,
               "batch.edit_offset and batch.edit_count are both given; take one");
    FS_REQUIRE(context, !b->edit_count || (b->edit_stride >= 4 && b->edit_stride % 4 == 0),
               "batch.edit_stride is %lld bytes, must be a multiple of 4 and at least 4", (long long)b->edit_stride);
    FS_TRY(check_limits(context, b->limits));
    FS_REQUIRE(context, b->mode != FS_MODE_SCORE || b->score_token || b->rows == 0,
               "batch.score_token is NULL in score mode");
    FS_REQUIRE(context, b->list_capacity >= 0 && b->list_capacity < FS_TOKEN_LIMIT,
               "batch.list_capacity is %d, must be 0 to %lld", b->list_capacity, (long long)FS_TOKEN_LIMIT - 1);
    FS_REQUIRE(context, b->reserved == 0, "batch.reserved is %d, must be 0", b->reserved);
    return check_stride(context, "batch.edit_stride", b->edit_stride, 4, 4, slots);
}

/* ---------------------------------------------------------------------------------------------------- result ---- */

static fs_status check_result(fs_context *context, const fs_batch *b, const fs_result *r) {
    FS_REQUIRE(context, r->tokens_dtype == FS_I32 || r->tokens_dtype == FS_I64,
               "result.tokens_dtype is %d, must be FS_I32 (8) or FS_I64 (9)", r->tokens_dtype);
    FS_REQUIRE(context, r->logits_mode >= FS_LOGITS_RAW && r->logits_mode <= FS_LOGITS_CUT,
               "result.logits_mode is %d, must be 0 to 2", r->logits_mode);
    FS_REQUIRE(context, r->top_count >= 0 && r->top_count <= FS_TOP_MOST, "result.top_count is %d, must be 0 to %d",
               r->top_count, FS_TOP_MOST);
    FS_REQUIRE(context, r->survivor_limit >= 0 && r->survivor_limit <= FS_SURVIVORS_MOST,
               "result.survivor_limit is %d, must be 0 to %d", r->survivor_limit, FS_SURVIVORS_MOST);
    FS_REQUIRE(context, !r->survivor_token || r->survivor_limit,
               "result.survivor_limit is 0, must be 1 to %d with survivor_token", FS_SURVIVORS_MOST);
    int watch = r->watch_logit || r->watch_logprob;
    FS_REQUIRE(context, !watch || b->watch_offset,
               "result.watch_logit or watch_logprob is given, but batch.watch_offset is NULL");
    return FS_OK;
}

#define FS_FALLBACK_BYTES ((size_t)320 << 20)

static void replace_zero(int32_t *value, int32_t by) {
    if (*value == 0) *value = by;
}

static void replace_float_zero(float *value, float by) {
    if (*value == 0.0f) *value = by;
}

/* Scalars whose zero stands for another value: the table in flashsampling.h. */
static void fill_defaults(fs_arguments *a) {
    replace_float_zero(&a->head.scale, 1.0f);
    replace_float_zero(&a->head.post_scale, 1.0f);
    replace_zero(&a->batch.samples, 1);
    replace_zero(&a->batch.slot_dtype, FS_I32);
    replace_float_zero(&a->rules.top_p.value, 1.0f);
    replace_float_zero(&a->rules.repetition.value, 1.0f);
    replace_zero(&a->batch.fallback_token, -1);
    if (a->batch.fallback_token == FS_FALLBACK_TOKEN_ZERO) a->batch.fallback_token = 0;
    replace_zero(&a->result.tokens_dtype, FS_I32);
}

/* Stored logits have none: what the caller left there is not looked at, here or later. */
static void ignore_hidden(fs_arguments *a) {
    a->head.dim = 0;
    a->batch.hidden = NULL;
    a->batch.hidden_dtype = FS_F32;
    a->batch.hidden_stride = 0;
}

/* The structs that a batch points to; without them their defaults. */
static fs_status copy_pointed(fs_context *context, fs_arguments *a) {
    const fs_rules *rules = a->batch.rules;
    const fs_limits *limits = a->batch.limits;
    if (rules) FS_COPY(context, rules, rules, &a->rules, presence);
    else a->rules = fs_rules_default();
    if (limits) FS_COPY(context, limits, limits, &a->limits, watched);
    else a->limits = fs_limits_default();
    a->batch.rules = &a->rules;
    a->batch.limits = &a->limits;
    return FS_OK;
}

/* W is looked at even for no rows. */
fs_status fs_check_call(fs_context *context, int32_t call, const fs_head *head, const fs_batch *batch,
                        const fs_result *result, int computes, fs_arguments *a) {
    FS_COPY(context, head, head, &a->head, first_token);
    FS_COPY(context, batch, batch, &a->batch, group_size);
    FS_COPY(context, result, result, &a->result, survivor_count);
    FS_TRY(copy_pointed(context, a));
    fill_defaults(a);
    if (a->head.kind == FS_HEAD_LOGITS) ignore_hidden(a);
    const int rows = a->batch.rows != 0, reads = computes && (rows || a->head.kind == FS_HEAD_WEIGHTS);
    FS_TRY(fs_check_head(context, &a->head, reads));
    FS_TRY(check_batch(context, &a->head, &a->batch, computes && rows));
    FS_TRY(check_result(context, &a->batch, &a->result));
    FS_TRY(fs_check_pointers(context, a));
    FS_TRY(check_partners(context, &a->batch));
    FS_TRY(fs_backend_take_stream(context, "batch.cuda_stream", a->batch.cuda_stream));
    if (a->head.screen && reads) FS_TRY(fs_screen_admit(context, &a->head));
    if (context->backend->host_arrays) FS_TRY(fs_check_host_arrays(context, &a->batch, head_vocab(&a->head)));
    return fs_check_supported(context, call, a);
}

fs_status fs_check_whole(fs_context *context, const fs_arguments *a) {
    const fs_head *h = &a->head;
    FS_REQUIRE(context, h->rows > 0 || a->batch.rows == 0, "head.rows is 0: there is no token to draw");
    FS_REQUIRE(
        context, h->vocab <= h->first_token + h->rows,
        "head.vocab is %lld, but the head's last token is %lld: a shard, which fs_partial or fs_sample_ranks take",
        (long long)h->vocab, (long long)(h->first_token + h->rows) - 1);
    return FS_OK;
}

fs_status fs_check_tokens(fs_context *context, const fs_arguments *a) {
    FS_REQUIRE(context, a->result.tokens || a->batch.mode == FS_MODE_SCORE || a->batch.rows == 0,
               "result.tokens is NULL; only score mode may leave it out");
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------ options and ranks ---- */

fs_status fs_check_options(fs_options *o) {
    if (o->fallback_bytes == 0) o->fallback_bytes = FS_FALLBACK_BYTES;
    FS_REQUIRE(NULL, o->threads >= 0 && o->threads <= FS_THREADS_MOST,
               "options.threads is %d, must be 0 (every core) to %d", o->threads, FS_THREADS_MOST);
    FS_REQUIRE(NULL, o->block >= 0 && o->block <= FS_BLOCK_MOST, "options.block is %d, must be 0 (chosen) to %d",
               o->block, FS_BLOCK_MOST);
    FS_REQUIRE(NULL, !o->alloc == !o->free, "options.alloc and options.free must be given together");
    FS_REQUIRE(NULL, !o->work || (uintptr_t)o->work % 64 == 0, "options.work is %p, must be 64-byte aligned", o->work);
    FS_REQUIRE(NULL, !o->work || o->work_bytes, "options.work is %p but options.work_bytes is 0", o->work);
    FS_REQUIRE(NULL, o->work || o->work_bytes == 0, "options.work_bytes is %zu but options.work is NULL",
               o->work_bytes);
    FS_REQUIRE(NULL, (o->flags & ~FS_CHECK_POINTERS) == 0, "options.flags is 0x%x, known is FS_CHECK_POINTERS (1)",
               o->flags);
    FS_REQUIRE(NULL, o->reserved == 0, "options.reserved is %d, must be 0", o->reserved);
    return FS_OK;
}

fs_status fs_check_ranks(fs_context *context, const fs_ranks *r) {
    FS_REQUIRE(context, r->count >= 1 && r->count <= 65536, "ranks.count is %d, must be 1 to 65536", r->count);
    FS_REQUIRE(context, r->rank >= 0 && r->rank < r->count, "ranks.rank is %d, must be 0 to %d", r->rank, r->count - 1);
    FS_REQUIRE(context, r->all_max && r->all_gather, "ranks.all_max or all_gather is NULL");
    FS_REQUIRE(context, r->device == 0 || r->device == 1, "ranks.device is %d, must be 0 or 1", r->device);
    FS_REQUIRE(context, r->reserved == 0, "ranks.reserved is %d, must be 0", r->reserved);
    return FS_OK;
}
