/* The scans of every row of the dispatch table (isas.h) against those of the scalar row, bit for bit where they promise
 * it. */
#include "isas.h"
#include "support.h"

#include <float.h>

static void scans_give_the_same_bits_everywhere(void **state) {
    (void)state;
    enum { N = 1056 };
    static float x[N], a[N], b[N], max_a[N / 16], max_b[N / 16];
    static uint32_t allow[N / 32 + 3];
    rng r = random_from(9);
    const fs_scan *scalar = isa_named("scalar")->scan;
    for (int i = 0; i < NAMES; i++) {
        const fs_isa *isa = isa_at(i);
        for (int round = 0; isa && round < 10 + (int)test_size(190); round++) {
            const fs_scan *scan = isa->scan;
            const int64_t n = 16 * (1 + (int64_t)random_below(&r, N / 16));
            const float scale = round % 3 ? 1.0f : (float)pow(10.0, 6.0 * random_unit(&r) - 3.0);
            const double spread = pow(10.0, 4.0 * random_unit(&r) - 1.0);
            for (int64_t k = 0; k < n; k++) {
                x[k] = (float)(spread * random_normal(&r));
                if (random_below(&r, 30) == 0) x[k] = -INFINITY;
                if (round % 7 == 0 && random_below(&r, 50) == 0) x[k] = NAN;
            }
            for (int k = 0; k < N / 32 + 3; k++) allow[k] = (uint32_t)random_next(&r);
            memcpy(a, x, sizeof x), memcpy(b, x, sizeof x);
            const int64_t base = 16 * (int64_t)random_below(&r, 3);
            const uint32_t *mask = round % 2 ? allow : NULL;
            for (int64_t k = 0; mask && k < n; k++)
                if (!(mask[(base + k) / 32] >> (base + k) % 32 & 1)) b[k] = -INFINITY;
            fs_survey sa = scan->survey(mask, base, a, n, max_a), sb = scalar->survey(NULL, 0, b, n, max_b);
            assert_memory_equal(a, b, (size_t)n * 4);
            assert_memory_equal(max_a, max_b, (size_t)n / 16 * 4);
            assert_true(sa.most == sb.most && sa.flags == sb.flags);
            fs_mass ma = mass_empty(), mb = mass_empty();
            scan->add_mass(a, max_a, n, scale, &ma), scalar->add_mass(b, max_b, n, scale, &mb);
            assert_int_equal(ma.top, mb.top);
            assert_memory_equal(ma.limb, mb.limb, sizeof ma.limb);
            double floor = spread * random_normal(&r) * (double)scale;
            for (int64_t g = 0; g <= n / 16; g++)
                assert_int_equal(scan->next_above(max_a, g, n / 16, scale, floor),
                                 scalar->next_above(max_b, g, n / 16, scale, floor));
            fs_entropy ea = entropy_empty(), eb = entropy_empty();
            scan->add_entropy(a, n, scale, &ea), scalar->add_entropy(b, n, scale, &eb);
            assert_int_equal(ea.mass.top, eb.mass.top);
            assert_memory_equal(ea.mass.limb, eb.mass.limb, sizeof ea.mass.limb);
            assert_memory_equal(ea.down, eb.down, sizeof ea.down);
            assert_int_equal(ea.below.top, eb.below.top);
            assert_memory_equal(ea.below.limb, eb.below.limb, sizeof ea.below.limb);
            /* Once more on top of what there is, and of something far larger or smaller. */
            if (round % 2) mass_add(&ma, 1.5f, round - 100), mass_add(&mb, 1.5f, round - 100);
            scan->add_mass(a, max_a, n, scale, &ma), scalar->add_mass(b, max_b, n, scale, &mb);
            assert_int_equal(ma.top, mb.top);
            assert_memory_equal(ma.limb, mb.limb, sizeof ma.limb);
            float above = (float)(spread * random_normal(&r));
            static uint64_t ka[N + 16], kb[N + 16];
            fs_list la = {.key = ka, .capacity = (int32_t)random_below(&r, N), .keep = 1}, lb = la;
            lb.key = kb;
            int64_t from = (int64_t)random_below(&r, (uint32_t)n / 16);
            assert_int_equal(scan->append(a, max_a, from, n / 16, above, 32, &la),
                             scalar->append(b, max_b, from, n / 16, above, 32, &lb));
            assert_int_equal(la.count, lb.count);
            assert_true(la.count <= la.capacity);
            assert_memory_equal(ka, kb, (size_t)la.count * sizeof *ka);
        }
    }
}

