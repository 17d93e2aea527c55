#include "cpu_lists.h"
#include "cpu_schedule.h"
#include "cpu_screened.h"
#include "cpu_stored.h"

/* ---------------------------------------------------------------------------------------------------- layout ---- */

/* Entries of list i; without offsets, or in a row without a slot, there are none. */
static int64_t entries_of(const int64_t *offset, int64_t i, int32_t slot) {
    return offset && slot >= 0 ? offset[i + 1] - offset[i] : 0;
}

/* Row a of the pass; a pass that is only counted has no rows yet. */
static int64_t row_of(const fs_pass *pass, size_t a) {
    return pass->row ? pass->row[a] : (int64_t)a;
}

/* Lists are no shorter than this many entries. */
#define FS_LIST_SHORT 256

/* Lists of `keep` entries: at least twice what they keep, so that thinning is rare, but never more than a task has
 * tokens. Behind each there is room for what fs_scan's append writes too much. */
static fs_room layout_room(const fs_pass *pass, fs_arena *arena, int32_t keep, int with_raw) {
    const fs_call *call = pass->call;
    const int64_t left = schedule_end(call) - call->head->first_token, all = left > 0 ? left : 0;
    const int64_t tokens[2] = {all, schedule_most(pass)};
    const size_t lists[2] = {(size_t)pass->rows, (size_t)pass->rows * (size_t)(pass->cpu->tasks - 1)};
    fs_room room;
    memset(&room, 0, sizeof room);
    for (int i = 0; keep && i < 2; i++) {
        int64_t capacity = keep < FS_LIST_SHORT / 2 ? FS_LIST_SHORT : 2 * (int64_t)keep;
        if (pass->whole || capacity > tokens[i]) capacity = tokens[i];
        room.stride[i] = capacity ? capacity + FS_GRANULE : 0;
        room.capacity[i] = (int32_t)capacity;
        room.keep[i] = capacity < keep || pass->whole ? (int32_t)capacity : keep;
        /* Wide nuclei may fill the merged list: it keeps as many as it can. Parts, which have room for `keep`, are
         * never rough. */
        if (i == 0 && call->needs.rough && capacity == 2 * (int64_t)keep) room.keep[i] = keep + keep / 2;
        room.key[i] = arena_take(arena, lists[i] * (size_t)room.stride[i], sizeof *room.key[i]);
        if (with_raw) room.raw[i] = arena_take(arena, lists[i] * (size_t)room.stride[i], sizeof *room.raw[i]);
    }
    return room;
}

/* What each row, and each task of it, has of its own. */
static void layout_rows(fs_pass *pass, fs_arena *arena) {
    const fs_call *call = pass->call;
    const fs_batch *batch = call->batch;
    const fs_needs *needs = &call->needs;
    const size_t rows = (size_t)pass->rows, tasks = (size_t)pass->cpu->tasks;
    /* What every block looks at lies side by side, row after row, where the next row's is fetched ahead; W has washed
     * it out of the nearer caches since the last block. */
    const size_t samples = (size_t)needs->samples;
    fs_noise *noise = arena_take(arena, rows * samples, sizeof *noise);
    pass->winner = arena_take(arena, tasks * rows * samples, sizeof *pass->winner);
    pass->watches = 0;
    for (size_t a = 0; a < rows; a++) {
        const int64_t b = row_of(pass, a);
        const int32_t slot = batch_slot_index(batch, b);
        fs_active_row active;
        memset(&active, 0, sizeof active);
        active.b = b;
        active.edits = batch_edits(batch, b, slot).count;
        active.extras = entries_of(batch->extra_offset, b, slot);
        active.counts = entries_of(batch->count_offset, slot, slot) + active.extras;
        active.watches = watch_count(batch, b);
        active.watched = pass->watches;
        active.noise = noise ? noise + a * samples : NULL;
        active.edit = arena_take(arena, (size_t)active.edits, sizeof *active.edit);
        active.count = arena_take(arena, (size_t)active.counts, sizeof *active.count);
        active.watch = arena_take(arena, (size_t)active.watches, sizeof *active.watch);
        pass->watches += active.watches;
        if (arena_fits(arena)) pass->active[a] = active;
    }
    pass->watch = arena_take(arena, tasks * (size_t)pass->watches, sizeof *pass->watch);
    pass->entropy = arena_take(arena, needs->entropy ? tasks * rows : 0, sizeof *pass->entropy);
    pass->list = layout_room(pass, arena, pass->storing ? 0 : needs->keep, needs->raw_column);
    pass->raw_list = layout_room(pass, arena, pass->storing ? 0 : needs->keep_raw, 0);
    if (!pass->storing) return;
    pass->store = arena_take(arena, rows * (size_t)fs_stored_floats(call), sizeof *pass->store);
    pass->store_rows = pass->rows;
}

