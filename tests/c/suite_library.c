/* suite_library.c - the library as a sampler. */
#include "suite.h"

static void require(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

static void draw_in_shards(fs_context *context, const draws *d, const fs_batch *batch, fs_result *result) {
    void **part = new_array(d->shards, sizeof *part);
    fs_head head = suite_head(d, d->first, d->last);
    for (int32_t i = 0; i < d->shards; i++) {
        int64_t size = d->last - d->first;
        head = suite_head(d, d->first + size * i / d->shards, d->first + size * (i + 1) / d->shards);
        size_t bytes = 0;
        require(context, fs_partial_size(context, &head, batch, result, &bytes));
        part[i] = new_array((int64_t)bytes, 1);
        require(context, fs_partial(context, &head, batch, result, part[i], bytes));
    }
    require(context, fs_merge(context, &head, batch, (const void *const *)part, d->shards, result));
    for (int32_t i = 0; i < d->shards; i++) free(part[i]);
    free(part);
}

static void library_draw(void *self, const draws *d) {
    fs_context *context = self;
    fs_batch batch = suite_batch(d);
    fs_head head = suite_head(d, d->first, d->last);
    head.vocab = d->last; /* fs_sample draws from a part of the vocabulary as from a whole one */
    fs_result result = fs_result_default();
    float *ones = new_array(d->rows, sizeof *ones);
    for (int64_t b = 0; b < d->rows; b++) ones[b] = 1.0f;
    if (head.kind == FS_HEAD_WEIGHTS) batch.hidden = ones;
    result.tokens = d->tokens;
    result.noisy_logit = d->score;
    if (d->shards > 1) draw_in_shards(context, d, &batch, &result);
    else require(context, fs_sample(context, &head, &batch, &result));
    free(ones);
}

sampler library_sampler(fs_context *context) {
    sampler s = {library_draw, context};
    return s;
}
