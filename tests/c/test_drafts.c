/* fs_accept_drafts: what is accepted and emitted of sequences of one length and of any lengths, and what is refused. */
#include "cuda/cuda_plan.h"
#include "support.h"

enum { MOST_R = 7, MOST_K = 5, MOST = MOST_R * (MOST_K + 1) + 8, GUARD = 4 };

/* One call and its arrays; outputs have a guard at either end. */
typedef struct problem {
    fs_drafts d;
    int64_t length[MOST_R]; /* targets of each sequence */
    int64_t target_offset[MOST_R + 1], draft_offset[MOST_R];
    int64_t draft[MOST], target[MOST];
    int32_t accepted[MOST_R + 2 * GUARD];
    int64_t tokens[MOST + 2 * GUARD], token_offset[MOST_R + 1 + 2 * GUARD];
} problem;

static int64_t get(const problem *p, const void *tokens, int64_t i) {
    return p->d.tokens_dtype == FS_I64 ? ((const int64_t *)tokens)[i] : ((const int32_t *)tokens)[i];
}

static void put(problem *p, int64_t *tokens, int64_t i, int64_t token) {
    if (p->d.tokens_dtype == FS_I64) tokens[i] = token;
    else ((int32_t *)tokens)[i] = (int32_t)token;
}

static int64_t drafts_of(const problem *p, int64_t s) {
    return p->length[s] ? p->length[s] - 1 : 0;
}

/* Tokens are few, so that they often agree; some are no tokens, and some differ only in their upper halves. */
static int64_t some_token(rng *r, int wide) {
    const int64_t token = (int64_t)random_below(r, 3) - (random_below(r, 8) == 0);
    return token + (wide && random_below(r, 8) == 0 ? INT64_C(1) << 32 : 0);
}

static void make(problem *p, rng *r, int uniform) {
    memset(p, 0, sizeof *p);
    p->d = fs_drafts_default();
    fs_drafts *d = &p->d;
    const int wide = random_below(r, 2) != 0;
    d->tokens_dtype = wide ? FS_I64 : FS_I32;
    d->sequences = (int64_t)random_below(r, MOST_R + 1);
    d->draft_length = uniform ? (int64_t)random_below(r, MOST_K + 1) : 0;
    int64_t longest = 0, first = uniform ? 0 : (int64_t)random_below(r, 3), at = first, packed = 0;
    for (int64_t i = 0; i < MOST; i++)
        put(p, p->draft, i, some_token(r, wide)), put(p, p->target, i, some_token(r, wide));
    const int apart = random_below(r, 3) == 0;
    for (int64_t s = 0; s < d->sequences; s++) {
        p->length[s] = uniform ? d->draft_length + 1 : (int64_t)random_below(r, MOST_K + 2);
        longest = p->length[s] > longest ? p->length[s] : longest;
        p->target_offset[s] = at;
        /* Anywhere, over one another; where there is no draft, nowhere. */
        p->draft_offset[s] = !apart            ? packed
                             : drafts_of(p, s) ? (int64_t)random_below(r, (uint64_t)(MOST - drafts_of(p, s)))
                                               : INT64_MIN;
        for (int64_t i = 0; i < drafts_of(p, s) && random_below(r, 4); i++)
            put(p, p->draft, p->draft_offset[s] + i, get(p, p->target, at + i));
        at += p->length[s];
        packed += drafts_of(p, s);
    }
    p->target_offset[d->sequences] = at;
    if (!uniform) d->target_offset = p->target_offset;
    if (apart) d->draft_offset = p->draft_offset;
    d->draft = packed || random_below(r, 2) ? p->draft : NULL;
    d->target = p->target;
    memset(p->accepted, 0x5A, sizeof p->accepted);
    memset(p->tokens, 0x5A, sizeof p->tokens);
    memset(p->token_offset, 0x5A, sizeof p->token_offset);
    d->accepted = p->accepted + GUARD;
    if (random_below(r, 3)) d->tokens = (char *)p->tokens + GUARD * (wide ? 8 : 4);
    if (random_below(r, 2)) d->token_offset = p->token_offset + GUARD;
    if (d->tokens && random_below(r, 2)) d->tokens_width = longest + (int64_t)(longest ? random_below(r, 2) : 1);
    if (d->sequences * d->tokens_width > MOST) d->tokens_width = longest;
}

