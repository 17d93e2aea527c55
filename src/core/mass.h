/* mass.h - sums of exp(l) that do not depend on the order of addition, so that log Z and every mass cut are
 * bit for bit the same for any blocks, threads and shards.
 *
 * Tokens are summed in granules of 16 aligned ids: inside a granule in one fixed order in float against a power of two,
 * between granules as integers. A mass is the top three limbs of a number in base 2^24:
 *
 *     value = limb[0] * 2^(24 top) + limb[1] * 2^(24 (top - 1)) + limb[2] * 2^(24 (top - 2))
 *
 * A granule's sum is a float, 24 bits, and lands in at most two limbs. Limbs are 64 bits wide and never carry, so
 * addition is exact; what falls below the third limb is dropped whole, limb by limb, which is the same whatever came
 * first. Dropped terms are below 2^-48 of the largest each, 2^-28 of the sum for 2^20 granules.
 *
 * No fused multiply-add is used (the build forbids contraction): the result is the same on every CPU. */
#ifndef FS_CORE_MASS_H
#define FS_CORE_MASS_H

#include "core.h"

#include <math.h>

#define FS_GRANULE 16
#define FS_MASS_EMPTY (-32768) /* `top` of no mass at all; fits 16 bits on the wire */

typedef struct fs_mass {
    int32_t top;
    uint64_t limb[3];
} fs_mass;

/* exp(l) = fraction * 2^exponent with the fraction in [0.70, 1.42]. */
typedef struct fs_exp {
    float fraction;
    int32_t exponent;
} fs_exp;

/* |exponent| < 2^19 keeps every top in 16 bits. Logits beyond +-363,000 saturate here: see mass_is_far. */
#define FS_EXP_LIMIT 363000.0f
/* Up to here both products of exp_split's reduction with the upper parts of ln 2 are exact. */
#define FS_EXP_EXACT 45000.0f

/* e^r on |r| <= ln2/2 by its Taylor polynomial to r^7: relative error below 1e-7 with float rounding. */
FS_CORE float exp_near_zero(float r) {
    float p = 1.98412698e-04f;
    p = p * r + 1.38888889e-03f;
    p = p * r + 8.33333333e-03f;
    p = p * r + 4.16666667e-02f;
    p = p * r + 1.66666667e-01f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    return p * r + 1.0f;
}

/* l = *exponent * log 2 + what is returned, of at most log(2) / 2 but for rounding. The reduction splits ln 2 in
 * 4 + 8 + 24 bits. */
FS_CORE float exp_reduce(float l, int32_t *exponent) {
    l = l > FS_EXP_LIMIT ? FS_EXP_LIMIT : l;
    l = l < -FS_EXP_LIMIT ? -FS_EXP_LIMIT : l;
    /* Adding 1.5 * 2^23 rounds to an integer held in the low mantissa bits. */
    float shifted = l * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    *exponent = (int32_t)(float_bits(shifted) - 0x4B400000u);
    return ((l - n * 0.6875f) - n * 0.005645751953125f) - n * 1.42860682e-06f;
}

FS_CORE fs_exp exp_split(float l) {
    fs_exp e;
    e.fraction = exp_near_zero(exp_reduce(l, &e.exponent));
    return e;
}

/* The fraction scaled by 2^shift, shift <= 0; below 2^-60 nothing of it would be left in a sum. */
FS_CORE float exp_scaled(float fraction, int32_t shift) {
    uint32_t bits = float_bits(fraction) + ((uint32_t)shift << 23);
    return shift < -60 ? 0.0f : bits_float(bits);
}

FS_CORE fs_mass mass_empty(void) {
    fs_mass m = {FS_MASS_EMPTY, {0, 0, 0}};
    return m;
}

FS_CORE int mass_is_empty(const fs_mass *m) {
    return m->top == FS_MASS_EMPTY;
}

/* Whether the largest term may have been one that exp_split clamps, of an |l| above 362,000; so is no mass at all,
 * where there is a token. */
#define FS_MASS_REACH 21760 /* 362,000 / (24 ln 2) */

FS_CORE int mass_is_far(const fs_mass *m) {
    return m->top > FS_MASS_REACH || m->top < -FS_MASS_REACH;
}

/* Makes `top` the top limb of m; top must not be below m->top. */
FS_CORE void mass_raise(fs_mass *m, int32_t top) {
    const int32_t by = top - m->top;
    if (by <= 0) return;
    m->limb[2] = by == 1 ? m->limb[1] : by == 2 ? m->limb[0] : 0;
    m->limb[1] = by == 1 ? m->limb[0] : 0;
    m->limb[0] = 0;
    m->top = top;
}

/* A positive number of 24 bits, by limbs: high * 2^(24 (low + 1)) + rest * 2^(24 low). */
typedef struct fs_mass_part {
    uint64_t high, rest;
    int32_t low;
} fs_mass_part;

