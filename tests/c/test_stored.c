/* Rows that end by their stored logits (cpu_stored.h): nuclei of more tokens than a list holds, stored in a second pass
 * at first and in the first one from then on. Whatever is stored, tokens are the reference's. */
#include "counted.h"
#include "cpu/cpu_pass.h"

enum { VOCAB = 9001, ROWS = 16, SHAPES = 8, SAMPLES = 3, EDITS = 20 };

typedef float logits_of(rng *r, int64_t v);

/* Nuclei of some 5,000 tokens, and of nearly all. */
static float wide(rng *r, int64_t v) {
    (void)v;
    return (float)random_normal(r);
}
static float flat(rng *r, int64_t v) {
    (void)r, (void)v;
    return 1.0f;
}
static float hot_first(rng *r, int64_t v) {
    return (float)(random_normal(r) - 0.6 * log1p((double)v / 32.0));
}
static float hot_last(rng *r, int64_t v) {
    return (float)(random_normal(r) - 0.6 * log1p((double)(VOCAB - 1 - v) / 32.0));
}
/* Of equal logits ids decide which are in a nucleus. */
static float tied(rng *r, int64_t v) {
    (void)v;
    return (float)floor(1.3 * random_normal(r));
}
/* 64 equal tokens, far apart: half of them is a cut that falls between two tokens exactly. */
static float doubtful(rng *r, int64_t v) {
    (void)r;
    return v % 140 == 7 && v < 64 * 140 ? 10.0f : -INFINITY;
}
static float broken(rng *r, int64_t v) {
    return v % 4001 == 77 ? NAN : v % 4003 == 99 ? -INFINITY : (float)random_normal(r);
}
/* A list holds these. */
static float narrow(rng *r, int64_t v) {
    return (float)(random_normal(r) - 2.2 * log1p((double)v / 32.0));
}

static logits_of *const shapes[SHAPES] = {wide, flat, hot_first, hot_last, tied, doubtful, broken, narrow};
static float logits[ROWS * VOCAB];

static fs_head head_of(logits_of *shape, uint64_t seed) {
    rng r = random_from(seed);
    fs_head head = fs_head_default();
    for (int64_t i = 0; i < ROWS * VOCAB; i++) logits[i] = shape(&r, i % VOCAB);
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = VOCAB;
    return head;
}

typedef struct drawn {
    int32_t token[ROWS * SAMPLES];
    uint32_t status[ROWS];
    int64_t again, work_bytes;
} drawn;

static drawn draw(fs_context *context, const fs_head *head, const fs_batch *batch) {
    drawn d;
    fs_result r = fs_result_default();
    memset(&d, 0x77, sizeof d);
    r.tokens = d.token, r.status = d.status;
    if (fs_sample(context, head, batch, &r) != FS_OK) fail_msg("%s", fs_error_text(context));
    d.again = counters_of(context).fallback_rows, d.work_bytes = counters_of(context).work_bytes;
    return d;
}

static void hold_equal(const drawn *got, const drawn *expected, const fs_batch *batch, const char *what) {
    for (int b = 0; b < ROWS; b++) {
        for (int i = 0; i < batch->samples; i++) {
            const int at = b * batch->samples + i;
            if (got->token[at] != expected->token[at])
                fail_msg("%s, row %d, sample %d: %d, the reference %d", what, b, i, got->token[at],
                         expected->token[at]);
        }
        assert_int_equal(got->status[b] & ~(uint32_t)FS_ROW_FALLBACK, expected->status[b]);
    }
}

