/* Top-p where nothing but tokens is asked: rough masses, lists without rare tokens, winners that are spared without a
 * sorted list. Whatever lists hold, tokens are the reference's, for any threads and blocks. */
#include "core/cut.h"
#include "cpu/cpu_lists.h"
#include "support.h"

enum { VOCAB = 9001, ROWS = 16, SHAPES = 9 };

typedef float logits_of(rng *r, int64_t v);

static float gaussian(rng *r, int64_t v) {
    (void)v;
    return (float)(2.0 * random_normal(r));
}
static float wide(rng *r, int64_t v) {
    (void)v;
    return (float)(3.5 * random_normal(r));
}
/* Frequent ids first, as in a vocabulary of byte pairs; and last, where nothing is known of the mass until the end. */
static float hot_first(rng *r, int64_t v) {
    return (float)(random_normal(r) - 2.2 * log1p((double)v / 32.0));
}
static float hot_last(rng *r, int64_t v) {
    return (float)(random_normal(r) - 1.5 * log1p((double)(VOCAB - 1 - v) / 32.0));
}
/* One token at the start with half of the mass of all. */
static float head_and_flat_tail(rng *r, int64_t v) {
    (void)r;
    return v == 0 ? 9.9f : 0.0f;
}
static float flat(rng *r, int64_t v) {
    (void)r, (void)v;
    return 1.0f;
}
/* 64 equal tokens, far apart: half of them is a cut that falls between two tokens exactly. */
static float doubtful(rng *r, int64_t v) {
    (void)r;
    return v % 140 == 7 && v < 64 * 140 ? 10.0f : -INFINITY;
}
static float tied(rng *r, int64_t v) {
    (void)v;
    return (float)floor(2.0 * random_normal(r));
}
static float infinite(rng *r, int64_t v) {
    return v % 7001 == 3 ? INFINITY : (float)random_normal(r);
}
static float nothing(rng *r, int64_t v) {
    (void)r, (void)v;
    return -INFINITY;
}

static logits_of *const shapes[SHAPES] = {gaussian, hot_first, hot_last, head_and_flat_tail, flat, doubtful,
                                          tied,     infinite,  nothing};

static void fill(float *logits, logits_of *shape, uint64_t seed) {
    rng r = random_from(seed);
    for (int64_t v = 0; v < VOCAB; v++) logits[v] = shape(&r, v);
    for (int64_t b = 1; b < ROWS; b++) memcpy(logits + b * VOCAB, logits, VOCAB * sizeof *logits);
}

static int64_t draw(fs_context *context, const fs_head *head, const fs_batch *batch, int32_t *tokens,
                    uint32_t *status) {
    fs_result r = fs_result_default();
    memset(tokens, 0x77, (size_t)(ROWS * batch->samples) * sizeof *tokens);
    r.tokens = tokens, r.status = status;
    if (fs_sample(context, head, batch, &r) != FS_OK) fail_msg("%s", fs_error_text(context));
    return counters_of(context).fallback_rows;
}

/* Where everything is slow one call of three or six of a shape, and others of the next. */
static int apart(void) {
    return test_size(3) == 3 ? 1 : test_size(60) > 1 ? 3 : 6;
}

