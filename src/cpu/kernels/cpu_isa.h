/* cpu_isa.h - what an instruction set brings: the kernels that compute logits and the scans over them. One row of the
 * table in cpu_dispatch.c each. */
#ifndef FS_CPU_ISA_H
#define FS_CPU_ISA_H

#include "core/entropy.h"
#include "core/format.h"
#include "core/list.h"
#include "core/mass.h"
#include "core/noise.h"
#include "core/screen.h"
#include "cpu/filter/cpu_filter.h"

#include "flashsampling.h"

/* H as the caller gave it, and as a kernel packed it once for the whole call. */
typedef struct fs_hidden {
    const char **row; /* [rows] the caller's rows, `dim` elements each */
    int32_t rows;
    int32_t dtype;
    int64_t dim;
    char *packed; /* FS_ALIGNMENT aligned; what lies there is the kernel's business */
} fs_hidden;

/* Logits of one format of W. A logit's bits depend on its row of H and its row of W alone: each kernel has one order of
 * products and sums for every tile shape, stated where it is written. */
typedef struct fs_kernel {
    /* Bytes of packed H. */
    size_t (*packed_bytes)(const fs_hidden *hidden);
    /* Packs the elements [from, to) of every row; both are multiples of FS_PACK, `to` may pass dim. */
    void (*pack)(const fs_hidden *hidden, int64_t from, int64_t to);
    /* out[r * out_ld + t] = dot(h[r], w[first + t]) for t < tokens. */
    void (*tile)(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens, float *out,
                 int64_t out_ld);
    /* The same logits, filtered instead of stored, for more than 16 rows; NULL where a kernel cannot. */
    void (*filter)(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens, fs_filter *filter);
} fs_kernel;

/* Hidden states as kernels of screens take them: step * q of 128 columns, for every record of the screen; and once
 * more, what that leaves over, for records with columns that are far larger than the others. */
typedef struct fs_screen_rows {
    int32_t count;         /* of rows: each is multiplied with a strip before the next strip */
    int32_t fetched;       /* what comes later is asked of memory */
    int64_t records, most; /* of the screen; entries of a row at most */
    int32_t *entries;      /* [rows] of a row: all records in their order, then some again */
    int32_t *record;       /* [rows, most] which record an entry is of */
    int8_t *q;             /* [rows, most, 128] columns in the screen's order, two cache lines each */
    int32_t *sum;          /* [rows, most, 2] of q, by chunks */
    float *step;           /* [rows, most] */
    float *norm; /* [rows, records, 2] 8 bits: |h| of a record's columns, in its first place; 4 bits: |h|^2 by chunks */
    float *slack; /* [rows] screen_slack */
} fs_screen_rows;

typedef struct fs_screen_kernel {
    /* upper [16] = what no logit of the strip's tokens and row r is above; +inf: nothing is known. */
    void (*upper)(const fs_screen *s, const unsigned char *strip, const fs_screen_rows *rows, int32_t r, float *upper);
} fs_screen_kernel;

#define FS_PACK 64 /* elements: whole cache lines of every packed form, so that threads share none */

typedef struct fs_survey {
    float most;     /* the largest of all */
    uint32_t flags; /* FS_ROW_NAN, FS_ROW_INF as they occur */
} fs_survey;

/* What a race's marked tokens are tested with: logits y, the first of id `base`, `span` of them; no token with
 * y * scale + noise at or below floor + FS_NOISE_G can win. */
typedef struct fs_mark_test {
    fs_noise noise;
    const float *y;
    int64_t base, span;
    float scale;
    double floor;
} fs_mark_test;

#define FS_MARK_BATCH 8 /* noise blocks, at most 32: 64-bit lanes of the widest vector, for Philox's products */
typedef struct fs_marks {
    uint32_t w[4][FS_MARK_BATCH]; /* word k of block i */
} fs_marks;

/* What a rough mass is of: a largest |l| up to the first, and a scale below the second and above one over it, beyond
 * which 100 / scale, where terms end, would be no number. */
#define FS_ROUGH_MOST 40000.0f
#define FS_ROUGH_SCALE 1e20f
#define FS_MASS_BLOCK_MOST (64 * FS_GRANULE)

/* Entries of a list by logit: bin i holds those that are i to i + 1 bins below `top`, the last one everything further
 * down and what is no number. */
#define FS_BINS 64
typedef struct fs_bins {
    float top, per; /* bins per unit of logit */
} fs_bins;

/* Scans over n logits in cache. Results are the same for every instruction set, bit for bit, without fused
 * multiply-adds; but for rough masses, which decide which rows take a second pass and no token. */