/* The same call, step by step, into arrays that begin with the same sentinels. */
static void expect(const problem *p, problem *want) {
    int64_t emitted = 0;
    *want = *p;
    memset(want->accepted, 0x5A, sizeof want->accepted);
    memset(want->tokens, 0x5A, sizeof want->tokens);
    memset(want->token_offset, 0x5A, sizeof want->token_offset);
    for (int64_t s = 0; s < p->d.sequences; s++) {
        int64_t accepted = 0, at = p->target_offset[s], line = p->d.tokens_width ? s * p->d.tokens_width : emitted;
        while (accepted < drafts_of(p, s)) {
            const int64_t draft = get(p, p->draft, p->draft_offset[s] + accepted);
            if (draft < 0 || draft != get(p, p->target, at + accepted)) break;
            accepted++;
        }
        want->accepted[GUARD + s] = (int32_t)accepted;
        if (p->d.token_offset) want->token_offset[GUARD + s] = emitted;
        const int64_t tokens = p->length[s] ? accepted + 1 : 0;
        for (int64_t i = 0; p->d.tokens && i < (p->d.tokens_width ? p->d.tokens_width : tokens); i++)
            put(want, want->tokens, GUARD + line + i, i < tokens ? get(p, p->target, at + i) : -1);
        emitted += tokens;
    }
    if (p->d.token_offset) want->token_offset[GUARD + p->d.sequences] = emitted;
}

static void drafts_are_accepted_as_far_as_they_agree(void **state) {
    (void)state;
    static problem p, want;
    rng r = random_from(11);
    fs_context *contexts[] = {NULL, open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_REFERENCE, 1, 0)};
    int64_t counts[3] = {0}; /* sequences that accept none, some, all of several drafts */
    for (uint64_t i = 0; i < test_size(20000); i++) {
        make(&p, &r, i % 2 == 0);
        expect(&p, &want);
        if (fs_accept_drafts(contexts[i % 3], &p.d) != FS_OK)
            fail_msg("call %llu: %s", (unsigned long long)i, fs_error_text(contexts[i % 3]));
        if (memcmp(p.accepted, want.accepted, sizeof p.accepted) != 0 ||
            memcmp(p.tokens, want.tokens, sizeof p.tokens) != 0 ||
            memcmp(p.token_offset, want.token_offset, sizeof p.token_offset) != 0)
            fail_msg("call %llu: outputs differ", (unsigned long long)i);
        for (int64_t s = 0; s < p.d.sequences; s++)
            if (p.length[s] > 2) counts[p.d.accepted[s] ? p.d.accepted[s] + 1 == p.length[s] ? 2 : 1 : 0]++;
    }
    for (int i = 0; i < 3; i++) assert_true(counts[i] > (int64_t)test_size(20000) / 10);
    fs_context_destroy(contexts[1]), fs_context_destroy(contexts[2]);
}

/* As vLLM has them: offsets of targets, the drafts in place of the inputs they are, and lines of k + 1 tokens. */
static void an_engines_step_in_full(void **state) {
    (void)state;
    const int64_t target_offset[] = {0, 3, 3, 4, 7}, draft_offset[] = {1, 4, 4, 5};
    const int64_t input[] = {50, 7, 8, 60, 70, 9, -1}; /* the token before each target; drafts are all but the firsts */
    const int64_t target[] = {7, 8, 9, 4, 9, -5, 6};
    int32_t accepted[4];
    int64_t tokens[4][3], packed[7], token_offset[5];
    fs_drafts d = {.size = sizeof d,
                   .tokens_dtype = FS_I64,
                   .sequences = 4,
                   .target_offset = target_offset,
                   .draft_offset = draft_offset,
                   .draft = input,
                   .target = target,
                   .accepted = accepted,
                   .tokens = tokens,
                   .tokens_width = 3,
                   .token_offset = token_offset};
    assert_int_equal(fs_accept_drafts(NULL, &d), FS_OK);
    const int32_t some[] = {2, 0, 0, 1};
    const int64_t lines[4][3] = {{7, 8, 9}, {-1, -1, -1}, {4, -1, -1}, {9, -5, -1}}, offsets[] = {0, 3, 3, 4, 6};
    assert_memory_equal(accepted, some, sizeof some);
    assert_memory_equal(tokens, lines, sizeof lines);
    assert_memory_equal(token_offset, offsets, sizeof offsets);
    memset(packed, 0x5A, sizeof packed);
    d.tokens = packed, d.tokens_width = 0;
    assert_int_equal(fs_accept_drafts(NULL, &d), FS_OK);
    const int64_t all[] = {7, 8, 9, 4, 9, -5, 0x5A5A5A5A5A5A5A5A};
    assert_memory_equal(packed, all, sizeof all);
}

