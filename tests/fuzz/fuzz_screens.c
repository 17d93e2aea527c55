#define _DEFAULT_SOURCE /* setenv, MAP_ANONYMOUS */
/* fuzz_screens.c - draws by a screen are the draws without it: tokens, scores, logits and status, bit for bit.
 *
 *   fuzz_screens [--plant scales|bounds] [--calls N] [--seed S] [--first K]
 *
 * A case is a head by chance (size, dtype, outliers, duplicates), and for a screen of each format hidden states of
 * many kinds and a call of every kind below, with the screen and without: 2,304 rows. In the end a table says how many
 * rows there were of each kind and format, and which share of them the screen decided: none at all is a fault, since
 * the comparison would then show nothing. --plant spoils every screen that is made, and the program must fail. */
#include "fuzz.h"
#include "screens.h"

#include "core/needs.h"
#include "screen/screen_strips.h"

#include <sys/mman.h>

enum { V_MOST = 4096, FIRST_MOST = 96, D_MOST = 256, ROWS = 48, SAMPLES = 5, EDITS = 12, WORDS = V_MOST / 32 };

/* Kinds of calls. The last reads W, since its mass is the whole row's. */
#define KIND_TABLE(KIND)                                                                                               \
    KIND(GREEDY, "greedy")                                                                                             \
    KIND(TEMPERATURE, "temperature")                                                                                   \
    KIND(TOP_K, "top-k")                                                                                               \
    KIND(TOP_K_TOP_P, "top-k, top-p")                                                                                  \
    KIND(MIN_P, "min-p")                                                                                               \
    KIND(MASK, "mask")                                                                                                 \
    KIND(EDITED, "edits")                                                                                              \
    KIND(PENALTIES, "penalties")                                                                                       \
    KIND(N_SAMPLES, "2 to 5 samples")                                                                                  \
    KIND(WITHOUT_REPLACEMENT, "without replacement")                                                                   \
    KIND(ANYTHING, "any of them together")                                                                             \
    KIND(TOP_P_ALONE, "top-p alone: reads W")
#define KIND_ID(id, name) id,
#define KIND_NAME(id, name) name,
typedef enum kind { KIND_TABLE(KIND_ID) KINDS } kind;
static const char *const kind_names[KINDS] = {KIND_TABLE(KIND_NAME)};

enum { INT8, INT4_64, INT4_128, MIXED, FORMATS }; /* as screen_kind has them */
static const char *const format_names[FORMATS] = {"8 bits", "4 bits, 64", "4 bits, 128", "4 bits and 8"};
static const char *const dtype_names[] = {"f32", "f16", "bf16"}; /* FS_F32, FS_F16, FS_BF16 */

typedef struct tally {
    int64_t rows, by_screen, dots;
} tally;

/* In memory that outlives the process of the cases. */
typedef struct all_tallies {
    tally kind[KINDS][FORMATS], dtype[3][FORMATS];
} all_tallies;
static all_tallies *tables;

static enum { NOTHING, SCALES, BOUNDS } planted;
static fs_context *one_thread, *three_threads;

/* ------------------------------------------------------------------------------------------------------- heads ---- */

typedef struct subject {
    fs_context *context;
    fs_head head;
    fs_screen_options options;
    int format, made; /* INT8, ...; how its weights were made: NORMAL, ... */
    size_t bytes;
} subject;

static _Alignas(64) float weights[V_MOST * D_MOST], hidden[ROWS * D_MOST];
static float bias[V_MOST];
static _Alignas(64) unsigned char screen[2 * V_MOST * D_MOST + (1 << 16)];

static float weight_at(const fs_head *head, int64_t v, int64_t d) {
    return element_at((const char *)head->data + v * head->dim * bytes_of(head->dtype), format_of(head->dtype), d);
}

