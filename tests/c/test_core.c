/* The parts a draw is made of, each against its definition. */
#include "support.h"

#include "core/cut.h"
#include "core/halves.h"
#include "core/head.h"
#include "core/noise.h"
#include "core/summary.h"
#include "core/wire.h"

static void key_orders_scores_then_lower_tokens(void **state) {
    (void)state;
    const double score[] = {-INFINITY, -1e300, -3.5, -0.0, 1e-300, 2.0, 2.5, 1e300, INFINITY};
    for (size_t i = 0; i + 1 < sizeof score / sizeof score[0]; i++)
        assert_true(score_key(score[i], 0) < score_key(score[i + 1], 0xFFFFFE));
    assert_true(score_key(2.0, 7) > score_key(2.0, 8));
    assert_true(score_key(-INFINITY, 0xFFFFFE) > FS_KEY_NONE);
    assert_int_equal(score_key(0.0, 3), score_key(-0.0, 3));
    assert_int_equal(score_key_token(score_key(-17.25, 151935)), 151935);
}

static void key_value_never_exceeds_the_score(void **state) {
    (void)state;
    rng r = random_from(1);
    for (int i = 0; i < 100000; i++) {
        double score = random_normal(&r) * ldexp(1.0, (int)random_below(&r, 40) - 20);
        double value = score_key_value(score_key(score, (uint32_t)random_below(&r, 1 << 24)));
        assert_true(value <= score && score - value <= fabs(score) * ldexp(1.0, -27));
    }
}

/* A floor is the logit of a bound, and what is equal to the logit has to be above it: -0 before 0 would not do. */
static void order_key_before_is_below_all_keys_of_its_logit(void **state) {
    (void)state;
    static const float logits[] = {0.0f, -0.0f, 1.5f, -1.5f, 1e-45f, -1e-45f, 3e38f, -3e38f};
    for (size_t i = 0; i < sizeof logits / sizeof logits[0]; i++) {
        const uint64_t before = order_key_before(logits[i]);
        assert_true(before < order_key(logits[i], (uint32_t)FS_TOKEN_LIMIT - 1));
        assert_true(order_key_logit(before) < logits[i]);
        assert_true(before >= order_key(nextafterf(logits[i], -INFINITY), 0));
    }
}

static void order_key_round_trips_and_ties_go_to_lower_token(void **state) {
    (void)state;
    rng r = random_from(2);
    for (int i = 0; i < 100000; i++) {
        float a = (float)random_normal(&r), b = (float)random_normal(&r);
        uint32_t token = (uint32_t)random_below(&r, 1 << 24);
        assert_true(order_key_logit(order_key(a, token)) == a);
        assert_int_equal(order_key_token(order_key(a, token)), token);
        assert_int_equal(order_key(a, 5) > order_key(b, 4), a > b);
    }
    assert_true(order_key(1.0f, 3) > order_key(1.0f, 4));
    assert_int_equal(order_key(0.0f, 3), order_key(-0.0f, 3));
}

/* A row at a time on a CPU, a logit at a time on a GPU. */
static void a_head_does_the_same_to_many_logits(void **state) {
    (void)state;
    enum { N = 1000 };
    rng r = random_from(5);
    float one[N], many[N];
    for (int kind = 0; kind < 3 * 2 * 2 * 2; kind++) {
        fs_head head = fs_head_default();
        head.round_to = (int32_t[]){FS_F32, FS_BF16, FS_F16}[kind % 3];
        head.scale = kind / 3 % 2 ? 0.7f : 1.0f;
        head.softcap = kind / 6 % 2 ? 30.0f : 0.0f;
        head.post_scale = kind / 12 ? 1.3f : 1.0f;
        assert_int_equal(head_is_plain(&head), kind == 0);
        for (int i = 0; i < N; i++) {
            const float x = i == 0 ? INFINITY : i == 1 ? -INFINITY : (float)(20.0 * random_normal(&r));
            one[i] = head_logit(&head, x);
            many[i] = x;
        }
        head_logits(&head, many, N);
        assert_memory_equal(one, many, sizeof one);
    }
}

