#include "random_call.h"

/* Logits of one row: language-like, Gaussian, tied, or flat. */
static void fill_logits(rng *r, float *x, int64_t n) {
    int shape = (int)(random_below(r, 5)), infinite = random_below(r, 20) == 0;
    for (int64_t i = 0; i < n; i++) {
        double g = random_normal(r);
        if (shape == 0) x[i] = (float)(3.0 * g);
        if (shape == 1) x[i] = (float)(-1.1 * log((double)(i + 2)) + 0.5 * g + 8.0);
        if (shape == 2) x[i] = (float)((int)(4.0 * g)) * 0.5f;
        if (shape == 3) x[i] = 1.25f;
        if (shape == 4) x[i] = (float)(0.3 * g + (i == n / 2 ? 12.0 : 0.0));
        if (random_below(r, 400) == 0) x[i] = -INFINITY;
        if (infinite && random_below(r, 40) == 0) x[i] = INFINITY;
    }
}

static void put_dtype(int32_t dtype, void *data, int64_t i, float x) {
    put_number(dtype, (char *)data + i * bytes_of(dtype), x);
}

static void make_head(rng *r, random_call *c) {
    fs_head *h = &c->head;
    *h = fs_head_default();
    h->dtype = (int32_t)random_below(r, 3);
    h->rows = c->vocab + (random_below(r, 4) == 0 ? (int64_t)random_below(r, 40) : 0);
    if (h->rows > c->vocab) h->vocab = c->vocab;
    const int64_t bytes = bytes_of(h->dtype);
    if (random_below(r, 2)) {
        h->kind = FS_HEAD_LOGITS;
        int64_t columns = h->rows + (int64_t)random_below(r, 3) * 8;
        h->stride = columns * bytes;
        c->data = array((size_t)(c->rows * columns), 4);
        float *x = array((size_t)h->rows, 4);
        for (int64_t b = 0; b < c->rows; b++) {
            fill_logits(r, x, h->rows);
            for (int64_t v = 0; v < h->rows; v++) put_dtype(h->dtype, c->data, b * columns + v, x[v]);
        }
        free(x);
        c->hidden = array(1, 4);
    } else {
        /* Integers of magnitude up to 4 over a power of two: every partial sum is exact, so every order gives the same
         * dot product. */
        h->dim = 1 + (int64_t)random_below(r, 70);
        int64_t columns = h->dim + (int64_t)random_below(r, 3) * 8;
        h->stride = columns * bytes;
        c->data = array((size_t)(h->rows * columns), 4);
        for (int64_t i = 0; i < h->rows * columns; i++)
            put_dtype(h->dtype, c->data, i, (float)((int)random_below(r, 9) - 4) * 0.25f);
        c->batch.hidden_dtype = (int32_t)random_below(r, 3);
        const int64_t hidden_bytes = bytes_of(c->batch.hidden_dtype);
        int64_t hidden_columns = h->dim + (int64_t)random_below(r, 3);
        c->batch.hidden_stride = hidden_columns * hidden_bytes;
        c->hidden = array((size_t)(c->rows * hidden_columns), 4);
        for (int64_t i = 0; i < c->rows * hidden_columns; i++)
            put_dtype(c->batch.hidden_dtype, c->hidden, i, (float)((int)random_below(r, 9) - 4) * 0.5f);
    }
    h->data = c->data;
    if (random_below(r, 3) == 0) {
        c->bias = array((size_t)h->rows, 4);
        for (int64_t i = 0; i < h->rows; i++) c->bias[i] = (float)((int)random_below(r, 17) - 8) * 0.125f;
        h->bias = c->bias;
    }
    if (random_below(r, 4) == 0) h->round_to = (int32_t)random_below(r, 3);
    if (random_below(r, 4) == 0) h->scale = 0.5f;
    if (random_below(r, 5) == 0) h->softcap = 15.0f;
    if (random_below(r, 5) == 0) h->post_scale = 1.5f;
}

static int64_t *offsets(rng *r, int64_t rows, uint64_t most) {
    int64_t *offset = array((size_t)rows + 1, 8);
    offset[0] = (int64_t)random_below(r, 2);
    for (int64_t b = 0; b < rows; b++) offset[b + 1] = offset[b] + (int64_t)random_below(r, most + 1);
    return offset;
}

