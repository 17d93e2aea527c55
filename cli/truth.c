/* truth.c - see truth.h. Cuts decide in double where the library decides in float: the scenes they are used on have no
 * two logits and no cumulative mass close enough to a cut for that to matter. */
#include "truth.h"
#include "cli.h"
#include "synth.h"

#include <math.h>
#include <stdlib.h>

typedef struct ranked {
    double y;
    int64_t token;
} ranked;

/* The total order: larger first, then the lower id. */
static int by_order(const void *left, const void *right) {
    const ranked *a = left, *b = right;
    if (a->y != b->y) return a->y < b->y ? 1 : -1;
    return a->token < b->token ? -1 : 1;
}

static ranked *rank_tokens(const double *y, int64_t V) {
    ranked *order = malloc((size_t)V * sizeof *order);
    if (!order) die(END_RUNTIME, "no memory for %lld tokens", (long long)V);
    for (int64_t v = 0; v < V; v++) order[v] = (ranked){y[v], v};
    qsort(order, (size_t)V, sizeof *order, by_order);
    return order;
}

/* x -> y: soft-cap, mask, edits, penalties. */
static double transform(const truth_rule *r, double x, int64_t v) {
    if (r->softcap > 0) x = r->softcap * tanh(x / r->softcap);
    if (r->allow && !r->allow[v]) return -(double)INFINITY;
    if (r->edit) x += r->edit[v];
    if (!r->count || r->count[v] == 0) return x;
    const double repetition = (double)r->rules.repetition.value;
    if (repetition > 0) x = x > 0 ? x / repetition : x * repetition;
    return x - (double)r->rules.frequency.value * r->count[v] - (double)r->rules.presence.value;
}

static double sum_exp(const ranked *order, int64_t n, double most, double temperature) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += exp((order[i].y - most) / temperature);
    return sum;
}

/* How many of the ordered tokens survive min-p, then top-k, then top-p. */
static int64_t survivors(const truth_rule *r, const ranked *order, int64_t V) {
    const double T = (double)r->rules.temperature.value, top_p = (double)r->rules.top_p.value,
                 min_p = (double)r->rules.min_p.value;
    const int64_t top_k = r->rules.top_k.value;
    double most = order[0].y, all = sum_exp(order, V, most, T);
    int64_t kept = V;
    if (min_p > 0)
        while (kept > 1 && (order[kept - 1].y - most) / T < log(min_p)) kept--;
    if (top_k > 0 && top_k < kept) kept = top_k;
    if (!(top_p > 0 && top_p < 1)) return kept;
    double bound = top_p * (r->joint ? all : sum_exp(order, kept, most, T)), before = 0.0;
    int64_t n = 0;
    while (n < kept && before < bound) before += exp((order[n++].y - most) / T);
    return n;
}

void truth_probabilities(const truth_rule *rule, const double *x, int64_t V, double *p) {
    double *y = malloc((size_t)V * sizeof *y);
    if (!y) die(END_RUNTIME, "no memory for %lld logits", (long long)V);
    for (int64_t v = 0; v < V; v++) {
        y[v] = transform(rule, x[v], v);
        p[v] = 0.0;
    }
    ranked *order = rank_tokens(y, V);
    const double T = (double)rule->rules.temperature.value;
    if (T == 0.0) p[order[0].token] = 1.0;
    else {
        int64_t kept = survivors(rule, order, V);
        double sum = sum_exp(order, kept, order[0].y, T);
        for (int64_t i = 0; i < kept; i++) p[order[i].token] = exp((order[i].y - order[0].y) / T) / sum;
    }
    free(order);
    free(y);
}

void truth_pairs(const double *p, int64_t V, double *joint) {
    for (int64_t i = 0; i < V; i++)
        for (int64_t j = 0; j < V; j++) joint[i * V + j] = p[i] * p[j];
}

void truth_ordered_pairs(const double *p, int64_t V, double *joint) {
    for (int64_t i = 0; i < V; i++)
        for (int64_t j = 0; j < V; j++) joint[i * V + j] = i == j || p[i] == 0 ? 0.0 : p[i] * p[j] / (1.0 - p[i]);
}

int64_t truth_nucleus(const double *x, int64_t V, double top_p, double *largest) {
    ranked *order = rank_tokens(x, V);
    truth_rule rule = {.rules = fs_rules_default()};
    rule.rules.top_p.value = (float)top_p;
    *largest = 1.0 / sum_exp(order, V, order[0].y, 1.0);
    int64_t n = survivors(&rule, order, V);
    free(order);
    return n;
}

void truth_logits(const void *w, int w_dtype, const void *h, int h_dtype, int64_t V, int64_t D, double *x) {
    for (int64_t v = 0; v < V; v++) {
        double sum = 0.0;
        for (int64_t d = 0; d < D; d++)
            sum += (double)load_element(w, w_dtype, v * D + d) * (double)load_element(h, h_dtype, d);
        x[v] = sum;
    }
}
