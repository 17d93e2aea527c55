#define _DEFAULT_SOURCE /* setenv */
/* Draws by a screen are the draws without it, token for token: plain, greedy, several samples, masks, edits, penalties,
 * on hard heads; few logits are computed from W; and a screen whose bounds are wrong draws other tokens. */
#include "screens.h"

#define SCREEN_ROWS "4096" /* of a call that reads a screen: more than pay */

enum { MOST = 4096 };

typedef struct drawn {
    int32_t token[MOST];
    uint32_t status[MOST];
    float score[MOST], logit[MOST];
    int64_t rows, dots; /* by the screen */
} drawn;

static void draw(fs_context *context, const screened_head *s, const fs_batch *batch, int screened, drawn *d) {
    fs_head head = s->head;
    fs_result r = fs_result_default();
    head.screen = screened ? s->screen : NULL, head.screen_bytes = screened ? s->bytes : 0;
    memset(d, 0x77, sizeof *d);
    r.tokens = d->token, r.status = d->status, r.noisy_logit = d->score, r.logit = d->logit;
    must_be_ok(context, fs_sample(context, &head, batch, &r));
    for (int64_t b = 0; b < batch->rows; b++) d->status[b] &= ~(uint32_t)FS_ROW_FALLBACK;
    d->rows = counters_of(context).screened_rows, d->dots = counters_of(context).screened_dots;
}

static fs_batch batch_of(const screened_head *s, float temperature, uint64_t seed) {
    fs_batch batch = fs_batch_default();
    batch.rows = s->B, batch.hidden = s->h, batch.hidden_dtype = FS_BF16;
    rules_of(&batch)->temperature.value = temperature, batch.seed_all = seed;
    return batch;
}

static void same_draws(const drawn *a, const drawn *b) {
    assert_memory_equal(a->token, b->token, sizeof a->token);
    assert_memory_equal(a->status, b->status, sizeof a->status);
    assert_memory_equal(a->score, b->score, sizeof a->score);
    assert_memory_equal(a->logit, b->logit, sizeof a->logit);
}

static const float temperatures[] = {0.0f, 0.1f, 0.7f, 1.0f, 1.5f, 5.0f};

static void the_reference_draws_the_same(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_REFERENCE, 1, 0);
    static drawn plain, screened;
    for (int i = 0; i < HEAD_KINDS * SCREEN_KINDS; i++) {
        if (i % SCREEN_KINDS == 2) continue; /* longer groups are nothing to the reference */
        const fs_screen_options o = screen_kind(i % SCREEN_KINDS);
        screened_head s = make_screened(context, i / SCREEN_KINDS, 1001, 136, 15, 20.0, &o);
        for (int t = 0; t < 6; t += test_size(6) < 6 ? 5 : 1) {
            fs_batch batch = batch_of(&s, temperatures[t], 3);
            draw(context, &s, &batch, 0, &plain);
            draw(context, &s, &batch, 1, &screened);
            same_draws(&plain, &screened);
            assert_int_equal(screened.rows, s.B);
            assert_true(screened.dots >= s.B && screened.dots < s.B * s.V);
        }
        free_screened(&s);
    }
    fs_context_destroy(context);
}

/* Rows drawn both ways, those a screen decided, and the logits computed for them. */
typedef struct tally {
    int64_t rows, by_screen, dots;
} tally;

static void draw_both_ways(fs_context *context, const screened_head *s, const fs_batch *batch, tally *all) {
    static drawn plain, screened;
    draw(context, s, batch, 0, &plain);
    draw(context, s, batch, 1, &screened);
    same_draws(&plain, &screened);
    all->rows += s->B, all->by_screen += screened.rows, all->dots += screened.dots;
}

static void print_tally(const tally *all, const char *what) {
    print_message("%lld %s, %.3f of them by the screen, %.1f logits a row\n", (long long)all->rows, what,
                  (double)all->by_screen / (double)all->rows, (double)all->dots / (double)all->rows);
}