static int32_t *some_tokens(rng *r, int64_t n, int64_t vocab) {
    int32_t *token = array((size_t)n, 4);
    for (int64_t i = 0; i < n; i++) token[i] = (int32_t)random_below(r, (uint64_t)vocab);
    return token;
}

/* Of either dtype; -1 and a bad one among them. */
static void make_slots(rng *r, random_call *c) {
    const int wide = random_below(r, 2) == 0, bad = random_below(r, 5) == 0;
    const int64_t far[] = {1000, -2, ((int64_t)1 << 32) - 1, (int64_t)1 << 32, -((int64_t)1 << 40)};
    c->slot = array((size_t)c->rows, 8);
    for (int64_t i = 0; i < c->rows; i++) {
        int64_t slot = (int64_t)random_below(r, (uint64_t)c->slots + 1) - 1;
        if (i == 0 && bad) slot = far[random_below(r, wide ? 5 : 2)];
        if (wide) ((int64_t *)c->slot)[i] = slot;
        else ((int32_t *)c->slot)[i] = (int32_t)slot;
    }
    c->batch.slot = c->slot;
    c->batch.slot_dtype = wide ? FS_I64 : FS_I32;
}

static float *some_biases(rng *r, int64_t n) {
    float *bias = array((size_t)n, 4);
    for (int64_t i = 0; i < n; i++)
        bias[i] = random_below(r, 4) ? (float)((int)random_below(r, 65) - 32) * 0.25f : -INFINITY;
    return bias;
}

/* By row, or by slot in lines of equal length, of which some are said to be longer than they are. */
static void make_edits(rng *r, random_call *c) {
    fs_batch *b = &c->batch;
    const uint64_t most = random_below(r, 8) ? 12 : 300;
    int64_t entries;
    if (random_below(r, 2)) {
        b->edit_offset = c->edit_offset = offsets(r, c->rows, most);
        entries = c->edit_offset[c->rows];
    } else {
        const int64_t line = 1 + (int64_t)random_below(r, most);
        const int32_t bad[] = {-1, (int32_t)line + 1, INT32_MAX, INT32_MIN};
        c->edit_count = array((size_t)c->slots, 4);
        for (int64_t s = 0; s < c->slots; s++) c->edit_count[s] = (int32_t)random_below(r, (uint64_t)line + 1);
        if (random_below(r, 5) == 0) c->edit_count[random_below(r, (uint64_t)c->slots)] = bad[random_below(r, 4)];
        b->edit_count = c->edit_count;
        b->edit_stride = line * 4;
        entries = line * c->slots;
    }
    b->edit_token = c->edit_token = some_tokens(r, entries, c->vocab);
    b->edit_bias = c->edit_bias = some_biases(r, entries);
}

/* One of the last entries of a list, if it has any, is no token. */
static void spoil(rng *r, random_call *c, int32_t *token, int64_t entries) {
    const int32_t bad[] = {-1, (int32_t)c->vocab, INT32_MAX, INT32_MIN};
    if (token && entries && random_below(r, 10) == 0)
        token[entries - 1 - (int64_t)random_below(r, entries < 4 ? (uint64_t)entries : 4)] = bad[random_below(r, 4)];
}

/* Promises, of which some are broken. Those of how much there is are checked with the arguments, so they hold. */
static void make_limits(rng *r, random_call *c) {
    fs_batch *b = &c->batch;
    if (random_below(r, 6)) return;
    limits_of(b)->absent = (uint32_t)(random_below(r, 64) & random_below(r, 64));
    limits_of(b)->top_k = random_below(r, 2) ? 0 : 1 + (int32_t)random_below(r, 50);
    limits_of(b)->edits = limits_of(b)->watched = limits_of(b)->counts = (int64_t)1 << 40;
}

