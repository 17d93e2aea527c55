/* suite.h - statistical tests of any sampler: of the library (test_statistics.c) and of samplers that are wrong on
 * purpose (test_power.c).
 *
 *   suite_library.c  the library as a sampler
 *   suite_planted.c  a plain sampler built from src/core, right, or wrong in exactly one way
 *   suite_law.c      logits to draw from, and the exact law of a draw
 *   suite_p_values.c    p-values, and the line each prints
 *   suite_cases.c    the tests
 *
 * Every p-value is held against SUITE_ALPHA. Seeds are fixed, so a suite that is green stays green. */
#ifndef FS_TESTS_SUITE_H
#define FS_TESTS_SUITE_H

#include "support.h"

#include "stats.h"

/* A right sampler is rejected by one p-value with this probability: 5.3 deviations of a normal. */
#define SUITE_ALPHA 1e-7

/* ------------------------------------------------------------------------------------ what a sampler is asked ---- */

/* Draws that all come from one row of logits. Row b, sample i is named (seed[b], position[b], i, substream[b]). */
typedef struct draws {
    const float *logits; /* [vocab] */
    int64_t vocab;
    int64_t first, last; /* the ids that are there: 0 and vocab, or a shard's */
    fs_rules rule;       /* temperature and cuts */
    uint64_t seed_all;   /* where the arrays are NULL */
    uint32_t substream_all;
    uint32_t flags;
    int32_t mode, noise;
    int64_t group_size;
    int32_t shards; /* above 1: drawn in so many parts that are merged */
    int64_t rows;
    const uint64_t *seed;      /* [rows] or NULL = the scalar, spread */
    const uint64_t *position;  /* [rows] */
    const uint32_t *substream; /* [rows] or NULL */
    int32_t samples;
    int32_t *tokens; /* [rows, samples] */
    float *score;    /* [rows, samples] or NULL */
} draws;

typedef struct sampler {
    void (*draw)(void *self, const draws *d);
    void *self;
} sampler;

/* The library's CPU backend: stored logits where there is one row, a fused head of D = 1 where there are more. */
sampler library_sampler(fs_context *context);

/* What a planted sampler does wrong. */
typedef enum planted_error {
    PLANTED_NOTHING,          /* the control: right, so what is rejected below is rejected for its one error */
    PLANTED_24_BIT_NOISE,     /* -log(-log u) with u on a grid of 2^-24 */
    PLANTED_FAST_LOG,         /* log u with the absolute error of a hardware log2, 2^-22, also near u = 1 */
    PLANTED_LATE_TEMPERATURE, /* the noise is added first and the sum divided */
    PLANTED_DROPPED_BLOCK,    /* 128 tokens never race */
    PLANTED_LOCAL_NOISE,      /* noise is keyed by a token's place in its shard */
    PLANTED_POSITION_IGNORED,
    PLANTED_ROW_SEED_IGNORED,
    PLANTED_SEED_PLUS_SAMPLE,  /* (seed s, sample 1) is (seed s + 1, sample 0) */
    PLANTED_GUESSED_THRESHOLD, /* the race's first threshold is a guess that is never confirmed */
    PLANTED_TOP_P_ONE_MORE,    /* top-p keeps the token after the cut */
    PLANTED_TOP_P_ONE_LESS,    /* top-p drops the last token of the cut */
    PLANTED_TIED_CERTIFICATE,  /* a list is taken as complete down to ties with its bound */
    PLANTED_GROUP_BY_MAX,      /* a group's mass is its largest term */
    PLANTED_ERRORS
} planted_error;

typedef struct planted {
    planted_error error;
} planted;

sampler planted_sampler(planted *self);

/* -------------------------------------------------------------------------------------------- logits and laws ---- */

typedef enum shape {
    SHAPE_FLAT,       /* all equal */
    SHAPE_GAUSS,      /* deviation 2 */
    SHAPE_ZIPF,       /* probability ~ 1 / (1 + id): hot ids first */
    SHAPE_PEAKED,     /* one token of about 0.6, a few more, a Gaussian rest */
    SHAPE_STEPS,      /* two values, a quarter of the ids on the upper one: ties everywhere */
    SHAPE_DEAD_GROUP, /* Gaussian, ids 34 to 50 are -inf */
    SHAPE_TAIL        /* one head token, all others share TAIL_MASS */
} shape;

