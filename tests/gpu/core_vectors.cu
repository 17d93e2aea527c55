/* core_vectors.cu - the code of src/core, compiled once for the host and once for the device, over the same cases: both
 * must find the same bits (core_vectors.cuh says where a logarithm excuses one). test_core.py builds and runs it.
 *
 *   nvcc -std=c++17 -O2 --fmad=false -Xcompiler -ffp-contract=off -Iinclude -Isrc tests/gpu/core_vectors.cu
 *   a.out [--host-only] [--plant]
 *
 * core's arithmetic must not be contracted to fused multiply-adds, here as in cmake/flags.cmake: nvcc does it for the
 * device by default, gcc for hosts that have them. --host-only compares the host with itself, to see what the cases
 * reach; a C++ compiler alone builds that. --plant changes a last bit of every case on the device: all kinds must
 * differ then. Ends with 1 if a kind differs, with 77 where there is no device. */
#include "core_vectors.cuh"

#include "core/cut.h"
#include "core/group.h"
#include "core/head.h"
#include "core/race.h"

#include "core_rows.cuh"

/* ------------------------------------------------------------------------------------------------------ masses ---- */

enum { GRANULES = 6 };

typedef struct mass_case {
    float l[GRANULES][FS_GRANULE];
} mass_case;

static void make(rng *r, int64_t, mass_case *c) {
    make_logits(r, c->l[0], GRANULES * FS_GRANULE);
    for (int g = 1; g < GRANULES; g++)
        if (one_in(r, 4)) make_logits(r, c->l[g], FS_GRANULE);
    if (one_in(r, 4))
        c->l[below(r, GRANULES)][below(r, FS_GRANULE)] = pick(r, {363000.5f, -363000.5f, 0x1p-140f, -0.0f});
}

FS_CORE void run(mass_case *c, record *out) {
    fs_mass part[GRANULES], up = mass_empty(), down = mass_empty(), all = mass_empty();
    c->l[0][0] = planted(out, c->l[0][0]);
    for (int i = 0; i < FS_GRANULE; i++) {
        const fs_exp e = exp_split(c->l[0][i]);
        put_float(out, "fraction", e.fraction);
        put(out, "exponent", (uint32_t)e.exponent);
    }
    for (int g = 0; g < GRANULES; g++) {
        part[g] = mass_empty();
        mass_add_granule(&part[g], c->l[g]);
        mass_add_granule(&all, c->l[g]);
    }
    for (int g = 0; g < GRANULES; g++) mass_merge(&up, &part[g]), mass_merge(&down, &part[GRANULES - 1 - g]);
    put_mass(out, &part[0]);
    put_mass(out, &all);
    put_mass(out, &up);
    put_mass(out, &down);
    uint32_t words[FS_MASS_WORDS];
    mass_pack(&up, words);
    for (int i = 0; i < FS_MASS_WORDS; i++) put(out, "word", words[i]);
    const fs_mass back = mass_unpack(words);
    put_mass(out, &back);
    put_double(out, "scaled", mass_scaled(&up));
    put_double(out, "slack", mass_slack(c->l[0][0]));
    put(out, "far", (uint64_t)mass_is_far(&up));
    put_log(out, "log", (float)mass_log(&up));
    reached(out, mass_is_empty(&up), "empty");
    reached(out, mass_is_far(&up), "far");
}

/* ------------------------------------------------------------------------------------------------------- lists ---- */

enum { OFFERS = 96, LIST = 40 };

typedef struct list_case {
    int32_t count, split, keep, capacity, with_raw;
    float y[OFFERS], raw[OFFERS];
    uint64_t key[2][LIST];
    float column[2][LIST];
} list_case;

static void make(rng *r, int64_t, list_case *c) {
    c->count = 1 + below(r, OFFERS);
    c->split = below(r, c->count + 1);
    c->keep = 1 + below(r, LIST - 1);
    c->capacity = c->keep + below(r, LIST - c->keep + 1);
    c->with_raw = below(r, 4);
    make_logits(r, c->y, c->count);
    make_logits(r, c->raw, c->count);
}

