/* cpu_parts.h - a row's summaries as bytes, and back: fs_partial and fs_merge of the CPU backend (see fs_backend). */
#ifndef FS_CPU_PARTS_H
#define FS_CPU_PARTS_H

#include "backend.h"

fs_status fs_cpu_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                              int32_t least, size_t *bytes);
fs_status fs_cpu_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                         int32_t least, int32_t sealed, void *part, size_t bytes);
fs_status fs_cpu_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                       int32_t count, int32_t least, int32_t sealed, const fs_result *result);

#endif
