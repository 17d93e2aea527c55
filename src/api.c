/* api.c - argument checks of every public function, nothing else. Each check names the value and the limit. */
#include "backend.h"

#include "core/accept.h"
#include "core/ask.h"
#include "core/halves.h"
#include "dist/dist.h"

#include <stdlib.h>

#define FS_ROWS_MOST ((int64_t)1 << 20)
#define FS_SAMPLES_MOST 1024
#define FS_TOP_MOST 1024
#define FS_THREADS_MOST 4096
#define FS_BLOCK_MOST (1 << 20)
#define FS_FLAGS_KNOWN 0xffu /* of a batch */

uint32_t fs_version(void) {
    return FS_VERSION_MAJOR << 16 | FS_VERSION_MINOR << 8 | FS_VERSION_PATCH;
}

#define FS_TEXT_(x) #x
#define FS_TEXT(x) FS_TEXT_(x)

const char *fs_version_text(void) {
    return FS_TEXT(FS_VERSION_MAJOR) "." FS_TEXT(FS_VERSION_MINOR) "." FS_TEXT(FS_VERSION_PATCH);
}

uint32_t fs_noise_id(void) {
    return FS_NOISE_ID;
}

double fs_noise_gumbel(uint64_t seed, uint64_t position, uint32_t sample, uint32_t stream, uint32_t token) {
    return noise_gumbel(noise_row(seed, position, sample, stream), token);
}

uint64_t fs_seed_spread(uint64_t seed, uint64_t slot) {
    return noise_spread_seed(seed, slot);
}

/* No struct will be longer: what is, was not started from fs_..._default(). */
#define FS_STRUCT_MOST 4096

/* Copies a caller's struct into ours. A caller compiled against an earlier header may have fewer members, down to the `least` bytes of
 * the first version, and the others are zero; against a later one more, which must be zero. */