/* Every head, format, temperature and thread count; D that is no whole record, V that is no whole strip. */
static void the_cpu_draws_the_same(void **state) {
    (void)state;
    tally all = {0, 0, 0};
    for (int i = 0; i < HEAD_KINDS * SCREEN_KINDS; i++)
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            if (test_size(10) < 10 && (i + threads / 3) % 11) continue; /* where everything is slow */
            fs_context *context = open_context(FS_BACKEND_CPU, threads, 0);
            const fs_screen_options o = screen_kind(i % SCREEN_KINDS);
            screened_head s = make_screened(context, i / SCREEN_KINDS, 5003, i % 3 ? 136 : 256, 30, 20.0, &o);
            for (int t = 0; t < 6; t++)
                for (uint64_t seed = 0; seed < test_size(10); seed++) {
                    fs_batch batch = batch_of(&s, temperatures[t], seed);
                    draw_both_ways(context, &s, &batch, &all);
                }
            free_screened(&s);
            fs_context_destroy(context);
        }
    print_tally(&all, "rows");
    assert_true(all.by_screen > all.rows / 2);
}

/* A call of any kind that screens serve, made by chance; and of some kinds that they do not. */
typedef struct chance {
    uint32_t allow[24][40], seen[24][40];
    int32_t allow_index[24];
    int64_t edit_offset[25];
    int32_t edit_token[240];
    float edit_bias[240], bias[1203], temperature[24], repetition[24];
    int32_t counts[24][1216];
} chance;

static void make_chance(chance *c, rng *r, int64_t V) {
    for (int b = 0; b < 24; b++) {
        for (int i = 0; i < 40; i++) {
            c->allow[b][i] = (uint32_t)random_next(r);
            c->seen[b][i] = (uint32_t)(random_next(r) & random_next(r));
        }
        for (int i = 0; i < 1216; i++) c->counts[b][i] = random_below(r, 20) ? 0 : (int32_t)random_below(r, 3);
        c->edit_offset[b + 1] = 10 * (b + 1);
        c->temperature[b] = temperatures[random_below(r, 6)];
        c->repetition[b] = 0.5f + (float)random_unit(r);
        c->allow_index[b] = random_below(r, 6) ? b : random_below(r, 2) ? -1 : 24; /* which is no mask */
    }
    c->temperature[random_below(r, 24)] = random_below(r, 3) ? 1.0f : NAN;
    for (int i = 0; i < 240; i++) {
        c->edit_token[i] = (int32_t)random_below(r, (uint64_t)V);
        c->edit_bias[i] = random_below(r, 5) ? (float)(4.0 * random_normal(r)) : -INFINITY;
    }
    for (int i = 0; i < 1203; i++) c->bias[i] = (float)random_normal(r);
}

static fs_batch chance_batch(const screened_head *s, chance *c, rng *r) {
    fs_batch batch = batch_of(s, 1.0f, random_next(r));
    rules_of(&batch)->temperature.per_slot = c->temperature;
    if (random_below(r, 3) == 0) batch.allow = c->allow[0], batch.allow_stride = sizeof c->allow[0];
    if (batch.allow && random_below(r, 2)) batch.allow_index = c->allow_index, batch.allow_count = 24;
    if (random_below(r, 3) == 0)
        batch.edit_offset = c->edit_offset, batch.edit_token = c->edit_token, batch.edit_bias = c->edit_bias;
    if (random_below(r, 3) == 0) {
        batch.seen = c->seen[0], batch.seen_stride = sizeof c->seen[0];
        batch.counts = c->counts[0], batch.counts_stride = sizeof c->counts[0];
        rules_of(&batch)->repetition.per_slot = c->repetition, rules_of(&batch)->frequency.value = 0.3f,
        rules_of(&batch)->presence.value = -0.2f;
    }
    if (random_below(r, 2)) batch.flags = FS_EDITS_LAST;
    if (random_below(r, 3) == 0) batch.samples = 1 + (int32_t)random_below(r, 5);
    if (random_below(r, 4) == 0) batch.mode = FS_MODE_WITHOUT_REPLACEMENT;
    if (random_below(r, 3) == 0) rules_of(&batch)->top_k.value = 1 + (int32_t)random_below(r, 40);
    if (random_below(r, 4) == 0) rules_of(&batch)->min_p.value = 0.05f;
    if (random_below(r, 5) == 0) rules_of(&batch)->top_p.value = 0.9f;
    if (random_below(r, 4) == 0) batch.flags |= FS_KEEP_TIES;
    if (random_below(r, 4) == 0) batch.flags |= FS_CUT_BEFORE_TEMPERATURE;
    if (random_below(r, 4) == 0) batch.flags |= FS_MIN_P_LAST;
    return batch;
}

