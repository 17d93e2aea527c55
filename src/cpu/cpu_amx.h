/* cpu_amx.h - what the kernels of AMX share: how H is packed, how a call's tokens and rows become tiles, how sums become logits. What
 * happens between tiles of W, tiles of H and sums is each kernel's own (`dot`). */
#ifndef FS_CPU_AMX_H
#define FS_CPU_AMX_H

#include "cpu_marks_avx512.h"
#include "cpu_split.h"

#define FS_INLINE static inline __attribute__((always_inline))
#define FS_TILE 16 /* tokens, and columns of H, of a tile */
#define FS_STEP 32 /* elements */
#define FS_TILE_BYTES 1024
#define FS_PAGE 4096
#define FS_PANELS 4                   /* of rows, and sums, at a time */
#define FS_SUMS (FS_PANELS * FS_TILE) /* of a token */
#define FS_TOKENS 128                 /* at most, whose sums wait to be transposed: 8 tiles */
#define FS_BLOCK 32                   /* steps at most of a block of parts: docs/exactness.md, dot products */

/* What this points to is in memory now. gcc 12 does not know that ldtilecfg and tileloadd read it, and may drop or move stores. */
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

FS_INLINE int64_t steps_of(const fs_hidden *hidden) {
    return (hidden->dim + FS_STEP - 1) / FS_STEP;
}

/* ----------------------------------------------------------------------------------------------------- pack ---- */

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

/* ---------------------------------------------------------------------------------------------------- parts ---- */

/* The instruction that adds to the sums of a tile products of numbers of type `unit`: of tokens, rows of the tile, and rows of H, columns.
 * tdpfp16ps is encoded: gcc knows it from 13 on and assemblers from binutils 2.40. */
#define FS_MULTIPLY(unit, sums, tokens, columns)                                                                       \
    do {                                                                                                               \
        if ((unit) == FS_BF16) _tile_dpbf16ps(sums, tokens, columns);                                                  \
        else                                                                                                           \
            __asm__ volatile(".byte 0xC4, 0xE2, 0x7B - 8 * %c0, 0x5C, 0xC0 + 8 * %c1 + %c2"                            \
                             :                                                                                         \
                             : "i"(columns), "i"(sums), "i"(tokens));                                                  \
    } while (0)

