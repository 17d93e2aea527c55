/* Equal rows of W give equal logits, and of equal logits the lowest id wins, with the kernels of every row of the
 * dispatch table (isas.h): side by side, in other lanes, tiles and blocks, in the last tile, which is not whole, and on
 * both sides of a shard's end. */
#include "cpu/cpu_pass.h"
#include "problems.h"

enum { VOCAB = 2477, ROWS = 100, SHARDS = 5 };
static const int64_t edges[SHARDS + 1] = {0, 1, 777, 1040, VOCAB - 3, VOCAB};

/* A head two thirds of whose tokens repeat an earlier one, and what was drawn from it. */
typedef struct world {
    problem p;
    fs_head head;
    fs_batch batch;
    int32_t lowest[VOCAB]; /* of the tokens that are equal to this one */
    int64_t equals[VOCAB]; /* how many there are, at the lowest */
    int64_t watch_offset[ROWS + 1];
    int32_t watch_token[ROWS * VOCAB];
    float logit[ROWS * VOCAB];
    int32_t best[ROWS];
} world;

static char *token_at(const world *w, int64_t v) {
    return w->p.w + v * w->p.w_stride;
}

static void repeat(world *w, int32_t v, int32_t earlier) {
    memcpy(token_at(w, v), token_at(w, earlier), (size_t)(w->p.dim * bytes_of(w->p.w_dtype)));
    w->lowest[v] = w->lowest[earlier];
}

/* The tokens at the ends of shards, all equal, are what the first row of H draws. */
static int is_end(int32_t v) {
    for (int i = 2; i < SHARDS; i++)
        if (v == edges[i] || v == edges[i] - 1) return 1;
    return v == VOCAB - 1;
}

static void make_end(world *w, int32_t v) {
    const problem *p = &w->p;
    const int32_t first = (int32_t)edges[2] - 1;
    for (int64_t d = 0; v == first && d < p->dim; d++)
        put_number(p->w_dtype, token_at(w, v) + d * bytes_of(p->w_dtype),
                   4.0f * (float)get(p->h_dtype, p->h + d * bytes_of(p->h_dtype)));
    if (v > first) repeat(w, v, first);
}

/* Equal tokens are lanes, tiles, noise blocks and blocks apart, or anywhere. Some have one large weight, which kernels
 * that split or upscale numbers treat in another way, some of them with all of its tile. */
static void make_tokens(rng *r, world *w) {
    static const int32_t apart[] = {1, 2, 8, 15, 16, 127, 128, 1024};
    for (int32_t v = 0; v < VOCAB; v++) {
        const int32_t near = v - apart[random_below(r, 8)];
        const int64_t d = (int64_t)random_below(r, (uint64_t)w->p.dim);
        w->lowest[v] = v;
        if (is_end(v)) make_end(w, v);
        else if (v && random_below(r, 3)) repeat(w, v, near >= 0 ? near : (int32_t)random_below(r, (uint64_t)v));
        else if (v % 5 == 0) put_number(w->p.w_dtype, token_at(w, v) + d * bytes_of(w->p.w_dtype), 40.0f);
        w->equals[w->lowest[v]]++;
    }
}

static world *make_world(rng *r, int32_t w_dtype, int32_t h_dtype, int32_t rows, int64_t dim) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->p = make_problem(r, w_dtype, h_dtype, rows, VOCAB, dim);
    problem *p = &w->p;
    /* From 2^30 on hidden states are too large for f16 weights as bf16 components. The last row is the first. */
    for (int32_t b = 6; b < rows && h_dtype != FS_F16; b += 7)
        for (int64_t d = 0; d < dim; d++) {
            char *at = p->h + b * p->h_stride + d * bytes_of(h_dtype);
            put_number(h_dtype, at, ldexpf((float)get(h_dtype, at), 31));
        }
    if (rows > 1) memcpy(p->h + (rows - 1) * p->h_stride, p->h, (size_t)(dim * bytes_of(h_dtype)));
    make_tokens(r, w);
    for (int32_t b = 0; b <= rows; b++) w->watch_offset[b] = (int64_t)b * VOCAB;
    for (int32_t i = 0; i < rows * VOCAB; i++) w->watch_token[i] = i % VOCAB;
    w->head = fs_head_default();
    w->head.data = p->w, w->head.dtype = w_dtype, w->head.stride = p->w_stride;
    w->head.rows = w->head.vocab = VOCAB, w->head.dim = dim;
    w->batch = fs_batch_default();
    w->batch.hidden = p->h, w->batch.hidden_dtype = h_dtype, w->batch.hidden_stride = p->h_stride;
    w->batch.rows = rows, rules_of(&w->batch)->temperature.value = 0.0f;
    return w;
}

