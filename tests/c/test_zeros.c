/* Structs that are zero but for their size, their data and its shape: each is the call that its defaults spell out. */
#include "support.h"

enum { TOKENS = 300, DIM = 24, ROWS = 6, LARGEST = 17 };

typedef struct call {
    fs_head head;
    fs_batch batch;
    fs_result result;
    int64_t token[ROWS * 4]; /* [B, n] of either dtype */
    uint32_t status[ROWS];
} call;

static float weights[TOKENS][DIM], hidden[ROWS][DIM];

static void fill_model(void) {
    rng r = random_from(11);
    for (int i = 0; i < TOKENS * DIM; i++) weights[i / DIM][i % DIM] = (float)random_normal(&r);
    for (int i = 0; i < ROWS * DIM; i++) hidden[i / DIM][i % DIM] = (float)random_normal(&r) / 4;
}

/* A call with nothing but its data. */
static call zeroed(void) {
    call c;
    memset(&c, 0, sizeof c);
    c.head.size = sizeof c.head, c.batch.size = sizeof c.batch, c.result.size = sizeof c.result;
    c.head.data = weights, c.head.rows = TOKENS, c.head.dim = DIM;
    c.batch.rows = ROWS, c.batch.hidden = hidden;
    memset(rules_of(&c.batch), 0, sizeof(fs_rules));
    rules_of(&c.batch)->size = sizeof(fs_rules);
    return c;
}

static call defaulted(void) {
    call c = zeroed();
    c.head = fs_head_default(), c.batch = fs_batch_default(), c.result = fs_result_default();
    c.head.data = weights, c.head.rows = TOKENS, c.head.dim = DIM;
    c.batch.rows = ROWS, c.batch.hidden = hidden;
    rules_of(&c.batch)->temperature.value = 0.0f;
    return c;
}

static void sample(int32_t backend, call *c) {
    fs_context *context = open_context(backend, 2, 0);
    memset(c->token, 0x5A, sizeof c->token);
    c->result.tokens = c->token, c->result.status = c->status;
    if (fs_sample(context, &c->head, &c->batch, &c->result) != FS_OK) fail_msg("%s", fs_error_text(context));
    fs_context_destroy(context);
}

/* Of the call's first int32 tokens. */
static int32_t token_of(const call *c, int i) {
    int32_t token;
    memcpy(&token, (const char *)c->token + 4 * i, sizeof token);
    return token;
}

static const int32_t backends[] = {FS_BACKEND_CPU, FS_BACKEND_REFERENCE};

static void expect_equal_draws(call a, call b) {
    for (int i = 0; i < 2; i++) {
        sample(backends[i], &a);
        sample(backends[i], &b);
        assert_memory_equal(a.token, b.token, sizeof a.token);
        assert_memory_equal(a.status, b.status, sizeof a.status);
    }
}

static void rules_and_limits_that_are_not_there_are_their_defaults(void **state) {
    (void)state;
    call c = defaulted(), without = c;
    *rules_of(&c.batch) = fs_rules_default();
    without.batch.rules = NULL;
    expect_equal_draws(c, without);
    const fs_limits nothing_said = fs_limits_default();
    c.batch.limits = &nothing_said;
    expect_equal_draws(c, without);
}

static void a_zeroed_call_is_greedy(void **state) {
    (void)state;
    call c = zeroed();
    expect_equal_draws(c, defaulted());
    sample(FS_BACKEND_CPU, &c);
    for (int b = 0; b < ROWS; b++) {
        int best = 0;
        double most = -INFINITY;
        for (int v = 0; v < TOKENS; v++) {
            double x = 0.0;
            for (int d = 0; d < DIM; d++) x += (double)weights[v][d] * (double)hidden[b][d];
            if (x > most) most = x, best = v;
        }
        assert_int_equal(token_of(&c, b), best);
        assert_int_equal(c.status[b], FS_ROW_OK);
    }
}

/* Scores of uniform tokens, which a scale of 0 would draw, differ from these in nearly every row. */
static void zeros_of_scalars_draw_as_their_defaults(void **state) {
    (void)state;
    static const int32_t counts[TOKENS] = {[3] = 2, [7] = 1};
    int32_t dense[ROWS][TOKENS];
    for (int s = 0; s < ROWS; s++) memcpy(dense[s], counts, sizeof counts);
    for (uint64_t position = 0; position < 50; position++) {
        call zero = zeroed(), spelled = defaulted();
        rules_of(&zero.batch)->temperature.value = rules_of(&spelled.batch)->temperature.value = 0.9f;
        zero.batch.position_all = spelled.batch.position_all = position;
        zero.batch.counts = spelled.batch.counts = dense[0];
        rules_of(&zero.batch)->presence.value = rules_of(&spelled.batch)->presence.value = 0.5f;
        expect_equal_draws(zero, spelled);
    }
}

static void slots_and_tokens_are_int32_unless_said(void **state) {
    (void)state;
    static const int32_t slot[ROWS] = {5, 4, 3, 2, 1, 0};
    call zero = zeroed(), spelled = defaulted();
    zero.batch.slot = spelled.batch.slot = slot;
    expect_equal_draws(zero, spelled);
}

/* NaN in row 2 alone. */
static void spoil_row(float row[ROWS][DIM]) {
    memcpy(row, hidden, sizeof hidden);
    row[2][0] = NAN;
}

