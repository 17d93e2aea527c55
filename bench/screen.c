#define _DEFAULT_SOURCE /* setenv */
/* screen.c - calls with a screen beside the same calls without: unscreened, 8 bits and 4 bits take turns on one
 * language-like head, and every token is compared.
 *
 *   bench_screen V D SECONDS THREADS TEMPERATURE[,TOP_K] B...    THREADS 0: every core; SECONDS per B
 *
 * A line for each B: median and least milliseconds, their share of the unscreened call's, logits of W a row that were
 * computed, rows that took the pass over W. */
#include "cli.h"
#include "measure.h"

#include "flashsampling_screens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN, INT8, INT4, ARMS };
static const char *const arm_names[ARMS] = {"unscreened", "8 bits", "4 bits"};

typedef struct arm {
    const void *screen;
    size_t bytes;
    times times;
    int64_t dots, given_up, calls;
    int32_t *tokens;
} arm;

static void build(fs_context *context, const workload *w, int32_t format, arm *a) {
    const fs_head head = workload_head(w, 0);
    fs_screen_options o = fs_screen_options_default();
    o.format = format;
    check(context, fs_screen_size(context, &head, &o, &a->bytes));
    void *memory = aligned_alloc(64, (a->bytes + 63) / 64 * 64);
    if (!memory) die(END_RUNTIME, "no memory for a screen of %zu bytes", a->bytes);
    memset(memory, 0, a->bytes); /* pages are there before the clock runs */
    const double begin = now();
    check(context, fs_screen_build(context, &head, &o, memory, a->bytes));
    const double s = now() - begin;
    a->screen = memory;
    printf("%s: %.1f MB, %.3f of W, made in %.2f s\n", arm_names[format], (double)a->bytes / 1e6,
           (double)a->bytes / (double)w->w_bytes, s);
}

static void call(fs_context *context, const workload *w, fs_batch *batch, arm *a, int timed) {
    fs_head head = workload_head(w, 0);
    fs_result result = fs_result_default();
    head.screen = a->screen;
    head.screen_bytes = a->bytes;
    result.tokens = a->tokens;
    const double begin = now();
    check(context, fs_sample(context, &head, batch, &result));
    if (!timed) return;
    times_add(&a->times, now() - begin);
    a->dots += counters_of(context).screened_dots;
    a->given_up += a->screen ? batch->rows - counters_of(context).screened_rows : 0;
    a->calls++;
}

static void measure(fs_context *context, const workload *w, arm *arms, fs_batch *batch, double seconds) {
    const double end = now() + seconds;
    for (int i = 0; i < ARMS; i++) {
        arms[i].times.count = 0;
        arms[i].dots = arms[i].given_up = arms[i].calls = 0;
        call(context, w, batch, &arms[i], 0);
    }
    for (int turn = 0; turn < 5 || now() < end; turn++) {
        batch->position_all++;
        for (int i = 0; i < ARMS; i++) call(context, w, batch, &arms[(i + turn) % ARMS], 1);
        for (int i = 1; i < ARMS; i++)
            if (memcmp(arms[i].tokens, arms[0].tokens, (size_t)batch->rows * sizeof *arms[0].tokens) != 0)
                die(END_REJECTED, "B = %lld: %s draws other tokens", (long long)batch->rows, arm_names[i]);
    }
    printf("B = %-4lld", (long long)batch->rows);
    for (int i = 0; i < ARMS; i++) {
        const double rows = (double)(arms[i].calls * batch->rows);
        printf("  %s %.3f (%.3f) ms", arm_names[i], 1e3 * times_median(&arms[i].times),
               1e3 * times_min(&arms[i].times));
        if (i)
            printf(" = %.2f (%.2f), %.0f logits, %.1f %% by W",
                   times_median(&arms[i].times) / times_median(&arms[0].times),
                   times_min(&arms[i].times) / times_min(&arms[0].times), (double)arms[i].dots / rows,
                   100.0 * (double)arms[i].given_up / rows);
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 7) die(END_USAGE, "usage: bench_screen V D SECONDS THREADS TEMPERATURE[,TOP_K] B...");
    synth s = {.V = atoll(argv[1]), .D = atoll(argv[2]), .B = 1, .dtype = FS_BF16, .seed = 1};
    const double seconds = atof(argv[3]);
    fs_options options = fs_options_default();
    fs_context *context;
    options.threads = atoi(argv[4]);
    setenv("FLASHSAMPLING_SCREEN_ROWS", "1048576", 0); /* also where a call would read W */
    for (int i = 6; i < argc; i++) s.B = atoll(argv[i]) > s.B ? atoll(argv[i]) : s.B;
    const workload w = make_workload(&s, 1, options.threads ? options.threads : 64);
    if (fs_context_create(&options, &context) != FS_OK) die(END_RUNTIME, "%s", fs_error_text(NULL));
    printf("%s; V = %lld, D = %lld, bf16, W %.1f MB, T = %s\n", fs_context_text(context), (long long)s.V,
           (long long)s.D, (double)w.w_bytes / 1e6, argv[5]);
    static arm arms[ARMS];
    build(context, &w, FS_SCREEN_INT8, &arms[INT8]);
    build(context, &w, FS_SCREEN_INT4, &arms[INT4]);
    for (int i = 0; i < ARMS; i++) arms[i].tokens = take_memory(s.B, sizeof *arms[i].tokens, "tokens");
    for (int i = 6; i < argc; i++) {
        fs_batch batch = fs_batch_default();
        batch.rows = atoll(argv[i]);
        batch.hidden = w.h;
        batch.hidden_dtype = s.dtype;
        fs_rules rules = fs_rules_default();
        batch.rules = &rules;
        rules.temperature.value = (float)atof(argv[5]);
        if (strchr(argv[5], ',')) rules.top_k.value = atoi(strchr(argv[5], ',') + 1);
        batch.seed_all = 7;
        measure(context, &w, arms, &batch, seconds);
    }
    fs_context_destroy(context);
    return 0;
}
