/* measure.c - see measure.h. */
#include "measure.h"
#include "cli.h"
#include "print.h"
#include "ranks.h"
#include "shards.h"
#include "truth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int copies_for(int64_t w_bytes) {
    int64_t copies = 1 + 2 * cache_bytes() / w_bytes, room = memory_bytes() / launch_local_count() / 3 / w_bytes;
    if (copies > room) copies = room;
    return copies < 1 ? 1 : copies > 16 ? 16 : (int)copies;
}

workload make_workload(const synth *s, int copies, int threads) {
    workload w = {.s = *s, .w_bytes = synth_rows(s) * s->D * dtype_bytes(s->dtype), .copies = copies};
    void *first = NULL, *h = take_memory(s->B * s->D, (size_t)dtype_bytes(s->dtype), "hidden states");
    for (int i = 0; i < copies; i++) {
        void *data = take_memory(w.w_bytes, 1, "weights");
        if (first) memcpy(data, first, (size_t)w.w_bytes);
        else {
            progress_start("making W", (double)synth_rows(s));
            synth_weights(s, data, threads);
            progress_end();
            first = data;
        }
        w.w[i] = data;
    }
    synth_hidden(s, h);
    w.h = h;
    return w;
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

/* Logits x [V] of one hidden state in double; over ranks each computes those of its slice, and they are put
 * together. */
static void whole_logits(const workload *w, const void *h, double *x) {
    const fs_ranks *ranks = ranks_open();
    const int64_t V = w->s.V;
    truth_logits(w->w[0], w->s.dtype, h, w->s.dtype, synth_rows(&w->s), w->s.D, x + w->s.first);
    if (!ranks) return;
    double *all = malloc((size_t)(V * ranks->count) * sizeof *all);
    if (!all) die(END_RUNTIME, "no memory for the logits of %d ranks", ranks->count);
    if (ranks->all_gather(ranks->self, x, all, (size_t)V * sizeof *x, NULL) != FS_OK)
        die(END_RUNTIME, "%s", ranks->error_text(ranks->self));
    fs_head whole = fs_head_default();
    whole.rows = V;
    for (int i = 0; i < ranks->count; i++) {
        const fs_head shard = head_shard(&whole, i, ranks->count);
        memcpy(x + shard.first_token, all + i * V + shard.first_token, (size_t)shard.rows * sizeof *x);
    }
    free(all);
}

int row_is_right(const workload *w, const fs_batch *batch, int64_t b, int32_t token) {
    int64_t V = w->s.V, D = w->s.D;
    double *x = calloc((size_t)V * 2, sizeof *x);
    if (!x) die(END_RUNTIME, "no memory for %lld logits", (long long)V);
    double *p = x + V;
    const char *h = (const char *)batch->hidden + b * D * dtype_bytes(w->s.dtype);
    whole_logits(w, h, x);
    const fs_slot_values *all = &batch->all;
    truth_rule rule = {.temperature = (double)all->temperature,
                       .min_p = (double)all->min_p,
                       .top_k = all->top_k,
                       .top_p = all->top_p < 1 ? (double)all->top_p : 0};
    truth_probabilities(&rule, x, V, p);
    uint64_t seed = fs_seed_spread(all->seed, (uint64_t)b);
    double best = -(double)INFINITY, got = -(double)INFINITY;
    for (int64_t v = 0; v < V; v++) {
        if (!(p[v] > 0)) continue;
        double score = log(p[v]) + fs_noise_gumbel(seed, batch->position_all, 0, all->stream, (uint32_t)v);
        if (score > best) best = score;
        if (v == token) got = score;
    }
    free(x);
    return rule.temperature > 0 ? got >= best - 1e-3 : got > -(double)INFINITY;
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
