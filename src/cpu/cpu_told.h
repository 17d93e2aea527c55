/* cpu_told.h - what the tasks of a pass tell each other about a row. Who hears what, and when, is a matter of timing; what a call answers
 * is not: a score that is told could win, a bound keeps the list's promise, and a mass is one that the row has. */
#ifndef FS_CPU_TOLD_H
#define FS_CPU_TOLD_H

#include "core/key.h"
#include "core/mass.h"

#include <stdatomic.h>

/* Of all rows side by side: who looks whether there is news looks at few lines. */
typedef struct fs_told {
    _Atomic uint64_t *best;  /* score key: nothing that does not beat it needs to be found */
    _Atomic uint64_t *bound; /* of its list: what is not above it is in no list that is asked for */
    _Atomic uint64_t *mass;  /* ordered_float of the log of the mass that was told of; FS_KEY_NONE: none was */
} fs_told;

static inline void told_forget(const fs_told *told, int32_t row) {
    atomic_init(&told->best[row], FS_KEY_NONE);
    atomic_init(&told->bound[row], FS_KEY_NONE);
    atomic_init(&told->mass[row], FS_KEY_NONE);
}

static inline uint64_t told_load(const _Atomic uint64_t *told) {
    return atomic_load_explicit(told, memory_order_relaxed);
}

/* Tells of a key above what is known. */
static inline void told_raise(_Atomic uint64_t *told, uint64_t key) {
    uint64_t most = told_load(told);
    while (key > most &&
           !atomic_compare_exchange_weak_explicit(told, &most, key, memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* The log of a told mass; -inf: there is none. */
static inline double told_log(uint64_t mass) {
    return mass ? (double)float_of_ordered((uint32_t)mass) : (double)-INFINITY;
}

/* Less than this part of what is known is not worth telling. */
#define FS_WORTH_TELLING 0.25

/* Adds to what was told of a row's mass what has come to a task's since *said, the log of what it has told of before. */
static inline void told_weigh(_Atomic uint64_t *told, const fs_mass *mass, float *said) {
    uint64_t known = told_load(told), all;
    const double own = mass_log(mass), more = own + log1p(-exp(fmin((double)*said - own, 0.0)));
    if (!(more > told_log(known) + log(FS_WORTH_TELLING))) return;
    do {
        const double log_z = told_log(known), most = fmax(log_z, more);
        all = ordered_float((float)(most + log1p(exp(fmin(log_z, more) - most))));
    } while (!atomic_compare_exchange_weak_explicit(told, &known, all, memory_order_relaxed, memory_order_relaxed));
    *said = (float)own;
}

#endif
