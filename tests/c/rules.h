/* rules.h - the rules and limits of a test's batch, to be changed in place. */
#ifndef FS_TEST_RULES_H
#define FS_TEST_RULES_H

#include <flashsampling.h>

enum { OWN_RULES = 1 << 12 };

/* Rules of the batch's own from now on, equal to those it had: copies of the batch keep theirs. They last for the next
 * 4,096 calls in this thread. */
static inline fs_rules *rules_of(fs_batch *batch) {
    static _Thread_local fs_rules own[OWN_RULES];
    static _Thread_local int32_t next;
    fs_rules *rules = &own[next++ % OWN_RULES];
    *rules = batch->rules ? *batch->rules : fs_rules_default();
    batch->rules = rules;
    return rules;
}

/* Its limits, likewise. */
static inline fs_limits *limits_of(fs_batch *batch) {
    static _Thread_local fs_limits own[OWN_RULES];
    static _Thread_local int32_t next;
    fs_limits *limits = &own[next++ % OWN_RULES];
    *limits = batch->limits ? *batch->limits : fs_limits_default();
    batch->limits = limits;
    return limits;
}

/* What a batch without them has. */
static inline const fs_rules *rules_in(const fs_batch *batch) {
    static _Thread_local fs_rules none;
    none = fs_rules_default();
    return batch->rules ? batch->rules : &none;
}

static inline const fs_limits *limits_in(const fs_batch *batch) {
    static _Thread_local fs_limits none;
    none = fs_limits_default();
    return batch->limits ? batch->limits : &none;
}

/* What the context's last call took. */
static inline fs_counters counters_of(fs_context *context) {
    fs_counters counters = fs_counters_default();
    fs_context_counters(context, &counters);
    return counters;
}

#endif
