#define _DEFAULT_SOURCE /* setenv */
/* Tokens that count once more for one row alone (batch.extra_offset): the results are those of dense counts that have
 * them already, bit for bit. */
#include "random_call.h"
#include "refusals.h"
#include "screens.h"

static fs_context *contexts[3];

static int64_t slot_of(const random_call *c, int64_t b) {
    if (!c->batch.slot) return b;
    return c->batch.slot_dtype == FS_I64 ? ((int64_t *)c->slot)[b] : ((int32_t *)c->slot)[b];
}

static int32_t limited(int64_t sum) {
    return sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : (int32_t)sum;
}

/* Line b of [B, V]: what slot s has, and what row b has beside it. */
static void put_counts(const random_call *c, int64_t b, int64_t s, int32_t *line) {
    if (c->counts) memcpy(line, c->counts + s * c->vocab, (size_t)c->vocab * 4);
    for (int64_t i = c->count_offset ? c->count_offset[s] : 0; c->count_offset && i < c->count_offset[s + 1]; i++)
        line[c->count_token[i]] = limited((int64_t)line[c->count_token[i]] + c->count_value[i]);
    for (int64_t i = c->extra_offset[b]; i < c->extra_offset[b + 1]; i++)
        line[c->extra_token[i]] = limited((int64_t)line[c->extra_token[i]] + 1);
}

/* An array by slot as one by row, in place of `*at`; slot [B] is -1 for rows without one. */
static void *by_row(const void *at, const int32_t *slot, int64_t rows, size_t bytes) {
    char *array_of_rows = array((size_t)rows, bytes);
    for (int64_t b = 0; at && b < rows; b++)
        if (slot[b] >= 0) memcpy(array_of_rows + (size_t)b * bytes, (const char *)at + (size_t)slot[b] * bytes, bytes);
    return array_of_rows;
}

#define BY_ROW(name, bytes)                                                                                            \
    do {                                                                                                               \
        t.name = by_row(c->name, slot, c->rows, bytes);                                                                \
    } while (0)
#define RULE_BY_ROW(name)                                                                                              \
    do {                                                                                                               \
        BY_ROW(name, 4);                                                                                               \
        if (rules_in(&c->batch)->name.per_slot) rules_of(&t.batch)->name.per_slot = t.name;                            \
    } while (0)

/* The same call with a slot for each row, whose dense counts have the row's extra tokens. */
static random_call counted(const random_call *c) {
    random_call t = *c;
    const size_t words = (size_t)((c->vocab + 31) / 32) * 4, line = (size_t)c->batch.edit_stride;
    int32_t *slot = array((size_t)c->rows, 4), *own = array((size_t)c->rows, 4);
    for (int64_t b = 0; b < c->rows; b++) {
        const int64_t s = slot_of(c, b);
        slot[b] = s >= 0 && s < c->slots ? (int32_t)s : -1;
        own[b] = s == -1 ? -1 : slot[b] < 0 ? (int32_t)c->rows : (int32_t)b;
    }
    RULE_BY_ROW(temperature);
    RULE_BY_ROW(top_k);
    RULE_BY_ROW(top_p);
    RULE_BY_ROW(min_p);
    BY_ROW(seed, 8);
    BY_ROW(substream, 4);
    RULE_BY_ROW(repetition);
    RULE_BY_ROW(frequency);
    RULE_BY_ROW(presence);
    BY_ROW(seen, words);
    BY_ROW(edit_count, 4);
    if (c->batch.substream) t.batch.substream = t.substream;
    if (c->batch.seen) t.batch.seen = t.seen;
    if (c->batch.edit_count) t.batch.edit_count = t.edit_count;
    for (int64_t b = 0; b < c->rows && !c->batch.seed; b++)
        t.seed[b] = fs_seed_spread(c->batch.seed_all, (uint64_t)(slot[b] < 0 ? 0 : slot[b]));
    t.batch.seed = t.seed;
    if (c->batch.edit_count) {
        t.batch.edit_token = t.edit_token = by_row(c->edit_token, slot, c->rows, line);
        t.batch.edit_bias = t.edit_bias = by_row(c->edit_bias, slot, c->rows, line);
    }
    t.batch.counts = t.counts = array((size_t)(c->rows * c->vocab), 4);
    for (int64_t b = 0; b < c->rows; b++)
        if (slot[b] >= 0) put_counts(c, b, slot[b], t.counts + b * c->vocab);
    t.batch.count_offset = t.batch.extra_offset = NULL;
    t.batch.count_token = t.batch.count_value = t.batch.extra_token = NULL;
    t.batch.slot = t.slot = own, t.batch.slot_dtype = FS_I32, t.batch.slots = t.slots = c->rows;
    free(slot);
    return t;
}

