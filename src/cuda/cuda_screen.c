/* cuda_screen.c - heads with a screen: which calls it decides, their launches; screens made in device memory. */
#include "cuda_backend.h"

#include "core/head.h"
#include "core/needs.h"

#include <math.h>

/* ------------------------------------------------------------------------------------------------------- calls ---- */

/* The screen of a call's head, as its launches take it. Numbers of 4 bits are more by 136 in the products, which is
 * taken off: a group's sum is off by less than 0.0237 |h_g| steps, all of them by that times the root of how many there
 * are. The pass for many rows takes it off the sum of all, which is off by 2.1e-4 of the number to the power of 3/2
 * more (docs/explain/screens.md). */
static fs_screen screen_of_call(const fs_context *context, const fs_cuda_args *args, int wide) {
    fs_screen s = screen_at(args->head.screen, &context->screened[context->screen].header);
    const float groups = (float)(2 * s.records), root = sqrtf(groups);
    s.reach += (0.0237f + (wide ? 2.1e-4f * groups : 0.0f)) * root;
    return s;
}

/* Whether rows have rules, of a call that a screen may serve otherwise. */
static int may_have_rules(const fs_cuda_args *args) {
    return batch_rules(&args->head, &args->batch) != 0;
}

/* Whether the pass for many rows serves the call: the rows draw by their logits' order alone, and a threshold of a
 * logit is one of a dot product. */
static int may_be_wide(const fs_context *context, const fs_cuda_args *args) {
    const fs_cuda *cuda = context->state;
    const fs_head *head = &args->head;
    const fs_screen s = screen_of_call(context, args, 1);
    return cuda->device.major == 9 && !may_have_rules(args) && head->first_token % FS_NOISE_BLOCK == 0 && !head->bias &&
           !(head->softcap > 0.0f) && fs_cuda_wide_fits(&s, cuda->device.shared_bytes);
}

/* How many rows a pass takes at once: as many as H has room for in shared memory, or FS_WIDE_ROWS where that is not all
 * of them. 0: the kernels do not take such a call. */
static int32_t rows_at_once(const fs_context *context, const fs_cuda_args *args) {
    const fs_cuda *cuda = context->state;
    const fs_head *head = &args->head;
    const fs_batch *batch = &args->batch;
    if (head->kind != FS_HEAD_WEIGHTS || head->dtype != FS_BF16 || batch->hidden_dtype != FS_BF16) return 0;
    const int64_t step = may_have_rules(args) ? FS_NOISE_BLOCK : FS_SCREEN_TOKENS;
    if (head->dim % 8 || head->first_token % step || !fs_cuda_plan_aligned(head, batch)) return 0;
    const int32_t few = fs_cuda_screen_rows(head->dim, batch->rows, cuda->device.shared_bytes);
    return few && batch->rows > few && may_be_wide(context, args) ? FS_WIDE_ROWS : few;
}

/* What reading W takes on an H200, us. */
static double reading(const fs_head *head) {
    return 2.0 * (double)head->rows * (double)head->dim / 4.5e6;
}

/* What rows with rules take beside that, by a screen: bounds of rows that are cut, or edited, are looked at by launches
 * of their own, and with 4 bits their lists are long. */
static double rules_take(const fs_cuda_args *args, int32_t format, double rows) {
    const uint32_t rules = batch_rules(&args->head, &args->batch);
    if (!rules) return 0.0;
    if (!(rules & ~FS_RULE_ALLOW)) return 12.0 + 0.8 * rows;
    return format == FS_SCREEN_INT4 ? 30.0 + 9.0 * rows : 35.0 + 1.4 * rows;
}

/* What a pass over a screen takes on an H200 (docs/results/h200-screens.md, fitted to within 12 us, the pass for many
 * rows to within 30): some microseconds before the first tile and behind the last, and a share of reading W. Tokens are
 * judged, so with 4 bits, where that is not hidden by reading, there is a share of the vocabulary. */
static double pass_takes(const fs_head *head, int32_t format, double rows, int32_t most) {
    const double read = reading(head), tokens = 1e-5 * (double)head->rows;
    if (most == FS_WIDE_ROWS)
        return format == FS_SCREEN_INT4 ? 60.0 + (10.0 + rows) * tokens + 0.38 * read
                                        : 66.0 + 0.4 * rows + 5.3 * tokens + 0.56 * read;
    if (format == FS_SCREEN_INT4)
        return most > 8 ? 21.0 + 1.5 * rows + 27.0 * tokens + 0.32 * read
                        : 22.0 + 2.3 * rows + 12.0 * tokens + 0.325 * read;
    return most > 8 ? 32.0 + 0.3 * rows + 0.63 * read : 24.0 + 1.4 * rows + 0.60 * read;
}

