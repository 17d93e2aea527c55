/* suite_planted.c - a small sampler built from src/core, and what it looks like with one error planted in it.
 * Without an error it draws the library's tokens (test_power.c asserts it). Each error is one `self->error ==`
 * below. */
#include "suite.h"

#include "core/cut.h"
#include "core/key.h"
#include "core/noise.h"

/* Ids that race together: all of them, a shard, or a group. */
typedef struct part {
    int64_t from, to;
    int64_t shift;   /* the noise of id v is that of token v - shift; 0 unless planted */
    uint64_t *order; /* [live] order keys by l, descending */
    int64_t live;
    double log_mass;
} part;

/* Which of 128 places are marked. */
typedef struct marks {
    uint64_t bit[2];
} marks;

typedef struct field {
    const planted *self;
    const draws *d;
    float *l;   /* [vocab] -inf for what the cuts remove */
    float late; /* what a score is multiplied by after the noise; 1 unless planted */
    part *part;
    int64_t parts;
    marks *marks; /* one race's, by block */
} field;

/* ------------------------------------------------------------------------------------------------------ noise ---- */

static fs_noise name_of(const planted *self, const draws *d, int64_t b, int32_t sample) {
    uint64_t seed = d->seed ? d->seed[b] : noise_spread_seed(d->seed_all, (uint64_t)b);
    uint64_t position = d->position[b];
    uint32_t substream = d->substream ? d->substream[b] : d->substream_all;
    if (self->error == PLANTED_ROW_SEED_IGNORED) seed = d->seed ? d->seed[0] : d->seed_all;
    if (self->error == PLANTED_POSITION_IGNORED) position = 0;
    if (self->error == PLANTED_SEED_PLUS_SAMPLE) return noise_row(seed + (uint64_t)sample, position, 0, substream);
    return noise_row(seed, position, (uint32_t)sample, substream);
}

#define UNMARKED (-1)

/* The prefix that comes with the token's mark. */
static int32_t prefix_of(fs_noise noise, uint32_t token) {
    fs_walk walk = noise_walk(noise, token / FS_NOISE_BLOCK);
    while (noise_next(&walk))
        if (walk.token == token) return (int32_t)walk.prefix;
    return UNMARKED;
}

static double exponential(fs_noise noise, uint32_t token, int32_t prefix) {
    fs_words r = noise_words(noise, token, FS_DOMAIN_EXTENSION);
    if (prefix == UNMARKED) return FS_NOISE_C - log1p(-noise_unit(r));
    uint64_t rest = (r.w[0] | (uint64_t)r.w[1] << 32) >> 28;
    return -log1p(-FS_NOISE_Q * noise_centre((uint64_t)prefix << 36 | rest));
}

/* u = exp(-E) is uniform; the planted maps lose what lies between 1 and the next number of their grid. */
static double gumbel_24_bits(double e) {
    double u = floor(exp(-e) * 16777216.0) / 16777216.0;
    u = u > 1.0 - 1.0 / 16777216.0 ? 1.0 - 1.0 / 16777216.0 : u;
    return -log(-log(u));
}

/* CUDA documents 2^-22 as the absolute error of its fast log2 between 0.5 and 2, where the true value goes to 0. */
static double gumbel_fast_log(double e) {
    double steps = rint(e / 0.69314718055994530942 * 4194304.0);
    return -log((steps < 1.0 ? 1.0 : steps) * 0.69314718055994530942 / 4194304.0);
}

static double gumbel(const planted *self, double e) {
    if (self->error == PLANTED_24_BIT_NOISE) return gumbel_24_bits(e);
    if (self->error == PLANTED_FAST_LOG) return gumbel_fast_log(e);
    return -log(e);
}

/* ------------------------------------------------------------------------------------------------------- race ---- */

typedef struct race {
    field *f;
    const part *p;
    fs_noise noise;
    double threshold; /* tokens whose v is above exp(l - threshold) are passed over; -inf: none */
    uint64_t key;     /* of the best so far */
    double best;      /* its score before `late` */
} race;

