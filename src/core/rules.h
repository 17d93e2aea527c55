/* rules.h - what one row asks for, gathered from a batch's arrays and scalars and checked. */
#ifndef FS_CORE_RULES_H
#define FS_CORE_RULES_H

#include "core.h"
#include "noise.h"

#include "flashsampling.h"

typedef struct fs_rules {
    uint32_t status;           /* FS_ROW_ bits that are known before any logit is */
    int32_t slot;              /* index of the per-slot arrays; -1 if the row is skipped or its slot is bad */
    int32_t greedy;            /* temperature 0 */
    float inverse_temperature; /* 1 for greedy rows: then l = y */
    int32_t top_k;             /* 0: off */
    float top_p;               /* 1: off */
    double log_min_p;          /* -inf: off */
    uint64_t seed;             /* as drawn with: a scalar is spread already */
    uint64_t position;
    uint32_t stream;
    float repetition, frequency, presence;
} fs_rules;

FS_CORE int rules_drop_row(const fs_rules *rules) {
    return (rules->status & FS_ROW_NO_TOKEN) != 0;
}

FS_CORE int rules_cut(const fs_rules *rules) {
    return rules->top_k > 0 || rules->top_p < 1.0f || rules->log_min_p > -INFINITY;
}

/* Top-p is the row's only cut. */
FS_CORE int rules_top_p_alone(const fs_rules *rules) {
    return rules->top_p < 1.0f && rules->top_k == 0 && !(rules->log_min_p > -INFINITY);
}

FS_CORE int rules_penalise(const fs_rules *rules) {
    return rules->repetition != 1.0f || rules->frequency != 0.0f || rules->presence != 0.0f;
}

/* The value of an array for this slot, or the scalar. */
#define FS_SLOT_VALUE(batch, name, slot) ((batch)->name ? (batch)->name[slot] : (batch)->all.name)

/* The slot of a row, as the caller wrote it. */
FS_CORE int64_t batch_slot(const fs_batch *batch, int64_t row) {
    if (!batch->slot) return row;
    return batch->slot_dtype == FS_I64 ? ((const int64_t *)batch->slot)[row] : ((const int32_t *)batch->slot)[row];
}

FS_CORE fs_rules rules_of_row(const fs_batch *batch, int64_t vocab, int64_t row) {
    fs_rules rules;
    memset(&rules, 0, sizeof rules);
    int64_t slots = batch->slots ? batch->slots : batch->rows;
    int64_t slot = batch_slot(batch, row);
    rules.slot = -1;
    rules.inverse_temperature = 1.0f;
    rules.top_p = 1.0f;
    rules.log_min_p = -INFINITY;
    rules.repetition = 1.0f;
    if (slot == -1) {
        rules.status = FS_ROW_SKIPPED;
        return rules;
    }
    if (slot < 0 || slot >= slots) {
        rules.status = FS_ROW_BAD_SLOT;
        return rules;
    }
    rules.slot = (int32_t)slot;
    rules.position = batch->position ? batch->position[row] : batch->position_all;
    rules.seed = batch->seed ? batch->seed[slot] : noise_spread_seed(batch->all.seed, (uint64_t)slot);
    rules.stream = FS_SLOT_VALUE(batch, stream, slot);

    float temperature = FS_SLOT_VALUE(batch, temperature, slot);
    float inverse = 1.0f / temperature;
    rules.greedy = temperature == 0.0f;
    if (!rules.greedy) {
        rules.inverse_temperature = inverse;
        if (!(temperature > 0.0f) || !(inverse > 0.0f && inverse < INFINITY)) rules.status |= FS_ROW_BAD_TEMPERATURE;
    }

    int32_t top_k = FS_SLOT_VALUE(batch, top_k, slot);
    if (top_k > 0 && top_k < vocab) rules.top_k = top_k;
    float top_p = FS_SLOT_VALUE(batch, top_p, slot);
    if (!(top_p >= 0.0f)) rules.status |= FS_ROW_BAD_TOP_P;
    else if (top_p < 1.0f) rules.top_p = top_p;
    float min_p = FS_SLOT_VALUE(batch, min_p, slot);
    if (!(min_p >= 0.0f && min_p <= 1.0f)) rules.status |= FS_ROW_BAD_MIN_P;
    else if (min_p > 0.0f) rules.log_min_p = log((double)min_p);

    rules.repetition = FS_SLOT_VALUE(batch, repetition, slot);
    rules.frequency = FS_SLOT_VALUE(batch, frequency, slot);
    rules.presence = FS_SLOT_VALUE(batch, presence, slot);
    if (!(rules.repetition > 0.0f && rules.repetition < INFINITY) || !(fabsf(rules.frequency) < INFINITY) ||
        !(fabsf(rules.presence) < INFINITY))
        rules.status |= FS_ROW_BAD_PENALTY;

    const int64_t mask = !batch->allow ? -1 : batch->allow_index ? batch->allow_index[row] : row;
    if (mask < -1 || (batch->masks && mask >= batch->masks)) rules.status |= FS_ROW_BAD_MASK;
    return rules;
}

/* The penalties of a token that occurred `count` times in the output; seen: in the prompt or the output. -inf is final, whatever has
 * made it so. */
FS_CORE float rules_penalised(const fs_rules *rules, float y, int seen, int32_t count) {
    if (y > -INFINITY && (seen || count > 0)) y = y > 0.0f ? y / rules->repetition : y * rules->repetition;
    if (y > -INFINITY) y -= rules->frequency * (float)count;
    if (y > -INFINITY && count > 0) y -= rules->presence;
    return y;
}

#endif
