#include "cpu_filter_rows.h"
#include "cpu/cpu_lists.h"
#include "cpu/cpu_race.h"
#include "cpu/kernels/cpu_rough.h"

#include "core/head.h"

/* ---------------------------------------------------------------------------------------------------- layout ---- */

int fs_filter_is_enough(const fs_call *call, int64_t block) {
    const fs_head *head = call->head;
    const fs_needs *needs = &call->needs;
    if (!head_is_plain(head)) return 0;
    if (call->batch->noise == FS_NOISE_FAST || needs->samples != 1 || needs->ordered) return 0;
    if (needs->edited || needs->rank_depth || needs->watched || needs->cut_mass || needs->entropy) return 0;
    if (call->batch->allow && (needs->mass || needs->raw_mass || needs->max)) return 0;
    /* A block's rough terms are one float sum, of 16 at a time: as many as keep it within half of mass_slack. Lanes of
     * exact ones have room for that many granules (FS_WIDE_TERMS). */
    return !(needs->mass || needs->raw_mass) || block <= FS_MASS_BLOCK_MOST;
}

/* Lanes of these rows, whole vectors of them. */
static int32_t lanes_of(const fs_task_rows *rows) {
    return (rows->count + FS_FILTER_LANES - 1) / FS_FILTER_LANES * FS_FILTER_LANES;
}

fs_task_filter fs_filter_layout(const fs_task_rows *of, int largest, fs_arena *arena) {
    const fs_needs *needs = &of->call->needs;
    const size_t rows = (size_t)lanes_of(of), sets = (rows + FS_FILTER_SUMS - 1) / FS_FILTER_SUMS;
    fs_task_filter task;
    fs_filter *s = &task.filter;
    memset(&task, 0, sizeof task);
    task.rows = *of;
    s->capacity = of->count * FS_FILTER_FOUND;
    s->floor = arena_take(arena, rows, sizeof *s->floor);
    task.bare = arena_take(arena, rows, sizeof *task.bare);
    task.best = arena_take(arena, rows, sizeof *task.best);
    s->allow = arena_take(arena, rows, sizeof *s->allow);
    s->scale = arena_take(arena, rows, sizeof *s->scale);
    s->reach = arena_take(arena, rows, sizeof *s->reach);
    s->r0 = arena_take(arena, rows, sizeof *s->r0);
    s->r1 = arena_take(arena, rows, sizeof *s->r1);
    s->r2 = arena_take(arena, rows, sizeof *s->r2);
    s->most = arena_take(arena, rows, sizeof *s->most);
    task.max = arena_take(arena, rows, sizeof *task.max);
    task.seen_bound = arena_take(arena, rows, sizeof *task.seen_bound);
    task.seen_mass = arena_take(arena, rows, sizeof *task.seen_mass);
    const int exact[2] = {needs->mass && !needs->rough, needs->raw_mass};
    for (int i = 0; i < 2; i++) {
        if (!exact[i] && !largest) continue;
        s->exact[i].scale = arena_take(arena, rows, sizeof(float));
        s->exact[i].limb = arena_take(arena, 3 * rows, sizeof(uint32_t));
        s->exact[i].top = arena_take(arena, rows, sizeof(int32_t));
        s->exact[i].mass = arena_take(arena, rows, sizeof(fs_mass));
    }
    if ((needs->mass && needs->rough) || largest) {
        s->per = arena_take(arena, rows, sizeof *s->per);
        s->mass = arena_take(arena, rows, sizeof *s->mass);
        s->unit = arena_take(arena, rows, sizeof *s->unit);
        task.pending = arena_take(arena, rows, sizeof *task.pending);
        task.pending_worth = arena_take(arena, rows, sizeof *task.pending_worth);
    }
    s->sums = arena_take(arena, sets * FS_NOISE_BLOCK * FS_FILTER_SUMS, sizeof *s->sums);
    s->found = arena_take(arena, (size_t)s->capacity, sizeof *s->found);
    s->overlapped = of->isa->overlapped || s->per;
    if (!needs->keep && !largest) return task; /* a call without lists is as fast as if there were none of these */
    task.ranks = arena_take(arena, rows, sizeof *task.ranks);
    task.ranked = arena_take(arena, rows * FS_RANKED, sizeof *task.ranked);
    s->store = arena_take(arena, rows, sizeof *s->store);
    s->store_most = arena_take(arena, rows, sizeof *s->store_most);
    return task;
}

