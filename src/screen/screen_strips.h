/* screen_strips.h - walks over the strips of a screen: by the context's backend where screens lie in its memory, else
 * on the context's threads. */
#ifndef FS_SCREEN_STRIPS_H
#define FS_SCREEN_STRIPS_H

#include "backend.h"

/* Writes the strips of a screen of this head, whose header is made but for its sums, and adds up the sums. The
 * header in memory is zero then: the caller writes it. */
fs_status fs_strips_make(fs_context *context, const fs_head *head, const fs_screen_options *options,
                         fs_screen_header *header, void *screen);

/* Adds up the hashes of the strips as they are now. */
fs_status fs_strips_sum(fs_context *context, const fs_screen_header *header, const void *screen, fs_screen_sums *sums);

/* The last strip of head->screen that was made of other weights than the head's; -1: there is none. Looks at all
 * weights if `whole`, else at a sample of every row. */
fs_status fs_strips_compare(fs_context *context, const fs_head *head, const fs_screen_header *header, int whole,
                            int64_t *strip);

#endif
