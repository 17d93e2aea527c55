/* sample_build.c - from the options of `flashsample sample` to the arguments of one call. */
#include "arrays.h"
#include "options.h"
#include "print.h"
#include "sample.h"
#include "synth.h"

#include <float.h>
#include <math.h>
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
    synth s = {(int64_t)n[0], (int64_t)n[1], (int64_t)n[2], args->dtype < 0 ? FS_BF16 : args->dtype, numbers.count > 3 ? n[3] : 1, 0, 0};
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
    c->head = fs_head_default();
    c->batch = fs_batch_default();
    if (args->synthetic) build_synthetic(args, c);
    if (args->head) build_matmul(args, c);
    if (args->logits) build_logits(args, c);
    fs_head *h = &c->head;
    h->first_token = args->first_token;
    h->vocab = args->vocab ? args->vocab : args->first_token + h->rows;
    h->round = args->round;
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

/* ----------------------------------------------------------------------------------------------------- batch ---- */

/* Reads VALUES: a scalar goes to `all` (bytes wide), an array of `count` is returned. */
static const void *values(const char *option, const char *text, column_type type, void *all, size_t bytes,
                          int64_t count, const char *of) {
    if (!text) return NULL;
    column c = read_column(option, text, type);
    if (c.scalar) {
        memcpy(all, c.data, bytes);
        return NULL;
    }
    if (c.count != count)
        die(*text == '@' ? END_RUNTIME : END_USAGE, "--%s: %lld values for %lld %s", option, (long long)c.count,
            (long long)count, of);
    return c.data;
}

/* What the header allows; anything else would be a row without a token. */
typedef struct limits {
    float low, high;
    const char *what;
} limits;

static const limits finite = {-FLT_MAX, FLT_MAX, "a finite number"};
static const limits above_0 = {FLT_TRUE_MIN, FLT_MAX, "a finite number above 0"};
static const limits from_0 = {0, FLT_MAX, "a finite number, 0 or more"};
static const limits from_0_to_1 = {0, 1, "a number from 0 to 1"};
static const limits share = {0, 1 + 1e-5f, "a number from 0 to 1"}; /* what a division has rounded up is still 1 */

static const float *reals(const char *option, const char *text, limits l, float *all, int64_t slots) {
    const float *array = values(option, text, COLUMN_F32, all, sizeof *all, slots, "slots");
    const float *x = array ? array : all;
    for (int64_t i = 0; i < (array ? slots : 1); i++)
        if (!(x[i] >= l.low && x[i] <= l.high)) die(END_USAGE, "--%s %g: expected %s", option, (double)x[i], l.what);
    return array;
}

/* Ends the program where a penalty is on, but no tokens are given that it could meet. */
static void check_penalty(const char *option, const float *value, int64_t count, float off, int has_tokens,
                          const char *sources) {
    for (int64_t i = 0; i < count && !has_tokens; i++)
        if (value[i] != off) die(END_USAGE, "--%s %g does nothing without %s", option, (double)value[i], sources);
}

/* Per row, without a scalar form in the header: a scalar is repeated. */
static const int32_t *row_values(const char *option, const char *text, int64_t count) {
    int32_t all = 0;
    const int32_t *array = values(option, text, COLUMN_I32, &all, sizeof all, count, "rows");
    if (array || !text) return array;
    int32_t *repeated = take_memory(count, sizeof *repeated, option);
    for (int64_t i = 0; i < count; i++) repeated[i] = all;
    return repeated;
}

/* S: the longest slot a row names, or the number of rows. */
static int64_t count_slots(const fs_batch *b) {
    const int32_t *slot = b->slot;
    int64_t slots = slot ? 1 : b->rows;
    for (int64_t i = 0; slot && i < b->rows; i++) {
        if (slot[i] < -1 || slot[i] >= 1 << 20)
            die(END_USAGE, "--slot %d: must lie in -1 .. %d", slot[i], (1 << 20) - 1);
        if (slot[i] >= slots) slots = (int64_t)slot[i] + 1;
    }
    return slots;
}

