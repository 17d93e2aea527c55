/* AMX: tdpbf16ps multiplies a tile of 16 tokens x 32 elements of W, loaded straight from where it lies, by 32 elements x 16 rows of
 * H, packed once per call with pairs of elements side by side, and adds the 16 x 16 products to float sums.
 *
 *   w   16 rows of W, --- a --+-- c0  c1  c2  c3      load    a: 16 tokens x 32 elements; b: 32 elements x 16 rows
 *       streamed once         |    |   |   |   |      dot     one matrix instruction, 16 cycles, for every panel
 *                             +-- b0  b1  b2  b3      store   sums transposed: logits of a row lie side by side
 *   h   up to 4 panels of 16 rows in L2
 *
 * Cost: W comes from memory at 6 bytes a cycle and core on Emerald Rapids, 170 cycles for each tile of 1 KB, in which the unit could
 * serve 160 rows: below that memory is the roof. So all rows (up to 64) are served while W streams by once: two passes of 32 rows over
 * the same tile leave memory idle during the second. W's rows are spaced so that each page of 4 KB holds one of the 16
 * streams (docs/findings/one-stream-per-page.md).
 *
 * The order of additions for every (row, token), whatever the shape: for each 32 elements, and each part of H (cpu_split.h), the
 * products of even elements and those of odd ones are summed in ascending order, each with one rounding, then the two sums, then
 * that is added to the logit. The instruction rounds to nearest even, flushes denormals and raises no exception. */
#include <immintrin.h>

#include "cpu_isa.h"
#include "cpu_split.h"

#define FS_INLINE static inline __attribute__((always_inline))
#define FS_TILE 16 /* tokens, and rows of H, of a tile */
#define FS_STEP 32 /* elements */
#define FS_TILE_BYTES 1024
#define FS_PART_BYTES (2 * FS_TILE_BYTES) /* of a part of 32 tokens of split W */
#define FS_PANELS 4                       /* of rows at a time */
#define FS_F16_SCALE 0x1p98f              /* of H, and 1 / it of W, where W is f16 */
#define FS_NOT_FINITE 0x99                /* quiet and signalling NaN, + and - inf, of vfpclassps */
#define FS_TOKENS 128                     /* at most, whose sums wait to be transposed: 8 tiles */

/* ------------------------------------------------------------------------------------------------------ pack ---- */

static int64_t steps_of(const fs_hidden *hidden) {
    return (hidden->dim + FS_STEP - 1) / FS_STEP;
}

static int32_t panels_of(const fs_hidden *hidden) {
    return (hidden->rows + FS_TILE - 1) / FS_TILE;
}

static size_t panel_bytes(const fs_hidden *hidden) {
    return (size_t)steps_of(hidden) * (size_t)split_parts(hidden->dtype) * FS_TILE_BYTES;
}

static size_t packed_bytes(const fs_hidden *hidden) {
    return (size_t)panels_of(hidden) * panel_bytes(hidden);
}

/* Where element d of a step lies: neighbours are a pair, but in float weights d and d + 16 are, which two vectors of 16 floats become by
 * a shift and a merge. */
FS_INLINE int64_t place_of(int32_t w_dtype, int64_t d) {
    return w_dtype == FS_F32 ? d % 16 * 32 + d / 16 : d / 2 * 32 + d % 2;
}

