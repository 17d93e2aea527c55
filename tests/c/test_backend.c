/* A build with the CUDA backend, as far as a machine without a GPU can show it: src/backend.c once more, with a backend
 * of that name that says what it supports as CUDA does, and draws nothing. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#define FS_WITH_CUDA
#include "backend.c"

#include "cuda/cuda_plan.h"
#include "call_descs.h"

static int opened;

static fs_status fake_open(fs_context *context) {
    opened++;
    snprintf(context->text, sizeof context->text, "cuda: a fake");
    return FS_OK;
}

static void fake_close(fs_context *context) {
    (void)context;
    opened--;
}

static fs_status fake_sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    (void)head, (void)batch, (void)result;
    return fs_fail(context, FS_ERR_INTERNAL, "a fake draws nothing");
}

static fs_status fake_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                           int32_t least, size_t *bytes) {
    (void)least, (void)bytes;
    return fake_sample(context, head, batch, (fs_result *)(uintptr_t)result);
}

static fs_status fake_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                              int32_t least, int32_t sealed, void *part, size_t bytes) {
    (void)part, (void)sealed;
    return fake_size(context, head, batch, result, least, &bytes);
}

static fs_status fake_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                            int32_t count, int32_t least, int32_t sealed, const fs_result *result) {
    (void)parts, (void)count, (void)least, (void)sealed;
    return fake_sample(context, head, batch, result);
}

static fs_status fake_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                            const fs_result *result, fs_status failed) {
    (void)ranks;
    return failed ? failed : fake_sample(context, head, batch, result);
}

static void *stream_now;

static fs_status fake_set_stream(fs_context *context, void *stream) {
    (void)context;
    stream_now = stream;
    return FS_OK;
}

static fs_status fake_accept(fs_context *context, const fs_drafts *drafts) {
    (void)drafts;
    return fs_fail(context, FS_ERR_INTERNAL, "a fake accepts nothing");
}

const fs_backend fs_backend_cuda = {.name = "cuda",
                                    .open = fake_open,
                                    .close = fake_close,
                                    .sample = fake_sample,
                                    .lacks = fs_cuda_lacks,
                                    .set_stream = fake_set_stream,
                                    .accept = fake_accept,
                                    .partial_size = fake_size,
                                    .partial = fake_partial,
                                    .merge = fake_merge,
                                    .sample_ranks = fake_ranks};

static void the_cuda_backend_is_there_when_it_is_asked_for(void **state) {
    (void)state;
    fs_options options = fs_options_default();
    fs_context *context;
    options.threads = 1;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    assert_non_null(strstr(fs_context_text(context), "cpu"));
    fs_context_destroy(context);
    options.backend = FS_BACKEND_CUDA;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    assert_string_equal(fs_context_text(context), "cuda: a fake");
    fs_context_destroy(context);
    setenv("FLASHSAMPLING_BACKEND", "cuda", 1);
    assert_int_equal(fs_context_create(NULL, &context), FS_OK);
    assert_string_equal(fs_context_text(context), "cuda: a fake");
    fs_context_destroy(context);
    unsetenv("FLASHSAMPLING_BACKEND");
    assert_int_equal(opened, 0);
}

static void work_memory_is_refused_by_a_backend_that_takes_none(void **state) {
    (void)state;
    _Alignas(64) static char memory[128];
    fs_options options = fs_options_default();
    fs_context *context = (fs_context *)1;
    options.backend = FS_BACKEND_CUDA;
    options.work = memory, options.work_bytes = sizeof memory;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_UNSUPPORTED);
    assert_non_null(strstr(fs_error_text(NULL), "options.work"));
    assert_non_null(strstr(fs_error_text(NULL), "cuda"));
    assert_null(context);
    assert_int_equal(opened, 0);
    options.work = NULL, options.work_bytes = 0;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    assert_int_equal(fs_context_set_work(context, memory, sizeof memory), FS_ERR_UNSUPPORTED);
    fs_context_destroy(context);
}

/* A call that names no stream goes to the context's, whichever the call before it named. */
static void a_call_goes_to_its_own_stream_or_to_the_contexts(void **state) {
    (void)state;
    static char streams[2];
    fs_context *context = open_context(FS_BACKEND_CUDA, 0, 0);
    assert_int_equal(fs_context_set_stream(context, &streams[0]), FS_OK);
    assert_ptr_equal(stream_now, &streams[0]);
    described c;
    fs_call_desc o = fs_call_desc_default();
    call_of_desc(&c, &o, 0);
    fs_batch own = c.batch;
    own.cuda_stream = &streams[1];
    fs_drafts drafts = fs_drafts_default(), own_drafts = drafts;
    own_drafts.cuda_stream = &streams[1];
    size_t bytes;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(fs_sample(context, &c.head, &own, &c.result), FS_ERR_INTERNAL);
        assert_ptr_equal(stream_now, &streams[1]);
        if (i == 0) assert_int_equal(fs_sample(context, &c.head, &c.batch, &c.result), FS_ERR_INTERNAL);
        if (i == 1) assert_int_equal(fs_accept_drafts(context, &drafts), FS_ERR_INTERNAL);
        if (i == 2) assert_int_equal(fs_screen_size(context, &c.head, NULL, &bytes), FS_OK);
        if (i == 3) assert_int_equal(fs_screen_slice(context, NULL, 0, 0, 16, NULL, 0, &bytes), FS_ERR_ARGUMENT);
        if (i == 4) assert_int_equal(fs_partial_size(context, &c.head, &c.batch, &c.result, &bytes), FS_ERR_INTERNAL);
        assert_ptr_equal(stream_now, &streams[0]);
    }
    assert_int_equal(fs_accept_drafts(context, &own_drafts), FS_ERR_INTERNAL);
    assert_ptr_equal(stream_now, &streams[1]);
    assert_int_equal(fs_context_set_stream(context, NULL), FS_OK);
    assert_ptr_equal(stream_now, NULL);
    fs_context_destroy(context);
}

