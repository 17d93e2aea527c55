/* Bad input gets an error that names the value and the limit; nothing is written, nothing dies. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "refusals.h"

static void a_bad_head_is_named(void **state) {
    (void)state;
    REFUSED(f.head.kind = 7, "head.kind", "7");
    REFUSED(f.head.dtype = 5, "head.dtype", "5");
    REFUSED(f.head.rows = -1, "head.rows", "-1");
    REFUSED(f.head.rows = 1 << 24, "head.rows", "16777215");
    REFUSED(f.head.dim = 0, "head.dim", "0");
    REFUSED(f.head.stride = 12, "head.stride", "16");
    REFUSED(f.head.stride = 17, "head.stride", "17");
    REFUSED(f.head.data = NULL, "head.data", "NULL");
    REFUSED(f.head.data = (const char *)f.weights + 1, "head.data", "aligned");
    REFUSED(f.head.first_token = -3, "head.first_token is -3", "0 to 16777175");
    REFUSED(f.head.first_token = (1 << 24) - 40, "head.first_token", "16777175");
    REFUSED(f.head.first_token = INT64_MAX, "head.first_token", "16777175");
    REFUSED(f.head.vocab = -1, "head.vocab", "-1");
    REFUSED(f.head.softcap = -1.0f, "head.softcap", "-1");
    REFUSED(f.head.scale = NAN, "head.scale", "nan");
    REFUSED(f.head.round_to = 9, "head.round_to", "9");
    REFUSED(f.head.flags = 8, "head.flags", "0x8");
    REFUSED(f.head.rows = 0, "head.rows is 0", "no token");
    REFUSED(f.head.vocab = 41, "head.vocab is 41", "last token is 39");
    REFUSED((f.head.first_token = 8, f.head.vocab = 49), "head.vocab is 49", "last token is 47");
    REFUSED(f.head.size = 3, "head.size", "fs_head_default");
    REFUSED(f.head.size = sizeof f.head - 1, "head.size", "fs_head_default");
    REFUSED(f.head.size = 4097, "head.size", "4096");
}

static void a_bad_batch_is_named(void **state) {
    (void)state;
    REFUSED(f.batch.rows = -2, "batch.rows", "-2");
    REFUSED(f.batch.hidden = NULL, "batch.hidden", "NULL");
    REFUSED(f.batch.hidden_dtype = 8, "batch.hidden_dtype", "8");
    REFUSED(f.batch.hidden_stride = 8, "batch.hidden_stride", "16");
    REFUSED(f.batch.hidden_stride = -2, "batch.hidden_stride", "-2");
    REFUSED(f.head.stride = FS_STRIDE_BROADCAST, "head.stride", "-1");
    REFUSED(f.batch.mode = 5, "batch.mode", "5");
    REFUSED(f.batch.samples = -1, "batch.samples", "1024");
    REFUSED(f.batch.samples = 1025, "batch.samples", "1025");
    REFUSED(f.batch.noise = 2, "batch.noise", "2");
    REFUSED(f.batch.flags = 256, "batch.flags", "0x100");
    REFUSED(f.batch.slots = -1, "batch.slots", "-1");
    REFUSED(f.batch.mode = FS_MODE_SCORE, "batch.score_token", "score");
    REFUSED(f.batch.mode = FS_MODE_GROUP_ONLINE, "batch.group_size", "0");
    REFUSED((f.batch.mode = FS_MODE_GROUP_PARALLEL, f.batch.group_size = 8, f.batch.samples = 2), "batch.samples", "2");
    REFUSED((f.batch.mode = FS_MODE_GROUP_PARALLEL, f.batch.group_size = 8, rules_of(&f.batch)->top_k.value = 3),
            "top_k", "3");
    REFUSED(f.batch.allow_stride = 4, "batch.allow_stride", "8");
    REFUSED(f.batch.seen_stride = 9, "batch.seen_stride", "9");
    REFUSED(f.batch.counts_stride = 4, "batch.counts_stride", "160");
    REFUSED((f.batch.counts = f.list, f.batch.count_offset = f.offset), "batch.counts", "both");
    REFUSED(f.batch.list_capacity = -1, "batch.list_capacity", "-1");
    REFUSED(f.batch.list_capacity = 1 << 24, "batch.list_capacity is 16777216", "0 to 16777215");
    REFUSED(f.batch.allow_count = -1, "batch.allow_count", "-1");
    REFUSED(f.batch.size = 8, "batch.size", "8");
    REFUSED(f.batch.size = SIZE_MAX, "batch.size", "4096");
}

static void a_bad_list_is_named(void **state) {
    (void)state;
    REFUSED((f.batch.edit_offset = f.offset, f.batch.edit_bias = f.bias), "batch.edit_token", "NULL");
    REFUSED((f.batch.edit_offset = f.offset, f.batch.edit_token = f.list), "batch.edit_bias", "NULL");
    REFUSED((f.batch.edit_offset = f.offset, f.offset[0] = -1), "batch.edit_offset[0]", "-1");
    REFUSED((f.batch.watch_offset = f.offset, f.offset[1] = 9), "batch.watch_offset[2]", "ascend");
    REFUSED((f.batch.count_offset = f.offset, f.batch.count_token = f.list), "batch.count_value", "NULL");
    REFUSED(f.batch.extra_offset = f.offset, "batch.extra_token", "NULL");
    REFUSED((f.batch.extra_offset = f.offset, f.offset[0] = -3), "batch.extra_offset[0]", "-3");
    REFUSED((f.batch.extra_offset = f.offset, f.offset[1] = 9), "batch.extra_offset[2] is 2 after 9", "ascend");
    REFUSED((f.batch.extra_offset = f.offset, f.offset[2] = INT64_MAX), "batch.extra_offset[2]", "2^31");
    REFUSED((f.batch.edit_offset = f.offset, f.batch.edit_count = f.list), "batch.edit_count", "both");
    REFUSED(f.batch.edit_stride = 6, "batch.edit_stride", "6");
    REFUSED(f.batch.edit_stride = -4, "batch.edit_stride", "-4");
    REFUSED(f.batch.edit_stride = INT64_MAX / 4 * 4, "batch.edit_stride", "9223372036854775804");
    REFUSED(f.batch.edit_count = f.list, "batch.edit_stride", "must be a multiple of 4 and at least 4");
    REFUSED((f.batch.edit_count = f.list, f.batch.edit_stride = 6), "batch.edit_stride", "6 bytes, must be a multiple");
    REFUSED((f.batch.edit_count = f.list, f.batch.edit_stride = 4, f.list[0] = 1), "batch.edit_token", "NULL");
    REFUSED((f.batch.edit_count = f.list, f.batch.edit_stride = 4, f.list[0] = 1, f.batch.edit_token = f.list),
            "batch.edit_bias", "NULL");
}

static void a_bad_limit_is_named(void **state) {
    (void)state;
    REFUSED(limits_of(&f.batch)->absent = 0x40, "limits.absent", "0x40");
    REFUSED(limits_of(&f.batch)->top_k = -3, "limits.top_k", "-3");
    REFUSED(limits_of(&f.batch)->edits = -5, "limits.edits", "-5");
    REFUSED(limits_of(&f.batch)->counts = -6, "counts", "-6");
    REFUSED(limits_of(&f.batch)->watched = -7, "watched", "-7");
    REFUSED(limits_of(&f.batch)->watched = INT64_MAX, "watched", "2^40");
    REFUSED((f.batch.edit_offset = f.offset, f.batch.edit_token = f.list, f.batch.edit_bias = f.bias,
             limits_of(&f.batch)->edits = 1),
            "limits.edits is 1", "2 entries");
    REFUSED((f.batch.count_offset = f.offset, f.batch.count_token = f.list, f.batch.count_value = f.list,
             limits_of(&f.batch)->counts = 1),
            "limits.counts is 1", "2 entries");
    REFUSED((f.batch.watch_offset = f.offset, f.batch.watch_token = f.list, limits_of(&f.batch)->watched = 1),
            "limits.watched is 1", "2 entries");
}

static void a_bad_result_is_named(void **state) {
    (void)state;
    REFUSED(f.result.tokens = NULL, "result.tokens", "score");
    REFUSED(f.result.tokens_dtype = FS_F16, "result.tokens_dtype", "1");
    REFUSED(f.result.logits_mode = 3, "result.logits_mode", "3");
    REFUSED(f.result.top_count = 1025, "result.top_count", "1024");
    REFUSED(f.result.watch_logit = f.bias, "result.watch_logit", "watch_offset");
    REFUSED(f.result.size = 16, "result.size", "16");
    REFUSED(f.result.size = 4097, "result.size", "4096");
}

static void what_is_not_there_yet_says_so(void **state) {
    (void)state;
    fixture f;
    make(&f);
    f.head.dtype = FS_Q6_K;
    refused(&f, FS_ERR_UNSUPPORTED, "head.dtype", "FS_Q6_K weights are not supported yet");
    fs_options options = fs_options_default();
    options.backend = FS_BACKEND_CUDA;
    fs_context *context = NULL;
    fs_status status = fs_context_create(&options, &context);
    assert_true(status == FS_OK || status == FS_ERR_UNSUPPORTED || status == FS_ERR_DEVICE);
    if (status != FS_OK) assert_non_null(strstr(fs_error_text(NULL), "cuda"));
    fs_context_destroy(context);
    make(&f);
    assert_int_equal(fs_context_set_stream(f.context, NULL), FS_ERR_UNSUPPORTED);
    fs_context_destroy(f.context);
}

/* A caller compiled against a later header may bring longer structs, as long as what we do not know is zero. */
static void later_structs_are_read_as_far_as_they_are_known(void **state) {
    (void)state;
    fixture f;
    make(&f);
    struct {
        fs_batch batch;
        int64_t later;
    } longer;
    memset(&longer, 0, sizeof longer);
    longer.batch = f.batch;
    longer.batch.size = sizeof longer;
    assert_int_equal(fs_sample(f.context, &f.head, &longer.batch, &f.result), FS_OK);
    longer.later = 1;
    assert_int_equal(fs_sample(f.context, &f.head, &longer.batch, &f.result), FS_ERR_UNSUPPORTED);
    assert_non_null(strstr(fs_error_text(f.context), "batch.size"));
    fs_context_destroy(f.context);
}

