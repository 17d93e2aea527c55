/* history.h - how a screen has fared in calls of one kind. Where its bounds are too wide for a head, or for its rows,
 * every call would read both it and W. So behind two such calls in a row the next one goes to W at once, behind a third
 * the next three, then 7, 15 and 31, until the screen decides again. Tokens are the same either way.
 *
 * A screen has a history of its own for each kind of call, in the context: two heads of one context, as a draft model's
 * and its target's, do not disturb each other. Backends keep [FS_SCREENS_KNOWN] of them for each kind. */
#ifndef FS_CORE_HISTORY_H
#define FS_CORE_HISTORY_H

#include "core.h"

#define FS_SCREENS_KNOWN 8 /* screens that a context knows at a time */

typedef struct fs_screen_history {
    uint32_t hash;   /* of the screen's header: another screen begins anew */
    uint32_t failed; /* times in a row that the screen was read and then W */
    uint32_t skip;   /* calls that go to W at once from now on */
} fs_screen_history;

#define FS_MOST_FAILED 6

FS_CORE int history_skips(const fs_screen_history *history, uint32_t hash) {
    return history->hash == hash && history->skip > 0;
}

/* After a call: W was read, at once or behind the screen; or it was not. */
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
        if (history->failed < FS_MOST_FAILED) history->failed++;
        history->skip = (1u << (history->failed - 1)) - 1;
    }
}

#endif
