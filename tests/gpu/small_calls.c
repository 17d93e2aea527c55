/* small_calls.c - one call of every kind on the GPU, small enough for compute-sanitizer: scripts/sanitize-gpu.sh runs
 * it under each tool. What is written is checked for sentinels only; tests/gpu compares values. */
#include <cuda_runtime_api.h>
#include "../c/rules.h"

#include <flashsampling_ranks.h>
#include <flashsampling_screens.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 2571, DIM = 192, MOST = 256, SAMPLES = 3, TOP = 7, SENTINEL = 0x5A };
enum { WORDS = (VOCAB + 31) / 32, EACH = 5 }; /* of a mask; entries of each row's lists */

/* What a call has beside its temperatures; bits. */
enum { TOP_K = 1, TOP_P = 2, MIN_P = 4, MASK = 8, EDITS = 16, LISTS = 32, SEVERAL = 64, WANTS = 128, SOME_K = 256 };

/* In device memory: rows are greedy and drawn by turns, and which comes first is the call's choice. */
static float *temperature;

typedef struct results {
    int32_t tokens[MOST * SAMPLES];
    uint32_t status[MOST];
    float score[MOST * SAMPLES], max_logit[MOST], log_z[MOST], logprob[MOST * SAMPLES];
    int32_t rank[MOST * SAMPLES], top_token[MOST * TOP];
    float top_logprob[MOST * TOP], watch_logprob[MOST * EACH];
} results;

/* Arrays of rules, in device memory. */
typedef struct rules {
    uint32_t allow[MOST * WORDS], seen[MOST * WORDS];
    int64_t offset[MOST + 1];
    int32_t token[MOST * EACH], counts[MOST * VOCAB], top_k[MOST];
    float bias[MOST * EACH];
} rules;
static rules *ruled;

static void must(int good, const char *what, const char *why) {
    if (good) return;
    fprintf(stderr, "small_calls: %s: %s\n", what, why);
    exit(1);
}

static void cuda(cudaError_t error, const char *what) {
    must(error == cudaSuccess, what, cudaGetErrorString(error));
}

/* Device memory with n pseudo-random values: bf16 in (-0.5, 0.5), or float in (-4, 4). */
static void *numbers(size_t n, int floats, uint32_t seed) {
    size_t bytes = n * (floats ? 4 : 2);
    unsigned char *host = malloc(bytes);
    void *device = NULL;
    must(host != NULL, "malloc", "no memory");
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(seed >> 8) / (1 << 24) - 0.5f;
        if (floats) x *= 8.0f;
        memcpy(host + i * (floats ? 4 : 2), (const char *)&x + (floats ? 0 : 2), floats ? 4 : 2);
    }
    cuda(cudaMalloc(&device, bytes), "cudaMalloc");
    cuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(host);
    return device;
}