static void tokens_are_the_references(void **state) {
    (void)state;
    static const float top_p[] = {0.5f, 0.95f, 0.999f, 0.0f};
    const int32_t threads[] = {1, 2, 3, 7}, blocks[] = {0, 128, 512};
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    int32_t expected[ROWS * 3], got[ROWS * 3];
    uint32_t status[ROWS], other[ROWS];
    assert_non_null(logits);
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    int64_t again[SHAPES] = {0};
    for (uint64_t round = 0; round < test_size(2); round++)
        for (int s = 0; s < SHAPES; s++) {
            fill(logits, shapes[s], round * SHAPES + (uint64_t)s);
            fs_head head = fs_head_default();
            head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = VOCAB;
            const int step = apart();
            for (int i = s % step; i < 12; i += step) {
                fs_batch batch = fs_batch_default();
                batch.rows = ROWS, batch.position_all = round * 12 + (uint64_t)i, batch.seed_all = 3;
                rules_of(&batch)->top_p.value = top_p[((uint64_t)i + round) % 4];
                rules_of(&batch)->temperature.value = i % 3 == 2 ? 0.7f : 1.0f;
                batch.samples = i % 2 ? 3 : 1;
                if (i % 5 == 3) batch.mode = FS_MODE_WITHOUT_REPLACEMENT;
                if (i % 7 == 4) batch.flags = FS_KEEP_TIES;
                fs_context *cpu = open_context(FS_BACKEND_CPU, threads[i % 4], blocks[i / 4]);
                draw(reference, &head, &batch, expected, status);
                again[s] += draw(cpu, &head, &batch, got, other);
                assert_memory_equal(got, expected, (size_t)(ROWS * batch.samples) * sizeof *got);
                for (int b = 0; b < ROWS; b++) assert_int_equal(other[b] & ~(uint32_t)FS_ROW_FALLBACK, status[b]);
                fs_context_destroy(cpu);
            }
        }
    /* Those that no list holds, and the tokens in doubt, must have been met. */
    assert_true(again[4] > 0);
    if (test_size(2) == 2) assert_true(again[5] > 0);
    fs_context_destroy(reference);
    free(logits);
}

/* A token that wins from the doubtful place takes the second pass; that rows with a real nucleus hardly ever do is the
 * point of it all. */
static void language_like_rows_need_no_second_pass(void **state) {
    (void)state;
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    int32_t tokens[ROWS];
    uint32_t status[ROWS];
    assert_non_null(logits);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = VOCAB;
    fs_context *cpu = open_context(FS_BACKEND_CPU, 2, 0);
    int64_t again = 0, again_of_wide = 0;
    const uint64_t rounds = test_size(40);
    fill(logits, hot_first, 1);
    for (uint64_t round = 0; round < rounds; round++) {
        fs_batch batch = fs_batch_default();
        batch.rows = ROWS, batch.position_all = round, rules_of(&batch)->top_p.value = 0.95f;
        again += draw(cpu, &head, &batch, tokens, status);
    }
    assert_true(again <= 1);
    /* A nucleus of some 200 tokens, spread over all ids. */
    fill(logits, wide, 1);
    for (uint64_t round = 0; round < rounds; round++) {
        fs_batch batch = fs_batch_default();
        batch.rows = ROWS, batch.position_all = round, rules_of(&batch)->top_p.value = 0.9f;
        again_of_wide += draw(cpu, &head, &batch, tokens, status);
    }
    assert_true(again_of_wide <= 1 + (int64_t)rounds / 10);
    fs_context_destroy(cpu);
    free(logits);
}

/* Lists of rows with min-p leave out what is too far below the largest logit so far. Were their bounds too high, the
 * tokens would be right all the same, by a second pass. */
static void min_p_keeps_what_it_needs(void **state) {
    (void)state;
    static const float min_p[] = {0.05f, 0.3f, 1.0f, 1e-3f}, top_p[] = {1.0f, 0.9f};
    static const uint32_t flags[] = {0, FS_MIN_P_LAST, FS_CUT_BEFORE_TEMPERATURE, FS_KEEP_TIES};
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    int32_t expected[ROWS * 8], got[ROWS * 8];
    uint32_t status[ROWS], other[ROWS];
    assert_non_null(logits);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = VOCAB;
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    int64_t wide_again = 0;
    for (int s = 0; s < SHAPES; s++) {
        fill(logits, shapes[s], (uint64_t)s);
        const int step = test_size(3) < 3 ? 3 : 1;
        for (int i = s % step; i < 32; i += step) {
            fs_batch batch = fs_batch_default();
            batch.rows = ROWS, batch.position_all = (uint64_t)i;
            rules_of(&batch)->min_p.value = min_p[i % 4], rules_of(&batch)->top_p.value = top_p[i / 16],
            batch.flags = flags[i / 4 % 4];
            rules_of(&batch)->temperature.value = i % 4 == 1 ? 0.6f : 1.0f;
            batch.samples = i % 4 == 3 ? 8 : 1;
            fs_context *cpu = open_context(FS_BACKEND_CPU, 1 + i % 3, i % 5 ? 0 : 128);
            draw(reference, &head, &batch, expected, status);
            const int64_t again = draw(cpu, &head, &batch, got, other);
            assert_memory_equal(got, expected, (size_t)(ROWS * batch.samples) * sizeof *got);
            for (int b = 0; b < ROWS; b++) assert_int_equal(other[b] & ~(uint32_t)FS_ROW_FALLBACK, status[b]);
            /* Of normal logits at most 200 survive, and a list holds 1,024; but of the last min-p some 3,400. */
            if (shapes[s] == gaussian && i % 4 < 3) assert_int_equal(again, 0);
            else if (shapes[s] == gaussian) wide_again += again;
            fs_context_destroy(cpu);
        }
    }
    assert_true(wide_again > 0);
    fs_context_destroy(reference);
    free(logits);
}

