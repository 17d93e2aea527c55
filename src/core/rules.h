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
    float temperature;         /* 1 for greedy rows, */
    float inverse_temperature; /* and so is this: then l = y */
    float cut_scale;           /* cuts look at y times this: inverse_temperature, or 1 */
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

FS_CORE int rules_min_p_alone(const fs_rules *rules) {
    return rules->log_min_p > -INFINITY && rules->top_k == 0 && !(rules->top_p < 1.0f);
}

/* Top-p counts mass against the whole row: nothing has narrowed it before, or it is not to matter. */
FS_CORE int rules_top_p_of_row(const fs_rules *rules, uint32_t flags) {
    const int min_p_before = rules->log_min_p > -INFINITY && !(flags & FS_MIN_P_LAST);
    return rules->top_p < 1.0f && ((flags & FS_JOINT_TOP_P) || (rules->top_k == 0 && !min_p_before));
}

FS_CORE int rules_penalise(const fs_rules *rules) {
    return rules->repetition != 1.0f || rules->frequency != 0.0f || rules->presence != 0.0f;
}

/* Whether there is anything that penalties look at. */
FS_CORE int batch_penalises(const fs_batch *batch) {
    return batch->seen || batch->counts || batch->count_offset;
}

/* A top_p above 1 by no more than this is a rounded 1. */
#define FS_TOP_P_MOST 1.00001f

/* The value of an array for this slot, or the scalar. */
#define FS_SLOT_VALUE(batch, name, slot) ((batch)->name ? (batch)->name[slot] : (batch)->all.name)

/* --------------------------------------------------------------------------------------------- how a row draws ---- */

/* What of a batch says which noise a row has, and at which temperature: apart from the rest, because kernels that wait
 * for it read it first. */
typedef struct fs_draw_source {
    const void *slot;
    int64_t slots;
    int32_t slot_dtype;
    uint32_t stream_all;
    const uint64_t *position, *seed;
    const float *temperature;
    uint64_t position_all, seed_all;
    float temperature_all;
} fs_draw_source;

/* What memory holds of it for one row. */
typedef struct fs_draw_values {
    int64_t slot;  /* as the caller wrote it */
    int32_t index; /* of the per-slot arrays; -1: the row is skipped, or its slot is bad */
    uint32_t stream;
    uint64_t position, seed;
    int32_t spread; /* the seed is one for all slots */
    float temperature;
} fs_draw_values;

FS_CORE fs_draw_source draw_source(const fs_batch *batch) {
    const fs_draw_source source = {batch->slot,        batch->slots ? batch->slots : batch->rows,
                                   batch->slot_dtype,  batch->all.stream,
                                   batch->position,    batch->seed,
                                   batch->temperature, batch->position_all,
                                   batch->all.seed,    batch->all.temperature};
    return source;
}

FS_CORE fs_draw_values draw_values(const fs_draw_source *from, int64_t row) {
    fs_draw_values v = {
        row, -1, from->stream_all, from->position_all, from->seed_all, !from->seed, from->temperature_all};
    if (from->slot && from->slot_dtype == FS_I64) v.slot = ((const int64_t *)from->slot)[row];
    else if (from->slot) v.slot = ((const int32_t *)from->slot)[row];
    if (v.slot < 0 || v.slot >= from->slots) return v;
    v.index = (int32_t)v.slot;
    if (from->position) v.position = from->position[row];
    if (from->temperature) v.temperature = from->temperature[v.index];
    if (from->seed) v.seed = from->seed[v.index];
    return v;
}

/* The slot of a row as an index of the per-slot arrays. */
FS_CORE int32_t batch_slot_index(const fs_batch *batch, int64_t row) {
    const fs_draw_source source = draw_source(batch);
    return draw_values(&source, row).index;
}

/* The rules of a row that has no others. */
FS_CORE fs_rules rules_of_draw(const fs_draw_values *v) {
    const float inverse = 1.0f / v->temperature;
    fs_rules rules;
    memset(&rules, 0, sizeof rules);
    rules.slot = v->index;
    rules.temperature = rules.inverse_temperature = rules.cut_scale = 1.0f;
    rules.top_p = 1.0f;
    rules.log_min_p = -INFINITY;
    rules.repetition = 1.0f;
    if (v->index < 0) {
        rules.status = v->slot == -1 ? FS_ROW_SKIPPED : FS_ROW_BAD_SLOT;
        return rules;
    }
    rules.position = v->position;
    rules.seed = v->spread ? noise_spread_seed(v->seed, (uint64_t)v->index) : v->seed;
    rules.stream = v->stream;
    rules.greedy = v->temperature == 0.0f;
    if (rules.greedy) return rules;
    rules.temperature = v->temperature;
    rules.inverse_temperature = rules.cut_scale = inverse;
    if (!(v->temperature > 0.0f) || !(inverse > 0.0f && inverse < INFINITY)) rules.status = FS_ROW_BAD_TEMPERATURE;
    return rules;
}

