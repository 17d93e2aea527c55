/* cpu_tile.h - the tile kernel of vector instructions, one source for every instruction set: a file cpu_tile_<isa>.c sets FS_ISA
 * and the tile shape, includes this, and is compiled with that set's flags.
 *
 *   w   T rows of W ------+            load    one step (16 elements, or 32 as pairs) of each of T rows of W
 *       streamed once     |            dot     T x R accumulators of 16 lanes
 *   h   R rows of H, -- T x R --> out  store   lanes added in one fixed order
 *       packed, in L2
 *
 * Cost: W comes from memory once; the lines that the next tiles need are asked for meanwhile. H comes from L2 once per T tokens. A
 * step of a T x R tile is T R multiply-adds for T + R loads, so with 8 x 3 the two multiply-adds a cycle of AVX-512 need one load
 * each, most of them from L1. Halves are widened once per T tokens into a panel that stays in L1 for all rows, if there are more than R.
 *
 * The order of additions: step k adds its products to the lanes, for pairs the lower element's after the upper's and part by part;
 * then lanes are added 8, 4, 2, 1 apart. Which accumulator a product goes to, and when, depends on its place in the row alone: every
 * shape gives the same logit bit for bit. */
#include "cpu_isa.h"

#include "core/halves.h"

#define FS_JOIN_(a, b, c) a##b##__##c
#define FS_JOIN(a, b, c) FS_JOIN_(a, b, c)

/* Vectors wider than the target's registers have no stable calling convention; none is passed, everything here is inlined. */
#pragma GCC diagnostic ignored "-Wpsabi"
#define FS_INLINE static inline __attribute__((always_inline))

#define FS_LANES 16
#define FS_LINE 64                 /* bytes of 16 lanes */
#define FS_CHUNK (1024 / FS_LANES) /* steps whose panel of 8 tokens, 32 KB, stays in L1 */
#define FS_ROWS_AT_ONCE 48         /* rows whose accumulators are kept between chunks: 24 KB */

typedef float lanes __attribute__((vector_size(FS_LINE)));
typedef uint32_t lanes_u32 __attribute__((vector_size(FS_LINE)));
typedef uint16_t lanes_u16 __attribute__((vector_size(FS_LINE / 2)));

