/* The last ids there can be, up to 2^24 - 2, in a shard of their own with a mask and edits by global id: the
 * reference's tokens, and never one that is not allowed. */
#include "parts.h"
#include "support.h"

enum { IDS = 64, VOCAB = (1 << 24) - 1, FIRST = VOCAB - IDS, ROWS = 4, WORDS = (VOCAB + 31) / 32, EDITS = 5 };

static uint32_t allow[ROWS][WORDS];
static float logits[ROWS * IDS], bias[ROWS * EDITS];
static int64_t offset[ROWS + 1];
static int32_t edit[ROWS * EDITS];

static void fill(void) {
    rng r = random_from(24);
    for (int i = 0; i < ROWS * IDS; i++) logits[i] = (float)random_normal(&r);
    for (int b = 0; b < ROWS; b++)
        for (int word = FIRST / 32; word < WORDS; word++) allow[b][word] = (uint32_t)random_next(&r);
    for (int i = 0; i < ROWS * EDITS; i++) {
        edit[i] = VOCAB - 1 - i % EDITS * 13;
        bias[i] = i % EDITS == 1 ? -INFINITY : 2.0f;
        allow[i / EDITS][edit[i] / 32] |= 1u << edit[i] % 32;
    }
    for (int b = 0; b <= ROWS; b++) offset[b] = b * EDITS;
}

static void must(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

static void draw_by_parts(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result) {
    size_t bytes = 0;
    fs_head none = *head;
    none.first_token = none.rows = 0;
    must(context, fs_partial_size(context, head, batch, result, &bytes));
    char *part[2] = {malloc(bytes), malloc(bytes)};
    must(context, fs_partial(context, head, batch, result, part[0], bytes));
    /* The ids before, which no row may draw: a part of nothing that says it is theirs. */
    must(context, fs_partial(context, &none, batch, result, part[1], bytes));
    const uint32_t ids[2] = {0, FIRST};
    memcpy(part[1] + PART_IDS, ids, sizeof ids);
    part_forge(part[1], bytes);
    must(context, fs_merge(context, head, batch, (const void *const *)part, 2, result));
    free(part[0]), free(part[1]);
}

static void the_last_ids_are_drawn_like_others(void **state) {
    (void)state;
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0), *cpu = open_context(FS_BACKEND_CPU, 2, 0);
    int last = 0;
    fill();
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = IDS, head.first_token = FIRST, head.vocab = VOCAB;
    fs_batch batch = fs_batch_default();
    batch.rows = ROWS, batch.allow = allow[0];
    batch.edit_offset = offset, batch.edit_token = edit, batch.edit_bias = bias;
    for (batch.position_all = 0; batch.position_all < 100; batch.position_all++) {
        int32_t tokens[3][ROWS];
        fs_result result = fs_result_default();
        memset(tokens, 0x5A, sizeof tokens);
        rules_of(&batch)->top_k.value = (int32_t)(batch.position_all % 3) * 10;
        result.tokens = tokens[0];
        must(reference, fs_sample(reference, &head, &batch, &result));
        result.tokens = tokens[1];
        must(cpu, fs_sample(cpu, &head, &batch, &result));
        result.tokens = tokens[2];
        draw_by_parts(cpu, &head, &batch, &result);
        assert_memory_equal(tokens[1], tokens[0], sizeof tokens[0]);
        assert_memory_equal(tokens[2], tokens[0], sizeof tokens[0]);
        for (int b = 0; b < ROWS; b++) {
            const int32_t v = tokens[0][b];
            assert_in_range(v, FIRST, VOCAB - 1);
            assert_true((allow[b][v / 32] >> v % 32 & 1) && v != edit[b * EDITS + 1]);
            last += v == VOCAB - 1;
        }
    }
    assert_true(last > 0);
    fs_context_destroy(reference);
    fs_context_destroy(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_ids_are_drawn_like_others)};
    return cmocka_run_group_tests_name("last_ids", tests, NULL, NULL);
}
