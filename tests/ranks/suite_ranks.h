#ifndef FS_TESTS_RANKS_SUITE_RANKS_H
#define FS_TESTS_RANKS_SUITE_RANKS_H

#include "flashsampling_ranks.h"

/* Whether the suite rejects nothing of what the ranks draw, and most of what they draw with the same noise on every
 * rank. */
int suite_over_ranks(fs_context *context);

#endif
