/* cpu_split.h - numbers as sums of bf16 numbers, for kernels whose instruction multiplies bf16 by bf16.
 *
 *   bf16  1 component    f16  2 components (11 = 8 + 3 bits)    f32  3 components (24 = 8 + 8 + 8 bits)
 *
 * Components are cut off by truncation: h = p0 + p1 + p2 exactly, and nothing overflows by rounding up. A product of
 * two bf16 numbers is exact in float, so a logit is as exact as with float arithmetic. Three things differ from it: -
 * components and weights below 2^-126 count as zero, and so do sums (the instructions flush denormals): an absolute
 * error
 *   below 2^-126 times the number of terms times the other factor;
 * - an infinite weight is multiplied by components that are zero, and inf * 0 is NaN where h * inf is inf. So a NaN
 * that
 *   comes out of several components is computed again in float (repair_nan);
 * - the order of additions, which every kernel states. */
#ifndef FS_CPU_SPLIT_H
#define FS_CPU_SPLIT_H

#include "core/halves.h"
#include "cpu_isa.h"

#define FS_COMPONENTS_MOST 3

FS_CORE int split_components(int32_t dtype) {
    return dtype == FS_BF16 ? 1 : dtype == FS_F16 ? 2 : 3;
}

/* Element d of a row, at any address, as float. */
FS_CORE float split_element(const char *row, int32_t dtype, int64_t d) {
    return element_at(row, format_of(dtype), d);
}

/* component[i] = bf16 bits of the i-th component of h. */
FS_CORE void split_float(float h, int components, uint16_t *component) {
    for (int i = 0; i < components; i++) {
        uint32_t bits = float_bits(h);
        component[i] = (uint16_t)(bits >> 16);
        if (h != h) component[i] |= 0x40; /* the payload may lie in the bits that are cut off */
        h -= widen_bf16(component[i]);
        if (h != h) h = 0.0f; /* inf - inf */
    }
}

/* The logit of a row of weights in float, products in ascending order. */
FS_CORE float repair_nan(const fs_hidden *hidden, int32_t r, const char *w, int32_t w_dtype) {
    float sum = 0.0f;
    for (int64_t d = 0; d < hidden->dim; d++)
        sum += split_element(w, w_dtype, d) * split_element(hidden->row[r], hidden->dtype, d);
    return sum;
}

/* Every NaN of a tile of logits, whose weights are bf16. */
FS_CORE void repair_tile(const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens, float *out,
                         int64_t out_ld) {
    for (int32_t r = 0; r < hidden->rows; r++)
        for (int32_t t = 0; t < tokens; t++)
            if (out[r * out_ld + t] != out[r * out_ld + t])
                out[r * out_ld + t] = repair_nan(hidden, r, w + t * stride, FS_BF16);
}

#endif