static void free_counted(const random_call *c, random_call *t) {
    void *own[] = {t->temperature,
                   t->top_k,
                   t->top_p,
                   t->min_p,
                   t->seed,
                   t->substream,
                   t->repetition,
                   t->frequency,
                   t->presence,
                   t->seen,
                   t->slot,
                   t->edit_count,
                   t->counts,
                   c->batch.edit_count ? (void *)t->edit_token : NULL,
                   c->batch.edit_count ? (void *)t->edit_bias : NULL};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) free(own[i]);
}

/* Counts that extra tokens take to the limits of int32, and away from below 0. */
static void go_to_the_limits(rng *r, random_call *c) {
    static const int32_t values[] = {INT32_MAX, INT32_MAX - 1, INT32_MIN, -1, -2, 0};
    for (int64_t i = 0; c->counts && i < c->slots * c->vocab; i++)
        if (random_below(r, 9) == 0) c->counts[i] = values[random_below(r, 6)];
    for (int64_t i = 0; c->count_offset && i < c->count_offset[c->slots]; i++)
        if (random_below(r, 3) == 0) c->count_value[i] = values[random_below(r, 6)];
}

static int has_bad_counts(const random_call *c) {
    for (int64_t i = 0; c->count_offset && i < c->count_offset[c->slots]; i++)
        if (c->count_token[i] < 0 || c->count_token[i] >= c->vocab) return 1;
    return 0;
}

static void compare(fs_context *context, uint64_t seed, uint32_t wanted, const random_call *c, const random_call *t) {
    static outputs own, dense;
    prepare_outputs(c, wanted, &own);
    prepare_outputs(c, wanted, &dense);
    must_be_ok(context, fs_sample(context, &c->head, &c->batch, &own.result));
    must_be_ok(context, fs_sample(context, &t->head, &t->batch, &dense.result));
    expect_same_outputs(seed, &own, &dense);
    if (c->batch.mode == FS_MODE_GROUP_ONLINE || context == contexts[2]) return; /* the reference has no parts */
    const int64_t cut[] = {0, c->head.rows / 3, c->head.rows / 3, c->head.rows};
    prepare_outputs(c, wanted, &own);
    prepare_outputs(c, wanted, &dense);
    sample_in_shards(context, c, cut, 3, &own.result);
    sample_in_shards(context, t, cut, 3, &dense.result);
    expect_same_outputs(seed, &own, &dense);
}

static void extra_tokens_are_counts(void **state) {
    (void)state;
    uint64_t kinds[4] = {0};
    for (uint64_t seed = 0; seed < test_size(1200); seed++) {
        rng r = random_from(seed);
        random_call c;
        make_call(&r, &c);
        make_extras(&r, &c);
        go_to_the_limits(&r, &c);
        if (!has_bad_counts(&c)) {
            random_call t = counted(&c);
            compare(contexts[seed % 3], seed, (uint32_t)random_next(&r), &c, &t);
            kinds[c.batch.counts ? 0 : c.batch.count_offset ? 1 : c.batch.seen ? 2 : 3]++;
            free_counted(&c, &t);
        }
        free_call(&c);
    }
    for (int i = 0; i < 4; i++) assert_true(kinds[i] > test_size(1200) / 100); /* each way to have counts, and none */
}