/* Parts of that type that a number becomes: 24 = 8 + 8 + 8 bits, or 11 + 11 and a sign. f16 holds a bf16 whose exponent it has. */
FS_INLINE int parts_in(int32_t unit, int32_t dtype) {
    if (unit == FS_BF16) return split_parts(dtype);
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

/* Takes the next part off 32 floats; what is left is exact, or NaN where an element is not finite. bf16 parts are cut off, f16 ones rounded. */
FS_INLINE __m512i take_part(int32_t unit, int apart, __m512 *x) {
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

/* f16 ends at 2^16, and below 2^-14 it gets coarse. So numbers that become f16 are multiplied by a power of two, one for each row of W and of
 * H, and sums divided by both: exponents by which a row's magnitude, given by its bits, gets the exponent `to`. Multiplying does not
 * overflow, nor does it lose more than what is below 2^-126 in the end. */
FS_INLINE int lift_to(int to, uint32_t magnitude) {
    const int lift = to + 127 - (int)(magnitude >> 23);
    return lift < 126 ? lift : 126;
}

/* 2^e, -126 <= e <= 127 */
FS_INLINE float power_of(int e) {
    return bits_float((uint32_t)(e + 127) << 23);
}

/* ----------------------------------------------------------------------------------------------------- pack ---- */

typedef struct meeting meeting;

/* What a kernel is made of. */
typedef struct scheme {
    int32_t weights; /* their dtype */
    int32_t unit;    /* the type of what is multiplied */
    int apart;       /* elements of a pair: 1, neighbours, or 16 */
    float scale;     /* of hidden states that have no lift */
    void (*dot)(const meeting *m);
} scheme;

/* Whether weights, or hidden states, are lifted: neither is if both are f16 as they lie. */
FS_INLINE int lifts_weights(const scheme *s) {
    return s->unit == FS_F16 && s->weights != FS_F16;
}

FS_INLINE int lifts_hidden(const scheme *s, const fs_hidden *hidden) {
    return s->unit == FS_F16 && hidden->dtype != FS_F16;
}

/* How H is packed: [panels of 16 rows, steps of 32 elements, parts, 16 pairs of elements, columns, 2], halves. Fewer than 9 rows take 8, 4, 2
 * columns or 1: that stays in L1 while W streams by. Zeros behind dim and where no row is. Behind that each row's lift, float. */
typedef struct packing {
    int parts;
    int32_t panels, columns;
    int64_t tile, panel; /* bytes */
} packing;

FS_INLINE packing packing_of(const scheme *s, const fs_hidden *hidden) {
    packing p = {parts_in(s->unit, hidden->dtype), (hidden->rows + FS_TILE - 1) / FS_TILE, 1, 0, 0};
    while (p.columns < hidden->rows && p.columns < FS_TILE) p.columns *= 2;
    p.tile = FS_TILE_BYTES / FS_TILE * p.columns;
    p.panel = steps_of(hidden) * p.parts * p.tile;
    return p;
}

FS_INLINE float *lifts_of(const packing *p, const fs_hidden *hidden) {
    return (float *)(void *)(hidden->packed + p->panels * p->panel);
}

FS_INLINE size_t packing_bytes(const scheme *s, const fs_hidden *hidden) {
    const packing p = packing_of(s, hidden);
    return (size_t)(p.panels * p.panel) + (size_t)p.panels * FS_TILE * sizeof(float);
}

/* 32 elements of a row from d on as floats, zeros behind dim. */
FS_INLINE void load_floats(const fs_hidden *hidden, int32_t row, int64_t d, __m512 *x) {
    const int64_t left = hidden->dim - d;
    const __mmask32 there = left < FS_STEP ? (1u << left) - 1 : ~0u;
    for (int i = 0; i < 2; i++) {
        const __mmask16 half = (__mmask16)(there >> 16 * i);
        const char *at = hidden->row[row] + (d + 16 * i) * (hidden->dtype == FS_F32 ? 4 : 2);
        if (hidden->dtype == FS_F32) x[i] = _mm512_maskz_loadu_ps(half, at);
        else {
            const __m256i y = _mm256_maskz_loadu_epi16(half, at);
            x[i] = hidden->dtype == FS_F16 ? _mm512_cvtph_ps(y)
                                           : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(y), 16));
        }
    }
}

FS_INLINE __m512i max_magnitude(__m512i most, __m512 x) {
    return _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF)));
}

/* The largest element of H gets 14: its parts end below 2^15. */
FS_INLINE int lift_of_row(const fs_hidden *hidden, int32_t row) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t d = 0; d < hidden->dim; d += FS_STEP) {
        __m512 x[2];
        load_floats(hidden, row, d, x);
        most = max_magnitude(max_magnitude(most, x[0]), x[1]);
    }
    return lift_to(14, _mm512_reduce_max_epu32(most));
}

/* A step's rows in a panel: what is a line of 16 pairs, a row's, becomes a column of the tile. */
FS_INLINE void pack_step(const scheme *s, const fs_hidden *hidden, const packing *p, int32_t panel, int64_t d,
                         const float *scale) {
    const int32_t first = panel * FS_TILE, left = hidden->rows - first, rows = left < FS_TILE ? left : FS_TILE;
    const __mmask16 columns = (__mmask16)((1u << p->columns) - 1);
    __m512 line[FS_PARTS_MOST][FS_TILE];
    memset(line, 0, sizeof line);
    for (int32_t r = 0; r < rows; r++) {
        __m512 x[2];
        load_floats(hidden, first + r, d, x);
        x[0] = _mm512_mul_ps(x[0], _mm512_set1_ps(scale[r]));
        x[1] = _mm512_mul_ps(x[1], _mm512_set1_ps(scale[r]));
        for (int j = 0; j < p->parts; j++) line[j][r] = _mm512_castsi512_ps(take_part(s->unit, s->apart, x));
    }
    char *to = hidden->packed + panel * p->panel + d / FS_STEP * p->parts * p->tile;
    for (int j = 0; j < p->parts; j++, to += p->tile) {
        transpose(line[j]);
        for (int k = 0; k < FS_TILE; k++) _mm512_mask_storeu_ps(to + 4 * k * p->columns, columns, line[j][k]);
    }
}