/* What else a call may ask for. Its rows have rules of their own in some of them. */
static fs_batch batch_of(int i) {
    static float temperature[ROWS], top_p[ROWS], min_p[ROWS];
    static int32_t top_k[ROWS], edit_token[ROWS * EDITS];
    static float edit_bias[ROWS * EDITS];
    static int64_t offset[ROWS + 1];
    static uint32_t allow[ROWS * ((VOCAB + 31) / 32)];
    static const float shares[] = {0.95f, 0.5f, 0.999f, 0.0f};
    rng r = random_from((uint64_t)i);
    fs_batch batch = fs_batch_default();
    batch.rows = ROWS, batch.seed_all = 3;
    rules_of(&batch)->top_p.value = shares[i % 4];
    batch.samples = i % 2 ? SAMPLES : 1;
    if (i % 5 == 1) batch.noise = FS_NOISE_FAST;
    if (i % 5 == 2) {
        for (int b = 0; b <= ROWS; b++) offset[b] = (int64_t)b * EDITS;
        for (int k = 0; k < ROWS * EDITS; k++)
            edit_token[k] = (int32_t)random_below(&r, VOCAB - 64), edit_bias[k] = k % 3 ? 2.0f : -INFINITY;
        batch.edit_offset = offset, batch.edit_token = edit_token, batch.edit_bias = edit_bias;
    }
    if (i % 5 == 3) {
        for (int64_t k = 0; k < (int64_t)(sizeof allow / sizeof *allow); k++) allow[k] = (uint32_t)random_next(&r);
        batch.allow = allow;
    }
    if (i % 5 == 4) {
        for (int b = 0; b < ROWS; b++) {
            temperature[b] = b % 4 == 3 ? 0.0f : b % 4 == 2 ? 2.0f : 1.0f;
            top_p[b] = b % 5 == 4 ? 1.0f : b % 2 ? 0.9f : 0.6f;
            min_p[b] = b % 7 == 3 ? 0.1f : 0.0f;
            top_k[b] = b % 6 == 5 ? 3000 : 0;
        }
        rules_of(&batch)->temperature.per_slot = temperature, rules_of(&batch)->top_p.per_slot = top_p,
        rules_of(&batch)->min_p.per_slot = min_p, rules_of(&batch)->top_k.per_slot = top_k;
    }
    return batch;
}

static void stored_rows_draw_the_references_tokens(void **state) {
    (void)state;
    static const int32_t threads[] = {1, 2, 3, 7}, blocks[] = {0, 128, 512};
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    int64_t first_again = 0, later_again = 0, doubted = 0;
    const int step = test_size(4) < 4 ? 7 : 3;
    for (int s = 0; s < SHAPES; s++) {
        fs_head head = head_of(shapes[s], (uint64_t)s);
        for (int i = s % step; i < 20; i += step) {
            fs_batch batch = batch_of(i);
            char what[64];
            /* A shard that begins inside a granule and ends inside one. */
            head.first_token = i / 3 % 2 && !batch.allow ? 37 : 0;
            head.vocab = head.first_token ? VOCAB + 37 : 0;
            fs_context *cpu = open_context(FS_BACKEND_CPU, threads[i % 4], blocks[i / 3 % 3]);
            /* As if they had been wide: a list would do. */
            if (shapes[s] == doubtful) memset(((fs_cpu *)cpu->state)->wide, 8, FS_KINDS);
            for (int call = 0; call < 3; call++) {
                batch.position_all = (uint64_t)(call + 3 * i);
                const drawn expected = draw(reference, &head, &batch), got = draw(cpu, &head, &batch);
                snprintf(what, sizeof what, "shape %d, rules %d, call %d", s, i, call);
                hold_equal(&got, &expected, &batch, what);
                if (shapes[s] == doubtful && i % 5 < 4) doubted += got.again;
                else if (shapes[s] == wide && i % 5 < 4 && rules_of(&batch)->top_p.value > 0.6f)
                    *(call ? &later_again : &first_again) += got.again;
            }
            fs_context_destroy(cpu);
        }
    }
    /* The rows that need it take a second pass in the first call alone, but for those in doubt. */
    assert_true(first_again > 0);
    assert_int_equal(later_again, 0);
    if (step == 3) assert_true(doubted > 0);
    fs_context_destroy(reference);
}

static const int64_t row_bytes = (int64_t)sizeof(float) * ((VOCAB + 15) / 16 * 16 + (VOCAB / 128 + 1 + 15) / 16 * 16);

