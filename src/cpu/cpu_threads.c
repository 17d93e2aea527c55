#define _GNU_SOURCE /* sched_getaffinity */
#include "cpu_threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

struct fs_threads {
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    pthread_t *worker;
    int32_t workers;
    /* The job, guarded by the mutex; `next` is taken without it. */
    uint64_t generation;
    int32_t count, busy;
    int stop;
    void (*task)(void *arg, int32_t i);
    void *arg;
    atomic_int next;
};

static void work(fs_threads *pool) {
    for (;;) {
        int32_t i = atomic_fetch_add(&pool->next, 1);
        if (i >= pool->count) return;
        pool->task(pool->arg, i);
    }
}

static void *worker_main(void *arg) {
    fs_threads *pool = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->generation == seen && !pool->stop) pthread_cond_wait(&pool->wake, &pool->mutex);
        if (pool->stop) break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->mutex);
        work(pool);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->busy == 0) pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

int32_t fs_threads_available(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

fs_threads *fs_threads_start(fs_context *context, int32_t threads) {
    fs_threads *pool = fs_context_alloc(context, sizeof *pool, "the thread pool");
    if (!pool) return NULL;
    memset(pool, 0, sizeof *pool);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    if (threads > 1) {
        pool->worker = fs_context_alloc(context, (size_t)(threads - 1) * sizeof *pool->worker, "the thread handles");
        if (!pool->worker) goto failed;
    }
    while (pool->workers < threads - 1) {
        int error = pthread_create(&pool->worker[pool->workers], NULL, worker_main, pool);
        if (error) {
            fs_fail(context, FS_ERR_MEMORY, "cannot start thread %d of %d: %s", pool->workers + 2, threads,
                    strerror(error));
            goto failed;
        }
        pool->workers++;
    }
    return pool;
failed:
    fs_threads_stop(context, pool);
    return NULL;
}

void fs_threads_stop(fs_context *context, fs_threads *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 0; i < pool->workers; i++) pthread_join(pool->worker[i], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    fs_context_free(context, pool->worker);
    fs_context_free(context, pool);
}

void fs_threads_run(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    fs_threads *pool = user;
    pthread_mutex_lock(&pool->mutex);
    pool->task = task;
    pool->arg = arg;
    pool->count = count;
    pool->busy = pool->workers;
    atomic_store(&pool->next, 0);
    pool->generation++;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    work(pool);
    /* A worker may still be inside its last task, and must have left work() before `next` is reset. */
    pthread_mutex_lock(&pool->mutex);
    while (pool->busy > 0) pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}
