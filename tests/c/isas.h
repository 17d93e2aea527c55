/* isas.h - rows of the dispatch table for tests that look at each: those that run here (experimental ones too), or the
 * one that FLASHSAMPLING_ISA forces. */
#ifndef ISAS_H
#define ISAS_H

#include "cpu/kernels/cpu_isa.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"amxfp16", "amx",      "avx512bf16", "avx512",  "avx2", "svebf16",
                                    "sve",     "neonmmla", "neonbf16",   "neonf16", "neon", "scalar"};
enum { NAMES = sizeof names / sizeof names[0] };

static inline const fs_isa *isa_named(const char *name) {
    char text[256];
    return fs_isa_choose(name, text, sizeof text);
}

/* The i-th row if it is to be looked at, or NULL. */
static inline const fs_isa *isa_at(int i) {
    const char *forced = getenv("FLASHSAMPLING_ISA");
    return forced && strcmp(forced, names[i]) != 0 ? NULL : isa_named(names[i]);
}

#endif
