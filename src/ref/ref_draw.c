/* ref_draw.c - the cut and the draw. Noise is drawn for every token, one by one. */
#include "ref.h"

#include "../core/key.h"
#include "../core/noise.h"

#include <math.h>

static int64_t local(const ref_row *row, uint64_t key) {
    return (int64_t)order_key_token(key) - row->first;
}

/* l and y of the i-th token of the total order. */
static float l_at(const ref_row *row, int64_t i) {
    return row->l[local(row, row->order[i])];
}

static float y_at(const ref_row *row, int64_t i) {
    return row->y[local(row, row->order[i])];
}

/* ------------------------------------------------------------------------------------------------------- cut ---- */

/* One row's cuts. They look at l, or before temperature at y; every one keeps a prefix of the total order. */
typedef struct cuts {
    const ref_row *row;
    const ref_values *values;
    uint32_t flags;
    const float *seen; /* [V] what they look at */
    int64_t all;       /* tokens there are */
} cuts;

static double seen_at(const cuts *c, int64_t i) {
    return (double)c->seen[local(c->row, c->row->order[i])];
}

/* With this flag a prefix is lengthened to the last token of equal y. */
static int64_t with_ties(const cuts *c, int64_t kept, int64_t limit, uint32_t flag) {
    if (c->flags & flag)
        while (kept < limit && y_at(c->row, kept) == y_at(c->row, kept - 1)) kept++;
    return kept;
}

static int64_t cut_min_p(const cuts *c, int64_t kept) {
    if (c->values->min_p == 0.0f) return kept;
    double limit = seen_at(c, 0) + log((double)c->values->min_p);
    int64_t prefix = 0;
    while (prefix < kept && seen_at(c, prefix) >= limit) prefix++;
    return prefix;
}

static int64_t cut_top_k(const cuts *c, int64_t kept) {
    int64_t k = c->values->top_k;
    return k > 0 && k < kept ? with_ties(c, k, kept, FS_KEEP_TIES_TOP_K) : kept;
}

/* The shortest prefix with mass >= p Z: a token stays iff the mass strictly before it is below p Z. Where the best is
 * +inf all of the mass is there, and one token stays. */
static int64_t cut_top_p(const cuts *c, int64_t kept) {
    double p = (double)c->values->top_p, most = seen_at(c, 0), total = 0.0, before = 0.0;
    if (p >= 1.0) return kept;
    if (isinf(most)) return with_ties(c, 1, kept, FS_KEEP_TIES_TOP_P);
    int64_t counted = c->flags & FS_JOINT_TOP_P ? c->all : kept;
    for (int64_t i = 0; i < counted; i++) total += exp(seen_at(c, i) - most);
    int64_t prefix = 0;
    while (prefix < kept && before < p * total) before += exp(seen_at(c, prefix++) - most);
    if (prefix == 0) prefix = 1;
    return with_ties(c, prefix, kept, FS_KEEP_TIES_TOP_P);
}

void fs_ref_row_cut(ref_row *row, const fs_batch *batch) {
    cuts c = {row, &row->values, batch->flags, row->l, row->live};
    if (batch->flags & FS_CUT_BEFORE_TEMPERATURE) c.seen = row->y, c.all = row->there;
    int64_t kept = c.all;
    if (!(batch->flags & FS_MIN_P_LAST)) kept = cut_min_p(&c, kept);
    kept = cut_top_p(&c, cut_top_k(&c, kept));
    if (batch->flags & FS_MIN_P_LAST) kept = cut_min_p(&c, kept);
    row->kept = kept < row->live ? kept : row->live;
}

/* ------------------------------------------------------------------------------------------------------ draw ---- */

/* What a token competes with: l + g, or y alone in a greedy row. */
static double score_of(const ref_row *row, const fs_batch *batch, fs_noise noise, uint32_t token) {
    float l = row->l[(int64_t)token - row->first];
    if (row->values.temperature == 0.0f) return l;
    if (batch->noise == FS_NOISE_FAST) return (double)(l + noise_gumbel_fast(noise, token));
    return (double)l + noise_gumbel(noise, token);
}

static fs_noise noise_of(const ref_row *row, int32_t sample) {
    return noise_row(row->values.seed, row->position, (uint32_t)sample, row->values.substream);
}

double fs_ref_row_score(const ref_row *row, const fs_batch *batch, int32_t sample, uint32_t token) {
    return score_of(row, batch, noise_of(row, sample), token);
}

/* The best of the tokens of order[0 .. kept) whose ids lie in [from, to): its key, or FS_KEY_NONE. */
static uint64_t best_key(const ref_row *row, const fs_batch *batch, fs_noise noise, int64_t from, int64_t to) {
    uint64_t best = FS_KEY_NONE;
    for (int64_t i = 0; i < row->kept; i++) {
        uint32_t token = order_key_token(row->order[i]);
        if (token < from || token >= to) continue;
        uint64_t key = score_key(score_of(row, batch, noise, token), token);
        if (key > best) best = key;
    }
    return best;
}