static void chance_head(screened_head *s, const chance *c, rng *r) {
    fs_head *head = &s->head;
    if (random_below(r, 3) == 0) head->bias = c->bias;
    if (random_below(r, 4) == 0) head->softcap = 8.0f;
    if (random_below(r, 4) == 0) head->scale = 0.7f;
    if (random_below(r, 4) == 0) head->post_scale = random_below(r, 4) ? 1.3f : -1.3f;
    if (random_below(r, 4) == 0) head->round_to = FS_BF16;
    if (random_below(r, 3) == 0) head->vocab = s->V - 5;
}

/* The raw logit of a banned token is told when rounding has made it infinite, though its bound loses every race. */
static void a_banned_token_tells_that_its_logit_is_infinite(void **state) {
    (void)state;
    static drawn plain, screened;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
    screened_head s = make_screened(context, NORMAL, 5003, 256, 12, 20.0, &o);
    static int32_t token[12];
    static float bias[12];
    static int64_t offset[13];
    for (int64_t b = 0; b < 12; b++) {
        token[b] = 3001, bias[b] = -INFINITY, offset[b + 1] = b + 1;
        s.h[b * s.D] = bf16_of(8.0f);
    }
    for (int64_t d = 0; d < s.D; d++) s.w[3001 * s.D + d] = bf16_of(d ? 0.0f : 9000.0f);
    free(s.screen);
    s.screen = build(context, &s.head, &o, &s.bytes);
    s.head.round_to = FS_F16;
    fs_batch batch = batch_of(&s, 1.0f, 1);
    batch.edit_token = token, batch.edit_bias = bias, batch.edit_offset = offset;
    draw(context, &s, &batch, 0, &plain);
    draw(context, &s, &batch, 1, &screened);
    same_draws(&plain, &screened);
    assert_int_equal(screened.rows, s.B);
    for (int64_t b = 0; b < s.B; b++) assert_int_equal(screened.status[b], FS_ROW_INF);
    free_screened(&s);
    fs_context_destroy(context);
}

/* Weights and hidden states that are no numbers, or too large to be summed. */
static void spoil(screened_head *s, rng *r) {
    const uint16_t odd[] = {0x7F80, 0xFF80, 0x7FC0, bf16_of(3e38f), bf16_of(-1e20f), bf16_of(1e-39f)};
    for (int i = 0; i < 3; i++) s->w[random_below(r, (uint64_t)(s->V * s->D))] = odd[random_below(r, 6)];
    s->h[random_below(r, (uint64_t)(s->B * s->D))] = odd[random_below(r, 6)];
    memset(s->h + s->D * (s->B - 1), 0, (size_t)s->D * 2); /* every token ties */
}

static void any_call_draws_the_same(void **state) {
    (void)state;
    static drawn plain, screened;
    static chance c;
    fs_context *contexts[] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 3, 256)};
    int64_t served = 0, rounds = (int64_t)test_size(600);
    rng r = random_from(5);
    for (int64_t i = 0; i < rounds; i++) {
        fs_context *context = contexts[i % 2];
        const fs_screen_options o = screen_kind((int)(i / 2 % SCREEN_KINDS));
        screened_head s = make_screened(context, (int)(i % HEAD_KINDS), 1203, 144, 24, 20.0, &o);
        make_chance(&c, &r, 1190);
        chance_head(&s, &c, &r);
        if (i % 4 == 1) spoil(&s, &r);
        if (i % 5 == 2) s.head.first_token = 7, s.head.vocab = 0; /* blocks begin inside of strips */
        free(s.screen);
        s.screen = build(context, &s.head, &o, &s.bytes);
        const fs_batch batch = chance_batch(&s, &c, &r);
        draw(context, &s, &batch, 0, &plain);
        draw(context, &s, &batch, 1, &screened);
        same_draws(&plain, &screened);
        served += screened.rows > 0;
        free_screened(&s);
    }
    print_message("%lld of %lld calls had rows that the screen decided\n", (long long)served, (long long)rounds);
    assert_true(served > rounds / 3);
    for (int i = 0; i < 2; i++) fs_context_destroy(contexts[i]);
}

