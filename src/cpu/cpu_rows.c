#include "cpu_rows.h"
#include "cpu_lists.h"

#include "core/halves.h"
#include "core/race.h"

#include <float.h>

/* ------------------------------------------------------------------------------------------------- transform ---- */

/* Dot product -> raw logit: bias, rounding, scales, soft-cap. x is the block's first logit. */
static void transform_head(const fs_head *head, fs_block block, float *x) {
    const int64_t n = block.n;
    if (head->bias) {
        const float *bias = head->bias + (block.first - head->first_token);
        for (int64_t i = 0; i < n; i++) x[i] += bias[i];
    }
    if (head->round == FS_BF16)
        for (int64_t i = 0; i < n; i++) x[i] = round_bf16(x[i]);
    if (head->round == FS_F16)
        for (int64_t i = 0; i < n; i++) x[i] = round_f16(x[i]);
    if (head->scale != 1.0f)
        for (int64_t i = 0; i < n; i++) x[i] *= head->scale;
    if (head->softcap > 0.0f)
        for (int64_t i = 0; i < n; i++) x[i] = head->softcap * tanhf(x[i] / head->softcap);
    if (head->post_scale != 1.0f)
        for (int64_t i = 0; i < n; i++) x[i] *= head->post_scale;
}

static int bit_of(const uint32_t *words, int64_t id) {
    return (int)(words[id >> 5] >> (id & 31) & 1);
}

/* The bits of row `index` of a packed or strided bitmask; NULL if there is no mask. */
static const uint32_t *mask_row(const uint32_t *mask, int64_t stride, int64_t index, int64_t vocab) {
    if (!mask || index < 0) return NULL;
    int64_t bytes = stride ? stride : (vocab + 31) / 32 * 4;
    return (const uint32_t *)(const void *)((const char *)mask + index * bytes);
}

/* The bits of row b's allowed tokens, or NULL. */
static const uint32_t *allowed_of(const fs_call *call, int64_t b) {
    const fs_batch *batch = call->batch;
    int64_t index = batch->allow_index ? batch->allow_index[b] : b;
    return mask_row(batch->allow, batch->allow_stride, index, call->vocab);
}

void fs_rows_ask(const fs_call *call, const fs_lane *lane, fs_block block) {
    const uint32_t *allow = allowed_of(call, lane->b);
    for (int64_t id = block.first; allow && id < block.first + block.n; id += 512) __builtin_prefetch(allow + id / 32);
}

/* First entry of an ascending (token << 32 | entry) array at or after this token. */
static int64_t sparse_from(const uint64_t *sorted, int64_t n, int64_t token) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (sorted[middle] < (uint64_t)token << 32) low = middle + 1;
        else high = middle;
    }
    return low;
}

#define FS_SPARSE_EACH(i, sorted, length, block)                                                                       \
    for (int64_t i = sparse_from(sorted, length, (block).first);                                                       \
         i < (length) && (int64_t)((sorted)[i] >> 32) < (block).first + (block).n; i++)

static void transform_penalties(const fs_call *call, const fs_lane *lane, const fs_rules *rules, int32_t *counts,
                                fs_block block, float *y) {
    const fs_batch *batch = call->batch;
    const uint32_t *seen = mask_row(batch->seen, batch->seen_stride, rules->slot, call->vocab);
    if (batch->counts) {
        int64_t bytes = batch->counts_stride ? batch->counts_stride : call->vocab * 4;
        const char *row = (const char *)batch->counts + rules->slot * bytes;
        memcpy(counts, row + block.first * 4, (size_t)block.n * 4);
    } else {
        memset(counts, 0, (size_t)block.n * sizeof *counts);
        FS_SPARSE_EACH(i, lane->count, lane->counts, block)
        counts[(int64_t)(lane->count[i] >> 32) - block.first] += batch->count_value[(uint32_t)lane->count[i]];
    }
    for (int64_t i = 0; i < block.n; i++) {
        int was_seen = seen && bit_of(seen, block.first + i);
        if (was_seen || counts[i]) y[i] = rules_penalised(rules, y[i], was_seen, counts[i]);
    }
}

