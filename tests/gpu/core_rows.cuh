/* core_rows.cuh - cases of whole rows: from a batch to a row's rules; a row's summaries over the wire, merged, and from
 * there to its results. */
#ifndef FS_CORE_ROWS_CUH
#define FS_CORE_ROWS_CUH

#include "core_vectors.cuh"

#include "core/finish.h"
#include "core/wire.h"

/* What a call needs of its rows is asked once, on the host, whatever the device. */
#include "core/needs.c"

/* ------------------------------------------------------------------------------------------------------- rules ---- */

enum { SLOTS = 3 };

typedef struct rules_case {
    fs_batch batch;
    fs_rules rules;
    fs_row_limits limits;
    uint32_t there; /* which arrays there are, a bit each */
    int64_t vocab;
    int32_t slot[SLOTS], top_k[SLOTS], mask[SLOTS], edits[SLOTS];
    int64_t wide_slot[SLOTS], edit_offset[SLOTS + 1];
    uint64_t position[SLOTS], seed[SLOTS];
    uint32_t stream[SLOTS];
    float value[6][SLOTS]; /* temperature, top_p, min_p, repetition, frequency, presence */
    float y[SLOTS];
    int32_t count[SLOTS];
} rules_case;

static float make_parameter(rng *r, int which) {
    const float off = which == 1 || which == 3 ? 1.0f : 0.0f;
    if (one_in(r, 4)) return off;
    if (one_in(r, 6)) return pick(r, {NAN, INFINITY, -INFINITY, -1.0f, 0.0f, -0.0f, 1e-45f, 1e-39f, 3e38f, 1.0f});
    return (float)unit(r) * (which == 0 ? 2.0f : which == 3 ? 3.0f : 1.0f);
}

static void make(rng *r, int64_t, rules_case *c) {
    fs_batch *b = &c->batch;
    *b = fs_batch_default();
    c->there = (uint32_t)random_next(r);
    c->vocab = 1 + below(r, 200);
    b->rows = SLOTS;
    b->slots = pick(r, {0, 1, (int)SLOTS});
    b->flags = (uint32_t)below(r, 256);
    b->position_all = random_next(r);
    c->rules = fs_rules_default();
    c->rules.temperature.value = make_parameter(r, 0), c->rules.top_k.value = below(r, 300) - 50;
    c->rules.top_p.value = make_parameter(r, 1), c->rules.min_p.value = make_parameter(r, 2);
    b->seed_all = random_next(r), b->substream_all = (uint32_t)random_next(r);
    c->rules.repetition.value = make_parameter(r, 3), c->rules.frequency.value = make_parameter(r, 4);
    c->rules.presence.value = make_parameter(r, 5);
    b->allow_count = below(r, 3);
    c->limits = fs_row_limits{0, 0};
    b->edit_stride = 4 * (1 + below(r, 3));
    if (one_in(r, 3)) c->limits.top_k = below(r, 100);
    if (one_in(r, 3)) c->limits.absent = (uint32_t)below(r, 64);
    make_logits(r, c->y, SLOTS);
    for (int s = 0; s < SLOTS; s++) {
        c->slot[s] = (int32_t)(c->wide_slot[s] = one_in(r, 3) ? below(r, 8) - 3 : s);
        if (one_in(r, 16)) c->wide_slot[s] += (int64_t)1 << 32;
        c->position[s] = random_next(r), c->seed[s] = random_next(r), c->stream[s] = (uint32_t)random_next(r);
        c->top_k[s] = pick(r, {-1, 0, 1, 50, 199, 1000});
        c->mask[s] = below(r, 5) - 2;
        c->edits[s] = below(r, 6) - 1;
        c->edit_offset[s + 1] = c->edit_offset[s] + below(r, 2);
        c->count[s] = below(r, 4);
        for (int i = 0; i < 6; i++) c->value[i][s] = make_parameter(r, i);
    }
}

FS_CORE const float *array_if(const rules_case *c, int bit) {
    return c->there >> bit & 1 ? c->value[bit] : NULL;
}

