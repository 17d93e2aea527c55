#define _GNU_SOURCE /* sched_getaffinity */
#include "cpu_threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

/* How often a thread looks for the next job, or for the end of this one, before it sleeps: waking it takes longer than
 * most jobs. Some 17 us on Emerald Rapids, and 20 times that inside a call, which is several jobs; not at all where
 * threads outnumber cores. Longer, and whoever has the cores after a call is held up (docs/notes/cpu-threads.md). */
#define FS_LOOKS 400
#define FS_LOOKS_INSIDE 8000

struct fs_threads {
    pthread_mutex_t mutex; /* of those who sleep */
    pthread_cond_t wake, done;
    pthread_t *worker;
    int32_t threads, workers, looks_at_all;
    atomic_int looks;
    const fs_nodes *nodes;
    int32_t homes;    /* nodes whose tasks are told apart, at least 1 */
    atomic_int bound; /* workers that have a node */
    /* The job: read by those who have taken a task of it, and written when all of them have ended. Nobody waits for a
     * worker that took none: on a machine that others use too, some thread is always late. */
    void (*task)(void *arg, int32_t i);
    void *arg;
    int32_t end[FS_NODES];     /* a node's tasks are those below, behind the node's before */
    atomic_int left[FS_NODES]; /* tasks of it that nobody has taken */
    atomic_int open;           /* tasks that have not ended */
    atomic_ullong generation;
    atomic_int asleep, waiting, stop;
};

/* Between looks; now and then for somebody else's sake. */
static void look_away(int32_t i) {
    if (i % 16 == 15) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield returns at once */
#endif
}

/* One task of node n, if there is any left; of a later job than the one whose number was seen here, if that has begun
 * meanwhile. */
static int take(fs_threads *pool, int32_t n, int32_t *i) {
    int left = atomic_load(&pool->left[n]);
    while (left && !atomic_compare_exchange_weak(&pool->left[n], &left, left - 1)) {
    }
    if (left) *i = pool->end[n] - left;
    return left > 0;
}

/* Its own node's tasks, then what others have left. Who ends the last one wakes who waits for that. */
static void work(fs_threads *pool, int32_t home) {
    for (int32_t k = 0; k < pool->homes; k++)
        for (int32_t i; take(pool, (home + k) % pool->homes, &i);) {
            pool->task(pool->arg, i);
            if (atomic_fetch_sub(&pool->open, 1) > 1 || !atomic_load(&pool->waiting)) continue;
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
}

/* The generation after `seen`. Who gives it out looks for sleepers afterwards, and a sleeper looks for it once it is
 * counted: one of them sees the other. */
static unsigned long long next_generation(fs_threads *pool, unsigned long long seen) {
    unsigned long long now = atomic_load(&pool->generation);
    for (int32_t i = 0; i < atomic_load(&pool->looks) && now == seen; i++, now = atomic_load(&pool->generation))
        look_away(i);
    if (now != seen) return now;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->asleep, 1);
    while ((now = atomic_load(&pool->generation)) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->mutex);
    return now;
}

static void start_generation(fs_threads *pool) {
    atomic_fetch_add(&pool->generation, 1);
    if (!atomic_load(&pool->asleep)) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

/* As above: who waits says so and looks, who ends the last task ends it and looks. */
static void wait_for_tasks(fs_threads *pool) {
    for (int32_t i = 0; i < atomic_load(&pool->looks) && atomic_load(&pool->open); i++) look_away(i);
    if (!atomic_load(&pool->open)) return;
    pthread_mutex_lock(&pool->mutex);
    /* Not by a store: under qemu-user 7.2 on x86-64 the load behind it may pass it, and the last task is missed. */
    atomic_exchange(&pool->waiting, 1);
    while (atomic_load(&pool->open)) pthread_cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->waiting, 0);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *arg) {
    fs_threads *pool = arg;
    int32_t home = 0;
    if (pool->homes > 1) { /* the caller is thread 0 */
        home = fs_nodes_home(pool->nodes, 1 + atomic_fetch_add(&pool->bound, 1), pool->threads);
        fs_nodes_bind(pool->nodes, home);
    }
    for (unsigned long long seen = 0;;) {
        seen = next_generation(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        work(pool, home);
    }
}

int32_t fs_threads_available(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

void fs_threads_stay(fs_threads *pool, int stay) {
    if (!pool || !pool->looks_at_all) return;
    atomic_store(&pool->looks, stay ? FS_LOOKS_INSIDE : FS_LOOKS);
    if (stay) start_generation(pool);
}

/* Workers block every signal but those of a fault of their own: the application's handlers run on its own threads. */
static int start_workers(fs_threads *pool) {
    static const int fault[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    int error = 0;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof fault / sizeof fault[0]; i++) sigdelset(&blocked, fault[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* a thread begins with its creator's mask */
    while (pool->workers < pool->threads - 1 &&
           !(error = pthread_create(&pool->worker[pool->workers], NULL, worker_main, pool)))
        pool->workers++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

fs_threads *fs_threads_start(fs_context *context, int32_t threads, const fs_nodes *nodes) {
    fs_threads *pool = fs_context_alloc(context, sizeof *pool, "the thread pool");
    if (!pool) return NULL;
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->looks_at_all = threads <= fs_threads_available();
    fs_threads_stay(pool, 0);
    pool->nodes = nodes;
    pool->homes = nodes->count > 1 ? nodes->count : 1;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    if (threads > 1) {
        pool->worker = fs_context_alloc(context, (size_t)(threads - 1) * sizeof *pool->worker, "the thread handles");
        if (!pool->worker) goto failed;
    }
    const int error = start_workers(pool);
    if (error) {
        fs_fail(context, FS_ERR_MEMORY, "cannot start thread %d of %d: %s", pool->workers + 2, threads,
                strerror(error));
        goto failed;
    }
    return pool;
failed:
    fs_threads_stop(context, pool);
    return NULL;
}

void fs_threads_stop(fs_context *context, fs_threads *pool) {
    if (!pool) return;
    if (!fs_context_inherited(
            context)) { /* else the workers are another process's, and whoever waits there is waited for here */
        atomic_store(&pool->stop, 1);
        start_generation(pool);
        for (int32_t i = 0; i < pool->workers; i++) pthread_join(pool->worker[i], NULL);
        pthread_mutex_destroy(&pool->mutex);
        pthread_cond_destroy(&pool->wake);
        pthread_cond_destroy(&pool->done);
    }
    fs_context_free(context, pool->worker);
    fs_context_free(context, pool);
}

void fs_threads_run(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    fs_threads *pool = user;
    pool->task = task;
    pool->arg = arg;
    atomic_store(&pool->open, count);
    for (int32_t n = 0, i = 0; n < pool->homes; n++) {
        const int32_t first = i;
        while (i < count && (pool->homes == 1 || fs_nodes_home(pool->nodes, i, count) == n)) i++;
        pool->end[n] = i;
        atomic_store(&pool->left[n], i - first);
    }
    start_generation(pool);
    work(pool, pool->homes > 1 ? fs_nodes_here(pool->nodes) : 0);
    wait_for_tasks(pool);
}
