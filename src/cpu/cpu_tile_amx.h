/* cpu_tile_amx.h - the kernel that multiplies W as it lies, straight from memory, by rows of H packed once per call. One matrix instruction
 * takes a tile of 16 tokens x 32 elements of W, 32 elements x 16 rows of H with pairs of elements side by side, and adds the 16 x 16
 * products to float sums.
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
 * The order of additions for every (row, token), whatever the shape: for each 32 elements, and each part of H, the products of even
 * elements and those of odd ones are summed in ascending order, each with one rounding, then the two sums, then that is added to the
 * logit. The instruction rounds to nearest even and raises no exception.
 *
 * A file that includes this defines FS_WEIGHTS, the dtype of W, and FS_MULTIPLY(sums, tokens, rows), its instruction over three tiles. Hidden
 * states of another dtype are sums of several parts of it. */
#include "cpu_amx.h"

#define FS_TOKENS 128 /* at most, whose sums wait to be transposed: 8 tiles */

/* ------------------------------------------------------------------------------------------------------ pack ---- */

FS_INLINE int parts_of(const fs_hidden *hidden) {
    return hidden->dtype == FS_WEIGHTS ? 1 : split_parts(hidden->dtype);
}

static size_t panel_bytes(const fs_hidden *hidden) {
    return (size_t)steps_of(hidden) * (size_t)parts_of(hidden) * FS_TILE_BYTES;
}

static size_t packed_bytes(const fs_hidden *hidden) {
    return (size_t)panels_of(hidden) * panel_bytes(hidden);
}

/* What is of W's dtype is its own only part: a pair of elements is a word, and a tile is a block of 16 x 16 of them transposed. */
static void pack_whole(const fs_hidden *hidden, int64_t from, int64_t to) {
    for (int32_t p = 0; p < panels_of(hidden); p++)
        for (int64_t d = from; d < to && d < hidden->dim; d += FS_STEP) {
            const int64_t left = hidden->dim - d;
            const __mmask32 there = left < FS_STEP ? (1u << left) - 1 : ~0u;
            __m512 x[FS_TILE];
            for (int32_t r = 0; r < FS_TILE; r++) {
                const int32_t row = p * FS_TILE + r;
                x[r] = _mm512_setzero_ps();
                if (row < hidden->rows)
                    x[r] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, hidden->row[row] + 2 * d));
            }
            transpose(x);
            char *tile = hidden->packed + (size_t)p * panel_bytes(hidden) + d / FS_STEP * FS_TILE_BYTES;
            for (int i = 0; i < FS_TILE; i++) _mm512_storeu_ps(tile + 64 * i, x[i]);
        }
}

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* Tiles: 0 .. 3 the sums, 4 tokens, 5 and 6 rows. */

/* Of several panels H does not stay in L1 until the next tokens: by tileloaddt1 it leaves L1 to W (64 rows, one core of Emerald Rapids,
 * 2026-11-15: 92 -> 88 ns a step from memory, 59 -> 53 from L2). One panel does, and is slower so. */
#define FS_LOAD_H(tile, at)                                                                                            \
    do {                                                                                                               \
        if (N > 1) _tile_stream_loadd(tile, at, 64);                                                                   \
        else _tile_loadd(tile, at, 64);                                                                                \
    } while (0)

/* From three panels on a step takes so long, and so many loads, that W's next steps are out of a core's sight: the whole next tile is asked
 * for, a line of each row a step. With fewer the prefetcher does it, but for the first lines (cpu_amx.h). See
 * docs/findings/amx-at-64-rows.md. */
#define FS_ASK_WHOLE(N) ((N) > 2)

/* The share of panel i of N in asking for 16 lines at `ask`, `stride` bytes apart. */
FS_INLINE void ask_some(int N, int i, const char *ask, int64_t stride) {
    const int from = FS_TILE * i / N, to = FS_TILE * (i + 1) / N;
    for (int r = from; FS_ASK_WHOLE(N) && r < to; r++) _mm_prefetch(ask + r * stride, _MM_HINT_T1);
}

/* One step: 16 tokens at w times N panels, `panel` bytes apart. */
FS_INLINE void dot_step(int N, int parts, const char *w, int64_t stride, const char *ask, const char *h, size_t panel) {
    _tile_loadd(4, w, stride);
    for (int i = 0; i < parts; i++, h += FS_TILE_BYTES) {
        if (i == 0) ask_some(N, 0, ask, stride);
        FS_LOAD_H(5, h);
        FS_MULTIPLY(0, 4, 5);
        if (N > 1 && i == 0) ask_some(N, 1, ask, stride);
        if (N > 1) FS_LOAD_H(6, h + panel);
        if (N > 1) FS_MULTIPLY(1, 4, 6);
        if (N > 2 && i == 0) ask_some(N, 2, ask, stride);
        if (N > 2) FS_LOAD_H(5, h + 2 * panel);
        if (N > 2) FS_MULTIPLY(2, 4, 5);
        if (N > 3 && i == 0) ask_some(N, 3, ask, stride);
        if (N > 3) FS_LOAD_H(6, h + 3 * panel);
        if (N > 3) FS_MULTIPLY(3, 4, 6);
    }
}

