/* cpu_scan.h - scans over a block of logits in cache: plain loops that the compiler vectorises, one source for every
 * instruction set like cpu_tile.h. Contraction is off here (see mass.h), so every row of the table gives the same bits,
 * as far as cpu_isa.h says. */
#include "cpu_isa.h"
#include "cpu_rough.h"

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

/* An instruction set whose compiler does not find the vectors in a loop below writes it itself and defines FS_HAS_ and
 * its name. */
static fs_survey scan_survey(const uint32_t *allow, int64_t base, float *y, int64_t n, float *max);
#ifndef FS_HAS_SURVEY
static fs_survey scan_survey(const uint32_t *allow, int64_t base, float *y, int64_t n, float *max) {
    uint32_t nan = 0;
    for (int64_t g = 0; allow && g < n; g += FS_GRANULE) {
        const uint32_t bits = allow[(base + g) / 32] >> (base + g) % 32;
        for (int k = 0; k < FS_GRANULE; k++) y[g + k] = bits >> k & 1 ? y[g + k] : -INFINITY;
    }
    for (int64_t i = 0; i < n; i++) nan |= y[i] != y[i];
    if (nan)
        for (int64_t i = 0; i < n; i++) y[i] = y[i] == y[i] ? y[i] : -INFINITY;
    float most = -INFINITY;
    for (int64_t g = 0; g < n / FS_GRANULE; g++) {
        float m[FS_GRANULE];
        for (int i = 0; i < FS_GRANULE; i++) m[i] = y[g * FS_GRANULE + i];
        for (int half = FS_GRANULE / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) m[i] = m[i] > m[i + half] ? m[i] : m[i + half];
        max[g] = m[0];
        most = m[0] > most ? m[0] : most;
    }
    fs_survey survey = {most, nan ? (uint32_t)FS_ROW_NAN : 0u};
    if (most == INFINITY) survey.flags |= FS_ROW_INF;
    return survey;
}
#endif

/* The first granule from `from` on whose largest l is above the floor, or `to`. Most are below: the test in float, a
 * little loose, vectorises; the exact one follows. */
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

static int64_t scan_append(const float *y, const float *max, int64_t from, int64_t to, float floor, uint32_t base,
                           fs_list *list);
#ifndef FS_HAS_APPEND
static int64_t scan_append(const float *y, const float *max, int64_t from, int64_t to, float floor, uint32_t base,
                           fs_list *list) {
    int32_t count = list->count;
    int64_t g = from;
    for (; g < to; g++) {
        if (!(max[g] > floor)) continue;
        /* Each is written, and stays if it is above the floor: no branch to guess. */
        for (int64_t i = g * FS_GRANULE; i < (g + 1) * FS_GRANULE; i++) {
            list->key[count] = order_key(y[i], base + (uint32_t)i);
            count += y[i] > floor;
        }
        if (count > list->capacity) break;
        list->count = count;
    }
    return g;
}
#endif

/* A Philox call for each block, a loop over lanes; four blocks of ten have a mark. */
static uint32_t scan_marks(const fs_mark_test *test, uint32_t first, fs_marks *marks);
#ifndef FS_HAS_MARKS
static uint32_t scan_marks(const fs_mark_test *test, uint32_t first, fs_marks *marks) {
    for (uint32_t i = 0; i < FS_MARK_BATCH; i++) {
        fs_words words = noise_mark_words(test->noise, first + i, 0);
        for (int k = 0; k < 4; k++) marks->w[k][i] = words.w[k];
    }
    uint32_t some = 0;
    for (uint32_t i = 0; i < FS_MARK_BATCH; i++) some |= (uint32_t)(marks->w[0][i] >= FS_MARKS_1) << i;
    return some;
}
#endif

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

static void scan_add_entropy(const float *y, int64_t n, float scale, fs_entropy *entropy) {
    for (int64_t g = 0; g < n; g += FS_GRANULE) {
        float l[FS_GRANULE];
        for (int i = 0; i < FS_GRANULE; i++) l[i] = y[g + i] * scale;
        entropy_add_granule(entropy, l);
    }
}

#define FS_ROUGH_CHUNK FS_MASS_BLOCK_MOST /* tokens whose terms are summed in float: 64 additions a lane */

static float rough_sum(const float *y, int64_t n, rough_scale s);
#ifndef FS_HAS_ROUGH
static float rough_sum(const float *y, int64_t n, rough_scale s) {
    /* magic + t is rounded to an integer whose last bits are the exponent of 2^(t - unit). */
    const float least = (float)(s.unit - 100) / s.per, magic = (float)(12582912 + 127 - s.unit);
    float sum[FS_GRANULE] = {0};
    for (int64_t g = 0; g < n; g += FS_GRANULE)
        for (int i = 0; i < FS_GRANULE; i++) {
            const float t = (y[g + i] > least ? y[g + i] : least) * s.per;
            const float shifted = (t - 0.5f) + magic, f = t - (shifted - magic);
            float p = FS_EXP2_4;
            p = p * f + FS_EXP2_3;
            p = p * f + FS_EXP2_2;
            p = p * f + FS_EXP2_1;
            p = p * f + FS_EXP2_0;
            sum[i] += p * bits_float(float_bits(shifted) << 23);
        }
    float all = 0.0f;
    for (int i = 0; i < FS_GRANULE; i++) all += sum[i];
    return all;
}
#endif

static void scan_add_rough(const float *y, float most, int64_t n, float scale, fs_mass *mass) {
    const rough_scale s = rough_scale_of(most, scale);
    for (int64_t i = 0; i < n; i += FS_ROUGH_CHUNK) {
        float sum = rough_sum(y + i, n - i < FS_ROUGH_CHUNK ? n - i : FS_ROUGH_CHUNK, s);
        if (sum > 0x1p-60f) mass_add(mass, sum, s.unit);
    }
}

static uint64_t scan_key_range(const uint64_t *key, int32_t n, uint64_t *least) {
    uint64_t most = key[0], low = key[0];
    for (int32_t i = 1; i < n; i++) {
        most = key[i] > most ? key[i] : most;
        low = key[i] < low ? key[i] : low;
    }
    *least = low;
    return most;
}

static void scan_bin(const uint64_t *key, int32_t n, fs_bins bins, int32_t *bin) {
    for (int32_t i = 0; i < n; i++) {
        const float down = (bins.top - order_key_logit(key[i])) * bins.per;
        bin[i] = down < (float)(FS_BINS - 1) ? (int32_t)down : FS_BINS - 1;
    }
}

static int32_t scan_count_above(const uint64_t *key, int32_t n, uint64_t above) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) count += key[i] > above;
    return count;
}

static int32_t scan_keep_above(uint64_t *key, int32_t n, uint64_t above);
#ifndef FS_HAS_KEEP
static int32_t scan_keep_above(uint64_t *key, int32_t n, uint64_t above) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        const uint64_t k = key[i];
        key[count] = k;
        count += k > above;
    }
    return count;
}
#endif

const fs_scan FS_JOIN(fs_scan_, FS_ISA) = {
    .load = {[FS_FORMAT_F32] = scan_load_f32, [FS_FORMAT_F16] = scan_load_f16, [FS_FORMAT_BF16] = scan_load_bf16},
    .survey = scan_survey,
    .next_above = scan_next_above,
    .append = scan_append,
    .marks = scan_marks,
    .add_mass = scan_add_mass,
    .add_entropy = scan_add_entropy,
    .add_rough = scan_add_rough,
    .key_range = scan_key_range,
    .bin = scan_bin,
    .count_above = scan_count_above,
    .keep_above = scan_keep_above};
