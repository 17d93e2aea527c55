#define _DEFAULT_SOURCE /* syscall */
/* cpu_dispatch.c - where the instruction set is chosen: one table, best first, the last row always runs. */
#include "cpu_isa.h"

#include <stdio.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
/* The compiler's check includes the operating system's (XCR0). Every CPU with AVX2 has F16C, which clang 14 cannot ask
 * for. */
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

#if defined(__x86_64__)
/* AMX and BF16 are asked of the CPU itself: not every compiler's check knows them. Every CPU with either has VNNI,
 * which kernels of screens use; a hypervisor may hide it. */
static int has_avx512vnni(void) {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

static int has_avx512bf16(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx512vnni() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

/* Every CPU with AMX has FP16, which splits f16 weights for it; a hypervisor may hide one. The system saves 8 KB of
 * tiles per thread only for processes that have asked; it refuses where it does not know AMX, or a signal stack is too
 * small for them. */
static int has_amx(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const unsigned all = 1u << 24 | 1u << 22 | 1u << 23; /* AMX-TILE, AMX-BF16, AVX512-FP16 */
    if (!has_avx512vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & all) != all) return 0;
    const long request_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

static int has_amxfp16(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 21 & 1) && has_amx();
}
#endif

#if defined(__aarch64__)
#define FS_EMULATED "run under emulation alone" /* why a row is experimental */

static int has_sve(void) {
    return (getauxval(AT_HWCAP) & HWCAP_SVE) != 0;
}

static int has_fhm(void) {
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDFHM) != 0;
}

/* Armv8.4 makes FHM part of f16 arithmetic, and Armv8.6 has BF16 with I8MM, which kernels of screens use: a core with
 * one of them alone is not known. */
static int has_bf16(void) {
    return has_fhm() && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
}

static int has_svebf16(void) {
    return has_sve() && has_bf16() && (getauxval(AT_HWCAP2) & HWCAP2_SVEBF16) != 0;
}
#endif

static int always(void) {
    return 1;
}

#define FS_KERNELS(f32, f16, bf16)                                                                                     \
    {                                                                                                                  \
        [FS_FORMAT_F32] = &fs_kernel_f32__##f32, [FS_FORMAT_F16] = &fs_kernel_f16__##f16,                              \
        [FS_FORMAT_BF16] = &fs_kernel_bf16__##bf16                                                                     \
    }

/* Then how many rows of a call are the most that screens of 8 and 4 bits are faster for than W, and whether they are
 * fetched ahead. On a core of Emerald Rapids (AMX), where asking for W ahead loses, a strip of 49,152 x 576 takes 395
 * ns in place of 532 with 4 bits, 725 in place of 891 with 8 (2026-11-20). */
#define FS_SCREENS(isa, rows8, rows4, fetched) &fs_screen_##isa, {rows8, rows4}, fetched

static const fs_isa table[] = {
#if defined(__x86_64__)
    {"amxfp16", has_amxfp16, NULL, 1, FS_KERNELS(amxfp16, amxfp16, amx), &fs_scan_avx512,
     FS_SCREENS(avx512vnni, 5, 4, 1)},
    {"amx", has_amx, NULL, 0, FS_KERNELS(amx, amx, amx), &fs_scan_avx512, FS_SCREENS(avx512vnni, 5, 4, 1)},
    {"avx512bf16", has_avx512bf16, NULL, 0, FS_KERNELS(avx512, avx512, avx512bf16), &fs_scan_avx512,
     FS_SCREENS(avx512vnni, 5, 4, 1)},
    {"avx512", has_avx512vnni, NULL, 0, FS_KERNELS(avx512, avx512, avx512), &fs_scan_avx512,
     FS_SCREENS(avx512vnni, 64, 8, 1)},
    {"avx512", has_avx512, NULL, 0, FS_KERNELS(avx512, avx512, avx512), &fs_scan_avx512, FS_SCREENS(avx2, 5, 5, 1)},
    {"avx2", has_avx2, NULL, 0, FS_KERNELS(avx2, avx2, avx2), &fs_scan_avx2, FS_SCREENS(avx2, 64, 64, 1)},
#endif
#if defined(__aarch64__)
    /* SVE alone adds no f16 to float. */
    {"svebf16", has_svebf16, FS_EMULATED, 0, FS_KERNELS(sve, neonf16, svebf16), &fs_scan_neon,
     FS_SCREENS(neondot, 6, 6, 0)},
    {"sve", has_sve, FS_EMULATED, 0, FS_KERNELS(sve, sve, sve), &fs_scan_neon, FS_SCREENS(scalar, 16, 8, 0)},
    {"neonmmla", has_bf16, NULL, 0, FS_KERNELS(neon, neonf16, neonmmla), &fs_scan_neon, FS_SCREENS(neondot, 6, 6, 0)},
    {"neonbf16", has_bf16, NULL, 0, FS_KERNELS(neon, neonf16, neonbf16), &fs_scan_neon, FS_SCREENS(neondot, 6, 6, 0)},
    {"neonf16", has_fhm, NULL, 0, FS_KERNELS(neon, neonf16, neon), &fs_scan_neon, FS_SCREENS(scalar, 16, 8, 0)},
    {"neon", always, NULL, 0, FS_KERNELS(neon, neon, neon), &fs_scan_neon, FS_SCREENS(scalar, 16, 8, 0)},
#endif
    {"scalar", always, NULL, 0, FS_KERNELS(scalar, scalar, scalar), &fs_scan_scalar, FS_SCREENS(scalar, 16, 8, 0)},
};

const fs_isa *fs_isa_choose(const char *forced, char *names, size_t names_size) {
    size_t used = 0;
    names[0] = '\0';
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const int wanted = forced ? strcmp(forced, table[i].name) == 0 : !table[i].experimental;
        if (wanted && table[i].runs_here()) return &table[i];
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const int again = i > 0 && strcmp(table[i].name, table[i - 1].name) == 0 && table[i - 1].runs_here();
        if (again || !table[i].runs_here()) continue;
        int n = snprintf(names + used, names_size - used, "%s%s", used ? ", " : "", table[i].name);
        if (n > 0 && (size_t)n < names_size - used) used += (size_t)n;
    }
    return NULL;
}
