/* suite_cases.c - the tests. Each draws n times and holds counts against an exact law; none looks at how a sampler
 * works. */
#include "suite.h"

/* Rows of one call that draws single tokens, and samples of one call that draws many from one row. */
#define CALL_ROWS 4096
#define CALL_SAMPLES 1024

draws suite_draws(const suite_case *c) {
    float *logits = new_array(c->vocab, sizeof *logits);
    shape_fill(c->shape, logits, c->vocab);
    draws d = {.logits = logits, .vocab = c->vocab, .last = c->vocab, .flags = c->flags, .mode = c->mode};
    d.rule = fs_rules_default();
    d.rule.temperature.value = c->temperature > 0.0f ? c->temperature : 1.0f;
    d.rule.top_k.value = c->top_k;
    d.rule.top_p.value = c->top_p > 0.0f ? c->top_p : 1.0f;
    d.rule.min_p.value = c->min_p;
    d.group_size = c->group_size ? c->group_size : 1;
    d.shards = c->shards ? c->shards : 1;
    d.samples = 1;
    return d;
}

void suite_free(draws *d) {
    free((void *)(uintptr_t)d->logits);
    d->logits = NULL;
}

static void add_tokens(const draws *d, const int32_t *tokens, int64_t n, int64_t *count) {
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= d->vocab) fail_msg("draw %lld is token %d", (long long)i, tokens[i]);
        count[tokens[i]]++;
    }
}

/* One row of stored logits, many samples, advancing positions. */
static void count_samples(draws *d, const sampler *s, int64_t n, int64_t *count) {
    static int32_t tokens[CALL_SAMPLES];
    uint64_t position = 0;
    d->rows = 1;
    d->position = &position;
    d->tokens = tokens;
    for (int64_t done = 0; done < n; done += d->samples, position++) {
        d->samples = n - done < CALL_SAMPLES ? (int32_t)(n - done) : CALL_SAMPLES;
        s->draw(s->self, d);
        add_tokens(d, tokens, d->samples, count);
    }
}

/* Many rows of a fused head, one token each, for modes that draw one; each row has a position of its own and, since the
 * scalar seed is spread, a seed. */
static void count_rows(draws *d, const sampler *s, int64_t n, int64_t *count) {
    static int32_t tokens[CALL_ROWS];
    static uint64_t position[CALL_ROWS];
    d->position = position;
    d->tokens = tokens;
    for (int64_t done = 0; done < n; done += d->rows) {
        d->rows = n - done < CALL_ROWS ? n - done : CALL_ROWS;
        for (int64_t b = 0; b < d->rows; b++) position[b] = (uint64_t)(done + b);
        s->draw(s->self, d);
        add_tokens(d, tokens, d->rows, count);
    }
}

void suite_count(const suite_case *c, const sampler *s, int32_t noise, int64_t n, int64_t *count) {
    draws d = suite_draws(c);
    d.noise = noise;
    d.seed_all = 2026;
    if (c->mode == FS_MODE_SAMPLE) count_samples(&d, s, n, count);
    else count_rows(&d, s, n, count);
    suite_free(&d);
}

/* -------------------------------------------------------------------------------------------------- marginals ---- */

/* Neighbouring ids together: what goes wrong in a block or a shard is spread thin over tokens and thick over ranges. */
static void test_ranges(findings *found, const int64_t *count, const double *law, int64_t vocab) {
    int64_t range_count[16] = {0};
    double range_law[16] = {0};
    for (int64_t v = 0; v < vocab; v++) {
        range_count[v * 16 / vocab] += count[v];
        range_law[v * 16 / vocab] += law[v];
    }
    test_counts(found, "16 ranges of ids", range_count, range_law, 16);
}

static void run_marginal(const suite_case *c, const sampler *s, int64_t n, findings *found) {
    draws d = suite_draws(c);
    int64_t *count = new_array(c->vocab, sizeof *count);
    double *law = new_array(c->vocab, sizeof *law);
    law_of(&d, law);
    suite_count(c, s, FS_NOISE_EXACT, n, count);
    test_counts(found, "tokens", count, law, c->vocab);
    test_ranges(found, count, law, c->vocab);
    free(count);
    free(law);
    suite_free(&d);
}

