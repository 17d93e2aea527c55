/* usual.c - the usual way to draw a token, for comparison: a matmul that stores its logits, then a sampler that reads
 * them back (Algorithm 1 of the paper). Plain loops, but no straw man: the matmul has 4 x 4 register tiles of the
 * widest vectors this CPU has, and every step runs on all threads. It is not a tuned BLAS: where one is installed and
 * faster, it multiplies (blas.c).
 *
 *   W [V, D] --4 rows widened to float in L1--> 4 x 4 tiles with H --> logits [B, V] --> max --> exp, sums --> search
 */
#include "usual.h"
#include "cli.h"
#include "half.h"
#include "parallel.h"

#include <math.h>

#define LANES 16
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t lanes_u32 __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t lanes_u16 __attribute__((vector_size(LANES * sizeof(uint16_t))));
#define INLINE static inline __attribute__((always_inline))

/* out [LANES] = in [LANES], bf16 to float. */
INLINE void widen(float *out, const uint16_t *in) {
    lanes_u16 h;
    memcpy(&h, in, sizeof h);
    lanes_u32 x = __builtin_convertvector(h, lanes_u32) << 16;
    memcpy(out, &x, sizeof x);
}

/* sum += a b. fmaf per lane becomes one instruction where there is one; elsewhere it would be a library call. */
INLINE void muladd(lanes *sum, const lanes *a, const lanes *b, int fused) {
    if (fused)
        for (int i = 0; i < LANES; i++) (*sum)[i] = fmaf((*a)[i], (*b)[i], (*sum)[i]);
    else *sum += *a * *b;
}

/* ---------------------------------------------------------------------------------------------------- matmul ---- */

INLINE float add_lanes(const lanes *x) {
    float total = 0.0f;
    for (int i = 0; i < LANES; i++) total += (*x)[i];
    return total;
}

/* out[r * ld + t] = dot of row r of h with row t of w, both [.., D16] floats. T, R and fused are constants after
 * inlining. */
INLINE void dot_tile(int T, int R, int fused, const float *w, const float *h, int64_t D16, float *out, int64_t ld) {
    lanes sum[4][4] = {{{0}}};
    for (int64_t d = 0; d < D16; d += LANES) {
        lanes x[4], y[4];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) memcpy(&x[t], w + t * D16 + d, sizeof(lanes));
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) memcpy(&y[r], h + r * D16 + d, sizeof(lanes));
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) muladd(&sum[t][r], &x[t], &y[r], fused);
        }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) out[r * ld + t] = add_lanes(&sum[t][r]);
}

/* The same for four rows of W as they lie and one row of H: there is nothing to reuse, so nothing is put aside. It
 * waits for memory, so that its products are not fused costs nothing. */
INLINE void dot_direct(const uint16_t *const *row, const float *h, int64_t D, float *out) {
    lanes sum[4] = {{0}};
    int64_t whole = D / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) {
        lanes y;
        memcpy(&y, h + d, sizeof y);
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) {
            lanes x;
            widen((float *)&x, row[t] + d);
            sum[t] += x * y;
        }
    }
    for (int t = 0; t < 4; t++) {
        out[t] = add_lanes(&sum[t]);
        for (int64_t d = whole; d < D; d++) out[t] += float_of_bf16(row[t][d]) * h[d];
    }
}

/* w [4, D16] = the four rows in float, read side by side: four streams from memory. */
INLINE void widen_four(float *w, const uint16_t *const *row, int64_t D, int64_t D16) {
    int64_t whole = D / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) {
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) widen(w + t * D16 + d, row[t] + d);
    }
    for (int64_t d = whole; d < D; d++)
        for (int t = 0; t < 4; t++) w[t * D16 + d] = float_of_bf16(row[t][d]);
}

/* Logits of vocabulary rows v .. v+3 for every row of H, in tiles of T x R; w [4, D16] is room for them in float. */
INLINE void dot_four(int T, int R, int fused, const usual *u, float *w, int64_t D16, int64_t v) {
    int64_t last = u->V - 1, b = 0;
    float *out = u->logits + v;
    const uint16_t *row[4];
    for (int t = 0; t < 4; t++) row[t] = u->w + (v + t < last ? v + t : last) * u->D; /* a last tile may not be full */
    if (u->B >= R) widen_four(w, row, u->D, D16);
    for (; b + R <= u->B; b += R)
        for (int t = 0; t < 4; t += T)
            dot_tile(T, R, fused, w + t * D16, u->hf + b * D16, D16, out + b * u->ld + t, u->ld);
    for (; b < u->B; b++) dot_direct(row, u->hf + b * D16, u->D, out + b * u->ld);
}

typedef void (*dot_function)(const usual *u, float *w, int64_t D16, int64_t v);

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) static void dot_avx512(const usual *u, float *w, int64_t D16, int64_t v) {
    dot_four(4, 4, 1, u, w, D16, v);
}
/* 16 registers hold a 2 x 2 tile of 16 floats each. */
__attribute__((target("avx2,fma"))) static void dot_avx2(const usual *u, float *w, int64_t D16, int64_t v) {
    dot_four(2, 2, 1, u, w, D16, v);
}
#endif

static void dot_plain(const usual *u, float *w, int64_t D16, int64_t v) {
#ifdef __FP_FAST_FMAF
    dot_four(2, 2, 1, u, w, D16, v);
#else
    dot_four(2, 2, 0, u, w, D16, v);
#endif
}

