/* peak.c - how fast this machine multiplies: the instruction a kernel is made of, in a loop that touches registers only. */
#include "cli.h"
#include "machine.h"
#include "parallel.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <arm_sve.h>
#endif

#define ROUNDS 20000 /* a few milliseconds */

typedef double (*peak_loop)(void); /* returns its floating-point operations */

/* Twelve independent sums: more than any latency of a multiply-add times two a cycle needs. */
#define SUMS 12
#define FMA_LOOP(vector, fma)                                                                                          \
    vector s[SUMS], a;                                                                                                 \
    memset(&a, 0, sizeof a);                                                                                           \
    memset(s, 0, sizeof s);                                                                                            \
    for (int i = 0; i < ROUNDS; i++) {                                                                                 \
        __asm__ volatile("" : "+" REGISTER(a));                                                                        \
        for (int k = 0; k < SUMS; k++) s[k] = fma(a, a, s[k]);                                                         \
    }                                                                                                                  \
    for (int k = 0; k < SUMS; k++) __asm__ volatile("" : : REGISTER(s[k]));                                            \
    return (double)ROUNDS * SUMS * 2 * (double)(sizeof(vector) / sizeof(float))

#if defined(__x86_64__)
#define REGISTER(x) "x"(x)
__attribute__((target("avx512f,fma"))) static double fma_avx512(void) {
    FMA_LOOP(__m512, _mm512_fmadd_ps);
}
__attribute__((target("avx2,fma"))) static double fma_avx2(void) {
    FMA_LOOP(__m256, _mm256_fmadd_ps);
}

__attribute__((target("avx512bf16,avx512f"))) static double pairs_avx512bf16(void) {
    __m512 s[SUMS];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3F803F80);
    for (int k = 0; k < SUMS; k++) s[k] = _mm512_setzero_ps();
    for (int i = 0; i < ROUNDS; i++) {
        __asm__ volatile("" : "+v"(a));
        for (int k = 0; k < SUMS; k++) s[k] = _mm512_dpbf16_ps(s[k], a, a);
    }
    for (int k = 0; k < SUMS; k++) __asm__ volatile("" : : "v"(s[k]));
    return (double)ROUNDS * SUMS * 64;
}

/* The library has asked the system for tiles when it opened a context with that kernel. */
__attribute__((target("amx-tile,amx-bf16"))) static double tiles_amx(void) {
    uint8_t config[64] = {1};
    for (int i = 0; i < 8; i++) config[16 + 2 * i] = 64, config[48 + i] = 16;
    __asm__ volatile("" : : "r"(config) : "memory"); /* gcc does not know that the next line reads it */
    _tile_loadconfig(config);
    for (int i = 0; i < ROUNDS; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)ROUNDS * 4 * 2 * 16 * 16 * 32;
}
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c)) /* SSE2 has no fused one */
#elif defined(__aarch64__)
#define REGISTER(x) "w"(x)
#define MULTIPLY_ADD(a, b, c) ((v4)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))

/* One variable for every sum, since vectors of SVE cannot be an array; 24, for the latency of 9 cycles of A64FX times two a cycle.
 * The compiler must not know that they are equal. */
#define NAMED_SUMS 24
#define EACH(f, g)                                                                                                     \
    f(g, 0) f(g, 1) f(g, 2) f(g, 3) f(g, 4) f(g, 5) f(g, 6) f(g, 7) f(g, 8) f(g, 9) f(g, 10) f(g, 11) f(g, 12)         \
        f(g, 13) f(g, 14) f(g, 15) f(g, 16) f(g, 17) f(g, 18) f(g, 19) f(g, 20) f(g, 21) f(g, 22) f(g, 23)
