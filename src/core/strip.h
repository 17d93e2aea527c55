/* strip.h - how a strip of a screen (screen.h) is made of 16 rows of W. */
#ifndef FS_CORE_STRIP_H
#define FS_CORE_STRIP_H

#include "screen.h"

#include <math.h>

/* One token of a strip on its way: its columns of the record at hand, and what is known of all of them. */
typedef struct fs_screen_token {
    float w[FS_SCREEN_SPAN];
    double square, square_of_screen; /* |w|^2 so far, and that of the screen */
} fs_screen_token;

FS_CORE void load_span(const fs_matrix *weights, int64_t v, int64_t dim, int64_t from, float *w) {
    const char *row = matrix_row(weights, v);
    for (int i = 0; i < FS_SCREEN_SPAN; i++) w[i] = from + i < dim ? element_at(row, weights->format, from + i) : 0.0f;
}

/* The columns of record k, chunk after chunk, of a row of numbers. */
FS_CORE void load_record(const fs_matrix *rows, int64_t row, const fs_screen *s, int64_t k, float *x) {
    const char *data = matrix_row(rows, row);
    const uint32_t *columns = screen_columns(s);
    for (int i = 0; i < FS_SCREEN_SPAN; i++) {
        const int64_t at = chunk_begin(s->kept, 2 * k + i / FS_SCREEN_CHUNK) + i % FS_SCREEN_CHUNK;
        x[i] = at < s->dim ? element_at(data, rows->format, column_at(columns, at)) : 0.0f;
    }
}

/* The step with which so many of them reach the largest weight, and so many the least. */
FS_CORE double step_of(const float *w, int n, double up, double down) {
    float most = 0.0f, least = 0.0f;
    for (int i = 0; i < n; i++) {
        most = w[i] > most ? w[i] : most;
        least = w[i] < least ? w[i] : least;
    }
    return fmax((double)most / up, -(double)least / down);
}

FS_CORE int clamp(int q, int low, int high) {
    return q < low ? low : q > high ? high : q;
}

/* 8 bits: to nearest, and what is left over. */
FS_CORE void make_span8(fs_screen_token *t, unsigned char *record, int at) {
    uint16_t *tail = (uint16_t *)(void *)(record + FS_SCREEN_TOKENS * FS_SCREEN_SPAN);
    const uint16_t scale = bf16_above(step_of(t->w, FS_SCREEN_SPAN, 127.0, 127.0));
    const float step = widen_bf16(scale), per = step > 0.0f ? 1.0f / step : 0.0f;
    double residual = 0.0;
    for (int i = 0; i < FS_SCREEN_SPAN; i++) {
        const int q = clamp((int)rintf(t->w[i] * per), -127, 127);
        const double image = (double)q * (double)step, off = (double)t->w[i] - image;
        record[(i / FS_SCREEN_CHUNK * FS_SCREEN_TOKENS + at) * FS_SCREEN_CHUNK + screen_place(i % FS_SCREEN_CHUNK)] =
            (unsigned char)q;
        residual += off * off;
        t->square += (double)t->w[i] * (double)t->w[i];
        t->square_of_screen += image * image;
    }
    tail[at] = scale;
    tail[FS_SCREEN_TOKENS + at] = bf16_above(sqrt(residual) * (1.0 + 1e-12));
}

/* 4 bits, a chunk: at random. */
FS_CORE void make_chunk4(fs_screen_token *t, int chunk, float step, uint64_t seed, uint32_t id, int64_t from,
                         unsigned char *record, int at) {
    const float per = step > 0.0f ? 1.0f / step : 0.0f;
    unsigned char *line = record + (chunk * FS_SCREEN_TOKENS / 2 + at % 8) * FS_SCREEN_CHUNK;
    for (int i = 0; i < FS_SCREEN_CHUNK; i += 8) {
        const fs_words random = screen_random(seed, id, (uint32_t)((from + chunk * FS_SCREEN_CHUNK + i) / 8));
        for (int k = 0; k < 8; k++) {
            const float w = t->w[chunk * FS_SCREEN_CHUNK + i + k];
            const uint32_t bits = random.w[k / 2] >> 16 * (k & 1) & 0xFFFF;
            const int q = clamp(screen_round(w * per, bits), -8, 7);
            const double image = (double)q * (double)step;
            line[screen_place(i + k)] |= (unsigned char)((unsigned)(q + 8) << (at < 8 ? 0 : 4));
            t->square += (double)w * (double)w;
            t->square_of_screen += image * image;
        }
    }
}

FS_CORE void make_span4(fs_screen_token *t, int group, uint64_t seed, uint32_t id, int64_t from, unsigned char *record,
                        int at) {
    uint16_t *tail = (uint16_t *)(void *)(record + FS_SCREEN_TOKENS * FS_SCREEN_SPAN / 2);
    for (int chunk = 0; chunk < 2; chunk++) {
        const int first = group == FS_SCREEN_SPAN ? 0 : chunk * FS_SCREEN_CHUNK;
        /* The quotient is rounded twice: a step is never too short for it to stay within. */
        const double step = step_of(t->w + first, group, 7.0, 8.0) * (1.0 + 0x1p-20);
        const uint16_t scale = bf16_above(fmax(step, FS_SCREEN_STEP_LEAST));
        tail[chunk * FS_SCREEN_TOKENS + at] = scale;
        make_chunk4(t, chunk, widen_bf16(scale), seed, id, from, record, at);
    }
}

