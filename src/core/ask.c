#include "ask.h"

static int32_t largest(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* Entries row `rules` needs to prove its cut. With ties kept, room for as many again: where logits were rounded to bf16, most
 * rows have ties at the k-th place. */
static int32_t keep_for_cut(const fs_batch *batch, const fs_rules *rules) {
    if (!rules_cut(rules)) return 0;
    int64_t keep = FS_LIST_DEFAULT;
    if (rules->top_k > 0) keep = batch->flags & FS_KEEP_TIES ? 2 * (int64_t)rules->top_k + 64 : rules->top_k;
    if (batch->list_capacity) keep = batch->list_capacity > keep ? batch->list_capacity : keep;
    else if (keep > FS_LIST_MOST) keep = FS_LIST_MOST;
    return keep < FS_TOKEN_LIMIT ? (int32_t)keep : (int32_t)FS_TOKEN_LIMIT;
}

fs_ask fs_ask_of(const fs_head *head, const fs_batch *batch, const fs_result *result) {
    const int raw = result->logits == FS_LOGITS_RAW;
    const int log_z = result_wants_log_z(result);
    const int penalties = batch->seen || batch->counts || batch->count_offset;
    fs_ask ask;
    memset(&ask, 0, sizeof ask);
    ask.samples = batch->mode == FS_MODE_SCORE ? 0 : batch->samples;
    ask.ordered = batch->mode == FS_MODE_WITHOUT_REPLACEMENT;
    ask.raw_mass = raw && log_z;
    ask.mass = (!raw && log_z) || batch->mode == FS_MODE_GROUP_PARALLEL || batch->mode == FS_MODE_GROUP_ONLINE;
    ask.winner_logit = result->logit || result->logprob || result->rank;
    ask.max = result->max_logit || log_z;
    ask.mass_to_cut = !ask.mass &&
                      !(result->logits == FS_LOGITS_CUT && (result->rank || result->top_token || result->top_logit));
    ask.edited = batch->edit_offset != NULL;
    for (int64_t b = 0; b < batch->rows; b++) {
        fs_rules rules = rules_of_row(batch, head_vocab(head), b);
        if (rules_drop_row(&rules)) continue;
        ask.keep = largest(ask.keep, keep_for_cut(batch, &rules));
        ask.edited |= penalties && rules_penalise(&rules);
        ask.winner_logit |= rules_cut(&rules);
        int narrowed = rules.top_k > 0 || rules.log_min_p > -INFINITY;
        ask.mass |= rules.top_p < 1.0f && (!narrowed || (batch->flags & FS_JOINT_TOP_P));
    }
    ask.mass_to_cut &= ask.mass;
    int32_t depth = result->top_token || result->top_logit || result->top_logprob ? result->top_count : 0;
    if (result->rank) depth = largest(depth, FS_RANK_DEPTH);
    if (depth) depth = largest(depth, batch->list_capacity);
    ask.rank_depth = depth;
    if (raw && ask.edited) ask.keep_raw = depth;
    else ask.keep = largest(ask.keep, depth);
    /* No list needs more than there are tokens. */
    if (ask.keep > head_vocab(head)) ask.keep = (int32_t)head_vocab(head);
    if (ask.keep_raw > head_vocab(head)) ask.keep_raw = (int32_t)head_vocab(head);
    ask.raw_column = raw && ask.edited && ask.keep && ask.winner_logit;
    ask.watched = watch_before(batch, batch->rows);
    return ask;
}
