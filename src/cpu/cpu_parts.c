#include "cpu_parts.h"
#include "cpu_screened.h"
#include "cpu_second.h"

#include "core/finish.h"
#include "core/wire.h"

/* --------------------------------------------------------------------------------------------------- partial ---- */

fs_status fs_cpu_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                              int32_t least, size_t *bytes) {
    (void)context;
    fs_job job = fs_job_of_part(head, batch, result, least);
    *bytes = wire_size(&job.call);
    return FS_OK;
}

/* Rows whose summaries a part takes, or that a screen leaves to a pass over W. */
static void end_task(void *arg, int32_t task) {
    const fs_job *job = arg;
    const fs_pass *pass = &job->pass;
    (void)task;
    for (int32_t a; (a = fs_pass_merged(pass)) >= 0;) {
        if (pass->by_screen) fs_screened_end(pass, a);
        job->state[pass->row[a]] = pass->by_screen && fs_screened_gave_up(pass, a) ? FS_TO_READ : FS_DONE;
        list_compact(&pass->summary[a].list);
        list_compact(&pass->summary[a].raw_list);
    }
}

/* A pass, and the rows that it ends into the part. */
static void run_to_part(fs_job *job, void *part) {
    const fs_pass *pass = &job->pass;
    fs_job_run(job, end_task);
    for (int32_t a = 0; a < pass->rows; a++)
        if (job->state[pass->row[a]] == FS_DONE) fs_wire_put(&job->call, pass->row[a], &pass->summary[a], part);
}

fs_status fs_cpu_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                         int32_t least, int32_t sealed, void *part, size_t bytes) {
    fs_job job = fs_job_of_part(head, batch, result, least);
    FS_REQUIRE(context, bytes >= wire_size(&job.call), "part has %zu bytes, needs %zu (fs_partial_size)", bytes,
               wire_size(&job.call));
    job.screened = !least && fs_job_screens(&job, context); /* a further round's lists are longer than a screen's */
    if (job.screened) job.screened = !fs_job_skips_screen(&job, context);
    FS_TRY(fs_job_take_memory(&job, context));
    memset(part, 0, bytes);
    fs_wire_begin(&job.call, part);
    run_to_part(&job, part);
    if (job.screened && fs_job_leave_screen(&job, context)) run_to_part(&job, part);
    if (sealed) fs_wire_seal(&job.call, part);
    return FS_OK;
}

/* ----------------------------------------------------------------------------------------------------- merge ---- */

/* What a task merges a row in: the parts' summaries come one after the other into `from` and from there into `into`. */
typedef struct fs_merge_scratch {
    fs_summary into, from;
    fs_winner *spare; /* [samples] */
} fs_merge_scratch;

typedef struct fs_merging {
    const fs_call *call;
    const void *const *parts;
    int32_t count, tasks;
    int64_t watches; /* most of a row */
    int32_t sealed;
    uint64_t hash;
    int64_t (*shard)[2];       /* [count] if sealed, like the next: which ids a part speaks of */
    const char **fault;        /* [count] what is wrong with a part, or NULL */
    fs_row_rules *rules;       /* [B] */
    fs_merge_scratch *scratch; /* [tasks] */
} fs_merging;

static void layout_merge_list(fs_arena *arena, int32_t keep, int raw, int32_t parts, fs_list *list) {
    memset(list, 0, sizeof *list);
    list->capacity = keep * parts;
    list->keep = list->capacity;
    list->key = arena_take(arena, (size_t)list->capacity, sizeof *list->key);
    if (raw) list->raw = arena_take(arena, (size_t)list->capacity, sizeof *list->raw);
}

static void layout_scratch(const fs_merging *m, fs_arena *arena, fs_merge_scratch *scratch) {
    const fs_needs *needs = &m->call->needs;
    fs_summary *summary[2] = {&scratch->into, &scratch->from};
    memset(scratch, 0, sizeof *scratch);
    scratch->spare = arena_take(arena, (size_t)m->call->batch->samples, sizeof *scratch->spare);
    for (int i = 0; i < 2; i++) {
        summary[i]->winner = arena_take(arena, (size_t)needs->samples, sizeof(fs_winner));
        summary[i]->watch = arena_take(arena, (size_t)m->watches, sizeof(fs_watch));
        layout_merge_list(arena, needs->keep, needs->raw_column, i == 0 ? m->count : 1, &summary[i]->list);
        layout_merge_list(arena, needs->keep_raw, 0, i == 0 ? m->count : 1, &summary[i]->raw_list);
    }
}

