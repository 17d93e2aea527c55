/* Memory: every allocation may fail, nothing leaks, the caller's memory is enough when it is as large as promised, and
 * temporary memory does not grow with B x V. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "counted.h"

#include <sys/mman.h>

/* A small call with lists, edits and watches. Three of its rows are one large tie, which top-k with ties kept can prove
 * only in a second pass. */
typedef struct small {
    float logits[6 * 700];
    int64_t offset[7];
    int32_t token[6], tokens[6 * 2];
    float bias[6], logprob[6 * 2], top_logprob[6 * 10], watch[6];
    fs_head head;
    fs_batch batch;
    fs_result result;
} small;

static void make_small(small *s) {
    memset(s, 0, sizeof *s);
    rng r = random_from(1);
    for (int i = 0; i < 6 * 700; i++) s->logits[i] = i < 3 * 700 ? 0.0f : (float)random_normal(&r);
    for (int b = 0; b <= 6; b++) s->offset[b] = b;
    for (int b = 0; b < 6; b++) s->token[b] = b * 50;
    s->head = fs_head_default();
    s->head.kind = FS_HEAD_LOGITS, s->head.data = s->logits, s->head.rows = 700;
    s->batch = fs_batch_default();
    s->batch.rows = 6, s->batch.samples = 2, s->batch.flags = FS_KEEP_TIES, rules_of(&s->batch)->top_k.value = 5,
    s->batch.list_capacity = 1;
    s->batch.edit_offset = s->offset, s->batch.edit_token = s->token, s->batch.edit_bias = s->bias;
    s->batch.watch_offset = s->offset, s->batch.watch_token = s->token;
    s->result = fs_result_default();
    s->result.tokens = s->tokens, s->result.logits_mode = FS_LOGITS_CUT, s->result.logprob = s->logprob;
    s->result.top_count = 10, s->result.top_logprob = s->top_logprob, s->result.watch_logprob = s->watch;
}

/* One life of a context: sample, partial, merge. */
static fs_status live(const fs_options *options, small *s, int sharded) {
    fs_context *context = NULL;
    fs_status status = fs_context_create(options, &context);
    if (status == FS_OK) status = fs_sample(context, &s->head, &s->batch, &s->result);
    if (status == FS_OK && sharded) {
        size_t bytes = 0;
        assert_true(counters_of(context).work_bytes > 0);
        status = fs_partial_size(context, &s->head, &s->batch, &s->result, &bytes);
        void *part = malloc(bytes + 1);
        const void *parts[1] = {part};
        if (status == FS_OK) status = fs_partial(context, &s->head, &s->batch, &s->result, part, bytes);
        if (status == FS_OK) status = fs_merge(context, &s->head, &s->batch, parts, 1, &s->result);
        free(part);
    }
    if (status != FS_OK) assert_true(strlen(fs_error_text(context)) > 0);
    fs_context_destroy(context);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static small s;
    const int32_t backends[] = {FS_BACKEND_CPU, FS_BACKEND_REFERENCE};
    for (int i = 0; i < 2; i++) {
        counter c;
        make_small(&s);
        fs_options options = counted_options(&c, backends[i]);
        assert_int_equal(live(&options, &s, i == 0), FS_OK);
        assert_int_equal(c.live_blocks, 0);
        int64_t requests = c.requests;
        assert_true(requests >= 2);
        for (int64_t fail = 1; fail <= requests; fail++) {
            options = counted_options(&c, backends[i]);
            c.fail_at = fail;
            assert_int_equal(live(&options, &s, i == 0), FS_ERR_MEMORY);
            assert_int_equal(c.live_blocks, 0);
        }
    }
}

static void a_failed_call_leaves_the_context_usable(void **state) {
    (void)state;
    static small s;
    counter c;
    make_small(&s);
    fs_options options = counted_options(&c, FS_BACKEND_CPU);
    fs_context *context = NULL;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    c.fail_at = c.requests + 1;
    assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_ERR_MEMORY);
    assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
    fs_context_destroy(context);
    assert_int_equal(c.live_blocks, 0);
}

