#include "cpu_rows.h"
#include "cpu_lists.h"
#include "cpu_race.h"

#include "core/head.h"

/* Two functions race, and where blocks are absorbed no call may stand between. */
#define FS_RACE static inline __attribute__((always_inline))

/* ------------------------------------------------------------------------------------------------- transform ---- */

/* Dot product -> raw logit: bias, rounding, scales, soft-cap. x is the block's first logit. */
static void transform_head(const fs_head *head, fs_block block, float *x) {
    const int64_t n = block.n;
    if (head_is_plain(head)) return;
    if (head->bias) {
        const float *bias = head->bias + (block.first - head->first_token);
        for (int64_t i = 0; i < n; i++) x[i] += bias[i];
    }
    head_logits(head, x, n);
}

/* The bits of row `index` of a packed or strided bitmask; NULL if there is no mask. */
static const uint32_t *mask_row(const uint32_t *mask, int64_t stride, int64_t index, int64_t vocab) {
    if (!mask || index < 0) return NULL;
    int64_t bytes = stride ? stride : (vocab + 31) / 32 * 4;
    return (const uint32_t *)(const void *)((const char *)mask + index * bytes);
}

const uint32_t *fs_rows_allowed(const fs_call *call, int64_t b) {
    const fs_batch *batch = call->batch;
    return mask_row(batch->allow, batch->allow_stride, batch_mask(batch, b), call->vocab);
}

