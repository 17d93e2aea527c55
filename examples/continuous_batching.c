/* continuous_batching.c - a serving loop: requests come and go, each has its own rules, seed and slot, and one call per
 * step draws a token for every running request. docs/guide/replace-your-sampler.md explains it step by step. */
#include <flashsampling.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 3, D = 64, V = 8000, WORDS = (V + 31) / 32, MAX_TOKENS = 6, REQUESTS = 5 };

typedef struct request {
    int arrives, length; /* the step it comes in, and how many tokens it wants */
    uint32_t prompt;     /* stands for its tokens */
    float temperature;
    int32_t top_k;
    float top_p, frequency;
    uint64_t seed;
    int grammar, logprobs; /* whether it has one, and wants them */
    int32_t token[MAX_TOKENS];
    float logprob[MAX_TOKENS];
    int done;
    uint32_t error; /* the status of a row without a token */
} request;

static float weight[V][D]; /* the LM head, [V, D] */
static request *running[SLOTS];

/* By slot: written when a request arrives, and valid until it leaves. */
static float temperature[SLOTS], top_p[SLOTS], frequency[SLOTS];
static int32_t top_k[SLOTS], counts[SLOTS][V];
static uint64_t seed[SLOTS];
static uint32_t masks[SLOTS][WORDS]; /* one bit per token, 1 = allowed */

/* By row: written in every step. */
static float hidden[SLOTS][D];
static int32_t slot[SLOTS], mask_of_row[SLOTS], token[SLOTS];
static uint64_t position[SLOTS];
static uint32_t row_status[SLOTS];
static float logprob[SLOTS];

static void check(fs_status status, const fs_context *context) {
    if (status == FS_OK) return;
    fprintf(stderr, "%s error: %s\n", fs_status_text(status), fs_error_text(context));
    exit(1);
}

/* ------------------------------------------------------------------------------------------- your engine's part ---- */

static float pseudo_random(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return (float)((x ^ x >> 16) >> 8) / 8388608.0f - 1.0f;
}

/* Stands for the model: the hidden state behind the request's last token, or behind its prompt. */
static void forward(const request *r, float *h) {
    const uint32_t last = r->done ? (uint32_t)r->token[r->done - 1] : r->prompt;
    for (uint32_t d = 0; d < D; d++) h[d] = 2.0f * pseudo_random(last * 131 + (uint32_t)r->done * 7919 + d * 104729);
}

/* Stands for the grammar: only tokens below 100, and after three tokens none at all, as a broken grammar would. */
static void advance_grammar(const request *r, uint32_t *mask) {
    memset(mask, 0, WORDS * sizeof *mask);
    for (int v = 0; v < 100 && r->done < 3; v++) mask[v / 32] |= 1u << v % 32;
}

/* --------------------------------------------------------------------------------------------------------- setup ---- */

static void describe(fs_head *head, fs_batch *batch, fs_rules *rules, fs_result *result) {
    *head = fs_head_default();
    head->data = weight;
    head->dtype = FS_F32;
    head->rows = V;
    head->dim = D;

    *rules = fs_rules_default();
    rules->temperature.per_slot = temperature;
    rules->top_k.per_slot = top_k;
    rules->top_p.per_slot = top_p;
    rules->frequency.per_slot = frequency;

    *batch = fs_batch_default();
    batch->rows = SLOTS;
    batch->slots = SLOTS;
    batch->rules = rules;
    batch->seed = seed;
    batch->counts = counts[0];
    batch->allow = masks[0];
    batch->hidden = hidden;
    batch->slot = slot;
    batch->position = position;
    batch->allow_index = mask_of_row;

    *result = fs_result_default();
    result->tokens = token;
    result->status = row_status;
    result->logprob = logprob;
}

/* Asks with the widest rules that will be admitted, so that no later call needs more. */
static void *plan_memory(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    size_t bytes;
    for (int s = 0; s < SLOTS; s++) slot[s] = s, temperature[s] = 1.0f, top_p[s] = 0.5f, frequency[s] = 1.0f;
    check(fs_work_size(context, head, batch, result, NULL, &bytes), context);
    void *work = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!work) exit(1);
    check(fs_context_set_work(context, work, bytes), context);
    printf("work memory: %zu KB; no step allocates\n", bytes / 1024);
    return work;
}

