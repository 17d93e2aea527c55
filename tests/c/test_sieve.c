/* Blocks that are sifted (cpu_sieve.h) against blocks whose logits are stored: the same call, with one watched token a row, goes the long way.
 * Tokens, their logits and status must be the same, whatever the logits, the rules and the shape. Where no kernel sifts, both go the long
 * way and this says nothing; it says so. */
#include "cpu/cpu_isa.h"
#include "support.h"

enum { MOST_VOCAB = 6000, MOST_ROWS = 150, DIM = 80 };

/* ------------------------------------------------------------------------------------------------------ logits ---- */

typedef float logit_of(rng *r, int64_t v, int64_t d);

static float gaussian(rng *r, int64_t v, int64_t d) {
    (void)v, (void)d;
    return (float)(2.5 * random_normal(r));
}
static float hot_first(rng *r, int64_t v, int64_t d) {
    (void)d;
    return (float)(random_normal(r) - 2.0 * log1p((double)v / 16.0));
}
static float flat(rng *r, int64_t v, int64_t d) {
    (void)r, (void)v, (void)d;
    return 1.5f;
}
/* Every block beats all before it: so much is found that some blocks fail. */
static float rising(rng *r, int64_t v, int64_t d) {
    (void)d;
    return (float)(0.05 * (double)v + random_unit(r));
}
static float tied(rng *r, int64_t v, int64_t d) {
    (void)v, (void)d;
    return (float)floor(2.0 * random_normal(r));
}
/* A few tokens, for some rows, that no sum can be sifted with. */
static float broken(rng *r, int64_t v, int64_t d) {
    if (v % 1201 == 700 && d % 5 == 0) return d % 2 ? NAN : INFINITY;
    if (v % 1501 == 900 && d % 7 == 0) return -INFINITY;
    return (float)random_normal(r);
}
/* One of each row's tokens is a jump that no rough mass can bear. */
static float jumping(rng *r, int64_t v, int64_t d) {
    return v == 2000 + 3 * d ? 900.0f : (float)random_normal(r);
}

static logit_of *const shapes[] = {gaussian, hot_first, flat, rising, tied, broken, jumping};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void put(int32_t dtype, char *base, int64_t i, float x) {
    uint16_t half = dtype == FS_BF16 ? (x != x ? 0x7FC0 : bf16_of(x)) : x != x ? 0x7E00 : f16_of(x);
    if (dtype == FS_F32) memcpy(base + 4 * i, &x, 4);
    else memcpy(base + 2 * i, &half, 2);
}

/* ------------------------------------------------------------------------------------------------------- calls ---- */

enum { PLAIN, CUTS, NUCLEUS, MIN_P, MASKED, TIGHT, MASKED_CUTS, KINDS };

typedef struct call {
    fs_head head;
    fs_batch batch;
    int32_t threads, block;
} call;

static char weights[MOST_VOCAB * DIM * 4], hidden[MOST_ROWS * DIM * 4];
static uint32_t mask[MOST_ROWS * ((MOST_VOCAB + 31) / 32)];
static float temperature[MOST_ROWS], top_p[MOST_ROWS], min_p[MOST_ROWS];
static int32_t top_k[MOST_ROWS];

/* Row b of H is 1 at b % DIM and 0 elsewhere: its logits are that column of W. */
static void make_head(rng *r, logit_of *shape, call *c) {
    static const int32_t sizes[] = {17, 32, 50, 64, 65, 130, MOST_ROWS};
    fs_head head = fs_head_default();
    const int64_t vocab = 2500 + (int64_t)random_below(r, MOST_VOCAB - 2500);
    const int32_t w_dtype = (int32_t)random_below(r, 3), h_dtype = (int32_t)random_below(r, 3);
    const int64_t first = random_below(r, 3) ? 0 : 1 + (int64_t)random_below(r, 500);
    head.kind = FS_HEAD_WEIGHTS;
    head.dtype = w_dtype;
    head.data = weights;
    head.dim = DIM;
    head.vocab = vocab;
    head.first_token = first;
    head.rows = vocab - first;
    for (int64_t v = 0; v < head.rows; v++)
        for (int64_t d = 0; d < DIM; d++) put(w_dtype, weights, v * DIM + d, shape(r, first + v, d));
    c->batch = fs_batch_default();
    c->batch.rows = sizes[random_below(r, sizeof sizes / sizeof sizes[0])];
    for (int64_t k = 0; k < c->batch.rows * DIM; k++) put(h_dtype, hidden, k, k % DIM == k / DIM % DIM ? 1.0f : 0.0f);
    c->batch.hidden = hidden;
    c->batch.hidden_dtype = h_dtype;
    c->head = head;
}

