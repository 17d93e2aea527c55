/* The kernels of every row of the dispatch table (isas.h) against dot products in double, and bit for bit the same in
 * any tile. Which rows are listed, forced and chosen. */
#include "machine.h"
#include "problems.h"

static void rows_are_listed_best_first_and_experimental_ones_only_run_when_forced(void **state) {
    (void)state;
    char text[256];
    const fs_isa *chosen = fs_isa_choose(NULL, text, sizeof text), *isa = fs_isa_choose("z80", text, sizeof text);
    assert_true(chosen && !chosen->experimental && !isa);
#ifdef __aarch64__ /* every one has NEON */
    assert_string_not_equal(chosen->name, "scalar");
#endif
    int before = -1, best = 1;
    for (const char *name = strtok(text, ", "); name; name = strtok(NULL, ", ")) {
        int i = 0;
        while (i < NAMES && strcmp(names[i], name) != 0) i++;
        if (i == NAMES) fail_msg("%s is not among the names of this test", name);
        assert_true(i > before);
        before = i;
        isa = isa_named(name);
        assert_non_null(isa);
        assert_string_equal(isa->name, name);
        assert_true(isa->kernel[FS_FORMAT_F32] && isa->kernel[FS_FORMAT_F16] && isa->kernel[FS_FORMAT_BF16] &&
                    isa->scan);
        if (!isa->experimental && best) assert_ptr_equal(isa, chosen), best = 0;
    }
    assert_non_null(isa);
    assert_string_equal(isa->name, "scalar");
    assert_null(isa_named(""));
}

static problem random_problem(rng *r, int32_t w_dtype, int32_t h_dtype) {
    const int32_t rows = 1 + (int32_t)random_below(r, MOST_ROWS), tokens = 1 + (int32_t)random_below(r, MOST_TOKENS);
    const int64_t dim = 1 + (int64_t)random_below(r, random_below(r, 3) ? 200 : 1400);
    return make_problem(r, w_dtype, h_dtype, rows, tokens, dim);
}

typedef struct dot {
    double sum, size; /* of the products, and of their magnitudes */
} dot;

/* The truth, in double: [rows, tokens]. Once for all rows of the table, since it takes longer than they do. */
static const dot *dots_of(const problem *p) {
    static dot dots[MOST_ROWS * MOST_TOKENS];
    double *w = malloc((size_t)p->dim * sizeof *w), *h = malloc((size_t)(p->rows * p->dim) * sizeof *h);
    assert_true(w && h);
    for (int64_t k = 0; k < p->rows * p->dim; k++)
        h[k] = get(p->h_dtype, p->h + k / p->dim * p->h_stride + k % p->dim * bytes_of(p->h_dtype));
    for (int32_t t = 0; t < p->tokens; t++) {
        for (int64_t d = 0; d < p->dim; d++) w[d] = get(p->w_dtype, p->w + t * p->w_stride + d * bytes_of(p->w_dtype));
        for (int32_t b = 0; b < p->rows; b++) {
            dot all = {0, 0};
            for (int64_t d = 0; d < p->dim; d++) {
                const double x = w[d] * h[b * p->dim + d];
                all.sum += x;
                all.size += fabs(x);
            }
            dots[b * p->tokens + t] = all;
        }
    }
    free(w), free(h);
    return dots;
}

#define SHARE 1e-6 /* of the magnitudes: float sums of so many terms; a rounding of H to bf16 would be 2^-9 of a term */

/* No error may exceed this share of the magnitudes. Returns the largest. */
static double check_dots(const fs_isa *isa, const problem *p, const dot *dots, const float *out, double share) {
    double worst = 0;
    for (int32_t k = 0; k < p->rows * p->tokens; k++) {
        double error = fabs((double)out[k] - dots[k].sum), allowed = share * dots[k].size + 1e-30;
        if (!(error <= allowed))
            fail_msg("%s, W %d, H %d, D %lld: dot of row %d, token %d is %.9g, in double %.9g", isa->name, p->w_dtype,
                     p->h_dtype, (long long)p->dim, k / p->tokens, k % p->tokens, (double)out[k], dots[k].sum);
        worst = error > worst * dots[k].size ? error / dots[k].size : worst;
    }
    return worst;
}