FS_INLINE void pack_all(const scheme *s, const fs_hidden *hidden, int64_t from, int64_t to) {
    const packing p = packing_of(s, hidden);
    const int lifted = lifts_hidden(s, hidden);
    for (int32_t i = 0; i < p.panels; i++) {
        float scale[FS_TILE];
        for (int32_t r = 0; r < FS_TILE; r++) {
            const int32_t row = i * FS_TILE + r;
            const int lift = lifted && row < hidden->rows ? lift_of_row(hidden, row) : 0;
            scale[r] = lifted ? power_of(lift) : s->scale;
            if (from == 0 && to > 0) lifts_of(&p, hidden)[row] = (float)lift;
        }
        for (int64_t d = from; d < to && d < hidden->dim; d += FS_STEP) pack_step(s, hidden, &p, i, d, scale);
    }
}

/* ------------------------------------------------------------------------------------------------------ dot ---- */

/* What `dot` gets: a tile of n tokens and up to four panels of H. */
struct meeting {
    const char *w; /* the first token; the others `stride` bytes apart */
    int64_t stride, dim;
    int64_t block; /* steps that are summed from zero, see block_of */
    int32_t n;
    const char *then;  /* a later tile whose first lines are to be asked for: see `asking`; or w: nothing is */
    const char *whole; /* from FS_WHOLE_PANELS on, one that is to be asked for, a line of each row a step; or NULL */
    const char *h;     /* the first panel's first step */
    int32_t panels;
    packing packing;
    float *sum; /* [tokens, FS_PANELS, 16], tokens `sum_stride` bytes apart */
    int64_t sum_stride;
    float *
        lift; /* [tokens], `spacing` apart, for dot to say by which powers of two it multiplied weights; 0 unless it does */
    int32_t spacing;
};

/* From three panels on a step takes so long, and so many loads, that W's next steps are out of a core's sight: the whole next tile is asked
 * for, as long as it, this one and H leave half of an L2 of 2 MB. With fewer panels the prefetcher does it, but for first lines. See
 * docs/findings/amx-at-64-rows.md, split-weights-on-amx.md. */
#define FS_WHOLE_PANELS 3
#define FS_WHOLE_BYTES (1 << 20)

FS_INLINE int asks_whole(const scheme *s, const meeting *m) {
    if (m->panels < FS_WHOLE_PANELS || (lifts_weights(s) && m->stride <= FS_PAGE)) return 0;
    return m->panels * m->packing.panel + 2 * FS_TILE * m->stride <= FS_WHOLE_BYTES;
}

/* Where the line of step k of the tile to be asked for is, `bytes` a step; or NULL. */
FS_INLINE const char *line_to_ask(const meeting *m, int64_t k, int64_t bytes) {
    return m->whole ? m->whole + k * bytes : NULL;
}

/* The prefetcher follows a stream to the end of its page and starts anew in the next one, and a tile starts 16 streams at once. So during
 * the last 16 steps of a tile the first two lines of the next one are asked for, a row a step (docs/findings/first-lines-of-a-tile.md). */
typedef struct asking {
    const char *at;
    int64_t move; /* to the next row; 0 while nothing is asked for */
    const char *then;
    int64_t stride, due; /* the step at which asking starts */
} asking;

/* w: a tile whose rows are `stride` bytes apart; then: the next one, or w itself: nothing is asked for. */
FS_INLINE asking ask_for(const char *w, const char *then, int64_t stride, int64_t steps) {
    asking a = {w, 0, then, stride, then == w ? steps : steps > FS_TILE ? steps - FS_TILE : 0};
    return a;
}

