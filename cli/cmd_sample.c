/* cmd_sample.c - `flashsample sample`: one call, printed. */
#include "arrays.h"
#include "device.h"
#include "place.h"
#include "print.h"
#include "ranks.h"
#include "sample.h"
#include "shards.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------- status ---- */

static const struct {
    uint32_t bit;
    const char *name;
} status_names[] = {
    {FS_ROW_SKIPPED, "skipped"},
    {FS_ROW_EMPTY, "empty"},
    {FS_ROW_BAD_SLOT, "bad slot"},
    {FS_ROW_BAD_TEMPERATURE, "bad temperature"},
    {FS_ROW_BAD_TOP_P, "bad top-p"},
    {FS_ROW_BAD_MIN_P, "bad min-p"},
    {FS_ROW_BAD_PENALTY, "bad penalty"},
    {FS_ROW_BAD_TOKEN, "bad token"},
    {FS_ROW_INCOMPLETE, "incomplete"},
    {FS_ROW_PEER, "peer"},
    {FS_ROW_BAD_MASK, "bad mask"},
    {FS_ROW_BAD_LIST, "bad list"},
    {FS_ROW_OVER_LIMIT, "over limit"},
    {FS_ROW_NAN, "nan"},
    {FS_ROW_INF, "inf"},
    {FS_ROW_FALLBACK, "second pass"},
    {FS_ROW_RANK_BOUND, "rank is a bound"},
    {FS_ROW_SHORT, "short"},
    {FS_ROW_FAR, "far"},
};
#define STATUS_NAMES (sizeof status_names / sizeof status_names[0])

static void status_words(uint32_t status, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < STATUS_NAMES && used < size; i++)
        if (status & status_names[i].bit)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", status_names[i].name);
    if (!used) snprintf(text, size, "ok");
}

static int64_t token_at(const fs_result *r, int64_t i) {
    return r->tokens_dtype == FS_I64 ? ((const int64_t *)r->tokens)[i] : ((const int32_t *)r->tokens)[i];
}

/* The token of sample i: drawn, or given in score mode. */
static int64_t shown_token(const sample_call *c, int64_t i) {
    return c->batch.mode == FS_MODE_SCORE ? c->batch.score_token[i] : token_at(&c->result, i);
}

/* ------------------------------------------------------------------------------------------------------ text ---- */

static void print_tokens(const sample_call *c) {
    const fs_result *r = &c->result;
    int n = c->batch.samples;
    table *t = table_new(!r->logit        ? "row|sample|token|noisy logit|<status"
                         : r->noisy_logit ? "row|sample|token|noisy logit|logit|logprob|rank|max|log Z|<status"
                                          : "row|sample|token|logit|logprob|rank|max|log Z|<status");
    for (int64_t b = 0; b < c->batch.rows; b++) {
        char status[256];
        status_words(r->status[b], status, sizeof status);
        for (int s = 0; s < n; s++) {
            int64_t i = b * n + s;
            table_cell(t, "%lld", (long long)b);
            table_cell(t, "%d", s);
            table_cell(t, "%lld", (long long)shown_token(c, i));
            if (r->noisy_logit) table_cell(t, "%s", text_real((double)r->noisy_logit[i]));
            if (r->logit) {
                table_cell(t, "%s", text_real((double)r->logit[i]));
                table_cell(t, "%s", text_real((double)r->logprob[i]));
                table_cell(t, "%s%d", r->status[b] & FS_ROW_RANK_BOUND ? ">=" : "", r->rank[i]);
                table_cell(t, "%s", text_real((double)r->max_logit[b]));
                table_cell(t, "%s", text_real((double)r->log_z[b]));
            }
            table_cell(t, "%s", status);
        }
    }
    table_print(t);
}

static void print_top(const sample_call *c) {
    const fs_result *r = &c->result;
    if (!r->top_count) return;
    table *t = table_new("row|place|token|logit|logprob");
    for (int64_t b = 0; b < c->batch.rows; b++) {
        for (int k = 0; k < r->top_count; k++) {
            int64_t i = b * r->top_count + k;
            if (r->top_token[i] < 0) continue;
            table_cell(t, "%lld", (long long)b);
            table_cell(t, "%d", k + 1);
            table_cell(t, "%d", r->top_token[i]);
            table_cell(t, "%s", text_real((double)r->top_logit[i]));
            table_cell(t, "%s", text_real((double)r->top_logprob[i]));
        }
    }
    printf("\nlargest logits\n");
    table_print(t);
}

