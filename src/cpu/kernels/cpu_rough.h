/* cpu_rough.h - masses that only decide cuts, where an error of mass_slack may be proven harmless: exp by a short
 * polynomial, in float. */
#ifndef FS_CPU_ROUGH_H
#define FS_CPU_ROUGH_H

#include "core/core.h"

/* 2^f on 0 <= f <= 1, minimax of degree 4: relative error 2.7e-6. */
#define FS_EXP2_4 0.0135341678f
#define FS_EXP2_3 0.0520114638f
#define FS_EXP2_2 0.241442755f
#define FS_EXP2_1 0.693003833f
#define FS_EXP2_0 1.00000262f

/* exp(y scale) = 2^t, t = y * per; terms are 2^(t - unit), the largest about 1. */
typedef struct rough_scale {
    float per;
    int32_t unit;
} rough_scale;

FS_CORE rough_scale rough_scale_of(float most, float scale) {
    rough_scale s;
    s.per = scale * 1.44269504f;
    s.unit = (int32_t)(most * s.per);
    return s;
}

#endif
