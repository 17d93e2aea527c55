/* cuda_backend.c - the CUDA backend: a context's device and stream; checks; as many launches as a plan makes of a
 * batch. Calls enqueue on the stream and return; nothing here waits. */
#include "cuda_backend.h"

#include "core/head.h"

#include <stdio.h>

/* ------------------------------------------------------------------------------------------------- open, close ---- */

fs_status fs_cuda_enter(fs_context *context, int *before) {
    const fs_cuda *cuda = context->state;
    FS_CUDA_TRY(context, cudaGetDevice(before));
    if (*before != cuda->ordinal) FS_CUDA_TRY(context, cudaSetDevice(cuda->ordinal));
    return FS_OK;
}

void fs_cuda_leave(const fs_cuda *cuda, int before) {
    if (before != cuda->ordinal) cudaSetDevice(before);
}

static fs_status read_device(fs_context *context, fs_cuda *cuda) {
    const struct {
        int32_t *value;
        enum cudaDeviceAttr what;
    } wanted[] = {{&cuda->device.major, cudaDevAttrComputeCapabilityMajor},
                  {&cuda->device.minor, cudaDevAttrComputeCapabilityMinor},
                  {&cuda->device.processors, cudaDevAttrMultiProcessorCount},
                  {&cuda->device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        FS_CUDA_TRY(context, cudaDeviceGetAttribute(wanted[i].value, wanted[i].what, cuda->ordinal));
    return FS_OK;
}

static fs_status open_stored(fs_context *context, fs_cuda *cuda) {
    FS_CUDA_TRY(context, fs_cuda_stored_open(&cuda->stored_ctas));
    cuda->stored_ctas *= cuda->device.processors;
    return FS_OK;
}

static fs_status open_rows(fs_context *context, fs_cuda *cuda) {
    FS_CUDA_TRY(context, fs_cuda_rows_open(&cuda->device));
    FS_CUDA_TRY(context, fs_cuda_raced_open(cuda->device.shared_bytes));
    FS_CUDA_TRY(context, fs_cuda_again_open(cuda->device.shared_bytes));
    FS_CUDA_TRY(context, fs_cuda_screen_open(cuda->device.shared_bytes));
    if (cuda->device.major == 9) FS_CUDA_TRY(context, fs_cuda_wide_open(cuda->device.shared_bytes));
    FS_CUDA_TRY(context, fs_cuda_listed_open(cuda->device.shared_bytes));
    FS_CUDA_TRY(context, fs_cuda_merge_lists_open(FS_CUDA_MERGE_SHARED));
    return FS_OK;
}

/* Whether the forced tile, if any, is one of ours; a plan for a small call tells. */
static fs_status check_forced(fs_context *context, const fs_cuda *cuda) {
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    fs_cuda_plan plan;
    head.rows = 128, head.dim = 64;
    if (cuda->forced &&
        !fs_cuda_plan_launch(&cuda->device, cuda->family, FS_CUDA_FAMILIES, cuda->forced, &head, &batch, 1, 0, &plan))
        return fs_fail(context, FS_ERR_ENVIRONMENT, "cuda: %s", plan.text);
    return FS_OK;
}

static void cuda_close(fs_context *context) {
    fs_cuda *cuda = context->state;
    int before;
    if (!cuda) return;
    /* Only where there is something to free: a failed open keeps the text of what failed, and a forked child has no
     * device. */
    if (cuda->opened && !fs_context_inherited(context) && fs_cuda_enter(context, &before) == FS_OK) {
        fs_cuda_memory_close(context);
        fs_cuda_leave(cuda, before);
    }
    fs_context_free(context, cuda);
    context->state = NULL;
}

static fs_status open_device(fs_context *context, fs_cuda *cuda) {
    int devices = 0, before;
    FS_CUDA_TRY(context, cudaGetDeviceCount(&devices));
    cuda->ordinal = context->options.device;
    FS_REQUIRE(context, cuda->ordinal >= 0 && cuda->ordinal < devices,
               "options.device is %d, this machine has cuda devices 0 to %d", cuda->ordinal, devices - 1);
    FS_TRY(read_device(context, cuda));
    FS_TRY(fs_cuda_enter(context, &before));
    fs_status status = fs_cuda_open_families(context);
    if (status == FS_OK) status = open_stored(context, cuda);
    if (status == FS_OK) status = open_rows(context, cuda);
    if (status == FS_OK) status = check_forced(context, cuda);
    if (status == FS_OK && context->options.work)
        status = fs_cuda_memory_give(context, context->options.work, context->options.work_bytes);
    cuda->opened = status == FS_OK;
    fs_cuda_leave(cuda, before);
    return status;
}

static fs_status cuda_open(fs_context *context) {
    fs_cuda *cuda = fs_context_alloc(context, sizeof *cuda, "the CUDA backend");
    if (!cuda) return FS_ERR_MEMORY;
    memset(cuda, 0, sizeof *cuda);
    context->state = cuda;
    cuda->stream = context->options.cuda_stream;
    fs_status status = fs_screen_most_rows(context, &cuda->screen_rows);
    if (status == FS_OK) status = fs_cuda_environment_read(context, &cuda->environment);
    if (cuda->environment.tile[0]) cuda->forced = cuda->environment.tile;
    if (status == FS_OK) status = open_device(context, cuda);
    if (status != FS_OK) {
        cuda_close(context);
        return status;
    }
    snprintf(context->text, sizeof context->text, "cuda: device %d, compute capability %d.%d, %d processors%s%s",
             cuda->ordinal, cuda->device.major, cuda->device.minor, cuda->device.processors,
             cuda->forced ? ", tile " : "", cuda->forced ? cuda->forced : "");
    return FS_OK;
}

static fs_status cuda_set_stream(fs_context *context, void *stream) {
    fs_cuda *cuda = context->state;
    int before;
    if (stream == cuda->stream) return FS_OK;
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = fs_cuda_memory_leave_stream(context, stream);
    fs_cuda_leave(cuda, before);
    FS_TRY(status);
    cuda->stream = stream;
    return FS_OK;
}

static fs_status cuda_set_work(fs_context *context, void *memory, size_t bytes) {
    int before;
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = fs_cuda_memory_give(context, memory, bytes);
    fs_cuda_leave(context->state, before);
    FS_TRY(status);
    context->options.work = memory;
    context->options.work_bytes = bytes;
    return FS_OK;
}

/* ---------------------------------------------------------------------------------------------------- sample ---- */

/* Masses of stored logits, and groups, are in records. */
static size_t records_size(const fs_cuda_args *args, int32_t rows, int32_t groups, int32_t slots) {
    const int masses = args->needs.mass || args->needs.raw_mass;
    const int needed = args->head.kind == FS_HEAD_LOGITS ? masses : batch_is_grouped(&args->batch);
    return needed ? (size_t)rows * (size_t)groups * (size_t)slots * sizeof(fs_group) : 0;
}

static void give_records(fs_cuda_args *args, const fs_cuda_room *room, int32_t groups, int32_t slots) {
    const int32_t tiles = batch_is_grouped(&args->batch) ? (int32_t)(args->batch.group_size / FS_CUDA_TILE) : 0;
    if (room->records) args->groups = (fs_cuda_groups){room->records, groups, slots, tiles};
}

/* Whether a call is for tokens alone, and its rows differ in nothing but how they draw. */
static int is_plain(const fs_cuda_args *args) {
    fs_batch bare = args->batch;
    fs_rules rules = args->rules;
    if (fs_cuda_has_rules(args) || batch_is_grouped(&bare) || !rules_are_uniform(&bare, &rules)) return 0;
    bare.slot = NULL, bare.position = NULL, bare.seed = NULL;
    rules.temperature.per_slot = NULL, rules.temperature.value = 1.0f;
    return rules_of_row(&bare, &rules, &args->limits, args->vocab, 0).status == 0 &&
           call_kind(args, !head_is_plain(&args->head)) == FS_CUDA_TOKENS;
}

/* The plan of the next launch. An engine asks for the same one step after step, and looking for it takes microseconds.
 * */
fs_status fs_cuda_plan_next(fs_context *context, const fs_cuda_args *args, fs_cuda_plan *plan) {
    fs_cuda *cuda = context->state;
    const fs_head *head = &args->head;
    const fs_batch *batch = &args->batch;
    const int which = args->lists.by_place != 0;
    fs_cuda_planned of;
    memset(&of, 0, sizeof of);
    of.rows = batch->rows - args->first_row;
    of.tokens[0] = head->first_token, of.tokens[1] = head->rows, of.tokens[2] = head_vocab(head);
    of.dim = head->dim;
    of.group = batch_is_grouped(batch) ? batch->group_size : 0;
    of.dtype = head->dtype;
    of.aligned = fs_cuda_plan_aligned(head, batch);
    of.plain = is_plain(args);
    if (memcmp(&of, &cuda->planned[which], sizeof of) != 0) {
        memset(&cuda->planned[which], 0, sizeof cuda->planned[which]);
        if (!fs_cuda_plan_launch(&cuda->device, cuda->family, FS_CUDA_FAMILIES, cuda->forced, head, batch, of.rows,
                                 of.plain, &cuda->plan[which]))
            return fs_fail(context, FS_ERR_UNSUPPORTED, "cuda: %s", cuda->plan[which].text);
        cuda->planned[which] = of;
    }
    *plan = cuda->plan[which];
    return FS_OK;
}

/* Bytes of the records of one launch, over the first rows that are left; takes them off. */
static fs_status next_records(fs_context *context, fs_cuda_args *args, size_t *bytes) {
    const fs_cuda *cuda = context->state;
    if (args->head.kind == FS_HEAD_LOGITS) {
        fs_cuda_stored_plan plan;
        fs_cuda_plan_stored(cuda->stored_ctas, &args->head, &args->batch, args->batch.rows - args->first_row, &plan);
        *bytes = records_size(args, plan.rows, plan.groups, plan.slots);
        args->first_row += plan.rows;
    } else {
        fs_cuda_plan plan;
        FS_TRY(fs_cuda_plan_next(context, args, &plan));
        *bytes = records_size(args, plan.rows, plan.groups, plan.slots);
        args->first_row += plan.rows;
    }
    return FS_OK;
}

fs_status fs_cuda_records_bytes(fs_context *context, const fs_cuda_args *call, size_t *bytes) {
    fs_cuda_args args = *call;
    *bytes = 0;
    if (!records_size(&args, 1, 1, 1) || args.head.rows == 0) return FS_OK;
    while (args.first_row < args.batch.rows) {
        size_t size;
        FS_TRY(next_records(context, &args, &size));
        if (size > *bytes) *bytes = size;
    }
    return FS_OK;
}

/* One launch over stored logits, as below. */
static fs_status launch_stored(fs_context *context, const fs_cuda_room *room, fs_cuda_args *args) {
    fs_cuda *cuda = context->state;
    fs_cuda_stored_plan plan;
    fs_cuda_plan_stored(cuda->stored_ctas, &args->head, &args->batch, args->batch.rows - args->first_row, &plan);
    if (cuda->stored_logged != plan.share.segments && context->options.log) {
        char text[160];
        fs_cuda_plan_describe_stored(&plan, text, sizeof text);
        fs_context_log(context, "%s", text);
    }
    cuda->stored_logged = plan.share.segments;
    args->rows = plan.rows;
    give_records(args, room, plan.groups, plan.slots);
    FS_CUDA_TRY(context, fs_cuda_stored_launch(&plan, args, !head_is_plain(&args->head), cuda->stream));
    if (room->records || (args->needs.max && !args->leave_rows))
        FS_CUDA_TRY(context, fs_cuda_end_launch(args, cuda->stream));
    return FS_OK;
}

fs_status fs_cuda_launch_next(fs_context *context, const fs_cuda_room *room, fs_cuda_args *args) {
    fs_cuda *cuda = context->state;
    fs_cuda_plan plan;
    FS_TRY(fs_cuda_plan_next(context, args, &plan));
    if (cuda->logged != plan.shape && context->options.log) {
        char text[160];
        fs_cuda_plan_describe(&plan, cuda->forced, text, sizeof text);
        fs_context_log(context, "%s", text);
    }
    cuda->logged = plan.shape;
    args->rows = plan.rows;
    args->block_rows = plan.block_rows;
    args->k_steps = plan.k_steps;
    args->schedule = plan.schedule;
    args->k_order = plan.k_order;
    give_records(args, room, plan.groups, plan.slots);
    FS_TRY(fs_cuda_launch_fused(context, &plan, args));
    if (room->records) FS_CUDA_TRY(context, fs_cuda_end_launch(args, cuda->stream));
    return FS_OK;
}

/* A head without rows has nothing to pass over: every row of the batch is empty, as work memory says. */
static fs_status launch_nothing(fs_context *context, fs_cuda_args *args) {
    const int64_t left = args->batch.rows - args->first_row;
    args->rows = (int32_t)(left < FS_CUDA_ROWS ? left : FS_CUDA_ROWS);
    if (!args->leave_rows) FS_CUDA_TRY(context, fs_cuda_end_launch(args, ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

fs_status fs_cuda_check_stream(fs_context *context) {
    FS_REQUIRE(
        context, ((const fs_cuda *)context->state)->stream,
        "the stream is NULL: calls go to no default stream by accident; give batch.cuda_stream, options.cuda_stream "
        "or fs_context_set_stream one, FS_STREAM_DEFAULT or fs_stream(handle) for CUDA's and torch's 0");
    return FS_OK;
}

fs_status fs_cuda_pass(fs_context *context, const fs_cuda_room *room, fs_cuda_args *args, fs_cuda_put *put,
                       void *with) {
    const fs_cuda *cuda = context->state;
    args->work = room->work;
    args->overlap = cuda->device.overlaps;
    args->leave_rows = put != NULL;
    for (; args->first_row < args->batch.rows; args->first_row += args->rows) {
        if (args->head.rows == 0) FS_TRY(launch_nothing(context, args));
        else if (args->head.kind == FS_HEAD_LOGITS) FS_TRY(launch_stored(context, room, args));
        else FS_TRY(fs_cuda_launch_next(context, room, args));
        if (put) FS_TRY(put(context, args, with));
    }
    return FS_OK;
}

fs_cuda_args fs_cuda_args_of(const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_cuda_args args;
    memset(&args, 0, sizeof args);
    args.head = *head;
    args.batch = *batch;
    args.rules = *batch->rules;
    args.limits = limits_of_rows(batch);
    args.result = *result;
    args.vocab = (int32_t)head_vocab(head); /* below 2^24 */
    args.needs = needs_of_call(batch, result);
    return args;
}

static fs_status enqueue(fs_context *context, fs_cuda_args *args, int64_t *work_bytes) {
    if (fs_cuda_draws_as_rows(args)) return fs_cuda_enqueue_as_rows(context, args, work_bytes);
    fs_cuda_room room;
    const int rules = fs_cuda_has_rules(args), screens = fs_cuda_screens(context, args, rules);
    memset(&room, 0, sizeof room);
    if (rules) FS_TRY(fs_cuda_rows_room(context, args, &room));
    else FS_TRY(fs_cuda_records_bytes(context, args, &room.records_bytes));
    if (screens) fs_cuda_screen_room(context, args, rules, &room);
    FS_TRY(fs_cuda_memory_take(context, &room));
    *work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    if (rules) return fs_cuda_end_rows(context, &room, args, screens);
    if (screens) FS_TRY(fs_cuda_screen_pass(context, &room, room.parts, args));
    return fs_cuda_pass(context, &room, args, NULL, NULL);
}

static fs_status cuda_sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    if (batch->rows == 0) return FS_OK;
    FS_TRY(fs_cuda_check_stream(context));
    int before;
    fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    FS_TRY(fs_cuda_enter(context, &before));
    fs_status status = enqueue(context, &args, &context->counters.work_bytes);
    fs_cuda_leave(context->state, before);
    return status;
}

/* Of a call whose rows may have rules, and with a screen, of all rows and of as many as may have their logits kept,
 * where that is more than *bytes. */
static fs_status rows_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                           size_t *bytes) {
    fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    const int64_t kept = fs_cuda_rows_kept(context, &args);
    for (int fewer = 0; fewer < 2; fewer++) {
        fs_cuda_room room;
        memset(&room, 0, sizeof room);
        if (fewer && (kept <= 0 || kept >= batch->rows)) break;
        if (fewer) args.batch.rows = kept;
        const int rules = fs_cuda_has_rules(&args);
        if (rules) FS_TRY(fs_cuda_rows_room(context, &args, &room));
        if (head->screen) fs_cuda_screen_room(context, &args, rules, &room); /* of a call that asks for less */
        if (fs_cuda_room_bytes(&room) > *bytes) *bytes = fs_cuda_room_bytes(&room);
    }
    return FS_OK;
}

/* Fewer rows may have more records, and so may fs_partial, which is not grouped. */
static fs_status cuda_work_size(fs_context *context, const fs_head *head, const fs_batch *batch,
                                const fs_result *result, size_t bytes[2]) {
    fs_cuda_args calls[2];
    fs_cuda_room room;
    memset(&room, 0, sizeof room);
    calls[0] = calls[1] = fs_cuda_args_of(head, batch, result);
    calls[1].batch.mode = FS_MODE_SAMPLE;
    for (int64_t rows = batch->rows < FS_CUDA_ROWS ? batch->rows : FS_CUDA_ROWS; rows > 0; rows--)
        for (int i = fs_cuda_has_rules(&calls[0]); i < 2; i++) { /* which has no records */
            size_t size;
            calls[i].batch.rows = rows;
            FS_TRY(fs_cuda_records_bytes(context, &calls[i], &size));
            if (size > room.records_bytes) room.records_bytes = size;
        }
    bytes[0] = fs_cuda_room_bytes(&room);
    FS_TRY(rows_size(context, head, batch, result, &bytes[0]));
    fs_result less = fs_result_default();
    less.tokens = result->tokens;
    fs_batch one = *batch;
    if (one.mode == FS_MODE_SAMPLE && one.samples > 1) one.samples = 1;
    FS_TRY(rows_size(context, head, &one, &less, &bytes[0]));
    const size_t as_rows = fs_cuda_as_rows_size(context, head, batch, &less);
    if (as_rows > bytes[0]) bytes[0] = as_rows;
    memset(&room, 0, sizeof room);
    FS_TRY(fs_cuda_part_room(context, head, batch, result, &room));
    if (fs_cuda_room_bytes(&room) > bytes[0]) bytes[0] = fs_cuda_room_bytes(&room);
    bytes[1] = bytes[0];
    return FS_OK;
}

static fs_status cuda_check_pointer(fs_context *context, const char *name, const void *pointer) {
    const fs_cuda *cuda = context->state;
    struct cudaPointerAttributes found;
    FS_CUDA_TRY(context, cudaPointerGetAttributes(&found, pointer));
    FS_REQUIRE(context, found.type != cudaMemoryTypeUnregistered,
               "%s is %p, host memory that was not mapped; must be memory of device %d, or mapped", name, pointer,
               cuda->ordinal);
    int reached = found.type != cudaMemoryTypeDevice || found.device == cuda->ordinal;
    if (!reached) FS_CUDA_TRY(context, cudaDeviceCanAccessPeer(&reached, cuda->ordinal, found.device));
    FS_REQUIRE(context, reached, "%s is %p, memory of device %d, which device %d cannot reach", name, pointer,
               found.device, cuda->ordinal);
    return FS_OK;
}

static fs_status cuda_accept(fs_context *context, const fs_drafts *d) {
    const fs_cuda *cuda = context->state;
    const char *lack = fs_cuda_drafts_lack(d);
    int before;
    if (lack) return fs_fail(context, FS_ERR_UNSUPPORTED, "%s", lack);
    if (d->sequences == 0) return FS_OK;
    FS_TRY(fs_cuda_check_stream(context));
    FS_TRY(fs_cuda_enter(context, &before));
    const cudaError_t error = fs_cuda_accept_launch(d->tokens_dtype, d->sequences, d->draft_length, d->draft, d->target,
                                                    d->accepted, cuda->stream);
    fs_cuda_leave(cuda, before);
    FS_CUDA_TRY(context, error);
    return FS_OK;
}

const fs_backend fs_backend_cuda = {.name = "cuda",
                                    .open = cuda_open,
                                    .close = cuda_close,
                                    .sample = cuda_sample,
                                    .lacks = fs_cuda_lacks,
                                    .set_stream = cuda_set_stream,
                                    .set_work = cuda_set_work,
                                    .work_size = cuda_work_size,
                                    .accept = cuda_accept,
                                    .make_screen = fs_cuda_make_screen,
                                    .sum_screen = fs_cuda_sum_screen,
                                    .compare_screen = fs_cuda_compare_screen,
                                    .copy = fs_cuda_copy,
                                    .check_pointer = cuda_check_pointer,
                                    .partial_size = fs_cuda_partial_size,
                                    .partial = fs_cuda_partial,
                                    .merge = fs_cuda_merge,
                                    .sample_ranks = fs_cuda_sample_ranks};
