/* What no call may be given, on any backend: pointers that are not aligned, sizes whose product overflows, members that
 * must be zero. */
#include "alone.h"
#include "refusals.h"

/* Half an element off. */
#define MISALIGNED(member, bytes)                                                                                      \
    REFUSED(f.member = (void *)((char *)f.weights + (bytes) / 2), #member " is 0x", #bytes "-byte")

static void a_pointer_that_is_not_aligned_is_named(void **state) {
    (void)state;
    MISALIGNED(head.data, 4);
    MISALIGNED(head.bias, 4);
    MISALIGNED(batch.hidden, 4);
    MISALIGNED(batch.slot, 4);
    MISALIGNED(batch.position, 8);
    MISALIGNED(batch.seed, 8);
    MISALIGNED(batch.substream, 4);
    for (int32_t i = 0; fs_rule(i); i++) {
        char text[64];
        snprintf(text, sizeof text, "rules.%s.per_slot is 0x", fs_rule(i)->name);
        REFUSED(((fs_float_rule *)((char *)rules_of(&f.batch) + fs_rule(i)->offset))->per_slot =
                    (void *)((char *)f.weights + 2),
                text, "4-byte");
    }
    MISALIGNED(batch.allow, 4);
    MISALIGNED(batch.allow_index, 4);
    MISALIGNED(batch.edit_offset, 8);
    MISALIGNED(batch.edit_token, 4);
    MISALIGNED(batch.edit_bias, 4);
    MISALIGNED(batch.seen, 4);
    MISALIGNED(batch.counts, 4);
    MISALIGNED(batch.count_offset, 8);
    MISALIGNED(batch.count_token, 4);
    MISALIGNED(batch.count_value, 4);
    MISALIGNED(batch.extra_offset, 8);
    MISALIGNED(batch.extra_token, 4);
    MISALIGNED(batch.score_token, 4);
    MISALIGNED(batch.watch_offset, 8);
    MISALIGNED(batch.watch_token, 4);
    MISALIGNED(result.tokens, 4);
    MISALIGNED(result.status, 4);
    MISALIGNED(result.noisy_logit, 4);
    MISALIGNED(result.max_logit, 4);
    MISALIGNED(result.log_z, 4);
    MISALIGNED(result.logit, 4);
    MISALIGNED(result.logprob, 4);
    MISALIGNED(result.rank, 4);
    MISALIGNED(result.top_token, 4);
    MISALIGNED(result.top_logit, 4);
    MISALIGNED(result.top_logprob, 4);
    REFUSED((f.batch.watch_offset = f.offset, f.result.watch_logit = (float *)((char *)f.weights + 2)),
            "result.watch_logit is 0x", "4-byte");
    REFUSED((f.batch.watch_offset = f.offset, f.result.watch_logprob = (float *)((char *)f.weights + 2)),
            "result.watch_logprob is 0x", "4-byte");
    REFUSED((f.batch.edit_stride = 8, f.batch.edit_count = (int32_t *)((char *)f.weights + 2)),
            "batch.edit_count is 0x", "4-byte");
}

static void alignment_is_that_of_the_dtype(void **state) {
    (void)state;
    fixture c;
    make(&c);
    c.head.data = (char *)c.weights + 2, c.head.dtype = FS_BF16;
    c.batch.hidden = (char *)c.hidden + 2, c.batch.hidden_dtype = FS_F16;
    if (fs_sample(c.context, &c.head, &c.batch, &c.result) != FS_OK) fail_msg("%s", fs_error_text(c.context));
    fs_context_destroy(c.context);
    REFUSED((f.head.data = (char *)f.weights + 1, f.head.dtype = FS_F16), "head.data is 0x", "2-byte");
    REFUSED((f.batch.hidden = (char *)f.hidden + 1, f.batch.hidden_dtype = FS_BF16), "batch.hidden is 0x", "2-byte");
    REFUSED((f.result.tokens = (char *)f.weights + 4, f.result.tokens_dtype = FS_I64), "result.tokens is 0x", "8-byte");
    REFUSED((f.batch.slot = (char *)f.weights + 4, f.batch.slot_dtype = FS_I64), "batch.slot is 0x", "8-byte");
}

/* Multiples of every element below 2^63. */
#define HUGE_STRIDE (INT64_MAX - 7)

static void sizes_whose_product_overflows_are_named(void **state) {
    (void)state;
    const int64_t half = INT64_MAX / 2 - 3; /* twice as much is just below 2^63, three times is not */
    REFUSED(f.head.stride = HUGE_STRIDE, "head.stride is 9223372036854775800", "40 times");
    REFUSED((f.head.kind = FS_HEAD_LOGITS, f.head.stride = HUGE_STRIDE), "head.stride", "1048576 times");
    REFUSED(f.batch.hidden_stride = HUGE_STRIDE, "batch.hidden_stride", "2 times");
    REFUSED((f.batch.rows = 3, f.batch.hidden_stride = half), "batch.hidden_stride", "3 times");
    REFUSED(f.batch.counts_stride = HUGE_STRIDE, "batch.counts_stride", "2 times");
    REFUSED((f.batch.slots = 7, f.batch.counts_stride = half), "batch.counts_stride", "7 times");
    REFUSED(f.batch.seen_stride = HUGE_STRIDE, "batch.seen_stride", "2 times");
    REFUSED(f.batch.allow_stride = HUGE_STRIDE, "batch.allow_stride", "2 times");
    REFUSED((f.batch.allow_count = 3, f.batch.allow_stride = half), "batch.allow_stride", "3 times");
    REFUSED((f.batch.allow_index = f.list, f.batch.allow_stride = half), "batch.allow_stride", "2147483647 times");
    REFUSED(f.batch.allow_count = INT64_MAX, "batch.allow_stride", "9223372036854775807 times");
    REFUSED((f.batch.slots = INT32_MAX, f.batch.edit_stride = INT64_C(0x1fffffffc)), "batch.edit_stride",
            "2147483647 times");
    fixture c;
    make(&c);
    c.batch.rows = 1, c.batch.hidden_stride = HUGE_STRIDE; /* one row is nowhere else */
    assert_int_equal(fs_sample(c.context, &c.head, &c.batch, &c.result), FS_OK);
    fs_context_destroy(c.context);
}

/* A rule that would silently not be applied. */
static void an_array_without_its_partner_is_named(void **state) {
    (void)state;
    static int32_t numbers[4];
    static float biases[4];
    REFUSED(f.batch.allow_index = numbers, "batch.allow_index is given", "batch.allow is NULL");
    REFUSED(f.batch.edit_token = numbers, "batch.edit_token", "edit_offset and edit_count");
    REFUSED(f.batch.edit_bias = biases, "batch.edit_bias", "edit_offset and edit_count");
    REFUSED(f.batch.count_token = numbers, "batch.count_token", "batch.count_offset is NULL");
    REFUSED(f.batch.count_value = numbers, "batch.count_value", "batch.count_offset is NULL");
    REFUSED(f.batch.extra_token = numbers, "batch.extra_token", "batch.extra_offset is NULL");
    REFUSED(f.batch.watch_token = numbers, "batch.watch_token", "batch.watch_offset is NULL");
}

static void members_that_must_be_zero_are_named(void **state) {
    (void)state;
    REFUSED(f.result.survivor_limit = -1, "result.survivor_limit", "-1");
    REFUSED(f.head.reserved = -1, "head.reserved", "-1");
    REFUSED(f.batch.reserved = 5, "batch.reserved", "5");
    fs_context *context;
    fs_options options = fs_options_default();
    options.reserved = 7;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "options.reserved is 7"));
    options.reserved = 0, options.flags = 6;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "options.flags is 0x6"));
    options.flags = FS_CHECK_POINTERS;
    assert_int_equal(fs_context_create(&options, &context), FS_OK);
    fs_context_destroy(context);
}

