/* The order in which AMX adds, as cpu_tile_amx.c and cpu_tile_split_amx.c state it, bit for bit; and tiles that belong
 * to somebody else. */
#define _DEFAULT_SOURCE /* setenv */
#include "problems.h"

#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { MOST_DIM = 2100, MOST_COMPONENTS = 3 };

/* A row of W or H on its way to an instruction that multiplies numbers of type `unit`. */
typedef struct cut_row {
    int32_t dtype, unit;
    int is_w, components, upscale; /* the power of two it is multiplied by */
    float component[MOST_DIM][MOST_COMPONENTS];
} cut_row;

static float first_bits(float x, uint32_t mask) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= mask;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int upscale_to(int to, float x) {
    const int upscale = x < FLT_MIN ? 126 : to - ilogbf(x);
    return upscale < 126 ? upscale : 126;
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

static int upscale_of(const cut_row *c, const char *row, int64_t dim) {
    const float most = largest_of(c->dtype, row, dim), first = largest_of(c->dtype, row, dim < 32 ? dim : 32);
    if (c->unit != FS_F16 || c->dtype == FS_F16) return 0;
    if (!c->is_w || ldexpf(most, upscale_to(9, first)) * BEYOND >= 65536) return upscale_to(14, most);
    return upscale_to(9, first);
}

/* Components of bf16 are cut off, those of f16 rounded to nearest. But the first of a weight is cut off what is a
 * little further from zero. */
static void cut(cut_row *c, const char *row, int64_t dim) {
    c->components = c->dtype == FS_F32 ? (c->unit == FS_F16 ? 2 : 3) : c->dtype == FS_F16 && c->unit == FS_BF16 ? 2 : 1;
    c->upscale = upscale_of(c, row, dim);
    for (int64_t d = 0; d < dim; d++) {
        float x = ldexpf((float)get(c->dtype, row + d * bytes_of(c->dtype)), c->upscale);
        for (int i = 0; i < c->components; i++) {
            const float top = c->unit == FS_BF16                       ? first_bits(x, 0xFFFF0000)
                              : c->is_w && c->components > 1 && i == 0 ? first_bits(x * BEYOND, 0xFFFFE000)
                                                                       : (float)f16_value(f16_of(x));
            c->component[d][i] = c->unit == FS_BF16 ? top : (float)f16_value(f16_of(top));
            x -= top;
        }
    }
}

/* A logit as cpu_tile_amx.c and cpu_tile_split_amx.c say that it is added up. */
static float dot_as_stated(const cut_row *w, const cut_row *h, int64_t dim) {
    const int many = w->dtype != w->unit || h->dtype != h->unit, most = w->unit == FS_F16 ? 2 : 3;
    const int64_t steps = (dim + 31) / 32, segments = (steps + 31) / 32, size = (steps + segments - 1) / segments;
    float sum = 0, segment = 0;
    for (int64_t k = 0; k < steps; k++) {
        if (many && k && k % size == 0) sum = k == size ? segment : sum + segment, segment = 0;
        for (int j = 0; j < h->components; j++)
            for (int i = 0; i < w->components && i + j < most; i++) {
                float half[2] = {0, 0};
                for (int64_t d = 0; d < 32; d++) {
                    /* Of three components elements 16 apart are a pair, of which the first is even. */
                    const int64_t at = 32 * k + (w->components == 3 ? d / 2 + d % 2 * 16 : d);
                    if (at < dim) half[d % 2] = fmaf(w->component[at][i], h->component[at][j], half[d % 2]);
                }
                segment += half[0] + half[1];
            }
    }
    return ldexpf(many && segments > 1 ? sum + segment : segment, -w->upscale - h->upscale);
}

static void skip_without_amx(void) {
    if (isa_at(0) || isa_at(1)) return;
    print_message("skip: no row of AMX runs here, or another one is forced\n");
    skip();
}

static void amx_adds_in_the_order_it_states(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 33, 700, 1024, 1030, MOST_DIM};
    enum { ROWS = 2, TOKENS = 19 };
    static cut_row w, h[ROWS];
    float out[ROWS * TOKENS];
    rng r = random_from(18);
    skip_without_amx();
    for (int round = 0; round < 18 * (int)(sizeof dims / sizeof dims[0]); round++) {
        if (left_out(round)) continue;
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

/* ---------------------------------------------------------------------------------------- other people's tiles ---- */

#ifdef __x86_64__
#define FOREIGN __attribute__((target("amx-tile,amx-bf16")))
#define WRITTEN(pointer)                                                                                               \
    __asm__ volatile("" : : "r"(pointer) : "memory") /* gcc 12 does not know what tile instructions read */

enum { M = 5, N = 8, K = 12 }; /* of a product: rows, columns, elements; no tile of ours is like it */

typedef struct foreign_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} foreign_config;

static foreign_config foreign_shapes(void) {
    foreign_config c = {.palette = 1};
    c.rows[0] = M, c.row_bytes[0] = 4 * N;
    c.rows[1] = M, c.row_bytes[1] = 2 * K;
    c.rows[2] = K / 2, c.row_bytes[2] = 4 * N;
    return c;
}

FOREIGN static void foreign_configure(void) {
    const foreign_config c = foreign_shapes();
    WRITTEN(&c);
    _tile_loadconfig(&c);
}

FOREIGN static void foreign_release(void) {
    _tile_release();
}

/* Whether this thread's configuration is the one above, or none. */
FOREIGN static int foreign_config_is(int there) {
    foreign_config expected = {0}, c;
    if (there) expected = foreign_shapes();
    memset(&c, 0xFF, sizeof c);
    WRITTEN(&c);
    _tile_storeconfig(&c);
    WRITTEN(&c);
    return memcmp(&c, &expected, sizeof c) == 0;
}

/* A product of small integers, as an engine does it that has configured its thread's tiles once. Whether it is
 * right. */
FOREIGN static int foreign_product(uint64_t seed) {
    rng r = random_from(seed);
    uint16_t a[M][K], b[K / 2][2 * N];
    float x[M][K], y[K][N], sum[M + 1][16], expected[M + 1][16];
    for (int i = 0; i < M * K; i++) a[i / K][i % K] = bf16_of(x[i / K][i % K] = (float)random_below(&r, 17) - 8.0f);
    for (int k = 0; k < K; k++)
        for (int j = 0; j < N; j++) b[k / 2][2 * j + k % 2] = bf16_of(y[k][j] = (float)random_below(&r, 17) - 8.0f);
    for (int i = 0; i < (M + 1) * 16; i++) sum[i / 16][i % 16] = expected[i / 16][i % 16] = -77.0f;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            expected[i][j] = 0.0f;
            for (int k = 0; k < K; k++) expected[i][j] += x[i][k] * y[k][j];
        }
    WRITTEN(a);
    WRITTEN(b);
    WRITTEN(sum);
    _tile_zero(0);
    _tile_loadd(1, a, 2 * K);
    _tile_loadd(2, b, 4 * N);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, sum, 64);
    WRITTEN(sum);
    return memcmp(sum, expected, sizeof sum) == 0;
}

