/* Structs of callers that were compiled with another version: as long as this one's, shorter than any version's, longer
 * by members that are zero, or set. */
#include "alone.h"
#include "refusals.h"

/* A struct with room for a member that this version does not know. */
#define LONGER(type)                                                                                                   \
    struct {                                                                                                           \
        type known;                                                                                                    \
        uint64_t more;                                                                                                 \
    }

/* Every struct of a call with a member more. */
typedef struct longer_call {
    LONGER(fs_head) head;
    LONGER(fs_rules) rules;
    LONGER(fs_limits) limits;
    LONGER(fs_batch) batch;
    LONGER(fs_result) result;
} longer_call;

static void make_longer(const fixture *f, longer_call *c) {
    memset(c, 0, sizeof *c);
    c->head.known = f->head, c->batch.known = f->batch, c->result.known = f->result;
    c->rules.known = fs_rules_default(), c->limits.known = fs_limits_default();
    c->batch.known.rules = &c->rules.known, c->batch.known.limits = &c->limits.known;
    c->rules.known.temperature.value = 0.5f;
    c->head.known.size = sizeof c->head, c->rules.known.size = sizeof c->rules, c->limits.known.size = sizeof c->limits;
    c->batch.known.size = sizeof c->batch, c->result.known.size = sizeof c->result;
}

static void structs_of_this_version_and_with_a_member_more_draw_the_same(void **state) {
    (void)state;
    fixture f;
    make(&f);
    longer_call c;
    make_longer(&f, &c);
    fs_rules rules = fs_rules_default();
    rules.temperature.value = 0.5f;
    f.batch.rules = &rules;
    memset(f.tokens, 0x55, sizeof f.tokens);
    assert_int_equal(fs_sample(f.context, &f.head, &f.batch, &f.result), FS_OK);
    char drawn[sizeof f.tokens];
    memcpy(drawn, f.tokens, sizeof drawn);
    memset(f.tokens, 0x55, sizeof f.tokens);
    assert_int_equal(fs_sample(f.context, &c.head.known, &c.batch.known, &c.result.known), FS_OK);
    assert_memory_equal(drawn, f.tokens, sizeof drawn);
    fs_context_destroy(f.context);
}

static void a_member_that_is_set_and_not_known_is_refused_by_name(void **state) {
    (void)state;
    static const char *const names[] = {"head.size", "rules.size", "limits.size", "batch.size", "result.size"};
    for (int i = 0; i < 5; i++) {
        fixture f;
        make(&f);
        longer_call c;
        make_longer(&f, &c);
        uint64_t *const more[] = {&c.head.more, &c.rules.more, &c.limits.more, &c.batch.more, &c.result.more};
        *more[i] = 1;
        assert_int_equal(fs_sample(f.context, &c.head.known, &c.batch.known, &c.result.known), FS_ERR_UNSUPPORTED);
        const char *text = fs_error_text(f.context);
        if (!strstr(text, names[i]) || !strstr(text, fs_version_text())) fail_msg("'%s' names no %s", text, names[i]);
        fs_context_destroy(f.context);
    }
}

static void rules_and_limits_that_no_version_had_are_refused(void **state) {
    (void)state;
    REFUSED(rules_of(&f.batch)->size = sizeof(fs_rules) - 8, "rules.size", "fs_rules_default");
    REFUSED(rules_of(&f.batch)->size = 0, "rules.size is 0", "fs_rules_default");
    REFUSED(rules_of(&f.batch)->size = 4097, "rules.size", "4096");
    REFUSED(limits_of(&f.batch)->size = sizeof(fs_limits) - 8, "limits.size", "fs_limits_default");
    REFUSED(limits_of(&f.batch)->size = SIZE_MAX, "limits.size", "4096");
}

