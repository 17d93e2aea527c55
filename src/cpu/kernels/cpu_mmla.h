/* cpu_mmla.h - the kernel of bfmmla (Armv8.6), which multiplies 2 tokens x 4 elements of W by 4 elements x 2 rows of H
 * and adds the products to 2 x 2 float sums, twice the products of bfdot: a file cpu_tile_<isa>.c sets FS_ISA and
 * FS_TOKENS and includes this. With SVE it has run under emulation only.
 *
 *   w   2 rows of W, 8 elements each, -- zip -- x --+-- 2 x 2   load    a line of two rows each, zipped to 8 operands
 *       as they lie, any address                    |           dot     bfmmla, one order for every shape
 *   h   2 rows of H, 4 elements each, packed ------ y           store   sums unzipped: a row's logits side by side
 *
 * Cost, with the figures of LLVM's scheduling model of Neoverse V1: four bfmmla a cycle, 5 cycles each and 3 from sum
 * to sum; zips use the same four pipes. Two loads a cycle are enough for either shape. Measured with NEON, one core,
 * V = 151,936, D = 1,024, 1 / 16 / 64 rows: 14.2 / 55 / 148 ms, where widened weights take 24.2 / 243 / 914
 * (2026-11-17).
 * - up to 2 rows: 16 tokens, 8 sums and 8 operands of H in registers. A line of two tokens is 8 loads, 8 zips and 8
 *   bfmmla, 4 cycles or 32 bytes of W a cycle, more than memory brings. A line is read at once: 16 rows a power of two
 *   apart share sets of L1.
 * - more rows: 8 tokens x 8 rows, 16 sums; 4 elements are 8 loads for 16 bfmmla. The zipped tokens lie in a panel in
 *   L1, 4 KB for 8 of them, made once for all rows.
 *
 * A last row without a partner is packed beside zeros: half of what is computed for it is thrown away. Rows of W are
 * taken as they follow each other: whether one stream per page is better (docs/notes/cpu-memory.md) is not known
 * for these cores.
 *
 * The order of additions for every (row, token), whatever the shape: 256 elements are a segment (128 for f16 hidden
 * states, 64 for f32), the elements behind the last whole 32 one of their own. A segment starts from 0; every 4
 * elements w0 .. w3, and each component of H (cpu_split.h) in turn, make
 *   s = s + (w0 h0 + w1 h1), then s = s + (w2 h2 + w3 h3).
 * Segments are added to the logit in ascending order, to nearest even. Within one, products are exact; the sum of two
 * and the sum with s are rounded to odd each (towards zero, and then the last bit is set if anything was lost),
 * denormals that come or go are zero, and neither FPCR's rounding nor its exceptions count. That holds while FPCR.EBF
 * is 0, as Linux starts programs.
 *
 * Rounding to odd is off by up to a unit in the last place, twice as far as to nearest, and what is below one unit of s
 * may be lost again and again. Segments bound that: at most 128 additions to s, 1.5e-5 of the sum of magnitudes in the
 * worst case. test_kernels allows 1e-6 of it, about 8 units: what occurs for weights of both signs is 1e-7 for bf16 and
 * 3e-7 for f32 hidden states, and 6e-7 and 9e-7 where all products have one sign (qemu 7.2, D up to 4,096; with
 * segments of 256 for f32 too it was 2e-6). */
#include <arm_neon.h>

#include "cpu_split.h"

#define FS_JOIN_(a, b) a##b
#define FS_JOIN(a, b) FS_JOIN_(a, b)
#define FS_INLINE static inline __attribute__((always_inline))

