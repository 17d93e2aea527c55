/* flashsampling_ranks.h - vocabularies over several machines or devices: shards, whose parts are merged, and ranks,
 * which do all of it in one call (docs/explain/ranks.md).
 *
 * A shard is a head with some rows of W: first_token is the global id of its first row, and vocab, to be set on every
 * shard, the size of the whole vocabulary. Shards may be unequal or empty; together they are the vocabulary. The token
 * is that of the unsharded call.
 *
 *   head.data = my_rows_of_W, head.rows = my_row_count, head.first_token = my_first_row, head.vocab = V;
 *   fs_sample_ranks(context, ranks, &head, &batch, &result);      // ranks: of fs_mpi_open, fs_nccl_open or your own
 */
#ifndef FLASHSAMPLING_RANKS_H
#define FLASHSAMPLING_RANKS_H

#include <flashsampling.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- shards: partial here, the caller's own transport, merge there. Every rank makes the same call on its shard of W
 * and gets the same bytes-per-part, sends its part to whoever wants the result, and that one merges.
 *
 * A part is a header of 32 bytes, which says what ids the part speaks of and has a checksum, two bits per row, and per
 * row what the batch and the result ask for (docs/explain/ranks.md): 8 bytes per sample, 20 for log Z and for each
 * other sum, 12 for a candidate list and 8 per entry, 8 per watched token, and 4 for each other logit that is needed:
 * the drawn token's, the largest (also for log Z), and where tokens are edited the raw ones beside them, a list's too.
 * Its byte order is the machine's. CPU: parts have any alignment. CUDA: they are device memory, 8-byte aligned, and
 * what fs_merge refuses on the CPU makes every row FS_ROW_PEER. */

/* Bytes of one part for this batch and what this result asks for; the same on every rank. */
FS_API fs_status fs_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch,
                                 const fs_result *result, size_t *bytes);

/* Runs the pass over this shard and writes its summary to part [bytes], bytes being at least fs_partial_size. `result`
 * only says what will be asked of merge; nothing is written to its arrays. */
FS_API fs_status fs_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                            void *part, size_t bytes);

/* Merges `count` parts ([count] pointers, 1 to 65,536) and writes the result. The largest key wins, so the token is the
 * same for any number and order of parts. With batch.mode FS_MODE_GROUP_PARALLEL (in fs_partial too) each part is one
 * group instead, chosen by its log-mass: the paper's B.4, exact in law, parts in rank order. FS_ERR_PEER refuses parts
 * made with other arguments or by another version, parts that are not what fs_partial wrote, and parts that together
 * are not the whole vocabulary, each id once; parts of no ids do no harm. Rows whose lists do not prove their cut come
 * back FS_ROW_INCOMPLETE: repeat the call (partial too) with a larger batch.list_capacity. CUDA does not see the rows'
 * rules: its lists have 1,024 entries where a row may have top-p or min-p without top-k, else as many as top_k, a
 * scalar or limits.top_k, says. Neither head.data nor batch.hidden is read; of the head, what all shards have in common
 * must be there: vocab, kind, dim, round_to, scale, softcap, post_scale, and on CUDA its dtype and the batch's. */
FS_API fs_status fs_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                          int32_t count, const fs_result *result);

/* --- ranks: vocabulary-parallel sampling in one call. Each rank holds rows of W (its head's first_token and rows;
 * shards may be unequal or empty, but together they are the vocabulary) and calls fs_sample_ranks with the same batch
 * and a result that asks for the same; all of them get the whole result. The token is that of the unsharded call, for
 * any number of ranks. Per row and rank 8 bytes cross the wire for a token, 24 more for log Z, lists for cuts:
 * docs/explain/ranks.md.
 *
 * A transport is two collectives. flashsampling_mpi.h and flashsampling_nccl.h make one from a communicator; a caller
 * with a transport of its own fills the struct. Collectives are entered by all ranks in the same order and return on
 * each when its part is done. */
typedef struct fs_ranks {
    size_t size;
    int32_t rank, count; /* this rank, 0 .. count-1, and how many there are */
    int32_t device;      /* 0: arrays are host memory. 1: device memory, and the functions only enqueue on the stream */
    int32_t reserved;
    void *self; /* handed to the functions */
    /* values [count] become their largest over ranks. A rank that has failed may come with 2 values alone: the first
     * two are then reduced all the same, or everyone gets FS_ERR_PEER. */
    fs_status (*all_max)(void *self, int64_t *values, int64_t count, void *stream);
    /* all [ranks, bytes] becomes every rank's mine [bytes], which does not overlap it. */
    fs_status (*all_gather)(void *self, const void *mine, void *all, size_t bytes, void *stream);
    /* What the last function that failed said; may be NULL. */
    const char *(*error_text)(void *self);
} fs_ranks;

/* fs_sample over ranks. Where a rank fails or the ranks' arguments differ, every rank gets an error that says so
 * (FS_ERR_PEER; on the rank itself its own) and the ranks stay in step; after an error of the transport itself they do
 * not, and the transport is not to be used again. Rows whose lists do not prove their cut take further rounds with
 * longer lists. What such a round exchanges stays within options.fallback_bytes, which all ranks must set alike; the
 * lists of a rank's own pass come on top, and its work memory keeps their size. Where a rank has no memory for a round,
 * rows stay FS_ROW_INCOMPLETE. Every mode but FS_MODE_GROUP_ONLINE; with FS_MODE_GROUP_PARALLEL each rank is one group,
 * as in fs_merge. CUDA: enqueues, needs a device transport, and is capturable in a graph; there are no further rounds,
 * so that a row whose lists prove too short is FS_ROW_INCOMPLETE; what goes wrong among ranks is FS_ROW_PEER, and a
 * rank whose arguments are refused does not meet the others. */
FS_API fs_status fs_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                                 const fs_result *result);

static inline fs_ranks fs_ranks_default(void) {
    fs_ranks r;
    memset(&r, 0, sizeof r);
    r.size = sizeof r;
    r.count = 1;
    return r;
}

#ifdef __cplusplus
}
#endif
#endif