static void a_row_without_a_token_is_minus_one_unless_token_0_is_asked_for(void **state) {
    (void)state;
    static const struct {
        int32_t fallback, expected;
    } table[] = {{0, -1}, {-1, -1}, {FS_FALLBACK_TOKEN_ZERO, 0}, {LARGEST, LARGEST}};
    float spoilt[ROWS][DIM];
    spoil_row(spoilt);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int k = 0; k < 2; k++) {
            call c = zeroed();
            c.batch.hidden = spoilt;
            c.batch.fallback_token = table[i].fallback;
            sample(backends[k], &c);
            assert_int_equal(token_of(&c, 2), table[i].expected);
            assert_int_equal(c.status[2], FS_ROW_EMPTY | FS_ROW_NAN);
            assert_true(token_of(&c, 1) >= 0);
        }
}

/* In an array 0 keeps one token, and so does the smallest scalar; 1.5 is a mistake, and 1 with the rounding of a sum is
 * not. */
static void top_p_means_what_it_says(void **state) {
    (void)state;
    static const struct {
        float top_p;
        uint32_t status;
        int one; /* token stays */
    } table[] = {{0.0f, FS_ROW_OK, 1},         {1e-38f, FS_ROW_OK, 1},          {1.0f, FS_ROW_OK, 0},
                 {1.0000001f, FS_ROW_OK, 0},   {1.000005f, FS_ROW_OK, 0},       {1.0001f, FS_ROW_BAD_TOP_P, 0},
                 {95.0f, FS_ROW_BAD_TOP_P, 0}, {INFINITY, FS_ROW_BAD_TOP_P, 0}, {-0.5f, FS_ROW_BAD_TOP_P, 0}};
    call greedy = zeroed();
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int scalar = 0; scalar < 2; scalar++)
            for (int k = 0; k < 2; k++) {
                float top_p[ROWS];
                for (int s = 0; s < ROWS; s++) top_p[s] = table[i].top_p;
                call c = zeroed();
                rules_of(&c.batch)->temperature.value = 1.0f;
                rules_of(&c.batch)->top_p.value = scalar ? table[i].top_p : 0.0f;
                rules_of(&c.batch)->top_p.per_slot = scalar ? NULL : top_p;
                sample(backends[k], &c);
                sample(backends[k], &greedy);
                const int one = table[i].one && !(scalar && table[i].top_p == 0.0f);
                if (c.status[0] != table[i].status) fail_msg("top_p %g: %x", (double)table[i].top_p, c.status[0]);
                if (table[i].status) assert_int_equal(token_of(&c, 0), -1);
                else if (one) assert_memory_equal(c.token, greedy.token, ROWS * sizeof(int32_t));
                else assert_memory_not_equal(c.token, greedy.token, ROWS * sizeof(int32_t));
            }
}

static void a_description_and_screen_options_may_be_zero(void **state) {
    (void)state;
    const char *why;
    fs_call_desc description = {.size = sizeof description};
    assert_int_equal(fs_supports(FS_BACKEND_CPU, &description, &why), FS_OK);
    fs_context *context = open_context(FS_BACKEND_CPU, 1, 0);
    const call c = zeroed();
    fs_screen_options zero = {.size = sizeof zero}, spelled = fs_screen_options_default();
    size_t bytes[2];
    assert_int_equal(fs_screen_size(context, &c.head, &zero, &bytes[0]), FS_OK);
    assert_int_equal(fs_screen_size(context, &c.head, &spelled, &bytes[1]), FS_OK);
    assert_int_equal(bytes[0], bytes[1]);
    fs_context_destroy(context);
}

static void zeroed_options_have_the_memory_of_the_defaults(void **state) {
    (void)state;
    /* Equal logits make the nucleus as wide as the vocabulary: it takes a second pass, which needs memory. */
    static float flat[TOKENS * 40][DIM];
    static const struct {
        size_t bytes;
        int complete;
    } table[] = {{0, 1}, {(size_t)320 << 20, 1}, {FS_FALLBACK_NONE, 0}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        fs_options options = {.size = sizeof options, .threads = 2, .fallback_bytes = table[i].bytes};
        fs_context *context;
        assert_int_equal(fs_context_create(&options, &context), FS_OK);
        call c = zeroed();
        c.head.data = flat, c.head.rows = TOKENS * 40;
        rules_of(&c.batch)->temperature.value = 1.0f, rules_of(&c.batch)->top_p.value = 0.5f;
        c.result.tokens = c.token, c.result.status = c.status;
        if (fs_sample(context, &c.head, &c.batch, &c.result) != FS_OK) fail_msg("%s", fs_error_text(context));
        uint32_t all = 0;
        for (int b = 0; b < ROWS; b++) all |= c.status[b];
        assert_int_equal((all & FS_ROW_INCOMPLETE) == 0, table[i].complete);
        fs_context_destroy(context);
    }
}

int main(void) {
    fill_model();
    const struct CMUnitTest zeros[] = {
        cmocka_unit_test(rules_and_limits_that_are_not_there_are_their_defaults),
        cmocka_unit_test(a_zeroed_call_is_greedy),
        cmocka_unit_test(zeros_of_scalars_draw_as_their_defaults),
        cmocka_unit_test(slots_and_tokens_are_int32_unless_said),
        cmocka_unit_test(a_row_without_a_token_is_minus_one_unless_token_0_is_asked_for),
        cmocka_unit_test(top_p_means_what_it_says),
        cmocka_unit_test(a_description_and_screen_options_may_be_zero),
        cmocka_unit_test(zeroed_options_have_the_memory_of_the_defaults),
    };
    return cmocka_run_group_tests(zeros, NULL, NULL);
}