FS_INLINE void ask_step(asking *a, int64_t k) {
    a->at = k == a->due ? a->then : a->at;
    a->move = k == a->due ? a->stride : a->move;
    _mm_prefetch(a->at, _MM_HINT_T1);
    _mm_prefetch(a->at + 64, _MM_HINT_T1);
    a->at += a->move;
}

/* Of several panels H does not stay in L1 until the next tokens: by tileloaddt1 it leaves L1 to W (64 rows, one core of Emerald Rapids,
 * 2026-11-15: 92 -> 88 ns a step from memory, 59 -> 53 from L2). One panel does, and is slower so. */
#define FS_LOAD_H(tile, at)                                                                                            \
    do {                                                                                                               \
        if (N > 1) _tile_stream_loadd(tile, at, 64);                                                                   \
        else _tile_loadd(tile, at, m->packing.columns * 4);                                                            \
    } while (0)

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

/* Sums of the first block, or added to those of the blocks before. */
FS_INLINE void store_sums(int N, const meeting *m, int first) {
    if (first) {
        store_sums_at(N, m->sum, m->sum_stride);
        return;
    }
    _Alignas(64) float block[FS_TILE * FS_SUMS];
    store_sums_at(N, block, FS_SUMS * 4);
    for (int32_t t = 0; t < m->n; t++)
        for (int i = 0; i < N * FS_TILE; i += FS_TILE) {
            float *to = m->sum + t * m->sum_stride / 4 + i;
            _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_load_ps(block + t * FS_SUMS + i)));
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

/* ---------------------------------------------------------------------------------------------------- store ---- */

/* A call of `tile`: scheme, H, the sums of a group of tiles. */
typedef struct calling {
    const scheme *s;
    const fs_hidden *hidden;
    packing packing;
    int64_t stride;
    float *sum;  /* [FS_TOKENS, FS_PANELS, 16] */
    float *lift; /* [FS_TOKENS] */
} calling;

/* Where logits go: into a sieve, or to out[row * out_ld + token]. */
typedef struct ending {
    fs_sieve *sieve; /* or NULL */
    float *out;
    int64_t out_ld;
} ending;

/* Whether both weights and hidden states are multiplied as they lie. */
FS_INLINE int as_they_lie(const calling *c) {
    return c->s->weights == c->s->unit && c->hidden->dtype == c->s->unit;
}

#define FS_NOT_FINITE 0x99 /* of vfpclassps: quiet and signalling NaN, + and - inf */

/* x [16] logits of 16 tokens from place t on, whose sums were of lifted weights or hidden states: exact but for what is denormal. */
FS_INLINE void put_down(const calling *c, int32_t t, int32_t first, __m512 *x) {
    const __m512 of_tokens = _mm512_loadu_ps(c->lift + t);
    const float *of_rows = lifts_of(&c->packing, c->hidden) + first;
    for (int r = 0; r < FS_TILE; r++) /* rows that are not there have a lift too */
        x[r] = _mm512_scalef_ps(x[r], _mm512_sub_ps(_mm512_set1_ps(-of_rows[r]), of_tokens));
}

