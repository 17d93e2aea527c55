#include "cpu_sift.h"
#include "cpu_lists.h"
#include "cpu_race.h"

/* ---------------------------------------------------------------------------------------------------- layout ---- */

/* Whether all that the call wants of its logits is what a sieve finds. */
static int is_sifted(const fs_pass *pass) {
    const fs_head *head = pass->call->head;
    const fs_batch *batch = pass->call->batch;
    const fs_needs *needs = &pass->call->needs;
    if (head->kind != FS_HEAD_WEIGHTS || !pass_kernel(pass)->sift || pass->rows <= FS_SIEVE_LANES) return 0;
    if (pass->largest) return 1;
    if (head->bias || head->round != FS_F32 || head->scale != 1.0f || head->softcap > 0.0f || head->post_scale != 1.0f)
        return 0;
    if (pass->groups || pass->whole || batch->noise == FS_NOISE_FAST || needs->samples != 1 || needs->ordered) return 0;
    if (needs->edited || needs->rank_depth || needs->watched || needs->cut_mass) return 0;
    if (batch->allow && (needs->mass || needs->raw_mass || needs->max)) return 0;
    /* A block's rough terms are one float sum, of 16 at a time: as many as keep it within half of mass_slack. Lanes of exact ones have room for
     * that many granules (FS_WIDE_TERMS). */
    return !(needs->mass || needs->raw_mass) || pass->block <= FS_WEIGHED_MOST;
}

/* Lanes of a pass's rows, whole vectors of them. */
static int32_t lanes_of(const fs_pass *pass) {
    return (pass->rows + FS_SIEVE_LANES - 1) / FS_SIEVE_LANES * FS_SIEVE_LANES;
}

static fs_sieve layout_sieve(const fs_pass *pass, fs_arena *arena) {
    const fs_needs *needs = &pass->call->needs;
    const size_t rows = (size_t)lanes_of(pass), groups = (rows + FS_SIEVE_SUMS - 1) / FS_SIEVE_SUMS;
    fs_sieve s;
    memset(&s, 0, sizeof s);
    s.capacity = pass->rows * FS_SIEVE_FOUND;
    s.floor = arena_take(arena, rows, sizeof *s.floor);
    s.bare = arena_take(arena, rows, sizeof *s.bare);
    s.best = arena_take(arena, rows, sizeof *s.best);
    s.allow = arena_take(arena, rows, sizeof *s.allow);
    s.scale = arena_take(arena, rows, sizeof *s.scale);
    s.reach = arena_take(arena, rows, sizeof *s.reach);
    s.r0 = arena_take(arena, rows, sizeof *s.r0);
    s.r1 = arena_take(arena, rows, sizeof *s.r1);
    s.r2 = arena_take(arena, rows, sizeof *s.r2);
    s.most = arena_take(arena, rows, sizeof *s.most);
    s.max = arena_take(arena, rows, sizeof *s.max);
    s.heard_bound = arena_take(arena, rows, sizeof *s.heard_bound);
    s.heard_mass = arena_take(arena, rows, sizeof *s.heard_mass);
    const int exact[2] = {needs->mass && !needs->rough, needs->raw_mass};
    for (int i = 0; i < 2; i++) {
        if (!exact[i] && !pass->largest) continue;
        s.exact[i].scale = arena_take(arena, rows, sizeof(float));
        s.exact[i].limb = arena_take(arena, 3 * rows, sizeof(uint32_t));
        s.exact[i].top = arena_take(arena, rows, sizeof(int32_t));
        s.exact[i].mass = arena_take(arena, rows, sizeof(fs_mass));
    }
    if ((needs->mass && needs->rough) || pass->largest) {
        s.per = arena_take(arena, rows, sizeof *s.per);
        s.mass = arena_take(arena, rows, sizeof *s.mass);
        s.unit = arena_take(arena, rows, sizeof *s.unit);
        s.weight = arena_take(arena, rows, sizeof *s.weight);
        s.worth = arena_take(arena, rows, sizeof *s.worth);
    }
    s.sums = arena_take(arena, groups * FS_NOISE_BLOCK * FS_SIEVE_SUMS, sizeof *s.sums);
    s.found = arena_take(arena, (size_t)s.capacity, sizeof *s.found);
    s.told = pass->told;
    s.aside = pass->cpu->isa->aside || s.per;
    return s;
}

