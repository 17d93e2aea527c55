/* SVE with BF16, vectors of any length: bfmmla on every 128 bits of a vector. Written without the hardware and run
 * under emulation only, with vectors of 128 to 2048 bits: experimental.
 *
 * Every 128 bits have two tokens of their own and the same pair of rows, so the order of additions is cpu_mmla.h's:
 * neither the batch nor the length of vectors changes a logit, and it has the bits of the row neonmmla. The length is
 * asked for in every call: a thread may change its own. For up to two rows, where W is zipped as it comes from memory,
 * the code is NEON's.
 *
 * Neoverse V1 starts two bfmmla of 256 bits a cycle instead of four of 128 (LLVM's scheduling model): the same products
 * with half the instructions. Four vectors of 256 bits are a panel of 16 tokens; longer vectors than 256 bits leave
 * sums unused. */
#include <arm_sve.h>

#define FS_ISA svebf16
#define FS_TOKENS 16
#define FS_HAS_DOT_PANEL
#include "cpu_mmla.h"

/* Vectors without a size cannot be an array: one variable for every sum, named by pair of rows and vector. */
#define FS_EACH_VECTOR(f, p) f(p, 0) f(p, 1) f(p, 2) f(p, 3)
#define FS_EACH_PAIR(f) f(0) f(1) f(2) f(3)
#define FS_EACH_SUM(f) FS_EACH_VECTOR(f, 0) FS_EACH_VECTOR(f, 1) FS_EACH_VECTOR(f, 2) FS_EACH_VECTOR(f, 3)
_Static_assert(FS_BAND == 4, "the pairs above");

#define FS_BEGIN(p, v) svfloat32_t acc_##p##v = svdup_n_f32(0.0f);
#define FS_ADD_VECTOR(p, v) acc_##p##v = svbfmmla_f32(acc_##p##v, x_##v, y);
#define FS_ADD(p)                                                                                                      \
    if (p < P) {                                                                                                       \
        const svbfloat16_t y = svld1rq_bf16(svptrue_b16(), (const bfloat16_t *)(const void *)h + p * 8);               \
        FS_EACH_VECTOR(FS_ADD_VECTOR, p)                                                                               \
    }
#define FS_END(p, v)                                                                                                   \
    if (p < P) add_sums(acc_##p##v, (v)*width, left, sum + p * T);

/* Adds a vector to the sums from `from` on, of which `left` are there. */
FS_INLINE void add_sums(svfloat32_t acc, int64_t from, int64_t left, sums *sum) {
    const svbool_t on = svwhilelt_b32_s64(from * 4, left * 4);
    float *at = (float *)(sum + from);
    svst1_f32(on, at, svadd_f32_x(on, svld1_f32(on, at), acc));
}

/* Those of 4 vectors of the panel: `left` operands are there. */
FS_INLINE void dot_vectors(int P, int components, int64_t left, const bfloat16x8_t *panel, const char *h, int64_t steps,
                           sums *sum) {
    enum { T = FS_TOKENS / 2 };
    const int64_t width = (int64_t)svcntb() / FS_OPERAND;
    const svbool_t on_0 = svwhilelt_b16_s64(0, left * 8), on_1 = svwhilelt_b16_s64(width * 8, left * 8);
    const svbool_t on_2 = svwhilelt_b16_s64(2 * width * 8, left * 8), on_3 = svwhilelt_b16_s64(3 * width * 8, left * 8);
    FS_EACH_SUM(FS_BEGIN)
    for (int64_t k = 0; k < steps * FS_QUADS; k++, panel += T) {
        const bfloat16_t *x = (const bfloat16_t *)panel;
        const svbfloat16_t x_0 = svld1_bf16(on_0, x), x_1 = svld1_vnum_bf16(on_1, x, 1);
        const svbfloat16_t x_2 = svld1_vnum_bf16(on_2, x, 2), x_3 = svld1_vnum_bf16(on_3, x, 3);
        for (int component = 0; component < components; component++, h += P * FS_OPERAND) {
            FS_EACH_PAIR(FS_ADD)
        }
    }
    FS_EACH_SUM(FS_END)
}

FS_INLINE void dot_panel(int P, int components, const bfloat16x8_t *panel, const char *h, int64_t steps, sums *sum) {
    const int64_t at_once = 4 * (int64_t)svcntb() / FS_OPERAND;
    for (int64_t t = 0; t < FS_TOKENS / 2; t += at_once)
        dot_vectors(P, components, FS_TOKENS / 2 - t, panel + t, h, steps, sum + t);
}
