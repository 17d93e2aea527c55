/* cmocka.h (lite) - the part of cmocka's interface that our C tests use, in one header.
 *
 * Cross builds run the same tests under qemu-user, and distributions do not install cmocka for a second architecture;
 * machines without any package run them with this header too. Where cmocka itself is installed it is used instead.
 * Output is TAP on stdout, as cmocka writes it under CMOCKA_MESSAGE_OUTPUT=TAP. No mocks, no leak checks: sanitizers
 * do that. A crash ends the program; scripts/test.py then reports the cases that are missing from the plan.
 */
#ifndef CMOCKA_H_
#define CMOCKA_H_

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

/* Weak, so that a test and its helper files share one definition without a library. */
__attribute__((weak)) jmp_buf cmocka_lite_return;
__attribute__((weak)) int cmocka_lite_outcome;

enum { CMOCKA_LITE_PASSED = 0, CMOCKA_LITE_FAILED = 1, CMOCKA_LITE_SKIPPED = 2 };

#define cmocka_unit_test(f)                                                                                            \
    { #f, f, NULL, NULL, NULL }
#define cmocka_unit_test_setup(f, setup)                                                                               \
    { #f, f, setup, NULL, NULL }
#define cmocka_unit_test_teardown(f, teardown)                                                                         \
    { #f, f, NULL, teardown, NULL }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                                            \
    { #f, f, setup, teardown, NULL }
#define cmocka_unit_test_prestate(f, state)                                                                            \
    { #f, f, NULL, NULL, state }
#define cmocka_unit_test_prestate_setup_teardown(f, setup, teardown, state)                                            \
    { #f, f, setup, teardown, state }

__attribute__((format(printf, 1, 2))) static inline void print_message(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    fflush(stdout);
}

__attribute__((format(printf, 1, 2))) static inline void print_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fflush(stderr);
}

__attribute__((noreturn)) static inline void cmocka_lite_end(int how) {
    cmocka_lite_outcome = how;
    longjmp(cmocka_lite_return, 1);
}

__attribute__((noreturn, format(printf, 3, 4))) static inline void cmocka_lite_fail(const char *file, int line,
                                                                                    const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("# %s:%d: ", file, line);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    fflush(stdout);
    cmocka_lite_end(CMOCKA_LITE_FAILED);
}

#define fail() cmocka_lite_fail(__FILE__, __LINE__, "failed")
#define fail_msg(...) cmocka_lite_fail(__FILE__, __LINE__, __VA_ARGS__)
#define skip() cmocka_lite_end(CMOCKA_LITE_SKIPPED)

static inline void cmocka_lite_true(int good, const char *text, const char *file, int line) {
    if (!good) cmocka_lite_fail(file, line, "%s", text);
}

static inline void cmocka_lite_integers(uintmax_t a, uintmax_t b, int want, const char *text, const char *file,
                                        int line) {
    if ((a == b) != want) cmocka_lite_fail(file, line, "%s: %#jx %s %#jx", text, a, want ? "!=" : "==", b);
}

/* Equal NaNs and infinities compare equal, as in cmocka. */
static inline void cmocka_lite_floats(double a, double b, double epsilon, int want, const char *text, const char *file,
                                      int line) {
    int equal = a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= epsilon;
    if (equal != want)
        cmocka_lite_fail(file, line, "%s: %.9g %s %.9g within %.3g", text, a, want ? "!=" : "==", b, epsilon);
}

static inline void cmocka_lite_strings(const char *a, const char *b, int want, const char *file, int line) {
    if ((strcmp(a, b) == 0) != want) cmocka_lite_fail(file, line, "\"%s\" %s \"%s\"", a, want ? "!=" : "==", b);
}

static inline void cmocka_lite_memory(const void *a, const void *b, size_t size, int want, const char *file, int line) {
    const unsigned char *p = (const unsigned char *)a, *q = (const unsigned char *)b;
    size_t i = 0;
    while (i < size && p[i] == q[i]) i++;
    if ((i == size) != want && want)
        cmocka_lite_fail(file, line, "memory differs at byte %zu of %zu: %#x != %#x", i, size, p[i], q[i]);
    if ((i == size) != want) cmocka_lite_fail(file, line, "%zu bytes of memory are equal", size);
}

#define assert_true(c) cmocka_lite_true(!!(c), #c, __FILE__, __LINE__)
#define assert_false(c) cmocka_lite_true(!(c), "!(" #c ")", __FILE__, __LINE__)
#define assert_non_null(c) cmocka_lite_true((c) != NULL, #c " != NULL", __FILE__, __LINE__)
#define assert_null(c) cmocka_lite_true((c) == NULL, #c " == NULL", __FILE__, __LINE__)
#define assert_ptr_equal(a, b)                                                                                         \
    cmocka_lite_true((const void *)(a) == (const void *)(b), #a " == " #b, __FILE__, __LINE__)
#define assert_ptr_not_equal(a, b)                                                                                     \
    cmocka_lite_true((const void *)(a) != (const void *)(b), #a " != " #b, __FILE__, __LINE__)
#define assert_return_code(rc, error) cmocka_lite_true((rc) >= 0, #rc " >= 0", __FILE__, __LINE__)
#define assert_int_equal(a, b) cmocka_lite_integers((uintmax_t)(a), (uintmax_t)(b), 1, #a " == " #b, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)                                                                                     \
    cmocka_lite_integers((uintmax_t)(a), (uintmax_t)(b), 0, #a " != " #b, __FILE__, __LINE__)
#define assert_float_equal(a, b, epsilon)                                                                              \
    cmocka_lite_floats((double)(a), (double)(b), (double)(epsilon), 1, #a " == " #b, __FILE__, __LINE__)
#define assert_float_not_equal(a, b, epsilon)                                                                          \
    cmocka_lite_floats((double)(a), (double)(b), (double)(epsilon), 0, #a " != " #b, __FILE__, __LINE__)
#define assert_string_equal(a, b) cmocka_lite_strings((a), (b), 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) cmocka_lite_strings((a), (b), 0, __FILE__, __LINE__)
#define assert_memory_equal(a, b, size) cmocka_lite_memory((a), (b), (size), 1, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, size) cmocka_lite_memory((a), (b), (size), 0, __FILE__, __LINE__)
#define assert_in_range(value, least, most)                                                                            \
    cmocka_lite_true((uintmax_t)(value) >= (uintmax_t)(least) && (uintmax_t)(value) <= (uintmax_t)(most),              \
                     #value " in [" #least ", " #most "]", __FILE__, __LINE__)

/* Runs one test and returns how it ended. A teardown runs even after a failure, as in cmocka. */
static inline int cmocka_lite_one(const struct CMUnitTest *test, void **state) {
    if (test->setup_func && test->setup_func(state) != 0) return CMOCKA_LITE_FAILED;
    cmocka_lite_outcome = CMOCKA_LITE_PASSED;
    if (setjmp(cmocka_lite_return) == 0) test->test_func(state);
    if (test->teardown_func && test->teardown_func(state) != 0) return CMOCKA_LITE_FAILED;
    return cmocka_lite_outcome;
}

static inline int cmocka_lite_run(const char *group, const struct CMUnitTest *tests, size_t count,
                                  CMFixtureFunction setup, CMFixtureFunction teardown) {
    int failed = 0;
    void *group_state = NULL;
    printf("1..%zu\n", count);
    fflush(stdout);
    int ready = !setup || setup(&group_state) == 0;
    for (size_t i = 0; i < count; i++) {
        void *state = tests[i].initial_state ? tests[i].initial_state : group_state;
        int how = ready ? cmocka_lite_one(&tests[i], &state) : CMOCKA_LITE_FAILED;
        failed += how == CMOCKA_LITE_FAILED;
        if (how == CMOCKA_LITE_SKIPPED) printf("ok %zu # SKIP %s\n", i + 1, tests[i].name);
        else printf("%sok %zu - %s\n", how == CMOCKA_LITE_FAILED ? "not " : "", i + 1, tests[i].name);
        fflush(stdout);
    }
    if (ready && teardown) failed += teardown(&group_state) != 0;
    printf("# %sok - %s\n", failed ? "not " : "", group);
    fflush(stdout);
    return failed;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    cmocka_lite_run(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                                      \
    cmocka_lite_run(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

/* cmocka's allocators with leak checks; the plain ones here. */
#define test_malloc(size) malloc(size)
#define test_calloc(count, size) calloc(count, size)
#define test_realloc(memory, size) realloc(memory, size)
#define test_free(memory) free(memory)

#endif
