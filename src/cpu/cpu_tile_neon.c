/* NEON: what every aarch64 has. Halves are widened, f16 by the instruction for it; multiply-adds are fused. */
#include <arm_neon.h>

#define FS_ISA neon
#define FS_TILE_TOKENS                                                                                                 \
    2 /* 16 lanes are four registers: 24 accumulators, 3 operands of H and one of W of 32 registers */
#define FS_TILE_ROWS 3
#define FS_REGISTER 16
#define FS_HAS_LOAD
#include "cpu_tile.h"

FS_INLINE piece load_bf16(const char *p) {
    uint16x4_t h;
    memcpy(&h, p, sizeof h);
    return (piece)vshlq_n_u32(vmovl_u16(h), 16);
}

FS_INLINE piece load_f16(const char *p) {
    float16x4_t h;
    memcpy(&h, p, sizeof h);
    return (piece)vcvt_f32_f16(h);
}
