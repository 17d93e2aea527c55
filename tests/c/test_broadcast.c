#define _DEFAULT_SOURCE /* setenv */
/* One hidden state for all rows (FS_STRIDE_BROADCAST): the results of as many copies of it, bit for bit. */
#include "random_call.h"
#include "screens.h"

static fs_context *contexts[3];

/* The same call with a line of its own for each row. Memory behind the one hidden state is not to be read: it is a
 * block of its own. */
static random_call copied(random_call *c) {
    const int64_t bytes = c->head.dim * bytes_of(c->batch.hidden_dtype);
    void *one = malloc((size_t)bytes), *all = array((size_t)c->rows, (size_t)bytes);
    memcpy(one, c->hidden, (size_t)bytes);
    for (int64_t b = 0; b < c->rows; b++) memcpy((char *)all + b * bytes, one, (size_t)bytes);
    free(c->hidden);
    c->batch.hidden = c->hidden = one, c->batch.hidden_stride = FS_STRIDE_BROADCAST;
    random_call twin = *c;
    twin.batch.hidden = twin.hidden = all, twin.batch.hidden_stride = 0;
    return twin;
}

static void compare(fs_context *context, uint64_t seed, uint32_t wanted, const random_call *c,
                    const random_call *twin) {
    static outputs one, all;
    prepare_outputs(c, wanted, &one);
    prepare_outputs(c, wanted, &all);
    must_be_ok(context, fs_sample(context, &c->head, &c->batch, &one.result));
    must_be_ok(context, fs_sample(context, &twin->head, &twin->batch, &all.result));
    expect_same_outputs(seed, &one, &all);
    if (c->batch.mode == FS_MODE_GROUP_ONLINE || context == contexts[2]) return; /* the reference has no parts */
    const int64_t cut[] = {0, c->head.rows / 3, c->head.rows};
    prepare_outputs(c, wanted, &one);
    prepare_outputs(c, wanted, &all);
    sample_in_shards(context, c, cut, 2, &one.result);
    sample_in_shards(context, twin, cut, 2, &all.result);
    expect_same_outputs(seed, &one, &all);
}

static void one_hidden_state_is_as_many_copies_of_it(void **state) {
    (void)state;
    uint64_t compared = 0;
    for (uint64_t seed = 0; compared < test_size(500); seed++) {
        rng r = random_from(seed);
        random_call c;
        make_call(&r, &c);
        if (c.head.kind == FS_HEAD_WEIGHTS) {
            random_call twin = copied(&c);
            compare(contexts[seed % 3], seed, (uint32_t)random_next(&r), &c, &twin);
            free(twin.hidden);
            compared++;
        }
        free_call(&c);
    }
}

/* Rows that differ in their noise alone, by a screen of either format. */
static void a_screen_serves_it_too(void **state) {
    (void)state;
    enum { B = 8, V = 1003, D = 200 };
    int64_t screened = 0;
    for (int i = 0; i < 6; i++) {
        fs_context *context = contexts[i / 2];
        const fs_screen_options o = options_of(i % 2 ? FS_SCREEN_INT4 : FS_SCREEN_INT8, 0);
        screened_head s = make_screened(contexts[0], NORMAL, V, D, B, 1.0, &o);
        int32_t token[2][B];
        for (int copies = 0; copies < 2; copies++) {
            fs_batch batch = fs_batch_default();
            fs_result result = fs_result_default();
            for (int b = 1; b < B; b++) memcpy(s.h + b * D, s.h, D * 2);
            s.head.screen = s.screen, s.head.screen_bytes = s.bytes;
            batch.rows = B, batch.hidden = s.h, batch.hidden_dtype = FS_BF16;
            batch.hidden_stride = copies ? 0 : FS_STRIDE_BROADCAST;
            rules_of(&batch)->temperature.value = 0.5f, rules_of(&batch)->top_k.value = i < 3 ? 0 : 40;
            result.tokens = token[copies];
            must_be_ok(context, fs_sample(context, &s.head, &batch, &result));
            if (!copies) screened += counters_of(context).screened_rows;
        }
        assert_memory_equal(token[0], token[1], sizeof token[0]);
        free_screened(&s);
    }
    assert_true(screened > 0);
}

static int open_all(void **state) {
    (void)state;
    setenv("FLASHSAMPLING_SCREEN_ROWS", "4096", 1); /* more rows of a call than pay */
    contexts[0] = open_context(FS_BACKEND_CPU, 1, 0);
    contexts[1] = open_context(FS_BACKEND_CPU, 3, 128);
    contexts[2] = open_context(FS_BACKEND_REFERENCE, 1, 0);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) fs_context_destroy(contexts[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hidden_state_is_as_many_copies_of_it),
        cmocka_unit_test(a_screen_serves_it_too),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