/* What rows with lists have besides. */
static void open_lists(fs_task_filter *task) {
    fs_filter *filter = &task->filter;
    task->ranking = filter->stores = 0;
    for (int32_t a = 0; task->ranks && a < lanes_of(&task->rows); a++) {
        filter->stores |= a < task->rows.count && task->rows.active[a].stored.y;
        filter->store[a] = NULL;
        task->ranks[a] = 0;
        for (int32_t i = 0; i < FS_RANKED; i++) task->ranked[a * FS_RANKED + i] = -INFINITY;
    }
}

/* Lanes without a row find nothing. */
void fs_filter_open(fs_task_filter *task) {
    const fs_call *call = task->rows.call;
    fs_filter *filter = &task->filter;
    task->begun = task->noisy = task->ready = task->pause = task->paused = 0;
    for (int32_t a = 0; a < task->rows.count; a++) task->noisy |= !call->rules[task->rows.active[a].b].greedy;
    open_lists(task);
    for (int32_t a = 0; a < lanes_of(&task->rows); a++) {
        filter->floor[a] = filter->reach[a] = INFINITY;
        filter->allow[a] = a < task->rows.count ? fs_rows_allowed(call, task->rows.active[a].b) : NULL;
        filter->scale[a] = 0.0f;
        filter->most[a] = task->max[a] = -INFINITY;
        filter->r0[a] = filter->r1[a] = filter->r2[a] = 0;
        if (filter->per) filter->per[a] = filter->mass[a] = 0.0f, task->pending[a] = 0.0, filter->unit[a] = 0;
        for (int i = 0; i < 2; i++)
            if (filter->exact[i].mass) filter->exact[i].scale[a] = 0.0f, block_mass_start(&filter->exact[i], a, 0);
    }
}

/* ---------------------------------------------------------------------------------------------------- criteria ---- */

/* One of the task's rows. */
typedef struct filtered_row {
    const fs_call *call;
    const fs_active_row *active;
    const fs_row_rules *rules;
    fs_summary *summary;
    fs_task_filter *task;
    fs_filter *filter; /* the task's */
    const fs_shared *shared;
    const fs_scan *scan;
    int32_t a; /* its place in the pass */
} filtered_row;

static filtered_row row_at(fs_task_filter *task, int32_t a) {
    const fs_task_rows *rows = &task->rows;
    const fs_active_row *active = &rows->active[a];
    filtered_row r = {
        rows->call,      active, &rows->call->rules[active->b], &rows->summary[a], task, &task->filter, &rows->shared,
        rows->isa->scan, a};
    return r;
}

/* y * inverse is above t only if y is above this. */
static float logit_below(double t, float inverse) {
    const double y = fmin(t, (double)FLT_MAX) / (double)inverse, loose = y - (fabs(y) * 0x1p-20 + 1e-30);
    return !(loose < (double)FLT_MAX) ? FLT_MAX : loose < -(double)FLT_MAX ? -INFINITY : (float)loose;
}

static void set_floor(const filtered_row *r) {
    const float bare = r->task->bare[r->a];
    r->filter->floor[r->a] = r->active->listed ? fminf(bare, list_floor(&r->summary->list)) : bare;
}

/* The best score, and what it leaves a chance. */
static void set_best(const filtered_row *r, uint64_t key) {
    const double floor = floor_below(r->rules, key);
    r->task->best[r->a] = key;
    r->task->bare[r->a] = logit_below(floor, r->rules->inverse_temperature);
    r->filter->reach[r->a] = r->rules->greedy ? INFINITY : mark_floor(floor);
}

/* Whether a list's bound can be shared: the cut is a rank that every such list proves. */
static int is_for_all(const filtered_row *r) {
    const int32_t top_k = r->rules->top_k;
    if (!r->active->listed || r->call->batch->flags & FS_KEEP_TIES) return 0;
    return top_k > 0 && top_k <= r->summary->list.keep;
}

static void share_bound(const filtered_row *r) {
    if (r->active->near > -INFINITY)
        shared_raise(&r->shared->bound[r->a], rows_near(r->active, r->rules, r->summary->max_y));
    if (is_for_all(r)) shared_raise_bound(&r->shared->bound[r->a], r->summary->list.bound);
}

/* How many of its largest logits each task remembers of a row, so that half of the tasks, or all of them, remember its
 * top-k; 0: too many. With half of them nobody waits for the slowest. */
static int32_t ranks_of(const filtered_row *r) {
    const int32_t tasks = r->shared->tasks, k = r->rules->top_k, half = (tasks + 1) / 2;
    const int32_t n = (k + half - 1) / half, least = (k + tasks - 1) / tasks;
    return !is_for_all(r) || least > FS_RANKED ? 0 : n < FS_RANKED ? n : FS_RANKED;
}

