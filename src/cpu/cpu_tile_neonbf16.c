/* NEON with BF16 (Armv8.6): bfdot adds the products of elements 2 i and 2 i + 1 to lane i, rounding to odd in between, and flushes
 * denormals. Written without the hardware and run under emulation only: experimental. */
#include <arm_neon.h>

#define FS_ISA neonbf16
#define FS_TILE_TOKENS 2 /* as neon */
#define FS_TILE_ROWS 3
#define FS_REGISTER 16
#define FS_ONLY_PAIRS
#include "cpu_tile.h"

FS_INLINE piece add_pairs(piece sum, piece x, piece y) {
    return (piece)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)y);
}

#include "cpu_pairs.h"
