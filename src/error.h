/* error.h - how a failure gets its text. */
#ifndef FS_ERROR_H
#define FS_ERROR_H

#include "flashsampling.h"

#define FS_ERROR_CHARS 512

/* Writes the text of a failure (NULL context: this thread's) and returns `status`, so that callers can return it. */
fs_status fs_fail(fs_context *context, fs_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__
/* The analyzer sees one file at a time and would follow paths on which fs_fail returns FS_OK. */
#define fs_fail(context, status, ...) ((void)fs_fail(context, status, __VA_ARGS__), (status))
#endif

/* Returns with an argument error unless the condition holds. The text names the value and the limit. */
#define FS_REQUIRE(context, condition, ...)                                                                            \
    do {                                                                                                               \
        if (!(condition)) return fs_fail(context, FS_ERR_ARGUMENT, __VA_ARGS__);                                       \
    } while (0)

/* Passes a failure on. */
#define FS_TRY(call)                                                                                                   \
    do {                                                                                                               \
        fs_status fs_try_status = (call);                                                                              \
        if (fs_try_status != FS_OK) return fs_try_status;                                                              \
    } while (0)

#endif
