/* verify_draw.c - the scenes of `flashsample verify`, and how draws are made and counted.
 *
 * Two scenes. The first has 509 language-like tokens (a prime: no block, granule or vector divides it), stored as
 * logits and as a head of 32 columns that gives the same logits; pair tests use its first 24 tokens. With a screen the
 * first scene has 2,053 tokens (a prime again) of 512 columns: in fewer columns the bounds of 4 bits are too wide to
 * decide a row, and of fewer tokens too few may be settled for a cut. The second scene is one head token and a flat
 * tail of mass 0.001 over 151,935 tokens, where coarse noise fails. All rows of a call are the same; what differs is
 * the position, so each row is one more draw.
 */
#include "verify.h"
#include "cli.h"
#include "device.h"
#include "place.h"
#include "ranks.h"
#include "screen.h"
#include "shards.h"
#include "synth.h"
#include "truth.h"

#include <math.h>
#include <string.h>

#define V_MAIN 509
#define D_MAIN 32
#define V_SCREEN 2053
#define D_SCREEN 512
#define V_PAIRS 24
#define V_TAIL 151936
#define V_TAIL_FAST 40000 /* enough: fast noise ends at 16.6, the head is at log(40,000 / 0.001) = 17.5 */
#define TAIL_MASS 0.001
#define ROWS 256 /* per call */
#define ROWS_TAIL 16
#define FUSED_SAMPLES 8 /* per row where the mode allows: the matmul is the cost, and sample indices get tested along */

/* ---------------------------------------------------------------------------------------------------- scenes ---- */

static struct {
    int64_t V, D;         /* of the first scene */
    int dtype;            /* of the next two */
    void *w;              /* [V, D] */
    char *hidden;         /* [ROWS, D] */
    float *logits, *tail; /* [ROWS, V], [ROWS_TAIL, V_TAIL] */
    uint32_t allow_bits[(V_SCREEN + 31) / 32];
    int32_t allow_index[ROWS]; /* zeros: one mask for all */
    int64_t edit_offset[ROWS + 1];
    int32_t *edit_token;
    float *edit_bias;
    int32_t counts[V_SCREEN];
    int32_t slot[ROWS]; /* zeros: one slot for all, so that penalties need one row of counts */
    int32_t own_slot[ROWS];
} scene;

static const struct {
    int32_t token;
    float bias;
} edits[] = {{0, -1.5f}, {1, -INFINITY}, {7, 2.25f}, {300, 6.0f}, {301, -INFINITY}, {404, 3.0f}, {508, 8.0f}};
#define EDITS ((int)(sizeof edits / sizeof edits[0]))

static void prepare_rules(void) {
    for (int v = 0; v < scene.V; v++) {
        if (v % 3 != 1) scene.allow_bits[v / 32] |= 1u << (v % 32);
        scene.counts[v] = v % 5 == 0 ? 1 + v % 4 : 0;
    }
    scene.edit_token = take_memory(ROWS * EDITS, sizeof *scene.edit_token, "edits");
    scene.edit_bias = take_memory(ROWS * EDITS, sizeof *scene.edit_bias, "edits");
    for (int i = 0; i < ROWS * EDITS; i++) {
        scene.edit_token[i] = edits[i % EDITS].token;
        scene.edit_bias[i] = edits[i % EDITS].bias;
    }
    for (int b = 0; b <= ROWS; b++) scene.edit_offset[b] = b * EDITS;
    for (int b = 0; b < ROWS; b++) scene.own_slot[b] = b;
}

