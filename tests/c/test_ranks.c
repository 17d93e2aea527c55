/* test_ranks.c - fs_sample_ranks over a transport of the caller's own, here threads of this process: where there is no
 * MPI, and under the sanitizers. Calls are those of tests/ranks/calls.c; what MPI adds is tested in
 * tests/ranks/ranks_test.c. */
#define _POSIX_C_SOURCE 200112L
#include "alone.h"
#include "counted.h"

#include "calls.h"

#include <pthread.h>

enum { RANKS = 5 };

/* ----------------------------------------------------------------------------------------------- the transport ---- */

typedef struct world {
    int ranks;
    pthread_barrier_t barrier;
    int64_t *values[RANKS];
    int64_t count[RANKS];
    const char *mine[RANKS];
} world;

typedef struct peer {
    world *w;
    int rank;
    int fails; /* the next collective does not happen */
    fs_context *context;
    counter memory;
    const call *c;
    fs_status status;
    answer a;
    int64_t wire_bytes, fallback_rows;
    char text[512];
} peer;

static fs_status all_max(void *self, int64_t *values, int64_t count, void *stream) {
    peer *p = self;
    world *w = p->w;
    (void)stream;
    if (p->fails) return FS_ERR_PEER;
    w->values[p->rank] = values;
    w->count[p->rank] = count;
    pthread_barrier_wait(&w->barrier);
    int64_t *most = malloc((size_t)count * sizeof *most);
    for (int64_t i = 0; most && i < count; i++) {
        most[i] = values[i];
        for (int r = 0; r < w->ranks; r++)
            if (i < w->count[r] && w->values[r][i] > most[i]) most[i] = w->values[r][i];
    }
    pthread_barrier_wait(&w->barrier); /* everyone has read before anyone writes */
    if (most) memcpy(values, most, (size_t)count * sizeof *most);
    free(most);
    return FS_OK;
}

static fs_status all_gather(void *self, const void *mine, void *all, size_t bytes, void *stream) {
    peer *p = self;
    world *w = p->w;
    (void)stream;
    w->mine[p->rank] = mine;
    pthread_barrier_wait(&w->barrier);
    for (int r = 0; r < w->ranks; r++) memcpy((char *)all + (size_t)r * bytes, w->mine[r], bytes);
    pthread_barrier_wait(&w->barrier);
    return FS_OK;
}

static fs_ranks ranks_of(peer *p) {
    fs_ranks r = fs_ranks_default();
    r.rank = p->rank;
    r.count = p->w->ranks;
    r.self = p;
    r.all_max = all_max;
    r.all_gather = all_gather;
    return r;
}

static void *run_peer(void *arg) {
    peer *p = arg;
    const fs_ranks ranks = ranks_of(p);
    const fs_head shard = call_shard(p->c, p->rank);
    answer_clear(&p->a);
    fs_result result = call_result(p->c, &p->a);
    p->status = fs_sample_ranks(p->context, &ranks, &shard, &p->c->batch, &result);
    p->wire_bytes = counters_of(p->context).wire_bytes;
    p->fallback_rows = counters_of(p->context).fallback_rows;
    snprintf(p->text, sizeof p->text, "%s", fs_error_text(p->context));
    return NULL;
}

/* Makes the call on every rank at once; each may have been given a call of its own. */
static void together(world *w, peer *peers) {
    pthread_t thread[RANKS];
    for (int r = 0; r < w->ranks; r++) assert_int_equal(pthread_create(&thread[r], NULL, run_peer, &peers[r]), 0);
    for (int r = 0; r < w->ranks; r++) pthread_join(thread[r], NULL);
}

static void open_world_within(world *w, peer *peers, int ranks, size_t fallback_bytes) {
    memset(w, 0, sizeof *w);
    w->ranks = ranks;
    pthread_barrier_init(&w->barrier, NULL, (unsigned)ranks);
    for (int r = 0; r < ranks; r++) {
        memset(&peers[r], 0, sizeof peers[r]);
        peers[r].w = w;
        peers[r].rank = r;
        fs_options options = counted_options(&peers[r].memory, FS_BACKEND_CPU);
        options.threads = 1 + r % 2;
        options.fallback_bytes = fallback_bytes;
        if (fs_context_create(&options, &peers[r].context) != FS_OK) fail_msg("%s", fs_error_text(NULL));
    }
}