/* Granules of every size of logit, the edges of what a vector can add among them. */
static void masses_of_extreme_logits_are_the_same_everywhere(void **state) {
    (void)state;
    static const float edge[] = {0.0f,   44999.0f, 45000.0f, 45001.0f, 362999.0f, 363000.0f, 363100.0f, 3e38f,
                                 8.7e6f, 1.2e7f,   1.7e7f,   2.9e6f,   100.0f,    700.0f,    1e-30f,    INFINITY};
    enum { N = 16 * 16 * 3 + 16 };
    static float y[N], max[N / 16];
    rng r = random_from(10);
    const fs_scan *scalar = isa_named("scalar")->scan;
    for (int i = 0; i < NAMES; i++) {
        const fs_isa *isa = isa_at(i);
        for (int round = 0; isa && round < 20 + (int)test_size(480); round++) {
            for (int k = 0; k < N; k += 16) {
                float base = edge[random_below(&r, 16)] * (random_below(&r, 2) ? 1.0f : -1.0f);
                for (int j = k; j < k + 16; j++) {
                    y[j] = random_below(&r, 4) ? base + 20.0f * (float)random_normal(&r) : -INFINITY;
                    if (random_below(&r, 8) == 0) y[j] = -edge[random_below(&r, 16)];
                    if (round % 2 && y[j] > 45100.0f) y[j] = -y[j];
                }
            }
            fs_mass got = mass_empty(), expected = mass_empty();
            isa->scan->survey(NULL, 0, y, N, max);
            isa->scan->add_mass(y, max, N, 1.0f, &got), scalar->add_mass(y, max, N, 1.0f, &expected);
            assert_int_equal(got.top, expected.top);
            assert_memory_equal(got.limb, expected.limb, sizeof got.limb);
        }
    }
}

/* A test may pass a block in which nobody wins; it may not drop one in which a marked token reaches the floor. */
static void tested_marks_miss_no_winner(void **state) {
    (void)state;
    enum { SPAN = FS_MARK_BATCH * FS_NOISE_BLOCK };
    static float y[SPAN];
    rng r = random_from(12);
    int64_t winners = 0, passed = 0, blocks = 0;
    for (int i = 0; i < NAMES; i++) {
        const fs_isa *isa = isa_at(i);
        for (int round = 0; isa && round < 100 + (int)test_size(4900); round++) {
            const uint32_t first = random_below(&r, 2000);
            const double spread = pow(10.0, 5.0 * random_unit(&r) - 2.0);
            for (int k = 0; k < SPAN; k++) {
                y[k] = random_below(&r, 20) ? (float)(spread * random_normal(&r)) : -INFINITY;
                if (random_below(&r, 1000) == 0) y[k] = random_below(&r, 2) ? INFINITY : 3e38f;
            }
            /* A shard's first granule may lie inside a block, its last too. */
            const int64_t cut = round % 3 ? 0 : 16 * (int64_t)random_below(&r, 8);
            fs_mark_test test = {noise_row(random_next(&r), 3, 0, 0),   y,
                                 first * (int64_t)FS_NOISE_BLOCK + cut, SPAN - cut - 16 * (int64_t)random_below(&r, 8),
                                 0.5f + (float)random_unit(&r),         0.0};
            test.floor = spread * 3.0 * random_normal(&r);
            if (round % 10 == 0) test.floor = round % 20 ? -INFINITY : DBL_MAX;
            fs_marks marks;
            const uint32_t some = isa->scan->marks(&test, first, &marks);
            for (uint32_t k = 0; k < FS_MARK_BATCH; k++) {
                fs_walk walk = noise_walk(test.noise, first + k);
                for (int w = 0; w < 4; w++) assert_int_equal(marks.w[w][k], walk.words.w[w]);
                int wins = 0;
                while (noise_next(&walk)) {
                    int64_t at = (int64_t)walk.token - test.base;
                    if (at < 0 || at >= test.span) continue;
                    double g = noise_gumbel_given(test.noise, walk.token, (int32_t)walk.prefix);
                    wins |= (double)(y[at] * test.scale) + g > test.floor + FS_NOISE_G;
                }
                assert_true(!wins || (some >> k & 1));
                winners += wins, passed += some >> k & 1, blocks++;
            }
        }
    }
    assert_true(winners > 0 && passed < blocks);
}

