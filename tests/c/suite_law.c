/* suite_law.c - logits to draw from and the exact law of a draw. Shares no code with the library: cuts are made by
 * sorting, masses summed in double. */
#include "suite.h"

void *new_array(int64_t count, size_t size) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory) fail_msg("no memory for %lld elements", (long long)count);
    return memory;
}

/* ----------------------------------------------------------------------------------------------------- shapes ---- */

static void fill_gauss(float *logits, int64_t vocab, double deviation) {
    rng r = random_from(77);
    for (int64_t v = 0; v < vocab; v++) logits[v] = (float)(deviation * random_normal(&r));
}

static void fill_peaked(float *logits, int64_t vocab) {
    fill_gauss(logits, vocab, 1.0);
    logits[vocab / 30] = (float)(log((double)vocab) + 1.4);
    logits[vocab / 2] = logits[vocab - 1] = (float)log((double)vocab) - 1.0f;
}

static void fill_tail(float *logits, int64_t vocab) {
    for (int64_t v = 0; v < vocab; v++) logits[v] = (float)log(TAIL_MASS / (1.0 - TAIL_MASS) / (double)(vocab - 1));
    logits[vocab / 7] = 0.0f;
}

void shape_fill(shape s, float *logits, int64_t vocab) {
    switch (s) {
    case SHAPE_FLAT:
        for (int64_t v = 0; v < vocab; v++) logits[v] = 0.25f;
        break;
    case SHAPE_GAUSS:
        fill_gauss(logits, vocab, 2.0);
        break;
    case SHAPE_ZIPF:
        for (int64_t v = 0; v < vocab; v++) logits[v] = (float)(3.0 - log(1.0 + (double)v));
        break;
    case SHAPE_PEAKED:
        fill_peaked(logits, vocab);
        break;
    case SHAPE_STEPS:
        for (int64_t v = 0; v < vocab; v++) logits[v] = v % 4 == 0 ? 1.5f : 0.5f;
        break;
    case SHAPE_DEAD_GROUP:
        fill_gauss(logits, vocab, 2.0);
        for (int64_t v = 34; v < 51 && v < vocab; v++) logits[v] = -INFINITY;
        break;
    case SHAPE_TAIL:
        fill_tail(logits, vocab);
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------- laws ---- */

typedef struct ranked {
    float logit;
    int64_t id;
    double weight; /* exp(l - max l) */
} ranked;

/* The total order: larger logit first, then lower id. */
static int by_order(const void *left, const void *right) {
    const ranked *a = left, *b = right;
    if (a->logit != b->logit) return a->logit < b->logit ? 1 : -1;
    return (a->id > b->id) - (a->id < b->id);
}

static double sum_weights(const ranked *r, int64_t k) {
    double sum = 0.0;
    for (int64_t i = 0; i < k; i++) sum += r[i].weight;
    return sum;
}

static int64_t with_ties(const draws *d, const ranked *r, int64_t kept, int64_t limit) {
    if (d->flags & FS_KEEP_TIES)
        while (kept < limit && r[kept].logit == r[kept - 1].logit) kept++;
    return kept;
}

/* How many of the ranked tokens [k] survive min-p, then top-k, then top-p. */
static int64_t survivors(const draws *d, const ranked *r, int64_t k) {
    const double whole = sum_weights(r, k);
    int64_t kept = 0;
    while (kept < k && r[kept].weight >= (double)d->rule.min_p.value) kept++;
    if (d->rule.top_k.value > 0 && d->rule.top_k.value < kept) kept = with_ties(d, r, d->rule.top_k.value, kept);
    if (d->rule.top_p.value >= 1.0f) return kept;
    const double limit = (double)d->rule.top_p.value * (d->flags & FS_JOINT_TOP_P ? whole : sum_weights(r, kept));
    double before = 0.0;
    int64_t prefix = 0;
    while (prefix < kept && before < limit) before += r[prefix++].weight;
    return with_ties(d, r, prefix > 0 ? prefix : 1, kept);
}

void law_of(const draws *d, double *law) {
    const float inverse = 1.0f / d->rule.temperature.value;
    ranked *r = new_array(d->last - d->first, sizeof *r);
    int64_t k = 0;
    for (int64_t v = d->first; v < d->last; v++)
        if (d->logits[v] > -INFINITY) r[k++] = (ranked){d->logits[v], v, 0.0};
    qsort(r, (size_t)k, sizeof *r, by_order);
    for (int64_t i = 0; i < k; i++) r[i].weight = exp((double)(r[i].logit * inverse) - (double)(r[0].logit * inverse));
    int64_t kept = survivors(d, r, k);
    double sum = sum_weights(r, kept);
    for (int64_t v = 0; v < d->vocab; v++) law[v] = 0.0;
    for (int64_t i = 0; i < kept; i++) law[r[i].id] = r[i].weight / sum;
    free(r);
}

double law_log_mass(const draws *d) {
    const float inverse = 1.0f / d->rule.temperature.value;
    double sum = 0.0;
    for (int64_t v = d->first; v < d->last; v++) sum += exp((double)(d->logits[v] * inverse));
    return log(sum);
}

void law_of_pairs_without_replacement(const double *single, int64_t vocab, double *law) {
    for (int64_t i = 0; i < vocab; i++)
        for (int64_t j = 0; j < vocab; j++)
            law[i * vocab + j] = i == j || single[i] == 0.0 ? 0.0 : single[i] * single[j] / (1.0 - single[i]);
}
