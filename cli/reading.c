/* reading.c - how fast this machine reads memory. */
#include "cli.h"
#include "machine.h"
#include "parallel.h"

/* A cache line, summed so that no load can be dropped. */
typedef uint64_t line __attribute__((vector_size(64)));

typedef struct pass {
    const line *data;
    int64_t lines;
    int streams, parts;
    _Atomic uint64_t sink; /* the sums end here, so that no read can be dropped */
} pass;

/* Reads part i of the buffer through 1, 2 or 4 pointers: several streams keep more misses in flight where one thread's
 * prefetcher follows each of them. */
static void read_part(void *argument, int i) {
    pass *p = argument;
    int64_t first = p->lines * i / p->parts, n = (p->lines * (i + 1) / p->parts - first) / 4;
    const line *a = p->data + first;
    line s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    if (p->streams == 4)
        for (int64_t k = 0; k < n; k++) s0 += a[k], s1 += a[k + n], s2 += a[k + 2 * n], s3 += a[k + 3 * n];
    else if (p->streams == 2)
        for (int64_t k = 0; k < 2 * n; k++) s0 += a[k], s1 += a[k + 2 * n];
    else
        for (int64_t k = 0; k < 4 * n; k++) s0 += a[k];
    s0 += s1 + s2 + s3;
    p->sink = s0[0] ^ s0[1] ^ s0[2] ^ s0[3] ^ s0[4] ^ s0[5] ^ s0[6] ^ s0[7];
}

/* Bytes per second of one pass over one buffer. */
static double read_once(const void *buffer, int64_t bytes, int streams, int threads) {
    pass p = {buffer, bytes / (int64_t)sizeof(line), streams, threads * 4, 0};
    double begin = now();
    parallel_for(threads, p.parts, read_part, &p);
    return (double)bytes / (now() - begin);
}

ceiling measure_reading(const void *const *buffers, int count, int64_t bytes, int threads, double seconds) {
    static const int streams[] = {1, 2, 4};
    ceiling best = {0, 0, bytes};
    double end = now() + seconds;
    int turn = 0;
    do {
        for (int s = 0; s < 3; s++) {
            double rate = read_once(buffers[turn++ % count], bytes, streams[s], threads);
            if (rate > best.bytes_per_s) {
                best.bytes_per_s = rate;
                best.streams = streams[s];
            }
        }
    } while (now() < end);
    return best;
}