/* Whether a screen is faster, with a pass for each part of the rows. Where the head does something to its logits every
 * row takes more, as it does in vLLM, which rounds them (docs/guide/vllm.md). */
static int pays(const fs_cuda_args *args, int32_t format, int32_t most) {
    const double rows = (double)(args->batch.rows < most ? args->batch.rows : most);
    const int cut = (batch_rules(&args->head, &args->batch) & ~FS_RULE_ALLOW) != 0;
    const double shaping = format == FS_SCREEN_INT4 ? 10.0 + 2.0 * rows : (most > 8 ? 3.0 : 1.4) * rows;
    const double once = pass_takes(&args->head, format, rows, most) + (head_is_plain(&args->head) ? 0.0 : shaping) +
                        rules_take(args, format, rows);
    return (double)((args->batch.rows + most - 1) / most) * once < reading(&args->head) + (cut ? 30.0 : 8.0);
}

/* Who looks at the bounds of a row that is cut: all of them must fit the team's shared memory. */
static fs_cuda_team team_of(const fs_cuda *cuda, const fs_cuda_args *args) {
    const int64_t rows = args->batch.rows < FS_CUDA_SCREEN_ROWS ? args->batch.rows : FS_CUDA_SCREEN_ROWS;
    return fs_cuda_plan_team(&cuda->device, rows, args->head.first_token, args->head.rows, 0, fs_cuda_listed_shared(),
                             cuda->environment.team);
}

int fs_cuda_screens(fs_context *context, const fs_cuda_args *args, int rules) {
    const fs_cuda *cuda = context->state;
    const fs_head *head = &args->head;
    if (!head->screen || !screen_serves(head, &args->batch, &args->needs, 0) || head->rows == 0) return 0;
    if (batch_is_grouped(&args->batch)) return 0;
    if (rules && (!fs_cuda_may_list(args) || !team_of(cuda, args).slices)) return 0;
    const int32_t most = rows_at_once(context, args);
    if (most > 0 && cuda->screen_rows >= 0) return args->batch.rows <= cuda->screen_rows;
    return most > 0 && pays(args, context->screened[context->screen].header.format, most);
}

#define LINE 256 /* bytes: how many rows are open, then floors, then what is listed, then what is settled */

static size_t listed_bytes(int32_t rows) {
    return LINE + LINE + (size_t)rows * FS_CUDA_SCREENED * sizeof(fs_screened_token);
}

void fs_cuda_screen_room(fs_context *context, const fs_cuda_args *args, int rules, fs_cuda_room *room) {
    const int32_t rows = rows_at_once(context, args);
    const size_t listed = listed_bytes(rows), settled = (size_t)rows * FS_CUDA_SCREENED * sizeof(uint64_t);
    const fs_screen s = screen_of_call(context, args, 1);
    const size_t image = rows > FS_CUDA_SCREEN_ROWS ? (size_t)fs_cuda_wide_bytes(&s) : 0;
    if (rules) room->parts_bytes += listed + settled;
    else if (room->parts_bytes < listed + image) room->parts_bytes = listed + image;
}

/* The map of a screen in boxes of 8 strips, so many numbers of 8 bytes of one record; of one that was the last in this
 * place already, the last. */
