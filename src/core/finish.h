/* finish.h - from a row's merged summary to its results: the end of every call, on every device.
 *
 * A kernel that knows beforehand what a call cannot need says so in a fs_needs, fs_row_rules or fs_result of its own,
 * made of constants: the compiler leaves the rest out. */
#ifndef FS_CORE_FINISH_H
#define FS_CORE_FINISH_H

#include "cut.h"
#include "needs.h"
#include "race.h"

/* One row on its way to the results. */
typedef struct fs_row {
    const fs_call *call;
    const fs_row_rules *rules;
    fs_summary *summary;
    int64_t b;
    uint32_t status;
    int has_cut, open; /* open: something asked is not proven */
    fs_cut cut;
    double log_z; /* of the kind of logits the result speaks of */
} fs_row;

/* Tokens a row has a place for. */
FS_CORE int64_t row_samples(const fs_row *row) {
    const int32_t drawn = row->call->needs.samples;
    return drawn ? drawn : row->call->batch->samples; /* in score mode they are given */
}

/* Whether the race had a winner; where none was run, whether there was a token. */
FS_CORE int row_has_token(const fs_row *row) {
    const fs_summary *s = row->summary;
    return row->call->needs.samples ? winner_is_token(&s->winner[0])
                                    : s->max_y * row->rules->inverse_temperature > -INFINITY;
}

FS_CORE void result_put_token(const fs_result *result, int64_t at, int64_t token) {
    if (!result->tokens) return;
    if (result->tokens_dtype == FS_I64) ((int64_t *)result->tokens)[at] = token;
    else ((int32_t *)result->tokens)[at] = (int32_t)token;
}

/* The logit of the kind asked, of a token with these x and y. */
FS_CORE float row_logit(const fs_row *row, float x, float y) {
    return row->call->result->logits_mode == FS_LOGITS_RAW ? x : y * row->rules->inverse_temperature;
}

/* Whether that logit of a token with this x or y is above -inf: l may be -inf where y is not. */
FS_CORE int row_key_is_there(const fs_row *row, uint64_t key) {
    return row_logit(row, order_key_logit(key), order_key_logit(key)) > -INFINITY;
}

/* The list that is ordered by that logit. */
FS_CORE fs_list *row_list(const fs_row *row) {
    const fs_call *call = row->call;
    return call->result->logits_mode == FS_LOGITS_RAW && call->needs.edited ? &row->summary->raw_list
                                                                            : &row->summary->list;
}

FS_CORE int row_keeps(const fs_row *row, float y, uint32_t token) {
    return !row->has_cut || (row->cut.survivors > 0 && order_key(y, token) >= row->cut.last);
}

/* Never above 0, in parts that somebody has forged too; NaN stays. */
FS_CORE double row_below_log_z(const fs_row *row, float logit) {
    const double difference = row->log_z < INFINITY ? (double)logit - row->log_z : NAN;
    return difference > 0.0 ? 0.0 : difference;
}

FS_CORE double row_logprob(const fs_row *row, float logit, float y, uint32_t token) {
    if (row->log_z < INFINITY && row->call->result->logits_mode == FS_LOGITS_CUT && !row_keeps(row, y, token))
        return -INFINITY;
    return row_below_log_z(row, logit);
}

/* `listed` tokens are the first ones of the row's list. */
FS_CORE void row_put_survivors(const fs_row *row, int32_t count, int32_t listed) {
    const fs_result *r = row->call->result;
    if (r->survivor_count) r->survivor_count[row->b] = count;
    int32_t *token = r->survivor_token ? r->survivor_token + row->b * r->survivor_limit : NULL;
    for (int32_t i = 0; token && i < r->survivor_limit; i++)
        token[i] = i < listed ? (int32_t)order_key_token(row->summary->list.key[list_at(&row->summary->list, i)]) : -1;
}

