/* cpu_backend.c - the CPU backend: opens a context's threads and memory, and runs calls as one pass over W (and, for rows whose
 * lists did not prove their cut, a second one over those rows). */
#include "cpu_pass.h"
#include "cpu_threads.h"

#include "core/finish.h"
#include "core/wire.h"

#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------- open, close ---- */

/* The memory nodes, for threads of our own, if the environment asks for them: off until a machine that has several shows what they gain. */
static fs_status find_nodes(fs_context *context, fs_nodes *nodes) {
    const char *asked = getenv("FLASHSAMPLING_NODES");
    if (context->options.parallel_for || !asked || strcmp(asked, "off") == 0) return FS_OK;
    const int system = strcmp(asked, "on") == 0;
    fs_nodes_find(system ? "/sys/devices/system/node" : asked, nodes);
    if (!system && nodes->count == 0)
        return fs_fail(context, FS_ERR_ENVIRONMENT,
                       "FLASHSAMPLING_NODES=%s is neither on nor off nor a folder that names a node with cores of ours",
                       asked);
    return FS_OK;
}

static fs_status cpu_open(fs_context *context) {
    const fs_options *options = &context->options;
    char names[128];
    const char *forced = getenv("FLASHSAMPLING_ISA");
    const fs_isa *isa = fs_isa_choose(forced, names, sizeof names);
    if (!isa)
        return fs_fail(context, FS_ERR_ENVIRONMENT,
                       "FLASHSAMPLING_ISA=%s is unknown or does not run here; these do: %s", forced, names);
    fs_nodes nodes = {.count = 0};
    FS_TRY(find_nodes(context, &nodes));
    fs_cpu *cpu = fs_context_alloc(context, sizeof *cpu, "the CPU backend");
    if (!cpu) return FS_ERR_MEMORY;
    memset(cpu, 0, sizeof *cpu);
    cpu->nodes = nodes;
    cpu->isa = isa;
    cpu->tasks = options->threads ? options->threads : fs_threads_available();
    cpu->parallel_for = options->parallel_for;
    cpu->parallel_user = options->parallel_user;
    if (!cpu->parallel_for) {
        cpu->threads = fs_threads_start(context, cpu->tasks, &cpu->nodes);
        if (!cpu->threads) {
            fs_context_free(context, cpu);
            return FS_ERR_MEMORY;
        }
        cpu->parallel_for = fs_threads_run;
        cpu->parallel_user = cpu->threads;
    }
    cpu->work.memory = options->work;
    cpu->work.size = options->work ? options->work_bytes : 0;
    context->state = cpu;
    char where[48] = "";
    if (cpu->nodes.count > 1) snprintf(where, sizeof where, " on %d memory nodes", cpu->nodes.count);
    snprintf(context->text, sizeof context->text, "cpu: %s kernel (%s%s%s), %d %s%s", isa->name,
             forced ? "forced by FLASHSAMPLING_ISA" : "best of this CPU", isa->experimental ? ", experimental: " : "",
             isa->experimental ? isa->experimental : "", cpu->tasks,
             cpu->threads ? "threads" : "tasks on the caller's threads", where);
    return FS_OK;
}

static fs_status cpu_set_work(fs_context *context, void *memory, size_t bytes) {
    fs_cpu *cpu = context->state;
    if (!context->options.work) fs_context_free(context, cpu->work.memory);
    context->options.work = memory;
    context->options.work_bytes = bytes;
    fs_arena work = {memory, bytes, 0};
    cpu->work = work;
    return FS_OK;
}

static void cpu_close(fs_context *context) {
    fs_cpu *cpu = context->state;
    if (!cpu) return;
    fs_threads_stop(context, cpu->threads);
    if (!context->options.work) fs_context_free(context, cpu->work.memory);
    fs_context_free(context, cpu);
    context->state = NULL;
}

/* ------------------------------------------------------------------------------------------------------- job ---- */

