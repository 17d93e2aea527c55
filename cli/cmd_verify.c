/* cmd_verify.c - `flashsample verify`: draws, counts and tests every rule on this machine. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "device.h"
#include "options.h"
#include "print.h"
#include "ranks.h"
#include "screen.h"
#include "stats.h"
#include "synth.h"
#include "verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const command about = {
    .name = "verify",
    .usage = "[options]",
    .about =
        "Tests that every rule draws from the distribution it should: tokens are drawn, counted and compared with "
        "probabilities of the reference backend, plain loops in double that share no kernel with the others. Each rule "
        "is drawn from stored logits and, fused, from a head and a hidden state.",
    .details =
        "A test is rejected when its chi-squared statistic, or the total variation between counts and "
        "probabilities, is "
        "larger than right draws would make it with probability alpha / (2 tests), when a token of probability "
        "0 was drawn, "
        "when shards gave another token than one call, or a screen another than W. With right draws the whole "
        "run is rejected with a probability of at most alpha.\n"
        "'sees' is the smallest total variation that moves the chi-squared statistic by 5 standard deviations, "
        "whatever its "
        "shape. The fast noise is biased by design: it is shown, not judged.\n"
        "With --screen only fused tests run, as stored logits have no W. Calls of any number of rows read the "
        "screen, unless FLASHSAMPLING_SCREEN_ROWS is set. 'by screen' is the share of rows that it decided; the "
        "others read W, and parts of shards and ranks do not count them.\n"
        "With --backend cuda rows that a screen decided are not counted, and weights of fused tests are bf16 unless "
        "--dtype says otherwise.\n"
        "Exit code: 0 nothing rejected, 1 something rejected.\n",
};

static const char *const plant_names[] = {"nothing",    "temperature", "off-by-one", "repeat",
                                          "same-noise", "screen",      NULL};
static const char *const leg_names[] = {"both", "stored", "fused", NULL};

typedef struct verify_args {
    int64_t draws, seed;
    double alpha;
    const char *rule;
    int leg, plant, dtype, screen, json, quiet, list; /* dtype -1: not given */
    context_args context;
} verify_args;

static verify_args parse(int argc, char **argv) {
    verify_args a = {.draws = 100000, .seed = 1, .alpha = 1e-6, .dtype = -1, .context = context_args_default()};
    a.context.block = 256; /* two blocks, so that a small vocabulary is merged across blocks and threads too */
    const opt options[] = {
        OPT_HEAD("Options"),
        OPT_INT_TO("draws", "N", "draws per test, 1e3 .. 1e9 (default 100000)", &a.draws, 1e3, 1e9),
        OPT_REAL_TO("alpha", "X", "false-alarm rate of the whole run (default 1e-6)", &a.alpha, 1e-30, 0.5),
        OPT_INT_TO("seed", "N", "of all draws (default 1)", &a.seed, 0, 9.2e18),
        OPT_TEXT_TO("rule", "NAME", "only rules whose name contains NAME", &a.rule),
        OPT_CHOICE_TO("leg", "only from stored logits, or only fused (default both)", &a.leg, leg_names),
        OPT_CHOICE_TO("plant",
                      "draw with a mistake, to see it caught: 5 % hotter, cuts too wide, positions drawn twice, the "
                      "same noise on every rank, a screen that was cleared",
                      &a.plant, plant_names),
        OPT_CHOICE_TO("dtype", "of the weights and hidden states of fused tests (default f32, on CUDA bf16)", &a.dtype,
                      dtype_names),
        SCREEN_OPTION(
            "draw the fused tests by a screen of 8 or 4 bits, and compare every token with W's (default none)",
            &a.screen),
        OPT_FLAG_TO("list", "names of the tests, nothing is drawn", &a.list),
        OPT_FLAG_TO("json", "one JSON object on stdout", &a.json),
        OPT_FLAG_TO("quiet", "no progress", &a.quiet),
        CONTEXT_OPTIONS(a.context),
    };
    PARSE_OPTIONS(&about, options, argc, argv);
    return a;
}

/* One rule on one leg. */
typedef struct test {
    const verify_rule *rule;
    leg_kind leg;
    int judged, rejected;
    const char *why;
    outcome outcome;
} test;

static test *choose_tests(const verify_args *a, int *count) {
    test *tests = take_memory(2 * verify_rule_count, sizeof *tests, "tests");
    *count = 0;
    for (int i = 0; i < verify_rule_count; i++) {
        const verify_rule *r = &verify_rules[i];
        if (a->rule && !strstr(r->name, a->rule)) continue;
        for (int leg = a->screen ? LEG_FUSED : LEG_STORED; leg <= LEG_FUSED; leg++) {
            if (!(r->legs & leg) || (a->leg && a->leg != leg)) continue;
            if (!verify_runs(r, (plant_kind)a->plant)) continue;
            tests[(*count)++] = (test){.rule = r, .leg = (leg_kind)leg, .judged = !r->reported};
        }
    }
    if (*count == 0)
        die(END_USAGE, "--rule %s: no test has this in its name; --list shows them", a->rule ? a->rule : "");
    return tests;
}

