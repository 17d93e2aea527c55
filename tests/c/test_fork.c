/* fork(): the child may destroy the contexts it has inherited, any other call on them is refused, and it may create its
 * own. */
#define _GNU_SOURCE /* usleep */
#include "counted.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { V = 4000, B = 3, CONTEXTS = 6 };
static float logits[B * V];

static fs_head stored_head(void) {
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
    return head;
}

static fs_status draw(fs_context *context, int32_t *tokens) {
    const fs_head head = stored_head();
    fs_batch batch = fs_batch_default();
    fs_result result = fs_result_default();
    batch.rows = B, rules_of(&batch)->top_p.value = 0.9f;
    result.tokens = tokens;
    return fs_sample(context, &head, &batch, &result);
}

static void run_in_turn(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    (void)user;
    for (int32_t i = 0; i < count; i++) task(arg, i);
}

/* Contexts of every kind, and their allocations. */
typedef struct contexts {
    fs_context *context[CONTEXTS];
    counter memory[CONTEXTS];
} contexts;

static void open_all(contexts *all) {
    static const int32_t threads[CONTEXTS] = {1, 2, 5, 2, 3, 1};
    rng r = random_from(71);
    for (int i = 0; i < B * V; i++) logits[i] = (float)random_normal(&r);
    for (int i = 0; i < CONTEXTS; i++) {
        fs_options options = counted_options(&all->memory[i], i == 5 ? FS_BACKEND_REFERENCE : FS_BACKEND_CPU);
        options.threads = threads[i];
        if (i == 4) options.parallel_for = run_in_turn;
        if (fs_context_create(&options, &all->context[i]) != FS_OK) fail_msg("%s", fs_error_text(NULL));
    }
}

static int destroy_all(contexts *all) {
    int64_t left = 0;
    for (int i = 0; i < CONTEXTS; i++) {
        fs_context_destroy(all->context[i]);
        left += all->memory[i].live_blocks;
    }
    return left == 0;
}

