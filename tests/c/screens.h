/* screens.h - heads that are hard for a screen, hidden states that are hard for its bounds, and screens of them. */
#ifndef FS_TESTS_SCREENS_H
#define FS_TESTS_SCREENS_H

#include "core/screen.h"
#include "screen/screen_strips.h"
#include "support.h"

enum { NORMAL, OUTLIER_ROWS, OUTLIER_COLUMNS, DUPLICATES, ALL_SIZES, HEAD_KINDS };
enum { PLAIN, TEN_TIMES, SPIKED, ALIGNED, AGAINST, HIDDEN_KINDS };

/* A head and its hidden states, of bf16. */
typedef struct screened_head {
    int64_t V, D, B;
    uint16_t *w, *h;
    void *screen;
    size_t bytes;
    fs_head head;
} screened_head;

static inline float weight_of(const screened_head *s, int64_t v, int64_t d) {
    return widen_bf16(s->w[v * s->D + d]);
}

static inline float hidden_of(const screened_head *s, int64_t b, int64_t d) {
    return widen_bf16(s->h[b * s->D + d]);
}

static inline double number_of(int kind, rng *r, int64_t v, int64_t d, int64_t D) {
    double x = random_normal(r) / sqrt((double)D);
    if (kind == OUTLIER_ROWS && v % 23 == 7) x *= d % 50 == 0 ? 40.0 : 4.0;
    if (kind == OUTLIER_COLUMNS && (d == 5 || d == D / 2 || d == D - 1)) x *= 40.0;
    if (kind == ALL_SIZES) x *= ldexp(1.0, (int)(v % 24) - 18);
    return x;
}

static inline void make_weights(screened_head *s, int kind, rng *r) {
    for (int64_t v = 0; v < s->V; v++)
        for (int64_t d = 0; d < s->D; d++) s->w[v * s->D + d] = bf16_of((float)number_of(kind, r, v, d, s->D));
    for (int64_t v = 0; kind == DUPLICATES && v + 1 < s->V; v += 2)
        memcpy(s->w + (v + 1) * s->D, s->w + v * s->D, (size_t)s->D * 2);
}

/* Row b is of kind b % HIDDEN_KINDS; those AGAINST a screen come later, when there is one. */
static inline void make_hidden(screened_head *s, rng *r, double norm) {
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t d = 0; d < s->D; d++) {
            const int kind = (int)(b % HIDDEN_KINDS);
            double x = norm * random_normal(r) / sqrt((double)s->D);
            if (kind == TEN_TIMES) x *= 10.0;
            if (kind == SPIKED && d % 97 == 5) x *= 30.0;
            if (kind == ALIGNED) x = 0.3 * x + norm * (double)weight_of(s, b * 131 % s->V, d);
            s->h[b * s->D + d] = bf16_of((float)x);
        }
}

static inline void must_be_ok(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

static inline fs_screen_options options_of(int32_t format, int32_t group) {
    fs_screen_options o = fs_screen_options_default();
    o.format = format;
    o.group = group;
    o.seed = 17;
    return o;
}

/* Every way to make a screen. */
enum { SCREEN_KINDS = 4 };
static inline fs_screen_options screen_kind(int i) {
    static const int32_t format[] = {FS_SCREEN_INT8, FS_SCREEN_INT4, FS_SCREEN_INT4, FS_SCREEN_MIXED};
    return options_of(format[i], i == 2 ? 128 : 0);
}

/* The screen of s->head, in fresh memory. */
static inline void *build(fs_context *context, const fs_head *head, const fs_screen_options *options, size_t *bytes) {
    must_be_ok(context, fs_screen_size(context, head, options, bytes));
    void *screen = aligned_alloc(64, (*bytes + 63) / 64 * 64);
    assert_non_null(screen);
    memset(screen, 0x5A, *bytes);
    must_be_ok(context, fs_screen_build(context, head, options, screen, *bytes));
    return screen;
}

/* What a record of a screen has for a token, as a double. */
static inline double number_in(const fs_screen *screen, int64_t v, int64_t k, int column) {
    const unsigned char *record = strip_record(screen, screen_strip(screen, v / 16), k);
    return (double)record_scale(screen, record, (int)(v % 16), column) *
           record_number(screen, record, (int)(v % 16), column);
}

/* The record of column `at` in the order of columns, and its place there: of a kept one that of its low number. */
static inline int64_t record_at(const fs_screen *screen, int64_t at, int *column) {
    const int64_t rest = at - screen->kept;
    *column = (int)(rest < 0 ? FS_SCREEN_CHUNK + at % FS_SCREEN_CHUNK : rest % FS_SCREEN_SPAN);
    return rest < 0 ? at / FS_SCREEN_CHUNK : screen->kept / FS_SCREEN_CHUNK + rest / FS_SCREEN_SPAN;
}

/* The double that a screen has for a weight: of row v and column `at` in the order of columns. */
static inline double image_of(const fs_screen *screen, int64_t v, int64_t at) {
    int column;
    const int64_t k = record_at(screen, at, &column);
    const double high = at < screen->kept ? number_in(screen, v, k, column - FS_SCREEN_CHUNK) : 0.0;
    return high + number_in(screen, v, k, column);
}

/* The step by which it was rounded. */
static inline double step_at(const fs_screen *screen, int64_t v, int64_t at) {
    int column;
    const int64_t k = record_at(screen, at, &column);
    const unsigned char *record = strip_record(screen, screen_strip(screen, v / 16), k);
    return (double)record_scale(screen, record, (int)(v % 16), column);
}

/* Hidden states that are a token's own residual: of 8 bits the bound is just reached. That of 4 bits does not speak of
 * hidden states that know how weights were rounded. */
static inline void turn_against(screened_head *s) {
    const fs_screen screen = screen_of(s->screen);
    for (int64_t b = AGAINST; b < s->B; b += HIDDEN_KINDS)
        for (int64_t d = 0; d < s->D; d++) {
            const int64_t v = b * 37 % s->V;
            s->h[b * s->D + d] = bf16_of((float)(((double)weight_of(s, v, d) - image_of(&screen, v, d)) * 1e4));
        }
}

/* Checksums that fit a screen that was changed: a planted error is not refused, it has to be seen in what is drawn. */
static inline void seal(fs_context *context, void *screen) {
    fs_screen_header *h = screen;
    must_be_ok(context, fs_strips_sum(context, h, screen, &h->sums));
    h->hash = screen_header_hash(h);
}

static inline screened_head make_screened(fs_context *context, int kind, int64_t V, int64_t D, int64_t B, double norm,
                                          const fs_screen_options *options) {
    screened_head s = {V, D, B, malloc((size_t)(V * D * 2)), malloc((size_t)(B * D * 2)), NULL, 0, fs_head_default()};
    rng r = random_from((uint64_t)(kind * 1000 + V + D));
    assert_true(s.w && s.h);
    make_weights(&s, kind, &r);
    make_hidden(&s, &r, norm);
    s.head.data = s.w, s.head.dtype = FS_BF16, s.head.rows = V, s.head.dim = D;
    s.screen = build(context, &s.head, options, &s.bytes);
    if (options->format == FS_SCREEN_INT8) turn_against(&s);
    return s;
}

static inline void free_screened(screened_head *s) {
    free(s->w), free(s->h), free(s->screen);
}

#endif
