/* AVX-512 BF16: vdpbf16ps adds the products of elements 2 i + 1, then 2 i, to lane i. It rounds to nearest even,
 * flushes denormals and raises no exception, whatever MXCSR says.
 *
 * On Emerald Rapids it starts only every second cycle: 85 GFLOP/s a core where float multiply-adds reach 163
 * (2026-11-15), so this row is faster than avx512 only while it waits for memory.
 *
 * The small components of f32 hidden states (cpu_split.h) follow their large ones, and a lane that has grown rounds
 * them away: where all products have one sign, a logit was off by 1.0e-6 at D = 4,096 and 3e-6 at 16,384. Segments of
 * 32 additions that start from zero leave 2.0e-7 at both. */
#include <immintrin.h>

#define FS_ISA avx512bf16
#define FS_TILE_TOKENS 8 /* as avx512 */
#define FS_TILE_ROWS 3
#define FS_REGISTER 64
#define FS_SEGMENT 32 /* as neonbf16 */
#define FS_OWN_KERNELS
#include "cpu_tile.h"

FS_INLINE vec add_pairs(vec sum, vec x, vec y) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
}

#include "cpu_pairs.h"
