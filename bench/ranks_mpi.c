/* ranks_mpi.c - what ranks send each other, timed: our exchange for several rules beside the all-gather of logits that
 * a sampler over whole rows needs. Only the exchange: what is sent is made before, nothing is drawn. Started by
 * bench/ranks.py.
 *
 *   mpirun -n N ranks_mpi V SECONDS B...    one line per B and way: rows, way, bytes per rank, least and median
 *                                          seconds */
#include <flashsampling_mpi.h>

#include <stdio.h>
#include <stdlib.h>

enum { MOST_TIMES = 20000 };
static double times[MOST_TIMES];

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

typedef struct way {
    const char *name;
    size_t per_row; /* bytes gathered per row; 0: keys alone, in the header's own exchange */
} way;

/* Header and rows as src/dist sends them: docs/explain/ranks.md. */
static void exchange(const fs_ranks *ranks, const way *w, int64_t rows, int64_t *words, char *mine, char *all) {
    const int64_t keys = w->per_row ? 0 : rows;
    fs_status status = ranks->all_max(ranks->self, words, 2 + keys, NULL);
    if (status == FS_OK && w->per_row)
        status = ranks->all_gather(ranks->self, mine, all, w->per_row * (size_t)rows, NULL);
    if (status != FS_OK) MPI_Abort(MPI_COMM_WORLD, 1);
}

static void gather_logits(int64_t rows, int64_t columns, char *mine, char *all) {
    const int bytes = (int)(rows * columns * (int64_t)sizeof(float));
    if (MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, MPI_COMM_WORLD) != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    static const way ways[] = {
        {"tokens", 0}, {"log Z", 32}, {"top-k 50", 8 + 4 + 12 + 400}, {"top-p", 8 + 4 + 20 + 12 + 8192}};
    const int count_ways = (int)(sizeof ways / sizeof ways[0]);
    fs_ranks *ranks;
    MPI_Init(&argc, &argv);
    if (argc < 4 || fs_mpi_open(MPI_COMM_WORLD, 60.0, &ranks) != FS_OK) MPI_Abort(MPI_COMM_WORLD, 2);
    const int64_t V = atoll(argv[1]), columns = V / ranks->count;
    const double seconds = atof(argv[2]);
    for (int a = 3; a < argc; a++) {
        const int64_t rows = atoll(argv[a]);
        const size_t logits = (size_t)(rows * columns) * sizeof(float), lists = (size_t)rows * ways[3].per_row;
        const size_t most = logits > lists ? logits : lists;
        int64_t *words = calloc((size_t)rows + 2, sizeof *words);
        char *mine = calloc(most, 1), *all = calloc(most, (size_t)ranks->count);
        if (!words || !mine || !all) MPI_Abort(MPI_COMM_WORLD, 3);
        for (int w = 0; w <= count_ways; w++) {
            int n = 0, more = 1;
            const double end = MPI_Wtime() + seconds;
            while (more) {
                MPI_Barrier(MPI_COMM_WORLD);
                const double begin = MPI_Wtime();
                if (w < count_ways) exchange(ranks, &ways[w], rows, words, mine, all);
                else gather_logits(rows, columns, mine, all);
                times[n++] = MPI_Wtime() - begin;
                more = n < 5 || (n < MOST_TIMES && MPI_Wtime() < end);
                MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
            }
            qsort(times, (size_t)n, sizeof times[0], by_value);
            const size_t bytes = w == count_ways ? logits : 16 + (ways[w].per_row ? ways[w].per_row : 8) * (size_t)rows;
            if (ranks->rank == 0)
                printf("%lld\t%s\t%zu\t%.9f\t%.9f\t%d\n", (long long)rows,
                       w < count_ways ? ways[w].name : "logits, float32", bytes, times[0], times[n / 2], n);
        }
        free(words);
        free(mine);
        free(all);
    }
    fs_mpi_close(ranks);
    MPI_Finalize();
    return 0;
}
