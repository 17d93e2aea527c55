#include "fuzz_call.h"

/* ----------------------------------------------------------------------------------------------------- scalars ---- */

static int bytes_of(int32_t dtype) {
    return dtype == FS_F16 || dtype == FS_BF16 ? 2 : 4;
}

static int wide(int32_t dtype) {
    return dtype == FS_I64 ? 8 : 4;
}

static void make_head(rng *r, fs_head *h) {
    static const int32_t types[] = {FS_F32, FS_F16, FS_BF16};
    *h = fs_head_default();
    h->kind = one_in(r, 3) ? FS_HEAD_LOGITS : FS_HEAD_WEIGHTS;
    h->dtype = PICK(r, types);
    h->rows = one_in(r, 30) ? 0 : one_in(r, 60) ? 1000 + below(r, 1000) : 1 + below(r, one_in(r, 3) ? 200 : 40);
    h->dim = 1 + below(r, 20);
    if (one_in(r, 4)) h->stride = ((h->kind == FS_HEAD_WEIGHTS ? h->dim : h->rows) + below(r, 3)) * bytes_of(h->dtype);
    if (one_in(r, 4)) h->first_token = below(r, 8) * 16;
    if (one_in(r, 3)) h->vocab = 1 + below(r, h->first_token + h->rows + 20);
    if (one_in(r, 4)) h->round_to = PICK(r, types);
    if (one_in(r, 6)) h->scale = 2.0f * unit(r);
    if (one_in(r, 6)) h->post_scale = 2.0f * unit(r);
    if (one_in(r, 6)) h->softcap = 5.0f * unit(r);
    if (one_in(r, 6)) h->flags = FS_HEAD_CONSTANT;
}

static void make_batch(rng *r, const fs_head *h, fs_batch *b) {
    static const int32_t modes[] = {
        FS_MODE_SAMPLE, FS_MODE_SAMPLE,         FS_MODE_SAMPLE,      FS_MODE_WITHOUT_REPLACEMENT,
        FS_MODE_SCORE,  FS_MODE_GROUP_PARALLEL, FS_MODE_GROUP_ONLINE};
    *b = fs_batch_default();
    b->rows = below(r, 6);
    b->mode = PICK(r, modes);
    const int grouped = b->mode == FS_MODE_GROUP_PARALLEL || b->mode == FS_MODE_GROUP_ONLINE;
    b->hidden_dtype = (int32_t)below(r, 3);
    if (one_in(r, 4)) b->hidden_stride = (h->dim + below(r, 3)) * bytes_of(b->hidden_dtype);
    if (one_in(r, 8)) b->hidden_stride = FS_STRIDE_BROADCAST;
    b->samples = grouped || one_in(r, 2) ? 1 : 1 + (int32_t)below(r, 4);
    b->noise = one_in(r, 5);
    if (one_in(r, 2)) b->flags = (uint32_t)(random_next(r) & random_next(r) & 0xff);
    if (one_in(r, 4)) b->fallback_token = (int32_t)random_next(r);
    b->group_size = 1 + below(r, 40);
    if (one_in(r, 6)) b->list_capacity = (int32_t)below(r, 30);
    b->slot_dtype = one_in(r, 2) ? FS_I32 : FS_I64;
    if (one_in(r, 2)) b->slots = 1 + below(r, 8);
    if (one_in(r, 2)) b->allow_count = 1 + below(r, 6);
    b->position_all = random_next(r) >> below(r, 64);
    b->seed_all = random_next(r);
    b->substream_all = (uint32_t)below(r, 3);
    if (one_in(r, 2)) rules_of(b)->temperature.value = one_in(r, 3) ? 0.0f : 2.0f * unit(r);
    if (!grouped && one_in(r, 4)) rules_of(b)->top_k.value = (int32_t)below(r, 30);
    if (!grouped && one_in(r, 4)) rules_of(b)->top_p.value = unit(r);
    if (!grouped && one_in(r, 4)) rules_of(b)->min_p.value = unit(r) * unit(r);
    if (one_in(r, 4)) rules_of(b)->repetition.value = 0.5f + unit(r);
    if (one_in(r, 4)) rules_of(b)->frequency.value = unit(r) - 0.5f;
    if (one_in(r, 4)) rules_of(b)->presence.value = unit(r) - 0.5f;
}

/* ------------------------------------------------------------------------------------------------------ arrays ---- */

#define ARRAY_MOST 200000.0

