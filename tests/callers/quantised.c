/* quantised.c - a caller whose head is stored in GGUF's Q8_0, blocks of 32 int8 with one scale in half precision, a
 * format the library does not read yet. It asks; told FS_ERR_UNSUPPORTED, it multiplies itself and hands over stored
 * logits. Rules, noise and results are the same on both ways, so the day the format is read natively its users see the
 * same tokens. */
#include <flashsampling.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 8, D = 128, V = 2500, BLOCK = 32, BLOCKS = D / BLOCK };

typedef struct q8_block {
    uint16_t scale; /* IEEE half */
    int8_t q[BLOCK];
} q8_block;

static q8_block W[V][BLOCKS];
static float H[B][D];
static float dequantised[V][D]; /* only for the check at the end */

static void check(fs_status status, const fs_context *context) {
    if (status == FS_OK) return;
    fprintf(stderr, "quantised: %s: %s\n", fs_status_text(status), fs_error_text(context));
    exit(1);
}

/* A half that is a power of two. */
static float widen(uint16_t half) {
    return ldexpf(1.0f, (half >> 10) - 15);
}

/* Scales are powers of two and activations multiples of 1/16, so every sum below is exact and its order does not
 * matter. */
static void fill(void) {
    uint32_t r = 1;
    for (int v = 0; v < V; v++)
        for (int k = 0; k < BLOCKS; k++) {
            W[v][k].scale = v % 3 ? 0x2400 : 0x2000; /* 1 / 64 and 1 / 128 */
            for (int i = 0; i < BLOCK; i++) {
                r = r * 1664525u + 1013904223u;
                W[v][k].q[i] = (int8_t)((int)(r >> 16) % 64 - 32);
                dequantised[v][k * BLOCK + i] = widen(W[v][k].scale) * (float)W[v][k].q[i];
            }
        }
    for (int b = 0; b < B; b++)
        for (int d = 0; d < D; d++) {
            r = r * 1664525u + 1013904223u;
            H[b][d] = (float)((int)(r >> 16) % 32 - 16) / 16.0f;
        }
}

/* The caller's own matmul: dequantises on the fly. */
static void multiply(float logits[B][V]) {
    for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++) {
            float sum = 0.0f;
            for (int k = 0; k < BLOCKS; k++) {
                float block = 0.0f;
                for (int i = 0; i < BLOCK; i++) block += (float)W[v][k].q[i] * H[b][k * BLOCK + i];
                sum += widen(W[v][k].scale) * block;
            }
            logits[b][v] = sum;
        }
}

int main(void) {
    static float logits[B][V];
    int32_t tokens[B], expected[B];
    fill();

    fs_context *context;
    check(fs_context_create(NULL, &context), NULL);
    fs_batch batch = fs_batch_default();
    batch.hidden = H;
    batch.rows = B;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    rules.temperature.value = 0.7f;
    rules.top_k.value = 50;
    batch.seed_all = 5;
    fs_result result = fs_result_default();
    result.tokens = tokens;

    fs_head head = fs_head_default();
    head.dtype = FS_Q8_0;
    head.data = W;
    head.rows = V;
    head.dim = D;
    fs_status status = fs_sample(context, &head, &batch, &result);
    if (status == FS_ERR_UNSUPPORTED) {
        printf("a head in Q8_0: %s; its logits are made here instead\n", fs_error_text(context));
        multiply(logits);
        head = fs_head_default();
        head.kind = FS_HEAD_LOGITS;
        head.data = logits;
        head.rows = V;
        status = fs_sample(context, &head, &batch, &result);
    }
    check(status, context);

    /* The same head in float, fused: the same tokens. */
    head = fs_head_default();
    head.data = dequantised;
    head.rows = V;
    head.dim = D;
    result.tokens = expected;
    check(fs_sample(context, &head, &batch, &result), context);
    fs_context_destroy(context);
    for (int b = 0; b < B; b++)
        if (tokens[b] != expected[b] || tokens[b] < 0) {
            fprintf(stderr, "quantised: row %d drew %d, the float head draws %d\n", b, tokens[b], expected[b]);
            return 1;
        }
    printf("%d rows, top-k 50 at T = 0.7, drew the tokens of the same head in float:", B);
    for (int b = 0; b < B; b++) printf(" %d", tokens[b]);
    printf("\n");
    return 0;
}