/* [panels, steps, parts, 16 pairs, 16 rows, 2] bf16; zeros behind dim and behind the last row. */
FS_INLINE void pack_for(int32_t w_dtype, const fs_hidden *hidden, int64_t from, int64_t to) {
    const int parts = split_parts(hidden->dtype);
    const int64_t end = steps_of(hidden) * FS_STEP, last = to < end ? to : end;
    for (int32_t p = 0; p < panels_of(hidden); p++) {
        uint16_t *panel = (uint16_t *)(void *)(hidden->packed + (size_t)p * panel_bytes(hidden));
        const int64_t tile = FS_TILE_BYTES / 2, first = from / FS_STEP * parts * tile;
        if (from < last) memset(panel + first, 0, (size_t)((last - from) / FS_STEP * parts) * FS_TILE_BYTES);
        for (int32_t r = 0; r < FS_TILE && p * FS_TILE + r < hidden->rows; r++)
            for (int64_t d = from; d < last && d < hidden->dim; d++) {
                uint16_t part[FS_PARTS_MOST];
                float x = split_element(hidden->row[p * FS_TILE + r], hidden->dtype, d);
                split_float(w_dtype == FS_F16 ? x * FS_F16_SCALE : x, parts, part);
                uint16_t *at = panel + d / FS_STEP * parts * tile + place_of(w_dtype, d % FS_STEP) + r * 2;
                for (int i = 0; i < parts; i++) at[i * tile] = part[i];
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

/* 32 floats as one line of each part's tile. */
FS_INLINE void split_f32(__m512 a, __m512 b, char *to) {
    for (int i = 0; i < FS_PARTS_MOST; i++, to += FS_PART_BYTES) {
        _mm512_store_si512(to, pair_tops(a, b));
        a = cut_top(a), b = cut_top(b);
    }
}

/* 32 halves below 2 as one line of each part's tile, scaled. */
FS_INLINE void split_f16(__m512i x, char *to) {
    const __m512i exponent_below_32 = _mm512_set1_epi16((short)0x8FFF), top = _mm512_set1_epi16((short)0xFFF8);
    const __m512h y = _mm512_mul_ph(_mm512_castsi512_ph(x), _mm512_castsi512_ph(_mm512_set1_epi16(0x7400)));
    const __m512h z = _mm512_sub_ph(y, _mm512_castsi512_ph(_mm512_and_si512(_mm512_castph_si512(y), top)));
    _mm512_store_si512(to, _mm512_and_si512(_mm512_srai_epi16(_mm512_castph_si512(y), 3), exponent_below_32));
    _mm512_store_si512(to + FS_PART_BYTES,
                       _mm512_and_si512(_mm512_srai_epi16(_mm512_castph_si512(z), 3), exponent_below_32));
}

/* The same for any halves, the slow way. */
FS_INLINE void split_any_f16(__m512i x, char *to) {
    const __m512 scale = _mm512_set1_ps(1.0f / FS_F16_SCALE);
    __m512 a = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), scale);
    __m512 b = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), scale);
    for (int i = 0; i < 2; i++, to += FS_PART_BYTES) {
        _mm256_store_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)));
        _mm256_store_si256((__m256i *)(void *)(to + 32),
                           _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(b), 16)));
        a = cut_top(a), b = cut_top(b);
    }
}

/* A step of W on its way into tiles of parts, [parts, 32 lines, 64 bytes], a few lines after each of `calls` products. */
typedef struct splitting {
    const char *w; /* the next line, `stride` bytes before the one after it */
    int64_t stride;
    char *to;
    int32_t lines, calls, call; /* all lines, all calls, calls made */
    __m512i any;                /* bits that some element has */
} splitting;

FS_INLINE void split_some(int32_t dtype, splitting *s) {
    const int32_t n = (s->call + 1) * s->lines / s->calls - s->call * s->lines / s->calls;
    s->call++;
#pragma GCC unroll 8
    for (int32_t i = 0; i < n; i++, s->w += s->stride, s->to += 64) {
        if (dtype == FS_F32) split_f32(_mm512_loadu_ps(s->w), _mm512_loadu_ps(s->w + 64), s->to);
        else {
            const __m512i x = _mm512_loadu_si512(s->w);
            s->any = _mm512_or_si512(s->any, x);
            split_f16(x, s->to);
        }
    }
}