static void make_rules(void) {
    rules *host = malloc(sizeof *host);
    must(host != NULL, "malloc", "no memory");
    for (int i = 0; i < MOST * WORDS; i++) host->allow[i] = 0x55555555u << i % 2, host->seen[i] = 0x01010101u;
    for (int i = 0; i <= MOST; i++) host->offset[i] = (int64_t)i * EACH;
    for (int i = 0; i < MOST * EACH; i++) host->token[i] = i * 37 % VOCAB, host->bias[i] = (float)(i % 3) - 1.0f;
    for (int i = 0; i < MOST * VOCAB; i++) host->counts[i] = i % 11 == 0;
    for (int i = 0; i < MOST; i++) host->top_k[i] = i % 3 ? 0 : 50;
    cuda(cudaMalloc((void **)&ruled, sizeof *host), "cudaMalloc");
    cuda(cudaMemcpy(ruled, host, sizeof *host, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(host);
}

typedef struct asked {
    fs_batch batch;
    fs_result result;
} asked;

static void ask_rules(fs_batch *batch, int what) {
    if (what & TOP_K) rules_of(batch)->top_k.value = 50;
    if (what & TOP_P) rules_of(batch)->top_p.value = 0.9f;
    if (what & SOME_K) rules_of(batch)->top_k.per_slot = ruled->top_k;
    if (what & MIN_P) rules_of(batch)->min_p.value = 0.01f;
    if (what & MASK) batch->allow = ruled->allow;
    if (what & EDITS) {
        batch->edit_offset = ruled->offset, batch->edit_token = ruled->token, batch->edit_bias = ruled->bias;
        batch->seen = ruled->seen, batch->counts = ruled->counts;
        rules_of(batch)->repetition.value = 1.2f, rules_of(batch)->frequency.value = 0.5f;
    }
    if (what & SEVERAL) batch->samples = SAMPLES;
}

static asked ask(const void *hidden, int64_t rows, int32_t mode, int what, results *device) {
    const int wants = (what & WANTS) != 0;
    asked a = {fs_batch_default(), fs_result_default()};
    a.batch.rows = rows;
    a.batch.hidden = hidden;
    a.batch.hidden_dtype = FS_BF16;
    a.batch.mode = mode;
    a.batch.group_size = mode == FS_MODE_SAMPLE ? 0 : 512;
    a.batch.seed_all = 7;
    rules_of(&a.batch)->temperature.per_slot = temperature + wants;
    a.result.tokens = device->tokens;
    a.result.status = device->status;
    a.result.logits_mode = FS_LOGITS_PROCESSED;
    if (wants) {
        a.result.noisy_logit = device->score;
        a.result.max_logit = device->max_logit;
        a.result.log_z = device->log_z;
        a.result.logprob = device->logprob;
    }
    ask_rules(&a.batch, what);
    if (what & LISTS) {
        a.batch.watch_offset = ruled->offset, a.batch.watch_token = ruled->token;
        limits_of(&a.batch)->watched = rows * EACH;
        a.result.rank = device->rank;
        a.result.top_count = TOP, a.result.top_token = device->top_token, a.result.top_logprob = device->top_logprob;
        a.result.watch_logprob = device->watch_logprob;
    }
    return a;
}

/* The rows have tokens, and what lies behind them is untouched. */
static void look(const results *device, const char *call, int64_t rows, int what, int32_t samples) {
    results host;
    cuda(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int64_t i = 0; i < MOST * samples; i++) {
        const int64_t b = i / samples;
        const uint32_t status = host.status[b] & ~(uint32_t)(FS_ROW_FALLBACK | FS_ROW_RANK_BOUND);
        int written = host.tokens[i] >= 0 && host.tokens[i] < VOCAB && status == FS_ROW_OK;
        int untouched = host.tokens[i] == 0x5A5A5A5A && host.status[b] == 0x5A5A5A5Au;
        if (b < rows ? written : untouched) continue;
        fprintf(stderr, "small_calls: %s of %lld rows, rules 0x%x: row %lld has token %d and status 0x%x\n", call,
                (long long)rows, (unsigned)what, (long long)b, (int)host.tokens[i], (unsigned)host.status[b]);
        exit(1);
    }
}

static void call(fs_context *context, cudaStream_t stream, const fs_head *head, const void *hidden, int64_t rows,
                 int32_t mode, int what, results *device) {
    asked a = ask(hidden, rows, mode, what, device);
    cuda(cudaMemsetAsync(device, SENTINEL, sizeof *device, stream), "cudaMemset");
    must(fs_sample(context, head, &a.batch, &a.result) == FS_OK, "fs_sample", fs_error_text(context));
    cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    look(device, "a call", rows, what, a.batch.samples);
}

/* The same in three shards, the last of them empty; with a screen in one, which it is of. */
static void call_in_parts(fs_context *context, cudaStream_t stream, const fs_head *whole, const void *hidden,
                          int64_t rows, int what, results *device) {
    const int64_t end[] = {whole->screen ? VOCAB : 1024, VOCAB, VOCAB};
    const int shards = whole->screen ? 1 : 3;
    asked a = ask(hidden, rows, FS_MODE_SAMPLE, what, device);
    void *part[3];
    size_t bytes;
    cuda(cudaMemsetAsync(device, SENTINEL, sizeof *device, stream), "cudaMemset");
    fs_head shard = *whole;
    shard.vocab = VOCAB;
    for (int64_t i = 0, first = 0; i < shards; first = end[i++]) {
        shard.data = (const uint16_t *)whole->data + first * DIM;
        shard.first_token = first;
        shard.rows = end[i] - first;
        must(fs_work_size(context, &shard, &a.batch, &a.result, &bytes, NULL) == FS_OK, "fs_work_size",
             fs_error_text(context));
        must(fs_partial_size(context, &shard, &a.batch, &a.result, &bytes) == FS_OK, "fs_partial_size",
             fs_error_text(context));
        cuda(cudaMalloc(&part[i], bytes), "cudaMalloc");
        must(fs_partial(context, &shard, &a.batch, &a.result, part[i], bytes) == FS_OK, "fs_partial",
             fs_error_text(context));
    }
    must(fs_merge(context, &shard, &a.batch, (const void *const *)part, shards, &a.result) == FS_OK, "fs_merge",
         fs_error_text(context));
    cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    look(device, "shards", rows, what, a.batch.samples);
    for (int i = 0; i < shards; i++) cuda(cudaFree(part[i]), "cudaFree");
}

/* Every rule alone and some together, ended in the pass or by teams; and over shards. */
static int call_rules(fs_context *context, cudaStream_t stream, const fs_head *head, const void *hidden,
                      results *device) {
    const int64_t rows[] = {3, 40};
    const int what[] = {TOP_K,
                        TOP_P,
                        TOP_K | TOP_P | MIN_P,
                        SOME_K | TOP_P,
                        SOME_K | TOP_P | MASK | EDITS,
                        MASK,
                        EDITS,
                        TOP_K | TOP_P | MASK | EDITS,
                        LISTS | WANTS,
                        TOP_P | EDITS | LISTS | WANTS,
                        SEVERAL,
                        TOP_K | SEVERAL | WANTS};
    int calls = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t j = 0; j < sizeof what / sizeof what[0]; j++) {
            call(context, stream, head, hidden, rows[i], FS_MODE_SAMPLE, what[j], device);
            calls++;
            if (head->kind == FS_HEAD_LOGITS) continue;
            call_in_parts(context, stream, head, hidden, rows[i], what[j], device);
            calls++;
        }
    return calls;
}

static int call_screens(fs_context *context, cudaStream_t stream, const fs_head *whole, const void *hidden,
                        results *device) {
    const int64_t rows[] = {1, 8, 16, 20};
    const int what[] = {0, TOP_K, SOME_K, TOP_K | TOP_P | MASK, MIN_P | EDITS, EDITS | MASK, SOME_K | TOP_P, SEVERAL};
    const int kinds = (int)(sizeof what / sizeof what[0]);
    for (int32_t format = FS_SCREEN_INT8; format <= FS_SCREEN_INT4; format++) {
        fs_screen_options options = fs_screen_options_default();
        fs_head head = *whole;
        void *screen = NULL;
        options.format = format;
        must(fs_screen_size(context, &head, &options, &head.screen_bytes) == FS_OK, "fs_screen_size",
             fs_error_text(context));
        cuda(cudaMalloc(&screen, head.screen_bytes), "cudaMalloc");
        must(fs_screen_build(context, &head, &options, screen, head.screen_bytes) == FS_OK, "fs_screen_build",
             fs_error_text(context));
        head.screen = screen;
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            for (int j = 0; j < kinds; j++)
                call(context, stream, &head, hidden, rows[i], FS_MODE_SAMPLE, what[j], device);
            call_in_parts(context, stream, &head, hidden, rows[i], 0, device);
        }
        cuda(cudaFree(screen), "cudaFree");
    }
    return 8 * (kinds + 1);
}

