/* machine.h - what the machine can do, and what it does the usual way: the two things a fused draw is compared with. */
#ifndef FS_CLI_MACHINE_H
#define FS_CLI_MACHINE_H

#include <stdint.h>

/* The fastest this machine was seen to read memory. */
typedef struct ceiling {
    double bytes_per_s;
    int streams;   /* per thread: 1, 2 or 4, whichever was fastest */
    int64_t bytes; /* read per pass */
} ceiling;

/* Reads the buffers [count], `bytes` each, one after the other, several times over, on `threads` threads. Buffers in
 * turn keep a cache from answering; one buffer measures what repeated calls on one W can get. Takes about `seconds`. */
ceiling measure_reading(const void *const *buffers, int count, int64_t bytes, int threads, double seconds);

/* How many multiply-adds of its instruction the kernel `isa` (as FLASHSAMPLING_ISA names it) spends on one of the matmul, where W and H
 * are of this dtype and rows fill its tiles. */
int peak_products(const char *isa, int dtype);

/* Floating-point operations per second of the instruction that the kernel uses for weights of this dtype, divided by peak_products: from
 * a loop over registers on `threads` threads, the best seen in about `seconds`. */
double measure_peak(const char *isa, int dtype, int threads, double seconds);

/* A BLAS that is installed. */
typedef struct blas {
    const char *name, *f32, *bf16; /* the library, and its two matmuls */
    void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
    /* The same from bf16; NULL: it has none. */
    void (*sbgemm)(int, int, int, int, int, int, float, const uint16_t *, int, const uint16_t *, int, float, float *,
                   int);
    void (*set_threads)(int64_t); /* NULL: it has no such function */
} blas;

/* Loads OpenBLAS and BLIS where they are; returns how many, at most 2. */
int load_blas(blas *found);
/* Waits until its threads have stopped spinning: with 16 of them, and a tenth of a second after a call, ours still took
 * four times as long. */
void blas_rest(void);

/* Algorithm 1 of the paper, the usual way: logits = H W^T stored in float, softmax, prefix sum, search. */
typedef struct usual {
    int64_t V, D, B;
    const uint16_t *w; /* [V, D] bf16 */
    const uint16_t *h; /* [B, D] bf16 */
    int threads;
    float *hf;        /* [B, D16] H as float, rows padded with zeros to a multiple of 16 */
    int64_t ld;       /* V rounded up to a multiple of 4 */
    float *logits;    /* [B, ld], then their exponentials */
    float *part_max;  /* [B, USUAL_PARTS] */
    double *part_sum; /* [B, USUAL_PARTS] */
    uint64_t seed;
    int32_t *tokens; /* [B] */
    /* How it multiplies, and in words. */
    void (*multiply)(struct usual *u);
    const char *how;
    const blas *library; /* NULL: our own loop */
    const float *wf;     /* [V, D] W as float, for a BLAS without bf16; NULL: there is none */
} usual;

#define USUAL_PARTS 16 /* per row, so that a single row still uses every thread */

/* Allocates hf, logits, part_* and tokens for up to B rows; it multiplies with our own loop. */
void usual_prepare(usual *u);
/* Makes it multiply with whatever is fastest here: our own loop, or one of the `count` libraries. One whose logits are
 * others is left out. */
void usual_choose_matmul(usual *u, const blas *libraries, int count);
/* hf = H. */
void usual_widen_hidden(usual *u);
/* The two steps, each on all threads: the matmul, then the sampler over the stored logits. */
void usual_matmul(usual *u);
void usual_sample(usual *u);

#endif
