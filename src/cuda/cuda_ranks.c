/* cuda_ranks.c - fs_sample_ranks on the device: the pass leaves its rows, a small launch makes a part of them
 * (core/wire.h), one collective of the transport brings the parts of all ranks together, and a small launch writes the
 * results. fs_partial and fs_merge are its two halves. Everything is enqueued; nothing waits.
 *
 *   what a key tells       all_max of    hash, its complement | key 8 per row
 *   anything else          all_gather of parts
 *
 * The pass is one over W, or over the head's screen and then, where that leaves rows open, over W. Rows with rules are
 * ended by rows/rows.cu, with all logits of the shard in memory, but for their cuts, which are made
 * when the lists of all shards are together. The host cannot be asked for another round: what lists leave open is
 * FS_ROW_INCOMPLETE. */
#include "cuda_backend.h"

/* A part of one call. */
typedef struct layout {
    size_t bytes;
    int32_t keys;   /* the call's keys alone */
    int32_t sealed; /* it goes through other hands than ours */
    int32_t listed; /* rows have rules: they are ended where all logits of a shard are, and have lists */
} layout;

/* A part is one group, whatever the mode: only its mass is asked for. */
static fs_cuda_args pass_of(const fs_cuda_args *args) {
    fs_cuda_args pass = *args;
    if (batch_is_grouped(&pass.batch)) pass.batch.mode = FS_MODE_SAMPLE;
    pass.leave_rows = 1;
    return pass;
}

/* Whether the rows of a shard have rules, or two masses, which is as much. */
static int is_listed(const fs_cuda_args *args) {
    const fs_cuda_args pass = pass_of(args);
    return fs_cuda_has_rules(&pass) || (args->needs.mass && args->needs.raw_mass);
}

/* Whatever goes through other hands than ours is a part, even where keys would do. Every part begins at a multiple of 8
 * bytes. */
static fs_status open_call(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                           int32_t sealed, fs_cuda_args *args, layout *l) {
    const fs_needs *needs = &args->needs;
    FS_REQUIRE(context, !watches(batch, result) || batch->limits->watched || batch->rows == 0,
               "limits.watched is 0 (not said); over shards the cuda backend must know how many entries "
               "watch_token has, because it does not know the size of a part without");
    *args = fs_cuda_args_of(head, batch, result);
    args->batch.flags &= ~(uint32_t)FS_EXACT_RANK; /* there is no second pass: a bound says that it is one */
    l->sealed = sealed;
    l->listed = is_listed(args);
    l->keys = !l->listed && !sealed && !result->status && !needs->mass && !needs->raw_mass && !needs->max;
    if (l->listed) args->needs = fs_needs_of_any(head, &args->batch, result);
    const fs_call call = {head, &args->batch, result, NULL, args->vocab, args->needs};
    l->bytes = l->keys ? 8 * (2 + (size_t)batch->rows) : (wire_size(&call) + 7) / 8 * 8;
    return FS_OK;
}

static fs_status collect(fs_context *context, const fs_ranks *ranks, const layout *l, char *mine, char *all) {
    void *stream = ((fs_cuda *)context->state)->stream;
    const int64_t words = (int64_t)(l->bytes / 8);
    const fs_status status = l->keys ? ranks->all_max(ranks->self, (int64_t *)(void *)mine, words, stream)
                                     : ranks->all_gather(ranks->self, mine, all, l->bytes, stream);
    if (status == FS_OK) return FS_OK;
    const char *text = ranks->error_text ? ranks->error_text(ranks->self) : NULL;
    return fs_fail(context, status, "rank %d of %d: %s", ranks->rank, ranks->count,
                   text && *text ? text : "the transport failed and does not say why");
}

typedef struct destination {
    const layout *layout;
    void *part;
    int32_t mode; /* the call's, which ranks agree on: the pass has another */
} destination;

