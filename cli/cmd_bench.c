/* cmd_bench.c - `flashsample bench`: the fused call, checked, then timed against the machine's read bandwidth. */
#include "arrays.h"
#include "bars.h"
#include "device.h"
#include "options.h"
#include "print.h"
#include "ranks.h"
#include "rules.h"
#include "screen.h"
#include "shards.h"
#include "sweep.h"

#include <float.h>
#include <stdio.h>

static const command about = {
    .name = "bench",
    .usage = "[options]",
    .about =
        "Times the fused call on synthetic language-like weights. Before anything is timed, the tokens of two rows are "
        "recomputed from the definition in double precision. Calls take copies of W in turn, as many as outgrow the "
        "last-level cache twice, so that W comes from memory.",
    .details =
        "'of reading' is W's bytes per second in the fastest call against the fastest plain read of the same memory "
        "(1, 2 or 4 "
        "streams per thread, measured between the calls). Above about B = 4 a CPU computes longer than it reads, with "
        "AMX above about B = 32.\n"
        "With --backend cuda a time is that of ten calls in a row, of which the host waits for the last, over ten. 'of "
        "copying' takes the place of 'of reading': W's bytes per second against those that a copy of W inside the "
        "device's memory reads and writes; a plain read may be somewhat faster. Such calls do not count second "
        "passes.\n"
        "--screen draws each call twice, from W and by the screen, in turns; another token ends the program. Each "
        "copy of W has its copy of the screen. The library reads W where it expects that to be faster, as it does for "
        "many rows: 'decided' is the share of rows that the screen decided.\n"
        "Under mpirun each rank holds a slice of W: times are those of rank 0, bytes of W those of its slice; 'sent' "
        "is what "
        "it put into collectives.\n"
        "\n"
        "Examples\n"
        "  flashsample bench --batch 1,16,64\n"
        "  flashsample bench --batch 1,4 --screen 8\n"
        "  flashsample bench --backend cuda --batch 1,16,64,256\n"
        "  flashsample bench --vocab 32000 --dim 4096 --dtype f16 --top-p 0.9 --json\n",
};

typedef struct bench_args {
    const char *batch;
    int64_t vocab, dim, copies, samples, seed;
    double seconds;
    rule_texts texts;
    fs_rules rules;
    int dtype, screen, logprobs, bars, json, quiet;
    context_args context;
} bench_args;

static bench_args parse(int argc, char **argv) {
    bench_args a = {.batch = "1,4,16,64",
                    .vocab = 151936,
                    .dim = 1024,
                    .samples = 1,
                    .seed = 1,
                    .seconds = 2,
                    .dtype = FS_BF16,
                    .context = context_args_default()};
    const opt options[] = {
        OPT_HEAD("Shape"),
        OPT_TEXT_TO("batch", "LIST", "rows per call (default 1,4,16,64)", &a.batch),
        OPT_INT_TO("vocab", "V", "rows of W (default 151936, Qwen3's)", &a.vocab, 1, (1 << 24) - 1),
        OPT_INT_TO("dim", "D", "hidden size (default 1024, Qwen3-0.6B's)", &a.dim, 1, 16384),
        OPT_CHOICE_TO("dtype", "of W and H (default bf16)", &a.dtype, dtype_names),
        SCREEN_OPTION("time the calls by a screen of 8 or 4 bits as well (default none)", &a.screen),
        OPT_HEAD("Rule"),
        OPT_RULES_TO(&a.texts),
        OPT_INT_TO("samples", "N", "per row (default 1)", &a.samples, 1, 1024),
        OPT_FLAG_TO("logprobs", "ask for log Z and logprobs as well", &a.logprobs),
        OPT_HEAD("Timing"),
        OPT_REAL_TO("seconds", "X", "spent per batch size, at least 5 calls (default 2)", &a.seconds, 0, 3600),
        OPT_INT_TO("copies", "N", "of W, taken in turn; 0 = chosen, 1 = W may stay in the cache (default 0)", &a.copies,
                   0, 16),
        OPT_INT_TO("seed", "N", "of weights and draws (default 1)", &a.seed, 0, 9.2e18),
        OPT_FLAG_TO("bars", "every bar of the CPU backend as a ratio, met or missed; takes a minute", &a.bars),
        OPT_FLAG_TO("json", "one JSON object on stdout", &a.json),
        OPT_FLAG_TO("quiet", "no progress", &a.quiet),
        CONTEXT_OPTIONS(a.context),
    };
    PARSE_OPTIONS(&about, options, argc, argv);
    a.rules = read_rules(&a.texts, 0, (counted_tokens){0, 0});
    return a;
}