/* An array of this many bytes, of elements of `align`; sizes that no memory has are absurd. */
static void *array(rng *r, fuzz_call *c, double bytes, size_t align, int wild) {
    const int off = wild && align > 1 && one_in(r, 300);
    if (!(bytes <= ARRAY_MOST)) c->absurd = 1;
    void *at = slab_take(bytes > 0 && bytes <= ARRAY_MOST ? (size_t)bytes : 0,
                         off ? 1 + (size_t)below(r, (int64_t)align - 1) : 0);
    if (!at) c->absurd = 1;
    if (off) c->misaligned = 1;
    return at;
}

/* Bytes of `count` rows that are `stride` apart, the last of which has `last`. */
static double rows_of(double count, double stride, double last) {
    if (!(count > 0 && last > 0)) return 0;
    return (count - 1) * stride + last;
}

static void put_number(rng *r, int32_t dtype, void *at, int odd) {
    const int32_t sixteenths = (int32_t)below(r, 129) - 64;
    float x = (float)sixteenths / 16.0f;
    if (odd && one_in(r, 40)) x = fuzz_odd_f32(r);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16);
    if (dtype == FS_F16) { /* sixteenths up to 4 are exact; what is odd becomes something */
        int exponent = 0;
        const double m = odd && !(fabsf(x) < 5.0f) ? 0.0 : frexp(fabs((double)x), &exponent);
        half = (uint16_t)(m > 0 && exponent > -14 ? (exponent + 14) << 10 | ((int)(m * 2048.0) & 1023) : 0);
        if (odd && x != x) half = 0x7E00;
        if (odd && isinf(x)) half = 0x7C00;
        if (signbit(x)) half |= 0x8000;
    }
    if (bytes_of(dtype) == 2) memcpy(at, &half, sizeof half);
    else memcpy(at, &x, sizeof x);
}

static void fill_numbers(rng *r, int32_t dtype, void *at, double bytes, int odd) {
    for (double i = 0; at && i + bytes_of(dtype) <= bytes; i += bytes_of(dtype))
        put_number(r, dtype, (char *)at + (size_t)i, odd);
}

/* An array of numbers that may be absent; sized and filled. */
static void *numbers(rng *r, fuzz_call *c, int32_t dtype, double bytes, int wild, int odd) {
    void *at = array(r, c, bytes, (size_t)bytes_of(dtype), wild);
    if (at && bytes <= ARRAY_MOST) fill_numbers(r, dtype, at, bytes, odd);
    return at;
}

static float *floats(rng *r, fuzz_call *c, double count, int wild, float low, float high) {
    float *at = array(r, c, count * 4, 4, wild);
    for (int64_t i = 0; at && !c->absurd && (double)i + 1 <= count; i++) {
        const float x = wild && one_in(r, 20) ? fuzz_odd_f32(r) : low + (high - low) * unit(r);
        memcpy((char *)at + i * 4, &x, sizeof x);
    }
    return at;
}

/* Integers of 4 or 8 bytes in [low, high]. */
static void *integers(rng *r, fuzz_call *c, double count, size_t size, int wild, int64_t low, int64_t high) {
    char *at = array(r, c, count * (double)size, size, wild);
    for (int64_t i = 0; at && !c->absurd && (double)i + 1 <= count; i++) {
        const int64_t wide_value = low + below(r, high - low + 1);
        const int32_t narrow = (int32_t)wide_value;
        memcpy(at + (size_t)i * size, size == 8 ? (const void *)&wide_value : (const void *)&narrow, size);
    }
    return at;
}

/* Offsets that ascend; if `wild`, one of them may not. Returns how many entries they speak of. */
static double offsets(rng *r, fuzz_call *c, double count, int wild, const int64_t **to) {
    static const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 31};
    int64_t *at = array(r, c, (count + 1) * 8, 8, wild), end = below(r, 3);
    *to = at;
    if (!at || c->absurd || !(count >= 0)) return 0;
    for (int64_t i = 0; (double)i <= count; i++) {
        memcpy((char *)at + i * 8, &end, sizeof end);
        if ((double)i < count) end += below(r, 4);
    }
    if (wild && count > 0 && one_in(r, 40)) memcpy((char *)at + below(r, (int64_t)count + 1) * 8, &PICK(r, bad), 8);
    return (double)end;
}

