/* NEON: what every aarch64 has. Halves are widened, f16 by the instruction for it; multiply-adds are fused. */
#define FS_ISA neon
#define FS_TILE_TOKENS                                                                                                 \
    2 /* 16 lanes are four registers: 24 accumulators, 3 operands of H and one of W of 32 registers */
#define FS_TILE_ROWS 3
#define FS_REGISTER 16
/* One stream, 24 GB/s, is faster than two, 17, on Neoverse V1 (f32, one row, one core, 2026-11-17). */
#define FS_FEW_ROWS(bytes) ((bytes) == 4 ? 3 : 2)
#define FS_HAS_LOAD
#include "cpu_tile.h"

#include "cpu_neon.h"