/* Top-k, min-p, and top-p of what they leave, by lists of settled tokens. */
static void cuts_by_lists_draw_the_same(void **state) {
    (void)state;
    tally all = {0, 0, 0};
    const int turns = test_size(60) > 5 ? 2 : 1; /* screens are made for a second, and under emulation for a minute */
    for (int i = 0; i < turns * SCREEN_KINDS; i++) {
        if (i % SCREEN_KINDS == 2) continue;
        fs_context *context = open_context(FS_BACKEND_CPU, 1 + i / SCREEN_KINDS * 2, 0);
        const fs_screen_options o = screen_kind(i % SCREEN_KINDS);
        screened_head s = make_screened(context, NORMAL, 12011, 256, 20, 12.0, &o);
        for (uint64_t seed = 0; seed < test_size(60); seed++) {
            fs_batch batch = batch_of(&s, temperatures[seed % 6], seed);
            if (seed % 3 < 2) rules_of(&batch)->top_k.value = seed % 4 ? 50 : 5;
            if (seed % 3 == 1) rules_of(&batch)->top_p.value = 0.8f;
            if (seed % 3 == 2 || seed % 5 == 0) rules_of(&batch)->min_p.value = 0.2f;
            if (seed % 7 == 0) batch.samples = 3;
            draw_both_ways(context, &s, &batch, &all);
        }
        free_screened(&s);
        fs_context_destroy(context);
    }
    print_tally(&all, "rows with cuts");
    assert_true(all.by_screen > all.rows / 4);
}

/* Up to 128 of a row's best tokens come from a screen, with and without a cut; more of them read W. */
static void the_best_tokens_are_the_same(void **state) {
    (void)state;
    enum { B = 4, TOP = 129 };
    static int32_t token[2][B], top[2][B * TOP];
    static float logit[2][B * TOP];
    const int step = test_size(60) > 5 ? 1 : 5;
    int64_t decided = 0, rows = 0;
    for (int i = 0; i < SCREEN_KINDS; i++) {
        fs_context *context = open_context(FS_BACKEND_CPU, 1 + i % 2 * 2, 0);
        const fs_screen_options o = screen_kind(i);
        screened_head s = make_screened(context, NORMAL, 20011, 256, B, 40.0, &o);
        for (int at = 0; at < 16; at += step) {
            static const int32_t counts[] = {1, 64, 128, 129};
            fs_batch batch = batch_of(&s, at % 4 == 1 ? 0.0f : 0.8f, (uint64_t)at);
            if (at % 4 == 2) rules_of(&batch)->top_k.value = 20;
            if (at % 4 == 3) rules_of(&batch)->min_p.value = 0.1f;
            for (int screened = 0; screened < 2; screened++) {
                fs_result r = fs_result_default();
                s.head.screen = screened ? s.screen : NULL, s.head.screen_bytes = screened ? s.bytes : 0;
                memset(top[screened], 0x77, sizeof *top), memset(logit[screened], 0x77, sizeof *logit);
                r.tokens = token[screened], r.top_count = counts[at / 4];
                r.top_token = top[screened], r.top_logit = logit[screened];
                must_be_ok(context, fs_sample(context, &s.head, &batch, &r));
            }
            if (counts[at / 4] > 128) assert_int_equal(counters_of(context).screened_rows, 0);
            else decided += counters_of(context).screened_rows, rows += B;
            assert_memory_equal(token[0], token[1], sizeof *token);
            assert_memory_equal(top[0], top[1], sizeof *top);
            assert_memory_equal(logit[0], logit[1], sizeof *logit);
        }
        free_screened(&s);
        fs_context_destroy(context);
    }
    print_message("%lld of %lld rows with their best tokens\n", (long long)decided, (long long)rows);
    assert_true(decided > rows / 3);
}

