/* The kernel of screens for AVX-512 with VNNI: vpdpbusd, 64 products of unsigned and signed bytes an instruction.
 *
 * A line of 64 columns is a vector. 8 bits are made unsigned by adding 128, whose part in the product is known from H
 * alone, so that sums start with that much less, each lane with its own: what is scaled is then no larger than the
 * products. Of 4 bits, bytes as they lie are 16 b + a: of two tokens one takes a mask, the other a subtraction.
 * 16 partial sums of each token are scaled as they are, and added up once, at the end of the strip. */
#include "cpu_screen.h"

#include <immintrin.h>

#define FS_INLINE static inline __attribute__((always_inline))
typedef __m512 vec;

FS_INLINE vec load_scales(const uint16_t *scale) {
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)scale);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

FS_INLINE __m512i load_line(const void *line) {
    return _mm512_loadu_si512(line);
}

/* sum + the products of unsigned and signed bytes, by fours. */
FS_INLINE __m512i products(__m512i sum, __m512i w, __m512i q) {
    return _mm512_dpbusd_epi32(sum, w, q);
}

/* The sums of 16 vectors, in their order: two become one at every level. */
FS_INLINE vec add_up(const vec *x) {
    vec a[8], b[4], c[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xEE));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
        /* b[i]: tokens 4 i .. 4 i + 3, four partial sums each in a quarter. */
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x88),
                             _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xDD));
    /* A quarter of c[0]: token t twice, token t + 4 twice; of c[1] likewise t + 8 and t + 12. */
    const vec d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xDD));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, d);
}

/* What all tokens of a strip have so far. */
typedef struct totals {
    vec part[FS_SCREEN_TOKENS]; /* partial sums of each token */
    vec spread;                 /* of all, side by side */
} totals;

FS_INLINE fs_strip_sums sums_of(const totals *t) {
    fs_strip_sums sums;
    _mm512_storeu_ps(sums.dot, add_up(t->part));
    _mm512_storeu_ps(sums.spread, t->spread);
    return sums;
}

FS_INLINE void add_part(totals *t, int token, __m512i dot, float scale) {
    t->part[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_set1_ps(scale), t->part[token]);
}

static fs_strip_sums dots8(const fs_screen *s, const unsigned char *strip, fs_image h) {
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    totals t;
#pragma GCC unroll 16
    for (int i = 0; i < FS_SCREEN_TOKENS; i++) t.part[i] = _mm512_setzero_ps();
    t.spread = _mm512_setzero_ps();
    for (int32_t e = 0; e < h.entries; e++) {
        const unsigned char *w = strip_record(s, strip, h.record[e]);
        const uint16_t *tail = record_tail(s, w);
        if (e < s->records) fetch_ahead(s, w, &h);
        const vec scale = _mm512_mul_ps(load_scales(tail), _mm512_set1_ps(h.step[e]));
        const __m512i q0 = load_line(h.q + e * FS_SCREEN_SPAN), q1 = load_line(h.q + e * FS_SCREEN_SPAN + 64);
        const __m512i less =
            _mm512_sub_epi32(_mm512_setzero_si512(), products(products(_mm512_setzero_si512(), sign, q0), sign, q1));
        float each[FS_SCREEN_TOKENS];
        _mm512_storeu_ps(each, scale);
#pragma GCC unroll 16
        for (int i = 0; i < FS_SCREEN_TOKENS; i++) {
            const __m512i a = _mm512_xor_si512(load_line(w + i * FS_SCREEN_CHUNK), sign);
            const __m512i b = _mm512_xor_si512(load_line(w + (FS_SCREEN_TOKENS + i) * FS_SCREEN_CHUNK), sign);
            add_part(&t, i, products(products(less, a, q0), b, q1), each[i]);
        }
        if (e < s->records)
            t.spread = _mm512_fmadd_ps(load_scales(tail + FS_SCREEN_TOKENS), _mm512_set1_ps(h.norm[2 * e]), t.spread);
    }
    return sums_of(&t);
}

static fs_strip_sums dots4(const fs_screen *s, const unsigned char *strip, fs_image h) {
    const __m512i low = _mm512_set1_epi8(15);
    totals t;
#pragma GCC unroll 16
    for (int i = 0; i < FS_SCREEN_TOKENS; i++) t.part[i] = _mm512_setzero_ps();
    t.spread = _mm512_setzero_ps();
    for (int32_t c = 0; c < 2 * h.entries; c++) {
        const unsigned char *record = strip_record(s, strip, h.record[c / 2]);
        const unsigned char *w = record + c % 2 * (FS_SCREEN_TOKENS / 2 * FS_SCREEN_CHUNK);
        if (c % 2 == 0 && c < 2 * s->records) fetch_ahead(s, record, &h);
        const vec bare = load_scales(record_tail(s, record) + c % 2 * FS_SCREEN_TOKENS);
        const vec scale = _mm512_mul_ps(bare, _mm512_set1_ps(h.step[c / 2]));
        const __m512i q = load_line(h.q + c * FS_SCREEN_CHUNK);
        const __m512i none = _mm512_setzero_si512();
        const __m512i less = _mm512_sub_epi32(none, products(none, _mm512_set1_epi8(8), q));
        const __m512i less_both = _mm512_add_epi32(less, _mm512_slli_epi32(less, 4));
        float each[FS_SCREEN_TOKENS];
        _mm512_storeu_ps(each, scale);
#pragma GCC unroll 8
        for (int i = 0; i < FS_SCREEN_TOKENS / 2; i++) {
            const __m512i x = load_line(w + i * FS_SCREEN_CHUNK);
            const __m512i both = products(less_both, x, q);
            const __m512i first = products(less, _mm512_and_si512(x, low), q);
            add_part(&t, i, first, each[i]);
            add_part(&t, i + 8, _mm512_sub_epi32(both, first), each[i + 8] * 0.0625f);
        }
        if (c < 2 * s->records)
            t.spread = _mm512_fmadd_ps(_mm512_mul_ps(bare, bare), _mm512_set1_ps(h.norm[c]), t.spread);
    }
    return sums_of(&t);
}

FS_DEFINE_SCREEN_KERNEL(avx512vnni);
