/* ref_logits.c - the life of a logit, line by line as the public header's top comment tells it. */
#include "ref.h"

#include "../core/format.h"
#include "../core/key.h"
#include "../core/noise.h"

#include <math.h>
#include <stdlib.h>

/* ---------------------------------------------------------------------------------------------------- numbers ---- */

static float f16_value(uint16_t h) {
    int exponent = h >> 10 & 31;
    int mantissa = h & 1023;
    double value;
    if (exponent == 31) value = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0) value = ldexp(mantissa, -24);
    else value = ldexp(mantissa + 1024, exponent - 25);
    return (float)(h >> 15 ? -value : value);
}

/* Number i of a row in one of the float formats. */
static float load(const void *row, int32_t format, int64_t i) {
    if (format == FS_FORMAT_F32) return ((const float *)row)[i];
    uint16_t h = ((const uint16_t *)row)[i];
    return format == FS_FORMAT_BF16 ? bits_float((uint32_t)h << 16) : f16_value(h);
}

/* x rounded to nearest even with `digits` binary digits, no digit below 2^lowest. */
static float round_digits(float x, int digits, int lowest, double largest) {
    if (!isfinite(x) || x == 0.0f) return x;
    int exponent;
    frexp((double)x, &exponent);
    int last = exponent - digits > lowest ? exponent - digits : lowest;
    double rounded = ldexp(rint(ldexp((double)x, -last)), last);
    return fabs(rounded) > largest ? copysignf(INFINITY, x) : (float)rounded;
}

static float round_to(float x, int32_t dtype) {
    if (dtype == FS_BF16) return round_digits(x, 8, -133, ldexp(255.0, 120));
    if (dtype == FS_F16) return round_digits(x, 11, -24, 65504.0);
    return x;
}

static const void *row_of(const void *data, int64_t stride, int64_t packed, int64_t row) {
    return (const char *)data + row * (stride ? stride : packed);
}

static int bit_of(const uint32_t *words, int64_t id) {
    return (int)(words[id / 32] >> (id % 32) & 1);
}

static int compare_keys(const void *a, const void *b) {
    uint64_t ka = *(const uint64_t *)a, kb = *(const uint64_t *)b;
    return (ka < kb) - (ka > kb);
}

void fs_ref_sort_keys(uint64_t *keys, int64_t count) {
    qsort(keys, (size_t)count, sizeof *keys, compare_keys);
}

double fs_ref_log_sum(const float *l, int64_t count) {
    float most = -INFINITY;
    double sum = 0.0;
    for (int64_t v = 0; v < count; v++) most = l[v] > most ? l[v] : most;
    if (isinf(most)) return (double)most;
    for (int64_t v = 0; v < count; v++) sum += exp((double)l[v] - (double)most);
    return (double)most + log(sum);
}

/* ----------------------------------------------------------------------------------------------------- values ---- */

/* A value that is out of range leaves its rule off. */
static uint32_t check_values(ref_values *values) {
    const float t = values->temperature;
    uint32_t bad = 0;
    if (t > 0.0f && isinf(1.0f / t)) bad |= FS_ROW_BAD_TEMPERATURE;
#define FS_CHECK_VALUE(name, type, bit, off, used, least, most, status, about)                                         \
    if (!(values->name >= least && values->name <= most)) bad |= status, values->name = off;
    FS_RULE_TABLE(FS_CHECK_VALUE)
#undef FS_CHECK_VALUE
    return bad;
}

/* Which of the allow-bitmasks the row has; -1: none. */
static int64_t mask_of(const ref_row *row, const fs_batch *batch) {
    if (!batch->allow) return -1;
    return batch->allow_index ? batch->allow_index[row->b] : row->b;
}

/* ------------------------------------------------------------------------------------------------------ lists ---- */

static int64_t room_of_line(const fs_batch *batch) {
    return batch->edit_stride / 4;
}

/* The row's edits: entries [*first, *last). A list that is bad is none. */
void fs_ref_row_edits(const ref_row *row, const fs_batch *batch, int64_t *first, int64_t *last) {
    *first = *last = 0;
    if (batch->edit_offset) {
        *first = batch->edit_offset[row->b];
        *last = batch->edit_offset[row->b + 1];
    }
    if (batch->edit_count && batch->edit_count[row->slot] > 0 && batch->edit_count[row->slot] <= room_of_line(batch)) {
        *first = row->slot * room_of_line(batch);
        *last = *first + batch->edit_count[row->slot];
    }
}

static uint32_t check_tokens(const int32_t *token, int64_t first, int64_t last, int64_t vocab) {
    for (int64_t i = first; i < last; i++)
        if (token[i] < 0 || token[i] >= vocab) return FS_ROW_BAD_TOKEN;
    return 0;
}

