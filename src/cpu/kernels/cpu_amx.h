/* cpu_amx.h - what the kernels of AMX share: tiles, numbers as components, how H is packed, what `dot` gets. What
 * happens between tiles of W, tiles of H and sums is each kernel's own; how a call becomes tiles and sums become
 * logits: cpu_amx_tile.h. */
#ifndef FS_CPU_AMX_H
#define FS_CPU_AMX_H

#include <immintrin.h>

#include "cpu_split.h"

#define FS_INLINE static inline __attribute__((always_inline))
#define FS_TILE 16 /* tokens, and columns of H, of a tile */
#define FS_STEP 32 /* elements */
#define FS_TILE_BYTES 1024
#define FS_PAGE 4096
#define FS_PANELS 4                   /* of rows, and sums, at a time */
#define FS_SUMS (FS_PANELS * FS_TILE) /* of a token */
#define FS_TOKENS 128                 /* at most, whose sums wait to be transposed: 8 tiles */
#define FS_SEGMENT 32 /* steps at most of a segment of components: docs/explain/exactness.md, dot products */

/* What this points to is in memory now. gcc 12 does not know that ldtilecfg and tileloadd read it, and may drop or move
 * stores. */
#define FS_WRITTEN(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

/* What ldtilecfg reads. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "ldtilecfg reads 64 bytes");

/* Tiles: 0 .. 3 the sums, then `of_w` tiles of n tokens, then rows of H. */
FS_INLINE void configure(int32_t n, int of_w, int32_t columns) {
    tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const int is_sum = i < FS_PANELS, is_w = !is_sum && i < FS_PANELS + of_w;
        config.row_bytes[i] = (uint16_t)(is_w ? 64 : 4 * columns);
        config.rows[i] = (uint8_t)(is_sum || is_w ? n : FS_TILE);
    }
    FS_WRITTEN(&config);
    _tile_loadconfig(&config);
}

/* The configuration is the caller's, who may have set it once for the thread and count on it; what is in tiles is
 * nobody's after a call, as with other registers. Palette 0: there is none. Once per block: with few tokens, too, its
 * own configuration costs more. */
FS_INLINE void keep_config(tile_config *config) {
    _tile_storeconfig(config);
    FS_WRITTEN(config); /* all of it: gcc 12 takes it for 8 bytes */
}

FS_INLINE void give_back_config(const tile_config *config) {
    FS_WRITTEN(config);
    if (config->palette) _tile_loadconfig(config);
    else _tile_release();
}

FS_INLINE int64_t steps_of(const fs_hidden *hidden) {
    return (hidden->dim + FS_STEP - 1) / FS_STEP;
}

/* ------------------------------------------------------------------------------------------------- transpose ---- */

/* x [16] vectors of 16: element j of vector i becomes element i of vector j. Halves are exchanged 1, 2, 4, 8
 * apart. */
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

/* -------------------------------------------------------------------------------------------------- components ---- */

/* The instruction that adds to the sums of a tile products of numbers of type `unit`: of tokens, rows of the tile, and
 * rows of H, columns. tdpfp16ps is encoded: gcc knows it from 13 on and assemblers from binutils 2.40. */
#define FS_MULTIPLY(unit, sums, tokens, columns)                                                                       \
    do {                                                                                                               \
        if ((unit) == FS_BF16) _tile_dpbf16ps(sums, tokens, columns);                                                  \
        else                                                                                                           \
            __asm__ volatile(".byte 0xC4, 0xE2, 0x7B - 8 * %c0, 0x5C, 0xC0 + 8 * %c1 + %c2"                            \
                             :                                                                                         \
                             : "i"(columns), "i"(sums), "i"(tokens));                                                  \
    } while (0)

/* Components of that type that a number becomes: 24 = 8 + 8 + 8 bits, or 11 + 11 and a sign. f16 holds a bf16 whose
 * exponent it has. */
FS_INLINE int components_in(int32_t unit, int32_t dtype) {
    if (unit == FS_BF16) return split_components(dtype);
    return dtype == FS_F32 ? 2 : 1;
}

FS_INLINE __m512i join(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* What is left of x without its upper half, exactly; NaN if x is not finite. */
FS_INLINE __m512 cut_top(__m512 x) {
    const __m512i top = _mm512_set1_epi32((int)0xFFFF0000);
    return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), top)));
}

