/* AMX for weights that its instruction does not multiply: each is split, on its way from memory, into components that
 * it does.
 *
 *   w   16 rows of W,   split    +-- w0 --+             amx      f16 as 2 of bf16 (8 + 3 bits), f32 as 3 (8 + 8 + 8)
 *       streamed once  ------->  +-- w1 --+-- c0 .. c3  amxfp16  f32 as 2 of f16 (11 + 11 and a sign, or one less)
 *                      into L1   +-- w2 --+   |     |   sums: one for each 16 rows, of all components
 *   h   components of up to 4 panels in L2 ----- h0 .. h3
 *
 * Components of bf16 are cut off by truncation, w = w0 + w1 + w2 exactly (and so is H). A product of component i of W
 * and component j of H is at most 2^-7i-7j and, where i or j is 2, 2^-1 of that, of the whole. Those with i + j > 2 are
 * left out: 2^-22 twice and 2^-30 at most. So f16 x f16 is 4 products and exact; f32 x f32 is 6, with an error below
 * 2^-20.9 of the sum of |w h|, a few times what rounding each product to float would cost, beside that of the
 * additions.
 *
 * Components of f16 are rounded. w1 is at most 2/3 of the last bit of w0, 2^-10.6 of w, and off by 2^-22; h1 is 2^-11
 * of h and off by 2^-23; w1 h1 is left out, 2^-21.6. So f32 x f32 is 3 products, with an error below 2^-20.5 of the sum
 * of |w h|. f16 is no finer than 2^-24, so rows are upscaled (upscale_of_weights); what is left of that is below 2^-33
 * of the largest of the first 32 weights times the sum of |h|, and 2^-39 of the largest |h| times that of |w|.
 *
 * Cost, cycles for a tile of 16 tokens x 32 elements, which memory delivers in 150 (f16) or 300 (f32): splitting takes
 * 8 (f16) or 14 instructions of two a cycle for each of 16 lines, 64 or 112; a matrix instruction takes 16, and there
 * are 4, 6 or 3 for each 16 rows. So memory is the roof up to 32 rows or, with 3, up to 64, and the unit above. The
 * lines of the next step but one are split between the products of this one, so that both go on at once; a tile that
 * was stored during the last step would come late. Up to 64 rows W streams by once
 * (docs/notes/amx-split-weights.md).
 *
 * f16 has subnormals, which are common in weights, and tdpbf16ps would flush what becomes of the shorter exponent. So
 * f16 weights are multiplied by 2^14, and the result's bits, shifted by three, are read as bf16: 2^-98 w; H is scaled
 * by 2^98. Where an f16 is not below 2 it is split by way of float, to the same components. A hidden state of 2^30 and
 * more becomes infinite by that scale, and what is not finite in the end is computed again in float (repair_nan),
 * slowly and rightly. Components of f32 below 2^-126 count as zero, as cpu_split.h says.
 *
 * The order of additions for every (row, token), whatever the shape: for each 32 elements the products with component 0
 * of H, then 1, then 2, each with component 0 of W, then 1, then 2; each such 32 as cpu_tile_amx.c states it, elements
 * d and d + 16 of f32 being a pair if there are three components of it. In segments (segment_of), each from zero and
 * added to those before. */
#include "cpu_amx_tile.h"

#define FS_F16_SCALE 0x1p98f /* of H where W is f16, and 1 / it of W */
#define FS_AHEAD 2           /* steps that W is split before its products */

/* ----------------------------------------------------------------------------------------------------- split ---- */

/* f16 bits, exponent below 31, as those of a bf16 of 2^-112 the value: cut off to 8 bits. */
FS_INLINE __m512i narrow(__m512h x) {
    return _mm512_and_si512(_mm512_srai_epi16(_mm512_castph_si512(x), 3), _mm512_set1_epi16((short)0x8FFF));
}