#define FS_LINE 64 /* bytes of a step of one row of W */
#define FS_STEP 32 /* elements */
#define FS_QUADS 8 /* operands of a step: 4 elements of two rows each */
#define FS_OPERAND 16
#define FS_SEGMENT 8 /* steps of one component; with more components fewer, so that a sum is rounded no more often */
#define FS_FEW_TOKENS 16 /* at once for one pair of rows */
#define FS_BAND 4        /* pairs of rows at most, whose sums with a panel stay in registers */
#define FS_BANDS 8       /* at once, whose sums, 2 KB for 8 tokens, are kept between segments */
_Static_assert(FS_QUADS * 4 == FS_STEP && FS_LINE == 2 * FS_STEP, "bf16 of W");
_Static_assert(FS_PACK % FS_STEP == 0, "threads pack whole steps");
_Static_assert(FS_FEW_TOKENS % FS_TOKENS == 0 && FS_TOKENS % 4 == 0,
               "sums are stored by panels, four tokens at a time");

/* Sums of two tokens and two rows: [token, row]. */
typedef float32x4_t sums;

FS_INLINE bfloat16x8_t load(const char *p) {
    bfloat16x8_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* ------------------------------------------------------------------------------------------------------ pack ---- */

static int64_t steps_of(const fs_hidden *hidden) {
    return (hidden->dim + FS_STEP - 1) / FS_STEP;
}

static int32_t bands_of(const fs_hidden *hidden) {
    const int32_t pairs = (hidden->rows + 1) / 2;
    return (pairs + FS_BAND - 1) / FS_BAND;
}

/* Pairs of rows that are multiplied together, as evenly as they go. */
typedef struct band {
    int32_t first, pairs;
    char *h; /* [steps, quads, components, pairs, 2 rows, 4] bf16: one stream */
} band;

static int64_t pair_bytes(const fs_hidden *hidden) {
    return steps_of(hidden) * FS_QUADS * split_components(hidden->dtype) * FS_OPERAND;
}

static band band_at(const fs_hidden *hidden, int32_t g) {
    const int64_t pairs = (hidden->rows + 1) / 2, bands = bands_of(hidden);
    const int64_t first = pairs * g / bands, next = pairs * (g + 1) / bands;
    band found = {(int32_t)first, (int32_t)(next - first), hidden->packed + first * pair_bytes(hidden)};
    return found;
}

static size_t packed_bytes(const fs_hidden *hidden) {
    return (size_t)((hidden->rows + 1) / 2) * (size_t)pair_bytes(hidden);
}

/* Pair `pair` of a band, elements [from, to); zeros behind dim and in place of a row that is not there. */
static void pack_pair(const fs_hidden *hidden, const band *g, int32_t pair, int64_t from, int64_t to) {
    const int components = split_components(hidden->dtype);
    for (int32_t i = 0; i < 2; i++) {
        const int32_t r = 2 * (g->first + pair) + i;
        const int64_t dim = r < hidden->rows ? hidden->dim : 0;
        uint16_t *packed = (uint16_t *)(void *)g->h + pair * 8 + i * 4;
        for (int64_t d = from; d < to; d++) {
            uint16_t component[FS_COMPONENTS_MOST];
            split_float(d < dim ? split_element(hidden->row[r], hidden->dtype, d) : 0.0f, components, component);
            for (int k = 0; k < components; k++) packed[(d / 4 * components + k) * g->pairs * 8 + d % 4] = component[k];
        }
    }
}

static void pack(const fs_hidden *hidden, int64_t from, int64_t to) {
    const int64_t end = steps_of(hidden) * FS_STEP, last = to < end ? to : end;
    for (int32_t i = 0; i < bands_of(hidden); i++) {
        const band g = band_at(hidden, i);
        for (int32_t pair = 0; pair < g.pairs; pair++) pack_pair(hidden, &g, pair, from, last);
    }
}

/* ------------------------------------------------------------------------------------------------------ load ---- */

/* A step of the rows a and b: x[i] = 4 elements of a, the same 4 of b. */
FS_INLINE void load_pair(const char *a, const char *b, bfloat16x8_t *x) {
#pragma GCC unroll 4
    for (int i = 0; i < FS_QUADS / 2; i++) {
        uint64x2_t p = vreinterpretq_u64_bf16(load(a + i * FS_OPERAND));
        uint64x2_t q = vreinterpretq_u64_bf16(load(b + i * FS_OPERAND));
        x[2 * i] = vreinterpretq_bf16_u64(vzip1q_u64(p, q));
        x[2 * i + 1] = vreinterpretq_bf16_u64(vzip2q_u64(p, q));
    }
}

/* panel [steps, quads, FS_TOKENS / 2] operands = the steps of n tokens at w. The last token stands in for those that
 * are not there. */
static void fill_panel(const char *w, int64_t stride, int32_t n, int64_t steps, bfloat16x8_t *panel) {
    for (int32_t t = 0; t < FS_TOKENS; t += 2) {
        const char *a = w + (t < n ? t : n - 1) * stride, *b = w + (t + 1 < n ? t + 1 : n - 1) * stride;
        for (int64_t k = 0; k < steps; k++) {
            bfloat16x8_t x[FS_QUADS];
            load_pair(a + k * FS_LINE, b + k * FS_LINE, x);
            for (int i = 0; i < FS_QUADS; i++) panel[(k * FS_QUADS + i) * (FS_TOKENS / 2) + t / 2] = x[i];
        }
    }
}

/* The elements of an unfinished step of n tokens, zero padded: W must not be read past its end. to [n, FS_STEP] */
static void copy_tail(const char *w, int64_t stride, int32_t n, int64_t dim, char *to) {
    const int64_t done = dim / FS_STEP * FS_LINE, left = dim * 2 - done;
    memset(to, 0, (size_t)n * FS_LINE);
    for (int32_t t = 0; t < n; t++) memcpy(to + t * FS_LINE, w + t * stride + done, (size_t)left);
}

/* ------------------------------------------------------------------------------------------------------- dot ---- */

/* Nothing is loaded through the pointer before x is there: gcc 12 would load all 16 lines first, and spill them. */
#define FS_IN_TURN(pointer, x) __asm__("" : "+r"(pointer), "+w"(x))
/* The pointer stays in a register: gcc 12 would keep the offset of every load in one of its own. */
#define FS_KEEP(pointer) __asm__("" : "+r"(pointer))

/* Adds a segment of 16 tokens, as they lie, and one pair of rows to sum [8]. */
FS_INLINE void dot_few(int components, const char *w, int64_t stride, const char *h, int64_t steps, sums *sum) {
    sums acc[FS_FEW_TOKENS / 2];
#pragma GCC unroll 8
    for (int p = 0; p < FS_FEW_TOKENS / 2; p++) acc[p] = vdupq_n_f32(0.0f);
    for (int64_t k = 0; k < steps; k++, h += FS_QUADS * components * FS_OPERAND) {
        const char *a = w + k * FS_LINE;
#pragma GCC unroll 8
        for (int p = 0; p < FS_FEW_TOKENS / 2; p++, a += 2 * stride) {
            const char *b = a + stride;
            bfloat16x8_t x[FS_QUADS];
            FS_KEEP(b);
            load_pair(a, b, x);
#pragma GCC unroll 8
            for (int i = 0; i < FS_QUADS; i++)
#pragma GCC unroll 3
                for (int component = 0; component < components; component++)
                    acc[p] = vbfmmlaq_f32(acc[p], x[i], load(h + (i * components + component) * FS_OPERAND));
            FS_IN_TURN(a, acc[p]);
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < FS_FEW_TOKENS / 2; p++) sum[p] = vaddq_f32(sum[p], acc[p]);
}

/* Adds a segment of a panel and P pairs of rows to sum [P, FS_TOKENS / 2]. */
FS_INLINE void dot_panel(int P, int components, const bfloat16x8_t *panel, const char *h, int64_t steps, sums *sum);
#ifndef FS_HAS_DOT_PANEL
FS_INLINE void dot_panel(int P, int components, const bfloat16x8_t *panel, const char *h, int64_t steps, sums *sum) {
    enum { T = FS_TOKENS / 2 };
    sums acc[FS_BAND][T];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) acc[p][t] = vdupq_n_f32(0.0f);
    for (int64_t k = 0; k < steps * FS_QUADS; k++, panel += T) {
        bfloat16x8_t x[T];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) x[t] = panel[t];
        for (int component = 0; component < components; component++, h += P * FS_OPERAND)
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                const bfloat16x8_t y = load(h + p * FS_OPERAND);
#pragma GCC unroll 4
                for (int t = 0; t < T; t++) acc[p][t] = vbfmmlaq_f32(acc[p][t], x[t], y);
            }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) sum[p * T + t] = vaddq_f32(sum[p * T + t], acc[p][t]);
}
#endif

