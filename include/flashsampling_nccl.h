/* flashsampling_nccl.h - ranks of an NCCL communicator as a device transport for fs_sample_ranks, in a library of its
 * own, libflashsampling_nccl.
 *
 *   fs_ranks *ranks;
 *   fs_nccl_open(communicator, 0, &ranks);
 *   fs_sample_ranks(context, ranks, &head, &batch, &result);   one collective on its stream; capturable in a graph
 *   fs_nccl_close(ranks);                                      before ncclCommDestroy
 *
 * The communicator stays the caller's. Nothing waits and nothing is thrown away unasked: a rank that has died or
 * stalled shows as a stream that does not finish, and fs_nccl_poll says so. What NCCL itself cannot see, ranks that
 * come with different batch.rows or ask for different results, hangs the same way; all other differences come back as
 * FS_ROW_PEER in every row's status. */
#ifndef FLASHSAMPLING_NCCL_H
#define FLASHSAMPLING_NCCL_H

#include <flashsampling_ranks.h>

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* flags: the library may abort the communicator when it has failed or a deadline has passed. Without it only the caller
 * can. */
#define FS_NCCL_MAY_ABORT (1u << 0)

/* Not collective. On failure *out is NULL and fs_nccl_error_text() tells why. */
FS_API fs_status fs_nccl_open(ncclComm_t communicator, uint32_t flags, fs_ranks **out);

/* The communicator is not touched; NULL is allowed. */
FS_API void fs_nccl_close(fs_ranks *ranks);

/* Whether the ranks are well. Looks at the communicator until everything enqueued on `stream` (a cudaStream_t) has run,
 * or for `seconds` at most; with 0 it looks once. FS_OK with *done = 1: all has run; with *done = 0 and seconds 0:
 * still running. FS_ERR_PEER: the communicator has failed, or the time is up; it has then been aborted if the caller
 * allowed it, and is not to be used again. `done` may be NULL. Call it from any thread, but not while another one makes
 * a call with these ranks. */
FS_API fs_status fs_nccl_poll(fs_ranks *ranks, void *stream, double seconds, int32_t *done);

/* What the last fs_nccl_open of this thread that failed said; what fs_nccl_poll said is ranks->error_text(ranks->self).
 * */
FS_API const char *fs_nccl_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