static void build_rules(const sample_args *args, fs_batch *b) {
    int64_t S = b->slots;
    fs_slot_values *all = &b->all;
    b->temperature = reals("temperature", args->temperature, from_0, &all->temperature, S);
    b->top_k = values("top-k", args->top_k, COLUMN_I32, &all->top_k, 4, S, "slots");
    b->top_p = reals("top-p", args->top_p, share, &all->top_p, S);
    if (all->top_p == 0) all->top_p = FLT_MIN; /* keeps one token too; C reads a scalar 0 as "off" */
    b->min_p = reals("min-p", args->min_p, from_0_to_1, &all->min_p, S);
    b->seed = values("seed", args->seed, COLUMN_U64, &all->seed, 8, S, "slots");
    b->stream = values("stream", args->stream, COLUMN_U32, &all->stream, 4, S, "slots");
    b->repetition = reals("repetition", args->repetition, above_0, &all->repetition, S);
    b->frequency = reals("frequency", args->frequency, finite, &all->frequency, S);
    b->presence = reals("presence", args->presence, finite, &all->presence, S);
    const int counted = args->counts || args->count_list;
    const char *lists = "--counts or --count-list";
    check_penalty("repetition", b->repetition ? b->repetition : &all->repetition, b->repetition ? S : 1, 1,
                  counted || args->seen, "--seen, --counts or --count-list");
    check_penalty("frequency", b->frequency ? b->frequency : &all->frequency, b->frequency ? S : 1, 0, counted, lists);
    check_penalty("presence", b->presence ? b->presence : &all->presence, b->presence ? S : 1, 0, counted, lists);
    b->position = values("position", args->position, COLUMN_U64, &b->position_all, 8, b->rows, "rows");
}

static void build_allow(const sample_args *args, fs_batch *b, int64_t vocab) {
    if (!args->allow && args->allow_index) die(END_USAGE, "--allow-index goes with --allow");
    if (!args->allow) return;
    bit_rows bits = read_bits("allow", args->allow, vocab);
    b->allow = bits.data;
    b->masks = bits.rows;
    b->allow_index = row_values("allow-index", args->allow_index, b->rows);
    for (int64_t i = 0; b->allow_index && i < b->rows; i++)
        if (b->allow_index[i] < -1 || b->allow_index[i] >= bits.rows)
            die(END_USAGE, "--allow-index: %d for row %lld, the file has %lld masks", b->allow_index[i], (long long)i,
                (long long)bits.rows);
    if (b->allow_index || bits.rows == b->rows) return;
    if (bits.rows != 1)
        die(END_RUNTIME, "--allow %s: %lld masks for %lld rows; --allow-index says which", args->allow,
            (long long)bits.rows, (long long)b->rows);
    b->allow_index = take_memory(b->rows, sizeof(int32_t), "allow-index"); /* zeros: all rows share it */
}

/* Rows of a per-slot file: one row serves all slots. */
static void *spread_rows(const char *option, const void *data, int64_t rows, int64_t slots, size_t bytes) {
    if (rows != slots && rows != 1)
        die(END_RUNTIME, "--%s: %lld rows for %lld slots", option, (long long)rows, (long long)slots);
    char *out = take_memory(slots, bytes, option);
    for (int64_t s = 0; s < slots; s++)
        memcpy(out + s * (int64_t)bytes, (const char *)data + (rows > 1 ? s : 0) * (int64_t)bytes, bytes);
    return out;
}

static void check_tokens(const char *option, const int32_t *token, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; i++)
        if (token[i] < 0 || token[i] >= vocab)
            die(END_USAGE, "--%s: token %d, must be 0 to %lld", option, token[i], (long long)vocab - 1);
}

static void build_counts(const sample_args *args, fs_batch *b, int64_t vocab) {
    if (args->seen) {
        bit_rows bits = read_bits("seen", args->seen, vocab);
        b->seen = spread_rows("seen", bits.data, bits.rows, b->slots, (size_t)bits.words * 4);
    }
    if (args->counts && args->count_list) die(END_USAGE, "--counts and --count-list exclude each other");
    if (args->counts) {
        npy_array a = read_npy("counts", args->counts);
        char shape[128];
        npy_describe(&a, shape, sizeof shape);
        if (a.rank < 1 || a.rank > 2 || a.shape[a.rank - 1] != vocab)
            die(END_RUNTIME, "--counts %s: %s, expected [.., %lld]", args->counts, shape, (long long)vocab);
        int32_t *dense = take_memory(a.count, sizeof *dense, "counts");
        convert_elements("counts", &a, 0, a.count, COLUMN_I32, dense);
        b->counts = spread_rows("counts", dense, a.rank == 2 ? a.shape[0] : 1, b->slots, (size_t)vocab * 4);
    }
    sparse list = read_sparse("count-list", args->count_list, b->slots, 1);
    if (!list.offset) return;
    check_tokens("count-list", list.token, list.offset[b->slots], vocab);
    int32_t *value = take_memory(list.offset[b->slots], sizeof *value, "count-list");
    for (int64_t i = 0; i < list.offset[b->slots]; i++) {
        if (list.value[i] < 0 || list.value[i] > 2147483647.0 || list.value[i] != (double)(int32_t)list.value[i])
            die(END_USAGE, "--count-list: %g is not a count", list.value[i]);
        value[i] = (int32_t)list.value[i];
    }
    b->count_offset = list.offset;
    b->count_token = list.token;
    b->count_value = value;
}

