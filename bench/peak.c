/* peak.c - how fast this machine multiplies: the instruction a kernel is made of, in a loop that touches registers
 * only. */
#include "cli.h"
#include "machine.h"
#include "parallel.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/prctl.h>
#endif

#define ROUNDS 20000 /* half a millisecond and more */

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
    const size_t lanes = sizeof(vector) / sizeof(float);                                                               \
    return (double)ROUNDS * SUMS * 2 * (double)lanes

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

/* Four tiles of numbers, the unit being a fifth faster with zeros (5.9 ns an instruction instead of 7.1 on Emerald
 * Rapids), which weights are not: of both signs, their other bits being `half`, that of 1/2, and `bits` random ones.
 * The library has asked the system for tiles when it opened a context with that kernel. */
__attribute__((target("amx-tile"))) static void load_numbers(uint32_t half, int bits) {
    uint8_t config[64] = {1};
    uint16_t number[4][512];
    uint32_t random = 1;
    for (int i = 0; i < 8; i++) config[16 + 2 * i] = 64, config[48 + i] = 16;
    for (int i = 0; i < 4 * 512; i++) {
        random = random * 1664525u + 1013904223u;
        number[i / 512][i % 512] = (uint16_t)(half + (random >> (32 - bits)) + (random >> 8 & 1) * 0x8000);
    }
    /* gcc does not know that tile instructions read memory. */
    __asm__ volatile("" : : "r"(config), "r"(number) : "memory");
    _tile_loadconfig(config);
    _tile_loadd(4, number[0], 64);
    _tile_loadd(5, number[1], 64);
    _tile_loadd(6, number[2], 64);
    _tile_loadd(7, number[3], 64);
}

#define TILE_LOOP(multiply)                                                                                            \
    for (int i = 0; i < ROUNDS; i++) {                                                                                 \
        multiply(0, 4, 6);                                                                                             \
        multiply(1, 4, 7);                                                                                             \
        multiply(2, 5, 6);                                                                                             \
        multiply(3, 5, 7);                                                                                             \
    }                                                                                                                  \
    _tile_release();                                                                                                   \
    return (double)ROUNDS * 4 * 2 * 16 * 16 * 32

__attribute__((target("amx-tile,amx-bf16"))) static double tiles_amx(void) {
    load_numbers(0x3F00, 8);
    TILE_LOOP(_tile_dpbf16ps);
}

/* Encoded, since gcc 12 does not know it: tdpfp16ps. */
#define DPFP16PS(sums, a, b)                                                                                           \
    __asm__ volatile(".byte 0xC4, 0xE2, 0x7B - 8 * %c0, 0x5C, 0xC0 + 8 * %c1 + %c2" : : "i"(b), "i"(sums), "i"(a))

__attribute__((target("amx-tile"))) static double tiles_amxfp16(void) {
    load_numbers(0x3800, 11);
    TILE_LOOP(DPFP16PS);
}
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c)) /* SSE2 has no fused one */
#elif defined(__aarch64__)
#define REGISTER(x) "w"(x)
#define MULTIPLY_ADD(a, b, c) ((v4)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))

/* Encoded, since compilers and assemblers differ in how a function gets more instructions than its file. Operands are
 * v31 and sums v0 to v23, more than the latency of 9 cycles of A64FX times two a cycle needs. */
#define ENCODED_LOOP(instruction, products)                                                                            \
    for (int i = 0; i < ROUNDS; i++)                                                                                   \
        __asm__ volatile("movi v31.4s, #0\n"                                                                           \
                         ".irp k,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n"                      \
                         ".inst " instruction " + \\k\n"                                                               \
                         ".endr"                                                                                       \
                         :                                                                                             \
                         :                                                                                             \
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",     \
                           "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v31");               \
    return (double)ROUNDS * 24 * 2 * (double)(products)

static double mmla_neonmmla(void) {
    ENCODED_LOOP("0x6e5fefe0", 16); /* bfmmla vk.4s, v31.8h, v31.8h */
}
static double pairs_neonbf16(void) {
    ENCODED_LOOP("0x6e5fffe0", 8); /* bfdot vk.4s, v31.8h, v31.8h */
}
static double fmlal_neonf16(void) {
    ENCODED_LOOP("0x4e3fefe0", 4); /* fmlal vk.4s, v31.4h, v31.4h */
}
static int sve_lanes(void) {
    return (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) / 4;
}
static double fma_sve(void) {
    __asm__ volatile(".inst 0x2598e3e0" : : : "p0"); /* ptrue p0.s */
    ENCODED_LOOP("0x65bf03e0", sve_lanes());         /* fmla zk.s, p0/m, z31.s, z31.s */
}
static double mmla_svebf16(void) {
    ENCODED_LOOP("0x647fe7e0", 4 * sve_lanes()); /* bfmmla zk.s, z31.h, z31.h */
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
    {"amxfp16", {tiles_amxfp16, tiles_amxfp16, tiles_amx}},
    {"amx", {tiles_amx, tiles_amx, tiles_amx}},
    {"avx512bf16", {fma_avx512, fma_avx512, pairs_avx512bf16}},
    {"avx512", {fma_avx512, fma_avx512, fma_avx512}},
    {"avx2", {fma_avx2, fma_avx2, fma_avx2}},
#elif defined(__aarch64__)
    {"svebf16", {fma_sve, fmlal_neonf16, mmla_svebf16}},     {"sve", {fma_sve, fma_sve, fma_sve}},
    {"neonmmla", {fma_plain, fmlal_neonf16, mmla_neonmmla}}, {"neonbf16", {fma_plain, fmlal_neonf16, pairs_neonbf16}},
    {"neonf16", {fma_plain, fmlal_neonf16, fma_plain}},
#endif
    {"scalar", {fma_plain, fma_plain, fma_plain}},
};

static peak_loop choose_loop(const char *isa, int dtype) {
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++)
        if (strcmp(isa, loops[i].isa) == 0) return loops[i].loop[dtype];
    return fma_plain;
}

/* Of bf16 pieces f16 is two and f32 three, and of 3 x 3 products the three smallest are left out; of f16 pieces f32 is
 * two, and the smallest of 2 x 2 is. */
int peak_products(const char *isa, int dtype) {
    if (strncmp(isa, "amx", 3) != 0 || dtype == FS_BF16) return 1;
    if (strcmp(isa, "amxfp16") == 0) return dtype == FS_F32 ? 3 : 1;
    return dtype == FS_F32 ? 6 : 4;
}

static void run_loop(void *argument, int i) {
    (void)i;
    const peak_loop *loop = argument;
    (*loop)();
}

#define LOOPS 12 /* for each thread, taken by whoever is free: as in reading.c */

double measure_peak(const char *isa, int dtype, int threads, double seconds) {
    peak_loop loop = choose_loop(isa, dtype);
    double work = loop(), best = 0, end = now() + seconds;
    do {
        double begin = now();
        parallel_for(threads, LOOPS * threads, run_loop, &loop);
        double rate = LOOPS * work * threads / (now() - begin);
        if (rate > best) best = rate;
    } while (now() < end);
    return best / peak_products(isa, dtype);
}