/* Tokens, mostly of the vocabulary. */
static int32_t *tokens(rng *r, fuzz_call *c, double count, int wild) {
    const int64_t top = c->vocab > 0 && c->vocab < 1 << 24 ? c->vocab - 1 : 0;
    int32_t *at = integers(r, c, count, 4, wild, 0, top);
    if (at && !c->absurd && count >= 1 && wild && one_in(r, 20))
        memcpy((char *)at + below(r, (int64_t)count) * 4, &(int32_t){fuzz_odd_i32(r)}, 4);
    return at;
}

static void make_slots(rng *r, fuzz_call *c, int wild, double slots) {
    fs_batch *b = &c->batch;
    const int grouped = b->mode == FS_MODE_GROUP_PARALLEL || b->mode == FS_MODE_GROUP_ONLINE;
    if (one_in(r, 3))
        b->slot = integers(r, c, (double)b->rows, (size_t)wide(b->slot_dtype), wild, -1 - one_in(r, 9),
                           (int64_t)fmin(slots, 20.0));
    if (one_in(r, 3)) b->position = integers(r, c, (double)b->rows, 8, wild, 0, 1000);
    if (one_in(r, 3)) rules_of(b)->temperature.per_slot = floats(r, c, slots, wild, 0.1f, 2.0f);
    if (!grouped && one_in(r, 4)) rules_of(b)->top_k.per_slot = integers(r, c, slots, 4, wild, -1, 60);
    if (!grouped && one_in(r, 4)) rules_of(b)->top_p.per_slot = floats(r, c, slots, wild, 0.0f, 1.1f);
    if (!grouped && one_in(r, 4)) rules_of(b)->min_p.per_slot = floats(r, c, slots, wild, 0.0f, 0.5f);
    if (one_in(r, 3)) b->seed = integers(r, c, slots, 8, wild, 0, 5);
    if (one_in(r, 5)) b->substream = integers(r, c, slots, 4, wild, 0, 5);
    if (one_in(r, 5)) rules_of(b)->repetition.per_slot = floats(r, c, slots, wild, 0.5f, 2.0f);
    if (one_in(r, 5)) rules_of(b)->frequency.per_slot = floats(r, c, slots, wild, -0.5f, 0.5f);
    if (one_in(r, 5)) rules_of(b)->presence.per_slot = floats(r, c, slots, wild, -0.5f, 0.5f);
}

static void make_lists(rng *r, fuzz_call *c, int wild, double slots) {
    fs_batch *b = &c->batch;
    const double vocab = (double)c->vocab, words = ceil(vocab / 32) * 4;
    if (one_in(r, 4)) {
        const double masks = b->allow_count > 0 ? (double)b->allow_count : fmax((double)b->rows, 1.0);
        b->allow = integers(r, c, rows_of(masks, b->allow_stride ? (double)b->allow_stride : words, words) / 4, 4, wild,
                            INT32_MIN, INT32_MAX);
        /* Where masks are not counted the caller must not name others than there are. */
        if (one_in(r, 2))
            b->allow_index = integers(r, c, (double)b->rows, 4, wild, -1 - one_in(r, 9),
                                      (int64_t)fmin(masks, 9.0) - (b->allow_count <= 0));
    }
    if (one_in(r, 4)) {
        const double count = offsets(r, c, (double)b->rows, wild, &b->edit_offset);
        b->edit_token = tokens(r, c, count, wild);
        b->edit_bias = floats(r, c, count, wild, -3.0f, 3.0f);
    } else if (one_in(r, 4)) {
        if (!b->edit_stride) b->edit_stride = 4 * (1 + below(r, 4));
        const double room = slots * (double)b->edit_stride / 4;
        b->edit_count = integers(r, c, slots, 4, wild, -one_in(r, 20),
                                 (int64_t)fmin(fmax((double)b->edit_stride / 4, 0.0), 9.0) + one_in(r, 20));
        b->edit_token = tokens(r, c, room, wild);
        b->edit_bias = floats(r, c, room, wild, -3.0f, 3.0f);
    }
    if (one_in(r, 5))
        b->seen = integers(r, c, rows_of(slots, b->seen_stride ? (double)b->seen_stride : words, words) / 4, 4, wild,
                           INT32_MIN, INT32_MAX);
    if (one_in(r, 5))
        b->counts = integers(r, c,
                             rows_of(slots, b->counts_stride ? (double)b->counts_stride : 4 * vocab, 4 * vocab) / 4, 4,
                             wild, -one_in(r, 5), 2);
    else if (one_in(r, 4)) {
        const double count = offsets(r, c, slots, wild, &b->count_offset);
        b->count_token = tokens(r, c, count, wild);
        b->count_value = integers(r, c, count, 4, wild, -1, 3);
    }
    if (one_in(r, 4)) b->extra_token = tokens(r, c, offsets(r, c, (double)b->rows, wild, &b->extra_offset), wild);
    if (b->mode == FS_MODE_SCORE) b->score_token = tokens(r, c, (double)b->rows * fuzz_samples(c), wild);
}