static void a_stream_is_refused_where_there_are_none(void **state) {
    (void)state;
    REFUSED(f.batch.cuda_stream = FS_STREAM_DEFAULT, "batch.cuda_stream is 0x1", "the cpu backend has no streams");
    fs_context *context = open_context(FS_BACKEND_REFERENCE, 1, 0);
    fs_drafts drafts = fs_drafts_default();
    drafts.cuda_stream = FS_STREAM_DEFAULT;
    assert_int_equal(fs_accept_drafts(context, &drafts), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(context), "drafts.cuda_stream is 0x1"));
    assert_int_equal(fs_accept_drafts(NULL, &drafts), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "drafts.cuda_stream is 0x1"));
    fs_context_destroy(context);
}

static void null_arguments_are_refused(void **state) {
    (void)state;
    fixture f;
    make(&f);
    size_t bytes;
    assert_int_equal(fs_sample(NULL, &f.head, &f.batch, &f.result), FS_ERR_ARGUMENT);
    assert_int_equal(fs_sample(f.context, NULL, &f.batch, &f.result), FS_ERR_ARGUMENT);
    assert_int_equal(fs_sample(f.context, &f.head, NULL, &f.result), FS_ERR_ARGUMENT);
    assert_int_equal(fs_sample(f.context, &f.head, &f.batch, NULL), FS_ERR_ARGUMENT);
    assert_int_equal(fs_context_create(NULL, NULL), FS_ERR_ARGUMENT);
    assert_int_equal(fs_work_size(f.context, &f.head, &f.batch, &f.result, NULL, NULL), FS_ERR_ARGUMENT);
    assert_int_equal(fs_partial_size(f.context, &f.head, &f.batch, &f.result, NULL), FS_ERR_ARGUMENT);
    assert_int_equal(fs_partial(f.context, &f.head, &f.batch, &f.result, NULL, 0), FS_ERR_ARGUMENT);
    assert_int_equal(fs_merge(f.context, &f.head, &f.batch, NULL, 1, &f.result), FS_ERR_ARGUMENT);
    assert_int_equal(fs_accept_drafts(NULL, NULL), FS_ERR_ARGUMENT);
    assert_int_equal(fs_partial_size(f.context, &f.head, &f.batch, &f.result, &bytes), FS_OK);
    char part[256];
    assert_true(bytes < sizeof part);
    assert_int_equal(fs_partial(f.context, &f.head, &f.batch, &f.result, part, bytes - 1), FS_ERR_ARGUMENT);
    fs_context_destroy(NULL);
    assert_string_equal(fs_context_text(NULL), "");
    fs_context_destroy(f.context);
}

