/* device.c - see device.h. No header of CUDA is needed: the prototypes below are the driver's, whose interface does not
 * change under these names. */
#include "device.h"
#include "cli.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUresult, CUdevice and attributes are ints; contexts and streams are pointers; CUdeviceptr is an address. */
enum { L2_CACHE_BYTES = 38, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

static struct {
    int (*init)(unsigned);
    int (*error_text)(int, const char **);
    int (*count)(int *);
    int (*get)(int *, int);
    int (*name)(char *, int, int);
    int (*attribute)(int *, int, int);
    int (*memory)(size_t *, int);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*set_current)(void *);
    int (*create_stream)(void **, unsigned);
    int (*destroy_stream)(void *);
    int (*wait)(void *);
    int (*alloc)(uintptr_t *, size_t);
    int (*free)(uintptr_t);
    int (*upload)(uintptr_t, const void *, size_t, void *);
    int (*download)(void *, uintptr_t, size_t, void *);
    int (*copy)(uintptr_t, uintptr_t, size_t, void *);
} driver;

static const struct {
    const char *name;
    void *to;
} functions[] = {
    {"cuInit", &driver.init},
    {"cuGetErrorString", &driver.error_text},
    {"cuDeviceGetCount", &driver.count},
    {"cuDeviceGet", &driver.get},
    {"cuDeviceGetName", &driver.name},
    {"cuDeviceGetAttribute", &driver.attribute},
    {"cuDeviceTotalMem_v2", &driver.memory},
    {"cuDevicePrimaryCtxRetain", &driver.retain},
    {"cuDevicePrimaryCtxRelease_v2", &driver.release},
    {"cuCtxSetCurrent", &driver.set_current},
    {"cuStreamCreate", &driver.create_stream},
    {"cuStreamDestroy_v2", &driver.destroy_stream},
    {"cuStreamSynchronize", &driver.wait},
    {"cuMemAlloc_v2", &driver.alloc},
    {"cuMemFree_v2", &driver.free},
    {"cuMemcpyHtoDAsync_v2", &driver.upload},
    {"cuMemcpyDtoHAsync_v2", &driver.download},
    {"cuMemcpyDtoDAsync_v2", &driver.copy},
};
#define FUNCTIONS (sizeof functions / sizeof functions[0])

typedef struct block {
    struct block *next;
    void *memory;
} block;

static struct {
    int is_cuda, device, ordinal;
    void *stream;
    device_facts facts;
    block *blocks;
} opened;

/* ---------------------------------------------------------------------------------------------------- driver ---- */

static const char *error_text(int error) {
    const char *text = NULL;
    return driver.error_text(error, &text) == 0 && text ? text : "an unknown error";
}

/* Ends the program unless the driver's function went well; `what` names it in the device's terms. */
static void check_driver(int error, const char *what, size_t bytes) {
    char size[48] = "";
    if (error == 0) return;
    if (bytes) snprintf(size, sizeof size, " (%zu bytes)", bytes);
    die(END_RUNTIME, "CUDA device %d: %s%s failed: %s", opened.ordinal, what, size, error_text(error));
}

/* Loads the driver and counts its devices; returns why there is none, or NULL. */
static const char *load_driver(int *count) {
    static char why[512];
    static int devices = -1;
    *count = devices;
    if (devices > 0) return NULL;
    *count = 0;
    if (*why) return why;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        snprintf(why, sizeof why, "there is no NVIDIA driver here: %s", dlerror());
        return why;
    }
    for (size_t i = 0; i < FUNCTIONS; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol) snprintf(why, sizeof why, "the NVIDIA driver is too old: it has no %s", functions[i].name);
        if (!symbol) return why;
        memcpy(functions[i].to, &symbol, sizeof symbol); /* ISO C has no cast for it */
    }
    int error = driver.init(0);
    if (!error) error = driver.count(&devices);
    if (error) snprintf(why, sizeof why, "the NVIDIA driver says: %s (%d)", error_text(error), error);
    else if (devices < 1) snprintf(why, sizeof why, "the NVIDIA driver finds no device");
    if (*why) return why;
    *count = devices;
    return NULL;
}

static int read_facts(int device, device_facts *f) {
    size_t bytes = 0;
    int cache = 0, error = driver.name(f->name, (int)sizeof f->name, device);
    if (!error) error = driver.attribute(&f->major, CAPABILITY_MAJOR, device);
    if (!error) error = driver.attribute(&f->minor, CAPABILITY_MINOR, device);
    if (!error) error = driver.attribute(&cache, L2_CACHE_BYTES, device);
    if (!error) error = driver.memory(&bytes, device);
    f->name[sizeof f->name - 1] = 0;
    f->memory_bytes = (int64_t)bytes;
    f->cache_bytes = cache;
    return error;
}

