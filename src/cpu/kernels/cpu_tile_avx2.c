/* AVX2 with FMA and F16C: x86_64-v3. */
#include <immintrin.h>

#define FS_ISA avx2
#define FS_TILE_TOKENS 2 /* 16 lanes are two registers: 12 accumulators, 3 operands of H and one of W of 16 registers */
#define FS_TILE_ROWS 3
#define FS_REGISTER 32
#define FS_HAS_LOAD
#include "cpu_tile.h"

FS_INLINE vec load_bf16(const char *p) {
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return (vec)_mm256_slli_epi32(x, 16);
}

FS_INLINE vec load_f16(const char *p) {
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
