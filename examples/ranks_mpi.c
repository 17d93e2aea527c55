/* ranks_mpi.c - the LM head is split over MPI ranks; every rank draws the same tokens, which are those of one rank.
 *
 *   make ranks_mpi && mpirun -n 3 ./ranks_mpi
 */
#include <flashsampling_mpi.h>

#include <stdio.h>
#include <stdlib.h>

enum { B = 4, D = 64, V = 5003, STEPS = 6 };

/* Row v of the head; a real one would be read from a file, each rank its own part. */
static void make_row(float *row, int64_t v) {
    for (int d = 0; d < D; d++) row[d] = (float)((v * D + d) * 7919 % 2003) / 2003 - 0.5f;
}

static void stop_unless_ok(fs_status status, const char *text) {
    if (status == FS_OK) return;
    fprintf(stderr, "%s error: %s\n", fs_status_text(status), text);
    MPI_Abort(MPI_COMM_WORLD, 1); /* not MPI_Finalize, which would wait for a rank that is gone */
}

int main(int argc, char **argv) {
    fs_ranks *ranks;
    fs_context *context;
    MPI_Init(&argc, &argv);
    stop_unless_ok(fs_mpi_open(MPI_COMM_WORLD, 30.0, &ranks), fs_mpi_error_text());
    stop_unless_ok(fs_context_create(NULL, &context), fs_error_text(NULL));

    /* This rank's rows [v0, v1) of the vocabulary. Any split will do; at multiples of 16, log Z too is the same bit for bit. */
    const int64_t v0 = V * ranks->rank / ranks->count / 16 * 16;
    const int64_t v1 = ranks->rank + 1 == ranks->count ? V : V * (ranks->rank + 1) / ranks->count / 16 * 16;
    float(*W)[D] = malloc(sizeof *W * (size_t)(v1 - v0 + 1));
    static float H[B][D]; /* the same on every rank: what the transformer's last all-reduce gave */
    if (!W) stop_unless_ok(FS_ERR_MEMORY, "no memory for the head");
    for (int64_t v = v0; v < v1; v++) make_row(W[v - v0], v);
    for (int b = 0; b < B; b++) make_row(H[b], 100 + b);

    fs_head head = fs_head_default();
    head.data = W;
    head.rows = v1 - v0;
    head.dim = D;
    head.first_token = v0;
    head.vocab = V;

    fs_batch batch = fs_batch_default();
    batch.rows = B;
    batch.hidden = H;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    rules.temperature.value = 0.8f;
    rules.top_p.value = 0.95f;
    batch.seed_all = 42;

    int32_t token[B];
    fs_result result = fs_result_default();
    result.tokens = token;
    for (batch.position_all = 0; batch.position_all < STEPS; batch.position_all++) {
        stop_unless_ok(fs_sample_ranks(context, ranks, &head, &batch, &result), fs_error_text(context));
        if (ranks->rank == 0)
            printf("step %d: tokens %d %d %d %d\n", (int)batch.position_all, token[0], token[1], token[2], token[3]);
    }
    fs_counters counters = fs_counters_default();
    fs_context_counters(context, &counters);
    if (ranks->rank == 0)
        fprintf(stderr, "%d ranks, each sent %lld bytes per step\n", ranks->count, (long long)counters.wire_bytes);
    fs_context_destroy(context);
    fs_mpi_close(ranks);
    free(W);
    MPI_Finalize();
    return 0;
}
