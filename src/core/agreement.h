/* agreement.h - what the ranks of one call must agree on, in words that have names: their hash travels with every
 * summary, the words themselves only when hashes differ, to say what does.
 *
 * Words about rows are sums over them, so that threads add to them in any order. Not in it: hidden states, masks and
 * counts, which are large and usually come from one place. */
#ifndef FS_CORE_AGREEMENT_H
#define FS_CORE_AGREEMENT_H

#include "hash.h"
#include "needs.h"

enum {
    FS_AGREE_VERSION,
    FS_AGREE_NOISE_ID,
    FS_AGREE_ROWS,
    FS_AGREE_VOCAB,
    FS_AGREE_DIM,
    FS_AGREE_HEAD,
    FS_AGREE_MODE,
    FS_AGREE_NOISE,
    FS_AGREE_FLAGS,
    FS_AGREE_SAMPLES,
    FS_AGREE_LOGITS,
    FS_AGREE_WATCHED,
    FS_AGREE_SEEDS,
    FS_AGREE_POSITIONS,
    FS_AGREE_RULES,
    FS_AGREE_EDITS,
    FS_AGREE_EXTRAS,
    FS_AGREE_ASKED, /* these two follow from others too, which are named first */
    FS_AGREE_LISTS,
    FS_AGREE_BUDGET, /* options.fallback_bytes: where rounds end; filled in by whoever has rounds */
    FS_AGREE_WORDS
};

typedef struct fs_agreement {
    uint64_t word[FS_AGREE_WORDS];
} fs_agreement;

/* A row's rules but for what its noise comes from. */
FS_CORE uint64_t hash_rules(uint64_t h, const fs_row_rules *rules) {
    h = hash_mix(hash_mix(h, rules->status), (uint64_t)rules->greedy);
#define FS_HASH_RULE(name, type, bit, off, used, least, most, status, about)                                           \
    {                                                                                                                  \
        const type v = rules->name;                                                                                    \
        uint32_t bits;                                                                                                 \
        memcpy(&bits, &v, sizeof bits);                                                                                \
        h = hash_mix(h, bits);                                                                                         \
    }
    FS_RULE_TABLE(FS_HASH_RULE)
#undef FS_HASH_RULE
    return h;
}

/* What is done to the logits of every row. */
FS_CORE uint64_t hash_head(const fs_head *head) {
    uint64_t h = hash_mix(0, (uint64_t)head->kind << 32 | (uint32_t)head->round_to);
    h = hash_mix(h, (uint64_t)float_bits(head->scale) << 32 | float_bits(head->post_scale));
    return hash_mix(h, float_bits(head->softcap));
}

FS_CORE uint64_t hash_needs(const fs_needs *needs) {
    const uint64_t set = (uint64_t)(needs->mass != 0) | (uint64_t)(needs->raw_mass != 0) << 1 |
                         (uint64_t)(needs->winner_logit != 0) << 2 | (uint64_t)(needs->max != 0) << 3 |
                         (uint64_t)(needs->edited != 0) << 4 | (uint64_t)(needs->raw_column != 0) << 5 |
                         (uint64_t)(needs->cut_mass != 0) << 6;
    return set | (uint64_t)needs->ordered << 32;
}

/* The words that are known without a look at any row. */
FS_CORE fs_agreement agreement_of_call(const fs_call *call) {
    const fs_batch *batch = call->batch;
    const fs_needs *needs = &call->needs;
    fs_agreement a;
    memset(&a, 0, sizeof a);
    a.word[FS_AGREE_VERSION] = FS_VERSION_MAJOR << 16 | FS_VERSION_MINOR << 8 | FS_VERSION_PATCH;
    a.word[FS_AGREE_NOISE_ID] = FS_NOISE_ID;
    a.word[FS_AGREE_ROWS] = (uint64_t)batch->rows;
    a.word[FS_AGREE_VOCAB] = (uint64_t)call->vocab;
    a.word[FS_AGREE_DIM] = call->head->kind == FS_HEAD_WEIGHTS ? (uint64_t)call->head->dim : 0;
    a.word[FS_AGREE_HEAD] = hash_head(call->head);
    a.word[FS_AGREE_MODE] = (uint64_t)batch->mode;
    a.word[FS_AGREE_NOISE] = (uint64_t)batch->noise;
    a.word[FS_AGREE_FLAGS] = batch->flags;
    a.word[FS_AGREE_SAMPLES] = (uint64_t)batch->samples;
    a.word[FS_AGREE_LOGITS] = (uint64_t)call->result->logits_mode;
    a.word[FS_AGREE_ASKED] = hash_needs(needs);
    a.word[FS_AGREE_LISTS] =
        hash_mix((uint64_t)needs->keep << 32 | (uint32_t)needs->keep_raw, (uint64_t)needs->rank_depth);
    return a;
}

/* Row b's share of the sums. */
FS_CORE void agreement_add_row(fs_agreement *a, int64_t b, const fs_row_rules *rules) {
    const uint64_t at = hash_mix(~(uint64_t)0, (uint64_t)b);
    a->word[FS_AGREE_SEEDS] += hash_end(hash_mix(hash_mix(at, rules->seed), rules->substream));
    a->word[FS_AGREE_POSITIONS] += hash_end(hash_mix(at, rules->position));
    a->word[FS_AGREE_RULES] += hash_end(hash_rules(at, rules));
}

/* The same of its edits and watched tokens, where they are in memory that the host does not read. */
FS_CORE void agreement_add_lists(fs_agreement *a, const fs_batch *batch, int64_t b, int64_t slot, int64_t watched) {
    const uint64_t at = hash_mix(~(uint64_t)0, (uint64_t)b);
    const fs_edits edits = batch_edits(batch, b, slot);
    for (int64_t i = 0; i < edits.count; i++) {
        const uint32_t bias = float_bits(batch->edit_bias[edits.first + i]);
        const uint64_t entry = (uint64_t)batch->edit_token[edits.first + i] << 32 | bias;
        a->word[FS_AGREE_EDITS] += hash_end(hash_mix(hash_mix(at, (uint64_t)i), entry));
    }
    if (!watched || watch_is_over(batch, b, watched)) return;
    for (int64_t i = 0; i < watch_count(batch, b); i++)
        a->word[FS_AGREE_WATCHED] += hash_end(hash_mix(hash_mix(at, (uint64_t)i), (uint64_t)watch_token(batch, b, i)));
}

FS_CORE uint64_t agreement_hash(const fs_agreement *a) {
    uint64_t h = 0;
    for (int32_t i = 0; i < FS_AGREE_WORDS; i++) h = hash_mix(h, a->word[i]);
    return h;
}

/* All of it, where the host can read the rows. */
fs_agreement fs_agreement_of(const fs_call *call);

/* What to call word i, and whether its value tells a reader something (a hash does not). */
const char *fs_agreement_name(int32_t i, int32_t *is_value);

#endif