/* 32 halves below 2 as a line of each component's tile. */
FS_INLINE void split_f16(__m512i x, char *to) {
    const __m512h scale = _mm512_castsi512_ph(_mm512_set1_epi16(0x7400)); /* 2^14 */
    const __m512h y = _mm512_mul_ph(_mm512_castsi512_ph(x), scale);
    const __m512i top = _mm512_and_si512(_mm512_castph_si512(y), _mm512_set1_epi16((short)0xFFF8));
    _mm512_store_si512(to, narrow(y));
    _mm512_store_si512(to + FS_TILE_BYTES, narrow(_mm512_sub_ph(y, _mm512_castsi512_ph(top))));
}

/* The same for any 32 halves, by way of float. */
FS_INLINE void split_any_f16(const char *w, char *to) {
    const __m512 scale = _mm512_set1_ps(1.0f / FS_F16_SCALE);
    __m512 x[2];
    for (int i = 0; i < 2; i++)
        x[i] = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(const void *)(w + 32 * i))), scale);
    for (int i = 0; i < 2; i++) _mm512_store_si512(to + i * FS_TILE_BYTES, take_component(FS_BF16, 1, x));
}

/* 32 floats as a line of each component's tile. */
FS_INLINE void split_f32(const char *w, char *to) {
    __m512 a = _mm512_loadu_ps(w), b = _mm512_loadu_ps(w + 64);
    for (int i = 0; i < 3; i++, a = cut_top(a), b = cut_top(b))
        _mm512_store_si512(to + i * FS_TILE_BYTES, pair_tops(a, b));
}

/* What the weights of a token are multiplied by, before they become f16 components: 2^upscale, and that a little
 * further from zero, by 1/3 to 2/3 of the last of 11 bits. So cutting those off rounds to within 2/3, which takes an
 * instruction less than rounding to nearest. */
typedef struct upscaling {
    float exact, beyond;
} upscaling;
#define FS_BEYOND (1 + 0x1.555556p-12f) /* 1 + 2^-12 4/3 */

/* 32 floats as a line of f16 components. */
FS_INLINE void split_upscaled(const char *w, const upscaling *upscale, char *to) {
    const __m512i first = _mm512_set1_epi32((int)0xFFFFE000); /* 11 bits, one of them not stored */
    for (int i = 0; i < 2; i++, w += 64, to += 32) {
        const __m512 x = _mm512_loadu_ps(w), beyond = _mm512_mul_ps(x, _mm512_set1_ps(upscale->beyond));
        const __m512 top = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(beyond), first));
        const __m512 rest = _mm512_fmsub_ps(x, _mm512_set1_ps(upscale->exact), top);
        _mm256_store_si256((__m256i *)(void *)to, round_halves(top));
        _mm256_store_si256((__m256i *)(void *)(to + FS_TILE_BYTES), round_halves(rest));
    }
}

/* A step of n tokens on its way into tiles of components, [components, 16 tokens, 64 bytes]. */
typedef struct splitting {
    __m512i any;              /* bits that some element has */
    const char *w;            /* the next line, `stride` bytes before the one after it */
    const char *fetch;        /* the like of a later tile */
    int32_t fetched;          /* lines of it that are still to be fetched */
    const upscaling *upscale; /* of the next line, for f16 components */
    int64_t stride;
    char *to;
    int32_t n; /* lines */
} splitting;

FS_INLINE void split_line(int32_t dtype, int32_t unit, int whole, splitting *s) {
    if (dtype == FS_F32 && unit == FS_F16) split_upscaled(s->w, s->upscale++, s->to);
    else if (dtype == FS_F32) split_f32(s->w, s->to);
    else {
        const __m512i x = _mm512_loadu_si512(s->w);
        s->any = _mm512_or_si512(s->any, x);
        split_f16(x, s->to);
    }
    if (whole && s->fetched-- > 0) {
        _mm_prefetch(s->fetch, _MM_HINT_T1);
        if (dtype == FS_F32) _mm_prefetch(s->fetch + 64, _MM_HINT_T1);
        s->fetch += s->stride;
    }
    s->w += s->stride;
    s->to += 64;
}