static void nothing_is_allocated_after_the_first_call(void **state) {
    (void)state;
    static small s;
    counter c;
    make_small(&s);
    s.batch.list_capacity = 700; /* no second pass */
    fs_options options = counted_options(&c, FS_BACKEND_CPU);
    fs_context *context = NULL;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
    int64_t requests = c.requests;
    for (int i = 0; i < 5; i++) assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
    assert_int_equal(c.requests, requests);
    fs_context_destroy(context);
}

static void callers_memory_of_the_asked_size_is_enough(void **state) {
    (void)state;
    static small s;
    make_small(&s);
    fs_context *asking = open_context(FS_BACKEND_CPU, 2, 0);
    size_t bytes = 0;
    assert_int_equal(fs_work_size(asking, &s.head, &s.batch, &s.result, &bytes, NULL), FS_OK);
    assert_int_equal(fs_sample(asking, &s.head, &s.batch, &s.result), FS_OK);
    int32_t expected[12];
    memcpy(expected, s.tokens, sizeof expected);
    fs_context_destroy(asking);

    /* Exactly enough: no allocation; the rows that need a second pass have no memory for it and say so. */
    counter c;
    char *work = aligned_alloc(64, bytes + (4 << 20));
    assert_non_null(work);
    memset(work, 0xAB, bytes + (4 << 20));
    fs_options options = counted_options(&c, FS_BACKEND_CPU);
    options.work = work, options.work_bytes = bytes;
    uint32_t status[6];
    s.result.status = status;
    fs_context *context = NULL;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    int64_t requests = c.requests;
    assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
    assert_int_equal(c.requests, requests);
    assert_true(counters_of(context).fallback_rows > 0);
    int incomplete = 0;
    for (int b = 0; b < 6; b++) {
        incomplete += (status[b] & FS_ROW_INCOMPLETE) != 0;
        assert_int_equal(s.tokens[b * 2], status[b] & FS_ROW_INCOMPLETE ? -1 : expected[b * 2]);
    }
    assert_int_equal(incomplete, counters_of(context).fallback_rows);
    for (size_t i = bytes; i < bytes + (4 << 20); i++) assert_int_equal(work[i], (char)0xAB);
    fs_context_destroy(context);

    /* One byte less is refused; some more is used for the second pass. */
    options.work_bytes = bytes - 1;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_ERR_MEMORY);
    assert_non_null(strstr(fs_error_text(context), "too small"));
    fs_context_destroy(context);
    options.work_bytes = bytes + (4 << 20);
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
    assert_memory_equal(s.tokens, expected, sizeof expected);
    fs_context_destroy(context);
    free(work);
}

/* How many rows have one of these bits. */
static int64_t count_rows(const uint32_t *status, int64_t rows, uint32_t bits) {
    int64_t count = 0;
    for (int64_t b = 0; b < rows; b++) count += (status[b] & bits) != 0;
    return count;
}

/* The rows of a tie get a second pass as far as the budget goes, at once or by turns, and what is allocated for it is
 * within it. */
static void the_second_pass_stays_within_its_budget(void **state) {
    (void)state;
    static small s;
    const size_t unlimited = (size_t)64 << 20;
    size_t one = 0;
    int32_t expected[12];
    for (int i = 0; i < 5; i++) {
        const size_t budget = i == 2 ? one - 1 : i == 3 ? one : i == 4 ? FS_FALLBACK_NONE : unlimited;
        const int64_t tied = i == 0 ? 1 : 3, incomplete = budget < one ? tied : 0;
        uint32_t status[6];
        size_t work = 0;
        counter c;
        make_small(&s);
        if (i == 0)
            memcpy(s.logits + 700, s.logits + 3 * 700, sizeof(float) * 2 * 700); /* the first row alone is a tie */
        s.result.status = status;
        fs_options options = counted_options(&c, FS_BACKEND_CPU);
        options.fallback_bytes = budget;
        fs_context *context = NULL;
        assert_int_equal(fs_context_create(&options, &context), FS_OK);
        const size_t idle = c.live;
        assert_int_equal(fs_work_size(context, &s.head, &s.batch, &s.result, &work, NULL), FS_OK);
        assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
        const size_t extra = c.most - idle - work;
        assert_true(extra <= budget);
        assert_int_equal(counters_of(context).work_bytes, work + extra);
        assert_int_equal(counters_of(context).fallback_rows, tied);
        assert_int_equal(count_rows(status, 6, FS_ROW_INCOMPLETE), incomplete);
        assert_int_equal(count_rows(status, 6, FS_ROW_FALLBACK), tied - incomplete);
        if (i == 0) one = extra;
        if (i == 1) memcpy(expected, s.tokens, sizeof expected);
        if (i == 1) assert_true(extra > one); /* all three rows at once */
        if (i == 3) assert_int_equal(extra, one);
        for (int k = 0; k < 12 && i; k++)
            assert_int_equal(s.tokens[k], status[k / 2] & FS_ROW_INCOMPLETE ? -1 : expected[k]);
        fs_context_destroy(context);
    }
}