typedef struct fs_scan {
    /* out[i] = in[i] widened to float, by format. */
    void (*load[FS_FLOAT_FORMATS])(const void *in, int64_t n, float *out);
    /* Replaces NaN by -inf and looks for maxima: max[i] = largest of y[16 i .. 16 i + 15]; n is a multiple of
     * FS_GRANULE. Before that y[i] = -inf where bit base + i of the bitmask is not set; base is a multiple of
     * FS_GRANULE, allow may be NULL. */
    fs_survey (*survey)(const uint32_t *allow, int64_t base, float *y, int64_t n, float *max);
    /* The first place from `from` on with max[i] * scale > floor, or `to`. */
    int64_t (*next_above)(const float *max, int64_t from, int64_t to, float scale, double floor);
    /* Appends to a list the tokens y[i] > floor of granules [from, to), whose maxima are max; y[0] has id `base`.
     * Returns the first granule for which there is no room, or `to`. May write up to FS_GRANULE keys behind the list's
     * capacity. */
    int64_t (*append)(const float *y, const float *max, int64_t from, int64_t to, float floor, uint32_t base,
                      fs_list *list);
    /* The first call of each of FS_MARK_BATCH blocks of marks, from block `first` on. Returns those, bit i for block
     * first + i, of which a marked token may win; some of which none does are among them. */
    uint32_t (*marks)(const fs_mark_test *test, uint32_t first, fs_marks *marks);
    /* Adds exp(y * scale) of n tokens, n a multiple of FS_GRANULE, the first one's id too; max as survey gave it. */
    void (*add_mass)(const float *y, const float *max, int64_t n, float scale, fs_mass *mass);
    /* The same of an entropy's sums. */
    void (*add_entropy)(const float *y, int64_t n, float scale, fs_entropy *entropy);
    /* The same as add_mass, off by at most half of mass_slack; most: the largest y, |most * scale| <= FS_ROUGH_MOST. */
    void (*add_rough)(const float *y, float most, int64_t n, float scale, fs_mass *mass);
    /* The largest of n keys, n > 0, and the smallest. */
    uint64_t (*key_range)(const uint64_t *key, int32_t n, uint64_t *least);
    /* The bins of n order keys. */
    void (*bin)(const uint64_t *key, int32_t n, fs_bins bins, int32_t *bin);
    /* How many of n keys are above this one. */
    int32_t (*count_above)(const uint64_t *key, int32_t n, uint64_t above);
    /* Moves those to the front, in their order, and returns how many. May write a vector behind them, not behind key[n
     * + 7]. */
    int32_t (*keep_above)(uint64_t *key, int32_t n, uint64_t above);
} fs_scan;

typedef struct fs_isa {
    const char *name;
    int (*runs_here)(void);
    const char *experimental; /* why it is not chosen and runs only when forced; NULL: it is chosen */
    int overlapped;           /* filters look at a tile while the next one is multiplied; for masses they always do */
    const fs_kernel *kernel[FS_FORMATS]; /* by format of W (core/format.h); NULL: there is none */
    const fs_scan *scan;
    const fs_screen_kernel *screen;
    int32_t screen_rows[2]; /* of a call, up to which screens of 8 and 4 bits are faster than W */
    int32_t screen_fetched; /* fs_screen_rows.fetched */
} fs_isa;

/* The row to use: the environment's FLASHSAMPLING_ISA, or the best that runs here. NULL if the forced one is unknown or
 * does not run here; *names then lists the rows that do. */
const fs_isa *fs_isa_choose(const char *forced, char *names, size_t names_size);

/* What the files cpu_tile_<isa>.c and cpu_scan_<isa>.c define. */
#define FS_DECLARE_ISA(isa)                                                                                            \
    extern const fs_scan fs_scan_##isa;                                                                                \
    extern const fs_kernel fs_kernel_f32__##isa, fs_kernel_f16__##isa, fs_kernel_bf16__##isa

FS_DECLARE_ISA(scalar);
FS_DECLARE_ISA(avx2);
FS_DECLARE_ISA(avx512);
FS_DECLARE_ISA(neon);
extern const fs_screen_kernel fs_screen_scalar, fs_screen_neondot, fs_screen_avx2, fs_screen_avx512vnni;
extern const fs_kernel fs_kernel_f32__amx, fs_kernel_f16__amx, fs_kernel_bf16__amx;
extern const fs_kernel fs_kernel_f32__amxfp16, fs_kernel_f16__amxfp16;
extern const fs_kernel fs_kernel_bf16__avx512bf16;
extern const fs_kernel fs_kernel_f32__sve, fs_kernel_f16__sve, fs_kernel_bf16__sve, fs_kernel_bf16__svebf16;
extern const fs_kernel fs_kernel_f16__neonf16, fs_kernel_bf16__neonbf16, fs_kernel_bf16__neonmmla;

#endif
