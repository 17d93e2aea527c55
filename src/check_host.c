/* check_host.c - what the arrays of a batch hold, where they can be read on the host. */
#include "check.h"

#include "core/rules.h"

/* Lists of `rows` in host memory: their offsets ascend from a non-negative one. What tokens they hold is the rows' own
 * affair (FS_ROW_BAD_TOKEN). */
static fs_status check_sparse(fs_context *context, const char *name, const int64_t *offset, const int32_t *token,
                              int64_t rows) {
    FS_REQUIRE(context, offset[0] >= 0, "batch.%s_offset[0] is %lld, must not be negative", name, (long long)offset[0]);
    for (int64_t i = 0; i < rows; i++)
        FS_REQUIRE(context, offset[i + 1] >= offset[i] && offset[i + 1] <= INT32_MAX,
                   "batch.%s_offset[%lld] is %lld after %lld, must ascend and stay below 2^31", name, (long long)i + 1,
                   (long long)offset[i + 1], (long long)offset[i]);
    FS_REQUIRE(context, offset[rows] == offset[0] || token, "batch.%s_token is NULL", name);
    return FS_OK;
}

static fs_status check_edits(fs_context *context, const fs_batch *b, int64_t *entries) {
    *entries = 0;
    if (b->edit_offset) FS_TRY(check_sparse(context, "edit", b->edit_offset, b->edit_token, b->rows));
    if (!b->edit_offset && !b->edit_count) return FS_OK;
    for (int64_t i = 0; i < b->rows; i++) *entries += batch_edits(b, i, batch_slot_index(b, i)).count;
    FS_REQUIRE(context, *entries == 0 || b->edit_token, "batch.edit_token is NULL");
    FS_REQUIRE(context, *entries == 0 || b->edit_bias, "batch.edit_bias is NULL");
    return FS_OK;
}

static fs_status check_limit(fs_context *context, const char *name, int64_t entries, int64_t limit) {
    FS_REQUIRE(context, limit == 0 || entries <= limit, "limits.%s is %lld, but there are %lld entries", name,
               (long long)limit, (long long)entries);
    return FS_OK;
}

static fs_status check_no_cuts(fs_context *context, const fs_batch *b, int64_t vocab) {
    for (int64_t i = 0; i < b->rows; i++) {
        const fs_row_rules rules = rules_of_host_row(b, vocab, i);
#define FS_REFUSE_CUT(name, type, bit, off, used, least, most, status, about)                                          \
    FS_REQUIRE(context, !((bit)&FS_RULES_CUT) || rules.name == (off),                                                  \
               "row %lld has " #name " %g: group modes take no cuts", (long long)i, (double)rules.name);
        FS_RULE_TABLE(FS_REFUSE_CUT)
#undef FS_REFUSE_CUT
    }
    return FS_OK;
}

fs_status fs_check_host_arrays(fs_context *context, const fs_batch *b, int64_t vocab) {
    const int64_t slots = b->slots ? b->slots : b->rows;
    int64_t edits;
    FS_TRY(check_edits(context, b, &edits));
    FS_TRY(check_limit(context, "edits", edits, b->limits->edits));
    if (b->count_offset) {
        FS_TRY(check_sparse(context, "count", b->count_offset, b->count_token, slots));
        const int64_t counts = b->count_offset[slots] - b->count_offset[0];
        FS_REQUIRE(context, counts == 0 || b->count_value, "batch.count_value is NULL");
        FS_TRY(check_limit(context, "counts", counts, b->limits->counts));
    }
    if (b->extra_offset) FS_TRY(check_sparse(context, "extra", b->extra_offset, b->extra_token, b->rows));
    if (b->watch_offset) {
        FS_TRY(check_sparse(context, "watch", b->watch_offset, b->watch_token, b->rows));
        FS_TRY(check_limit(context, "watched", b->watch_offset[b->rows] - b->watch_offset[0], b->limits->watched));
    }
    return is_group_mode(b->mode) ? check_no_cuts(context, b, vocab) : FS_OK;
}
