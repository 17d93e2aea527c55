#include "screen_strips.h"

#include "core/strip.h"

#include <stdatomic.h>

_Static_assert(sizeof(fs_screen_header) == 128 && sizeof(fs_strip_head) == FS_SCREEN_STRIP_HEAD,
               "lines of a strip are cache lines");

#define FS_SCREEN_TASKS 256 /* more than threads, so that they end together */

/* Strips [from, to) of a screen in host memory, which tasks share. */
typedef struct walk {
    const fs_head *head; /* NULL if only sums are needed */
    const fs_screen_header *header;
    fs_matrix weights;
    fs_screen screen;
    unsigned char *strips; /* to be written */
    int64_t from, to;
    int32_t tasks, whole;
    _Atomic uint64_t weights_sum, body_sum;
    _Atomic int64_t other; /* the last strip that differs */
} walk;

static void start(walk *w, const fs_head *head, const fs_screen_header *header, const void *screen) {
    memset(w, 0, sizeof *w);
    w->head = head;
    w->header = header;
    if (head) w->weights = weights_of_head(head);
    w->screen = screen_at(screen, header);
    w->to = screen_strips(header->rows);
    w->other = -1;
}

static void run(fs_context *context, walk *w, void (*task)(void *arg, int32_t i)) {
    w->tasks = (int32_t)(w->to - w->from < FS_SCREEN_TASKS ? w->to - w->from : FS_SCREEN_TASKS);
    if (context->backend->parallel) context->backend->parallel(context, w->tasks, task, w);
    else
        for (int32_t i = 0; i < w->tasks; i++) task(w, i);
}

/* The first strip of a task; the task ends before the first strip of the next one. */
static int64_t first_of(const walk *w, int32_t task) {
    return w->from + (w->to - w->from) * task / w->tasks;
}

/* -------------------------------------------------------------------------------------------------------- sums ---- */

static uint64_t strip_hash(const fs_screen *s, int64_t strip) {
    const unsigned char *bytes = screen_strip(s, strip);
    uint64_t sum = 0, line[FS_SCREEN_LINE / 8];
    for (int64_t at = 0; at < s->strip_bytes; at += FS_SCREEN_LINE) {
        memcpy(line, bytes + at, sizeof line);
        sum += hash_line((uint64_t)strip << 32 | (uint64_t)at, line);
    }
    return sum;
}

static void sum_task(void *arg, int32_t task) {
    walk *w = arg;
    uint64_t weights = 0, body = 0;
    for (int64_t i = first_of(w, task); i < first_of(w, task + 1); i++) {
        weights += strip_head(screen_strip(&w->screen, i))->weights;
        body += strip_hash(&w->screen, i);
    }
    atomic_fetch_add(&w->weights_sum, weights);
    atomic_fetch_add(&w->body_sum, body);
}

fs_status fs_strips_sum(fs_context *context, const fs_screen_header *header, const void *screen, fs_screen_sums *sums) {
    walk w;
    if (context->backend->sum_screen) return context->backend->sum_screen(context, header, screen, sums);
    start(&w, NULL, header, screen);
    run(context, &w, sum_task);
    sums->weights = w.weights_sum;
    sums->body = w.body_sum;
    return FS_OK;
}

/* -------------------------------------------------------------------------------------------------------- make ---- */

static void make_task(void *arg, int32_t task) {
    walk *w = arg;
    for (int64_t i = first_of(w, task); i < first_of(w, task + 1); i++) {
        unsigned char *strip = w->strips + i * w->screen.strip_bytes;
        fs_strip_head *head = (fs_strip_head *)(void *)strip;
        memset(strip, 0, (size_t)w->screen.strip_bytes);
        head->sample = screen_sample_hash(w->head, &w->weights, i);
        for (int at = 0; at < FS_SCREEN_TOKENS; at++)
            head->weights += make_token(w->header, &w->screen, &w->weights, i, at, strip);
    }
    sum_task(arg, task);
}

fs_status fs_screen_progress(fs_context *context, const fs_screen_options *options, int64_t strips, int64_t all) {
    const int64_t rows = strips * FS_SCREEN_TOKENS < all ? strips * FS_SCREEN_TOKENS : all;
    if (!options->progress || !options->progress(options->user, rows, all)) return FS_OK;
    return fs_fail(context, FS_ERR_CANCELLED, "screen_options.progress stopped the build after %lld of %lld rows",
                   (long long)rows, (long long)all);
}

#define FS_SCREEN_TURNS 64 /* calls of the progress function, as many as there are strips for */

fs_status fs_strips_make(fs_context *context, const fs_head *head, const fs_screen_options *options,
                         fs_screen_header *header, void *screen) {
    walk w;
    if (context->backend->make_screen) {
        FS_TRY(context->backend->make_screen(context, head, header, options, screen));
        return fs_strips_sum(context, header, screen, &header->sums);
    }
    start(&w, head, header, screen);
    w.strips = (unsigned char *)screen + screen_head_bytes(header->dim, header->kept);
    memset(screen, 0, sizeof *header); /* a build that is stopped leaves no screen, not an earlier one's header */
    const int64_t strips = w.to, step = strips / FS_SCREEN_TURNS + 1;
    for (; w.from < strips; w.from = w.to) {
        w.to = w.from + step < strips ? w.from + step : strips;
        run(context, &w, make_task);
        FS_TRY(fs_screen_progress(context, options, w.to, header->rows));
    }
    header->sums.weights = w.weights_sum;
    header->sums.body = w.body_sum;
    return FS_OK;
}

/* ----------------------------------------------------------------------------------------------------- compare ---- */

static int differs(const walk *w, int64_t i) {
    const fs_strip_head *head = strip_head(screen_strip(&w->screen, i));
    uint64_t hash = 0;
    if (!w->whole) return head->sample != screen_sample_hash(w->head, &w->weights, i);
    for (int at = 0; at < FS_SCREEN_TOKENS; at++) hash += token_hash(w->head, &w->weights, i, at);
    return head->weights != hash;
}

static void compare_task(void *arg, int32_t task) {
    walk *w = arg;
    int64_t other = -1;
    for (int64_t i = first_of(w, task); i < first_of(w, task + 1); i++)
        if (differs(w, i)) other = i;
    for (int64_t seen = atomic_load(&w->other); other > seen;)
        if (atomic_compare_exchange_weak(&w->other, &seen, other)) break;
}

fs_status fs_strips_compare(fs_context *context, const fs_head *head, const fs_screen_header *header, int whole,
                            int64_t *strip) {
    walk w;
    if (context->backend->compare_screen) return context->backend->compare_screen(context, head, header, whole, strip);
    start(&w, head, header, head->screen);
    w.whole = whole;
    run(context, &w, compare_task);
    *strip = w.other;
    return FS_OK;
}