FS_INLINE lanes load_f32(const char *p) {
    lanes x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* An instruction set that widens halves itself defines FS_HAS_LOAD and these two. */
#ifdef FS_HAS_LOAD
FS_INLINE lanes load_bf16(const char *p);
FS_INLINE lanes load_f16(const char *p);
#else
FS_INLINE lanes load_bf16(const char *p) {
    lanes_u16 h;
    memcpy(&h, p, sizeof h);
    return (lanes)(__builtin_convertvector(h, lanes_u32) << 16);
}

/* As widen_f16. */
FS_INLINE lanes load_f16(const char *p) {
    lanes_u16 h;
    memcpy(&h, p, sizeof h);
    lanes_u32 u = __builtin_convertvector(h, lanes_u32);
    lanes_u32 magnitude = (u & 0x7FFF) << 13;
    lanes_u32 special = (lanes_u32)(magnitude >= 0x0F800000u) & 0x7F800000u;
    lanes scaled = (lanes)magnitude * 5.192296858534828e33f; /* 2^112 */
    return (lanes)((lanes_u32)scaled | special | (u & 0x8000) << 16);
}
#endif

FS_INLINE lanes add_product(lanes sum, lanes x, lanes y) {
    return sum + x * y;
}

/* How a step is computed. Constants after inlining, so each use is its own unrolled kernel. */
typedef struct scheme {
    lanes (*load)(const char *);               /* a step of a row of W */
    lanes (*add)(lanes sum, lanes x, lanes y); /* its products with a step of a row of H */
    int step, bytes;                           /* elements of a step, bytes of an element of W */
    int parts;                                 /* of an element of H: see cpu_split.h */
} scheme;

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* Adds `steps` steps of T tokens x R rows to sum [T, R]. h: [R] rows, h_ld bytes apart, `parts` lines for each step. */
FS_INLINE void dot_group(scheme s, int T, int R, const char *w, int64_t stride, const char *h, int64_t h_ld,
                         int64_t steps, lanes *sum) {
    lanes acc[8][3];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 3
        for (int r = 0; r < R; r++) acc[t][r] = sum[t * R + r];
    }
    for (int64_t k = 0; k < steps; k++) {
#pragma GCC unroll 3
        for (int part = 0; part < s.parts; part++) {
            lanes y[3];
#pragma GCC unroll 3
            for (int r = 0; r < R; r++) y[r] = load_f32(h + r * h_ld + (k * s.parts + part) * FS_LINE);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                lanes x = s.load(w + t * stride + k * s.step * s.bytes);
#pragma GCC unroll 3
                for (int r = 0; r < R; r++) acc[t][r] = s.add(acc[t][r], x, y[r]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 3
        for (int r = 0; r < R; r++) sum[t * R + r] = acc[t][r];
    }
}

/* R is one of 1 .. FS_TILE_ROWS. */
FS_INLINE void dot_rows(scheme s, int T, int R, const char *w, int64_t stride, const char *h, int64_t h_ld,
                        int64_t steps, lanes *sum) {
    if (R == 1) dot_group(s, T, 1, w, stride, h, h_ld, steps, sum);
#if FS_TILE_ROWS >= 2
    else if (R == 2) dot_group(s, T, 2, w, stride, h, h_ld, steps, sum);
#endif
#if FS_TILE_ROWS >= 3
    else dot_group(s, T, 3, w, stride, h, h_ld, steps, sum);
#endif
}

/* ----------------------------------------------------------------------------------------------------- store ---- */

/* Lanes 8, 4, 2, 1 apart. */
FS_INLINE float add_lanes(lanes x) {
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return x[0] + x[1];
}

#if FS_TILE_TOKENS == 8
/* The same for eight tokens at once, x [8] `by` apart: two vectors become one at every level, a third of the instructions. */
FS_INLINE void store_tokens(const lanes *x, int by, float *out) {
    lanes a[4], b[2], c, d;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        lanes p = x[2 * i * by], q = x[(2 * i + 1) * by];
        a[i] = __builtin_shufflevector(p, q, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(p, q, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        b[i] =
            __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
            __builtin_shufflevector(a[2 * i], a[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    c = __builtin_shufflevector(b[0], b[1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
        __builtin_shufflevector(b[0], b[1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    d = __builtin_shufflevector(c, c, 0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14) +
        __builtin_shufflevector(c, c, 1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15);
    memcpy(out, &d, 8 * sizeof *out);
}
#else
FS_INLINE void store_tokens(const lanes *x, int by, float *out) {
    for (int t = 0; t < FS_TILE_TOKENS; t++) out[t] = add_lanes(x[t * by]);
}
#endif

/* -------------------------------------------------------------------------------------------------- the tile ---- */

/* Rows of H in groups of at most FS_TILE_ROWS, as even as they go. */
FS_INLINE int32_t group_at(int32_t rows, int32_t groups, int32_t i) {
    return (int32_t)((int64_t)rows * i / groups);
}

/* T tokens for rows [first, first + rows), rows <= FS_ROWS_AT_ONCE. */
FS_INLINE void tile_tokens(scheme s, int T, const fs_hidden *hidden, int32_t first, int32_t rows, const char *w,
                           int64_t stride, float *out, int64_t out_ld) {
    const int32_t groups = (rows + FS_TILE_ROWS - 1) / FS_TILE_ROWS;
    const int64_t steps = hidden->dim / s.step, left = hidden->dim - steps * s.step;
    const int64_t h_ld = (steps + (left > 0)) * s.parts * FS_LINE;
    const char *h = hidden->packed + first * h_ld;
    const int widen = s.bytes * s.step < FS_LINE && groups > 1;
    const scheme widened = {load_f32, s.add, s.step, FS_LINE / s.step, s.parts};
    lanes sum[FS_ROWS_AT_ONCE * FS_TILE_TOKENS], panel[FS_TILE_TOKENS * FS_CHUNK];
    memset(sum, 0, sizeof sum[0] * (size_t)(rows * T));
    for (int64_t k = 0, n; k < steps; k += n) {
        n = groups == 1 || steps - k < FS_CHUNK ? steps - k : FS_CHUNK;
        const char *x = w + k * s.step * s.bytes;
        if (widen)
            for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) panel[t * FS_CHUNK + i] = s.load(x + t * stride + i * s.step * s.bytes);
            }
        for (int32_t g = 0; g < groups; g++) {
            const int32_t r = group_at(rows, groups, g), R = group_at(rows, groups, g + 1) - r;
            const char *y = h + r * h_ld + k * s.parts * FS_LINE;
            if (widen) dot_rows(widened, T, R, (const char *)panel, FS_CHUNK * FS_LINE, y, h_ld, n, sum + r * T);
            else dot_rows(s, T, R, x, stride, y, h_ld, n, sum + r * T);
        }
    }
    if (left) {
        /* The tail goes through a zeroed copy: W must not be read past its end. */
        char tail[FS_TILE_TOKENS * FS_LINE];
        memset(tail, 0, sizeof tail);
        for (int t = 0; t < T; t++)
            memcpy(tail + t * FS_LINE, w + t * stride + steps * s.step * s.bytes, (size_t)(left * s.bytes));
        for (int32_t g = 0; g < groups; g++) {
            const int32_t r = group_at(rows, groups, g), R = group_at(rows, groups, g + 1) - r;
            dot_rows(s, T, R, tail, FS_LINE, h + r * h_ld + steps * s.parts * FS_LINE, h_ld, 1, sum + r * T);
        }
    }
    for (int32_t g = 0; g < groups; g++) {
        const int32_t r = group_at(rows, groups, g), R = group_at(rows, groups, g + 1) - r;
        for (int32_t i = 0; i < R; i++) {
            float *to = out + (first + r + i) * out_ld;
            if (T == FS_TILE_TOKENS) store_tokens(sum + r * T + i, R, to);
            else to[0] = add_lanes(sum[r * T + i]);
        }
    }
}

FS_INLINE void tile_all(scheme s, const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens, float *out,
                        int64_t out_ld) {
    const int32_t rows = hidden->rows, whole = tokens - tokens % FS_TILE_TOKENS;
    for (int32_t first = 0; first < rows; first += FS_ROWS_AT_ONCE) {
        const int32_t n = rows - first < FS_ROWS_AT_ONCE ? rows - first : FS_ROWS_AT_ONCE;
        for (int32_t t = 0; t < whole; t += FS_TILE_TOKENS)
            tile_tokens(s, FS_TILE_TOKENS, hidden, first, n, w + t * stride, stride, out + t, out_ld);
        for (int32_t t = whole; t < tokens; t++)
            tile_tokens(s, 1, hidden, first, n, w + t * stride, stride, out + t, out_ld);
    }
}

/* --------------------------------------------------------------------------------------------------- kernels ---- */

#ifndef FS_ONLY_PAIRS /* a file that brings a kernel of pairs and nothing else */
static size_t packed_float_bytes(const fs_hidden *hidden) {
    return (size_t)hidden->rows * (size_t)((hidden->dim + FS_LANES - 1) / FS_LANES) * FS_LINE;
}

/* [rows, dim rounded up to whole steps] floats, zeros behind dim. */
static void pack_float(const fs_hidden *hidden, int64_t from, int64_t to) {
    const int64_t dim = hidden->dim, ld = (dim + FS_LANES - 1) / FS_LANES * FS_LANES;
    const int64_t bytes = hidden->dtype == FS_F32 ? 4 : 2;
    for (int32_t r = 0; r < hidden->rows; r++)
        for (int64_t d = from; d < to && d < ld; d += FS_LANES) {
            const char *h = hidden->row[r] + d * bytes;
            char tail[FS_LINE] = {0};
            if (d + FS_LANES > dim) h = memcpy(tail, h, (size_t)((dim - d) * bytes));
            lanes x = hidden->dtype == FS_F32 ? load_f32(h) : hidden->dtype == FS_F16 ? load_f16(h) : load_bf16(h);
            memcpy(hidden->packed + (r * ld + d) * 4, &x, sizeof x);
        }
}

#define FS_DEFINE_KERNEL(type, bytes)                                                                                  \
    static void tile_##type(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out,        \
                            int64_t out_ld) {                                                                          \
        const scheme s = {load_##type, add_product, FS_LANES, bytes, 1};                                               \
        tile_all(s, hidden, (const char *)w, stride, tokens, out, out_ld);                                             \
    }                                                                                                                  \
    const fs_kernel FS_JOIN(fs_kernel_, type, FS_ISA) = {packed_float_bytes, pack_float, tile_##type}

FS_DEFINE_KERNEL(f32, 4);
FS_DEFINE_KERNEL(f16, 2);
FS_DEFINE_KERNEL(bf16, 2);
#endif
