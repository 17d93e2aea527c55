/* What fs_supports says of a backend is what its calls do; tests/c/test_backend.c has the same of CUDA's answers,
 * without a GPU. */
#include "call_descs.h"

static void the_cpu_backend_does_what_it_says(void **state) {
    (void)state;
    answers_are_kept(FS_BACKEND_CPU, FS_OK);
}

static void the_reference_backend_does_what_it_says(void **state) {
    (void)state;
    answers_are_kept(FS_BACKEND_REFERENCE, FS_OK);
}

/* Expects this refusal, both words in the text, the first in the constant answer too. */
static void refused(int32_t backend, const fs_call_desc *o, const char *word, const char *value) {
    const char *why = NULL;
    assert_int_equal(fs_supports(backend, o, &why), FS_ERR_ARGUMENT);
    const char *text = fs_error_text(NULL);
    if (!strstr(why, word) || !strstr(text, word) || !strstr(text, value))
        fail_msg("'%s', '%s' do not name %s and %s", why, text, word, value);
    assert_int_equal(fs_supports(backend, o, NULL), FS_ERR_ARGUMENT);
}

#define REFUSED(change, word, value)                                                                                   \
    do {                                                                                                               \
        fs_call_desc o = fs_call_desc_default();                                                                       \
        change;                                                                                                        \
        refused(FS_BACKEND_CPU, &o, word, value);                                                                      \
    } while (0)

static void a_description_that_nobody_could_do_is_named(void **state) {
    (void)state;
    const fs_call_desc plain = fs_call_desc_default();
    REFUSED(o.size = 8, "call_desc", "8");
    REFUSED(o.size = 4097, "call_desc", "4096");
    REFUSED(o.call = 3, "call_desc.call", "3");
    REFUSED(o.call = -1, "call_desc.call", "-1");
    REFUSED(o.kind = 2, "call_desc.kind", "2");
    REFUSED(o.dtype = 3, "call_desc.dtype", "3");
    REFUSED(o.dtype = FS_I32, "call_desc.dtype", "8");
    REFUSED(o.dtype = 20, "call_desc.dtype", "20");
    REFUSED((o.kind = FS_HEAD_LOGITS, o.dtype = FS_Q6_K), "call_desc.dtype", "34");
    REFUSED(o.hidden_dtype = FS_Q6_K, "call_desc.hidden_dtype", "34");
    REFUSED(o.mode = 5, "call_desc.mode", "5");
    REFUSED(o.noise = 2, "call_desc.noise", "2");
    REFUSED(o.samples = -1, "call_desc.samples", "-1");
    REFUSED(o.samples = 1025, "call_desc.samples", "1024");
    REFUSED((o.mode = FS_MODE_GROUP_PARALLEL, o.group_size = 8, o.samples = 2), "call_desc.samples", "group");
    REFUSED(o.mode = FS_MODE_GROUP_PARALLEL, "call_desc.group_size", "0");
    REFUSED((o.mode = FS_MODE_GROUP_ONLINE, o.group_size = 1 << 24), "call_desc.group_size", "16777216");
    REFUSED((o.mode = FS_MODE_GROUP_ONLINE, o.group_size = 8, o.rules = FS_RULE_MIN_P), "call_desc.rules", "group");
    REFUSED(o.logits_mode = 3, "call_desc.logits_mode", "3");
    REFUSED(o.rules = 64, "call_desc.rules", "64");
    REFUSED(o.results = 1024, "call_desc.results", "1024");
    REFUSED(o.flags = 256, "call_desc.flags", "256");
    REFUSED(o.inputs = 4, "call_desc.inputs", "4");
    refused(FS_BACKEND_AUTO, &plain, "backend", "0");
    refused(4, &plain, "backend", "4");
    refused(FS_BACKEND_CPU, NULL, "call_desc", "NULL");
}

static void a_backend_that_is_not_in_this_build_does_nothing(void **state) {
    (void)state;
    const fs_call_desc plain = fs_call_desc_default();
    fs_options options = fs_options_default();
    fs_context *context;
    const char *why;
    options.backend = FS_BACKEND_CUDA;
    if (fs_context_create(&options, &context) == FS_OK || !strstr(fs_error_text(NULL), "not in this build")) {
        fs_context_destroy(context);
        print_message("skip: the CUDA backend is in this build\n");
        skip();
    }
    assert_int_equal(fs_supports(FS_BACKEND_CUDA, &plain, &why), FS_ERR_UNSUPPORTED);
    assert_string_equal(why, "the cuda backend is not in this build");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_backend_does_what_it_says),
        cmocka_unit_test(the_reference_backend_does_what_it_says),
        cmocka_unit_test(a_description_that_nobody_could_do_is_named),
        cmocka_unit_test(a_backend_that_is_not_in_this_build_does_nothing),
    };
    return cmocka_run_group_tests_name("supports", tests, NULL, NULL);
}
