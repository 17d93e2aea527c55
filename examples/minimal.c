/* minimal.c - draws the next token of three sequences from a small LM head. */
#include <flashsampling.h>
#include <stdio.h>

enum { B = 3, D = 64, V = 5000 };
static float W[V][D]; /* the LM head: one row per token */
static float H[B][D]; /* the last hidden state of each sequence */

int main(void) {
    for (int i = 0; i < V * D; i++) W[i / D][i % D] = (float)(i * 7919LL % 2003) / 2003 - 0.5f;
    for (int i = 0; i < B * D; i++) H[i / D][i % D] = (float)(i * 104729LL % 1009) / 1009 - 0.5f;
    int32_t token[B];
    float logprob[B];

    fs_head head = fs_head_default();
    head.data = W;
    head.rows = V;
    head.dim = D;

    fs_batch batch = fs_batch_default();
    batch.hidden = H;
    batch.rows = B;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    rules.temperature.value = 0.8f;
    rules.top_p.value = 0.95f;
    batch.seed_all = 42;
    batch.position_all = 0; /* count it up from token to token: a new position is new noise */

    fs_result result = fs_result_default();
    result.tokens = token;
    result.logprob = logprob;

    fs_context *context;
    fs_status status = fs_context_create(NULL, &context);
    if (status == FS_OK) status = fs_sample(context, &head, &batch, &result);
    if (status == FS_OK)
        for (int b = 0; b < B; b++) printf("sequence %d: token %d, logprob %.3f\n", b, token[b], logprob[b]);
    else fprintf(stderr, "%s error: %s\n", fs_status_text(status), fs_error_text(context));
    fs_context_destroy(context);
    return status == FS_OK ? 0 : 1;
}
