/* check_pointers.c - whether pointers are aligned to their elements, and on request where they point: on CUDA a wrong
 * one ends the process's use of the device. */
#include "check.h"

#include "core/rule_table.h"

typedef struct member {
    const char *name;
    size_t at, dtype_at; /* in fs_arguments: the pointer, and where its elements have a dtype that */
    size_t alignment;    /* 0: by the dtype */
} member;

#define FIXED(name, bytes)                                                                                             \
    { #name, offsetof(fs_arguments, name), 0, bytes }
#define TYPED(name)                                                                                                    \
    { #name, offsetof(fs_arguments, name), offsetof(fs_arguments, name##_dtype), 0 }

static const member table[] = {
    {"head.data", offsetof(fs_arguments, head.data), offsetof(fs_arguments, head.dtype), 0},
    FIXED(head.bias, 4),
    FIXED(head.screen, 64),
    TYPED(batch.hidden),
    TYPED(batch.slot),
    FIXED(batch.position, 8),
    FIXED(batch.seed, 8),
    FIXED(batch.substream, 4),
    FIXED(batch.allow, 4),
    FIXED(batch.allow_index, 4),
    FIXED(batch.edit_offset, 8),
    FIXED(batch.edit_count, 4),
    FIXED(batch.edit_token, 4),
    FIXED(batch.edit_bias, 4),
    FIXED(batch.seen, 4),
    FIXED(batch.counts, 4),
    FIXED(batch.count_offset, 8),
    FIXED(batch.count_token, 4),
    FIXED(batch.count_value, 4),
    FIXED(batch.extra_offset, 8),
    FIXED(batch.extra_token, 4),
    FIXED(batch.score_token, 4),
    FIXED(batch.watch_offset, 8),
    FIXED(batch.watch_token, 4),
#define FS_RULE_POINTER(name, type, bit, off, used, least, most, status, about) FIXED(rules.name.per_slot, 4),
    FS_RULE_TABLE(FS_RULE_POINTER)
#undef FS_RULE_POINTER
        TYPED(result.tokens),
    FIXED(result.status, 4),
    FIXED(result.noisy_logit, 4),
    FIXED(result.max_logit, 4),
    FIXED(result.log_z, 4),
    FIXED(result.logit, 4),
    FIXED(result.logprob, 4),
    FIXED(result.rank, 4),
    FIXED(result.top_token, 4),
    FIXED(result.top_logit, 4),
    FIXED(result.top_logprob, 4),
    FIXED(result.watch_logit, 4),
    FIXED(result.watch_logprob, 4),
    FIXED(result.entropy, 4),
    FIXED(result.survivor_token, 4),
    FIXED(result.survivor_count, 4),
};

size_t fs_element_bytes(int32_t dtype) {
    return dtype == FS_I64 ? 8 : dtype_is_float(dtype) ? (size_t)dtype_bytes(dtype) : 4;
}

static int32_t dtype_at(const char *base, size_t at) {
    int32_t dtype;
    memcpy(&dtype, base + at, sizeof dtype);
    return dtype;
}

fs_status fs_check_pointers(fs_context *context, const fs_arguments *a) {
    const char *base = (const char *)a;
    const int asks = (context->options.flags & FS_CHECK_POINTERS) && context->backend->check_pointer;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const member *m = &table[i];
        const void *pointer;
        memcpy(&pointer, base + m->at, sizeof pointer);
        const size_t alignment = m->alignment ? m->alignment : fs_element_bytes(dtype_at(base, m->dtype_at));
        FS_REQUIRE(context, ((uintptr_t)pointer & (alignment - 1)) == 0, FS_ALIGNED_TEXT, m->name, pointer, alignment);
        if (asks && pointer) FS_TRY(context->backend->check_pointer(context, m->name, pointer));
    }
    return FS_OK;
}
