/* fuzz_call.h - random calls: structs of any contents, and arrays that are exactly as long as the header says they must
 * be. */
#ifndef FS_TESTS_FUZZ_CALL_H
#define FS_TESTS_FUZZ_CALL_H

#include "flashsampling_ranks.h"
#include "flashsampling_screens.h"
#include "fuzz.h"
#include "rules.h"

enum { FUZZ_OUTPUTS = 16 };

typedef struct fuzz_call {
    fs_head head;
    fs_batch batch;
    fs_result result;
    int64_t vocab;
    int absurd; /* an array would have to be longer than there is memory: only a call that must be refused may come */
    int exact;  /* dot products are, in whatever order they are summed */
    int misaligned; /* some pointer is not aligned to its elements */
    int outputs;
    struct {
        unsigned char *at;
        size_t bytes;
    } output[FUZZ_OUTPUTS];
} fuzz_call;

/* A call; `wild`: scalars and pointers may be anything. */
void fuzz_call_make(rng *r, fuzz_call *c, int wild);
/* Leaves out the results that parts and ranks are refused for. */
void fuzz_call_of_parts(fuzz_call *c);

/* Rows [first, end) of W or of stored logits as a head of their own. */
fs_head fuzz_call_shard(const fuzz_call *c, int64_t first, int64_t end);

/* A context until the end. */
fs_context *fuzz_open(int32_t backend, int32_t threads, size_t fallback_bytes);

/* A limit of the header says that it is refused, whatever else is in it. */
int fuzz_call_must_fail(const fuzz_call *c);

/* The batch's, where zero stands for another value. */
int64_t fuzz_samples(const fuzz_call *c);
int64_t fuzz_fallback_token(const fuzz_call *c);

/* Numbers that nobody expects. */
int32_t fuzz_odd_i32(rng *r);
float fuzz_odd_f32(rng *r);
/* The value of one member, size included, becomes one of them. */
void fuzz_wild_head(rng *r, fs_head *head);
void fuzz_wild_rules(rng *r, fs_rules *rules);
void fuzz_wild_limits(rng *r, fs_limits *limits);
void fuzz_wild_batch(rng *r, fs_batch *batch);
void fuzz_wild_result(rng *r, fs_result *result);
void fuzz_wild_options(rng *r, fs_options *options);
void fuzz_wild_ranks(rng *r, fs_ranks *ranks);
void fuzz_wild_call_desc(rng *r, fs_call_desc *call);
/* Of those members that say no length. */
void fuzz_wild_drafts(rng *r, fs_drafts *drafts);

/* A struct as the caller has it: as many bytes as its size says, between guards; what this version does not know is
 * zero, or is not. */
void *fuzz_place(rng *r, const void *from, size_t bytes);

/* Fills the result's arrays with a pattern. */
void fuzz_call_clear(const fuzz_call *c);
/* What is promised of a call that ended like this: of the tokens of ids [first, end). `text`: what fs_error_text
 * says. */
void fuzz_call_check(const fuzz_call *c, fs_status status, const char *text, int64_t first, int64_t end);
/* Of row b, sample i. */
int64_t fuzz_token(const fuzz_call *c, int64_t b, int64_t i);

#endif
