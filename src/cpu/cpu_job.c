#include "cpu_job.h"
#include "cpu_threads.h"

fs_job fs_job_of(const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_job job;
    memset(&job, 0, sizeof job);
    job.call.head = head;
    job.call.batch = batch;
    job.call.result = result;
    job.call.vocab = head_vocab(head);
    job.call.needs = fs_needs_of(head, batch, result);
    job.grouped = batch->mode == FS_MODE_GROUP_PARALLEL || batch->mode == FS_MODE_GROUP_ONLINE;
    return job;
}

fs_job fs_job_of_part(const fs_head *head, const fs_batch *batch, const fs_result *result, int32_t least) {
    fs_job job = fs_job_of(head, batch, result);
    int32_t *keep[2] = {&job.call.needs.keep, &job.call.needs.keep_raw};
    job.grouped = 0;
    if (least > job.call.vocab) least = (int32_t)job.call.vocab;
    for (int i = 0; i < 2; i++)
        if (*keep[i] && least > *keep[i]) *keep[i] = least;
    return job;
}

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

void fs_job_start_pass(fs_job *job, fs_context *context, const int32_t *row, int32_t rows) {
    fs_pass *pass = &job->pass;
    memset(pass, 0, sizeof *pass);
    pass->cpu = context->state;
    pass->call = &job->call;
    pass->weights = weights_of_head(job->call.head);
    pass->row = row;
    pass->rows = rows;
    pass->block = choose_block(&context->options, job->call.batch->rows);
    pass->largest = job->largest;
    pass->by_screen = job->screened && !job->turn;
    if (job->grouped) pass->groups = count_groups(&job->call);
}

/* The job in this arena, or its size if the arena only counts: then every row is taken to take part. */
static int job_layout(fs_job *job, fs_context *context, fs_arena *arena) {
    const fs_batch *batch = job->call.batch;
    const size_t rows = (size_t)batch->rows, cut = job->call.needs.keep || job->call.needs.keep_raw ? rows : 0;
    job->rules = arena_take(arena, rows, sizeof *job->rules);
    job->row = arena_take(arena, rows, sizeof *job->row);
    job->state = arena_take(arena, rows, sizeof *job->state);
    job->kept = arena_take(arena, cut, sizeof *job->kept);
    int32_t active = (int32_t)batch->rows;
    if (arena_fits(arena)) {
        active = 0;
        for (int64_t b = 0; b < batch->rows; b++) {
            job->rules[b] = fs_row_rules_of(batch, job->call.vocab, b);
            if (!rules_drop_row(&job->rules[b])) job->row[active++] = (int32_t)b;
        }
    }
    job->call.rules = job->rules;
    fs_job_start_pass(job, context, job->row, active);
    job->pass_at = arena->used;
    return fs_pass_layout(&job->pass, arena);
}

/* A pass over a screen may be followed by one over W, in the same memory. */
size_t fs_job_size(const fs_job *job, fs_context *context) {
    size_t most = 0;
    for (int32_t screened = 0; screened <= job->screened; screened++) {
        fs_job copy = *job;
        fs_arena count = {NULL, 0, 0};
        copy.screened = screened;
        job_layout(&copy, context, &count);
        most = count.used > most ? count.used : most;
    }
    return most;
}

/* Asks where W lies, when a head is another than the last. */
static void find_residence(fs_cpu *cpu, const fs_head *head) {
    fs_residence *r = &cpu->residence;
    const int64_t stride = weights_of_head(head).stride;
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

fs_status fs_work_reserve(fs_context *context, size_t bytes) {
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

fs_status fs_job_take_memory(fs_job *job, fs_context *context) {
    fs_cpu *cpu = context->state;
    find_residence(cpu, job->call.head);
    size_t bytes = fs_job_size(job, context);
    FS_TRY(fs_work_reserve(context, bytes));
    if (!job_layout(job, context, &cpu->work))
        return fs_fail(context, FS_ERR_INTERNAL, "layout of %zu bytes did not fit what was counted, %zu",
                       cpu->work.used, bytes);
    return FS_OK;
}

void fs_job_run(fs_job *job, void (*task)(void *arg, int32_t i)) {
    const fs_cpu *cpu = job->pass.cpu;
    if (job->pass.rows == 0) return; /* W is not read, and kernels need not know of no rows */
    fs_threads_stay(cpu->threads, 1);
    fs_pass_prepare(&job->pass);
    fs_pass_run(&job->pass);
    fs_pass_parallel(cpu, job->pass.rows < cpu->tasks ? job->pass.rows : cpu->tasks, task, job);
    fs_threads_stay(cpu->threads, 0);
}