static void bad_work_memory_is_named(void **state) {
    (void)state;
    _Alignas(64) static char memory[128];
    fixture f;
    make(&f);
    assert_int_equal(fs_context_set_work(NULL, memory, 64), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "context"));
    assert_int_equal(fs_context_set_work(f.context, memory + 32, 64), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(f.context), "aligned"));
    assert_int_equal(fs_context_set_work(f.context, NULL, 64), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(f.context), "64"));
    assert_non_null(strstr(fs_error_text(f.context), "NULL"));
    /* What was refused has changed nothing. */
    assert_int_equal(fs_sample(f.context, &f.head, &f.batch, &f.result), FS_OK);
    /* Memory of no bytes is memory that is too small, not none. */
    f.tokens[0] = 12345;
    assert_int_equal(fs_context_set_work(f.context, memory, 0), FS_OK);
    refused(&f, FS_ERR_MEMORY, "work memory of 0 bytes", "fs_work_size");
}

static void bad_options_are_named(void **state) {
    (void)state;
    fs_context *context;
    fs_options options = fs_options_default();
    options.backend = 9;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "9"));
    options = fs_options_default();
    options.block = -1;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ARGUMENT);
    options = fs_options_default();
    options.threads = 4097;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "options.threads is 4097, must be 0 (every core) to 4096"));
    options = fs_options_default();
    options.size = 4097;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "4096"));
    options = fs_options_default();
    options.work = (void *)1;
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(NULL), "aligned"));
    assert_null(context);
}

