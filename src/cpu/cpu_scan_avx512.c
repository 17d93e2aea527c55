#include <immintrin.h>

#define FS_ISA avx512
#define FS_HAS_MAX
#define FS_HAS_MASS
#include "cpu_scan.h"

/* Sixteen granules at once: at every level two vectors become one, so that 15 x 3 instructions give sixteen maxima, or sums. */
#define HALVES(combine, shuffle, a, b, low, high) combine(shuffle(a, b, low), shuffle(a, b, high))

/* Elements 8, 4, 2, 1 apart of x[i], combined, become element i: the order in which mass.h adds a granule. Lanes of 128 bits 0, 1 meet 2, 3;
 * then 0, 2 meet 1, 3; element e of lane j is then of vector 4 e + j. */
#define COMBINE_SIXTEEN(name, combine)                                                                                 \
    static inline __m512 name(const __m512 *x) {                                                                       \
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);                 \
        __m512 a[8], b[4], c[2];                                                                                       \
        for (int i = 0; i < 8; i++) a[i] = HALVES(combine, _mm512_shuffle_f32x4, x[2 * i], x[2 * i + 1], 0x44, 0xEE);  \
        for (int i = 0; i < 4; i++) b[i] = HALVES(combine, _mm512_shuffle_f32x4, a[2 * i], a[2 * i + 1], 0x88, 0xDD);  \
        for (int i = 0; i < 2; i++) c[i] = HALVES(combine, _mm512_shuffle_ps, b[2 * i], b[2 * i + 1], 0x44, 0xEE);     \
        return _mm512_permutexvar_ps(order, HALVES(combine, _mm512_shuffle_ps, c[0], c[1], 0x88, 0xDD));               \
    }
COMBINE_SIXTEEN(max_of_sixteen, _mm512_max_ps)
COMBINE_SIXTEEN(sum_of_sixteen, _mm512_add_ps)

static float scan_max(const float *y, int64_t n, float *max) {
    const int64_t granules = n / FS_GRANULE;
    __m512 most = _mm512_set1_ps(-INFINITY);
    int64_t g = 0;
    for (; g + 16 <= granules; g += 16) {
        __m512 x[16];
        for (int i = 0; i < 16; i++) x[i] = _mm512_loadu_ps(y + (g + i) * FS_GRANULE);
        __m512 m = max_of_sixteen(x);
        _mm512_storeu_ps(max + g, m);
        most = _mm512_max_ps(most, m);
    }
    for (; g < granules; g++) {
        max[g] = _mm512_reduce_max_ps(_mm512_loadu_ps(y + g * FS_GRANULE));
        most = _mm512_max_ps(most, _mm512_set1_ps(max[g]));
    }
    return _mm512_reduce_max_ps(most);
}

/* exp_split of mass.h, sixteen at once and bit for bit: the same operations in the same order, none fused. */
static inline __m512 split_exp(__m512 l, __m512i *exponent) {
    const __m512 limit = _mm512_set1_ps(FS_EXP_LIMIT), magic = _mm512_set1_ps(12582912.0f);
    l = _mm512_max_ps(_mm512_min_ps(l, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
    __m512 shifted = _mm512_add_ps(_mm512_mul_ps(l, _mm512_set1_ps(1.44269504f)), magic);
    __m512 n = _mm512_sub_ps(shifted, magic);
    __m512 r = _mm512_sub_ps(l, _mm512_mul_ps(n, _mm512_set1_ps(0.6875f)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(0.005645751953125f)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(1.42860682e-06f)));
    static const float c[] = {1.38888889e-03f, 8.33333333e-03f, 4.16666667e-02f, 1.66666667e-01f, 0.5f, 1.0f, 1.0f};
    __m512 p = _mm512_set1_ps(1.98412698e-04f);
    for (int i = 0; i < 7; i++) p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(c[i]));
    *exponent = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x4B400000));
    return p;
}

/* The largest exponent of a granule is that of its largest logit, because every step to it is monotonic. */
static void scan_add_mass(const float *y, const float *max, int64_t n, float scale, fs_mass *mass) {
    const int64_t granules = n / FS_GRANULE;
    const __m512 times = _mm512_set1_ps(scale), none = _mm512_set1_ps(-INFINITY);
    int64_t g = 0;
    for (; g + 16 <= granules; g += 16) {
        __m512i top, exponent;
        __m512 t[16];
        float sum[16];
        int32_t most[16];
        split_exp(_mm512_mul_ps(_mm512_loadu_ps(max + g), times), &top);
        _mm512_storeu_si512(most, top);
        for (int i = 0; i < 16; i++) {
            __m512 l = _mm512_mul_ps(_mm512_loadu_ps(y + (g + i) * FS_GRANULE), times);
            __m512 fraction = split_exp(l, &exponent);
            __m512i shift = _mm512_sub_epi32(exponent, _mm512_set1_epi32(most[i]));
            __mmask16 counts = _mm512_cmp_ps_mask(l, none, _CMP_GT_OQ) &
                               _mm512_cmp_epi32_mask(shift, _mm512_set1_epi32(-60), _MM_CMPINT_NLT);
            t[i] = _mm512_castsi512_ps(
                _mm512_maskz_add_epi32(counts, _mm512_castps_si512(fraction), _mm512_slli_epi32(shift, 23)));
        }
        _mm512_storeu_ps(sum, sum_of_sixteen(t));
        for (int i = 0; i < 16; i++) mass_add(mass, sum[i], most[i]);
    }
    for (; g < granules; g++) {
        float l[FS_GRANULE];
        for (int i = 0; i < FS_GRANULE; i++) l[i] = y[g * FS_GRANULE + i] * scale;
        mass_add_granule(mass, l);
    }
}