static double flops(const workload *w, const sweep_row *r) {
    return 2.0 * (double)r->B * (double)synth_rows(&w->s) * (double)w->s.D / times_min(&r->times);
}

static void print_text(const bench_args *a, const workload *w, const sweep_row *rows, int count, ceiling c,
                       const char *context) {
    const device_facts device = device_opened();
    printf("%s; %s\nV = %s, D = %lld, %s: W is %s, %d cop%s in turn; last-level cache %s\n", context, device.name,
           text_count((double)w->s.V), (long long)w->s.D, dtype_names[w->s.dtype], text_bytes((double)w->w_bytes),
           w->copies, w->copies == 1 ? "y" : "ies", text_cache(device.cache_bytes));
    printf("%s, %lld sample%s%s; ", text_rules(&a->rules), (long long)a->samples, a->samples == 1 ? "" : "s",
           a->logprobs ? ", log Z and logprobs" : "");
    if (c.streams) printf("reading %.1f GB/s (%d streams per thread)\n\n", c.bytes_per_s * 1e-9, c.streams);
    else printf("copying %.1f GB/s, read and written\n\n", c.bytes_per_s * 1e-9);
    if (ranks_open()) printf("%d ranks\n\n", ranks_open()->count);
    table *t = table_new(c.streams
                             ? "rows|calls|min|median|tokens/s|GB/s|of reading|GFLOP/s|temporary|second passes|sent"
                             : "rows|times|min|median|tokens/s|GB/s|of copying|GFLOP/s|temporary");
    for (int i = 0; i < count; i++) {
        const sweep_row *r = &rows[i];
        double least = times_min(&r->times), rate = (double)w->w_bytes / least;
        table_cell(t, "%lld", (long long)r->B);
        table_cell(t, "%d", r->times.count);
        table_cell(t, "%s", text_seconds(least));
        table_cell(t, "%s", text_seconds(times_median(&r->times)));
        table_cell(t, "%s", text_count((double)(r->B * a->samples) / times_median(&r->times)));
        table_cell(t, "%.1f", rate * 1e-9);
        table_cell(t, "%.0f %%", 100.0 * rate / c.bytes_per_s);
        table_cell(t, "%.0f", flops(w, r) * 1e-9);
        table_cell(t, "%s", text_bytes((double)r->work_bytes));
        if (!c.streams) continue; /* CUDA does not count the next */
        table_cell(t, "%lld", (long long)r->fallback_rows);
        table_cell(t, "%s", text_bytes((double)r->wire_bytes));
    }
    table_print(t);
}

static void json_by_screen(const sweep_row *r) {
    if (!r->by_screen.count) return;
    json_open("by_screen", '{');
    json_real("min_s", times_min(&r->by_screen));
    json_real("median_s", times_median(&r->by_screen));
    json_real("of_w_time", times_median(&r->by_screen) / times_median(&r->times));
    if (!ranks_open() && !device_is_cuda()) {
        json_real("decided", (double)r->screened_rows / (double)(r->by_screen.count * r->B));
        json_int("logits_from_w", r->screened_dots);
    }
    json_close('}');
}

static void print_json(const bench_args *a, const workload *w, const sweep_row *rows, int count, ceiling c,
                       const screen_facts *facts, const char *context) {
    json_open(NULL, '{');
    json_text("version", fs_version_text());
    json_text("context", context);
    json_text("cpu", cpu_name());
    if (device_is_cuda()) json_text("device", device_opened().name);
    json_int("ranks", ranks_open() ? ranks_open()->count : 1);
    json_int("vocab", w->s.V);
    json_int("dim", w->s.D);
    json_text("dtype", dtype_names[w->s.dtype]);
    json_int("w_bytes", w->w_bytes);
    json_int("copies", w->copies);
    json_int("cache_bytes", device_opened().cache_bytes);
    json_real(c.streams ? "read_bytes_per_s" : "copy_bytes_per_s", c.bytes_per_s);
    for (int32_t i = 0; fs_rule(i); i++) json_real(fs_rule(i)->name, rule_value(&a->rules, i));
    json_int("samples", a->samples);
    json_bool("logprobs", a->logprobs);
    if (a->screen) {
        json_open("screen", '{');
        screen_json(a->screen, facts);
        json_close('}');
    }
    json_open("results", '[');
    for (int i = 0; i < count; i++) {
        double least = times_min(&rows[i].times), median = times_median(&rows[i].times);
        json_open(NULL, '{');
        json_int("rows", rows[i].B);
        json_int("calls", rows[i].times.count);
        json_real("min_s", least);
        json_real("median_s", median);
        json_real("tokens_per_s", (double)(rows[i].B * a->samples) / median);
        json_real("bytes_per_s", (double)w->w_bytes / least);
        json_real(c.streams ? "of_reading" : "of_copying", (double)w->w_bytes / least / c.bytes_per_s);
        json_real("flops", flops(w, &rows[i]));
        json_int("work_bytes", rows[i].work_bytes);
        json_int("fallback_rows", rows[i].fallback_rows);
        json_int("wire_bytes", rows[i].wire_bytes);
        json_by_screen(&rows[i]);
        json_close('}');
    }
    json_close(']');
    json_close('}');
}

