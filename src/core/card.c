#include "card.h"

static const struct {
    const char *name;
    int32_t is_value;
} words[FS_CARD_WORDS] = {
    [FS_CARD_VERSION] = {"the library's version", 1},
    [FS_CARD_NOISE_ID] = {"the noise id", 1},
    [FS_CARD_ROWS] = {"batch.rows", 1},
    [FS_CARD_VOCAB] = {"the vocabulary size", 1},
    [FS_CARD_DIM] = {"head.dim", 1},
    [FS_CARD_HEAD] = {"head.kind, round, scale, softcap or post_scale", 0},
    [FS_CARD_MODE] = {"batch.mode", 1},
    [FS_CARD_NOISE] = {"batch.noise", 1},
    [FS_CARD_FLAGS] = {"batch.flags", 1},
    [FS_CARD_SAMPLES] = {"batch.samples", 1},
    [FS_CARD_LOGITS] = {"result.logits", 1},
    [FS_CARD_ASKED] = {"which results are asked for", 0},
    [FS_CARD_LISTS] = {"the length of candidate lists (top_k, top_count, list_capacity)", 0},
    [FS_CARD_WATCHED] = {"batch.given or watch_token", 0},
    [FS_CARD_SEEDS] = {"a seed or stream", 0},
    [FS_CARD_POSITIONS] = {"a position", 0},
    [FS_CARD_RULES] = {"a slot, temperature, top_k, top_p, min_p or penalty, or whether a limit or list holds", 0},
    [FS_CARD_EDITS] = {"an edit", 0},
    [FS_CARD_BUDGET] = {"options.fallback_bytes", 1},
};

const char *fs_card_name(int32_t i, int32_t *is_value) {
    *is_value = words[i].is_value;
    return words[i].name;
}

static uint64_t asked(const fs_ask *ask) {
    const int bits[] = {ask->mass,   ask->raw_mass,   ask->winner_logit, ask->max,
                        ask->edited, ask->raw_column, ask->cut_mass};
    uint64_t set = 0;
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) set |= (uint64_t)(bits[i] != 0) << i;
    return set | (uint64_t)ask->ordered << 32;
}

static uint64_t hash_watched(const fs_call *call) {
    uint64_t h = (uint64_t)call->ask.watched;
    for (int64_t b = 0; b < call->batch->rows && call->ask.watched; b++)
        for (int64_t i = 0; i < watch_count(call->batch, b); i++)
            h = card_mix(h, (uint64_t)watch_token(call->batch, b, i) << 32 | (uint64_t)b);
    return h;
}

static uint64_t hash_edits(const fs_batch *batch) {
    uint64_t h = 0;
    for (int64_t b = 0; b < batch->rows && (batch->edit_offset || batch->edit_count); b++) {
        const fs_edits edits = batch_edits(batch, b, batch_slot_index(batch, b));
        for (int64_t i = edits.first; i < edits.first + edits.count; i++) {
            h = card_mix(h, (uint64_t)batch->edit_token[i] << 32 | float_bits(batch->edit_bias[i]));
            h = card_mix(h, (uint64_t)b);
        }
    }
    return h;
}

fs_card fs_card_of(const fs_call *call) {
    const fs_batch *batch = call->batch;
    const fs_ask *ask = &call->ask;
    fs_card card;
    memset(&card, 0, sizeof card);
    card.word[FS_CARD_VERSION] = FS_VERSION_MAJOR << 16 | FS_VERSION_MINOR << 8 | FS_VERSION_PATCH;
    card.word[FS_CARD_NOISE_ID] = FS_NOISE_ID;
    card.word[FS_CARD_ROWS] = batch->rows;
    card.word[FS_CARD_VOCAB] = call->vocab;
    card.word[FS_CARD_DIM] = call->head->kind == FS_HEAD_WEIGHTS ? call->head->dim : 0;
    card.word[FS_CARD_HEAD] = (int64_t)card_mix_head(0, call->head);
    card.word[FS_CARD_MODE] = batch->mode;
    card.word[FS_CARD_NOISE] = batch->noise;
    card.word[FS_CARD_FLAGS] = batch->flags;
    card.word[FS_CARD_SAMPLES] = batch->samples;
    card.word[FS_CARD_LOGITS] = call->result->logits;
    card.word[FS_CARD_ASKED] = (int64_t)asked(ask);
    card.word[FS_CARD_LISTS] = (int64_t)card_mix((uint64_t)ask->keep << 32 | (uint32_t)ask->keep_raw, ask->rank_depth);
    card.word[FS_CARD_WATCHED] = (int64_t)hash_watched(call);
    card.word[FS_CARD_EDITS] = (int64_t)hash_edits(batch);
    uint64_t seeds = 0, positions = 0, rules = 0;
    for (int64_t b = 0; b < batch->rows; b++) {
        const fs_rules r = call->rules ? call->rules[b] : fs_rules_of_row(batch, call->vocab, b);
        seeds = card_mix(card_mix(seeds, r.seed), r.stream);
        positions = card_mix(positions, r.position);
        rules = card_mix_rules(rules, &r);
    }
    card.word[FS_CARD_SEEDS] = (int64_t)seeds;
    card.word[FS_CARD_POSITIONS] = (int64_t)positions;
    card.word[FS_CARD_RULES] = (int64_t)rules;
    return card;
}

uint64_t fs_card_hash(const fs_card *card) {
    uint64_t h = 0;
    for (int32_t i = 0; i < FS_CARD_WORDS; i++) h = card_mix(h, (uint64_t)card->word[i]);
    return h;
}