static void a_forced_choice_that_cannot_run_is_an_error(void **state) {
    (void)state;
    fs_context *context;
    const char *isa = getenv("FLASHSAMPLING_ISA");
    char kept[64] = "";
    if (isa) snprintf(kept, sizeof kept, "%s", isa);
    assert_int_equal(setenv("FLASHSAMPLING_ISA", "z80", 1), 0);
    assert_int_equal(fs_context_create(NULL, &context), FS_ERR_ENVIRONMENT);
    assert_non_null(strstr(fs_error_text(NULL), "z80"));
    assert_non_null(strstr(fs_error_text(NULL), "scalar"));
    unsetenv("FLASHSAMPLING_ISA");
    if (isa) setenv("FLASHSAMPLING_ISA", kept, 1);
    setenv("FLASHSAMPLING_BACKEND", "abacus", 1);
    assert_int_equal(fs_context_create(NULL, &context), FS_ERR_ENVIRONMENT);
    assert_non_null(strstr(fs_error_text(NULL), "abacus"));
    unsetenv("FLASHSAMPLING_BACKEND");
}

static void refused_environment(const char *name, const char *value, int refused) {
    fs_context *context;
    assert_int_equal(setenv(name, value, 1), 0);
    const fs_status status = fs_context_create(NULL, &context);
    unsetenv(name);
    fs_context_destroy(context);
    if (status != (refused ? FS_ERR_ENVIRONMENT : FS_OK)) fail_msg("%s=%s: %s", name, value, fs_status_text(status));
    if (!refused) return;
    assert_non_null(strstr(fs_error_text(NULL), name));
    assert_non_null(strstr(fs_error_text(NULL), value));
}

