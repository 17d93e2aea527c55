#include <immintrin.h>

#define FS_ISA avx512
#define FS_HAS_MAX
#include "cpu_scan.h"

/* Sixteen granules at once: at every level two vectors become one, so that 15 x 3 instructions give sixteen maxima. */
#define HALVES(shuffle, a, b, low, high) _mm512_max_ps(shuffle(a, b, low), shuffle(a, b, high))

static __m512 max_of_sixteen(const float *y) {
    __m512 a[8], b[4], c[2];
    /* Lanes of 128 bits 0, 1 of the first vector meet its lanes 2, 3; then 0, 2 meet 1, 3: quarters of granules 0, 2, 1, 3. */
    for (int i = 0; i < 8; i++) {
        __m512 p = _mm512_loadu_ps(y + 32 * i), q = _mm512_loadu_ps(y + 32 * i + 16);
        a[i] = HALVES(_mm512_shuffle_f32x4, p, q, 0x44, 0xEE);
    }
    for (int i = 0; i < 4; i++) b[i] = HALVES(_mm512_shuffle_f32x4, a[2 * i], a[2 * i + 1], 0x88, 0xDD);
    /* Now lane j of b[i] holds four candidates of granule 4 i + j. */
    for (int i = 0; i < 2; i++) c[i] = HALVES(_mm512_shuffle_ps, b[2 * i], b[2 * i + 1], 0x44, 0xEE);
    __m512 d = HALVES(_mm512_shuffle_ps, c[0], c[1], 0x88, 0xDD);
    /* Element e of lane j is the maximum of granule 4 e + j. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, d);
}

static float scan_max(const float *y, int64_t n, float *max) {
    const int64_t granules = n / FS_GRANULE;
    __m512 most = _mm512_set1_ps(-INFINITY);
    int64_t g = 0;
    for (; g + 16 <= granules; g += 16) {
        __m512 m = max_of_sixteen(y + g * FS_GRANULE);
        _mm512_storeu_ps(max + g, m);
        most = _mm512_max_ps(most, m);
    }
    for (; g < granules; g++) {
        max[g] = _mm512_reduce_max_ps(_mm512_loadu_ps(y + g * FS_GRANULE));
        most = _mm512_max_ps(most, _mm512_set1_ps(max[g]));
    }
    return _mm512_reduce_max_ps(most);
}