/* Memory may be lent and taken back between calls; what the context had of its own is freed. The memory of the caller
 * is never freed, nor written beyond its end. */
static void memory_may_be_lent_later_and_taken_back(void **state) {
    (void)state;
    static small s;
    const int32_t backends[] = {FS_BACKEND_CPU, FS_BACKEND_REFERENCE};
    enum { MORE = 4 << 20 }; /* for the second pass, and a margin */
    for (int i = 0; i < 2; i++) {
        counter c;
        int32_t expected[12];
        size_t bytes = 0;
        fs_context *context = NULL;
        make_small(&s);
        fs_options options = counted_options(&c, backends[i]);
        assert_int_equal(fs_context_create(&options, &context), FS_OK);
        const int64_t blocks = c.live_blocks;
        assert_int_equal(fs_work_size(context, &s.head, &s.batch, &s.result, &bytes, NULL), FS_OK);
        assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
        memcpy(expected, s.tokens, sizeof expected);

        /* Lent twice, in two places: the context's own memory goes with the first, nothing is allocated from then
         * on. */
        char *work = aligned_alloc(64, 2 * (bytes + MORE));
        assert_non_null(work);
        assert_true(bytes % 64 == 0);
        int64_t requests = 0;
        for (int place = 0; place < 2; place++) {
            char *lent = work + (size_t)place * (bytes + MORE);
            memset(work, 0xAB, 2 * (bytes + MORE));
            assert_int_equal(fs_context_set_work(context, lent, bytes + MORE / 2), FS_OK);
            assert_int_equal(c.live_blocks, blocks);
            requests = c.requests;
            assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
            assert_memory_equal(s.tokens, expected, sizeof expected);
            assert_int_equal(c.requests, requests);
            for (char *at = work; at < work + 2 * (bytes + MORE); at += 61)
                if (at < lent || at >= lent + bytes + MORE / 2) assert_int_equal(*at, (char)0xAB);
        }

        /* Too little is refused, and the context goes on with what it gets next. */
        assert_int_equal(fs_context_set_work(context, work, bytes - 64), FS_OK);
        assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_ERR_MEMORY);
        assert_non_null(strstr(fs_error_text(context), "too small"));
        assert_int_equal(c.requests, requests);

        /* Taken back: the context allocates again, and frees what it allocated. */
        assert_int_equal(fs_context_set_work(context, NULL, 0), FS_OK);
        memset(work, 0xCD, 2 * (bytes + MORE));
        assert_int_equal(fs_sample(context, &s.head, &s.batch, &s.result), FS_OK);
        assert_memory_equal(s.tokens, expected, sizeof expected);
        assert_true(c.requests > requests);
        for (char *at = work; at < work + 2 * (bytes + MORE); at += 61) assert_int_equal(*at, (char)0xCD);
        assert_int_equal(fs_context_set_work(context, NULL, 0), FS_OK);
        assert_int_equal(fs_context_set_work(context, work, bytes), FS_OK);
        fs_context_destroy(context);
        assert_int_equal(c.live_blocks, 0);
        free(work);
    }
}

/* B = 64 over 151,936 tokens: stored logits would be 37 MiB of floats. D is small so that the test is quick; the hidden
 * states of a real D = 1024 are counted through fs_work_size. */
