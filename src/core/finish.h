/* finish.h - from a row's merged summary to its results. */
#ifndef FS_CORE_FINISH_H
#define FS_CORE_FINISH_H

#include "needs.h"

/* Writes every result of row b, or returns 0 if the row's lists do not prove what was asked: it needs a second pass with longer lists,
 * and what is in its results until then means nothing. With `final` it always writes, and such a row is FS_ROW_INCOMPLETE. The
 * summary's lists are reordered. `extra` are status bits to add. scratch [samples]. */
int fs_finish_row(const fs_call *call, int64_t b, fs_summary *summary, uint32_t extra, int final, fs_winner *scratch);

#endif
