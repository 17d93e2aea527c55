/* peak.c - how fast this machine multiplies: the instruction a kernel is made of, in a loop that touches registers only. */
#include "cli.h"
#include "machine.h"
#include "parallel.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
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
#include <arm_neon.h>
#define REGISTER(x) "w"(x)
#define MULTIPLY_ADD(a, b, c) ((v4)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define REGISTER(x) "m"(x)
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

typedef float v4 __attribute__((vector_size(16)));
static double fma_plain(void) {
    FMA_LOOP(v4, MULTIPLY_ADD);
}

/* The loop of the kernel with this name for weights of this dtype. */
static peak_loop choose_loop(const char *isa, int dtype) {
#if defined(__x86_64__)
    if (strcmp(isa, "amx") == 0) return tiles_amx;
    if (dtype == FS_BF16 && strcmp(isa, "avx512bf16") == 0) return pairs_avx512bf16;
    if (strncmp(isa, "avx512", 6) == 0) return fma_avx512;
    if (strcmp(isa, "avx2") == 0) return fma_avx2;
#endif
    (void)isa, (void)dtype;
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