static void print_watch(const sample_call *c) {
    if (!c->batch.watch_offset) return;
    table *t = table_new("row|token|logit|logprob");
    for (int64_t b = 0; b < c->batch.rows; b++) {
        for (int64_t i = c->batch.watch_offset[b]; i < c->batch.watch_offset[b + 1]; i++) {
            table_cell(t, "%lld", (long long)b);
            table_cell(t, "%d", c->batch.watch_token[i]);
            table_cell(t, "%s", text_real((double)c->result.watch_logit[i]));
            table_cell(t, "%s", text_real((double)c->result.watch_logprob[i]));
        }
    }
    printf("\nwatched tokens\n");
    table_print(t);
}

/* Parts of shards and ranks do not say which of their rows a screen has decided, and calls on CUDA do not know yet. */
static int has_screen_counts(const sample_args *args) {
    return args->shards == 1 && !ranks_open() && !device_is_cuda();
}

static void print_screen(const sample_args *args, const sample_call *c) {
    printf("%s", screen_text(args->screen, &c->screen));
    if (has_screen_counts(args))
        printf("; it decided %lld of %lld rows, with %s logits from W", (long long)c->counters.screened_rows,
               (long long)c->batch.rows, text_count((double)c->counters.screened_dots));
    printf("\n");
}

void print_call(const sample_args *args, const sample_call *c, const char *context_text, double seconds) {
    print_tokens(c);
    print_top(c);
    print_watch(c);
    if (args->quiet) return;
    printf("\n%lld rows in %s, %s of temporary memory, %lld second passes; %s\n", (long long)c->batch.rows,
           text_seconds(seconds), text_bytes((double)c->counters.work_bytes), (long long)c->counters.fallback_rows,
           context_text);
    if (args->screen) print_screen(args, c);
    if (ranks_open())
        printf("%d ranks, each sent %s\n", ranks_open()->count, text_bytes((double)c->counters.wire_bytes));
}

/* ------------------------------------------------------------------------------------------------------ JSON ---- */

static void json_floats(const char *key, const float *x, int64_t n) {
    if (!x) return;
    json_open(key, '[');
    for (int64_t i = 0; i < n; i++) json_real(NULL, (double)x[i]);
    json_close(']');
}

static void json_ints(const char *key, const int32_t *x, int64_t n) {
    if (!x) return;
    json_open(key, '[');
    for (int64_t i = 0; i < n; i++) json_int(NULL, x[i]);
    json_close(']');
}

#define AT(array, i) ((array) ? (array) + (i) : NULL)

static void json_row(const sample_call *c, int64_t b) {
    const fs_result *r = &c->result;
    int n = c->batch.samples;
    int64_t N = r->top_count, i = b * n;
    json_open(NULL, '{');
    json_open("tokens", '[');
    for (int s = 0; s < n; s++) json_int(NULL, shown_token(c, i + s));
    json_close(']');
    json_int("status", r->status[b]);
    char words[256];
    status_words(r->status[b], words, sizeof words);
    json_text("status_text", words);
    json_floats("noisy_logit", AT(r->noisy_logit, i), n);
    json_floats("logit", AT(r->logit, i), n);
    json_floats("logprob", AT(r->logprob, i), n);
    json_ints("rank", AT(r->rank, i), n);
    if (r->max_logit) json_real("max_logit", (double)r->max_logit[b]);
    if (r->log_z) json_real("log_z", (double)r->log_z[b]);
    json_ints("top_token", AT(r->top_token, b * N), N);
    json_floats("top_logit", AT(r->top_logit, b * N), N);
    json_floats("top_logprob", AT(r->top_logprob, b * N), N);
    if (c->batch.watch_offset) {
        int64_t first = c->batch.watch_offset[b], count = c->batch.watch_offset[b + 1] - first;
        json_ints("watch_token", AT(c->batch.watch_token, first), count);
        json_floats("watch_logit", AT(r->watch_logit, first), count);
        json_floats("watch_logprob", AT(r->watch_logprob, first), count);
    }
    json_close('}');
}

