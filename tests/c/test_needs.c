/* What a call needs of its rows: what is said without a look at them covers what they turn out to need. */
#include "random_call.h"

#include "core/needs.h"

/* Some of the results, at random; nobody writes to them. */
static fs_result random_result(rng *r, const fs_result *wanted) {
    static float floats;
    static int32_t ids;
    fs_result result = *wanted;
    if (random_below(r, 2)) result.log_z = &floats;
    if (random_below(r, 2)) result.logprob = &floats;
    if (random_below(r, 2)) result.rank = &ids;
    if (random_below(r, 2)) result.watch_logit = &floats;
    result.top_count = (int32_t)random_below(r, 60);
    result.top_token = result.top_count ? &ids : NULL;
    return result;
}

static void what_any_rows_may_need_covers_what_they_do(void **state) {
    (void)state;
    rng r = random_from(31);
    int64_t equal = 0, more = 0;
    for (uint64_t i = 0; i < test_size(3000); i++) {
        random_call c;
        make_call(&r, &c);
        fs_result result = random_result(&r, &c.result);
        rules_of(&c.batch), limits_of(&c.batch); /* as the checks of a call leave them */
        if (c.watch_offset) limits_of(&c.batch)->watched = c.watch_offset[c.rows] - c.watch_offset[0];
        for (int64_t s = 0; rules_of(&c.batch)->top_k.per_slot && s < c.slots;
             s++) /* said, so that lists can be as long */
            if (rules_of(&c.batch)->top_k.per_slot[s] > limits_of(&c.batch)->top_k &&
                rules_of(&c.batch)->top_k.per_slot[s] < c.vocab)
                limits_of(&c.batch)->top_k = rules_of(&c.batch)->top_k.per_slot[s];
        const fs_needs own = fs_needs_of(&c.head, &c.batch, &result);
        const fs_needs any = fs_needs_of_any(&c.head, &c.batch, &result);
        assert_true(any.samples == own.samples && any.ordered == own.ordered && any.bounded == own.bounded);
        assert_true(any.mass >= own.mass && any.raw_mass >= own.raw_mass && any.cut_mass >= own.cut_mass);
        assert_true(any.winner_logit >= own.winner_logit && any.max >= own.max && any.edited >= own.edited);
        /* Ranks of raw logits come from a list of their own where rows may be edited. */
        assert_true(any.keep >= own.keep || any.keep_raw >= own.rank_depth || any.keep_raw == c.vocab);
        assert_true(any.keep_raw >= own.keep_raw && any.rank_depth == own.rank_depth);
        if (watches(&c.batch, &result) || !c.batch.watch_offset) assert_int_equal(any.watched, own.watched);
        if (memcmp(&any, &own, sizeof any) == 0) equal++;
        else more++;
        free_call(&c);
    }
    assert_true(equal > 0 && more > 0); /* neither is the rule */
}

/* A cut that every row has needs no room for others. */
static void lists_are_as_long_as_scalars_and_limits_say(void **state) {
    (void)state;
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    fs_result result = fs_result_default();
    const int32_t top_k[4] = {0};
    const float top_p[4] = {0.0f};
    head.rows = 100000, batch.rows = 4;
    rules_of(&batch), limits_of(&batch);
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, 0);
    rules_of(&batch)->top_k.value = 50;
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, 50);
    rules_of(&batch)->top_k.value = 9000; /* no second pass: the list proves it */
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, 9000);
    rules_of(&batch)->top_k.value = 50;
    rules_of(&batch)->top_p.value = 0.9f; /* of what top-k has left */
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, 50);
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).mass, 0);
    rules_of(&batch)->top_k.per_slot = top_k; /* which a row may not have */
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, FS_LIST_DEFAULT);
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).mass, 1);
    rules_of(&batch)->top_p.value = 1.0f, limits_of(&batch)->top_k = 20;
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, 20);
    limits_of(&batch)->top_k = 0;
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, FS_LIST_DEFAULT);
    rules_of(&batch)->top_p.per_slot = top_p, limits_of(&batch)->absent = FS_RULE_TOP_P | FS_RULE_TOP_K;
    assert_int_equal(fs_needs_of_any(&head, &batch, &result).keep, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_any_rows_may_need_covers_what_they_do),
        cmocka_unit_test(lists_are_as_long_as_scalars_and_limits_say),
    };
    return cmocka_run_group_tests_name("needs", tests, NULL, NULL);
}