/* Once more, with care, where an f16 has the highest bit of its exponent set: 2 or more, inf or NaN. */
FS_INLINE void split_again(int32_t dtype, splitting *s) {
    if (dtype == FS_F32 || !_mm512_test_epi16_mask(s->any, _mm512_set1_epi16(0x4000))) return;
    for (int32_t t = 1; t <= s->lines; t++) split_any_f16(_mm512_loadu_si512(s->w - t * s->stride), s->to - t * 64);
}

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* What this points to is in memory now. gcc 12 does not know that ldtilecfg and tileloadd read it, and may drop or move stores. */
#define FS_WRITTEN(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

/* What ldtilecfg reads. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "ldtilecfg reads 64 bytes");

/* Tiles: 0 .. 3 the sums, 4 and 5 tokens, of which there are n, 6 and 7 rows. */
static void configure(int32_t n) {
    tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = (uint8_t)(i < 6 ? n : FS_TILE);
    }
    FS_WRITTEN(&config);
    _tile_loadconfig(&config);
}

/* A piece of work: n tokens meet panels of rows. */
typedef struct meeting {
    const fs_hidden *hidden;
    const char *h; /* the first panel; the others `panel` bytes apart */
    size_t panel;
    const char *w; /* the first token; the others `stride` bytes apart */
    int64_t stride;
    int32_t n;
    float *sum; /* for each panel [FS_TOKENS, 16 rows], the tokens `sum_stride` bytes apart */
    int64_t sum_stride;
} meeting;

FS_INLINE void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* The elements of an unfinished step, zero padded: W must not be read past its end. to [tokens, 32] */
static void copy_tail(const meeting *m, int64_t bytes, char *to) {
    const int64_t done = m->hidden->dim / FS_STEP * FS_STEP, left = m->hidden->dim - done;
    for (int32_t t = 0; left && t < m->n; t++, to += FS_STEP * bytes) {
        memset(to, 0, (size_t)(FS_STEP * bytes));
        memcpy(to, m->w + t * m->stride + done * bytes, (size_t)(left * bytes));
    }
}