static void offer(race *r, int64_t id, int32_t prefix) {
    const double l = (double)r->f->l[id];
    if (!(l > -INFINITY)) return;
    if (r->f->self->error == PLANTED_DROPPED_BLOCK && id / FS_NOISE_BLOCK == 1) return;
    double e = exponential(r->noise, (uint32_t)(id - r->p->shift), prefix);
    if (r->threshold > -INFINITY && -expm1(-e) > exp(l - r->threshold)) return;
    double s = l + gumbel(r->f->self, e);
    uint64_t key = score_key(s * (double)r->f->late, (uint32_t)id);
    if (key > r->key) r->key = key, r->best = s;
}

/* Marked tokens, then the others by falling logit as long as one can still win. The planted noise differs from the
 * exact one by less than the slack where tokens are not marked. */
static void scan(race *r) {
    const part *p = r->p;
    const int64_t first = (p->from - p->shift) / FS_NOISE_BLOCK, last = (p->to - p->shift - 1) / FS_NOISE_BLOCK;
    marks *marked = r->f->marks;
    for (int64_t block = first; block <= last; block++) {
        fs_walk walk = noise_walk(r->noise, (uint32_t)block);
        while (noise_next(&walk)) {
            int64_t id = (int64_t)walk.token + p->shift;
            if (id >= p->from && id < p->to) offer(r, id, (int32_t)walk.prefix);
        }
        memcpy(marked[block - first].bit, walk.taken, sizeof walk.taken);
    }
    for (int64_t i = 0; i < p->live; i++) {
        int64_t id = order_key_token(p->order[i]), token = id - p->shift;
        double reach = r->best > r->threshold ? r->best : r->threshold;
        if ((double)r->f->l[id] <= reach - FS_NOISE_G - 1e-3) break;
        uint64_t bits = marked[token / FS_NOISE_BLOCK - first].bit[token / 64 % 2];
        if (!(bits >> token % 64 & 1)) offer(r, id, UNMARKED);
    }
}

/* A race may start from a threshold that no score has reached yet, if it is confirmed in the end. */
static void scan_guessed(race *r) {
    const double guess = r->p->log_mass - log(4.0);
    scan(r);
    /* A best score above the guess has passed it, and so it is the winner there too. */
    if (r->best >= guess) return;
    r->key = FS_KEY_NONE;
    r->best = -INFINITY;
    r->threshold = guess;
    scan(r);
    r->threshold = -INFINITY;
    if (r->key == FS_KEY_NONE) {
        int64_t id = order_key_token(r->p->order[0]), token = id - r->p->shift;
        offer(r, id, prefix_of(r->noise, (uint32_t)token));
    }
}

static race run_race(field *f, const part *p, fs_noise noise) {
    race r = {f, p, noise, -INFINITY, FS_KEY_NONE, -INFINITY};
    if (p->live == 0) return r;
    if (f->self->error == PLANTED_GUESSED_THRESHOLD) scan_guessed(&r);
    else scan(&r);
    return r;
}

/* ------------------------------------------------------------------------------------------------------ draws ---- */

static uint64_t draw_plain(field *f, fs_noise noise) {
    uint64_t best = FS_KEY_NONE;
    for (int64_t k = 0; k < f->parts; k++) {
        race r = run_race(f, &f->part[k], noise);
        if (r.key > best) best = r.key;
    }
    return best;
}

static uint64_t draw_group_parallel(field *f, fs_noise noise, uint32_t domain) {
    uint64_t winner = FS_KEY_NONE;
    double best = -INFINITY;
    for (int64_t k = 0; k < f->parts; k++) {
        if (f->part[k].live == 0) continue;
        double s = f->part[k].log_mass + noise_gumbel_of(noise, (uint32_t)k, domain);
        if (s > best) best = s, winner = run_race(f, &f->part[k], noise).key;
    }
    return winner;
}

static uint64_t draw_group_online(field *f, fs_noise noise) {
    uint64_t winner = FS_KEY_NONE;
    double mass = 0.0;
    for (int64_t k = 0; k < f->parts; k++) {
        if (f->part[k].live == 0) continue;
        mass += exp(f->part[k].log_mass);
        double u = noise_unit_of(noise, (uint32_t)k, FS_DOMAIN_ONLINE);
        if (winner == FS_KEY_NONE || u < exp(f->part[k].log_mass) / mass) winner = run_race(f, &f->part[k], noise).key;
    }
    return winner;
}

