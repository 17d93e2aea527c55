/* measure.h - what `bench` and `demo` share: a head in memory, a check that a call is right, and times. */
#ifndef FS_BENCH_MEASURE_H
#define FS_BENCH_MEASURE_H

#include "flashsampling.h"
#include "machine.h"
#include "synth.h"

/* A synthetic head in one or more copies, so that calls in turn do not find the last one's W in the cache. */
typedef struct workload {
    synth s; /* B = the most rows; over ranks, each makes its slice of W */
    int64_t w_bytes;
    int copies;
    const void *host_w, *host_h; /* in host memory */
    const void *w[16];           /* as calls read them, as are the next two (device.h) */
    const void *h;
    const void *screen[16]; /* of each copy, or NULL */
    size_t screen_bytes;
    void *copied; /* CUDA: room for a copy of W, which measures the device's memory */
} workload;

workload make_workload(const synth *s, int copies, int threads);

/* How many copies of w_bytes outgrow the last-level cache twice, within a third of the memory: the device's that is
 * open, or the host's. */
int copies_for(int64_t w_bytes);

/* The fastest that this memory is read, in about `seconds`: measure_reading, or on a CUDA device the bytes that a copy
 * of W reads and writes. */
ceiling workload_reading(const workload *w, int threads, double seconds);

fs_head workload_head(const workload *w, int copy);
/* The same with its screen. */
fs_head workload_screened(const workload *w, int copy);

/* Recomputes row b of a call by definition: logits in double, the rule's survivors, the noise of every token, the
 * largest sum. Returns 1 if tokens[b] is that winner or lies within 1e-3 of its score (rounding of the dot product
 * decides such ties). Draws without a cut, or with top-k, top-p and min-p; scalar values, one sample. The batch's
 * hidden states are the workload's. */
int row_is_right(const workload *w, const fs_batch *batch, int64_t b, int32_t token);

/* Times of one thing, in seconds. */
typedef struct times {
    int count;
    double value[4096];
} times;

void times_add(times *t, double seconds);
double times_min(const times *t);
double times_median(const times *t);

#endif
