/* fuzz_checks.c - what the header promises of every call. */
#include "fuzz_call.h"

static fs_context *opened[8];

static void close_all(void) {
    for (int i = 0; i < 8; i++) fs_context_destroy(opened[i]);
}

fs_context *fuzz_open(int32_t backend, int32_t threads, size_t fallback_bytes) {
    fs_options options = fs_options_default();
    int i = 0;
    options.backend = backend;
    options.threads = threads;
    options.fallback_bytes = fallback_bytes;
    while (opened[i]) i++;
    if (i == 0) atexit(close_all);
    if (fs_context_create(&options, &opened[i]) != FS_OK) fuzz_fault("%s", fs_error_text(NULL));
    return opened[i];
}

void fuzz_call_clear(const fuzz_call *c) {
    for (int i = 0; i < c->outputs; i++) memset(c->output[i].at, 0x5A, c->output[i].bytes);
}

static void expect_nothing_written(const fuzz_call *c) {
    for (int i = 0; i < c->outputs; i++)
        for (size_t k = 0; k < c->output[i].bytes; k++)
            if (c->output[i].at[k] != 0x5A) fuzz_fault("a call that is refused has written to result array %d", i);
}

int64_t fuzz_token(const fuzz_call *c, int64_t b, int64_t i) {
    const int64_t at = b * fuzz_samples(c) + i;
    return c->result.tokens_dtype == FS_I64 ? ((const int64_t *)c->result.tokens)[at]
                                            : ((const int32_t *)c->result.tokens)[at];
}

static void expect_not_above_zero(const float *logprob, int64_t from, int64_t to, const char *what) {
    for (int64_t i = from; logprob && i < to; i++)
        if (logprob[i] > 0.0f) fuzz_fault("%s[%lld] is %g", what, (long long)i, (double)logprob[i]);
}

static void check_row(const fuzz_call *c, int64_t b, int64_t first, int64_t end) {
    const uint32_t known = 0x1fff | 0x3f << 16;
    const fs_result *o = &c->result;
    const uint32_t bits = o->status ? o->status[b] : 0;
    if (bits & ~known) fuzz_fault("row %lld has status 0x%x", (long long)b, bits);
    for (int64_t i = 0; o->tokens && i < fuzz_samples(c); i++) {
        const int64_t token = fuzz_token(c, b, i);
        if (token == fuzz_fallback_token(c)) continue;
        if (bits & FS_ROW_NO_TOKEN)
            fuzz_fault("row %lld has status 0x%x and token %lld", (long long)b, bits, (long long)token);
        if (c->batch.mode == FS_MODE_SCORE && token == c->batch.score_token[b * fuzz_samples(c) + i]) continue;
        if (token < first || token >= end)
            fuzz_fault("row %lld has token %lld, not one of %lld to %lld", (long long)b, (long long)token,
                       (long long)first, (long long)end - 1);
    }
    for (int64_t i = 0; o->top_token && i < o->top_count; i++) {
        const int64_t token = o->top_token[b * o->top_count + i];
        if (token != -1 && (token < first || token >= end))
            fuzz_fault("row %lld has top token %lld", (long long)b, (long long)token);
    }
    const int32_t left = o->survivor_count ? o->survivor_count[b] : 0;
    if (left < -1 || (left > 0 && left > end - first)) fuzz_fault("row %lld has %d survivors", (long long)b, left);
    for (int64_t i = 0; o->survivor_token && i < o->survivor_limit; i++) {
        const int64_t token = o->survivor_token[b * o->survivor_limit + i];
        if (token != -1 && (token < first || token >= end))
            fuzz_fault("row %lld has survivor %lld", (long long)b, (long long)token);
        if (o->survivor_count && (token != -1) != (i < left))
            fuzz_fault("row %lld has %d survivors, of which number %lld is %lld", (long long)b, left, (long long)i,
                       (long long)token);
    }
    if (o->entropy && (o->entropy[b] < 0.0f || o->entropy[b] > 16.7f)) /* log 2^24 is 16.64 */
        fuzz_fault("row %lld has an entropy of %g", (long long)b, (double)o->entropy[b]);
    if (o->log_z && o->max_logit && o->log_z[b] < o->max_logit[b])
        fuzz_fault("row %lld has log Z %.9g, largest logit %.9g", (long long)b, (double)o->log_z[b],
                   (double)o->max_logit[b]);
    for (int64_t i = b * fuzz_samples(c); o->rank && i < (b + 1) * fuzz_samples(c); i++)
        if (o->rank[i] < -1 || o->rank[i] == 0 || o->rank[i] > end + 1)
            fuzz_fault("row %lld has rank %d", (long long)b, o->rank[i]);
}

void fuzz_call_check(const fuzz_call *c, fs_status status, const char *text, int64_t first, int64_t end) {
    if (status > FS_OK || status < FS_ERR_CANCELLED || status == FS_ERR_INTERNAL)
        fuzz_fault("status %d: %s", status, text);
    if (status != FS_OK && !*text) fuzz_fault("status %d without a text", status);
    if (status == FS_ERR_ARGUMENT || status == FS_ERR_UNSUPPORTED) expect_nothing_written(c);
    if (status != FS_OK) return;
    if (fuzz_call_must_fail(c)) fuzz_fault("a call beyond the header's limits succeeds");
    if (c->misaligned) fuzz_fault("a call with a misaligned pointer succeeds");
    const int64_t rows = c->batch.rows, each = rows * fuzz_samples(c);
    for (int64_t b = 0; b < rows; b++) check_row(c, b, first, end);
    expect_not_above_zero(c->result.logprob, 0, each, "logprob");
    expect_not_above_zero(c->result.top_logprob, 0, rows * c->result.top_count, "top_logprob");
    if (c->batch.watch_offset)
        expect_not_above_zero(c->result.watch_logprob, c->batch.watch_offset[0], c->batch.watch_offset[rows],
                              "watch_logprob");
}