int device_list(device_facts *facts, int most, const char **why) {
    static char text[256];
    int count;
    *why = load_driver(&count);
    for (int i = 0; i < count && i < most; i++) {
        int device, error = driver.get(&device, i);
        if (!error) error = read_facts(device, &facts[i]);
        if (!error) continue;
        snprintf(text, sizeof text, "CUDA device %d cannot be described: %s", i, error_text(error));
        *why = text;
        return 0;
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------- open, close ---- */

static void close_device(void) {
    while (opened.blocks) device_free(opened.blocks->memory);
    if (!opened.is_cuda) return;
    driver.destroy_stream(opened.stream);
    driver.release(opened.device);
    opened.is_cuda = 0;
}

/* Frees what is left when the program ends. */
static void watch_end(void) {
    static int watched;
    if (!watched++) atexit(close_device);
}

void device_open(int64_t ordinal) {
    int count;
    void *context;
    if (opened.is_cuda) return;
    const char *why = load_driver(&count);
    if (why) die(END_RUNTIME, "the cuda backend needs a CUDA device, but %s", why);
    if (ordinal >= count)
        die(END_USAGE, "--device %lld: must lie in 0 .. %d, this machine has %d CUDA device%s", (long long)ordinal,
            count - 1, count, count == 1 ? "" : "s");
    opened.ordinal = (int)ordinal;
    check_driver(driver.get(&opened.device, opened.ordinal), "finding it", 0);
    check_driver(read_facts(opened.device, &opened.facts), "describing it", 0);
    /* The context that the library uses too, by the CUDA runtime: their memory and streams are the same. */
    check_driver(driver.retain(&context, opened.device), "opening it", 0);
    check_driver(driver.set_current(context), "opening it", 0);
    check_driver(driver.create_stream(&opened.stream, 0), "making a stream", 0);
    opened.is_cuda = 1;
    watch_end();
}

int device_is_cuda(void) {
    return opened.is_cuda;
}

void *device_stream(void) {
    return opened.stream;
}

device_facts device_opened(void) {
    device_facts host = {.memory_bytes = memory_bytes(), .cache_bytes = cache_bytes()};
    snprintf(host.name, sizeof host.name, "%s", cpu_name());
    return opened.is_cuda ? opened.facts : host;
}

void device_wait(void) {
    if (opened.is_cuda) check_driver(driver.wait(opened.stream), "a call", 0);
}

/* ---------------------------------------------------------------------------------------------------- memory ---- */

static void *take_on_cuda(size_t bytes, const char *what) {
    uintptr_t address = 0;
    const int error = driver.alloc(&address, bytes);
    if (error)
        die(END_RUNTIME, "no memory for %s: %zu bytes, CUDA device %d has %lld (%s)", what, bytes, opened.ordinal,
            (long long)opened.facts.memory_bytes, error_text(error));
    return (void *)address;
}

static void *take_on_host(size_t bytes, const char *what) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded);
    if (!memory) die(END_RUNTIME, "no memory for %s (%zu bytes)", what, rounded);
    memset(memory, 0, rounded); /* its pages are there before a clock runs */
    return memory;
}

void *device_take(int64_t bytes, const char *what) {
    const size_t size = bytes ? (size_t)bytes : 1;
    void *memory = opened.is_cuda ? take_on_cuda(size, what) : take_on_host(size, what);
    block *b = malloc(sizeof *b);
    if (!b) die(END_RUNTIME, "no memory for %s", what);
    *b = (block){opened.blocks, memory};
    opened.blocks = b;
    watch_end();
    return memory;
}

void device_free(void *memory) {
    block **at = &opened.blocks;
    while (*at && (*at)->memory != memory) at = &(*at)->next;
    if (!memory || !*at) return;
    block *b = *at;
    *at = b->next;
    free(b);
    if (!opened.is_cuda) free(memory);
    else if (driver.wait(opened.stream) == 0) driver.free((uintptr_t)memory); /* a device that failed has freed all */
}

void device_upload(void *to, const void *from, size_t bytes) {
    if (bytes == 0 || to == from) return;
    if (!opened.is_cuda) memcpy(to, from, bytes);
    else check_driver(driver.upload((uintptr_t)to, from, bytes, opened.stream), "a copy to it", bytes);
    device_wait();
}

void device_download(void *to, const void *from, size_t bytes) {
    if (bytes == 0 || to == from) return;
    if (!opened.is_cuda) memcpy(to, from, bytes);
    else check_driver(driver.download(to, (uintptr_t)from, bytes, opened.stream), "a copy from it", bytes);
    device_wait();
}

const void *device_array(const void *array, int64_t bytes, const char *what) {
    if (!array || !opened.is_cuda) return array;
    void *copy = device_take(bytes, what);
    device_upload(copy, array, (size_t)bytes);
    return copy;
}

void device_copy(void *to, const void *from, size_t bytes) {
    if (!opened.is_cuda) memcpy(to, from, bytes);
    else check_driver(driver.copy((uintptr_t)to, (uintptr_t)from, bytes, opened.stream), "a copy on it", bytes);
}
