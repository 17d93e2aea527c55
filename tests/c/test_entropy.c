/* Entropies: those of the reference on random calls, the same bits for any threads and blocks, and as close to the
 * truth as the header says. */
#include "core/entropy.h"
#include "random_call.h"

enum { ROWS = 70, SAMPLES = 8, CONTEXTS = 3 };

typedef struct answer {
    fs_result result;
    int64_t tokens[ROWS * SAMPLES];
    uint32_t status[ROWS];
    float entropy[ROWS], log_z[ROWS], logprob[ROWS * SAMPLES];
} answer;

static void must(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

/* `more`: with other results beside entropies, which may take other ways. */
static void ask(fs_context *context, const random_call *c, int entropies, int more, answer *a) {
    memset(a, 0x5A, sizeof *a);
    a->result = c->result;
    a->result.tokens = a->tokens, a->result.status = a->status;
    if (entropies) a->result.entropy = a->entropy;
    if (more) a->result.log_z = a->log_z, a->result.logprob = a->logprob;
    must(context, fs_sample(context, &c->head, &c->batch, &a->result));
}

/* How many rows' entropies are not the reference's. A row that is too far from 0 has none, and so has a log Z. */
static int unlike(const random_call *c, const answer *got, const answer *expected) {
    int wrong = 0;
    for (int64_t b = 0; b < c->rows; b++) {
        const float a = got->entropy[b], e = expected->entropy[b];
        if (got->status[b] & FS_ROW_FAR) wrong += a == a;
        else if (a != a || e != e) wrong += a == a || e == e;
        else wrong += !(fabs((double)a - (double)e) <= 2e-6 + 1.2e-7 * (double)e) || a < 0.0f;
    }
    return wrong;
}

static void the_cpu_has_the_entropies_of_the_reference(void **state) {
    (void)state;
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    fs_context *cpu[CONTEXTS] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 2, 512),
                                 open_context(FS_BACKEND_CPU, 3, 128)};
    static answer expected, got[CONTEXTS], without;
    int64_t kinds[3] = {0, 0, 0};
    for (uint64_t seed = 0; seed < test_size(400); seed++) {
        rng r = random_from(seed);
        random_call c;
        const int64_t most = random_below(&r, 4) ? 300 : 6000;
        make_call_of(&r, &c, 1 + (int64_t)random_below(&r, ROWS), 1 + (int64_t)random_below(&r, (uint64_t)most));
        const int more = (int)random_below(&r, 2);
        ask(reference, &c, 1, more, &expected);
        for (int i = 0; i < CONTEXTS; i++) ask(cpu[i], &c, 1, more, &got[i]);
        ask(cpu[0], &c, 0, more, &without);
        if (unlike(&c, &got[0], &expected)) {
            for (int64_t b = 0; b < c.rows; b++)
                print_message("row %lld: %.9g, reference %.9g, status 0x%x\n", (long long)b, (double)got[0].entropy[b],
                              (double)expected.entropy[b], got[0].status[b]);
            fail_msg("call %llu, logits %d", (unsigned long long)seed, c.result.logits_mode);
        }
        for (int i = 1; i < CONTEXTS; i++) assert_memory_equal(got[i].entropy, got[0].entropy, sizeof got[0].entropy);
        assert_memory_equal(without.tokens, got[0].tokens, sizeof without.tokens);
        assert_memory_equal(without.log_z, got[0].log_z, sizeof without.log_z);
        assert_memory_equal(without.logprob, got[0].logprob, sizeof without.logprob);
        for (int64_t b = 0; b < c.rows; b++) kinds[c.result.logits_mode] += got[0].entropy[b] > 0.0f;
        free_call(&c);
    }
    assert_true(kinds[0] > 0 && kinds[1] > 0 && kinds[2] > 0);
    fs_context_destroy(reference);
    for (int i = 0; i < CONTEXTS; i++) fs_context_destroy(cpu[i]);
}

static void a_wrong_entropy_is_seen(void **state) {
    (void)state;
    static answer expected, got;
    random_call c;
    memset(&c, 0, sizeof c);
    c.rows = 3;
    expected.entropy[0] = 1.5f, expected.entropy[1] = 11.0f, expected.entropy[2] = NAN;
    const float wrong[][3] = {
        {1.5f + 4e-6f, 11.0f, NAN}, {1.5f, 11.0f - 5e-6f, NAN}, {1.5f, 11.0f, 0.0f}, {NAN, 11.0f, NAN}};
    memcpy(got.entropy, expected.entropy, sizeof got.entropy);
    assert_int_equal(unlike(&c, &got, &expected), 0);
    for (int i = 0; i < 4; i++) {
        memcpy(got.entropy, wrong[i], sizeof wrong[i]);
        assert_int_equal(unlike(&c, &got, &expected), 1);
    }
}

