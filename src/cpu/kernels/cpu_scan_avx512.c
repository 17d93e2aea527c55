#include <immintrin.h>

#define FS_ISA avx512
#define FS_HAS_SURVEY
#define FS_HAS_APPEND
#define FS_HAS_KEEP
#define FS_HAS_MASS
#define FS_HAS_ROUGH
#define FS_HAS_MARKS
#include "cpu_avx512.h"
#include "cpu_scan.h"

/* Sixteen granules at once: at every level two vectors become one, so that 15 x 3 instructions give sixteen maxima, or
 * sums. */
#define HALVES(combine, shuffle, a, b, low, high) combine(shuffle(a, b, low), shuffle(a, b, high))

/* Elements 8, 4, 2, 1 apart of x[i], combined, become element i: the order in which mass.h adds a granule. Lanes of 128
 * bits 0, 1 meet 2, 3; then 0, 2 meet 1, 3; element e of lane j is then of vector 4 e + j. */
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

/* Two vectors in one comparison: unordered if either is NaN. */
static inline __mmask16 any_nan(__m512 a, __m512 b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}

/* A granule; with a mask, without what that does not allow, which is stored. */
static inline __m512 load_allowed(const uint32_t *allow, int64_t base, float *y, int64_t at) {
    if (!allow) return _mm512_loadu_ps(y + at);
    const __mmask16 bits = (__mmask16)(allow[(base + at) / 32] >> (base + at) % 32);
    const __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), bits, y + at);
    _mm512_storeu_ps(y + at, x);
    return x;
}

static inline float survey_max(const uint32_t *allow, int64_t base, float *y, int64_t granules, float *max,
                               uint32_t *nan) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    int64_t g = 0;
    for (; g + 16 <= granules; g += 16) {
        __m512 x[16];
        __mmask16 seen = 0;
        for (int i = 0; i < 16; i++) x[i] = load_allowed(allow, base, y, (g + i) * FS_GRANULE);
        for (int i = 0; i < 16; i += 2) seen |= any_nan(x[i], x[i + 1]);
        __m512 m = max_of_sixteen(x);
        _mm512_storeu_ps(max + g, m);
        most = _mm512_max_ps(most, m);
        *nan |= seen;
    }
    for (; g < granules; g++) {
        __m512 x = load_allowed(allow, base, y, g * FS_GRANULE);
        max[g] = _mm512_reduce_max_ps(x);
        most = _mm512_max_ps(most, _mm512_set1_ps(max[g]));
        *nan |= any_nan(x, x);
    }
    return _mm512_reduce_max_ps(most);
}

static fs_survey scan_survey(const uint32_t *allow, int64_t base, float *y, int64_t n, float *max) {
    uint32_t nan = 0, none = 0;
    const int64_t granules = n / FS_GRANULE;
    float most = allow ? survey_max(allow, base, y, granules, max, &nan) : survey_max(NULL, 0, y, granules, max, &nan);
    if (nan) {
        for (int64_t i = 0; i < n; i++) y[i] = y[i] == y[i] ? y[i] : -INFINITY;
        most = survey_max(NULL, 0, y, granules, max, &none);
    }
    fs_survey survey = {most, nan ? (uint32_t)FS_ROW_NAN : 0u};
    if (most == INFINITY) survey.flags |= FS_ROW_INF;
    return survey;
}

/* Empties lanes of one row into its mass, whose top limb becomes `top`. */
static void wide_flush(wide_mass *wide, int32_t top, fs_mass *mass) {
    for (int j = 0; j < 3; j++) {
        __m512i low = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(wide->limb[j]));
        __m512i high = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(wide->limb[j], 1));
        mass->limb[j] += (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(low, high));
    }
    mass_raise(mass, top);
    *wide = wide_empty(_mm512_set1_epi32(24 * top));
}

/* Sixteen granules. The largest exponent of a granule is that of its largest logit, because every step to it is
 * monotonic. */
static inline void add_sixteen(const float *y, __m512 max, __m512 times, wide_mass *wide, fs_mass *mass) {
    __m512i top, shifted;
    __m512 t[16];
    int32_t most[16];
    /* Where a granule is empty any exponent will do. */
    split_exp(_mm512_max_ps(max, _mm512_set1_ps(-FS_EXP_EXACT)), &top);
    _mm512_storeu_si512(most, top);
    for (int i = 0; i < 16; i++) {
        __m512 l = _mm512_mul_ps(_mm512_loadu_ps(y + i * FS_GRANULE), times);
        const __m512 fraction = split_exp(l, &shifted);
        t[i] = scale_down(fraction, _mm512_sub_epi32(_mm512_set1_epi32(most[i]), shifted));
    }
    const wide_term term = wide_term_of(sum_of_sixteen(t), top);
    if (wide_over(wide, &term)) wide_flush(wide, limb_of(_mm512_mask_reduce_max_epi32(term.some, term.low)), mass);
    wide_add(wide, &term);
}

