/* dist.h - one call over ranks, on host memory: what crosses the wire is the backend's own summaries (core/wire.h), and
 * a header.
 *
 *   partial -> [ header 16 | keys ]  --all_max-->  merge of one part          tokens alone: one collective
 *           -> [ header 16 ]         --all_max-->
 *              [ rows ]              --all_gather->  merge of all parts       anything else: two
 *
 * header  i64  0: h    or  (error code << 48) + rank, which is larger than any hash
 *         i64  ~h << 2, and below it  1: some row has seen a NaN or +inf; then their bits follow, else they do not
 *                                     2: this rank comes with a shard for the first time; then all say where theirs
 *                                        lie, 16 bytes, and the bits follow in any case
 * with h 48 bits of a hash of everything ranks must agree on: if they do not, no rank finds its own h in both words. A
 * rank that has failed enters the first collective all the same, so nobody waits for it. */
#ifndef FS_DIST_DIST_H
#define FS_DIST_DIST_H

#include "backend.h"
#include "core/agreement.h"
#include "core/wire.h"

/* fs_sample_ranks. `failed`: what is wrong on this rank already, with its text set; the arguments are then not looked
 * at. */
fs_status fs_dist_sample(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                         const fs_result *result, fs_status failed);

/* --- dist_round.c: one exchange. */
typedef struct fs_round {
    fs_context *context;
    const fs_ranks *ranks;
    fs_call call; /* without rules */
    int32_t least;
    int32_t is_keys;
    size_t bytes, rows_at; /* of a part */
    int64_t sent;
    int64_t *words;           /* [2 + keys] */
    char *part;               /* [bytes] */
    char *all;                /* [ranks, bytes] */
    const void **parts;       /* [ranks] */
    int64_t (*shards)[2];     /* [ranks] first and last id + 1 */
    fs_agreement *agreements; /* [ranks + 1], our own the last */
    fs_status worst;          /* the gravest failure of all ranks, which all know after they have met */
} fs_round;

/* Says how many bytes of memory a round takes; then runs it in them, or with `failed` only meets the others. */
fs_status fs_round_size(fs_round *round, size_t *bytes);
fs_status fs_round_run(fs_round *round, void *memory, const fs_result *result, fs_status failed);

/* --- dist_view.c: rows [begin, end) of a call as a call of their own, without copying anything. identity [B] is 0, 1,
 * ... */
typedef struct fs_view {
    fs_head head;
    fs_batch batch;
    fs_result result;
} fs_view;

fs_view fs_view_of(const fs_call *call, const fs_result *result, int64_t begin, int64_t end, const int32_t *identity);

#endif
