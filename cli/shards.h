/* shards.h - one call done in parts, as ranks would: partial on each shard of the vocabulary, then merge. */
#ifndef FS_CLI_SHARDS_H
#define FS_CLI_SHARDS_H

#include "flashsampling_screens.h"
#include "flashsampling_ranks.h"

/* Slice i of n of the head, cut at multiples of 16 ids, without its screen; empty where there are more slices than
 * granules. */
fs_head head_shard(const fs_head *head, int i, int n);

/* fs_sample on `shards` slices of the head (cut at multiples of 16 ids) and one merge; ends the program if a call
 * fails. All arrays are where calls read them (device.h). Each slice has its slice of the head's screen. Where
 * result.status is there, lists that do not prove their cut grow until they do, whatever memory they take, and such
 * rows are flagged as by fs_sample and counted in what is returned; ranks of other rows may then be exact where one
 * call has a bound. */
int64_t sample_in_shards(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                         int shards);

#endif