static void calls_are_refused_in_the_words_of_the_answer(void **state) {
    (void)state;
    answers_are_kept(FS_BACKEND_CUDA, FS_ERR_INTERNAL);
}

/* What the table of CUDA says, by hand. */
static void cuda_does_every_rule_on_one_device_and_over_shards(void **state) {
    (void)state;
    const uint32_t every_rule = 63, every_result = 255; /* but entropies and survivors */
    const struct {
        int32_t call, kind, dtype, hidden_dtype, mode, samples, logits;
        uint32_t rules, results;
        int64_t group_size;
        const char *word; /* NULL: it does */
    } cases[] = {
        {0, 0, FS_BF16, FS_BF16, FS_MODE_SAMPLE, 1, 0, 0, 0, 0, NULL},
        {0, 0, FS_BF16, FS_BF16, FS_MODE_SAMPLE, 3, 0, every_rule, every_result, 0, NULL},
        {0, 0, FS_F16, FS_F16, FS_MODE_WITHOUT_REPLACEMENT, 3, 2, every_rule, every_result, 0, NULL},
        {0, 0, FS_F32, FS_F32, FS_MODE_SCORE, 3, 1, every_rule, every_result, 0, NULL},
        {0, 1, FS_F32, FS_BF16, FS_MODE_SAMPLE, 3, 0, every_rule, every_result, 0, NULL},
        {0, 0, FS_BF16, FS_F32, FS_MODE_SAMPLE, 1, 0, 0, 0, 0, NULL},
        {0, 0, FS_Q8_0, FS_BF16, FS_MODE_SAMPLE, 1, 0, 0, 0, 0, "FS_Q8_0"},
        {0, 0, FS_BF16, FS_BF16, FS_MODE_GROUP_ONLINE, 1, 1, 0, FS_RESULT_LOG_Z, 256, NULL},
        {0, 0, FS_BF16, FS_BF16, FS_MODE_GROUP_ONLINE, 1, 0, 0, FS_RESULT_LOG_Z, 256, NULL},
        {0, 0, FS_F32, FS_F16, FS_MODE_GROUP_PARALLEL, 1, 0, FS_RULE_PENALTIES, FS_RESULT_TOP, 200, NULL},
        {1, 0, FS_BF16, FS_BF16, FS_MODE_GROUP_PARALLEL, 1, 0, 0, 0, 0, NULL},
        {0, 0, FS_BF16, FS_BF16, FS_MODE_SAMPLE, 1, 0, 0, FS_RESULT_ENTROPY, 0, "result.entropy"},
        {0, 1, FS_F32, FS_BF16, FS_MODE_SCORE, 1, 0, 0, FS_RESULT_SURVIVORS, 0, "result.survivor_token"},
        {2, 0, FS_BF16, FS_BF16, FS_MODE_GROUP_ONLINE, 1, 0, 0, 0, 256, "FS_MODE_GROUP_PARALLEL"},
        {1, 0, FS_F16, FS_F16, FS_MODE_SAMPLE, 1, 0, 0, FS_RESULT_LOGPROB | FS_RESULT_NOISY_LOGIT, 0, NULL},
        {1, 0, FS_F32, FS_F32, FS_MODE_SAMPLE, 1, 0, every_rule, every_result, 0, NULL},
        {2, 0, FS_BF16, FS_F32, FS_MODE_WITHOUT_REPLACEMENT, 3, 2, every_rule, every_result, 0, NULL},
        {1, 1, FS_BF16, FS_BF16, FS_MODE_SCORE, 1, 1, every_rule, every_result, 0, NULL},
        {2, 0, FS_BF16, FS_BF16, FS_MODE_GROUP_PARALLEL, 1, 0, FS_RULE_EDITS, FS_RESULT_LOG_Z, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *why;
        fs_call_desc o = fs_call_desc_default();
        o.call = cases[i].call, o.kind = cases[i].kind;
        o.dtype = cases[i].dtype, o.hidden_dtype = cases[i].hidden_dtype;
        o.mode = cases[i].mode, o.samples = cases[i].samples, o.logits_mode = cases[i].logits;
        o.rules = cases[i].rules, o.results = cases[i].results, o.group_size = cases[i].group_size;
        const fs_status status = fs_supports(FS_BACKEND_CUDA, &o, &why);
        if (status != (cases[i].word ? FS_ERR_UNSUPPORTED : FS_OK)) fail_msg("case %zu: %d '%s'", i, status, why);
        if (cases[i].word && !strstr(why, cases[i].word)) fail_msg("'%s' does not name %s", why, cases[i].word);
    }
}

static void cuda_refuses_inputs_by_name(void **state) {
    (void)state;
    static const char *const named[] = {"FS_STRIDE_BROADCAST", "batch.extra_offset"};
    for (int i = 0; i < 2; i++) {
        const char *why;
        fs_call_desc o = fs_call_desc_default();
        o.inputs = 1u << i;
        assert_int_equal(fs_supports(FS_BACKEND_CUDA, &o, &why), FS_ERR_UNSUPPORTED);
        assert_non_null(strstr(why, named[i]));
        assert_int_equal(fs_supports(FS_BACKEND_CPU, &o, &why), FS_OK);
        assert_int_equal(fs_supports(FS_BACKEND_REFERENCE, &o, &why), FS_OK);
    }
}

/* Nor is an array for results of no length, a top_k as large as the vocabulary, or counts without a penalty. */
static void what_changes_nothing_is_no_reason_to_refuse(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_CUDA, 0, 0);
    described c;
    fs_call_desc o = fs_call_desc_default();
    o.mode = FS_MODE_GROUP_PARALLEL, o.group_size = 7;
    call_of_desc(&c, &o, 0);
    rules_of(&c.batch)->top_k.value = DESC_V, c.batch.counts = c.counts;
    c.batch.watch_offset = c.offset, c.result.top_token = c.top;
    assert_int_equal(call_it(context, &c, o.call, 1), FS_ERR_INTERNAL);
    rules_of(&c.batch)->top_k.value = DESC_V - 1;
    assert_int_equal(call_it(context, &c, o.call, 1), FS_ERR_UNSUPPORTED);
    fs_context_destroy(context);
}

