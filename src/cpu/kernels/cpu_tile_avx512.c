/* AVX-512 (F, BW, VL): 16 lanes are one register. bf16 is widened to float; AVX-512 BF16 and AMX have their own kernels
 * for it. */
#include <immintrin.h>

#define FS_ISA avx512
#define FS_TILE_TOKENS 8 /* 24 accumulators, 3 operands of H and one of W of 32 registers */
#define FS_TILE_ROWS 3
#define FS_REGISTER 64
#define FS_HAS_LOAD
#include "cpu_tile.h"

FS_INLINE vec load_bf16(const char *p) {
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (vec)_mm512_slli_epi32(x, 16);
}

FS_INLINE vec load_f16(const char *p) {
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
