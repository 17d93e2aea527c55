/* problems.h - dot products to compute: random rows of W and H of any dtype, how a row of the dispatch table computes
 * them. */
#ifndef FS_TESTS_PROBLEMS_H
#define FS_TESTS_PROBLEMS_H

#include "isas.h"
#include "support.h"

enum { MOST_ROWS = 70, MOST_TOKENS = 300 };

/* By the definition, once for every half there is. */
static inline double f16_value(uint16_t half) {
    static double value[65536];
    static int made;
    for (int k = 0; !made && k < 65536; k++) {
        const int exponent = k >> 10 & 31, fraction = k & 1023;
        const double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                                 : exponent == 0 ? ldexp(fraction, -24)
                                                 : ldexp(1024 + fraction, exponent - 25);
        value[k] = k >> 15 ? -magnitude : magnitude;
    }
    made = 1;
    return value[half];
}

static inline double get(int32_t dtype, const char *at) {
    float x;
    uint16_t half;
    if (dtype == FS_F32) {
        memcpy(&x, at, sizeof x);
        return (double)x;
    }
    memcpy(&half, at, sizeof half);
    if (dtype == FS_F16) return f16_value(half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

typedef struct problem {
    int32_t w_dtype, h_dtype, rows, tokens;
    int64_t dim, w_stride, h_stride;
    char *w, *h;
} problem;

/* Normal numbers of deviation 0.1 and 1, by dtype: made once, because making them takes longer than multiplying
 * them. */
enum { POOL = 4096 };
static inline const char *pool_of(int32_t dtype, int small) {
    static char pool[2][3][POOL * 4];
    static int made;
    rng r = random_from(4);
    for (int k = 0; !made && k < 6 * POOL; k++) {
        const int32_t type = k / POOL % 3;
        put_number(type, pool[k / POOL / 3][type] + k % POOL * bytes_of(type),
                   (float)random_normal(&r) * (k < 3 * POOL ? 1.0f : 0.1f));
    }
    made = 1;
    return pool[small][dtype];
}

static inline void fill_rows(rng *r, const char *pool, int32_t dtype, int64_t rows, int64_t stride, int64_t dim,
                             char *to) {
    const size_t size = (size_t)bytes_of(dtype);
    memset(to, 0x7F, (size_t)(rows * stride));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < dim; d++)
            memcpy(to + i * stride + d * (int64_t)size, pool + random_next(r) % POOL * size, size);
}

/* Rows lie at any even address, with rubbish between them. */
static inline problem make_problem(rng *r, int32_t w_dtype, int32_t h_dtype, int32_t rows, int32_t tokens,
                                   int64_t dim) {
    problem p = {w_dtype, h_dtype, rows, tokens, dim, 0, 0, NULL, NULL};
    p.w_stride = (p.dim + (int64_t)random_below(r, 5)) * bytes_of(w_dtype);
    p.h_stride = (p.dim + (int64_t)random_below(r, 3)) * bytes_of(h_dtype);
    p.w = malloc((size_t)(p.tokens * p.w_stride));
    p.h = malloc((size_t)(p.rows * p.h_stride));
    assert_true(p.w && p.h);
    fill_rows(r, pool_of(w_dtype, 1), w_dtype, p.tokens, p.w_stride, p.dim, p.w);
    fill_rows(r, pool_of(h_dtype, 0), h_dtype, p.rows, p.h_stride, p.dim, p.h);
    return p;
}

/* out [rows, tokens] for rows [first, first + rows), tokens [t, t + tokens) of the problem. */
static inline void run(const fs_isa *isa, const problem *p, int32_t first, int32_t rows, int32_t t, int32_t tokens,
                       float *out, int64_t ld) {
    const fs_matrix weights = {.data = p->w, .stride = p->w_stride, .format = format_of(p->w_dtype)};
    const fs_kernel *kernel = isa->kernel[weights.format];
    const char *row[MOST_ROWS];
    for (int32_t b = 0; b < rows; b++) row[b] = p->h + (first + b) * p->h_stride;
    fs_hidden hidden = {row, rows, p->h_dtype, p->dim, NULL};
    size_t bytes = (kernel->packed_bytes(&hidden) + 63) / 64 * 64;
    hidden.packed = aligned_alloc(64, bytes);
    assert_non_null(hidden.packed);
    memset(hidden.packed, 0x7F, bytes); /* NaN where nothing is packed */
    int64_t units = (p->dim + FS_PACK - 1) / FS_PACK;
    kernel->pack(&hidden, units / 2 * FS_PACK, units * FS_PACK);
    kernel->pack(&hidden, 0, units / 2 * FS_PACK);
    kernel->tile(&hidden, &weights, t, tokens, out, ld);
    free(hidden.packed);
}

/* Tokens that do not get the power of two that their first elements ask for; and one whose elements are of all sizes,
 * the largest of which the last row of H does not see. */
static inline void make_odd_rows(problem *p) {
    const int64_t size = bytes_of(p->w_dtype);
    for (int64_t d = 0; d < p->dim; d++) {
        char *at = p->w + d * size;
        if (d < 32) put_number(p->w_dtype, at + 3 * p->w_stride, 0.0f);
        put_number(p->w_dtype, at + 5 * p->w_stride, 0.0f);
        put_number(p->w_dtype, at + 11 * p->w_stride, ldexpf((float)get(p->w_dtype, at + 12 * p->w_stride), -60));
        put_number(p->w_dtype, at + 9 * p->w_stride,
                   ldexpf((float)get(p->w_dtype, at + 10 * p->w_stride), -(int)(d % 50)));
        if (d % 50 < 26) put_number(p->h_dtype, p->h + (p->rows - 1) * p->h_stride + d * bytes_of(p->h_dtype), 0.0f);
    }
    put_number(p->w_dtype, p->w + 7 * p->w_stride + (p->dim - 1) * size, 3e4f);
    put_number(p->w_dtype, p->w + 17 * p->w_stride + p->dim / 2 * size, -100.0f);
}

/* Where everything is slow each shape meets three of the nine pairs of dtypes: every dtype of W, and of H, once. Rounds
 * are pairs first, then shapes. */
static inline int left_out(int round) {
    return test_size(9) < 9 && (round % 3 + round / 3 % 3 + round / 9) % 3 != 0;
}

#endif