/* The bound every cut relies on: rough masses are within half of mass_slack, at any size of logit they are used for. */
static void rough_masses_are_as_close_as_promised(void **state) {
    (void)state;
    enum { N = 16 * 200 };
    static float y[N], max[N / 16];
    rng r = random_from(13);
    double worst = 0.0;
    for (int i = 0; i < NAMES; i++) {
        const fs_isa *isa = isa_at(i);
        for (int round = 0; isa && round < 20 + (int)test_size(380); round++) {
            const int64_t n = 16 * (1 + (int64_t)random_below(&r, N / 16));
            const float scale = round % 3 ? 1.0f : (float)pow(10.0, 2.0 * random_unit(&r) - 1.0);
            const double spread = pow(10.0, 3.0 * random_unit(&r) - 1.5) / (double)scale;
            const double at = (random_below(&r, 2) ? 1.0 : -1.0) * pow(10.0, 5.6 * random_unit(&r) - 1.0);
            if (fabs(at) + 5.0 * spread * (double)scale > (double)FS_ROUGH_MOST) continue;
            for (int64_t k = 0; k < n; k++) {
                y[k] = (float)(at / (double)scale + spread * random_normal(&r));
                if (round % 5 == 0 && random_below(&r, 3) == 0) y[k] = random_below(&r, 9) ? -INFINITY : -3e38f;
            }
            fs_survey survey = isa->scan->survey(NULL, 0, y, n, max);
            if (!(survey.most > -1e30f)) continue;
            fs_mass exact = mass_empty(), rough = mass_empty();
            isa->scan->add_mass(y, max, n, scale, &exact);
            isa->scan->add_rough(y, survey.most, n, scale, &rough);
            double off = fabs(expm1(mass_log(&rough) - mass_log(&exact))) / mass_slack(survey.most * scale);
            worst = off > worst ? off : worst;
        }
    }
    print_message("rough masses are off by up to %.2f of their slack\n", worst);
    assert_true(worst < 0.5);
}

/* Keys that are kept, counted and binned, against plain loops. */
static void keys_are_selected_the_same_everywhere(void **state) {
    (void)state;
    enum { N = 300 };
    static uint64_t key[N + 8], kept[N + 8];
    static int32_t bin[N];
    rng r = random_from(14);
    for (int i = 0; i < NAMES; i++) {
        const fs_isa *isa = isa_at(i);
        for (int round = 0; isa && round < 20 + (int)test_size(380); round++) {
            const int32_t n = 1 + (int32_t)random_below(&r, N);
            for (int32_t k = 0; k < n; k++) key[k] = order_key((float)(5.0 * random_normal(&r)), (uint32_t)k);
            const uint64_t above = order_key((float)(5.0 * random_normal(&r)), (uint32_t)random_below(&r, N));
            uint64_t most = key[0], least = key[0], low;
            int32_t count = 0;
            for (int32_t k = 0; k < n; k++) {
                most = key[k] > most ? key[k] : most, least = key[k] < least ? key[k] : least;
                if (key[k] > above) kept[count++] = key[k];
            }
            assert_true(isa->scan->key_range(key, n, &low) == most && low == least);
            const fs_bins bins = {order_key_logit(most), 8.0f};
            isa->scan->bin(key, n, bins, bin);
            for (int32_t k = 0; k < n; k++) {
                const double down = 8.0 * ((double)bins.top - (double)order_key_logit(key[k]));
                assert_true(bin[k] >= 0 && bin[k] < FS_BINS);
                assert_true(bin[k] == FS_BINS - 1 ? down > FS_BINS - 1.001 : fabs(down - bin[k] - 0.5) <= 0.501);
            }
            assert_int_equal(isa->scan->count_above(key, n, above), count);
            assert_int_equal(isa->scan->keep_above(key, n, above), count);
            assert_memory_equal(key, kept, (size_t)count * sizeof *key);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scans_give_the_same_bits_everywhere),
        cmocka_unit_test(masses_of_extreme_logits_are_the_same_everywhere),
        cmocka_unit_test(tested_marks_miss_no_winner),
        cmocka_unit_test(rough_masses_are_as_close_as_promised),
        cmocka_unit_test(keys_are_selected_the_same_everywhere),
    };
    return cmocka_run_group_tests_name("scans", tests, NULL, NULL);
}