#define PLENTY (fs_options_default().fallback_bytes) /* as contexts have it that say nothing */

static void open_world(world *w, peer *peers, int ranks) {
    open_world_within(w, peers, ranks, PLENTY);
}

static void close_world(world *w, peer *peers) {
    for (int r = 0; r < w->ranks; r++) {
        fs_context_destroy(peers[r].context);
        assert_int_equal(peers[r].memory.live_blocks, 0);
    }
    pthread_barrier_destroy(&w->barrier);
}

/* ------------------------------------------------------------------------------------------------------- tests ---- */

static void every_result_is_that_of_one_call(void **state) {
    (void)state;
    static peer peers[RANKS];
    static answer whole;
    fs_context *alone = open_context(FS_BACKEND_CPU, 1, 0);
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        world w;
        open_world(&w, peers, ranks);
        for (uint64_t i = 0; i < test_size(200); i++) {
            const call c = random_call(1000000 + i, ranks);
            if (c.batch.mode == FS_MODE_GROUP_PARALLEL) continue; /* depends on the ranks */
            answer_clear(&whole);
            fs_result expected = call_result(&c, &whole);
            if (fs_sample(alone, &c.head, &c.batch, &expected) != FS_OK) fail_msg("%s", fs_error_text(alone));
            assert_int_equal(answer_forget_rounds(&whole, c.batch.rows), counters_of(alone).fallback_rows);
            for (int r = 0; r < ranks; r++) peers[r].c = &c;
            together(&w, peers);
            for (int r = 0; r < ranks; r++) {
                if (peers[r].status != FS_OK) fail_msg("call %d: %s", (int)i, peers[r].text);
                assert_int_equal(answer_forget_rounds(&peers[r].a, c.batch.rows), peers[r].fallback_rows);
                assert_memory_equal(&peers[r].a, &whole, sizeof whole);
                assert_int_equal(peers[r].wire_bytes, peers[0].wire_bytes);
            }
        }
        close_world(&w, peers);
    }
    fs_context_destroy(alone);
}

/* Six rows, the first `tied` of which are one large tie, which top-k with ties kept can prove only when every rank
 * sends all it has. */
static call tied_call(int64_t tied, int ranks) {
    enum { ROWS = 6, VOCAB = 3000 };
    static float logits[ROWS * VOCAB];
    rng r = random_from(21);
    call c;
    memset(&c, 0, sizeof c);
    for (int64_t i = 0; i < ROWS * VOCAB; i++) logits[i] = i < tied * VOCAB ? 0.0f : (float)random_normal(&r);
    c.head = fs_head_default();
    c.head.kind = FS_HEAD_LOGITS, c.head.data = logits, c.head.rows = VOCAB;
    c.batch = fs_batch_default();
    c.batch.rows = ROWS, rules_of(&c.batch)->top_k.value = 5, c.batch.flags = FS_KEEP_TIES;
    for (int i = 0; i <= ranks; i++) c.cut[i] = i < ranks ? 1008 * i : VOCAB;
    return c;
}

static void further_rounds_stay_within_their_budget(void **state) {
    (void)state;
    static peer peers[RANKS];
    static answer expected;
    size_t before[3], one = SIZE_MAX; /* what a call without further rounds takes, and such a round of one row */
    for (int i = 0; i < 5; i++) {
        const size_t budget = i == 0 ? FS_FALLBACK_NONE : i == 3 ? one - 1 : i == 4 ? one : PLENTY;
        const int64_t tied = i == 1 ? 1 : 3, incomplete = i == 0 || i == 3 ? tied : 0;
        const call c = tied_call(tied, 3);
        world w;
        open_world_within(&w, peers, 3, budget);
        for (int r = 0; r < 3; r++) peers[r].c = &c;
        together(&w, peers);
        for (int r = 0; r < 3; r++) {
            const uint32_t *status = peers[r].a.status;
            int64_t flagged = 0;
            assert_int_equal(peers[r].status, FS_OK);
            if (i == 0) before[r] = peers[r].memory.most;
            if (i == 1) one = peers[r].memory.most - before[r];
            assert_true(peers[r].memory.most - before[r] <= budget);
            for (int64_t b = 0; b < c.batch.rows; b++) flagged += (status[b] & FS_ROW_INCOMPLETE) != 0;
            assert_int_equal(flagged, incomplete);
            assert_int_equal(peers[r].fallback_rows, tied);
            assert_int_equal(answer_forget_rounds(&peers[r].a, c.batch.rows), tied);
            if (i == 2 && r == 0) expected = peers[r].a;
            for (int64_t b = 0; b < c.batch.rows && i > 1; b++)
                assert_int_equal(peers[r].a.token[b], status[b] & FS_ROW_INCOMPLETE ? -1 : expected.token[b]);
        }
        close_world(&w, peers);
    }
}