void fs_sift_layout(fs_pass *pass, fs_arena *arena) {
    pass->sieve = NULL;
    if (!is_sifted(pass)) return;
    pass->sieve = arena_take(arena, (size_t)pass->cpu->tasks, sizeof *pass->sieve);
    for (int32_t t = 0; t < pass->cpu->tasks; t++) {
        fs_sieve sieve = layout_sieve(pass, arena);
        if (!arena_fits(arena)) continue;
        sieve.said = pass->said + (int64_t)t * pass->rows;
        pass->sieve[t] = sieve;
    }
}

/* Lanes without a row find nothing. */
void fs_sift_open(const fs_pass *pass, int32_t task) {
    fs_sieve *sieve = &pass->sieve[task];
    sieve->begun = sieve->noisy = sieve->armed = sieve->pause = sieve->paused = 0;
    for (int32_t a = 0; a < pass->rows; a++) sieve->noisy |= !pass->call->rules[pass->lane[a].b].greedy;
    for (int32_t a = 0; a < lanes_of(pass); a++) {
        sieve->floor[a] = sieve->reach[a] = INFINITY;
        sieve->allow[a] = a < pass->rows ? fs_rows_allowed(pass->call, pass->lane[a].b) : NULL;
        sieve->scale[a] = 0.0f;
        sieve->most[a] = sieve->max[a] = -INFINITY;
        sieve->r0[a] = sieve->r1[a] = sieve->r2[a] = 0;
        if (sieve->per) sieve->per[a] = sieve->mass[a] = 0.0f, sieve->weight[a] = 0.0, sieve->unit[a] = 0;
        for (int i = 0; i < 2; i++)
            if (sieve->exact[i].mass) sieve->exact[i].scale[a] = 0.0f, weighing_start(&sieve->exact[i], a, 0);
    }
}

/* -------------------------------------------------------------------------------------------------------- arm ---- */

/* A row of the pass, as a task sees it. */
typedef struct sifted_row {
    const fs_call *call;
    const fs_lane *lane;
    const fs_rules *rules;
    fs_summary *summary;
    fs_sieve *sieve;
    const fs_scan *scan;
    int32_t a; /* its place in the pass */
} sifted_row;

static sifted_row row_at(const fs_pass *pass, int32_t task, int32_t a) {
    const fs_lane *lane = &pass->lane[a];
    sifted_row r = {pass->call,
                    lane,
                    &pass->call->rules[lane->b],
                    &pass->summary[(int64_t)task * pass->rows + a],
                    &pass->sieve[task],
                    pass->cpu->isa->scan,
                    a};
    return r;
}

/* y * inverse is above t only if y is above this. */
static float logit_below(double t, float inverse) {
    const double y = fmin(t, (double)FLT_MAX) / (double)inverse, loose = y - (fabs(y) * 0x1p-20 + 1e-30);
    return !(loose < (double)FLT_MAX) ? FLT_MAX : loose < -(double)FLT_MAX ? -INFINITY : (float)loose;
}

static void set_floor(const sifted_row *r) {
    const float bare = r->sieve->bare[r->a];
    r->sieve->floor[r->a] = r->lane->listed ? fminf(bare, list_floor(&r->summary->list)) : bare;
}

/* The best score, and what it leaves a chance. */
static void set_best(const sifted_row *r, uint64_t key) {
    const double floor = floor_below(r->rules, key);
    r->sieve->best[r->a] = key;
    r->sieve->bare[r->a] = logit_below(floor, r->rules->inverse_temperature);
    r->sieve->reach[r->a] = r->rules->greedy ? INFINITY : mark_floor(floor);
}

/* Whether a list's bound can be told: the cut is a rank that every such list proves. */
static int is_for_all(const sifted_row *r) {
    const int32_t top_k = r->rules->top_k;
    if (!r->lane->listed || r->call->batch->flags & FS_KEEP_TIES) return 0;
    return top_k > 0 && top_k <= r->summary->list.keep;
}

