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
#define FS_PANELS 4   /* of rows at a time */
#define FS_TOKENS 128 /* at most, whose sums wait to be transposed: 8 tiles */

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

/* [panels, steps, parts, 16 pairs, 16 rows, 2] bf16; zeros behind dim and behind the last row. */
static void pack(const fs_hidden *hidden, int64_t from, int64_t to) {
    const int parts = split_parts(hidden->dtype);
    const int64_t end = steps_of(hidden) * FS_STEP, last = to < end ? to : end;
    for (int32_t p = 0; p < panels_of(hidden); p++) {
        uint16_t *panel = (uint16_t *)(void *)(hidden->packed + (size_t)p * panel_bytes(hidden));
        const int64_t tile = FS_TILE_BYTES / 2, first = from / FS_STEP * parts * tile;
        if (from < last) memset(panel + first, 0, (size_t)((last - from) / FS_STEP * parts) * FS_TILE_BYTES);
        for (int32_t r = 0; r < FS_TILE && p * FS_TILE + r < hidden->rows; r++)
            for (int64_t d = from; d < last && d < hidden->dim; d++) {
                uint16_t part[FS_PARTS_MOST];
                split_float(split_element(hidden->row[p * FS_TILE + r], hidden->dtype, d), parts, part);
                uint16_t *at = panel + d / FS_STEP * parts * tile + d % FS_STEP / 2 * 32 + r * 2 + d % 2;
                for (int i = 0; i < parts; i++) at[i * tile] = part[i];
            }
    }
}

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* What this points to is in memory now. gcc 12 does not know that ldtilecfg and tileloadd read it, and may drop or delay stores. */
#define FS_WRITTEN(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

/* What ldtilecfg reads. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "ldtilecfg reads 64 bytes");

/* Tiles: 0 .. 3 the sums, 4 and 5 rows, 6 tokens, of which there are n. */
static void configure(int32_t n) {
    tile_config config = {.palette = 1};
    for (int i = 0; i < 7; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = (uint8_t)(i == 4 || i == 5 ? FS_TILE : n);
    }
    FS_WRITTEN(&config);
    _tile_loadconfig(&config);
}

/* One step: 16 tokens at w times N panels, `panel` bytes apart. */
FS_INLINE void dot_step(int N, int parts, const char *w, int64_t stride, const char *h, size_t panel) {
    _tile_loadd(6, w, stride);
    for (int i = 0; i < parts; i++, h += FS_TILE_BYTES) {
        _tile_loadd(4, h, 64);
        _tile_dpbf16ps(0, 6, 4);
        if (N > 1) _tile_loadd(5, h + panel, 64);
        if (N > 1) _tile_dpbf16ps(1, 6, 5);
        if (N > 2) _tile_loadd(4, h + 2 * panel, 64);
        if (N > 2) _tile_dpbf16ps(2, 6, 4);
        if (N > 3) _tile_loadd(5, h + 3 * panel, 64);
        if (N > 3) _tile_dpbf16ps(3, 6, 5);
    }
}

/* sum: for each panel [FS_TOKENS, 16 rows], the tile's tokens `sum_stride` bytes apart. tail: the elements of an unfinished step, zero
 * padded, or NULL. */
