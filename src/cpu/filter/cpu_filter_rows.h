/* cpu_filter_rows.h - a task's rows and its filter (cpu_filter.h): what is to be found, where what was found goes. */
#ifndef FS_CPU_FILTER_ROWS_H
#define FS_CPU_FILTER_ROWS_H

#include "cpu/cpu_arena.h"
#include "cpu/cpu_rows.h"
#include "cpu/cpu_shared.h"

/* The rows that a task filters, as the pass gives them. */
typedef struct fs_task_rows {
    const fs_call *call;
    const fs_isa *isa;
    const fs_matrix *weights;
    const fs_hidden *hidden;
    const fs_active_row *active; /* [count] */
    fs_summary *summary;         /* [count] the task's */
    fs_shared shared;            /* [count] */
    float *published;            /* [count] by this task, see shared_add_mass */
    int32_t count, block;        /* block: tokens at most */
    int32_t task;
} fs_task_rows;

/* Of a row's largest logits a task remembers no more than this. */
#define FS_RANKED 16

typedef struct fs_task_filter {
    fs_task_rows rows;
    fs_filter filter;
    float *bare;    /* above this logit a token can win without a mark; the floor is lower where a list wants more */
    uint64_t *best; /* the best score key that this task knows of, its own or another's: floors come from it */
    float *max;     /* the largest logit of all that were filtered */
    uint64_t *seen_bound, *seen_mass; /* what was shared at the last look; of scores `best` knows */
    double *pending,
        *pending_worth;    /* rough terms that are not in the row's mass yet, and from how many on they shall be */
    int32_t begun;         /* a block has been tried */
    int32_t noisy;         /* some row has noise */
    int32_t ready;         /* criteria are those of the rows' summaries */
    int32_t pause, paused; /* blocks to store after one that failed, twice as many each time; how many still are */
    int32_t ranking;       /* some row's largest logits are remembered: */
    int32_t *ranks;        /* how many of a row's, for its top-k; 0: none. NULL: no row has a list */
    float *ranked;         /* [rows, FS_RANKED] those, of distinct tokens, descending */
} fs_task_filter;

/* Whether all that a call of weights wants of its logits, in blocks of this many tokens, is what a filter finds. */
int fs_filter_is_enough(const fs_call *call, int64_t block);

/* A task's filter, its arrays taken from the arena; largest: all that any call could want. */
fs_task_filter fs_filter_layout(const fs_task_rows *of, int largest, fs_arena *arena);

/* Before a task's first block. */
void fs_filter_open(fs_task_filter *task);

/* Tokens of the task's next block. The first one is stored, unless another task has shared a winner. Greedy rows need
 * no more than one token of it, so it is as short as can be; with noise a winner among few leaves too many of the next
 * block a chance. */
int64_t fs_filter_length(const fs_task_filter *task);

/* Computes a block and takes what matters of it, without its logits. 0 if it has to be stored (fs_rows_absorb): nothing
 * has been taken then. */
int fs_filter_block(fs_task_filter *task, fs_block block);

/* Before row a absorbs a stored block: the best score that is shared; the bound of its list becomes the shared one. */
uint64_t fs_filter_read_shared(fs_task_filter *task, int32_t a);

/* After it: shares the row's own. */
void fs_filter_share(fs_task_filter *task, int32_t a);

/* After a task's last block. */
void fs_filter_close(fs_task_filter *task);

#endif
