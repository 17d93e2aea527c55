/* cpu_tile.h - the tile kernel of vector instructions, one source for every instruction set: a file cpu_tile_<isa>.c
 * sets FS_ISA and the tile shape, includes this, and is compiled with that set's flags.
 *
 *   w   T rows of W ------+            load    one step (16 elements, or 32 as pairs) of each of T rows of W
 *       streamed once     |            dot     T x R accumulators of 16 lanes
 *   h   R rows of H, -- T x R --> out  store   lanes added in one fixed order
 *       packed, in L2
 *
 * Cost: W comes from memory once, in streams that the prefetcher follows (docs/notes/cpu-memory.md). H comes from L2
 * once per T tokens. A step of a T x R tile is T R multiply-adds for T + R loads, so with 8 x 3 the two multiply-adds a
 * cycle of AVX-512 need one load each, most of them from L1. Halves are widened once per T tokens into a panel that
 * stays in L1 for all rows, if there are more than R.
 *
 * The order of additions: step k adds its products to the lanes, for pairs the lower element's after the upper's and
 * component by component; then lanes are added 8, 4, 2, 1 apart. Which accumulator a product goes to, and when, depends
 * on its place in the row alone: every shape gives the same logit bit for bit. With FS_SEGMENT lanes start from zero in
 * every segment of steps, and in the elements behind the last whole step; segments are added in ascending order. */
#include "cpu_isa.h"

#define FS_JOIN_(a, b, c) a##b##__##c
#define FS_JOIN(a, b, c) FS_JOIN_(a, b, c)

/* Vectors wider than the target's registers have no stable tile_call convention; none is passed. */
#pragma GCC diagnostic ignored "-Wpsabi"
#define FS_INLINE static inline __attribute__((always_inline))

#define FS_LANES 16
#define FS_LINE 64 /* bytes of 16 lanes */
#define FS_CHUNK                                                                                                       \
    (512 / FS_LANES) /* steps whose panel of 8 tokens, 16 KB, stays in L1 (32 KB: 147 instead of 191 GFLOP/s) */
/* An instruction that does not round to nearest sets FS_SEGMENT, the steps of a segment of one component; of several
 * components it has fewer, so that a lane is rounded no more often. */
#ifndef FS_SEGMENT
#define FS_SEGMENT 0
#endif
/* Rows, of weights of that many bytes, that are few enough for W to come token by token, in one stream. */
#ifndef FS_FEW_ROWS
#define FS_FEW_ROWS(bytes) 0
#endif
#define FS_ROWS_AT_ONCE 48 /* rows whose accumulators are kept between chunks: 24 KB */

/* A register, and 16 lanes of them. Vectors wider than a register are kept in memory by gcc 12, so lanes are an
 * array. */
#ifndef FS_REGISTER
#define FS_REGISTER 16
#endif
#define FS_REGISTERS (FS_LINE / FS_REGISTER)
typedef float vec __attribute__((vector_size(FS_REGISTER)));
typedef uint32_t vec_u32 __attribute__((vector_size(FS_REGISTER)));
typedef uint16_t vec_u16 __attribute__((vector_size(FS_REGISTER / 2)));
typedef struct lanes {
    vec v[FS_REGISTERS];
} lanes;