/* Both numbers of 64 kept columns, at random. Steps of high numbers are 16 times as long, which bf16 has exactly. */
FS_CORE void make_span_kept(fs_screen_token *t, uint64_t seed, uint32_t id, int64_t k, unsigned char *record, int at) {
    uint16_t *tail = (uint16_t *)(void *)(record + FS_SCREEN_TOKENS * FS_SCREEN_SPAN / 2);
    const double longest = step_of(t->w, FS_SCREEN_CHUNK, 119.0, 136.0) * (1.0 + 0x1p-20);
    const uint16_t scale = bf16_above(fmax(longest, FS_SCREEN_STEP_LEAST));
    const float step = widen_bf16(scale), per = 1.0f / step;
    const int shift = at < 8 ? 0 : 4;
    unsigned char *high = record + at % 8 * FS_SCREEN_CHUNK, *low = high + FS_SCREEN_TOKENS / 2 * FS_SCREEN_CHUNK;
    tail[at] = bf16_above(16.0 * (double)step);
    tail[FS_SCREEN_TOKENS + at] = scale;
    for (int i = 0; i < FS_SCREEN_CHUNK; i++) {
        const fs_words random = screen_random(seed, id, (uint32_t)((k * FS_SCREEN_SPAN + i) / 8));
        const uint32_t bits = random.w[i % 8 / 2] >> 16 * (i & 1) & 0xFFFF;
        const int q = clamp(screen_round(t->w[i] * per, bits), -136, 119), below = ((q + 8) & 15) - 8;
        const double image[2] = {(double)(q - below) * (double)step, (double)below * (double)step};
        high[screen_place(i)] |= (unsigned char)((unsigned)((q - below) / 16 + 8) << shift);
        low[screen_place(i)] |= (unsigned char)((unsigned)(below + 8) << shift);
        t->square += (double)t->w[i] * (double)t->w[i];
        t->square_of_screen += image[0] * image[0] + image[1] * image[1];
    }
}

/* A token with a weight that is no number has q = 0 there, and a norm that makes its bound +inf. */
FS_CORE int is_finite(const float *w) {
    float sum = 0.0f;
    for (int i = 0; i < FS_SCREEN_SPAN; i++) sum += w[i] * 0.0f;
    return sum == 0.0f;
}

/* The hash of all weights of a row of W, of the token `id`. */
FS_CORE uint64_t row_hash(const fs_matrix *weights, int64_t v, int64_t dim, int64_t id) {
    uint64_t hash = 0;
    float w[FS_SCREEN_SPAN];
    for (int64_t from = 0; from < dim; from += FS_SCREEN_SPAN) {
        load_span(weights, v, dim, from, w);
        hash += screen_span_hash(w, id, from);
    }
    return hash;
}

/* The same of token `at` of a strip. */
FS_CORE uint64_t token_hash(const fs_head *head, const fs_matrix *weights, int64_t number, int at) {
    const int64_t v = number * FS_SCREEN_TOKENS + at;
    return v < head->rows ? row_hash(weights, v, head->dim, head->first_token + v) : 0;
}

/* Writes token `at` of strip `number` of a screen, whose bytes are zero. A token in 4 bits shares bytes with the one 8
 * before or behind it. Returns the token's hash. */
FS_CORE uint64_t make_token(const fs_screen_header *h, const fs_screen *s, const fs_matrix *weights, int64_t number,
                            int at, unsigned char *strip) {
    const int64_t v = number * FS_SCREEN_TOKENS + at, id = h->first_token + v;
    const int there = v < h->rows;
    fs_screen_token t;
    uint64_t hash = there && s->kept ? row_hash(weights, v, h->dim, id) : 0;
    int finite = 1;
    memset(&t, 0, sizeof t);
    for (int64_t k = 0; k < s->records; k++) {
        unsigned char *record = strip + FS_SCREEN_STRIP_HEAD + k * s->record_bytes;
        if (there) load_record(weights, v, s, k, t.w);
        if (there && !s->kept) hash += screen_span_hash(t.w, id, k * FS_SCREEN_SPAN);
        if (!is_finite(t.w)) memset(t.w, 0, sizeof t.w), finite = 0;
        if (s->format == FS_SCREEN_INT8) make_span8(&t, record, at);
        else if (chunk_is_high(s->kept, 2 * k)) make_span_kept(&t, h->seed, (uint32_t)id, k, record, at);
        else make_span4(&t, h->group, h->seed, (uint32_t)id, k * FS_SCREEN_SPAN, record, at);
    }
    const double norm = sqrt(fmax(t.square, t.square_of_screen)) * (1.0 + 1e-9);
    ((fs_strip_head *)(void *)strip)->norm[at] = finite && norm < (double)FS_SCREEN_NORM_MOST ? float_above(norm)
                                                                                              : INFINITY;
    return hash;
}

#endif
