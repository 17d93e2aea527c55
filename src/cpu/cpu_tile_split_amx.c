/* AMX for f16 and f32 weights: each is split, on its way from memory, into bf16 parts that tdpbf16ps can multiply.
 *
 *   w   16 rows of W,   split    +-- w0 --+                   f16  2 parts (11 = 8 + 3 bits)
 *       streamed once  ------->  +-- w1 --+-- c0 .. c3        f32  3 parts (24 = 8 + 8 + 8 bits)
 *                      into L1   +-- w2 --+   |     |         sums: one for each part of H and 16 rows, added in the end
 *   h   parts of H in L2 -------------------- h0 .. h3
 *
 * Parts are cut off by truncation, w = w0 + w1 + w2 exactly (cpu_split.h does the same to H). A product of part i of W and part j of H
 * is at most 2^-7i-7j and, where i or j is 2, 2^-1 of that, of the whole. Those with i + j > 2 are left out: 2^-22 twice and 2^-30 at
 * most. So f16 x f16 is 4 products and exact; f32 x f32 is 6, with an error below 2^-20.9 of the sum of |w h|, a few times what rounding
 * each product to float would cost, beside that of the additions.
 *
 * Cost, cycles for a tile of 16 tokens x 32 elements, which memory delivers in 150 (f16) or 300 (f32): splitting takes 8 or 14
 * instructions of two a cycle for each of 16 lines, 64 or 112; a matrix instruction takes 16, and there are 4 or 6 for each 16 rows. So
 * memory is the roof up to 32 rows, the unit above. A few rows lie side by side in one tile with all their parts: 2 or 3
 * instructions instead of 4 or 6. The lines of a later step are split between the products of this one, so that both go on at once. For
 * f16 that is the next step but one: a tile that was stored during the last step comes late (64 rows, one core of Emerald Rapids,
 * 2026-11-15: 190 ns a step, 160 so); for f32 and mixed parts the next, as nothing is gained there. Columns of H are loaded by
 * tileloaddt1, which leaves L1 to the parts of W. W is split again for each four columns: its parts, kept for all, cost more than that
 * (docs/findings/split-weights-on-amx.md).
 *
 * f16 has subnormals, which are common in weights, and the unit would flush what becomes of the shorter exponent. So weights are
 * multiplied by 2^14, and the result's bits, shifted by three, are read as bf16: 2^-98 w; H is scaled by 2^98. Where an f16 is not
 * below 2 it goes the long way, by float, to the same parts. A hidden state of 2^30 and more becomes infinite by that scale, and what
 * is not finite in the end is computed again in float (repair_nan), slowly and rightly. Parts of f32 below 2^-126 count as zero, as
 * cpu_split.h says.
 *
 * The order of additions for every (row, token), whatever the shape: sum j, for part j of H, takes for each 32 elements the products
 * with part 0 of W, then 1, then 2; each such 32 as cpu_tile_amx.c states it, for f32 in the order of place_of. Then the sums are
 * added, 0 + 1, + 2. */
#include "cpu_amx.h"

#define FS_TOKENS 64         /* at most, whose sums wait to be transposed: 4 tiles */
#define FS_F16_SCALE 0x1p98f /* of H where W is f16, and 1 / it of W */
#define FS_NOT_FINITE 0x99   /* of vfpclassps: quiet and signalling NaN, + and - inf */
#define FS_AHEAD 2           /* steps that W is split before its products, where parts are not mixed */
#define FS_COLUMNS (FS_PANELS * FS_PARTS_MOST) /* tiles of sums of 64 rows */

/* ------------------------------------------------------------------------------------------------------ pack ---- */

/* How H is packed: for each panel of 16 rows and step of 32 elements one tile for each part. If all parts of all rows fit side by side
 * into a tile, they are there (`mixed`), and there is a tile for each part of W, without those it does not meet; one if it meets all. */
typedef struct packing {
    int parts, mixed;
    int32_t panels, tiles; /* tiles of a step */
    size_t panel;          /* bytes */
} packing;

