/* The row that always runs: plain C for whatever the compiler's baseline is (SSE2 on x86_64, NEON on aarch64). */
#define FS_ISA scalar
#define FS_TILE_TOKENS 2 /* 16 lanes are four registers there: 2 x 1 accumulators leave room for loads */
#define FS_TILE_ROWS 1
#include "cpu_tile.h"
