/* Blocks that are filtered (cpu_filter.h) against blocks whose logits are stored: the same call, with one watched token
 * a row, is stored. Tokens, their logits, the largest ones and status must be the same, whatever the logits,
 * the rules, the shape and the order of tasks; and W must be read once, but for blocks that could not be filtered. */
#include "cpu/cpu_pass.h"
#include "support.h"

enum { MOST_VOCAB = 20000, MOST_ROWS = 150, DIM = 80, MOST_WEIGHTS = 2500 * 2100 };

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
/* A few tokens, for some rows, that no sum can be filtered with. */
static float broken(rng *r, int64_t v, int64_t d) {
    if (v % 1201 == 700 && d % 5 == 0) return d % 2 ? NAN : INFINITY;
    if (v % 1501 == 900 && d % 7 == 0) return -INFINITY;
    return (float)random_normal(r);
}
/* One that is no number, among the lowest ids or later, and nothing else that would show. */
static int64_t hole;
static float undefined(rng *r, int64_t v, int64_t d) {
    return v == hole && d == 3 ? NAN : (float)random_normal(r);
}
/* Two of each row's tokens, late ones, are a jump that no rough mass can bear, and share its mass. */
static int64_t jump;
static float jumping(rng *r, int64_t v, int64_t d) {
    const int64_t behind = v - (jump + 3 * d);
    return behind == 0 ? 40.0f : behind == 1 ? 39.96875f : (float)(4.0 * random_normal(r));
}
/* Zeros on top, from some token on: of equal ones the lowest id wins, whoever meets it first. */
static float topped(rng *r, int64_t v, int64_t d) {
    (void)d;
    return v > 1500 && v % 37 == 5 ? 0.0f : -1.0f - (float)random_unit(r);
}
/* So many are equal that lists have to tell them apart by their ids. */
static float sparse(rng *r, int64_t v, int64_t d) {
    (void)r;
    return v % 20 == d % 20 ? 1.0f : 0.0f;
}

/* The last one is of any H and W, scaled row by row: see make_head. */
static logit_of *const shapes[] = {gaussian, hot_first, flat,   rising,    tied, broken,
                                   jumping,  topped,    sparse, undefined, NULL};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void put(int32_t dtype, char *base, int64_t i, float x) {
    uint16_t half = dtype == FS_BF16 ? (x != x ? 0x7FC0 : bf16_of(x)) : x != x ? 0x7E00 : f16_of(x);
    if (dtype == FS_F32) memcpy(base + 4 * i, &x, 4);
    else memcpy(base + 2 * i, &half, 2);
}

/* ------------------------------------------------------------------------------------------------------- calls ---- */

enum { PLAIN, CUTS, NUCLEUS, MIN_P, MASKED, TIGHT, MASKED_CUTS, KINDS };
enum { LONG = 9000 }; /* tokens at least, of nuclei */

typedef struct call {
    fs_head head;
    fs_batch batch;
    int32_t threads, block;
    /* Tasks run one after the other, the last one first: 1, it takes all blocks; 2, its own, and shares bounds of
     * later tokens. */
    int32_t backwards;
    int32_t by_parts; /* fs_partial and fs_merge */
    int32_t log_z;    /* 1: log Z and logprobs are asked for, 2: raw ones */
    int32_t wide;     /* as if all rows had been wide before: those that can end by their logits have them stored */
} call;

static char weights[MOST_WEIGHTS * 4], hidden[MOST_ROWS * 2100 * 4];
static uint32_t mask[MOST_ROWS * ((MOST_VOCAB + 31) / 32)];
static float temperature[MOST_ROWS], top_p[MOST_ROWS], min_p[MOST_ROWS];
static int32_t top_k[MOST_ROWS], slot[MOST_ROWS];

/* Row b of H is 1 at b % DIM and 0 elsewhere: its logits are that column of W. Without a shape both are of any numbers,
 * rows of H of any size, and sums take up to three segments of components. least: tokens. */