/* Points the batch at this copy of its arrays. */
FS_CORE const fs_batch *batch_of(rules_case *c) {
    fs_batch *b = &c->batch;
    const uint32_t there = c->there;
    fs_rules *rules = &c->rules;
    rules->temperature.per_slot = array_if(c, 0), rules->top_p.per_slot = array_if(c, 1);
    rules->min_p.per_slot = array_if(c, 2), rules->repetition.per_slot = array_if(c, 3);
    rules->frequency.per_slot = array_if(c, 4), rules->presence.per_slot = array_if(c, 5);
    b->slot_dtype = there >> 6 & 1 ? FS_I64 : FS_I32;
    if (there >> 7 & 1) b->slot = there >> 6 & 1 ? (const void *)c->wide_slot : (const void *)c->slot;
    rules->top_k.per_slot = there >> 8 & 1 ? c->top_k : NULL;
    b->position = there >> 9 & 1 ? c->position : NULL;
    b->seed = there >> 10 & 1 ? c->seed : NULL;
    b->substream = there >> 11 & 1 ? c->stream : NULL;
    b->allow = there >> 12 & 1 ? c->stream : NULL; /* nobody looks into it */
    b->allow_index = there >> 13 & 1 ? c->mask : NULL;
    b->edit_offset = there >> 14 & 1 ? c->edit_offset : NULL;
    b->edit_count = there >> 15 & 1 ? c->edits : NULL;
    b->seen = there >> 16 & 1 ? c->stream : NULL;
    b->counts = there >> 17 & 1 ? c->count : NULL;
    b->count_offset = there >> 18 & 1 ? c->edit_offset : NULL;
    return b;
}

FS_CORE void put_rules(record *out, const fs_row_rules *rules) {
    put(out, "status", rules->status);
    put(out, "slot", (uint32_t)rules->slot);
    put(out, "greedy", (uint32_t)rules->greedy);
    put_float(out, "inverse_temperature", rules->inverse_temperature);
    put_float(out, "cut_scale", rules->cut_scale);
    put(out, "top_k", (uint32_t)rules->top_k);
    put_float(out, "top_p", rules->top_p);
    put_log(out, "log_min_p", (float)rules->log_min_p);
    put(out, "seed", rules->seed);
    put(out, "position", rules->position);
    put(out, "substream", rules->substream);
    put_float(out, "repetition", rules->repetition);
    put_float(out, "frequency", rules->frequency);
    put_float(out, "presence", rules->presence);
}

#define REACHED(bit) reached(out, (status & FS_ROW_##bit) != 0, #bit)

FS_CORE void reached_status(record *out, uint32_t status) {
    reached(out, status == FS_ROW_OK, "OK");
    REACHED(SKIPPED), REACHED(EMPTY), REACHED(BAD_SLOT), REACHED(BAD_TEMPERATURE), REACHED(BAD_TOP_P);
    REACHED(BAD_MIN_P), REACHED(BAD_PENALTY), REACHED(BAD_TOKEN), REACHED(INCOMPLETE), REACHED(PEER);
    REACHED(BAD_MASK), REACHED(BAD_LIST), REACHED(OVER_LIMIT), REACHED(NAN), REACHED(INF), REACHED(FALLBACK);
    REACHED(RANK_BOUND), REACHED(SHORT), REACHED(FAR);
}

FS_CORE void run(rules_case *c, record *out) {
    const fs_batch *batch = batch_of(c);
    c->batch.seed_all ^= (uint64_t)out->planted, c->seed[0] ^= (uint64_t)out->planted;
    c->position[0] ^= (uint64_t)out->planted, c->batch.position_all ^= (uint64_t)out->planted;
    c->batch.slots += out->planted;
    put(out, "uniform", (uint64_t)rules_are_uniform(batch, &c->rules));
    for (int64_t b = 0; b < SLOTS; b++) {
        const fs_row_rules rules = rules_of_row(batch, &c->rules, &c->limits, c->vocab, b);
        const fs_edits edits = batch_edits(batch, b, batch_slot_index(batch, b));
        put_rules(out, &rules);
        put(out, "first edit", (uint64_t)edits.first);
        put(out, "edits", (uint64_t)edits.count);
        put_float(out, "penalised", rules_penalised(&rules, c->y[b], c->count[b] == 1, c->count[b]));
        reached_status(out, rules.status);
    }
}

/* --------------------------------------------------------------------------------------------- a row of a call ---- */

enum { ROWS = 2, TOKENS = 48, SAMPLES = 3, WATCHED = 3, TOP = 5, ROOM = 40, SHARDS = 2 };