static fs_status copy_struct(fs_context *context, const char *name, const void *from, size_t size, void *to,
                             size_t ours, size_t least) {
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

/* Of an fs_<name>; last: its last member in the first version. */
#define FS_COPY(context, name, from, to, last)                                                                         \
    do {                                                                                                               \
        const size_t least = offsetof(fs_##name, last) + sizeof(to)->last;                                             \
        FS_REQUIRE(context, (from) != NULL, "%s is NULL", #name);                                                      \
        FS_TRY(copy_struct(context, #name, from, (from)->size, to, sizeof *(to), least));                              \
    } while (0)

/* --------------------------------------------------------------------------------------------------- context ---- */

fs_status fs_context_create(const fs_options *given, fs_context **out) {
    fs_options options = fs_options_default();
    fs_status status = FS_OK;
    FS_REQUIRE(NULL, out != NULL, "out is NULL");
    *out = NULL;
    if (given) FS_COPY(NULL, options, given, &options, reserved);
    FS_REQUIRE(NULL, options.threads >= 0 && options.threads <= FS_THREADS_MOST,
               "options.threads is %d, must be 0 (every core) to %d", options.threads, FS_THREADS_MOST);
    FS_REQUIRE(NULL, options.block >= 0 && options.block <= FS_BLOCK_MOST,
               "options.block is %d, must be 0 (chosen) to %d", options.block, FS_BLOCK_MOST);
    FS_REQUIRE(NULL, !options.alloc == !options.free, "options.alloc and options.free must be given together");
    FS_REQUIRE(NULL, !options.work || (uintptr_t)options.work % 64 == 0, "options.work is %p, must be 64-byte aligned",
               options.work);
    FS_REQUIRE(NULL, options.work || options.work_bytes == 0, "options.work_bytes is %zu but options.work is NULL",
               options.work_bytes);
    const fs_backend *backend = fs_backend_choose(&options, &status);
    if (!backend) return status;
    if (options.work && !backend->set_work)
        return fs_fail(NULL, FS_ERR_UNSUPPORTED, "options.work is %p: the %s backend takes no work memory",
                       options.work, backend->name);

    fs_context blank;
    memset(&blank, 0, sizeof blank);
    blank.backend = backend;
    blank.options = options;
    fs_context *context = fs_context_alloc(&blank, sizeof *context, "the context");
    if (!context) return fs_fail(NULL, FS_ERR_MEMORY, "%s", blank.error);
    *context = blank;
    status = backend->open(context);
    if (status != FS_OK) {
        fs_fail(NULL, status, "%s", context->error);
        fs_context_free(&blank, context);
        return status;
    }
    fs_context_log(context, "%s", context->text);
    *out = context;
    return FS_OK;
}

void fs_context_destroy(fs_context *context) {
    if (!context) return;
    fs_context copy = *context;
    context->backend->close(context);
    fs_context_free(&copy, copy.exchange);
    fs_context_free(&copy, context);
}

const char *fs_context_text(const fs_context *context) {
    return context ? context->text : "";
}

fs_status fs_context_set_stream(fs_context *context, void *stream) {
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    if (!context->backend->set_stream)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "the %s backend has no streams", context->backend->name);
    return context->backend->set_stream(context, stream);
}

fs_status fs_context_set_work(fs_context *context, void *memory, size_t bytes) {
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    FS_REQUIRE(context, (uintptr_t)memory % 64 == 0, "memory is %p, must be 64-byte aligned", memory);
    FS_REQUIRE(context, memory || bytes == 0, "bytes is %zu but memory is NULL", bytes);
    if (!context->backend->set_work)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "the %s backend takes no work memory", context->backend->name);
    return context->backend->set_work(context, memory, bytes);
}

/* ------------------------------------------------------------------------------------------------------ head ---- */

static int is_float_type(int32_t dtype) {
    return dtype == FS_F32 || dtype == FS_F16 || dtype == FS_BF16;
}

/* `reads`: its data are. */
static fs_status check_head(fs_context *context, const fs_head *h, int reads) {
    FS_REQUIRE(context, h->kind == FS_HEAD_WEIGHTS || h->kind == FS_HEAD_LOGITS,
               "head.kind is %d, must be FS_HEAD_WEIGHTS (0) or FS_HEAD_LOGITS (1)", h->kind);
    if (h->dtype >= 16)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "head.dtype is %d: quantised heads are not supported yet",
                       h->dtype);
    FS_REQUIRE(context, is_float_type(h->dtype), "head.dtype is %d, must be FS_F32 (0), FS_F16 (1) or FS_BF16 (2)",
               h->dtype);
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
    FS_REQUIRE(context, is_float_type(h->round), "head.round is %d, must be FS_F32 (0), FS_F16 (1) or FS_BF16 (2)",
               h->round);
    FS_REQUIRE(context, fabsf(h->scale) < INFINITY && fabsf(h->post_scale) < INFINITY,
               "head.scale is %g and head.post_scale is %g, must be finite", (double)h->scale, (double)h->post_scale);
    FS_REQUIRE(context, h->softcap >= 0.0f && h->softcap < INFINITY,
               "head.softcap is %g, must be 0 (none) or positive and finite", (double)h->softcap);
    FS_REQUIRE(context, (h->flags & ~FS_HEAD_CONSTANT) == 0, "head.flags is 0x%x, known is FS_HEAD_CONSTANT (1)",
               h->flags);
    return FS_OK;
}

/* ----------------------------------------------------------------------------------------------------- batch ---- */

/* A list of (offset, token) pairs in host memory: offsets ascend from a non-negative one and tokens are ids. */
static fs_status check_sparse(fs_context *context, const char *name, const int64_t *offset, const int32_t *token,
                              int64_t rows, int64_t vocab) {
    FS_REQUIRE(context, offset[0] >= 0, "batch.%s_offset[0] is %lld, must not be negative", name, (long long)offset[0]);
    for (int64_t i = 0; i < rows; i++)
        FS_REQUIRE(context, offset[i + 1] >= offset[i] && offset[i + 1] <= INT32_MAX,
                   "batch.%s_offset[%lld] is %lld after %lld, must ascend and stay below 2^31", name, (long long)i + 1,
                   (long long)offset[i + 1], (long long)offset[i]);
    FS_REQUIRE(context, offset[rows] == offset[0] || token, "batch.%s_token is NULL", name);
    for (int64_t i = offset[0]; i < offset[rows]; i++)
        FS_REQUIRE(context, token[i] >= 0 && token[i] < vocab, "batch.%s_token[%lld] is %d, must be 0 to %lld", name,
                   (long long)i, token[i], (long long)vocab - 1);
    return FS_OK;
}

static fs_status check_host_arrays(fs_context *context, const fs_batch *b, int64_t vocab) {
    const int64_t slots = b->slots ? b->slots : b->rows;
    if (b->edit_offset) {
        FS_TRY(check_sparse(context, "edit", b->edit_offset, b->edit_token, b->rows, vocab));
        FS_REQUIRE(context, b->edit_offset[b->rows] == b->edit_offset[0] || b->edit_bias, "batch.edit_bias is NULL");
    }
    if (b->count_offset) {
        FS_TRY(check_sparse(context, "count", b->count_offset, b->count_token, slots, vocab));
        FS_REQUIRE(context, b->count_offset[slots] == b->count_offset[0] || b->count_value,
                   "batch.count_value is NULL");
    }
    if (b->watch_offset) FS_TRY(check_sparse(context, "watch", b->watch_offset, b->watch_token, b->rows, vocab));
    if (b->mode != FS_MODE_GROUP_PARALLEL && b->mode != FS_MODE_GROUP_ONLINE) return FS_OK;
    for (int64_t i = 0; i < b->rows; i++) {
        fs_rules rules = rules_of_row(b, vocab, i);
        FS_REQUIRE(context, !rules_cut(&rules), "row %lld has top_k %d, top_p %g or min_p: group modes take no cuts",
                   (long long)i, rules.top_k, (double)rules.top_p);
    }
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
        FS_REQUIRE(context, is_float_type(b->hidden_dtype),
                   "batch.hidden_dtype is %d, must be FS_F32 (0), FS_F16 (1) or FS_BF16 (2)", b->hidden_dtype);
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
    FS_REQUIRE(context, !grouped || (b->group_size >= 1 && b->group_size < FS_TOKEN_LIMIT),
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
    return context->backend->host_arrays ? check_host_arrays(context, b, vocab) : FS_OK;
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

/* A call's structs, copied and checked. */
typedef struct fs_arguments {
    fs_head head;
    fs_batch batch;
    fs_result result;
} fs_arguments;

/* `computes`: it is a call that computes logits. W is looked at even for no rows. */
static fs_status check(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                       int computes, fs_arguments *a) {
    FS_COPY(context, head, head, &a->head, weight_scale_all);
    FS_COPY(context, batch, batch, &a->batch, limits);
    FS_COPY(context, result, result, &a->result, wire_bytes);
    const int rows = a->batch.rows != 0;
    FS_TRY(check_head(context, &a->head, computes && (rows || a->head.kind == FS_HEAD_WEIGHTS)));
    FS_TRY(check_batch(context, &a->head, &a->batch, computes && rows));
    return check_result(context, &a->batch, &a->result);
}

static fs_status check_tokens(fs_context *context, const fs_arguments *a) {
    FS_REQUIRE(context, a->result.tokens || a->batch.mode == FS_MODE_SCORE || a->batch.rows == 0,
               "result.tokens is NULL; only score mode may leave it out");
    return FS_OK;
}

static void copy_counters(const fs_result *from, fs_result *to) {
    to->fallback_rows = from->fallback_rows;
    to->work_bytes = from->work_bytes;
    to->wire_bytes = from->wire_bytes;
}

#define FS_SUPPORTED(context, function)                                                                                \
    if (!(context)->backend->function)                                                                                 \
    return fs_fail(context, FS_ERR_UNSUPPORTED, "fs_" #function " is not supported by the %s backend",                 \
                   (context)->backend->name)

fs_status fs_sample(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result) {
    fs_arguments a;
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    FS_TRY(check(context, head, batch, result, 1, &a));
    FS_TRY(check_tokens(context, &a));
    FS_TRY(context->backend->sample(context, &a.head, &a.batch, &a.result));
    copy_counters(&a.result, result);
    return FS_OK;
}

fs_status fs_work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                       size_t *bytes, size_t *every) {
    fs_arguments a;
    size_t sizes[2] = {0, 0};
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    FS_REQUIRE(context, bytes || every, "bytes and every are both NULL");
    FS_TRY(check(context, head, batch, result, 1, &a));
    FS_SUPPORTED(context, work_size);
    FS_TRY(context->backend->work_size(context, &a.head, &a.batch, &a.result, sizes));
    if (bytes) *bytes = sizes[0];
    if (every) *every = sizes[1];
    return FS_OK;
}

/* Shards may use every mode but the online one: its groups are chosen in order over the whole vocabulary. */
static fs_status check_shard_mode(fs_context *context, const fs_batch *batch) {
    if (batch->mode == FS_MODE_GROUP_ONLINE)
        return fs_fail(context, FS_ERR_UNSUPPORTED,
                       "batch.mode FS_MODE_GROUP_ONLINE has no partial form; use FS_MODE_GROUP_PARALLEL");
    return FS_OK;
}

fs_status fs_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          size_t *bytes) {
    fs_arguments a;
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    FS_REQUIRE(context, bytes != NULL, "bytes is NULL");
    FS_TRY(check(context, head, batch, result, 1, &a));
    FS_TRY(check_shard_mode(context, &a.batch));
    FS_SUPPORTED(context, partial_size);
    return context->backend->partial_size(context, &a.head, &a.batch, &a.result, 0, bytes);
}

fs_status fs_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                     void *part, size_t bytes) {
    fs_arguments a;
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    FS_REQUIRE(context, part != NULL, "part is NULL");
    FS_TRY(check(context, head, batch, result, 1, &a));
    FS_TRY(check_shard_mode(context, &a.batch));
    FS_SUPPORTED(context, partial);
    return context->backend->partial(context, &a.head, &a.batch, &a.result, 0, part, bytes);
}

fs_status fs_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                   int32_t count, fs_result *result) {
    fs_arguments a;
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    FS_TRY(check(context, head, batch, result, 0, &a));
    FS_TRY(check_tokens(context, &a));
    FS_TRY(check_shard_mode(context, &a.batch));
    FS_REQUIRE(context, count >= 1 && count <= 65536, "count is %d, must be 1 to 65536", count);
    FS_REQUIRE(context, parts != NULL, "parts is NULL");
    for (int32_t i = 0; i < count; i++) FS_REQUIRE(context, parts[i] != NULL, "parts[%d] is NULL", i);
    FS_SUPPORTED(context, merge);
    FS_TRY(context->backend->merge(context, &a.head, &a.batch, parts, count, 0, &a.result));
    copy_counters(&a.result, result);
    return FS_OK;
}

