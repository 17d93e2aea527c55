/* measure.c - see measure.h. */
#include "measure.h"
#include "cli.h"
#include "device.h"
#include "print.h"
#include "ranks.h"
#include "shards.h"
#include "truth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int copies_for(int64_t w_bytes) {
    const device_facts device = device_opened();
    int64_t copies = 1 + 2 * device.cache_bytes / w_bytes,
            room = device.memory_bytes / launch_local_count() / 3 / w_bytes;
    if (copies > room) copies = room;
    return copies < 1 ? 1 : copies > 16 ? 16 : (int)copies;
}

workload make_workload(const synth *s, int copies, int threads) {
    workload w = {.s = *s, .w_bytes = synth_rows(s) * s->D * dtype_bytes(s->dtype), .copies = copies};
    const int64_t h_bytes = s->B * s->D * dtype_bytes(s->dtype);
    void *first = take_memory(w.w_bytes, 1, "weights"), *h = take_memory(h_bytes, 1, "hidden states");
    progress_start("making W", (double)synth_rows(s));
    synth_weights(s, first, threads);
    progress_end();
    synth_hidden(s, h);
    w.host_w = first;
    w.host_h = h;
    w.h = device_array(h, h_bytes, "hidden states");
    w.w[0] = device_array(first, w.w_bytes, "weights");
    for (int i = 1; i < copies; i++) {
        void *copy = device_take(w.w_bytes, "weights");
        device_upload(copy, first, (size_t)w.w_bytes);
        w.w[i] = copy;
    }
    if (device_is_cuda()) w.copied = device_take(w.w_bytes, "a copy of the weights");
    return w;
}

/* Bytes per second that copies of W read and write; several in a row, so that starting them takes no time. */
static double copy_once(const workload *w) {
    enum { COPIES = 8 };
    const double begin = now();
    for (int i = 0; i < COPIES; i++) device_copy(w->copied, w->w[0], (size_t)w->w_bytes);
    device_wait();
    return 2.0 * COPIES * (double)w->w_bytes / (now() - begin);
}

ceiling workload_reading(const workload *w, int threads, double seconds) {
    ceiling best = {0, 0, w->w_bytes};
    const double end = now() + seconds;
    if (!device_is_cuda()) return measure_reading(w->w, w->copies, w->w_bytes, threads, seconds);
    do best.bytes_per_s = fmax(best.bytes_per_s, copy_once(w));
    while (now() < end);
    return best;
}

fs_head workload_head(const workload *w, int copy) {
    fs_head h = fs_head_default();
    h.dtype = w->s.dtype;
    h.data = w->w[copy % w->copies];
    h.rows = synth_rows(&w->s);
    h.dim = w->s.D;
    h.first_token = w->s.first;
    h.vocab = w->s.V;
    return h;
}

fs_head workload_screened(const workload *w, int copy) {
    fs_head h = workload_head(w, copy);
    h.screen = w->screen[copy % w->copies];
    h.screen_bytes = w->screen_bytes;
    return h;
}

/* Logits x [V] of one hidden state; over ranks each computes those of its slice, and they are put together. */
static void whole_logits(const workload *w, const void *h, float *x) {
    const fs_ranks *ranks = ranks_open();
    const int64_t V = w->s.V;
    fs_head whole = fs_head_default(), slice = workload_head(w, 0);
    fs_batch batch = fs_batch_default();
    slice.data = w->host_w;
    slice.first_token = slice.vocab = 0; /* a head of its own: the reference backend takes no shards */
    batch.hidden = h;
    batch.hidden_dtype = w->s.dtype;
    truth_logits(&slice, &batch, x + w->s.first);
    if (!ranks) return;
    float *all = malloc((size_t)(V * ranks->count) * sizeof *all);
    if (!all) die(END_RUNTIME, "no memory for the logits of %d ranks", ranks->count);
    if (ranks->all_gather(ranks->self, x, all, (size_t)V * sizeof *x, NULL) != FS_OK)
        die(END_RUNTIME, "%s", ranks->error_text(ranks->self));
    whole.rows = V;
    for (int i = 0; i < ranks->count; i++) {
        const fs_head shard = head_shard(&whole, i, ranks->count);
        memcpy(x + shard.first_token, all + i * V + shard.first_token, (size_t)shard.rows * sizeof *x);
    }
    free(all);
}

int row_is_right(const workload *w, const fs_batch *batch, int64_t b, int32_t token) {
    float *x = calloc((size_t)w->s.V, sizeof *x);
    if (!x) die(END_RUNTIME, "no memory for %lld logits", (long long)w->s.V);
    whole_logits(w, (const char *)w->host_h + b * w->s.D * dtype_bytes(w->s.dtype), x);
    const uint64_t seed = fs_seed_spread(batch->seed_all, (uint64_t)b);
    const int64_t offset[2] = {0, 1};
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS;
    head.dtype = FS_F32;
    head.data = x;
    head.rows = w->s.V;
    fs_batch one = fs_batch_default();
    one.rows = 1;
    one.rules = batch->rules;
    one.seed = &seed;
    one.position_all = batch->position_all;
    one.substream_all = batch->substream_all;
    one.watch_offset = offset;
    one.watch_token = &token;
    int32_t best;
    float most, logit, logprob;
    fs_result result = fs_result_default();
    result.logits_mode = FS_LOGITS_CUT;
    result.tokens = &best;
    result.noisy_logit = &most;
    result.watch_logit = &logit;
    result.watch_logprob = &logprob;
    truth_sample(&head, &one, result);
    free(x);
    if (token == best) return 1;
    if (batch->rules->temperature.value == 0 || !(logprob > -INFINITY)) return 0;
    const double noise = fs_noise_gumbel(seed, batch->position_all, 0, batch->substream_all, (uint32_t)token);
    return (double)logit + noise >= (double)most - 1e-3;
}

void times_add(times *t, double seconds) {
    if (t->count < (int)(sizeof t->value / sizeof t->value[0])) t->value[t->count++] = seconds;
}

double times_min(const times *t) {
    double least = (double)INFINITY;
    for (int i = 0; i < t->count; i++) least = fmin(least, t->value[i]);
    return least;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double times_median(const times *t) {
    times sorted = *t;
    if (sorted.count == 0) return (double)NAN;
    qsort(sorted.value, (size_t)sorted.count, sizeof sorted.value[0], by_value);
    int middle = sorted.count / 2;
    return sorted.count % 2 ? sorted.value[middle] : 0.5 * (sorted.value[middle - 1] + sorted.value[middle]);
}
