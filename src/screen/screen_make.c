#define _DEFAULT_SOURCE /* getentropy */
/* screen_make.c - a screen of a head: its header; its strips (core/strip.h), on the context's threads or by its
 * backend. */
#include "screen_make.h"

#include "core/strip.h"

#include <unistd.h>

_Static_assert(sizeof(fs_screen_header) == 128 && sizeof(fs_strip_head) == FS_SCREEN_STRIP_HEAD,
               "lines of a strip are cache lines");

/* --------------------------------------------------------------------------------------------------- the whole ---- */

/* Strips [from, to) of a screen, by as many tasks. */
typedef struct making {
    const fs_head *head;
    fs_screen_header *header;
    fs_weights weights;
    int64_t from, to;
    int32_t tasks;
} making;

static void make_task(void *arg, int32_t task) {
    const making *m = arg;
    const int64_t count = m->to - m->from, bytes = screen_strip_bytes(m->header->format, m->header->dim);
    const int64_t end = m->from + count * (task + 1) / m->tasks;
    unsigned char *strips = (unsigned char *)(m->header + 1);
    for (int64_t i = m->from + count * task / m->tasks; i < end; i++) {
        unsigned char *strip = strips + i * bytes;
        memset(strip, 0, (size_t)bytes);
        ((fs_strip_head *)(void *)strip)->check = screen_check(m->head, &m->weights, i);
        for (int at = 0; at < FS_SCREEN_TOKENS; at++) make_token(m->header, &m->weights, i, at, strip);
    }
}

static fs_status draw_seed(fs_context *context, uint64_t *seed) {
    while (*seed == 0)
        if (getentropy(seed, sizeof *seed) != 0)
            return fs_fail(context, FS_ERR_DEVICE, "the system has no random seed for a screen: give options.seed");
    return FS_OK;
}

#define FS_SCREEN_TURNS 64  /* calls of the progress function, as many as there are strips for */
#define FS_SCREEN_TASKS 256 /* more than threads, so that they end together */

fs_status fs_screen_make(fs_context *context, const fs_head *head, const fs_screen_options *options, void *screen) {
    making m;
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
    if (h.format == FS_SCREEN_INT4) {
        h.seed = options->seed;
        FS_TRY(draw_seed(context, &h.seed));
        h.eta = options->eta;
        h.reach = screen_reach(h.eta, h.dim);
    }
    h.hash = screen_header_hash(&h);
    if (context->backend->make_screen) {
        FS_TRY(context->backend->make_screen(context, head, &h, options, screen));
        fs_screen_remember(context, head, screen, (size_t)screen_bytes(h.format, h.rows, h.dim), &h);
        return FS_OK;
    }
    fs_screen_forget(context, screen);
    memcpy(screen, &h, sizeof h);
    m.head = head;
    m.header = screen;
    m.weights = weights_of_head(head);
    const int64_t strips = screen_strips(h.rows), step = strips / FS_SCREEN_TURNS + 1;
    for (m.from = 0; m.from < strips; m.from = m.to) {
        m.to = m.from + step < strips ? m.from + step : strips;
        m.tasks = (int32_t)(m.to - m.from < FS_SCREEN_TASKS ? m.to - m.from : FS_SCREEN_TASKS);
        if (context->backend->parallel) context->backend->parallel(context, m.tasks, make_task, &m);
        else
            for (int32_t i = 0; i < m.tasks; i++) make_task(&m, i);
        const int64_t done = m.to * FS_SCREEN_TOKENS;
        if (options->progress) options->progress(options->user, done < h.rows ? done : h.rows, h.rows);
    }
    return FS_OK;
}
