/* screen_make.h - a screen (core/screen.h) from a head, a slice of one, and whether one belongs to a head. */
#ifndef FS_SCREEN_MAKE_H
#define FS_SCREEN_MAKE_H

#include "backend.h"

#include "core/screen.h"

/* Of a head that has been checked; zeros in the options become what they stand for, but for the seed. */
fs_status fs_screen_check_options(fs_context *context, const fs_head *head, fs_screen_options *options);

/* `name` has room for what is needed, 64-byte aligned. */
fs_status fs_screen_check_room(fs_context *context, const char *name, const void *memory, size_t bytes, int64_t needed);

/* Whether head->screen belongs to the head: all of its header, and hashes of a sample of W unless the same two were
 * compared in the last call. */
fs_status fs_screen_check(fs_context *context, const fs_head *head);

/* That these two belong together; that nothing is known of a screen that is written over. */
void fs_screen_remember(fs_context *context, const fs_head *head, const void *screen, size_t bytes,
                        const fs_screen_header *header);
void fs_screen_forget(fs_context *context, const void *screen);

fs_status fs_screen_make(fs_context *context, const fs_head *head, const fs_screen_options *options, void *screen);

fs_status fs_screen_cut(fs_context *context, const void *whole, size_t whole_bytes, int64_t first, int64_t rows,
                        void *to, size_t bytes, size_t *needed);

#endif