static fs_status check_ranks(fs_context *context, const fs_ranks *r) {
    FS_REQUIRE(context, r->count >= 1 && r->count <= 65536, "ranks.count is %d, must be 1 to 65536", r->count);
    FS_REQUIRE(context, r->rank >= 0 && r->rank < r->count, "ranks.rank is %d, must be 0 to %d", r->rank, r->count - 1);
    FS_REQUIRE(context, r->all_max && r->all_gather, "ranks.all_max or all_gather is NULL");
    FS_REQUIRE(context, r->device == 0 || r->device == 1, "ranks.device is %d, must be 0 or 1", r->device);
    return FS_OK;
}

static fs_status check_ranks_call(fs_context *context, const fs_ranks *r, const fs_head *head, const fs_batch *batch,
                                  const fs_result *result, fs_arguments *a) {
    const fs_backend *backend = context->backend;
    if (r->device != !backend->host_arrays)
        return fs_fail(context, FS_ERR_UNSUPPORTED,
                       "ranks.device is %d: the %s backend takes a transport for %s memory", r->device, backend->name,
                       r->device ? "host" : "device");
    if (!backend->sample_ranks && !backend->partial)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "fs_sample_ranks is not supported by the %s backend",
                       backend->name);
    FS_TRY(check(context, head, batch, result, 1, a));
    FS_TRY(check_tokens(context, a));
    return check_shard_mode(context, &a->batch);
}

