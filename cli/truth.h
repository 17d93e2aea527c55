/* truth.h - the probabilities draws are compared with: the header's rules in plain double loops, sharing no code with
 * the library. */
#ifndef FS_CLI_TRUTH_H
#define FS_CLI_TRUTH_H

#include "flashsampling.h"

#include <stdint.h>

/* One row's rules. Values of 0 are off, temperature 0 is greedy; arrays are [V] or NULL. */
typedef struct truth_rule {
    fs_rules rules; /* the values: nothing is by slot */
    int joint;      /* top-p counts mass against the whole distribution */
    double softcap;
    const uint8_t *allow; /* 0 = not allowed */
    const double *edit;   /* added; -inf bans */
    const int32_t *count;
} truth_rule;

/* p [V] = probability of each token given its logit x [V]. */
void truth_probabilities(const truth_rule *rule, const double *x, int64_t V, double *p);

/* joint [V, V] = p q^T; and for ordered pairs without replacement, p_i p_j / (1 - p_i). */
void truth_pairs(const double *p, int64_t V, double *joint);
void truth_ordered_pairs(const double *p, int64_t V, double *joint);

/* Tokens it takes to reach the mass `top_p` of softmax(x), and the largest probability. */
int64_t truth_nucleus(const double *x, int64_t V, double top_p, double *largest);

/* x [V] = W h in double. */
void truth_logits(const void *w, int w_dtype, const void *h, int h_dtype, int64_t V, int64_t D, double *x);

#endif
