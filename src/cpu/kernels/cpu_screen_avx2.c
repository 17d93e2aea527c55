/* The kernel of screens for AVX2: vpmaddubsw, 32 products of unsigned and signed bytes, whose sums of two fit 16 bits:
 * |w| <= 127 times h with the sign of w, or nibbles of up to 15. */
#include "cpu_screen.h"

#include <immintrin.h>

#define FS_INLINE static inline __attribute__((always_inline))

FS_INLINE __m256 load_scales(const uint16_t *scale) {
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)scale);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

FS_INLINE __m256i load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Sums of eight tokens, side by side. */
FS_INLINE __m256i add_up(const __m256i *x) {
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
    const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(x[4], x[5]), _mm256_hadd_epi32(x[6], x[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* Adds 32 products, of unsigned and signed bytes. */
FS_INLINE __m256i add_products(__m256i sum, __m256i w, __m256i q) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, q), _mm256_set1_epi16(1)));
}

/* Of 16 tokens, eight in a vector. */
typedef struct totals {
    __m256 dot[2], spread[2];
} totals;

FS_INLINE fs_strip_sums sums_of(const totals *t) {
    fs_strip_sums sums;
    for (int i = 0; i < 2; i++) {
        _mm256_storeu_ps(sums.dot + 8 * i, t->dot[i]);
        _mm256_storeu_ps(sums.spread + 8 * i, t->spread[i]);
    }
    return sums;
}

static fs_strip_sums dots8(const fs_screen *s, const unsigned char *strip, fs_image h) {
    totals t = {{_mm256_setzero_ps(), _mm256_setzero_ps()}, {_mm256_setzero_ps(), _mm256_setzero_ps()}};
    for (int32_t e = 0; e < h.entries; e++) {
        const unsigned char *w = strip_record(s, strip, h.record[e]);
        const uint16_t *tail = record_tail(s, w);
        if (e < s->records) fetch_ahead(s, w, &h);
        for (int half = 0; half < 2; half++) {
            __m256i token[8];
            for (int j = 0; j < 8; j++) {
                const unsigned char *line = w + (half * 8 + j) * FS_SCREEN_CHUNK;
                token[j] = _mm256_setzero_si256();
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    const __m256i x = load(line + i / 2 * (FS_SCREEN_TOKENS * FS_SCREEN_CHUNK) + i % 2 * 32);
                    const __m256i q = load(h.q + e * FS_SCREEN_SPAN + i * 32);
                    token[j] = add_products(token[j], _mm256_abs_epi8(x), _mm256_sign_epi8(q, x));
                }
            }
            const __m256 scale = _mm256_mul_ps(load_scales(tail + 8 * half), _mm256_set1_ps(h.step[e]));
            t.dot[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(add_up(token)), scale, t.dot[half]);
            if (e >= s->records) continue;
            t.spread[half] = _mm256_fmadd_ps(load_scales(tail + FS_SCREEN_TOKENS + 8 * half),
                                             _mm256_set1_ps(h.norm[2 * e]), t.spread[half]);
        }
    }
    return sums_of(&t);
}

static fs_strip_sums dots4(const fs_screen *s, const unsigned char *strip, fs_image h) {
    const __m256i low = _mm256_set1_epi8(15);
    totals t = {{_mm256_setzero_ps(), _mm256_setzero_ps()}, {_mm256_setzero_ps(), _mm256_setzero_ps()}};
    for (int32_t c = 0; c < 2 * h.entries; c++) {
        const unsigned char *record = strip_record(s, strip, h.record[c / 2]);
        const unsigned char *w = record + c % 2 * (FS_SCREEN_TOKENS / 2 * FS_SCREEN_CHUNK);
        const uint16_t *tail = record_tail(s, record) + c % 2 * FS_SCREEN_TOKENS;
        if (c % 2 == 0 && c < 2 * s->records) fetch_ahead(s, record, &h);
        const __m256i q[2] = {load(h.q + c * FS_SCREEN_CHUNK), load(h.q + c * FS_SCREEN_CHUNK + 32)};
        __m256i token[2][8];
        for (int j = 0; j < 8; j++) {
            token[0][j] = token[1][j] = _mm256_setzero_si256();
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const __m256i x = load(w + j * FS_SCREEN_CHUNK + i * 32);
                token[0][j] = add_products(token[0][j], _mm256_and_si256(x, low), q[i]);
                token[1][j] = add_products(token[1][j], _mm256_and_si256(_mm256_srli_epi16(x, 4), low), q[i]);
            }
        }
        const __m256i offset = _mm256_set1_epi32(8 * h.sum[c]);
        for (int half = 0; half < 2; half++) {
            const __m256 bare = load_scales(tail + 8 * half);
            const __m256 dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(add_up(token[half]), offset));
            t.dot[half] = _mm256_fmadd_ps(dot, _mm256_mul_ps(bare, _mm256_set1_ps(h.step[c / 2])), t.dot[half]);
            if (c >= 2 * s->records) continue;
            t.spread[half] = _mm256_fmadd_ps(_mm256_mul_ps(bare, bare), _mm256_set1_ps(h.norm[c]), t.spread[half]);
        }
    }
    return sums_of(&t);
}

FS_DEFINE_SCREEN_KERNEL(avx2);
