/* parallel.h - the command line's own threads, for what is not the library's job: making W, reading memory, the usual
 * way. */
#ifndef FS_CLI_PARALLEL_H
#define FS_CLI_PARALLEL_H

/* Runs task(arg, i) for i = 0 .. count-1 on `threads` threads and returns when all are done. */
void parallel_for(int threads, int count, void (*task)(void *arg, int i), void *arg);

#endif
