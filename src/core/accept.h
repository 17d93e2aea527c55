/* accept.h - speculative decoding: how far a draft goes along with the target. */
#ifndef FS_CORE_ACCEPT_H
#define FS_CORE_ACCEPT_H

#include "core.h"

#include "flashsampling.h"

FS_CORE int64_t accept_token(int32_t dtype, const void *tokens, int64_t i) {
    return dtype == FS_I64 ? ((const int64_t *)tokens)[i] : ((const int32_t *)tokens)[i];
}

/* Leading tokens of draft [s, k] that equal those of target [s, k + 1]; a negative one equals none. */
FS_CORE int64_t accept_count(int32_t dtype, int64_t k, int64_t s, const void *draft, const void *target) {
    int64_t i = 0;
    for (; i < k; i++) {
        const int64_t token = accept_token(dtype, draft, s * k + i);
        if (token < 0 || token != accept_token(dtype, target, s * (k + 1) + i)) break;
    }
    return i;
}

#endif