/* Sets rejected and why. `alpha` is this test's share, already divided by the number of tests. */
static void decide(test *t, double alpha) {
    const fit *f = &t->outcome.fit;
    if (f->outside > 0) t->why = "impossible token";
    else if (!t->outcome.same_as_w) t->why = "not W's tokens";
    else if (!t->outcome.same_tokens) t->why = "shards differ";
    else if (!(f->p >= alpha / 2)) t->why = "chi-squared";
    else if (!(f->tv <= f->tv_mean + tv_slack(f->n, alpha / 2))) t->why = "total variation";
    t->rejected = t->judged && t->why;
}

static const char *decision(const test *t) {
    if (t->rejected) return "REJECTED";
    return t->judged ? "ok" : t->why ? "biased" : "not seen";
}

/* ---------------------------------------------------------------------------------------------------- output ---- */

static const char *small(double x) {
    static char text[4][32];
    static int next;
    next = (next + 1) % 4;
    if (x == 0.0) snprintf(text[next], 32, "0");
    else snprintf(text[next], 32, x >= 1e-3 ? "%.4f" : "%.0e", x);
    return text[next];
}

/* The share of rows that the screen decided. */
static const char *by_screen(const outcome *o) {
    static char text[16];
    snprintf(text, sizeof text, "%.0f %%", 100.0 * (double)o->screened_rows / (double)o->rows);
    return text;
}

/* Parts of shards and ranks do not count the rows that a screen decided, nor do calls on CUDA. */
static int counts_screened(const test *t) {
    return !t->rule->shards && !ranks_open() && !device_is_cuda();
}

static void print_tests(const verify_args *a, const test *tests, int count) {
    table *t = table_new(a->screen ? "<rule|<with|by screen|draws|bins|chi2|p|TV|by chance|sees|<verdict"
                                   : "<rule|<with|<leg|draws|bins|chi2|p|TV|by chance|sees|<verdict");
    for (int i = 0; i < count; i++) {
        const fit *f = &tests[i].outcome.fit;
        table_cell(t, "%s", tests[i].rule->name);
        table_cell(t, "%s", tests[i].rule->note);
        if (!a->screen) table_cell(t, "%s", leg_names[tests[i].leg]);
        else table_cell(t, "%s", counts_screened(&tests[i]) ? by_screen(&tests[i].outcome) : "-");
        table_cell(t, "%s", text_count((double)f->n));
        table_cell(t, "%d", f->bins);
        table_cell(t, "%.1f", f->statistic);
        table_cell(t, "%s", small(f->p));
        table_cell(t, "%s", small(f->tv));
        table_cell(t, "%s", small(f->tv_mean));
        table_cell(t, "%s", f->bins > 1 ? small(detectable_tv(f->n, f->bins, 5.0)) : "any");
        table_cell(t, "%s%s%s", decision(&tests[i]), tests[i].rejected ? ": " : "",
                   tests[i].rejected ? tests[i].why : "");
    }
    table_print(t);
}

static void print_screened(const verify_args *a, const test *tests, int count) {
    int64_t rows = 0, screened = 0;
    int other = 0;
    for (int i = 0; i < count; i++) {
        if (counts_screened(&tests[i])) rows += tests[i].outcome.rows;
        screened += tests[i].outcome.screened_rows;
        other += !tests[i].outcome.same_as_w;
    }
    printf("\n");
    if (rows)
        printf("The %s-bit screen decided %s of %s rows whose calls count them. ", screen_names[a->screen],
               text_count((double)screened), text_count((double)rows));
    printf("Each draw was repeated from W: ");
    if (other) printf("other tokens\nin %d of %d tests.\n", other, count);
    else printf("every token\nis the same.\n");
}

