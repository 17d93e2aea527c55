/* Every row of the dispatch table that runs here (experimental ones too), or the one that FLASHSAMPLING_ISA forces: its kernels
 * against dot products in double, and bit for bit the same in any tile; its scans against those of the scalar row, bit for bit. */
#include "cpu/cpu_isa.h"
#include "machine.h"
#include "support.h"

#include <float.h>

static const char *const names[] = {"amx",      "avx512bf16", "avx512",  "avx2", "svebf16", "sve",
                                    "neonmmla", "neonbf16",   "neonf16", "neon", "scalar"};
enum { NAMES = sizeof names / sizeof names[0], MOST_ROWS = 70, MOST_TOKENS = 300 };

static const fs_isa *isa_named(const char *name) {
    char text[256];
    return fs_isa_choose(name, text, sizeof text);
}

/* The i-th row if it is to be looked at, or NULL. */
static const fs_isa *isa_at(int i) {
    const char *forced = getenv("FLASHSAMPLING_ISA");
    return forced && strcmp(forced, names[i]) != 0 ? NULL : isa_named(names[i]);
}

static void rows_are_listed_best_first_and_experimental_ones_only_run_when_forced(void **state) {
    (void)state;
    char text[256];
    const fs_isa *chosen = fs_isa_choose(NULL, text, sizeof text), *isa = NULL;
    assert_true(chosen && !chosen->experimental);
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
        assert_true(isa->kernel[FS_F32] && isa->kernel[FS_F16] && isa->kernel[FS_BF16] && isa->scan);
        if (!isa->experimental && best) assert_ptr_equal(isa, chosen), best = 0;
    }
    assert_non_null(isa);
    assert_string_equal(isa->name, "scalar");
    assert_null(isa_named("z80"));
    assert_null(isa_named(""));
}

static void put(int32_t dtype, char *at, float x) {
    uint16_t half = dtype == FS_BF16 ? bf16_of(x) : x != x ? 0x7C01 : f16_of(x);
    if (dtype == FS_F32) memcpy(at, &x, sizeof x);
    else memcpy(at, &half, sizeof half);
}

/* By the definition, once for every half there is. */
static double f16_value(uint16_t half) {
    static double value[65536];
    static int made;
    for (int k = 0; !made && k < 65536; k++) {
        const int exponent = k >> 10 & 31, fraction = k & 1023;
        const double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                                 : exponent == 0 ? ldexp(fraction, -24)
                                                 : ldexp(1024 + fraction, exponent - 25);
        value[k] = k >> 15 ? -magnitude : magnitude;
    }
    made = 1;
    return value[half];
}

