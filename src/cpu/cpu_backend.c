/* cpu_backend.c - the CPU backend: opens a context's threads and memory, and says what calls take of it. */
#include "cpu_parts.h"
#include "cpu_second.h"
#include "cpu_threads.h"

#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------- open, close ---- */

/* The memory nodes, for threads of our own, if the environment asks for them: off until a machine that has several
 * shows what they gain. */
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
    int32_t screen_rows;
    FS_TRY(fs_screen_most_rows(context, &screen_rows));
    fs_cpu *cpu = fs_context_alloc(context, sizeof *cpu, "the CPU backend");
    if (!cpu) return FS_ERR_MEMORY;
    memset(cpu, 0, sizeof *cpu);
    cpu->nodes = nodes;
    cpu->isa = isa;
    for (int i = 0; i < 2; i++) cpu->screen_rows[i] = screen_rows >= 0 ? screen_rows : isa->screen_rows[i];
    cpu->screens_forced = screen_rows >= 0;
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
    fs_second_free(context);
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
    fs_second_free(context);
    fs_context_free(context, cpu);
    context->state = NULL;
}

static void cpu_parallel(fs_context *context, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    const fs_cpu *cpu = context->state;
    fs_pass_parallel(cpu, count, task, arg);
}

/* ---------------------------------------------------------------------------------------------------- sample ---- */

/* Masses may be rough: there is a second pass. */
static fs_job sample_of(const fs_context *context, const fs_head *head, const fs_batch *batch,
                        const fs_result *result) {
    fs_job job = fs_job_of(head, batch, result);
    job.call.needs.rough = job.call.needs.mass_to_cut;
    job.screened = fs_job_screens(&job, context);
    return job;
}

static fs_status cpu_sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_counters *counters = &context->counters;
    fs_cpu *cpu = context->state;
    fs_job job = sample_of(context, head, batch, result);
    size_t extra_bytes = 0;
    if (job.screened) job.screened = !fs_job_skips_screen(&job, context);
    FS_TRY(fs_job_take_memory(&job, context));
    FS_TRY(fs_job_draw(&job, context, &counters->fallback_rows, &extra_bytes));
    if (job.screened) counters->screened_rows = job.screened_rows, counters->screened_dots = job.screened_dots;
    counters->work_bytes = (int64_t)(cpu->work.used + extra_bytes);
    return FS_OK;
}

/* Bytes of the second pass of whichever of `rows` rows takes the most, alone. Without lists there is none. */
static size_t second_size(const fs_job *job, fs_context *context, int64_t rows) {
    const fs_batch *batch = job->call.batch;
    const int alike = !batch->edit_offset && !batch->edit_count && !batch->count_offset && !batch->extra_offset &&
                      !batch->watch_offset;
    size_t most = 0;
    if (!job->call.needs.keep && !job->call.needs.keep_raw) return 0;
    for (int32_t b = 0; b < rows && (b == 0 || !alike); b++) {
        fs_job copy = *job;
        const size_t size = fs_second_start(&copy, context, FS_TO_PROVE, &b, 1);
        most = size > most ? size : most;
    }
    return most;
}

/* What is enough for fewer rows and results too, and for a part: fewer rows have longer blocks, who asks for less may
 * be filtered, and a part is not grouped and has no second pass. */
static fs_status cpu_work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                               size_t bytes[2]) {
    const fs_job jobs[2] = {sample_of(context, head, batch, result), fs_job_of_part(head, batch, result, 0)};
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
            job.screened = head->screen != NULL; /* who asks for less may be */
            const size_t size = fs_job_size(&job, context), second = part ? 0 : second_size(&job, context, batch->rows);
            bytes[0] = size > bytes[0] ? size : bytes[0];
            bytes[1] = size + second > bytes[1] ? size + second : bytes[1];
        }
        block -= FS_NOISE_BLOCK;
    } while (fewer.rows < batch->rows);
    return FS_OK;
}

const fs_backend fs_backend_cpu = {.name = "cpu",
                                   .host_arrays = 1,
                                   .open = cpu_open,
                                   .close = cpu_close,
                                   .sample = cpu_sample,
                                   .parallel = cpu_parallel,
                                   .set_work = cpu_set_work,
                                   .work_size = cpu_work_size,
                                   .partial_size = fs_cpu_partial_size,
                                   .partial = fs_cpu_partial,
                                   .merge = fs_cpu_merge};
