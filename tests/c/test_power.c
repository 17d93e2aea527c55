/* test_power.c - the suite must reject a sampler that is wrong in one way, for each way we could think of, and must not
 * reject the same sampler without the error. */
#include "suite.h"

typedef struct planted_test {
    planted_error error;
    const char *name;
    const char *caught_by[4]; /* tags of tests that must reject it; others may */
    int rare;                 /* those tests need a third of the draws that the library gets */
    char rejected_by[400];
} planted_test;

/* On request every test is run on every error, and a table says which reject it (docs/explain/exactness.md). */
static int wants_table(void) {
    return getenv("FLASHSAMPLING_TEST_TABLE") != NULL;
}

static planted_test planted_tests[PLANTED_ERRORS] = {
    {PLANTED_NOTHING, "nothing (control)", {NULL}, 0, ""},
    {PLANTED_24_BIT_NOISE, "24-bit noise", {"tail", "tail mass"}, 0, ""},
    {PLANTED_FAST_LOG, "fast log near 1", {"tail", "tail mass"}, 0, ""},
    {PLANTED_LATE_TEMPERATURE, "temperature after noise", {"cold", "hot"}, 0, ""},
    {PLANTED_DROPPED_BLOCK, "a dropped block", {"flat", "gauss", "zipf", "peaked"}, 0, ""},
    {PLANTED_LOCAL_NOISE, "noise shared between shards", {"shards", "shard pairs"}, 0, ""},
    {PLANTED_POSITION_IGNORED, "position ignored", {"positions", "high positions"}, 0, ""},
    {PLANTED_ROW_SEED_IGNORED, "row seed ignored", {"rows", "seeds"}, 0, ""},
    {PLANTED_SEED_PLUS_SAMPLE, "(seed s, sample 1) = (seed s + 1, sample 0)", {"sample/seed"}, 0, ""},
    {PLANTED_GUESSED_THRESHOLD, "a guessed threshold never confirmed", {"flat", "gauss", "zipf", "peaked"}, 1, ""},
    {PLANTED_TOP_P_ONE_MORE, "top-p keeps one token more", {"top-p", "flat top-p", "k then p"}, 0, ""},
    {PLANTED_TOP_P_ONE_LESS, "top-p keeps one token less", {"top-p", "k then p"}, 0, ""},
    {PLANTED_TIED_CERTIFICATE, "a certificate that accepts ties", {"ties"}, 0, ""},
    {PLANTED_GROUP_BY_MAX, "a group's mass is its largest term", {"parallel", "online", "merged"}, 0, ""},
};

static int expected(const planted_test *t, const char *tag) {
    for (int i = 0; i < 4 && t->caught_by[i]; i++)
        if (strcmp(t->caught_by[i], tag) == 0) return 1;
    return 0;
}

/* Runs on the planted sampler the tests that must reject it, and returns how many do not; on the control all of
 * them. */
static int count_missing(planted_test *t) {
    planted self = {t->error};
    const sampler s = planted_sampler(&self);
    int missing = 0;
    for (int i = 0; i < 4 && t->caught_by[i]; i++) missing++;
    for (int i = 0; i < SUITE_CASES; i++) {
        const suite_case *c = &suite_cases[i];
        const int decides = expected(t, c->tag);
        if (!decides && t->error != PLANTED_NOTHING && !wants_table()) continue;
        findings found = {.name = c->tag, .p = 1.0};
        int64_t n = t->rare && decides ? c->n / 3 : c->power_n;
        c->run(c, &s, (int64_t)test_size((uint64_t)n), &found);
        size_t used = strlen(t->rejected_by);
        if (rejects(&found))
            snprintf(t->rejected_by + used, sizeof t->rejected_by - used, "%s%s", used ? ", " : "", c->tag);
        missing -= decides && rejects(&found);
    }
    return missing;
}

static void needs_all_draws(void) {
    if (test_size(1000) >= 1000) return;
    print_message("skip: FLASHSAMPLING_TEST_SCALE is below 1: too few draws to reject a planted error\n");
    skip();
}

static void suite_rejects(void **state) {
    planted_test *t = *state;
    needs_all_draws();
    assert_non_null(t->caught_by[0]);
    const int missing = count_missing(t);
    if (missing)
        fail_msg("%s: rejected by %s; %d tests that should reject it do not", t->name, t->rejected_by, missing);
}

static void suite_does_not_reject_the_control(void **state) {
    (void)state;
    count_missing(&planted_tests[PLANTED_NOTHING]);
    assert_string_equal(planted_tests[PLANTED_NOTHING].rejected_by, "");
}

/* ------------------------------------------------------------------------------------------------ the control ---- */