FS_CORE void run(list_case *c, record *out) {
    fs_list list[2];
    c->y[0] = planted(out, c->y[0]);
    for (int i = 0; i < 2; i++) {
        const fs_list empty = {c->key[i], c->with_raw >> i & 1 ? c->column[i] : NULL, 0, 0, c->keep, c->capacity, 0};
        list[i] = empty;
    }
    /* Ids go round, so that ties come in any order. */
    for (int32_t i = 0; i < c->count; i++)
        list_offer(&list[i >= c->split], order_key(c->y[i], (uint32_t)(i * 37 % OFFERS)), c->raw[i]);
    put_list(out, &list[1]);
    list_merge(&list[0], &list[1]);
    put_list(out, &list[0]);
    list_compact(&list[0]);
    put_list(out, &list[0]);
    list_heapify(&list[0]);
    for (int32_t i = 0; i < list[0].count; i++) {
        const int32_t at = list_at(&list[0], i);
        put(out, "in order", list[0].key[at]);
        if (list[0].raw) put_float(out, "its raw", list[0].raw[at]);
    }
    reached(out, list[0].bound != 0, "bound");
    reached(out, c->keep == c->capacity && list[0].bound != 0, "no room to make");
}

/* -------------------------------------------------------------------------------------------------------- cuts ---- */

enum { CUT = 40, TESTS = 3 };

typedef struct cut_case {
    fs_row_rules rules;
    uint32_t flags;
    fs_mass mass;
    double slack;
    int32_t count;
    uint64_t bound, key[CUT], test[TESTS];
} cut_case;

FS_CORE fs_list list_of(cut_case *c) {
    const fs_list list = {c->key, NULL, c->count, 0, 0, CUT - 1, CUT, c->bound};
    return list;
}

/* A top-p or min-p for which a token is at the edge: the part of the mass, or of the largest term, that it ends. */
static void make_edges(rng *r, const float *y, int32_t n, fs_row_rules *rules) {
    float sorted[CUT];
    double before = 0.0, all = 0.0;
    memcpy(sorted, y, (size_t)n * sizeof *y);
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i; j > 0 && sorted[j] > sorted[j - 1]; j--) {
            const float other = sorted[j];
            sorted[j] = sorted[j - 1], sorted[j - 1] = other;
        }
    const int32_t edge = below(r, n);
    for (int32_t i = 0; i < n; i++) {
        const double term = exp(((double)sorted[i] - (double)sorted[0]) * (double)rules->cut_scale);
        before += i <= edge ? term : 0.0, all += term;
    }
    if (one_in(r, 2) && before > 0.0 && before < all) rules->top_p = (float)(before / all);
    const double below_first = ((double)sorted[edge] - (double)sorted[0]) * (double)rules->cut_scale;
    if (one_in(r, 3) && below_first > -100.0) rules->log_min_p = below_first;
}

/* Off by less than the slack; and at times what only forged or lost parts lead to. */
static void spoil(rng *r, cut_case *c) {
    const double by = (2.0 * unit(r) - 1.0) * 0.99 * c->slack * mass_scaled(&c->mass) / 16777216.0;
    if (-by < (double)c->mass.limb[1]) c->mass.limb[1] += (uint64_t)(int64_t)by;
    if (one_in(r, 40)) c->mass.top = below(r, 65536) - 32768;
    if (one_in(r, 40)) c->mass = mass_empty();
    if (one_in(r, 40)) c->bound = one_in(r, 2) ? UINT64_MAX : c->key[below(r, c->count)] + 1;
}

static void make(rng *r, int64_t, cut_case *c) {
    float y[CUT], l[CUT + FS_GRANULE];
    const int32_t n = 1 + below(r, CUT), id = below(r, 1000);
    c->flags = (uint32_t)below(r, 32);
    c->rules.inverse_temperature = pick(r, {1.0f, 1.0f, 1.0f, 0.5f, 1.0f / 0.7f, 8.0f, 1e-4f, 1e3f, 1e30f});
    c->rules.cut_scale = c->flags & FS_CUT_BEFORE_TEMPERATURE ? 1.0f : c->rules.inverse_temperature;
    c->rules.top_k = one_in(r, 2) ? 1 + below(r, n + 2) : 0;
    c->rules.top_p = pick(r, {1.0f, 1.0f, 0.0f, 0.1f, 0.25f, 0.5f, 0.75f, 0.9f, 0.999f, 1.0f - 0x1p-24f});
    c->rules.log_min_p = log(pick(r, {0.0, 0.0, 0.0, 1e-6, 0.01, 0.25, 0.5, 1.0}));
    make_logits(r, y, n);
    make_edges(r, y, n, &c->rules);
    fs_list list = list_of(c);
    list.keep = one_in(r, 2) ? CUT - 1 : 1 + below(r, CUT - 1);
    for (int32_t i = 0; i < n; i++)
        if (y[i] > -INFINITY || one_in(r, 2)) list_offer(&list, order_key(y[i], (uint32_t)(id + i)), 0.0f);
    list_compact(&list);
    if (!list.count) list_offer(&list, order_key(y[0], 7), 0.0f);
    c->count = list.count, c->bound = list.bound;
    c->mass = mass_empty();
    for (int32_t i = 0; i < CUT + FS_GRANULE; i++) l[i] = i < n ? y[i] * c->rules.cut_scale : -INFINITY;
    for (int32_t i = 0; i < n; i += FS_GRANULE) mass_add_granule(&c->mass, l + i);
    c->slack = one_in(r, 2) ? 0.0 : pick(r, {mass_slack(l[0]), 0.05, 0.5});
    spoil(r, c);
    for (int i = 0; i < TESTS; i++) c->test[i] = order_key(y[below(r, n)], (uint32_t)(id + below(r, n)));
}