/* One call, laid out in the work memory: the rows' rules, then the pass. */
typedef struct fs_job {
    fs_call call;
    fs_pass pass;
    fs_rules *rules;  /* [B] */
    int32_t *row;     /* [B] rows that take part */
    uint8_t *written; /* [rows that take part] the row's results are there */
    uint32_t extra;   /* status bits of the rows being finished */
    int32_t final;    /* write rows that are not proven as incomplete */
    int32_t grouped;  /* the pass is one of the group modes */
    int32_t largest;  /* see fs_pass */
} fs_job;

static fs_job job_of(const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_job job;
    memset(&job, 0, sizeof job);
    job.call.head = head;
    job.call.batch = batch;
    job.call.result = result;
    job.call.vocab = head_vocab(head);
    job.call.ask = fs_ask_of(head, batch, result);
    job.grouped = batch->mode == FS_MODE_GROUP_PARALLEL || batch->mode == FS_MODE_GROUP_ONLINE;
    return job;
}

/* The same for a part: that is one group whatever the mode, so it is not grouped; and lists hold `least` entries, where there are lists. */
static fs_job job_of_part(const fs_head *head, const fs_batch *batch, const fs_result *result, int32_t least) {
    fs_job job = job_of(head, batch, result);
    int32_t *keep[2] = {&job.call.ask.keep, &job.call.ask.keep_raw};
    job.grouped = 0;
    if (least > job.call.vocab) least = (int32_t)job.call.vocab;
    for (int i = 0; i < 2; i++)
        if (*keep[i] && least > *keep[i]) *keep[i] = least;
    return job;
}

/* A row's turn in a block costs some 200 ns however short that is, and logits in L3 less than shorter blocks (docs/findings/rules-by-the-vector.md);
 * memory alone sets a limit, 4 MB a task. */
#define FS_BLOCK_LOGITS (1 << 20)
#define FS_BLOCK_MOST 1024

