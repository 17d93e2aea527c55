/* wire.h - a summary as bytes: what fs_partial writes and fs_merge reads. docs/noise.md and the public header describe it.
 *
 *   part    header 32 | two bits per row (NaN seen, +inf seen), in 64-bit words | B rows of equal size
 *   header  u32 magic, u32 bytes per row, u64 hash of what the call was asked,
 *           u32 first id and u32 end of the shard, without its padding, u64 checksum of these two and of what follows
 *   row     samples x (u64 key [, f32 y [, f32 x]]) | mass 20 | raw mass 20 | cut mass 20 | max y [, max x] | lists |
 *           watched tokens
 * A mass is packed by mass_pack. */
#ifndef FS_CORE_WIRE_H
#define FS_CORE_WIRE_H

#include "needs.h"

#define FS_WIRE_HEADER 32
#define FS_WIRE_HASH 8 /* where in it the hash lies */

/* Bytes of a part, and of row b in it. All rows are equally long but for their watched tokens, which come last. */
size_t fs_wire_size(const fs_call *call);

/* Hash of everything two ranks must agree on: see agreement.h. */
uint64_t fs_wire_hash(const fs_call *call);

/* Whether rows are nothing but keys, u64 [B, samples], of which the largest win: then a max of integers merges two parts. */
int fs_wire_is_keys(const fs_call *call);
/* Where in a part the rows begin, a multiple of 8. */
size_t fs_wire_rows_at(const fs_call *call);

void fs_wire_header(const fs_call *call, void *part);
/* The checksum, when all else is written. */
void fs_wire_seal(const fs_call *call, void *part);
/* NULL: a part of this call, whose hash is given, as it was sealed, of the ids [shard[0], shard[1]); else what is
 * wrong. */
const char *fs_wire_check(const fs_call *call, uint64_t hash, const void *part, int64_t shard[2]);

/* The ids of a head's rows that are no padding: none of a shard is first == end. */
void fs_shard_of(const fs_head *head, int64_t vocab, int64_t shard[2]);
/* Whether shards [count] together are the vocabulary, each id in one; else `why` names the first that is not; `holder`:
 * what a shard is of. Sorts them. */
int fs_shards_are_whole(int64_t (*shard)[2], int32_t count, int64_t vocab, const char *holder, char *why, size_t size);

/* One row after the other: rows share bytes. */
void fs_wire_put(const fs_call *call, int64_t b, const fs_summary *summary, void *part);
/* Lists of `summary` must have room for needs.keep and needs.keep_raw entries. Whatever the bytes are, keys are none or
 * those of ids of the vocabulary, and the logits in them are numbers. */
void fs_wire_get(const fs_call *call, int64_t b, const void *part, fs_summary *summary);

#endif
