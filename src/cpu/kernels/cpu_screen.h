/* cpu_screen.h - the kernel of a screen (core/screen.h): upper bounds of the logits of a strip of 16 tokens.
 *
 *   h      whole numbers of 8 bits, with a step for every record's 128 columns, twice where those are uneven
 *   dot    a strip against one row: products of 8 bits, exact sums over a group, times scale and step, added in float
 *   bound  steps or residuals of W against norms of h, group by group; and what h, this sum and the exact logit round
 *   store  dot + bound: no logit of the strip is above it
 *
 * A file cpu_screen_<isa>.c brings the dot products. Rows come one after the other: a strip, 34 KB for 4 bits and
 * D = 4,096, is in L1 or L2 when the second one does. */
#ifndef FS_CPU_SCREEN_H
#define FS_CPU_SCREEN_H

#include "core/screen.h"
#include "cpu_isa.h"

/* One row of fs_screen_rows. */
typedef struct fs_image {
    int32_t rows, entries;
    int64_t fetch_from, fetch_to; /* bytes of every record, this row's share of what is fetched for all rows */
    const int32_t *record;
    const int8_t *q;
    const int32_t *sum;
    const float *step, *norm;
} fs_image;

FS_CORE fs_image image_of_row(const fs_screen *s, const fs_screen_rows *rows, int32_t r) {
    const int64_t at = r * rows->most, lines = rows->fetched ? s->record_bytes / 64 : 0;
    const fs_image image = {rows->count,
                            rows->entries[r],
                            lines * r / rows->count * 64,
                            lines * (r + 1) / rows->count * 64,
                            rows->record + at,
                            rows->q + at * FS_SCREEN_SPAN,
                            rows->sum + at * 2,
                            rows->step + at,
                            rows->norm + r * rows->records * 2};
    return image;
}

/* What one row asks for lies so far ahead. On one stream a core of a Cascade Lake reads 7 GB/s by itself and 11 so, for
 * any distance from 2 KB to 8; AVX2, two threads, 151,936 x 1,024: 8 bits 12.4 to 7.8 ms, 4 bits 6.5 to 4.4
 * (2026-11-19). */
#define FS_FETCH_AHEAD 4096

/* Asks memory for this row's share of a record that comes later, while the one at w is multiplied: the same one of the
 * next strip, or, where there is one row alone, what it needs soon. It may be behind the screen, where that is no
 * fault. Shares are equal, since rows that wait for a record each, one after the other, do not multiply meanwhile: 8
 * rows by 8 bits, AVX2, 32.7 ms without, 28.8 with a record each, 24.9 so. */
FS_CORE void fetch_ahead(const fs_screen *s, const unsigned char *w, const fs_image *h) {
    const char *later = (const char *)w + (h->rows > 1 ? s->strip_bytes : FS_FETCH_AHEAD);
    for (int64_t at = h->fetch_from; at < h->fetch_to; at += 64) __builtin_prefetch(later + at);
}

/* What a kernel brings, of each token of a strip and one row. */
typedef struct fs_strip_sums {
    float dot[FS_SCREEN_TOKENS];    /* the product */
    float spread[FS_SCREEN_TOKENS]; /* 8 bits: residuals times norms; 4 bits: squares of steps times those of norms */
} fs_strip_sums;

typedef fs_strip_sums (*fs_strip_dots)(const fs_screen *s, const unsigned char *strip, fs_image h);

FS_CORE void strip_upper(const fs_screen *s, const unsigned char *strip, const fs_screen_rows *rows, int32_t r,
                         fs_strip_dots dots, float *upper) {
    const fs_strip_sums sums = dots(s, strip, image_of_row(s, rows, r));
    for (int t = 0; t < FS_SCREEN_TOKENS; t++) {
        const float u = sums.dot[t] + screen_bound(s, sums.spread[t], strip_head(strip)->norm[t], rows->slack[r]);
        upper[t] = u < INFINITY ? u : INFINITY; /* NaN too: nothing is known */
    }
}

#define FS_DEFINE_SCREEN_KERNEL(isa)                                                                                   \
    static void upper_##isa(const fs_screen *s, const unsigned char *strip, const fs_screen_rows *rows, int32_t r,     \
                            float *upper) {                                                                            \
        strip_upper(s, strip, rows, r, s->format == FS_SCREEN_INT8 ? dots8 : dots4, upper);                            \
    }                                                                                                                  \
    const fs_screen_kernel fs_screen_##isa = {upper_##isa}

#endif