/* A task that hears of a bound may be at lower ids than who tells it, and floors know logits alone: so it is told below all tokens of its
 * logit, unless it is above them all. */
static void tell_bound(const sifted_row *r) {
    const uint64_t bound = r->summary->list.bound;
    if (bound == FS_KEY_NONE || !is_for_all(r)) return;
    told_raise(&r->sieve->told.bound[r->a], (uint32_t)bound == UINT32_MAX ? bound : (bound >> 32 << 32) - 1);
}

/* What other tasks have told about the row's list. 0: nothing new. */
static int hear_bound(const sifted_row *r) {
    const uint64_t bound = r->sieve->heard_bound[r->a] = told_load(&r->sieve->told.bound[r->a]);
    return is_for_all(r) && fs_lists_raise(&r->summary->list, r->scan, bound);
}

#define FS_WEIGHT_MOST 0x1p100 /* a float holds it, and a block's terms besides */

/* And about its mass: a bound, and what is worth telling of the terms to come. */
static int hear_mass(const sifted_row *r) {
    fs_sieve *sieve = r->sieve;
    const uint64_t mass = sieve->heard_mass[r->a] = told_load(&sieve->told.mass[r->a]);
    if (!sieve->per || !(r->lane->rare > -INFINITY)) return 0;
    const double known = exp2(told_log(mass) * 1.4426950408889634 - (double)sieve->unit[r->a]);
    sieve->worth[r->a] = fmin(FS_WORTH_TELLING * known, FS_WEIGHT_MOST);
    return fs_lists_raise(&r->summary->list, r->scan, rows_bound(r->lane, r->rules, told_log(mass)));
}

static int has_news(const fs_sieve *sieve, int32_t a) {
    return told_load(&sieve->told.best[a]) > sieve->best[a] ||
           told_load(&sieve->told.bound[a]) != sieve->heard_bound[a] ||
           told_load(&sieve->told.mass[a]) != sieve->heard_mass[a];
}

/* What they have told. */
static void hear(const sifted_row *r) {
    const uint64_t best = told_load(&r->sieve->told.best[r->a]);
    const int raised = hear_bound(r) | hear_mass(r);
    if (best <= r->sieve->best[r->a] && !raised) return;
    if (best > r->sieve->best[r->a]) set_best(r, best);
    set_floor(r);
}

uint64_t fs_sift_hear(const fs_pass *pass, int32_t task, int32_t a) {
    const sifted_row r = row_at(pass, task, a);
    hear_bound(&r);
    return told_load(&r.sieve->told.best[a]);
}

void fs_sift_tell(const fs_pass *pass, int32_t task, int32_t a) {
    const sifted_row r = row_at(pass, task, a);
    told_raise(&r.sieve->told.best[a], r.summary->winner[0].key);
    tell_bound(&r);
}

/* The terms since the last time into the row's mass. */
static void weigh(const sifted_row *r) {
    double *weight = &r->sieve->weight[r->a];
    if (*weight > 0x1p-60) mass_add(&r->summary->mass, (float)*weight, r->sieve->unit[r->a]);
    *weight = 0.0;
}

/* The scale of terms to come. */
static void set_scale(const sifted_row *r) {
    fs_sieve *sieve = r->sieve;
    const rough_scale s = rough_scale_of(r->summary->max_y, r->rules->inverse_temperature);
    weigh(r);
    sieve->per[r->a] = s.per;
    sieve->unit[r->a] = s.unit;
    sieve->mass[r->a] = 0.0f;
    sieve->worth[r->a] = FS_WEIGHT_MOST;
}

/* Says what is to be found. 0 if the row is not ready for that, and blocks have to go the long way. A row with a mask is after a block: if it has no
 * winner then, or no bound, its mask allows so little that all of it may be found. */