static void halves_round_to_nearest_even(void **state) {
    (void)state;
    rng r = random_from(3);
    for (int i = 0; i < 200000; i++) {
        float x = (float)(random_normal(&r) * ldexp(1.0, (int)random_below(&r, 45) - 30));
        uint32_t bf = (uint32_t)bf16_of(x) << 16;
        float expected;
        memcpy(&expected, &bf, 4);
        assert_true(round_bf16(x) == expected);
        uint16_t h = f16_of(x);
        double magnitude = (h & 0x7C00) ? ldexp(1024 + (h & 0x3FF), (h >> 10 & 31) - 25) : ldexp(h & 0x3FF, -24);
        if ((h & 0x7C00) == 0x7C00) magnitude = INFINITY;
        assert_true((double)fabsf(round_f16(x)) == magnitude);
        assert_true(signbit(round_f16(x)) == signbit(x) || magnitude == 0.0);
    }
}

/* ---------------------------------------------------------------------------------------------------- masses ---- */

static void exp_split_is_accurate(void **state) {
    (void)state;
    double worst = 0.0;
    for (int i = -400000; i <= 400000; i++) {
        float l = (float)i * 1e-4f * 1.1f;
        fs_exp e = exp_split(l);
        double relative = fabs(ldexp((double)e.fraction, e.exponent) / exp((double)l) - 1.0);
        if (relative > worst) worst = relative;
        assert_true(e.fraction > 0.70f && e.fraction < 1.42f);
    }
    assert_true(worst < 2.5e-7);
    /* Far out, where exp overflows a double, the reduction still holds: compare with long double. */
    for (int i = -450; i <= 450; i++) {
        float l = i * 100.0f - copysignf(0.37f, (float)i);
        fs_exp e = exp_split(l);
        long double log_e = logl((long double)e.fraction) + (long double)e.exponent * 0.693147180559945309417232121458L;
        assert_true(fabsl(log_e - (long double)l) < 5e-7L);
    }
    /* Beyond FS_EXP_EXACT a product is rounded. */
    for (int i = -400000; i < 400000; i++) {
        float l = (float)i * 0.905f;
        fs_exp e = exp_split(l);
        long double log_e = logl((long double)e.fraction) + (long double)e.exponent * 0.693147180559945309417232121458L;
        assert_true(fabsl(log_e - (long double)l) < (fabsf(l) <= FS_EXP_EXACT ? 5e-7L : 2e-4L));
    }
}

static void fill(rng *r, float *l, int64_t n, double scale) {
    for (int64_t i = 0; i < n; i++) l[i] = random_below(r, 20) ? (float)(scale * random_normal(r)) : -INFINITY;
}

static void mass_of(const float *l, int64_t granules, fs_mass *mass) {
    for (int64_t g = 0; g < granules; g++) mass_add_granule(mass, l + g * FS_GRANULE);
}

static void mass_does_not_depend_on_order_or_split(void **state) {
    (void)state;
    rng r = random_from(4);
    enum { GRANULES = 200 };
    static float l[GRANULES * FS_GRANULE];
    for (int round = 0; round < 300; round++) {
        /* Wide scales make tops rise while adding and low limbs fall out. */
        fill(&r, l, GRANULES * FS_GRANULE, round % 3 ? 5.0 : 40.0 * (1 + round % 7));
        fs_mass whole = mass_empty();
        mass_of(l, GRANULES, &whole);
        fs_mass part[7];
        for (int i = 0; i < 7; i++) part[i] = mass_empty();
        for (int64_t g = 0; g < GRANULES; g++) {
            int64_t at = (g * 77 + round) % GRANULES; /* 77 and 200 are coprime: every granule once, shuffled */
            mass_add_granule(&part[random_below(&r, 7)], l + at * FS_GRANULE);
        }
        fs_mass merged = mass_empty();
        for (int i = 0; i < 7; i++) mass_merge(&merged, &part[(i * 3 + round) % 7]);
        assert_memory_equal(&whole.limb, &merged.limb, sizeof whole.limb);
        assert_int_equal(whole.top, merged.top);
    }
}