void fs_rows_fetch(const fs_call *call, const fs_active_row *active, fs_block block) {
    const uint32_t *allow = fs_rows_allowed(call, active->b);
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

/* A sum that stays where it would leave its type. */
static void add_count(int32_t *sum, int32_t more) {
    const int64_t all = (int64_t)*sum + more;
    *sum = all > INT32_MAX ? INT32_MAX : all < INT32_MIN ? INT32_MIN : (int32_t)all;
}

/* Adds what the lists of the row's slot, and of the row alone, have in this block. */
static void add_listed_counts(const fs_active_row *active, fs_block block, int32_t *counts) {
    FS_SPARSE_EACH(i, active->count, active->counts, block) {
        const uint32_t entry = (uint32_t)active->count[i];
        const int is_extra = entry >= (uint64_t)(active->counts - active->extras);
        add_count(&counts[(int64_t)(active->count[i] >> 32) - block.first], is_extra ? 1 : active->count_value[entry]);
    }
}

static void transform_penalties(const fs_call *call, const fs_active_row *active, const fs_row_rules *rules,
                                int32_t *counts, fs_block block, float *y) {
    const fs_batch *batch = call->batch;
    const uint32_t *seen = mask_row(batch->seen, batch->seen_stride, rules->slot, call->vocab);
    if (batch->counts) {
        int64_t bytes = batch->counts_stride ? batch->counts_stride : call->vocab * 4;
        const char *row = (const char *)batch->counts + rules->slot * bytes;
        memcpy(counts, row + block.first * 4, (size_t)block.n * 4);
    } else memset(counts, 0, (size_t)block.n * sizeof *counts);
    if (active->counts) add_listed_counts(active, block, counts);
    const fs_row_rules own = *rules; /* which a store to y cannot change */
    for (int64_t i = 0; i < block.n; i++) {
        int was_seen = seen && bit_of(seen, block.first + i);
        if (was_seen || counts[i]) y[i] = rules_penalised(&own, y[i], was_seen, counts[i]);
    }
}

static void transform_edits(const fs_active_row *active, fs_block block, float *y) {
    FS_SPARSE_EACH(i, active->edit, active->edits, block) {
        float bias = active->edit_bias[(uint32_t)active->edit[i]];
        float *at = &y[(int64_t)(active->edit[i] >> 32) - block.first];
        /* -inf is final: a ban of a +inf logit is a ban, not a NaN. */
        if (*at > -INFINITY) *at = bias == -INFINITY ? bias : *at + bias;
    }
}

/* Dot products of a block -> raw logits, and -inf around them. */
static void transform_block(const fs_head *head, fs_block block, float *x) {
    const int64_t lead = block_lead(block), span = block_span(block);
    transform_head(head, block, x + lead);
    for (int64_t i = 0; i < lead; i++) x[i] = -INFINITY;
    for (int64_t i = lead + block.n; i < span; i++) x[i] = -INFINITY;
}

/* Whether a row's y may differ from its x. */
static int rows_edit(const fs_call *call, const fs_active_row *active) {
    return active->edits || (rules_penalise(&call->rules[active->b]) && batch_penalises(call->batch));
}

/* Raw logits -> y, in the scratch. */
static float *transform_rules(const fs_call *call, const fs_active_row *active, const fs_scratch *scratch,
                              fs_block block, const float *x) {
    const fs_row_rules *rules = &call->rules[active->b];
    const int64_t lead = block_lead(block);
    const int edits_last = (call->batch->flags & FS_EDITS_LAST) != 0;
    float *y = scratch->y;
    memcpy(y, x, (size_t)block_span(block) * sizeof *y);
    if (!edits_last) transform_edits(active, block, y + lead);
    if (rules_penalise(rules) && batch_penalises(call->batch))
        transform_penalties(call, active, rules, scratch->count, block, y + lead);
    if (edits_last) transform_edits(active, block, y + lead);
    return y;
}

/* ----------------------------------------------------------------------------------------------------- noise ---- */

/* At least noise_ceiling, without a logarithm: w is at least the power of two below it. */
static double ceiling_of_bits(uint32_t prefix) {
    if (prefix == 0) return INFINITY;
    return (double)(__builtin_clz(prefix) - 16 + 1 + 8) * 0.6931471805599454 + 1e-5;
}

/* The tokens of one noise block whose mark lets them win. x, y start at id `base`; span places. */
FS_RACE void race_marked(fs_race *race, const float *x, const float *y, int64_t base, int64_t span, fs_walk walk) {
    const float inverse = race->rules->inverse_temperature;
    while (noise_next(&walk)) {
        int64_t i = (int64_t)walk.token - base;
        if (i < 0 || i >= span || !(y[i] * inverse > -INFINITY)) continue;
        /* The floor is G below the score to beat. Nearly every mark is dismissed by the first test. */
        const double over = (double)(y[i] * inverse) - FS_NOISE_G;
        if (over + ceiling_of_bits(walk.prefix) <= race->floor) continue;
        if (over + (double)noise_ceiling(walk.prefix) <= race->floor) continue;
        race_offer(race, walk.token, x[i], y[i], noise_gumbel_given(race->noise, walk.token, (int32_t)walk.prefix));
    }
}

FS_RACE void race_marks(fs_race *race, const fs_scan *scan, const float *x, const float *y, int64_t base,
                        int64_t span) {
    const int64_t end = (base + span + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK;
    fs_mark_test test = {race->noise, y, base, span, race->rules->inverse_temperature, 0.0};
    fs_marks marks;
    for (int64_t first = base / FS_NOISE_BLOCK; first < end; first += FS_MARK_BATCH) {
        test.floor = race->floor;
        uint32_t some = scan->marks(&test, (uint32_t)first, &marks);
        if (end - first < FS_MARK_BATCH) some &= (1u << (end - first)) - 1;
        for (; some; some &= some - 1) {
            const int i = __builtin_ctz(some);
            fs_words words = {{marks.w[0][i], marks.w[1][i], marks.w[2][i], marks.w[3][i]}};
            race_marked(race, x, y, base, span, noise_walk_from(race->noise, (uint32_t)first + (uint32_t)i, words));
        }
    }
}

/* The sparse race: marked tokens, then the others whose logit alone is in reach of the best score so far. x, y, granule
 * start at id `base`, a multiple of FS_GRANULE; span places. Greedy rows race without noise. */
FS_RACE void race_exact(fs_race *race, const fs_scan *scan, const float *x, const float *y, const float *granule,
                        float most, int64_t base, int64_t span) {
    const float inverse = race->rules->inverse_temperature;
    const int greedy = race->rules->greedy;
    race_set_floor(race);
    if (race->n == 1 && ((race->winner[0].key == FS_KEY_NONE && race->shared == FS_KEY_NONE) || most == INFINITY)) {
        /* A first real score, so that the race below is sparse from its start; and the lowest id of +inf. */
        int64_t i = 0;
        while (granule[i / FS_GRANULE] != most) i += FS_GRANULE;
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
            else race_bare(race, token, x[i], y[i], 1);
        }
    }
}

/* Fast-math noise has no marks: every token is evaluated. */
FS_RACE void race_fast(fs_race *race, const float *x, const float *y, int64_t base, int64_t span) {
    for (int64_t i = 0; i < span; i++) {
        if (!(y[i] * race->rules->inverse_temperature > -INFINITY)) continue;
        uint32_t token = (uint32_t)(base + i);
        fs_winner offer = {score_key(race_score(race->rules, FS_NOISE_FAST, race->noise, token, y[i]), token), x[i],
                           y[i]};
        winners_insert(race->winner, race->n, offer);
    }
}

/* ---------------------------------------------------------------------------------------------------- reduce ---- */

static void reduce_mass(const fs_call *call, const fs_scan *scan, const fs_row_rules *rules, const float *y,
                        const float *granule, float most, int64_t span, fs_mass *mass) {
    const float scale = rules->inverse_temperature;
    if (!call->needs.mass) return;
    const int common = scale * FS_ROUGH_SCALE > 1.0f && scale < FS_ROUGH_SCALE;
    if (call->needs.rough && common && fabsf(most * scale) <= FS_ROUGH_MOST)
        scan->add_rough(y, most, span, scale, mass);
    else scan->add_mass(y, granule, span, scale, mass);
}

fs_mass fs_rows_mass(const fs_call *call, const fs_isa *isa, const fs_active_row *active, const fs_scratch *scratch,
                     fs_block block, float *x, fs_summary *summary) {
    const int64_t span = block_span(block);
    const fs_survey survey = isa->scan->survey(NULL, block.first, x, span, scratch->granule);
    fs_mass mass = mass_empty();
    summary->flags |= survey.flags;
    if (survey.most > -INFINITY)
        reduce_mass(call, isa->scan, &call->rules[active->b], x, scratch->granule, survey.most, span, &mass);
    return mass;
}

static void reduce_list(const fs_scan *scan, const fs_active_row *active, const fs_row_rules *rules, fs_block block,
                        const float *y, const float *granule, double log_mass, fs_summary *summary) {
    fs_list *list = &summary->list;
    const int64_t granules = block_span(block) / FS_GRANULE;
    if (active->rare > -INFINITY)
        fs_lists_raise(list, scan, rows_bound(active, rules, fmax(log_mass, mass_log(&summary->mass))));
    else if (!list->count && list->bound == FS_KEY_NONE) fs_lists_start(list, granule, granules);
    if (active->near > -INFINITY) fs_lists_raise(list, scan, rows_near(active, rules, summary->max_y));
    fs_lists_offer(list, scan, y, granule, block.first - block_lead(block), granules);
}

/* A block's logits to where the row's are kept. No noise block is in two blocks. */
static __attribute__((noinline)) void store_block(const fs_head *head, const fs_stored *stored, const float *y,
                                                  const float *granule, int64_t base, int64_t span) {
    memcpy(stored->y + stored_place(head, base), y, (size_t)span * sizeof *y);
    for (int64_t i = 0, end; i < span; i = end) {
        const int64_t next = ((base + i) / FS_NOISE_BLOCK + 1) * FS_NOISE_BLOCK - base;
        float most = -INFINITY;
        end = next < span ? next : span;
        for (int64_t g = i / FS_GRANULE; g < end / FS_GRANULE; g++) most = granule[g] > most ? granule[g] : most;
        stored->most[stored_block(head, base + i)] = most;
    }
}

void fs_rows_absorb(const fs_call *call, const fs_isa *isa, const fs_active_row *active, const fs_scratch *scratch,
                    fs_block block, float *x, fs_shared_row shared, fs_summary *summary) {
    const fs_needs *needs = &call->needs;
    const fs_batch *batch = call->batch;
    const fs_row_rules *rules = &call->rules[active->b];
    const int64_t span = block_span(block), base = block.first - block_lead(block);

    transform_block(call->head, block, x);
    fs_survey survey = isa->scan->survey(fs_rows_allowed(call, active->b), base, x, span, scratch->granule);
    summary->flags |= survey.flags;
    if (survey.most > summary->max_x) summary->max_x = survey.most;
    if (needs->raw_mass) isa->scan->add_mass(x, scratch->granule, span, 1.0f, &summary->raw_mass);
    const int raw = call->result->logits_mode == FS_LOGITS_RAW;
    if (summary->entropy && raw) isa->scan->add_entropy(x, span, 1.0f, summary->entropy);

    float *y = x;
    if (rows_edit(call, active)) {
        y = transform_rules(call, active, scratch, block, x);
        survey = isa->scan->survey(NULL, base, y, span, scratch->granule);
        summary->flags |= survey.flags;
    }
    const float most = survey.most;
    if (most > summary->max_y) summary->max_y = most;
    FS_SPARSE_EACH(i, active->watch, active->watches, block) {
        int64_t at = (int64_t)(active->watch[i] >> 32) - base;
        fs_watch seen = {x[at], y[at]};
        summary->watch[(uint32_t)active->watch[i]] = seen;
    }
    if (active->stored.y) store_block(call->head, &active->stored, y, scratch->granule, base, span);
    if (active->known) return;
    if (needs->keep_raw) fs_lists_offer_each(&summary->raw_list, x, x, base, span);
    if (!(most > -INFINITY)) return;
    if (most * rules->inverse_temperature == INFINITY) summary->flags |= FS_ROW_INF;

    reduce_mass(call, isa->scan, rules, y, scratch->granule, most, span, &summary->mass);
    if (needs->cut_mass) isa->scan->add_mass(y, scratch->granule, span, 1.0f, &summary->cut_mass);
    if (summary->entropy && !raw) isa->scan->add_entropy(y, span, rules->inverse_temperature, summary->entropy);
    if (active->listed && summary->list.raw) fs_lists_offer_each(&summary->list, y, x, base, span);
    else if (active->listed)
        reduce_list(isa->scan, active, rules, block, y, scratch->granule, shared.log_mass, summary);
    /* Lists are by y, which raw logits may be asked of; what l makes -inf of them core/finish.c leaves out. Races are
     * by l. */
    if (!(most * rules->inverse_temperature > -INFINITY)) return;
    const int32_t draws = needs->ordered && needs->samples ? 1 : needs->samples;
    for (int32_t i = 0; i < draws; i++) {
        fs_race race = {
            rules, active->noise[i], &summary->winner[i], needs->ordered ? needs->samples : 1, shared.best, 0.0, NULL};
        if (batch->noise == FS_NOISE_FAST && !rules->greedy) race_fast(&race, x, y, base, span);
        else race_exact(&race, isa->scan, x, y, scratch->granule, most, base, span);
    }
}

/* ---------------------------------------------------------------------------------------------------- settle ---- */

/* One token, as a block of its own. */
int fs_settle_token(fs_settle *settle, uint32_t token, float *x, float *y) {
    const fs_call *call = settle->call;
    const fs_block one = {token, 1};
    const int64_t lead = block_lead(one);
    float dot[FS_GRANULE], room[FS_GRANULE], *edited = dot;
    int32_t count[FS_GRANULE];
    const fs_scratch scratch = {room, count, NULL};
    uint32_t *flags = &settle->summary->flags;
    if (settle->dots++ >= settle->most) return 0;
    settle->kernel->tile(settle->hidden, settle->weights, (int64_t)token - call->head->first_token, 1, dot + lead, 1);
    transform_block(call->head, one, dot);
    if (dot[lead] != dot[lead]) *flags |= FS_ROW_NAN, dot[lead] = -INFINITY;
    if (dot[lead] == INFINITY) *flags |= FS_ROW_INF;
    if (rows_edit(call, settle->active)) edited = transform_rules(call, settle->active, &scratch, one, dot);
    if (edited[lead] != edited[lead]) *flags |= FS_ROW_NAN, edited[lead] = -INFINITY;
    *x = dot[lead];
    *y = edited[lead];
    const float l = *y * call->rules[settle->active->b].inverse_temperature;
    if (*y == INFINITY || l == INFINITY) *flags |= FS_ROW_INF;
    if (*x > settle->summary->max_x) settle->summary->max_x = *x;
    if (*y > settle->summary->max_y) settle->summary->max_y = *y;
    return *y > -INFINITY;
}

/* Upper bounds that may belong into the row's list wait until the end of the pass. Where min-p is far above them they
 * are dropped at once. */
static void list_bounds(const fs_isa *isa, fs_settle *settle, const float *y, int64_t base, int64_t span) {
    const fs_active_row *active = settle->active;
    const fs_row_rules *rules = &settle->call->rules[active->b];
    if (active->near > -INFINITY)
        fs_lists_raise(&settle->bounds, isa->scan, rows_near(active, rules, settle->summary->max_y));
    fs_lists_offer(&settle->bounds, isa->scan, y, settle->scratch->granule, base, span / FS_GRANULE);
}

/* Asks memory for a token's row of W. So many are asked for before the first is used: they lie far apart. */
#define FS_SETTLED_TOGETHER 8
static void fetch_token(const fs_settle *settle, uint32_t token) {
    const char *row = matrix_row(settle->weights, (int64_t)token - settle->call->head->first_token);
    const int64_t bytes = format_row_bytes(settle->weights->format, settle->call->head->dim);
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
}

/* Entries of its list that a row needs: other rows of the call may need more. */
static int32_t wanted_of(const fs_settle *settle) {
    const fs_call *call = settle->call;
    const int32_t top_k = call->rules[settle->active->b].top_k, all = settle->summary->list.keep;
    const int ties = (call->batch->flags & FS_KEEP_TIES_TOP_K) != 0;
    if (top_k <= 0 || ties || call->batch->list_capacity) return all;
    const int32_t most = top_k > call->needs.rank_depth ? top_k : call->needs.rank_depth;
    return most < all ? most : all;
}

int fs_settle_later(fs_settle *settle, uint64_t key, uint64_t best) {
    fs_list *later = &settle->later;
    if (!later->capacity || key > settle->lead) {
        settle->lead = key > settle->lead ? key : settle->lead;
        return 0;
    }
    if (later->count == later->capacity && best > later->bound) { /* those below the best may go */
        int32_t kept = 0;
        for (int32_t i = 0; i < later->count; i++)
            if (later->key[i] > best) later->key[kept++] = later->key[i];
        later->count = kept;
        later->bound = best;
    }
    if (later->count == later->capacity) return 0;
    later->key[later->count++] = key;
    return 1;
}

/* One heap for each task: the largest key of all, taken off; FS_KEY_NONE: there is none. */
static uint64_t largest_key(fs_settle *settle, int32_t tasks, int64_t apart, int bounds) {
    fs_list *of = NULL;
    uint64_t most = FS_KEY_NONE;
    for (int32_t t = 0; t < tasks; t++) {
        fs_list *list = bounds ? &settle[t * apart].bounds : &settle[t * apart].later;
        if (list->count && list->key[0] > most) most = list->key[0], of = list;
    }
    if (!of) return FS_KEY_NONE;
    of->key[0] = of->key[--of->count];
    if (of->count) list_sift(of, 0, of->count);
    return most;
}

/* Bounds that wait and are above a list's own: those that would have to be settled if it rose no more. Looked at when
 * so many tokens have been settled that it hardly rises, so that a list that is too long is left before it is. */
#define FS_LOOKED_AFTER 4 /* times FS_SETTLED_TOGETHER */
static int64_t bounds_above(const fs_isa *isa, const fs_settle *settle, int32_t tasks, int64_t apart, uint64_t key) {
    int64_t above = 0;
    for (int32_t t = 0; t < tasks; t++) {
        const fs_list *bounds = &settle[t * apart].bounds;
        above += isa->scan->count_above(bounds->key, bounds->count, key);
    }
    return above;
}

void fs_rows_settle_list(const fs_isa *isa, fs_settle *settle, int32_t tasks, int64_t apart) {
    const fs_active_row *active = settle->active;
    const fs_row_rules *rules = &settle->call->rules[active->b];
    fs_list *list = &settle->summary->list;
    const int32_t all = list->keep;
    int looked = 0;
    uint64_t left_out = FS_KEY_NONE; /* the largest bound that found no room */
    list->keep = wanted_of(settle);
    for (int32_t t = 0; t < tasks; t++) {
        fs_list *bounds = &settle[t * apart].bounds;
        left_out = bounds->bound > left_out ? bounds->bound : left_out;
        list_heapify(bounds);
    }
    for (int32_t count = 1; count && !settle_gave_up(settle);) {
        uint64_t key[FS_SETTLED_TOGETHER];
        if (active->near > -INFINITY) fs_lists_raise(list, isa->scan, rows_near(active, rules, settle->summary->max_y));
        for (count = 0; count < FS_SETTLED_TOGETHER; count++) {
            key[count] = largest_key(settle, tasks, apart, 1);
            if (key[count] <= list->bound) break; /* nothing that is left belongs into the list */
            fetch_token(settle, order_key_token(key[count]));
        }
        for (int32_t i = 0; i < count; i++) {
            float exact, x = 0.0f;
            if (fs_settle_token(settle, order_key_token(key[i]), &x, &exact))
                list_offer(list, order_key(exact, order_key_token(key[i])), x);
        }
        if (list->count > list->keep + list->keep / 8 + 8) list_compact(list);
        if (list->bound == FS_KEY_NONE || ++looked != FS_LOOKED_AFTER) continue;
        if (bounds_above(isa, settle, tasks, apart, list->bound) > 2 * (settle->most - settle->dots)) settle->most = -1;
    }
    list_compact(list);
    list->keep = all;
    if (left_out > list->bound) settle->most = -1;
}

void fs_rows_settle_later(fs_settle *settle, int32_t tasks, int64_t apart, fs_winner *winner) {
    const fs_call *call = settle->call;
    const fs_row_rules *rules = &call->rules[settle->active->b];
    for (int32_t t = 0; t < tasks; t++) list_heapify(&settle[t * apart].later);
    for (uint64_t key; (key = largest_key(settle, tasks, apart, 0)) > winner->key && !settle_gave_up(settle);) {
        const uint32_t token = score_key_token(key);
        fs_winner offer = {FS_KEY_NONE, 0.0f, 0.0f};
        if (!fs_settle_token(settle, token, &offer.x, &offer.y)) continue;
        if (!(offer.y * rules->inverse_temperature > -INFINITY)) continue;
        offer.key = score_key(race_score(rules, FS_NOISE_EXACT, settle->active->noise[0], token, offer.y), token);
        if (offer.key > winner->key) *winner = offer;
    }
}

/* Tokens whose bound is infinite are settled for the row's flags, whatever their chances. Returns 0 if the row was
 * given up. */
static int settle_unknown(fs_settle *settle, fs_block block, const float *x) {
    const uint32_t *allow = fs_rows_allowed(settle->call, settle->active->b);
    float most = -INFINITY;
    for (int64_t i = 0; i < block.n; i++) most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; most == INFINITY && i < block.n && !settle_gave_up(settle); i++) {
        float known, y;
        if (x[i] == INFINITY && (!allow || bit_of(allow, block.first + i)))
            fs_settle_token(settle, (uint32_t)(block.first + i), &known, &y);
    }
    return !settle_gave_up(settle);
}

