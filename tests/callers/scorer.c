/* scorer.c - perplexity of a given text and a multiple-choice question: score mode draws nothing, and returns the
 * logprobs of tokens the caller names, without ever holding B x V logits. */
#include <flashsampling.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 40, D = 48, V = 3001, CHOICES = 4 };

static float W[V][D];
static float H[T][D];   /* hidden states at T positions of a text */
static int32_t text[T]; /* what really came next at each */

static void fill(float *x, int n, uint32_t seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void check(fs_status status, const fs_context *context) {
    if (status == FS_OK) return;
    fprintf(stderr, "scorer: %s: %s\n", fs_status_text(status), fs_error_text(context));
    exit(1);
}

/* What the library should say, from all the logits, in double. */
static double plain_logprob(const float *h, int32_t token) {
    double logit[V], most = -INFINITY, sum = 0.0;
    for (int v = 0; v < V; v++) {
        logit[v] = 0.0;
        for (int d = 0; d < D; d++) logit[v] += (double)h[d] * (double)W[v][d];
        most = fmax(most, logit[v]);
    }
    for (int v = 0; v < V; v++) sum += exp(logit[v] - most);
    return logit[token] - most - log(sum);
}

static void expect_close(const char *what, int i, double have, double want) {
    if (fabs(have - want) < 1e-4) return;
    fprintf(stderr, "scorer: %s %d is %.7f, should be %.7f\n", what, i, have, want);
    exit(1);
}

int main(void) {
    fill(W[0], V * D, 1);
    fill(H[0], T * D, 2);
    for (int t = 0; t < T; t++) text[t] = t * 977 % V;

    fs_context *context;
    check(fs_context_create(NULL, &context), NULL);
    fs_head head = fs_head_default();
    head.data = W;
    head.rows = V;
    head.dim = D;

    /* Perplexity: one given token per row. */
    float logprob[T];
    int32_t rank[T];
    fs_batch batch = fs_batch_default();
    batch.mode = FS_MODE_SCORE;
    batch.hidden = H;
    batch.rows = T;
    batch.score_token = text;
    fs_result result = fs_result_default();
    result.logprob = logprob;
    result.rank = rank; /* 1: the model's first choice */
    check(fs_sample(context, &head, &batch, &result), context);

    double sum = 0.0, plain_sum = 0.0;
    for (int t = 0; t < T; t++) {
        expect_close("logprob of position", t, logprob[t], plain_logprob(H[t], text[t]));
        sum += logprob[t];
        plain_sum += plain_logprob(H[t], text[t]);
    }
    expect_close("log perplexity of text", 0, -sum / T, -plain_sum / T);
    printf("a text of %d tokens: perplexity %.1f over a vocabulary of %d; its first token ranks %d\n", T, exp(-sum / T),
           V, rank[0]);

    /* Multiple choice: several given tokens per row, all from one pass over W. */
    const int32_t choice[1][CHOICES] = {{7, 77, 777, 2777}};
    float choice_logprob[1][CHOICES];
    batch.rows = 1;
    batch.samples = CHOICES;
    batch.score_token = choice[0];
    result = fs_result_default();
    result.logprob = choice_logprob[0];
    check(fs_sample(context, &head, &batch, &result), context);
    for (int i = 0; i < CHOICES; i++)
        expect_close("choice", i, choice_logprob[0][i], plain_logprob(H[0], choice[0][i]));
    for (int i = 0; i < CHOICES; i++)
        printf("choice %d, token %4d: logprob %.3f\n", i, choice[0][i], (double)choice_logprob[0][i]);

    /* A token that does not exist is the row's failure, not the call's. */
    const int32_t wrong = V;
    uint32_t status = 0;
    batch.samples = 1;
    batch.score_token = &wrong;
    result.status = &status;
    check(fs_sample(context, &head, &batch, &result), context);
    if (!(status & FS_ROW_BAD_TOKEN) || !isnan(choice_logprob[0][0])) {
        fprintf(stderr, "scorer: token %d of %d was scored, status 0x%x\n", wrong, V, status);
        return 1;
    }
    printf("token %d does not exist: its row has the status FS_ROW_BAD_TOKEN and the logprob NaN\n", wrong);
    fs_context_destroy(context);
    return 0;
}
