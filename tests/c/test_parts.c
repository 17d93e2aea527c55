/* test_parts.c - what fs_merge believes of parts: each as fs_partial wrote it, and all of them together the
 * vocabulary. */
#include "parts.h"
#include "support.h"

#include "core/agreement.h"

enum { B = 3, N = 2, D = 4, V = 130, PADDED = 144, TOP = 3, PARTS = 4, MOST = 2048 };

/* --------------------------------------------------------------------------------------------------- the calls ---- */

typedef struct answer {
    int32_t token[B * N], rank[B * N], top_token[B * TOP];
    uint32_t status[B];
    float log_z[B], logprob[B * N], top_logprob[B * TOP], watch_logit[4];
} answer;

typedef struct problem {
    fs_context *context;
    fs_head head;
    fs_batch batch;
    fs_result result;
    answer a;
    char part[PARTS][MOST];
    size_t bytes;
} problem;

static float w[PADDED][D], h[B][D];
static const int64_t offsets[B + 1] = {0, 2, 2, 3};
static const int32_t listed[] = {5, 129, 64}, given[B * N] = {1, 2, 129, 4, 64, 0};
static const float biases[] = {1.5f, -INFINITY, 3.0f};

/* One of every field that a part can have, alone and with others. */
enum { LAYOUTS = 8 };
static void make(problem *p, int layout) {
    rng r = random_from(17);
    for (int i = 0; i < PADDED * D; i++) w[i / D][i % D] = (float)random_normal(&r);
    for (int i = 0; i < B * D; i++) h[i / D][i % D] = (float)random_normal(&r);
    memset(p, 0, sizeof *p);
    memset(&p->a, 0x5A, sizeof p->a);
    p->context = open_context(FS_BACKEND_CPU, 1, 0);
    p->head = fs_head_default();
    p->head.data = w, p->head.rows = PADDED, p->head.dim = D, p->head.vocab = V;
    p->batch = fs_batch_default();
    p->batch.rows = B, p->batch.hidden = h;
    p->result = fs_result_default();
    p->result.tokens = p->a.token, p->result.status = p->a.status;
    if (layout == 1) p->result.log_z = p->a.log_z, p->result.logprob = p->a.logprob;
    if (layout == 2) rules_of(&p->batch)->top_k.value = 5, p->batch.flags = FS_KEEP_TIES;
    if (layout == 3) rules_of(&p->batch)->top_p.value = 0.8f, p->batch.rows = 1;
    if (layout == 4) p->batch.mode = FS_MODE_WITHOUT_REPLACEMENT, p->batch.samples = N;
    if (layout == 5) p->batch.mode = FS_MODE_SCORE, p->batch.samples = N, p->batch.score_token = given;
    if (layout == 5) p->result.logprob = p->a.logprob, p->result.logits_mode = FS_LOGITS_PROCESSED;
    if (layout == 6) p->batch.mode = FS_MODE_GROUP_PARALLEL, p->batch.group_size = 1;
    if (layout == 7) {
        p->batch.edit_offset = p->batch.watch_offset = offsets;
        p->batch.edit_token = p->batch.watch_token = listed;
        p->batch.edit_bias = biases;
        rules_of(&p->batch)->top_k.value = 7;
        p->result.watch_logit = p->a.watch_logit;
        p->result.top_count = TOP, p->result.top_token = p->a.top_token, p->result.top_logprob = p->a.top_logprob;
    }
    assert_int_equal(fs_partial_size(p->context, &p->head, &p->batch, &p->result, &p->bytes), FS_OK);
    assert_true(p->bytes <= MOST);
}

static void put_part(problem *p, int i, int64_t first, int64_t end) {
    fs_head shard = p->head;
    shard.first_token = first, shard.rows = end - first;
    shard.data = w[first];
    if (fs_partial(p->context, &shard, &p->batch, &p->result, p->part[i], p->bytes) != FS_OK)
        fail_msg("%s", fs_error_text(p->context));
}

