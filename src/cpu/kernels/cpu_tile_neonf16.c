/* NEON with FHM (Armv8.4, before that an option): fmlal and fmlal2 multiply f16 by f16 and add to float, the lower and
 * the upper four of eight elements. So f16 weights and hidden states are multiplied as they lie, in half the loads and
 * without the conversion that every four weights take in the row neon: 15.0 instead of 20.6 ms for one row, 750 instead
 * of 896 for 64 (Neoverse V1, one core, V = 151,936, D = 1,024, 2026-11-17).
 *
 * A product of two f16 is exact in float and each sum is rounded once, to nearest even: a logit is as exact as with
 * widened numbers. Nothing is flushed or saturated, since the sums are float. A step is 32 elements: lane 4 p + i takes
 * 8 p + i, then 8 p + i + 4.
 *
 * Only f16 hidden states are multiplied this way. As sums of f16 components, f32 and bf16 would lose what is below
 * 2^-24 and above 65504, and cost an instruction for every component; they are widened weights times floats, the kernel
 * of the row neon, bit for bit. */
#include <arm_neon.h>

#define FS_ISA neonf16
#define FS_TILE_TOKENS 2 /* as neon */
#define FS_TILE_ROWS 3
#define FS_REGISTER 16
#define FS_FEW_ROWS(bytes) 2
#define FS_OWN_KERNELS
#include "cpu_tile.h"

#define FS_STEP 32 /* elements */

FS_INLINE vec add_eight(vec sum, vec x, vec y) {
    const float32x4_t low = vfmlalq_low_f16((float32x4_t)sum, (float16x8_t)x, (float16x8_t)y);
    return (vec)vfmlalq_high_f16(low, (float16x8_t)x, (float16x8_t)y);
}

FS_DEFINE_DOTS(dot_halves, 1, load_f32, add_eight, FS_LINE, FS_LINE)
static const microkernel microkernel_halves = {dot_halves, FS_STEP, 2, 1, NULL, NULL};

static size_t packed_bytes(const fs_hidden *hidden) {
    if (hidden->dtype != FS_F16) return fs_kernel_f16__neon.packed_bytes(hidden);
    return (size_t)hidden->rows * (size_t)((hidden->dim + FS_STEP - 1) / FS_STEP) * FS_LINE;
}

/* [rows, dim rounded up to whole steps] f16, zeros behind dim. */
static void pack(const fs_hidden *hidden, int64_t from, int64_t to) {
    if (hidden->dtype != FS_F16) {
        fs_kernel_f16__neon.pack(hidden, from, to);
        return;
    }
    const int64_t dim = hidden->dim, ld = (dim + FS_STEP - 1) / FS_STEP * FS_STEP;
    const int64_t last = to < ld ? to : ld, there = last < dim ? last : dim;
    for (int32_t r = 0; r < hidden->rows && from < last; r++) {
        char *packed = hidden->packed + (r * ld + from) * 2;
        memset(packed, 0, (size_t)(last - from) * 2);
        if (from < there) memcpy(packed, hidden->row[r] + from * 2, (size_t)(there - from) * 2);
    }
}

static void tile(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens, float *out,
                 int64_t out_ld) {
    if (hidden->dtype != FS_F16) fs_kernel_f16__neon.tile(hidden, w, first, tokens, out, out_ld);
    else tile_all(&microkernel_halves, hidden, matrix_row(w, first), w->stride, tokens, out, out_ld);
}

const fs_kernel fs_kernel_f16__neonf16 = {packed_bytes, pack, tile, NULL};
