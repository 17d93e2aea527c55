/* sample_build.c - from the options of `flashsample sample` to the arguments of one call. */
#include "arrays.h"
#include "options.h"
#include "print.h"
#include "sample.h"
#include "synth.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------------------ head ---- */

/* The dtype of a matrix file, or the end of the program. */
static int matrix_dtype(const char *option, const char *path, const npy_array *a, int bf16) {
    char shape[128];
    npy_describe(a, shape, sizeof shape);
    if (a->rank != 2) die(END_RUNTIME, "--%s %s: %s, expected two dimensions", option, path, shape);
    if (a->type == NPY_F32) return FS_F32;
    if (a->type == NPY_F16) return FS_F16;
    if (a->type == NPY_BITS16 || (a->type == NPY_U16 && bf16)) return FS_BF16;
    die(END_RUNTIME, "--%s %s: %s, expected f4, f2 or V2%s", option, path, shape,
        a->type == NPY_U16 ? "; with --bf16, u2 is read as bf16" : "");
}

static void build_synthetic(const sample_args *args, sample_call *c) {
    column numbers = read_column("synthetic", args->synthetic, COLUMN_U64);
    const uint64_t *n = numbers.data;
    if (numbers.count < 3 || numbers.count > 4)
        die(END_USAGE, "--synthetic %s: expected V,D,B[,SEED]", args->synthetic);
    if (n[0] < 1 || n[0] >= 1 << 24 || n[1] < 1 || n[1] > 16384 || n[2] > 1 << 20)
        die(END_USAGE, "--synthetic %s: V must lie in 1 .. 2^24-1, D in 1 .. 16384, B in 0 .. 2^20", args->synthetic);
    const int dtype = args->dtype < 0 ? FS_BF16 : args->dtype;
    synth s = {(int64_t)n[0], (int64_t)n[1], (int64_t)n[2], dtype, numbers.count > 3 ? n[3] : 1, 0, 0};
    size_t bytes = (size_t)dtype_bytes(s.dtype);
    void *w = take_memory(s.V * s.D, bytes, "synthetic weights"), *h = take_memory(s.B * s.D, bytes, "hidden states");
    progress_start("making W", (double)s.V);
    synth_weights(&s, w, args->context.threads ? (int)args->context.threads : cores());
    progress_end();
    synth_hidden(&s, h);
    c->head.dtype = c->batch.hidden_dtype = s.dtype;
    c->head.data = w;
    c->head.rows = s.V;
    c->head.dim = s.D;
    c->batch.hidden = h;
    c->batch.rows = s.B;
}

static void build_matmul(const sample_args *args, sample_call *c) {
    if (!args->hidden) die(END_USAGE, "--head needs --hidden");
    npy_array w = read_npy("head", args->head), h = read_npy("hidden", args->hidden);
    c->head.dtype = matrix_dtype("head", args->head, &w, args->bf16);
    c->batch.hidden_dtype = matrix_dtype("hidden", args->hidden, &h, args->bf16);
    if (w.shape[1] != h.shape[1])
        die(END_RUNTIME, "--hidden %s: %lld columns, the head has %lld", args->hidden, (long long)h.shape[1],
            (long long)w.shape[1]);
    c->head.data = w.data;
    c->head.rows = w.shape[0];
    c->head.dim = w.shape[1];
    c->batch.hidden = h.data;
    c->batch.rows = h.shape[0];
}

static void build_logits(const sample_args *args, sample_call *c) {
    npy_array l = read_npy("logits", args->logits);
    c->head.kind = FS_HEAD_LOGITS;
    c->head.dtype = matrix_dtype("logits", args->logits, &l, args->bf16);
    c->head.data = l.data;
    c->head.rows = l.shape[1];
    c->batch.rows = l.shape[0];
}

/* C reads a scale of 0 as 1. */
static float scale_of(const char *option, double value) {
    if (value == 0) die(END_USAGE, "--%s 0: must not be 0; 1 leaves logits as they are", option);
    return (float)value;
}

static void build_head(const sample_args *args, sample_call *c) {
    if (!!args->head + !!args->logits + !!args->synthetic != 1)
        die(END_USAGE, "exactly one of --head, --logits and --synthetic is needed");
    if (args->hidden && !args->head) die(END_USAGE, "--hidden goes with --head");
    if (args->dtype >= 0 && !args->synthetic)
        die(END_USAGE, "--dtype %s goes with --synthetic: a file has its own type", dtype_names[args->dtype]);
    if (args->logits && args->screen)
        die(END_USAGE, "--screen %s goes with --head or --synthetic: a screen is a copy of W, stored logits have none",
            screen_names[args->screen]);
    c->head = fs_head_default();
    c->batch = fs_batch_default();
    if (args->synthetic) build_synthetic(args, c);
    if (args->head) build_matmul(args, c);
    if (args->logits) build_logits(args, c);
    fs_head *h = &c->head;
    h->first_token = args->first_token;
    h->vocab = args->vocab ? args->vocab : args->first_token + h->rows;
    h->round_to = args->round_to;
    h->scale = scale_of("scale", args->scale);
    h->softcap = (float)args->softcap;
    h->post_scale = scale_of("post-scale", args->post_scale);
    if (args->bias) {
        npy_array a = read_npy("bias", args->bias);
        if (a.count != h->rows)
            die(END_RUNTIME, "--bias %s: %lld elements, the head has %lld rows", args->bias, (long long)a.count,
                (long long)h->rows);
        float *bias = take_memory(a.count, sizeof *bias, "bias");
        convert_elements("bias", &a, 0, a.count, COLUMN_F32, bias);
        h->bias = bias;
    }
}

/* ---------------------------------------------------------------------------------------------------- result ---- */

static void build_result(const sample_args *args, sample_call *c) {
    fs_result *r = &c->result;
    int64_t B = c->batch.rows, Bn = B * c->batch.samples;
    *r = fs_result_default();
    r->tokens_dtype = args->i64 ? FS_I64 : FS_I32;
    r->tokens = take_memory(Bn, args->i64 ? 8 : 4, "tokens");
    r->status = take_memory(B, sizeof *r->status, "status");
    r->logits_mode = args->logprobs ? args->logprobs - 1 : FS_LOGITS_RAW;
    if (c->batch.mode != FS_MODE_SCORE) r->noisy_logit = take_memory(Bn, sizeof *r->noisy_logit, "noisy logits");
    if (args->logprobs || c->batch.mode == FS_MODE_SCORE) {
        r->max_logit = take_memory(B, sizeof(float), "max");
        r->log_z = take_memory(B, sizeof(float), "log Z");
        r->logit = take_memory(Bn, sizeof(float), "logits of tokens");
        r->logprob = take_memory(Bn, sizeof(float), "logprobs");
        r->rank = take_memory(Bn, sizeof(int32_t), "ranks");
    }
    if (args->top) {
        r->top_count = (int32_t)args->top;
        r->top_token = take_memory(B * args->top, sizeof(int32_t), "top tokens");
        r->top_logit = take_memory(B * args->top, sizeof(float), "top logits");
        r->top_logprob = take_memory(B * args->top, sizeof(float), "top logprobs");
    }
    if (c->batch.watch_offset) {
        r->watch_logit = take_memory(c->watch_count, sizeof(float), "watched logits");
        r->watch_logprob = take_memory(c->watch_count, sizeof(float), "watched logprobs");
    }
}

sample_call build_call(const sample_args *args) {
    sample_call c;
    memset(&c, 0, sizeof c);
    build_head(args, &c);
    build_batch(args, &c);
    build_result(args, &c);
    return c;
}
