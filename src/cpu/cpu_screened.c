#include "cpu_screened.h"
#include "cpu_lists.h"

#include "core/head.h"
#include "core/strip.h"

/* Tokens of a row and task that may wait: a few with 8 bits, some hundreds of a row with 4; fewer of many rows, whose
 * memory would be 4 MiB for 64 rows and 16 tasks. Beyond that they are settled at once. */
static int32_t most_later(const fs_pass *pass) {
    const int32_t one = 256 + 4096 / pass->cpu->tasks;
    return pass->rows > 8 ? (int32_t)((int64_t)one * 8 / pass->rows) + 1 : one;
}

/* Of all rows and tasks, and never fewer for more rows, since memory is counted for all rows of a call. */
static size_t all_later(const fs_pass *pass) {
    const size_t one = 256 + 4096 / (size_t)pass->cpu->tasks, rows = (size_t)pass->rows;
    return (rows > 8 ? 8 * one + rows : rows * one) * (size_t)pass->cpu->tasks;
}

/* Logits of W that are computed of a row, task by task: with more, W is read. Finding one costs as much as reading a
 * few of its neighbours. During the pass the best score is not known yet, and a screen whose bounds are too wide is
 * left as soon as that shows; in the end, what is settled has to be. */
static int64_t most_dots(const fs_pass *pass) {
    return 64 + pass->call->head->rows / 64 / pass->cpu->tasks;
}

static int64_t most_dots_in_the_end(const fs_pass *pass) {
    return 64 + pass->call->head->rows / 16 / pass->cpu->tasks;
}

/* Upper bounds that a task keeps for a row's list: as many as may be settled; fewer of many rows, as above. */
static int64_t bounds_kept(const fs_pass *pass) {
    const int64_t one = 192 + most_dots_in_the_end(pass);
    return pass->rows > 8 ? one * 8 / pass->rows + 128 : one;
}

/* Places of all rows and tasks, and never fewer for more rows. */
static size_t all_bounds(const fs_pass *pass) {
    const size_t one = 192 + (size_t)most_dots_in_the_end(pass), rows = (size_t)pass->rows;
    return (2 * (rows > 8 ? 8 * one + 128 * rows : rows * one) + rows * FS_GRANULE) * (size_t)pass->cpu->tasks;
}

/* ---------------------------------------------------------------------------------------------------- layout ---- */

void fs_screened_layout(fs_pass *pass, fs_arena *arena) {
    const size_t rows = (size_t)pass->rows;
    fs_screened *s = &pass->screened;
    fs_hidden one = {NULL, 1, pass->hidden.dtype, pass->hidden.dim, NULL};
    s->screen = screen_of(pass->call->head->screen);
    fs_screen_rows *h = &s->rows;
    h->count = pass->rows;
    h->fetched = pass->cpu->isa->screen_fetched;
    h->records = s->screen.records;
    h->most = 2 * h->records;
    const size_t entries = rows * (size_t)h->most;
    h->entries = arena_take(arena, rows, sizeof *h->entries);
    h->record = arena_take(arena, entries, sizeof *h->record);
    h->q = arena_take(arena, entries, FS_SCREEN_SPAN);
    h->sum = arena_take(arena, 2 * entries, sizeof *h->sum);
    h->step = arena_take(arena, entries, sizeof *h->step);
    h->norm = arena_take(arena, entries, sizeof *h->norm);
    h->slack = arena_take(arena, rows, sizeof *h->slack);
    s->settle = arena_take(arena, rows * (size_t)pass->cpu->tasks, sizeof *s->settle);
    s->later = arena_take(arena, all_later(pass), sizeof *s->later);
    s->hidden = arena_take(arena, rows, sizeof *s->hidden);
    const int listed = pass->call->needs.keep || pass->largest;
    s->bounds_stride = listed ? 2 * bounds_kept(pass) + FS_GRANULE : 0;
    s->bounds = arena_take(arena, listed ? all_bounds(pass) : 0, sizeof *s->bounds);
    for (size_t a = 0; a < rows; a++) {
        one.packed = arena_take(arena, pass_kernel(pass)->packed_bytes(&one), 1);
        if (arena_fits(arena)) s->hidden[a] = one;
    }
}

/* --------------------------------------------------------------------------------------------------- prepare ---- */

static float largest_of(const float *h) {
    float most = 0.0f;
    for (int i = 0; i < FS_SCREEN_SPAN; i++) most = fabsf(h[i]) > most ? fabsf(h[i]) : most;
    return most;
}

