/* support.h - what the C tests share: a small deterministic generator, 16-bit floats, contexts. */
#ifndef FS_TESTS_SUPPORT_H
#define FS_TESTS_SUPPORT_H

#include "flashsampling_ranks.h"
#include "flashsampling_screens.h"
#include "random.h"
#include "rules.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static inline uint64_t random_below(rng *r, uint64_t n) {
    return (uint64_t)((double)(random_next(r) >> 11) * (1.0 / 9007199254740992.0) * (double)n);
}

static inline double random_unit(rng *r) {
    return ((double)(random_next(r) >> 12) + 0.5) * (1.0 / 4503599627370496.0);
}

static inline double random_normal(rng *r) {
    double u = random_unit(r), v = random_unit(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static inline uint16_t bf16_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* By the definition: nearest multiple of the spacing, ties to even. */
static inline uint16_t f16_of(float x) {
    if (x != x) return 0x7C01;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs((double)x);
    if (a >= 65520.0) return sign | 0x7C00;
    int e = a > 0 ? (int)floor(log2(a)) : -14;
    if (e < -14) e = -14;
    double steps = nearbyint(a / ldexp(1.0, e - 10));
    if (steps >= 2048.0) steps = 1024.0, e++;
    if (steps < 1024.0) return (uint16_t)(sign | (uint16_t)steps);
    return (uint16_t)(sign | (uint16_t)((e + 15) << 10) | (uint16_t)(steps - 1024.0));
}

static inline int64_t bytes_of(int32_t dtype) {
    return dtype == FS_F32 ? 4 : 2;
}

/* At any address. */
static inline void put_number(int32_t dtype, void *at, float x) {
    const uint16_t half = dtype == FS_BF16 ? bf16_of(x) : f16_of(x);
    if (dtype == FS_F32) memcpy(at, &x, sizeof x);
    else memcpy(at, &half, sizeof half);
}

/* For qsort of keys. */
static inline int descending(const void *left, const void *right) {
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a < b) - (a > b);
}

static inline fs_context *open_context(int32_t backend, int32_t threads, int32_t block) {
    fs_options options = fs_options_default();
    options.backend = backend;
    options.threads = threads;
    options.block = block;
    fs_context *context = NULL;
    if (fs_context_create(&options, &context) != FS_OK) fail_msg("%s", fs_error_text(NULL));
    return context;
}

/* For mkstemp and mkdtemp: where TMPDIR says, or in the folder that POSIX has for it. */
static inline void temporary_name(char *name, size_t size) {
    const char *folder = getenv("TMPDIR");
    snprintf(name, size, "%s/flashsampling-XXXXXX", folder ? folder : "/tmp");
}

/* How much of a long test to do: legs under sanitizers and emulators set FLASHSAMPLING_TEST_SCALE, e.g. 0.1. */
static inline uint64_t test_size(uint64_t full) {
    const char *scale = getenv("FLASHSAMPLING_TEST_SCALE");
    double n = scale ? (double)full * strtod(scale, NULL) : (double)full;
    return n < 1.0 ? 1 : (uint64_t)n;
}

#endif
