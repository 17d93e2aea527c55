/* cuda_supports.c - what this backend does not do, in plain C, so that it can be asked without a GPU. */
#include "cuda_plan.h"

#include "backend.h"

#define NOT_YET " is not supported yet by the cuda backend"

const char *fs_cuda_lacks(const fs_outline *o) {
    const int weights = o->kind == FS_HEAD_WEIGHTS, shards = o->call != FS_CALL_SAMPLE;
    const int grouped = o->mode == FS_MODE_GROUP_PARALLEL || o->mode == FS_MODE_GROUP_ONLINE;
    const int log_z = (o->results & (FS_RESULT_LOG_Z | FS_RESULT_LOGPROB)) != 0;
    const uint32_t cuts = FS_RULE_TOP_K | FS_RULE_TOP_P | FS_RULE_MIN_P;
    const fs_lack table[] = {
        /* Nobody does, but here the host does not see whether an array has a cut. */
        {grouped && (o->rules & cuts), "a cut in a group mode, unless batch.limits.absent says that no row has one,"
                                       " is not supported by the cuda backend"},
        {shards && grouped && log_z && o->logits == FS_LOGITS_RAW,
         "log Z of raw logits together with a group mode over shards" NOT_YET},
        {shards && weights && o->dtype == FS_F32, "head.dtype FS_F32 over shards" NOT_YET},
        {shards && weights && o->hidden_dtype != o->dtype,
         "a batch.hidden_dtype other than head.dtype over shards" NOT_YET},
        {shards && !grouped && o->mode != FS_MODE_SAMPLE, "this batch.mode over shards" NOT_YET},
        {shards && o->samples != 1, "batch.samples above 1 over shards" NOT_YET},
        {shards && o->noise != FS_NOISE_EXACT, "FS_NOISE_FAST over shards" NOT_YET},
        {shards && (o->rules & FS_RULE_TOP_K), "top-k over shards" NOT_YET},
        {shards && (o->rules & FS_RULE_TOP_P), "top-p over shards" NOT_YET},
        {shards && (o->rules & FS_RULE_MIN_P), "min-p over shards" NOT_YET},
        {shards && (o->rules & FS_RULE_ALLOW), "batch.allow over shards" NOT_YET},
        {shards && (o->rules & FS_RULE_EDITS), "an edit of logits over shards" NOT_YET},
        {shards && (o->rules & FS_RULE_PENALTIES), "a penalty over shards" NOT_YET},
        {shards && (o->results & FS_RESULT_RANK), "result.rank over shards" NOT_YET},
        {shards && (o->results & FS_RESULT_TOP), "result.top_... over shards" NOT_YET},
        {shards && (o->results & FS_RESULT_WATCH), "result.watch_... over shards" NOT_YET},
    };
    return fs_first_lack(table, sizeof table / sizeof table[0]);
}
