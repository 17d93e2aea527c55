/* screen.h - a screen: a copy of W in 8 or 4 bits, beside W, with proven bounds of what it leaves out. Which tokens of
 * a row can win is known from the screen and the bounds; the logits of those few come from W as it lies, so a draw by a
 * screen is the draw without it, bit for bit. docs/explain/screens.md has the proofs; this file, what backends share.
 *
 *   a screen   a header of 128 bytes; FS_SCREEN_MIXED: the order of columns, 4 bytes each, in whole lines; then strips
 *   a strip    16 tokens: their norms, hashes of their weights, 128 bytes; then a record for every 128 columns
 *   a record   8 bits: [2 chunks of 64 columns, 16 tokens, 64] int8, then bf16 scale [16], bf16 residual [16]
 *              4 bits: [2 chunks, 8 pairs of tokens g and g + 8, 64] bytes, g in the lower half, both stored as q + 8,
 *                      then bf16 scale [2 chunks, 16]
 *
 * A weight is q * scale; columns behind the last and tokens behind the last are q = 0.
 *
 * FS_SCREEN_MIXED keeps its first columns in 8 bits, as two numbers of 4: q = 16 high + low, both from -8 to 7. A
 * record of 64 such columns has the high numbers in chunk 0, with 16 times the scale, and the low numbers in chunk 1.
 * So every record is one of 4 bits, and a kernel needs no more than hidden states in the order of the chunks, those of
 * kept columns twice. High numbers are exact: rounding is the low ones' alone. The order of columns puts first those in
 * which hidden states are large.
 *
 * Inside a chunk columns lie in their order, but the middle two of every four change places. Why so:
 * - 16 bytes of a line of 64 are what lane (g, t) of a warp holds of an m16k16 A operand (mma.sync, wgmma) in 4 steps
 *   of k, t being the number of the 16 bytes. Of every 32-bit word, bytes 0 and 2 are the register of columns 2t and
 *   2t + 1, bytes 1 and 3 that of 2t + 8 and 2t + 9, so that 0x00FF00FF (or 0x000F000F) picks a register. Step s of
 *   lane t is columns 16 t + 4 s .. + 3 of the chunk, and hidden states are put in that order, in whole pairs.
 * - 64 bytes are 64 columns of one token (or two): a vector for sdot and vpdpbusd, a row of an AMX tile.
 * - a strip is one stream of memory, and every part of it begins a cache line.
 * Neither backend has to pack it again. Another order would be another number in the header (`layout`). */
#ifndef FS_CORE_SCREEN_H
#define FS_CORE_SCREEN_H

#include "format.h"
#include "halves.h"
#include "hash.h"
#include "philox.h"

#include "flashsampling_screens.h"

#include <math.h>

#define FS_SCREEN_MAGIC 0x4E45455243535346u /* "FSSCREEN" */
#define FS_SCREEN_VERSION 3
#define FS_SCREEN_LAYOUT 1
#define FS_SCREEN_TOKENS 16 /* of a strip */
#define FS_SCREEN_CHUNK 64  /* columns */
#define FS_SCREEN_SPAN 128  /* columns of a record */
#define FS_SCREEN_TAIL 64   /* bytes of a record behind its weights */
#define FS_SCREEN_STRIP_HEAD 128
#define FS_SCREEN_LINE 64                     /* bytes that are hashed at once */
#define FS_SCREEN_NORM_MOST 0x1p60f           /* of tokens and rows: no product, sum or bound overflows */
#define FS_SCREEN_STEP_LEAST 0x1p-60          /* of 4 bits: steps are squared in float */
#define FS_SCREEN_KEPT_MOST 1024              /* columns in 8 bits of FS_SCREEN_MIXED */
#define FS_SCREEN_DIM_MOST ((int64_t)1 << 19) /* sums of bounds in float are proven up to here */

/* Sums of hashes, so that strips may come in any order, from any thread. */
typedef struct fs_screen_sums {
    uint64_t weights; /* of every weight that the screen was made of */
    uint64_t body;    /* of every byte behind the header */
} fs_screen_sums;

typedef struct fs_screen_header {
    uint64_t magic;
    uint32_t version, layout;
    int32_t format;      /* FS_SCREEN_... */
    int32_t group;       /* columns of a scale */
    int32_t dtype;       /* of W */
    float reach;         /* 4 bits: deviations of the bound, see screen_reach */
    int64_t rows, dim;   /* of W */
    int64_t first_token; /* id of row 0: rounding is by id, so a shard's screen is a slice of the whole one */
    uint64_t seed;       /* of the rounding */
    double eta;
    fs_screen_sums sums;
    uint64_t order; /* FS_SCREEN_MIXED: screen_order_hash */
    int32_t kept;   /* FS_SCREEN_MIXED: columns in 8 bits, a multiple of FS_SCREEN_CHUNK; else 0 */
    char reserved[20];
    uint64_t hash; /* of the members above */
} fs_screen_header;