static void make_head(rng *r, subject *s) {
    fs_head *h = &s->head;
    *h = fs_head_default();
    h->dtype = (int32_t)below(r, 3);
    h->first_token = one_in(r, 6) ? below(r, FIRST_MOST) : 0;
    h->rows = one_in(r, 3) ? 500 + below(r, V_MOST - FIRST_MOST - 500) : 500 + below(r, 1000);
    h->dim = one_in(r, 4) ? 64 << below(r, 3) : 64 + below(r, 193);
    h->data = weights;
    s->made = (int)below(r, HEAD_KINDS);
    for (int64_t v = 0; v < h->rows; v++)
        for (int64_t d = 0; d < h->dim; d++) {
            char *at = (char *)weights + (v * h->dim + d) * bytes_of(h->dtype);
            put_number(h->dtype, at, (float)number_of(s->made, r, v, d, h->dim));
        }
    const size_t line = (size_t)(h->dim * bytes_of(h->dtype));
    for (int64_t v = 0; s->made == DUPLICATES && v + 1 < h->rows; v += 2)
        memcpy((char *)weights + (size_t)(v + 1) * line, (char *)weights + (size_t)v * line, line);
    for (int64_t v = 0; v < h->rows; v++) bias[v] = 2.0f * unit(r) - 1.0f;
    if (one_in(r, 6)) h->bias = bias;
    if (one_in(r, 6)) h->softcap = 30.0f;
    if (one_in(r, 6)) h->scale = 0.7f;
    if (one_in(r, 6)) h->post_scale = 1.3f;
    if (one_in(r, 6)) h->round_to = one_in(r, 2) ? FS_BF16 : FS_F16;
    if (one_in(r, 6)) h->vocab = h->first_token + h->rows - 5;
}

/* --plant: 16-bit scales whose exponent is one too small; or bounds that leave out what rounding has taken. */
static void spoil(subject *s) {
    fs_screen_header *header = (fs_screen_header *)(void *)screen;
    const fs_screen of = screen_of(screen);
    if (planted == BOUNDS) header->reach = 0.0f;
    for (int64_t i = 0; i < screen_strips(s->head.rows); i++) {
        unsigned char *strip = screen + (screen_strip(&of, i) - screen);
        fs_strip_head *norms = (fs_strip_head *)(void *)strip;
        for (int t = 0; planted == BOUNDS && t < FS_SCREEN_TOKENS; t++) norms->norm[t] = 0.0f;
        for (int64_t k = 0; k < of.records; k++) {
            uint16_t *tail =
                (uint16_t *)(void *)(strip + (strip_record(&of, strip, k) - strip) + of.record_bytes - FS_SCREEN_TAIL);
            const int scales = of.format == FS_SCREEN_INT8 ? 16 : 32;
            for (int t = 0; planted == SCALES && t < scales; t++) tail[t] = (uint16_t)(tail[t] - (tail[t] ? 0x80 : 0));
            for (int t = scales; planted == BOUNDS && t < 32; t++) tail[t] = 0;
        }
    }
    if (fs_strips_sum(s->context, header, screen, &header->sums) != FS_OK) fuzz_fault("%s", fs_error_text(s->context));
    header->hash = screen_header_hash(header);
}

static void make_screen(rng *r, subject *s) {
    s->options = screen_kind(s->format);
    if (s->format == MIXED && one_in(r, 2)) s->options.columns = 64 * (1 + (int32_t)below(r, 3));
    s->options.seed = random_next(r) | 1;
    if (fs_screen_size(s->context, &s->head, &s->options, &s->bytes) != FS_OK || s->bytes > sizeof screen ||
        fs_screen_build(s->context, &s->head, &s->options, screen, s->bytes) != FS_OK)
        fuzz_fault("a screen of %lld x %lld: %s", (long long)s->head.rows, (long long)s->head.dim,
                   fs_error_text(s->context));
    if (planted) spoil(s);
}

/* ------------------------------------------------------------------------------------------------ hidden states ---- */

/* Adds so many times a token's weights; those of ALL_SIZES are made as long as others. */
static void turn_towards(const subject *s, int64_t v, float by, float *h) {
    float square = 0.0f;
    for (int64_t d = 0; d < s->head.dim; d++) square += weight_at(&s->head, v, d) * weight_at(&s->head, v, d);
    if (square > 0.0f && s->made == ALL_SIZES) by /= sqrtf(square);
    for (int64_t d = 0; d < s->head.dim; d++) h[d] += by * weight_at(&s->head, v, d);
}

