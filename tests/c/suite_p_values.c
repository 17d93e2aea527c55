/* suite_p_values.c - p-values, and the line each of them prints: n, bins, the chance of a false alarm, what it can
 * see. */
#include "suite.h"

/* The chi-squared tail is trusted at SUITE_ALPHA when no bin expects fewer draws than this. */
#define LEAST_EXPECTED 20.0

static void take(findings *found, double p) {
    found->p_values++;
    if (!(p >= found->p)) found->p = p;
}

void test_counts(findings *found, const char *what, const int64_t *count, const double *law, int64_t k) {
    fit f = fit_counts(count, law, k, LEAST_EXPECTED);
    int wide = f.tv - f.tv_mean > tv_slack(f.n, SUITE_ALPHA);
    if (found->loud)
        print_message(
            "# %s, %s: n %lld, %d bins, p %.3g, total variation %.2g (counting alone gives %.2g), %lld outside; "
            "false alarm %.0e, sees %.2g at 5 sigma\n",
            found->name, what, (long long)f.n, f.bins, f.p, f.tv, f.tv_mean, (long long)f.outside, 2.0 * SUITE_ALPHA,
            detectable_tv(f.n, f.bins, 5.0));
    take(found, f.outside ? 0.0 : f.p);
    /* McDiarmid gives no p-value, only that a right sampler passes all but once in 1 / SUITE_ALPHA. */
    take(found, wide ? 0.0 : 1.0);
}

void test_binomial(findings *found, const char *what, int64_t seen, int64_t n, double p) {
    double chance = binomial_p(seen, n, p);
    if (found->loud)
        print_message(
            "# %s, %s: n %lld, 2 bins, p %.3g, %lld seen, %.1f expected; false alarm %.0e, sees %.2g at 5 sigma, "
            "%.0f %% of it\n",
            found->name, what, (long long)n, chance, (long long)seen, (double)n * p, SUITE_ALPHA,
            5.0 * sqrt(p * (1.0 - p) / (double)n), 500.0 * sqrt((1.0 - p) / p / (double)n));
    take(found, chance);
}

double kolmogorov_p(double lambda) {
    double sum = 0.0, sign = 1.0;
    if (lambda < 0.2) return 1.0;
    for (int k = 1; k < 200; k++) {
        double term = exp(-2.0 * k * k * lambda * lambda);
        sum += sign * term;
        sign = -sign;
        if (term < 1e-18 * sum) break;
    }
    return fmin(1.0, 2.0 * sum);
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void test_uniform(findings *found, const char *what, double *u, int64_t n) {
    double distance = 0.0;
    qsort(u, (size_t)n, sizeof *u, ascending);
    for (int64_t i = 0; i < n; i++) {
        double above = (double)(i + 1) / (double)n - u[i], below = u[i] - (double)i / (double)n;
        distance = fmax(distance, fmax(above, below));
    }
    /* Stephens's correction for finite n. */
    double root = sqrt((double)n), p = kolmogorov_p((root + 0.12 + 0.11 / root) * distance);
    if (found->loud)
        /* 2.74 is where the tail is that of 5 deviations. The distance is a lower bound of the total variation. */
        print_message(
            "# %s, %s: n %lld, Kolmogorov-Smirnov, p %.3g, distance %.2g; false alarm %.0e, sees %.2g at 5 sigma\n",
            found->name, what, (long long)n, p, distance, SUITE_ALPHA, 2.74 / root);
    take(found, p);
}

void test_chi_squared(findings *found, const char *what, int64_t n, int bins, double statistic, double df) {
    double p = chi_squared_p(statistic, df);
    if (found->loud)
        print_message("# %s, %s: n %lld, %d bins, p %.3g; false alarm %.0e, sees %.2g at 5 sigma\n", found->name, what,
                      (long long)n, bins, p, SUITE_ALPHA, detectable_tv(n, bins, 5.0));
    take(found, p);
}