#define TAIL_MASS 0.001

void shape_fill(shape s, float *logits, int64_t vocab);

/* The exact law of one token [vocab] after temperature and cuts, by sorting and summing in double. */
void law_of(const draws *d, double *law);
/* log of the sum of exp(l) over [first, last). */
double law_log_mass(const draws *d);
/* Ordered pairs without replacement: law[i * vocab + j] = p_i p_j / (1 - p_i). */
void law_of_pairs_without_replacement(const double *single, int64_t vocab, double *law);

/* --------------------------------------------------------------------------------------------------- p-values ---- */

/* What one test has found so far. */
typedef struct findings {
    const char *name;
    int loud;     /* print a line for each p-value */
    double p;     /* the smallest, 0 when something impossible was drawn */
    int p_values; /* how many were taken */
} findings;

static inline int rejects(const findings *found) {
    return !(found->p >= SUITE_ALPHA);
}

/* Counts [k] against their law: chi-squared, total variation, and nothing outside the support. */
void test_counts(findings *found, const char *what, const int64_t *count, const double *law, int64_t k);
void test_binomial(findings *found, const char *what, int64_t seen, int64_t n, double p);
/* Whether u [n], which is sorted here, is uniform in (0, 1): Kolmogorov-Smirnov. */
void test_uniform(findings *found, const char *what, double *u, int64_t n);
/* A sum of `bins` squares over n things counted that is chi-squared with `df` degrees of freedom. */
void test_chi_squared(findings *found, const char *what, int64_t n, int bins, double statistic, double df);
/* P(sqrt(n) D > lambda) for large n. */
double kolmogorov_p(double lambda);

/* -------------------------------------------------------------------------------------------------- the tests ---- */

/* Which two draws of a pair test are compared: b's name is a's, moved by this. */
typedef struct move {
    uint64_t seed, position;
    uint32_t substream;
    int32_t sample_a, sample_b;
    int spread; /* rows 2i and 2i + 1 under one scalar seed */
    int shard;  /* the same name, on the lower and on the upper half of the ids */
} move;

typedef struct suite_case {
    const char *name; /* a sentence */
    const char *tag;  /* a word, for the table of errors */
    void (*run)(const struct suite_case *c, const sampler *s, int64_t n, findings *found);
    int64_t n;       /* draws (or pairs) of the library */
    int64_t power_n; /* draws of a sampler with a planted error */
    shape shape;
    int64_t vocab;
    float temperature;
    int32_t top_k;
    float top_p, min_p;
    uint32_t flags;
    int32_t mode, shards;
    int64_t group_size;
    move move;
} suite_case;

#define SUITE_CASES 35
extern const suite_case suite_cases[SUITE_CASES];

/* Draws n tokens as the case asks and counts them; count [vocab]. */
void suite_count(const suite_case *c, const sampler *s, int32_t noise, int64_t n, int64_t *count);
/* Draws of this case, without names and without room for tokens; suite_free frees its logits. */
draws suite_draws(const suite_case *c);
void suite_free(draws *d);

/* A case's draws as a call of the library: its batch, and its head for ids [from, to). One row is a row of stored
 * logits; for more, W is the logits and every hidden state is 1. */
static inline fs_batch suite_batch(const draws *d) {
    fs_batch batch = fs_batch_default();
    batch.rows = d->rows;
    batch.mode = d->mode;
    batch.noise = d->noise;
    batch.flags = d->flags;
    batch.samples = d->samples;
    batch.group_size = d->group_size;
    batch.rules = &d->rule;
    batch.seed_all = d->seed_all;
    batch.substream_all = d->substream_all;
    batch.seed = d->seed;
    batch.position = d->position;
    batch.substream = d->substream;
    return batch;
}

static inline fs_head suite_head(const draws *d, int64_t from, int64_t to) {
    fs_head head = fs_head_default();
    head.kind = d->rows == 1 ? FS_HEAD_LOGITS : FS_HEAD_WEIGHTS;
    head.data = d->logits + from;
    head.rows = to - from;
    head.dim = 1;
    head.first_token = from;
    head.vocab = d->vocab;
    return head;
}

/* Zeroed; the test fails where there is no memory. */
void *new_array(int64_t count, size_t size);

#endif