/* The upper halves of 32 floats: a and b one behind the other, or each element of a beside that of b. */
FS_INLINE __m512i join_tops(__m512 a, __m512 b) {
    const __m512i x = _mm512_srli_epi32(_mm512_castps_si512(a), 16), y = _mm512_srli_epi32(_mm512_castps_si512(b), 16);
    return join(_mm512_cvtepi32_epi16(x), _mm512_cvtepi32_epi16(y));
}

FS_INLINE __m512i pair_tops(__m512 a, __m512 b) {
    const __m512i top = _mm512_set1_epi32((int)0xFFFF0000);
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b), top, 0xF8);
}

FS_INLINE __m256i round_halves(__m512 x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Takes the next component off 32 floats; what is left is exact, or NaN where an element is not finite. bf16 components
 * are cut off, f16 ones rounded. */
FS_INLINE __m512i take_component(int32_t unit, int apart, __m512 *x) {
    const __m512 a = x[0], b = x[1];
    if (unit == FS_BF16) {
        x[0] = cut_top(a);
        x[1] = cut_top(b);
        return apart == 1 ? join_tops(a, b) : pair_tops(a, b);
    }
    const __m256i low = round_halves(a), high = round_halves(b);
    x[0] = _mm512_sub_ps(a, _mm512_cvtph_ps(low));
    x[1] = _mm512_sub_ps(b, _mm512_cvtph_ps(high));
    return join(low, high);
}

/* f16 ends at 2^16, and below 2^-14 it gets coarse. So numbers that become f16 are multiplied by a power of two, one
 * for each row of W and of H, and sums divided by both: exponents by which a row's magnitude, given by its bits, gets
 * the exponent `to`. Multiplying does not overflow, nor does it lose more than what is below 2^-126 in the end. */
FS_INLINE int upscale_to(int to, uint32_t magnitude) {
    const int upscale = to + 127 - (int)(magnitude >> 23);
    return upscale < 126 ? upscale : 126;
}

/* 2^e, -126 <= e <= 127 */
FS_INLINE float power_of(int e) {
    return bits_float((uint32_t)(e + 127) << 23);
}

/* ----------------------------------------------------------------------------------------------------- pack ---- */

typedef struct matmul matmul;
typedef struct filtering filtering;

/* How tiles of W and H are multiplied. */
typedef struct microkernel {
    int32_t weights; /* their dtype */
    int32_t unit;    /* the type of what is multiplied */
    int apart;       /* elements of a pair: 1, neighbours, or 16 */
    float scale;     /* of hidden states that are not upscaled */
    void (*dot)(const matmul *m);
} microkernel;

/* Whether hidden states are upscaled: they are not if they are f16 as they lie. */
FS_INLINE int upscales_hidden(const microkernel *micro, const fs_hidden *hidden) {
    return micro->unit == FS_F16 && hidden->dtype != FS_F16;
}

/* How H is packed: [panels of 16 rows, steps of 32 elements, components, 16 pairs of elements, columns, 2], halves.
 * Fewer than 9 rows take 8, 4, 2 columns or 1: that stays in L1 while W streams by. Zeros behind dim and where no row
 * is. Behind that each row's upscale, float. */
typedef struct packing {
    int components;
    int32_t panels, columns;
    int64_t tile, panel; /* bytes */
} packing;

FS_INLINE packing packing_of(const microkernel *micro, const fs_hidden *hidden) {
    packing p = {components_in(micro->unit, hidden->dtype), (hidden->rows + FS_TILE - 1) / FS_TILE, 1, 0, 0};
    while (p.columns < hidden->rows && p.columns < FS_TILE) p.columns *= 2;
    p.tile = FS_TILE_BYTES / FS_TILE * p.columns;
    p.panel = steps_of(hidden) * p.components * p.tile;
    return p;
}

FS_INLINE float *upscales_of(const packing *p, const fs_hidden *hidden) {
    return (float *)(void *)(hidden->packed + p->panels * p->panel);
}

FS_INLINE size_t packing_bytes(const microkernel *micro, const fs_hidden *hidden) {
    const packing p = packing_of(micro, hidden);
    return (size_t)(p.panels * p.panel) + (size_t)p.panels * FS_TILE * sizeof(float);
}

/* 32 elements of a row from d on as floats, zeros behind dim. */
FS_INLINE void load_floats(const fs_hidden *hidden, int32_t row, int64_t d, __m512 *x) {
    const int64_t left = hidden->dim - d;
    const __mmask32 there = left < FS_STEP ? (1u << left) - 1 : ~0u;
    for (int i = 0; i < 2; i++) {
        const __mmask16 half = (__mmask16)(there >> 16 * i);
        const void *from = hidden->row[row];
        if (hidden->dtype == FS_F32) x[i] = _mm512_maskz_loadu_ps(half, (const float *)from + d + 16 * i);
        else {
            const __m256i y = _mm256_maskz_loadu_epi16(half, (const uint16_t *)from + d + 16 * i);
            x[i] = hidden->dtype == FS_F16 ? _mm512_cvtph_ps(y)
                                           : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(y), 16));
        }
    }
}

