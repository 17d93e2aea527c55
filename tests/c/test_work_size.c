/* fs_work_size: with *bytes every call runs, with *every no row is left without a second pass, and with less some
 * are. */
#include "support.h"

enum { V = 50257, MOST_ROWS = 21, TOP = 1024, SAMPLES = 4, EDITS = 40 };

/* What a cut finds hard: rows without shape. */
enum { ZEROS, CONSTANT, FLAT, ASCENDING, DESCENDING, SHAPES };

static float logits[SHAPES][V];

/* A call of rows of all shapes, each a row of `logits` by way of a gather of its own. */
typedef struct call {
    float *stored; /* [MOST_ROWS, vocab] */
    int32_t tokens[MOST_ROWS * SAMPLES], rank[MOST_ROWS * SAMPLES], given[MOST_ROWS * SAMPLES];
    int32_t edit_token[MOST_ROWS * EDITS], top_token[MOST_ROWS * TOP];
    float edit_bias[MOST_ROWS * EDITS], logprob[MOST_ROWS * SAMPLES];
    int64_t offset[MOST_ROWS + 1];
    uint32_t status[MOST_ROWS];
    fs_head head;
    fs_batch batch;
    fs_result result;
} call;

static void make_shapes(void) {
    rng r = random_from(41);
    for (int v = 0; v < V; v++) {
        logits[ZEROS][v] = 0.0f;
        logits[CONSTANT][v] = -3.25f;
        logits[FLAT][v] = (float)random_normal(&r) * 0.01f;
        logits[ASCENDING][v] = (float)v * 1e-4f;
        logits[DESCENDING][v] = (float)-v * 1e-4f;
    }
}

static void add_edits(call *c, int32_t vocab) {
    rng r = random_from(43);
    for (int b = 0; b <= MOST_ROWS; b++) c->offset[b] = b < 2 ? 0 : (int64_t)(b - 2) * EDITS; /* not the same for all */
    for (int i = 0; i < MOST_ROWS * EDITS; i++) {
        c->edit_token[i] = (int32_t)random_below(&r, (uint64_t)vocab);
        c->edit_bias[i] = (float)random_normal(&r);
    }
    c->batch.edit_offset = c->offset, c->batch.edit_token = c->edit_token, c->batch.edit_bias = c->edit_bias;
}

static void want(call *c, int rank, int top) {
    if (rank) c->result.rank = c->rank, c->batch.flags |= FS_EXACT_RANK;
    if (top) c->result.top_token = c->top_token, c->result.top_count = TOP;
}

enum { RULES = 13 };

/* Cuts as wide as the vocabulary, by each rule, and what else needs whole lists. */
static void set_rules(call *c, int rules, int32_t vocab) {
    fs_batch *batch = &c->batch;
    if (rules <= 4 || rules == 9) rules_of(batch)->top_p.value = rules == 1 ? 0.99999f : 0.9f;
    if (rules == 2) rules_of(batch)->min_p.value = 1e-6f, batch->flags = FS_JOINT_TOP_P;
    if (rules == 3) batch->mode = FS_MODE_WITHOUT_REPLACEMENT, batch->samples = SAMPLES;
    if (rules == 4) want(c, 1, 1), batch->samples = SAMPLES;
    if (rules == 5) rules_of(batch)->top_k.value = vocab - 1;
    if (rules == 6) rules_of(batch)->top_k.value = 50, batch->flags = FS_KEEP_TIES;
    if (rules == 7) rules_of(batch)->min_p.value = 1e-6f;
    if (rules == 8) want(c, 1, 0);
    if (rules == 9) add_edits(c, vocab), want(c, 1, 1);
    if (rules == 10) add_edits(c, vocab), c->result.logits_mode = FS_LOGITS_PROCESSED, want(c, 1, 1);
    if (rules == 11) {
        batch->mode = FS_MODE_SCORE, batch->score_token = c->given, batch->samples = SAMPLES;
        want(c, 1, 0);
        for (int i = 0; i < MOST_ROWS * SAMPLES; i++) c->given[i] = i * 97 % vocab;
    }
    if (rules == 12) batch->mode = FS_MODE_GROUP_PARALLEL, batch->group_size = 1000, want(c, 1, 0);
    if (rules % 2) c->result.logprob = c->logprob;
}

static void make_call(call *c, int rules, int32_t rows, int32_t vocab) {
    c->head = fs_head_default();
    c->head.kind = FS_HEAD_LOGITS, c->head.data = c->stored, c->head.rows = vocab;
    c->batch = fs_batch_default();
    c->batch.rows = rows;
    c->result = fs_result_default();
    c->result.tokens = c->tokens, c->result.status = c->status;
    for (int b = 0; b < rows; b++)
        memcpy(c->stored + (int64_t)b * vocab, logits[b % SHAPES], (size_t)vocab * sizeof(float));
    set_rules(c, rules, vocab);
}

static call *new_call(void) {
    call *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->stored = malloc(sizeof(float) * MOST_ROWS * V);
    assert_non_null(c->stored);
    return c;
}

static void free_call(call *c) {
    free(c->stored);
    free(c);
}