static void make_rules(rng *r, int kind, call *c) {
    fs_batch *b = &c->batch;
    const int64_t words = (c->head.vocab + 31) / 32;
    for (int64_t i = 0; i < b->rows; i++) {
        temperature[i] = random_below(r, 5) ? 0.3f + 1.5f * (float)random_unit(r) : 0.0f;
        top_k[i] = kind == CUTS || kind == MASKED_CUTS ? 1 + (int32_t)random_below(r, 60) : 0;
        top_p[i] = kind == CUTS || kind == NUCLEUS ? 0.5f + 0.5f * (float)random_unit(r) : 1.0f;
        min_p[i] = kind == MIN_P ? 0.05f : 0.0f;
    }
    b->temperature = temperature;
    b->top_k = top_k;
    b->top_p = top_p;
    b->min_p = min_p;
    b->all.seed = random_next(r);
    b->position_all = (int64_t)random_below(r, 1000);
    for (int64_t i = 0; i < b->rows * words; i++)
        mask[i] = kind == TIGHT ? (random_below(r, 6) ? 0 : 1u << random_below(r, 32)) : (uint32_t)random_next(r);
    if (kind == MASKED || kind == TIGHT || kind == MASKED_CUTS) b->allow = mask;
}

typedef struct drawn {
    int32_t token[MOST_ROWS];
    uint32_t status[MOST_ROWS];
    float logit[MOST_ROWS];
} drawn;

static void draw(const call *c, int watch, drawn *d) {
    static int64_t offset[MOST_ROWS + 1];
    static int32_t watched[MOST_ROWS];
    static float watch_logit[MOST_ROWS];
    fs_batch batch = c->batch;
    fs_result result = fs_result_default();
    memset(d, 0x55, sizeof *d);
    result.tokens = d->token;
    result.status = d->status;
    result.logit = d->logit;
    for (int64_t b = 0; b < batch.rows; b++) offset[b + 1] = b + 1, watched[b] = 7;
    if (watch) {
        batch.watch_offset = offset;
        batch.watch_token = watched;
        result.watch_logit = watch_logit;
    }
    fs_context *context = open_context(FS_BACKEND_CPU, c->threads, c->block);
    if (fs_sample(context, &c->head, &batch, &result) != FS_OK) fail_msg("%s", fs_error_text(context));
    for (int64_t b = 0; b < batch.rows; b++) d->status[b] &= ~(uint32_t)FS_ROW_FALLBACK; /* which is not promised */
    fs_context_destroy(context);
}

static void sifted_calls_draw_what_stored_ones_do(void **state) {
    (void)state;
    static const int32_t blocks[] = {128, 256, 640, 2048, 0};
    char names[256];
    const fs_isa *isa = fs_isa_choose(getenv("FLASHSAMPLING_ISA"), names, sizeof names);
    rng r = random_from(20);
    assert_non_null(isa);
    int sifts = 0;
    for (int i = 0; i < 3; i++) sifts |= isa->kernel[i]->sift != NULL;
    if (!sifts) print_message("%s sifts nothing\n", isa->name);
    const int rounds = sifts ? SHAPES * (1 + (int)test_size(KINDS * 3 - 1)) : SHAPES;
    for (int round = 0; round < rounds; round++) {
        const int shape = round % SHAPES, kind = round / SHAPES * 2 % KINDS;
        static drawn sifted, stored;
        call c;
        memset(&c, 0, sizeof c);
        make_head(&r, shapes[shape], &c);
        make_rules(&r, kind, &c);
        c.block = blocks[random_below(&r, sizeof blocks / sizeof blocks[0])];
        c.threads = 1 + (int32_t)random_below(&r, 3);
        draw(&c, 0, &sifted);
        draw(&c, 1, &stored);
        for (int64_t b = 0; b < c.batch.rows; b++)
            if (sifted.token[b] != stored.token[b] || sifted.status[b] != stored.status[b] ||
                memcmp(&sifted.logit[b], &stored.logit[b], 4) != 0)
                fail_msg(
                    "round %d, shape %d, kind %d, W %d, H %d, row %d of %d: token %d, logit %.9g, status %x; stored "
                    "%d, %.9g, %x",
                    round, shape, kind, c.head.dtype, c.batch.hidden_dtype, (int)b, (int)c.batch.rows, sifted.token[b],
                    (double)sifted.logit[b], sifted.status[b], stored.token[b], (double)stored.logit[b],
                    stored.status[b]);
    }
}

/* What fs_work_size says is enough, with masses and without. */
static void the_sieve_fits_the_callers_memory(void **state) {
    (void)state;
    rng r = random_from(21);
    for (int kind = 0; kind < KINDS; kind++) {
        call c;
        drawn d;
        size_t bytes = 0;
        memset(&c, 0, sizeof c);
        make_head(&r, gaussian, &c);
        make_rules(&r, kind, &c);
        fs_options options = fs_options_default();
        fs_context *context = open_context(FS_BACKEND_CPU, 2, 128);
        fs_result result = fs_result_default();
        result.tokens = d.token;
        assert_int_equal(fs_work_size(context, &c.head, &c.batch, &result, &bytes), FS_OK);
        fs_context_destroy(context);
        options.backend = FS_BACKEND_CPU;
        options.threads = 2;
        options.block = 128;
        options.work_bytes = bytes;
        options.work = aligned_alloc(64, (bytes + 63) / 64 * 64);
        assert_non_null(options.work);
        assert_int_equal(fs_context_create(&options, &context), FS_OK);
        if (fs_sample(context, &c.head, &c.batch, &result) != FS_OK) fail_msg("%s", fs_error_text(context));
        fs_context_destroy(context);
        free(options.work);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sifted_calls_draw_what_stored_ones_do),
        cmocka_unit_test(the_sieve_fits_the_callers_memory),
    };
    return cmocka_run_group_tests_name("sieve", tests, NULL, NULL);
}