static fs_status encode(fs_context *context, fs_cuda_map *place, const fs_screen *s, int32_t numbers) {
    const fs_cuda *cuda = context->state;
    const int64_t strips = screen_strips(s->rows);
    const fs_cuda_tensor of = {s->strips, strips, s->records, s->strip_bytes, s->format, numbers};
    if (memcmp(&place->of, &of, sizeof of) == 0) return FS_OK;
    memset(&place->of, 0, sizeof place->of);
    cuuint64_t size[3] = {(cuuint64_t)s->record_bytes / 8, (cuuint64_t)s->records, (cuuint64_t)strips};
    cuuint64_t strides[2] = {(cuuint64_t)s->record_bytes, (cuuint64_t)s->strip_bytes};
    cuuint32_t box[3] = {(cuuint32_t)numbers, 1, 8}, step[3] = {1, 1, 1};
    const unsigned char *first = s->strips + FS_SCREEN_STRIP_HEAD;
    void *base;
    memcpy(&base, &first, sizeof base); /* the interface is not const, the memory is only read */
    CUresult result = cuda->encode(&place->map, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 3, base, size, strides, box, step,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fs_fail(context, FS_ERR_DEVICE, "cuda: cuTensorMapEncodeTiled gave %d for a screen of %lld x %lld",
                       (int)result, (long long)s->rows, (long long)s->dim);
    place->of = of;
    return FS_OK;
}

static fs_status launch_wide(fs_context *context, const fs_cuda_args *part, char *image, int32_t shaped) {
    fs_cuda *cuda = context->state;
    const fs_screen *s = &part->screen.of;
    const int four = s->format == FS_SCREEN_INT4;
    FS_TRY(encode(context, &cuda->map[4], s, four ? (int32_t)(s->record_bytes / 8) : 128));
    FS_TRY(encode(context, &cuda->map[5], s, FS_SCREEN_TAIL / 8));
    const fs_wide_maps maps = {cuda->map[4].map, cuda->map[5].map};
    FS_CUDA_TRY(context, fs_cuda_wide_launch(part, &maps, image, cuda->device.processors, cuda->device.shared_bytes,
                                             shaped, cuda->stream));
    return FS_OK;
}

/* The launches for the rows of a part of a call. `image`: of a pass for many rows. */
static fs_status screen_part(fs_context *context, const fs_cuda_args *part, int32_t most, char *image) {
    const fs_cuda *cuda = context->state;
    const int32_t shaped = !head_is_plain(&part->head), rules = part->dense.x != NULL;
    if (part->edits.row) {
        fs_cuda_args first = *part;
        first.screen.open = NULL; /* nothing is decided yet */
        FS_CUDA_TRY(context, fs_cuda_edits_launch(&first, cuda->stream));
    }
    if (most > FS_CUDA_SCREEN_ROWS) FS_TRY(launch_wide(context, part, image, shaped));
    else FS_CUDA_TRY(context, fs_cuda_screen_launch(part, most, cuda->device.processors, shaped, cuda->stream));
    if (rules) FS_CUDA_TRY(context, fs_cuda_listed_launch(part, shaped, cuda->stream));
    FS_CUDA_TRY(context, fs_cuda_settle_launch(part, shaped, cuda->stream));
    if (rules) FS_CUDA_TRY(context, fs_cuda_end_listed_launch(part, cuda->stream));
    return FS_OK;
}

/* Calls whose outcome predicts this one's. */
static int32_t kind_of_call(const fs_cuda_args *args) {
    const int64_t rows = args->batch.rows;
    const int32_t size = (rows > 1) + (rows > 8) + (rows > FS_CUDA_SCREEN_ROWS);
    return size + (may_have_rules(args) ? FS_CUDA_SCREEN_KINDS / 2 : 0);
}

fs_status fs_cuda_screen_pass(fs_context *context, const fs_cuda_room *room, char *memory, fs_cuda_args *args) {
    const fs_cuda *cuda = context->state;
    const int32_t most = rows_at_once(context, args);
    fs_cuda_args part = *args;
    fs_cuda_plan plan;
    FS_TRY(fs_cuda_plan_next(context, args, &plan));
    part.k_order = plan.k_order;
    part.overlap = cuda->device.overlaps;
    part.screen.of = screen_of_call(context, args, most > FS_CUDA_SCREEN_ROWS);
    part.screen.hash = context->screened[context->screen].header.hash;
    part.screen.open = (int32_t *)(void *)memory;
    part.screen.history = room->history + context->screen * FS_CUDA_SCREEN_KINDS + kind_of_call(args);
    part.screen.entry = (fs_screened_token *)(void *)(memory + LINE + LINE);
    if (part.dense.x) {
        part.lists.floor = (uint32_t *)(void *)(memory + LINE);
        part.lists.entry = (unsigned long long *)(void *)(memory + listed_bytes(most));
        part.team = team_of(cuda, args);
    }
    for (; part.first_row < args->batch.rows; part.first_row += part.rows) {
        const int64_t left = args->batch.rows - part.first_row;
        part.rows = (int32_t)(left < most ? left : most);
        part.work = room->work + (args->leave_rows ? part.first_row : 0);
        FS_TRY(screen_part(context, &part, most, memory + listed_bytes(most)));
    }
    args->screen.open = part.screen.open;
    return FS_OK;
}

/* ----------------------------------------------------------------------------------------------------- screens ---- */

static fs_status check_not_captured(fs_context *context, const char *what) {
    const fs_cuda *cuda = context->state;
    enum cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    FS_TRY(fs_cuda_check_stream(context));
    FS_CUDA_TRY(context, cudaStreamIsCapturing(cuda->stream, &captured));
    FS_REQUIRE(context, captured == cudaStreamCaptureStatusNone,
               "the stream is being captured, %s: make one call with head.screen before", what);
    return FS_OK;
}

static fs_status copy_here(fs_context *context, void *to, const void *from, size_t bytes) {
    const fs_cuda *cuda = context->state;
    FS_TRY(check_not_captured(context, "and a copy is waited for"));
    FS_CUDA_TRY(context, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->stream));
    FS_CUDA_TRY(context, cudaStreamSynchronize(cuda->stream));
    return FS_OK;
}