static void mass_agrees_with_double(void **state) {
    (void)state;
    rng r = random_from(5);
    enum { GRANULES = 1000 };
    static float l[GRANULES * FS_GRANULE];
    for (int round = 0; round < 50; round++) {
        fill(&r, l, GRANULES * FS_GRANULE, 0.1 * (round + 1));
        fs_mass mass = mass_empty();
        mass_of(l, GRANULES, &mass);
        double sum = 0.0;
        for (int64_t i = 0; i < GRANULES * FS_GRANULE; i++) sum += exp((double)l[i]);
        assert_true(fabs(mass_log(&mass) - log(sum)) < 1e-7);
    }
    fs_mass none = mass_empty();
    float empty[FS_GRANULE];
    for (int i = 0; i < FS_GRANULE; i++) empty[i] = -INFINITY;
    mass_add_granule(&none, empty);
    assert_true(mass_is_empty(&none) && mass_log(&none) == -INFINITY);
}

/* As the header promises: 1e-6 for |l| up to 45,000. Sums are made in long double, relative to the largest term. */
static void mass_of_large_logits_is_accurate(void **state) {
    (void)state;
    rng r = random_from(50);
    enum { GRANULES = 5 };
    float l[GRANULES * FS_GRANULE];
    for (int i = -90; i <= 90; i++) {
        const float top = (float)(i * 500 - (i > 0) + (i < 0));
        fs_mass mass = mass_empty();
        long double sum = 0.0L;
        for (int k = 0; k < GRANULES * FS_GRANULE; k++) {
            l[k] = top - (float)fabs(4.0 * random_normal(&r));
            if (fabsf(l[k]) > 45000.0f) l[k] = top;
            sum += expl((long double)l[k] - (long double)top);
        }
        mass_of(l, GRANULES, &mass);
        assert_true(fabsl((long double)mass_log(&mass) - (long double)top - logl(sum)) < 1e-6L);
    }
}

/* Beyond that masses saturate, but never turn into nonsense. */
static void mass_survives_extreme_logits(void **state) {
    (void)state;
    float l[FS_GRANULE];
    for (int i = 0; i < FS_GRANULE; i++) l[i] = -INFINITY;
    const float value[] = {-300000.0f, -40000.0f, 40000.0f, 300000.0f};
    fs_mass mass = mass_empty();
    for (int i = 0; i < 4; i++) {
        l[3] = value[i];
        mass_add_granule(&mass, l);
        assert_true(fabs(mass_log(&mass) - (double)value[i]) < 1e-6 * fabs((double)value[i]));
    }
}

/* ----------------------------------------------------------------------------------------------------- lists ---- */

static void list_is_complete_above_its_bound(void **state) {
    (void)state;
    rng r = random_from(6);
    static uint64_t all[4000], key[600];
    for (int round = 0; round < 300; round++) {
        int32_t n = 1 + (int32_t)random_below(&r, 4000), keep = 1 + (int32_t)random_below(&r, 250);
        fs_list list = {.key = key, .keep = keep, .capacity = keep + 1 + (int32_t)random_below(&r, 300)};
        for (int32_t i = 0; i < n; i++) {
            float logit = (float)(int)(random_normal(&r) * (round % 2 ? 3.0 : 1000.0));
            all[i] = order_key(logit, (uint32_t)i);
            list_offer(&list, all[i], 0.0f);
        }
        qsort(all, (size_t)n, sizeof *all, descending);
        int32_t complete = 0;
        list_heapify(&list);
        for (int32_t i = 0; i < list.count; i++) {
            uint64_t got = list.key[list_at(&list, i)];
            if (got > list.bound) {
                assert_int_equal(got, all[i]);
                complete++;
            }
        }
        assert_true(complete >= (keep < n ? keep : n));
        if (complete < n) assert_true(list.bound >= all[complete]);
    }
}

/* A list that may keep all it can hold takes no more, and its bound says what it turned away. */
static void list_without_spare_room_stays_inside(void **state) {
    (void)state;
    uint64_t key[6] = {0, 0, 0, 0, 0, 12345};
    fs_list list = {.key = key, .keep = 5, .capacity = 5};
    for (uint32_t i = 0; i < 40; i++) list_offer(&list, order_key((float)(i * 7 % 40), i), 0.0f);
    assert_int_equal(list.count, 5);
    assert_int_equal(key[5], 12345);
    assert_true(list.bound >= order_key(39.0f, 17)); /* the largest came late: nothing may be claimed above it */
}

