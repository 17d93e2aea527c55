/* ref_result.c - what the caller gets to see of a row: logits of the kind asked for, and what follows from them. */
#include "ref.h"

#include "../core/key.h"

#include <math.h>

/* One kind of logits of a row. */
typedef struct view {
    const ref_row *row;
    const float *logit;   /* [V] what is reported */
    const float *order;   /* [V] what ranks: l can tie where y does not */
    const uint64_t *best; /* [count] order keys, best first */
    int64_t count;
    double log_z;
    int cut; /* only the tokens of `best` count */
} view;

static double log_sum_of(const ref_row *row, const uint64_t *keys, int64_t count) {
    double most = row->l[(int64_t)order_key_token(keys[0]) - row->first], sum = 0.0;
    if (isinf(most)) return most;
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)row->l[(int64_t)order_key_token(keys[i]) - row->first] - most);
    return most + log(sum);
}

/* -sum p log p of softmax over the tokens that count. */
static double entropy_of(const view *w) {
    const float *l = w->logit;
    const double most = (double)l[(int64_t)order_key_token(w->best[0]) - w->row->first];
    double sum = 0.0, below = 0.0;
    if (isinf(most)) return NAN;
    for (int64_t i = 0; i < w->count; i++) {
        const double down = most - (double)l[(int64_t)order_key_token(w->best[i]) - w->row->first];
        sum += exp(-down);
        below += exp(-down) * down;
    }
    return log(sum) + below / sum;
}

static view view_of(ref_row *row, int32_t kind) {
    view w = {row, row->l, row->y, row->order, row->live, 0.0, kind == FS_LOGITS_CUT};
    if (kind == FS_LOGITS_RAW) {
        w.logit = w.order = row->x;
        w.count = 0;
        for (int64_t v = 0; v < row->size; v++)
            if (row->x[v] > -INFINITY) row->scratch[w.count++] = order_key(row->x[v], (uint32_t)(row->first + v));
        fs_ref_sort_keys(row->scratch, w.count);
        w.best = row->scratch;
        w.log_z = fs_ref_log_sum(row->x, row->size);
    } else {
        if (w.cut) w.count = row->kept;
        w.log_z = log_sum_of(row, w.best, w.count);
    }
    return w;
}

/* Tokens that are not in this head (another shard's, or none at all) have no logit: NaN, and rank -1. */
static int in_head(const view *w, int64_t token) {
    int64_t v = token - w->row->first;
    return v >= 0 && v < w->row->size && token < w->row->vocab;
}

static float logit_of(const view *w, int64_t token) {
    return in_head(w, token) ? w->logit[token - w->row->first] : NAN;
}

static float logprob_of(const view *w, int64_t token) {
    if (!in_head(w, token) || w->log_z == HUGE_VAL) return NAN;
    if (w->cut && order_key(w->order[token - w->row->first], (uint32_t)token) < w->best[w->count - 1]) return -INFINITY;
    return (float)((double)logit_of(w, token) - w->log_z);
}

static int32_t rank_of(const view *w, int64_t token, int ties) {
    if (!in_head(w, token)) return -1;
    float y = w->order[token - w->row->first];
    int32_t ahead = 0;
    for (int64_t i = 0; i < w->count; i++) {
        float other = order_key_logit(w->best[i]);
        int itself = order_key_token(w->best[i]) == (uint32_t)token;
        ahead += other > y || (ties && other == y && !itself);
    }
    return 1 + ahead;
}

static void put_token(const fs_result *result, int64_t i, int64_t token) {
    if (!result->tokens) return;
    if (result->tokens_dtype == FS_I64) ((int64_t *)result->tokens)[i] = token;
    else ((int32_t *)result->tokens)[i] = (int32_t)token;
}

static void put(float *to, int64_t i, float value) {
    if (to) to[i] = value;
}

static void put_rank(int32_t *to, int64_t i, int32_t value) {
    if (to) to[i] = value;
}

/* `w` is NULL where the row has no token. Without replacement a sample beyond the support has none either. */
static void put_samples(const ref_row *row, const fs_batch *batch, const fs_result *result, const view *w) {
    for (int32_t i = 0; i < batch->samples; i++) {
        int64_t at = row->b * batch->samples + i;
        int missing = batch->mode == FS_MODE_WITHOUT_REPLACEMENT && i >= row->kept;
        if (!w || missing) {
            put_token(result, at, batch->fallback_token);
            put(result->noisy_logit, at, NAN);
            put(result->logit, at, NAN);
            put(result->logprob, at, NAN);
            put_rank(result->rank, at, -1);
            continue;
        }
        int64_t token = row->token[i];
        put_token(result, at, token);
        put(result->noisy_logit, at, batch->mode == FS_MODE_SCORE ? NAN : (float)row->score[i]);
        put(result->logit, at, logit_of(w, token));
        put(result->logprob, at, logprob_of(w, token));
        if (result->rank) result->rank[at] = rank_of(w, token, (batch->flags & FS_RANK_OF_TIES) != 0);
    }
}

static void put_top(const ref_row *row, const fs_result *result, const view *w) {
    for (int32_t i = 0; i < result->top_count; i++) {
        int64_t at = row->b * result->top_count + i;
        int there = w && i < w->count;
        int64_t token = there ? (int64_t)order_key_token(w->best[i]) : -1;
        put_rank(result->top_token, at, (int32_t)token);
        put(result->top_logit, at, there ? logit_of(w, token) : NAN);
        put(result->top_logprob, at, there ? logprob_of(w, token) : NAN);
    }
}

static void put_watch(const ref_row *row, const fs_batch *batch, const fs_result *result, const view *w) {
    if (!batch->watch_offset) return;
    for (int64_t at = batch->watch_offset[row->b]; at < batch->watch_offset[row->b + 1]; at++) {
        int64_t token = batch->watch_token[at];
        put(result->watch_logit, at, w ? logit_of(w, token) : NAN);
        put(result->watch_logprob, at, w ? logprob_of(w, token) : NAN);
    }
}

/* The tokens of order[0 .. kept), if there is a cut. */
static void put_survivors(const ref_row *row, const fs_result *result, const view *w) {
    const int cuts = (row->uses & (FS_RULE_TOP_K | FS_RULE_TOP_P | FS_RULE_MIN_P)) != 0;
    if (result->survivor_count) result->survivor_count[row->b] = !w ? 0 : cuts ? (int32_t)row->kept : -1;
    for (int64_t i = 0; result->survivor_token && i < result->survivor_limit; i++)
        result->survivor_token[row->b * result->survivor_limit + i] =
            w && cuts && i < row->kept ? (int32_t)order_key_token(row->order[i]) : -1;
}

void fs_ref_row_result(ref_row *row, const fs_batch *batch, const fs_result *result) {
    view kind, *w = NULL;
    if (!(row->status & FS_ROW_NO_TOKEN)) {
        kind = view_of(row, result->logits_mode);
        w = &kind;
    }
    if (result->status) result->status[row->b] = row->status;
    put(result->max_logit, row->b, w ? logit_of(w, order_key_token(w->best[0])) : NAN);
    put(result->log_z, row->b, w ? (float)w->log_z : NAN);
    put(result->entropy, row->b, w && result->entropy ? (float)entropy_of(w) : NAN);
    put_survivors(row, result, w);
    put_samples(row, batch, result, w);
    put_top(row, result, w);
    put_watch(row, batch, result, w);
}
