/* stats.c - see stats.h. Checked against SciPy in tests/c/test_stats.c. */
#include "stats.h"

#include <math.h>
#include <stdlib.h>

/* x^a e^-x / Gamma(a) in logs. lgamma of the C library may set a global sign; a > 0 here, so nobody needs it. */
static double gamma_front(double a, double x) {
    return exp(a * log(x) - x - lgamma(a));
}

/* P(a, x) = front / a * (1 + x/(a+1) + x^2/((a+1)(a+2)) + ...): falls fast for x < a + 1. */
static double gamma_series(double a, double x) {
    double term = 1.0 / a, sum = term;
    for (int i = 1; i < 100000 && term > sum * 1e-17; i++) {
        term *= x / (a + i);
        sum += term;
    }
    return gamma_front(a, x) * sum;
}

/* Q(a, x) = front / (x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...))), evaluated forwards by the recurrence for the
 * ratios of successive numerators and denominators; converges fast for x > a + 1. */
static double gamma_fraction(double a, double x) {
    double b = x + 1.0 - a, up = 1e300, down = 1.0 / b, value = down;
    for (int i = 1; i < 100000; i++) {
        double c = -i * (i - a);
        b += 2.0;
        down = 1.0 / (b + c * down);
        up = b + c / up;
        value *= up * down;
        if (fabs(up * down - 1.0) < 1e-16) break;
    }
    return gamma_front(a, x) * value;
}

double gamma_q(double a, double x) {
    if (!(a > 0.0) || !(x >= 0.0) || isinf(a)) return (double)NAN;
    if (x == 0.0) return 1.0;
    if (isinf(x)) return 0.0;
    return x < a + 1.0 ? 1.0 - gamma_series(a, x) : gamma_fraction(a, x);
}

double chi_squared_p(double statistic, double df) {
    return gamma_q(df / 2.0, statistic / 2.0);
}

/* log P(X = i), X binomial(n, p). */
static double binomial_log(double i, double n, double p) {
    double choose = lgamma(n + 1.0) - lgamma(i + 1.0) - lgamma(n - i + 1.0);
    return choose + (i > 0.0 ? i * log(p) : 0.0) + (n - i > 0.0 ? (n - i) * log1p(-p) : 0.0);
}

/* Sum of P(X = i) from `from` away from the mean, until terms no longer matter. */
static double binomial_tail(int64_t from, int64_t step, int64_t n, double p) {
    double sum = 0.0;
    for (int64_t i = from; i >= 0 && i <= n; i += step) {
        double term = exp(binomial_log((double)i, (double)n, p));
        sum += term;
        if (term < sum * 1e-17) break;
    }
    return sum;
}

double binomial_p(int64_t seen, int64_t n, double p) {
    if (seen < 0 || seen > n || !(p >= 0.0) || p > 1.0) return (double)NAN;
    if (p == 0.0) return seen == 0 ? 1.0 : 0.0;
    if (p == 1.0) return seen == n ? 1.0 : 0.0;
    double one_sided = (double)seen < (double)n * p ? binomial_tail(seen, -1, n, p) : binomial_tail(seen, 1, n, p);
    return fmin(1.0, 2.0 * one_sided);
}

/* E|X - n p|, X binomial(n, p), by de Moivre's identity: exact also where a normal deviation would be far off. */
static double binomial_deviation(double n, double p) {
    if (p <= 0.0 || p >= 1.0) return 0.0;
    double next = fmin(floor(n * p) + 1.0, n);
    return 2.0 * next * (1.0 - p) * exp(binomial_log(next, n, p));
}

typedef struct bin {
    double expected;
    int64_t seen;
} bin;

static int by_expected(const void *left, const void *right) {
    double a = ((const bin *)left)->expected, b = ((const bin *)right)->expected;
    return (a > b) - (a < b);
}

/* Pools the sorted bins [k] in place and returns how many are left. */
static int64_t pool(bin *bins, int64_t k, double least) {
    int64_t kept = 0;
    bin sum = {0.0, 0};
    for (int64_t i = 0; i < k; i++) {
        sum.expected += bins[i].expected;
        sum.seen += bins[i].seen;
        if (sum.expected >= least || i + 1 == k) {
            bins[kept++] = sum;
            sum = (bin){0.0, 0};
        }
    }
    /* What is left over at the end has too few: it joins its neighbour. */
    if (kept > 1 && bins[kept - 1].expected < least) {
        bins[kept - 2].expected += bins[kept - 1].expected;
        bins[kept - 2].seen += bins[kept - 1].seen;
        kept--;
    }
    return kept;
}

static void fit_statistic(fit *f, bin *bins, int64_t k, double least) {
    qsort(bins, (size_t)k, sizeof *bins, by_expected);
    int64_t kept = pool(bins, k, least);
    for (int64_t i = 0; i < kept; i++) {
        double off = (double)bins[i].seen - bins[i].expected;
        f->statistic += off * off / bins[i].expected;
    }
    f->bins = (int)kept;
    f->p = kept > 1 ? chi_squared_p(f->statistic, (double)(kept - 1)) : 1.0;
}

fit fit_counts(const int64_t *count, const double *probability, int64_t k, double least) {
    fit f = {.p = (double)NAN};
    bin *bins = malloc((size_t)(k > 0 ? k : 1) * sizeof *bins);
    if (!bins) return f;
    for (int64_t i = 0; i < k; i++) f.n += count[i];
    double n = (double)f.n;
    int64_t used = 0;
    for (int64_t i = 0; i < k; i++) {
        double p = probability[i];
        f.tv += 0.5 * fabs((double)count[i] / n - p);
        f.tv_mean += 0.5 * binomial_deviation(n, p) / n;
        if (p > 0.0) bins[used++] = (bin){n * p, count[i]};
        else f.outside += count[i];
    }
    fit_statistic(&f, bins, used, least);
    free(bins);
    return f;
}

double detectable_tv(int64_t n, int bins, double sigmas) {
    double df = bins > 1 ? bins - 1 : 1;
    return sqrt(sigmas * sqrt(2.0 * df) / (4.0 * (double)n));
}

double tv_slack(int64_t n, double alpha) {
    return sqrt(-log(alpha) / (2.0 * (double)n));
}
