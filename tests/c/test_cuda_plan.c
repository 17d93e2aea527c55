/* The CUDA plan, which needs no GPU: which tile, how many CTAs, what is refused. */
#include "support.h"

#include "cuda/cuda_plan.h"

static const fs_cuda_shape shapes[] = {{8, 1, 5, 128, 0}, {64, 1, 4, 128, 0}, {128, 2, 3, 128, 0}, {256, 2, 4, 64, 0}};
static const fs_cuda_device h200 = {9, 0, 132, 66};

static fs_cuda_plan plan_of(int64_t vocab, int64_t dim, int64_t rows) {
    fs_head head = fs_head_default();
    head.dtype = FS_BF16, head.rows = vocab, head.dim = dim;
    fs_cuda_plan plan;
    if (!fs_cuda_plan_launch(&h200, shapes, 4, &head, rows, &plan)) fail_msg("%s", plan.text);
    return plan;
}

static void the_narrowest_tile_that_holds_the_rows_is_taken(void **state) {
    (void)state;
    const int64_t rows[] = {1, 8, 9, 64, 65, 128, 129, 256};
    const int32_t width[] = {8, 8, 64, 64, 128, 128, 256, 256};
    for (int i = 0; i < 8; i++) assert_int_equal(plan_of(151936, 4096, rows[i]).shape->rows, width[i]);
}

static void every_processor_works_where_there_are_tiles_for_it(void **state) {
    (void)state;
    assert_int_equal(plan_of(151936, 4096, 1).grid, 132);
    assert_int_equal(plan_of(151936, 4096, 256).grid, 132);
    for (int64_t vocab = 1; vocab < 40000; vocab += 97)
        for (int64_t rows = 1; rows <= 256; rows += 85) {
            fs_cuda_plan plan = plan_of(vocab, 64, rows);
            assert_true(plan.grid >= plan.shape->cluster && plan.grid <= 132);
            assert_int_equal(plan.grid % plan.shape->cluster, 0);
        }
}

static void stages_cover_every_remainder_of_the_hidden_size(void **state) {
    (void)state;
    for (int64_t dim = 1; dim < 600; dim++)
        for (int64_t rows = 1; rows <= 256; rows += 255) {
            fs_cuda_plan plan = plan_of(1000, dim, rows);
            assert_true((int64_t)plan.k_steps * plan.shape->k >= dim &&
                        (int64_t)(plan.k_steps - 1) * plan.shape->k < dim);
        }
}

static void the_prediction_is_the_larger_of_reading_and_computing(void **state) {
    (void)state;
    double narrow = plan_of(151936, 4096, 1).microseconds, wide = plan_of(151936, 4096, 256).microseconds;
    assert_true(narrow > 270.0 && narrow < 285.0);
    assert_true(wide > 395.0 && wide < 410.0);
}

static void what_has_no_kernel_is_refused_in_words(void **state) {
    (void)state;
    fs_head head = fs_head_default();
    head.rows = 1000, head.dim = 64;
    fs_cuda_plan plan;
    const fs_cuda_device old = {8, 6, 84, 0};
    assert_int_equal(fs_cuda_plan_launch(&old, shapes, 4, &head, 1, &plan), 0);
    assert_non_null(strstr(plan.text, "8.6"));
    assert_int_equal(fs_cuda_plan_launch(&h200, shapes, 4, &head, 257, &plan), 0);
    assert_non_null(strstr(plan.text, "257"));
    const fs_cuda_device alone = {9, 0, 132, 0};
    assert_int_equal(fs_cuda_plan_launch(&alone, shapes, 4, &head, 128, &plan), 0);
}

static void unaligned_data_is_noticed(void **state) {
    (void)state;
    static _Alignas(16) char memory[64];
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    head.data = memory, head.dim = 64, batch.hidden = memory;
    assert_true(fs_cuda_plan_aligned(&head, &batch));
    head.data = memory + 2;
    assert_false(fs_cuda_plan_aligned(&head, &batch));
    head.data = memory, head.dim = 60;
    assert_false(fs_cuda_plan_aligned(&head, &batch));
    head.stride = 128, batch.hidden_stride = 136;
    assert_false(fs_cuda_plan_aligned(&head, &batch));
    batch.hidden_stride = 128;
    assert_true(fs_cuda_plan_aligned(&head, &batch));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_narrowest_tile_that_holds_the_rows_is_taken),
        cmocka_unit_test(every_processor_works_where_there_are_tiles_for_it),
        cmocka_unit_test(stages_cover_every_remainder_of_the_hidden_size),
        cmocka_unit_test(the_prediction_is_the_larger_of_reading_and_computing),
        cmocka_unit_test(what_has_no_kernel_is_refused_in_words),
        cmocka_unit_test(unaligned_data_is_noticed),
    };
    return cmocka_run_group_tests_name("cuda_plan", tests, NULL, NULL);
}
