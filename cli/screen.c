/* screen.c - see screen.h. */
#include "screen.h"
#include "cli.h"
#include "device.h"
#include "print.h"
#include "synth.h"

#include <stdio.h>

const char *const screen_names[] = {"none", "8", "4", "4+8", NULL};

static int show_progress(void *user, int64_t done, int64_t rows) {
    (void)user;
    (void)rows;
    progress_at((double)done);
    return 0;
}

screen_facts screen_make(fs_context *context, fs_head *head, int format, uint64_t seed, int progress) {
    screen_facts facts = {0, 0, 0};
    if (format == SCREEN_NONE) return facts;
    fs_screen_options o = fs_screen_options_default();
    o.format = format;
    o.seed = fs_seed_spread(seed, UINT64_MAX); /* slots draw with those before it */
    if (o.seed == 0) o.seed = 1;               /* 0 would be a seed of the system's */
    if (progress) o.progress = show_progress;
    size_t bytes;
    check(context, fs_screen_size(context, head, &o, &bytes));
    void *memory = device_take((int64_t)bytes, "a screen");
    if (progress) progress_start("making the screen", (double)head->rows);
    const double begin = now();
    check(context, fs_screen_build(context, head, &o, memory, bytes));
    facts.seconds = now() - begin;
    if (progress) progress_end();
    head->screen = memory;
    head->screen_bytes = bytes;
    check(context, fs_screen_check(context, head)); /* else the first call would compare them */
    facts.bytes = (int64_t)bytes;
    facts.of_w = (double)bytes / ((double)head->rows * (double)head->dim * (double)dtype_bytes(head->dtype));
    return facts;
}

const char *screen_text(int format, const screen_facts *facts) {
    static char text[128];
    snprintf(text, sizeof text, "%s-bit screen of %s, %.2f of W, made in %s", screen_names[format],
             text_bytes((double)facts->bytes), facts->of_w, text_seconds(facts->seconds));
    return text;
}

void screen_json(int format, const screen_facts *facts) {
    json_int("bits", format == FS_SCREEN_INT8 ? 8 : 4);
    json_int("bytes", facts->bytes);
    json_real("of_w", facts->of_w);
    json_real("seconds", facts->seconds);
}

size_t screen_header_bytes(fs_context *context, const fs_head *head, int format) {
    fs_screen_options o = fs_screen_options_default();
    fs_head empty = *head;
    size_t bytes;
    o.format = format;
    empty.rows = 0;
    check(context, fs_screen_size(context, &empty, &o, &bytes));
    return bytes;
}