FS_INLINE void dot_tile(int N, const fs_hidden *hidden, const char *w, int64_t stride, const char *tail, const char *h,
                        float *sum, int64_t sum_stride) {
    const int parts = split_parts(hidden->dtype);
    const int64_t steps = hidden->dim / FS_STEP;
    const size_t panel = panel_bytes(hidden);
    _tile_zero(0);
    if (N > 1) _tile_zero(1);
    if (N > 2) _tile_zero(2);
    if (N > 3) _tile_zero(3);
    for (int64_t k = 0; k < steps; k++, h += parts * FS_TILE_BYTES)
        dot_step(N, parts, w + k * FS_STEP * 2, stride, h, panel);
    if (tail) dot_step(N, parts, tail, 64, h, panel);
    _tile_stored(0, sum, sum_stride);
    if (N > 1) _tile_stored(1, sum + FS_TOKENS * FS_TILE, sum_stride);
    if (N > 2) _tile_stored(2, sum + 2 * FS_TOKENS * FS_TILE, sum_stride);
    if (N > 3) _tile_stored(3, sum + 3 * FS_TOKENS * FS_TILE, sum_stride);
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
static void store_tile(const fs_hidden *hidden, int32_t first, const char *w, int64_t stride, int32_t tokens,
                       const float *sum, float *out, int64_t out_ld) {
    const int32_t rows = hidden->rows - first < FS_TILE ? hidden->rows - first : FS_TILE;
    const __mmask16 there = (__mmask16)((1u << tokens) - 1);
    __m512 x[16];
    for (int i = 0; i < 16; i++) x[i] = _mm512_loadu_ps(sum + 16 * i);
    transpose(x);
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (first + r) * out_ld;
        _mm512_mask_storeu_ps(to, there, x[r]);
        if (hidden->dtype == FS_BF16) continue;
        for (uint32_t nan = _mm512_mask_cmp_ps_mask(there, x[r], x[r], _CMP_UNORD_Q); nan; nan &= nan - 1) {
            int32_t t = __builtin_ctz(nan);
            to[t] = repair_nan(hidden, first + r, w + t * stride);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- the tile ---- */

/* One tile: n tokens, `stride` bytes apart, for N panels from panel p on. */
static void tile_panels(const fs_hidden *hidden, const char *w, int64_t stride, int32_t n, int32_t p, int32_t N,
                        float *sum, int64_t sum_stride) {
    const int64_t left = hidden->dim % FS_STEP;
    const char *h = hidden->packed + (size_t)p * panel_bytes(hidden);
    _Alignas(64) char copy[FS_TILE_BYTES];
    if (left) {
        /* The tail goes through a zeroed copy: W must not be read past its end. */
        memset(copy, 0, sizeof copy);
        for (int32_t t = 0; t < n; t++)
            memcpy(copy + t * 64, w + t * stride + (hidden->dim - left) * 2, (size_t)left * 2);
        FS_WRITTEN(copy);
    }
    const char *tail = left ? copy : NULL;
    if (N == 1) dot_tile(1, hidden, w, stride, tail, h, sum, sum_stride);
    else if (N == 2) dot_tile(2, hidden, w, stride, tail, h, sum, sum_stride);
    else if (N == 3) dot_tile(3, hidden, w, stride, tail, h, sum, sum_stride);
    else dot_tile(4, hidden, w, stride, tail, h, sum, sum_stride);
}

/* `tiles` tiles of n tokens: token t of tile i is row i + t * tiles of w. */
static void tile_group(const fs_hidden *hidden, const char *w, int64_t stride, int32_t tiles, int32_t n, float *out,
                       int64_t out_ld) {
    const int32_t panels = panels_of(hidden);
    _Alignas(64) float sum[FS_PANELS * FS_TOKENS * FS_TILE];
    for (int32_t p = 0, N; p < panels; p += N) {
        N = panels - p < FS_PANELS ? panels - p : FS_PANELS;
        for (int32_t i = 0; i < tiles; i++)
            tile_panels(hidden, w + i * stride, tiles * stride, n, p, N, sum + i * FS_TILE, tiles * 64);
        for (int32_t j = 0; j < N; j++)
            for (int32_t t = 0; t < tiles * n; t += FS_TILE)
                store_tile(hidden, (p + j) * FS_TILE, w + t * stride, stride, tiles > 1 ? FS_TILE : n,
                           sum + (j * FS_TOKENS + t) * FS_TILE, out + t, out_ld);
    }
}

/* Tiles side by side in one page: rows of the tile are that far apart. */
static int32_t spacing_of(int64_t stride) {
    int32_t tiles = 1;
    while (tiles * stride < 4096 && tiles * FS_TILE < FS_TOKENS) tiles *= 2;
    return tiles;
}

static void tile(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out, int64_t out_ld) {
    const char *data = (const char *)w;
    const int32_t tiles = spacing_of(stride);
    int32_t t = 0;
    if (tokens >= FS_TILE) configure(FS_TILE);
    for (; tokens - t >= tiles * FS_TILE; t += tiles * FS_TILE)
        tile_group(hidden, data + t * stride, stride, tiles, FS_TILE, out + t, out_ld);
    for (; tokens - t >= FS_TILE; t += FS_TILE)
        tile_group(hidden, data + t * stride, stride, 1, FS_TILE, out + t, out_ld);
    if (t < tokens) {
        configure(tokens - t);
        tile_group(hidden, data + t * stride, stride, 1, tokens - t, out + t, out_ld);
    }
    _tile_release();
}

const fs_kernel fs_kernel_bf16__amx = {packed_bytes, pack, tile};
