#define _DEFAULT_SOURCE /* setenv */
/* The tokens that a cut leaves: those of the reference, in the total order, on random calls and in every mode; the same
 * for any threads and blocks, by a screen, and where a list is too short and takes a second pass. */
#include "random_call.h"
#include "screens.h"

enum { ROWS = 70, SAMPLES = 8, MOST = 6000, CONTEXTS = 3 };

typedef struct answer {
    fs_result result;
    int64_t tokens[ROWS * SAMPLES];
    uint32_t status[ROWS];
    int32_t count[ROWS], token[ROWS * MOST];
    float log_z[ROWS];
} answer;

static void must(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

/* `limit` below 0: nothing of survivors is asked; 0: only how many. */
static void ask(fs_context *context, const random_call *c, int32_t limit, int more, answer *a) {
    memset(a, 0x5A, sizeof *a);
    a->result = c->result;
    a->result.tokens = a->tokens, a->result.status = a->status;
    if (limit >= 0) a->result.survivor_count = a->count, a->result.survivor_limit = limit;
    if (limit > 0) a->result.survivor_token = a->token;
    if (more) a->result.log_z = a->log_z;
    must(context, fs_sample(context, &c->head, &c->batch, &a->result));
}

static int unlike(const answer *a, const answer *b) {
    return memcmp(a->count, b->count, sizeof a->count) != 0 || memcmp(a->token, b->token, sizeof a->token) != 0;
}

/* Calls whose cuts are of all kinds, wide ones among them. */
static void make_cuts(rng *r, random_call *c) {
    const int64_t most = random_below(r, 3) ? 300 : 6000;
    make_call_of(r, c, 1 + (int64_t)random_below(r, ROWS), 1 + (int64_t)random_below(r, (uint64_t)most));
    if (c->batch.mode == FS_MODE_GROUP_PARALLEL || c->batch.mode == FS_MODE_GROUP_ONLINE) return;
    if (random_below(r, 3) == 0) rules_of(&c->batch)->top_p.per_slot = c->top_p;
    if (random_below(r, 3) == 0) rules_of(&c->batch)->min_p.per_slot = c->min_p;
}

static void the_cpu_has_the_survivors_of_the_reference(void **state) {
    (void)state;
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    fs_context *cpu[CONTEXTS] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 2, 512),
                                 open_context(FS_BACKEND_CPU, 3, 128)};
    static answer expected, got, without;
    int64_t none = 0, few = 0, wide = 0, over = 0, again = 0;
    for (uint64_t seed = 0; seed < test_size(300); seed++) {
        rng r = random_from(seed);
        random_call c;
        make_cuts(&r, &c);
        const int32_t limits[] = {0, 1, 7, 100, MOST}, limit = limits[random_below(&r, 5)];
        const int more = (int)random_below(&r, 2);
        ask(reference, &c, limit, more, &expected);
        for (int i = 0; i < CONTEXTS; i++) {
            ask(cpu[i], &c, limit, more, &got);
            again += counters_of(cpu[i]).fallback_rows;
            for (int64_t b = 0; b < c.rows; b++)
                if (got.count[b] != expected.count[b])
                    fail_msg("call %llu, row %lld: %d survivors, reference %d, status 0x%x", (unsigned long long)seed,
                             (long long)b, got.count[b], expected.count[b], got.status[b]);
            if (unlike(&got, &expected)) fail_msg("call %llu: other survivors", (unsigned long long)seed);
        }
        ask(cpu[2], &c, -1, more, &without);
        assert_memory_equal(without.tokens, got.tokens, sizeof without.tokens);
        assert_memory_equal(without.log_z, got.log_z, sizeof without.log_z);
        for (int64_t b = 0; b < c.rows; b++) {
            none += got.count[b] == -1, few += got.count[b] > 0 && got.count[b] <= limit;
            over += limit && got.count[b] > limit, wide += got.count[b] > 1024;
        }
        free_call(&c);
    }
    if (test_size(300) >= 200) assert_true(none && few && wide && over && again);
    fs_context_destroy(reference);
    for (int i = 0; i < CONTEXTS; i++) fs_context_destroy(cpu[i]);
}

