/* AVX2 with FMA and F16C: x86_64-v3. */
#include <immintrin.h>

#define FS_ISA avx2
#define FS_TILE_TOKENS 2 /* 16 lanes are two registers: 2 x 2 x 2 = 8 accumulators of 16 registers */
#define FS_TILE_ROWS 2
#define FS_HAS_LOAD_F16
#include "cpu_tile.h"

static inline lanes load_f16(const char *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(h)), high = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    lanes x;
    memcpy((char *)&x, &low, 32);
    memcpy((char *)&x + 32, &high, 32);
    return x;
}