static double get(int32_t dtype, const char *at) {
    float x;
    uint16_t half;
    if (dtype == FS_F32) {
        memcpy(&x, at, sizeof x);
        return (double)x;
    }
    memcpy(&half, at, sizeof half);
    if (dtype == FS_F16) return f16_value(half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

typedef struct problem {
    int32_t w_dtype, h_dtype, rows, tokens;
    int64_t dim, w_stride, h_stride;
    char *w, *h;
} problem;

static int64_t bytes_of(int32_t dtype) {
    return dtype == FS_F32 ? 4 : 2;
}

/* Normal numbers of deviation 0.1 and 1, by dtype: made once, because making them takes longer than multiplying them. */
enum { POOL = 4096 };
static const char *pool_of(int32_t dtype, int small) {
    static char pool[2][3][POOL * 4];
    static int made;
    rng r = random_from(4);
    for (int k = 0; !made && k < 6 * POOL; k++) {
        const int32_t type = k / POOL % 3;
        put(type, pool[k / POOL / 3][type] + k % POOL * bytes_of(type),
            (float)random_normal(&r) * (k < 3 * POOL ? 1.0f : 0.1f));
    }
    made = 1;
    return pool[small][dtype];
}

static void fill_rows(rng *r, const char *pool, int32_t dtype, int64_t rows, int64_t stride, int64_t dim, char *to) {
    const size_t size = (size_t)bytes_of(dtype);
    memset(to, 0x7F, (size_t)(rows * stride));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < dim; d++)
            memcpy(to + i * stride + d * (int64_t)size, pool + random_next(r) % POOL * size, size);
}

/* Rows lie at any even address, with rubbish between them. */
static problem make_problem(rng *r, int32_t w_dtype, int32_t h_dtype, int32_t rows, int32_t tokens, int64_t dim) {
    problem p = {w_dtype, h_dtype, rows, tokens, dim, 0, 0, NULL, NULL};
    p.w_stride = (p.dim + (int64_t)random_below(r, 5)) * bytes_of(w_dtype);
    p.h_stride = (p.dim + (int64_t)random_below(r, 3)) * bytes_of(h_dtype);
    p.w = malloc((size_t)(p.tokens * p.w_stride));
    p.h = malloc((size_t)(p.rows * p.h_stride));
    assert_true(p.w && p.h);
    fill_rows(r, pool_of(w_dtype, 1), w_dtype, p.tokens, p.w_stride, p.dim, p.w);
    fill_rows(r, pool_of(h_dtype, 0), h_dtype, p.rows, p.h_stride, p.dim, p.h);
    return p;
}

static problem random_problem(rng *r, int32_t w_dtype, int32_t h_dtype) {
    const int32_t rows = 1 + (int32_t)random_below(r, MOST_ROWS), tokens = 1 + (int32_t)random_below(r, MOST_TOKENS);
    const int64_t dim = 1 + (int64_t)random_below(r, random_below(r, 3) ? 200 : 1400);
    return make_problem(r, w_dtype, h_dtype, rows, tokens, dim);
}

/* out [rows, tokens] for rows [first, first + rows), tokens [t, t + tokens) of the problem. */
static void run(const fs_isa *isa, const problem *p, int32_t first, int32_t rows, int32_t t, int32_t tokens, float *out,
                int64_t ld) {
    const fs_kernel *kernel = isa->kernel[p->w_dtype];
    const char *row[MOST_ROWS];
    for (int32_t b = 0; b < rows; b++) row[b] = p->h + (first + b) * p->h_stride;
    fs_hidden hidden = {row, rows, p->h_dtype, p->dim, NULL};
    size_t bytes = (kernel->packed_bytes(&hidden) + 63) / 64 * 64;
    hidden.packed = aligned_alloc(64, bytes);
    assert_non_null(hidden.packed);
    memset(hidden.packed, 0x7F, bytes); /* NaN where nothing is packed */
    int64_t units = (p->dim + FS_PACK - 1) / FS_PACK;
    kernel->pack(&hidden, units / 2 * FS_PACK, units * FS_PACK);
    kernel->pack(&hidden, 0, units / 2 * FS_PACK);
    kernel->tile(&hidden, p->w + t * p->w_stride, p->w_stride, tokens, out, ld);
    free(hidden.packed);
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

/* One row, two and a few take other tiles than many; steps and blocks of elements end everywhere. */
static void few_rows_get_the_bits_of_many(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 5, 31, 32, 33, 64, 127, 256, 289, 600};
    enum { ROWS = 11, TOKENS = 41 };
    static float all[ROWS * TOKENS], part[ROWS * TOKENS];
    rng r = random_from(15);
    for (int round = 0; round < 9 * (int)(sizeof dims / sizeof dims[0]); round++) {
        problem p = make_problem(&r, round % 3, round / 3 % 3, ROWS, TOKENS, dims[round / 9]);
        const dot *dots = dots_of(&p);
        for (int i = 0; i < NAMES; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            run(isa, &p, 0, ROWS, 0, TOKENS, all, TOKENS);
            check_dots(isa, &p, dots, all, SHARE);
            for (int32_t first = 0, rows = 1; first + rows <= ROWS; first += rows, rows++) {
                const int32_t t = (int32_t)random_below(&r, 9);
                run(isa, &p, first, rows, t, TOKENS - t, part, TOKENS);
                for (int32_t b = 0; b < rows; b++)
                    assert_memory_equal(part + b * TOKENS, all + (first + b) * TOKENS + t, (size_t)(TOKENS - t) * 4);
            }
        }
        free(p.w), free(p.h);
    }
}

static void set_signs(int32_t dtype, int64_t bytes, int negative, char *at) {
    for (int64_t k = bytes_of(dtype) - 1; k < bytes; k += bytes_of(dtype))
        at[k] = (char)((at[k] & 0x7F) | (negative ? 0x80 : 0));
}

/* Products of one sign: a sum only grows, and what its additions lose may be lost in the same direction every time. So it is with
 * AMX, which adds the small parts of f32 numbers to a large sum; rows that sum in blocks do not: docs/exactness.md. */
static void sums_that_only_grow_are_as_exact(void **state) {
    (void)state;
    static float out[MOST_ROWS * MOST_TOKENS];
    double worst[NAMES] = {0};
    rng r = random_from(16);
    for (int round = 0; round < 18; round++) {
        problem p = make_problem(&r, round % 3, round / 3 % 3, 3, 24, 4096 - 17 * (round / 9));
        set_signs(p.w_dtype, p.tokens * p.w_stride, 0, p.w);
        set_signs(p.h_dtype, p.rows * p.h_stride, round / 9, p.h);
        const dot *dots = dots_of(&p);
        for (int i = 0; i < NAMES; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            run(isa, &p, 0, p.rows, 0, p.tokens, out, p.tokens);
            const double error = check_dots(isa, &p, dots, out, strcmp(names[i], "amx") == 0 ? 1.5e-6 : 8e-7);
            worst[i] = error > worst[i] ? error : worst[i];
        }
        free(p.w), free(p.h);
    }
    for (int i = 0; i < NAMES; i++)
        if (worst[i] > 0) print_message("%s: off by up to %.2e of a sum that only grows\n", names[i], worst[i]);
}

/* Rows that state the same order of additions, whatever the length of their vectors. */
static void rows_of_one_order_give_the_same_bits(void **state) {
    (void)state;
    static const char *const same[][2] = {{"svebf16", "neonmmla"}, {"sve", "neon"}};
    enum { ROWS = 19, TOKENS = 37 };
    static float a[ROWS * TOKENS], b[ROWS * TOKENS];
    rng r = random_from(17);
    for (int round = 0; round < 18; round++) {
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
            for (int k = 0; k < 40 * 70; k++) put(w_dtype, p.w + size * k, (float)random_normal(&r));
            for (int k = 0; k < 3 * 70; k++) put(h_dtype, p.h + k * bytes_of(h_dtype), 1.0f + 0.25f * (float)(k % 4));
            put(w_dtype, p.w + 5 * row + 69 * size, INFINITY);
            put(w_dtype, p.w + 6 * row, -INFINITY);
            put(w_dtype, p.w + 7 * row, INFINITY), put(w_dtype, p.w + 7 * row + size, -INFINITY);
            for (int d = 0; d < 70; d++) put(w_dtype, p.w + 8 * row + size * d, 1e-39f);
            put(w_dtype, p.w + 10 * row + 33 * size, NAN);
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

/* f16 from its smallest subnormal to its largest number, f32 where parts of it are denormal, and hidden states of any size. */
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
                put(p.w_dtype, p.w + t * p.w_stride + d * bytes_of(p.w_dtype),
                    (float)ldexp(random_unit(&r) - 0.5, least + 1 + (int)random_below(&r, (uint64_t)span)));
        }
        const int up = p.h_dtype == FS_F16 ? 0 : round / 9 % 2 ? 33 : -33;
        for (int64_t k = 0; k < p.rows * p.dim; k++) {
            const int64_t b = k / p.dim, d = k % p.dim;
            put(p.h_dtype, p.h + b * p.h_stride + d * bytes_of(p.h_dtype), (float)ldexp(random_normal(&r), up));
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
            const int64_t first = (int64_t)random_below(&r, 40);
            if (round % 2) scan->mask(allow, first, n, a), scalar->mask(allow, first, n, b);
            fs_survey sa = scan->survey(a, n, max_a), sb = scalar->survey(b, n, max_b);
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
    static const float edge[] = {0.0f,   43999.0f, 44000.0f, 44001.0f, 362999.0f, 363000.0f, 363100.0f, 3e38f,
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
                    if (round % 2 && y[j] > 44100.0f) y[j] = -y[j];
                }
            }
            fs_mass got = mass_empty(), expected = mass_empty();
            isa->scan->survey(y, N, max);
            isa->scan->add_mass(y, max, N, 1.0f, &got), scalar->add_mass(y, max, N, 1.0f, &expected);
            assert_int_equal(got.top, expected.top);
            assert_memory_equal(got.limb, expected.limb, sizeof got.limb);
        }
    }
}

