#include "cpu_screened.h"
#include "cpu_second.h"
#include "cpu_stored.h"

#include "core/finish.h"

/* ---------------------------------------------------------------------------------------------------- memory ---- */

void fs_second_free(fs_context *context) {
    fs_cpu *cpu = context->state;
    fs_context_free(context, cpu->second.memory);
    memset(&cpu->second, 0, sizeof cpu->second);
    cpu->calls_without = 0;
}

/* Bytes that may be taken beside the work memory. */
static size_t budget_of(const fs_context *context) {
    const fs_cpu *cpu = context->state;
    return context->options.work ? cpu->work.size - cpu->work.used : context->options.fallback_bytes;
}

/* Calls without a second pass until its memory is given back: fresh pages, which the system clears, cost 5 to 10 % of a
 * call with many wide rows (docs/notes/cpu-lists.md). */
#define FS_SECOND_KEPT 64

/* That memory: what the caller's leaves, or the context's own. NULL: there is none. */
static char *take_second(fs_context *context, size_t bytes) {
    fs_cpu *cpu = context->state;
    if (context->options.work) return cpu->work.memory + cpu->work.used;
    if (bytes > cpu->second.size) {
        fs_second_free(context);
        cpu->second.memory = fs_context_alloc(context, bytes, "the second pass");
        if (!cpu->second.memory) return NULL;
        cpu->second.size = bytes;
    }
    cpu->calls_without = 0;
    return cpu->second.memory;
}

/* ----------------------------------------------------------------------------------- storing in the first pass ---- */

/* To store rows costs little more than to list them (docs/notes/cpu-lists.md, "end by their logits"), and a second
 * pass for one of them reads all of W: so a kind is stored while one call of eight or more has some that need it. */
#define FS_WIDE_MORE 8
#define FS_WIDE_MOST 16

/* Gives the first pass memory for logits of rows whose kind was wide before. Returns how much: as much as they need, or
 * as there is. */
static size_t take_store(fs_job *job, fs_context *context) {
    const size_t bytes = (size_t)fs_stored_floats(&job->call) * sizeof(float);
    size_t rows = 0;
    if (!job->call.needs.keep || !job->call.needs.rough || !bytes || job->call.batch->list_capacity) return 0;
    for (int32_t a = 0; a < job->pass.rows; a++) rows += (size_t)stored_wanted(&job->pass, &job->rules[job->row[a]]);
    if (rows > budget_of(context) / bytes) rows = budget_of(context) / bytes;
    if (!rows) return 0;
    job->pass.store = (float *)(void *)take_second(context, rows * bytes);
    if (!job->pass.store) return 0;
    job->pass.store_rows = (int32_t)rows;
    return rows * bytes;
}

/* What the first pass has shown of the kinds of its rows. */
static void remember_wide(const fs_job *job, fs_cpu *cpu) {
    uint32_t seen = 0, wide = 0;
    for (int64_t b = 0; job->call.needs.keep && b < job->call.batch->rows; b++) {
        const fs_row_rules *rules = &job->rules[b];
        if (rules_drop_row(rules) || !fs_stored_serves(&job->call, rules)) continue;
        seen |= 1u << stored_kind(rules);
        if (job->state[b] == FS_DONE_WIDE || job->state[b] == FS_TO_STORE) wide |= 1u << stored_kind(rules);
    }
    for (int i = 0; i < FS_KINDS; i++) {
        const int more = cpu->wide[i] + FS_WIDE_MORE;
        if (wide >> i & 1) cpu->wide[i] = (uint8_t)(more < FS_WIDE_MOST ? more : FS_WIDE_MOST);
        else if (seen >> i & 1 && cpu->wide[i]) cpu->wide[i]--;
    }
}

/* ---------------------------------------------------------------------------------------------------- finish ---- */

/* Whether this is the first pass over W. */
static int is_first(const fs_job *job) {
    return job->turn == 0 || job->turn == FS_TO_READ;
}