typedef struct fs_strip_head {
    float norm[FS_SCREEN_TOKENS]; /* at least |w|, and |w| of the screen; +inf: nothing is known of it */
    uint64_t sample;              /* screen_sample_hash of W */
    uint64_t weights;             /* this strip's share of the header's sums.weights */
    char reserved[48];
} fs_strip_head;

/* A screen as a backend takes it. */
typedef struct fs_screen {
    int32_t format, group; /* FS_SCREEN_INT8 or FS_SCREEN_INT4: how records are read */
    float reach;
    int32_t kept; /* columns in 8 bits of FS_SCREEN_MIXED; their order is screen_columns() */
    int64_t rows, dim, records;
    int64_t record_bytes, strip_bytes;
    const unsigned char *strips;
} fs_screen; /* a launch has a copy: its size counts */

FS_CORE int64_t screen_record_bytes(int32_t format) {
    return FS_SCREEN_TOKENS * FS_SCREEN_SPAN / (format == FS_SCREEN_INT8 ? 1 : 2) + FS_SCREEN_TAIL;
}

/* Records of a strip, those of kept columns first. */
FS_CORE int64_t screen_records(int64_t dim, int64_t kept) {
    const int64_t others = dim > kept ? dim - kept : 0;
    return kept / FS_SCREEN_CHUNK + (others + FS_SCREEN_SPAN - 1) / FS_SCREEN_SPAN;
}

FS_CORE int64_t screen_strip_bytes(int32_t format, int64_t dim, int64_t kept) {
    return FS_SCREEN_STRIP_HEAD + screen_records(dim, kept) * screen_record_bytes(format);
}

/* Bytes in front of the strips: the header, and the order of columns. */
FS_CORE int64_t screen_head_bytes(int64_t dim, int64_t kept) {
    const int64_t line = FS_SCREEN_LINE;
    return (int64_t)sizeof(fs_screen_header) + (kept ? (dim * 4 + line - 1) / line * line : 0);
}

FS_CORE int64_t screen_strips(int64_t rows) {
    return (rows + FS_SCREEN_TOKENS - 1) / FS_SCREEN_TOKENS;
}

FS_CORE int64_t screen_bytes(int32_t format, int64_t rows, int64_t dim, int64_t kept) {
    return screen_head_bytes(dim, kept) + screen_strips(rows) * screen_strip_bytes(format, dim, kept);
}

/* The screen at `bytes`, whose header may have been read from there. */
FS_CORE fs_screen screen_at(const void *bytes, const fs_screen_header *header) {
    fs_screen s;
    s.format = header->format == FS_SCREEN_INT8 ? FS_SCREEN_INT8 : FS_SCREEN_INT4;
    s.group = header->group;
    s.reach = header->reach;
    s.rows = header->rows;
    s.dim = header->dim;
    s.kept = header->kept;
    s.records = screen_records(header->dim, header->kept);
    s.record_bytes = screen_record_bytes(header->format);
    s.strip_bytes = screen_strip_bytes(header->format, header->dim, header->kept);
    s.strips = (const unsigned char *)bytes + screen_head_bytes(header->dim, header->kept);
    return s;
}

/* [dim] the order of columns, in front of the strips; NULL: as they lie in W. */
FS_CORE const uint32_t *screen_columns(const fs_screen *s) {
    const int64_t bytes = screen_head_bytes(s->dim, s->kept) - (int64_t)sizeof(fs_screen_header);
    return s->kept ? (const uint32_t *)(const void *)(s->strips - bytes) : NULL;
}

FS_CORE fs_screen screen_of(const void *bytes) {
    return screen_at(bytes, (const fs_screen_header *)bytes);
}

FS_CORE uint64_t screen_header_hash(const fs_screen_header *h) {
    uint64_t hash = hash_mix(h->magic, (uint64_t)h->version << 32 | h->layout);
    hash = hash_mix(hash, (uint64_t)(uint32_t)h->format << 32 | (uint32_t)h->group);
    hash = hash_mix(hash, (uint64_t)(uint32_t)h->dtype << 32 | float_bits(h->reach));
    hash = hash_mix(hash_mix(hash, (uint64_t)h->rows), (uint64_t)h->dim);
    hash = hash_mix(hash_mix(hash, (uint64_t)h->first_token), h->seed);
    hash = hash_mix(hash_mix(hash, h->sums.weights), h->sums.body);
    hash = hash_mix(hash_mix(hash, h->order), (uint64_t)(uint32_t)h->kept);
    return hash_end(hash_mix(hash, double_bits(h->eta)));
}