void print_call_json(const sample_args *args, const sample_call *c, const char *context_text, double seconds) {
    json_open(NULL, '{');
    json_text("version", fs_version_text());
    json_text("context", context_text);
    json_int("noise_id", fs_noise_id());
    json_int("vocab", c->head.vocab);
    json_int("shards", args->shards);
    json_int("ranks", ranks_open() ? ranks_open()->count : 1);
    json_int("wire_bytes", c->counters.wire_bytes);
    json_real("seconds", seconds);
    json_int("work_bytes", c->counters.work_bytes);
    json_int("fallback_rows", c->counters.fallback_rows);
    if (args->screen) {
        json_open("screen", '{');
        screen_json(args->screen, &c->screen);
        if (has_screen_counts(args)) {
            json_int("decided_rows", c->counters.screened_rows);
            json_int("logits_from_w", c->counters.screened_dots);
        }
        json_close('}');
    }
    json_open("rows", '[');
    for (int64_t b = 0; b < c->batch.rows; b++) json_row(c, b);
    json_close(']');
    json_close('}');
}

/* ----------------------------------------------------------------------------------------------------------- */

static void write_tokens(const sample_args *args, const sample_call *c) {
    const fs_result *r = &c->result;
    char error[NPY_ERROR_CHARS];
    npy_array a = {.type = args->i64 ? NPY_I64 : NPY_I32, .rank = 2, .shape = {c->batch.rows, c->batch.samples, 1, 1}};
    a.count = c->batch.rows * c->batch.samples;
    a.bytes = (size_t)a.count * npy_type_size(a.type);
    a.data = r->tokens;
    if (npy_write(args->out, &a, error) != 0) die(END_RUNTIME, "--out %s", error);
}

/* How the program ends. Rows that failed were printed, but are no success; to skip a row was asked for, and one without
 * a finite logit has no token by right. */
static int end_of(const sample_call *c) {
    const uint32_t failure = FS_ROW_NO_TOKEN & ~(uint32_t)(FS_ROW_SKIPPED | FS_ROW_EMPTY);
    int64_t count = 0, first = 0;
    uint32_t all = 0;
    for (int64_t b = 0; b < c->batch.rows; b++) {
        if (!(c->result.status[b] & failure)) continue;
        if (count++ == 0) first = b;
        all |= c->result.status[b];
    }
    if (!count) return END_OK;
    const int code = all & (FS_ROW_INCOMPLETE | FS_ROW_PEER) ? END_RUNTIME : END_USAGE;
    if (launch_rank() > 0) return code; /* rank 0 says the same */
    char words[256];
    status_words(c->result.status[first], words, sizeof words);
    die(code, "%lld rows have no token; row %lld: %s", (long long)count, (long long)first, words);
}

int cmd_sample(int argc, char **argv) {
    sample_args args = parse_sample(argc, argv);
    if (args.quiet) progress_off();
    if (ranks_open() && args.shards > 1)
        die(END_USAGE, "--shards %lld: under mpirun the ranks are the shards", (long long)args.shards);
    sample_call c = build_call(&args);
    c.batch.rules = &c.rules;
    fs_context *context = open_context(&args.context);
    if (args.shards == 1) c.head = ranks_slice(&c.head);
    fs_head head = place_head(&c.head, c.batch.rows);
    const fs_batch batch = place_batch(&c.batch, &c.head);
    fs_result result = place_result(&c.result, &c.batch);
    c.screen = screen_make(context, &head, args.screen, c.batch.seed_all, 1);
    double begin = now();
    int64_t again = 0;
    if (args.shards > 1) again = sample_in_shards(context, &head, &batch, &result, (int)args.shards);
    else check(context, ranks_sample(context, &head, &batch, &result));
    device_wait();
    double seconds = now() - begin;
    fetch_result(&c.result, &result, &c.batch);
    c.counters = counters_of(context);
    c.counters.fallback_rows += again;
    if (device_is_cuda()) c.counters.fallback_rows = 0; /* the call did not know yet; the status of its rows says it */
    for (int64_t b = 0; device_is_cuda() && b < c.batch.rows; b++)
        c.counters.fallback_rows += (c.result.status[b] & FS_ROW_FALLBACK) != 0;
    if (args.out && launch_rank() == 0) write_tokens(&args, &c);
    if (args.json) print_call_json(&args, &c, fs_context_text(context), seconds);
    else print_call(&args, &c, fs_context_text(context), seconds);
    return end_of(&c);
}