/* The tail has mass TAIL_MASS as a whole, and no token of it is seen often enough to be tested by itself. */
static void run_tail(const suite_case *c, const sampler *s, int64_t n, findings *found) {
    int64_t *count = new_array(c->vocab, sizeof *count);
    suite_count(c, s, FS_NOISE_EXACT, n, count);
    test_binomial(found, "draws from the tail", n - count[c->vocab / 7], n, TAIL_MASS);
    free(count);
}

/* ------------------------------------------------------------------------------------------------------ pairs ---- */

/* Names of a pair's two draws for a call of CALL_ROWS rows. A pair never meets a name of another pair: its draws are
 * independent of theirs, which the chi-squared law needs. */
typedef struct names {
    uint64_t seed[CALL_ROWS], position[CALL_ROWS];
    uint32_t substream[CALL_ROWS];
} names;

static void name_pairs(const move *m, int second, int64_t done, int64_t rows, names *to) {
    for (int64_t b = 0; b < rows; b++) {
        uint64_t i = (uint64_t)(done + b);
        to->seed[b] = 1000 + 2 * i + (second ? m->seed : 0);
        to->position[b] = 5 + (second ? m->position : 0);
        to->substream[b] = second ? m->substream : 0;
    }
}

static void draw_pairs(const suite_case *c, const sampler *s, draws *d, int64_t done, int64_t rows, int32_t *a,
                       int32_t *b) {
    static names first, second;
    static int32_t tokens[2 * CALL_ROWS];
    const move *m = &c->move;
    d->rows = rows;
    d->samples = 2;
    d->tokens = tokens;
    for (int which = 0; which < 2; which++) {
        names *n = which ? &second : &first;
        name_pairs(m, which, done, rows, n);
        d->seed = n->seed;
        d->position = n->position;
        d->substream = n->substream;
        if (m->shard) {
            d->first = which ? c->vocab / 2 : 0;
            d->last = which ? c->vocab : c->vocab / 2;
        }
        s->draw(s->self, d);
        for (int64_t i = 0; i < rows; i++)
            if (which) b[i] = tokens[2 * i + m->sample_b];
            else a[i] = tokens[2 * i + m->sample_a];
    }
}

/* Rows 2i and 2i + 1 of a batch under one scalar seed and at one position. */
static void draw_spread_pairs(const sampler *s, draws *d, int64_t done, int64_t rows, int32_t *a, int32_t *b) {
    static int32_t tokens[CALL_ROWS];
    static uint64_t position[CALL_ROWS];
    for (int64_t i = 0; i < 2 * rows; i++) position[i] = 7;
    d->seed_all = 90 + (uint64_t)done;
    d->rows = 2 * rows;
    d->position = position;
    d->tokens = tokens;
    s->draw(s->self, d);
    for (int64_t i = 0; i < rows; i++) a[i] = tokens[2 * i], b[i] = tokens[2 * i + 1];
}

/* The law of token pairs that are independent; each half's own law if they come from the two shards. */
static void law_of_pairs(const suite_case *c, draws d, double *law) {
    double *a = new_array(c->vocab, sizeof *a), *b = new_array(c->vocab, sizeof *b);
    if (c->move.shard) d.last = c->vocab / 2;
    law_of(&d, a);
    if (c->move.shard) d.first = c->vocab / 2, d.last = c->vocab;
    law_of(&d, b);
    for (int64_t i = 0; i < c->vocab; i++)
        for (int64_t k = 0; k < c->vocab; k++) law[i * c->vocab + k] = a[i] * b[k];
    free(a);
    free(b);
}