static void no_sequence_is_a_call_too(void **state) {
    (void)state;
    int64_t token_offset[2] = {77, 77};
    fs_drafts d = {.size = sizeof d};
    assert_int_equal(fs_accept_drafts(NULL, &d), FS_OK);
    d.token_offset = token_offset;
    assert_int_equal(fs_accept_drafts(NULL, &d), FS_OK);
    assert_true(token_offset[0] == 0 && token_offset[1] == 77);
}

/* ---------------------------------------------------------------------------------------------------- refused ---- */

typedef struct small {
    fs_drafts d;
    int64_t target_offset[4], draft_offset[3];
    int32_t draft[8], target[8], accepted[4], tokens[16];
    int64_t token_offset[4];
} small;

static small three_sequences(void) {
    small p = {.d = fs_drafts_default(), .target_offset = {0, 3, 3, 5}, .draft_offset = {0, 2, 2}};
    memset(p.accepted, 0x5A, sizeof p.accepted);
    memset(p.tokens, 0x5A, sizeof p.tokens);
    memset(p.token_offset, 0x5A, sizeof p.token_offset);
    return p;
}

/* Refused with both words, and nothing is written. */
#define REFUSED(change, word, other)                                                                                   \
    do {                                                                                                               \
        small p = three_sequences();                                                                                   \
        p.d.sequences = 3, p.d.target_offset = p.target_offset, p.d.draft_offset = p.draft_offset;                     \
        p.d.draft = p.draft, p.d.target = p.target, p.d.accepted = p.accepted, p.d.tokens = p.tokens;                  \
        p.d.token_offset = p.token_offset;                                                                             \
        change;                                                                                                        \
        const small before = p;                                                                                        \
        assert_int_equal(fs_accept_drafts(NULL, &p.d), FS_ERR_ARGUMENT);                                               \
        const char *text = fs_error_text(NULL);                                                                        \
        if (!strstr(text, word) || !strstr(text, other))                                                               \
            fail_msg("'%s' names neither '%s' nor '%s'", text, word, other);                                           \
        assert_memory_equal(&before, &p, sizeof p);                                                                    \
    } while (0)

/* Of one length. */
#define EVEN(length) (p.d.target_offset = NULL, p.d.draft_offset = NULL, p.d.draft_length = (length))

static void bad_members_are_named(void **state) {
    (void)state;
    REFUSED(p.d.size = 8, "drafts.size is 8", "fs_drafts_default");
    REFUSED(p.d.tokens_dtype = FS_BF16, "drafts.tokens_dtype is 2", "FS_I64 (9)");
    REFUSED(p.d.reserved = 1, "drafts.reserved is 1", "0");
    REFUSED(p.d.sequences = -1, "drafts.sequences is -1", "0 to");
    REFUSED((EVEN(0), p.d.sequences = INT64_MAX), "drafts.sequences is 9223372036854775807", "1152921504606846975");
    REFUSED((EVEN(1), p.d.sequences = INT64_C(1) << 59), "drafts.sequences is 576460752303423488", "2 tokens each");
    REFUSED(p.d.draft_length = 2, "drafts.draft_length is 2", "must be 0 where target_offset");
    REFUSED(EVEN(-1), "drafts.draft_length is -1", "2147483646");
    REFUSED(EVEN(INT32_MAX), "drafts.draft_length is 2147483647", "2147483646");
    REFUSED(p.d.tokens_width = -1, "drafts.tokens_width is -1", "2147483647");
    REFUSED((p.d.tokens_width = 3, p.d.tokens = NULL), "drafts.tokens_width is 3", "tokens is NULL");
    REFUSED(p.d.tokens_width = 2, "drafts.tokens_width is 2", "sequence 0 may emit 3");
    REFUSED((EVEN(4), p.d.tokens_width = 4), "drafts.tokens_width is 4", "may emit 5");
    REFUSED((EVEN(0), p.d.tokens_width = INT32_MAX, p.d.sequences = INT64_C(1) << 40),
            "drafts.sequences is 1099511627776", "for 2147483647 tokens each");
}

