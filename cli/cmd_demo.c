/* cmd_demo.c - `flashsample demo`: the main job on a real shape, and what it costs beside the usual way. */
#include "device.h"
#include "half.h"
#include "measure.h"
#include "options.h"
#include "place.h"
#include "print.h"
#include "screen.h"
#include "stats.h"
#include "sweep.h"
#include "truth.h"
#include "usual.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const command about = {
    .name = "demo",
    .usage = "[options]",
    .about =
        "Draws tokens for a batch of hidden states from an LM head of Qwen3-0.6B's shape (V = 151936, D = 1024, bf16), "
        "fused, and shows what was drawn, what it cost beside the usual way (matmul, softmax, prefix sum, search over "
        "stored logits) and by a screen, a copy of W in 8 bits, and that the draws follow the softmax. The weights are "
        "synthetic and language-like, made on the spot. Takes under two minutes on two cores. With --backend cuda the "
        "usual way is left out: make bench-gpu times cuBLAS and other samplers beside ours.",
    .details = NULL,
};

#define SHOWN 5       /* rows of the first table */
#define CHECK_ROWS 16 /* of the exactness check, all the same hidden state */
#define CHECK_SAMPLES 64

typedef struct demo {
    int64_t vocab, dim, seed, draws;
    double seconds;
    int screen, quiet;
    context_args args;
    int threads;
    fs_context *context;
    workload w;
    ceiling reading;
    int widest; /* the shown row with the largest nucleus, for the check */
    blas library[2];
    int libraries;
    float *wf; /* W as float, for them; NULL: there is none, or no memory for it */
} demo;

static void section(const char *title) {
    printf("\n%s\n", title);
    fflush(stdout);
}

/* ----------------------------------------------------------------------------------------------- what is drawn ---- */

/* One call; its results are in the arrays of `result`, host memory. */
static void draw(demo *d, const fs_batch *batch, fs_result *result) {
    const fs_head head = workload_head(&d->w, 0);
    fs_result placed = place_result(result, batch);
    check(d->context, fs_sample(d->context, &head, batch, &placed));
    fetch_result(result, &placed, batch);
}

/* Row b's head and batch for the reference backend. */
static fs_batch host_row(const demo *d, int b, fs_head *head) {
    *head = workload_head(&d->w, 0);
    head->data = d->w.host_w;
    fs_batch batch = fs_batch_default();
    batch.rows = 1;
    batch.hidden = (const char *)d->w.host_h + b * d->w.s.D * dtype_bytes(d->w.s.dtype);
    batch.hidden_dtype = d->w.s.dtype;
    return batch;
}

/* Tokens it takes to reach the mass .95 of row b, and the largest log-probability. */
static void nucleus_of(const demo *d, int b, int32_t *tokens, float *largest) {
    fs_head head;
    fs_batch batch = host_row(d, b, &head);
    fs_rules rules = fs_rules_default();
    rules.top_p.value = 0.95f;
    batch.rules = &rules;
    fs_result result = fs_result_default();
    result.top_count = 1;
    result.top_logprob = largest;
    result.survivor_count = tokens;
    truth_sample(&head, &batch, result);
}

static void show_draws(demo *d) {
    int32_t sampled[SHOWN], nucleus[SHOWN], greedy[SHOWN], rank[SHOWN];
    uint32_t status[SHOWN];
    float logprob[SHOWN];
    fs_batch batch = fs_batch_default();
    batch.rows = SHOWN;
    batch.hidden = d->w.h;
    batch.hidden_dtype = d->w.s.dtype;
    batch.seed_all = (uint64_t)d->seed;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    fs_result result = fs_result_default();
    result.tokens = sampled;
    result.logprob = logprob;
    result.rank = rank;
    draw(d, &batch, &result);
    int right = row_is_right(&d->w, &batch, 0, sampled[0]);

    result = fs_result_default();
    result.tokens = nucleus;
    result.status = status;
    rules.temperature.value = 0.7f;
    rules.top_p.value = 0.95f;
    draw(d, &batch, &result);
    int second_passes = 0;
    for (int b = 0; b < SHOWN; b++) second_passes += (status[b] & FS_ROW_FALLBACK) != 0;
    result.tokens = greedy;
    rules.temperature.value = 0.0f;
    draw(d, &batch, &result);

    table *t = table_new("row|nucleus|largest p|T=1|logprob|rank|T=0.7, top-p 0.95|greedy");
    int32_t most = 0;
    progress_start("checking in double", SHOWN);
    for (int b = 0; b < SHOWN; b++) {
        int32_t n;
        float largest;
        nucleus_of(d, b, &n, &largest);
        if (n > most) d->widest = b;
        if (n > most) most = n;
        table_cell(t, "%d", b);
        table_cell(t, "%s", text_count((double)n));
        table_cell(t, "%.3f", exp((double)largest));
        table_cell(t, "%d", sampled[b]);
        table_cell(t, "%.3f", (double)logprob[b]);
        table_cell(t, "%d", rank[b]);
        table_cell(t, "%d", nucleus[b]);
        table_cell(t, "%d", greedy[b]);
        progress_at(b + 1);
    }
    progress_end();
    table_print(t);
    printf("  nucleus: tokens that hold 95 %% of the probability. Second passes over W: %d.\n"
           "  Row 0's token at T = 1, computed again in double: %s.\n",
           second_passes, right ? "the same token" : "ANOTHER TOKEN");
}

