/* ranks_nccl.c - the LM head is split over GPUs; every rank draws the same tokens, and nothing waits for the host.
 *
 *   make ranks_nccl && rm -f nccl-id && for r in 0 1; do ./ranks_nccl $r 2 nccl-id & done; wait
 *
 * The ranks find each other through a file. Each takes device RANK, modulo how many there are; several on one device need
 * NCCL_HOSTID=$r NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1. */
#include <flashsampling_nccl.h>

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>

enum { B = 4, D = 64, V = 5120, STEPS = 6 };

static void stop_unless(int well, const char *what, const char *text) {
    if (well) return;
    fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}
#define CUDA(call) stop_unless((call) == cudaSuccess, #call, cudaGetErrorString(cudaGetLastError()))

/* Rows [v0, v1) in bf16 on the device: the upper half of a float's bits. */
static uint16_t *make_rows(int64_t v0, int64_t v1) {
    const size_t bytes = (size_t)(v1 - v0) * D * sizeof(uint16_t);
    uint16_t *host = malloc(bytes + 1), *device = NULL;
    stop_unless(host != NULL, "malloc", "no memory");
    for (int64_t i = v0 * D; i < v1 * D; i++) {
        const float x = (float)(i * 7919 % 2003) / 2003 - 0.5f;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        host[i - v0 * D] = (uint16_t)(bits >> 16);
    }
    CUDA(cudaMalloc((void **)&device, bytes + 1));
    CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

/* Rank 0 leaves the communicator's id in the file; the others wait for it. */
static ncclUniqueId share_id(int rank, const char *path) {
    ncclUniqueId id;
    char temporary[512];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    if (rank == 0) {
        stop_unless(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId", "failed");
        FILE *file = fopen(temporary, "wb");
        stop_unless(file && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0 && rename(temporary, path) == 0,
                    path, "cannot be written");
        return id;
    }
    for (;;) {
        FILE *file = fopen(path, "rb");
        if (!file) continue;
        stop_unless(fread(&id, sizeof id, 1, file) == 1, path, "is too short");
        fclose(file);
        return id;
    }
}

int main(int argc, char **argv) {
    stop_unless(argc == 4, "usage", "ranks_nccl RANK COUNT FILE");
    const int rank = atoi(argv[1]), count = atoi(argv[2]);
    int devices = 1;
    ncclComm_t communicator;
    cudaStream_t stream;
    fs_ranks *ranks;
    fs_context *context;
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(rank % devices));
    CUDA(cudaStreamCreate(&stream));
    stop_unless(ncclCommInitRank(&communicator, count, share_id(rank, argv[3]), rank) == ncclSuccess,
                "ncclCommInitRank", "failed");
    stop_unless(fs_nccl_open(communicator, FS_NCCL_MAY_ABORT, &ranks) == FS_OK, "fs_nccl_open", fs_nccl_error_text());
    fs_options options = fs_options_default();
    options.backend = FS_BACKEND_CUDA;
    options.device = rank % devices;
    options.cuda_stream = stream;
    stop_unless(fs_context_create(&options, &context) == FS_OK, "fs_context_create", fs_error_text(NULL));

    /* This rank's rows of the vocabulary; at multiples of 128, log Z too is the same for any number of ranks. */
    const int64_t v0 = V * rank / count / 128 * 128, v1 = rank + 1 == count ? V : V * (rank + 1) / count / 128 * 128;
    fs_head head = fs_head_default();
    head.data = make_rows(v0, v1);
    head.rows = v1 - v0;
    head.dim = D;
    head.dtype = FS_BF16;
    head.first_token = v0;
    head.vocab = V;

    fs_batch batch = fs_batch_default();
    batch.rows = B;
    batch.hidden = make_rows(100, 100 + B);
    batch.hidden_dtype = FS_BF16;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    rules.temperature.value = 0.8f;
    batch.seed_all = 42;

    int32_t token[B];
    fs_result result = fs_result_default();
    CUDA(cudaMalloc(&result.tokens, sizeof token));
    for (batch.position_all = 0; batch.position_all < STEPS; batch.position_all++) {
        stop_unless(fs_sample_ranks(context, ranks, &head, &batch, &result) == FS_OK, "fs_sample_ranks",
                    fs_error_text(context));
        /* An engine would go on enqueueing; here the tokens are wanted now, and no rank is waited for more than 30 s. */
        stop_unless(fs_nccl_poll(ranks, stream, 30.0, NULL) == FS_OK, "fs_nccl_poll", ranks->error_text(ranks->self));
        CUDA(cudaMemcpy(token, result.tokens, sizeof token, cudaMemcpyDeviceToHost));
        if (rank == 0)
            printf("step %d: tokens %d %d %d %d\n", (int)batch.position_all, token[0], token[1], token[2], token[3]);
    }
    fs_context_destroy(context);
    fs_nccl_close(ranks);
    ncclCommDestroy(communicator);
    return 0;
}