/* fs_summary with its arrays inside. */
typedef struct flat_summary {
    fs_summary s;
    fs_winner winner[SAMPLES];
    fs_watch watch[SAMPLES + WATCHED];
    uint64_t key[ROOM], raw_key[ROOM];
    float raw[ROOM];
} flat_summary;

/* Where all results fit. */
typedef struct results {
    int64_t tokens[ROWS * SAMPLES];
    float score[ROWS * SAMPLES], logit[ROWS * SAMPLES], logprob[ROWS * SAMPLES];
    int32_t rank[ROWS * SAMPLES];
    uint32_t status[ROWS];
    float max_logit[ROWS], log_z[ROWS];
    int32_t top_token[ROWS * TOP];
    float top_logit[ROWS * TOP], top_logprob[ROWS * TOP];
    float watch_logit[ROWS * WATCHED], watch_logprob[ROWS * WATCHED];
} results;

typedef struct row_case {
    fs_head head;
    fs_batch batch;
    fs_rules asks;
    fs_limits promises;
    fs_result result;
    fs_call call;
    fs_row_rules rules;
    uint32_t asked; /* which results are, a bit each */
    int32_t b, room;
    int64_t watch_offset[ROWS + 1];
    int32_t watch_token[ROWS * WATCHED], given[ROWS * SAMPLES];
    flat_summary shard[SHARDS];
    results written;
} row_case;

/* Points everything at this copy of the case. */
FS_CORE void bind_arrays(row_case *c) {
    fs_result *r = &c->result;
    results *w = &c->written;
    const uint32_t asked = c->asked; /* of two bits for the status one is nearly always set */
    c->call.head = &c->head, c->call.batch = &c->batch, c->call.result = &c->result;
    c->call.rules = NULL;
    c->batch.rules = &c->asks, c->batch.limits = &c->promises;
    c->batch.score_token = c->given;
    if (c->batch.watch_offset) c->batch.watch_offset = c->watch_offset;
    c->batch.watch_token = c->watch_token;
    r->tokens = asked & 8192 && c->batch.mode == FS_MODE_SCORE ? NULL : w->tokens;
    r->noisy_logit = asked & 1 ? w->score : NULL;
    r->max_logit = asked & 2 ? w->max_logit : NULL;
    r->log_z = asked & 4 ? w->log_z : NULL;
    r->logit = asked & 8 ? w->logit : NULL;
    r->logprob = asked & 16 ? w->logprob : NULL;
    r->rank = asked & 32 ? w->rank : NULL;
    r->top_token = asked & 64 ? w->top_token : NULL;
    r->top_logit = asked & 128 ? w->top_logit : NULL;
    r->top_logprob = asked & 256 ? w->top_logprob : NULL;
    r->watch_logit = asked & 512 ? w->watch_logit : NULL;
    r->watch_logprob = asked & 1024 ? w->watch_logprob : NULL;
    r->status = asked & 6144 ? w->status : NULL;
    for (int i = 0; i < SHARDS; i++) {
        flat_summary *f = &c->shard[i];
        f->s.winner = f->winner, f->s.watch = f->watch;
        f->s.list.key = f->key, f->s.list.raw = c->call.needs.raw_column ? f->raw : NULL;
        f->s.raw_list.key = f->raw_key, f->s.raw_list.raw = NULL;
    }
}

