/* AMX for f16 and f32 weights: each is split, on its way from memory, into bf16 parts that tdpbf16ps can multiply.
 *
 *   w   16 rows of W,   split    +-- w0 --+                   f16  2 parts (11 = 8 + 3 bits)
 *       streamed once  ------->  +-- w1 --+-- c0 .. c3        f32  3 parts (24 = 8 + 8 + 8 bits)
 *                      into L1   +-- w2 --+   |     |         sums: one for each 16 rows, of all parts
 *   h   parts of up to 4 panels in L2 ------- h0 .. h3
 *
 * Parts are cut off by truncation, w = w0 + w1 + w2 exactly (cpu_split.h does the same to H). A product of part i of W and part j of H
 * is at most 2^-7i-7j and, where i or j is 2, 2^-1 of that, of the whole. Those with i + j > 2 are left out: 2^-22 twice and 2^-30 at
 * most. So f16 x f16 is 4 products and exact; f32 x f32 is 6, with an error below 2^-20.9 of the sum of |w h|, a few times what rounding
 * each product to float would cost, beside that of the additions.
 *
 * Cost, cycles for a tile of 16 tokens x 32 elements, which memory delivers in 150 (f16) or 300 (f32): splitting takes 8 or 14
 * instructions of two a cycle for each of 16 lines, 64 or 112; a matrix instruction takes 16, and there are 4 or 6 for each 16 rows. So
 * memory is the roof up to 32 rows, the unit above. The lines of the next step but one are split between the products of this one, so that
 * both go on at once; a tile that was stored during the last step would come late. Up to 64 rows W streams by once
 * (docs/findings/split-weights-on-amx.md).
 *
 * f16 has subnormals, which are common in weights, and the unit would flush what becomes of the shorter exponent. So weights are
 * multiplied by 2^14, and the result's bits, shifted by three, are read as bf16: 2^-98 w; H is scaled by 2^98. Where an f16 is not
 * below 2 it goes the long way, by float, to the same parts. A hidden state of 2^30 and more becomes infinite by that scale, and what
 * is not finite in the end is computed again in float (repair_nan), slowly and rightly. Parts of f32 below 2^-126 count as zero, as
 * cpu_split.h says.
 *
 * The order of additions for every (row, token), whatever the shape: for each 32 elements the products with part 0 of H, then 1, then 2,
 * each with part 0 of W, then 1, then 2; each such 32 as cpu_tile_amx.h states it, elements d and d + 16 of f32 being a pair. In
 * blocks (block_of), each from zero and added to those before. */
#include "cpu_amx.h"

#define FS_F16_SCALE 0x1p98f /* of H where W is f16, and 1 / it of W */
#define FS_AHEAD 2           /* steps that W is split before its products */

/* ----------------------------------------------------------------------------------------------------- split ---- */

/* The upper halves of 16 floats of each vector, in pairs. */
FS_INLINE __m512i pair_tops(__m512 a, __m512 b) {
    const __m512i top = _mm512_set1_epi32((int)0xFFFF0000);
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b), top, 0xF8);
}

/* What is left of x without its upper half, exactly; NaN if x is not finite. */
FS_INLINE __m512 cut_top(__m512 x) {
    const __m512i top = _mm512_set1_epi32((int)0xFFFF0000);
    return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), top)));
}

/* 32 floats as a line of each part's tile. */
FS_INLINE void split_f32(__m512 a, __m512 b, char *to) {
    for (int i = 0; i < 3; i++, a = cut_top(a), b = cut_top(b))
        _mm512_store_si512(to + i * FS_TILE_BYTES, pair_tops(a, b));
}

/* f16 bits, exponent below 31, as those of a bf16 of 2^-112 the value: cut off to 8 bits. */
FS_INLINE __m512i narrow(__m512h x) {
    return _mm512_and_si512(_mm512_srai_epi16(_mm512_castph_si512(x), 3), _mm512_set1_epi16((short)0x8FFF));
}

/* 32 halves below 2 as a line of each part's tile. */
FS_INLINE void split_f16(__m512i x, char *to) {
    const __m512h scale = _mm512_castsi512_ph(_mm512_set1_epi16(0x7400)); /* 2^14 */
    const __m512h y = _mm512_mul_ph(_mm512_castsi512_ph(x), scale);
    const __m512i top = _mm512_and_si512(_mm512_castph_si512(y), _mm512_set1_epi16((short)0xFFF8));
    _mm512_store_si512(to, narrow(y));
    _mm512_store_si512(to + FS_TILE_BYTES, narrow(_mm512_sub_ph(y, _mm512_castsi512_ph(top))));
}

/* The same for any 16 halves, by way of float. */
FS_INLINE void split_any_f16(__m256i x, char *to) {
    __m512 a = _mm512_mul_ps(_mm512_cvtph_ps(x), _mm512_set1_ps(1.0f / FS_F16_SCALE));
    for (int i = 0; i < 2; i++, a = cut_top(a), to += FS_TILE_BYTES)
        _mm256_store_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)));
}

