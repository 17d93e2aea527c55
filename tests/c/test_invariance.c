/* A row's token is a function of the row alone: bit for bit the same results for any thread count, block size, batch,
 * slot and shard. The head is a small real one (floats that round), because here both sides round the same way. */
#include "support.h"

enum { VOCAB = 5003, DIM = 37, ROWS = 24, SAMPLES = 3, TOP = 20, LEFT = 60 };

typedef struct results {
    int32_t tokens[ROWS * SAMPLES];
    uint32_t status[ROWS];
    float score[ROWS * SAMPLES], logit[ROWS * SAMPLES], logprob[ROWS * SAMPLES];
    int32_t rank[ROWS * SAMPLES];
    float max_logit[ROWS], log_z[ROWS];
    int32_t top_token[ROWS * TOP];
    float top_logit[ROWS * TOP], top_logprob[ROWS * TOP];
    float entropy[ROWS];
    int32_t survivor_token[ROWS * LEFT], survivor_count[ROWS];
} results;

/* Every kind of row side by side, by index modulo 8. */
typedef struct world {
    uint16_t weights[VOCAB * DIM];
    float hidden[ROWS * DIM];
    float temperature[ROWS], top_p[ROWS], min_p[ROWS], repetition[ROWS];
    int32_t top_k[ROWS];
    uint64_t seed[ROWS], position[ROWS];
    uint32_t allow[ROWS][(VOCAB + 31) / 32], seen[ROWS][(VOCAB + 31) / 32];
    fs_head head;
    fs_batch batch;
} world;

static world *make_world(void) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    rng r = random_from(11);
    for (int i = 0; i < VOCAB * DIM; i++) w->weights[i] = bf16_of((float)(0.4 * random_normal(&r)));
    for (int i = 0; i < ROWS * DIM; i++) w->hidden[i] = (float)random_normal(&r);
    for (int b = 0; b < ROWS; b++) {
        int kind = b % 8;
        w->temperature[b] = kind == 0 ? 0.0f : 0.8f + 0.05f * (float)b;
        w->top_k[b] = kind == 2 || kind == 4 ? 40 : 0;
        w->top_p[b] = kind == 3 || kind == 4 || kind == 6 ? 0.9137f : 1.0f;
        w->min_p[b] = kind == 5 ? 0.05f : 0.0f;
        w->repetition[b] = kind == 7 ? 1.2f : 1.0f;
        w->seed[b] = 1000 + (uint64_t)b / 3;
        w->position[b] = (uint64_t)b * 7;
        for (int i = 0; i < (VOCAB + 31) / 32; i++) {
            w->allow[b][i] = kind == 6 ? (uint32_t)random_next(&r) : 0xFFFFFFFFu;
            w->seen[b][i] = (uint32_t)(random_next(&r) & random_next(&r) & random_next(&r));
        }
    }
    w->head = fs_head_default();
    w->head.data = w->weights, w->head.dtype = FS_BF16, w->head.rows = VOCAB, w->head.dim = DIM;
    w->batch = fs_batch_default();
    w->batch.rows = ROWS, w->batch.hidden = w->hidden, w->batch.samples = SAMPLES;
    rules_of(&w->batch)->temperature.per_slot = w->temperature, rules_of(&w->batch)->top_k.per_slot = w->top_k,
    rules_of(&w->batch)->top_p.per_slot = w->top_p, rules_of(&w->batch)->min_p.per_slot = w->min_p;
    rules_of(&w->batch)->repetition.per_slot = w->repetition, w->batch.seed = w->seed, w->batch.position = w->position;
    w->batch.allow = &w->allow[0][0], w->batch.seen = &w->seen[0][0];
    return w;
}

static fs_result ask_everything(results *to, int32_t logits) {
    memset(to, 0x77, sizeof *to);
    fs_result r = fs_result_default();
    r.logits_mode = logits;
    r.tokens = to->tokens, r.status = to->status, r.noisy_logit = to->score, r.logit = to->logit,
    r.logprob = to->logprob;
    r.rank = to->rank, r.max_logit = to->max_logit, r.log_z = to->log_z;
    r.top_count = TOP, r.top_token = to->top_token, r.top_logit = to->top_logit, r.top_logprob = to->top_logprob;
    r.entropy = to->entropy;
    r.survivor_token = to->survivor_token, r.survivor_count = to->survivor_count, r.survivor_limit = LEFT;
    return r;
}

/* Of shards, which have no entropies and no survivors. */
static fs_result ask_of_shards(results *to, int32_t logits) {
    fs_result r = ask_everything(to, logits);
    r.entropy = NULL;
    r.survivor_token = r.survivor_count = NULL;
    return r;
}

static void must(fs_context *context, fs_status status) {
    if (status != FS_OK) fail_msg("%s", fs_error_text(context));
}