/* Every slot of a row without a token. */
FS_CORE void row_write_absent(const fs_row *row) {
    const fs_result *r = row->call->result;
    const fs_batch *batch = row->call->batch;
    const int64_t b = row->b, n = row_samples(row);
    for (int64_t i = b * n; i < (b + 1) * n; i++) {
        result_put_token(r, i, batch->fallback_token);
        if (r->noisy_logit) r->noisy_logit[i] = NAN;
        if (r->logit) r->logit[i] = NAN;
        if (r->logprob) r->logprob[i] = NAN;
        if (r->rank) r->rank[i] = -1;
    }
    if (r->max_logit) r->max_logit[b] = NAN;
    if (r->log_z) r->log_z[b] = NAN;
    if (result_wants_entropy(r)) r->entropy[b] = NAN;
    if (result_wants_survivors(r)) row_put_survivors(row, 0, 0);
    for (int64_t i = b * r->top_count; i < (b + 1) * r->top_count; i++) {
        if (r->top_token) r->top_token[i] = -1;
        if (r->top_logit) r->top_logit[i] = NAN;
        if (r->top_logprob) r->top_logprob[i] = NAN;
    }
    if (row->call->needs.watched && batch->watch_offset)
        for (int64_t i = batch->watch_offset[b]; i < batch->watch_offset[b + 1]; i++) {
            if (r->watch_logit) r->watch_logit[i] = NAN;
            if (r->watch_logprob) r->watch_logprob[i] = NAN;
        }
    if (r->status) r->status[b] = row->status;
}

FS_CORE double row_slack(const fs_row *row) {
    return row->call->needs.rough ? mass_slack(row->summary->max_y * row->rules->inverse_temperature) : 0.0;
}

/* The mass that cuts look at. */
FS_CORE const fs_mass *row_cut_mass(const fs_row *row) {
    return row->call->needs.cut_mass ? &row->summary->cut_mass : &row->summary->mass;
}

/* The entry of a row's list at this place as a winner of its sample; or none, if it is surely below the last one so
 * far. */
FS_CORE fs_winner row_race_entry(const fs_row *row, fs_noise noise, int32_t at, const fs_winner *last) {
    const fs_list *list = &row->summary->list;
    const uint32_t token = order_key_token(list->key[at]);
    const float y = order_key_logit(list->key[at]);
    const double floor = last->key ? score_key_value(last->key) : -INFINITY;
    const double score = race_score_from(row->rules, row->call->batch->noise, noise, token, y, floor);
    const fs_winner entry = {score > -INFINITY ? score_key(score, token) : FS_KEY_NONE, list->raw ? list->raw[at] : y,
                             y};
    return entry;
}

FS_CORE fs_noise row_noise(const fs_row *row, uint32_t sample) {
    return noise_row(row->rules->seed, row->rules->position, sample, row->rules->substream);
}

/* The best of a row's list above this key. */
FS_CORE fs_winner row_race_above(const fs_row *row, uint32_t sample, uint64_t key) {
    const fs_list *list = &row->summary->list;
    const fs_noise noise = row_noise(row, sample);
    fs_winner winner = {FS_KEY_NONE, 0.0f, 0.0f};
    for (int32_t i = 0; i < list->count; i++)
        if (list->key[i] > key) winners_insert(&winner, 1, row_race_entry(row, noise, i, &winner));
    return winner;
}

/* A winner that the row's only cut leaves out is replaced by the best of those above it, which is all that the cut can
 * still leave, until one is in it: hardly ever takes more than one, and nothing is sorted. 0 if there is doubt, or ties
 * or an order are to be kept: then nothing has changed that a cut does not find again. */
FS_CORE int row_draw_inside(const fs_row *row, uint32_t sample) {
    const fs_summary *s = row->summary;
    const int min_p = rules_min_p_alone(row->rules);
    const int in_turn = row->call->needs.ordered || (!min_p && row->call->batch->flags & FS_KEEP_TIES_TOP_P);
    fs_winner *winner = &s->winner[sample];
    while (winner->key) {
        const uint64_t key = order_key(winner->y, score_key_token(winner->key));
        const int side = min_p ? cut_test_min_p(&s->list, row->rules, key)
                               : cut_test(&s->list, row->rules, &s->mass, row_slack(row), key);
        if (side >= 0 || in_turn) return side > 0;
        *winner = row_race_above(row, sample, key);
    }
    return 0;
}

/* Of a nucleus, or of what min-p leaves, that nobody asked for but for its tokens; down a list in order is shorter. */
FS_CORE int row_draw_all_inside(const fs_row *row) {
    const fs_needs *needs = &row->call->needs;
    const int nucleus = rules_top_p_alone(row->rules) && needs->mass_to_cut;
    const int min_p = rules_min_p_alone(row->rules) && row->call->result->logits_mode != FS_LOGITS_CUT &&
                      !result_wants_survivors(row->call->result);
    if (!(nucleus || min_p) || needs->rank_depth || row->summary->list.sorted) return 0;
    for (int32_t i = 0; i < needs->samples; i++)
        if (!row_draw_inside(row, (uint32_t)i)) return 0;
    return needs->samples > 0;
}

