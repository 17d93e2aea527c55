/* sweep.c - see sweep.h. */
#include "sweep.h"
#include "cli.h"
#include "device.h"
#include "place.h"
#include "print.h"
#include "ranks.h"

#include <stdio.h>

/* A call's arguments with room for its results, where calls write them and in host memory. */
typedef struct sweep_call {
    fs_batch batch;
    fs_result result, by_screen, host, host_by_screen;
} sweep_call;

/* Calls that are timed together: on CUDA a call only enqueues, and waiting for each would take a share of its time. */
static int calls_in_a_row(void) {
    return device_is_cuda() ? 10 : 1;
}

static fs_result make_result(const sweep_args *a, int64_t B) {
    fs_result r = fs_result_default();
    r.tokens = take_memory(B * a->samples, sizeof(int32_t), "tokens");
    if (a->logprobs) {
        r.log_z = take_memory(B, sizeof(float), "log Z");
        r.logprob = take_memory(B * a->samples, sizeof(float), "logprobs");
    }
    return r;
}

static sweep_call make_call(const sweep_args *a, const workload *w, int64_t B) {
    sweep_call c = {.batch = fs_batch_default(), .host = make_result(a, B), .host_by_screen = make_result(a, B)};
    c.batch.rows = B;
    c.batch.hidden = w->h;
    c.batch.hidden_dtype = w->s.dtype;
    c.batch.samples = a->samples;
    c.batch.rules = &a->rules;
    c.batch.seed_all = a->seed;
    c.result = place_result(&c.host, &c.batch);
    c.by_screen = place_result(&c.host_by_screen, &c.batch);
    return c;
}

/* Ends the program if the first or the last row's token is not what the definition says. */
static void verify_call(fs_context *context, const workload *w, sweep_call *c) {
    fs_head head = workload_head(w, 0);
    const int32_t *tokens = c->host.tokens;
    check(context, ranks_sample(context, &head, &c->batch, &c->result));
    fetch_result(&c->host, &c->result, &c->batch);
    int64_t rows[2] = {0, c->batch.rows - 1};
    for (int i = 0; i < (c->batch.rows > 1 ? 2 : 1); i++) {
        int32_t token = tokens[rows[i] * c->batch.samples];
        if (!row_is_right(w, &c->batch, rows[i], token))
            die(END_REJECTED, "B = %lld, row %lld: token %d is not the one the definition gives; nothing was timed",
                (long long)c->batch.rows, (long long)rows[i], token);
    }
}

/* Seconds of one call, of as many as are timed together; each has the next copy of W and the next position. */
static double time_call(fs_context *context, const workload *w, int turn, const sweep_call *c, int screened,
                        fs_result *result) {
    const int calls = calls_in_a_row();
    fs_batch batch = c->batch;
    const double begin = now();
    for (int i = 0; i < calls; i++, batch.position_all++) {
        const int copy = turn * calls + i;
        const fs_head head = screened ? workload_screened(w, copy) : workload_head(w, copy);
        check(context, ranks_sample(context, &head, &batch, result));
    }
    device_wait();
    return (now() - begin) / calls;
}

static void call_from_w(fs_context *context, const workload *w, int turn, sweep_call *c, sweep_row *row) {
    times_add(&row->times, time_call(context, w, turn, c, 0, &c->result));
}

static void call_by_screen(fs_context *context, const workload *w, int turn, sweep_call *c, sweep_row *row) {
    if (!w->screen_bytes) return;
    times_add(&row->by_screen, time_call(context, w, turn, c, 1, &c->by_screen));
    row->screened_rows += counters_of(context).screened_rows;
    row->screened_dots += counters_of(context).screened_dots;
}

/* Ends the program if the screen has drawn another token than W. */
static void compare_tokens(const workload *w, sweep_call *c) {
    const int64_t count = c->batch.rows * c->batch.samples;
    const int32_t *from_w = c->host.tokens, *by_screen = c->host_by_screen.tokens;
    if (!w->screen_bytes) return;
    fetch_result(&c->host, &c->result, &c->batch);
    fetch_result(&c->host_by_screen, &c->by_screen, &c->batch);
    for (int64_t i = 0; i < count; i++)
        if (from_w[i] != by_screen[i])
            die(END_REJECTED, "B = %lld, row %lld: the screen draws token %d, W draws %d", (long long)c->batch.rows,
                (long long)(i / c->batch.samples), by_screen[i], from_w[i]);
}

static void time_calls(fs_context *context, const sweep_args *a, const workload *w, sweep_call *c, sweep_row *row,
                       ceiling *read) {
    double end = now() + a->seconds;
    /* Ranks go on together; asking also lines them up before a call. */
    for (int turn = 0; ranks_max(row->times.count < 5 || now() < end) > 0; turn++) {
        if (turn % 2) call_by_screen(context, w, turn, c, row);
        call_from_w(context, w, turn, c, row);
        if (turn % 2 == 0) call_by_screen(context, w, turn, c, row);
        compare_tokens(w, c);
        c->batch.position_all += (uint64_t)calls_in_a_row();
        if (turn % 8 == 0) {
            ceiling again = workload_reading(w, a->threads, 0);
            if (again.bytes_per_s > read->bytes_per_s) *read = again;
        }
        if (row->times.count >= 4096) break;
    }
    const fs_counters counters = counters_of(context);
    row->work_bytes = counters.work_bytes;
    row->fallback_rows = counters.fallback_rows;
    row->wire_bytes = counters.wire_bytes;
}

const sweep_row *sweep_batches(fs_context *context, const workload *w, const sweep_args *args, const int32_t *batch,
                               int64_t count, ceiling *read) {
    sweep_row *rows = take_memory(count, sizeof *rows, "results");
    progress_start("bench", (double)count);
    *read = workload_reading(w, args->threads, 0.5);
    for (int64_t i = 0; i < count; i++) {
        char label[32];
        snprintf(label, sizeof label, "timing, B = %d", batch[i]);
        progress_label(label);
        sweep_call c = make_call(args, w, batch[i]);
        rows[i].B = batch[i];
        verify_call(context, w, &c);
        time_calls(context, args, w, &c, &rows[i], read);
        progress_at((double)i + 1);
    }
    progress_end();
    return rows;
}

void sweep_print_screened(const sweep_row *rows, int count) {
    table *t = table_new("rows|W, median|screen|of W's time|W, min|screen|of W's time|decided|logits from W per row");
    for (int i = 0; i < count; i++) {
        const sweep_row *r = &rows[i];
        const double median = times_median(&r->times), least = times_min(&r->times);
        table_cell(t, "%lld", (long long)r->B);
        table_cell(t, "%s", text_seconds(median));
        table_cell(t, "%s", text_seconds(times_median(&r->by_screen)));
        table_cell(t, "%.2f", times_median(&r->by_screen) / median);
        table_cell(t, "%s", text_seconds(least));
        table_cell(t, "%s", text_seconds(times_min(&r->by_screen)));
        table_cell(t, "%.2f", times_min(&r->by_screen) / least);
        if (ranks_open() || device_is_cuda()) table_cell(t, "-"); /* parts do not count them, nor does CUDA */
        else table_cell(t, "%.0f %%", 100.0 * (double)r->screened_rows / (double)(r->by_screen.count * r->B));
        if (r->screened_rows) table_cell(t, "%.1f", (double)r->screened_dots / (double)r->screened_rows);
        else table_cell(t, "-");
    }
    table_print(t);
}