void verify_prepare(int screened, int dtype) {
    scene.V = screened ? V_SCREEN : V_MAIN;
    scene.D = screened ? D_SCREEN : D_MAIN;
    scene.dtype = dtype;
    const int64_t line = scene.D * dtype_bytes(dtype);
    synth s = {scene.V, scene.D, 1, dtype, 1, 0, 0};
    scene.w = take_memory(scene.V, (size_t)line, "a scene");
    scene.hidden = take_memory(ROWS, (size_t)line, "a scene");
    scene.logits = take_memory(ROWS * scene.V, sizeof(float), "a scene");
    scene.tail = take_memory(ROWS_TAIL * V_TAIL, sizeof(float), "a scene");
    synth_weights(&s, scene.w, 1);
    synth_hidden(&s, scene.hidden);
    fs_head head = fs_head_default();
    head.dtype = dtype;
    head.data = scene.w;
    head.rows = scene.V;
    head.dim = scene.D;
    fs_batch batch = fs_batch_default();
    batch.hidden = scene.hidden;
    batch.hidden_dtype = dtype;
    truth_logits(&head, &batch, scene.logits);
    for (int b = 1; b < ROWS; b++) {
        memcpy(scene.hidden + b * line, scene.hidden, (size_t)line);
        memcpy(scene.logits + b * scene.V, scene.logits, (size_t)scene.V * sizeof(float));
    }
    prepare_rules();
}

/* ---------------------------------------------------------------------------------------------------- a call ---- */

static int64_t vocabulary(const verify_rule *r) {
    if (r->count == COUNT_TAIL) return r->noise == FS_NOISE_FAST ? V_TAIL_FAST : V_TAIL;
    return r->count == COUNT_TOKENS ? scene.V : V_PAIRS;
}

static int rows_of(const verify_rule *r) {
    return r->count == COUNT_TAIL ? ROWS_TAIL : ROWS;
}

static int samples_of(const verify_rule *r, leg_kind leg) {
    if (r->count == COUNT_SAMPLES) return 2;
    int grouped = r->mode == FS_MODE_GROUP_PARALLEL || r->mode == FS_MODE_GROUP_ONLINE;
    return leg == LEG_FUSED && !grouped ? FUSED_SAMPLES : 1;
}

static fs_head head_of(const verify_rule *r, leg_kind leg) {
    fs_head h = fs_head_default();
    h.kind = leg == LEG_FUSED ? FS_HEAD_WEIGHTS : FS_HEAD_LOGITS;
    h.dtype = leg == LEG_FUSED ? scene.dtype : FS_F32;
    h.data = leg == LEG_FUSED ? scene.w : r->count == COUNT_TAIL ? scene.tail : scene.logits;
    h.rows = vocabulary(r);
    h.dim = scene.D;
    h.softcap = r->softcap;
    if (leg == LEG_STORED && r->count != COUNT_TAIL) h.stride = scene.V * (int64_t)sizeof(float);
    /* exp(head) : (V-1) exp(0) = 0.999 : 0.001 */
    for (int64_t b = 0; r->count == COUNT_TAIL && b < ROWS_TAIL; b++)
        scene.tail[b * V_TAIL] = (float)log((double)(h.rows - 1) * (1.0 - TAIL_MASS) / TAIL_MASS);
    if (r->count == COUNT_TAIL) h.stride = V_TAIL * (int64_t)sizeof(float);
    return h;
}

static fs_batch batch_of(const verify_rule *r, leg_kind leg, const verify_run *run, const uint64_t *position) {
    fs_batch b = fs_batch_default();
    b.rows = rows_of(r);
    b.hidden = scene.hidden;
    b.hidden_dtype = scene.dtype;
    b.mode = r->mode;
    b.noise = r->noise;
    b.samples = samples_of(r, leg);
    b.group_size = 100;
    b.flags = r->joint ? FS_JOINT_TOP_P : 0;
    b.slot = r->count == COUNT_ROWS ? scene.own_slot : scene.slot;
    b.slots = ROWS;
    b.position = position;
    b.seed_all = run->seed;
    b.substream_all = run->substream;
    if (r->masked) {
        b.allow = scene.allow_bits;
        b.allow_count = 1;
        b.allow_index = scene.allow_index;
    }
    if (r->edited) {
        b.edit_offset = scene.edit_offset;
        b.edit_token = scene.edit_token;
        b.edit_bias = scene.edit_bias;
    }
    if (r->penalised) {
        b.slots = 1;
        b.counts = scene.counts;
    }
    return b;
}