static void a_bad_member_of_ranks_is_named(void **state) {
    (void)state;
    fixture f;
    make(&f);
    fs_ranks ranks = alone_ranks();
    assert_int_equal(fs_sample_ranks(f.context, &ranks, &f.head, &f.batch, &f.result), FS_OK);
    ranks.reserved = 2;
    assert_int_equal(fs_sample_ranks(f.context, &ranks, &f.head, &f.batch, &f.result), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(f.context), "ranks.reserved is 2"));
    fs_context_destroy(f.context);
}

static void only_floats_are_stored_logits_and_unknown_dtypes_are_no_dtypes(void **state) {
    (void)state;
    static const int32_t unknown[] = {-1, 3, 7, FS_I32, FS_I64, 10, 15, 20, 31, 35, INT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        REFUSED(f.head.dtype = unknown[i], "head.dtype is ", "FS_BF16 (2)");
    static const struct {
        int32_t dtype;
        const char *name;
    } quantised[] = {{FS_Q8_0, "FS_Q8_0"}, {FS_Q5_K, "FS_Q5_K"}, {FS_Q6_K, "FS_Q6_K"}};
    for (size_t i = 0; i < sizeof quantised / sizeof quantised[0]; i++) {
        REFUSED((f.head.kind = FS_HEAD_LOGITS, f.head.dtype = quantised[i].dtype), "head.dtype", "stored logits");
        fixture c;
        make(&c);
        c.head.dtype = quantised[i].dtype;
        refused(&c, FS_ERR_UNSUPPORTED, quantised[i].name, "weights are not supported yet");
    }
}

/* Of a head without weights, what belongs to weights may hold anything. */
static void hidden_states_of_stored_logits_are_not_looked_at(void **state) {
    (void)state;
    for (int backend = FS_BACKEND_CPU; backend <= FS_BACKEND_REFERENCE; backend += 2) {
        fixture f;
        make(&f);
        fs_context_destroy(f.context);
        f.context = open_context(backend, 1, 0);
        f.head.kind = FS_HEAD_LOGITS;
        f.weights[7] = f.weights[40 + 9] = 99.0f;
        f.head.dim = INT64_MAX;
        f.batch.hidden = (void *)1, f.batch.hidden_dtype = 77, f.batch.hidden_stride = INT64_MIN;
        if (fs_sample(f.context, &f.head, &f.batch, &f.result) != FS_OK) fail_msg("%s", fs_error_text(f.context));
        assert_int_equal(f.tokens[0], 7);
        assert_int_equal(f.tokens[1], 9);
        f.head.dim = -1;
        assert_int_equal(fs_sample(f.context, &f.head, &f.batch, &f.result), FS_OK);
        fs_context_destroy(f.context);
    }
}

/* The groups of shards are the shards. */
static void shards_need_no_group_size(void **state) {
    (void)state;
    fixture c;
    make(&c);
    char part[512];
    const void *parts[1] = {part};
    size_t bytes, work;
    c.batch.mode = FS_MODE_GROUP_PARALLEL;
    c.weights[4 * 11] = c.hidden[0] = c.hidden[4] = 30.0f;
    assert_int_equal(fs_work_size(c.context, &c.head, &c.batch, &c.result, &work, NULL), FS_OK);
    assert_int_equal(fs_partial_size(c.context, &c.head, &c.batch, &c.result, &bytes), FS_OK);
    assert_true(bytes <= sizeof part);
    assert_int_equal(fs_partial(c.context, &c.head, &c.batch, &c.result, part, bytes), FS_OK);
    if (fs_merge(c.context, &c.head, &c.batch, parts, 1, &c.result) != FS_OK) fail_msg("%s", fs_error_text(c.context));
    assert_int_equal(c.tokens[0], 11);
    fs_ranks ranks = alone_ranks();
    assert_int_equal(fs_sample_ranks(c.context, &ranks, &c.head, &c.batch, &c.result), FS_OK);
    assert_int_equal(c.tokens[1], 11);
    c.tokens[0] = 12345;
    refused(&c, FS_ERR_ARGUMENT, "batch.group_size is 0", "16777215");
    REFUSED((f.batch.mode = FS_MODE_GROUP_ONLINE, f.batch.group_size = -1), "batch.group_size is -1", "16777215");
    REFUSED((f.batch.mode = FS_MODE_GROUP_ONLINE, f.batch.group_size = 1 << 24), "batch.group_size", "16777215");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pointer_that_is_not_aligned_is_named),
        cmocka_unit_test(alignment_is_that_of_the_dtype),
        cmocka_unit_test(sizes_whose_product_overflows_are_named),
        cmocka_unit_test(an_array_without_its_partner_is_named),
        cmocka_unit_test(members_that_must_be_zero_are_named),
        cmocka_unit_test(a_bad_member_of_ranks_is_named),
        cmocka_unit_test(only_floats_are_stored_logits_and_unknown_dtypes_are_no_dtypes),
        cmocka_unit_test(hidden_states_of_stored_logits_are_not_looked_at),
        cmocka_unit_test(shards_need_no_group_size),
    };
    return cmocka_run_group_tests_name("arguments", tests, NULL, NULL);
}
