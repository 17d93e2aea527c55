/* synth.c - language-like synthetic weights.
 *
 * What a sampler meets in a language model: frequencies fall like Zipf's law, frequent tokens have low ids (a BPE
 * vocabulary is roughly sorted by frequency), and a context raises some tokens far above their frequency, sharply or
 * broadly. So
 *
 *   W[v] = z(v) e + t[topic(v)] + noise      z(v) = -log(1 + v/32), shifted by a constant
 *   H[b] = c_b e + beta_b t[topic_b] + own direction
 *
 * where e and the 256 t are fixed sign vectors of length 1 (nearly orthogonal) and ids below 64, the function words,
 * have no topic. The logit is c_b z(v) + beta_b [same topic] + noise of deviation 1 to 1.6: Zipf with an exponent c_b
 * of 1.6 to 2.5, a topic of V/256 tokens raised by 7 to 12. Measured over 64 rows, V = 151,936, D = 1024, bf16,
 * temperature 1: a top-p 0.95 nucleus of 3 to 1,679 tokens, a quarter of the rows below 37, half below 84; 27 % of the
 * mass lies on ids below 128, 84 % below 1024.
 */
#include "synth.h"
#include "cli.h"
#include "half.h"
#include "parallel.h"
#include "print.h"

#include <math.h>

#define TOPICS 256
#define FUNCTION_WORDS 64
#define NOISE 0.115 /* length of a row's noise: times |h|, 10 to 14, the deviation of its logits */
#define OWN 6.0     /* length of a context's own direction */
#define GAIN 8.0f   /* H is this much larger and W smaller, towards the sizes of trained models */

const char *const dtype_names[] = {"f32", "f16", "bf16", NULL};

int64_t dtype_bytes(int dtype) {
    return dtype == FS_F32 ? 4 : 2;
}

int64_t synth_rows(const synth *s) {
    return s->rows ? s->rows : s->V;
}

float load_element(const void *data, int dtype, int64_t i) {
    if (dtype == FS_F32) return ((const float *)data)[i];
    uint16_t h = ((const uint16_t *)data)[i];
    return dtype == FS_F16 ? float_of_f16(h) : float_of_bf16(h);
}

static void store_row(void *data, int dtype, int64_t first, const float *x, int64_t n) {
    if (dtype == FS_F32)
        for (int64_t i = 0; i < n; i++) ((float *)data)[first + i] = x[i];
    if (dtype == FS_F16)
        for (int64_t i = 0; i < n; i++) ((uint16_t *)data)[first + i] = f16_of_float(x[i]);
    if (dtype == FS_BF16)
        for (int64_t i = 0; i < n; i++) ((uint16_t *)data)[first + i] = bf16_of_float(x[i]);
}

/* A well-mixed function of (seed, a, b): two rounds of multiply and shift. Nothing here needs more. */
static uint64_t mix(uint64_t seed, uint64_t a, uint64_t b) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + a * 0xD1B54A32D192ED03u + b * 0x8CB92BA72F3D8DD7u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 32;
}

static double unit(uint64_t seed, uint64_t a, uint64_t b) {
    return (double)(mix(seed, a, b) >> 11) * 0x1p-53;
}

/* Domains, so that no two uses of mix see the same numbers. */
enum { DIRECTION = 1 << 20, TOPIC, NOISE_OF_W, OWN_OF_H, CONTEXT };

/* Adds scale times the sign vector `index` (0 = e, 1 + r = t[r]) to x [D]. */
static void add_direction(const synth *s, float *x, uint64_t index, double scale) {
    float step = (float)(scale / sqrt((double)s->D));
    for (int64_t d = 0; d < s->D; d++) {
        uint64_t word = mix(s->seed, DIRECTION + index * 4096, (uint64_t)d >> 6);
        x[d] += word >> (d & 63) & 1 ? step : -step;
    }
}

/* Adds noise of this length: each element the sum of two uniform bytes, four elements per word. A dot product over many
 * of them is as normal as one over normal variables. */
static void add_noise(const synth *s, float *x, uint64_t domain, uint64_t row, double length) {
    const double deviation = 104.5; /* of the sum of two bytes */
    float scale = (float)(length / deviation / sqrt((double)s->D));
    for (int64_t d = 0; d < s->D; d += 4) {
        uint64_t word = mix(s->seed + domain, row, (uint64_t)d);
        for (int64_t i = d; i < d + 4 && i < s->D; i++, word >>= 16)
            x[i] += scale * (float)((int)(word & 255) + (int)(word >> 8 & 255) - 255);
    }
}

static uint64_t topic_of_token(const synth *s, int64_t v) {
    return mix(s->seed, TOPIC, (uint64_t)v) % TOPICS;
}

/* ----------------------------------------------------------------------------------------------------- W, H ---- */

typedef struct fill {
    const synth *s;
    void *w;
    const float *direction; /* [1 + TOPICS, D] unit vectors */
    int64_t first, step;
} fill;

static void fill_rows(void *argument, int i) {
    const fill *f = argument;
    const synth *s = f->s;
    int64_t begin = f->first + i * f->step, end = begin + f->step;
    float row[1 << 14];
    for (int64_t v = begin; v < end && v < s->first + synth_rows(s); v++) {
        float z = (float)(log1p((double)s->V / 64.0) - log1p((double)v / 32.0));
        const float *e = f->direction, *t = f->direction + s->D * (int64_t)(1 + topic_of_token(s, v));
        float raise = v < FUNCTION_WORDS ? 0.0f : 1.0f;
        for (int64_t d = 0; d < s->D; d++) row[d] = z * e[d] + raise * t[d];
        add_noise(s, row, NOISE_OF_W, (uint64_t)v, NOISE);
        for (int64_t d = 0; d < s->D; d++) row[d] *= 1.0f / GAIN;
        store_row(f->w, s->dtype, (v - s->first) * s->D, row, s->D);
    }
}

void synth_weights(const synth *s, void *w, int threads) {
    if (s->D > 1 << 14) die(END_USAGE, "a synthetic hidden size of %lld: at most %d", (long long)s->D, 1 << 14);
    float *direction = take_memory((1 + TOPICS) * s->D, sizeof *direction, "topics");
    for (int r = 0; r <= TOPICS; r++) add_direction(s, direction + s->D * r, (uint64_t)r, 1.0);
    fill f = {s, w, direction, s->first, 256};
    int chunk = 32; /* tasks between two looks at the progress */
    for (; f.first < s->first + synth_rows(s); f.first += f.step * chunk) {
        parallel_for(threads, chunk, fill_rows, &f);
        progress_at((double)(f.first - s->first));
    }
}

void synth_hidden(const synth *s, void *h) {
    float *row = take_memory(s->D, sizeof *row, "a hidden state");
    for (int64_t b = 0; b < s->B; b++) {
        double c = 1.6 + 0.9 * unit(s->seed, CONTEXT, (uint64_t)b);
        double beta = 7.0 + 5.0 * unit(s->seed, CONTEXT + 1, (uint64_t)b);
        uint64_t topic = mix(s->seed, CONTEXT + 2, (uint64_t)b) % TOPICS;
        for (int64_t d = 0; d < s->D; d++) row[d] = 0.0f;
        add_direction(s, row, 0, c);
        add_direction(s, row, 1 + topic, beta);
        add_noise(s, row, OWN_OF_H, (uint64_t)b, OWN);
        for (int64_t d = 0; d < s->D; d++) row[d] *= GAIN;
        store_row(h, s->dtype, b * s->D, row, s->D);
    }
}
