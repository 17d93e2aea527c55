/* The CPU backend against the reference on random calls, and shards against the whole. Logits are exact in float on
 * both sides, so tokens must be equal, not close. */
#include "random_call.h"

#include "core/needs.h"

static int close_enough(float a, float b) {
    if (a != a || b != b) return a != a && b != b;
    if (a == b) return 1;
    return fabsf(a - b) <= 2e-6f + 1e-6f * fabsf(b);
}

static void compare_floats(const char *name, uint64_t seed, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!close_enough(a[i], b[i]))
            fail_msg("call %llu: %s[%zu] is %.9g, reference %.9g", (unsigned long long)seed, name, i, (double)a[i],
                     (double)b[i]);
}

#define COMPARE_INTS(name)                                                                                             \
    for (size_t i = 0; i < sizeof a->name / sizeof a->name[0]; i++)                                                    \
        if (a->name[i] != b->name[i])                                                                                  \
    fail_msg("call %llu: " #name "[%zu] is %lld, reference %lld", (unsigned long long)seed, i, (long long)a->name[i],  \
             (long long)b->name[i])
#define COMPARE_FLOATS(name) compare_floats(#name, seed, a->name, b->name, sizeof a->name / sizeof a->name[0])

/* Bits about how a row was computed: the reference never needs a second pass and always knows ranks. */
#define ONLY_OURS (FS_ROW_FALLBACK | FS_ROW_RANK_BOUND)

/* A rank is the reference's, or a bound of it beyond the depth that is promised; then the row says so, and no exact one
 * was asked for. */
static void compare_ranks(uint64_t seed, const random_call *c, const outputs *a, const outputs *b) {
    int beyond[64] = {0};
    for (size_t i = 0; i < sizeof a->rank / sizeof a->rank[0]; i++) {
        const size_t row = i / (size_t)c->batch.samples;
        const int deep = row < (size_t)c->rows && a->rank[i] > FS_RANK_DEPTH;
        const int bounded = deep && (a->status[row] & FS_ROW_RANK_BOUND) != 0;
        if (deep) beyond[row]++;
        if (bounded ? a->rank[i] > b->rank[i] : a->rank[i] != b->rank[i])
            fail_msg("call %llu: rank[%zu] is %d, reference %d; token %d, %s", (unsigned long long)seed, i, a->rank[i],
                     b->rank[i], ((const int32_t *)a->tokens)[i],
                     b->result.logits_mode == FS_LOGITS_RAW ? "raw" : "processed");
    }
    for (int64_t row = 0; row < c->rows; row++)
        if (a->status[row] & FS_ROW_RANK_BOUND && (!beyond[row] || c->batch.flags & FS_EXACT_RANK))
            fail_msg("call %llu: row %lld has a bound for a rank", (unsigned long long)seed, (long long)row);
}

static void compare_outputs(uint64_t seed, const random_call *c, const outputs *a, const outputs *b) {
    for (size_t i = 0; i < 64; i++) {
        uint32_t keep = i < (size_t)c->rows ? ~(uint32_t)ONLY_OURS : ~0u;
        if ((a->status[i] & keep) != (b->status[i] & keep))
            fail_msg("call %llu: status[%zu] is 0x%x, reference 0x%x", (unsigned long long)seed, i, a->status[i],
                     b->status[i]);
    }
    COMPARE_INTS(tokens);
    COMPARE_INTS(top_token);
    COMPARE_FLOATS(score);
    COMPARE_FLOATS(logit);
    COMPARE_FLOATS(logprob);
    COMPARE_FLOATS(max_logit);
    COMPARE_FLOATS(log_z);
    COMPARE_FLOATS(top_logit);
    COMPARE_FLOATS(top_logprob);
    COMPARE_FLOATS(watch_logit);
    COMPARE_FLOATS(watch_logprob);
    compare_ranks(seed, c, a, b);
}

static void sample(fs_context *context, const random_call *c, outputs *o) {
    if (fs_sample(context, &c->head, &c->batch, &o->result) != FS_OK) fail_msg("%s", fs_error_text(context));
}