FS_INLINE packing packing_of(int32_t w_dtype, const fs_hidden *hidden) {
    const int parts = split_parts(hidden->dtype), of_w = split_parts(w_dtype);
    const int mixed = parts > 1 && hidden->rows * parts <= FS_TILE;
    const int32_t tiles = !mixed ? parts : of_w + parts - 2 < FS_PARTS_MOST ? 1 : of_w;
    packing p = {parts, mixed, panels_of(hidden), tiles, (size_t)steps_of(hidden) * (size_t)tiles * FS_TILE_BYTES};
    return p;
}

/* Where element d of a step lies, in column 0: neighbours are a pair in f16; in f32 d and d + 16 are, which two vectors of 16
 * become by a shift and a merge. */
FS_INLINE int64_t place_of(int32_t w_dtype, int64_t d) {
    return w_dtype == FS_F32 ? d % 16 * 32 + d / 16 : d / 2 * 32 + d % 2;
}

/* [panels, steps, tiles, 16 pairs, 16 columns, 2] bf16; zeros behind dim and where no column is. */
FS_INLINE void pack_for(int32_t w_dtype, const fs_hidden *hidden, int64_t from, int64_t to) {
    const packing p = packing_of(w_dtype, hidden);
    const int64_t end = steps_of(hidden) * FS_STEP, last = to < end ? to : end, size = FS_TILE_BYTES / 2;
    for (int32_t i = 0; i < p.panels && from < last; i++) {
        char *at = hidden->packed + (size_t)i * p.panel + from / FS_STEP * p.tiles * FS_TILE_BYTES;
        memset(at, 0, (size_t)((last - from) / FS_STEP * p.tiles) * FS_TILE_BYTES);
    }
    for (int32_t r = 0; r < hidden->rows; r++)
        for (int64_t d = from; d < last && d < hidden->dim; d++) {
            uint16_t part[FS_PARTS_MOST];
            const float x = split_element(hidden->row[r], hidden->dtype, d);
            split_float(w_dtype == FS_F16 ? x * FS_F16_SCALE : x, p.parts, part);
            uint16_t *at = (uint16_t *)(void *)(hidden->packed + (size_t)(r / FS_TILE) * p.panel);
            at += d / FS_STEP * p.tiles * size + place_of(w_dtype, d % FS_STEP) + r % FS_TILE * 2;
            for (int j = 0; j < p.parts; j++) {
                if (!p.mixed) at[j * size] = part[j];
                for (int i = 0; p.mixed && i < p.tiles; i++)
                    if (p.tiles == 1 || i + j < FS_PARTS_MOST) at[i * size + j * hidden->rows * 2] = part[j];
            }
        }
}

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

/* 32 floats as a line of each of the first `need` parts' tiles. */
FS_INLINE void split_f32(__m512 a, __m512 b, int need, char *to) {
    _mm512_store_si512(to, pair_tops(a, b));
    if (need < 2) return;
    a = cut_top(a), b = cut_top(b);
    _mm512_store_si512(to + FS_TILE_BYTES, pair_tops(a, b));
    if (need < 3) return;
    a = cut_top(a), b = cut_top(b);
    _mm512_store_si512(to + 2 * FS_TILE_BYTES, pair_tops(a, b));
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
    const char *w; /* the next line, `stride` bytes before the one after it */
    int64_t stride;
    int32_t n; /* lines */
    char *to;
    __m512i any; /* bits that some element has */
} splitting;

FS_INLINE void split_line(int32_t dtype, int need, splitting *s) {
    if (dtype == FS_F32) split_f32(_mm512_loadu_ps(s->w), _mm512_loadu_ps(s->w + 64), need, s->to);
    else {
        const __m512i x = _mm512_loadu_si512(s->w);
        s->any = _mm512_or_si512(s->any, x);
        split_f16(x, s->to);
    }
    s->w += s->stride;
    s->to += 64;
}

