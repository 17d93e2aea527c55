/* NEON with BF16 (Armv8.6): bfdot adds the products of elements 2 i and 2 i + 1 to lane i, and flushes denormals. The
 * row neonmmla, which runs wherever this does, is faster from two rows on (Neoverse V1, 2026-11-17).
 *
 * It rounds to odd: the sum of two products, and that with the lane, towards zero, and then sets the last bit if
 * anything was lost. So a lane that is odd already stays as it is when less than its last bit is added, every time,
 * where rounding to nearest is right on average. That loses the small components of f32 hidden states (cpu_split.h),
 * which follow their large ones: where all products have one sign, a logit came out 0.9e-6 too small on average and
 * 1.2e-6 at worst for D = 4,096, 5e-6 for 16,384. Segments of 32 additions a lane that start from zero, added to the
 * lanes to nearest, leave 1.5e-7 whatever D is (qemu 7.2). */
#include <arm_neon.h>

#define FS_ISA neonbf16
#define FS_TILE_TOKENS 2 /* as neon */
#define FS_TILE_ROWS 3
#define FS_REGISTER 16
#define FS_FEW_ROWS(bytes) 2
#define FS_SEGMENT 32 /* 1,024 elements of bf16 hidden states, 512 of f16, 320 of f32 */
#define FS_OWN_KERNELS
#include "cpu_tile.h"

FS_INLINE vec add_pairs(vec sum, vec x, vec y) {
    return (vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)y);
}

#include "cpu_pairs.h"