static int32_t choose_block(const fs_options *options, int64_t rows) {
    if (options->block) return (options->block + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK * FS_NOISE_BLOCK;
    int64_t block = FS_BLOCK_LOGITS / (rows ? rows : 1) / FS_NOISE_BLOCK * FS_NOISE_BLOCK;
    if (block > FS_BLOCK_MOST) block = FS_BLOCK_MOST;
    return block < FS_NOISE_BLOCK ? FS_NOISE_BLOCK : (int32_t)block;
}

static int64_t count_groups(const fs_call *call) {
    const int64_t size = call->batch->group_size, first = call->head->first_token;
    int64_t end = first + call->head->rows;
    if (end > call->vocab) end = call->vocab;
    return end > first ? (end + size - 1) / size - first / size : 0;
}

static void job_start_pass(fs_job *job, fs_context *context, const int32_t *row, int32_t rows) {
    fs_pass *pass = &job->pass;
    memset(pass, 0, sizeof *pass);
    pass->cpu = context->state;
    pass->call = &job->call;
    pass->row = row;
    pass->rows = rows;
    pass->block = choose_block(&context->options, job->call.batch->rows);
    pass->largest = job->largest;
    if (job->grouped) pass->groups = count_groups(&job->call);
}

/* The job in this arena, or its size if the arena only counts: then every row is taken to take part. */
static int job_layout(fs_job *job, fs_context *context, fs_arena *arena) {
    const fs_batch *batch = job->call.batch;
    const size_t rows = (size_t)batch->rows;
    job->rules = arena_take(arena, rows, sizeof *job->rules);
    job->row = arena_take(arena, rows, sizeof *job->row);
    job->written = arena_take(arena, rows, sizeof *job->written);
    int32_t active = (int32_t)batch->rows;
    if (arena_fits(arena)) {
        active = 0;
        for (int64_t b = 0; b < batch->rows; b++) {
            job->rules[b] = fs_rules_of_row(batch, job->call.vocab, b);
            if (!rules_drop_row(&job->rules[b])) job->row[active++] = (int32_t)b;
        }
    }
    job->call.rules = job->rules;
    job_start_pass(job, context, job->row, active);
    return fs_pass_layout(&job->pass, arena);
}

static size_t job_size(const fs_job *job, fs_context *context) {
    fs_job copy = *job;
    fs_arena count = {NULL, 0, 0};
    job_layout(&copy, context, &count);
    return count.used;
}

/* Asks where W lies, when a head is another than the last. */
static void find_residence(fs_cpu *cpu, const fs_head *head) {
    fs_residence *r = &cpu->residence;
    const int64_t stride = weights_stride(head);
    if (cpu->nodes.count < 2 || head->kind != FS_HEAD_WEIGHTS) return;
    if (r->data == head->data && r->stride == stride && r->rows == head->rows) return;
    const int64_t blocks = (head->rows + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK;
    r->data = head->data;
    r->stride = stride;
    r->rows = head->rows;
    r->step = (blocks + FS_PLACES - 1) / FS_PLACES * FS_NOISE_BLOCK;
    if (!blocks) return;
    fs_nodes_of_pages(&cpu->nodes, head->data, r->step * stride, (head->rows + r->step - 1) / r->step, r->node);
}

/* Makes the work memory this large, all of it free. */
static fs_status reserve(fs_context *context, size_t bytes) {
    fs_cpu *cpu = context->state;
    cpu->work.used = 0;
    if (bytes > cpu->work.size && context->options.work)
        return fs_fail(context, FS_ERR_MEMORY,
                       "work memory of %zu bytes is too small: this call takes %zu (fs_work_size)", cpu->work.size,
                       bytes);
    if (bytes > cpu->work.size) {
        fs_context_free(context, cpu->work.memory);
        cpu->work.size = 0;
        cpu->work.memory = fs_context_alloc(context, bytes, "work memory");
        if (!cpu->work.memory) return FS_ERR_MEMORY;
        cpu->work.size = bytes;
    }
    return FS_OK;
}

static fs_status job_take_memory(fs_job *job, fs_context *context) {
    fs_cpu *cpu = context->state;
    find_residence(cpu, job->call.head);
    size_t bytes = job_size(job, context);
    FS_TRY(reserve(context, bytes));
    if (!job_layout(job, context, &cpu->work))
        return fs_fail(context, FS_ERR_INTERNAL, "layout of %zu bytes did not fit what was counted, %zu",
                       cpu->work.used, bytes);
    return FS_OK;
}

/* ---------------------------------------------------------------------------------------------------- sample ---- */

static void finish_task(void *arg, int32_t task) {
    fs_job *job = arg;
    const fs_pass *pass = &job->pass;
    fs_winner *spare = pass->spare + (int64_t)task * job->call.batch->samples;
    for (int32_t a; (a = fs_pass_merged(pass)) >= 0;)
        job->written[a] =
            (uint8_t)fs_finish_row(&job->call, pass->row[a], &pass->summary[a], job->extra, job->final, spare);
}

/* Runs the pass; then tasks merge rows (fs_pass_merged), and do with them what is to be done. */
static void job_run(fs_job *job, void (*task)(void *arg, int32_t i)) {
    const fs_cpu *cpu = job->pass.cpu;
    fs_threads_stay(cpu->threads, 1);
    fs_pass_prepare(&job->pass);
    fs_pass_run(&job->pass);
    fs_pass_parallel(cpu, job->pass.rows < cpu->tasks ? job->pass.rows : cpu->tasks, task, job);
    fs_threads_stay(cpu->threads, 0);
}

static void finish_dropped(const fs_job *job) {
    for (int64_t b = 0; b < job->call.batch->rows; b++)
        if (rules_drop_row(&job->rules[b])) fs_finish_row(&job->call, b, NULL, 0, 1, NULL);
}

/* Makes the pass the second one of these rows: the same with lists that hold the whole vocabulary. Returns the bytes it takes. */
static size_t job_start_second(fs_job *job, fs_context *context, const int32_t *row, int32_t rows) {
    fs_arena count = {NULL, 0, 0};
    job->call.ask.rough = 0;
    job_start_pass(job, context, row, rows);
    job->pass.whole = 1;
    fs_pass_layout(&job->pass, &count);
    return count.used;
}

/* The second pass for rows [rows] whose lists were too short, as many at a time as the budget allows. Its memory is what the caller's leaves,
 * or is allocated for the occasion. */
static fs_status second_pass(fs_job *job, fs_context *context, int32_t *row, int32_t rows, size_t *most_bytes) {
    fs_cpu *cpu = context->state;
    const int own = context->options.work == NULL;
    size_t left = own ? context->options.fallback_bytes : cpu->work.size - cpu->work.used;
    for (int32_t done = 0; done < rows;) {
        int32_t now = rows - done;
        fs_arena arena = {NULL, job_start_second(job, context, row + done, now), 0};
        while (arena.size > left && now > 1) arena.size = job_start_second(job, context, row + done, now /= 2);
        if (arena.size <= left) {
            arena.memory = own ? fs_context_alloc(context, arena.size, "the second pass")
                               : cpu->work.memory + cpu->work.used;
            if (!arena.memory) return FS_ERR_MEMORY;
            *most_bytes = arena.size > *most_bytes ? arena.size : *most_bytes;
            fs_pass_layout(&job->pass, &arena);
            job->extra = FS_ROW_FALLBACK;
            job->final = 1;
            job_run(job, finish_task);
            if (own) fs_context_free(context, arena.memory);
        } else {
            fs_summary none;
            memset(&none, 0, sizeof none);
            fs_finish_row(&job->call, row[done], &none, FS_ROW_INCOMPLETE, 1, NULL);
            fs_context_log(context, "row %d needs a second pass of %zu bytes, but only %zu are allowed: incomplete",
                           row[done], arena.size, left);
        }
        done += now;
    }
    return FS_OK;
}

/* Masses may be rough: there is a second pass. */
static fs_job sample_of(const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_job job = job_of(head, batch, result);
    job.call.ask.rough = job.call.ask.mass_to_cut;
    return job;
}

static fs_status cpu_sample(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result) {
    fs_job job = sample_of(head, batch, result);
    FS_TRY(job_take_memory(&job, context));
    finish_dropped(&job);
    job_run(&job, finish_task);

    int32_t again = 0;
    for (int32_t a = 0; a < job.pass.rows; a++)
        if (!job.written[a]) job.row[again++] = job.row[a];
    size_t extra_bytes = 0;
    if (again) FS_TRY(second_pass(&job, context, job.row, again, &extra_bytes));
    result->fallback_rows = again;
    result->work_bytes = (int64_t)(((fs_cpu *)context->state)->work.used + extra_bytes);
    result->wire_bytes = 0;
    return FS_OK;
}

/* Bytes of the second pass of whichever of `rows` rows takes the most, alone. Without lists there is none. */
static size_t second_size(const fs_job *job, fs_context *context, int64_t rows) {
    const fs_batch *batch = job->call.batch;
    const int alike = !batch->edit_offset && !batch->edit_count && !batch->count_offset && !batch->watch_offset;
    size_t most = 0;
    if (!job->call.ask.keep && !job->call.ask.keep_raw) return 0;
    for (int32_t b = 0; b < rows && (b == 0 || !alike); b++) {
        fs_job copy = *job;
        const size_t size = job_start_second(&copy, context, &b, 1);
        most = size > most ? size : most;
    }
    return most;
}

/* What is enough for fewer rows and results too, and for a part: fewer rows have longer blocks, who asks for less may have a sieve, and a
 * part is not grouped and has no second pass. */
static fs_status cpu_work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                               size_t bytes[2]) {
    const fs_job jobs[2] = {sample_of(head, batch, result), job_of_part(head, batch, result, 0)};
    fs_batch fewer = *batch;
    fewer.slots = batch->slots ? batch->slots : batch->rows;
    bytes[0] = bytes[1] = 0;
    int32_t block = FS_BLOCK_MOST;
    do {
        const int64_t most = FS_BLOCK_LOGITS / block; /* rows of such blocks; of the shortest ones there is no most */
        fewer.rows = batch->rows < most || block == FS_NOISE_BLOCK ? batch->rows : most;
        for (int part = 0; part < 2; part++) {
            fs_job job = jobs[part];
            job.call.batch = &fewer;
            job.largest = 1;
            const size_t size = job_size(&job, context), second = part ? 0 : second_size(&job, context, batch->rows);
            bytes[0] = size > bytes[0] ? size : bytes[0];
            bytes[1] = size + second > bytes[1] ? size + second : bytes[1];
        }
        block -= FS_NOISE_BLOCK;
    } while (fewer.rows < batch->rows);
    return FS_OK;
}

/* -------------------------------------------------------------------------------------------- partial, merge ---- */

static fs_status cpu_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch,
                                  const fs_result *result, int32_t least, size_t *bytes) {
    (void)context;
    fs_job job = job_of_part(head, batch, result, least);
    *bytes = fs_wire_size(&job.call);
    return FS_OK;
}