static void wrong_survivors_are_seen(void **state) {
    (void)state;
    static answer expected, got;
    memset(&expected, 0x5A, sizeof expected);
    expected.count[0] = 2, expected.token[0] = 9, expected.token[1] = 4;
    memcpy(&got, &expected, sizeof got);
    assert_int_equal(unlike(&got, &expected), 0);
    got.token[0] = 4, got.token[1] = 9; /* in another order */
    assert_int_equal(unlike(&got, &expected), 1);
    memcpy(&got, &expected, sizeof got);
    got.count[0] = 3;
    assert_int_equal(unlike(&got, &expected), 1);
    got.count[0] = 2, got.token[ROWS * MOST - 1] = -1; /* beyond what was asked */
    assert_int_equal(unlike(&got, &expected), 1);
}

/* ----------------------------------------------------------------------------------------------- one by one ---- */

enum { V = 21, KINDS = 9 };

/* Ids 3, 4, 5 are tied behind 2; 6 is banned. */
static void rows_of_every_kind(void **state) {
    (void)state;
    static float x[KINDS][V];
    static const float top_p[KINDS] = {1, 1, 1, 1, 1, 1, 1, 0.5f, 2.0f}, min_p[KINDS] = {0, 0, 0, 0.5f, 0, 0, 0, 0, 0};
    static const float temperature[KINDS] = {1, 1, 0, 1, 1, 1, 1, 1, 1};
    static const int32_t top_k[KINDS] = {0, 2, 3, 0, 1, 2, V, 0, 2}, slot[KINDS] = {0, 1, 2, 3, 4, -1, 6, 7, 8};
    static const int32_t counts[KINDS] = {-1, 2, 3, 4, 1, 0, -1, 1, 0};
    static const int64_t offset[KINDS + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const int32_t banned[KINDS] = {6, 6, 6, 6, 6, 6, 6, 6, 6};
    static const float bias[KINDS] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                                      -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    static const int32_t given[KINDS] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int b = 0; b < KINDS; b++)
        for (int v = 0; v < V; v++) x[b][v] = v == 2 ? 2.0f : v >= 3 && v <= 5 ? 1.75f : v == 6 ? 9.0f : 0.0f;
    x[7][2] = 12.0f, x[4][17] = INFINITY;
    for (int backend = FS_BACKEND_CPU; backend <= FS_BACKEND_REFERENCE; backend += 2)
        for (int mode = FS_MODE_SAMPLE; mode <= FS_MODE_SCORE; mode += FS_MODE_SCORE) {
            fs_context *context = open_context(backend, 2, 0);
            int32_t token[KINDS], count[KINDS], survivor[KINDS * 3 + 1];
            memset(survivor, 0x5A, sizeof survivor);
            fs_head head = fs_head_default();
            head.kind = FS_HEAD_LOGITS, head.data = x, head.rows = V;
            fs_batch batch = fs_batch_default();
            batch.rows = KINDS, batch.slot = slot, batch.slots = KINDS, batch.mode = mode, batch.score_token = given;
            fs_rules *rules = rules_of(&batch);
            rules->top_k.per_slot = top_k, rules->top_p.per_slot = top_p;
            rules->min_p.per_slot = min_p, rules->temperature.per_slot = temperature;
            batch.edit_offset = offset, batch.edit_token = banned, batch.edit_bias = bias;
            fs_result result = fs_result_default();
            result.tokens = mode == FS_MODE_SCORE ? NULL : token;
            result.survivor_count = count, result.survivor_token = survivor, result.survivor_limit = 3;
            must(context, fs_sample(context, &head, &batch, &result));
            const int32_t expected[KINDS][3] = {{-1, -1, -1}, {2, 3, -1},   {2, 3, 4},   {2, 3, 4},   {17, -1, -1},
                                                {-1, -1, -1}, {-1, -1, -1}, {2, -1, -1}, {-1, -1, -1}};
            assert_memory_equal(count, counts, sizeof counts);
            assert_memory_equal(survivor, expected, sizeof expected);
            assert_int_equal(survivor[KINDS * 3], 0x5A5A5A5A);
            batch.flags = FS_KEEP_TIES;
            must(context, fs_sample(context, &head, &batch, &result));
            assert_int_equal(count[1], 4);
            fs_context_destroy(context);
        }
}