/* Which task meets a tie first is a matter of timing; who is in the list is not. */
static void ties_in_lists_go_to_lower_ids_whoever_meets_them_first(void **state) {
    (void)state;
    static drawn plain, screened;
    fs_context *context = open_context(FS_BACKEND_CPU, 3, 128);
    const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
    screened_head s = make_screened(context, NORMAL, 1001, 136, 24, 20.0, &o);
    memset(s.h, 0, (size_t)(s.B * s.D * 2));
    s.head.round_to = FS_F16; /* the bounds of these rows become 0 too: nobody has to be settled for a tie */
    for (uint64_t seed = 0; seed < test_size(200); seed++) {
        fs_batch batch = batch_of(&s, 1.0f, seed);
        rules_of(&batch)->top_k.value = 3;
        if (seed % 2) rules_of(&batch)->min_p.value = 0.1f;
        draw(context, &s, &batch, 0, &plain);
        draw(context, &s, &batch, 1, &screened);
        same_draws(&plain, &screened);
        assert_true(screened.rows > s.B / 2);
    }
    free_screened(&s);
    fs_context_destroy(context);
}

/* The caller's memory, as large as was asked for, is enough, also where every row takes the pass over W. */
static void the_callers_memory_is_enough(void **state) {
    (void)state;
    static drawn plain, screened;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
    screened_head s = make_screened(context, NORMAL, 5003, 256, 40, 20.0, &o);
    for (int zeros = 0; zeros < 2; zeros++) {
        if (zeros) memset(s.h, 0, (size_t)(s.B * s.D * 2));
        fs_batch batch = batch_of(&s, 0.0f, 1);
        fs_head head = s.head;
        fs_result r = fs_result_default();
        size_t bytes;
        r.tokens = plain.token;
        head.screen = s.screen, head.screen_bytes = s.bytes;
        must_be_ok(context, fs_work_size(context, &head, &batch, &r, &bytes, NULL));
        draw(context, &s, &batch, 0, &plain);
        void *work = aligned_alloc(64, (bytes + 63) / 64 * 64);
        must_be_ok(context, fs_context_set_work(context, work, bytes));
        draw(context, &s, &batch, 1, &screened);
        same_draws(&plain, &screened);
        assert_int_equal(screened.rows, zeros ? 0 : s.B);
        must_be_ok(context, fs_context_set_work(context, NULL, 0));
        free(work);
    }
    free_screened(&s);
    fs_context_destroy(context);
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

/* A call over so many shards. */
enum { SHARDS = 3 };

/* Rows [from, to) of the head, with their slice of its screen, to be freed; without, if there is to be none. */
static fs_head shard_of(fs_context *context, const screened_head *s, int64_t from, int64_t to, int screened) {
    fs_head shard = s->head;
    size_t needed;
    shard.data = s->w + from * s->D;
    shard.rows = to - from, shard.first_token = s->head.first_token + from;
    shard.vocab = s->head.vocab ? s->head.vocab : s->head.first_token + s->V;
    if (s->head.bias) shard.bias = s->head.bias + from;
    if (!screened) return shard;
    must_be_ok(context, fs_screen_slice(context, s->screen, s->bytes, from, shard.rows, NULL, 0, &needed));
    void *slice = aligned_alloc(64, (needed + 63) / 64 * 64);
    must_be_ok(context, fs_screen_slice(context, s->screen, s->bytes, from, shard.rows, slice, needed, NULL));
    shard.screen = slice, shard.screen_bytes = needed;
    return shard;
}

static void make_shards(fs_context *context, const screened_head *s, int screened, fs_head shard[SHARDS]) {
    const int64_t cut[SHARDS + 1] = {0, s->V / 5 / 16 * 16, s->V / 2 / 16 * 16, s->V};
    for (int i = 0; i < SHARDS; i++) shard[i] = shard_of(context, s, cut[i], cut[i + 1], screened);
}

static void free_shards(const fs_head shard[SHARDS]) {
    for (int i = 0; i < SHARDS; i++) free((void *)(uintptr_t)shard[i].screen);
}

static void draw_by_parts(fs_context *context, const fs_head shard[SHARDS], const fs_batch *batch, drawn *d) {
    void *part[SHARDS];
    size_t bytes;
    fs_result r = fs_result_default();
    memset(d, 0x77, sizeof *d);
    r.tokens = d->token, r.status = d->status, r.noisy_logit = d->score, r.logit = d->logit;
    for (int i = 0; i < SHARDS; i++) {
        must_be_ok(context, fs_partial_size(context, &shard[i], batch, &r, &bytes));
        part[i] = malloc(bytes);
        must_be_ok(context, fs_partial(context, &shard[i], batch, &r, part[i], bytes));
    }
    must_be_ok(context, fs_merge(context, &shard[0], batch, (const void *const *)part, SHARDS, &r));
    for (int i = 0; i < SHARDS; i++) free(part[i]);
    for (int64_t b = 0; b < batch->rows; b++) d->status[b] &= ~(uint32_t)FS_ROW_FALLBACK;
}

static void parts_are_those_without(void **state) {
    (void)state;
    static drawn plain, screened;
    static chance c;
    fs_context *contexts[] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 3, 256)};
    fs_head with[SHARDS], without[SHARDS];
    rng r = random_from(6);
    for (int64_t i = 0; i < (int64_t)test_size(300); i++) {
        fs_context *context = contexts[i % 2];
        const fs_screen_options o = screen_kind((int)(i / 2 % SCREEN_KINDS));
        screened_head s = make_screened(context, (int)(i % HEAD_KINDS), 1203, 144, 24, 20.0, &o);
        make_chance(&c, &r, 1190);
        chance_head(&s, &c, &r);
        if (i % 4 == 1) spoil(&s, &r);
        free(s.screen);
        s.screen = build(context, &s.head, &o, &s.bytes);
        const fs_batch batch = chance_batch(&s, &c, &r);
        make_shards(context, &s, 0, without);
        make_shards(context, &s, 1, with);
        draw_by_parts(context, without, &batch, &plain);
        draw_by_parts(context, with, &batch, &screened);
        same_draws(&plain, &screened);
        free_shards(with);
        free_screened(&s);
    }
    for (int i = 0; i < 2; i++) fs_context_destroy(contexts[i]);
}

