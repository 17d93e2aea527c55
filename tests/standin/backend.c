/* backend.c - a stand-in for the CUDA backend in flashsample: the CPU backend on the memory of the stand-in driver.
 *
 * Calls are checked as CUDA's are: nothing in an array is looked at, what CUDA does not do is refused in its words, and
 * every pointer must be device memory. Only during a call the memory may be touched. */
#define _GNU_SOURCE
#include "backend.h"
#include "cuda/cuda_plan.h"
#include "screen/screen_strips.h"
#include "standin.h"

#include <dlfcn.h>
#include <stdio.h>

static struct {
    void (*enter)(void);
    void (*leave)(void);
    int (*owns)(const void *address);
    int (*has_stream)(const void *stream);
} driver;

static int find(void *library, const char *name, void *to) {
    void *symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

static fs_status standin_open(fs_context *context) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW); /* as CUDA does */
    if (!library || !find(library, "standin_enter", &driver.enter) || !find(library, "standin_leave", &driver.leave) ||
        !find(library, "standin_owns", &driver.owns) || !find(library, "standin_has_stream", &driver.has_stream))
        return fs_fail(context, FS_ERR_DEVICE, "the stand-in driver does not load");
    FS_TRY(fs_backend_cpu.open(context));
    context->options.flags |= FS_CHECK_POINTERS;
    snprintf(context->text, sizeof context->text, "cuda: a stand-in for device %d", context->options.device);
    return FS_OK;
}

/* Device memory may be touched, and the context is the CPU backend's, until `leave`. */
static fs_status enter(fs_context *context, const char *name, const void *pointer) {
    FS_REQUIRE(context, driver.has_stream(context->options.cuda_stream), "the stream is %p",
               context->options.cuda_stream);
    FS_REQUIRE(context, !pointer || driver.owns(pointer), "%s is %p, host memory", name, pointer);
    driver.enter();
    context->backend = &fs_backend_cpu;
    return FS_OK;
}

static fs_status leave(fs_context *context, fs_status status) {
    context->backend = &fs_backend_cuda;
    driver.leave();
    return status;
}

static void standin_close(fs_context *context) {
    fs_backend_cpu.close(context);
}

static fs_status standin_sample(fs_context *context, const fs_head *head, const fs_batch *batch,
                                const fs_result *result) {
    FS_TRY(enter(context, "", NULL));
    return leave(context, fs_backend_cpu.sample(context, head, batch, result));
}

static fs_status standin_check_pointer(fs_context *context, const char *name, const void *pointer) {
    FS_REQUIRE(context, driver.owns(pointer), "%s is %p, host memory", name, pointer);
    return FS_OK;
}

static fs_status standin_make_screen(fs_context *context, const fs_head *head, const fs_screen_header *header,
                                     const fs_screen_options *options, void *screen) {
    fs_screen_header copy = *header;
    FS_TRY(enter(context, "screen", screen));
    return leave(context, fs_strips_make(context, head, options, &copy, screen));
}

static fs_status standin_sum_screen(fs_context *context, const fs_screen_header *header, const void *screen,
                                    fs_screen_sums *sums) {
    FS_TRY(enter(context, "screen", screen));
    return leave(context, fs_strips_sum(context, header, screen, sums));
}

static fs_status standin_compare_screen(fs_context *context, const fs_head *head, const fs_screen_header *header,
                                        int whole, int64_t *strip) {
    FS_TRY(enter(context, "head.screen", head->screen));
    return leave(context, fs_strips_compare(context, head, header, whole, strip));
}

static fs_status standin_copy(fs_context *context, void *to, const void *from, size_t bytes) {
    FS_TRY(enter(context, "", NULL));
    memmove(to, from, bytes);
    return leave(context, FS_OK);
}

static fs_status standin_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch,
                                      const fs_result *result, int32_t least, size_t *bytes) {
    FS_TRY(enter(context, "", NULL));
    return leave(context, fs_backend_cpu.partial_size(context, head, batch, result, least, bytes));
}

static fs_status standin_partial(fs_context *context, const fs_head *head, const fs_batch *batch,
                                 const fs_result *result, int32_t least, int32_t sealed, void *part, size_t bytes) {
    FS_TRY(enter(context, "part", part));
    return leave(context, fs_backend_cpu.partial(context, head, batch, result, least, sealed, part, bytes));
}

static fs_status standin_merge(fs_context *context, const fs_head *head, const fs_batch *batch,
                               const void *const *parts, int32_t count, int32_t least, int32_t sealed,
                               const fs_result *result) {
    FS_TRY(enter(context, "parts[0]", count ? parts[0] : NULL));
    return leave(context, fs_backend_cpu.merge(context, head, batch, parts, count, least, sealed, result));
}

const fs_backend fs_backend_cuda = {.name = "cuda",
                                    .open = standin_open,
                                    .close = standin_close,
                                    .sample = standin_sample,
                                    .lacks = fs_cuda_lacks,
                                    .make_screen = standin_make_screen,
                                    .sum_screen = standin_sum_screen,
                                    .compare_screen = standin_compare_screen,
                                    .copy = standin_copy,
                                    .check_pointer = standin_check_pointer,
                                    .partial_size = standin_partial_size,
                                    .partial = standin_partial,
                                    .merge = standin_merge};
