/* rules.h - what one row asks for, gathered from a batch's arrays and scalars and checked. */
#ifndef FS_CORE_RULES_H
#define FS_CORE_RULES_H

#include "core.h"
#include "noise.h"
#include "rule_table.h"

#include "flashsampling.h"

typedef struct fs_row_rules {
    uint32_t status;           /* FS_ROW_ bits that are known before any logit is */
    int32_t slot;              /* index of the per-slot arrays; -1 if the row is skipped or its slot is bad */
    int32_t greedy;            /* temperature 0 */
    float inverse_temperature; /* 1 for greedy rows, as temperature then is: l = y */
    float cut_scale;           /* cuts look at y times this: inverse_temperature, or 1 */
    double log_min_p;          /* -inf: off */
    uint64_t seed;             /* as drawn with: seed_all is spread already */
    uint64_t position;
    uint32_t substream;
    /* The values of the row's rules: off where a rule is not used or its value is out of range. */
#define FS_RULE_MEMBER(name, type, bit, off, used, least, most, status, about) type name;
    FS_RULE_TABLE(FS_RULE_MEMBER)
#undef FS_RULE_MEMBER
} fs_row_rules;

FS_CORE int rules_drop_row(const fs_row_rules *rules) {
    return (rules->status & FS_ROW_NO_TOKEN) != 0;
}

FS_CORE int rules_cut(const fs_row_rules *rules) {
    return rules->top_k > 0 || rules->top_p < 1.0f || rules->log_min_p > -INFINITY;
}

/* Top-p is the row's only cut. */
FS_CORE int rules_top_p_alone(const fs_row_rules *rules) {
    return rules->top_p < 1.0f && rules->top_k == 0 && !(rules->log_min_p > -INFINITY);
}

FS_CORE int rules_min_p_alone(const fs_row_rules *rules) {
    return rules->log_min_p > -INFINITY && rules->top_k == 0 && !(rules->top_p < 1.0f);
}

/* Top-p counts mass against the whole row: nothing has narrowed it before, or it is not to matter. */
FS_CORE int rules_top_p_of_row(const fs_row_rules *rules, uint32_t flags) {
    const int min_p_before = rules->log_min_p > -INFINITY && !(flags & FS_MIN_P_LAST);
    return rules->top_p < 1.0f && ((flags & FS_JOINT_TOP_P) || (rules->top_k == 0 && !min_p_before));
}

/* Whether one of the rules that are penalties is used. */
FS_CORE int rules_penalise(const fs_row_rules *rules) {
    const int64_t vocab = 0; /* no penalty asks for it */
    int penalise = 0;
#define FS_RULE_PENALISES(name, type, bit, off, used, least, most, status, about)                                      \
    {                                                                                                                  \
        const type v = rules->name;                                                                                    \
        if ((bit) == FS_RULE_PENALTIES && (used)) penalise = 1;                                                        \
    }
    FS_RULE_TABLE(FS_RULE_PENALISES)
#undef FS_RULE_PENALISES
    (void)vocab;
    return penalise;
}

/* Whether there is anything that penalties look at. */
FS_CORE int batch_penalises(const fs_batch *batch) {
    return batch->seen || batch->counts || batch->count_offset || batch->extra_offset;
}

/* --------------------------------------------------------------------------------------------- how a row draws ---- */

/* What of a batch says which noise a row has, and at which temperature: apart from the rest, because kernels that wait
 * for it read it first. */
typedef struct fs_draw_source {
    const void *slot;
    int64_t slots;
    int32_t slot_dtype;
    uint32_t substream_all;
    const uint64_t *position, *seed;
    const float *temperature;
    uint64_t position_all, seed_all;
    float temperature_all;
} fs_draw_source;

/* What memory holds of it for one row. */
typedef struct fs_draw_values {
    int64_t slot;  /* as the caller wrote it */
    int32_t index; /* of the per-slot arrays; -1: the row is skipped, or its slot is bad */
    uint32_t substream;
    uint64_t position, seed;
    int32_t spread; /* the seed is one for all slots */
    float temperature;
} fs_draw_values;

FS_CORE fs_draw_source draw_source(const fs_batch *batch, const fs_rules *rules) {
    const fs_draw_source source = {batch->slot,
                                   batch->slots ? batch->slots : batch->rows,
                                   batch->slot_dtype,
                                   batch->substream_all,
                                   batch->position,
                                   batch->seed,
                                   rules->temperature.per_slot,
                                   batch->position_all,
                                   batch->seed_all,
                                   rules->temperature.value};
    return source;
}

FS_CORE fs_draw_values draw_values(const fs_draw_source *from, int64_t row) {
    fs_draw_values v = {
        row, -1, from->substream_all, from->position_all, from->seed_all, !from->seed, from->temperature_all};
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
    const int64_t slots = batch->slots ? batch->slots : batch->rows;
    int64_t slot = row;
    if (batch->slot && batch->slot_dtype == FS_I64) slot = ((const int64_t *)batch->slot)[row];
    else if (batch->slot) slot = ((const int32_t *)batch->slot)[row];
    return slot < 0 || slot >= slots ? -1 : (int32_t)slot;
}

