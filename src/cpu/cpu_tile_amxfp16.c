/* AMX-FP16 (Granite Rapids): tdpfp16ps multiplies f16 by f16 as fast as bf16 by bf16. So f16 weights and hidden states are multiplied as
 * they lie, one instruction where the row amx splits both and takes four. How it is used: cpu_tile_amx.h.
 *
 * A product of two f16, subnormal ones too, is exact in float and no multiple of 2^-48 is denormal there: nothing is flushed, and
 * only additions round.
 *
 * Only f16 hidden states are multiplied this way. As sums of f16 parts, f32 and bf16 would lose what is below 2^-24 and above 65504; they
 * take the kernel of the row amx, bit for bit. */
/* tdpfp16ps, encoded: gcc knows it from 13 on and assemblers from binutils 2.40. */
#define FS_MULTIPLY(sums, tokens, rows)                                                                                \
    __asm__ volatile(".byte 0xC4, 0xE2, 0x7B - 8 * %c0, 0x5C, 0xC0 + 8 * %c1 + %c2"                                    \
                     :                                                                                                 \
                     : "i"(rows), "i"(sums), "i"(tokens))
#include "cpu_tile_amx.h"

static const scheme scheme_f16 = {FS_F16, 0, dot};

static size_t packed_bytes(const fs_hidden *hidden) {
    if (hidden->dtype != FS_F16) return fs_kernel_f16__amx.packed_bytes(hidden);
    return packing_bytes(&scheme_f16, hidden);
}

static void pack(const fs_hidden *hidden, int64_t from, int64_t to) {
    if (hidden->dtype != FS_F16) fs_kernel_f16__amx.pack(hidden, from, to);
    else pack_halves(&scheme_f16, hidden, from, to);
}

static void tile(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out, int64_t out_ld) {
    if (hidden->dtype != FS_F16) fs_kernel_f16__amx.tile(hidden, w, stride, tokens, out, out_ld);
    else tile_all(&scheme_f16, hidden, (const char *)w, stride, tokens, out, out_ld);
}

const fs_kernel fs_kernel_f16__amxfp16 = {packed_bytes, pack, tile};
