/* call_descs.h - descriptions of calls, and the real calls they are descriptions of, small ones. */
#ifndef FS_TESTS_DESCS_H
#define FS_TESTS_DESCS_H

#include "alone.h"
#include "support.h"

enum { DESC_V = 40, DESC_D = 4, DESC_B = 2, DESC_N = 2, DESC_PART = 1 << 16 };

static const int32_t desc_dtypes[] = {FS_F32, FS_F16, FS_BF16, FS_Q8_0, FS_Q5_K, FS_Q6_K};
enum { DESC_DTYPES = sizeof desc_dtypes / sizeof desc_dtypes[0] };

/* The arrays of a call; zeros do for all of them but these. */
typedef struct described {
    fs_head head;
    fs_batch batch;
    fs_result result;
    float numbers[DESC_V * DESC_D], out[8][DESC_B * DESC_N];
    int64_t tokens[DESC_B * DESC_N], offset[DESC_B + 1];
    int32_t ids[DESC_B * DESC_N], rank[DESC_B * DESC_N], top[DESC_B], survivor[DESC_B];
    int32_t top_k[DESC_B], counts[DESC_B * DESC_V];
    float half[DESC_B], biases[DESC_B * DESC_N];
    uint32_t allow[DESC_B * 2];
} described;

/* With `arrays`, rules are where rows have values of their own; otherwise scalars where there is one. */
static void call_of_rules(described *c, uint32_t rules, int arrays) {
    fs_batch *b = &c->batch;
    for (int i = 0; i < DESC_B; i++) c->top_k[i] = 3, c->half[i] = 0.5f, c->offset[i + 1] = i + 1;
    memset(c->allow, 0xff, sizeof c->allow);
    if (rules & FS_RULE_TOP_K && arrays) rules_of(b)->top_k.per_slot = c->top_k;
    else if (rules & FS_RULE_TOP_K) rules_of(b)->top_k.value = 3;
    if (rules & FS_RULE_TOP_P && arrays) rules_of(b)->top_p.per_slot = c->half;
    else if (rules & FS_RULE_TOP_P) rules_of(b)->top_p.value = 0.5f;
    if (rules & FS_RULE_MIN_P && arrays) rules_of(b)->min_p.per_slot = c->half;
    else if (rules & FS_RULE_MIN_P) rules_of(b)->min_p.value = 0.5f;
    if (rules & FS_RULE_ALLOW) b->allow = c->allow;
    if (rules & FS_RULE_EDITS) b->edit_offset = c->offset, b->edit_token = c->ids, b->edit_bias = c->biases;
    if (rules & FS_RULE_PENALTIES) b->counts = c->counts;
    if (rules & FS_RULE_PENALTIES && arrays) rules_of(b)->repetition.per_slot = c->half;
    else if (rules & FS_RULE_PENALTIES) rules_of(b)->presence.value = 0.5f;
}

static void call_of_desc(described *c, const fs_call_desc *o, int arrays) {
    fs_result *r = &c->result;
    memset(c, 0, sizeof *c);
    c->head = fs_head_default();
    c->head.kind = o->kind, c->head.dtype = o->dtype;
    c->head.data = c->numbers, c->head.rows = DESC_V, c->head.dim = DESC_D;
    c->batch = fs_batch_default();
    c->batch.rows = DESC_B, c->batch.hidden = c->numbers, c->batch.hidden_dtype = o->hidden_dtype;
    c->batch.mode = o->mode, c->batch.noise = o->noise, c->batch.samples = o->samples, c->batch.flags = o->flags;
    c->batch.group_size = o->group_size;
    c->batch.score_token = c->ids;
    if (o->inputs & FS_INPUT_BROADCAST) c->batch.hidden_stride = FS_STRIDE_BROADCAST;
    if (o->inputs & FS_INPUT_EXTRA_TOKENS) c->batch.extra_offset = c->offset, c->batch.extra_token = c->ids;
    call_of_rules(c, o->rules, arrays);
    *r = fs_result_default();
    r->tokens = c->tokens, r->logits_mode = o->logits_mode;
    if (o->results & FS_RESULT_NOISY_LOGIT) r->noisy_logit = c->out[0];
    if (o->results & FS_RESULT_MAX_LOGIT) r->max_logit = c->out[1];
    if (o->results & FS_RESULT_LOG_Z) r->log_z = c->out[2];
    if (o->results & FS_RESULT_LOGIT) r->logit = c->out[3];
    if (o->results & FS_RESULT_LOGPROB) r->logprob = c->out[4];
    if (o->results & FS_RESULT_RANK) r->rank = c->rank;
    if (o->results & FS_RESULT_TOP) r->top_count = 1, r->top_token = c->top, r->top_logprob = c->out[5];
    if (o->results & FS_RESULT_WATCH)
        r->watch_logprob = c->out[6], c->batch.watch_offset = c->offset, c->batch.watch_token = c->ids;
    if (o->results & FS_RESULT_ENTROPY) r->entropy = c->out[7];
    if (o->results & FS_RESULT_SURVIVORS) r->survivor_limit = 1, r->survivor_token = c->survivor;
}

