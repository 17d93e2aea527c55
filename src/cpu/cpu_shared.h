/* cpu_shared.h - bounds of a row that the tasks of a pass share: the best score, the bound of its list, its mass so
 * far. When a task sees what another has found is a matter of timing; what a call answers is not: a shared score could
 * win, a shared bound keeps the list's promise, and a shared mass is one that the row has. */
#ifndef FS_CPU_SHARED_H
#define FS_CPU_SHARED_H

#include "core/key.h"
#include "core/mass.h"

#include <stdatomic.h>

/* [rows] each, side by side: whether anything has changed is seen in few lines. */
typedef struct fs_shared {
    _Atomic uint64_t *best;    /* score key: nothing that does not beat it needs to be found */
    _Atomic uint64_t *bound;   /* of its list: what is not above it is in no list that is asked for */
    _Atomic uint64_t *mass;    /* ordered_float of the log of the shared mass; FS_KEY_NONE: there is none */
    _Atomic uint32_t *reached; /* [rows, tasks] see shared_reach; 0: nothing yet. NULL: no filtered row has a list */
    int32_t tasks;
} fs_shared;

static inline void shared_clear(const fs_shared *shared, int32_t row) {
    atomic_init(&shared->best[row], FS_KEY_NONE);
    atomic_init(&shared->bound[row], FS_KEY_NONE);
    atomic_init(&shared->mass[row], FS_KEY_NONE);
    for (int32_t t = 0; shared->reached && t < shared->tasks; t++)
        atomic_init(&shared->reached[(int64_t)row * shared->tasks + t], 0);
}

static inline uint64_t shared_load(const _Atomic uint64_t *shared) {
    return atomic_load_explicit(shared, memory_order_relaxed);
}

static inline void shared_raise(_Atomic uint64_t *shared, uint64_t key) {
    uint64_t most = shared_load(shared);
    while (key > most &&
           !atomic_compare_exchange_weak_explicit(shared, &most, key, memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* Shares the bound of a list. Who reads it may be at lower ids, and floors know logits alone: so what is shared is
 * below all tokens of its logit, unless it is above them all. */
static inline void shared_raise_bound(_Atomic uint64_t *shared, uint64_t bound) {
    if (bound == FS_KEY_NONE) return;
    shared_raise(shared, (uint32_t)bound == UINT32_MAX ? bound : order_key_before(order_key_logit(bound)));
}

/* A task has met so many tokens of a row, 1 / `tasks_needed` of its top-k or more, whose logits are `logit` at least.
 * Where as many tasks as are needed reach a logit, the top-k does, and what is below is in nobody's list. */
static inline void shared_reach(const fs_shared *shared, int32_t row, int32_t task, int32_t tasks_needed, float logit) {
    _Atomic uint32_t *reached = shared->reached + (int64_t)row * shared->tasks;
    const uint32_t own = ordered_float(logit);
    const uint64_t bound = shared_load(&shared->bound[row]);
    uint32_t least = UINT32_MAX;
    int32_t count = 0;
    if (own <= atomic_load_explicit(&reached[task], memory_order_relaxed)) return;
    atomic_store_explicit(&reached[task], own, memory_order_relaxed);
    if ((uint64_t)own << 32 <= bound + 1) return;
    for (int32_t t = 0; t < shared->tasks; t++) {
        const uint32_t other = atomic_load_explicit(&reached[t], memory_order_relaxed);
        const int above = (uint64_t)other << 32 > bound + 1;
        count += above;
        least = above && other < least ? other : least;
    }
    if (count >= tasks_needed) shared_raise(&shared->bound[row], order_key_before(float_of_ordered(least)));
}

/* The log of a shared mass; -inf: there is none. */
static inline double shared_log(uint64_t mass) {
    return mass ? (double)float_of_ordered((uint32_t)mass) : (double)-INFINITY;
}

/* Less than this fraction of the shared mass is not worth adding. */
#define FS_WORTH_SHARING 0.25

/* Adds to a row's shared mass what a task's own has grown by since *published, the log of it at the last time. */
static inline void shared_add_mass(_Atomic uint64_t *shared, const fs_mass *mass, float *published) {
    uint64_t known = shared_load(shared), all;
    const double own = mass_log(mass), more = own + log1p(-exp(fmin((double)*published - own, 0.0)));
    if (!(more > shared_log(known) + log(FS_WORTH_SHARING))) return;
    do {
        const double log_z = shared_log(known), most = fmax(log_z, more);
        all = ordered_float((float)(most + log1p(exp(fmin(log_z, more) - most))));
    } while (!atomic_compare_exchange_weak_explicit(shared, &known, all, memory_order_relaxed, memory_order_relaxed));
    *published = (float)own;
}

#endif