/* One step of bf16 weights: 16 tokens at w times N panels. */
FS_INLINE void dot_step(int N, int parts, const char *w, int64_t stride, const char *h, size_t panel) {
    _tile_loadd(4, w, stride);
    for (int i = 0; i < parts; i++, h += FS_TILE_BYTES) {
        _tile_loadd(6, h, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (N > 1) _tile_loadd(7, h + panel, 64);
        if (N > 1) _tile_dpbf16ps(1, 4, 7);
        if (N > 2) _tile_loadd(6, h + 2 * panel, 64);
        if (N > 2) _tile_dpbf16ps(2, 4, 6);
        if (N > 3) _tile_loadd(7, h + 3 * panel, 64);
        if (N > 3) _tile_dpbf16ps(3, 4, 7);
    }
}

/* 16 tokens of bf16 as they lie. */
FS_INLINE void dot_plain(int N, const meeting *m) {
    const int parts = split_parts(m->hidden->dtype);
    const int64_t steps = m->hidden->dim / FS_STEP;
    const char *h = m->h;
    zero_sums();
    for (int64_t k = 0; k < steps; k++, h += parts * FS_TILE_BYTES)
        dot_step(N, parts, m->w + k * FS_STEP * 2, m->stride, h, m->panel);
    if (m->hidden->dim % FS_STEP) {
        _Alignas(64) char tail[FS_TILE_BYTES];
        copy_tail(m, 2, tail);
        FS_WRITTEN(tail);
        dot_step(N, parts, tail, 64, h, m->panel);
    }
    _tile_stored(0, m->sum, m->sum_stride);
    if (N > 1) _tile_stored(1, m->sum + FS_TOKENS * FS_TILE, m->sum_stride);
    if (N > 2) _tile_stored(2, m->sum + 2 * FS_TOKENS * FS_TILE, m->sum_stride);
    if (N > 3) _tile_stored(3, m->sum + 3 * FS_TOKENS * FS_TILE, m->sum_stride);
}

/* How many parts of W meet part j of H: products below 2^-21 of the whole are left out. */
FS_INLINE int parts_met(int32_t dtype, int j) {
    return split_parts(dtype) < FS_PARTS_MOST - j ? split_parts(dtype) : FS_PARTS_MOST - j;
}

/* A step of split weights at w, [parts, 2 tiles], times the parts of H, with a few lines of the next step after each product of parts. The
 * three shapes differ in what stays in a tile; to each sum they add the same products in the same order. */

/* 16 tokens times one or two panels, part j: sums 0 and 1, or 2 and 3 for `others`. The highest part of W stays in tile 4, and of f16
 * the other in 5. */
FS_INLINE void dot_pair(int32_t dtype, int both, int others, int j, const char *w, const char *h, size_t panel,
                        splitting *next) {
    _tile_loadd(6, h, 64);
    if (both) _tile_loadd(7, h + panel, 64);
    if (j == 0 && !others) _tile_loadd(4, w, 64);
    if (!others) _tile_dpbf16ps(0, 4, 6);
    if (!others && both) _tile_dpbf16ps(1, 4, 7);
    if (others) _tile_dpbf16ps(2, 4, 6);
    if (others && both) _tile_dpbf16ps(3, 4, 7);
    split_some(dtype, next);
#pragma GCC unroll 3
    for (int i = 1; i < parts_met(dtype, j); i++) {
        if (!others || (dtype == FS_F32 && j == 0)) {
            if (j == 0 || dtype == FS_F32) _tile_loadd(5, w + i * FS_PART_BYTES, 64);
        }
        if (!others) _tile_dpbf16ps(0, 5, 6);
        if (!others && both) _tile_dpbf16ps(1, 5, 7);
        if (others) _tile_dpbf16ps(2, 5, 6);
        if (others && both) _tile_dpbf16ps(3, 5, 7);
        split_some(dtype, next);
    }
}

/* 16 tokens times N panels. */
FS_INLINE void dot_wide(int32_t dtype, int N, int parts, const char *w, const char *h, size_t panel, splitting *next) {
#pragma GCC unroll 3
    for (int j = 0; j < parts; j++, h += FS_TILE_BYTES) {
        dot_pair(dtype, N > 1, 0, j, w, h, panel, next);
        if (N > 2) dot_pair(dtype, N > 3, 1, j, w, h + 2 * panel, panel, next);
    }
}

/* 32 tokens times two panels: sums 0 and 1 for the first 16, 2 and 3 for the others. */
FS_INLINE void dot_square(int32_t dtype, int parts, const char *w, const char *h, size_t panel, splitting *next) {
#pragma GCC unroll 3
    for (int j = 0; j < parts; j++, h += FS_TILE_BYTES) {
        _tile_loadd(6, h, 64);
        _tile_loadd(7, h + panel, 64);
#pragma GCC unroll 3
        for (int i = 0; i < parts_met(dtype, j); i++) {
            _tile_loadd(4, w + i * FS_PART_BYTES, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, w + i * FS_PART_BYTES + FS_TILE_BYTES, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            split_some(dtype, next);
        }
    }
}

/* 32 tokens times one panel. All parts of W but the lowest stay in tiles. */
FS_INLINE void dot_panel(int32_t dtype, int parts, const char *w, const char *h, splitting *next) {
    const char *mid = w + FS_PART_BYTES, *low = w + 2 * FS_PART_BYTES;
#pragma GCC unroll 3
    for (int j = 0; j < parts; j++, h += FS_TILE_BYTES) {
        _tile_loadd(6, h, 64);
        if (j == 0) _tile_loadd(4, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (j == 0) _tile_loadd(5, w + FS_TILE_BYTES, 64);
        _tile_dpbf16ps(2, 5, 6);
        split_some(dtype, next);
        if (j == 2) break;
        if (j == 0) _tile_loadd(1, mid, 64);
        _tile_dpbf16ps(0, 1, 6);
        if (j == 0) _tile_loadd(3, mid + FS_TILE_BYTES, 64);
        _tile_dpbf16ps(2, 3, 6);
        split_some(dtype, next);
        if (j == 1 || dtype == FS_F16) continue;
        _tile_loadd(7, low, 64);
        _tile_dpbf16ps(0, 7, 6);
        _tile_loadd(7, low + FS_TILE_BYTES, 64);
        _tile_dpbf16ps(2, 7, 6);
        split_some(dtype, next);
    }
}

/* How many products of parts make a product. */
FS_INLINE int32_t count_products(int32_t dtype, int parts) {
    return parts_met(dtype, 0) + (parts > 1 ? parts_met(dtype, 1) : 0) + (parts > 2 ? parts_met(dtype, 2) : 0);
}

FS_INLINE void dot_shape(int32_t dtype, int T, int N, int parts, const char *w, const char *h, size_t panel,
                         splitting *next) {
    if (T == 1) dot_wide(dtype, N, parts, w, h, panel, next);
    else if (N == 1) dot_panel(dtype, parts, w, h, next);
    else dot_square(dtype, parts, w, h, panel, next);
}

/* T tiles that have to be split, n tokens in all, the next step while this one is multiplied. T * N <= 4. */
FS_INLINE void dot_split(int32_t dtype, int T, int N, int parts, int32_t n, const meeting *m) {
    const int64_t whole = m->hidden->dim / FS_STEP, steps = steps_of(m->hidden), bytes = dtype == FS_F32 ? 4 : 2;
    const int32_t calls = count_products(dtype, parts) * (N > 2 ? 2 : 1);
    _Alignas(64) char tiles[2][FS_PARTS_MOST * FS_PART_BYTES], tail[2 * FS_TILE * FS_STEP * 4];
    splitting next = {m->w, m->stride, tiles[0], n, 1, 0, _mm512_setzero_si512()};
    if (whole < steps) copy_tail(m, bytes, tail);
    if (whole == 0) next.w = tail, next.stride = FS_STEP * bytes;
    zero_sums();
    split_some(dtype, &next);
    split_again(dtype, &next);
    FS_WRITTEN(tiles);
    for (int64_t k = 0; k < steps - 1; k++) {
        splitting then = {
            m->w + (k + 1) * FS_STEP * bytes, m->stride, tiles[(k + 1) & 1], n, calls, 0, _mm512_setzero_si512()};
        if (k + 1 == whole) then.w = tail, then.stride = FS_STEP * bytes;
        dot_shape(dtype, T, N, parts, tiles[k & 1], m->h + k * parts * FS_TILE_BYTES, m->panel, &then);
        split_again(dtype, &then);
        FS_WRITTEN(tiles);
    }
    next.lines = 0;
    dot_shape(dtype, T, N, parts, tiles[(steps - 1) & 1], m->h + (steps - 1) * parts * FS_TILE_BYTES, m->panel, &next);
    _tile_stored(0, m->sum, m->sum_stride);
    if (N > 1) _tile_stored(1, m->sum + FS_TOKENS * FS_TILE, m->sum_stride);
    if (N > 2) _tile_stored(2, m->sum + 2 * FS_TOKENS * FS_TILE, m->sum_stride);
    if (N > 3) _tile_stored(3, m->sum + 3 * FS_TOKENS * FS_TILE, m->sum_stride);
    float *second = m->sum + FS_TILE * m->sum_stride / 4;
    if (T == 2) _tile_stored(2, second, m->sum_stride);
    if (T == 2 && N > 1) _tile_stored(3, second + FS_TOKENS * FS_TILE, m->sum_stride);
}

/* ----------------------------------------------------------------------------------------------------- store ---- */

/* x [16] vectors of 16: element j of vector i becomes element i of vector j. Pairs of neighbours are exchanged in blocks of 1, 2, 4, 8. */
FS_INLINE void transpose(__m512 *x) {
    __m512 y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d a = _mm512_castps_pd(y[i + j]), b = _mm512_castps_pd(y[i + j + 2]);
            x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            y[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0x88);
            y[i + j + 4] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0xDD);
        }
    for (int j = 0; j < 8; j++) {
        x[j] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0x88);
        x[j + 8] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0xDD);
    }
}