static void cpu_draws_what_the_reference_draws(void **state) {
    (void)state;
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    fs_context *cpu[3] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 3, 128),
                          open_context(FS_BACKEND_CPU, 2, 512)};
    static outputs expected, got;
    const uint64_t calls = test_size(1500);
    int64_t fallbacks = 0;
    for (uint64_t seed = 0; seed < calls; seed++) {
        rng r = random_from(seed);
        random_call c;
        make_call(&r, &c);
        uint32_t wanted = (uint32_t)random_next(&r);
        prepare_outputs(&c, wanted, &expected);
        prepare_outputs(&c, wanted, &got);
        sample(reference, &c, &expected);
        sample(cpu[seed % 3], &c, &got);
        fallbacks += counters_of(cpu[seed % 3]).fallback_rows;
        compare_outputs(seed, &c, &got, &expected);
        free_call(&c);
    }
    /* One call in a hundred takes the second pass: among enough of them some must have, or this test does not see
     * it. */
    if (calls >= 500) assert_true(fallbacks > 0);
    fs_context_destroy(reference);
    for (int i = 0; i < 3; i++) fs_context_destroy(cpu[i]);
}

/* The same calls cut into shards, with boundaries anywhere: tokens are equal, masses agree. */
static void shards_draw_what_the_whole_draws(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    static outputs whole, merged;
    const uint64_t calls = test_size(1500);
    for (uint64_t seed = 0; seed < calls; seed++) {
        rng r = random_from(seed);
        random_call c;
        make_call(&r, &c);
        uint32_t wanted = (uint32_t)random_next(&r);
        if (c.batch.mode == FS_MODE_GROUP_ONLINE || c.batch.mode == FS_MODE_GROUP_PARALLEL) {
            free_call(&c);
            continue;
        }
        c.batch.list_capacity = (int32_t)c.vocab; /* every cut is proven */
        prepare_outputs(&c, wanted, &whole);
        prepare_outputs(&c, wanted, &merged);
        sample(context, &c, &whole);
        const int32_t shards = 1 + (int32_t)random_below(&r, 5);
        int64_t cut[6] = {0};
        for (int32_t i = 1; i < shards; i++)
            cut[i] = cut[i - 1] + (int64_t)random_below(&r, (uint64_t)(c.head.rows - cut[i - 1]) + 1);
        cut[shards] = c.head.rows;
        sample_in_shards(context, &c, cut, shards, &merged.result);
        compare_outputs(seed, &c, &merged, &whole);
        free_call(&c);
    }
    fs_context_destroy(context);
}

/* A row with +inf is no law: the lowest of its ids wins, whatever the groups are. */
static int32_t sample_groups(fs_context *context, fs_head *head, int32_t mode, int64_t group_size, uint64_t seed) {
    int32_t token = -2;
    uint32_t status = 0;
    fs_batch batch = fs_batch_default();
    batch.rows = 1, batch.mode = mode, batch.group_size = group_size, batch.seed_all = seed;
    fs_result result = fs_result_default();
    result.tokens = &token, result.status = &status;
    if (fs_sample(context, head, &batch, &result) != FS_OK) fail_msg("%s", fs_error_text(context));
    assert_int_equal(status, FS_ROW_INF);
    return token;
}

/* Each part is a group (B.4), in rank order. */
static int32_t merge_parts(fs_context *context, float *logits, int64_t vocab, int64_t split, uint64_t seed) {
    int32_t token = -2;
    uint32_t status = 0;
    fs_head head[2] = {fs_head_default(), fs_head_default()};
    void *part[2];
    fs_batch batch = fs_batch_default();
    batch.rows = 1, batch.mode = FS_MODE_GROUP_PARALLEL, batch.group_size = vocab, batch.seed_all = seed;
    fs_result result = fs_result_default();
    result.tokens = &token, result.status = &status;
    for (int i = 0; i < 2; i++) {
        size_t bytes = 0;
        head[i].kind = FS_HEAD_LOGITS, head[i].vocab = vocab;
        head[i].first_token = i ? split : 0, head[i].rows = i ? vocab - split : split;
        head[i].data = logits + head[i].first_token, head[i].stride = vocab * 4;
        if (fs_partial_size(context, &head[i], &batch, &result, &bytes) != FS_OK)
            fail_msg("%s", fs_error_text(context));
        part[i] = array(bytes, 1);
        if (fs_partial(context, &head[i], &batch, &result, part[i], bytes) != FS_OK)
            fail_msg("%s", fs_error_text(context));
    }
    if (fs_merge(context, &head[0], &batch, (const void *const *)part, 2, &result) != FS_OK)
        fail_msg("%s", fs_error_text(context));
    free(part[0]), free(part[1]);
    assert_int_equal(status, FS_ROW_INF);
    return token;
}

