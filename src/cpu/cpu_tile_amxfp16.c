/* AMX-FP16 (Granite Rapids): tdpfp16ps multiplies f16 by f16 as fast as bf16 by bf16. So f16 weights and hidden states are multiplied as
 * they lie, one instruction where the row amx splits both and takes four. How it is used: cpu_tile_amx.h.
 *
 * A product of two f16, subnormal ones too, is exact in float and no multiple of 2^-48 is denormal there: nothing is flushed, and
 * only additions round.
 *
 * Only f16 hidden states are multiplied this way. As sums of f16 parts, f32 and bf16 would lose what is below 2^-24 and above 65504; they
 * take the kernel of the row amx, bit for bit. */
#define FS_WEIGHTS FS_F16
/* tdpfp16ps, encoded: gcc knows it from 13 on and assemblers from binutils 2.40. */
#define FS_MULTIPLY(sums, tokens, rows)                                                                                \
    __asm__ volatile(".byte 0xC4, 0xE2, 0x7B - 8 * %c0, 0x5C, 0xC0 + 8 * %c1 + %c2"                                    \
                     :                                                                                                 \
                     : "i"(rows), "i"(sums), "i"(tokens))
#include "cpu_tile_amx.h"

static size_t packed_bytes_f16(const fs_hidden *hidden) {
    return hidden->dtype == FS_F16 ? packed_bytes(hidden) : fs_kernel_f16__amx.packed_bytes(hidden);
}

static void pack_f16(const fs_hidden *hidden, int64_t from, int64_t to) {
    (hidden->dtype == FS_F16 ? pack_whole : fs_kernel_f16__amx.pack)(hidden, from, to);
}

static void tile_f16(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens, float *out,
                     int64_t out_ld) {
    (hidden->dtype == FS_F16 ? tile : fs_kernel_f16__amx.tile)(hidden, w, stride, tokens, out, out_ld);
}

const fs_kernel fs_kernel_f16__amxfp16 = {packed_bytes_f16, pack_f16, tile_f16};
