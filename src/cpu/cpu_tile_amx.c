/* AMX: tdpbf16ps multiplies bf16 weights by hidden states as sums of bf16 parts (cpu_split.h), 1 to 3 of them. It counts denormals as zero,
 * in and out. How it is used: cpu_tile_amx.h. */
#define FS_MULTIPLY _tile_dpbf16ps
#include "cpu_tile_amx.h"

static const scheme scheme_bf16 = {FS_BF16, 0, dot};

static size_t packed_bytes(const fs_hidden *hidden) {
    return packing_bytes(&scheme_bf16, hidden);
}

static void pack(const fs_hidden *hidden, int64_t from, int64_t to) {
    if (hidden->dtype == FS_BF16) pack_halves(&scheme_bf16, hidden, from, to);
    else pack_parts(&scheme_bf16, hidden, from, to, 1.0f, 1);
}

static void tile(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out, int64_t out_ld) {
    tile_all(&scheme_bf16, hidden, (const char *)w, stride, tokens, out, out_ld);
}

const fs_kernel fs_kernel_bf16__amx = {packed_bytes, pack, tile};