static fs_status put(fs_context *context, const fs_cuda_args *pass, void *with) {
    const destination *to = with;
    const int32_t last = pass->first_row + pass->rows == pass->batch.rows;
    fs_cuda_args args = *pass;
    args.batch.mode = to->mode;
    FS_CUDA_TRY(context,
                fs_cuda_put_launch(&args, to->part, to->layout->keys, last, ((fs_cuda *)context->state)->stream));
    return FS_OK;
}

/* Whether the head's screen decides the rows of a part. They are left in the work memory of one launch of the pass over
 * W, which then finds nothing to do. */
static fs_status reads_screen(fs_context *context, const fs_cuda_args *pass, const layout *l, int *reads) {
    fs_cuda_plan plan;
    *reads = !l->listed && fs_cuda_screens(context, pass, 0);
    if (!*reads) return FS_OK;
    FS_TRY(fs_cuda_plan_next(context, pass, &plan));
    *reads = pass->batch.rows <= plan.rows;
    return FS_OK;
}

/* The pass over this shard, and its part. */
static fs_status make_part(fs_context *context, const fs_cuda_room *room, const fs_cuda_args *args, const layout *l,
                           void *part) {
    const cudaStream_t stream = ((fs_cuda *)context->state)->stream;
    fs_cuda_args pass = pass_of(args);
    destination to = {l, part, args->batch.mode};
    int screens;
    FS_TRY(reads_screen(context, &pass, l, &screens));
    if (screens) FS_TRY(fs_cuda_screen_pass(context, room, room->parts, &pass));
    if (!l->listed) return fs_cuda_pass(context, room, &pass, put, &to);
    pass.part = part;
    FS_CUDA_TRY(context, cudaMemsetAsync(part, 0, l->bytes, stream));
    FS_TRY(fs_cuda_end_rows(context, room, &pass, 0));
    FS_CUDA_TRY(context, fs_cuda_seal_launch(args, part, l->sealed, stream));
    return FS_OK;
}

/* -------------------------------------------------------------------------------------------------------- room ---- */

/* Work memory of the pass. Enough for calls of a head that has a screen and asks for less, too. */
static fs_status size_pass(fs_context *context, const fs_cuda_args *args, const layout *l, fs_cuda_room *room) {
    const fs_cuda_args pass = pass_of(args);
    memset(room, 0, sizeof *room);
    if (l->listed) return fs_cuda_rows_room(context, &pass, room);
    if (pass.head.screen) fs_cuda_screen_room(context, &pass, 0, room);
    return fs_cuda_records_bytes(context, &pass, &room->records_bytes);
}

#define ALIGNED(bytes) (((bytes) + 255) / 256 * 256)
#define MERGE_BYTES ((size_t)64 << 20) /* of CTAs that merge, together, unless one needs more */

static size_t power_of_two(size_t least) {
    size_t power = 1;
    while (power < least) power *= 2;
    return power;
}

/* Where a row's lists are merged; their memory is yet to come. Keys are sorted in places that are a power of two. */
static fs_cuda_merging merging_of(const fs_cuda *cuda, const fs_cuda_args *args, int32_t count) {
    const fs_needs *needs = &args->needs;
    const size_t keep = needs->keep ? power_of_two((size_t)needs->keep * (size_t)count) : 0;
    const size_t keep_raw = needs->keep_raw ? power_of_two((size_t)needs->keep_raw * (size_t)count) : 0;
    fs_cuda_merging m;
    memset(&m, 0, sizeof m);
    m.raw = 8 * keep;
    m.raw_key = m.raw + (needs->raw_column ? ALIGNED(4 * keep) : 0);
    m.winner = m.raw_key + 8 * keep_raw;
    m.bytes = ALIGNED(m.winner + 3 * (size_t)needs->samples * sizeof(fs_winner));
    const int64_t rows = args->batch.rows,
                  most = m.bytes <= FS_CUDA_MERGE_SHARED ? cuda->device.processors : (int64_t)(MERGE_BYTES / m.bytes);
    m.grid = (int32_t)(rows < most ? rows : most > 1 ? most : 1);
    return m;
}

