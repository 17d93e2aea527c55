#include "cpu_stored.h"
#include "cpu_schedule.h"

#include "core/finish.h"

int fs_stored_serves(const fs_call *call, const fs_row_rules *rules) {
    const fs_needs *needs = &call->needs;
    const int raw = needs->raw_column && (call->result->logit || call->result->logprob); /* which y does not tell */
    if (!needs->rough || needs->rank_depth || needs->keep_raw || raw || needs->ordered) return 0;
    return rules_top_p_alone(rules) && !(call->batch->flags & FS_KEEP_TIES_TOP_P);
}

/* Logits that there are, those of the first granule's ids in front of the head's among them. */
static int64_t places(const fs_call *call) {
    const int64_t end = schedule_end(call), first = call->head->first_token;
    return end > first ? stored_place(call->head, end) : 0;
}

static int64_t whole_granules(int64_t n) {
    return (n + FS_GRANULE - 1) / FS_GRANULE * FS_GRANULE;
}

int64_t fs_stored_floats(const fs_call *call) {
    const int64_t n = places(call);
    return n ? whole_granules(n) + whole_granules(stored_block(call->head, schedule_end(call) - 1) + 1) : 0;
}

fs_stored fs_stored_at(const fs_call *call, float *memory) {
    const fs_stored stored = {memory, memory + whole_granules(places(call))};
    return stored;
}

/* One row on its way. */
typedef struct stored_row {
    const fs_pass *pass;
    const fs_active_row *active;
    const fs_row_rules *rules;
    const fs_summary *summary;
    const fs_scratch *scratch;
    int64_t count, base; /* places, and the id of the first */
} stored_row;

/* A stretch of places. */
typedef struct stretch {
    int64_t from, n;
} stretch;

/* The next noise blocks from place `from` on, as many as `most` tokens are. */
static stretch stretch_at(const stored_row *r, int64_t from, int64_t most) {
    const int64_t next = (r->base + from) / FS_NOISE_BLOCK * FS_NOISE_BLOCK + most - r->base;
    const stretch s = {from, (next < r->count ? next : r->count) - from};
    return s;
}

/* Whether some logit of a stretch is at least this one. */
static int reaches(const stored_row *r, stretch s, float logit) {
    const fs_head *head = r->pass->call->head;
    const int64_t first = r->base + s.from, end = stored_block(head, first + s.n - 1) + 1;
    for (int64_t i = stored_block(head, first); i < end; i++)
        if (r->active->stored.most[i] >= logit) return 1;
    return 0;
}

static int32_t copy_above(const float *y, int64_t n, float floor, float *out) {
    int32_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        out[i] = y[i] > floor ? y[i] : -INFINITY;
        count += y[i] > floor;
    }
    return count;
}

/* The logits of a stretch whose keys are above this one, the others -inf: whole granules, whose places are returned.
 * *count grows by how many are. */
static int64_t take_above(const stored_row *r, stretch s, uint64_t key, float *out, int64_t *count) {
    const int64_t span = whole_granules(s.n), before = (int64_t)order_key_token(key) - r->base - s.from;
    const int64_t lower = before < 0 ? 0 : before < s.n ? before : s.n;
    const float *y = r->active->stored.y + s.from, floor = order_key_logit(key);
    *count += copy_above(y, lower, nextafterf(floor, -INFINITY), out); /* of equal logits the lower ids are above */
    *count += copy_above(y + lower, s.n - lower, floor, out + lower);
    for (int64_t i = s.n; i < span; i++) out[i] = -INFINITY;
    return span;
}

/* The mass above a key, and how many tokens have it. */
static fs_mass mass_above(const stored_row *r, uint64_t key, int64_t *count) {
    const fs_scan *scan = r->pass->cpu->isa->scan;
    const float scale = r->rules->inverse_temperature, logit = order_key_logit(key);
    float *taken = r->scratch->y;
    int64_t places = 0; /* taken, until there is no room for another noise block */
    fs_mass mass = mass_empty();
    *count = 0;
    for (int64_t from = 0; from < r->count;) {
        const stretch s = stretch_at(r, from, FS_NOISE_BLOCK);
        if (reaches(r, s, logit)) places += take_above(r, s, key, taken + places, count);
        from += s.n;
        if (places + FS_NOISE_BLOCK <= r->pass->block && from < r->count) continue;
        scan->add_rough(taken, r->summary->max_y, places, scale, &mass);
        places = 0;
    }
    return mass;
}

