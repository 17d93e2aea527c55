/* speculative.c - speculative decoding with shared noise. The draft model draws with the noise the target would use, so
 * it guesses not only what is likely but what will be drawn; the target then draws all k + 1 positions in one batch,
 * and tokens are accepted while the two agree. No acceptance probabilities: the output is the one without a draft, bit
 * for bit. */
#include <flashsampling.h>

#include <stdio.h>
#include <stdlib.h>

enum { D = 32, V = 2000, LENGTH = 96, K = 4 };

typedef struct model {
    float head[V][D];
} model;

static model target, draft;

static float hash_float(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return (float)((x ^ x >> 16) >> 8) / 8388608.0f - 1.0f;
}

/* Stands in for a transformer: the hidden state that predicts what follows `token` at `position`. */
static void forward(int32_t token, int position, float *h) {
    for (int d = 0; d < D; d++) h[d] = 2.0f * hash_float((uint32_t)(token * 131 + position * 7919 + d * 104729));
}

static void check(fs_status status, const fs_context *context) {
    if (status == FS_OK) return;
    fprintf(stderr, "speculative: %s: %s\n", fs_status_text(status), fs_error_text(context));
    exit(1);
}

/* Draws what follows each of token[0 .. n-1], which stand at consecutive positions of one sequence. */
static void draw(fs_context *context, const model *m, const int32_t *token, int position, int n, int32_t *next) {
    float h[K + 1][D];
    uint64_t positions[K + 1];
    /* All rows are slot 0: one sequence, one seed. Without this array row b would be slot b, with noise of its own. (A
     * caller with penalties gives the slot's counts, and for row i the i guesses before it as batch.extra_token.) */
    const int32_t slot[K + 1] = {0};
    for (int i = 0; i < n; i++) {
        forward(token[i], position + i, h[i]);
        positions[i] = (uint64_t)(position + i);
    }
    fs_head head = fs_head_default();
    head.data = m->head;
    head.rows = V;
    head.dim = D;
    fs_batch batch = fs_batch_default();
    batch.rows = n;
    batch.hidden = h;
    batch.slot = slot;
    batch.slots = 1;
    batch.position = positions;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    rules.temperature.value = 0.7f;
    rules.top_p.value = 0.9f;
    batch.seed_all = 99;
    fs_result result = fs_result_default();
    result.tokens = next;
    check(fs_sample(context, &head, &batch, &result), context);
}

static void generate(fs_context *context, int32_t *text) {
    for (int at = 0; at + 1 < LENGTH; at++) draw(context, &target, &text[at], at, 1, &text[at + 1]);
}

/* Returns the number of target passes. */
static int generate_speculatively(fs_context *context, int32_t *text) {
    int passes = 0;
    for (int at = 0; at + 1 < LENGTH; passes++) {
        int32_t guess[K + 1], drawn[K + 1], emitted[K + 1], accepted;
        guess[0] = text[at]; /* what is known, then K guesses */
        for (int i = 0; i < K; i++) draw(context, &draft, &guess[i], at + i, 1, &guess[i + 1]);
        draw(context, &target, guess, at, K + 1, drawn);
        fs_drafts drafts = fs_drafts_default();
        drafts.sequences = 1;
        drafts.draft_length = K;
        drafts.draft = &guess[1];
        drafts.target = drawn;
        drafts.accepted = &accepted;
        drafts.tokens = emitted; /* the accepted guesses and the target's own next token */
        check(fs_accept_drafts(NULL, &drafts), NULL);
        for (int i = 0; i <= accepted && at + 1 < LENGTH; i++) text[++at] = emitted[i];
    }
    return passes;
}

int main(void) {
    for (int v = 0; v < V; v++)
        for (int d = 0; d < D; d++) {
            target.head[v][d] = hash_float((uint32_t)(v * D + d));
            draft.head[v][d] = target.head[v][d] + 0.1f * hash_float((uint32_t)(V * D + v * D + d));
        }
    int32_t plain[LENGTH] = {1}, speculative[LENGTH] = {1};
    fs_context *context;
    check(fs_context_create(NULL, &context), NULL);
    generate(context, plain);
    int passes = generate_speculatively(context, speculative);
    fs_context_destroy(context);

    for (int i = 0; i < LENGTH; i++)
        if (plain[i] != speculative[i]) {
            fprintf(stderr, "speculative: token %d is %d, without a draft it is %d\n", i, speculative[i], plain[i]);
            return 1;
        }
    printf("%d tokens in %d passes of the target\n", LENGTH - 1, passes);
    if (passes >= (LENGTH - 1) / 2) {
        fprintf(stderr, "speculative: a draft this close should be accepted more often\n");
        return 1;
    }
    return 0;
}
