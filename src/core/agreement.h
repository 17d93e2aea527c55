/* agreement.h - what the ranks of one call must agree on, in words that have names: their hash travels with every summary, the words
 * themselves only when hashes differ, to say what does.
 *
 * Not in it: hidden states, masks and counts, which are large and usually come from one place. */
#ifndef FS_CORE_AGREEMENT_H
#define FS_CORE_AGREEMENT_H

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
    FS_AGREE_ASKED, /* these two follow from others too, which are named first */
    FS_AGREE_LISTS,
    FS_AGREE_BUDGET, /* options.fallback_bytes: where rounds end; filled in by whoever has rounds */
    FS_AGREE_WORDS
};

typedef struct fs_agreement {
    int64_t word[FS_AGREE_WORDS];
} fs_agreement;

/* Mixes a word into a hash: a changed bit changes every bit above it, the shift brings it down again. */
FS_CORE uint64_t hash_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/* What a row's rules are but for its seed, stream and position. */
FS_CORE uint64_t hash_rules(uint64_t h, const fs_rules *rules) {
    h = hash_mix(hash_mix(h, rules->status), float_bits(rules->inverse_temperature) | (uint64_t)rules->greedy << 32);
    h = hash_mix(hash_mix(h, (uint64_t)rules->top_k << 32 | float_bits(rules->top_p)), double_bits(rules->log_min_p));
    h = hash_mix(h, float_bits(rules->repetition));
    return hash_mix(h, (uint64_t)float_bits(rules->frequency) << 32 | float_bits(rules->presence));
}

/* What is done to the logits of every row. */
FS_CORE uint64_t hash_head(uint64_t h, const fs_head *head) {
    h = hash_mix(h, (uint64_t)head->kind << 32 | (uint32_t)head->round);
    h = hash_mix(h, (uint64_t)float_bits(head->scale) << 32 | float_bits(head->post_scale));
    return hash_mix(h, float_bits(head->softcap));
}

fs_agreement fs_agreement_of(const fs_call *call);
uint64_t fs_agreement_hash(const fs_agreement *agreement);

/* What to call word i, and whether its value tells a reader something (a hash does not). */
const char *fs_agreement_name(int32_t i, int32_t *is_value);

#endif
