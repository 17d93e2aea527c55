#include "calls.h"

#include "support.h"

static int64_t below(rng *r, int64_t n) {
    return (int64_t)(random_next(r) % (uint64_t)n);
}

static int one_in(rng *r, int64_t n) {
    return below(r, n) == 0;
}

static float unit(rng *r) {
    return (float)(random_next(r) >> 40) * 0x1p-24f;
}

static struct {
    float w[MOST_V * MOST_D], h[MOST_B * MOST_D], logits[MOST_B * MOST_V], bias[MOST_V];
    float temperature[MOST_B], top_p[MOST_B], min_p[MOST_B], repetition[MOST_B];
    int32_t top_k[MOST_B], slot[MOST_B], counts[MOST_B * MOST_V], given[MOST_B * MOST_N];
    int64_t wide_slot[MOST_B];
    uint64_t seed[MOST_B], position[MOST_B];
    uint32_t allow[MOST_B * (MOST_V / 32 + 1)];
    int64_t edit_offset[MOST_B + 1], watch_offset[MOST_B + 1];
    int32_t edit_count[MOST_B], edit_token[MOST_B * 4], watch_token[MOST_B * 2];
    float edit_bias[MOST_B * 4];
} data;

/* ------------------------------------------------------------------------------------------------------ the head
 * ---- */

static void random_head(rng *r, call *c) {
    fs_head *h = &c->head;
    *h = fs_head_default();
    h->rows = 1 + below(r, one_in(r, 4) ? 60 : MOST_V - 1);
    h->dim = 1 + below(r, MOST_D);
    if (one_in(r, 3)) h->vocab = 1 + below(r, h->rows); /* the rest is padding */
    for (int64_t i = 0; i < h->rows * h->dim; i++) data.w[i] = (float)(below(r, 257) - 128) / 64;
    /* Hot ids are low ones, and so all on rank 0; or the logits are flat and cuts are wide. */
    const float slope = one_in(r, 2) ? 1.0f : 0.0f;
    for (int64_t v = 0; v < h->rows; v++) data.bias[v] = -slope * logf(1.0f + (float)v);
    h->data = data.w;
    h->bias = data.bias;
    if (one_in(r, 4)) h->softcap = 4.0f;
    if (one_in(r, 6)) h->round_to = FS_BF16; /* ties */
    if (!one_in(r, 3)) return;
    h->kind = FS_HEAD_LOGITS;
    h->data = data.logits;
    h->bias = NULL;
    for (int64_t i = 0; i < MOST_B * h->rows; i++)
        data.logits[i] = data.bias[i % h->rows] + 4.0f * unit(r) + (one_in(r, 5) ? 2.0f * unit(r) : 0.0f);
    for (int i = 0; i < 3 && one_in(r, 4); i++) data.logits[below(r, MOST_B * h->rows)] = one_in(r, 2) ? NAN : INFINITY;
}

/* Shards of any size, some of them empty; at multiples of 16, as log Z wants it. */
static void random_cuts(rng *r, call *c, int ranks) {
    c->cut[0] = 0;
    for (int i = 1; i < ranks; i++) {
        const int64_t even = c->head.rows * i / ranks, any = below(r, c->head.rows + 1);
        c->cut[i] = (one_in(r, 2) ? even : any) / 16 * 16;
        if (c->cut[i] < c->cut[i - 1]) c->cut[i] = c->cut[i - 1];
    }
    c->cut[ranks] = c->head.rows;
}

/* ----------------------------------------------------------------------------------------------------- the batch
 * ---- */