static void transform_edits(const fs_call *call, const fs_lane *lane, fs_block block, float *y) {
    FS_SPARSE_EACH(i, lane->edit, lane->edits, block) {
        float bias = call->batch->edit_bias[(uint32_t)lane->edit[i]];
        float *at = &y[(int64_t)(lane->edit[i] >> 32) - block.first];
        /* -inf is final: a ban of a +inf logit is a ban, not a NaN. */
        if (*at > -INFINITY) *at = bias == -INFINITY ? bias : *at + bias;
    }
}

/* ----------------------------------------------------------------------------------------------------- noise ---- */

/* One draw's race through one block. */
typedef struct fs_race {
    const fs_rules *rules;
    fs_noise noise;
    fs_winner *winner; /* [n], descending */
    int32_t n;         /* 1, or all samples without replacement */
    double floor;      /* no token with l at or below this can win without a mark */
} fs_race;

/* No token with l at or below this beats a score without a mark. */
static double floor_below(const fs_rules *rules, uint64_t key) {
    if (key == FS_KEY_NONE) return -INFINITY;
    /* Slack covers the last bits of log on any library and of this subtraction; a lower floor is slower, never wrong. Below +inf, so
     * that another +inf with a lower id still gets in. */
    double score = fmin(score_key_value(key), DBL_MAX);
    double reach = rules->greedy ? 0.0 : FS_NOISE_G + 1e-6;
    return score - reach - fabs(score) * 0x1p-50;
}

static void race_set_floor(fs_race *race) {
    race->floor = floor_below(race->rules, race->winner[race->n - 1].key);
}

static void race_offer(fs_race *race, uint32_t token, float x, float y, double noise) {
    fs_winner offer = {score_key((double)(y * race->rules->inverse_temperature) + noise, token), x, y};
    if (offer.key <= race->winner[race->n - 1].key) return;
    winners_insert(race->winner, race->n, offer);
    race_set_floor(race);
}

/* At least noise_ceiling, without a logarithm: w is at least the power of two below it. */
static double ceiling_of_bits(uint32_t prefix) {
    if (prefix == 0) return INFINITY;
    return (double)(__builtin_clz(prefix) - 16 + 1 + 8) * 0.6931471805599454 + 1e-5;
}

/* The tokens of one noise block whose mark lets them win. x, y start at id `base`; span places. */
static void race_marked(fs_race *race, const float *x, const float *y, int64_t base, int64_t span, fs_walk walk) {
    const float inverse = race->rules->inverse_temperature;
    while (noise_next(&walk)) {
        int64_t i = (int64_t)walk.token - base;
        if (i < 0 || i >= span || !(y[i] > -INFINITY)) continue;
        /* The floor is G below the score to beat. Nearly every mark is dismissed by the first test. */
        const double over = (double)(y[i] * inverse) - FS_NOISE_G;
        if (over + ceiling_of_bits(walk.prefix) <= race->floor) continue;
        if (over + (double)noise_ceiling(walk.prefix) <= race->floor) continue;
        race_offer(race, walk.token, x[i], y[i], noise_gumbel_given(race->noise, walk.token, (int32_t)walk.prefix));
    }
}