static void run_pairs(const suite_case *c, const sampler *s, int64_t n, findings *found) {
    static int32_t a[CALL_ROWS], b[CALL_ROWS];
    draws d = suite_draws(c);
    const int64_t cells = c->vocab * c->vocab, most = c->move.spread ? CALL_ROWS / 2 : CALL_ROWS;
    int64_t *count = new_array(cells, sizeof *count);
    double *law = new_array(cells, sizeof *law);
    law_of_pairs(c, d, law);
    for (int64_t done = 0; done < n; done += most) {
        int64_t rows = n - done < most ? n - done : most;
        if (c->move.spread) draw_spread_pairs(s, &d, done, rows, a, b);
        else draw_pairs(c, s, &d, done, rows, a, b);
        for (int64_t i = 0; i < rows; i++) count[a[i] * c->vocab + b[i]]++;
    }
    test_counts(found, "pairs", count, law, cells);
    free(count);
    free(law);
    suite_free(&d);
}

/* ---------------------------------------------------------------------------------------- without replacement ---- */

static void run_without_replacement(const suite_case *c, const sampler *s, int64_t n, findings *found) {
    static int32_t tokens[2 * CALL_ROWS];
    static uint64_t position[CALL_ROWS];
    draws d = suite_draws(c);
    const int64_t cells = c->vocab * c->vocab;
    int64_t *count = new_array(cells, sizeof *count);
    double *law = new_array(cells, sizeof *law), *single = new_array(c->vocab, sizeof *single);
    law_of(&d, single);
    law_of_pairs_without_replacement(single, c->vocab, law);
    d.samples = 2;
    d.tokens = tokens;
    d.position = position;
    for (int64_t done = 0; done < n; done += d.rows) {
        d.rows = n - done < CALL_ROWS ? n - done : CALL_ROWS;
        for (int64_t b = 0; b < d.rows; b++) position[b] = (uint64_t)(done + b);
        s->draw(s->self, &d);
        for (int64_t b = 0; b < d.rows; b++) count[tokens[2 * b] * c->vocab + tokens[2 * b + 1]]++;
    }
    test_counts(found, "ordered pairs", count, law, cells);
    free(count);
    free(law);
    free(single);
    suite_free(&d);
}

/* ----------------------------------------------------------------------------------------------------- maxima ---- */

#define MAXIMUM_BINS 8

static int maximum_bin(double u) {
    return u < 1.0 ? (int)(u * MAXIMUM_BINS) : MAXIMUM_BINS - 1;
}

/* The group of ids [first, last), n times: u [n] is exp(-exp(L - maximum)), uniform if the maximum is Gumbel(L), and
 * count [vocab, MAXIMUM_BINS] says with which argmax. */
static void draw_maxima(const sampler *s, draws *d, int64_t n, double *u, int64_t *count) {
    static int32_t tokens[CALL_ROWS];
    static uint64_t position[CALL_ROWS];
    static float score[CALL_ROWS];
    const double log_mass = law_log_mass(d);
    d->tokens = tokens;
    d->score = score;
    d->position = position;
    for (int64_t done = 0; done < n; done += d->rows) {
        d->rows = n - done < CALL_ROWS ? n - done : CALL_ROWS;
        for (int64_t b = 0; b < d->rows; b++) position[b] = (uint64_t)(done + b);
        s->draw(s->self, d);
        for (int64_t b = 0; b < d->rows; b++) {
            u[done + b] = exp(-exp(log_mass - (double)score[b]));
            count[tokens[b] * MAXIMUM_BINS + maximum_bin(u[done + b])]++;
        }
    }
}

static void test_maxima(const sampler *s, draws *d, int64_t n, double *u, findings *found) {
    const int64_t cells = d->vocab * MAXIMUM_BINS;
    int64_t *count = new_array(cells, sizeof *count);
    double *single = new_array(d->vocab, sizeof *single), *law = new_array(cells, sizeof *law);
    law_of(d, single);
    for (int64_t i = 0; i < cells; i++) law[i] = single[i / MAXIMUM_BINS] / MAXIMUM_BINS;
    draw_maxima(s, d, n, u, count);
    test_counts(found, "maximum and argmax", count, law, cells);
    free(count);
    free(single);
    free(law);
}