static void *output(rng *r, fuzz_call *c, double bytes, size_t align, int wild) {
    void *at = array(r, c, bytes, align, wild);
    if (!at || !(bytes <= ARRAY_MOST) || c->outputs == FUZZ_OUTPUTS) return at;
    c->output[c->outputs].at = at;
    c->output[c->outputs++].bytes = bytes > 0 ? (size_t)bytes : 0;
    return at;
}

static void make_result(rng *r, fuzz_call *c, int wild) {
    fs_batch *b = &c->batch;
    fs_result *o = &c->result;
    const double rows = (double)b->rows, each = rows * (double)fuzz_samples(c), top = rows * o->top_count;
    double watched = 0;
    if (one_in(r, 4)) {
        watched = offsets(r, c, rows, wild, &b->watch_offset);
        b->watch_token = tokens(r, c, watched, wild);
    }
    o->tokens = output(r, c, each * wide(o->tokens_dtype), (size_t)wide(o->tokens_dtype), wild);
    if (one_in(r, 2)) o->status = output(r, c, rows * 4, 4, wild);
    if (one_in(r, 4)) o->noisy_logit = output(r, c, each * 4, 4, wild);
    if (one_in(r, 4)) o->max_logit = output(r, c, rows * 4, 4, wild);
    if (one_in(r, 4)) o->log_z = output(r, c, rows * 4, 4, wild);
    if (one_in(r, 4)) o->logit = output(r, c, each * 4, 4, wild);
    if (one_in(r, 4)) o->logprob = output(r, c, each * 4, 4, wild);
    if (one_in(r, 4)) o->rank = output(r, c, each * 4, 4, wild);
    if (one_in(r, 3)) o->top_token = output(r, c, top * 4, 4, wild);
    if (one_in(r, 3)) o->top_logit = output(r, c, top * 4, 4, wild);
    if (one_in(r, 3)) o->top_logprob = output(r, c, top * 4, 4, wild);
    if (b->watch_offset && one_in(r, 2)) o->watch_logit = output(r, c, watched * 4, 4, wild);
    if (b->watch_offset && one_in(r, 2)) o->watch_logprob = output(r, c, watched * 4, 4, wild);
    if (one_in(r, 6)) o->entropy = output(r, c, rows * 4, 4, wild);
    if (one_in(r, 6)) o->survivor_count = output(r, c, rows * 4, 4, wild);
    if (one_in(r, 6)) o->survivor_token = output(r, c, rows * o->survivor_limit * 4, 4, wild);
}

/* One of the pointers is absent, although it may be needed. */
static void lose_pointer(rng *r, fuzz_call *c) {
    const void **inputs[] = {&c->head.data, &c->batch.hidden};
    switch (below(r, 9)) {
    case 0:
        c->batch.edit_token = NULL;
        break;
    case 1:
        c->batch.edit_bias = NULL;
        break;
    case 2:
        c->batch.count_token = NULL;
        break;
    case 3:
        c->batch.count_value = NULL;
        break;
    case 4:
        c->batch.score_token = NULL;
        break;
    case 5:
        c->batch.watch_token = NULL;
        break;
    case 6:
        c->result.tokens = NULL;
        break;
    case 7:
        c->batch.extra_token = NULL;
        break;
    default:
        *PICK(r, inputs) = NULL;
    }
}

