/* small_calls.c - one call of every kind on the GPU, small enough for compute-sanitizer: scripts/sanitize-gpu.sh runs
 * it under each tool. What is written is checked for sentinels only; tests/gpu compares values. */
#include <cuda_runtime_api.h>
#include <flashsampling.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 2571, DIM = 192, MOST = 256, SENTINEL = 0x5A };

/* In device memory: rows are greedy and drawn by turns, and which comes first is the call's choice. */
static float *temperature;

typedef struct results {
    int32_t tokens[MOST];
    uint32_t status[MOST];
    float score[MOST], max_logit[MOST], log_z[MOST], logprob[MOST];
} results;

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

typedef struct asked {
    fs_batch batch;
    fs_result result;
} asked;

static asked ask(const void *hidden, int64_t rows, int32_t mode, int wants, results *device) {
    asked a = {fs_batch_default(), fs_result_default()};
    a.batch.rows = rows;
    a.batch.hidden = hidden;
    a.batch.hidden_dtype = FS_BF16;
    a.batch.mode = mode;
    a.batch.group_size = mode == FS_MODE_SAMPLE ? 0 : 512;
    a.batch.all.seed = 7;
    a.batch.temperature = temperature + wants;
    a.result.tokens = device->tokens;
    a.result.status = device->status;
    a.result.logits = FS_LOGITS_PROCESSED;
    if (wants) {
        a.result.score = device->score;
        a.result.max_logit = device->max_logit;
        a.result.log_z = device->log_z;
        a.result.logprob = device->logprob;
    }
    return a;
}

/* The rows have tokens, and what lies behind them is untouched. */
static void look(const results *device, int64_t rows) {
    results host;
    cuda(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int64_t b = 0; b < MOST; b++) {
        int written = host.tokens[b] >= 0 && host.tokens[b] < VOCAB && host.status[b] == FS_ROW_OK;
        int untouched = host.tokens[b] == 0x5A5A5A5A && host.status[b] == 0x5A5A5A5Au;
        must(b < rows ? written : untouched, "a row", b < rows ? "was not written" : "past the batch was written");
    }
}

static void call(fs_context *context, cudaStream_t stream, const fs_head *head, const void *hidden, int64_t rows,
                 int32_t mode, int wants, results *device) {
    asked a = ask(hidden, rows, mode, wants, device);
    cuda(cudaMemset(device, SENTINEL, sizeof *device), "cudaMemset");
    must(fs_sample(context, head, &a.batch, &a.result) == FS_OK, "fs_sample", fs_error_text(context));
    cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    look(device, rows);
}

/* The same in three shards, the last of them empty. */
static void call_in_parts(fs_context *context, cudaStream_t stream, const fs_head *whole, const void *hidden,
                          int64_t rows, int wants, results *device) {
    const int64_t end[] = {1024, VOCAB, VOCAB};
    asked a = ask(hidden, rows, FS_MODE_SAMPLE, wants, device);
    void *part[3];
    size_t bytes;
    cuda(cudaMemset(device, SENTINEL, sizeof *device), "cudaMemset");
    fs_head shard = *whole;
    shard.vocab = VOCAB;
    for (int64_t i = 0, first = 0; i < 3; first = end[i++]) {
        shard.data = (const uint16_t *)whole->data + first * DIM;
        shard.first_token = first;
        shard.rows = end[i] - first;
        must(fs_partial_size(context, &shard, &a.batch, &a.result, &bytes) == FS_OK, "fs_partial_size",
             fs_error_text(context));
        cuda(cudaMalloc(&part[i], bytes), "cudaMalloc");
        must(fs_partial(context, &shard, &a.batch, &a.result, part[i], bytes) == FS_OK, "fs_partial",
             fs_error_text(context));
    }
    must(fs_merge(context, &shard, &a.batch, (const void *const *)part, 3, &a.result) == FS_OK, "fs_merge",
         fs_error_text(context));
    cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    look(device, rows);
    for (int i = 0; i < 3; i++) cuda(cudaFree(part[i]), "cudaFree");
}

int main(int argc, char **argv) {
    const int only_stored = argc > 1 && strcmp(argv[1], "stored") == 0;
    must(argc == 1 || (argc == 2 && only_stored), "usage", "small_calls [stored]");
    cudaStream_t stream;
    fs_context *context = NULL;
    results *device = NULL;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    cuda(cudaMalloc((void **)&device, sizeof *device), "cudaMalloc");
    float by_turns[MOST + 1];
    for (int i = 0; i <= MOST; i++) by_turns[i] = (float)(i % 2);
    cuda(cudaMalloc((void **)&temperature, sizeof by_turns), "cudaMalloc");
    cuda(cudaMemcpy(temperature, by_turns, sizeof by_turns, cudaMemcpyHostToDevice), "cudaMemcpy");
    fs_options options = fs_options_default();
    options.backend = FS_BACKEND_CUDA;
    options.stream = stream;
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
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++)
            for (int wants = 0; wants < 2; wants++) {
                call(context, stream, &logits, NULL, rows[i], modes[m], wants, device);
                if (!only_stored) call(context, stream, &weights, hidden, rows[i], modes[m], wants, device);
                calls += only_stored ? 1 : 2;
            }
        for (int wants = 0; wants < 2 && !only_stored; wants++, calls++)
            call_in_parts(context, stream, &weights, hidden, rows[i], wants, device);
    }
    fs_context_destroy(context);
    cuda(cudaFree((void *)weights.data), "cudaFree");
    cuda(cudaFree((void *)logits.data), "cudaFree");
    cuda(cudaFree((void *)hidden), "cudaFree");
    cuda(cudaFree(temperature), "cudaFree");
    cuda(cudaFree(device), "cudaFree");
    cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    printf("small_calls: %d calls\n", calls);
    return 0;
}