static void make_batch(rng *r, random_call *c) {
    fs_batch *b = &c->batch;
    const int64_t words = (c->vocab + 31) / 32;
    b->rows = c->rows;
    b->hidden = c->hidden;
    b->fallback_token = -1 - (int32_t)random_below(r, 3);
    b->samples = random_below(r, 3) ? 1 : 1 + (int32_t)random_below(r, 8);
    b->mode = (int32_t)random_below(r, 5);
    const int grouped = b->mode == FS_MODE_GROUP_PARALLEL || b->mode == FS_MODE_GROUP_ONLINE;
    if (grouped) b->samples = 1, b->group_size = 1 + (int64_t)random_below(r, (uint64_t)c->vocab);
    if (random_below(r, 6) == 0) b->noise = FS_NOISE_FAST;
    b->flags = (uint32_t)(random_below(r, 256) & (random_below(r, 3) ? random_below(r, 256) : 0x47));
    c->slots = c->rows + 3;
    if (random_below(r, 2)) make_slots(r, c);
    b->slots = c->slots;
    b->position_all = random_next(r);
    if (random_below(r, 2)) {
        c->position = array((size_t)c->rows, 8);
        for (int64_t i = 0; i < c->rows; i++) c->position[i] = random_below(r, 100);
        b->position = c->position;
    }
    const size_t s = (size_t)c->slots;
    b->seed_all = random_next(r);
    rules_of(b)->temperature.value = random_below(r, 5) ? 0.7f : 0.0f;
    c->temperature = array(s, 4), c->top_k = array(s, 4), c->top_p = array(s, 4), c->min_p = array(s, 4);
    c->seed = array(s, 8), c->substream = array(s, 4);
    c->repetition = array(s, 4), c->frequency = array(s, 4), c->presence = array(s, 4);
    for (size_t i = 0; i < s; i++) {
        const float t[] = {0.0f, 0.001f, 0.5f, 1.0f, 1.7f, 100.0f, -1.0f, NAN};
        /* No ratio of small integers: a flat row must not meet a tie of masses, which rounding decides. */
        const float p[] = {0.0f, 0.0713f, 0.4719f, 0.9137f, 0.9871f, 1.0f, 2.0f, -0.5f};
        const float m[] = {0.0f, 0.01f, 0.1f, 0.5f, 1.0f, 0.0f, 0.0f, 1.5f};
        c->temperature[i] = t[random_below(r, random_below(r, 8) ? 6 : 8)];
        c->top_k[i] =
            random_below(r, 2) ? 0 : (int32_t)random_below(r, (uint64_t)c->vocab + 3) / (random_below(r, 2) ? 1 : 20);
        c->top_p[i] = p[random_below(r, random_below(r, 8) ? 7 : 8)];
        c->min_p[i] = m[random_below(r, random_below(r, 8) ? 7 : 8)];
        c->seed[i] = random_below(r, 4);
        c->substream[i] = (uint32_t)random_below(r, 2);
        c->repetition[i] = random_below(r, 2) ? 1.0f : 1.3f;
        c->frequency[i] = random_below(r, 2) ? 0.0f : 0.25f;
        c->presence[i] = random_below(r, 2) ? 0.0f : -0.5f;
    }
    if (random_below(r, 2)) rules_of(b)->temperature.per_slot = c->temperature;
    if (random_below(r, 2)) b->seed = c->seed;
    if (random_below(r, 2)) b->substream = c->substream;
    if (!grouped) {
        if (random_below(r, 2)) rules_of(b)->top_k.per_slot = c->top_k;
        if (random_below(r, 2)) rules_of(b)->top_p.per_slot = c->top_p;
        if (random_below(r, 3) == 0) rules_of(b)->min_p.per_slot = c->min_p;
        if (random_below(r, 4) == 0) b->list_capacity = 1 + (int32_t)random_below(r, 50);
    }
    if (random_below(r, 3) == 0) {
        c->allow = array((size_t)(c->rows * words), 4);
        for (int64_t i = 0; i < c->rows * words; i++) c->allow[i] = (uint32_t)random_next(r);
        if (random_below(r, 3) == 0) memset(c->allow, 0, (size_t)words * 4);
        b->allow = c->allow;
        if (random_below(r, 2)) {
            c->allow_index = array((size_t)c->rows, 4);
            for (int64_t i = 0; i < c->rows; i++)
                c->allow_index[i] = (int32_t)random_below(r, (uint64_t)c->rows + 1) - 1;
            b->allow_index = c->allow_index;
            b->allow_count = c->rows;
            if (random_below(r, 3) == 0) c->allow_index[0] = random_below(r, 2) ? -2 : (int32_t)c->rows;
        }
    }
    if (random_below(r, 3) == 0) make_edits(r, c);
    if (random_below(r, 3) == 0) {
        rules_of(b)->repetition.per_slot = c->repetition, rules_of(b)->frequency.per_slot = c->frequency,
        rules_of(b)->presence.per_slot = c->presence;
        if (random_below(r, 2)) {
            c->seen = array(s * (size_t)words, 4);
            for (size_t i = 0; i < s * (size_t)words; i++) c->seen[i] = (uint32_t)(random_next(r) & random_next(r));
            b->seen = c->seen;
        }
        if (random_below(r, 2)) {
            c->counts = array(s * (size_t)c->vocab, 4);
            for (size_t i = 0; i < s * (size_t)c->vocab; i++)
                c->counts[i] = random_below(r, 5) ? 0 : (int32_t)random_below(r, 4);
            b->counts = c->counts;
        } else if (random_below(r, 2)) {
            c->count_offset = offsets(r, c->slots, 10);
            c->count_token = some_tokens(r, c->count_offset[c->slots], c->vocab);
            c->count_value = array((size_t)c->count_offset[c->slots], 4);
            for (int64_t i = 0; i < c->count_offset[c->slots]; i++) c->count_value[i] = (int32_t)random_below(r, 4);
            b->count_offset = c->count_offset, b->count_token = c->count_token, b->count_value = c->count_value;
        }
    }
    if (random_below(r, 3) == 0) {
        c->watch_offset = offsets(r, c->rows, 3);
        c->watch_token = some_tokens(r, c->watch_offset[c->rows], c->vocab);
        b->watch_offset = c->watch_offset, b->watch_token = c->watch_token;
    }
    c->given = some_tokens(r, c->rows * b->samples, c->vocab);
    if (random_below(r, 6) == 0) c->given[0] = (int32_t)c->vocab;
    if (b->mode == FS_MODE_SCORE) b->score_token = c->given;
    spoil(r, c, c->edit_token, b->edit_offset ? c->edit_offset[c->rows] : b->edit_stride / 4 * c->slots);
    spoil(r, c, c->count_token, c->count_offset ? c->count_offset[c->slots] : 0);
    spoil(r, c, c->watch_token, c->watch_offset ? c->watch_offset[c->rows] : 0);
    make_limits(r, c);
}