/* Bytes of that, with a word for what is wrong. */
static size_t merging_bytes(const fs_cuda_merging *m) {
    return 256 + (m->bytes > FS_CUDA_MERGE_SHARED ? m->bytes * (size_t)m->grid : 0);
}

static fs_status merge_parts(fs_context *context, const fs_cuda_args *args, const layout *l, char *parts, int32_t count,
                             char *memory) {
    const fs_cuda *cuda = context->state;
    const fs_cuda_gathered from = {parts, l->bytes, count, l->sealed};
    if (l->listed) {
        fs_cuda_merging m = merging_of(cuda, args, count);
        m.wrong = (uint32_t *)(void *)memory;
        if (m.bytes > FS_CUDA_MERGE_SHARED) m.memory = memory + 256;
        FS_CUDA_TRY(context, cudaMemsetAsync(memory, 0, 256, cuda->stream));
        FS_CUDA_TRY(context, fs_cuda_merge_lists_launch(args, &from, &m, cuda->stream));
    } else FS_CUDA_TRY(context, fs_cuda_merge_launch(args, &from, l->keys, cuda->stream));
    return FS_OK;
}

/* Bytes for what merges so many parts, and the parts. */
static fs_status size_merge(fs_context *context, const fs_cuda_args *args, const layout *l, int32_t count,
                            size_t *bytes) {
    const fs_cuda_merging m = merging_of(context->state, args, count);
    const int64_t most = args->needs.keep > args->needs.keep_raw ? args->needs.keep : args->needs.keep_raw;
    FS_REQUIRE(context, most * count <= INT32_MAX,
               "%d parts with lists of %lld entries; together they must stay below 2^31", count, (long long)most);
    FS_REQUIRE(context, l->bytes <= (size_t)INT64_MAX / 2 / (size_t)count, "%d parts of %zu bytes are too many", count,
               l->bytes);
    *bytes = (l->listed ? merging_bytes(&m) : 0) + l->bytes * (size_t)count;
    return FS_OK;
}

/* ------------------------------------------------------------------------------------------------------- ranks ---- */

/* The launches of one call, the device being current. */
static fs_status enqueue(fs_context *context, const fs_ranks *ranks, const fs_cuda_args *args, const layout *l) {
    const fs_cuda *cuda = context->state;
    fs_cuda_room room;
    FS_TRY(size_pass(context, args, l, &room));
    const size_t before = room.parts_bytes = ALIGNED(room.parts_bytes);
    size_t merging_and_parts;
    FS_TRY(size_merge(context, args, l, ranks->count, &merging_and_parts));
    room.parts_bytes += l->keys ? l->bytes : ALIGNED(l->bytes) + merging_and_parts;
    FS_TRY(fs_cuda_memory_take(context, &room));
    char *mine = room.parts + before, *merging = mine + ALIGNED(l->bytes);
    char *all = l->keys ? mine : room.parts + room.parts_bytes - l->bytes * (size_t)ranks->count;
    const fs_status drawn = make_part(context, &room, args, l, mine);
    /* A rank that has failed still meets the others: with what is no part, and no hash beside its complement. */
    if (drawn != FS_OK) (void)cudaMemsetAsync(mine, 0x7F, l->bytes, cuda->stream);
    const fs_status met = collect(context, ranks, l, mine, all);
    FS_TRY(drawn);
    FS_TRY(met);
    FS_TRY(merge_parts(context, args, l, all, ranks->count, merging));
    context->counters.work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    context->counters.wire_bytes = (int64_t)l->bytes;
    return FS_OK;
}

fs_status fs_cuda_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                               const fs_result *result, fs_status failed) {
    fs_cuda_args args;
    layout l = {0};
    int before;
    /* With other arguments there is no collective to meet in: its size would not be the others'. */
    FS_TRY(failed);
    FS_TRY(open_call(context, head, batch, result, 0, &args, &l));
    if (batch->rows == 0) return FS_OK;
    FS_TRY(fs_cuda_check_stream(context));
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = enqueue(context, ranks, &args, &l);
    fs_cuda_leave(context->state, before);
    return status;
}