/* A step of n tokens on its way into tiles of parts, [parts, 16 tokens, 64 bytes]. */
typedef struct splitting {
    __m512i any;     /* bits that some element has */
    const char *w;   /* the next line, `stride` bytes before the one after it */
    const char *ask; /* the like of a later tile, or w */
    int64_t stride;
    char *to;
    int32_t n; /* lines */
} splitting;

FS_INLINE void split_line(int32_t dtype, int whole, splitting *s) {
    if (dtype == FS_F32) split_f32(_mm512_loadu_ps(s->w), _mm512_loadu_ps(s->w + 64), s->to);
    else {
        const __m512i x = _mm512_loadu_si512(s->w);
        s->any = _mm512_or_si512(s->any, x);
        split_f16(x, s->to);
    }
    if (whole) {
        _mm_prefetch(s->ask, _MM_HINT_T1);
        if (dtype == FS_F32) _mm_prefetch(s->ask + 64, _MM_HINT_T1);
        s->ask += s->stride;
    }
    s->w += s->stride;
    s->to += 64;
}

/* The lines due at this of `calls` calls. whole: those of a later tile are asked for. */
FS_INLINE void split_some(int32_t dtype, int whole, splitting *s, int call, int calls) {
    if (s->n == FS_TILE) {
        const int lines = FS_TILE * (call + 1) / calls - FS_TILE * call / calls;
#pragma GCC unroll 16
        for (int i = 0; i < lines; i++) split_line(dtype, whole, s);
    } else if (call == 0)
        for (int i = 0; i < s->n; i++) split_line(dtype, whole, s);
}

/* All lines once more if an f16 has the highest bit of its exponent set: 2 or more, inf or NaN. */
FS_INLINE void split_again(int32_t dtype, const splitting *s) {
    if (dtype == FS_F32 || !_mm512_test_epi16_mask(s->any, _mm512_set1_epi16(0x4000))) return;
    for (int32_t t = 1; t <= s->n; t++)
        for (int half = 0; half < 64; half += 32)
            split_any_f16(_mm256_loadu_si256((const __m256i_u *)(const void *)(s->w - t * s->stride + half)),
                          s->to - t * 64 + half);
}

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* Parts of W that part j of H meets. */
FS_INLINE int met_by(int32_t dtype, int j) {
    const int own = split_parts(dtype), most = FS_PARTS_MOST - j;
    return own < most ? own : most;
}

/* Products of a panel with the parts of H before j. */
FS_INLINE int products_before(int32_t dtype, int j) {
    int n = 0;
    for (int i = 0; i < j; i++) n += met_by(dtype, i);
    return n;
}

/* Tiles: 0 .. 3 the sums, 4 .. 6 parts of W, 7 one of H. Behind each product its share of the lines is split: the finer both are mixed, the
 * more of them overlaps. */
#define FS_PRODUCT(j, p, i, of_w)                                                                                      \
    if (met_by(dtype, j) > i) {                                                                                        \
        _tile_dpbf16ps(p, of_w, 7);                                                                                    \
        split_some(dtype, N >= FS_WHOLE_PANELS, next, N * products_before(dtype, j) + p * met_by(dtype, j) + i,        \
                   N * products_before(dtype, parts));                                                                 \
    }
#define FS_DOT(j, p)                                                                                                   \
    if (j < parts && p < N) {                                                                                          \
        FS_LOAD_H(7, h + j * m->packing.tile + p * m->packing.panel);                                                  \
        FS_PRODUCT(j, p, 0, 4)                                                                                         \
        FS_PRODUCT(j, p, 1, 5)                                                                                         \
        FS_PRODUCT(j, p, 2, 6)                                                                                         \
    }
#define FS_PART(j)                                                                                                     \
    FS_DOT(j, 0)                                                                                                       \
    FS_DOT(j, 1)                                                                                                       \
    FS_DOT(j, 2)                                                                                                       \
    FS_DOT(j, 3)

/* A step, whose parts of W are at w and of H at h, and the lines of a later one. */
FS_INLINE void dot_step(int32_t dtype, int parts, int N, const meeting *m, const char *h, const char *w,
                        splitting *next) {
    _tile_loadd(4, w, 64);
    _tile_loadd(5, w + FS_TILE_BYTES, 64);
    if (dtype == FS_F32) _tile_loadd(6, w + 2 * FS_TILE_BYTES, 64);
    FS_PART(0)
    FS_PART(1)
    FS_PART(2)
}

FS_INLINE splitting split_from(int32_t dtype, const meeting *m, int64_t k, const char *tail, char *to) {
    const int64_t line = FS_STEP * (dtype == FS_F32 ? 4 : 2);
    splitting s = {_mm512_setzero_si512(), m->w + k * line, m->whole + k * line, m->stride, to, m->n};
    if (k == m->dim / FS_STEP) s.w = s.ask = tail, s.stride = line;
    return s;
}