static uint32_t check_lists(const ref_row *row, const fs_batch *batch) {
    const int64_t b = row->b, s = row->slot, n = batch->samples;
    int64_t first, last;
    uint32_t bad = 0;
    fs_ref_row_edits(row, batch, &first, &last);
    bad |= check_tokens(batch->edit_token, first, last, row->vocab);
    if (batch->count_offset)
        bad |= check_tokens(batch->count_token, batch->count_offset[s], batch->count_offset[s + 1], row->vocab);
    if (batch->extra_offset)
        bad |= check_tokens(batch->extra_token, batch->extra_offset[b], batch->extra_offset[b + 1], row->vocab);
    if (batch->watch_offset)
        bad |= check_tokens(batch->watch_token, batch->watch_offset[b], batch->watch_offset[b + 1], row->vocab);
    if (batch->mode == FS_MODE_SCORE) bad |= check_tokens(batch->score_token, b * n, (b + 1) * n, row->vocab);
    if (batch->edit_count && (batch->edit_count[s] < 0 || batch->edit_count[s] > room_of_line(batch)))
        bad |= FS_ROW_BAD_LIST;
    return bad;
}

/* FS_RULE_... of the rules that the row's values use. */
static uint32_t used_rules(const ref_values *values, int64_t vocab) {
    uint32_t rules = 0;
#define FS_USED_RULE(name, type, bit, off, used, least, most, status, about)                                           \
    {                                                                                                                  \
        const type v = values->name;                                                                                   \
        if (used) rules |= bit;                                                                                        \
    }
    FS_RULE_TABLE(FS_USED_RULE)
#undef FS_USED_RULE
    return rules;
}

/* Whether the row does what batch.limits says that no row does. */
static uint32_t check_limits(const ref_row *row, const fs_batch *batch) {
    const uint32_t absent = batch->limits->absent;
    uint32_t uses = row->uses;
    const int has_penalised = batch->seen || batch->counts || batch->count_offset || batch->extra_offset;
    const int top_k_over = batch->limits->top_k > 0 && row->values.top_k > batch->limits->top_k;
    int64_t first, last;
    fs_ref_row_edits(row, batch, &first, &last);
    if (!has_penalised) uses &= ~(uint32_t)FS_RULE_PENALTIES;
    if (mask_of(row, batch) >= 0) uses |= FS_RULE_ALLOW;
    if (last > first) uses |= FS_RULE_EDITS;
    return uses & absent || (uses & FS_RULE_TOP_K && top_k_over) ? FS_ROW_OVER_LIMIT : 0;
}

/* -------------------------------------------------------------------------------------------------------- row ---- */

static int64_t slot_of(const fs_batch *batch, int64_t b) {
    if (!batch->slot) return b;
    if (batch->slot_dtype == FS_I64) return ((const int64_t *)batch->slot)[b];
    return ((const int32_t *)batch->slot)[b];
}

void fs_ref_row_values(ref_row *row, const fs_batch *batch) {
    int64_t slots = batch->slots ? batch->slots : batch->rows;
    int64_t s = slot_of(batch, row->b);
    row->slot = s;
    row->position = batch->position ? batch->position[row->b] : batch->position_all;
    memset(&row->values, 0, sizeof row->values);
    row->status = 0;
    if (s == -1) row->status = FS_ROW_SKIPPED;
    else if (s < -1 || s >= slots) row->status = FS_ROW_BAD_SLOT;
    if (row->status) return;

    ref_values *values = &row->values;
#define FS_READ_VALUE(name, type, bit, off, used, least, most, status, about)                                          \
    values->name = batch->rules->name.per_slot ? batch->rules->name.per_slot[s] : batch->rules->name.value;
    FS_RULE_TABLE(FS_READ_VALUE)
#undef FS_READ_VALUE
    values->substream = batch->substream ? batch->substream[s] : batch->substream_all;
    values->seed = batch->seed ? batch->seed[s] : noise_spread_seed(batch->seed_all, (uint64_t)s);
    row->status = check_values(values);
    row->uses = used_rules(values, row->vocab);
    int64_t mask = mask_of(row, batch);
    if (mask < -1 || (batch->allow_count > 0 && mask >= batch->allow_count)) row->status |= FS_ROW_BAD_MASK;
    row->status |= check_lists(row, batch) | check_limits(row, batch);
}

/* ----------------------------------------------------------------------------------------------------- logits ---- */

static float dot(const fs_matrix *weights, const fs_matrix *hidden, int64_t b, int64_t v, int64_t dim) {
    const char *w = matrix_row(weights, v), *h = matrix_row(hidden, b);
    double sum = 0.0;
    for (int64_t d = 0; d < dim; d++) sum += (double)load(h, hidden->format, d) * (double)load(w, weights->format, d);
    return (float)sum;
}

/* x of a dot product or stored logit, without the mask. */
static float raw_logit(const fs_head *head, int64_t v, float x) {
    if (head->bias) x += head->bias[v];
    x = round_to(x, head->round_to);
    x *= head->scale;
    if (head->softcap != 0.0f) x = head->softcap * tanhf(x / head->softcap);
    return x * head->post_scale;
}

