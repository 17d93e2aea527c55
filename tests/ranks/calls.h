/* calls.h - random calls, the same on every rank: every rule, mode and result of the header, on shards of any size. */
#ifndef FS_TESTS_RANKS_CALLS_H
#define FS_TESTS_RANKS_CALLS_H

#include "flashsampling_ranks.h"

enum { MOST_B = 24, MOST_V = 3000, MOST_D = 12, MOST_N = 4, MOST_TOP = 8, MOST_RANKS = 64 };

/* Everything a call can return; filled with a pattern first, so that equal means written alike. */
typedef struct answer {
    int32_t token[MOST_B * MOST_N], rank[MOST_B * MOST_N], top_token[MOST_B * MOST_TOP];
    float score[MOST_B * MOST_N], logit[MOST_B * MOST_N], logprob[MOST_B * MOST_N];
    float max_logit[MOST_B], log_z[MOST_B], top_logit[MOST_B * MOST_TOP], top_logprob[MOST_B * MOST_TOP];
    float watch_logit[MOST_B * 2], watch_logprob[MOST_B * 2];
    uint32_t status[MOST_B];
} answer;

/* A call on the whole head, and where its ranks' shards begin. */
typedef struct call {
    fs_head head;
    fs_batch batch;
    int wants; /* bits: which results; 0: tokens and status alone */
    int logits;
    int64_t cut[MOST_RANKS + 1]; /* shard r holds rows [cut[r], cut[r + 1]) */
} call;

/* Call number `index` of this many ranks. Its arrays belong to calls.c and change with the next. */
call random_call(uint64_t index, int ranks);
fs_head call_shard(const call *c, int rank);
/* The arrays of `a` that the call wants, the rest NULL. */
fs_result call_result(const call *c, answer *a);
void answer_clear(answer *a);
/* Clears how rows were found out, which is not the same for every number of ranks. Returns how many took, or wanted,
 * more than one pass: what fallback_rows must say. */
int64_t answer_forget_rounds(answer *a, int64_t rows);

#endif