static int arm(const sifted_row *r, int first) {
    fs_sieve *sieve = r->sieve;
    const float inverse = r->rules->inverse_temperature;
    if (!(inverse * FS_ROUGH_SCALE > 1.0f && inverse < FS_ROUGH_SCALE)) return 0;
    if (sieve->allow[r->a] && r->rules->log_min_p > -INFINITY) return 0; /* it needs the largest allowed logit */
    if (sieve->per && !(fabsf(r->summary->max_y * inverse) <= 0.5f * FS_ROUGH_MOST)) return 0;
    if (sieve->per) set_scale(r);
    set_best(r, r->summary->winner[0].key);
    set_floor(r);
    hear(r);
    const int ready = sieve->best[r->a] != FS_KEY_NONE && (!r->lane->listed || r->summary->list.bound != FS_KEY_NONE);
    if (!ready && (first || !sieve->allow[r->a])) return 0;
    sieve->scale[r->a] = inverse;
    sieve->r0[r->a] = r->lane->noise[0].r0;
    sieve->r1[r->a] = r->lane->noise[0].r1;
    sieve->r2[r->a] = r->lane->noise[0].r2 ^ FS_DOMAIN_MARK;
    return 1;
}

/* ----------------------------------------------------------------------------------------------------- settle ---- */

/* A token that its logit, or its mark, gives a chance enters the race. One that has a mark and is found by its logit is scored as if it had none: that
 * is less than its score, which its mark has found too if it can win. */
static void settle_race(const sifted_row *r, const fs_found *found, uint32_t token) {
    fs_winner *winner = &r->summary->winner[0];
    fs_race race = {r->rules, r->lane->noise[0], winner, 1, r->sieve->best[r->a], 0.0};
    race_set_floor(&race);
    const double l = (double)(found->y * r->rules->inverse_temperature);
    const double most = found->prefix < 0 ? l : l - FS_NOISE_G + (double)noise_ceiling((uint32_t)found->prefix);
    if (!(most > race.floor)) return;
    if (r->rules->greedy) race_offer(&race, token, found->y, found->y, 0.0);
    else if (found->prefix < 0) race_bare(&race, token, found->y, found->y, 0);
    else race_offer(&race, token, found->y, found->y, noise_gumbel_given(race.noise, token, found->prefix));
    if (winner->key <= r->sieve->best[r->a]) return;
    told_raise(&r->sieve->told.best[r->a], winner->key);
    set_best(r, winner->key);
}

/* Most of what is found is above the bound of a list, and in no race. 0: there is more to do. */
static int settle_listed(const sifted_row *r, const fs_found *found) {
    fs_list *list = &r->summary->list;
    const uint64_t key = order_key(found->y, (uint32_t)(r->sieve->first + found->place));
    if (found->prefix >= 0 || found->y > r->sieve->bare[r->a] || found->y > r->summary->max_y) return 0;
    if (!r->lane->listed || list->count == list->capacity) return 0;
    list->key[list->count] = key;
    list->count += key > list->bound;
    return 1;
}

/* A token that was found in the block, of this row. */
static void settle(const sifted_row *r, const fs_found *found) {
    fs_list *list = &r->summary->list;
    const uint32_t token = (uint32_t)(r->sieve->first + found->place);
    const uint64_t bound = list->bound;
    if (found->y > r->summary->max_y) r->summary->max_x = r->summary->max_y = found->y;
    if (r->lane->listed && found->prefix < 0) list_offer(list, order_key(found->y, token), found->y);
    if (list->bound != bound) tell_bound(r);
    if (found->prefix >= 0 || found->y > r->sieve->bare[r->a]) settle_race(r, found, token);
    set_floor(r);
}

/* After a block of a sieve with masses: its terms, of which the others are told when they are worth it. */
static void weigh_all(const fs_pass *pass, int32_t task) {
    fs_sieve *sieve = &pass->sieve[task];
    for (int32_t a = 0; a < pass->rows; a++) {
        sieve->weight[a] += (double)sieve->mass[a];
        sieve->mass[a] = 0.0f;
    }
    for (int32_t a = 0; a < pass->rows; a++) {
        if (!(sieve->weight[a] > sieve->worth[a])) continue;
        const sifted_row r = row_at(pass, task, a);
        weigh(&r);
        if (r.lane->rare > -INFINITY) told_weigh(&sieve->told.mass[a], &r.summary->mass, &sieve->said[a]);
        if (hear_mass(&r)) set_floor(&r);
    }
}