/* Logits of `tokens` tokens, up to 16, w, whose sums are from place t on, for the rows of a panel, the j-th of those whose sums are there. */
FS_INLINE void store_tile(const calling *c, int plain, int32_t panel, int32_t j, const char *w, int32_t t,
                          int32_t tokens, float *out, int64_t out_ld) {
    const float *sum = c->sum + t * FS_SUMS + j * FS_TILE;
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first, rows = left < FS_TILE ? left : FS_TILE;
    const __mmask16 there = (__mmask16)((1u << tokens) - 1);
    __m512 x[16];
    for (int i = 0; i < 16; i++) x[i] = _mm512_load_ps(sum + i * FS_SUMS);
    transpose(x);
    if (!plain && c->s->unit == FS_F16) put_down(c, t, first, x);
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (first + r) * out_ld;
        _mm512_mask_storeu_ps(to, there, x[r]);
        if (plain) continue;
        for (uint32_t odd = _mm512_mask_fpclass_ps_mask(there, x[r], FS_NOT_FINITE); odd; odd &= odd - 1) {
            const int32_t i = __builtin_ctz(odd);
            to[i] = repair_nan(c->hidden, first + r, w + i * c->stride, c->s->weights);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- sift ---- */

/* Terms of a rough mass. */
typedef struct rough_lanes {
    __m512 per, least, magic;
} rough_lanes;

FS_INLINE __m512 rough_term(const rough_lanes *s, __m512 y) {
    const __m512 x = _mm512_max_ps(y, s->least), shifted = _mm512_fmadd_ps(x, s->per, s->magic);
    const __m512 f = _mm512_fmsub_ps(x, s->per, _mm512_sub_ps(shifted, s->magic));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(FS_EXP2_4), f, _mm512_set1_ps(FS_EXP2_3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FS_EXP2_0));
    return _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

/* Where the sums of a group go, from `place` of the block on, and their lifts: a sieve keeps those of a noise block, for rows of panel p on. */
FS_INLINE float *sums_at(const calling *c, const fs_sieve *sieve, int32_t p, int32_t place) {
    if (!sieve) return c->sum;
    return sieve->sums + ((int64_t)(p / FS_PANELS) * FS_NOISE_BLOCK + place % FS_NOISE_BLOCK) * FS_SUMS;
}

/* The logits of a token, 16 rows from `first` on, from sums and their tokens' lifts. */
FS_INLINE __m512 logits_of(const calling *c, int plain, int32_t first, const float *sum, const float *lift) {
    const __m512 x = _mm512_load_ps(sum);
    if (plain || c->s->unit != FS_F16) return x;
    const __m512 of_rows = _mm512_loadu_ps(lifts_of(&c->packing, c->hidden) + first);
    return _mm512_scalef_ps(x, _mm512_sub_ps(_mm512_set1_ps(-*lift), of_rows));
}

/* n tokens from `place` on, for the 16 rows of a panel. sum: of the first; lift: its lift. */
FS_INLINE void sift_tile(const calling *c, int plain, fs_sieve *sieve, int32_t panel, const float *sum,
                         const float *lift, int32_t place, int32_t n) {
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first;
    const __mmask16 rows = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    const __m512 floor = _mm512_loadu_ps(sieve->floor + first), zero = _mm512_setzero_ps();
    __m512 most = _mm512_set1_ps(-INFINITY), odd = zero;
    for (int32_t i = 0; i < n; i++) {
        const __m512 x = logits_of(c, plain, first, sum + i * FS_SUMS, lift + i);
        most = _mm512_max_ps(most, x);
        odd = _mm512_fmadd_ps(x, zero, odd); /* NaN from the first that is not finite on */
    }
    if (sieve->per) {
        const rough_lanes s = {_mm512_loadu_ps(sieve->per + first), _mm512_loadu_ps(sieve->least + first),
                               _mm512_loadu_ps(sieve->magic + first)};
        __m512 terms = zero;
        for (int32_t i = 0; i < n; i++)
            terms = _mm512_add_ps(terms, rough_term(&s, logits_of(c, plain, first, sum + i * FS_SUMS, lift + i)));
        _mm512_storeu_ps(sieve->sum + first, _mm512_add_ps(_mm512_loadu_ps(sieve->sum + first), terms));
    }
    if (_mm512_mask_cmp_ps_mask(rows, odd, odd, _CMP_UNORD_Q)) sieve->failed = 1;
    _mm512_storeu_ps(sieve->most + first, _mm512_max_ps(_mm512_loadu_ps(sieve->most + first), most));
    if (!_mm512_mask_cmp_ps_mask(rows, most, floor, _CMP_GT_OQ)) return;
    for (int32_t i = 0; i < n; i++) {
        const __m512 x = logits_of(c, plain, first, sum + i * FS_SUMS, lift + i);
        for (uint32_t above = _mm512_mask_cmp_ps_mask(rows, x, floor, _CMP_GT_OQ); above; above &= above - 1) {
            const int32_t r = __builtin_ctz(above);
            const float y = _mm512_cvtss_f32(_mm512_maskz_compress_ps((__mmask16)(1u << r), x));
            sieve_find(sieve, y, place + i, first + r, -1);
        }
    }
}

/* Logits of 16 rows, each at its own place of the noise block. sum: of the block's first token. */
FS_INLINE __m512 gather_logits(const calling *c, int plain, int32_t first, const float *sum, __mmask16 lanes,
                               __m512i place) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(_mm512_mullo_epi32(place, _mm512_set1_epi32(FS_SUMS)), lane);
    const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, at, sum, 4);
    if (plain || c->s->unit != FS_F16) return x;
    const __m512 of_rows = _mm512_loadu_ps(lifts_of(&c->packing, c->hidden) + first);
    const __m512 of_tokens = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, place, c->lift, 4);
    return _mm512_scalef_ps(x, _mm512_sub_ps(_mm512_sub_ps(_mm512_setzero_ps(), of_tokens), of_rows));
}