static int64_t count_incomplete(const call *c) {
    int64_t count = 0;
    for (int64_t b = 0; b < c->batch.rows; b++) count += (c->status[b] & FS_ROW_INCOMPLETE) != 0;
    return count;
}

/* Draws with this much of the caller's memory; behind it nothing is written. */
static fs_status draw_with(fs_context *context, call *c, char *memory, size_t bytes) {
    memset(memory, 0x5A, bytes + 64);
    memset(c->tokens, 0x77, sizeof c->tokens), memset(c->rank, 0x77, sizeof c->rank);
    assert_int_equal(fs_context_set_work(context, memory, bytes), FS_OK);
    const fs_status status = fs_sample(context, &c->head, &c->batch, &c->result);
    for (int i = 0; i < 64; i++) assert_int_equal(memory[bytes + i], 0x5A);
    return status;
}

static void sizes_are_enough_and_not_too_much(int rules, int32_t threads, int32_t rows, int32_t vocab) {
    call *c = new_call();
    make_call(c, rules, rows, vocab);
    fs_context *context = open_context(FS_BACKEND_CPU, threads, 0);
    size_t bytes = 0, every = 0;
    assert_int_equal(fs_work_size(context, &c->head, &c->batch, &c->result, &bytes, &every), FS_OK);
    assert_true(bytes > 0 && every >= bytes && every % 64 == 0);
    /* Both keys of the whole vocabulary, for one row, and what its raw logits take. */
    assert_true(every - bytes < (size_t)vocab * 48 + (1 << 18) * (size_t)threads);
    char *memory = aligned_alloc(64, every + 64);
    assert_non_null(memory);
    for (int32_t now = rows; now > 0; now = now == 1 ? 0 : now / 2) {
        int32_t tokens[MOST_ROWS * SAMPLES], rank[MOST_ROWS * SAMPLES];
        c->batch.rows = now;
        assert_int_equal(fs_context_set_work(context, NULL, 0), FS_OK);
        memset(c->tokens, 0x77, sizeof c->tokens), memset(c->rank, 0x77, sizeof c->rank);
        assert_int_equal(fs_sample(context, &c->head, &c->batch, &c->result), FS_OK);
        assert_int_equal(count_incomplete(c), 0);
        const int64_t again = counters_of(context).fallback_rows;
        memcpy(tokens, c->tokens, sizeof tokens), memcpy(rank, c->rank, sizeof rank);

        if (draw_with(context, c, memory, every) != FS_OK) fail_msg("%s", fs_error_text(context));
        if (count_incomplete(c))
            fail_msg("rules %d, %d threads, %d of %d rows of %d: %lld incomplete", rules, threads, now, rows, vocab,
                     (long long)count_incomplete(c));
        assert_memory_equal(tokens, c->tokens, sizeof tokens);
        assert_memory_equal(rank, c->rank, sizeof rank);
        assert_int_equal(draw_with(context, c, memory, bytes), FS_OK);
        /* The call that was asked for needs all of it, if there was a second pass of the row with the most edits; but
         * that stored logits take less, where no row is in doubt. */
        if (now == rows && again == rows && every > bytes && rules > 1)
            assert_true(draw_with(context, c, memory, every - 64) != FS_OK || count_incomplete(c) > 0);
    }
    fs_context_destroy(context);
    free(memory);
    free_call(c);
}

static void every_row_has_its_second_pass(void **state) {
    (void)state;
    static const struct {
        int32_t threads, rows, vocab;
    } sizes[] = {{1, 1, V}, {2, 5, V}, {3, MOST_ROWS, 20000}, {5, 6, 3000}, {2, 3, 300}};
    make_shapes();
    int at = 0;
    for (int rules = 0; rules < RULES; rules++)
        for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++)
            if (at++ % (int)(5 / test_size(5)) == 0)
                sizes_are_enough_and_not_too_much(rules, sizes[i].threads, sizes[i].rows, sizes[i].vocab);
}

/* From 8,192 rows on blocks do not get shorter. */
static void many_rows_have_enough(void **state) {
    (void)state;
    enum { ROWS = 20000, SOME = 24 };
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    fs_result result = fs_result_default();
    int32_t *tokens = malloc(sizeof *tokens * ROWS);
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    size_t bytes = 0, every = 0;
    float *stored = calloc((size_t)ROWS * SOME, sizeof *stored);
    assert_true(tokens && stored);
    head.kind = FS_HEAD_LOGITS, head.data = stored, head.rows = SOME;
    batch.rows = ROWS;
    result.tokens = tokens;
    assert_int_equal(fs_work_size(context, &head, &batch, &result, &bytes, &every), FS_OK);
    void *memory = aligned_alloc(64, bytes);
    assert_non_null(memory);
    assert_int_equal(fs_context_set_work(context, memory, bytes), FS_OK);
    for (int64_t rows = ROWS; rows > 0; rows -= 1900) {
        batch.rows = rows;
        if (fs_sample(context, &head, &batch, &result) != FS_OK) fail_msg("%s", fs_error_text(context));
    }
    fs_context_destroy(context);
    free(memory), free(stored), free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_its_second_pass),
        cmocka_unit_test(many_rows_have_enough),
    };
    return cmocka_run_group_tests_name("work_size", tests, NULL, NULL);
}