static void add_slowly(const float *y, float scale, fs_mass *mass) {
    float l[FS_GRANULE];
    for (int i = 0; i < FS_GRANULE; i++) l[i] = y[i] * scale;
    mass_add_granule(mass, l);
}

static void scan_add_mass(const float *y, const float *max, int64_t n, float scale, fs_mass *mass) {
    const int64_t granules = n / FS_GRANULE;
    const __m512 times = _mm512_set1_ps(scale), none = _mm512_set1_ps(-INFINITY);
    const __m512 reach = _mm512_set1_ps(FS_EXP_EXACT);
    wide_mass wide = wide_empty(_mm512_set1_epi32(24 * mass->top));
    for (int64_t g = 0; g < granules; g += 16) {
        const int64_t count = granules - g < 16 ? granules - g : 16;
        const __mmask16 there = (__mmask16)((1u << count) - 1);
        __m512 m = _mm512_mul_ps(_mm512_mask_loadu_ps(none, there, max + g), times);
        __mmask16 far =
            _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(m, none, _CMP_NEQ_OQ), _mm512_abs_ps(m), reach, _CMP_GT_OQ);
        if (far || count < 16) {
            wide_flush(&wide, mass->top, mass);
            for (int64_t i = g; i < g + count; i++) add_slowly(y + i * FS_GRANULE, scale, mass);
            wide = wide_empty(_mm512_set1_epi32(24 * mass->top));
            continue;
        }
        add_sixteen(y + g * FS_GRANULE, m, times, &wide, mass);
        if (g / 16 % FS_WIDE_TERMS == FS_WIDE_TERMS - 1) wide_flush(&wide, mass->top, mass);
    }
    wide_flush(&wide, mass->top, mass);
}

static float rough_sum(const float *y, int64_t n, rough_scale s) {
    const rough_lanes lanes = {_mm512_set1_ps(s.per), _mm512_set1_ps((float)s.unit)};
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += FS_GRANULE) sum = _mm512_add_ps(sum, rough_exp(&lanes, _mm512_loadu_ps(y + i)));
    return _mm512_reduce_add_ps(sum);
}

/* order_key of eight logits whose ordered images and ids these are, those of the lanes in `which` at `to`. */
static inline void append_eight(uint64_t *to, __mmask8 which, __m256i ordered, __m256i id) {
    __m512i key = _mm512_slli_epi64(_mm512_cvtepu32_epi64(ordered), 32);
    key = _mm512_or_si512(key, _mm512_cvtepu32_epi64(id));
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(which, key));
}

static int64_t scan_append(const float *y, const float *max, int64_t from, int64_t to, float floor, uint32_t base,
                           fs_list *list) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    const __m512 limit = _mm512_set1_ps(floor);
    for (int64_t g = from; g < to; g += 16) {
        const __mmask16 there = (__mmask16)(to - g < 16 ? (1u << (to - g)) - 1 : 0xFFFF);
        uint32_t some = _mm512_mask_cmp_ps_mask(there, _mm512_maskz_loadu_ps(there, max + g), limit, _CMP_GT_OQ);
        for (; some; some &= some - 1) {
            const int64_t at = (g + __builtin_ctz(some)) * FS_GRANULE;
            const __m512 x = _mm512_loadu_ps(y + at);
            const uint32_t which = _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ);
            const int32_t low = __builtin_popcount(which & 0xFF), all = __builtin_popcount(which);
            if (list->count + all > list->capacity) return at / FS_GRANULE;
            /* ordered_float: all bits of negative numbers are turned over, the sign of the others. */
            const __m512i bits = _mm512_castps_si512(_mm512_add_ps(x, _mm512_setzero_ps()));
            const __m512i ordered = _mm512_xor_si512(bits, _mm512_or_si512(_mm512_srai_epi32(bits, 31), sign));
            const __m512i id = _mm512_sub_epi32(_mm512_set1_epi32((int32_t) ~(base + (uint32_t)at)), lane);
            uint64_t *key = list->key + list->count;
            append_eight(key, (__mmask8)which, _mm512_castsi512_si256(ordered), _mm512_castsi512_si256(id));
            append_eight(key + low, (__mmask8)(which >> 8), _mm512_extracti64x4_epi64(ordered, 1),
                         _mm512_extracti64x4_epi64(id, 1));
            list->count += all;
        }
    }
    return to;
}