/* Nuclei of thousands of tokens: a list does not hold them. */
static void wide_nuclei_have_all_their_survivors(void **state) {
    (void)state;
    enum { WIDE = 9001, B = 5 };
    static float x[B][WIDE];
    static int32_t survivor[2][B * WIDE], count[2][B];
    int32_t token[B];
    rng r = random_from(8);
    for (int i = 0; i < B * WIDE; i++) x[i / WIDE][i % WIDE] = (float)(0.5 * random_normal(&r));
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = x, head.rows = WIDE;
    fs_batch batch = fs_batch_default();
    batch.rows = B, rules_of(&batch)->top_p.value = 0.9137f;
    for (int32_t threads = 0; threads < 3; threads++) {
        fs_context *context = open_context(threads ? FS_BACKEND_CPU : FS_BACKEND_REFERENCE, threads ? threads : 1, 0);
        const int at = threads != 0;
        for (int call = 0; call < 3; call++) { /* contexts remember wide rows */
            fs_result result = fs_result_default();
            result.tokens = token, result.survivor_count = count[at], result.survivor_token = survivor[at];
            result.survivor_limit = WIDE;
            must(context, fs_sample(context, &head, &batch, &result));
            for (int b = 0; b < B; b++) assert_true(count[at][b] > 5000);
            assert_memory_equal(count[at], count[0], sizeof count[0]);
            assert_memory_equal(survivor[at], survivor[0], sizeof survivor[0]);
        }
        fs_context_destroy(context);
    }
}

/* A small temperature makes l of several tokens +inf, which min-p leaves all: their y differ. */
static void tokens_whose_l_overflows_survive_min_p(void **state) {
    (void)state;
    enum { N = 40 };
    static float x[N];
    int32_t token[2], count[2], survivor[2][N];
    uint32_t status[2];
    for (int v = 0; v < N; v++) x[v] = (float)(v + 1);
    for (int i = 0; i < 2; i++) {
        const float temperature = 1e-37f;
        fs_context *context = open_context(i ? FS_BACKEND_CPU : FS_BACKEND_REFERENCE, 1, 0);
        fs_head head = fs_head_default();
        head.kind = FS_HEAD_LOGITS, head.data = x, head.rows = N;
        fs_batch batch = fs_batch_default();
        fs_rules *rules = rules_of(&batch);
        batch.rows = 1, rules->temperature.per_slot = &temperature, rules->min_p.value = 0.25f, rules->top_k.value = 30;
        fs_result result = fs_result_default();
        result.tokens = &token[i], result.status = &status[i], result.survivor_count = &count[i];
        result.survivor_token = survivor[i], result.survivor_limit = N;
        must(context, fs_sample(context, &head, &batch, &result));
        fs_context_destroy(context);
    }
    assert_int_equal(status[1], FS_ROW_INF);
    assert_int_equal(token[1], token[0]);
    assert_int_equal(count[0], 6);
    assert_int_equal(count[1], 6);
    assert_memory_equal(survivor[1], survivor[0], sizeof survivor[0]);
}

