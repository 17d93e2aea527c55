/* api.c - the public functions: check the arguments (check.h), call the backend. */
#include "check.h"

#include "core/accept.h"
#include "core/noise.h"
#include "core/key.h"
#include "dist/dist.h"
#include "screen/screen_make.h"

#include <stdlib.h>

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

double fs_noise_gumbel(uint64_t seed, uint64_t position, uint32_t sample, uint32_t substream, uint32_t token) {
    return noise_gumbel(noise_row(seed, position, sample, substream), token);
}

uint64_t fs_seed_spread(uint64_t seed, uint64_t slot) {
    return noise_spread_seed(seed, slot);
}

/* --------------------------------------------------------------------------------------------------- context ---- */

static fs_status read_environment(fs_options *options) {
    const char *checks = getenv("FLASHSAMPLING_CHECK_POINTERS");
    if (!checks || strcmp(checks, "0") == 0) return FS_OK;
    if (strcmp(checks, "1") != 0)
        return fs_fail(NULL, FS_ERR_ENVIRONMENT, "FLASHSAMPLING_CHECK_POINTERS=%s, must be 0 or 1", checks);
    options->flags |= FS_CHECK_POINTERS;
    return FS_OK;
}

fs_status fs_context_create(const fs_options *given, fs_context **out) {
    fs_options options = fs_options_default();
    fs_status status = FS_OK;
    FS_REQUIRE(NULL, out != NULL, "out is NULL");
    *out = NULL;
    if (given) FS_COPY(NULL, options, given, &options, reserved);
    FS_TRY(fs_check_options(&options));
    FS_TRY(read_environment(&options));
    FS_TRY(fs_backend_environment());
    FS_TRY(fs_forks_watch());
    const fs_backend *backend = fs_backend_choose(&options, &status);
    if (!backend) return status;
    if (options.work && !backend->set_work)
        return fs_fail(NULL, FS_ERR_UNSUPPORTED, "options.work is %p: the %s backend takes no work memory",
                       options.work, backend->name);

    fs_context blank;
    memset(&blank, 0, sizeof blank);
    blank.backend = backend;
    blank.options = options;
    blank.forks = fs_forks;
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

/* What every call on a context begins with. */
static fs_status enter(fs_context *context) {
    FS_REQUIRE(NULL, context != NULL, "context is NULL");
    if (!fs_context_inherited(context)) return FS_OK;
    return fs_fail(context, FS_ERR_STATE, "the context is from before a fork(): here it can only be destroyed");
}

fs_status fs_context_set_stream(fs_context *context, void *cuda_stream) {
    FS_TRY(enter(context));
    if (!context->backend->set_stream)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "the %s backend has no streams", context->backend->name);
    FS_TRY(context->backend->set_stream(context, cuda_stream));
    context->options.cuda_stream = cuda_stream;
    return FS_OK;
}

fs_status fs_context_set_work(fs_context *context, void *memory, size_t bytes) {
    FS_TRY(enter(context));
    FS_REQUIRE(context, (uintptr_t)memory % 64 == 0, "memory is %p, must be 64-byte aligned", memory);
    FS_REQUIRE(context, memory || bytes == 0, "bytes is %zu but memory is NULL", bytes);
    if (!context->backend->set_work)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "the %s backend takes no work memory", context->backend->name);
    return context->backend->set_work(context, memory, bytes);
}

fs_status fs_context_counters(fs_context *context, fs_counters *counters) {
    FS_TRY(enter(context));
    fs_counters known;
    FS_COPY(context, counters, counters, &known, screened_dots);
    const size_t first = sizeof known.size, size = known.size < sizeof known ? known.size : sizeof known;
    memcpy((char *)counters + first, (const char *)&context->counters + first, size - first);
    return FS_OK;
}

/* Before a call that draws, merges or makes a part. */
static void begin(fs_context *context) {
    memset(&context->counters, 0, sizeof context->counters);
}

/* A prepared call would save these checks: too little for a second way to call (docs/notes/python-host-time.md, "A call
 * prepared in C would save the checks, half a microsecond"). */
