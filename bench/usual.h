/* usual.h - the usual way to draw a token, which a fused draw is compared with: a matmul that stores its logits, by a
 * loop of our own (usual.c) or by a BLAS (blas.c), then a sampler over them. */
#ifndef FS_BENCH_USUAL_H
#define FS_BENCH_USUAL_H

#include <stdint.h>

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
