/* screen_make.h - a screen (core/screen.h) from a head, a slice of one, and whether one belongs to a head. */
#ifndef FS_SCREEN_MAKE_H
#define FS_SCREEN_MAKE_H

#include "backend.h"

#include "core/screen.h"

/* Of a head that has been checked; zeros in the options become what they stand for, but for the seed. */
fs_status fs_screen_check_options(fs_context *context, const fs_head *head, fs_screen_options *options);

/* `name` has room for what is needed, 64-byte aligned. */
fs_status fs_screen_check_room(fs_context *context, const char *name, const void *memory, size_t bytes, int64_t needed);

/* Whether a call may use head->screen: it is whole, and a sample of every row of W is what it was made of. The two are
 * remembered by the context, and a later call looks at the header alone. */
fs_status fs_screen_admit(fs_context *context, const fs_head *head);
/* The same of every byte of the screen and every weight, whatever is remembered; then they are remembered. */
fs_status fs_screen_check_whole(fs_context *context, const fs_head *head);

/* Forgets a screen whose memory is written over, or that fails a check. */
void fs_screen_forget(fs_context *context, const void *screen);

/* From or to wherever the context's backend has its arrays. */
fs_status fs_screen_copy(fs_context *context, void *to, const void *from, size_t bytes);

/* The order of columns [D] of a FS_SCREEN_MIXED of this head; and whether one that was read is whole. */
fs_status fs_screen_choose_columns(fs_context *context, const fs_head *head, const fs_screen_options *options,
                                   uint32_t *order);
fs_status fs_screen_check_columns(fs_context *context, const char *name, const uint32_t *order,
                                  const fs_screen_header *h);

/* Columns in 8 bits of a screen of this head. */
int32_t fs_screen_kept(const fs_head *head, const fs_screen_options *options);

fs_status fs_screen_make(fs_context *context, const fs_head *head, const fs_screen_options *options, void *screen);

fs_status fs_screen_cut(fs_context *context, const void *whole, size_t whole_bytes, int64_t first, int64_t rows,
                        void *to, size_t bytes, size_t *needed);

#endif