static dot_function choose_dot(const char **name) {
#if defined(__x86_64__)
    *name = "our plain AVX-512 loop";
    if (__builtin_cpu_supports("avx512f")) return dot_avx512;
    *name = "our plain AVX2 loop";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return dot_avx2;
    *name = "our plain SSE2 loop";
#else
    *name = "our plain NEON loop";
#endif
    return dot_plain;
}

static int64_t padded(int64_t D) {
    return (D + LANES - 1) / LANES * LANES;
}

#define ROWS_PER_TASK 256
#define MAX_D16 8192

static void matmul_task(void *argument, int i) {
    const usual *u = argument;
    const char *name;
    dot_function dot = choose_dot(&name);
    _Alignas(64) float w[4 * MAX_D16];
    int64_t D16 = padded(u->D), begin = (int64_t)i * ROWS_PER_TASK, end = begin + ROWS_PER_TASK;
    memset(w, 0, sizeof(float) * (size_t)(4 * D16));
    for (int64_t v = begin; v < end && v < u->V; v += 4) dot(u, w, D16, v);
}

void usual_widen_hidden(usual *u) {
    int64_t D16 = padded(u->D);
    for (int64_t b = 0; b < u->B; b++)
        for (int64_t d = 0; d < u->D; d++) u->hf[b * D16 + d] = float_of_bf16(u->h[b * u->D + d]);
}

static void multiply_plainly(usual *u) {
    usual_widen_hidden(u);
    parallel_for(u->threads, (int)((u->V + ROWS_PER_TASK - 1) / ROWS_PER_TASK), matmul_task, u);
}

void usual_matmul(usual *u) {
    u->multiply(u);
}

/* --------------------------------------------------------------------------------------------------- sampler ---- */

static int64_t part_begin(const usual *u, int part) {
    return u->V * part / USUAL_PARTS;
}

static void max_task(void *argument, int i) {
    usual *u = argument;
    int b = i / USUAL_PARTS, part = i % USUAL_PARTS;
    const float *x = u->logits + b * u->ld;
    float most = -INFINITY;
    for (int64_t v = part_begin(u, part); v < part_begin(u, part + 1); v++) most = x[v] > most ? x[v] : most;
    u->part_max[i] = most;
}

/* e^x for x <= 0, relative error 1e-7: 2^n by the exponent bits, the rest by its series. Written so that loops over it
 * vectorise, as a tuned softmax would. */
INLINE float exp_negative(float x) {
    float t = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    float n = (float)(int32_t)(t - 0.5f), f = (t - n) * 0.69314718f;
    float p = 1.0f +
              f * (1.0f + f * (0.5f + f * (0.16666667f + f * (0.041666668f + f * (0.008333334f + f * 0.0013888889f)))));
    return p * float_of_bits((uint32_t)((int32_t)n + 127) << 23);
}

static void exp_task(void *argument, int i) {
    usual *u = argument;
    int b = i / USUAL_PARTS, part = i % USUAL_PARTS;
    float *x = u->logits + b * u->ld, most = -INFINITY;
    for (int k = 0; k < USUAL_PARTS; k++) most = fmaxf(most, u->part_max[b * USUAL_PARTS + k]);
    double sum = 0.0;
    for (int64_t v = part_begin(u, part); v < part_begin(u, part + 1); v += 64) {
        int64_t n = part_begin(u, part + 1) - v < 64 ? part_begin(u, part + 1) - v : 64;
        for (int64_t k = 0; k < n; k++) x[v + k] = exp_negative(x[v + k] - most);
        float block = 0.0f;
        for (int64_t k = 0; k < n; k++) block += x[v + k];
        sum += (double)block;
    }
    u->part_sum[i] = sum;
}

/* Finds the token whose share of [0, sum) holds the drawn number: over parts first, then inside one. */
static void search_task(void *argument, int b) {
    usual *u = argument;
    const double *part_sum = u->part_sum + (int64_t)b * USUAL_PARTS;
    const float *x = u->logits + b * u->ld;
    double sum = 0.0;
    for (int k = 0; k < USUAL_PARTS; k++) sum += part_sum[k];
    uint64_t z = (u->seed + (uint64_t)b + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    double rest = (double)(z >> 11) * 0x1p-53 * sum;
    int part = 0;
    while (part + 1 < USUAL_PARTS && rest >= part_sum[part]) rest -= part_sum[part++];
    int64_t v = part_begin(u, part), last = part_begin(u, part + 1) - 1;
    while (v < last && rest >= (double)x[v]) rest -= (double)x[v++];
    u->tokens[b] = (int32_t)v;
}

void usual_sample(usual *u) {
    parallel_for(u->threads, (int)u->B * USUAL_PARTS, max_task, u);
    parallel_for(u->threads, (int)u->B * USUAL_PARTS, exp_task, u);
    parallel_for(u->threads, (int)u->B, search_task, u);
    u->seed += (uint64_t)u->B;
}

void usual_prepare(usual *u) {
    if (padded(u->D) > MAX_D16) die(END_USAGE, "the usual way is written for D <= %d", MAX_D16);
    u->ld = (u->V + 3) / 4 * 4;
    u->hf = take_memory(u->B * padded(u->D), sizeof(float), "hidden states in float");
    u->logits = take_memory(u->B * u->ld, sizeof(float), "stored logits");
    u->part_max = take_memory(u->B * USUAL_PARTS, sizeof(float), "partial maxima");
    u->part_sum = take_memory(u->B * USUAL_PARTS, sizeof(double), "partial sums");
    u->tokens = take_memory(u->B, sizeof(int32_t), "tokens");
    u->multiply = multiply_plainly;
    choose_dot(&u->how);
}