static void make_head(rng *r, logit_of *shape, int64_t least, call *c) {
    static const int32_t sizes[] = {17, 32, 50, 64, 65, 130, MOST_ROWS}, dims[] = {80, 700, 1030, 2100};
    fs_head head = fs_head_default();
    const int64_t dim = shape ? DIM : dims[random_below(r, sizeof dims / sizeof dims[0])];
    const int64_t vocab = !shape            ? 2500
                          : shape == sparse ? MOST_VOCAB
                                            : least + (int64_t)random_below(r, MOST_VOCAB / 6);
    const int32_t w_dtype = (int32_t)random_below(r, 3), h_dtype = (int32_t)random_below(r, 3);
    const int64_t first = random_below(r, 3) ? 0 : 1 + (int64_t)random_below(r, 500);
    jump = vocab * 3 / 5;
    hole = least == LONG ? 33 : vocab / 2;
    head.kind = FS_HEAD_WEIGHTS;
    head.dtype = w_dtype;
    head.data = weights;
    head.dim = dim;
    head.vocab = vocab;
    head.first_token = first;
    head.rows = vocab - first;
    for (int64_t v = 0; v < head.rows; v++)
        for (int64_t d = 0; d < dim; d++)
            put(w_dtype, weights, v * dim + d, shape ? shape(r, first + v, d) : (float)random_normal(r));
    c->batch = fs_batch_default();
    c->batch.rows = sizes[random_below(r, sizeof sizes / sizeof sizes[0])];
    for (int64_t b = 0; b < c->batch.rows; b++)
        for (int64_t d = 0; d < dim; d++) {
            const float any = (float)ldexp(random_normal(r) / sqrt((double)dim), (int)(b % 20) - 10);
            put(h_dtype, hidden, b * dim + d, !shape ? any : d == b % dim ? 1.0f : 0.0f);
        }
    c->batch.hidden = hidden;
    c->batch.hidden_dtype = h_dtype;
    c->head = head;
}

static void make_rules(rng *r, int kind, call *c) {
    fs_batch *b = &c->batch;
    const int64_t words = (c->head.vocab + 31) / 32;
    for (int64_t i = 0; i < b->rows; i++) {
        temperature[i] = random_below(r, 5) ? (random_below(r, 2) ? 0.1f : 0.3f) + 1.5f * (float)random_unit(r) : 0.0f;
        if (random_below(r, 4) == 0) temperature[i] *= 0.1f;
        slot[i] = random_below(r, 8) ? (int32_t)i : -1;
        top_k[i] = kind == CUTS || kind == MASKED_CUTS ? 1 + (int32_t)random_below(r, 60) : 0;
        top_p[i] = kind == CUTS || kind == NUCLEUS ? 0.5f + 0.5f * (float)random_unit(r) : 1.0f;
        min_p[i] = kind == MIN_P || (kind == CUTS && random_below(r, 4) == 0) ? 0.05f : 0.0f;
    }
    /* Nuclei of the row before temperature are not filtered. */
    const uint32_t flags = FS_KEEP_TIES | FS_MIN_P_LAST | FS_CUT_BEFORE_TEMPERATURE;
    if (kind != NUCLEUS && random_below(r, 3) == 0) b->flags = flags & (uint32_t)random_next(r);
    if (random_below(r, 3) == 0) b->slot = slot;
    rules_of(b)->temperature.per_slot = temperature;
    rules_of(b)->top_k.per_slot = top_k;
    rules_of(b)->top_p.per_slot = top_p;
    rules_of(b)->min_p.per_slot = min_p;
    b->seed_all = random_next(r);
    b->position_all = (int64_t)random_below(r, 1000);
    for (int64_t i = 0; i < b->rows * words; i++)
        mask[i] = kind == TIGHT ? (random_below(r, 6) ? 0 : 1u << random_below(r, 32)) : (uint32_t)random_next(r);
    if (kind == MASKED || kind == TIGHT || kind == MASKED_CUTS) b->allow = mask;
}

/* ------------------------------------------------------------------------------------------------------- draws ---- */

typedef struct drawn {
    int32_t token[MOST_ROWS];
    uint32_t status[MOST_ROWS];
    float logit[MOST_ROWS], max_logit[MOST_ROWS], log_z[MOST_ROWS], logprob[MOST_ROWS];
    int64_t filtered, stored, fallback_rows; /* tokens whose logits were computed, for all rows */
} drawn;

/* A kernel that counts. */
static const fs_kernel *real;
static fs_kernel counting;
static fs_isa counting_isa;
static _Atomic int64_t filtered_tokens, stored_tokens;

static void count_stored(const fs_hidden *h, const fs_matrix *w, int64_t first, int32_t tokens, float *out,
                         int64_t out_ld) {
    atomic_fetch_add(&stored_tokens, tokens);
    real->tile(h, w, first, tokens, out, out_ld);
}

