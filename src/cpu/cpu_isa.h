/* cpu_isa.h - what an instruction set brings: the tile kernel that computes logits and the scans over them. One row of the table
 * in cpu_dispatch.c each. */
#ifndef FS_CPU_ISA_H
#define FS_CPU_ISA_H

#include "core/mass.h"

#include "flashsampling.h"

/* out[r * out_ld + t] = dot(h[r], w[t]) for t < tokens, r < rows.
 *   w     `tokens` rows of `dim` elements, `stride` bytes apart
 *   h     [rows, h_ld] floats; h_ld is a multiple of FS_LANES and the columns from dim on are zero
 * One K order for every pair: lane i of FS_LANES accumulates the products d = i mod FS_LANES in ascending d, then lanes are
 * added 8, 4, 2, 1 apart. So a logit does not depend on the tile it was computed in. */
#define FS_LANES 16
#define FS_TILE_ARGUMENTS                                                                                              \
    const void *w, int64_t stride, int32_t tokens, const float *h, int64_t h_ld, int32_t rows, int64_t dim,            \
        float *out, int64_t out_ld
typedef void (*fs_tile)(FS_TILE_ARGUMENTS);

/* Scans over n logits in cache. These use no fused multiply-add: their results are the same for every instruction set. */
typedef struct fs_scan {
    /* out[i] = in[i] widened to float, by dtype. */
    void (*load[3])(const void *in, int64_t n, float *out);
    /* Replaces NaN by -inf; returns FS_ROW_NAN, FS_ROW_INF as they occur. */
    uint32_t (*clean)(float *x, int64_t n);
    /* max[i] = largest of y[16 i .. 16 i + 15]; n is a multiple of FS_GRANULE. Returns the largest of all. */
    float (*granule_max)(const float *y, int64_t n, float *max);
    /* Adds exp(y * scale) of n tokens, n a multiple of FS_GRANULE, the first one's id too. */
    void (*add_mass)(const float *y, int64_t n, float scale, fs_mass *mass);
} fs_scan;

typedef struct fs_isa {
    const char *name;
    int (*runs_here)(void);
    fs_tile tile[3]; /* by dtype of W */
    const fs_scan *scan;
} fs_isa;

/* The row to use: the environment's FLASHSAMPLING_ISA, or the best that runs here. NULL if the forced one is unknown or does
 * not run here; *names then lists the rows that do. */
const fs_isa *fs_isa_choose(const char *forced, char *names, size_t names_size);

/* What the files cpu_tile_<isa>.c and cpu_scan_<isa>.c define. */
#define FS_DECLARE_ISA(isa)                                                                                            \
    extern const fs_scan fs_scan_##isa;                                                                                \
    void fs_tile_f32__##isa(FS_TILE_ARGUMENTS);                                                                        \
    void fs_tile_f16__##isa(FS_TILE_ARGUMENTS);                                                                        \
    void fs_tile_bf16__##isa(FS_TILE_ARGUMENTS)

FS_DECLARE_ISA(scalar);
FS_DECLARE_ISA(avx2);
FS_DECLARE_ISA(avx512);

#endif