static void race_marks(fs_race *race, const fs_scan *scan, const float *x, const float *y, int64_t base, int64_t span) {
    const int64_t end = (base + span + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK;
    fs_screen screen = {race->noise, y, base, span, race->rules->inverse_temperature, 0.0};
    fs_marks marks;
    for (int64_t first = base / FS_NOISE_BLOCK; first < end; first += FS_MARK_BATCH) {
        screen.floor = race->floor;
        uint32_t some = scan->marks(&screen, (uint32_t)first, &marks);
        if (end - first < FS_MARK_BATCH) some &= (1u << (end - first)) - 1;
        for (; some; some &= some - 1) {
            const int i = __builtin_ctz(some);
            fs_words words = {{marks.w[0][i], marks.w[1][i], marks.w[2][i], marks.w[3][i]}};
            race_marked(race, x, y, base, span, noise_walk_from(race->noise, (uint32_t)first + (uint32_t)i, words));
        }
    }
}

/* Whether race_marks has seen to this token. A walk of its own, because hardly any token gets here. */
static int is_marked(fs_noise noise, uint32_t token) {
    fs_walk walk = noise_walk(noise, token / FS_NOISE_BLOCK);
    while (noise_next(&walk))
        if (walk.token == token) return 1;
    return 0;
}

/* The sparse race: marked tokens, then the others whose logit alone is in reach of the best score so far. x, y, granule start at id
 * `base`, a multiple of FS_GRANULE; span places. Greedy rows race without noise. */
static void race_exact(fs_race *race, const fs_scan *scan, const float *x, const float *y, const float *granule,
                       float most, int64_t base, int64_t span) {
    const float inverse = race->rules->inverse_temperature;
    const int greedy = race->rules->greedy;
    race_set_floor(race);
    if (race->n == 1 && (race->winner[0].key == FS_KEY_NONE || most == INFINITY)) {
        /* A first real score, so that the race below is sparse from its start; and the lowest id of +inf. */
        int64_t i = 0;
        while (y[i] != most) i++;
        uint32_t token = (uint32_t)(base + i);
        race_offer(race, token, x[i], y[i], greedy ? 0.0 : noise_gumbel(race->noise, token));
    }
    if (!greedy) race_marks(race, scan, x, y, base, span);
    if (!((double)(most * inverse) > race->floor)) return;
    const int64_t granules = span / FS_GRANULE;
    for (int64_t g = scan->next_above(granule, 0, granules, inverse, race->floor); g < granules;
         g = scan->next_above(granule, g + 1, granules, inverse, race->floor)) {
        for (int64_t i = g * FS_GRANULE; i < (g + 1) * FS_GRANULE; i++) {
            if (!((double)(y[i] * inverse) > race->floor)) continue;
            uint32_t token = (uint32_t)(base + i);
            if (greedy) race_offer(race, token, x[i], y[i], 0.0);
            else if (!is_marked(race->noise, token))
                race_offer(race, token, x[i], y[i], noise_gumbel_given(race->noise, token, -1));
        }
    }
}

/* Fast-math noise has no marks: every token is evaluated. */
static void race_fast(fs_race *race, const float *x, const float *y, int64_t base, int64_t span) {
    for (int64_t i = 0; i < span; i++) {
        if (!(y[i] > -INFINITY)) continue;
        uint32_t token = (uint32_t)(base + i);
        fs_winner offer = {score_key(race_score(race->rules, FS_NOISE_FAST, race->noise, token, y[i]), token), x[i],
                           y[i]};
        winners_insert(race->winner, race->n, offer);
    }
}

/* ---------------------------------------------------------------------------------------------------- reduce ---- */

static void reduce_mass(const fs_call *call, const fs_scan *scan, const fs_rules *rules, const float *y,
                        const float *granule, float most, int64_t span, fs_mass *mass) {
    const float scale = rules->inverse_temperature;
    if (!call->ask.mass) return;
    if (call->ask.rough && fabsf(most * scale) <= FS_ROUGH_MOST) scan->add_rough(y, most, span, scale, mass);
    else scan->add_mass(y, granule, span, scale, mass);
}

/* The share of the mass so far that a list must have for its nucleus, as far as it can be told after this block. A token is dropped if all
 * that are no larger have, in proportion of the ids to come, less than a share of 1 - nucleus of the mass: with a share m of the
 * ids so far above it and k times as many ids in all, (1 - m) k <= (1 - nucleus) (m + (1 - m) k). This is a guess, and the cut is
 * proven or not in the end all the same. */
static double nucleus_share(const fs_call *call, const fs_lane *lane, fs_block block) {
    const double seen = (double)(block.first + block.n - call->head->first_token);
    const double k = sqrt((double)call->head->rows / seen), odds = k * lane->nucleus / (1.0 - lane->nucleus);
    return odds / (odds + 1.0);
}

/* An empty list begins with a bound: for a nucleus by the block's masses, else by how many it keeps. */
static void start_list(const fs_scan *scan, const fs_lane *lane, const fs_rules *rules, double share, const float *y,
                       const float *granule, float most, int64_t span, fs_list *list) {
    const float scale = rules->inverse_temperature;
    const int64_t n = span < FS_WEIGHED_MOST ? span : FS_WEIGHED_MOST;
    if (!(lane->nucleus > 0.0)) fs_lists_start(list, granule, span / FS_GRANULE, list->keep, INFINITY);
    else if (fabsf(most * scale) <= FS_ROUGH_MOST)
        fs_lists_start(list, granule, span / FS_GRANULE, FS_NARROWEST * 3 / 4,
                       scan->floor_of(y, most, n, scale, (float)(1.0 - share)));
}

static void reduce_list(const fs_call *call, const fs_scan *scan, const fs_lane *lane, const fs_rules *rules,
                        fs_block block, const float *y, const float *granule, float most, fs_summary *summary) {
    fs_list *list = &summary->list;
    const int64_t span = block_span(block), base = block.first - block_lead(block);
    const int is_nucleus = lane->nucleus > 0.0, first = !list->count;
    const double share = is_nucleus ? nucleus_share(call, lane, block) : 0.0;
    if (first) start_list(scan, lane, rules, share, y, granule, most, span, list);
    fs_lists_offer(list, scan, y, granule, base, span / FS_GRANULE);
    if (is_nucleus && first && list->bound != FS_KEY_NONE) fs_lists_wait(list);
    else if (is_nucleus && list->count >= list->due)
        fs_lists_narrow(list, scan, rules->inverse_temperature, &summary->mass, share);
}

void fs_rows_absorb(const fs_call *call, const fs_isa *isa, const fs_lane *lane, const fs_scratch *scratch,
                    fs_block block, float *x, fs_summary *summary) {
    const fs_ask *ask = &call->ask;
    const fs_batch *batch = call->batch;
    const fs_rules *rules = &call->rules[lane->b];
    const int64_t lead = block_lead(block), span = block_span(block), base = block.first - lead;

    transform_head(call->head, block, x + lead);
    for (int64_t i = 0; i < lead; i++) x[i] = -INFINITY;
    for (int64_t i = lead + block.n; i < span; i++) x[i] = -INFINITY;
    fs_survey survey = isa->scan->survey(allowed_of(call, lane->b), base, x, span, scratch->granule);
    summary->flags |= survey.flags;
    if (survey.most > summary->max_x) summary->max_x = survey.most;
    if (ask->raw_mass) isa->scan->add_mass(x, scratch->granule, span, 1.0f, &summary->raw_mass);

    float *y = x;
    const int penalised = rules_penalise(rules) && (batch->seen || batch->counts || batch->count_offset);
    if (lane->edits || penalised) {
        y = scratch->y;
        memcpy(y, x, (size_t)span * sizeof *y);
        transform_edits(call, lane, block, y + lead);
        if (penalised) transform_penalties(call, lane, rules, scratch->count, block, y + lead);
        survey = isa->scan->survey(NULL, base, y, span, scratch->granule);
        summary->flags |= survey.flags;
    }
    const float most = survey.most;
    if (most > summary->max_y) summary->max_y = most;
    FS_SPARSE_EACH(i, lane->watch, lane->watches, block) {
        int64_t at = (int64_t)(lane->watch[i] >> 32) - base;
        fs_watch seen = {x[at], y[at]};
        summary->watch[(uint32_t)lane->watch[i]] = seen;
    }
    if (ask->keep_raw) fs_lists_offer_each(&summary->raw_list, x, x, base, span);
    if (!(most > -INFINITY)) return;
    if (most * rules->inverse_temperature == INFINITY) summary->flags |= FS_ROW_INF;

    reduce_mass(call, isa->scan, rules, y, scratch->granule, most, span, &summary->mass);
    if (lane->listed && summary->list.raw) fs_lists_offer_each(&summary->list, y, x, base, span);
    else if (lane->listed) reduce_list(call, isa->scan, lane, rules, block, y, scratch->granule, most, summary);
    const int32_t draws = ask->ordered && ask->samples ? 1 : ask->samples;
    for (int32_t i = 0; i < draws; i++) {
        fs_race race = {rules, lane->noise[i], &summary->winner[i], ask->ordered ? ask->samples : 1, 0.0};
        if (batch->noise == FS_NOISE_FAST && !rules->greedy) race_fast(&race, x, y, base, span);
        else race_exact(&race, isa->scan, x, y, scratch->granule, most, base, span);
    }
}

/* ----------------------------------------------------------------------------------------------------- sieve ---- */

/* y * inverse is above t only if y is above this. */
static float logit_below(double t, float inverse) {
    const double y = t / (double)inverse, loose = y - (fabs(y) * 0x1p-20 + 1e-30);
    return !(loose < (double)FLT_MAX) ? FLT_MAX : loose < -(double)FLT_MAX ? -INFINITY : (float)loose;
}

static void set_floor(const fs_lane *lane, const fs_list *list, int32_t row, fs_sieve *sieve) {
    const float bare = sieve->bare[row];
    sieve->floor[row] = lane->listed ? fminf(bare, order_key_logit(list->bound)) : bare;
}

/* The best score, and what it leaves a chance. */
static void set_best(const fs_rules *rules, uint64_t key, int32_t row, fs_sieve *sieve) {
    const double floor = floor_below(rules, key);
    sieve->best[row] = key;
    sieve->bare[row] = logit_below(floor, rules->inverse_temperature);
    sieve->reach[row] = rules->greedy ? INFINITY : mark_floor(floor);
}

/* Tells the other tasks of a key above what they know. */
static void tell(uint64_t key, _Atomic uint64_t *told) {
    uint64_t most = atomic_load_explicit(told, memory_order_relaxed);
    while (key > most &&
           !atomic_compare_exchange_weak_explicit(told, &most, key, memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* Whether a list's bound can be told: the cut is a rank that every such list proves. Others would make it a matter of timing which rows take a second
 * pass, and bounds of a nucleus are guesses about one task's mass. */
static int is_by_rank(const fs_call *call, const fs_lane *lane, const fs_list *list) {
    const int32_t top_k = call->rules[lane->b].top_k;
    return lane->listed && top_k > 0 && top_k <= list->keep && !(call->batch->flags & FS_KEEP_TIES);
}

void fs_rows_hear(const fs_call *call, const fs_lane *lane, int32_t row, fs_summary *summary, fs_sieve *sieve) {
    const uint64_t best = atomic_load_explicit(&sieve->told[row].best, memory_order_relaxed);
    const uint64_t bound = atomic_load_explicit(&sieve->told[row].bound, memory_order_relaxed);
    const int lower = is_by_rank(call, lane, &summary->list) && bound > summary->list.bound;
    if (best <= sieve->best[row] && !lower) return;
    if (best > sieve->best[row]) set_best(&call->rules[lane->b], best, row, sieve);
    if (lower) summary->list.bound = bound;
    set_floor(lane, &summary->list, row, sieve);
}

int fs_rows_arm(const fs_call *call, const fs_lane *lane, int32_t row, fs_summary *summary, fs_sieve *sieve) {
    const fs_rules *rules = &call->rules[lane->b];
    const float inverse = rules->inverse_temperature;
    if (summary->winner[0].key == FS_KEY_NONE || !(inverse > 1e-20f && inverse < 1e20f)) return 0;
    if (lane->listed && summary->list.bound == FS_KEY_NONE) return 0;
    if (allowed_of(call, lane->b) && rules->log_min_p > -INFINITY) return 0; /* it needs the largest allowed logit */
    tell(summary->winner[0].key, &sieve->told[row].best);
    if (is_by_rank(call, lane, &summary->list)) tell(summary->list.bound, &sieve->told[row].bound);
    set_best(rules, summary->winner[0].key, row, sieve);
    set_floor(lane, &summary->list, row, sieve);
    fs_rows_hear(call, lane, row, summary, sieve);
    sieve->scale[row] = inverse;
    sieve->r0[row] = lane->noise[0].r0;
    sieve->r1[row] = lane->noise[0].r1;
    sieve->r2[row] = lane->noise[0].r2 ^ FS_DOMAIN_MARK;
    if (!sieve->per) return 1;
    const rough_scale s = rough_scale_of(summary->max_y, inverse);
    sieve->per[row] = s.per;
    sieve->least[row] = s.least;
    sieve->magic[row] = s.magic;
    sieve->unit[row] = s.unit;
    sieve->sum[row] = 0.0f;
    return fabsf(summary->max_y * inverse) <= 0.5f * FS_ROUGH_MOST;
}

/* A token that its logit, or its mark, gives a chance enters the race. One that has a mark and is found by its logit is scored as if it had none: that
 * is less than its score, which its mark has found too if it can win. */
static void settle_race(const fs_rules *rules, const fs_lane *lane, const fs_found *found, uint32_t token,
                        fs_summary *summary, fs_sieve *sieve) {
    fs_race race = {rules, lane->noise[0], &summary->winner[0], 1, floor_below(rules, sieve->best[found->row])};
    const double l = (double)(found->y * rules->inverse_temperature);
    const double most = found->prefix < 0 ? FS_NOISE_G : (double)noise_ceiling((uint32_t)found->prefix);
    if (l - FS_NOISE_G + most <= race.floor) return;
    race_offer(&race, token, found->y, found->y,
               rules->greedy ? 0.0 : noise_gumbel_given(race.noise, token, found->prefix));
    const uint64_t key = summary->winner[0].key;
    if (key <= sieve->best[found->row]) return;
    tell(key, &sieve->told[found->row].best);
    set_best(rules, key, found->row, sieve);
}

void fs_rows_settle(const fs_call *call, const fs_lane *lane, const fs_found *found, fs_summary *summary,
                    fs_sieve *sieve) {
    const uint32_t *allow = allowed_of(call, lane->b);
    const uint32_t token = (uint32_t)(sieve->first + found->place);
    if (allow && !bit_of(allow, token)) return;
    if (found->y > summary->max_y) summary->max_x = summary->max_y = found->y;
    const uint64_t bound = summary->list.bound;
    if (lane->listed && found->prefix < 0) list_offer(&summary->list, order_key(found->y, token), found->y);
    if (is_by_rank(call, lane, &summary->list) && summary->list.bound != bound)
        tell(summary->list.bound, &sieve->told[found->row].bound);
    if (found->prefix >= 0 || found->y > sieve->bare[found->row])
        settle_race(&call->rules[lane->b], lane, found, token, summary, sieve);
    set_floor(lane, &summary->list, found->row, sieve);
}

void fs_rows_weigh(const fs_call *call, const fs_scan *scan, const fs_lane *lane, fs_block block, int32_t row,
                   fs_summary *summary, fs_sieve *sieve) {
    fs_list *list = &summary->list;
    const float scale = call->rules[lane->b].inverse_temperature;
    if (sieve->sum[row] > 0x1p-60f) mass_add(&summary->mass, sieve->sum[row], sieve->unit[row]);
    sieve->sum[row] = 0.0f;
    if (!(lane->nucleus > 0.0) || list->count < list->due) return;
    fs_lists_narrow(list, scan, scale, &summary->mass, nucleus_share(call, lane, block));
    set_floor(lane, list, row, sieve);
}

void fs_rows_close(const fs_call *call, const fs_lane *lane, int32_t row, const fs_sieve *sieve, fs_summary *summary) {
    if (!allowed_of(call, lane->b) && sieve->max[row] > summary->max_y)
        summary->max_x = summary->max_y = sieve->max[row];
    if (summary->max_y * call->rules[lane->b].inverse_temperature == INFINITY) summary->flags |= FS_ROW_INF;
}