/* FS_ROW_FALLBACK says how a row was computed, not what came out. Lists of other lengths prove other ranks. */
static void forget_the_way(results *r) {
    for (int b = 0; b < ROWS; b++) r->status[b] &= ~(uint32_t)FS_ROW_FALLBACK;
}

static void same_for_any_threads_and_blocks(void **state) {
    (void)state;
    world *w = make_world();
    w->batch.flags = FS_EXACT_RANK;
    for (int32_t logits = FS_LOGITS_RAW; logits <= FS_LOGITS_CUT; logits++) {
        results expected, got;
        const int32_t threads[] = {1, 2, 3, 7, 64}, blocks[] = {0, 128, 256, 1024, 8192};
        for (int i = 0; i < 25; i++) {
            if (i % 5 != i / 5 && i % 5 != i / 5 + 1) continue; /* nine pairs have every value, most of them twice */
            fs_context *context = open_context(FS_BACKEND_CPU, threads[i / 5], blocks[i % 5]);
            fs_result r = ask_everything(i ? &got : &expected, logits);
            must(context, fs_sample(context, &w->head, &w->batch, &r));
            forget_the_way(i ? &got : &expected);
            if (i) assert_memory_equal(&expected, &got, sizeof got);
            fs_context_destroy(context);
        }
    }
    free(w);
}

static void reversed_order(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg) {
    (void)user;
    for (int32_t i = count - 1; i >= 0; i--) task(arg, i);
}

static void same_on_the_callers_threads(void **state) {
    (void)state;
    world *w = make_world();
    results expected, got;
    fs_context *ours = open_context(FS_BACKEND_CPU, 4, 0);
    fs_options options = fs_options_default();
    options.threads = 4;
    options.parallel_for = reversed_order;
    fs_context *theirs = NULL;
    must(NULL, fs_context_create(&options, &theirs));
    fs_result r = ask_everything(&expected, FS_LOGITS_CUT);
    must(ours, fs_sample(ours, &w->head, &w->batch, &r));
    r = ask_everything(&got, FS_LOGITS_CUT);
    must(theirs, fs_sample(theirs, &w->head, &w->batch, &r));
    assert_memory_equal(&expected, &got, sizeof got);
    fs_context_destroy(ours);
    fs_context_destroy(theirs);
    free(w);
}

/* Row b alone, and in other slots among skipped rows, is what it was in the batch. */
static void same_alone_and_in_any_slot(void **state) {
    (void)state;
    world *w = make_world();
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    results all, one;
    fs_result r = ask_everything(&all, FS_LOGITS_PROCESSED);
    must(context, fs_sample(context, &w->head, &w->batch, &r));
    for (int b = 0; b < ROWS; b++) {
        /* Three rows: a skipped one, row b reached through its slot, a bad slot. */
        int32_t slot[3] = {-1, b, ROWS};
        uint64_t position[3] = {0, w->position[b], 0};
        int32_t mask[3] = {-1, b, -1};
        float hidden[3 * DIM];
        memset(hidden, 0x7F, sizeof hidden); /* NaN where nobody should look */
        memcpy(hidden + DIM, w->hidden + b * DIM, DIM * sizeof(float));
        fs_batch batch = w->batch;
        batch.rows = 3, batch.slots = ROWS, batch.slot = slot, batch.position = position, batch.hidden = hidden;
        batch.allow_index = mask;
        r = ask_everything(&one, FS_LOGITS_PROCESSED);
        must(context, fs_sample(context, &w->head, &batch, &r));
        assert_int_equal(one.status[0], FS_ROW_SKIPPED);
        assert_int_equal(one.status[2], FS_ROW_BAD_SLOT);
        assert_int_equal(one.tokens[0], -1);
        assert_int_equal(one.status[1] & ~(uint32_t)FS_ROW_FALLBACK, all.status[b] & ~(uint32_t)FS_ROW_FALLBACK);
        assert_memory_equal(one.tokens + SAMPLES, all.tokens + b * SAMPLES, SAMPLES * 4);
        assert_memory_equal(one.logprob + SAMPLES, all.logprob + b * SAMPLES, SAMPLES * 4);
        assert_memory_equal(&one.log_z[1], &all.log_z[b], 4);
        assert_memory_equal(&one.entropy[1], &all.entropy[b], 4);
        assert_int_equal(one.survivor_count[1], all.survivor_count[b]);
        assert_memory_equal(one.survivor_token + LEFT, all.survivor_token + b * LEFT, LEFT * 4);
        assert_memory_equal(one.top_logprob + TOP, all.top_logprob + b * TOP, TOP * 4);
    }
    fs_context_destroy(context);
    free(w);
}

