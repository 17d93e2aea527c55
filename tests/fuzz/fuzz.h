/* fuzz.h - what the fuzzing programs share: cases by number, each a function of (seed, number) alone, so that one that
 * fails can be made again; a process that watches them; and memory with guards.
 *
 *   fuzz_x [--calls N] [--seed S] [--first K]     cases K .. K + N - 1 of seed S */
#ifndef FS_TESTS_FUZZ_H
#define FS_TESTS_FUZZ_H

#include "random.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int64_t below(rng *r, int64_t n) {
    return (int64_t)(random_next(r) % (uint64_t)n);
}

static inline int one_in(rng *r, int64_t n) {
    return below(r, n) == 0;
}

static inline float unit(rng *r) {
    return (float)(random_next(r) >> 40) * 0x1p-24f;
}

/* One of a table. */
#define PICK(r, table) ((table)[below(r, (int64_t)(sizeof(table) / sizeof((table)[0])))])

/* Runs this program's cases in a process of their own and says what became of them: `calls` of them (times
 * FLASHSAMPLING_TEST_SCALE), unless the arguments say otherwise. Returns what main returns. */
int fuzz_main(int argc, char **argv, const char *name, int64_t calls, void (*one)(rng *r));

/* Inside a case: something is wrong. Does not return. */
_Noreturn void fuzz_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* How often something happened, for the last line. */
void fuzz_count(const char *what);

/* --- memory of one case, in which arrays lie between guards: a byte that is written outside is found by slab_check,
 * one that is read by the address sanitizer. */
void slab_reset(void);
/* NULL if the slab is full. `off`: bytes past a multiple of 64. */
void *slab_take(size_t bytes, size_t off);
void slab_check(void);

#endif
