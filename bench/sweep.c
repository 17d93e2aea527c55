/* sweep.c - see sweep.h. */
#include "sweep.h"
#include "cli.h"
#include "print.h"
#include "ranks.h"

#include <stdio.h>

/* A call's arguments with room for its results. */
typedef struct sweep_call {
    fs_batch batch;
    fs_result result;
} sweep_call;

static sweep_call make_call(const sweep_args *a, const workload *w, int64_t B) {
    sweep_call c = {fs_batch_default(), fs_result_default()};
    c.batch.rows = B;
    c.batch.hidden = w->h;
    c.batch.hidden_dtype = w->s.dtype;
    c.batch.samples = a->samples;
    c.batch.all = a->all;
    c.result.tokens = take_memory(B * a->samples, sizeof(int32_t), "tokens");
    if (a->logprobs) {
        c.result.log_z = take_memory(B, sizeof(float), "log Z");
        c.result.logprob = take_memory(B * a->samples, sizeof(float), "logprobs");
    }
    return c;
}

/* Ends the program if the first or the last row's token is not what the definition says. */
static void verify_call(fs_context *context, const workload *w, sweep_call *c) {
    fs_head head = workload_head(w, 0);
    const int32_t *tokens = c->result.tokens;
    check(context, ranks_sample(context, &head, &c->batch, &c->result));
    int64_t rows[2] = {0, c->batch.rows - 1};
    for (int i = 0; i < (c->batch.rows > 1 ? 2 : 1); i++) {
        int32_t token = tokens[rows[i] * c->batch.samples];
        if (!row_is_right(w, &c->batch, rows[i], token))
            die(END_REJECTED, "B = %lld, row %lld: token %d is not the one the definition gives; nothing was timed",
                (long long)c->batch.rows, (long long)rows[i], token);
    }
}

static void time_calls(fs_context *context, const sweep_args *a, const workload *w, sweep_call *c, sweep_row *row,
                       ceiling *read) {
    double end = now() + a->seconds;
    /* Ranks go on together; asking also lines them up before a call. */
    for (int turn = 0; ranks_max(row->times.count < 5 || now() < end) > 0; turn++) {
        fs_head head = workload_head(w, turn);
        double begin = now();
        check(context, ranks_sample(context, &head, &c->batch, &c->result));
        times_add(&row->times, now() - begin);
        c->batch.position_all++;
        if (turn % 8 == 0) {
            ceiling again = measure_reading(w->w, w->copies, w->w_bytes, a->threads, 0);
            if (again.bytes_per_s > read->bytes_per_s) *read = again;
        }
        if (row->times.count >= 4096) break;
    }
    row->work_bytes = c->result.work_bytes;
    row->fallback_rows = c->result.fallback_rows;
    row->wire_bytes = c->result.wire_bytes;
}

const sweep_row *sweep_batches(fs_context *context, const workload *w, const sweep_args *args, const int32_t *batch,
                               int64_t count, ceiling *read) {
    sweep_row *rows = take_memory(count, sizeof *rows, "results");
    progress_start("bench", (double)count);
    *read = measure_reading(w->w, w->copies, w->w_bytes, args->threads, 0.5);
    for (int64_t i = 0; i < count; i++) {
        char label[32];
        snprintf(label, sizeof label, "bench, B = %d", batch[i]);
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
