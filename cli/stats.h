/* stats.h - statistics of draws: chi-squared with pooled bins, total variation, and what they can see. */
#ifndef FS_CLI_STATS_H
#define FS_CLI_STATS_H

#include <stdint.h>

/* Regularised upper incomplete gamma function Q(a, x) = Gamma(a, x) / Gamma(a), a > 0, x >= 0; NaN elsewhere. */
double gamma_q(double a, double x);

/* P(X >= statistic) for X chi-squared with `df` degrees of freedom. */
double chi_squared_p(double statistic, double df);

/* P(|X - n p| at least as large as seen) for X binomial(n, p), two-sided, by adding the smaller tail twice; for counts
 * too small for chi-squared. */
double binomial_p(int64_t seen, int64_t n, double p);

typedef struct fit {
    int64_t n;        /* draws counted */
    int bins;         /* after pooling */
    double statistic; /* chi-squared */
    double p;         /* probability of a statistic this large if the draws are right; 1 with a single bin */
    double tv;        /* total variation between the counts and the probabilities, unpooled */
    double tv_mean;   /* what right draws give on average, from counting noise alone */
    int64_t outside;  /* draws with probability 0: any is an error */
} fit;

/* Fits count [k] to probability [k] (sum 1). Bins with fewer than `least` expected draws are pooled from the rarest up
 * until the pool has as many; the chi-squared tail is trusted from about 20. */
fit fit_counts(const int64_t *count, const double *probability, int64_t k, double least);

/* Any deviation with total variation t moves the statistic by at least 4 n t^2 (Cauchy-Schwarz), its deviation is
 * sqrt(2 df): the t at which that is `sigmas` deviations. */
double detectable_tv(int64_t n, int bins, double sigmas);

/* One draw moves the total variation by at most 1/n, so (McDiarmid) it exceeds its mean by more than this with a
 * probability of at most alpha. */
double tv_slack(int64_t n, double alpha);

#endif
