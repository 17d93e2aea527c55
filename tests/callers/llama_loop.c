/* llama_loop.c - a single-sequence loop on the CPU, as local runners have it: the program has threads of its own and
 * lends them to the library, logits go through a soft-cap, and beside the drawn token the 40 best candidates come out
 * with their logits, for a display or for a sampler of the program's own. */
#define _POSIX_C_SOURCE 200112L
#include <flashsampling.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { D = 64, V = 4096, STEPS = 24, TOP = 40, WORKERS = 3 };
static const float softcap = 30.0f;

static float W[V][D];

/* ------------------------------------------------------------------------------------------- the program's threads
 * ---- */

typedef struct pool {
    pthread_t thread[WORKERS];
    pthread_barrier_t begin, end;
    void (*task)(void *arg, int32_t i); /* NULL: go home */
    void *arg;
    int32_t count;
    atomic_int next;
} pool;

static void take_tasks(pool *p) {
    for (int i; (i = atomic_fetch_add(&p->next, 1)) < p->count;) p->task(p->arg, i);
}

static void *worker(void *arg) {
    pool *p = arg;
    for (;;) {
        pthread_barrier_wait(&p->begin);
        if (!p->task) return NULL;
        take_tasks(p);
        pthread_barrier_wait(&p->end);
    }
}

/* This is all the library wants: run task(arg, 0 .. count-1) somewhere and come back when they are done. */
static void pool_run(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    pool *p = user;
    p->task = task;
    p->arg = arg;
    p->count = count;
    atomic_store(&p->next, 0);
    pthread_barrier_wait(&p->begin);
    take_tasks(p);
    pthread_barrier_wait(&p->end);
}

static int pool_start(pool *p) {
    pthread_barrier_init(&p->begin, NULL, WORKERS + 1);
    pthread_barrier_init(&p->end, NULL, WORKERS + 1);
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&p->thread[i], NULL, worker, p) != 0) return 0;
    return 1;
}

static void pool_stop(pool *p) {
    p->task = NULL;
    pthread_barrier_wait(&p->begin);
    for (int i = 0; i < WORKERS; i++) pthread_join(p->thread[i], NULL);
    pthread_barrier_destroy(&p->begin);
    pthread_barrier_destroy(&p->end);
}

/* ------------------------------------------------------------------------------------------------------- the model
 * ---- */

static float hash_float(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return (float)((x ^ x >> 16) >> 8) / 8388608.0f - 1.0f;
}

/* Stands in for the transformer: the hidden state after `token` at `position`. */
static void forward(int32_t token, int position, float *h) {
    for (int d = 0; d < D; d++) h[d] = 3.0f * hash_float((uint32_t)(token * 131 + position * 7919 + d * 104729));
}

/* -------------------------------------------------------------------------------------------------------- the loop
 * ---- */

static void check(fs_status status, const fs_context *context) {
    if (status == FS_OK) return;
    fprintf(stderr, "llama_loop: %s: %s\n", fs_status_text(status), fs_error_text(context));
    exit(1);
}

typedef struct candidates {
    int32_t token[TOP];
    float logit[TOP], logprob[TOP];
} candidates;

static void generate(fs_context *context, int32_t token[STEPS + 1], candidates top[STEPS]) {
    float h[D];
    fs_head head = fs_head_default();
    head.data = W;
    head.rows = V;
    head.dim = D;
    head.softcap = softcap;

    fs_batch batch = fs_batch_default();
    batch.rows = 1;
    batch.hidden = h;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    rules.temperature.value = 0.8f;
    rules.top_k.value = TOP;
    rules.top_p.value = 0.95f;
    rules.min_p.value = 0.05f;
    batch.seed_all = 1234;

    fs_result result = fs_result_default();
    result.logits_mode = FS_LOGITS_RAW; /* the list shows what the model said, soft-capped, before the rules */
    result.top_count = TOP;
    token[0] = 1;
    for (int step = 0; step < STEPS; step++) {
        forward(token[step], step, h);
        batch.position_all = (uint64_t)step;
        result.tokens = &token[step + 1];
        result.top_token = top[step].token;
        result.top_logit = top[step].logit;
        result.top_logprob = top[step].logprob;
        check(fs_sample(context, &head, &batch, &result), context);
    }
}

/* ------------------------------------------------------------------------------------------------------- the check
 * ---- */

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void expect(int condition, int step, const char *what) {
    if (condition) return;
    fprintf(stderr, "llama_loop: step %d: %s\n", step, what);
    exit(1);
}

/* The list against all logits, computed and sorted the plain way. */
static void check_step(int step, int32_t before, int32_t drawn, const candidates *top) {
    static double logit[V], sorted[V];
    float h[D];
    int in_list = 0;
    forward(before, step, h);
    for (int v = 0; v < V; v++) {
        double dot = 0.0;
        for (int d = 0; d < D; d++) dot += (double)h[d] * (double)W[v][d];
        sorted[v] = logit[v] = softcap * tanh(dot / softcap);
    }
    qsort(sorted, V, sizeof sorted[0], descending);
    for (int i = 0; i < TOP; i++) {
        expect(top->token[i] >= 0 && top->token[i] < V, step, "the list has a token that does not exist");
        expect(fabs(top->logit[i] - logit[top->token[i]]) < 1e-3, step, "a listed logit is not its token's");
        expect(fabs(top->logit[i] - sorted[i]) < 1e-3, step, "the list is not the largest logits in order");
        in_list |= top->token[i] == drawn;
    }
    expect(in_list, step, "the drawn token is not among the top 40");
}

int main(void) {
    for (int v = 0; v < V; v++)
        for (int d = 0; d < D; d++) W[v][d] = hash_float((uint32_t)(v * D + d));

    static candidates lent_top[STEPS], own_top[STEPS];
    int32_t lent[STEPS + 1], own[STEPS + 1];
    static pool p;
    if (!pool_start(&p)) {
        fprintf(stderr, "llama_loop: cannot start %d threads\n", WORKERS);
        return 1;
    }
    fs_context *context;
    fs_options options = fs_options_default();
    options.parallel_for = pool_run;
    options.parallel_user = &p;
    options.threads = WORKERS + 1;
    check(fs_context_create(&options, &context), NULL);
    generate(context, lent, lent_top);
    fs_context_destroy(context);
    pool_stop(&p);

    /* The library's own threads draw the same text. */
    check(fs_context_create(NULL, &context), NULL);
    generate(context, own, own_top);
    fs_context_destroy(context);
    for (int step = 0; step < STEPS; step++) {
        expect(lent[step + 1] == own[step + 1], step, "the token depends on whose threads drew it");
        check_step(step, lent[step], lent[step + 1], &lent_top[step]);
    }
    printf("%d tokens, drawn on %d threads of the caller's and again on the library's, the same:", STEPS, WORKERS + 1);
    for (int step = 0; step < STEPS; step++) printf(" %d", lent[step + 1]);
    printf("\nthe last step's best: token %d with logprob %.3f, then %d with %.3f\n", lent_top[STEPS - 1].token[0],
           (double)lent_top[STEPS - 1].logprob[0], lent_top[STEPS - 1].token[1],
           (double)lent_top[STEPS - 1].logprob[1]);
    return 0;
}
