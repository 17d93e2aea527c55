/* libcuda.c - a stand-in for the CUDA driver: as many of its functions as cli/device.c loads, with host memory for the
 * device's.
 *
 * Device memory lies in pages of its own. No access is allowed outside of a call (standin_enter), so code of the host
 * that follows a device pointer ends the process. So does a read or a write behind an array: under the address
 * sanitizer at the first byte, else at the page's end, and bytes written between the two are found when the memory is
 * freed. Memory begins as a pattern. Arrays and streams that are left when the process ends are reported, and it ends with
 * exit code 70.
 *
 * FS_STANDIN_DEVICES: how many there are (default 2); -1: the driver does not start. FS_STANDIN_BYTES: memory of
 * each. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

#define EXPORT __attribute__((visibility("default")))
#define PATTERN 0x7F /* as a float 3.4e38, as a token none */
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201
};
enum { L2_CACHE_BYTES = 38, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

typedef struct block {
    struct block *next;
    unsigned char *at;
    size_t bytes, mapped;
} block;

static struct {
    block *blocks;
    size_t taken;
    int started, retained, current, streams, entered;
    char stream; /* its address is the stream */
} state;

__attribute__((format(printf, 1, 2), noreturn)) static void stop(const char *format, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, format);
    fputs("stand-in driver: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    __builtin_va_end(list);
    _exit(70);
}

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int devices(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"); /* an empty list hides all, as the real driver does it */
    return visible && !*visible ? -1 : (int)number("FS_STANDIN_DEVICES", 2);
}

static size_t memory_of_device(void) {
    return (size_t)number("FS_STANDIN_BYTES", 1l << 32);
}

/* ---------------------------------------------------------------------------------------------------- memory ---- */

static block *find(const void *address) {
    const unsigned char *at = address;
    block *b = state.blocks;
    while (b && !(at >= b->at && at < b->at + b->bytes)) b = b->next;
    return b;
}

static void protect(int access) {
    for (block *b = state.blocks; b; b = b->next)
        if (mprotect(b->at, b->mapped, access) != 0) stop("mprotect failed");
}

EXPORT void standin_enter(void) {
    if (state.entered++ == 0) protect(PROT_READ | PROT_WRITE);
}

EXPORT void standin_leave(void) {
    if (--state.entered == 0) protect(PROT_NONE);
}

EXPORT int standin_owns(const void *address) {
    return find(address) != NULL;
}

EXPORT int standin_has_stream(const void *stream) {
    return state.streams > 0 && stream == &state.stream;
}

EXPORT int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (bytes + page - 1) / page * page;
    if (!state.current) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > memory_of_device() - state.taken) return OUT_OF_MEMORY;
    block *b = malloc(sizeof *b);
    /* The page behind it is never allowed. */
    void *memory = mmap(NULL, mapped + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!b || memory == MAP_FAILED) stop("no memory");
    *b = (block){state.blocks, memory, bytes, mapped};
    state.blocks = b;
    state.taken += bytes;
    standin_enter();
    memset(memory, PATTERN, mapped);
    standin_leave();
    ASAN_POISON_MEMORY_REGION(b->at + bytes, mapped - bytes);
    *address = (uintptr_t)memory;
    return SUCCESS;
}

EXPORT int cuMemFree_v2(uintptr_t address) {
    block **at = &state.blocks;
    while (*at && (uintptr_t)(*at)->at != address) at = &(*at)->next;
    block *b = *at;
    if (!b) stop("cuMemFree of %#lx, which is not allocated", (unsigned long)address);
    standin_enter();
    ASAN_UNPOISON_MEMORY_REGION(b->at + b->bytes, b->mapped - b->bytes);
    for (size_t i = b->bytes; i < b->mapped; i++)
        if (b->at[i] != PATTERN) stop("byte %zu of an array of %zu bytes was written", i, b->bytes);
    standin_leave();
    *at = b->next;
    state.taken -= b->bytes;
    munmap(b->at, b->mapped + (size_t)sysconf(_SC_PAGESIZE));
    free(b);
    return SUCCESS;
}

/* Ends the process unless all bytes lie in one array, and a copy may be made. */
static void check_copy(uintptr_t address, size_t bytes, const void *stream) {
    const block *b = find((const void *)address);
    if (!standin_has_stream(stream)) stop("a copy on %p, which is no stream", stream);
    if (!b || bytes > b->bytes - (size_t)((const unsigned char *)address - b->at))
        stop("a copy of %zu bytes at %#lx, of an array of %zu", bytes, (unsigned long)address, b ? b->bytes : 0);
}

EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream) {
    check_copy(to, bytes, stream);
    standin_enter();
    memcpy((void *)to, from, bytes);
    standin_leave();
    return SUCCESS;
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream) {
    check_copy(from, bytes, stream);
    standin_enter();
    memcpy(to, (const void *)from, bytes);
    standin_leave();
    return SUCCESS;
}

EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream) {
    check_copy(to, bytes, stream);
    check_copy(from, bytes, stream);
    standin_enter();
    memcpy((void *)to, (const void *)from, bytes);
    standin_leave();
    return SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------- devices ---- */

EXPORT int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory"
            : error == NO_DEVICE   ? "no CUDA-capable device is detected"
                                   : "invalid argument";
    return SUCCESS;
}

EXPORT int cuInit(unsigned flags) {
    if (flags != 0) return INVALID_VALUE;
    if (devices() < 0) return NO_DEVICE;
    state.started = 1;
    return SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count) {
    *count = devices();
    return state.started ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    *device = 100 + ordinal; /* a handle is no ordinal */
    return ordinal >= 0 && ordinal < devices() ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, (size_t)size, "Stand-in %d", device - 100);
    return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int *value, int what, int device) {
    *value = what == CAPABILITY_MAJOR   ? 9
             : what == CAPABILITY_MINOR ? device - 100
             : what == L2_CACHE_BYTES   ? 1 << 20
                                        : -1;
    return *value < 0 ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = memory_of_device();
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device < 100) return INVALID_DEVICE;
    *context = &state;
    state.retained++;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    state.retained--;
    return device < 100 ? INVALID_DEVICE : SUCCESS;
}

EXPORT int cuCtxSetCurrent(void *context) {
    state.current = context == &state;
    return state.current ? SUCCESS : INVALID_CONTEXT;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    *stream = &state.stream;
    state.streams++;
    return flags == 0 && state.current ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuStreamDestroy_v2(void *stream) {
    if (!standin_has_stream(stream)) stop("%p, which is no stream, is destroyed", stream);
    state.streams--;
    return SUCCESS;
}

EXPORT int cuStreamSynchronize(void *stream) {
    return standin_has_stream(stream) ? SUCCESS : INVALID_VALUE;
}

__attribute__((destructor)) static void look_what_is_left(void) {
    fflush(NULL);
    for (const block *b = state.blocks; b; b = b->next) fprintf(stderr, "left: %zu bytes\n", b->bytes);
    if (state.blocks || state.streams || state.retained)
        stop("%zu bytes, %d streams and %d contexts are left", state.taken, state.streams, state.retained);
}
