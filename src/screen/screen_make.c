/* screen_make.c - a screen of a head: its header, and its strips (screen_strips.h). */
#include "screen_make.h"

#include "screen_strips.h"

#include <stdio.h>

static fs_status draw_seed(fs_context *context, uint64_t *seed) {
    if (*seed != 0) return FS_OK;
    FILE *file = fopen("/dev/urandom", "rb"); /* getentropy needs glibc 2.25, and a wheel reaches 2.17 */
    while (*seed == 0 && file && fread(seed, sizeof *seed, 1, file) == 1) continue;
    if (file) fclose(file);
    if (*seed != 0) return FS_OK;
    return fs_fail(context, FS_ERR_DEVICE, "/dev/urandom gives no random seed for a screen: give screen_options.seed");
}

fs_status fs_screen_copy(fs_context *context, void *to, const void *from, size_t bytes) {
    if (context->backend->copy) return context->backend->copy(context, to, from, bytes);
    memmove(to, from, bytes);
    return FS_OK;
}

fs_status fs_screen_make(fs_context *context, const fs_head *head, const fs_screen_options *options, void *screen) {
    fs_screen_header h;
    memset(&h, 0, sizeof h);
    h.magic = FS_SCREEN_MAGIC;
    h.version = FS_SCREEN_VERSION;
    h.layout = FS_SCREEN_LAYOUT;
    h.format = options->format;
    h.group = options->group;
    h.dtype = head->dtype;
    h.rows = head->rows;
    h.dim = head->dim;
    h.first_token = head->first_token;
    h.kept = fs_screen_kept(head, options);
    if (h.format != FS_SCREEN_INT8) {
        h.seed = options->seed;
        FS_TRY(draw_seed(context, &h.seed));
        h.eta = options->eta;
        h.reach = screen_reach(h.eta, h.dim, h.kept);
    }
    fs_screen_forget(context, screen);
    if (h.kept) {
        uint32_t *order = (uint32_t *)(void *)((char *)screen + sizeof h);
        memset(order, 0, (size_t)screen_head_bytes(h.dim, h.kept) - sizeof h);
        FS_TRY(fs_screen_choose_columns(context, head, options, order));
        h.order = screen_order_hash(order, h.dim);
    }
    FS_TRY(fs_strips_make(context, head, options, &h, screen));
    h.hash = screen_header_hash(&h);
    return fs_screen_copy(context, screen, &h, sizeof h);
}