/* The marked token of each of these rows, if it can win. */
FS_INLINE void sift_mark(const calling *c, int plain, fs_sieve *sieve, int32_t first, const float *sum, int32_t from,
                         __mmask16 lanes, __m512i place, __m512i prefix) {
    const __m512 y = gather_logits(c, plain, first, sum, lanes, place);
    const __m512 bits = _mm512_cvtepi32_ps(_mm512_castps_si512(_mm512_cvtepi32_ps(prefix)));
    const __m512 noise = _mm512_mul_ps(bits, _mm512_set1_ps(-0x1p-23f * 0.693147181f));
    const __m512 score = _mm512_add_ps(_mm512_mul_ps(y, _mm512_loadu_ps(sieve->scale + first)), noise);
    uint32_t found = _mm512_mask_cmp_ps_mask(lanes, score, _mm512_loadu_ps(sieve->reach + first), _CMP_GT_OQ);
    for (; found; found &= found - 1) {
        const __mmask16 one = (__mmask16)(found & -found);
        const int32_t at = _mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, place));
        sieve_find(sieve, _mm512_cvtss_f32(_mm512_maskz_compress_ps(one, y)), from + at, first + __builtin_ctz(found),
                   _mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, prefix)));
    }
}

/* All marked tokens of a row whose marks take more than the first two pairs to tell. w: the words of 16 rows. */
static __attribute__((noinline)) void sift_walk(const calling *c, int plain, fs_sieve *sieve, int32_t first, int32_t r,
                                                const float *sum, int32_t from, int32_t n, const __m512i *w) {
    const uint32_t block = (uint32_t)((sieve->first + from) / FS_NOISE_BLOCK);
    const fs_noise noise = {sieve->r0[first + r], sieve->r1[first + r], sieve->r2[first + r] ^ FS_DOMAIN_MARK};
    const __mmask16 one = (__mmask16)(1u << r);
    fs_words words;
    for (int k = 0; k < 4; k++) words.w[k] = (uint32_t)_mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, w[k]));
    fs_walk walk = noise_walk_from(noise, block, words);
    while (noise_next(&walk)) {
        const int32_t at = (int32_t)(walk.token % FS_NOISE_BLOCK);
        if (at >= n) continue;
        const __m512 y = gather_logits(c, plain, first, sum, one, _mm512_set1_epi32(at));
        sieve_find(sieve, _mm512_cvtss_f32(_mm512_maskz_compress_ps(one, y)), from + at, first + r,
                   (int32_t)walk.prefix);
    }
}

