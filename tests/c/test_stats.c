/* test_stats.c - the command line's statistics against SciPy 1.10.1. The expected values below were printed by
 *   scipy.special.gammaincc(a, x)   scipy.stats.chi2.sf(statistic, df)   2 * min(binom.cdf(k), binom.sf(k - 1))
 * with 17 digits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "stats.h"

#include <math.h>

static void assert_close(double got, double want, double relative) {
    if (!(fabs(got - want) <= relative * fabs(want))) print_error("got %.17g, want %.17g\n", got, want);
    assert_true(fabs(got - want) <= relative * fabs(want));
}

static void gamma_q_equals_scipy(void **state) {
    (void)state;
    static const double table[][3] = {
        {0.5, 0.1, 0.65472084601857683},
        {0.5, 3.0, 0.014305878435429641},
        {0.5, 40.0, 3.7440973842028869e-19},
        {1, 1, 0.36787944117144245},
        {1, 700, 9.8596765437593903e-305},
        {2.5, 0.3, 0.98800324279409368},
        {2.5, 12, 0.0002171129434527233},
        {10, 3, 0.99889751186988451},
        {10, 10, 0.45792971447185232},
        {10, 11.5, 0.28879453954867124},
        {10, 60, 2.8515077555520141e-16},
        {50, 45, 0.75319796559982977},
        {50, 90, 1.6494985017178526e-06},
        {499.5, 499.5, 0.49404987795852789},
        {499.5, 650, 3.3982174965154811e-10},
        {5000, 4900, 0.92205504377348602},
        {5000, 5300, 1.5545115785517534e-05},
        {100000.0, 100000.0, 0.4995794778896348},
        {100000.0, 101500, 1.173684513722169e-06},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_close(gamma_q(table[i][0], table[i][1]), table[i][2], 1e-9);
}

static void gamma_q_edges(void **state) {
    (void)state;
    assert_true(gamma_q(3.0, 0.0) == 1.0);
    assert_true(gamma_q(3.0, INFINITY) == 0.0);
    assert_true(isnan(gamma_q(0.0, 1.0)));
    assert_true(isnan(gamma_q(-1.0, 1.0)));
    assert_true(isnan(gamma_q(1.0, -1.0)));
    assert_true(isnan(gamma_q(NAN, 1.0)));
    assert_true(isnan(gamma_q(1.0, NAN)));
}

static void chi_squared_p_equals_scipy(void **state) {
    (void)state;
    static const double table[][3] = {
        {3.84, 1, 0.050043521248705189},   {0.02, 1, 0.88753708398171505},    {18.3, 10, 0.050109061411462506},
        {100, 10, 5.4497019829205215e-17}, {1000, 900, 0.010994608942135844}, {1200, 1000, 1.2255942330622893e-05},
        {300, 400, 0.99994290311425793},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_close(chi_squared_p(table[i][0], table[i][1]), table[i][2], 1e-10);
}

static void binomial_p_equals_scipy(void **state) {
    (void)state;
    static const struct {
        int64_t seen, n;
        double p, want;
    } table[] = {
        {0, 40000, 0.001, 8.3283512807724969e-18},
        {40, 40000, 0.001, 1},
        {61, 40000, 0.001, 0.0023884087273069289},
        {3, 10, 0.5, 0.34375},
        {9, 10, 0.5, 0.021484375},
        {500300, 1000000, 0.5, 0.54917290591312762},
        {12, 1000000, 1e-06, 1.6631293259613204e-09},
        {1000000, 1000000, 0.99999, 9.0795319619358243e-05},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_close(binomial_p(table[i].seen, table[i].n, table[i].p), table[i].want, 1e-6);
    assert_true(binomial_p(0, 10, 0.0) == 1.0);
    assert_true(binomial_p(1, 10, 0.0) == 0.0);
    assert_true(binomial_p(10, 10, 1.0) == 1.0);
    assert_true(isnan(binomial_p(11, 10, 0.5)));
}

/* Eight bins, 120 draws; with 5 expected draws at least, the three rarest (1.2 + 2.4 + 3.6) become one:
 * scipy.stats.chisquare([5, 5, 8, 19, 31, 52], ...) = (2.0333333333333328, 0.8445137787507828). The mean of the total
 * variation is half the sum of scipy.stats.binom(120, p).expect(|k - 120 p|) / 120. */
