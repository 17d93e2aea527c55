/* Threads: contexts share nothing mutable, a pool runs every task once, and odd numbers of threads work. */
#define _GNU_SOURCE /* sched_setaffinity */
#include "support.h"

#include "cpu/cpu_pass.h"
#include "cpu/cpu_threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { V = 3001, B = 5 };
static float logits[B * V];

static void draw(fs_context *context, uint64_t position, int32_t *tokens) {
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
    head.dim = -65536; /* which nobody may look at here */
    fs_batch batch = fs_batch_default();
    batch.rows = B, batch.position_all = position, rules_of(&batch)->top_p.value = 0.9137f;
    fs_result result = fs_result_default();
    result.tokens = tokens;
    if (fs_sample(context, &head, &batch, &result) != FS_OK) tokens[0] = -99;
}

/* What one thread draws with a context of its own. */
typedef struct work {
    int32_t threads;
    int32_t tokens[20][B];
} work;

static void *draw_many(void *arg) {
    work *w = arg;
    fs_options options = fs_options_default();
    options.threads = w->threads;
    fs_context *context = NULL;
    if (fs_context_create(&options, &context) != FS_OK) return NULL;
    for (int i = 0; i < 20; i++) draw(context, (uint64_t)i, w->tokens[i]);
    fs_context_destroy(context);
    return NULL;
}

static void contexts_in_many_threads_draw_the_same(void **state) {
    (void)state;
    rng r = random_from(2);
    for (int i = 0; i < B * V; i++) logits[i] = (float)random_normal(&r);
    static work w[6];
    pthread_t thread[6];
    for (int i = 0; i < 6; i++) {
        w[i].threads = 1 + i % 3;
        for (int k = 0; k < 20 * B; k++) w[i].tokens[k / B][k % B] = -7;
        assert_int_equal(pthread_create(&thread[i], NULL, draw_many, &w[i]), 0);
    }
    for (int i = 0; i < 6; i++) pthread_join(thread[i], NULL);
    for (int k = 0; k < 20 * B; k++) assert_in_range(w[0].tokens[k / B][k % B], 0, V - 1);
    for (int i = 1; i < 6; i++) assert_memory_equal(w[0].tokens, w[i].tokens, sizeof w[i].tokens);
}

static void count_up(void *arg, int32_t i) {
    atomic_fetch_add(&((atomic_int *)arg)[i], 1);
}

static double microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* Workers look for a while and then sleep, and so does who waits for them: jobs come at once, while they look, as they
 * fall asleep, and after. */
static void a_pool_runs_every_task_once(void **state) {
    (void)state;
    enum { MOST = 40 };
    const int32_t jobs = 1000 + (int32_t)test_size(19000);
    fs_context *context = open_context(FS_BACKEND_CPU, 1, 0);
    /* Nodes whose cores are nobody's: threads stay where they are, tasks are told apart. */
    fs_nodes nodes;
    memset(&nodes, 0, sizeof nodes);
    for (int32_t n = 0; n < FS_NODES; n++) nodes.cores[n] = 1 + n % 2;
    for (int32_t threads = 1; threads <= 5; threads++) {
        nodes.count = threads % 3;
        fs_threads *pool = fs_threads_start(context, threads, &nodes);
        assert_non_null(pool);
        for (int32_t job = 0; job < jobs; job++) {
            const int32_t count = job % MOST;
            atomic_int ran[MOST];
            for (int i = 0; i < MOST; i++) atomic_init(&ran[i], 0);
            for (double start = microseconds(); microseconds() - start < 0.1 * (job % 401);) {
            }
            fs_threads_run(pool, count, count_up, ran);
            for (int i = 0; i < MOST; i++) assert_int_equal(atomic_load(&ran[i]), i < count);
        }
        fs_threads_stop(context, pool);
    }
    fs_context_destroy(context);
}

/* Two threads fail in turn, each with a value of its own, and then both look. */
static pthread_barrier_t turn;

typedef struct failure {
    int32_t threads; /* what options.threads is, which is wrong */
    fs_status status;
    char before[512], after[512];
} failure;

static void *fail_to_create(void *arg) {
    failure *f = arg;
    fs_options options = fs_options_default();
    fs_context *context = NULL;
    options.threads = f->threads;
    snprintf(f->before, sizeof f->before, "%s", fs_error_text(NULL));
    if (f->threads == -6) pthread_barrier_wait(&turn);
    f->status = fs_context_create(&options, &context);
    if (f->threads == -5) pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    snprintf(f->after, sizeof f->after, "%s", fs_error_text(NULL));
    return NULL;
}

static void failures_without_a_context_are_told_per_thread(void **state) {
    (void)state;
    failure f[2] = {{.threads = -5}, {.threads = -6}};
    pthread_t thread[2];
    pthread_barrier_init(&turn, NULL, 2);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&thread[i], NULL, fail_to_create, &f[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&turn);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(f[i].status, FS_ERR_ARGUMENT);
        assert_string_equal(f[i].before, "");
        assert_non_null(strstr(f[i].after, i ? "-6" : "-5"));
    }
}

static int32_t default_threads(const cpu_set_t *cores) {
    assert_int_equal(sched_setaffinity(0, sizeof *cores, cores), 0);
    fs_context *context = open_context(FS_BACKEND_CPU, 0, 0);
    const int32_t tasks = ((fs_cpu *)context->state)->tasks;
    fs_context_destroy(context);
    return tasks;
}

static void threads_are_as_many_as_cores_we_may_use(void **state) {
    (void)state;
    cpu_set_t all, one;
    size_t core = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(core, &all)) core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    assert_int_equal(default_threads(&one), 1);
    assert_int_equal(default_threads(&all), CPU_COUNT(&all));
}

static pthread_t applications_thread;
static _Atomic int handled, elsewhere;

static void handle(int signal) {
    (void)signal;
    if (pthread_equal(pthread_self(), applications_thread)) handled++;
    else elsewhere++;
}

/* A timer's signals go to any thread that does not block them: half of them to a pool of two, if it did not. */
static void signal_handlers_run_on_the_applications_threads(void **state) {
    (void)state;
    applications_thread = pthread_self();
    const struct sigaction action = {.sa_handler = handle};
    struct sigaction before;
    sigset_t mask;
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    fs_context *context = open_context(FS_BACKEND_CPU, 4, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGALRM)); /* creating a context leaves the caller's mask as it was */
    const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; handled < 200 && i < 200000; i++) {
        int32_t tokens[B];
        draw(context, (uint64_t)i, tokens);
    }
    /* While the only thread that takes it is blocked, nobody else runs the handler. */
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    for (int i = 0; i < 100; i++) usleep(200);
    setitimer(ITIMER_REAL, &never, NULL);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    assert_true(handled >= 200);
    assert_int_equal(elsewhere, 0);
    fs_context_destroy(context);
    sigaction(SIGALRM, &before, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_in_many_threads_draw_the_same),
        cmocka_unit_test(a_pool_runs_every_task_once),
        cmocka_unit_test(failures_without_a_context_are_told_per_thread),
        cmocka_unit_test(threads_are_as_many_as_cores_we_may_use),
        cmocka_unit_test(signal_handlers_run_on_the_applications_threads),
    };
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