FS_INLINE __m512i max_magnitude(__m512i most, __m512 x) {
    return _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF)));
}

/* The largest element of H gets 14: its components end below 2^15. */
FS_INLINE int upscale_of_row(const fs_hidden *hidden, int32_t row) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t d = 0; d < hidden->dim; d += FS_STEP) {
        __m512 x[2];
        load_floats(hidden, row, d, x);
        most = max_magnitude(max_magnitude(most, x[0]), x[1]);
    }
    return upscale_to(14, _mm512_reduce_max_epu32(most));
}

/* A step's rows in a panel: what is a line of 16 pairs, a row's, becomes a column of the tile. */
FS_INLINE void pack_step(const microkernel *micro, const fs_hidden *hidden, const packing *p, int32_t panel, int64_t d,
                         const float *scale) {
    const int32_t first = panel * FS_TILE, left = hidden->rows - first, rows = left < FS_TILE ? left : FS_TILE;
    const __mmask16 columns = (__mmask16)((1u << p->columns) - 1);
    __m512 line[FS_COMPONENTS_MOST][FS_TILE];
    memset(line, 0, sizeof line);
    for (int32_t r = 0; r < rows; r++) {
        __m512 x[2];
        load_floats(hidden, first + r, d, x);
        x[0] = _mm512_mul_ps(x[0], _mm512_set1_ps(scale[r]));
        x[1] = _mm512_mul_ps(x[1], _mm512_set1_ps(scale[r]));
        for (int j = 0; j < p->components; j++)
            line[j][r] = _mm512_castsi512_ps(take_component(micro->unit, micro->apart, x));
    }
    char *to = hidden->packed + panel * p->panel + d / FS_STEP * p->components * p->tile;
    for (int j = 0; j < p->components; j++, to += p->tile) {
        transpose(line[j]);
        for (int k = 0; k < FS_TILE; k++) _mm512_mask_storeu_ps(to + 4 * k * p->columns, columns, line[j][k]);
    }
}

FS_INLINE void pack_all(const microkernel *micro, const fs_hidden *hidden, int64_t from, int64_t to) {
    const packing p = packing_of(micro, hidden);
    const int upscaled = upscales_hidden(micro, hidden);
    for (int32_t i = 0; i < p.panels; i++) {
        float scale[FS_TILE];
        for (int32_t r = 0; r < FS_TILE; r++) {
            const int32_t row = i * FS_TILE + r;
            const int upscale = upscaled && row < hidden->rows ? upscale_of_row(hidden, row) : 0;
            scale[r] = upscaled ? power_of(upscale) : micro->scale;
            if (from == 0 && to > 0) upscales_of(&p, hidden)[row] = (float)upscale;
        }
        for (int64_t d = from; d < to && d < hidden->dim; d += FS_STEP) pack_step(micro, hidden, &p, i, d, scale);
    }
}

/* ------------------------------------------------------------------------------------------------------ dot ---- */

/* What `dot` multiplies: a tile of n tokens by up to four panels of H. */
struct matmul {
    const char *w; /* the first token; the others `stride` bytes apart */
    int64_t stride, dim;
    int64_t segment; /* steps that are summed from zero, see segment_of */
    int32_t n;
    const char *then;  /* a later tile whose first lines are to be fetched: see `fetching`; or w: nothing is */
    const char *whole; /* one that is to be fetched, a line of each of `fetched` rows a step: see fetches_whole */
    int32_t fetched;
    const char *h; /* the first panel's first step */
    int32_t panels;
    packing packing;
    float *sum; /* [tokens, FS_PANELS, 16], tokens `sum_stride` bytes apart */
    int64_t sum_stride;
    float *upscale; /* [tokens], `spacing` apart: by which powers of two dot multiplied weights; 0 unless it does */
    int32_t spacing;
    filtering *before; /* the tile before this one, to be filtered between products */
};