/* The lines due at this of `calls` calls. whole: those of a later tile are fetched. */
FS_INLINE void split_some(int32_t dtype, int32_t unit, int whole, splitting *s, int call, int calls) {
    if (s->n == FS_TILE) {
        const int lines = FS_TILE * (call + 1) / calls - FS_TILE * call / calls;
#pragma GCC unroll 16
        for (int i = 0; i < lines; i++) split_line(dtype, unit, whole, s);
    } else if (call == 0)
        for (int i = 0; i < s->n; i++) split_line(dtype, unit, whole, s);
}

/* All lines once more if an f16 has the highest bit of its exponent set: 2 or more, inf or NaN. */
FS_INLINE void split_again(int32_t dtype, const splitting *s) {
    if (dtype == FS_F32 || !_mm512_test_epi16_mask(s->any, _mm512_set1_epi16(0x4000))) return;
    for (int32_t t = 1; t <= s->n; t++) split_any_f16(s->w - t * s->stride, s->to - t * 64);
}

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* Components of W that component j of H is multiplied by. */
FS_INLINE int weight_components_for(int32_t dtype, int32_t unit, int j) {
    const int own = components_in(unit, dtype), most = components_in(unit, FS_F32) - j;
    return own < most ? own : most;
}

/* Products of a panel with the components of H before j. */
FS_INLINE int products_before(int32_t dtype, int32_t unit, int j) {
    int n = 0;
    for (int i = 0; i < j; i++) n += weight_components_for(dtype, unit, i);
    return n;
}

/* Of several panels H does not stay in L1 until the next tokens: by tileloaddt1 it leaves L1 to the three components of
 * f32. One panel does, and is slower so; and so are the two of f16, and weights as they lie (docs/notes/amx.md,
 * "plain tileloadd"). */
#define FS_LOAD_H(tile, at)                                                                                            \
    do {                                                                                                               \
        if (N > 1 && dtype == FS_F32) _tile_stream_loadd(tile, at, 64);                                                \
        else _tile_loadd(tile, at, m->packing.columns * 4);                                                            \
    } while (0)

/* Tiles: 0 .. 3 the sums, 4 .. 6 components of W, 7 one of H. Behind each product its share of the lines is split: the
 * finer both are mixed, the more of them overlaps. */
#define FS_PRODUCT(j, p, i, of_w)                                                                                      \
    if (weight_components_for(dtype, unit, j) > i) {                                                                   \
        FS_MULTIPLY(unit, p, of_w, 7);                                                                                 \
        split_some(dtype, unit, may_fetch_whole(dtype, N), next,                                                       \
                   products_before(dtype, unit, j) * N + weight_components_for(dtype, unit, j) * p + i,                \
                   products_before(dtype, unit, components) * N);                                                      \
    }
#define FS_DOT(j, p)                                                                                                   \
    if (j < components && p < N) {                                                                                     \
        FS_LOAD_H(7, h + j * m->packing.tile + p * m->packing.panel);                                                  \
        FS_PRODUCT(j, p, 0, 4)                                                                                         \
        FS_PRODUCT(j, p, 1, 5)                                                                                         \
        FS_PRODUCT(j, p, 2, 6)                                                                                         \
    }
#define FS_COMPONENT(j)                                                                                                \
    FS_DOT(j, 0)                                                                                                       \
    FS_DOT(j, 1)                                                                                                       \
    FS_DOT(j, 2)                                                                                                       \
    FS_DOT(j, 3)

/* A step, whose components of W are at w and of H at h, and the lines of a later one. */
FS_INLINE void dot_step(int32_t dtype, int32_t unit, int components, int N, const matmul *m, const char *h,
                        const char *w, splitting *next) {
    _tile_loadd(4, w, 64);
    _tile_loadd(5, w + FS_TILE_BYTES, 64);
    if (components_in(unit, dtype) == 3) _tile_loadd(6, w + 2 * FS_TILE_BYTES, 64);
    FS_COMPONENT(0)
    FS_COMPONENT(1)
    FS_COMPONENT(2)
}