/* 128 columns in whole numbers, as entry `at`. What is left over takes their place (in float it is exact, or off by
 * less than the row's slack has room for); returns |.|^2 of it. */
static double image_span(const fs_screen_rows *rows, int64_t at, int64_t record, float *h) {
    const float step = float_above((double)largest_of(h) / 127.0), per = step > 0.0f ? 1.0f / step : 0.0f;
    double off = 0.0;
    rows->record[at] = (int32_t)record;
    rows->step[at] = step;
    rows->sum[2 * at] = rows->sum[2 * at + 1] = 0;
    for (int i = 0; i < FS_SCREEN_SPAN; i++) {
        const int q = (int)rintf(h[i] * per), chunk = i / FS_SCREEN_CHUNK;
        const double left = (double)h[i] - (double)q * (double)step;
        rows->q[at * FS_SCREEN_SPAN + chunk * FS_SCREEN_CHUNK + screen_place(i % FS_SCREEN_CHUNK)] = (int8_t)q;
        rows->sum[2 * at + chunk] += q;
        h[i] = (float)left;
        off += left * left;
    }
    return off;
}

/* The columns of record k of a row, in the screen's order; 0 in place of what is no number, which *finite says. */
static void load_image(const fs_pass *pass, int32_t a, int64_t k, float *h, int *finite) {
    const fs_matrix hidden = hidden_of_batch(pass->call->head, pass->call->batch);
    load_record(&hidden, pass->row[a], &pass->screened.screen, k, h);
    for (int i = 0; i < FS_SCREEN_SPAN; i++)
        if (!(fabsf(h[i]) < 1e30f)) h[i] = 0.0f, *finite = 0;
}

/* Norms of record k of row a, rounded up: of columns that were rounded, so not of high numbers. Adds to |h|^2, and to
 * that of the image, which has kept columns twice. */
static void norm_span(const fs_pass *pass, int32_t a, int64_t k, const float *h, double *of_row, double *of_image) {
    const fs_screen *s = &pass->screened.screen;
    const fs_screen_rows *rows = &pass->screened.rows;
    float *norm = rows->norm + (a * rows->records + k) * 2;
    double square[2] = {0.0, 0.0};
    for (int i = 0; i < FS_SCREEN_SPAN; i++) square[i / FS_SCREEN_CHUNK] += (double)h[i] * (double)h[i];
    *of_image += square[0] + square[1];
    if (chunk_is_high(s->kept, 2 * k)) square[0] = 0.0;
    *of_row += square[0] + square[1];
    if (s->format == FS_SCREEN_INT8) square[0] = sqrt(square[0] + square[1]);
    for (int i = 0; i < 2; i++) norm[i] = float_above(square[i] * (1.0 + 1e-9));
}

/* A record whose largest column is this many times the row's root mean square, or more, is imaged twice: hidden states
 * have a few columns that are far larger than all others, which would make one step for their neighbours too long. So
 * |h - h~| is at most 1 % of |h|, and 0.6 % where no column is special. */
#define FS_UNEVEN 3.0

static void image_row(const fs_pass *pass, int32_t a) {
    const fs_screen_rows *rows = &pass->screened.rows;
    const int64_t dim = pass->call->head->dim, at = a * rows->most;
    double square = 0.0, image = 0.0, off = 0.0;
    float h[FS_SCREEN_SPAN];
    int finite = 1;
    for (int64_t k = 0; k < rows->records; k++) {
        load_image(pass, a, k, h, &finite);
        norm_span(pass, a, k, h, &square, &image);
    }
    int64_t entries = rows->records;
    for (int64_t k = 0; k < rows->records; k++) {
        load_image(pass, a, k, h, &finite);
        const int uneven = (double)largest_of(h) > FS_UNEVEN * sqrt(square / (double)dim);
        double left = image_span(rows, at + k, k, h);
        if (uneven) left = image_span(rows, at + entries++, k, h);
        off += left;
    }
    rows->entries[a] = (int32_t)entries;
    /* Sums of whole numbers are exact; a product of scales, one with the sum, and the addition, for every chunk of
     * every entry. What is multiplied, of records twice, is less than 1.1 |h| together. */
    const double norm = sqrt(image), error = (double)(8 * rows->records + 8) * 0x1p-24;
    const double slack = screen_slack(dim, sqrt(square), 1.1 * norm, sqrt(off) + 0x1p-24 * norm, error);
    rows->slack[a] = finite && square < (double)FS_SCREEN_NORM_MOST ? float_above(slack) : INFINITY;
}

