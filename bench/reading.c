/* reading.c - how fast this machine reads memory. */
#include "cli.h"
#include "machine.h"
#include "parallel.h"

/* A cache line, summed so that no load can be dropped. */
typedef uint64_t line __attribute__((vector_size(64)));

/* Parts are taken by whoever is free and small, so that nobody waits for a thread that started late or was held up: the
 * library does not either. */
#define PART_BYTES (2 << 20)

typedef struct pass {
    const line *const *data; /* buffers that are read, one behind the other */
    int64_t lines;           /* of each */
    int streams, parts;      /* of each */
    _Atomic uint64_t sink;   /* the sums end here, so that no read can be dropped */
} pass;

/* Reads part i of the buffers through 1, 2 or 4 pointers: several streams keep more misses in flight where one thread's
 * prefetcher follows each of them. */
static void read_part(void *argument, int i) {
    pass *p = argument;
    const int at = i % p->parts;
    int64_t first = p->lines * at / p->parts, n = (p->lines * (at + 1) / p->parts - first) / 4;
    const line *a = p->data[i / p->parts] + first;
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

/* Bytes per second of one pass over all buffers: so much that what it takes to start threads is little. */
static double read_once(const void *const *buffers, int count, int64_t bytes, int streams, int threads) {
    pass p = {(const line *const *)buffers, bytes / (int64_t)sizeof(line), streams, 1 + (int)(bytes / PART_BYTES), 0};
    double begin = now();
    parallel_for(threads, count * p.parts, read_part, &p);
    return (double)count * (double)bytes / (now() - begin);
}

ceiling measure_reading(const void *const *buffers, int count, int64_t bytes, int threads, double seconds) {
    static const int streams[] = {1, 2, 4};
    ceiling best = {0, 0, bytes};
    double end = now() + seconds;
    do {
        for (int s = 0; s < 3; s++) {
            double rate = read_once(buffers, count, bytes, streams[s], threads);
            if (rate > best.bytes_per_s) {
                best.bytes_per_s = rate;
                best.streams = streams[s];
            }
        }
    } while (now() < end);
    return best;
}