void make_extras(rng *r, random_call *c) {
    fs_batch *b = &c->batch;
    free(c->extra_offset), free(c->extra_token);
    b->extra_offset = c->extra_offset = offsets(r, c->rows, 6);
    const int64_t entries = c->extra_offset[c->rows], few = c->vocab < 4 ? c->vocab : 4;
    b->extra_token = c->extra_token = some_tokens(r, entries, c->vocab);
    for (int64_t i = 0; i < entries; i++) /* some again and again */
        if (random_below(r, 2)) c->extra_token[i] = (int32_t)random_below(r, (uint64_t)few);
    rules_of(b)->repetition.per_slot = c->repetition, rules_of(b)->frequency.per_slot = c->frequency;
    rules_of(b)->presence.per_slot = c->presence;
}

void make_call(rng *r, random_call *c) {
    const int64_t vocab = 1 + (int64_t)random_below(r, random_below(r, 3) ? 300 : 3000);
    make_call_of(r, c, 1 + (int64_t)random_below(r, 9), vocab);
}

void make_call_of(rng *r, random_call *c, int64_t rows, int64_t vocab) {
    memset(c, 0, sizeof *c);
    c->batch = fs_batch_default();
    c->result = fs_result_default();
    c->vocab = vocab;
    c->rows = rows;
    make_head(r, c);
    make_batch(r, c);
    if (random_below(r, 4) == 0) {
        make_extras(r, c);
        spoil(r, c, c->extra_token, c->extra_offset[c->rows]);
    }
    if (random_below(r, 8) == 0 && c->head.kind == FS_HEAD_WEIGHTS) c->batch.hidden_stride = FS_STRIDE_BROADCAST;
    c->result.logits_mode = (int32_t)random_below(r, 3);
    c->result.tokens_dtype = random_below(r, 2) ? FS_I32 : FS_I64;
    c->result.top_count = (int32_t)random_below(r, 3) ? (int32_t)random_below(r, 40) : 0;
}