enum { HEAD_ROWS = 3000, HEAD_DIM = 70, HIDDEN = 20 };
static float weights[HEAD_ROWS * HEAD_DIM], hidden[HIDDEN * HEAD_DIM];

/* The bits of the weights are any; 20 rows are filtered, fewer stored. */
static void draw(fs_context *context, int32_t dtype, int32_t rows, int32_t *tokens) {
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    fs_result result = fs_result_default();
    head.data = weights, head.dtype = dtype, head.rows = HEAD_ROWS, head.dim = HEAD_DIM;
    batch.hidden = hidden, batch.rows = rows;
    result.tokens = tokens;
    if (fs_sample(context, &head, &batch, &result) != FS_OK) fail_msg("%s", fs_error_text(context));
}

static void make_numbers(void) {
    rng r = random_from(23);
    for (int i = 0; i < HEAD_ROWS * HEAD_DIM; i++) weights[i] = (float)random_normal(&r);
    for (int i = 0; i < HEAD_ROWS * HEAD_DIM; i++) { /* of any dtype below 2 */
        uint32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        bits &= 0xBFFFBFFF;
        memcpy(&weights[i], &bits, sizeof bits);
    }
    for (int i = 0; i < HIDDEN * HEAD_DIM; i++) hidden[i] = (float)random_normal(&r);
}