/* What a caller with a member more had in its own stays as it was. */
static void counters_and_options_may_be_longer_too(void **state) {
    (void)state;
    fixture f;
    make(&f);
    LONGER(fs_counters) counters;
    memset(&counters, 0, sizeof counters);
    counters.known.size = sizeof counters;
    assert_int_equal(fs_sample(f.context, &f.head, &f.batch, &f.result), FS_OK);
    assert_int_equal(fs_context_counters(f.context, &counters.known), FS_OK);
    assert_true(counters.known.size == sizeof counters && counters.more == 0 && counters.known.work_bytes > 0);
    counters.known.size = sizeof(fs_counters) - 8;
    assert_int_equal(fs_context_counters(f.context, &counters.known), FS_ERR_ARGUMENT);
    assert_int_equal(fs_context_counters(f.context, NULL), FS_ERR_ARGUMENT);
    fs_context_destroy(f.context);

    LONGER(fs_options) options;
    memset(&options, 0, sizeof options);
    options.known.size = sizeof options;
    fs_context *context;
    assert_int_equal(fs_context_create(&options.known, &context), FS_OK);
    fs_context_destroy(context);
    options.more = 1;
    assert_int_equal(fs_context_create(&options.known, &context), FS_ERR_UNSUPPORTED);
    assert_non_null(strstr(fs_error_text(NULL), "options.size"));
}

/* Accepted while what this version does not know is zero, refused by name when it is not. */
#define MAY_BE_LONGER(name, start, context, expression)                                                                \
    do {                                                                                                               \
        LONGER(fs_##name) name;                                                                                        \
        memset(&name, 0, sizeof name);                                                                                 \
        name.known = start, name.known.size = sizeof name;                                                             \
        assert_int_equal(expression, FS_OK);                                                                           \
        name.more = 1;                                                                                                 \
        assert_int_equal(expression, FS_ERR_UNSUPPORTED);                                                              \
        assert_non_null(strstr(fs_error_text(context), #name ".size"));                                                \
        name.known.size = sizeof name.known - 8;                                                                       \
        assert_int_equal(expression, FS_ERR_ARGUMENT);                                                                 \
        assert_non_null(strstr(fs_error_text(context), #name ".size"));                                                \
    } while (0)

static void the_structs_of_other_calls_may_be_longer_too(void **state) {
    (void)state;
    fixture f;
    make(&f);
    size_t bytes;
    MAY_BE_LONGER(call_desc, fs_call_desc_default(), NULL, fs_supports(FS_BACKEND_CPU, &call_desc.known, NULL));
    MAY_BE_LONGER(drafts, fs_drafts_default(), f.context, fs_accept_drafts(f.context, &drafts.known));
    MAY_BE_LONGER(screen_options, fs_screen_options_default(), f.context,
                  fs_screen_size(f.context, &f.head, &screen_options.known, &bytes));
    MAY_BE_LONGER(ranks, alone_ranks(), f.context,
                  fs_sample_ranks(f.context, &ranks.known, &f.head, &f.batch, &f.result));
    fs_context_destroy(f.context);
}

/* The rules say of themselves what the header says. */
static void rules_describe_themselves(void **state) {
    (void)state;
    const fs_rules usual = fs_rules_default();
    int32_t count = 0;
    for (; fs_rule(count); count++) {
        const fs_rule_info *info = fs_rule(count);
        assert_true(info->dtype == FS_F32 || info->dtype == FS_I32);
        assert_true(info->off >= info->least && info->off <= info->most && strlen(info->about) > 10);
        const void *member = (const char *)&usual + info->offset;
        const double value = info->dtype == FS_F32 ? (double)((const fs_float_rule *)member)->value
                                                   : (double)((const fs_int_rule *)member)->value;
        assert_true(value == info->off);
        for (int32_t other = 0; other < count; other++) assert_string_not_equal(info->name, fs_rule(other)->name);
    }
    assert_int_equal(count * sizeof(fs_float_rule) + sizeof(size_t), sizeof(fs_rules)); /* none is missing */
    assert_null(fs_rule(-1));
    assert_null(fs_rule(INT32_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs_of_this_version_and_with_a_member_more_draw_the_same),
        cmocka_unit_test(a_member_that_is_set_and_not_known_is_refused_by_name),
        cmocka_unit_test(rules_and_limits_that_no_version_had_are_refused),
        cmocka_unit_test(counters_and_options_may_be_longer_too),
        cmocka_unit_test(the_structs_of_other_calls_may_be_longer_too),
        cmocka_unit_test(rules_describe_themselves),
    };
    return cmocka_run_group_tests_name("sizes", tests, NULL, NULL);
}