static char *part_of(fs_context *context, const fs_head *head, const fs_batch *batch, size_t *bytes) {
    const fs_result r = fs_result_default();
    must_be_ok(context, fs_partial_size(context, head, batch, &r, bytes));
    char *part = malloc(*bytes);
    memset(part, 0x5A, *bytes);
    must_be_ok(context, fs_partial(context, head, batch, &r, part, *bytes));
    return part;
}

/* As docs/explain/ranks.md has it: where a part has lists, only the bound of what they leave out may differ. */
static void parts_without_lists_are_the_same_bytes(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    int differ = 0;
    for (int i = 0; i < 40; i++) {
        const fs_screen_options o = options_of(i % 2 ? FS_SCREEN_INT4 : FS_SCREEN_INT8, 0);
        screened_head s = make_screened(context, i % HEAD_KINDS, 1203, 144, 6, 20.0, &o);
        fs_batch batch = batch_of(&s, i % 3 ? 1.0f : 0.0f, 1 + i % 4);
        const int lists = i >= 20;
        if (lists) rules_of(&batch)->top_k.value = 5;
        const fs_head with = shard_of(context, &s, 16, 608, 1), without = shard_of(context, &s, 16, 608, 0);
        size_t bytes;
        char *part[2] = {part_of(context, &with, &batch, &bytes), part_of(context, &without, &batch, &bytes)};
        if (!lists) assert_memory_equal(part[0], part[1], bytes);
        differ += memcmp(part[0], part[1], bytes) != 0;
        free((void *)(uintptr_t)with.screen);
        free(part[0]), free(part[1]);
        free_screened(&s);
    }
    assert_true(differ > 0); /* else the page above could promise more */
    fs_context_destroy(context);
}