/* From three panels on a step takes so long, and so many loads, that W's next steps are out of a core's sight: the
 * whole next tile is fetched ahead, as long as it, this one and H leave half of an L2 of 2 MB. With fewer panels the
 * prefetcher does it, but for first lines; f32, which takes more instructions to split, gains by it with one panel too.
 * See docs/notes/cpu-memory.md, "the whole next tile is asked for". */
#define FS_WHOLE_PANELS 3
#define FS_WHOLE_BYTES (1 << 20)
#define FS_WHOLE_BYTES_ALONE (640 << 10) /* of one panel */

FS_INLINE int may_fetch_whole(int32_t weights, int panels) {
    return panels >= FS_WHOLE_PANELS || (panels == 1 && weights == FS_F32);
}

/* Whether a matmul of this many panels does, of a tile whose rows are `stride` bytes apart. */
FS_INLINE int fetches_whole(const microkernel *micro, const packing *p, int64_t stride, int32_t panels) {
    const int64_t bytes = panels * p->panel + 2 * FS_TILE * stride;
    return may_fetch_whole(micro->weights, panels) && bytes <= (panels == 1 ? FS_WHOLE_BYTES_ALONE : FS_WHOLE_BYTES);
}

/* The prefetcher follows a stream to the end of its page and starts anew in the next one, and a tile starts 16 streams
 * at once. So during the last 16 steps of a tile the first two lines of the next one are fetched, a row a step
 * (docs/notes/cpu-memory.md). */
typedef struct fetching {
    const char *at;
    int64_t move; /* to the next row; 0 while nothing is fetched */
    const char *then;
    int64_t stride, due; /* the step at which that starts */
} fetching;

/* w: a tile whose rows are `stride` bytes apart; then: the next one, or w itself: nothing is fetched. */
FS_INLINE fetching fetch_from(const char *w, const char *then, int64_t stride, int64_t steps) {
    fetching a = {w, 0, then, stride, then == w ? steps : steps > FS_TILE ? steps - FS_TILE : 0};
    return a;
}

FS_INLINE void fetch_step(fetching *a, int64_t k) {
    a->at = k == a->due ? a->then : a->at;
    a->move = k == a->due ? a->stride : a->move;
    _mm_prefetch(a->at, _MM_HINT_T1);
    _mm_prefetch(a->at + 64, _MM_HINT_T1);
    a->at += a->move;
}

FS_INLINE void zero_sums(int N) {
    _tile_zero(0);
    if (N > 1) _tile_zero(1);
    if (N > 2) _tile_zero(2);
    if (N > 3) _tile_zero(3);
}

FS_INLINE void store_sums_at(int N, float *to, int64_t stride) {
    _tile_stored(0, to, stride);
    if (N > 1) _tile_stored(1, to + FS_TILE, stride);
    if (N > 2) _tile_stored(2, to + 2 * FS_TILE, stride);
    if (N > 3) _tile_stored(3, to + 3 * FS_TILE, stride);
}

/* Sums of the first segment, or added to those of the segments before. */
FS_INLINE void store_sums(int N, const matmul *m, int first) {
    if (first) {
        store_sums_at(N, m->sum, m->sum_stride);
        return;
    }
    _Alignas(64) float more[FS_TILE * FS_SUMS];
    store_sums_at(N, more, FS_SUMS * 4);
    for (int32_t t = 0; t < m->n; t++)
        for (int i = 0; i < N * FS_TILE; i += FS_TILE) {
            float *to = m->sum + t * m->sum_stride / 4 + i;
            _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_load_ps(more + t * FS_SUMS + i)));
        }
}

/* The elements of an unfinished step of n tokens, zero padded: W must not be read past its end. to [n, 32] */
FS_INLINE void copy_tail(const char *w, int64_t stride, int32_t n, int64_t dim, int64_t bytes, char *to) {
    const int64_t done = dim / FS_STEP * FS_STEP;
    for (int32_t t = 0; t < n; t++, to += FS_STEP * bytes) {
        memset(to, 0, (size_t)(FS_STEP * bytes));
        memcpy(to, w + t * stride + done * bytes, (size_t)((dim - done) * bytes));
    }
}

#endif