/* ---------------------------------------------------------------------------------------------------------- loop ---- */

static int admit(request *r) {
    int s = 0;
    while (s < SLOTS && running[s]) s++;
    if (s == SLOTS) return 0;
    running[s] = r;
    temperature[s] = r->temperature;
    top_k[s] = r->top_k;
    top_p[s] = r->top_p;
    frequency[s] = r->frequency;
    seed[s] = r->seed;
    memset(counts[s], 0, sizeof counts[s]);
    return 1;
}

/* Puts every running request into a row; the number of rows is returned. */
static int fill_rows(void) {
    int rows = 0;
    for (int s = 0; s < SLOTS; s++) {
        if (!running[s]) continue;
        slot[rows] = s;
        position[rows] = (uint64_t)running[s]->done;
        mask_of_row[rows] = running[s]->grammar ? s : -1;
        if (running[s]->grammar) advance_grammar(running[s], masks[s]);
        forward(running[s], hidden[rows]);
        rows++;
    }
    return rows;
}

static void collect(int rows) {
    for (int b = 0; b < rows; b++) {
        const int s = slot[b];
        request *r = running[s];
        if (row_status[b] & FS_ROW_NO_TOKEN) {
            r->error = row_status[b]; /* this request fails; the other rows have their tokens */
            running[s] = NULL;
            continue;
        }
        r->token[r->done] = token[b];
        r->logprob[r->done] = logprob[b];
        counts[s][token[b]]++;
        if (++r->done == r->length) running[s] = NULL;
    }
}

static void serve(fs_context *context, const fs_head *head, fs_batch *batch, const fs_result *result, request *requests,
                  int count) {
    int next = 0, rows = 1;
    for (int step = 0; next < count || rows > 0; step++) {
        while (next < count && requests[next].arrives <= step && admit(&requests[next])) next++;
        batch->rows = rows = fill_rows();
        check(fs_sample(context, head, batch, result), context);
        collect(rows);
    }
}

static void print_request(const request *r, int number) {
    printf("request %d:", number);
    for (int i = 0; i < r->done; i++) {
        printf(" %d", r->token[i]);
        if (r->logprobs) printf(" (%.2f)", (double)r->logprob[i]);
    }
    printf("%s\n", r->error & FS_ROW_EMPTY ? ", then the grammar allowed no token" : "");
}

int main(void) {
    static request requests[REQUESTS] = {
        {.arrives = 0, .length = 6, .prompt = 1, .seed = 11, .temperature = 1.0f, .top_p = 1.0f},
        {.arrives = 0, .length = 3, .prompt = 2, .seed = 12, .temperature = 0.0f, .top_p = 1.0f, .frequency = 0.5f},
        {.arrives = 1, .length = 5, .prompt = 3, .seed = 13, .temperature = 0.7f, .top_p = 0.9f, .grammar = 1},
        {.arrives = 2, .length = 4, .prompt = 4, .seed = 14, .temperature = 0.8f, .top_p = 0.95f, .logprobs = 1},
        {.arrives = 2, .length = 4, .prompt = 5, .seed = 15, .temperature = 1.2f, .top_p = 1.0f, .top_k = 5},
    };
    for (uint32_t i = 0; i < V * D; i++) weight[i / D][i % D] = pseudo_random(i);
    static request alone[REQUESTS];
    memcpy(alone, requests, sizeof alone);

    fs_context *context;
    check(fs_context_create(NULL, &context), NULL);
    fs_head head;
    fs_rules rules;
    fs_batch batch;
    fs_result result;
    describe(&head, &batch, &rules, &result);
    void *work = plan_memory(context, &head, &batch, &result);

    serve(context, &head, &batch, &result, requests, REQUESTS);
    for (int i = 0; i < REQUESTS; i++) print_request(&requests[i], i);

    for (int i = 0; i < REQUESTS; i++) {
        alone[i].arrives = 0;
        serve(context, &head, &batch, &result, &alone[i], 1);
        if (memcmp(alone[i].token, requests[i].token, sizeof alone[i].token) != 0) return puts("tokens differ"), 1;
    }
    puts("each request gets the same tokens when it runs alone");
    fs_context_destroy(context);
    free(work);
    return 0;
}