static uint64_t draw_one(field *f, fs_noise noise) {
    if (f->d->mode == FS_MODE_GROUP_ONLINE) return draw_group_online(f, noise);
    if (f->d->mode == FS_MODE_GROUP_PARALLEL)
        return draw_group_parallel(f, noise, f->d->shards > 1 ? FS_DOMAIN_MERGE : FS_DOMAIN_GROUP);
    return draw_plain(f, noise);
}

/* The largest key below this one, over all tokens. */
static uint64_t next_key(field *f, fs_noise noise, uint64_t below) {
    uint64_t best = FS_KEY_NONE;
    for (int64_t k = 0; k < f->parts; k++)
        for (int64_t i = 0; i < f->part[k].live; i++) {
            race r = {f, &f->part[k], noise, -INFINITY, FS_KEY_NONE, -INFINITY};
            int64_t id = order_key_token(r.p->order[i]), token = id - r.p->shift;
            offer(&r, id, prefix_of(noise, (uint32_t)token));
            if (r.key > best && r.key < below) best = r.key;
        }
    return best;
}

static void draw_row(field *f, int64_t b) {
    const draws *d = f->d;
    uint64_t key = UINT64_MAX;
    for (int32_t i = 0; i < d->samples; i++) {
        if (d->mode == FS_MODE_WITHOUT_REPLACEMENT) key = next_key(f, name_of(f->self, d, b, 0), key);
        else key = draw_one(f, name_of(f->self, d, b, i));
        /* A group whose block was dropped has no winner; any token will do. */
        d->tokens[b * d->samples + i] = key == FS_KEY_NONE ? (int32_t)d->first : (int32_t)score_key_token(key);
        if (d->score) d->score[b * d->samples + i] = (float)score_key_value(key);
    }
}

/* ------------------------------------------------------------------------------------------------------- cuts ---- */

/* Entries each block of 128 ids may put on a list. Fewer than the top-k of the tests, so that certificates do fail. */
#define BLOCK_KEEPS 16

static fs_list new_list(int32_t capacity, int32_t keep) {
    fs_list list = {.key = new_array(capacity, sizeof(uint64_t)), .capacity = capacity, .keep = keep};
    return list;
}

static fs_list list_blocks(const draws *d) {
    fs_list all = new_list((int32_t)d->vocab, (int32_t)d->vocab);
    for (int64_t from = d->first; from < d->last; from += FS_NOISE_BLOCK) {
        fs_list block = new_list(2 * BLOCK_KEEPS, BLOCK_KEEPS);
        for (int64_t v = from; v < d->last && v < from + FS_NOISE_BLOCK; v++)
            if (d->logits[v] > -INFINITY) list_offer(&block, order_key(d->logits[v], (uint32_t)v), 0.0f);
        list_compact(&block);
        for (int32_t i = 0; i < block.count; i++) all.key[all.count++] = block.key[i];
        if (block.bound > all.bound) all.bound = block.bound;
        free(block.key);
    }
    return all;
}

/* Top-k by candidate lists with a certificate. Returns whether the lists prove it; then survives [vocab] is set. */
static int cut_by_lists(const planted *self, const draws *d, char *survives) {
    fs_list list = list_blocks(d);
    int proven = list.count >= d->rule.top_k.value;
    qsort(list.key, (size_t)list.count, sizeof *list.key, descending);
    for (int32_t i = 0; proven && i < d->rule.top_k.value; i++) {
        uint64_t key = list.key[i];
        int above = key > list.bound;
        if (self->error == PLANTED_TIED_CERTIFICATE) above = key >> 32 >= list.bound >> 32;
        proven = above;
    }
    for (int32_t i = 0; proven && i < d->rule.top_k.value; i++) survives[order_key_token(list.key[i])] = 1;
    free(list.key);
    return proven;
}