/* How many of n draws of the case two samplers make differently. */
static int64_t differing(const suite_case *c, const sampler *a, const sampler *b, int64_t n) {
    enum { ROWS = 512 };
    static int32_t tokens[2][2 * ROWS];
    uint64_t position[ROWS];
    int64_t differ = 0;
    draws d = suite_draws(c);
    d.rows = c->mode == FS_MODE_SAMPLE ? 1 : ROWS;
    d.samples = c->mode == FS_MODE_SAMPLE ? 2 * ROWS : c->mode == FS_MODE_WITHOUT_REPLACEMENT ? 2 : 1;
    d.position = position;
    for (int64_t done = 0; done < n; done += d.rows * d.samples) {
        for (int64_t i = 0; i < d.rows; i++) position[i] = (uint64_t)(done + i);
        for (int which = 0; which < 2; which++) {
            const sampler *s = which ? b : a;
            d.tokens = tokens[which];
            s->draw(s->self, &d);
        }
        for (int64_t i = 0; i < d.rows * d.samples; i++) differ += tokens[0][i] != tokens[1][i];
    }
    suite_free(&d);
    return differ;
}

/* What is planted is planted in the real thing. */
static void control_draws_the_librarys_tokens(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_CPU, 1, 0);
    planted none = {PLANTED_NOTHING};
    const sampler control = planted_sampler(&none), library = library_sampler(context);
    for (int i = 0; i < SUITE_CASES; i++) {
        const suite_case *c = &suite_cases[i];
        int64_t differ = differing(c, &control, &library, (int64_t)test_size(c->shape == SHAPE_TAIL ? 1024 : 4096));
        if (differ) fail_msg("%s: %lld tokens differ", c->name, (long long)differ);
    }
    fs_context_destroy(context);
}

static void a_guessed_threshold_is_wrong_in_few_rows(void **state) {
    (void)state;
    planted none = {PLANTED_NOTHING}, guess = {PLANTED_GUESSED_THRESHOLD};
    const sampler control = planted_sampler(&none), planted_one = planted_sampler(&guess);
    const int64_t n = 1024 * (int64_t)test_size(32);
    for (int i = 0; i < 4; i++) {
        double wrong = (double)differing(&suite_cases[i], &control, &planted_one, n) / (double)n;
        print_message("# guessed threshold, %s: wrong in %.2f %% of rows\n", suite_cases[i].tag, 100.0 * wrong);
        /* The guess fails in exp(-4) = 1.8 %% of rows, and not every one of those has another winner. */
        assert_true(wrong < 0.025);
    }
}

static int print_table(void **state) {
    (void)state;
    if (wants_table()) print_message("# %-44s rejected by\n", "planted error");
    for (int i = 0; i < PLANTED_ERRORS && wants_table(); i++)
        print_message("# %-44s %s\n", planted_tests[i].name,
                      planted_tests[i].rejected_by[0] ? planted_tests[i].rejected_by : "-");
    return 0;
}

#define REJECTS(error, sentence)                                                                                       \
    { sentence, suite_rejects, NULL, NULL, &planted_tests[error] }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_draws_the_librarys_tokens),
        cmocka_unit_test(suite_does_not_reject_the_control),
        REJECTS(PLANTED_24_BIT_NOISE, "suite_rejects_24_bit_noise"),
        REJECTS(PLANTED_FAST_LOG, "suite_rejects_a_fast_log_near_1"),
        REJECTS(PLANTED_LATE_TEMPERATURE, "suite_rejects_temperature_after_noise"),
        REJECTS(PLANTED_DROPPED_BLOCK, "suite_rejects_a_dropped_block"),
        REJECTS(PLANTED_LOCAL_NOISE, "suite_rejects_noise_shared_between_shards"),
        REJECTS(PLANTED_POSITION_IGNORED, "suite_rejects_a_position_ignored"),
        REJECTS(PLANTED_ROW_SEED_IGNORED, "suite_rejects_a_row_seed_ignored"),
        REJECTS(PLANTED_SEED_PLUS_SAMPLE, "suite_rejects_a_sample_that_is_the_next_seed"),
        REJECTS(PLANTED_GUESSED_THRESHOLD, "suite_rejects_a_guessed_threshold_never_confirmed"),
        REJECTS(PLANTED_TOP_P_ONE_MORE, "suite_rejects_top_p_with_one_token_more"),
        REJECTS(PLANTED_TOP_P_ONE_LESS, "suite_rejects_top_p_with_one_token_less"),
        REJECTS(PLANTED_TIED_CERTIFICATE, "suite_rejects_a_certificate_that_accepts_ties"),
        REJECTS(PLANTED_GROUP_BY_MAX, "suite_rejects_a_group_mass_that_is_its_largest_term"),
        cmocka_unit_test(a_guessed_threshold_is_wrong_in_few_rows),
    };
    return cmocka_run_group_tests_name("power", tests, NULL, print_table);
}
