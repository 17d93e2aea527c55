/* AVX-512 BF16: vdpbf16ps multiplies 32 pairs of bf16 and adds them to 16 lanes, lane i those of elements 2 i + 1 and 2 i of the step.
 * W is read as it lies; H is packed as bf16 parts (cpu_split.h). The instruction rounds to nearest even, flushes denormals and
 * raises no exception, whatever MXCSR says.
 *
 * On Emerald Rapids it starts only every second cycle: 85 GFLOP/s a core where float multiply-adds reach 163 (2026-11-15), so this row
 * is faster than avx512 only while it waits for memory. Zen 4 and later start one a cycle. */
#include <immintrin.h>

#define FS_ISA avx512bf16
#define FS_TILE_TOKENS 8 /* as avx512 */
#define FS_TILE_ROWS 3
#define FS_ONLY_PAIRS
#include "cpu_tile.h"
#include "cpu_split.h"

#define FS_PAIRS 32 /* elements of a step */

FS_INLINE lanes add_pairs(lanes sum, lanes x, lanes y) {
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
}

static int64_t packed_ld(const fs_hidden *hidden) {
    return (hidden->dim + FS_PAIRS - 1) / FS_PAIRS * split_parts(hidden->dtype) * FS_LINE;
}

static size_t packed_pairs_bytes(const fs_hidden *hidden) {
    return (size_t)hidden->rows * (size_t)packed_ld(hidden);
}

/* [rows, steps, parts, 32] bf16, zeros behind dim. */
static void pack_pairs(const fs_hidden *hidden, int64_t from, int64_t to) {
    const int parts = split_parts(hidden->dtype);
    const int64_t end = (hidden->dim + FS_PAIRS - 1) / FS_PAIRS * FS_PAIRS;
    for (int32_t r = 0; r < hidden->rows; r++) {
        uint16_t *packed = (uint16_t *)(void *)(hidden->packed + r * packed_ld(hidden));
        for (int64_t d = from; d < to && d < end; d++) {
            uint16_t part[FS_PARTS_MOST];
            split_float(d < hidden->dim ? split_element(hidden->row[r], hidden->dtype, d) : 0.0f, parts, part);
            for (int i = 0; i < parts; i++) packed[(d / FS_PAIRS * parts + i) * FS_PAIRS + d % FS_PAIRS] = part[i];
        }
    }
}

static void repair_all(const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens, float *out,
                       int64_t out_ld) {
    for (int32_t r = 0; r < hidden->rows; r++)
        for (int32_t t = 0; t < tokens; t++)
            if (out[r * out_ld + t] != out[r * out_ld + t]) out[r * out_ld + t] = repair_nan(hidden, r, w + t * stride);
}

static void tile_pairs(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out,
                       int64_t out_ld) {
    const scheme one = {load_f32, add_pairs, FS_PAIRS, 2, 1}, two = {load_f32, add_pairs, FS_PAIRS, 2, 2},
                 three = {load_f32, add_pairs, FS_PAIRS, 2, 3};
    const char *data = (const char *)w;
    if (hidden->dtype == FS_BF16) tile_all(one, hidden, data, stride, tokens, out, out_ld);
    else if (hidden->dtype == FS_F16) tile_all(two, hidden, data, stride, tokens, out, out_ld);
    else tile_all(three, hidden, data, stride, tokens, out, out_ld);
    if (hidden->dtype != FS_BF16) repair_all(hidden, data, stride, tokens, out, out_ld);
}

const fs_kernel fs_kernel_bf16__avx512bf16 = {packed_pairs_bytes, pack_pairs, tile_pairs};