/* cut_test by all logits: 1 if the token of this key surely survives, -1 if it surely does not, 0: who knows. Both
 * masses are off by half of mass_slack. *count: tokens above it. */
static int test_inside(const stored_row *r, uint64_t key, int64_t *count) {
    const fs_mass *all = &r->summary->mass;
    const float scale = r->rules->inverse_temperature, most = r->summary->max_y * scale;
    if (!(scale * FS_ROUGH_SCALE > 1.0f && scale < FS_ROUGH_SCALE) || !(fabsf(most) <= FS_ROUGH_MOST)) return 0;
    const fs_mass above = mass_above(r, key, count);
    if (mass_is_empty(&above)) return 1; /* the largest is in every nucleus */
    if (mass_is_empty(all)) return 0;
    const double mark = (double)r->rules->top_p * mass_scaled(all), off = mark * (1.01 * mass_slack(most) + 1e-9);
    const double sum = ldexp(mass_scaled(&above), 24 * (above.top - all->top));
    return sum < mark - off ? 1 : sum > mark + off ? -1 : 0;
}

/* The best token above this key. */
static fs_winner race_above(const stored_row *r, int32_t sample, uint64_t key) {
    const float logit = order_key_logit(key);
    int64_t count = 0;
    fs_winner winner = {FS_KEY_NONE, 0.0f, 0.0f};
    for (int64_t from = 0; from < r->count;) {
        const stretch s = stretch_at(r, from, r->pass->block);
        if (reaches(r, s, logit)) {
            const int64_t span = take_above(r, s, key, r->scratch->y, &count);
            fs_rows_race(r->pass->call, r->pass->cpu->isa, r->active, r->scratch, sample, r->scratch->y, r->base + from,
                         span, &winner);
        }
        from += s.n;
    }
    return winner;
}

/* Whether a list of the usual length would have had no place for this winner, with so many tokens above it. */
static int is_wide(const stored_row *r, const fs_winner *winner, int64_t above) {
    const double l = (double)(winner->y * r->rules->inverse_temperature);
    return above > r->pass->call->needs.keep || l < mass_log(&r->summary->mass) + pass_rare_share(r->pass, r->rules);
}

/* row_draw_inside of core/finish.h. */
static int settle(const stored_row *r, int32_t sample) {
    fs_winner *winner = &r->summary->winner[sample];
    while (winner_is_token(winner)) {
        const uint64_t key = order_key(winner->y, score_key_token(winner->key));
        int64_t above = 0;
        const int side = test_inside(r, key, &above);
        if (side > 0) return is_wide(r, winner, above) ? FS_STORED_WIDE : FS_STORED_DONE;
        if (side == 0) return FS_STORED_DOUBT;
        *winner = race_above(r, sample, key);
    }
    return FS_STORED_DONE;
}

int fs_stored_finish(const fs_pass *pass, int32_t task, int32_t a, fs_summary *summary, uint32_t extra) {
    const fs_call *call = pass->call;
    const fs_active_row *active = &pass->active[a];
    const fs_row_rules *rules = &call->rules[active->b];
    const int64_t base = call->head->first_token / FS_GRANULE * FS_GRANULE;
    const stored_row r = {pass, active, rules, summary, &pass->scratch[task], places(call), base};
    int found = FS_STORED_DONE;
    for (int32_t i = 0; i < call->needs.samples && found; i++) {
        const int one = settle(&r, i);
        found = !one || one > found ? one : found;
    }
    if (!found) return FS_STORED_DOUBT;
    fs_row_rules settled = *rules; /* its cut is made */
    settled.top_p = 1.0f;
    summary->list.count = 0;
    finish_row(call, active->b, &settled, summary, extra, 1, NULL);
    return found;
}