/* fs_partial_size, fs_partial and fs_merge agree about what they can do. */
static fs_status call_partial(fs_context *context, described *c) {
    _Alignas(64) static char part[DESC_PART];
    const void *parts[1] = {part};
    size_t bytes = 0;
    const fs_status sized = fs_partial_size(context, &c->head, &c->batch, &c->result, &bytes);
    assert_true(bytes <= sizeof part);
    const fs_status status = fs_partial(context, &c->head, &c->batch, &c->result, part, sizeof part);
    assert_int_equal(status, sized);
    assert_int_equal(fs_merge(context, &c->head, &c->batch, parts, 1, &c->result), status);
    return status;
}

static fs_status call_it(fs_context *context, described *c, int32_t call, int32_t device) {
    if (call == FS_CALL_SAMPLE) return fs_sample(context, &c->head, &c->batch, &c->result);
    if (call == FS_CALL_PARTIAL) return call_partial(context, c);
    fs_ranks ranks = alone_ranks();
    ranks.device = device;
    return fs_sample_ranks(context, &ranks, &c->head, &c->batch, &c->result);
}

/* What `backend` answers is what its context does: `done` is what a call returns that is not refused. */
static void answer_is_kept(int32_t backend, fs_context *context, const fs_call_desc *o, described *c, fs_status done) {
    const char *why = NULL;
    const fs_status answer = fs_supports(backend, o, &why);
    const fs_status status = call_it(context, c, o->call, backend == FS_BACKEND_CUDA);
    const char *text = fs_error_text(context);
    int kept = why && (answer == FS_OK ? status == done && !*why : *why && status != done);
    if (answer == FS_ERR_UNSUPPORTED) kept = kept && status == answer && strstr(text, why);
    else if (answer != FS_OK) kept = kept && answer == FS_ERR_ARGUMENT && status < 0;
    if (kept) return;
    fail_msg("call %d kind %d dtype %d/%d mode %d noise %d samples %d logits %d rules %x results %x inputs %x: %d "
             "'%s', not %d '%s'",
             o->call, o->kind, o->dtype, o->hidden_dtype, o->mode, o->noise, o->samples, o->logits_mode, o->rules,
             o->results, o->inputs, answer, why, status, text);
}

/* The i-th digit of a number whose digits have different bases. */
static int32_t next_digit(uint64_t *number, uint64_t base) {
    const int32_t digit = (int32_t)(*number % base);
    *number /= base;
    return digit;
}

enum { DESCS = 3 * 2 * DESC_DTYPES * 3 * 5 * 2 * 2 * 3 };

/* Outline i of all of them, but for rules, results and flags. */
static fs_call_desc desc_of_number(uint64_t i) {
    fs_call_desc o = fs_call_desc_default();
    o.call = next_digit(&i, 3);
    o.kind = next_digit(&i, 2);
    o.dtype = desc_dtypes[next_digit(&i, DESC_DTYPES)];
    o.hidden_dtype = next_digit(&i, 3);
    o.mode = next_digit(&i, 5);
    o.noise = next_digit(&i, 2);
    o.samples = 1 + next_digit(&i, 2);
    o.logits_mode = next_digit(&i, 3);
    o.group_size = 8;
    return o;
}

/* Every description without rules and results, with one rule, with one result, with one input; then random ones. */
static void answers_are_kept(int32_t backend, fs_status done) {
    static described c;
    fs_context *context = open_context(backend, 1, 0);
    rng r = random_from(77);
    for (uint64_t i = 0; i < DESCS; i++)
        for (int one = 0; one < 17; one++) {
            fs_call_desc o = desc_of_number(i);
            if (one >= 1 && one < 7) o.rules = 1u << (one - 1);
            if (one >= 7 && one < 15) o.results = 1u << (one - 7);
            if (one >= 15) o.inputs = 1u << (one - 15);
            call_of_desc(&c, &o, one & 1);
            answer_is_kept(backend, context, &o, &c, done);
        }
    for (uint64_t i = 0; i < test_size(100000); i++) {
        fs_call_desc o = desc_of_number(random_below(&r, DESCS));
        o.rules = (uint32_t)random_below(&r, 64), o.results = (uint32_t)random_below(&r, 1024);
        o.flags = (uint32_t)random_below(&r, 256);
        if (random_below(&r, 4) == 0) o.inputs = (uint32_t)random_below(&r, 4);
        if (random_below(&r, 2)) o.group_size = 128;
        call_of_desc(&c, &o, (int)random_below(&r, 2));
        answer_is_kept(backend, context, &o, &c, done);
    }
    fs_context_destroy(context);
}

#endif