/* With room for few rows, with none, and where the memory is refused: the rest takes the second pass. */
static void stored_logits_stay_within_the_budget(void **state) {
    (void)state;
    const fs_head head = head_of(wide, 5);
    fs_batch batch = batch_of(0);
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    for (int i = 0; i < 4; i++) {
        counter c;
        fs_options options = counted_options(&c, FS_BACKEND_CPU);
        fs_context *context = NULL;
        size_t work = 0;
        fs_result result = fs_result_default();
        drawn d;
        result.tokens = d.token, result.status = d.status;
        if (i == 1) options.fallback_bytes = (size_t)(5 * row_bytes);
        assert_int_equal(fs_context_create(&options, &context), FS_OK);
        const size_t idle = c.live;
        assert_int_equal(fs_work_size(context, &head, &batch, &result, &work, NULL), FS_OK);
        for (int call = 0; call < 3; call++) {
            batch.position_all = (uint64_t)call;
            if (i == 2 && call == 1) c.fail_at = c.requests + 1; /* more than the second pass took */
            const drawn expected = draw(reference, &head, &batch);
            d = draw(context, &head, &batch);
            hold_equal(&d, &expected, &batch, "a budget");
            assert_true(c.most - idle - work <= options.fallback_bytes);
            assert_true(d.work_bytes <= (int64_t)(work + options.fallback_bytes));
            if (call == 2 && i != 1) assert_int_equal(d.work_bytes, (int64_t)work + ROWS * row_bytes);
            if (call == 2) assert_true(i == 1 ? d.again > 0 : d.again == 0);
        }
        fs_context_destroy(context);
        assert_int_equal(c.live_blocks, 0);
    }
    fs_context_destroy(reference);
}

/* Rows that nothing is left to be said about by storing them are not stored for long, and the memory is given back. */
static void what_is_not_wide_any_more_is_not_stored(void **state) {
    (void)state;
    counter c;
    fs_options options = counted_options(&c, FS_BACKEND_CPU);
    fs_context *context = NULL;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    fs_batch batch = batch_of(0);
    fs_head head = head_of(wide, 6);
    size_t work = 0;
    fs_result result = fs_result_default();
    drawn nowhere;
    result.tokens = nowhere.token;
    rules_of(&batch)->top_p.value = 0.9f;
    assert_int_equal(fs_work_size(context, &head, &batch, &result, &work, NULL), FS_OK);
    for (int call = 0; call < 40; call++) {
        batch.position_all = (uint64_t)call;
        assert_int_equal(draw(context, &head, &batch).again > 0, call == 0);
    }
    const size_t kept = c.live;
    int64_t stored = 0;
    head = head_of(narrow, 7);
    for (int call = 0; call < 100; call++) {
        batch.position_all = (uint64_t)call;
        const drawn d = draw(context, &head, &batch);
        stored += d.work_bytes > (int64_t)work;
        assert_int_equal(d.again, 0);
    }
    assert_true(stored > 0 && stored < 40);
    assert_true(c.live + ROWS * row_bytes <= kept);
    /* Another kind of rows is another matter: nothing is stored for it at first. */
    head = head_of(wide, 6);
    draw(context, &head, &batch), draw(context, &head, &batch);
    rules_of(&batch)->temperature.value = 1.25f;
    assert_true(draw(context, &head, &batch).again > 0);
    fs_context_destroy(context);
}

/* A list of the caller's own length is a list: nothing is stored in the first pass. */
static void lists_that_are_asked_for_are_kept(void **state) {
    (void)state;
    const fs_head head = head_of(wide, 8);
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    fs_batch batch = batch_of(0);
    batch.list_capacity = 64;
    for (int call = 0; call < 3; call++) {
        batch.position_all = (uint64_t)call;
        assert_true(draw(context, &head, &batch).again > 0);
    }
    fs_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_rows_draw_the_references_tokens),
        cmocka_unit_test(stored_logits_stay_within_the_budget),
        cmocka_unit_test(what_is_not_wide_any_more_is_not_stored),
        cmocka_unit_test(lists_that_are_asked_for_are_kept),
    };
    return cmocka_run_group_tests_name("stored", tests, NULL, NULL);
}