/* The rules of a row that has no others. */
FS_CORE fs_row_rules rules_of_draw(const fs_draw_values *v) {
    const float inverse = 1.0f / v->temperature;
    fs_row_rules rules;
    memset(&rules, 0, sizeof rules);
    rules.slot = v->index;
#define FS_RULE_OFF(name, type, bit, off, used, least, most, status, about) rules.name = off;
    FS_RULE_TABLE(FS_RULE_OFF)
#undef FS_RULE_OFF
    rules.inverse_temperature = rules.cut_scale = 1.0f;
    rules.log_min_p = -INFINITY;
    if (v->index < 0) {
        rules.status = v->slot == -1 ? FS_ROW_SKIPPED : FS_ROW_BAD_SLOT;
        return rules;
    }
    rules.position = v->position;
    rules.seed = v->spread ? noise_spread_seed(v->seed, (uint64_t)v->index) : v->seed;
    rules.substream = v->substream;
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

/* FS_RULE_... of the rules that have a value per slot and are used. */
FS_CORE uint32_t rules_used(const fs_row_rules *rules, int64_t vocab) {
    uint32_t uses = 0;
#define FS_RULE_USED(name, type, bit, off, used, least, most, status, about)                                           \
    {                                                                                                                  \
        const type v = rules->name;                                                                                    \
        if (used) uses |= bit;                                                                                         \
    }
    FS_RULE_TABLE(FS_RULE_USED)
#undef FS_RULE_USED
    (void)vocab;
    return uses;
}

/* The limits that a row is held to, from batch.limits. */
typedef struct fs_row_limits {
    uint32_t absent;
    int32_t top_k;
} fs_row_limits;

FS_CORE fs_row_limits limits_of_rows(const fs_batch *batch) {
    const fs_row_limits limits = {batch->limits->absent, batch->limits->top_k};
    return limits;
}

/* Whether the row breaks a promise of batch.limits. */
FS_CORE int rules_over_limit(const fs_batch *batch, const fs_row_limits *limits, const fs_row_rules *rules,
                             int64_t vocab, int64_t row) {
    if (limits->top_k > 0 && rules->top_k > limits->top_k) return 1;
    if (!limits->absent) return 0;
    uint32_t uses = rules_used(rules, vocab);
    if (!batch_penalises(batch)) uses &= ~(uint32_t)FS_RULE_PENALTIES;
    if (batch_mask(batch, row) >= 0) uses |= FS_RULE_ALLOW;
    if (batch_edits(batch, row, rules->slot).count > 0) uses |= FS_RULE_EDITS;
    return (uses & limits->absent) != 0;
}

/* `asked` is what batch->rules points to, or on a device a copy of it, and `limits` of the batch's. */
FS_CORE fs_row_rules rules_of_row(const fs_batch *batch, const fs_rules *asked, const fs_row_limits *limits,
                                  int64_t vocab, int64_t row) {
    const fs_draw_source source = draw_source(batch, asked);
    const fs_draw_values values = draw_values(&source, row);
    fs_row_rules rules = rules_of_draw(&values);
    const int32_t slot = rules.slot;
    if (slot < 0) return rules;
    if (batch->substream) rules.substream = batch->substream[slot];
    if (batch->flags & FS_CUT_BEFORE_TEMPERATURE) rules.cut_scale = 1.0f;

#define FS_READ_RULE(name, type, bit, off, used, least, most, bad, about)                                              \
    {                                                                                                                  \
        const type v = asked->name.per_slot ? asked->name.per_slot[slot] : asked->name.value;                          \
        if (!(v >= least && v <= most)) rules.status |= bad;                                                           \
        else if (used) rules.name = v;                                                                                 \
    }
    FS_OTHER_RULES(FS_READ_RULE)
#undef FS_READ_RULE
    if (rules.min_p > 0.0f) rules.log_min_p = log((double)rules.min_p);

    const int64_t mask = batch_mask(batch, row);
    if (mask < -1 || (batch->allow_count && mask >= batch->allow_count)) rules.status |= FS_ROW_BAD_MASK;
    if (batch_edits_are_bad(batch, slot)) rules.status |= FS_ROW_BAD_LIST;
    /* Out of the way of rows without: on a GPU code that is jumped over is fetched all the same. */
    if (__builtin_expect(limits->absent || limits->top_k, 0) && rules_over_limit(batch, limits, &rules, vocab, row))
        rules.status |= FS_ROW_OVER_LIMIT;
    return rules;
}

/* The same where what the batch points to is host memory. */
FS_CORE fs_row_rules rules_of_host_row(const fs_batch *batch, int64_t vocab, int64_t row) {
    const fs_row_limits limits = limits_of_rows(batch);
    return rules_of_row(batch, batch->rules, &limits, vocab, row);
}

/* Whether all that rules_of_row looks at beside fs_draw_source is the same for all rows. */
FS_CORE int rules_are_uniform(const fs_batch *batch, const fs_rules *asked) {
#define FS_RULE_VARIES(name, type, bit, off, used, least, most, status, about) || asked->name.per_slot
    const int varies = 0 FS_OTHER_RULES(FS_RULE_VARIES);
#undef FS_RULE_VARIES
    return !varies && !batch->substream && !batch->allow && !batch->edit_offset && !batch->edit_count &&
           !batch_penalises(batch);
}

/* The penalties of a token that occurred `count` times in the output; seen: in the prompt or the output. -inf is final,
 * whatever has made it so. */
FS_CORE float rules_penalised(const fs_row_rules *rules, float y, int seen, int32_t count) {
    if (y > -INFINITY && (seen || count > 0)) y = y > 0.0f ? y / rules->repetition : y * rules->repetition;
    if (y > -INFINITY && count > 0) y -= rules->frequency * (float)count;
    if (y > -INFINITY && count > 0) y -= rules->presence;
    return y;
}

#endif
