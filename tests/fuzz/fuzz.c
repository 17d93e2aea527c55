#define _DEFAULT_SOURCE
#include "fuzz.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(at, bytes) __asan_poison_memory_region(at, bytes)
#define UNPOISON(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
#define POISON(at, bytes) ((void)(at), (void)(bytes))
#define UNPOISON(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { COUNTERS = 16, SECONDS_PER_CASE = 120 };

/* Written by the process that runs cases, read by the one that watches it. */
typedef struct shared_state {
    volatile int64_t number, done;
    struct {
        const char *what;
        volatile int64_t count;
    } counter[COUNTERS];
} shared_state;

static struct {
    const char *name;
    uint64_t seed;
    int64_t first, calls;
    shared_state *shared;
} fuzz;

void fuzz_count(const char *what) {
    for (int i = 0; i < COUNTERS; i++) {
        if (!fuzz.shared->counter[i].what) fuzz.shared->counter[i].what = what;
        if (fuzz.shared->counter[i].what != what) continue;
        fuzz.shared->counter[i].count++;
        return;
    }
}

static void print_repeat(FILE *to) {
    fprintf(to, "%s: seed %llu, case %lld; once more: %s --seed %llu --first %lld --calls 1\n", fuzz.name,
            (unsigned long long)fuzz.seed, (long long)fuzz.shared->number, fuzz.name, (unsigned long long)fuzz.seed,
            (long long)fuzz.shared->number);
}

void fuzz_fault(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("fault: ");
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run(void (*one)(rng *r)) {
    for (int64_t i = fuzz.first; i < fuzz.first + fuzz.calls; i++) {
        rng r = {fuzz.seed * 0xD1B54A32D192ED03u + (uint64_t)i};
        r.state = random_next(&r);
        fuzz.shared->number = i;
        slab_reset();
        one(&r);
        slab_check();
        fuzz.shared->done++;
    }
}

/* Waits for the process that runs cases; a terminal sees it getting on, a log once a minute. Returns its exit status,
 * or that it had to be killed. */
static int watch(pid_t child, double start) {
    int status = 0;
    double printed = start, moved = start;
    int64_t last = -1;
    const struct timespec pause = {0, 50000000};
    for (;;) {
        const pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) return status;
        if (ended < 0 && errno != EINTR) return 1 << 8;
        nanosleep(&pause, NULL);
        const double t = now();
        if (fuzz.shared->number != last) last = fuzz.shared->number, moved = t;
        if (t - moved > SECONDS_PER_CASE) {
            printf("fault: a case runs for more than %d seconds\n", SECONDS_PER_CASE);
            kill(child, SIGKILL);
        }
        if (t - printed < (isatty(2) ? 3.0 : 60.0)) continue;
        printed = t;
        fprintf(stderr, "%s: %lld of %lld cases, %.1f a second\n", fuzz.name, (long long)fuzz.shared->done,
                (long long)fuzz.calls, (double)fuzz.shared->done / (t - start));
    }
}

static void report(double seconds, int faults) {
    const shared_state *b = fuzz.shared;
    printf("%s: seed %llu, %lld cases in %.1f s, %.0f a second, %d faults", fuzz.name, (unsigned long long)fuzz.seed,
           (long long)b->done, seconds, (double)b->done / seconds, faults);
    for (int i = 0; i < COUNTERS && b->counter[i].what; i++)
        printf("%s%lld %s", i ? ", " : ": ", (long long)b->counter[i].count, b->counter[i].what);
    printf("\n");
}

static int read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        char *end = NULL;
        const unsigned long long value = i + 1 < argc ? strtoull(argv[i + 1], &end, 0) : 0;
        if (!end || *end) return 0;
        if (strcmp(argv[i], "--calls") == 0) fuzz.calls = (int64_t)value;
        else if (strcmp(argv[i], "--seed") == 0) fuzz.seed = value;
        else if (strcmp(argv[i], "--first") == 0) fuzz.first = (int64_t)value;
        else return 0;
    }
    return 1;
}

int fuzz_main(int argc, char **argv, const char *name, int64_t calls, void (*one)(rng *r)) {
    const char *scale = getenv("FLASHSAMPLING_TEST_SCALE");
    fuzz.name = name;
    fuzz.seed = 1;
    fuzz.calls = scale ? (int64_t)((double)calls * strtod(scale, NULL)) + 1 : calls;
    if (!read_arguments(argc, argv)) {
        fprintf(stderr, "usage: %s [--calls N] [--seed S] [--first K]\n", name);
        return 2;
    }
    fuzz.shared = mmap(NULL, sizeof *fuzz.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fuzz.shared == MAP_FAILED) return 2;
    const double start = now();
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        run(one);
        exit(0); /* so that the leak sanitizer looks */
    }
    const int status = watch(child, start), fault = status != 0;
    if (fault && WIFSIGNALED(status)) printf("fault: ended by signal %d\n", WTERMSIG(status));
    if (fault) print_repeat(stdout);
    report(now() - start, fault);
    return fault;
}

/* -------------------------------------------------------------------------------------------------------- slab ---- */

enum { SLAB = 8 << 20, GUARD = 64, ARRAYS = 512 };

static _Alignas(64) unsigned char slab[SLAB];
static size_t slab_used;
static struct { size_t begin, end; } guard[ARRAYS];
static int guards;

static void add_guard(size_t begin, size_t end) {
    memset(slab + begin, 0xA7, end - begin);
    POISON(slab + begin, end - begin);
    guard[guards].begin = begin;
    guard[guards++].end = end;
    slab_used = end;
}

void slab_reset(void) {
    UNPOISON(slab, SLAB);
    guards = 0;
    slab_used = 0;
}

void *slab_take(size_t bytes, size_t off) {
    size_t begin = (slab_used + GUARD + 63) / 64 * 64 + off;
    if (bytes > SLAB || begin + bytes + 2 * GUARD + 64 > SLAB || guards + 2 > ARRAYS) return NULL;
    add_guard(slab_used, begin);
    add_guard(begin + bytes, begin + bytes + GUARD);
    return slab + begin;
}

void slab_check(void) {
    UNPOISON(slab, SLAB);
    for (int i = 0; i < guards; i++)
        for (size_t at = guard[i].begin; at < guard[i].end; at++)
            if (slab[at] != 0xA7) fuzz_fault("a byte outside of array %d was written", i / 2);
}