FS_INLINE splitting split_from(int32_t dtype, const matmul *m, const upscaling *upscale, int64_t k, const char *tail,
                               char *to) {
    const int64_t line = FS_STEP * dtype_bytes(dtype);
    splitting s = {
        _mm512_setzero_si512(), m->w + k * line, m->whole + k * line, m->fetched, upscale, m->stride, to, m->n};
    if (k == m->dim / FS_STEP) s.w = tail, s.fetched = 0, s.stride = line;
    return s;
}

/* upscale [16]: of each token's weights, for f16 components. */
FS_INLINE void dot_tile(int32_t dtype, int32_t unit, int components, int N, const matmul *m, const upscaling *upscale) {
    const int64_t steps = (m->dim + FS_STEP - 1) / FS_STEP;
    _Alignas(64) char tiles[2 * FS_AHEAD][FS_COMPONENTS_MOST * FS_TILE_BYTES], tail[FS_TILE * FS_STEP * 4];
    if (m->dim % FS_STEP) copy_tail(m->w, m->stride, m->n, m->dim, dtype_bytes(dtype), tail);
    splitting next;
    for (int64_t k = 0; k < FS_AHEAD; k++) {
        next = split_from(dtype, m, upscale, k, tail, tiles[k]);
        if (k > 0 && k >= steps) next.n = 0; /* there is always one step */
        split_some(dtype, unit, may_fetch_whole(dtype, N), &next, 0, 1);
        split_again(dtype, &next);
    }
    fetching fetch = fetch_from(m->w, m->then, m->stride, steps);
    const char *h = m->h;
    for (int64_t k = 0; k < steps;) {
        const int64_t from = k, to = steps - k < m->segment ? steps : k + m->segment;
        zero_sums(N);
        for (; k < to; k++, h += components * m->packing.tile) {
            fetch_step(&fetch, k);
            FS_WRITTEN(tiles);
            next = split_from(dtype, m, upscale, k + FS_AHEAD, tail, tiles[(k + FS_AHEAD) & (2 * FS_AHEAD - 1)]);
            if (k + FS_AHEAD >= steps) next.n = 0;
            dot_step(dtype, unit, components, N, m, h, tiles[k & (2 * FS_AHEAD - 1)], &next);
            FS_WRITTEN(tiles);
            split_again(dtype, &next);
        }
        store_sums(N, m, from == 0);
    }
}

/* One function for each shape: what gcc 12 makes of several in one frame is slower
 * (docs/notes/vector-kernels.md). */
#define FS_DEFINE_DOT(name, of_w, unit, components, N)                                                                 \
    static __attribute__((noinline)) void dot_##name##_##components##_##N(const matmul *m, const upscaling *upscale) { \
        dot_tile(of_w, unit, components, N, m, upscale);                                                               \
    }
#define FS_DEFINE_DOTS(name, of_w, unit, components)                                                                   \
    FS_DEFINE_DOT(name, of_w, unit, components, 1)                                                                     \
    FS_DEFINE_DOT(name, of_w, unit, components, 2)                                                                     \
    FS_DEFINE_DOT(name, of_w, unit, components, 3)                                                                     \
    FS_DEFINE_DOT(name, of_w, unit, components, 4)                                                                     \
    static void dot_##name##_##components(const matmul *m, const upscaling *upscale) {                                 \
        (m->panels == 1   ? dot_##name##_##components##_1                                                              \
         : m->panels == 2 ? dot_##name##_##components##_2                                                              \
         : m->panels == 3 ? dot_##name##_##components##_3                                                              \
                          : dot_##name##_##components##_4)(m, upscale);                                                \
    }

