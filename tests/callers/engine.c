/* engine.c - a serving engine with continuous batching. Requests come and go, each has a slot with its own rules; a
 * step draws one token for every running request. Structs and arrays are set up once and never move; a step only
 * changes what is in the arrays. That is the shape a CUDA graph wants: capture fs_sample once, replay it every step, no
 * host code in between.
 *
 * The engine asks for a GPU first. A build without CUDA says FS_ERR_UNSUPPORTED, and the same arrays go to the CPU. */
#include <flashsampling.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, SLOTS = 4, D = 40, V = 3000, WORDS = (V + 31) / 32, GRAMMARS = 2, REQUESTS = 6, MOST_TOKENS = 20 };

static float W[V][D];

typedef struct request {
    int32_t prompt;
    uint64_t seed;
    float temperature;
    int32_t top_k;
    float top_p, min_p, frequency;
    int32_t grammar;     /* -1: free text */
    int arrives, length; /* in steps, in tokens */
    int32_t output[MOST_TOKENS];
    int done;
} request;

/* On a GPU everything below `head` is device memory, or host memory mapped into it. */
typedef struct engine {
    fs_context *context;
    int allocations; /* made by the library so far */
    request *running[SLOTS];
    fs_head head;
    fs_batch batch;
    fs_rules rules;
    fs_result result;

    /* per row, rewritten every step */
    float hidden[ROWS][D];
    int32_t slot[ROWS]; /* -1: nobody sits here */
    int32_t allow_index[ROWS];
    uint64_t position[ROWS];

    /* per slot, written when a request arrives */
    float temperature[SLOTS], top_p[SLOTS], min_p[SLOTS], frequency[SLOTS];
    int32_t top_k[SLOTS];
    uint64_t seed[SLOTS];
    int32_t counts[SLOTS][V]; /* what the slot has produced so far */

    uint32_t grammar[GRAMMARS][WORDS];

    int32_t tokens[ROWS];
    uint32_t status[ROWS];
    float logprob[ROWS];
} engine;

static _Alignas(64) char work[1 << 20]; /* what the engine's memory plan gives to sampling */

static void fail(const char *what, const char *why) {
    fprintf(stderr, "engine: %s: %s\n", what, why);
    exit(1);
}

static void check(fs_status status, const fs_context *context) {
    if (status != FS_OK) fail(fs_status_text(status), fs_error_text(context));
}

/* ------------------------------------------------------------------------------------------------------- the model
 * ---- */

static float hash_float(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return (float)((x ^ x >> 16) >> 8) / 8388608.0f - 1.0f;
}

/* Stands in for the transformer: the hidden state after `token` at `position`. */
static void forward(int32_t token, uint64_t position, float *h) {
    for (int d = 0; d < D; d++)
        h[d] = 3.0f * hash_float((uint32_t)token * 131u + (uint32_t)position * 7919u + (uint32_t)d * 104729u);
}

/* ----------------------------------------------------------------------------------------------------------- setup
 * ---- */

static void *count_alloc(void *user, size_t alignment, size_t bytes) {
    ++*(int *)user;
    return aligned_alloc(alignment, bytes);
}

static void count_free(void *user, void *memory) {
    (void)user;
    free(memory);
}

static void open_context(engine *e) {
    fs_options options = fs_options_default();
    options.backend = FS_BACKEND_CUDA;
    options.work = work;
    options.work_bytes = sizeof work;
    options.alloc = count_alloc;
    options.free = count_free;
    options.alloc_user = &e->allocations;
    fs_status status = fs_context_create(&options, &e->context);
    if (status == FS_ERR_UNSUPPORTED) {
        options.backend = FS_BACKEND_CPU;
        options.threads = 2;
        status = fs_context_create(&options, &e->context);
    }
    check(status, NULL);
}

static void allow(engine *e, int grammar, int32_t token) {
    e->grammar[grammar][token / 32] |= 1u << token % 32;
}

static engine *engine_create(void) {
    engine *e = calloc(1, sizeof *e);
    if (!e) exit(1);
    open_context(e);
    for (int32_t v = 0; v < 100; v++) allow(e, 0, v);
    for (int32_t v = 0; v < V; v += 2) allow(e, 1, v);

    e->head = fs_head_default();
    e->head.data = W;
    e->head.rows = V;
    e->head.dim = D;
    e->head.flags = FS_HEAD_CONSTANT;

    e->batch = fs_batch_default();
    e->batch.rows = ROWS;
    e->batch.hidden = e->hidden;
    e->batch.slot = e->slot;
    e->batch.slots = SLOTS;
    e->batch.position = e->position;
    e->batch.seed = e->seed;
    e->batch.rules = &e->rules;
    e->rules = fs_rules_default();
    e->rules.temperature.per_slot = e->temperature;
    e->rules.top_k.per_slot = e->top_k;
    e->rules.top_p.per_slot = e->top_p;
    e->rules.min_p.per_slot = e->min_p;
    e->rules.frequency.per_slot = e->frequency;
    e->batch.counts = e->counts[0];
    e->batch.allow = e->grammar[0];
    e->batch.allow_index = e->allow_index;

    e->result = fs_result_default();
    e->result.tokens = e->tokens;
    e->result.status = e->status;
    e->result.logprob = e->logprob;

    /* The widest rules this engine admits, before the first request: is the planned memory enough, for the widest cut
     * too? */
    size_t most;
    for (int s = 0; s < SLOTS; s++) e->temperature[s] = 1.0f, e->top_p[s] = 0.5f, e->frequency[s] = 1.0f;
    check(fs_work_size(e->context, &e->head, &e->batch, &e->result, NULL, &most), e->context);
    if (most > sizeof work) fail("fs_work_size", "the planned memory is too small");
    return e;
}