/* The list by y holds the whole vocabulary at once, the raw one, which an exact raw rank takes, does not. */
static void a_list_that_is_whole_does_not_keep_the_other_short(void **state) {
    (void)state;
    enum { V = 1500 };
    static float logits[V];
    const int64_t offset[] = {0, 1};
    const int32_t edited = 7, given = 1200;
    const float bias = 1.0f;
    int32_t token[2], rank[2];
    uint32_t status[2];
    for (int i = 0; i < V; i++) logits[i] = -0.001f * (float)i;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
    fs_batch batch = fs_batch_default();
    batch.rows = 1, batch.mode = FS_MODE_SCORE, batch.score_token = &given;
    batch.flags = FS_EXACT_RANK | FS_KEEP_TIES, rules_of(&batch)->top_k.value = V - 1;
    batch.edit_offset = offset, batch.edit_token = &edited, batch.edit_bias = &bias;
    const fs_ranks ranks = alone_ranks();
    for (int i = 0; i < 2; i++) {
        fs_result result = fs_result_default();
        result.tokens = &token[i], result.status = &status[i], result.rank = &rank[i],
        result.logits_mode = FS_LOGITS_RAW;
        assert_int_equal(i ? fs_sample_ranks(context, &ranks, &head, &batch, &result)
                           : fs_sample(context, &head, &batch, &result),
                         FS_OK);
        assert_int_equal(token[i], given);
        assert_int_equal(rank[i], given + 1);
        assert_int_equal(status[i] & ~(uint32_t)FS_ROW_FALLBACK, FS_ROW_OK);
    }
    fs_context_destroy(context);
}

static void ranks_that_differ_all_say_so(void **state) {
    (void)state;
    static peer peers[RANKS];
    world w;
    open_world(&w, peers, 3);
    call c = random_call(3, 3);
    c.batch.mode = FS_MODE_SAMPLE;
    c.batch.position = NULL;
    call other = c;
    for (int i = 0; i < 16; i++) {
        /* A shard that is new on this rank alone is something to say too; whose hash is the larger one is chance. */
        if (i % 2) fs_context_destroy(peers[2].context), peers[2].context = open_context(FS_BACKEND_CPU, 1, 0);
        other.batch.position_all++;
        for (int r = 0; r < 3; r++) peers[r].c = r == 2 ? &other : &c;
        together(&w, peers);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(peers[r].status, FS_ERR_PEER);
            assert_string_equal(peers[r].text, peers[0].text);
        }
        peers[2].c = &c;
        together(&w, peers);
        for (int r = 0; r < 3; r++) assert_int_equal(peers[r].status, FS_OK);
    }
    close_world(&w, peers);
}

/* Rank `failing` has this error of its own, the others are told whose it is, and nobody waits. */
static void expect_failure_of(const world *w, const peer *peers, int failing, fs_status own, const char *why) {
    char message[32];
    snprintf(message, sizeof message, "rank %d failed", failing);
    for (int r = 0; r < w->ranks; r++) {
        assert_int_equal(peers[r].status, r == failing ? own : FS_ERR_PEER);
        assert_non_null(strstr(peers[r].text, r == failing ? why : message));
    }
}