/* The probabilities of this rule's bins [k], and one more of 0. Tokens of a pair are independent, or, without
 * replacement, the second is drawn from what the first left. */
static double *truth_of(const verify_rule *r, leg_kind leg, int64_t *k) {
    const int64_t V = vocabulary(r);
    if (r->count == COUNT_TAIL) {
        double *p = take_memory(3, sizeof *p, "probabilities");
        p[0] = 1.0 - TAIL_MASS;
        p[1] = TAIL_MASS;
        *k = 2;
        return p;
    }
    const fs_head head = head_of(r, leg);
    const verify_run run = {0};
    fs_batch batch = batch_of(r, leg, &run, NULL);
    batch.rules = &r->rules;
    batch.mode = FS_MODE_SAMPLE;
    double *p = take_memory(V + 1, sizeof *p, "probabilities");
    truth_probabilities(&head, &batch, p);
    *k = V;
    if (r->count == COUNT_TOKENS) return p;
    double *joint = take_memory(V * V + 1, sizeof *joint, "probabilities");
    const int apart = r->mode == FS_MODE_WITHOUT_REPLACEMENT;
    for (int64_t i = 0; i < V; i++)
        for (int64_t j = 0; j < V; j++)
            joint[i * V + j] = !apart ? p[i] * p[j] : i == j || p[i] == 0 ? 0.0 : p[i] * p[j] / (1.0 - p[i]);
    *k = V * V;
    return joint;
}

/* Adds one call's tokens [rows, n] to count; returns how many draws (tokens or pairs) they were. A row without a token
 * counts as bin k, which has no probability. */
static int64_t count_tokens(const verify_rule *r, const int32_t *token, int rows, int n, int64_t k, int64_t *count) {
    int64_t V = vocabulary(r), draws = 0;
    int pairs = r->count != COUNT_TOKENS && r->count != COUNT_TAIL;
    for (int i = 0; i + pairs < rows * n; i += 1 + pairs, draws++) {
        int64_t bin = token[i];
        if (r->count == COUNT_TAIL) bin = token[i] < 0 ? -1 : token[i] > 0;
        if (pairs) bin = token[i] < 0 || token[i + 1] < 0 ? -1 : bin * V + token[i + 1];
        count[bin >= 0 && bin < k ? bin : k]++;
    }
    return draws;
}

/* Tests the two bins by the binomial tail itself: a few dozen expected draws are few for chi-squared. */
static void refit_tail(fit *f, const int64_t *count) {
    double expected = (double)f->n * TAIL_MASS, off = (double)count[1] - expected;
    f->bins = 2;
    f->statistic = off * off / expected / (1.0 - TAIL_MASS);
    f->p = binomial_p(count[1], f->n, TAIL_MASS);
}

/* Draws with a mistake, where the rule has what it is about. */
static void plant(plant_kind kind, fs_rules *rules) {
    if (kind == PLANT_TEMPERATURE) rules->temperature.value *= 1.05f;
    if (kind == PLANT_OFF_BY_ONE && rules->top_k.value) rules->top_k.value++;
    if (kind == PLANT_OFF_BY_ONE && rules->top_p.value > 0) rules->top_p.value += 0.01f;
}

/* The name of row b's draw in the call. */
static uint64_t position_of(const verify_rule *r, plant_kind kind, uint64_t call, int b) {
    if (r->count == COUNT_ROWS) return call; /* there the slots tell rows apart */
    uint64_t position = call * (uint64_t)rows_of(r) + (uint64_t)b;
    return kind == PLANT_REPEAT ? position / 2 : position;
}

/* A rule's call where calls read it (device.h), and room for its tokens there and in host memory. */
typedef struct drawing {
    fs_context *context;
    const verify_rule *rule;
    plant_kind plant;
    fs_head head;
    fs_batch batch;
    fs_rules rules;
    fs_result result, host;
    int32_t tokens[ROWS * FUSED_SAMPLES], others[ROWS * FUSED_SAMPLES];
} drawing;