/* ----------------------------------------------------------------------------------------------- what it costs ---- */

typedef struct cost {
    int64_t B, work_bytes;
    times fused, matmul, sampler;
    const char *how; /* the usual way multiplies */
} cost;

/* Whether it is time to stop, after `turn` turns since `begin`; `done` parts of the whole came before. */
static int is_over(const demo *d, int turn, double begin, double done) {
    const double share = (now() - begin) / (0.5 * d->seconds);
    progress_at(done + 0.5 * fmin(1.0, share));
    return (turn >= 4 && share >= 1.0) || turn >= 1000;
}

static void time_usual(const demo *d, cost *c, usual *u, double done) {
    double begin = now();
    for (int turn = 0; !is_over(d, turn, begin, done); turn++) {
        double t0 = now();
        usual_matmul(u);
        double t1 = now();
        usual_sample(u);
        double t2 = now();
        if (turn == 0) continue; /* the first touches memory nobody had touched before */
        times_add(&c->matmul, t1 - t0);
        times_add(&c->sampler, t2 - t1);
    }
}

static void time_fused(demo *d, cost *c, double done) {
    fs_head head = workload_head(&d->w, 0);
    fs_batch batch = fs_batch_default();
    batch.rows = c->B;
    batch.hidden = d->w.h;
    batch.hidden_dtype = d->w.s.dtype;
    fs_result result = fs_result_default();
    result.tokens = take_memory(c->B, sizeof(int32_t), "tokens");
    double begin = now();
    for (int turn = 0; !is_over(d, turn, begin, done); turn++) {
        double t0 = now();
        check(d->context, fs_sample(d->context, &head, &batch, &result));
        double t1 = now();
        batch.position_all++;
        ceiling again = workload_reading(&d->w, d->threads, 0);
        if (again.bytes_per_s > d->reading.bytes_per_s) d->reading = again;
        if (turn > 0) times_add(&c->fused, t1 - t0);
    }
    c->work_bytes = counters_of(d->context).work_bytes;
}

/* One after the other, as the threads of a BLAS would be in our way. */
static void time_both(demo *d, cost *c, double done) {
    usual u = {.V = d->w.s.V, .D = d->w.s.D, .B = c->B, .w = d->w.w[0], .h = d->w.h, .threads = d->threads};
    u.wf = d->wf;
    time_fused(d, c, done);
    usual_prepare(&u);
    usual_choose_matmul(&u, d->library, d->libraries);
    time_usual(d, c, &u, done + 0.5);
    c->how = u.how;
    if (d->libraries) blas_rest();
}

static void load_libraries(demo *d) {
    const int64_t n = d->w.s.V * d->w.s.D;
    const uint16_t *w = d->w.host_w;
    d->libraries = load_blas(d->library);
    if (!d->libraries || 4 * n > memory_bytes() / 4) return;
    d->wf = take_memory(n, sizeof *d->wf, "W as float");
    for (int64_t i = 0; i < n; i++) d->wf[i] = float_of_bf16(w[i]);
}

static void show_costs(demo *d) {
    static const int64_t sizes[] = {1, 16, 64};
    cost *costs = take_memory(3, sizeof *costs, "times");
    progress_start("timing", 3);
    load_libraries(d);
    d->reading = workload_reading(&d->w, d->threads, 0.3);
    for (int i = 0; i < 3; i++) {
        costs[i].B = sizes[i];
        time_both(d, &costs[i], i);
    }
    progress_end();
    table *t = table_new("rows|fused|tokens/s|of reading|usual way|speed-up|memory|usual way");
    for (int i = 0; i < 3; i++) {
        cost *c = &costs[i];
        double fused = times_median(&c->fused), whole = times_median(&c->matmul) + times_median(&c->sampler);
        table_cell(t, "%lld", (long long)c->B);
        table_cell(t, "%s", text_seconds(fused));
        table_cell(t, "%s", text_count((double)c->B / fused));
        table_cell(t, "%.0f %%", 100.0 * (double)d->w.w_bytes / fused / d->reading.bytes_per_s);
        table_cell(t, "%s", text_seconds(whole));
        table_cell(t, "%.2f x", whole / fused);
        table_cell(t, "%s", text_bytes((double)c->work_bytes));
        table_cell(t, "%s", text_bytes(4.0 * (double)c->B * (double)d->w.s.V));
    }
    table_print(t);
    printf("  The usual way: a matmul into stored logits, softmax, prefix sum and search.\n"
           "  Its matmul is by %s",
           costs[0].how);
    for (int i = 1; i < 3; i++)
        if (strcmp(costs[i].how, costs[i - 1].how) != 0) printf(", from %d rows by %s", (int)costs[i].B, costs[i].how);
    printf("%s.\n  Reading W and nothing else: %.1f GB/s with %d threads. Times are medians.\n",
           d->libraries ? "" : "; no BLAS was found", d->reading.bytes_per_s * 1e-9, d->threads);
}