/* sum: for each panel [FS_TOKENS, 16 rows], the tile's tokens `sum_stride` bytes apart. then: a later tile to ask for, or w. tail: the
 * elements of an unfinished step, zero padded, or NULL. */
FS_INLINE void dot_tile(int N, const fs_hidden *hidden, const char *w, int64_t stride, const char *then,
                        const char *tail, const char *h, float *sum, int64_t sum_stride) {
    const int parts = parts_of(hidden);
    const int64_t steps = hidden->dim / FS_STEP;
    const size_t panel = panel_bytes(hidden);
    _tile_zero(0);
    if (N > 1) _tile_zero(1);
    if (N > 2) _tile_zero(2);
    if (N > 3) _tile_zero(3);
    asking ask = ask_for(w, then, stride, steps);
    for (int64_t k = 0; k < steps; k++, h += parts * FS_TILE_BYTES) {
        if (!FS_ASK_WHOLE(N)) ask_step(&ask, k);
        dot_step(N, parts, w + k * FS_STEP * 2, stride, then + k * FS_STEP * 2, h, panel);
    }
    if (tail) dot_step(N, parts, tail, 64, tail, h, panel);
    _tile_stored(0, sum, sum_stride);
    if (N > 1) _tile_stored(1, sum + FS_TOKENS * FS_TILE, sum_stride);
    if (N > 2) _tile_stored(2, sum + 2 * FS_TOKENS * FS_TILE, sum_stride);
    if (N > 3) _tile_stored(3, sum + 3 * FS_TOKENS * FS_TILE, sum_stride);
}

/* ----------------------------------------------------------------------------------------------------- store ---- */

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
        if (hidden->dtype == FS_WEIGHTS) continue;
        for (uint32_t nan = _mm512_mask_cmp_ps_mask(there, x[r], x[r], _CMP_UNORD_Q); nan; nan &= nan - 1) {
            int32_t t = __builtin_ctz(nan);
            to[t] = repair_nan(hidden, first + r, w + t * stride, FS_WEIGHTS);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- the tile ---- */

/* One tile: n tokens, `stride` bytes apart, for N panels from panel p on; then: a later one to ask for, or w. */
static void tile_panels(const fs_hidden *hidden, const char *w, int64_t stride, const char *then, int32_t n, int32_t p,
                        int32_t N, float *sum, int64_t sum_stride) {
    const int64_t left = hidden->dim % FS_STEP;
    const char *h = hidden->packed + (size_t)p * panel_bytes(hidden);
    _Alignas(64) char copy[FS_TILE_BYTES];
    if (left) {
        copy_tail(w, stride, n, hidden->dim, 2, copy);
        FS_WRITTEN(copy);
    }
    const char *tail = left ? copy : NULL;
    if (N == 1) dot_tile(1, hidden, w, stride, then, tail, h, sum, sum_stride);
    else if (N == 2) dot_tile(2, hidden, w, stride, then, tail, h, sum, sum_stride);
    else if (N == 3) dot_tile(3, hidden, w, stride, then, tail, h, sum, sum_stride);
    else dot_tile(4, hidden, w, stride, then, tail, h, sum, sum_stride);
}

/* `tiles` tiles of n tokens: token t of tile i is row i + t * tiles of w. then: the next group, or w. */
static void tile_group(const fs_hidden *hidden, const char *w, int64_t stride, const char *then, int32_t tiles,
                       int32_t n, float *out, int64_t out_ld) {
    const int32_t panels = panels_of(hidden);
    _Alignas(64) float sum[FS_PANELS * FS_TOKENS * FS_TILE];
    for (int32_t p = 0, N; p < panels; p += N) {
        N = panels - p < FS_PANELS ? panels - p : FS_PANELS;
        for (int32_t i = 0; i < tiles; i++) {
            /* The last tile's first lines start the pages of all tiles. */
            const int asks = then != w && p + N == panels && (FS_ASK_WHOLE(N) || i == tiles - 1);
            const char *at = w + i * stride, *ask = !asks ? at : FS_ASK_WHOLE(N) ? then + i * stride : then;
            tile_panels(hidden, at, tiles * stride, ask, n, p, N, sum + i * FS_TILE, tiles * 64);
        }
        for (int32_t j = 0; j < N; j++)
            for (int32_t t = 0; t < tiles * n; t += FS_TILE)
                store_tile(hidden, (p + j) * FS_TILE, w + t * stride, stride, tiles > 1 ? FS_TILE : n,
                           sum + (j * FS_TOKENS + t) * FS_TILE, out + t, out_ld);
    }
}

static void tile(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out, int64_t out_ld) {
    const char *data = (const char *)w;
    const int32_t tiles = spacing_of(stride, FS_TOKENS / FS_TILE);
    int32_t t = 0;
    if (tokens >= FS_TILE) configure(FS_TILE, 1);
    while (t < tokens) {
        const int32_t left = tokens - t, n = left < FS_TILE ? left : FS_TILE;
        const int32_t group = left < tiles * FS_TILE ? 1 : tiles;
        const char *at = data + t * stride, *then = left - group * n < FS_TILE ? at : at + group * n * stride;
        if (n < FS_TILE) configure(n, 1);
        tile_group(hidden, at, stride, then, group, n, out + t, out_ld);
        t += group * n;
    }
    _tile_release();
}