/* Four parts, one of them of no ids and the last with padding. */
static void put_parts(problem *p) {
    const int64_t cut[PARTS + 1] = {0, 48, 48, 112, PADDED};
    for (int i = 0; i < PARTS; i++) put_part(p, i, cut[i], cut[i + 1]);
}

static fs_status merge(problem *p, int count) {
    const void *parts[PARTS];
    for (int i = 0; i < count; i++) parts[i] = p->part[i];
    memset(&p->a, 0x5A, sizeof p->a);
    return fs_merge(p->context, &p->head, &p->batch, parts, count, &p->result);
}

/* Refused with this text, and nothing written. */
static void expect_refused(problem *p, int count, const char *text) {
    static answer untouched;
    memset(&untouched, 0x5A, sizeof untouched);
    assert_int_equal(merge(p, count), FS_ERR_PEER);
    if (!strstr(fs_error_text(p->context), text)) fail_msg("'%s' is not '%s'", fs_error_text(p->context), text);
    assert_memory_equal(&p->a, &untouched, sizeof untouched);
}

/* ------------------------------------------------------------------------------------------------------- whole ---- */

static void parts_of_the_whole_vocabulary_merge_in_any_order(void **state) {
    (void)state;
    static const int orders[][PARTS] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};
    static problem p;
    static char part[PARTS][MOST];
    for (int layout = 0; layout < LAYOUTS; layout++) {
        make(&p, layout);
        put_parts(&p);
        memcpy(part, p.part, sizeof part);
        assert_int_equal(fs_sample(p.context, &p.head, &p.batch, &p.result), FS_OK);
        const answer alone = p.a;
        for (int i = 0; i < 4; i++) {
            for (int k = 0; k < PARTS; k++) memcpy(p.part[k], part[orders[i][k]], MOST);
            if (merge(&p, PARTS) != FS_OK) fail_msg("%s", fs_error_text(p.context));
            if (layout != 6) assert_memory_equal(&p.a, &alone, sizeof alone); /* groups are drawn in their order */
        }
        fs_context_destroy(p.context);
    }
}

static void shards_of_padding_alone_are_empty(void **state) {
    (void)state;
    static problem p;
    make(&p, 0);
    put_part(&p, 0, 0, 128);
    put_part(&p, 1, 128, 136);
    put_part(&p, 2, 136, PADDED);
    assert_int_equal(merge(&p, 3), FS_OK);
    assert_int_equal(merge(&p, 2), FS_OK);
    expect_refused(&p, 1, "tokens 128 to 129 belong to no part");
    fs_context_destroy(p.context);
}

static void what_is_not_the_vocabulary_is_named(void **state) {
    (void)state;
    static problem p;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        make(&p, layout);
        put_parts(&p);
        expect_refused(&p, 3, "tokens 112 to 129 belong to no part: a shard is missing"); /* the last is missing */
        memcpy(p.part[1], p.part[0], MOST);
        expect_refused(&p, PARTS, "token 0 belongs to two parts: a shard is there twice"); /* one is there twice */
        put_part(&p, 1, 32, 48);
        expect_refused(&p, PARTS, "token 32 belongs to two parts"); /* overlaps one part */
        put_part(&p, 1, 96, 128);
        expect_refused(&p, PARTS, "token 96 belongs to two parts"); /* and two */
        put_part(&p, 1, 48, 48), put_part(&p, 0, 0, 32);
        expect_refused(&p, PARTS, "tokens 32 to 47 belong to no part"); /* a gap */
        put_part(&p, 0, 16, 48);
        expect_refused(&p, PARTS, "tokens 0 to 15 belong to no part"); /* the first ones are missing */
        put_part(&p, 0, 48, 48);
        expect_refused(&p, 2, "tokens 0 to 129 belong to no part"); /* nothing but empty parts */
        put_parts(&p);
        if (merge(&p, PARTS) != FS_OK) fail_msg("%s", fs_error_text(p.context));
        fs_context_destroy(p.context);
    }
}