fs_status fs_cuda_copy(fs_context *context, void *to, const void *from, size_t bytes) {
    int before;
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = copy_here(context, to, from, bytes);
    fs_cuda_leave(context->state, before);
    return status;
}

#define TURNS 16 /* calls of the progress function, as many as there are strips for */

static fs_status make_here(fs_context *context, const fs_head *head, const fs_screen_header *header,
                           const fs_screen_options *options, void *screen) {
    const fs_cuda *cuda = context->state;
    const int64_t strips = screen_strips(header->rows), step = strips / (options->progress ? TURNS : 1) + 1;
    FS_TRY(check_not_captured(context, "a screen is not made in a graph"));
    FS_CUDA_TRY(context, cudaMemsetAsync(screen, 0, (size_t)screen_bytes(header->format, header->rows, header->dim, 0),
                                         cuda->stream));
    for (int64_t from = 0, to; from < strips; from = to) {
        to = from + step < strips ? from + step : strips;
        FS_CUDA_TRY(context, fs_cuda_make_launch(head, header, screen, from, to, cuda->stream));
        if (!options->progress && to < strips) continue;
        FS_CUDA_TRY(context, cudaStreamSynchronize(cuda->stream));
        FS_TRY(fs_screen_progress(context, options, to, header->rows));
    }
    return FS_OK;
}

fs_status fs_cuda_make_screen(fs_context *context, const fs_head *head, const fs_screen_header *header,
                              const fs_screen_options *options, void *screen) {
    int before;
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = make_here(context, head, header, options, screen);
    fs_cuda_leave(context->state, before);
    return status;
}

/* Runs a launch that leaves two numbers in device memory, zero at first, and waits for them. */
typedef struct counting {
    const fs_head *head;
    const fs_screen_header *header;
    const void *screen;
    int whole;
} counting;

typedef cudaError_t fs_cuda_count(const counting *c, uint64_t *numbers, cudaStream_t stream);

static cudaError_t count_sums(const counting *c, uint64_t *numbers, cudaStream_t stream) {
    return fs_cuda_sum_launch(c->header, c->screen, numbers, stream);
}

static cudaError_t count_others(const counting *c, uint64_t *numbers, cudaStream_t stream) {
    return fs_cuda_compare_launch(c->head, c->header, c->whole, numbers, stream);
}

static fs_status count_here(fs_context *context, fs_cuda_count *count, const counting *c, uint64_t numbers[2]) {
    const fs_cuda *cuda = context->state;
    uint64_t *found = NULL;
    const size_t bytes = 2 * sizeof *found;
    numbers[0] = numbers[1] = 0;
    if (c->header->rows == 0) return FS_OK;
    FS_TRY(check_not_captured(context, "and a screen that is new is compared with its weights"));
    /* Whatever another thread may be capturing. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t error = cudaMalloc((void **)&found, bytes);
    if (error == cudaSuccess) error = cudaMemsetAsync(found, 0, bytes, cuda->stream);
    if (error == cudaSuccess) error = count(c, found, cuda->stream);
    if (error == cudaSuccess) error = cudaMemcpyAsync(numbers, found, bytes, cudaMemcpyDeviceToHost, cuda->stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(cuda->stream);
    cudaFree(found);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    FS_CUDA_TRY(context, error);
    return FS_OK;
}

static fs_status count_numbers(fs_context *context, fs_cuda_count *count, const counting *c, uint64_t numbers[2]) {
    int before;
    FS_TRY(fs_cuda_enter(context, &before));
    const fs_status status = count_here(context, count, c, numbers);
    fs_cuda_leave(context->state, before);
    return status;
}

fs_status fs_cuda_sum_screen(fs_context *context, const fs_screen_header *header, const void *screen,
                             fs_screen_sums *sums) {
    const counting c = {NULL, header, screen, 0};
    uint64_t numbers[2];
    FS_TRY(count_numbers(context, count_sums, &c, numbers));
    sums->weights = numbers[0];
    sums->body = numbers[1];
    return FS_OK;
}

fs_status fs_cuda_compare_screen(fs_context *context, const fs_head *head, const fs_screen_header *header, int whole,
                                 int64_t *strip) {
    const counting c = {head, header, head->screen, whole};
    uint64_t numbers[2];
    FS_TRY(count_numbers(context, count_others, &c, numbers));
    *strip = (int64_t)numbers[0] - 1;
    return FS_OK;
}