FS_INLINE vec load_f32(const char *p) {
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* An instruction set that widens halves itself defines FS_HAS_LOAD and these two. */
#ifdef FS_HAS_LOAD
FS_INLINE vec load_bf16(const char *p);
FS_INLINE vec load_f16(const char *p);
#else
FS_INLINE vec load_bf16(const char *p) {
    vec_u16 h;
    memcpy(&h, p, sizeof h);
    return (vec)(__builtin_convertvector(h, vec_u32) << 16);
}

/* As widen_f16. */
FS_INLINE vec load_f16(const char *p) {
    vec_u16 h;
    memcpy(&h, p, sizeof h);
    vec_u32 u = __builtin_convertvector(h, vec_u32);
    vec_u32 magnitude = (u & 0x7FFF) << 13;
    vec_u32 special = (vec_u32)(magnitude >= 0x0F800000u) & 0x7F800000u;
    vec scaled = (vec)magnitude * 5.192296858534828e33f; /* 2^112 */
    return (vec)((vec_u32)scaled | special | (u & 0x8000) << 16);
}
#endif

/* Keeps x in a register: gcc would read it again for every row, and loads, not products, would be the roof. */
#if defined(__x86_64__)
#define FS_KEEP(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define FS_KEEP(x) __asm__("" : "+w"(x))
#else
#define FS_KEEP(x)
#endif

FS_INLINE vec add_product(vec sum, vec x, vec y) {
    return sum + x * y;
}

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* Adds `steps` steps of T tokens x R rows to sum [T, R]. w: rows `stride` bytes apart; h: rows h_ld bytes apart, a line
 * for every component of a step. */
typedef void (*fs_dot)(const char *w, int64_t stride, const char *h, int64_t h_ld, int64_t steps, lanes *sum);

/* An instruction set whose vectors have no size that the compiler knows defines FS_HAS_DOT and this. */
FS_INLINE void dot(int T, int R, int components, vec (*load)(const char *), vec (*add)(vec, vec, vec), int step_bytes,
                   int line_bytes, const char *w, int64_t stride, const char *h, int64_t h_ld, int64_t steps,
                   lanes *sum);
#ifndef FS_HAS_DOT
FS_INLINE void dot(int T, int R, int components, vec (*load)(const char *), vec (*add)(vec, vec, vec), int step_bytes,
                   int line_bytes, const char *w, int64_t stride, const char *h, int64_t h_ld, int64_t steps,
                   lanes *sum) {
    vec acc[FS_TILE_TOKENS][FS_TILE_ROWS][FS_REGISTERS];
    const vec zero = {0};
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 3
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int i = 0; i < FS_REGISTERS; i++) acc[t][r][i] = FS_SEGMENT ? zero : sum[t * R + r].v[i];
    for (int64_t k = 0; k < steps; k++, w += step_bytes) {
#pragma GCC unroll 3
        for (int component = 0; component < components; component++, h += FS_LINE)
#pragma GCC unroll 4
            for (int i = 0; i < FS_REGISTERS; i++) {
                vec y[FS_TILE_ROWS];
#pragma GCC unroll 3
                for (int r = 0; r < R; r++) y[r] = load_f32(h + r * h_ld + i * FS_REGISTER);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    vec x = load(w + t * stride + i * (line_bytes / FS_REGISTERS));
                    FS_KEEP(x);
#pragma GCC unroll 3
                    for (int r = 0; r < R; r++) acc[t][r][i] = add(acc[t][r][i], x, y[r]);
                }
            }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 3
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int i = 0; i < FS_REGISTERS; i++)
                sum[t * R + r].v[i] = FS_SEGMENT ? sum[t * R + r].v[i] + acc[t][r][i] : acc[t][r][i];
}
#endif

/* One function for each shape: inlined side by side, gcc 12 merges their loops and splits multiply-adds (half the
 * speed). */
#define FS_DEFINE_DOT(name, T, R, components, load, add, step_bytes, line_bytes)                                       \
    static __attribute__((noinline)) void name(const char *w, int64_t stride, const char *h, int64_t h_ld,             \
                                               int64_t steps, lanes *sum) {                                            \
        dot(T, R, components, load, add, step_bytes, line_bytes, w, stride, h, h_ld, steps, sum);                      \
    }