static void set_ranks(const filtered_row *r) {
    if (!r->task->ranks) return;
    r->task->ranks[r->a] = ranks_of(r);
    r->task->ranking |= r->task->ranks[r->a] > 0;
}

static void rank(float *ranked, int32_t n, float y) {
    int32_t i = n - 1;
    if (!(y > ranked[i])) return;
    for (; i > 0 && ranked[i - 1] < y; i--) ranked[i] = ranked[i - 1];
    ranked[i] = y;
}

static void share_ranked(const filtered_row *r) {
    const int32_t n = r->task->ranks[r->a];
    if (n < 1) return;
    const float least = r->task->ranked[r->a * FS_RANKED + n - 1];
    if (least > -INFINITY) shared_reach(r->shared, r->a, r->task->rows.task, (r->rules->top_k + n - 1) / n, least);
}

/* After a stored block: the largest of the list, which may have been there before. */
static void rank_list(const filtered_row *r) {
    const fs_list *list = &r->summary->list;
    const int32_t n = r->task->ranks[r->a];
    float *ranked = r->task->ranked + r->a * FS_RANKED, found[FS_RANKED];
    for (int32_t i = 0; i < n; i++) found[i] = -INFINITY;
    for (int32_t i = 0; i < list->count; i++) rank(found, n, order_key_logit(list->key[i]));
    if (found[n - 1] > ranked[n - 1]) memcpy(ranked, found, sizeof found[0] * (size_t)n);
    share_ranked(r);
}

/* The bound that is shared of the row's list. 0: nothing new. */
static int read_bound(const filtered_row *r) {
    const uint64_t bound = r->task->seen_bound[r->a] = shared_load(&r->shared->bound[r->a]);
    return (is_for_all(r) || r->active->near > -INFINITY) && fs_lists_raise(&r->summary->list, r->scan, bound);
}

#define FS_PENDING_MOST 0x1p100 /* a float holds it, and a block's terms besides */

/* And its mass: a bound, and how many of the terms to come are worth sharing. */
static int read_mass(const filtered_row *r) {
    const uint64_t mass = r->task->seen_mass[r->a] = shared_load(&r->shared->mass[r->a]);
    if (!r->filter->per || !(r->active->rare > -INFINITY)) return 0;
    const double known = exp2(shared_log(mass) * 1.4426950408889634 - (double)r->filter->unit[r->a]);
    r->task->pending_worth[r->a] = fmin(FS_WORTH_SHARING * known, FS_PENDING_MOST);
    return fs_lists_raise(&r->summary->list, r->scan, rows_bound(r->active, r->rules, shared_log(mass)));
}

static int shared_changed(const fs_task_filter *task, int32_t a) {
    const fs_shared *shared = &task->rows.shared;
    return shared_load(&shared->best[a]) > task->best[a] || shared_load(&shared->bound[a]) != task->seen_bound[a] ||
           shared_load(&shared->mass[a]) != task->seen_mass[a];
}

static void read_shared(const filtered_row *r) {
    const uint64_t best = shared_load(&r->shared->best[r->a]);
    const int raised = read_bound(r) | read_mass(r);
    if (best <= r->task->best[r->a] && !raised) return;
    if (best > r->task->best[r->a]) set_best(r, best);
    set_floor(r);
}

uint64_t fs_filter_read_shared(fs_task_filter *task, int32_t a) {
    const filtered_row r = row_at(task, a);
    read_bound(&r);
    return shared_load(&r.shared->best[a]);
}

void fs_filter_share(fs_task_filter *task, int32_t a) {
    const filtered_row r = row_at(task, a);
    shared_raise(&r.shared->best[a], r.summary->winner[0].key);
    share_bound(&r);
    set_ranks(&r);
    if (task->ranking && task->ranks[a]) rank_list(&r);
}

/* The terms since the last time into the row's mass. */
static void flush_mass(const filtered_row *r) {
    double *pending = &r->task->pending[r->a];
    if (*pending > 0x1p-60) mass_add(&r->summary->mass, (float)*pending, r->filter->unit[r->a]);
    *pending = 0.0;
}

/* The scale of terms to come. */
static void set_scale(const filtered_row *r) {
    fs_filter *filter = r->filter;
    const rough_scale s = rough_scale_of(r->summary->max_y, r->rules->inverse_temperature);
    flush_mass(r);
    filter->per[r->a] = s.per;
    filter->unit[r->a] = s.unit;
    filter->mass[r->a] = 0.0f;
    r->task->pending_worth[r->a] = FS_PENDING_MOST;
}