static void count_filtered(const fs_hidden *h, const fs_matrix *w, int64_t first, int32_t tokens, fs_filter *filter) {
    atomic_fetch_add(&filtered_tokens, tokens);
    real->filter(h, w, first, tokens, filter);
}

static void count_calls(fs_context *context, int32_t dtype) {
    fs_cpu *cpu = context->state;
    const int32_t format = format_of(dtype);
    real = cpu->isa->kernel[format];
    counting = *real;
    counting.tile = count_stored;
    if (real->filter) counting.filter = count_filtered;
    counting_isa = *cpu->isa;
    counting_isa.kernel[format] = &counting;
    cpu->isa = &counting_isa;
    filtered_tokens = stored_tokens = 0;
}

static void run_backwards(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    (void)user;
    while (count > 0) task(arg, --count);
}

/* With two memory nodes each task has blocks of its own, whoever is first. */
static void pretend_nodes(fs_context *context) {
    fs_nodes *nodes = &((fs_cpu *)context->state)->nodes;
    nodes->count = 2;
    for (int32_t n = 0; n < 2; n++) nodes->id[n] = n, nodes->cores[n] = 1;
}

static fs_context *open_for(const call *c) {
    fs_options options = fs_options_default();
    fs_context *context;
    options.backend = FS_BACKEND_CPU;
    options.threads = c->threads;
    options.block = c->block;
    if (c->backwards) options.parallel_for = run_backwards;
    if (fs_context_create(&options, &context) != FS_OK) fail_msg("%s", fs_error_text(NULL));
    if (c->backwards == 2) pretend_nodes(context);
    memset(((fs_cpu *)context->state)->wide, c->wide, FS_KINDS);
    count_calls(context, c->head.dtype);
    return context;
}

static fs_status sample_by_parts(fs_context *context, const call *c, const fs_batch *batch, fs_result *result) {
    size_t bytes;
    fs_status status = fs_partial_size(context, &c->head, batch, result, &bytes);
    void *part = malloc(bytes);
    assert_non_null(part);
    const void *parts[] = {part};
    if (status == FS_OK) status = fs_partial(context, &c->head, batch, result, part, bytes);
    if (status == FS_OK) status = fs_merge(context, &c->head, batch, parts, 1, result);
    free(part);
    return status;
}

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
    if (!batch.allow) result.max_logit = d->max_logit; /* of rows with masks it takes stored logits */
    if (c->log_z) result.log_z = d->log_z, result.logprob = d->logprob;
    if (c->log_z == 2) result.logits_mode = FS_LOGITS_RAW;
    for (int64_t b = 0; b < batch.rows; b++) offset[b + 1] = b + 1, watched[b] = 7;
    if (watch) {
        batch.watch_offset = offset;
        batch.watch_token = watched;
        result.watch_logit = watch_logit;
    }
    fs_context *context = open_for(c);
    const fs_status status = c->by_parts ? sample_by_parts(context, c, &batch, &result)
                                         : fs_sample(context, &c->head, &batch, &result);
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
    for (int64_t b = 0; b < batch.rows; b++) d->status[b] &= ~(uint32_t)FS_ROW_FALLBACK; /* which is not promised */
    d->filtered = filtered_tokens;
    d->stored = stored_tokens;
    d->fallback_rows = counters_of(context).fallback_rows;
    fs_context_destroy(context);
}

static int some_kernel_filters(void) {
    char names[256];
    const fs_isa *isa = fs_isa_choose(getenv("FLASHSAMPLING_ISA"), names, sizeof names);
    assert_non_null(isa);
    for (int i = 0; i < FS_FORMATS; i++)
        if (isa->kernel[i] && isa->kernel[i]->filter) return 1;
    print_message("skip: %s filters nothing\n", isa->name);
    return 0;
}

