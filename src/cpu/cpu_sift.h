/* cpu_sift.h - what a pass does with a sieve (cpu_sieve.h): who is sifted, what is to be found, where what was found goes. */
#ifndef FS_CPU_SIFT_H
#define FS_CPU_SIFT_H

#include "cpu_pass.h"

/* Takes the pass's sieves from the arena, one for each task, if all that the call wants of its logits is what a sieve finds; else
 * pass->sieve is NULL, and none of the following may be called. */
void fs_sift_layout(fs_pass *pass, fs_arena *arena);

/* Before a task's first block. */
void fs_sift_open(const fs_pass *pass, int32_t task);

/* Tokens of the task's next block. The first one has to go the long way, unless another task has told of a winner. Greedy rows need no more than
 * one token of it, so it is as short as can be; with noise a winner among few leaves too many of the next block a chance. */
int64_t fs_sift_length(const fs_pass *pass, int32_t task);

/* Computes a block and takes what matters of it, without its logits. 0 if it has to go the long way (fs_rows_absorb): nothing has been
 * taken then. */
int fs_sift_block(const fs_pass *pass, int32_t task, fs_block block);

/* Before row a takes a block the long way: the best score that other tasks have told of; the bound of its list, where they have, is set. */
uint64_t fs_sift_hear(const fs_pass *pass, int32_t task, int32_t a);

/* After it: tells them. */
void fs_sift_tell(const fs_pass *pass, int32_t task, int32_t a);

/* After a task's last block. */
void fs_sift_close(const fs_pass *pass, int32_t task);

#endif