/* Tokens that an edit makes NaN have no bound: they are settled for the row's flags. Returns 0 if the row was given
 * up. */
static int settle_not_numbers(fs_settle *settle, fs_block block, const float *y) {
    const fs_active_row *active = settle->active;
    FS_SPARSE_EACH(i, active->edit, active->edits, block) {
        const uint32_t token = (uint32_t)(active->edit[i] >> 32);
        const float edited = y[(int64_t)token - block.first];
        float known, exact;
        if (edited != edited && !settle_gave_up(settle)) fs_settle_token(settle, token, &known, &exact);
    }
    return !settle_gave_up(settle);
}

/* Upper bounds that have become raw logits. tanhf may not rise everywhere, by its last bits; an infinite bias may have
 * met an infinite bound. */
static void loosen(const fs_head *head, float *x, int64_t n) {
    for (int64_t i = 0; head->softcap > 0.0f && i < n; i++) x[i] += fabsf(x[i]) * 1e-5f;
    for (int64_t i = 0; head->bias && i < n; i++) x[i] = x[i] == x[i] ? x[i] : INFINITY;
}

/* Rounded by their own steps, upper bounds stay above: rounding, scales that are not negative, masks, edits and
 * penalties never change the order of two numbers. */
void fs_rows_settle(const fs_isa *isa, fs_settle *settle, fs_block block, float *x, uint64_t shared) {
    const fs_call *call = settle->call;
    const fs_active_row *active = settle->active;
    const fs_row_rules *rules = &call->rules[active->b];
    const fs_needs *needs = &call->needs;
    const int64_t span = block_span(block), base = block.first - block_lead(block);
    float *y = x;
    if (!settle_unknown(settle, block, x + block_lead(block))) return;
    transform_block(call->head, block, x);
    loosen(call->head, x + block_lead(block), block.n);
    fs_survey survey = isa->scan->survey(fs_rows_allowed(call, active->b), base, x, span, settle->scratch->granule);
    if (rows_edit(call, active)) { /* which may ban a token, but the row's flags tell that its x is infinite */
        if (survey.most == INFINITY && !settle_unknown(settle, block, x + block_lead(block))) return;
        y = transform_rules(call, active, settle->scratch, block, x);
        if (!settle_not_numbers(settle, block, y + block_lead(block))) return;
        survey = isa->scan->survey(NULL, base, y, span, settle->scratch->granule);
    }
    if (!(survey.most > -INFINITY)) return;
    if (active->listed) list_bounds(isa, settle, y, base, span);
    if (!(survey.most * rules->inverse_temperature > -INFINITY)) return;
    const int32_t draws = needs->ordered ? 1 : needs->samples;
    for (int32_t i = 0; i < draws; i++) {
        fs_race race = {
            rules, active->noise[i], &settle->summary->winner[i], needs->ordered ? needs->samples : 1, shared, 0.0,
            settle};
        race_exact(&race, isa->scan, x, y, settle->scratch->granule, survey.most, base, span);
    }
}

void fs_rows_race(const fs_call *call, const fs_isa *isa, const fs_active_row *active, const fs_scratch *scratch,
                  int32_t sample, float *y, int64_t base, int64_t span, fs_winner *winner) {
    const fs_row_rules *rules = &call->rules[active->b];
    const float most = isa->scan->survey(NULL, base, y, span, scratch->granule).most;
    fs_race race = {rules, active->noise[sample], winner, 1, FS_KEY_NONE, 0.0, NULL};
    if (!(most * rules->inverse_temperature > -INFINITY)) return;
    if (call->batch->noise == FS_NOISE_FAST && !rules->greedy) race_fast(&race, y, y, base, span);
    else race_exact(&race, isa->scan, y, y, scratch->granule, most, base, span);
}