/* Moves the end of a top-p cut by one token of the total order. */
static void misplace_cut(const planted *self, const draws *d, char *survives) {
    uint64_t last_in = UINT64_MAX, first_out = FS_KEY_NONE;
    int64_t kept = 0;
    for (int64_t v = d->first; v < d->last; v++) {
        uint64_t key = order_key(d->logits[v], (uint32_t)v);
        kept += survives[v];
        if (survives[v] && key < last_in) last_in = key;
        if (!survives[v] && d->logits[v] > -INFINITY && key > first_out) first_out = key;
    }
    if (self->error == PLANTED_TOP_P_ONE_MORE && first_out) survives[order_key_token(first_out)] = 1;
    if (self->error == PLANTED_TOP_P_ONE_LESS && kept > 1) survives[order_key_token(last_in)] = 0;
}

static void cut(const planted *self, const draws *d, char *survives) {
    const int only_top_k = d->rule.top_k.value > 0 && d->rule.top_p.value >= 1.0f && d->rule.min_p.value == 0.0f &&
                           d->flags == 0;
    if (only_top_k && cut_by_lists(self, d, survives)) return;
    double *law = new_array(d->vocab, sizeof *law);
    law_of(d, law);
    for (int64_t v = d->first; v < d->last; v++) survives[v] = law[v] > 0.0;
    if (d->rule.top_p.value < 1.0f) misplace_cut(self, d, survives);
    free(law);
}

/* ------------------------------------------------------------------------------------------------------ field ---- */

static void fill_logits(field *f) {
    const draws *d = f->d;
    const float inverse = 1.0f / d->rule.temperature.value;
    char *survives = new_array(d->vocab, 1);
    cut(f->self, d, survives);
    f->late = f->self->error == PLANTED_LATE_TEMPERATURE ? inverse : 1.0f;
    for (int64_t v = 0; v < d->vocab; v++) {
        f->l[v] = f->self->error == PLANTED_LATE_TEMPERATURE ? d->logits[v] : d->logits[v] * inverse;
        if (!survives[v]) f->l[v] = -INFINITY;
    }
    free(survives);
}

static void add_part(field *f, int64_t from, int64_t to) {
    part *p = &f->part[f->parts++];
    double mass = 0.0;
    p->from = from;
    p->to = to;
    p->shift = f->self->error == PLANTED_LOCAL_NOISE ? (f->d->shards > 1 ? from : f->d->first) : 0;
    p->order = new_array(to - from, sizeof *p->order);
    for (int64_t v = from; v < to; v++) {
        if (!(f->l[v] > -INFINITY)) continue;
        p->order[p->live++] = order_key(f->l[v], (uint32_t)v);
        mass += exp((double)f->l[v]);
    }
    qsort(p->order, (size_t)p->live, sizeof *p->order, descending);
    p->log_mass = log(mass);
    if (f->self->error == PLANTED_GROUP_BY_MAX && p->live) p->log_mass = (double)order_key_logit(p->order[0]);
}

static void split(field *f) {
    const draws *d = f->d;
    const int64_t size = d->last - d->first;
    const int grouped = d->shards <= 1 && (d->mode == FS_MODE_GROUP_PARALLEL || d->mode == FS_MODE_GROUP_ONLINE);
    f->part = new_array(grouped ? d->last / d->group_size + 1 : d->shards, sizeof *f->part);
    if (grouped) {
        for (int64_t from = 0; from < d->last; from += d->group_size)
            add_part(f, from, from + d->group_size < d->last ? from + d->group_size : d->last);
        return;
    }
    for (int32_t i = 0; i < d->shards; i++)
        add_part(f, d->first + size * i / d->shards, d->first + size * (i + 1) / d->shards);
}

static void planted_draw(void *self, const draws *d) {
    field f = {.self = self, .d = d};
    f.l = new_array(d->vocab, sizeof *f.l);
    f.marks = new_array(d->vocab / FS_NOISE_BLOCK + 2, sizeof *f.marks);
    fill_logits(&f);
    split(&f);
    for (int64_t b = 0; b < d->rows; b++) draw_row(&f, b);
    for (int64_t k = 0; k < f.parts; k++) free(f.part[k].order);
    free(f.part);
    free(f.marks);
    free(f.l);
}

sampler planted_sampler(planted *self) {
    sampler s = {planted_draw, self};
    return s;
}