static void compact_task(void *arg, int32_t task) {
    const fs_job *job = arg;
    (void)task;
    for (int32_t a; (a = fs_pass_merged(&job->pass)) >= 0;) {
        list_compact(&job->pass.summary[a].list);
        list_compact(&job->pass.summary[a].raw_list);
    }
}

static fs_status cpu_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                             int32_t least, int32_t sealed, void *part, size_t bytes) {
    fs_job job = job_of_part(head, batch, result, least);
    FS_REQUIRE(context, bytes >= fs_wire_size(&job.call), "part has %zu bytes, needs %zu (fs_partial_size)", bytes,
               fs_wire_size(&job.call));
    FS_TRY(job_take_memory(&job, context));
    job_run(&job, compact_task);
    memset(part, 0, bytes);
    fs_wire_header(&job.call, part);
    for (int32_t a = 0; a < job.pass.rows; a++) fs_wire_put(&job.call, job.row[a], &job.pass.summary[a], part);
    if (sealed) fs_wire_seal(&job.call, part);
    return FS_OK;
}

/* What a task merges a row in: the parts' summaries come one after the other into `from` and from there into `into`. */
typedef struct fs_desk {
    fs_summary into, from;
    fs_group *group;  /* [count] */
    fs_winner *spare; /* [samples] */
} fs_desk;

