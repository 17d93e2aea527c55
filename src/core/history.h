/* history.h - counts the calls in which a screen failed: its bounds were too wide, and W was read behind it. After the
 * first failure one call goes to W at once, after each further one in a row 31 calls. So of 24 calls two read a screen
 * that always fails, at half of W's time each. A call that the screen decides begins anew. Tokens are the same either
 * way.
 *
 * Each screen has one history for each kind of call, so two heads of one context do not disturb each other. Backends
 * keep them for FS_SCREENS_KNOWN screens. */
#ifndef FS_CORE_HISTORY_H
#define FS_CORE_HISTORY_H

#include "core.h"

#define FS_SCREENS_KNOWN 8 /* screens that a context knows at a time */

typedef struct fs_screen_history {
    uint32_t hash;   /* of the screen's header: another screen begins anew */
    uint32_t failed; /* whether the last call that read the screen read W too */
    uint32_t skip;   /* calls that go to W at once from now on */
} fs_screen_history;

#define FS_SKIPPED_FIRST 1
#define FS_SKIPPED_NEXT 31

FS_CORE int history_skips(const fs_screen_history *history, uint32_t hash) {
    return history->hash == hash && history->skip > 0;
}

/* After a call. read_weights: W was read, at once or behind the screen. */
FS_CORE void history_note(fs_screen_history *history, uint32_t hash, int read_weights) {
    if (history->hash != hash) {
        history->hash = hash;
        history->failed = history->skip = 0;
    }
    if (!read_weights) {
        history->failed = history->skip = 0;
    } else if (history->skip > 0) {
        history->skip--;
    } else {
        history->skip = history->failed ? FS_SKIPPED_NEXT : FS_SKIPPED_FIRST;
        history->failed = 1;
    }
}

#endif