static void build_edits(const sample_args *args, fs_batch *b, int64_t vocab) {
    sparse edits = read_sparse("edits", args->edits, b->rows, 1);
    if (!edits.offset) return;
    int64_t n = edits.offset[b->rows];
    check_tokens("edits", edits.token, n, vocab);
    float *bias = take_memory(n, sizeof *bias, "edits");
    for (int64_t i = 0; i < n; i++) bias[i] = (float)edits.value[i];
    b->edit_offset = edits.offset;
    b->edit_token = edits.token;
    b->edit_bias = bias;
}

static uint32_t flags_of(const sample_args *args) {
    uint32_t flags = (uint32_t)args->keep_ties;
    if (args->joint_top_p) flags |= FS_JOINT_TOP_P;
    if (args->min_p_last) flags |= FS_MIN_P_LAST;
    if (args->cut_before_temperature) flags |= FS_CUT_BEFORE_TEMPERATURE;
    if (args->edits_last) flags |= FS_EDITS_LAST;
    if (args->exact_rank) flags |= FS_EXACT_RANK;
    if (args->rank_of_ties) flags |= FS_RANK_OF_TIES;
    return flags;
}

static void build_batch(const sample_args *args, sample_call *c) {
    fs_batch *b = &c->batch;
    b->mode = args->mode;
    b->samples = (int32_t)args->samples;
    b->noise = args->noise;
    b->flags = flags_of(args);
    b->fallback_token = (int32_t)args->fallback_token;
    b->group_size = args->group_size;
    if (args->group_size && b->mode != FS_MODE_GROUP_PARALLEL && b->mode != FS_MODE_GROUP_ONLINE)
        die(END_USAGE, "--group-size goes with --mode group-parallel and group-online");
    b->list_capacity = (int32_t)args->list_capacity;
    b->slot = row_values("slot", args->slot, b->rows);
    b->slots = count_slots(b);
    build_rules(args, b);
    build_allow(args, b, c->head.vocab);
    build_counts(args, b, c->head.vocab);
    build_edits(args, b, c->head.vocab);
    if (b->mode == FS_MODE_SCORE && !args->given) die(END_USAGE, "--mode score needs --given");
    if (b->mode != FS_MODE_SCORE && args->given) die(END_USAGE, "--given goes with --mode score");
    b->given = row_values("given", args->given, b->rows * b->samples);
    if (b->given) check_tokens("given", b->given, b->rows * b->samples, c->head.vocab);
    sparse watch = read_sparse("watch", args->watch, b->rows, 0);
    b->watch_offset = watch.offset;
    b->watch_token = watch.token;
    c->watch_count = watch.offset ? watch.offset[b->rows] : 0;
    check_tokens("watch", watch.token, c->watch_count, c->head.vocab);
}

/* ---------------------------------------------------------------------------------------------------- result ---- */

static void build_result(const sample_args *args, sample_call *c) {
    fs_result *r = &c->result;
    int64_t B = c->batch.rows, Bn = B * c->batch.samples;
    *r = fs_result_default();
    r->tokens_dtype = args->i64 ? FS_I64 : FS_I32;
    r->tokens = take_memory(Bn, args->i64 ? 8 : 4, "tokens");
    r->status = take_memory(B, sizeof *r->status, "status");
    r->logits = args->logprobs ? args->logprobs - 1 : FS_LOGITS_RAW;
    if (c->batch.mode != FS_MODE_SCORE) r->score = take_memory(Bn, sizeof *r->score, "scores");
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
