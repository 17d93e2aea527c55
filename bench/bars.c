/* bars.c - what `make bench` prints: each bar the CPU backend is held to, as a ratio measured in this run. */
#include "bars.h"
#include "device.h"
#include "machine.h"
#include "measure.h"
#include "print.h"
#include "usual.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GREEDY, PLAIN, TOP_K_P, TOP_P, MASK, LOG_Z, ARMS };
static const char *const arm_names[ARMS] = {"greedy",     "plain",   "top-k 50 + top-p 0.9",
                                            "top-p 0.95", "bitmask", "log Z"};

typedef struct arm {
    fs_batch batch; /* without its rules, */
    fs_rules rules; /* which are these */
    fs_result result;
    times times;
} arm;

static arm make_arm(const workload *w, int kind, int64_t B) {
    arm a = {fs_batch_default(), fs_rules_default(), fs_result_default(), {0}};
    a.batch.rows = B;
    a.batch.hidden = w->h;
    a.batch.hidden_dtype = w->s.dtype;
    a.batch.seed_all = 1;
    a.rules.temperature.value = kind == GREEDY ? 0.0f : 1.0f;
    a.rules.top_k.value = kind == TOP_K_P ? 50 : 0;
    a.rules.top_p.value = kind == TOP_K_P ? 0.9f : kind == TOP_P ? 0.95f : 1.0f;
    a.result.tokens = take_memory(B, sizeof(int32_t), "tokens");
    if (kind == LOG_Z) a.result.log_z = take_memory(B, sizeof(float), "log Z");
    if (kind == MASK) {
        /* A grammar's mask: every second token of every row. */
        int64_t words = (w->s.V + 31) / 32;
        uint32_t *allow = take_memory(B * words, sizeof *allow, "masks");
        for (int64_t i = 0; i < B * words; i++) allow[i] = (uint32_t)(i * 2654435761u) | 0x11111111u;
        a.batch.allow = allow;
    }
    return a;
}

static void run_arm(fs_context *context, const workload *w, arm *a, int turn) {
    fs_head head = workload_head(w, turn);
    double begin = now();
    a->batch.rules = &a->rules;
    check(context, fs_sample(context, &head, &a->batch, &a->result));
    times_add(&a->times, now() - begin);
    a->batch.position_all++;
}

/* The median over turns of one arm's time over another's in the same turn. */
static double ratio_of(const times *of, const times *to) {
    times ratio = {0};
    for (int i = 0; i < of->count && i < to->count; i++) times_add(&ratio, of->value[i] / to->value[i]);
    return times_median(&ratio);
}

static void bar_row(table *t, const char *what, int64_t B, double least, const char *of, double reached, double asked,
                    int at_least) {
    table_cell(t, "%s", what);
    table_cell(t, "%lld", (long long)B);
    table_cell(t, "%s", text_seconds(least));
    table_cell(t, "%s", of);
    table_cell(t, "%.3f", reached);
    table_cell(t, "%s %.2f", at_least ? ">=" : "<=", asked);
    table_cell(t, "%s", (at_least ? reached >= asked : reached <= asked) ? "met" : "missed");
}

/* Plain draws against min(B x read rate, peak), all in floating-point operations per second. */
static void print_roof(table *t, fs_context *context, const workload *w, const char *isa, int threads, double seconds) {
    static const int64_t rows[] = {1, 4, 16, 64};
    static const double asked[] = {0.90, 0.85, 0.70, 0.75};
    ceiling read = measure_reading(w->w, w->copies, w->w_bytes, threads, 0.5);
    double peak = measure_peak(isa, w->s.dtype, threads, 0.3);
    char what[64];
    double least[4];
    for (int i = 0; i < 4; i++) {
        arm a = make_arm(w, PLAIN, rows[i]);
        double end = now() + seconds;
        for (int turn = 0; turn < 5 || now() < end; turn++) {
            run_arm(context, w, &a, turn);
            if (turn % 4) continue;
            ceiling again = measure_reading(w->w, w->copies, w->w_bytes, threads, 0);
            double peak_again = measure_peak(isa, w->s.dtype, threads, 0);
            if (again.bytes_per_s > read.bytes_per_s) read = again;
            if (peak_again > peak) peak = peak_again;
        }
        least[i] = times_min(&a.times);
    }
    snprintf(what, sizeof what, "%s, D = %lld", dtype_names[w->s.dtype], (long long)w->s.D);
    const int products = peak_products(isa, w->s.dtype);
    printf("  %s: W %s, read %.1f GB/s (%d streams per thread), peak of the kernel's instruction %.0f GFLOP/s", what,
           text_bytes((double)w->w_bytes), read.bytes_per_s * 1e-9, read.streams, peak * products * 1e-9);
    if (products > 1) printf(", %d products of pieces for one: %.0f", products, peak * 1e-9);
    printf("\n");
    for (int i = 0; i < 4; i++) {
        double work = 2.0 * (double)rows[i] * (double)w->s.V * (double)w->s.D;
        double reading = work / ((double)w->w_bytes / read.bytes_per_s);
        double roof = reading < peak ? reading : peak;
        bar_row(t, what, rows[i], least[i], reading < peak ? "of reading W" : "of the peak", work / least[i] / roof,
                asked[i], 1);
    }
}