static void must(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

static fs_result tokens_to(int32_t *tokens) {
    fs_result r = fs_result_default();
    memset(tokens, 0x77, ROWS * sizeof *tokens);
    r.tokens = tokens;
    return r;
}

static void hold_tokens(const char *name, const world *w, const int32_t *tokens) {
    for (int32_t b = 0; b < w->p.rows; b++)
        if (tokens[b] != w->best[b])
            fail_msg("%s, W %d, H %d, D %d: row %d of %d drew %d and not %d", name, w->p.w_dtype, w->p.h_dtype,
                     (int)w->p.dim, b, w->p.rows, tokens[b], w->best[b]);
}

/* Every logit, and from these what a row has to draw. */
static void logits_are_equal(const char *name, fs_context *context, world *w) {
    const problem *p = &w->p;
    int32_t tokens[ROWS];
    fs_result r = tokens_to(tokens);
    fs_batch batch = w->batch;
    memset(w->logit, 0x77, sizeof w->logit);
    batch.watch_offset = w->watch_offset, batch.watch_token = w->watch_token;
    r.watch_logit = w->logit;
    must(context, fs_sample(context, &w->head, &batch, &r));
    for (int32_t b = 0; b < p->rows; b++) {
        const float *logit = w->logit + b * VOCAB;
        w->best[b] = 0;
        for (int32_t v = 0; v < VOCAB; v++) {
            if (memcmp(&logit[v], &logit[w->lowest[v]], sizeof *logit) != 0)
                fail_msg("%s, W %d, H %d, D %d: row %d of %d gives token %d %.9g and token %d, its equal, %.9g", name,
                         p->w_dtype, p->h_dtype, (int)p->dim, b, p->rows, v, (double)logit[v], w->lowest[v],
                         (double)logit[w->lowest[v]]);
            if (logit[v] > logit[w->best[b]]) w->best[b] = v;
        }
    }
    hold_tokens(name, w, tokens);
    assert_memory_equal(w->logit, w->logit + (p->rows - 1) * VOCAB, VOCAB * sizeof(float));
}

/* Where nobody asks for logits they may never be stored. */
static void the_lowest_wins(const char *name, fs_context *context, const world *w) {
    int32_t tokens[ROWS];
    fs_result r = tokens_to(tokens);
    must(context, fs_sample(context, &w->head, &w->batch, &r));
    hold_tokens(name, w, tokens);
}

static void the_lowest_wins_over_shards(const char *name, fs_context *context, const world *w) {
    int32_t tokens[ROWS];
    fs_result r = tokens_to(tokens);
    void *part[SHARDS];
    size_t bytes;
    must(context, fs_partial_size(context, &w->head, &w->batch, &r, &bytes));
    for (int i = 0; i < SHARDS; i++) {
        fs_head head = w->head;
        head.data = token_at(w, edges[i]);
        head.first_token = edges[i];
        head.rows = edges[i + 1] - edges[i];
        part[i] = malloc(bytes);
        assert_non_null(part[i]);
        must(context, fs_partial(context, &head, &w->batch, &r, part[i], bytes));
    }
    must(context, fs_merge(context, &w->head, &w->batch, (const void *const *)part, SHARDS, &r));
    hold_tokens(name, w, tokens);
    for (int i = 0; i < SHARDS; i++) free(part[i]);
}

/* An emulator does one round of the shape of most rows, and every fourth one of few. */
static int is_long(int round) {
    return round < 27 ? round % 4 : round != 38;
}

static void equal_rows_give_equal_logits_and_the_lowest_id_wins(void **state) {
    (void)state;
    static const struct shape {
        int32_t rows;
        int64_t dim;
    } shapes[] = {{1, 2049}, {3, 768}, {16, 129}, {64, 1031}, {ROWS, 333}};
    rng r = random_from(31);
    int64_t drawn = 0, with_equals = 0;
    for (int round = 0; round < 9 * (int)(sizeof shapes / sizeof shapes[0]); round++) {
        if (left_out(round) || (test_size(45) < 3 && is_long(round))) continue;
        const struct shape shape = shapes[round / 9];
        world *w = make_world(&r, round % 3, round / 3 % 3, shape.rows, shape.dim);
        for (int i = 0; i < NAMES; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            fs_context *context = open_context(FS_BACKEND_CPU, 3, round % 2 ? 128 : 0);
            ((fs_cpu *)context->state)->isa = isa;
            logits_are_equal(isa->name, context, w);
            the_lowest_wins(isa->name, context, w);
            the_lowest_wins_over_shards(isa->name, context, w);
            fs_context_destroy(context);
            for (int32_t b = 0; b < shape.rows; b++) with_equals += w->equals[w->best[b]] > 1;
            drawn += shape.rows;
        }
        free(w->p.w), free(w->p.h), free(w);
    }
    print_message("%lld of %lld rows drew a token that has equals\n", (long long)with_equals, (long long)drawn);
    assert_true(with_equals > drawn / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_rows_give_equal_logits_and_the_lowest_id_wins),
    };
    return cmocka_run_group_tests_name("equal rows", tests, NULL, NULL);
}