fs_status fs_sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_arguments a;
    FS_TRY(enter(context));
    FS_TRY(fs_check_call(context, FS_CALL_SAMPLE, head, batch, result, 1, &a));
    FS_TRY(fs_check_whole(context, &a));
    FS_TRY(fs_check_tokens(context, &a));
    FS_REQUIRE(context, a.batch.group_size || !is_group_mode(a.batch.mode),
               "batch.group_size is 0, must be 1 to %lld in group modes", (long long)FS_TOKEN_LIMIT - 1);
    begin(context);
    return context->backend->sample(context, &a.head, &a.batch, &a.result);
}

fs_status fs_work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                       size_t *min_bytes, size_t *max_bytes) {
    fs_arguments a;
    size_t sizes[2] = {0, 0};
    FS_TRY(enter(context));
    FS_REQUIRE(context, min_bytes || max_bytes, "min_bytes and max_bytes are both NULL");
    FS_TRY(fs_check_call(context, FS_CALL_SAMPLE, head, batch, result, 1, &a));
    if (!context->backend->work_size)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "fs_work_size is not supported by the %s backend",
                       context->backend->name);
    if (a.batch.group_size == 0) a.batch.group_size = FS_TOKEN_LIMIT; /* of fs_partial, where a part is one group */
    FS_TRY(context->backend->work_size(context, &a.head, &a.batch, &a.result, sizes));
    if (min_bytes) *min_bytes = sizes[0];
    if (max_bytes) *max_bytes = sizes[1];
    return FS_OK;
}

fs_status fs_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          size_t *bytes) {
    fs_arguments a;
    FS_TRY(enter(context));
    FS_REQUIRE(context, bytes != NULL, "bytes is NULL");
    FS_TRY(fs_check_call(context, FS_CALL_PARTIAL, head, batch, result, 1, &a));
    return context->backend->partial_size(context, &a.head, &a.batch, &a.result, 0, bytes);
}

fs_status fs_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                     void *part, size_t bytes) {
    fs_arguments a;
    FS_TRY(enter(context));
    FS_REQUIRE(context, part != NULL, "part is NULL");
    FS_TRY(fs_check_call(context, FS_CALL_PARTIAL, head, batch, result, 1, &a));
    begin(context);
    return context->backend->partial(context, &a.head, &a.batch, &a.result, 0, 1, part, bytes);
}

fs_status fs_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                   int32_t count, const fs_result *result) {
    fs_arguments a;
    FS_TRY(enter(context));
    FS_TRY(fs_check_call(context, FS_CALL_PARTIAL, head, batch, result, 0, &a));
    FS_TRY(fs_check_tokens(context, &a));
    FS_REQUIRE(context, count >= 1 && count <= 65536, "count is %d, must be 1 to 65536", count);
    FS_REQUIRE(context, parts != NULL, "parts is NULL");
    for (int32_t i = 0; i < count; i++) FS_REQUIRE(context, parts[i] != NULL, "parts[%d] is NULL", i);
    begin(context);
    return context->backend->merge(context, &a.head, &a.batch, parts, count, 0, 1, &a.result);
}

static fs_status check_ranks_call(fs_context *context, const fs_ranks *r, const fs_head *head, const fs_batch *batch,
                                  const fs_result *result, fs_arguments *a) {
    const fs_backend *backend = context->backend;
    if (r->device != !backend->host_arrays)
        return fs_fail(context, FS_ERR_UNSUPPORTED,
                       "ranks.device is %d: the %s backend takes a transport for %s memory", r->device, backend->name,
                       r->device ? "host" : "device");
    FS_TRY(fs_check_call(context, FS_CALL_RANKS, head, batch, result, 1, a));
    return fs_check_tokens(context, a);
}

