/* tensor_parallel.c - the head is split over ranks, and the engine has an all-gather of its own (NCCL, MPI, shared
 * memory). Each rank makes a part from its shard, the parts are gathered, and every rank merges them to the same
 * tokens, which are those of the unsharded head. Ranks are threads here, and the all-gather is a copy between two
 * barriers. */
#define _POSIX_C_SOURCE 200112L
#include <flashsampling_ranks.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 6, D = 48, V = 5003, MOST_RANKS = 4, TOP = 5 };

static float W[V][D], H[B][D];

typedef struct answer {
    int32_t token[B], top[B][TOP];
    float logprob[B], log_z[B];
    uint32_t status[B];
    int rounds; /* how often the ranks had to exchange parts */
} answer;

static void fill(float *x, int n, uint32_t seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void check(fs_status status, const fs_context *context) {
    if (status == FS_OK) return;
    fprintf(stderr, "tensor_parallel: %s: %s\n", fs_status_text(status), fs_error_text(context));
    exit(1);
}

/* ------------------------------------------------------------------------------------- what every rank agrees on
 * ---- */

static const float temperature[B] = {1.0f, 0.7f, 0.0f, 1.0f, 1.0f, 4.0f};
static const int32_t top_k[B] = {0, 40, 0, 0, 0, 0};
static const float top_p[B] = {1.0f, 0.9f, 1.0f, 0.8f, 1.0f, 0.6f};
static const float min_p[B] = {0.0f, 0.0f, 0.0f, 0.0f, 0.05f, 0.0f};

static const fs_rules rules = {.size = sizeof rules,
                               .temperature.per_slot = temperature,
                               .top_k.per_slot = top_k,
                               .top_p.per_slot = top_p,
                               .min_p.per_slot = min_p};

static fs_batch make_batch(void) {
    fs_batch batch = fs_batch_default();
    batch.rows = B;
    batch.hidden = H;
    batch.rules = &rules;
    batch.seed_all = 7;
    batch.position_all = 1003;
    return batch;
}

static fs_result make_result(answer *a) {
    fs_result result = fs_result_default();
    result.tokens = a->token;
    result.logprob = a->logprob;
    result.log_z = a->log_z;
    result.top_count = TOP;
    result.top_token = a->top[0];
    result.status = a->status;
    return result;
}

/* Rows [v0, v1) of W. Shards begin at multiples of 16: then log Z too is the same bit for bit. */
static fs_head make_shard(int rank, int ranks) {
    const int64_t v0 = (int64_t)V * rank / ranks / 16 * 16;
    const int64_t v1 = rank + 1 == ranks ? V : (int64_t)V * (rank + 1) / ranks / 16 * 16;
    fs_head head = fs_head_default();
    head.data = W[v0];
    head.rows = v1 - v0;
    head.dim = D;
    head.first_token = v0;
    head.vocab = V;
    return head;
}

/* ------------------------------------------------------------------------------------------- the engine's transport
 * ---- */

typedef struct world {
    int ranks;
    pthread_barrier_t barrier;
    char *gathered; /* [ranks, bytes], one buffer for all because the ranks share memory */
} world;

/* Every rank sends `part` and gets the parts of all ranks; valid until the next call. */
static char *all_gather(world *w, int rank, const void *part, size_t bytes) {
    pthread_barrier_wait(&w->barrier);
    if (rank == 0) w->gathered = realloc(w->gathered, (size_t)w->ranks * bytes);
    pthread_barrier_wait(&w->barrier);
    if (!w->gathered) exit(1);
    memcpy(w->gathered + (size_t)rank * bytes, part, bytes);
    pthread_barrier_wait(&w->barrier);
    return w->gathered;
}

/* ------------------------------------------------------------------------------------------------------- one rank
 * ---- */

static int is_incomplete(const answer *a) {
    for (int b = 0; b < B; b++)
        if (a->status[b] & FS_ROW_INCOMPLETE) return 1;
    return 0;
}

static void run_rank(world *w, int rank, answer *a) {
    fs_context *context;
    fs_options options = fs_options_default();
    options.threads = 1;
    check(fs_context_create(&options, &context), NULL);

    fs_head shard = make_shard(rank, w->ranks);
    fs_batch batch = make_batch();
    fs_result result = make_result(a);
    /* A row whose nucleus is wider than the candidate lists comes back incomplete, on every rank alike: they saw the
     * same parts. So all of them go round again, with longer lists. A list as long as the vocabulary proves
     * everything. */
    for (;; batch.list_capacity = batch.list_capacity ? 4 * batch.list_capacity : 4096) {
        size_t bytes;
        check(fs_partial_size(context, &shard, &batch, &result, &bytes), context);
        void *part = malloc(bytes);
        if (!part) exit(1);
        check(fs_partial(context, &shard, &batch, &result, part, bytes), context);
        char *gathered = all_gather(w, rank, part, bytes);
        free(part);

        const void *parts[MOST_RANKS];
        for (int r = 0; r < w->ranks; r++) parts[r] = gathered + (size_t)r * bytes;
        check(fs_merge(context, &shard, &batch, parts, w->ranks, &result), context);
        a->rounds++;
        if (!is_incomplete(a)) break;
    }
    fs_context_destroy(context);
}

/* ---------------------------------------------------------------------------------------------- the ranks together
 * ---- */

typedef struct peer {
    world *w;
    int rank;
    answer a;
} peer;

static void *run_peer(void *arg) {
    peer *p = arg;
    run_rank(p->w, p->rank, &p->a);
    return NULL;
}

static int same(const answer *a, const answer *b) {
    return memcmp(a->token, b->token, sizeof a->token) == 0 && memcmp(a->top, b->top, sizeof a->top) == 0 &&
           memcmp(a->logprob, b->logprob, sizeof a->logprob) == 0 && memcmp(a->log_z, b->log_z, sizeof a->log_z) == 0;
}

int main(void) {
    fill(W[0], V * D, 1);
    fill(H[0], B * D, 2);

    /* The truth: the whole head in one call. */
    static answer whole;
    fs_context *context;
    check(fs_context_create(NULL, &context), NULL);
    fs_head head = make_shard(0, 1);
    fs_batch batch = make_batch();
    fs_result result = make_result(&whole);
    check(fs_sample(context, &head, &batch, &result), context);
    fs_context_destroy(context);

    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        world w = {.ranks = ranks};
        static peer peers[MOST_RANKS];
        memset(peers, 0, sizeof peers);
        pthread_t thread[MOST_RANKS];
        pthread_barrier_init(&w.barrier, NULL, (unsigned)ranks);
        for (int r = 0; r < ranks; r++) {
            peers[r].w = &w;
            peers[r].rank = r;
            if (pthread_create(&thread[r], NULL, run_peer, &peers[r]) != 0) return 1;
        }
        for (int r = 0; r < ranks; r++) pthread_join(thread[r], NULL);
        pthread_barrier_destroy(&w.barrier);
        free(w.gathered);
        for (int r = 0; r < ranks; r++)
            if (!same(&peers[r].a, &whole)) {
                fprintf(stderr, "tensor_parallel: rank %d of %d differs from the unsharded head\n", r, ranks);
                return 1;
            }
        printf("%d ranks: the same tokens, logprobs and log Z after %d exchanges\n", ranks, peers[0].a.rounds);
    }
    return 0;
}
