/* AVX2 with FMA and F16C: x86_64-v3. */
#include <immintrin.h>

#define FS_ISA avx2
#define FS_TILE_TOKENS 2 /* 16 lanes are two registers: 2 x 2 x 2 = 8 accumulators of 16 registers */
#define FS_TILE_ROWS 2
#define FS_HAS_LOAD
#include "cpu_tile.h"

FS_INLINE lanes join(__m256i low, __m256i high) {
    lanes x;
    memcpy((char *)&x, &low, 32);
    memcpy((char *)&x + 32, &high, 32);
    return x;
}

FS_INLINE lanes load_bf16(const char *p) {
    __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 16)));
    return join(_mm256_slli_epi32(low, 16), _mm256_slli_epi32(high, 16));
}

FS_INLINE lanes load_f16(const char *p) {
    __m256 low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16)));
    return join(_mm256_castps_si256(low), _mm256_castps_si256(high));
}