static void layout_merge(fs_merging *m, fs_arena *arena) {
    const size_t sealed = m->sealed ? (size_t)m->count : 0;
    fs_merge_scratch counted;
    m->shard = arena_take(arena, sealed, sizeof *m->shard);
    m->fault = arena_take(arena, sealed, sizeof *m->fault);
    m->rules = arena_take(arena, (size_t)m->call->batch->rows, sizeof *m->rules);
    m->scratch = arena_take(arena, (size_t)m->tasks, sizeof *m->scratch);
    for (int32_t i = 0; i < m->tasks; i++) layout_scratch(m, arena, m->scratch ? &m->scratch[i] : &counted);
}

static void check_task(void *arg, int32_t task) {
    const fs_merging *m = arg;
    for (int32_t i = task; i < m->count; i += m->tasks)
        m->fault[i] = fs_wire_check(m->call, m->hash, m->parts[i], m->shard[i]);
}

/* Each part is what fs_partial wrote in this call, and together they are the vocabulary. */
static fs_status check_parts(fs_context *context, fs_merging *m) {
    char why[128];
    m->hash = fs_wire_hash(m->call);
    fs_pass_parallel(context->state, m->tasks, check_task, m);
    for (int32_t i = 0; i < m->count; i++)
        if (m->fault[i]) return fs_fail(context, FS_ERR_PEER, "part %d of %d: %s", i, m->count, m->fault[i]);
    if (!fs_shards_are_whole(m->shard, m->count, m->call->vocab, "part", why, sizeof why))
        return fs_fail(context, FS_ERR_PEER, "%s", why);
    return FS_OK;
}

static void merge_row(const fs_merging *m, fs_merge_scratch *scratch, int64_t b) {
    const fs_call *call = m->call;
    const fs_row_rules *rules = &call->rules[b];
    const int grouped = call->batch->mode == FS_MODE_GROUP_PARALLEL;
    const fs_noise noise = noise_row(rules->seed, rules->position, 0, rules->substream);
    fs_choice choice = choice_none();
    for (int32_t i = 0; i < m->count; i++) {
        fs_summary *to = i == 0 ? &scratch->into : &scratch->from;
        fs_wire_get(call, b, m->parts[i], to);
        if (grouped) {
            const fs_group group = {to->mass, to->winner[0]};
            choice_add_parallel(&choice, &group, (uint32_t)i, noise, FS_DOMAIN_MERGE);
        }
        if (i > 0) summary_merge(&call->needs, &scratch->into, &scratch->from, watch_count(call->batch, b));
    }
    if (grouped) scratch->into.winner[0] = choice_winner(&choice, group_is_a_law(rules, scratch->into.flags));
}

static void merge_task(void *arg, int32_t task) {
    const fs_merging *m = arg;
    fs_merge_scratch *scratch = &m->scratch[task];
    for (int64_t b = task; b < m->call->batch->rows; b += m->tasks) {
        merge_row(m, scratch, b);
        fs_finish_row(m->call, b, &scratch->into, 0, 1, scratch->spare);
    }
}

fs_status fs_cpu_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                       int32_t count, int32_t least, int32_t sealed, const fs_result *result) {
    fs_cpu *cpu = context->state;
    fs_job job = fs_job_of_part(head, batch, result, least);
    fs_call *call = &job.call;
    const int64_t most = call->needs.keep > call->needs.keep_raw ? call->needs.keep : call->needs.keep_raw;
    FS_REQUIRE(context, most * count <= INT32_MAX,
               "%d parts with lists of %lld entries; together they must stay below 2^31", count, (long long)most);
    /* Only lists are worth waking threads for. */
    fs_merging m = {.call = call, .parts = parts, .count = count, .sealed = sealed};
    m.tasks = most && batch->rows > 1 ? cpu->tasks : 1;
    for (int64_t b = 0; b < batch->rows; b++)
        if (watch_count(batch, b) > m.watches) m.watches = watch_count(batch, b);
    fs_arena size = {NULL, 0, 0};
    layout_merge(&m, &size);
    if (context->options.work && size.used > cpu->work.size && m.tasks > 1) { /* the caller's memory may do for one */
        m.tasks = 1;
        size.used = 0;
        layout_merge(&m, &size);
    }
    FS_TRY(fs_work_reserve(context, size.used));
    if (!parts) return FS_OK;
    fs_arena arena = cpu->work;
    layout_merge(&m, &arena);
    for (int64_t b = 0; b < batch->rows; b++) m.rules[b] = fs_row_rules_of(batch, call->vocab, b);
    call->rules = m.rules;

    if (sealed) FS_TRY(check_parts(context, &m));
    fs_pass_parallel(cpu, m.tasks, merge_task, &m);
    context->counters.work_bytes = (int64_t)size.used;
    context->counters.wire_bytes = (int64_t)wire_size(call);
    return FS_OK;
}
