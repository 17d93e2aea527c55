/* flashsampling_screens.h - screens: a copy of W in fewer bits, with proven bounds, that spares most calls the pass
 * over W (docs/explain/screens.md). Tokens are the same, bit for bit.
 *
 * A screen is made once, when a head is loaded, and handed over with the head:
 *
 *   fs_screen_options options = fs_screen_options_default();
 *   size_t bytes;
 *   fs_screen_size(context, &head, &options, &bytes);
 *   void *screen = aligned_alloc(64, (bytes + 63) / 64 * 64);        // on CUDA: device memory
 *   fs_screen_build(context, &head, &options, screen, bytes);
 *   head.screen = screen, head.screen_bytes = bytes;
 *   fs_sample(context, &head, &batch, &result);                      // calls that the screen can decide read it for W
 *
 * A screen decides calls for tokens, status, noisy logits and survivors, with any rules but a top-p that nothing
 * narrows before it. Calls that ask for log Z, logprobs, ranks, top or watched tokens read W, as do most calls of many
 * rows.
 *
 * Where W changes, its screen must be made anew. The bytes can be saved, and mapped on a machine of the same byte
 * order.
 *
 * The first call of a context with this W and this screen checks them: the screen's header and all of its bytes, and
 * four weights of every row of W, at places that depend on the row. A screen that was changed, or is another W's, is
 * FS_ERR_ARGUMENT. On CUDA that call waits for the device, so it cannot be captured. The check misses a row that
 * changed only at other places: 1 row in 16 of those of which half changed, and nearly every single weight. It also
 * misses later writes to W. fs_screen_check looks at every weight. A context remembers 8 heads with screens; with more
 * in turn, every call repeats the check. */
#ifndef FLASHSAMPLING_SCREENS_H
#define FLASHSAMPLING_SCREENS_H

#include <flashsampling.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FS_SCREEN_INT8 = 1, /* about 0.52 of the bytes of a bf16 W of many columns; bounds that always hold */
    FS_SCREEN_INT4 = 2, /* 0.27; rounded at random: a bound may be passed with probability 2 eta a logit */
    /* 0.28, of D = 1,024 0.30: FS_SCREEN_INT4 with some columns in 8 bits. Heads of language models need it, because a
     * few columns of their hidden states are far larger than the others. CUDA: FS_ERR_UNSUPPORTED. */
    FS_SCREEN_MIXED = 3
};

/* How a screen is made; NULL where it is asked for = fs_screen_options_default(). */
typedef struct fs_screen_options {
    size_t size;
    int32_t format; /* FS_SCREEN_...; 0 = FS_SCREEN_INT8 */
    int32_t
        group; /* columns with one scale: 128; of FS_SCREEN_INT4 64 or 128, of FS_SCREEN_MIXED 64. 0 = 128, and 64 */
    /* Not of FS_SCREEN_INT8: what rounds. The bound speaks of hidden states that do not depend on it. 0 = one the
     * system draws; equal seeds give equal bytes. */
    uint64_t seed;
    double eta; /* likewise; 0 = 1e-16 */
    /* Called now and then, on the caller's thread; may be NULL. A return value other than 0 stops the build with
     * FS_ERR_CANCELLED; the bytes written so far are no screen, and calls refuse them. */
    int (*progress)(void *user, int64_t rows_done, int64_t rows);
    void *user;
    /* FS_SCREEN_MIXED: how many columns are in 8 bits, a multiple of 64 up to 1,024; 0 = 64, or 128 where these take no
     * more bytes, as they do where D is a multiple of 128. */
    int32_t columns;
    /* FS_SCREEN_MIXED: a few hidden states [hidden_rows, D] of the model, which choose those columns by their size.
     * NULL: the columns in which W is largest. Bounds hold for every choice; a better one settles fewer logits. */
    int32_t hidden_dtype;
    const void *hidden;
    int64_t hidden_rows;
} fs_screen_options;

/* Bytes of a screen of this head; neither its data nor its screen are looked at. */
FS_API fs_status fs_screen_size(fs_context *context, const fs_head *head, const fs_screen_options *options,
                                size_t *bytes);

/* Writes the screen of a head of weights to screen [bytes], 64-byte aligned: host memory, on the context's threads, or
 * on CUDA the device's, and waits for it there. Either way the bytes are the same. A head whose first_token is a
 * multiple of 16 gets what fs_screen_slice cuts out of the whole vocabulary's; of FS_SCREEN_MIXED only where
 * options.hidden chooses the columns. */
FS_API fs_status fs_screen_build(fs_context *context, const fs_head *head, const fs_screen_options *options,
                                 void *screen, size_t bytes);

/* Whether head.screen is whole and was made of this W: reads every byte of both, and waits for the device. FS_OK, or
 * FS_ERR_ARGUMENT with a text that names the rows that differ. For screens that were saved, and for W that may have
 * changed. On CUDA a call with this W and this screen can be captured after it. */
FS_API fs_status fs_screen_check(fs_context *context, const fs_head *head);

/* The screen of rows [first, first + rows) of the head that `whole` belongs to. `first` is a multiple of 16, and so is
 * `rows`, unless the slice ends with the head's last row. Writes to [bytes]; with to NULL it only sets *needed, which
 * may be NULL otherwise. */
FS_API fs_status fs_screen_slice(fs_context *context, const void *whole, size_t whole_bytes, int64_t first,
                                 int64_t rows, void *to, size_t bytes, size_t *needed);

static inline fs_screen_options fs_screen_options_default(void) {
    fs_screen_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.format = FS_SCREEN_INT8;
    return o;
}

#ifdef __cplusplus
}
#endif
#endif