FS_CORE void run(cut_case *c, record *out) {
    fs_list list = list_of(c);
    c->key[0] += (uint64_t)out->planted << 32;
    for (int i = 0; i < TESTS; i++) {
        const int side = cut_test(&list, &c->rules, &c->mass, c->slack, c->test[i]);
        put(out, "test", (uint32_t)side);
        reached(out, side > 0, "test in");
        reached(out, side < 0, "test out");
        reached(out, side == 0, "test in doubt");
    }
    list_heapify(&list);
    const fs_cut cut = cut_list(&list, &c->rules, c->flags, &c->mass, c->slack);
    reach_for(out, order_key_logit(list.key[list_at(&list, 0)]) * c->rules.inverse_temperature);
    put(out, "proven", (uint32_t)cut.proven);
    put(out, "possible", (uint32_t)cut.possible);
    put(out, "survivors", (uint32_t)cut.survivors);
    put(out, "last", cut.last);
    put_log(out, "log_z", (float)cut.log_z);
    reached(out, cut.proven && cut.survivors > 0, "proven");
    reached(out, !cut.proven, "open");
    reached(out, !cut.survivors, "empty");
    reached(out, cut.survivors < cut.possible, "in doubt");
    reached(out, cut.survivors > 0 && cut.survivors < list.count, "shorter than the list");
}

/* -------------------------------------------------------------------------------------------- noise and scores ---- */

enum { SCORES = 4 };

typedef struct noise_case {
    uint64_t seed, position;
    uint32_t sample, stream, token;
    int32_t marks;      /* of a walk that is told how many there are */
    uint32_t mark_word; /* what their number is read from */
    fs_row_rules rules;
    float y[SCORES];
    double floor[SCORES];
} noise_case;

static void make(rng *r, int64_t i, noise_case *c) {
    /* A mark whose prefix is 0, and fast noise that is clamped, come once in millions. */
    const struct {
        uint64_t seed;
        uint32_t token;
    } rare[] = {{1, 4385287}, {0, 4288303}};
    const uint64_t edges[] = {0, 1, 0xFFFFFFFFu, UINT64_MAX};
    c->seed = one_in(r, 8) ? edges[below(r, 4)] : random_next(r);
    c->position = one_in(r, 2) ? (uint64_t)i : edges[below(r, 4)];
    c->sample = (uint32_t)below(r, 8), c->stream = (uint32_t)below(r, 3);
    c->token = one_in(r, 8) ? (uint32_t)FS_TOKEN_LIMIT - 2 : (uint32_t)below(r, 300000);
    if (i < 2) c->seed = rare[i].seed, c->token = rare[i].token, c->position = c->sample = c->stream = 0;
    c->marks = 1 + below(r, 16);
    c->mark_word = pick(r, {FS_MARKS_1, FS_MARKS_2, FS_MARKS_3, FS_MARKS_4, FS_MARKS_5}) + (uint32_t)(below(r, 3) - 1);
    const fs_noise noise = noise_row(c->seed, c->position, c->sample, c->stream);
    /* Of 128 ids hardly one is marked: every other case takes one that is. */
    fs_walk walk = noise_walk(noise, c->token / FS_NOISE_BLOCK);
    if (i >= 2 && one_in(r, 2) && noise_next(&walk)) c->token = walk.token;
    c->rules.greedy = one_in(r, 8);
    c->rules.inverse_temperature = c->rules.greedy ? 1.0f : pick(r, {1.0f, 1.0f / 0.7f, 1e3f, 1e-3f});
    make_logits(r, c->y, SCORES);
    for (int s = 0; s < SCORES; s++) {
        const double own = race_score(&c->rules, FS_NOISE_EXACT, noise, c->token, c->y[s]);
        c->floor[s] =
            pick<double>(r, {-INFINITY, own + 1e-3, own + 0.5, own + 5.0, score_key_value(score_key(own, c->token))});
    }
}

