/* cpu_rough.h - masses that only decide cuts, where an error of mass_slack may be proven harmless: exp by a short polynomial, in float. */
#ifndef FS_CPU_ROUGH_H
#define FS_CPU_ROUGH_H

#include "core/core.h"

/* 2^f on |f| <= 1/2, minimax of degree 4: relative error 2.6e-6. */
#define FS_EXP2_4 0.00957010195f
#define FS_EXP2_3 0.0559178616f
#define FS_EXP2_2 0.240247448f
#define FS_EXP2_1 0.693121815f
#define FS_EXP2_0 0.999999261f

/* exp(y scale) = 2^t, t = y * per; terms are 2^(t - unit), the largest about 1, the least 2^-100 */
typedef struct rough_scale {
    float per, least, magic; /* magic + t is rounded to an integer whose last bits are the exponent of 2^(t - unit) */
    int32_t unit;
} rough_scale;

FS_CORE rough_scale rough_scale_of(float most, float scale) {
    rough_scale s;
    s.per = scale * 1.44269504f;
    s.unit = (int32_t)(most * s.per);
    s.least = (float)(s.unit - 100) / s.per;
    s.magic = (float)(12582912 + 127 - s.unit);
    return s;
}

#endif
