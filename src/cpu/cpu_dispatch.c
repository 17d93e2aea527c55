/* cpu_dispatch.c - where the instruction set is chosen: one table, best first, the last row always runs. */
#include "cpu_isa.h"

#include <stdio.h>

#if defined(__x86_64__)
/* The compiler's check includes the operating system's (XCR0). Every CPU with AVX2 has F16C, which clang 14 cannot ask for. */
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static int always(void) {
    return 1;
}

#define FS_ISA_ROW(name, runs_here)                                                                                    \
    { #name, runs_here, {fs_tile_f32__##name, fs_tile_f16__##name, fs_tile_bf16__##name }, &fs_scan_##name }

static const fs_isa table[] = {
#if defined(__x86_64__)
    FS_ISA_ROW(avx512, has_avx512),
    FS_ISA_ROW(avx2, has_avx2),
#endif
    FS_ISA_ROW(scalar, always),
};

const fs_isa *fs_isa_choose(const char *forced, char *names, size_t names_size) {
    size_t used = 0;
    const fs_isa *best = NULL;
    names[0] = '\0';
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!table[i].runs_here()) continue;
        if (!best && (!forced || strcmp(forced, table[i].name) == 0)) best = &table[i];
        int n = snprintf(names + used, names_size - used, "%s%s", used ? ", " : "", table[i].name);
        if (n > 0 && (size_t)n < names_size - used) used += (size_t)n;
    }
    return best;
}