static void engine_destroy(engine *e) {
    fs_context_destroy(e->context);
    free(e);
}

/* ------------------------------------------------------------------------------------------------------------ step
 * ---- */

static int admit(engine *e, request *r) {
    for (int s = 0; s < SLOTS; s++) {
        if (e->running[s]) continue;
        e->running[s] = r;
        e->temperature[s] = r->temperature;
        e->top_k[s] = r->top_k;
        e->top_p[s] = r->top_p;
        e->min_p[s] = r->min_p;
        e->frequency[s] = r->frequency;
        e->seed[s] = r->seed;
        memset(e->counts[s], 0, sizeof e->counts[s]);
        return 1;
    }
    return 0;
}

/* Puts the running requests into the rows of this step, from `shift` on: which row one has means nothing. */
static void schedule(engine *e, int shift) {
    for (int b = 0; b < ROWS; b++) e->slot[b] = -1;
    for (int s = 0; s < SLOTS; s++) {
        const request *r = e->running[s];
        if (!r) continue;
        const int b = (s + shift) % ROWS;
        e->slot[b] = s;
        e->position[b] = (uint64_t)r->done;
        e->allow_index[b] = r->grammar;
        forward(r->done ? r->output[r->done - 1] : r->prompt, e->position[b], e->hidden[b]);
    }
}

static void collect(engine *e) {
    for (int b = 0; b < ROWS; b++) {
        if (e->slot[b] < 0) {
            if (e->tokens[b] != -1 || e->status[b] != FS_ROW_SKIPPED) fail("a skipped row", "was drawn");
            continue;
        }
        if (e->status[b] & FS_ROW_NO_TOKEN) fail("a row", "has no token"); /* a server would end the request here */
        request *r = e->running[e->slot[b]];
        r->output[r->done++] = e->tokens[b];
        e->counts[e->slot[b]][e->tokens[b]]++;
        if (r->done == r->length) e->running[e->slot[b]] = NULL;
    }
}

static int is_idle(const engine *e) {
    for (int s = 0; s < SLOTS; s++)
        if (e->running[s]) return 0;
    return 1;
}

/* Serves requests in order of arrival until all are done. */
static void serve(engine *e, request *requests, int count) {
    int next = 0, at_start = e->allocations;
    for (int step = 0; next < count || !is_idle(e); step++) {
        while (next < count && requests[next].arrives <= step && admit(e, &requests[next])) next++;
        schedule(e, step);
        check(fs_sample(e->context, &e->head, &e->batch, &e->result), e->context); /* GPU: cudaGraphLaunch */
        collect(e);
    }
    if (e->allocations != at_start) fail("a step", "allocated memory");
}

/* ----------------------------------------------------------------------------------------------------------- check
 * ---- */

static void check_grammar(const engine *e, const request *r) {
    for (int i = 0; i < r->length && r->grammar >= 0; i++)
        if (!(e->grammar[r->grammar][r->output[i] / 32] >> r->output[i] % 32 & 1)) fail("a grammar", "was left");
}

static void print_request(const request *r, int number) {
    printf("request %d: T %.1f, top-k %d, top-p %.1f, min-p %.2f%s:", number, (double)r->temperature, r->top_k,
           (double)r->top_p, (double)r->min_p, r->grammar < 0 ? "" : ", a grammar");
    for (int i = 0; i < r->length; i++) printf(" %d", r->output[i]);
    printf("\n");
}

int main(void) {
    static request together[REQUESTS] = {
        /* prompt seed temperature top_k top_p min_p frequency grammar arrives length */
        {1, 11, 1.0f, 0, 1.0f, 0.0f, 0.0f, -1, 0, 20, {0}, 0}, /* plain */
        {2, 12, 0.0f, 0, 1.0f, 0.0f, 1.0f, -1, 0, 9, {0}, 0},  /* greedy */
        {3, 13, 0.7f, 40, 0.9f, 0.0f, 0.0f, 0, 1, 12, {0}, 0}, /* both cuts, and only ids below 100 */
        {4, 14, 1.2f, 0, 1.0f, 0.05f, 0.0f, 1, 2, 7, {0}, 0},  /* only even ids */
        {5, 15, 1.0f, 0, 0.5f, 0.0f, 0.5f, -1, 3, 15, {0}, 0}, /* waits for a slot */
        {6, 16, 0.9f, 5, 1.0f, 0.0f, 0.0f, 1, 9, 8, {0}, 0},
    };
    static request alone[REQUESTS];
    memcpy(alone, together, sizeof alone);
    for (int v = 0; v < V; v++)
        for (int d = 0; d < D; d++) W[v][d] = hash_float((uint32_t)(v * D + d));

    engine *e = engine_create();
    if (strncmp(fs_context_text(e->context), "cuda", 4) == 0) {
        printf("the CUDA backend is here, and this caller's arrays are not in device memory\n");
        return 77;
    }
    serve(e, together, REQUESTS);
    /* What a request gets does not depend on who else was there, nor on its slot and row. */
    for (int i = 0; i < REQUESTS; i++) {
        alone[i].arrives = 0;
        serve(e, &alone[i], 1);
        check_grammar(e, &together[i]);
        if (memcmp(alone[i].output, together[i].output, sizeof alone[i].output) != 0)
            fail("a request", "got other tokens alone than in company");
    }
    for (int i = 0; i < REQUESTS; i++) print_request(&together[i], i);
    printf("%d requests on %d slots: each got the tokens that it gets alone, and no step allocated memory\n", REQUESTS,
           SLOTS);
    engine_destroy(e);
    return 0;
}
