/* random_call.h - a call with every rule, mode, kind of logits and shape drawn at random. Logits are exact in float
 * (stored, or products of small integers), so whoever draws from them must draw the same tokens. */
#ifndef FS_TESTS_RANDOM_CALL_H
#define FS_TESTS_RANDOM_CALL_H

#include "support.h"

/* One random call and everything it points to. */
typedef struct random_call {
    fs_head head;
    fs_batch batch;
    fs_result result; /* which outputs are wanted; pointers are set per run */
    int64_t vocab, rows, slots;
    void *data, *hidden;
    float *bias;
    void *slot;
    uint64_t *position, *seed;
    float *temperature, *top_p, *min_p, *repetition, *frequency, *presence;
    int32_t *top_k;
    uint32_t *stream, *allow, *seen;
    int32_t *allow_index, *counts;
    int64_t *edit_offset, *count_offset, *watch_offset;
    int32_t *edit_token, *count_token, *count_value, *watch_token, *given;
    int32_t *edit_count;
    float *edit_bias;
} random_call;

/* Zeroed, never NULL. */
static inline void *array(size_t count, size_t bytes) {
    void *p = calloc(count ? count : 1, bytes);
    assert_non_null(p);
    return p;
}

void make_call(rng *r, random_call *c);
/* The same with this many rows and tokens. */
void make_call_of(rng *r, random_call *c, int64_t rows, int64_t vocab);
void free_call(random_call *c);

#endif