/* sum * 2^exponent, sum a normal float. */
FS_CORE fs_mass_part mass_part(float sum, int32_t exponent) {
    uint32_t bits = float_bits(sum);
    int32_t low = exponent + (int32_t)(bits >> 23) - 150; /* weight of the mantissa's last bit */
    uint64_t mantissa = (bits & 0x7FFFFFu) | 0x800000u;
    int32_t limb = (low + 24 * 32768) / 24 - 32768; /* floor(low / 24) */
    uint64_t wide = mantissa << (low - 24 * limb);
    const fs_mass_part part = {wide >> 24, wide & 0xFFFFFF, limb};
    return part;
}

/* The top limb is the highest with a bit set, else equal masses could have two tops. */
FS_CORE int32_t mass_part_top(const fs_mass_part *part) {
    return part->high ? part->low + 1 : part->low;
}

FS_CORE uint64_t mass_part_limb(const fs_mass_part *part, int32_t limb) {
    return (limb == part->low + 1 ? part->high : 0) + (limb == part->low ? part->rest : 0);
}

/* Adds sum * 2^exponent, sum a normal float. */
FS_CORE void mass_add(fs_mass *m, float sum, int32_t exponent) {
    if (!(sum > 0.0f)) return;
    const fs_mass_part part = mass_part(sum, exponent);
    mass_raise(m, mass_part_top(&part));
    /* No index that is not a constant: a GPU keeps the limbs in registers. */
    for (int32_t i = 0; i < 3; i++) m->limb[i] += mass_part_limb(&part, m->top - i);
}

/* The one merge of masses: exact, commutative, associative. */
FS_CORE void mass_merge(fs_mass *into, const fs_mass *from) {
    if (mass_is_empty(from)) return;
    mass_raise(into, from->top);
    const int32_t shift = into->top - from->top;
    into->limb[0] += shift == 0 ? from->limb[0] : 0;
    into->limb[1] += shift == 0 ? from->limb[1] : shift == 1 ? from->limb[0] : 0;
    into->limb[2] += shift == 0 ? from->limb[2] : shift == 1 ? from->limb[1] : shift == 2 ? from->limb[0] : 0;
}

/* A mass in 20 bytes, for the wire: 16 bits of top, then three limbs of 48 bits, which 2^24 summands of 24 bits fit. */
#define FS_MASS_WORDS 5

FS_CORE void mass_pack(const fs_mass *m, uint32_t *word) {
    word[0] = (uint32_t)m->top & 0xFFFF;
    word[0] |= (uint32_t)m->limb[0] << 16;
    word[1] = (uint32_t)(m->limb[0] >> 16);
    word[2] = (uint32_t)m->limb[1];
    word[3] = (uint32_t)(m->limb[1] >> 32 & 0xFFFF) | (uint32_t)m->limb[2] << 16;
    word[4] = (uint32_t)(m->limb[2] >> 16);
}

FS_CORE fs_mass mass_unpack(const uint32_t *word) {
    fs_mass m;
    m.top = (int32_t)(word[0] & 0xFFFF);
    if (m.top >= 0x8000) m.top -= 0x10000;
    m.limb[0] = (uint64_t)word[1] << 16 | word[0] >> 16;
    m.limb[1] = (uint64_t)(word[3] & 0xFFFF) << 32 | word[2];
    m.limb[2] = (uint64_t)word[4] << 16 | word[3] >> 16;
    return m;
}

/* The mass in units of 2^(24 (m->top - 2)). */
FS_CORE double mass_scaled(const fs_mass *m) {
    return ((double)m->limb[0] * 16777216.0 + (double)m->limb[1]) * 16777216.0 + (double)m->limb[2];
}

/* log of the mass; -inf when there is none. */
FS_CORE double mass_log(const fs_mass *m) {
    if (mass_is_empty(m)) return -INFINITY;
    return log(mass_scaled(m)) + 24.0 * (m->top - 2) * 0.69314718055994530942;
}

/* How far, relatively, a rough mass may be from the exact one of a row whose largest l this is: terms that matter have
 * an l within 30 of it, and their exponents are products rounded to float. */
FS_CORE double mass_slack(float l) {
    const double slack = 2e-5 + 4e-7 * fabs((double)l);
    return slack < 0.5 ? slack : 0.5; /* a number where l is infinite too */
}

/* Sum of exp over one granule in the fixed order: i and i + 8 first, then 4, 2, 1 apart, which is what a SIMD register,
 * a pair of accumulator fragments and a butterfly over lanes all give. l[16]; absent ids are -inf. */
FS_CORE void mass_add_granule(fs_mass *m, const float *l) {
    float fraction[FS_GRANULE];
    int32_t exponent[FS_GRANULE];
    int32_t most = INT32_MIN;
    for (int i = 0; i < FS_GRANULE; i++) {
        fs_exp e = exp_split(l[i]);
        fraction[i] = l[i] > -INFINITY ? e.fraction : 0.0f;
        exponent[i] = e.exponent;
        most = exponent[i] > most ? exponent[i] : most;
    }
    float t[FS_GRANULE];
    for (int i = 0; i < FS_GRANULE; i++) t[i] = fraction[i] > 0.0f ? exp_scaled(fraction[i], exponent[i] - most) : 0.0f;
    for (int half = FS_GRANULE / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    mass_add(m, t[0], most);
}

#endif