/* The marks of a noise block that is complete, n tokens from `from` on, for the rows of a panel. sum: of its first token. */
FS_INLINE void sift_marks(const calling *c, int plain, fs_sieve *sieve, int32_t panel, const float *sum, int32_t from,
                          int32_t n) {
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first;
    const __mmask16 there = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    const __mmask16 rows =
        _mm512_mask_cmp_ps_mask(there, _mm512_loadu_ps(sieve->reach + first), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    __m512i w[4];
    for (int half = 0; half < 2; half++) {
        const int32_t at = first + 8 * half;
        __m512i x[4] = {_mm512_set1_epi64((sieve->first + from) / FS_NOISE_BLOCK),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(sieve->r0 + at))),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(sieve->r1 + at))),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(sieve->r2 + at)))};
        mark_words(x);
        for (int k = 0; k < 4; k++) {
            const __m256i words = _mm512_cvtepi64_epi32(x[k]);
            w[k] = half ? _mm512_inserti64x4(w[k], words, 1) : _mm512_castsi256_si512(words);
        }
    }
    const __m512i low = _mm512_set1_epi32(0xFFFF), seven = _mm512_set1_epi32(127), end = _mm512_set1_epi32(n);
    const __m512i place = _mm512_and_si512(w[1], seven), next = _mm512_and_si512(_mm512_srli_epi32(w[1], 7), seven);
    const __mmask16 one = _mm512_mask_cmpge_epu32_mask(rows, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_1));
    const __mmask16 two = _mm512_mask_cmpge_epu32_mask(one, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_2));
    const __mmask16 more = _mm512_mask_cmpge_epu32_mask(two, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_3)) |
                           _mm512_mask_cmpeq_epi32_mask(two, place, next);
    /* At a threshold itself another call decides: such a row walks too. */
    const __mmask16 open = _mm512_mask_cmpeq_epi32_mask(one, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_1)) |
                           _mm512_mask_cmpeq_epi32_mask(one, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_2));
    const __mmask16 walks = more | open, first_mark = one & (__mmask16)~walks, second = two & (__mmask16)~walks;
    sift_mark(c, plain, sieve, first, sum, from, _mm512_mask_cmplt_epi32_mask(first_mark, place, end), place,
              _mm512_and_si512(w[2], low));
    sift_mark(c, plain, sieve, first, sum, from, _mm512_mask_cmplt_epi32_mask(second, next, end), next,
              _mm512_srli_epi32(w[2], 16));
    for (uint32_t r = walks; r; r &= r - 1) sift_walk(c, plain, sieve, first, __builtin_ctz(r), sum, from, n, w);
}

/* ------------------------------------------------------------------------------------------------- the tile ---- */

/* Steps that are summed from zero. A large sum rounds products of small parts away; so where there are such, as few blocks as there can be,
 * and as even. */
FS_INLINE int64_t block_of(const calling *c) {
    const int64_t steps = steps_of(c->hidden), blocks = (steps + FS_BLOCK - 1) / FS_BLOCK;
    return !as_they_lie(c) ? (steps + blocks - 1) / blocks : steps;
}

/* Sums of `many` tokens, whose tiles have n, and of `panels` panels from p on become logits. place: of the first in the block, which has `all`. */
FS_INLINE void end_group(const calling *c, int plain, int32_t p, int32_t panels, const char *w, int32_t many, int32_t n,
                         const ending *end, int32_t place, int32_t all) {
    fs_sieve *sieve = end->sieve;
    const int32_t in_block = place % FS_NOISE_BLOCK, done = in_block + many;
    for (int32_t j = 0; j < panels; j++)
        for (int32_t t = 0; t < many; t += FS_TILE)
            if (sieve)
                sift_tile(c, plain, sieve, p + j, sums_at(c, sieve, p, place) + t * FS_SUMS + j * FS_TILE,
                          c->lift + in_block + t, place + t, n);
            else store_tile(c, plain, p + j, j, w + t * c->stride, t, n, end->out + place + t, end->out_ld);
    if (!sieve || (done < FS_NOISE_BLOCK && place + many < all)) return;
    for (int32_t j = 0; j < panels; j++)
        sift_marks(c, plain, sieve, p + j, sums_at(c, sieve, p, place - in_block) + j * FS_TILE, place - in_block,
                   done);
}