typedef struct fs_merging {
    const fs_call *call;
    const void *const *parts;
    int32_t count, tasks;
    int64_t watches; /* most of a row */
    int32_t sealed;
    uint64_t hash;
    int64_t (*shard)[2]; /* [count] if sealed, like the next: which ids a part speaks of */
    const char **fault;  /* [count] what is wrong with a part, or NULL */
    fs_rules *rules;     /* [B] */
    fs_desk *desk;       /* [tasks] */
} fs_merging;

static void layout_merge_list(fs_arena *arena, int32_t keep, int raw, int32_t parts, fs_list *list) {
    memset(list, 0, sizeof *list);
    list->capacity = keep * parts;
    list->keep = list->capacity;
    list->key = arena_take(arena, (size_t)list->capacity, sizeof *list->key);
    if (raw) list->raw = arena_take(arena, (size_t)list->capacity, sizeof *list->raw);
}

static void layout_desk(const fs_merging *m, fs_arena *arena, fs_desk *desk) {
    const fs_ask *ask = &m->call->ask;
    fs_summary *summary[2] = {&desk->into, &desk->from};
    memset(desk, 0, sizeof *desk);
    desk->group = arena_take(arena, (size_t)m->count, sizeof *desk->group);
    desk->spare = arena_take(arena, (size_t)m->call->batch->samples, sizeof *desk->spare);
    for (int i = 0; i < 2; i++) {
        summary[i]->winner = arena_take(arena, (size_t)ask->samples, sizeof(fs_winner));
        summary[i]->watch = arena_take(arena, (size_t)m->watches, sizeof(fs_watch));
        layout_merge_list(arena, ask->keep, ask->raw_column, i == 0 ? m->count : 1, &summary[i]->list);
        layout_merge_list(arena, ask->keep_raw, 0, i == 0 ? m->count : 1, &summary[i]->raw_list);
    }
}