static void list_keeps_raw_logits_beside_their_keys(void **state) {
    (void)state;
    rng r = random_from(7);
    static uint64_t key[100];
    static float raw[100];
    fs_list list = {.key = key, .raw = raw, .keep = 40, .capacity = 100};
    for (uint32_t i = 0; i < 3000; i++) list_offer(&list, order_key((float)random_normal(&r), i), (float)i * 0.5f);
    list_heapify(&list);
    for (int32_t i = 0; i < list.count; i++) {
        int32_t at = list_at(&list, i);
        assert_true(list.raw[at] == (float)order_key_token(list.key[at]) * 0.5f);
    }
}

static fs_row_rules cuts_of(int32_t top_k, float top_p, double log_min_p) {
    fs_row_rules rules;
    memset(&rules, 0, sizeof rules);
    rules.inverse_temperature = rules.cut_scale = 1.0f;
    rules.top_k = top_k, rules.top_p = top_p, rules.log_min_p = log_min_p;
    return rules;
}

/* A row of tied logits, cut by top-k with ties kept, from a list too short to hold them all: the proof must be
 * refused. */
static void cut_refuses_a_proof_when_a_tie_may_be_missing(void **state) {
    (void)state;
    uint64_t key[8];
    const fs_row_rules rules = cuts_of(4, 1.0f, -INFINITY);
    const fs_mass none = mass_empty();
    static const uint32_t flags[] = {0, FS_KEEP_TIES_TOP_P, FS_KEEP_TIES_TOP_K, FS_KEEP_TIES};
    for (int i = 0; i < 4; i++) {
        const int ties = (flags[i] & FS_KEEP_TIES_TOP_K) != 0;
        fs_list list = {.key = key, .keep = 6, .capacity = 8};
        for (uint32_t token = 0; token < 100; token++) list_offer(&list, order_key(1.0f, token), 0.0f);
        list_heapify(&list);
        fs_cut cut = cut_list(&list, &rules, flags[i], &none, 0.0);
        assert_int_equal(cut.proven, !ties);
        if (!ties) assert_int_equal(cut.survivors, 4);
    }
}

/* Min-p after a top-p of what top-k left: the mass needs all k of them, of which a list may hold fewer. That min-p ends
 * the cut is a proof of its own; that top-p does is none. */
static void cut_with_min_p_last_is_proven_where_min_p_ends_it(void **state) {
    (void)state;
    uint64_t key[8];
    const fs_mass none = mass_empty();
    for (int i = 0; i < 2; i++) {
        const fs_row_rules rules = cuts_of(50, i ? 0.9f : 0.1f, log(0.5));
        fs_list list = {.key = key, .keep = 6, .capacity = 8};
        for (uint32_t token = 0; token < 100; token++)
            list_offer(&list, order_key(token < 3 ? 2.0f : -0.01f * (float)token, token), 0.0f);
        list_heapify(&list);
        fs_cut cut = cut_list(&list, &rules, FS_MIN_P_LAST, &none, 0.0);
        assert_int_equal(cut.proven, i);
        assert_int_equal(cut.survivors, i ? 3 : 1);
        assert_int_equal(cut_list(&list, &rules, 0, &none, 0.0).proven, 1);
    }
}

static void winners_stay_the_largest_in_order(void **state) {
    (void)state;
    rng r = random_from(8);
    for (int round = 0; round < 500; round++) {
        fs_winner winner[9];
        uint64_t all[64];
        int32_t n = 1 + (int32_t)random_below(&r, 9), count = 1 + (int32_t)random_below(&r, 64);
        memset(winner, 0, sizeof winner);
        for (int32_t i = 0; i < count; i++) {
            fs_winner offer = {all[i] = random_next(&r) >> 1 | 1, 0.0f, 0.0f};
            winners_insert(winner, n, offer);
        }
        qsort(all, (size_t)count, sizeof *all, descending);
        for (int32_t i = 0; i < n; i++) assert_int_equal(winner[i].key, i < count ? all[i] : FS_KEY_NONE);
    }
}

/* ----------------------------------------------------------------------------------------------------- noise ---- */

