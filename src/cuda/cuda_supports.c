/* cuda_supports.c - what this backend does not do, in plain C, so that it can be asked without a GPU. */
#include "cuda_plan.h"

#include "backend.h"
#include "cuda_call.h"

#define NOT_YET " is not supported yet by the cuda backend"

const char *fs_cuda_lacks(const fs_outline *o) {
    const int weights = o->kind == FS_HEAD_WEIGHTS, shards = o->call != FS_CALL_SAMPLE;
    const int grouped = o->mode == FS_MODE_GROUP_PARALLEL || o->mode == FS_MODE_GROUP_ONLINE;
    const int log_z = (o->results & (FS_RESULT_LOG_Z | FS_RESULT_LOGPROB)) != 0;
    const fs_lack table[] = {
        {weights && o->dtype == FS_F32, "head.dtype FS_F32" NOT_YET},
        {weights && o->hidden_dtype != o->dtype, "a batch.hidden_dtype other than head.dtype" NOT_YET},
        {!grouped && o->mode != FS_MODE_SAMPLE, "a batch.mode other than FS_MODE_SAMPLE and the group modes" NOT_YET},
        {grouped && !shards && o->group_size % FS_CUDA_TILE, "a batch.group_size that is no multiple of 128" NOT_YET},
        {grouped && log_z && o->logits == FS_LOGITS_RAW, "log Z of raw logits together with a group mode" NOT_YET},
        {o->samples != 1, "batch.samples above 1" NOT_YET},
        {o->noise != FS_NOISE_EXACT, "FS_NOISE_FAST" NOT_YET},
        {(o->rules & FS_RULE_TOP_K) != 0, "top-k" NOT_YET},
        {(o->rules & FS_RULE_TOP_P) != 0, "top-p" NOT_YET},
        {(o->rules & FS_RULE_MIN_P) != 0, "min-p" NOT_YET},
        {(o->rules & FS_RULE_ALLOW) != 0, "batch.allow" NOT_YET},
        {(o->rules & FS_RULE_EDITS) != 0, "an edit of logits" NOT_YET},
        {(o->rules & FS_RULE_PENALTIES) != 0, "a penalty" NOT_YET},
        {(o->results & FS_RESULT_RANK) != 0, "result.rank" NOT_YET},
        {(o->results & FS_RESULT_TOP) != 0, "result.top_..." NOT_YET},
        {(o->results & FS_RESULT_WATCH) != 0, "result.watch_..." NOT_YET},
    };
    return fs_first_lack(table, sizeof table / sizeof table[0]);
}
_Static_assert(FS_CUDA_TILE == 128, "the words above say so");
