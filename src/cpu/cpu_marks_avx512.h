/* cpu_marks_avx512.h - the marks of noise blocks by the vector: of one row's next eight, or of one block for eight rows. */
#ifndef FS_CPU_MARKS_AVX512_H
#define FS_CPU_MARKS_AVX512_H

#include <immintrin.h>

#include "cpu_isa.h"

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

#endif
