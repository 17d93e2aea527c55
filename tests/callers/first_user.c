/* first_user.c - the first program anybody writes: a head, a batch of hidden states, one token per row. */
#include <flashsampling.h>

#include <stdio.h>

enum { B = 4, D = 64, V = 1000, STEPS = 3 };

static float W[V][D]; /* the LM head */
static float H[B][D]; /* the last hidden state of four sequences */

static void fill(float *x, int n, uint32_t seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static int fail(const fs_context *context) {
    fprintf(stderr, "first_user: %s\n", fs_error_text(context));
    return 1;
}

int main(void) {
    fill(W[0], V * D, 1);
    fill(H[0], B * D, 2);
    int32_t tokens[STEPS][B];

    fs_context *context;
    if (fs_context_create(NULL, &context) != FS_OK) return fail(NULL);

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

    fs_result result = fs_result_default();
    for (int step = 0; step < STEPS; step++) {
        batch.position_all = (uint64_t)step; /* a new position is new noise; the same one repeats the draw */
        result.tokens = tokens[step];
        if (fs_sample(context, &head, &batch, &result) != FS_OK) return fail(context);
    }
    fs_context_destroy(context);

    for (int step = 0; step < STEPS; step++)
        for (int b = 0; b < B; b++)
            if (tokens[step][b] < 0 || tokens[step][b] >= V) {
                fprintf(stderr, "first_user: step %d, row %d: token %d\n", step, b, tokens[step][b]);
                return 1;
            }
    return 0;
}