/* Lemma 4.1: maxima of groups are Gumbel of their log-masses, independent of the argmax and of each other. */
static void run_maxima(const suite_case *c, const sampler *s, int64_t n, findings *found) {
    int64_t count[MAXIMUM_BINS * MAXIMUM_BINS] = {0};
    double law[MAXIMUM_BINS * MAXIMUM_BINS];
    double *u = new_array(n, sizeof *u), *w = new_array(n, sizeof *w);
    draws d = suite_draws(c);
    d.seed_all = 41;
    d.last = c->vocab / 3;
    test_maxima(s, &d, n, u, found);
    d.first = d.last;
    d.last = c->vocab;
    test_maxima(s, &d, n, w, found);
    for (int64_t i = 0; i < n; i++) count[maximum_bin(u[i]) * MAXIMUM_BINS + maximum_bin(w[i])]++;
    for (int i = 0; i < MAXIMUM_BINS * MAXIMUM_BINS; i++) law[i] = 1.0 / (MAXIMUM_BINS * MAXIMUM_BINS);
    test_counts(found, "maxima of two groups", count, law, MAXIMUM_BINS * MAXIMUM_BINS);
    test_uniform(found, "maximum of one group", u, n);
    test_uniform(found, "maximum of the other", w, n);
    suite_free(&d);
    free(u);
    free(w);
}

/* ------------------------------------------------------------------------------------------------------ table ---- */

#define UPPER ((uint64_t)1 << 32)
#define LAW .run = run_marginal
#define PAIRS(...)                                                                                                     \
    .run = run_pairs, .n = 100000, .power_n = 4096, .shape = SHAPE_ZIPF, .vocab = 23, .move = {__VA_ARGS__}