static void a_backend_that_knows_no_ranks_tells_the_others(void **state) {
    (void)state;
    static peer peers[RANKS];
    world w;
    open_world(&w, peers, 3);
    call c = random_call(3, 3);
    fs_context *cpu = peers[1].context;
    peers[1].context = open_context(FS_BACKEND_REFERENCE, 1, 0);
    for (int r = 0; r < 3; r++) peers[r].c = &c;
    together(&w, peers);
    expect_failure_of(&w, peers, 1, FS_ERR_UNSUPPORTED, "reference");
    fs_context_destroy(peers[1].context);
    peers[1].context = cpu;
    together(&w, peers);
    for (int r = 0; r < 3; r++) assert_int_equal(peers[r].status, FS_OK);
    close_world(&w, peers);
}

/* Two flat rows, whose nucleus no list of the usual length holds. */
static call wide_call(void) {
    static float logits[2 * MOST_V];
    call c = {.head = fs_head_default(), .batch = fs_batch_default(), .wants = 2, .logits = FS_LOGITS_CUT};
    c.head.kind = FS_HEAD_LOGITS, c.head.data = logits, c.head.rows = MOST_V;
    c.batch.rows = 2, rules_of(&c.batch)->top_p.value = 0.9f;
    c.cut[1] = 1504, c.cut[2] = MOST_V;
    return c;
}

/* The first tokens, the last ones, and all. */
static void tokens_of_no_rank_are_named(void **state) {
    (void)state;
    static peer peers[RANKS];
    world w;
    open_world(&w, peers, 2);
    call c = wide_call();
    const int64_t end = c.head.rows, cuts[][3] = {{16, 32, end}, {0, 16, end - 1}, {end, end, end}, {0, 16, end}};
    char message[3][64];
    snprintf(message[0], sizeof message[0], "tokens 0 to 15 belong to no rank");
    snprintf(message[1], sizeof message[1], "tokens %d to %d belong to no rank", (int)end - 1, (int)end - 1);
    snprintf(message[2], sizeof message[2], "tokens 0 to %d belong to no rank", (int)end - 1);
    for (int i = 0; i < 4; i++) {
        memcpy(c.cut, cuts[i], sizeof cuts[i]);
        for (int r = 0; r < 2; r++) peers[r].c = &c;
        together(&w, peers);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(peers[r].status, i == 3 ? FS_OK : FS_ERR_PEER);
            if (i < 3 && !strstr(peers[r].text, message[i])) fail_msg("'%s' is not '%s'", peers[r].text, message[i]);
        }
    }
    /* What was whole of one vocabulary is not of a larger one. */
    c.head.vocab = end + 1;
    together(&w, peers);
    for (int r = 0; r < 2; r++) assert_int_equal(peers[r].status, FS_ERR_PEER);
    close_world(&w, peers);
}

/* ------------------------------------------------------------------------------------------------------ memory ---- */

/* Work memory of the caller's for calls with lists of this length. */
static size_t work_bytes(peer *p, int32_t list_capacity) {
    size_t bytes;
    fs_batch batch = p->c->batch;
    fs_result result = call_result(p->c, &p->a);
    const fs_head shard = call_shard(p->c, p->rank);
    batch.list_capacity = list_capacity;
    assert_int_equal(fs_work_size(p->context, &shard, &batch, &result, &bytes, NULL), FS_OK);
    return bytes;
}

static void rounds_there_is_no_memory_for_leave_rows_incomplete(void **state) {
    (void)state;
    static peer peers[RANKS];
    _Alignas(64) static char memory[1 << 20];
    world w;
    open_world(&w, peers, 2);
    const call c = wide_call();
    for (int some = 0; some < 2; some++) { /* on one rank, or on none */
        for (int r = 0; r < 2; r++) peers[r].c = &c;
        const size_t bytes = (work_bytes(&peers[0], 1024) + work_bytes(&peers[0], MOST_V)) / 2;
        assert_true(bytes <= sizeof memory);
        if (some) assert_int_equal(fs_context_set_work(peers[0].context, memory, bytes), FS_OK);
        together(&w, peers);
        for (int r = 0; r < 2; r++) {
            if (peers[r].status != FS_OK) fail_msg("rank %d: %s", r, peers[r].text);
            for (int b = 0; b < 2; b++)
                assert_int_equal(peers[r].a.status[b], some ? FS_ROW_INCOMPLETE : FS_ROW_FALLBACK);
        }
    }
    close_world(&w, peers);
}