static void make_call(rng *r, row_case *c) {
    fs_batch *b = &c->batch;
    c->head = fs_head_default();
    c->head.rows = TOKENS, c->head.vocab = one_in(r, 2) ? TOKENS : 0;
    c->head.kind = below(r, 2), c->head.dim = below(r, 5000), c->head.softcap = (float)below(r, 2) * 30.0f;
    *b = fs_batch_default();
    b->rows = ROWS;
    c->asks = fs_rules_default(), c->promises = fs_limits_default();
    b->mode = pick(r, {FS_MODE_SAMPLE, FS_MODE_SAMPLE, FS_MODE_SAMPLE, FS_MODE_WITHOUT_REPLACEMENT, FS_MODE_SCORE});
    b->samples = 1 + below(r, SAMPLES);
    b->flags = one_in(r, 2) ? 0 : (uint32_t)below(r, 256);
    b->fallback_token = -1 - below(r, 3);
    c->asks.temperature.value = pick(r, {1.0f, 1.0f, 1.0f, 0.0f, 0.7f, 1.5f, 1e-3f, 1e3f, 1e-30f});
    b->seed_all = random_next(r);
    if (one_in(r, 3)) c->asks.top_k.value = 1 + below(r, 24);
    if (one_in(r, 2)) c->asks.top_p.value = pick(r, {0.0f, 0.1f, 0.3f, 0.5f, 0.8f, 0.95f});
    if (one_in(r, 4)) c->asks.min_p.value = pick(r, {0.001f, 0.1f, 0.5f, 1.0f});
    if (one_in(r, 16)) { /* groups, of which one token and no cut is asked */
        b->mode = FS_MODE_GROUP_PARALLEL + below(r, 2), b->samples = 1;
        c->asks.top_k.value = 0, c->asks.top_p.value = 1.0f, c->asks.min_p.value = 0.0f;
    }
    if (one_in(r, 3)) c->batch.watch_offset = c->watch_offset;
    for (int i = 0; i < ROWS; i++) c->watch_offset[i + 1] = c->watch_offset[i] + below(r, WATCHED + 1);
    for (int i = 0; i < ROWS * WATCHED; i++) c->watch_token[i] = below(r, TOKENS);
    for (int i = 0; i < ROWS * SAMPLES; i++) c->given[i] = below(r, TOKENS);
    c->result = fs_result_default();
    c->result.tokens_dtype = pick(r, {FS_I32, FS_I64});
    c->result.logits_mode = pick(r, {FS_LOGITS_RAW, FS_LOGITS_PROCESSED, FS_LOGITS_CUT, FS_LOGITS_CUT});
    c->result.top_count = 1 + below(r, TOP);
    c->asked = (uint32_t)random_next(r) & pick(r, {6144u, 6144u, ~0u, ~0u, 6175u, (uint32_t)random_next(r)});
    c->b = below(r, ROWS);
}

/* Lists that are often too short for what is asked. */
static void make_needs(rng *r, row_case *c, int edited) {
    fs_needs *n = &c->call.needs;
    *n = fs_needs_of(&c->head, &c->batch, &c->result);
    n->edited = edited;
    n->raw_column = c->result.logits_mode == FS_LOGITS_RAW && edited && n->keep && n->winner_logit;
    if (n->rank_depth > 4 && one_in(r, 2)) n->rank_depth = 1 + below(r, 24);
    if (c->result.logits_mode == FS_LOGITS_RAW && edited) n->keep_raw = n->rank_depth;
    if (n->keep > 24 || one_in(r, 2)) n->keep = n->keep ? 1 + below(r, 24) : 0;
    if (n->keep_raw > 24 || one_in(r, 2)) n->keep_raw = n->keep_raw ? 1 + below(r, 24) : 0;
    n->rough = n->mass_to_cut && one_in(r, 2);
    n->bounded &= !one_in(r, 4);
    c->room = 25 + below(r, ROOM - 25 + 1);
}

/* What a pass over these tokens leaves. */
static void make_summary(row_case *c, const float *x, const float *y, int32_t first, int32_t end, flat_summary *f) {
    const fs_needs *needs = &c->call.needs;
    fs_summary *s = &f->s;
    float granule[3][FS_GRANULE];
    s->max_x = s->max_y = -INFINITY;
    s->mass = s->raw_mass = s->cut_mass = mass_empty();
    s->list.keep = needs->keep, s->raw_list.keep = needs->keep_raw;
    s->list.capacity = s->raw_list.capacity = c->room;
    for (int64_t i = 0; i < watch_count(&c->batch, c->b); i++) {
        const int32_t token = watch_token(&c->batch, c->b, i);
        const fs_watch here = {x[token], y[token]}, elsewhere = {NAN, NAN};
        f->watch[i] = token >= first && token < end && token % 16 ? here : elsewhere; /* one of 16 is nowhere */
    }
    for (int32_t v = first; v < end; v++) {
        const float l = y[v] * c->rules.inverse_temperature;
        granule[0][v % 16] = l, granule[1][v % 16] = x[v], granule[2][v % 16] = y[v];
        if (v % 16 == 15) {
            mass_add_granule(&s->mass, granule[0]);
            mass_add_granule(&s->raw_mass, granule[1]);
            mass_add_granule(&s->cut_mass, granule[2]);
        }
        s->max_x = fmaxf(s->max_x, x[v]), s->max_y = fmaxf(s->max_y, y[v]);
        if (x[v] == INFINITY || l == INFINITY) s->flags |= FS_ROW_INF;
        if (needs->keep && y[v] > -INFINITY) list_offer(&s->list, order_key(y[v], (uint32_t)v), x[v]);
        if (needs->keep_raw && x[v] > -INFINITY) list_offer(&s->raw_list, order_key(x[v], (uint32_t)v), x[v]);
        if (y[v] == -INFINITY) continue;
        for (int32_t i = 0; i < needs->samples; i++) {
            const fs_noise noise = noise_row(c->rules.seed, 0, (uint32_t)(needs->ordered ? 0 : i), 0);
            const double score = race_score(&c->rules, FS_NOISE_EXACT, noise, (uint32_t)v, y[v]);
            const fs_winner offer = {score_key(score, (uint32_t)v), x[v], y[v]};
            if (needs->ordered) winners_insert(f->winner, needs->samples, offer);
            else winners_insert(&f->winner[i], 1, offer);
            if (needs->ordered) break;
        }
    }
    list_compact(&s->list);
    list_compact(&s->raw_list);
}