/* One function for each shape, by number of components and of pairs: docs/notes/vector-kernels.md. */
typedef void (*few_dot)(const char *w, int64_t stride, const char *h, int64_t steps, sums *sum);
typedef void (*panel_dot)(int components, const bfloat16x8_t *panel, const char *h, int64_t steps, sums *sum);

#define FS_DEFINE_FEW(components)                                                                                      \
    static __attribute__((noinline)) void dot_few_##components(const char *w, int64_t stride, const char *h,           \
                                                               int64_t steps, sums *sum) {                             \
        dot_few(components, w, stride, h, steps, sum);                                                                 \
    }
#define FS_DEFINE_PANEL(pairs)                                                                                         \
    static __attribute__((noinline)) void dot_panel_##pairs(int components, const bfloat16x8_t *panel, const char *h,  \
                                                            int64_t steps, sums *sum) {                                \
        dot_panel(pairs, components, panel, h, steps, sum);                                                            \
    }
FS_DEFINE_FEW(1)
FS_DEFINE_FEW(2)
FS_DEFINE_FEW(3)
FS_DEFINE_PANEL(1)
FS_DEFINE_PANEL(2)
FS_DEFINE_PANEL(3)
FS_DEFINE_PANEL(4)
static const few_dot few_dots[FS_COMPONENTS_MOST] = {dot_few_1, dot_few_2, dot_few_3};
static const panel_dot panel_dots[FS_BAND] = {dot_panel_1, dot_panel_2, dot_panel_3, dot_panel_4};

