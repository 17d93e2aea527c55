/* test_statistics.c - the suite on the library. One line per p-value: n, bins, the chance of a false alarm and the
 * smallest total variation that shows at 5 deviations. */
#include "suite.h"

#include "core/noise.h"

static fs_context *context;
static int p_values;

static void run_case(void **state) {
    const suite_case *c = *state;
    const sampler s = library_sampler(context);
    findings found = {.name = c->tag, .loud = 1, .p = 1.0};
    c->run(c, &s, (int64_t)test_size((uint64_t)c->n), &found);
    p_values += found.p_values;
    if (rejects(&found)) fail_msg("%s: p = %g is below %g", c->name, found.p, SUITE_ALPHA);
}

/* noise_gumbel_fast, as a function of its random word. */
static float fast_gumbel(uint32_t word) {
    float u = ((float)word + 1.0f) * 2.3283064365386963e-10f;
    if (u > 0.99999994f) u = 0.99999994f;
    return -logf(-logf(u));
}

/* The probability that fast-math noise draws from the tail of SHAPE_TAIL, to three digits: a sum over the words the
 * largest of `tokens` tail tokens can have. Words of an aligned run of 128 are the same float. */
static double fast_tail(int64_t tokens) {
    const double logit = (double)(float)log(TAIL_MASS / (1.0 - TAIL_MASS) / (double)tokens);
    double drawn = 0.0, above = 1.0; /* P(no tail token has a larger word) */
    for (uint32_t below = 0; below < 1u << 26; below += 128) {
        double at = exp((double)tokens * log1p(-((double)below + 128.0) / 4294967296.0));
        double head_is_lower = exp(-exp(-(logit + (double)fast_gumbel(UINT32_MAX - below - 64))));
        drawn += (above - at) * head_is_lower;
        above = at;
    }
    return drawn;
}

/* Appendix C's noise ends at 16.6 and is coarse before that. How far off its draws are is printed, not tested. */
static void fast_math_noise_is_measured(void **state) {
    (void)state;
    static const suite_case zipf = {.tag = "fast-math zipf", .shape = SHAPE_ZIPF, .vocab = 1009};
    const sampler s = library_sampler(context);
    int64_t *count = new_array(zipf.vocab, sizeof *count);
    double *law = new_array(zipf.vocab, sizeof *law);
    draws d = suite_draws(&zipf);
    findings found = {.name = zipf.tag, .loud = 1, .p = 1.0};
    for (uint32_t token = 0; token < 1000; token++) {
        fs_noise noise = noise_row(1, 2, 3, 4);
        float g = fast_gumbel(noise_words(noise, token >> 2, FS_DOMAIN_FAST).w[token & 3]);
        assert_true(g == noise_gumbel_fast(noise, token));
    }
    for (int64_t tokens = 1500; tokens < 300000; tokens *= 10)
        print_message("# fast-math tail: %lld tokens of mass %g together are drawn with probability %.3g (computed)\n",
                      (long long)tokens, TAIL_MASS, fast_tail(tokens));
    law_of(&d, law);
    suite_count(&zipf, &s, FS_NOISE_FAST, (int64_t)test_size(100000), count);
    test_counts(&found, "tokens, not tested", count, law, zipf.vocab);
    suite_free(&d);
    free(count);
    free(law);
}

static void the_suite_rarely_rejects_a_right_sampler(void **state) {
    (void)state;
    print_message(
        "# %d p-values, each rejects a right sampler with probability %.0e: false alarm of the suite at most %.1e\n",
        p_values, SUITE_ALPHA, p_values * SUITE_ALPHA);
    assert_true(p_values * SUITE_ALPHA < 2e-5);
}

static int open_library(void **state) {
    (void)state;
    /* Short blocks: how they are merged is tested too. */
    context = open_context(FS_BACKEND_CPU, 1, 128);
    return 0;
}

static int close_library(void **state) {
    (void)state;
    fs_context_destroy(context);
    return 0;
}

int main(void) {
    struct CMUnitTest tests[SUITE_CASES + 2] = {{0}};
    for (int i = 0; i < SUITE_CASES; i++) {
        tests[i].name = suite_cases[i].name;
        tests[i].test_func = run_case;
        tests[i].initial_state = (void *)(uintptr_t)&suite_cases[i];
    }
    const struct CMUnitTest last[2] = {cmocka_unit_test(fast_math_noise_is_measured),
                                       cmocka_unit_test(the_suite_rarely_rejects_a_right_sampler)};
    tests[SUITE_CASES] = last[0];
    tests[SUITE_CASES + 1] = last[1];
    return cmocka_run_group_tests_name("statistics", tests, open_library, close_library);
}