static void kernels_compute_dot_products_in_any_tile(void **state) {
    (void)state;
    static float all[MOST_ROWS * MOST_TOKENS], part[MOST_ROWS * MOST_TOKENS];
    rng r = random_from(5);
    for (int round = 0; round < 9 + (int)test_size(63); round++) {
        problem p = random_problem(&r, round % 3, round / 3 % 3);
        const dot *dots = dots_of(&p);
        const int32_t first = (int32_t)random_below(&r, (uint64_t)p.rows),
                      t = (int32_t)random_below(&r, (uint64_t)p.tokens);
        const int32_t rows = 1 + (int32_t)random_below(&r, (uint64_t)(p.rows - first));
        const int32_t tokens = 1 + (int32_t)random_below(&r, (uint64_t)(p.tokens - t));
        for (int i = 0; i < NAMES; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            run(isa, &p, 0, p.rows, 0, p.tokens, all, p.tokens);
            check_dots(isa, &p, dots, all, SHARE);
            for (int k = 0; k < MOST_ROWS * MOST_TOKENS; k++) part[k] = 1e9f;
            run(isa, &p, first, rows, t, tokens, part, tokens + 1);
            for (int32_t b = 0; b < rows; b++) {
                assert_memory_equal(part + b * (tokens + 1), all + (first + b) * p.tokens + t, (size_t)tokens * 4);
                assert_true(part[b * (tokens + 1) + tokens] == 1e9f); /* nothing is written behind a row */
            }
        }
        free(p.w), free(p.h);
    }
}

/* One row, two and a few take other tiles than many. */
static void hold_few_against_many(rng *r, const problem *p) {
    enum { TOKENS = 41 };
    static float all[MOST_ROWS * TOKENS], part[MOST_ROWS * TOKENS];
    const dot *dots = dots_of(p);
    assert_int_equal(p->tokens, TOKENS);
    for (int i = 0; i < NAMES; i++) {
        const fs_isa *isa = isa_at(i);
        if (!isa) continue;
        run(isa, p, 0, p->rows, 0, TOKENS, all, TOKENS);
        check_dots(isa, p, dots, all, SHARE);
        for (int32_t first = 0, rows = 1; first + rows <= p->rows; first += rows, rows++) {
            const int32_t t = (int32_t)random_below(r, 9);
            run(isa, p, first, rows, t, TOKENS - t, part, TOKENS);
            for (int32_t b = 0; b < rows; b++)
                assert_memory_equal(part + b * TOKENS, all + (first + b) * TOKENS + t, (size_t)(TOKENS - t) * 4);
        }
    }
}

/* Steps and blocks of elements end everywhere. */
static void few_rows_get_the_bits_of_many(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 5, 31, 32, 33, 64, 127, 256, 289, 600};
    rng r = random_from(15);
    for (int round = 0; round < 9 * (int)(sizeof dims / sizeof dims[0]); round++) {
        if (left_out(round)) continue;
        problem p = make_problem(&r, round % 3, round / 3 % 3, 11, 41, dims[round / 9]);
        hold_few_against_many(&r, &p);
        free(p.w), free(p.h);
    }
}

/* Rows that do not stay in a cache while W streams by are taken in groups: these in two. */
static void rows_that_outgrow_a_cache_get_the_bits_of_few(void **state) {
    (void)state;
    rng r = random_from(16);
    for (int round = 0; round < 9; round++) {
        if (left_out(round)) continue;
        problem p = make_problem(&r, round % 3, round / 3, MOST_ROWS, 41, 4200);
        hold_few_against_many(&r, &p);
        free(p.w), free(p.h);
    }
}

static void set_signs(int32_t dtype, int64_t bytes, int negative, char *at) {
    for (int64_t k = bytes_of(dtype) - 1; k < bytes; k += bytes_of(dtype))
        at[k] = (char)((at[k] & 0x7F) | (negative ? 0x80 : 0));
}

/* Products of one sign: a sum only grows, and what its additions lose may be lost in the same direction every time,
 * such as the small components of f32 numbers beside a large sum. Rows that multiply components sum in segments:
 * docs/explain/exactness.md. */