/* The host does not see whether a row has a cut, which no group mode takes. */
static void group_modes_take_arrays_of_cuts_that_are_said_to_be_absent(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_CUDA, 0, 0);
    for (uint32_t rule = FS_RULE_TOP_K; rule <= FS_RULE_MIN_P; rule *= 2)
        for (int32_t mode = FS_MODE_GROUP_PARALLEL; mode <= FS_MODE_GROUP_ONLINE; mode++) {
            described c;
            fs_call_desc o = fs_call_desc_default();
            o.mode = mode, o.group_size = 7, o.rules = rule;
            call_of_desc(&c, &o, 1);
            assert_int_equal(call_it(context, &c, o.call, 1), FS_ERR_UNSUPPORTED);
            assert_non_null(strstr(fs_error_text(context), "limits.absent"));
            limits_of(&c.batch)->absent = rule;
            assert_int_equal(call_it(context, &c, o.call, 1), FS_ERR_INTERNAL);
        }
    fs_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cuda_backend_is_there_when_it_is_asked_for),
        cmocka_unit_test(work_memory_is_refused_by_a_backend_that_takes_none),
        cmocka_unit_test(a_call_goes_to_its_own_stream_or_to_the_contexts),
        cmocka_unit_test(calls_are_refused_in_the_words_of_the_answer),
        cmocka_unit_test(cuda_does_every_rule_on_one_device_and_over_shards),
        cmocka_unit_test(cuda_refuses_inputs_by_name),
        cmocka_unit_test(what_changes_nothing_is_no_reason_to_refuse),
        cmocka_unit_test(group_modes_take_arrays_of_cuts_that_are_said_to_be_absent),
    };
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