/* The same on a CUDA device, beside nothing: the usual way there is in libraries that flashsample does not load. */
static void show_device_costs(demo *d) {
    static const int32_t sizes[] = {1, 16, 64};
    sweep_args args = {fs_rules_default(), (uint64_t)d->seed, 1, 0, 0.5 * d->seconds, d->threads};
    const sweep_row *rows = sweep_batches(d->context, &d->w, &args, sizes, 3, &d->reading);
    table *t = table_new("rows|time|tokens/s|GB/s|of copying|temporary memory");
    for (int i = 0; i < 3; i++) {
        const double fused = times_median(&rows[i].times), rate = (double)d->w.w_bytes / fused;
        table_cell(t, "%lld", (long long)rows[i].B);
        table_cell(t, "%s", text_seconds(fused));
        table_cell(t, "%s", text_count((double)rows[i].B / fused));
        table_cell(t, "%.0f", rate * 1e-9);
        table_cell(t, "%.0f %%", 100.0 * rate / d->reading.bytes_per_s);
        table_cell(t, "%s", text_bytes((double)rows[i].work_bytes));
    }
    table_print(t);
    printf("\n  A copy of W (%s) inside the device's memory reads and writes %.0f GB/s; its cache of %s may hold a "
           "part of\n"
           "  W. Times are medians, each over ten calls in a row. make bench-gpu shows the usual way beside them.\n",
           text_bytes((double)d->w.w_bytes), d->reading.bytes_per_s * 1e-9, text_cache(device_opened().cache_bytes));
}

/* ---------------------------------------------------------------------------------------------------- a screen ---- */

static void show_screen(demo *d) {
    static const int32_t sizes[] = {1, 4, 16};
    sweep_args args = {fs_rules_default(), (uint64_t)d->seed, 1, 0, 0.5 * d->seconds, d->threads};
    fs_head head = workload_head(&d->w, 0);
    const screen_facts facts = screen_make(d->context, &head, d->screen, (uint64_t)d->seed, 1);
    d->w.screen[0] = head.screen;
    d->w.screen_bytes = head.screen_bytes;
    const sweep_row *rows = sweep_batches(d->context, &d->w, &args, sizes, 3, &d->reading);
    table *t = table_new("rows|from W|by screen|of W's time|decided|logits from W per row");
    for (int i = 0; i < 3; i++) {
        const sweep_row *r = &rows[i];
        const double median = times_median(&r->times), screen = times_median(&r->by_screen);
        table_cell(t, "%lld", (long long)r->B);
        table_cell(t, "%s", text_seconds(median));
        table_cell(t, "%s", text_seconds(screen));
        table_cell(t, "%.2f", screen / median);
        if (device_is_cuda()) table_cell(t, "-"); /* CUDA does not count them */
        else table_cell(t, "%.0f %%", 100.0 * (double)r->screened_rows / (double)(r->by_screen.count * r->B));
        if (r->screened_rows) table_cell(t, "%.1f", (double)r->screened_dots / (double)r->screened_rows);
        else table_cell(t, "-");
    }
    table_print(t);
    printf("  %s. Tokens are the same.\n"
           "  This head is synthetic, and easy for a screen (docs/explain/screens.md).\n",
           screen_text(d->screen, &facts));
}

/* --------------------------------------------------------------------------------------------------- exactness ---- */

