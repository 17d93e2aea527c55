/* The kernel of screens in plain C. */
#include "cpu_screen.h"

/* The product of a line of 64 whole numbers and a chunk of H. */
static int32_t line_dot(const int8_t *w, const int8_t *h) {
    int32_t sum = 0;
    for (int i = 0; i < FS_SCREEN_CHUNK; i++) sum += w[i] * h[i];
    return sum;
}

static fs_strip_sums dots8(const fs_screen *s, const unsigned char *strip, fs_image h) {
    fs_strip_sums sums = {{0}, {0}};
    for (int32_t e = 0; e < h.entries; e++) {
        const unsigned char *record = strip_record(s, strip, h.record[e]);
        const int8_t *w = (const int8_t *)record, *q = h.q + e * FS_SCREEN_SPAN;
        for (int t = 0; t < FS_SCREEN_TOKENS; t++, w += FS_SCREEN_CHUNK) {
            const int32_t dot = line_dot(w, q) + line_dot(w + FS_SCREEN_TOKENS * FS_SCREEN_CHUNK, q + FS_SCREEN_CHUNK);
            sums.dot[t] += (float)dot * (widen_bf16(record_tail(s, record)[t]) * h.step[e]);
            if (e < s->records) sums.spread[t] += record_residual(s, record, t) * h.norm[2 * e];
        }
    }
    return sums;
}

static fs_strip_sums dots4(const fs_screen *s, const unsigned char *strip, fs_image h) {
    fs_strip_sums sums = {{0}, {0}};
    for (int32_t c = 0; c < 2 * h.entries; c++) {
        const unsigned char *record = strip_record(s, strip, h.record[c / 2]);
        const unsigned char *line = record + c % 2 * (FS_SCREEN_TOKENS / 2 * FS_SCREEN_CHUNK);
        const uint16_t *scale = record_tail(s, record) + c % 2 * FS_SCREEN_TOKENS;
        const int8_t *q = h.q + c * FS_SCREEN_CHUNK;
        for (int g = 0; g < FS_SCREEN_TOKENS / 2; g++, line += FS_SCREEN_CHUNK) {
            int8_t low[FS_SCREEN_CHUNK], high[FS_SCREEN_CHUNK];
            for (int i = 0; i < FS_SCREEN_CHUNK; i++) {
                low[i] = (int8_t)(line[i] & 15);
                high[i] = (int8_t)(line[i] >> 4);
            }
            const int32_t dot[2] = {line_dot(low, q) - 8 * h.sum[c], line_dot(high, q) - 8 * h.sum[c]};
            for (int i = 0; i < 2; i++) {
                const float step = widen_bf16(scale[g + 8 * i]);
                sums.dot[g + 8 * i] += (float)dot[i] * (step * h.step[c / 2]);
                if (c < 2 * s->records) sums.spread[g + 8 * i] += step * step * h.norm[c];
            }
        }
    }
    return sums;
}

FS_DEFINE_SCREEN_KERNEL(scalar);
