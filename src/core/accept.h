/* accept.h - speculative decoding: how many drafts equal what the target drew, and which tokens follow. */
#ifndef FS_CORE_ACCEPT_H
#define FS_CORE_ACCEPT_H

#include "core.h"

#include "flashsampling.h"

FS_CORE int64_t accept_token(int32_t dtype, const void *tokens, int64_t i) {
    return dtype == FS_I64 ? ((const int64_t *)tokens)[i] : ((const int32_t *)tokens)[i];
}

/* Leading tokens of draft[from] .. draft[from + k - 1] that equal those of target[at] ..; a negative one equals none.
 * */
FS_CORE int64_t accept_count(int32_t dtype, int64_t k, const void *draft, int64_t from, const void *target,
                             int64_t at) {
    int64_t i = 0;
    for (; i < k; i++) {
        const int64_t token = accept_token(dtype, draft, from + i);
        if (token < 0 || token != accept_token(dtype, target, at + i)) break;
    }
    return i;
}

/* Where the targets of sequence s begin. */
FS_CORE int64_t drafts_target(const fs_drafts *d, int64_t s) {
    return d->target_offset ? d->target_offset[s] : s * (d->draft_length + 1);
}

/* How many drafts it has. */
FS_CORE int64_t drafts_length(const fs_drafts *d, int64_t s) {
    const int64_t targets = drafts_target(d, s + 1) - drafts_target(d, s);
    return targets ? targets - 1 : 0;
}

/* The call, where arrays are host memory. */
FS_CORE void drafts_accept(const fs_drafts *d) {
    const size_t bytes = d->tokens_dtype == FS_I64 ? 8 : 4;
    int64_t before = 0, emitted = 0; /* by the sequences so far: drafts, tokens */
    for (int64_t s = 0; s < d->sequences; s++) {
        const int64_t at = drafts_target(d, s), length = drafts_length(d, s);
        const int64_t from = d->draft_offset ? d->draft_offset[s] : before;
        const int64_t accepted = accept_count(d->tokens_dtype, length, d->draft, from, d->target, at);
        const int64_t tokens = drafts_target(d, s + 1) > at ? accepted + 1 : 0;
        d->accepted[s] = (int32_t)accepted;
        if (d->token_offset) d->token_offset[s] = emitted;
        if (d->tokens) {
            char *to = (char *)d->tokens + (size_t)(d->tokens_width ? s * d->tokens_width : emitted) * bytes;
            if (tokens) memcpy(to, (const char *)d->target + (size_t)at * bytes, (size_t)tokens * bytes);
            if (d->tokens_width) memset(to + (size_t)tokens * bytes, 0xff, (size_t)(d->tokens_width - tokens) * bytes);
        }
        before += length;
        emitted += tokens;
    }
    if (d->token_offset) d->token_offset[d->sequences] = emitted;
}

#endif