/* What is measured: all of the head, or this rank's slice of it. */
static synth rank_synth(const bench_args *a, int64_t rows) {
    synth s = {a->vocab, a->dim, rows, a->dtype, (uint64_t)a->seed, 0, 0};
    const fs_ranks *ranks = ranks_open();
    if (!ranks) return s;
    fs_head whole = fs_head_default();
    whole.rows = a->vocab;
    fs_head shard = head_shard(&whole, ranks->rank, ranks->count);
    if (shard.rows == 0) die(END_USAGE, "--vocab %lld: too few for %d ranks", (long long)a->vocab, ranks->count);
    s.first = shard.first_token;
    s.rows = shard.rows;
    return s;
}

/* One screen, a copy of it for every copy of W. */
static screen_facts add_screens(fs_context *context, workload *w, const bench_args *a) {
    fs_head head = workload_head(w, 0);
    const screen_facts facts = screen_make(context, &head, a->screen, (uint64_t)a->seed, 1);
    w->screen_bytes = head.screen_bytes;
    w->screen[0] = head.screen;
    for (int i = 1; i < w->copies && head.screen; i++) {
        void *copy = device_take((int64_t)head.screen_bytes, "a copy of the screen");
        device_copy(copy, head.screen, head.screen_bytes);
        w->screen[i] = copy;
        head = workload_screened(w, i);
        check(context, fs_screen_check(context, &head));
    }
    return facts;
}

/* A context remembers 8 screens and their heads; it would compare a ninth with W in every call. */
#define SCREENS_REMEMBERED 8

static int choose_copies(const bench_args *a, int64_t w_bytes) {
    if (a->copies) return (int)a->copies;
    const int copies = copies_for(w_bytes);
    return a->screen && copies > SCREENS_REMEMBERED ? SCREENS_REMEMBERED : copies;
}

int cmd_bench(int argc, char **argv) {
    bench_args a = parse(argc, argv);
    if (a.quiet) progress_off();
    if (a.bars && a.screen) die(END_USAGE, "--bars times draws from W: not with --screen");
    if (a.bars) {
        bars_args bars = {a.vocab, a.seconds, a.context};
        return print_bars(&bars);
    }
    column list = read_column("batch", a.batch, COLUMN_I32);
    const int32_t *batch = list.data;
    int64_t most = 0;
    for (int64_t i = 0; i < list.count; i++) {
        if (batch[i] < 1 || batch[i] > 65536) die(END_USAGE, "--batch %d: must lie in 1 .. 65536", batch[i]);
        if (batch[i] > most) most = batch[i];
    }
    synth s = rank_synth(&a, most);
    const sweep_args args = {.rules = a.rules,
                             .seed = (uint64_t)a.seed,
                             .samples = (int32_t)a.samples,
                             .logprobs = a.logprobs,
                             .seconds = a.seconds,
                             .threads = a.context.threads ? (int)a.context.threads : cores_of_rank()};
    int64_t w_bytes = synth_rows(&s) * s.D * dtype_bytes(s.dtype);
    fs_context *context = open_context(&a.context);
    workload w = make_workload(&s, choose_copies(&a, w_bytes), args.threads);
    const screen_facts facts = add_screens(context, &w, &a);
    ceiling read;
    const sweep_row *rows = sweep_batches(context, &w, &args, batch, list.count, &read);
    if (a.json) print_json(&a, &w, rows, (int)list.count, read, &facts, fs_context_text(context));
    else print_text(&a, &w, rows, (int)list.count, read, fs_context_text(context));
    if (a.screen && !a.json) {
        printf("\n%s; the same calls in turns, the same tokens\n\n", screen_text(a.screen, &facts));
        sweep_print_screened(rows, (int)list.count);
    }
    return END_OK;
}
