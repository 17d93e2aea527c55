#define _DEFAULT_SOURCE /* getentropy */
/* screen_make.c - a strip of a screen from 16 rows of W, and all of them on the context's threads. */
#include "screen_make.h"

#include <math.h>
#include <unistd.h>

_Static_assert(sizeof(fs_screen_header) == 128 && sizeof(fs_strip_head) == FS_SCREEN_STRIP_HEAD,
               "lines of a strip are cache lines");

/* ----------------------------------------------------------------------------------------------------- a strip ---- */

/* One token of a strip on its way: its columns of the record at hand, and what is known of all of them. */
typedef struct token {
    float w[FS_SCREEN_SPAN];
    double square, square_of_screen; /* |w|^2 so far, and that of the screen */
} token;

static void load_span(const fs_weights *weights, int64_t v, int64_t dim, int64_t from, float *w) {
    const char *row = weights_row(weights, v);
    for (int i = 0; i < FS_SCREEN_SPAN; i++) w[i] = from + i < dim ? weight_at(row, weights->format, from + i) : 0.0f;
}

/* The step with which so many of them reach the largest weight, and so many the least. */
static double step_of(const float *w, int n, double up, double down) {
    float most = 0.0f, least = 0.0f;
    for (int i = 0; i < n; i++) {
        most = w[i] > most ? w[i] : most;
        least = w[i] < least ? w[i] : least;
    }
    return fmax((double)most / up, -(double)least / down);
}

static int clamp(int q, int low, int high) {
    return q < low ? low : q > high ? high : q;
}

/* 8 bits: to nearest, and what is left over. */
static void make_span8(token *t, unsigned char *record, int at) {
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
static void make_chunk4(token *t, int chunk, float step, uint64_t seed, uint32_t id, int64_t from,
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

static void make_span4(token *t, int group, uint64_t seed, uint32_t id, int64_t from, unsigned char *record, int at) {
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

/* A token with a weight that is no number has q = 0 there, and a norm that makes its bound +inf. */
static int is_finite(const float *w) {
    float sum = 0.0f;
    for (int i = 0; i < FS_SCREEN_SPAN; i++) sum += w[i] * 0.0f;
    return sum == 0.0f;
}

static void make_strip(const fs_screen_header *h, const fs_head *of, const fs_weights *weights, int64_t number,
                       unsigned char *strip) {
    const int64_t record_bytes = screen_record_bytes(h->format);
    fs_strip_head *head = (fs_strip_head *)(void *)strip;
    memset(strip, 0, (size_t)screen_strip_bytes(h->format, h->dim));
    head->check = screen_check(of, weights, number);
    for (int at = 0; at < FS_SCREEN_TOKENS; at++) {
        const int64_t v = number * FS_SCREEN_TOKENS + at;
        token t = {{0}, 0.0, 0.0};
        int finite = 1;
        for (int64_t from = 0; from < h->dim; from += FS_SCREEN_SPAN) {
            unsigned char *record = strip + FS_SCREEN_STRIP_HEAD + from / FS_SCREEN_SPAN * record_bytes;
            if (v < h->rows) load_span(weights, v, h->dim, from, t.w);
            if (!is_finite(t.w)) memset(t.w, 0, sizeof t.w), finite = 0;
            if (h->format == FS_SCREEN_INT8) make_span8(&t, record, at);
            else make_span4(&t, h->group, h->seed, (uint32_t)(h->first_token + v), from, record, at);
        }
        const double norm = sqrt(fmax(t.square, t.square_of_screen)) * (1.0 + 1e-9);
        head->norm[at] = finite && norm < (double)FS_SCREEN_NORM_MOST ? float_above(norm) : INFINITY;
    }
}

/* --------------------------------------------------------------------------------------------------- the whole ---- */

/* Strips [from, to) of a screen, by as many tasks. */
typedef struct making {
    const fs_head *head;
    fs_screen_header *header;
    fs_weights weights;
    int64_t from, to;
    int32_t tasks;
} making;

static void make_task(void *arg, int32_t task) {
    const making *m = arg;
    const int64_t count = m->to - m->from, bytes = screen_strip_bytes(m->header->format, m->header->dim);
    const int64_t end = m->from + count * (task + 1) / m->tasks;
    unsigned char *strips = (unsigned char *)(m->header + 1);
    for (int64_t i = m->from + count * task / m->tasks; i < end; i++)
        make_strip(m->header, m->head, &m->weights, i, strips + i * bytes);
}

static fs_status draw_seed(fs_context *context, uint64_t *seed) {
    while (*seed == 0)
        if (getentropy(seed, sizeof *seed) != 0)
            return fs_fail(context, FS_ERR_DEVICE, "the system has no random seed for a screen: give options.seed");
    return FS_OK;
}

#define FS_SCREEN_TURNS 64  /* calls of the progress function, as many as there are strips for */
#define FS_SCREEN_TASKS 256 /* more than threads, so that they end together */

fs_status fs_screen_make(fs_context *context, const fs_head *head, const fs_screen_options *options, void *screen) {
    making m;
    fs_screen_header h;
    memset(&h, 0, sizeof h);
    h.magic = FS_SCREEN_MAGIC;
    h.version = FS_SCREEN_VERSION;
    h.layout = FS_SCREEN_LAYOUT;
    h.format = options->format;
    h.group = options->group;
    h.dtype = head->dtype;
    h.rows = head->rows;
    h.dim = head->dim;
    h.first_token = head->first_token;
    if (h.format == FS_SCREEN_INT4) {
        h.seed = options->seed;
        FS_TRY(draw_seed(context, &h.seed));
        h.eta = options->eta;
        h.reach = screen_reach(h.eta, h.dim);
    }
    h.hash = screen_header_hash(&h);
    memcpy(screen, &h, sizeof h);
    m.head = head;
    m.header = screen;
    m.weights = weights_of_head(head);
    const int64_t strips = screen_strips(h.rows), step = strips / FS_SCREEN_TURNS + 1;
    for (m.from = 0; m.from < strips; m.from = m.to) {
        m.to = m.from + step < strips ? m.from + step : strips;
        m.tasks = (int32_t)(m.to - m.from < FS_SCREEN_TASKS ? m.to - m.from : FS_SCREEN_TASKS);
        if (context->backend->parallel) context->backend->parallel(context, m.tasks, make_task, &m);
        else
            for (int32_t i = 0; i < m.tasks; i++) make_task(&m, i);
        const int64_t done = m.to * FS_SCREEN_TOKENS;
        if (options->progress) options->progress(options->user, done < h.rows ? done : h.rows, h.rows);
    }
    return FS_OK;
}
