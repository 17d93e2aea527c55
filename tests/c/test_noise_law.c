/* test_noise_law.c - the noise has the law it should have: exponentials that are independent and reach far down,
 * marks that are independent coin tosses. What the noise is, bit for bit, is test_vectors.c. */
#include "suite.h"

#include "core/mass.h"
#include "core/noise.h"

static int p_values;

static findings findings_of(const char *name) {
    findings found = {.name = name, .loud = 1, .p = 1.0};
    return found;
}

static void conclude(const findings *found) {
    p_values += found->p_values;
    if (rejects(found)) fail_msg("%s: p = %g is below %g", found->name, found->p, SUITE_ALPHA);
}

static int64_t size(uint64_t full) {
    return (int64_t)test_size(full);
}

/* ----------------------------------------------------------------------------------------- the Binomial table ---- */

/* A natural number below 2^1056, least limb first. */
#define LIMBS 33
typedef struct big {
    uint32_t limb[LIMBS];
} big;

static void big_multiply(big *a, uint32_t by) {
    uint64_t carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        carry += (uint64_t)a->limb[i] * by;
        a->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* Returns the remainder. */
static uint32_t big_divide(big *a, uint32_t by) {
    uint64_t rest = 0;
    for (int i = LIMBS - 1; i >= 0; i--) {
        rest = rest << 32 | a->limb[i];
        a->limb[i] = (uint32_t)(rest / by);
        rest %= by;
    }
    return (uint32_t)rest;
}

static void big_add(big *a, const big *b) {
    uint64_t carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        carry += (uint64_t)a->limb[i] + b->limb[i];
        a->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* P(Binomial(128, 1/256) = i) = choose(128, i) 255^(128 - i) / 2^1024, so the i-th threshold is bits 960 to 1023 of
 * the sum of the numerators up to i. */
static void binomial_thresholds_are_exact(void **state) {
    (void)state;
    big term = {{1}}, sum = {{0}};
    for (int i = 0; i < 128; i++) big_multiply(&term, 255);
    for (int i = 0; i < 16; i++) {
        big_add(&sum, &term);
        assert_int_equal(sum.limb[32], 0);
        uint64_t threshold = (uint64_t)sum.limb[31] << 32 | sum.limb[30];
        assert_int_equal(noise_mark_count(threshold - 1), i);
        assert_int_equal(noise_mark_count(threshold), i + 1);
        big_multiply(&term, 128 - (uint32_t)i);
        assert_int_equal(big_divide(&term, ((uint32_t)i + 1) * 255), 0);
    }
    assert_int_equal(noise_mark_count(0), 0);
    /* What is above the last threshold has a probability of 2^-62, and is counted as 16. */
    assert_int_equal(noise_mark_count(UINT64_MAX), 16);
}

static void constants_of_the_marks_fit_each_other(void **state) {
    (void)state;
    /* A library may round the last bit otherwise. */
    assert_true(fabs(FS_NOISE_C + log1p(-FS_NOISE_Q)) < 1e-18);
    assert_true(fabs(FS_NOISE_G + log(FS_NOISE_C)) < 2e-15);
}

/* ------------------------------------------------------------------------------------------------------ marks ---- */

static double binomial_of_marks(int i) {
    return exp(lgamma(129.0) - lgamma(i + 1.0) - lgamma(129.0 - i) + i * log(FS_NOISE_Q) +
               (128 - i) * log1p(-FS_NOISE_Q));
}

/* Of unordered pairs i < k of 128 places. */
static int pair_index(int i, int k) {
    return k * (k - 1) / 2 + i;
}

typedef struct tally {
    int64_t size[17], place[128], pair[8128];
    int64_t prefix[4096];        /* lower 12 bits */
    int64_t upper[128 * 16];     /* place, upper 4 bits of the prefix */
    int64_t lower[128 * 16];     /* place, lower 4 bits of the prefix */
    int64_t neighbours[16 * 16]; /* upper 4 bits of the first and of the second prefix */
} tally;

static void tally_block(fs_walk walk, tally *t) {
    int at[16];
    uint32_t prefix[16];
    int count = 0;
    while (noise_next(&walk)) {
        at[count] = (int)(walk.token % FS_NOISE_BLOCK);
        prefix[count++] = walk.prefix;
    }
    t->size[count]++;
    for (int i = 0; i < count; i++) {
        t->place[at[i]]++;
        t->prefix[prefix[i] & 4095]++;
        t->upper[at[i] * 16 + (int)(prefix[i] >> 12)]++;
        t->lower[at[i] * 16 + (int)(prefix[i] & 15)]++;
    }
    if (count == 2) t->pair[at[0] < at[1] ? pair_index(at[0], at[1]) : pair_index(at[1], at[0])]++;
    if (count >= 2) t->neighbours[(prefix[0] >> 12) * 16 + (prefix[1] >> 12)]++;
}

/* Places are marked independently with probability q each: their standardised counts have a chi-squared sum. */
static void test_places(findings *found, const int64_t *place, int64_t blocks) {
    double sum = 0.0, mean = (double)blocks * FS_NOISE_Q;
    for (int i = 0; i < 128; i++)
        sum += ((double)place[i] - mean) * ((double)place[i] - mean) / (mean * (1.0 - FS_NOISE_Q));
    test_chi_squared(found, "places", blocks / 2, 128, sum, 128.0);
}

/* All of these are equally likely. */
static void test_even(findings *found, const char *what, const int64_t *count, int bins) {
    double *law = new_array(bins, sizeof *law);
    for (int i = 0; i < bins; i++) law[i] = 1.0 / bins;
    test_counts(found, what, count, law, bins);
    free(law);
}

static void marks_are_independent_coin_tosses(void **state) {
    (void)state;
    static tally t;
    const int64_t n = size(2000000);
    double law[17];
    findings found = findings_of("marks");
    for (int64_t i = 0; i < n; i++)
        tally_block(noise_walk(noise_row(3, (uint64_t)(i >> 8), 0, 0), (uint32_t)(i & 255)), &t);
    for (int i = 0; i < 17; i++) law[i] = binomial_of_marks(i);
    test_counts(&found, "how many in a block", t.size, law, 17);
    test_places(&found, t.place, n);
    test_even(&found, "where two are", t.pair, 8128);
    test_even(&found, "prefixes, lower bits", t.prefix, 4096);
    test_even(&found, "place and upper prefix", t.upper, 128 * 16);
    test_even(&found, "place and lower prefix", t.lower, 128 * 16);
    test_even(&found, "prefixes of two", t.neighbours, 16 * 16);
    conclude(&found);
}

/* Marks of a block are hardly ever more than four; a walk to sixteen needs more calls and passes over places that are
 * taken. A place's count is Binomial(n, 1/8) and two places have the correlation -1/127. */
static void large_subsets_are_uniform(void **state) {
    (void)state;
    static int64_t last[128 * 16], prefix[16 * 16], calls[16 * 16];
    const int64_t n = size(200000);
    int64_t place[128] = {0};
    findings found = findings_of("subsets of sixteen");
    for (int64_t i = 0; i < n; i++) {
        fs_noise noise = noise_row(4, (uint64_t)i, 0, 0);
        fs_walk walk = noise_walk_of(noise, 9, 16, noise_mark_words(noise, 9, 0));
        uint32_t first = 0;
        for (int k = 0; noise_next(&walk); k++) {
            place[walk.token % FS_NOISE_BLOCK]++;
            prefix[k * 16 + (int)(walk.prefix >> 12)]++;
            if (k == 0) first = walk.prefix >> 12;
            if (k == 4) calls[first * 16 + (walk.prefix >> 12)]++; /* the same half of the next call */
        }
        last[walk.token % FS_NOISE_BLOCK * 16 + (walk.prefix >> 12)]++;
    }
    double sum = 0.0, mean = (double)n / 8.0;
    for (int k = 0; k < 128; k++) sum += ((double)place[k] - mean) * ((double)place[k] - mean) / (mean * 7.0 / 8.0);
    test_chi_squared(&found, "places", 16 * n, 128, sum * 127.0 / 128.0, 127.0);
    test_even(&found, "place and prefix of the last", last, 128 * 16);
    test_even(&found, "prefixes of two calls", calls, 16 * 16);
    for (int k = 0; k < 16; k += 5) test_even(&found, "prefix of one of them", prefix + k * 16, 16);
    conclude(&found);
}

/* ----------------------------------------------------------------------------------------------------- values ---- */

/* exp(-E), which is uniform. */
static double uniform_of(double gumbel) {
    return exp(-exp(-gumbel));
}

#define FINE_BINS 4096

static void noise_is_gumbel(void **state) {
    (void)state;
    static int64_t count[FINE_BINS];
    static double law[FINE_BINS];
    const int64_t n = size(1000000);
    double *u = new_array(n, sizeof *u);
    findings found = findings_of("noise");
    for (int64_t i = 0; i < n; i++) {
        u[i] = uniform_of(fs_noise_gumbel(8, (uint64_t)(i / 1000), 1, 2, (uint32_t)(i % 1000) * 151));
        count[(int)(u[i] * FINE_BINS)]++;
    }
    for (int i = 0; i < FINE_BINS; i++) law[i] = 1.0 / FINE_BINS;
    test_counts(&found, "values", count, law, FINE_BINS);
    test_uniform(&found, "values", u, n);
    free(u);
    conclude(&found);
}

/* v = 1 - exp(-E) of a marked token is uniform below q; its octaves are filled evenly down to 2^-28 and beyond,
 * where a 24-bit uniform would have stopped at the second bin from here. */
static void marked_noise_reaches_far_down(void **state) {
    (void)state;
    enum { OCTAVES = 24 };
    const int64_t n = size(2000000);
    int64_t count[OCTAVES] = {0};
    static int64_t middle[256];
    double law[OCTAVES], *w = new_array(n, sizeof *w);
    findings found = findings_of("marked noise");
    int64_t i = 0;
    for (uint32_t block = 0; i < n; block++) {
        fs_noise noise = noise_row(5, block, 0, 0);
        fs_walk walk = noise_walk(noise, block % 2000);
        while (i < n && noise_next(&walk)) {
            double v = -expm1(-exp(-noise_gumbel_given(noise, walk.token, (int32_t)walk.prefix)));
            int octave = -8 - (int)floor(log2(v)) - 1;
            count[octave < OCTAVES - 1 ? octave : OCTAVES - 1]++;
            w[i++] = v / FS_NOISE_Q;
            /* Four bits from the prefix and four from the extension, where they meet. */
            middle[(int)fmod(v / FS_NOISE_Q * 1048576.0, 256.0)]++;
        }
    }
    for (int k = 0; k < OCTAVES; k++) law[k] = ldexp(1.0, -k - (k < OCTAVES - 1));
    test_counts(&found, "octaves below 2^-8", count, law, OCTAVES);
    test_uniform(&found, "values of w", w, n);
    test_even(&found, "bits 13 to 20 of w", middle, 256);
    free(w);
    conclude(&found);
}

static void units_are_centred_and_never_0_or_1(void **state) {
    (void)state;
    fs_words least = {{0xFFF, 0, 0, 0}}, most = {{UINT32_MAX, UINT32_MAX, 0, 0}};
    assert_true(noise_unit(least) == ldexp(0.5, -52));
    assert_true(noise_unit(most) == 1.0 - ldexp(0.5, -52));
    assert_true(isfinite(-log(-log1p(-FS_NOISE_Q * noise_unit(least)))));
    assert_true(isfinite(-log(FS_NOISE_C - log1p(-noise_unit(most)))));
}

static void group_noise_is_gumbel(void **state) {
    (void)state;
    static const uint32_t domains[] = {FS_DOMAIN_GROUP, FS_DOMAIN_ONLINE, FS_DOMAIN_MERGE};
    const int64_t n = size(300000);
    double *u = new_array(n, sizeof *u);
    findings found = findings_of("group noise");
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0; i < n; i++)
            u[i] =
                uniform_of(noise_gumbel_of(noise_row(6, (uint64_t)(i / 100), 0, 0), (uint32_t)(i % 100), domains[k]));
        test_uniform(&found, k == 0 ? "parallel" : k == 1 ? "online" : "merge", u, n);
    }
    free(u);
    conclude(&found);
}

