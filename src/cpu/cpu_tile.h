/* cpu_tile.h - the tile kernel, one source for every instruction set: a file cpu_tile_<isa>.c sets FS_ISA and the tile shape,
 * includes this, and is compiled with that set's flags.
 *
 *        h [rows, D] float, in L2             load    16 elements of each of T rows of W, widened to float
 *          |   |   |  |                       dot     T x R accumulators of 16 lanes, fused multiply-add where there is one
 *   w ---- T x R tile ----> out [rows, tokens]  store   lanes added in one fixed order
 *   (T rows of W at a time, streamed once)
 *
 * Cost: W is read once from memory, T streams at a time; H is read from L2 once per T tokens. Per 16 elements of K a
 * T x R tile does T R fused multiply-adds for T + R loads, so R > 1 makes it compute-bound. Which accumulator a product
 * goes to, and in which order, depends on (row, token, d) alone: every shape gives the same logit bit for bit. */
#include "cpu_isa.h"

#define FS_JOIN_(a, b, c) a##b##__##c
#define FS_JOIN(a, b, c) FS_JOIN_(a, b, c)

/* Vectors wider than the target's registers have no stable calling convention; none is passed, everything here is inlined. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float lanes __attribute__((vector_size(FS_LANES * sizeof(float))));
typedef uint32_t lanes_u32 __attribute__((vector_size(FS_LANES * sizeof(uint32_t))));
typedef uint16_t lanes_u16 __attribute__((vector_size(FS_LANES * sizeof(uint16_t))));

static inline lanes load_f32(const char *p) {
    lanes x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* An instruction set that widens halves itself defines FS_HAS_LOAD and these two. */
static inline lanes load_bf16(const char *p);
static inline lanes load_f16(const char *p);
#ifndef FS_HAS_LOAD
static inline lanes load_bf16(const char *p) {
    lanes_u16 h;
    memcpy(&h, p, sizeof h);
    return (lanes)(__builtin_convertvector(h, lanes_u32) << 16);
}

/* Shifts the 5-bit exponent into place and lets a multiplication by 2^112 rebias it, subnormals included. */
static inline lanes load_f16(const char *p) {
    lanes_u16 h;
    memcpy(&h, p, sizeof h);
    lanes_u32 u = __builtin_convertvector(h, lanes_u32);
    lanes_u32 magnitude = (u & 0x7FFF) << 13;
    lanes_u32 special = (lanes_u32)(magnitude >= 0x0F800000u) & 0x7F800000u;
    lanes scaled = (lanes)magnitude * 5.192296858534828e33f; /* 2^112 */
    return (lanes)((lanes_u32)scaled | special | (u & 0x8000) << 16);
}
#endif

/* Lanes 8, 4, 2, 1 apart. */
static inline float add_lanes(const lanes *sum) {
    lanes x = *sum;
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return x[0] + x[1];
}

/* T tokens x R rows. `load` and `bytes` are constants after inlining, so each use is its own unrolled kernel. */
static inline __attribute__((always_inline)) void dot_tile(lanes (*load)(const char *), int bytes, int T, int R,
                                                           const char *w, int64_t stride, const float *h, int64_t h_ld,
                                                           int64_t dim, float *out, int64_t out_ld) {
    lanes sum[4][4];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) sum[t][r] = (lanes){0};
    int64_t d = 0;
    for (; d + FS_LANES <= dim; d += FS_LANES) {
        lanes x[4], y[4];
        for (int t = 0; t < T; t++) x[t] = load(w + t * stride + d * bytes);
        for (int r = 0; r < R; r++) y[r] = load_f32((const char *)(h + r * h_ld + d));
        for (int t = 0; t < T; t++)
            for (int r = 0; r < R; r++) sum[t][r] += x[t] * y[r];
    }
    if (d < dim) {
        /* The tail goes through a zeroed copy: W must not be read past its end. */
        char tail[FS_LANES * sizeof(float)];
        lanes x[4];
        for (int t = 0; t < T; t++) {
            memset(tail, 0, sizeof tail);
            memcpy(tail, w + t * stride + d * bytes, (size_t)((dim - d) * bytes));
            x[t] = load(tail);
        }
        for (int t = 0; t < T; t++)
            for (int r = 0; r < R; r++) sum[t][r] += x[t] * load_f32((const char *)(h + r * h_ld + d));
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) out[r * out_ld + t] = add_lanes(&sum[t][r]);
}

/* Tokens in groups of FS_TILE_TOKENS; for each, rows in groups of FS_TILE_ROWS, then one by one (there four tokens at a time,
 * whose four streams are what reads memory fastest). */
static inline __attribute__((always_inline)) void tile_all(lanes (*load)(const char *), int bytes, const char *w,
                                                           int64_t stride, int32_t tokens, const float *h, int64_t h_ld,
                                                           int32_t rows, int64_t dim, float *out, int64_t out_ld) {
    int32_t wide = rows - rows % FS_TILE_ROWS;
    int32_t t = 0;
    for (; t + FS_TILE_TOKENS <= tokens; t += FS_TILE_TOKENS)
        for (int32_t r = 0; r < wide; r += FS_TILE_ROWS)
            dot_tile(load, bytes, FS_TILE_TOKENS, FS_TILE_ROWS, w + t * stride, stride, h + r * h_ld, h_ld, dim,
                     out + r * out_ld + t, out_ld);
    for (; t < tokens; t++)
        for (int32_t r = 0; r < wide; r++)
            dot_tile(load, bytes, 1, 1, w + t * stride, stride, h + r * h_ld, h_ld, dim, out + r * out_ld + t, out_ld);
    for (int32_t r = wide; r < rows; r++) {
        for (t = 0; t + 4 <= tokens; t += 4)
            dot_tile(load, bytes, 4, 1, w + t * stride, stride, h + r * h_ld, h_ld, dim, out + r * out_ld + t, out_ld);
        for (; t < tokens; t++)
            dot_tile(load, bytes, 1, 1, w + t * stride, stride, h + r * h_ld, h_ld, dim, out + r * out_ld + t, out_ld);
    }
}

#define FS_DEFINE_TILE(type, bytes)                                                                                    \
    void FS_JOIN(fs_tile_, type, FS_ISA)(FS_TILE_ARGUMENTS) {                                                          \
        tile_all(load_##type, bytes, (const char *)w, stride, tokens, h, h_ld, rows, dim, out, out_ld);                \
    }

FS_DEFINE_TILE(f32, 4)
FS_DEFINE_TILE(f16, 2)
FS_DEFINE_TILE(bf16, 2)
