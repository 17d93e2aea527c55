/* sweep.h - the fused call at one batch size after the other: checked, then timed. */
#ifndef FS_BENCH_SWEEP_H
#define FS_BENCH_SWEEP_H

#include "machine.h"
#include "measure.h"

typedef struct sweep_args {
    fs_rules rules; /* of every row */
    uint64_t seed;
    int32_t samples;
    int logprobs;   /* ask for log Z and logprobs as well */
    double seconds; /* per batch size, at least 5 calls */
    int threads;    /* that read memory, for the ceiling */
} sweep_args;

typedef struct sweep_row {
    int64_t B;
    times times;
    int64_t work_bytes, fallback_rows, wire_bytes;
    times by_screen;                      /* the same calls by the workload's screen, if it has one */
    int64_t screened_rows, screened_dots; /* in all of these calls together */
} sweep_row;

/* Times the call with each of batch [count] rows, each at most w->s.B; over ranks, all of them together. Before that
 * the tokens of its first and last row are recomputed, and another token ends the program, and so does a token by the
 * screen that is not W's. *read is the fastest read of the same memory, measured between the calls. On CUDA a time is
 * that of ten calls in a row, of which the host waits for the last, over ten. Valid until the program ends. */
const sweep_row *sweep_batches(fs_context *context, const workload *w, const sweep_args *args, const int32_t *batch,
                               int64_t count, ceiling *read);

/* A table of the calls by the screen beside the same calls from W. */
void sweep_print_screened(const sweep_row *rows, int count);

#endif
