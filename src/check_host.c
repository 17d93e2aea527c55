/* check_host.c - what the arrays of a batch hold, where they can be read on the host. */
#include "check.h"

#include "core/rules.h"

/* A list of (offset, token) pairs in host memory: offsets ascend from a non-negative one and tokens are ids. */
static fs_status check_sparse(fs_context *context, const char *name, const int64_t *offset, const int32_t *token,
                              int64_t rows, int64_t vocab) {
    FS_REQUIRE(context, offset[0] >= 0, "batch.%s_offset[0] is %lld, must not be negative", name, (long long)offset[0]);
    for (int64_t i = 0; i < rows; i++)
        FS_REQUIRE(context, offset[i + 1] >= offset[i] && offset[i + 1] <= INT32_MAX,
                   "batch.%s_offset[%lld] is %lld after %lld, must ascend and stay below 2^31", name, (long long)i + 1,
                   (long long)offset[i + 1], (long long)offset[i]);
    FS_REQUIRE(context, offset[rows] == offset[0] || token, "batch.%s_token is NULL", name);
    for (int64_t i = offset[0]; i < offset[rows]; i++)
        FS_REQUIRE(context, token[i] >= 0 && token[i] < vocab, "batch.%s_token[%lld] is %d, must be 0 to %lld", name,
                   (long long)i, token[i], (long long)vocab - 1);
    return FS_OK;
}

fs_status fs_check_host_arrays(fs_context *context, const fs_batch *b, int64_t vocab) {
    const int64_t slots = b->slots ? b->slots : b->rows;
    if (b->edit_offset) {
        FS_TRY(check_sparse(context, "edit", b->edit_offset, b->edit_token, b->rows, vocab));
        FS_REQUIRE(context, b->edit_offset[b->rows] == b->edit_offset[0] || b->edit_bias, "batch.edit_bias is NULL");
    }
    if (b->count_offset) {
        FS_TRY(check_sparse(context, "count", b->count_offset, b->count_token, slots, vocab));
        FS_REQUIRE(context, b->count_offset[slots] == b->count_offset[0] || b->count_value,
                   "batch.count_value is NULL");
    }
    if (b->watch_offset) FS_TRY(check_sparse(context, "watch", b->watch_offset, b->watch_token, b->rows, vocab));
    if (!is_group_mode(b->mode)) return FS_OK;
    for (int64_t i = 0; i < b->rows; i++) {
        fs_rules rules = rules_of_row(b, vocab, i);
        FS_REQUIRE(context, !rules_cut(&rules), "row %lld has top_k %d, top_p %g or min_p: group modes take no cuts",
                   (long long)i, rules.top_k, (double)rules.top_p);
    }
    return FS_OK;
}