#define FS_DEFINE_DOTS(name, components, load, add, step_bytes, line_bytes)                                            \
    FS_DEFINE_DOT(name##_t_1, FS_TILE_TOKENS, 1, components, load, add, step_bytes, line_bytes)                        \
    FS_DEFINE_DOT(name##_t_2, FS_TILE_TOKENS, 2, components, load, add, step_bytes, line_bytes)                        \
    FS_DEFINE_DOT(name##_t_3, FS_TILE_TOKENS, 3, components, load, add, step_bytes, line_bytes)                        \
    FS_DEFINE_DOT(name##_1_1, 1, 1, components, load, add, step_bytes, line_bytes)                                     \
    FS_DEFINE_DOT(name##_1_2, 1, 2, components, load, add, step_bytes, line_bytes)                                     \
    FS_DEFINE_DOT(name##_1_3, 1, 3, components, load, add, step_bytes, line_bytes)                                     \
    static const fs_dot name[2][3] = {{name##_t_1, name##_t_2, name##_t_3}, {name##_1_1, name##_1_2, name##_1_3}};
_Static_assert(FS_TILE_ROWS == 3, "the shapes above");

/* How a step is computed. */
typedef struct microkernel {
    const fs_dot (*dot)[FS_TILE_ROWS]; /* [FS_TILE_TOKENS tokens, one token] by rows - 1 */
    int step, bytes, components;       /* elements of a step, bytes of an element of W, components of one of H */
    /* panel [steps, FS_TILE_TOKENS] = the steps of the rows at w, widened; NULL if they are always used as they lie. */
    void (*widen)(const char *w, int64_t stride, int tokens, int64_t steps, lanes *panel);
    const struct microkernel *widened; /* then reads the panel */
} microkernel;

/* ----------------------------------------------------------------------------------------------------- store ---- */

typedef float wide __attribute__((vector_size(FS_LINE)));

FS_INLINE wide wide_of(const lanes *x) {
    wide v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* Lanes 8, 4, 2, 1 apart. */
FS_INLINE float add_lanes(const lanes *x) {
    float v[FS_LANES];
    memcpy(v, x, sizeof v);
    for (int half = FS_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

#if FS_TILE_TOKENS == 8
/* The same for eight tokens at once, x [8] `by` apart: two vectors become one at every level, a third of the
 * instructions. */
FS_INLINE void store_tokens(const lanes *x, int by, float *out) {
    wide a[4], b[2], c, d;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        wide p = wide_of(&x[2 * i * by]), q = wide_of(&x[(2 * i + 1) * by]);
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
    for (int t = 0; t < FS_TILE_TOKENS; t++) out[t] = add_lanes(&x[t * by]);
}
#endif

/* -------------------------------------------------------------------------------------------------- the tile ---- */

/* Rows of H in bands of at most FS_TILE_ROWS, as even as they go. */
FS_INLINE int32_t band_at(int32_t rows, int32_t bands, int32_t i) {
    return (int32_t)((int64_t)rows * i / bands);
}

/* T tokens times one set of rows of H. */
typedef struct matmul {
    const microkernel *micro;
    int T;
    const char *h; /* its first row */
    int64_t h_ld;
    int32_t rows, bands; /* rows <= FS_ROWS_AT_ONCE */
} matmul;

/* Adds steps [k, k + n), which w has, to sum [rows, T], band by band. */
static void dot_all(const matmul *m, const microkernel *micro, const char *w, int64_t stride, int64_t k, int64_t n,
                    lanes *sum) {
    for (int32_t g = 0; g < m->bands; g++) {
        const int32_t r = band_at(m->rows, m->bands, g), R = band_at(m->rows, m->bands, g + 1) - r;
        micro->dot[m->T == 1][R - 1](w, stride, m->h + r * m->h_ld + k * micro->components * FS_LINE, m->h_ld, n,
                                     sum + r * m->T);
    }
}

/* sum [rows, T] of the T rows at w. */
static void tile_sums(const matmul *m, const char *w, int64_t stride, int64_t dim, lanes *sum) {
    const microkernel *micro = m->micro;
    const int64_t steps = dim / micro->step, left = dim - steps * micro->step;
    const int64_t most = FS_SEGMENT ? FS_SEGMENT / micro->components : m->bands == 1 ? steps : FS_CHUNK;
    lanes panel[FS_TILE_TOKENS * FS_CHUNK];
    memset(sum, 0, sizeof sum[0] * (size_t)(m->rows * m->T));
    for (int64_t k = 0, n; k < steps; k += n) {
        n = steps - k < most ? steps - k : most;
        const char *x = w + k * micro->step * micro->bytes;
        if (micro->widen && m->bands > 2) {
            micro->widen(x, stride, m->T, n, panel);
            dot_all(m, micro->widened, (const char *)panel, FS_LINE, k, n, sum);
        } else dot_all(m, micro, x, stride, k, n, sum);
    }
    if (left) {
        /* The tail goes through a zeroed copy: W must not be read past its end. */
        char tail[FS_TILE_TOKENS * FS_LINE];
        memset(tail, 0, sizeof tail);
        for (int t = 0; t < m->T; t++)
            memcpy(tail + t * FS_LINE, w + t * stride + steps * micro->step * micro->bytes,
                   (size_t)(left * micro->bytes));
        dot_all(m, micro, tail, FS_LINE, steps, 1, sum);
    }
}

/* T tokens `stride` bytes and `apart` places of out apart, for rows [first, first + rows). */
static void tile_tokens(const matmul *m, const char *w, int64_t stride, int64_t dim, float *out, int64_t out_ld,
                        int32_t apart) {
    lanes sum[FS_ROWS_AT_ONCE * FS_TILE_TOKENS];
    tile_sums(m, w, stride, dim, sum);
    for (int32_t g = 0; g < m->bands; g++) {
        const int32_t r = band_at(m->rows, m->bands, g), R = band_at(m->rows, m->bands, g + 1) - r;
        for (int32_t i = 0; i < R; i++) {
            float *to = out + (r + i) * out_ld, logit[FS_TILE_TOKENS];
            if (m->T == 1) {
                to[0] = add_lanes(&sum[r + i]);
                continue;
            }
            store_tokens(sum + r * m->T + i, R, logit);
            for (int t = 0; t < FS_TILE_TOKENS; t++) to[t * apart] = logit[t];
        }
    }
}

/* Each page of 4 KB holds one of the T streams, where rows are shorter: see docs/notes/cpu-memory.md. */
static int32_t spacing_of(int64_t stride) {
    int32_t apart = 1;
    while (apart * stride < 4096 && apart < 16) apart *= 2;
    return apart;
}

static void tile_all(const microkernel *micro, const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens,
                     float *out, int64_t out_ld) {
    const int64_t dim = hidden->dim, h_ld = (dim + micro->step - 1) / micro->step * micro->components * FS_LINE;
    const int32_t apart = spacing_of(stride), span = apart * FS_TILE_TOKENS;
    for (int32_t first = 0; first < hidden->rows; first += FS_ROWS_AT_ONCE) {
        const int32_t rows = hidden->rows - first < FS_ROWS_AT_ONCE ? hidden->rows - first : FS_ROWS_AT_ONCE;
        matmul m = {micro, FS_TILE_TOKENS, hidden->packed + first * h_ld,
                    h_ld,  rows,           (rows + FS_TILE_ROWS - 1) / FS_TILE_ROWS};
        float *to = out + first * out_ld;
        const int32_t together = rows <= FS_FEW_ROWS(micro->bytes) ? 0 : tokens;
        int32_t t = 0;
        for (; t + span <= together; t += span)
            for (int32_t i = 0; i < apart; i++)
                tile_tokens(&m, w + (t + i) * stride, apart * stride, dim, to + t + i, out_ld, apart);
        for (; t + FS_TILE_TOKENS <= together; t += FS_TILE_TOKENS)
            tile_tokens(&m, w + t * stride, stride, dim, to + t, out_ld, 1);
        for (m.T = 1; t < tokens; t++) tile_tokens(&m, w + t * stride, stride, dim, to + t, out_ld, 1);
    }
}

/* --------------------------------------------------------------------------------------------------- kernels ---- */

#ifndef FS_OWN_KERNELS /* a file that brings what these are not, and nothing else */
static size_t packed_float_bytes(const fs_hidden *hidden) {
    return (size_t)hidden->rows * (size_t)((hidden->dim + FS_LANES - 1) / FS_LANES) * FS_LINE;
}

/* [rows, dim rounded up to whole steps] floats, zeros behind dim. */
static void pack_float(const fs_hidden *hidden, int64_t from, int64_t to) {
    const int64_t dim = hidden->dim, ld = (dim + FS_LANES - 1) / FS_LANES * FS_LANES;
    const int64_t bytes = dtype_bytes(hidden->dtype);
    for (int32_t r = 0; r < hidden->rows; r++)
        for (int64_t d = from; d < to && d < ld; d += FS_LANES) {
            const char *h = hidden->row[r] + d * bytes;
            char tail[FS_LINE] = {0};
            if (d + FS_LANES > dim) h = memcpy(tail, h, (size_t)((dim - d) * bytes));
            for (int i = 0; i < FS_REGISTERS; i++) {
                const char *from_h = h + i * (FS_LANES / FS_REGISTERS) * bytes;
                vec x = hidden->dtype == FS_F32   ? load_f32(from_h)
                        : hidden->dtype == FS_F16 ? load_f16(from_h)
                                                  : load_bf16(from_h);
                memcpy(hidden->packed + (r * ld + d) * 4 + i * FS_REGISTER, &x, sizeof x);
            }
        }
}

/* The panel is read step by step: rows of W are powers of two apart, so that their steps would meet in one set of
 * L1. */
FS_DEFINE_DOTS(dot_panel, 1, load_f32, add_product, FS_TILE_TOKENS *FS_LINE, FS_LINE)
static const microkernel microkernel_panel = {dot_panel, FS_LANES, 4, 1, NULL, NULL};

#define FS_DEFINE_MICROKERNEL(type, bytes)                                                                             \
    FS_DEFINE_DOTS(dot_##type, 1, load_##type, add_product, FS_LANES *(bytes), FS_LANES *(bytes))                      \
    static void panel_##type(const char *w, int64_t stride, int tokens, int64_t steps, lanes *panel) {                 \
        for (int64_t k = 0; k < steps; k++)                                                                            \
            for (int t = 0; t < tokens; t++)                                                                           \
                for (int i = 0; i < FS_REGISTERS; i++)                                                                 \
                    panel[k * FS_TILE_TOKENS + t].v[i] =                                                               \
                        load_##type(w + t * stride + (k * FS_REGISTERS + i) * (FS_LANES / FS_REGISTERS * (bytes)));    \
    }                                                                                                                  \
    static const microkernel microkernel_##type = {dot_##type, FS_LANES, bytes, 1, panel_##type, &microkernel_panel};

FS_DEFINE_MICROKERNEL(f32, 4)
FS_DEFINE_MICROKERNEL(f16, 2)
FS_DEFINE_MICROKERNEL(bf16, 2)

#define FS_DEFINE_KERNEL(type)                                                                                         \
    static void tile_##type(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens, float *out,    \
                            int64_t out_ld) {                                                                          \
        tile_all(&microkernel_##type, hidden, matrix_row(w, first), w->stride, tokens, out, out_ld);                   \
    }                                                                                                                  \
    const fs_kernel FS_JOIN(fs_kernel_, type, FS_ISA) = {packed_float_bytes, pack_float, tile_##type, NULL}

FS_DEFINE_KERNEL(f32);
FS_DEFINE_KERNEL(f16);
FS_DEFINE_KERNEL(bf16);
#endif