/* What is written lies before what is still to be read. */
static int32_t scan_keep_above(uint64_t *key, int32_t n, uint64_t above) {
    const __m512i limit = _mm512_set1_epi64((int64_t)above);
    int32_t count = 0;
    for (int32_t i = 0; i < n; i += 8) {
        const __mmask8 there = (__mmask8)(n - i < 8 ? (1u << (n - i)) - 1 : 0xFF);
        const __m512i k = _mm512_maskz_loadu_epi64(there, key + i);
        const __mmask8 kept = _mm512_mask_cmpgt_epu64_mask(there, k, limit);
        _mm512_storeu_si512(key + count, _mm512_maskz_compress_epi64(kept, k));
        count += __builtin_popcount(kept);
    }
    return count;
}

/* Lanes of which this pair of (place, prefix) lets a marked token win. The prefix as a float is 2^e m, and log2 of it
 * at least e + m - 1, which is what its bits say when they are taken for a number; 0 gives more noise than there is. */
static inline __mmask8 pair_passes(const fs_mark_test *test, __mmask8 lanes, __m256i at, __m256i prefix, float floor) {
    const __mmask8 inside = _mm256_mask_cmplt_epu32_mask(lanes, at, _mm256_set1_epi32((int32_t)test->span));
    const __m256 y = _mm256_mmask_i32gather_ps(_mm256_setzero_ps(), inside, at, test->y, 4);
    const __m256 bits = _mm256_cvtepi32_ps(_mm256_castps_si256(_mm256_cvtepi32_ps(prefix)));
    const __m256 noise = _mm256_mul_ps(bits, _mm256_set1_ps(FS_MARK_SLOPE));
    const __m256 score = _mm256_add_ps(_mm256_mul_ps(y, _mm256_set1_ps(test->scale)), noise);
    return _mm256_mask_cmp_ps_mask(inside, score, _mm256_set1_ps(floor), _CMP_GT_OQ);
}

/* Blocks of one mark are tested by their first pair, blocks of two by the first two, unless these share a place;
 * blocks that may have more, one in seventy, pass. */
static uint32_t scan_marks(const fs_mark_test *test, uint32_t first, fs_marks *marks) {
    const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    __m512i c[4] = {_mm512_add_epi64(lane, _mm512_set1_epi64(first)), _mm512_set1_epi64(test->noise.r0),
                    _mm512_set1_epi64(test->noise.r1), _mm512_set1_epi64(test->noise.r2 ^ FS_DOMAIN_MARK)};
    mark_words(c);
    __m256i w[4];
    for (int k = 0; k < 4; k++) {
        w[k] = _mm512_cvtepi64_epi32(c[k]);
        _mm256_storeu_si256((__m256i *)(void *)marks->w[k], w[k]);
    }
    const __mmask8 one = _mm256_cmpge_epu32_mask(w[0], _mm256_set1_epi32((int32_t)FS_MARKS_1));
    const __mmask8 two = _mm256_cmpge_epu32_mask(w[0], _mm256_set1_epi32((int32_t)FS_MARKS_2));
    const __mmask8 more = _mm256_cmpge_epu32_mask(w[0], _mm256_set1_epi32((int32_t)FS_MARKS_3));
    const __m256i low = _mm256_set1_epi32(0xFFFF), seven = _mm256_set1_epi32(127);
    const int32_t from = (int32_t)((int64_t)first * FS_NOISE_BLOCK - test->base);
    const __m256i begin = _mm256_add_epi32(_mm256_slli_epi32(_mm512_cvtepi64_epi32(lane), 7), _mm256_set1_epi32(from));
    const __m256i place = _mm256_and_si256(w[1], seven), next = _mm256_and_si256(_mm256_srli_epi32(w[1], 7), seven);
    const float floor = mark_floor(test->floor);
    uint32_t some = more;
    some |= pair_passes(test, one, _mm256_add_epi32(begin, place), _mm256_and_si256(w[2], low), floor);
    some |= pair_passes(test, two, _mm256_add_epi32(begin, next), _mm256_srli_epi32(w[2], 16), floor);
    return some | _mm256_mask_cmpeq_epi32_mask(two, place, next);
}