/* The lines due at this of `calls` calls. */
FS_INLINE void split_some(int32_t dtype, int need, splitting *s, int call, int calls) {
    if (s->n == FS_TILE) {
        const int lines = FS_TILE * (call + 1) / calls - FS_TILE * call / calls;
#pragma GCC unroll 16
        for (int i = 0; i < lines; i++) split_line(dtype, need, s);
    } else if (call == 0)
        for (int i = 0; i < s->n; i++) split_line(dtype, need, s);
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

/* A tile of n tokens meets up to four columns: panels of one part of H each, or the one in which parts are mixed. */
typedef struct meeting {
    const char *w; /* the first token; the others `stride` bytes apart */
    int64_t stride, dim;
    int32_t n;        /* tokens */
    const char *then; /* the first token of the tile after this one, where that starts other pages, or w */
    uint32_t met;     /* digit c: parts of W that column c meets, none more than the one before; 0: they are mixed */
    const char *h[FS_PANELS]; /* tiles of step 0 */
    int64_t h_step; /* bytes from step to step; if parts are mixed, bytes to the next part of W's tile in h_part */
    int64_t h_part;
    float *sum[FS_PANELS]; /* [tokens, 16 columns], tokens `sum_stride` bytes apart */
    int64_t sum_stride;
} meeting;

FS_INLINE int digit(uint32_t met, int column) {
    return (int)(met >> 4 * column & 15);
}

/* Products of the columns before this one. */
FS_INLINE int products_before(uint32_t met, int column) {
    int n = 0;
    for (int c = 0; c < column; c++) n += digit(met, c);
    return n;
}

/* Tiles: 0 .. 3 the sums, 4 .. 6 parts of W, 7 and for f16 also 6 a column of H. Behind each product its share of the lines is split: the
 * finer both are mixed, the more of them overlaps. */
#define FS_PRODUCT(column, part, of_w, of_h)                                                                           \
    if (digit(met, column) > part) {                                                                                   \
        _tile_dpbf16ps(column, of_w, of_h);                                                                            \
        split_some(dtype, digit(met, 0), next, products_before(met, column) + part, products_before(met, FS_PANELS));  \
    }
#define FS_DOT(column, tile)                                                                                           \
    do {                                                                                                               \
        if (digit(met, column)) _tile_stream_loadd(tile, m->h[column] + k * m->h_step, 64);                            \
        FS_PRODUCT(column, 0, 4, tile)                                                                                 \
        FS_PRODUCT(column, 1, 5, tile)                                                                                 \
        FS_PRODUCT(column, 2, 6, 7)                                                                                    \
    } while (0)

/* Step k, whose parts of W are at w, for the columns of `met`, and the lines of a later one. */
FS_INLINE void dot_step(int32_t dtype, uint32_t met, const meeting *m, int64_t k, const char *w, splitting *next) {
    _tile_loadd(4, w, 64);
    if (digit(met, 0) > 1) _tile_loadd(5, w + FS_TILE_BYTES, 64);
    if (digit(met, 0) > 2) _tile_loadd(6, w + 2 * FS_TILE_BYTES, 64);
    FS_DOT(0, 7);
    if (dtype == FS_F16) FS_DOT(1, 6);
    else FS_DOT(1, 7);
    FS_DOT(2, 7);
    if (dtype == FS_F16) FS_DOT(3, 6);
    else FS_DOT(3, 7);
}

/* The same for the column in which parts are mixed. */
FS_INLINE void dot_mixed(int32_t dtype, const meeting *m, int64_t k, const char *w, splitting *next) {
    const int parts = split_parts(dtype);
    const char *h = m->h[0] + k * m->h_step;
    _tile_loadd(7, h, 64);
    _tile_loadd(4, w, 64);
    _tile_dpbf16ps(0, 4, 7);
    split_some(dtype, parts, next, 0, parts);
    if (m->h_part) _tile_loadd(7, h + m->h_part, 64);
    _tile_loadd(5, w + FS_TILE_BYTES, 64);
    _tile_dpbf16ps(0, 5, 7);
    split_some(dtype, parts, next, 1, parts);
    if (dtype == FS_F16) return;
    if (m->h_part) _tile_loadd(7, h + 2 * m->h_part, 64);
    _tile_loadd(6, w + 2 * FS_TILE_BYTES, 64);
    _tile_dpbf16ps(0, 6, 7);
    split_some(dtype, parts, next, 2, parts);
}

FS_INLINE splitting split_from(int32_t dtype, const meeting *m, int64_t k, const char *tail, char *to) {
    const int64_t line = FS_STEP * (dtype == FS_F32 ? 4 : 2);
    splitting s = {m->w + k * line, m->stride, m->n, to, _mm512_setzero_si512()};
    if (k == m->dim / FS_STEP) s.w = tail, s.stride = line;
    return s;
}

FS_INLINE void dot_tile(int32_t dtype, uint32_t met, const meeting *m) {
    const int64_t steps = (m->dim + FS_STEP - 1) / FS_STEP;
    const int ahead = met ? FS_AHEAD : 1, need = met ? digit(met, 0) : split_parts(dtype);
    _Alignas(64) char tiles[2 * FS_AHEAD][FS_PARTS_MOST * FS_TILE_BYTES], tail[FS_TILE * FS_STEP * 4];
    if (m->dim % FS_STEP) copy_tail(m->w, m->stride, m->n, m->dim, dtype == FS_F32 ? 4 : 2, tail);
    _tile_zero(0);
    if (met > 0xF) _tile_zero(1);
    if (met > 0xFF) _tile_zero(2);
    if (met > 0xFFF) _tile_zero(3);
    splitting next;
    for (int64_t k = 0; k < ahead; k++) {
        next = split_from(dtype, m, k, tail, tiles[k]);
        if (k > 0 && k >= steps) next.n = 0; /* there is always one step */
        split_some(dtype, need, &next, 0, 1);
        split_again(dtype, &next);
    }
    asking ask = ask_for(m->w, m->then, m->stride, steps);
    for (int64_t k = 0; k < steps; k++) {
        ask_step(&ask, k);
        FS_WRITTEN(tiles);
        next = split_from(dtype, m, k + ahead, tail, tiles[(k + ahead) & (2 * ahead - 1)]);
        if (k + ahead >= steps) next.n = 0;
        if (met) dot_step(dtype, met, m, k, tiles[k & (2 * ahead - 1)], &next);
        else dot_mixed(dtype, m, k, tiles[k & (2 * ahead - 1)], &next);
        FS_WRITTEN(tiles);
        split_again(dtype, &next);
    }
    _tile_stored(0, m->sum[0], m->sum_stride);
    if (met > 0xF) _tile_stored(1, m->sum[1], m->sum_stride);
    if (met > 0xFF) _tile_stored(2, m->sum[2], m->sum_stride);
    if (met > 0xFFF) _tile_stored(3, m->sum[3], m->sum_stride);
}

/* One function for each shape: what gcc 12 makes of several in one frame is slower (docs/findings/micro-kernels-and-gcc.md). These are
 * all that dot_columns makes of 1 to 4 panels and 1 to 3 parts of H. */
#define FS_SHAPES_F32(X)                                                                                               \
    X(f32, 0x0)                                                                                                        \
    X(f32, 0x3)                                                                                                        \
    X(f32, 0x33)                                                                                                       \
    X(f32, 0x333)                                                                                                      \
    X(f32, 0x3333)                                                                                                     \
    X(f32, 0x222)                                                                                                      \
    X(f32, 0x2222)                                                                                                     \
    X(f32, 0x111)                                                                                                      \
    X(f32, 0x1111)                                                                                                     \
    X(f32, 0x23)                                                                                                       \
    X(f32, 0x2233)                                                                                                     \
    X(f32, 0x123)                                                                                                      \
    X(f32, 0x233)                                                                                                      \
    X(f32, 0x112)
#define FS_SHAPES_F16(X)                                                                                               \
    X(f16, 0x0)                                                                                                        \
    X(f16, 0x2)                                                                                                        \
    X(f16, 0x22)                                                                                                       \
    X(f16, 0x222)                                                                                                      \
    X(f16, 0x2222)                                                                                                     \
    X(f16, 0x111)                                                                                                      \
    X(f16, 0x1111)                                                                                                     \
    X(f16, 0x122)                                                                                                      \
    X(f16, 0x112)

#define FS_OF_f32 FS_F32
#define FS_OF_f16 FS_F16
#define FS_DEFINE_DOT(type, shape)                                                                                     \
    static __attribute__((noinline)) void dot_##type##_##shape(const meeting *m) {                                     \
        dot_tile(FS_OF_##type, shape, m);                                                                              \
    }
#define FS_CHOOSE_DOT(type, shape)                                                                                     \
    case shape:                                                                                                        \
        dot_##type##_##shape(m);                                                                                       \
        break;
FS_SHAPES_F32(FS_DEFINE_DOT)
FS_SHAPES_F16(FS_DEFINE_DOT)

static void dot_f32(const meeting *m) {
    switch (m->met) { FS_SHAPES_F32(FS_CHOOSE_DOT) }
}

static void dot_f16(const meeting *m) {
    switch (m->met) { FS_SHAPES_F16(FS_CHOOSE_DOT) }
}

/* ----------------------------------------------------------------------------------------------------- store ---- */

typedef struct group {
    int32_t dtype;
    const fs_hidden *hidden;
    packing packing;
    const char *w;
    int64_t stride;
    const char *then; /* the next group's, or w */
    int32_t tiles, n; /* `tiles` tiles of n tokens: token t of tile i is row i + t * tiles of w */
    float *sum;       /* [FS_COLUMNS, FS_TOKENS, 16] */
} group;

/* Logits of `tokens` tokens from t on, for the rows of panel p, of which the group has `panels` from panel `first` on. */
static void store_tile(const group *g, int32_t first, int32_t panels, int32_t p, int32_t t, int32_t tokens, float *out,
                       int64_t out_ld) {
    const int32_t row = (first + p) * FS_TILE, left = g->hidden->rows - row, rows = left < FS_TILE ? left : FS_TILE;
    const __mmask16 there = (__mmask16)((1u << tokens) - 1);
    const float *sum = g->sum + (p * FS_TOKENS + t) * FS_TILE;
    const int parts = g->packing.parts, apart = g->packing.mixed ? 1 : parts; /* tiles of their own */
    __m512 x[16];
    for (int i = 0; i < 16; i++) {
        x[i] = _mm512_loadu_ps(sum + 16 * i);
        for (int j = 1; j < apart; j++)
            x[i] = _mm512_add_ps(x[i], _mm512_loadu_ps(sum + (j * panels * FS_TOKENS + i) * FS_TILE));
    }
    transpose(x);
    for (int j = apart; j < parts; j++)
        for (int32_t r = 0; r < rows; r++) x[r] = _mm512_add_ps(x[r], x[j * rows + r]);
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (row + r) * out_ld + t;
        _mm512_mask_storeu_ps(to, there, x[r]);
        for (uint32_t odd = _mm512_mask_fpclass_ps_mask(there, x[r], FS_NOT_FINITE); odd; odd &= odd - 1) {
            const int32_t i = __builtin_ctz(odd);
            to[i] = repair_nan(g->hidden, row + r, g->w + (t + i) * g->stride, g->dtype);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- the tile ---- */

/* Columns [from, from + N) of `panels` panels from `first` on: those of part 0, then of part 1, then of part 2. */
static void dot_columns(const group *g, int32_t first, int32_t panels, int32_t from, int32_t N) {
    const int own = split_parts(g->dtype), last = g->packing.mixed || from + N == panels * g->packing.parts;
    meeting m = {.stride = g->tiles * g->stride, .dim = g->hidden->dim, .n = g->n, .sum_stride = g->tiles * 64};
    m.h_step = g->packing.tiles * FS_TILE_BYTES;
    m.h_part = g->packing.mixed && g->packing.tiles > 1 ? FS_TILE_BYTES : 0;
    for (int32_t c = 0; c < N; c++) {
        const int32_t j = (from + c) / panels, p = (from + c) % panels;
        m.h[c] = g->hidden->packed + (size_t)(first + p) * g->packing.panel + j * FS_TILE_BYTES;
        if (!g->packing.mixed) m.met |= (uint32_t)(own < FS_PARTS_MOST - j ? own : FS_PARTS_MOST - j) << 4 * c;
    }
    for (int32_t i = 0; i < g->tiles; i++) {
        m.w = g->w + i * g->stride;
        m.then = i == g->tiles - 1 && last && g->then != g->w ? g->then : m.w;
        for (int32_t c = 0; c < N; c++) m.sum[c] = g->sum + ((from + c) * FS_TOKENS + i) * FS_TILE;
        (g->dtype == FS_F32 ? dot_f32 : dot_f16)(&m);
    }
}

static void tile_group(const group *g, float *out, int64_t out_ld) {
    const int32_t tokens = g->tiles * g->n;
    for (int32_t first = 0, panels; first < g->packing.panels; first += panels) {
        const int32_t left = g->packing.panels - first;
        panels = left < FS_PANELS ? left : FS_PANELS;
        const int32_t columns = g->packing.mixed ? 1 : panels * g->packing.parts;
        /* As few passes over the tile as there can be, and as even. */
        for (int32_t c = 0, N, passes = (columns + FS_PANELS - 1) / FS_PANELS; c < columns; c += N, passes--) {
            N = (columns - c + passes - 1) / passes;
            dot_columns(g, first, panels, c, N);
        }
        for (int32_t p = 0; p < panels; p++)
            for (int32_t t = 0; t < tokens; t += FS_TILE)
                store_tile(g, first, panels, p, t, tokens < FS_TILE ? tokens : FS_TILE, out, out_ld);
    }
}

static void tile_all(int32_t dtype, const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens, float *out,
                     int64_t out_ld) {
    _Alignas(64) float sum[FS_COLUMNS * FS_TOKENS * FS_TILE];
    const int32_t tiles = spacing_of(stride, FS_TOKENS / FS_TILE);
    group g = {dtype, hidden, packing_of(dtype, hidden), w, stride, w, tiles, FS_TILE, sum};
    const int of_w = split_parts(dtype);
    if (tokens >= FS_TILE) configure(FS_TILE, of_w);
    for (int32_t t = 0; t < tokens;) {
        if (tokens - t < g.tiles * g.n) {
            if (g.tiles > 1) g.tiles = 1;
            else configure(g.n = tokens - t, of_w);
            continue;
        }
        const int32_t many = g.tiles * g.n;
        g.w = w + t * stride;
        g.then = tokens - t - many < FS_TILE ? g.w : g.w + many * stride;
        tile_group(&g, out + t, out_ld);
        t += many;
    }
    _tile_release();
}

#define FS_DEFINE_KERNEL(type, of_w)                                                                                   \
    static size_t packed_bytes_##type(const fs_hidden *hidden) {                                                       \
        const packing p = packing_of(of_w, hidden);                                                                    \
        return (size_t)p.panels * p.panel;                                                                             \
    }                                                                                                                  \
    static void pack_##type(const fs_hidden *hidden, int64_t from, int64_t to) {                                       \
        pack_for(of_w, hidden, from, to);                                                                              \
    }                                                                                                                  \
    static void tile_##type(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out,        \
                            int64_t out_ld) {                                                                          \
        tile_all(of_w, hidden, (const char *)w, stride, tokens, out, out_ld);                                          \
    }                                                                                                                  \
    const fs_kernel fs_kernel_##type##__amx = {packed_bytes_##type, pack_##type, tile_##type}

FS_DEFINE_KERNEL(f32, FS_F32);
FS_DEFINE_KERNEL(f16, FS_F16);