/* ----------------------------------------------------------------------------------------------- independence ---- */

#define SIDE 16

typedef struct pairing {
    const char *what;
    uint32_t other;  /* token + this */
    uint32_t domain; /* or the same index of this domain */
} pairing;

static double partner(const pairing *p, fs_noise noise, uint32_t token) {
    if (p->domain) return uniform_of(noise_gumbel_of(noise, token, p->domain));
    return uniform_of(noise_gumbel(noise, token + p->other));
}

/* Large noise is what decides, so the bins are even in log v, v = 1 - exp(-E). */
static int side_bin(double u) {
    int bin = (int)(-log2(1.0 - u) * 2.0);
    return bin < SIDE ? bin : SIDE - 1;
}

static double side_law(int bin) {
    double upper = exp2(-bin / 2.0), lower = bin < SIDE - 1 ? exp2(-(bin + 1) / 2.0) : 0.0;
    return upper - lower;
}

static void tokens_have_independent_noise(void **state) {
    (void)state;
    static const pairing pairings[] = {
        {"next token", 1, 0},
        {"next block", 128, 0},
        {"16 blocks on", 2048, 0},
        {"token + 2^20", 1u << 20, 0},
        {"group k", 0, FS_DOMAIN_GROUP},
        {"merge k", 0, FS_DOMAIN_MERGE},
        {"online k", 0, FS_DOMAIN_ONLINE},
    };
    const int64_t n = size(200000);
    findings found = findings_of("noise pairs");
    for (size_t k = 0; k < sizeof pairings / sizeof pairings[0]; k++) {
        int64_t count[SIDE * SIDE] = {0};
        double law[SIDE * SIDE];
        for (int64_t i = 0; i < n; i++) {
            fs_noise noise = noise_row(7, (uint64_t)i, 0, 0);
            uint32_t token = (uint32_t)(i % 128);
            double a = uniform_of(noise_gumbel(noise, token)), b = partner(&pairings[k], noise, token);
            count[side_bin(a) * SIDE + side_bin(b)]++;
        }
        for (int i = 0; i < SIDE * SIDE; i++) law[i] = side_law(i / SIDE) * side_law(i % SIDE);
        test_counts(&found, pairings[k].what, count, law, SIDE * SIDE);
    }
    conclude(&found);
}