/* Says what is to be found. 0 if the row is not ready for that, and blocks have to be stored. A row with a mask is,
 * after a block: if it has no winner then, or no bound, its mask allows so little that all of it may be found. */
static int set_criteria(const filtered_row *r, int first) {
    fs_filter *filter = r->filter;
    const float inverse = r->rules->inverse_temperature;
    if (!(inverse * FS_ROUGH_SCALE > 1.0f && inverse < FS_ROUGH_SCALE)) return 0;
    if (filter->allow[r->a] && r->rules->log_min_p > -INFINITY) return 0; /* it needs the largest allowed logit */
    if (filter->per && !(fabsf(r->summary->max_y * inverse) <= 0.5f * FS_ROUGH_MOST)) return 0;
    if (filter->per) set_scale(r);
    set_best(r, r->summary->winner[0].key);
    set_floor(r);
    read_shared(r);
    const int ready = r->task->best[r->a] != FS_KEY_NONE &&
                      (!r->active->listed || r->summary->list.bound != FS_KEY_NONE);
    if (!ready && (first || !filter->allow[r->a])) return 0;
    set_ranks(r);
    filter->scale[r->a] = inverse;
    filter->r0[r->a] = r->active->noise[0].r0;
    filter->r1[r->a] = r->active->noise[0].r1;
    filter->r2[r->a] = r->active->noise[0].r2 ^ FS_DOMAIN_MARK;
    return 1;
}

/* ----------------------------------------------------------------------------------------------------- absorb ---- */

/* A token that its logit, or its mark, gives a chance enters the race. One that has a mark and is found by its logit is
 * scored as if it had none: that is less than its score, which its mark has found too if it can win. */
static void absorb_marked(const filtered_row *r, const fs_found *found, uint32_t token) {
    fs_winner *winner = &r->summary->winner[0];
    fs_race race = {r->rules, r->active->noise[0], winner, 1, r->task->best[r->a], 0.0, NULL};
    race_set_floor(&race);
    const double l = (double)(found->y * r->rules->inverse_temperature);
    const double most = found->prefix < 0 ? l : l - FS_NOISE_G + (double)noise_ceiling((uint32_t)found->prefix);
    if (!(most > race.floor)) return;
    if (r->rules->greedy) race_offer(&race, token, found->y, found->y, 0.0);
    else if (found->prefix < 0) race_bare(&race, token, found->y, found->y, 0);
    else race_offer(&race, token, found->y, found->y, noise_gumbel_given(race.noise, token, found->prefix));
    if (winner->key <= r->task->best[r->a]) return;
    shared_raise(&r->shared->best[r->a], winner->key);
    set_best(r, winner->key);
}

/* Most of what is found is above the bound of a list, and in no race. 0: there is more to do. */
static int absorb_listed(const filtered_row *r, const fs_found *found) {
    fs_list *list = &r->summary->list;
    const uint64_t key = order_key(found->y, (uint32_t)(r->filter->first + found->place));
    if (found->prefix >= 0 || found->y > r->task->bare[r->a] || found->y > r->summary->max_y) return 0;
    if (!r->active->listed || list->count == list->capacity) return 0;
    list->key[list->count] = key;
    list->count += key > list->bound;
    if (r->task->ranks[r->a]) rank(r->task->ranked + r->a * FS_RANKED, r->task->ranks[r->a], found->y);
    return 1;
}

/* A token that was found in the block, of this row. */
static void absorb_found(const filtered_row *r, const fs_found *found) {
    fs_list *list = &r->summary->list;
    const uint32_t token = (uint32_t)(r->filter->first + found->place);
    const uint64_t bound = list->bound;
    if (found->y > r->summary->max_y) {
        r->summary->max_x = r->summary->max_y = found->y;
        if (r->active->near > -INFINITY) fs_lists_raise(list, r->scan, rows_near(r->active, r->rules, found->y));
    }
    if (r->active->listed && found->prefix < 0) {
        list_offer(list, order_key(found->y, token), found->y);
        if (r->task->ranks[r->a]) rank(r->task->ranked + r->a * FS_RANKED, r->task->ranks[r->a], found->y);
    }
    if (list->bound != bound) share_bound(r);
    if (found->prefix >= 0 || found->y > r->task->bare[r->a]) absorb_marked(r, found, token);
    set_floor(r);
}

/* After a block of a filter with masses: its terms, which are shared when they are worth it. */
static void flush_masses(fs_task_filter *task) {
    fs_filter *filter = &task->filter;
    for (int32_t a = 0; a < task->rows.count; a++) {
        task->pending[a] += (double)filter->mass[a];
        filter->mass[a] = 0.0f;
    }
    for (int32_t a = 0; a < task->rows.count; a++) {
        if (!(task->pending[a] > task->pending_worth[a])) continue;
        const filtered_row r = row_at(task, a);
        flush_mass(&r);
        if (r.active->rare > -INFINITY) shared_add_mass(&r.shared->mass[a], &r.summary->mass, &task->rows.published[a]);
        if (read_mass(&r)) set_floor(&r);
    }
}

