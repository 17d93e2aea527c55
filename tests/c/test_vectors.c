/* test_vectors.c - the noise and the keys against tests/vectors/noise.txt, which an independent model has written. */
#include "support.h"

#include "core/key.h"
#include "core/noise.h"

/* One line of the file: its numbers, hexadecimal, before and after the arrow. */
typedef struct vector {
    uint64_t in[8];
    uint64_t out[256];
    int outs; /* how many there are */
    char text[2048];
} vector;

/* Reads numbers until something that is none: the arrow, the decimal value, the end. Returns how many. */
static int read_numbers(const char *at, uint64_t *to, int most) {
    int count = 0;
    for (; count < most; count++) {
        char *end;
        uint64_t number = strtoull(at, &end, 16);
        if (end == at || (*end != ' ' && *end != '\n')) break;
        to[count] = number;
        at = end;
    }
    return count;
}

/* Calls check for every line of this name. A file without one is an error: nothing would have been tested. */
static void each(const char *name, void (*check)(const vector *v)) {
    FILE *file = fopen(FS_TEST_VECTORS, "r");
    int found = 0;
    vector v;
    assert_non_null(file);
    while (fgets(v.text, sizeof v.text, file)) {
        size_t length = strlen(name);
        const char *arrow = strstr(v.text, "->");
        if (strncmp(v.text, name, length) != 0 || v.text[length] != ' ' || !arrow) continue;
        read_numbers(v.text + length, v.in, 8);
        v.outs = read_numbers(arrow + 2, v.out, 256);
        check(&v);
        found++;
    }
    fclose(file);
    assert_true(found > 0);
}

static fs_noise draw_of(const vector *v) {
    return noise_row(v->in[0], v->in[1], (uint32_t)v->in[2], (uint32_t)v->in[3]);
}

/* Libraries may differ in the last bits of a logarithm. */
static void assert_near(const vector *v, uint64_t bits, uint64_t expected) {
    uint64_t apart = bits > expected ? bits - expected : expected - bits;
    if (apart > 4) fail_msg("%016llx instead of: %s", (unsigned long long)bits, v->text);
}

static void check_id(const vector *v) {
    assert_int_equal(fs_noise_id(), v->out[0]);
    assert_int_equal(v->outs, 1);
}

static void check_philox(const vector *v) {
    const uint64_t *in = v->in;
    fs_words r = philox4x32((uint32_t)in[4], (uint32_t)in[5], (uint32_t)in[0], (uint32_t)in[1], (uint32_t)in[2],
                            (uint32_t)in[3]);
    for (int i = 0; i < 4; i++) assert_int_equal(r.w[i], v->out[i]);
}

static void check_row(const vector *v) {
    fs_noise noise = draw_of(v);
    assert_int_equal(noise.r0, v->out[0]);
    assert_int_equal(noise.r1, v->out[1]);
    assert_int_equal(noise.r2, v->out[2]);
}

static void check_spread(const vector *v) {
    assert_true(noise_spread_seed(v->in[0], v->in[1]) == v->out[0]);
    assert_true(fs_seed_spread(v->in[0], v->in[1]) == v->out[0]);
}

static void check_count(const vector *v) {
    assert_int_equal(noise_mark_count(v->in[0]), v->out[0]);
}

/* The walk finds the vector's pairs of place and prefix, in their order, and no more. */
static void assert_walk(const vector *v, fs_walk walk) {
    for (int i = 0; i + 1 < v->outs; i += 2) {
        assert_int_equal(noise_next(&walk), 1);
        assert_int_equal(walk.token, v->in[4] * FS_NOISE_BLOCK + v->out[i]);
        assert_int_equal(walk.prefix, v->out[i + 1]);
    }
    assert_int_equal(noise_next(&walk), 0);
}

static void check_walk(const vector *v) {
    fs_noise noise = draw_of(v);
    const uint32_t block = (uint32_t)v->in[4];
    assert_int_equal(2 * v->in[5], v->outs);
    assert_walk(v, noise_walk_of(noise, block, (int32_t)v->in[5], noise_mark_words(noise, block, 0)));
}

static void check_marks(const vector *v) {
    assert_walk(v, noise_walk(draw_of(v), (uint32_t)v->in[4]));
}

static void check_gumbel(const vector *v) {
    uint32_t token = (uint32_t)v->in[4];
    assert_near(v, double_bits(noise_gumbel(draw_of(v), token)), v->out[0]);
    double public = fs_noise_gumbel(v->in[0], v->in[1], (uint32_t)v->in[2], (uint32_t)v->in[3], token);
    assert_near(v, double_bits(public), v->out[0]);
}

static void check_group(const vector *v) {
    assert_near(v, double_bits(noise_gumbel_of(draw_of(v), (uint32_t)v->in[4], (uint32_t)v->in[5])), v->out[0]);
}

static void check_unit(const vector *v) {
    assert_true(double_bits(noise_unit_of(draw_of(v), (uint32_t)v->in[4], (uint32_t)v->in[5])) == v->out[0]);
}

static void check_fast(const vector *v) {
    assert_near(v, float_bits(noise_gumbel_fast(draw_of(v), (uint32_t)v->in[4])), v->out[0]);
}

static void check_score_key(const vector *v) {
    uint64_t key = score_key(bits_double(v->in[0]), (uint32_t)v->in[1]);
    assert_true(key == v->out[0]);
    assert_int_equal(score_key_token(key), v->in[1]);
    assert_true(score_key_value(key) <= bits_double(v->in[0]));
}

static void check_order_key(const vector *v) {
    uint64_t key = order_key(bits_float((uint32_t)v->in[0]), (uint32_t)v->in[1]);
    assert_true(key == v->out[0]);
    assert_int_equal(order_key_token(key), v->in[1]);
    assert_true(order_key_logit(key) == bits_float((uint32_t)v->in[0]));
}

static void vectors_are_of_this_noise(void **state) {
    (void)state;
    each("id", check_id);
}

static void philox_gives_the_published_answers(void **state) {
    (void)state;
    each("philox", check_philox);
}

static void draws_and_seeds_have_their_names(void **state) {
    (void)state;
    each("row", check_row);
    each("spread", check_spread);
}

static void marks_fall_where_the_model_puts_them(void **state) {
    (void)state;
    each("count", check_count);
    each("walk", check_walk);
    each("marks", check_marks);
}

static void noise_has_the_models_values(void **state) {
    (void)state;
    each("gumbel", check_gumbel);
    each("group", check_group);
    each("unit", check_unit);
    each("fast", check_fast);
}

static void keys_order_like_the_model(void **state) {
    (void)state;
    each("score_key", check_score_key);
    each("order_key", check_order_key);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_of_this_noise),        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(draws_and_seeds_have_their_names), cmocka_unit_test(marks_fall_where_the_model_puts_them),
        cmocka_unit_test(noise_has_the_models_values),      cmocka_unit_test(keys_order_like_the_model),
    };
    return cmocka_run_group_tests_name("vectors", tests, NULL, NULL);
}
