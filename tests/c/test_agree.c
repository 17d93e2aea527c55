/* The CPU backend against the reference on random calls: every rule, mode, kind of logits and shape, drawn at random. Logits are
 * exact in float on both sides (stored, or products of small integers), so tokens must be equal, not close. */
#include "support.h"

#include "core/ask.h"

/* One random call and everything it points to. */
typedef struct call {
    fs_head head;
    fs_batch batch;
    fs_result result; /* which outputs are wanted; pointers are set per run */
    int64_t vocab, rows, slots;
    void *data, *hidden;
    float *bias;
    void *slot;
    uint64_t *position, *seed;
    float *temperature, *top_p, *min_p, *repetition, *frequency, *presence;
    int32_t *top_k;
    uint32_t *stream, *allow, *seen;
    int32_t *allow_index, *counts;
    int64_t *edit_offset, *count_offset, *watch_offset;
    int32_t *edit_token, *count_token, *count_value, *watch_token, *given;
    int32_t *edit_count;
    float *edit_bias;
} call;

/* Everything a call writes, prefilled with sentinels. */
typedef struct outputs {
    fs_result result;
    int64_t tokens[64 * 8];
    uint32_t status[64];
    float score[64 * 8], logit[64 * 8], logprob[64 * 8], max_logit[64], log_z[64];
    int32_t rank[64 * 8], top_token[64 * 40];
    float top_logit[64 * 40], top_logprob[64 * 40], watch_logit[64 * 4], watch_logprob[64 * 4];
} outputs;

static void *array(size_t count, size_t bytes) {
    void *p = calloc(count ? count : 1, bytes);
    assert_non_null(p);
    return p;
}

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