/* --------------------------------------------------------------------------------------------------- the truth ---- */

static double truth_of(const float *x, int64_t n, float inverse) {
    long double most = -INFINITY, sum = 0, below = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxl(most, (long double)(x[i] * inverse));
    for (int64_t i = 0; i < n; i++) {
        const long double down = most - (long double)(x[i] * inverse);
        if (!(down < 11000.0L)) continue;
        sum += expl(-down);
        below += expl(-down) * down;
    }
    return (double)(logl(sum) + below / sum);
}

/* Logits at any distance from 0: near ones, the flat, the peaked, those of many sizes. */
static void fill(rng *r, float *x, int64_t n, double from) {
    const int shape = (int)random_below(r, 6);
    const double size = pow(10.0, 3.0 * random_unit(r) - 1.5);
    for (int64_t i = 0; i < n; i++) {
        double l = from + size * random_normal(r);
        if (shape == 0) l = from;
        if (shape == 1) l = from - (i == n / 2 ? 0.0 : 20.0 + random_unit(r));
        if (shape == 2) l = from - 2.0 * log1p((double)i);
        if (shape == 3) l = from - 400.0 * random_unit(r);
        if (shape == 4 && i != n / 3) l = from - log((double)n); /* half of the mass is one token's */
        x[i] = (float)l;
    }
}

static double worst_error(fs_context *context, rng *r, double least, double most) {
    enum { N = 5003 };
    static float x[N];
    double worst = 0.0;
    for (int round = 0; round < 60 + (int)test_size(540); round++) {
        const int64_t n = round % 10 ? 1 + (int64_t)random_below(r, 400) : N;
        const float temperature = round % 3 ? 1.0f : (float)pow(10.0, 2.0 * random_unit(r) - 1.0);
        const double far = least + (most - least) * random_unit(r);
        fill(r, x, n, (random_below(r, 2) ? far : -far) * (double)temperature);
        int32_t token;
        uint32_t status;
        float entropy = -1.0f;
        fs_head head = fs_head_default();
        head.kind = FS_HEAD_LOGITS, head.data = x, head.rows = n;
        fs_batch batch = fs_batch_default();
        batch.rows = 1, rules_of(&batch)->temperature.value = temperature;
        fs_result result = fs_result_default();
        result.tokens = &token, result.status = &status, result.entropy = &entropy;
        result.logits_mode = FS_LOGITS_PROCESSED;
        must(context, fs_sample(context, &head, &batch, &result));
        assert_int_equal(status, FS_ROW_OK);
        const double truth = truth_of(x, n, 1.0f / temperature);
        /* The float that is returned is half a unit off at most. */
        const double error = fabs((double)entropy - truth) - 0.5 * ldexp(1.0, ilogb(fmax(truth, 1e-30)) - 23);
        worst = error > worst ? error : worst;
    }
    return worst;
}

static void entropies_are_as_close_as_promised(void **state) {
    (void)state;
    fs_context *cpu = open_context(FS_BACKEND_CPU, 1, 0);
    rng r = random_from(5);
    const double near = worst_error(cpu, &r, 0.0, 40.0), middle = worst_error(cpu, &r, 40.0, 44000.0);
    const double far = worst_error(cpu, &r, 45000.0, 361000.0);
    print_message("worst errors: %.3g up to 40, %.3g up to 45,000, %.3g up to 362,000\n", near, middle, far);
    assert_true(near <= 1e-6 && middle <= 1e-6 && far <= 1e-3);
    fs_context_destroy(cpu);
}

/* ---------------------------------------------------------------------------------------------------- the sums ---- */

static void expect_mass(const fs_mass *a, const fs_mass *b) {
    assert_int_equal(a->top, b->top);
    assert_memory_equal(a->limb, b->limb, sizeof a->limb);
}

