/* cuda_supports.c - what this backend does not do, in plain C, so that it can be asked without a GPU. */
#include "cuda_plan.h"

#include "backend.h"

const char *fs_cuda_lacks(const fs_call_desc *o) {
    const int grouped = o->mode == FS_MODE_GROUP_PARALLEL || o->mode == FS_MODE_GROUP_ONLINE;
    const int weights = o->kind == FS_HEAD_WEIGHTS;
    const uint32_t cuts = FS_RULE_TOP_K | FS_RULE_TOP_P | FS_RULE_MIN_P;
    const fs_lack table[] = {
        /* Nobody does, but here the host does not see whether an array has a cut. */
        {grouped && (o->rules & cuts), "a cut in a group mode, unless limits.absent says that no row has one,"
                                       " is not supported by the cuda backend"},
        {(o->results & FS_RESULT_ENTROPY) != 0, "result.entropy is not supported by the cuda backend yet"},
        {(o->results & FS_RESULT_SURVIVORS) != 0,
         "result.survivor_token and survivor_count are not supported by the cuda backend yet"},
        {weights && (o->inputs & FS_INPUT_BROADCAST),
         "one hidden state for all rows (batch.hidden_stride FS_STRIDE_BROADCAST) is not supported by the cuda backend"
         " yet"},
        {(o->inputs & FS_INPUT_EXTRA_TOKENS) != 0,
         "tokens that count once more for one row (batch.extra_offset) are not supported by the cuda backend yet"},
    };
    return fs_first_lack(table, sizeof table / sizeof table[0]);
}

const char *fs_cuda_drafts_lack(const fs_drafts *d) {
    const fs_lack table[] = {
        {d->target_offset != NULL, "drafts.target_offset is not supported by the cuda backend; give draft_length"},
        {d->draft_offset != NULL, "drafts.draft_offset is not supported by the cuda backend"},
        {d->tokens != NULL, "drafts.tokens is not supported by the cuda backend"},
        {d->token_offset != NULL, "drafts.token_offset is not supported by the cuda backend"},
    };
    return fs_first_lack(table, sizeof table / sizeof table[0]);
}
