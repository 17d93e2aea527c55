/* check_drafts.c - the checks of fs_accept_drafts. */
#include "check.h"

#include "core/accept.h"

/* `drafts`, `targets`: how many there are, as far as is known. */
static fs_status check_pointers(fs_context *context, const fs_drafts *d, int64_t drafts, int64_t targets) {
    const size_t bytes = fs_element_bytes(d->tokens_dtype);
    const struct {
        const char *name;
        const void *pointer;
        size_t alignment;
        int needed;
    } arrays[] = {{"drafts.target_offset", d->target_offset, 8, 0}, {"drafts.draft_offset", d->draft_offset, 8, 0},
                  {"drafts.draft", d->draft, bytes, drafts != 0},   {"drafts.target", d->target, bytes, targets != 0},
                  {"drafts.accepted", d->accepted, 4, 1},           {"drafts.tokens", d->tokens, bytes, 0},
                  {"drafts.token_offset", d->token_offset, 8, 0}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        FS_REQUIRE(context, arrays[i].pointer || !arrays[i].needed || d->sequences == 0, "%s is NULL", arrays[i].name);
        FS_REQUIRE(context, (uintptr_t)arrays[i].pointer % arrays[i].alignment == 0, FS_ALIGNED_TEXT, arrays[i].name,
                   arrays[i].pointer, arrays[i].alignment);
    }
    return FS_OK;
}

/* `width`: tokens that fit in a line; 0: there are no lines. */
static fs_status check_width(fs_context *context, int64_t width, int64_t sequence, int64_t targets) {
    FS_REQUIRE(context, width == 0 || targets <= width,
               "drafts.tokens_width is %lld, but sequence %lld may emit %lld tokens", (long long)width,
               (long long)sequence, (long long)targets);
    return FS_OK;
}

/* Offsets in host memory. */
static fs_status check_offsets(fs_context *context, const fs_drafts *d, int64_t *drafts) {
    const int64_t *at = d->target_offset;
    *drafts = 0;
    if (at) FS_REQUIRE(context, at[0] >= 0, "drafts.target_offset[0] is %lld, must not be negative", (long long)at[0]);
    for (int64_t s = 0; s < d->sequences; s++) {
        if (at)
            FS_REQUIRE(context, at[s + 1] >= at[s] && at[s + 1] <= INT32_MAX,
                       "drafts.target_offset[%lld] is %lld after %lld, must ascend and stay below 2^31",
                       (long long)s + 1, (long long)at[s + 1], (long long)at[s]);
        const int64_t length = drafts_length(d, s);
        *drafts += length;
        FS_TRY(check_width(context, d->tokens_width, s, drafts_target(d, s + 1) - drafts_target(d, s)));
        if (d->draft_offset && length)
            FS_REQUIRE(context, d->draft_offset[s] >= 0 && d->draft_offset[s] <= INT32_MAX - length,
                       "drafts.draft_offset[%lld] is %lld, must be 0 to %lld for %lld drafts", (long long)s,
                       (long long)d->draft_offset[s], (long long)(INT32_MAX - length), (long long)length);
    }
    return FS_OK;
}

fs_status fs_check_drafts(fs_context *context, fs_drafts *d, int on_host) {
    if (d->tokens_dtype == 0) d->tokens_dtype = FS_I32;
    FS_REQUIRE(context, d->tokens_dtype == FS_I32 || d->tokens_dtype == FS_I64,
               "drafts.tokens_dtype is %d, must be FS_I32 (8) or FS_I64 (9)", d->tokens_dtype);
    FS_REQUIRE(context, d->reserved == 0, "drafts.reserved is %d, must be 0", d->reserved);
    FS_REQUIRE(context, d->draft_length >= 0 && d->draft_length < INT32_MAX,
               "drafts.draft_length is %lld, must be 0 to %d", (long long)d->draft_length, INT32_MAX - 1);
    FS_REQUIRE(context, d->draft_length == 0 || !d->target_offset,
               "drafts.draft_length is %lld, must be 0 where target_offset says how many drafts there are",
               (long long)d->draft_length);
    FS_REQUIRE(context, d->tokens_width >= 0 && d->tokens_width <= INT32_MAX,
               "drafts.tokens_width is %lld, must be 0 (packed) to %d", (long long)d->tokens_width, INT32_MAX);
    FS_REQUIRE(context, d->tokens || d->tokens_width == 0, "drafts.tokens_width is %lld, but tokens is NULL",
               (long long)d->tokens_width);
    const int64_t line = d->tokens_width > d->draft_length ? d->tokens_width : d->draft_length + 1;
    const int64_t most = INT64_MAX / 8 / line;
    FS_REQUIRE(context, d->sequences >= 0 && d->sequences <= most,
               "drafts.sequences is %lld, must be 0 to %lld for %lld tokens each", (long long)d->sequences,
               (long long)most, (long long)line);
    int64_t drafts = d->draft_length, targets = d->target_offset ? 0 : d->draft_length + 1;
    if (!d->target_offset && d->sequences) FS_TRY(check_width(context, d->tokens_width, 0, d->draft_length + 1));
    FS_TRY(check_pointers(context, d, drafts, targets));
    if (!on_host || (!d->target_offset && !d->draft_offset)) return FS_OK;
    FS_TRY(check_offsets(context, d, &drafts));
    targets = drafts_target(d, d->sequences) - drafts_target(d, 0);
    return check_pointers(context, d, drafts, targets);
}