static void temporary_memory_stays_under_four_mebibytes(void **state) {
    (void)state;
    enum { B = 64, V = 151936, D = 8 };
    uint16_t *weights = calloc((size_t)V * D, 2);
    float *hidden = calloc(B * D, 4);
    assert_true(weights && hidden);
    rng r = random_from(3);
    for (int64_t i = 0; i < (int64_t)V * D; i++) weights[i] = bf16_of((float)random_normal(&r));
    for (int i = 0; i < B * D; i++) hidden[i] = (float)random_normal(&r) * 2.0f;
    int32_t tokens[B];
    float logprob[B];
    for (int rule = 5 - (int)test_size(5); rule < 5; rule++) { /* the last one where everything is slow */
        counter c;
        fs_options options = counted_options(&c, FS_BACKEND_CPU);
        fs_context *context = NULL;
        assert_int_equal(fs_context_create(&options, &context), FS_OK);
        fs_head head = fs_head_default();
        head.data = weights, head.dtype = FS_BF16, head.rows = V, head.dim = D;
        fs_batch batch = fs_batch_default();
        batch.rows = B, batch.hidden = hidden;
        if (rule == 1) rules_of(&batch)->top_k.value = 50;
        if (rule == 2) rules_of(&batch)->top_p.value = 0.9f;
        if (rule == 3) rules_of(&batch)->min_p.value = 0.05f;
        if (rule == 4) rules_of(&batch)->top_k.value = 1000, rules_of(&batch)->top_p.value = 0.95f;
        fs_result result = fs_result_default();
        result.tokens = tokens, result.logprob = logprob;
        assert_int_equal(fs_sample(context, &head, &batch, &result), FS_OK);
        assert_true(c.most < ((size_t)4 << 20) + (counters_of(context).fallback_rows ? options.fallback_bytes : 0));
        if (counters_of(context).fallback_rows) assert_true(rule == 2 || rule == 3); /* wide rows */
        head.dim = 1024;
        size_t bytes = 0;
        assert_int_equal(fs_work_size(context, &head, &batch, &result, &bytes, NULL), FS_OK);
        assert_true(bytes < (size_t)4 << 20);
        fs_context_destroy(context);
        assert_int_equal(c.live_blocks, 0);
    }
    free(weights), free(hidden);
}

/* They lie where nobody may read. */
static void weights_are_not_read_for_rows_that_are_dropped(void **state) {
    (void)state;
    enum { V = 3000, D = 64, ROWS = 3 };
    void *nowhere = mmap(NULL, V * D * 4, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(nowhere != MAP_FAILED);
    const int32_t slot[ROWS] = {-1, -1, -1};
    static const float hidden[ROWS * D];
    int32_t tokens[ROWS] = {7, 7, 7};
    uint32_t status[ROWS];
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    fs_result result = fs_result_default();
    head.data = nowhere, head.rows = V, head.dim = D;
    batch.hidden = hidden, batch.rows = ROWS, batch.slot = slot;
    result.tokens = tokens, result.status = status;
    for (int32_t dtype = FS_F32; dtype <= FS_BF16; dtype++)
        for (int32_t threads = 1; threads < 4; threads++) {
            fs_context *context = open_context(FS_BACKEND_CPU, threads, 0);
            head.dtype = dtype;
            assert_int_equal(fs_sample(context, &head, &batch, &result), FS_OK);
            for (int b = 0; b < ROWS; b++) assert_true(tokens[b] == -1 && status[b] == FS_ROW_SKIPPED);
            fs_context_destroy(context);
        }
    munmap(nowhere, V * D * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_not_read_for_rows_that_are_dropped),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_failed_call_leaves_the_context_usable),
        cmocka_unit_test(nothing_is_allocated_after_the_first_call),
        cmocka_unit_test(callers_memory_of_the_asked_size_is_enough),
        cmocka_unit_test(the_second_pass_stays_within_its_budget),
        cmocka_unit_test(memory_may_be_lent_later_and_taken_back),
        cmocka_unit_test(temporary_memory_stays_under_four_mebibytes),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
