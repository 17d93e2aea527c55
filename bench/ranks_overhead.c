/* ranks_overhead.c - what the way over ranks costs where there is one: fs_sample and fs_sample_ranks take turns in one
 * process, on the same weights, every exchange really made (a rank sends to itself). Started by bench/ranks.py
 * --overhead.
 *
 *   mpirun -n 1 ranks_overhead V D SECONDS B...    one line per B: rows, least and median seconds of either, and the
 *                                                  median of the differences of neighbours with the quarters around
 *                                                  it */
#include <flashsampling_mpi.h>

#include <stdio.h>
#include <stdlib.h>

enum { MOST_TIMES = 20000 };
static double times[2][MOST_TIMES], more[MOST_TIMES];

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static uint16_t *make(int64_t count, uint32_t seed) {
    uint16_t *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; x && i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (uint16_t)((seed >> 31) << 15 | (0x3C80 + (seed >> 20 & 0x7F))); /* bf16 of about +-0.02 */
    }
    return x;
}

int main(int argc, char **argv) {
    fs_ranks *ranks;
    fs_context *context;
    MPI_Init(&argc, &argv);
    if (argc < 5 || fs_mpi_open(MPI_COMM_WORLD, 60.0, &ranks) != FS_OK) MPI_Abort(MPI_COMM_WORLD, 2);
    const int64_t V = atoll(argv[1]), D = atoll(argv[2]);
    fs_head head = fs_head_default();
    head.data = make(V * D, 1);
    head.rows = V;
    head.dim = D;
    head.dtype = FS_BF16;
    if (!head.data || fs_context_create(NULL, &context) != FS_OK) MPI_Abort(MPI_COMM_WORLD, 3);
    for (int a = 4; a < argc; a++) {
        fs_batch batch = fs_batch_default();
        batch.rows = atoll(argv[a]);
        batch.hidden = make(batch.rows * D, 2);
        batch.hidden_dtype = FS_BF16;
        int32_t *token[2];
        int n = 0;
        for (int k = 0; k < 2; k++) token[k] = calloc((size_t)batch.rows, sizeof **token);
        if (!batch.hidden || !token[0] || !token[1]) MPI_Abort(MPI_COMM_WORLD, 3);
        for (double end = MPI_Wtime() + atof(argv[3]); n < 5 || (n < MOST_TIMES && MPI_Wtime() < end); n++) {
            for (int k = 0; k < 2; k++) {
                fs_result result = fs_result_default();
                result.tokens = token[k];
                const double begin = MPI_Wtime();
                const fs_status status = k ? fs_sample_ranks(context, ranks, &head, &batch, &result)
                                           : fs_sample(context, &head, &batch, &result);
                times[k][n] = MPI_Wtime() - begin;
                if (status != FS_OK) MPI_Abort(MPI_COMM_WORLD, 4);
            }
            if (memcmp(token[0], token[1], (size_t)batch.rows * sizeof **token) != 0) MPI_Abort(MPI_COMM_WORLD, 5);
            more[n] = times[1][n] - times[0][n];
            batch.position_all++;
        }
        printf("%lld", (long long)batch.rows);
        for (int k = 0; k < 2; k++) {
            qsort(times[k], (size_t)n, sizeof times[k][0], by_value);
            printf("\t%.9f\t%.9f", times[k][0], times[k][n / 2]);
        }
        qsort(more, (size_t)n, sizeof more[0], by_value);
        printf("\t%.9f\t%.9f\t%.9f\t%d\n", more[n / 4], more[n / 2], more[n * 3 / 4], n);
    }
    fs_context_destroy(context);
    fs_mpi_close(ranks);
    MPI_Finalize();
    return 0;
}