static int show_exactness(demo *d) {
    int64_t V = d->w.s.V, D = d->w.s.D, bytes = D * dtype_bytes(d->w.s.dtype);
    const char *h = (const char *)d->w.host_h + d->widest * bytes;
    char *hidden = take_memory(CHECK_ROWS * bytes, 1, "hidden states");
    for (int b = 0; b < CHECK_ROWS; b++) memcpy(hidden + b * bytes, h, (size_t)bytes);
    int32_t *tokens = take_memory(CHECK_ROWS * CHECK_SAMPLES, sizeof *tokens, "tokens");
    int64_t *count = take_memory(V, sizeof *count, "counts"), rounds = d->draws / (CHECK_ROWS * CHECK_SAMPLES) + 1;
    double *p = take_memory(V, sizeof *p, "probabilities");
    fs_head head;
    fs_batch batch = host_row(d, d->widest, &head);
    truth_probabilities(&head, &batch, p);

    head = workload_head(&d->w, 0);
    batch.rows = CHECK_ROWS;
    batch.hidden = device_array(hidden, CHECK_ROWS * bytes, "hidden states");
    batch.hidden_dtype = d->w.s.dtype;
    batch.samples = CHECK_SAMPLES;
    batch.seed_all = (uint64_t)d->seed + 1;
    fs_result result = fs_result_default();
    result.tokens = tokens;
    fs_result placed = place_result(&result, &batch);
    int64_t missing = 0;
    progress_start("drawing", (double)rounds);
    for (int64_t i = 0; i < rounds; i++) {
        batch.position_all = (uint64_t)i;
        check(d->context, fs_sample(d->context, &head, &batch, &placed));
        fetch_result(&result, &placed, &batch);
        for (int k = 0; k < CHECK_ROWS * CHECK_SAMPLES; k++)
            if (tokens[k] >= 0 && tokens[k] < V) count[tokens[k]]++;
            else missing++;
        progress_at((double)i + 1);
    }
    progress_end();
    fit f = fit_counts(count, p, V, 25.0);
    int good = f.p >= 1e-6 && f.outside == 0 && missing == 0;
    printf("  %s draws for row %d (%d per pass over W) against its softmax in double:\n"
           "  chi-squared %.1f over %d bins, p = %.3g; total variation %.4f,\n"
           "  %.4f expected by chance; an error of %.4f would show at 5 sigma.\n"
           "  %s\n",
           text_count((double)f.n), d->widest, CHECK_ROWS * CHECK_SAMPLES, f.statistic, f.bins, f.p, f.tv, f.tv_mean,
           detectable_tv(f.n, f.bins, 5.0),
           good ? "The draws follow the distribution." : "REJECTED: the draws do not follow it.");
    return good;
}

int cmd_demo(int argc, char **argv) {
    demo d = {.vocab = 151936,
              .dim = 1024,
              .seed = 1,
              .draws = 50000,
              .seconds = 3,
              .screen = FS_SCREEN_INT8,
              .args = context_args_default()};
    const opt options[] = {
        OPT_HEAD("Options"),
        OPT_INT_TO("vocab", "V", "rows of W (default 151936)", &d.vocab, 256, (1 << 24) - 1),
        OPT_INT_TO("dim", "D", "hidden size (default 1024)", &d.dim, 16, 8192),
        OPT_INT_TO("draws", "N", "of the exactness check (default 50000)", &d.draws, 1000, 1e9),
        OPT_REAL_TO("seconds", "X", "of timing per batch size (default 3)", &d.seconds, 0, 600),
        OPT_INT_TO("seed", "N", "of weights and draws (default 1)", &d.seed, 0, 9.2e18),
        SCREEN_OPTION("draws by this screen are timed as well (default 8)", &d.screen),
        OPT_FLAG_TO("quiet", "no progress", &d.quiet),
        CONTEXT_OPTIONS(d.args),
    };
    PARSE_OPTIONS(&about, options, argc, argv);
    if (d.quiet) progress_off();
    d.threads = d.args.threads ? (int)d.args.threads : cores();
    d.context = open_context(&d.args);
    double begin = now();
    printf("flashsample %s: tokens drawn exactly, inside the LM-head matmul\n\n", fs_version_text());
    synth s = {d.vocab, d.dim, 64, FS_BF16, (uint64_t)d.seed, 0, 0};
    d.w = make_workload(&s, 1, d.threads);
    printf("  head      V = %s, D = %lld, bf16, %s; synthetic, made in %s\n", text_count((double)s.V), (long long)s.D,
           text_bytes((double)d.w.w_bytes), text_seconds(now() - begin));
    const device_facts machine = device_opened();
    if (device_is_cuda()) printf("  machine   %s, %s\n", machine.name, text_bytes((double)machine.memory_bytes));
    else printf("  machine   %s, %d cores\n", machine.name, cores());
    printf("  library   %s\n", fs_context_text(d.context));
    section("What is drawn");
    show_draws(&d);
    section("What it costs");
    if (device_is_cuda()) show_device_costs(&d);
    else show_costs(&d);
    if (d.screen) section("What a screen saves");
    if (d.screen) show_screen(&d);
    section("Is it exact?");
    int good = show_exactness(&d);
    printf("\nDone in %s. More: flashsample verify, bench, sample --help.\n", text_seconds(now() - begin));
    return good ? END_OK : END_REJECTED;
}
