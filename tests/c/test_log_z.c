/* test_log_z.c - a sum is not below its largest term: log Z never below the largest logit, logprobs never above 0, on
 * every backend, of every kind of logits, and the same over shards. Rows in which one token has all of the mass are
 * where rounding would show. */
#include "core/mass.h"
#include "support.h"

enum { B = 32, V = 48, PARTS = 3, MOST = 65536 };

static float logits[B][V];
static int64_t offset[B + 1];
static int32_t first[B], heavy[B];

typedef struct answer {
    int32_t token[B];
    float log_z[B], max_logit[B], logprob[B], top_logprob[B], watch_logprob[B];
} answer;

/* How many rows' log Z the rounding of exp and log would put below their heavy token's logit. */
static int fill(rng *r, float far) {
    int below = 0;
    for (int b = 0; b < B; b++) {
        fs_mass mass = mass_empty();
        float granule[FS_GRANULE];
        heavy[b] = (int32_t)random_below(r, V);
        for (int v = 0; v < V; v++) logits[b][v] = -far - (float)random_unit(r);
        logits[b][heavy[b]] = (float)ldexp(random_unit(r) - 0.5, -(int)random_below(r, 12));
        for (int i = 0; i < FS_GRANULE; i++) granule[i] = i ? -INFINITY : logits[b][heavy[b]];
        mass_add_granule(&mass, granule);
        below += (float)mass_log(&mass) < logits[b][heavy[b]];
        offset[b + 1] = b + 1;
        first[b] = heavy[b];
    }
    return below;
}

static fs_result ask_for(answer *a, int32_t kind) {
    fs_result r = fs_result_default();
    memset(a, 0x5A, sizeof *a);
    r.tokens = a->token, r.logits_mode = kind;
    r.log_z = a->log_z, r.max_logit = a->max_logit, r.logprob = a->logprob;
    r.top_count = 1, r.top_logprob = a->top_logprob, r.watch_logprob = a->watch_logprob;
    return r;
}

static void expect_bounds(const answer *a, const char *who) {
    for (int b = 0; b < B; b++) {
        if (!(a->log_z[b] >= a->max_logit[b]))
            fail_msg("%s: log Z %.9g, largest %.9g", who, (double)a->log_z[b], (double)a->max_logit[b]);
        if (!(a->logprob[b] <= 0 && a->top_logprob[b] <= 0 && a->watch_logprob[b] <= 0))
            fail_msg("%s: logprobs %g %g %g", who, (double)a->logprob[b], (double)a->top_logprob[b],
                     (double)a->watch_logprob[b]);
    }
}

static void must(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

static void merged(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result) {
    static char part[PARTS][MOST];
    const void *parts[PARTS];
    for (int i = 0; i < PARTS; i++) {
        fs_head shard = *head;
        shard.data = &logits[0][16 * i], shard.stride = sizeof logits[0];
        shard.first_token = 16 * i, shard.rows = 16, shard.vocab = V;
        must(context, fs_partial(context, &shard, batch, result, part[i], MOST));
        parts[i] = part[i];
    }
    must(context, fs_merge(context, head, batch, parts, PARTS, result));
}

static void log_z_is_not_below_the_largest_logit(void **state) {
    (void)state;
    static answer alone, sharded, truth;
    fs_context *cpu = open_context(FS_BACKEND_CPU, 1, 0), *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    rng r = random_from(11);
    int below = 0;
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = head.vocab = V;
    for (int round = 0; round < 60; round++) {
        fs_batch batch = fs_batch_default();
        batch.rows = B, batch.watch_offset = offset, batch.watch_token = first;
        rules_of(&batch)->temperature.value = round / 3 % 2 ? 0.7f : 1.0f;
        if (round % 4 == 0) rules_of(&batch)->top_k.value = 3;
        if (round % 4 == 1) rules_of(&batch)->top_p.value = 0.9f;
        below += fill(&r, round % 5 ? 200.0f : 4.0f);
        fs_result result = ask_for(&truth, round % 3);
        must(reference, fs_sample(reference, &head, &batch, &result));
        result = ask_for(&alone, round % 3);
        must(cpu, fs_sample(cpu, &head, &batch, &result));
        result = ask_for(&sharded, round % 3);
        merged(cpu, &head, &batch, &result);
        expect_bounds(&truth, "reference"), expect_bounds(&alone, "cpu"), expect_bounds(&sharded, "shards");
        assert_memory_equal(&sharded, &alone, sizeof alone);
        for (int b = 0; b < B; b++) assert_true(fabsf(alone.log_z[b] - truth.log_z[b]) < 2e-6f);
    }
    assert_true(below > 100);
    fs_context_destroy(cpu), fs_context_destroy(reference);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(log_z_is_not_below_the_largest_logit)};
    return cmocka_run_group_tests_name("log_z", tests, NULL, NULL);
}
