/* ranks.h - the ranks of `mpirun -n N flashsample ...`: each process holds a slice of the vocabulary. */
#ifndef FS_CLI_RANKS_H
#define FS_CLI_RANKS_H

#include "flashsampling_ranks.h"

/* What the launcher's environment says, before MPI is there: this process's rank (0 without a launcher), how many
 * processes run on this machine, and whether there is a launcher at all. */
int launched(void);
int launch_rank(void);
int launch_local_count(void);
/* Cores for this process: ranks on one machine share them. */
int cores_of_rank(void);

/* Ends the program if FLASHSAMPLING_MPI names what is no transport, launcher or not. */
void check_transport(void);

/* The ranks, or NULL where there is no launcher. The first call loads the transport of the MPI whose mpirun started us
 * (or the one FLASHSAMPLING_MPI names: openmpi, mpich, mpi, a file; none = every process on its own) and initialises
 * it; ranks above 0 print nothing from then on. Ends the program if the transport is not there: N copies of one run
 * would look like N ranks. */
const fs_ranks *ranks_open(void);

/* How long an exchange may wait for other ranks, in seconds; before ranks_open. */
void ranks_set_deadline(double seconds);

/* This rank's slice of the head, without its screen; the head as it is without a launcher. */
fs_head ranks_slice(const fs_head *head);

/* fs_sample; over ranks each draws from its slice, which is `head`, and gets the whole result. */
fs_status ranks_sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result);

/* The mistake a sampler over ranks can make: every rank draws from its slice with noise keyed by the place in the
 * slice, and the largest score wins. n tokens per row, plain draws only. */
fs_status ranks_sample_with_same_noise(fs_context *context, const fs_head *head, const fs_batch *batch,
                                       const fs_result *result);

/* The largest value over ranks; itself without a launcher. */
double ranks_max(double value);

#endif