static void groups_with_infinities_give_the_lowest_of_them(void **state) {
    (void)state;
    enum { V = 900 };
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    fs_context *cpu[2] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 3, 128)};
    static float logits[V];
    const int32_t modes[] = {FS_MODE_GROUP_PARALLEL, FS_MODE_GROUP_ONLINE};
    rng r = random_from(17);
    for (int round = 0; round < 300; round++) {
        int64_t size = 1 + (int64_t)random_below(&r, V / 2), first = (int64_t)random_below(&r, (uint64_t)(V - size));
        /* The second is beyond the first one's group. */
        int64_t beyond = (first / size + 1) * size, second = beyond + (int64_t)random_below(&r, (uint64_t)(V - beyond));
        uint64_t seed = random_next(&r);
        for (int i = 0; i < V; i++) logits[i] = (float)random_normal(&r) * 3.0f;
        logits[first] = logits[second] = INFINITY;
        fs_head head = fs_head_default();
        head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(sample_groups(reference, &head, modes[i], size, seed), first);
            for (int k = 0; k < 2; k++) assert_int_equal(sample_groups(cpu[k], &head, modes[i], size, seed), first);
        }
        for (int k = 0; k < 2; k++) assert_int_equal(merge_parts(cpu[k], logits, V, beyond, seed), first);
    }
    fs_context_destroy(reference), fs_context_destroy(cpu[0]), fs_context_destroy(cpu[1]);
}

/* At such a temperature many l are +inf, min-p keeps all of them, and the lowest id wins. */
static void min_p_keeps_every_logit_that_overflows(void **state) {
    (void)state;
    enum { V = 900 };
    fs_context *contexts[] = {open_context(FS_BACKEND_REFERENCE, 1, 0), open_context(FS_BACKEND_CPU, 1, 0),
                              open_context(FS_BACKEND_CPU, 3, 128)};
    static float logits[V];
    rng r = random_from(3);
    for (int i = 0; i < V; i++) logits[i] = 3.0f * (float)random_normal(&r) + 4.0f;
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
    for (int round = 0; round < 8; round++) {
        int32_t token[3];
        for (int i = 0; i < 3; i++) {
            uint32_t status = 0;
            fs_batch batch = fs_batch_default();
            fs_result result = fs_result_default();
            fs_rules *rules = rules_of(&batch);
            batch.rows = 1, batch.seed_all = (uint64_t)round;
            rules->temperature.value = 1e-38f, rules->min_p.value = 0.1f * (float)(round % 4 + 1);
            rules->top_k.value = round % 2 ? 9 : 0, rules->top_p.value = round / 2 % 2 ? 0.13f : 1.0f;
            result.tokens = &token[i], result.status = &status;
            if (fs_sample(contexts[i], &head, &batch, &result) != FS_OK) fail_msg("%s", fs_error_text(contexts[i]));
            assert_int_equal(status & ~(uint32_t)FS_ROW_FALLBACK, FS_ROW_INF);
        }
        assert_true(token[1] == token[0] && token[2] == token[0]);
    }
    for (int i = 0; i < 3; i++) fs_context_destroy(contexts[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_draws_what_the_reference_draws),
        cmocka_unit_test(shards_draw_what_the_whole_draws),
        cmocka_unit_test(groups_with_infinities_give_the_lowest_of_them),
        cmocka_unit_test(min_p_keeps_every_logit_that_overflows),
    };
    return cmocka_run_group_tests_name("agree", tests, NULL, NULL);
}
