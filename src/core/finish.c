#include "finish.h"

int fs_finish_row(const fs_call *call, int64_t b, fs_summary *summary, uint32_t extra, int final, fs_winner *scratch) {
    return finish_row(call, b, &call->rules[b], summary, extra, final, scratch);
}