/* Places of a row in a task's logits. */
static int64_t logits_columns(const fs_pass *pass) {
    return pass->block + 2 * FS_GRANULE;
}

/* One filter for each task, or none. */
static void layout_filters(fs_pass *pass, fs_arena *arena) {
    const fs_call *call = pass->call;
    const int can = call->head->kind == FS_HEAD_WEIGHTS && !pass->by_screen && pass_kernel(pass)->filter &&
                    pass->rows > FS_FILTER_LANES;
    const int wanted = pass->largest ||
                       (!pass->groups && !pass->whole && !pass->storing && fs_filter_is_enough(call, pass->block));
    pass->filter = NULL;
    pass->shared.reached = NULL;
    if (!can || !wanted) return;
    pass->shared.tasks = pass->cpu->tasks;
    if (call->needs.keep || pass->largest)
        pass->shared.reached = arena_take(arena, (size_t)pass->rows * (size_t)pass->cpu->tasks, sizeof(uint32_t));
    pass->filter = arena_take(arena, (size_t)pass->cpu->tasks, sizeof *pass->filter);
    for (int32_t t = 0; t < pass->cpu->tasks; t++) {
        const int64_t at = arena_fits(arena) ? (int64_t)t * pass->rows : 0; /* else there is nothing to point into */
        const fs_task_rows rows = {call,
                                   pass->cpu->isa,
                                   &pass->weights,
                                   &pass->hidden,
                                   pass->active,
                                   pass->summary + at,
                                   pass->shared,
                                   pass->published + at,
                                   pass->rows,
                                   pass->block,
                                   t};
        const fs_task_filter filter = fs_filter_layout(&rows, pass->largest, arena);
        if (arena_fits(arena)) pass->filter[t] = filter;
    }
}

int fs_pass_layout(fs_pass *pass, fs_arena *arena) {
    const fs_call *call = pass->call;
    const fs_batch *batch = call->batch;
    const size_t rows = (size_t)pass->rows, tasks = (size_t)pass->cpu->tasks;
    const size_t columns = (size_t)logits_columns(pass);
    const int weights = call->head->kind == FS_HEAD_WEIGHTS;

    if (weights) {
        fs_hidden hidden = {NULL, pass->rows, batch->hidden_dtype, call->head->dim, NULL};
        hidden.row = arena_take(arena, rows, sizeof *hidden.row);
        hidden.packed = arena_take(arena, pass_kernel(pass)->packed_bytes(&hidden), 1);
        pass->hidden = hidden;
    }
    pass->active = arena_take(arena, rows, sizeof *pass->active);
    pass->summary = arena_take(arena, tasks * rows, sizeof *pass->summary);
    pass->group = arena_take(arena, (size_t)pass->groups * rows, sizeof *pass->group);
    pass->logits = arena_take(arena, tasks * rows * columns, sizeof(float));
    pass->scratch = arena_take(arena, tasks, sizeof *pass->scratch);
    pass->spare = arena_take(arena, tasks * (size_t)batch->samples, sizeof *pass->spare);
    pass->next = arena_take(arena, 1, sizeof *pass->next);
    pass->shared.best = arena_take(arena, rows, sizeof *pass->shared.best);
    pass->shared.bound = arena_take(arena, rows, sizeof *pass->shared.bound);
    pass->shared.mass = arena_take(arena, rows, sizeof *pass->shared.mass);
    pass->published = arena_take(arena, tasks * rows, sizeof *pass->published);
    const size_t scheduled = pass->cpu->nodes.count > 1 ? (size_t)schedule_of(pass).turns * tasks : 0;
    pass->order = arena_take(arena, scheduled, sizeof *pass->order);
    if (!scheduled || !weights || !schedule_is_by_nodes(pass)) pass->order = NULL;
    for (size_t t = 0; t < tasks; t++) {
        float *y = arena_take(arena, columns, sizeof *y);
        int32_t *count = arena_take(arena, columns, sizeof *count);
        float *granule = arena_take(arena, columns / FS_GRANULE + 1, sizeof *granule);
        fs_scratch scratch = {y, count, granule};
        if (arena_fits(arena)) pass->scratch[t] = scratch;
    }
    if (pass->by_screen) fs_screened_layout(pass, arena);
    layout_filters(pass, arena);
    layout_rows(pass, arena);
    return arena_fits(arena);
}