/* A rank whose arguments are wrong still meets the others, to tell them; but not in device memory without a device. */
fs_status fs_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                          const fs_result *result) {
    fs_arguments a;
    fs_ranks r;
    FS_TRY(enter(context));
    FS_COPY(context, ranks, ranks, &r, error_text);
    FS_TRY(fs_check_ranks(context, &r));
    const fs_status failed = check_ranks_call(context, &r, head, batch, result, &a);
    begin(context);
    if (!r.device) FS_TRY(fs_dist_sample(context, &r, &a.head, &a.batch, &a.result, failed));
    else if (!context->backend->sample_ranks) return failed;
    else FS_TRY(context->backend->sample_ranks(context, &r, &a.head, &a.batch, &a.result, failed));
    return FS_OK;
}

/* --------------------------------------------------------------------------------------------------- screens ---- */

static fs_status check_screen_call(fs_context *context, const fs_head *head, const fs_screen_options *options,
                                   int reads, fs_head *h, fs_screen_options *o) {
    FS_TRY(enter(context));
    FS_COPY(context, head, head, h, first_token);
    *o = fs_screen_options_default();
    if (options) FS_COPY(context, screen_options, options, o, hidden_rows);
    h->screen = NULL;
    h->screen_bytes = 0;
    FS_TRY(fs_backend_take_stream(context, "", NULL));
    FS_TRY(fs_check_head(context, h, reads));
    return fs_screen_check_options(context, h, o);
}

fs_status fs_screen_size(fs_context *context, const fs_head *head, const fs_screen_options *options, size_t *bytes) {
    fs_head h;
    fs_screen_options o;
    FS_TRY(check_screen_call(context, head, options, 0, &h, &o));
    FS_REQUIRE(context, bytes != NULL, "bytes is NULL");
    *bytes = (size_t)screen_bytes(o.format, h.rows, h.dim, fs_screen_kept(&h, &o));
    return FS_OK;
}

fs_status fs_screen_build(fs_context *context, const fs_head *head, const fs_screen_options *options, void *screen,
                          size_t bytes) {
    fs_head h;
    fs_screen_options o;
    FS_TRY(check_screen_call(context, head, options, 1, &h, &o));
    FS_TRY(fs_screen_check_room(context, "screen", screen, bytes,
                                screen_bytes(o.format, h.rows, h.dim, fs_screen_kept(&h, &o))));
    return fs_screen_make(context, &h, &o, screen);
}

fs_status fs_screen_check(fs_context *context, const fs_head *head) {
    fs_head h;
    FS_TRY(enter(context));
    FS_COPY(context, head, head, &h, first_token);
    FS_TRY(fs_check_head(context, &h, 1));
    FS_REQUIRE(context, h.screen != NULL, "head.screen is NULL");
    FS_TRY(fs_backend_take_stream(context, "", NULL));
    return fs_screen_check_whole(context, &h);
}

fs_status fs_screen_slice(fs_context *context, const void *whole, size_t whole_bytes, int64_t first, int64_t rows,
                          void *to, size_t bytes, size_t *needed) {
    FS_TRY(enter(context));
    FS_TRY(fs_backend_take_stream(context, "", NULL));
    return fs_screen_cut(context, whole, whole_bytes, first, rows, to, bytes, needed);
}

fs_status fs_accept_drafts(fs_context *context, const fs_drafts *drafts) {
    fs_drafts d;
    if (context) FS_TRY(enter(context));
    FS_COPY(context, drafts, drafts, &d, cuda_stream);
    const int on_host = !context || context->backend->host_arrays;
    FS_TRY(fs_check_drafts(context, &d, on_host));
    if (!on_host && !context->backend->accept)
        return fs_fail(context, FS_ERR_UNSUPPORTED, "fs_accept_drafts is not supported by the %s backend",
                       context->backend->name);
    if (context) FS_TRY(fs_backend_take_stream(context, "drafts.cuda_stream", d.cuda_stream));
    else FS_REQUIRE(NULL, !d.cuda_stream, "drafts.cuda_stream is %p, must be NULL without a context", d.cuda_stream);
    if (!on_host) return context->backend->accept(context, &d);
    drafts_accept(&d);
    return FS_OK;
}