void free_call(random_call *c) {
    void *all[] = {c->data,        c->hidden,       c->bias,         c->slot,       c->position,     c->seed,
                   c->temperature, c->top_p,        c->min_p,        c->repetition, c->frequency,    c->presence,
                   c->top_k,       c->substream,    c->allow,        c->seen,       c->allow_index,  c->counts,
                   c->edit_offset, c->count_offset, c->watch_offset, c->edit_token, c->count_token,  c->count_value,
                   c->watch_token, c->given,        c->edit_bias,    c->edit_count, c->extra_offset, c->extra_token};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* ---------------------------------------------------------------------------------------------------- outputs ---- */

void prepare_outputs(const random_call *c, uint32_t wanted, outputs *o) {
    memset(o, 0x5A, sizeof *o);
    o->result = c->result;
    o->result.tokens = o->tokens;
    o->result.status = o->status;
    if (wanted & 1) o->result.noisy_logit = o->score;
    if (wanted & 2) o->result.logit = o->logit;
    if (wanted & 4) o->result.logprob = o->logprob;
    if (wanted & 8) o->result.rank = o->rank;
    if (wanted & 16) o->result.max_logit = o->max_logit;
    if (wanted & 32) o->result.log_z = o->log_z;
    if (wanted & 64) o->result.top_token = o->top_token;
    if (wanted & 128) o->result.top_logit = o->top_logit;
    if (wanted & 256) o->result.top_logprob = o->top_logprob;
    if (c->batch.watch_offset && wanted & 512)
        o->result.watch_logit = o->watch_logit, o->result.watch_logprob = o->watch_logprob;
}

void expect_same_outputs(uint64_t seed, const outputs *a, const outputs *b) {
    outputs x = *a, y = *b;
    for (size_t i = 0; i < 64; i++)
        x.status[i] &= ~(uint32_t)FS_ROW_FALLBACK, y.status[i] &= ~(uint32_t)FS_ROW_FALLBACK;
    const size_t from = offsetof(outputs, tokens);
    if (memcmp((char *)&x + from, (char *)&y + from, sizeof x - from) == 0) return;
    for (size_t i = from; i < sizeof x; i += 4)
        if (memcmp((char *)&x + i, (char *)&y + i, 4) != 0)
            fail_msg("call %llu: byte %zu of the outputs differs, tokens begin at %zu and status at %zu",
                     (unsigned long long)seed, i, from, offsetof(outputs, status));
}

void sample_in_shards(fs_context *context, const random_call *c, const int64_t *cut, int32_t shards,
                      fs_result *result) {
    void *part[8] = {NULL};
    assert_true(shards <= 8);
    for (int32_t i = 0; i < shards; i++) {
        const int64_t row = c->head.kind == FS_HEAD_WEIGHTS ? c->head.stride : bytes_of(c->head.dtype);
        fs_head head = c->head;
        size_t bytes;
        head.first_token = cut[i], head.rows = cut[i + 1] - cut[i], head.vocab = c->vocab;
        head.data = (const char *)c->data + cut[i] * row;
        if (head.bias) head.bias += cut[i];
        if (fs_partial_size(context, &head, &c->batch, result, &bytes) != FS_OK) fail_msg("%s", fs_error_text(context));
        part[i] = array(bytes, 1);
        if (fs_partial(context, &head, &c->batch, result, part[i], bytes) != FS_OK)
            fail_msg("%s", fs_error_text(context));
    }
    fs_head head = c->head;
    head.vocab = c->vocab;
    if (fs_merge(context, &head, &c->batch, (const void *const *)part, shards, result) != FS_OK)
        fail_msg("%s", fs_error_text(context));
    for (int32_t i = 0; i < shards; i++) free(part[i]);
}