/* The call on two shards, merged: no largest logit is on the wire, and no second pass is there. */
static void draw_merged(fs_context *context, const fs_head *head, const fs_batch *batch, int32_t *tokens,
                        uint32_t *status) {
    static char part[2][ROWS * 16384];
    const void *parts[2] = {part[0], part[1]};
    fs_result r = fs_result_default();
    r.tokens = tokens, r.status = status;
    fs_head shard = *head;
    shard.vocab = head->rows, shard.stride = head->rows * (int64_t)sizeof(float);
    for (int i = 0; i < 2; i++) {
        shard.first_token = i ? 4096 : 0;
        shard.rows = i ? head->rows - 4096 : 4096;
        shard.data = (const float *)head->data + shard.first_token;
        if (fs_partial(context, &shard, batch, &r, part[i], sizeof part[i]) != FS_OK)
            fail_msg("%s", fs_error_text(context));
    }
    if (fs_merge(context, &shard, batch, parts, 2, &r) != FS_OK) fail_msg("%s", fs_error_text(context));
}

/* Top-p before min-p looks at the row's whole mass, which parts have to bring: a merge has nothing else to go by. */
static void a_nucleus_before_min_p_is_proven_by_parts(void **state) {
    (void)state;
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    int32_t tokens[ROWS], merged[ROWS];
    uint32_t status[ROWS];
    assert_non_null(logits);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = VOCAB;
    fs_context *cpu = open_context(FS_BACKEND_CPU, 2, 0);
    int incomplete = 0;
    const uint64_t rounds = test_size(20);
    fill(logits, head_and_flat_tail, 1);
    for (uint64_t round = 0; round < rounds; round++) {
        fs_batch batch = fs_batch_default();
        batch.rows = ROWS, batch.position_all = round, batch.flags = FS_MIN_P_LAST;
        rules_of(&batch)->top_p.value = 0.6f, rules_of(&batch)->min_p.value = 0.01f;
        draw(cpu, &head, &batch, tokens, status);
        draw_merged(cpu, &head, &batch, merged, status);
        for (int b = 0; b < ROWS; b++) {
            if (status[b] & FS_ROW_INCOMPLETE) incomplete++;
            else assert_int_equal(merged[b], tokens[b]);
        }
    }
    assert_int_equal(incomplete, 0);
    fs_context_destroy(cpu);
    free(logits);
}

/* Logits that are not near 0: of both signs, where exp overflows, and beyond what masses reach. A handful has the mass,
 * near ties among it. */