/* A rank whose arguments are wrong still meets the others, to tell them; but not in device memory without a device. */
fs_status fs_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                          fs_result *result) {
    fs_arguments a;
    fs_ranks r;
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    FS_COPY(context, ranks, ranks, &r, error_text);
    FS_TRY(check_ranks(context, &r));
    const fs_status failed = check_ranks_call(context, &r, head, batch, result, &a);
    if (!r.device) FS_TRY(fs_dist_sample(context, &r, &a.head, &a.batch, &a.result, failed));
    else if (!context->backend->sample_ranks) return failed;
    else FS_TRY(context->backend->sample_ranks(context, &r, &a.head, &a.batch, &a.result, failed));
    copy_counters(&a.result, result);
    return FS_OK;
}

fs_status fs_accept(fs_context *context, int32_t dtype, int64_t sequences, int64_t k, const void *draft,
                    const void *target, int32_t *accepted) {
    FS_REQUIRE(context, dtype == FS_I32 || dtype == FS_I64, "dtype is %d, must be FS_I32 (8) or FS_I64 (9)", dtype);
    FS_REQUIRE(context, sequences >= 0, "sequences is %lld, must not be negative", (long long)sequences);
    FS_REQUIRE(context, k >= 0 && k < INT32_MAX, "k is %lld, must be 0 to %d", (long long)k, INT32_MAX - 1);
    if (sequences == 0) return FS_OK;
    FS_REQUIRE(context, target && accepted && (draft || k == 0), "draft, target or accepted is NULL");
    if (context && context->backend->accept)
        return context->backend->accept(context, dtype, sequences, k, draft, target, accepted);
    for (int64_t s = 0; s < sequences; s++) accepted[s] = (int32_t)accept_count(dtype, k, s, draft, target);
    return FS_OK;
}