static void fit_pools_rare_bins_and_equals_scipy(void **state) {
    (void)state;
    static const int64_t count[8] = {52, 31, 19, 8, 5, 3, 2, 0};
    static const double p[8] = {.4, .25, .15, .08, .06, .03, .02, .01};
    fit f = fit_counts(count, p, 8, 5.0);
    assert_int_equal(f.n, 120);
    assert_int_equal(f.bins, 6);
    assert_close(f.statistic, 2.0333333333333328, 1e-12);
    assert_close(f.p, 0.8445137787507828, 1e-10);
    assert_close(f.tv, 0.05, 1e-12);
    assert_close(f.tv_mean, 0.08010499555622758, 1e-9);
    assert_int_equal(f.outside, 0);
}

static void fit_sees_draws_outside_the_support(void **state) {
    (void)state;
    static const int64_t count[3] = {500, 499, 1};
    static const double p[3] = {.5, .5, 0};
    fit f = fit_counts(count, p, 3, 5.0);
    assert_int_equal(f.outside, 1);
    assert_int_equal(f.bins, 2);
}

static void fit_of_one_bin_has_nothing_to_test(void **state) {
    (void)state;
    static const int64_t count[2] = {10, 0};
    static const double p[2] = {1, 0};
    fit f = fit_counts(count, p, 2, 5.0);
    assert_int_equal(f.bins, 1);
    assert_true(f.p == 1.0);
    assert_true(f.tv == 0.0 && f.tv_mean == 0.0);
}

static void fit_leftover_bin_joins_its_neighbour(void **state) {
    (void)state;
    /* Expected 2, 4, 94: the first two pool to 6 < 10 and take the third along; nothing is left to test. */
    static const int64_t count[3] = {2, 4, 94};
    static const double p[3] = {.02, .04, .94};
    assert_int_equal(fit_counts(count, p, 3, 10.0).bins, 1);
    assert_int_equal(fit_counts(count, p, 3, 3.0).bins, 2);
}

static void fit_rejects_a_planted_deviation(void **state) {
    (void)state;
    /* Total variation 0.02 at n = 100,000 is 160 = 50 deviations of a statistic with 5 degrees of freedom. */
    int64_t count[6];
    double p[6];
    for (int i = 0; i < 6; i++) {
        p[i] = 1.0 / 6.0;
        count[i] = 16667 + (i % 2 ? 667 : -667);
    }
    fit f = fit_counts(count, p, 6, 20.0);
    assert_true(f.p < 1e-20);
    assert_true(detectable_tv(f.n, f.bins, 5.0) < 0.02);
}

static void detectable_tv_is_five_deviations(void **state) {
    (void)state;
    double t = detectable_tv(1000000, 301, 5.0);
    assert_close(4.0 * 1e6 * t * t, 5.0 * sqrt(600.0), 1e-12);
    assert_close(tv_slack(1000000, 1e-6), sqrt(log(1e6) / 2e6), 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gamma_q_equals_scipy),
        cmocka_unit_test(gamma_q_edges),
        cmocka_unit_test(chi_squared_p_equals_scipy),
        cmocka_unit_test(binomial_p_equals_scipy),
        cmocka_unit_test(fit_pools_rare_bins_and_equals_scipy),
        cmocka_unit_test(fit_sees_draws_outside_the_support),
        cmocka_unit_test(fit_of_one_bin_has_nothing_to_test),
        cmocka_unit_test(fit_leftover_bin_joins_its_neighbour),
        cmocka_unit_test(fit_rejects_a_planted_deviation),
        cmocka_unit_test(detectable_tv_is_five_deviations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