static void hold_against(const call *c, const char *what, const drawn *filtered, const drawn *stored) {
    for (int64_t b = 0; b < c->batch.rows; b++) {
        const int skipped = c->batch.slot && ((const int32_t *)c->batch.slot)[b] < 0; /* its logits are nobody's */
        if (filtered->token[b] == stored->token[b] && filtered->status[b] == stored->status[b] &&
            (skipped || memcmp(&filtered->logit[b], &stored->logit[b], 4) == 0) &&
            (skipped || memcmp(&filtered->max_logit[b], &stored->max_logit[b], 4) == 0) &&
            (skipped || memcmp(&filtered->log_z[b], &stored->log_z[b], 4) == 0) &&
            (skipped || memcmp(&filtered->logprob[b], &stored->logprob[b], 4) == 0))
            continue;
        fail_msg(
            "%s, W %d, H %d, D %d, row %d of %d: token %d, logit %.9g, largest %.9g, log Z %.9g, status %x; stored "
            "%d, %.9g, %.9g, %.9g, %x",
            what, c->head.dtype, c->batch.hidden_dtype, (int)c->head.dim, (int)b, (int)c->batch.rows,
            filtered->token[b], (double)filtered->logit[b], (double)filtered->max_logit[b], (double)filtered->log_z[b],
            filtered->status[b], stored->token[b], (double)stored->logit[b], (double)stored->max_logit[b],
            (double)stored->log_z[b], stored->status[b]);
    }
}

/* W is read once. A block that failed is computed again; a task has at most 47, and after the first, second ... failure
 * 4, 8 ... are not tried. */
static void hold_reads(const call *c, const char *what, const drawn *filtered, const drawn *stored) {
    enum { MOST_FAILURES = 5 };
    const int64_t block = c->block ? c->block : 1024, again = filtered->filtered + filtered->stored - c->head.rows;
    if (!stored->fallback_rows && (stored->filtered || stored->stored != c->head.rows))
        fail_msg("%s: %d tokens filtered and %d stored of %d", what, (int)stored->filtered, (int)stored->stored,
                 (int)c->head.rows);
    if (!filtered->fallback_rows && (again < 0 || again > MOST_FAILURES * c->threads * block))
        fail_msg("%s: %d tokens filtered and %d stored of %d", what, (int)filtered->filtered, (int)filtered->stored,
                 (int)c->head.rows);
}

static void filtered_calls_draw_what_stored_ones_do(void **state) {
    (void)state;
    static const int32_t blocks[] = {128, 128, 128, 256, 640, 2048, 0};
    rng r = random_from(20);
    if (!some_kernel_filters()) skip();
    int64_t filtered_of[KINDS] = {0};
    const int rounds = SHAPES * (1 + (int)test_size(KINDS * 3 - 1));
    for (int round = 0; round < rounds; round++) {
        const int shape = round % SHAPES, kind = round / SHAPES * 2 % KINDS;
        static drawn filtered, stored;
        char what[64];
        call c;
        memset(&c, 0, sizeof c);
        make_head(&r, shapes[shape], kind == NUCLEUS ? LONG : 2500, &c);
        make_rules(&r, kind, &c);
        c.block = blocks[random_below(&r, sizeof blocks / sizeof blocks[0])];
        if (kind == NUCLEUS) c.block = 768; /* shorter ones give its lists no bound to begin with */
        c.threads = 1 + (int32_t)random_below(&r, 3);
        c.backwards = random_below(&r, 2) ? 0 : 1 + (int32_t)random_below(&r, 2);
        /* Then masses are exact; one part has to be the whole vocabulary. */
        c.by_parts = random_below(&r, 4) == 0 && c.head.first_token == 0;
        if (!c.batch.allow) c.log_z = (int32_t)random_below(&r, 3);
        c.wide = (int32_t)random_below(&r, 2);
        snprintf(what, sizeof what, "round %d, shape %d, kind %d, log Z %d", round, shape, kind, (int)c.log_z);
        draw(&c, 0, &filtered);
        c.wide = 0;
        draw(&c, 1, &stored);
        hold_against(&c, what, &filtered, &stored);
        hold_reads(&c, what, &filtered, &stored);
        filtered_of[kind] += filtered.filtered;
    }
    for (int kind = 0; kind < KINDS && kind * SHAPES < rounds; kind++)
        if (!filtered_of[kind * 2 % KINDS]) fail_msg("of kind %d nothing was filtered", kind * 2 % KINDS);
}