static void print_rules(table *t, fs_context *context, const workload *w, int64_t B, double seconds) {
    arm a[ARMS];
    char what[64];
    for (int k = 0; k < ARMS; k++) a[k] = make_arm(w, k, B);
    double end = now() + seconds;
    /* Each turn begins with another arm, so that all arms meet all copies of W, of which some may be faster than
     * others. */
    for (int turn = 0; turn < 6 || now() < end; turn++)
        for (int k = 0; k < ARMS; k++) run_arm(context, w, &a[(turn + k) % ARMS], turn * ARMS + k);
    static const double asked[ARMS] = {0, 0, 1.05, 1.10, 1.03, 1.08};
    bar_row(t, "sampling", B, times_min(&a[PLAIN].times), "over greedy", ratio_of(&a[PLAIN].times, &a[GREEDY].times),
            B == 1 ? 1.03 : 1.08, 0);
    for (int k = TOP_K_P; k < ARMS; k++) {
        snprintf(what, sizeof what, "%s", arm_names[k]);
        bar_row(t, what, B, times_min(&a[k].times), "over plain", ratio_of(&a[k].times, &a[PLAIN].times), asked[k], 0);
    }
}

/* OpenBLAS and BLIS on the same weights in float, then the usual sampler, beside our call on them. */
static void print_blas(fs_context *context, const workload *w, int threads) {
    static const int64_t rows[] = {1, 16, 64};
    blas found[2];
    const int n = load_blas(found);
    if (!n) {
        printf("\nNeither OpenBLAS nor BLIS is installed: no comparison.\n");
        return;
    }
    ceiling read = measure_reading(w->w, w->copies, w->w_bytes, threads, 0.3);
    table *t = table_new("<f32, D = 1024|rows|min|of reading W|ours faster by");
    for (int i = 0; i < 3; i++) {
        arm a = make_arm(w, PLAIN, rows[i]);
        usual u = {.V = w->s.V, .D = w->s.D, .B = rows[i], .threads = threads};
        usual_prepare(&u);
        times other[2] = {{0}};
        blas_rest();
        for (int turn = 0; turn < 8; turn++) run_arm(context, w, &a, turn);
        for (int turn = 0; turn < 5; turn++)
            for (int k = 0; k < n; k++) {
                double begin = now();
                /* Row-major, W transposed: logits [B, V] = H [B, D] W^T. */
                found[k].sgemm(101, 111, 112, (int)rows[i], (int)w->s.V, (int)w->s.D, 1.0f, w->h, (int)w->s.D,
                               w->w[(turn + k) % w->copies], (int)w->s.D, 0.0f, u.logits, (int)u.ld);
                usual_sample(&u);
                times_add(&other[k], now() - begin);
            }
        for (int k = -1; k < n; k++) {
            const times *of = k < 0 ? &a.times : &other[k];
            char name[64];
            snprintf(name, sizeof name, k < 0 ? "ours" : "%s sgemm + sampler", k < 0 ? "" : found[k].name);
            table_cell(t, "%s", name);
            table_cell(t, "%lld", (long long)rows[i]);
            table_cell(t, "%s", text_seconds(times_min(of)));
            table_cell(t, "%.2f", (double)w->w_bytes / times_min(of) / read.bytes_per_s);
            table_cell(t, "%.2f", times_min(of) / times_min(&a.times));
        }
    }
    printf("\n");
    table_print(t);
}

int print_bars(const bars_args *a) {
    fs_context *context = open_context(&a->context);
    if (device_is_cuda()) die(END_USAGE, "--bars are those of the CPU backend: not on a CUDA device");
    const int threads = a->context.threads ? (int)a->context.threads : cores();
    /* "cpu: amx kernel (...)": the second word. */
    char isa[32] = "";
    sscanf(fs_context_text(context), "cpu: %31s", isa);
    static const struct {
        int64_t D;
        int dtype;
    } shapes[] = {{1024, FS_BF16}, {4096, FS_BF16}, {1024, FS_F16}, {1024, FS_F32}};
    table *t = table_new("<bar|rows|min|<of|reached|asked|<");
    printf("%s; %s; V = %s\n", fs_context_text(context), cpu_name(), text_count((double)a->vocab));
    for (int i = 0; i < 4; i++) {
        synth s = {.V = a->vocab, .D = shapes[i].D, .B = 64, .dtype = shapes[i].dtype, .seed = 1};
        int64_t bytes = s.V * s.D * dtype_bytes(s.dtype);
        workload w = make_workload(&s, copies_for(bytes) < 2 ? 1 : copies_for(bytes), threads);
        print_roof(t, context, &w, isa, threads, a->seconds);
        if (i == 0) print_rules(t, context, &w, 1, 2 * a->seconds);
        if (i == 0) print_rules(t, context, &w, 64, 2 * a->seconds);
        if (i == 3) {
            printf("\n");
            table_print(t);
            print_blas(context, &w, threads);
        }
    }
    return END_OK;
}