/* Penalties of extra tokens alone, by hand: token 3 twice, and token 1, which repetition makes the lower the larger. */
static void penalties_apply_to_extra_tokens_alone(void **state) {
    (void)state;
    const float logits[] = {1.0f, -2.0f, 0.5f, 4.0f};
    const int64_t offset[] = {1, 4};
    const int32_t token[] = {99, 3, 1, 3}; /* what lies before the first offset is not looked at */
    const float expected[] = {1.0f, -2.0f * 2.0f - 0.5f - 0.25f, 0.5f, 4.0f / 2.0f - 2.0f * 0.5f - 0.25f};
    for (int i = 0; i < 3; i++) {
        int32_t given[] = {0, 1, 2, 3};
        float logit[4];
        fs_head head = fs_head_default();
        fs_batch batch = fs_batch_default();
        fs_result result = fs_result_default();
        head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = 4;
        batch.rows = 1, batch.samples = 4, batch.mode = FS_MODE_SCORE, batch.score_token = given;
        rules_of(&batch)->repetition.value = 2.0f, rules_of(&batch)->frequency.value = 0.5f,
        rules_of(&batch)->presence.value = 0.25f;
        batch.extra_offset = offset, batch.extra_token = token;
        result.logit = logit, result.logits_mode = FS_LOGITS_PROCESSED;
        must_be_ok(contexts[i], fs_sample(contexts[i], &head, &batch, &result));
        for (int v = 0; v < 4; v++) assert_true(logit[v] == expected[v]);
    }
}

static void a_bad_extra_token_costs_its_row_alone(void **state) {
    (void)state;
    const int64_t offset[] = {0, 1, 2, 3, 3, 4};
    const int32_t token[] = {39, 40, -1, INT32_MIN}, slot[] = {0, 0, 0, 0, -1};
    for (int i = 0; i < 3; i++) {
        fixture f;
        int32_t tokens[5];
        float hidden[5 * 4] = {0};
        uint32_t status[5];
        make(&f);
        f.batch.rows = 5, f.batch.slot = slot, f.batch.hidden = hidden;
        f.batch.extra_offset = offset, f.batch.extra_token = token, rules_of(&f.batch)->repetition.value = 2.0f;
        f.result.tokens = tokens, f.result.status = status;
        must_be_ok(contexts[i], fs_sample(contexts[i], &f.head, &f.batch, &f.result));
        const uint32_t expected[] = {0, FS_ROW_BAD_TOKEN, FS_ROW_BAD_TOKEN, 0, FS_ROW_SKIPPED};
        assert_memory_equal(status, expected, sizeof status);
        for (int b = 0; b < 5; b++) assert_int_equal(tokens[b] < 0, expected[b] != 0);
        fs_context_destroy(f.context);
    }
}

/* Penalties that no row was to have. */
static void a_promise_of_no_penalties_is_broken_by_extra_tokens(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        fixture f;
        uint32_t status[2];
        make(&f);
        rules_of(&f.batch)->presence.value = 1.0f, limits_of(&f.batch)->absent = FS_RULE_PENALTIES,
        f.result.status = status;
        must_be_ok(contexts[i], fs_sample(contexts[i], &f.head, &f.batch, &f.result));
        assert_int_equal(status[0], FS_ROW_OK); /* a penalty of no tokens */
        f.batch.extra_offset = f.offset, f.batch.extra_token = f.list;
        must_be_ok(contexts[i], fs_sample(contexts[i], &f.head, &f.batch, &f.result));
        assert_int_equal(status[0], FS_ROW_OVER_LIMIT);
        fs_context_destroy(f.context);
    }
}

