/* check.h - argument checks of every public function. */
#ifndef FS_CHECK_H
#define FS_CHECK_H

#include "backend.h"

#include "core/format.h"

/* Copies a caller's struct into ours. A caller compiled against an earlier header may have fewer members, down to the
 * `least` bytes of the first version, and the others are zero; against a later one more, which must be zero. */
fs_status fs_copy_struct(fs_context *context, const char *name, const void *from, size_t size, void *to, size_t ours,
                         size_t least);

/* Of an fs_<name>; last: its last member in the first version. */
#define FS_COPY(context, name, from, to, last)                                                                         \
    do {                                                                                                               \
        const size_t least = offsetof(fs_##name, last) + sizeof(to)->last;                                             \
        FS_REQUIRE(context, (from) != NULL, "%s is NULL", #name);                                                      \
        FS_TRY(fs_copy_struct(context, #name, from, (from)->size, to, sizeof *(to), least));                           \
    } while (0)

/* A zero that stands for a default is replaced by it. */
fs_status fs_check_options(fs_options *options);
fs_status fs_check_ranks(fs_context *context, const fs_ranks *ranks);

#define FS_SAMPLES_MOST 1024
#define FS_FLAGS_KNOWN 0xffu /* of a batch */
#define FS_RULES_KNOWN 0x3fu
#define FS_RULES_CUT ((uint32_t)(FS_RULE_TOP_K | FS_RULE_TOP_P | FS_RULE_MIN_P))
#define FS_INPUTS_KNOWN 0x3u
#define FS_RESULTS_KNOWN 0x3ffu
#define FS_FLOAT_WORDS "FS_F32 (0), FS_F16 (1) or FS_BF16 (2)"

/* The words for weights in a dtype of fewer bits; NULL: it is none. */
const char *fs_quantised_lack(int32_t dtype);

static inline int is_group_mode(int32_t mode) {
    return mode == FS_MODE_GROUP_PARALLEL || mode == FS_MODE_GROUP_ONLINE;
}

/* A call's structs, copied and checked. batch.rules and batch.limits point to those beside it, so it is not copied. */
typedef struct fs_arguments {
    fs_head head;
    fs_batch batch;
    fs_rules rules;
    fs_limits limits;
    fs_result result;
} fs_arguments;

/* `call`: FS_CALL_...; `computes`: it computes logits. */
fs_status fs_check_call(fs_context *context, int32_t call, const fs_head *head, const fs_batch *batch,
                        const fs_result *result, int computes, fs_arguments *a);
/* A head alone; `reads`: its data are. */
fs_status fs_check_head(fs_context *context, const fs_head *head, int reads);
/* Checks a head for fs_sample: it has the last token of the vocabulary. */
fs_status fs_check_whole(fs_context *context, const fs_arguments *a);
/* Of a call that draws. */
fs_status fs_check_tokens(fs_context *context, const fs_arguments *a);
/* `on_host`: offsets can be read. */
fs_status fs_check_drafts(fs_context *context, fs_drafts *drafts, int on_host);
/* Whether the backend does this call of arguments that are valid. */
fs_status fs_check_supported(fs_context *context, int32_t call, const fs_arguments *a);
#define FS_ALIGNED_TEXT "%s is %p, must be %zu-byte aligned"

/* An array of numbers, tokens or slots. */
size_t fs_element_bytes(int32_t dtype);
fs_status fs_check_pointers(fs_context *context, const fs_arguments *a);
fs_status fs_check_host_arrays(fs_context *context, const fs_batch *batch, int64_t vocab);

#endif