/* Group modes and top-p are as exact as masses are. */
static void masses_are_within_3e_7(void **state) {
    (void)state;
    const int64_t rows = size(20000);
    double most = 0.0, squares = 0.0;
    rng r = random_from(5);
    for (int64_t i = 0; i < rows; i++) {
        int64_t granules = 1 + (int64_t)random_below(&r, 64);
        double deviation = 0.1 + 10.0 * random_unit(&r), middle = 40.0 * (random_unit(&r) - 0.5);
        long double sum = 0.0L;
        fs_mass mass = mass_empty();
        for (int64_t g = 0; g < granules; g++) {
            float l[FS_GRANULE];
            for (int k = 0; k < FS_GRANULE; k++) {
                l[k] = (float)(middle + deviation * random_normal(&r));
                sum += expl((long double)l[k]);
            }
            mass_add_granule(&mass, l);
        }
        double off = fabs((double)((long double)mass_log(&mass) - logl(sum)));
        most = fmax(most, off);
        squares += off * off;
    }
    print_message("# log of a mass: off by %.2g at most, %.2g in the mean square, %lld rows\n", most,
                  sqrt(squares / (double)rows), (long long)rows);
    assert_true(most < 3e-7);
}

static void these_tests_rarely_reject_right_noise(void **state) {
    (void)state;
    print_message("# %d p-values, each rejects right noise with probability %.0e: false alarm at most %.1e\n", p_values,
                  SUITE_ALPHA, p_values * SUITE_ALPHA);
    assert_true(p_values * SUITE_ALPHA < 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(binomial_thresholds_are_exact),
        cmocka_unit_test(constants_of_the_marks_fit_each_other),
        cmocka_unit_test(marks_are_independent_coin_tosses),
        cmocka_unit_test(large_subsets_are_uniform),
        cmocka_unit_test(noise_is_gumbel),
        cmocka_unit_test(marked_noise_reaches_far_down),
        cmocka_unit_test(units_are_centred_and_never_0_or_1),
        cmocka_unit_test(group_noise_is_gumbel),
        cmocka_unit_test(tokens_have_independent_noise),
        cmocka_unit_test(masses_are_within_3e_7),
        cmocka_unit_test(these_tests_rarely_reject_right_noise),
    };
    return cmocka_run_group_tests_name("noise_law", tests, NULL, NULL);
}
