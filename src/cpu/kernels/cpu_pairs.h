/* cpu_pairs.h - the kernel of an instruction that multiplies pairs of bf16 and adds both products to a lane of float: a
 * file cpu_tile_<isa>.c includes cpu_tile.h with FS_OWN_KERNELS, defines add_pairs, and includes this.
 *
 * W is read as it lies; H is packed as bf16 components (cpu_split.h). A step is 32 elements: lane i takes 2 i and
 * 2 i + 1. */
#include "cpu_split.h"

#define FS_PAIRS 32 /* elements of a step */

FS_DEFINE_DOTS(dot_one, 1, load_f32, add_pairs, FS_LINE, FS_LINE)
FS_DEFINE_DOTS(dot_two, 2, load_f32, add_pairs, FS_LINE, FS_LINE)
FS_DEFINE_DOTS(dot_three, 3, load_f32, add_pairs, FS_LINE, FS_LINE)
static const microkernel microkernels[] = {{dot_one, FS_PAIRS, 2, 1, NULL, NULL},
                                           {dot_two, FS_PAIRS, 2, 2, NULL, NULL},
                                           {dot_three, FS_PAIRS, 2, 3, NULL, NULL}};

static int64_t packed_ld(const fs_hidden *hidden) {
    return (hidden->dim + FS_PAIRS - 1) / FS_PAIRS * split_components(hidden->dtype) * FS_LINE;
}

static size_t packed_pairs_bytes(const fs_hidden *hidden) {
    return (size_t)hidden->rows * (size_t)packed_ld(hidden);
}

/* [rows, steps, components, 32] bf16, zeros behind dim. */
static void pack_pairs(const fs_hidden *hidden, int64_t from, int64_t to) {
    const int components = split_components(hidden->dtype);
    const int64_t end = (hidden->dim + FS_PAIRS - 1) / FS_PAIRS * FS_PAIRS;
    for (int32_t r = 0; r < hidden->rows; r++) {
        uint16_t *packed = (uint16_t *)(void *)(hidden->packed + r * packed_ld(hidden));
        for (int64_t d = from; d < to && d < end; d++) {
            uint16_t component[FS_COMPONENTS_MOST];
            split_float(d < hidden->dim ? split_element(hidden->row[r], hidden->dtype, d) : 0.0f, components,
                        component);
            for (int i = 0; i < components; i++)
                packed[(d / FS_PAIRS * components + i) * FS_PAIRS + d % FS_PAIRS] = component[i];
        }
    }
}

static void tile_pairs(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens, float *out,
                       int64_t out_ld) {
    const char *data = matrix_row(w, first);
    const int64_t stride = w->stride;
    tile_all(&microkernels[split_components(hidden->dtype) - 1], hidden, data, stride, tokens, out, out_ld);
    if (hidden->dtype != FS_BF16) repair_tile(hidden, data, stride, tokens, out, out_ld);
}

const fs_kernel FS_JOIN(fs_kernel_, bf16, FS_ISA) = {packed_pairs_bytes, pack_pairs, tile_pairs, NULL};