FS_CORE uint64_t screen_order_hash(const uint32_t *columns, int64_t dim) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < dim; i++) hash = hash_mix(hash, columns[i]);
    return hash_end(hash);
}

/* -------------------------------------------------------------------------------------------------- its parts ---- */

FS_CORE const unsigned char *screen_strip(const fs_screen *s, int64_t strip) {
    return s->strips + strip * s->strip_bytes;
}

FS_CORE const fs_strip_head *strip_head(const unsigned char *strip) {
    return (const fs_strip_head *)(const void *)strip;
}

FS_CORE const unsigned char *strip_record(const fs_screen *s, const unsigned char *strip, int64_t record) {
    return strip + FS_SCREEN_STRIP_HEAD + record * s->record_bytes;
}

/* bf16 [2, 16] behind a record's weights: scales and residuals, or scales of both chunks. */
FS_CORE const uint16_t *record_tail(const fs_screen *s, const unsigned char *record) {
    return (const uint16_t *)(const void *)(record + s->record_bytes - FS_SCREEN_TAIL);
}

/* Where column c of a chunk lies in its line of 64, and the column that lies at a place: it is its own inverse. */
FS_CORE int screen_place(int c) {
    return (c & ~3) | (c & 1) << 1 | (c >> 1 & 1);
}

/* Whether a chunk has the high numbers of kept columns. Chunks of a strip are counted from its first record on. */
FS_CORE int chunk_is_high(int64_t kept, int64_t chunk) {
    return chunk % 2 == 0 && chunk < 2 * (kept / FS_SCREEN_CHUNK);
}

/* Where a chunk's 64 columns begin in the order of columns. */
FS_CORE int64_t chunk_begin(int64_t kept, int64_t chunk) {
    const int64_t twice = 2 * (kept / FS_SCREEN_CHUNK);
    return chunk < twice ? chunk / 2 * FS_SCREEN_CHUNK : kept + (chunk - twice) * FS_SCREEN_CHUNK;
}

/* Column `at` in the order of columns. */
FS_CORE int64_t column_at(const uint32_t *columns, int64_t at) {
    return columns ? (int64_t)columns[at] : at;
}

/* The stored number of (token of the strip, column of the record). */
FS_CORE int record_number(const fs_screen *s, const unsigned char *record, int token, int column) {
    const int chunk = column / FS_SCREEN_CHUNK, at = screen_place(column % FS_SCREEN_CHUNK);
    if (s->format == FS_SCREEN_INT8)
        return (signed char)record[(chunk * FS_SCREEN_TOKENS + token) * FS_SCREEN_CHUNK + at];
    const int byte = record[(chunk * FS_SCREEN_TOKENS / 2 + token % 8) * FS_SCREEN_CHUNK + at];
    return (token < 8 ? byte & 15 : byte >> 4) - 8;
}

FS_CORE float record_scale(const fs_screen *s, const unsigned char *record, int token, int column) {
    const int half = s->format == FS_SCREEN_INT4 ? column / FS_SCREEN_CHUNK : 0;
    return widen_bf16(record_tail(s, record)[half * FS_SCREEN_TOKENS + token]);
}

/* 8 bits: at least |w - w of the screen| over the record's columns. */
FS_CORE float record_residual(const fs_screen *s, const unsigned char *record, int token) {
    return widen_bf16(record_tail(s, record)[FS_SCREEN_TOKENS + token]);
}

/* ----------------------------------------------------------------------------------------------------- bounds ---- */

/* 4 bits. Rounding errors are independent, of mean 0 and in an interval of one step, so by Hoeffding's inequality the
 * error of a logit passes c sqrt(sum of step^2 |h_g|^2) with probability 2 eta at most, c = sqrt(log(1 / eta) / 2). The
 * mean is 0 but for 2^-17 of a step by the 16 bits that decide, and for the quotient's two roundings: 2^-23 of it, a
 * quotient of at most 8, or 136 of a kept column. Together that is below 2^-16 of a step, or 2^-15 of a kept one, which
 * over all columns is at most so many times sqrt(D) of that root (Cauchy-Schwarz). */
