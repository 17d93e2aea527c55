/* flashsampling_mpi.h - ranks of an MPI communicator as a transport for fs_sample_ranks.
 *
 * In a library of its own, one per MPI (libflashsampling_openmpi, libflashsampling_mpich, or libflashsampling_mpi where
 * there is only one), so that flashsampling itself depends on none.
 *
 *   fs_ranks *ranks;
 *   fs_mpi_open(MPI_COMM_WORLD, 30.0, &ranks);
 *   fs_sample_ranks(context, ranks, &head, &batch, &result);     on every rank, each with its shard
 *   fs_mpi_close(ranks);                                         before MPI_Finalize
 *
 * Nothing here blocks in MPI: every exchange is polled against a deadline. When one passes, another rank has died or
 * stalled: the collective fails with FS_ERR_PEER and all later ones with FS_ERR_STATE. What was sent is then still
 * MPI's, so the memory of that exchange is never freed, and MPI_Finalize may wait for the dead rank: end with
 * MPI_Abort. (mpirun itself ends a job when one of its processes dies, unless told not to.) Calls come from one thread
 * at a time; MPI needs no more than MPI_THREAD_SERIALIZED for it. */
#ifndef FLASHSAMPLING_MPI_H
#define FLASHSAMPLING_MPI_H

#include <flashsampling_ranks.h>

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over `communicator`, which is duplicated. `seconds`: how long an exchange may wait for other ranks, their
 * passes over W included; 0 = for ever. On failure *out is NULL and fs_mpi_error_text() tells why. */
FS_API fs_status fs_mpi_open(MPI_Comm communicator, double seconds, fs_ranks **out);

/* The same over all ranks of the job, for callers that do not see MPI's types (ctypes, dlopen): initialises MPI if
 * nobody has, and finalises it in fs_mpi_close if it did, unless the ranks are out of step. */
FS_API fs_status fs_mpi_open_world(double seconds, fs_ranks **out);

/* Collective unless an exchange has failed; NULL is allowed. */
FS_API void fs_mpi_close(fs_ranks *ranks);

/* What the last fs_mpi_open of this thread that failed said. */
FS_API const char *fs_mpi_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
