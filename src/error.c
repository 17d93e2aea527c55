#include "error.h"

#include "backend.h"

#include <stdarg.h>
#include <stdio.h>

/* Failures without a context, such as creating one. */
static _Thread_local char thread_error[FS_ERROR_CHARS];

/* The parentheses keep the analyzer's macro away. */
fs_status(fs_fail)(fs_context *context, fs_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(context ? context->error : thread_error, FS_ERROR_CHARS, format, args);
    va_end(args);
    return status;
}

const char *fs_error_text(const fs_context *context) {
    return context ? context->error : thread_error;
}

const char *fs_status_text(fs_status status) {
    switch (status) {
    case FS_OK:
        return "ok";
    case FS_ERR_ARGUMENT:
        return "argument";
    case FS_ERR_UNSUPPORTED:
        return "unsupported";
    case FS_ERR_MEMORY:
        return "memory";
    case FS_ERR_DEVICE:
        return "device";
    case FS_ERR_PEER:
        return "peer";
    case FS_ERR_STATE:
        return "state";
    case FS_ERR_ENVIRONMENT:
        return "environment";
    case FS_ERR_INTERNAL:
        return "internal";
    case FS_ERR_CANCELLED:
        return "cancelled";
    default:
        return "unknown status";
    }
}