void fs_screened_prepare(const fs_pass *pass, int32_t a) {
    fs_hidden *one = &pass->screened.hidden[a];
    one->row = pass->hidden.row + a;
    pass_kernel(pass)->pack(one, 0, (one->dim + FS_PACK - 1) / FS_PACK * FS_PACK);
    image_row(pass, a);
}

static fs_settle *settle_of(const fs_pass *pass, int32_t task, int32_t a) {
    return &pass->screened.settle[(int64_t)task * pass->rows + a];
}

void fs_screened_open(const fs_pass *pass, int32_t task, int32_t a) {
    fs_settle settle = {pass->call,
                        &pass->active[a],
                        &pass->scratch[task],
                        pass_kernel(pass),
                        &pass->weights,
                        &pass->screened.hidden[a],
                        &pass->summary[(int64_t)task * pass->rows + a],
                        {0},
                        0,
                        most_dots(pass),
                        FS_KEY_NONE,
                        {0}};
    settle.bounds.key = pass->screened.bounds + ((int64_t)task * pass->rows + a) * pass->screened.bounds_stride;
    settle.bounds.keep = (int32_t)bounds_kept(pass);
    settle.bounds.capacity = 2 * settle.bounds.keep;
    settle.later.key = pass->screened.later + ((int64_t)task * pass->rows + a) * most_later(pass);
    settle.later.capacity = pass->call->needs.samples == 1 ? most_later(pass) : 0;
    *settle_of(pass, task, a) = settle;
}

/* ------------------------------------------------------------------------------------------------------- run ---- */

void fs_screened_block(const fs_pass *pass, int64_t first, int64_t n, float *out, int64_t ld) {
    const fs_screened *s = &pass->screened;
    const fs_screen_kernel *kernel = pass->cpu->isa->screen;
    for (int64_t v = first / FS_SCREEN_TOKENS * FS_SCREEN_TOKENS; v < first + n; v += FS_SCREEN_TOKENS) {
        const unsigned char *strip = screen_strip(&s->screen, v / FS_SCREEN_TOKENS);
        const int64_t from = v < first ? first : v, end = v + FS_SCREEN_TOKENS, to = end < first + n ? end : first + n;
        for (int32_t a = 0; a < pass->rows; a++) {
            float upper[FS_SCREEN_TOKENS];
            kernel->upper(&s->screen, strip, &s->rows, a, upper);
            memcpy(out + a * ld + (from - first), upper + (from - v), (size_t)(to - from) * sizeof *upper);
        }
    }
}

void fs_screened_absorb(const fs_pass *pass, fs_block block, int32_t task, int32_t a, float *x) {
    fs_settle *settle = settle_of(pass, task, a);
    const int alone = pass->call->needs.samples == 1;
    if (settle_gave_up(settle)) return;
    fs_rows_fetch(pass->call, &pass->active[a], block);
    fs_rows_settle(pass->cpu->isa, settle, block, x, alone ? shared_load(&pass->shared.best[a]) : FS_KEY_NONE);
    if (alone) shared_raise(&pass->shared.best[a], settle->summary->winner[0].key);
}

int fs_screened_is_left(const fs_pass *pass, int32_t task) {
    for (int32_t a = 0; a < pass->rows; a++)
        if (!settle_gave_up(settle_of(pass, task, a))) return 0;
    return 1;
}

int fs_screened_gave_up(const fs_pass *pass, int32_t a) {
    for (int32_t t = 0; t < pass->cpu->tasks; t++)
        if (settle_gave_up(settle_of(pass, t, a))) return 1;
    return 0;
}

void fs_screened_end(const fs_pass *pass, int32_t a) {
    fs_settle *settle = settle_of(pass, 0, a);
    if (fs_screened_gave_up(pass, a)) return;
    settle->most = most_dots_in_the_end(pass) * pass->cpu->tasks;
    for (int32_t t = 1; t < pass->cpu->tasks; t++) settle->most -= settle_of(pass, t, a)->dots;
    if (pass->call->needs.samples == 1)
        fs_rows_settle_later(settle, pass->cpu->tasks, pass->rows, &pass->summary[a].winner[0]);
    if (pass->active[a].listed && !settle_gave_up(settle))
        fs_rows_settle_list(pass->cpu->isa, settle, pass->cpu->tasks, pass->rows);
}

int64_t fs_screened_dots(const fs_pass *pass) {
    int64_t dots = 0;
    for (int64_t i = 0; i < (int64_t)pass->cpu->tasks * pass->rows; i++) dots += pass->screened.settle[i].dots;
    return dots;
}