/* Memory to merge is there before the ranks meet, or the others would not know. */
static void a_rank_without_memory_to_merge_tells_the_others(void **state) {
    (void)state;
    static peer peers[RANKS];
    _Alignas(64) static char memory[1 << 20];
    world w;
    open_world(&w, peers, RANKS);
    call c = wide_call();
    c.batch.rows = 1;
    for (int r = 0; r < RANKS; r++) {
        peers[r].c = &c;
        c.cut[r + 1] = MOST_V / RANKS * (r + 1);
    }
    const size_t bytes = work_bytes(&peers[2], 0);
    assert_true(bytes <= sizeof memory);
    assert_int_equal(fs_context_set_work(peers[2].context, memory, bytes), FS_OK);
    together(&w, peers);
    expect_failure_of(&w, peers, 2, FS_ERR_MEMORY, "work memory");
    close_world(&w, peers);
}

static void a_transport_that_fails_is_an_error_with_a_text(void **state) {
    (void)state;
    static peer peers[RANKS];
    world w;
    open_world(&w, peers, 1);
    const call c = random_call(5, 1);
    peers[0].c = &c;
    peers[0].fails = 1;
    together(&w, peers);
    assert_int_equal(peers[0].status, FS_ERR_PEER);
    assert_non_null(strstr(peers[0].text, "does not say why"));
    /* What was wrong before says more. */
    call bad = c;
    bad.batch.rows = -1;
    peers[0].c = &bad;
    together(&w, peers);
    assert_int_equal(peers[0].status, FS_ERR_ARGUMENT);
    assert_non_null(strstr(peers[0].text, "batch.rows"));
    close_world(&w, peers);
}

static void bad_ranks_are_refused(void **state) {
    (void)state;
    static peer peers[RANKS];
    world w;
    open_world(&w, peers, 1);
    const call c = random_call(5, 1);
    answer a;
    fs_result result = call_result(&c, &a);
    fs_context *context = peers[0].context;
    for (int i = 0; i < 5; i++) {
        fs_ranks ranks = ranks_of(&peers[0]);
        if (i == 0) ranks.count = 0;
        if (i == 1) ranks.rank = 1;
        if (i == 2) ranks.all_gather = NULL;
        if (i == 3) ranks.size = 8;
        if (i == 4) ranks.device = 1;
        fs_status status = fs_sample_ranks(context, &ranks, &c.head, &c.batch, &result);
        assert_int_equal(status, i == 4 ? FS_ERR_UNSUPPORTED : FS_ERR_ARGUMENT);
        assert_non_null(strstr(fs_error_text(context), "ranks."));
    }
    assert_int_equal(fs_sample_ranks(context, NULL, &c.head, &c.batch, &result), FS_ERR_ARGUMENT);
    close_world(&w, peers);
}

static void the_online_groups_are_refused_on_every_rank(void **state) {
    (void)state;
    static peer peers[RANKS];
    world w;
    open_world(&w, peers, 2);
    call c = random_call(7, 2);
    c.batch.mode = FS_MODE_GROUP_ONLINE;
    c.batch.samples = 1;
    rules_of(&c.batch)->top_k.per_slot = NULL,
    rules_of(&c.batch)->top_p.per_slot = rules_of(&c.batch)->min_p.per_slot = NULL;
    for (int r = 0; r < 2; r++) peers[r].c = &c;
    together(&w, peers);
    for (int r = 0; r < 2; r++) assert_int_equal(peers[r].status, FS_ERR_UNSUPPORTED);
    close_world(&w, peers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_result_is_that_of_one_call),
        cmocka_unit_test(further_rounds_stay_within_their_budget),
        cmocka_unit_test(a_list_that_is_whole_does_not_keep_the_other_short),
        cmocka_unit_test(ranks_that_differ_all_say_so),
        cmocka_unit_test(a_backend_that_knows_no_ranks_tells_the_others),
        cmocka_unit_test(tokens_of_no_rank_are_named),
        cmocka_unit_test(rounds_there_is_no_memory_for_leave_rows_incomplete),
        cmocka_unit_test(a_rank_without_memory_to_merge_tells_the_others),
        cmocka_unit_test(a_transport_that_fails_is_an_error_with_a_text),
        cmocka_unit_test(bad_ranks_are_refused),
        cmocka_unit_test(the_online_groups_are_refused_on_every_rank),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