void fuzz_call_make(rng *r, fuzz_call *c, int wild) {
    memset(c, 0, sizeof *c);
    fs_head *h = &c->head;
    fs_batch *b = &c->batch;
    make_head(r, h);
    make_batch(r, h, b);
    c->result = fs_result_default();
    c->result.tokens_dtype = one_in(r, 2) ? FS_I32 : FS_I64;
    c->result.logits_mode = (int32_t)below(r, 3);
    c->result.top_count = one_in(r, 20) ? 1024 : (int32_t)below(r, 5);
    c->result.survivor_limit = one_in(r, 20) ? 1 << 10 : (int32_t)below(r, 9);
    for (int64_t n = wild ? below(r, 4) : 0; n > 0; n--) {
        const int64_t which = below(r, 10);
        if (which < 3) fuzz_wild_head(r, h);
        else if (which < 5) fuzz_wild_rules(r, rules_of(b));
        else if (which < 6) fuzz_wild_limits(r, limits_of(b));
        else if (which < 9) fuzz_wild_batch(r, b);
        else fuzz_wild_result(r, &c->result);
    }
    const int logits = h->kind == FS_HEAD_LOGITS, odd = wild || one_in(r, 4);
    const double v = (double)h->rows, d = (double)h->dim, size = bytes_of(h->dtype), hidden = bytes_of(b->hidden_dtype);
    c->exact = logits || !odd;
    const double slots = b->slots ? (double)b->slots : (double)b->rows;
    /* What cannot be added has been refused before. */
    c->vocab = h->vocab || h->rows > 1 << 24 || h->first_token > 1 << 24 || h->first_token < 0
                   ? h->vocab
                   : h->first_token + h->rows;
    h->data = numbers(r, c, h->dtype,
                      logits ? rows_of((double)b->rows, h->stride ? (double)h->stride : v * size, v * size)
                             : rows_of(v, h->stride ? (double)h->stride : d * size, d * size),
                      wild, odd);
    const double lines = b->hidden_stride == FS_STRIDE_BROADCAST && b->rows > 0 ? 1 : (double)b->rows;
    if (!logits)
        b->hidden = numbers(r, c, b->hidden_dtype,
                            rows_of(lines, b->hidden_stride ? (double)b->hidden_stride : d * hidden, d * hidden), wild,
                            odd);
    if (one_in(r, 4)) h->bias = floats(r, c, v, wild, -2.0f, 2.0f);
    make_slots(r, c, wild, slots);
    make_lists(r, c, wild, slots);
    make_result(r, c, wild);
    if (wild && !c->misaligned && one_in(r, 20)) lose_pointer(r, c);
    if (wild && one_in(r, 100)) h->reserved = 1;
}

void fuzz_call_of_parts(fuzz_call *c) {
    c->result.entropy = NULL;
    c->result.survivor_token = c->result.survivor_count = NULL;
}

int64_t fuzz_samples(const fuzz_call *c) {
    return c->batch.samples ? c->batch.samples : 1;
}

int64_t fuzz_fallback_token(const fuzz_call *c) {
    const int32_t token = c->batch.fallback_token;
    return token == 0 ? -1 : token == FS_FALLBACK_TOKEN_ZERO ? 0 : token;
}

int fuzz_call_must_fail(const fuzz_call *c) {
    const fs_head *h = &c->head;
    const fs_batch *b = &c->batch;
    const int64_t ids = 1 << 24;
    if (b->rules && (b->rules->size < 8 || b->rules->size > 4096)) return 1;
    if (b->limits && (b->limits->size < 8 || b->limits->size > 4096)) return 1;
    return h->size < 8 || h->size > 4096 || b->size < 8 || b->size > 4096 || c->result.size < 8 ||
           c->result.size > 4096 || h->kind < 0 || h->kind > 1 || h->rows < 0 || h->rows >= ids || h->first_token < 0 ||
           h->first_token >= ids || h->vocab < 0 || h->vocab >= ids ||
           (h->kind == FS_HEAD_WEIGHTS && (h->dim <= 0 || h->dim > INT32_MAX)) || h->stride < 0 || b->rows < 0 ||
           b->rows > 1 << 20 || b->samples < 0 || b->samples > 1024 || b->slots < 0 || b->allow_count < 0 ||
           b->allow_stride < 0 || c->result.top_count < 0 || c->result.top_count > 1024 ||
           c->result.survivor_limit < 0 || c->result.survivor_limit > 1 << 20 ||
           (c->result.survivor_token && !c->result.survivor_limit) || b->mode < 0 || b->mode > FS_MODE_SCORE;
}

fs_head fuzz_call_shard(const fuzz_call *c, int64_t first, int64_t end) {
    fs_head h = c->head;
    const int64_t bytes = h.dtype == FS_F32 ? 4 : 2, logits = h.kind == FS_HEAD_LOGITS;
    if (!h.stride) h.stride = (logits ? h.rows : h.dim) * bytes;
    h.data = (const char *)h.data + first * (logits ? bytes : h.stride);
    h.vocab = c->vocab, h.first_token += first, h.rows = end - first;
    if (h.bias) h.bias += first;
    return h;
}