FS_CORE float screen_reach(double eta, int64_t dim, int64_t kept) {
    const double mean = kept ? 0x1p-15 : 0x1p-16;
    return (float)((sqrt(log(1.0 / eta) / 2.0) + mean * sqrt((double)dim)) * (1.0 + 0x1p-20));
}

/* Whatever the order, the sum of D products of floats is off by less than this times |w| |h|: D products and sums, each
 * off by a unit in the last place at most, 2^-23 (to nearest it is half of it; to odd, and cut off, a whole one); the
 * few more are for what is left of sums of sums, of components of H, and of second-order terms. */
FS_CORE double screen_dot_error(int64_t dim) {
    return (double)(dim + 64) * 0x1p-23;
}

/* What is added to a token's bound for every unit of its norm. h: the hidden state, of which a backend multiplies an
 * image (of norm `image`, `off` away from h) by the weights of the screen, with a relative error of at most `error`
 * times |w| |image|. The exact logit, which the bound speaks of, is rounded too. */
FS_CORE double screen_slack(int64_t dim, double norm, double image, double off, double error) {
    return (screen_dot_error(dim) * norm + error * image + off) * (1.0 + 0x1p-20) + 1e-30;
}

/* Bounds are summed in float: no more terms than 2^13 + 20, each off by 2^-24. */
#define FS_SCREEN_WIDER (1.0f + 0x1p-10f)

/* The numbers a bound is made of, by group: of 8 bits the residual and |h_g|, of 4 bits the step and |h_g|, squared. */
FS_CORE float screen_bound(const fs_screen *s, float sum, float norm, float slack) {
    const float spread = s->format == FS_SCREEN_INT8 ? sum : s->reach * sqrtf(sum);
    /* The last is for what is flushed to 0: terms below 2^-126 of a sum whose root is taken. */
    return (spread + norm * slack) * FS_SCREEN_WIDER + 1e-17f;
}

/* --------------------------------------------------------------------------------------------------- rounding ---- */

/* Up, to what bf16 has. Not negative. */
FS_CORE uint16_t bf16_above(double x) {
    const float f = (float)x;
    uint32_t u = float_bits(f);
    if (!(f < INFINITY)) return 0x7F80;
    if ((double)f < x) u++; /* the next float */
    return (uint16_t)((u + 0xFFFF) >> 16);
}

FS_CORE float float_above(double x) {
    const float f = (float)x;
    return (double)f < x ? bits_float(float_bits(f) + 1) : f;
}

/* Random numbers of columns [8 octet, 8 octet + 8) of a token, 16 bits each. */
FS_CORE fs_words screen_random(uint64_t seed, uint32_t token, uint32_t octet) {
    return philox4x32((uint32_t)seed, (uint32_t)(seed >> 32), octet, token, 0x4E524353u /* "SCRN" */, 0);
}

/* t rounded down or up, up with a probability of its fraction. */
FS_CORE int screen_round(float t, uint32_t random16) {
    const float down = floorf(t);
    return (int)down + (random16 < (uint32_t)((t - down) * 65536.0f + 0.5f));
}

/* ------------------------------------------------------------------------------------------------- its weights ---- */

/* The hash of four weights of each token of a strip. It detects another head and rows that were trained further, and
 * reads four cache lines a row. The columns depend on the token's id, so slices agree. */
FS_CORE uint64_t screen_sample_hash(const fs_head *head, const fs_matrix *w, int64_t strip) {
    const int64_t rows = head->rows, dim = head->dim;
    uint64_t hash = 0;
    for (int64_t v = strip * FS_SCREEN_TOKENS; v < (strip + 1) * FS_SCREEN_TOKENS && v < rows; v++)
        for (int i = 0; i < 4; i++) {
            const int64_t d = (int64_t)(hash_end((uint64_t)(head->first_token + v) * 4 + (uint64_t)i) % (uint64_t)dim);
            hash = hash_mix(hash, float_bits(element_at(matrix_row(w, v), w->format, d)));
        }
    return hash_end(hash);
}

/* The hash of 128 columns of a token's weights, as floats, from column `from` on. */
FS_CORE uint64_t screen_span_hash(const float *w, int64_t id, int64_t from) {
    uint64_t sum = 0;
    for (int at = 0; at < FS_SCREEN_SPAN; at += FS_SCREEN_LINE / 4) {
        uint64_t line[8];
        for (int i = 0; i < 8; i++) line[i] = (uint64_t)float_bits(w[at + 2 * i + 1]) << 32 | float_bits(w[at + 2 * i]);
        sum += hash_line((uint64_t)id << 32 | (uint64_t)(from + at), line);
    }
    return sum;
}

#endif
