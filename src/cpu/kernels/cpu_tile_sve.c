/* SVE, vectors of any length: float multiply-adds of widened weights. Written without the hardware and run under
 * emulation only, with vectors of 128 to 2048 bits: experimental.
 *
 * The 16 lanes of cpu_tile.h are one vector of 512 bits (A64FX), two of 256 (Neoverse V1) or four of 128. A tile of 8
 * tokens x 3 rows goes over a chunk of its operands once for each of them, with one register a sum; what it reads again
 * comes from L1. So there are 11 loads for 24 multiply-adds whatever the length, and 28 registers of 32 in use. Nothing
 * here is measured.
 *
 * The order of additions is cpu_tile.h's: neither the batch nor the length of vectors changes a logit, and it has the
 * bits of the row neon. The length is asked for in every call: a thread may change its own. */
#include <arm_neon.h>
#include <arm_sve.h>

#define FS_ISA sve
#define FS_TILE_TOKENS 8
#define FS_TILE_ROWS 3
#define FS_REGISTER 16 /* packing and panels are NEON's */
#define FS_HAS_LOAD
#define FS_HAS_DOT
#include "cpu_tile.h"

#include "cpu_neon.h"

/* What `load` does, for the lanes that are on. */
FS_INLINE svfloat32_t load_lanes(vec (*load)(const char *), svbool_t on, const char *p) {
    if (load == load_f32) return svld1_f32(on, (const float *)(const void *)p);
    const svuint32_t half = svld1uh_u32(on, (const uint16_t *)(const void *)p);
    if (load == load_f16) return svcvt_f32_f16_x(on, svreinterpret_f16_u32(half));
    return svreinterpret_f32_u32(svlsl_n_u32_x(on, half, 16));
}

/* Vectors without a size cannot be an array: one variable for every sum, named by token and row. */
#define FS_EACH_ROW(f, t) f(t, 0) f(t, 1) f(t, 2)
#define FS_EACH_TOKEN(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
_Static_assert(FS_TILE_TOKENS == 8 && FS_TILE_ROWS == 3, "the lists above");

/* Those of a smaller shape are not there, as the compiler knows. */
FS_INLINE svfloat32_t begin_sum(int there, svbool_t on, const float *sum) {
    return there ? svld1_f32(on, sum) : svdup_n_f32(0.0f);
}
FS_INLINE svfloat32_t add_row(int there, svbool_t on, svfloat32_t sum, svfloat32_t x, svfloat32_t y) {
    return there ? svmla_f32_x(on, sum, x, y) : sum;
}
FS_INLINE void end_sum(int there, svbool_t on, svfloat32_t x, float *sum) {
    if (there) svst1_f32(on, sum, x);
}

#define FS_BEGIN_SUM(t, r) svfloat32_t sum_##t##r = begin_sum(t < T && r < R, on, sum + (t * R + r) * FS_LANES);
#define FS_BEGIN(t) FS_EACH_ROW(FS_BEGIN_SUM, t)
#define FS_ADD_ROW(t, r) sum_##t##r = add_row(t < T && r < R, on, sum_##t##r, x_##t, y_##r);
#define FS_ADD(t)                                                                                                      \
    const svfloat32_t x_##t = load_lanes(load, on, w + (t < T ? t : T - 1) * stride);                                  \
    FS_EACH_ROW(FS_ADD_ROW, t)
#define FS_END_SUM(t, r) end_sum(t < T && r < R, on, sum_##t##r, sum + (t * R + r) * FS_LANES);
#define FS_END(t) FS_EACH_ROW(FS_END_SUM, t)

/* Adds the lanes that are on of `steps` steps to sum [T, R, FS_LANES]. */
FS_INLINE void dot_lanes(int T, int R, vec (*load)(const char *), svbool_t on, int step_bytes, const char *w,
                         int64_t stride, const float *h, int64_t h_ld, int64_t steps, float *sum) {
    FS_EACH_TOKEN(FS_BEGIN)
    for (int64_t k = 0; k < steps; k++, w += step_bytes, h += FS_LANES) {
        const svfloat32_t y_0 = svld1_f32(on, h), y_1 = R > 1 ? svld1_f32(on, h + h_ld) : y_0,
                          y_2 = R > 2 ? svld1_f32(on, h + 2 * h_ld) : y_0;
        FS_EACH_TOKEN(FS_ADD)
    }
    FS_EACH_TOKEN(FS_END)
}

FS_INLINE void dot(int T, int R, int components, vec (*load)(const char *), vec (*add)(vec, vec, vec), int step_bytes,
                   int line_bytes, const char *w, int64_t stride, const char *h, int64_t h_ld, int64_t steps,
                   lanes *sum) {
    (void)components, (void)add; /* one, and add_product */
    const int64_t width = (int64_t)svcntw();
    for (int64_t k = 0; k < steps; k += FS_CHUNK)
        for (int64_t lane = 0; lane < FS_LANES; lane += width)
            dot_lanes(T, R, load, svwhilelt_b32_s64(lane, FS_LANES), step_bytes,
                      w + k * step_bytes + lane * (line_bytes / FS_LANES), stride,
                      (const float *)(const void *)(h + k * FS_LINE) + lane, h_ld / 4,
                      steps - k < FS_CHUNK ? steps - k : FS_CHUNK, (float *)(void *)sum + lane);
}
