/* parallel.c - see parallel.h. Threads are made per call (about 20 us each): every task here runs for milliseconds. */
#define _POSIX_C_SOURCE 200809L
#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>

#define MAX_THREADS 256

typedef struct job {
    void (*task)(void *arg, int i);
    void *arg;
    int count;
    atomic_int next;
} job;

static void *work(void *argument) {
    job *j = argument;
    for (int i; (i = atomic_fetch_add(&j->next, 1)) < j->count;) j->task(j->arg, i);
    return NULL;
}

void parallel_for(int threads, int count, void (*task)(void *arg, int i), void *arg) {
    job j = {task, arg, count, 0};
    pthread_t made[MAX_THREADS];
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    int n = 0;
    /* A thread that cannot be made is no failure: the others do its share. */
    while (n + 1 < threads && n + 1 < count && pthread_create(&made[n], NULL, work, &j) == 0) n++;
    work(&j);
    while (n > 0) pthread_join(made[--n], NULL);
}