static void make_row(rng *r, row_case *c) {
    float x[TOKENS], y[TOKENS];
    const int edited = one_in(r, 3);
    make_call(r, c);
    bind_arrays(c);
    c->call.vocab = TOKENS;
    const fs_row_limits limits = {0, 0};
    c->rules = rules_of_row(&c->batch, &c->asks, &limits, TOKENS, c->b);
    make_needs(r, c, edited);
    bind_arrays(c);
    make_logits(r, x, TOKENS);
    for (int32_t v = 0; v < TOKENS; v++) {
        y[v] = x[v];
        if (edited && one_in(r, 4) && fabsf(x[v]) < INFINITY) y[v] += (float)(8.0 * unit(r) - 4.0);
        if (edited && one_in(r, 32)) y[v] = -INFINITY;
    }
    const int32_t split = FS_GRANULE * below(r, 4);
    make_summary(c, x, y, 0, split, &c->shard[0]);
    make_summary(c, x, y, split, TOKENS, &c->shard[1]);
    const double off = mass_slack(fmaxf(c->shard[0].s.max_y, c->shard[1].s.max_y) * c->rules.inverse_temperature);
    fs_mass *mass = &c->shard[1].s.mass;
    if (c->call.needs.rough) mass->limb[1] += (uint64_t)(unit(r) * 0.9 * off * mass_scaled(mass) / 16777216.0);
    if (one_in(r, 16)) c->shard[0].s.flags |= FS_ROW_NAN;
    for (int i = 0; i < SHARDS && one_in(r, 16); i++) /* what is left of a list that was forged */
        c->shard[i].s.list.count = 0, c->shard[i].s.list.bound = UINT64_MAX;
    if (one_in(r, 8)) c->rules.status |= 1u << below(r, 13);
}

/* -------------------------------------------------------------------------------------------------------- wire ---- */

typedef struct wire_case {
    row_case row;
    uint32_t forged[2]; /* a word of the row that is changed on its way, and by what */
    alignas(8) uint32_t part[1024];
} wire_case;

static void make(rng *r, int64_t, wire_case *c) {
    make_row(r, &c->row);
    c->forged[0] = (uint32_t)random_next(r);
    if (one_in(r, 2)) c->forged[1] = one_in(r, 2) ? 1u << below(r, 32) : (uint32_t)random_next(r);
}

FS_CORE void put_summary(record *out, const fs_call *call, const fs_summary *s, int64_t watched) {
    put(out, "flags", s->flags);
    put_float(out, "max x", s->max_x);
    put_float(out, "max y", s->max_y);
    put_mass(out, &s->mass);
    put_mass(out, &s->raw_mass);
    put_mass(out, &s->cut_mass);
    for (int32_t i = 0; i < call->needs.samples; i++) {
        put(out, "winner", s->winner[i].key);
        put_float(out, "its x", s->winner[i].x);
        put_float(out, "its y", s->winner[i].y);
    }
    if (call->needs.keep) put_list(out, &s->list);
    if (call->needs.keep_raw) put_list(out, &s->raw_list);
    for (int64_t i = 0; i < watched; i++) {
        put_float(out, "watched x", s->watch[i].x);
        put_float(out, "watched y", s->watch[i].y);
    }
}

