/* history.cuh - what becomes of a screen that decides nothing. Where its bounds are too wide for a head, or for its
 * rows, every call would read both it and W, so behind two such calls the next goes to W at once, behind a third the
 * next three, then 7, 15 and 31, until the screen decides again. What is drawn is the same either way. Calls of a kind
 * have a history of their own, in work memory that stays as it is (cuda_memory.h), and so have graphs. */
#ifndef FS_CUDA_SCREEN_HISTORY_CUH
#define FS_CUDA_SCREEN_HISTORY_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/ptx.cuh"

constexpr uint32_t FS_MOST_FAILED = 6;

/* Whether a pass has nothing to do: the call goes to W at once, or rows before these have left it to W. The same for
 * all CTAs, since it is changed only when a launch's last row is ended. */
FS_DEVICE bool leaves_to_weights(const fs_cuda_args &args) {
    const fs_screen_history *history = args.screen.history;
    const uint32_t hash = load_relaxed(&history->hash), skip = load_relaxed(&history->skip);
    return load_relaxed(&history->left) > 0 || (hash == (uint32_t)args.screen.hash && skip > 0);
}

/* The rows of a launch have ended, or are open: what that means for those behind them, and if they are the call's last
 * for the next call. By one thread. */
FS_DEVICE void note_outcome(const fs_cuda_args &args) {
    fs_screen_history *history = args.screen.history;
    const bool open = load_relaxed((const uint32_t *)args.screen.open) > 0;
    const bool last = args.first_row + args.rows >= args.batch.rows;
    history->left = open && !last;
    if (!last) return;
    if (history->hash != (uint32_t)args.screen.hash) {
        history->hash = (uint32_t)args.screen.hash;
        history->failed = history->skip = 0;
    }
    if (!open) history->failed = 0;
    else if (history->skip > 0) history->skip--;
    else {
        history->failed = min(history->failed + 1, FS_MOST_FAILED);
        history->skip = (1u << (history->failed - 1)) - 1;
    }
}

#endif