/* ----------------------------------------------------------------------------------------------------- store ---- */

/* Logits of n tokens for a pair of rows, as far as it is there; sum [FS_TOKENS / 2]. */
static void store_pair(const fs_hidden *hidden, int32_t pair, const sums *sum, int32_t n, float *out, int64_t out_ld) {
    for (int32_t i = 0; i < 2 && 2 * pair + i < hidden->rows; i++) {
        float logit[FS_TOKENS];
        for (int t = 0; t < FS_TOKENS; t += 4) {
            const sums a = sum[t / 2], b = sum[t / 2 + 1];
            vst1q_f32(logit + t, i ? vuzp2q_f32(a, b) : vuzp1q_f32(a, b));
        }
        memcpy(out + (2 * pair + i) * out_ld, logit, (size_t)n * sizeof *logit);
    }
}

/* -------------------------------------------------------------------------------------------------- the tile ---- */

/* 16 tokens for the only pair of rows. */
static void tile_few(const fs_hidden *hidden, const char *w, int64_t stride, float *out, int64_t out_ld) {
    const int components = split_components(hidden->dtype);
    const int64_t steps = hidden->dim / FS_STEP, segment = FS_SEGMENT / components;
    const char *h = hidden->packed;
    const few_dot dot = few_dots[components - 1];
    sums sum[FS_FEW_TOKENS / 2];
    memset(sum, 0, sizeof sum);
    for (int64_t k = 0, n; k < steps; k += n, h += n * FS_QUADS * components * FS_OPERAND) {
        n = steps - k < segment ? steps - k : segment;
        dot(w + k * FS_LINE, stride, h, n, sum);
    }
    if (hidden->dim % FS_STEP) {
        char tail[FS_FEW_TOKENS * FS_LINE];
        copy_tail(w, stride, FS_FEW_TOKENS, hidden->dim, tail);
        dot(tail, FS_LINE, h, 1, sum);
    }
    for (int32_t t = 0; t < FS_FEW_TOKENS; t += FS_TOKENS)
        store_pair(hidden, 0, sum + t / 2, FS_TOKENS, out + t, out_ld);
}