static void layout_merge(fs_merging *m, fs_arena *arena) {
    const size_t sealed = m->sealed ? (size_t)m->count : 0;
    fs_desk counted;
    m->shard = arena_take(arena, sealed, sizeof *m->shard);
    m->fault = arena_take(arena, sealed, sizeof *m->fault);
    m->rules = arena_take(arena, (size_t)m->call->batch->rows, sizeof *m->rules);
    m->desk = arena_take(arena, (size_t)m->tasks, sizeof *m->desk);
    for (int32_t i = 0; i < m->tasks; i++) layout_desk(m, arena, m->desk ? &m->desk[i] : &counted);
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

static void merge_row(const fs_merging *m, fs_desk *desk, int64_t b) {
    const fs_call *call = m->call;
    const fs_rules *rules = &call->rules[b];
    const int64_t watches = watch_count(call->batch, b);
    for (int32_t i = 0; i < m->count; i++) {
        fs_summary *to = i == 0 ? &desk->into : &desk->from;
        fs_wire_get(call, b, m->parts[i], to);
        if (call->ask.samples) desk->group[i].winner = to->winner[0];
        desk->group[i].mass = to->mass;
        if (i > 0) summary_merge(&call->ask, &desk->into, &desk->from, watches);
    }
    if (call->batch->mode == FS_MODE_GROUP_PARALLEL && group_is_a_law(rules, desk->into.flags))
        desk->into.winner[0] = group_choose_parallel(
            desk->group, m->count, 1, 0, noise_row(rules->seed, rules->position, 0, rules->stream), FS_DOMAIN_MERGE);
}

static void merge_task(void *arg, int32_t task) {
    const fs_merging *m = arg;
    fs_desk *desk = &m->desk[task];
    for (int64_t b = task; b < m->call->batch->rows; b += m->tasks) {
        merge_row(m, desk, b);
        fs_finish_row(m->call, b, &desk->into, 0, 1, desk->spare);
    }
}

static fs_status cpu_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                           int32_t count, int32_t least, int32_t sealed, fs_result *result) {
    fs_cpu *cpu = context->state;
    fs_job job = job_of_part(head, batch, result, least);
    fs_call *call = &job.call;
    const int64_t most = call->ask.keep > call->ask.keep_raw ? call->ask.keep : call->ask.keep_raw;
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
    FS_TRY(reserve(context, size.used));
    if (!parts) return FS_OK;
    fs_arena arena = cpu->work;
    layout_merge(&m, &arena);
    for (int64_t b = 0; b < batch->rows; b++) m.rules[b] = fs_rules_of_row(batch, call->vocab, b);
    call->rules = m.rules;

    if (sealed) FS_TRY(check_parts(context, &m));
    fs_pass_parallel(cpu, m.tasks, merge_task, &m);
    result->fallback_rows = 0;
    result->work_bytes = (int64_t)size.used;
    result->wire_bytes = (int64_t)fs_wire_size(call);
    return FS_OK;
}

const fs_backend fs_backend_cpu = {.name = "cpu",
                                   .host_arrays = 1,
                                   .open = cpu_open,
                                   .close = cpu_close,
                                   .sample = cpu_sample,
                                   .set_work = cpu_set_work,
                                   .work_size = cpu_work_size,
                                   .partial_size = cpu_partial_size,
                                   .partial = cpu_partial,
                                   .merge = cpu_merge};