/* --------------------------------------------------------------------------------------------------- prepare ---- */

/* Ascending, in place: qsort of some libraries allocates. A heap whose largest goes to its end, again and again. */
static void sort_u64(uint64_t *x, int64_t n) {
    for (int64_t start = n / 2, end = n; end > 1;) {
        uint64_t value;
        if (start > 0) value = x[--start];
        else value = x[--end], x[end] = x[0];
        int64_t at = start;
        for (int64_t child; (child = 2 * at + 1) < end; at = child) {
            child += child + 1 < end && x[child + 1] > x[child];
            if (value >= x[child]) break;
            x[at] = x[child];
        }
        x[at] = value;
    }
}

/* (token << 32 | entry), of entries [from, to). Sorted, entries of one token stay in the caller's order, so sums do not
 * depend on the sort. */
static void list_sparse(const int32_t *token, int64_t from, int64_t to, uint64_t *list) {
    for (int64_t i = from; i < to; i++) list[i] = (uint64_t)(uint32_t)token[i - from] << 32 | (uint64_t)i;
}

/* Lists serve cuts and nothing else, so that what no cut leaves need not be in them. */
static int lists_serve_cuts(const fs_pass *pass) {
    const fs_needs *needs = &pass->call->needs;
    return !needs->rank_depth && !needs->raw_column && !pass->groups;
}

/* A second pass knows the row's mass. Tokens with less than (1 - top_p) / V of it have together less than 1 - top_p, so
 * no nucleus has one; half of that, as the mass may be a rough one. */
static double never_of(const fs_pass *pass, const fs_row_rules *rules) {
    const fs_call *call = pass->call;
    if (!rules_top_p_of_row(rules, call->batch->flags) || rules->cut_scale != rules->inverse_temperature)
        return -INFINITY;
    return log(0.5 * fmax(1.0 - (double)rules->top_p, 0.0) / (double)call->vocab);
}

/* See rows_bound. Only where the row's whole mass decides and a list of another length is not asked for. */
static double rare_of(const fs_pass *pass, const fs_row_rules *rules) {
    const fs_call *call = pass->call;
    if (!lists_serve_cuts(pass)) return -INFINITY;
    if (pass->whole) return never_of(pass, rules);
    if (!rules_top_p_alone(rules) || !call->needs.rough || call->batch->list_capacity) return -INFINITY;
    return pass_rare_share(pass, rules);
}

/* See rows_near. Where min-p comes last, what it removes still counts as mass for a top-p of what is left. */
static double near_of(const fs_pass *pass, const fs_row_rules *rules) {
    const fs_batch *batch = pass->call->batch;
    const int of_left = rules->top_p < 1.0f && !rules_top_p_of_row(rules, batch->flags);
    if (!lists_serve_cuts(pass) || batch->list_capacity || (of_left && batch->flags & FS_MIN_P_LAST)) return -INFINITY;
    return rules->log_min_p;
}

static void prepare_active(const fs_pass *pass, fs_active_row *active) {
    const fs_batch *batch = pass->call->batch;
    const fs_row_rules *rules = &pass->call->rules[active->b];
    active->rare = active->stored.y ? -INFINITY : rare_of(pass, rules);
    active->near = active->stored.y ? -INFINITY : near_of(pass, rules);
    active->listed = !active->stored.y && pass->call->needs.keep && (rules_cut(rules) || pass->call->needs.rank_depth);
    for (int32_t i = 0; i < pass->call->needs.samples; i++)
        active->noise[i] = noise_row(rules->seed, rules->position, (uint32_t)i, rules->substream);
    if (active->edits) {
        const int64_t first = batch_edits(batch, active->b, rules->slot).first;
        active->edit_bias = batch->edit_bias + first;
        list_sparse(batch->edit_token + first, 0, active->edits, active->edit);
        sort_u64(active->edit, active->edits);
    }
    const int64_t counted = active->counts - active->extras;
    if (counted) {
        const int64_t first = batch->count_offset[rules->slot];
        active->count_value = batch->count_value + first;
        list_sparse(batch->count_token + first, 0, counted, active->count);
    }
    if (active->extras)
        list_sparse(batch->extra_token + batch->extra_offset[active->b], counted, active->counts, active->count);
    sort_u64(active->count, active->counts);
    for (int64_t i = 0; i < active->watches; i++)
        active->watch[i] = (uint64_t)(uint32_t)watch_token(batch, active->b, i) << 32 | (uint64_t)i;
    sort_u64(active->watch, active->watches);
}

