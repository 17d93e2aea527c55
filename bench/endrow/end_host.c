/* end_host.c - what end.cuh does with one row, on the host: for a comparison with the CPU backend. */
#include "core/cut.h"
#include "core/key.h"
#include "core/noise.h"

#include <stdlib.h>

static uint64_t weigh(float y, float scale, float origin, int32_t unit) { /* cut_scale::weigh */
    const fs_exp e = exp_split(y * scale - origin);
    const uint32_t bits = float_bits(e.fraction), mantissa = (bits & 0x7FFFFFu) | 0x800000u;
    const int32_t shift = (int32_t)(bits >> 23) - 150 + e.exponent - unit + 39;
    if (shift >= 0) return (uint64_t)mantissa << (shift < 40 ? shift : 40);
    return shift > -31 ? (mantissa + (1u << (-shift - 1))) >> -shift : 0;
}

/* The token; -1: the row is open. most [tiles][strips], logits [128 tiles] with anything where a strip is not stored. */
int32_t end_host(const float *logits, const float *most, int64_t tiles, int32_t strips, float floor, int32_t k,
                 float top_p, float temperature, uint64_t seed, uint64_t position) {
    const float inverse = 1.0f / temperature;
    const fs_noise noise = noise_row(seed, position, 0, 0);
    const int32_t quads = 4 * (8 / strips);
    uint64_t key[1024], weight[1024], all = 0, best = 0;
    int32_t rank[1024], n = 0;
    uint64_t ahead[1024];
    float first = -INFINITY;
    for (int64_t s = 0; s < tiles * strips; s++)
        if (most[s] > first) first = most[s];
    const float origin = cut_origin(first * inverse);
    const int32_t unit = exp_split(first * inverse - origin).exponent;
    for (int64_t s = 0; s < tiles * strips; s++) {
        if (!(most[s] >= floor)) continue;
        for (int32_t part = 0; part < quads; part++)
            for (int32_t e = 0; e < 4; e++) {
                const int64_t token = s / strips * 128 + s % strips * 16 + part / 4 * 64 + part % 4 * 4 + e;
                if (!(logits[token] >= floor)) continue;
                if (n == 1024) return -1;
                key[n] = order_key(logits[token], (uint32_t)token);
                weight[n++] = weigh(logits[token], inverse, origin, unit);
            }
    }
    for (int32_t i = 0; i < n; i++) {
        rank[i] = 0, ahead[i] = 0;
        for (int32_t j = 0; j < n; j++)
            if (key[j] > key[i]) rank[i]++, ahead[i] += weight[j];
        if (rank[i] < k) all += weight[i];
    }
    const double share = fmax(ceil((double)top_p * (double)all), 1.0);
    for (int32_t i = 0; i < n; i++) {
        if (rank[i] >= k || (top_p < 1.0f && (double)ahead[i] >= share)) continue;
        const uint32_t token = order_key_token(key[i]);
        const float l = order_key_logit(key[i]) * inverse;
        const uint64_t score = score_key((double)l + noise_gumbel(noise, token), token);
        if (score > best) best = score;
    }
    return n ? (int32_t)score_key_token(best) : -1;
}
