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
    uint32_t *substream, *allow, *seen;
    int32_t *allow_index, *counts;
    int64_t *edit_offset, *count_offset, *extra_offset, *watch_offset;
    int32_t *edit_token, *count_token, *count_value, *extra_token, *watch_token, *given;
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
/* Replaces the call's extra tokens, of which it may have none, and has its rows penalised. */
void make_extras(rng *r, random_call *c);
void free_call(random_call *c);

/* Everything a call writes, prefilled with sentinels. */
typedef struct outputs {
    fs_result result;
    int64_t tokens[64 * 8];
    uint32_t status[64];
    float score[64 * 8], logit[64 * 8], logprob[64 * 8], max_logit[64], log_z[64];
    int32_t rank[64 * 8], top_token[64 * 40];
    float top_logit[64 * 40], top_logprob[64 * 40], watch_logit[64 * 4], watch_logprob[64 * 4];
} outputs;

/* `wanted` chooses outputs by bits, the same for both runs. */
void prepare_outputs(const random_call *c, uint32_t wanted, outputs *o);
/* Fails unless two runs on one backend wrote the same bits, but for whether a row took a second pass. */
void expect_same_outputs(uint64_t seed, const outputs *a, const outputs *b);

/* Merges what `shards` partial calls make of rows [cut[i], cut[i + 1]) of the head. */
void sample_in_shards(fs_context *context, const random_call *c, const int64_t *cut, int32_t shards, fs_result *result);

#endif