/* Rows, and shares of H by columns, in whole cache lines of what is packed. */
typedef struct fs_preparing {
    const fs_pass *pass;
    int32_t tasks;
} fs_preparing;

/* What the first pass knew of a row's mass. */
static void known_mass(const fs_pass *pass, int32_t a) {
    const double log_mass = mass_log(&pass->kept[pass->row[a]].mass);
    if (pass->active[a].rare > -INFINITY && fabs(log_mass) <= (double)FS_EXP_EXACT)
        atomic_init(&pass->shared.mass[a], ordered_float((float)log_mass));
}

static void prepare_task(void *arg, int32_t task) {
    const fs_preparing *p = arg;
    const fs_hidden *hidden = &p->pass->hidden;
    const int64_t units = (hidden->dim + FS_PACK - 1) / FS_PACK, tasks = p->tasks;
    for (int32_t a = task; a < p->pass->rows; a += p->tasks) {
        prepare_active(p->pass, &p->pass->active[a]);
        shared_clear(&p->pass->shared, a);
        if (p->pass->whole) known_mass(p->pass, a);
    }
    if (p->pass->by_screen)
        for (int32_t a = task; a < p->pass->rows; a += p->tasks) fs_screened_prepare(p->pass, a);
    else if (p->pass->call->head->kind == FS_HEAD_WEIGHTS)
        pass_kernel(p->pass)->pack(hidden, units * task / tasks * FS_PACK, units * (task + 1) / tasks * FS_PACK);
}

/* Elements of H, some 5 us: what a thread takes of them at least. Sorting an entry costs as much as some of them. */
#define FS_PREPARED_AT_LEAST (1 << 13)
#define FS_SORTED_ENTRY 8

static int64_t work_to_prepare(const fs_pass *pass) {
    int64_t work = pass->call->head->kind == FS_HEAD_WEIGHTS ? pass->rows * pass->call->head->dim : 0;
    for (int32_t a = 0; a < pass->rows; a++)
        work += FS_SORTED_ENTRY * (pass->active[a].edits + pass->active[a].counts + pass->active[a].watches);
    return work;
}

/* Says which rows have their logits stored, and where. */
static void place_stored(const fs_pass *pass) {
    const int64_t floats = fs_stored_floats(pass->call);
    int32_t next = 0;
    for (int32_t a = 0; a < pass->rows && next < pass->store_rows; a++) {
        fs_active_row *active = &pass->active[a];
        if (!stored_wanted(pass, &pass->call->rules[active->b])) continue;
        active->stored = fs_stored_at(pass->call, pass->store + next++ * floats);
        active->known = pass->storing;
    }
}

void fs_pass_prepare(fs_pass *pass) {
    const fs_cpu *cpu = pass->cpu;
    const fs_head *head = pass->call->head;
    const fs_batch *batch = pass->call->batch;
    const fs_matrix hidden = hidden_of_batch(head, batch);
    atomic_init(pass->next, 0);
    if (pass->order) schedule_by_nodes(pass);
    place_stored(pass);
    for (int32_t a = 0; head->kind == FS_HEAD_WEIGHTS && a < pass->rows; a++)
        pass->hidden.row[a] = matrix_row(&hidden, pass->row[a]);
    const int64_t worth = 1 + work_to_prepare(pass) / FS_PREPARED_AT_LEAST;
    fs_preparing preparing = {pass, worth < cpu->tasks ? (int32_t)worth : cpu->tasks};
    fs_pass_parallel(cpu, preparing.tasks, prepare_task, &preparing);
}

/* ------------------------------------------------------------------------------------------------------- run ---- */

/* load, dot: the block's logits of every row, each at its lead in its line of `logits`. */
static void compute_block(const fs_pass *pass, fs_block block, float *logits) {
    const fs_head *head = pass->call->head;
    const int64_t first = block.first - head->first_token, columns = logits_columns(pass);
    float *out = logits + block_lead(block);
    if (pass->by_screen) {
        fs_screened_block(pass, first, block.n, out, columns);
        return;
    }
    if (head->kind == FS_HEAD_WEIGHTS) {
        pass_kernel(pass)->tile(&pass->hidden, &pass->weights, first, (int32_t)block.n, out, columns);
        return;
    }
    const fs_matrix stored = logits_of_head(head);
    const char *x = stored.data + format_row_bytes(stored.format, first);
    for (int32_t a = 0; a < pass->rows; a++)
        pass->cpu->isa->scan->load[stored.format](x + pass->active[a].b * stored.stride, block.n, out + a * columns);
}