/* Finds what the cuts leave. The token alone may not need the proof: see row_draw(). */
FS_CORE void row_cut(fs_row *row) {
    const fs_result *r = row->call->result;
    fs_list *list = &row->summary->list;
    if (row->call->needs.keep) list_heapify(list);
    if (row->call->needs.keep_raw) list_heapify(&row->summary->raw_list);
    row->has_cut = rules_cut(row->rules);
    if (!row->has_cut) return;
    if (list->count) row->cut = cut_list(list, row->rules, row->call->batch->flags, row_cut_mass(row), row_slack(row));
    int looks_at_cut = r->log_z || r->logprob || r->rank || r->top_token || r->top_logit || r->top_logprob ||
                       r->watch_logprob || result_wants_entropy(r);
    const int known = row->cut.proven && row->cut.survivors == row->cut.possible;
    if (!known && r->logits_mode == FS_LOGITS_CUT && looks_at_cut) row->open = 1;
    if (!known && result_wants_survivors(r)) row->open = 1;
}

/* Races the survivors again, one sample or (without replacement) all: only they are left, so noise is drawn for them
 * alone. Those in doubt race too: if none of them wins it does not matter whether they survive. */
FS_CORE void row_race_survivors(fs_row *row, uint32_t sample, fs_winner *winner, int32_t n) {
    const fs_noise noise = row_noise(row, sample);
    for (int32_t i = 0; i < n; i++) winner[i].key = FS_KEY_NONE;
    for (int32_t i = 0; i < row->cut.possible; i++)
        winners_insert(winner, n, row_race_entry(row, noise, list_at(&row->summary->list, i), &winner[n - 1]));
    for (int32_t i = 0; i < n; i++)
        if (winner[i].key && !row_keeps(row, winner[i].y, score_key_token(winner[i].key))) row->open = 1;
}

/* A race over the whole vocabulary was run in the pass. Its winner, if it survives the cut, is the winner of the
 * survivors: so only rows whose winner was cut off race again, and only they need a proven cut. */
FS_CORE void row_draw(fs_row *row, fs_winner *scratch) {
    fs_winner *winner = row->summary->winner;
    const int32_t n = row->call->needs.samples;
    if (!row->has_cut || n == 0) return;
    if (row->call->needs.ordered) {
        int32_t kept = 0;
        for (int32_t i = 0; i < n; i++)
            if (winner[i].key && row_keeps(row, winner[i].y, score_key_token(winner[i].key)))
                scratch[kept++] = winner[i];
        if (kept < n && winner[n - 1].key) {
            if (!row->cut.proven) row->open = 1;
            else row_race_survivors(row, 0, scratch, n), kept = n;
        }
        for (int32_t i = 0; i < n; i++) {
            winner[i] = scratch[i];
            if (i >= kept) winner[i].key = FS_KEY_NONE;
        }
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        if (row_keeps(row, winner[i].y, score_key_token(winner[i].key))) continue;
        if (!row->cut.proven) row->open = 1;
        else row_race_survivors(row, (uint32_t)i, &winner[i], 1);
    }
}

/* Whether a key has a part in a token's rank: those of larger logits, and where ties count the other ones of an equal
 * one. */
FS_CORE int row_key_is_ahead(const fs_row *row, uint64_t key, uint32_t ordered, uint32_t token) {
    const uint32_t logit = (uint32_t)(key >> 32);
    if (logit != ordered) return logit > ordered;
    return row->call->batch->flags & FS_RANK_OF_TIES && order_key_token(key) != token;
}