static void parts_of_other_extra_tokens_are_refused(void **state) {
    (void)state;
    const int32_t other[] = {5, 6};
    char part[2][4096];
    fixture f;
    make(&f);
    f.batch.extra_offset = f.offset, f.batch.extra_token = f.list, rules_of(&f.batch)->presence.value = 1.0f;
    for (int i = 0; i < 2; i++) {
        fs_head shard = f.head;
        shard.first_token = 16 * i, shard.rows = i ? 24 : 16, shard.vocab = 40, shard.data = f.weights + 64 * i;
        if (i) f.batch.extra_token = other;
        must_be_ok(f.context, fs_partial(f.context, &shard, &f.batch, &f.result, part[i], sizeof part[i]));
    }
    const void *parts[] = {part[0], part[1]};
    f.head.vocab = 40;
    assert_int_equal(fs_merge(f.context, &f.head, &f.batch, parts, 2, &f.result), FS_ERR_PEER);
    assert_int_equal(f.tokens[0], 12345);
    fs_context_destroy(f.context);
}

/* Rows of one slot with other drafts each, by a screen: the tokens are those without it. */
static void screens_decide_rows_with_extra_tokens(void **state) {
    (void)state;
    enum { B = 6, V = 1003, D = 128 };
    int64_t screened = 0, offset[B + 1] = {0};
    int32_t extra[3 * B], slot[B] = {0}, token[2][B];
    for (int round = 0; round < 20; round++) {
        const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
        screened_head s = make_screened(contexts[0], NORMAL, V, D, B, 3.0, &o);
        rng r = random_from((uint64_t)round);
        for (int b = 0; b < B; b++) offset[b + 1] = offset[b] + (int64_t)random_below(&r, 4);
        for (int i = 0; i < 2; i++) {
            fs_batch batch = fs_batch_default();
            fs_result result = fs_result_default();
            for (int k = 0; k < 3 * B && !i; k++) extra[k] = (int32_t)random_below(&r, V);
            for (int b = 1; b < B; b++) memcpy(s.h + b * D, s.h, D * 2);
            s.head.screen = i ? s.screen : NULL, s.head.screen_bytes = i ? s.bytes : 0;
            batch.rows = B, batch.hidden = s.h, batch.hidden_dtype = FS_BF16, batch.slot = slot, batch.slots = 1;
            rules_of(&batch)->temperature.value = 0.2f, rules_of(&batch)->presence.value = round % 2 ? 3.0f : -3.0f,
            batch.seed_all = (uint64_t)round;
            rules_of(&batch)->top_k.value = round % 3 ? 0 : 20;
            batch.extra_offset = offset, batch.extra_token = extra;
            result.tokens = token[i];
            if (i == 0) { /* drafts that are likely: the token without them */
                batch.extra_offset = NULL, batch.extra_token = NULL;
                must_be_ok(contexts[0], fs_sample(contexts[0], &s.head, &batch, &result));
                for (int b = 0; b < B; b++)
                    if (offset[b + 1] > offset[b]) extra[offset[b]] = token[0][b];
                batch.extra_offset = offset, batch.extra_token = extra;
            }
            must_be_ok(contexts[0], fs_sample(contexts[0], &s.head, &batch, &result));
            screened += counters_of(contexts[0]).screened_rows;
        }
        assert_memory_equal(token[0], token[1], sizeof token[0]);
        free_screened(&s);
    }
    assert_true(screened > 20);
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
        cmocka_unit_test(extra_tokens_are_counts),
        cmocka_unit_test(penalties_apply_to_extra_tokens_alone),
        cmocka_unit_test(a_bad_extra_token_costs_its_row_alone),
        cmocka_unit_test(a_promise_of_no_penalties_is_broken_by_extra_tokens),
        cmocka_unit_test(parts_of_other_extra_tokens_are_refused),
        cmocka_unit_test(screens_decide_rows_with_extra_tokens),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