static void variables_of_a_backend_that_is_not_used_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *name, *good, *bad[4];
    } table[] = {{"FLASHSAMPLING_CUDA_TILE", "sm90:64", {"sm91", "sm90:", "portable:x", "sm90:64k"}},
                 {"FLASHSAMPLING_CUDA_LIST", "300", {"many", "-1", "8193", "3k"}},
                 {"FLASHSAMPLING_CUDA_TEAM", "4:256", {"3", "16", "4:300", "four"}}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        refused_environment(table[i].name, table[i].good, 0);
        for (int k = 0; k < 4; k++) refused_environment(table[i].name, table[i].bad[k], 1);
    }
}

static void a_forced_backend_that_is_not_in_this_build_is_an_error(void **state) {
    (void)state;
    fs_context *context;
    fs_options options = fs_options_default();
    options.backend = FS_BACKEND_CUDA;
    if (fs_context_create(&options, &context) == FS_OK || !strstr(fs_error_text(NULL), "not in this build")) {
        fs_context_destroy(context);
        print_message("skip: the CUDA backend is in this build\n");
        skip();
    }
    setenv("FLASHSAMPLING_BACKEND", "cuda", 1);
    assert_int_equal(fs_context_create(NULL, &context), FS_ERR_ENVIRONMENT);
    assert_non_null(strstr(fs_error_text(NULL), "FLASHSAMPLING_BACKEND=cuda"));
    assert_null(context);
    unsetenv("FLASHSAMPLING_BACKEND");
}

/* Those that are damaged or too few: test_parts.c. */
static void parts_of_other_calls_are_refused(void **state) {
    (void)state;
    fixture f;
    make(&f);
    rules_of(&f.batch)->top_k.value = 3;
    size_t bytes;
    char part[512];
    const void *parts[1] = {part};
    assert_int_equal(fs_partial_size(f.context, &f.head, &f.batch, &f.result, &bytes), FS_OK);
    assert_true(bytes <= sizeof part);
    assert_int_equal(fs_partial(f.context, &f.head, &f.batch, &f.result, part, bytes), FS_OK);
    fs_batch other = f.batch;
    other.seed_all = 99;
    assert_int_equal(fs_merge(f.context, &f.head, &other, parts, 1, &f.result), FS_ERR_PEER);
    assert_non_null(strstr(fs_error_text(f.context), "seed"));
    fs_context_destroy(f.context);
}

/* Who merges has neither W nor hidden states, but says which head the parts are of. */
static void a_merge_needs_no_data(void **state) {
    (void)state;
    fixture f;
    make(&f);
    size_t bytes;
    int32_t drawn[2];
    char part[256];
    const void *parts[1] = {part};
    assert_int_equal(fs_partial_size(f.context, &f.head, &f.batch, &f.result, &bytes), FS_OK);
    assert_true(bytes <= sizeof part);
    assert_int_equal(fs_partial(f.context, &f.head, &f.batch, &f.result, part, bytes), FS_OK);
    assert_int_equal(fs_sample(f.context, &f.head, &f.batch, &f.result), FS_OK);
    memcpy(drawn, f.tokens, sizeof drawn);
    f.head.vocab = f.head.rows;
    f.head.data = NULL, f.head.rows = 0;
    f.batch.hidden = NULL;
    f.tokens[0] = f.tokens[1] = 12345;
    if (fs_merge(f.context, &f.head, &f.batch, parts, 1, &f.result) != FS_OK) fail_msg("%s", fs_error_text(f.context));
    assert_memory_equal(drawn, f.tokens, sizeof drawn);
    f.head.softcap = 3.0f;
    assert_int_equal(fs_merge(f.context, &f.head, &f.batch, parts, 1, &f.result), FS_ERR_PEER);
    assert_non_null(strstr(fs_error_text(f.context), "softcap"));
    fs_context_destroy(f.context);
}

/* Lists of many parts together must fit an index; the check comes before any memory. */
static void too_many_entries_to_merge_are_refused(void **state) {
    (void)state;
    fixture f;
    make(&f);
    static char part[64];
    static const void *parts[65536];
    for (int i = 0; i < 65536; i++) parts[i] = part;
    f.head.vocab = 1 << 20;
    rules_of(&f.batch)->top_p.value = 0.5f;
    f.batch.list_capacity = 1 << 20;
    assert_int_equal(fs_merge(f.context, &f.head, &f.batch, parts, 65536, &f.result), FS_ERR_ARGUMENT);
    assert_non_null(strstr(fs_error_text(f.context), "1048576"));
    fs_context_destroy(f.context);
}