FS_INLINE void dot_tile(int32_t dtype, int parts, int N, const meeting *m) {
    const int64_t steps = (m->dim + FS_STEP - 1) / FS_STEP;
    _Alignas(64) char tiles[2 * FS_AHEAD][FS_PARTS_MOST * FS_TILE_BYTES], tail[FS_TILE * FS_STEP * 4];
    if (m->dim % FS_STEP) copy_tail(m->w, m->stride, m->n, m->dim, dtype == FS_F32 ? 4 : 2, tail);
    splitting next;
    for (int64_t k = 0; k < FS_AHEAD; k++) {
        next = split_from(dtype, m, k, tail, tiles[k]);
        if (k > 0 && k >= steps) next.n = 0; /* there is always one step */
        split_some(dtype, N >= FS_WHOLE_PANELS, &next, 0, 1);
        split_again(dtype, &next);
    }
    asking ask = ask_for(m->w, m->then, m->stride, steps);
    const char *h = m->h;
    for (int64_t k = 0; k < steps;) {
        const int64_t from = k, to = steps - k < m->block ? steps : k + m->block;
        zero_sums(N);
        for (; k < to; k++, h += parts * m->packing.tile) {
            ask_step(&ask, k);
            FS_WRITTEN(tiles);
            next = split_from(dtype, m, k + FS_AHEAD, tail, tiles[(k + FS_AHEAD) & (2 * FS_AHEAD - 1)]);
            if (k + FS_AHEAD >= steps) next.n = 0;
            dot_step(dtype, parts, N, m, h, tiles[k & (2 * FS_AHEAD - 1)], &next);
            FS_WRITTEN(tiles);
            split_again(dtype, &next);
        }
        store_sums(N, m, from == 0);
    }
}

/* One function for each shape: what gcc 12 makes of several in one frame is slower (docs/findings/micro-kernels-and-gcc.md). */
#define FS_DEFINE_DOT(type, of_w, parts, N)                                                                            \
    static __attribute__((noinline)) void dot_##type##_##parts##_##N(const meeting *m) {                               \
        dot_tile(of_w, parts, N, m);                                                                                   \
    }
#define FS_DEFINE_DOTS(type, of_w, parts)                                                                              \
    FS_DEFINE_DOT(type, of_w, parts, 1)                                                                                \
    FS_DEFINE_DOT(type, of_w, parts, 2)                                                                                \
    FS_DEFINE_DOT(type, of_w, parts, 3)                                                                                \
    FS_DEFINE_DOT(type, of_w, parts, 4)
#define FS_CHOOSE_DOT(type, parts)                                                                                     \
    (m->panels == 1   ? dot_##type##_##parts##_1                                                                       \
     : m->panels == 2 ? dot_##type##_##parts##_2                                                                       \
     : m->panels == 3 ? dot_##type##_##parts##_3                                                                       \
                      : dot_##type##_##parts##_4)(m)
#define FS_DEFINE_KERNEL(type, of_w, scale, apart)                                                                     \
    FS_DEFINE_DOTS(type, of_w, 1)                                                                                      \
    FS_DEFINE_DOTS(type, of_w, 2)                                                                                      \
    FS_DEFINE_DOTS(type, of_w, 3)                                                                                      \
    static void dot_##type(const meeting *m) {                                                                         \
        if (m->packing.parts == 1) FS_CHOOSE_DOT(type, 1);                                                             \
        else if (m->packing.parts == 2) FS_CHOOSE_DOT(type, 2);                                                        \
        else FS_CHOOSE_DOT(type, 3);                                                                                   \
    }                                                                                                                  \
    static const scheme scheme_##type = {of_w, 1, dot_##type};                                                         \
    static size_t packed_bytes_##type(const fs_hidden *hidden) {                                                       \
        return packing_bytes(&scheme_##type, hidden);                                                                  \
    }                                                                                                                  \
    static void pack_##type(const fs_hidden *hidden, int64_t from, int64_t to) {                                       \
        pack_parts(&scheme_##type, hidden, from, to, scale, apart);                                                    \
    }                                                                                                                  \
    static void tile_##type(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out,        \
                            int64_t out_ld) {                                                                          \
        tile_all(&scheme_##type, hidden, (const char *)w, stride, tokens, out, out_ld);                                \
    }                                                                                                                  \
    const fs_kernel fs_kernel_##type##__amx = {packed_bytes_##type, pack_##type, tile_##type}

FS_DEFINE_KERNEL(f32, FS_F32, 1.0f, 16); /* two vectors of 16 become pairs by a shift and a merge */
FS_DEFINE_KERNEL(f16, FS_F16, FS_F16_SCALE, 1);