int main(int argc, char **argv) {
    const int only_stored = argc > 1 && strcmp(argv[1], "stored") == 0;
    const int only_rules = argc > 1 && strcmp(argv[1], "rules") == 0;
    const int only_screens = argc > 1 && strcmp(argv[1], "screens") == 0;
    must(argc == 1 || (argc == 2 && (only_stored || only_rules || only_screens)), "usage",
         "small_calls [stored | rules | screens]");
    cudaStream_t stream;
    fs_context *context = NULL;
    results *device = NULL;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    cuda(cudaMalloc((void **)&device, sizeof *device), "cudaMalloc");
    float by_turns[MOST + 1];
    for (int i = 0; i <= MOST; i++) by_turns[i] = (float)(i % 2);
    cuda(cudaMalloc((void **)&temperature, sizeof by_turns), "cudaMalloc");
    cuda(cudaMemcpy(temperature, by_turns, sizeof by_turns, cudaMemcpyHostToDevice), "cudaMemcpy");
    make_rules();
    setenv("FLASHSAMPLING_SCREEN_ROWS", "20", 1); /* of heads so small that W would be read */
    fs_options options = fs_options_default();
    options.backend = FS_BACKEND_CUDA;
    options.cuda_stream = stream;
    must(fs_context_create(&options, &context) == FS_OK, "fs_context_create", fs_error_text(NULL));

    fs_head weights = fs_head_default(), logits = fs_head_default();
    weights.dtype = FS_BF16;
    weights.data = numbers((size_t)VOCAB * DIM, 0, 1);
    weights.rows = VOCAB;
    weights.dim = DIM;
    logits.kind = FS_HEAD_LOGITS;
    logits.dtype = FS_F32;
    logits.data = numbers((size_t)MOST * VOCAB, 1, 2);
    logits.rows = VOCAB;
    const void *hidden = numbers((size_t)MOST * DIM, 0, 3);

    const int64_t rows[] = {1, 5, 40, 64, 101, 250};
    const int32_t modes[] = {FS_MODE_SAMPLE, FS_MODE_GROUP_PARALLEL, FS_MODE_GROUP_ONLINE};
    int calls = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !only_rules && !only_screens; i++) {
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++)
            for (int wants = 0; wants < 2; wants++) {
                call(context, stream, &logits, NULL, rows[i], modes[m], wants * WANTS, device);
                if (!only_stored) call(context, stream, &weights, hidden, rows[i], modes[m], wants * WANTS, device);
                calls += only_stored ? 1 : 2;
            }
        for (int wants = 0; wants < 2 && !only_stored; wants++, calls++)
            call_in_parts(context, stream, &weights, hidden, rows[i], wants * WANTS, device);
    }
    if (!only_stored && !only_screens) calls += call_rules(context, stream, &weights, hidden, device);
    if (!only_screens) calls += call_rules(context, stream, &logits, NULL, device);
    if (!only_stored) calls += call_screens(context, stream, &weights, hidden, device);
    fs_context_destroy(context);
    cuda(cudaFree((void *)weights.data), "cudaFree");
    cuda(cudaFree((void *)logits.data), "cudaFree");
    cuda(cudaFree((void *)hidden), "cudaFree");
    cuda(cudaFree(temperature), "cudaFree");
    cuda(cudaFree(ruled), "cudaFree");
    cuda(cudaFree(device), "cudaFree");
    cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    printf("small_calls: %d calls\n", calls);
    return 0;
}