static void print_json(const verify_args *a, const test *tests, int count, int judged, int rejected,
                       const char *context) {
    json_open(NULL, '{');
    json_text("version", fs_version_text());
    json_text("context", context);
    json_int("ranks", ranks_open() ? ranks_open()->count : 1);
    json_text("screen", screen_names[a->screen]);
    json_text("dtype", dtype_names[a->dtype]);
    json_int("seed", a->seed);
    json_real("alpha", a->alpha);
    json_int("judged", judged);
    json_int("rejected", rejected);
    json_open("tests", '[');
    for (int i = 0; i < count; i++) {
        const fit *f = &tests[i].outcome.fit;
        json_open(NULL, '{');
        json_text("rule", tests[i].rule->name);
        json_text("with", tests[i].rule->note);
        json_text("leg", leg_names[tests[i].leg]);
        json_int("draws", f->n);
        if (a->screen) {
            json_int("rows", tests[i].outcome.rows);
            if (counts_screened(&tests[i])) json_int("screened_rows", tests[i].outcome.screened_rows);
            json_bool("same_as_w", tests[i].outcome.same_as_w);
        }
        json_int("bins", f->bins);
        json_real("chi_squared", f->statistic);
        json_real("p", f->p);
        json_real("tv", f->tv);
        json_real("tv_by_chance", f->tv_mean);
        json_real("tv_seen_at_5_sigma", f->bins > 1 ? detectable_tv(f->n, f->bins, 5.0) : 0.0);
        json_int("impossible_tokens", f->outside);
        json_bool("judged", tests[i].judged);
        json_bool("rejected", tests[i].rejected);
        json_text("verdict", decision(&tests[i]));
        json_close('}');
    }
    json_close(']');
    json_close('}');
}

/* -------------------------------------------------------------------------------------------------------- run ---- */

static double ticks;

/* The bar counts tests more than draws: where fewer are made, each weighs more. */
static double tick_weight = 1.0;

static void tick(int64_t draws) {
    ticks += (double)draws * tick_weight;
    progress_at(ticks);
}

static void run_tests(const verify_args *a, fs_context *context, test *tests, int count) {
    char label[64];
    progress_start("verify", (double)count * (double)a->draws);
    for (int i = 0; i < count; i++) {
        snprintf(label, sizeof label, "%d/%d %s, %s", i + 1, count, tests[i].rule->name, leg_names[tests[i].leg]);
        progress_label(label);
        tick_weight = (double)a->draws / (double)verify_draws(tests[i].rule, a->draws);
        verify_run run = {a->draws, (uint64_t)a->seed, (uint32_t)i, (plant_kind)a->plant, a->screen, tick};
        tests[i].outcome = verify_draw(context, tests[i].rule, tests[i].leg, &run);
    }
    progress_end();
}

static int list_tests(const test *tests, int count) {
    for (int i = 0; i < count; i++)
        printf("%-18s %-16s %s\n", tests[i].rule->name, tests[i].rule->note, leg_names[tests[i].leg]);
    return END_OK;
}

int cmd_verify(int argc, char **argv) {
    verify_args a = parse(argc, argv);
    if (a.quiet) progress_off();
    if (!ranks_open() && a.plant == PLANT_SAME_NOISE) die(END_USAGE, "--plant same-noise: needs mpirun and two ranks");
    if (a.screen && a.leg == LEG_STORED)
        die(END_USAGE, "--screen %s: a screen is a copy of W, the tests of --leg stored have none",
            screen_names[a.screen]);
    if (a.screen && a.plant == PLANT_SAME_NOISE) die(END_USAGE, "--plant same-noise draws from W: not with --screen");
    if (!a.screen && a.plant == PLANT_SCREEN) die(END_USAGE, "--plant screen: needs --screen");
    /* Calls have more rows than pay. */
    if (a.screen) setenv("FLASHSAMPLING_SCREEN_ROWS", "1048576", 0);
    int count, judged = 0, rejected = 0;
    test *tests = choose_tests(&a, &count);
    if (a.list) return list_tests(tests, count);
    fs_context *context = open_context(&a.context);
    if (a.dtype < 0) a.dtype = device_is_cuda() ? FS_BF16 : FS_F32; /* what CUDA's fused kernels multiply */
    verify_prepare(a.screen, a.dtype);
    double begin = now();
    run_tests(&a, context, tests, count);
    for (int i = 0; i < count; i++) judged += tests[i].judged;
    for (int i = 0; i < count; i++) {
        decide(&tests[i], a.alpha / (judged ? judged : 1));
        rejected += tests[i].rejected;
    }
    if (a.json) print_json(&a, tests, count, judged, rejected, fs_context_text(context));
    else {
        if (ranks_open()) printf("%d ranks; ", ranks_open()->count);
        printf("%s; seed %lld\n\n", fs_context_text(context), (long long)a.seed);
        print_tests(&a, tests, count);
        if (a.screen) print_screened(&a, tests, count);
        printf("\n%d judged in %s, %d rejected. If every draw is right, a run like this is rejected with probability\n"
               "at most %g (%.1e per test and statistic). 'sees': total variation visible at 5 standard deviations.\n",
               judged, text_seconds(now() - begin), rejected, a.alpha, a.alpha / (2.0 * (judged ? judged : 1)));
    }
    return rejected ? END_REJECTED : END_OK;
}