/* Exact up to the depth every list proves, or (on request) if nobody with a part in it was left out of the list. */
FS_CORE int32_t row_rank(fs_row *row, float x, float y, uint32_t token) {
    const int32_t kind = row->call->result->logits_mode;
    const uint32_t flags = row->call->batch->flags;
    fs_list *list = row_list(row);
    const uint32_t ordered = ordered_float(kind == FS_LOGITS_RAW ? x : y), bound = (uint32_t)(list->bound >> 32);
    int32_t ahead = 0;
    if (kind == FS_LOGITS_CUT && row->has_cut) {
        for (int32_t i = 0; i < row->cut.survivors; i++)
            ahead += row_key_is_ahead(row, list->key[list_at(list, i)], ordered, token);
        return ahead + 1;
    }
    for (int32_t i = 0; i < list->count; i++)
        ahead += row_key_is_ahead(row, list->key[i], ordered, token) && row_key_is_there(row, list->key[i]);
    if (flags & FS_EXACT_RANK) {
        if (bound > ordered || (flags & FS_RANK_OF_TIES && bound == ordered)) row->open = 1;
    } else if (ahead >= row->call->needs.rank_depth) {
        /* The list may know more, but how much depends on what other rows asked of it. */
        ahead = row->call->needs.rank_depth;
        row->status |= FS_ROW_RANK_BOUND;
    }
    return ahead + 1;
}

FS_CORE void row_write_sample(fs_row *row, int64_t i, int64_t token, float x, float y, double score) {
    const fs_result *r = row->call->result;
    const int64_t at = row->b * row_samples(row) + i;
    float logit = row_logit(row, x, y);
    result_put_token(r, at, token);
    if (r->noisy_logit) r->noisy_logit[at] = (float)score;
    if (r->logit) r->logit[at] = logit;
    if (r->logprob) r->logprob[at] = (float)row_logprob(row, logit, y, (uint32_t)token);
    if (r->rank) r->rank[at] = y != y ? -1 : row_rank(row, x, y, (uint32_t)token);
}

FS_CORE void row_write_no_sample(fs_row *row, int64_t i) {
    const fs_result *r = row->call->result;
    const int64_t at = row->b * row_samples(row) + i;
    result_put_token(r, at, row->call->batch->fallback_token);
    if (r->noisy_logit) r->noisy_logit[at] = NAN;
    if (r->logit) r->logit[at] = NAN;
    if (r->logprob) r->logprob[at] = NAN;
    if (r->rank) r->rank[at] = -1;
    row->status |= FS_ROW_SHORT;
}

FS_CORE void row_write_samples(fs_row *row) {
    const fs_summary *s = row->summary;
    if (!row->call->needs.samples) {
        for (int64_t i = 0; i < row_samples(row); i++)
            row_write_sample(row, i, watch_token(row->call->batch, row->b, i), s->watch[i].x, s->watch[i].y, NAN);
        return;
    }
    for (int64_t i = 0; i < row->call->needs.samples; i++) {
        const fs_winner *w = &s->winner[i];
        if (!winner_is_token(w)) row_write_no_sample(row, i);
        else row_write_sample(row, i, score_key_token(w->key), w->x, w->y, score_key_value(w->key));
    }
}

/* The i-th of the best tokens, by its order key; none where its logit is -inf. */
FS_CORE void row_write_best(const fs_row *row, int32_t i, uint64_t key) {
    const fs_result *r = row->call->result;
    const int64_t at = row->b * r->top_count + i;
    const int there = key && row_key_is_there(row, key);
    const float logit = there ? row_logit(row, order_key_logit(key), order_key_logit(key)) : NAN;
    if (r->top_token) r->top_token[at] = there ? (int32_t)order_key_token(key) : -1;
    if (r->top_logit) r->top_logit[at] = logit;
    if (r->top_logprob) r->top_logprob[at] = there ? (float)row_below_log_z(row, logit) : NAN;
}

FS_CORE void row_write_top(fs_row *row) {
    const fs_result *r = row->call->result;
    if (!result_wants_top(r)) return;
    fs_list *list = row_list(row);
    int32_t there = list->count;
    if (r->logits_mode == FS_LOGITS_CUT && row->has_cut && row->cut.survivors < there) there = row->cut.survivors;
    for (int32_t i = 0; i < r->top_count; i++) {
        const uint64_t key = i < there ? list->key[list_at(list, i)] : FS_KEY_NONE;
        if (i < there && key <= list->bound) row->open = 1;
        row_write_best(row, i, key);
    }
    if (there < r->top_count && there == list->count && list->bound) row->open = 1;
}

