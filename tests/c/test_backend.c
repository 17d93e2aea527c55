/* A build with the CUDA backend, as far as a machine without a GPU can show it: src/backend.c once more, with a backend of that name
 * that has only what every backend must have. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#define FS_WITH_CUDA
#include "backend.c"

#include "support.h"

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

static fs_status fake_sample(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result) {
    (void)head, (void)batch, (void)result;
    return fs_fail(context, FS_ERR_INTERNAL, "a fake draws nothing");
}

const fs_backend fs_backend_cuda = {.name = "cuda", .open = fake_open, .close = fake_close, .sample = fake_sample};

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cuda_backend_is_there_when_it_is_asked_for),
        cmocka_unit_test(work_memory_is_refused_by_a_backend_that_takes_none),
    };
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