/* Makes the call on this head, in so many shards or, for 0, in one call, and fetches its tokens. */
static void draw_call(drawing *d, const fs_head *head, int shards) {
    fs_context *context = d->context;
    if (shards) sample_in_shards(context, head, &d->batch, &d->result, shards);
    else if (d->plant == PLANT_SAME_NOISE)
        check(context, ranks_sample_with_same_noise(context, head, &d->batch, &d->result));
    else check(context, ranks_sample(context, head, &d->batch, &d->result));
    fetch_result(&d->host, &d->result, &d->batch);
}

/* Whether the call gives the same tokens once more, bit for bit, in one call or from W. The tokens stay. */
static int same_tokens(drawing *d, const fs_head *head, int shards) {
    const size_t bytes = sizeof(int32_t) * (size_t)(d->batch.rows * d->batch.samples);
    memcpy(d->others, d->tokens, bytes);
    draw_call(d, head, shards);
    const int same = memcmp(d->others, d->tokens, bytes) == 0;
    memcpy(d->tokens, d->others, bytes);
    return same;
}

/* Clears a screen that the context has compared with W already. */
static void lose_screen(fs_context *context, const fs_head *head, int format) {
    const size_t header = screen_header_bytes(context, head, format), bytes = head->screen_bytes - header;
    device_upload((char *)(uintptr_t)head->screen + header, take_memory((int64_t)bytes, 1, "zeros"), bytes);
}

/* The rule's call, laid out where calls read it. */
static void prepare_call(drawing *d, leg_kind leg, const verify_run *run, const uint64_t *position) {
    fs_head head = head_of(d->rule, leg);
    if (run->plant != PLANT_SAME_NOISE) head = ranks_slice(&head); /* that mistake is about slices */
    fs_batch batch = batch_of(d->rule, leg, run, position);
    d->rules = d->rule->rules;
    plant(run->plant, &d->rules);
    batch.rules = &d->rules;
    d->host = fs_result_default();
    d->host.tokens = d->tokens;
    d->head = place_head(&head, batch.rows);
    d->batch = place_batch(&batch, &head);
    d->result = place_result(&d->host, &batch);
    screen_make(d->context, &d->head, run->screen, run->seed, 0);
    if (run->plant == PLANT_SCREEN) lose_screen(d->context, &d->head, run->screen);
}

outcome verify_draw(fs_context *context, const verify_rule *rule, leg_kind leg, const verify_run *run) {
    int64_t k, want = verify_draws(rule, run->draws);
    double *probability = truth_of(rule, leg, &k); /* [k + 1]; bin k is no token at all */
    int64_t *count = take_memory(k + 1, sizeof *count, "counts");
    uint64_t position[ROWS] = {0};
    drawing d = {.context = context, .rule = rule, .plant = run->plant};
    prepare_call(&d, leg, run, position);
    const int64_t rows = d.batch.rows;
    fs_head from_w = d.head;
    from_w.screen = NULL;
    from_w.screen_bytes = 0;
    outcome o = {.same_tokens = 1, .same_as_w = 1};
    for (uint64_t call = 0; want > 0; call++) {
        for (int b = 0; b < rows; b++) position[b] = position_of(rule, run->plant, call, b);
        device_upload((void *)(uintptr_t)d.batch.position, position, (size_t)rows * sizeof *position);
        draw_call(&d, &d.head, rule->shards);
        o.rows += rows;
        o.screened_rows += counters_of(context).screened_rows;
        if (run->screen) o.same_as_w &= same_tokens(&d, &from_w, rule->shards);
        if (rule->shards && rule->mode == FS_MODE_SAMPLE && call < 4) o.same_tokens &= same_tokens(&d, &d.head, 0);
        int64_t got = count_tokens(rule, d.tokens, (int)rows, d.batch.samples, k, count);
        want -= got;
        run->tick(got);
    }
    o.fit = fit_counts(count, probability, k + 1, 25.0);
    if (rule->count == COUNT_TAIL) refit_tail(&o.fit, count);
    return o;
}
