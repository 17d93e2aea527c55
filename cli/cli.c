/* cli.c - see cli.h. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT, _SC_LEVEL3_CACHE_SIZE */
#include "cli.h"
#include "device.h"
#include "print.h"
#include "ranks.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *command = "";

void set_command(const char *name) {
    command = name;
}

void die(int code, const char *format, ...) {
    va_list list;
    progress_end();
    fflush(stdout); /* so that the message comes after what was printed before it */
    if (code == END_USAGE && launch_rank() > 0) exit(code); /* rank 0 says the same */
    fprintf(stderr, "flashsample%s%s: ", *command ? " " : "", command);
    if (launched()) fprintf(stderr, "rank %d: ", launch_rank());
    char text[4096];
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    print_visible(stderr, text);
    fputc('\n', stderr);
    exit(code);
}

void finish(int code) {
    if (fflush(stdout) != 0 || ferror(stdout)) die(END_RUNTIME, "writing to stdout failed");
    exit(code);
}

/* ---------------------------------------------------------------------------------------------------- memory ---- */

typedef struct block {
    struct block *next;
    void *memory;
} block;

static block *blocks;

static void free_blocks(void) {
    while (blocks) {
        block *next = blocks->next;
        free(blocks->memory);
        free(blocks);
        blocks = next;
    }
}

void keep_memory(void *memory) {
    block *b = malloc(sizeof *b);
    if (!b) die(END_RUNTIME, "no memory");
    if (!blocks) atexit(free_blocks);
    *b = (block){blocks, memory};
    blocks = b;
}

void *take_memory(int64_t count, size_t size, const char *what) {
    if (count < 0 || (uint64_t)count > (SIZE_MAX >> 1) / size) die(END_RUNTIME, "no memory for %s: too large", what);
    size_t bytes = ((size_t)count * size + 64) / 64 * 64;
    /* An overcommitting system would grant it and kill us when it is touched. */
    if (memory_bytes() > 0 && bytes > (size_t)memory_bytes())
        die(END_RUNTIME, "no memory for %s: %zu bytes, the machine has %lld", what, bytes, (long long)memory_bytes());
    void *memory = aligned_alloc(64, bytes);
    if (!memory) die(END_RUNTIME, "no memory for %s (%zu bytes)", what, bytes);
    memset(memory, 0, bytes);
    keep_memory(memory);
    return memory;
}

/* --------------------------------------------------------------------------------------------------- machine ---- */

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int64_t cache_bytes(void) {
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? bytes : 0;
}

int64_t memory_bytes(void) {
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

const char *cpu_name(void) {
    static char name[128] = "unknown CPU";
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return name;
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value) {
            value[strcspn(value, "\n")] = 0;
            snprintf(name, sizeof name, "%.120s", value + 2);
            break;
        }
    }
    fclose(file);
    return name;
}

/* --------------------------------------------------------------------------------------------------- context ---- */

const char *const backend_names[] = {"auto", "cpu", "cuda", "reference", NULL};

context_args context_args_default(void) {
    context_args a = {.fallback_mib = -1};
    return a;
}

static void log_line(void *user, const char *line) {
    (void)user;
    fputs("flashsample: ", stderr);
    print_visible(stderr, line);
    fputc('\n', stderr);
}

/* A command may open several contexts (one per kernel, one per thread count). */
static struct {
    fs_context *context[64];
    int count;
} opened;

static void close_contexts(void) {
    while (opened.count > 0) fs_context_destroy(opened.context[--opened.count]);
}

/* Opens the device of the context, where it is not the host: its stream is the context's. */
static void open_device(const context_args *args, fs_options *o) {
    const fs_call_desc any = fs_call_desc_default();
    const char *forced = getenv("FLASHSAMPLING_BACKEND"), *why;
    if (forced ? strcmp(forced, "cuda") != 0 : args->backend != FS_BACKEND_CUDA) return;
    if (launched()) die(END_USAGE, "the cuda backend runs on one device: not under mpirun, whose ranks are of the CPU");
    if (fs_supports(FS_BACKEND_CUDA, &any, &why) != FS_OK) {
        if (forced) return; /* the library says so */
        die(END_RUNTIME, "--backend cuda: %s; make cuda builds a flashsample that has it", why);
    }
    device_open(args->device);
    o->cuda_stream = device_stream();
}

fs_counters counters_of(fs_context *context) {
    fs_counters counters = fs_counters_default();
    check(context, fs_context_counters(context, &counters));
    return counters;
}

fs_context *open_context(const context_args *args) {
    fs_options o = fs_options_default();
    o.backend = args->backend;
    o.device = (int32_t)args->device;
    o.threads = (int32_t)args->threads;
    if (!o.threads && launched()) o.threads = cores_of_rank();
    o.block = (int32_t)args->block;
    if (args->fallback_mib >= 0) o.fallback_bytes = (size_t)args->fallback_mib << 20;
    if (args->fallback_mib == 0) o.fallback_bytes = FS_FALLBACK_NONE;
    if (args->verbose) o.log = log_line;
    fs_context *context;
    check_transport();
    open_device(args, &o);
    check(NULL, fs_context_create(&o, &context));
    if (opened.count == 0) atexit(close_contexts);
    if (opened.count == 64) die(END_RUNTIME, "more than 64 contexts");
    opened.context[opened.count++] = context;
    return context;
}

void check(fs_context *context, fs_status status) {
    if (status == FS_OK) return;
    int code = status == FS_ERR_ARGUMENT || status == FS_ERR_ENVIRONMENT ? END_USAGE : END_RUNTIME;
    die(code, "%s error: %s", fs_status_text(status), fs_error_text(context));
}