static void take(ref_row *row, const fs_batch *batch, fs_noise noise, int32_t i, uint64_t key) {
    uint32_t token = score_key_token(key);
    row->token[i] = token;
    row->score[i] = score_of(row, batch, noise, token);
}

static void draw_samples(ref_row *row, const fs_batch *batch) {
    for (int32_t i = 0; i < batch->samples; i++) {
        fs_noise noise = noise_of(row, i);
        take(row, batch, noise, i, best_key(row, batch, noise, 0, FS_TOKEN_LIMIT));
    }
}

static void draw_without_replacement(ref_row *row, const fs_batch *batch) {
    fs_noise noise = noise_of(row, 0);
    for (int64_t i = 0; i < row->kept; i++) {
        uint32_t token = order_key_token(row->order[i]);
        row->scratch[i] = score_key(score_of(row, batch, noise, token), token);
    }
    fs_ref_sort_keys(row->scratch, row->kept);
    if (row->kept < batch->samples) row->status |= FS_ROW_SHORT;
    for (int32_t i = 0; i < batch->samples && i < row->kept; i++) take(row, batch, noise, i, row->scratch[i]);
}

/* log of the mass of the ids in [from, to); -inf for none. */
static double group_log_mass(const ref_row *row, int64_t from, int64_t to) {
    int64_t v0 = from > row->first ? from - row->first : 0;
    int64_t v1 = to - row->first < row->size ? to - row->first : row->size;
    return v0 < v1 ? fs_ref_log_sum(row->l + v0, v1 - v0) : -HUGE_VAL;
}

/* The paper's B.2: each group offers its own winner, and a second race, over the groups' log-masses, picks one. */
static uint64_t draw_group_parallel(const ref_row *row, const fs_batch *batch, fs_noise noise) {
    uint64_t best_group = FS_KEY_NONE, winner = FS_KEY_NONE;
    for (int64_t from = 0; from < row->first + row->size; from += batch->group_size) {
        uint32_t group = (uint32_t)(from / batch->group_size);
        double log_mass = group_log_mass(row, from, from + batch->group_size);
        if (log_mass == -HUGE_VAL) continue;
        uint64_t key = score_key(log_mass + noise_gumbel_of(noise, group, FS_DOMAIN_GROUP), group);
        if (key < best_group) continue;
        best_group = key;
        winner = best_key(row, batch, noise, from, from + batch->group_size);
    }
    return winner;
}

/* The paper's B.3: groups arrive one after the other, and each replaces the token so far with the probability its mass
 * has in the running sum. */
static uint64_t draw_group_online(const ref_row *row, const fs_batch *batch, fs_noise noise) {
    uint64_t winner = FS_KEY_NONE;
    double running = -HUGE_VAL;
    for (int64_t from = 0; from < row->first + row->size; from += batch->group_size) {
        uint32_t group = (uint32_t)(from / batch->group_size);
        double log_mass = group_log_mass(row, from, from + batch->group_size);
        if (log_mass == -HUGE_VAL) continue;
        double most = log_mass > running ? log_mass : running;
        running = most + log(exp(running - most) + exp(log_mass - most));
        int replaces = noise_unit_of(noise, group, FS_DOMAIN_ONLINE) < exp(log_mass - running);
        if (winner == FS_KEY_NONE || replaces) winner = best_key(row, batch, noise, from, from + batch->group_size);
    }
    return winner;
}

/* Group modes know no cuts, and greedy rows and +inf need no masses: the best token is the best of all groups. */
static void draw_groups(ref_row *row, const fs_batch *batch) {
    fs_noise noise = noise_of(row, 0);
    uint64_t key;
    row->kept = row->live;
    if (row->values.temperature == 0.0f || l_at(row, 0) == INFINITY) {
        key = best_key(row, batch, noise, 0, FS_TOKEN_LIMIT);
    } else if (batch->mode == FS_MODE_GROUP_PARALLEL) {
        key = draw_group_parallel(row, batch, noise);
    } else {
        key = draw_group_online(row, batch, noise);
    }
    take(row, batch, noise, 0, key);
}

static void take_given(ref_row *row, const fs_batch *batch) {
    for (int32_t i = 0; i < batch->samples; i++) row->token[i] = batch->score_token[row->b * batch->samples + i];
}

void fs_ref_row_draw(ref_row *row, const fs_batch *batch) {
    switch (batch->mode) {
    case FS_MODE_SAMPLE:
        draw_samples(row, batch);
        break;
    case FS_MODE_WITHOUT_REPLACEMENT:
        draw_without_replacement(row, batch);
        break;
    case FS_MODE_SCORE:
        take_given(row, batch);
        break;
    default:
        draw_groups(row, batch);
        break;
    }
}
