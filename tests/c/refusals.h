/* refusals.h - a small call, and that a change of it is refused with a text that says why. */
#ifndef FS_TESTS_REFUSALS_H
#define FS_TESTS_REFUSALS_H

#include "support.h"

typedef struct fixture {
    float weights[40 * 4], hidden[2 * 4];
    int32_t tokens[2];
    int64_t offset[3];
    int32_t list[2];
    float bias[2];
    fs_context *context;
    fs_head head;
    fs_batch batch;
    fs_result result;
} fixture;

static inline void make(fixture *f) {
    memset(f, 0, sizeof *f);
    f->context = open_context(FS_BACKEND_CPU, 1, 0);
    assert_string_equal(fs_error_text(f->context), "");
    f->head = fs_head_default();
    f->head.data = f->weights, f->head.rows = 40, f->head.dim = 4;
    f->batch = fs_batch_default();
    f->batch.rows = 2, f->batch.hidden = f->hidden;
    f->result = fs_result_default();
    f->result.tokens = f->tokens;
    f->tokens[0] = f->tokens[1] = 12345;
    f->offset[1] = 1, f->offset[2] = 2;
}

/* Samples; expects this failure and both words in its text. */
static inline void refused(fixture *f, fs_status expected, const char *word, const char *other) {
    fs_status status = fs_sample(f->context, &f->head, &f->batch, &f->result);
    if (status != expected)
        fail_msg("got %s, expected %s, for %s", fs_status_text(status), fs_status_text(expected), word);
    const char *text = fs_error_text(f->context);
    if (!strstr(text, word) || !strstr(text, other)) fail_msg("'%s' names neither '%s' nor '%s'", text, word, other);
    assert_int_equal(f->tokens[0], 12345);
    fs_context_destroy(f->context);
}

#define REFUSED(change, word, other)                                                                                   \
    do {                                                                                                               \
        fixture f;                                                                                                     \
        make(&f);                                                                                                      \
        change;                                                                                                        \
        refused(&f, FS_ERR_ARGUMENT, word, other);                                                                     \
    } while (0)

#endif