static void merge_shards(fs_context *context, const world *w, const int64_t *bounds, int32_t shards, results *to) {
    void *part[8];
    fs_result r = ask_of_shards(to, FS_LOGITS_CUT);
    for (int32_t i = 0; i < shards; i++) {
        fs_head head = w->head;
        head.first_token = bounds[i];
        head.rows = bounds[i + 1] - bounds[i];
        head.data = w->weights + bounds[i] * DIM;
        head.vocab = VOCAB;
        size_t bytes;
        must(context, fs_partial_size(context, &head, &w->batch, &r, &bytes));
        part[i] = malloc(bytes);
        assert_non_null(part[i]);
        must(context, fs_partial(context, &head, &w->batch, &r, part[i], bytes));
    }
    fs_head head = w->head;
    head.vocab = VOCAB;
    must(context, fs_merge(context, &head, &w->batch, (const void *const *)part, shards, &r));
    for (int32_t i = 0; i < shards; i++) free(part[i]);
}

/* Boundaries on multiples of 16 ids, empty shards included: everything is equal, log Z and top-p cuts too. */
static void same_for_any_shards(void **state) {
    (void)state;
    world *w = make_world();
    w->batch.list_capacity = VOCAB;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    results whole, merged;
    const int64_t splits[][9] = {{0, VOCAB},
                                 {0, 16, VOCAB},
                                 {0, 2496, 2496, VOCAB},
                                 {0, 1024, 4096, VOCAB},
                                 {0, 16, 32, 48, 4992, VOCAB},
                                 {0, 0, 800, 1600, 2400, 3200, VOCAB, VOCAB}};
    const int32_t shards[] = {1, 2, 3, 3, 5, 7};
    fs_result r = ask_of_shards(&whole, FS_LOGITS_CUT);
    must(context, fs_sample(context, &w->head, &w->batch, &r));
    forget_the_way(&whole);
    for (int i = 0; i < 6; i++) {
        merge_shards(context, w, splits[i], shards[i], &merged);
        assert_memory_equal(&whole, &merged, sizeof merged);
    }
    fs_context_destroy(context);
    free(w);
}

/* Stored logits against the fused call, where the logits agree: those of the fused call itself, read through its watch
 * list. */
static void stored_logits_draw_what_the_fused_call_draws(void **state) {
    (void)state;
    world *w = make_world();
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    results fused, stored;
    int64_t *offset = malloc((ROWS + 1) * sizeof *offset);
    int32_t *token = malloc(sizeof *token * ROWS * VOCAB);
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    assert_true(offset && token && logits);
    for (int b = 0; b <= ROWS; b++) offset[b] = (int64_t)b * VOCAB;
    for (int i = 0; i < ROWS * VOCAB; i++) token[i] = i % VOCAB;
    fs_batch open = w->batch;
    open.allow = NULL;
    open.watch_offset = offset, open.watch_token = token;
    fs_result r = ask_everything(&fused, FS_LOGITS_RAW);
    r.watch_logit = logits;
    must(context, fs_sample(context, &w->head, &open, &r));
    r = ask_everything(&fused, FS_LOGITS_CUT);
    must(context, fs_sample(context, &w->head, &w->batch, &r));
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = VOCAB;
    r = ask_everything(&stored, FS_LOGITS_CUT);
    must(context, fs_sample(context, &head, &w->batch, &r));
    assert_memory_equal(&fused, &stored, sizeof stored);
    free(offset), free(token), free(logits);
    fs_context_destroy(context);
    free(w);
}

/* One scalar seed must not make rows equal, and must not depend on the batch either. */
static void scalar_seed_is_spread_over_slots(void **state) {
    (void)state;
    enum { N = 64, V = 1000 };
    static float logits[N * V];
    int32_t tokens[N], other[2];
    fs_context *context = open_context(FS_BACKEND_CPU, 1, 0);
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
    fs_batch batch = fs_batch_default();
    batch.rows = N, batch.seed_all = 5;
    fs_result r = fs_result_default();
    r.tokens = tokens;
    must(context, fs_sample(context, &head, &batch, &r));
    int equal = 0;
    for (int b = 1; b < N; b++) equal += tokens[b] == tokens[0];
    assert_true(equal < 5);
    int32_t slot[2] = {63, 17};
    batch.rows = 2, batch.slot = slot, batch.slots = N;
    r.tokens = other;
    must(context, fs_sample(context, &head, &batch, &r));
    assert_int_equal(other[0], tokens[63]);
    assert_int_equal(other[1], tokens[17]);
    uint64_t seed[2] = {fs_seed_spread(5, 63), fs_seed_spread(5, 17)};
    batch.slot = NULL, batch.slots = 0, batch.seed = seed;
    must(context, fs_sample(context, &head, &batch, &r));
    assert_int_equal(other[0], tokens[63]);
    fs_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_for_any_threads_and_blocks),
        cmocka_unit_test(same_on_the_callers_threads),
        cmocka_unit_test(same_alone_and_in_any_slot),
        cmocka_unit_test(same_for_any_shards),
        cmocka_unit_test(stored_logits_draw_what_the_fused_call_draws),
        cmocka_unit_test(scalar_seed_is_spread_over_slots),
    };
    return cmocka_run_group_tests_name("invariance", tests, NULL, NULL);
}