static void nuclei_far_from_zero_are_the_references(void **state) {
    (void)state;
    static const struct {
        float base, temperature;
    } far[] = {{10.0f, 0.01f}, {-10.0f, 0.01f}, {1e3f, 1.0f},  {-1e3f, 1.0f},  {40.0f, 1e-3f}, {-40.0f, 1e-3f},
               {40.0f, 1e-4f}, {-40.0f, 1e-4f}, {4.0f, 1e-6f}, {-4.0f, 1e-6f}, {40.0f, 1e-8f}, {-40.0f, 1e-8f}};
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    int32_t expected[ROWS * 3], got[ROWS * 3];
    uint32_t status[ROWS], other[ROWS];
    assert_non_null(logits);
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0), *cpu = open_context(FS_BACKEND_CPU, 2, 0);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = VOCAB;
    rng r = random_from(21);
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        for (int64_t v = 0; v < ROWS * VOCAB; v++) {
            const double base = (double)far[i].base, over = 4.0 * random_unit(&r) * (double)far[i].temperature;
            logits[v] = (float)(v % 1000 < 8 ? base + over : base - fabs(base) - 12.0 * over);
        }
        const int step = test_size(3) < 3 ? 12 : 1;
        for (int k = (int)i % step; k < 24; k += step) {
            fs_batch batch = fs_batch_default();
            batch.rows = ROWS, batch.position_all = (uint64_t)k;
            rules_of(&batch)->temperature.value = far[i].temperature;
            rules_of(&batch)->top_p.value = k % 2 ? 0.3f : 0.8f;
            batch.samples = k % 3 ? 1 : 3;
            if (k % 4 == 3) batch.mode = FS_MODE_WITHOUT_REPLACEMENT;
            if (k % 5 == 4) rules_of(&batch)->top_k.value = 9;
            /* A list of 9 has not the row's mass. */
            if (k % 10 == 9) batch.flags = FS_JOINT_TOP_P, batch.list_capacity = 1024;
            const size_t bytes = (size_t)(ROWS * batch.samples) * sizeof *got;
            draw(reference, &head, &batch, expected, status);
            draw(cpu, &head, &batch, got, other);
            assert_memory_equal(got, expected, bytes);
            draw_merged(cpu, &head, &batch, got, other);
            assert_memory_equal(got, expected, bytes);
            assert_memory_equal(other, status, sizeof status);
        }
    }
    fs_context_destroy(reference);
    fs_context_destroy(cpu);
    free(logits);
}

/* --------------------------------------------------------------------------------------------------- lists ---- */

/* Temperatures as hot and as cold as their reciprocal lets them be, of a vocabulary whose last granule is not full. */
static void nuclei_of_extreme_temperatures_are_the_references(void **state) {
    (void)state;
    enum { V = 121 };
    static const float temperatures[] = {3e-39f, 2e-38f, 1e-30f, 1e-19f, 1e19f, 1e30f, 4e36f, 6e36f, 1e38f, 3.3e38f};
    static float logits[ROWS * V];
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0), *cpu = open_context(FS_BACKEND_CPU, 1, 0);
    rng r = random_from(31);
    int distinct = 0;
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
    for (int i = 0; i < 20; i++) {
        const float t = temperatures[i / 2];
        fs_batch batch = fs_batch_default();
        int32_t tokens[2][ROWS];
        fs_result result = fs_result_default();
        /* Flat rows, or rows that the temperature makes like others; 1/16 apart, so that rounding decides no
         * nucleus. */
        for (int k = 0; k < ROWS * V; k++)
            logits[k] = ((float)random_below(&r, 129) - 64.0f) / 16.0f * (i % 2 ? fminf(t, 1e37f) : fminf(t, 1.0f));
        batch.rows = ROWS, rules_of(&batch)->temperature.value = t, rules_of(&batch)->top_p.value = 0.6f;
        result.tokens = tokens[0];
        assert_int_equal(fs_sample(reference, &head, &batch, &result), FS_OK);
        result.tokens = tokens[1];
        assert_int_equal(fs_sample(cpu, &head, &batch, &result), FS_OK);
        for (int b = 0; b < ROWS; b++)
            if (tokens[0][b] != tokens[1][b])
                fail_msg("temperature %g: token %d, the reference %d", (double)t, tokens[1][b], tokens[0][b]);
        distinct += tokens[0][0] != tokens[0][1];
    }
    assert_true(distinct > 10);
    fs_context_destroy(reference);
    fs_context_destroy(cpu);
}

/* What a list claims: it holds every token offered that is above its bound, `keep` of them at least. */
static void check_list(const fs_list *list, const float *y, int64_t n) {
    static uint64_t all[VOCAB], there[VOCAB];
    int64_t above = 0, held = 0;
    for (int64_t v = 0; v < n; v++)
        if (y[v] > -INFINITY && order_key(y[v], (uint32_t)v) > list->bound) all[above++] = order_key(y[v], (uint32_t)v);
    for (int32_t i = 0; i < list->count; i++)
        if (list->key[i] > list->bound) there[held++] = list->key[i];
    assert_int_equal(above, held);
    assert_true(list->bound == FS_KEY_NONE || held >= list->keep);
    qsort(all, (size_t)above, sizeof *all, descending);
    qsort(there, (size_t)held, sizeof *there, descending);
    assert_memory_equal(all, there, (size_t)held * sizeof *all);
}