/* A token that only W knows of, since nobody has told the screen, is in no part. */
static void it_is_the_screen_that_a_part_is_made_of(void **state) {
    (void)state;
    static drawn before, after;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
    const int64_t token = 4001;
    screened_head s = make_screened(context, NORMAL, 5003, 256, 20, 20.0, &o);
    const fs_batch batch = batch_of(&s, 0.0f, 1);
    fs_head with[SHARDS], without[SHARDS];
    for (int64_t b = 0; b < s.B; b++) s.h[b * s.D] = bf16_of(8.0f);
    make_shards(context, &s, 0, without);
    make_shards(context, &s, 1, with);
    draw_by_parts(context, with, &batch, &before);
    for (int64_t d = 0; d < s.D; d++) s.w[token * s.D + d] = bf16_of(d ? 0.0f : 1000.0f);
    draw_by_parts(context, with, &batch, &after);
    assert_memory_equal(before.token, after.token, sizeof before.token);
    draw_by_parts(context, without, &batch, &after);
    for (int64_t b = 0; b < s.B; b++) assert_int_equal(after.token[b], token);
    free_shards(with);
    free_screened(&s);
    fs_context_destroy(context);
}

/* Rows that draw nothing have nothing in a part, whatever their memory held before. */
static void rows_that_are_left_out_are_in_no_part(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_CPU, 1, 0);
    const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
    screened_head s = make_screened(context, NORMAL, 5003, 256, 20, 20.0, &o);
    int32_t slot[20];
    for (int b = 0; b < 20; b++) slot[b] = b % 3 ? b : -1;
    fs_batch batch = batch_of(&s, 1.0f, 1);
    batch.slot = slot;
    const fs_head head = shard_of(context, &s, 0, s.V, 1);
    const fs_result r = fs_result_default();
    char *part[2];
    size_t bytes, work_bytes;
    must_be_ok(context, fs_work_size(context, &head, &batch, &r, &work_bytes, NULL));
    must_be_ok(context, fs_partial_size(context, &head, &batch, &r, &bytes));
    char *work = aligned_alloc(64, (work_bytes + 63) / 64 * 64);
    for (int i = 0; i < 2; i++) {
        part[i] = malloc(bytes);
        memset(work, i ? 2 : 0, work_bytes);
        must_be_ok(context, fs_context_set_work(context, work, work_bytes));
        must_be_ok(context, fs_partial(context, &head, &batch, &r, part[i], bytes));
    }
    assert_memory_equal(part[0], part[1], bytes);
    for (int i = 0; i < 2; i++) free(part[i]);
    must_be_ok(context, fs_context_set_work(context, NULL, 0));
    free((void *)(uintptr_t)head.screen);
    free(work);
    free_screened(&s);
    fs_context_destroy(context);
}

/* Logits of W that the screen asked for in one call; 0 where the call went to W at once. */
static int64_t dots_of(fs_context *context, const screened_head *s, const uint16_t *hidden) {
    fs_batch batch = fs_batch_default();
    fs_result result = fs_result_default();
    int32_t token;
    batch.rows = 1, batch.hidden = hidden, batch.hidden_dtype = FS_BF16, result.tokens = &token;
    must_be_ok(context, fs_sample(context, &s->head, &batch, &result));
    return counters_of(context).screened_dots;
}

/* Calls whose screen fails go to W at once, more and more of them, while the screens of other heads of the context are
 * read whatever has become of these: each screen has a history of its own. */
