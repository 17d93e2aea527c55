/* ref_screen.c - which tokens of a row a screen leaves: bounds of every logit, the best score that some token surely
 * has, and whoever may reach it. The proofs are in docs/explain/screens.md. */
#include "ref.h"

#include "../core/key.h"
#include "../core/screen.h"

#include <math.h>

/* Column `at` in the order of the screen's columns. */
static double hidden_at(const fs_screen *s, const fs_matrix *hidden, int64_t b, int64_t at) {
    return (double)element_at(matrix_row(hidden, b), hidden->format, column_at(screen_columns(s), at));
}

/* A logit by the screen, and how far from the real one it may be. */
typedef struct estimate {
    double logit, bound;
} estimate;

static estimate estimate_of(const fs_screen *s, const fs_matrix *hidden, int64_t b, int64_t v) {
    const unsigned char *strip = screen_strip(s, v / FS_SCREEN_TOKENS);
    const int token = (int)(v % FS_SCREEN_TOKENS);
    double logit = 0.0, all = 0.0, residuals = 0.0, steps = 0.0;
    for (int64_t chunk = 0; chunk < 2 * s->records; chunk++) {
        const unsigned char *record = strip_record(s, strip, chunk / 2);
        const int64_t from = chunk_begin(s->kept, chunk);
        const int first = (int)(chunk % 2 * FS_SCREEN_CHUNK);
        const double step = (double)record_scale(s, record, token, first);
        double square = 0.0;
        for (int i = 0; i < FS_SCREEN_CHUNK && from + i < s->dim; i++) {
            const double h = hidden_at(s, hidden, b, from + i);
            logit += h * step * record_number(s, record, token, first + i);
            square += h * h;
        }
        if (chunk_is_high(s->kept, chunk)) continue; /* nothing was rounded */
        all += square;
        steps += square * step * step;
    }
    for (int64_t k = 0; s->format == FS_SCREEN_INT8 && k < s->records; k++) {
        double square = 0.0;
        for (int64_t d = k * FS_SCREEN_SPAN; d < (k + 1) * FS_SCREEN_SPAN && d < s->dim; d++)
            square += hidden_at(s, hidden, b, d) * hidden_at(s, hidden, b, d);
        residuals += (double)record_residual(s, strip_record(s, strip, k), token) * sqrt(square);
    }
    const double spread = s->format == FS_SCREEN_INT8 ? residuals : (double)s->reach * sqrt(steps);
    /* Sums in double are off by less than 2^-40 of what they add up. */
    const double slack = screen_slack(s->dim, sqrt(all), sqrt(all), 0.0, 0x1p-40);
    const estimate e = {logit, spread * (1.0 + 0x1p-40) + (double)strip_head(strip)->norm[token] * slack};
    return e;
}

/* Every estimate moved by `sign` bounds, to float in that direction, and from there to l as every logit. tanhf may not
 * rise everywhere. `left` says which tokens have a bound. */
enum { BOUNDED = 1, UNBOUNDED = 2 };

static void shifted_logits(ref_row *row, const fs_head *head, const fs_batch *batch, int sign) {
    const fs_screen screen = screen_of(head->screen);
    const fs_matrix hidden = hidden_of_batch(head, batch);
    const uint32_t status = row->status;
    const float end = sign > 0 ? INFINITY : -INFINITY;
    for (int64_t v = 0; v < row->size; v++) {
        const estimate e = estimate_of(&screen, &hidden, row->b, v);
        const double moved = e.logit + sign * e.bound;
        row->left[v] = isfinite(moved) ? BOUNDED : UNBOUNDED;
        row->dot[v] = isfinite(moved) ? nextafterf((float)moved, end) : end;
    }
    fs_ref_row_logits(row, head, batch);
    for (int64_t v = 0; head->softcap > 0.0f && v < row->size; v++) row->l[v] += (float)sign * fabsf(row->l[v]) * 1e-5f;
    row->status = status;
}

/* The n-th largest score that tokens surely have in one draw: what cannot reach it is not among the n drawn. */
static double sure_score(ref_row *row, const fs_batch *batch, int32_t sample, int64_t n) {
    int64_t there = 0;
    for (int64_t v = 0; v < row->size; v++) {
        if (!(row->l[v] > -INFINITY)) continue;
        row->scratch[there++] =
            score_key(fs_ref_row_score(row, batch, sample, (uint32_t)(row->first + v)), (uint32_t)(row->first + v));
    }
    fs_ref_sort_keys(row->scratch, there);
    return there < n ? -INFINITY : score_key_value(row->scratch[n - 1]);
}

/* Tokens that a bias or an edit makes NaN are left too: the row's status depends on them. */
static void leave_nans(ref_row *row, const fs_head *head, const fs_batch *batch) {
    int64_t first, last;
    for (int64_t v = 0; head->bias && v < row->size; v++)
        if (isnan(head->bias[v])) row->left[v] = UNBOUNDED;
    fs_ref_row_edits(row, batch, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const int64_t v = batch->edit_token[i] - row->first;
        if (v >= 0 && v < row->size && isnan(batch->edit_bias[i])) row->left[v] = UNBOUNDED;
    }
}

int64_t fs_ref_row_screen(ref_row *row, const fs_head *head, const fs_batch *batch) {
    const int ordered = batch->mode == FS_MODE_WITHOUT_REPLACEMENT;
    const int32_t draws = ordered ? 1 : batch->samples;
    int64_t count = 0;
    shifted_logits(row, head, batch, -1);
    for (int32_t i = 0; i < draws; i++) row->score[i] = sure_score(row, batch, i, ordered ? batch->samples : 1);
    shifted_logits(row, head, batch, 1);
    leave_nans(row, head, batch);
    for (int64_t v = 0; v < row->size; v++) {
        const uint32_t id = (uint32_t)(row->first + v);
        row->left[v] = row->left[v] == UNBOUNDED; /* its logit may be NaN */
        for (int32_t i = 0; i < draws; i++)
            if (row->l[v] > -INFINITY && fs_ref_row_score(row, batch, i, id) >= row->score[i]) row->left[v] = 1;
        count += row->left[v];
    }
    return count;
}