/* The turn of a row that this one leaves open. Rough masses do for most rows. */
static uint8_t next_turn(const fs_job *job, int64_t b) {
    if (job->pass.by_screen) return FS_TO_READ;
    if (!is_first(job) || !job->call.needs.rough) return FS_TO_PROVE;
    return fs_stored_serves(&job->call, &job->rules[b]) ? FS_TO_STORE : FS_TO_LIST;
}

static uint8_t finish_stored(const fs_job *job, int32_t task, int32_t a, fs_summary *summary, uint32_t extra) {
    const int found = fs_stored_finish(&job->pass, task, a, summary, extra);
    return found == FS_STORED_DOUBT ? FS_TO_PROVE : found == FS_STORED_WIDE ? FS_DONE_WIDE : FS_DONE;
}

static void finish_task(void *arg, int32_t task) {
    const fs_job *job = arg;
    const fs_pass *pass = &job->pass;
    const uint32_t extra = job->turn ? FS_ROW_FALLBACK : 0;
    const int final = job->turn == FS_TO_PROVE;
    fs_winner *spare = pass->spare + (int64_t)task * job->call.batch->samples;
    for (int32_t a; (a = fs_pass_merged(pass)) >= 0;) {
        const int64_t b = pass->row[a];
        fs_summary *summary = pass->storing ? &job->kept[b] : &pass->summary[a];
        if (pass->by_screen) fs_screened_end(pass, a);
        const int gave_up = pass->by_screen && fs_screened_gave_up(pass, a);
        if (gave_up) job->state[b] = FS_TO_READ;
        else if (pass->active[a].stored.y) job->state[b] = finish_stored(job, task, a, summary, extra);
        else if (fs_finish_row(&job->call, b, summary, extra, final, spare)) job->state[b] = FS_DONE;
        else job->state[b] = next_turn(job, b);
        if (job->state[b] > FS_TO_READ && is_first(job)) job->kept[b] = *summary;
    }
}

static void finish_dropped(const fs_job *job) {
    for (int64_t b = 0; b < job->call.batch->rows; b++)
        if (rules_drop_row(&job->rules[b])) fs_finish_row(&job->call, b, NULL, 0, 1, NULL), job->state[b] = FS_DONE;
}

/* ----------------------------------------------------------------------------------------------------- passes ---- */

size_t fs_second_start(fs_job *job, fs_context *context, int32_t turn, const int32_t *row, int32_t rows) {
    fs_arena count = {NULL, 0, 0};
    job->turn = turn;
    fs_job_start_pass(job, context, row, rows);
    job->pass.storing = turn == FS_TO_STORE;
    job->pass.whole = turn != FS_TO_STORE;
    job->pass.kept = job->kept;
    fs_pass_layout(&job->pass, &count);
    return count.used;
}

/* How many of these rows [rows] to take at a time, so that W is read as seldom as the budget allows and each time for
 * as many. At least one, and *bytes may then be more than there are. */
static int32_t rows_at_a_time(fs_job *job, fs_context *context, int32_t turn, const int32_t *row, int32_t rows,
                              size_t left, size_t *bytes) {
    int32_t now = rows;
    *bytes = fs_second_start(job, context, turn, row, now);
    while (*bytes > left && now > 1) {
        const int32_t fit = (int32_t)((double)now * (double)left / (double)*bytes);
        now = fit < 1 ? 1 : fit < now ? fit : now - 1;
        *bytes = fs_second_start(job, context, turn, row, now);
    }
    const int32_t passes = (rows + now - 1) / now, even = (rows + passes - 1) / passes;
    if (even < now) *bytes = fs_second_start(job, context, turn, row, even);
    return even;
}

/* The turn of these rows [rows]. */
static fs_status take_turn(fs_job *job, fs_context *context, int32_t turn, const int32_t *row, int32_t rows,
                           size_t *most_bytes) {
    const size_t left = budget_of(context);
    for (int32_t done = 0; done < rows;) {
        fs_arena arena = {NULL, 0, 0};
        const int32_t now = rows_at_a_time(job, context, turn, row + done, rows - done, left, &arena.size);
        if (arena.size <= left) {
            arena.memory = take_second(context, arena.size);
            if (!arena.memory) return FS_ERR_MEMORY;
            *most_bytes = arena.size > *most_bytes ? arena.size : *most_bytes;
            fs_pass_layout(&job->pass, &arena);
            fs_job_run(job, finish_task);
        } else {
            fs_summary none;
            memset(&none, 0, sizeof none);
            fs_finish_row(&job->call, row[done], &none, FS_ROW_INCOMPLETE, 1, NULL);
            job->state[row[done]] = FS_DONE;
            fs_context_log(context, "row %d needs a second pass of %zu bytes, but only %zu are allowed: incomplete",
                           row[done], arena.size, left);
        }
        done += now;
    }
    return FS_OK;
}