static void marks_are_subsets_of_every_size(void **state) {
    (void)state;
    fs_noise noise = noise_row(1, 2, 3, 4);
    for (int count = 0; count <= 128; count++) {
        fs_walk walk = noise_walk_of(noise, 5, count, noise_mark_words(noise, 5, 0));
        char marked[FS_NOISE_BLOCK] = {0};
        for (int i = 0; i < count; i++) {
            assert_int_equal(noise_next(&walk), 1);
            assert_true(walk.token >= 5 * FS_NOISE_BLOCK && walk.token < 6 * FS_NOISE_BLOCK && walk.prefix < 65536);
            char *mark = &marked[walk.token % FS_NOISE_BLOCK];
            assert_int_equal(*mark, 0);
            *mark = 1;
        }
        assert_int_equal(noise_next(&walk), 0);
        for (int i = 0; i < FS_NOISE_BLOCK; i++) assert_int_equal(walk.taken[i / 64] >> (i % 64) & 1, marked[i]);
    }
}

static void assert_count_of_64_bits(fs_noise noise, uint32_t block) {
    uint64_t upper = noise_mark_words(noise, block, 0).w[0], lower = noise_mark_words(noise, block, 1).w[0];
    assert_int_equal(noise_walk(noise, block).left, noise_mark_count(upper << 32 | lower));
}

/* The lower word of its count decides in one block of 2^28. These are such blocks: the upper word is that of a
 * threshold. */
static void the_number_of_marks_takes_two_words(void **state) {
    (void)state;
    static const uint32_t open[][3] = {/* position, block, marks */
                                       {4692, 129294, 1}, {9184, 118822, 0},  {14603, 71527, 6}, {18120, 67919, 3},
                                       {25072, 17633, 5}, {12096, 97391, 10}, {42334, 115971, 9}};
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        fs_noise noise = noise_row(0, open[i][0], 0, 0);
        uint64_t low = (uint64_t)noise_mark_words(noise, open[i][1], 0).w[0] << 32;
        assert_true(noise_mark_count(low) != noise_mark_count(low | UINT32_MAX));
        assert_int_equal(noise_walk(noise, open[i][1]).left, open[i][2]);
        assert_count_of_64_bits(noise, open[i][1]);
    }
    for (uint32_t i = 0; i < 200000; i++) assert_count_of_64_bits(noise_row(10, i / 1000, 0, 0), i % 1000);
}

static void unmarked_noise_stays_below_its_ceiling(void **state) {
    (void)state;
    assert_true(fabs(FS_NOISE_C + log1p(-FS_NOISE_Q)) < 1e-17);
    assert_true(fabs(FS_NOISE_G + log(FS_NOISE_C)) < 1e-14);
    for (uint32_t i = 0; i < 200000; i++) {
        fs_noise noise = noise_row(9, i, 0, 0);
        assert_true(noise_gumbel_given(noise, i, -1) <= FS_NOISE_G + 1e-12);
        assert_true(noise_gumbel_given(noise, i, (int32_t)(i & 0xFFFF)) >= FS_NOISE_G - 1e-12);
        assert_true(noise_gumbel_given(noise, i, 0xFFFF) >= FS_NOISE_G - 1e-12);
    }
}

/* The most a prefix can have is the noise of its least w, 36 bits of zeros and a half. Races pass over tokens on the
 * strength of it. */
static void marked_noise_stays_below_the_ceiling_of_its_prefix(void **state) {
    (void)state;
    for (uint32_t prefix = 0; prefix < 65536; prefix++) {
        double ceiling = (double)noise_ceiling(prefix);
        double most = -log(-log1p(-FS_NOISE_Q * noise_centre((uint64_t)prefix << 36)));
        assert_true(ceiling >= most);
        assert_true(ceiling <= most + 1e-4 + (prefix ? 0.002 : 0.0)); /* E is q w (1 + q w / 2) */
        for (uint32_t i = 0; i < 4; i++)
            assert_true(noise_gumbel_given(noise_row(11, prefix, i, 0), 128 * i + (prefix & 127), (int32_t)prefix) <=
                        ceiling);
    }
}

