/* The order in which AMX adds, as cpu_tile_amx.c and cpu_tile_split_amx.c state it, bit for bit. */
#include "problems.h"

#include <float.h>

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

static void amx_adds_in_the_order_it_states(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 33, 700, 1024, 1030, MOST_DIM};
    enum { ROWS = 2, TOKENS = 19 };
    static cut_row w, h[ROWS];
    float out[ROWS * TOKENS];
    rng r = random_from(18);
    if (!isa_at(0) && !isa_at(1)) {
        print_message("skip: no row of AMX runs here, or another one is forced\n");
        skip();
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(amx_adds_in_the_order_it_states)};
    return cmocka_run_group_tests_name("amx", tests, NULL, NULL);
}