/* A row: one that makes some tokens likely, by Zipf's law, as a language model's; or one that is hard for a bound. */
static void make_row(rng *r, const subject *s, float *h) {
    const int64_t V = s->head.rows, D = s->head.dim;
    const int64_t what = below(r, 12);
    const float deviation = 0.3f + 2.0f * unit(r), most = 6.0f + 8.0f * unit(r);
    for (int64_t d = 0; d < D; d++) h[d] = what == 0 ? 0.0f : deviation * (float)random_normal(r);
    if (what == 1) /* a token's own residual: of 8 bits the bound is just reached */
        for (int64_t v = below(r, V), d = 0; s->format == INT8 && d < D; d++) {
            const fs_screen of = screen_of(screen);
            h[d] = (float)(((double)weight_at(&s->head, v, d) - image_of(&of, v, d)) * 1e4);
        }
    if (what == 2) turn_towards(s, below(r, V), 3.0f * most, h);
    if (what == 3)
        for (int64_t d = below(r, 20); d < D; d += 20 + below(r, 100)) h[d] *= 30.0f;
    if (what >= 5)
        for (int i = 1 + (int)below(r, 20); i > 0; i--) turn_towards(s, below(r, V), most - 1.3f * logf((float)i), h);
    const float times = one_in(r, 6) ? 10.0f : 1.0f;
    for (int64_t d = 0; d < D; d++) h[d] *= times;
}

static void make_hidden_states(rng *r, const subject *s, int32_t dtype) {
    float row[D_MOST];
    for (int64_t b = 0; b < ROWS; b++) {
        make_row(r, s, row);
        for (int64_t d = 0; d < s->head.dim; d++)
            put_number(dtype, (char *)hidden + (b * s->head.dim + d) * bytes_of(dtype), row[d]);
    }
}

/* -------------------------------------------------------------------------------------------------------- calls ---- */

static struct {
    float temperature[ROWS], top_p[ROWS], min_p[ROWS], repetition[ROWS], frequency[ROWS], presence[ROWS];
    int32_t top_k[ROWS];
    uint32_t allow[ROWS][WORDS], seen[ROWS][WORDS];
    int64_t edit_offset[ROWS + 1], count_offset[ROWS + 1];
    int32_t edit_token[ROWS * EDITS], count_token[ROWS * EDITS], count_value[ROWS * EDITS];
    float edit_bias[ROWS * EDITS];
} rules;

static void make_rules(rng *r, int64_t vocab) {
    static const float temperatures[] = {0.1f, 0.3f, 0.7f, 1.0f, 1.0f, 1.5f, 2.5f, 5.0f};
    const int64_t most_k = one_in(r, 2) ? 4 : 50; /* of all rows: lists are as long as the longest */
    for (int b = 0; b < ROWS; b++) {
        rules.temperature[b] = PICK(r, temperatures);
        rules.top_k[b] = 1 + (int32_t)below(r, most_k);
        rules.top_p[b] = 0.3f + 0.7f * unit(r);
        rules.min_p[b] = 0.02f + 0.5f * unit(r) * unit(r);
        rules.repetition[b] = 0.7f + 0.8f * unit(r);
        rules.frequency[b] = unit(r) - 0.3f, rules.presence[b] = unit(r) - 0.3f;
        for (int w = 0; w < WORDS; w++) {
            rules.allow[b][w] = (uint32_t)(random_next(r) | random_next(r));
            rules.seen[b][w] = (uint32_t)(random_next(r) & random_next(r) & random_next(r));
        }
        rules.edit_offset[b + 1] = rules.count_offset[b + 1] = EDITS * (b + 1);
    }
    for (int i = 0; i < ROWS * EDITS; i++) {
        rules.edit_token[i] = (int32_t)below(r, vocab), rules.count_token[i] = (int32_t)below(r, vocab);
        rules.count_value[i] = 1 + (int32_t)below(r, 3);
        rules.edit_bias[i] = one_in(r, 4) ? -INFINITY : 12.0f * unit(r) - 6.0f;
    }
}

