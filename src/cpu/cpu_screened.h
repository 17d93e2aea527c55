/* cpu_screened.h - a pass over a head's screen in place of W.
 *
 *   prepare  each row as whole numbers for the screen's kernel, and packed alone for the kernel of W
 *   block    upper bounds of a block's logits (kernels/cpu_screen.h)
 *   absorb   the race, run with upper bounds: of tokens that could beat the best exact score so far, one whose bound is
 *            the largest yet is settled, its logit computed from W by the kernel of the pass without a screen, so with
 *            the same bits; the others wait
 *   end      those of them whose bound is still above the best score are settled, largest first
 *
 * A row with a list (top-k, min-p, its best tokens) keeps its largest upper bounds until the end, and settles them
 * largest first, until no bound is above what the list has to have: no order settles fewer.
 *
 * Every token that is not settled has an upper bound below a score that the row has: the winner is the same. A row
 * that settles too many is given up and takes the pass over W. */
#ifndef FS_CPU_SCREENED_H
#define FS_CPU_SCREENED_H

#include "cpu_pass.h"

#define FS_SCREENED_TOP 128 /* best tokens of a row that a screen finds; ranks need more */

void fs_screened_layout(fs_pass *pass, fs_arena *arena);

/* Row a, before the pass; and of a task in it. */
void fs_screened_prepare(const fs_pass *pass, int32_t a);
void fs_screened_open(const fs_pass *pass, int32_t task, int32_t a);

/* out[a * ld + i] = upper bound of the dot product of row a with row first + i of the head, for i < n. */
void fs_screened_block(const fs_pass *pass, int64_t first, int64_t n, float *out, int64_t ld);

void fs_screened_absorb(const fs_pass *pass, fs_block block, int32_t task, int32_t a, float *x);

/* Whether a task has given up every row: the rest of the screen is not read. */
int fs_screened_is_left(const fs_pass *pass, int32_t task);

/* After the pass, of a merged row: settles what has waited. */
void fs_screened_end(const fs_pass *pass, int32_t a);

/* Then: whether a row was given up, and how many logits of W were computed. */
int fs_screened_gave_up(const fs_pass *pass, int32_t a);
int64_t fs_screened_dots(const fs_pass *pass);

#endif