static void an_empty_batch_is_nothing_to_do(void **state) {
    (void)state;
    fixture f;
    make(&f);
    f.batch.rows = 0;
    f.batch.hidden = NULL;
    f.result.tokens = NULL;
    assert_int_equal(fs_sample(f.context, &f.head, &f.batch, &f.result), FS_OK);
    f.head.kind = FS_HEAD_LOGITS;
    f.head.data = NULL; /* of no rows there is nothing to store */
    if (fs_sample(f.context, &f.head, &f.batch, &f.result) != FS_OK) fail_msg("%s", fs_error_text(f.context));
    fs_context_destroy(f.context);
}

/* An index far off would lift the mask, or read what is not there. */
static void a_mask_that_is_not_there_leaves_a_row_without_a_token(void **state) {
    (void)state;
    const uint32_t allow[4] = {1u << 7, 0, 1u << 9, 0};
    const int32_t index[4][2] = {{-2, 1}, {INT32_MIN, 0}, {2, 1}, {0, INT32_MAX}};
    uint32_t status[2];
    for (int i = 0; i < 10; i++) {
        fixture f;
        make(&f);
        if (i % 2) fs_context_destroy(f.context), f.context = open_context(FS_BACKEND_REFERENCE, 1, 0);
        f.batch.allow = allow;
        f.batch.allow_count = i / 2 < 2 ? 0 : 2; /* without their number only what is below -1 is known to be wrong */
        f.batch.allow_index = i / 2 < 4 ? index[i / 2] : NULL;
        if (i / 2 == 4) f.batch.allow_count = 1; /* row 1 has none */
        f.result.status = status;
        assert_int_equal(fs_sample(f.context, &f.head, &f.batch, &f.result), FS_OK);
        for (int b = 0; b < 2; b++) {
            const int32_t mask = f.batch.allow_index ? f.batch.allow_index[b] : b;
            const int is_bad = mask < -1 || (f.batch.allow_count && mask >= f.batch.allow_count);
            assert_int_equal(status[b], is_bad ? FS_ROW_BAD_MASK : FS_ROW_OK);
            assert_int_equal(f.tokens[b], is_bad ? -1 : mask ? 9 : 7);
        }
        fs_context_destroy(f.context);
    }
}

static void statuses_have_texts(void **state) {
    (void)state;
    for (fs_status s = FS_OK; s >= FS_ERR_CANCELLED; s--) assert_string_not_equal(fs_status_text(s), "unknown status");
    assert_string_equal(fs_status_text(1), "unknown status");
    assert_int_equal(fs_version(), FS_VERSION_MAJOR << 16 | FS_VERSION_MINOR << 8 | FS_VERSION_PATCH);
    assert_non_null(strchr(fs_version_text(), '.'));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_head_is_named),
        cmocka_unit_test(a_bad_batch_is_named),
        cmocka_unit_test(a_bad_list_is_named),
        cmocka_unit_test(a_bad_limit_is_named),
        cmocka_unit_test(a_bad_result_is_named),
        cmocka_unit_test(what_is_not_there_yet_says_so),
        cmocka_unit_test(later_structs_are_read_as_far_as_they_are_known),
        cmocka_unit_test(a_stream_is_refused_where_there_are_none),
        cmocka_unit_test(null_arguments_are_refused),
        cmocka_unit_test(bad_work_memory_is_named),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(a_forced_choice_that_cannot_run_is_an_error),
        cmocka_unit_test(variables_of_a_backend_that_is_not_used_are_checked),
        cmocka_unit_test(a_forced_backend_that_is_not_in_this_build_is_an_error),
        cmocka_unit_test(parts_of_other_calls_are_refused),
        cmocka_unit_test(a_merge_needs_no_data),
        cmocka_unit_test(too_many_entries_to_merge_are_refused),
        cmocka_unit_test(an_empty_batch_is_nothing_to_do),
        cmocka_unit_test(a_mask_that_is_not_there_leaves_a_row_without_a_token),
        cmocka_unit_test(statuses_have_texts),
    };
    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