static void random_rules(rng *r, fs_batch *b) {
    static const float temperatures[] = {1.0f, 0.7f, 0.0f, 2.0f, 0.3f, -1.0f};
    for (int i = 0; i < MOST_B; i++) {
        data.temperature[i] = temperatures[below(r, one_in(r, 20) ? 6 : 5)];
        data.top_k[i] = one_in(r, 3) ? 1 + (int32_t)below(r, one_in(r, 3) ? 2000 : 60) : 0;
        data.top_p[i] = one_in(r, 3) ? unit(r) : 1.0f;
        data.min_p[i] = one_in(r, 4) ? 0.2f * unit(r) : 0.0f;
        data.repetition[i] = 1.0f + unit(r);
        data.seed[i] = random_next(r);
        data.position[i] = random_next(r) >> below(r, 60);
        data.slot[i] = (int32_t)below(r, MOST_B + 1) - one_in(r, 6);
        data.wide_slot[i] = one_in(r, 30) ? (int64_t)1 << 32 : data.slot[i];
    }
    rules_of(b)->temperature.per_slot = data.temperature;
    if (one_in(r, 2)) b->position = data.position;
    if (one_in(r, 2)) b->seed = data.seed;
    if (one_in(r, 2)) b->slot = data.slot;
    if (one_in(r, 3)) b->slot = data.wide_slot, b->slot_dtype = FS_I64;
    b->slots = MOST_B;
    b->seed_all = random_next(r);
    b->position_all = random_next(r);
    const int grouped = b->mode == FS_MODE_GROUP_PARALLEL, cuts = !grouped && !one_in(r, 3);
    if (cuts && one_in(r, 2)) rules_of(b)->top_k.per_slot = data.top_k;
    if (cuts && one_in(r, 2)) rules_of(b)->top_p.per_slot = data.top_p;
    if (cuts && one_in(r, 2)) rules_of(b)->min_p.per_slot = data.min_p;
    static const uint32_t flags[] = {FS_KEEP_TIES_TOP_K,        FS_KEEP_TIES_TOP_P, FS_JOINT_TOP_P, FS_MIN_P_LAST,
                                     FS_CUT_BEFORE_TEMPERATURE, FS_EDITS_LAST,      FS_RANK_OF_TIES};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (one_in(r, 3)) b->flags |= flags[i];
    if (one_in(r, 6)) limits_of(b)->absent = 1u << below(r, 6), limits_of(b)->top_k = (int32_t)below(r, 40);
    if (!grouped && one_in(r, 8)) b->flags |= FS_EXACT_RANK; /* a merge alone cannot promise it */
    if (one_in(r, 6)) b->list_capacity = 1 + (int32_t)below(r, 40);
}

static void random_edits(rng *r, fs_batch *b, int64_t vocab) {
    int64_t edits = 0, watched = 0;
    for (int i = 0; i < MOST_B; i++) {
        data.edit_offset[i] = edits;
        data.edit_count[i] = (int32_t)below(r, 5) - one_in(r, 40);
        data.watch_offset[i] = watched;
        for (int64_t k = below(r, 5); k > 0; k--, edits++) {
            data.edit_token[edits] = (int32_t)below(r, vocab + one_in(r, 60));
            data.edit_bias[edits] = one_in(r, 4) ? -INFINITY : 4.0f * unit(r) - 2.0f;
        }
        for (int64_t k = below(r, 3); k > 0; k--)
            data.watch_token[watched++] = (int32_t)below(r, vocab + one_in(r, 60));
    }
    data.edit_offset[MOST_B] = edits;
    data.watch_offset[MOST_B] = watched;
    if (one_in(r, 2)) {
        b->edit_token = data.edit_token;
        b->edit_bias = data.edit_bias;
        if (one_in(r, 2)) b->edit_offset = data.edit_offset;
        else b->edit_count = data.edit_count, b->edit_stride = 4 * sizeof *data.edit_token;
    }
    if (one_in(r, 3)) {
        b->watch_offset = data.watch_offset;
        b->watch_token = data.watch_token;
    }
}

static void random_masks(rng *r, fs_batch *b, int64_t vocab) {
    const int64_t words = (vocab + 31) / 32;
    for (int64_t i = 0; i < MOST_B * words; i++) {
        const uint64_t sparse = random_next(r) & random_next(r),
                       whole_shards = i % words < words / 2 ? 0 : ~(uint64_t)0;
        data.allow[i] = (uint32_t)(one_in(r, 2) ? sparse : whole_shards); /* some shards have no mass at all */
    }
    if (one_in(r, 4)) b->allow = data.allow;
    for (int64_t i = 0; i < MOST_B * vocab; i++) data.counts[i] = one_in(r, 9) ? 1 + (int32_t)below(r, 3) : 0;
    if (one_in(r, 4)) {
        b->counts = data.counts;
        rules_of(b)->repetition.per_slot = data.repetition;
        rules_of(b)->frequency.value = 0.2f;
        rules_of(b)->presence.value = 0.1f;
    }
}

