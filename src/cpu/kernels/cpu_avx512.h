/* cpu_avx512.h - what scans and filters share: marks of noise blocks by the vector, of one row's next eight or of one
 * block for eight rows, and terms of masses, exact and rough. */
#ifndef FS_CPU_AVX512_H
#define FS_CPU_AVX512_H

#include <immintrin.h>

#include "core/mass.h"
#include "cpu_isa.h"
#include "cpu_rough.h"

/* One product of a Philox round in 64-bit lanes: upper half xor a word xor the round's key; the lower half needs no
 * instruction, since whatever lies above a lane's 32 bits is ignored by the next product. */
static inline __m512i philox_mix(__m512i product, __m512i word, uint32_t key) {
    return _mm512_ternarylogic_epi64(_mm512_srli_epi64(product, 32), word, _mm512_set1_epi64(key), 0x96);
}

/* noise_mark_words of eight counters, call 0. c: their words before and after. */
static inline void mark_words(__m512i *c) {
    const __m512i a = _mm512_set1_epi64(0xD2511F53), b = _mm512_set1_epi64(0xCD9E8D57);
    for (uint32_t round = 0; round < 10; round++) {
        const __m512i p = _mm512_mul_epu32(a, c[0]), q = _mm512_mul_epu32(b, c[2]);
        c[0] = philox_mix(q, c[1], FS_NOISE_KEY0 + round * 0x9E3779B9u);
        c[2] = philox_mix(p, c[3], FS_NOISE_KEY1 + round * 0xBB67AE85u);
        c[1] = q, c[3] = p;
    }
}

/* ------------------------------------------------------------------------------------------------------ exact ---- */

/* exp_split of mass.h, sixteen at once and bit for bit, of |l| <= FS_EXP_EXACT: the same operations in the same order,
 * fused only where that is exact, so that one instruction rounds what two round. The exponent stays in the last bits of
 * *shifted. */
static inline __m512 split_exp(__m512 l, __m512i *shifted) {
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    __m512 sum = _mm512_add_ps(_mm512_mul_ps(l, _mm512_set1_ps(1.44269504f)), magic);
    __m512 n = _mm512_sub_ps(sum, magic);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.6875f), l);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.005645751953125f), r);
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(1.42860682e-06f)));
    static const float c[] = {1.38888889e-03f, 8.33333333e-03f, 4.16666667e-02f, 1.66666667e-01f, 0.5f, 1.0f, 1.0f};
    __m512 p = _mm512_set1_ps(1.98412698e-04f);
    for (int i = 0; i < 7; i++) p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(c[i]));
    *shifted = _mm512_castps_si512(sum);
    return p;
}

/* exp_scaled: fractions times 2^-down. Without a sign: whatever lies below the reach of split_exp, -inf too, is far
 * down. */
static inline __m512 scale_down(__m512 fraction, __m512i down) {
    const __mmask16 counts = _mm512_cmple_epu32_mask(down, _mm512_set1_epi32(60));
    const __m512i bits = _mm512_castps_si512(fraction);
    return _mm512_castsi512_ps(_mm512_maskz_sub_epi32(counts, bits, _mm512_slli_epi32(down, 23)));
}

/* Sums of granules on their way into limbs: mantissas, and the weight of their last bit; `some` are not 0. */
typedef struct wide_term {
    __m512i mantissa, low;
    __mmask16 some;
} wide_term;

/* Of sums whose exponents are in the last bits of `shifted`. */
static inline wide_term wide_term_of(__m512 sum, __m512i shifted) {
    const __m512i bits = _mm512_castps_si512(sum), hidden = _mm512_set1_epi32(0x800000);
    wide_term t;
    t.some = _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_GT_OQ);
    t.mantissa = _mm512_maskz_or_epi32(t.some, hidden, _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFF)));
    t.low =
        _mm512_add_epi32(shifted, _mm512_sub_epi32(_mm512_srli_epi32(bits, 23), _mm512_set1_epi32(0x4B400000 + 150)));
    return t;
}

/* A mass in lanes, of one row or of sixteen: lane i of limb j counts for limb j of a mass with that top. All additions
 * are exact, and there is room for FS_WIDE_TERMS terms of 24 bits. */
#define FS_WIDE_TERMS 128
typedef struct wide_mass {
    __m512i limb[3];
    __m512i top; /* times 24 */
} wide_mass;

static inline wide_mass wide_empty(__m512i top) {
    const __m512i zero = _mm512_setzero_si512();
    wide_mass wide = {{zero, zero, zero}, top};
    return wide;
}

/* Lanes whose term does not fit: its first bit, 23 above the last, would lie above the top limb. */
static inline __mmask16 wide_over(const wide_mass *wide, const wide_term *t) {
    return _mm512_mask_cmpgt_epi32_mask(t->some, t->low, wide->top);
}

/* The limb that holds the first bit of a mantissa whose last bit weighs 2^low. */
static inline int32_t limb_of(int32_t low) {
    return (low + 23 + 24 * 32768) / 24 - 32768;
}

/* mass_add: the bits of a mantissa that fall into each limb, by shifts, which give 0 for whatever is out of reach. */
static inline void wide_add(wide_mass *wide, const wide_term *t) {
    const __m512i whole = _mm512_set1_epi32(0xFFFFFF);
    __m512i left = _mm512_sub_epi32(t->low, wide->top);
    for (int j = 0; j < 3; j++) {
        __m512i right = _mm512_sub_epi32(_mm512_setzero_si512(), left);
        __m512i bits = _mm512_or_si512(_mm512_sllv_epi32(t->mantissa, left), _mm512_srlv_epi32(t->mantissa, right));
        wide->limb[j] = _mm512_add_epi32(wide->limb[j], _mm512_and_si512(bits, whole));
        left = _mm512_add_epi32(left, _mm512_set1_epi32(24));
    }
}

/* A granule of each of sixteen rows: l[i] of its token i. *most: the largest. */
static inline wide_term sum_granule(const __m512 *l, __m512 *most) {
    __m512i top, shifted;
    __m512 t[FS_GRANULE], m = l[0];
    for (int i = 1; i < FS_GRANULE; i++) m = _mm512_max_ps(m, l[i]);
    split_exp(m, &top);
    for (int i = 0; i < FS_GRANULE; i++) {
        const __m512 fraction = split_exp(l[i], &shifted);
        t[i] = scale_down(fraction, _mm512_sub_epi32(top, shifted));
    }
    for (int half = FS_GRANULE / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] = _mm512_add_ps(t[i], t[i + half]);
    *most = m;
    return wide_term_of(t[0], top);
}

/* ------------------------------------------------------------------------------------------------------ rough ---- */

/* rough_scale of sixteen rows, or of one. */
typedef struct rough_lanes {
    __m512 per, unit;
} rough_lanes;

/* exp(y scale) 2^-unit. What is far down is 0, -inf too; +inf and what is too large are +inf, NaN is NaN. */
static inline __m512 rough_exp(const rough_lanes *s, __m512 y) {
    const __m512 t = _mm512_fmsub_ps(y, s->per, s->unit);
    const __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* t - floor(t); 0 of infinities */
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(FS_EXP2_4), f, _mm512_set1_ps(FS_EXP2_3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_0));
    return _mm512_scalef_ps(p, t);
}

#endif