static void screens_of_one_context_have_histories_of_their_own(void **state) {
    (void)state;
    enum { CALLS = 70, HEADS = 3, GOOD = 2 };
    const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
    screened_head s[HEADS];
    int read[HEADS] = {0};
    unsetenv("FLASHSAMPLING_SCREEN_ROWS"); /* which reads screens whatever their history is */
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    setenv("FLASHSAMPLING_SCREEN_ROWS", SCREEN_ROWS, 1);
    for (int i = 0; i < HEADS; i++) {
        s[i] = make_screened(context, NORMAL, 5003, 256, 1, 1.0, &o);
        s[i].head.screen = s[i].screen, s[i].head.screen_bytes = s[i].bytes;
    }
    uint16_t unknown[256]; /* of a row like this nothing is known: every token would have to be settled */
    memcpy(unknown, s[0].h, sizeof unknown);
    unknown[7] = 0x7FC0;
    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < HEADS; i++) read[i] += dots_of(context, &s[i], i == GOOD ? s[i].h : unknown) > 0;
    /* Calls 0, 2, 34 and 66 read the screen: behind the first, one call is skipped, then 31. */
    assert_int_equal(read[0], 4);
    assert_int_equal(read[1], 4);
    assert_int_equal(read[GOOD], CALLS);
    /* A screen that is made anew begins anew, at the same place too. */
    s[0].w[0] ^= 1;
    must_be_ok(context, fs_screen_build(context, &s[0].head, &o, s[0].screen, s[0].bytes));
    assert_true(dots_of(context, &s[0], unknown) > 0);
    assert_int_equal(dots_of(context, &s[0], unknown), 0);
    assert_true(dots_of(context, &s[0], unknown) > 0);
    assert_int_equal(dots_of(context, &s[0], unknown), 0);
    for (int i = 0; i < HEADS; i++) free_screened(&s[i]);
    fs_context_destroy(context);
}

/* Scales that lost a bit draw other tokens: what is compared above would show it. */
static void wrong_scales_draw_other_tokens(void **state) {
    (void)state;
    static drawn plain, screened;
    for (int32_t backend = FS_BACKEND_CPU; backend <= FS_BACKEND_REFERENCE; backend += 2) {
        fs_context *context = open_context(backend, 1, 0);
        const fs_screen_options o = options_of(FS_SCREEN_INT8, 0);
        screened_head s = make_screened(context, NORMAL, 1001, 256, 40, 20.0, &o);
        const fs_screen screen = screen_of(s.screen);
        for (int64_t strip = 0; strip < screen_strips(s.V); strip++)
            for (int64_t k = 0; k < screen.records; k++) {
                const unsigned char *record = strip_record(&screen, screen_strip(&screen, strip), k);
                uint16_t *tail = (uint16_t *)s.screen + (record_tail(&screen, record) - (uint16_t *)s.screen);
                for (int i = 0; i < 16; i += 2) tail[i] = (uint16_t)(tail[i] - 0x80);
            }
        seal(context, s.screen);
        const fs_batch batch = batch_of(&s, 0.0f, 1);
        draw(context, &s, &batch, 0, &plain);
        draw(context, &s, &batch, 1, &screened);
        assert_true(memcmp(plain.token, screened.token, (size_t)s.B * sizeof *plain.token) != 0);
        free_screened(&s);
        fs_context_destroy(context);
    }
}

int main(void) {
    setenv("FLASHSAMPLING_SCREEN_ROWS", SCREEN_ROWS, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_draws_the_same),
        cmocka_unit_test(the_cpu_draws_the_same),
        cmocka_unit_test(any_call_draws_the_same),
        cmocka_unit_test(a_banned_token_tells_that_its_logit_is_infinite),
        cmocka_unit_test(cuts_by_lists_draw_the_same),
        cmocka_unit_test(the_best_tokens_are_the_same),
        cmocka_unit_test(ties_in_lists_go_to_lower_ids_whoever_meets_them_first),
        cmocka_unit_test(the_callers_memory_is_enough),
        cmocka_unit_test(parts_are_those_without),
        cmocka_unit_test(parts_without_lists_are_the_same_bytes),
        cmocka_unit_test(rows_that_are_left_out_are_in_no_part),
        cmocka_unit_test(it_is_the_screen_that_a_part_is_made_of),
        cmocka_unit_test(screens_of_one_context_have_histories_of_their_own),
        cmocka_unit_test(wrong_scales_draw_other_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
