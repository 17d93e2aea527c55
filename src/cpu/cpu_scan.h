/* cpu_scan.h - scans over a block of logits in cache: plain loops that the compiler vectorises, one source for every instruction
 * set like cpu_tile.h. Contraction is off here (see mass.h), so every row of the table gives the same bits. */
#include "cpu_isa.h"

#include "core/halves.h"

#include <float.h>

#define FS_JOIN_(a, b) a##b
#define FS_JOIN(a, b) FS_JOIN_(a, b)

static void scan_load_f32(const void *in, int64_t n, float *out) {
    memcpy(out, in, (size_t)n * sizeof *out);
}

static void scan_load_bf16(const void *in, int64_t n, float *out) {
    const uint16_t *h = (const uint16_t *)in;
    for (int64_t i = 0; i < n; i++) out[i] = widen_bf16(h[i]);
}

static void scan_load_f16(const void *in, int64_t n, float *out) {
    const uint16_t *h = (const uint16_t *)in;
    for (int64_t i = 0; i < n; i++) out[i] = widen_f16(h[i]);
}

/* Maxima of granules, n of them a multiple of FS_GRANULE ids; an instruction set with shuffles of its own defines FS_HAS_MAX. */
static float scan_max(const float *y, int64_t n, float *max);
#ifndef FS_HAS_MAX
static float scan_max(const float *y, int64_t n, float *max) {
    float most = -INFINITY;
    for (int64_t g = 0; g < n / FS_GRANULE; g++) {
        float m[FS_GRANULE];
        for (int i = 0; i < FS_GRANULE; i++) m[i] = y[g * FS_GRANULE + i];
        for (int half = FS_GRANULE / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) m[i] = m[i] > m[i + half] ? m[i] : m[i + half];
        max[g] = m[0];
        most = m[0] > most ? m[0] : most;
    }
    return most;
}
#endif

static fs_survey scan_survey(float *y, int64_t n, float *max) {
    uint32_t nan = 0;
    for (int64_t i = 0; i < n; i++) nan |= y[i] != y[i];
    if (nan)
        for (int64_t i = 0; i < n; i++) y[i] = y[i] == y[i] ? y[i] : -INFINITY;
    fs_survey survey = {scan_max(y, n, max), nan ? (uint32_t)FS_ROW_NAN : 0u};
    if (survey.most == INFINITY) survey.flags |= FS_ROW_INF;
    return survey;
}

/* The first granule from `from` on whose largest l is above the floor, or `to`. Most are below: the test in float, a little loose,
 * vectorises; the exact one follows. */
static int64_t scan_next_above(const float *max, int64_t from, int64_t to, float scale, double floor) {
    const float near = floor > (double)FLT_MAX ? FLT_MAX : floor < -(double)FLT_MAX ? -FLT_MAX : (float)floor;
    const float loose = near - (fabsf(near) * 0x1p-22f + 1e-30f);
    for (int64_t g = from; g < to;) {
        const int64_t n = to - g < FS_GRANULE ? to - g : FS_GRANULE;
        int any = 0;
        if (n == FS_GRANULE)
            for (int i = 0; i < FS_GRANULE; i++) any |= max[g + i] * scale >= loose;
        for (int64_t i = 0; i < n && (any || n < FS_GRANULE); i++)
            if ((double)(max[g + i] * scale) > floor) return g + i;
        g += n;
    }
    return to;
}

/* x[i] = -inf where the bit of id first + i is not set. */
static void scan_mask(const uint32_t *allow, int64_t first, int64_t n, float *x) {
    int64_t i = 0;
    for (; i < n && (first + i) % 32; i++)
        if (!(allow[(first + i) / 32] >> (first + i) % 32 & 1)) x[i] = -INFINITY;
    for (; i + 32 <= n; i += 32) {
        const uint32_t word = allow[(first + i) / 32];
        for (int k = 0; k < 32; k++) x[i + k] = word >> k & 1 ? x[i + k] : -INFINITY;
    }
    for (; i < n; i++)
        if (!(allow[(first + i) / 32] >> (first + i) % 32 & 1)) x[i] = -INFINITY;
}

/* A Philox call for each of 16 blocks of marks: a loop over lanes. */
static void scan_mark_words(fs_noise noise, uint32_t first, fs_marks *marks) {
    for (uint32_t i = 0; i < FS_MARK_BATCH; i++) {
        fs_words words = noise_mark_words(noise, first + i, 0);
        for (int k = 0; k < 4; k++) marks->w[k][i] = words.w[k];
    }
}

/* An instruction set whose compiler does not find the vectors in the loop below defines FS_HAS_MASS. */
static void scan_add_mass(const float *y, const float *max, int64_t n, float scale, fs_mass *mass);
#ifndef FS_HAS_MASS
static void scan_add_mass(const float *y, const float *max, int64_t n, float scale, fs_mass *mass) {
    (void)max;
    for (int64_t g = 0; g < n; g += FS_GRANULE) {
        float l[FS_GRANULE];
        for (int i = 0; i < FS_GRANULE; i++) l[i] = y[g + i] * scale;
        mass_add_granule(mass, l);
    }
}
#endif

const fs_scan FS_JOIN(fs_scan_, FS_ISA) = {.load = {scan_load_f32, scan_load_f16, scan_load_bf16},
                                           .mask = scan_mask,
                                           .survey = scan_survey,
                                           .next_above = scan_next_above,
                                           .mark_words = scan_mark_words,
                                           .add_mass = scan_add_mass};
