/* machine.h - what the machine can do: how fast it reads (reading.c) and multiplies (peak.c). */
#ifndef FS_BENCH_MACHINE_H
#define FS_BENCH_MACHINE_H

#include <stdint.h>

/* The fastest this machine was seen to read memory. */
typedef struct ceiling {
    double bytes_per_s;
    int streams;   /* per thread: 1, 2 or 4, whichever was fastest; 0: a copy on a CUDA device, read and written */
    int64_t bytes; /* read per pass */
} ceiling;

/* Reads the buffers [count], `bytes` each, one after the other, several times over, on `threads` threads. Buffers in
 * turn keep a cache from answering; one buffer measures what repeated calls on one W can get. Takes about `seconds`. */
ceiling measure_reading(const void *const *buffers, int count, int64_t bytes, int threads, double seconds);

/* How many multiply-adds of its instruction the kernel `isa` (as FLASHSAMPLING_ISA names it) spends on one of the
 * matmul, where W and H are of this dtype and rows fill its tiles. */
int peak_products(const char *isa, int dtype);

/* Floating-point operations per second of the instruction that the kernel uses for weights of this dtype, divided by
 * peak_products: from a loop over registers on `threads` threads, the best seen in about `seconds`. */
double measure_peak(const char *isa, int dtype, int threads, double seconds);

#endif