/* Vocabularies are prime, or nearly: no block, granule, group or shard divides them. */
const suite_case suite_cases[SUITE_CASES] = {
    {"plain_draws_from_flat_logits_follow_the_softmax", "flat", LAW, .n = 400000, .power_n = 10000, .shape = SHAPE_FLAT,
     .vocab = 131},
    {"plain_draws_from_gaussian_logits_follow_the_softmax", "gauss", LAW, .n = 700000, .power_n = 10000,
     .shape = SHAPE_GAUSS, .vocab = 257},
    {"plain_draws_from_zipf_logits_follow_the_softmax", "zipf", LAW, .n = 1100000, .power_n = 10000,
     .shape = SHAPE_ZIPF, .vocab = 1009},
    {"plain_draws_from_peaked_logits_follow_the_softmax", "peaked", LAW, .n = 2800000, .power_n = 10000,
     .shape = SHAPE_PEAKED, .vocab = 509},
    {"low_temperature_sharpens_the_law", "cold", LAW, .n = 250000, .power_n = 10000, .shape = SHAPE_GAUSS, .vocab = 257,
     .temperature = 0.5f},
    {"high_temperature_flattens_the_law", "hot", LAW, .n = 150000, .power_n = 10000, .shape = SHAPE_GAUSS, .vocab = 257,
     .temperature = 2.0f},
    {"a_tail_of_small_tokens_is_drawn", "tail", run_tail, .n = 20480, .power_n = 20480, .shape = SHAPE_TAIL,
     .vocab = 151936},
    {"a_tail_is_drawn_as_often_as_its_mass_says", "tail mass", run_tail, .n = 409600, .power_n = 204800,
     .shape = SHAPE_TAIL, .vocab = 16411},
    {"draws_merged_from_shards_follow_the_softmax", "shards", LAW, .n = 120000, .power_n = 10000, .shape = SHAPE_FLAT,
     .vocab = 257, .shards = 2},

    {"top_k_draws_follow_their_law", "top-k", LAW, .n = 150000, .power_n = 10000, .shape = SHAPE_GAUSS, .vocab = 257,
     .top_k = 40},
    {"ties_at_the_cut_of_top_k_go_to_lower_ids", "ties", LAW, .n = 100000, .power_n = 10000, .shape = SHAPE_STEPS,
     .vocab = 257, .top_k = 20},
    {"top_k_may_keep_all_ties", "all ties", LAW, .n = 100000, .power_n = 10000, .shape = SHAPE_STEPS, .vocab = 257,
     .top_k = 20, .flags = FS_KEEP_TIES},
    {"top_p_draws_follow_their_law", "top-p", LAW, .n = 250000, .power_n = 40000, .shape = SHAPE_GAUSS, .vocab = 257,
     .top_p = 0.9f},
    {"top_p_of_equal_logits_keeps_lower_ids", "flat top-p", LAW, .n = 20000, .power_n = 10000, .shape = SHAPE_FLAT,
     .vocab = 3001, .top_p = 0.5f},
    {"min_p_draws_follow_their_law", "min-p", LAW, .n = 150000, .power_n = 10000, .shape = SHAPE_GAUSS, .vocab = 257,
     .min_p = 0.02f},
    {"top_k_then_top_p_draws_follow_their_law", "k then p", LAW, .n = 150000, .power_n = 10000, .shape = SHAPE_GAUSS,
     .vocab = 257, .top_k = 30, .top_p = 0.9f},
    {"top_p_of_the_whole_after_top_k_follows_its_law", "joint", LAW, .n = 150000, .power_n = 10000,
     .shape = SHAPE_GAUSS, .vocab = 257, .top_k = 30, .top_p = 0.7f, .flags = FS_JOINT_TOP_P},
    {"all_rules_over_shards_follow_their_law", "all rules", LAW, .n = 100000, .power_n = 10000, .shape = SHAPE_PEAKED,
     .vocab = 257, .temperature = 1.3f, .top_k = 90, .top_p = 0.95f, .min_p = 0.001f, .shards = 3},

    {"group_parallel_draws_follow_the_softmax", "parallel", LAW, .n = 120000, .power_n = 10000,
     .shape = SHAPE_DEAD_GROUP, .vocab = 131, .mode = FS_MODE_GROUP_PARALLEL, .group_size = 17},
    {"group_online_draws_follow_the_softmax", "online", LAW, .n = 120000, .power_n = 10000, .shape = SHAPE_DEAD_GROUP,
     .vocab = 131, .mode = FS_MODE_GROUP_ONLINE, .group_size = 17},
    {"groups_merged_from_shards_follow_the_softmax", "merged", LAW, .n = 120000, .power_n = 10000, .shape = SHAPE_GAUSS,
     .vocab = 131, .mode = FS_MODE_GROUP_PARALLEL, .group_size = 17, .shards = 5},
    {"group_maxima_are_gumbel_and_independent_of_the_argmax", "maxima", run_maxima, .n = 150000, .power_n = 10000,
     .shape = SHAPE_GAUSS, .vocab = 101},

    {"rows_with_neighbouring_seeds_are_independent", "seeds", PAIRS(.seed = 1)},
    {"rows_with_seeds_equal_in_their_lower_half_are_independent", "high seeds", PAIRS(.seed = UPPER)},
    {"rows_under_one_scalar_seed_are_independent", "rows", PAIRS(.spread = 1)},
    {"consecutive_positions_are_independent", "positions", PAIRS(.position = 1)},
    {"positions_equal_in_their_lower_half_are_independent", "high positions", PAIRS(.position = UPPER)},
    {"substreams_are_independent", "substreams", PAIRS(.substream = 1)},
    {"samples_are_independent", "samples", PAIRS(.sample_b = 1)},
    {"the_next_sample_is_not_the_next_seed", "sample/seed", PAIRS(.seed = 1, .sample_a = 1)},
    {"the_next_sample_is_not_the_next_position", "sample/position", PAIRS(.position = 1, .sample_a = 1)},
    {"the_next_sample_is_not_the_next_substream", "sample/substream", PAIRS(.substream = 1, .sample_a = 1)},
    {"shards_are_independent", "shard pairs", run_pairs, .n = 100000, .power_n = 10000, .shape = SHAPE_FLAT,
     .vocab = 38, .move = {.shard = 1}},

    {"ordered_pairs_without_replacement_are_plackett_luce", "pairs", run_without_replacement, .n = 300000,
     .power_n = 10000, .shape = SHAPE_GAUSS, .vocab = 23, .mode = FS_MODE_WITHOUT_REPLACEMENT},
    {"ordered_pairs_without_replacement_after_top_k", "cut pairs", run_without_replacement, .n = 200000,
     .power_n = 10000, .shape = SHAPE_ZIPF, .vocab = 37, .top_k = 15, .mode = FS_MODE_WITHOUT_REPLACEMENT},
};