static void random_batch(rng *r, call *c) {
    static const int32_t modes[] = {FS_MODE_SAMPLE, FS_MODE_SAMPLE,        FS_MODE_SAMPLE, FS_MODE_WITHOUT_REPLACEMENT,
                                    FS_MODE_SCORE,  FS_MODE_GROUP_PARALLEL};
    fs_batch *b = &c->batch;
    const int64_t vocab = c->head.vocab ? c->head.vocab : c->head.rows;
    *b = fs_batch_default();
    b->rows = below(r, MOST_B + 1);
    b->mode = modes[below(r, 6)];
    b->samples = b->mode == FS_MODE_GROUP_PARALLEL || one_in(r, 2) ? 1 : 1 + (int32_t)below(r, MOST_N);
    b->group_size = 1;
    b->hidden = data.h;
    if (one_in(r, 8)) b->noise = FS_NOISE_FAST;
    for (int i = 0; i < MOST_B * MOST_D; i++) data.h[i] = (float)(below(r, 65) - 32) / 16;
    for (int i = 0; i < MOST_B * MOST_N; i++) data.given[i] = (int32_t)below(r, vocab + one_in(r, 10));
    b->score_token = data.given;
    random_rules(r, b);
    random_edits(r, b, vocab);
    random_masks(r, b, vocab);
}

call random_call(uint64_t index, int ranks) {
    static call c;
    rng r = {index * 0xD1B54A32D192ED03u + 1};
    memset(&c, 0, sizeof c);
    random_head(&r, &c);
    random_batch(&r, &c);
    /* A third wants tokens alone, which takes another way over the wire. */
    c.wants = one_in(&r, 3) ? 0 : (int)below(&r, 128);
    c.logits = (int)below(&r, 3);
    rng cuts = {index * 2 + 0x51ED2701u * (uint64_t)ranks};
    random_cuts(&cuts, &c, ranks);
    return c;
}

fs_head call_shard(const call *c, int rank) {
    fs_head h = c->head;
    const int64_t begin = c->cut[rank];
    h.vocab = c->head.vocab ? c->head.vocab : c->head.rows;
    h.first_token = begin;
    h.rows = c->cut[rank + 1] - begin;
    if (h.bias) h.bias += begin;
    if (h.kind == FS_HEAD_LOGITS) {
        h.stride = c->head.rows * (int64_t)sizeof(float);
        h.data = (const float *)h.data + begin;
    } else h.data = (const float *)h.data + begin * h.dim;
    return h;
}

/* -------------------------------------------------------------------------------------------------- the results
 * ---- */

void answer_clear(answer *a) {
    memset(a, 0x5A, sizeof *a);
}

int64_t answer_forget_rounds(answer *a, int64_t rows) {
    int64_t count = 0;
    for (int64_t b = 0; b < rows; b++) {
        count += (a->status[b] & (FS_ROW_FALLBACK | FS_ROW_INCOMPLETE)) != 0;
        a->status[b] &= ~(uint32_t)FS_ROW_FALLBACK;
    }
    return count;
}

fs_result call_result(const call *c, answer *a) {
    fs_result r = fs_result_default();
    r.tokens = a->token;
    r.status = a->status;
    r.logits_mode = c->logits;
    if (c->wants & 1) r.log_z = a->log_z;
    if (c->wants & 2) r.logprob = a->logprob, r.logit = a->logit;
    if (c->wants & 4) r.rank = a->rank;
    if (c->wants & 8) r.max_logit = a->max_logit;
    if (c->wants & 16) {
        r.top_count = MOST_TOP;
        r.top_token = a->top_token;
        r.top_logit = a->top_logit;
        r.top_logprob = a->top_logprob;
    }
    if (c->wants & 32 && c->batch.watch_offset) r.watch_logit = a->watch_logit, r.watch_logprob = a->watch_logprob;
    if (c->wants & 64 || c->wants == 0) r.noisy_logit = a->score;
    return r;
}
