/* cpu_neon.h - how NEON widens four halves; after cpu_tile.h. */
#ifndef FS_CPU_NEON_H
#define FS_CPU_NEON_H

#include <arm_neon.h>

FS_INLINE vec load_bf16(const char *p) {
    uint16x4_t h;
    memcpy(&h, p, sizeof h);
    return (vec)vshlq_n_u32(vmovl_u16(h), 16);
}

FS_INLINE vec load_f16(const char *p) {
    float16x4_t h;
    memcpy(&h, p, sizeof h);
    return (vec)vcvt_f32_f16(h);
}

#endif
