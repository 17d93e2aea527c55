/* shards.h - one call done in parts, as ranks would: partial on each shard of the vocabulary, then merge. */
#ifndef FS_CLI_SHARDS_H
#define FS_CLI_SHARDS_H

#include "flashsampling.h"

/* fs_sample on `shards` slices of the head (cut at multiples of 16 ids) and one merge; ends the program if a call
 * fails. */
void sample_in_shards(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result, int shards);

#endif