#define BEGIN(zero, k)                                                                                                 \
    __typeof__(zero) s##k = zero;                                                                                      \
    __asm__ volatile("" : "+w"(s##k));
#define ADD(add, k) s##k = add(s##k, a, a);
#define END(kind, k) __asm__ volatile("" : : kind(s##k));
#define NAMED_LOOP(zero, operand, add, flops)                                                                          \
    __typeof__(operand) a = operand;                                                                                   \
    EACH(BEGIN, zero)                                                                                                  \
    for (int i = 0; i < ROUNDS; i++) {                                                                                 \
        __asm__ volatile("" : "+w"(a));                                                                                \
        EACH(ADD, add)                                                                                                 \
    }                                                                                                                  \
    EACH(END, "w")                                                                                                     \
    return (double)ROUNDS * NAMED_SUMS * (double)(flops)

__attribute__((target("arch=armv8.2-a+bf16"))) static double mmla_neon(void) {
    NAMED_LOOP(vdupq_n_f32(0), vreinterpretq_bf16_u16(vdupq_n_u16(0)), vbfmmlaq_f32, 2 * 16);
}
__attribute__((target("arch=armv8.2-a+bf16"))) static double pairs_neonbf16(void) {
    NAMED_LOOP(vdupq_n_f32(0), vreinterpretq_bf16_u16(vdupq_n_u16(0)), vbfdotq_f32, 2 * 8);
}
__attribute__((target("arch=armv8.2-a+fp16fml"))) static double fmlal_neonf16(void) {
    NAMED_LOOP(vdupq_n_f32(0), vreinterpretq_f16_u16(vdupq_n_u16(0)), vfmlalq_low_f16, 2 * 4);
}
__attribute__((target("arch=armv8.2-a+sve+bf16"))) static double mmla_sve(void) {
    NAMED_LOOP(svdup_n_f32(0), svreinterpret_bf16_u16(svdup_n_u16(0)), svbfmmla_f32, 2 * 4 * svcntw());
}
#define SVE_MULTIPLY_ADD(s, x, y) svmla_f32_x(svptrue_b32(), s, x, y)
__attribute__((target("arch=armv8.2-a+sve"))) static double fma_sve(void) {
    NAMED_LOOP(svdup_n_f32(0), svdup_n_f32(0), SVE_MULTIPLY_ADD, 2 * svcntw());
}
#else
#define REGISTER(x) "m"(x)
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

typedef float v4 __attribute__((vector_size(16)));
static double fma_plain(void) {
    FMA_LOOP(v4, MULTIPLY_ADD);
}

/* By kernel and dtype of the weights, hidden states being of the same; what is not here is plain. */
static const struct {
    const char *isa;
    peak_loop loop[3];
} loops[] = {
#if defined(__x86_64__)
    {"amx", {tiles_amx, tiles_amx, tiles_amx}},       {"avx512bf16", {fma_avx512, fma_avx512, pairs_avx512bf16}},
    {"avx512", {fma_avx512, fma_avx512, fma_avx512}}, {"avx2", {fma_avx2, fma_avx2, fma_avx2}},
#elif defined(__aarch64__)
    {"svebf16", {fma_sve, fmlal_neonf16, mmla_sve}},     {"sve", {fma_sve, fma_sve, fma_sve}},
    {"neonmmla", {fma_plain, fmlal_neonf16, mmla_neon}}, {"neonbf16", {fma_plain, fmlal_neonf16, pairs_neonbf16}},
    {"neonf16", {fma_plain, fmlal_neonf16, fma_plain}},
#endif
    {"scalar", {fma_plain, fma_plain, fma_plain}},
};

static peak_loop choose_loop(const char *isa, int dtype) {
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++)
        if (strcmp(isa, loops[i].isa) == 0) return loops[i].loop[dtype];
    return fma_plain;
}

/* Of bf16 parts: f16 is two of them, f32 three, and of 3 x 3 products the three smallest are left out. */
int peak_products(const char *isa, int dtype) {
    if (strcmp(isa, "amx") != 0 || dtype == FS_BF16) return 1;
    return dtype == FS_F16 ? 4 : 6;
}

static void run_loop(void *argument, int i) {
    (void)i;
    const peak_loop *loop = argument;
    (*loop)();
}

double measure_peak(const char *isa, int dtype, int threads, double seconds) {
    peak_loop loop = choose_loop(isa, dtype);
    double work = loop(), best = 0, end = now() + seconds;
    do {
        double begin = now();
        parallel_for(threads, threads, run_loop, &loop);
        double rate = work * threads / (now() - begin);
        if (rate > best) best = rate;
    } while (now() < end);
    return best / peak_products(isa, dtype);
}
