/* truth.c - see truth.h. */
#define _POSIX_C_SOURCE 200809L /* setenv, strdup */
#include "truth.h"
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static fs_context *reference(void) {
    static fs_context *context;
    if (context) return context;
    /* The variable may force the backend that is compared. */
    const char *name = "FLASHSAMPLING_BACKEND", *value = getenv(name);
    char *forced = value ? strdup(value) : NULL;
    unsetenv(name);
    context_args args = context_args_default();
    args.backend = FS_BACKEND_REFERENCE;
    context = open_context(&args);
    if (forced) setenv(name, forced, 1);
    free(forced);
    return context;
}

void truth_sample(const fs_head *head, const fs_batch *batch, fs_result result) {
    int32_t token;
    if (!result.tokens) result.tokens = &token; /* one row, one sample */
    check(reference(), fs_sample(reference(), head, batch, &result));
}

/* The result of the first row, with all tokens of the head watched. */
static void watch_all(const fs_head *head, const fs_batch *batch, fs_result result) {
    const int64_t offset[2] = {0, head->rows};
    int32_t *token = malloc((size_t)head->rows * sizeof *token);
    if (!token) die(END_RUNTIME, "no memory for %lld tokens", (long long)head->rows);
    for (int64_t v = 0; v < head->rows; v++) token[v] = (int32_t)(head->first_token + v);
    fs_batch one = *batch;
    one.rows = one.samples = 1;
    one.watch_offset = offset;
    one.watch_token = token;
    truth_sample(head, &one, result);
    free(token);
}

void truth_logits(const fs_head *head, const fs_batch *batch, float *x) {
    fs_result result = fs_result_default();
    result.watch_logit = x;
    watch_all(head, batch, result);
}

void truth_probabilities(const fs_head *head, const fs_batch *batch, double *p) {
    const int64_t V = head->rows;
    float *logprob = malloc((size_t)V * sizeof *logprob);
    if (!logprob) die(END_RUNTIME, "no memory for %lld probabilities", (long long)V);
    int32_t token = -1;
    fs_result result = fs_result_default();
    result.tokens = &token;
    result.logits_mode = FS_LOGITS_CUT;
    result.watch_logprob = logprob;
    watch_all(head, batch, result);
    const int greedy = batch->rules && batch->rules->temperature.value == 0;
    double sum = 0.0;
    for (int64_t v = 0; v < V; v++) sum += p[v] = greedy ? v == token - head->first_token : exp((double)logprob[v]);
    for (int64_t v = 0; v < V; v++) p[v] /= sum; /* log-probabilities were rounded to float */
    free(logprob);
}
