/* history.cuh - the history of a screen (core/history.h) in device memory: one for each screen of a context and each
 * kind of call. Graphs have histories of their own. */
#ifndef FS_CUDA_SCREEN_HISTORY_CUH
#define FS_CUDA_SCREEN_HISTORY_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/ptx.cuh"

/* Whether a pass has nothing to do: the call goes to W at once, or rows before these have left it to W. The same for
 * all CTAs, since it is changed only when a launch's last row is ended. */
FS_DEVICE bool leaves_to_weights(const fs_cuda_args &args) {
    const fs_cuda_history *history = args.screen.history;
    const fs_screen_history of = {load_relaxed(&history->of.hash), 0, load_relaxed(&history->of.skip)};
    return load_relaxed(&history->left) > 0 || history_skips(&of, (uint32_t)args.screen.hash);
}

/* The rows of a launch have ended, or are open: what that means for those behind them, and if they are the call's last
 * for the next call. By one thread. */
FS_DEVICE void note_outcome(const fs_cuda_args &args) {
    fs_cuda_history *history = args.screen.history;
    const bool open = load_relaxed((const uint32_t *)args.screen.open) > 0;
    const bool last = args.first_row + args.rows >= args.batch.rows;
    history->left = open && !last;
    if (last) history_note(&history->of, (uint32_t)args.screen.hash, open);
}

#endif