/* Below its floor a score may be any or none: what comes of it is none either way. */
FS_CORE uint64_t key_from(const noise_case *c, fs_noise noise, int s, int *spared) {
    const double score = race_score_from(&c->rules, FS_NOISE_EXACT, noise, c->token, c->y[s], c->floor[s]);
    *spared = score == -INFINITY && c->y[s] > -INFINITY;
    return score >= c->floor[s] ? score_key(score, c->token) : FS_KEY_NONE;
}

FS_CORE void run(noise_case *c, record *out) {
    c->seed ^= (uint64_t)out->planted;
    const fs_noise noise = noise_row(c->seed, c->position, c->sample, c->stream);
    const uint32_t block = c->token / FS_NOISE_BLOCK;
    put(out, "row", (uint64_t)noise.r0 << 32 | noise.r1);
    put(out, "row", noise.r2);
    put(out, "spread seed", noise_spread_seed(c->seed, c->position));
    fs_walk walk = noise_walk(noise, block),
            given = noise_walk_of(noise, block, c->marks, noise_mark_words(noise, block, 0));
    while (noise_next(&walk)) put(out, "mark", (uint64_t)walk.token << 32 | walk.prefix);
    while (noise_next(&given)) put(out, "given mark", (uint64_t)given.token << 32 | given.prefix);
    put(out, "mark count", (uint32_t)noise_mark_count(~(c->seed >> (c->marks * 4 - 4))));
    put(out, "mark sum", (uint32_t)noise_mark_sum(c->mark_word) << 1 | (uint32_t)noise_mark_is_open(c->mark_word));
    const int32_t prefix = noise_prefix(noise, c->token);
    const double gumbel = noise_gumbel(noise, c->token);
    const fs_words words = noise_words(noise, c->token, FS_DOMAIN_EXTENSION);
    put(out, "prefix", (uint32_t)prefix);
    put_key(out, "noise", score_key(gumbel, c->token));
    put_key(out, "noise of a group", score_key(noise_gumbel_of(noise, c->token, FS_DOMAIN_GROUP), c->token));
    put_double(out, "unit", noise_unit_of(noise, c->token, FS_DOMAIN_ONLINE));
    put_loose(out, "fast noise", noise_gumbel_fast(noise, c->token));
    put_loose(out, "ceiling", noise_ceiling(prefix < 0 ? c->mark_word & 1 : (uint32_t)prefix));
    put_float(out, "bare ceiling", noise_bare_ceiling(words));
    put(out, "is below it",
        gumbel <= (double)(prefix < 0 ? noise_bare_ceiling(words) : noise_ceiling((uint32_t)prefix)));
    for (int s = 0; s < SCORES; s++) {
        int spared;
        put_key(out, "score", score_key(race_score(&c->rules, FS_NOISE_EXACT, noise, c->token, c->y[s]), c->token));
        put_key(out, "score above", key_from(c, noise, s, &spared));
        reached(out, spared, "below a floor");
    }
    put_loose(out, "fast score", (float)race_score_from(&c->rules, FS_NOISE_FAST, noise, c->token, c->y[0], 0.0));
    reached(out, prefix >= 0, "marked");
    reached(out, c->rules.greedy, "greedy");
}

/* ------------------------------------------------------------------------------------------------------ groups ---- */

enum { GROUPS = 8 };

typedef struct group_case {
    uint64_t seed;
    int32_t count, mode, is_a_law;
    fs_group group[GROUPS];
} group_case;

static void make(rng *r, int64_t, group_case *c) {
    float l[GROUPS][FS_GRANULE];
    c->seed = random_next(r);
    c->count = 1 + below(r, GROUPS);
    c->mode = one_in(r, 2) ? FS_MODE_GROUP_ONLINE : FS_MODE_GROUP_PARALLEL;
    c->is_a_law = !one_in(r, 4);
    make_logits(r, &l[0][0], GROUPS * FS_GRANULE);
    for (int g = 0; g < c->count; g++) {
        c->group[g].mass = mass_empty();
        if (!one_in(r, 6)) mass_add_granule(&c->group[g].mass, l[g]);
        c->group[g].winner.key = one_in(r, 8) ? FS_KEY_NONE : score_key(4.0 * unit(r), (uint32_t)below(r, 1000));
        c->group[g].winner.x = c->group[g].winner.y = (float)unit(r);
    }
}

