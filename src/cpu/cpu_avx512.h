/* cpu_avx512.h - what scans and sieves share: marks of noise blocks by the vector, of one row's next eight or of one block for eight rows,
 * and terms of rough masses. */
#ifndef FS_CPU_AVX512_H
#define FS_CPU_AVX512_H

#include <immintrin.h>

#include "cpu_isa.h"
#include "cpu_rough.h"

/* One product of a Philox round in 64-bit lanes: upper half xor a word xor the round's key; the lower half needs no instruction, since
 * whatever lies above a lane's 32 bits is ignored by the next product. */
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

/* rough_scale of sixteen rows, or of one. */
typedef struct rough_lanes {
    __m512 per, least, magic;
} rough_lanes;

/* exp(y scale) 2^-unit = p * power */
typedef struct rough_term {
    __m512 p, power;
} rough_term;

static inline rough_term rough_exp(const rough_lanes *s, __m512 y) {
    const __m512 x = _mm512_max_ps(y, s->least), shifted = _mm512_fmadd_ps(x, s->per, s->magic);
    const __m512 f = _mm512_fmsub_ps(x, s->per, _mm512_sub_ps(shifted, s->magic));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(FS_EXP2_4), f, _mm512_set1_ps(FS_EXP2_3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_0));
    const rough_term term = {p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23))};
    return term;
}

#endif
