/* test_npy.c - .npy files: what is read, what is written, and that no hostile file does more than fail with a text. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include "io/npy.h"

#include <unistd.h>

static char path[256];

static int make_path(void **state) {
    (void)state;
    temporary_name(path, sizeof path);
    int handle = mkstemp(path);
    if (handle < 0) return -1;
    return close(handle);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static void write_bytes(const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* Writes a version 1 file of this dictionary and `n` bytes of elements. */
static void write_file(const char *dictionary, const void *elements, size_t n) {
    unsigned char bytes[4096] = "\x93NUMPY\x01";
    size_t length = strlen(dictionary);
    bytes[8] = (unsigned char)(length & 255);
    bytes[9] = (unsigned char)(length >> 8);
    memcpy(bytes + 10, dictionary, length);
    if (n) memcpy(bytes + 10 + length, elements, n);
    write_bytes(bytes, 10 + length + n);
}

/* The file is refused, with these words and its name in the text. */
static void assert_refused(const char *words) {
    npy_array array;
    char error[NPY_ERROR_CHARS] = "";
    assert_int_equal(npy_read(path, &array, error), -1);
    assert_null(array.data);
    if (!strstr(error, words)) print_error("\"%s\" lacks \"%s\"\n", error, words);
    assert_non_null(strstr(error, words));
    assert_non_null(strstr(error, path));
}

static void assert_header_refused(const char *dictionary, const char *words) {
    static const char zeros[64] = {0};
    write_file(dictionary, zeros, sizeof zeros);
    assert_refused(words);
}

static void every_type_and_rank_survives_a_round_trip(void **state) {
    (void)state;
    static const npy_type types[] = {NPY_F32, NPY_F64, NPY_F16, NPY_BITS16, NPY_BOOL, NPY_I8, NPY_U8,
                                     NPY_I16, NPY_U16, NPY_I32, NPY_U32,    NPY_I64,  NPY_U64};
    unsigned char elements[8 * 24];
    for (size_t i = 0; i < sizeof elements; i++) elements[i] = (unsigned char)(i * 37);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (int rank = 0; rank <= NPY_MAX_RANK; rank++) {
            static const int64_t shape[4] = {3, 2, 1, 4};
            npy_array out = {.type = types[t], .rank = rank, .count = 1, .data = elements};
            for (int i = 0; i < rank; i++) out.count *= out.shape[i] = shape[i];
            out.bytes = (size_t)out.count * npy_type_size(out.type);
            char error[NPY_ERROR_CHARS];
            assert_int_equal(npy_write(path, &out, error), 0);
            npy_array in;
            assert_int_equal(npy_read(path, &in, error), 0);
            assert_int_equal(in.type, out.type);
            assert_int_equal(in.rank, rank);
            for (int i = 0; i < rank; i++) assert_int_equal(in.shape[i], shape[i]);
            assert_int_equal(in.bytes, out.bytes);
            assert_int_equal((uintptr_t)in.data % 64, 0);
            assert_memory_equal(in.data, elements, in.bytes);
            npy_free(&in);
        }
    }
}

static void an_empty_array_is_an_array(void **state) {
    (void)state;
    write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7), }", NULL, 0);
    npy_array array;
    char error[NPY_ERROR_CHARS];
    assert_int_equal(npy_read(path, &array, error), 0);
    assert_int_equal(array.count, 0);
    assert_int_equal(array.shape[1], 7);
    assert_non_null(array.data);
    npy_free(&array);
}

static void keys_come_in_any_order_and_quotes(void **state) {
    (void)state;
    float x[2] = {1.5f, -2.0f};
    write_file("{ \"shape\" : ( 2 , ),\"fortran_order\":False , 'descr':\"<f4\"}   \n", x, sizeof x);
    npy_array array;
    char error[NPY_ERROR_CHARS];
    assert_int_equal(npy_read(path, &array, error), 0);
    assert_int_equal(array.rank, 1);
    assert_memory_equal(array.data, x, sizeof x);
    npy_free(&array);
}

static void version_2_has_a_longer_length(void **state) {
    (void)state;
    const char *dictionary = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }";
    unsigned char bytes[256] = "\x93NUMPY\x02";
    size_t length = strlen(dictionary);
    bytes[8] = (unsigned char)length;
    memcpy(bytes + 12, dictionary, length);
    memcpy(bytes + 12 + length, "abc", 3);
    write_bytes(bytes, 12 + length + 3);
    npy_array array;
    char error[NPY_ERROR_CHARS];
    assert_int_equal(npy_read(path, &array, error), 0);
    assert_memory_equal(array.data, "abc", 3);
    npy_free(&array);
}

static void description_names_shape_and_type(void **state) {
    (void)state;
    char text[64];
    npy_array array = {.type = NPY_F16, .rank = 2, .shape = {151936, 1024, 1, 1}};
    npy_describe(&array, text, sizeof text);
    assert_string_equal(text, "[151936, 1024] f2");
}

static void what_is_not_npy_is_refused(void **state) {
    (void)state;
    write_bytes("", 0);
    assert_refused("not a .npy file");
    write_bytes("PK\x03\x04zipzip", 10);
    assert_refused("not a .npy file");
    write_bytes("\x93NUMPY\x07\x00\x10\x00", 10);
    assert_refused("version 7");
    npy_array array;
    char error[NPY_ERROR_CHARS];
    assert_int_equal(npy_read("/no/such/file.npy", &array, error), -1);
    assert_non_null(strstr(error, "/no/such/file.npy"));
}

