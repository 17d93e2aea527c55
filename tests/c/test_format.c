/* Formats: bytes of a row by what the formats themselves say, and strides that a caller leaves out. */
#include "core/format.h"
#include "support.h"

static void rows_have_the_bytes_of_their_format(void **state) {
    (void)state;
    static const struct {
        int32_t dtype;
        int64_t columns, bytes;
    } rows[] = {
        {FS_F32, 100, 400},    {FS_F16, 100, 200},
        {FS_BF16, 101, 202},   {FS_Q8_0, 4096, 4352}, /* 32 bytes and a half for 32 */
        {FS_Q5_K, 4096, 2816},                        /* 5.5 bits */
        {FS_Q6_K, 4096, 3360},                        /* 6.5625 bits */
        {FS_Q6_K, 257, 420},
    };
    int seen[FS_FORMATS] = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int32_t format = format_of(rows[i].dtype);
        assert_in_range(format, 0, FS_FORMATS - 1);
        assert_int_equal(format_row_bytes(format, rows[i].columns), rows[i].bytes);
        assert_int_equal(dtype_is_float(rows[i].dtype), rows[i].dtype <= FS_BF16);
        seen[format] = 1;
    }
    for (int i = 0; i < FS_FORMATS; i++) assert_true(seen[i]);
    assert_int_equal(format_of(FS_I32), -1);
    assert_int_equal(format_of(3), -1);
    assert_false(dtype_is_float(FS_I64));
}

/* V, D and B differ, so that none can stand for another. */
static void strides_left_out_are_those_of_packed_rows(void **state) {
    (void)state;
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    head.rows = 50;
    head.dim = 24;
    head.dtype = FS_BF16;
    batch.rows = 3;
    batch.hidden_dtype = FS_F32;
    assert_int_equal(weights_of_head(&head).stride, 48);
    assert_int_equal(hidden_of_batch(&head, &batch).stride, 96);
    assert_int_equal(logits_of_head(&head).stride, 100);
    head.stride = 128;
    batch.hidden_stride = 256;
    assert_int_equal(weights_of_head(&head).stride, 128);
    assert_int_equal(hidden_of_batch(&head, &batch).stride, 256);
    assert_int_equal(logits_of_head(&head).stride, 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bytes_of_their_format),
        cmocka_unit_test(strides_left_out_are_those_of_packed_rows),
    };
    return cmocka_run_group_tests_name("format", tests, NULL, NULL);
}
