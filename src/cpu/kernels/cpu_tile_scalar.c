/* The row that always runs: plain C for whatever the compiler's baseline is (SSE2 on x86_64, NEON on aarch64). */
#define FS_ISA scalar
#define FS_TILE_TOKENS 1 /* 16 lanes are four registers there: 12 accumulators of 16 */
#define FS_TILE_ROWS 3
#include "cpu_tile.h"