/* The row's bitmask, NULL = every token is allowed. */
static const uint32_t *allow_mask(const ref_row *row, const fs_batch *batch) {
    int64_t mask = mask_of(row, batch);
    if (mask < 0) return NULL;
    return row_of(batch->allow, batch->allow_stride, (row->vocab + 31) / 32 * 4, mask);
}

/* Several edits of one token add up in the order they are listed. -inf is final: neither a masked nor a banned token
 * comes back through a +inf, and no NaN is made of the two. */
static void apply_edits(ref_row *row, const fs_batch *batch) {
    int64_t first, last;
    fs_ref_row_edits(row, batch, &first, &last);
    for (int64_t i = first; i < last; i++) {
        int64_t v = batch->edit_token[i] - row->first;
        if (v < 0 || v >= row->size || row->y[v] == -INFINITY) continue;
        float bias = batch->edit_bias[i];
        row->y[v] = bias == -INFINITY ? -INFINITY : row->y[v] + bias;
    }
}

static void add_to_count(ref_row *row, int32_t token, int64_t value) {
    int64_t v = token - row->first;
    if (v < 0 || v >= row->size) return;
    int64_t sum = row->count[v] + value;
    row->count[v] = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
}

static void gather_counts(ref_row *row, const fs_batch *batch) {
    const int32_t *dense = NULL;
    if (batch->counts) dense = row_of(batch->counts, batch->counts_stride, row->vocab * 4, row->slot);
    for (int64_t v = 0; v < row->size; v++) {
        int64_t id = row->first + v;
        row->count[v] = dense && id < row->vocab ? dense[id] : 0;
    }
    if (batch->count_offset)
        for (int64_t i = batch->count_offset[row->slot]; i < batch->count_offset[row->slot + 1]; i++)
            add_to_count(row, batch->count_token[i], batch->count_value[i]);
    if (batch->extra_offset)
        for (int64_t i = batch->extra_offset[row->b]; i < batch->extra_offset[row->b + 1]; i++)
            add_to_count(row, batch->extra_token[i], 1);
}

static void apply_penalties(ref_row *row, const fs_batch *batch) {
    const ref_values *values = &row->values;
    const uint32_t *seen = NULL;
    if (batch->seen) seen = row_of(batch->seen, batch->seen_stride, (row->vocab + 31) / 32 * 4, row->slot);
    gather_counts(row, batch);
    for (int64_t v = 0; v < row->size; v++) {
        int64_t id = row->first + v, count = row->count[v];
        float y = row->y[v];
        if (y == -INFINITY) continue;
        if (count > 0 || (seen && bit_of(seen, id))) y = y > 0.0f ? y / values->repetition : y * values->repetition;
        if (y > -INFINITY && count > 0) y -= values->frequency * (float)count;
        if (y > -INFINITY && count > 0) y -= values->presence;
        row->y[v] = y;
    }
}

/* NaN never wins: it becomes -inf and the row says so. */
static float drop_nan(ref_row *row, float value) {
    if (!isnan(value)) return value;
    row->status |= FS_ROW_NAN;
    return -INFINITY;
}

void fs_ref_row_dots(ref_row *row, const fs_head *head, const fs_batch *batch) {
    const fs_matrix weights = weights_of_head(head);
    const fs_matrix rows = head->kind == FS_HEAD_LOGITS ? logits_of_head(head) : hidden_of_batch(head, batch);
    for (int64_t v = 0; v < row->size; v++) {
        if (row->left && !row->left[v]) continue;
        row->dot[v] = head->kind == FS_HEAD_LOGITS ? load(matrix_row(&rows, row->b), rows.format, v)
                                                   : dot(&weights, &rows, row->b, v, head->dim);
    }
}

void fs_ref_row_logits(ref_row *row, const fs_head *head, const fs_batch *batch) {
    const uint32_t *allow = allow_mask(row, batch);
    for (int64_t v = 0; v < row->size; v++) {
        int64_t id = row->first + v;
        int absent = id >= row->vocab || (allow && !bit_of(allow, id)) || (row->left && !row->left[v]);
        row->x[v] = absent ? -INFINITY : drop_nan(row, raw_logit(head, v, row->dot[v]));
        row->y[v] = row->x[v];
    }
    if (!(batch->flags & FS_EDITS_LAST)) apply_edits(row, batch);
    apply_penalties(row, batch);
    if (batch->flags & FS_EDITS_LAST) apply_edits(row, batch);

    float t = row->values.temperature;
    float inverse = t > 0.0f ? 1.0f / t : 1.0f;
    row->there = row->live = 0;
    for (int64_t v = 0; v < row->size; v++) {
        row->y[v] = drop_nan(row, row->y[v]);
        row->l[v] = row->y[v] * inverse;
        if (row->x[v] == INFINITY || row->l[v] == INFINITY) row->status |= FS_ROW_INF;
        if (row->y[v] > -INFINITY) row->order[row->there++] = order_key(row->y[v], (uint32_t)(row->first + v));
        if (row->l[v] > -INFINITY) row->live++;
    }
    if (row->live == 0) row->status |= FS_ROW_EMPTY;
    fs_ref_sort_keys(row->order, row->there);
}