/* Bands [first, last) and the n steps from k on that w has, n <= FS_SEGMENT, of `tokens` tokens. sum: [pairs,
 * FS_TOKENS / 2] of those bands. */
static void add_segment(const fs_hidden *hidden, int32_t first, int32_t last, const char *w, int64_t stride,
                        int32_t tokens, int64_t k, int64_t n, sums *sum) {
    const int components = split_components(hidden->dtype);
    bfloat16x8_t panel[FS_SEGMENT * FS_QUADS * FS_TOKENS / 2];
    fill_panel(w, stride, tokens, n, panel);
    for (int32_t i = first; i < last; i++) {
        const band g = band_at(hidden, i);
        panel_dots[g.pairs - 1](components, panel, g.h + k * FS_QUADS * components * g.pairs * FS_OPERAND, n, sum);
        sum += g.pairs * (FS_TOKENS / 2);
    }
}

/* Up to FS_TOKENS tokens for bands [first, last). */
static void tile_bands(const fs_hidden *hidden, int32_t first, int32_t last, const char *w, int64_t stride,
                       int32_t tokens, float *out, int64_t out_ld) {
    const int64_t steps = hidden->dim / FS_STEP, segment = FS_SEGMENT / split_components(hidden->dtype);
    const band begin = band_at(hidden, first), end = band_at(hidden, last - 1);
    const int32_t pairs = end.first + end.pairs - begin.first;
    sums sum[FS_BANDS * FS_BAND * FS_TOKENS / 2];
    memset(sum, 0, (size_t)pairs * FS_TOKENS / 2 * sizeof *sum);
    for (int64_t k = 0, n; k < steps; k += n) {
        n = steps - k < segment ? steps - k : segment;
        add_segment(hidden, first, last, w + k * FS_LINE, stride, tokens, k, n, sum);
    }
    if (hidden->dim % FS_STEP) {
        char tail[FS_TOKENS * FS_LINE];
        copy_tail(w, stride, tokens, hidden->dim, tail);
        add_segment(hidden, first, last, tail, FS_LINE, tokens, steps, 1, sum);
    }
    for (int32_t i = 0; i < pairs; i++)
        store_pair(hidden, begin.first + i, sum + i * (FS_TOKENS / 2), tokens, out, out_ld);
}

static void tile(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens, float *out,
                 int64_t out_ld) {
    const char *data = matrix_row(w, first);
    const int64_t stride = w->stride;
    const int32_t bands = bands_of(hidden);
    int32_t few = 0;
    if (hidden->rows <= 2)
        for (; tokens - few >= FS_FEW_TOKENS; few += FS_FEW_TOKENS)
            tile_few(hidden, data + few * stride, stride, out + few, out_ld);
    for (int32_t g = 0; g < bands; g += FS_BANDS)
        for (int32_t t = few; t < tokens; t += FS_TOKENS)
            tile_bands(hidden, g, g + FS_BANDS < bands ? g + FS_BANDS : bands, data + t * stride, stride,
                       tokens - t < FS_TOKENS ? tokens - t : FS_TOKENS, out + t, out_ld);
    if (hidden->dtype != FS_BF16) repair_tile(hidden, data, stride, tokens, out, out_ld);
}

const fs_kernel FS_JOIN(fs_kernel_bf16__, FS_ISA) = {packed_bytes, pack, tile, NULL};