/* A screen may pass a block in which nobody wins; it may not drop one in which a marked token reaches the floor. */
static void screened_marks_miss_no_winner(void **state) {
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
            fs_screen screen = {noise_row(random_next(&r), 3, 0, 0),   y,
                                first * (int64_t)FS_NOISE_BLOCK + cut, SPAN - cut - 16 * (int64_t)random_below(&r, 8),
                                0.5f + (float)random_unit(&r),         0.0};
            screen.floor = spread * 3.0 * random_normal(&r);
            if (round % 10 == 0) screen.floor = round % 20 ? -INFINITY : DBL_MAX;
            fs_marks marks;
            const uint32_t some = isa->scan->marks(&screen, first, &marks);
            for (uint32_t k = 0; k < FS_MARK_BATCH; k++) {
                fs_walk walk = noise_walk(screen.noise, first + k);
                for (int w = 0; w < 4; w++) assert_int_equal(marks.w[w][k], walk.words.w[w]);
                int wins = 0;
                while (noise_next(&walk)) {
                    int64_t at = (int64_t)walk.token - screen.base;
                    if (at < 0 || at >= screen.span) continue;
                    double g = noise_gumbel_given(screen.noise, walk.token, (int32_t)walk.prefix);
                    wins |= (double)(y[at] * screen.scale) + g > screen.floor + FS_NOISE_G;
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
            fs_survey survey = isa->scan->survey(y, n, max);
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

/* Keys that are kept, counted and weighed, against plain loops. */
static void keys_are_sifted_the_same_everywhere(void **state) {
    (void)state;
    enum { N = 300 };
    static uint64_t key[N + 8], kept[N + 8];
    static float term[N];
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
            isa->scan->weigh(key, n, bins, 1.0f, exp_split(bins.top).exponent, term, bin);
            for (int32_t k = 0; k < n; k++) {
                double l = (double)order_key_logit(key[k]), down = 8.0 * ((double)bins.top - l);
                double expected = ldexp(exp(l), -exp_split(bins.top).exponent);
                assert_true(fabs((double)term[k] - expected) <= 1e-6 * expected);
                assert_true(bin[k] >= 0 && bin[k] < FS_BINS);
                assert_true(bin[k] == FS_BINS - 1 ? down > FS_BINS - 1.001 : fabs(down - bin[k] - 0.5) <= 0.501);
            }
            assert_int_equal(isa->scan->count_above(key, n, above), count);
            assert_int_equal(isa->scan->keep_above(key, n, above), count);
            assert_memory_equal(key, kept, (size_t)count * sizeof *key);
        }
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
        cmocka_unit_test(kernels_compute_dot_products_of_any_magnitude),
        cmocka_unit_test(sums_that_only_grow_are_as_exact),
        cmocka_unit_test(rows_of_one_order_give_the_same_bits),
        cmocka_unit_test(infinite_weights_and_denormals_are_what_float_makes_of_them),
        cmocka_unit_test(scans_give_the_same_bits_everywhere),
        cmocka_unit_test(masses_of_extreme_logits_are_the_same_everywhere),
        cmocka_unit_test(screened_marks_miss_no_winner),
        cmocka_unit_test(rough_masses_are_as_close_as_promised),
        cmocka_unit_test(keys_are_sifted_the_same_everywhere),
        cmocka_unit_test(every_row_has_a_peak),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
