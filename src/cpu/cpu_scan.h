/* cpu_scan.h - scans over a block of logits in cache: plain loops that the compiler vectorises, one source for every instruction
 * set like cpu_tile.h. Contraction is off here (see mass.h), so every row of the table gives the same bits. */
#include "cpu_isa.h"

#include "core/halves.h"

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

static uint32_t scan_clean(float *x, int64_t n) {
    uint32_t nan = 0, inf = 0;
    for (int64_t i = 0; i < n; i++) {
        nan |= x[i] != x[i];
        inf |= x[i] == INFINITY;
    }
    if (nan)
        for (int64_t i = 0; i < n; i++) x[i] = x[i] == x[i] ? x[i] : -INFINITY;
    return (nan ? (uint32_t)FS_ROW_NAN : 0u) | (inf ? (uint32_t)FS_ROW_INF : 0u);
}

static float scan_granule_max(const float *y, int64_t n, float *max) {
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

static void scan_add_mass(const float *y, int64_t n, float scale, fs_mass *mass) {
    for (int64_t g = 0; g < n; g += FS_GRANULE) {
        float l[FS_GRANULE];
        for (int i = 0; i < FS_GRANULE; i++) l[i] = y[g + i] * scale;
        mass_add_granule(mass, l);
    }
}

const fs_scan FS_JOIN(fs_scan_, FS_ISA) = {
    {scan_load_f32, scan_load_f16, scan_load_bf16}, scan_clean, scan_granule_max, scan_add_mass};
