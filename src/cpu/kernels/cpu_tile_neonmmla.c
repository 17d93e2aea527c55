/* NEON with BF16: bfmmla on vectors of 128 bits. */
#define FS_ISA neonmmla
#define FS_TOKENS 8 /* of a panel: 16 sums with 4 pairs of rows, 4 operands of W and one of H of 32 registers */
#include "cpu_mmla.h"
