/* cpu_amx.h - what the kernels of AMX share: tiles and their configuration, the packing of H, the transposition of sums. */
#ifndef FS_CPU_AMX_H
#define FS_CPU_AMX_H

#include <immintrin.h>

#include "cpu_split.h"

#define FS_INLINE static inline __attribute__((always_inline))
#define FS_TILE 16 /* tokens, and columns of H, of a tile */
#define FS_STEP 32 /* elements */
#define FS_TILE_BYTES 1024
#define FS_PANELS 4 /* of rows, and sums, at a time */

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
FS_INLINE void configure(int32_t n, int of_w) {
    tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = (uint8_t)(i < FS_PANELS + of_w ? n : FS_TILE);
    }
    FS_WRITTEN(&config);
    _tile_loadconfig(&config);
}

FS_INLINE int64_t steps_of(const fs_hidden *hidden) {
    return (hidden->dim + FS_STEP - 1) / FS_STEP;
}

FS_INLINE int32_t panels_of(const fs_hidden *hidden) {
    return (hidden->rows + FS_TILE - 1) / FS_TILE;
}

/* The elements of an unfinished step of n tokens, zero padded: W must not be read past its end. to [n, 32] */
FS_INLINE void copy_tail(const char *w, int64_t stride, int32_t n, int64_t dim, int64_t bytes, char *to) {
    const int64_t done = dim / FS_STEP * FS_STEP;
    for (int32_t t = 0; t < n; t++, to += FS_STEP * bytes) {
        memset(to, 0, (size_t)(FS_STEP * bytes));
        memcpy(to, w + t * stride + done * bytes, (size_t)((dim - done) * bytes));
    }
}

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

/* Tiles side by side in one page, at most `most`: rows of the tile are that far apart. See docs/findings/one-stream-per-page.md. */
FS_INLINE int32_t spacing_of(int64_t stride, int32_t most) {
    int32_t tiles = 1;
    while (tiles * stride < 4096 && tiles < most) tiles *= 2;
    return tiles;
}

#endif