/* ---------------------------------------------------------------------------------------------- partial, merge ---- */

fs_status fs_cuda_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                               int32_t least, size_t *bytes) {
    fs_cuda_args args;
    layout l = {0};
    (void)least; /* there are no rounds with longer lists */
    FS_TRY(open_call(context, head, batch, result, 1, &args, &l));
    *bytes = l.bytes;
    return FS_OK;
}

fs_status fs_cuda_part_room(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                            fs_cuda_room *room) {
    const fs_cuda_args args = fs_cuda_args_of(head, batch, result);
    const layout l = {.listed = is_listed(&args)};
    return size_pass(context, &args, &l, room);
}

static fs_status enqueue_part(fs_context *context, const fs_cuda_args *args, const layout *l, void *part) {
    fs_cuda_room room;
    FS_TRY(size_pass(context, args, l, &room));
    FS_TRY(fs_cuda_memory_take(context, &room));
    return make_part(context, &room, args, l, part);
}

fs_status fs_cuda_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                          int32_t least, int32_t sealed, void *part, size_t bytes) {
    fs_cuda_args args;
    layout l = {0};
    int before;
    (void)least, (void)sealed;
    FS_TRY(open_call(context, head, batch, result, 1, &args, &l));
    FS_REQUIRE(context, bytes >= l.bytes, "part has %zu bytes, needs %zu (fs_partial_size)", bytes, l.bytes);
    FS_REQUIRE(context, (uintptr_t)part % 8 == 0, "part is %p, must be 8-byte aligned device memory", part);
    if (batch->rows == 0) return FS_OK;
    FS_TRY(fs_cuda_check_stream(context));
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = enqueue_part(context, &args, &l, part);
    fs_cuda_leave(context->state, before);
    return status;
}

/* Parts lie where their carrier has put them: they are copied side by side first. */
static fs_status merge_scattered(fs_context *context, const fs_cuda_args *args, const layout *l,
                                 const void *const *parts, int32_t count, int64_t *work_bytes) {
    const fs_cuda *cuda = context->state;
    fs_cuda_room room;
    memset(&room, 0, sizeof room);
    FS_TRY(size_merge(context, args, l, count, &room.parts_bytes));
    FS_TRY(fs_cuda_memory_take(context, &room));
    *work_bytes = (int64_t)fs_cuda_room_bytes(&room);
    char *all = room.parts + room.parts_bytes - l->bytes * (size_t)count;
    for (int32_t i = 0; i < count; i++)
        FS_CUDA_TRY(context, cudaMemcpyAsync(all + (size_t)i * l->bytes, parts[i], l->bytes, cudaMemcpyDeviceToDevice,
                                             cuda->stream));
    return merge_parts(context, args, l, all, count, room.parts);
}

fs_status fs_cuda_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                        int32_t count, int32_t least, int32_t sealed, const fs_result *result) {
    fs_cuda_args args;
    layout l = {0};
    int before;
    (void)least, (void)sealed;
    FS_TRY(open_call(context, head, batch, result, 1, &args, &l));
    for (int32_t i = 0; i < count; i++)
        FS_REQUIRE(context, (uintptr_t)parts[i] % 8 == 0, "parts[%d] is %p, must be 8-byte aligned device memory", i,
                   parts[i]);
    if (batch->rows > 0) {
        FS_TRY(fs_cuda_check_stream(context));
        FS_TRY(fs_cuda_enter(context, &before));
        const fs_status status = merge_scattered(context, &args, &l, parts, count, &context->counters.work_bytes);
        fs_cuda_leave(context->state, before);
        FS_TRY(status);
    }
    context->counters.wire_bytes = (int64_t)l.bytes;
    return FS_OK;
}