FS_DEFINE_DOTS(f16_amx, FS_F16, FS_BF16, 1)
FS_DEFINE_DOTS(f16_amx, FS_F16, FS_BF16, 2)
FS_DEFINE_DOTS(f16_amx, FS_F16, FS_BF16, 3)
FS_DEFINE_DOTS(f32_amx, FS_F32, FS_BF16, 1)
FS_DEFINE_DOTS(f32_amx, FS_F32, FS_BF16, 2)
FS_DEFINE_DOTS(f32_amx, FS_F32, FS_BF16, 3)
FS_DEFINE_DOTS(f32_amxfp16, FS_F32, FS_F16, 1)
FS_DEFINE_DOTS(f32_amxfp16, FS_F32, FS_F16, 2)

#define FS_CHOOSE_DOT(name, m)                                                                                         \
    ((m)->packing.components == 1 ? dot_##name##_1 : (m)->packing.components == 2 ? dot_##name##_2 : dot_##name##_3)

static void dot_f16_amx(const matmul *m) {
    FS_CHOOSE_DOT(f16_amx, m)(m, NULL);
}

static void dot_f32_amx(const matmul *m) {
    FS_CHOOSE_DOT(f32_amx, m)(m, NULL);
}

/* The largest magnitude of the first `dim` elements of a row of weights, as bits. */
FS_INLINE uint32_t magnitude_of(const char *w, int64_t dim) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t d = 0; d < dim; d += 16) {
        const __mmask16 there = (__mmask16)(dim - d < 16 ? (1u << (dim - d)) - 1 : 0xFFFF);
        most = max_magnitude(most, _mm512_maskz_loadu_ps(there, w + 4 * d));
    }
    return _mm512_reduce_max_epu32(most);
}

/* The power of two that a row of weights is upscaled by. The largest of its first 32 elements gets the exponent 9,
 * which leaves room for elements a hundred times as large; if there are larger ones, the largest of all gets 14. whole:
 * they are looked for. */
FS_INLINE int upscale_of_weights(const matmul *m, const char *w, int whole) {
    const int upscale = upscale_to(9, magnitude_of(w, m->dim < FS_STEP ? m->dim : FS_STEP));
    if (!whole) return upscale;
    const uint32_t most = magnitude_of(w, m->dim);
    return bits_float(most) * power_of(upscale) * FS_BEYOND < 0x1p16f ? upscale : upscale_to(14, most);
}

static int all_finite(const matmul *m) {
    const __mmask16 columns = (__mmask16)((1u << m->packing.columns) - 1);
    __mmask16 odd = 0;
    for (int32_t t = 0; t < m->n; t++)
        odd |= _mm512_mask_fpclass_ps_mask(columns, _mm512_load_ps(m->sum + t * m->sum_stride / 4), FS_NOT_FINITE);
    return !odd;
}

/* A weight that is too large for f16 becomes infinite, and with it each of its token's sums, or NaN: so one panel
 * tells. Then upscales are taken from whole rows, which changes those of such tokens alone: nothing here depends on a
 * tile's other tokens, or on H. */
static void dot_f32_amxfp16(const matmul *m) {
    for (int whole = 0; whole < 2; whole++) {
        upscaling upscale[FS_TILE];
        for (int32_t t = 0; t < m->n; t++) {
            const int up = upscale_of_weights(m, m->w + t * m->stride, whole);
            upscale[t].exact = power_of(up);
            upscale[t].beyond = upscale[t].exact * FS_BEYOND;
            m->upscale[t * m->spacing] = (float)up;
        }
        (m->packing.components == 1 ? dot_f32_amxfp16_1 : dot_f32_amxfp16_2)(m, upscale);
        if (all_finite(m)) return;
    }
}

static const microkernel microkernel_f16_amx = {FS_F16, FS_BF16, 1, FS_F16_SCALE, dot_f16_amx};
static const microkernel microkernel_f32_amx = {FS_F32, FS_BF16, 16, 1.0f, dot_f32_amx};
static const microkernel microkernel_f32_amxfp16 = {FS_F32, FS_F16, 1, 1.0f, dot_f32_amxfp16};

FS_DEFINE_CALLS(f16, amx);
FS_DEFINE_CALLS(f32, amx);
FS_DEFINE_CALLS(f32, amxfp16);