static void header_lengths_are_not_trusted(void **state) {
    (void)state;
    write_bytes("\x93NUMPY\x01\x00\xff", 9);
    assert_refused("ends inside its header");
    write_bytes("\x93NUMPY\x01\x00\xff\xff{}", 12);
    assert_refused("ends inside its header");
    write_bytes("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14);
    assert_refused("4294967295 bytes");
    write_bytes("\x93NUMPY\x01\x00\x00\x00", 10);
    assert_refused("not a dictionary");
}

static void hostile_shapes_are_refused(void **state) {
    (void)state;
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}", "no number");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,)}", "no number");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
                          "more elements");
    /* 2^31 * 2^31 * 4 wraps to nothing in 64 bits after the third factor; with a zero it must not slip through. */
    assert_header_refused("{'descr': '<f8', 'fortran_order': False, 'shape': (2147483648, 2147483648, 4, 0)}",
                          "more elements");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", "the file has 64");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "no number");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1)}", "4 dimensions");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3}", "not closed");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': 5}", "not a tuple");
}

static void truncated_and_overlong_files_are_refused(void **state) {
    (void)state;
    static const char zeros[64] = {0};
    write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4)}", zeros, 63);
    assert_refused("promises 64 bytes of elements, the file has 63");
    write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3)}", zeros, 64);
    assert_refused("promises 48 bytes of elements, the file has 64");
}

static void unsupported_layouts_are_refused_with_advice(void **state) {
    (void)state;
    assert_header_refused("{'descr': '<f4', 'fortran_order': True, 'shape': (4, 4)}", "ascontiguousarray");
    assert_header_refused("{'descr': '>f4', 'fortran_order': False, 'shape': (4, 4)}", "big-endian");
    assert_header_refused("{'descr': '<c8', 'fortran_order': False, 'shape': (8,)}", "'<c8' is not supported");
    assert_header_refused("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (8,)}", "structured");
    assert_header_refused("{'descr': '|O', 'fortran_order': False, 'shape': (8,)}", "'|O' is not supported");
}

static void malformed_dictionaries_are_refused(void **state) {
    (void)state;
    assert_header_refused("{'descr': '<f4', 'fortran_order': False}", "lacks one of");
    assert_header_refused("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (16,)}", "twice");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (16,), 'x': 1}", "unknown header key 'x'");
    assert_header_refused("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (16,)}", "neither True nor False");
    assert_header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (16,)} import os", "after its dictionary");
    assert_header_refused("{'descr", "dictionary of strings");
    assert_header_refused("{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (16,)}", "short string");
    assert_header_refused("[]", "not a dictionary");
}

/* Every prefix and every single-byte change of a good header either parses or fails with a text; sanitizer builds
 * watch. */
static void no_mutation_of_a_header_misbehaves(void **state) {
    (void)state;
    static const char good[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (12, 34), }      \n";
    npy_array array;
    char error[NPY_ERROR_CHARS];
    assert_int_equal(npy_parse_header(good, sizeof good - 1, &array, error), 0);
    for (size_t n = 0; n < sizeof good; n++) {
        char *exact = malloc(n ? n : 1); /* so that reading past the end is seen */
        assert_non_null(exact);
        memcpy(exact, good, n);
        for (size_t i = 0; i < n; i++) {
            for (int byte = 0; byte < 256; byte++) {
                exact[i] = (char)byte;
                error[0] = 0;
                int rc = npy_parse_header(exact, n, &array, error);
                if (rc) assert_true(error[0] != 0);
                else assert_true(array.count >= 0 && array.bytes == (size_t)array.count * npy_type_size(array.type));
            }
            exact[i] = good[i];
        }
        free(exact);
    }
}

static void a_write_that_fails_says_so(void **state) {
    (void)state;
    char error[NPY_ERROR_CHARS], x[8192] = {0};
    npy_array array = {
        .type = NPY_U8, .rank = 1, .shape = {sizeof x, 1, 1, 1}, .count = sizeof x, .bytes = sizeof x, .data = x};
    assert_int_equal(npy_write("/no/such/folder/a.npy", &array, error), -1);
    assert_non_null(strstr(error, "/no/such/folder/a.npy"));
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(npy_write("/dev/full", &array, error), -1);
        assert_non_null(strstr(error, "write failed"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_rank_survives_a_round_trip),
        cmocka_unit_test(an_empty_array_is_an_array),
        cmocka_unit_test(keys_come_in_any_order_and_quotes),
        cmocka_unit_test(version_2_has_a_longer_length),
        cmocka_unit_test(description_names_shape_and_type),
        cmocka_unit_test(what_is_not_npy_is_refused),
        cmocka_unit_test(header_lengths_are_not_trusted),
        cmocka_unit_test(hostile_shapes_are_refused),
        cmocka_unit_test(truncated_and_overlong_files_are_refused),
        cmocka_unit_test(unsupported_layouts_are_refused_with_advice),
        cmocka_unit_test(malformed_dictionaries_are_refused),
        cmocka_unit_test(no_mutation_of_a_header_misbehaves),
        cmocka_unit_test(a_write_that_fails_says_so),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
