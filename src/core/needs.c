#include "needs.h"

static int32_t largest(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* Entries row `rules` needs to prove its cut, or `most` of them. With ties kept, room for as many again: where logits
 * were rounded to bf16, most rows have ties at the k-th place. */
static int32_t keep_for_cut(const fs_batch *batch, const fs_row_rules *rules, int64_t most) {
    if (!rules_cut(rules)) return 0;
    int64_t keep = FS_LIST_DEFAULT;
    if (rules->top_k > 0) keep = batch->flags & FS_KEEP_TIES_TOP_K ? 2 * (int64_t)rules->top_k + 64 : rules->top_k;
    if (batch->list_capacity) keep = batch->list_capacity > keep ? batch->list_capacity : keep;
    else if (keep > most) keep = most;
    return keep < FS_TOKEN_LIMIT ? (int32_t)keep : (int32_t)FS_TOKEN_LIMIT;
}

/* Whether all of these are ids. */
static int are_tokens(const int32_t *token, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; i++)
        if (token[i] < 0 || token[i] >= vocab) return 0;
    return 1;
}

/* Entries offset[i] .. offset[i + 1] - 1 of a list; without offsets there is none. */
static int are_listed_tokens(const int64_t *offset, int64_t i, const int32_t *token, int64_t vocab) {
    return !offset || offset[i + 1] == offset[i] || are_tokens(token + offset[i], offset[i + 1] - offset[i], vocab);
}

static int lists_are_tokens(const fs_batch *batch, int64_t vocab, int64_t b, int64_t slot) {
    const fs_edits edits = batch_edits(batch, b, slot);
    const int64_t given = watch_given(batch);
    if (edits.count && !are_tokens(batch->edit_token + edits.first, edits.count, vocab)) return 0;
    if (given && !are_tokens(batch->score_token + b * given, given, vocab)) return 0;
    return are_listed_tokens(batch->count_offset, slot, batch->count_token, vocab) &&
           are_listed_tokens(batch->extra_offset, b, batch->extra_token, vocab) &&
           are_listed_tokens(batch->watch_offset, b, batch->watch_token, vocab);
}

fs_row_rules fs_row_rules_of(const fs_batch *batch, int64_t vocab, int64_t b) {
    fs_row_rules rules = rules_of_host_row(batch, vocab, b);
    if (rules.slot >= 0 && !lists_are_tokens(batch, vocab, b, rules.slot)) rules.status |= FS_ROW_BAD_TOKEN;
    return rules;
}

/* What a row that is drawn adds. */
static void add_row(fs_needs *needs, const fs_batch *batch, const fs_row_rules *rules, int64_t most) {
    needs->keep = largest(needs->keep, keep_for_cut(batch, rules, most));
    needs->winner_logit |= rules_cut(rules);
    if (batch->flags & FS_CUT_BEFORE_TEMPERATURE) needs->cut_mass |= rules_top_p_of_row(rules, batch->flags);
    else needs->mass |= rules_top_p_of_row(rules, batch->flags);
}

static fs_needs needs_before_rows(const fs_batch *batch, const fs_result *result) {
    fs_needs needs = needs_of_call(batch, result);
    needs.bounded = result_wants_log_z(result);
    needs.max |= needs.bounded;
    const int looks_at_cut = result->rank || result->top_token || result->top_logit || result->entropy;
    needs.mass_to_cut = !needs.mass && !result_wants_survivors(result) &&
                        !(result->logits_mode == FS_LOGITS_CUT && looks_at_cut);
    return needs;
}

static void needs_after_rows(fs_needs *needs, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    const int raw = result->logits_mode == FS_LOGITS_RAW;
    needs->mass_to_cut &= needs->mass;
    int32_t depth = result_wants_top(result) ? result->top_count : 0;
    if (result->rank) depth = largest(depth, FS_RANK_DEPTH);
    if (depth) depth = largest(depth, batch->list_capacity);
    needs->rank_depth = depth;
    /* One more shows whether a tie is beyond that depth. */
    if (depth && result->rank && batch->flags & FS_RANK_OF_TIES) depth++;
    if (raw && needs->edited) needs->keep_raw = depth;
    else needs->keep = largest(needs->keep, depth);
    /* No list needs more than there are tokens. */
    if (needs->keep > head_vocab(head)) needs->keep = (int32_t)head_vocab(head);
    if (needs->keep_raw > head_vocab(head)) needs->keep_raw = (int32_t)head_vocab(head);
    needs->raw_column = raw && needs->edited && needs->keep && needs->winner_logit;
}

fs_needs fs_needs_of(const fs_head *head, const fs_batch *batch, const fs_result *result) {
    fs_needs needs = needs_before_rows(batch, result);
    for (int64_t b = 0; b < batch->rows; b++) {
        fs_row_rules rules = rules_of_host_row(batch, head_vocab(head), b);
        if (rules_drop_row(&rules)) continue;
        add_row(&needs, batch, &rules, FS_LIST_MOST);
        needs.edited |= batch_edits(batch, b, rules.slot).count > 0;
        needs.edited |= batch_penalises(batch) && rules_penalise(&rules);
    }
    needs_after_rows(&needs, head, batch, result);
    needs.watched = watch_before(batch, batch->rows);
    return needs;
}

fs_needs fs_needs_of_any(const fs_head *head, const fs_batch *batch, const fs_result *result) {
    const uint32_t may = batch_rules(head, batch);
    const fs_rules *asked = batch->rules;
    const uint32_t varies = (asked->top_k.per_slot ? FS_RULE_TOP_K : 0u) |
                            (asked->top_p.per_slot ? FS_RULE_TOP_P : 0u) | (asked->min_p.per_slot ? FS_RULE_MIN_P : 0u);
    const int32_t said = batch->limits->top_k ? batch->limits->top_k : FS_LIST_DEFAULT;
    fs_needs needs = needs_before_rows(batch, result);
    for (uint32_t uses = 0; uses < 8; uses++) { /* the first three rules */
        fs_row_rules rules;
        if (uses & ~may || (may & ~varies & 7) & ~uses) continue;
        memset(&rules, 0, sizeof rules);
        if (uses & FS_RULE_TOP_K) rules.top_k = asked->top_k.per_slot ? said : asked->top_k.value;
        rules.top_p = uses & FS_RULE_TOP_P ? 0.5f : 1.0f;
        rules.log_min_p = uses & FS_RULE_MIN_P ? -1.0 : -INFINITY;
        add_row(&needs, batch, &rules, FS_TOKEN_LIMIT); /* nobody makes a second pass */
    }
    needs.edited = (may & (FS_RULE_EDITS | FS_RULE_PENALTIES)) != 0;
    needs_after_rows(&needs, head, batch, result);
    needs.watched = watch_given(batch) * batch->rows + (watches(batch, result) ? batch->limits->watched : 0);
    return needs;
}
