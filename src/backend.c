/* backend.c - where a backend is chosen: one table, one loop, best first. */
#include "backend.h"

#include "cuda/cuda_environment.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    int32_t kind;
    const char *name;
    const fs_backend *backend; /* NULL: not in this build */
    int automatic;
} table[] = {
#if defined(FS_WITH_CUDA)
    {FS_BACKEND_CUDA, "cuda", &fs_backend_cuda, 0},
#else
    {FS_BACKEND_CUDA, "cuda", NULL, 0},
#endif
    {FS_BACKEND_CPU, "cpu", &fs_backend_cpu, 1},
    {FS_BACKEND_REFERENCE, "reference", &fs_backend_reference, 0},
};

fs_status fs_backend_find(int32_t kind, const fs_backend **backend, const char **why) {
    *why = "backend must be FS_BACKEND_CPU (1), FS_BACKEND_CUDA (2) or FS_BACKEND_REFERENCE (3)";
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].kind != kind) continue;
        *backend = table[i].backend;
        *why = "the cuda backend is not in this build"; /* the others always are */
        return *backend ? FS_OK : FS_ERR_UNSUPPORTED;
    }
    return FS_ERR_ARGUMENT;
}

const fs_backend *fs_backend_choose(const fs_options *options, fs_status *status) {
    const char *forced = getenv("FLASHSAMPLING_BACKEND");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int wanted = options->backend == table[i].kind || (options->backend == FS_BACKEND_AUTO && table[i].automatic);
        if (forced) wanted = strcmp(forced, table[i].name) == 0;
        if (!wanted) continue;
        if (table[i].backend) return table[i].backend;
        if (forced)
            *status = fs_fail(NULL, FS_ERR_ENVIRONMENT, "FLASHSAMPLING_BACKEND=%s: that backend is not in this build",
                              forced);
        else *status = fs_fail(NULL, FS_ERR_UNSUPPORTED, "the %s backend is not in this build", table[i].name);
        return NULL;
    }
    if (forced)
        *status = fs_fail(NULL, FS_ERR_ENVIRONMENT,
                          "FLASHSAMPLING_BACKEND=%s is unknown; known are cuda, cpu, reference", forced);
    else
        *status = fs_fail(NULL, FS_ERR_ARGUMENT, "options.backend is %d, not one of FS_BACKEND_... (0 to 3)",
                          options->backend);
    return NULL;
}

fs_status fs_backend_environment(void) {
    fs_cuda_environment cuda;
    return fs_cuda_environment_read(NULL, &cuda);
}

unsigned fs_forks;
static int watch_error;

static void count_fork(void) {
    fs_forks++; /* in the child, which has one thread yet */
}

static void watch_forks(void) {
    watch_error = pthread_atfork(NULL, NULL, count_fork);
}

fs_status fs_forks_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    if (!watch_error) return FS_OK;
    return fs_fail(NULL, FS_ERR_MEMORY, "pthread_atfork failed: %s", strerror(watch_error));
}

void *fs_context_alloc(fs_context *context, size_t bytes, const char *what) {
    const fs_options *o = &context->options;
    size_t rounded = (bytes + 63) / 64 * 64;
    if (rounded == 0) rounded = 64;
    void *memory = o->alloc ? o->alloc(o->alloc_user, 64, rounded) : aligned_alloc(64, rounded);
    if (!memory) fs_fail(context, FS_ERR_MEMORY, "cannot allocate %zu bytes for %s", rounded, what);
    return memory;
}

void fs_context_free(fs_context *context, void *memory) {
    const fs_options *o = &context->options;
    if (!memory) return;
    if (o->free) o->free(o->alloc_user, memory);
    else free(memory);
}

void fs_context_log(fs_context *context, const char *format, ...) {
    char line[256];
    va_list args;
    if (!context->options.log) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    context->options.log(context->options.log_user, line);
}

fs_status fs_screen_most_rows(fs_context *context, int32_t *rows) {
    const char *asked = getenv("FLASHSAMPLING_SCREEN_ROWS");
    char *end;
    *rows = -1;
    if (!asked) return FS_OK;
    const long value = strtol(asked, &end, 10);
    if (end == asked || *end || value < 0 || value > 1 << 20)
        return fs_fail(context, FS_ERR_ENVIRONMENT, "FLASHSAMPLING_SCREEN_ROWS=%s, must be 0 to %d", asked, 1 << 20);
    *rows = (int32_t)value;
    return FS_OK;
}

fs_status fs_backend_take_stream(fs_context *context, const char *name, void *cuda_stream) {
    const fs_backend *backend = context->backend;
    if (backend->set_stream)
        return backend->set_stream(context, cuda_stream ? cuda_stream : context->options.cuda_stream);
    FS_REQUIRE(context, !cuda_stream, "%s is %p, must be NULL: the %s backend has no streams", name, cuda_stream,
               backend->name);
    return FS_OK;
}