FS_CORE void run(group_case *c, record *out) {
    const fs_noise noise = noise_row(c->seed, 1, 0, 0);
    fs_choice choice = choice_none(), ranks = choice_none();
    c->group[0].winner.key += (uint64_t)out->planted;
    for (int g = 0; g < c->count; g++) {
        const uint64_t before = choice.best;
        choice_add(&choice, &c->group[g], (uint32_t)g, c->mode, noise);
        choice_add_parallel(&ranks, &c->group[g], (uint32_t)g, noise, FS_DOMAIN_MERGE);
        reached(out, before && choice.best != before, c->mode == FS_MODE_GROUP_ONLINE ? "replaced online" : "replaced");
    }
    put_mass(out, &choice.mass);
    put_as(out, c->mode == FS_MODE_GROUP_ONLINE ? SAME : KEY, "best", choice.best);
    put_key(out, "best of ranks", ranks.best);
    const fs_winner winner = choice_winner(&choice, c->is_a_law), other = choice_winner(&ranks, c->is_a_law);
    put(out, "winner", winner.key);
    put_float(out, "its logit", winner.x);
    put(out, "largest", choice.largest.key);
    put(out, "winner of ranks", other.key);
    reached(out, mass_is_empty(&choice.mass), "no mass");
    reached(out, !mass_is_empty(&choice.mass) && mass_is_far(&choice.mass), "far");
}

/* ------------------------------------------------------------------------------------------------------- heads ---- */

enum { LOGITS = 16 };

typedef struct head_case {
    fs_head head;
    int32_t biased;
    float x[LOGITS];
    uint16_t half[LOGITS];
} head_case;

static void make(rng *r, int64_t, head_case *c) {
    c->head = fs_head_default();
    c->biased = one_in(r, 4);
    c->head.round_to = pick(r, {FS_F32, FS_F16, FS_BF16});
    c->head.scale = pick(r, {1.0f, 0.125f, 1.7f});
    c->head.softcap = pick(r, {0.0f, 0.0f, 30.0f, 50.0f});
    c->head.post_scale = pick(r, {1.0f, 0.3f});
    make_logits(r, c->x, LOGITS);
    for (int i = 0; i < LOGITS; i++) {
        if (one_in(r, 4)) c->x[i] = bits_float((uint32_t)random_next(r)); /* any at all, NaN too */
        c->half[i] = (uint16_t)random_next(r);
    }
}

FS_CORE void run(head_case *c, record *out) {
    c->x[0] = planted(out, c->x[0]);
    c->half[0] ^= (uint16_t)out->planted;
    for (int i = 0; i < LOGITS; i++) {
        put_as(out, c->head.softcap > 0.0f ? LOOSE : SAME, "logit", bits_of(head_logit(&c->head, c->x[i])));
        put_float(out, "as bf16", round_bf16(c->x[i]));
        put_float(out, "as f16", round_f16(c->x[i]));
        put_float(out, "from bf16", widen_bf16(c->half[i]));
        put_float(out, "from f16", widen_f16(c->half[i]));
    }
    if (c->biased) c->head.bias = c->x;
    put(out, "plain", (uint64_t)head_is_plain(&c->head));
    reached(out, head_is_plain(&c->head), "plain");
}

int main(int argc, char **argv) {
    options asked = {};
    for (int i = 1; i < argc; i++) {
        asked.host_only |= !strcmp(argv[i], "--host-only");
        asked.plant |= !strcmp(argv[i], "--plant");
    }
#if !defined(__CUDACC__)
    asked.host_only = 1;
#else
    int devices = 0;
    if (!asked.host_only && (cudaGetDeviceCount(&devices) != cudaSuccess || !devices)) {
        printf("no CUDA device\n");
        return 77;
    }
#endif
    int same = 1;
    same &= compare<mass_case>("mass", 40000, &asked);
    same &= compare<list_case>("list", 20000, &asked);
    same &= compare<cut_case>("cut", 200000, &asked);
    same &= compare<rules_case>("rules", 40000, &asked);
    same &= compare<noise_case>("noise", 40000, &asked);
    same &= compare<wire_case>("wire", 20000, &asked);
    same &= compare<finish_case>("finish", 100000, &asked);
    same &= compare<group_case>("group", 40000, &asked);
    same &= compare<head_case>("head", 20000, &asked);
    puts(same ? "all agree" : "they DIFFER");
    return !same;
}