static void add_rule(rng *r, kind k, fs_batch *batch) {
    if (k != GREEDY) rules_of(batch)->temperature.per_slot = rules.temperature;
    if (k == TOP_K || k == TOP_K_TOP_P) rules_of(batch)->top_k.per_slot = rules.top_k;
    if (k == TOP_K_TOP_P || k == TOP_P_ALONE) rules_of(batch)->top_p.per_slot = rules.top_p;
    if (k == MIN_P) rules_of(batch)->min_p.per_slot = rules.min_p;
    if (k == MASK) batch->allow = rules.allow[0], batch->allow_stride = sizeof rules.allow[0];
    if (k == EDITED)
        batch->edit_offset = rules.edit_offset, batch->edit_token = rules.edit_token,
        batch->edit_bias = rules.edit_bias;
    if (k == PENALTIES) {
        batch->seen = rules.seen[0], batch->seen_stride = sizeof rules.seen[0];
        batch->count_offset = rules.count_offset, batch->count_token = rules.count_token;
        batch->count_value = rules.count_value;
        rules_of(batch)->repetition.per_slot = rules.repetition, rules_of(batch)->frequency.per_slot = rules.frequency,
        rules_of(batch)->presence.per_slot = rules.presence;
    }
    if (k == N_SAMPLES || k == WITHOUT_REPLACEMENT) batch->samples = 2 + (int32_t)below(r, SAMPLES - 1);
    if (k == WITHOUT_REPLACEMENT) batch->mode = FS_MODE_WITHOUT_REPLACEMENT;
}

static fs_batch make_batch(rng *r, kind k, int32_t dtype) {
    static const uint32_t flags[] = {FS_KEEP_TIES_TOP_K, FS_KEEP_TIES_TOP_P, FS_MIN_P_LAST, FS_CUT_BEFORE_TEMPERATURE,
                                     FS_EDITS_LAST};
    fs_batch batch = fs_batch_default();
    batch.rows = ROWS, batch.hidden = hidden, batch.hidden_dtype = dtype;
    batch.seed_all = random_next(r), batch.position_all = random_next(r) >> below(r, 64);
    rules_of(&batch)->temperature.value = k == GREEDY ? 0.0f : 1.0f;
    add_rule(r, k, &batch);
    for (int more = GREEDY; k == ANYTHING && more < ANYTHING; more++)
        if (more != TOP_K_TOP_P && one_in(r, 3)) add_rule(r, (kind)more, &batch);
    if (k == ANYTHING && (rules_of(&batch)->top_k.per_slot || rules_of(&batch)->min_p.per_slot) && one_in(r, 3))
        rules_of(&batch)->top_p.per_slot = rules.top_p;
    if (k == ANYTHING && one_in(r, 2)) batch.flags = PICK(r, flags) | PICK(r, flags);
    return batch;
}

typedef struct drawn {
    int32_t token[ROWS * SAMPLES];
    float score[ROWS * SAMPLES], logit[ROWS * SAMPLES];
    uint32_t status[ROWS];
    tally tally;
} drawn;

static void draw(const subject *s, const fs_batch *batch, int screened, drawn *d) {
    fs_head head = s->head;
    fs_result result = fs_result_default();
    memset(d, 0x77, sizeof *d);
    if (screened) head.screen = screen, head.screen_bytes = s->bytes;
    result.tokens = d->token, result.noisy_logit = d->score, result.logit = d->logit, result.status = d->status;
    if (fs_sample(s->context, &head, batch, &result) != FS_OK) fuzz_fault("%s", fs_error_text(s->context));
    for (int64_t b = 0; b < batch->rows; b++) d->status[b] &= ~(uint32_t)FS_ROW_FALLBACK;
    d->tally = (tally){batch->rows, counters_of(s->context).screened_rows, counters_of(s->context).screened_dots};
}

static void add_tally(tally *to, const tally *one) {
    to->rows += one->rows, to->by_screen += one->by_screen, to->dots += one->dots;
}