/* Before a block: masses of it alone, in limbs of the row's mass so far, so that hardly any has to be raised. */
static void open_masses(const filtered_row *r) {
    const fs_mass *mass[2] = {&r->summary->mass, &r->summary->raw_mass};
    const float scale[2] = {r->rules->inverse_temperature, 1.0f};
    for (int i = 0; i < 2; i++) {
        const fs_block_mass *w = &r->filter->exact[i];
        if (!w->mass) continue;
        w->scale[r->a] = scale[i];
        block_mass_start(w, r->a, mass[i]->top);
    }
}

/* After it. */
static void close_masses(const filtered_row *r) {
    fs_mass *mass[2] = {&r->summary->mass, &r->summary->raw_mass};
    for (int i = 0; i < 2; i++) {
        const fs_block_mass *w = &r->filter->exact[i];
        if (!w->mass) continue;
        block_mass_flush(w, r->a);
        mass_merge(mass[i], &w->mass[r->a]);
    }
}

/* Before a block: where its logits are stored. */
static void open_store(const fs_task_filter *task, int64_t first) {
    const fs_head *head = task->rows.call->head;
    for (int32_t a = 0; task->filter.stores && a < task->rows.count; a++) {
        const fs_stored *stored = &task->rows.active[a].stored;
        if (!stored->y) continue;
        task->filter.store[a] = stored->y + stored_place(head, first);
        task->filter.store_most[a] = stored->most + stored_block(head, first);
    }
}

int64_t fs_filter_length(const fs_task_filter *task) {
    return task->begun || task->noisy || task->rows.call->needs.keep ? task->rows.block : FS_NOISE_BLOCK;
}

int fs_filter_block(fs_task_filter *task, fs_block block) {
    const fs_head *head = task->rows.call->head;
    fs_filter *filter = &task->filter;
    const int first = !task->begun, exact = filter->exact[0].mass || filter->exact[1].mass;
    task->begun = 1;
    if (block.first % FS_NOISE_BLOCK || (task->paused && task->paused--)) return task->ready = 0;
    for (int32_t a = 0; a < task->rows.count; a++) {
        filter->most[a] = -INFINITY;
        if (task->ready && !shared_changed(task, a) && !exact) continue;
        const filtered_row r = row_at(task, a);
        if (task->ready) read_shared(&r);
        else if (!set_criteria(&r, first)) return 0;
        open_masses(&r);
    }
    task->ready = 1;
    filter->count = filter->failed = 0;
    filter->first = block.first;
    open_store(task, block.first);
    task->rows.isa->kernel[task->rows.weights->format]->filter(
        task->rows.hidden, task->rows.weights, block.first - head->first_token, (int32_t)block.n, filter);
    for (int32_t a = 0; filter->per && a < task->rows.count; a++) filter->failed |= !(filter->mass[a] < FLT_MAX);
    if (filter->failed) {
        task->paused = task->pause = task->pause ? 2 * task->pause : 4;
        return task->ready = 0;
    }
    for (int32_t a = 0; a < task->rows.count; a++) task->max[a] = fmaxf(task->max[a], filter->most[a]);
    for (int32_t i = 0; i < filter->count; i++) {
        const fs_found *found = &filter->found[i];
        const filtered_row r = row_at(task, found->row);
        if (!absorb_listed(&r, found)) absorb_found(&r, found);
    }
    for (int32_t a = 0; task->ranking && filter->count && a < task->rows.count; a++) {
        const filtered_row r = row_at(task, a);
        share_ranked(&r);
    }
    if (filter->per) flush_masses(task);
    for (int32_t a = 0; exact && a < task->rows.count; a++) {
        const filtered_row r = row_at(task, a);
        close_masses(&r);
    }
    return 1;
}

void fs_filter_close(fs_task_filter *task) {
    for (int32_t a = 0; a < task->rows.count; a++) {
        const filtered_row r = row_at(task, a);
        const float max = r.task->max[a];
        if (r.filter->per) flush_mass(&r);
        if (!r.filter->allow[a] && max > r.summary->max_y) r.summary->max_x = r.summary->max_y = max;
        if (r.summary->max_y * r.rules->inverse_temperature == INFINITY) r.summary->flags |= FS_ROW_INF;
    }
}