static void sums_that_only_grow_are_as_exact(void **state) {
    (void)state;
    static float out[MOST_ROWS * MOST_TOKENS];
    double worst[NAMES] = {0};
    rng r = random_from(16);
    for (int round = 0; round < 18; round++) {
        if (left_out(round)) continue;
        problem p = make_problem(&r, round % 3, round / 3 % 3, 3, 24, 4096 - 17 * (round / 9));
        set_signs(p.w_dtype, p.tokens * p.w_stride, 0, p.w);
        set_signs(p.h_dtype, p.rows * p.h_stride, round / 9, p.h);
        const dot *dots = dots_of(&p);
        for (int i = 0; i < NAMES; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            run(isa, &p, 0, p.rows, 0, p.tokens, out, p.tokens);
            const double error = check_dots(isa, &p, dots, out, 8e-7);
            worst[i] = error > worst[i] ? error : worst[i];
        }
        free(p.w), free(p.h);
    }
    for (int i = 0; i < NAMES; i++)
        if (worst[i] > 0) print_message("%s: off by up to %.2e of a sum that only grows\n", names[i], worst[i]);
}

#ifdef __aarch64__
/* Rows that state the same order of additions, whatever the length of their vectors. */
static void rows_of_one_order_give_the_same_bits(void **state) {
    (void)state;
    static const char *const same[][2] = {{"svebf16", "neonmmla"}, {"sve", "neon"}};
    enum { ROWS = 19, TOKENS = 37 };
    static float a[ROWS * TOKENS], b[ROWS * TOKENS];
    rng r = random_from(17);
    if (!isa_named("sve")) {
        print_message("skip: SVE does not run here\n");
        skip();
    }
    for (int round = 0; round < 18; round++) {
        if (left_out(round)) continue;
        problem p = make_problem(&r, round % 3, round / 3 % 3, ROWS, TOKENS, 1 + (int64_t)random_below(&r, 900));
        for (int i = 0; i < 2; i++) {
            const fs_isa *one = isa_named(same[i][0]), *other = isa_named(same[i][1]);
            if (!one || !other) continue;
            run(one, &p, 0, ROWS, 0, TOKENS, a, TOKENS);
            run(other, &p, 0, ROWS, 0, TOKENS, b, TOKENS);
            assert_memory_equal(a, b, sizeof a);
        }
        free(p.w), free(p.h);
    }
}

#endif

/* Rows of H that are not finite, or all zero, change no bit of the others. */
static void rows_that_are_not_finite_leave_the_others_alone(void **state) {
    (void)state;
    enum { ROWS = 20, TOKENS = 35 };
    static float out[2][ROWS * TOKENS];
    rng r = random_from(19);
    for (int round = 0; round < 9; round++) {
        problem p = make_problem(&r, round % 3, round / 3, ROWS, TOKENS, 300);
        make_odd_rows(&p);
        for (int i = 0; i < NAMES; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            run(isa, &p, 0, ROWS, 0, TOKENS, out[0], TOKENS);
            char *saved = malloc((size_t)(ROWS * p.h_stride));
            assert_non_null(saved);
            memcpy(saved, p.h, (size_t)(ROWS * p.h_stride));
            put_number(p.h_dtype, p.h + 70 * bytes_of(p.h_dtype), NAN);
            put_number(p.h_dtype, p.h + 17 * p.h_stride, -INFINITY);
            memset(p.h + 3 * p.h_stride, 0, (size_t)(p.dim * bytes_of(p.h_dtype)));
            run(isa, &p, 0, ROWS, 0, TOKENS, out[1], TOKENS);
            memcpy(p.h, saved, (size_t)(ROWS * p.h_stride));
            free(saved);
            for (int b = 0; b < ROWS; b++)
                if (b == 3)
                    for (int t = 0; t < TOKENS; t++) assert_true(out[1][b * TOKENS + t] == 0);
                else if (b != 0 && b != 17)
                    assert_memory_equal(out[0] + b * TOKENS, out[1] + b * TOKENS, TOKENS * sizeof(float));
                else
                    for (int t = 0; t < TOKENS; t++) assert_false(isfinite(out[1][b * TOKENS + t]));
        }
        free(p.w), free(p.h);
    }
}