FS_CORE void run(wire_case *c, record *out) {
    row_case *row = &c->row;
    fs_call *call = &row->call;
    fs_summary *s = &row->shard[0].s, *other = &row->shard[1].s;
    bind_arrays(row);
    for (int i = 0; i < SHARDS; i++) row->shard[i].winner[0].key ^= (uint64_t)out->planted << 30;
    row->rules.seed ^= (uint64_t)out->planted;
    fs_agreement agreement = agreement_of_call(call);
    for (int64_t b = 0; b < ROWS; b++) agreement_add_row(&agreement, b, &row->rules);
    for (int i = 0; i < FS_AGREE_WORDS; i++) put(out, "agreement", agreement.word[i]);
    put(out, "hash", agreement_hash(&agreement));

    const size_t bytes = wire_size(call), row_bytes = wire_row_bytes(&call->needs);
    put(out, "bytes", bytes);
    put(out, "bits", wire_bits(s));
    ((unsigned char *)c->part)[FS_WIRE_HEADER + row->b / 4] |= (unsigned char)(wire_bits(s) << 2 * (row->b % 4));
    wire_put_row(call, row->b, s, c->part);
    uint64_t sum = wire_term_of_ids(0, TOKENS);
    for (size_t i = 0; i < wire_terms(bytes); i++) {
        put(out, "term", wire_term_at(c->part, bytes, i));
        sum += wire_term_at(c->part, bytes, i);
    }
    put(out, "checksum", sum);
    if (row_bytes) c->part[wire_row_at(call, row->b) / 4 + c->forged[0] % (row_bytes / 4)] ^= c->forged[1];
    wire_get_row(call, row->b, &row->rules, c->part, s);
    reached(out, s->list.bound == UINT64_MAX && call->needs.keep, "unsound list");
    reached(out, c->forged[1] != 0, "forged");
    summary_merge(&call->needs, s, other, wire_watched(call, row->b));
    put_summary(out, call, s, wire_watched(call, row->b));
}

/* ------------------------------------------------------------------------------------------------------ finish ---- */

typedef struct finish_case {
    row_case row;
    uint32_t extra;
    int32_t final;
} finish_case;

static void make(rng *r, int64_t, finish_case *c) {
    make_row(r, &c->row);
    c->extra = one_in(r, 16) ? FS_ROW_FALLBACK : 0;
    c->final = below(r, 2);
}

#define PUT_ALL(how, name)                                                                                             \
    for (size_t i = 0; i < sizeof w->name / sizeof *w->name; i++) how(out, #name, w->name[i])

FS_CORE void put_results(record *out, const results *w) {
    PUT_ALL(put, tokens);
    PUT_ALL(put, status);
    PUT_ALL(put_log, score); /* of a key that differs by a unit */
    PUT_ALL(put_float, max_logit);
    PUT_ALL(put_log, log_z);
    PUT_ALL(put_float, logit);
    PUT_ALL(put_log, logprob);
    PUT_ALL(put, rank);
    PUT_ALL(put, top_token);
    PUT_ALL(put_float, top_logit);
    PUT_ALL(put_log, top_logprob);
    PUT_ALL(put_float, watch_logit);
    PUT_ALL(put_log, watch_logprob);
}

FS_CORE void run(finish_case *c, record *out) {
    row_case *row = &c->row;
    fs_summary *s = &row->shard[0].s;
    fs_winner scratch[SAMPLES];
    bind_arrays(row);
    memset(&row->written, 0x5A, sizeof row->written);
    summary_merge(&row->call.needs, s, &row->shard[1].s, wire_watched(&row->call, row->b));
    row->batch.fallback_token -= out->planted;
    s->max_x = planted(out, s->max_x);
    reach_for(out, s->max_x);
    reach_for(out, s->max_y * row->rules.inverse_temperature);
    const int done = finish_row(&row->call, row->b, &row->rules, s, c->extra, c->final, scratch);
    put(out, "done", (uint32_t)done);
    if (done) put_results(out, &row->written);
    reached(out, !done, "open");
    if (done && row->result.status) reached_status(out, row->written.status[row->b]);
}

#endif