static void draw_both_ways(const subject *s, kind k, const fs_batch *batch) {
    static drawn plain, by_screen;
    draw(s, batch, 0, &plain);
    draw(s, batch, 1, &by_screen);
    for (int64_t i = 0; i < batch->rows * batch->samples; i++) {
        const int64_t b = i / batch->samples;
        if (plain.token[i] != by_screen.token[i] || plain.status[b] != by_screen.status[b] ||
            memcmp(&plain.score[i], &by_screen.score[i], sizeof *plain.score) != 0 ||
            memcmp(&plain.logit[i], &by_screen.logit[i], sizeof *plain.logit) != 0)
            fuzz_fault("%lld x %lld of %s, %s, %s: row %lld draws %d (score %.9g, logit %.9g, status 0x%x), by the "
                       "screen %d (%.9g, %.9g, 0x%x)",
                       (long long)s->head.rows, (long long)s->head.dim, dtype_names[s->head.dtype],
                       format_names[s->format], kind_names[k], (long long)b, plain.token[i], (double)plain.score[i],
                       (double)plain.logit[i], plain.status[b], by_screen.token[i], (double)by_screen.score[i],
                       (double)by_screen.logit[i], by_screen.status[b]);
    }
    if (plain.tally.by_screen) fuzz_fault("a head without a screen has rows that one has decided");
    add_tally(&tables->kind[k][s->format], &by_screen.tally);
    add_tally(&tables->dtype[s->head.dtype][s->format], &by_screen.tally);
}

static void one_head(rng *r) {
    if (!one_thread) one_thread = open_context(FS_BACKEND_CPU, 1, 0);
    if (!three_threads) three_threads = open_context(FS_BACKEND_CPU, 3, 256);
    subject s = {.context = one_in(r, 6) ? three_threads : one_thread};
    make_head(r, &s);
    for (s.format = 0; s.format < FORMATS; s.format++) {
        const int32_t dtype = one_in(r, 2) ? s.head.dtype : (int32_t)below(r, 3);
        make_screen(r, &s);
        make_hidden_states(r, &s, dtype);
        make_rules(r, head_vocab(&s.head));
        for (int k = 0; k < KINDS; k++) {
            const fs_batch batch = make_batch(r, (kind)k, dtype);
            draw_both_ways(&s, (kind)k, &batch);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- report ---- */

enum { ENOUGH = 400 }; /* rows of which a screen that works decides some */

/* Rows, and the share a screen decided. Returns how many cells have none. */
static int print_line(const char *name, const tally *cell, int served) {
    int none = 0;
    printf("%-22s", name);
    for (int f = 0; f < FORMATS; f++) {
        const double rows = cell[f].rows ? (double)cell[f].rows : 1.0;
        printf(" %12lld %6.4f %6.1f", (long long)cell[f].rows, (double)cell[f].by_screen / rows,
               (double)cell[f].dots / rows);
        none += served && cell[f].rows >= ENOUGH && !cell[f].by_screen;
        none += !served && cell[f].by_screen > 0;
    }
    printf("\n");
    return none;
}

static int print_tables(void) {
    int none = 0;
    int64_t rows = 0, by_screen = 0;
    printf("rows, share decided by the screen, logits of W a row\n%-22s", "");
    for (int f = 0; f < FORMATS; f++) printf(" %26s", format_names[f]);
    printf("\n");
    for (int k = 0; k < KINDS; k++) none += print_line(kind_names[k], tables->kind[k], k != TOP_P_ALONE);
    for (int d = 0; d < 3; d++) none += print_line(dtype_names[d], tables->dtype[d], 1);
    for (int k = 0; k < KINDS; k++)
        for (int f = 0; f < FORMATS; f++) rows += tables->kind[k][f].rows, by_screen += tables->kind[k][f].by_screen;
    printf("%lld rows drawn both ways, %lld of them by the screen\n", (long long)rows, (long long)by_screen);
    if (none) printf("fault: %d kinds of rows of which the screen decided none, or some that need W\n", none);
    return none;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--plant") == 0) {
        planted = strcmp(argv[2], "scales") == 0 ? SCALES : strcmp(argv[2], "bounds") == 0 ? BOUNDS : NOTHING;
        if (!planted) return fprintf(stderr, "--plant %s: expected scales or bounds\n", argv[2]), 2;
        argc -= 2, argv += 2;
    }
    setenv("FLASHSAMPLING_SCREEN_ROWS", "1048576", 1); /* more rows than pay */
    tables = mmap(NULL, sizeof *tables, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tables == MAP_FAILED) return 2;
    const int status = fuzz_main(argc, argv, "fuzz_screens", 10, one_head);
    return status ? status : print_tables() != 0;
}