/* ----------------------------------------------------------------------------------------------------- damaged ---- */

static void every_flipped_bit_is_seen(void **state) {
    (void)state;
    static problem p;
    const size_t step = test_size(5) < 5 ? 5 : 1; /* where everything is slow */
    for (int layout = 0; layout < LAYOUTS; layout++) {
        make(&p, layout);
        put_parts(&p);
        for (int i = 0; i < PARTS; i++)
            for (size_t bit = 0; bit < p.bytes * 8; bit += step) {
                p.part[i][bit / 8] ^= (char)(1 << bit % 8);
                if (merge(&p, PARTS) != FS_ERR_PEER) fail_msg("layout %d: bit %d of part %d", layout, (int)bit, i);
                char message[32];
                snprintf(message, sizeof message, "part %d of 4", i);
                assert_non_null(strstr(fs_error_text(p.context), message));
                p.part[i][bit / 8] ^= (char)(1 << bit % 8);
            }
        fs_context_destroy(p.context);
    }
}

/* Words of 4 and of 8 bytes, wherever they begin. */
static void words_that_trade_places_are_seen(void **state) {
    (void)state;
    static problem p;
    const size_t step = test_size(5) < 5 ? 20 : 4;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        make(&p, layout);
        put_parts(&p);
        char *part = p.part[2];
        for (size_t size = 4; size <= 8; size += 4)
            for (size_t i = PART_IDS; i + size <= p.bytes; i += step)
                for (size_t k = i + size; k + size <= p.bytes; k += 4) {
                    char first[8], second[8];
                    memcpy(first, part + i, size), memcpy(second, part + k, size);
                    if (memcmp(first, second, size) == 0) continue;
                    memcpy(part + i, second, size), memcpy(part + k, first, size);
                    if (merge(&p, PARTS) != FS_ERR_PEER) fail_msg("layout %d: %d and %d", layout, (int)i, (int)k);
                    memcpy(part + i, first, size), memcpy(part + k, second, size);
                }
        fs_context_destroy(p.context);
    }
}

/* ----------------------------------------------------------------------------------------------------- hostile ---- */

static void expect_tokens_that_exist(const problem *p) {
    for (int i = 0; i < p->batch.rows * p->batch.samples; i++)
        if (p->batch.mode != FS_MODE_SCORE) assert_in_range(p->a.token[i] + 1, 0, V);
    for (int i = 0; i < p->batch.rows * p->result.top_count; i++) assert_in_range(p->a.top_token[i] + 1, 0, V);
}

/* Somebody who knows the checksum can have any row, but no id that is not there: the sanitizers look at the rest. */
static void forged_parts_harm_nobody(void **state) {
    (void)state;
    static problem p;
    static char part[PARTS][MOST];
    rng r = random_from(4);
    int merged = 0;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        make(&p, layout);
        put_parts(&p);
        memcpy(part, p.part, sizeof part);
        for (uint64_t round = 0; round < test_size(5000); round++) {
            for (int i = 0; i < PARTS; i++) {
                memcpy(p.part[i], part[i], MOST);
                for (uint64_t n = random_below(&r, 9); n > 0; n--)
                    p.part[i][PART_HEADER + random_below(&r, p.bytes - PART_HEADER)] =
                        random_below(&r, 2) ? (char)random_next(&r) : (char)-1;
                part_forge(p.part[i], p.bytes);
            }
            const fs_status status = merge(&p, PARTS);
            assert_int_equal(status, FS_OK);
            merged++;
            expect_tokens_that_exist(&p);
        }
        fs_context_destroy(p.context);
    }
    assert_true(merged > 0);
}