static void lists_hold_all_above_their_bound(void **state) {
    (void)state;
    char text[256];
    const fs_scan *scan = fs_isa_choose(NULL, text, sizeof text)->scan;
    static float y[ROWS * VOCAB], granule[8];
    static uint64_t key[4096 + FS_GRANULE];
    for (int s = 0; s < SHAPES; s++)
        for (int keep = 1; keep <= 2048; keep *= 8) {
            fill(y, shapes[s], 77 + (uint64_t)s);
            fs_list list = {.key = key, .keep = keep, .capacity = keep < 128 ? 256 : 2 * keep};
            const int64_t n = VOCAB / 128 * 128;
            for (int64_t v = 0; v < n; v += 128) {
                scan->survey(NULL, 0, y + v, 128, granule);
                fs_lists_offer(&list, scan, y + v, granule, v, 8);
                assert_true(list.count <= list.capacity);
                if (v % 4096 == 0) check_list(&list, y, v + 128);
            }
            check_list(&list, y, n);
        }
}

/* A list that begins with a bound keeps its claim, and is far from filled by a block. */
static void started_lists_hold_all_above_their_bound(void **state) {
    (void)state;
    char text[256];
    const fs_scan *scan = fs_isa_choose(NULL, text, sizeof text)->scan;
    static float y[ROWS * VOCAB], granule[64];
    static uint64_t key[4096 + FS_GRANULE];
    int short_lists = 0;
    for (int s = 0; s < SHAPES; s++)
        for (int keep = 1; keep <= 256; keep *= 4) {
            fill(y, shapes[s], 88 + (uint64_t)s);
            fs_list list = {.key = key, .keep = keep, .capacity = 2048};
            for (int64_t v = 0; v < 8192; v += 1024) {
                scan->survey(NULL, 0, y + v, 1024, granule);
                if (!list.count) fs_lists_start(&list, granule, 64);
                fs_lists_offer(&list, scan, y + v, granule, v, 64);
                if (v == 0) short_lists += list.count < 16 * keep;
                check_list(&list, y, v + 1024);
            }
        }
    assert_true(short_lists > 2 * SHAPES);
}

/* A bound that is raised keeps the list's claim, whatever it still holds below it; and never falls. */
static void raised_lists_hold_all_above_their_bound(void **state) {
    (void)state;
    char text[256];
    const fs_scan *scan = fs_isa_choose(NULL, text, sizeof text)->scan;
    static float y[ROWS * VOCAB], granule[64];
    static uint64_t key[VOCAB + FS_GRANULE];
    for (int s = 0; s < SHAPES; s++) {
        fill(y, shapes[s], 99 + (uint64_t)s);
        fs_list list = {.key = key, .keep = 0, .capacity = VOCAB};
        for (int64_t v = 0; v + 1024 <= VOCAB; v += 1024) {
            scan->survey(NULL, 0, y + v, 1024, granule);
            const uint64_t before = list.bound, bound = order_key_behind(y[v + 5]);
            assert_int_equal(fs_lists_raise(&list, scan, bound), bound > before);
            assert_true(list.bound == (bound > before ? bound : before));
            fs_lists_offer(&list, scan, y + v, granule, v, 64);
            check_list(&list, y, v + 1024);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_the_references),
        cmocka_unit_test(language_like_rows_need_no_second_pass),
        cmocka_unit_test(min_p_keeps_what_it_needs),
        cmocka_unit_test(a_nucleus_before_min_p_is_proven_by_parts),
        cmocka_unit_test(nuclei_far_from_zero_are_the_references),
        cmocka_unit_test(nuclei_of_extreme_temperatures_are_the_references),
        cmocka_unit_test(lists_hold_all_above_their_bound),
        cmocka_unit_test(started_lists_hold_all_above_their_bound),
        cmocka_unit_test(raised_lists_hold_all_above_their_bound),
    };
    return cmocka_run_group_tests_name("nucleus", tests, NULL, NULL);
}