/* ---------------------------------------------------------------------------------------------------- the rest ---- */

/* A row's edits: `count` places of edit_token and edit_bias from `first` on. */
typedef struct fs_edits {
    int64_t first, count;
} fs_edits;

/* Of a row of this slot; bad counts are none, and make the row FS_ROW_BAD_LIST. */
FS_CORE fs_edits batch_edits(const fs_batch *batch, int64_t row, int64_t slot) {
    fs_edits edits = {0, 0};
    if (batch->edit_offset) {
        edits.first = batch->edit_offset[row];
        edits.count = batch->edit_offset[row + 1] - edits.first;
    } else if (batch->edit_count && slot >= 0) {
        const int64_t line = batch->edit_stride / 4, count = batch->edit_count[slot];
        edits.first = slot * line;
        edits.count = count >= 0 && count <= line ? count : 0;
    }
    return edits;
}

FS_CORE int batch_edits_are_bad(const fs_batch *batch, int64_t slot) {
    return batch->edit_count && (batch->edit_count[slot] < 0 || batch->edit_count[slot] > batch->edit_stride / 4);
}

/* Which allow-bitmask a row has; -1: none. */
FS_CORE int64_t batch_mask(const fs_batch *batch, int64_t row) {
    return !batch->allow ? -1 : batch->allow_index ? batch->allow_index[row] : row;
}

/* Whether the row breaks a promise of batch.limits. */
FS_CORE int rules_over_limit(const fs_batch *batch, const fs_rules *rules, int64_t row) {
    const fs_limits *limits = &batch->limits;
    uint32_t uses = 0;
    if (limits->top_k > 0 && rules->top_k > limits->top_k) return 1;
    if (!limits->absent) return 0;
    if (rules->top_k > 0) uses |= FS_RULE_TOP_K;
    if (rules->top_p < 1.0f) uses |= FS_RULE_TOP_P;
    if (rules->log_min_p > -INFINITY) uses |= FS_RULE_MIN_P;
    if (batch_mask(batch, row) >= 0) uses |= FS_RULE_ALLOW;
    if (batch_edits(batch, row, rules->slot).count > 0) uses |= FS_RULE_EDITS;
    if (batch_penalises(batch) && rules_penalise(rules)) uses |= FS_RULE_PENALTIES;
    return (uses & limits->absent) != 0;
}

FS_CORE fs_rules rules_of_row(const fs_batch *batch, int64_t vocab, int64_t row) {
    const fs_draw_source source = draw_source(batch);
    const fs_draw_values values = draw_values(&source, row);
    fs_rules rules = rules_of_draw(&values);
    const int32_t slot = rules.slot;
    if (slot < 0) return rules;
    if (batch->stream) rules.stream = batch->stream[slot];
    if (batch->flags & FS_CUT_BEFORE_TEMPERATURE) rules.cut_scale = 1.0f;

    int32_t top_k = FS_SLOT_VALUE(batch, top_k, slot);
    if (top_k > 0 && top_k < vocab) rules.top_k = top_k;
    float top_p = FS_SLOT_VALUE(batch, top_p, slot);
    if (!(top_p >= 0.0f && top_p <= FS_TOP_P_MOST)) rules.status |= FS_ROW_BAD_TOP_P;
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

    const int64_t mask = batch_mask(batch, row);
    if (mask < -1 || (batch->masks && mask >= batch->masks)) rules.status |= FS_ROW_BAD_MASK;
    if (batch_edits_are_bad(batch, slot)) rules.status |= FS_ROW_BAD_LIST;
    /* Out of the way of rows without: on a GPU code that is jumped over is fetched all the same. */
    const fs_limits *limits = &batch->limits;
    if (__builtin_expect(limits->absent || limits->top_k, 0) && rules_over_limit(batch, &rules, row))
        rules.status |= FS_ROW_OVER_LIMIT;
    return rules;
}

/* Whether all that rules_of_row looks at beside fs_draw_source is the same for all rows: whoever adds a rule adds it
 * here. */
FS_CORE int rules_are_uniform(const fs_batch *batch) {
    return !batch->stream && !batch->top_k && !batch->top_p && !batch->min_p && !batch->repetition &&
           !batch->frequency && !batch->presence && !batch->allow && !batch->edit_offset && !batch->edit_count &&
           !batch_penalises(batch);
}

/* The penalties of a token that occurred `count` times in the output; seen: in the prompt or the output. -inf is final,
 * whatever has made it so. */
FS_CORE float rules_penalised(const fs_rules *rules, float y, int seen, int32_t count) {
    if (y > -INFINITY && (seen || count > 0)) y = y > 0.0f ? y / rules->repetition : y * rules->repetition;
    if (y > -INFINITY && count > 0) y -= rules->frequency * (float)count;
    if (y > -INFINITY && count > 0) y -= rules->presence;
    return y;
}

#endif
