/* AMX: W as it lies, straight from memory, times rows of H packed once per call. One matrix instruction takes a tile of
 * 16 tokens x 32 elements of W, 32 elements x 16 rows of H with pairs of elements side by side, and adds the 16 x 16
 * products to float sums.
 *
 *   w   16 rows of W, --- a --+-- c0  c1  c2  c3      load    a: 16 tokens x 32 elements; b: 32 elements x 16 rows
 *       streamed once         |    |   |   |   |      dot     one matrix instruction, 16 cycles, for every panel
 *                             +-- b0  b1  b2  b3      store   sums transposed: logits of a row lie side by side
 *   h   up to 4 panels of 16 rows in L2
 *
 * Cost: W comes from memory at 6 bytes a cycle and core on Emerald Rapids, 170 cycles for each tile of 1 KB, in which
 * the unit could serve 160 rows: below that memory is the roof. So all rows (up to 64) are served while W streams by
 * once: two passes of 32 rows over the same tile leave memory idle during the second. W's rows are spaced so that each
 * page of 4 KB holds one of the 16 streams (docs/notes/cpu-memory.md).
 *
 * The order of additions for every (row, token), whatever the shape: for each 32 elements, and each component of H, the
 * products of even elements and those of odd ones are summed in ascending order, each with one rounding, then the two
 * sums, then that is added to the logit; unless both are multiplied as they lie in segments (segment_of), each from
 * zero and added to those before. The instruction rounds to nearest even and raises no exception.
 *
 * bf16 weights are multiplied by tdpbf16ps, hidden states being sums of bf16 components (cpu_split.h), 1 to 3 of them.
 * It counts denormals as zero, in and out. f16 weights are multiplied by tdpfp16ps, which Granite Rapids has (AMX-FP16)
 * and which is as fast: f16 hidden states as they lie, others times a power of two, bf16 as one f16 and f32 as two
 * (cpu_amx.h, upscale_to). A product of two f16, subnormal ones too, is exact in float and no multiple of 2^-48 is
 * denormal there: nothing is flushed, and only additions round. */
#include "cpu_amx_tile.h"

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* Tiles: 0 .. 3 the sums, 4 tokens, 5 and 6 rows. */

/* The share of panel i of N in fetching the lines of a step, of m->fetched rows. */
FS_INLINE void fetch_some(int N, int i, const matmul *m, int64_t k) {
    const char *at = m->whole + k * FS_STEP * 2;
    const int32_t from = m->fetched * i / N, to = m->fetched * (i + 1) / N;
    for (int32_t r = from; N >= FS_WHOLE_PANELS && r < to; r++) _mm_prefetch(at + r * m->stride, _MM_HINT_T1);
}

/* One step: 16 tokens at w times N panels. */
FS_INLINE void dot_step(int32_t unit, int N, const matmul *m, const char *w, int64_t stride, int64_t k, const char *h) {
    const packing *p = &m->packing;
    const int64_t columns = p->columns * 4; /* bytes */
    _tile_loadd(4, w, stride);
    for (int i = 0; i < p->components; i++, h += p->tile) {
        if (i == 0) fetch_some(N, 0, m, k);
        _tile_loadd(5, h, columns);
        FS_MULTIPLY(unit, 0, 4, 5);
        if (N > 1 && i == 0) fetch_some(N, 1, m, k);
        if (N > 1) _tile_loadd(6, h + p->panel, columns);
        if (N > 1) FS_MULTIPLY(unit, 1, 4, 6);
        if (N > 2 && i == 0) fetch_some(N, 2, m, k);
        if (N > 2) _tile_loadd(5, h + 2 * p->panel, columns);
        if (N > 2) FS_MULTIPLY(unit, 2, 4, 5);
        if (N > 3 && i == 0) fetch_some(N, 3, m, k);
        if (N > 3) _tile_loadd(6, h + 3 * p->panel, columns);
        if (N > 3) FS_MULTIPLY(unit, 3, 4, 6);
    }
}

FS_INLINE void dot_tile(int32_t unit, int N, const matmul *m) {
    const int64_t steps = m->dim / FS_STEP;
    const char *h = m->h;
    fetching fetch = fetch_from(m->w, m->then, m->stride, steps);
    int64_t k = 0;
    do {
        const int64_t from = k, to = steps - k < m->segment ? steps : k + m->segment;
        zero_sums(N);
        while (k < to) {
            const int64_t stop = filter_between(m->before, k, to);
            for (; k < stop; k++, h += m->packing.components * m->packing.tile) {
                fetch_step(&fetch, k);
                dot_step(unit, N, m, m->w + k * FS_STEP * 2, m->stride, k, h);
            }
        }
        if (k == steps && m->dim % FS_STEP) {
            _Alignas(64) char tail[FS_TILE_BYTES];
            copy_tail(m->w, m->stride, m->n, m->dim, 2, tail);
            FS_WRITTEN(tail);
            dot_step(unit, N, m, tail, 64, k, h);
        }
        store_sums(N, m, from == 0);
    } while (k < steps);
}

/* One function for each shape: what gcc 12 makes of several in one frame is slower
 * (docs/notes/vector-kernels.md). */
#define FS_DEFINE_DOT(type, of_w, N)                                                                                   \
    static __attribute__((noinline)) void dot_##type##_##N(const matmul *m) {                                          \
        dot_tile(of_w, N, m);                                                                                          \
    }
#define FS_DEFINE_KERNEL(type, of_w, isa)                                                                              \
    FS_DEFINE_DOT(type, of_w, 1)                                                                                       \
    FS_DEFINE_DOT(type, of_w, 2)                                                                                       \
    FS_DEFINE_DOT(type, of_w, 3)                                                                                       \
    FS_DEFINE_DOT(type, of_w, 4)                                                                                       \
    static void dot_##type(const matmul *m) {                                                                          \
        (m->panels == 1   ? dot_##type##_1                                                                             \
         : m->panels == 2 ? dot_##type##_2                                                                             \
         : m->panels == 3 ? dot_##type##_3                                                                             \
                          : dot_##type##_4)(m);                                                                        \
    }                                                                                                                  \
    static const microkernel microkernel_##type##_##isa = {of_w, of_w, 1, 1.0f, dot_##type};                           \
    FS_DEFINE_CALLS(type, isa)

FS_DEFINE_KERNEL(bf16, FS_BF16, amx);
FS_DEFINE_KERNEL(f16, FS_F16, amxfp16);