FS_CORE void row_write_watch(const fs_row *row) {
    const fs_result *r = row->call->result;
    const fs_batch *batch = row->call->batch;
    if (!row->call->needs.watched || !batch->watch_offset) return;
    const int64_t given = watch_given(batch), count = watch_count(batch, row->b);
    for (int64_t i = given; i < count; i++) {
        const fs_watch *w = &row->summary->watch[i];
        int64_t at = batch->watch_offset[row->b] + i - given;
        float logit = w->y == w->y ? row_logit(row, w->x, w->y) : NAN;
        uint32_t token = (uint32_t)watch_token(batch, row->b, i);
        if (r->watch_logit) r->watch_logit[at] = logit;
        if (r->watch_logprob) r->watch_logprob[at] = (float)row_logprob(row, logit, w->y, token);
    }
}

/* Not below the largest logit, where that is known: a sum is not below its largest term, whatever the rounding of its
 * logarithm. */
FS_CORE double row_log_z(fs_row *row) {
    const fs_summary *s = row->summary;
    const fs_result *r = row->call->result;
    const int raw = r->logits_mode == FS_LOGITS_RAW;
    const fs_mass mass = raw ? s->raw_mass : s->mass; /* no address: a GPU keeps the summary in registers */
    if (!result_wants_log_z(r)) return NAN;
    const float largest = row_logit(row, s->max_x, s->max_y);
    if (!(largest < INFINITY)) return INFINITY;
    const double least = row->call->needs.bounded ? (double)largest : -INFINITY;
    if (r->logits_mode == FS_LOGITS_CUT && row->has_cut) return row->cut.log_z > least ? row->cut.log_z : least;
    const double log_z = mass_log(&mass);
    if (!mass_is_far(&mass)) return log_z > least ? log_z : least;
    row->status |= FS_ROW_FAR;
    return NAN;
}

/* Of the logits that the result speaks of. */
FS_CORE double row_entropy(fs_row *row) {
    const fs_summary *s = row->summary;
    if (!(row_logit(row, s->max_x, s->max_y) < INFINITY)) return NAN;
    if (row->call->result->logits_mode == FS_LOGITS_CUT && row->has_cut)
        return cut_entropy(&row->summary->list, row->rules, row->cut.survivors);
    if (!mass_is_far(&s->entropy->mass)) return entropy_of(s->entropy);
    row->status |= FS_ROW_FAR;
    return NAN;
}

/* Writes every result of row b, or returns 0 if the row's lists do not prove what was asked: it needs a second pass
 * with longer lists, and what is in its results until then means nothing. With `final` it always writes, and such a row
 * is FS_ROW_INCOMPLETE. The summary's lists are reordered. `extra` are status bits to add. scratch [samples]. */
FS_CORE int finish_row(const fs_call *call, int64_t b, const fs_row_rules *rules, fs_summary *summary, uint32_t extra,
                       int final, fs_winner *scratch) {
    const fs_result *r = call->result;
    fs_row row;
    memset(&row, 0, sizeof row);
    row.call = call;
    row.rules = rules;
    row.summary = summary;
    row.b = b;
    row.status = row.rules->status | extra;
    if (!rules_drop_row(row.rules)) row.status |= summary->flags;
    if (!(row.status & FS_ROW_NO_TOKEN) && !row_has_token(&row)) row.status |= FS_ROW_EMPTY;
    if (row.status & FS_ROW_NO_TOKEN) {
        row_write_absent(&row);
        return 1;
    }
    if (!row_draw_all_inside(&row)) {
        row_cut(&row);
        row_draw(&row, scratch);
    }
    row.log_z = row_log_z(&row);
    if (!row.open) {
        row_write_samples(&row);
        row_write_top(&row);
        row_write_watch(&row);
        if (r->max_logit) r->max_logit[b] = row_logit(&row, summary->max_x, summary->max_y);
        if (r->log_z) r->log_z[b] = (float)row.log_z;
        if (result_wants_entropy(r)) r->entropy[b] = (float)row_entropy(&row);
        if (result_wants_survivors(r))
            row_put_survivors(&row, row.has_cut ? row.cut.survivors : -1, row.has_cut ? row.cut.survivors : 0);
    }
    if (row.open) {
        if (!final) return 0;
        row.status |= FS_ROW_INCOMPLETE;
        row_write_absent(&row);
        return 1;
    }
    if (r->status) r->status[b] = row.status;
    return 1;
}

/* The same, once for all host code, with rules of call->rules. */
int fs_finish_row(const fs_call *call, int64_t b, fs_summary *summary, uint32_t extra, int final, fs_winner *scratch);

#endif
