/* The kernels of every row of the dispatch table (isas.h) against dot products in double, and bit for bit the same in any tile. Which
 * rows are listed, forced and chosen. */
#include "isas.h"
#include "machine.h"
#include "support.h"

#include <float.h>

enum { MOST_ROWS = 70, MOST_TOKENS = 300 };

static void rows_are_listed_best_first_and_experimental_ones_only_run_when_forced(void **state) {
    (void)state;
    char text[256];
    const fs_isa *chosen = fs_isa_choose(NULL, text, sizeof text), *isa = fs_isa_choose("z80", text, sizeof text);
    assert_true(chosen && !chosen->experimental && !isa);
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

/* Products of one sign: a sum only grows, and what its additions lose may be lost in the same direction every time, such as the small parts of
 * f32 numbers beside a large sum. Rows that multiply parts sum in blocks: docs/exactness.md. */
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
            const double error = check_dots(isa, &p, dots, out, 8e-7);
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

/* ------------------------------------------------------------------------------------------ AMX, as it is stated ---- */

enum { MOST_DIM = 2100, MOST_PARTS = 3 };

/* A row of W or H on its way to an instruction that multiplies numbers of type `unit`. */
typedef struct cut_row {
    int32_t dtype, unit;
    int is_w, parts, lift; /* the power of two it is multiplied by */
    float part[MOST_DIM][MOST_PARTS];
} cut_row;

static float first_bits(float x, uint32_t mask) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= mask;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int lift_to(int to, float x) {
    const int lift = x < FLT_MIN ? 126 : to - ilogbf(x);
    return lift < 126 ? lift : 126;
}

static float largest_of(int32_t dtype, const char *row, int64_t dim) {
    double most = 0;
    for (int64_t d = 0; d < dim; d++) {
        const double x = fabs(get(dtype, row + d * bytes_of(dtype)));
        if (x > most) most = x; /* gcc 12.2 for aarch64 ends in an internal error over fmax here */
    }
    return (float)most;
}

#define BEYOND (1 + 0x1.555556p-12f)

static int lift_of(const cut_row *c, const char *row, int64_t dim) {
    const float most = largest_of(c->dtype, row, dim), first = largest_of(c->dtype, row, dim < 32 ? dim : 32);
    if (c->unit != FS_F16 || c->dtype == FS_F16) return 0;
    if (!c->is_w || ldexpf(most, lift_to(9, first)) * BEYOND >= 65536) return lift_to(14, most);
    return lift_to(9, first);
}

/* Parts of bf16 are cut off, those of f16 rounded to nearest. But the first of a weight is cut off what is a little further from zero. */
static void cut(cut_row *c, const char *row, int64_t dim) {
    c->parts = c->dtype == FS_F32 ? (c->unit == FS_F16 ? 2 : 3) : c->dtype == FS_F16 && c->unit == FS_BF16 ? 2 : 1;
    c->lift = lift_of(c, row, dim);
    for (int64_t d = 0; d < dim; d++) {
        float x = ldexpf((float)get(c->dtype, row + d * bytes_of(c->dtype)), c->lift);
        for (int i = 0; i < c->parts; i++) {
            const float top = c->unit == FS_BF16                  ? first_bits(x, 0xFFFF0000)
                              : c->is_w && c->parts > 1 && i == 0 ? first_bits(x * BEYOND, 0xFFFFE000)
                                                                  : (float)f16_value(f16_of(x));
            c->part[d][i] = c->unit == FS_BF16 ? top : (float)f16_value(f16_of(top));
            x -= top;
        }
    }
}

/* A logit as cpu_tile_amx.c and cpu_tile_split_amx.c say that it is added up. */
static float dot_as_stated(const cut_row *w, const cut_row *h, int64_t dim) {
    const int many = w->dtype != w->unit || h->dtype != h->unit, most = w->unit == FS_F16 ? 2 : 3;
    const int64_t steps = (dim + 31) / 32, blocks = (steps + 31) / 32, size = (steps + blocks - 1) / blocks;
    float sum = 0, block = 0;
    for (int64_t k = 0; k < steps; k++) {
        if (many && k && k % size == 0) sum = k == size ? block : sum + block, block = 0;
        for (int j = 0; j < h->parts; j++)
            for (int i = 0; i < w->parts && i + j < most; i++) {
                float half[2] = {0, 0};
                for (int64_t d = 0; d < 32; d++) {
                    /* Of three parts elements 16 apart are a pair, of which the first is even. */
                    const int64_t at = 32 * k + (w->parts == 3 ? d / 2 + d % 2 * 16 : d);
                    if (at < dim) half[d % 2] = fmaf(w->part[at][i], h->part[at][j], half[d % 2]);
                }
                block += half[0] + half[1];
            }
    }
    return ldexpf(many && blocks > 1 ? sum + block : block, -w->lift - h->lift);
}

/* Tokens that do not get the power of two that their first elements ask for; and one whose elements are of all sizes, the largest of which the
 * last row of H does not see. */
static void make_odd_rows(problem *p) {
    const int64_t size = bytes_of(p->w_dtype);
    for (int64_t d = 0; d < p->dim; d++) {
        char *at = p->w + d * size;
        if (d < 32) put(p->w_dtype, at + 3 * p->w_stride, 0.0f);
        put(p->w_dtype, at + 5 * p->w_stride, 0.0f);
        put(p->w_dtype, at + 11 * p->w_stride, ldexpf((float)get(p->w_dtype, at + 12 * p->w_stride), -60));
        put(p->w_dtype, at + 9 * p->w_stride, ldexpf((float)get(p->w_dtype, at + 10 * p->w_stride), -(int)(d % 50)));
        if (d % 50 < 26) put(p->h_dtype, p->h + (p->rows - 1) * p->h_stride + d * bytes_of(p->h_dtype), 0.0f);
    }
    put(p->w_dtype, p->w + 7 * p->w_stride + (p->dim - 1) * size, 3e4f);
    put(p->w_dtype, p->w + 17 * p->w_stride + p->dim / 2 * size, -100.0f);
}

static void amx_adds_in_the_order_it_states(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 33, 700, 1024, 1030, MOST_DIM};
    enum { ROWS = 2, TOKENS = 19 };
    static cut_row w, h[ROWS];
    float out[ROWS * TOKENS];
    rng r = random_from(18);
    for (int round = 0; round < 18 * (int)(sizeof dims / sizeof dims[0]); round++) {
        problem p = make_problem(&r, round % 3, round / 3 % 3, ROWS, TOKENS, dims[round / 18]);
        if (round / 9 % 2) make_odd_rows(&p);
        for (int i = 0; i < 2; i++) {
            const fs_isa *isa = isa_at(i);
            if (!isa) continue;
            assert_string_equal(names[i], i ? "amx" : "amxfp16");
            const int32_t unit = i == 0 && p.w_dtype != FS_BF16 ? FS_F16 : FS_BF16;
            run(isa, &p, 0, ROWS, 0, TOKENS, out, TOKENS);
            for (int b = 0; b < ROWS; b++) {
                h[b] = (cut_row){.dtype = p.h_dtype, .unit = unit};
                cut(&h[b], p.h + b * p.h_stride, p.dim);
            }
            for (int k = 0; k < ROWS * TOKENS; k++) {
                if (k % ROWS == 0) {
                    w = (cut_row){.dtype = p.w_dtype, .unit = unit, .is_w = 1};
                    cut(&w, p.w + k / ROWS * p.w_stride, p.dim);
                }
                const float stated = dot_as_stated(&w, &h[k % ROWS], p.dim);
                const float got = out[k % ROWS * TOKENS + k / ROWS];
                if (memcmp(&stated, &got, sizeof stated) != 0)
                    fail_msg("%s, W %d, H %d, D %lld, token %d: %.9g, as stated %.9g", names[i], p.w_dtype, p.h_dtype,
                             (long long)p.dim, k / ROWS, (double)got, (double)stated);
            }
        }
        free(p.w), free(p.h);
    }
}

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
            put(p.h_dtype, p.h + 70 * bytes_of(p.h_dtype), NAN);
            put(p.h_dtype, p.h + 17 * p.h_stride, -INFINITY);
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
        cmocka_unit_test(amx_adds_in_the_order_it_states),
        cmocka_unit_test(rows_that_are_not_finite_leave_the_others_alone),
        cmocka_unit_test(infinite_weights_and_denormals_are_what_float_makes_of_them),
        cmocka_unit_test(every_row_has_a_peak),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