static void make_head(rng *r, call *c) {
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
        /* Integers of magnitude up to 4 over a power of two: every partial sum is exact, so every order gives the same dot product. */
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
    if (random_below(r, 4) == 0) h->round = (int32_t)random_below(r, 3);
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
static void make_slots(rng *r, call *c) {
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
static void make_edits(rng *r, call *c) {
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
static void spoil(rng *r, call *c, int32_t *token, int64_t entries) {
    const int32_t bad[] = {-1, (int32_t)c->vocab, INT32_MAX, INT32_MIN};
    if (token && entries && random_below(r, 10) == 0)
        token[entries - 1 - (int64_t)random_below(r, entries < 4 ? (uint64_t)entries : 4)] = bad[random_below(r, 4)];
}

/* Promises, of which some are broken. Those of how much there is are checked with the arguments, so they hold. */
static void make_limits(rng *r, call *c) {
    fs_batch *b = &c->batch;
    if (random_below(r, 6)) return;
    b->limits.absent = (uint32_t)(random_below(r, 64) & random_below(r, 64));
    b->limits.top_k = random_below(r, 2) ? 0 : 1 + (int32_t)random_below(r, 50);
    b->limits.edits = b->limits.watched = b->limits.counts = (int64_t)1 << 40;
}

static void make_batch(rng *r, call *c) {
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
    b->all.seed = random_next(r);
    b->all.temperature = random_below(r, 5) ? 0.7f : 0.0f;
    c->temperature = array(s, 4), c->top_k = array(s, 4), c->top_p = array(s, 4), c->min_p = array(s, 4);
    c->seed = array(s, 8), c->stream = array(s, 4);
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
        c->stream[i] = (uint32_t)random_below(r, 2);
        c->repetition[i] = random_below(r, 2) ? 1.0f : 1.3f;
        c->frequency[i] = random_below(r, 2) ? 0.0f : 0.25f;
        c->presence[i] = random_below(r, 2) ? 0.0f : -0.5f;
    }
    if (random_below(r, 2)) b->temperature = c->temperature;
    if (random_below(r, 2)) b->seed = c->seed;
    if (random_below(r, 2)) b->stream = c->stream;
    if (!grouped) {
        if (random_below(r, 2)) b->top_k = c->top_k;
        if (random_below(r, 2)) b->top_p = c->top_p;
        if (random_below(r, 3) == 0) b->min_p = c->min_p;
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
            b->masks = c->rows;
            if (random_below(r, 3) == 0) c->allow_index[0] = random_below(r, 2) ? -2 : (int32_t)c->rows;
        }
    }
    if (random_below(r, 3) == 0) make_edits(r, c);
    if (random_below(r, 3) == 0) {
        b->repetition = c->repetition, b->frequency = c->frequency, b->presence = c->presence;
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
    if (b->mode == FS_MODE_SCORE) b->given = c->given;
    spoil(r, c, c->edit_token, b->edit_offset ? c->edit_offset[c->rows] : b->edit_stride / 4 * c->slots);
    spoil(r, c, c->count_token, c->count_offset ? c->count_offset[c->slots] : 0);
    spoil(r, c, c->watch_token, c->watch_offset ? c->watch_offset[c->rows] : 0);
    make_limits(r, c);
}

static void make_call(rng *r, call *c) {
    memset(c, 0, sizeof *c);
    c->batch = fs_batch_default();
    c->result = fs_result_default();
    c->vocab = 1 + (int64_t)random_below(r, random_below(r, 3) ? 300 : 3000);
    c->rows = 1 + (int64_t)random_below(r, 9);
    make_head(r, c);
    make_batch(r, c);
    c->result.logits = (int32_t)random_below(r, 3);
    c->result.tokens_dtype = random_below(r, 2) ? FS_I32 : FS_I64;
    c->result.top_count = (int32_t)random_below(r, 3) ? (int32_t)random_below(r, 40) : 0;
}

static void free_call(call *c) {
    void *all[] = {c->data,        c->hidden,       c->bias,         c->slot,       c->position,    c->seed,
                   c->temperature, c->top_p,        c->min_p,        c->repetition, c->frequency,   c->presence,
                   c->top_k,       c->stream,       c->allow,        c->seen,       c->allow_index, c->counts,
                   c->edit_offset, c->count_offset, c->watch_offset, c->edit_token, c->count_token, c->count_value,
                   c->watch_token, c->given,        c->edit_bias,    c->edit_count};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* `wanted` chooses outputs by bits, the same for both runs. */
static void prepare_outputs(const call *c, uint32_t wanted, outputs *o) {
    memset(o, 0x5A, sizeof *o);
    o->result = c->result;
    o->result.tokens = o->tokens;
    o->result.status = o->status;
    if (wanted & 1) o->result.score = o->score;
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

static int close_enough(float a, float b) {
    if (a != a || b != b) return a != a && b != b;
    if (a == b) return 1;
    return fabsf(a - b) <= 2e-6f + 1e-6f * fabsf(b);
}

static void compare_floats(const char *name, uint64_t seed, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!close_enough(a[i], b[i]))
            fail_msg("call %llu: %s[%zu] is %.9g, reference %.9g", (unsigned long long)seed, name, i, (double)a[i],
                     (double)b[i]);
}

#define COMPARE_INTS(name)                                                                                             \
    for (size_t i = 0; i < sizeof a->name / sizeof a->name[0]; i++)                                                    \
        if (a->name[i] != b->name[i])                                                                                  \
    fail_msg("call %llu: " #name "[%zu] is %lld, reference %lld", (unsigned long long)seed, i, (long long)a->name[i],  \
             (long long)b->name[i])
#define COMPARE_FLOATS(name) compare_floats(#name, seed, a->name, b->name, sizeof a->name / sizeof a->name[0])

/* Bits about how a row was computed: the reference never needs a second pass and always knows ranks. */
#define ONLY_OURS (FS_ROW_FALLBACK | FS_ROW_RANK_BOUND)

/* A rank is the reference's, or a bound of it beyond the depth that is promised; then the row says so, and no exact one was asked for. */
static void compare_ranks(uint64_t seed, const call *c, const outputs *a, const outputs *b) {
    int beyond[64] = {0};
    for (size_t i = 0; i < sizeof a->rank / sizeof a->rank[0]; i++) {
        const size_t row = i / (size_t)c->batch.samples;
        const int deep = row < (size_t)c->rows && a->rank[i] > FS_RANK_DEPTH;
        const int bounded = deep && (a->status[row] & FS_ROW_RANK_BOUND) != 0;
        if (deep) beyond[row]++;
        if (bounded ? a->rank[i] > b->rank[i] : a->rank[i] != b->rank[i])
            fail_msg("call %llu: rank[%zu] is %d, reference %d; token %d, %s", (unsigned long long)seed, i, a->rank[i],
                     b->rank[i], ((const int32_t *)a->tokens)[i],
                     b->result.logits == FS_LOGITS_RAW ? "raw" : "processed");
    }
    for (int64_t row = 0; row < c->rows; row++)
        if (a->status[row] & FS_ROW_RANK_BOUND && (!beyond[row] || c->batch.flags & FS_EXACT_RANK))
            fail_msg("call %llu: row %lld has a bound for a rank", (unsigned long long)seed, (long long)row);
}

static void compare_outputs(uint64_t seed, const call *c, const outputs *a, const outputs *b) {
    for (size_t i = 0; i < 64; i++) {
        uint32_t keep = i < (size_t)c->rows ? ~(uint32_t)ONLY_OURS : ~0u;
        if ((a->status[i] & keep) != (b->status[i] & keep))
            fail_msg("call %llu: status[%zu] is 0x%x, reference 0x%x", (unsigned long long)seed, i, a->status[i],
                     b->status[i]);
    }
    COMPARE_INTS(tokens);
    COMPARE_INTS(top_token);
    COMPARE_FLOATS(score);
    COMPARE_FLOATS(logit);
    COMPARE_FLOATS(logprob);
    COMPARE_FLOATS(max_logit);
    COMPARE_FLOATS(log_z);
    COMPARE_FLOATS(top_logit);
    COMPARE_FLOATS(top_logprob);
    COMPARE_FLOATS(watch_logit);
    COMPARE_FLOATS(watch_logprob);
    compare_ranks(seed, c, a, b);
}

static void sample(fs_context *context, const call *c, outputs *o) {
    if (fs_sample(context, &c->head, &c->batch, &o->result) != FS_OK) fail_msg("%s", fs_error_text(context));
}

static void cpu_draws_what_the_reference_draws(void **state) {
    (void)state;
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    fs_context *cpu[3] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 3, 128),
                          open_context(FS_BACKEND_CPU, 2, 512)};
    static outputs expected, got;
    const uint64_t calls = test_size(1500);
    int64_t fallbacks = 0;
    for (uint64_t seed = 0; seed < calls; seed++) {
        rng r = random_from(seed);
        call c;
        make_call(&r, &c);
        uint32_t wanted = (uint32_t)random_next(&r);
        prepare_outputs(&c, wanted, &expected);
        prepare_outputs(&c, wanted, &got);
        sample(reference, &c, &expected);
        sample(cpu[seed % 3], &c, &got);
        fallbacks += got.result.fallback_rows;
        compare_outputs(seed, &c, &got, &expected);
        free_call(&c);
    }
    /* The second pass must have been exercised, or this test does not see it. */
    assert_true(fallbacks > 0);
    fs_context_destroy(reference);
    for (int i = 0; i < 3; i++) fs_context_destroy(cpu[i]);
}

/* The same calls cut into shards, with boundaries anywhere: tokens are equal, masses agree. */
static void shards_draw_what_the_whole_draws(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    static outputs whole, merged;
    const uint64_t calls = test_size(1500);
    for (uint64_t seed = 0; seed < calls; seed++) {
        rng r = random_from(seed);
        call c;
        make_call(&r, &c);
        uint32_t wanted = (uint32_t)random_next(&r);
        if (c.batch.mode == FS_MODE_GROUP_ONLINE || c.batch.mode == FS_MODE_GROUP_PARALLEL) {
            free_call(&c);
            continue;
        }
        c.batch.list_capacity = (int32_t)c.vocab; /* every cut is proven */
        prepare_outputs(&c, wanted, &whole);
        prepare_outputs(&c, wanted, &merged);
        sample(context, &c, &whole);
        int32_t shards = 1 + (int32_t)random_below(&r, 5);
        void *part[5];
        int64_t first = 0;
        const int64_t bytes_per = bytes_of(c.head.dtype);
        const int64_t vocab = c.vocab;
        for (int32_t i = 0; i < shards; i++) {
            int64_t last = i + 1 == shards ? c.head.rows
                                           : first + (int64_t)random_below(&r, (uint64_t)(c.head.rows - first) + 1);
            fs_head head = c.head;
            head.first_token = first;
            head.rows = last - first;
            head.vocab = vocab;
            head.data = (const char *)c.data +
                        (head.kind == FS_HEAD_WEIGHTS ? first * c.head.stride : first * bytes_per);
            if (head.bias) head.bias += first;
            size_t bytes;
            if (fs_partial_size(context, &head, &c.batch, &merged.result, &bytes) != FS_OK)
                fail_msg("%s", fs_error_text(context));
            part[i] = array(bytes, 1);
            if (fs_partial(context, &head, &c.batch, &merged.result, part[i], bytes) != FS_OK)
                fail_msg("%s", fs_error_text(context));
            first = last;
        }
        fs_head head = c.head;
        head.vocab = vocab;
        if (fs_merge(context, &head, &c.batch, (const void *const *)part, shards, &merged.result) != FS_OK)
            fail_msg("call %llu: %s", (unsigned long long)seed, fs_error_text(context));
        compare_outputs(seed, &c, &merged, &whole);
        for (int32_t i = 0; i < shards; i++) free(part[i]);
        free_call(&c);
    }
    fs_context_destroy(context);
}

/* A row with +inf is no law: the lowest of its ids wins, whatever the groups are. */
static int32_t sample_groups(fs_context *context, fs_head *head, int32_t mode, int64_t group_size, uint64_t seed) {
    int32_t token = -2;
    uint32_t status = 0;
    fs_batch batch = fs_batch_default();
    batch.rows = 1, batch.mode = mode, batch.group_size = group_size, batch.all.seed = seed;
    fs_result result = fs_result_default();
    result.tokens = &token, result.status = &status;
    if (fs_sample(context, head, &batch, &result) != FS_OK) fail_msg("%s", fs_error_text(context));
    assert_int_equal(status, FS_ROW_INF);
    return token;
}

/* Each part is a group (B.4), in rank order. */
static int32_t merge_parts(fs_context *context, float *logits, int64_t vocab, int64_t split, uint64_t seed) {
    int32_t token = -2;
    uint32_t status = 0;
    fs_head head[2] = {fs_head_default(), fs_head_default()};
    void *part[2];
    fs_batch batch = fs_batch_default();
    batch.rows = 1, batch.mode = FS_MODE_GROUP_PARALLEL, batch.group_size = vocab, batch.all.seed = seed;
    fs_result result = fs_result_default();
    result.tokens = &token, result.status = &status;
    for (int i = 0; i < 2; i++) {
        size_t bytes = 0;
        head[i].kind = FS_HEAD_LOGITS, head[i].vocab = vocab;
        head[i].first_token = i ? split : 0, head[i].rows = i ? vocab - split : split;
        head[i].data = logits + head[i].first_token, head[i].stride = vocab * 4;
        if (fs_partial_size(context, &head[i], &batch, &result, &bytes) != FS_OK)
            fail_msg("%s", fs_error_text(context));
        part[i] = array(bytes, 1);
        if (fs_partial(context, &head[i], &batch, &result, part[i], bytes) != FS_OK)
            fail_msg("%s", fs_error_text(context));
    }
    if (fs_merge(context, &head[0], &batch, (const void *const *)part, 2, &result) != FS_OK)
        fail_msg("%s", fs_error_text(context));
    free(part[0]), free(part[1]);
    assert_int_equal(status, FS_ROW_INF);
    return token;
}

static void groups_with_infinities_give_the_lowest_of_them(void **state) {
    (void)state;
    enum { V = 900 };
    fs_context *reference = open_context(FS_BACKEND_REFERENCE, 1, 0);
    fs_context *cpu[2] = {open_context(FS_BACKEND_CPU, 1, 0), open_context(FS_BACKEND_CPU, 3, 128)};
    static float logits[V];
    const int32_t modes[] = {FS_MODE_GROUP_PARALLEL, FS_MODE_GROUP_ONLINE};
    rng r = random_from(17);
    for (int round = 0; round < 300; round++) {
        int64_t size = 1 + (int64_t)random_below(&r, V / 2), first = (int64_t)random_below(&r, (uint64_t)(V - size));
        /* The second is beyond the first one's group. */
        int64_t beyond = (first / size + 1) * size, second = beyond + (int64_t)random_below(&r, (uint64_t)(V - beyond));
        uint64_t seed = random_next(&r);
        for (int i = 0; i < V; i++) logits[i] = (float)random_normal(&r) * 3.0f;
        logits[first] = logits[second] = INFINITY;
        fs_head head = fs_head_default();
        head.kind = FS_HEAD_LOGITS, head.data = logits, head.rows = V;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(sample_groups(reference, &head, modes[i], size, seed), first);
            for (int k = 0; k < 2; k++) assert_int_equal(sample_groups(cpu[k], &head, modes[i], size, seed), first);
        }
        for (int k = 0; k < 2; k++) assert_int_equal(merge_parts(cpu[k], logits, V, beyond, seed), first);
    }
    fs_context_destroy(reference), fs_context_destroy(cpu[0]), fs_context_destroy(cpu[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_draws_what_the_reference_draws),
        cmocka_unit_test(shards_draw_what_the_whole_draws),
        cmocka_unit_test(groups_with_infinities_give_the_lowest_of_them),
    };
    return cmocka_run_group_tests_name("agree", tests, NULL, NULL);
}
