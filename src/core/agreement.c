#include "agreement.h"

static const struct {
    const char *name;
    int32_t is_value;
} words[FS_AGREE_WORDS] = {
    [FS_AGREE_VERSION] = {"the library's version", 1},
    [FS_AGREE_NOISE_ID] = {"the noise id", 1},
    [FS_AGREE_ROWS] = {"batch.rows", 1},
    [FS_AGREE_VOCAB] = {"the vocabulary size", 1},
    [FS_AGREE_DIM] = {"head.dim", 1},
    [FS_AGREE_HEAD] = {"head.kind, round_to, scale, softcap or post_scale", 0},
    [FS_AGREE_MODE] = {"batch.mode", 1},
    [FS_AGREE_NOISE] = {"batch.noise", 1},
    [FS_AGREE_FLAGS] = {"batch.flags", 1},
    [FS_AGREE_SAMPLES] = {"batch.samples", 1},
    [FS_AGREE_LOGITS] = {"result.logits_mode", 1},
    [FS_AGREE_ASKED] = {"which results are asked for", 0},
    [FS_AGREE_LISTS] = {"the length of candidate lists (top_k, top_count, list_capacity)", 0},
    [FS_AGREE_WATCHED] = {"batch.score_token or watch_token", 0},
    [FS_AGREE_SEEDS] = {"a seed or substream", 0},
    [FS_AGREE_POSITIONS] = {"a position", 0},
    [FS_AGREE_RULES] = {"a slot or the value of a rule, or whether a limit or list holds", 0},
    [FS_AGREE_EDITS] = {"an edit", 0},
    [FS_AGREE_EXTRAS] = {"batch.extra_token", 0},
    [FS_AGREE_BUDGET] = {"options.fallback_bytes", 1},
};

const char *fs_agreement_name(int32_t i, int32_t *is_value) {
    *is_value = words[i].is_value;
    return words[i].name;
}

static uint64_t hash_watched(const fs_call *call) {
    uint64_t h = (uint64_t)call->needs.watched;
    for (int64_t b = 0; b < call->batch->rows && call->needs.watched; b++)
        for (int64_t i = 0; i < watch_count(call->batch, b); i++)
            h = hash_mix(h, (uint64_t)watch_token(call->batch, b, i) << 32 | (uint64_t)b);
    return h;
}

static uint64_t hash_edits(const fs_batch *batch) {
    uint64_t h = 0;
    for (int64_t b = 0; b < batch->rows && (batch->edit_offset || batch->edit_count); b++) {
        const fs_edits edits = batch_edits(batch, b, batch_slot_index(batch, b));
        for (int64_t i = edits.first; i < edits.first + edits.count; i++) {
            h = hash_mix(h, (uint64_t)batch->edit_token[i] << 32 | float_bits(batch->edit_bias[i]));
            h = hash_mix(h, (uint64_t)b);
        }
    }
    return h;
}

static uint64_t hash_extras(const fs_batch *batch) {
    uint64_t h = 0;
    for (int64_t b = 0; b < batch->rows && batch->extra_offset; b++)
        for (int64_t i = batch->extra_offset[b]; i < batch->extra_offset[b + 1]; i++)
            h = hash_mix(h, (uint64_t)batch->extra_token[i] << 32 | (uint64_t)b);
    return h;
}

fs_agreement fs_agreement_of(const fs_call *call) {
    fs_agreement a = agreement_of_call(call);
    a.word[FS_AGREE_WATCHED] = hash_watched(call);
    a.word[FS_AGREE_EDITS] = hash_edits(call->batch);
    a.word[FS_AGREE_EXTRAS] = hash_extras(call->batch);
    for (int64_t b = 0; b < call->batch->rows; b++) {
        const fs_row_rules rules = call->rules ? call->rules[b] : fs_row_rules_of(call->batch, call->vocab, b);
        agreement_add_row(&a, b, &rules);
    }
    return a;
}