/* Lists of a screen's rows are proven by bounds. */
static void a_screen_leaves_the_same_survivors(void **state) {
    (void)state;
    enum { B = 12, LIMIT = 50 };
    setenv("FLASHSAMPLING_SCREEN_ROWS", "4096", 1); /* more rows of a call than pay */
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    unsetenv("FLASHSAMPLING_SCREEN_ROWS");
    const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
    screened_head s = make_screened(context, NORMAL, 5003, 136, B, 20.0, &o);
    int64_t by_screen = 0;
    for (int i = 0; i < 8; i++) {
        int32_t token[2][B], count[2][B], survivor[2][B * LIMIT];
        float entropy[B];
        memset(survivor, 0x5A, sizeof survivor);
        fs_batch batch = fs_batch_default();
        batch.rows = B, batch.hidden = s.h, batch.hidden_dtype = FS_BF16, batch.seed_all = (uint64_t)i;
        if (i % 2) rules_of(&batch)->min_p.value = 0.02f;
        else rules_of(&batch)->top_k.value = 20;
        for (int screened = 0; screened < 2; screened++) {
            fs_head head = s.head;
            head.screen = screened ? s.screen : NULL, head.screen_bytes = screened ? s.bytes : 0;
            fs_result result = fs_result_default();
            result.tokens = token[screened], result.survivor_count = count[screened];
            result.survivor_token = survivor[screened], result.survivor_limit = LIMIT;
            if (i >= 6) result.entropy = entropy;
            must(context, fs_sample(context, &head, &batch, &result));
            const int64_t rows = counters_of(context).screened_rows;
            if (i >= 6) assert_int_equal(rows, 0);
            by_screen += rows;
        }
        assert_memory_equal(token[0], token[1], sizeof token[0]);
        assert_memory_equal(count[0], count[1], sizeof count[0]);
        assert_memory_equal(survivor[0], survivor[1], sizeof survivor[0]);
    }
    assert_true(by_screen > 0);
    free_screened(&s);
    fs_context_destroy(context);
}

static void expect(fs_context *context, fs_status status, fs_status expected, const char *text) {
    assert_int_equal(status, expected);
    if (!strstr(fs_error_text(context), text)) fail_msg("'%s' does not name %s", fs_error_text(context), text);
}

static void what_is_refused_is_named(void **state) {
    (void)state;
    static const float x[32];
    static int32_t survivor[4] = {7, 7, 7, 7};
    int32_t token;
    size_t bytes;
    fs_context *cpu = open_context(FS_BACKEND_CPU, 1, 0);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = x, head.rows = 32;
    fs_batch batch = fs_batch_default();
    batch.rows = 1;
    fs_result result = fs_result_default();
    result.tokens = &token, result.survivor_token = survivor;
    expect(cpu, fs_sample(cpu, &head, &batch, &result), FS_ERR_ARGUMENT, "survivor_limit is 0, must be 1 to 1048576");
    result.survivor_limit = 1048577;
    expect(cpu, fs_sample(cpu, &head, &batch, &result), FS_ERR_ARGUMENT, "survivor_limit is 1048577");
    result.survivor_limit = -1;
    expect(cpu, fs_sample(cpu, &head, &batch, &result), FS_ERR_ARGUMENT, "survivor_limit is -1");
    result.survivor_limit = 4, result.survivor_token = (int32_t *)(void *)((char *)survivor + 1);
    expect(cpu, fs_sample(cpu, &head, &batch, &result), FS_ERR_ARGUMENT, "result.survivor_token is");
    result.survivor_token = NULL, result.survivor_count = survivor;
    expect(cpu, fs_partial_size(cpu, &head, &batch, &result, &bytes), FS_ERR_UNSUPPORTED, "survivor_count");
    for (int i = 0; i < 4; i++) assert_int_equal(survivor[i], 7);
    fs_context_destroy(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_has_the_survivors_of_the_reference),
        cmocka_unit_test(wrong_survivors_are_seen),
        cmocka_unit_test(rows_of_every_kind),
        cmocka_unit_test(wide_nuclei_have_all_their_survivors),
        cmocka_unit_test(tokens_whose_l_overflows_survive_min_p),
        cmocka_unit_test(a_screen_leaves_the_same_survivors),
        cmocka_unit_test(what_is_refused_is_named),
    };
    return cmocka_run_group_tests_name("survivors", tests, NULL, NULL);
}
