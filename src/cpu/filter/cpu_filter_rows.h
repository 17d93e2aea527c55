/* cpu_filter_rows.h - what a pass does with a filter (cpu_filter.h): who is filtered, what is to be found, where what
 * was found goes. */
#ifndef FS_CPU_FILTER_ROWS_H
#define FS_CPU_FILTER_ROWS_H

#include "cpu/cpu_pass.h"

/* Takes the pass's filters from the arena, one for each task, if all that the call wants of its logits is what a filter
 * finds; else pass->filter is NULL, and none of the following may be called. */
void fs_filter_layout(fs_pass *pass, fs_arena *arena);

/* Before a task's first block. */
void fs_filter_open(const fs_pass *pass, int32_t task);

/* Tokens of the task's next block. The first one is stored, unless another task has shared a winner. Greedy rows
 * need no more than one token of it, so it is as short as can be; with noise a winner among few leaves too
 * many of the next block a chance. */
int64_t fs_filter_length(const fs_pass *pass, int32_t task);

/* Computes a block and takes what matters of it, without its logits. 0 if it has to be stored (fs_rows_absorb): nothing
 * has been taken then. */
int fs_filter_block(const fs_pass *pass, int32_t task, fs_block block);

/* Before row a absorbs a stored block: the best score that is shared; the bound of its list becomes the shared one. */
uint64_t fs_filter_read_shared(const fs_pass *pass, int32_t task, int32_t a);

/* After it: shares the row's own. */
void fs_filter_share(const fs_pass *pass, int32_t task, int32_t a);

/* After a task's last block. */
void fs_filter_close(const fs_pass *pass, int32_t task);

#endif
