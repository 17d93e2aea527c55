/* needs.h - one call: what it was given, what it needs of each row (fs_needs), and which tokens each row watches. */
#ifndef FS_CORE_NEEDS_H
#define FS_CORE_NEEDS_H

#include "summary.h"

/* Entries a list keeps for cuts whose width is not known beforehand (top-p, min-p), and the most it ever keeps: a row
 * that needs more is rare and takes the second pass. */
#define FS_LIST_DEFAULT 1024
#define FS_LIST_MOST 4096
/* Ranks up to here are exact without a second pass. */
#define FS_RANK_DEPTH 256

typedef struct fs_call {
    const fs_head *head;
    const fs_batch *batch;
    const fs_result *result;
    const fs_row_rules *rules; /* [B]; NULL where a backend hands every row's over by itself */
    int64_t vocab;             /* real vocabulary size */
    fs_needs needs;
} fs_call;

FS_CORE int64_t head_vocab(const fs_head *head) {
    return head->vocab ? head->vocab : head->first_token + head->rows;
}

/* FS_RULE_... that rows may use. */
FS_CORE uint32_t batch_rules(const fs_head *h, const fs_batch *b) {
    const int64_t vocab = head_vocab(h);
    uint32_t rules = 0;
#define FS_RULE_MAY(name, type, bit, off, used, least, most, status, about)                                            \
    {                                                                                                                  \
        const type v = b->rules->name.value;                                                                           \
        if (b->rules->name.per_slot || (used)) rules |= bit;                                                           \
    }
    FS_RULE_TABLE(FS_RULE_MAY)
#undef FS_RULE_MAY
    if (!batch_penalises(b)) rules &= ~(uint32_t)FS_RULE_PENALTIES;
    if (b->allow) rules |= FS_RULE_ALLOW;
    if (b->edit_offset || b->edit_count) rules |= FS_RULE_EDITS;
    (void)vocab;
    return rules & ~b->limits->absent;
}

/* Row b watches the given tokens of score mode, then its watch list. */
FS_CORE int64_t watch_given(const fs_batch *batch) {
    return batch->mode == FS_MODE_SCORE ? batch->samples : 0;
}

FS_CORE int64_t watch_count(const fs_batch *batch, int64_t b) {
    int64_t listed = batch->watch_offset ? batch->watch_offset[b + 1] - batch->watch_offset[b] : 0;
    return watch_given(batch) + listed;
}

/* How many tokens the rows before b watch. */
FS_CORE int64_t watch_before(const fs_batch *batch, int64_t b) {
    int64_t listed = batch->watch_offset ? batch->watch_offset[b] - batch->watch_offset[0] : 0;
    return watch_given(batch) * b + listed;
}

FS_CORE int32_t watch_token(const fs_batch *batch, int64_t b, int64_t i) {
    int64_t given = watch_given(batch);
    return i < given ? batch->score_token[b * given + i] : batch->watch_token[batch->watch_offset[b] + i - given];
}

/* Whether lists of watched tokens have a part in the call's results, or lie between others that have. */
FS_CORE int watches(const fs_batch *batch, const fs_result *result) {
    return batch->watch_offset && (result->watch_logit || result->watch_logprob || watch_given(batch));
}

/* Whether row b's are more than the call, of so many together, has room for. */
FS_CORE int watch_is_over(const fs_batch *batch, int64_t b, int64_t watched) {
    const int64_t before = watch_before(batch, b), count = watch_count(batch, b);
    return before < 0 || count < 0 || before > watched - count;
}

/* Whether entropies, or survivors, are asked for. Kernels compute neither: there the answer is a constant, and what
 * depends on it costs nothing. */
FS_CORE int result_wants_entropy(const fs_result *result) {
#if defined(__CUDA_ARCH__)
    (void)result;
    return 0;
#else
    return result->entropy != NULL;
#endif
}

FS_CORE int result_wants_survivors(const fs_result *result) {
#if defined(__CUDA_ARCH__)
    (void)result;
    return 0;
#else
    return result->survivor_token || result->survivor_count;
#endif
}

/* Whether anything that is asked speaks of log Z. */
FS_CORE int result_wants_log_z(const fs_result *result) {
    return result->log_z || result->logprob || result->top_logprob || result->watch_logprob;
}

/* Whether a row's best tokens are asked for. */
FS_CORE int result_wants_top(const fs_result *result) {
    return result->top_token || result->top_logit || result->top_logprob;
}

/* Whether the mode draws by groups. */
FS_CORE int batch_is_grouped(const fs_batch *batch) {
    return batch->mode == FS_MODE_GROUP_PARALLEL || batch->mode == FS_MODE_GROUP_ONLINE;
}

/* What follows from the call without a look at any row: all there is to the needs of rows without rules. */
FS_CORE fs_needs needs_of_call(const fs_batch *batch, const fs_result *result) {
    const int raw = result->logits_mode == FS_LOGITS_RAW;
    const int log_z = result_wants_log_z(result);
    fs_needs needs;
    memset(&needs, 0, sizeof needs);
    needs.samples = batch->mode == FS_MODE_SCORE ? 0 : batch->samples;
    needs.ordered = batch->mode == FS_MODE_WITHOUT_REPLACEMENT;
    needs.raw_mass = raw && log_z;
    needs.mass = (!raw && log_z) || batch_is_grouped(batch);
    needs.winner_logit = result->logit || result->logprob || result->rank;
    needs.max = result->max_logit != NULL;
    needs.entropy = result_wants_entropy(result);
    return needs;
}

/* Whether a screen can decide the rows of such a call: nothing is asked that needs every logit, as top-p of the whole
 * row does, or more than `top` of a row's best tokens, and logits rise where dot products do. */
FS_CORE int screen_serves(const fs_head *head, const fs_batch *batch, const fs_needs *needs, int32_t top) {
    const int drawn = batch->mode == FS_MODE_SAMPLE || batch->mode == FS_MODE_WITHOUT_REPLACEMENT;
    const int tokens_alone = !needs->mass && !needs->raw_mass && !needs->cut_mass && !needs->max &&
                             needs->rank_depth <= top && !needs->raw_column && !needs->keep_raw && !needs->watched &&
                             !needs->entropy;
    return drawn && tokens_alone && batch->noise == FS_NOISE_EXACT && head->scale > 0.0f && head->post_scale > 0.0f;
}

/* rules_of_row, and whether the row's lists hold tokens, which nobody may use as such before: once a call, for host
 * memory. */
fs_row_rules fs_row_rules_of(const fs_batch *batch, int64_t vocab, int64_t b);

/* Reads the per-slot arrays of every row, so only where they are host memory. */
fs_needs fs_needs_of(const fs_head *head, const fs_batch *batch, const fs_result *result);
/* The same without a look at them: as if there were rows with every mixture of the rules that they may use. Watched
 * tokens are as many as batch.limits says. */
fs_needs fs_needs_of_any(const fs_head *head, const fs_batch *batch, const fs_result *result);

#endif