static void share_mass(const fs_pass *pass, int32_t task, int32_t a, const fs_mass *mass) {
    if (pass->active[a].rare > -INFINITY && !pass->whole)
        shared_add_mass(&pass->shared.mass[a], mass, &pass->published[(int64_t)task * pass->rows + a]);
}

#define FS_ROWS_AHEAD 3 /* a row of a block takes some 200 ns and more, a line from memory 100 to 300 */

/* Logits are stored, and each row takes its own. */
static void absorb_stored(const fs_pass *pass, fs_block block, int32_t task, float *logits) {
    const int64_t columns = logits_columns(pass);
    fs_summary *summary = pass->summary + (int64_t)task * pass->rows;
    /* Each task begins with rows of its own, whose bounds it shares first. */
    const int32_t start = (int32_t)((int64_t)task * pass->rows / pass->cpu->tasks);
    for (int32_t i = 0; i < pass->rows; i++) {
        const int32_t a = (start + i) % pass->rows;
        fs_rows_fetch(pass->call, &pass->active[(a + FS_ROWS_AHEAD) % pass->rows], block);
        fs_shared_row shared = {FS_KEY_NONE, shared_log(shared_load(&pass->shared.mass[a]))};
        if (pass->filter) shared.best = fs_filter_read_shared(&pass->filter[task], a);
        fs_rows_absorb(pass->call, pass->cpu->isa, &pass->active[a], &pass->scratch[task], block, logits + a * columns,
                       shared, &summary[a]);
        if (pass->filter) fs_filter_share(&pass->filter[task], a);
        share_mass(pass, task, a, &summary[a].mass);
    }
}

#define FS_FREQUENT (2 * FS_NOISE_BLOCK) /* ids, the lowest, where half of a row's mass may lie */

/* Whoever has the most frequent tokens looks at them before the rest of its block, so that bounds are shared when the
 * other tasks look at theirs; masses first, before a race is run. */
static void absorb_frequent(const fs_pass *pass, int32_t task, float *logits) {
    const fs_block low = {0, FS_FREQUENT};
    compute_block(pass, low, logits);
    for (int32_t a = 0; a < pass->rows; a++) {
        if (!(pass->active[a].rare > -INFINITY)) continue;
        const fs_mass mass = fs_rows_mass(pass->call, pass->cpu->isa, &pass->active[a], &pass->scratch[task], low,
                                          logits + a * logits_columns(pass),
                                          &pass->summary[(int64_t)task * pass->rows + a]);
        share_mass(pass, task, a, &mass);
    }
    absorb_stored(pass, low, task, logits);
}

/* Of upper bounds. Each task begins with rows of its own, as above. */
static void absorb_screened(const fs_pass *pass, fs_block block, int32_t task, float *logits) {
    const int32_t start = (int32_t)((int64_t)task * pass->rows / pass->cpu->tasks);
    for (int32_t i = 0; i < pass->rows; i++) {
        const int32_t a = (start + i) % pass->rows;
        fs_screened_absorb(pass, block, task, a, logits + a * logits_columns(pass));
    }
}

static void absorb_block(const fs_pass *pass, fs_block block, int32_t task) {
    float *logits = pass->logits + (int64_t)task * pass->rows * logits_columns(pass);
    if (pass->by_screen) {
        if (fs_screened_is_left(pass, task)) return;
        compute_block(pass, block, logits);
        absorb_screened(pass, block, task, logits);
        return;
    }
    if (pass->filter && fs_filter_block(&pass->filter[task], block)) return;
    if (pass->filter && block.first == 0 && block.n > FS_FREQUENT) {
        absorb_frequent(pass, task, logits);
        block.first += FS_FREQUENT;
        block.n -= FS_FREQUENT;
    }
    compute_block(pass, block, logits);
    absorb_stored(pass, block, task, logits);
}

/* Tokens of a task's next block, at most. */
static int64_t next_length(const fs_pass *pass, int32_t task) {
    return pass->filter ? fs_filter_length(&pass->filter[task]) : pass->block;
}