static void sums_do_not_depend_on_their_order(void **state) {
    (void)state;
    enum { GRANULES = 40, PARTS = 4 };
    static float l[GRANULES][FS_GRANULE];
    rng r = random_from(3);
    for (int round = 0; round < 20 + (int)test_size(480); round++) {
        const double size = pow(10.0, 4.0 * random_unit(&r) - 1.0);
        for (int g = 0; g < GRANULES; g++)
            for (int i = 0; i < FS_GRANULE; i++)
                l[g][i] = random_below(&r, 4) ? (float)(size * random_normal(&r)) : -INFINITY;
        fs_entropy forward = entropy_empty(), part[PARTS];
        for (int g = 0; g < GRANULES; g++) entropy_add_granule(&forward, l[g]);
        for (int p = 0; p < PARTS; p++) part[p] = entropy_empty();
        for (int g = GRANULES; g-- > 0;) entropy_add_granule(&part[random_below(&r, PARTS)], l[g]);
        for (int p = 1; p < PARTS; p++) entropy_merge(&part[0], &part[p]);
        expect_mass(&part[0].mass, &forward.mass), expect_mass(&part[0].below, &forward.below);
        assert_memory_equal(part[0].down, forward.down, sizeof forward.down);
        fs_mass mass = mass_empty();
        for (int g = 0; g < GRANULES; g++) mass_add_granule(&mass, l[g]);
        expect_mass(&forward.mass, &mass);
    }
}

/* ------------------------------------------------------------------------------------------------ single rows ---- */

/* Row b of stored logits, by its kind. */
static void rows_of_every_kind(void **state) {
    (void)state;
    enum { V = 37, KINDS = 8 };
    static float x[KINDS][V];
    static const int32_t slot[KINDS] = {0, 1, 2, 3, 4, 5, -1, 99};
    for (int b = 0; b < KINDS; b++)
        for (int v = 0; v < V; v++) x[b][v] = 3.0f;
    for (int v = 0; v < V; v++) {
        x[1][v] = v == 9 ? 0.25f : -INFINITY;
        x[2][v] = -INFINITY;
        x[4][v] = 1e6f - (float)v;
        x[5][v] = v % 2 ? 3.0f : NAN;
    }
    x[3][20] = INFINITY;
    for (int backend = FS_BACKEND_CPU; backend <= FS_BACKEND_REFERENCE; backend += 2)
        for (int32_t logits = FS_LOGITS_RAW; logits <= FS_LOGITS_CUT; logits++) {
            fs_context *context = open_context(backend, 2, 0);
            int32_t token[KINDS];
            uint32_t status[KINDS];
            float entropy[KINDS + 1];
            memset(entropy, 0x5A, sizeof entropy);
            fs_head head = fs_head_default();
            head.kind = FS_HEAD_LOGITS, head.data = x, head.rows = V;
            fs_batch batch = fs_batch_default();
            batch.rows = KINDS, batch.slot = slot, batch.slots = KINDS;
            fs_result result = fs_result_default();
            result.tokens = token, result.status = status, result.entropy = entropy, result.logits_mode = logits;
            must(context, fs_sample(context, &head, &batch, &result));
            assert_true(fabsf(entropy[0] - logf((float)V)) < 1e-6f);
            assert_true(entropy[1] >= 0.0f && entropy[1] < 2e-7f);
            assert_true(isnan(entropy[2]) && isnan(entropy[3]) && isnan(entropy[6]) && isnan(entropy[7]));
            assert_true(fabsf(entropy[5] - logf((float)(V / 2))) < 1e-6f);
            assert_int_equal(status[5], FS_ROW_NAN);
            if (backend == FS_BACKEND_CPU) {
                assert_true(isnan(entropy[4]));
                assert_int_equal(status[4], FS_ROW_FAR);
            }
            float untouched;
            memset(&untouched, 0x5A, sizeof untouched);
            assert_memory_equal(&entropy[KINDS], &untouched, sizeof untouched);
            fs_context_destroy(context);
        }
}

static void shards_are_refused_by_name(void **state) {
    (void)state;
    static const float x[32];
    char part[4096];
    int32_t token;
    float entropy = 7.0f;
    size_t bytes;
    fs_context *cpu = open_context(FS_BACKEND_CPU, 1, 0);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = x, head.rows = 32;
    fs_batch batch = fs_batch_default();
    batch.rows = 1;
    fs_result result = fs_result_default();
    result.tokens = &token, result.entropy = &entropy;
    assert_int_equal(fs_partial_size(cpu, &head, &batch, &result, &bytes), FS_ERR_UNSUPPORTED);
    assert_int_equal(fs_partial(cpu, &head, &batch, &result, part, sizeof part), FS_ERR_UNSUPPORTED);
    assert_non_null(strstr(fs_error_text(cpu), "result.entropy"));
    assert_true(entropy == 7.0f);
    fs_context_destroy(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_has_the_entropies_of_the_reference),
        cmocka_unit_test(a_wrong_entropy_is_seen),
        cmocka_unit_test(entropies_are_as_close_as_promised),
        cmocka_unit_test(sums_do_not_depend_on_their_order),
        cmocka_unit_test(rows_of_every_kind),
        cmocka_unit_test(shards_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("entropy", tests, NULL, NULL);
}
