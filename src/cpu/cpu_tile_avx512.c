/* AVX-512 (F, BW, VL): 16 lanes are one register. bf16 is widened to float; AVX-512 BF16 and AMX have their own rows to come. */
#include <immintrin.h>

#define FS_ISA avx512
#define FS_TILE_TOKENS 4 /* 16 accumulators and 8 operands of 32 registers */
#define FS_TILE_ROWS 4
#define FS_HAS_LOAD_F16
#include "cpu_tile.h"

static inline lanes load_f16(const char *p) {
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