static void infinite_weights_and_denormals_are_what_float_makes_of_them(void **state) {
    (void)state;
    float out[3 * 40];
    rng r = random_from(8);
    for (int i = 0; i < NAMES; i++) {
        const fs_isa *isa = isa_at(i);
        for (int32_t pair = 0; isa && pair < 9; pair++) {
            const int32_t w_dtype = pair / 3, h_dtype = pair % 3;
            const int64_t size = bytes_of(w_dtype), row = 70 * size;
            problem p = {w_dtype, h_dtype, 3, 40, 70, row, 70 * bytes_of(h_dtype), malloc(40 * 280), malloc(3 * 280)};
            assert_true(p.w && p.h);
            for (int k = 0; k < 40 * 70; k++) put_number(w_dtype, p.w + size * k, (float)random_normal(&r));
            for (int k = 0; k < 3 * 70; k++)
                put_number(h_dtype, p.h + k * bytes_of(h_dtype), 1.0f + 0.25f * (float)(k % 4));
            put_number(w_dtype, p.w + 5 * row + 69 * size, INFINITY);
            put_number(w_dtype, p.w + 6 * row, -INFINITY);
            put_number(w_dtype, p.w + 7 * row, INFINITY), put_number(w_dtype, p.w + 7 * row + size, -INFINITY);
            for (int d = 0; d < 70; d++) put_number(w_dtype, p.w + 8 * row + size * d, 1e-39f);
            put_number(w_dtype, p.w + 10 * row + 33 * size, NAN);
            run(isa, &p, 0, 3, 0, 40, out, 40);
            for (int b = 0; b < 3; b++) {
                assert_true(out[b * 40 + 5] == INFINITY && out[b * 40 + 6] == -INFINITY);
                assert_true(out[b * 40 + 7] != out[b * 40 + 7]);
                assert_true(fabsf(out[b * 40 + 8]) < 2e-37f); /* flushed or not */
                assert_true(fabsf(out[b * 40 + 9]) < 1000.0f);
                assert_true(out[b * 40 + 10] != out[b * 40 + 10]);
            }
            free(p.w), free(p.h);
        }
    }
}

/* f16 from its smallest subnormal to its largest number, f32 where components of it are denormal, and hidden states of
 * any size. */
static void kernels_compute_dot_products_of_any_magnitude(void **state) {
    (void)state;
    static float out[MOST_ROWS * MOST_TOKENS];
    rng r = random_from(11);
    for (int round = 0; round < 18 + (int)test_size(54); round++) {
        const int32_t rows = 1 + (int32_t)random_below(&r, 20), tokens = 1 + (int32_t)random_below(&r, 60);
        problem p = make_problem(&r, round % 3, round / 3 % 3, rows, tokens, 1 + (int64_t)random_below(&r, 400));
        for (int32_t t = 0; t < p.tokens; t++) {
            /* Up to 65504, and one row in four with subnormals of f16 alone. */
            const int least = t % 4 ? -24 : -26, span = t % 4 == 0 ? 10 : p.w_dtype == FS_F16 ? 39 : 80;
            for (int64_t d = 0; d < p.dim; d++)
                put_number(p.w_dtype, p.w + t * p.w_stride + d * bytes_of(p.w_dtype),
                           (float)ldexp(random_unit(&r) - 0.5, least + 1 + (int)random_below(&r, (uint64_t)span)));
        }
        const int up = p.h_dtype == FS_F16 ? 0 : round / 9 % 2 ? 33 : -33;
        for (int64_t k = 0; k < p.rows * p.dim; k++) {
            const int64_t b = k / p.dim, d = k % p.dim;
            put_number(p.h_dtype, p.h + b * p.h_stride + d * bytes_of(p.h_dtype), (float)ldexp(random_normal(&r), up));
        }
        const dot *dots = dots_of(&p);
        for (int i = 0; i < NAMES; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            run(isa, &p, 0, p.rows, 0, p.tokens, out, p.tokens);
            check_dots(isa, &p, dots, out, SHARE);
        }
        free(p.w), free(p.h);
    }
}

/* The loops that `flashsample bench` compares kernels with run wherever their row does. */
static void every_row_has_a_peak(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++)
        for (int dtype = 0; isa_at(i) && dtype < 3; dtype++) {
            const double peak = measure_peak(names[i], dtype, 1, 0);
            assert_true(peak > 0 && peak < 1e18);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_listed_best_first_and_experimental_ones_only_run_when_forced),
        cmocka_unit_test(kernels_compute_dot_products_in_any_tile),
        cmocka_unit_test(few_rows_get_the_bits_of_many),
        cmocka_unit_test(rows_that_outgrow_a_cache_get_the_bits_of_few),
        cmocka_unit_test(kernels_compute_dot_products_of_any_magnitude),
        cmocka_unit_test(sums_that_only_grow_are_as_exact),
#ifdef __aarch64__ /* no other architecture has two such rows */
        cmocka_unit_test(rows_of_one_order_give_the_same_bits),
#endif
        cmocka_unit_test(rows_that_are_not_finite_leave_the_others_alone),
        cmocka_unit_test(infinite_weights_and_denormals_are_what_float_makes_of_them),
        cmocka_unit_test(every_row_has_a_peak),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
