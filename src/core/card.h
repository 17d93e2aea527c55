/* card.h - what the ranks of one call must agree on, in words that have names: their hash travels with every summary, the words
 * themselves only when hashes differ, to say what does.
 *
 * Not on the card: hidden states, masks and counts, which are large and usually come from one place. */
#ifndef FS_CORE_CARD_H
#define FS_CORE_CARD_H

#include "ask.h"

enum {
    FS_CARD_VERSION,
    FS_CARD_NOISE_ID,
    FS_CARD_ROWS,
    FS_CARD_VOCAB,
    FS_CARD_DIM,
    FS_CARD_HEAD,
    FS_CARD_MODE,
    FS_CARD_NOISE,
    FS_CARD_FLAGS,
    FS_CARD_SAMPLES,
    FS_CARD_LOGITS,
    FS_CARD_WATCHED,
    FS_CARD_SEEDS,
    FS_CARD_POSITIONS,
    FS_CARD_RULES,
    FS_CARD_EDITS,
    FS_CARD_ASKED, /* these two follow from others too, which are named first */
    FS_CARD_LISTS,
    FS_CARD_BUDGET, /* options.fallback_bytes: where rounds end; filled in by whoever has rounds */
    FS_CARD_WORDS
};

typedef struct fs_card {
    int64_t word[FS_CARD_WORDS];
} fs_card;

/* Mixes a word into a hash: a changed bit changes every bit above it, the shift brings it down again. */
FS_CORE uint64_t card_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/* What a row's rules are but for its seed, stream and position. */
FS_CORE uint64_t card_mix_rules(uint64_t h, const fs_rules *rules) {
    h = card_mix(card_mix(h, rules->status), float_bits(rules->inverse_temperature) | (uint64_t)rules->greedy << 32);
    h = card_mix(card_mix(h, (uint64_t)rules->top_k << 32 | float_bits(rules->top_p)), double_bits(rules->log_min_p));
    h = card_mix(h, float_bits(rules->repetition));
    return card_mix(h, (uint64_t)float_bits(rules->frequency) << 32 | float_bits(rules->presence));
}

/* What is done to the logits of every row. */
FS_CORE uint64_t card_mix_head(uint64_t h, const fs_head *head) {
    h = card_mix(h, (uint64_t)head->kind << 32 | (uint32_t)head->round);
    h = card_mix(h, (uint64_t)float_bits(head->scale) << 32 | float_bits(head->post_scale));
    return card_mix(h, float_bits(head->softcap));
}

fs_card fs_card_of(const fs_call *call);
uint64_t fs_card_hash(const fs_card *card);

/* What to call word i, and whether its value tells a reader something (a hash does not). */
const char *fs_card_name(int32_t i, int32_t *is_value);

#endif