static void absorb_range(const fs_pass *pass, fs_block range, int32_t task) {
    const int64_t end = range.first + range.n;
    for (int64_t first = range.first; first < end;) {
        const int64_t next = first / FS_NOISE_BLOCK * FS_NOISE_BLOCK + next_length(pass, task);
        fs_block block = {first, (next < end ? next : end) - first};
        absorb_block(pass, block, task);
        first = next;
    }
}

/* Group modes: a group is absorbed like a range of its own, and its mass and winner are kept. */
static void absorb_groups(const fs_pass *pass, fs_block range, int32_t task) {
    const int64_t size = pass->call->batch->group_size, end = range.first + range.n;
    const int64_t first_group = pass->call->head->first_token / size;
    fs_summary *summary = pass->summary + (int64_t)task * pass->rows;
    for (int64_t first = range.first; first < end;) {
        int64_t next = (first / size + 1) * size;
        fs_block block = {first, (next < end ? next : end) - first};
        fs_group *group = pass->group + (first / size - first_group) * pass->rows;
        absorb_range(pass, block, task);
        for (int32_t a = 0; a < pass->rows; a++) {
            group[a].mass = summary[a].mass;
            group[a].winner = summary[a].winner[0];
            summary[a].mass = mass_empty();
            summary[a].winner[0].key = FS_KEY_NONE;
        }
        first = next;
    }
}

static fs_list empty_list(const fs_pass *pass, const fs_room *room, int32_t task, int32_t a) {
    const int i = task > 0;
    const int64_t at = ((int64_t)(task - i) * pass->rows + a) * room->stride[i];
    fs_list list;
    memset(&list, 0, sizeof list);
    if (!room->key[i]) return list;
    list.key = room->key[i] + at;
    list.raw = room->raw[i] ? room->raw[i] + at : NULL;
    list.keep = room->keep[i];
    list.capacity = room->capacity[i];
    list.bound = FS_KEY_NONE;
    return list;
}

/* Whether a pass sums the row's entropy over all its tokens: that of survivors follows from their list. */
static int pass_sums_entropy(const fs_pass *pass, const fs_active_row *active) {
    const fs_call *call = pass->call;
    const int cut = call->result->logits_mode == FS_LOGITS_CUT && rules_cut(&call->rules[active->b]);
    return call->needs.entropy && !active->known && !cut;
}

/* By the task itself: no other one writes where its summaries lie. */
static void empty_summary(const fs_pass *pass, int32_t task, int32_t a) {
    const int64_t at = (int64_t)task * pass->rows + a, samples = pass->call->needs.samples;
    const fs_active_row *active = &pass->active[a];
    fs_summary *s = &pass->summary[at];
    s->flags = 0;
    s->max_x = s->max_y = -INFINITY;
    s->mass = s->raw_mass = s->cut_mass = mass_empty();
    s->winner = pass->winner + at * samples;
    memset(s->winner, 0, (size_t)samples * sizeof *s->winner);
    s->list = empty_list(pass, &pass->list, task, a);
    s->raw_list = empty_list(pass, &pass->raw_list, task, a);
    s->watch = pass->watch + task * pass->watches + active->watched;
    for (int64_t i = 0; i < active->watches; i++) s->watch[i].x = s->watch[i].y = NAN;
    s->entropy = pass_sums_entropy(pass, active) ? pass->entropy + at : NULL;
    if (s->entropy) *s->entropy = entropy_empty();
    pass->published[at] = -INFINITY;
}

static void run_task(void *arg, int32_t task) {
    const fs_pass *pass = arg;
    const fs_schedule schedule = schedule_of(pass);
    for (int32_t a = 0; a < pass->rows; a++) empty_summary(pass, task, a);
    for (int32_t a = 0; pass->by_screen && a < pass->rows; a++) fs_screened_open(pass, task, a);
    if (pass->filter) fs_filter_open(&pass->filter[task]);
    if (schedule.dynamic) {
        for (fs_block block; (block = schedule_take(pass, &schedule, next_length(pass, task))).n > 0;)
            absorb_block(pass, block, task);
    } else {
        for (int64_t turn = 0; turn <= schedule.turns; turn++) {
            fs_block range = schedule_turn(pass, &schedule, task, turn);
            if (pass->groups) absorb_groups(pass, range, task);
            else absorb_range(pass, range, task);
        }
    }
    if (pass->filter) fs_filter_close(&pass->filter[task]);
}

void fs_pass_run(fs_pass *pass) {
    fs_pass_parallel(pass->cpu, pass->cpu->tasks, run_task, pass);
    atomic_store(pass->next, 0);
}
