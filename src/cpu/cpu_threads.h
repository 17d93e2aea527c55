/* cpu_threads.h - the context's own threads, with the same interface as a caller's fs_parallel_for. */
#ifndef FS_CPU_THREADS_H
#define FS_CPU_THREADS_H

#include "backend.h"
#include "cpu_nodes.h"

typedef struct fs_threads fs_threads;

/* Starts threads - 1 workers; the caller of fs_threads_run is the last thread. With several nodes each worker is bound
 * to the cores of one, and takes that node's tasks first. NULL (with the context's text) on failure. */
fs_threads *fs_threads_start(fs_context *context, int32_t threads, const fs_nodes *nodes);
void fs_threads_stop(fs_context *context, fs_threads *pool);

/* Inside a call, until its last job is given out: workers wake up, and stay awake longer. pool may be NULL. */
void fs_threads_stay(fs_threads *pool, int stay);

/* An fs_parallel_for; user is the pool. */
void fs_threads_run(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg);

/* Cores this process may run on. */
int32_t fs_threads_available(void);

#endif