/* Whether `work` is true in a child, and ends within a minute. */
static int holds_in_a_child(int (*work)(void *arg), void *arg) {
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(work(arg) ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 0; /* no assertion: it may be a child itself that is here */
    if (WIFSIGNALED(status)) print_message("the child was ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int destroys(void *arg) {
    return destroy_all(arg);
}

/* Their threads asleep, which they are after some ms, or still looking for the next call; or without any call so
 * far. */
static void a_child_destroys_what_it_has_inherited(void **state) {
    (void)state;
    static contexts all;
    static int32_t tokens[CONTEXTS]
                         [B]; /* in the loop gcc 12 for x86-64 gives it the place of holds_in_a_child's status too */
    for (int how = 0; how < 3; how++) {
        int32_t again[B];
        open_all(&all);
        for (int i = 0; how && i < CONTEXTS; i++) assert_int_equal(draw(all.context[i], tokens[i]), FS_OK);
        if (how < 2) usleep(50000);
        assert_true(holds_in_a_child(destroys, &all));
        for (int i = 0; i < CONTEXTS; i++) {
            assert_int_equal(draw(all.context[i], again), FS_OK);
            if (how) assert_memory_equal(again, tokens[i], sizeof again);
        }
        assert_true(destroy_all(&all));
    }
}

typedef struct busy {
    fs_context *context;
    atomic_int calls, stop;
} busy;

static void *keep_drawing(void *arg) {
    busy *b = arg;
    int32_t tokens[B];
    while (!atomic_load(&b->stop)) {
        draw(b->context, tokens);
        atomic_fetch_add(&b->calls, 1);
    }
    return NULL;
}

static int destroys_one(void *arg) {
    fs_context_destroy(((busy *)arg)->context);
    return 1;
}

static void a_child_destroys_a_context_that_was_in_use(void **state) {
    (void)state;
    static contexts all;
    pthread_t thread;
    open_all(&all);
    busy b = {.context = all.context[2]};
    assert_int_equal(pthread_create(&thread, NULL, keep_drawing, &b), 0);
    while (atomic_load(&b.calls) < 2) usleep(1000);
    int held = 1;
    for (uint64_t i = 0; i < test_size(40) && held; i++) held = holds_in_a_child(destroys_one, &b);
    atomic_store(&b.stop, 1);
    pthread_join(thread, NULL);
    assert_true(held);
    assert_true(destroy_all(&all));
}

static int is_refused(const fs_context *context, fs_status status) {
    return status == FS_ERR_STATE && strstr(fs_error_text(context), "fork");
}

/* Every function that takes a context. */
static int refuses_all(fs_context *context) {
    _Alignas(64) static char memory[4096];
    const void *parts[1] = {memory};
    int32_t tokens[B] = {-7, -7, -7}, accepted[1] = {-7};
    size_t bytes = 7;
    const fs_head head = stored_head();
    fs_batch batch = fs_batch_default();
    fs_result result = fs_result_default();
    fs_ranks ranks = fs_ranks_default();
    batch.rows = B;
    result.tokens = tokens;
    fs_drafts drafts = fs_drafts_default();
    drafts.sequences = drafts.draft_length = 1;
    drafts.draft = drafts.target = tokens, drafts.accepted = accepted;
    int refused = is_refused(context, fs_sample(context, &head, &batch, &result));
    refused &= is_refused(context, fs_work_size(context, &head, &batch, &result, &bytes, NULL));
    refused &= is_refused(context, fs_partial_size(context, &head, &batch, &result, &bytes));
    refused &= is_refused(context, fs_partial(context, &head, &batch, &result, memory, sizeof memory));
    refused &= is_refused(context, fs_merge(context, &head, &batch, parts, 1, &result));
    refused &= is_refused(context, fs_sample_ranks(context, &ranks, &head, &batch, &result));
    refused &= is_refused(context, fs_context_set_work(context, memory, sizeof memory));
    refused &= is_refused(context, fs_context_set_stream(context, NULL));
    refused &= is_refused(context, fs_accept_drafts(context, &drafts));
    return refused && tokens[0] == -7 && tokens[B - 1] == -7 && accepted[0] == -7 && bytes == 7 &&
           strlen(fs_context_text(context)) > 0;
}

static int refuses(void *arg) {
    contexts *all = arg;
    int refused = 1;
    for (int i = 0; i < CONTEXTS; i++) refused &= refuses_all(all->context[i]);
    return refused && destroy_all(all);
}

static int refuses_as_a_grandchild(void *arg) {
    return holds_in_a_child(refuses, arg);
}

static void a_child_gets_an_error_for_any_other_call(void **state) {
    (void)state;
    static contexts all;
    int32_t tokens[B];
    open_all(&all);
    for (int i = 0; i < CONTEXTS; i++) assert_int_equal(draw(all.context[i], tokens), FS_OK);
    assert_true(holds_in_a_child(refuses, &all));
    assert_true(holds_in_a_child(refuses_as_a_grandchild, &all));
    for (int i = 0; i < CONTEXTS; i++) assert_int_equal(draw(all.context[i], tokens), FS_OK);
    assert_true(destroy_all(&all));
}

#ifdef __SANITIZE_THREAD__
enum { OWN_THREADS = 1 }; /* its runtime starts none after a fork */
#else
enum { OWN_THREADS = 3 };
#endif

static int draws_with_its_own(void *arg) {
    int32_t tokens[B];
    fs_options options = fs_options_default();
    fs_context *context;
    options.threads = OWN_THREADS;
    if (fs_context_create(&options, &context) != FS_OK) return 0;
    const int same = draw(context, tokens) == FS_OK && memcmp(tokens, arg, sizeof tokens) == 0;
    fs_context_destroy(context);
    return same;
}

static void a_child_draws_with_contexts_of_its_own(void **state) {
    (void)state;
    static contexts all;
    int32_t tokens[B];
    open_all(&all);
    assert_int_equal(draw(all.context[1], tokens), FS_OK);
    assert_true(holds_in_a_child(draws_with_its_own, tokens));
    assert_true(destroy_all(&all));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_destroys_what_it_has_inherited),
        cmocka_unit_test(a_child_destroys_a_context_that_was_in_use),
        cmocka_unit_test(a_child_gets_an_error_for_any_other_call),
        cmocka_unit_test(a_child_draws_with_contexts_of_its_own),
    };
    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