typedef struct foreign_pool {
    atomic_int wrong;
} foreign_pool;

typedef struct foreign_thread {
    foreign_pool *pool;
    int32_t i, count;
    void (*task)(void *arg, int32_t i);
    void *arg;
} foreign_thread;

enum { THREADS = 3 };

/* Every other thread uses tiles itself. */
static void *foreign_main(void *arg) {
    const foreign_thread *t = arg;
    const int configured = t->i % 2 == 0;
    int wrong = 0;
    if (configured) foreign_configure();
    else foreign_release(); /* a new thread has what its creator had */
    for (int32_t i = t->i; i < t->count; i += THREADS) {
        t->task(t->arg, i);
        wrong += !foreign_config_is(configured) || (configured && !foreign_product((uint64_t)i));
    }
    atomic_fetch_add(&t->pool->wrong, wrong);
    return NULL;
}

static void foreign_parallel_for(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    foreign_pool *pool = user;
    pthread_t thread[THREADS];
    foreign_thread of[THREADS];
    for (int32_t i = 0; i < THREADS; i++) {
        of[i] = (foreign_thread){pool, i, count, task, arg};
        if (pthread_create(&thread[i], NULL, foreign_main, &of[i]) != 0) abort();
    }
    for (int32_t i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
}

/* Draws of every kind of kernel between products of somebody else's. threads 0: in a parallel_for of the caller. */
static void draw_between_products(int32_t threads) {
    foreign_pool pool = {0};
    fs_options options = fs_options_default();
    fs_context *context;
    options.backend = FS_BACKEND_CPU;
    options.threads = threads ? threads : 4;
    if (!threads) options.parallel_for = foreign_parallel_for, options.parallel_user = &pool;
    if (fs_context_create(&options, &context) != FS_OK) fail_msg("%s", fs_error_text(NULL));
    for (int round = 0; round < 12; round++) {
        const int32_t dtype = round % 3, rows = round / 3 % 2 ? HIDDEN : 3;
        int32_t expected[HIDDEN], tokens[HIDDEN];
        foreign_release();
        draw(context, dtype, rows, expected);
        assert_true(foreign_config_is(0));
        foreign_configure();
        assert_true(foreign_product(1));
        draw(context, dtype, rows, tokens);
        assert_true(foreign_product(2));
        draw(context, dtype, rows, tokens);
        assert_true(foreign_config_is(1));
        assert_memory_equal(tokens, expected, (size_t)rows * sizeof *tokens);
    }
    assert_int_equal(pool.wrong, 0);
    foreign_release();
    fs_context_destroy(context);
}

static void tiles_of_others_keep_their_configuration(void **state) {
    (void)state;
    skip_without_amx();
    const fs_isa *const rows[2] = {isa_at(0), isa_at(1)};
    const char *forced = getenv("FLASHSAMPLING_ISA");
    make_numbers();
    for (int i = 0; i < 2; i++) {
        if (!rows[i]) continue;
        setenv("FLASHSAMPLING_ISA", names[i], 1);
        for (int32_t threads = 0; threads < 4; threads++) draw_between_products(threads);
        if (!forced) unsetenv("FLASHSAMPLING_ISA");
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(amx_adds_in_the_order_it_states),
#ifdef __x86_64__
        cmocka_unit_test(tiles_of_others_keep_their_configuration),
#endif
    };
    return cmocka_run_group_tests_name("amx", tests, NULL, NULL);
}