/* `tiles` tiles of n tokens from `place` on, of `all`: token t of tile i is row i + t * tiles of w. then: the next group, or w. */
FS_INLINE void tile_group(const calling *c, const char *w, const char *then, int32_t tiles, int32_t n,
                          const ending *end, int32_t place, int32_t all) {
    const int32_t panels = c->packing.panels, in_block = end->sieve ? place % FS_NOISE_BLOCK : 0;
    meeting m = {
        .stride = tiles * c->stride, .dim = c->hidden->dim, .block = block_of(c), .n = n, .packing = c->packing};
    m.sum_stride = tiles * FS_SUMS * 4;
    m.spacing = tiles;
    for (int32_t p = 0; p < panels; p += m.panels) {
        m.panels = panels - p < FS_PANELS ? panels - p : FS_PANELS;
        for (int32_t i = 0; i < tiles; i++) {
            const int asks = then != w && p + m.panels == panels;
            m.w = w + i * c->stride;
            m.whole = asks && asks_whole(c->s, &m) ? then + i * c->stride : NULL;
            /* The last tile's first lines start the pages of all tiles. */
            m.then = asks && !asks_whole(c->s, &m) && i == tiles - 1 ? then : m.w;
            m.h = c->hidden->packed + p * c->packing.panel;
            m.sum = sums_at(c, end->sieve, p, place) + i * FS_SUMS;
            m.lift = c->lift + in_block + i;
            c->s->dot(&m);
        }
        if (as_they_lie(c)) end_group(c, 1, p, m.panels, w, tiles * n, n, end, place, all);
        else end_group(c, 0, p, m.panels, w, tiles * n, n, end, place, all);
    }
}

/* Tiles side by side in one page, at most `most`: rows of the tile are that far apart. See docs/findings/one-stream-per-page.md. */
FS_INLINE int32_t spacing_of(int64_t stride, int32_t most) {
    int32_t tiles = 1;
    while (tiles * stride < FS_PAGE && tiles < most) tiles *= 2;
    return tiles;
}

FS_INLINE void tile_all(const scheme *s, const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens,
                        const ending *end) {
    _Alignas(64) float sum[FS_TOKENS * FS_SUMS], lift[FS_TOKENS] = {0};
    const calling c = {s, hidden, packing_of(s, hidden), stride, sum, lift};
    const int of_w = parts_in(s->unit, s->weights);
    const int32_t most = spacing_of(stride, FS_TOKENS / FS_TILE);
    if (tokens >= FS_TILE) configure(FS_TILE, of_w, c.packing.columns);
    for (int32_t t = 0, many; t < tokens; t += many) {
        const int32_t left = tokens - t, n = left < FS_TILE ? left : FS_TILE, tiles = left < most * FS_TILE ? 1 : most;
        many = tiles * n;
        const char *at = w + t * stride, *then = left - many < FS_TILE ? at : at + many * stride;
        if (n < FS_TILE) configure(n, of_w, c.packing.columns);
        tile_group(&c, at, then, tiles, n, end, t, tokens);
    }
    _tile_release();
}

/* The functions of a kernel, of scheme_<type>. */
#define FS_DEFINE_CALLS(type, isa)                                                                                     \
    static size_t packed_bytes_##type##_##isa(const fs_hidden *hidden) {                                               \
        return packing_bytes(&scheme_##type##_##isa, hidden);                                                          \
    }                                                                                                                  \
    static void pack_##type##_##isa(const fs_hidden *hidden, int64_t from, int64_t to) {                               \
        pack_all(&scheme_##type##_##isa, hidden, from, to);                                                            \
    }                                                                                                                  \
    static void tile_##type##_##isa(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens,            \
                                    float *out, int64_t out_ld) {                                                      \
        const ending end = {NULL, out, out_ld};                                                                        \
        tile_all(&scheme_##type##_##isa, hidden, (const char *)w, stride, tokens, &end);                               \
    }                                                                                                                  \
    static void sift_##type##_##isa(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens,            \
                                    fs_sieve *sieve) {                                                                 \
        const ending end = {sieve, NULL, 0};                                                                           \
        tile_all(&scheme_##type##_##isa, hidden, (const char *)w, stride, tokens, &end);                               \
    }                                                                                                                  \
    const fs_kernel fs_kernel_##type##__##isa = {packed_bytes_##type##_##isa, pack_##type##_##isa,                     \
                                                 tile_##type##_##isa, sift_##type##_##isa}

#endif
