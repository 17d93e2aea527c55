/* screen.h - the option --screen: a command makes a screen of its head and draws by it. */
#ifndef FS_CLI_SCREEN_H
#define FS_CLI_SCREEN_H

#include "flashsampling_screens.h"

/* The values of --screen, indexed by FS_SCREEN_...; NULL-terminated. "4+8" is FS_SCREEN_MIXED. */
extern const char *const screen_names[];
#define SCREEN_NONE 0

/* For a table of options (options.h). */
#define SCREEN_OPTION(help, to)                                                                                        \
    { OPT_CHOICE, "screen", "BITS", help, to, 0, 0, screen_names }

typedef struct screen_facts {
    int64_t bytes;
    double of_w; /* bytes as a share of W's */
    double seconds;
} screen_facts;

/* Makes a screen of the head's W and sets head->screen. SCREEN_NONE: does nothing. The rounding of 4 bits is a function
 * of `seed`, so that a command can be repeated. `progress` shows a bar while it lasts. */
screen_facts screen_make(fs_context *context, fs_head *head, int format, uint64_t seed, int progress);

/* "8-bit screen of 162 MB, 0.52 of W, made in 1.1 s" */
const char *screen_text(int format, const screen_facts *facts);

/* The same as members of the JSON object that is open. */
void screen_json(int format, const screen_facts *facts);

/* The size of a screen's header: what is behind it is the copy of W. */
size_t screen_header_bytes(fs_context *context, const fs_head *head, int format);

#endif