int fs_job_screens(const fs_job *job, const fs_context *context) {
    const fs_cpu *cpu = context->state;
    const fs_head *head = job->call.head;
    const fs_batch *batch = job->call.batch;
    if (!head->screen || !screen_serves(head, batch, &job->call.needs, FS_SCREENED_TOP)) return 0;
    return batch->rows <= cpu->screen_rows[screen_of(head->screen).format != FS_SCREEN_INT8];
}

static fs_screen_history *history_of(const fs_job *job, fs_context *context) {
    fs_cpu *cpu = context->state;
    return &cpu->history[context->screen][(job->call.batch->rows > 1) + 2 * (job->call.needs.keep > 0)];
}

static uint32_t screen_hash(const fs_context *context) {
    return (uint32_t)context->screened[context->screen].header.hash;
}

int fs_job_skips_screen(const fs_job *job, fs_context *context) {
    fs_cpu *cpu = context->state;
    fs_screen_history *history = history_of(job, context);
    if (cpu->screens_forced || !history_skips(history, screen_hash(context))) return 0;
    history_note(history, screen_hash(context), 1);
    return 1;
}

int32_t fs_job_leave_screen(fs_job *job, fs_context *context) {
    fs_cpu *cpu = context->state;
    int32_t rows = 0;
    job->screened_dots = fs_screened_dots(&job->pass);
    job->screened_rows = job->pass.rows;
    for (int32_t a = 0; a < job->pass.rows; a++) /* its rows are job->row: those that are left move to the front */
        if (job->state[job->row[a]] == FS_TO_READ) job->row[rows++] = job->row[a];
    job->screened_rows -= rows;
    /* A quarter of the rows is enough for W to take as long as for all of them, where reading it is what takes long. */
    const int read = 4 * rows >= job->pass.rows;
    if (job->pass.rows) history_note(history_of(job, context), screen_hash(context), read);
    if (!rows) return 0;
    job->turn = FS_TO_READ;
    fs_job_start_pass(job, context, job->row, rows);
    cpu->work.used = job->pass_at;
    fs_pass_layout(&job->pass, &cpu->work);
    return rows;
}

fs_status fs_job_draw(fs_job *job, fs_context *context, int64_t *again, size_t *extra_bytes) {
    fs_cpu *cpu = context->state;
    *extra_bytes = take_store(job, context);
    finish_dropped(job);
    fs_job_run(job, finish_task);
    const int64_t read = job->screened ? fs_job_leave_screen(job, context) : 0;
    if (read) fs_job_run(job, finish_task);
    const int64_t all = job->call.batch->rows;
    int64_t count[FS_TO_PROVE + 1] = {0};
    for (int64_t b = 0; b < all; b++) count[job->state[b]]++;
    *again = count[FS_TO_STORE] + count[FS_TO_LIST] + count[FS_TO_PROVE];
    *again = read > *again ? read : *again;
    remember_wide(job, cpu);
    if (!*again && !*extra_bytes && cpu->second.memory && ++cpu->calls_without == FS_SECOND_KEPT)
        fs_second_free(context);
    for (int32_t turn = FS_TO_STORE; *again && turn <= FS_TO_PROVE; turn++) {
        int32_t rows = 0;
        for (int64_t b = 0; b < all; b++)
            if (job->state[b] == turn) job->row[rows++] = (int32_t)b;
        if (turn == FS_TO_PROVE) job->call.needs.rough = 0;
        if (rows) FS_TRY(take_turn(job, context, turn, job->row, rows, extra_bytes));
    }
    return FS_OK;
}