static void bad_offsets_are_named(void **state) {
    (void)state;
    REFUSED(p.target_offset[0] = -1, "drafts.target_offset[0] is -1", "negative");
    REFUSED(p.target_offset[0] = INT64_MIN, "drafts.target_offset[0] is -9223372036854775808", "negative");
    REFUSED(p.target_offset[2] = 2, "drafts.target_offset[2] is 2 after 3", "ascend");
    REFUSED(p.target_offset[2] = INT64_MIN, "drafts.target_offset[2] is -9223372036854775808", "ascend");
    REFUSED(p.target_offset[3] = INT64_MAX, "drafts.target_offset[3] is 9223372036854775807", "2^31");
    REFUSED(p.target_offset[1] = INT64_C(1) << 31, "drafts.target_offset[1] is 2147483648", "2^31");
    REFUSED(p.draft_offset[0] = -1, "drafts.draft_offset[0] is -1", "0 to 2147483645 for 2 drafts");
    REFUSED(p.draft_offset[2] = INT64_MAX, "drafts.draft_offset[2] is 9223372036854775807", "for 1 drafts");
    REFUSED((EVEN(2), p.d.draft_offset = p.draft_offset, p.draft_offset[1] = INT32_MAX - 1),
            "drafts.draft_offset[1] is 2147483646", "0 to 2147483645");
}

static void bad_pointers_are_named(void **state) {
    (void)state;
    REFUSED(p.d.draft = NULL, "drafts.draft", "NULL");
    REFUSED(p.d.target = NULL, "drafts.target", "NULL");
    REFUSED(p.d.accepted = NULL, "drafts.accepted", "NULL");
    REFUSED((EVEN(1), p.d.draft = NULL), "drafts.draft", "NULL");
    REFUSED((EVEN(0), p.d.target = NULL), "drafts.target", "NULL");
    REFUSED(p.d.draft = (char *)p.draft + 2, "drafts.draft is 0x", "4-byte");
    REFUSED((p.d.tokens_dtype = FS_I64, p.d.target = p.target_offset, p.d.draft = (char *)p.draft_offset + 4),
            "drafts.draft is 0x", "8-byte");
    REFUSED((p.d.tokens_dtype = FS_I64, p.d.draft = p.draft_offset, p.d.target = (char *)p.draft_offset + 4),
            "drafts.target is 0x", "8-byte");
    REFUSED(p.d.accepted = (int32_t *)((char *)p.accepted + 2), "drafts.accepted is 0x", "4-byte");
    REFUSED(p.d.tokens = (char *)p.tokens + 2, "drafts.tokens is 0x", "4-byte");
    REFUSED(p.d.target_offset = (int64_t *)((char *)p.target_offset + 4), "drafts.target_offset is 0x", "8-byte");
    REFUSED(p.d.draft_offset = (int64_t *)((char *)p.draft_offset + 4), "drafts.draft_offset is 0x", "8-byte");
    REFUSED(p.d.token_offset = (int64_t *)((char *)p.token_offset + 4), "drafts.token_offset is 0x", "8-byte");
}

/* Without drafts there need be no array of them, and without targets none of those. */
static void arrays_of_nothing_may_be_missing(void **state) {
    (void)state;
    int64_t offset[] = {2, 2, 2};
    int32_t accepted[] = {7, 7}, target[] = {1, 2};
    fs_drafts d = fs_drafts_default();
    d.sequences = 2, d.target_offset = offset, d.accepted = accepted;
    assert_int_equal(fs_accept_drafts(NULL, &d), FS_OK);
    assert_true(accepted[0] == 0 && accepted[1] == 0);
    d.target_offset = NULL, d.target = target;
    assert_int_equal(fs_accept_drafts(NULL, &d), FS_OK);
}

static void cuda_refuses_by_name_what_it_does_not_do(void **state) {
    (void)state;
    small p = three_sequences();
    fs_drafts d = fs_drafts_default();
    d.sequences = 3, d.draft_length = 1, d.draft = p.draft, d.target = p.target, d.accepted = p.accepted;
    assert_null(fs_cuda_drafts_lack(&d));
    fs_drafts asks[4] = {d, d, d, d};
    asks[0].target_offset = p.target_offset, asks[1].draft_offset = p.draft_offset;
    asks[2].tokens = p.tokens, asks[3].token_offset = p.token_offset;
    static const char *const named[] = {"drafts.target_offset", "drafts.draft_offset", "drafts.tokens ",
                                        "drafts.token_offset"};
    for (int i = 0; i < 4; i++) {
        assert_non_null(strstr(fs_cuda_drafts_lack(&asks[i]), named[i]));
        assert_non_null(strstr(fs_cuda_drafts_lack(&asks[i]), "cuda backend"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_accepted_as_far_as_they_agree),
        cmocka_unit_test(an_engines_step_in_full),
        cmocka_unit_test(no_sequence_is_a_call_too),
        cmocka_unit_test(bad_members_are_named),
        cmocka_unit_test(bad_offsets_are_named),
        cmocka_unit_test(bad_pointers_are_named),
        cmocka_unit_test(arrays_of_nothing_may_be_missing),
        cmocka_unit_test(cuda_refuses_by_name_what_it_does_not_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