/* Before a block: masses of it alone, in limbs of the row's mass so far, so that hardly any has to be raised. */
static void open_masses(const sifted_row *r) {
    const fs_mass *mass[2] = {&r->summary->mass, &r->summary->raw_mass};
    const float scale[2] = {r->rules->inverse_temperature, 1.0f};
    for (int i = 0; i < 2; i++) {
        const fs_weighing *w = &r->sieve->exact[i];
        if (!w->mass) continue;
        w->scale[r->a] = scale[i];
        weighing_start(w, r->a, mass[i]->top);
    }
}

/* After it. */
static void close_masses(const sifted_row *r) {
    fs_mass *mass[2] = {&r->summary->mass, &r->summary->raw_mass};
    for (int i = 0; i < 2; i++) {
        const fs_weighing *w = &r->sieve->exact[i];
        if (!w->mass) continue;
        weighing_empty(w, r->a);
        mass_merge(mass[i], &w->mass[r->a]);
    }
}

int64_t fs_sift_length(const fs_pass *pass, int32_t task) {
    const fs_sieve *sieve = &pass->sieve[task];
    return sieve->begun || sieve->noisy || pass->call->needs.keep ? pass->block : FS_NOISE_BLOCK;
}

int fs_sift_block(const fs_pass *pass, int32_t task, fs_block block) {
    const fs_head *head = pass->call->head;
    const int64_t stride = weights_stride(head);
    fs_sieve *sieve = &pass->sieve[task];
    const int first = !sieve->begun, exact = sieve->exact[0].mass || sieve->exact[1].mass;
    sieve->begun = 1;
    if (block.first % FS_NOISE_BLOCK || (sieve->paused && sieve->paused--)) return sieve->armed = 0;
    for (int32_t a = 0; a < pass->rows; a++) {
        sieve->most[a] = -INFINITY;
        if (sieve->armed && !has_news(sieve, a) && !exact) continue;
        const sifted_row r = row_at(pass, task, a);
        if (sieve->armed) hear(&r);
        else if (!arm(&r, first)) return 0;
        open_masses(&r);
    }
    sieve->armed = 1;
    sieve->count = sieve->failed = 0;
    sieve->first = block.first;
    pass_kernel(pass)->sift(&pass->hidden, (const char *)head->data + (block.first - head->first_token) * stride,
                            stride, (int32_t)block.n, sieve);
    for (int32_t a = 0; sieve->per && a < pass->rows; a++) sieve->failed |= !(sieve->mass[a] < FLT_MAX);
    if (sieve->failed) {
        sieve->paused = sieve->pause = sieve->pause ? 2 * sieve->pause : 4;
        return sieve->armed = 0;
    }
    for (int32_t a = 0; a < pass->rows; a++) sieve->max[a] = fmaxf(sieve->max[a], sieve->most[a]);
    for (int32_t i = 0; i < sieve->count; i++) {
        const fs_found *found = &sieve->found[i];
        const sifted_row r = row_at(pass, task, found->row);
        if (!settle_listed(&r, found)) settle(&r, found);
    }
    if (sieve->per) weigh_all(pass, task);
    for (int32_t a = 0; exact && a < pass->rows; a++) {
        const sifted_row r = row_at(pass, task, a);
        close_masses(&r);
    }
    return 1;
}

void fs_sift_close(const fs_pass *pass, int32_t task) {
    for (int32_t a = 0; a < pass->rows; a++) {
        const sifted_row r = row_at(pass, task, a);
        const float max = r.sieve->max[a];
        if (r.sieve->per) weigh(&r);
        if (!r.sieve->allow[a] && max > r.summary->max_y) r.summary->max_x = r.summary->max_y = max;
        if (r.summary->max_y * r.rules->inverse_temperature == INFINITY) r.summary->flags |= FS_ROW_INF;
    }
}