/* A nucleus looks at its lowest ids before anything else does. */
static void what_is_no_number_is_seen_among_the_lowest_ids(void **state) {
    (void)state;
    rng r = random_from(23);
    if (!some_kernel_filters()) skip();
    for (int i = 0; i < 2 + (int)test_size(6); i++) {
        static drawn filtered, stored;
        call c;
        memset(&c, 0, sizeof c);
        make_head(&r, undefined, LONG, &c);
        make_rules(&r, NUCLEUS, &c);
        c.threads = 1 + i % 3;
        draw(&c, 0, &filtered);
        draw(&c, 1, &stored);
        hold_against(&c, "a NaN", &filtered, &stored);
        for (int64_t b = 0; b < c.batch.rows; b++)
            if (!(c.batch.slot && slot[b] < 0))
                assert_int_equal(filtered.status[b] & FS_ROW_NAN, c.head.first_token > 33 ? 0 : FS_ROW_NAN);
    }
}

/* What fs_work_size says is enough, with masses and without. */
static void the_filter_fits_the_callers_memory(void **state) {
    (void)state;
    rng r = random_from(21);
    for (int kind = 0; kind < KINDS; kind++) {
        call c;
        drawn d;
        size_t bytes = 0;
        memset(&c, 0, sizeof c);
        make_head(&r, gaussian, 2500, &c);
        make_rules(&r, kind, &c);
        fs_options options = fs_options_default();
        fs_context *context = open_context(FS_BACKEND_CPU, 2, 128);
        fs_result result = fs_result_default();
        result.tokens = d.token;
        assert_int_equal(fs_work_size(context, &c.head, &c.batch, &result, &bytes, NULL), FS_OK);
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

enum { MANY_ROWS = 3000 }; /* in blocks of 256 tokens */

/* A call of `rows` rows, whose tokens nobody looks at. */
typedef struct sized_call {
    fs_batch batch;
    fs_result result;
} sized_call;

static sized_call call_of_size(int64_t rows, int32_t samples, float share, int with_logprob) {
    static int32_t tokens[4 * MANY_ROWS];
    static float logprob[4 * MANY_ROWS];
    sized_call c = {fs_batch_default(), fs_result_default()};
    c.batch.rows = rows;
    c.batch.hidden = hidden;
    c.batch.samples = samples;
    rules_of(&c.batch)->top_p.value = share;
    c.result.tokens = tokens;
    c.result.logprob = with_logprob ? logprob : NULL;
    return c;
}

static size_t work_size(fs_context *context, const fs_head *head, sized_call c) {
    size_t bytes = 0;
    if (fs_work_size(context, head, &c.batch, &c.result, &bytes, NULL) != FS_OK) fail_msg("%s", fs_error_text(context));
    return bytes;
}

/* Fewer rows have longer blocks, and only calls that ask for little are filtered. */
static void what_is_enough_for_the_largest_call_is_enough_for_others(void **state) {
    (void)state;
    static const int64_t rows[] = {MANY_ROWS, 1171, 1024, 64, 17, 1};
    enum { SIZES = sizeof rows / sizeof rows[0] };
    rng r = random_from(22);
    call c;
    make_head(&r, gaussian, 2500, &c);
    memset(hidden, 0, sizeof hidden);
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    for (int i = 0; i < SIZES; i++) {
        const size_t most = work_size(context, &c.head, call_of_size(rows[i], 4, 0.9f, 1));
        char *work = aligned_alloc(64, most);
        assert_non_null(work);
        assert_int_equal(fs_context_set_work(context, work, most), FS_OK);
        for (int j = i; j < SIZES; j++)
            for (int k = 0; k < 8; k++) {
                sized_call smaller = call_of_size(rows[j], k & 1 ? 4 : 1, k & 2 ? 0.9f : 1.0f, k & 4);
                assert_true(work_size(context, &c.head, smaller) <= most);
                if (rows[j] > 100 && (i != j || k % 7)) continue; /* some are enough */
                if (fs_sample(context, &c.head, &smaller.batch, &smaller.result) != FS_OK)
                    fail_msg("%d rows, then %d (%d): %s", (int)rows[i], (int)rows[j], k, fs_error_text(context));
            }
        assert_int_equal(fs_context_set_work(context, NULL, 0), FS_OK);
        free(work);
    }
    fs_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filtered_calls_draw_what_stored_ones_do),
        cmocka_unit_test(what_is_no_number_is_seen_among_the_lowest_ids),
        cmocka_unit_test(the_filter_fits_the_callers_memory),
        cmocka_unit_test(what_is_enough_for_the_largest_call_is_enough_for_others),
    };
    return cmocka_run_group_tests_name("filter", tests, NULL, NULL);
}