/* The words of a part that are ids, counts, keys and masses, each with the values that are furthest out. */
static void forged_words_harm_nobody(void **state) {
    (void)state;
    static const uint64_t words[] = {0,
                                     UINT64_MAX,
                                     0x7FFFFFFFFFFFFFFF,
                                     0x8000000080000000,
                                     0x007FFFFF007FFFFF,
                                     0xFF800001FF800001,
                                     0x0000000100000001,
                                     0x7FC000007FC00000,
                                     0xFFFF7FFFFFFF7FFF,
                                     0x8000800080008000};
    static problem p;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        make(&p, layout);
        put_parts(&p);
        for (size_t at = PART_HEADER; at + 8 <= p.bytes; at += 4)
            for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
                char before[8];
                memcpy(before, p.part[2] + at, 8), memcpy(p.part[2] + at, &words[k], 8);
                part_forge(p.part[2], p.bytes);
                assert_int_equal(merge(&p, PARTS), FS_OK);
                expect_tokens_that_exist(&p);
                memcpy(p.part[2] + at, before, 8);
            }
        fs_context_destroy(p.context);
    }
}

static void forged_ids_are_refused(void **state) {
    (void)state;
    static const uint32_t ids[][2] = {
        {48, 47}, {48, 145}, {0, UINT32_MAX}, {UINT32_MAX, 0}, {0x80000000u, 0x80000000u}};
    static problem p;
    make(&p, 0);
    put_parts(&p);
    for (int i = 0; i < 5; i++) {
        memcpy(p.part[1] + PART_IDS, ids[i], 8);
        part_forge(p.part[1], p.bytes);
        expect_refused(&p, PARTS, "part 1 of 4");
    }
    fs_context_destroy(p.context);
}

/* What a device adds up of edits and watched tokens: every entry, its place and its row have a part in it. */
static void words_of_lists_know_their_entries(void **state) {
    (void)state;
    enum { ROWS = 3, EACH = 2 };
    const int64_t offset[ROWS + 1] = {0, 2, 4, 6};
    int32_t token[ROWS * EACH] = {5, 9, 5, 7, 1, 0};
    float bias[ROWS * EACH] = {1.0f, -1.0f, 0.5f, 0.0f, -0.0f, 2.0f};
    fs_batch batch = fs_batch_default();
    batch.rows = ROWS;
    batch.edit_offset = batch.watch_offset = offset, batch.edit_token = batch.watch_token = token;
    batch.edit_bias = bias;
    uint64_t first[2] = {0, 0};
    for (int change = 0; change < 5; change++) {
        fs_agreement a = {{0}};
        if (change == 1) bias[3] = 0.25f;
        if (change == 2) token[4] = 2;
        if (change == 3)
            token[0] = 9, token[1] = 5, bias[0] = -1.0f, bias[1] = 1.0f; /* the same two in another order */
        const int64_t watched = change == 4 ? 4 : ROWS * EACH;           /* the last row's are too many */
        for (int64_t b = 0; b < ROWS; b++) agreement_add_lists(&a, &batch, b, b, watched);
        const uint64_t edits = a.word[FS_AGREE_EDITS], watches = a.word[FS_AGREE_WATCHED];
        if (change == 0) first[0] = edits, first[1] = watches;
        else if (change == 4) assert_true(edits == first[0] && watches != first[1]);
        else assert_true(edits != first[0] && (watches != first[1]) == (change != 1));
        bias[0] = 1.0f, bias[1] = -1.0f, bias[3] = 0.0f, token[0] = 5, token[1] = 9, token[4] = 1;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_the_whole_vocabulary_merge_in_any_order),
        cmocka_unit_test(shards_of_padding_alone_are_empty),
        cmocka_unit_test(what_is_not_the_vocabulary_is_named),
        cmocka_unit_test(every_flipped_bit_is_seen),
        cmocka_unit_test(words_that_trade_places_are_seen),
        cmocka_unit_test(forged_parts_harm_nobody),
        cmocka_unit_test(forged_words_harm_nobody),
        cmocka_unit_test(forged_ids_are_refused),
        cmocka_unit_test(words_of_lists_know_their_entries),
    };
    return cmocka_run_group_tests_name("parts", tests, NULL, NULL);
}