/* Logits of `tokens` tokens for rows [first, first + 16) as far as there are. */
static void store_tile(const fs_hidden *hidden, int32_t first, int32_t w_dtype, const char *w, int64_t stride,
                       int32_t tokens, const float *sum, float *out, int64_t out_ld) {
    const int32_t rows = hidden->rows - first < FS_TILE ? hidden->rows - first : FS_TILE;
    const __mmask16 there = (__mmask16)((1u << tokens) - 1);
    __m512 x[16];
    for (int i = 0; i < 16; i++) x[i] = _mm512_loadu_ps(sum + 16 * i);
    transpose(x);
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (first + r) * out_ld;
        _mm512_mask_storeu_ps(to, there, x[r]);
        if (hidden->dtype == FS_BF16 && w_dtype == FS_BF16) continue;
        for (uint32_t odd = _mm512_mask_fpclass_ps_mask(there, x[r], FS_NOT_FINITE); odd; odd &= odd - 1) {
            int32_t t = __builtin_ctz(odd);
            to[t] = repair_nan(hidden, first + r, w + t * stride, w_dtype);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- the tile ---- */

/* One function for each shape: what gcc 12 makes of several in one frame is slower. Full tiles of W and H of one dtype have constants. */
#define FS_DEFINE_SPLIT(type, of_w, T, N)                                                                              \
    static __attribute__((noinline)) void dot_##type##_##T##_##N(const meeting *m) {                                   \
        const int own = split_parts(of_w), parts = split_parts(m->hidden->dtype);                                      \
        if (parts == own && m->n == (T)*FS_TILE) dot_split(of_w, T, N, own, (T)*FS_TILE, m);                           \
        else dot_split(of_w, T, N, parts, m->n, m);                                                                    \
    }
#define FS_DEFINE_SPLITS(type, dtype)                                                                                  \
    FS_DEFINE_SPLIT(type, dtype, 1, 1)                                                                                 \
    FS_DEFINE_SPLIT(type, dtype, 1, 2)                                                                                 \
    FS_DEFINE_SPLIT(type, dtype, 1, 3)                                                                                 \
    FS_DEFINE_SPLIT(type, dtype, 1, 4)                                                                                 \
    FS_DEFINE_SPLIT(type, dtype, 2, 1)                                                                                 \
    FS_DEFINE_SPLIT(type, dtype, 2, 2)
FS_DEFINE_SPLITS(f16, FS_F16)
FS_DEFINE_SPLITS(f32, FS_F32)

static void dot_bf16_1(const meeting *m) {
    dot_plain(1, m);
}
static void dot_bf16_2(const meeting *m) {
    dot_plain(2, m);
}
static void dot_bf16_3(const meeting *m) {
    dot_plain(3, m);
}
static void dot_bf16_4(const meeting *m) {
    dot_plain(4, m);
}

/* Kernels by dtype of W, and number of panels - 1. */
typedef void (*dot_tile)(const meeting *m);
static const dot_tile dot_one[3][FS_PANELS] = {
    [FS_F32] = {dot_f32_1_1, dot_f32_1_2, dot_f32_1_3, dot_f32_1_4},
    [FS_F16] = {dot_f16_1_1, dot_f16_1_2, dot_f16_1_3, dot_f16_1_4},
    [FS_BF16] = {dot_bf16_1, dot_bf16_2, dot_bf16_3, dot_bf16_4},
};
/* Two tiles at a time. */
static const dot_tile dot_two[3][FS_PANELS] = {
    [FS_F32] = {dot_f32_2_1, dot_f32_2_2},
    [FS_F16] = {dot_f16_2_1, dot_f16_2_2},
};

/* Rows of W that are multiplied together: `halves` times `tiles` tiles of n tokens. Token t of tile i is row i + t * tiles of its half, so
 * that two halves are tiles of 2 n tokens. */
typedef struct group {
    int32_t dtype;
    const char *w;
    int64_t stride;
    int32_t tiles, halves, n;
} group;

static void dot_group(const group *g, const fs_hidden *hidden, int32_t p, int32_t N, float *sum) {
    const dot_tile two = g->halves == 2 ? dot_two[g->dtype][N - 1] : NULL, dot = two ? two : dot_one[g->dtype][N - 1];
    const int32_t halves = two ? 1 : g->halves, n = two ? 2 * g->n : g->n;
    const size_t panel = panel_bytes(hidden);
    for (int32_t u = 0; u < halves; u++)
        for (int32_t i = 0; i < g->tiles; i++) {
            const int64_t first = u * g->tiles * n + i;
            meeting m = {hidden,
                         hidden->packed + (size_t)p * panel,
                         panel,
                         g->w + first * g->stride,
                         g->tiles * g->stride,
                         n,
                         sum + first * FS_TILE,
                         g->tiles * 64};
            dot(&m);
        }
}

static void tile_group(const group *g, const fs_hidden *hidden, float *out, int64_t out_ld) {
    const int32_t panels = panels_of(hidden), tokens = g->halves * g->tiles * g->n;
    _Alignas(64) float sum[FS_PANELS * FS_TOKENS * FS_TILE];
    for (int32_t p = 0, N; p < panels; p += N) {
        N = panels - p < FS_PANELS ? panels - p : FS_PANELS;
        dot_group(g, hidden, p, N, sum);
        for (int32_t j = 0; j < N; j++)
            for (int32_t t = 0; t < tokens; t += FS_TILE)
                store_tile(hidden, (p + j) * FS_TILE, g->dtype, g->w + t * g->stride, g->stride,
                           tokens < FS_TILE ? tokens : FS_TILE, sum + (j * FS_TOKENS + t) * FS_TILE, out + t, out_ld);
    }
}

/* Tiles side by side in one page: rows of the tile are that far apart. */
static int32_t spacing_of(int64_t stride) {
    int32_t tiles = 1;
    while (tiles * stride < 4096 && 2 * tiles * FS_TILE < FS_TOKENS) tiles *= 2;
    return tiles;
}

static void tile_all(int32_t dtype, const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens, float *out,
                     int64_t out_ld) {
    group g = {dtype, w, stride, spacing_of(stride), 2, FS_TILE};
    if (tokens >= FS_TILE) configure(FS_TILE);
    for (int32_t t = 0, n; t < tokens; t += n) {
        n = g.halves * g.tiles * g.n;
        if (tokens - t >= n) {
            g.w = w + t * stride;
            tile_group(&g, hidden, out + t, out_ld);
            continue;
        }
        n = 0;
        if (g.halves == 2) g.halves = 1;
        else if (g.tiles > 1) g.tiles = 1;
        else configure(g.n = tokens - t);
    }
    _tile_release();
}

#define FS_DEFINE_KERNEL(type, dtype)                                                                                  \
    static void pack_##type(const fs_hidden *hidden, int64_t from, int64_t to) {                                       \
        pack_for(dtype, hidden, from, to);                                                                             \
    }                                                                                                                  \
    static void tile_##type(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out,        \
                            int64_t out_ld) {                                                                          \
        tile_all(dtype, hidden, (const char *)w, stride, tokens, out, out_ld);                                         \
    }                                                                                                                  \
    const fs_kernel fs_kernel_##type##__amx = {packed_bytes, pack_##type, tile_##type}

FS_DEFINE_KERNEL(f32, FS_F32);
FS_DEFINE_KERNEL(f16, FS_F16);
FS_DEFINE_KERNEL(bf16, FS_BF16);