/* The most an extension can have is the noise of its least w: the bits that are looked at, and zeros behind them. */
static void unmarked_noise_stays_below_the_ceiling_of_its_extension(void **state) {
    (void)state;
    for (uint32_t top = 0; top < 1u << 24; top += top < 70000 ? 1 : 97) {
        const fs_words least = {{0, top << 8, 0, 0}}, last = {{0, 0xFFFFFFFFu - (top << 8), 0, 0}};
        const double ceiling = (double)noise_bare_ceiling(least), most = noise_gumbel_from(least, -1);
        assert_true(ceiling >= most);
        /* 0.06 for log2, and what w^3 / 3 and the terms behind it are worth. */
        const double w = (double)top * 0x1p-24;
        if (w < 0.5) assert_true(ceiling <= most + 0.0597 + 2e-5 + w * w * 0.5);
        assert_true((double)noise_bare_ceiling(last) >= noise_gumbel_from(last, -1));
    }
    for (uint32_t i = 0; i < 200000; i++) {
        const fs_words r = noise_words(noise_row(9, i, 0, 0), i, FS_DOMAIN_EXTENSION);
        assert_true(noise_gumbel_from(r, -1) <= (double)noise_bare_ceiling(r));
    }
}

/* A token has the noise that its block's walk says. */
static void noise_of_a_token_is_that_of_its_walk(void **state) {
    (void)state;
    for (uint32_t block = 0; block < 500; block++) {
        fs_noise noise = noise_row(12, block, 0, 0);
        double expected[FS_NOISE_BLOCK];
        for (uint32_t i = 0; i < FS_NOISE_BLOCK; i++)
            expected[i] = noise_gumbel_given(noise, block * FS_NOISE_BLOCK + i, -1);
        fs_walk walk = noise_walk(noise, block);
        while (noise_next(&walk))
            expected[walk.token % FS_NOISE_BLOCK] = noise_gumbel_given(noise, walk.token, (int32_t)walk.prefix);
        for (uint32_t i = 0; i < FS_NOISE_BLOCK; i++)
            assert_true(noise_gumbel(noise, block * FS_NOISE_BLOCK + i) == expected[i]);
    }
}

static void a_mass_survives_the_wire(void **state) {
    (void)state;
    rng r = random_from(77);
    for (int i = 0; i < 10000; i++) {
        fs_mass m = {(int32_t)random_below(&r, 65536) - 32768, {0, 0, 0}};
        for (int k = 0; k < 3; k++) m.limb[k] = random_next(&r) >> (16 + random_below(&r, 48));
        uint32_t words[FS_MASS_WORDS];
        mass_pack(&m, words);
        const fs_mass back = mass_unpack(words);
        assert_int_equal(back.top, m.top);
        for (int k = 0; k < 3; k++) assert_true(back.limb[k] == m.limb[k]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mass_survives_the_wire),
        cmocka_unit_test(key_orders_scores_then_lower_tokens),
        cmocka_unit_test(key_value_never_exceeds_the_score),
        cmocka_unit_test(order_key_round_trips_and_ties_go_to_lower_token),
        cmocka_unit_test(order_key_before_is_below_all_keys_of_its_logit),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(a_head_does_the_same_to_many_logits),
        cmocka_unit_test(exp_split_is_accurate),
        cmocka_unit_test(mass_does_not_depend_on_order_or_split),
        cmocka_unit_test(mass_agrees_with_double),
        cmocka_unit_test(mass_of_large_logits_is_accurate),
        cmocka_unit_test(mass_survives_extreme_logits),
        cmocka_unit_test(list_is_complete_above_its_bound),
        cmocka_unit_test(list_without_spare_room_stays_inside),
        cmocka_unit_test(list_keeps_raw_logits_beside_their_keys),
        cmocka_unit_test(cut_refuses_a_proof_when_a_tie_may_be_missing),
        cmocka_unit_test(cut_with_min_p_last_is_proven_where_min_p_ends_it),
        cmocka_unit_test(winners_stay_the_largest_in_order),
        cmocka_unit_test(marks_are_subsets_of_every_size),
        cmocka_unit_test(the_number_of_marks_takes_two_words),
        cmocka_unit_test(unmarked_noise_stays_below_its_ceiling),
        cmocka_unit_test(marked_noise_stays_below_the_ceiling_of_its_prefix),
        cmocka_unit_test(unmarked_noise_stays_below_the_ceiling_of_its_extension),
        cmocka_unit_test(noise_of_a_token_is_that_of_its_walk),
    };
    return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
